//! Pairs above the budget of a rank, or of its device: TCP has what finds none.

use super::verbs::{LIMIT_OF_CHANGE, NO_ANSWER, exchange};
use super::*;
use crate::ranks::run_with_prepared;
use gaspi_mock_card::Fabric;

const CARRIED: &str = "NumberOfRequestsVerbs";

/// Ranks with so many pairs each, for data alone.
pub(crate) fn run_with_pairs(
    (size, pairs): (u32, u32),
    options: &str,
    body: impl Fn(&Runtime, &Fabric) + Sync,
) {
    run_with_budget((size, pairs, MessageCarrier::Tcp), options, body);
}

fn run_with_budget(
    (size, pairs, messages): (u32, u32, MessageCarrier),
    options: &str,
    body: impl Fn(&Runtime, &Fabric) + Sync,
) {
    let ask = |choice: &mut DeviceChoice| {
        (choice.pairs, choice.messages) = (Some(pairs), messages);
    };
    run_with_prepared(size, (options, &Config::default()), |_| (), ask, body);
}

/// Requests that this rank's device has carried.
pub(crate) fn carried(rt: &Runtime) -> u64 {
    let named = |nth: &u32| Runtime::statistic_info(*nth).is_some_and(|it| it.name == CARRIED);
    let counter = (0..rt.statistic_num()).find(named).expect("it is counted");
    rt.statistic_get(counter, 0).expect("counter")
}

/// Whether a write to `peer` goes by the device; what is lost is an error of its queue.
pub(crate) fn goes_by_device(rt: &Runtime, peer: Rank, queue: QueueId) -> bool {
    let before = carried(rt);
    let done = rt.write(&eight(peer), queue, LIMIT).and_then(|()| rt.wait(queue, LIMIT));
    if done.is_err() {
        rt.queue_purge(queue, LIMIT).expect("purge");
    }
    done.is_ok() && carried(rt) > before
}

pub(crate) fn until_by_device(rt: &Runtime, peer: Rank, queue: QueueId) {
    within(LIMIT_OF_CHANGE, "a pair", || while !goes_by_device(rt, peer, queue) {});
}

pub(crate) fn pairs_of(rt: &Runtime, fabric: &Fabric) -> u64 {
    fabric.live(rt.rank().0.into()).pairs
}

fn a_budget_of_none_leaves_everything_to_streams() {
    run_with_pairs((2, 0), "", |rt, fabric| {
        make(rt, S0, 8192);
        exchange(rt, 50);
        assert_eq!((carried(rt), pairs_of(rt, fabric)), (0, 0));
        meet(rt);
    });
}

fn a_device_without_pairs_leaves_lanes_to_streams() {
    // One pair, and room for none: what the budget does not tell the device does.
    for (options, most) in [("max_qp=1", 1), ("max_cq=1", 0)] {
        run_with_pairs((2, 100), options, |rt, fabric| {
            make(rt, S0, 8192);
            exchange(rt, 50);
            let pairs = pairs_of(rt, fabric);
            assert!(pairs <= most, "{pairs} pairs with {options}");
            meet(rt);
        });
    }
}

fn a_rank_never_has_more_pairs_than_its_budget() {
    run_with_pairs((3, 1), "", |rt, fabric| {
        make(rt, S0, 8192);
        for round in 1..=100u64 {
            for peer in (0..3).map(Rank).filter(|peer| *peer != rt.rank()) {
                for queue in [Q0, Q1] {
                    let me = u64::from(rt.rank().0);
                    let place = 64 * me + 8 * u64::from(queue.0);
                    put_u64(rt, S0, 4096 + place, round * 16 + me);
                    let t = Transfer {
                        local_offset: 4096 + place,
                        remote_offset: place,
                        ..eight(peer)
                    };
                    rt.write(&t, queue, LIMIT).expect("posted");
                    let pairs = pairs_of(rt, fabric);
                    assert!(pairs <= 1, "{pairs} pairs");
                }
            }
            [Q0, Q1].iter().for_each(|queue| rt.wait(*queue, LIMIT).expect("wait"));
            meet(rt);
            for peer in (0..3u64).filter(|peer| *peer != u64::from(rt.rank().0)) {
                for queue in 0..2 {
                    let came = get_u64(rt, S0, 64 * peer + 8 * queue);
                    assert_eq!(came, round * 16 + peer, "from rank {peer}, queue {queue}");
                }
            }
            meet(rt);
        }
    });
}

fn a_pair_that_is_given_back_goes_to_a_lane_that_found_none() {
    // Rank 1 has both others on another node, and one pair.
    run_with_pairs((3, 1), "", |rt, fabric| {
        make(rt, S0, 8192);
        meet(rt);
        if rt.rank() == Rank(1) {
            until_by_device(rt, Rank(0), Q0);
            for _ in 0..20 {
                assert!(!goes_by_device(rt, Rank(2), Q0), "the budget is used up");
            }
            // What is lost is an error of its queue; nothing more is posted to that.
            lose_pair_with_0(rt, fabric);
            until_by_device(rt, Rank(2), Q0);
        }
        meet(rt);
    });
}

fn a_pair_with_a_rank_that_left_is_given_back() {
    // Rank 1 has both others on another node, and one pair.
    let (paired, used) = (std::sync::Barrier::new(3), std::sync::Barrier::new(2));
    run_with_pairs((3, 1), "", |rt, _| {
        make(rt, S0, 8192);
        meet(rt);
        if rt.rank() == Rank(1) {
            until_by_device(rt, Rank(0), Q0);
            for _ in 0..20 {
                assert!(!goes_by_device(rt, Rank(2), Q0), "the budget is used up");
            }
        }
        paired.wait();
        if rt.rank() == Rank(1) {
            until_by_device(rt, Rank(2), Q0);
        }
        if rt.rank() != Rank(0) {
            used.wait();
        }
    });
}

/// The pair of Q0 between ranks 1 and 0 ends with an error, on rank 1.
fn lose_pair_with_0(rt: &Runtime, fabric: &Fabric) {
    fabric.fail(1, 0, 1, NO_ANSWER);
    fails!(
        rt.write(&eight(Rank(0)), Q0, LIMIT).and_then(|()| rt.wait(Q0, LIMIT)),
        Error::RequestFailed { queue: Q0, .. }
    );
    rt.queue_purge(Q0, LIMIT).expect("purge");
}

fn a_completion_queue_that_is_refused_costs_no_pair_that_is_up() {
    // Two pairs fill a completion queue, and rank 1 has both others on another node.
    run_with_pairs((3, 100), "max_cqe=256", |rt, fabric| {
        make(rt, S0, 8192);
        meet(rt);
        if rt.rank() == Rank(1) {
            [Q0, Q1].iter().for_each(|queue| until_by_device(rt, Rank(0), *queue));
            let before = fabric.live(1);
            // A smaller one is tried, too.
            [1, 2].iter().for_each(|nth| fabric.refuse(1, "create_cq", *nth, libc::ENOMEM));
            for _ in 0..20 {
                assert!(!goes_by_device(rt, Rank(2), Q0), "without a completion queue");
                [Q0, Q1].iter().for_each(|queue| assert!(goes_by_device(rt, Rank(0), *queue)));
            }
            let refused = fabric.live(1);
            assert_eq!((refused.queues, refused.pairs), (before.queues, before.pairs));
            // The room of a pair that has ended is for the one that found none.
            lose_pair_with_0(rt, fabric);
            until_by_device(rt, Rank(2), Q0);
            assert!(goes_by_device(rt, Rank(0), Q1));
        }
        meet(rt);
    });
}

fn messages_leave_half_of_the_pairs_to_data() {
    // Rank 1 has both others on another node: a pair with each for data, and one for messages.
    run_with_budget((3, 3, MessageCarrier::Device), "", |rt, fabric| {
        make(rt, S0, 8192);
        // Each connection has been used by now, and wants its pair.
        (0..100).for_each(|_| meet(rt));
        let all = [Rank(0), Rank(2)];
        let remote = if rt.rank() == Rank(1) { &all[..] } else { &[Rank(1)] };
        remote.iter().for_each(|peer| until_by_device(rt, *peer, Q0));
        meet(rt);
        let (pairs, shown) = (pairs_of(rt, fabric), rt.pairs().expect("they are counted"));
        assert!(pairs <= 3, "{pairs} pairs");
        assert!(shown.messages.is_some_and(|messages| messages <= 1), "{shown:?}");
        meet(rt);
    });
}

fn without_streams_a_request_above_the_budget_is_an_error() {
    run_with_pairs((3, 1), "", |rt, _| {
        make(rt, S0, 8192);
        meet(rt);
        if rt.rank() == Rank(0) {
            rt.write(&eight(Rank(1)), Q0, LIMIT).expect("posted");
            rt.wait(Q0, LIMIT).expect("the first pair");
            let posted = rt.write(&eight(Rank(2)), Q0, LIMIT).and_then(|()| rt.wait(Q0, LIMIT));
            let reason = posted.expect_err("there is one pair").to_string();
            rt.queue_purge(Q0, LIMIT).expect("purge");
            assert!(reason.contains("GASPI_IB_PAIRS") && reason.contains("budget"), "{reason}");
        }
        meet(rt);
    });
}

tests! {
    VERBS_PAIRS:
        a_budget_of_none_leaves_everything_to_streams,
        a_completion_queue_that_is_refused_costs_no_pair_that_is_up,
        a_device_without_pairs_leaves_lanes_to_streams,
        a_pair_that_is_given_back_goes_to_a_lane_that_found_none,
        a_pair_with_a_rank_that_left_is_given_back,
        a_rank_never_has_more_pairs_than_its_budget,
        messages_leave_half_of_the_pairs_to_data;
    VERBS:
        without_streams_a_request_above_the_budget_is_an_error;
}
