//! The server inside the init of a rank of a job that was started by hand: the [`Server`] of its
//! machine, and in a job over several machines the TCP side of it. On the machine of the hub that
//! is a [`RelayListener`]; on the others it is the [`Discovery`] of the hub.

use super::discovery::Discovery;
use super::hub_access::HubAccess;
use super::relay_listener::RelayListener;
use super::server::relay::{Hub, Relay};
use super::server::state::ServerState;
use super::server::{Request, Role, Server};
use crate::bootstrap::job::{Job, ServerLocation};
use crate::bootstrap::system;
use crate::error::Result;
use crate::timeout::Deadline;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The server of a machine, and its way to the others.
#[derive(Debug)]
pub(super) struct EmbeddedServer {
    pub(super) server: Server,
    since: Instant,
    others: Others,
}

#[derive(Debug)]
enum Others {
    /// All ranks are on this machine.
    None,
    Hub(Box<RelayListener>),
    Relay(Box<Discovery>),
}

impl EmbeddedServer {
    /// Begins to serve behind `listener`, which has the name that the machine's ranks know.
    pub(super) fn new(job: &Job, name: &str, listener: OwnedFd) -> Result<EmbeddedServer> {
        let (role, others) = match &job.server {
            ServerLocation::OverHosts { hub, .. } => {
                let access = HubAccess::new(job, hub)?;
                if hub.here {
                    let state = ServerState::over_hosts(&job.id, Arc::clone(&job.hosts));
                    let listener = RelayListener::new(access, hub.audience, job.size)?;
                    (Role::Hub(Hub::new(state)), Others::Hub(Box::new(listener)))
                } else {
                    let discovery = Box::new(Discovery::new(job, hub, access));
                    (Role::Relay(Relay::new()), Others::Relay(discovery))
                }
            }
            _ => (Role::Hub(Hub::new(ServerState::new(&job.id, job.size))), Others::None),
        };
        Ok(EmbeddedServer {
            server: Server::once(name, listener, role)?,
            since: Instant::now(),
            others,
        })
    }

    /// Does what can be done without waiting.
    pub(super) fn serve(&mut self) {
        for request in self.server.serve() {
            if let Request::Missing { text } = request {
                // Each is told: the time differs.
                let waited = self.since.elapsed().as_secs();
                log::error!("proc_init: {waited} s have passed, still waiting for {text}");
            }
        }
        match &mut self.others {
            Others::None => {}
            Others::Hub(listener) => listener.serve(&mut self.server),
            Others::Relay(discovery) => discovery.serve(&mut self.server),
        }
    }

    /// Whether all have been sent the outcome of the round.
    pub(super) fn finished(&self) -> bool {
        let farewell = match &self.others {
            Others::Hub(listener) => listener.is_done(),
            Others::None | Others::Relay(_) => true,
        };
        farewell && self.server.finished()
    }

    /// Serves until all ranks have heard why the exchange has failed, since those that come later
    /// would wait for each other; at most until `limit`. A relay leaves those of other machines to
    /// the hub. Whoever begins another exchange meanwhile is sent away to one that goes on.
    pub(super) fn tell_failure(mut self, limit: Deadline) {
        loop {
            self.serve();
            if self.has_told_all() || limit.passed() {
                break;
            }
            let (fds, pause) = self.watches();
            system::wait(&fds, limit, pause);
        }
        self.server.dismiss_all();
        self.serve();
    }

    fn has_told_all(&self) -> bool {
        match &self.others {
            Others::None => self.server.has_told_all(),
            Others::Hub(listener) => self.server.has_told_all() && !listener.has_output(),
            Others::Relay(discovery) => {
                let has_told_hub = discovery.has_told_hub() || self.server.is_over();
                has_told_hub && self.server.has_told_all()
            }
        }
    }

    /// What stands in the way, in words.
    pub(super) fn last_error(&self) -> Option<String> {
        match &self.others {
            Others::None => None,
            Others::Hub(listener) => listener.last_error.clone(),
            Others::Relay(discovery) => discovery.last_error(),
        }
    }

    /// What to wait for (with `true` also for room), and for how long at most.
    pub(super) fn watches(&self) -> (Vec<(BorrowedFd<'_>, bool)>, Option<Duration>) {
        let mut fds = vec![(self.server.as_fd(), false)];
        let limit = match &self.others {
            Others::None => None,
            Others::Hub(listener) => listener.watches(&mut fds),
            Others::Relay(discovery) => discovery.watches(&mut fds),
        };
        (fds, limit)
    }
}

#[cfg(test)]
#[path = "embedded_tests.rs"]
mod tests;
