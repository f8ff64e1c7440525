//! Peers that are stopped while a pair is made, and ports that come back with their GIDs elsewhere.

use super::budgets::{goes_by_device, until_by_device};
use super::device_returns::failed;
use super::verbs::LIMIT_OF_CHANGE;
use super::*;
use crate::ranks::{run_owned_with_devices, run_without_messages};
use gaspi_mock_card::Fabric;
use std::sync::Barrier;

const SIZE: u32 = 4;
const STOPPED: Rank = Rank(1);
const CARD: u32 = 1;
/// On another node than rank 0, in all layouts.
const OTHER: Rank = Rank(3);
/// Of waits while the peer is stopped.
const SHORT: Timeout = Timeout::Millis(50);
/// What each rank gets at each stage, in bytes.
const BLOCK: u64 = 1024;

/// When the peer stops.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    /// It hears no offer.
    Unheard,
    /// It has made its end, and so much later: its answers may have gone, or not.
    Made { spins: u32 },
    /// All has been said, and what its device is to prove the way with does not leave.
    Proving,
    /// All has been said, and what proves the way of the other rank does not leave.
    Proven,
}

/// A pair for each queue, whose number is the stage's.
const STAGES: [Stage; 8] = [
    Stage::Unheard,
    Stage::Made { spins: 0 },
    Stage::Made { spins: 1000 },
    Stage::Made { spins: 10_000 },
    Stage::Made { spins: 100_000 },
    Stage::Proving,
    Stage::Proven,
    Stage::Unheard,
];

/// Has the threads of the peer stop where they take completions: its own one calls nothing.
fn stop(fabric: &Fabric, stage: Stage, pairs: u64, begun: &Barrier) {
    if let Stage::Made { spins } = stage {
        begun.wait();
        soon("an end", || fabric.live(CARD).pairs > pairs);
        (0..spins).for_each(|_| std::hint::spin_loop());
    }
    match stage {
        Stage::Proving => fabric.hold(CARD, 1),
        Stage::Proven => fabric.hold(0, 1),
        Stage::Unheard | Stage::Made { .. } => fabric.keep(CARD, 1),
    }
    if !matches!(stage, Stage::Made { .. }) {
        begun.wait();
    }
}

fn go_on(fabric: &Fabric) {
    fabric.keep(CARD, 0);
    fabric.hold(CARD, 0);
    fabric.hold(0, 0);
}

/// The data of a stage, at its place.
fn part(peer: Rank, stage: u64) -> Transfer {
    let (local_offset, remote_offset) = (stage * BLOCK, 8192 + stage * BLOCK);
    Transfer { local: S0, local_offset, rank: peer, remote: S0, remote_offset, size: BLOCK }
}

fn block(stage: u64) -> Vec<u8> {
    vec![stage as u8 + 1; BLOCK as usize]
}

/// Writes to both by the queue of the stage, and waits several times, or until all has come.
fn write_beside_a_stopped_peer(rt: &Runtime, fabric: &Fabric, nth: u64, pairs: u64) {
    let (stage, queue) = (STAGES[nth as usize], QueueId(nth as u8));
    rt.segment_write(S0, nth * BLOCK, &block(nth)).expect("inside");
    let id = NotificationId(nth as u32);
    for peer in [STOPPED, OTHER] {
        let t = part(peer, nth);
        within(AT_ONCE, "a write", || rt.write_notify(&t, id, 1, queue, LIMIT)).expect("posted");
    }
    let is_over = |outcome: Result<()>| match outcome {
        Ok(()) => true,
        Err(Error::Timeout { .. }) => false,
        Err(error) => panic!("{stage:?}: {error}"),
    };
    for _ in 0..3 {
        let done = within(AT_ONCE, "a wait", || is_over(rt.wait(queue, SHORT)));
        let may_end = match stage {
            Stage::Unheard => false,
            // The stream has it where it may.
            Stage::Proven => Nodes::of_this_test() == Nodes::VerbsPairs,
            Stage::Made { .. } | Stage::Proving => true,
        };
        assert!(!done || may_end, "{stage:?}");
    }
    if stage == Stage::Unheard {
        assert_eq!(fabric.live(CARD).pairs, pairs, "the peer has made an end");
    }
    assert_eq!(rt.state(STOPPED), Ok(State::Healthy), "{stage:?}");
}

fn a_peer_that_is_stopped_while_a_pair_is_made_costs_time_only() {
    let [begun, stopped, told] = std::array::from_fn(|_| Barrier::new(2));
    let gone_on = Barrier::new(SIZE as usize);
    run_without_messages(SIZE, "", |rt, fabric| {
        make(rt, S0, 32 * BLOCK);
        for (nth, stage) in (0..).zip(STAGES) {
            let (queue, id) = (QueueId(nth as u8), NotificationId(nth as u32));
            meet(rt);
            // Nothing is made or ended meanwhile.
            let pairs = fabric.live(CARD).pairs;
            gone_on.wait();
            let arrives = || {
                rt.notify_waitsome(S0, id.0, 1, LIMIT).expect("it comes");
                assert_eq!(rt.notify_reset(S0, id), Ok(1));
                let mut found = block(99);
                rt.segment_read(S0, 8192 + nth * BLOCK, &mut found).expect("inside");
                assert!(found == block(nth), "{stage:?}: {found:?}");
            };
            if rt.rank() == STOPPED {
                stop(fabric, stage, pairs, &begun);
                stopped.wait();
                gone_on.wait();
                arrives();
            } else if rt.rank() == Rank(0) {
                begun.wait();
                write_beside_a_stopped_peer(rt, fabric, nth, pairs);
                if stage != Stage::Proven {
                    told.wait();
                }
                // It may be late, and must not stop behind this.
                stopped.wait();
                go_on(fabric);
                gone_on.wait();
                within(AT_ONCE, "the rest", || rt.wait(queue, LIMIT)).expect("all has come");
            } else if rt.rank() == OTHER {
                // By the same queue, while the peer is stopped; but this device is held, too.
                if stage != Stage::Proven {
                    within(AT_ONCE, "what a bystander gets", arrives);
                    told.wait();
                }
                gone_on.wait();
                if stage == Stage::Proven {
                    arrives();
                }
            } else {
                gone_on.wait();
            }
        }
        meet(rt);
        if rt.rank() == Rank(0) {
            assert_eq!(rt.pairs().map(|pairs| pairs.failed), Some(0), "no pair has ended");
            (0..8).for_each(|queue| until_by_device(rt, STOPPED, QueueId(queue)));
        }
        meet(rt);
    });
}

/// How the peer ends at a stage.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Dies,
    Leaves,
}

/// It ends where it stands. Its own threads go on, since it ends with them, but for what is held.
fn end(rt: Runtime, fabric: &Fabric, end: End) {
    std::thread::scope(|scope| {
        scope.spawn(|| fabric.keep(CARD, 0));
        match end {
            End::Dies => die(rt),
            End::Leaves => rt.term(LIMIT).expect("it leaves in order"),
        }
    });
    go_on(fabric);
}

/// Rank 0 hears of the end, and reaches another peer by the same queue.
fn outlast(rt: &Runtime, nth: u64) {
    let (stage, queue) = (STAGES[nth as usize], QueueId(nth as u8));
    within(LIMIT_OF_CHANGE, "the end of the peer", || {
        let write = || rt.write(&part(STOPPED, nth), queue, LIMIT);
        while write().and_then(|()| rt.wait(queue, LIMIT)).is_ok() {}
    });
    rt.queue_purge(queue, LIMIT).expect("purge");
    let (t, id) = (part(OTHER, nth), NotificationId(AGAIN));
    rt.write_notify(&t, id, 1, queue, LIMIT).expect("posted");
    let waited = within(LIMIT_OF_CHANGE, "a wait", || rt.wait(queue, LIMIT));
    assert_eq!(waited, Ok(()), "{stage:?}");
}

/// A notification behind the end of the peer.
const AGAIN: u32 = 100;

fn a_peer_ends_at_each_stage(how: End) {
    // The last stage is one that was there before.
    for (nth, stage) in (0..).zip(STAGES).take(STAGES.len() - 1) {
        let [begun, stopped, told] = std::array::from_fn(|_| Barrier::new(2));
        let [ready, over] = [SIZE as usize, SIZE as usize - 1].map(Barrier::new);
        let options = ("", &Config::default());
        let by_tcp = |choice: &mut DeviceChoice| choice.messages = MessageCarrier::Tcp;
        run_owned_with_devices(
            SIZE,
            options,
            |_| (),
            by_tcp,
            |rt, fabric| {
                make(&rt, S0, 32 * BLOCK);
                meet(&rt);
                let pairs = fabric.live(CARD).pairs;
                ready.wait();
                if rt.rank() == STOPPED {
                    stop(fabric, stage, pairs, &begun);
                    stopped.wait();
                    return end(rt, fabric, how);
                }
                let arrives = |id| {
                    let came = rt.notify_waitsome(S0, id, 1, LIMIT);
                    assert_eq!(came, Ok(Some(NotificationId(id))), "{stage:?}");
                };
                if rt.rank() == Rank(0) {
                    begun.wait();
                    write_beside_a_stopped_peer(&rt, fabric, nth, pairs);
                    told.wait();
                    stopped.wait();
                    outlast(&rt, nth);
                } else if rt.rank() == OTHER {
                    // While this device is held, too, that comes behind the end of the peer.
                    if stage != Stage::Proven {
                        arrives(nth as u32);
                    }
                    told.wait();
                    arrives(AGAIN);
                }
                over.wait();
                let _ = rt.term(LIMIT);
            },
        );
    }
}

fn a_peer_that_dies_at_any_stage_of_a_pair_is_an_error_and_no_hang() {
    a_peer_ends_at_each_stage(End::Dies);
}

fn a_peer_that_leaves_at_any_stage_of_a_pair_is_an_error_and_no_hang() {
    a_peer_ends_at_each_stage(End::Leaves);
}

/// The port of rank 0 goes down and comes back, all its GIDs at other places. The old pair is lost,
/// since its GID is.
fn a_gid_that_moves_while_its_port_is_down_is_found_again() {
    run_without_messages(2, "gids=16", |rt, fabric| {
        make(rt, S0, 8192);
        let peer = Rank(1 - rt.rank().0);
        until_by_device(rt, peer, Q0);
        for places in [4, 8, 3] {
            meet(rt);
            let before = failed(rt);
            meet(rt);
            if rt.rank() == Rank(0) {
                fabric.port(0, 0);
                if Nodes::of_this_test() == Nodes::VerbsPairs {
                    within(LIMIT_OF_CHANGE, "TCP", || while goes_by_device(rt, peer, Q0) {});
                }
                fabric.move_gids(0, places);
                fabric.break_pairs(0, 1);
                fabric.port(0, 1);
                within(LIMIT_OF_CHANGE, "the pair ends", || {
                    while failed(rt) == before {
                        goes_by_device(rt, peer, Q0);
                    }
                });
            }
            meet(rt);
            // Made again, and for the first time.
            let queues = [Q0, QueueId(places as u8 - 1)];
            queues.iter().for_each(|queue| soon("a pair", || goes_by_device(rt, peer, *queue)));
            for round in [u64::from(places), 100] {
                meet(rt);
                put_u64(rt, S0, 0, round + u64::from(rt.rank().0));
                for queue in queues {
                    assert!(goes_by_device(rt, peer, queue), "round {round} of {queue}");
                }
                meet(rt);
                assert_eq!(get_u64(rt, S0, 8), round + u64::from(peer.0));
            }
        }
        meet(rt);
    });
}

tests! {
    BY_DEVICE:
        a_gid_that_moves_while_its_port_is_down_is_found_again,
        a_peer_that_dies_at_any_stage_of_a_pair_is_an_error_and_no_hang,
        a_peer_that_leaves_at_any_stage_of_a_pair_is_an_error_and_no_hang,
        a_peer_that_is_stopped_while_a_pair_is_made_costs_time_only;
}
