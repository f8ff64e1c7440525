//! The addresses of the hub's machine: its name goes to the resolver, in a thread of its own, since
//! no call waits for a resolver beyond its timeout. What of the answer can be tried is kept.

use crate::bootstrap::addresses::{Audience, Candidates};
use crate::bootstrap::job::HubLocation;
use crate::error::Error;
use crate::os::{interfaces, process};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::{Duration, Instant};

/// Addresses of the hub's machine that are tried.
const ADDRESSES_MAX: usize = 4;
/// How often a name that is not known is looked up again.
const LOOK_UP: Duration = Duration::from_secs(5);

/// The name of the hub's machine, and its addresses as far as they are known.
#[derive(Debug)]
pub(super) struct HubLookup {
    name: String,
    audience: Audience,
    addresses: Vec<IpAddr>,
    looked_up: Option<Instant>,
    /// The resolver, which takes its time, while it is at work.
    resolver: Option<Receiver<std::io::Result<Vec<SocketAddr>>>>,
    unresolved: Option<String>,
}

impl HubLookup {
    pub(super) fn new(hub: &HubLocation) -> HubLookup {
        let mut lookup = HubLookup {
            name: hub.host.clone(),
            audience: hub.audience,
            addresses: Vec::new(),
            looked_up: None,
            resolver: None,
            unresolved: None,
        };
        if !hub.addresses.is_empty() {
            let known: Vec<SocketAddr> =
                hub.addresses.iter().map(|ip| SocketAddr::new(*ip, 0)).collect();
            lookup.keep(&known);
        }
        lookup
    }

    /// The hub's machine, as the user named it.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// All places where the hub may be, if it uses one of these ports.
    pub(super) fn places(&self, ports: &[u16]) -> Vec<SocketAddr> {
        let at = |ip: &IpAddr| ports.iter().map(|port| SocketAddr::new(*ip, *port)).collect();
        self.addresses.iter().flat_map::<Vec<_>, _>(at).collect()
    }

    /// Why there are no addresses, or why some are not tried.
    pub(super) fn last_error(&self) -> Option<&str> {
        self.unresolved.as_deref()
    }

    /// Whether [`HubLookup::poll`] waits for the resolver.
    pub(super) fn is_pending(&self) -> bool {
        self.resolver.is_some()
    }

    /// Asks the resolver, unless there are addresses or it was asked a short time ago.
    pub(super) fn start(&mut self, now: Instant) {
        let stale = self.looked_up.is_none_or(|at| now >= at + LOOK_UP);
        if self.addresses.is_empty() && stale && self.resolver.is_none() {
            self.ask(now);
        }
    }

    fn ask(&mut self, now: Instant) {
        self.looked_up = Some(now);
        let name = self.name.trim_start_matches('[').trim_end_matches(']').to_owned();
        let (tell, resolver) = mpsc::channel();
        let asked = process::with_signals_blocked(|| {
            std::thread::Builder::new().name("gaspi-resolver".to_owned()).spawn(move || {
                // Nobody listens any more if the start has ended meanwhile.
                let _ = tell.send((name.as_str(), 0).to_socket_addrs().map(Iterator::collect));
            })
        });
        match asked {
            Ok(_) => self.resolver = Some(resolver),
            Err(error) => {
                self.unresolved = Some(Error::thread("the resolver's thread", &error).to_string());
            }
        }
    }

    /// Takes the resolver's answer, and says whether it was one with addresses.
    pub(super) fn poll(&mut self) -> bool {
        let found = match self.resolver.as_ref().map(Receiver::try_recv) {
            None | Some(Err(TryRecvError::Empty)) => return false,
            Some(Ok(found)) => found,
            Some(Err(TryRecvError::Disconnected)) => Err(std::io::ErrorKind::Other.into()),
        };
        self.resolver = None;
        match found {
            Ok(found) => self.keep(&found),
            Err(error) => {
                self.fail(&error);
                return false;
            }
        }
        true
    }

    fn keep(&mut self, found: &[SocketAddr]) {
        let candidates = Candidates::new(found, &interfaces::list(), self.audience);
        self.unresolved = candidates.lack();
        for candidate in candidates.tried {
            let ip = candidate.endpoint.ip();
            if !self.addresses.contains(&ip) && self.addresses.len() < ADDRESSES_MAX {
                self.addresses.push(ip);
            }
        }
    }

    fn fail(&mut self, error: &std::io::Error) {
        self.unresolved = Some(format!("looking up {}: {error}", self.name));
    }
}
