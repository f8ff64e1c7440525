//! Segments (GASPI 17.1, 7).
//!
//! Everything that may wait, or unlinks what guards protect (delete), holds the runtime instead of
//! standing inside a guard.

use crate::error::Failure;
use crate::runtime::timeout;
use crate::types::*;
use gaspi_core::{GroupId, Init, Rank, SegmentId};

fn init(policy: gaspi_alloc_t) -> Result<Init, Failure> {
    match policy {
        GASPI_MEM_UNINITIALIZED => Ok(Init::Uninitialized),
        GASPI_MEM_INITIALIZED => Ok(Init::Zeroed),
        other => Err(Failure::Rejected(format!(
            "allocation policy {other} does not exist; \
             use GASPI_MEM_UNINITIALIZED (0) or GASPI_MEM_INITIALIZED (1)"
        ))),
    }
}

procedures! {
    /// GASPI.h: makes a segment.
    fn segment_alloc(
        segment_id: gaspi_segment_id_t,
        size: gaspi_size_t,
        alloc_policy: gaspi_alloc_t,
    ) holding rt {
        Ok(rt.segment_alloc(SegmentId(segment_id), size, init(alloc_policy)?)?)
    }

    /// GASPI.h: deletes a segment.
    fn segment_delete(segment_id: gaspi_segment_id_t) holding rt {
        Ok(rt.segment_delete(SegmentId(segment_id))?)
    }

    /// GASPI.h: makes a segment known to a rank.
    fn segment_register(
        segment_id: gaspi_segment_id_t,
        rank: gaspi_rank_t,
        milliseconds: gaspi_timeout_t,
    ) holding rt {
        Ok(rt.segment_register(SegmentId(segment_id), Rank(rank), timeout(milliseconds))?)
    }

    /// GASPI.h: makes a segment on all ranks of a group.
    fn segment_create(
        segment_id: gaspi_segment_id_t,
        size: gaspi_size_t,
        group: gaspi_group_t,
        milliseconds: gaspi_timeout_t,
        alloc_policy: gaspi_alloc_t,
    ) holding rt {
        let (id, init) = (SegmentId(segment_id), init(alloc_policy)?);
        Ok(rt.segment_create(id, size, GroupId(group), timeout(milliseconds), init)?)
    }

    /// GASPI.h: makes a segment of the program's memory.
    fn segment_bind(
        segment_id: gaspi_segment_id_t,
        pointer: gaspi_pointer_t,
        size: gaspi_size_t,
        _memory_description: gaspi_memory_description_t,
    ) holding rt {
        not_null!(pointer);
        // SAFETY: the program owns `size` bytes at `pointer` until it deletes the segment.
        Ok(unsafe { rt.segment_bind(SegmentId(segment_id), pointer.cast(), size) }?)
    }

    /// GASPI.h: makes a segment of the program's memory on all ranks of a group.
    fn segment_use(
        segment_id: gaspi_segment_id_t,
        pointer: gaspi_pointer_t,
        size: gaspi_size_t,
        group: gaspi_group_t,
        milliseconds: gaspi_timeout_t,
        _memory_description: gaspi_memory_description_t,
    ) holding rt {
        not_null!(pointer);
        let (id, group, timeout) = (SegmentId(segment_id), GroupId(group), timeout(milliseconds));
        // SAFETY: the program owns `size` bytes at `pointer` until it deletes the segment.
        Ok(unsafe { rt.segment_use(id, pointer.cast(), size, group, timeout) }?)
    }

    /// GASPI.h: the number of segments.
    fn segment_num(segment_num: *mut gaspi_number_t) with rt {
        out!(segment_num).give(rt.segment_num())
    }

    /// GASPI.h: the ids of all segments, ascending.
    fn segment_list(num: gaspi_number_t, segment_id_list: *mut gaspi_segment_id_t) with rt {
        let out = out!(segment_id_list);
        let segments = rt.segment_list();
        if num as usize != segments.len() {
            return Err(Failure::Rejected(format!(
                "num is {num}, but there are {} segments; pass what gaspi_segment_num tells",
                segments.len()
            )));
        }
        out.fill(segments.into_iter().map(|id| id.0));
        Ok(())
    }

    /// GASPI.h: where a segment lies.
    fn segment_ptr(segment_id: gaspi_segment_id_t, pointer: *mut gaspi_pointer_t) with rt {
        out!(pointer).give(rt.segment_ptr(SegmentId(segment_id))?.cast())
    }

    /// GASPI.h: how many segments there can be.
    fn segment_max(segment_max: *mut gaspi_number_t) with rt {
        out!(segment_max).give(rt.segment_max())
    }

    /// GASPI_Ext.h: the lowest free id.
    fn segment_avail_local(segment_id: *mut gaspi_segment_id_t) with rt {
        out!(segment_id).give(rt.segment_avail_local()?.0)
    }

    /// GASPI_Ext.h: the size of a segment.
    fn segment_size(
        segment_id: gaspi_segment_id_t,
        rank: gaspi_rank_t,
        size: *mut gaspi_size_t,
    ) with rt {
        out!(size).give(rt.segment_size(SegmentId(segment_id), Rank(rank))?)
    }
}
