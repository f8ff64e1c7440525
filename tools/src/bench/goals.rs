//! Goals of the library in terms of the limits that rows show.

use crate::row::{Comparison, Row};

/// What a row has to show.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Goal {
    /// Time in terms of the limit's.
    AtMost(f64),
    /// Share of the limit.
    AtLeast(f64),
    /// Millions in a second.
    Rate(f64),
}

impl Goal {
    /// Whether a row reaches it; nothing if that cannot be said.
    pub(crate) fn is_met(self, row: &Row) -> Option<bool> {
        Some(match self {
            Goal::AtMost(most) => row.of_limit()? <= most,
            Goal::AtLeast(least) => row.of_limit()? >= least,
            Goal::Rate(least) => row.rate()? >= least,
        })
    }

    /// As a number, for programs.
    pub(crate) fn figure(self) -> f64 {
        match self {
            Goal::AtMost(figure) | Goal::AtLeast(figure) | Goal::Rate(figure) => figure,
        }
    }
}

/// One line of the table of goals.
struct Entry {
    test: &'static str,
    variant: &'static str,
    /// Bytes, from and to; a row without a size matches any.
    sizes: (usize, usize),
    /// Ranks, from and to.
    ranks: (usize, usize),
    goal: Goal,
}

const ANY: (usize, usize) = (0, usize::MAX);
const EIGHT: (usize, usize) = (8, 8);
const BULK: (usize, usize) = (64 << 10, 16 << 20);
const VERBS_BULK: (usize, usize) = (64 << 10, 8 << 20);
const STREAM: (usize, usize) = (256 << 10, 64 << 20);
const PAIR: (usize, usize) = (2, 2);

const fn entry(
    test: &'static str,
    variant: &'static str,
    sizes: (usize, usize),
    ranks: (usize, usize),
    goal: Goal,
) -> Entry {
    Entry { test, variant, sizes, ranks, goal }
}

/// Within a machine.
const SHM: [Entry; 16] = [
    entry("write-notify-lat", "notified", EIGHT, PAIR, Goal::AtMost(1.15)),
    entry("write-notify-lat", "taken", BULK, PAIR, Goal::AtLeast(0.9)),
    entry("notify-rate", "waitsome-test", ANY, PAIR, Goal::AtMost(2.5)),
    entry("write-lat", "post", EIGHT, PAIR, Goal::AtMost(2.5)),
    entry("write-lat", "post+wait", EIGHT, PAIR, Goal::AtMost(4.0)),
    entry("atomic-lat", "fetch_add", ANY, PAIR, Goal::AtMost(3.0)),
    entry("write-bw", "write", BULK, PAIR, Goal::AtLeast(0.9)),
    entry("read-bw", "read", BULK, PAIR, Goal::AtLeast(0.9)),
    entry("barrier", "barrier", ANY, PAIR, Goal::AtMost(3.0)),
    entry("barrier", "barrier", ANY, (4, 4), Goal::AtMost(4.0)),
    entry("barrier", "barrier", ANY, (8, 8), Goal::AtMost(8.0)),
    entry("barrier", "barrier", ANY, (16, 16), Goal::AtMost(12.0)),
    entry("allreduce-standard", "sum f64", EIGHT, PAIR, Goal::AtMost(4.5)),
    entry("write-rate", "threads", EIGHT, PAIR, Goal::AtLeast(0.8)),
    entry("fusion", "wire bf16", LARGE, ANY, Goal::AtMost(1.3)),
    entry("fusion", "wire f16", LARGE, ANY, Goal::AtMost(1.3)),
];

/// Between processes connected by TCP, wherever they run.
const TCP: [Entry; 7] = [
    entry("write-notify-lat", "notified", EIGHT, PAIR, Goal::AtMost(1.25)),
    entry("write-notify-lat", "notified, asleep", EIGHT, PAIR, Goal::AtMost(1.3)),
    entry("write-bw", "write", STREAM, PAIR, Goal::AtLeast(0.9)),
    entry("write-bw", "both ways", STREAM, PAIR, Goal::AtLeast(0.9)),
    entry("write-rate", "1 thread", EIGHT, PAIR, Goal::Rate(2.0)),
    entry("notify-rate", "notify", ANY, PAIR, Goal::Rate(2.0)),
    entry("atomic-lat", "fetch_add", ANY, PAIR, Goal::AtMost(1.3)),
];

/// By verbs, in terms of raw requests between the same processes.
const VERBS: [Entry; 9] = [
    entry("write-lat", "memory polled", EIGHT, PAIR, Goal::AtMost(1.1)),
    entry("write-lat", "post+wait", EIGHT, PAIR, Goal::AtMost(1.1)),
    entry("read-lat", "read+wait", EIGHT, PAIR, Goal::AtMost(1.1)),
    entry("write-notify-lat", "notified", EIGHT, PAIR, Goal::AtMost(1.15)),
    entry("write-notify-lat", "notified, beside a write", EIGHT, PAIR, Goal::AtMost(1.25)),
    entry("write-bw", "write", VERBS_BULK, PAIR, Goal::AtLeast(0.95)),
    entry("read-bw", "read", VERBS_BULK, PAIR, Goal::AtLeast(0.95)),
    entry("atomic-lat", "fetch_add", ANY, PAIR, Goal::AtMost(1.25)),
    entry("barrier", "barrier", ANY, PAIR, Goal::AtMost(1.3)),
];

/// Tensors of a large model, and of one of some hundred short ones.
const LARGE: (usize, usize) = (32 << 20, usize::MAX);
const SHORT: (usize, usize) = (512 << 10, 2 << 20);

/// Fused buffers and lists of pieces, whatever carries them.
const FUSED: [Entry; 8] = [
    entry("fusion", "in place", LARGE, ANY, Goal::AtMost(1.1)),
    entry("fusion", "in place", SHORT, ANY, Goal::AtMost(1.5)),
    entry("fusion", "private, lent", LARGE, ANY, Goal::AtMost(1.2)),
    entry("fusion", "with computing", LARGE, ANY, Goal::AtMost(1.05)),
    entry("fusion", "CPU, with computing", LARGE, ANY, Goal::AtMost(1.1)),
    entry("fusion", "CPU at rest", ANY, ANY, Goal::AtMost(1.0)),
    entry("fusion", "stable", LARGE, ANY, Goal::AtMost(1.1)),
    entry("broadcast-list", "pieces", LARGE, ANY, Goal::AtMost(1.1)),
];

/// What the choice of an algorithm may cost in terms of the best, if that is not within the noise.
const CHOICE: f64 = 1.1;

/// Bytes from which a ring has to carry [`RING_SHARE`] of what writes from rank to rank do.
const RING_FROM: usize = 4 << 20;
const RING_SHARE: f64 = 0.85;

/// What a collective operation is to reach beside others.
fn comparison(row: &Row) -> Option<Goal> {
    let moved = row.moved.as_ref()?;
    match moved.comparison? {
        Comparison::Algorithms | Comparison::Modes if row.limit.is_some() => {
            let noise = row.samples.noise().unwrap_or_default();
            Some(Goal::AtMost(CHOICE.max(1.0 + noise)))
        }
        Comparison::Writes
            if moved.algorithm.as_deref() == Some("ring")
                && row.size.is_some_and(|size| size >= RING_FROM) =>
        {
            Some(Goal::AtLeast(RING_SHARE))
        }
        _ => None,
    }
}

/// What this row is to reach, if anything.
pub(crate) fn of(row: &Row, ranks: usize, transport: &str) -> Option<Goal> {
    if row.limit_is_goal {
        return Some(Goal::AtMost(1.0));
    }
    if row.moved.is_some() {
        return comparison(row);
    }
    let within = |(from, to): (usize, usize), value: usize| (from..=to).contains(&value);
    let goals: &[Entry] = match transport {
        "shm" => &SHM,
        "tcp" => &TCP,
        "verbs" => &VERBS,
        _ => &[],
    };
    let found = goals.iter().chain(&FUSED).find(|entry| {
        entry.test == row.test
            && entry.variant == row.variant
            && row.size.is_none_or(|size| within(entry.sizes, size))
            && within(entry.ranks, ranks)
    });
    found.map(|entry| entry.goal)
}
