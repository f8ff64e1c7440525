//! What passes between the servers of an exchange: the relay on each machine tells the hub, which
//! decides, what its ranks say, and does what comes back. Pure bytes, bounded.
//!
//! A frame is a 32-bit length (of what follows), one byte of kind, and the fields as in a
//! [`Message`]; messages of ranks travel inside as whole frames. The first frame of both sides is
//! Hello. Connections are numbered by the relay.

use super::encoding::{List, Text, frame};
use super::message::{FRAME_MAX, Failure, Message};
use crate::bootstrap::KEY_BYTES;
use crate::ids::Rank;
use crate::wire::codec::{self, DecodeError, Decoded, Limit, Output, Reader, Writer};
use crate::wire::fields::{Field, Form, Kinds, read_field, variants, whole, write_field};
use std::sync::Arc;

/// The version of this protocol; changes with that of the messages too.
pub(crate) const VERSION: u16 = super::message::VERSION;
/// Connections in one frame.
pub(crate) const CONNECTIONS_MAX: usize = 4096;
/// Bytes of the largest frame, its length included.
pub(crate) const RELAY_FRAME_MAX: usize = 2 * FRAME_MAX;

/// Bytes of cards in one frame.
pub(crate) const CARDS_BYTES_MAX: usize = FRAME_MAX;

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
    /// The next bytes of the cards of the next table.
    Cards(Vec<u8>),
    /// The table goes to these, with the areas of their nodes and the cards.
    Table { connections: Vec<u64>, token: [u8; 16], key: [u8; KEY_BYTES], last: bool },
    /// End this rank.
    Kill(Rank),
    /// This rank's process has ended without leaving.
    Died { rank: Rank, how: String },
    /// This exchange is over: look for the next one.
    Over,
}

variants! { ToHub:
    1 => Hello { version as SameVersion },
    2 => Relayed { connection, message as Framed },
    3 => Closed { connection },
    4 => Failed { rank, failure },
    5 => Started { rank, pid },
    6 => Gone { rank, how as Text },
}

variants! { ToRelay:
    65 => Hello { version as SameVersion },
    66 => Send { connections as List<CONNECTIONS_MAX>, message as Framed },
    67 => Refuse { connections as List<CONNECTIONS_MAX>, message as Framed },
    68 => Cards(cards as Bytes),
    69 => Table { connections as List<CONNECTIONS_MAX>, token, key, last },
    70 => Kill(rank),
    71 => Died { rank, how as Text },
    72 => Over,
}

impl ToHub {
    /// As one frame.
    pub(crate) fn encode(&self) -> Arc<[u8]> {
        frame(self).into()
    }
}

impl ToRelay {
    /// As one frame.
    pub(crate) fn encode(&self) -> Arc<[u8]> {
        frame(self).into()
    }
}

/// A frame of one direction.
pub(crate) trait RelayFrame: Field {
    /// Whether it is a Hello.
    fn is_hello(&self) -> bool;
}

impl RelayFrame for ToHub {
    fn is_hello(&self) -> bool {
        matches!(self, ToHub::Hello { .. })
    }
}

impl RelayFrame for ToRelay {
    fn is_hello(&self) -> bool {
        matches!(self, ToRelay::Hello { .. })
    }
}

/// The version of the sender, which has to be ours.
struct SameVersion;

impl Form<u16> for SameVersion {
    fn write<O: Output>(value: &u16, writer: &mut Writer<O>) {
        writer.u16(*value);
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<u16> {
        match reader.u16()? {
            VERSION => Ok(VERSION),
            other => Err(DecodeError::Version(other)),
        }
    }
}

/// A message of a rank as its whole frame.
struct Framed;

impl Form<Message> for Framed {
    fn write<O: Output>(value: &Message, writer: &mut Writer<O>) {
        writer.raw(&value.encode());
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<Message> {
        let Some((message, len)) = Message::decode(reader.rest())? else {
            return Err(DecodeError::Invalid("short message"));
        };
        reader.raw(len)?;
        Ok(message)
    }
}

/// At most [`CARDS_BYTES_MAX`] behind their number in four bytes.
struct Bytes;

impl Form<Vec<u8>> for Bytes {
    fn write<O: Output>(value: &Vec<u8>, writer: &mut Writer<O>) {
        writer.bytes(value, Limit::u32(CARDS_BYTES_MAX as u32));
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<Vec<u8>> {
        Ok(reader.bytes(Limit::u32(CARDS_BYTES_MAX as u32))?.to_vec())
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
            let rest = self.bytes.get(self.at..).unwrap_or_default();
            let Ok(body) = codec::first_frame(rest, RELAY_FRAME_MAX - 4) else {
                return Err(DecodeError::Invalid("envelope too long or empty"));
            };
            let Some(body) = body else { return Ok(None) };
            let frame: T = whole(body)?;
            self.at += 4 + body.len();
            match (frame.is_hello(), self.greeted) {
                (false, true) => return Ok(Some(frame)),
                (true, false) => self.greeted = true,
                (true, true) => return Err(DecodeError::Invalid("a second greeting")),
                (false, false) => return Err(DecodeError::Invalid("no greeting")),
            }
        }
    }
}

#[cfg(test)]
#[path = "relay_protocol_tests.rs"]
mod tests;
