//! Posting lists of requests and receives.

use std::ffi::c_int;

use libibverbs_sys as sys;
use sys::{ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq};

use super::pair::{pair, shared};
use crate::model::codes::opcode;
use crate::model::pair::{Receive, Request, Sge};

const _: () = assert!(size_of::<Sge>() == size_of::<ibv_sge>());

/// # Safety
/// `list` has `count` pieces, or `count` is 0.
unsafe fn pieces<'a>(list: *mut ibv_sge, count: c_int) -> &'a [Sge] {
    if count <= 0 {
        return &[];
    }
    // SAFETY: caller's promise; both structs are laid out alike.
    unsafe { std::slice::from_raw_parts(list.cast::<Sge>(), count as usize) }
}

/// # Safety
/// The parts that its opcode asks for are set.
unsafe fn request(wr: &ibv_send_wr) -> Request {
    let mut request =
        Request { id: wr.wr_id, opcode: wr.opcode, flags: wr.send_flags, ..Request::default() };
    match wr.opcode {
        opcode::WRITE | opcode::WRITE_IMM | opcode::READ => {
            // SAFETY: caller's promise.
            let rdma = unsafe { wr.wr.rdma };
            (request.remote, request.key) = (rdma.remote_addr, rdma.rkey);
        }
        opcode::COMPARE_SWAP | opcode::FETCH_ADD => {
            // SAFETY: caller's promise.
            let atomic = unsafe { wr.wr.atomic };
            (request.remote, request.key) = (atomic.remote_addr, atomic.rkey);
            request.operands = [atomic.compare_add, atomic.swap];
        }
        _ => {}
    }
    if matches!(wr.opcode, opcode::WRITE_IMM | opcode::SEND_IMM) {
        // SAFETY: caller's promise.
        request.immediate = unsafe { wr.__bindgen_anon_1.imm_data };
    }
    request
}

pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    list: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: C contract.
    let pair = unsafe { pair(qp) };
    let mut entered = pair.fabric.enter();
    let net = entered.net();
    net.card(pair.card).counters.posts += 1;
    let mut next = list;
    let mut signalled = false;
    while !next.is_null() {
        // SAFETY: C contract: a list of requests that ends with NULL.
        let wr = unsafe { &*next };
        signalled |= wr.send_flags & sys::IBV_SEND_SIGNALED != 0;
        // SAFETY: C contract.
        let (request, sges) = unsafe { (request(wr), pieces(wr.sg_list, wr.num_sge)) };
        if let Err(error) = net.post_send(pair.number, request, sges) {
            // SAFETY: C contract.
            unsafe { bad.write(next) };
            return error;
        }
        next = wr.next;
    }
    drop(entered);
    if signalled && pair.fabric.awaits_answers {
        pair.fabric.await_answers(pair.number);
    }
    0
}

/// Posts each receive of a list.
///
/// # Safety
/// A list that ends with NULL, and room for a pointer.
unsafe fn post_receives(
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    mut post: impl FnMut(Receive) -> Result<(), i32>,
) -> c_int {
    let mut next = list;
    while !next.is_null() {
        // SAFETY: caller's promise.
        let wr = unsafe { &*next };
        // SAFETY: caller's promise.
        let pieces = unsafe { pieces(wr.sg_list, wr.num_sge) }.to_vec();
        if let Err(error) = post(Receive { id: wr.wr_id, pieces }) {
            // SAFETY: caller's promise.
            unsafe { bad.write(next) };
            return error;
        }
        next = wr.next;
    }
    0
}

pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: C contract.
    let pair = unsafe { pair(qp) };
    let mut entered = pair.fabric.enter();
    let net = entered.net();
    // SAFETY: C contract.
    unsafe { post_receives(list, bad, |receive| net.post_receive(pair.number, receive)) }
}

pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: C contract.
    let shared = unsafe { shared(srq) };
    let mut entered = shared.fabric.enter();
    let net = entered.net();
    // SAFETY: C contract.
    unsafe { post_receives(list, bad, |receive| net.post_shared(shared.number, receive)) }
}
