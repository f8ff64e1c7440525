//! One channel and the operations on it, which run in the order in which they were started.
//!
//! Any thread may carry them on: whoever gets the lock runs the first one until it has to wait. A
//! thread that waits does so for its own operation, and carries on all others of its rank meanwhile,
//! so that two ranks that wait for different operations both get there.
//!
//! An operation that fails ends all that follow on its channel: members could no longer agree which
//! message belongs to what. The other members are told by a notice.

mod swift;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gaspi_core::{Channel, Deadline, Error, Rank, Result};

use crate::executor::Buffers;
use crate::print;
use crate::task::{Arithmetic, Blocked, Cause, Plan, Tally, Task, What};
use swift::{Recent, Underway};

pub use swift::Brief;
pub(crate) use swift::arguments;

/// How long a rank waits before it tells the others what it waits in.
const QUIET: Duration = Duration::from_millis(10);
/// How often a rank that waits long looks around without having been woken.
const LOOK_AROUND: Duration = Duration::from_millis(250);
/// How long news of the cause may take behind the news of a failure, and those of a death.
const CAUSE_LIMIT: Duration = Duration::from_millis(500);
const DEATH_LIMIT: Duration = Duration::from_secs(5);
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

/// What a notice says beside sequence and print.
const WAITS: u64 = 1;
const FAILED: u64 = 2;

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

/// A notice that says that an operation has failed, and why.
fn failed(sequence: u64, print: u64, cause: Cause) -> [u64; 6] {
    let [one, two] = cause.words;
    let kind = FAILED | (cause.what as u64) << 8 | (cause.member as u64) << 16;
    [sequence, print, kind, one, two, 0]
}

/// Why the operation that a notice is about failed there.
fn cause([_, _, kind, one, two, _]: [u64; 6]) -> Cause {
    let kinds = [What::Unknown, What::Print, What::Bytes, What::Left, What::Died];
    let what = kinds.get((kind >> 8 & 0xff) as usize).copied().unwrap_or_default();
    Cause { what, member: (kind >> 16) as usize, words: [one, two] }
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
            announced: 0,
            quiet: (0, None),
            vain: None,
            refused: None,
            looks: 0,
            blocking: None,
            idle: None,
            recents: Vec::new(),
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
        self.start_locked(&mut lock(&self.state), operation, plan, arithmetic, buffers)
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

    /// Carries on what can be carried on. Functions of the program are called by its own threads,
    /// unless they are said to be fit for others.
    pub(crate) fn progress(&self, by: By) {
        let state = match self.state.try_lock() {
            Ok(state) => state,
            Err(std::sync::TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another thread does it.
            Err(std::sync::TryLockError::WouldBlock) => return,
        };
        self.carry_on(state, by);
    }

    fn carry_on(&self, mut state: MutexGuard<'_, State>, by: By) {
        let state = &mut *state;
        let mut gone = None;
        state.looks += 1;
        while let Some((_, task)) = state.queue.front_mut() {
            if by == By::Background && task.is_private() {
                return;
            }
            match task.advance(&self.channel, &mut state.tally) {
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
                    let cause = match error {
                        Error::Mismatch { .. } => disagreement,
                        _ => self.cause_of(&error),
                    };
                    self.fail(state, error, cause);
                }
            }
        }
    }

    /// The error, or why it came to that; `None` while that may still turn out: a request fails before
    /// it is known that its target has died or left.
    #[cold]
    fn settled(&self, state: &mut State, error: Error) -> Option<Error> {
        let Error::Refused { rank, .. } = error else { return Some(error) };
        let member = self.channel.ranks().iter().position(|member| *member == rank);
        if let Some(Err(gone)) = member.map(|member| self.channel.alive(member)) {
            return Some(gone);
        }
        let since = state.refused.get_or_insert_with(Instant::now);
        (since.elapsed() >= CAUSE_LIMIT).then_some(error)
    }

    /// What the others are told of an error that is about a member.
    #[cold]
    fn cause_of(&self, error: &Error) -> Cause {
        let (what, rank) = match error {
            Error::RankDied { rank, .. } => (What::Died, rank),
            Error::RankLeft { rank, .. } => (What::Left, rank),
            _ => return Cause::default(),
        };
        let member = self.channel.ranks().iter().position(|member| member == rank);
        Cause { what, member: member.unwrap_or_default(), words: [0; 2] }
    }

    /// Errors if the task waits for nothing that may still come.
    fn look_for_ends(&self, blocked: Blocked) -> Result<()> {
        self.channel.check()?;
        self.channel.alive(blocked.member())
    }

    /// The first operation has ended.
    fn ended(&self, state: &mut State, outcome: Result<()>, by: By) {
        let Some((operation, task)) = state.queue.pop_front() else { return };
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

    /// The first operation has failed, and with it all that follow.
    #[cold]
    fn fail(&self, state: &mut State, error: Error, cause: Cause) {
        let Some((_, task)) = state.queue.front() else { return };
        let notice = failed(task.sequence, task.fingerprint, cause);
        self.fail_telling(state, error, notice);
    }

    #[cold]
    fn fail_telling(&self, state: &mut State, error: Error, notice: [u64; 6]) {
        self.channel.tell(notice);
        let afterwards = self.afterwards(&error);
        state.broken = Some(error.clone());
        self.ended(state, Err(error), By::Other);
        while !state.queue.is_empty() {
            self.ended(state, Err(afterwards.clone()), By::Other);
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
            self.progress(By::Waiter);
            others();
            operation.outcome()
        });
        if let Some(outcome) = ended {
            return outcome;
        }
        if deadline == Deadline::Now {
            self.look_around();
            let nothing = || Err(Error::Timeout { pending: String::new() });
            return operation.outcome().unwrap_or_else(nothing);
        }
        while !deadline.passed() {
            self.announce();
            let ended = self.channel.wait_for(deadline.at_most(LOOK_AROUND), || {
                self.progress(By::Waiter);
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
        let mut state = lock(&self.state);
        let state = &mut *state;
        let Some((_, task)) = state.queue.front() else { return };
        if state.announced != task.sequence {
            state.announced = task.sequence;
            self.channel.tell([task.sequence, task.fingerprint, WAITS, 0, 0, 0]);
        }
    }

    /// What a thread that waits does besides, for operations that are only looked at now and then.
    #[cold]
    pub(crate) fn look_around(&self) {
        {
            let Ok(mut state) = self.state.try_lock() else { return };
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

    /// Looks whether other members wait in another operation, or have failed in this one.
    #[cold]
    fn look_at_notices(&self) {
        let mut state = lock(&self.state);
        let state = &mut *state;
        let Some((_, task)) = state.queue.front() else { return };
        let (sequence, fingerprint) = (task.sequence, task.fingerprint);
        let me = self.channel.me();
        if self.channel.alive(me).is_err() {
            return self.fail(state, Error::NotInitialised, Cause::default());
        }
        let mut elsewhere = None;
        for member in (0..self.channel.ranks().len()).filter(|member| *member != me) {
            let Some(notice) = self.channel.told(member) else { continue };
            let [there, other, what, ..] = notice;
            // Those that wait behind it have prints as well.
            let remembered = there < sequence && there + (REMEMBERED as u64) > state.sequence;
            let own = match there == sequence {
                true => fingerprint,
                false => state.prints[there as usize % REMEMBERED],
            };
            if (remembered || there == sequence) && own != other {
                let error = print::mismatch(&self.channel, [(me, own), (member, other)]);
                let cause = Cause { what: What::Print, member, words: [other, 0] };
                // What the other one has to compare itself with.
                return self.fail_telling(state, error, failed(there, own, cause));
            }
            if what & 0xff == FAILED && there <= sequence {
                let cause = cause(notice);
                let known =
                    elsewhere.is_some_and(|(.., known): (_, _, Cause)| known.what != What::Unknown);
                elsewhere = if known { elsewhere } else { Some((member, other, cause)) };
            }
        }
        if let Some(failure) = elsewhere {
            return self.follow(state, failure);
        }
        self.look_for_vanity(state);
    }

    /// Another member has failed in this operation, or in one before it.
    #[cold]
    fn follow(&self, state: &mut State, (member, print, cause): (usize, u64, Cause)) {
        let (channel, rank) = (&self.channel, self.channel.ranks()[member]);
        let about = cause.member.min(channel.ranks().len() - 1);
        let error = match cause.what {
            What::Print => print::mismatch(channel, [(member, print), (about, cause.words[0])]),
            What::Bytes => print::uneven(channel, [about, member], cause.words),
            What::Left => {
                let pending = format!("a collective of {}", channel.group());
                Error::RankLeft { rank: channel.ranks()[about], pending }
            }
            What::Unknown | What::Died => {
                let limit = if cause.what == What::Died { DEATH_LIMIT } else { CAUSE_LIMIT };
                let (_, since) = state.failed_elsewhere.get_or_insert((rank, Instant::now()));
                if since.elapsed() < limit {
                    return;
                }
                let reason = "this collective failed there; its own error says why".to_owned();
                Error::Refused { rank, reason }
            }
        };
        self.fail(state, error, cause);
    }

    /// Looks whether whom the first operation waits for has done its part and gone on, so that nothing
    /// comes of it any more.
    #[cold]
    fn look_for_vanity(&self, state: &mut State) {
        let Some((_, task)) = state.queue.front() else { return };
        let Some(blocked) = task.blocked() else { return };
        let (member, sequence) = (blocked.member(), task.sequence);
        let rank = self.channel.ranks()[member];
        let closed = self.channel.has_closed(member);
        let ahead = self.channel.told(member).is_some_and(|[there, ..]| there > sequence);
        // What makes room may lag behind.
        if !closed && (!ahead || matches!(blocked, Blocked::Room(_))) {
            state.vain = None;
            return;
        }
        // What it did before may not have been looked at yet.
        match state.vain {
            Some((before, looks, since)) if before == blocked => {
                // Who leaves or dies may have closed its end before.
                if state.looks == looks || since.elapsed() < CAUSE_LIMIT {
                    return;
                }
            }
            _ => {
                state.vain = Some((blocked, state.looks, Instant::now()));
                return;
            }
        }
        let me = self.channel.ranks()[self.channel.me()];
        let what = print::describe(task.fingerprint);
        let error = if closed {
            let reason = format!("it has freed {what} or deleted {}", self.channel.group());
            Error::Refused { rank, reason }
        } else {
            let difference =
                format!("{rank} has done {what} without sending what {me} expects; compare counts");
            Error::Mismatch { group: self.channel.group(), difference }
        };
        self.fail(state, error, Cause::default());
    }

    /// Members that have not told that they are in the operation, or behind it.
    #[cold]
    fn silent(&self, sequence: u64) -> String {
        let told = |member: &usize| self.channel.told(*member).is_some_and(|n| n[0] >= sequence);
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
        let mut state = lock(&self.state);
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
