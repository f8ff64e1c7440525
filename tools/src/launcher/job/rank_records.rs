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
    /// By rank, the number of its end among these, from 1 on: 0 until it has ended.
    end_numbers: Vec<u32>,
    /// How many of these have failed.
    failed: usize,
}

impl RankRecords {
    pub(super) fn new(ranks: usize) -> RankRecords {
        RankRecords {
            pids: vec![0; ranks],
            ends: Vec::with_capacity(ranks),
            end_numbers: vec![0; ranks],
            failed: 0,
        }
    }

    pub(super) fn note_start(&mut self, rank: usize, pid: i32) {
        self.pids[rank] = pid;
    }

    pub(super) fn note_end(&mut self, end: End) {
        self.ends.push(end);
        self.failed += usize::from(end.ending.failed());
        let number = &mut self.end_numbers[end.rank];
        if *number == 0 {
            *number = self.ends.len() as u32;
        }
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
        self.pids.len() - self.failed
    }

    /// The ranks that have not ended.
    pub(super) fn running(&self) -> Vec<usize> {
        (0..self.pids.len()).filter(|rank| !self.has_ended(*rank)).collect()
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
        let place = (self.end_numbers[rank] as usize).checked_sub(1)?;
        self.ends.get(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Ending;
    use std::time::Duration;

    fn end(rank: usize, status: i32) -> End {
        let ending = Ending::Exited(status);
        End { rank, pid: rank as i32 + 1, ending, ordered: false, after: Duration::ZERO }
    }

    #[test]
    fn ends_are_found_by_rank() {
        let mut records = RankRecords::new(4);
        (0..4).for_each(|rank| records.note_start(rank, rank as i32 + 1));
        records.note_end(end(2, 3));
        records.note_end(end(0, 0));
        let ended: Vec<bool> = (0..4).map(|rank| records.has_ended(rank)).collect();
        assert_eq!(ended, [true, false, true, false]);
        assert_eq!(records.running(), [1, 3]);
        assert_eq!(records.hopeful(), 3);
        assert_eq!(records.end_of(2).map(|end| end.pid), Some(3));
        assert!(!records.all_have_ended());
        records.note_end(end(1, 1));
        records.note_end(end(3, 1));
        assert_eq!(records.hopeful(), 1);
        assert!(records.all_have_ended());
        assert_eq!(records.ends().iter().map(|end| end.rank).collect::<Vec<_>>(), [2, 0, 1, 3]);
    }

    /// The CPU time of this thread.
    fn spent() -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the structure is writable.
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    #[test]
    fn an_end_costs_the_same_in_large_jobs() {
        let ranks = 65_535;
        let mut records = RankRecords::new(ranks);
        let began = spent();
        for rank in 0..ranks {
            records.note_end(end(rank, 1));
            // What each end of a rank, and each rank of a lost host, asks.
            assert!(records.has_ended(rank));
            assert_eq!(records.hopeful(), ranks - rank - 1);
        }
        // It takes 5 ms without optimisation. To go through all ends took minutes.
        let spent = spent() - began;
        assert!(spent < Duration::from_millis(500), "{spent:?} for {ranks} ends");
    }
}
