//! Memory that goes out to a socket straight from where it lies: of a segment, or of the program.

use crate::os::socket::Piece;
use crate::segment::Segment;
use crate::segment::prepared::Prepared;
use crate::sync::{Mutex, MutexGuard};
use crate::wire::message::{MemoryKey, Put};
use std::sync::Arc;

/// The bit of a number that says that somebody waits for the acknowledgement.
pub(crate) const AWAITED: u32 = 1 << 31;

/// Whether the acknowledgement of a put with this number, as its generation, is waited for.
pub(crate) fn is_awaited(number: u32) -> bool {
    number & AWAITED != 0
}

/// Memory of the program that a message takes its data from while it is on its way.
#[derive(Debug)]
pub(crate) struct UserBuffer {
    start: *mut u8,
    /// Whether it may be read; held by whoever does.
    readable: Mutex<bool>,
}

// SAFETY: the memory may be read by any thread that finds it readable, by the promise of whoever
// sends it.
unsafe impl Send for UserBuffer {}
// SAFETY: caller's promise, as for Send.
unsafe impl Sync for UserBuffer {}

impl UserBuffer {
    /// The memory that begins at `start`.
    ///
    /// # Safety
    /// What a payload takes from there is readable until it is [revoked](UserBuffer::revoke).
    pub(crate) unsafe fn new(start: *const u8) -> UserBuffer {
        UserBuffer { start: start.cast_mut(), readable: Mutex::new(true) }
    }

    fn accept(&self) -> MutexGuard<'_, bool> {
        self.readable.lock()
    }

    /// Nobody reads it any more, once this has returned. What the kernel has been handed by page it
    /// still sends as it is then.
    pub(crate) fn revoke(&self) {
        *self.accept() = false;
    }
}

#[derive(Debug, Clone)]
enum Memory {
    Segment(Arc<Segment>),
    User(Arc<UserBuffer>),
}

/// Bytes that go out behind a frame.
#[derive(Debug, Clone)]
pub(crate) struct Payload {
    memory: Memory,
    /// Bytes.
    offset: u64,
}

impl Payload {
    /// What begins at `offset` of `segment`; the caller has checked the range.
    pub(crate) fn new(segment: Arc<Segment>, offset: u64) -> Payload {
        Payload { memory: Memory::Segment(segment), offset }
    }

    /// What begins at `offset` of memory of the program.
    pub(crate) fn of_user(buffer: Arc<UserBuffer>, offset: u64) -> Payload {
        Payload { memory: Memory::User(buffer), offset }
    }

    /// What begins behind the first `skip` bytes.
    pub(in crate::transport) fn behind(&self, skip: u64) -> Payload {
        Payload { memory: self.memory.clone(), offset: self.offset + skip }
    }

    /// Segment and offset, if it is memory of a segment.
    pub(in crate::transport) fn place(&self) -> Option<(&Segment, u64)> {
        match &self.memory {
            Memory::Segment(segment) => Some((segment, self.offset)),
            Memory::User(_) => None,
        }
    }

    pub(in crate::transport) fn pointer(&self, skip: u64) -> *mut u8 {
        let start = match &self.memory {
            Memory::Segment(segment) => segment.pointer(),
            Memory::User(buffer) => buffer.start,
        };
        start.wrapping_add((self.offset + skip) as usize)
    }

    /// Keeps the memory as it is meanwhile; false where it may not be read any more.
    pub(crate) fn accept(&self) -> MutexGuard<'_, bool> {
        match &self.memory {
            Memory::Segment(segment) => segment.accept(),
            Memory::User(buffer) => buffer.accept(),
        }
    }

    /// Whether the connection ends where the memory may not be read any more: the peer could take
    /// what stands for a message's data for the data.
    pub(in crate::transport) fn is_of_user(&self) -> bool {
        matches!(self.memory, Memory::User(_))
    }

    /// Whether its pages may be handed to the kernel: memory of the program may serve another
    /// purpose once its segment was deleted, but not while it is sent from.
    pub(in crate::transport) fn may_be_piped(&self) -> bool {
        match &self.memory {
            Memory::Segment(segment) => segment.is_mapped(),
            Memory::User(_) => true,
        }
    }
}

/// A message of a channel: a put whose payload does not lie in one piece.
#[derive(Debug)]
pub(crate) struct ChannelMessage<'a> {
    pub(crate) put: Put,
    /// What it begins with, and the rest.
    pub(crate) head: &'a [u8],
    pub(crate) data: Piece,
    /// Memory for all of it, until it has been sent.
    pub(crate) slot: Payload,
    /// The data, if it stays as it is until the put has been acknowledged.
    pub(crate) buffer: Option<Arc<UserBuffer>>,
    /// How a device can write the data into the peer's slot, ahead of the put.
    pub(crate) by_device: Option<&'a DeviceCopy>,
}

/// How a device can write the data of a message.
#[derive(Debug)]
pub(crate) struct DeviceCopy {
    /// The peer's slot.
    pub(crate) to: MemoryKey,
    /// What the device has made of the memory that the slot here lies in.
    pub(crate) slot: Arc<Prepared>,
    /// By what the device takes the data from where it lies, if it can.
    pub(crate) source: Option<DeviceSource>,
}

/// Memory that the device knows.
#[derive(Debug)]
pub(crate) enum DeviceSource {
    Memory(Arc<Prepared>),
    Segment(Arc<Segment>),
}

/// Data where it lies, which stays as it is while this is held.
pub(in crate::transport) struct InPlace<'a> {
    _readable: MutexGuard<'a, bool>,
    _exists: Option<MutexGuard<'a, bool>>,
    /// What a request of the device names the memory by.
    pub(in crate::transport) key: u32,
    /// What has to be shared until the device has done with it. The delete of a segment waits for
    /// all requests.
    pub(in crate::transport) memory: Option<Arc<Prepared>>,
}

impl ChannelMessage<'_> {
    /// The data is on its way: what is left is to say so, behind it.
    pub(in crate::transport) fn keep_head(&mut self) {
        self.put.size = self.head.len() as u64;
        self.data = Piece::of(&[]);
        (self.buffer, self.by_device) = (None, None);
    }

    /// The data where it lies, if a device can take it from there.
    pub(in crate::transport) fn in_place(&self) -> Option<InPlace<'_>> {
        let source = self.by_device?.source.as_ref()?;
        let readable = self.buffer.as_ref()?.accept();
        if !*readable {
            return None;
        }
        let (key, memory, exists) = match source {
            DeviceSource::Memory(memory) => (memory.local_key, Some(Arc::clone(memory)), None),
            DeviceSource::Segment(segment) => {
                let exists = segment.accept();
                let key = segment.prepared.local_key().filter(|_| *exists)?;
                (key, None, Some(exists))
            }
        };
        Some(InPlace { _readable: readable, _exists: exists, key, memory })
    }

    /// The data where it lies, for a socket: the memory of a device that no longer takes it.
    pub(in crate::transport) fn in_its_place(&self) -> Option<Payload> {
        let buffer = self.buffer.as_ref()?;
        match self.by_device?.source.as_ref()? {
            DeviceSource::Memory(_) => Some(Payload::of_user(Arc::clone(buffer), 0)),
            DeviceSource::Segment(segment) => {
                let offset = (self.data.pointer as u64).checked_sub(segment.pointer() as u64)?;
                Some(Payload::new(Arc::clone(segment), offset))
            }
        }
    }

    /// Copies all of it into its slot.
    ///
    /// # Safety
    /// The data is readable, and nobody else uses the slot.
    pub(in crate::transport) unsafe fn compose(&self) {
        let slot = self.slot.pointer(0);
        // SAFETY: the slot has room for both; otherwise as the caller says.
        unsafe {
            slot.copy_from_nonoverlapping(self.head.as_ptr(), self.head.len());
            slot.wrapping_add(self.head.len())
                .copy_from_nonoverlapping(self.data.pointer, self.data.len);
        }
    }
}
