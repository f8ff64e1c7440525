//! Global atomics (GASPI 17.1, 10).

use crate::runtime::timeout;
use crate::types::*;
use gaspi_core::{Rank, SegmentId};

procedures! {
    /// GASPI.h: adds to 8 bytes of another rank's segment.
    fn atomic_fetch_add(
        segment_id: gaspi_segment_id_t,
        offset: gaspi_offset_t,
        rank: gaspi_rank_t,
        value_add: gaspi_atomic_value_t,
        value_old: *mut gaspi_atomic_value_t,
        milliseconds: gaspi_timeout_t,
    ) try_fast rt {
        let out = wanted!(value_old)?;
        out.set(rt.atomic_fetch_add(SegmentId(segment_id), offset, Rank(rank), value_add)?);
        Some(GASPI_SUCCESS)
    } holding rt {
        let out = out!(value_old);
        let (segment, rank, limit) = (SegmentId(segment_id), Rank(rank), timeout(milliseconds));
        out.set(rt.atomic_fetch_add(segment, offset, rank, value_add, limit)?);
        Ok(())
    }

    /// GASPI.h: replaces 8 bytes of another rank's segment if they are as expected.
    fn atomic_compare_swap(
        segment_id: gaspi_segment_id_t,
        offset: gaspi_offset_t,
        rank: gaspi_rank_t,
        comparator: gaspi_atomic_value_t,
        value_new: gaspi_atomic_value_t,
        value_old: *mut gaspi_atomic_value_t,
        milliseconds: gaspi_timeout_t,
    ) try_fast rt {
        let out = wanted!(value_old)?;
        let (segment, target) = (SegmentId(segment_id), Rank(rank));
        out.set(rt.atomic_compare_swap(segment, offset, target, comparator, value_new)?);
        Some(GASPI_SUCCESS)
    } holding rt {
        let out = out!(value_old);
        let (segment, rank, limit) = (SegmentId(segment_id), Rank(rank), timeout(milliseconds));
        out.set(rt.atomic_compare_swap(segment, offset, rank, comparator, value_new, limit)?);
        Ok(())
    }

    /// GASPI.h: the largest value of an atomic.
    fn atomic_max(max_value: *mut gaspi_atomic_value_t) with _rt {
        out!(max_value).give(gaspi_atomic_value_t::MAX)
    }
}
