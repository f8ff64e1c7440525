//! Data that devices alone may carry, before there are pairs, and where there can be none: passive
//! messages, atomic operations, and what members of a group add up.

use super::verbs::{LIMIT_OF_CHANGE, NO_ANSWER};
use super::*;
use crate::ranks::{run_owned_with_devices, run_with_prepared};
use gaspi_mock_card::Fabric;
use ranks::Barrier;

/// Time passes only as tests say.
const OWN_TIME: &str = "time_scale=0";
const SECOND_NS: u64 = 1_000_000_000;
/// Long enough for what goes by a socket.
const A_WHILE: Timeout = Timeout::Millis(100);

/// Devices carry messages, whatever other tests have.
fn by_device(choice: &mut DeviceChoice) {
    choice.messages = MessageCarrier::Device;
}

/// Runs ranks with devices to which something is done before.
fn run_on(
    size: u32,
    options: &str,
    prepare: impl FnOnce(&Fabric),
    body: impl Fn(&Runtime, &Fabric) + Sync,
) {
    run_with_prepared(size, (options, &Config::default()), prepare, by_device, body);
}

/// Runs two ranks between whose devices nothing comes through until the body says so.
fn run_cut(body: impl Fn(&Runtime, &Fabric, &Barrier) + Sync) {
    let both = Barrier::new(2);
    let cut = |fabric: &Fabric| fabric.link(0, 1, 0);
    run_on(2, OWN_TIME, cut, |rt, fabric| body(rt, fabric, &both));
}

/// Lets the devices of [`run_cut`] reach each other.
fn heal(rt: &Runtime, fabric: &Fabric, both: &Barrier) {
    both.wait();
    if rt.rank() == Rank(0) {
        fabric.link(0, 1, 1);
        fabric.advance(SECOND_NS);
    }
    both.wait();
}

fn awaits_pair<T: std::fmt::Debug>(outcome: Result<T>) {
    let is_told = |pending: &str| pending.contains("RDMA") && pending.contains("rank");
    fails!(outcome, Error::Timeout { pending } if is_told(&pending));
}

fn passive_messages_wait_for_their_pair() {
    run_cut(|rt, fabric, both| {
        make(rt, S0, 4096);
        put_u64(rt, S0, 0, 77);
        let send = |timeout| rt.passive_send(S0, 0, Rank(1), 8, timeout);
        let receive = |timeout| rt.passive_receive(S0, 64, 8, timeout);
        if rt.rank() == Rank(0) {
            awaits_pair(within(AT_ONCE, "TEST", || send(Timeout::Test)));
            awaits_pair(send(A_WHILE));
        } else {
            fails!(receive(A_WHILE), Error::Timeout { .. });
        }
        // What carries no data needs no pair.
        meet(rt);
        if rt.rank() == Rank(1) {
            fails!(receive(A_WHILE), Error::Timeout { .. });
        }
        heal(rt, fabric, both);
        if rt.rank() == Rank(0) {
            send(LIMIT).expect("sent");
        } else {
            assert_eq!(receive(LIMIT), Ok(Rank(0)));
            assert_eq!(get_u64(rt, S0, 64), 77);
        }
        meet(rt);
    });
}

fn atomic_operations_wait_for_their_pair() {
    run_cut(|rt, fabric, both| {
        make(rt, S0, 4096);
        let add = |timeout| rt.atomic_fetch_add(S0, 0, Rank(1), 5, timeout);
        if rt.rank() == Rank(0) {
            awaits_pair(within(AT_ONCE, "TEST", || add(Timeout::Test)));
            awaits_pair(add(A_WHILE));
        }
        meet(rt);
        assert_eq!(get_u64(rt, S0, 0), 0, "nothing was added by a socket");
        heal(rt, fabric, both);
        if rt.rank() == Rank(0) {
            assert_eq!(add(LIMIT), Ok(0), "once, whatever has run out before");
        }
        meet(rt);
        assert_eq!(get_u64(rt, S0, 0), if rt.rank() == Rank(1) { 5 } else { 0 });
        meet(rt);
    });
}

/// A step of all ranks in which each tells the others a word, and its number among such steps.
pub(crate) fn tell_all(rt: &Runtime, number: u64, timeout: Timeout) -> Result<Vec<u64>> {
    let describe = |signature: u64| format!("test call {signature}");
    let signature = CallKind::Allreduce.signature(number);
    let key = CallKey { kind: CallKind::Allreduce, arguments: number, signature, describe };
    let mut call = rt.group_call(GroupId::ALL, key)?;
    let step = call.step() + 1;
    call.arrive(&[100 * number + u64::from(rt.rank().0)]);
    call.await_all(timeout.deadline())?;
    let told = (0..rt.size()).map(|member| call.payload(member as usize, step)[0]).collect();
    call.finish();
    Ok(told)
}

fn told(rt: &Runtime, number: u64) -> Vec<u64> {
    (0..u64::from(rt.size())).map(|rank| 100 * number + rank).collect()
}

fn data_of_a_step_waits_for_its_pairs() {
    run_cut(|rt, fabric, both| {
        meet(rt);
        fails!(within(AT_ONCE, "TEST", || tell_all(rt, 1, Timeout::Test)), Error::Timeout { .. });
        both.wait();
        fails!(tell_all(rt, 1, A_WHILE), Error::Timeout { .. });
        heal(rt, fabric, both);
        assert_eq!(tell_all(rt, 1, LIMIT), Ok(told(rt, 1)));
        (2..20).for_each(|number| assert_eq!(tell_all(rt, number, LIMIT), Ok(told(rt, number))));
        meet(rt);
    });
}

fn data_of_the_first_step_comes_to_all_though_they_leave_at_once() {
    for size in [2, 3, 5, 8] {
        run_on(
            size,
            "",
            |_| (),
            |rt, _| {
                assert_eq!(tell_all(rt, 1, LIMIT), Ok(told(rt, 1)));
            },
        );
    }
}

fn a_rank_that_leaves_while_its_data_waits_has_left_and_is_not_lost() {
    let both = Barrier::new(2);
    let cut = |fabric: &Fabric| fabric.link(0, 1, 0);
    let options = (OWN_TIME, &Config::default());
    run_owned_with_devices(2, options, cut, by_device, |rt, _| {
        meet(&rt);
        fails!(tell_all(&rt, 1, A_WHILE), Error::Timeout { .. });
        both.wait();
        if rt.rank() == Rank(0) {
            within(AT_ONCE, "leaving", || drop(rt));
        } else {
            fails!(tell_all(&rt, 1, LIMIT), Error::RankLeft { .. });
        }
    });
}

fn without_a_pair_data_is_an_error_that_names_the_rank_and_the_reason() {
    let few = |fabric: &Fabric| fabric.set(1, "max_qp=1");
    run_on(2, "", few, |rt, _| {
        make(rt, S0, 4096);
        let peer = Rank(1 - rt.rank().0);
        let refused = |what: &str, outcome: Result<()>| {
            let Err(Error::Refused { rank, reason }) = outcome else {
                panic!("{what}: {outcome:?}");
            };
            assert_eq!(rank, peer, "{what}");
            assert!(reason.contains("GASPI_IB_PAIRS"), "{what}: {reason}");
        };
        // One that calls again is told again.
        for _ in 0..3 {
            refused("passive_send", rt.passive_send(S0, 0, peer, 8, LIMIT));
            let added = rt.atomic_fetch_add(S0, 0, peer, 5, LIMIT);
            refused("atomic", added.map(|_| ()));
            // Barriers need none.
            meet(rt);
        }
        fails!(rt.passive_receive(S0, 64, 8, A_WHILE), Error::Timeout { .. });
        assert_eq!(get_u64(rt, S0, 0), 0);
        meet(rt);
    });
}

fn a_step_whose_data_has_no_way_fails_on_all_that_wait_for_it() {
    for size in [2, 3, 6] {
        let few = |fabric: &Fabric| fabric.set(1, "max_qp=1");
        let together = Barrier::new(size as usize);
        run_on(size, "", few, |rt, _| {
            let mut failed = 0;
            for number in 1..=2 {
                // Who comes late has less time to hear of it.
                together.wait();
                let outcome = within(LIMIT_OF_CHANGE, "an error", || tell_all(rt, number, LIMIT));
                match outcome {
                    Err(Error::Refused { rank, reason }) => {
                        assert!(rank == Rank(1) || rt.rank() == Rank(1), "{rank}: {reason}");
                        assert!(reason.contains("GASPI_IB_PAIRS"), "{reason}");
                        failed += 1;
                    }
                    Err(Error::Mismatch { difference, .. }) => {
                        assert!(difference.contains("test call"), "{difference}");
                    }
                    other => panic!("{other:?}"),
                }
                // The group goes on.
                meet(rt);
            }
            if rt.rank() == Rank(1) {
                assert_eq!(failed, 2, "it cannot tell anybody");
            }
        });
    }
}

fn data_goes_again_behind_a_disconnect() {
    run_on(
        2,
        "",
        |_| (),
        |rt, _| {
            make(rt, S0, 4096);
            let peer = Rank(1 - rt.rank().0);
            for _ in 0..3 {
                if rt.rank() == Rank(0) {
                    rt.atomic_fetch_add(S0, 0, peer, 1, LIMIT).expect("an atomic operation");
                }
                meet(rt);
                rt.disconnect(peer, LIMIT).expect("disconnect");
            }
            if rt.rank() == Rank(0) {
                rt.passive_send(S0, 0, peer, 8, LIMIT).expect("passive_send");
            } else {
                assert_eq!(get_u64(rt, S0, 0), 3);
                rt.passive_receive(S0, 64, 8, LIMIT).expect("passive_receive");
            }
            meet(rt);
        },
    );
}

fn atomic_operations_outlast_pairs_that_fail() {
    let done = Barrier::new(2);
    run_on(
        2,
        "",
        |_| (),
        |rt, fabric| {
            make(rt, S0, 4096);
            if rt.rank() == Rank(0) {
                let add = || rt.atomic_fetch_add(S0, 0, Rank(1), 1, LIMIT);
                let mut again = 0;
                for _ in 0..4 {
                    add().expect("by the device");
                    let before = fabric.counter(0, "solicited");
                    add().expect("by the device");
                    assert!(fabric.counter(0, "solicited") > before, "sockets carry none");
                    fabric.fail(0, 0, 1, NO_ANSWER);
                    within(LIMIT_OF_CHANGE, "an operation behind it", || {
                        while let Err(error) = add() {
                            again += u32::from(error.to_string().contains("again and again"));
                        }
                    });
                }
                assert!(again > 0, "nobody was told that pairs fail");
            }
            done.wait();
            meet(rt);
        },
    );
}

tests! {
    VERBS:
        a_rank_that_leaves_while_its_data_waits_has_left_and_is_not_lost,
        a_step_whose_data_has_no_way_fails_on_all_that_wait_for_it,
        atomic_operations_outlast_pairs_that_fail,
        atomic_operations_wait_for_their_pair,
        data_goes_again_behind_a_disconnect,
        data_of_a_step_waits_for_its_pairs,
        data_of_the_first_step_comes_to_all_though_they_leave_at_once,
        passive_messages_wait_for_their_pair,
        without_a_pair_data_is_an_error_that_names_the_rank_and_the_reason;
}
