//! What was measured of one operation at one size, side by side, and what follows from it.

use super::no_result::NoResult;
use super::operation::Shape;
use crate::samples::Samples;

/// One side of a row.
#[derive(Debug, Clone)]
pub(crate) struct Lane {
    /// Every call.
    pub(crate) samples: Samples,
    /// Medians of the bursts, in the order of the rounds.
    pub(crate) bursts: Vec<f64>,
    /// Elements that were not what they had to be.
    pub(crate) wrong: u64,
}

/// An operation at a size.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) shape: Shape,
    pub(crate) ranks: u32,
    /// By side, ours first.
    pub(crate) lanes: Vec<std::result::Result<Lane, NoResult>>,
}

/// Sides beside ours that are the fastest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Best {
    pub(crate) side: usize,
    /// How many times as fast as it ours is: above 1 ours is faster.
    pub(crate) ratio: f64,
}

impl Row {
    /// Median of a side, in microseconds.
    pub(crate) fn median(&self, side: usize) -> Option<f64> {
        Some(self.lanes.get(side)?.as_ref().ok()?.samples.median())
    }

    /// How many times as fast as a side ours is. The median over the rounds: the bursts of a round
    /// follow each other at once, while the machine itself may be twice as fast later.
    pub(crate) fn ratio(&self, side: usize) -> Option<f64> {
        let ours = self.lanes.first()?.as_ref().ok()?;
        let theirs = self.lanes.get(side)?.as_ref().ok()?;
        let pairs = ours.bursts.iter().zip(&theirs.bursts);
        let ratios: Vec<f64> = pairs.map(|(ours, theirs)| theirs / ours).collect();
        (!ratios.is_empty()).then(|| Samples::new(ratios).median())
    }

    /// The fastest other side.
    pub(crate) fn best(&self) -> Option<Best> {
        let rivals = (1..self.lanes.len()).filter_map(|side| Some((side, self.median(side)?)));
        let (side, _) = rivals.min_by(|one, two| one.1.total_cmp(&two.1))?;
        Some(Best { side, ratio: self.ratio(side)? })
    }

    /// Wrong elements of all sides.
    pub(crate) fn wrong(&self) -> u64 {
        let wrong = |lane: &std::result::Result<Lane, NoResult>| match lane {
            Ok(Lane { wrong, .. }) | Err(NoResult::TooSlow { wrong, .. }) => *wrong,
            Err(_) => 0,
        };
        self.lanes.iter().map(wrong).sum()
    }

    /// Bytes of the larger buffer in the time of a call, in GB/s.
    pub(crate) fn gb_s(&self, side: usize) -> Option<f64> {
        let us = self.median(side)?;
        (us > 0.0 && self.shape.count > 0).then(|| self.shape.bytes() as f64 / us / 1e3)
    }
}

/// The geometric mean; none of nothing.
pub(crate) fn geometric_mean(ratios: &[f64]) -> Option<f64> {
    let logs: f64 = ratios.iter().map(|ratio| ratio.ln()).sum();
    (!ratios.is_empty()).then(|| (logs / ratios.len() as f64).exp())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::operation::{Memory, Operation};
    use super::*;

    /// A row in which every call of a side takes so long, in microseconds.
    pub(crate) fn row(operation: Operation, bytes: usize, times: &[Option<f64>]) -> Row {
        let lane = |us: f64| Lane {
            samples: Samples::new(vec![us, us, 9.0 * us]),
            // A machine that is slower in the second round, and a burst that was disturbed.
            bursts: vec![us, 2.0 * us, if us == 1.0 { us } else { 9.0 * us }],
            wrong: 0,
        };
        Row {
            shape: Shape::new(operation, bytes, 2, Memory::Segment, true),
            ranks: 2,
            lanes: times.iter().map(|us| us.map(lane).ok_or(NoResult::NotOffered)).collect(),
        }
    }

    #[test]
    fn ratios_are_those_of_most_rounds() {
        let row = row(Operation::Allreduce, 4096, &[Some(1.0), Some(4.0), Some(3.0), None]);
        assert_eq!(row.ratio(1), Some(4.0));
        assert_eq!(row.ratio(0), Some(1.0));
        assert_eq!(row.ratio(3), None);
        assert_eq!(row.best(), Some(Best { side: 2, ratio: 3.0 }));
        assert_eq!(row.gb_s(0), Some(4.096));
    }

    #[test]
    fn without_ours_or_others_there_is_no_ratio() {
        assert_eq!(row(Operation::Gather, 8, &[None, Some(4.0)]).best(), None);
        assert_eq!(row(Operation::Gather, 8, &[Some(4.0)]).best(), None);
        assert_eq!(row(Operation::Barrier, 8, &[Some(4.0), None]).gb_s(0), None);
    }

    #[test]
    fn the_geometric_mean_of_a_ratio_and_its_inverse_is_1() {
        assert!((geometric_mean(&[4.0, 0.25]).unwrap() - 1.0).abs() < 1e-12);
        assert!((geometric_mean(&[2.0, 8.0]).unwrap() - 4.0).abs() < 1e-12);
        assert_eq!(geometric_mean(&[]), None);
    }
}
