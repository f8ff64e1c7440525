//! Connections that a pair has carried go back to their sockets when it ends.
//!
//! Whoever takes its end down, since that has failed, or its port is down, or the peer has said
//! that its own end is gone, does it in this order:
//!
//! 1. it stops the end: nothing comes by it any more, and nothing that was posted leaves;
//! 2. it handles all that has come by it; what has a number of which the socket has not told yet
//!    stays until it does;
//! 3. it says on each connection how many messages have come of the bytes that the peer sends by
//!    its device for it ([`Frame::Back`]), and destroys the end.
//!
//! It says so once more where the socket tells later of bytes that were to come by that end: it may
//! bring the news on a connection that was not there before.
//!
//! A sender that hears this sends by its socket what was not handled, and what follows
//! ([`Frame::Resume`]), or by the [next pair](super::continuing) where no socket may carry it. Each
//! half of a connection does so by itself.
//!
//! A rank whose device has failed, or does not stop the end, breaks the connections instead: what
//! its device has acknowledged may not be in memory, and waits of the peer that ended with an
//! acknowledgement are believed as long as its connection lives.
//!
//! Invariant: a message is counted if and only if it has been handled, or will be.

use super::byte_stream::{Chunk, Streams};
use super::kept::{KeptBytes, KeptPart, Live};
use super::lane::{Kind, Lane, LaneState};
use super::queue_pair::STREAM_HEAD;
use super::receives::Receives;
use super::{STREAM, Verbs};
use crate::ids::Rank;
use crate::sync::Ordering;
use crate::transport::CameByEnded;
use crate::transport::software_target::Stopped;
use crate::transport::tcp::connection::{Broken, Connection};
use crate::wire::frame::Frame;
use std::sync::Arc;

/// Why a pair ends whose peer has taken its end down.
pub(super) const PEER_IS_GONE: &str = "the peer's end is gone";

impl Streams {
    /// The number of the last messages of `peer` of which the socket has not told: they stay until
    /// it does, since the peer may forget what was acknowledged.
    fn count_parked(&mut self, peer: Rank) -> Option<u32> {
        let of_it = self.parked.iter().filter(|(of, _, _)| *of == peer);
        let number = of_it.map(|(_, number, _)| *number).max();
        let Streams { parked, counted, .. } = self;
        counted.retain(|one| parked.iter().any(|(of, number, _)| (*of, *number) == *one));
        counted.extend(number.map(|number| (peer, number)));
        number
    }

    /// How many messages of this number have come: were handled, or will be once the socket has
    /// told of them.
    pub(super) fn messages_of(&self, peer: Rank, number: u32) -> u64 {
        let handled = self.known.get(&(peer, number)).map_or(0, |known| known.incoming.messages);
        let is_one = |parked: &&(Rank, u32, Chunk)| (parked.0, parked.1) == (peer, number);
        handled + self.parked.iter().filter(is_one).count() as u64
    }
}

impl Verbs<'_> {
    /// The port is down, or without a GID: connections leave the pairs, which would bring nothing.
    pub(super) fn leave_pairs(self, why: &str) {
        if self.table.forced {
            return;
        }
        for lane in self.table.used(Some(STREAM)) {
            let mut state = lane.lock();
            if state.pair.is_some() {
                state.note_return(why);
                self.table.has_stalled.store(true, Ordering::Release);
            }
        }
        self.stream.sets.wakeup.wake();
    }

    /// The peer has taken its end of this attempt down: so does this rank, before this returns.
    pub(crate) fn messages_ended(self, peer: Rank, attempt: u32) {
        // A device that has failed says so before it is asked for anything.
        self.heed_events();
        let mut state = self.table.lane(STREAM, peer).lock();
        if state.pairing.attempt() == attempt && state.pair.is_some() {
            state.note_return(PEER_IS_GONE);
            self.table.has_stalled.store(true, Ordering::Release);
        }
        drop(state);
        self.poll_armed();
    }

    /// What has come of the messages with this number, if this rank's end of the attempt that they
    /// were to come by is no more. With a device that has failed nobody knows: the end was taken
    /// down without a word on a connection that had not switched yet.
    pub(crate) fn came_by_ended(self, peer: Rank, attempt: u32, number: u32) -> CameByEnded {
        let receives = self.table.receives.lock();
        let state = self.table.lane(STREAM, peer).lock();
        let last = state.pairing.attempt();
        if attempt > last || (attempt == last && state.pair.is_some()) {
            CameByEnded::NotOver
        } else if self.table.condition.has_failed() {
            CameByEnded::Unknown
        } else {
            CameByEnded::Messages(receives.streams.messages_of(peer, number))
        }
    }

    /// The state of what has come under a number, which nothing comes under any more.
    pub(crate) fn take_incoming(self, peer: Rank, number: u32) -> Option<Stopped> {
        let known = self.table.receives.lock().streams.known.remove(&(peer, number));
        known.map(|known| known.incoming.stop())
    }

    /// All that has come by a pair that was stopped is handled: what is to be said of that, before
    /// its end is gone.
    pub(super) fn prepare_to_go_back(self, receives: &mut Receives, lane: &Lane) {
        // The device may tell why, where it has only flushed what there was.
        self.heed_events_with(Some(receives));
        if lane.queue != STREAM {
            return;
        }
        let mut state = lane.lock();
        self.forgive_failures(lane, &state);
        let fails = self.table.condition.has_failed();
        if fails || state.pair.is_none() || !state.is_stopped() {
            return;
        }
        let peer = lane.peer;
        let parked = receives.streams.count_parked(peer);
        let attempt = state.pairing.attempt();
        let back = |connection: Arc<Connection>| {
            // The one that goes on from that which the socket has told of may be parked.
            let number = self.stream.connections.number_of(peer, &connection).max(parked);
            let number = number.unwrap_or(0);
            let messages = receives.streams.messages_of(peer, number);
            (connection, Frame::Back { attempt, number, messages })
        };
        let open = self.stream.connections.with(peer);
        state.outbox.beside.extend(open.into_iter().map(back));
        state.outbox.goes_back = true;
    }

    /// The end of a pair is taken down: what it has carried goes back, or comes to its end. With
    /// the lane's lock.
    pub(super) fn release_connections(self, lane: &Lane, state: &mut LaneState) {
        if std::mem::take(&mut state.outbox.goes_back) {
            let kept = state.take_kept();
            let by_next = self.table.has_to_carry_messages();
            lane.user.keep(state.pairing.attempt(), kept, by_next);
        } else {
            self.abort_connections(lane);
        }
    }

    /// Says on a connection that the end of the pair is gone.
    pub(super) fn say_back(self, connection: &Arc<Connection>, back: &Frame) {
        if connection.say_back(&self.stream.sets.data, back) == Err(Broken) {
            self.stream.broke(self.up, connection);
        }
    }
}

impl LaneState {
    /// What has been posted of the bytes with the last number, and has not ended.
    fn take_kept(&mut self) -> Option<KeptBytes> {
        let (pair, freed) = (self.pair.as_ref()?, self.direct.freed());
        let live = self.posted.take(freed, |buffer, len| pair.sent_from(buffer, len));
        let Live { number, before: acknowledged, messages } = live;
        let bytes = |(id, message, has_data): (u64, Vec<u8>, bool)| {
            (id, KeptPart::Bytes(message[STREAM_HEAD..].to_vec(), has_data))
        };
        let mut found: Vec<(u64, KeptPart)> = messages.into_iter().map(bytes).collect();
        for sent in &mut self.sent {
            if let Kind::Data(kept) = &mut sent.kind
                && let Some(kept) = kept.take_if(|kept| kept.number == number)
            {
                found.push((sent.last, KeptPart::Data(kept)));
            }
        }
        found.sort_by_key(|(id, _)| *id);
        let kept = found.into_iter().map(|(_, kept)| kept).collect();
        Some(KeptBytes { number, acknowledged, kept })
    }
}
