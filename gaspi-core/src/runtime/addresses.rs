//! The limits of address space and of mappings: whether a rank has what its start
//! [needs](crate::policy::needs). All of it is known before the others meet, but for how many ranks
//! are of this host where no launcher has told their hosts.

use crate::bootstrap::{Job, report_unable};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::os::limits::{self, Resource};
use crate::policy::needs;
use crate::wire::shared_layout::SharedLayout;

/// What a process may have, and has already.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// Bytes of address space, where there is a limit.
    addresses: Option<u64>,
    addresses_taken: u64,
    /// Mappings, where the kernel tells.
    mappings: Option<u64>,
    mappings_taken: u64,
}

impl Limits {
    fn of_this_process() -> Limits {
        Limits {
            addresses: limits::allowed(Resource::AddressSpace),
            addresses_taken: limits::addresses(),
            mappings: limits::mappings_allowed(),
            mappings_taken: limits::mappings(),
        }
    }

    /// Why `job` cannot start within them.
    fn lack(self, job: &Job, config: &Config) -> Option<Error> {
        let (size, locals) = (job.size, locals(job));
        let call = format!("starting {}", job.rank);
        let layout = SharedLayout::new(size, config.group_max).of_node(locals);
        let need = needs::addresses(size, layout.bytes());
        if let Some(limit) = self.addresses
            && self.addresses_taken.saturating_add(need) > limit
        {
            let (taken, all) = (kib(self.addresses_taken), kib(self.addresses_taken + need));
            let reason = format!(
                "it needs {} KiB of addresses for {size} ranks, {locals} of them in its shared \
                 memory, beside {taken} KiB of its program; the limit is {} KiB: raise it with \
                 ulimit -v to {all} or more",
                kib(need),
                limit >> 10,
            );
            return Some(Error::System { call, reason });
        }
        let need = self.mappings_taken + needs::mappings(0, 0);
        if let Some(limit) = self.mappings
            && need > limit
        {
            let reason = format!(
                "it needs {need} mappings, those of its program included; the limit \
                 is {limit}: as root sysctl vm.max_map_count={}",
                need.max(65_530),
            );
            return Some(Error::System { call, reason });
        }
        None
    }
}

/// Rounded up.
fn kib(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 10)
}

/// How many ranks this one shares memory with, as far as is known.
fn locals(job: &Job) -> u32 {
    if job.transport.separates() || job.node.is_some() {
        return 1;
    }
    if !job.spans_hosts {
        return job.size;
    }
    let Some(own) = job.hosts.get(job.rank.index()) else { return 1 };
    job.hosts.iter().filter(|host| *host == own).count() as u32
}

/// Demands that what the start of `job` maps fits; if not, the other ranks are told.
///
/// # Errors
/// [`Error::System`] with the need, the limit and the remedy.
pub(super) fn check(job: &Job, config: &Config) -> Result<()> {
    let Some(error) = Limits::of_this_process().lack(job, config) else { return Ok(()) };
    report_unable(job, &error);
    Err(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Rank;

    const LARGE: Limits = Limits {
        addresses: Some(1 << 40),
        addresses_taken: 1 << 20,
        mappings: Some(65_530),
        mappings_taken: 50,
    };

    #[test]
    fn an_error_names_the_need_the_limit_and_the_remedy() {
        let (job, config) = (Job::in_process("lack", Rank(3), 64), Config::default());
        let lack = |limits: Limits| Some(limits.lack(&job, &config)?.to_string());
        assert_eq!(lack(LARGE), None);
        let need = needs::addresses(64, SharedLayout::new(64, config.group_max).bytes());
        let enough = LARGE.addresses_taken + need;
        assert_eq!(lack(Limits { addresses: Some(enough), ..LARGE }), None);
        let text = lack(Limits { addresses: Some(enough - 1), ..LARGE }).unwrap_or_default();
        let remedy = format!("ulimit -v to {} or more", enough.div_ceil(1024));
        assert!(text.contains("rank 3") && text.ends_with(&remedy), "{text}");
        assert_eq!(lack(Limits { addresses: None, ..LARGE }), None);

        assert_eq!(lack(Limits { mappings: Some(66), ..LARGE }), None);
        let text = lack(Limits { mappings: Some(65), ..LARGE }).unwrap_or_default();
        assert!(text.contains("66 mappings") && text.contains("vm.max_map_count=65530"), "{text}");
    }

    #[test]
    fn ranks_of_other_hosts_and_nodes_take_little() {
        let on = |hosts: &[&str]| Job {
            hosts: hosts.iter().map(|host| (*host).into()).collect(),
            spans_hosts: true,
            ..Job::in_process("lack", Rank(0), 4)
        };
        assert_eq!(locals(&Job::in_process("lack", Rank(0), 4)), 4);
        assert_eq!(locals(&on(&["a", "b", "a", "b"])), 2);
        assert_eq!(locals(&on(&[])), 1);
        let transport = crate::bootstrap::Transport::Tcp;
        assert_eq!(locals(&Job { transport, ..on(&["a"; 4]) }), 1);
    }
}
