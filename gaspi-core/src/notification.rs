//! Notifications at their target (GASPI 17.1, 8.3.3 and 8.3.4). Setting them is in `one_sided`.

use crate::error::{Error, Result};
use crate::ids::{NotificationId, SegmentId};
use crate::runtime::{Inner, Runtime};
use crate::statistics::Counter;
use crate::sync::{epoch, slots};
use crate::timeout::Timeout;
use crate::wait::{Call, Waiting};

impl Inner {
    /// Checks a range of notification ids.
    #[inline]
    pub(crate) fn check_notifications(&self, begin: u32, num: u32) -> Result<()> {
        let limit = self.shape.notifications;
        let end = u64::from(begin) + u64::from(num);
        if begin >= limit || end > limit.into() {
            let last = if begin >= limit { begin } else { limit };
            return Err(Error::NotificationRange { notification: NotificationId(last), limit });
        }
        Ok(())
    }

    /// The lowest set notification of a range.
    #[inline]
    fn first_set(
        &self,
        segment: SegmentId,
        begin: u32,
        num: u32,
    ) -> Result<Option<NotificationId>> {
        let inside = epoch::enter();
        let found = self.local(segment, &inside)?;
        for id in begin..begin + num {
            if slots::peek(found.notification(id as usize)) {
                return Ok(Some(NotificationId(id)));
            }
        }
        Ok(None)
    }
}

impl Runtime {
    /// Waits until one of the notifications `begin..begin + num` of this rank's `segment` is set and
    /// returns the lowest such id, without clearing it. `None` only for `num` = 0.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::InvalidSegment`], [`Error::NotificationRange`].
    #[inline]
    pub fn notify_waitsome(
        &self,
        segment: SegmentId,
        begin: u32,
        num: u32,
        timeout: Timeout,
    ) -> Result<Option<NotificationId>> {
        let inner = self.inner();
        inner.check_notifications(begin, num)?;
        let found = inner.first_set(segment, begin, num)?;
        if found.is_some() || num == 0 {
            return Ok(found);
        }
        if timeout == Timeout::Test {
            // The hot path of polling programs: no text is made for it.
            return Err(Error::Timeout { pending: String::new() });
        }
        wait_some(inner, segment, begin, num, timeout)
    }

    /// Takes a notification of this rank's `segment`: returns its value and sets it to 0 in one
    /// step, so that of several threads exactly one gets it. 0 if it was not set.
    ///
    /// # Errors
    /// [`Error::InvalidSegment`], [`Error::NotificationRange`].
    #[inline]
    pub fn notify_reset(&self, segment: SegmentId, notification: NotificationId) -> Result<u32> {
        let inner = self.inner();
        let inside = epoch::enter();
        let found = inner.local(segment, &inside)?;
        inner.check_notifications(notification.0, 1)?;
        Ok(slots::take(found.notification(notification.index())))
    }
}

#[cold]
fn not_set(segment: SegmentId, begin: u32, num: u32) -> Error {
    let last = begin + num - 1;
    Error::Timeout { pending: format!("a notification {begin}..={last} of {segment}") }
}

#[cold]
fn wait_some(
    inner: &Inner,
    segment: SegmentId,
    begin: u32,
    num: u32,
    timeout: Timeout,
) -> Result<Option<NotificationId>> {
    let waiting = Waiting { call: Call::WaitSome, object: segment.0.into() };
    let found = inner.timed(Counter::TimeInWaitSome, || {
        inner.until(timeout.deadline(), waiting, || {
            inner.check_open().and_then(|()| inner.first_set(segment, begin, num)).transpose()
        })
    });
    found.unwrap_or_else(|| Err(not_set(segment, begin, num))).map(Some)
}
