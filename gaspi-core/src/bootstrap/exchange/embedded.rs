//! The server inside the init of a rank of a job that was started by hand: the [`Server`] of its
//! machine, and in a job over several machines the TCP side of it. On the machine of the hub that
//! is a [`RelayListener`]; on the others it is the [`Discovery`] of the hub.

use super::discovery::Discovery;
use super::hub_access::{HubAccess, Vouching};
use super::relay_listener::RelayListener;
use super::server::relay::{Hub, Relay};
use super::server::state::ServerState;
use super::server::{Request, Role, Server};
use super::vouching::{LOOK, no_answer};
use crate::bootstrap::job::{HubLocation, Job, ServerLocation};
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
    /// All ranks are on this machine, or the exchange has failed.
    None,
    /// Munge has not said yet whether it vouches for the hosts.
    Undecided(Box<(Vouching, Job, HubLocation)>),
    Hub(Box<RelayListener>),
    Relay(Box<Discovery>),
}

impl Others {
    fn of(job: &Job, hub: &HubLocation, access: HubAccess) -> Result<Others> {
        Ok(if hub.here {
            Others::Hub(Box::new(RelayListener::new(access, hub.audience, job.size)?))
        } else {
            Others::Relay(Box::new(Discovery::new(job, hub, access)))
        })
    }
}

impl EmbeddedServer {
    /// Begins to serve behind `listener`, which has the name that the machine's ranks know.
    pub(super) fn new(job: &Job, name: &str, listener: OwnedFd) -> Result<EmbeddedServer> {
        let (role, others) = match &job.server {
            ServerLocation::OverHosts { hub, .. } => {
                let role = if hub.here {
                    Role::Hub(Hub::new(ServerState::over_hosts(&job.id, Arc::clone(&job.hosts))))
                } else {
                    Role::Relay(Relay::new())
                };
                let others = match Vouching::of(hub) {
                    Some(asked) => Others::Undecided(Box::new((asked, job.clone(), hub.clone()))),
                    None => Others::of(job, hub, HubAccess::new(job, hub, None)?)?,
                };
                (role, others)
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
        self.decide();
        for request in self.server.serve() {
            if let Request::Missing { text } = request {
                // Each is told: the time differs.
                let waited = self.since.elapsed().as_secs();
                log::error!("proc_init: {waited} s have passed, still waiting for {text}");
            }
        }
        match &mut self.others {
            Others::None | Others::Undecided(_) => {}
            Others::Hub(listener) => listener.serve(&mut self.server),
            Others::Relay(discovery) => discovery.serve(&mut self.server),
        }
    }

    /// Goes on once munge has said whether it vouches for the hosts.
    fn decide(&mut self) {
        let Others::Undecided(undecided) = &mut self.others else { return };
        let (asked, job, hub) = &mut **undecided;
        let Some(answer) = asked.poll() else { return };
        let access = answer.and_then(|munge| HubAccess::new(job, hub, munge));
        match access.and_then(|access| Others::of(job, hub, access)) {
            Ok(others) => self.others = others,
            Err(error) => {
                self.server.fail(job.rank, error);
                self.others = Others::None;
            }
        }
    }

    /// Whether all have been sent the outcome of the round.
    pub(super) fn finished(&self) -> bool {
        let farewell = match &self.others {
            Others::Hub(listener) => listener.is_done(),
            Others::None | Others::Undecided(_) | Others::Relay(_) => true,
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
            Others::Undecided(_) => false,
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
            Others::Undecided(_) => Some(no_answer()),
            Others::Hub(listener) => listener.last_error.clone(),
            Others::Relay(discovery) => discovery.last_error(),
        }
    }

    /// What to wait for (with `true` also for room), and for how long at most.
    pub(super) fn watches(&self) -> (Vec<(BorrowedFd<'_>, bool)>, Option<Duration>) {
        let mut fds = vec![(self.server.as_fd(), false)];
        let limit = match &self.others {
            Others::None => None,
            Others::Undecided(_) => Some(LOOK),
            Others::Hub(listener) => listener.watches(&mut fds),
            Others::Relay(discovery) => discovery.watches(&mut fds),
        };
        (fds, limit)
    }
}

#[cfg(test)]
#[path = "embedded_tests.rs"]
mod tests;
