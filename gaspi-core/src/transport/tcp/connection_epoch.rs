//! Connections between nodes that break: what is late on them is not to undo what came after.
//!
//! Who loses a connection fails all that it has asked for on it, and asks again on a new one, while
//! the peer may not have read the old one yet. So each side counts the connections with a peer that
//! it has lost, and says first on a new one how many there were. Who hears of more than it knew
//! reads nothing further on older ones, before it handles anything of the new one.
//!
//! Invariants: what a rank has asked for on a connection that it gave up takes no effect after
//! anything that it asks for later; it has failed before anything is asked for on a new one, and
//! what was to arrive behind it does not
//! ([`Unsent::Stale`](crate::transport::tcp::connection::Unsent)).

use crate::ids::Rank;
use crate::transport::RequestFailure;
use crate::transport::Upcalls;
use crate::transport::tcp::connection::{Broken, Connection};
use crate::transport::tcp::endpoint_table::EndpointTable;
use crate::wire::message::Stream;

/// Puts of these streams were lost with their connection.
pub(super) fn fail_puts(up: &dyn Upcalls, peer: Rank, lost: Vec<(Stream, u32)>) {
    for (stream, count) in lost {
        up.completed(peer, stream, count, Err(RequestFailure::Lost));
    }
}

impl EndpointTable {
    /// A connection with `peer` has broken: nothing is asked for any more on those that there are.
    /// What `peer` has sent on them is still read, its goodbye perhaps. Only with the receiver.
    pub(super) fn advance_epoch(&self, up: &dyn Upcalls, peer: Rank) {
        let active = {
            let mut active = self.connections.active(peer);
            // Behind that connections are begun with the new count; who brings the socket of one
            // that was begun before looks at the count once it is among the others.
            self.connections.advance_epoch(peer);
            let active = active.take();
            let open = self.connections.with(peer);
            for connection in
                active.iter().chain(open.iter().filter(|open| self.connections.is_stale(open)))
            {
                fail_puts(up, peer, connection.give_up());
            }
            active
        };
        for connection in active.iter().filter(|active| active.fd().is_none()) {
            self.drop_connection(up, connection);
        }
    }

    /// `peer` says on a connection how many it had lost before: on those that it has lost, nothing
    /// is read any more. Only with the receiver.
    ///
    /// # Errors
    /// It has lost this one.
    pub(super) fn note_epoch(
        &self,
        up: &dyn Upcalls,
        connection: &Connection,
        peer: Rank,
        count: u64,
    ) -> Result<(), Broken> {
        connection.set_epoch_of_peer(count);
        let newest = self.connections.raise_epoch_of_peer(peer, count);
        let mut stale = self.connections.with(peer);
        // One that has not said it yet will.
        stale.retain(|open| open.epoch_of_peer().is_some_and(|count| count < newest));
        for connection in &stale {
            self.drop_connection(up, connection);
        }
        if !stale.is_empty() {
            // What was on its way to the peer may be lost too.
            self.suspect(up, peer);
        }
        if count < newest { Err(Broken) } else { Ok(()) }
    }
}
