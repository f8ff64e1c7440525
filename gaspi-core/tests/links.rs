//! What holds however busy, late or full the links between nodes are.

#[macro_use]
mod ranks;

use gaspi_core::*;
use ranks::{LIMIT, Nodes, run_over};
use std::sync::Barrier;
use std::time::{Duration, Instant};

fn main() -> std::process::ExitCode {
    ranks::run_tests([tests()])
}

const S0: SegmentId = SegmentId(0);
const Q0: QueueId = QueueId(0);

fn make(rt: &Runtime, size: u64) {
    rt.segment_create(S0, size, GroupId::ALL, LIMIT, Init::Zeroed).expect("create");
}

/// More ranks than may be about to prove who they are connect to one rank at the same moment.
fn all_ranks_may_turn_to_one_at_once() {
    const RANKS: u32 = 72;
    let config = Config { topology: Topology::Dynamic, ..Config::default() };
    let together = Barrier::new(RANKS as usize);
    run_over(Nodes::Each, RANKS, &config, |rt| {
        together.wait();
        if rt.rank() != Rank(0) {
            rt.ping(Rank(0), LIMIT).expect("it lives");
        }
        together.wait();
        rt.term(LIMIT).expect("term");
    });
}

/// Whoever sends to a rank that leaves meanwhile hears that it has left, never that it died.
fn a_rank_that_leaves_under_traffic_has_left() {
    for round in 0..10 {
        run_over(Nodes::Each, 3, &Config::default(), |rt| {
            make(&rt, 1 << 16);
            rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
            if rt.rank() == Rank(1) {
                rt.term(LIMIT).expect("term");
                return;
            }
            let size = if round % 2 == 0 { 8 } else { 1 << 16 };
            let t = Transfer {
                local: S0,
                local_offset: 0,
                rank: Rank(1),
                remote: S0,
                remote_offset: 0,
                size,
            };
            let reason = loop {
                if let Err(error) = rt.write(&t, Q0, LIMIT).and_then(|()| rt.wait(Q0, LIMIT)) {
                    break error.to_string();
                }
            };
            assert!(!reason.contains("died"), "{reason}");
            let end = Instant::now();
            let state = loop {
                match rt.ping(Rank(1), LIMIT) {
                    Err(Error::RankLeft { .. }) => break "left",
                    Err(Error::RankDied { .. }) => break "died",
                    _ if end.elapsed() > Duration::from_secs(20) => break "unknown",
                    _ => {}
                }
            };
            assert_eq!(state, "left", "after: {reason}");
            rt.term(LIMIT).expect("term");
        });
    }
}

tests! {
    TCP:
        all_ranks_may_turn_to_one_at_once,
        a_rank_that_leaves_under_traffic_has_left;
}
