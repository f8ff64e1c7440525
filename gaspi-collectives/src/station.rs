//! One channel and the operations on it, which run in the order in which they were started.
//!
//! Any thread may carry them on: whoever gets the lock runs the first one until it has to wait. A
//! thread that waits does so for its own operation, and carries on all others of its rank
//! meanwhile, so that two ranks that wait for different operations both get there.
//!
//! An operation that fails ends all that follow on its channel: members could no longer agree which
//! message belongs to what. The other members are told by a notice. Where they use each other's
//! buffers it stays under way until nobody does any more.

mod failing;
mod swift;

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use gaspi_core::{Channel, Deadline, Error, Rank, Result};

use crate::notice::Notice;
use crate::plan::Plan;
use crate::print;
use crate::task::{Arithmetic, Blocked, Buffers, Tally, Task};
use swift::{Recent, Underway};

pub use swift::Brief;
pub(crate) use swift::arguments;

/// How long a rank waits before it tells the others what it waits in.
const QUIET: Duration = Duration::from_millis(10);
/// How often a rank that waits long looks around without having been woken.
const LOOK_AROUND: Duration = Duration::from_millis(250);
/// Members whom the text of a timeout names.
const NAMED: usize = 4;
/// Prints of former operations that are remembered.
const REMEMBERED: usize = 16;

/// States of an [`Operation`].
mod status {
    /// Not started yet.
    pub(super) const IDLE: u8 = 0;
    pub(super) const ACTIVE: u8 = 1;
    pub(super) const DONE: u8 = 2;
    pub(super) const FAILED: u8 = 3;
}

/// Who carries on the operations of a station.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum By {
    /// A thread of the program that waits for one of them.
    Waiter,
    /// A thread of the program that waits for something else.
    Other,
    /// The library's own.
    Background,
}

/// An operation as whoever started it knows it.
#[derive(Debug)]
pub(crate) struct Operation {
    status: AtomicU8,
    error: Mutex<Option<Error>>,
    /// What it is, for messages.
    pub(crate) print: u64,
    /// A thread of the library looks after it.
    pub(crate) background: bool,
    /// It failed while others may still get at its memory, which then is never free.
    still_used: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Operation {
    pub(crate) fn new(print: u64, background: bool) -> Operation {
        let status = AtomicU8::new(status::IDLE);
        let still_used = AtomicBool::new(false);
        Operation { status, error: Mutex::default(), print, background, still_used }
    }

    pub(crate) fn is_active(&self) -> bool {
        self.status.load(Ordering::Acquire) == status::ACTIVE
    }

    /// Whether it was never started.
    pub(crate) fn is_idle(&self) -> bool {
        self.status.load(Ordering::Acquire) == status::IDLE
    }

    /// How it ended, once it has.
    pub(crate) fn outcome(&self) -> Option<Result<()>> {
        // Acquire: the results were written before; pairs with the Release in `end`.
        match self.status.load(Ordering::Acquire) {
            status::DONE => Some(Ok(())),
            status::FAILED => {
                let error = lock(&self.error).clone();
                Some(Err(error.unwrap_or(Error::NotInitialised)))
            }
            _ => None,
        }
    }

    /// Whether others may get at its memory although it has ended.
    pub(crate) fn is_still_used(&self) -> bool {
        self.still_used.load(Ordering::Relaxed)
    }

    fn begin(&self) {
        *lock(&self.error) = None;
        self.still_used.store(false, Ordering::Relaxed);
        self.status.store(status::ACTIVE, Ordering::Release);
    }

    fn end(&self, outcome: Result<()>) {
        let status = match outcome {
            Ok(()) => status::DONE,
            Err(error) => {
                *lock(&self.error) = Some(error);
                status::FAILED
            }
        };
        self.status.store(status, Ordering::Release);
    }
}

#[derive(Debug)]
struct State {
    tally: Tally,
    /// Operations started so far.
    sequence: u64,
    queue: VecDeque<(Arc<Operation>, Box<Task>)>,
    /// Why no operation can run any more.
    broken: Option<Error>,
    /// Prints of the last operations, by sequence.
    prints: [u64; REMEMBERED],
    /// The task that ended last, whose memory the next one may use.
    spare: Option<Box<Task>>,
    /// Since when another member is known to have failed in the operation that runs.
    failed_elsewhere: Option<(Rank, Instant)>,
    /// The operation that this rank has told the others it waits in.
    announced: u64,
    /// The operation that was first when nobody waited for it, and since when.
    quiet: (u64, Option<Instant>),
    /// What the first operation waits for in vain, unless it had come by now.
    vain: Option<(Blocked, u64, Instant)>,
    /// Since when a request of the first operation is known to have failed.
    refused: Option<Instant>,
    /// How often operations have been carried on.
    looks: u64,
    /// The blocking operation that has not ended, and the one that ended last, for the next one.
    blocking: Option<Underway>,
    idle: Option<Arc<Operation>>,
    /// What is done swiftly.
    recents: Vec<Recent>,
    /// Notices that members have told of which none says that it has failed.
    notices: u64,
    /// Why the first operation has failed, and since when it waits for others to let go of its
    /// memory.
    lingering: Option<(Error, Instant)>,
}

/// A channel and its operations.
#[derive(Debug)]
pub(crate) struct Station {
    pub(crate) channel: Channel,
    state: Mutex<State>,
    /// Operations that have not ended, here and on all stations of the rank.
    active: AtomicUsize,
    of_all: Arc<AtomicUsize>,
    /// Of those, how many the background looks after.
    background: AtomicUsize,
    /// Threads that wait.
    waiting: AtomicUsize,
    /// A thread has found the state held by another one, and looks again when it is roused.
    again: AtomicBool,
}

/// The state, held by this thread.
struct Held<'a> {
    // The order matters: the state is let go of before others are called.
    state: MutexGuard<'a, State>,
    _rouser: Rouser<'a>,
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

/// Wakes who has looked in vain meanwhile: what it waits for may have come just after this thread
/// looked for it.
struct Rouser<'a>(&'a Station);

impl Drop for Rouser<'_> {
    fn drop(&mut self) {
        // AcqRel: pairs with the swap in `try_hold`. If that one comes later, it sees that the
        // state is free.
        if self.0.again.swap(false, Ordering::AcqRel) {
            self.0.channel.rouse();
        }
    }
}

impl Drop for Station {
    fn drop(&mut self) {
        // What has not ended does not count any more.
        self.of_all.fetch_sub(self.active(), Ordering::Relaxed);
    }
}

impl Station {
    pub(crate) fn new(channel: Channel, of_all: Arc<AtomicUsize>) -> Station {
        let tally = Tally::new(channel.ranks().len());
        let state = State {
            tally,
            sequence: 0,
            queue: VecDeque::new(),
            broken: None,
            prints: [0; REMEMBERED],
            spare: None,
            failed_elsewhere: None,
            announced: 0,
            quiet: (0, None),
            vain: None,
            refused: None,
            looks: 0,
            blocking: None,
            idle: None,
            recents: Vec::new(),
            notices: 0,
            lingering: None,
        };
        Station {
            channel,
            state: Mutex::new(state),
            active: AtomicUsize::new(0),
            of_all,
            background: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            again: AtomicBool::new(false),
        }
    }

    fn held<'a>(&'a self, state: MutexGuard<'a, State>) -> Held<'a> {
        Held { state, _rouser: Rouser(self) }
    }

    fn hold(&self) -> Held<'_> {
        self.held(lock(&self.state))
    }

    /// `None` while another thread holds it, which rouses this one when it has let go.
    fn try_hold(&self) -> Option<Held<'_>> {
        for _ in 0..2 {
            match self.state.try_lock() {
                Ok(state) => return Some(self.held(state)),
                Err(TryLockError::Poisoned(poisoned)) => {
                    return Some(self.held(poisoned.into_inner()));
                }
                // AcqRel: pairs with the swap of the holder. If that one comes later, it sees this.
                Err(TryLockError::WouldBlock) => self.again.swap(true, Ordering::AcqRel),
            };
        }
        None
    }

    /// Operations that have not ended.
    pub(crate) fn active(&self) -> usize {
        self.active.load(Ordering::Relaxed)
    }

    /// Whether some of them are for the background.
    pub(crate) fn has_background(&self) -> bool {
        self.background.load(Ordering::Relaxed) > 0
    }

    /// Starts an operation behind those that were started before.
    ///
    /// # Errors
    /// Why an earlier one failed: the channel is of no use any more.
    pub(crate) fn start(
        &self,
        operation: &Arc<Operation>,
        plan: &Arc<Plan>,
        arithmetic: &Arithmetic,
        buffers: Buffers<'static>,
    ) -> Result<()> {
        self.start_locked(&mut self.hold(), operation, plan, arithmetic, buffers)
    }

    fn start_locked(
        &self,
        state: &mut State,
        operation: &Arc<Operation>,
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
        state.prints[sequence as usize % REMEMBERED] = operation.print;
        let task = self.task(state, operation.print, plan, arithmetic, buffers, sequence);
        self.enqueue(state, operation, task);
        Ok(())
    }

    /// A task that stands at its beginning.
    fn task(
        &self,
        state: &mut State,
        print: u64,
        plan: &Arc<Plan>,
        arithmetic: &Arithmetic,
        buffers: Buffers<'static>,
        sequence: u64,
    ) -> Box<Task> {
        match state.spare.take() {
            Some(mut task) if task.is_like(plan, print) => {
                task.restart(sequence, buffers);
                task
            }
            _ => {
                let plan = Arc::clone(plan);
                Box::new(Task::new(plan, sequence, print, arithmetic.clone(), buffers))
            }
        }
    }

    fn enqueue(&self, state: &mut State, operation: &Arc<Operation>, task: Box<Task>) {
        operation.begin();
        self.active.fetch_add(1, Ordering::Relaxed);
        self.of_all.fetch_add(1, Ordering::Relaxed);
        self.background.fetch_add(usize::from(operation.background), Ordering::Relaxed);
        state.queue.push_back((Arc::clone(operation), task));
    }

    /// Carries on what can be carried on. Functions of the program are called by its own threads,
    /// unless they are said to be fit for others.
    pub(crate) fn progress(&self, by: By) {
        // Else another thread does it.
        if let Some(mut state) = self.try_hold() {
            self.carry_on(&mut state, by);
        }
    }

    fn carry_on(&self, state: &mut State, by: By) {
        let mut gone = None;
        state.looks += 1;
        if state.lingering.is_some() {
            return self.linger(state);
        }
        while let Some((_, task)) = state.queue.front_mut() {
            if by == By::Background && task.is_private() {
                return;
            }
            match task.advance(&mut &self.channel, &mut state.tally) {
                Ok(None) => self.ended(state, Ok(()), by),
                // All its steps have been run.
                Err(error @ Error::Reduction { .. }) => self.ended(state, Err(error), by),
                Ok(Some(blocked)) => {
                    // Whoever is gone may have done its part just before: one more look.
                    if let Some((before, error)) = gone.take()
                        && before == blocked
                    {
                        let Some(error) = self.settled(state, error) else { return };
                        let cause = self.cause_of(&error);
                        self.fail(state, error, cause);
                    } else if let Err(error) = self.look_for_ends(blocked) {
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
                        return self.fail(state, error, cause);
                    }
                    return self.disagree(state, error, disagreement);
                }
            }
        }
    }

    /// The first operation has ended.
    fn ended(&self, state: &mut State, outcome: Result<()>, by: By) {
        let Some((operation, task)) = state.queue.pop_front() else { return };
        if outcome.is_err() {
            // Its memory is the program's again.
            self.channel.withdraw();
        }
        state.spare = Some(task);
        (state.failed_elsewhere, state.vain, state.refused) = (None, None, None);
        self.active.fetch_sub(1, Ordering::Relaxed);
        self.of_all.fetch_sub(1, Ordering::Relaxed);
        self.background.fetch_sub(usize::from(operation.background), Ordering::Relaxed);
        operation.end(outcome);
        // A thread that waits for it may sleep, while another one carried it on.
        if self.waiting.load(Ordering::Relaxed) > usize::from(by == By::Waiter) {
            self.channel.rouse();
        }
    }

    /// Waits for an operation, carrying on whatever `others` carries on besides; now and then it is
    /// also to look around there.
    ///
    /// # Errors
    /// [`Error::Timeout`], which leaves it under way, and how it failed.
    pub(crate) fn wait(
        &self,
        operation: &Operation,
        deadline: Deadline,
        mut others: impl FnMut(bool),
    ) -> Result<()> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let outcome = self.wait_counted(operation, deadline, &mut others);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        outcome
    }

    fn wait_counted(
        &self,
        operation: &Operation,
        deadline: Deadline,
        others: &mut impl FnMut(bool),
    ) -> Result<()> {
        let quiet = if deadline == Deadline::Now { deadline } else { deadline.at_most(QUIET) };
        let ended = self.channel.wait_for(quiet, || {
            self.progress(By::Waiter);
            others(false);
            operation.outcome()
        });
        if let Some(outcome) = ended {
            return outcome;
        }
        if deadline.passed() {
            // Whoever comes again and again hears of others by and by.
            self.look_around();
            others(true);
            return match operation.outcome() {
                Some(outcome) => outcome,
                None if deadline == Deadline::Now => Err(Error::Timeout { pending: String::new() }),
                None => Err(self.timed_out(operation)),
            };
        }
        while !deadline.passed() {
            self.announce();
            others(true);
            let ended = self.channel.wait_for(deadline.at_most(LOOK_AROUND), || {
                self.progress(By::Waiter);
                others(false);
                self.look_at_notices();
                operation.outcome()
            });
            if let Some(outcome) = ended {
                return outcome;
            }
        }
        Err(self.timed_out(operation))
    }

    /// Tells the others what this rank waits in.
    #[cold]
    fn announce(&self) {
        let mut state = self.hold();
        let state = &mut *state;
        let Some((_, task)) = state.queue.front() else { return };
        // What has failed has been told.
        if state.broken.is_none() && state.announced != task.sequence {
            state.announced = task.sequence;
            let (sequence, print) = (task.sequence, task.fingerprint);
            Notice { sequence, print, failure: None }.tell(&self.channel);
        }
    }

    /// What a thread that waits does besides, for operations that are only looked at now and then.
    #[cold]
    pub(crate) fn look_around(&self) {
        {
            let Some(mut state) = self.try_hold() else { return };
            let Some((_, task)) = state.queue.front() else { return };
            let (sequence, now) = (task.sequence, Instant::now());
            match state.quiet {
                (known, Some(since)) if known == sequence && now - since < QUIET => return,
                (known, _) => {
                    state.quiet = (sequence, Some(now));
                    if known != sequence {
                        return;
                    }
                }
            }
        }
        self.announce();
        self.look_at_notices();
    }

    /// Members that have not told that they are in the operation, or behind it.
    #[cold]
    fn silent(&self, sequence: u64) -> String {
        let told = |member: &usize| {
            Notice::of(&self.channel, *member).is_some_and(|notice| notice.sequence >= sequence)
        };
        let others = (0..self.channel.ranks().len()).filter(|member| *member != self.channel.me());
        let silent: Vec<usize> = others.filter(|member| !told(member)).collect();
        let ranks =
            silent.iter().take(NAMED).map(|member| self.channel.ranks()[*member].to_string());
        let mut words = ranks.collect::<Vec<_>>().join(", ");
        if silent.len() > NAMED {
            words = format!("{words} and {} more", silent.len() - NAMED);
        }
        words
    }

    #[cold]
    fn timed_out(&self, operation: &Operation) -> Error {
        let mut state = self.hold();
        let state = &mut *state;
        let what = print::describe(operation.print);
        let pending = match state.queue.front_mut() {
            Some((first, _)) if first.print != operation.print => {
                format!("{what}, behind {}", print::describe(first.print))
            }
            Some((_, task)) => match task.waits_for(&self.channel) {
                Some(rank) => {
                    let silent = self.silent(task.sequence);
                    let group = self.channel.group();
                    if silent.is_empty() || silent == rank.to_string() {
                        format!("{rank} in {what} of {group}")
                    } else {
                        format!("{rank} in {what} of {group} (not heard of in it: {silent})")
                    }
                }
                None => what,
            },
            None => what,
        };
        Error::Timeout { pending }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gaspi_core::{ChannelSpec, Config, GroupId, Job, Joining, Timeout};
    use std::sync::mpsc;

    /// The only rank of a job.
    fn station_alone(name: &str) -> (gaspi_core::Runtime, Station) {
        let job = Job::in_process(name, Rank(0), 1);
        let mut joining = Joining::new(job, Config::default()).expect("joining");
        let rt = joining.wait(Timeout::Block).expect("it is alone");
        let spec = ChannelSpec { slots: 1, message_bytes: 64, stage_bytes: 64 };
        let channel = rt.channel_open(GroupId::ALL, spec, Timeout::Block).expect("channel_open");
        (rt, Station::new(channel, Arc::default()))
    }

    /// Whether a thread of this process sleeps.
    fn sleeps(thread: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
        let stat = stat.expect("the thread lives");
        stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S'))
    }

    #[test]
    fn who_found_the_state_held_looks_again_when_it_is_let_go_of() {
        let (_rt, station) = station_alone("station-held");
        let (told, tell) = (mpsc::channel(), Instant::now());
        std::thread::scope(|scope| {
            let held = station.hold();
            let (sender, receiver) = told;
            let waiter = scope.spawn({
                let station = &station;
                move || {
                    let own = std::fs::read_link("/proc/thread-self").expect("proc");
                    let id = own.file_name().expect("an id").to_string_lossy().into_owned();
                    sender.send(id).expect("the test waits");
                    let limit = Deadline::Never.at_most(Duration::from_secs(40));
                    station.channel.wait_for(limit, || station.try_hold().map(drop))
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
        // Else it has only looked at the end of its time.
        assert!(tell.elapsed() < Duration::from_secs(35), "{:?}", tell.elapsed());
    }
}
