//! What this machine offers to a rank, and what keeps it from offering more.
//!
//! Each [`Check`] is one row: what was looked at, whether it can be used, why not, and what to do
//! about it. Nothing is assumed that can be tried: memory files are sealed, sockets connected,
//! another process's memory read. What the library itself meets at run time (a refused copy, no
//! huge pages) is explained by the same words.
//!
//! It changes nothing and takes a few milliseconds. docs/troubleshooting.md explains each row.

use crate::bootstrap::addresses::{self, Audience, Restrictions};
use crate::config::{Config, Topology};
use crate::os::event::Wakeup;
use crate::os::limits::{self, Resource, allowed, setting};
use crate::os::memory::{self, HUGE_PAGE, Mapping};
use crate::os::{affinity, cross_memory, interfaces, process, socket};
use crate::policy::needs::{self, Descriptors, JobShape};
use crate::sync::membarrier;
use crate::wire::shared_layout::SharedLayout;
use std::fs;
use std::os::fd::AsFd;

/// Ranks of a job for which a limit should do.
const JOB_RANKS: u32 = 256;
/// The same of one host.
const HOST_RANKS: u32 = 64;

/// Whether something can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckState {
    /// A fact that nothing depends on.
    Fact,
    /// It can be used.
    Usable,
    /// It can be used, but could be better.
    Limited,
    /// It cannot be used.
    Unusable,
}

impl CheckState {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            CheckState::Fact => "fact",
            CheckState::Usable => "usable",
            CheckState::Limited => "limited",
            CheckState::Unusable => "not usable",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// What it belongs to: `machine`, `cores`, `memory`, `kernel`, `transports`.
    pub area: &'static str,
    /// What was looked at.
    pub topic: &'static str,
    /// Whether it can be used.
    pub state: CheckState,
    /// What was found, in words.
    pub value: String,
    /// Why it is so, where that is not plain; empty otherwise.
    pub reason: String,
    /// What to do about it; empty where there is nothing to do.
    pub remedy: String,
}

impl Check {
    /// A check without a reason and a remedy.
    pub fn new(
        area: &'static str,
        topic: &'static str,
        state: CheckState,
        value: impl Into<String>,
    ) -> Check {
        let (reason, remedy) = (String::new(), String::new());
        Check { area, topic, state, value: value.into(), reason, remedy }
    }

    /// The same with its reason.
    #[must_use]
    pub fn because(mut self, reason: impl Into<String>) -> Check {
        self.reason = reason.into();
        self
    }

    /// The same with what to do about it.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Check {
        self.remedy = remedy.into();
        self
    }
}

/// Looks at everything.
pub fn run() -> Vec<Check> {
    let mut found = machine();
    found.extend(cores());
    found.extend(memory_limits());
    found.push(huge_pages());
    found.push(reserved_huge_pages());
    found.extend(kernel());
    let shared = found.iter().all(|check| {
        check.state != CheckState::Unusable || !NEEDED_TO_SHARE.contains(&check.topic)
    });
    found.extend(transports(shared));
    found
}

/// Bytes for people: the largest unit that leaves three digits.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let decimals = if unit == 0 || value >= 100.0 || value.fract() == 0.0 { 0 } else { 1 };
    format!("{value:.decimals$} {}", UNITS[unit])
}

/// The value of a `name : value` line.
fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find_map(|(found, value)| (found.trim() == name).then_some(value.trim()))
}

fn machine() -> Vec<Check> {
    let fact = |topic, value: Option<String>| {
        let value = value.unwrap_or_else(|| "not told by the kernel".to_owned());
        Check::new("machine", topic, CheckState::Fact, value)
    };
    let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = field(&processors, "model name").or_else(|| field(&processors, "CPU part"));
    let link = |path| fs::read_link(path).ok().map(|link| link.display().to_string());
    vec![
        fact("host", setting("/proc/sys/kernel/hostname")),
        fact(
            "kernel",
            setting("/proc/sys/kernel/osrelease").map(|release| format!("Linux {release}")),
        ),
        fact("processor", model.map(str::to_owned)),
        fact("boot id", setting("/proc/sys/kernel/random/boot_id")),
        fact("network namespace", link("/proc/self/ns/net"))
            .because("ranks meet each other inside of one"),
    ]
}

fn cores() -> Vec<Check> {
    let usable = affinity::cores(&affinity::mask());
    let online = setting("/sys/devices/system/cpu/online").unwrap_or_default();
    let affine = usable.len() as u32;
    let binding = std::env::var("GASPI_BIND").ok();
    let bound = binding.as_deref().is_some_and(|binding| binding != "none");
    // A share of the cores is what was asked for.
    let list = affinity::listed(&usable);
    let expected = if bound { list.clone() } else { online.clone() };
    let mut found = vec![usable_cores(affine, limits::cpu_quota(), &list, &expected)];
    let mut nodes: Vec<String> = Vec::new();
    for node in 0.. {
        let Some(list) = setting(&format!("/sys/devices/system/node/node{node}/cpulist")) else {
            break;
        };
        nodes.push(format!("node {node}: cores {list}"));
    }
    if nodes.is_empty() {
        nodes.push(format!("one node: cores {online}"));
    }
    found.push(Check::new("cores", "NUMA nodes", CheckState::Fact, nodes.join("; ")));
    found.push(match binding.as_deref() {
        Some("none") => Check::new("cores", "binding", CheckState::Fact, "none")
            .because("the default of gaspi_run for more ranks than cores, or --bind none"),
        Some(binding) => Check::new("cores", "binding", CheckState::Fact, binding)
            .because("GASPI_BIND, set by gaspi_run"),
        None => Check::new("cores", "binding", CheckState::Fact, "none by gaspi_run")
            .because("GASPI_BIND is not set: gaspi_run did not start this process"),
    });
    found
}

/// Cores of the mask `list` under a quota, where the mask should be `expected`.
fn usable_cores(affine: u32, quota: Option<u32>, list: &str, expected: &str) -> Check {
    let usable = quota.map_or(affine, |quota| affine.min(quota)).max(1);
    let check =
        |state| Check::new("cores", "usable cores", state, format!("{usable}: may run on {list}"));
    match quota {
        Some(quota) if quota < affine => check(CheckState::Limited)
            .because(format!(
                "the control group's quota allows the time of {quota} of {affine} cores; jobs of \
                 more ranks than that yield instead of spinning"
            ))
            .remedy("raise cpu.max (or cpu.cfs_quota_us) of the group, docker: --cpus"),
        _ if list == expected => check(CheckState::Usable),
        _ => check(CheckState::Limited)
            .because(format!("the affinity mask leaves out some of the online cores {expected}"))
            .remedy("widen it with taskset, or ask the batch system for more cores"),
    }
}

fn memory_limits() -> Vec<Check> {
    let mut found = Vec::new();
    if let Some(available) = limits::machine_memory() {
        let value = format!("{} available", bytes(available));
        found.push(Check::new("memory", "machine", CheckState::Usable, value));
    }
    let groups = limits::group_memory();
    if groups.is_empty() {
        let value = "no limit";
        found.push(Check::new("memory", "control group", CheckState::Usable, value));
    }
    for group in groups {
        let (limit, available) = (bytes(group.limit), bytes(group.available));
        let value = format!("limit {limit}, {available} of it available");
        let state = if limits::machine_memory().is_some_and(|free| free <= group.available) {
            CheckState::Usable
        } else {
            CheckState::Limited
        };
        let mut check = Check::new("memory", "control group", state, value)
            .because(format!("{}", group.file.display()));
        if state == CheckState::Limited {
            check = check.remedy("raise it, docker: --memory");
        }
        found.push(check);
    }
    found.push(address_space(allowed(Resource::AddressSpace), limits::addresses()));
    found.push(file_size());
    found.push(locked());
    // Nothing is raised.
    found.push(open_files(limits::raise_open_files(0), limits::open_files()));
    if let Some(most) = limits::mappings_allowed() {
        found.push(mappings(most, limits::mappings()));
    }
    if setting("/proc/sys/vm/overcommit_memory").as_deref() == Some("2") {
        let check = Check::new("memory", "overcommit", CheckState::Limited, "strict");
        found.push(
            check
                .because("vm.overcommit_memory is 2: memory is refused before it is used up")
                .remedy("as root: sysctl vm.overcommit_memory=0"),
        );
    }
    found
}

/// A limit of addresses, of which the program has some.
fn address_space(most: Option<u64>, taken: u64) -> Check {
    let Some(most) = most else {
        return Check::new("memory", "address space", CheckState::Usable, "no limit");
    };
    let groups = Config::default().group_max;
    // Memory for messages of collectives takes a quarter at most.
    let left = (most - most / 4).saturating_sub(taken);
    let ranks = needs::ranks_within(left, |ranks| {
        needs::addresses(ranks, SharedLayout::new(ranks, groups).bytes())
    });
    let value = format!(
        "at most {}, enough for jobs of up to {ranks} ranks of this host without segments",
        bytes(most)
    );
    Check::new("memory", "address space", CheckState::Limited, value)
        .because("own and registered segments of all ranks have to fit beside what init maps")
        .remedy("ulimit -v unlimited")
}

fn file_size() -> Check {
    let topic = "file size";
    match allowed(Resource::FileSize) {
        None => Check::new("memory", topic, CheckState::Usable, "no limit"),
        Some(limit) => {
            let value = format!("at most {}", bytes(limit));
            Check::new("memory", topic, CheckState::Limited, value)
                .because("segments are memory files and cannot be larger")
                .remedy("ulimit -f unlimited")
        }
    }
}

/// The limit of open files and the hard one, up to which init raises it, beside those of the
/// program.
fn open_files((limit, hard): (u64, u64), open: u64) -> Check {
    let config = Config::default();
    let within = |spans_hosts| {
        needs::ranks_within(hard.saturating_sub(open), |ranks| {
            let (is_static, segments) = (config.topology == Topology::Static, config.segment_max);
            let has_nodes = spans_hosts;
            let shape = JobShape { ranks, has_nodes, spans_hosts, is_static, segments };
            Descriptors::of(shape).most
        })
    };
    let (by_tcp, of_host) = (within(true), within(false));
    let raised = match limit < hard {
        true if hard == u64::MAX => ", raised by init as needed".to_owned(),
        true => format!(", raised by init up to {hard}"),
        false => String::new(),
    };
    let value = format!(
        "at most {limit}{raised}: enough for jobs of up to {by_tcp} ranks over TCP, {of_host} of \
         one host"
    );
    if by_tcp >= JOB_RANKS {
        return Check::new("memory", "open files", CheckState::Usable, value);
    }
    Check::new("memory", "open files", CheckState::Limited, value)
        .because("each other rank and each segment takes descriptors in every rank")
        .remedy("raise the hard limit: ulimit -Hn 65536")
}

/// The limit of mappings, beside those of the program.
fn mappings(most: u64, taken: u64) -> Check {
    let segments = Config::default().segment_max;
    let need = |ranks| needs::mappings(ranks, segments);
    let ranks = needs::ranks_within(most.saturating_sub(taken), need);
    let value = format!(
        "at most {most}, enough for {segments} segments of each of up to {ranks} ranks of a host"
    );
    if ranks >= HOST_RANKS {
        return Check::new("memory", "mappings", CheckState::Usable, value);
    }
    let enough = (taken + need(HOST_RANKS)).next_multiple_of(1024);
    Check::new("memory", "mappings", CheckState::Limited, value)
        .because("each segment takes two mappings in each rank of its host that accesses it")
        .remedy(format!("as root: sysctl vm.max_map_count={enough}"))
}

fn locked() -> Check {
    let value = allowed(Resource::LockedMemory)
        .map_or("no limit".to_owned(), |limit| format!("at most {}", bytes(limit)));
    Check::new("memory", "locked memory", CheckState::Fact, value)
        .because("shared memory does not lock any")
}

/// Whether segments of 2 MiB and more get huge pages without a reservation.
pub fn huge_pages() -> Check {
    const DIRECTORY: &str = "/sys/kernel/mm/transparent_hugepage";
    let chosen = |path: String| {
        let text = setting(&path)?;
        let choice = text.split(['[', ']']).nth(1)?;
        Some(choice.to_owned())
    };
    let sized = chosen(format!("{DIRECTORY}/hugepages-2048kB/shmem_enabled"));
    let general = chosen(format!("{DIRECTORY}/shmem_enabled"));
    // "deny" and "force" of the general setting stand above that of the size.
    let decides = match (general.as_deref(), sized.as_deref()) {
        (Some("deny" | "force"), _) | (_, None | Some("inherit")) => general,
        _ => sized,
    };
    transparent(decides.as_deref())
}

fn transparent(shmem_enabled: Option<&str>) -> Check {
    let remedy = "as root: echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let check = |state, value: &str| Check::new("memory", "huge pages", state, value);
    match shmem_enabled {
        Some(choice @ ("always" | "within_size" | "advise" | "force")) => check(
            CheckState::Usable,
            "for segments of 2 MiB and more, as far as memory is in one piece",
        )
        .because(format!("shmem_enabled is {choice}")),
        Some(choice) => check(CheckState::Limited, "none, unless reserved")
            .because(format!(
                "transparent_hugepage/shmem_enabled is {choice}: first touches and random \
                 accesses of large segments are slower"
            ))
            .remedy(remedy),
        None => check(CheckState::Limited, "none, unless reserved")
            .because("this kernel has no transparent huge pages for memory files")
            .remedy("reserve some: see the next row"),
    }
}

/// Whether a reserved huge page can be had, by asking for one.
fn reserved_huge_pages() -> Check {
    let topic = "reserved huge pages";
    let file = memory::create(c"gaspi-survey", HUGE_PAGE, true);
    let mapped = file.as_ref().is_ok_and(|file| Mapping::huge(file.as_fd(), HUGE_PAGE).is_ok());
    let pool = "/sys/kernel/mm/hugepages/hugepages-2048kB";
    let count = |name| setting(&format!("{pool}/{name}")).unwrap_or_else(|| "0".to_owned());
    let value = format!("{} of {} of 2 MiB free", count("free_hugepages"), count("nr_hugepages"));
    if mapped {
        return Check::new("memory", topic, CheckState::Usable, value)
            .because("segments of 2 MiB and more take these first");
    }
    Check::new("memory", topic, CheckState::Limited, value)
        .because("none is free, which costs nothing where transparent ones are usable")
        .remedy("as root: sysctl vm.nr_hugepages=N, N pages of 2 MiB")
}

/// What the shared-memory transport cannot do without.
const NEEDED_TO_SHARE: [&str; 4] = ["sealed memory files", "eventfd", "abstract sockets", "epoll"];

fn kernel() -> Vec<Check> {
    let tried = |topic, value: &str, result: Result<(), String>, remedy: &str| match result {
        Ok(()) => Check::new("kernel", topic, CheckState::Usable, value),
        Err(reason) => Check::new("kernel", topic, CheckState::Unusable, "refused")
            .because(reason)
            .remedy(remedy),
    };
    let sealed = memory::create(c"gaspi-survey", memory::PAGE, false)
        .and_then(|file| memory::check_sealed(file.as_fd(), memory::PAGE));
    let profile = "allow it in the container's seccomp profile";
    let in_words = |error: crate::Error| error.to_string();
    vec![
        tried("sealed memory files", "memfd_create", sealed.map_err(in_words), profile),
        tried("eventfd", "yes", Wakeup::new().map(drop).map_err(in_words), profile),
        tried("epoll", "yes", crate::os::event::Epoll::new().map(drop).map_err(in_words), profile),
        tried("abstract sockets", "found and connected", connected(), profile),
        watched(),
        fences(membarrier::is_offered()),
        copies(cross_memory::probe()),
    ]
}

/// Whether ranks would find each other: listens under a name and connects to it.
fn connected() -> Result<(), String> {
    let mut number = [0u8; 8];
    getrandom::fill(&mut number).map_err(|error| error.to_string())?;
    let name = format!("gaspi-survey-{:016x}", u64::from_ne_bytes(number));
    let listener = socket::listen(&name).map_err(|error| error.to_string())?;
    let client = socket::connect(&name).map_err(|error| error.to_string())?;
    let who = socket::credentials(client.as_fd()).map_err(|error| error.to_string())?;
    drop(listener);
    if who.uid == socket::own_uid() {
        return Ok(());
    }
    Err(format!("the kernel says that this process belongs to user {}", who.uid))
}

fn watched() -> Check {
    let own = std::process::id().cast_signed();
    match process::open(own, process::start_time(own).unwrap_or(0)) {
        Ok(Some(_)) => Check::new("kernel", "pidfd", CheckState::Usable, "yes")
            .because("the death of a rank is known at once"),
        refused => {
            let reason = match refused {
                Err(error) => error.to_string(),
                Ok(_) => "/proc does not show this process as the kernel does".to_owned(),
            };
            Check::new("kernel", "pidfd", CheckState::Limited, "refused")
                .because(format!("{reason}: deaths are noticed by looking, within 200 ms"))
                .remedy("Linux 5.3 or later, and pidfd_open allowed by the seccomp profile")
        }
    }
}

fn fences(offered: bool) -> Check {
    if offered {
        return Check::new("kernel", "membarrier", CheckState::Usable, "global expedited")
            .because("a notification needs no fence");
    }
    Check::new("kernel", "membarrier", CheckState::Limited, "refused")
        .because("each notification and each write costs a full fence, about 10 to 40 ns")
        .remedy("Linux 4.16 or later, and membarrier allowed by the seccomp profile")
}

fn copies(probed: std::io::Result<()>) -> Check {
    let topic = "cross-memory attach";
    match probed {
        Ok(()) => {
            Check::new("kernel", topic, CheckState::Usable, "process_vm_readv reads a sibling")
        }
        Err(error) => {
            let (reason, remedy) = cross_memory::refusal(&error);
            Check::new("kernel", topic, CheckState::Limited, "refused")
                .because(format!("{reason}: memory given by bind and use is copied by its owner"))
                .remedy(remedy)
        }
    }
}

fn transports(shared: bool) -> Vec<Check> {
    let shared = if shared {
        Check::new("transports", "shared memory", CheckState::Usable, "ranks of one host").because(
            "memory files and sockets work; /dev/shm is not used, its size does not matter",
        )
    } else {
        Check::new("transports", "shared memory", CheckState::Unusable, "only jobs of one rank")
            .because("a row of the kernel above is not usable")
            .remedy("see there")
    };
    vec![shared, tcp()]
}

/// Where a rank would listen for ranks of other hosts; listening is tried.
fn tcp() -> Check {
    let listening = Restrictions::from_environment().and_then(|restrictions| {
        addresses::listen(&interfaces::list(), &restrictions, Audience::OtherHosts)
    });
    match listening {
        Ok(listening) => {
            let offered: Vec<String> =
                listening.endpoints.iter().map(|endpoint| endpoint.ip().to_string()).collect();
            let value = format!("offers {} to other hosts", offered.join(", "));
            Check::new("transports", "TCP", CheckState::Usable, value)
                .because("GASPI_INTERFACE, GASPI_SUBNET and GASPI_PORT_RANGE restrict it")
        }
        Err(error) => {
            Check::new("transports", "TCP", CheckState::Limited, "only ranks of this host")
                .because(error.to_string())
                .remedy("an interface that is up and has an address, or other restrictions")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_looked_at_and_what_is_not_usable_says_why() {
        let found = run();
        for area in ["machine", "cores", "memory", "kernel", "transports"] {
            assert!(found.iter().any(|check| check.area == area), "nothing about {area}");
        }
        for check in &found {
            assert!(!check.value.is_empty(), "{check:?}");
            if matches!(check.state, CheckState::Limited | CheckState::Unusable) {
                assert!(!check.reason.is_empty() && !check.remedy.is_empty(), "{check:?}");
            }
        }
        // This test runs where the library does.
        let shared = found.iter().find(|check| check.topic == "shared memory");
        assert_eq!(shared.map(|check| check.state), Some(CheckState::Usable), "{found:#?}");
    }

    #[test]
    fn cores_are_what_mask_and_quota_leave() {
        assert_eq!(usable_cores(4, None, "0-3", "0-3").state, CheckState::Usable);
        let masked = usable_cores(2, None, "0-1", "0-3");
        assert_eq!((masked.state, masked.reason.contains("affinity")), (CheckState::Limited, true));
        let throttled = usable_cores(4, Some(2), "0-3", "0-3");
        assert!(throttled.value.starts_with("2:") && throttled.reason.contains("quota"));
        assert!(usable_cores(2, Some(8), "0-1", "0-1").value.starts_with("2:"));
    }

    #[test]
    fn huge_pages_depend_on_the_setting_for_shared_memory() {
        for choice in ["always", "within_size", "advise", "force"] {
            assert_eq!(transparent(Some(choice)).state, CheckState::Usable, "{choice}");
        }
        for choice in [Some("never"), Some("deny"), None] {
            assert_eq!(transparent(choice).state, CheckState::Limited, "{choice:?}");
        }
        assert!(transparent(Some("never")).remedy.contains("echo advise"));
    }

    #[test]
    fn limits_say_for_which_jobs_they_are_enough() {
        let few = open_files((1024, 1024), 4);
        // 255 segments, 32 to spare, 12 and 3 and log2 of the ranks of its own, 4 for each other.
        assert!(few.value.contains("at most 1024: enough for jobs of up to 178 ranks over TCP"));
        assert_eq!(few.state, CheckState::Limited);
        let raised = open_files((1024, 4096), 4);
        assert!(raised.value.contains("at most 1024, raised by init up to 4096:"), "{raised:?}");
        assert_eq!(raised.state, CheckState::Usable);
        let all = open_files((1024, u64::MAX), 4);
        assert!(all.value.contains("65535 ranks over TCP, 65535 of one host"), "{all:?}");

        let usual = mappings(65_530, 100);
        assert!(usual.value.ends_with("255 segments of each of up to 127 ranks of a host"));
        assert_eq!(usual.state, CheckState::Usable);
        let few = mappings(10_000, 100);
        assert!(few.value.contains("up to 19 ranks") && few.state == CheckState::Limited);
        assert_eq!(few.remedy, "as root: sysctl vm.max_map_count=33792");

        assert_eq!(address_space(None, 0).value, "no limit");
        let need = |ranks| needs::addresses(ranks, SharedLayout::new(ranks, 32).bytes());
        let one = need(1);
        assert!(address_space(Some(one), one).value.contains("up to 0 ranks"));
        // Three quarters of what there is beside the program.
        let hundred = need(100).div_ceil(3) * 4;
        let held = address_space(Some(hundred), 0).value;
        assert!(held.contains("up to 100 ranks of this host"), "{held}");
    }

    #[test]
    fn refusals_are_told_with_their_consequence() {
        let refused = copies(Err(std::io::Error::from_raw_os_error(libc::EPERM)));
        assert_eq!(refused.state, CheckState::Limited);
        assert!(refused.reason.contains("copied by its owner"), "{refused:?}");
        assert_eq!(fences(false).state, CheckState::Limited);
        assert_eq!(transports(false)[0].state, CheckState::Unusable);
    }

    #[test]
    fn sizes_and_fields_read_well() {
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(24 << 30), "24 GiB");
        assert_eq!(field("a : b\nmodel name\t: X\n", "model name"), Some("X"));
    }
}
