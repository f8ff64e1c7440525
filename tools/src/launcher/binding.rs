//! Which rank runs on which cores: worked out from a described topology, set between fork and exec.

use crate::topology::{Core, Topology, as_list};
use clap::ValueEnum;
use std::io;

/// What ranks are bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Bind {
    /// Each rank gets its own share of the cores, neighbouring ones; if there are more ranks than
    /// cores, rank r gets core r modulo their number.
    Core,
    /// Each rank gets all cores of one NUMA node, ranks in blocks over the nodes.
    Numa,
    /// Each rank gets all cores of one NUMA node, the nodes in turn: rank r of a machine that of
    /// node r modulo their number.
    NumaCyclic,
    /// Ranks run wherever the system puts them.
    None,
}

/// The cores of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Share {
    bind: Bind,
    /// The node, if bound to one.
    node: usize,
    /// Ascending; empty if not bound.
    cores: Vec<usize>,
}

impl Share {
    /// The value of GASPI_BIND.
    pub(crate) fn variable(&self) -> String {
        match self.bind {
            Bind::Core => format!("core:{}", as_list(&self.cores)),
            Bind::Numa | Bind::NumaCyclic => format!("numa:{}", as_list(&self.cores)),
            Bind::None => "none".to_owned(),
        }
    }

    /// As in "rank 0 (pid 17) on core 0".
    pub(crate) fn words(&self) -> String {
        let plural = if self.cores.len() == 1 { "core" } else { "cores" };
        let cores = format!("{plural} {}", as_list(&self.cores));
        match self.bind {
            Bind::Core => format!("on {cores}"),
            Bind::Numa | Bind::NumaCyclic => format!("on NUMA node {} ({cores})", self.node),
            Bind::None => "on any core".to_owned(),
        }
    }

    /// The kernel's form, to be made before fork; empty if not bound.
    pub(crate) fn mask(&self) -> Vec<u64> {
        bits(&self.cores)
    }
}

/// The kernel's form of a set of ascending numbers.
pub(crate) fn bits(numbers: &[usize]) -> Vec<u64> {
    let words = numbers.last().map_or(0, |last| last / 64 + 1);
    let mut mask = vec![0; words];
    for number in numbers {
        mask[number / 64] |= 1 << (number % 64);
    }
    mask
}

/// Binds the calling process to the cores of `mask`; an empty one changes nothing.
/// Async-signal-safe.
pub(crate) fn set(mask: &[u64]) -> io::Result<()> {
    if mask.is_empty() {
        return Ok(());
    }
    // SAFETY: reads as many bytes as the slice has.
    let set = unsafe { libc::sched_setaffinity(0, size_of_val(mask), mask.as_ptr().cast()) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What is done without --bind: a core for each rank where there are enough.
pub(crate) fn default(topology: &Topology, ranks: u32) -> Bind {
    if ranks <= topology.usable { Bind::Core } else { Bind::None }
}

/// The cores of each rank.
pub(crate) fn shares(topology: &Topology, bind: Bind, ranks: usize) -> Vec<Share> {
    let share = |node, cores: Vec<usize>| Share { bind, node, cores };
    let cores = &topology.cores;
    match bind {
        Bind::None => vec![share(0, Vec::new()); ranks],
        Bind::Numa => {
            let nodes: Vec<&[Core]> = cores.chunk_by(|a, b| a.node == b.node).collect();
            let node = |rank| nodes[block(rank, ranks, nodes.len())];
            (0..ranks).map(|rank| share(node(rank)[0].node, ascending(node(rank)))).collect()
        }
        Bind::NumaCyclic => {
            let nodes: Vec<&[Core]> = cores.chunk_by(|a, b| a.node == b.node).collect();
            let node = |rank: usize| nodes[rank % nodes.len()];
            (0..ranks).map(|rank| share(node(rank)[0].node, ascending(node(rank)))).collect()
        }
        Bind::Core if ranks > cores.len() => {
            (0..ranks).map(|rank| share(0, vec![cores[rank % cores.len()].number])).collect()
        }
        Bind::Core => {
            // Whole physical cores as long as there is one for each rank.
            let physical: Vec<&[Core]> = cores.chunk_by(|a, b| a.physical == b.physical).collect();
            let units = if ranks <= physical.len() { physical } else { cores.chunks(1).collect() };
            let part = |rank| units[range(&units, rank, ranks)].concat();
            (0..ranks).map(|rank| share(0, ascending(&part(rank)))).collect()
        }
    }
}

/// The NUMA nodes that each rank takes its memory from: those of its cores, or one after the other
/// where ranks are not bound.
pub(crate) fn memory(topology: &Topology, shares: &[Share]) -> Vec<Vec<usize>> {
    let of = |rank: usize, share: &Share| {
        if share.cores.is_empty() {
            return vec![topology.nodes()[rank % topology.nodes().len()]];
        }
        let cores = topology.cores.iter().filter(|core| share.cores.contains(&core.number));
        let mut nodes: Vec<usize> = cores.map(|core| core.node).collect();
        nodes.dedup();
        nodes
    };
    shares.iter().enumerate().map(|(rank, share)| of(rank, share)).collect()
}

/// Has the calling process take memory from these NUMA nodes only; none changes nothing. Programs
/// that it becomes keep to that. Async-signal-safe.
pub(crate) fn set_memory(nodes: &[u64]) -> io::Result<()> {
    if nodes.is_empty() {
        return Ok(());
    }
    // The kernel takes one bit less than it is told.
    let bits = nodes.len() * 64 + 1;
    // SAFETY: reads as many bytes as the slice has.
    let set = unsafe { libc::syscall(libc::SYS_set_mempolicy, MPOL_BIND, nodes.as_ptr(), bits) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The policy of linux/mempolicy.h that takes memory from the given nodes only.
const MPOL_BIND: libc::c_int = 2;

fn ascending(cores: &[Core]) -> Vec<usize> {
    let mut numbers: Vec<usize> = cores.iter().map(|core| core.number).collect();
    numbers.sort_unstable();
    numbers
}

/// Where the block of `rank` begins if `ranks` are spread over `count` places.
fn block(rank: usize, ranks: usize, count: usize) -> usize {
    (rank as u64 * count as u64 / ranks as u64) as usize
}

/// The units of `rank`: as many as everybody has, evenly spread, and where that leaves a choice
/// those that share most.
fn range(units: &[&[Core]], rank: usize, ranks: usize) -> std::ops::Range<usize> {
    let size = units.len() / ranks;
    let first = block(rank, ranks, units.len());
    let last = block(rank + 1, ranks, units.len()) - size;
    let borders = |start: &usize| {
        let pairs = units[*start..*start + size].windows(2);
        let apart =
            |a: &Core, b: &Core| (a.node != b.node) as usize + (a.cache != b.cache) as usize;
        pairs.map(|pair| apart(&pair[0][0], &pair[1][0])).sum::<usize>()
    };
    let start = (first..=last).min_by_key(borders).unwrap_or(first);
    start..start + size
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine of so many nodes, caches in a node, physical cores at a cache, and hyperthreads,
    /// numbered as Linux does it: first all first threads, then all second ones.
    fn machine(nodes: usize, caches: usize, physical: usize, threads: usize) -> Topology {
        let count = nodes * caches * physical;
        let core = |number: usize| {
            let first = number % count;
            let cache = first / physical * physical;
            Core { number, physical: first, cache, node: first / (caches * physical) }
        };
        Topology::new((0..count * threads).map(core).collect(), u32::MAX)
    }

    fn cores(topology: &Topology, bind: Bind, ranks: usize) -> Vec<Vec<usize>> {
        shares(topology, bind, ranks).into_iter().map(|share| share.cores).collect()
    }

    #[test]
    fn two_cores() {
        let two = machine(1, 1, 2, 1);
        assert_eq!(cores(&two, Bind::Core, 1), [[0, 1]]);
        assert_eq!(cores(&two, Bind::Core, 2), [[0], [1]]);
        assert_eq!(cores(&two, Bind::Core, 5), [[0], [1], [0], [1], [0]]);
        assert_eq!(cores(&two, Bind::Numa, 2), [[0, 1], [0, 1]]);
        assert_eq!(cores(&two, Bind::None, 2), [[0; 0], [0; 0]]);
        assert_eq!((default(&two, 2), default(&two, 3)), (Bind::Core, Bind::None));
    }

    #[test]
    fn hyperthreads_stay_together() {
        let four = machine(1, 1, 4, 2);
        assert_eq!(cores(&four, Bind::Core, 4), [[0, 4], [1, 5], [2, 6], [3, 7]]);
        assert_eq!(cores(&four, Bind::Core, 3), [[0, 4], [1, 5], [2, 6]]);
        assert_eq!(cores(&four, Bind::Core, 2), [[0, 1, 4, 5], [2, 3, 6, 7]]);
        // More ranks than physical cores: all are used before one is shared.
        assert_eq!(cores(&four, Bind::Core, 5), [[0], [4], [5], [2], [3]]);
        assert_eq!(cores(&four, Bind::Core, 8).concat(), [0, 4, 1, 5, 2, 6, 3, 7]);
    }

    #[test]
    fn ranks_are_spread_over_nodes_and_keep_to_one() {
        let machine = machine(2, 2, 3, 1);
        assert_eq!(cores(&machine, Bind::Core, 2), [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]);
        assert_eq!(cores(&machine, Bind::Core, 4)[3], [9, 10, 11]);
        // Two cores each for five ranks of twelve: where there is a choice, none crosses a border.
        let spread = cores(&machine, Bind::Core, 5);
        assert_eq!(spread, [[0, 1], [2, 3], [4, 5], [7, 8], [9, 10]]);
        assert_eq!(
            cores(&machine, Bind::Numa, 3),
            [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
        );
        assert_eq!(cores(&machine, Bind::Numa, 1), [[0, 1, 2, 3, 4, 5]]);
    }

    #[test]
    fn ranks_take_nodes_in_turn_and_memory_with_them() {
        let machine = machine(2, 1, 2, 1);
        assert_eq!(cores(&machine, Bind::NumaCyclic, 3), [[0, 1], [2, 3], [0, 1]]);
        let nodes = |bind, ranks| memory(&machine, &shares(&machine, bind, ranks));
        assert_eq!(nodes(Bind::NumaCyclic, 3), [[0], [1], [0]]);
        assert_eq!(nodes(Bind::None, 3), [[0], [1], [0]]);
        assert_eq!(nodes(Bind::Numa, 3), [[0], [0], [1]]);
        assert_eq!(nodes(Bind::Core, 4), [[0], [0], [1], [1]]);
        assert_eq!(nodes(Bind::Core, 1), [[0, 1]]);
        assert_eq!(bits(&[1, 64]), [2, 1]);
    }

    #[test]
    fn shares_are_equal_and_do_not_overlap() {
        for topology in [machine(1, 1, 2, 1), machine(2, 1, 5, 1), machine(2, 4, 3, 2)] {
            for ranks in 1..=topology.cores.len() {
                let shares = cores(&topology, Bind::Core, ranks);
                let mut all = shares.concat();
                all.sort_unstable();
                all.dedup();
                assert_eq!(all.len(), shares.iter().map(Vec::len).sum::<usize>(), "{shares:?}");
                let sizes = shares.iter().map(Vec::len);
                assert_eq!(sizes.clone().min(), sizes.max(), "{shares:?}");
            }
        }
    }

    #[test]
    fn a_quota_decides_whether_ranks_are_bound() {
        let quota = Topology::new(machine(1, 1, 8, 1).cores, 2);
        assert_eq!((default(&quota, 2), default(&quota, 3)), (Bind::Core, Bind::None));
    }

    #[test]
    fn holes_and_high_numbers() {
        let core = |number| Core { number, physical: number, cache: 0, node: 0 };
        let topology = Topology::new(vec![core(3), core(70), core(71)], u32::MAX);
        let share = &shares(&topology, Bind::Core, 1)[0];
        assert_eq!(
            (share.variable(), share.words()),
            ("core:3,70-71".into(), "on cores 3,70-71".into())
        );
        assert_eq!(share.mask(), [1 << 3, 1 << 6 | 1 << 7]);
        let share = &shares(&topology, Bind::Numa, 1)[0];
        assert_eq!(share.words(), "on NUMA node 0 (cores 3,70-71)");
        let share = &shares(&topology, Bind::None, 1)[0];
        assert_eq!((share.variable().as_str(), share.mask().len()), ("none", 0));
    }
}
