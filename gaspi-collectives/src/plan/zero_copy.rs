//! The messages that are sent without copying their data first.

use std::collections::HashSet;

use crate::steps::Step;

/// Zero-copy sends pay for a member that also receives from this many bytes on, sent in all. Below,
/// what it passes on is in its cache, and copying it once more is as quick or quicker, where ranks
/// share cores too. Measured for two, four and eight members.
const PASSING_MIN: u64 = 128 << 20;

/// The last step that sends to each member, in order; empty where messages are copied.
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

/// The last of the steps that send to a member, for each member, in order.
fn last_sends(steps: &[Step]) -> Vec<usize> {
    let mut seen = HashSet::new();
    let sends_last = |(at, step): (usize, &Step)| match step {
        Step::Send { to, .. } if seen.insert(*to) => Some(at),
        _ => None,
    };
    let mut lasts: Vec<usize> = steps.iter().enumerate().rev().filter_map(sends_last).collect();
    lasts.reverse();
    lasts
}
