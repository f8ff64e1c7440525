//! The fields of the frames of a meeting: little-endian numbers, texts and lists with bounded
//! counts.

use super::message::{
    AGREED_MAX, CPU_WORDS_MAX, FRAME_MAX, Failure, Join, MISSING_MAX, Message, TEXT_MAX, VERSION,
};
use crate::bootstrap::Card;
use crate::bootstrap::card::ENDPOINTS_MAX;
use crate::ids::Rank;
use std::net::{IpAddr, SocketAddr};

/// Why a frame was not understood.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum DecodeError {
    /// A join of another version of this protocol.
    Version(u16),
    /// Nonsense.
    Malformed(&'static str),
}

/// A frame on its way out.
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn frame(kind: u8) -> Writer {
        Writer(vec![0, 0, 0, 0, kind])
    }
    pub(super) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }
    pub(super) fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    pub(super) fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    pub(super) fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    pub(super) fn text(&mut self, text: &str) {
        let mut end = text.len().min(TEXT_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.u16(end as u16);
        self.0.extend_from_slice(&text.as_bytes()[..end]);
    }
    pub(super) fn card(&mut self, card: &Card) {
        self.u16(card.rank.0);
        self.u32(card.pid as u32);
        self.u64(card.start_time);
        self.u64(card.instance);
        self.u64(card.node);
        self.u64(card.machine);
        self.text(&card.address);
        let endpoints = &card.endpoints[..card.endpoints.len().min(ENDPOINTS_MAX)];
        self.u16(endpoints.len() as u16);
        for endpoint in endpoints {
            self.endpoint(endpoint);
        }
        self.text(&card.host);
        let words = &card.cpus[..card.cpus.len().min(CPU_WORDS_MAX)];
        self.u16(words.len() as u16);
        for word in words {
            self.u64(*word);
        }
    }
    pub(super) fn endpoint(&mut self, endpoint: &SocketAddr) {
        match endpoint.ip() {
            IpAddr::V4(address) => {
                self.u8(4);
                self.0.extend_from_slice(&address.octets());
            }
            IpAddr::V6(address) => {
                self.u8(6);
                self.0.extend_from_slice(&address.octets());
            }
        }
        self.u16(endpoint.port());
    }
    pub(super) fn finish(mut self) -> Vec<u8> {
        let len = (self.0.len() - 4) as u32;
        self.0[..4].copy_from_slice(&len.to_le_bytes());
        self.0
    }
}

/// The fields of a frame that came.
pub(crate) struct Reader<'a>(pub(super) &'a [u8]);

/// What comes of reading.
pub(super) type Decoded<T> = Result<T, DecodeError>;

impl Reader<'_> {
    pub(super) fn bytes<const N: usize>(&mut self) -> Decoded<[u8; N]> {
        let (head, rest) =
            self.0.split_first_chunk::<N>().ok_or(DecodeError::Malformed("short"))?;
        self.0 = rest;
        Ok(*head)
    }
    pub(super) fn u8(&mut self) -> Decoded<u8> {
        Ok(u8::from_le_bytes(self.bytes()?))
    }
    pub(super) fn u16(&mut self) -> Decoded<u16> {
        Ok(u16::from_le_bytes(self.bytes()?))
    }
    pub(super) fn u32(&mut self) -> Decoded<u32> {
        Ok(u32::from_le_bytes(self.bytes()?))
    }
    pub(super) fn u64(&mut self) -> Decoded<u64> {
        Ok(u64::from_le_bytes(self.bytes()?))
    }
    pub(super) fn count(&mut self, max: usize) -> Decoded<usize> {
        let count = usize::from(self.u16()?);
        if count > max { Err(DecodeError::Malformed("count too large")) } else { Ok(count) }
    }
    pub(super) fn rank(&mut self) -> Decoded<Rank> {
        Ok(Rank(self.u16()?))
    }
    pub(super) fn text(&mut self) -> Decoded<String> {
        let len = self.count(TEXT_MAX)?;
        let (text, rest) =
            self.0.split_at_checked(len).ok_or(DecodeError::Malformed("short text"))?;
        self.0 = rest;
        let text = std::str::from_utf8(text).map_err(|_| DecodeError::Malformed("not UTF-8"))?;
        Ok(text.to_owned())
    }
    pub(super) fn endpoint(&mut self) -> Decoded<SocketAddr> {
        let address: IpAddr = match self.u8()? {
            4 => self.bytes::<4>()?.into(),
            6 => self.bytes::<16>()?.into(),
            _ => return Err(DecodeError::Malformed("unknown family of addresses")),
        };
        Ok(SocketAddr::new(address, self.u16()?))
    }
    pub(super) fn card(&mut self) -> Decoded<Card> {
        Ok(Card {
            rank: self.rank()?,
            pid: self.u32()? as i32,
            start_time: self.u64()?,
            instance: self.u64()?,
            node: self.u64()?,
            machine: self.u64()?,
            address: self.text()?,
            endpoints: {
                let count = self.count(ENDPOINTS_MAX)?;
                (0..count).map(|_| self.endpoint()).collect::<Decoded<_>>()?
            },
            host: self.text()?,
            cpus: {
                let count = self.count(CPU_WORDS_MAX)?;
                (0..count).map(|_| self.u64()).collect::<Decoded<_>>()?
            },
        })
    }
    pub(super) fn failure(&mut self) -> Decoded<Failure> {
        Ok(match self.u8()? {
            0 => Failure::Mismatch {
                field: self.text()?,
                left: self.rank()?,
                left_value: self.text()?,
                right: self.rank()?,
                right_value: self.text()?,
            },
            1 => Failure::Environment(self.text()?),
            2 => Failure::Meeting(self.text()?),
            3 => Failure::Memory {
                needed: self.u64()?,
                available: self.u64()?,
                reason: self.text()?,
            },
            4 => Failure::System { call: self.text()?, reason: self.text()? },
            _ => return Err(DecodeError::Malformed("unknown failure")),
        })
    }
    pub(super) fn join(&mut self) -> Decoded<Join> {
        let version = self.u16()?;
        if version != VERSION {
            return Err(DecodeError::Version(version));
        }
        Ok(Join {
            job: self.text()?,
            size: self.u32()?,
            agreed: {
                let count = self.count(AGREED_MAX)?;
                (0..count).map(|_| Ok((self.text()?, self.u64()?))).collect::<Decoded<_>>()?
            },
            card: self.card()?,
        })
    }
}

/// The fields of a failure.
pub(super) fn encode_failure(writer: &mut Writer, failure: &Failure) {
    match failure {
        Failure::Mismatch { field, left, left_value, right, right_value } => {
            writer.u8(0);
            writer.text(field);
            writer.u16(left.0);
            writer.text(left_value);
            writer.u16(right.0);
            writer.text(right_value);
        }
        Failure::Environment(reason) => {
            writer.u8(1);
            writer.text(reason);
        }
        Failure::Meeting(reason) => {
            writer.u8(2);
            writer.text(reason);
        }
        Failure::Memory { needed, available, reason } => {
            writer.u8(3);
            writer.u64(*needed);
            writer.u64(*available);
            writer.text(reason);
        }
        Failure::System { call, reason } => {
            writer.u8(4);
            writer.text(call);
            writer.text(reason);
        }
    }
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
