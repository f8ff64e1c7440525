//! What the machines of a job by hand know alike: the secret of the job, and the ports at which its
//! hub may listen.

use super::credential;
use super::vouching::{Asked, no_answer};
use crate::bootstrap::addresses::Restrictions;
use crate::bootstrap::auth::keys;
use crate::bootstrap::job::{HubLocation, Job};
use crate::bootstrap::system::random;
use crate::error::{Error, Result};
use crate::os::munge::{Munge, PAYLOAD};
use crate::os::socket;
use crate::wire::handshake::{self, HUB, Peer, Secret, job_name};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

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

/// What goes first over a connection to the hub, and this side of the handshake that follows.
pub(super) type Beginning = (Vec<u8>, handshake::Client);

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
    /// With the key that `hub` names, that of the user's file, or those that munge hands over.
    pub(super) fn new(
        job: &Job,
        hub: &HubLocation,
        munge: Option<Arc<Munge>>,
    ) -> Result<HubAccess> {
        let shared = |key| Keys::Shared(Secret { job: job_name(&job.id), key });
        let (keys, origin) = match (&hub.key, munge) {
            (Some(key), _) => (shared(key.0), None),
            (None, Some(munge)) => {
                log::info!("proc_init: munge vouches for the hosts of this job");
                (Keys::Munge(munge), None)
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

    /// How a connection to the hub begins, unless munge or the kernel refuse.
    pub(super) fn client(&self, rank: u32, to: Peer) -> Asked<Beginning> {
        match &self.keys {
            Keys::Shared(secret) => {
                let nonce = random().map_err(|error| error.to_string());
                Asked::known(
                    nonce
                        .map(|nonce| (Vec::new(), handshake::Client::new(secret, rank, to, nonce))),
                )
            }
            Keys::Munge(munge) => {
                let job = self.name;
                Asked::of(munge, move |munge| {
                    let nonce = random().map_err(|error| error.to_string())?;
                    let key = random::<PAYLOAD>().map_err(|error| error.to_string())?;
                    let first = credential::encode(&munge.encode(&key, socket::own_uid())?)?;
                    Ok((first, handshake::Client::new(&Secret { job, key }, rank, to, nonce)))
                })
            }
        }
    }

    /// Whether a credential has to come before the handshake.
    pub(super) fn wants_credential(&self) -> bool {
        matches!(self.keys, Keys::Munge(_))
    }

    /// The hub's side of a handshake, with the credential that came before it, if one had to;
    /// unless munge or the kernel refuse, or the credential is of another user.
    pub(super) fn server(&self, size: u32, credential: &[u8]) -> Asked<Box<handshake::Server>> {
        match &self.keys {
            Keys::Shared(secret) => {
                let nonce = random().map_err(|error| error.to_string());
                Asked::known(
                    nonce.map(|nonce| Box::new(handshake::Server::new(secret, HUB, size, nonce))),
                )
            }
            Keys::Munge(munge) => {
                let (job, credential) = (self.name, credential.to_vec());
                Asked::of(munge, move |munge| {
                    let (key, uid) = munge.decode(&credential)?;
                    if uid != socket::own_uid() {
                        return Err(format!("its munge credential is of user {uid}"));
                    }
                    let nonce = random().map_err(|error| error.to_string())?;
                    let secret = Secret { job, key };
                    Ok(Box::new(handshake::Server::new(&secret, HUB, size, nonce)))
                })
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

/// The question whether munge is there, where it may vouch for the hosts.
#[derive(Debug)]
pub(super) struct Vouching {
    munge: Arc<Munge>,
    asked: Asked<()>,
    until: Instant,
}

impl Vouching {
    /// Asks, if these hosts may go by munge.
    pub(super) fn of(hub: &HubLocation) -> Option<Vouching> {
        if !hub.munge || hub.key.is_some() || keys::is_present() {
            return None;
        }
        Munge::load().ok().map(|munge| Vouching::by(munge, PATIENCE))
    }

    fn by(munge: Munge, patience: Duration) -> Vouching {
        let munge = Arc::new(munge);
        let asked =
            Asked::of(&munge, |munge| munge.encode(&[0; PAYLOAD], socket::own_uid()).map(drop));
        Vouching { munge, asked, until: Instant::now() + patience }
    }

    /// Munge, if it is there, once that is known.
    ///
    /// # Errors
    /// Its daemon does not answer: other hosts may go by it.
    pub(super) fn poll(&mut self) -> Option<Result<Option<Arc<Munge>>>> {
        match self.asked.poll() {
            Some(Ok(())) => Some(Ok(Some(Arc::clone(&self.munge)))),
            // Without its daemon a key file is made: the home directories may be shared.
            Some(Err(_)) => Some(Ok(None)),
            None if Instant::now() < self.until => None,
            None => Some(Err(Error::Environment { reason: no_answer() })),
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
pub(super) mod tests {
    use super::*;
    use crate::os::munge::stand_in::{EXPIRED, OF_ANOTHER_USER, OWN, REPLAYED, SILENT};

    /// That of hosts for which a stand-in for munge vouches.
    pub(in crate::bootstrap::exchange) fn by_stand_in() -> HubAccess {
        HubAccess {
            keys: Keys::Munge(Arc::new(Munge::stand_in())),
            name: job_name("job"),
            origin: None,
            restrictions: Restrictions::from_environment().expect("none"),
            ports: vec![0],
        }
    }

    fn answer<T: Send + 'static>(mut asked: Asked<T>) -> std::result::Result<T, String> {
        loop {
            match asked.poll() {
                Some(answer) => return answer,
                None => std::thread::yield_now(),
            }
        }
    }

    #[test]
    fn munge_vouches_for_the_same_user_once_and_for_a_while() {
        let access = by_stand_in();
        assert!(answer(access.server(2, OWN)).is_ok());
        let another = format!("its munge credential is of user {}", socket::own_uid() + 1);
        for (credential, why) in [
            (OF_ANOTHER_USER, another.as_str()),
            (EXPIRED, "munge: Expired credential"),
            (REPLAYED, "munge: Replayed credential"),
        ] {
            assert_eq!(answer(access.server(2, credential)).expect_err("vouched for"), why);
        }
        // No credential at all is none of munge's.
        assert_eq!(answer(access.server(2, b"a\0b")).expect_err("taken"), "munge: no credential");
    }

    #[test]
    fn a_daemon_that_does_not_answer_is_given_up_and_named() {
        let mut silent = Vouching::by(Munge::silent_stand_in(), Duration::ZERO);
        let error = silent.poll().expect("given up").expect_err("vouches").to_string();
        assert!(error.contains("munged does not answer"), "{error}");
        assert!(error.contains("systemctl restart munge"), "{error}");
        // One that is not there says so at once, and a key file does.
        let mut absent = Vouching::by(Munge::stand_in(), PATIENCE);
        let found = loop {
            match absent.poll() {
                Some(found) => break found,
                None => std::thread::yield_now(),
            }
        };
        assert!(found.expect("an answer").is_none());
        assert!(by_stand_in().server(2, SILENT).poll().is_none());
    }
}
