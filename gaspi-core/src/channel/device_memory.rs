//! Memory that this rank's device takes the data of messages from where it lies: slots, segments,
//! and memory of the program that was made known to the device for as long as its user says.
//!
//! Invariant: memory that is no segment stays known until the device has done with it; no
//! registration outlives its user otherwise.

use super::messages::ZERO_COPY_BYTES;
use super::shown::covers;
use super::{Channel, Member};
use crate::ids::SegmentId;
use crate::runtime::Inner;
use crate::segment::Segment;
use crate::segment::prepared::Prepared;
use crate::sync::epoch;
use crate::transport::payload::{DeviceCopy, DeviceSource};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Data from this size on is written by a device, where there is one, ahead of the message. Less
/// goes along with it, as small payloads do.
const DEVICE_BYTES: usize = 2 << 10;
/// How long a user that lets go of memory waits for what the device was asked to write from it.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);

/// Memory of the program that the device knows until this is dropped: data of messages that stays
/// until it is acknowledged is written from where it lies.
pub struct DeviceBuffer {
    inner: Arc<Inner>,
    memory: Arc<Prepared>,
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBuffer").field("memory", &self.memory).finish_non_exhaustive()
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        let inner = &*self.inner;
        // A forked child has no right to what its parent uses.
        if inner.process != std::process::id() {
            return;
        }
        inner.channels.shown.remove(&self.memory);
        let begin = Instant::now();
        // What takes longer lets go of the memory when it ends.
        while Arc::strong_count(&self.memory) > 1 && begin.elapsed() < RELEASE_LIMIT {
            if let Some(verbs) = inner.endpoints.verbs(inner) {
                verbs.poll();
            }
            std::thread::yield_now();
        }
    }
}

impl Channel {
    /// Makes memory of the program known to the device, so that it need not be copied to be sent to
    /// members of other nodes. `None` where that is no use, or the device does not take it, which
    /// the log says: then it is copied.
    ///
    /// # Safety
    /// The memory is readable until the buffer is dropped.
    pub unsafe fn show_to_device(&self, start: *const u8, len: usize) -> Option<DeviceBuffer> {
        let part = start as u64..start as u64 + len as u64;
        let reached = self.members.iter().any(|member| member.device.is_some());
        if len < ZERO_COPY_BYTES || !reached || self.lies_in_slots(&part) {
            return None;
        }
        if self.segment_around(&part).is_some() {
            return None;
        }
        let memory = self.inner.endpoints.register_source(start, len as u64)?;
        self.inner.channels.shown.add(part, &memory);
        Some(DeviceBuffer { inner: Arc::clone(&self.inner), memory })
    }

    /// How the device can write so much data to a slot of a member; less goes along with what
    /// announces it. Where it `stays` it need not be copied before.
    pub(super) fn device_copy(
        &self,
        member: &Member,
        slot: u64,
        (data, len): (*const u8, usize),
        stays: bool,
    ) -> Option<DeviceCopy> {
        if len < DEVICE_BYTES {
            return None;
        }
        let (to, own) = (member.device?.behind(slot), self.bundle.reserved.device.as_ref()?);
        if !self.awaits_end_of_this(member) {
            return None;
        }
        let part = data as u64..data as u64 + len as u64;
        let source = if stays { self.device_source(&part) } else { None };
        Some(DeviceCopy { to, slot: Arc::clone(own), source })
    }

    /// Whether a member of another node, once it has closed its end, waits for that of this rank
    /// before its part is used for something else: it has met this rank.
    fn awaits_end_of_this(&self, member: &Member) -> bool {
        if self.bundle.has_heard(member) {
            return true;
        }
        let heard = self.received(member.index) > 0 || self.taken(member.index) > 0;
        if heard {
            self.bundle.hear(member);
        }
        heard
    }

    fn device_source(&self, part: &Range<u64>) -> Option<DeviceSource> {
        if self.lies_in_slots(part) {
            return self.bundle.reserved.device.clone().map(DeviceSource::Memory);
        }
        let found = self.inner.channels.shown.find(part);
        if let Some(memory) = found {
            return Some(DeviceSource::Memory(memory));
        }
        let segment = self.segment_around(part)?;
        let usable = self.inner.endpoints.can_use(&segment);
        usable.then_some(DeviceSource::Segment(segment))
    }

    /// Whether memory is of what the device knows of the range that this channel lies in, with
    /// others and their data.
    fn lies_in_slots(&self, part: &Range<u64>) -> bool {
        let (start, bytes) = (self.segment.pointer() as u64, &self.bundle.reserved.device_bytes);
        covers(&(start + bytes.start..start + bytes.end), part)
    }

    /// The segment of this rank that memory lies in.
    fn segment_around(&self, part: &Range<u64>) -> Option<Arc<Segment>> {
        let memory = &self.inner.memory;
        let is_around = |segment: &Segment| {
            let start = segment.pointer() as u64;
            covers(&(start..start + segment.size), part)
        };
        let inside = epoch::enter();
        let around = |id: &SegmentId| memory.segments.get(*id, &inside).is_some_and(is_around);
        let id = memory.existing().find(around)?;
        memory.segments.get_arc(id).filter(|segment| is_around(segment))
    }
}
