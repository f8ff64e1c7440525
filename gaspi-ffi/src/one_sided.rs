//! Writes, reads and notifications (GASPI 17.1, 8).
//!
//! Posting never waits, so the timeout is passed on. It may look after the sockets of the rank,
//! which takes longer than anybody should be inside of a guard.

use crate::error::Failure;
use crate::pointers::list;
use crate::runtime::timeout;
use crate::types::*;
use gaspi_core::{
    Error, NotificationId, QueueId, Rank, Runtime, SegmentId, Transfer, TransferList,
};

/// The first arguments of a transfer, as in the C call.
#[inline]
fn transfer(
    local: gaspi_segment_id_t,
    local_offset: gaspi_offset_t,
    rank: gaspi_rank_t,
    remote: gaspi_segment_id_t,
    remote_offset: gaspi_offset_t,
    size: gaspi_size_t,
) -> Transfer {
    Transfer {
        local: SegmentId(local),
        local_offset,
        rank: Rank(rank),
        remote: SegmentId(remote),
        remote_offset,
        size,
    }
}

/// The arguments of a list call, as in the C call. The count is checked before the lists are
/// believed to be that long.
///
/// # Safety
/// Each pointer is NULL or points to `num` elements that nobody changes during the call.
#[inline]
unsafe fn transfers<'a>(
    rt: &'a Runtime,
    num: gaspi_number_t,
    rank: gaspi_rank_t,
    segments: [(*mut gaspi_segment_id_t, &'static str); 2],
    offsets: [(*mut gaspi_offset_t, &'static str); 2],
    size: *mut gaspi_size_t,
) -> Result<TransferList<'a>, Failure> {
    let limit = rt.config().rw_list_elem_max;
    let count = if (1..=limit).contains(&num) { num } else { 0 };
    let [local, remote] = segments;
    let [local_offset, remote_offset] = offsets;
    // SAFETY: each list has `num` elements, by the contract of this function, and `count` is at
    // most that; ids have the layout of their integers.
    let lists = unsafe {
        TransferList {
            rank: Rank(rank),
            local: list::<_, SegmentId>(local.0, count, local.1)?,
            local_offsets: list(local_offset.0, count, local_offset.1)?,
            remote: list::<_, SegmentId>(remote.0, count, remote.1)?,
            remote_offsets: list(remote_offset.0, count, remote_offset.1)?,
            sizes: list(size, count, "size")?,
        }
    };
    if count == 0 {
        let reason = format!("a list has 1 to {limit} elements (rw_list_elem_max)");
        return Err(Error::Number { number: num.into(), reason }.into());
    }
    Ok(lists)
}

/// [`transfers`] with the names that all four list calls use.
macro_rules! transfers {
    ($rt:ident, $num:ident, $rank:ident, $local:ident, $local_offset:ident, $remote:ident,
     $remote_offset:ident, $size:ident) => {{
        let segments = [($local, stringify!($local)), ($remote, stringify!($remote))];
        let offsets = [
            ($local_offset, stringify!($local_offset)),
            ($remote_offset, stringify!($remote_offset)),
        ];
        // SAFETY: the caller of the C function passes lists of `num` elements.
        unsafe { transfers($rt, $num, $rank, segments, offsets, $size)? }
    }};
}

procedures! {
    /// GASPI.h: writes to another rank's segment.
    fn write(
        local: gaspi_segment_id_t,
        local_offset: gaspi_offset_t,
        rank: gaspi_rank_t,
        remote: gaspi_segment_id_t,
        remote_offset: gaspi_offset_t,
        size: gaspi_size_t,
        queue: gaspi_queue_id_t,
        milliseconds: gaspi_timeout_t,
    ) try_fast rt {
        let transfer = transfer(local, local_offset, rank, remote, remote_offset, size);
        rt.write(&transfer, QueueId(queue)).map(|()| GASPI_SUCCESS)
    } opening rt {
        rt.open_device_lane(Rank(rank), QueueId(queue))
    } holding_briefly rt {
        let transfer = transfer(local, local_offset, rank, remote, remote_offset, size);
        Ok(rt.write(&transfer, QueueId(queue), timeout(milliseconds))?)
    }

    /// GASPI.h: reads from another rank's segment.
    fn read(
        local: gaspi_segment_id_t,
        local_offset: gaspi_offset_t,
        rank: gaspi_rank_t,
        remote: gaspi_segment_id_t,
        remote_offset: gaspi_offset_t,
        size: gaspi_size_t,
        queue: gaspi_queue_id_t,
        milliseconds: gaspi_timeout_t,
    ) try_fast rt {
        let transfer = transfer(local, local_offset, rank, remote, remote_offset, size);
        rt.read(&transfer, QueueId(queue)).map(|()| GASPI_SUCCESS)
    } opening rt {
        rt.open_device_lane(Rank(rank), QueueId(queue))
    } holding_briefly rt {
        let transfer = transfer(local, local_offset, rank, remote, remote_offset, size);
        Ok(rt.read(&transfer, QueueId(queue), timeout(milliseconds))?)
    }

    /// GASPI.h: writes and then notifies.
    fn write_notify(
        local: gaspi_segment_id_t,
        local_offset: gaspi_offset_t,
        rank: gaspi_rank_t,
        remote: gaspi_segment_id_t,
        remote_offset: gaspi_offset_t,
        size: gaspi_size_t,
        notification_id: gaspi_notification_id_t,
        notification_value: gaspi_notification_t,
        queue: gaspi_queue_id_t,
        milliseconds: gaspi_timeout_t,
    ) try_fast rt {
        let transfer = transfer(local, local_offset, rank, remote, remote_offset, size);
        let notification = NotificationId(notification_id);
        rt.write_notify(&transfer, notification, notification_value, QueueId(queue))
            .map(|()| GASPI_SUCCESS)
    } opening rt {
        rt.open_device_lane(Rank(rank), QueueId(queue))
    } holding_briefly rt {
        let transfer = transfer(local, local_offset, rank, remote, remote_offset, size);
        let notification = NotificationId(notification_id);
        let (queue, timeout) = (QueueId(queue), timeout(milliseconds));
        Ok(rt.write_notify(&transfer, notification, notification_value, queue, timeout)?)
    }

    /// GASPI.h: reads and then notifies this rank.
    fn read_notify(
        local: gaspi_segment_id_t,
        local_offset: gaspi_offset_t,
        rank: gaspi_rank_t,
        remote: gaspi_segment_id_t,
        remote_offset: gaspi_offset_t,
        size: gaspi_size_t,
        notification_id: gaspi_notification_id_t,
        queue: gaspi_queue_id_t,
        milliseconds: gaspi_timeout_t,
    ) holding_briefly rt {
        let transfer = transfer(local, local_offset, rank, remote, remote_offset, size);
        let notification = NotificationId(notification_id);
        Ok(rt.read_notify(&transfer, notification, QueueId(queue), timeout(milliseconds))?)
    }

    /// GASPI.h: several writes.
    fn write_list(
        num: gaspi_number_t,
        segment_id_local: *mut gaspi_segment_id_t,
        offset_local: *mut gaspi_offset_t,
        rank: gaspi_rank_t,
        segment_id_remote: *mut gaspi_segment_id_t,
        offset_remote: *mut gaspi_offset_t,
        size: *mut gaspi_size_t,
        queue: gaspi_queue_id_t,
        milliseconds: gaspi_timeout_t,
    ) holding_briefly rt {
        let list = transfers!(
            rt, num, rank, segment_id_local, offset_local, segment_id_remote, offset_remote, size
        );
        Ok(rt.write_list(&list, QueueId(queue), timeout(milliseconds))?)
    }

    /// GASPI.h: several reads.
    fn read_list(
        num: gaspi_number_t,
        segment_id_local: *mut gaspi_segment_id_t,
        offset_local: *mut gaspi_offset_t,
        rank: gaspi_rank_t,
        segment_id_remote: *mut gaspi_segment_id_t,
        offset_remote: *mut gaspi_offset_t,
        size: *mut gaspi_size_t,
        queue: gaspi_queue_id_t,
        milliseconds: gaspi_timeout_t,
    ) holding_briefly rt {
        let list = transfers!(
            rt, num, rank, segment_id_local, offset_local, segment_id_remote, offset_remote, size
        );
        Ok(rt.read_list(&list, QueueId(queue), timeout(milliseconds))?)
    }

    /// GASPI.h: several writes and then a notification.
    fn write_list_notify(
        num: gaspi_number_t,
        segment_id_local: *mut gaspi_segment_id_t,
        offset_local: *mut gaspi_offset_t,
        rank: gaspi_rank_t,
        segment_id_remote: *mut gaspi_segment_id_t,
        offset_remote: *mut gaspi_offset_t,
        size: *mut gaspi_size_t,
        segment_id_notification: gaspi_segment_id_t,
        notification_id: gaspi_notification_id_t,
        notification_value: gaspi_notification_t,
        queue: gaspi_queue_id_t,
        milliseconds: gaspi_timeout_t,
    ) holding_briefly rt {
        let list = transfers!(
            rt, num, rank, segment_id_local, offset_local, segment_id_remote, offset_remote, size
        );
        Ok(rt.write_list_notify(
            &list,
            SegmentId(segment_id_notification),
            NotificationId(notification_id),
            notification_value,
            QueueId(queue),
            timeout(milliseconds),
        )?)
    }

    /// GASPI.h: several reads and then a notification of this rank.
    fn read_list_notify(
        num: gaspi_number_t,
        segment_id_local: *mut gaspi_segment_id_t,
        offset_local: *mut gaspi_offset_t,
        rank: gaspi_rank_t,
        segment_id_remote: *mut gaspi_segment_id_t,
        offset_remote: *mut gaspi_offset_t,
        size: *mut gaspi_size_t,
        segment_id_notification: gaspi_segment_id_t,
        notification_id: gaspi_notification_id_t,
        queue: gaspi_queue_id_t,
        milliseconds: gaspi_timeout_t,
    ) holding_briefly rt {
        let list = transfers!(
            rt, num, rank, segment_id_local, offset_local, segment_id_remote, offset_remote, size
        );
        Ok(rt.read_list_notify(
            &list,
            SegmentId(segment_id_notification),
            NotificationId(notification_id),
            QueueId(queue),
            timeout(milliseconds),
        )?)
    }

    /// GASPI.h: sets a notification of another rank's segment.
    fn notify(
        segment_id_remote: gaspi_segment_id_t,
        rank: gaspi_rank_t,
        notification_id: gaspi_notification_id_t,
        notification_value: gaspi_notification_t,
        queue: gaspi_queue_id_t,
        milliseconds: gaspi_timeout_t,
    ) try_fast rt {
        let (rank, segment) = (Rank(rank), SegmentId(segment_id_remote));
        let (id, value, queue) =
            (NotificationId(notification_id), notification_value, QueueId(queue));
        rt.notify(rank, segment, id, value, queue).map(|()| GASPI_SUCCESS)
    } holding_briefly rt {
        let (rank, segment) = (Rank(rank), SegmentId(segment_id_remote));
        let (id, value, queue) =
            (NotificationId(notification_id), notification_value, QueueId(queue));
        Ok(rt.notify(rank, segment, id, value, queue, timeout(milliseconds))?)
    }

    /// GASPI.h: waits for one of several notifications.
    fn notify_waitsome(
        segment_id_local: gaspi_segment_id_t,
        notification_begin: gaspi_notification_id_t,
        notification_num: gaspi_number_t,
        first_id: *mut gaspi_notification_id_t,
        milliseconds: gaspi_timeout_t,
    ) try_fast rt {
        let out = wanted!(first_id)?;
        let (segment, once) = (SegmentId(segment_id_local), milliseconds == GASPI_TEST);
        match rt.notify_waitsome(segment, notification_begin, notification_num, once)? {
            Some(id) => {
                out.set(id.0);
                Some(GASPI_SUCCESS)
            }
            None => once.then_some(GASPI_TIMEOUT),
        }
    } holding_briefly rt {
        let out = out!(first_id);
        let (segment, limit) = (SegmentId(segment_id_local), timeout(milliseconds));
        let found = rt.notify_waitsome(segment, notification_begin, notification_num, limit)?;
        if let Some(id) = found {
            out.set(id.0);
        }
        Ok(())
    }

    /// GASPI.h: takes a notification.
    fn notify_reset(
        segment_id_local: gaspi_segment_id_t,
        notification_id: gaspi_notification_id_t,
        old_notification_val: *mut gaspi_notification_t,
    ) try_fast rt {
        let old = rt.notify_reset(SegmentId(segment_id_local), NotificationId(notification_id))?;
        // NULL: the caller does not want to know.
        if let Some(out) = wanted!(old_notification_val) {
            out.set(old);
        }
        Some(GASPI_SUCCESS)
    } with rt {
        let old = rt.notify_reset(SegmentId(segment_id_local), NotificationId(notification_id))?;
        if let Some(out) = wanted!(old_notification_val) {
            out.set(old);
        }
        Ok(())
    }
}
