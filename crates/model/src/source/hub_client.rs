//! Requests to the hub that cannot hang: crate `hf-hub` does them in a thread, and this one waits only so long.
//!
//! The client has no time limits of its own. Here every request must show a sign of life within a limit, or it is given
//! up; its thread then ends at the next byte that it receives.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use super::Progress;

/// Bytes and time after which progress is passed on.
const REPORT_BYTES: u64 = 1 << 18;
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// What the thread tells.
enum Event<T> {
    /// The server has answered; a file of so many bytes follows.
    Start(u64),
    Advance(u64),
    Done(Result<T, String>),
}

/// Why a request gave nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    /// Nothing was heard for too long; the thread may still be at it.
    #[error("{0}")]
    Silence(String),
    /// The client says so, and is done.
    #[error("{0}")]
    Client(String),
}

/// Runs `work` in a thread. `label` is what the progress is called; the first answer may take `answer`, and each later
/// sign of life `stall`.
///
/// # Errors
/// What `work` says, or that nothing was heard of it for too long.
pub(super) fn run<T: Send + 'static>(
    progress: &dyn Progress,
    label: &str,
    answer: Duration,
    stall: Duration,
    work: impl FnOnce(Relay<T>) -> Result<T, String> + Send + 'static,
) -> Result<T, Trouble> {
    let (send, receive) = channel();
    let body = move || {
        let relay = Relay { send: send.clone(), pending: 0, last: Instant::now(), started: false };
        let done = catch_unwind(AssertUnwindSafe(|| work(relay)));
        // Nobody listens any more when the request was given up.
        let _ = send.send(Event::Done(done.unwrap_or_else(|_| Err("the answer makes no sense".into()))));
    };
    let spawned = std::thread::Builder::new().name("hub".into()).spawn(body);
    spawned.map_err(|e| Trouble::Client(format!("cannot start a thread: {e}")))?;
    let mut started = false;
    let result = loop {
        let limit = if started { stall } else { answer };
        match receive.recv_timeout(limit) {
            Ok(Event::Start(total)) => {
                progress.start(label, Some(total));
                started = true;
            }
            Ok(Event::Advance(bytes)) => progress.advance(bytes),
            Ok(Event::Done(result)) => break result.map_err(Trouble::Client),
            Err(_) => {
                let what = if started { "nothing more" } else { "no answer" };
                break Err(Trouble::Silence(format!("{what} within {} seconds", limit.as_secs_f32())));
            }
        }
    };
    if started {
        progress.finish();
    }
    result
}

/// Passes the progress of a download from the thread to the caller.
pub(super) struct Relay<T> {
    send: Sender<Event<T>>,
    pending: u64,
    last: Instant,
    started: bool,
}

impl<T> Relay<T> {
    fn tell(&self, event: Event<T>) {
        if self.send.send(event).is_err() {
            // The caller has given up. The client has no way to stop a download but this; no message is printed for it.
            resume_unwind(Box::new("given up"));
        }
    }
}

impl<T> hf_hub::api::Progress for Relay<T> {
    fn init(&mut self, size: usize, _: &str) {
        // The client says it twice.
        if !self.started {
            self.started = true;
            self.tell(Event::Start(size as u64));
        }
    }

    fn update(&mut self, size: usize) {
        self.pending += size as u64;
        if self.pending >= REPORT_BYTES || self.last.elapsed() >= REPORT_EVERY {
            let bytes = std::mem::take(&mut self.pending);
            self.tell(Event::Advance(bytes));
            self.last = Instant::now();
        }
    }

    fn finish(&mut self) {
        let bytes = std::mem::take(&mut self.pending);
        self.tell(Event::Advance(bytes));
    }
}
