//! Slurm without a PMI: `srun --mpi=none`, or a default of none. The ranks of a step meet on its
//! first host.

use super::{Launcher, Task, local_rank, over_hosts};
use crate::bootstrap::addresses::Audience;
use crate::bootstrap::job::{HubLocation, Job, ServerLocation, derived_name};
use crate::bootstrap::node_list;
use crate::bootstrap::variables::{Variables, wrong};
use crate::error::Result;
use crate::timeout::Deadline;

pub(super) struct Slurm;

impl Launcher for Slurm {
    fn name(&self) -> &'static str {
        "slurm"
    }

    fn variables(&self) -> &'static [&'static str] {
        &[
            "SLURM_JOB_ID",
            "SLURM_STEP_ID",
            "SLURM_PROCID",
            "SLURM_STEP_NUM_TASKS",
            "SLURM_NTASKS",
            "SLURM_STEP_NUM_NODES",
            "SLURM_STEP_NODELIST",
            "SLURM_LOCALID",
        ]
    }

    fn task(&self, variables: &Variables<'_>) -> Result<Option<Task>> {
        // The script of a batch job, and the shell of an allocation, belong to no step.
        if !is_step(variables) {
            return without_rank(variables);
        }
        let size = match variables.number("SLURM_STEP_NUM_TASKS")? {
            Some(size) => ("SLURM_STEP_NUM_TASKS", Some(size)),
            None => ("SLURM_NTASKS", variables.number("SLURM_NTASKS")?),
        };
        let (Some(rank), (name, Some(size))) = (variables.number("SLURM_PROCID")?, size) else {
            return incomplete(variables, "SLURM_PROCID and SLURM_STEP_NUM_TASKS");
        };
        Task::new(("SLURM_PROCID", rank), (name, size)).map(Some)
    }

    /// A step may have tasks of several components of a job, which PMIx counts together.
    fn may_count_a_part(&self, variables: &Variables<'_>) -> bool {
        let components = |name| variables.number(name).ok().flatten();
        // Before Slurm 20.02 it had the second name.
        ["SLURM_HET_SIZE", "SLURM_PACK_SIZE"].into_iter().filter_map(components).any(|n| n > 1)
    }

    fn job(&self, variables: &Variables<'_>, task: Task, _: Deadline) -> Result<Job> {
        let mut job = task.job();
        if job.size == 1 {
            return Ok(job);
        }
        let Some(id) = step(variables)? else {
            return incomplete(variables, "SLURM_JOB_ID and SLURM_STEP_ID");
        };
        job.id = id;
        job.local_rank = local_rank(variables, "SLURM_LOCALID", job.local_rank)?;
        let name = derived_name(job.id.as_bytes());
        if variables.number("SLURM_STEP_NUM_NODES")? == Some(1) {
            job.server = ServerLocation::FirstRank(name);
            return Ok(job);
        }
        let Some(list) = variables.long_text("SLURM_STEP_NODELIST")? else {
            return incomplete(variables, "SLURM_STEP_NODELIST");
        };
        let host = match node_list::first_host(&list) {
            Ok(host) => host,
            Err(reason) => {
                let shown: String = list.chars().take(60).collect();
                return wrong(format!("SLURM_STEP_NODELIST is {shown:?}: {reason}"));
            }
        };
        // Slurm may call a host otherwise than the host calls itself.
        let here = match variables.text("SLURMD_NODENAME")? {
            Some(own) => own == host,
            None => variables.machine().is(&host),
        };
        let hub = HubLocation {
            host,
            port: None,
            here,
            audience: Audience::OtherHosts,
            key: None,
            munge: true,
            addresses: Vec::new(),
        };
        job.server = ServerLocation::OverHosts { name, hub };
        Ok(over_hosts(job))
    }
}

/// The lowest number that Slurm has for steps that srun did not start: the script of a batch job,
/// an interactive shell, and others.
const SPECIAL_STEP: u64 = 0xffff_fff0;

/// Whether this process was started by srun.
pub(super) fn is_step(variables: &Variables<'_>) -> bool {
    is_within_step(variables) && variables.raw("SLURM_PROCID").is_some()
}

fn is_within_step(variables: &Variables<'_>) -> bool {
    let is_special = variables.number("SLURM_STEP_ID").is_ok_and(|step| step >= Some(SPECIAL_STEP));
    variables.raw("SLURM_STEP_ID").is_some() && !is_special
}

/// No rank of a step, unless the step is one of several tasks, of which this is some.
fn without_rank(variables: &Variables<'_>) -> Result<Option<Task>> {
    let is_one_of_many =
        is_within_step(variables) && variables.number("SLURM_STEP_NUM_TASKS")? > Some(1);
    if is_one_of_many { incomplete(variables, "SLURM_PROCID") } else { Ok(None) }
}

/// Names one start of one step.
fn step(variables: &Variables<'_>) -> Result<Option<String>> {
    let job = variables.number("SLURM_JOB_ID")?;
    let (Some(job), Some(step)) = (job, variables.number("SLURM_STEP_ID")?) else {
        return Ok(None);
    };
    let restarts = variables.number("SLURM_RESTART_COUNT")?.unwrap_or(0);
    Ok(Some(format!("slurm-{job}.{step}.{restarts}")))
}

fn incomplete<T>(variables: &Variables<'_>, absent: &str) -> Result<T> {
    wrong(format!(
        "{} are set as srun does, but not {absent}; start the ranks by srun, which sets all, or \
         with gaspi_run, or set GASPI_LAUNCHER=single for a job of one rank",
        variables.set(Slurm.variables()).join(", ")
    ))
}
