//! What is known of each rank, wherever it runs: its process, and how that ended.

use crate::hang::Row;
use crate::report::{self, End};

/// All ranks of the job.
#[derive(Debug)]
pub(super) struct RankRecords {
    /// By rank, 0 until it was started.
    pids: Vec<i32>,
    /// In the order in which they ended.
    ends: Vec<End>,
}

impl RankRecords {
    pub(super) fn new(ranks: usize) -> RankRecords {
        RankRecords { pids: vec![0; ranks], ends: Vec::with_capacity(ranks) }
    }

    pub(super) fn note_start(&mut self, rank: usize, pid: i32) {
        self.pids[rank] = pid;
    }

    pub(super) fn note_end(&mut self, end: End) {
        self.ends.push(end);
    }

    /// The process of a rank, 0 until it was started.
    pub(super) fn pid(&self, rank: usize) -> i32 {
        self.pids[rank]
    }

    /// In the order in which they ended.
    pub(super) fn ends(&self) -> &[End] {
        &self.ends
    }

    pub(super) fn has_ended(&self, rank: usize) -> bool {
        self.end_of(rank).is_some()
    }

    pub(super) fn all_have_ended(&self) -> bool {
        self.ends.len() >= self.pids.len()
    }

    /// How many ranks have ended with 0 or may still do so.
    pub(super) fn hopeful(&self) -> usize {
        self.pids.len() - self.ends.iter().filter(|end| end.ending.failed()).count()
    }

    /// The ranks that have not ended.
    pub(super) fn running(&self) -> Vec<usize> {
        let mut ended = vec![false; self.pids.len()];
        self.ends.iter().for_each(|end| ended[end.rank] = true);
        (0..ended.len()).filter(|rank| !ended[*rank]).collect()
    }

    /// A row of the hang table, of a rank whose machine said nothing.
    pub(super) fn row_of_absent(&self, rank: usize) -> Row {
        let pid = self.pids[rank];
        match self.end_of(rank) {
            Some(end) => Row::unknown(pid, "ended", &report::phrase(end.ending)),
            None if pid == 0 => Row::unknown(pid, "not started", ""),
            None => Row::unknown(pid, "unknown", "its host does not answer"),
        }
    }

    fn end_of(&self, rank: usize) -> Option<&End> {
        self.ends.iter().find(|end| end.rank == rank)
    }
}
