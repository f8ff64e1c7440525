//! What the machines of a job by hand know alike: the secret of the job, and the ports at which its
//! hub may listen.

use super::credential;
use crate::bootstrap::addresses::Restrictions;
use crate::bootstrap::auth::keys;
use crate::bootstrap::job::{HubLocation, Job};
use crate::bootstrap::system::random;
use crate::error::Result;
use crate::os::munge::{Munge, PAYLOAD};
use crate::os::socket;
use crate::wire::handshake::{self, HUB, Peer, Secret, job_name};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How long a peer may take for its part of a handshake.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// Ports that the hub may be at where none is named: above those that services use, below those
/// that the kernel hands out.
pub(super) const PORTS: (u16, u16) = (20480, 28671);
/// How many of them a job tries, so that jobs do not stand in each other's way.
pub(super) const TRIES: usize = 8;

/// Where the key of a handshake comes from.
#[derive(Debug, Clone)]
enum Keys {
    /// One for all.
    Shared(Secret),
    /// A random one for each, handed over by munge before it.
    Munge(Arc<Munge>),
}

/// What the machines of a job by hand know alike.
#[derive(Debug, Clone)]
pub(super) struct HubAccess {
    keys: Keys,
    /// Names the job in a handshake.
    name: [u8; 16],
    /// Where the secret came from, for errors.
    pub(super) origin: Option<PathBuf>,
    pub(super) restrictions: Restrictions,
    /// Where the hub may listen.
    pub(super) ports: Vec<u16>,
}

impl HubAccess {
    pub(super) fn new(job: &Job, hub: &HubLocation) -> Result<HubAccess> {
        let munge = match hub.munge && hub.key.is_none() && !keys::is_present() {
            // Without its daemon a key file is made: the home directories may be shared.
            true => Munge::load()
                .ok()
                .filter(|munge| munge.encode(&[0; PAYLOAD], socket::own_uid()).is_ok()),
            false => None,
        };
        let shared = |key| Keys::Shared(Secret { job: job_name(&job.id), key });
        let (keys, origin) = match (&hub.key, munge) {
            (Some(key), _) => (shared(key.0), None),
            (None, Some(munge)) => {
                log::info!("proc_init: munge vouches for the hosts of this job");
                (Keys::Munge(Arc::new(munge)), None)
            }
            (None, None) => keys::of_job(&job.id).map(|(key, path)| (shared(key), Some(path)))?,
        };
        let restrictions = Restrictions::from_environment()?;
        let name = job_name(&job.id);
        let ports = match hub.port {
            Some(port) => vec![port],
            None => derived_ports(&name, restrictions.ports().unwrap_or(PORTS)),
        };
        Ok(HubAccess { keys, name, origin, restrictions, ports })
    }

    /// What goes first over a connection to the hub, and this side of the handshake that follows.
    ///
    /// # Errors
    /// Munge or the kernel refuse.
    pub(super) fn client(
        &self,
        rank: u32,
        to: Peer,
    ) -> std::result::Result<(Vec<u8>, handshake::Client), String> {
        let nonce = random().map_err(|error| error.to_string())?;
        match &self.keys {
            Keys::Shared(secret) => {
                Ok((Vec::new(), handshake::Client::new(secret, rank, to, nonce)))
            }
            Keys::Munge(munge) => {
                let key: [u8; PAYLOAD] = random().map_err(|error| error.to_string())?;
                let first = credential::encode(&munge.encode(&key, socket::own_uid())?)?;
                let secret = Secret { job: self.name, key };
                Ok((first, handshake::Client::new(&secret, rank, to, nonce)))
            }
        }
    }

    /// Whether a credential has to come before the handshake.
    pub(super) fn wants_credential(&self) -> bool {
        matches!(self.keys, Keys::Munge(_))
    }

    /// The hub's side of a handshake, with the credential that came before it, if one had to.
    ///
    /// # Errors
    /// Munge or the kernel refuse, or the credential is of another user.
    pub(super) fn server(
        &self,
        size: u32,
        credential: &[u8],
    ) -> std::result::Result<handshake::Server, String> {
        let nonce = random().map_err(|error| error.to_string())?;
        match &self.keys {
            Keys::Shared(secret) => Ok(handshake::Server::new(secret, HUB, size, nonce)),
            Keys::Munge(munge) => {
                let (key, uid) = munge.decode(credential)?;
                if uid != socket::own_uid() {
                    return Err(format!("its munge credential is of user {uid}"));
                }
                Ok(handshake::Server::new(&Secret { job: self.name, key }, HUB, size, nonce))
            }
        }
    }

    /// What to do where keys differ.
    pub(super) fn key_remedy(&self) -> String {
        match &self.origin {
            Some(path) => format!(
                "the key of this host is {}; it has to be the same on all hosts: copy it there, or \
                 set GASPI_KEY_FILE",
                path.display()
            ),
            None if self.wants_credential() => {
                "munge vouches for this host, which has no key file: it has to run on all hosts, \
                 and none may have a key file, or all the same (GASPI_KEY_FILE)"
                    .to_owned()
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::munge::stand_in::{EXPIRED, OF_ANOTHER_USER, OWN, REPLAYED};

    #[test]
    fn munge_vouches_for_the_same_user_once_and_for_a_while() {
        let access = HubAccess {
            keys: Keys::Munge(Arc::new(Munge::stand_in())),
            name: job_name("job"),
            origin: None,
            restrictions: Restrictions::from_environment().expect("none"),
            ports: Vec::new(),
        };
        assert!(access.server(2, OWN).is_ok());
        let another = format!("its munge credential is of user {}", socket::own_uid() + 1);
        for (credential, why) in [
            (OF_ANOTHER_USER, another.as_str()),
            (EXPIRED, "munge: Expired credential"),
            (REPLAYED, "munge: Replayed credential"),
        ] {
            assert_eq!(access.server(2, credential).expect_err("vouched for"), why);
        }
        // No credential at all is none of munge's.
        assert_eq!(access.server(2, b"a\0b").expect_err("taken"), "munge: no credential");
    }
}
