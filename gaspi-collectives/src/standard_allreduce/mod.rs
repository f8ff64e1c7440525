//! The all-reduces of the standard: checks of arguments, and the call on the group.

mod run;
mod signature;

use gaspi_core::{
    CallKey, CallKind, Error, GroupCall, GroupId, Result, Runtime, STAGE_BYTES, Timeout, may_wait,
};

use crate::datatype::{DataType, Element, Operation};
use crate::exec::buffers::Buffers;
use crate::kernel::{Source, Target};
use crate::plan::standard::{Delivery, StandardKey};
use crate::signature::mix;
use crate::user_reduction::{OfTheCall, UserReduce};

/// Combines `count` elements of every rank of the group, element by element; every rank gets the
/// result, with the same bits (GASPI 17.1, 11.3.1). After a timeout, call again with the same
/// arguments to continue; `send` must not change meanwhile.
///
/// `send` and `receive` may be the same address (in place) and need no alignment.
///
/// # Errors
/// - [`Error::Number`]: `count` is 0 or larger than `allreduce_elem_max`.
/// - [`Error::Size`]: `send` and `receive` overlap without being the same.
/// - [`Error::UndefinedOperation`]: the operation is not [defined](Operation::is_defined_for) for
///   the type.
/// - [`Error::ActiveCollective`]: the group has another collective to finish first.
/// - [`Error::Mismatch`]: ranks called different collectives or with different arguments.
/// - those of the group: not committed, a member died or left, timeout.
///
/// # Safety
/// `send` is readable and `receive` is writable for `count` elements, and no other thread writes
/// to the one or uses the other, during this call and those that continue it.
#[allow(clippy::too_many_arguments, reason = "the arguments of the standard's procedure")]
pub unsafe fn allreduce(
    rt: &Runtime,
    send: *const u8,
    receive: *mut u8,
    count: u64,
    op: Operation,
    ty: DataType,
    group: GroupId,
    timeout: Timeout,
) -> Result<()> {
    let limit = u64::from(rt.config().allreduce_elem_max);
    if count == 0 || count > limit {
        let reason = format!("an allreduce takes 1 to {limit} elements (allreduce_elem_max)");
        return Err(Error::Number { number: count, reason });
    }
    if !op.is_defined_for(ty) {
        let (operation, element_type) = (op.to_string(), ty.to_string());
        return Err(Error::UndefinedOperation { operation, element_type });
    }
    let bytes = count * u64::from(ty.bytes());
    check_overlap(send as u64, receive as u64, bytes)?;
    // SAFETY: the caller promises both, for this call.
    let buffers = unsafe { buffers(send, receive, bytes) };
    may_wait(timeout, "allreduce")?;
    let key = CallKey {
        kind: CallKind::Allreduce,
        arguments: mix(&[send as u64, receive as u64, count, op.code(), ty.code()]),
        signature: signature::allreduce(count, op, ty),
        describe: signature::describe,
    };
    let call = rt.group_call(group, key)?;
    let key = key_of(&call, count, u64::from(ty.bytes()), false);
    run::run(rt, call, key, buffers, (op, ty), timeout.deadline())
}

/// [`allreduce`] on slices.
///
/// ```no_run
/// # use gaspi_collectives::{allreduce_slice, Operation};
/// # use gaspi_core::{GroupId, Runtime, Timeout};
/// # fn example(rt: &Runtime) -> gaspi_core::Result<()> {
/// let mine = [f64::from(rt.rank().0), 1.0];
/// let mut sum = [0.0; 2];
/// allreduce_slice(rt, &mine, &mut sum, Operation::Sum, GroupId::ALL, Timeout::Block)?;
/// assert_eq!(sum[1], f64::from(rt.size()));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Those of [`allreduce`]; [`Error::Number`] also when the slices differ in length.
pub fn allreduce_slice<T: Element>(
    rt: &Runtime,
    send: &[T],
    receive: &mut [T],
    op: Operation,
    group: GroupId,
    timeout: Timeout,
) -> Result<()> {
    let count = send.len() as u64;
    if receive.len() != send.len() {
        let reason = format!("the receive slice has {} elements", receive.len());
        return Err(Error::Number { number: count, reason });
    }
    let (send, receive) = (send.as_ptr().cast(), receive.as_mut_ptr().cast());
    // SAFETY: both slices have `count` elements and are borrowed for the call; every bit pattern is
    // an element, and the call does not touch them after it returned, timeout or not.
    unsafe { allreduce(rt, send, receive, count, op, T::TYPE, group, timeout) }
}

/// [`allreduce`] in place.
///
/// # Errors
/// Those of [`allreduce`].
pub fn allreduce_in_place<T: Element>(
    rt: &Runtime,
    data: &mut [T],
    op: Operation,
    group: GroupId,
    timeout: Timeout,
) -> Result<()> {
    let count = data.len() as u64;
    let data: *mut u8 = data.as_mut_ptr().cast();
    // SAFETY: as in `allreduce_slice`; input and output may be the same.
    unsafe { allreduce(rt, data, data, count, op, T::TYPE, group, timeout) }
}

/// Combines `count` elements of `element_bytes` bytes of every rank by a function of the caller
/// (GASPI 17.1, 11.4.1), in the order of the ranks. After a timeout, call again with the same
/// arguments to continue.
///
/// # Errors
/// Those of [`allreduce`], and
/// - [`Error::Size`]: more than `allreduce_buf_size` (8 x `allreduce_elem_max`) bytes, or an
///   element of no bytes or of more than a rank's staging holds (16 KiB);
/// - [`Error::Reduction`], on all ranks: the function failed on that rank. `receive` then holds
///   nothing of use.
///
/// # Safety
/// That of [`allreduce`].
#[allow(clippy::too_many_arguments, reason = "the arguments of the standard's procedure")]
pub unsafe fn allreduce_user(
    rt: &Runtime,
    send: *const u8,
    receive: *mut u8,
    count: u64,
    element_bytes: u64,
    reduce: &mut dyn UserReduce,
    group: GroupId,
    timeout: Timeout,
) -> Result<()> {
    let limit = u64::from(rt.config().allreduce_elem_max) * 8;
    let bytes = user_bytes(count, element_bytes, limit)?;
    check_overlap(send as u64, receive as u64, bytes)?;
    // SAFETY: the caller promises both, for this call.
    let buffers = unsafe { buffers(send, receive, bytes) };
    may_wait(timeout, "allreduce_user")?;
    let identity = reduce.identity();
    let key = CallKey {
        kind: CallKind::AllreduceUser,
        arguments: mix(&[send as u64, receive as u64, count, element_bytes, identity]),
        signature: signature::allreduce_user(count, element_bytes),
        describe: signature::describe,
    };
    let call = rt.group_call(group, key)?;
    let key = key_of(&call, count, element_bytes, true);
    let function = OfTheCall::new(reduce, element_bytes);
    run::run_by(rt, call, key, buffers, &function, timeout.deadline())
}

/// The bytes of a user-defined all-reduce, within its limits.
fn user_bytes(count: u64, element_bytes: u64, limit: u64) -> Result<u64> {
    if count == 0 {
        let reason = "an allreduce_user takes at least one element".to_owned();
        return Err(Error::Number { number: count, reason });
    }
    let stage = gaspi_core::STAGE_BYTES as u64;
    if element_bytes == 0 || element_bytes > stage {
        let reason = format!("an element of allreduce_user has 1 to {stage} bytes");
        return Err(Error::Size { size: element_bytes, reason });
    }
    let bytes = count.saturating_mul(element_bytes);
    if bytes > limit {
        let reason = format!(
            "an allreduce_user takes at most {limit} bytes (allreduce_buf_size); \
             raise allreduce_elem_max"
        );
        return Err(Error::Size { size: bytes, reason });
    }
    Ok(bytes)
}

/// In place is the same address; anything between that and disjoint would be overwritten unread.
fn check_overlap(send: u64, receive: u64, bytes: u64) -> Result<()> {
    let distance = send.abs_diff(receive);
    if distance == 0 || distance >= bytes {
        return Ok(());
    }
    let reason = format!(
        "the send and receive buffers overlap, {distance} bytes apart; \
         pass the same address for both, or disjoint ones"
    );
    Err(Error::Size { size: bytes, reason })
}

/// # Safety
/// Those of the two kinds of memory, for the call and those that continue it.
unsafe fn buffers(send: *const u8, receive: *mut u8, bytes: u64) -> Buffers<'static> {
    // More than the address space cannot be promised by the caller, so this does not truncate.
    let len = bytes as usize;
    // SAFETY: the caller's promise.
    let input = unsafe { Source::new(send, len) };
    // SAFETY: the caller's promise.
    let output = unsafe { Target::new(receive, len) };
    Buffers { input, output }
}

/// The key of a call's plan, for elements of that size.
fn key_of(call: &GroupCall<'_>, count: u64, element_bytes: u64, user: bool) -> StandardKey {
    let (me, size) = (call.me() as u32, call.ranks().len() as u32);
    // Few have nothing to slice, and send each to each.
    let delivery = match size {
        ..=3 => Delivery::Direct,
        _ => delivery_of(call, size, count.saturating_mul(element_bytes), user),
    };
    StandardKey { me, size, count, element_bytes, user, delivery }
}

#[inline(never)]
fn delivery_of(call: &GroupCall<'_>, size: u32, bytes: u64, user: bool) -> Delivery {
    // Where a function may fail, a word says so.
    let room = call.leaders_tell(usize::from(user), bytes.min(STAGE_BYTES as u64) as usize);
    Delivery::of(size, bytes, room.map(|has_room| has_room && bytes <= STAGE_BYTES as u64))
}
