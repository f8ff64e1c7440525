//! What the library of a target does where no card does: segment, generation, range and
//! notification of every access are checked, whichever transport has carried it.
//!
//! Nothing here waits or sends: the carrier is told what to answer.

use crate::ids::{NotificationId, SegmentId};
use crate::segment::Segment;
use crate::segment::own::Memory;
use crate::sync::{AtomicU64, Ordering, slots};
use crate::wire::message::{AtomicOperation, Put, RemoteAddress};
use std::sync::Arc;

/// The segment that a peer's access is for, if the range lies inside.
///
/// # Errors
/// In words, for the peer.
pub(crate) fn find(
    memory: &Memory,
    remote: RemoteAddress,
    size: u64,
) -> Result<Arc<Segment>, String> {
    let RemoteAddress { segment: id, generation, offset } = remote;
    let SegmentId(number) = id;
    let segment = memory.find(id).filter(|segment| segment.generation == generation);
    let segment = segment.ok_or_else(|| {
        format!("segment {number} was deleted; {size} bytes at offset {offset} were meant")
    })?;
    if offset.checked_add(size).is_some_and(|end| end <= segment.size) {
        return Ok(segment);
    }
    let limit = segment.size;
    Err(format!("{size} bytes at offset {offset} of segment {number}, which has {limit} bytes"))
}

/// The segment that a put goes to.
///
/// # Errors
/// In words, for the peer.
pub(crate) fn find_for_put(memory: &Memory, put: &Put) -> Result<Arc<Segment>, String> {
    let segment = find(memory, put.remote, put.size)?;
    // One that is not to be set need not exist.
    if put.value != 0 {
        check_notification(memory, segment.id, put.notification)?;
    }
    Ok(segment)
}

fn check_notification(memory: &Memory, of: SegmentId, id: NotificationId) -> Result<(), String> {
    if id.0 >= memory.shape.notifications_of(of) {
        return Err(format!("{id} is out of range"));
    }
    Ok(())
}

/// The data of a put is in its place: sets its notification.
#[inline]
pub(crate) fn notify(segment: &Segment, put: &Put) {
    if put.value != 0 {
        slots::set(segment.notification(put.notification.index()), put.value);
    }
}

/// Carries out an atomic operation of a peer and returns the former value.
///
/// # Errors
/// In words, for the peer.
pub(crate) fn execute(
    memory: &Memory,
    remote: RemoteAddress,
    operation: AtomicOperation,
) -> Result<u64, String> {
    let segment = find(memory, remote, size_of::<u64>() as u64)?;
    if !remote.offset.is_multiple_of(size_of::<u64>() as u64) {
        return Err(format!("offset {} is not a multiple of 8", remote.offset));
    }
    let accepts = segment.accept();
    if !*accepts {
        return Err(format!("{} was deleted", segment.id));
    }
    let word = segment.pointer().wrapping_add(remote.offset as usize).cast::<AtomicU64>();
    if !word.is_aligned() {
        return Err(format!("{} is not aligned to 8 bytes", segment.id));
    }
    // SAFETY: inside of the segment, aligned, and the segment exists while the lock is held.
    let word = unsafe { &*word };
    Ok(apply(word, operation))
}

/// Carries out an atomic operation and returns the former value.
#[inline]
pub(crate) fn apply(word: &AtomicU64, operation: AtomicOperation) -> u64 {
    match operation {
        AtomicOperation::FetchAdd { add } => word.fetch_add(add, Ordering::SeqCst),
        AtomicOperation::CompareSwap { comparator, new } => {
            let order = Ordering::SeqCst;
            word.compare_exchange(comparator, new, order, order).unwrap_or_else(|found| found)
        }
    }
}
