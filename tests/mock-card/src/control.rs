//! What tests do with a fabric that no program could: the C functions `mock_card_*`.
//!
//! A fabric and a device are numbers. Functions return 0, or an error number where they can fail;
//! ENOENT is a fabric that does not exist. [`crate::MockCard`] calls them from Rust, in the
//! library that the program under test has loaded.

use std::ffi::{CStr, c_char, c_int};

use crate::abi::running;
use crate::model::card::{Card, Failure, GidKind, Refusal};
use crate::model::codes::event;
use crate::model::network::{Network, Signal};
use crate::options::Options;

/// Objects that live. At the end of a test all are 0, or the program has leaked.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// Open devices.
    pub contexts: u64,
    /// Protection domains.
    pub domains: u64,
    /// Memory regions.
    pub regions: u64,
    /// Bytes of them.
    pub registered_bytes: u64,
    /// Completion channels.
    pub channels: u64,
    /// Completion queues.
    pub queues: u64,
    /// Shared receive queues.
    pub shared: u64,
    /// Queue pairs.
    pub pairs: u64,
}

impl Live {
    fn add(&mut self, card: &Card) {
        let live = &card.live;
        self.contexts += live.contexts;
        self.domains += live.domains;
        self.regions += card.regions.live;
        self.registered_bytes += card.regions.bytes;
        self.channels += live.channels;
        self.queues += live.queues;
        self.shared += live.shared;
        self.pairs += live.pairs;
    }
}

/// # Safety
/// NULL, or a string.
unsafe fn text<'a>(text: *const c_char) -> Option<&'a str> {
    if text.is_null() {
        return Some("");
    }
    // SAFETY: caller's promise.
    unsafe { CStr::from_ptr(text) }.to_str().ok()
}

/// Does something with a device, which is made if it is the first use of it.
fn with(fabric: u32, device: u32, act: impl FnOnce(&mut Network) -> c_int) -> c_int {
    let Some(fabric) = running::find(fabric) else { return libc::ENOENT };
    let mut entered = fabric.enter();
    entered.net().need_card(device);
    act(entered.net())
}

/// Makes a fabric by the text of its options. Returns its number, or -1 if the text is wrong.
///
/// # Safety
/// `options` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mock_card_fabric_create(options: *const c_char) -> c_int {
    let mut wanted = Options::default();
    // SAFETY: caller's promise.
    let set =
        unsafe { text(options) }.ok_or("no text".to_string()).and_then(|text| wanted.set(text));
    match set {
        Ok(()) => running::create(wanted) as c_int,
        Err(reason) => {
            eprintln!("mock card: {reason}");
            -1
        }
    }
}

/// Ends a fabric and tells what still lives in it.
///
/// # Safety
/// `live` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mock_card_fabric_destroy(fabric: u32, live: *mut Live) -> c_int {
    let Some(fabric) = running::remove(fabric) else { return libc::ENOENT };
    fabric.end();
    let mut found = Live::default();
    fabric.enter().net().cards.iter().for_each(|card| found.add(card));
    if !live.is_null() {
        // SAFETY: caller's promise.
        unsafe { live.write(found) };
    }
    0
}

/// Tells what lives on a device.
///
/// # Safety
/// `live` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mock_card_live(fabric: u32, device: u32, live: *mut Live) -> c_int {
    with(fabric, device, |net| {
        let mut found = Live::default();
        found.add(net.card(device));
        // SAFETY: caller's promise.
        unsafe { live.write(found) };
        0
    })
}

/// From now on this thread lists all devices of this fabric.
#[unsafe(no_mangle)]
pub extern "C" fn mock_card_use(fabric: u32) -> c_int {
    running::choose(fabric, None);
    running::find(fabric).map_or(libc::ENOENT, |_| 0)
}

/// From now on this thread lists only this device, which is made if it does not exist.
#[unsafe(no_mangle)]
pub extern "C" fn mock_card_use_device(fabric: u32, device: u32) -> c_int {
    running::choose(fabric, Some(device));
    with(fabric, device, |_| 0)
}

/// Sets limits and traits of one device by text. What was made before stays.
///
/// # Safety
/// `options` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mock_card_set(fabric: u32, device: u32, options: *const c_char) -> c_int {
    // SAFETY: caller's promise.
    let Some(wanted) = (unsafe { text(options) }) else { return libc::EINVAL };
    with(fabric, device, |net| {
        let mut all = net.options;
        (all.limits, all.traits) = (net.card(device).limits, net.card(device).traits);
        if all.set(wanted).is_err() {
            return libc::EINVAL;
        }
        (net.card(device).limits, net.card(device).traits) = (all.limits, all.traits);
        0
    })
}

/// Takes the port of a device down or up.
#[unsafe(no_mangle)]
pub extern "C" fn mock_card_port(fabric: u32, device: u32, up: c_int) -> c_int {
    with(fabric, device, |net| {
        net.set_port(device, up != 0);
        0
    })
}

/// Sets an entry of the GID table; `kind` is 0 InfiniBand, 1 RoCE v1, 2 RoCE v2. No bytes: empty.
///
/// # Safety
/// `gid` is NULL or has 16 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mock_card_gid(
    fabric: u32,
    device: u32,
    index: u32,
    kind: u32,
    gid: *const [u8; 16],
) -> c_int {
    let kind = match kind {
        0 => GidKind::InfiniBand,
        1 => GidKind::RoceV1,
        _ => GidKind::RoceV2,
    };
    // SAFETY: caller's promise.
    let wanted = (!gid.is_null()).then(|| (unsafe { *gid }, kind));
    with(fabric, device, |net| {
        let Some(entry) = net.card(device).gids.get_mut(index as usize) else {
            return libc::EINVAL;
        };
        *entry = wanted;
        let kind = event::GID_CHANGE;
        net.signal(Signal::Event { card: device, kind, subject: 1 });
        net.retry_others();
        0
    })
}

/// Moves all entries of the GID table by some places, as a port that flaps may do.
#[unsafe(no_mangle)]
pub extern "C" fn mock_card_move_gids(fabric: u32, device: u32, places: u32) -> c_int {
    with(fabric, device, |net| {
        let gids = &mut net.card(device).gids;
        let places = places as usize % gids.len().max(1);
        gids.rotate_right(places);
        let kind = event::GID_CHANGE;
        net.signal(Signal::Event { card: device, kind, subject: 1 });
        0
    })
}

/// A device fails for good; if `removed`, it is not listed any more either.
#[unsafe(no_mangle)]
pub extern "C" fn mock_card_fatal(fabric: u32, device: u32, removed: c_int) -> c_int {
    with(fabric, device, |net| {
        net.set_lost(device, removed != 0);
        0
    })
}

/// Cuts or heals the link between two devices.
#[unsafe(no_mangle)]
pub extern "C" fn mock_card_link(fabric: u32, one: u32, other: u32, up: c_int) -> c_int {
    let link = (one.min(other), one.max(other));
    with(fabric, link.1, |net| {
        if up != 0 {
            net.cuts.remove(&link);
            net.retry_others();
        } else {
            net.cuts.insert(link);
        }
        0
    })
}

/// The ends that a device has of its pairs with another one fail: they flush what they have, and
/// answer nobody.
#[unsafe(no_mangle)]
pub extern "C" fn mock_card_break(fabric: u32, device: u32, other: u32) -> c_int {
    with(fabric, device, |net| {
        net.break_pairs(device, other, false);
        0
    })
}

/// The same, of which the device tells by events.
#[unsafe(no_mangle)]
pub extern "C" fn mock_card_break_told(fabric: u32, device: u32, other: u32) -> c_int {
    with(fabric, device, |net| {
        net.break_pairs(device, other, true);
        0
    })
}

/// The n-th request from now of a pair, or of any pair of the device if 0, completes with this
/// status and is not carried out. With 65,536 added to the status it is, and its answer is lost.
#[unsafe(no_mangle)]
pub extern "C" fn mock_card_fail(
    fabric: u32,
    device: u32,
    pair: u32,
    nth: u64,
    status: u32,
) -> c_int {
    plan_failure(fabric, device, Failure { pair, atomic: false, remaining: nth, status })
}

/// As [`mock_card_fail`], of the atomic operations of all pairs of the device.
#[unsafe(no_mangle)]
pub extern "C" fn mock_card_fail_atomic(fabric: u32, device: u32, nth: u64, status: u32) -> c_int {
    plan_failure(fabric, device, Failure { pair: 0, atomic: true, remaining: nth, status })
}

fn plan_failure(fabric: u32, device: u32, failure: Failure) -> c_int {
    if failure.remaining == 0 || failure.status == 0 {
        return libc::EINVAL;
    }
    with(fabric, device, |net| {
        net.card(device).faults.failures.push(failure);
        0
    })
}

/// The n-th call from now is refused with this error number. Calls are named by the verb without
/// `ibv_`: open_device, query_device, query_port, query_gid, alloc_pd, reg_mr,
/// create_comp_channel, create_cq, resize_cq, create_srq, create_qp, modify_qp, query_qp,
/// post_send, post_recv, post_srq_recv (these three for each request of a list), poll_cq.
///
/// # Safety
/// `call` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mock_card_refuse(
    fabric: u32,
    device: u32,
    call: *const c_char,
    nth: u64,
    error: c_int,
) -> c_int {
    const CALLS: [&str; 17] = [
        "open_device",
        "query_device",
        "query_port",
        "query_gid",
        "alloc_pd",
        "reg_mr",
        "create_comp_channel",
        "create_cq",
        "resize_cq",
        "create_srq",
        "create_qp",
        "modify_qp",
        "query_qp",
        "post_send",
        "post_recv",
        "post_srq_recv",
        "poll_cq",
    ];
    // SAFETY: caller's promise.
    let Some(call) = (unsafe { text(call) }).filter(|call| CALLS.contains(call)) else {
        return libc::EINVAL;
    };
    if nth == 0 || error == 0 {
        return libc::EINVAL;
    }
    with(fabric, device, |net| {
        let call = call.to_string();
        net.card(device).faults.refusals.push(Refusal { call, remaining: nth, error });
        0
    })
}

/// The program of a device is stopped, or goes on: it polls nothing and hears of nothing.
#[unsafe(no_mangle)]
pub extern "C" fn mock_card_stop(fabric: u32, device: u32, stopped: c_int) -> c_int {
    with(fabric, device, |net| {
        net.card(device).faults.stopped = stopped != 0;
        0
    })
}

/// The requests of a device stay in its send queues, or leave them (0); what others send to it
/// comes. However long that takes is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn mock_card_hold(fabric: u32, device: u32, held: c_int) -> c_int {
    with(fabric, device, |net| {
        net.card(device).faults.held = held != 0;
        net.retry_others();
        0
    })
}

/// A thread that takes completions from a device stays in that call, until it may go on (0), as if
/// it did not run meanwhile.
#[unsafe(no_mangle)]
pub extern "C" fn mock_card_keep(fabric: u32, device: u32, keeps: c_int) -> c_int {
    let done = with(fabric, device, |net| {
        net.card(device).faults.keeps = keeps != 0;
        0
    });
    if let Some(fabric) = running::find(fabric) {
        fabric.look_for_kept();
    }
    done
}

/// Lets time pass.
#[unsafe(no_mangle)]
pub extern "C" fn mock_card_advance(fabric: u32, ns: u64) -> c_int {
    let Some(fabric) = running::find(fabric) else { return libc::ENOENT };
    fabric.advance(ns);
    fabric.settle();
    0
}

/// Does all that can be done before time passes or a program does something.
#[unsafe(no_mangle)]
pub extern "C" fn mock_card_settle(fabric: u32) -> c_int {
    let Some(fabric) = running::find(fabric) else { return libc::ENOENT };
    fabric.settle();
    0
}

/// A counter of a device: write, write_imm, send, send_imm, read, compare_swap, fetch_add, inline,
/// signaled, solicited, receives, completions, errors, events, posts (calls), polls (calls that
/// looked), kept (calls that had to stay), not_ready (requests that found no receive), relaxed
/// (registrations with relaxed ordering), written (bytes); service_level, traffic_class, pkey_index
/// (of the pair that was connected last).
/// `u64::MAX` if there is no such counter.
///
/// # Safety
/// `name` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mock_card_counter(fabric: u32, device: u32, name: *const c_char) -> u64 {
    // SAFETY: caller's promise.
    let name = unsafe { text(name) }.unwrap_or("");
    let mut found = None;
    with(fabric, device, |net| {
        found = counter(net.card(device), name);
        0
    });
    found.unwrap_or(u64::MAX)
}

fn counter(card: &Card, name: &str) -> Option<u64> {
    const REQUESTS: [&str; 7] =
        ["write", "write_imm", "send", "send_imm", "read", "compare_swap", "fetch_add"];
    let counters = &card.counters;
    if let Some(at) = REQUESTS.iter().position(|request| *request == name) {
        return Some(counters.requests.number[at]);
    }
    Some(match name {
        "written" => counters.requests.size[0] + counters.requests.size[1],
        "inline" => counters.inline,
        "signaled" => counters.signaled,
        "solicited" => counters.solicited,
        "receives" => counters.receives,
        "completions" => counters.completions,
        "errors" => counters.errors,
        "events" => counters.events,
        "posts" => counters.posts,
        "polls" => counters.polls,
        "kept" => card.faults.kept,
        "not_ready" => counters.not_ready,
        "relaxed" => counters.relaxed,
        "service_level" => counters.service_level,
        "traffic_class" => counters.traffic_class,
        "pkey_index" => counters.pkey_index,
        _ => return None,
    })
}
