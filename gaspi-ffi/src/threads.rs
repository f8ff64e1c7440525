//! GASPI_Threads.h: a small pool of threads and a barrier of those that registered.
//!
//! Invariant: the lock is never held while a function of the program runs or a rank is waited for.
//! A barrier counts the registered threads and those that were given a function and have not
//! registered yet. Programs fill the pool thread by thread while the first ones already run into
//! their barrier, so a barrier of a pool that is not full completes only after no thread has joined
//! for [`SETTLING`]. A full pool does not wait.

use crate::error::Failure;
use crate::runtime::{self, timeout};
use crate::topology;
use crate::types::*;
use gaspi_core::os::cancel;
use gaspi_core::{Deadline, Error, GroupId, Timeout};
use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{mem, ptr};

/// Threads of the largest pool.
const THREADS_MAX: u32 = 4096;

/// A pool that is not full counts as complete after this time without a new thread. Programs start
/// their threads in a loop without pauses. (Tests run on busy machines.)
const SETTLING: Duration = Duration::from_millis(if cfg!(test) { 1000 } else { 100 });

/// A function of the program and its argument.
struct Task {
    function: unsafe extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
}

// SAFETY: the program hands both over to another thread, which is what the call is for.
unsafe impl Send for Task {}

struct Pool {
    /// The number of this pool: a thread's registration with an earlier one is void.
    generation: u64,
    /// One entry per number; true while a thread has it. Empty without a pool.
    numbers: Vec<bool>,
    workers: Vec<libc::pthread_t>,
    tasks: VecDeque<Task>,
    /// Tasks under way whose threads have not registered.
    unregistered: usize,
    closing: bool,
    /// When the last thread joined, until that is settled.
    joined: Option<Instant>,
    /// Threads that came to the present barrier.
    arrived: usize,
    /// Barriers that were completed.
    phase: u64,
    /// Whether one of those that arrived is at the barrier of the ranks.
    leading: bool,
    /// How the last barrier ended.
    outcome: gaspi_core::Result<()>,
}

static POOL: Mutex<Pool> = Mutex::new(Pool {
    generation: 0,
    numbers: Vec::new(),
    workers: Vec::new(),
    tasks: VecDeque::new(),
    unregistered: 0,
    closing: false,
    joined: None,
    arrived: 0,
    phase: 0,
    leading: false,
    outcome: Ok(()),
});

/// Something in the pool changed.
static CHANGED: Condvar = Condvar::new();

thread_local! {
    // Constants without destructors, so that they work in destructors that run after main.
    /// Generation and number of this thread.
    static REGISTERED: Cell<Option<(u64, usize)>> = const { Cell::new(None) };
    /// Generation and phase of the barrier that this thread came to and did not see the end of.
    static AWAITED: Cell<Option<(u64, u64)>> = const { Cell::new(None) };
    /// Whether this is a thread of the pool, and whether its task counts as unregistered.
    static WORKER: Cell<Option<bool>> = const { Cell::new(None) };
}

fn lock() -> MutexGuard<'static, Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

fn rejected(reason: &str) -> Failure {
    Failure::Rejected(reason.to_owned())
}

impl Pool {
    fn exists(&self) -> Result<(), Failure> {
        match self.numbers.is_empty() {
            true => Err(rejected("there is no pool; call gaspi_threads_init first")),
            false => Ok(()),
        }
    }

    /// Whether threads from outside may still come in. Those of the pool may until they end.
    fn is_open(&self) -> Result<(), Failure> {
        self.exists()?;
        match self.closing && WORKER.get().is_none() {
            true => Err(rejected("another thread is inside gaspi_threads_term")),
            false => Ok(()),
        }
    }

    /// The number of the calling thread.
    fn number(&self) -> Option<usize> {
        REGISTERED
            .get()
            .filter(|(generation, _)| *generation == self.generation)
            .map(|(_, number)| number)
    }

    /// How many threads a barrier waits for.
    fn participants(&self) -> usize {
        let registered = self.numbers.iter().filter(|taken| **taken).count();
        registered + self.unregistered + self.tasks.len()
    }

    /// A thread registered or got a task.
    fn join(&mut self) {
        let full = self.participants() >= self.numbers.len();
        self.joined = if full { None } else { Some(Instant::now()) };
        CHANGED.notify_all();
    }

    /// When the set of threads becomes final; `None` if it is.
    fn settled_at(&mut self) -> Option<Instant> {
        let at = self.joined? + SETTLING;
        if Instant::now() < at {
            return Some(at);
        }
        self.joined = None;
        None
    }

    /// Takes the calling thread, whose task ended, out of everything.
    fn leave(&mut self) {
        if WORKER.replace(Some(false)) == Some(true) {
            self.unregistered -= 1;
        }
        if let Some(number) = self.number() {
            self.numbers[number] = false;
            if AWAITED.take() == Some((self.generation, self.phase)) {
                self.arrived -= 1;
            }
        }
        REGISTERED.set(None);
        CHANGED.notify_all();
    }
}

/// A thread of the pool: runs tasks until the pool closes.
extern "C" fn work(_: *mut c_void) -> *mut c_void {
    WORKER.set(Some(false));
    let mut pool = lock();
    loop {
        if let Some(task) = pool.tasks.pop_front() {
            pool.unregistered += 1;
            WORKER.set(Some(true));
            drop(pool);
            // SAFETY: the program promised a function that may be called with this argument.
            unsafe { (task.function)(task.argument) };
            pool = lock();
            pool.leave();
        } else if pool.closing {
            return ptr::null_mut();
        } else {
            pool = CHANGED.wait(pool).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Starts the pool.
fn start(size: u32) -> Result<(), Failure> {
    if !(1..=THREADS_MAX).contains(&size) {
        return Err(Failure::Rejected(format!("a pool has 1 to {THREADS_MAX} threads")));
    }
    let mut pool = lock();
    if !pool.numbers.is_empty() {
        return Err(rejected("there is a pool already; call gaspi_threads_term first"));
    }
    pool.generation += 1;
    pool.numbers = vec![false; size as usize];
    (pool.arrived, pool.leading, pool.outcome, pool.joined) = (0, false, Ok(()), None);
    for started in 0..size {
        let mut worker = mem::MaybeUninit::uninit();
        // SAFETY: `work` may run on any thread; default attributes give the program's stack size.
        let failed = unsafe {
            libc::pthread_create(worker.as_mut_ptr(), ptr::null(), work, ptr::null_mut())
        };
        if failed != 0 {
            let error = std::io::Error::from_raw_os_error(failed);
            drop(stop(pool));
            return Err(Failure::Rejected(format!(
                "thread {started} of {size} could not be started: {error}; \
                 raise the limit with ulimit -u or start fewer"
            )));
        }
        // SAFETY: pthread_create filled it in.
        pool.workers.push(unsafe { worker.assume_init() });
    }
    Ok(())
}

/// Lets the workers finish their tasks and ends them.
fn stop(mut pool: MutexGuard<'static, Pool>) -> MutexGuard<'static, Pool> {
    pool.closing = true;
    let workers = mem::take(&mut pool.workers);
    CHANGED.notify_all();
    drop(pool);
    for worker in workers {
        // SAFETY: each was started joinable and is taken out of the list once.
        unsafe { libc::pthread_join(worker, ptr::null_mut()) };
    }
    let mut pool = lock();
    pool.closing = false;
    pool.numbers.clear();
    pool.generation += 1;
    CHANGED.notify_all();
    pool
}

/// Sleeps until something changed, at most until `wake`.
fn sleep(
    pool: MutexGuard<'static, Pool>,
    deadline: Deadline,
    wake: Option<Instant>,
) -> Result<MutexGuard<'static, Pool>, Failure> {
    let left = deadline.remaining();
    if left.is_some_and(|left| left.is_zero()) {
        return Err(Failure::Timeout);
    }
    let until_wake = wake.map(|wake| wake.saturating_duration_since(Instant::now()));
    match left.into_iter().chain(until_wake).min() {
        None => Ok(CHANGED.wait(pool).unwrap_or_else(PoisonError::into_inner)),
        Some(left) => {
            Ok(CHANGED.wait_timeout(pool, left).unwrap_or_else(PoisonError::into_inner).0)
        }
    }
}

/// The time until a deadline, as the timeout of a call.
fn remaining(deadline: Deadline) -> Timeout {
    match (deadline, deadline.remaining()) {
        (Deadline::Now, _) => Timeout::Test,
        (_, None) => Timeout::Block,
        (_, Some(left)) => Timeout::Millis(left.as_micros().div_ceil(1000) as u64),
    }
}

/// Gives the lead back when the barrier of the ranks panics.
struct Lead;

impl Drop for Lead {
    fn drop(&mut self) {
        lock().leading = false;
        CHANGED.notify_all();
    }
}

/// A barrier of the registered threads; one of them does `last` before any returns. A thread whose
/// time is over has still arrived: its next call goes on waiting for the same barrier.
fn meet(
    deadline: Deadline,
    mut last: impl FnMut() -> gaspi_core::Result<()>,
) -> Result<(), Failure> {
    let mut pool = lock();
    if pool.number().is_none() {
        return Err(rejected("this thread is not registered; call gaspi_threads_register first"));
    }
    let phase = match AWAITED.get() {
        Some((generation, phase)) if generation == pool.generation => phase,
        _ => {
            pool.arrived += 1;
            AWAITED.set(Some((pool.generation, pool.phase)));
            CHANGED.notify_all();
            pool.phase
        }
    };
    let generation = pool.generation;
    loop {
        if pool.generation != generation {
            return Err(rejected("the pool was ended by gaspi_threads_term"));
        }
        if pool.phase != phase {
            AWAITED.set(None);
            return Ok(pool.outcome.clone()?);
        }
        if pool.arrived < pool.participants() || pool.leading {
            pool = sleep(pool, deadline, None)?;
            continue;
        }
        if let Some(wake) = pool.settled_at() {
            pool = sleep(pool, deadline, Some(wake))?;
            continue;
        }
        pool.leading = true;
        drop(pool);
        let lead = Lead;
        let outcome = last();
        mem::forget(lead);
        // The lead ends together with the phase, so that `last` runs only once for it.
        pool = lock();
        pool.leading = false;
        CHANGED.notify_all();
        if let Err(error @ Error::Timeout { .. }) = outcome {
            return Err(error.into());
        }
        pool.outcome = outcome;
        pool.phase += 1;
        pool.arrived = 0;
    }
}

procedures! {
    /// GASPI_Threads.h: the number of the calling thread.
    fn threads_get_tid(tid: *mut gaspi_int) with _rt {
        let out = out!(tid);
        let number = lock().number().ok_or_else(|| rejected("this thread is not registered"))?;
        out.set(number as gaspi_int);
        Ok(())
    }

    /// GASPI_Threads.h: the number of threads of the pool.
    fn threads_get_total(num: *mut gaspi_int) with _rt {
        let out = out!(num);
        let pool = lock();
        pool.exists()?;
        out.set(pool.numbers.len() as gaspi_int);
        Ok(())
    }

    /// GASPI_Threads.h: the number of cores that this thread may run on.
    fn threads_get_num_cores(cores: *mut gaspi_int) with _rt {
        out!(cores).give(topology::usable_cores().len() as gaspi_int)
    }

    /// GASPI_Threads.h: starts a pool with a thread per core.
    fn threads_init(num: *mut gaspi_int) holding _rt {
        let out = out!(num);
        let size = topology::usable_cores().len().clamp(1, THREADS_MAX as usize);
        start(size as u32)?;
        out.set(size as gaspi_int);
        Ok(())
    }

    /// GASPI_Threads.h: starts a pool.
    fn threads_init_user(use_nthreads: gaspi_uint) holding _rt {
        start(use_nthreads)
    }

    /// GASPI_Threads.h: ends the pool once its threads finished what they run.
    fn threads_term() holding _rt {
        if WORKER.get().is_some() {
            return Err(rejected("a thread of the pool cannot end the pool"));
        }
        let pool = lock();
        pool.is_open()?;
        drop(stop(pool));
        Ok(())
    }

    /// GASPI_Threads.h: gives a function to a thread of the pool.
    fn threads_run(function: thread_function, arg: gaspi_pointer_t) with _rt {
        let function = function.ok_or(Failure::Null("function"))?;
        let mut pool = lock();
        pool.is_open()?;
        pool.tasks.push_back(Task { function, argument: arg });
        pool.join();
        Ok(())
    }

    /// GASPI_Threads.h: gives the calling thread a number.
    fn threads_register(tid: *mut gaspi_int) with _rt {
        let out = out!(tid);
        let mut pool = lock();
        pool.is_open()?;
        let number = match pool.number() {
            Some(number) => number,
            None => {
                let free = pool.numbers.iter().position(|taken| !taken);
                let free = free.ok_or_else(|| {
                    let size = pool.numbers.len();
                    Failure::Rejected(format!("all {size} threads of the pool are registered"))
                })?;
                pool.numbers[free] = true;
                REGISTERED.set(Some((pool.generation, free)));
                if WORKER.get() == Some(true) {
                    WORKER.set(Some(false));
                    pool.unregistered -= 1;
                }
                pool.join();
                free
            }
        };
        out.set(number as gaspi_int);
        Ok(())
    }

    /// GASPI_Threads.h: barrier of the registered threads of all ranks of a group.
    fn threads_sync_all(group: gaspi_group_t, milliseconds: gaspi_timeout_t) holding rt {
        // A wrong group is told to all threads, not only to the last one.
        rt.group_size(GroupId(group))?;
        gaspi_core::may_wait(timeout(milliseconds), "threads_sync_all")?;
        let deadline = timeout(milliseconds).deadline();
        meet(deadline, || rt.barrier(GroupId(group), remaining(deadline)))
    }
}

/// [`threads_sync`] with its outcome; the C procedure returns nothing, so it is only logged.
fn sync() -> crate::error::Outcome {
    let _uncancelled = cancel::hold_off();
    runtime::refuse_fork()?;
    meet(Deadline::Never, || Ok(()))
}

plain_procedures! {
    /// GASPI_Threads.h: barrier of the registered threads.
    fn threads_sync() -> () {
        crate::error::boundary("threads_sync", sync);
    } else ();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    static ENTERED: AtomicU32 = AtomicU32::new(0);

    fn register() -> usize {
        let mut pool = lock();
        let free = pool.numbers.iter().position(|taken| !taken).unwrap();
        pool.numbers[free] = true;
        REGISTERED.set(Some((pool.generation, free)));
        free
    }

    extern "C" fn count(_: *mut c_void) -> *mut c_void {
        ENTERED.fetch_add(1, Ordering::SeqCst);
        ptr::null_mut()
    }

    static LED: AtomicU32 = AtomicU32::new(0);

    fn lead() -> gaspi_core::Result<()> {
        LED.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    static PASSED: AtomicU32 = AtomicU32::new(0);

    extern "C" fn cross(_: *mut c_void) -> *mut c_void {
        register();
        WORKER.set(Some(false));
        lock().unregistered -= 1;
        meet(Deadline::Never, || Ok(())).unwrap();
        PASSED.fetch_add(1, Ordering::SeqCst);
        ptr::null_mut()
    }

    // One test, because there is one pool per process.
    #[test]
    fn pool_and_barrier() {
        assert!(start(0).is_err());
        assert!(matches!(sync(), Err(Failure::Rejected(_))));

        start(3).unwrap();
        assert!(start(3).is_err(), "a second pool");
        for _ in 0..100 {
            let mut pool = lock();
            pool.tasks.push_back(Task { function: count, argument: ptr::null_mut() });
            CHANGED.notify_all();
        }
        drop(stop(lock()));
        assert_eq!(ENTERED.load(Ordering::SeqCst), 100, "term waits for what was given");

        start(3).unwrap();
        register();
        let timed_out = |millis| {
            let deadline = Timeout::Millis(millis).deadline();
            matches!(meet(deadline, || Ok(())), Err(Failure::Timeout))
        };
        let (ready, wait) = std::sync::mpsc::channel();
        let (go, start_second) = std::sync::mpsc::channel::<()>();
        let second = std::thread::spawn(move || {
            register();
            ready.send(()).unwrap();
            start_second.recv().unwrap();
            for _ in 0..1000 {
                meet(Deadline::Never, lead).unwrap();
            }
        });
        wait.recv().unwrap();
        assert!(timed_out(5), "the second one has not come");
        assert!(timed_out(0), "nor now");
        go.send(()).unwrap();
        // The first of these continues what timed out: one arrival per barrier.
        for _ in 0..1000 {
            meet(Deadline::Never, lead).unwrap();
        }
        second.join().unwrap();
        assert_eq!(LED.load(Ordering::SeqCst), 1000, "one lead per barrier");
        assert_eq!(lock().arrived, 0);
        lock().leave();
        drop(stop(lock()));

        // A function that runs into its barrier before the others were even given away.
        start(3).unwrap();
        PASSED.store(0, Ordering::SeqCst);
        for started in 0..3 {
            assert_eq!(PASSED.load(Ordering::SeqCst), 0, "the last one has not been given away");
            let mut pool = lock();
            pool.tasks.push_back(Task { function: cross, argument: ptr::null_mut() });
            pool.join();
            drop(pool);
            while started == 0 && lock().arrived == 0 {
                std::thread::yield_now();
            }
        }
        drop(stop(lock()));
        assert_eq!(PASSED.load(Ordering::SeqCst), 3);

        // Alone in a larger pool: it takes a moment, but it does not hang.
        start(3).unwrap();
        register();
        lock().join();
        let began = Instant::now();
        meet(Deadline::Never, || Ok(())).unwrap();
        assert!(began.elapsed() >= SETTLING);
        drop(stop(lock()));
        assert!(matches!(sync(), Err(Failure::Rejected(_))), "registered with an earlier pool");
    }
}
