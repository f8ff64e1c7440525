//! Connections between ranks beside the library: from every rank to rank 0, where they meet without
//! common memory, and within each pair for the limits over TCP.
//!
//! A listener publishes its port and addresses by gaspi_write, so no other channel is needed. Of
//! several addresses the one that the library is connected to is tried first, so that limit and
//! operation take the same path.

use crate::failure::{Failure, Result};
use crate::job::{Job, Segment};
use crate::links::{Link, Links};
use crate::machine;
use crate::sockets::{Listener, Socket, Waiting};
use crate::system;
use gaspi_core::os::interfaces;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The segment of this exchange; no test has one when it is made.
const EXCHANGE: u8 = 0;
/// Bytes of a card, and where the segment has this rank's, rank 0's and the peer's.
const CARD: usize = 2048;
const OWN: usize = 0;
const OF_FIRST: usize = CARD;
const OF_PEER: usize = 2 * CARD;
/// What a rank says first on a connection: nonce of the listener, own rank, purpose.
const GREETING: usize = 24;
const WHAT: &str = "the set-up of raw connections";

/// The connections of a pair.
#[derive(Debug)]
pub(crate) struct Streams {
    /// For messages to and fro. Apart from the others: the kernel delays acknowledgements on
    /// connections that it takes for interactive.
    pub(crate) turns: Socket,
    /// For data of the initiator.
    pub(crate) there: Socket,
    /// For data of the target.
    pub(crate) back: Socket,
}

/// Connections of this rank.
#[derive(Debug)]
pub(crate) struct Connections {
    /// On rank 0 one for each other rank, in their order; elsewhere the one to rank 0.
    pub(crate) star: Vec<Socket>,
    /// If the pair of this rank is connected by TCP.
    pub(crate) streams: Option<Streams>,
}

/// How to reach a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Card {
    nonce: u64,
    port: u16,
    /// Processes with the same text reach each other by loopback.
    host: String,
    addresses: Vec<IpAddr>,
}

impl Card {
    fn own(listener: &Listener) -> Result<Card> {
        let failed = |error| Failure::run(format!("cannot tell how to reach this rank: {error}"));
        let global = |ip: &IpAddr| match ip {
            IpAddr::V4(_) => true,
            // Means nothing without the interface of its user.
            IpAddr::V6(ip) => !ip.is_unicast_link_local(),
        };
        let interfaces = interfaces::list().into_iter().filter(|one| one.up && !one.loopback);
        Ok(Card {
            nonce: system::random().map_err(failed)?,
            port: listener.port()?,
            host: machine::network(),
            addresses: interfaces.map(|interface| interface.address).filter(global).collect(),
        })
    }

    fn text(&self) -> String {
        let mut text = format!("{} {} {}", self.nonce, self.port, self.host);
        for address in &self.addresses {
            let more = format!(" {address}");
            if text.len() + more.len() >= CARD - 8 {
                break;
            }
            text.push_str(&more);
        }
        text
    }

    fn parse(text: &str) -> Option<Card> {
        let mut words = text.split(' ');
        let nonce = words.next()?.parse().ok()?;
        let port = words.next()?.parse().ok()?;
        let host = words.next()?.to_owned();
        let addresses: std::result::Result<_, _> = words.map(str::parse).collect();
        Some(Card { nonce, port, host, addresses: addresses.ok()? })
    }

    /// Where to try, best first. `known` are addresses that the library is connected to.
    fn candidates(&self, host: &str, known: &[IpAddr]) -> Vec<SocketAddr> {
        let mut candidates = self.addresses.clone();
        if self.host == host {
            candidates = vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        } else {
            // Stable: the others keep their order.
            candidates.sort_by_key(|address| !known.contains(address));
        }
        candidates.into_iter().map(|address| SocketAddr::new(address, self.port)).collect()
    }

    /// A connection to the listener, which has answered.
    fn connect(&self, job: &Job, purpose: u64) -> Result<Socket> {
        let mut reasons = Vec::new();
        for address in self.candidates(&machine::network(), &system::connected()) {
            let greeted = Socket::connect(address)
                .map_err(|error| Failure::run(error.to_string()))
                .and_then(|socket| self.greet(job, socket, purpose));
            match greeted {
                Ok(socket) => return Ok(socket),
                Err(failure) => reasons.push(format!("{address}: {failure}")),
            }
        }
        Err(Failure::run(format!(
            "no raw connection to another rank for the limits: {}",
            reasons.join("; ")
        )))
    }

    fn greet(&self, job: &Job, socket: Socket, purpose: u64) -> Result<Socket> {
        let words = [self.nonce, job.rank as u64, purpose];
        let greeting: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        socket.send(job, WHAT, greeting.as_ptr(), GREETING, Waiting::Blocking)?;
        let mut answer = [0u8; 8];
        socket.receive(job, WHAT, answer.as_mut_ptr(), 8, Waiting::Blocking)?;
        if u64::from_ne_bytes(answer) == !self.nonce {
            return Ok(socket);
        }
        Err(Failure::run("somebody else answers there"))
    }
}

/// Accepts `count` connections: socket, rank, purpose.
fn accept(
    job: &Job,
    listener: &Listener,
    card: &Card,
    count: usize,
) -> Result<Vec<(u64, u64, Socket)>> {
    let mut found = Vec::new();
    let mut patience = job.patience(WHAT);
    while found.len() < count {
        let Some(socket) = listener.accept()? else {
            patience.check(job)?;
            continue;
        };
        let mut greeting = [0u8; GREETING];
        socket.receive(job, WHAT, greeting.as_mut_ptr(), GREETING, Waiting::Blocking)?;
        let (words, _) = greeting.as_chunks::<8>();
        let [nonce, rank, purpose] = [0, 1, 2].map(|word| u64::from_ne_bytes(words[word]));
        // A stranger's connection is closed.
        if nonce == card.nonce {
            socket.send(job, WHAT, (!nonce).to_ne_bytes().as_ptr(), 8, Waiting::Blocking)?;
            found.push((rank, purpose, socket));
        }
    }
    found.sort_by_key(|(rank, purpose, _)| (*rank, *purpose));
    Ok(found)
}

/// Makes the connections of all ranks, together.
pub(crate) fn connect(job: &Job, links: Links) -> Result<Connections> {
    let segment = job.segment(EXCHANGE, 3 * CARD)?;
    let (rank, peer) = (job.rank, job.rank ^ 1);
    let listens = rank == 0 || rank % 2 == 1;
    let own = listens.then(|| {
        Listener::open().and_then(|listener| {
            let card = Card::own(&listener)?;
            Ok((listener, card))
        })
    });
    let own = own.transpose()?;
    if let Some((_, card)) = &own {
        put(&segment, card);
        if rank == 0 {
            for other in 1..job.ranks {
                segment.write(OWN, other, OF_FIRST, CARD, 0)?;
            }
        } else {
            segment.write(OWN, peer, OF_PEER, CARD, 0)?;
        }
        job.wait(0)?;
    }
    job.barrier()?;
    let star = match &own {
        Some((listener, card)) if rank == 0 => {
            let found = accept(job, listener, card, job.ranks - 1)?;
            found.into_iter().map(|(_, _, socket)| socket).collect()
        }
        _ => vec![get(&segment, OF_FIRST)?.connect(job, 0)?],
    };
    let mut streams = None;
    if peer < job.ranks && links.to_peer == Link::Tcp {
        let sockets: Vec<Socket> = match &own {
            Some((listener, card)) if rank != 0 => {
                accept(job, listener, card, 3)?.into_iter().map(|(_, _, socket)| socket).collect()
            }
            _ => {
                let card = get(&segment, OF_PEER)?;
                (0..3).map(|purpose| card.connect(job, purpose)).collect::<Result<_>>()?
            }
        };
        if let Ok([turns, there, back]) = <[Socket; 3]>::try_from(sockets) {
            streams = Some(Streams { turns, there, back });
        }
    }
    segment.delete()?;
    Ok(Connections { star, streams })
}

/// Puts a card where it is sent from.
fn put(segment: &Segment<'_>, card: &Card) {
    let text = card.text();
    segment.region.put(OWN + 8, text.as_bytes());
    segment.region.set_last(OWN, 8, text.len() as u64);
}

/// A card that another rank has written.
fn get(segment: &Segment<'_>, at: usize) -> Result<Card> {
    let size = (segment.region.last(at, 8) as usize).min(CARD - 8);
    let bytes = segment.region.get(at + 8, size);
    std::str::from_utf8(&bytes)
        .ok()
        .and_then(Card::parse)
        .ok_or_else(|| Failure::run("what a rank wrote by gaspi_write arrived as something else"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(addresses: &[&str]) -> Card {
        let addresses = addresses.iter().filter_map(|text| text.parse().ok()).collect();
        Card { nonce: 7, port: 80, host: "a:b".into(), addresses }
    }

    #[test]
    fn cards_arrive_as_they_were_sent() {
        for addresses in [&[][..], &["10.0.0.1"], &["10.0.0.1", "fd00::1", "192.168.7.7"]] {
            assert_eq!(Card::parse(&card(addresses).text()), Some(card(addresses)));
        }
        for text in ["", "7", "7 80", "x 80 h", "7 80 h nonsense", "7 66000 h"] {
            assert_eq!(Card::parse(text), None, "{text:?}");
        }
        let many = card(&vec!["fd00:1111:2222:3333:4444:5555:6666:7777"; 1000]);
        assert!(many.text().len() < CARD - 8);
        assert!(Card::parse(&many.text()).is_some_and(|card| card.addresses.len() > 40));
    }

    #[test]
    fn the_way_of_the_library_comes_first() {
        let card = card(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
        let candidates = |host: &str, known: &[IpAddr]| -> Vec<String> {
            card.candidates(host, known).iter().map(ToString::to_string).collect()
        };
        let known = [IpAddr::from([10, 0, 0, 3])];
        assert_eq!(candidates("c:d", &known), ["10.0.0.3:80", "10.0.0.1:80", "10.0.0.2:80"]);
        assert_eq!(candidates("a:b", &known), ["127.0.0.1:80", "[::1]:80"]);
    }
}
