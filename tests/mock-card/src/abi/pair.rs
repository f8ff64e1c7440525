//! Queue pairs and shared receive queues.

use std::ffi::c_int;
use std::mem::zeroed;
use std::sync::Arc;

use libibverbs_sys as sys;
use sys::{
    ibv_ah_attr, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_srq, ibv_srq_attr,
    ibv_srq_init_attr,
};

use super::device::context;
use super::memory::domain;
use super::queue::queue;
use super::running::{Ear, Fabric};
use super::{code, null};
use crate::model::codes::event;
use crate::model::pair::{Address, Attributes, Capacity, Parts};

/// A queue pair.
#[repr(C)]
pub(super) struct QueuePair {
    qp: ibv_qp,
    pub(super) fabric: Arc<Fabric>,
    pub(super) card: u32,
    pub(super) number: u32,
    made_with: ibv_qp_init_attr,
}

/// A shared receive queue.
#[repr(C)]
pub(super) struct SharedQueue {
    srq: ibv_srq,
    pub(super) fabric: Arc<Fabric>,
    pub(super) number: u32,
    made_with: ibv_srq_attr,
}

/// # Safety
/// A pair of `ibv_create_qp`.
pub(super) unsafe fn pair<'a>(qp: *mut ibv_qp) -> &'a QueuePair {
    // SAFETY: caller's promise.
    unsafe { &*qp.cast::<QueuePair>() }
}

/// # Safety
/// A queue of `ibv_create_srq`.
pub(super) unsafe fn shared<'a>(srq: *mut ibv_srq) -> &'a SharedQueue {
    // SAFETY: caller's promise.
    unsafe { &*srq.cast::<SharedQueue>() }
}

/// Makes a queue pair. Only reliable connections are offered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    wanted: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: C contract.
    let (domain, wanted) = unsafe { (domain(pd), *wanted) };
    if wanted.qp_type != sys::IBV_QPT_RC {
        return null(libc::EOPNOTSUPP);
    }
    if wanted.send_cq.is_null() || wanted.recv_cq.is_null() {
        return null(libc::EINVAL);
    }
    let (fabric, card) = (domain.fabric.clone(), domain.card);
    let shared_number = match wanted.srq.is_null() {
        true => None,
        // SAFETY: C contract.
        false => Some(unsafe { shared(wanted.srq) }.number),
    };
    let parts = Parts {
        card,
        domain: domain.number,
        // SAFETY: C contract.
        send_queue: unsafe { queue(wanted.send_cq) }.number,
        // SAFETY: C contract.
        receive_queue: unsafe { queue(wanted.recv_cq) }.number,
        shared: shared_number,
        all_signaled: wanted.sq_sig_all != 0,
    };
    let cap = &wanted.cap;
    let capacity = Capacity {
        sends: cap.max_send_wr,
        receives: if shared_number.is_some() { 0 } else { cap.max_recv_wr },
        send_pieces: cap.max_send_sge,
        receive_pieces: cap.max_recv_sge,
        inline: cap.max_inline_data,
    };
    let mut entered = fabric.enter();
    let number = match entered.net().create_pair(parts, capacity) {
        Ok(number) => number,
        Err(error) => return null(error),
    };
    // SAFETY: integers, pointers, and a lock and a condition that are not used.
    let mut qp: ibv_qp = unsafe { zeroed() };
    // SAFETY: C contract.
    qp.context = unsafe { (*pd).context };
    (qp.qp_context, qp.pd, qp.srq) = (wanted.qp_context, pd, wanted.srq);
    (qp.send_cq, qp.recv_cq) = (wanted.send_cq, wanted.recv_cq);
    (qp.handle, qp.qp_num, qp.qp_type) = (number, number, sys::IBV_QPT_RC);
    let kept = fabric.clone();
    let made = QueuePair { qp, fabric: kept, card, number, made_with: wanted };
    let made = Box::into_raw(Box::new(made));
    // SAFETY: C contract: the context outlives the protection domain.
    let events = unsafe { context((*pd).context) }.events.clone();
    let ear = Ear { events, object: made as usize };
    entered.state.subjects.insert((event::QP_LAST_WQE_REACHED, number), ear);
    made.cast()
}

/// Changes the state and attributes of a pair.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    wanted: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: C contract.
    let (found, wanted) = unsafe { (pair(qp), &*wanted) };
    let attributes = Attributes {
        access: wanted.qp_access_flags,
        pkey_index: wanted.pkey_index,
        port: wanted.port_num,
        mtu: wanted.path_mtu,
        reads: wanted.max_rd_atomic,
        accepted_reads: wanted.max_dest_rd_atomic,
        timeout: wanted.timeout,
        retry_count: wanted.retry_cnt,
        rnr_retry: wanted.rnr_retry,
        rnr_timer: wanted.min_rnr_timer,
        peer: wanted.dest_qp_num,
        send_psn: wanted.sq_psn,
        receive_psn: wanted.rq_psn,
        address: address(&wanted.ah_attr),
    };
    let mut entered = found.fabric.enter();
    let given = mask.cast_unsigned();
    let done = entered.net().modify(found.number, wanted.qp_state, &attributes, given);
    if done.is_ok() && given & sys::IBV_QP_STATE != 0 {
        // SAFETY: C contract: the program lets nobody else modify the pair meanwhile.
        unsafe { (*qp).state = wanted.qp_state };
    }
    done.err().unwrap_or(0)
}

fn address(wanted: &ibv_ah_attr) -> Address {
    Address {
        is_global: wanted.is_global != 0,
        source_index: wanted.grh.sgid_index,
        service_level: wanted.sl,
        traffic_class: wanted.grh.traffic_class,
        // SAFETY: any bytes are a GID.
        target: unsafe { wanted.grh.dgid.raw },
        lid: wanted.dlid,
    }
}

/// The state and attributes of a pair.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    to: *mut ibv_qp_attr,
    _mask: c_int,
    made_with: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: C contract.
    let found = unsafe { pair(qp) };
    let mut entered = found.fabric.enter();
    if let Err(error) = entered.net().admit(found.card, "query_qp") {
        return error;
    }
    let Some(pair) = entered.net().pairs.find(found.number) else { return libc::EINVAL };
    let attributes = &pair.attributes;
    // SAFETY: integers and bytes.
    let mut all: ibv_qp_attr = unsafe { zeroed() };
    (all.qp_state, all.cur_qp_state) = (pair.state, pair.state);
    all.path_mtu = attributes.mtu;
    all.rq_psn = pair.expected_psn;
    all.sq_psn = pair.sending.psn;
    all.dest_qp_num = attributes.peer;
    all.qp_access_flags = attributes.access;
    all.cap = found.made_with.cap;
    all.ah_attr.is_global = u8::from(attributes.address.is_global);
    all.ah_attr.grh.dgid.raw = attributes.address.target;
    all.ah_attr.grh.sgid_index = attributes.address.source_index;
    all.ah_attr.sl = attributes.address.service_level;
    all.ah_attr.grh.traffic_class = attributes.address.traffic_class;
    (all.ah_attr.dlid, all.ah_attr.port_num) = (attributes.address.lid, attributes.port);
    (all.pkey_index, all.port_num) = (attributes.pkey_index, attributes.port);
    (all.max_rd_atomic, all.max_dest_rd_atomic) = (attributes.reads, attributes.accepted_reads);
    (all.min_rnr_timer, all.timeout) = (attributes.rnr_timer, attributes.timeout);
    (all.retry_cnt, all.rnr_retry) = (attributes.retry_count, attributes.rnr_retry);
    // SAFETY: C contract.
    unsafe { to.write(all) };
    // SAFETY: C contract.
    unsafe { made_with.write(found.made_with) };
    0
}

/// Ends a pair, and takes its completions out of their queues.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: C contract: made by `ibv_create_qp`, and destroyed once.
    let found = unsafe { Box::from_raw(qp.cast::<QueuePair>()) };
    let mut entered = found.fabric.enter();
    let done = entered.net().destroy_pair(found.number);
    let key = (event::QP_LAST_WQE_REACHED, found.number);
    let ear = entered.state.subjects.remove(&key);
    ear.into_iter().for_each(|ear| ear.events.forget(ear.object));
    debug_assert!(found.qp.handle == found.number);
    code(done)
}

/// Makes a shared receive queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    wanted: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: C contract.
    let (domain, wanted) = unsafe { (domain(pd), *wanted) };
    let fabric = domain.fabric.clone();
    let ibv_srq_attr { max_wr, max_sge, srq_limit } = wanted.attr;
    let mut entered = fabric.enter();
    let made = entered.net().create_shared(domain.card, domain.number, max_wr, max_sge, srq_limit);
    let number = match made {
        Ok(number) => number,
        Err(error) => return null(error),
    };
    // SAFETY: integers, pointers, and a lock and a condition that are not used.
    let mut srq: ibv_srq = unsafe { zeroed() };
    // SAFETY: C contract.
    srq.context = unsafe { (*pd).context };
    (srq.srq_context, srq.pd, srq.handle) = (wanted.srq_context, pd, number);
    let kept = fabric.clone();
    let made = SharedQueue { srq, fabric: kept, number, made_with: wanted.attr };
    let made = Box::into_raw(Box::new(made));
    // SAFETY: C contract: the context outlives the protection domain.
    let events = unsafe { context((*pd).context) }.events.clone();
    let ear = Ear { events, object: made as usize };
    entered.state.subjects.insert((event::SRQ_LIMIT_REACHED, number), ear);
    made.cast()
}

/// Sets the limit below which an event comes. The size cannot be changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    wanted: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: C contract.
    let (found, wanted) = unsafe { (shared(srq), *wanted) };
    if mask.cast_unsigned() != sys::IBV_SRQ_LIMIT {
        return libc::EOPNOTSUPP;
    }
    let mut entered = found.fabric.enter();
    let Some(shared) = entered.net().shared.find_mut(found.number) else { return libc::EINVAL };
    if wanted.srq_limit as usize > shared.capacity {
        return libc::EINVAL;
    }
    shared.limit = wanted.srq_limit;
    0
}

/// Size and limit of a shared receive queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, to: *mut ibv_srq_attr) -> c_int {
    // SAFETY: C contract.
    let found = unsafe { shared(srq) };
    let mut entered = found.fabric.enter();
    let Some(shared) = entered.net().shared.find(found.number) else { return libc::EINVAL };
    let all = ibv_srq_attr { srq_limit: shared.limit, ..found.made_with };
    // SAFETY: C contract.
    unsafe { to.write(all) };
    0
}

/// Ends a shared receive queue that no pair uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: C contract.
    let found = unsafe { shared(srq) };
    let mut entered = found.fabric.enter();
    if let Err(error) = entered.net().destroy_shared(found.number) {
        return error;
    }
    let key = (event::SRQ_LIMIT_REACHED, found.srq.handle);
    let ear = entered.state.subjects.remove(&key);
    ear.into_iter().for_each(|ear| ear.events.forget(ear.object));
    drop(entered);
    // SAFETY: C contract: destroyed once.
    drop(unsafe { Box::from_raw(srq.cast::<SharedQueue>()) });
    0
}
