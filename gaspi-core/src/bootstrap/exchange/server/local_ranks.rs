//! What the server hears from the ranks of its machine, and what it sends to them.

use super::areas::{AreaKey, Areas};
use super::relay::LINK_SHIFT;
use super::state::{Action, ConnectionId, Joined};
use super::{Registration, Role, Server};
use crate::bootstrap::exchange::message::{Failure, Join, Message, VERSION};
use crate::ids::Rank;
use crate::os::{process, socket};
use crate::wire::codec::DecodeError;
use crate::wire::shared_layout::{AREA_PATH, SharedLayout};
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

impl Server {
    pub(super) fn hear(&mut self, connection: ConnectionId) {
        let Some(peer) = self.peers.get_mut(&connection) else { return };
        peer.socket.fill();
        self.flush(connection);
        while let Some(peer) = self.peers.get_mut(&connection) {
            match peer.socket.next() {
                Ok(Some(Message::Join(mut join))) => {
                    join.card.pid = peer.pid;
                    join.card.machine = self.instance;
                    join.card.node ^= self.instance;
                    peer.joined = Some(Registration {
                        rank: join.card.rank,
                        start_time: join.card.start_time,
                        area: AreaKey {
                            node: join.card.node,
                            layout: SharedLayout::new(join.size, join.group_max()),
                        },
                        in_job: false,
                    });
                    match &self.role {
                        Role::Hub(_) => self.join(connection, join),
                        Role::Relay(_) => self.pass_on(connection, join),
                    }
                }
                Ok(Some(message)) => {
                    if let (Message::Leave, Some(registration)) = (&message, &mut peer.joined) {
                        registration.in_job = false;
                    }
                    self.said(connection, message);
                }
                Ok(None) => break,
                Err(error) => self.misheard(connection, &error),
            }
            if self.peers.get(&connection).is_some_and(|peer| peer.leaving) {
                break;
            }
        }
        if self.peers.get(&connection).is_some_and(|peer| peer.socket.ended()) {
            self.closed(connection);
        }
    }

    /// Anything but a join that a rank of this machine says.
    fn said(&mut self, connection: ConnectionId, message: Message) {
        match &mut self.role {
            Role::Hub(hub) => {
                let actions = hub.state.hear(connection, &message);
                self.act(actions);
            }
            Role::Relay(relay) => relay.say(connection, message),
        }
    }

    /// A rank wants to register, here or at the other end of a link.
    pub(super) fn join(&mut self, connection: ConnectionId, join: Join) {
        let rank = join.card.rank;
        let Role::Hub(hub) = &mut self.role else { return };
        let mut joined = hub.state.join(connection, join.clone());
        if let Joined::Claimed(by) = joined {
            // It may have left a moment ago, and its end not have been looked at yet.
            if by != connection {
                self.hear(by);
            }
            let Role::Hub(hub) = &mut self.role else { return };
            joined = hub.state.join(connection, join);
            if let Joined::Claimed(_) = joined {
                joined = Joined::Done(hub.state.refuse(connection, rank));
            }
        }
        if let Joined::Done(actions) = joined {
            self.act(actions);
        }
    }

    fn misheard(&mut self, connection: ConnectionId, error: &DecodeError) {
        let reason = match error {
            DecodeError::Version(version) => format!(
                "this rank speaks version {version} of the meeting, its host version {VERSION}; \
                 use one version of the library and of gaspi_run"
            ),
            what => format!("the host did not understand a frame: {what}"),
        };
        let actions = self.forgotten(connection);
        self.act(actions);
        self.refuse(connection, &Message::Failed(Failure::Meeting(reason)));
    }

    pub(super) fn closed(&mut self, connection: ConnectionId) {
        let replaced = self.runs_another_program(connection);
        let actions = self.forgotten(connection);
        self.part(connection);
        self.act(actions);
        if let Some((rank, pid)) = replaced {
            self.gone(rank, &format!("process {pid} runs on without the job, as after execve"));
        }
    }

    /// The member whose connection has closed without a word, if its process runs on without the
    /// job's memory. It has called execve, most likely, and nobody else would tell: the kernel
    /// replaces the memory before it closes descriptors.
    fn runs_another_program(&self, connection: ConnectionId) -> Option<(Rank, i32)> {
        let peer = self.peers.get(&connection).filter(|peer| peer.is_in_job() && !self.once)?;
        let rank = peer.joined?.rank;
        let replaced = process::maps_nothing_of(peer.pid, AREA_PATH) == Some(true);
        replaced.then_some((rank, peer.pid))
    }

    /// The rank of this connection no longer takes part.
    fn forgotten(&mut self, connection: ConnectionId) -> Vec<Action> {
        match &mut self.role {
            Role::Hub(hub) => hub.state.closed(connection),
            Role::Relay(relay) => {
                if self.peers.get(&connection).is_some_and(|peer| peer.joined.is_some()) {
                    relay.closed(connection);
                }
                Vec::new()
            }
        }
    }

    /// Closes a connection. Taken out of the set by hand: a forked child may hold a copy of the
    /// descriptors, and then closing alone would leave them there.
    fn part(&mut self, connection: ConnectionId) {
        if let Some(peer) = self.peers.remove(&connection) {
            self.set.remove(peer.socket.as_fd());
            if let Some(process) = &peer.process {
                self.set.remove(process.as_fd());
            }
        }
    }

    /// Says `message` to a rank of this machine, then closes.
    pub(super) fn refuse(&mut self, to: ConnectionId, message: &Message) {
        if let Some(peer) = self.peers.get_mut(&to) {
            peer.leaving = true;
        }
        self.send(to, message.encode().into(), Vec::new());
    }

    /// Sends the table to the ranks of this machine that met: `message` with the area of each one's
    /// node and the cards.
    pub(super) fn hand_out(
        &mut self,
        connections: &[ConnectionId],
        message: &Message,
        cards: &Arc<OwnedFd>,
        by_key: HashMap<AreaKey, Arc<OwnedFd>>,
    ) {
        let bytes: Arc<[u8]> = message.encode().into();
        let mut keys = HashMap::new();
        for to in connections {
            let Some(peer) = self.peers.get_mut(to) else { continue };
            peer.leaving = self.once;
            let Some(registration) = &mut peer.joined else { continue };
            registration.in_job = true;
            keys.insert(registration.rank, registration.area);
            let area = by_key.get(&registration.area);
            let descriptors = area.into_iter().chain([cards]).cloned().collect();
            self.send(*to, bytes.clone(), descriptors);
        }
        if !self.once {
            self.areas = Some(Areas { by_key, keys });
        }
    }

    /// Ends the listening before the table goes out, so that a rank which is fast to init again
    /// starts a new exchange. Connections that are no members are sent there too.
    pub(super) fn close_meeting(&mut self, members: &[ConnectionId]) {
        if let Some(listener) = &self.listener {
            // From now on connecting is refused; those in line can still be accepted.
            socket::shut_down(listener.as_fd());
            self.set.remove(listener.as_fd());
        }
        self.accept();
        self.listener = None;
        self.reserve = None;
        let others: Vec<ConnectionId> =
            self.peers.keys().copied().filter(|peer| !members.contains(peer)).collect();
        for other in others {
            if !self.peers[&other].leaving {
                self.refuse(other, &Message::Over);
            }
        }
    }

    /// Sends to a rank of this machine.
    pub(super) fn send(
        &mut self,
        to: ConnectionId,
        bytes: Arc<[u8]>,
        descriptors: Vec<Arc<OwnedFd>>,
    ) {
        debug_assert_eq!(to >> LINK_SHIFT, 0, "a rank of another machine");
        if let Some(peer) = self.peers.get_mut(&to) {
            peer.socket.queue(bytes, descriptors);
            self.flush(to);
        }
    }

    /// Sends what there is room for; closes the connection after its last word.
    fn flush(&mut self, to: ConnectionId) {
        let Some(peer) = self.peers.get_mut(&to) else { return };
        let sent = peer.socket.flush();
        if sent && peer.leaving {
            return self.part(to);
        }
        if peer.watching_room == sent {
            peer.watching_room = !sent;
            // It was added, so it can be changed.
            let _ = self.set.change(peer.socket.as_fd(), to, !sent);
        }
    }
}
