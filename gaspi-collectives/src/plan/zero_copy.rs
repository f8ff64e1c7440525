//! The messages that are sent without copying their data first.

use std::collections::{HashMap, HashSet};

use gaspi_core::ZERO_COPY_BYTES;

use crate::steps::Step;

/// Zero-copy sends pay for a member that also receives from this many bytes on, sent in all, unless
/// it passes on most of them soon. Then they are in its cache, and copying them once more is as
/// quick or quicker, where ranks share cores too. Measured for two, four and eight members.
const PASSING_MIN: u64 = 128 << 20;

/// So many bytes are not in the caches when they are used once more.
///
/// Between processes of one machine zero-copy sends by sockets pay from as much data on. Less is in
/// the caches of the sender, and the kernel copies it quicker than it takes pages over one by one;
/// nor does the sender wait for an acknowledgement then. Measured for two and four members.
const CACHED: u64 = 8 << 20;

/// Which messages are sent without copying their data first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct ZeroCopy {
    /// The last step that sends to each member in this way, in order; empty where all messages are
    /// copied.
    pub(crate) lasts: Vec<usize>,
    /// Messages that go by sockets are copied nevertheless: only devices read data where it lies.
    pub(crate) by_devices_only: bool,
}

/// Whether so many bytes are too much for the caches.
pub(crate) const fn exceeds_caches(bytes: u64) -> bool {
    bytes >= CACHED
}

/// How the steps of a member send, whose members are processes of one machine or not. They may be
/// a part of what is sent one after the other, which is too long for the caches.
pub(super) fn sends(steps: &[Step], one_machine: bool, part_of_long: bool) -> ZeroCopy {
    if !pays(steps) {
        return ZeroCopy::default();
    }
    let by_devices_only = one_machine && !part_of_long && !exceeds_caches(bytes_read(steps));
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
    let (mut sent, mut passed_on_soon, mut carried) = (0, 0, 0);
    let mut receives = false;
    // Where messages were received, and how many bytes had been carried then.
    let mut received = HashMap::new();
    for step in steps {
        match *step {
            Step::Send { src, .. } => {
                sent += src.bytes;
                carried += src.bytes;
                let since = received.get(&(src.place, src.offset)).map(|then| carried - then);
                if since.is_some_and(|since| !exceeds_caches(since)) {
                    passed_on_soon += src.bytes;
                }
            }
            Step::Receive { dst, .. } | Step::ReceiveReduce { dst, .. } => {
                receives |= dst.bytes > 0;
                carried += dst.bytes;
                received.insert((dst.place, dst.offset), carried);
            }
            _ => {}
        }
    }
    sent > 0 && (!receives || sent >= PASSING_MIN && passed_on_soon < sent / 2)
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
        let sends = sends(&steps, false, false);
        assert!(!sends.by_devices_only, "of other machines");
        sends.lasts
    }

    #[test]
    fn messages_below_the_least_length_are_copied() {
        let long = ZERO_COPY_BYTES as u64;
        assert!(sends_of(&[(1, 8), (2, long - 1)]).is_empty());
        assert_eq!(sends_of(&[(1, long), (1, 8), (2, long), (2, long), (2, 8)]), [0, 3]);
    }

    /// A member that sends so much, each message of which it has received that many bytes before.
    fn passing(messages: u64, ahead: u64) -> Vec<Step> {
        let bytes = 1 << 20;
        let at = |nth: u64| Span { place: Place::Output(0), offset: nth * bytes, bytes };
        let receive = |nth| Step::Receive { from: 1, dst: at(nth) };
        let mut steps: Vec<Step> = (0..ahead).map(receive).collect();
        for nth in 0..messages {
            steps.push(Step::Send { to: 1, src: at(nth), copied: false });
            steps.push(receive(nth + ahead));
        }
        steps
    }

    #[test]
    fn what_is_passed_on_soon_is_copied() {
        let is_empty = |steps: &[Step]| sends(steps, false, false).lasts.is_empty();
        let many = PASSING_MIN >> 20;
        assert!(is_empty(&passing(many, 1)));
        assert!(!is_empty(&passing(many, CACHED >> 20)));
        assert!(is_empty(&passing(many - 1, CACHED >> 20)), "little in all");
    }

    #[test]
    fn sockets_of_one_machine_copy_what_the_caches_hold() {
        let half = CACHED / 2;
        let by_devices_only = |steps: &[Step]| sends(steps, true, false).by_devices_only;
        assert!(by_devices_only(&[send(1, 0, half), send(1, half, half - 1)]));
        assert!(!by_devices_only(&[send(1, 0, half), send(1, half, half)]));
        // The same data for two members.
        assert!(by_devices_only(&[send(1, 0, half), send(2, 0, half)]));
        assert_eq!(sends(&[send(1, 0, half), send(2, 0, half)], true, false).lasts, [0, 1]);
        // A part of more.
        assert!(!sends(&[send(1, 0, half)], true, true).by_devices_only);
    }
}
