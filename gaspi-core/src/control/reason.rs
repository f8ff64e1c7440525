//! Why a member cannot do its part of a collective call. It sends that along with its arrival: kind
//! and rank at fault in two words of the payload, the text of the error in the staging.

use super::{DONE, GroupCall};
use crate::error::Error;
use crate::ids::Rank;
use crate::sync::arrival_slot::Poll;
use crate::timeout::Deadline;
use crate::wait::Waiting;
use crate::wire::shared_layout::STAGE_BYTES;
use std::time::Duration;

/// The first word: the member has not done its part, for a reason of its own or because of the rank
/// at fault.
const FAILED: u64 = 1;
/// It has not, because the rank at fault has died.
const DIED: u64 = 2;
/// It has not, because it has no descriptors left.
const LACKS: u64 = 3;
/// It has not, because the rank at fault has left.
const LEFT: u64 = 4;
/// Bytes of the text at most.
const TEXT_MAX: usize = 1024;
/// The length of the text in the second word; below it the rank at fault, plus 1.
const LEN_SHIFT: u32 = 32;
/// How long this rank waits until it knows itself of a death that another one reports.
const DEATH_LIMIT: Duration = Duration::from_secs(1);

/// Two words of an arrival.
pub(crate) type Report = [u64; 2];

/// Whether a member has not done its part.
pub(crate) fn has_failed(report: Report) -> bool {
    report[0] != DONE
}

/// Whether it has not because it has no descriptors left.
pub(crate) fn lacks_descriptors(report: Report) -> bool {
    report[0] == LACKS
}

impl GroupCall<'_> {
    /// Whether `rank` has arrived at the next step to say that it has no descriptors left.
    pub(crate) fn lacks(&self, rank: Rank) -> bool {
        let step = self.step() + 1;
        let member = self.ranks().binary_search(&rank).ok();
        member.is_some_and(|member| {
            let slot = self.slot(member, step);
            let has_arrived = slot.poll(step) == Poll::Arrived(self.key.signature);
            let [status, details, ..] = slot.payload();
            has_arrived && lacks_descriptors([status, details]) && slot.has_stayed(step)
        })
    }

    /// The report of this rank's next arrival: why it has failed, if it has.
    pub(crate) fn report(&mut self, failure: Option<&Error>) -> Report {
        let Some(error) = failure else { return [DONE, 0] };
        let text = error.to_string();
        let len = text.floor_char_boundary(TEXT_MAX.min(STAGE_BYTES));
        // A call that is continued may have sent it already, and others may be reading it.
        if self.arrived() == self.step() {
            let stage = self.stage(self.me(), self.step() + 1);
            // SAFETY: this rank's own staging, which is longer, for a step at which it has not
            // arrived.
            unsafe { stage.as_ptr().copy_from_nonoverlapping(text.as_ptr(), len) };
            self.stage_used(len, false);
        }
        let (status, at_fault) = match error {
            Error::RankDied { rank, .. } => (DIED, Some(rank)),
            Error::RankLeft { rank, .. } => (LEFT, Some(rank)),
            Error::Refused { rank, .. } => (FAILED, Some(rank)),
            Error::TooManyFiles { .. } => (LACKS, None),
            _ => (FAILED, None),
        };
        let rank = at_fault.map_or(0, |rank| u64::from(rank.0) + 1);
        [status, rank | (len as u64) << LEN_SHIFT]
    }

    /// The error of this rank where a member has failed in `what`. Waits a moment for a death to be
    /// known here too.
    #[cold]
    pub(crate) fn reported(
        &self,
        member: usize,
        [status, details]: Report,
        (what, waiting): (&str, Waiting),
        deadline: Deadline,
    ) -> Error {
        let (inner, reporter) = (self.inner, self.ranks()[member]);
        let rank = (details as u32).checked_sub(1).filter(|rank| *rank < inner.ranks.size);
        let rank = rank.map(|rank| Rank(rank as u16)).filter(|rank| *rank != inner.ranks.me);
        match (status, rank) {
            (DIED, Some(rank)) => {
                let known = || inner.ranks.check_alive(rank, what).err();
                let own = inner.until(deadline.at_most(DEATH_LIMIT), waiting, known);
                return own.unwrap_or_else(|| inner.ranks.reported_death(rank, reporter, what));
            }
            (LEFT, Some(rank)) => {
                let left = inner.ranks.reported_left(rank, what.to_owned());
                return inner.cause(left, (what, waiting), self.ranks(), deadline);
            }
            _ => {}
        }
        let len = (details >> LEN_SHIFT) as usize;
        let mut text = vec![0; len.min(TEXT_MAX)];
        let stage = self.stage(member, self.step());
        // SAFETY: staging is longer, and its bytes are read after the arrival that published them.
        unsafe { text.as_mut_ptr().copy_from_nonoverlapping(stage.as_ptr(), text.len()) };
        let text = match self.overwriter() {
            None => String::from_utf8_lossy(&text),
            Some(_) => "its reason has been overwritten".into(),
        };
        match rank.filter(|rank| *rank != reporter) {
            Some(rank) => {
                inner.ranks.refused(rank, format!("{reporter} could not do {what}: {text}"))
            }
            None => inner.ranks.refused(reporter, format!("it could not do {what}: {text}")),
        }
    }
}
