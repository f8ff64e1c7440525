//! Resident memory of this process, as /proc/self/status tells it.

use std::fs;

/// Which of the parts is private.
pub(crate) const PRIVATE: usize = 1;
/// Parts of the resident memory, as the kernel calls them.
pub(crate) const PARTS: [(&str, &str); 3] = [
    ("VmRSS", "resident after init"),
    ("RssAnon", "... of it private"),
    ("RssShmem", "... of it shared"),
];
/// The page size that a kernel value of /proc/self/status is printed in: KiB, always.
const KIB: u64 = 1024;

/// Private memory of this process now, as far as the kernel tells it.
pub(crate) fn private() -> Option<u64> {
    own_memory(PARTS[PRIVATE].0)
}

/// The parts now, in the order of [`PARTS`].
pub(crate) fn now() -> [Option<u64>; 3] {
    PARTS.map(|(name, _)| own_memory(name))
}

/// Memory of this process now, with its share of what it has touched together with others. Without
/// files where the kernel tells them apart: the share in a library falls when another process comes
/// to use the same part.
pub(crate) fn proportional() -> Option<u64> {
    let share = |kind| bytes_of_line("/proc/self/smaps_rollup", kind);
    match (share("Pss_Anon"), share("Pss_Shmem")) {
        (Some(private), Some(shared)) => Some(private + shared),
        _ => share("Pss"),
    }
}

/// Bytes of a line of /proc/self/status, such as `VmRSS`.
fn own_memory(name: &str) -> Option<u64> {
    bytes_of_line("/proc/self/status", name)
}

fn bytes_of_line(file: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let line =
        text.lines().find(|line| line.strip_prefix(name).is_some_and(|l| l.starts_with(':')))?;
    let number = line.split_whitespace().nth(1)?.parse::<u64>().ok()?;
    Some(number * KIB)
}
