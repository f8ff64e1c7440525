//! Wakes ranks that sleep on their sockets, where a futex cannot wake them.

use crate::error::{Error, Result};
use crate::ids::Rank;
use crate::os::{cancel, socket};
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};

/// Wakes ranks of this node that sleep on their sockets, where a futex cannot wake them.
#[derive(Debug)]
pub(crate) struct WakeupSockets {
    /// A socket without a name, to send from.
    sender: OwnedFd,
    /// The abstract names of the ranks' wakeup sockets.
    names: HashMap<Rank, String>,
}

impl WakeupSockets {
    /// For ranks with listeners of these abstract names.
    pub(crate) fn new(listeners: impl Iterator<Item = (Rank, String)>) -> Result<WakeupSockets> {
        let sender = socket::datagram(None).map_err(|e| Error::os("making a socket", &e))?;
        let names = listeners.map(|(rank, name)| (rank, WakeupSockets::name(&name))).collect();
        Ok(WakeupSockets { sender, names })
    }

    /// The wakeup socket of the rank whose listener has this name.
    pub(crate) fn bind(listener: &str) -> Result<OwnedFd> {
        socket::datagram(Some(&WakeupSockets::name(listener)))
            .map_err(|error| Error::os("making the doorbell of this rank", &error))
    }

    fn name(listener: &str) -> String {
        format!("{listener}-bell")
    }

    pub(super) fn wake(&self, rank: Rank) {
        if let Some(name) = self.names.get(&rank) {
            // Also from fast paths.
            let _uncancelled = cancel::hold_off();
            socket::send_to(self.sender.as_fd(), name);
        }
    }
}
