//! What comes on a connection: the carrier's part of it.
//!
//! What a peer asks of this rank is [`software_target`](crate::transport::software_target)'s, which
//! gives back what there is to answer. Nothing here waits, since the receiving thread may hold or
//! be inside anything, and nothing calls the program. [`may_wait`](crate::sync::epoch::may_wait)
//! holds that.

use crate::ids::Rank;
use crate::transport::CameByEnded;
use crate::transport::software_target::{Action, SoftwareTarget};
use crate::transport::tcp::Tcp;
use crate::transport::tcp::connection::{Broken, Connection};
use crate::transport::tcp::receive::Incoming;
use crate::transport::tcp::send_queue::Item;
use crate::wire::frame::Frame;

impl<'a> Tcp<'a> {
    /// This rank as the target of what connections bring.
    pub(super) fn target(self) -> SoftwareTarget<'a> {
        SoftwareTarget {
            up: self.up,
            requests: &self.table.requests,
            posted_receives: &self.table.posted_receives,
        }
    }

    /// Handles a frame and gives the bytes of payload that follow it.
    pub(super) fn handle(
        self,
        connection: &Connection,
        incoming: &mut Incoming,
        frame: Frame,
    ) -> Result<u64, Broken> {
        // Ranks of the same node that have connected say first who they are.
        let Some(peer) = connection.peer().map(Rank) else {
            return self.greet(connection, &frame).map(|()| 0);
        };
        match self.target().handle(peer, connection.token, &mut incoming.served, frame) {
            Action::Own(frame) => self.handle_own(connection, incoming, peer, frame)?,
            action => return self.act(connection, action),
        }
        Ok(0)
    }

    /// The payload that was expected on a connection is complete.
    pub(super) fn arrived(
        self,
        connection: &Connection,
        incoming: &mut Incoming,
    ) -> Result<(), Broken> {
        let Some(peer) = connection.peer().map(Rank) else { return Err(Broken) };
        let action = self.target().arrived(peer, &mut incoming.served);
        self.act(connection, action).map(|_| ())
    }

    fn act(self, connection: &Connection, action: Action) -> Result<u64, Broken> {
        let data = &self.table.sets.data;
        match action {
            Action::Nothing => {}
            Action::Receive(size) => return Ok(size),
            Action::Answer(answer) => connection.answer_frame(data, &answer, false),
            Action::Value(answer) => {
                connection.answer_frame(data, &answer, true);
                if self.table.connections.withhold_any() && connection.withholds() {
                    // It waits for a device, which may have a pair already.
                    self.table.connections.note_news();
                    self.table.sets.wakeup.wake();
                }
            }
            Action::Data { stream, request, size, payload } => {
                let item = Item::Data { request, size, payload };
                connection.answer_in_stream(data, stream.queue, item);
            }
            Action::Refuse { stream, answer } => {
                connection.answer_in_stream(data, stream.queue, Item::Frame(answer));
            }
            Action::Answered => self.table.let_go(self.up, connection),
            Action::Abort | Action::Own(_) => return Err(Broken),
        }
        Ok(0)
    }

    /// Handles what connections say of themselves.
    fn handle_own(
        self,
        connection: &Connection,
        incoming: &mut Incoming,
        peer: Rank,
        frame: Frame,
    ) -> Result<(), Broken> {
        match frame {
            Frame::Ack { puts } => self.table.acknowledged(self.up, connection, puts),
            Frame::Goodbye => {
                self.up.ranks().note_goodbye(peer);
                // Nothing follows on this stream; there may be another one that is not at its end.
                return Err(Broken);
            }
            Frame::TurnedAway { reason } => {
                self.table.dialing.set_last_error(peer, reason);
                self.up.ranks().wake_own();
                return Err(Broken);
            }
            Frame::Epoch { count } => {
                return self.table.note_epoch(self.up, connection, peer, count);
            }
            Frame::Switch { attempt, number, continues } => {
                // What goes on behind another carrier's bytes is told of by the socket.
                let goes_on = || continues == 0 || self.go_on(connection, peer, continues, number);
                if incoming.messages != 0 || !goes_on() {
                    return Err(Broken);
                }
                self.table.connections.switch(peer, number, connection);
                // It may have come already.
                self.up.catch_up();
                match self.up.came_by_ended(peer, attempt, number) {
                    CameByEnded::NotOver => {}
                    CameByEnded::Messages(messages) => {
                        // The sender may not have heard of that on this connection.
                        let back = Frame::Back { attempt, number, messages };
                        connection.say_back(&self.table.sets.data, &back)?;
                    }
                    // The sender may wait for a count, which nobody can say.
                    CameByEnded::Unknown => return Err(Broken),
                }
            }
            // What is about another carrier comes by the socket.
            Frame::Back { attempt, number, messages } if incoming.messages == 0 => {
                self.up.ended_messages(peer, attempt);
                let data = &self.table.sets.data;
                if connection.go_back(data, (attempt, number, messages))? {
                    // It may be carried again, and whoever waits has room now.
                    self.table.connections.note_news();
                    self.table.sets.wakeup.wake();
                    self.up.ranks().wake_own();
                }
            }
            Frame::Resume { number } if incoming.messages == 0 => {
                self.table.connections.switch_back(peer, number, connection)?;
                if let Some(other) = self.up.take_incoming(peer, number) {
                    incoming.take_over(other);
                }
            }
            Frame::Release => {
                connection.note_release();
                self.table.let_go(self.up, connection);
            }
            // The first frame of a connection comes once; the others are the target's.
            _ => return Err(Broken),
        }
        Ok(())
    }

    /// Bytes of a connection go on under another number; false if they are not its own.
    fn go_on(self, connection: &Connection, peer: Rank, from: u32, to: u32) -> bool {
        let connections = &self.table.connections;
        if connections.number_of(peer, connection) != Some(from) {
            return false;
        }
        // First: what comes under the new number stands behind it.
        self.up.continue_incoming(peer, from, to);
        connections.switch_back(peer, from, connection).is_ok()
    }

    fn greet(self, connection: &Connection, frame: &Frame) -> Result<(), Broken> {
        match frame {
            Frame::Hello { rank, token }
                if u32::from(rank.0) < self.up.ranks().size
                    && *token == self.table.identity.token =>
            {
                self.table.connections.set_peer(connection, *rank);
                Ok(())
            }
            _ => Err(Broken),
        }
    }
}
