//! Messages as bytes: pure, versioned, every length bounded before use.
//!
//! A frame is a 32-bit length (of what follows), one byte of kind, and the fields; texts and lists
//! carry a 16-bit count. Nothing here knows sockets, so that all of it is property-tested, and a
//! frame that is not understood is an error in words, never a panic.

use super::message::{
    AGREED_MAX, CPU_WORDS_MAX, FRAME_MAX, Failure, Join, MISSING_MAX, Message, TEXT_MAX, VERSION,
};
use crate::bootstrap::Card;
use crate::bootstrap::card::ENDPOINTS_MAX;
use crate::ids::Rank;
use crate::wire::codec::{self, DecodeError, Limit};
use std::net::{IpAddr, SocketAddr};

const TEXT: Limit = Limit::u16(TEXT_MAX as u16);
const ENDPOINTS: Limit = Limit::u16(ENDPOINTS_MAX as u16);
const CPU_WORDS: Limit = Limit::u16(CPU_WORDS_MAX as u16);
const AGREED: Limit = Limit::u16(AGREED_MAX as u16);
const MISSING: Limit = Limit::u16(MISSING_MAX as u16);
const CARDS: Limit = Limit::u16(u16::MAX);

/// Why a frame was not understood.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ProtocolError {
    /// The other side speaks another version of this protocol.
    Version(u16),
    /// Nonsense.
    Malformed(DecodeError),
}

impl From<DecodeError> for ProtocolError {
    fn from(error: DecodeError) -> ProtocolError {
        ProtocolError::Malformed(error)
    }
}

/// What comes of reading a frame.
pub(super) type Decoded<T> = Result<T, ProtocolError>;
/// A frame on its way out.
pub(super) type Writer = codec::Writer<Vec<u8>>;
/// The fields of a frame that came.
pub(crate) type Reader<'a> = codec::Reader<'a>;

/// The error of a frame that makes no sense.
pub(super) fn malformed<T>(what: &'static str) -> Decoded<T> {
    Err(DecodeError::Invalid(what).into())
}

/// A frame with the fields that `write` writes.
pub(super) fn frame(write: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new());
    writer.framed(write);
    writer.into_inner()
}

/// Something that frames are made of.
pub(super) trait Field: Sized {
    fn write(&self, writer: &mut Writer);
    fn read(reader: &mut Reader<'_>) -> Decoded<Self>;
}

impl Field for Rank {
    fn write(&self, writer: &mut Writer) {
        writer.u16(self.0);
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<Rank> {
        Ok(Rank(reader.u16()?))
    }
}

impl Field for u64 {
    fn write(&self, writer: &mut Writer) {
        writer.u64(*self);
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<u64> {
        Ok(reader.u64()?)
    }
}

impl Field for String {
    fn write(&self, writer: &mut Writer) {
        writer.text(self, TEXT);
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<String> {
        Ok(reader.text(TEXT)?.to_owned())
    }
}

impl Field for SocketAddr {
    fn write(&self, writer: &mut Writer) {
        match self.ip() {
            IpAddr::V4(address) => writer.u8(4).array(&address.octets()),
            IpAddr::V6(address) => writer.u8(6).array(&address.octets()),
        };
        writer.u16(self.port());
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<SocketAddr> {
        let address: IpAddr = match reader.u8()? {
            4 => reader.array::<4>()?.into(),
            6 => reader.array::<16>()?.into(),
            _ => return malformed("unknown family of addresses"),
        };
        Ok(SocketAddr::new(address, reader.u16()?))
    }
}

impl Field for (String, u64) {
    fn write(&self, writer: &mut Writer) {
        self.0.write(writer);
        self.1.write(writer);
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<(String, u64)> {
        Ok((Field::read(reader)?, Field::read(reader)?))
    }
}

/// Writes a list of fields.
pub(super) fn write_list<T: Field>(writer: &mut Writer, list: &[T], limit: Limit) {
    writer.list(list, limit, |writer, field| field.write(writer));
}

impl Field for Card {
    fn write(&self, writer: &mut Writer) {
        self.rank.write(writer);
        writer.i32(self.pid).u64(self.start_time).u64(self.instance);
        writer.u64(self.node).u64(self.machine);
        self.address.write(writer);
        write_list(writer, &self.endpoints, ENDPOINTS);
        self.host.write(writer);
        write_list(writer, &self.cpus, CPU_WORDS);
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<Card> {
        Ok(Card {
            rank: Field::read(reader)?,
            pid: reader.i32()?,
            start_time: reader.u64()?,
            instance: reader.u64()?,
            node: reader.u64()?,
            machine: reader.u64()?,
            address: Field::read(reader)?,
            endpoints: reader.list(ENDPOINTS, Field::read)?,
            host: Field::read(reader)?,
            cpus: reader.list(CPU_WORDS, Field::read)?,
        })
    }
}

impl Field for Failure {
    fn write(&self, writer: &mut Writer) {
        match self {
            Failure::Mismatch { field, left, left_value, right, right_value } => {
                writer.u8(0);
                field.write(writer);
                left.write(writer);
                left_value.write(writer);
                right.write(writer);
                right_value.write(writer);
            }
            Failure::Environment(reason) => reason.write(writer.u8(1)),
            Failure::Meeting(reason) => reason.write(writer.u8(2)),
            Failure::Memory { needed, available, reason } => {
                reason.write(writer.u8(3).u64(*needed).u64(*available));
            }
            Failure::System { call, reason } => {
                call.write(writer.u8(4));
                reason.write(writer);
            }
        }
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<Failure> {
        Ok(match reader.u8()? {
            0 => Failure::Mismatch {
                field: Field::read(reader)?,
                left: Field::read(reader)?,
                left_value: Field::read(reader)?,
                right: Field::read(reader)?,
                right_value: Field::read(reader)?,
            },
            1 => Failure::Environment(Field::read(reader)?),
            2 => Failure::Meeting(Field::read(reader)?),
            3 => Failure::Memory {
                needed: reader.u64()?,
                available: reader.u64()?,
                reason: Field::read(reader)?,
            },
            4 => Failure::System { call: Field::read(reader)?, reason: Field::read(reader)? },
            _ => return malformed("unknown failure"),
        })
    }
}

impl Field for Join {
    fn write(&self, writer: &mut Writer) {
        writer.u16(VERSION);
        self.job.write(writer);
        writer.u32(self.size);
        write_list(writer, &self.agreed, AGREED);
        self.card.write(writer);
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<Join> {
        let version = reader.u16()?;
        if version != VERSION {
            return Err(ProtocolError::Version(version));
        }
        Ok(Join {
            job: Field::read(reader)?,
            size: reader.u32()?,
            agreed: reader.list(AGREED, Field::read)?,
            card: Field::read(reader)?,
        })
    }
}

/// Kind and fields.
impl Field for Message {
    fn write(&self, writer: &mut Writer) {
        match self {
            Message::Join(join) => join.write(writer.u8(1)),
            Message::Kill(rank) => rank.write(writer.u8(2)),
            Message::Missing { count, first, words } => {
                write_list(writer.u8(3).u32(*count), first, MISSING);
                words.write(writer);
            }
            Message::Cards(cards) => write_list(writer.u8(4), cards, CARDS),
            Message::Area { token, key } => {
                writer.u8(5).array(token).array(key);
            }
            Message::Failed(failure) => failure.write(writer.u8(6)),
            Message::Over => {
                writer.u8(7);
            }
            Message::Leave => {
                writer.u8(8);
            }
            Message::Died { rank, how } => {
                rank.write(writer.u8(9));
                how.write(writer);
            }
            Message::Unable { job, rank, reason } => {
                job.write(writer.u8(10));
                rank.write(writer);
                reason.write(writer);
            }
        }
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<Message> {
        Ok(match reader.u8()? {
            1 => Message::Join(Field::read(reader)?),
            2 => Message::Kill(Field::read(reader)?),
            3 => Message::Missing {
                count: reader.u32()?,
                first: reader.list(MISSING, Field::read)?,
                words: Field::read(reader)?,
            },
            4 => Message::Cards(reader.list(CARDS, Field::read)?),
            5 => Message::Area { token: reader.array()?, key: reader.array()? },
            6 => Message::Failed(Field::read(reader)?),
            7 => Message::Over,
            8 => Message::Leave,
            9 => Message::Died { rank: Field::read(reader)?, how: Field::read(reader)? },
            10 => Message::Unable {
                job: Field::read(reader)?,
                rank: Field::read(reader)?,
                reason: Field::read(reader)?,
            },
            _ => return malformed("unknown kind"),
        })
    }
}

impl Message {
    /// The message as one frame.
    pub(crate) fn encode(&self) -> Vec<u8> {
        frame(|writer| self.write(writer))
    }

    /// The first frame of `bytes` and how many bytes it took, `None` if more bytes are needed.
    pub(crate) fn decode(bytes: &[u8]) -> Decoded<Option<(Message, usize)>> {
        let Ok(body) = codec::first_frame(bytes, FRAME_MAX - 4) else {
            return malformed("frame too long or empty");
        };
        let Some(body) = body else { return Ok(None) };
        let mut reader = Reader::new(body);
        let message = Message::read(&mut reader)?;
        reader.finish()?;
        Ok(Some((message, 4 + body.len())))
    }
}

/// Bytes that a card takes in a frame, at most.
fn card_bytes(card: &Card) -> usize {
    let texts = card.address.len().min(TEXT_MAX) + card.host.len().min(TEXT_MAX);
    let endpoints = 19 * card.endpoints.len().min(ENDPOINTS_MAX);
    46 + texts + endpoints + 8 * card.cpus.len().min(CPU_WORDS_MAX)
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
