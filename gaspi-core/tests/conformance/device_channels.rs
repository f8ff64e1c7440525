//! Channels whose data devices write.

use super::channels::{HEADER, post_as, until, whole};
use super::verbs::{LIMIT_OF_CHANGE, NO_ANSWER};
use super::*;
use crate::ranks::run_with_devices;
use gaspi_mock_card::Fabric;
use std::sync::Barrier;

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
    let other = 1 - channel.me();
    send(channel, index, len).expect("sent");
    until(channel, || (channel.received(other) > index).then_some(())).expect("it comes");
    let found = whole(channel, other, index, HEADER + len);
    assert!(found == bytes(other, index, len), "message {index} of {other}");
    channel.take(other, index + 1);
}

/// Bytes that both devices have written so far.
fn written(fabric: &Fabric) -> [u64; 2] {
    [0, 1].map(|device| fabric.counter(device, "written"))
}

/// Exchanges messages until the devices of both write their data; the number of the next one.
fn until_by_device(channel: &Channel, fabric: &Fabric, both: &Barrier) -> u64 {
    within(LIMIT_OF_CHANGE, "data by the devices", || {
        for index in 0.. {
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

fn data_that_does_not_fit_the_send_queue_goes_along() {
    for options in ["max_qp_wr=1,max_inline=0", "max_qp_wr=2,max_inline=1,max_msg_sz=4096"] {
        run_with_devices(2, options, |rt, _| {
            let channel = open(rt).expect("a channel");
            (0..40).for_each(|index| exchange(&channel, index, BYTES));
            meet(rt);
        });
    }
}

fn a_device_that_fails_in_the_middle_costs_the_channel_and_names_the_rank() {
    let both = Barrier::new(2);
    run_with_devices(2, "", |rt, fabric| {
        // The write of a message, or what is behind it.
        for nth in [1, 2] {
            let open = || within(LIMIT_OF_CHANGE, "a channel", || open(rt)).expect("a channel");
            let channel = open();
            let next = until_by_device(&channel, fabric, &both);
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

fn channels_come_and_go_and_leave_no_registration() {
    let both = Barrier::new(2);
    run_with_devices(2, "", |rt, fabric| {
        let device = rt.rank().0.into();
        let regions = || fabric.live(device).regions;
        let first = open(rt).expect("a channel");
        until_by_device(&first, fabric, &both);
        drop(first);
        meet(rt);
        // What was closed by both goes when the next one is opened.
        let most = regions() + 1;
        for _ in 0..60 {
            let channel = open(rt).expect("a channel");
            (0..SLOTS).for_each(|index| exchange(&channel, index, BYTES));
            assert!(regions() <= most, "{} of {most}", regions());
            drop(channel);
            meet(rt);
        }
    });
}

tests! {
    VERBS:
        data_of_messages_is_written_by_devices_and_comes_before_them,
        a_device_that_fails_in_the_middle_costs_the_channel_and_names_the_rank,
        memory_that_a_device_does_not_take_is_an_error_of_all_where_it_has_to;
    VERBS_PAIRS:
        memory_that_a_device_does_not_take_leaves_its_data_to_connections;
    BY_DEVICE:
        channels_come_and_go_and_leave_no_registration,
        data_that_does_not_fit_the_send_queue_goes_along;
}
