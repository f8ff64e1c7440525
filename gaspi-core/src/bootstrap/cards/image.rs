//! Cards as bytes: parts that all have elements of one size, so that any of them is found by its
//! number.
//!
//! ```text
//! head       "GASPcard" | elements of each part below: u32 each
//! ranks      32 bytes, by rank: start time u64 | instance u64 | pid i32 | its host u16 | its mask
//!            u16 | its node u32, from 1: 0 is that of its machine | port u32
//! hosts      20 bytes: machine u64 | first byte of its name u32 | first of its addresses u32 |
//!            bytes of the name u16 | addresses that are listened at u8 | networks behind them u8
//! masks      8 bytes: first word u32 | words u32
//! nodes      8 bytes
//! words      8 bytes, of masks
//! addresses  18 bytes: 4 or 6 u8 | bits of the network u8 | address, 16 bytes
//! ports      2 bytes
//! text       1 byte
//! ```
//!
//! What ranks have in common is there once. A port below 65,536 is that of all addresses of the
//! rank; from there on it is the number of the first of its ports, one for each address.

use crate::bootstrap::card::{Card, ENDPOINTS_MAX, NETWORKS_MAX};
use crate::bootstrap::exchange::message::{CPU_WORDS_MAX, TEXT_MAX};
use crate::wire::codec::{DecodeError, Decoded, Output, Reader, Writer};
use crate::wire::fields::{Field, read_field, structs, whole, write_field};
use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;

const MAGIC: [u8; 8] = *b"GASPcard";
/// The first number of a port that stands for several.
pub(super) const PORTS_FROM: u32 = 1 << 16;

/// A part of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Ranks,
    Hosts,
    Masks,
    Nodes,
    Words,
    Addresses,
    Ports,
    Text,
}

/// Bytes of an element of each part.
const SIZES: [usize; 8] = [32, 20, 8, 8, 8, 18, 2, 1];
const HEAD_BYTES: usize = MAGIC.len() + 4 * SIZES.len();

/// What each rank has for itself.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct OfRank {
    pub(super) start_time: u64,
    pub(super) instance: u64,
    pub(super) pid: i32,
    pub(super) host: u16,
    pub(super) cpus: u16,
    pub(super) node: u32,
    pub(super) port: u32,
}

/// What ranks of a host have in common.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct OfHost {
    pub(super) machine: u64,
    pub(super) text: u32,
    pub(super) addresses: u32,
    pub(super) text_bytes: u16,
    pub(super) listened: u8,
    pub(super) networks: u8,
}

/// Cores.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Mask {
    pub(super) first: u32,
    pub(super) words: u32,
}

/// An address, and how much of it names its network.
#[derive(Debug, Clone, Copy)]
pub(super) struct Address {
    pub(super) ip: IpAddr,
    pub(super) bits: u8,
}

impl Default for Address {
    fn default() -> Address {
        Address { ip: [0; 4].into(), bits: 0 }
    }
}

structs! {
    OfRank { start_time, instance, pid, host, cpus, node, port }
    OfHost { machine, text, addresses, text_bytes, listened, networks }
    Mask { first, words }
}

impl Field for Address {
    fn write<O: Output>(&self, writer: &mut Writer<O>) {
        let mut bytes = [0; 16];
        let family = match self.ip {
            IpAddr::V4(ip) => {
                bytes[..4].copy_from_slice(&ip.octets());
                4
            }
            IpAddr::V6(ip) => {
                bytes = ip.octets();
                6
            }
        };
        writer.u8(family).u8(self.bits).array(&bytes);
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<Address> {
        let (family, bits, bytes) = (reader.u8()?, reader.u8()?, reader.array::<16>()?);
        let ip = match (family, bytes) {
            (4, [a, b, c, d, ..]) => [a, b, c, d].into(),
            (6, bytes) => bytes.into(),
            _ => return Err(DecodeError::Invalid("unknown family of addresses")),
        };
        Ok(Address { ip, bits })
    }
}

/// What an element is read as.
pub(super) trait Record: Field + Default {}

impl<T: Field + Default> Record for T {}

/// Where each part of a checked image begins, and the last one ends.
#[derive(Debug)]
pub(super) struct Sections([u32; SIZES.len() + 1]);

impl Sections {
    fn of(image: &[u8]) -> Decoded<Sections> {
        let mut reader = Reader::new(image);
        if reader.array()? != MAGIC {
            return Err(DecodeError::Invalid("no image of cards"));
        }
        let mut at = HEAD_BYTES as u32;
        let mut sections = Sections([at; SIZES.len() + 1]);
        for (size, end) in SIZES.into_iter().zip(&mut sections.0[1..]) {
            let bytes = reader.u32()?.checked_mul(size as u32);
            at = bytes.and_then(|bytes| at.checked_add(bytes)).ok_or(DecodeError::OverLimit)?;
            *end = at;
        }
        if at as usize == image.len() { Ok(sections) } else { Err(DecodeError::Truncated) }
    }

    fn range(&self, part: Part) -> Range<usize> {
        self.0[part as usize] as usize..self.0[part as usize + 1] as usize
    }

    /// How many elements a part has.
    pub(super) fn count(&self, part: Part) -> usize {
        self.range(part).len() / SIZES[part as usize]
    }

    /// An element, which is there.
    pub(super) fn nth<T: Record>(&self, image: &[u8], part: Part, index: u32) -> T {
        // Each of the right size can be read, once the image is checked.
        whole(self.slice(image, part, index, 1)).unwrap_or_default()
    }

    /// Some elements, which are there.
    pub(super) fn slice<'i>(
        &self,
        image: &'i [u8],
        part: Part,
        first: u32,
        count: u32,
    ) -> &'i [u8] {
        let size = SIZES[part as usize];
        let section = &image[self.range(part)];
        &section[first as usize * size..][..count as usize * size]
    }

    /// Checks that a part has these elements.
    fn has(&self, part: Part, first: u32, count: u32) -> Decoded<()> {
        let end = first.checked_add(count).ok_or(DecodeError::OverLimit)?;
        let is_there = end as usize <= self.count(part);
        if is_there {
            Ok(())
        } else {
            Err(DecodeError::Invalid("a card mentions what is not there"))
        }
    }
}

/// Where the parts of `image` lie, once all that is mentioned in it is there.
pub(super) fn check(image: &[u8]) -> Decoded<Sections> {
    let sections = Sections::of(image)?;
    for at in 0..sections.count(Part::Addresses) as u32 {
        whole::<Address>(sections.slice(image, Part::Addresses, at, 1))?;
    }
    for at in 0..sections.count(Part::Masks) as u32 {
        let Mask { first, words } = sections.nth(image, Part::Masks, at);
        sections.has(Part::Words, first, words)?;
    }
    for at in 0..sections.count(Part::Hosts) as u32 {
        let OfHost { text, addresses, text_bytes, listened, networks, .. } =
            sections.nth(image, Part::Hosts, at);
        sections.has(Part::Addresses, addresses, u32::from(listened) + u32::from(networks))?;
        sections.has(Part::Text, text, text_bytes.into())?;
        let name = sections.slice(image, Part::Text, text, text_bytes.into());
        std::str::from_utf8(name).map_err(|_| DecodeError::NotUtf8)?;
    }
    for at in 0..sections.count(Part::Ranks) as u32 {
        let OfRank { host, cpus, node, port, .. } = sections.nth(image, Part::Ranks, at);
        sections.has(Part::Hosts, host.into(), 1)?;
        sections.has(Part::Masks, cpus.into(), 1)?;
        sections.has(Part::Nodes, 0, node)?;
        if let Some(first) = port.checked_sub(PORTS_FROM) {
            let OfHost { listened, .. } = sections.nth(image, Part::Hosts, host.into());
            sections.has(Part::Ports, first, listened.into())?;
        }
    }
    Ok(sections)
}

/// What tells hosts apart.
type HostKey<'a> = (u64, &'a str, Vec<IpAddr>, &'a [(IpAddr, u8)]);

/// An image that is being made: the elements of each part.
#[derive(Default)]
struct Parts<'a> {
    elements: [Vec<u8>; SIZES.len()],
    hosts: HashMap<HostKey<'a>, u32>,
    masks: HashMap<Arc<[u64]>, u32>,
    nodes: HashMap<u64, u32>,
}

/// The number of `key`, which `add` gives to one that is new.
fn number<K: Hash + Eq>(known: &mut HashMap<K, u32>, key: K) -> (u32, bool) {
    let next = known.len() as u32;
    let number = *known.entry(key).or_insert(next);
    (number, number == next)
}

impl<'a> Parts<'a> {
    /// The number that the next element of a part will have.
    fn next(&self, part: Part) -> u32 {
        (self.elements[part as usize].len() / SIZES[part as usize]) as u32
    }

    fn push(&mut self, part: Part, element: &impl Field) {
        element.write(&mut Writer::new(&mut self.elements[part as usize]));
    }

    fn host(&mut self, card: &'a Card, endpoints: &[SocketAddr]) -> u32 {
        let name = &card.host[..card.host.floor_char_boundary(TEXT_MAX)];
        let networks = &card.networks[..card.networks.len().min(NETWORKS_MAX)];
        let addresses: Vec<IpAddr> = endpoints.iter().map(SocketAddr::ip).collect();
        let key = (card.machine, name, addresses.clone(), networks);
        let (host, is_new) = number(&mut self.hosts, key);
        if is_new {
            let of_host = OfHost {
                machine: card.machine,
                text: self.next(Part::Text),
                addresses: self.next(Part::Addresses),
                text_bytes: name.len() as u16,
                listened: addresses.len() as u8,
                networks: networks.len() as u8,
            };
            self.push(Part::Hosts, &of_host);
            let listened = addresses.into_iter().map(|ip| Address { ip, bits: 0 });
            let networks = networks.iter().map(|(ip, bits)| Address { ip: *ip, bits: *bits });
            listened.chain(networks).for_each(|address| self.push(Part::Addresses, &address));
            self.elements[Part::Text as usize].extend(name.bytes());
        }
        host
    }

    fn mask(&mut self, cpus: &Arc<[u64]>) -> u32 {
        let (mask, is_new) = number(&mut self.masks, Arc::clone(cpus));
        if is_new {
            let words = &cpus[..cpus.len().min(CPU_WORDS_MAX)];
            let first = self.next(Part::Words);
            self.push(Part::Masks, &Mask { first, words: words.len() as u32 });
            words.iter().for_each(|word| self.push(Part::Words, word));
        }
        mask
    }

    fn node(&mut self, card: &Card) -> u32 {
        if card.node == card.machine {
            return 0;
        }
        let (node, is_new) = number(&mut self.nodes, card.node);
        if is_new {
            self.push(Part::Nodes, &card.node);
        }
        node + 1
    }

    fn port(&mut self, endpoints: &[SocketAddr]) -> u32 {
        if endpoints.windows(2).all(|pair| pair[0].port() == pair[1].port()) {
            return endpoints.first().map_or(0, |endpoint| endpoint.port().into());
        }
        let first = self.next(Part::Ports);
        endpoints.iter().for_each(|endpoint| self.push(Part::Ports, &endpoint.port()));
        PORTS_FROM + first
    }

    fn add(&mut self, card: &'a Card) {
        let endpoints = &card.endpoints[..card.endpoints.len().min(ENDPOINTS_MAX)];
        let of_rank = OfRank {
            start_time: card.start_time,
            instance: card.instance,
            pid: card.pid,
            host: self.host(card, endpoints) as u16,
            cpus: self.mask(&card.cpus) as u16,
            node: self.node(card),
            port: self.port(endpoints),
        };
        self.push(Part::Ranks, &of_rank);
    }
}

/// The image of the cards of all ranks, which are in order.
pub(crate) fn encode(cards: &[Card]) -> Vec<u8> {
    let mut parts = Parts::default();
    cards.iter().for_each(|card| parts.add(card));
    let bytes = HEAD_BYTES + parts.elements.iter().map(Vec::len).sum::<usize>();
    let mut writer = Writer::new(Vec::with_capacity(bytes));
    writer.array(&MAGIC);
    for (elements, size) in parts.elements.iter().zip(SIZES) {
        writer.u32((elements.len() / size) as u32);
    }
    for elements in &parts.elements {
        writer.raw(elements);
    }
    writer.into_inner()
}
