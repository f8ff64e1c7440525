//! What passes between the servers of an exchange: the relay on each machine tells the hub, which
//! decides, what its ranks say, and does what comes back. Pure bytes, bounded.
//!
//! A frame is a 32-bit length (of what follows), one byte of kind, and the fields as in a
//! [`Message`]; messages of ranks travel inside as whole frames. The first frame of both sides is
//! Hello. Connections are numbered by the relay.

use super::encoding::{
    Decoded, Field, ProtocolError, Reader, Writer, frame, malformed, write_list,
};
use super::message::{FRAME_MAX, Failure, Message};
use crate::bootstrap::KEY_BYTES;
use crate::ids::Rank;
use crate::wire::codec::{self, Limit};
use std::sync::Arc;

/// The version of this protocol; changes with that of the messages too.
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
    /// This exchange is over: look for the next one.
    Over,
}

/// How many connections one frame names.
const CONNECTIONS: Limit = Limit::u16(CONNECTIONS_MAX as u16);

impl ToHub {
    /// As one frame.
    pub(crate) fn encode(&self) -> Arc<[u8]> {
        frame(|writer| self.write(writer)).into()
    }

    fn write(&self, writer: &mut Writer) {
        match self {
            ToHub::Hello { version } => {
                writer.u8(1).u16(*version);
            }
            ToHub::Relayed { connection, message } => {
                writer.u8(2).u64(*connection).raw(&message.encode());
            }
            ToHub::Closed { connection } => {
                writer.u8(3).u64(*connection);
            }
            ToHub::Failed { rank, failure } => {
                rank.write(writer.u8(4));
                failure.write(writer);
            }
            ToHub::Started { rank, pid } => {
                rank.write(writer.u8(5));
                writer.i32(*pid);
            }
            ToHub::Gone { rank, how } => {
                rank.write(writer.u8(6));
                how.write(writer);
            }
        }
    }
}

impl ToRelay {
    /// As one frame.
    pub(crate) fn encode(&self) -> Arc<[u8]> {
        frame(|writer| self.write(writer)).into()
    }

    fn write(&self, writer: &mut Writer) {
        match self {
            ToRelay::Hello { version } => {
                writer.u8(65).u16(*version);
            }
            ToRelay::Send { connections, message } => {
                write_list(writer.u8(66), connections, CONNECTIONS);
                writer.raw(&message.encode());
            }
            ToRelay::Refuse { connections, message } => {
                write_list(writer.u8(67), connections, CONNECTIONS);
                writer.raw(&message.encode());
            }
            ToRelay::Cards(frame) => {
                writer.u8(68).raw(frame);
            }
            ToRelay::Table { connections, token, key, last } => {
                write_list(writer.u8(69), connections, CONNECTIONS);
                writer.array(token).array(key).bool(*last);
            }
            ToRelay::Kill(rank) => rank.write(writer.u8(70)),
            ToRelay::Died { rank, how } => {
                rank.write(writer.u8(71));
                how.write(writer);
            }
            ToRelay::Over => {
                writer.u8(72);
            }
        }
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
            4 => ToHub::Failed { rank: Field::read(reader)?, failure: Field::read(reader)? },
            5 => ToHub::Started { rank: Field::read(reader)?, pid: reader.i32()? },
            6 => ToHub::Gone { rank: Field::read(reader)?, how: Field::read(reader)? },
            _ => return malformed("unknown kind of envelope"),
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
            66 => ToRelay::Send {
                connections: reader.list(CONNECTIONS, Field::read)?,
                message: message(reader)?.0,
            },
            67 => ToRelay::Refuse {
                connections: reader.list(CONNECTIONS, Field::read)?,
                message: message(reader)?.0,
            },
            68 => match message(reader)? {
                (Message::Cards(_), frame) => ToRelay::Cards(frame.into()),
                _ => return malformed("no cards"),
            },
            69 => ToRelay::Table {
                connections: reader.list(CONNECTIONS, Field::read)?,
                token: reader.array()?,
                key: reader.array()?,
                last: reader.u8()? != 0,
            },
            70 => ToRelay::Kill(Field::read(reader)?),
            71 => ToRelay::Died { rank: Field::read(reader)?, how: Field::read(reader)? },
            72 => ToRelay::Over,
            _ => return malformed("unknown kind of envelope"),
        })
    }

    fn version(&self) -> Option<u16> {
        if let ToRelay::Hello { version } = self { Some(*version) } else { None }
    }
}

/// A message of a rank and the frame that it came as.
fn message<'a>(reader: &mut Reader<'a>) -> Decoded<(Message, &'a [u8])> {
    match Message::decode(reader.rest())? {
        Some((message, len)) => Ok((message, reader.raw(len)?)),
        None => malformed("short message"),
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
                return malformed("envelope too long or empty");
            };
            let Some(body) = body else { return Ok(None) };
            let mut reader = Reader::new(body);
            let frame = T::fields(reader.u8()?, &mut reader)?;
            // What follows the version in a Hello of another version is not for this one.
            if frame.version().is_none() {
                reader.finish()?;
            }
            let len = body.len();
            self.at += 4 + len;
            match (frame.version(), self.greeted) {
                (None, true) => return Ok(Some(frame)),
                (Some(VERSION), false) => self.greeted = true,
                (Some(version), false) => return Err(ProtocolError::Version(version)),
                (Some(_), true) => return malformed("a second greeting"),
                (None, false) => return malformed("no greeting"),
            }
        }
    }
}

#[cfg(test)]
#[path = "relay_protocol_tests.rs"]
mod tests;
