//! What is said at a meeting, as bytes: pure, versioned, every length bounded before use.
//!
//! A frame is a 32-bit length (of what follows), one byte of kind, and the fields in little-endian
//! order; strings and lists carry a 16-bit count. Nothing here knows sockets, so that all of it is
//! property-tested, and a frame that is not understood is an error in words, never a panic.

use super::{Card, KEY_BYTES};
use crate::error::Error;
use crate::ids::Rank;
use std::net::{IpAddr, SocketAddr};

/// The version of this protocol; a [`Join`] of another version is refused in words.
pub(crate) const VERSION: u16 = 3;
/// Bytes of the largest frame, its length included.
pub(crate) const FRAME_MAX: usize = 64 * 1024;
/// Bytes of a string; longer ones are cut when they are sent.
pub(crate) const TEXT_MAX: usize = 1024;
/// Words of an affinity mask.
pub(crate) const CPU_WORDS_MAX: usize = 1024;
/// Addresses of one rank.
pub(crate) const ENDPOINTS_MAX: usize = 64;
/// Fields that must agree.
const AGREED_MAX: usize = 64;
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
    /// Host to rank: so many are missing, the first of them by name.
    Missing { count: u32, first: Vec<Rank> },
    /// Host to rank: the cards of ranks in ascending order, one part of all.
    Cards(Vec<Card>),
    /// Host to rank: the last part of the table; the node area comes along as a descriptor.
    Area { token: [u8; 16], key: [u8; KEY_BYTES] },
    /// Host to rank: it ends here.
    Failed(Failure),
    /// Host to rank: this meeting is over, look for the next one.
    Over,
}

/// Why a frame was not understood.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum DecodeError {
    /// A join of another version of this protocol.
    Version(u16),
    /// Nonsense.
    Malformed(&'static str),
}

struct Writer(Vec<u8>);

impl Writer {
    fn frame(kind: u8) -> Writer {
        Writer(vec![0, 0, 0, 0, kind])
    }
    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }
    fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    fn text(&mut self, text: &str) {
        let mut end = text.len().min(TEXT_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.u16(end as u16);
        self.0.extend_from_slice(&text.as_bytes()[..end]);
    }
    fn card(&mut self, card: &Card) {
        self.u16(card.rank.0);
        self.u32(card.pid as u32);
        self.u64(card.start_time);
        self.u64(card.instance);
        self.u64(card.node);
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
    fn endpoint(&mut self, endpoint: &SocketAddr) {
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
    fn finish(mut self) -> Vec<u8> {
        let len = (self.0.len() - 4) as u32;
        self.0[..4].copy_from_slice(&len.to_le_bytes());
        self.0
    }
}

struct Reader<'a>(&'a [u8]);

type Decoded<T> = Result<T, DecodeError>;

impl Reader<'_> {
    fn bytes<const N: usize>(&mut self) -> Decoded<[u8; N]> {
        let (head, rest) =
            self.0.split_first_chunk::<N>().ok_or(DecodeError::Malformed("short"))?;
        self.0 = rest;
        Ok(*head)
    }
    fn u8(&mut self) -> Decoded<u8> {
        Ok(u8::from_le_bytes(self.bytes()?))
    }
    fn u16(&mut self) -> Decoded<u16> {
        Ok(u16::from_le_bytes(self.bytes()?))
    }
    fn u32(&mut self) -> Decoded<u32> {
        Ok(u32::from_le_bytes(self.bytes()?))
    }
    fn u64(&mut self) -> Decoded<u64> {
        Ok(u64::from_le_bytes(self.bytes()?))
    }
    fn count(&mut self, max: usize) -> Decoded<usize> {
        let count = usize::from(self.u16()?);
        if count > max { Err(DecodeError::Malformed("count too large")) } else { Ok(count) }
    }
    fn rank(&mut self) -> Decoded<Rank> {
        Ok(Rank(self.u16()?))
    }
    fn text(&mut self) -> Decoded<String> {
        let len = self.count(TEXT_MAX)?;
        let (text, rest) =
            self.0.split_at_checked(len).ok_or(DecodeError::Malformed("short text"))?;
        self.0 = rest;
        let text = std::str::from_utf8(text).map_err(|_| DecodeError::Malformed("not UTF-8"))?;
        Ok(text.to_owned())
    }
    fn endpoint(&mut self) -> Decoded<SocketAddr> {
        let address: IpAddr = match self.u8()? {
            4 => self.bytes::<4>()?.into(),
            6 => self.bytes::<16>()?.into(),
            _ => return Err(DecodeError::Malformed("unknown family of addresses")),
        };
        Ok(SocketAddr::new(address, self.u16()?))
    }
    fn card(&mut self) -> Decoded<Card> {
        Ok(Card {
            rank: self.rank()?,
            pid: self.u32()? as i32,
            start_time: self.u64()?,
            instance: self.u64()?,
            node: self.u64()?,
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
    fn failure(&mut self) -> Decoded<Failure> {
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
    fn join(&mut self) -> Decoded<Join> {
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

fn encode_failure(writer: &mut Writer, failure: &Failure) {
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
            Message::Missing { count, first } => {
                let mut writer = Writer::frame(3);
                writer.u32(*count);
                let first = &first[..first.len().min(MISSING_MAX)];
                writer.u16(first.len() as u16);
                for rank in first {
                    writer.u16(rank.0);
                }
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
            },
            4 => {
                let count = reader.count(usize::from(u16::MAX))?;
                Message::Cards((0..count).map(|_| reader.card()).collect::<Decoded<_>>()?)
            }
            5 => Message::Area { token: reader.bytes()?, key: reader.bytes()? },
            6 => Message::Failed(reader.failure()?),
            7 => Message::Over,
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
    38 + texts + endpoints + 8 * card.cpus.len().min(CPU_WORDS_MAX)
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn card() -> impl Strategy<Value = Card> {
        let cpus = prop::collection::vec(any::<u64>(), 0..20);
        let endpoints = prop::collection::vec(
            (any::<IpAddr>(), any::<u16>()).prop_map(|(ip, port)| SocketAddr::new(ip, port)),
            0..5,
        );
        let process = (any::<u16>(), any::<i32>(), any::<[u64; 3]>());
        (process, ".{0,90}", endpoints, ".{0,40}", cpus).prop_map(
            |((rank, pid, [start_time, instance, node]), address, endpoints, host, cpus)| Card {
                rank: Rank(rank),
                pid,
                start_time,
                instance,
                node,
                address,
                endpoints,
                host,
                cpus,
            },
        )
    }

    fn failure() -> impl Strategy<Value = Failure> {
        prop_oneof![
            (".{0,40}", any::<u16>(), ".{0,40}", any::<u16>(), ".{0,40}").prop_map(
                |(field, left, left_value, right, right_value)| Failure::Mismatch {
                    field,
                    left: Rank(left),
                    left_value,
                    right: Rank(right),
                    right_value
                }
            ),
            ".{0,200}".prop_map(Failure::Environment),
            ".{0,200}".prop_map(Failure::Meeting),
            (any::<u64>(), any::<u64>(), ".{0,40}").prop_map(|(needed, available, reason)| {
                Failure::Memory { needed, available, reason }
            }),
            (".{0,40}", ".{0,40}").prop_map(|(call, reason)| Failure::System { call, reason }),
        ]
    }

    fn message() -> impl Strategy<Value = Message> {
        let agreed = prop::collection::vec((".{0,20}", any::<u64>()), 0..12);
        let first = prop::collection::vec(any::<u16>().prop_map(Rank), 0..MISSING_MAX);
        prop_oneof![
            (".{0,40}", any::<u32>(), agreed, card()).prop_map(|(job, size, agreed, card)| {
                Message::Join(Join { job, size, agreed, card })
            }),
            any::<u16>().prop_map(|rank| Message::Kill(Rank(rank))),
            (any::<u32>(), first).prop_map(|(count, first)| Message::Missing { count, first }),
            prop::collection::vec(card(), 0..20).prop_map(Message::Cards),
            any::<([u8; 16], [u8; 32])>().prop_map(|(token, key)| Message::Area { token, key }),
            failure().prop_map(Message::Failed),
            Just(Message::Over),
        ]
    }

    proptest! {
        #[test]
        fn what_is_said_is_understood(message in message(), tail in prop::collection::vec(any::<u8>(), 0..9)) {
            let mut bytes = message.encode();
            let len = bytes.len();
            for cut in 0..len {
                prop_assert_eq!(Message::decode(&bytes[..cut]), Ok(None));
            }
            bytes.extend(tail);
            prop_assert_eq!(Message::decode(&bytes), Ok(Some((message, len))));
        }

        #[test]
        fn nonsense_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = Message::decode(&bytes);
            let mut framed = (bytes.len() as u32).to_le_bytes().to_vec();
            framed.extend(&bytes);
            let _ = Message::decode(&framed);
        }

        #[test]
        fn a_flipped_bit_never_panics(message in message(), at in any::<prop::sample::Index>(), bit in 0..8u32) {
            let mut bytes = message.encode();
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            let _ = Message::decode(&bytes);
        }
    }

    #[test]
    fn mutated_messages_do_no_harm() {
        use proptest::strategy::ValueTree;
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let samples: Vec<Vec<u8>> = (0..256)
            .map(|_| message().new_tree(&mut runner).expect("message").current().encode())
            .collect();
        crate::fuzzed::run("message", 512 * 1024, |seed| {
            let sample = seed.below(samples.len() as u64) as usize;
            let mut bytes = samples[sample].clone();
            seed.mutate(&mut bytes);
            if seed.below(2) == 0 && bytes.len() >= 4 {
                // A length that fits, so that the fields are looked at.
                let len = bytes.len() as u32 - 4;
                bytes[..4].copy_from_slice(&len.to_le_bytes());
            }
            if let Ok(Some((message, len))) = Message::decode(&bytes) {
                assert!(len <= bytes.len());
                assert_eq!(Message::decode(&message.encode()), Ok(Some((message.clone(), len))));
            }
        });
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        let text = "ä".repeat(TEXT_MAX);
        let bytes = Message::Failed(Failure::Meeting(format!("x{text}"))).encode();
        let Ok(Some((Message::Failed(Failure::Meeting(cut)), _))) = Message::decode(&bytes) else {
            panic!("not understood");
        };
        assert_eq!(cut.len(), TEXT_MAX - 1);
    }

    #[test]
    fn many_cards_take_several_bounded_frames() {
        let cards: Vec<Card> = (0..3000u16)
            .map(|rank| Card {
                rank: Rank(rank),
                pid: 1,
                start_time: 2,
                instance: 3,
                node: 4,
                address: "a".repeat(100),
                endpoints: vec![SocketAddr::new([192, 0, 2, 1].into(), 5); 10],
                host: "h".repeat(200),
                cpus: vec![u64::MAX; if rank % 100 == 0 { CPU_WORDS_MAX } else { 4 }],
            })
            .collect();
        let frames = encode_cards(&cards);
        assert!(frames.len() > 10);
        let mut again = Vec::new();
        for frame in &frames {
            assert!(frame.len() <= FRAME_MAX);
            let Ok(Some((Message::Cards(part), _))) = Message::decode(frame) else {
                panic!("not understood");
            };
            again.extend(part);
        }
        assert_eq!(again, cards);
    }

    #[test]
    fn another_version_is_told_apart() {
        let mut writer = Writer::frame(1);
        writer.u16(VERSION + 1);
        writer.u64(0);
        assert_eq!(Message::decode(&writer.finish()), Err(DecodeError::Version(VERSION + 1)));
    }
}
