//! Completion channels and completion queues.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::zeroed;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use libibverbs_sys as sys;
use sys::{ibv_comp_channel, ibv_context, ibv_cq, ibv_wc};

use super::device::context;
use super::events::Events;
use super::running::{Ear, Fabric};
use super::{code, fail, null};
use crate::model::codes::event;
use crate::model::completion::Completion;

/// Destroying a queue waits for its events to be acknowledged, and gives up with EBUSY after this
/// time, so that a test fails and does not hang.
const UNACKNOWLEDGED: Duration = Duration::from_secs(10);

#[repr(C)]
struct Channel {
    channel: ibv_comp_channel,
    fabric: Arc<Fabric>,
    card: u32,
    events: Arc<Events>,
    queues: AtomicU32,
}

/// A completion queue.
#[repr(C)]
pub(super) struct Queue {
    cq: ibv_cq,
    fabric: Arc<Fabric>,
    pub(super) number: u32,
    ready: Arc<AtomicU32>,
    /// Events that the program took, and acknowledged.
    taken: AtomicU32,
    acknowledged: AtomicU32,
}

/// # Safety
/// A queue of `ibv_create_cq`.
pub(super) unsafe fn queue<'a>(cq: *mut ibv_cq) -> &'a Queue {
    // SAFETY: caller's promise.
    unsafe { &*cq.cast::<Queue>() }
}

/// Makes a completion channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(open: *mut ibv_context) -> *mut ibv_comp_channel {
    // SAFETY: C contract.
    let context = unsafe { context(open) };
    let (fabric, card) = (context.fabric.clone(), context.card);
    let mut entered = fabric.enter();
    if let Err(error) = entered.net().admit(card, "create_comp_channel") {
        return null(error);
    }
    let Ok(events) = Events::new() else { return null(libc::EMFILE) };
    entered.net().card(card).live.channels += 1;
    drop(entered);
    let channel = ibv_comp_channel { context: open, fd: events.raw(), refcnt: 0 };
    let (events, queues) = (Arc::new(events), AtomicU32::new(0));
    Box::into_raw(Box::new(Channel { channel, fabric, card, events, queues })).cast()
}

/// Ends a channel that no queue uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    let whole = channel.cast::<Channel>();
    // SAFETY: C contract: made by `ibv_create_comp_channel`.
    let found = unsafe { &*whole };
    if found.queues.load(Ordering::Relaxed) > 0 {
        return code(Err(libc::EBUSY));
    }
    found.fabric.enter().net().card(found.card).live.channels -= 1;
    // SAFETY: C contract: destroyed once.
    drop(unsafe { Box::from_raw(whole) });
    0
}

/// Makes a completion queue of exactly so many entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    open: *mut ibv_context,
    entries: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    // SAFETY: C contract.
    let context = unsafe { context(open) };
    let fabric = context.fabric.clone();
    if entries < 1 || vector != 0 {
        return null(libc::EINVAL);
    }
    let ready = Arc::new(AtomicU32::new(0));
    let mut entered = fabric.enter();
    let number = match entered.net().create_queue(context.card, entries as u64, ready.clone()) {
        Ok(number) => number,
        Err(error) => return null(error),
    };
    // SAFETY: integers, pointers, and a lock and a condition that are not used.
    let mut cq: ibv_cq = unsafe { zeroed() };
    (cq.context, cq.channel, cq.cq_context) = (open, channel, cq_context);
    (cq.handle, cq.cqe) = (number, entries);
    let (taken, acknowledged) = (AtomicU32::new(0), AtomicU32::new(0));
    let fabric = fabric.clone();
    let made = Box::new(Queue { cq, fabric, number, ready, taken, acknowledged });
    let made = Box::into_raw(made);
    let object = made as usize;
    if !channel.is_null() {
        // SAFETY: C contract: made by `ibv_create_comp_channel`.
        let channel = unsafe { &*channel.cast::<Channel>() };
        channel.queues.fetch_add(1, Ordering::Relaxed);
        let ear = Ear { events: channel.events.clone(), object };
        entered.state.channels.insert(number, ear);
    }
    let ear = Ear { events: context.events.clone(), object };
    entered.state.subjects.insert((event::CQ_ERR, number), ear);
    made.cast()
}

/// Changes the number of entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, entries: c_int) -> c_int {
    // SAFETY: C contract.
    let found = unsafe { queue(cq) };
    let done = found.fabric.enter().net().resize_queue(found.number, entries.max(0) as u64);
    if done.is_ok() {
        // SAFETY: C contract: the program lets nobody else resize it meanwhile.
        unsafe { (*cq).cqe = entries };
    }
    code(done)
}

/// Ends a queue that no pair uses, after its events were acknowledged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: C contract.
    let found = unsafe { queue(cq) };
    if let Err(error) = found.fabric.enter().net().destroy_queue(found.number) {
        return code(Err(error));
    }
    {
        let mut entered = found.fabric.enter();
        for ear in [
            entered.state.channels.remove(&found.number),
            entered.state.subjects.remove(&(event::CQ_ERR, found.number)),
        ] {
            ear.into_iter().for_each(|ear| ear.events.forget(ear.object));
        }
    }
    let start = Instant::now();
    while found.taken.load(Ordering::Acquire) != found.acknowledged.load(Ordering::Acquire) {
        if start.elapsed() > UNACKNOWLEDGED {
            eprintln!(
                "mock card: a completion queue is destroyed before its events are acknowledged"
            );
            return code(Err(libc::EBUSY));
        }
        std::thread::yield_now();
    }
    if !found.cq.channel.is_null() {
        // SAFETY: C contract: the channel outlives its queues.
        let channel = unsafe { &*found.cq.channel.cast::<Channel>() };
        channel.queues.fetch_sub(1, Ordering::Relaxed);
    }
    // SAFETY: C contract: destroyed once.
    drop(unsafe { Box::from_raw(cq.cast::<Queue>()) });
    0
}

/// Waits for an event of a channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: C contract: made by `ibv_create_comp_channel`.
    let channel = unsafe { &*channel.cast::<Channel>() };
    // SAFETY: kept alive. A queue takes its events out of the channel before it ends.
    let noted = |object: usize| unsafe {
        (*(object as *const Queue)).taken.fetch_add(1, Ordering::Release);
    };
    match channel.events.take(noted) {
        Ok((_, object)) => {
            let found = object as *mut ibv_cq;
            // SAFETY: C contract; it stays until its event is acknowledged.
            unsafe { cq.write(found) };
            // SAFETY: C contract; it stays until its event is acknowledged.
            unsafe { cq_context.write((*found).cq_context) };
            0
        }
        Err(error) => {
            fail(error.raw_os_error().unwrap_or(libc::EIO));
            -1
        }
    }
}

/// Acknowledges events.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint) {
    // SAFETY: C contract.
    unsafe { queue(cq) }.acknowledged.fetch_add(count, Ordering::Release);
}

pub(super) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, room: c_int, to: *mut ibv_wc) -> c_int {
    // SAFETY: C contract.
    let found = unsafe { queue(cq) };
    // Acquire: pairs with the Release of who added an entry.
    if !found.fabric.unkind && found.ready.load(Ordering::Acquire) == 0 {
        return 0;
    }
    found.fabric.stay(found.number);
    let mut entered = found.fabric.enter();
    let net = entered.net();
    let mut room = room;
    if found.fabric.unkind {
        net.some_steps();
        // As the standard allows: fewer than there are.
        room = room.min(1 + net.random.below(8) as c_int);
    }
    let Some(card) = net.queues.find(found.number).map(|queue| queue.card) else { return -1 };
    let card = net.card(card);
    card.counters.polls += 1;
    if card.refuse("poll_cq").is_some() {
        return -1;
    }
    for at in 0..room {
        match net.poll(found.number) {
            Ok(Some(completion)) => {
                // SAFETY: C contract: there is room for that many.
                unsafe { to.add(at as usize).write(entry(&completion)) };
            }
            Ok(None) => return at,
            Err(_) if at > 0 => return at,
            Err(_) => return -1,
        }
    }
    room.max(0)
}

fn entry(completion: &Completion) -> ibv_wc {
    // SAFETY: integers.
    let mut entry: ibv_wc = unsafe { zeroed() };
    entry.wr_id = completion.id;
    entry.status = completion.status;
    entry.opcode = completion.opcode;
    entry.vendor_err = if completion.status == 0 { 0 } else { 0x6d };
    entry.byte_len = completion.length;
    entry.__bindgen_anon_1.imm_data = completion.immediate;
    entry.qp_num = completion.pair;
    entry.src_qp = completion.peer;
    entry.wc_flags = completion.flags;
    entry
}

pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: C contract.
    let found = unsafe { queue(cq) };
    found.fabric.enter().net().arm(found.number, solicited_only != 0).err().unwrap_or(0)
}
