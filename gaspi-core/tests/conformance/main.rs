//! GASPI as programs rely on it, chapter by chapter, over ranks that are threads.

#[macro_use]
#[path = "../ranks/mod.rs"]
mod ranks;

mod atomics;
mod budgets;
mod channels;
mod collectives;
mod device_atomics;
mod device_channels;
mod device_cuts;
mod device_deaths;
mod device_faults;
mod device_lists;
mod device_only;
mod device_order;
mod device_pairs;
mod device_returns;
mod device_stops;
mod device_streams;
mod device_waits;
mod devices;
mod general;
mod groups;
mod leaders;
mod lifecycle;
mod many;
mod news;
mod notifications;
mod one_sided;
mod overview;
mod passive;
mod queues;
mod segments;
mod sharing;
mod soak;
mod statistics;
mod verbs;
mod windows;

use gaspi_core::*;
use ranks::{LIMIT, Nodes, die, others, run, run_owned, run_with};
use std::time::Duration;

fn main() -> std::process::ExitCode {
    ranks::run_tests([
        atomics::tests(),
        budgets::tests(),
        channels::tests(),
        channels::setup::tests(),
        collectives::tests(),
        device_atomics::tests(),
        device_channels::tests(),
        device_cuts::tests(),
        device_deaths::tests(),
        device_faults::tests(),
        device_only::tests(),
        device_lists::tests(),
        device_order::tests(),
        device_pairs::tests(),
        device_returns::tests(),
        device_stops::tests(),
        device_streams::tests(),
        device_waits::tests(),
        devices::tests(),
        general::tests(),
        groups::tests(),
        leaders::tests(),
        lifecycle::tests(),
        many::tests(),
        news::tests(),
        notifications::tests(),
        one_sided::tests(),
        overview::tests(),
        passive::tests(),
        queues::tests(),
        segments::tests(),
        sharing::tests(),
        soak::tests(),
        statistics::tests(),
        verbs::tests(),
        windows::tests(),
    ])
}

const SIZES: [u32; 6] = [1, 2, 3, 5, 8, 16];
const S0: SegmentId = SegmentId(0);
const S1: SegmentId = SegmentId(1);
const S2: SegmentId = SegmentId(2);
const Q0: QueueId = QueueId(0);
const Q1: QueueId = QueueId(1);

/// Ten times what any call that may not wait needs, on a machine with three times as much to do as
/// it has cores.
const AT_ONCE: Duration = Duration::from_secs(10);

fn get_u64(rt: &Runtime, segment: SegmentId, offset: u64) -> u64 {
    let mut bytes = [0; 8];
    rt.segment_read(segment, offset, &mut bytes).expect("inside");
    u64::from_ne_bytes(bytes)
}

fn put_u64(rt: &Runtime, segment: SegmentId, offset: u64, value: u64) {
    rt.segment_write(segment, offset, &value.to_ne_bytes()).expect("inside");
}

fn all(rt: &Runtime) -> impl Iterator<Item = Rank> + use<> {
    (0..rt.size()).map(|rank| Rank(rank as u16))
}

fn meet(rt: &Runtime) {
    rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
}

/// A zeroed segment on all ranks.
fn make(rt: &Runtime, segment: SegmentId, size: u64) {
    rt.segment_create(segment, size, GroupId::ALL, LIMIT, Init::Zeroed).expect("create");
}

/// 8 bytes at 0 of the local S0 to or from 8 of the S0 of `rank`.
fn eight(rank: Rank) -> Transfer {
    Transfer { local: S0, local_offset: 0, rank, remote: S0, remote_offset: 8, size: 8 }
}

/// Asserts that a call fails in this way.
macro_rules! fails {
    ($call:expr, $pattern:pat $(if $guard:expr)?) => {
        match $call {
            Err($pattern) $(if $guard)? => {}
            other => panic!("{}: {other:?}", stringify!($call)),
        }
    };
}
pub(crate) use fails;

/// Waits for what all ranks know within a second.
fn soon(what: &str, happened: impl Fn() -> bool) {
    let started = ranks::now();
    while !happened() {
        assert!(ranks::now() - started < Duration::from_secs(10), "{what}: not after 10 s");
        ranks::pause();
    }
}

/// Runs a call that has to end within `limit`.
fn within<T>(limit: Duration, what: &str, call: impl FnOnce() -> T) -> T {
    let started = ranks::now();
    let result = call();
    let took = ranks::now() - started;
    assert!(took <= limit, "{what} took {took:?}, which is more than {limit:?}");
    result
}
