//! What a rank sleeps on: its listeners, its wakeup, and the sockets of its connections in a set of
//! their own, which is polled alone or with the rest.
//!
//! Invariant: `poll` contains `data`, the wakeup and all listeners, but for a listener that has to
//! be left alone for a while.

use crate::error::Result;
use crate::os::event::{Epoll, Wakeup};
use crate::os::socket;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Names of the poll sets: pidfds carry their rank, connections count from a base.
pub(crate) const LISTENER: u64 = 0;
pub(crate) const WAKEUP: u64 = 1;
pub(crate) const LAUNCHER: u64 = 2;
pub(crate) const DATA: u64 = 3;
pub(crate) const WAKEUP_SOCKET: u64 = 4;
pub(crate) const COMPLETIONS: u64 = 5;
pub(crate) const DEVICE_EVENTS: u64 = 6;
pub(crate) const PROCESSES: u64 = 1 << 32;
pub(crate) const ATTEMPTS: u64 = 1 << 33;
pub(crate) const UNAUTHENTICATED_FROM: u64 = 1 << 40;
pub(crate) const KEEPALIVES: u64 = 1 << 41;
pub(crate) const REMOTE_LISTENERS: u64 = 1 << 42;
pub(crate) const CONNECTIONS: u64 = 1 << 43;

/// The poll sets of a rank, with what is in them from the beginning.
#[derive(Debug)]
pub(crate) struct PollSets {
    /// What the progress thread sleeps on; it contains `data`.
    pub(crate) poll: Epoll,
    /// The sockets of established connections, and this rank's wakeup socket.
    pub(crate) data: Epoll,
    pub(crate) wakeup: Arc<Wakeup>,
    wakeup_socket: Option<OwnedFd>,
    listener: Option<OwnedFd>,
    /// Listeners for ranks of other nodes.
    remote_listeners: Vec<OwnedFd>,
}

impl PollSets {
    pub(super) fn new(
        listener: Option<OwnedFd>,
        wakeup_socket: Option<OwnedFd>,
        remote_listeners: Vec<OwnedFd>,
    ) -> Result<PollSets> {
        let (poll, data) = (Epoll::new()?, Epoll::new()?);
        let wakeup = Arc::new(Wakeup::new()?);
        poll.add(wakeup.as_fd(), WAKEUP)?;
        poll.add(data.as_fd(), DATA)?;
        if let Some(wakeup_socket) = &wakeup_socket {
            data.add(wakeup_socket.as_fd(), WAKEUP_SOCKET)?;
        }
        let sets = PollSets { poll, data, wakeup, wakeup_socket, listener, remote_listeners };
        for (token, listener) in sets.listeners() {
            sets.poll.add(listener.as_fd(), token)?;
        }
        Ok(sets)
    }

    /// The listener for ranks of this node.
    pub(crate) fn listener(&self) -> Option<&OwnedFd> {
        self.listener.as_ref()
    }

    /// Peers that connect from now on are refused, as if the process had ended: values of the
    /// program may keep these sockets beyond the rank.
    pub(crate) fn stop_listening(&self) {
        for (_, listener) in self.listeners() {
            socket::shut_down(listener.as_fd());
        }
    }

    /// The listeners for ranks of other nodes.
    pub(crate) fn remote_listeners(&self) -> &[OwnedFd] {
        &self.remote_listeners
    }

    /// All listeners with their names.
    fn listeners(&self) -> impl Iterator<Item = (u64, &OwnedFd)> {
        let local = self.listener.iter().map(|listener| (LISTENER, listener));
        local.chain((REMOTE_LISTENERS..).zip(&self.remote_listeners))
    }

    /// Polls all listeners again, after some were taken out.
    pub(crate) fn listen_again(&self) {
        for (token, listener) in self.listeners() {
            // Those that were never removed are there already.
            let _ = self.poll.add(listener.as_fd(), token);
        }
    }

    /// Whether what comes on connections ends a sleep on `poll`.
    pub(super) fn listen_to_data(&self, listen: bool) {
        // It was added, so it can be changed.
        let _ = self.poll.listen(self.data.as_fd(), DATA, listen);
    }

    /// Nobody is called by the wakeup socket any more for what was said so far.
    pub(crate) fn clear_wakeup_socket(&self) {
        if let Some(wakeup_socket) = &self.wakeup_socket {
            socket::clear(wakeup_socket.as_fd());
        }
    }
}
