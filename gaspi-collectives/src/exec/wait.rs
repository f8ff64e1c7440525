//! Waiting for an operation of an executor, and what a thread tells and asks others meanwhile.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gaspi_core::{Deadline, Error, Result};

use super::completion::Completion;
use super::executor::{Driver, Executor};
use super::notice::Notice;
use crate::signature;

/// How long a rank waits before it tells the others what it waits in.
const QUIET: Duration = Duration::from_millis(10);
/// How often a rank that waits long looks around without having been woken.
const LOOK_AROUND: Duration = Duration::from_millis(250);
/// Members whom the text of a timeout names.
const NAMED: usize = 4;

impl Executor {
    /// Waits for an operation, carrying on whatever `others` carries on besides; now and then it is
    /// also to look around there.
    ///
    /// # Errors
    /// [`Error::Timeout`], which leaves it under way, and how it failed.
    pub(crate) fn wait(
        &self,
        completion: &Completion,
        deadline: Deadline,
        mut others: impl FnMut(bool),
    ) -> Result<()> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let outcome = self.wait_counted(completion, deadline, &mut others);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        outcome
    }

    fn wait_counted(
        &self,
        completion: &Completion,
        deadline: Deadline,
        others: &mut impl FnMut(bool),
    ) -> Result<()> {
        let quiet = if deadline == Deadline::Now { deadline } else { deadline.at_most(QUIET) };
        let ended = self.channel.wait_for(quiet, || {
            self.progress(Driver::Waiter);
            others(false);
            completion.outcome()
        });
        if let Some(outcome) = ended {
            return outcome;
        }
        if deadline.passed() {
            // Whoever comes again and again hears of others by and by.
            self.look_around();
            others(true);
            return match completion.outcome() {
                Some(outcome) => outcome,
                None if deadline == Deadline::Now => Err(Error::Timeout { pending: String::new() }),
                None => Err(self.timed_out(completion)),
            };
        }
        while !deadline.passed() {
            self.announce();
            others(true);
            let ended = self.channel.wait_for(deadline.at_most(LOOK_AROUND), || {
                self.progress(Driver::Waiter);
                others(false);
                self.look_at_notices();
                completion.outcome()
            });
            if let Some(outcome) = ended {
                return outcome;
            }
        }
        Err(self.timed_out(completion))
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
            let (sequence, signature) = (task.sequence, task.signature);
            Notice { sequence, signature, failure: None }.tell(&self.channel);
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
    fn timed_out(&self, completion: &Completion) -> Error {
        let mut state = self.hold();
        let state = &mut *state;
        let what = signature::describe(completion.signature);
        let pending = match state.queue.front_mut() {
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
        };
        Error::Timeout { pending }
    }
}
