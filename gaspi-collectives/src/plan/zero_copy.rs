//! The messages that are sent without copying their data first.

use std::collections::HashSet;

use crate::steps::Step;

/// Zero-copy sends pay for a member that also receives from this many bytes on, sent in all. Below,
/// what it passes on is in its cache, and copying it once more is as quick. Measured for two and
/// four members.
const PASSING_MIN: u64 = 128 << 20;
/// Where ranks share cores, they also pay up to this many bytes: each rank gets the time that
/// another one saves.
const PASSING_SHARED_CORES_MAX: u64 = 3 << 19;

/// The last step that sends to each member, in order; empty where messages are copied.
pub(super) fn sends(steps: &[Step], shares_cores: bool) -> Vec<usize> {
    if pays(steps, shares_cores) { last_sends(steps) } else { Vec::new() }
}

/// Whether zero-copy sends pay, where they are possible.
fn pays(steps: &[Step], shares_cores: bool) -> bool {
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
    let passing = sent >= PASSING_MIN || shares_cores && sent <= PASSING_SHARED_CORES_MAX;
    sent > 0 && (!receives || passing)
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
