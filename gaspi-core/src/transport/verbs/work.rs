//! What is said between this rank and its device: requests, completions, errors, and limits.

use crate::ids::{NotificationId, SegmentId};
use crate::wire::message::AtomicOperation;
use libibverbs_sys as sys;
use libibverbs_sys::inline;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::time::Duration;

/// Requests in a send queue.
pub(super) const DEPTH: u32 = 128;
/// Buffers for messages that come; as many as the device allows, where those are fewer.
pub(super) const RECEIVES: u32 = 1024;
/// Bytes that are asked for to go along with a request; less does too.
pub(super) const INLINE: u32 = 220;
/// A message that goes along with its request.
pub(super) type Along = [u8; INLINE as usize];
/// Bytes of a message that does not go along with its request, at most.
pub(super) const BUFFER_BYTES: usize = 256;
/// Tries of a device before a request fails. Seven would mean for ever on some.
pub(super) const RETRIES: u8 = 6;

/// What has become of a work request.
#[derive(Debug, Clone, Copy)]
pub(super) enum Outcome {
    Done,
    Failed { status: u32, vendor: u32 },
}

/// A completion.
#[derive(Debug, Clone, Copy)]
pub(super) struct Completion {
    pub(super) id: u64,
    /// Of the queue pair.
    pub(super) number: u32,
    pub(super) bytes: u32,
    /// What has come along with a write of the peer, which is in its place.
    pub(super) immediate: Option<u32>,
    pub(super) outcome: Outcome,
}

/// A notification as the 32 bits that go along with a write, where it fits: its segment, its
/// number, and a value below 256. The key of the write stands for the generation.
#[inline(always)]
pub(super) fn immediate(
    segment: SegmentId,
    NotificationId(id): NotificationId,
    value: u32,
) -> Option<u32> {
    let fits = value.wrapping_sub(1) < 0xff && id <= 0xffff;
    fits.then_some(u32::from(segment.0) << 24 | id << 8 | value)
}

/// The segment, the number, and the value of a notification.
pub(super) fn notification(immediate: u32) -> (SegmentId, NotificationId, u32) {
    let [segment, _, _, value] = immediate.to_be_bytes();
    (SegmentId(segment), NotificationId(immediate >> 8 & 0xffff), value.into())
}

/// What a pair can do.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Requests in a send queue.
    pub(super) depth: u32,
    /// Bytes that can be sent along with a request.
    pub(super) inline: u32,
    /// Bytes of one request.
    pub(super) message: u64,
    /// Whether a write is done when the peer's device has it.
    pub(super) ends_at_ack: bool,
}

/// Memory of this rank, as the device knows it, and its place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Local {
    pub(crate) address: u64,
    pub(crate) key: Option<u32>,
}

/// Memory of the peer, as its device knows it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Remote {
    pub(crate) address: u64,
    pub(crate) key: u32,
}

/// What a device is to do.
#[derive(Debug)]
pub(super) enum WorkRequest<'a> {
    /// A write of nothing.
    Nothing,
    Write {
        local: Local,
        remote: Remote,
        size: u64,
        /// What goes along with it.
        immediate: Option<u32>,
    },
    Read {
        local: Local,
        remote: Remote,
        size: u64,
    },
    /// An atomic operation, whose result comes to 8 bytes of this rank.
    Atomic {
        local: Local,
        remote: Remote,
        operation: AtomicOperation,
    },
    /// A message.
    Send(&'a [u8]),
}

/// Where an end answers.
#[derive(Debug, Clone, Copy)]
pub(super) struct EndAddress {
    pub(super) gid: [u8; 16],
    pub(super) lid: u16,
    pub(super) mtu: u8,
    pub(super) reads: u8,
}

/// How long requests may take, as devices count it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timing {
    /// 4.096 us times two to this power for each try.
    pub(super) timeout: u8,
}

impl Timing {
    /// Tries that take about so long in all.
    pub(super) fn of(patience: Duration) -> Timing {
        let each = patience.as_nanos() / u128::from(RETRIES + 1) / 4096;
        let power = each.max(1).ilog2().clamp(8, 21);
        Timing { timeout: power as u8 }
    }
}

/// The error that a function of the library has left.
pub(super) fn last_error(what: &str) -> String {
    format!("{what}: {}", io::Error::last_os_error())
}

/// What a function of the library says by its result.
#[inline]
pub(super) fn check(result: i32, what: &str) -> Result<(), String> {
    if result == 0 { Ok(()) } else { Err(refusal(result, what)) }
}

#[cold]
fn refusal(result: i32, what: &str) -> String {
    match result {
        // Some give the error, some -1 and leave it.
        -1 => last_error(what),
        error => format!("{what}: {}", io::Error::from_raw_os_error(error.abs())),
    }
}

/// Completions taken from a queue at once.
pub(super) const BATCH: usize = 16;

/// Completions that were taken. What lies behind them is not initialised, and they stay where they
/// are: a look that finds nothing writes no memory.
///
/// Invariant: the first `count` are what the device has written.
pub(super) struct Completions {
    found: [MaybeUninit<sys::ibv_wc>; BATCH],
    count: usize,
}

impl Completions {
    #[inline]
    pub(super) fn none() -> Completions {
        Completions { found: [const { MaybeUninit::uninit() }; BATCH], count: 0 }
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Forgets them, so that there is room for others.
    pub(super) fn clear(&mut self) {
        self.count = 0;
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Completion> + '_ {
        // SAFETY: by the invariant.
        self.found[..self.count].iter().map(|found| completion(unsafe { found.assume_init_ref() }))
    }

    /// Takes further ones off a queue, as many as there is room for; below 0 if the device cannot
    /// tell any more what has completed.
    pub(super) fn take_from(&mut self, queue: NonNull<sys::ibv_cq>) -> i32 {
        let room = &mut self.found[self.count..];
        // SAFETY: there is room for so many.
        let taken = unsafe {
            inline::ibv_poll_cq(queue.as_ptr(), room.len() as i32, room.as_mut_ptr().cast())
        };
        self.count += usize::try_from(taken).unwrap_or(0).min(room.len());
        taken
    }
}

fn completion(found: &sys::ibv_wc) -> Completion {
    let outcome = match found.status {
        sys::IBV_WC_SUCCESS => Outcome::Done,
        status => Outcome::Failed { status, vendor: found.vendor_err },
    };
    let goes_along = found.opcode == sys::IBV_WC_RECV_RDMA_WITH_IMM;
    // SAFETY: what such a completion has there.
    let immediate = goes_along.then(|| u32::from_be(unsafe { found.__bindgen_anon_1.imm_data }));
    let (id, number, bytes) = (found.wr_id, found.qp_num, found.byte_len);
    Completion { id, number, bytes, immediate, outcome }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notification_goes_along_with_a_write_if_it_fits() {
        let of = |segment, id, value| immediate(SegmentId(segment), NotificationId(id), value);
        for (segment, id, value) in [(0, 0, 1), (254, 0xffff, 255), (1, 0x0203, 4)] {
            let found = of(segment, id, value).map(notification);
            assert_eq!(found, Some((SegmentId(segment), NotificationId(id), value)));
        }
        for (id, value) in [(0, 0), (0, 256), (0, u32::MAX), (0x10000, 1)] {
            assert_eq!(of(1, id, value), None);
        }
    }

    #[test]
    fn all_tries_together_take_about_as_long_as_a_host_is_waited_for() {
        for seconds in [3, 5, 60, 3600] {
            let patience = Duration::from_secs(seconds);
            let Timing { timeout } = Timing::of(patience);
            let each = Duration::from_nanos(4096 << timeout);
            let all = each * u32::from(RETRIES + 1);
            assert!(all <= patience && (all * 2 > patience || timeout == 21), "{seconds}: {all:?}");
        }
    }
}
