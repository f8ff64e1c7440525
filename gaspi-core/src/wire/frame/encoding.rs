//! Frames as bytes: the kinds of frames, and the fields of each in the order of the wire.
//!
//! The tables of this file are the format, see [`fields`](crate::wire::fields).

use super::*;
use crate::ids::GroupId;
use crate::sync::arrival_slot::PAYLOAD_WORDS;
use crate::wire::codec::{DecodeError, Decoded, Fixed, Limit, Output, Reader, Writer};
use crate::wire::fields::{Field, Form, Kinds, read_field, structs, variants, whole, write_field};
use crate::wire::message::{
    Announce, Arrival, COMMITS_MAX, Commit, Digest, GroupMessage, KEYS_MAX, LastStep, Lines,
    MemoryKey, PairOffer, Pairing, RemoteCall,
};
use crate::wire::shared_layout::{LINES_BYTES_MAX, OUTBOX_BYTES, STAGE_BYTES};

/// Bytes of a text; longer ones are cut where they are written, but read.
const TEXT_MAX: u32 = 4096;
/// Bytes in front of the fields of a frame: its length and its kind.
const HEAD: usize = PREFIX + size_of::<u8>();
/// Bytes of an arrival without words and staging as a frame, its length in front.
const BARE_LEN: usize = 27;
/// Bytes of an atomic operation as a frame.
const ATOMIC_LEN: usize = 43;
/// Bytes of the answer to it, or another value.
const REPLY_LEN: usize = 21;
const REPLY: u8 = 1;
const PUT: u8 = 10;
const ATOMIC: u8 = 14;
const ARRIVE: u8 = 15;

variants! { Frame, else Message(message):
    0 => Hello { rank as BehindMagic, token },
    REPLY => Reply { request, outcome: Ok },
    2 => Reply { request, outcome: Err },
    3 => Register(register),
    5 => Ping { request },
    PUT => Put(put),
    11 => Ack { puts },
    12 => Get { request, stream, remote, size as Size },
    13 => Data { request, size as Size },
    ATOMIC => Atomic { request, remote, operation },
    16 => Passive { request, message as Bytes<OUTBOX_BYTES> },
    18 => Goodbye,
    19 => Refused { stream, reason },
    20 => Release,
    21 => Epoch { count },
    23 => TurnedAway { reason },
    25 => Switch { attempt, number, continues },
    31 => Back { attempt, number, messages },
    32 => Resume { number },
}

variants! { Message, else Group(message):
    4 => Revoke { segment, generation },
    6 => Kill,
    17 => Withhold { request },
    24 => Pairing(pairing),
    30 => Closed { lease },
}

variants! { Pairing:
    0 => Offer(offer),
    1 => Connected { queue, attempt },
    2 => Ended { queue, attempt, refuses, reason },
    3 => Lost { queue, attempt },
}

variants! { GroupMessage:
    7 => Announce(announce),
    8 => Withdraw { group, attempt },
    9 => Abort { group, attempt, round, dead, reason },
    ARRIVE => Arrive(arrival),
    26 => Lines { group, lines },
    27 => Leaving(last_step),
    28 => Digest(digest),
    29 => PassedOn { of, arrival },
}

structs! {
    Register {
        request, segment, generation, size, address, nonce_address, nonce, descriptors, keys
    }
    MemoryKey { device, key, address }
    PairOffer {
        queue, attempt, number, first_packet, gid, lid, mtu, reads, flush_key, flush_address,
        vouches
    }
    Announce { group, attempt, incarnation, ranks }
    Digest { group, attempt, previous, tag, digest, commits }
    Commit { attempt, incarnation }
    Put { last, stream, remote, size as Size, notification, value }
    Stream { queue, generation }
    RemoteAddress { segment, generation, offset }
    Arrival { group, step, signature, words as Words, stage as Bytes<STAGE_BYTES> }
    BareArrival { group, step, signature, words, staged }
    AtomicFields { request, remote, operation }
    Value { request, value }
    Lines { step, tag, signature, lines as LineWords }
    LastStep { group, step, finished, commit, digest }
}

impl Field for String {
    fn write<O: Output>(&self, writer: &mut Writer<O>) {
        writer.text(self, Limit::u32(TEXT_MAX));
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<String> {
        Ok(reader.text(Limit::u32(FRAME_MAX as u32))?.to_owned())
    }
}

impl Field for Vec<Rank> {
    fn write<O: Output>(&self, writer: &mut Writer<O>) {
        writer.list(self, Limit::u32(FRAME_MAX as u32), |writer, rank| rank.write(writer));
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<Vec<Rank>> {
        reader.list(Limit::u32(FRAME_MAX as u32), Field::read)
    }
}

impl Field for Vec<Commit> {
    fn write<O: Output>(&self, writer: &mut Writer<O>) {
        writer.list(self, Limit::u32(COMMITS_MAX), |writer, commit| commit.write(writer));
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<Vec<Commit>> {
        reader.list(Limit::u32(COMMITS_MAX), Field::read)
    }
}

impl Field for Vec<MemoryKey> {
    fn write<O: Output>(&self, writer: &mut Writer<O>) {
        writer.list(self, Limit::u8(KEYS_MAX), |writer, key| key.write(writer));
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<Vec<MemoryKey>> {
        reader.list(Limit::u8(KEYS_MAX), Field::read)
    }
}

/// Four bytes, all of them set where there is none.
impl Field for Option<Rank> {
    fn write<O: Output>(&self, writer: &mut Writer<O>) {
        writer.u32(self.map_or(u32::MAX, |rank| rank.0.into()));
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<Option<Rank>> {
        match reader.u32()? {
            u32::MAX => Ok(None),
            rank => match rank.try_into() {
                Ok(rank) => Ok(Some(Rank(rank))),
                Err(_) => Err(DecodeError::Invalid("impossible rank")),
            },
        }
    }
}

/// Always two operands; that of an addition is the first.
impl Field for AtomicOperation {
    fn write<O: Output>(&self, writer: &mut Writer<O>) {
        match *self {
            AtomicOperation::FetchAdd { add } => writer.u8(0).u64(add).u64(0),
            AtomicOperation::CompareSwap { comparator, new } => {
                writer.u8(1).u64(comparator).u64(new)
            }
        };
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<AtomicOperation> {
        match (reader.u8()?, reader.u64()?, reader.u64()?) {
            (0, add, _) => Ok(AtomicOperation::FetchAdd { add }),
            (1, comparator, new) => Ok(AtomicOperation::CompareSwap { comparator, new }),
            _ => Err(DecodeError::Invalid("unknown atomic operation")),
        }
    }
}

/// Behind the first word of a connection.
struct BehindMagic;

impl<T: Field> Form<T> for BehindMagic {
    fn write<O: Output>(value: &T, writer: &mut Writer<O>) {
        value.write(writer.u32(MAGIC));
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<T> {
        match reader.u32()? {
            MAGIC => Field::read(reader),
            _ => Err(DecodeError::Invalid("another format")),
        }
    }
}

/// Bytes of a payload, at most [`PAYLOAD_MAX`].
struct Size;

impl Form<u64> for Size {
    #[inline]
    fn write<O: Output>(value: &u64, writer: &mut Writer<O>) {
        writer.u64(*value);
    }
    #[inline]
    fn read(reader: &mut Reader<'_>) -> Decoded<u64> {
        match reader.u64()? {
            size @ ..=PAYLOAD_MAX => Ok(size),
            _ => Err(DecodeError::OverLimit),
        }
    }
}

/// At most `MAX` bytes behind their number.
struct Bytes<const MAX: usize>;

impl<const MAX: usize> Form<Vec<u8>> for Bytes<MAX> {
    fn write<O: Output>(value: &Vec<u8>, writer: &mut Writer<O>) {
        writer.bytes(value, Limit::u32(MAX as u32));
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<Vec<u8>> {
        Ok(reader.bytes(Limit::u32(MAX as u32))?.to_vec())
    }
}

/// What fits into an arrival slot, behind its number in one byte.
struct Words;

impl Form<Vec<u64>> for Words {
    fn write<O: Output>(value: &Vec<u64>, writer: &mut Writer<O>) {
        writer.list(value, Limit::u8(PAYLOAD_WORDS as u8), |writer, word| word.write(writer));
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<Vec<u64>> {
        reader.list(Limit::u8(PAYLOAD_WORDS as u8), Field::read)
    }
}

/// The words of lines, behind the number of their bytes in four.
struct LineWords;

impl Form<Vec<u64>> for LineWords {
    fn write<O: Output>(value: &Vec<u64>, writer: &mut Writer<O>) {
        // Not word by word: some hundred of them would take longer than the rest of a step.
        let limit = Limit::u32(LINES_BYTES_MAX as u32);
        if cfg!(target_endian = "little") {
            writer.bytes(bytemuck::cast_slice(value), limit);
        } else {
            let words: Vec<u64> = value.iter().map(|word| word.to_le()).collect();
            writer.bytes(bytemuck::cast_slice(&words), limit);
        }
    }
    fn read(reader: &mut Reader<'_>) -> Decoded<Vec<u64>> {
        let bytes = reader.bytes(Limit::u32(LINES_BYTES_MAX as u32))?;
        let (words, rest) = bytes.as_chunks();
        match rest {
            [] => Ok(words.iter().map(|word| u64::from_le_bytes(*word)).collect()),
            _ => Err(DecodeError::Invalid("half a word")),
        }
    }
}

/// What makes a frame of its own.
pub(crate) trait Encode {
    /// Appends the frame to bytes on their way, its length in front.
    fn append_to(&self, bytes: &mut Vec<u8>);
}

impl Encode for Message {
    fn append_to(&self, bytes: &mut Vec<u8>) {
        if let Message::Group(GroupMessage::Arrive(arrival)) = self
            && let Some(bare) = BareArrival::of(arrival)
        {
            return append_fixed::<BARE_LEN>(bytes, |writer| bare.write(writer.u8(ARRIVE)));
        }
        Writer::new(bytes).framed(|writer| self.write(writer));
    }
}

/// An arrival with nothing in its slot and nothing staged, as at a barrier: of fixed length.
struct BareArrival {
    group: GroupId,
    step: u64,
    signature: u64,
    words: u8,
    staged: u32,
}

impl BareArrival {
    #[inline]
    fn of(arrival: &Arrival) -> Option<BareArrival> {
        let Arrival { group, step, signature, words, stage } = arrival;
        let (group, step, signature) = (*group, *step, *signature);
        let is_bare = words.is_empty() && stage.is_empty();
        is_bare.then_some(BareArrival { group, step, signature, words: 0, staged: 0 })
    }

    /// The arrival, if no words and no staging follow.
    #[inline]
    fn arrival(self) -> Option<Arrival> {
        let BareArrival { group, step, signature, words, staged } = self;
        let arrival = Arrival { group, step, signature, words: Vec::new(), stage: Vec::new() };
        (words == 0 && staged == 0).then_some(arrival)
    }
}

impl Encode for Frame {
    fn append_to(&self, bytes: &mut Vec<u8>) {
        Frame::append_to(self, bytes);
    }
}

/// A put as a frame: stores of numbers, where the general way would be calls.
#[repr(C, packed)]
struct PutFrame {
    length: u32,
    kind: u8,
    last: u8,
    queue: u8,
    stream_generation: u32,
    segment: u8,
    segment_generation: u32,
    offset: u64,
    size: u64,
    notification: u32,
    value: u32,
}

impl Put {
    /// The frame of a put, its length in front.
    #[inline(always)]
    pub(crate) fn encoded(&self) -> [u8; PUT_LEN] {
        let frame = PutFrame {
            length: ((PUT_LEN - PREFIX) as u32).to_le(),
            kind: PUT,
            last: u8::from(self.last),
            queue: self.stream.queue.0,
            stream_generation: self.stream.generation.to_le(),
            segment: self.remote.segment.0,
            segment_generation: self.remote.generation.to_le(),
            offset: self.remote.offset.to_le(),
            size: self.size.to_le(),
            notification: self.notification.0.to_le(),
            value: self.value.to_le(),
        };
        // SAFETY: numbers without gaps between them.
        unsafe { std::mem::transmute::<PutFrame, [u8; PUT_LEN]>(frame) }
    }
}

impl Frame {
    /// The frame of a call of this number.
    pub(crate) fn of_call(request: u64, call: RemoteCall) -> Frame {
        match call {
            RemoteCall::Ping => Frame::Ping { request },
            RemoteCall::Atomic { remote, operation } => {
                Frame::Atomic { request, remote, operation }
            }
            RemoteCall::Passive(message) => Frame::Passive { request, message },
            RemoteCall::Register(register) => Frame::Register(Register { request, ..register }),
        }
    }

    /// The frame as bytes, its length in front.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.append_to(&mut bytes);
        bytes
    }

    /// Appends the frame to bytes on their way, its length in front.
    pub(crate) fn append_to(&self, bytes: &mut Vec<u8>) {
        match self {
            // The most frequent ones have a fixed length: stores on the stack, and one copy.
            Frame::Put(put) => bytes.extend_from_slice(&put.encoded()),
            Frame::Ack { .. } => self.append_fixed::<ACK_LEN>(bytes),
            Frame::Atomic { .. } => self.append_fixed::<ATOMIC_LEN>(bytes),
            Frame::Reply { outcome: Ok(_), .. } => self.append_fixed::<REPLY_LEN>(bytes),
            _ => {
                Writer::new(bytes).framed(|writer| self.write(writer));
            }
        }
    }

    #[inline(always)]
    fn append_fixed<const LEN: usize>(&self, bytes: &mut Vec<u8>) {
        append_fixed::<LEN>(bytes, |writer| self.write(writer));
    }

    /// The frame from its bytes without the length; `None` if they are not one.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Frame> {
        let (kind, fields) = bytes.split_first()?;
        // The most frequent ones have a fixed length: checked once, then loads.
        let frequent = match *kind {
            PUT => of_length::<{ PUT_LEN - HEAD }, Put>(fields).map(Frame::Put),
            ARRIVE => of_length::<{ BARE_LEN - HEAD }, BareArrival>(fields)
                .and_then(BareArrival::arrival)
                .map(|arrival| Frame::Message(Message::Group(GroupMessage::Arrive(arrival)))),
            ATOMIC => of_length::<{ ATOMIC_LEN - HEAD }, AtomicFields>(fields).map(
                |AtomicFields { request, remote, operation }| Frame::Atomic {
                    request,
                    remote,
                    operation,
                },
            ),
            REPLY => of_length::<{ REPLY_LEN - HEAD }, Value>(fields)
                .map(|Value { request, value }| Frame::Reply { request, outcome: Ok(value) }),
            _ => None,
        };
        frequent.or_else(|| whole(bytes).ok())
    }
}

/// The value that these bytes are, if they are so many.
#[inline(always)]
fn of_length<const LEN: usize, T: Field>(bytes: &[u8]) -> Option<T> {
    let bytes: &[u8; LEN] = bytes.try_into().ok()?;
    whole(bytes).ok()
}

/// The fields of an atomic operation.
struct AtomicFields {
    request: u64,
    remote: RemoteAddress,
    operation: AtomicOperation,
}

/// Those of an answer that is a value.
struct Value {
    request: u64,
    value: u64,
}

/// Appends a frame of fixed length.
#[inline(always)]
fn append_fixed<const LEN: usize>(
    bytes: &mut Vec<u8>,
    write: impl FnOnce(&mut Writer<&mut Fixed<LEN>>),
) {
    let mut fixed = Fixed::<LEN>::new();
    Writer::new(&mut fixed).framed(write);
    debug_assert_eq!(fixed.len(), LEN);
    bytes.extend_from_slice(fixed.written().unwrap_or_default());
}
