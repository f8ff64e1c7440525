//! The TCP side of the hub in a job that was started by hand: it lets relays in.
//!
//! Invariant: nothing is kept of a connection that has not proved to know the key beyond a
//! handshake's fixed buffers, for at most [`PATIENCE`], and never of more than
//! [`UNAUTHENTICATED_MAX`] connections at once.

use super::credential;
use super::hub_access::{HubAccess, PATIENCE};
use super::relay_links::RelayLinks;
use super::server::Server;
use super::tcp_connection::{TcpConnection, continue_handshake, receive};
use super::vouching::{Asked, LOOK, no_answer};
use crate::bootstrap::addresses::{self, Audience};
use crate::error::{Error, Result};
use crate::os::{interfaces, tcp};
use crate::wire::handshake::{self, Purpose, State};
use crate::wire::record_layer::RecordLayer;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Connections that have not proved anything yet.
pub(super) const UNAUTHENTICATED_MAX: usize = 64;
/// How long the rank of the hub waits, once the exchange is over, for relays that do not close.
const FAREWELL: Duration = Duration::from_secs(1);

/// A connection that has not proved anything yet.
#[derive(Debug)]
struct Unauthenticated {
    fd: OwnedFd,
    from: SocketAddr,
    stage: Stage,
    until: Instant,
}

/// How far it has come.
#[derive(Debug)]
enum Stage {
    /// So much has come of what hands over the key.
    Credential(Vec<u8>),
    /// Munge is asked what that hands over.
    Asked(Asked<Box<handshake::Server>>),
    Handshake(Box<handshake::Server>),
}

impl Unauthenticated {
    /// Reads on; the outcome once there is one.
    fn proceed(&mut self, access: &HubAccess, size: u32) -> Option<State> {
        if let Stage::Credential(came) = &mut self.stage {
            match read_credential(self.fd.as_fd(), came) {
                Ok(false) => return None,
                Ok(true) => {
                    let credential = credential::credential(came);
                    self.stage = Stage::Asked(access.server(size, credential));
                }
                Err(reason) => return Some(State::Refused(reason)),
            }
        }
        if let Stage::Asked(asked) = &mut self.stage {
            match asked.poll()? {
                Ok(server) => self.stage = Stage::Handshake(server),
                Err(reason) => return Some(State::Refused(reason)),
            }
        }
        match &mut self.stage {
            Stage::Handshake(server) => continue_handshake(self.fd.as_fd(), server.as_mut()),
            Stage::Credential(_) | Stage::Asked(_) => None,
        }
    }

    /// Why nothing comes of it if nothing more is said.
    fn ended(&self) -> String {
        match &self.stage {
            Stage::Credential(_) => "it did not send its munge credential".to_owned(),
            Stage::Asked(_) => no_answer(),
            Stage::Handshake(server) => server.ended(),
        }
    }

    fn knows_job(&self) -> bool {
        match &self.stage {
            // Nobody else sends one.
            Stage::Credential(came) => !came.is_empty(),
            Stage::Asked(_) => true,
            Stage::Handshake(server) => server.knows_job(),
        }
    }

    /// What encrypts the connection from the end of the handshake on.
    fn records(&self) -> Option<RecordLayer> {
        match &self.stage {
            Stage::Credential(_) | Stage::Asked(_) => None,
            Stage::Handshake(server) => server.records(),
        }
    }

    /// Whether munge has not answered yet: what has come meanwhile is left to the kernel.
    fn waits_for_munge(&self) -> bool {
        matches!(self.stage, Stage::Asked(_))
    }

    fn has_output(&self) -> bool {
        matches!(&self.stage, Stage::Handshake(server) if !server.output().is_empty())
    }
}

/// Reads no further than the credential goes; whether all of it is there.
fn read_credential(fd: BorrowedFd<'_>, came: &mut Vec<u8>) -> std::result::Result<bool, String> {
    loop {
        let wanted = credential::wants(came)?;
        if wanted == 0 {
            return Ok(true);
        }
        match receive(fd, wanted, came) {
            Ok(Some(0)) => return Err("it has closed the connection".to_owned()),
            Ok(Some(_)) => {}
            Ok(None) => return Ok(false),
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// The TCP side of the hub.
#[derive(Debug)]
pub(super) struct RelayListener {
    access: HubAccess,
    size: u32,
    pub(super) listeners: Vec<OwnedFd>,
    /// Given up to turn a connection away when descriptors have run out.
    reserve: Option<OwnedFd>,
    unauthenticated: Vec<Unauthenticated>,
    links: RelayLinks,
    /// Which connection was refused last, and why.
    pub(super) last_error: Option<String>,
    /// When relays that have not closed are left to a thread, since the exchange is over.
    leave_at: Option<Instant>,
}

impl RelayListener {
    pub(super) fn new(access: HubAccess, audience: Audience, size: u32) -> Result<RelayListener> {
        let links = RelayLinks::new()?;
        let mut last = None;
        for port in &access.ports {
            let at = access.restrictions.at_port(*port);
            match addresses::listen(&interfaces::list(), &at, audience) {
                Ok(listening) => {
                    log::info!(
                        "proc_init: the hosts of the job meet here, at {:?}",
                        listening.endpoints
                    );
                    return Ok(RelayListener {
                        access,
                        size,
                        reserve: listening.listeners[0].try_clone().ok(),
                        listeners: listening.listeners,
                        unauthenticated: Vec::new(),
                        links,
                        last_error: None,
                        leave_at: None,
                    });
                }
                Err(error) => last = Some(error),
            }
        }
        let ports: Vec<String> = access.ports.iter().map(u16::to_string).collect();
        let why = last.map_or(String::new(), |error| format!(" ({error})"));
        Err(Error::Environment {
            reason: format!(
                "none of the ports {} for the meeting of the hosts can be listened on{why}; set \
                 another GASPI_JOB_ID or GASPI_MEETING=tcp:HOST:PORT on all ranks",
                ports.join(", ")
            ),
        })
    }

    pub(super) fn serve(&mut self, server: &mut Server) {
        if server.is_over() {
            // A relay that comes now looks for the next exchange.
            self.listeners.clear();
            self.reserve = None;
            self.unauthenticated.clear();
        }
        self.accept();
        self.welcome(server);
        self.links.serve(server);
        if server.is_over() {
            self.leave();
        }
    }

    /// The exchange is over: waits for the relays to close, but not for long.
    fn leave(&mut self) {
        let now = Instant::now();
        if now < *self.leave_at.get_or_insert(now + FAREWELL) || self.links.is_empty() {
            return;
        }
        if let Err(error) = self.links.leave_to_thread() {
            log::warn!("proc_init: waiting for the other hosts to take their tables: {error}");
            self.leave_at = Some(now + FAREWELL);
        }
    }

    fn accept(&mut self) {
        for listener in &self.listeners {
            while self.unauthenticated.len() < UNAUTHENTICATED_MAX {
                let (fd, from) = match tcp::accept(listener.as_fd()) {
                    Ok(Some(found)) => found,
                    Ok(None) => break,
                    Err(error) => {
                        self.last_error = Some(format!(
                            "a host could not be let in: {error}; raise the limit of open files \
                             with ulimit -n"
                        ));
                        // Turned away by the last descriptor, so that the listener does not stay
                        // ready for ever; it comes again.
                        self.reserve = None;
                        let turned_away = matches!(tcp::accept(listener.as_fd()), Ok(Some(_)));
                        self.reserve = listener.try_clone().ok();
                        if turned_away {
                            continue;
                        }
                        break;
                    }
                };
                let stage = if self.access.wants_credential() {
                    Stage::Credential(Vec::new())
                } else {
                    Stage::Asked(self.access.server(self.size, &[]))
                };
                let until = Instant::now() + PATIENCE;
                self.unauthenticated.push(Unauthenticated { fd, from, stage, until });
            }
        }
    }

    /// Makes links of the connections that have proved to belong to the job.
    fn welcome(&mut self, server: &mut Server) {
        let now = Instant::now();
        for mut peer in std::mem::take(&mut self.unauthenticated) {
            match peer.proceed(&self.access, self.size) {
                None if now < peer.until => self.unauthenticated.push(peer),
                None => self.refused(&peer, &peer.ended()),
                Some(State::Done(relay)) if relay.purpose == Purpose::Meeting => {
                    let Some(records) = peer.records() else { continue };
                    let stream = TcpConnection::new(peer.fd, peer.from, records);
                    self.links.welcome(server, stream);
                }
                Some(State::Refused(reason)) => self.refused(&peer, &reason),
                Some(State::Done(_) | State::Pending) => {}
            }
        }
    }

    fn refused(&mut self, peer: &Unauthenticated, reason: &str) {
        log::info!("proc_init: {} was refused: {reason}", peer.from);
        // Scans and other programs are no error of this job.
        if peer.knows_job() {
            let remedy = self.access.key_remedy();
            self.last_error =
                Some(format!("a process at {} was refused: {reason}; {remedy}", peer.from.ip()));
        }
    }

    /// Whether there is something to send to other machines.
    pub(super) fn has_output(&self) -> bool {
        self.links.has_output()
    }

    /// Whether the other machines have their outcome, or are left to a thread.
    pub(super) fn is_done(&self) -> bool {
        self.links.is_empty()
    }

    pub(super) fn watches<'a>(&'a self, fds: &mut Vec<(BorrowedFd<'a>, bool)>) -> Option<Duration> {
        if self.unauthenticated.len() < UNAUTHENTICATED_MAX {
            fds.extend(self.listeners.iter().map(|listener| (listener.as_fd(), false)));
        }
        let mut look = None;
        for peer in &self.unauthenticated {
            if peer.waits_for_munge() {
                look = Some(Instant::now() + LOOK);
            } else {
                fds.push((peer.fd.as_fd(), peer.has_output()));
            }
        }
        fds.push((self.links.as_fd(), false));
        let now = Instant::now();
        let unauthenticated = self.unauthenticated.iter().map(|peer| peer.until);
        let leave = self.leave_at.filter(|_| !self.links.is_empty());
        let next = unauthenticated.chain(leave).chain(look).chain(self.links.due()).min()?;
        Some(next.saturating_duration_since(now).max(Duration::from_millis(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::exchange::hub_access::tests::by_stand_in;
    use crate::bootstrap::exchange::tests::GUARD;
    use crate::bootstrap::system;
    use crate::os::munge::PAYLOAD;
    use crate::os::munge::stand_in::{OWN, SILENT};
    use crate::wire::handshake::{Client, HUB, Peer, Secret, job_name};
    use std::io::Write;
    use std::net::TcpStream;

    #[test]
    fn a_credential_for_which_munge_does_not_answer_holds_up_no_other() {
        let mut hub = RelayListener::new(by_stand_in(), Audience::ThisHost, 3).expect("hub");
        let hosts = ["ant", "bee", "cow"].map(str::to_owned).to_vec();
        let mut server = Server::hub("job", hosts).expect("server");
        let place = tcp::local_address(hub.listeners[0].as_fd()).expect("address");
        let begin = |credential: &[u8]| {
            let mut stream = TcpStream::connect(place).expect("connection");
            stream.write_all(&credential::encode(credential).expect("short")).expect("hub");
            stream.set_nonblocking(true).expect("nonblocking");
            stream
        };
        let guard = GUARD.deadline();
        let mut turn = |hub: &mut RelayListener| {
            assert!(!guard.passed(), "the hub is held up");
            let mut fds = Vec::new();
            let limit = hub.watches(&mut fds);
            system::wait(&fds, guard, limit);
            hub.serve(&mut server);
        };
        let _silent = begin(SILENT);
        while !hub.unauthenticated.iter().any(Unauthenticated::waits_for_munge) {
            turn(&mut hub);
        }
        let stream = begin(OWN);
        let secret = Secret { job: job_name("job"), key: [0; PAYLOAD] };
        let to = Peer { rank: HUB, purpose: Purpose::Meeting };
        let nonce = system::random().expect("nonce");
        let mut client = Client::new(&secret, 1, to, nonce);
        while hub.links.is_empty() {
            turn(&mut hub);
            let outcome = continue_handshake(stream.as_fd(), &mut client);
            assert!(!matches!(outcome, Some(State::Refused(_))), "{outcome:?}");
        }
        // The other one is refused in its time, for a reason.
        let [silent] = &mut hub.unauthenticated[..] else { panic!("it waits") };
        silent.until = Instant::now();
        while !hub.unauthenticated.is_empty() {
            turn(&mut hub);
        }
        let why = hub.last_error.expect("refused");
        assert!(why.contains("munged does not answer"), "{why}");
    }
}
