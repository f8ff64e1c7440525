//! Order across both ways: what a device brings and what a socket brings, where the one is ready
//! and the other is not.

use super::budgets::until_by_device;
use super::device_only::tell_all;
use super::verbs::LIMIT_OF_CHANGE;
use super::*;
use crate::ranks::{now, run_owned_with_devices, run_with_prepared};
use gaspi_mock_card::Fabric;
use std::cell::Cell;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};

/// Time passes only as tests say.
const OWN_TIME: &str = "time_scale=0";
const SECOND_NS: u64 = 1_000_000_000;
/// What a call of the device's library gives that fails.
const EIO: i32 = 5;
/// Long enough for what goes by a socket.
const A_WHILE: Timeout = Timeout::Millis(100);

/// Two ranks of which each has tried the pair for messages, in vain until the body heals the link.
/// Writes to them end like this.
fn run_cut(write_end: WriteEnd, body: impl Fn(Runtime, &Fabric, &Barrier) + Sync) {
    let both = Barrier::new(2);
    let cut = |fabric: &Fabric| fabric.link(0, 1, 0);
    let ask = |choice: &mut DeviceChoice| {
        (choice.write_end, choice.messages) = (write_end, MessageCarrier::Device);
    };
    // Where an acknowledgement ends them, each has a pair with itself, which is tried too.
    let tries = if write_end == WriteEnd::Auto { 2 } else { 1 };
    let options = (OWN_TIME, &Config::default());
    run_owned_with_devices(2, options, cut, ask, |rt, fabric| {
        make(&rt, S0, 4096);
        let tried = |device| fabric.counter(device, "write") >= tries;
        soon("the pair is tried", || tried(0) && tried(1));
        both.wait();
        body(rt, fabric, &both);
    });
}

/// Lets the devices of [`run_cut`] reach each other.
fn heal(fabric: &Fabric) {
    fabric.link(0, 1, 1);
    fabric.advance(SECOND_NS);
}

fn add(rt: &Runtime, value: u64, timeout: Timeout) -> Result<u64> {
    rt.atomic_fetch_add(S0, 0, Rank(1), value, timeout)
}

/// Rank 0 asks rank 1 for an addition, whose half of the connection is not carried yet: the reply
/// waits there when this returns.
fn withhold_reply(rt: &Runtime, fabric: &Fabric, both: &Barrier) {
    if rt.rank() == Rank(0) {
        fabric.hold(1, 1);
        heal(fabric);
        soon("the operation goes by the device", || {
            fails!(add(rt, 5, A_WHILE), Error::Timeout { .. });
            fabric.counter(0, "solicited") > 0
        });
    }
    both.wait();
    has_replied(rt, fabric);
    both.wait();
}

/// The operation is carried out, and no device brings the reply.
fn has_replied(rt: &Runtime, fabric: &Fabric) {
    if rt.rank() == Rank(1) {
        soon("it is carried out", || get_u64(rt, S0, 0) == 5);
        assert_eq!(fabric.counter(1, "solicited"), 0);
    }
}

fn the_reply_of_an_atomic_operation_waits_for_its_pair() {
    run_cut(WriteEnd::Read, |rt, fabric, both| {
        withhold_reply(&rt, fabric, both);
        if rt.rank() == Rank(0) {
            // No socket brings the reply.
            fails!(add(&rt, 5, A_WHILE), Error::Timeout { .. });
            fabric.hold(1, 0);
            assert_eq!(add(&rt, 5, LIMIT), Ok(0));
            assert!(fabric.counter(1, "solicited") > 0);
        }
        meet(&rt);
        assert_eq!(get_u64(&rt, S0, 0), if rt.rank() == Rank(1) { 5 } else { 0 });
        meet(&rt);
    });
}

fn disconnect_and_term_wait_for_data_that_waits() {
    run_cut(WriteEnd::Read, |rt, fabric, both| {
        withhold_reply(&rt, fabric, both);
        if rt.rank() == Rank(1) {
            fails!(rt.disconnect(Rank(0), A_WHILE), Error::Timeout { .. });
            fails!(rt.term(A_WHILE), Error::Timeout { .. });
        }
        both.wait();
        if rt.rank() == Rank(0) {
            fabric.hold(1, 0);
            assert_eq!(add(&rt, 5, LIMIT), Ok(0));
        }
        meet(&rt);
        assert_eq!(get_u64(&rt, S0, 0), if rt.rank() == Rank(1) { 5 } else { 0 });
        meet(&rt);
    });
}

/// How long a goodbye waits for data.
const GOODBYE_LIMIT: Duration = Duration::from_secs(1);

fn a_goodbye_comes_behind_data_that_waits() {
    // On a machine with much to do it may be late, but not each time.
    let later = (1..=8).map(|round| Duration::from_millis(20 * round));
    let replied = later.filter(|later| has_reply_of_leaving(*later));
    assert_ne!(replied.count(), 0, "data that waits keeps no goodbye from being said");
}

/// Rank 1 leaves while a reply of it waits, which can go `later`; whether it has come.
fn has_reply_of_leaving(later: Duration) -> bool {
    let (replied, took) = (AtomicBool::new(false), Mutex::new(None));
    run_cut(WriteEnd::Read, |rt, fabric, both| {
        if rt.rank() == Rank(1) {
            // One more pair, which goes first when this rank leaves.
            rt.write(&eight(Rank(0)), Q0, LIMIT).expect("posted");
            soon("it is begun", || fabric.live(1).pairs == 2);
            both.wait();
            has_replied(&rt, fabric);
            both.wait();
            let begun = now();
            drop(rt);
            *took.lock().expect("no panic") = Some(now() - begun);
            return;
        }
        both.wait();
        fabric.hold(1, 1);
        heal(fabric);
        std::thread::scope(|scope| {
            // What is asked later finds no segment.
            let asking = scope.spawn(|| add(&rt, 5, LIMIT));
            both.wait();
            while fabric.live(1).pairs == 2 {
                std::thread::yield_now();
            }
            // A goodbye that does not wait is heard meanwhile.
            let until = now() + later;
            while now() < until && !asking.is_finished() {
                std::thread::yield_now();
            }
            fabric.hold(1, 0);
            match asking.join().expect("no panic") {
                Ok(former) => {
                    assert_eq!(former, 0);
                    replied.store(true, Ordering::Relaxed);
                }
                Err(Error::RankLeft { .. }) => {}
                Err(other) => panic!("{other}"),
            }
        });
        soon("it has left", || matches!(rt.ping(Rank(1), LIMIT), Err(Error::RankLeft { .. })));
    });
    let (replied, took) = (replied.into_inner(), took.into_inner().expect("no panic"));
    let is_late = took.is_some_and(|took| took >= GOODBYE_LIMIT);
    assert!(replied || is_late, "the goodbye has overtaken the reply, after {took:?}");
    replied
}

/// The device cannot reach the other rank, and no request is under way.
fn nothing_waits_for_a_pair_that_is_being_made() {
    run_cut(WriteEnd::Auto, |rt, _, both| {
        make(&rt, S1, 4096);
        both.wait();
        rt.segment_delete(S1).expect("delete");
        both.wait();
        // Where it has waited in vain the attempt is given up.
        let failed = rt.pairs().map(|pairs| pairs.failed);
        assert_eq!(failed, Some(0));
        both.wait();
        rt.disconnect(Rank(1 - rt.rank().0), LIMIT).expect("disconnect");
        both.wait();
        rt.term(LIMIT).expect("term");
    });
}

/// Has rank 1 read nothing more from sockets until its requests may leave: it waits for its own
/// device before it handles what one has brought. It still looks at what its device brings.
fn stall_sockets(rt: &Runtime, fabric: &Fabric) {
    fabric.hold(1, 1);
    let before = fabric.counter(1, "read");
    fails!(rt.ping(Rank(1), A_WHILE), Error::Timeout { .. });
    soon("it waits for its device", || fabric.counter(1, "read") > before);
}

/// Asks rank 1 for additions of 1, 2 and so on until some go by the device; which do. None is
/// answered.
fn ask_by_device(rt: &Runtime, fabric: &Fabric) -> RangeInclusive<u64> {
    // So many that the device is asked whether some have arrived, and those are forgotten.
    const BY_DEVICE: u64 = 40;
    heal(fabric);
    let (first, last) = (Cell::new(0), Cell::new(0));
    soon("operations go by the device", || {
        last.set(last.get() + 1);
        let timeout = if first.get() == 0 { Timeout::Millis(10) } else { Timeout::Test };
        fails!(add(rt, last.get(), timeout), Error::Timeout { .. });
        let by_device = fabric.counter(0, "solicited");
        if first.get() == 0 && by_device > 0 {
            first.set(last.get());
        }
        by_device >= BY_DEVICE
    });
    fabric.settle();
    first.get()..=last.get()
}

/// The answers to them, in their order.
fn hear_answers(rt: &Runtime, asked: RangeInclusive<u64>) {
    let answer = |value| add(rt, value, LIMIT).unwrap_or_else(|error| panic!("{value}: {error}"));
    let mut before = answer(*asked.start()) + asked.start();
    for value in asked.skip(1) {
        assert_eq!(answer(value), before, "each once, and in order");
        before += value;
    }
}

fn what_a_device_brings_before_the_socket_has_told_of_it_waits_for_that() {
    run_cut(WriteEnd::Auto, |rt, fabric, both| {
        if rt.rank() == Rank(0) {
            stall_sockets(&rt, fabric);
            let asked = ask_by_device(&rt, fabric);
            fabric.hold(1, 0);
            hear_answers(&rt, asked);
        }
        both.wait();
        meet(&rt);
    });
}

/// The pair ends at the target while the socket has not told of what it has brought. Its sender
/// may have forgotten that, since the device has it.
fn what_a_device_has_brought_counts_though_its_pair_ends_before_the_socket_tells_of_it() {
    run_cut(WriteEnd::Auto, |rt, fabric, both| {
        if rt.rank() == Rank(0) {
            stall_sockets(&rt, fabric);
            let asked = ask_by_device(&rt, fabric);
            fabric.break_pairs(1, 0);
            // That of rank 1 with itself is left.
            soon("its end is taken down", || fabric.live(1).pairs == 1);
            fabric.hold(1, 0);
            hear_answers(&rt, asked);
            assert_eq!(rt.state(Rank(1)), Ok(State::Healthy), "nothing was lost");
        }
        both.wait();
        meet(&rt);
    });
}

/// The sender has taken its end down, and waits to hear how much has come. The device of the target
/// fails before the socket has told of the bytes, so that nobody can say.
fn a_sender_does_not_wait_for_the_count_of_a_device_that_has_failed() {
    run_cut(WriteEnd::Auto, |rt, fabric, both| {
        if rt.rank() == Rank(0) {
            stall_sockets(&rt, fabric);
            ask_by_device(&rt, fabric);
            fabric.break_pairs(0, 1);
            fails!(add(&rt, 1 << 20, A_WHILE), Error::Timeout { .. });
            // That of rank 0 with itself is left.
            soon("its end is taken down", || fabric.live(0).pairs == 1);
            // Rank 1 looks at its device until that has read, or has failed.
            fabric.refuse(1, "poll_cq", 1, EIO);
            soon("operations go on", || add(&rt, 1 << 20, A_WHILE).is_ok());
            fabric.hold(1, 0);
        }
        both.wait();
        meet(&rt);
    });
}

/// A thread of the last rank is in the middle of a look at what its device brings, and does not
/// run. Meanwhile rank 0 notifies that rank by its device, and has that acknowledged; then `tells`
/// sends news of it another way, and `hears` is whether the rank has heard that. What has been
/// heard comes behind the notification.
fn news_that_come_during_a_look(
    size: u32,
    tells: impl Fn(&Runtime) + Sync,
    hears: impl Fn(&Runtime) -> bool + Sync,
) {
    let (id, last) = (NotificationId(1), size - 1);
    let hearer = Rank(last as u16);
    let all = Barrier::new(size as usize);
    let ask = |choice: &mut DeviceChoice| choice.messages = MessageCarrier::Tcp;
    let options = ("", &Config::default());
    run_with_prepared(
        size,
        options,
        |_| (),
        ask,
        |rt, fabric| {
            make(rt, S0, 4096);
            if rt.rank() == Rank(0) {
                until_by_device(rt, hearer, Q0);
            }
            meet(rt);
            for round in 1..=5 {
                let looks = || rt.notify_waitsome(S0, 1000, 1, Timeout::Test).map(drop);
                all.wait();
                if rt.rank() != hearer {
                    if rt.rank() == Rank(0) {
                        fabric.keep(last, 1);
                        soon("a thread is kept", || fabric.counter(last, "kept") == round);
                        rt.write_notify(&eight(hearer), id, 7, Q0, LIMIT).expect("posted");
                        rt.wait(Q0, LIMIT).expect("acknowledged");
                    }
                    all.wait();
                    tells(rt);
                } else {
                    std::thread::scope(|scope| {
                        scope.spawn(|| {
                            while fabric.counter(last, "kept") < round {
                                fails!(looks(), Error::Timeout { .. });
                            }
                        });
                        all.wait();
                        scope.spawn(|| {
                            // Long enough for what does not wait for the look.
                            let until = now() + Duration::from_millis(50);
                            while now() < until {
                                std::thread::yield_now();
                            }
                            fabric.keep(last, 0);
                        });
                        while !hears(rt) {}
                        assert_eq!(rt.notify_reset(S0, id), Ok(7), "round {round}");
                    });
                }
                all.wait();
                meet(rt);
            }
        },
    );
}

/// Whether a call that may not wait has come to its end.
fn has_ended(outcome: Result<()>) -> bool {
    match outcome {
        Err(error) if error.is_timeout() => false,
        other => other.map(|()| true).expect("it ends well"),
    }
}

fn frames_of_a_socket_come_behind_what_the_device_has_brought() {
    news_that_come_during_a_look(
        2,
        |rt| rt.passive_send(S0, 0, Rank(1), 8, LIMIT).expect("sent"),
        |rt| has_ended(rt.passive_receive(S0, 64, 8, Timeout::Test).map(drop)),
    );
}

/// The last rank hears from another one of its node, by the memory that they share.
fn a_barrier_ends_behind_what_the_device_has_brought() {
    news_that_come_during_a_look(4, meet, |rt| has_ended(rt.barrier(GroupId::ALL, Timeout::Test)));
}

/// The same of a step with data.
fn a_step_ends_behind_what_the_device_has_brought() {
    let step = |rt: &Runtime, timeout| tell_all(rt, 1, timeout).map(drop);
    let tells = |rt: &Runtime| step(rt, LIMIT).expect("told");
    news_that_come_during_a_look(4, tells, |rt| has_ended(step(rt, Timeout::Test)));
}

/// Rank 0 leaves while a thread of rank 1 is in the middle of a look at what its device brings, and
/// does not run. Its goodbye goes by the device, and its socket ends once that has arrived.
fn what_the_device_has_brought_comes_ahead_of_the_end_of_its_socket() {
    let both = Barrier::new(2);
    let ask = |choice: &mut DeviceChoice| choice.messages = MessageCarrier::Device;
    let options = ("", &Config::default());
    run_owned_with_devices(
        2,
        options,
        |_| (),
        ask,
        |rt, fabric| {
            make(&rt, S0, 4096);
            let sent = || [0, 1].map(|device| fabric.counter(device, "solicited"));
            let by_device = |before: [u64; 2]| (0..2).all(|device| sent()[device] > before[device]);
            within(LIMIT_OF_CHANGE, "messages by the devices", || {
                loop {
                    let before = sent();
                    both.wait();
                    meet(&rt);
                    both.wait();
                    let found = by_device(before);
                    both.wait();
                    if found {
                        break;
                    }
                }
            });
            if rt.rank() == Rank(0) {
                both.wait();
                drop(rt);
                return;
            }
            fabric.keep(1, 1);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while fabric.counter(1, "kept") == 0 {
                        fails!(rt.notify_waitsome(S0, 0, 1, Timeout::Test), Error::Timeout { .. });
                    }
                });
                soon("a thread is kept", || fabric.counter(1, "kept") > 0);
                both.wait();
                scope.spawn(|| {
                    // Long enough for what does not wait for the look.
                    let until = now() + Duration::from_millis(200);
                    while now() < until {
                        std::thread::yield_now();
                    }
                    fabric.keep(1, 0);
                });
                let outcome = std::iter::repeat_with(|| rt.ping(Rank(0), Timeout::Test))
                    .find(|outcome| !matches!(outcome, Ok(_) | Err(Error::Timeout { .. })));
                assert!(matches!(outcome, Some(Err(Error::RankLeft { .. }))), "{outcome:?}");
            });
        },
    );
}

tests! {
    VERBS_PAIRS:
        a_barrier_ends_behind_what_the_device_has_brought,
        a_sender_does_not_wait_for_the_count_of_a_device_that_has_failed,
        a_step_ends_behind_what_the_device_has_brought;
    BY_DEVICE:
        frames_of_a_socket_come_behind_what_the_device_has_brought,
        what_a_device_has_brought_counts_though_its_pair_ends_before_the_socket_tells_of_it,
        what_a_device_brings_before_the_socket_has_told_of_it_waits_for_that,
        what_the_device_has_brought_comes_ahead_of_the_end_of_its_socket;
    VERBS:
        a_goodbye_comes_behind_data_that_waits,
        disconnect_and_term_wait_for_data_that_waits,
        nothing_waits_for_a_pair_that_is_being_made,
        the_reply_of_an_atomic_operation_waits_for_its_pair;
}
