//! Which cores gaspi_run may use and how they lie to each other, as /sys describes it.

use gaspi_core::os::{affinity, limits};
use std::path::Path;

/// A logical core and what it shares with others, each named by the lowest core that shares it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Core {
    /// The kernel's number.
    pub(crate) number: usize,
    /// The physical core: hyperthreads have the same.
    pub(crate) physical: usize,
    /// The last level of cache.
    pub(crate) cache: usize,
    /// The NUMA node.
    pub(crate) node: usize,
}

/// The cores that may be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Topology {
    /// Neighbours beside each other: by NUMA node, cache, physical core, number.
    pub(crate) cores: Vec<Core>,
    /// How many of them can be busy at once, as the control group's quota allows.
    pub(crate) usable: u32,
}

impl Topology {
    /// The cores of this process's affinity mask.
    pub(crate) fn look_up() -> Topology {
        let numbers = numbers(&affinity::mask());
        let usable = limits::cpu_quota().unwrap_or(u32::MAX);
        Topology::new(described(Path::new("/sys/devices/system/cpu"), &numbers), usable)
    }

    /// These cores, of which `quota` can be busy at once.
    pub(crate) fn new(mut cores: Vec<Core>, quota: u32) -> Topology {
        cores.sort_by_key(|core| (core.node, core.cache, core.physical, core.number));
        let usable = u32::try_from(cores.len()).unwrap_or(u32::MAX).min(quota).max(1);
        Topology { cores, usable }
    }
}

impl Topology {
    /// The NUMA nodes of the cores, ascending, at least one.
    pub(crate) fn nodes(&self) -> Vec<usize> {
        let mut nodes: Vec<usize> = self.cores.iter().map(|core| core.node).collect();
        nodes.dedup();
        if nodes.is_empty() { vec![0] } else { nodes }
    }
}

/// The numbers of the bits that are set.
fn numbers(mask: &[u64]) -> Vec<usize> {
    (0..mask.len() * 64).filter(|number| mask[number / 64] >> (number % 64) & 1 == 1).collect()
}

/// What the directory tells of these cores. What it does not tell counts as not shared, and one
/// NUMA node.
fn described(directory: &Path, numbers: &[usize]) -> Vec<Core> {
    let lowest = |path: &Path| {
        let text = std::fs::read_to_string(path).ok()?;
        list(text.trim())?.into_iter().min()
    };
    let core = |&number: &usize| {
        let own = directory.join(format!("cpu{number}"));
        let physical = lowest(&own.join("topology/thread_siblings_list")).unwrap_or(number);
        // Caches are numbered from the first level on.
        let levels = (0..8).rev().map(|index| own.join(format!("cache/index{index}")));
        let cache = levels.map(|level| lowest(&level.join("shared_cpu_list"))).find_map(|c| c);
        Core { number, physical, cache: cache.unwrap_or(0), node: node(&own).unwrap_or(0) }
    };
    numbers.iter().map(core).collect()
}

/// The NUMA node of a core, which lies in its directory as a link.
fn node(core: &Path) -> Option<usize> {
    let mut entries = std::fs::read_dir(core).ok()?.filter_map(Result::ok);
    entries.find_map(|entry| entry.file_name().to_str()?.strip_prefix("node")?.parse().ok())
}

/// The numbers in a list such as "0-3,8".
fn list(text: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        numbers.extend(first.parse().ok()?..=last.parse::<usize>().ok()?);
    }
    Some(numbers)
}

/// The list that says these ascending numbers, as in "0-3,8".
pub(crate) fn as_list(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|one, next| one + 1 == *next);
    let run = |run: &[usize]| match run {
        [first, .., last] => format!("{first}-{last}"),
        single => single.iter().map(usize::to_string).collect(),
    };
    runs.map(run).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn lists() {
        assert_eq!(list("0-3,8,10-11"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!((list(""), list("a-b")), (None, None));
        assert_eq!(as_list(&[0, 1, 2, 3, 8, 10, 11]), "0-3,8,10-11");
        assert_eq!((as_list(&[5]), as_list(&[])), ("5".to_owned(), String::new()));
    }

    #[test]
    fn masks_of_several_words() {
        assert_eq!(numbers(&[0b101, 1 << 63]), [0, 2, 127]);
    }

    #[test]
    fn a_described_machine() {
        // Hyperthreads numbered far apart, two caches in one node, and a core that is not
        // described.
        let directory = tempfile::tempdir().expect("directory");
        for number in 0..8usize {
            let core = directory.path().join(format!("cpu{number}"));
            fs::create_dir_all(core.join("topology")).expect("topology");
            fs::create_dir_all(core.join("cache/index3")).expect("cache");
            fs::create_dir_all(core.join("cache/index0")).expect("cache");
            fs::create_dir_all(core.join("node1")).expect("node");
            let siblings = format!("{},{}\n", number % 4, number % 4 + 4);
            fs::write(core.join("topology/thread_siblings_list"), siblings).expect("siblings");
            let cache = if number % 4 < 2 { "0-1,4-5\n" } else { "2-3,6-7\n" };
            fs::write(core.join("cache/index3/shared_cpu_list"), cache).expect("cache");
            fs::write(core.join("cache/index0/shared_cpu_list"), number.to_string())
                .expect("cache");
        }
        let found = described(directory.path(), &[1, 2, 5, 9]);
        let core = |number, physical, cache, node| Core { number, physical, cache, node };
        let expected = [core(1, 1, 0, 1), core(2, 2, 2, 1), core(5, 1, 0, 1), core(9, 9, 0, 0)];
        assert_eq!(found, expected);
        let sorted: Vec<usize> =
            Topology::new(found, 3).cores.iter().map(|core| core.number).collect();
        assert_eq!(sorted, [9, 1, 5, 2]);
    }

    #[test]
    fn this_machine_is_described() {
        let topology = Topology::look_up();
        assert!(!topology.cores.is_empty());
        assert!(topology.usable >= 1 && topology.usable as usize <= topology.cores.len());
    }
}
