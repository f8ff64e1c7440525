//! Windows of a call: between two steps of it members send each other chunks.
//!
//! What is sent is kept until all have arrived at the step behind it, for connections that break.
//!
//! Invariant: **a member that has left in a window, before it arrived at the next step, ends the
//! call for all others**, as one does that dies: nobody has come to the end of that step.

use super::call::GroupCall;
use super::chunks::CHUNKS_MAX;
use super::leaders::CHUNK_TAGS;
use super::{CALL_BITS, has_data};
use crate::error::{Error, Result};
use crate::os::clock;
use crate::sync::arrival_slot::Poll;
use crate::timeout::Deadline;
use crate::wire::message::Lines;
use std::time::Duration;

/// How long an error is kept back that a death or an end may explain.
const EXPLAIN_LIMIT: Duration = Duration::from_secs(1);

/// How the wait for a chunk stands.
enum Wait {
    Over(Result<()>),
    /// Unless there is a better reason.
    Differs(Error),
}

impl GroupCall<'_> {
    /// Sends a member the chunk of this number, below [`CHUNKS_MAX`], behind the last step. It does
    /// not wait.
    pub fn send_chunk(&self, member: usize, number: usize, words: Vec<u64>) {
        debug_assert!(number < CHUNKS_MAX, "{number}");
        let (step, tag) = (self.step(), CHUNK_TAGS + number as u8);
        let lines = Lines { step, tag, signature: self.key.signature, lines: words };
        self.inner.send_chunk(self.ranks()[member], self.group, lines);
    }

    /// Takes the chunk of this number that a member has sent, if it has come.
    pub fn take_chunk(&self, member: usize, number: usize) -> Option<Vec<u64>> {
        let of = (self.ranks()[member], number as u8);
        self.inner.control.chunks.take(self.group, self.step(), of)
    }

    /// Waits until the chunk of this number has come from a member.
    ///
    /// # Errors
    /// [`Error::Timeout`] leaves the call active. The others end it on this rank:
    /// [`Error::RankDied`]; [`Error::RankLeft`] if one has not arrived at the next step before;
    /// [`Error::Mismatch`] if one has arrived with another signature; [`Error::Refused`] if data
    /// cannot be sent to one.
    pub fn await_chunk(&mut self, member: usize, number: usize, deadline: Deadline) -> Result<()> {
        let (inner, group, step) = (self.inner, self.group, self.step());
        let rank = self.ranks()[member];
        let has = || inner.control.chunks.has(group, step, (rank, number as u8)).then_some(());
        if has().is_some() {
            return Ok(());
        }
        let call = self.waiting().call;
        if deadline != Deadline::Now && inner.look_for_message(call, has).is_some() {
            return Ok(());
        }
        let kind = self.key.kind.name();
        let pending = || format!("{rank} to send its part of {kind} of {group}");
        let outcome = self.await_chunk_long(deadline, has, pending);
        let outcome = outcome.unwrap_or_else(|| Err(Error::Timeout { pending: pending() }));
        let what = (kind, self.waiting());
        let outcome = outcome.map_err(|error| inner.cause(error, what, self.ranks(), deadline));
        if outcome.as_ref().is_err_and(|error| !error.is_timeout()) {
            // Others fail in this window, or at the step behind it: what comes next begins anew.
            self.fail_at(step + 1);
            self.end_chunks();
        }
        outcome
    }

    /// `None` once the deadline has passed.
    #[cold]
    fn await_chunk_long(
        &mut self,
        deadline: Deadline,
        has: impl Fn() -> Option<()>,
        pending: impl Fn() -> String,
    ) -> Option<Result<()>> {
        let (inner, waiting) = (self.inner, self.waiting());
        if deadline == Deadline::Now {
            inner.look_once();
            return match self.look_for_chunk(&has)? {
                Wait::Over(outcome) => Some(outcome),
                Wait::Differs(_) => None,
            };
        }
        let wait = inner.waiter.long_wait(deadline);
        let seen = loop {
            let look = || self.look_for_chunk(&has);
            let seen = inner.until(wait.part(deadline), waiting, look);
            if seen.is_some() || deadline.passed() {
                break seen?;
            }
            wait.tell(self.key.kind.name(), &pending);
        };
        let error = match seen {
            Wait::Over(outcome) => return Some(outcome),
            Wait::Differs(error) => error,
        };
        let since = self.fails_since();
        let left = EXPLAIN_LIMIT.saturating_sub(clock::since(since));
        let over = inner.until(deadline.at_most(left), waiting, || {
            let Wait::Over(outcome) = self.look_for_chunk(&has)? else { return None };
            Some(outcome)
        });
        over.or_else(|| (clock::since(since) >= EXPLAIN_LIMIT).then_some(Err(error)))
    }

    fn look_for_chunk(&mut self, has: impl Fn() -> Option<()>) -> Option<Wait> {
        if has().is_some() {
            return Some(Wait::Over(Ok(())));
        }
        let closed = self.inner.check_open().err();
        if let Some(error) = closed.or_else(|| self.death()) {
            return Some(Wait::Over(Err(error)));
        }
        let (next, kind) = (self.step() + 1, self.key.kind.name());
        if let Some(error) = self.cannot_send(next) {
            return Some(Wait::Over(Err(error)));
        }
        debug_assert!(has_data(self.key.signature));
        for (member, rank) in self.ranks().iter().copied().enumerate() {
            match self.slot(member, next).poll(next) {
                Poll::Arrived(other) if (other ^ self.key.signature) & CALL_BITS != 0 => {
                    return Some(Wait::Differs(self.mismatch(rank, other)));
                }
                Poll::Arrived(_) => {}
                Poll::Passed => return Some(Wait::Differs(self.has_gone_on(rank))),
                Poll::Missing => {
                    let Err(error) = self.inner.ranks.check_alive(rank, kind) else { continue };
                    // It may have arrived just before its end.
                    let came = self.slot(member, next).poll(next) != Poll::Missing
                        || self.steps().has_left_behind(rank, next);
                    if !came {
                        return Some(Wait::Over(Err(self.death().unwrap_or(error))));
                    }
                }
            }
        }
        None
    }

    /// All members have arrived behind the last chunks, or this rank needs none any more.
    pub fn end_chunks(&mut self) {
        self.inner.control.chunks.end(self.group, self.step());
        self.inner.control.resend_buffer.forget_chunks(self.group);
    }
}
