//! The environment variables that describe a job, parsed once and strictly.
//!
//! Each [`Launcher`](launchers::Launcher) is asked whether it has started this process. What holds
//! for all of them is here: GASPI_SOCKET, the number of the rank on its machine, GASPI_TRANSPORT,
//! and what is wanted of a card. Variables that contradict each other are an error that names them
//! and the remedy.

use super::addresses::Restrictions;
use super::job::{Job, Transport};
use super::launchers;
use super::this_machine::ThisMachine;
use super::variables::{Variables, wrong};
use crate::config::{DeviceChoice, GidChoice, MessageCarrier, WriteEnd};
use crate::error::Result;
use crate::ids::Rank;
use crate::timeout::{Deadline, Timeout};
use std::ffi::OsString;
use std::net::{IpAddr, Ipv6Addr};

impl Job {
    /// The job that the environment of this process describes; a job of one rank if it describes
    /// none. Where a process manager (PMIx, PMI-1) has started this process, it is asked, and
    /// waited for without limit.
    ///
    /// # Errors
    /// [`Error::Environment`](crate::Error::Environment) if the variables are incomplete, no
    /// numbers, or contradict each other or the machine file.
    pub fn from_environment() -> Result<Job> {
        Job::from_environment_within(Timeout::Block)
    }

    /// The same, which waits for a process manager for `timeout` at most.
    ///
    /// # Errors
    /// As [`from_environment`](Job::from_environment), and
    /// [`Error::Timeout`](crate::Error::Timeout): call again to wait on.
    pub fn from_environment_within(timeout: Timeout) -> Result<Job> {
        let variables = Variables::new(&|name| std::env::var_os(name), &ThisMachine::look_up);
        describe(&variables, timeout.deadline())
    }

    /// The rank of this process and the number of ranks, as the environment names them; `None` if
    /// no launcher has started this process. No process manager is asked, so what only that knows
    /// is not there.
    ///
    /// # Errors
    /// As [`from_environment`](Job::from_environment).
    #[doc(hidden)]
    pub fn named_by_environment() -> Result<Option<(Rank, Option<u32>)>> {
        let variables = Variables::new(&|name| std::env::var_os(name), &ThisMachine::look_up);
        let (chosen, _) = launchers::choose(&variables)?;
        Ok(chosen.map(|(_, task)| (task.rank, task.size)))
    }
}

impl DeviceChoice {
    /// What the environment of this process says about RDMA devices.
    ///
    /// # Errors
    /// [`Error::Environment`](crate::Error::Environment) names the variable, its value, and what is
    /// possible.
    pub fn from_environment() -> Result<DeviceChoice> {
        device_choice(&Variables::new(&|name| std::env::var_os(name), &ThisMachine::look_up))
    }
}

/// The job as the variables describe it.
fn describe(variables: &Variables<'_>, deadline: Deadline) -> Result<Job> {
    let (transport, device) = (transport(variables)?, device_choice(variables)?);
    // Those that a rank without others on other hosts does not need are to make sense, too.
    Restrictions::parse(&|name| variables.raw(name))?;
    let (chosen, why) = launchers::choose(variables)?;
    let Some((launcher, task)) = chosen else {
        log::info!("proc_init: a job of one rank: {why}");
        return Ok(Job::single());
    };
    let mut job = launcher.job(variables, task, deadline)?;
    log::info!(
        "proc_init: launcher {}, {why}: {} of {} of job {}",
        launcher.name(),
        job.rank,
        job.size,
        job.id
    );
    if let Some(local_rank) = local_rank(variables, job.size)? {
        job.local_rank = local_rank;
    }
    job.transport = transport;
    job.device = device;
    Ok(job)
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
    match variables.word("GASPI_TRANSPORT").as_deref() {
        None | Some("auto") => Ok(Transport::Auto),
        Some("shm") => Ok(Transport::SharedMemory),
        Some("tcp") => Ok(Transport::Tcp),
        Some("verbs") => Ok(Transport::Verbs),
        Some(other) => {
            wrong(format!("GASPI_TRANSPORT is {other:?}; it can be auto, shm, tcp or verbs"))
        }
    }
}

/// The numbers of queue pairs have 24 bits.
const PAIRS_MAX: u32 = (1 << 24) - 1;

/// GASPI_IBVERBS_LIB, GASPI_ATOMICS, and all GASPI_IB_*.
fn device_choice(variables: &Variables<'_>) -> Result<DeviceChoice> {
    let write_end = match variables.word("GASPI_IB_WAIT").as_deref() {
        None | Some("auto") => WriteEnd::Auto,
        Some("read") => WriteEnd::Read,
        Some("ack") => WriteEnd::Ack,
        Some(other) => {
            return wrong(format!("GASPI_IB_WAIT is {other:?}; it can be auto, ack or read"));
        }
    };
    let messages = match variables.word("GASPI_IB_MESSAGES").as_deref() {
        None | Some("device") => MessageCarrier::Device,
        Some("tcp") => MessageCarrier::Tcp,
        Some(other) => {
            return wrong(format!("GASPI_IB_MESSAGES is {other:?}; it can be device or tcp"));
        }
    };
    let atomics = match variables.word("GASPI_ATOMICS").as_deref() {
        None | Some("cpu") => false,
        Some("nic") => true,
        Some(other) => return wrong(format!("GASPI_ATOMICS is {other:?}; it can be cpu or nic")),
    };
    let small = |name: &str, least, most| match variables.number(name)? {
        Some(number) if !(least..=most).contains(&number) => {
            wrong(format!("{name} is {number}; it takes {least} to {most}"))
        }
        number => Ok(number.map(|number| number as u8)),
    };
    let pairs = match variables.number("GASPI_IB_PAIRS")? {
        Some(number) if number > u64::from(PAIRS_MAX) => {
            return wrong(format!("GASPI_IB_PAIRS is {number}; it takes 0 to {PAIRS_MAX}"));
        }
        number => number.map(|number| number as u32),
    };
    Ok(DeviceChoice {
        library: library(variables)?,
        devices: devices(variables)?,
        port: small("GASPI_IB_PORT", 1, 254)?,
        gid: gid(variables)?,
        pkey: pkey(variables)?,
        service_level: small("GASPI_IB_SL", 0, 15)?.unwrap_or(0),
        traffic_class: small("GASPI_IB_TRAFFIC_CLASS", 0, 255)?.unwrap_or(0),
        write_end,
        messages,
        pairs,
        atomics,
    })
}

/// GASPI_IBVERBS_LIB: a file.
fn library(variables: &Variables<'_>) -> Result<Option<OsString>> {
    match variables.raw("GASPI_IBVERBS_LIB") {
        Some(file) if file.is_empty() => {
            wrong("GASPI_IBVERBS_LIB is \"\"; it takes a file, or is not set".to_owned())
        }
        file => Ok(file),
    }
}

/// GASPI_IB_DEVICE: names parted by commas.
fn devices(variables: &Variables<'_>) -> Result<Vec<String>> {
    let Some(text) = variables.word("GASPI_IB_DEVICE") else { return Ok(Vec::new()) };
    let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
    if names.iter().any(String::is_empty) {
        return wrong(format!(
            "GASPI_IB_DEVICE is {text:?}; it takes names of RDMA devices, parted by commas"
        ));
    }
    Ok(names)
}

/// GASPI_IB_GID: an index or an address.
fn gid(variables: &Variables<'_>) -> Result<Option<GidChoice>> {
    let Some(text) = variables.word("GASPI_IB_GID") else { return Ok(None) };
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let found = match text.parse::<IpAddr>() {
        _ if digits => text.parse().ok().map(GidChoice::Index),
        Ok(IpAddr::V4(address)) => Some(GidChoice::Address(address.to_ipv6_mapped())),
        Ok(IpAddr::V6(address)) => Some(GidChoice::Address(address)),
        Err(_) => None,
    };
    match found.filter(|found| *found != GidChoice::Address(Ipv6Addr::UNSPECIFIED)) {
        Some(found) => Ok(Some(found)),
        None => wrong(format!(
            "GASPI_IB_GID is {text:?}; it takes an index of 0 to 255, an IPv4 address, or a GID \
             as an IPv6 address is written"
        )),
    }
}

/// GASPI_IB_PKEY: the value of a partition key.
fn pkey(variables: &Variables<'_>) -> Result<Option<u16>> {
    let Some(text) = variables.word("GASPI_IB_PKEY") else { return Ok(None) };
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or("");
    let hexadecimal = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let found = u16::from_str_radix(digits, 16).ok().filter(|_| hexadecimal);
    // Without its highest bit, which tells full members, zero is no key.
    match found.filter(|key| key & 0x7fff != 0) {
        Some(key) => Ok(Some(key)),
        None => wrong(format!(
            "GASPI_IB_PKEY is {text:?}; it takes the value of a partition key, 0x0001 to 0xffff, \
             such as 0xffff"
        )),
    }
}

#[cfg(test)]
#[path = "environment_tests.rs"]
mod tests;
