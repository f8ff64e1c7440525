//! The messages between the libraries of two ranks, as bytes. No sockets here.
//!
//! ```text
//! frame    length u32 of what follows | kind u8 | fields, little-endian | payload, not counted
//! text     length u32 | UTF-8
//! ranks    count u32 | u16 each
//! ```
//!
//! A large put travels in several frames. Only `Put` and `Data` have a payload, whose length is a
//! field. Lengths are bounded before they are used.

use crate::control::tree_barrier::BarrierMessage;
use crate::ids::{GroupId, NotificationId, QueueId, Rank, SegmentId};
use crate::remote_arrivals::Arrival;
use crate::sync::arrival_slot::PAYLOAD_WORDS;
use crate::transport::shm::area::{OUTBOX_BYTES, STAGE_BYTES};

/// Bytes of the length in front of a frame.
pub(crate) const PREFIX: usize = 4;
/// The longest frame without its payload: a list of 65535 ranks and some fields.
pub(crate) const FRAME_MAX: usize = 256 * 1024;
/// Bytes of a put as a frame, its length in front.
pub(crate) const PUT_LEN: usize = 40;
/// Bytes of an acknowledgement as a frame.
pub(crate) const ACK_LEN: usize = 13;
/// The largest payload: transfer_size_max.
pub(crate) const PAYLOAD_MAX: u64 = 1 << 30;
/// The first word of a connection within a node; changes with the format.
const MAGIC: u32 = 0x4741_0004;

/// A segment as its owner describes it to a peer; its descriptors travel beside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Register {
    pub(crate) request: u64,
    pub(crate) segment: SegmentId,
    pub(crate) generation: u32,
    /// Bytes.
    pub(crate) size: u64,
    /// Where bound memory lies in the owner, 0 for memory that comes as a descriptor.
    pub(crate) address: u64,
    /// Where the owner keeps `nonce`, to find out whether its memory can be read.
    pub(crate) nonce_address: u64,
    pub(crate) nonce: u64,
    /// How many descriptors come along.
    pub(crate) descriptors: u8,
}

/// A range of a segment of the receiver's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RemoteAddress {
    pub(crate) segment: SegmentId,
    pub(crate) generation: u32,
    /// Bytes.
    pub(crate) offset: u64,
}

/// An atomic operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum AtomicOperation {
    FetchAdd { add: u64 },
    CompareSwap { comparator: u64, new: u64 },
}

/// A list of group members on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Announce {
    pub(crate) group: GroupId,
    /// Counts the commits of the sender.
    pub(crate) attempt: u64,
    /// The lowest incarnation that is fresh for the sender.
    pub(crate) incarnation: u32,
    pub(crate) ranks: Vec<Rank>,
}

impl Announce {
    /// Whether `rank` is in the list, which ascends.
    pub(crate) fn lists(&self, rank: Rank) -> bool {
        self.ranks.contains(&rank)
    }
}

/// Part of a write, or a notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Put {
    /// The sender's queue, and its generation.
    pub(crate) stream: Stream,
    /// Where the payload goes.
    pub(crate) remote: RemoteAddress,
    /// Bytes of payload.
    pub(crate) size: u64,
    /// Whether this part completes the request.
    pub(crate) last: bool,
    /// To be set behind the data unless the value is 0.
    pub(crate) notification: NotificationId,
    pub(crate) value: u32,
}

/// A queue of the sender's between two purges: what travels in it stays in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Stream {
    pub(crate) queue: QueueId,
    pub(crate) generation: u32,
}

/// A message between two libraries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Frame {
    /// First on every connection within a node: who connects.
    Hello {
        rank: Rank,
        token: [u8; 16],
    },
    /// First on every connection between nodes: how many with the receiver the sender has lost.
    /// Nothing counts any more that is still on its way on one that was made before the last of
    /// them.
    Epoch {
        count: u64,
    },
    /// The answer to `request`: a value, or why not.
    Reply {
        request: u64,
        outcome: Result<u64, String>,
    },
    Register(Register),
    /// A registered segment was deleted.
    Revoke {
        segment: SegmentId,
        generation: u32,
    },
    Ping {
        request: u64,
    },
    /// The receiver ends at once with status 255.
    Kill,
    Announce(Announce),
    /// The sender's commit of this number no longer wants to be answered.
    Withdraw {
        group: GroupId,
        attempt: u64,
    },
    /// The sender's commit of this number failed, in the round of this incarnation.
    Abort {
        group: GroupId,
        attempt: u64,
        round: u32,
        /// The member whose death is the reason.
        dead: Option<Rank>,
        reason: String,
    },
    /// Payload for a place, then a notification.
    Put(Put),
    /// So many puts that came on this connection have been completed: their data is visible.
    Ack {
        puts: u64,
    },
    /// A put of this stream was refused; its acknowledgement follows.
    Refused {
        stream: Stream,
        reason: String,
    },
    /// Asks for `size` bytes of a place. Answers of one stream come in order.
    Get {
        request: u64,
        stream: Stream,
        remote: RemoteAddress,
        size: u64,
    },
    /// The answer to `Get`, with `size` bytes of payload.
    Data {
        request: u64,
        size: u64,
    },
    Atomic {
        request: u64,
        remote: RemoteAddress,
        operation: AtomicOperation,
    },
    /// The sender has arrived at a step of a group.
    Arrive(Arrival),
    /// BarrierMessage of a barrier that goes along a tree.
    Barrier {
        group: GroupId,
        step: u64,
        message: BarrierMessage,
    },
    /// A passive message; answered when it was received.
    Passive {
        request: u64,
        message: Vec<u8>,
    },
    /// Takes a passive message back, if it was not received.
    Withhold {
        request: u64,
    },
    /// The sender leaves the job: nothing follows on this connection.
    Goodbye,
    /// The sender will ask for nothing more on this connection: to be closed once the receiver does
    /// not use it either.
    Release,
    /// The sender has no place for this connection, and ends it before it has read anything.
    TurnedAway {
        reason: String,
    },
}

struct Writer<'a>(&'a mut Vec<u8>);

impl Writer<'_> {
    fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }
    fn u16(&mut self, value: u16) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }
    fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }
    fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }
    fn text(&mut self, value: &str) -> &mut Self {
        // A reason longer than a frame helps nobody.
        let end = value.floor_char_boundary(4096);
        self.u32(end as u32).0.extend(value[..end].bytes());
        self
    }
    fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.u32(value.len() as u32).0.extend(value);
        self
    }
    fn stream(&mut self, stream: &Stream) -> &mut Self {
        self.u8(stream.queue.0).u32(stream.generation)
    }
    fn remote(&mut self, remote: &RemoteAddress) -> &mut Self {
        self.u8(remote.segment.0).u32(remote.generation).u64(remote.offset)
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }
    fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }
    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }
    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
    fn text(&mut self) -> Option<String> {
        let len = self.u32()? as usize;
        String::from_utf8(self.take(len)?.to_vec()).ok()
    }
    fn ranks(&mut self) -> Option<Vec<Rank>> {
        let count = self.u32()? as usize;
        let bytes = self.take(count.checked_mul(2)?)?;
        Some(bytes.chunks_exact(2).map(|b| Rank(u16::from_le_bytes([b[0], b[1]]))).collect())
    }
    fn remote(&mut self) -> Option<RemoteAddress> {
        Some(RemoteAddress {
            segment: SegmentId(self.u8()?),
            generation: self.u32()?,
            offset: self.u64()?,
        })
    }
    fn stream(&mut self) -> Option<Stream> {
        Some(Stream { queue: QueueId(self.u8()?), generation: self.u32()? })
    }
    fn bytes(&mut self, max: usize) -> Option<Vec<u8>> {
        let len = self.u32()? as usize;
        if len > max {
            return None;
        }
        Some(self.take(len)?.to_vec())
    }
    fn size(&mut self) -> Option<u64> {
        self.u64().filter(|size| *size <= PAYLOAD_MAX)
    }
}

impl Frame {
    /// The frame as bytes, its length in front.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.append_to(&mut bytes);
        bytes
    }

    /// Appends the frame to bytes on their way, its length in front.
    pub(crate) fn append_to(&self, bytes: &mut Vec<u8>) {
        let start = bytes.len();
        bytes.extend([0; PREFIX]);
        self.write(&mut Writer(bytes));
        let len = (bytes.len() - start - PREFIX) as u32;
        bytes[start..start + PREFIX].copy_from_slice(&len.to_le_bytes());
    }

    fn write(&self, w: &mut Writer<'_>) {
        match self {
            Frame::Hello { rank, token } => {
                w.u8(0).u32(MAGIC).u16(rank.0).0.extend(token);
            }
            Frame::Reply { request, outcome: Ok(value) } => {
                w.u8(1).u64(*request).u64(*value);
            }
            Frame::Reply { request, outcome: Err(reason) } => {
                w.u8(2).u64(*request).text(reason);
            }
            Frame::Register(r) => {
                w.u8(3).u64(r.request).u8(r.segment.0).u32(r.generation).u64(r.size);
                w.u64(r.address).u64(r.nonce_address).u64(r.nonce).u8(r.descriptors);
            }
            Frame::Revoke { segment, generation } => {
                w.u8(4).u8(segment.0).u32(*generation);
            }
            Frame::Ping { request } => {
                w.u8(5).u64(*request);
            }
            Frame::Kill => {
                w.u8(6);
            }
            Frame::Announce(a) => {
                w.u8(7).u8(a.group.0).u64(a.attempt).u32(a.incarnation);
                w.u32(a.ranks.len() as u32);
                for rank in &a.ranks {
                    w.u16(rank.0);
                }
            }
            Frame::Withdraw { group, attempt } => {
                w.u8(8).u8(group.0).u64(*attempt);
            }
            Frame::Abort { group, attempt, round, dead, reason } => {
                let dead = dead.map_or(u32::MAX, |rank| rank.0.into());
                w.u8(9).u8(group.0).u64(*attempt).u32(*round).u32(dead).text(reason);
            }
            Frame::Put(put) => {
                w.u8(10).u8(put.last.into()).stream(&put.stream).remote(&put.remote).u64(put.size);
                w.u32(put.notification.0).u32(put.value);
            }
            Frame::Ack { puts } => {
                w.u8(11).u64(*puts);
            }
            Frame::Get { request, stream, remote, size } => {
                w.u8(12).u64(*request).stream(stream).remote(remote).u64(*size);
            }
            Frame::Data { request, size } => {
                w.u8(13).u64(*request).u64(*size);
            }
            Frame::Atomic { request, remote, operation } => {
                w.u8(14).u64(*request).remote(remote);
                match operation {
                    AtomicOperation::FetchAdd { add } => w.u8(0).u64(*add).u64(0),
                    AtomicOperation::CompareSwap { comparator, new } => {
                        w.u8(1).u64(*comparator).u64(*new)
                    }
                };
            }
            Frame::Arrive(a) => {
                w.u8(15).u8(a.group.0).u64(a.step).u64(a.signature).u8(a.words.len() as u8);
                for word in &a.words {
                    w.u64(*word);
                }
                w.bytes(&a.stage);
            }
            Frame::Passive { request, message } => {
                w.u8(16).u64(*request).bytes(message);
            }
            Frame::Withhold { request } => {
                w.u8(17).u64(*request);
            }
            Frame::Goodbye => {
                w.u8(18);
            }
            Frame::Release => {
                w.u8(20);
            }
            Frame::Refused { stream, reason } => {
                w.u8(19).stream(stream).text(reason);
            }
            Frame::TurnedAway { reason } => {
                w.u8(23).text(reason);
            }
            Frame::Epoch { count } => {
                w.u8(21).u64(*count);
            }
            Frame::Barrier { group, step, message } => {
                w.u8(22).u8(group.0).u64(*step).u8(message.kind() as u8);
                if let BarrierMessage::Departed(rank) = message {
                    w.u16(rank.0);
                }
            }
        }
    }

    /// The frame from its bytes without the length; `None` if they are not one.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Frame> {
        let mut r = Reader(bytes);
        let frame = match r.u8()? {
            0 => {
                if r.u32()? != MAGIC {
                    return None;
                }
                Frame::Hello { rank: Rank(r.u16()?), token: r.array()? }
            }
            1 => Frame::Reply { request: r.u64()?, outcome: Ok(r.u64()?) },
            2 => Frame::Reply { request: r.u64()?, outcome: Err(r.text()?) },
            3 => Frame::Register(Register {
                request: r.u64()?,
                segment: SegmentId(r.u8()?),
                generation: r.u32()?,
                size: r.u64()?,
                address: r.u64()?,
                nonce_address: r.u64()?,
                nonce: r.u64()?,
                descriptors: r.u8()?,
            }),
            4 => Frame::Revoke { segment: SegmentId(r.u8()?), generation: r.u32()? },
            5 => Frame::Ping { request: r.u64()? },
            6 => Frame::Kill,
            7 => Frame::Announce(Announce {
                group: GroupId(r.u8()?),
                attempt: r.u64()?,
                incarnation: r.u32()?,
                ranks: r.ranks()?,
            }),
            8 => Frame::Withdraw { group: GroupId(r.u8()?), attempt: r.u64()? },
            9 => Frame::Abort {
                group: GroupId(r.u8()?),
                attempt: r.u64()?,
                round: r.u32()?,
                dead: match r.u32()? {
                    u32::MAX => None,
                    rank => Some(Rank(rank.try_into().ok()?)),
                },
                reason: r.text()?,
            },
            10 => {
                let last = match r.u8()? {
                    0 => false,
                    1 => true,
                    _ => return None,
                };
                Frame::Put(Put {
                    last,
                    stream: r.stream()?,
                    remote: r.remote()?,
                    size: r.size()?,
                    notification: NotificationId(r.u32()?),
                    value: r.u32()?,
                })
            }
            11 => Frame::Ack { puts: r.u64()? },
            12 => Frame::Get {
                request: r.u64()?,
                stream: r.stream()?,
                remote: r.remote()?,
                size: r.size()?,
            },
            13 => Frame::Data { request: r.u64()?, size: r.size()? },
            14 => {
                let (request, remote) = (r.u64()?, r.remote()?);
                let operation = match (r.u8()?, r.u64()?, r.u64()?) {
                    (0, add, _) => AtomicOperation::FetchAdd { add },
                    (1, comparator, new) => AtomicOperation::CompareSwap { comparator, new },
                    _ => return None,
                };
                Frame::Atomic { request, remote, operation }
            }
            15 => Frame::Arrive(Arrival {
                group: GroupId(r.u8()?),
                step: r.u64()?,
                signature: r.u64()?,
                words: {
                    let count =
                        Some(usize::from(r.u8()?)).filter(|count| *count <= PAYLOAD_WORDS)?;
                    (0..count).map(|_| r.u64()).collect::<Option<_>>()?
                },
                stage: r.bytes(STAGE_BYTES)?,
            }),
            16 => Frame::Passive { request: r.u64()?, message: r.bytes(OUTBOX_BYTES)? },
            17 => Frame::Withhold { request: r.u64()? },
            18 => Frame::Goodbye,
            19 => Frame::Refused { stream: r.stream()?, reason: r.text()? },
            20 => Frame::Release,
            21 => Frame::Epoch { count: r.u64()? },
            23 => Frame::TurnedAway { reason: r.text()? },
            22 => Frame::Barrier {
                group: GroupId(r.u8()?),
                step: r.u64()?,
                message: match r.u8()? {
                    0 => BarrierMessage::Gathered,
                    1 => BarrierMessage::Complete,
                    2 => BarrierMessage::Departed(Rank(r.u16()?)),
                    _ => return None,
                },
            },
            _ => return None,
        };
        r.0.is_empty().then_some(frame)
    }
}

#[cfg(test)]
mod tests;
