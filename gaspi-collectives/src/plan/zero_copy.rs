//! The messages that are sent without copying their data first.

use std::collections::HashSet;

use gaspi_core::ZERO_COPY_BYTES;

use crate::steps::Step;

/// Zero-copy sends pay for a member that also receives from this many bytes on, sent in all. Below,
/// what it passes on is in its cache, and copying it once more is as quick or quicker, where ranks
/// share cores too. Measured for two, four and eight members.
const PASSING_MIN: u64 = 128 << 20;

/// The last step that sends to each member without copying, in order; empty where all messages are
/// copied.
pub(super) fn sends(steps: &[Step]) -> Vec<usize> {
    if pays(steps) { last_sends(steps) } else { Vec::new() }
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

    fn sends_of(lengths: &[(u32, u64)]) -> Vec<usize> {
        let send = |&(to, bytes): &(u32, u64)| {
            let src = Span { place: Place::Input(0), offset: 0, bytes };
            Step::Send { to, src, copied: false }
        };
        sends(&lengths.iter().map(send).collect::<Vec<_>>())
    }

    #[test]
    fn messages_below_the_least_length_are_copied() {
        let long = ZERO_COPY_BYTES as u64;
        assert!(sends_of(&[(1, 8), (2, long - 1)]).is_empty());
        assert_eq!(sends_of(&[(1, long), (1, 8), (2, long), (2, long), (2, 8)]), [0, 3]);
    }
}
