//! Channels: what collectives are built on.

pub(crate) mod setup;

use super::*;
use gaspi_core::sync::arrival_slot::Poll;
use ranks::{BY_DEVICE, Barrier};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

const SPEC: ChannelSpec = ChannelSpec { slots: 4, message_bytes: 256, stage_bytes: 512 };
pub(super) const HEADER: usize = 64;

fn open(rt: &Runtime) -> Channel {
    rt.channel_open(GroupId::ALL, SPEC, LIMIT).expect("a channel")
}

fn fill(slice: &PeerSlice<'_>, bytes: &[u8]) {
    assert!(bytes.len() <= slice.len());
    // SAFETY: inside of the slice, which nobody else uses now.
    unsafe { slice.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
}

/// Sends a message that begins with its head.
fn post(channel: &Channel, to: usize, index: u64, bytes: &[u8]) -> Result<()> {
    post_as(channel, to, index, bytes, Lifetime::Call)
}

/// The same with data that stays for longer, if it is said to.
pub(super) fn post_as(
    channel: &Channel,
    to: usize,
    index: u64,
    bytes: &[u8],
    lifetime: Lifetime,
) -> Result<()> {
    let (head, data) = bytes.split_at(HEADER);
    let words = head.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("8")));
    let head: Head = words.collect::<Vec<_>>().try_into().expect("a head");
    let data = (data.as_ptr(), data.len());
    // SAFETY: the bytes of the slice.
    let send = || unsafe { channel.send(to, index, &head, data, lifetime) };
    until(channel, || match send() {
        Ok(false) => None,
        sent => Some(sent.map(drop)),
    })?
}

fn read(slice: &PeerSlice<'_>, bytes: usize) -> Vec<u8> {
    let mut found = vec![0; bytes];
    assert!(bytes <= slice.len());
    // SAFETY: checked range, of a channel that lives.
    unsafe { slice.as_ptr().copy_to_nonoverlapping(found.as_mut_ptr(), bytes) };
    found
}

/// A message of so many bytes that has been received.
pub(super) fn whole(channel: &Channel, from: usize, index: u64, bytes: usize) -> Vec<u8> {
    let head = channel.head(from, index);
    let mut found: Vec<u8> = head.iter().flat_map(|word| word.to_ne_bytes()).collect();
    found.extend(read(&channel.incoming(from, index), bytes - HEADER));
    found
}

/// A message that tells pair, index and length.
fn message(from: usize, to: usize, index: u64) -> Vec<u8> {
    let len = HEADER + (index as usize * 37 + from * 11 + to) % 257;
    let mut bytes = vec![(index as u8) ^ (from as u8) << 4 ^ to as u8; len];
    bytes[..8].copy_from_slice(&index.to_ne_bytes());
    bytes[8..16].copy_from_slice(&(len as u64).to_ne_bytes());
    bytes
}

/// Waits as an executor does.
pub(super) fn until<T>(channel: &Channel, mut attempt: impl FnMut() -> Option<T>) -> Result<T> {
    let found = channel.wait_for(LIMIT.deadline(), || {
        if let Some(found) = attempt() {
            return Some(Ok(found));
        }
        let failed = channel.check().err()?;
        Some(attempt().ok_or(failed))
    });
    found.unwrap_or_else(|| Err(Error::Timeout { pending: "a member".to_owned() }))
}

fn send(channel: &Channel, to: usize, index: u64) -> Result<()> {
    let slots = u64::from(channel.spec().slots);
    until(channel, || (index < channel.taken(to) + slots).then_some(()))?;
    let bytes = message(channel.me(), to, index);
    post(channel, to, index, &bytes)
}

fn receive(channel: &Channel, from: usize, index: u64) -> Result<()> {
    until(channel, || (channel.received(from) > index).then_some(()))?;
    let expected = message(from, channel.me(), index);
    assert_eq!(whole(channel, from, index, expected.len()), expected, "{from} {index}");
    channel.take(from, index + 1);
    Ok(())
}

/// Every member sends to every one, itself included.
fn exchange(channel: &Channel, rounds: std::ops::Range<u64>) {
    let members = 0..channel.ranks().len();
    for index in rounds {
        for to in members.clone() {
            send(channel, to, index).expect("sent");
        }
        for from in members.clone() {
            receive(channel, from, index).expect("received");
        }
    }
}

fn messages_between_all_pairs_arrive_in_order_and_whole() {
    for size in ranks::sizes(&[1, 2, 3, 5, 8]) {
        run(size, |rt| {
            let channel = open(rt);
            assert_eq!(channel.ranks()[channel.me()], rt.rank());
            exchange(&channel, 0..2000 / u64::from(size));
            meet(rt);
        });
    }
}

fn a_pair_goes_round_its_slots_thousands_of_times() {
    run(2, |rt| {
        let spec = ChannelSpec { slots: 1, ..SPEC };
        let one = rt.channel_open(GroupId::ALL, spec, LIMIT).expect("a channel");
        let three = ChannelSpec { slots: 3, ..SPEC };
        let three = rt.channel_open(GroupId::ALL, three, LIMIT).expect("a channel");
        exchange(&one, 0..3000);
        exchange(&three, 0..6000);
        meet(rt);
    });
}

fn large_messages_arrive_whole() {
    run(3, |rt| {
        let spec = ChannelSpec { slots: 2, message_bytes: 3 << 20, stage_bytes: 0 };
        let channel = rt.channel_open(GroupId::ALL, spec, LIMIT).expect("a channel");
        let bytes = |from: usize, index: u64| vec![(from as u64 * 31 + index) as u8; (3 << 20) - 5];
        for index in 0..6 {
            for to in 0..3 {
                until(&channel, || (index < channel.taken(to) + 2).then_some(())).expect("room");
                post(&channel, to, index, &bytes(channel.me(), index)).expect("sent");
            }
            for from in 0..3 {
                until(&channel, || (channel.received(from) > index).then_some(())).expect("came");
                let found = whole(&channel, from, index, (3 << 20) - 5);
                assert!(found == bytes(from, index), "message {index} of {from}");
                channel.take(from, index + 1);
            }
        }
        meet(rt);
    });
}

fn data_that_was_lent_is_the_senders_again_before_the_message_is_taken() {
    const BYTES: usize = 300_000;
    run(3, |rt| {
        let spec = ChannelSpec { slots: 4, message_bytes: BYTES as u64, stage_bytes: 0 };
        let channel = rt.channel_open(GroupId::ALL, spec, LIMIT).expect("a channel");
        let (me, size) = (channel.me(), channel.ranks().len());
        let bytes = |from: usize, index: u64| {
            let bytes = (0..HEADER + BYTES).map(|i| (i as u64 * 7 + 3 * index) as u8 ^ from as u8);
            bytes.collect::<Vec<u8>>()
        };
        for first in (0..24).step_by(4) {
            let mut lent: Vec<Vec<u8>> = (first..first + 4).map(|n| bytes(me, n)).collect();
            for to in (0..size).filter(|to| *to != me) {
                for (index, bytes) in (first..).zip(&lent) {
                    let lifetime = Lifetime::UntilAcknowledged { awaited: index % 2 == 1 };
                    post_as(&channel, to, index, bytes, lifetime).expect("sent");
                }
            }
            let returned = || channel.in_flight().is_empty().then_some(());
            until(&channel, returned).expect("it comes back");
            lent.iter_mut().for_each(|bytes| bytes.fill(0xee));
            meet(rt);
            for from in (0..size).filter(|from| *from != me) {
                for index in first..first + 4 {
                    until(&channel, || (channel.received(from) > index).then_some(()))
                        .expect("came");
                    let found = whole(&channel, from, index, HEADER + BYTES);
                    assert!(found == bytes(from, index), "message {index} of {from}");
                    channel.take(from, index + 1);
                }
            }
            meet(rt);
        }
    });
}

fn data_of_expected_messages_goes_to_its_place() {
    const BYTES: usize = 300_000;
    run(2, |rt| {
        let spec = ChannelSpec { slots: 4, message_bytes: BYTES as u64, stage_bytes: 0 };
        let channel = rt.channel_open(GroupId::ALL, spec, LIMIT).expect("a channel");
        let message = |index: u64| {
            let bytes = (0..HEADER + BYTES).map(|i| (i as u64 * 7 + index) as u8);
            bytes.collect::<Vec<u8>>()
        };
        if !channel.may_post_receive(1) || channel.me() == 1 {
            meet(rt);
            for index in (0..3).filter(|_| channel.me() == 1) {
                post(&channel, 0, index, &message(index)).expect("sent");
            }
            meet(rt);
            return;
        }
        let begin = |index: u64| {
            let bytes = message(index);
            let word = |nth: usize| {
                u64::from_ne_bytes(bytes[8 * nth..8 * nth + 8].try_into().expect("eight bytes"))
            };
            [word(0), word(1), word(2)]
        };
        // One as expected, one that is another than expected, one that is not expected any more.
        let mut places = vec![vec![0; BYTES]; 3];
        let mut expect = |index: usize, head| {
            let to = (places[index].as_mut_ptr(), BYTES as u64);
            // SAFETY: the memory lives until all three have come.
            unsafe { channel.post_receive(1, index as u64, head, to) };
        };
        expect(2, begin(2));
        channel.withdraw();
        expect(0, begin(0));
        expect(1, [9; 3]);
        meet(rt);
        until(&channel, || (channel.received(1) > 2).then_some(())).expect("came");
        // Devices write into slots.
        let by_device = BY_DEVICE.contains(&Nodes::of_this_test());
        let here = channel.complete_receive(1, 0).map_or(BYTES, |here| here as usize);
        assert!(here < BYTES || by_device, "{here} bytes are in the slot");
        assert_eq!(whole(&channel, 1, 0, HEADER + here), message(0)[..HEADER + here]);
        assert!(places[0][here..] == message(0)[HEADER + here..]);
        for index in [1, 2] {
            assert_eq!(channel.complete_receive(1, index), None);
            assert!(whole(&channel, 1, index, HEADER + BYTES) == message(index));
            assert!(places[index as usize].iter().all(|byte| *byte == 0), "message {index}");
        }
        meet(rt);
    });
}

/// Ahead of a message comes the news of slots of several channels, more than is received with it.
fn data_goes_to_its_place_behind_the_news_of_many_channels() {
    const BYTES: usize = 40_000;
    const ROUNDS: u64 = 40;
    run(2, |rt| {
        let spec = ChannelSpec { slots: 1, message_bytes: BYTES as u64, stage_bytes: 0 };
        let open = |_| rt.channel_open(GroupId::ALL, spec, LIMIT).expect("a channel");
        let mut channels: Vec<(Channel, u64)> = (0..8).map(open).map(|it| (it, 0)).collect();
        let message = |round: u64| -> Vec<u8> {
            let data = (0..BYTES).map(|i| (i as u64 * 7 + round) as u8);
            [round, 2, 3]
                .map(u64::to_ne_bytes)
                .concat()
                .into_iter()
                .chain([0; 40])
                .chain(data)
                .collect()
        };
        let mut place = vec![0; BYTES];
        let mut in_place = 0;
        for round in 0..ROUNDS {
            let few = 1 + round as usize % channels.len();
            if rt.rank() == Rank(0) {
                let to = (place.as_mut_ptr(), BYTES as u64);
                // SAFETY: the memory lives until the message has come.
                unsafe { channels[0].0.post_receive(1, round, [round, 2, 3], to) };
            }
            for (channel, index) in &mut channels[..few] {
                match rt.rank() {
                    Rank(0) => post(channel, 1, *index, &[1; HEADER]).expect("sent"),
                    _ => until(channel, || (channel.received(0) > *index).then_some(()))
                        .expect("came"),
                }
                *index += 1;
            }
            let channel = &channels[0].0;
            if rt.rank() == Rank(1) {
                channels[..few].iter().for_each(|(channel, index)| channel.take(0, *index));
                until(channel, || (channel.taken(0) == round).then_some(())).expect("room");
                post(channel, 0, round, &message(round)).expect("sent");
                continue;
            }
            until(channel, || (channel.received(1) > round).then_some(())).expect("came");
            let here = channel.complete_receive(1, round).map_or(BYTES, |here| here as usize);
            assert!(whole(channel, 1, round, HEADER + here) == message(round)[..HEADER + here]);
            assert!(place[here..] == message(round)[HEADER + here..], "round {round}");
            in_place += u64::from(here < 1000);
            channel.take(1, round + 1);
        }
        // Whoever waits may send the news ahead.
        assert!(rt.rank() == Rank(1) || in_place > ROUNDS * 3 / 4, "{in_place} of {ROUNDS}");
        meet(rt);
    });
}

fn a_sender_sees_how_far_its_receiver_is() {
    run(2, |rt| {
        let channel = open(rt);
        let other = 1 - channel.me();
        if channel.me() == 0 {
            for index in 0..4 {
                assert_eq!(channel.taken(other), 0);
                post(&channel, other, index, &[index as u8; HEADER]).expect("sent");
            }
            meet(rt);
            until(&channel, || (channel.taken(other) >= 2).then_some(())).expect("taken");
            meet(rt);
            until(&channel, || (channel.taken(other) == 3).then_some(())).expect("all told");
        } else {
            until(&channel, || (channel.received(other) == 4).then_some(())).expect("all came");
            meet(rt);
            channel.take(other, 1);
            channel.take(other, 2);
            meet(rt);
            channel.take(other, 3);
            // Told along with it, where it is not told at once.
            post(&channel, other, 0, &[9; HEADER]).expect("sent");
        }
        meet(rt);
    });
}

fn lines_carry_words_and_staging() {
    for size in ranks::sizes(&[4]) {
        run(size, |rt| {
            let channel = open(rt);
            let n = size as usize;
            let local: Vec<usize> = (0..n).filter(|member| channel.is_local(*member)).collect();
            assert_eq!(local.len() as u32, rt.local_size());
            for member in 0..n {
                let same = channel.node(member) == channel.node(channel.me());
                assert_eq!(same, channel.is_local(member));
            }
            assert_eq!(channel.node(0), 0);
            let word = |member: usize, sequence: u64| member as u64 * 1_000_003 + sequence * 7;
            for sequence in 1..2000 {
                let own = word(channel.me(), sequence);
                fill(&channel.stage(channel.me(), sequence), &[own as u8; 512]);
                channel.arrive(sequence, sequence * 3, &[own, sequence]);
                for member in &local {
                    let arrived = || {
                        let look = channel.poll(*member, sequence);
                        assert!(matches!(look, Poll::Missing | Poll::Arrived(_)), "{look:?}");
                        (look == Poll::Arrived(sequence * 3)).then_some(())
                    };
                    until(&channel, arrived).expect("all arrive");
                    let theirs = word(*member, sequence);
                    assert_eq!(channel.payload(*member, sequence)[..2], [theirs, sequence]);
                    let stage = channel.stage(*member, sequence);
                    assert_eq!(read(&stage, 512), vec![theirs as u8; 512]);
                }
            }
            meet(rt);
        });
    }
}

fn the_latest_notice_of_each_reaches_everybody() {
    run(4, |rt| {
        let channel = open(rt);
        assert!((0..4).all(|member| channel.read_notice(member).is_none()));
        meet(rt);
        for round in 1..=500 {
            let me = channel.me() as u64;
            channel.publish_notice([round, me, !round, round * me, 0, 5]);
        }
        for member in 0..4u64 {
            let last = [500, member, !500, 500 * member, 0, 5];
            let told = || {
                let told = channel.read_notice(member as usize)?;
                // Whatever is seen on the way is one of the notices.
                assert_eq!(told, [told[0], member, !told[0], told[0] * member, 0, 5]);
                (told == last).then_some(())
            };
            until(&channel, told).expect("told");
        }
        meet(rt);
    });
}

fn programs_do_not_see_the_memory_of_channels() {
    let config = Config { segment_max: 3, ..Config::default() };
    run_with(2, &config, |rt| {
        let count = |rt: &Runtime| {
            let get = |counter| rt.statistic_get(counter, 0);
            // Time, bytes and messages apart, which waiting and frames take.
            let of_calls = |counter: &u32| {
                let info = Runtime::statistic_info(*counter).expect("a counter");
                let of_others = ["Barrier", "GroupMessages"];
                info.name.starts_with("NumberOf")
                    && !of_others.iter().any(|name| info.name.contains(name))
            };
            (0..rt.statistic_num()).filter(of_calls).map(get).collect::<Vec<_>>()
        };
        let before = count(rt);
        let channel = open(rt);
        exchange(&channel, 0..3);
        assert_eq!(count(rt), before);
        let hidden = SegmentId(255);
        let other = Rank(1 - rt.rank().0);
        assert_eq!((rt.segment_num(), rt.segment_list()), (0, vec![]));
        assert_eq!(rt.segment_avail_local(), Ok(S0));
        fails!(rt.segment_ptr(hidden), Error::InvalidSegment { .. });
        fails!(rt.segment_delete(hidden), Error::InvalidSegment { .. });
        fails!(rt.segment_register(hidden, other, LIMIT), Error::InvalidSegment { .. });
        fails!(rt.segment_alloc(hidden, 8, Init::Zeroed), Error::InvalidSegment { .. });
        for rank in all(rt) {
            fails!(rt.segment_size(hidden, rank), Error::InvalidSegment { .. });
            fails!(
                rt.notify(rank, hidden, NotificationId(0), 1, Q0, LIMIT),
                Error::InvalidSegment { .. }
            );
            fails!(rt.atomic_fetch_add(hidden, 0, rank, 1, LIMIT), Error::InvalidSegment { .. });
        }
        fails!(rt.notify_waitsome(hidden, 0, 1, Timeout::Test), Error::InvalidSegment { .. });
        for segment in [S0, S1, S2] {
            make(rt, segment, 64);
        }
        let to = Transfer { remote: hidden, ..eight(other) };
        fails!(rt.write(&to, Q0, LIMIT), Error::InvalidSegment { .. });
        let from = Transfer { local: hidden, ..eight(other) };
        fails!(rt.read(&from, Q0, LIMIT), Error::InvalidSegment { .. });
        let lane = QueueId(QUEUE_MAX as u8);
        fails!(rt.write(&eight(other), lane, LIMIT), Error::InvalidQueue { .. });
        fails!(rt.wait(lane, LIMIT), Error::InvalidQueue { .. });
        fails!(rt.queue_purge(lane, LIMIT), Error::InvalidQueue { .. });
        while rt.queue_create(LIMIT).is_ok() {}
        assert_eq!(rt.queue_num(), QUEUE_MAX);
        exchange(&channel, 3..6);
        meet(rt);
    });
}

fn memory_of_members_is_reached_where_it_lies() {
    for size in ranks::sizes(&[4]) {
        run(size, |rt| {
            let channel = open(rt);
            let (me, n) = (channel.me(), size as usize);
            make(rt, S0, 4096);
            rt.segment_alloc(S1, 4096, Init::Zeroed).expect("a segment of its own");
            let start = rt.segment_ptr(S0).expect("a segment");
            put_u64(rt, S0, 128, 100 + me as u64);
            let mut private = vec![200 + me as u64, 0];
            let in_segment = channel.locate(start.wrapping_add(128), 8);
            assert!(
                matches!(in_segment, Location::Segment { id: S0, offset: 128, .. }),
                "{in_segment:?}"
            );
            let tail = channel.locate(start.wrapping_add(4090), 8);
            assert_eq!(tail, Location::Address(start as u64 + 4090), "not all of it lies inside");
            let own = rt.segment_ptr(S1).expect("a segment");
            let unknown = channel.locate(own, 8);
            let alone = rt.local_size() == 1;
            assert_eq!(matches!(unknown, Location::Segment { .. }), alone, "{unknown:?}");
            let address = channel.locate(private.as_ptr().cast(), 16);
            assert_eq!(address, Location::Address(private.as_ptr() as u64));
            let [one, two] = in_segment.encode();
            channel.arrive(1, 0, &[one, two, private.as_mut_ptr() as u64]);
            for member in (0..n).filter(|member| channel.is_local(*member)) {
                until(&channel, || (channel.poll(member, 1) == Poll::Arrived(0)).then_some(()))
                    .unwrap();
                let [one, two, address, ..] = channel.payload(member, 1);
                let reached =
                    channel.reach(member, Location::decode([one, two]), 8).expect("mapped");
                let found = read(&reached.slice().expect("mapped"), 8);
                assert_eq!(found, (100 + member as u64).to_ne_bytes());
                assert!(channel.reach(member, Location::decode([one, two]), 8192).is_none());
                assert!(channel.all_reachable(), "threads of one process");
                if member == me {
                    continue;
                }
                let location = Location::Address(address);
                assert!(channel.reach(member, location, 16).expect("allowed").slice().is_none());
                let mut value = 0u64;
                // SAFETY: writes eight bytes onto this stack.
                unsafe { channel.pull(member, address, (&raw mut value).cast(), 8) }
                    .expect("copied");
                assert_eq!(value, 200 + member as u64);
                let gift = 300 + me as u64;
                // SAFETY: reads eight bytes of this stack; the member expects them.
                unsafe { channel.push(member, address + 8, (&raw const gift).cast(), 8) }
                    .expect("copied");
                // SAFETY: the target is this stack, of which nothing is written.
                let nowhere = unsafe { channel.pull(member, 16, (&raw mut value).cast(), 8) };
                fails!(nowhere, Error::Refused { .. });
            }
            meet(rt);
            // SAFETY: all members have met after they wrote there.
            let given = unsafe { private.as_ptr().add(1).read_volatile() };
            let gave = (0..n).any(|m| m != me && channel.is_local(m) && given == 300 + m as u64);
            assert!(gave || alone, "{given}");
            // One that is deleted is not reached any more.
            let reached = channel.reach(me, in_segment, 8);
            assert!(reached.is_some());
            rt.segment_delete(S0).expect("deleted");
            meet(rt);
            assert!(channel.reach(me, in_segment, 8).is_none());
            meet(rt);
        });
    }
}

fn what_a_layer_above_keeps_goes_before_its_rank() {
    struct Engine {
        channel: Channel,
        in_time: Arc<AtomicBool>,
    }
    impl Extension for Engine {}
    impl Drop for Engine {
        fn drop(&mut self) {
            let closed = self.channel.check() == Err(Error::NotInitialised);
            self.in_time.store(!closed, Ordering::SeqCst);
        }
    }
    let parted = Barrier::new(2);
    run_owned(2, &Config::default(), |rt| {
        let in_time = Arc::new(AtomicBool::new(false));
        let make = || Engine { channel: open(&rt), in_time: Arc::clone(&in_time) };
        exchange(&rt.extension(make).channel, 0..5);
        let engine = rt.extension::<Engine>(|| unreachable!("it was made"));
        exchange(&engine.channel, 5..9);
        meet(&rt);
        if rt.rank() == Rank(1) {
            let channel = &engine.channel;
            let closed = || channel.has_closed(0).then_some(());
            channel.wait_for(LIMIT.deadline(), closed).expect("its end is closed before it leaves");
            parted.wait();
            drop(rt);
        } else {
            drop(rt);
            parted.wait();
        }
        assert!(in_time.load(Ordering::SeqCst), "the rank had left before");
    });
}

tests! {
    EVERY:
        messages_between_all_pairs_arrive_in_order_and_whole,
        a_pair_goes_round_its_slots_thousands_of_times,
        large_messages_arrive_whole,
        data_that_was_lent_is_the_senders_again_before_the_message_is_taken,
        data_of_expected_messages_goes_to_its_place,
        a_sender_sees_how_far_its_receiver_is,
        lines_carry_words_and_staging,
        the_latest_notice_of_each_reaches_everybody,
        programs_do_not_see_the_memory_of_channels,
        memory_of_members_is_reached_where_it_lies,
        what_a_layer_above_keeps_goes_before_its_rank;
    TCP:
        data_goes_to_its_place_behind_the_news_of_many_channels;
    SEVERAL:
        messages_between_all_pairs_arrive_in_order_and_whole,
        lines_carry_words_and_staging,
        memory_of_members_is_reached_where_it_lies;
}
