//! The connections of a hub with its relays, which know the key already.
//!
//! Invariant: a turn touches the connections on which something has come, or has room, those whose
//! relays are to be told something, and those that are to be looked at for silence: no others.

use super::farewell;
use super::server::{RelayId, Server};
use super::tcp_connection::TcpConnection;
use crate::error::Result;
use crate::os::event::Epoll;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

#[derive(Debug)]
struct Link {
    stream: TcpConnection,
    /// Whether the set tells of room on it: there is something to send.
    watches_room: bool,
    /// Its time among the looks.
    look_at: Option<Instant>,
}

/// The connections of a hub with its relays.
#[derive(Debug)]
pub(super) struct RelayLinks {
    set: Epoll,
    links: BTreeMap<RelayId, Link>,
    /// How many of them have something to send.
    pending: usize,
    /// When to look for silence on which.
    looks: BTreeSet<(Instant, RelayId)>,
    /// How often a connection was touched.
    #[cfg(test)]
    touched: usize,
}

impl RelayLinks {
    pub(super) fn new() -> Result<RelayLinks> {
        Ok(RelayLinks {
            set: Epoll::new()?,
            links: BTreeMap::new(),
            pending: 0,
            looks: BTreeSet::new(),
            #[cfg(test)]
            touched: 0,
        })
    }

    /// A relay has proved to know the key.
    pub(super) fn welcome(&mut self, server: &mut Server, stream: TcpConnection) {
        let id = server.add_relay(&[]);
        if let Err(error) = self.adopt(id, stream) {
            server.cut(id, &error.to_string());
        }
    }

    fn adopt(&mut self, id: RelayId, stream: TcpConnection) -> Result<()> {
        self.set.add(stream.as_fd(), id.into())?;
        self.links.insert(id, Link { stream, watches_room: false, look_at: None });
        self.settle(id);
        Ok(())
    }

    /// Reads what has come, and sends what `server` has to say.
    pub(super) fn serve(&mut self, server: &mut Server) {
        let mut touched = BTreeSet::new();
        let mut ready = Vec::new();
        // The kernel gives some at a time, first those that it has not given for the longest time.
        for _ in 0..=self.links.len() {
            ready.clear();
            self.set.wait(&mut ready, 0);
            let mut all_known = true;
            for event in &ready {
                let id = event.token as RelayId;
                all_known &= !touched.insert(id);
                if event.readable {
                    self.hear(server, id);
                }
            }
            if all_known {
                break;
            }
        }
        let now = Instant::now();
        while let Some((_, id)) = self.looks.first().copied().filter(|(at, _)| *at <= now) {
            self.looks.pop_first();
            touched.insert(id);
            let Some(link) = self.links.get_mut(&id) else { continue };
            link.look_at = None;
            link.stream.look_for_silence();
            cut_ended(server, id, &link.stream);
        }
        for id in server.speaking() {
            touched.insert(id);
            if let Some(link) = self.links.get_mut(&id) {
                link.stream.queue(server.take(id));
            }
        }
        for id in touched {
            self.settle(id);
        }
    }

    fn hear(&mut self, server: &mut Server, id: RelayId) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let mut bytes = Vec::new();
        while link.stream.read(&mut bytes) {}
        if let Err(error) = server.feed(id, &bytes) {
            log::warn!("proc_init: {} was sent away: {error}", link.stream.peer);
            server.cut(id, &error.to_string());
        }
        cut_ended(server, id, &link.stream);
    }

    /// Sends what there is room for, and watches for what is to be done next; lets go of one that
    /// has ended.
    fn settle(&mut self, id: RelayId) {
        #[cfg(test)]
        {
            self.touched += 1;
        }
        let Some(link) = self.links.get_mut(&id) else { return };
        link.stream.flush();
        let (pending, ended) = (link.stream.is_pending(), link.stream.ended().is_some());
        if pending != link.watches_room {
            // It was added when it was adopted, and its descriptor is open.
            let _ = self.set.change(link.stream.as_fd(), id.into(), pending);
            link.watches_room = pending;
            self.pending = if pending { self.pending + 1 } else { self.pending - 1 };
        }
        let look_at = link.stream.look_at();
        if look_at != link.look_at {
            let before = std::mem::replace(&mut link.look_at, look_at);
            before.map(|at| self.looks.remove(&(at, id)));
            self.looks.extend(look_at.map(|at| (at, id)));
        }
        if ended {
            self.set.remove(link.stream.as_fd());
            self.links.remove(&id);
        }
    }

    /// A thread stays with those that have not closed.
    ///
    /// # Errors
    /// No thread can be had; they stay here.
    pub(super) fn leave_to_thread(&mut self) -> Result<()> {
        let of_it = |(id, link): (RelayId, Link)| (id, link.stream);
        let mut relays: farewell::Relays =
            std::mem::take(&mut self.links).into_iter().map(of_it).collect();
        relays.iter().for_each(|(_, stream)| self.set.remove(stream.as_fd()));
        self.looks.clear();
        self.pending = 0;
        let left = farewell::leave_to_thread(&mut relays);
        for (id, stream) in relays {
            self.adopt(id, stream)?;
        }
        left
    }

    /// Readable when something has come, or has room.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }

    /// When to serve at the latest.
    pub(super) fn due(&self) -> Option<Instant> {
        self.looks.first().map(|(at, _)| *at)
    }

    /// Whether there is something to send.
    pub(super) fn has_output(&self) -> bool {
        self.pending > 0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.links.is_empty()
    }
}

fn cut_ended(server: &mut Server, id: RelayId, stream: &TcpConnection) {
    if let Some(why) = stream.ended() {
        server.cut(id, &format!("the connection to {} has ended: {why}", stream.peer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::exchange::relay_protocol::{ToHub, VERSION};
    use crate::bootstrap::exchange::tests::GUARD;
    use crate::bootstrap::system;
    use crate::ids::Rank;
    use crate::os::tcp;
    use crate::wire::record_layer::RecordLayer;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    /// The other end of a link.
    struct Relay {
        stream: TcpStream,
        records: RecordLayer,
    }

    impl Relay {
        fn say(&mut self, frame: &ToHub) {
            let mut bytes = Vec::new();
            self.records.seal(&frame.encode(), &mut bytes);
            self.stream.write_all(&bytes).expect("hub");
        }
    }

    struct Hub {
        server: Server,
        links: RelayLinks,
    }

    impl Hub {
        /// With so many relays, of a rank each, that have said hello.
        fn meet(relays: usize) -> (Hub, Vec<Relay>) {
            let hosts = (0..=relays).map(|host| format!("host{host}")).collect();
            let server = Server::hub("j", hosts).expect("hub");
            let mut hub = Hub { server, links: RelayLinks::new().expect("links") };
            let listener = TcpListener::bind("127.0.0.1:0").expect("listener");
            let place = listener.local_addr().expect("address");
            let (one, two) = ([1; 32], [2; 32]);
            let mut relay = || {
                let stream = TcpStream::connect(place).expect("connection");
                let (accepted, from) = listener.accept().expect("accept");
                accepted.set_nonblocking(true).expect("nonblocking");
                let records = RecordLayer::new(&one, &two);
                let stream_of_hub = TcpConnection::new(accepted.into(), from, records);
                hub.links.welcome(&mut hub.server, stream_of_hub);
                tcp::set_no_delay(stream.as_fd()).expect("no delay");
                let mut relay = Relay { stream, records: RecordLayer::new(&two, &one) };
                relay.say(&ToHub::Hello { version: VERSION });
                hub.turn();
                relay
            };
            let relays = (0..relays).map(|_| relay()).collect();
            // These come by the clock.
            hub.links.looks.clear();
            (hub, relays)
        }

        /// Serves once something has come; how many connections that touches.
        fn turn(&mut self) -> usize {
            let before = self.links.touched;
            system::wait(&[(self.links.as_fd(), false)], GUARD.deadline(), None);
            self.links.serve(&mut self.server);
            self.links.touched - before
        }

        /// Serves though nothing has come; the same.
        fn turn_at_once(&mut self) -> usize {
            let before = self.links.touched;
            self.links.serve(&mut self.server);
            self.links.touched - before
        }
    }

    #[test]
    fn a_turn_touches_the_links_on_which_something_happens() {
        for count in [3, 96] {
            let (mut hub, mut relays) = Hub::meet(count);
            assert_eq!(hub.turn_at_once(), 0, "of {count}");
            for (index, relay) in relays.iter_mut().enumerate() {
                relay.say(&ToHub::Started { rank: Rank(index as u16 + 1), pid: 1 });
                assert_eq!(hub.turn(), 1, "relay {index} of {count}");
            }
            relays.remove(1);
            assert_eq!(hub.turn(), 1, "one of {count} ends");
            assert_eq!(hub.links.links.len(), count - 1);
            // More than the kernel tells of at once.
            hub.server.dismiss_all();
            assert_eq!(hub.turn_at_once(), count - 1);
            relays.clear();
            while !hub.links.is_empty() {
                hub.turn();
            }
            assert_eq!((hub.links.pending, hub.links.looks.len()), (0, 0));
        }
    }

    #[test]
    fn one_that_does_not_read_is_served_when_it_does() {
        use std::io::Read;
        let (mut hub, mut relays) = Hub::meet(2);
        while !hub.links.has_output() {
            hub.server.dismiss_all();
            hub.turn_at_once();
            // The other one reads.
            relays[1].stream.set_nonblocking(true).expect("nonblocking");
            while relays[1].stream.read(&mut [0; 4096]).is_ok_and(|count| count > 0) {}
        }
        assert!(hub.turn_at_once() <= 1, "there is room on no other");
        relays[0].stream.set_nonblocking(true).expect("nonblocking");
        while hub.links.has_output() {
            while relays[0].stream.read(&mut [0; 1 << 16]).is_ok_and(|count| count > 0) {}
            hub.turn_at_once();
        }
    }
}
