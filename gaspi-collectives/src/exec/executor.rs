//! One channel and the operations on it, which run in the order in which they were started.
//!
//! Any thread may drive them: the thread that gets the lock runs the first operation until it
//! blocks. A thread that waits for its own operation also drives all others of its rank, so that
//! two ranks that wait for different operations both finish.
//!
//! A failed operation ends all that follow on its channel, because members could no longer agree
//! which message belongs to which operation. A notice tells the other members. If they access each
//! other's buffers, the operation stays active until no member does so any more.

use gaspi_core::sync::{Mutex, MutexGuard};
use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use gaspi_core::{Channel, Error, Rank, Result};

use super::active::ActiveExecutors;
use super::buffers::{Arithmetic, Buffers};
use super::completion::Completion;
use super::counters::Counters;
use super::pack::PackBuffers;
use super::recent::Recent;
use super::task::{Blocked, Task};
use crate::kernel::Buffer;
use crate::plan::Plan;

/// Number of former operations whose signatures are kept.
pub(super) const REMEMBERED: usize = 16;

/// The kind of thread that drives an executor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Driver {
    /// A thread of the program that waits for one of them.
    Waiter,
    /// A thread of the program that waits for something else.
    Other,
    /// The background thread of the library.
    Background,
}

thread_local! {
    static IS_OF_LIBRARY: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread is the background thread of the library from now on.
pub(crate) fn become_library_thread() {
    IS_OF_LIBRARY.set(true);
}

/// Whether it is, which also drives in functions of the program that it calls.
fn is_library_thread() -> bool {
    IS_OF_LIBRARY.get()
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) counters: Counters,
    /// Operations started so far.
    pub(super) sequence: u64,
    pub(super) queue: VecDeque<(Arc<Completion>, Box<Task>)>,
    /// The error after which no operation can run any more.
    pub(super) broken: Option<Error>,
    /// Signatures of the last operations, by sequence.
    pub(super) signatures: [u64; REMEMBERED],
    /// The task that ended last; the next one may reuse its memory.
    pub(super) spare: Option<Box<Task>>,
    /// The operation for which this rank has published that it waits.
    pub(super) announced: u64,
    /// The first operation when no thread waited for it, and since when.
    pub(super) quiet: (u64, Option<Instant>),
    /// How often operations have been driven.
    pub(super) looks: u64,
    /// The active blocking operation, and the completion of the last one, which the next one
    /// reuses.
    pub(super) blocking: Option<BlockingCall>,
    pub(super) idle: Option<Arc<Completion>>,
    /// Operations that the fast path may carry out.
    pub(super) recents: Vec<Recent>,
    /// Notices that have been read; none of them reports a failure.
    pub(super) notices: u64,
    pub(super) trouble: Trouble,
}

/// What is known of a failure of the first operation.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    /// The member that failed in it, and since when this is known.
    pub(super) failed_elsewhere: Option<(Rank, Instant)>,
    /// What it seems to wait for in vain, with the number of drives and the time.
    pub(super) stalled: Option<(Blocked, u64, Instant)>,
    /// Since when a request of it is known to have failed.
    pub(super) refused: Option<Instant>,
    /// Its failure, and since when it waits until no member uses its memory.
    pub(super) quiescing: Option<(Error, Instant)>,
}

/// A blocking operation that is active, or whose end has not been reported.
#[derive(Debug)]
pub(super) struct BlockingCall {
    /// A hash of its arguments.
    pub(super) arguments: u64,
    pub(super) completion: Arc<Completion>,
    /// The thread that is about to continue it; 0 if any may.
    pub(super) continued_by: usize,
    /// Where its output is kept back, if the fast path has begun it: for who continues it.
    pub(super) packed: Option<PackBuffers>,
}

/// A channel and its operations.
#[derive(Debug)]
pub(crate) struct Executor {
    pub(crate) channel: Channel,
    pub(super) state: Mutex<State>,
    /// Number of active operations.
    pub(super) active: AtomicUsize,
    /// All executors of the rank with active operations, and whether this is one of them.
    pub(super) all: Arc<ActiveExecutors>,
    listed: AtomicBool,
    own: Weak<Executor>,
    /// Of those, the number that the background drives.
    pub(super) background: AtomicUsize,
    /// Number of threads that wait.
    pub(super) waiting: AtomicUsize,
    /// Some operation was given up before its end.
    pub(super) cancelled: AtomicBool,
    /// A thread found the state locked, and tries again when it is woken.
    pub(super) again: AtomicBool,
}

/// The state, locked by this thread.
pub(super) struct Held<'a> {
    // The order matters: the state is unlocked before other threads are woken.
    state: MutexGuard<'a, State>,
    _wake: WakeOnDrop<'a>,
}

impl Deref for Held<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

/// Wakes threads that found the state locked: what they wait for may have arrived just after this
/// thread looked for it.
struct WakeOnDrop<'a>(&'a Executor);

impl Drop for WakeOnDrop<'_> {
    fn drop(&mut self) {
        // AcqRel: pairs with the swap in `try_hold`. If that one is later, it sees that the state
        // is free.
        if self.0.again.swap(false, Ordering::AcqRel) {
            self.0.channel.wake_waiters();
        }
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        // Operations that have not ended are no longer counted.
        self.all.end(self.active());
    }
}

impl Executor {
    pub(crate) fn new(channel: Channel, all: Arc<ActiveExecutors>) -> Arc<Executor> {
        let counters = Counters::new(channel.ranks().len());
        let state = State {
            counters,
            sequence: 0,
            queue: VecDeque::new(),
            broken: None,
            signatures: [0; REMEMBERED],
            spare: None,
            announced: 0,
            quiet: (0, None),
            looks: 0,
            blocking: None,
            idle: None,
            recents: Vec::new(),
            notices: 0,
            trouble: Trouble::default(),
        };
        Arc::new_cyclic(|own| Executor {
            channel,
            state: Mutex::new(state),
            active: AtomicUsize::new(0),
            all,
            listed: AtomicBool::new(false),
            own: Weak::clone(own),
            background: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            cancelled: AtomicBool::new(false),
            again: AtomicBool::new(false),
        })
    }

    pub(super) fn held<'a>(&'a self, state: MutexGuard<'a, State>) -> Held<'a> {
        Held { state, _wake: WakeOnDrop(self) }
    }

    pub(super) fn hold(&self) -> Held<'_> {
        self.held(self.state.lock())
    }

    /// `None` while another thread holds it, which wakes this one when it unlocks.
    pub(super) fn try_hold(&self) -> Option<Held<'_>> {
        for _ in 0..2 {
            match self.state.try_lock() {
                Some(state) => return Some(self.held(state)),
                // AcqRel: pairs with the swap of the holder. If that one is later, it sees this.
                None => self.again.swap(true, Ordering::AcqRel),
            };
        }
        None
    }

    /// Number of active operations.
    pub(crate) fn active(&self) -> usize {
        self.active.load(Ordering::Relaxed)
    }

    /// Whether some of them are background operations.
    pub(crate) fn has_background(&self) -> bool {
        self.background.load(Ordering::Relaxed) > 0
    }

    /// Whether a message has come that no operation has taken; false while another thread drives
    /// operations.
    pub(crate) fn has_message(&self) -> bool {
        let Some(state) = self.state.try_lock() else { return false };
        let taken = state.counters.taken.iter().enumerate();
        let mut others = taken.filter(|(member, _)| *member != self.channel.me());
        others.any(|(member, taken)| self.channel.received(member) > *taken)
    }

    /// Starts an operation behind those that were started before.
    ///
    /// # Errors
    /// The failure of an earlier operation: the channel cannot be used any more.
    pub(crate) fn start(
        &self,
        completion: &Arc<Completion>,
        plan: &Arc<Plan>,
        arithmetic: &Arithmetic,
        buffers: Buffers<'static>,
    ) -> Result<()> {
        self.start_locked(&mut self.hold(), completion, plan, arithmetic, buffers)
    }

    pub(super) fn start_locked(
        &self,
        state: &mut State,
        completion: &Arc<Completion>,
        plan: &Arc<Plan>,
        arithmetic: &Arithmetic,
        buffers: Buffers<'static>,
    ) -> Result<()> {
        if let Some(error) = &state.broken {
            return Err(self.afterwards(error));
        }
        self.look_back(state, plan)?;
        state.sequence += 1;
        let sequence = state.sequence;
        state.signatures[sequence as usize % REMEMBERED] = completion.signature;
        let task = self.task(state, completion.signature, plan, arithmetic, buffers, sequence);
        self.enqueue(state, completion, task);
        Ok(())
    }

    /// A task at its first step.
    pub(super) fn task(
        &self,
        state: &mut State,
        signature: u64,
        plan: &Arc<Plan>,
        arithmetic: &Arithmetic,
        buffers: Buffers<'static>,
        sequence: u64,
    ) -> Box<Task> {
        let mut task = match state.spare.take() {
            Some(mut task) if task.is_like(plan, signature) => {
                task.restart(sequence, buffers);
                task
            }
            _ => {
                let plan = Arc::clone(plan);
                Box::new(Task::new(plan, sequence, signature, arithmetic.clone(), buffers))
            }
        };
        if task.work.incoming.len() < task.plan.apart_bytes {
            task.work.incoming = self.all.work_memory.take(task.plan.apart_bytes);
        }
        task
    }

    pub(super) fn enqueue(&self, state: &mut State, completion: &Arc<Completion>, task: Box<Task>) {
        completion.begin();
        // SeqCst: in one order with `unlist`, which looks at the number after it has cleared the
        // flag.
        self.active.fetch_add(1, Ordering::SeqCst);
        self.all.begin();
        self.list();
        self.background.fetch_add(usize::from(completion.background), Ordering::Relaxed);
        state.queue.push_back((Arc::clone(completion), task));
    }

    /// Has the threads that drive operations look at this executor.
    fn list(&self) {
        // SeqCst: see `enqueue`.
        if !self.listed.load(Ordering::SeqCst)
            && !self.listed.swap(true, Ordering::SeqCst)
            && let Some(own) = self.own.upgrade()
        {
            self.all.add(own);
        }
    }

    /// Takes it off the list, which is locked; false if it has to stay.
    pub(super) fn unlist(&self) -> bool {
        self.listed.store(false, Ordering::SeqCst);
        // SeqCst: an operation that has begun meanwhile is seen here, or sees that it is not
        // listed.
        self.active.load(Ordering::SeqCst) == 0 || self.listed.swap(true, Ordering::SeqCst)
    }

    /// Drives all operations that can go on. Reductions of the program are called by its own
    /// threads, unless they allow the background.
    pub(crate) fn progress(&self, driver: Driver) {
        // Otherwise another thread drives them.
        if let Some(mut state) = self.try_hold() {
            self.carry_on(&mut state, driver);
        }
    }

    fn carry_on(&self, state: &mut State, driver: Driver) {
        let mut gone = None;
        state.looks += 1;
        if state.trouble.quiescing.is_some() {
            return self.quiesce(state);
        }
        loop {
            if self.cancelled.load(Ordering::Relaxed) && self.abort_cancelled(state) {
                return;
            }
            let Some((_, task)) = state.queue.front_mut() else { return };
            if task.is_private() && (driver == Driver::Background || is_library_thread()) {
                return;
            }
            match task.advance(&mut &self.channel, &mut state.counters) {
                Ok(None) => self.ended(state, Ok(()), driver),
                // All its steps have been run.
                Err(error @ Error::Reduction { .. }) => self.ended(state, Err(error), driver),
                Ok(Some(blocked)) => {
                    // A member that is gone may have done its part just before: look once more.
                    if let Some((before, error)) = gone.take()
                        && before == blocked
                    {
                        let Some(error) = self.settled(state, error) else { return };
                        let cause = self.cause_of(&error);
                        self.abort(state, error, cause);
                    } else if let Err(error) = self.check_peers(blocked) {
                        gone = Some((blocked, error));
                        continue;
                    }
                    return;
                }
                Err(error) => {
                    let disagreement = task.cause();
                    let Some(error) = self.settled(state, error) else { return };
                    if !matches!(error, Error::Mismatch { .. }) {
                        let cause = self.cause_of(&error);
                        return self.abort(state, error, cause);
                    }
                    return self.disagree(state, error, disagreement);
                }
            }
        }
    }

    /// The first operation has ended.
    pub(super) fn ended(&self, state: &mut State, outcome: Result<()>, driver: Driver) {
        let Some((completion, mut task)) = state.queue.pop_front() else { return };
        task.performed.count(&self.channel);
        if outcome.is_err() {
            // The memory belongs to the program again.
            self.channel.withdraw();
        }
        if task.work.incoming.len() > 0 {
            let incoming = std::mem::replace(&mut task.work.incoming, Buffer::new(0));
            self.all.work_memory.give_back(incoming);
        }
        state.spare = Some(task);
        let quiescing = state.trouble.quiescing.take();
        state.trouble = Trouble { quiescing, ..Trouble::default() };
        self.active.fetch_sub(1, Ordering::Relaxed);
        self.all.end(1);
        self.background.fetch_sub(usize::from(completion.background), Ordering::Relaxed);
        if let (true, Err(error)) = (completion.tells_at_once(), &outcome) {
            self.channel.note_told(error);
        }
        completion.end(outcome);
        // A thread that waits for it may sleep while another one drove it.
        if self.waiting.load(Ordering::Relaxed) > usize::from(driver == Driver::Waiter) {
            self.channel.wake_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gaspi_core::{ChannelSpec, Config, Deadline, GroupId, Job, PendingInit, Timeout};
    use std::sync::mpsc;
    use std::time::Duration;

    /// The only rank of a job.
    fn lone_executor(name: &str) -> (gaspi_core::Runtime, Arc<Executor>) {
        let job = Job::in_process(name, Rank(0), 1);
        let mut joining = PendingInit::new(job, Config::default()).expect("joining");
        let rt = joining.wait(Timeout::Block).expect("it is alone");
        let spec = ChannelSpec { slots: 1, message_bytes: 64, stage_bytes: 64 };
        let channel = rt.channel_open(GroupId::ALL, spec, Timeout::Block).expect("channel_open");
        (rt, Executor::new(channel, Arc::default()))
    }

    /// Whether a thread of this process sleeps.
    fn sleeps(thread: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
        let stat = stat.expect("the thread lives");
        stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S'))
    }

    #[test]
    fn who_found_the_state_held_looks_again_when_it_is_let_go_of() {
        let (_rt, executor) = lone_executor("executor-held");
        let (told, tell) = (mpsc::channel(), Instant::now());
        std::thread::scope(|scope| {
            let held = executor.hold();
            let (sender, receiver) = told;
            let waiter = scope.spawn({
                let executor = &executor;
                move || {
                    let own = std::fs::read_link("/proc/thread-self").expect("proc");
                    let id = own.file_name().expect("an id").to_string_lossy().into_owned();
                    sender.send(id).expect("the test waits");
                    let limit = Deadline::Never.at_most(Duration::from_secs(40));
                    executor.channel.wait_for(limit, || executor.try_hold().map(drop))
                }
            });
            let id = receiver.recv().expect("the thread says");
            while !sleeps(&id) {
                assert!(tell.elapsed() < Duration::from_secs(30), "it does not sleep");
                std::thread::yield_now();
            }
            drop(held);
            assert!(waiter.join().expect("no panic").is_some());
        });
        // Otherwise it has only looked at the end of its time.
        assert!(tell.elapsed() < Duration::from_secs(35), "{:?}", tell.elapsed());
    }
}
