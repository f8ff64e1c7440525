//! What comes by a socket behind what another carrier has brought: the rest of a frame perhaps.

use super::{Incoming, Receiver};
use crate::ids::Rank;
use crate::transport::software_target::{IncomingBody, Stopped};
use crate::transport::tcp::Tcp;
use crate::transport::tcp::connection::{Broken, Connection};

impl Incoming {
    /// Nothing more comes by this carrier.
    pub(crate) fn stop(self) -> Stopped {
        Stopped { served: self.served, partial: self.partial }
    }

    /// What follows is what follows there, where another carrier has stopped.
    pub(in crate::transport::tcp) fn take_over(&mut self, other: Stopped) {
        self.served.continue_from(other.served);
        self.partial = other.partial;
        self.taken_over = true;
    }
}

impl Receiver {
    /// Behind the frame that says that bytes go on here: the rest of the frame that they stand in
    /// the middle of, as far as it is in this range of the buffer. What is left of the range.
    pub(super) fn resume(
        &mut self,
        tcp: Tcp<'_>,
        connection: &Connection,
        incoming: &mut Incoming,
        (start, end): (usize, usize),
    ) -> Result<(usize, usize), Broken> {
        incoming.taken_over = false;
        if let Some(body) = &mut incoming.served.body {
            let len = usize::try_from(body.left).map_or(end - start, |left| left.min(end - start));
            store(tcp, connection, body, &self.buffer[start..start + len]);
            if body.left == 0 {
                tcp.arrived(connection, incoming)?;
            }
            return Ok((start + len, end));
        }
        // In front of what follows.
        let partial = std::mem::take(&mut incoming.partial);
        let len = partial.len();
        self.make_room(len + end - start);
        self.buffer.copy_within(start..end, len);
        self.buffer[..len].copy_from_slice(&partial);
        Ok((0, len + end - start))
    }
}

/// Puts payload into its place, of which the beginning may have come before.
pub(super) fn store(tcp: Tcp<'_>, connection: &Connection, body: &mut IncomingBody, bytes: &[u8]) {
    let peer = connection.peer().map(Rank);
    match peer.and_then(|peer| tcp.target().receive_target(peer, body)) {
        Some(target) => {
            // SAFETY: the rest of the payload has room there.
            unsafe { target.pointer.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            drop(target);
            body.advance(bytes.len() as u64);
        }
        None => tcp.target().store(body, bytes),
    }
}
