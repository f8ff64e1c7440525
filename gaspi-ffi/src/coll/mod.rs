//! The collective operations of gaspi_collectives.h, each in its three forms: one that waits, one
//! that starts, one that prepares.

mod arguments;
pub(crate) mod fusion;
pub(crate) mod lists;
pub(crate) mod reductions;
pub(crate) mod requests;

use self::arguments::{
    Buffers, InPlace, Lists, Members, Used, beginning, bytes, combined, moved, optioned, request,
    simple, total,
};
use crate::error::Outcome;
use crate::pointers::Out;
use crate::runtime::timeout;
use crate::types::*;
use gaspi_collectives::algorithms::Collective;
use gaspi_collectives::{Combination, Request, SimpleRequest};
use gaspi_core::{FastPath, GroupId, Rank, Runtime};
use std::ffi::c_void;

/// The arguments that all forms of all operations have, besides the request.
struct Call {
    group: gaspi_group_t,
    options: *const gaspi_coll_options_t,
    milliseconds: gaspi_timeout_t,
}

impl Call {
    /// Carries out the request.
    ///
    /// # Safety
    /// The caller of the C function passes valid options, and buffers that only the
    /// operation uses until its end.
    unsafe fn run(self, rt: &Runtime, request: Request) -> Outcome {
        // SAFETY: the caller of the C function passes valid options.
        let request = unsafe { optioned(request, self.options) }?;
        let (group, timeout) = (GroupId(self.group), timeout(self.milliseconds));
        // SAFETY: the caller of the C function passes valid buffers.
        Ok(unsafe { gaspi_collectives::run(rt, group, &request, timeout) }?)
    }

    /// Starts it.
    ///
    /// # Safety
    /// As [`run`](Call::run).
    unsafe fn start(
        self,
        rt: &Runtime,
        request: Request,
        out: Out<gaspi_coll_request_t>,
    ) -> Outcome {
        // SAFETY: the caller of the C function passes valid options.
        let request = unsafe { optioned(request, self.options) }?;
        let (group, timeout) = (GroupId(self.group), timeout(self.milliseconds));
        // SAFETY: the caller of the C function passes valid buffers.
        out.set(unsafe { gaspi_collectives::handles::start(rt, group, &request, timeout) }?.0);
        Ok(())
    }

    /// Prepares it.
    ///
    /// # Safety
    /// As [`run`](Call::run), each time that it is started.
    unsafe fn prepare(
        self,
        rt: &Runtime,
        request: Request,
        out: Out<gaspi_coll_request_t>,
    ) -> Outcome {
        // SAFETY: the caller of the C function passes valid options.
        let request = unsafe { optioned(request, self.options) }?;
        let (group, timeout) = (GroupId(self.group), timeout(self.milliseconds));
        // SAFETY: the caller of the C function passes valid buffers.
        out.set(unsafe { gaspi_collectives::handles::prepare(rt, group, &request, timeout) }?.0);
        Ok(())
    }
}

/// Defines each operation from the code that makes a request of its arguments. `group`, the options
/// and the arguments of the forms are added. `simple` makes a request for the fast path.
macro_rules! operations {
    ($(
        $(#[$doc:meta])*
        fn $run:ident, $start:ident, $prepare:ident($($argument:ident: $type:ty),* $(,)?)
        $(simple $inside:ident $simple:block)? of $group:ident on $rt:ident $body:block
    )*) => {
        procedures! {
            $(
                $(#[$doc])*
                fn $run(
                    $($argument: $type,)*
                    $group: gaspi_group_t,
                    options: *const gaspi_coll_options_t,
                    milliseconds: gaspi_timeout_t,
                ) $(try_fast $inside {
                    if !options.is_null() {
                        return None;
                    }
                    let simple: SimpleRequest = $simple?;
                    let (group, once) = (GroupId($group), milliseconds == GASPI_TEST);
                    // SAFETY: the header asks for valid options and buffers.
                    let done = unsafe {
                        gaspi_collectives::try_run_fast(&$inside, group, &simple, once)
                    };
                    done.map(|()| GASPI_SUCCESS)
                })? holding $rt {
                    let call = Call { group: $group, options, milliseconds };
                    let request: Request = $body;
                    // SAFETY: the header asks for valid options and buffers.
                    unsafe { call.run($rt, request) }
                }

                /// The same, started.
                fn $start(
                    $($argument: $type,)*
                    $group: gaspi_group_t,
                    options: *const gaspi_coll_options_t,
                    request: *mut gaspi_coll_request_t,
                    milliseconds: gaspi_timeout_t,
                ) holding $rt {
                    let out = out!(request);
                    let call = Call { group: $group, options, milliseconds };
                    let request: Request = $body;
                    // SAFETY: the header asks for valid options and buffers.
                    unsafe { call.start($rt, request, out) }
                }

                /// The same, prepared.
                fn $prepare(
                    $($argument: $type,)*
                    $group: gaspi_group_t,
                    options: *const gaspi_coll_options_t,
                    request: *mut gaspi_coll_request_t,
                    milliseconds: gaspi_timeout_t,
                ) holding $rt {
                    let out = out!(request);
                    let call = Call { group: $group, options, milliseconds };
                    let request: Request = $body;
                    // SAFETY: the header asks for valid options and buffers.
                    unsafe { call.prepare($rt, request, out) }
                }
            )*
        }
    };
}

/// Whether this rank is the root.
fn is_root(rt: &Runtime, root: gaspi_rank_t) -> bool {
    rt.rank() == Rank(root)
}

/// The same on the fast path.
#[inline(always)]
fn is_root_inside(inside: &FastPath<'_>, root: gaspi_rank_t) -> bool {
    is_root(inside.runtime(), root)
}

/// The request of an operation on blocks of equal lengths.
fn even(
    collective: Collective,
    combination: Combination,
    count: u64,
    buffers: Buffers,
    root: gaspi_rank_t,
) -> Request {
    Request {
        send: buffers.send.cast(),
        receive: buffers.receive.cast(),
        count,
        combination,
        root: Rank(root),
        ..request(collective)
    }
}

/// The root of an operation without one.
const NO_ROOT: gaspi_rank_t = 0;
/// The operation of elements that are only moved.
const MOVED: gaspi_coll_op_t = GASPI_COLL_OP_SUM;

operations! {
    /// gaspi_collectives.h: combines the elements of all ranks; all get the result.
    fn coll_allreduce, coll_allreduce_start, coll_allreduce_init(
        send: *const c_void,
        receive: *mut c_void,
        count: u64,
        datatype: gaspi_coll_datatype_t,
        op: gaspi_coll_op_t,
    ) simple inside {
        let (used, buffers) = (Used { send: count, receive: count }, Buffers { send, receive });
        simple(Collective::Allreduce, (buffers, used), count, (datatype, op), NO_ROOT)
    } of group on rt {
        let combination = combined(rt, datatype, op)?;
        bytes(count, 1, combination.element_bytes())?;
        let used = Used { send: count, receive: count };
        let buffers = Buffers { send, receive }.resolve(used, InPlace::Same)?;
        even(Collective::Allreduce, combination, count, buffers, NO_ROOT)
    }

    /// gaspi_collectives.h: combines the elements of all ranks; the root gets the result.
    fn coll_reduce, coll_reduce_start, coll_reduce_init(
        send: *const c_void,
        receive: *mut c_void,
        count: u64,
        datatype: gaspi_coll_datatype_t,
        op: gaspi_coll_op_t,
        root: gaspi_rank_t,
    ) simple inside {
        let receives = if is_root_inside(&inside, root) { count } else { 0 };
        let used = Used { send: count, receive: receives };
        simple(Collective::Reduce, (Buffers { send, receive }, used), count, (datatype, op), root)
    } of group on rt {
        let combination = combined(rt, datatype, op)?;
        bytes(count, 1, combination.element_bytes())?;
        let used = Used { send: count, receive: if is_root(rt, root) { count } else { 0 } };
        let buffers = Buffers { send, receive }.resolve(used, InPlace::Same)?;
        even(Collective::Reduce, combination, count, buffers, root)
    }

    /// gaspi_collectives.h: gives the elements of the root to all.
    fn coll_broadcast, coll_broadcast_start, coll_broadcast_init(
        send: *const c_void,
        receive: *mut c_void,
        count: u64,
        datatype: gaspi_coll_datatype_t,
        root: gaspi_rank_t,
    ) simple inside {
        let sends = if is_root_inside(&inside, root) { count } else { 0 };
        let (used, buffers) = (Used { send: sends, receive: count }, Buffers { send, receive });
        simple(Collective::Broadcast, (buffers, used), count, (datatype, MOVED), root)
    } of group on rt {
        let combination = moved(datatype)?;
        bytes(count, 1, combination.element_bytes())?;
        let used = Used { send: if is_root(rt, root) { count } else { 0 }, receive: count };
        let buffers = Buffers { send, receive }.resolve(used, InPlace::Same)?;
        even(Collective::Broadcast, combination, count, buffers, root)
    }

    /// gaspi_collectives.h: combines the elements of all ranks; each gets one block of the result.
    fn coll_reduce_scatter, coll_reduce_scatter_start, coll_reduce_scatter_init(
        send: *const c_void,
        receive: *mut c_void,
        count: u64,
        datatype: gaspi_coll_datatype_t,
        op: gaspi_coll_op_t,
    ) of group on rt {
        let combination = combined(rt, datatype, op)?;
        let members = Members::of(rt, group)?;
        let own = members.own_block(count, combination.element_bytes())?;
        let used = Used { send: count, receive: count };
        let buffers = Buffers { send, receive }.resolve(used, InPlace::OwnBlockOfSend(own))?;
        even(Collective::ReduceScatter, combination, count, buffers, NO_ROOT)
    }

    /// gaspi_collectives.h: gives the elements of each rank to all.
    fn coll_allgather, coll_allgather_start, coll_allgather_init(
        send: *const c_void,
        receive: *mut c_void,
        count: u64,
        datatype: gaspi_coll_datatype_t,
    ) of group on rt {
        let combination = moved(datatype)?;
        let members = Members::of(rt, group)?;
        let own = members.own_block(count, combination.element_bytes())?;
        let used = Used { send: count, receive: count };
        let buffers = Buffers { send, receive }.resolve(used, InPlace::OwnBlockOfReceive(own))?;
        even(Collective::Allgather, combination, count, buffers, NO_ROOT)
    }

    /// gaspi_collectives.h: gives the elements of each rank to all, of each as many as it has.
    fn coll_allgatherv, coll_allgatherv_start, coll_allgatherv_init(
        send: *const c_void,
        receive: *mut c_void,
        counts: *const u64,
        displacements: *const u64,
        datatype: gaspi_coll_datatype_t,
    ) of group on rt {
        let combination = moved(datatype)?;
        let element_bytes = combination.element_bytes();
        let members = Members::of(rt, group)?;
        // SAFETY: the caller of the C function passes a number for each member.
        let blocks = unsafe { Lists { counts, displacements }.read(members.size, "counts") }?;
        let receives = total(&blocks, element_bytes)?;
        let used = Used { send: blocks.counts[members.me], receive: receives };
        let own = beginning(&blocks, members.me, element_bytes)?;
        let buffers = Buffers { send, receive }.resolve(used, InPlace::OwnBlockOfReceive(own))?;
        let request = even(Collective::Allgather, combination, 0, buffers, NO_ROOT);
        Request { blocks: vec![blocks], ..request }
    }

    /// gaspi_collectives.h: gives the elements of each rank to the root.
    fn coll_gather, coll_gather_start, coll_gather_init(
        send: *const c_void,
        receive: *mut c_void,
        count: u64,
        datatype: gaspi_coll_datatype_t,
        root: gaspi_rank_t,
    ) of group on rt {
        let combination = moved(datatype)?;
        let members = Members::of(rt, group)?;
        let own = members.own_block(count, combination.element_bytes())?;
        let used = Used { send: count, receive: if is_root(rt, root) { count } else { 0 } };
        let buffers = Buffers { send, receive }.resolve(used, InPlace::OwnBlockOfReceive(own))?;
        even(Collective::Gather, combination, count, buffers, root)
    }

    /// gaspi_collectives.h: gives each rank one block of the root's elements.
    fn coll_scatter, coll_scatter_start, coll_scatter_init(
        send: *const c_void,
        receive: *mut c_void,
        count: u64,
        datatype: gaspi_coll_datatype_t,
        root: gaspi_rank_t,
    ) of group on rt {
        let combination = moved(datatype)?;
        let members = Members::of(rt, group)?;
        let own = members.own_block(count, combination.element_bytes())?;
        let used = Used { send: if is_root(rt, root) { count } else { 0 }, receive: count };
        let buffers = Buffers { send, receive }.resolve(used, InPlace::OwnBlockOfSend(own))?;
        even(Collective::Scatter, combination, count, buffers, root)
    }

    /// gaspi_collectives.h: gives each rank one block of the elements of each rank.
    fn coll_alltoall, coll_alltoall_start, coll_alltoall_init(
        send: *const c_void,
        receive: *mut c_void,
        count: u64,
        datatype: gaspi_coll_datatype_t,
    ) of group on rt {
        let combination = moved(datatype)?;
        Members::of(rt, group)?.own_block(count, combination.element_bytes())?;
        let used = Used { send: count, receive: count };
        let buffers = Buffers { send, receive }.resolve(used, InPlace::Same)?;
        even(Collective::Alltoall, combination, count, buffers, NO_ROOT)
    }

    /// gaspi_collectives.h: the same with blocks of any lengths.
    fn coll_alltoallv, coll_alltoallv_start, coll_alltoallv_init(
        send: *const c_void,
        send_counts: *const u64,
        send_displacements: *const u64,
        receive: *mut c_void,
        receive_counts: *const u64,
        receive_displacements: *const u64,
        datatype: gaspi_coll_datatype_t,
    ) of group on rt {
        let combination = moved(datatype)?;
        let element_bytes = combination.element_bytes();
        let members = Members::of(rt, group)?;
        let sent = Lists { counts: send_counts, displacements: send_displacements };
        // SAFETY: the caller of the C function passes a number for each member.
        let sent = unsafe { sent.read(members.size, "send_counts") }?;
        let received = Lists { counts: receive_counts, displacements: receive_displacements };
        // SAFETY: the caller of the C function passes a number for each member.
        let received = unsafe { received.read(members.size, "receive_counts") }?;
        let used = Used {
            send: total(&sent, element_bytes)?,
            receive: total(&received, element_bytes)?,
        };
        let buffers = Buffers { send, receive }.resolve(used, InPlace::Same)?;
        let request = even(Collective::Alltoall, combination, 0, buffers, NO_ROOT);
        Request { blocks: vec![sent, received], ..request }
    }

    /// gaspi_collectives.h: waits until all ranks of a group are there.
    fn coll_barrier, coll_barrier_start, coll_barrier_init() simple inside {
        SimpleRequest::of(&request(Collective::Barrier))
    } of group on rt {
        request(Collective::Barrier)
    }
}
