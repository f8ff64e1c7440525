//! Which cores this process may use.
//!
//! The mask is read by hand: `CpuSet` of rustix ends at 1024 cores and hides how many the kernel
//! tells of.

/// The affinity mask of the calling thread, 64 cores a word.
pub fn mask() -> Vec<u64> {
    let mut words = vec![0u64; 16];
    // SAFETY: the kernel writes at most the given number of bytes into the vector.
    let written = unsafe {
        libc::syscall(libc::SYS_sched_getaffinity, 0, words.len() * 8, words.as_mut_ptr())
    };
    match usize::try_from(written) {
        Ok(bytes) => words.truncate(bytes / 8),
        // More than 1024 cores, or refused: everything the machine has counts as usable.
        Err(_) => {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            words = first(cores);
        }
    }
    words
}

/// The mask of so many cores, from the first one on.
pub fn first(count: usize) -> Vec<u64> {
    let mut words = vec![u64::MAX; count.div_ceil(64)];
    if let Some(last) = words.last_mut().filter(|_| !count.is_multiple_of(64)) {
        *last = (1 << (count % 64)) - 1;
    }
    words
}

/// The cores of a mask.
pub fn cores(mask: &[u64]) -> Vec<usize> {
    (0..mask.len() * 64).filter(|core| mask[core / 64] >> (core % 64) & 1 == 1).collect()
}

/// Cores as the kernel prints them: `0-3,8`.
pub fn listed(cores: &[usize]) -> String {
    let runs = cores.chunk_by(|core, next| core + 1 == *next);
    let runs = runs.map(|run| match run {
        [first, .., last] => format!("{first}-{last}"),
        _ => run[0].to_string(),
    });
    runs.collect::<Vec<_>>().join(",")
}

/// The mask of cores as the kernel prints them; none if it is no such list.
pub fn parsed(list: &str) -> Option<Vec<u64>> {
    let mut mask = Vec::new();
    for run in list.split(',').map(str::trim).filter(|run| !run.is_empty()) {
        let (first, last) = run.split_once('-').unwrap_or((run, run));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        for core in (first..=last).map(usize::from) {
            mask.resize(mask.len().max(core / 64 + 1), 0);
            mask[core / 64] |= 1 << (core % 64);
        }
    }
    Some(mask)
}

/// Cores in the union of masks, limited by the control group's quota.
pub fn usable_cores(masks: impl Iterator<Item = impl IntoIterator<Item = u64>>) -> u32 {
    let mut union = Vec::new();
    masks.for_each(|mask| unite(&mut union, mask));
    let cores = count(&union);
    super::limits::cpu_quota().map_or(cores, |quota| cores.min(quota)).max(1)
}

/// Adds the cores of a mask to a union.
pub fn unite(union: &mut Vec<u64>, mask: impl IntoIterator<Item = u64>) {
    for (at, bits) in mask.into_iter().enumerate() {
        match union.get_mut(at) {
            Some(word) => *word |= bits,
            None => union.push(bits),
        }
    }
}

/// How many cores a mask has.
pub fn count(mask: &[u64]) -> u32 {
    mask.iter().map(|word| word.count_ones()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cores_are_as_many_as_are_asked_for() {
        for count in [0, 1, 63, 64, 65, 512] {
            assert_eq!(cores(&first(count)), (0..count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn masks_are_listed_as_runs() {
        let list = |mask: &[u64]| listed(&cores(mask));
        assert_eq!(list(&[0b1101_0000_1111, 1]), "0-3,8,10-11,64");
        assert_eq!(list(&[u64::MAX, u64::MAX]), "0-127");
        assert_eq!(list(&[]), "");
    }

    #[test]
    fn lists_become_masks() {
        assert_eq!(parsed("0-3,8,10-11,64"), Some(vec![0b1101_0000_1111, 1]));
        assert_eq!(parsed(""), Some(vec![]));
        for wrong in ["x", "1-", "-3", "0-99999", "1,,x"] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }
}
