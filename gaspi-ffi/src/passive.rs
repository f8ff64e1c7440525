//! Passive communication (GASPI 17.1, 9).

use crate::runtime::timeout;
use crate::types::*;
use gaspi_core::{Rank, SegmentId};

procedures! {
    /// GASPI.h: sends a message and waits until it was received.
    fn passive_send(
        segment_id_local: gaspi_segment_id_t,
        offset_local: gaspi_offset_t,
        rank: gaspi_rank_t,
        size: gaspi_size_t,
        milliseconds: gaspi_timeout_t,
    ) holding rt {
        let (segment, timeout) = (SegmentId(segment_id_local), timeout(milliseconds));
        Ok(rt.passive_send(segment, offset_local, Rank(rank), size, timeout)?)
    }

    /// GASPI.h: receives a message from any rank.
    fn passive_receive(
        segment_id_local: gaspi_segment_id_t,
        offset_local: gaspi_offset_t,
        rank: *mut gaspi_rank_t,
        size: gaspi_size_t,
        milliseconds: gaspi_timeout_t,
    ) holding rt {
        let out = out!(rank);
        let (segment, timeout) = (SegmentId(segment_id_local), timeout(milliseconds));
        out.set(rt.passive_receive(segment, offset_local, size, timeout)?.0);
        Ok(())
    }

    /// GASPI.h: forgets passive messages that failed.
    fn passive_queue_purge(milliseconds: gaspi_timeout_t) holding rt {
        Ok(rt.passive_queue_purge(timeout(milliseconds))?)
    }
}
