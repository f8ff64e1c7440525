//! gaspi_run, or its agent on this machine: it serves the exchange itself and names its socket in
//! GASPI_MEETING.

use super::{Launcher, Task, by_hand, incomplete, rank_and_size};
use crate::bootstrap::job::{Job, ServerLocation, all_on};
use crate::bootstrap::variables::Variables;
use crate::error::Result;
use crate::os::process;
use crate::timeout::Deadline;
use std::os::unix::ffi::OsStrExt;

pub(super) struct GaspiRun;

/// The value of GASPI_LAUNCHER for gaspi_run, and for ranks started by hand.
pub(super) const NAME: &str = "gaspi";

impl Launcher for GaspiRun {
    fn name(&self) -> &'static str {
        NAME
    }

    fn variables(&self) -> &'static [&'static str] {
        &[
            "GASPI_RANK",
            "GASPI_NRANKS",
            "GASPI_SOCKET",
            "GASPI_MFILE",
            "GASPI_MEETING",
            "GASPI_JOB_ID",
            "GASPI_HOSTS",
            "GASPI_HOST",
            "GASPI_BIND",
        ]
    }

    fn task(&self, variables: &Variables<'_>) -> Result<Option<Task>> {
        // With "tcp:" in front it names the hub of a job that was started by hand.
        match variables.raw("GASPI_MEETING") {
            Some(name) if !name.as_bytes().starts_with(b"tcp:") => {
                by_hand::check_is_no_address(&name.to_string_lossy())?;
                rank_and_size(variables)
            }
            _ => Ok(None),
        }
    }

    fn job(&self, variables: &Variables<'_>, task: Task, _: Deadline) -> Result<Job> {
        let job = task.job();
        let name = variables.text("GASPI_MEETING")?.unwrap_or_default();
        let Some(id) = variables.text("GASPI_JOB_ID")? else {
            return incomplete(variables, &["GASPI_MEETING"], &["GASPI_JOB_ID"]);
        };
        // The launcher has checked the machine file, and it may be gone by now.
        let own = variables.text("GASPI_HOST")?.unwrap_or_else(process::host_name);
        let hosts = all_on(own, job.size);
        let spans_hosts = variables.number("GASPI_HOSTS")?.is_some_and(|hosts| hosts > 1);
        let server = ServerLocation::Launcher(name);
        Ok(Job { id, server, hosts, spans_hosts, ..job })
    }

    fn runs_within(&self, _: &str, _: &Variables<'_>) -> bool {
        // gaspi_run sets all variables of its ranks anew, whatever it was started by.
        true
    }
}
