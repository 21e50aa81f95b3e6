//! The engine's thread, and how others talk to it.

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use kernels::Pool;
use kv::Salt;
use model::Model;
use model::tokenizer::Tokenizer;

use super::{
    Batch, BatchOptions, Event, Outcome, RequestId, ServiceOptions, Speculation, Stats, Submission, SubmitError,
};
use crate::request::{Limits, Request, RequestError};

/// Where the events of a request go. It is called on the engine's thread, between two steps: it must not block. One that
/// panics is called no more, and its request is cancelled.
pub type Sink = Box<dyn FnMut(Event) + Send>;

/// A thread that runs the steps of one model. Dropping it cancels every request; see [`Service::shutdown`].
pub struct Service {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

/// Talks to a [`Service`], from any thread.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
    commands: Sender<Command>,
}

enum Command {
    Submit {
        id: RequestId,
        priority: i32,
        salt: Salt,
        requests: Vec<Request>,
        sink: Sink,
    },
    Cancel(RequestId),
    /// Take no more; finish what has been taken, or cancel it.
    Stop {
        drain: bool,
    },
}

/// What both sides see.
struct Shared {
    limits: Limits,
    drafts: bool,
    tokenizer: Tokenizer,
    max_running: usize,
    max_waiting: usize,
    gate: Mutex<Gate>,
}

impl Shared {
    fn gate(&self) -> MutexGuard<'_, Gate> {
        // Nothing that panics runs under the lock.
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Held for a moment by whoever submits and by the engine's thread between two steps.
struct Gate {
    open: bool,
    next: u64,
    /// Submissions that the engine's thread has not taken yet.
    queued: usize,
    stats: Stats,
}

impl Service {
    /// Starts the thread that answers requests to `model`, computing on `pool`.
    ///
    /// # Panics
    /// When the system has no thread left.
    pub fn start(
        model: impl Into<Arc<Model>>,
        tokenizer: Tokenizer,
        pool: Pool,
        options: ServiceOptions,
        speculation: Option<Speculation>,
    ) -> Service {
        let ServiceOptions { kv_bytes, kv_format, context, row_budget, max_running, max_waiting, prefix_cache } =
            options;
        let model = model.into();
        // What a drafter keeps lies in the same pages.
        let drafts = speculation.as_ref().map_or(0, |speculation| speculation.drafter.bytes_per_page());
        let page = model.kv_layout(kv_format).bytes_per_page() + drafts;
        let pages = (kv_bytes / page).min(u32::MAX as usize);
        let max_running = max_running.max(1);
        let options = BatchOptions { pages: Some(pages), kv_format, context, row_budget, max_running, prefix_cache };
        let drafts = speculation.is_some();
        let batch = Batch::new(model, tokenizer.clone(), pool, options, speculation);
        let gate = Mutex::new(Gate { open: true, next: 0, queued: 0, stats: batch.stats() });
        let (limits, max_waiting) = (batch.limits.clone(), max_waiting.max(1));
        let shared = Arc::new(Shared { limits, drafts, tokenizer, max_running, max_waiting, gate });
        let (commands, inbox) = mpsc::channel();
        let runner = Runner::new(batch, inbox, Arc::clone(&shared));
        let thread = std::thread::Builder::new().name("engine".into()).spawn(move || runner.run());
        let thread = thread.unwrap_or_else(|error| panic!("cannot start the engine's thread: {error}"));
        Service { handle: Handle { shared, commands }, thread: Some(thread) }
    }

    /// What to talk to it with.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Takes no more requests, finishes those that it has, and returns when the last has ended. Who cannot wait so long
    /// cancels them meanwhile, or drops the service instead.
    pub fn shutdown(mut self) {
        self.stop(true);
    }

    fn stop(&mut self, drain: bool) {
        let Some(thread) = self.thread.take() else { return };
        self.handle.shared.gate().open = false;
        // An error says that the thread has ended, which is what is wanted.
        let _ = self.handle.commands.send(Command::Stop { drain });
        let _ = thread.join();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.stop(false);
    }
}

impl Handle {
    /// Hands in a request. Its events go to `sink`, in order, from now on.
    ///
    /// # Errors
    /// [`SubmitError`]; the sink is then never called.
    pub fn submit(&self, submission: Submission, sink: Sink) -> Result<RequestId, SubmitError> {
        let Submission { prompt, params, n, cache_salt, priority, drafting } = submission;
        let Shared { limits, tokenizer, max_running, max_waiting, .. } = &*self.shared;
        if n == 0 || n as usize > *max_running {
            return Err(RequestError::Choices { n, max: *max_running }.into());
        }
        let request = |choice| {
            let request = Request::new(&prompt, params.clone(), choice, limits, tokenizer)?;
            Ok(request.with_drafting(drafting.clone()))
        };
        let requests = (0..n).map(request).collect::<Result<Vec<_>, RequestError>>()?;
        let salt = Salt::new(cache_salt.as_deref());
        // Sent under the lock: whatever was taken while the gate was open reaches the thread before the word to stop.
        let mut gate = self.shared.gate();
        if !gate.open {
            return Err(SubmitError::ShuttingDown);
        }
        if gate.queued + gate.stats.waiting >= *max_waiting {
            return Err(SubmitError::QueueFull);
        }
        let id = RequestId(gate.next);
        let command = Command::Submit { id, priority, salt, requests, sink };
        self.commands.send(command).map_err(|_| SubmitError::ShuttingDown)?;
        gate.next += 1;
        gate.queued += 1;
        Ok(id)
    }

    /// Ends a request where it is: its choices finish as cancelled before the next step, and their pages are free. Does
    /// nothing to a request that has ended.
    pub fn cancel(&self, id: RequestId) {
        // An error says that the thread has ended, and every request with it.
        let _ = self.commands.send(Command::Cancel(id));
    }

    /// What the service is doing, as of the last step.
    pub fn stats(&self) -> Stats {
        let gate = self.shared.gate();
        Stats { waiting: gate.stats.waiting + gate.queued, ..gate.stats }
    }

    /// Whether requests are taken: not after [`Service::shutdown`] has begun, nor when the engine's thread has ended.
    pub fn is_open(&self) -> bool {
        self.shared.gate().open
    }

    /// What a request may use.
    pub fn limits(&self) -> &Limits {
        &self.shared.limits
    }

    /// Choices that a request may ask for.
    pub fn max_choices(&self) -> usize {
        self.shared.max_running
    }

    /// Whether anything drafts.
    pub fn drafts(&self) -> bool {
        self.shared.drafts
    }
}

/// A request that is being answered.
struct Client {
    sink: Sink,
    /// Choices that have not ended.
    open: Vec<u32>,
}

/// The engine's thread.
struct Runner {
    batch: Batch,
    inbox: Receiver<Command>,
    shared: Arc<Shared>,
    clients: HashMap<RequestId, Client>,
    stopping: bool,
}

impl Runner {
    fn new(batch: Batch, inbox: Receiver<Command>, shared: Arc<Shared>) -> Runner {
        Runner { batch, inbox, shared, clients: HashMap::new(), stopping: false }
    }

    fn run(mut self) {
        while self.listen() {
            self.guarded(Batch::step);
            self.publish(0);
            self.emit();
        }
    }

    /// Obeys all commands that have come, and waits for one if there is nothing else to do. Answers whether to go on.
    fn listen(&mut self) -> bool {
        let mut submitted = 0;
        while self.batch.is_idle() {
            if self.stopping {
                return false;
            }
            let Ok(command) = self.inbox.recv() else { return false };
            submitted += self.obey(command);
        }
        while let Ok(command) = self.inbox.try_recv() {
            submitted += self.obey(command);
        }
        self.publish(submitted);
        self.emit();
        true
    }

    /// Answers how many submissions the command was.
    fn obey(&mut self, command: Command) -> usize {
        match command {
            Command::Submit { id, priority, salt, requests, sink } => {
                let open = (0..).zip(&requests).map(|(choice, _)| choice).collect();
                self.clients.insert(id, Client { sink, open });
                self.batch.add(id, priority, salt, requests);
                return 1;
            }
            Command::Cancel(id) => self.batch.cancel(id),
            Command::Stop { drain } => {
                self.stopping = true;
                if !drain {
                    self.clients.keys().for_each(|&id| self.batch.cancel(id));
                }
            }
        }
        0
    }

    /// Runs a step. One that breaks off fails the requests that run; those who wait, and the service, go on.
    fn guarded<E: ToString>(&mut self, step: impl FnOnce(&mut Batch) -> Result<(), E>) {
        let broken = match catch_unwind(AssertUnwindSafe(|| step(&mut self.batch))) {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(panic) => format!("a panic in the engine: {}", panic_message(&*panic)),
        };
        self.batch.abandon(&broken);
    }

    /// Lets others see how things stand, before they hear of it by an event.
    fn publish(&mut self, submitted: usize) {
        let stats = self.batch.stats();
        let mut gate = self.shared.gate();
        gate.queued -= submitted;
        gate.stats = stats;
    }

    /// Tells every client what came of its request.
    fn emit(&mut self) {
        let mut freed = false;
        for (id, choice, outcome) in self.batch.take_outcomes() {
            let ended = !matches!(outcome, Outcome::Token(_));
            let Some(client) = self.clients.get_mut(&id) else { continue };
            if ended {
                client.open.retain(|&open| open != choice);
            }
            let told = client.tell(event(choice, outcome));
            if !told {
                self.batch.cancel(id);
                freed = true;
            }
            if !told || client.open.is_empty() {
                self.clients.remove(&id);
            }
        }
        if freed {
            self.publish(0);
        }
    }
}

impl Drop for Runner {
    /// However the thread ends, nobody waits for it in vain.
    fn drop(&mut self) {
        self.shared.gate().open = false;
        for client in self.clients.values_mut() {
            for choice in std::mem::take(&mut client.open) {
                client.tell(Event::Failed { choice, message: "the engine has stopped".into() });
            }
        }
    }
}

impl Client {
    /// Calls the sink, and answers whether it returned.
    fn tell(&mut self, event: Event) -> bool {
        catch_unwind(AssertUnwindSafe(|| (self.sink)(event))).is_ok()
    }
}

fn event(choice: u32, outcome: Outcome) -> Event {
    match outcome {
        Outcome::Token(delta) => Event::Delta { choice, delta },
        Outcome::Finished(reason, usage) => Event::Finished { choice, reason, usage },
        Outcome::Failed(error) => Event::Failed { choice, message: error.to_string() },
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::SamplingParams;
    use kernels::KvFormat;

    fn runner() -> Runner {
        let (model, pool) = testkit::tiny_llama(1);
        let tokenizer = testkit::byte_tokenizer();
        let options = BatchOptions {
            pages: Some(20),
            kv_format: KvFormat::F16,
            context: None,
            row_budget: 16,
            max_running: 2,
            prefix_cache: true,
        };
        let batch = Batch::new(Arc::new(model), tokenizer.clone(), pool, options, None);
        let gate = Mutex::new(Gate { open: true, next: 0, queued: 0, stats: batch.stats() });
        let limits = batch.limits.clone();
        let shared = Arc::new(Shared { limits, drafts: false, tokenizer, max_running: 2, max_waiting: 5, gate });
        Runner::new(batch, mpsc::channel().1, shared)
    }

    #[test]
    fn a_panic_in_a_step_fails_who_runs_and_spares_who_waits() {
        let mut runner = runner();
        let (events, inbox) = mpsc::channel();
        for id in 0..3 {
            let params = SamplingParams { max_tokens: Some(4), ignore_eos: true, ..Default::default() };
            let request = Request::new(&[1; 20], params, 0, &runner.shared.limits, &runner.shared.tokenizer).unwrap();
            let events = events.clone();
            let sink: Sink = Box::new(move |event| events.send((id, event)).unwrap());
            runner.obey(Command::Submit {
                id: RequestId(id),
                priority: 0,
                salt: Salt::default(),
                requests: vec![request],
                sink,
            });
        }
        runner.guarded(Batch::step);
        assert_eq!((runner.batch.stats().running, runner.batch.stats().waiting), (2, 1));
        runner.guarded(|_: &mut Batch| -> Result<(), String> { panic!("of this test") });
        assert_eq!((runner.batch.stats().running, runner.batch.stats().kv_pages_used), (0, 0));
        while !runner.batch.is_idle() {
            runner.guarded(Batch::step);
        }
        runner.emit();
        let events: Vec<(u64, Event)> = inbox.try_iter().collect();
        let message = "the step broke off: a panic in the engine: of this test".to_owned();
        for id in 0..2 {
            assert!(events.contains(&(id, Event::Failed { choice: 0, message: message.clone() })));
        }
        assert_eq!(events.iter().filter(|(id, _)| *id == 2).count(), 5);
        assert!(runner.clients.is_empty());
    }
}
