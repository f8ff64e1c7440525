//! Messages as bytes: pure, versioned, every length bounded before use.
//!
//! A frame is a 32-bit length (of what follows), one byte of kind, and the fields; texts and lists
//! carry a 16-bit count. Nothing here knows sockets, so that all of it is property-tested, and a
//! frame that is not understood is an error in words, never a panic.

use super::message::{
    AGREED_MAX, CPU_WORDS_MAX, FRAME_MAX, Failure, Join, MISSING_MAX, Message, TEXT_MAX, VERSION,
};
use crate::bootstrap::Card;
use crate::bootstrap::card::{ENDPOINTS_MAX, NETWORKS_MAX};
use crate::ids::Rank;
use crate::wire::codec::{self, DecodeError, Decoded, Limit, Output, Reader, Writer};
use crate::wire::fields::{Field, Form, Kinds, read_field, structs, variants, whole, write_field};
use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

variants! { Message:
    1 => Join(join as Versioned),
    2 => Kill(rank),
    3 => Missing { count, first as List<MISSING_MAX>, words as Text },
    4 => Cards(cards as Shared),
    5 => Area { token, key },
    6 => Failed(failure),
    7 => Over,
    8 => Leave,
    9 => Died { rank, how as Text },
    10 => Unable { job as Text, rank, reason as Text },
}

variants! { Failure:
    0 => Mismatch {
        field as Text, left, left_value as Text, right, right_value as Text
    },
    1 => Environment(reason as Text),
    2 => Meeting(reason as Text),
    3 => Memory { needed, available, reason as Text },
    4 => System { call as Text, reason as Text },
}

structs! {
    Join { job as Text, size, agreed as List<AGREED_MAX>, card }
    Card {
        rank, pid, start_time, instance, node, machine, endpoints as List<ENDPOINTS_MAX>,
        host as Text, cpus as List<CPU_WORDS_MAX>, networks as List<NETWORKS_MAX>
    }
    OfHost {
        machine, host as Text, addresses as List<ENDPOINTS_MAX>, networks as List<NETWORKS_MAX>
    }
    OfRank { rank, host, cpus, pid, start_time, instance }
}

/// A text behind its length in two bytes.
pub(super) struct Text;

impl Form<String> for Text {
    fn write<O: Output>(value: &String, writer: &mut Writer<O>) {
        writer.text(value, Limit::u16(TEXT_MAX as u16));
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<String> {
        Ok(reader.text(Limit::u16(TEXT_MAX as u16))?.to_owned())
    }
}

impl Form<Arc<str>> for Text {
    fn write<O: Output>(value: &Arc<str>, writer: &mut Writer<O>) {
        writer.text(value, Limit::u16(TEXT_MAX as u16));
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<Arc<str>> {
        Ok(reader.text(Limit::u16(TEXT_MAX as u16))?.into())
    }
}

/// At most `MAX` fields behind their number in two bytes.
pub(super) struct List<const MAX: usize>;

impl<const MAX: usize, T: Field> Form<Vec<T>> for List<MAX> {
    fn write<O: Output>(value: &Vec<T>, writer: &mut Writer<O>) {
        writer.list(value, Limit::u16(MAX as u16), |writer, field| field.write(writer));
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<Vec<T>> {
        reader.list(Limit::u16(MAX as u16), Field::read)
    }
}

impl<const MAX: usize, T: Field> Form<Arc<[T]>> for List<MAX> {
    fn write<O: Output>(value: &Arc<[T]>, writer: &mut Writer<O>) {
        writer.list(value, Limit::u16(MAX as u16), |writer, field| field.write(writer));
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<Arc<[T]>> {
        Ok(reader.list(Limit::u16(MAX as u16), Field::read)?.into())
    }
}

/// Behind the version of the sender.
struct Versioned;

impl Form<Join> for Versioned {
    fn write<O: Output>(value: &Join, writer: &mut Writer<O>) {
        value.write(writer.u16(VERSION));
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<Join> {
        match reader.u16()? {
            VERSION => Field::read(reader),
            other => Err(DecodeError::Version(other)),
        }
    }
}

impl Field for IpAddr {
    fn write<O: Output>(&self, writer: &mut Writer<O>) {
        match self {
            IpAddr::V4(address) => writer.u8(4).array(&address.octets()),
            IpAddr::V6(address) => writer.u8(6).array(&address.octets()),
        };
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<IpAddr> {
        match reader.u8()? {
            4 => Ok(reader.array::<4>()?.into()),
            6 => Ok(reader.array::<16>()?.into()),
            _ => Err(DecodeError::Invalid("unknown family of addresses")),
        }
    }
}

impl Field for SocketAddr {
    fn write<O: Output>(&self, writer: &mut Writer<O>) {
        self.ip().write(writer);
        writer.u16(self.port());
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<SocketAddr> {
        Ok(SocketAddr::new(Field::read(reader)?, reader.u16()?))
    }
}

/// A network: an address in it, and its bits.
impl Field for (IpAddr, u8) {
    fn write<O: Output>(&self, writer: &mut Writer<O>) {
        self.0.write(writer);
        writer.u8(self.1);
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<(IpAddr, u8)> {
        Ok((Field::read(reader)?, reader.u8()?))
    }
}

/// A name and its value.
impl Field for (String, u64) {
    fn write<O: Output>(&self, writer: &mut Writer<O>) {
        Text::write(&self.0, writer);
        self.1.write(writer);
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<(String, u64)> {
        Ok((Text::read(reader)?, Field::read(reader)?))
    }
}

/// What ranks of a host have in common.
#[derive(Clone, PartialEq, Eq, Hash)]
struct OfHost {
    machine: u64,
    host: Arc<str>,
    addresses: Arc<[IpAddr]>,
    networks: Arc<[(IpAddr, u8)]>,
}

impl OfHost {
    fn of(card: &Card) -> OfHost {
        OfHost {
            machine: card.machine,
            host: Arc::clone(&card.host),
            addresses: card.endpoints.iter().take(ENDPOINTS_MAX).map(SocketAddr::ip).collect(),
            networks: Arc::clone(&card.networks),
        }
    }
}

/// What each rank has for itself, with the numbers of what it shares with others.
struct OfRank {
    rank: Rank,
    host: u16,
    cpus: u16,
    pid: i32,
    start_time: u64,
    instance: u64,
}

/// A rank shares memory with others of its machine that do not say otherwise.
const OTHER_NODE: u8 = 1;
/// Its listeners have different ports.
const OTHER_PORTS: u8 = 2;

/// Values, each of which has a number: in the order in which cards mention them first.
struct Numbered<T> {
    values: Vec<T>,
    numbers: HashMap<T, u16>,
}

impl<T: Clone + Eq + Hash> Numbered<T> {
    fn of(values: impl Iterator<Item = T>) -> Numbered<T> {
        let mut all = Numbered { values: Vec::new(), numbers: HashMap::new() };
        for value in values {
            let next = all.values.len() as u16;
            if *all.numbers.entry(value.clone()).or_insert(next) == next {
                all.values.push(value);
            }
        }
        all
    }

    fn number(&self, value: &T) -> u16 {
        self.numbers.get(value).copied().unwrap_or_default()
    }
}

/// Values that are mentioned by their numbers.
struct Mentioned<T> {
    values: Vec<T>,
    seen: usize,
}

impl<T: Clone + Eq + Hash> Mentioned<T> {
    fn new(values: Vec<T>) -> Decoded<Mentioned<T>> {
        if Numbered::of(values.iter().cloned()).values.len() < values.len() {
            return Err(DecodeError::Invalid("cards share something twice"));
        }
        Ok(Mentioned { values, seen: 0 })
    }

    /// The value of a number, which is one of those that came before, or the next.
    fn get(&mut self, number: u16) -> Decoded<T> {
        let number = usize::from(number);
        self.seen += usize::from(number == self.seen);
        let value = self.values.get(number).filter(|_| number < self.seen);
        value.cloned().ok_or(DecodeError::Invalid("a card of an unknown host"))
    }

    /// All cards are there.
    fn finish(self) -> Decoded<()> {
        let all = self.seen == self.values.len();
        if all { Ok(()) } else { Err(DecodeError::Invalid("a host without cards")) }
    }
}

/// Cards in ascending order: first what ranks have in common, then what each has for itself.
struct Shared;

/// As many as there can be ranks.
const ALL: Limit = Limit::u16(u16::MAX);

impl Form<Vec<Card>> for Shared {
    fn write<O: Output>(value: &Vec<Card>, writer: &mut Writer<O>) {
        let hosts = Numbered::of(value.iter().map(OfHost::of));
        let masks = Numbered::of(value.iter().map(|card| Arc::clone(&card.cpus)));
        writer.list(&hosts.values, ALL, |writer, host| host.write(writer));
        writer.list(&masks.values, ALL, |writer, mask| List::<CPU_WORDS_MAX>::write(mask, writer));
        writer.list(value, ALL, |writer, card| {
            let (host, cpus) = (hosts.number(&OfHost::of(card)), masks.number(&card.cpus));
            let &Card { rank, pid, start_time, instance, node, machine, .. } = card;
            OfRank { rank, host, cpus, pid, start_time, instance }.write(writer);
            let ports: Vec<u16> =
                card.endpoints.iter().take(ENDPOINTS_MAX).map(SocketAddr::port).collect();
            let alike = are_alike(&ports);
            let flag = |is: bool, bit: u8| if is { bit } else { 0 };
            writer.u8(flag(node != machine, OTHER_NODE) | flag(!alike, OTHER_PORTS));
            if node != machine {
                node.write(writer);
            }
            for port in ports.iter().take(if alike { 1 } else { ENDPOINTS_MAX }) {
                port.write(writer);
            }
        });
    }

    fn read(reader: &mut Reader<'_>) -> Decoded<Vec<Card>> {
        let mut hosts: Mentioned<OfHost> = Mentioned::new(reader.list(ALL, Field::read)?)?;
        let masks: Vec<Arc<[u64]>> = reader.list(ALL, List::<CPU_WORDS_MAX>::read)?;
        let mut masks = Mentioned::new(masks)?;
        let cards = reader.list(ALL, |reader| {
            let OfRank { rank, host, cpus, pid, start_time, instance } = Field::read(reader)?;
            let (host, cpus) = (hosts.get(host)?, masks.get(cpus)?);
            let flags = reader.u8()?;
            let is = |bit: u8| flags & bit != 0;
            let node = if is(OTHER_NODE) { reader.u64()? } else { host.machine };
            let mut ports = Vec::with_capacity(host.addresses.len());
            for nth in 0..host.addresses.len() {
                let alike = nth > 0 && !is(OTHER_PORTS);
                ports.push(if alike { ports[0] } else { reader.u16()? });
            }
            if flags & !(OTHER_NODE | OTHER_PORTS) != 0
                || is(OTHER_NODE) == (node == host.machine)
                || is(OTHER_PORTS) == are_alike(&ports)
            {
                return Err(DecodeError::Invalid("flags of a card"));
            }
            let addresses = host.addresses.iter().zip(ports);
            let endpoints = addresses.map(|(ip, port)| SocketAddr::new(*ip, port)).collect();
            let OfHost { machine, host, networks, .. } = host;
            Ok(Card {
                rank,
                pid,
                start_time,
                instance,
                node,
                machine,
                endpoints,
                host,
                cpus,
                networks,
            })
        })?;
        hosts.finish()?;
        masks.finish()?;
        Ok(cards)
    }
}

fn are_alike(ports: &[u16]) -> bool {
    ports.windows(2).all(|pair| pair[0] == pair[1])
}

/// A field as a frame of its own.
pub(super) fn frame(field: &impl Field) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new());
    writer.framed(|writer| field.write(writer));
    writer.into_inner()
}

impl Message {
    /// The message as one frame.
    pub(crate) fn encode(&self) -> Vec<u8> {
        frame(self)
    }

    /// The first frame of `bytes` and how many bytes it took, `None` if more bytes are needed.
    pub(crate) fn decode(bytes: &[u8]) -> Decoded<Option<(Message, usize)>> {
        let Ok(body) = codec::first_frame(bytes, FRAME_MAX - 4) else {
            return Err(DecodeError::Invalid("frame too long or empty"));
        };
        let Some(body) = body else { return Ok(None) };
        Ok(Some((whole(body)?, 4 + body.len())))
    }
}

/// Bytes that a card takes in a frame, if it shares nothing with others.
fn card_bytes(card: &Card) -> usize {
    let host = card.host.len().min(TEXT_MAX);
    let endpoints = 19 * card.endpoints.len().min(ENDPOINTS_MAX);
    let networks = 18 * card.networks.len().min(NETWORKS_MAX);
    60 + host + endpoints + networks + 8 * card.cpus.len().min(CPU_WORDS_MAX)
}

/// The cards as frames of bounded size.
pub(crate) fn encode_cards(cards: &[Card]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut part = Vec::new();
    let mut bytes = 0;
    for card in cards {
        if !part.is_empty() && bytes + card_bytes(card) > FRAME_MAX - 16 {
            frames.push(Message::Cards(std::mem::take(&mut part)).encode());
            bytes = 0;
        }
        bytes += card_bytes(card);
        part.push(card.clone());
    }
    frames.push(Message::Cards(part).encode());
    frames
}

#[cfg(test)]
#[path = "message_tests.rs"]
pub(crate) mod tests;
