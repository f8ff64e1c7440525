//! Limits of control groups and of the process: how much memory, how many cores, processes and
//! descriptors there are.
//!
//! At a control group's memory limit the kernel kills instead of failing, so the limit is looked
//! at before memory is promised. Version 1 and 2 of control groups are understood.
//!
//! Whether a number is a descriptor is asked by hand: rustix takes only those that are.

use rustix::process;
use std::fs;
use std::path::{Path, PathBuf};

/// Memory that can still be used, and which limit says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Headroom {
    /// Bytes.
    pub available: u64,
    /// The limit and how to raise it.
    pub limit: String,
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// A field in kilobytes of /proc/meminfo, in bytes.
fn meminfo(field: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with(field))?;
    let kilobytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kilobytes * 1024)
}

/// Bytes in `file` of the form `name value` lines.
fn stat_field(file: &Path, field: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(' '))?;
    value.trim().parse().ok()
}

/// The directories of this process's control group for `controller` (empty for version 2), from
/// its own up to the root of the mounted hierarchy.
fn group_directories(controller: &str) -> Vec<PathBuf> {
    let Ok(groups) = fs::read_to_string("/proc/self/cgroup") else { return Vec::new() };
    let path = groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let controllers = parts.next()?;
        let path = parts.next()?;
        controllers.split(',').any(|name| name == controller).then(|| path.to_owned())
    });
    let Some(path) = path else { return Vec::new() };
    let roots = match controller {
        "" => vec![PathBuf::from("/sys/fs/cgroup"), PathBuf::from("/sys/fs/cgroup/unified")],
        name => vec![Path::new("/sys/fs/cgroup").join(name)],
    };
    let mut directories = Vec::new();
    for root in roots {
        let mut directory = root.join(path.trim_start_matches('/'));
        // In a container the path may be that of the host: the mount then shows the own group.
        if !directory.exists() {
            directory.clone_from(&root);
        }
        while directory.starts_with(&root) {
            directories.push(directory.clone());
            if directory == root || !directory.pop() {
                break;
            }
        }
    }
    directories
}

/// A control group's limit of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupMemory {
    /// The file that holds it.
    pub file: PathBuf,
    /// Bytes.
    pub limit: u64,
    /// Bytes below the limit; page cache that can be dropped counts as free.
    pub available: u64,
}

/// What the machine has free, in bytes, where the kernel tells.
pub fn machine_memory() -> Option<u64> {
    meminfo("MemAvailable:")
}

/// The limits of memory of all enclosing control groups, from the own one outwards.
pub fn group_memory() -> Vec<GroupMemory> {
    let version1 =
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file");
    let version2 = ("", "memory.max", "memory.current", "inactive_file");
    let mut found = Vec::new();
    for (controller, limit_file, usage_file, cache) in [version1, version2] {
        for directory in group_directories(controller) {
            let file = directory.join(limit_file);
            let usage = number(&directory.join(usage_file));
            // Version 1 writes "no limit" as the largest number of whole pages.
            let limit = number(&file).filter(|limit| *limit < 1 << 62);
            let (Some(limit), Some(usage)) = (limit, usage) else { continue };
            let cache = stat_field(&directory.join("memory.stat"), cache).unwrap_or(0);
            let available = limit.saturating_sub(usage.saturating_sub(cache));
            found.push(GroupMemory { file, limit, available });
        }
    }
    found
}

/// The smallest headroom of memory among the machine and all enclosing control groups.
pub fn memory() -> Headroom {
    let mut headroom = Headroom {
        available: machine_memory().unwrap_or(u64::MAX),
        limit: "this is what the machine has free (MemAvailable); use smaller segments or fewer \
                ranks"
            .to_owned(),
    };
    for group in group_memory() {
        if group.available < headroom.available {
            headroom.available = group.available;
            headroom.limit = format!(
                "the control group's limit is {} bytes ({}); raise it",
                group.limit,
                group.file.display()
            );
        }
    }
    headroom
}

/// A control group among the enclosing ones that has as many processes and threads as it may, in
/// words.
fn full_group() -> Option<String> {
    let directories = group_directories("pids").into_iter().chain(group_directories(""));
    directories.into_iter().find_map(|directory| {
        let file = directory.join("pids.max");
        // Without a limit it says "max".
        let (limit, have) = (number(&file)?, number(&directory.join("pids.current"))?);
        let file = file.display();
        (have >= limit).then(|| {
            format!("the control group's limit is {limit} processes and threads ({file}); raise it")
        })
    })
}

/// The limit that keeps the kernel from starting one more, as far as is known, and others that may.
fn of_tasks(others: &str) -> String {
    full_group().unwrap_or_else(|| {
        let user = match allowed(Resource::Processes) {
            Some(limit) => format!("{limit} (processes and threads of this user)"),
            None => "unlimited".to_owned(),
        };
        format!("ulimit -u is {user}; see also {others}")
    })
}

/// Why no process could be started where the kernel says that it is to be tried again.
pub fn no_process() -> String {
    format!("no more processes may be started: {}", of_tasks("the control group's pids.max"))
}

/// The same of a thread, for whose stack addresses may lack.
pub fn no_thread() -> String {
    let others = "the control group's pids.max, and ulimit -v";
    format!("no more threads may be started: {}", of_tasks(others))
}

/// Whole cores that the control group's quota allows, at least 1; `None` without a quota.
pub fn cpu_quota() -> Option<u32> {
    let cores = |quota: u64, period: u64| {
        (period > 0).then(|| u32::try_from((quota / period).max(1)).unwrap_or(u32::MAX))
    };
    let version2 = group_directories("").into_iter().filter_map(|directory| {
        let text = fs::read_to_string(directory.join("cpu.max")).ok()?;
        let mut words = text.split_whitespace();
        let quota = words.next()?.parse().ok()?;
        cores(quota, words.next()?.parse().ok()?)
    });
    let version1 = group_directories("cpu").into_iter().filter_map(|directory| {
        // -1 (no quota) does not parse as unsigned.
        let quota = number(&directory.join("cpu.cfs_quota_us"))?;
        cores(quota, number(&directory.join("cpu.cfs_period_us"))?)
    });
    version2.chain(version1).min()
}

/// What a process may have only so much of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// Bytes of a file, which holds for memory files too and is enforced by a signal.
    FileSize,
    /// Bytes of address space.
    AddressSpace,
    /// Bytes of memory that is locked.
    LockedMemory,
    /// Descriptors.
    OpenFiles,
    /// Processes and threads of this user.
    Processes,
}

/// How much of a [`Resource`] this process may have now, `None` without a limit.
pub fn allowed(resource: Resource) -> Option<u64> {
    let resource = match resource {
        Resource::FileSize => process::Resource::Fsize,
        Resource::AddressSpace => process::Resource::As,
        Resource::LockedMemory => process::Resource::Memlock,
        Resource::OpenFiles => process::Resource::Nofile,
        Resource::Processes => process::Resource::Nproc,
    };
    process::getrlimit(resource).current
}

/// How many descriptors of this process count for its limit of open files.
pub fn open_files() -> u64 {
    let limit = allowed(Resource::OpenFiles).unwrap_or(u64::MAX);
    let counts = |number: &u64| *number < limit;
    if let Ok(entries) = fs::read_dir("/proc/self/fd") {
        let numbers =
            entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        // Without the one that reads the directory.
        return (numbers.filter(counts).count() as u64).saturating_sub(1);
    }
    // Without /proc, or where not even this one is left.
    let is_open = |number: &u64| {
        // SAFETY: asks for the flags of a number that need not be a descriptor.
        unsafe { libc::fcntl(*number as i32, libc::F_GETFD) >= 0 }
    };
    (0..limit.min(65536)).filter(is_open).count() as u64
}

/// Raises the limit of open files to `needed` as far as the hard limit allows; never lowers it. The
/// limit that holds now, and the hard one.
pub fn raise_open_files(needed: u64) -> (u64, u64) {
    let limit = process::getrlimit(process::Resource::Nofile);
    // No limit is the largest number, as for the kernel.
    let (now, most) = (limit.current.unwrap_or(u64::MAX), limit.maximum.unwrap_or(u64::MAX));
    let raised = needed.min(most);
    if raised <= now {
        return (now, most);
    }
    let new = process::Rlimit { current: Some(raised), maximum: limit.maximum };
    let is_set = process::setrlimit(process::Resource::Nofile, new).is_ok();
    (if is_set { raised } else { now }, most)
}

/// How many mappings this process has.
pub fn mappings() -> u64 {
    fs::read_to_string("/proc/self/maps").map_or(0, |text| text.lines().count() as u64)
}

/// How many mappings a process may have.
pub fn mappings_allowed() -> Option<u64> {
    setting("/proc/sys/vm/max_map_count")?.parse().ok()
}

/// Which limit keeps the kernel from mapping `bytes`, where it says that memory lacks.
pub fn no_mapping(bytes: u64) -> String {
    let taken = addresses();
    if let Some(limit) = allowed(Resource::AddressSpace)
        && taken.saturating_add(bytes) > limit
    {
        return format!(
            "the limit of address space is {} KiB, of which {} KiB are taken; raise it with \
             ulimit -v",
            limit >> 10,
            taken >> 10
        );
    }
    let have = mappings();
    if let Some(limit) = mappings_allowed()
        // It may have to be split from the ones beside it.
        && have + 2 >= limit
    {
        return format!(
            "a process may have {limit} mappings, and this one has {have}; as root: sysctl \
             vm.max_map_count={}",
            2 * limit
        );
    }
    "the machine has too little memory for it; see also vm.overcommit_memory".to_owned()
}

/// Bytes of addresses that this process has mapped.
pub fn addresses() -> u64 {
    let text = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = text.split(' ').next().and_then(|field| field.parse().ok()).unwrap_or(0);
    pages * super::memory::PAGE
}

/// A setting of the kernel as text, without the line's end.
pub fn setting(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_this_machine_is_plausible() {
        let headroom = memory();
        assert!(headroom.available > 1 << 20, "{headroom:?}");
        assert!(headroom.available < 1 << 50, "{headroom:?}");
    }

    #[test]
    fn more_mappings_than_there_may_be_are_told_from_too_little_memory() {
        // This process has neither limit reached.
        assert!(no_mapping(1 << 20).contains("vm.overcommit_memory"));
        let all = mappings_allowed().unwrap();
        assert!(all > mappings() + 16, "{all}");
    }
}
