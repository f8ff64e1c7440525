//! torchrun (torch.distributed): RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR. MASTER_PORT is taken by
//! its own store, so the hosts meet at ports that derive from the job.

use super::{Launcher, Task, local_rank, over_hosts};
use crate::bootstrap::addresses::Audience;
use crate::bootstrap::job::{HubLocation, Job, ServerLocation, derived_name};
use crate::bootstrap::variables::{Variables, wrong};
use crate::error::Result;
use crate::timeout::Deadline;

pub(super) struct Torchrun;

impl Launcher for Torchrun {
    fn name(&self) -> &'static str {
        "torchrun"
    }

    fn variables(&self) -> &'static [&'static str] {
        &[
            "RANK",
            "WORLD_SIZE",
            "LOCAL_RANK",
            "LOCAL_WORLD_SIZE",
            "GROUP_RANK",
            "MASTER_ADDR",
            "MASTER_PORT",
            "TORCHELASTIC_RUN_ID",
            "TORCHELASTIC_RESTART_COUNT",
        ]
    }

    fn task(&self, variables: &Variables<'_>) -> Result<Option<Task>> {
        let is_set = |name| variables.raw(name).is_some();
        let rank_and_size = is_set("RANK") && is_set("WORLD_SIZE");
        // One of these names alone may mean anything.
        if !rank_and_size && !is_set("TORCHELASTIC_RUN_ID") && !is_of_group(variables) {
            return Ok(None);
        }
        match (variables.number("RANK")?, variables.number("WORLD_SIZE")?) {
            (Some(rank), Some(size)) => Task::new(("RANK", rank), ("WORLD_SIZE", size)).map(Some),
            _ => incomplete(variables, "RANK and WORLD_SIZE"),
        }
    }

    fn job(&self, variables: &Variables<'_>, task: Task, _: Deadline) -> Result<Job> {
        let mut job = task.job();
        if job.size == 1 {
            return Ok(job);
        }
        job.local_rank = local_rank(variables, "LOCAL_RANK", job.local_rank)?;
        let part = |name| -> Result<String> { Ok(variables.text(name)?.unwrap_or_default()) };
        let run = part("TORCHELASTIC_RUN_ID")?;
        let (host, port) = (part("MASTER_ADDR")?, part("MASTER_PORT")?);
        job.id = format!("torchrun-{run}-{port}");
        let one_host = variables.number("LOCAL_WORLD_SIZE")? == Some(job.size.into());
        if one_host {
            // A restart is another job: what is left of the one before must not be met. On several
            // hosts each agent counts the failures of its own ranks only, so that counts differ.
            // But agents end their ranks before they agree on the next start.
            job.id = format!("{}-{}", job.id, part("TORCHELASTIC_RESTART_COUNT")?);
        }
        let name = derived_name(format!("{} {host} {}", job.id, job.size).as_bytes());
        if one_host {
            job.server = ServerLocation::FirstRank(name);
            return Ok(job);
        }
        if host.is_empty() {
            return incomplete(variables, "MASTER_ADDR");
        }
        let hub = HubLocation {
            here: variables.machine().is(&host),
            host,
            port: None,
            audience: Audience::OtherHosts,
            key: None,
            munge: false,
            addresses: Vec::new(),
        };
        job.server = ServerLocation::OverHosts { name, hub };
        Ok(over_hosts(job))
    }
}

/// Whether this is a process of a group of several, as torchrun says without a name of the run.
fn is_of_group(variables: &Variables<'_>) -> bool {
    let names = ["GROUP_RANK", "MASTER_ADDR"];
    let several = variables.number("WORLD_SIZE").is_ok_and(|size| size > Some(1));
    several && variables.set(&names).len() == names.len()
}

fn incomplete<T>(variables: &Variables<'_>, absent: &str) -> Result<T> {
    wrong(format!(
        "{} are set as torchrun does, but not {absent}, so the ranks cannot meet; start them by \
         torchrun or with gaspi_run, or set GASPI_LAUNCHER=single for a job of one rank",
        variables.set(Torchrun.variables()).join(", ")
    ))
}
