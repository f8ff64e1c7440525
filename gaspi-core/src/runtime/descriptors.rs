//! The limit of open files: whether a rank has the descriptors that it
//! [needs](crate::policy::needs).

use super::Inner;
use crate::bootstrap::{Job, report_unable};
use crate::config::{Config, Topology};
use crate::error::{Error, Result};
use crate::os::limits;
use crate::policy::needs::{Descriptors, JobShape, LOCAL_CONNECTIONS, REMOTE_PEER, SPARE};

/// What `job` needs.
fn need(job: &Job, config: &Config) -> Descriptors {
    Descriptors::of(JobShape {
        ranks: job.size,
        has_nodes: job.transport.separates(),
        spans_hosts: job.spans_hosts,
        is_static: config.topology == Topology::Static,
        segments: config.segment_max,
    })
}

/// Raises the limit of open files as far as `job` may need it. Where the least is not to be had,
/// the other ranks are told.
///
/// # Errors
/// [`Error::TooManyFiles`] with the need and the limit.
pub(super) fn prepare(job: &Job, config: &Config) -> Result<()> {
    let need = need(job, config);
    let open = limits::open_files();
    let (limit, hard) = limits::raise_open_files(open + need.most);
    let (rank, size) = (job.rank, job.size);
    let least = open + need.least;
    if least > limit {
        let call = format!(
            "{rank} needs {least} open files for {size} ranks, the limit is {limit} (hard limit \
             {hard})"
        );
        let error = Error::TooManyFiles { call: call.into() };
        report_unable(job, &error);
        return Err(error);
    }
    let most = open + need.most;
    if most > limit {
        // Few programs make so many segments.
        let connected = most - u64::from(config.segment_max) <= limit;
        let level = if connected { log::Level::Info } else { log::Level::Warn };
        log::log!(
            level,
            "proc_init: {rank} may need up to {most} open files for {size} ranks and {} \
             segments, the limit is {limit} (hard limit {hard}); raise it with ulimit -n",
            config.segment_max
        );
    }
    Ok(())
}

impl Inner {
    /// How many pidfds leave descriptors for all connections.
    pub(crate) fn affordable_pidfds(&self) -> u64 {
        let Some(limit) = limits::allowed(limits::Resource::OpenFiles) else { return u64::MAX };
        let locals = self.ranks.area.locals().len() as u64 - 1;
        let remotes = u64::from(self.ranks.size) - 1 - locals;
        let connections = LOCAL_CONNECTIONS * locals + REMOTE_PEER * remotes;
        limit.saturating_sub(limits::open_files() + connections + SPARE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::Transport;
    use crate::ids::Rank;

    #[test]
    fn the_transport_and_the_hosts_of_a_job_decide() {
        let most = |transport, spans_hosts| {
            let job = Job { transport, spans_hosts, ..Job::in_process("need", Rank(0), 512) };
            need(&job, &Config::default()).most
        };
        let (local, tcp) = (most(Transport::Auto, false), most(Transport::Tcp, false));
        let hosts = most(Transport::Auto, true);
        assert!(local < tcp && tcp < hosts, "{local} {tcp} {hosts}");
    }
}
