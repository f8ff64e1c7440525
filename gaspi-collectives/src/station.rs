//! One channel and the operations on it, which run in the order in which they were started.
//!
//! Any thread may carry them on: whoever gets the lock runs the first one until it has to wait. A
//! thread that waits does so for its own operation, and carries on all others of its rank meanwhile,
//! so that two ranks that wait for different operations both get there.
//!
//! An operation that fails ends all that follow on its channel: members could no longer agree which
//! message belongs to what. The other members are told by a notice.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gaspi_core::{Channel, Deadline, Error, Rank, Result};

use crate::executor::Buffers;
use crate::print;
use crate::task::{Arithmetic, Blocked, Plan, Tally, Task};

/// How long a rank waits before it tells the others what it waits in.
const QUIET: Duration = Duration::from_millis(10);
/// How often a rank that waits long looks around without having been woken.
const LOOK_AROUND: Duration = Duration::from_millis(250);
/// How long news of the cause may take behind the news of a failure.
const CAUSE_LIMIT: Duration = Duration::from_millis(500);
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

/// What a notice says beside sequence and print.
const WAITS: u64 = 1;
const FAILED: u64 = 2;

/// An operation as whoever started it knows it.
#[derive(Debug)]
pub(crate) struct Operation {
    status: AtomicU8,
    error: Mutex<Option<Error>>,
    /// What it is, for messages.
    pub(crate) print: u64,
    /// A thread of the library looks after it.
    pub(crate) background: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Operation {
    pub(crate) fn new(print: u64, background: bool) -> Operation {
        let status = AtomicU8::new(status::IDLE);
        Operation { status, error: Mutex::default(), print, background }
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

    fn begin(&self) {
        *lock(&self.error) = None;
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
        };
        Station {
            channel,
            state: Mutex::new(state),
            active: AtomicUsize::new(0),
            of_all,
            background: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
        }
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
        let mut state = lock(&self.state);
        if let Some(error) = &state.broken {
            return Err(self.afterwards(error));
        }
        state.sequence += 1;
        let sequence = state.sequence;
        state.prints[sequence as usize % REMEMBERED] = operation.print;
        let task = match state.spare.take() {
            Some(mut task) if task.is_like(plan, operation.print) => {
                task.restart(sequence, buffers);
                task
            }
            _ => {
                let plan = Arc::clone(plan);
                Box::new(Task::new(plan, sequence, operation.print, arithmetic.clone(), buffers))
            }
        };
        operation.begin();
        self.active.fetch_add(1, Ordering::Relaxed);
        self.of_all.fetch_add(1, Ordering::Relaxed);
        self.background.fetch_add(usize::from(operation.background), Ordering::Relaxed);
        state.queue.push_back((Arc::clone(operation), task));
        Ok(())
    }

    #[cold]
    fn afterwards(&self, error: &Error) -> Error {
        match error {
            Error::RankDied { .. } | Error::RankLeft { .. } | Error::NotInitialised => {
                error.clone()
            }
            error => Error::InvalidGroup {
                group: self.channel.group(),
                reason: format!(
                    "a collective has failed on it ({error}); delete it and commit a new group to \
                     go on"
                ),
            },
        }
    }

    /// Carries on what can be carried on. `own` is the operation that the calling thread waits for:
    /// functions of the program are called for that one only.
    pub(crate) fn progress(&self, own: Option<&Operation>) {
        let state = match self.state.try_lock() {
            Ok(state) => state,
            Err(std::sync::TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another thread does it.
            Err(std::sync::TryLockError::WouldBlock) => return,
        };
        self.carry_on(state, own);
    }

    fn carry_on(&self, mut state: MutexGuard<'_, State>, own: Option<&Operation>) {
        let state = &mut *state;
        let mut gone = None;
        while let Some((operation, task)) = state.queue.front_mut() {
            if task.is_private() && own.is_none_or(|own| !std::ptr::eq(own, &raw const **operation))
            {
                return;
            }
            match task.advance(&self.channel, &mut state.tally) {
                Ok(None) => self.ended(state, Ok(())),
                Ok(Some(blocked)) => {
                    // Whoever is gone may have done its part just before: one more look.
                    if let Some((before, error)) = gone.take()
                        && before == blocked
                    {
                        self.fail(state, error);
                    } else if let Err(error) = self.look_for_ends(blocked) {
                        gone = Some((blocked, error));
                        continue;
                    }
                    return;
                }
                Err(error) => self.fail(state, error),
            }
        }
    }

    /// Errors if the task waits for nothing that may still come.
    fn look_for_ends(&self, blocked: Blocked) -> Result<()> {
        self.channel.check()?;
        self.channel.alive(blocked.member())
    }

    /// The first operation has ended.
    fn ended(&self, state: &mut State, outcome: Result<()>) {
        let Some((operation, task)) = state.queue.pop_front() else { return };
        state.spare = Some(task);
        state.failed_elsewhere = None;
        self.active.fetch_sub(1, Ordering::Relaxed);
        self.of_all.fetch_sub(1, Ordering::Relaxed);
        self.background.fetch_sub(usize::from(operation.background), Ordering::Relaxed);
        operation.end(outcome);
        // A thread that waits for it may sleep, while another one carried it on.
        if self.waiting.load(Ordering::Relaxed) > 1 || operation.background {
            self.channel.rouse();
        }
    }

    /// The first operation has failed, and with it all that follow.
    #[cold]
    fn fail(&self, state: &mut State, error: Error) {
        if let Some((_, task)) = state.queue.front() {
            self.channel.tell([task.sequence, task.fingerprint, FAILED, 0, 0, 0]);
        }
        let afterwards = self.afterwards(&error);
        state.broken = Some(error.clone());
        self.ended(state, Err(error));
        while !state.queue.is_empty() {
            self.ended(state, Err(afterwards.clone()));
        }
        state.spare = None;
    }

    /// Waits for an operation, carrying on whatever `others` carries on besides.
    ///
    /// # Errors
    /// [`Error::Timeout`], which leaves it under way, and how it failed.
    pub(crate) fn wait(
        &self,
        operation: &Operation,
        deadline: Deadline,
        mut others: impl FnMut(),
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
        others: &mut impl FnMut(),
    ) -> Result<()> {
        let quiet = if deadline == Deadline::Now { deadline } else { deadline.at_most(QUIET) };
        let ended = self.channel.wait_for(quiet, || {
            self.progress(Some(operation));
            others();
            operation.outcome()
        });
        if let Some(outcome) = ended {
            return outcome;
        }
        while !deadline.passed() {
            self.announce();
            let ended = self.channel.wait_for(deadline.at_most(LOOK_AROUND), || {
                self.progress(Some(operation));
                others();
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
        let state = lock(&self.state);
        let Some((_, task)) = state.queue.front() else { return };
        self.channel.tell([task.sequence, task.fingerprint, WAITS, 0, 0, 0]);
    }

    /// Looks whether other members wait in another operation, or have failed in this one.
    #[cold]
    fn look_at_notices(&self) {
        let mut state = lock(&self.state);
        let state = &mut *state;
        let Some((_, task)) = state.queue.front() else { return };
        let (sequence, fingerprint) = (task.sequence, task.fingerprint);
        for member in (0..self.channel.ranks().len()).filter(|member| *member != self.channel.me())
        {
            let Some([there, other, what, ..]) = self.channel.told(member) else { continue };
            let remembered = there + (REMEMBERED as u64) > sequence && there < sequence;
            if there == sequence && other != fingerprint {
                let error = print::mismatch(&self.channel, fingerprint, member, other);
                return self.fail(state, error);
            }
            if remembered && state.prints[there as usize % REMEMBERED] != other {
                let own = state.prints[there as usize % REMEMBERED];
                let error = print::mismatch(&self.channel, own, member, other);
                self.fail(state, error);
                // What it has to compare itself with.
                return self.channel.tell([there, own, FAILED, 0, 0, 0]);
            }
            if what == FAILED && there <= sequence {
                let rank = self.channel.ranks()[member];
                let (rank, since) = *state.failed_elsewhere.get_or_insert((rank, Instant::now()));
                if since.elapsed() >= CAUSE_LIMIT {
                    let reason = "this collective failed there; its own error says why".to_owned();
                    self.fail(state, Error::Refused { rank, reason });
                }
                return;
            }
        }
    }

    #[cold]
    fn timed_out(&self, operation: &Operation) -> Error {
        let mut state = lock(&self.state);
        let state = &mut *state;
        let what = print::describe(operation.print);
        let pending = match state.queue.front_mut() {
            Some((first, _)) if first.print != operation.print => {
                format!("{what}, behind {}", print::describe(first.print))
            }
            Some((_, task)) => match task.waits_for(&self.channel) {
                Some(rank) => format!("{rank} in {what} of {}", self.channel.group()),
                None => what,
            },
            None => what,
        };
        Error::Timeout { pending }
    }
}
