//! How many outcomes each rank has heard of, and the least of these numbers.
//!
//! Pure. Ranks are counted by their number, so that after a failure, when each of very many ranks
//! comes and is told of it, none of them costs a look at all others.

use crate::ids::Rank;
use std::collections::BTreeMap;

/// How many ranks have heard of so many outcomes.
type Counts = BTreeMap<u64, u32>;

/// By rank the outcomes that it has heard of: the number of its next round.
#[derive(Debug)]
pub(super) struct Told {
    by_rank: Vec<u64>,
    lives: Vec<bool>,
    all: Counts,
    living: Counts,
    /// How often the number of a rank was read or changed.
    #[cfg(test)]
    steps: std::cell::Cell<u64>,
}

impl Told {
    /// Nobody of so many ranks has heard of any, and all live.
    pub(super) fn new(ranks: usize) -> Told {
        let counts: Counts = (ranks > 0).then_some((0, ranks as u32)).into_iter().collect();
        Told {
            by_rank: vec![0; ranks],
            lives: vec![true; ranks],
            all: counts.clone(),
            living: counts,
            #[cfg(test)]
            steps: std::cell::Cell::new(0),
        }
    }

    /// The next round of a rank; `None` if there is no such rank.
    pub(super) fn find(&self, rank: Rank) -> Option<u64> {
        self.note_step();
        self.by_rank.get(rank.index()).copied()
    }

    /// The next round of a rank of the job.
    pub(super) fn of(&self, rank: Rank) -> u64 {
        self.note_step();
        self.by_rank[rank.index()]
    }

    /// The lowest next round of all ranks.
    pub(super) fn least(&self) -> u64 {
        self.all.first_key_value().map_or(0, |(least, _)| *least)
    }

    /// The lowest next round of the ranks that live; `None` if none does.
    pub(super) fn least_of_living(&self) -> Option<u64> {
        self.living.first_key_value().map(|(least, _)| *least)
    }

    /// A rank has heard of the outcome of its round.
    pub(super) fn advance(&mut self, rank: Rank) {
        self.set(rank, self.by_rank[rank.index()] + 1);
    }

    /// The next round of a rank is this one.
    pub(super) fn set(&mut self, rank: Rank, next: u64) {
        self.note_step();
        let former = std::mem::replace(&mut self.by_rank[rank.index()], next);
        move_one(&mut self.all, former, next);
        if self.lives[rank.index()] {
            move_one(&mut self.living, former, next);
        }
    }

    /// All ranks have heard of the outcome of the round before this one.
    pub(super) fn set_all(&mut self, next: u64) {
        for rank in 0..self.by_rank.len() {
            self.set(Rank(rank as u16), next);
        }
    }

    /// A rank has ended for good.
    pub(super) fn gone(&mut self, rank: Rank) {
        self.note_step();
        if std::mem::replace(&mut self.lives[rank.index()], false) {
            take_one(&mut self.living, self.by_rank[rank.index()]);
        }
    }

    #[cfg(test)]
    fn note_step(&self) {
        self.steps.set(self.steps.get() + 1);
    }

    #[cfg(not(test))]
    fn note_step(&self) {}

    /// How often the number of a rank was read or changed.
    #[cfg(test)]
    pub(super) fn steps(&self) -> u64 {
        self.steps.get()
    }
}

fn move_one(counts: &mut Counts, from: u64, to: u64) {
    take_one(counts, from);
    *counts.entry(to).or_insert(0) += 1;
}

fn take_one(counts: &mut Counts, from: u64) {
    if let Some(count) = counts.get_mut(&from) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same as a look at all ranks finds, after any steps.
    #[test]
    fn the_least_is_that_of_all_or_of_those_that_live() {
        let mut told = Told::new(5);
        let mut gone = [false; 5];
        for step in 0..200u64 {
            let rank = (step * step + 3 * step) % 5;
            match step {
                41 | 90 | 137 | 160 | 180 => {
                    let next = gone.iter().position(|gone| !gone).expect("one lives");
                    gone[next] = true;
                    told.gone(Rank(next as u16));
                    told.gone(Rank(next as u16));
                }
                70 => told.set_all(told.by_rank.iter().max().expect("ranks") + 1),
                _ => told.advance(Rank(rank as u16)),
            }
            let numbers = || told.by_rank.iter().copied().zip(gone);
            assert_eq!(told.least(), numbers().map(|(next, _)| next).min().expect("ranks"));
            let living = numbers().filter(|(_, gone)| !gone).map(|(next, _)| next).min();
            assert_eq!(told.least_of_living(), living, "step {step}");
        }
        assert_eq!(told.least_of_living(), None);
    }
}
