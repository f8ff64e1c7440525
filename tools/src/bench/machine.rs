//! What the machine is, for the header and for sizes that depend on its caches.

use std::fs;

/// Smallest and largest memory that --cold rotates through, whatever the caches are.
const COLD_MIN: usize = 64 << 20;
const COLD_MAX: usize = 512 << 20;

/// The processor's name, as the kernel tells it.
pub(crate) fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        matches!(key.trim(), "model name" | "Model" | "cpu model").then(|| value.trim().to_owned())
    });
    name.unwrap_or_else(|| format!("{} processor", std::env::consts::ARCH))
}

/// Names this machine as long as it runs; the same in all of its containers.
pub(crate) fn boot() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

/// Names this machine and the network that this process sees. Equal names share one loopback.
pub(crate) fn network() -> String {
    let network = fs::read_link("/proc/self/ns/net").unwrap_or_default();
    format!("{}/{}", boot(), network.display())
}

/// Bytes of the largest cache of core 0.
pub(crate) fn largest_cache() -> Option<usize> {
    let directory = fs::read_dir("/sys/devices/system/cpu/cpu0/cache").ok()?;
    let sizes = directory.flatten().filter_map(|entry| {
        let text = fs::read_to_string(entry.path().join("size")).ok()?;
        crate::text::parse_size(text.trim()).ok()
    });
    sizes.max()
}

/// Bytes that buffers rotate through with --cold, so that they have left the caches when they come
/// round again.
pub(crate) fn cold_span() -> usize {
    largest_cache().map_or(COLD_MIN, |cache| 2 * cache).clamp(COLD_MIN, COLD_MAX)
}
