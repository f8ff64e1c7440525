//! The calls that can fail, and the entries that replace those of a device's table of operations.

#![allow(clippy::missing_safety_doc, reason = "the manual pages of rdma-core have the contracts")]

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use libibverbs_sys as sys;
use sys::{
    Library, ibv_comp_channel, ibv_context, ibv_context_ops, ibv_cq, ibv_device, ibv_mr, ibv_pd,
    ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq,
    ibv_srq_init_attr, ibv_wc,
};

use crate::plan::{Call, Fate, Plan};

/// A local key of no memory.
const NO_MEMORY: u32 = 0x00ff_ff00;

static PLAN: Mutex<Plan> = Mutex::new(Plan::NOTHING);
static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);

/// What has to be remembered.
#[derive(Default)]
struct Known {
    /// The operations of open devices, by the address of their contexts.
    operations: HashMap<usize, ibv_context_ops>,
    /// With which status a request fails that was posted wrongly, by the number of its pair.
    failing: HashMap<u32, u32>,
}

/// The real library.
pub(crate) fn real() -> &'static Library {
    static REAL: LazyLock<Library> = LazyLock::new(|| {
        let file = std::env::var_os("GASPI_TEST_IBVERBS");
        Library::load(file.as_deref()).unwrap_or_else(|reason| panic!("{reason}"))
    });
    &REAL
}

pub(crate) fn plan() -> MutexGuard<'static, Plan> {
    PLAN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn known() -> MutexGuard<'static, Known> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn operations(context: *mut ibv_context) -> ibv_context_ops {
    known().operations[&context.addr()]
}

/// Whether a call is refused; errno then says why.
fn refused(call: Call) -> Option<c_int> {
    let error = plan().refusal(call)?;
    // SAFETY: the address is that of this thread's own errno.
    unsafe { libc::__errno_location().write(error) };
    Some(error)
}

/// Opens a device and puts entries of this library into its table of operations.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: C contract.
    let context = unsafe { (real().ibv_open_device)(device) };
    if !context.is_null() {
        // SAFETY: the context is open, and nobody else knows it yet.
        let table = unsafe { &mut (*context).ops };
        known().operations.insert(context.addr(), *table);
        table.post_send = Some(post_send);
        table.post_srq_recv = Some(post_srq_recv);
        table.poll_cq = Some(poll_cq);
        table.req_notify_cq = Some(req_notify_cq);
    }
    context
}

/// Closes a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    known().operations.remove(&context.addr());
    // SAFETY: C contract.
    unsafe { (real().ibv_close_device)(context) }
}

/// Makes a protection domain.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    if refused(Call::AllocPd).is_some() {
        return null_mut();
    }
    // SAFETY: C contract.
    unsafe { (real().ibv_alloc_pd)(context) }
}

/// Registers memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    if refused(Call::RegMr).is_some() {
        return null_mut();
    }
    // SAFETY: C contract.
    unsafe { (real().ibv_reg_mr)(pd, address, length, access) }
}

/// Makes a completion channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    if refused(Call::CreateCompChannel).is_some() {
        return null_mut();
    }
    // SAFETY: C contract.
    unsafe { (real().ibv_create_comp_channel)(context) }
}

/// Makes a completion queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    entries: c_int,
    about: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    if refused(Call::CreateCq).is_some() {
        return null_mut();
    }
    // SAFETY: C contract.
    unsafe { (real().ibv_create_cq)(context, entries, about, channel, vector) }
}

/// Makes a shared receive queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    wanted: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    if refused(Call::CreateSrq).is_some() {
        return null_mut();
    }
    // SAFETY: C contract.
    unsafe { (real().ibv_create_srq)(pd, wanted) }
}

/// Makes a queue pair.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    wanted: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    if refused(Call::CreateQp).is_some() {
        return null_mut();
    }
    // SAFETY: C contract.
    unsafe { (real().ibv_create_qp)(pd, wanted) }
}

/// Changes a queue pair.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attributes: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    if let Some(error) = refused(Call::ModifyQp) {
        return error;
    }
    // SAFETY: C contract.
    unsafe { (real().ibv_modify_qp)(qp, attributes, mask) }
}

/// Ends a queue pair.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: C contract.
    let number = unsafe { (*qp).qp_num };
    // Before its number can be given to another one.
    known().failing.remove(&number);
    // SAFETY: C contract.
    unsafe { (real().ibv_destroy_qp)(qp) }
}

unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    list: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: C contract.
    let post = unsafe { operations((*qp).context).post_send }.expect("every device has it");
    // What is posted as it is, from `first` on.
    let (mut first, mut last, mut next) = (list, null_mut::<ibv_send_wr>(), list);
    while !next.is_null() {
        let fate = plan().request();
        if fate == Fate::Posted {
            last = next;
        } else {
            if !last.is_null() {
                // SAFETY: a valid list, which is whole again when the call returns.
                let error = unsafe { post_until(post, qp, first, last, next, bad) };
                if error != 0 {
                    return error;
                }
            }
            // SAFETY: a valid request of the list.
            let error = unsafe { post_wrongly(post, qp, next, fate) };
            if error != 0 {
                // SAFETY: C contract.
                unsafe { bad.write(next) };
                return error;
            }
            last = null_mut();
        }
        // SAFETY: a valid list.
        next = unsafe { (*next).next };
        if last.is_null() {
            first = next;
        }
    }
    // SAFETY: C contract.
    if first.is_null() { 0 } else { unsafe { post(qp, first, bad) } }
}

/// Posts a part of a list: from `first` to `last`, which `next` follows.
///
/// # Safety
/// A valid list of `qp`.
unsafe fn post_until(
    post: sys::inline::PostSend,
    qp: *mut ibv_qp,
    first: *mut ibv_send_wr,
    last: *mut ibv_send_wr,
    next: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: caller's promise.
    unsafe {
        (*last).next = null_mut();
        let error = post(qp, first, bad);
        (*last).next = next;
        error
    }
}

/// Refuses a request, or posts in its place one that the device fails.
///
/// # Safety
/// A valid request of `qp`.
unsafe fn post_wrongly(
    post: sys::inline::PostSend,
    qp: *mut ibv_qp,
    request: *mut ibv_send_wr,
    fate: Fate,
) -> c_int {
    let status = match fate {
        Fate::Posted => unreachable!("only what fails"),
        Fate::Refused(error) => return error,
        Fate::Fails(status) => status,
    };
    let mut nowhere = ibv_sge { addr: 0, length: 1, lkey: NO_MEMORY };
    // SAFETY: caller's promise.
    unsafe {
        known().failing.entry((*qp).qp_num).or_insert(status);
        let mut wrong = request.read();
        (wrong.next, wrong.sg_list, wrong.num_sge) = (null_mut(), &raw mut nowhere, 1);
        wrong.opcode = sys::IBV_WR_RDMA_WRITE;
        wrong.send_flags &= sys::IBV_SEND_SIGNALED;
        wrong.wr.rdma = std::mem::zeroed();
        let mut bad = null_mut();
        post(qp, &raw mut wrong, &raw mut bad)
    }
}

unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: C contract.
    let post = unsafe { operations((*srq).context).post_srq_recv }.expect("every device has it");
    let mut next = list;
    while !next.is_null() {
        // SAFETY: a valid list, whose requests are posted one by one.
        let mut receive = unsafe { next.read() };
        let mut nowhere = ibv_sge { addr: 0, length: 1 << 20, lkey: NO_MEMORY };
        receive.next = null_mut();
        if plan().receive() {
            (receive.sg_list, receive.num_sge) = (&raw mut nowhere, 1);
        }
        let mut at = null_mut();
        // SAFETY: a valid request, or one that the device fails.
        let post = || unsafe { post(srq, &raw mut receive, &raw mut at) };
        let error = refused(Call::PostSrqRecv).unwrap_or_else(post);
        if error != 0 {
            // SAFETY: C contract.
            unsafe { bad.write(next) };
            return error;
        }
        // SAFETY: a valid list.
        next = unsafe { (*next).next };
    }
    0
}

unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited: c_int) -> c_int {
    if let Some(error) = refused(Call::ReqNotifyCq) {
        return error;
    }
    // SAFETY: C contract.
    unsafe {
        let request = operations((*cq).context).req_notify_cq.expect("every device has it");
        request(cq, solicited)
    }
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, room: c_int, to: *mut ibv_wc) -> c_int {
    if let Some(error) = refused(Call::PollCq) {
        return -error;
    }
    // SAFETY: C contract.
    let found = unsafe {
        let poll = operations((*cq).context).poll_cq.expect("every device has it");
        poll(cq, room, to)
    };
    for at in 0..usize::try_from(found).unwrap_or(0) {
        // SAFETY: so many have been written.
        change(unsafe { &mut *to.add(at) });
    }
    found
}

/// Gives the completion of a request that was posted wrongly the status that was planned for it.
fn change(completion: &mut ibv_wc) {
    if !matches!(completion.status, sys::IBV_WC_SUCCESS | sys::IBV_WC_WR_FLUSH_ERR)
        && let Some(status) = known().failing.remove(&completion.qp_num)
    {
        completion.status = status;
    }
}
