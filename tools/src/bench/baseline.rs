//! The limit that an operation is compared with: what the same two processes reach without the
//! library, by the transport that the library uses between them. Each lane has the limit's name.

use crate::measure::Lane;
use crate::memory::LINE;
use crate::pair::{Pair, Way};
use crate::raw_verbs::Verbs;
use crate::shm_baseline::{self, Taken};
use crate::sockets::Waiting::{Blocking, Spinning};
use crate::tcp_baseline;
use crate::verbs_baseline;
use std::time::Duration;

/// Bytes of a request that carries no data, and of an answer that is a number.
const WORD: usize = 8;
/// A message of verbs and the answer to it.
const THERE_AND_BACK: &str = "raw message there and back";
/// What makes gaspi_wait end with a read behind the writes, not with the device's acknowledgement:
/// the first one where it says so, or the second one where messages go by TCP.
const WAIT: &str = "GASPI_IB_WAIT";
const BY_TCP: (&str, &str) = ("GASPI_IB_MESSAGES", "tcp");

/// Of a call that only posts a write.
pub(crate) fn post<'a>(pair: &'a Pair<'a>, size: usize) -> Lane<'a> {
    match pair.way() {
        Way::Tcp(streams) => tcp_baseline::sends(pair, streams, size).named("raw send()"),
        Way::Verbs(verbs) => verbs_baseline::posts(pair, verbs, size).named("raw post"),
        Way::Memory => copy_or_add(pair, size, shm_baseline::copy_out),
    }
}

/// Of one of many small requests.
pub(crate) fn request<'a>(pair: &'a Pair<'a>, size: usize) -> Lane<'a> {
    match pair.way() {
        Way::Tcp(_) | Way::Verbs(_) => post(pair, size),
        Way::Memory => shm_baseline::atomic_add(pair).named("atomic add"),
    }
}

/// Of a write that is complete, while the target does something else.
pub(crate) fn write<'a>(pair: &'a Pair<'a>, size: usize) -> Lane<'a> {
    match pair.way() {
        Way::Tcp(streams) => tcp_baseline::round_trip(pair, streams, (size, WORD), Blocking)
            .named("raw round trip, target asleep"),
        Way::Verbs(verbs) => written(pair, verbs, size),
        Way::Memory => copy_or_add(pair, size, shm_baseline::copy_out),
    }
}

/// By verbs: as gaspi_wait has it complete.
fn written<'a>(pair: &'a Pair<'a>, verbs: &'a Verbs<'a>, size: usize) -> Lane<'a> {
    let asked = std::env::var_os(WAIT);
    let is_asked = |value: &str| asked.as_ref().is_some_and(|asked| asked == value);
    let by_tcp = std::env::var_os(BY_TCP.0).is_some_and(|value| value == BY_TCP.1);
    if is_asked("ack") || !is_asked("read") && !by_tcp {
        return verbs_baseline::write_completed(pair, verbs, size)
            .named("raw write and completion");
    }
    verbs_baseline::write_read_behind(pair, verbs, size).named("raw write, read behind")
}

/// Of a write that a target sees which looks at the last word of its memory; by verbs only, and of
/// so many bytes that there is one.
pub(crate) fn write_polled<'a>(pair: &'a Pair<'a>, size: usize) -> Option<Lane<'a>> {
    match pair.way() {
        Way::Verbs(verbs) if size >= WORD => {
            Some(verbs_baseline::write_polled(pair, verbs, size).named("raw write, memory polled"))
        }
        _ => None,
    }
}

/// Of a write that is complete, with a target that waits in the library.
pub(crate) fn write_attended<'a>(pair: &'a Pair<'a>, size: usize) -> Lane<'a> {
    match pair.way() {
        Way::Tcp(streams) => {
            tcp_baseline::round_trip(pair, streams, (size, WORD), Spinning).named("raw round trip")
        }
        Way::Verbs(_) | Way::Memory => write(pair, size),
    }
}

/// Of a read, while the target does something else.
pub(crate) fn read<'a>(pair: &'a Pair<'a>, size: usize) -> Lane<'a> {
    match pair.way() {
        Way::Tcp(streams) => tcp_baseline::round_trip(pair, streams, (WORD, size), Blocking)
            .named("raw round trip, target asleep"),
        Way::Verbs(verbs) => verbs_baseline::read(pair, verbs, size).named("raw read"),
        Way::Memory => copy_or_add(pair, size, shm_baseline::copy_in),
    }
}

/// Of a read, with a target that waits in the library.
pub(crate) fn read_attended<'a>(pair: &'a Pair<'a>, size: usize) -> Lane<'a> {
    match pair.way() {
        Way::Tcp(streams) => {
            tcp_baseline::round_trip(pair, streams, (WORD, size), Spinning).named("raw round trip")
        }
        Way::Verbs(_) | Way::Memory => read(pair, size),
    }
}

/// Of shared memory a request that moves up to a line costs no more than an atomic addition.
fn copy_or_add<'a>(
    pair: &'a Pair<'a>,
    size: usize,
    copy: fn(&'a Pair<'a>, usize) -> Lane<'a>,
) -> Lane<'a> {
    if size <= LINE {
        shm_baseline::atomic_add(pair).named("atomic add")
    } else {
        copy(pair, size).named("memcpy")
    }
}

/// Of writes one after another.
pub(crate) fn writes<'a>(pair: &'a Pair<'a>, size: usize) -> Lane<'a> {
    match pair.way() {
        Way::Tcp(streams) => tcp_baseline::stream_out(pair, streams).named("raw stream"),
        Way::Verbs(verbs) => verbs_baseline::writes(pair, verbs).named("raw writes"),
        Way::Memory => shm_baseline::copy_out(pair, size).named("memcpy"),
    }
}

/// Of reads one after another.
pub(crate) fn reads<'a>(pair: &'a Pair<'a>, size: usize) -> Lane<'a> {
    match pair.way() {
        Way::Tcp(streams) => tcp_baseline::stream_in(pair, streams).named("raw stream"),
        Way::Verbs(verbs) => verbs_baseline::reads(pair, verbs).named("raw reads"),
        Way::Memory => shm_baseline::copy_in(pair, size).named("memcpy"),
    }
}

/// Of writes by both ranks at once.
pub(crate) fn writes_both_ways<'a>(pair: &'a Pair<'a>, size: usize) -> Lane<'a> {
    match pair.way() {
        Way::Tcp(streams) => {
            tcp_baseline::streams_both_ways(pair, streams).named("raw streams both ways")
        }
        Way::Verbs(verbs) => {
            verbs_baseline::writes_both_ways(pair, verbs).named("raw writes both ways")
        }
        Way::Memory => shm_baseline::copy_both_ways(pair, size).named("memcpy by both"),
    }
}

/// Of data that the target gets to know of.
pub(crate) fn notified<'a>(pair: &'a Pair<'a>, size: usize, taken: Taken) -> Lane<'a> {
    let name = |last, all| if taken == Taken::Last { last } else { all };
    match pair.way() {
        Way::Tcp(streams) => tcp_baseline::one_way(pair, streams, size, taken, Spinning)
            .named(name("raw one way", "raw one way, data read")),
        Way::Verbs(verbs) => verbs_baseline::notified(pair, verbs, size, taken),
        Way::Memory => shm_baseline::notified(pair, size, taken)
            .named(name("data and flag", "data, flag, dirty lines read")),
    }
}

/// The same with a target that sleeps.
pub(crate) fn notified_asleep<'a>(pair: &'a Pair<'a>, size: usize, delay: Duration) -> Lane<'a> {
    match pair.way() {
        Way::Tcp(streams) => tcp_baseline::one_way_asleep(pair, streams, size, delay)
            .named("raw one way, receiver asleep"),
        Way::Verbs(verbs) => verbs_baseline::notified_asleep(pair, verbs, size, delay),
        Way::Memory => {
            shm_baseline::notified_asleep(pair, size, delay).named("data and futex wake")
        }
    }
}

/// Of an atomic operation, while the target does something else.
pub(crate) fn atomic<'a>(pair: &'a Pair<'a>) -> Lane<'a> {
    match pair.way() {
        Way::Tcp(_) => write(pair, WORD),
        Way::Verbs(verbs) => verbs_baseline::round_trip(pair, verbs, WORD, Blocking)
            .named("raw message there and back, target asleep"),
        Way::Memory => shm_baseline::atomic_add(pair).named("atomic add"),
    }
}

/// Of an atomic operation, with a target that waits in the library.
pub(crate) fn atomic_attended<'a>(pair: &'a Pair<'a>) -> Lane<'a> {
    match pair.way() {
        Way::Tcp(_) => write_attended(pair, WORD),
        Way::Verbs(verbs) => {
            verbs_baseline::round_trip(pair, verbs, WORD, Spinning).named(THERE_AND_BACK)
        }
        Way::Memory => shm_baseline::atomic_add(pair).named("atomic add"),
    }
}

/// Of atomic operations by both ranks on one word.
pub(crate) fn atomic_by_both<'a>(pair: &'a Pair<'a>) -> Lane<'a> {
    match pair.way() {
        Way::Tcp(_) => write_attended(pair, WORD),
        Way::Verbs(verbs) => {
            verbs_baseline::round_trip(pair, verbs, WORD, Spinning).named(THERE_AND_BACK)
        }
        Way::Memory => shm_baseline::contended_add(pair).named("atomic add by both"),
    }
}

/// Of ranks that hear of each other, with a payload of `size` bytes.
pub(crate) fn meeting<'a>(pair: &'a Pair<'a>, size: usize, crowded: bool) -> Lane<'a> {
    match pair.way() {
        Way::Tcp(streams) if crowded => {
            tcp_baseline::one_way(pair, streams, size, Taken::Last, Blocking)
                .named("raw one way, blocking")
        }
        Way::Tcp(_) | Way::Verbs(_) => notified(pair, size, Taken::Last),
        Way::Memory => shm_baseline::hand_over(pair).named("line hand-over"),
    }
}
