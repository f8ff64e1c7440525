//! Connections by which processes that a launcher has started on other hosts call it back, so that
//! whatever started them need not carry what both say.
//!
//! The launcher listens ([`Callbacks`]) and hands each process an [`Invitation`], by a way that no
//! other user can read: standard input. The process calls one address after the other and proves
//! to know the key by the handshake of the relays ([`crate::wire::handshake`]), in which it says
//! as which host it comes. Both encrypt what they say from then on.
//!
//! Invariant: nothing is kept of a connection that has not proved to know the key beyond a
//! handshake's fixed buffers, for at most [`PATIENCE`], and never of more than
//! [`UNAUTHENTICATED_MAX`] connections at once.

use super::hub_access::PATIENCE;
use super::relay_listener::UNAUTHENTICATED_MAX;
use super::tcp_connection::continue_handshake;
use crate::bootstrap::addresses::{self, Audience, Candidates, Restrictions};
use crate::bootstrap::system::{self, random};
use crate::error::Result;
use crate::os::{interfaces, tcp};
use crate::timeout::Timeout;
use crate::wire::codec::{self, Decoded, Limit, Reader, Writer};
use crate::wire::fields::Field;
use crate::wire::handshake::{self, HUB, JOB, Peer, Purpose, SECRET, Secret, State};
use crate::wire::record_layer::RecordLayer;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Begins an invitation.
const MAGIC: [u8; 4] = *b"GINV";
/// The version of what follows.
const VERSION: u16 = 1;
/// Bytes of an invitation without its length.
const INVITATION_MAX: usize = 8 << 20;
/// Addresses of a launcher.
const ENDPOINTS: Limit = Limit::u16(64);
/// Hosts of an invitation.
const HOSTS: Limit = Limit::u32(65_535);
/// Bytes of the name of a host.
const NAME: Limit = Limit::u16(1024);

/// What a process has to know to call its launcher back.
#[derive(Debug, Clone)]
pub struct Invitation {
    secret: Secret,
    endpoints: Vec<SocketAddr>,
    /// Which hosts it is for: their numbers, and how whatever starts processes there calls them.
    pub hosts: Vec<(u32, String)>,
}

impl Invitation {
    /// The same for other hosts: whoever has an invitation may hand it on.
    pub fn for_hosts(&self, hosts: Vec<(u32, String)>) -> Invitation {
        Invitation { hosts, ..self.clone() }
    }

    /// As bytes that end where it does.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new());
        writer.framed(|to| {
            to.array(&MAGIC).u16(VERSION).array(&self.secret.job).array(&self.secret.key);
            to.list(&self.endpoints, ENDPOINTS, |to, endpoint| endpoint.write(to));
            to.list(&self.hosts, HOSTS, |to, (number, name)| {
                to.u32(*number).text(name, NAME);
            });
        });
        writer.into_inner()
    }

    /// Reads one, and no byte behind it.
    ///
    /// # Errors
    /// It does not come whole, or is none.
    pub fn read(mut from: impl Read) -> io::Result<Invitation> {
        let nonsense = || io::Error::other("what came is no invitation of gaspi_run");
        let mut bytes = vec![0; 4];
        from.read_exact(&mut bytes)?;
        let len = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize;
        if len > INVITATION_MAX {
            return Err(nonsense());
        }
        // What has not come takes no memory.
        if from.take(len as u64).read_to_end(&mut bytes)? < len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Invitation::decode(&bytes).ok().flatten().ok_or_else(nonsense)
    }

    /// The one at the beginning of these bytes; `None` if it has not come whole.
    fn decode(bytes: &[u8]) -> Decoded<Option<Invitation>> {
        let Some(body) = codec::first_frame(bytes, INVITATION_MAX)? else { return Ok(None) };
        let mut reader = Reader::new(body);
        if reader.array()? != MAGIC || reader.u16()? != VERSION {
            return Err(codec::DecodeError::Invalid("another kind of invitation"));
        }
        let secret = Secret { job: reader.array::<JOB>()?, key: reader.array::<SECRET>()? };
        let endpoints = reader.list(ENDPOINTS, <SocketAddr as Field>::read)?;
        let host = |from: &mut Reader<'_>| -> Decoded<_> {
            Ok((from.u32()?, from.text(NAME)?.to_owned()))
        };
        let hosts = reader.list(HOSTS, host)?;
        reader.finish()?;
        Ok(Some(Invitation { secret, endpoints, hosts }))
    }

    /// Calls the launcher back as the host with this number: all its addresses one after the other,
    /// for no longer than `limit` together.
    ///
    /// # Errors
    /// What became of each, in words.
    pub fn call_back(
        &self,
        number: u32,
        limit: Duration,
    ) -> std::result::Result<Encrypted, String> {
        let found = Candidates::new(&self.endpoints, &interfaces::list(), Audience::OtherHosts);
        // Addresses that this host has, too, come last: both may be on one machine.
        let all: Vec<SocketAddr> =
            found.tried.iter().chain(&found.dropped).map(|candidate| candidate.endpoint).collect();
        let end = Instant::now() + limit;
        let mut failures = Vec::new();
        for (tried, to) in all.iter().enumerate() {
            // Each gets its share of the time that is left.
            let left = end.saturating_duration_since(Instant::now());
            let until = Instant::now() + left / (all.len() - tried) as u32;
            match self.call(*to, number, until) {
                Ok(connection) => return Ok(connection),
                Err(reason) => failures.push(format!("{to}: {reason}")),
            }
        }
        match failures.is_empty() {
            true => Err("the invitation names no address".to_owned()),
            false => Err(failures.join("; ")),
        }
    }

    fn call(
        &self,
        to: SocketAddr,
        number: u32,
        until: Instant,
    ) -> std::result::Result<Encrypted, String> {
        let words = |error: io::Error| error.to_string();
        let limit = until.saturating_duration_since(Instant::now());
        let deadline = Timeout::from(limit).deadline();
        let fd = tcp::connect(to).map_err(words)?;
        while !tcp::outcome(fd.as_fd()).map_err(words)? {
            if deadline.passed() {
                return Err("it does not answer".to_owned());
            }
            system::wait(&[(fd.as_fd(), true)], deadline, None);
        }
        let nonce = random().map_err(|error| error.to_string())?;
        let hub = Peer { rank: HUB, purpose: Purpose::Meeting };
        let mut client = handshake::Client::new(&self.secret, number, hub, nonce);
        loop {
            match continue_handshake(fd.as_fd(), &mut client) {
                Some(State::Refused(reason)) => return Err(reason),
                Some(_) => {
                    let records = client.records().ok_or_else(|| client.ended())?;
                    return Ok(Encrypted { fd, records });
                }
                None if deadline.passed() => return Err(client.ended()),
                None => {
                    let room = !client.output().is_empty();
                    system::wait(&[(fd.as_fd(), room)], deadline, None);
                }
            }
        }
    }
}

/// A connection whose both ends have proved to know the key.
#[derive(Debug)]
pub struct Encrypted {
    /// Its socket.
    pub fd: OwnedFd,
    /// What encrypts all that goes over it.
    pub records: RecordLayer,
}

/// What came of a connection to the launcher.
#[derive(Debug)]
pub enum Callback {
    /// A process that knows the key says to run on this host.
    Came {
        /// The number of the host.
        host: u32,
        /// The connection with it.
        connection: Encrypted,
    },
    /// A connection from elsewhere, which was closed.
    Refused {
        /// Where it came from.
        from: SocketAddr,
        /// In words.
        reason: String,
    },
}

/// A connection that has not proved anything yet.
#[derive(Debug)]
struct Unauthenticated {
    fd: OwnedFd,
    from: SocketAddr,
    handshake: Box<handshake::Server>,
    until: Instant,
}

/// The side of the launcher.
#[derive(Debug)]
pub struct Callbacks {
    secret: Secret,
    listeners: Vec<OwnedFd>,
    endpoints: Vec<SocketAddr>,
    unauthenticated: Vec<Unauthenticated>,
}

impl Callbacks {
    /// Listens on addresses that other hosts reach, at a free port, or one of GASPI_PORT_RANGE.
    ///
    /// # Errors
    /// There is no such address, or the kernel refuses.
    pub fn listen() -> Result<Callbacks> {
        Callbacks::listen_for(Audience::OtherHosts)
    }

    fn listen_for(audience: Audience) -> Result<Callbacks> {
        let restrictions = Restrictions::from_environment()?;
        let found = addresses::listen(&interfaces::list(), &restrictions, audience)?;
        let secret = Secret { job: random()?, key: random()? };
        let (listeners, endpoints) = (found.listeners, found.endpoints);
        Ok(Callbacks { secret, listeners, endpoints, unauthenticated: Vec::new() })
    }

    /// What processes on these hosts have to know.
    pub fn invitation(&self, hosts: Vec<(u32, String)>) -> Invitation {
        Invitation { secret: self.secret.clone(), endpoints: self.endpoints.clone(), hosts }
    }

    /// What has to be waited for: to be read from or, with `true`, written to.
    pub fn watches(&self) -> impl Iterator<Item = (BorrowedFd<'_>, bool)> {
        let has_room = self.unauthenticated.len() < UNAUTHENTICATED_MAX;
        let listeners = self.listeners.iter().filter(move |_| has_room);
        let others = self.unauthenticated.iter();
        let others = others.map(|peer| (peer.fd.as_fd(), !peer.handshake.output().is_empty()));
        listeners.map(|listener| (listener.as_fd(), false)).chain(others)
    }

    /// When [`Callbacks::serve`] has something to do, though nothing has come.
    pub fn deadline(&self) -> Option<Instant> {
        self.unauthenticated.iter().map(|peer| peer.until).min()
    }

    /// Goes on with all connections, and says what came of them.
    pub fn serve(&mut self) -> Vec<Callback> {
        let mut found = Vec::new();
        self.accept();
        let now = Instant::now();
        for mut peer in std::mem::take(&mut self.unauthenticated) {
            let from = peer.from;
            match continue_handshake(peer.fd.as_fd(), peer.handshake.as_mut()) {
                None if now < peer.until => self.unauthenticated.push(peer),
                None => found.push(Callback::Refused { from, reason: peer.handshake.ended() }),
                Some(State::Refused(reason)) => found.push(Callback::Refused { from, reason }),
                Some(State::Done(host)) if host.purpose == Purpose::Meeting => {
                    let Some(records) = peer.handshake.records() else { continue };
                    let connection = Encrypted { fd: peer.fd, records };
                    found.push(Callback::Came { host: host.rank, connection });
                }
                Some(_) => {
                    let reason = "it does not say that it was started by gaspi_run".to_owned();
                    found.push(Callback::Refused { from, reason });
                }
            }
        }
        found
    }

    fn accept(&mut self) {
        for listener in &self.listeners {
            while self.unauthenticated.len() < UNAUTHENTICATED_MAX {
                // Without descriptors the connection waits in line.
                let Ok(Some((fd, from))) = tcp::accept(listener.as_fd()) else { break };
                let Ok(nonce) = random() else { break };
                // Which hosts there are is known to who asked for these connections.
                let server = handshake::Server::new(&self.secret, HUB, HUB, nonce);
                let until = Instant::now() + PATIENCE;
                let handshake = Box::new(server);
                self.unauthenticated.push(Unauthenticated { fd, from, handshake, until });
            }
        }
    }
}

#[cfg(test)]
#[path = "callback_tests.rs"]
mod tests;
