//! Waiting for an operation, and the notices that a waiting thread publishes and reads.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gaspi_core::{Deadline, Error, Result};

use super::completion::Completion;
use super::executor::{Driver, Executor};
use super::notice::Notice;
use crate::signature;

/// How long a rank waits before it publishes what it waits for.
const QUIET: Duration = Duration::from_millis(10);
/// How often a rank that waits long checks notices without having been woken.
const LOOK_AROUND: Duration = Duration::from_millis(250);
/// Number of members that the text of a timeout names.
const NAMED: usize = 4;

impl Executor {
    /// Waits for an operation. `others` drives other executors; called with true it also checks
    /// their notices.
    ///
    /// # Errors
    /// [`Error::Timeout`], the operation stays active; and the error that ended it.
    pub(crate) fn wait(
        &self,
        completion: &Completion,
        deadline: Deadline,
        others: impl FnMut(bool),
    ) -> Result<()> {
        let pending = || Error::Timeout { pending: self.pending(completion) };
        self.wait_until(deadline, || completion.outcome(), &pending, others)
    }

    /// Drives its operations until `ended` gives something.
    ///
    /// # Errors
    /// What `pending` says after the deadline, and what `ended` gives.
    pub(crate) fn wait_until<T>(
        &self,
        deadline: Deadline,
        mut ended: impl FnMut() -> Option<Result<T>>,
        pending: &impl Fn() -> Error,
        mut others: impl FnMut(bool),
    ) -> Result<T> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let outcome = self.wait_counted(deadline, &mut ended, pending, &mut others);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        outcome.inspect_err(|error| self.channel.note_told(error))
    }

    fn wait_counted<T>(
        &self,
        deadline: Deadline,
        ended: &mut impl FnMut() -> Option<Result<T>>,
        pending: &impl Fn() -> Error,
        others: &mut impl FnMut(bool),
    ) -> Result<T> {
        let quiet = if deadline == Deadline::Now { deadline } else { deadline.at_most(QUIET) };
        let early = self.wait_part(quiet, || {
            self.progress(Driver::Waiter);
            others(false);
            ended()
        });
        if let Some(outcome) = early {
            return outcome;
        }
        if deadline.passed() {
            // A caller that polls reads the notices here.
            self.look_around();
            others(true);
            return match ended() {
                Some(outcome) => outcome,
                None if deadline == Deadline::Now => Err(Error::Timeout { pending: String::new() }),
                None => Err(pending()),
            };
        }
        let wait = self.channel.long_wait(Instant::now() - QUIET, deadline);
        while !deadline.passed() {
            self.announce();
            others(true);
            let part = wait.part(deadline.at_most(LOOK_AROUND));
            let late = self.wait_part(part, || {
                self.progress(Driver::Waiter);
                others(false);
                self.look_at_notices();
                ended()
            });
            if let Some(outcome) = late {
                return outcome;
            }
            wait.tell_pending("a collective", pending);
        }
        Err(pending())
    }

    /// Waits until `attempt` gives something, and looks in between whether the turn of an operation
    /// has come.
    fn wait_part<T>(&self, limit: Deadline, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
        let turns = &self.all.turns;
        loop {
            let (looks, slice) = (turns.has_waiting(), turns.limit(limit));
            let found = self.channel.wait_for(slice, || match attempt() {
                // From here on it does.
                None if !looks && turns.has_waiting() => Some(None),
                found => found.map(Some),
            });
            match found {
                Some(None) if !limit.passed() => {}
                None if slice != limit && !limit.passed() => {}
                found => return found.flatten(),
            }
        }
    }

    /// Publishes what this rank waits for, and asks the member that it waits for how that stands.
    #[cold]
    fn announce(&self) {
        let mut state = self.hold();
        let state = &mut *state;
        let Some((_, task)) = state.queue.front() else { return };
        // A failure has been published already.
        if state.broken.is_none() && state.announced != task.sequence {
            state.announced = task.sequence;
            let (sequence, signature) = (task.sequence, task.signature);
            Notice { sequence, signature, failure: None }.tell(&self.channel);
        }
        if let Some(blocked) = task.blocked().filter(|_| state.broken.is_none()) {
            self.channel.ask_for_notice(blocked.member());
        }
    }

    /// Publishes and reads notices for an operation that is only polled now and then.
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

    /// Members that would have told this rank that they are in the operation or behind it, and have
    /// not.
    #[cold]
    fn silent(&self, sequence: u64) -> String {
        let told = |member: &usize| {
            Notice::of(&self.channel, *member).is_some_and(|notice| notice.sequence >= sequence)
        };
        let tells =
            |member: &usize| *member != self.channel.me() && self.channel.is_in_touch(*member);
        let others = (0..self.channel.ranks().len()).filter(tells);
        let silent: Vec<usize> = others.filter(|member| !told(member)).collect();
        let ranks =
            silent.iter().take(NAMED).map(|member| self.channel.ranks()[*member].to_string());
        let mut words = ranks.collect::<Vec<_>>().join(", ");
        if silent.len() > NAMED {
            words = format!("{words} and {} more", silent.len() - NAMED);
        }
        words
    }

    /// What an operation waits for, in words.
    #[cold]
    pub(crate) fn pending(&self, completion: &Completion) -> String {
        let mut state = self.hold();
        let state = &mut *state;
        let what = signature::describe(completion.signature);
        match state.queue.front_mut() {
            Some((first, _)) if first.signature != completion.signature => {
                format!("{what}, behind {}", signature::describe(first.signature))
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
        }
    }
}
