//! The messages that are sent without copying their data first.

use std::collections::HashSet;

use gaspi_core::ZERO_COPY_BYTES;

use crate::steps::Step;

/// Zero-copy sends pay for a member that also receives from this many bytes on, sent in all. Below,
/// what it passes on is in its cache, and copying it once more is as quick or quicker, where ranks
/// share cores too. Measured for two, four and eight members.
const PASSING_MIN: u64 = 128 << 20;

/// Between processes of one machine zero-copy sends by sockets pay from this many bytes of data on.
/// Less is in the caches of the sender, and the kernel copies it quicker than it takes pages over
/// one by one; nor does the sender wait for an acknowledgement then. Measured for two and four
/// members.
const ONE_MACHINE_MIN: u64 = 8 << 20;

/// Which messages are sent without copying their data first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct ZeroCopy {
    /// The last step that sends to each member in this way, in order; empty where all messages are
    /// copied.
    pub(crate) lasts: Vec<usize>,
    /// Messages that go by sockets are copied nevertheless: only devices read data where it lies.
    pub(crate) by_devices_only: bool,
}

/// How the steps of a member send, whose members are processes of one machine or not.
pub(super) fn sends(steps: &[Step], one_machine: bool) -> ZeroCopy {
    if !pays(steps) {
        return ZeroCopy::default();
    }
    let by_devices_only = one_machine && bytes_read(steps) < ONE_MACHINE_MIN;
    ZeroCopy { lasts: last_sends(steps), by_devices_only }
}

/// Bytes of memory that messages are sent from: what goes to several members is read by the first
/// message, and then in the caches.
fn bytes_read(steps: &[Step]) -> u64 {
    let mut seen = HashSet::new();
    let read = |step: &Step| match step {
        Step::Send { src, .. } if seen.insert((src.place, src.offset)) => src.bytes,
        _ => 0,
    };
    steps.iter().map(read).sum()
}

/// Whether zero-copy sends pay, where they are possible.
fn pays(steps: &[Step]) -> bool {
    let mut sent = 0;
    let mut receives = false;
    for step in steps {
        match step {
            Step::Send { src, .. } => sent += src.bytes,
            Step::Receive { dst, .. } | Step::ReceiveReduce { dst, .. } => {
                receives |= dst.bytes > 0
            }
            _ => {}
        }
    }
    sent > 0 && (!receives || sent >= PASSING_MIN)
}

/// The last of the steps that send so much to a member that it may stay where it is, for each
/// member, in order.
fn last_sends(steps: &[Step]) -> Vec<usize> {
    let mut seen = HashSet::new();
    let is_long = |bytes: u64| bytes >= ZERO_COPY_BYTES as u64;
    let sends_last = |(at, step): (usize, &Step)| match step {
        Step::Send { to, src, .. } if is_long(src.bytes) && seen.insert(*to) => Some(at),
        _ => None,
    };
    let mut lasts: Vec<usize> = steps.iter().enumerate().rev().filter_map(sends_last).collect();
    lasts.reverse();
    lasts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::{Place, Span};

    fn send(to: u32, offset: u64, bytes: u64) -> Step {
        let src = Span { place: Place::Input(0), offset, bytes };
        Step::Send { to, src, copied: false }
    }

    fn sends_of(lengths: &[(u32, u64)]) -> Vec<usize> {
        let steps: Vec<Step> = lengths.iter().map(|(to, bytes)| send(*to, 0, *bytes)).collect();
        let sends = sends(&steps, false);
        assert!(!sends.by_devices_only, "of other machines");
        sends.lasts
    }

    #[test]
    fn messages_below_the_least_length_are_copied() {
        let long = ZERO_COPY_BYTES as u64;
        assert!(sends_of(&[(1, 8), (2, long - 1)]).is_empty());
        assert_eq!(sends_of(&[(1, long), (1, 8), (2, long), (2, long), (2, 8)]), [0, 3]);
    }

    #[test]
    fn sockets_of_one_machine_copy_what_the_caches_hold() {
        let half = ONE_MACHINE_MIN / 2;
        let by_devices_only = |steps: &[Step]| sends(steps, true).by_devices_only;
        assert!(by_devices_only(&[send(1, 0, half), send(1, half, half - 1)]));
        assert!(!by_devices_only(&[send(1, 0, half), send(1, half, half)]));
        // The same data for two members.
        assert!(by_devices_only(&[send(1, 0, half), send(2, 0, half)]));
        assert_eq!(sends(&[send(1, 0, half), send(2, 0, half)], true).lasts, [0, 1]);
    }
}
