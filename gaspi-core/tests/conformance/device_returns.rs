//! Connections that leave a device for their sockets, or wait for its next pair, and come back to
//! it: no message is lost, doubled or out of order, and nobody sees an error.

use super::channels::{HEADER, post_as, until, whole};
use super::verbs::{LIMIT_OF_CHANGE, NO_ANSWER};
use super::*;
use crate::ranks::{run_owned_with_devices, run_with_devices};
use gaspi_mock_card::Fabric;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

/// Beside a status: the request is carried out, and only its answer is lost.
const ANSWER_LOST: u32 = 1 << 16;
const SLOTS: u64 = 4;
/// Bytes of messages that a device writes from its slot, from where they lie, and that go along.
const SIZES: [usize; 3] = [5_000, 100_000, 700];
const LARGEST: usize = 100_000;
/// Bytes of passive messages: the frame of one takes a message of the device, two, or many.
const PASSIVE: [u64; 3] = [16, 3_000, 60_000];
/// Where they are sent from, and received.
const FROM: u64 = 1 << 16;
const TO: u64 = 2 << 16;
const STEPS: u64 = 60;
/// Time passes only as tests say.
const OWN_TIME: &str = "time_scale=0";

/// What a rank does, the same in each run with its seed.
struct Chance(Cell<u64>);

impl Chance {
    fn of(seed: u64, rank: Rank) -> Chance {
        Chance(Cell::new(seed ^ (u64::from(rank.0) + 1) << 40))
    }

    fn below(&self, limit: u64) -> u64 {
        self.0.set(self.0.get().wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e));
        (self.0.get() >> 33) % limit
    }
}

/// What two ranks say to each other, all of which is numbered.
struct Traffic<'a> {
    rt: &'a Runtime,
    channel: Channel,
    step: Cell<u64>,
}

impl<'a> Traffic<'a> {
    fn new(rt: &'a Runtime) -> Traffic<'a> {
        make(rt, S0, 3 << 16);
        let message_bytes = LARGEST as u64;
        let spec = ChannelSpec { slots: SLOTS as u32, message_bytes, stage_bytes: 0 };
        let channel = rt.channel_open(GroupId::ALL, spec, LIMIT).expect("a channel");
        Traffic { rt, channel, step: Cell::new(0) }
    }

    fn bytes(from: usize, index: u64) -> Vec<u8> {
        let len = HEADER + SIZES[index as usize % SIZES.len()];
        (0..len).map(|i| (i as u64 * 7 + index * 13) as u8 ^ (from as u8) << 6).collect()
    }

    /// Messages of all sizes each way, one behind the other, and what `plan` does among them.
    fn messages(&self, first: u64, plan: impl Fn()) {
        let (channel, other) = (&self.channel, 1 - self.channel.me());
        let indices = first..first + SIZES.len() as u64;
        let all: Vec<_> = indices.clone().map(|n| Traffic::bytes(channel.me(), n)).collect();
        let show = |bytes: &Vec<u8>| {
            let data = &bytes[HEADER..];
            // SAFETY: dropped below, before the memory.
            unsafe { channel.show_to_device(data.as_ptr(), data.len()) }
        };
        let shown: Vec<_> = all.iter().map(show).collect();
        for (index, bytes) in indices.clone().zip(&all) {
            until(channel, || (index < channel.taken(other) + SLOTS).then_some(()))
                .expect("a slot");
            let lifetime = match bytes.len() > LARGEST {
                true => Lifetime::UntilAcknowledged { awaited: true },
                false => Lifetime::Call,
            };
            post_as(channel, other, index, bytes, lifetime).expect("sent");
            plan();
        }
        for index in indices {
            until(channel, || (channel.received(other) > index).then_some(())).expect("it comes");
            let expected = Traffic::bytes(other, index);
            let found = whole(channel, other, index, expected.len());
            assert!(found == expected, "message {index} of {other}");
            channel.take(other, index + 1);
        }
        let received = channel.received(other);
        assert_eq!(received, first + SIZES.len() as u64, "more than was sent");
        until(channel, || channel.in_flight().is_empty().then_some(())).expect("it comes back");
        drop(shown);
    }

    /// A passive message, which one of both sends.
    fn passive(&self, index: u64, peer: Rank, plan: impl Fn()) {
        let (rt, size) = (self.rt, PASSIVE[index as usize / 2 % PASSIVE.len()]);
        let last = size - 8;
        // Beside the message of the other one, which is cut in the middle of its frame then.
        plan();
        if rt.rank() == Rank((index % 2) as u16) {
            put_u64(rt, S0, FROM, index);
            put_u64(rt, S0, FROM + last, !index);
            rt.passive_send(S0, FROM, peer, size, LIMIT).expect("sent");
        } else {
            assert_eq!(rt.passive_receive(S0, TO, size, LIMIT), Ok(peer));
            assert_eq!(get_u64(rt, S0, TO), index);
            assert_eq!(get_u64(rt, S0, TO + last), !index);
        }
    }

    /// An atomic operation, messages each way, a passive message, and a barrier.
    fn step(&self, plan: impl Fn()) {
        let (rt, index) = (self.rt, self.step.get());
        let peer = Rank(1 - rt.rank().0);
        self.step.set(index + 1);
        plan();
        let former = rt.atomic_fetch_add(S0, 16, peer, 1, LIMIT);
        assert_eq!(former, Ok(index), "each is carried out once");
        self.messages(index * SIZES.len() as u64, &plan);
        self.passive(index, peer, &plan);
        plan();
        meet(rt);
        assert_eq!(rt.state(peer), Ok(State::Healthy), "nothing was lost");
    }

    /// Goes on until the devices of both carry messages again, as the first rank finds.
    fn until_by_device(&self, fabric: &Fabric, both: &Both) {
        until_by_device(self.rt, fabric, both, || self.step(|| ()));
    }
}

/// Where two ranks meet by other means than messages, and what one of them tells the other.
struct Both(std::sync::Barrier, AtomicBool);

impl Both {
    fn new() -> Both {
        Both(std::sync::Barrier::new(2), AtomicBool::new(false))
    }

    fn wait(&self) {
        self.0.wait();
    }

    /// Both repeat a body until the first rank finds that it has `done` what it should.
    fn until(&self, rt: &Runtime, what: &str, body: impl Fn(), done: impl Fn() -> bool) {
        within(LIMIT_OF_CHANGE, what, || {
            loop {
                body();
                if rt.rank() == Rank(0) {
                    self.1.store(done(), Ordering::Relaxed);
                }
                self.wait();
                let found = self.1.load(Ordering::Relaxed);
                self.wait();
                if found {
                    return;
                }
            }
        });
    }
}

/// Goes on with `step` until the devices of both ranks carry its messages.
fn until_by_device(rt: &Runtime, fabric: &Fabric, both: &Both, step: impl Fn()) {
    let sent = || [0, 1].map(|device| fabric.counter(device, "solicited"));
    let before = Cell::new([0; 2]);
    let body = || {
        before.set(sent());
        both.wait();
        step();
    };
    let all_have = || sent().iter().zip(before.get()).all(|(after, before)| *after > before);
    both.until(rt, "messages by the devices", body, all_have);
}

fn nothing_is_lost_while_ports_go_down_and_up() {
    let (seed, both) = (ranks::next_seed(), Both::new());
    run_with_devices(2, "", |rt, fabric| {
        let traffic = Traffic::new(rt);
        let chance = Chance::of(seed, rt.rank());
        for _ in 0..3 {
            traffic.until_by_device(fabric, &both);
            for _ in 0..STEPS / 3 {
                // Of either side, or of both.
                traffic.step(|| match chance.below(16) {
                    0 => fabric.port(chance.below(2) as u32, 0),
                    1..4 => fabric.port(chance.below(2) as u32, 1),
                    _ => {}
                });
            }
            both.wait();
            fabric.port(rt.rank().0.into(), 1);
        }
        traffic.until_by_device(fabric, &both);
    });
}

fn nothing_is_lost_or_comes_twice_where_acknowledgements_are_lost() {
    let both = Both::new();
    for _ in 0..3 {
        let seed = ranks::next_seed();
        run_with_devices(2, "", |rt, fabric| {
            let traffic = Traffic::new(rt);
            let chance = Chance::of(seed, rt.rank());
            // After three of them messages stay with TCP.
            for round in 0..2 {
                traffic.until_by_device(fabric, &both);
                if u64::from(rt.rank().0) == (seed + round) % 2 {
                    let status = NO_ANSWER | if chance.below(3) == 0 { 0 } else { ANSWER_LOST };
                    // In each kind of message, or between them.
                    fabric.fail(rt.rank().0.into(), 0, 1 + chance.below(100), status);
                }
                for _ in 0..10 {
                    traffic.step(|| ());
                }
            }
            traffic.until_by_device(fabric, &both);
        });
    }
}

fn a_pair_that_fails_after_a_long_time_is_followed_by_another_one() {
    const ROUNDS: u32 = 4;
    let both = Both::new();
    run_with_devices(2, "", |rt, fabric| {
        let traffic = Traffic::new(rt);
        for _ in 0..ROUNDS {
            traffic.until_by_device(fabric, &both);
            rt.age_message_pairs(Duration::from_secs(3600));
            if rt.rank() == Rank(0) {
                fabric.fail(0, 0, 1, NO_ANSWER);
            }
            (0..5).for_each(|_| traffic.step(|| ()));
        }
        traffic.until_by_device(fabric, &both);
        assert!(failed(rt) >= ROUNDS, "{} pairs have failed", failed(rt));
    });
}

fn a_long_cut_between_devices_costs_messages_nothing_while_sockets_work() {
    let both = Both::new();
    run_with_devices(2, OWN_TIME, |rt, fabric| {
        let traffic = Traffic::new(rt);
        traffic.until_by_device(fabric, &both);
        while_cut(rt, fabric, (link, 0), || (), || (0..10).for_each(|_| traffic.step(|| ())));
        both.wait();
        fabric.link(0, 1, 1);
    });
}

fn goodbyes_are_heard_while_ports_go_down() {
    for _ in 0..10 {
        let (seed, both) = (ranks::next_seed(), Both::new());
        let options = ("", &Config::default());
        run_owned_with_devices(
            2,
            options,
            |_| (),
            |_| (),
            |rt, fabric| {
                let traffic = Traffic::new(&rt);
                let chance = Chance::of(seed, rt.rank());
                traffic.until_by_device(fabric, &both);
                traffic.step(|| {
                    if chance.below(6) == 0 {
                        fabric.port(chance.below(2) as u32, 0);
                    }
                });
                drop(traffic);
                if chance.below(2) == 0 {
                    fabric.port(chance.below(2) as u32, 0);
                }
                rt.term(LIMIT).expect("it leaves in order");
            },
        );
    }
}

/// What keeps everything from the devices of two ranks: the link is cut, or a port is down.
type Cut = fn(&Fabric, u32, i32);

pub(super) fn link(fabric: &Fabric, _: u32, up: i32) {
    fabric.link(0, 1, up);
}

fn port(fabric: &Fabric, device: u32, up: i32) {
    fabric.port(device, up);
}

fn ports(fabric: &Fabric, _: u32, up: i32) {
    (0..2).for_each(|device| fabric.port(device, up));
}

/// Has rank 0 cut the link, and time pass from then on while a body runs, `looking` now and then.
pub(super) fn while_cut(
    rt: &Runtime,
    fabric: &Fabric,
    (cut, device): (Cut, u32),
    looking: impl Fn() + Sync,
    body: impl FnOnce(),
) {
    const SECOND_NS: u64 = 1_000_000_000;
    let over = AtomicBool::new(false);
    ranks::scope(|scope| {
        if rt.rank() == Rank(0) {
            cut(fabric, device, 0);
            scope.spawn(|| {
                // As often as there are tries, each with its own limit.
                while !over.load(Ordering::Relaxed) {
                    looking();
                    fabric.advance(SECOND_NS);
                    std::thread::yield_now();
                }
            });
        }
        body();
        over.store(true, Ordering::Relaxed);
    });
}

pub(super) fn failed(rt: &Runtime) -> u32 {
    rt.pairs().expect("a device").failed
}

/// No socket may carry the messages: they wait for the next pair, which is tried until the link is
/// healed.
fn a_cut_that_ends_while_the_next_pair_is_tried_costs_messages_nothing() {
    let both = Both::new();
    run_with_devices(2, OWN_TIME, |rt, fabric| {
        let traffic = Traffic::new(rt);
        // The pair of each fails twice at most: a third one would be the last.
        for (cut, device) in [(link as Cut, 0), (port, 1)] {
            traffic.until_by_device(fabric, &both);
            let (before, healed) = (failed(rt), AtomicBool::new(false));
            let heals = || {
                if failed(rt) > before && !healed.swap(true, Ordering::Relaxed) {
                    cut(fabric, device, 1);
                }
            };
            while_cut(rt, fabric, (cut, device), heals, || {
                (0..5).for_each(|_| traffic.step(|| ()))
            });
            both.wait();
            // The other one may have been told before its own end has failed.
            assert!(rt.rank() != Rank(0) || failed(rt) > before, "no pair has ended");
        }
    });
}

fn barriers_go_on_by_the_socket_while_no_pair_can_be_made() {
    let both = Both::new();
    run_with_devices(2, OWN_TIME, |rt, fabric| {
        let traffic = Traffic::new(rt);
        traffic.until_by_device(fabric, &both);
        let before = failed(rt);
        both.wait();
        if rt.rank() == Rank(0) {
            // The next attempt neither fails nor comes to anything: time stands still.
            fabric.link(0, 1, 0);
            fabric.break_pairs(0, 1);
        }
        both.wait();
        (0..10).for_each(|_| meet(rt));
        both.wait();
        assert!(failed(rt) > before, "the pair is as it was");
        both.wait();
        if rt.rank() == Rank(0) {
            fabric.link(0, 1, 1);
            fabric.advance(1_000_000_000);
        }
        traffic.until_by_device(fabric, &both);
    });
}

/// Nothing but time tells that the cut is over.
fn messages_come_back_after_a_cut_that_has_refused_their_pair() {
    let both = Both::new();
    run_with_devices(2, OWN_TIME, |rt, fabric| {
        until_by_device(rt, fabric, &both, || meet(rt));
        let before = failed(rt);
        both.wait();
        // The pair, and two attempts at the next one: no refusal is the last.
        let refused = || failed(rt) >= before + 3;
        let step = || both.until(rt, "attempts during the cut", || meet(rt), refused);
        while_cut(rt, fabric, (link, 0), || (), step);
        if rt.rank() == Rank(0) {
            fabric.link(0, 1, 1);
        }
        until_by_device(rt, fabric, &both, || meet(rt));
    });
}

fn what_waits_for_a_pair_that_cannot_be_made_is_an_error_and_no_hang() {
    for cut in [(link as Cut, 0), (port, 0), (port, 1), (ports, 0)] {
        let both = Both::new();
        run_with_devices(2, OWN_TIME, |rt, fabric| {
            let traffic = Traffic::new(rt);
            let peer = Rank(1 - rt.rank().0);
            traffic.until_by_device(fabric, &both);
            both.wait();
            let body = || {
                let add = || rt.atomic_fetch_add(S0, 24, peer, 1, LIMIT);
                let error = within(LIMIT_OF_CHANGE, "an error", || {
                    std::iter::repeat_with(add).find_map(Result::err).expect("it is cut")
                });
                let told = error.to_string();
                assert!(!error.is_timeout() && told.contains(&peer.to_string()), "{told}");
                // Nothing keeps what may go by the socket.
                meet(rt);
                both.wait();
            };
            while_cut(rt, fabric, cut, || (), body);
        });
    }
}

fn a_rank_that_leaves_while_its_messages_wait_for_a_pair_has_left() {
    let both = Both::new();
    let options = (OWN_TIME, &Config::default());
    run_owned_with_devices(
        2,
        options,
        |_| (),
        |_| (),
        |rt, fabric| {
            let traffic = Traffic::new(&rt);
            traffic.until_by_device(fabric, &both);
            drop(traffic);
            both.wait();
            if rt.rank() == Rank(1) {
                both.wait();
                let has_left = || matches!(rt.ping(Rank(0), LIMIT), Err(Error::RankLeft { .. }));
                soon("it has left, and is not lost", has_left);
                return;
            }
            let before = failed(&rt);
            fabric.link(0, 1, 0);
            let add = rt.atomic_fetch_add(S0, 24, Rank(1), 1, Timeout::Millis(100));
            fails!(add, Error::Timeout { .. });
            fabric.break_pairs(0, 1);
            soon("its end is gone", || {
                fails!(rt.notify_waitsome(S0, 0, 1, Timeout::Test), Error::Timeout { .. });
                failed(&rt) > before
            });
            both.wait();
            within(AT_ONCE, "leaving", || drop(rt));
        },
    );
}

tests! {
    BY_DEVICE:
        a_pair_that_fails_after_a_long_time_is_followed_by_another_one,
        messages_come_back_after_a_cut_that_has_refused_their_pair,
        nothing_is_lost_or_comes_twice_where_acknowledgements_are_lost;
    VERBS:
        a_cut_that_ends_while_the_next_pair_is_tried_costs_messages_nothing,
        a_rank_that_leaves_while_its_messages_wait_for_a_pair_has_left,
        barriers_go_on_by_the_socket_while_no_pair_can_be_made,
        what_waits_for_a_pair_that_cannot_be_made_is_an_error_and_no_hang;
    VERBS_PAIRS:
        a_long_cut_between_devices_costs_messages_nothing_while_sockets_work,
        goodbyes_are_heard_while_ports_go_down,
        nothing_is_lost_while_ports_go_down_and_up;
}
