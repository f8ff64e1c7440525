//! What is said of a step: which members differ, and which are missing.

use super::GroupCall;
use crate::error::Error;
use crate::ids::Rank;
use crate::sync::arrival_slot::Poll;

impl GroupCall<'_> {
    #[cold]
    pub(super) fn mismatch(&self, rank: Rank, other: u64) -> Error {
        let difference = format!(
            "{} called {}, {rank} called {}",
            self.inner.ranks.me,
            (self.key.describe)(self.key.signature),
            (self.key.describe)(other),
        );
        Error::Mismatch { group: self.group, difference }
    }

    /// The error for a member that is beyond the step that is awaited.
    pub(super) fn has_gone_on(&self, rank: Rank) -> Error {
        let kind = self.key.kind.name();
        let difference = format!(
            "{kind} has failed on {rank}, which has called something else on the group since"
        );
        Error::Mismatch { group: self.group, difference }
    }

    /// Which members are missing, in words.
    #[cold]
    pub(super) fn missing(&self, step: u64) -> String {
        let missing: Vec<String> = (0..self.ranks().len())
            .filter(|member| self.slot(*member, step).poll(step) == Poll::Missing)
            .filter(|member| !self.steps().has_arrived(step, *member))
            .take(8)
            .map(|member| self.ranks()[member].0.to_string())
            .collect();
        let kind = self.key.kind.name();
        let ranks = if missing.len() == 1 { "rank" } else { "ranks" };
        let missing = missing.join(", ");
        format!("{ranks} {missing} to arrive at {kind} of {}", self.group)
    }
}
