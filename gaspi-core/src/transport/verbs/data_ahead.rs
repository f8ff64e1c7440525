//! Data of messages of channels: written straight into the slot of the peer, ahead of the message.
//!
//! The pair that carries the bytes of a connection carries these writes too. What announces the
//! data is among the bytes that follow: so the data is in its place when the message comes, and
//! what a pair that ends has lost of both goes again.
//!
//! Invariant: the device knows the memory until each write from it has ended: what is no segment is
//! shared until then, and the delete of a segment waits.

use super::kept::KeptData;
use super::lane::{Kind, LaneState};
use super::queue_pair::QueuePair;
use super::work::{Local, Remote, WorkRequest};
use crate::transport::payload::{ChannelMessage, InPlace};
use crate::transport::tcp::byte_carrier::Ahead;
use crate::wire::message::{Put, RemoteAddress};
use std::sync::Arc;

impl LaneState {
    /// The data of a message, where it lies or copied into its slot; `None` if no device can write
    /// it.
    ///
    /// # Safety
    /// The data is readable, and nobody else uses the slot.
    pub(super) unsafe fn data_of(
        number: u32,
        message: &ChannelMessage<'_>,
        in_place: Option<&InPlace<'_>>,
    ) -> Option<Box<KeptData>> {
        let copy = message.by_device?;
        let (head, size) = (message.head.len() as u64, message.data.len as u64);
        let to = copy.to.behind(head);
        let remote = Remote { address: to.address, key: to.key };
        let place =
            RemoteAddress { offset: message.put.remote.offset + head, ..message.put.remote };
        let put = Put { remote: place, size, ..message.put };
        if let Some(InPlace { key, memory, .. }) = in_place {
            let local = Local { address: message.data.pointer as u64, key: Some(*key) };
            let (payload, _memory) = (message.in_its_place()?, memory.clone());
            return Some(Box::new(KeptData { number, put, payload, local, remote, _memory }));
        }
        // SAFETY: as the caller says.
        unsafe { message.compose() };
        let address = message.slot.pointer(head) as u64;
        let local = Local { address, key: Some(copy.slot.local_key) };
        let (payload, _memory) = (message.slot.behind(head), Some(Arc::clone(&copy.slot)));
        Some(Box::new(KeptData { number, put, payload, local, remote, _memory }))
    }

    /// Whether a write of so many bytes fits the send queue, now or once that has emptied.
    pub(super) fn admits(&mut self, size: u64) -> Ahead {
        let Some(limits) = self.pair.as_ref().map(QueuePair::limits) else {
            return Ahead::GoesAlong;
        };
        let parts = size.div_ceil(limits.message);
        if parts > u64::from(limits.depth) {
            return Ahead::GoesAlong;
        }
        if parts <= self.room() {
            return Ahead::Written;
        }
        // Where this fails the completion tells.
        let _ = self.signal();
        Ahead::Waits
    }

    /// Posts the write of data that is [admitted](LaneState::admits), and takes it unless nothing
    /// of it was posted.
    ///
    /// # Errors
    /// What the device says.
    pub(super) fn post_data(&mut self, data: &mut Option<Box<KeptData>>) -> Result<(), String> {
        let Some(kept) = data else { return Ok(()) };
        let (mut local, mut remote, mut size) = (kept.local, kept.remote, kept.put.size);
        let message = self.pair.as_ref().map_or(0, |pair| pair.limits().message);
        let (before, mut posted) = (self.direct.next(), Ok(()));
        while size > 0 && posted.is_ok() {
            let part = size.min(message);
            let write = WorkRequest::Write { local, remote, size: part, immediate: None };
            posted = self.post(&write, part == size);
            local.address += part;
            remote.address += part;
            size -= part;
        }
        if self.direct.next() > before {
            self.counters.begun += 1;
            self.posted.begin(kept.number);
            self.note(Kind::Data(data.take()));
        }
        posted
    }
}
