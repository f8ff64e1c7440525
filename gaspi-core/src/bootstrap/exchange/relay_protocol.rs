//! What passes between the hosts of a meeting: the place on each machine (a relay) tells the one
//! that decides (the hub) what its ranks say, and does what comes back. Pure bytes, bounded.
//!
//! A frame is a 32-bit length (of what follows), one byte of kind, and the fields as in a
//! [`Message`]; messages of ranks travel inside as whole frames. The first frame of both sides is
//! Hello. Connections are numbered by the relay.

use super::encoding::{DecodeError, Decoded, Reader, Writer, encode_failure};
use super::message::{FRAME_MAX, Failure, Message};
use crate::bootstrap::KEY_BYTES;
use crate::ids::Rank;
use std::sync::Arc;

/// The version of the envelopes; changes with that of the messages too.
pub(crate) const VERSION: u16 = super::message::VERSION;
/// Connections in one frame.
pub(crate) const CONNECTIONS_MAX: usize = 4096;
/// Bytes of the largest frame, its length included.
pub(crate) const RELAY_FRAME_MAX: usize = 2 * FRAME_MAX;

/// What a relay says to the hub.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ToHub {
    /// First.
    Hello { version: u16 },
    /// A rank's message.
    Relayed { connection: u64, message: Message },
    /// A rank's connection has ended.
    Closed { connection: u64 },
    /// This rank's machine cannot take part in the round; the rank's join follows.
    Failed { rank: Rank, failure: Failure },
    /// The launcher has started this rank.
    Started { rank: Rank, pid: i32 },
    /// The process of this rank has ended.
    Gone { rank: Rank, how: String },
}

/// What the hub says to a relay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ToRelay {
    /// First.
    Hello { version: u16 },
    /// Say this to these.
    Send { connections: Vec<u64>, message: Message },
    /// Say this, then close.
    Refuse { connections: Vec<u64>, message: Message },
    /// A part of the cards of the next table, as the frame that ranks get.
    Cards(Arc<[u8]>),
    /// The table goes to these, with the areas of their nodes.
    Table { connections: Vec<u64>, token: [u8; 16], key: [u8; KEY_BYTES], last: bool },
    /// End this rank.
    Kill(Rank),
    /// This rank's process has ended without leaving.
    Died { rank: Rank, how: String },
    /// This meeting is over, look for the next one.
    Over,
}

fn connections(writer: &mut Writer, connections: &[u64]) {
    let connections = &connections[..connections.len().min(CONNECTIONS_MAX)];
    writer.u16(connections.len() as u16);
    for connection in connections {
        writer.u64(*connection);
    }
}

impl ToHub {
    /// As one frame.
    pub(crate) fn encode(&self) -> Arc<[u8]> {
        let writer = match self {
            ToHub::Hello { version } => {
                let mut writer = Writer::frame(1);
                writer.u16(*version);
                writer
            }
            ToHub::Relayed { connection, message } => {
                let mut writer = Writer::frame(2);
                writer.u64(*connection);
                writer.0.extend(message.encode());
                writer
            }
            ToHub::Closed { connection } => {
                let mut writer = Writer::frame(3);
                writer.u64(*connection);
                writer
            }
            ToHub::Failed { rank, failure } => {
                let mut writer = Writer::frame(4);
                writer.u16(rank.0);
                encode_failure(&mut writer, failure);
                writer
            }
            ToHub::Started { rank, pid } => {
                let mut writer = Writer::frame(5);
                writer.u16(rank.0);
                writer.u32(pid.cast_unsigned());
                writer
            }
            ToHub::Gone { rank, how } => {
                let mut writer = Writer::frame(6);
                writer.u16(rank.0);
                writer.text(how);
                writer
            }
        };
        writer.finish().into()
    }
}

impl ToRelay {
    /// As one frame.
    pub(crate) fn encode(&self) -> Arc<[u8]> {
        let writer = match self {
            ToRelay::Hello { version } => {
                let mut writer = Writer::frame(65);
                writer.u16(*version);
                writer
            }
            ToRelay::Send { connections: to, message } => {
                let mut writer = Writer::frame(66);
                connections(&mut writer, to);
                writer.0.extend(message.encode());
                writer
            }
            ToRelay::Refuse { connections: to, message } => {
                let mut writer = Writer::frame(67);
                connections(&mut writer, to);
                writer.0.extend(message.encode());
                writer
            }
            ToRelay::Cards(frame) => {
                let mut writer = Writer::frame(68);
                writer.0.extend_from_slice(frame);
                writer
            }
            ToRelay::Table { connections: to, token, key, last } => {
                let mut writer = Writer::frame(69);
                connections(&mut writer, to);
                writer.0.extend_from_slice(token);
                writer.0.extend_from_slice(key);
                writer.u8(u8::from(*last));
                writer
            }
            ToRelay::Kill(rank) => {
                let mut writer = Writer::frame(70);
                writer.u16(rank.0);
                writer
            }
            ToRelay::Died { rank, how } => {
                let mut writer = Writer::frame(71);
                writer.u16(rank.0);
                writer.text(how);
                writer
            }
            ToRelay::Over => Writer::frame(72),
        };
        writer.finish().into()
    }
}

/// A frame of one direction.
pub(crate) trait RelayFrame: Sized {
    /// From its kind and fields.
    fn fields(kind: u8, reader: &mut Reader<'_>) -> Decoded<Self>;

    /// The version, if it is a Hello.
    fn version(&self) -> Option<u16>;
}

impl RelayFrame for ToHub {
    fn fields(kind: u8, reader: &mut Reader<'_>) -> Decoded<ToHub> {
        Ok(match kind {
            1 => ToHub::Hello { version: reader.u16()? },
            2 => ToHub::Relayed { connection: reader.u64()?, message: message(reader)?.0 },
            3 => ToHub::Closed { connection: reader.u64()? },
            4 => ToHub::Failed { rank: reader.rank()?, failure: reader.failure()? },
            5 => ToHub::Started { rank: reader.rank()?, pid: reader.u32()?.cast_signed() },
            6 => ToHub::Gone { rank: reader.rank()?, how: reader.text()? },
            _ => return Err(DecodeError::Malformed("unknown kind of envelope")),
        })
    }

    fn version(&self) -> Option<u16> {
        if let ToHub::Hello { version } = self { Some(*version) } else { None }
    }
}

impl RelayFrame for ToRelay {
    fn fields(kind: u8, reader: &mut Reader<'_>) -> Decoded<ToRelay> {
        Ok(match kind {
            65 => ToRelay::Hello { version: reader.u16()? },
            66 => ToRelay::Send { connections: numbers(reader)?, message: message(reader)?.0 },
            67 => ToRelay::Refuse { connections: numbers(reader)?, message: message(reader)?.0 },
            68 => match message(reader)? {
                (Message::Cards(_), frame) => ToRelay::Cards(frame.into()),
                _ => return Err(DecodeError::Malformed("no cards")),
            },
            69 => ToRelay::Table {
                connections: numbers(reader)?,
                token: reader.bytes()?,
                key: reader.bytes()?,
                last: reader.u8()? != 0,
            },
            70 => ToRelay::Kill(reader.rank()?),
            71 => ToRelay::Died { rank: reader.rank()?, how: reader.text()? },
            72 => ToRelay::Over,
            _ => return Err(DecodeError::Malformed("unknown kind of envelope")),
        })
    }

    fn version(&self) -> Option<u16> {
        if let ToRelay::Hello { version } = self { Some(*version) } else { None }
    }
}

fn numbers(reader: &mut Reader<'_>) -> Decoded<Vec<u64>> {
    let count = reader.count(CONNECTIONS_MAX)?;
    (0..count).map(|_| reader.u64()).collect()
}

/// A message of a rank and the frame that it came as.
fn message<'a>(reader: &mut Reader<'a>) -> Decoded<(Message, &'a [u8])> {
    let bytes = reader.0;
    match Message::decode(bytes)? {
        Some((message, len)) => {
            reader.0 = &bytes[len..];
            Ok((message, &bytes[..len]))
        }
        None => Err(DecodeError::Malformed("short message")),
    }
}

/// Takes bytes in pieces of any size and gives frames; the first has to be a Hello of our version.
#[derive(Debug, Default)]
pub(crate) struct RelayDecoder {
    bytes: Vec<u8>,
    /// Where the next frame begins.
    at: usize,
    greeted: bool,
}

impl RelayDecoder {
    /// Adds bytes that have come.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.at);
        self.at = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next frame behind the Hello that has come whole.
    pub(crate) fn next<T: RelayFrame>(&mut self) -> Decoded<Option<T>> {
        loop {
            let rest = &self.bytes[self.at..];
            let Some((len, rest)) = rest.split_first_chunk::<4>() else { return Ok(None) };
            let len = u32::from_le_bytes(*len) as usize;
            if len == 0 || len > RELAY_FRAME_MAX - 4 {
                return Err(DecodeError::Malformed("envelope too long or empty"));
            }
            let Some(fields) = rest.get(..len) else { return Ok(None) };
            let mut reader = Reader(&fields[1..]);
            let frame = T::fields(fields[0], &mut reader)?;
            if !reader.0.is_empty() && frame.version().is_none() {
                return Err(DecodeError::Malformed("bytes left over"));
            }
            self.at += 4 + len;
            match (frame.version(), self.greeted) {
                (None, true) => return Ok(Some(frame)),
                (Some(VERSION), false) => self.greeted = true,
                (Some(version), false) => return Err(DecodeError::Version(version)),
                (Some(_), true) => return Err(DecodeError::Malformed("a second greeting")),
                (None, false) => return Err(DecodeError::Malformed("no greeting")),
            }
        }
    }
}

#[cfg(test)]
#[path = "relay_protocol_tests.rs"]
mod tests;
