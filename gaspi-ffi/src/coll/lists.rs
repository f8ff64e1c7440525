//! Broadcasts of lists of gaspi_collectives.h.

use super::arguments::{data_type, optioned, request, strange_type};
use crate::error::Failure;
use crate::runtime::timeout;
use crate::types::*;
use gaspi_collectives::algorithms::Collective;
use gaspi_collectives::{BroadcastList, Piece, Request, handles, run_broadcast_list};
use gaspi_core::{GroupId, Rank};

/// What C passes, with the program's numbers checked.
///
/// # Safety
/// `pieces` points to `num` of them; `options` is null or as the header says.
unsafe fn list(
    (pieces, num): (*const gaspi_coll_piece_t, gaspi_size_t),
    root: gaspi_rank_t,
    options: *const gaspi_coll_options_t,
) -> Result<BroadcastList, Failure> {
    if num > 0 && pieces.is_null() {
        return Err(Failure::Null("pieces"));
    }
    let piece = |at: usize| {
        // SAFETY: one of the `num` pieces; C does not promise alignment.
        let given = unsafe { pieces.add(at).read_unaligned() };
        let ty = data_type(given.datatype).ok_or_else(|| strange_type(given.datatype))?;
        if given.reserved != 0 {
            let reason = format!("piece {at}: reserved is {}, but has to be 0", given.reserved);
            return Err(Failure::Rejected(reason));
        }
        Ok(Piece { data: given.data.cast(), count: given.count, ty })
    };
    let pieces = (0..num as usize).map(piece).collect::<Result<_, Failure>>()?;
    // SAFETY: the caller's promise.
    let request = unsafe { optioned(request(Collective::Broadcast), options) }?;
    let Request { algorithm, mode, background, .. } = request;
    Ok(BroadcastList { pieces, root: Rank(root), algorithm, mode, background })
}

procedures! {
    /// gaspi_collectives.h: gives many pieces of the root to all.
    fn coll_broadcast_list(
        pieces: *const gaspi_coll_piece_t,
        num: gaspi_size_t,
        root: gaspi_rank_t,
        group: gaspi_group_t,
        options: *const gaspi_coll_options_t,
        milliseconds: gaspi_timeout_t,
    ) holding rt {
        // SAFETY: the header asks for `num` pieces and valid options.
        let list = unsafe { list((pieces, num), root, options) }?;
        let (group, timeout) = (GroupId(group), timeout(milliseconds));
        // SAFETY: the header asks for valid pieces.
        Ok(unsafe { run_broadcast_list(rt, group, &list, timeout) }?)
    }

    /// The same, started.
    fn coll_broadcast_list_start(
        pieces: *const gaspi_coll_piece_t,
        num: gaspi_size_t,
        root: gaspi_rank_t,
        group: gaspi_group_t,
        options: *const gaspi_coll_options_t,
        request: *mut gaspi_coll_request_t,
        milliseconds: gaspi_timeout_t,
    ) holding rt {
        let out = out!(request);
        // SAFETY: the header asks for `num` pieces and valid options.
        let list = unsafe { list((pieces, num), root, options) }?;
        let (group, timeout) = (GroupId(group), timeout(milliseconds));
        // SAFETY: the header asks for valid pieces.
        out.set(unsafe { handles::start_broadcast_list(rt, group, &list, timeout) }?.0);
        Ok(())
    }
}
