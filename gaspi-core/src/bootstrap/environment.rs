//! The environment variables that describe a job, parsed once and strictly.
//!
//! Each [`Launcher`](launcher::Launcher) is asked whether it has started this process. What holds
//! for all of them is here: GASPI_SOCKET, the number of the rank on its machine, GASPI_TRANSPORT,
//! and what is wanted of a card. Variables that contradict each other are an error that names them
//! and the remedy.

use super::job::{Job, Transport};
use super::launcher;
use super::this_machine::ThisMachine;
use super::variables::{Variables, wrong};
use crate::config::DeviceChoice;
use crate::error::Result;

impl Job {
    /// The job that the environment of this process describes; a job of one rank if it describes
    /// none.
    ///
    /// # Errors
    /// [`Error::Environment`](crate::Error::Environment) if the variables are incomplete, no
    /// numbers, or contradict each other or the machine file.
    pub fn from_environment() -> Result<Job> {
        describe(&Variables::new(&|name| std::env::var_os(name), &ThisMachine::look_up))
    }
}

/// The job as the variables describe it.
fn describe(variables: &Variables<'_>) -> Result<Job> {
    for launcher in launcher::ALL {
        if let Some(task) = launcher.task(variables)? {
            let mut job = launcher.job(variables, task)?;
            if let Some(local_rank) = local_rank(variables, job.size)? {
                job.local_rank = local_rank;
            }
            job.transport = transport(variables)?;
            job.device = device_choice(variables)?;
            return Ok(job);
        }
    }
    Ok(Job::single())
}

/// GASPI_SOCKET.
fn local_rank(variables: &Variables<'_>, size: u32) -> Result<Option<u16>> {
    let Some(local) = variables.number("GASPI_SOCKET")? else { return Ok(None) };
    match u16::try_from(local) {
        Ok(local) if u32::from(local) < size => Ok(Some(local)),
        _ => wrong(format!(
            "GASPI_SOCKET (the number of the rank on its machine) is {local}, but the job has \
             {size} ranks"
        )),
    }
}

/// GASPI_TRANSPORT.
fn transport(variables: &Variables<'_>) -> Result<Transport> {
    match variables.text("GASPI_TRANSPORT")?.as_deref() {
        None | Some("auto") => Ok(Transport::Auto),
        Some("shm") => Ok(Transport::SharedMemory),
        Some("tcp") => Ok(Transport::Tcp),
        Some("verbs") => Ok(Transport::Verbs),
        Some(other) => {
            wrong(format!("GASPI_TRANSPORT is {other:?}; it can be auto, shm, tcp or verbs"))
        }
    }
}

/// GASPI_IBVERBS_LIB, GASPI_IB_DEVICE, GASPI_IB_WAIT.
fn device_choice(variables: &Variables<'_>) -> Result<DeviceChoice> {
    let ends_at_ack = match variables.text("GASPI_IB_WAIT")?.as_deref() {
        None | Some("read") => false,
        Some("ack") => true,
        Some(other) => return wrong(format!("GASPI_IB_WAIT is {other:?}; it can be ack or read")),
    };
    let library = variables.raw("GASPI_IBVERBS_LIB");
    let name = variables.text("GASPI_IB_DEVICE")?;
    Ok(DeviceChoice { library, device: name, ends_at_ack })
}

#[cfg(test)]
#[path = "environment_tests.rs"]
mod tests;
