//! What the machines of a job by hand know alike: the secret of the job, and the ports at which its
//! hub may listen.

use crate::bootstrap::addresses::Restrictions;
use crate::bootstrap::auth::keys;
use crate::bootstrap::job::{HubLocation, Job};
use crate::error::Result;
use crate::wire::handshake::{Secret, job_name};
use std::path::PathBuf;
use std::time::Duration;

/// How long a peer may take for its part of a handshake.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// Ports that the hub may be at where none is named: above those that services use, below those
/// that the kernel hands out.
pub(super) const PORTS: (u16, u16) = (20480, 28671);
/// How many of them a job tries, so that jobs do not stand in each other's way.
pub(super) const TRIES: usize = 8;

/// What the machines of a job by hand know alike.
#[derive(Debug, Clone)]
pub(super) struct HubAccess {
    pub(super) secret: Secret,
    /// Where it came from, for errors.
    pub(super) origin: Option<PathBuf>,
    pub(super) restrictions: Restrictions,
    /// Where the hub may listen.
    pub(super) ports: Vec<u16>,
}

impl HubAccess {
    pub(super) fn new(job: &Job, hub: &HubLocation) -> Result<HubAccess> {
        let (key, origin) = match &hub.key {
            Some(key) => (key.0, None),
            None => keys::of_job(&job.id).map(|(key, path)| (key, Some(path)))?,
        };
        let restrictions = Restrictions::from_environment()?;
        let name = job_name(&job.id);
        let ports = match hub.port {
            Some(port) => vec![port],
            None => derived_ports(&name, restrictions.ports().unwrap_or(PORTS)),
        };
        Ok(HubAccess { secret: Secret { job: name, key }, origin, restrictions, ports })
    }

    /// What to do where keys differ.
    pub(super) fn key_remedy(&self) -> String {
        match &self.origin {
            Some(path) => format!(
                "the key of this host is {}; it has to be the same on all hosts: copy it there, or \
                 set GASPI_KEY_FILE",
                path.display()
            ),
            None => "it has to be the same on all hosts".to_owned(),
        }
    }
}

/// The ports at which the ranks of a job look for its hub, in this order on all machines.
pub(super) fn derived_ports(name: &[u8; 16], (low, high): (u16, u16)) -> Vec<u16> {
    let count = u32::from(high - low) + 1;
    let mut ports = Vec::with_capacity(TRIES);
    for pair in name.chunks_exact(2).take(TRIES) {
        let port = low + (u32::from(u16::from_le_bytes([pair[0], pair[1]])) % count) as u16;
        if !ports.contains(&port) {
            ports.push(port);
        }
    }
    ports
}
