//! Cores and NUMA nodes: which there are, which may be used, and binding to them.

use crate::error::Failure;
use crate::printf;
use crate::switch;
use crate::types::*;
use gaspi_core::os::{affinity, cancel};

/// The cores of a NUMA node, none if there is no such node.
fn node_cores(node: u32) -> Option<Vec<usize>> {
    let path = format!("/sys/devices/system/node/node{node}/cpulist");
    match std::fs::read_to_string(path) {
        Ok(list) => parse_list(&list),
        // A kernel without NUMA: the whole machine is node 0.
        Err(_) if node == 0 && !std::path::Path::new("/sys/devices/system/node").exists() => {
            Some((0..libc::CPU_SETSIZE as usize).collect())
        }
        Err(_) => None,
    }
}

/// A list as the kernel prints it: `0-3,8,10-11`.
fn parse_list(text: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        numbers.extend(first..=last);
    }
    Some(numbers)
}

/// The cores that the calling thread may run on.
pub(crate) fn usable_cores() -> Vec<usize> {
    affinity::cores(&affinity::mask())
}

/// Binds the calling thread to those cores of a node that it may use.
fn bind(node: u32) -> Result<(), String> {
    let cores = node_cores(node).ok_or_else(|| format!("there is no NUMA node {node}"))?;
    let usable = usable_cores();
    let mut mask = vec![0u64; usable.last().map_or(1, |last| last / 64 + 1)];
    let mut any = false;
    for core in usable.into_iter().filter(|core| cores.contains(core)) {
        mask[core / 64] |= 1 << (core % 64);
        any = true;
    }
    if !any {
        return Err(format!("this process may not use any core of NUMA node {node}"));
    }
    // SAFETY: the kernel reads the stated bytes of the mask.
    let failed =
        unsafe { libc::syscall(libc::SYS_sched_setaffinity, 0, mask.len() * 8, mask.as_ptr()) };
    match failed {
        0 => Ok(()),
        _ => Err(format!("binding to NUMA node {node}: {}", std::io::Error::last_os_error())),
    }
}

/// The variable that asks a rank to bind itself.
const VARIABLE: &str = "GASPI_SET_NUMA_SOCKET";

/// Whether what it says can be understood.
///
/// # Errors
/// [`gaspi_core::Error::Environment`] says what is possible.
pub(crate) fn check() -> Result<(), gaspi_core::Error> {
    switch::is_on(VARIABLE).map(|_| ())
}

/// The node that the launcher gave to this rank, if it was asked to bind.
fn launched_for() -> Option<u32> {
    switch::is_on(VARIABLE).unwrap_or(false).then_some(())?;
    std::env::var("GASPI_SOCKET").ok()?.trim().parse().ok()
}

/// Does what `GASPI_SET_NUMA_SOCKET=1` asks for. Called before the first thread of the library
/// starts and the first page is touched, so that both end up there.
pub(crate) fn bind_as_launched() {
    if let Some(node) = launched_for()
        && let Err(reason) = bind(node)
    {
        log::warn!(
            "gaspi_proc_init: GASPI_SET_NUMA_SOCKET is set, but {reason}, so that the rank runs \
             unbound; start it by gaspi_run --bind numa"
        );
    }
}

procedures! {
    /// GASPI_Ext.h: the NUMA node that this rank was started for.
    fn numa_socket(socket: *mut gaspi_uchar) {
        let _uncancelled = cancel::hold_off();
        let out = out!(socket);
        let node = launched_for().and_then(|node| gaspi_uchar::try_from(node).ok());
        let node = node.ok_or_else(|| {
            Failure::Rejected(
                "the job was not started with binding to NUMA nodes; use gaspi_run -N".to_owned(),
            )
        })?;
        out.set(node);
        Ok(())
    }

    /// GASPI_Ext.h: binds the calling thread to a NUMA node.
    fn set_socket_affinity(socket: gaspi_uchar) {
        let _uncancelled = cancel::hold_off();
        crate::runtime::refuse_fork()?;
        bind(socket.into()).map_err(Failure::Rejected)
    }
}

plain_procedures! {
    /// GASPI_Ext.h: prints the cores that the calling thread may run on.
    fn print_affinity_mask() -> () {
        let cores = usable_cores();
        let list = affinity::listed(&cores);
        let text = format!("may run on cores {list} ({} of them)\n", cores.len());
        printf::deliver("print_affinity_mask", 0, text.as_bytes());
    } else ();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores() {
        assert_eq!(parse_list("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(parse_list("\n"), Some(vec![]));
        assert_eq!(parse_list("0-x"), None);
    }

    #[test]
    fn binding_to_a_node_that_is_not_there_says_so() {
        assert_eq!(bind(250), Err("there is no NUMA node 250".to_owned()));
    }

    #[test]
    fn binding_to_node_0_leaves_its_cores() {
        std::thread::spawn(|| {
            let before = usable_cores();
            bind(0).unwrap();
            let after = usable_cores();
            assert!(!after.is_empty() && after.iter().all(|core| before.contains(core)));
        })
        .join()
        .unwrap();
    }
}
