//! Exchanges over several machines: what the hub does with its links to the relays on the other
//! machines, and a relay with its one link to the hub.
//!
//! A link carries the [relay protocol](relay_protocol) over what the owner has: pipes of ssh, a TCP
//! stream after the handshake. [`Server::feed`] takes the bytes that came, [`Server::take`] gives
//! those that have to go; nothing here knows sockets.

use super::areas::{self, AreaKey};
use super::state::{ConnectionId, ServerState};
use super::{Peer, Request, Role, Server};
use crate::bootstrap::cards;
use crate::bootstrap::exchange::message::{Failure, Join, Message};
use crate::bootstrap::exchange::relay_protocol::{
    self, CARDS_BYTES_MAX, CONNECTIONS_MAX, RelayDecoder, RelayFrame, ToHub, ToRelay,
};
use crate::bootstrap::system::random;
use crate::bootstrap::{Card, KEY_BYTES};
use crate::error::{Error, Result};
use crate::ids::Rank;
use crate::os::process;
use crate::wire::codec::{DecodeError, Decoded};
use crate::wire::shared_layout::SharedLayout;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

/// A link of the hub to a relay.
pub type RelayId = u32;

/// Where the number of the link begins in the number of a connection; link 0 is this machine.
pub(super) const LINK_SHIFT: u32 = 40;
const LOCAL: u64 = (1 << LINK_SHIFT) - 1;

/// Bytes of both directions of a link.
#[derive(Debug)]
struct Channel {
    came: RelayDecoder,
    out: Vec<Arc<[u8]>>,
}

impl Channel {
    fn new(hello: Arc<[u8]>) -> Channel {
        Channel { came: RelayDecoder::default(), out: vec![hello] }
    }
}

/// The hub's side of a link.
#[derive(Debug)]
struct Link {
    channel: Channel,
    /// The ranks that the launcher starts there.
    ranks: Vec<Rank>,
    /// The connections that have registered, and when.
    since: HashMap<ConnectionId, Instant>,
}

/// The server that decides about all rounds, and its links.
#[derive(Debug)]
pub(crate) struct Hub {
    pub(super) state: ServerState,
    links: BTreeMap<RelayId, Link>,
    /// Those that may have something to say since that was asked last.
    speaking: BTreeSet<RelayId>,
    next: RelayId,
}

impl Hub {
    pub(crate) fn new(state: ServerState) -> Hub {
        Hub { state, links: BTreeMap::new(), speaking: BTreeSet::new(), next: 1 }
    }

    pub(super) fn spans_hosts(&self) -> bool {
        self.state.spans_hosts()
    }

    /// When a connection of another machine asked to take part.
    pub(super) fn since(&self, connection: ConnectionId) -> Option<Instant> {
        let link = self.links.get(&link_of(connection))?;
        link.since.get(&connection).copied()
    }

    fn push(&mut self, id: RelayId, frame: &ToRelay) {
        if let Some(link) = self.links.get_mut(&id) {
            link.channel.out.push(frame.encode());
            self.speaking.insert(id);
        }
    }

    /// Says the same to all relays.
    fn push_to_all(&mut self, frame: &ToRelay) {
        let bytes = frame.encode();
        self.links.values_mut().for_each(|link| link.channel.out.push(Arc::clone(&bytes)));
        self.speaking.extend(self.links.keys());
    }
}

/// The server of a machine whose exchange is decided by the hub.
#[derive(Debug)]
pub(crate) struct Relay {
    channel: Channel,
    /// Areas for the ranks that wait, so that a lack of memory is known before the table comes.
    prepared: HashMap<AreaKey, Arc<OwnedFd>>,
    /// Of the table that is coming: the bytes of its cards, and who gets it.
    cards: Vec<u8>,
    members: Vec<ConnectionId>,
    /// The ranks that those here wait for, as far as the hub has said.
    pub(super) missing: Vec<Rank>,
}

impl Relay {
    pub(crate) fn new() -> Relay {
        let hello = ToHub::Hello { version: relay_protocol::VERSION }.encode();
        Relay {
            channel: Channel::new(hello),
            prepared: HashMap::new(),
            cards: Vec::new(),
            members: Vec::new(),
            missing: Vec::new(),
        }
    }

    fn push(&mut self, frame: &ToHub) {
        self.channel.out.push(frame.encode());
    }

    pub(super) fn say(&mut self, connection: ConnectionId, message: Message) {
        self.push(&ToHub::Relayed { connection, message });
    }

    pub(super) fn closed(&mut self, connection: ConnectionId) {
        self.push(&ToHub::Closed { connection });
    }
}

fn link_of(connection: ConnectionId) -> RelayId {
    // Links have far fewer numbers than there is room for.
    (connection >> LINK_SHIFT) as RelayId
}

/// The connections of each link, as it numbers them; those of this machine under 0.
fn by_link(connections: &[ConnectionId]) -> BTreeMap<RelayId, Vec<u64>> {
    let mut all: BTreeMap<RelayId, Vec<u64>> = BTreeMap::new();
    for connection in connections {
        all.entry(link_of(*connection)).or_default().push(connection & LOCAL);
    }
    all
}

impl Server {
    /// The only link of a relay, to its hub.
    pub const UPSTREAM: RelayId = 0;

    /// A link of the hub to another machine, on which the launcher starts these ranks.
    pub fn add_relay(&mut self, ranks: &[Rank]) -> RelayId {
        let Role::Hub(hub) = &mut self.role else { return Server::UPSTREAM };
        let id = hub.next;
        hub.next += 1;
        let channel = Channel::new(ToRelay::Hello { version: relay_protocol::VERSION }.encode());
        let link = Link { channel, ranks: ranks.to_vec(), since: HashMap::new() };
        hub.links.insert(id, link);
        hub.speaking.insert(id);
        id
    }

    /// Takes bytes that came from the other end of a link.
    ///
    /// # Errors
    /// The other end speaks another version or nonsense: end it, and call [`Server::cut`].
    pub fn feed(&mut self, link: RelayId, bytes: &[u8]) -> Result<()> {
        match self.channel(link) {
            Some(channel) => channel.came.feed(bytes),
            None => return Ok(()),
        }
        let understood = match self.role {
            Role::Hub(_) => self.unpack(link, |host, frame| host.heard(link, frame)),
            Role::Relay(_) => self.unpack(link, Server::told),
        };
        understood.map_err(|error| Error::Meeting {
            reason: match error {
                DecodeError::Version(version) => format!(
                    "the other host speaks version {version} of the meeting, this one version {}; \
                     use one version of the library and of gaspi_run on all hosts",
                    relay_protocol::VERSION
                ),
                what => format!("the other host sent what is not understood: {what}"),
            },
        })
    }

    /// The links of the hub that may have something to say since the last call.
    pub(in crate::bootstrap::exchange) fn speaking(&mut self) -> BTreeSet<RelayId> {
        match &mut self.role {
            Role::Hub(hub) => std::mem::take(&mut hub.speaking),
            Role::Relay(_) => BTreeSet::new(),
        }
    }

    /// What has to go to the other end of a link, in this order. To be asked for after every call
    /// that may have something to say.
    pub fn take(&mut self, link: RelayId) -> Vec<Arc<[u8]>> {
        self.channel(link).map_or(Vec::new(), |channel| std::mem::take(&mut channel.out))
    }

    /// A link has ended; `how` says it in words. On the hub the ranks behind it are gone; on a
    /// relay those who wait are told that the exchange has failed.
    pub fn cut(&mut self, link: RelayId, how: &str) {
        match &mut self.role {
            Role::Hub(hub) => {
                let Some(ended) = hub.links.remove(&link) else { return };
                for rank in ended.ranks {
                    self.gone(rank, how);
                }
                for connection in ended.since.into_keys() {
                    let Role::Hub(hub) = &mut self.role else { return };
                    let actions = hub.state.closed(connection);
                    self.act(actions);
                }
            }
            Role::Relay(_) => {
                let failure = Failure::Meeting(how.to_owned());
                self.dismiss(&Message::Failed(failure));
            }
        }
    }

    /// This machine, on which `rank` is, cannot take part: all ranks that hear from this server are
    /// told why.
    pub(in crate::bootstrap::exchange) fn fail(&mut self, rank: Rank, error: Error) {
        let failure = match error {
            Error::Environment { reason } => Failure::Environment(reason),
            other => other.into(),
        };
        match &mut self.role {
            Role::Hub(hub) => {
                let actions = hub.state.failed(rank, failure);
                self.act(actions);
            }
            Role::Relay(_) => self.dismiss(&Message::Failed(failure)),
        }
    }

    /// The launcher has started `rank` as this process, on this machine.
    pub fn started(&mut self, rank: Rank, pid: i32) {
        match &mut self.role {
            Role::Hub(hub) => {
                if let Some(start_status) = hub.state.start_status() {
                    start_status.started(rank, pid);
                }
                self.act(Vec::new());
            }
            Role::Relay(relay) => relay.push(&ToHub::Started { rank, pid }),
        }
    }

    /// The process of `rank` has ended; `how` says it as in "exit status 1". The ranks
    /// that wait for it to join are told, and in a job over several hosts also those with which
    /// it was in the job.
    pub fn gone(&mut self, rank: Rank, how: &str) {
        // A moment before its end it may have said that it leaves, or that it cannot come.
        self.accept();
        let new = self.select(|peer| peer.joined.is_none() && !peer.leaving);
        for connection in self.holders(rank).into_iter().chain(new) {
            self.hear(connection);
        }
        match &mut self.role {
            Role::Hub(hub) => {
                let actions = hub.state.gone(rank, how);
                self.act(actions);
            }
            Role::Relay(relay) => relay.push(&ToHub::Gone { rank, how: how.to_owned() }),
        }
    }

    fn channel(&mut self, link: RelayId) -> Option<&mut Channel> {
        match &mut self.role {
            Role::Hub(hub) => hub.links.get_mut(&link).map(|link| &mut link.channel),
            Role::Relay(relay) => Some(&mut relay.channel),
        }
    }

    fn unpack<T: RelayFrame>(
        &mut self,
        link: RelayId,
        mut handle: impl FnMut(&mut Server, T),
    ) -> Decoded<()> {
        // A frame may end the link.
        while let Some(channel) = self.channel(link) {
            match channel.came.next()? {
                Some(frame) => handle(self, frame),
                None => break,
            }
        }
        Ok(())
    }

    /// The hub hears from a relay.
    fn heard(&mut self, link: RelayId, frame: ToHub) {
        let Role::Hub(hub) = &mut self.role else { return };
        let number = |connection: u64| u64::from(link) << LINK_SHIFT | connection & LOCAL;
        let actions = match frame {
            ToHub::Relayed { connection, message: Message::Join(join) } => {
                let connection = number(connection);
                if let Some(link) = hub.links.get_mut(&link) {
                    link.since.insert(connection, Instant::now());
                }
                return self.join(connection, join);
            }
            ToHub::Relayed { connection, message } => hub.state.hear(number(connection), &message),
            ToHub::Closed { connection } => {
                let connection = number(connection);
                if let Some(link) = hub.links.get_mut(&link) {
                    link.since.remove(&connection);
                }
                hub.state.closed(connection)
            }
            ToHub::Failed { rank, failure } => hub.state.failed(rank, failure),
            ToHub::Started { rank, pid } => return self.started(rank, pid),
            ToHub::Gone { rank, how } => return self.gone(rank, &how),
            ToHub::Hello { .. } => Vec::new(),
        };
        self.act(actions);
    }

    /// Says this to ranks of any machine; of the hub.
    pub(super) fn tell(&mut self, to: &[ConnectionId], message: &Message) {
        for (link, connections) in by_link(to) {
            if link == Server::UPSTREAM {
                self.send_all(connections, message);
            } else if let Role::Hub(hub) = &mut self.role {
                for part in connections.chunks(CONNECTIONS_MAX) {
                    let (connections, message) = (part.to_vec(), message.clone());
                    hub.push(link, &ToRelay::Send { connections, message });
                }
            }
        }
    }

    /// Says this to a rank of any machine and closes its connection; of the hub.
    pub(super) fn turn_down(&mut self, to: ConnectionId, message: &Message) {
        let link = link_of(to);
        match &mut self.role {
            Role::Hub(hub) if link != Server::UPSTREAM => {
                if let Some(link) = hub.links.get_mut(&link) {
                    link.since.remove(&to);
                }
                let connections = vec![to & LOCAL];
                hub.push(link, &ToRelay::Refuse { connections, message: message.clone() });
            }
            _ => self.refuse(to, message),
        }
    }

    /// A member wants `rank` to be ended, on any machine.
    pub(super) fn kill(&mut self, rank: Rank) {
        if let Role::Hub(hub) = &mut self.role {
            let claimed = hub.state.connection_of(rank.0).map(link_of);
            let starts = || {
                let found = hub.links.iter().find(|(_, link)| link.ranks.contains(&rank));
                found.map(|(id, _)| *id)
            };
            let link = claimed.or_else(starts).unwrap_or(Server::UPSTREAM);
            if link != Server::UPSTREAM {
                return hub.push(link, &ToRelay::Kill(rank));
            }
        }
        let member = self.peers.values().find(|peer| peer.is_rank(rank));
        let member = member.and_then(|peer| Some((peer.pid, peer.joined?.start_time)));
        let process = member.and_then(|(pid, start)| process::open(pid, start).ok()).flatten();
        self.requests.push(Request::Kill { rank, process });
    }

    /// Tells all that are in the job that `rank` has died.
    pub(super) fn died(&mut self, rank: Rank, how: &str) {
        let members = self.select(|peer| peer.is_in_job() && !peer.is_rank(rank));
        self.send_all(members, &Message::Died { rank, how: how.to_owned() });
        if let Role::Hub(hub) = &mut self.role {
            hub.push_to_all(&ToRelay::Died { rank, how: how.to_owned() });
        }
    }

    /// All have registered: sends the table to all machines; of the hub.
    pub(super) fn send_table(&mut self, to: &[ConnectionId], cards: &[Card], group_max: u32) {
        let mut remote = by_link(to);
        let local = remote.remove(&Server::UPSTREAM).unwrap_or_default();
        if self.once {
            self.close_meeting(&local);
        }
        let size = cards.len() as u32;
        let own = to.iter().zip(cards).filter(|(to, _)| link_of(**to) == Server::UPSTREAM);
        let layout = SharedLayout::new(size, group_max);
        let keys = own.map(|(_, card)| AreaKey { node: card.node, layout });
        let image = cards::encode(cards);
        let made = areas::create_all(keys).and_then(|areas| {
            Ok((areas, areas::create_cards(&image)?, random::<16>()?, random::<KEY_BYTES>()?))
        });
        let (areas, cards, token, key) = match made {
            Ok(made) => made,
            Err(error) => {
                let message = Message::Failed(error.into());
                for to in to {
                    if let Role::Hub(hub) = &mut self.role {
                        hub.state.dismiss(*to);
                    }
                    self.turn_down(*to, &message);
                }
                return;
            }
        };
        if let Role::Hub(hub) = &mut self.role {
            let parts = image.chunks(CARDS_BYTES_MAX);
            let parts: Vec<Arc<[u8]>> =
                parts.map(|part| ToRelay::Cards(part.to_vec()).encode()).collect();
            hub.speaking.extend(hub.links.keys());
            for (id, link) in &mut hub.links {
                let out = &mut link.channel.out;
                let Some(connections) = remote.get(id) else {
                    if self.once {
                        out.push(ToRelay::Over.encode());
                    }
                    continue;
                };
                out.extend(parts.iter().cloned());
                let mut parts = connections.chunks(CONNECTIONS_MAX);
                while let Some(part) = parts.next() {
                    let (connections, last) = (part.to_vec(), parts.len() == 0);
                    out.push(ToRelay::Table { connections, token, key, last }.encode());
                }
            }
        }
        self.hand_out(&local, &Message::Table { token, key }, &cards, areas);
    }

    /// Nothing more comes of this exchange: sends all that wait, here and on other machines, to
    /// another one.
    pub(in crate::bootstrap::exchange) fn dismiss_all(&mut self) {
        if let Role::Hub(hub) = &mut self.role {
            hub.push_to_all(&ToRelay::Over);
        }
        self.close_meeting(&[]);
    }

    /// The connections of this machine that take part as `rank`, or did until a moment ago.
    fn holders(&self, rank: Rank) -> Vec<ConnectionId> {
        self.select(|peer| peer.is_rank(rank) && !peer.leaving)
    }

    /// The connections of this machine for which `wanted` holds.
    fn select(&self, wanted: impl Fn(&Peer) -> bool) -> Vec<ConnectionId> {
        let wanted = self.peers.iter().filter(|(_, peer)| wanted(peer));
        wanted.map(|(connection, _)| *connection).collect()
    }

    /// Sends a message to connections of this machine.
    fn send_all(&mut self, to: Vec<ConnectionId>, message: &Message) {
        let bytes: Arc<[u8]> = message.encode().into();
        to.into_iter().for_each(|to| self.send(to & LOCAL, bytes.clone(), Vec::new()));
    }

    /// A rank of this machine wants to register, and the hub decides.
    pub(super) fn pass_on(&mut self, connection: ConnectionId, join: Join) {
        // The one that held this rank may have left a moment ago: its end goes first.
        for other in self.holders(join.card.rank).into_iter().filter(|other| *other != connection) {
            self.hear(other);
        }
        let Some(registration) = self.peers.get(&connection).and_then(|peer| peer.joined) else {
            return;
        };
        let (rank, area) = (registration.rank, registration.area);
        let Role::Relay(relay) = &mut self.role else { return };
        // What was prepared for those who were refused since then is not needed.
        let held: Vec<AreaKey> =
            self.peers.values().filter_map(|peer| Some(peer.joined?.area)).collect();
        relay.prepared.retain(|area, _| held.contains(area));
        if !relay.prepared.contains_key(&area) {
            match areas::create_all(std::iter::once(area)) {
                Ok(areas) => relay.prepared.extend(areas),
                Err(error) => relay.push(&ToHub::Failed { rank, failure: error.into() }),
            }
        }
        relay.say(connection, Message::Join(join));
    }

    /// A relay is told something by its hub.
    fn told(&mut self, frame: ToRelay) {
        let Role::Relay(relay) = &mut self.role else { return };
        match frame {
            ToRelay::Send { connections, message } => {
                if let Message::Missing { first, .. } = &message {
                    relay.missing.clone_from(first);
                }
                self.send_all(connections, &message);
            }
            ToRelay::Refuse { connections, message } => {
                connections.into_iter().for_each(|to| self.refuse(to & LOCAL, &message));
            }
            ToRelay::Cards(part) => relay.cards.extend(part),
            ToRelay::Table { connections, token, key, last } => {
                relay.members.extend(connections.into_iter().map(|to| to & LOCAL));
                if last {
                    self.table_came(&Message::Table { token, key });
                }
            }
            ToRelay::Kill(rank) => self.kill(rank),
            ToRelay::Died { rank, how } => self.died(rank, &how),
            ToRelay::Over => self.dismiss(&Message::Over),
            ToRelay::Hello { .. } => {}
        }
    }

    /// A relay has the whole table for the ranks of its machine.
    fn table_came(&mut self, message: &Message) {
        let Role::Relay(relay) = &mut self.role else { return };
        let (image, members) =
            (std::mem::take(&mut relay.cards), std::mem::take(&mut relay.members));
        relay.missing.clear();
        let registrations = members.iter().filter_map(|to| self.peers.get(to)?.joined);
        let mut areas = HashMap::new();
        for registration in registrations {
            // Used once only: the next round needs a fresh one.
            if let Some(area) = relay.prepared.remove(&registration.area) {
                areas.insert(registration.area, area);
            }
        }
        if self.once {
            self.close_meeting(&members);
        }
        match areas::create_cards(&image) {
            Ok(cards) => self.hand_out(&members, message, &cards, areas),
            // The hub holds them for members: that they end is told as of any other.
            Err(error) => {
                let failed = Message::Failed(error.into());
                members.into_iter().for_each(|to| self.refuse(to, &failed));
            }
        }
    }

    /// Tells all ranks that wait here the reason.
    pub(in crate::bootstrap::exchange) fn explain(&mut self, words: &str) {
        let words = words.to_owned();
        let waiting = self.select(|peer| !peer.leaving && peer.joined.is_some());
        self.send_all(waiting, &Message::Missing { count: 0, first: Vec::new(), words });
    }

    /// Sends all ranks that wait here away with this message.
    pub(super) fn dismiss(&mut self, message: &Message) {
        let waiting = self.select(|peer| !peer.leaving && !peer.is_in_job());
        if self.once {
            self.close_meeting(&waiting);
        }
        waiting.into_iter().for_each(|to| self.refuse(to, message));
    }
}

#[cfg(test)]
#[path = "relay_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "scale_tests.rs"]
mod scale_tests;
