//! Channels whose data devices write.

use super::channels::{HEADER, post_as, until, whole};
use super::verbs::{LIMIT_OF_CHANGE, NO_ANSWER};
use super::*;
use crate::ranks::{run_with_devices, run_with_prepared};
use gaspi_mock_card::Fabric;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of a message behind its head.
const BYTES: usize = 40_000;
/// So few go along with the message.
const FEW: usize = 1000;
const SLOTS: u64 = 4;

/// Registered bytes that suffice for a rank, but not for a [large](open_large) channel beside it.
const TOO_FEW: &str = "max_registered=6000000";

fn open_for(rt: &Runtime, message_bytes: u64) -> Result<Channel> {
    let spec = ChannelSpec { slots: SLOTS as u32, message_bytes, stage_bytes: 0 };
    rt.channel_open(GroupId::ALL, spec, LIMIT)
}

fn open(rt: &Runtime) -> Result<Channel> {
    open_for(rt, BYTES as u64)
}

fn open_large(rt: &Runtime) -> Result<Channel> {
    open_for(rt, 1 << 20)
}

/// A message with so many bytes behind its head, other ones than the next.
fn bytes(from: usize, index: u64, len: usize) -> Vec<u8> {
    (0..HEADER + len).map(|i| (i as u64 * 7 + index * 13) as u8 ^ (from as u8) << 6).collect()
}

fn send(channel: &Channel, index: u64, len: usize) -> Result<()> {
    let (me, other) = (channel.me(), 1 - channel.me());
    until(channel, || (index < channel.taken(other) + SLOTS).then_some(()))?;
    post_as(channel, other, index, &bytes(me, index, len), Lifetime::Call)
}

/// Sends a message to the other rank, and receives one of it.
fn exchange(channel: &Channel, index: u64, len: usize) {
    try_exchange(channel, index, len).expect("sent, and received");
}

/// The same; an error too once the other rank has told that it has given up. A message that was
/// refused has not been posted, so that nobody else tells its receiver.
fn try_exchange(channel: &Channel, index: u64, len: usize) -> Result<()> {
    let (me, other) = (channel.me(), 1 - channel.me());
    let given_up = || {
        let reason = "it has given up".to_owned();
        channel.read_notice(other).map(|_| Err(Error::Refused { rank: Rank(other as u16), reason }))
    };
    let unless_given_up = |is_done: bool| if is_done { Some(Ok(())) } else { given_up() };
    until(channel, || unless_given_up(index < channel.taken(other) + SLOTS))??;
    post_as(channel, other, index, &bytes(me, index, len), Lifetime::Call)?;
    until(channel, || unless_given_up(channel.received(other) > index))??;
    let found = whole(channel, other, index, HEADER + len);
    assert!(found == bytes(other, index, len), "message {index} of {other}");
    channel.take(other, index + 1);
    Ok(())
}

/// Bytes that both devices have written so far.
fn written(fabric: &Fabric) -> [u64; 2] {
    [0, 1].map(|device| fabric.counter(device, "written"))
}

/// Exchanges messages until the devices of both write their data; the number of the next one.
fn until_by_device(channel: &Channel, fabric: &Fabric, both: &Barrier) -> u64 {
    until_by_device_from(0, channel, fabric, both)
}

/// The same, beginning with this number.
fn until_by_device_from(first: u64, channel: &Channel, fabric: &Fabric, both: &Barrier) -> u64 {
    within(LIMIT_OF_CHANGE, "data by the devices", || {
        for index in first.. {
            let before = written(fabric);
            both.wait();
            exchange(channel, index, BYTES);
            both.wait();
            let after = written(fabric);
            both.wait();
            if (0..2).all(|device| after[device] - before[device] >= BYTES as u64) {
                return index + 1;
            }
        }
        unreachable!("it exchanges for ever")
    })
}

fn data_of_messages_is_written_by_devices_and_comes_before_them() {
    const ROUNDS: u64 = 60;
    for options in ["", "placement=2", "placement=2,by_pair=1", "max_qp_wr=3,max_msg_sz=16384"] {
        let both = Barrier::new(2);
        run_with_devices(2, options, |rt, fabric| {
            let channel = open(rt).expect("a channel");
            let next = until_by_device(&channel, fabric, &both);
            let before = written(fabric);
            both.wait();
            (next..next + ROUNDS).for_each(|index| exchange(&channel, index, BYTES));
            both.wait();
            // All of it, and each byte once: none is left for a socket, or for messages.
            let by_device = written(fabric).map(|now| now - BYTES as u64 * ROUNDS);
            assert_eq!(by_device, before, "{options}");
            both.wait();
            (next + ROUNDS..next + 2 * ROUNDS).for_each(|index| exchange(&channel, index, FEW));
            both.wait();
            let few = written(fabric).map(|now| now - BYTES as u64 * ROUNDS);
            assert_eq!(few, before, "what fits goes along with the message");
            meet(rt);
        });
    }
}

fn data_goes_by_devices_alone_from_the_first_message_on() {
    const ROUNDS: u64 = 5;
    // At once, while no pair can be up yet, and late.
    for options in ["", "shuffle=1"] {
        run_with_devices(2, options, |rt, fabric| {
            let written = || fabric.counter(rt.rank().0.into(), "written");
            let channel = open(rt).expect("a channel");
            let before = written();
            (0..ROUNDS).for_each(|index| exchange(&channel, index, BYTES));
            assert_eq!(written() - before, BYTES as u64 * ROUNDS, "none is left for a socket");
            meet(rt);
        });
    }
}

fn a_member_without_a_pair_is_an_error_of_all_that_data_would_go_to() {
    let few = |fabric: &Fabric| fabric.set(2, "max_qp=1");
    run_with_prepared(
        3,
        ("", &Config::default()),
        few,
        |_| (),
        |rt, _| {
            for _ in 0..2 {
                let opened = open(rt);
                fails!(opened, Error::Refused { reason, .. } if reason.contains("GASPI_IB_PAIRS"));
                meet(rt);
            }
        },
    );
}

/// A message of a barrier is lost with its pair. Nothing of a channel may be under way.
fn break_pair(rt: &Runtime, fabric: &Fabric, both: &Barrier) {
    both.wait();
    if rt.rank() == Rank(0) {
        fabric.fail(0, 0, 1, NO_ANSWER);
    }
    meet(rt);
    // Until the other rank has left the barrier this one calls nothing.
    both.wait();
}

/// Meets until the devices of both send what that takes.
fn until_messages_by_device(rt: &Runtime, fabric: &Fabric, both: &Barrier) {
    within(LIMIT_OF_CHANGE, "messages by the devices", || {
        loop {
            let sent = || [0, 1].map(|device| fabric.counter(device, "send"));
            let before = sent();
            both.wait();
            meet(rt);
            both.wait();
            let after = sent();
            both.wait();
            if (0..2).all(|device| after[device] > before[device]) {
                return;
            }
        }
    });
}

fn a_message_that_was_lost_is_sent_again_while_its_sender_computes() {
    let both = Barrier::new(2);
    for _ in 0..30 {
        run_with_devices(2, "", |rt, fabric| {
            for _ in 0..3 {
                until_messages_by_device(rt, fabric, &both);
                break_pair(rt, fabric, &both);
            }
        });
    }
}

fn messages_wait_for_the_next_pair_when_theirs_has_failed() {
    let both = Barrier::new(2);
    for _ in 0..5 {
        run_with_devices(2, "", |rt, fabric| {
            let written = || fabric.counter(0, "written");
            let channel = open(rt).expect("a channel");
            let before = written();
            break_pair(rt, fabric, &both);
            // The other rank may not know yet that the pair is gone.
            if rt.rank() == Rank(0) {
                send(&channel, 0, BYTES).expect("sent");
                assert_eq!(written() - before, BYTES as u64, "none goes by a socket meanwhile");
            } else {
                until(&channel, || (channel.received(0) > 0).then_some(())).expect("it comes");
            }
            meet(rt);
        });
    }
}

fn messages_fail_where_pairs_fail_again_and_again_and_another_channel_tries_anew() {
    let both = Barrier::new(2);
    run_with_devices(2, "", |rt, fabric| {
        let channel = open(rt).expect("a channel");
        for _ in 0..3 {
            until_messages_by_device(rt, fabric, &both);
            break_pair(rt, fabric, &both);
        }
        if rt.rank() == Rank(0) {
            let sent = within(LIMIT_OF_CHANGE, "giving up", || send(&channel, 0, BYTES));
            fails!(sent, Error::Refused { rank: Rank(1), reason } if reason.contains("again"));
        }
        // Both know that the pair is gone then.
        meet(rt);
        let another = open(rt).expect("another channel");
        (0..SLOTS).for_each(|index| exchange(&another, index, BYTES));
        meet(rt);
    });
}

fn a_channel_that_waits_for_its_pair_can_be_continued() {
    let cut = |fabric: &Fabric| fabric.link(0, 1, 0);
    let both = Barrier::new(2);
    run_with_prepared(
        2,
        (OWN_TIME, &Config::default()),
        cut,
        |_| (),
        |rt, fabric| {
            let spec =
                ChannelSpec { slots: SLOTS as u32, message_bytes: BYTES as u64, stage_bytes: 0 };
            let open = |timeout| rt.channel_open(GroupId::ALL, spec, timeout);
            for _ in 0..3 {
                let opened = open(Timeout::Millis(50));
                fails!(opened, Error::Timeout { pending } if pending.contains("RDMA"));
            }
            both.wait();
            fabric.link(0, 1, 1);
            fabric.advance(SECOND_NS);
            let channel = open(LIMIT).expect("a channel");
            (0..SLOTS).for_each(|index| exchange(&channel, index, BYTES));
            meet(rt);
        },
    );
}

fn data_that_does_not_fit_the_send_queue_goes_along() {
    for options in ["max_qp_wr=1,max_inline=0", "max_qp_wr=2,max_inline=1,max_msg_sz=4096"] {
        run_with_devices(2, options, |rt, _| {
            let channel = open(rt).expect("a channel");
            (0..40).for_each(|index| exchange(&channel, index, BYTES));
            meet(rt);
        });
    }
}

/// The first pairs that fail cost nothing: what they have lost goes by the next ones.
fn pairs_that_fail_again_and_again_cost_the_channel_and_name_the_rank() {
    let both = Barrier::new(2);
    run_with_devices(2, "", |rt, fabric| {
        // The write of a message, or what is behind it.
        for nth in [1, 2] {
            let open = || within(LIMIT_OF_CHANGE, "a channel", || open(rt)).expect("a channel");
            let channel = open();
            let mut next = until_by_device(&channel, fabric, &both);
            for _ in 0..2 {
                if rt.rank() == Rank(0) {
                    fabric.fail(0, 0, nth, NO_ANSWER);
                }
                both.wait();
                (next..next + SLOTS).for_each(|index| exchange(&channel, index, BYTES));
                next = until_by_device_from(next + SLOTS, &channel, fabric, &both);
            }
            if rt.rank() == Rank(0) {
                fabric.fail(0, 0, nth, NO_ANSWER);
                let failed = (next..next + SLOTS)
                    .try_for_each(|index| send(&channel, index, BYTES))
                    .and_then(|()| until(&channel, || None::<()>));
                let Err(Error::Refused { rank: Rank(1), reason }) = failed else {
                    panic!("{failed:?}");
                };
                assert!(reason.contains("the peer's device does not answer"), "{reason}");
            }
            both.wait();
            if rt.rank() == Rank(1) {
                assert_eq!(channel.received(0), next, "nothing behind what was lost is seen");
            }
            both.wait();
            drop(channel);
            let again = open();
            (0..20).for_each(|index| exchange(&again, index, BYTES));
        }
        meet(rt);
    });
}

fn data_that_two_pairs_have_lost_is_written_by_the_third() {
    let (both, written) = (Barrier::new(2), AtomicU32::new(0));
    // One of them proves the second pair, which is refused then; others are what that sends again.
    for nth in 2..14 {
        run_with_devices(2, "", |rt, fabric| {
            let channel = open(rt).expect("a channel");
            let next = until_by_device(&channel, fabric, &both);
            both.wait();
            if rt.rank() == Rank(0) {
                [1, nth].into_iter().for_each(|nth| fabric.fail(0, 0, nth, NO_ANSWER));
            }
            both.wait();
            let mut indices = next..next + 2 * SLOTS;
            let outcome = indices.try_for_each(|index| try_exchange(&channel, index, BYTES));
            if outcome.is_err() {
                channel.publish_notice([1; 6]);
            }
            assert!(outcome.as_ref().err().is_none_or(|error| !error.is_timeout()), "{outcome:?}");
            written.fetch_add(outcome.is_ok().into(), Ordering::Relaxed);
            both.wait();
        });
    }
    let written = written.into_inner();
    assert!(written >= 12, "{written} of 24 halves have gone on");
}

fn memory_that_a_device_does_not_take_is_an_error_of_all_where_it_has_to() {
    run_with_devices(2, "", |rt, fabric| {
        meet(rt);
        if rt.rank() == Rank(1) {
            fabric.set(1, TOO_FEW);
        }
        meet(rt);
        let reason = open_large(rt).expect_err("more than a device takes").to_string();
        assert!(reason.contains("memory of a channel"), "{reason}");
        assert!(reason.contains("ulimit -l"), "{reason}");
        meet(rt);
        let channel = open(rt).expect("a smaller one");
        (0..20).for_each(|index| exchange(&channel, index, BYTES));
        meet(rt);
    });
}

fn memory_that_a_device_does_not_take_leaves_its_data_to_connections() {
    let both = Barrier::new(2);
    run_with_devices(2, "", |rt, fabric| {
        // On one of both is enough.
        fabric.set(0, TOO_FEW);
        both.wait();
        let before = written(fabric);
        both.wait();
        let channel = open_large(rt).expect("a channel");
        (0..100).for_each(|index| exchange(&channel, index, BYTES));
        both.wait();
        assert_eq!(written(fabric), before);
        meet(rt);
    });
}

fn a_device_knows_only_what_members_of_other_nodes_use_of_a_channel() {
    let message_bytes = 1 << 20;
    let spec = ChannelSpec { slots: SLOTS as u32, message_bytes, stage_bytes: 1 << 16 };
    let ring = SLOTS * message_bytes;
    run_with_devices(4, "", |rt, fabric| {
        let registered = || fabric.live(rt.rank().0.into()).registered_bytes;
        let before = registered();
        let channel = rt.channel_open(GroupId::ALL, spec, LIMIT).expect("a channel");
        let others = (0..4).filter(|member| !channel.is_local(*member)).count() as u64;
        let grown = registered() - before;
        // Slots both ways, and little more, as buffers of pairs.
        let slots = 2 * others * ring;
        assert!((slots..slots + ring / 2).contains(&grown), "{grown} for slots of {slots}");
        let (data, before) = (DataSpec { bytes: 5 << 20, status_words: 4 }, registered());
        let opened = rt.channels_open(GroupId::ALL, &[spec, spec, spec], data, LIMIT);
        let (channels, memory) = opened.expect("channels");
        let grown = registered() - before;
        let used = 3 * slots + data.bytes;
        assert!((used..used + ring / 2).contains(&grown), "{grown} for {used} that are used");
        drop((channels, memory));
        meet(rt);
    });
}

fn channels_come_and_go_and_leave_no_registration() {
    let both = Barrier::new(2);
    run_with_devices(2, "", |rt, fabric| {
        let device = rt.rank().0.into();
        let regions = || fabric.live(device).regions;
        let first = open(rt).expect("a channel");
        until_by_device(&first, fabric, &both);
        drop(first);
        meet(rt);
        // What was closed by both goes when the next one is opened, or when one more is: the device
        // may not have told yet that the last writes from there have ended.
        let most = regions() + 2;
        for _ in 0..60 {
            let channel = open(rt).expect("a channel");
            (0..SLOTS).for_each(|index| exchange(&channel, index, BYTES));
            assert!(regions() <= most, "{} of {most}", regions());
            drop(channel);
            meet(rt);
        }
    });
}

/// Bytes of data that is sent from where it lies, where it can be.
const MUCH: usize = 150_000;
/// Time passes only as tests say.
const OWN_TIME: &str = "time_scale=0";
const SECOND_NS: u64 = 1_000_000_000;

/// Memory of the program that data is sent from.
struct Memory(*mut u8);

impl Memory {
    fn fill(&self, byte: u8) {
        // SAFETY: each is made of so many bytes that live as long as the test.
        unsafe { self.0.write_bytes(byte, MUCH) };
    }

    /// Sends it to the other rank, which is told what to expect of it; it stays until it is
    /// acknowledged.
    fn send(&self, channel: &Channel, index: u64) {
        let (to, lifetime) = (1 - channel.me(), Lifetime::UntilAcknowledged { awaited: true });
        // SAFETY: the memory lives as long as the test.
        let send = || unsafe { channel.send(to, index, &[index; 8], (self.0, MUCH), lifetime) };
        until(channel, || (index < channel.taken(to) + SLOTS).then_some(())).expect("a slot");
        until(channel, || send().expect("sent").then_some(())).expect("room");
    }
}

fn returned(channel: &Channel) {
    until(channel, || channel.in_flight().is_empty().then_some(())).expect("it comes back");
}

/// Receives a message of the other rank whose data is this byte again and again.
fn receive(channel: &Channel, index: u64, byte: u8) {
    let from = 1 - channel.me();
    until(channel, || (channel.received(from) > index).then_some(())).expect("it comes");
    let found = whole(channel, from, index, HEADER + MUCH).split_off(HEADER);
    let wrong = found.iter().find(|came| **came != byte);
    assert_eq!(wrong, None, "in place of {byte} in message {index}");
    channel.take(from, index + 1);
}

fn data_is_written_from_where_it_lies_if_the_device_knows_the_memory() {
    let (both, cut) = (Barrier::new(2), Barrier::new(2));
    run_with_devices(2, OWN_TIME, |rt, fabric| {
        make(rt, S0, MUCH as u64);
        let channel = open_for(rt, MUCH as u64).expect("a channel");
        let next = until_by_device(&channel, fabric, &both);
        let (mut shown, mut unknown) = (vec![0; MUCH], vec![0; MUCH]);
        // SAFETY: it is dropped before the memory.
        let buffer = unsafe { channel.show_to_device(shown.as_ptr(), MUCH) };
        let buffer = buffer.expect("the device takes it");
        let segment = rt.segment_ptr(S0).expect("a segment");
        let kinds = [(shown.as_mut_ptr(), 2), (segment, 2), (unknown.as_mut_ptr(), 1)];
        for (index, (memory, expected)) in (next..).zip(kinds) {
            cut.wait();
            if rt.rank() == Rank(0) {
                let memory = Memory(memory);
                memory.fill(1);
                fabric.link(0, 1, 0);
                memory.send(&channel, index);
                // No program may do that: it shows who has read the memory when.
                memory.fill(2);
                fabric.link(0, 1, 1);
                fabric.advance(30 * SECOND_NS);
                returned(&channel);
            } else {
                receive(&channel, index, expected);
            }
            meet(rt);
        }
        drop(buffer);
    });
}

fn memory_that_was_shown_to_a_device_is_known_to_it_until_it_is_dropped() {
    let both = Barrier::new(2);
    run_with_devices(2, "", |rt, fabric| {
        let device = rt.rank().0.into();
        let channel = open_for(rt, MUCH as u64).expect("a channel");
        let mut next = until_by_device(&channel, fabric, &both);
        let regions = || fabric.live(device).regions;
        let before = regions();
        let mut data = [vec![0; MUCH], vec![0; MUCH]];
        for round in 0..30u8 {
            let show = |data: &Vec<u8>| {
                // SAFETY: it is dropped before the memory.
                let buffer = unsafe { channel.show_to_device(data.as_ptr(), MUCH) };
                buffer.expect("the device takes it")
            };
            let buffers: Vec<_> = data.iter().map(show).collect();
            assert_eq!(regions(), before + 2);
            for (index, data) in (next..).zip(&mut data) {
                let memory = Memory(data.as_mut_ptr());
                memory.fill(round);
                memory.send(&channel, index);
            }
            // At once, though the device still writes from there.
            drop(buffers);
            assert_eq!(regions(), before, "round {round}");
            for _ in 0..data.len() {
                receive(&channel, next, round);
                next += 1;
            }
            returned(&channel);
        }
        // SAFETY: it lives as long as the test.
        let small = unsafe { channel.show_to_device(data[0].as_ptr(), FEW) };
        assert!(small.is_none(), "it is copied anyway");
        meet(rt);
    });
}

fn memory_that_the_device_does_not_take_is_copied() {
    let both = Barrier::new(2);
    run_with_devices(2, "", |rt, fabric| {
        let device = rt.rank().0.into();
        let channel = open_for(rt, MUCH as u64).expect("a channel");
        let next = until_by_device(&channel, fabric, &both);
        fabric.set(device, &format!("max_mr={}", fabric.live(device).regions));
        let mut data = vec![0; MUCH];
        // SAFETY: there is none.
        let shown = unsafe { channel.show_to_device(data.as_ptr(), MUCH) };
        assert!(shown.is_none(), "no registration is left");
        let before = written(fabric)[usize::from(rt.rank().0)];
        let memory = Memory(data.as_mut_ptr());
        for index in next..next + 10 {
            memory.fill(index as u8);
            memory.send(&channel, index);
            receive(&channel, index, index as u8);
            returned(&channel);
        }
        let by_device = written(fabric)[usize::from(rt.rank().0)] - before;
        assert_eq!(by_device, 10 * MUCH as u64, "from slots");
        meet(rt);
    });
}

fn a_segment_is_deleted_behind_the_data_that_is_sent_from_it() {
    let both = Barrier::new(2);
    run_with_devices(2, "", |rt, fabric| {
        let channel = open_for(rt, MUCH as u64).expect("a channel");
        let next = until_by_device(&channel, fabric, &both);
        for index in next..next + 30 {
            rt.segment_alloc(S0, MUCH as u64, Init::Zeroed).expect("a segment");
            let memory = Memory(rt.segment_ptr(S0).expect("a segment"));
            memory.fill(index as u8);
            memory.send(&channel, index);
            rt.segment_delete(S0).expect("delete");
            receive(&channel, index, index as u8);
            returned(&channel);
        }
        meet(rt);
    });
}

tests! {
    VERBS:
        data_is_written_from_where_it_lies_if_the_device_knows_the_memory,
        memory_that_the_device_does_not_take_is_copied,
        memory_that_was_shown_to_a_device_is_known_to_it_until_it_is_dropped,
        a_channel_that_waits_for_its_pair_can_be_continued,
        a_message_that_was_lost_is_sent_again_while_its_sender_computes,
        a_member_without_a_pair_is_an_error_of_all_that_data_would_go_to,
        a_segment_is_deleted_behind_the_data_that_is_sent_from_it,
        data_goes_by_devices_alone_from_the_first_message_on,
        data_that_two_pairs_have_lost_is_written_by_the_third,
        messages_fail_where_pairs_fail_again_and_again_and_another_channel_tries_anew,
        messages_wait_for_the_next_pair_when_theirs_has_failed,
        data_of_messages_is_written_by_devices_and_comes_before_them,
        pairs_that_fail_again_and_again_cost_the_channel_and_name_the_rank,
        memory_that_a_device_does_not_take_is_an_error_of_all_where_it_has_to;
    VERBS_PAIRS:
        memory_that_a_device_does_not_take_leaves_its_data_to_connections;
    BY_DEVICE:
        a_device_knows_only_what_members_of_other_nodes_use_of_a_channel,
        channels_come_and_go_and_leave_no_registration,
        data_that_does_not_fit_the_send_queue_goes_along;
}
