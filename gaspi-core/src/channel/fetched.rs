//! Bytes of the range of a member of another node, which its library sends whatever its program
//! does. It does not if the process is stopped or cannot be reached, or has closed its end.

use super::Member;
use crate::config::STATUS;
use crate::error::Result;
use crate::ids::{NotificationId, SegmentId};
use crate::runtime::Inner;
use crate::segment::{ARENA, Init, Segment, Shape};
use crate::sync::Ordering;
use crate::transport::requests::GetTarget;
use crate::wire::message::{RemoteAddress, Stream};
use std::sync::Arc;

/// Bytes that there is room for at least.
const ROOM: u64 = 64;
/// Set by the answer, in the memory that it comes to.
const ARRIVED: NotificationId = NotificationId(0);

/// Bytes of a member that are on their way, in memory of their own, which the request keeps: an
/// answer may come at any time.
#[derive(Debug)]
pub(super) struct Fetched {
    into: Arc<Segment>,
}

impl Fetched {
    /// Asks for `size` bytes at an offset of the range of a member of another node.
    ///
    /// # Errors
    /// The member cannot be reached; memory has run out.
    pub(super) fn begin(inner: &Inner, member: &Member, at: u64, size: u64) -> Result<Fetched> {
        let shape = Shape { ranks: 0, notifications: 1 };
        let (id, room) = (SegmentId(0), size.max(ROOM));
        let into = Arc::new(Segment::new(id, 0, room, Init::Uninitialized, shape)?);
        if member.start.is_none() {
            let remote = RemoteAddress {
                segment: ARENA,
                generation: member.lease,
                offset: member.base + at,
            };
            let notify = Some((Arc::clone(&into), ARRIVED));
            let target = GetTarget { segment: Arc::clone(&into), offset: 0, size, notify };
            let stream = Stream { queue: STATUS, generation: 0 };
            inner.endpoint(member.rank).get(stream, remote, target)?;
        }
        Ok(Fetched { into })
    }

    /// Where they lie, at the start of a page, once they have come. This rank is woken when they
    /// do.
    pub(super) fn bytes(&self) -> Option<*const u8> {
        // Acquire: pairs with the Release of the progress thread (`slots::set`), behind the bytes.
        let arrived = self.into.notification(ARRIVED.index()).load(Ordering::Acquire) != 0;
        arrived.then(|| self.into.pointer().cast_const())
    }
}
