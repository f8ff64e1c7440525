//! One channel and the operations on it, which run in the order in which they were started.
//!
//! Any thread may carry them on: whoever gets the lock runs the first one until it has to wait. A
//! thread that waits does so for its own operation, and carries on all others of its rank meanwhile,
//! so that two ranks that wait for different operations both get there.
//!
//! An operation that fails ends all that follow on its channel: members could no longer agree which
//! message belongs to what. The other members are told by a notice. Where they use each other's buffers
//! it stays under way until nobody does any more.

mod swift;

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use gaspi_core::sync::line::Look;
use gaspi_core::sync::membarrier;
use gaspi_core::{Channel, Deadline, Error, Rank, Result};

use crate::executor::Buffers;
use crate::notice::{self, Cause, Notice, What};
use crate::print;
use crate::task::{Arithmetic, Blocked, Plan, Tally, Task};
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
/// How long an operation that has failed waits for members that may still use its memory.
const LINGER_LIMIT: Duration = Duration::from_secs(2);
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
    /// Notices that members have told of which none says that it has failed.
    notices: u64,
    /// Why the first operation has failed, and since when it waits for others to let go of its memory.
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
        // AcqRel: pairs with the swap in `try_hold`. If that one comes later, it sees that the state
        // is free.
        if self.0.again.swap(false, Ordering::AcqRel) {
            self.0.channel.rouse();
        }
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
        if plan.is_of_messages() {
            self.look_back(state)?;
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

    /// Looks what has become of the operations before, with which this rank may have been done before
    /// others were: who only sends messages does not wait for those who take them.
    ///
    /// # Errors
    /// [`Error::RankDied`] of a member, and why another one has failed in an earlier operation.
    fn look_back(&self, state: &mut State) -> Result<()> {
        let channel = &self.channel;
        // What waits before it will have to say so itself.
        if !state.queue.is_empty() {
            return Ok(());
        }
        let found = match channel.check() {
            Err(error @ Error::RankDied { .. }) => {
                let (sequence, failure) = (state.sequence, Some(self.cause_of(&error)));
                let print = state.prints[sequence as usize % REMEMBERED];
                Some((error, Notice { sequence, print, failure }))
            }
            _ if channel.notices() == state.notices => None,
            _ => self.failure_before(state),
        };
        let Some((error, notice)) = found else { return Ok(()) };
        notice.tell(channel);
        state.broken = Some(error.clone());
        Err(error)
    }

    /// Why another member has failed in an operation that this rank has done its part of.
    #[cold]
    fn failure_before(&self, state: &mut State) -> Option<(Error, Notice)> {
        let notices = self.channel.notices();
        let me = self.channel.me();
        let others = (0..self.channel.ranks().len()).filter(|member| *member != me);
        let mut waits_only = true;
        for member in others {
            let Some(notice) = Notice::of(&self.channel, member) else { continue };
            let Notice { sequence, print, failure: Some(cause) } = notice else { continue };
            waits_only = false;
            if sequence > state.sequence {
                continue;
            }
            if let Some(error) = self.reported(member, print, cause) {
                let own = match sequence + (REMEMBERED as u64) > state.sequence {
                    true => state.prints[sequence as usize % REMEMBERED],
                    false => print,
                };
                let failure = Some(passed_on(cause, notice, member, own));
                return Some((former(error), Notice { sequence, print: own, failure }));
            }
        }
        if waits_only {
            state.notices = notices;
        }
        None
    }

    /// What a member has told of its failure, as an error; `None` where that is to be seen otherwise.
    #[cold]
    fn reported(&self, member: usize, print: u64, cause: Cause) -> Option<Error> {
        let channel = &self.channel;
        let about = cause.member.min(channel.ranks().len() - 1);
        match cause.what {
            What::Print => {
                Some(print::mismatch(channel, [(member, print), (about, cause.words[0])]))
            }
            What::Bytes => Some(print::uneven(channel, [about, member], cause.words)),
            What::Left => {
                let pending = format!("a collective of {}", channel.group());
                Some(Error::RankLeft { rank: channel.ranks()[about], pending })
            }
            What::Unknown | What::Died => None,
        }
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
                    if !matches!(error, Error::Mismatch { .. }) {
                        let cause = self.cause_of(&error);
                        return self.fail(state, error, cause);
                    }
                    return self.disagree(state, error, disagreement);
                }
            }
        }
    }

    /// A member is in another operation, or has been: a message of it may be of an earlier one, of which
    /// this rank took none.
    #[cold]
    fn disagree(&self, state: &mut State, error: Error, cause: Cause) {
        let Some((_, task)) = state.queue.front() else { return };
        let ([print, there], me) = (cause.words, self.channel.me());
        let own = state.prints[there as usize % REMEMBERED];
        let is_remembered = there < task.sequence && there + (REMEMBERED as u64) > state.sequence;
        if cause.what != What::Print || !is_remembered || own == print {
            return self.fail(state, error, cause);
        }
        let error = former(print::mismatch(&self.channel, [(me, own), (cause.member, print)]));
        let notice = Notice { sequence: there, print: own, failure: Some(cause) };
        self.fail_telling(state, error, notice);
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
        let (sequence, print) = (task.sequence, task.fingerprint);
        self.fail_telling(state, error, Notice { sequence, print, failure: Some(cause) });
    }

    #[cold]
    fn fail_telling(&self, state: &mut State, error: Error, notice: Notice) {
        notice.tell(&self.channel);
        // Between telling and looking who has arrived; the others' fence is in `Channel::arrive`.
        membarrier::heavy_global();
        state.broken = Some(error.clone());
        state.lingering = Some((error, Instant::now()));
        self.linger(state);
    }

    /// Ends the operation that has failed, and with it all that follow, once no other member uses its
    /// memory.
    #[cold]
    fn linger(&self, state: &mut State) {
        let Some((mut error, since)) = state.lingering.take() else { return };
        let users = self.users(state);
        if !users.is_empty() {
            if since.elapsed() < LINGER_LIMIT {
                state.lingering = Some((error, since));
                return;
            }
            let users: Vec<_> = users.iter().map(Rank::to_string).collect();
            still_used(&mut error, &users.join(", "));
        }
        let afterwards = self.afterwards(&error);
        self.ended(state, Err(error), By::Other);
        while !state.queue.is_empty() {
            self.ended(state, Err(afterwards.clone()), By::Other);
        }
        state.spare = None;
    }

    /// Members that may still use this rank's buffers in the operation that has failed here.
    #[cold]
    fn users(&self, state: &State) -> Vec<Rank> {
        let (channel, me) = (&self.channel, self.channel.me());
        let Some((_, task)) = state.queue.front() else { return Vec::new() };
        let Some((first, last)) = task.exposure(&state.tally) else { return Vec::new() };
        if channel.alive(me).is_err() {
            // It has left, so nobody would be seen to.
            return Vec::new();
        }
        let stamp = task.stamp();
        let others = (0..channel.ranks().len()).filter(|member| *member != me);
        // Whoever arrives from now on sees the notice of this rank, and so does who waits for it.
        let has_arrived = |member| channel.look(member, first) != Look::Missing;
        let agrees = |member| match channel.look(member, first) {
            Look::Arrived(there) => there == stamp,
            Look::Missing | Look::Passed => true,
        };
        if !others.clone().all(|member| has_arrived(member) && agrees(member)) {
            return Vec::new();
        }
        let is_done = |member| {
            channel.look(member, last) != Look::Missing
                || channel.alive(member).is_err()
                || channel.has_closed(member)
                || notice::has_failed(channel, member)
        };
        let uses = |member: &usize| !is_done(*member);
        others.filter(uses).map(|member| channel.ranks()[member]).collect()
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

    /// Looks whether other members wait in another operation, or have failed in this one.
    #[cold]
    fn look_at_notices(&self) {
        let mut state = self.hold();
        let state = &mut *state;
        let Some((_, task)) = state.queue.front() else { return };
        if state.lingering.is_some() {
            return;
        }
        let (sequence, fingerprint) = (task.sequence, task.fingerprint);
        let me = self.channel.me();
        if self.channel.alive(me).is_err() {
            return self.fail(state, Error::NotInitialised, Cause::default());
        }
        let mut elsewhere = None;
        for member in (0..self.channel.ranks().len()).filter(|member| *member != me) {
            let Some(notice) = Notice::of(&self.channel, member) else { continue };
            let Notice { sequence: there, print: other, failure } = notice;
            // Those that wait behind it have prints as well.
            let remembered = there < sequence && there + (REMEMBERED as u64) > state.sequence;
            let own = match there == sequence {
                true => fingerprint,
                false => state.prints[there as usize % REMEMBERED],
            };
            if (remembered || there == sequence) && own != other {
                let error = print::mismatch(&self.channel, [(me, own), (member, other)]);
                let error = if there < sequence { former(error) } else { error };
                let cause = Cause { what: What::Print, member, words: [other, there] };
                // What the other one has to compare itself with.
                let failure = Some(cause);
                let notice = Notice { sequence: there, print: own, failure };
                return self.fail_telling(state, error, notice);
            }
            if let Some(cause) = failure
                && there <= sequence
            {
                let known = |(_, (_, known)): (usize, (Notice, Cause))| known.what != What::Unknown;
                if !elsewhere.is_some_and(known) {
                    elsewhere = Some((member, (notice, cause)));
                }
            }
        }
        if let Some((member, failure)) = elsewhere {
            return self.follow(state, member, failure, failure.0.sequence < sequence);
        }
        self.look_for_vanity(state);
    }

    /// Another member has failed in this operation, or in one before it.
    #[cold]
    fn follow(
        &self,
        state: &mut State,
        member: usize,
        (notice, cause): (Notice, Cause),
        is_former: bool,
    ) {
        let rank = self.channel.ranks()[member];
        let error = match self.reported(member, notice.print, cause) {
            Some(error) if is_former => former(error),
            Some(error) => error,
            None => {
                let limit = if cause.what == What::Died { DEATH_LIMIT } else { CAUSE_LIMIT };
                let (_, since) = state.failed_elsewhere.get_or_insert((rank, Instant::now()));
                if since.elapsed() < limit {
                    return;
                }
                let reason = "this collective failed there; its own error says why".to_owned();
                Error::Refused { rank, reason }
            }
        };
        self.fail_telling(state, error, notice);
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
        let ahead = Notice::of(&self.channel, member).is_some_and(|n| n.sequence > sequence);
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

/// What this rank, which was in `own`, tells others of a failure that a member has told it of.
#[cold]
fn passed_on(cause: Cause, told: Notice, member: usize, own: u64) -> Cause {
    match cause.what {
        // It is this rank that differs, from whoever told it.
        What::Print if told.print != own => {
            Cause { what: What::Print, member, words: [told.print, told.sequence] }
        }
        _ => cause,
    }
}

/// Says in an error that it is about an operation that this rank has done its part of before.
#[cold]
fn former(error: Error) -> Error {
    match error {
        Error::Mismatch { group, difference } => {
            let difference = format!(
                "{difference}, in an earlier operation, of which this rank had done its part"
            );
            Error::Mismatch { group, difference }
        }
        error => error,
    }
}

/// Says in an error that these ranks may still use the buffers.
#[cold]
fn still_used(error: &mut Error, ranks: &str) {
    let words = match error {
        Error::RankDied { pending, .. } | Error::RankLeft { pending, .. } => pending,
        Error::Refused { reason, .. } => reason,
        Error::Mismatch { difference, .. } => difference,
        _ => return,
    };
    *words = format!(
        "{words}, whose buffers have to stay as they are, because {ranks} may still use them and has \
         not answered for {} s,",
        LINGER_LIMIT.as_secs()
    );
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
