//! An indexed Kubernetes job: JOB_COMPLETION_INDEX is the rank. Kubernetes tells a pod neither
//! their number nor where another one is, so the job's description sets GASPI_NRANKS and
//! GASPI_MEETING=tcp:HOST:PORT, with the name of the pod of index 0.

use super::by_hand::{by_hand_id, host_and_port};
use super::{Launcher, Task, over_hosts};
use crate::bootstrap::addresses::Audience;
use crate::bootstrap::job::{HubLocation, Job, ServerLocation, derived_name};
use crate::bootstrap::variables::{Variables, wrong};
use crate::error::Result;
use crate::timeout::Deadline;

/// The number of a pod in its job.
pub(super) const INDEX: &str = "JOB_COMPLETION_INDEX";

pub(super) struct Kubernetes;

impl Launcher for Kubernetes {
    fn name(&self) -> &'static str {
        "kubernetes"
    }

    fn variables(&self) -> &'static [&'static str] {
        &[INDEX, "GASPI_NRANKS", "GASPI_MEETING", "GASPI_JOB_ID"]
    }

    fn task(&self, variables: &Variables<'_>) -> Result<Option<Task>> {
        // Pods that say nothing of GASPI do not know of each other.
        match (variables.number(INDEX)?, variables.number("GASPI_NRANKS")?) {
            (Some(rank), Some(size)) => Task::new((INDEX, rank), ("GASPI_NRANKS", size)).map(Some),
            (Some(_), None) if variables.raw("GASPI_MEETING").is_some() => wrong(format!(
                "{INDEX} and GASPI_MEETING are set but GASPI_NRANKS is not; set it in the \
                 description of the job to its number of completions"
            )),
            _ => Ok(None),
        }
    }

    fn job(&self, variables: &Variables<'_>, task: Task, _: Deadline) -> Result<Job> {
        let mut job = task.job();
        if job.size == 1 {
            return Ok(job);
        }
        // One pod, one rank.
        job.local_rank = 0;
        let place = variables.text("GASPI_MEETING")?;
        let Some(named) = place.as_deref().and_then(|place| place.strip_prefix("tcp:")) else {
            return wrong(format!(
                "{INDEX} and GASPI_NRANKS are set, but GASPI_MEETING does not say where the pods \
                 meet; set it to tcp:HOST:PORT with the name of the pod of index 0, as a headless \
                 service gives it: tcp:JOB-0.SERVICE:4711"
            ));
        };
        let (host, port) = host_and_port(named)?;
        let id = variables.text("GASPI_JOB_ID")?;
        let shared = id.clone().unwrap_or_else(|| format!("{host}:{port}"));
        let name = derived_name(format!("pods {} {shared}", job.size).to_lowercase().as_bytes());
        job.id = id.unwrap_or_else(|| by_hand_id(&name));
        let hub = HubLocation {
            // The name of a pod may not be known yet, not even to itself.
            here: task.rank.0 == 0,
            host,
            port: Some(port),
            audience: Audience::OtherHosts,
            key: None,
            munge: false,
            addresses: Vec::new(),
        };
        job.server = ServerLocation::OverHosts { name, hub };
        Ok(over_hosts(job))
    }
}
