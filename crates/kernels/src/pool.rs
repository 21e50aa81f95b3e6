//! A persistent pool of threads for regions of a few microseconds.
//!
//! A step is some two hundred short parallel regions; waking a sleeping thread costs more than many of them. Workers
//! therefore spin for a moment after each region and park only when nothing follows. The caller is one of the threads.
//!
//! A region never waits for a thread that has not begun it. On a busy machine a worker may have lost its core; the
//! others then do its share, and only a worker that is in the middle of an item holds them up.
//!
//! What is computed never depends on the pool: it hands out whole items, and an item's result is a function of the
//! item alone.

use std::any::Any;
use std::cell::UnsafeCell;
use std::hint::spin_loop;
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};

/// Rounds of [`spin_loop`] before a worker parks: some hundred microseconds, the time between two steps.
const SPINS: u32 = 4_000;
/// Rounds after which a waiting caller lets others run: a worker may have lost its core.
const SPINS_BEFORE_YIELD: u32 = 2_000;

/// A region: called at most once by every thread with that thread's number.
type Region<'a> = dyn Fn(usize) + Sync + 'a;

/// One cache line of its own, so that spinning on one flag does not slow the writes of another.
#[repr(align(128))]
struct Line<T>(T);

/// The state's lower half: whether threads may enter the region, and how many workers are in it.
const OPEN: u64 = 1 << 31;
const INSIDE: u64 = OPEN - 1;

/// The number of the region that a state belongs to.
fn region_number(state: u64) -> u64 {
    state >> 32
}

struct Shared {
    /// The region in flight. Written by the caller while none is open, read by workers that have entered it.
    region: UnsafeCell<*const Region<'static>>,
    /// The region's number in the upper half; [`OPEN`] and [`INSIDE`] in the lower.
    state: Line<AtomicU64>,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `region` is written only while the state is closed with nobody inside (and the pool's turn is held), and read
// only by a worker inside, during which the caller keeps it alive.
unsafe impl Sync for Shared {}
// SAFETY: the raw pointer is only dereferenced under the protocol above; nothing in it is tied to a thread.
unsafe impl Send for Shared {}

struct Worker {
    parked: Arc<Line<AtomicBool>>,
    thread: Thread,
    join: Option<JoinHandle<()>>,
}

/// A fixed set of threads that run parallel regions together with the thread that calls.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<Worker>,
    /// One region at a time: two callers take turns.
    turn: Mutex<()>,
}

impl Pool {
    /// A pool of `threads` threads, the caller's included: `threads - 1` are started.
    pub fn new(threads: NonZeroUsize) -> Pool {
        let shared = Arc::new(Shared {
            region: UnsafeCell::new(std::ptr::null::<fn(usize)>() as *const Region<'static>),
            state: Line(AtomicU64::new(0)),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let workers = (1..threads.get()).filter_map(|index| Worker::start(index, &shared)).collect();
        Pool { shared, workers, turn: Mutex::new(()) }
    }

    /// Threads that run a region, the caller's included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `region(0)` here and `region(thread)` on every other thread that comes before this one is done; returns
    /// when all that came have returned. What has to be done must not depend on who comes.
    ///
    /// A panic in a region reaches the caller after every thread has left it.
    pub(crate) fn share(&self, region: impl Fn(usize) + Sync) {
        if self.workers.is_empty() {
            return region(0);
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let region: &Region<'_> = &region;
        // SAFETY: only the lifetime changes; the pointer is not used after this function returns, since it closes the
        // region and waits for every worker inside, also when its own share panics.
        let region_static: *const Region<'static> = unsafe { std::mem::transmute(region as *const Region<'_>) };
        // SAFETY: the state is closed with nobody inside (this thread holds the turn), so nobody reads this.
        unsafe { *self.shared.region.get() = region_static };
        let state = &self.shared.state.0;
        let number = region_number(state.load(Ordering::Relaxed)).wrapping_add(1);
        state.store(number << 32 | OPEN, Ordering::SeqCst);
        for worker in &self.workers {
            if worker.parked.0.load(Ordering::SeqCst) {
                worker.thread.unpark();
            }
        }
        let own = catch_unwind(AssertUnwindSafe(|| region(0)));
        state.fetch_and(!OPEN, Ordering::AcqRel);
        wait_until(|| state.load(Ordering::Acquire) & INSIDE == 0);
        let theirs = self.shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(payload) = own.err().or(theirs) {
            resume_unwind(payload);
        }
    }

    /// Calls `item(i)` for every `i` in `0..n`, each once.
    ///
    /// Every thread goes through a share of consecutive items, so that what it reads stays one stream; who is done
    /// helps the others.
    pub fn for_each(&self, n: usize, item: impl Fn(usize) + Sync) {
        if n <= 1 || self.workers.is_empty() {
            return (0..n).for_each(item);
        }
        let threads = self.threads();
        let share = |thread: usize| n * thread / threads..n * (thread + 1) / threads;
        let next: Vec<Line<AtomicUsize>> =
            (0..threads).map(|thread| Line(AtomicUsize::new(share(thread).start))).collect();
        self.share(|own| {
            for thread in (own..threads).chain(0..own) {
                loop {
                    let i = next[thread].0.fetch_add(1, Ordering::Relaxed);
                    if i >= share(thread).end {
                        break;
                    }
                    item(i);
                }
            }
        });
    }
}

/// Rows from which handing them out costs less than it saves: a row is a microsecond or two of work.
const ROWS_TO_SHARE: usize = 4;

impl Pool {
    /// Calls `each(row, values)` for every row of `values`, `[rows, values.len() / rows]`.
    ///
    /// # Panics
    /// When the values are not a whole number of rows.
    pub fn for_each_row<T: Send>(&self, values: &mut [T], rows: usize, each: impl Fn(usize, &mut [T]) + Sync) {
        if rows == 0 {
            return;
        }
        assert!(values.len().is_multiple_of(rows), "{} values in {rows} rows", values.len());
        let width = values.len() / rows;
        if rows < ROWS_TO_SHARE {
            return (0..rows).for_each(|row| each(row, &mut values[row * width..(row + 1) * width]));
        }
        let values = Disjoint::new(values);
        // SAFETY: each row is one item, and rows do not overlap.
        self.for_each(rows, |row| each(row, unsafe { values.slice(row * width..(row + 1) * width) }));
    }

    /// Calls `each(index, item)` for every item: whole tasks of some ten microseconds and more each.
    pub fn for_each_mut<T: Send>(&self, items: &mut [T], each: impl Fn(usize, &mut T) + Sync) {
        let n = items.len();
        let items = Disjoint::new(items);
        self.for_each(n, |index| {
            // SAFETY: each item is handed out once.
            let item = unsafe { items.slice(index..index + 1) };
            item.iter_mut().for_each(|item| each(index, item));
        });
    }

    /// Calls `each(row, left, right)` for every row of two matrices of `rows` rows, in one region.
    ///
    /// # Panics
    /// When the values of either are not a whole number of rows.
    pub fn for_each_row_of_two<T: Send>(
        &self,
        (left, right): (&mut [T], &mut [T]),
        rows: usize,
        each: impl Fn(usize, &mut [T], &mut [T]) + Sync,
    ) {
        let width = right.len() / rows.max(1);
        assert!(right.len() == width * rows, "{} values in {rows} rows", right.len());
        let right = Disjoint::new(right);
        self.for_each_row(left, rows, |row, left| {
            // SAFETY: a row of the left side is one item, and it alone takes that row of the right side.
            each(row, left, unsafe { right.slice(row * width..(row + 1) * width) })
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.state.0.fetch_add(1 << 32, Ordering::SeqCst);
        for worker in &mut self.workers {
            worker.thread.unpark();
            if let Some(join) = worker.join.take() {
                // A worker catches every panic of a region, so it ends only by the stop flag.
                let _ = join.join();
            }
        }
    }
}

impl Worker {
    /// Starts worker `index`; `None` when the system has no thread left, in which case the others do its share.
    fn start(index: usize, shared: &Arc<Shared>) -> Option<Worker> {
        let parked = Arc::new(Line(AtomicBool::new(false)));
        let (shared, flag) = (Arc::clone(shared), Arc::clone(&parked));
        let join = std::thread::Builder::new()
            .name(format!("kernels-{index}"))
            .spawn(move || work(index, &shared, &flag.0))
            .ok()?;
        Some(Worker { parked, thread: join.thread().clone(), join: Some(join) })
    }
}

/// Waits for a moment's work of another thread: spins first, lets others run then.
fn wait_until(done: impl Fn() -> bool) {
    let mut spins = 0;
    while !done() {
        if spins < SPINS_BEFORE_YIELD {
            spins += 1;
            spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}

fn work(index: usize, shared: &Shared, parked: &AtomicBool) {
    let mut seen = 0;
    loop {
        let state = next_state(seen, shared, parked);
        seen = region_number(state);
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        if !enter(state, &shared.state.0) {
            continue;
        }
        // SAFETY: this thread is inside, so the caller has stored a region and keeps it alive until it has left.
        let region = unsafe { &**shared.region.get() };
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| region(index))) {
            shared.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(payload);
        }
        shared.state.0.fetch_sub(1, Ordering::Release);
    }
}

/// Counts this thread in, unless the region that `seen` belongs to is closed or over.
fn enter(seen: u64, state: &AtomicU64) -> bool {
    let number = region_number(seen);
    let count_in = |now: u64| (region_number(now) == number && now & OPEN != 0).then_some(now + 1);
    state.fetch_update(Ordering::AcqRel, Ordering::Acquire, count_in).is_ok()
}

/// Waits until the state is of another region than number `seen`: spins first, parks then.
fn next_state(seen: u64, shared: &Shared, parked: &AtomicBool) -> u64 {
    for _ in 0..SPINS {
        let now = shared.state.0.load(Ordering::Acquire);
        if region_number(now) != seen {
            return now;
        }
        spin_loop();
    }
    // The flag goes up before the last look at the state, and the caller moves the state before it looks at the flag:
    // one of the two sees the other.
    parked.store(true, Ordering::SeqCst);
    let now = loop {
        let now = shared.state.0.load(Ordering::SeqCst);
        if region_number(now) != seen {
            break now;
        }
        std::thread::park();
    };
    parked.store(false, Ordering::SeqCst);
    now
}

/// A slice of which several threads write disjoint ranges.
pub(crate) struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    owner: PhantomData<&'a mut [T]>,
}

// SAFETY: it hands out ranges only through an unsafe method whose caller promises that they do not overlap.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Disjoint { start: slice.as_mut_ptr(), len: slice.len(), owner: PhantomData }
    }

    /// The elements of `range`.
    ///
    /// # Panics
    /// When the range leaves the slice.
    ///
    /// # Safety
    /// No two live results may overlap.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn slice(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: inside the slice by the check above; exclusive by this method's contract.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.end - range.start) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(threads: usize) -> Pool {
        Pool::new(NonZeroUsize::new(threads).expect("not zero"))
    }

    #[test]
    fn every_item_runs_once_also_after_the_workers_parked() {
        for threads in [1, 2, 3, 7] {
            let pool = pool(threads);
            for round in 0..200 {
                let n = round % 13;
                let hits: Vec<AtomicUsize> = (0..n).map(|_| AtomicUsize::new(0)).collect();
                pool.for_each(n, |i| {
                    hits[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(hits.iter().all(|hit| hit.load(Ordering::Relaxed) == 1));
                if round % 50 == 0 {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = pool(3);
        for _ in 0..3 {
            let result = catch_unwind(AssertUnwindSafe(|| pool.for_each(8, |i| assert!(i != 5, "item five"))));
            assert!(result.is_err());
        }
        let sum = AtomicUsize::new(0);
        pool.for_each(10, |i| {
            sum.fetch_add(i, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 45);
    }

    #[test]
    fn two_callers_take_turns() {
        let pool = pool(2);
        let sum = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        pool.for_each(4, |i| {
                            sum.fetch_add(i, Ordering::Relaxed);
                        });
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), 2 * 500 * 6);
    }
}
