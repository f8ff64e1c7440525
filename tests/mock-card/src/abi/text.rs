//! Numbers in words.

use std::ffi::{CStr, c_char};

use libibverbs_sys as sys;

const STATUS: [&CStr; 24] = [
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory management operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"TM error",
    c"TM software rendezvous",
];

const EVENTS: [&CStr; 19] = [
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
];

const PORTS: [&CStr; 6] =
    [c"PORT_NOP", c"PORT_DOWN", c"PORT_INIT", c"PORT_ARMED", c"PORT_ACTIVE", c"PORT_ACTIVE_DEFER"];

fn text(texts: &'static [&CStr], at: u32) -> *const c_char {
    texts.get(at as usize).unwrap_or(&c"unknown").as_ptr()
}

/// A status in words.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_wc_status_str(status: sys::ibv_wc_status) -> *const c_char {
    text(&STATUS, status)
}

/// A kind of event in words.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_event_type_str(event: sys::ibv_event_type) -> *const c_char {
    text(&EVENTS, event)
}

/// The state of a port in words.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_port_state_str(state: sys::ibv_port_state) -> *const c_char {
    text(&PORTS, state)
}

/// A kind of device in words.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_node_type_str(kind: sys::ibv_node_type) -> *const c_char {
    match kind {
        sys::IBV_NODE_CA => c"InfiniBand channel adapter".as_ptr(),
        sys::IBV_NODE_RNIC => c"iWARP NIC".as_ptr(),
        _ => c"unknown".as_ptr(),
    }
}
