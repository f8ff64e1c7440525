//! Failure of operations: its cause, the notices of the members, and when the memory is free again.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gaspi_core::sync::arrival_slot::Poll;
use gaspi_core::sync::membarrier;
use gaspi_core::{Error, Rank, Result};

use super::executor::{Driver, Executor, REMEMBERED, State};
use super::notice::{self, Cause, Notice, What};
use super::task::Blocked;
use crate::plan::Plan;
use crate::signature;

/// How long the cause of a failure may become known after the failure itself.
const CAUSE_LIMIT: Duration = Duration::from_millis(500);
/// The same while it is asked whether the member at fault lives: on a busy machine the answer takes
/// longer than the second that it should.
const DOUBT_LIMIT: Duration = Duration::from_secs(5);
/// How long after a broken connection missing messages count as lost with it.
const BREAK_LIMIT: Duration = Duration::from_secs(10);
/// How long a failed operation waits for members that may still use its memory, unless the memory
/// is only lent.
const QUIESCE_LIMIT: Duration = Duration::from_secs(2);

impl Executor {
    /// Checks whether an operation may begin. After a death it may not, since members that are
    /// still in an earlier operation would report a mismatch. Before an operation of messages the
    /// earlier ones are checked too: a rank that only sends does not wait for its receivers.
    ///
    /// # Errors
    /// [`Error::RankDied`] of a member; and the failure of a member in an earlier
    /// operation.
    pub(super) fn look_back(&self, state: &mut State, plan: &Plan) -> Result<()> {
        let channel = &self.channel;
        // Operations in the queue report it themselves.
        if !state.queue.is_empty() {
            return Ok(());
        }
        let found = match channel.check() {
            Err(error @ Error::RankDied { .. }) => {
                let (sequence, failure) = (state.sequence, Some(self.cause_of(&error)));
                let signature = state.signatures[sequence as usize % REMEMBERED];
                Some((error, Notice { sequence, signature, failure }))
            }
            _ if !plan.is_of_messages() || channel.notice_count() == state.notices => None,
            _ => self.failure_before(state),
        };
        let Some((error, notice)) = found else { return Ok(()) };
        notice.tell(channel);
        state.broken = Some(error.clone());
        channel.note_told(&error);
        Err(error)
    }

    /// The failure of another member in an operation of which this rank has done its part.
    #[cold]
    fn failure_before(&self, state: &mut State) -> Option<(Error, Notice)> {
        let notices = self.channel.notice_count();
        let me = self.channel.me();
        let others = (0..self.channel.ranks().len()).filter(|member| *member != me);
        let mut waits_only = true;
        for member in others {
            let Some(notice) = Notice::of(&self.channel, member) else {
                // There is none yet, or it is being published.
                waits_only &= !self.channel.is_notice_incomplete(member);
                continue;
            };
            let Notice { sequence, signature, failure: Some(cause) } = notice else { continue };
            waits_only = false;
            if sequence > state.sequence {
                continue;
            }
            if let Some(error) = self.reported(member, signature, cause) {
                let own = match sequence + (REMEMBERED as u64) > state.sequence {
                    true => state.signatures[sequence as usize % REMEMBERED],
                    false => signature,
                };
                let cause = self.seen_from_here(cause, member);
                let failure = Some(passed_on(cause, notice, member, own));
                return Some((former(error), Notice { sequence, signature: own, failure }));
            }
        }
        if waits_only {
            state.notices = notices;
        }
        None
    }

    /// The failure that a member has published, as an error; `None` if this rank has to find the
    /// cause itself.
    #[cold]
    fn reported(&self, member: usize, signature: u64, cause: Cause) -> Option<Error> {
        let channel = &self.channel;
        let about = cause.member.min(channel.ranks().len() - 1);
        match cause.what {
            What::Signature => {
                Some(signature::mismatch(channel, [(member, signature), (about, cause.words[0])]))
            }
            What::Bytes => Some(signature::uneven(channel, [about, member], cause.words)),
            What::Left => {
                let pending = format!("a collective of {}", channel.group());
                Some(Error::RankLeft { rank: channel.ranks()[about], pending })
            }
            What::Refused if about != channel.me() => {
                let reporter = channel.ranks()[member];
                let reason = format!(
                    "{reporter} reports that it was refused by it, or cannot reach it any more"
                );
                Some(channel.refused(about, reason))
            }
            // Seen from here, the other end of the same connection refused.
            What::Refused => {
                let reason = "it reports that it cannot reach this rank any more";
                Some(channel.refused(member, reason))
            }
            What::Unknown | What::Died => None,
        }
    }

    #[cold]
    pub(super) fn afterwards(&self, error: &Error) -> Error {
        match error {
            Error::RankDied { .. } | Error::RankLeft { .. } | Error::NotInitialised => {
                error.clone()
            }
            error => Error::InvalidGroup {
                group: self.channel.group(),
                // Not "delete it": the group of all ranks cannot be deleted.
                reason: format!(
                    "a collective has failed on it ({error}); commit a new group to go on"
                ),
            },
        }
    }

    /// A member is, or was, in another operation: its message may belong to an earlier one, in
    /// which this rank took none.
    #[cold]
    pub(super) fn disagree(&self, state: &mut State, error: Error, cause: Cause) {
        let Some((_, task)) = state.queue.front() else { return };
        let ([signature, there], me) = (cause.words, self.channel.me());
        let own = state.signatures[there as usize % REMEMBERED];
        let is_remembered = there < task.sequence && there + (REMEMBERED as u64) > state.sequence;
        if cause.what != What::Signature || !is_remembered || own == signature {
            return self.abort(state, error, cause);
        }
        let error =
            former(signature::mismatch(&self.channel, [(me, own), (cause.member, signature)]));
        let notice = Notice { sequence: there, signature: own, failure: Some(cause) };
        self.abort_telling(state, error, notice);
    }

    /// The error, or its cause; `None` while the cause may still become known: a request fails
    /// before its target is known to have died or left.
    #[cold]
    pub(super) fn settled(&self, state: &mut State, error: Error) -> Option<Error> {
        let Error::Refused { rank, .. } = error else { return Some(error) };
        let member = self.channel.ranks().iter().position(|member| *member == rank);
        if let Some(Err(gone)) = member.map(|member| self.channel.alive(member)) {
            return Some(gone);
        }
        let since = state.trouble.refused.get_or_insert_with(Instant::now);
        (since.elapsed() >= self.patience(member)).then_some(error)
    }

    /// How long the cause of a failure that is about these members may become known after it.
    #[cold]
    fn patience(&self, members: impl IntoIterator<Item = usize>) -> Duration {
        let in_doubt = members.into_iter().any(|member| self.channel.is_in_doubt(member));
        if in_doubt { DOUBT_LIMIT } else { CAUSE_LIMIT }
    }

    /// The cause of an error that is about a member, for the notice.
    #[cold]
    pub(super) fn cause_of(&self, error: &Error) -> Cause {
        let (what, rank) = match error {
            Error::RankDied { rank, .. } => (What::Died, rank),
            Error::RankLeft { rank, .. } => (What::Left, rank),
            Error::Refused { rank, .. } => (What::Refused, rank),
            // This rank leaves.
            Error::NotInitialised => (What::Left, &self.channel.ranks()[self.channel.me()]),
            _ => return Cause::default(),
        };
        let member = self.channel.ranks().iter().position(|member| member == rank);
        member.map_or_else(Cause::default, |member| Cause { what, member, words: [0; 2] })
    }

    /// Errors if what the task waits for can never arrive.
    pub(super) fn check_peers(&self, blocked: Blocked) -> Result<()> {
        self.channel.check()?;
        self.channel.alive(blocked.member())?;
        match blocked {
            // Its program may know of no failure: its part was done once they were sent.
            Blocked::Message(member) | Blocked::Room(member) if self.channel.has_lost(member) => {
                let reason =
                    "the connection with it broke, and it says that messages of it are lost";
                Err(self.channel.refused(member, reason))
            }
            _ => Ok(()),
        }
    }

    /// Ends the first operation with an error, and all that follow.
    #[cold]
    pub(super) fn abort(&self, state: &mut State, error: Error, cause: Cause) {
        let Some((_, task)) = state.queue.front() else { return };
        let (sequence, signature) = (task.sequence, task.signature);
        self.abort_telling(state, error, Notice { sequence, signature, failure: Some(cause) });
    }

    #[cold]
    fn abort_telling(&self, state: &mut State, error: Error, notice: Notice) {
        notice.tell(&self.channel);
        // Orders the notice before the look at arrivals; pairs with the fence in `Channel::arrive`.
        membarrier::heavy_global();
        state.broken = Some(error.clone());
        state.trouble.quiescing = Some((error, Instant::now()));
        self.quiesce(state);
    }

    /// Ends the failed operation, and all that follow, once no other member uses its memory.
    #[cold]
    pub(super) fn quiesce(&self, state: &mut State) {
        let Some((mut error, since)) = state.trouble.quiescing.take() else { return };
        let users = self.users(state);
        if !users.is_empty() {
            let must_wait = state.queue.front().is_some_and(|(first, _)| first.until_unused);
            if must_wait || since.elapsed() < QUIESCE_LIMIT {
                state.trouble.quiescing = Some((error, since));
                return;
            }
            if let Some((completion, _)) = state.queue.front() {
                completion.still_used.store(true, Ordering::Relaxed);
            }
            let users: Vec<_> = users.iter().map(Rank::to_string).collect();
            still_used(&mut error, &users.join(", "));
        }
        let afterwards = self.afterwards(&error);
        self.ended(state, Err(error), Driver::Other);
        while !state.queue.is_empty() {
            self.ended(state, Err(afterwards.clone()), Driver::Other);
        }
        state.spare = None;
    }

    /// Members that may still use this rank's buffers in the failed operation.
    #[cold]
    fn users(&self, state: &State) -> Vec<Rank> {
        let (channel, me) = (&self.channel, self.channel.me());
        let Some((_, task)) = state.queue.front() else { return Vec::new() };
        if channel.alive(me).is_err() {
            // This rank has left, so it sees no member finish.
            return Vec::new();
        }
        let on_its_way = |(member, lost): &(usize, bool)| !lost && channel.alive(*member).is_ok();
        let mut borrowers: Vec<(usize, bool)> =
            channel.in_flight().into_iter().filter(on_its_way).collect();
        if !borrowers.is_empty() {
            borrowers.sort_unstable();
            borrowers.dedup();
            return borrowers.into_iter().map(|(member, _)| channel.ranks()[member]).collect();
        }
        let Some((first, last)) = task.exposure(&state.counters) else { return Vec::new() };
        let stamp = task.stamp();
        let others = (0..channel.ranks().len()).filter(|member| *member != me);
        // A member that arrives from now on, or waits for this rank, sees its notice.
        let has_arrived = |member| channel.poll(member, first) != Poll::Missing;
        let agrees = |member| match channel.poll(member, first) {
            Poll::Arrived(there) => there == stamp,
            Poll::Missing | Poll::Passed => true,
        };
        if !others.clone().all(|member| has_arrived(member) && agrees(member)) {
            return Vec::new();
        }
        let is_done = |member| {
            channel.poll(member, last) != Poll::Missing
                || channel.alive(member).is_err()
                || channel.has_closed(member)
                || notice::has_failed(channel, member)
        };
        let uses = |member: &usize| !is_done(*member);
        others.filter(uses).map(|member| channel.ranks()[member]).collect()
    }

    /// Reads the notices: other members may wait in another operation, or have failed in this one.
    #[cold]
    pub(super) fn look_at_notices(&self) {
        let mut state = self.hold();
        let state = &mut *state;
        let Some((_, task)) = state.queue.front() else { return };
        if state.trouble.quiescing.is_some() {
            return;
        }
        let (sequence, signature) = (task.sequence, task.signature);
        let me = self.channel.me();
        if self.channel.alive(me).is_err() {
            return self.abort(state, Error::NotInitialised, self.cause_of(&Error::NotInitialised));
        }
        let mut elsewhere = None;
        for member in (0..self.channel.ranks().len()).filter(|member| *member != me) {
            let Some(notice) = Notice::of(&self.channel, member) else { continue };
            let Notice { sequence: there, signature: other, failure } = notice;
            // Operations in the queue behind it have signatures as well.
            let remembered = there < sequence && there + (REMEMBERED as u64) > state.sequence;
            let own = match there == sequence {
                true => signature,
                false => state.signatures[there as usize % REMEMBERED],
            };
            if (remembered || there == sequence) && own != other {
                let error = signature::mismatch(&self.channel, [(me, own), (member, other)]);
                let error = if there < sequence { former(error) } else { error };
                let cause = Cause { what: What::Signature, member, words: [other, there] };
                // The other member compares its own with this signature.
                let failure = Some(cause);
                let notice = Notice { sequence: there, signature: own, failure };
                return self.abort_telling(state, error, notice);
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
        self.look_for_stall(state);
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
        // This rank may soon learn the cause itself, with more details.
        let may_wait = matches!(cause.what, What::Unknown | What::Died | What::Refused);
        let (_, since) = state.trouble.failed_elsewhere.get_or_insert((rank, Instant::now()));
        let since = *since;
        if may_wait && since.elapsed() < self.patience([member, cause.member]) {
            return;
        }
        let error = match self.reported(member, notice.signature, cause) {
            Some(error) if is_former => former(error),
            Some(error) => error,
            None if cause.what == What::Died && cause.member != member => {
                let about = cause.member.min(self.channel.ranks().len() - 1);
                self.channel.reported_death(about, member)
            }
            None => {
                let group = self.channel.group();
                let difference = format!("{rank} could not go on with this operation");
                Error::Mismatch { group, difference }
            }
        };
        let failure = Some(self.seen_from_here(cause, member));
        self.abort_telling(state, error, Notice { failure, ..notice });
    }

    /// The cause that this rank passes on. For its own end of a connection it names the other end,
    /// and it never reports its own death.
    fn seen_from_here(&self, cause: Cause, member: usize) -> Cause {
        let is_own = cause.member == self.channel.me();
        match cause.what {
            What::Refused | What::Died if is_own => Cause { what: What::Refused, member, ..cause },
            _ => cause,
        }
    }

    /// Checks whether the member that the first operation waits for has gone on, so that nothing
    /// more can arrive from it.
    #[cold]
    fn look_for_stall(&self, state: &mut State) {
        let Some((_, task)) = state.queue.front() else { return };
        let Some(blocked) = task.blocked() else { return };
        let (member, sequence) = (blocked.member(), task.sequence);
        let rank = self.channel.ranks()[member];
        let closed = self.channel.has_closed(member);
        let ahead = Notice::of(&self.channel, member).is_some_and(|n| n.sequence > sequence);
        // Room in the ring, and acknowledgements of zero-copy sends, may arrive later.
        let lags = matches!(blocked, Blocked::Room(_) | Blocked::ZeroCopy(_));
        if !closed && (!ahead || lags) {
            state.trouble.stalled = None;
            return;
        }
        // This rank may not have looked at all that the member did before.
        match state.trouble.stalled {
            Some((before, looks, since)) if before == blocked => {
                // A member that leaves or dies may have closed its end before.
                if state.looks == looks || since.elapsed() < self.patience([member]) {
                    return;
                }
            }
            _ => {
                state.trouble.stalled = Some((blocked, state.looks, Instant::now()));
                return;
            }
        }
        let me = self.channel.ranks()[self.channel.me()];
        let what = signature::describe(task.signature);
        let error = if closed {
            let reason = format!("it has freed {what} or deleted {}", self.channel.group());
            self.channel.refused(member, reason)
        } else if self.channel.has_broken_within(member, BREAK_LIMIT) {
            let reason = format!("the connection to it broke, and what it sent in {what} is lost");
            self.channel.refused(member, reason)
        } else {
            let difference =
                format!("{rank} has done {what} without sending what {me} expects; compare counts");
            Error::Mismatch { group: self.channel.group(), difference }
        };
        let cause = self.cause_of(&error);
        self.abort(state, error, cause);
    }
}

/// The cause that this rank, which was in `own`, passes on after a member has published a failure.
#[cold]
fn passed_on(cause: Cause, told: Notice, member: usize, own: u64) -> Cause {
    match cause.what {
        // This rank differs from the member that published the failure.
        What::Signature if told.signature != own => {
            Cause { what: What::Signature, member, words: [told.signature, told.sequence] }
        }
        _ => cause,
    }
}

/// Adds to an error that it is about an earlier operation.
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

/// Adds to an error that these ranks may still use the buffers.
#[cold]
fn still_used(error: &mut Error, ranks: &str) {
    let words = match error {
        Error::RankDied { pending, .. } | Error::RankLeft { pending, .. } => pending,
        Error::Refused { reason, .. } => reason,
        Error::Mismatch { difference, .. } => difference,
        _ => return,
    };
    *words = format!(
        "{words}, whose buffers have to stay as they are, because {ranks} may still use them and \
         has not answered for {} s,",
        QUIESCE_LIMIT.as_secs()
    );
}
