//! Connections that go on by the next pair, where no socket may carry their data.
//!
//! When the pair of a connection ends, a sender that hears what was handled of its bytes waits for
//! the next pair, unless what is left is no data. Then it says by the socket from which number the
//! new one goes on, and sends what is left under that: first data that was written ahead, then
//! bytes. The receiver goes on in the middle of the frame that it stands in. What settles the pair
//! goes by the socket, beside the bytes; what settles other pairs waits with them.
//!
//! Invariant: a half waits while there is an attempt at a pair, or one is about to begin. Where
//! there will be none its connection breaks.

use super::byte_stream::{StreamUser, Streams};
use super::lane::{Lane, LaneState};
use super::{STREAM, Verbs};
use crate::ids::Rank;
use crate::os::clock::monotonic_ns;
use crate::transport::tcp::connection::Connection;
use std::sync::Arc;

impl StreamUser {
    /// Whether this connection goes on by the next pair.
    pub(super) fn continues(&self, token: u64) -> bool {
        self.of.lock().continues == Some(token)
    }

    /// A connection does not go on by the next pair.
    pub(super) fn forget(&self, token: u64) {
        self.of.lock().continues.take_if(|continues| *continues == token);
    }

    /// A connection has got a carrier, whose pair may be gone already. With the lane's lock.
    pub(super) fn settle(&self, token: u64, is_gone: bool, by_next: bool) {
        let mut of = self.of.lock();
        if is_gone {
            of.token = None;
        }
        of.continues = Some(token).filter(|_| is_gone && by_next);
    }
}

impl Streams {
    /// What has come under a number is continued under another one.
    fn rename(&mut self, peer: Rank, from: u32, to: u32) {
        if let Some(mut known) = self.known.remove(&(peer, from)) {
            known.incoming.messages = 0;
            self.known.insert((peer, to), known);
        }
    }
}

impl LaneState {
    /// Whether the pair is to be taken down, and has failed. An attempt that is refused is none:
    /// it is not repeated, or by time.
    pub(super) fn has_failed_itself(&self) -> bool {
        let is_refused = self.refuses() && self.pairing.is_being_made();
        self.has_failed() && !self.is_return() && !is_refused
    }
}

impl Verbs<'_> {
    /// What has come of the bytes with a number, which nothing comes under any more, is continued
    /// under another one.
    pub(crate) fn continue_incoming(self, peer: Rank, from: u32, to: u32) {
        self.table.receives.lock().streams.rename(peer, from, to);
    }

    /// Whether connections may have to go on by another pair.
    pub(super) fn may_continue(self) -> bool {
        self.table.has_to_carry_messages() && !self.table.condition.has_failed()
    }

    /// A pair is to be taken down: failures of those before are forgotten if it has failed after it
    /// has carried messages for long.
    pub(super) fn forgive_failures(self, lane: &Lane, state: &LaneState) {
        if state.pairing.is_up() && state.has_failed_itself() {
            let failure_ns = self.stream.identity.dead_after.as_nanos() as u64;
            let acknowledged = state.direct.freed();
            lane.user.failures.lock().forgive(monotonic_ns(), failure_ns, acknowledged);
        }
    }

    /// Whether a pair carries another connection, or has to go on with another one first.
    pub(super) fn has_to_wait(self, lane: &Lane, connection: &Arc<Connection>) -> bool {
        let of = lane.user.of.lock();
        let (token, continues) = (of.token, of.continues);
        drop(of);
        let open = |token: u64| self.stream.connections.get(token);
        if token.and_then(open).is_some() {
            // Once that has ended.
            return true;
        }
        let first = continues.filter(|token| *token != connection.token).and_then(open);
        first.is_some_and(|first| !first.is_by_socket())
    }

    /// Forgets what is kept for connections that have ended meanwhile.
    pub(super) fn forget_ended(self) {
        if !self.table.has_to_carry_messages() {
            return;
        }
        let is_open = |token: u64| self.stream.connections.get(token).is_some();
        for lane in self.table.used(Some(STREAM)) {
            let of = lane.user.of.lock();
            let senders = [of.token, of.continues];
            drop(of);
            if !senders.into_iter().flatten().any(is_open) {
                senders[1].into_iter().for_each(|token| lane.user.forget(token));
                lane.user.ahead.forget();
            }
        }
    }

    /// There will be no pair: connections that wait for one come to their end, of which either side
    /// may be the sender. With the lane's lock.
    pub(super) fn abort_waiting(self, lane: &Lane) {
        if lane.queue == STREAM && self.table.has_to_carry_messages() {
            self.abort_connections(lane);
        }
    }
}
