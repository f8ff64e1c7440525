//! Whether ranks share cores, of which there are then too few for all to wait without sleeping.

use crate::ids::Rank;
use crate::os::{affinity, temporary};
use crate::ranks::Ranks;

/// Whether members share cores. All ranks of the job find the same.
pub(crate) fn is_crowded(job: &Ranks, ranks: &[Rank]) -> bool {
    let cards = &job.cards;
    let machines = cards.iter().map(|card| [card.machine(), card.rank().0.into()]);
    let crowded = temporary::with_pairs(cards.len(), machines, |machines| {
        machines.sort_unstable();
        let of_machine = machines.chunk_by(|one, other| one[0] == other[0]);
        let is_crowded = |of_machine: &&[[u64; 2]]| {
            // Without quotas: each rank knows its own only.
            let mut cores = Vec::new();
            for [_, rank] in *of_machine {
                affinity::unite(&mut cores, cards.at(Rank(*rank as u16)).cpus());
            }
            of_machine.len() > affinity::count(&cores) as usize
        };
        of_machine.filter(is_crowded).map(|of_machine| of_machine[0][0]).collect::<Vec<_>>()
    });
    ranks.iter().any(|rank| crowded.binary_search(&cards.at(*rank).machine()).is_ok())
}
