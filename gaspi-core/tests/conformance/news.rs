//! News of a write comes behind its data, whichever way it takes, though the write may have ended
//! with an acknowledgement. The devices place nothing before they have to.

use super::budgets::until_by_device;
use super::verbs::{LARGE, exchange};
use super::*;
use crate::ranks::run_with_prepared;
use gaspi_mock_card::Fabric;

/// What was acknowledged is held back until a completion or a read forbids that.
const HELD_BACK: &str = "placement=2";
const ROUNDS: u64 = 100;

fn run_held_back(
    size: u32,
    ask: impl Fn(&mut DeviceChoice) + Sync,
    body: impl Fn(&Runtime, &Fabric) + Sync,
) {
    run_with_prepared(size, (HELD_BACK, &Config::default()), |_| (), ask, body);
}

/// Two ranks whose pairs are up, once for each way in which a write ends.
fn for_each_write_end(body: impl Fn(&Runtime, &Fabric, WriteEnd) + Sync) {
    for write_end in [WriteEnd::Auto, WriteEnd::Read, WriteEnd::Ack] {
        let ask = |choice: &mut DeviceChoice| {
            (choice.write_end, choice.messages) = (write_end, MessageCarrier::Device);
        };
        run_held_back(2, ask, |rt, fabric| {
            make(rt, S0, 8192);
            exchange(rt, 2);
            body(rt, fabric, write_end);
            meet(rt);
        });
    }
}

/// Whether the calling thread is that of a rank, before there is a rank to ask.
fn is_thread_of(rank: u32) -> bool {
    let name = format!("rank {rank}");
    std::thread::current().name().is_some_and(|own| own.ends_with(&name))
}

/// A write of `value` to rank 1, and the wait for it.
fn write_to_one(rt: &Runtime, value: u64) {
    put_u64(rt, S0, 0, value);
    rt.write(&eight(Rank(1)), Q0, LIMIT).expect("posted");
    rt.wait(Q0, LIMIT).expect("wait");
}

fn a_wait_sends_no_read_where_the_target_vouches() {
    for_each_write_end(|rt, fabric, write_end| {
        let device = rt.rank().0.into();
        let before = fabric.counter(device, "read");
        exchange(rt, ROUNDS);
        let reads = fabric.counter(device, "read") - before;
        // A read of the target's own behind what a socket brings is no wait's.
        let expected = if write_end == WriteEnd::Read { 2 * ROUNDS..=u64::MAX } else { 0..=ROUNDS };
        assert!(expected.contains(&reads), "{reads} reads with {write_end:?}");
    });
}

/// The same of one write, by another procedure each time.
fn write_one_way(rt: &Runtime, round: u64) {
    let t = eight(Rank(1));
    let posted = match round % 3 {
        0 => rt.write(&t, Q0, LIMIT),
        1 => rt.write_notify(&t, NotificationId(0), 1, Q0, LIMIT),
        // By no fast path.
        _ => rt.write_list(
            &TransferList {
                rank: t.rank,
                local: &[t.local],
                local_offsets: &[t.local_offset],
                remote: &[t.remote],
                remote_offsets: &[t.remote_offset],
                sizes: &[t.size],
            },
            Q0,
            LIMIT,
        ),
    };
    posted.expect("posted");
    rt.wait(Q0, LIMIT).expect("wait");
}

fn a_wait_for_one_write_has_the_device_write_nothing_more() {
    for_each_write_end(|rt, fabric, write_end| {
        if rt.rank() == Rank(0) {
            let writes = || fabric.counter(0, "write") + fabric.counter(0, "write_imm");
            let before = writes();
            (0..ROUNDS).for_each(|round| write_one_way(rt, round));
            let found = writes() - before;
            // A pair that comes up meanwhile is tried by a write.
            let expected = ROUNDS..ROUNDS + ROUNDS / 4;
            assert!(expected.contains(&found), "{found} writes with {write_end:?}");
        }
    });
}

fn news_by_a_socket_comes_behind_the_data() {
    // What rank 0 says goes by TCP, what it writes by its device.
    let ask = |choice: &mut DeviceChoice| {
        choice.messages =
            if is_thread_of(0) { MessageCarrier::Tcp } else { MessageCarrier::Device };
    };
    run_held_back(2, ask, |rt, fabric| {
        make(rt, S0, 8192);
        meet(rt);
        let before = fabric.counter(0, "read");
        for round in 1..=ROUNDS {
            if rt.rank() == Rank(0) {
                write_to_one(rt, round);
            }
            meet(rt);
            if rt.rank() == Rank(1) {
                assert_eq!(get_u64(rt, S0, 8), round, "a barrier comes behind what was waited for");
            }
            meet(rt);
        }
        if rt.rank() == Rank(0) {
            assert_eq!(fabric.counter(0, "read"), before, "rank 1 vouches");
        }
        meet(rt);
    });
}

fn news_by_a_socket_comes_behind_the_data_though_the_own_pair_has_failed() {
    let ask = |choice: &mut DeviceChoice| {
        choice.messages =
            if is_thread_of(0) { MessageCarrier::Tcp } else { MessageCarrier::Device };
    };
    run_held_back(2, ask, |rt, fabric| {
        make(rt, S0, 8192);
        meet(rt);
        for round in 1..=10 {
            if rt.rank() == Rank(0) {
                write_to_one(rt, round);
                // That by which rank 1 makes what it has taken visible.
                fabric.break_pairs(1, 1);
            }
            meet(rt);
            if rt.rank() == Rank(1) {
                assert_eq!(get_u64(rt, S0, 8), round, "a barrier comes behind what was waited for");
            }
            meet(rt);
        }
    });
}

fn news_by_shared_memory_comes_behind_the_data() {
    // Ranks 1 and 3 share memory, each with a device of its own.
    let ask = |choice: &mut DeviceChoice| choice.messages = MessageCarrier::Device;
    run_held_back(4, ask, |rt, _| {
        make(rt, S0, 8192);
        let id = NotificationId(0);
        let hear = || {
            rt.notify_waitsome(S0, 0, 1, LIMIT).expect("notified");
            rt.notify_reset(S0, id).expect("reset");
        };
        let tell = |rank| {
            rt.notify(Rank(rank), S0, id, 1, Q0, LIMIT).expect("notify");
            rt.wait(Q0, LIMIT).expect("wait");
        };
        for round in 1..=ROUNDS {
            match rt.rank().0 {
                0 => {
                    write_to_one(rt, round);
                    tell(3);
                    hear();
                }
                1 => {
                    hear();
                    assert_eq!(get_u64(rt, S0, 8), round, "told by a rank of its node");
                    tell(0);
                }
                3 => {
                    hear();
                    tell(1);
                }
                _ => {}
            }
        }
        meet(rt);
    });
}

fn a_notification_comes_behind_all_parts_of_its_data() {
    let (id, options) = (NotificationId(1), format!("{HELD_BACK},max_msg_sz=256"));
    let ask = |choice: &mut DeviceChoice| choice.messages = MessageCarrier::Device;
    run_with_prepared(
        2,
        (&options, &Config::default()),
        |_| (),
        ask,
        |rt, _| {
            make(rt, S0, 8192);
            for round in 1..=ROUNDS {
                // Of one request, and of several; with the notification in the last, and behind.
                let size = 8 * (1 + round * 7 % 200);
                let (last, value) = (size - 8, if round % 2 == 0 { 7 } else { 1000 });
                if rt.rank() == Rank(0) {
                    put_u64(rt, S0, last, round);
                    let t = Transfer { remote_offset: 4096, size, ..eight(Rank(1)) };
                    rt.write_notify(&t, id, value, Q0, LIMIT).expect("posted");
                    rt.wait(Q0, LIMIT).expect("wait");
                    put_u64(rt, S0, last, 0);
                } else {
                    rt.notify_waitsome(S0, id.0, 1, LIMIT).expect("notified");
                    assert_eq!(rt.notify_reset(S0, id), Ok(value));
                    assert_eq!(get_u64(rt, S0, 4096 + last), round, "{size} bytes");
                }
                meet(rt);
            }
        },
    );
}

/// Two ranks whose devices carry data alone, and do not take S1: neither vouches.
fn run_by_sockets(body: impl Fn(&Runtime, &Fabric) + Sync) {
    let options = format!("{HELD_BACK},max_registered=6000000");
    let ask = |choice: &mut DeviceChoice| choice.messages = MessageCarrier::Tcp;
    run_with_prepared(2, (&options, &Config::default()), |_| (), ask, body);
}

fn each_number_of_writes_ends_when_the_last_is_in_its_place() {
    run_by_sockets(|rt, _| {
        make(rt, S0, 8192);
        exchange(rt, 1);
        // Beyond what is asked for completions anyway, and what fits a send queue.
        for writes in (1..=70).chain([128, 129, 200]) {
            if rt.rank() == Rank(0) {
                for nth in 1..=writes {
                    put_u64(rt, S0, 0, writes << 32 | nth);
                    rt.write(&eight(Rank(1)), Q0, LIMIT).expect("posted");
                }
                rt.wait(Q0, LIMIT).expect("wait");
            }
            meet(rt);
            if rt.rank() == Rank(1) {
                assert_eq!(get_u64(rt, S0, 8), writes << 32 | writes);
            }
            meet(rt);
        }
    });
}

fn what_a_socket_carries_in_its_turn_comes_behind_the_data_of_the_device() {
    let id = NotificationId(1);
    run_by_sockets(|rt, _| {
        make(rt, S0, 8192);
        make(rt, S1, LARGE);
        if rt.rank() == Rank(0) {
            until_by_device(rt, Rank(1), Q0);
        }
        meet(rt);
        for round in 1..=ROUNDS {
            if rt.rank() == Rank(0) {
                put_u64(rt, S0, 0, round);
                for place in 0..round % 3 {
                    let other = Transfer { remote_offset: 16 + 8 * place, ..eight(Rank(1)) };
                    rt.write(&other, Q0, LIMIT).expect("posted");
                }
                rt.write(&eight(Rank(1)), Q0, LIMIT).expect("posted");
                let by_socket = Transfer { local: S1, remote: S1, ..eight(Rank(1)) };
                rt.write_notify(&by_socket, id, 1, Q0, LIMIT).expect("posted");
                rt.wait(Q0, LIMIT).expect("wait");
            } else {
                rt.notify_waitsome(S1, id.0, 1, LIMIT).expect("notified");
                assert_eq!(rt.notify_reset(S1, id), Ok(1));
                assert_eq!(get_u64(rt, S0, 8), round, "what was written before");
            }
            meet(rt);
        }
    });
}

tests! {
    VERBS_PAIRS:
        news_by_shared_memory_comes_behind_the_data,
        what_a_socket_carries_in_its_turn_comes_behind_the_data_of_the_device;
    VERBS:
        a_notification_comes_behind_all_parts_of_its_data,
        each_number_of_writes_ends_when_the_last_is_in_its_place,
        a_wait_sends_no_read_where_the_target_vouches,
        a_wait_for_one_write_has_the_device_write_nothing_more,
        news_by_a_socket_comes_behind_the_data,
        news_by_a_socket_comes_behind_the_data_though_the_own_pair_has_failed;
}
