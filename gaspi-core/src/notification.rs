//! Notifications at their target (GASPI 17.1, 8.3.3 and 8.3.4). Setting them is in `one_sided`.

use crate::callback::may_wait;
use crate::error::{Error, Result};
use crate::fast_path::first_set;
use crate::ids::{NotificationId, SegmentId};
use crate::runtime::{Inner, Runtime};
use crate::sync::{epoch, slots};
use crate::timeout::Timeout;
use crate::wait::{Call, waiting};

impl Inner {
    /// Checks a range of notification ids.
    #[inline]
    pub(crate) fn check_notifications(&self, begin: u32, num: u32) -> Result<()> {
        let limit = self.memory.shape.notifications;
        let end = u64::from(begin) + u64::from(num);
        if begin >= limit || end > limit.into() {
            let last = if begin >= limit { begin } else { limit };
            return Err(Error::NotificationRange { notification: NotificationId(last), limit });
        }
        Ok(())
    }
}

impl Runtime {
    /// Waits until one of the notifications `begin..begin + num` of this rank's `segment` is set
    /// and returns the lowest such id, without clearing it. `None` only for `num` = 0 (GASPI 17.1,
    /// 8.3.3).
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
        let once = timeout == Timeout::Test;
        match self.try_fast(|fast| fast.notify_waitsome(segment, begin, num, once)) {
            Some(Some(id)) => Ok(Some(id)),
            // The hot path of polling programs: no text is made for it.
            Some(None) if once => Err(Error::Timeout { pending: String::new() }),
            None if once => look_once(self.inner(), segment, begin, num),
            _ => wait_some(self.inner(), segment, begin, num, timeout),
        }
    }

    /// Takes a notification of this rank's `segment`: returns its value and sets it to 0 in one
    /// step, so that of several threads exactly one gets it. 0 if it was not set (GASPI 17.1,
    /// 8.3.4).
    ///
    /// # Errors
    /// [`Error::InvalidSegment`], [`Error::NotificationRange`].
    #[inline]
    pub fn notify_reset(&self, segment: SegmentId, notification: NotificationId) -> Result<u32> {
        if let Some(value) = self.try_fast(|fast| fast.notify_reset(segment, notification)) {
            return Ok(value);
        }
        let (inner, inside) = (self.inner(), epoch::enter());
        let found = inner.local(segment, &inside)?;
        inner.check_notifications(notification.0, 1)?;
        Ok(slots::take(found.notification(notification.index())))
    }
}

#[cold]
fn not_set(segment: SegmentId, begin: u32, num: u32) -> Error {
    let pending = match begin + num - 1 {
        last if last == begin => format!("notification {begin} of {segment}"),
        last => format!("one of notifications {begin} to {last} of {segment}"),
    };
    Error::Timeout { pending }
}

/// One look where the sockets have to be looked after, or something is wrong.
#[cold]
fn look_once(
    inner: &Inner,
    segment: SegmentId,
    begin: u32,
    num: u32,
) -> Result<Option<NotificationId>> {
    if inner.endpoints.remote && num > 0 {
        inner.check_notifications(begin, num)?;
        inner.check_open()?;
        inner.look_once();
        let inside = epoch::enter();
        let found = first_set(inner.local(segment, &inside)?, begin, begin + num);
        return found.map_or(Err(Error::Timeout { pending: String::new() }), |id| Ok(Some(id)));
    }
    wait_some(inner, segment, begin, num, Timeout::Test)
}

#[cold]
fn wait_some(
    inner: &Inner,
    segment: SegmentId,
    begin: u32,
    num: u32,
    timeout: Timeout,
) -> Result<Option<NotificationId>> {
    inner.check_notifications(begin, num)?;
    let look = || {
        let inside = epoch::enter();
        Ok(first_set(inner.local(segment, &inside)?, begin, begin + num))
    };
    if num == 0 {
        return look();
    }
    let waiting = waiting(Call::WaitSome, segment.0);
    may_wait(timeout, waiting.call.name())?;
    let found = inner
        .until_within(timeout, waiting, || inner.check_open().and_then(|()| look()).transpose());
    found.unwrap_or_else(|| Err(not_set(segment, begin, num))).map(Some)
}
