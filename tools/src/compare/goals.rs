//! Goals: how many times as fast as the best other library this one has to be.

use super::operation::{Memory, Operation};
use super::row::{Row, geometric_mean};
use std::ops::RangeInclusive;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const ANY: RangeInclusive<usize> = 0..=usize::MAX;

/// What the rows of a table have in common, as far as goals depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) operation: Operation,
    pub(crate) tcp: bool,
    pub(crate) memory: Memory,
    pub(crate) ranks: u32,
    /// Whether ranks share cores.
    pub(crate) crowded: bool,
}

/// The goals of a table.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Goals {
    /// Of single rows; the first whose sizes hold a row's is its goal.
    rows: Vec<(RangeInclusive<usize>, Least)>,
    /// Of the geometric mean over the rows of these sizes.
    mean: Option<(RangeInclusive<usize>, f64)>,
}

/// What a ratio is to be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Least {
    /// More than 1.
    Faster,
    /// At least this.
    Ratio(f64),
}

impl Least {
    /// Whether a ratio is that.
    pub(crate) fn is_met(self, ratio: f64) -> bool {
        match self {
            Least::Faster => ratio > 1.0,
            Least::Ratio(least) => ratio >= least,
        }
    }

    /// As tables show it.
    pub(crate) fn text(self) -> String {
        match self {
            Least::Faster => ">1x".to_owned(),
            Least::Ratio(least) => format!(">={least:.2}x"),
        }
    }

    /// For programs.
    pub(crate) fn figure(self) -> f64 {
        match self {
            Least::Faster => 1.0,
            Least::Ratio(least) => least,
        }
    }
}

/// A geometric mean beside what it is to be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Mean {
    pub(crate) ratio: f64,
    pub(crate) least: f64,
    /// Bytes of the rows that it is over.
    pub(crate) from: usize,
    pub(crate) to: usize,
}

/// At most so many percent slower.
fn slower_by(percent: f64) -> Least {
    Least::Ratio(1.0 / (1.0 + percent / 100.0))
}

impl Goals {
    /// The goals of a setting; there are none for most.
    pub(crate) fn of(setting: Setting) -> Goals {
        let Setting { operation, tcp, memory, ranks, crowded } = setting;
        if tcp {
            let is_one = matches!(operation, Operation::Allreduce | Operation::Broadcast);
            let rows = if is_one { vec![(ANY, slower_by(5.0))] } else { Vec::new() };
            return Goals { rows, mean: is_one.then_some((ANY, 1.3)) };
        }
        match (operation, memory) {
            (Operation::Allreduce, Memory::Segment) if crowded => Goals {
                rows: vec![(0..=32 * KIB - 1, Least::Ratio(1.3)), (ANY, Least::Ratio(3.0))],
                mean: None,
            },
            (Operation::Allreduce, Memory::Segment) if ranks == 2 => Goals {
                rows: vec![
                    (4 * KIB..=4 * KIB, Least::Ratio(1.4)),
                    (0..=32 * KIB - 1, Least::Faster),
                    (16 * MIB..=16 * MIB, Least::Ratio(1.8)),
                    (ANY, Least::Ratio(2.0)),
                ],
                mean: Some((4 * KIB..=256 * MIB, 2.5)),
            },
            (Operation::Allreduce, Memory::Private) if ranks == 2 => Goals {
                rows: vec![
                    (KIB..=32 * KIB, slower_by(10.0)),
                    (0..=MIB - 1, Least::Faster),
                    (ANY, Least::Ratio(1.3)),
                ],
                mean: None,
            },
            (Operation::Broadcast, Memory::Segment) if !crowded => {
                Goals { rows: vec![(ANY, slower_by(5.0))], mean: Some((ANY, 1.15)) }
            }
            _ => Goals { rows: Vec::new(), mean: None },
        }
    }

    /// What a row of so many bytes is to reach.
    pub(crate) fn least(&self, bytes: usize) -> Option<Least> {
        let found = self.rows.iter().find(|(sizes, _)| sizes.contains(&bytes));
        found.map(|(_, least)| *least)
    }

    /// The geometric mean that is to reach something, of these rows.
    pub(crate) fn mean(&self, rows: &[Row]) -> Option<Mean> {
        let (sizes, least) = self.mean.as_ref()?;
        let within = rows.iter().filter(|row| sizes.contains(&row.shape.bytes()));
        let rated = within.filter_map(|row| Some((row.shape.bytes(), row.best()?.ratio)));
        let (bytes, ratios): (Vec<usize>, Vec<f64>) = rated.unzip();
        let (from, to) = (bytes.iter().copied().min()?, bytes.iter().copied().max()?);
        Some(Mean { ratio: geometric_mean(&ratios)?, least: *least, from, to })
    }
}

#[cfg(test)]
mod tests {
    use super::super::row::tests::row;
    use super::*;

    fn setting(operation: Operation, memory: Memory) -> Setting {
        Setting { operation, tcp: false, memory, ranks: 2, crowded: false }
    }

    fn figures(goals: &Goals, sizes: &[usize]) -> Vec<f64> {
        sizes.iter().map(|bytes| goals.least(*bytes).unwrap().figure()).collect()
    }

    #[test]
    fn allreduce_in_segments_has_goals_by_size() {
        let goals = Goals::of(setting(Operation::Allreduce, Memory::Segment));
        let sizes = [8, 4 * KIB, 8 * KIB, 32 * KIB, 16 * MIB, 256 * MIB];
        assert_eq!(figures(&goals, &sizes), [1.0, 1.4, 1.0, 2.0, 1.8, 2.0]);
        let crowded =
            Setting { ranks: 4, crowded: true, ..setting(Operation::Allreduce, Memory::Segment) };
        assert_eq!(figures(&Goals::of(crowded), &[8, 32 * KIB]), [1.3, 3.0]);
    }

    #[test]
    fn private_memory_broadcast_and_tcp_may_be_a_little_slower() {
        let private = Goals::of(setting(Operation::Allreduce, Memory::Private));
        let expected = [1.0, 1.0 / 1.1, 1.0 / 1.1, 1.0, 1.3];
        assert_eq!(figures(&private, &[8, KIB, 32 * KIB, 64 * KIB, MIB]), expected);
        let broadcast = Goals::of(setting(Operation::Broadcast, Memory::Segment));
        assert_eq!(figures(&broadcast, &[8, MIB]), [1.0 / 1.05; 2]);
        let tcp = Setting { tcp: true, ranks: 4, ..setting(Operation::Allreduce, Memory::Private) };
        assert_eq!(figures(&Goals::of(tcp), &[8, MIB]), [1.0 / 1.05; 2]);
        assert_eq!(Goals::of(setting(Operation::Alltoall, Memory::Segment)).least(8), None);
    }

    #[test]
    fn a_goal_is_met_from_its_figure_on() {
        assert!(Least::Ratio(1.4).is_met(1.4) && !Least::Ratio(1.4).is_met(1.39));
        assert!(Least::Faster.is_met(1.01) && !Least::Faster.is_met(1.0));
    }

    #[test]
    fn the_mean_is_over_the_sizes_of_its_goal() {
        let goals = Goals::of(setting(Operation::Allreduce, Memory::Segment));
        let of = |bytes, theirs| row(Operation::Allreduce, bytes, &[Some(1.0), Some(theirs)]);
        let rows = [of(8, 100.0), of(4 * KIB, 2.0), of(MIB, 8.0)];
        let mean = goals.mean(&rows).unwrap();
        assert!((mean.ratio - 4.0).abs() < 1e-12, "{mean:?}");
        assert_eq!((mean.least, mean.from, mean.to), (2.5, 4 * KIB, MIB));
        assert_eq!(goals.mean(&rows[..1]), None);
    }
}
