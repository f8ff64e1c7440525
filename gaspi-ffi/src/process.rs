//! Start, end and ranks (GASPI 17.1, 5).

use crate::error::{Failure, Outcome};
use crate::lifecycle::lifecycle;
use crate::runtime::{self, timeout};
use crate::types::*;
use crate::{clock, config, logging, printf, statistics, topology};
use gaspi_core::os::{affinity, cancel, process};
use gaspi_core::{Error, Job, Link, PendingInit, Rank, Runtime, State, Timeout};
use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn joining(timeout: Timeout) -> Result<PendingInit, Failure> {
    logging::check()?;
    statistics::check()?;
    topology::check()?;
    gaspi_collectives::check_environment()?;
    let job = Job::from_environment_within(timeout)?;
    // Errors from here on name the rank.
    let host =
        job.hosts.get(job.rank.index()).map_or_else(process::host_name, |host| host.to_string());
    logging::identify(Some((job.rank.0, host)));
    topology::bind_as_launched();
    Ok(PendingInit::new(job, config::for_core()?)?)
}

/// The transports of this rank, for `net_info`.
fn transports(runtime: &Runtime) -> String {
    let (rank, host) = (runtime.rank().0, runtime.host());
    let (ranks, local) = (runtime.size(), runtime.local_size());
    let mut text =
        format!("[{rank} {host}] transport to the {local} ranks of this host: shared memory\n");
    for port in runtime.rdma_ports() {
        let _ = writeln!(text, "[{rank} {host}] RDMA device {port}");
    }
    for other in (0..ranks).map(|rank| Rank(rank as u16)) {
        let link = runtime.link(other).map(|link| match link {
            Link::Tcp => Some("tcp"),
            Link::Verbs => Some("verbs, beside tcp"),
            _ => None,
        });
        if let (Ok(Some(link)), Ok(there)) = (link, runtime.host_of(other)) {
            let way = match runtime.address_of(other) {
                Ok(Some(address)) => format!("connected to {address}"),
                _ => "connected on first use".to_owned(),
            };
            let _ =
                writeln!(text, "[{rank} {host}] transport to {other} on {there}: {link}, {way}");
        }
    }
    text
}

/// How ranks of other nodes are reached.
fn way_to_others(runtime: &Runtime) -> &'static str {
    if runtime.local_size() == runtime.size() {
        ""
    } else if runtime.rdma_ports().is_empty() {
        ", the others by TCP"
    } else {
        ", the others by RDMA devices where they have one, or by TCP"
    }
}

/// A description of this rank, for the log.
fn introduction(runtime: &Runtime) -> String {
    let (ranks, local) = (runtime.size(), runtime.local_size());
    let binding = match std::env::var("GASPI_BIND") {
        Ok(binding) => format!("GASPI_BIND is {binding}"),
        Err(_) => "not bound by gaspi_run".to_owned(),
    };
    format!(
        "rank {} of {ranks}, gaspi {}; {local} of {ranks} ranks by shared memory{}; a wait {}; \
         runs on cores {}, {binding}",
        runtime.rank().0,
        env!("CARGO_PKG_VERSION"),
        way_to_others(runtime),
        runtime.waiting_mode(),
        affinity::listed(&topology::usable_cores()),
    )
}

/// What is left of a timeout.
fn left_of(timeout: Timeout, taken: Duration) -> Timeout {
    match timeout {
        Timeout::Millis(ms) => {
            Timeout::Millis(ms.saturating_sub(u64::try_from(taken.as_millis()).unwrap_or(u64::MAX)))
        }
        other => other,
    }
}

/// Starts, or continues the start that `pending` keeps over a timeout.
fn start(pending: &mut Option<PendingInit>, timeout: Timeout) -> Outcome {
    let began = Instant::now();
    let mut start = match pending.take() {
        Some(start) => start,
        None => joining(timeout)?,
    };
    match start.wait(left_of(timeout, began.elapsed())) {
        Ok(runtime) => {
            log::info!("gaspi_proc_init: {}", introduction(&runtime));
            if runtime.config().net_info {
                printf::print(&transports(&runtime));
            }
            runtime::publish(Arc::new(runtime));
            Ok(())
        }
        Err(error @ Error::Timeout { .. }) => {
            *pending = Some(start);
            Err(error.into())
        }
        Err(error) => Err(error.into()),
    }
}

procedures! {
    /// GASPI.h: joins the job.
    fn proc_init(milliseconds: gaspi_timeout_t) {
        let _uncancelled = cancel::hold_off();
        runtime::refuse_fork()?;
        logging::level();
        let mut pending = lifecycle()?;
        if runtime::is_present() {
            return Err(Failure::Initialised);
        }
        clock::start();
        runtime::watch_forks();
        runtime::engage(true);
        let outcome = start(&mut pending, timeout(milliseconds));
        runtime::engage(outcome.is_ok() || pending.is_some());
        outcome
    }

    /// GASPI.h: leaves the job.
    fn proc_term(milliseconds: gaspi_timeout_t) {
        let _uncancelled = cancel::hold_off();
        runtime::refuse_fork()?;
        gaspi_core::outside_callback("proc_term")?;
        let mut pending = lifecycle()?;
        if pending.take().is_some() {
            // A gaspi_proc_init that timed out is given up.
            runtime::engage(false);
            logging::identify(None);
            return Ok(());
        }
        let runtime = runtime::unlink()?;
        let counted = statistics::asked_for().then(|| statistics::summary(&runtime));
        match runtime.term(timeout(milliseconds)) {
            Err(error @ Error::Timeout { .. }) => {
                runtime::publish(runtime);
                Err(error.into())
            }
            // The rank has left, whether or not an error occurred.
            outcome => {
                runtime::retire(runtime);
                runtime::engage(false);
                log::info!("gaspi_proc_term: has left the job");
                logging::lines(&counted.unwrap_or_default());
                logging::settle();
                logging::identify(None);
                Ok(outcome?)
            }
        }
    }

    /// GASPI_Ext.h: whether the process is part of a job; a forked child is not.
    fn initialized(initialized: *mut gaspi_number_t) {
        out!(initialized).give(runtime::is_present().into())
    }

    /// GASPI.h: the rank of this process.
    fn proc_rank(rank: *mut gaspi_rank_t) with rt {
        out!(rank).give(rt.rank().0)
    }

    /// GASPI.h: the number of ranks.
    fn proc_num(proc_num: *mut gaspi_rank_t) with rt {
        out!(proc_num).give(gaspi_rank_t::try_from(rt.size()).unwrap_or(gaspi_rank_t::MAX))
    }

    /// GASPI_Ext.h: the rank among those of its host.
    fn proc_local_rank(local_rank: *mut gaspi_rank_t) with rt {
        out!(local_rank).give(rt.local_rank())
    }

    /// GASPI_Ext.h: the number of ranks of this host.
    fn proc_local_num(local_num: *mut gaspi_rank_t) with rt {
        let ranks = gaspi_rank_t::try_from(rt.host_size()).unwrap_or(gaspi_rank_t::MAX);
        out!(local_num).give(ranks)
    }

    /// GASPI.h: ends another rank.
    fn proc_kill(rank: gaspi_rank_t, milliseconds: gaspi_timeout_t) holding rt {
        Ok(rt.kill(Rank(rank), timeout(milliseconds))?)
    }

    /// GASPI_Ext.h: asks another rank's library for a sign of life.
    fn proc_ping(rank: gaspi_rank_t, milliseconds: gaspi_timeout_t) holding rt {
        Ok(rt.ping(Rank(rank), timeout(milliseconds))?)
    }

    /// GASPI.h: makes the connection to another rank.
    fn connect(rank: gaspi_rank_t, milliseconds: gaspi_timeout_t) holding rt {
        Ok(rt.connect(Rank(rank), timeout(milliseconds))?)
    }

    /// GASPI.h: gives the connection to another rank up.
    fn disconnect(rank: gaspi_rank_t, milliseconds: gaspi_timeout_t) holding rt {
        Ok(rt.disconnect(Rank(rank), timeout(milliseconds))?)
    }

    /// GASPI.h: one state per rank.
    fn state_vec_get(state_vector: gaspi_state_vector_t) with rt {
        let mut states = Vec::with_capacity(rt.size() as usize);
        let out = out!(state_vector);
        rt.state_vector(|_, state| {
            states.push(match state {
                State::Healthy => GASPI_STATE_HEALTHY,
                State::Corrupt => GASPI_STATE_CORRUPT,
            });
        });
        out.fill(states);
        Ok(())
    }

    /// GASPI.h: the topology in use.
    fn build_infrastructure(build_infrastructure: *mut gaspi_number_t) with rt {
        out!(build_infrastructure).give(rt.build_infrastructure())
    }
}
