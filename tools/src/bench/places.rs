//! Which cores the ranks of a job use, and how many of them share one.
//!
//! Invariant: all ranks come to the same, since each knows what all have told. So all of them run
//! as many operations, also where hosts have different numbers of ranks or cores.

use crate::failure::Result;
use crate::job::Job;
use crate::{machine, system};
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

const NO_CORE: u64 = u64::MAX;

/// Where one rank runs.
#[derive(Debug, Clone)]
struct Place {
    machine: u64,
    /// The only core that it uses, if there is one.
    core: Option<usize>,
    /// What it was given.
    cores: Vec<usize>,
}

/// Where all ranks run.
#[derive(Debug)]
pub(crate) struct Places {
    of: Vec<Place>,
    /// Whether a rank has raw connections or a raw pair with its peer.
    streams: Vec<bool>,
    ranks_per_core: usize,
}

impl Places {
    /// As long as nothing is known: all might be on one core.
    pub(crate) fn unknown(ranks: usize) -> Places {
        Places { of: Vec::new(), streams: Vec::new(), ranks_per_core: ranks }
    }

    /// Tells where this rank runs, and learns it of the others.
    pub(crate) fn learn(job: &Job) -> Result<Places> {
        let mut machine = DefaultHasher::new();
        machine::boot().hash(&mut machine);
        let core = if let [core] = system::cores()[..] { core as u64 } else { NO_CORE };
        let own = system::bits(&job.cores);
        let machines = exchange(job, machine.finish())?;
        let bound = exchange(job, core)?;
        let raw = job.streams.is_some() || job.verbs.is_some();
        let streams = exchange(job, u64::from(raw))?.into_iter().map(|raw| raw == 1).collect();
        let most = exchange(job, own.len() as u64)?.into_iter().max().unwrap_or(0);
        let mut masks = vec![Vec::new(); job.ranks];
        for word in 0..most as usize {
            let told = exchange(job, own.get(word).copied().unwrap_or(0))?;
            masks.iter_mut().zip(told).for_each(|(mask, told)| mask.push(told));
        }
        let places = machines.into_iter().zip(bound).zip(masks);
        let places = places.map(|((machine, core), mask)| Place {
            machine,
            core: (core != NO_CORE).then_some(core as usize),
            cores: system::numbers(&mask),
        });
        Ok(Places::of(places.collect(), streams))
    }

    fn of(of: Vec<Place>, streams: Vec<bool>) -> Places {
        let ranks_per_core = machines(&of).into_iter().map(|machine| sharing(&of, machine)).max();
        Places { of, streams, ranks_per_core: ranks_per_core.unwrap_or(1) }
    }

    /// Cores that the ranks on the machine of `rank` were given, ascending.
    fn cores(&self, rank: usize) -> Vec<usize> {
        let machine = self.of.get(rank).map(|place| place.machine);
        machine.map_or_else(Vec::new, |machine| usable(&self.of, machine).into_iter().collect())
    }

    /// As in "4 usable cores".
    pub(crate) fn words(&self) -> String {
        let machines = machines(&self.of);
        let cores: usize = machines.iter().map(|machine| usable(&self.of, *machine).len()).sum();
        let s = if cores == 1 { "" } else { "s" };
        match machines.len() {
            0 | 1 => format!("{cores} usable core{s}"),
            hosts => format!("{cores} usable core{s} of {hosts} hosts"),
        }
    }
}

/// What each rank tells.
fn exchange(job: &Job, value: u64) -> Result<Vec<u64>> {
    job.tell(value);
    job.meet_all()?;
    let told = (0..job.ranks).map(|rank| job.told(rank)).collect();
    // No rank tells the next before all have read this.
    job.meet_all()?;
    Ok(told)
}

fn machines(places: &[Place]) -> BTreeSet<u64> {
    places.iter().map(|place| place.machine).collect()
}

/// What the ranks of a machine were given together.
fn usable(places: &[Place], machine: u64) -> BTreeSet<usize> {
    let here = places.iter().filter(|place| place.machine == machine);
    here.flat_map(|place| place.cores.iter().copied()).collect()
}

/// Ranks of a machine that share a core: those that are bound to the same one; and where some are
/// not bound, as many as the kernel has to put on one.
fn sharing(places: &[Place], machine: u64) -> usize {
    let here: Vec<&Place> = places.iter().filter(|place| place.machine == machine).collect();
    let on = |core| here.iter().filter(|place| place.core == Some(core)).count();
    let bound = here.iter().filter_map(|place| place.core).map(on).max().unwrap_or(1);
    if here.iter().all(|place| place.core.is_some()) {
        return bound;
    }
    bound.max(here.len().div_ceil(usable(places, machine).len().max(1)))
}

impl Job {
    /// The core that a rank is bound to.
    pub(crate) fn core_of(&self, rank: usize) -> Option<usize> {
        self.places.of.get(rank)?.core
    }

    /// Cores that the ranks of this machine may use together.
    pub(crate) fn usable_cores(&self) -> Vec<usize> {
        self.places.cores(self.rank)
    }

    /// Whether a rank has raw connections or a raw pair with its peer.
    pub(crate) fn has_streams(&self, rank: usize) -> bool {
        self.places.streams.get(rank).copied().unwrap_or(false)
    }

    /// Whether ranks have to share cores, on any machine of the job.
    pub(crate) fn crowded(&self) -> bool {
        self.places.ranks_per_core > 1
    }

    /// Ranks that share a core where most do, rounded up.
    pub(crate) fn ranks_per_core(&self) -> usize {
        self.places.ranks_per_core
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks of machine 1 that were given these cores, each bound to the first of them if `bound`.
    fn places(bound: bool, given: &[&[usize]]) -> Vec<Place> {
        let place = |cores: &&[usize]| Place {
            machine: 1,
            core: bound.then(|| cores[0]),
            cores: cores.to_vec(),
        };
        given.iter().map(place).collect()
    }

    fn ranks_per_core(places: Vec<Place>) -> usize {
        Places::of(places, Vec::new()).ranks_per_core
    }

    #[test]
    fn shares_of_several_cores_are_not_shared() {
        let four: [&[usize]; 4] = [&[0, 1], &[2, 3], &[4, 5], &[6, 7]];
        let eight = Places::of(places(true, &four), Vec::new());
        assert_eq!((eight.ranks_per_core, eight.words().as_str()), (1, "8 usable cores"));
        assert_eq!(eight.cores(3), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(ranks_per_core(places(false, &four)), 1);
    }

    #[test]
    fn ranks_of_one_core_share_it_however_many_the_machine_has() {
        let restricted = Places::of(places(true, &[&[0], &[1], &[0], &[1], &[0]]), Vec::new());
        assert_eq!((restricted.ranks_per_core, restricted.words().as_str()), (3, "2 usable cores"));
        assert_eq!(ranks_per_core(places(true, &[&[70], &[0], &[70]])), 2);
        assert_eq!(ranks_per_core(places(true, &[&[4]])), 1);
    }

    #[test]
    fn ranks_that_are_not_bound_share_what_all_were_given() {
        assert_eq!(ranks_per_core(places(false, &[&[0, 1][..]; 4])), 2);
        assert_eq!(ranks_per_core(places(false, &[&[0, 1][..]; 3])), 2);
        assert_eq!(ranks_per_core(places(false, &[&[0, 1][..]; 2])), 1);
        assert_eq!(ranks_per_core(places(false, &[&[0, 1], &[0, 1], &[2, 3], &[2, 3]])), 1);
    }

    #[test]
    fn the_machine_whose_ranks_share_most_counts_for_all() {
        let mut all = places(true, &[&[0], &[1], &[0]]);
        all.extend(places(true, &[&[0]]).into_iter().map(|place| Place { machine: 2, ..place }));
        let unequal = Places::of(all, Vec::new());
        assert_eq!(unequal.ranks_per_core, 2);
        assert_eq!(unequal.words(), "3 usable cores of 2 hosts");
        assert_eq!((unequal.cores(0), unequal.cores(3)), (vec![0, 1], vec![0]));
    }

    #[test]
    fn masks_have_as_many_words_as_they_need() {
        for cores in [vec![], vec![0], vec![3, 63], vec![1, 64, 200]] {
            assert_eq!(system::numbers(&system::bits(&cores)), cores);
        }
    }
}
