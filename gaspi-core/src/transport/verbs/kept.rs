//! What has been posted of the bytes of a connection, and may not have arrived: kept until it is
//! acknowledged, so that the connection can go on by its socket, or by the next pair.
//!
//! A message of bytes lies in the buffer that it is sent from until its request has ended; one that
//! goes along with its request has a copy here, which it is posted from. Data that was written
//! ahead of a message stays where it lies until the message has been taken, or is revoked. Where no
//! socket may carry it the next pair writes it again, so that the device goes on knowing its
//! memory.
//!
//! Invariant: what is kept are the requests that have not ended, in their order.

use super::work::{Along, INLINE, Local, Remote};
use crate::segment::prepared::Prepared;
use crate::sync::Mutex;
use crate::transport::payload::Payload;
use crate::transport::tcp::byte_carrier::Kept;
use crate::wire::message::Put;
use std::collections::VecDeque;
use std::sync::Arc;

/// A message that was posted.
#[derive(Debug, Clone, Copy)]
struct Message {
    /// Of its request.
    id: u64,
    /// Of the bytes.
    number: u32,
    len: u32,
    /// The buffer of the pair that it is sent from, unless it goes along.
    buffer: Option<u32>,
    /// Whether it may carry data of the program.
    has_data: bool,
}

/// Messages that were posted to a pair, by the number of their request modulo the depth of the send
/// queue.
#[derive(Debug, Default)]
pub(super) struct Posted {
    messages: Vec<Option<Message>>,
    along: Vec<Along>,
    /// How many there have been with the number that they have now.
    count: u64,
    number: u32,
}

impl Posted {
    /// Where the message of this request is put together, if it goes along.
    #[inline]
    pub(super) fn along(&mut self, id: u64, depth: u32) -> &mut Along {
        if self.along.is_empty() {
            self.messages = vec![None; depth as usize];
            self.along = vec![[0; INLINE as usize]; depth as usize];
        }
        let nth = (id % self.along.len() as u64) as usize;
        &mut self.along[nth]
    }

    /// What is posted from now on, messages and data ahead of them, has this number.
    #[inline]
    pub(super) fn begin(&mut self, number: u32) {
        if self.number != number {
            (self.number, self.count) = (number, 0);
        }
    }

    /// Such a message was posted.
    #[inline]
    pub(super) fn note(
        &mut self,
        id: u64,
        (number, has_data): (u32, bool),
        (len, buffer): (usize, Option<usize>),
    ) {
        self.begin(number);
        self.count += 1;
        let nth = (id % self.along.len() as u64) as usize;
        let (len, buffer) = (len as u32, buffer.map(|buffer| buffer as u32));
        self.messages[nth] = Some(Message { id, number, len, buffer, has_data });
    }
}

/// Those of one number that may not have arrived.
pub(super) struct Live {
    pub(super) number: u32,
    /// How many there have been before.
    pub(super) before: u64,
    /// Each with the number of its request, and whether it may carry data of the program.
    pub(super) messages: Vec<(u64, Vec<u8>, bool)>,
}

impl Posted {
    /// The messages with the last number that have not ended, if requests below `freed` have. What
    /// was sent from a buffer is read there.
    pub(super) fn take<'a>(
        &mut self,
        freed: u64,
        sent_from: impl Fn(usize, usize) -> &'a [u8],
    ) -> Live {
        let Posted { messages, along, count, number } = std::mem::take(self);
        let live = |message: &&Message| message.number == number && message.id >= freed;
        let mut found = Vec::new();
        for (message, along) in messages.iter().zip(&along) {
            let Some(message) = message.as_ref().filter(live) else { continue };
            let bytes = match message.buffer {
                None => &along[..message.len as usize],
                Some(buffer) => sent_from(buffer as usize, message.len as usize),
            };
            found.push((message.id, bytes.to_vec(), message.has_data));
        }
        Live { number, before: count - found.len() as u64, messages: found }
    }
}

/// Data that is written ahead of a message of this number.
#[derive(Debug)]
pub(super) struct KeptData {
    pub(super) number: u32,
    /// What it is for a socket.
    pub(super) put: Put,
    pub(super) payload: Payload,
    /// The same for a device.
    pub(super) local: Local,
    pub(super) remote: Remote,
    /// The memory, as the device knows it, unless it is a segment.
    pub(super) _memory: Option<Arc<Prepared>>,
}

/// One thing that may not have arrived.
#[derive(Debug)]
pub(super) enum KeptPart {
    /// The bytes of a message, and whether they may carry data of the program.
    Bytes(Vec<u8>, bool),
    Data(Box<KeptData>),
}

/// What is kept of the bytes with a number, once their pair is no more.
#[derive(Debug)]
pub(super) struct KeptBytes {
    pub(super) number: u32,
    /// Messages that have been acknowledged.
    pub(super) acknowledged: u64,
    pub(super) kept: VecDeque<KeptPart>,
}

impl KeptBytes {
    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// What is left where the peer has handled so many messages; `None` if it has not handled what
    /// was acknowledged.
    pub(super) fn behind(mut self, messages: u64) -> Option<VecDeque<KeptPart>> {
        let mut handled = messages.checked_sub(self.acknowledged)?;
        while handled > 0 {
            // The data in front of a message has come before it.
            handled -= u64::from(matches!(self.kept.pop_front()?, KeptPart::Bytes(..)));
        }
        Some(self.kept)
    }
}

impl From<KeptPart> for Kept {
    /// As a socket sends it.
    fn from(part: KeptPart) -> Kept {
        match part {
            KeptPart::Bytes(bytes, has_data) => Kept::Bytes { bytes, has_data },
            KeptPart::Data(data) => Kept::Data(data.put, data.payload),
        }
    }
}

/// Data that the next pair writes, in order, before it carries bytes.
#[derive(Debug, Default)]
pub(super) struct DataAhead(Mutex<VecDeque<Box<KeptData>>>);

impl DataAhead {
    /// Keeps the data of a pair ahead of what it was still to write itself; gives the bytes.
    pub(super) fn keep(&self, parts: impl Iterator<Item = KeptPart>) -> Vec<Kept> {
        let (mut data, mut bytes) = (VecDeque::new(), Vec::new());
        for part in parts {
            match part {
                KeptPart::Bytes(part, has_data) => {
                    bytes.push(Kept::Bytes { bytes: part, has_data });
                }
                KeptPart::Data(part) => data.push_back(part),
            }
        }
        let mut all = self.0.lock();
        data.append(&mut all);
        *all = data;
        bytes
    }

    pub(super) fn take(&self) -> Option<Box<KeptData>> {
        self.0.lock().pop_front()
    }

    /// Puts back what was taken last.
    pub(super) fn put_first(&self, data: Box<KeptData>) {
        self.0.lock().push_front(data);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Its connection has ended.
    pub(super) fn forget(&self) {
        drop(std::mem::take(&mut *self.0.lock()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_counts_less_than_it_has_acknowledged_has_lost_messages() {
        let kept = || KeptBytes {
            number: 7,
            acknowledged: 5,
            kept: [1, 2].map(|byte| KeptPart::Bytes(vec![byte], false)).into(),
        };
        let left = |messages| kept().behind(messages).map(|left| left.len());
        assert_eq!([5, 6, 7].map(left), [Some(2), Some(1), Some(0)]);
        assert_eq!([0, 4].map(left), [None; 2], "what is lost cannot be sent again");
        assert_eq!(left(8), None, "it was sent fewer");
    }
}
