//! What is said at a meeting, as bytes: pure, versioned, every length bounded before use.
//!
//! A frame is a 32-bit length (of what follows), one byte of kind, and the fields in little-endian
//! order; strings and lists carry a 16-bit count. Nothing here knows sockets, so that all of it is
//! property-tested, and a frame that is not understood is an error in words, never a panic.

use super::fields::{DecodeError, Decoded, Reader, Writer, encode_failure};
use super::{Card, KEY_BYTES};
use crate::error::Error;
use crate::ids::Rank;

/// The version of this protocol; a [`Join`] of another version is refused in words.
pub(crate) const VERSION: u16 = 4;
/// Bytes of the largest frame, its length included.
pub(crate) const FRAME_MAX: usize = 64 * 1024;
/// Bytes of a string; longer ones are cut when they are sent.
pub(crate) const TEXT_MAX: usize = 1024;
/// Words of an affinity mask.
pub(crate) const CPU_WORDS_MAX: usize = 1024;
/// Addresses of one rank.
pub(crate) const ENDPOINTS_MAX: usize = 64;
/// Fields that must agree.
pub(crate) const AGREED_MAX: usize = 64;
/// Ranks that are named as missing.
pub(crate) const MISSING_MAX: usize = 8;

/// A rank's wish to take part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Join {
    /// The job that it believes to belong to.
    pub(crate) job: String,
    /// Ranks of the job.
    pub(crate) size: u32,
    /// What must be equal on all ranks, by name.
    pub(crate) agreed: Vec<(String, u64)>,
    /// Who it is.
    pub(crate) card: Card,
}

impl Join {
    /// The field `group_max` of what must be equal.
    pub(crate) fn group_max(&self) -> u32 {
        let field = self.agreed.iter().find(|(name, _)| name == "group_max");
        field.map_or(0, |(_, value)| *value as u32)
    }
}

/// Why a meeting, or the part of one rank in it, failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Failure {
    /// Two ranks differ in what must agree.
    Mismatch { field: String, left: Rank, left_value: String, right: Rank, right_value: String },
    /// The environment of this one rank makes no sense.
    Environment(String),
    /// Some rank ended, or the host cannot go on.
    Meeting(String),
    /// There is no memory for the node area.
    Memory { needed: u64, available: u64, reason: String },
    /// The operating system refused the node area.
    System { call: String, reason: String },
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        match failure {
            Failure::Mismatch { field, left, left_value, right, right_value } => {
                Error::ConfigMismatch { field, left, left_value, right, right_value }
            }
            Failure::Environment(reason) => Error::Environment { reason },
            Failure::Meeting(reason) => Error::Meeting { reason },
            Failure::Memory { needed, available, reason } => {
                Error::Memory { needed, available, reason }
            }
            Failure::System { call, reason } => Error::System { call, reason },
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            Error::Memory { needed, available, reason } => {
                Failure::Memory { needed, available, reason }
            }
            Error::System { call, reason } => Failure::System { call, reason },
            other => Failure::Meeting(other.to_string()),
        }
    }
}

/// Everything that is said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Message {
    /// Rank to host: the first word.
    Join(Join),
    /// Rank to host: end that rank.
    Kill(Rank),
    /// Rank to host: it leaves the job, so that the end of its process is no death.
    Leave,
    /// Host to rank: so many are missing, the first of them by number; where the job spans hosts
    /// also in words, with hosts and how far each has come.
    Missing { count: u32, first: Vec<Rank>, words: String },
    /// Host to rank: the cards of ranks in ascending order, one part of all.
    Cards(Vec<Card>),
    /// Host to rank: the last part of the table; the node area comes along as a descriptor.
    Area { token: [u8; 16], key: [u8; KEY_BYTES] },
    /// Host to rank: it ends here.
    Failed(Failure),
    /// Host to rank: this meeting is over, look for the next one.
    Over,
    /// Rank to host, instead of a join: it cannot take part in its next meeting.
    Unable { job: String, rank: Rank, reason: String },
    /// Host to rank, after the table: that rank's process has ended without leaving.
    Died { rank: Rank, how: String },
}

impl Message {
    /// The message as one frame.
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Message::Join(join) => {
                let mut writer = Writer::frame(1);
                writer.u16(VERSION);
                writer.text(&join.job);
                writer.u32(join.size);
                let agreed = &join.agreed[..join.agreed.len().min(AGREED_MAX)];
                writer.u16(agreed.len() as u16);
                for (field, value) in agreed {
                    writer.text(field);
                    writer.u64(*value);
                }
                writer.card(&join.card);
                writer.finish()
            }
            Message::Kill(rank) => {
                let mut writer = Writer::frame(2);
                writer.u16(rank.0);
                writer.finish()
            }
            Message::Missing { count, first, words } => {
                let mut writer = Writer::frame(3);
                writer.u32(*count);
                let first = &first[..first.len().min(MISSING_MAX)];
                writer.u16(first.len() as u16);
                for rank in first {
                    writer.u16(rank.0);
                }
                writer.text(words);
                writer.finish()
            }
            Message::Cards(cards) => {
                let mut writer = Writer::frame(4);
                writer.u16(cards.len() as u16);
                for card in cards {
                    writer.card(card);
                }
                writer.finish()
            }
            Message::Area { token, key } => {
                let mut writer = Writer::frame(5);
                writer.0.extend_from_slice(token);
                writer.0.extend_from_slice(key);
                writer.finish()
            }
            Message::Failed(failure) => {
                let mut writer = Writer::frame(6);
                encode_failure(&mut writer, failure);
                writer.finish()
            }
            Message::Over => Writer::frame(7).finish(),
            Message::Leave => Writer::frame(8).finish(),
            Message::Died { rank, how } => {
                let mut writer = Writer::frame(9);
                writer.u16(rank.0);
                writer.text(how);
                writer.finish()
            }
            Message::Unable { job, rank, reason } => {
                let mut writer = Writer::frame(10);
                writer.text(job);
                writer.u16(rank.0);
                writer.text(reason);
                writer.finish()
            }
        }
    }

    /// The first frame of `bytes` and how many bytes it took, `None` if more bytes are needed.
    pub(crate) fn decode(bytes: &[u8]) -> Decoded<Option<(Message, usize)>> {
        let Some((len, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
        let len = u32::from_le_bytes(*len) as usize;
        if len == 0 || len > FRAME_MAX - 4 {
            return Err(DecodeError::Malformed("frame too long or empty"));
        }
        let Some(body) = rest.get(..len) else { return Ok(None) };
        let mut reader = Reader(body);
        let message = match reader.u8()? {
            1 => Message::Join(reader.join()?),
            2 => Message::Kill(reader.rank()?),
            3 => Message::Missing {
                count: reader.u32()?,
                first: {
                    let count = reader.count(MISSING_MAX)?;
                    (0..count).map(|_| reader.rank()).collect::<Decoded<_>>()?
                },
                words: reader.text()?,
            },
            4 => {
                let count = reader.count(usize::from(u16::MAX))?;
                Message::Cards((0..count).map(|_| reader.card()).collect::<Decoded<_>>()?)
            }
            5 => Message::Area { token: reader.bytes()?, key: reader.bytes()? },
            6 => Message::Failed(reader.failure()?),
            7 => Message::Over,
            8 => Message::Leave,
            9 => Message::Died { rank: reader.rank()?, how: reader.text()? },
            10 => {
                let (job, rank) = (reader.text()?, reader.rank()?);
                Message::Unable { job, rank, reason: reader.text()? }
            }
            _ => return Err(DecodeError::Malformed("unknown kind")),
        };
        if !reader.0.is_empty() {
            return Err(DecodeError::Malformed("bytes left over"));
        }
        Ok(Some((message, 4 + len)))
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
