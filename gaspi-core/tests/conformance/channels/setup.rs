//! Opening channels and closing them, and members that leave or die meanwhile.

use super::*;

fn an_open_that_timed_out_continues() {
    let late = Barrier::new(3);
    run(3, |rt| {
        let mut channel = None;
        if rt.rank() == Rank(1) {
            late.wait();
        } else {
            let first = rt.channel_open(GroupId::ALL, SPEC, Timeout::Test);
            fails!(first, Error::Timeout { .. });
            let other = ChannelSpec { slots: 5, ..SPEC };
            let other = rt.channel_open(GroupId::ALL, other, Timeout::Test);
            fails!(other, Error::ActiveCollective { .. });
            late.wait();
        }
        let started = ranks::now();
        while channel.is_none() {
            assert!(ranks::now() - started < Duration::from_secs(10), "it does not open");
            match rt.channel_open(GroupId::ALL, SPEC, Timeout::Test) {
                Ok(open) => channel = Some(open),
                Err(error) => assert!(error.is_timeout(), "{error}"),
            }
        }
        exchange(&channel.expect("open"), 0..50);
        meet(rt);
    });
}

fn all_hear_of_members_that_open_something_else() {
    run(3, |rt| {
        let slots = if rt.rank() == Rank(2) { 8 } else { 4 };
        let opened = rt.channel_open(GroupId::ALL, ChannelSpec { slots, ..SPEC }, LIMIT);
        let Err(Error::Mismatch { difference, .. }) = opened else { panic!("{opened:?}") };
        assert!(difference.contains("8 slots of 256 bytes"), "{difference}");
        let group = new_group(rt);
        exchange(&rt.channel_open(group, SPEC, LIMIT).expect("a channel"), 0..10);
        meet_in(rt, group);
    });
}

fn new_group(rt: &Runtime) -> GroupId {
    let group = rt.group_create().expect("a group");
    all(rt).for_each(|rank| rt.group_add(group, rank).expect("a member"));
    rt.group_commit(group, LIMIT).expect("committed");
    group
}

fn meet_in(rt: &Runtime, group: GroupId) {
    rt.barrier(group, LIMIT).expect("barrier");
}

fn what_is_too_large_fails_on_all_and_leaves_nothing() {
    run(3, |rt| {
        fails!(
            rt.channel_open(GroupId::ALL, ChannelSpec { slots: 0, ..SPEC }, LIMIT),
            Error::Number { number: 0, .. }
        );
        let huge = ChannelSpec { message_bytes: 1 << 40, ..SPEC };
        fails!(rt.channel_open(GroupId::ALL, huge, LIMIT), Error::Number { .. });
        let large = ChannelSpec { slots: 64, message_bytes: 512 << 20, stage_bytes: 0 };
        for _ in 0..3 {
            fails!(rt.channel_open(GroupId::ALL, large, LIMIT), Error::Memory { .. });
        }
        exchange(&open(rt), 0..10);
        meet(rt);
    });
}

fn several_groups_open_and_use_channels_at_once() {
    run(3, |rt| {
        let groups = [GroupId::ALL, new_group(rt), new_group(rt)];
        ranks::scope(|scope| {
            for group in groups {
                scope.spawn(move || {
                    for round in 0..5 {
                        let spec = ChannelSpec { slots: 1 + round % 3, ..SPEC };
                        let channel = rt.channel_open(group, spec, LIMIT).expect("a channel");
                        assert_eq!(channel.group(), group);
                        exchange(&channel, 0..100);
                    }
                });
            }
        });
        meet(rt);
    });
}

fn memory_of_closed_channels_is_used_again() {
    for size in ranks::sizes(&[1, 2, 4]) {
        run(size, |rt| {
            let mut places = BTreeSet::new();
            for _ in 0..1000 / u64::from(size) {
                let channel = open(rt);
                places.insert(channel.incoming(0, 0).as_ptr() as usize);
                // A count or line of the former use would be taken for one of this.
                assert!((0..size as usize).all(|member| channel.read_notice(member).is_none()));
                exchange(&channel, 0..1);
                channel.publish_notice([1; 6]);
            }
            assert!(places.len() < 50, "{} places", places.len());
            meet(rt);
        });
    }
}

/// Channels of several sizes.
fn many_specs() -> Vec<ChannelSpec> {
    let spec = |i: u64| ChannelSpec {
        slots: 1 + (i % 3) as u32,
        message_bytes: 256 + 64 * (i % 5),
        stage_bytes: 64 * (i % 4),
    };
    (0..40).map(spec).collect()
}

const DATA: DataSpec = DataSpec { bytes: 100, status_words: 70 };

fn many_channels_open_at_once_and_do_not_disturb_each_other() {
    for size in ranks::sizes(&[1, 2, 4]) {
        run(size, |rt| {
            let mut places = BTreeSet::new();
            for round in 0..30u64 {
                let specs = many_specs();
                let opened = rt.channels_open(GroupId::ALL, &specs, DATA, LIMIT);
                let (mut channels, data) = opened.expect("many");
                fill(&data.own(), &[channels[0].me() as u8; 100]);
                for (channel, spec) in channels.iter().zip(&specs) {
                    assert_eq!(channel.spec(), *spec);
                    let clean =
                        (0..size as usize).all(|member| channel.read_notice(member).is_none());
                    assert!(clean, "a notice of a former use");
                }
                rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
                for member in 0..size as usize {
                    let of_member = data.of(member);
                    assert_eq!(of_member.is_some(), channels[0].is_local(member));
                    let found = of_member.map(|data| read(&data, 100));
                    assert!(found.is_none_or(|found| found == [member as u8; 100]));
                }
                places.insert(channels[0].incoming(0, 0).as_ptr() as usize);
                // Each rank sends in an order of its own.
                let (count, me) = (channels.len(), channels[0].me());
                let order = |i: usize| (i * 7 + me * 11 + round as usize) % count;
                for channel in (0..count).map(order) {
                    (0..size as usize)
                        .for_each(|to| send(&channels[channel], to, 0).expect("sent"));
                }
                for channel in (0..count).rev().map(order) {
                    for from in 0..size as usize {
                        receive(&channels[channel], from, 0).expect("received");
                    }
                    channels[channel].publish_notice([1; 6]);
                }
                // Those that stay open keep the memory of all.
                channels.rotate_left(round as usize);
                channels.truncate(1);
                exchange(&channels[0], 1..20);
            }
            assert!(places.len() < 10, "{} places", places.len());
            meet(rt);
        });
    }
}

fn all_hear_of_members_that_open_other_channels() {
    run(3, |rt| {
        let mut specs = many_specs();
        if rt.rank() == Rank(2) {
            specs[17].slots += 1;
        }
        let opened = rt.channels_open(GroupId::ALL, &specs, DATA, LIMIT);
        let Err(Error::Mismatch { difference, .. }) = opened else { panic!("{opened:?}") };
        assert!(difference.contains("40 channels"), "{difference}");
        let opened = rt.channels_open(new_group(rt), &many_specs(), DATA, LIMIT);
        let (channels, _) = opened.expect("many");
        exchange(&channels[3], 0..10);
        meet(rt);
    });
}

/// Members of other nodes read them too, while their owner makes no call of the library.
fn status_words_are_read_by_all_while_their_owner_computes() {
    const SIZE: usize = 4;
    let (told, seen) = (Barrier::new(SIZE), Barrier::new(SIZE));
    run(SIZE as u32, |rt| {
        for round in 1..5u32 {
            let opened = rt.channels_open(GroupId::ALL, &many_specs()[..2], DATA, LIMIT);
            let (channels, data) = opened.expect("channels");
            let (me, own) = (channels[0].me(), data.own_status());
            assert_eq!(own.len(), 70);
            let all = |words: &[AtomicU32]| -> Vec<u32> {
                words.iter().map(|word| word.load(Ordering::Relaxed)).collect()
            };
            assert_eq!(all(own), [0; 70], "of a former use");
            let value = |member: usize, word: usize| round << 16 | (member * 100 + word) as u32;
            for (index, word) in own.iter().enumerate() {
                word.store(value(me, index), Ordering::Relaxed);
            }
            told.wait();
            if me == round as usize % SIZE {
                // Others read its words meanwhile: it makes no call before they have.
                seen.wait();
                meet(rt);
                continue;
            }
            for member in 0..SIZE {
                let expected: Vec<u32> = (5..60).map(|word| value(member, word)).collect();
                let mapped = data.status_of(member).map(|words| all(&words[5..60]));
                assert_eq!(mapped.is_some(), channels[0].is_local(member));
                let found = mapped.unwrap_or_else(|| {
                    let read = data.read_status(member, 5..60).expect("it lives");
                    until(&channels[0], || read.words().map(all)).expect("answered")
                });
                assert_eq!(found, expected);
            }
            seen.wait();
            meet(rt);
        }
    });
}

fn memory_of_the_arena_is_mapped_by_the_members_of_the_node() {
    run(3, |rt| {
        let channel = open(rt);
        let memory = rt.arena_memory(100_000).expect("memory");
        assert!(memory.len() >= 100_000);
        let me = channel.me() as u8;
        // SAFETY: inside of the memory, which is this rank's.
        unsafe { memory.pointer().add(99_999).write(me + 1) };
        let location = channel.locate(memory.pointer().wrapping_add(99_999), 1);
        let [kind, offset] = location.encode();
        channel.publish_notice([kind, offset, 0, 0, 0, 0]);
        for member in (0..channel.ranks().len()).filter(|member| channel.is_local(*member)) {
            let words = until(&channel, || channel.read_notice(member)).expect("told");
            let location = Location::decode([words[0], words[1]]);
            let reached = channel.reach(member, location, 1).expect("mapped");
            let found = read(&reached.slice().expect("mapped"), 1);
            assert_eq!(found, [member as u8 + 1]);
        }
        meet(rt);
        drop(memory);
        let again = rt.arena_memory(100_000).expect("memory");
        assert!(!again.is_empty());
        meet(rt);
    });
}

fn memory_that_a_member_may_still_write_to_is_not_used_again() {
    run(2, |rt| {
        let first = open(rt);
        let (me, other) = (first.me(), 1 - first.me());
        let place = first.incoming(other, 0).as_ptr() as usize;
        exchange(&first, 0..5);
        let first = (me == 1).then_some(first);
        let second = open(rt);
        if let Some(first) = first {
            // Its other end is closed, but nothing keeps this one from using it.
            for index in 5..8 {
                post(&first, other, index, &[0xff; HEADER + 256]).expect("nobody is gone");
            }
            first.arrive(1, 2, &[3]);
            first.publish_notice([4; 6]);
            exchange(&second, 0..20);
        } else {
            assert_ne!(second.incoming(other, 0).as_ptr() as usize, place);
            exchange(&second, 0..20);
        }
        assert_eq!(second.received(other), 20);
        assert_eq!(second.read_notice(other), None);
        meet(rt);
        until_used_again(rt, place);
        meet(rt);
    });
}

/// Opens channels until one lies at this place of the first of two ranks: they find it free as soon
/// as all have been told.
fn until_used_again(rt: &Runtime, place: usize) {
    soon("its place is used again", || {
        let channel = open(rt);
        let other = 1 - channel.me();
        let again = channel.incoming(other, 0).as_ptr() as usize == place;
        exchange(&channel, 0..1);
        channel.publish_notice([again.into(), 0, 0, 0, 0, 0]);
        let told = until(&channel, || channel.read_notice(0)).expect("told");
        told[0] == 1
    });
}

/// One has sent something that the other one has not taken, and they are not connected any more
/// when that closes its end.
fn memory_is_used_again_though_the_connection_has_gone_before_the_last_end() {
    run(2, |rt| {
        let (channel, other) = (open(rt), Rank(1 - rt.rank().0));
        let from = other.index();
        let place = channel.incoming(from, 0).as_ptr() as usize;
        if rt.rank() == Rank(0) {
            send(&channel, from, 0).expect("sent");
        }
        let channel = (rt.rank() == Rank(1)).then_some(channel);
        if let Some(channel) = &channel {
            until(channel, || channel.has_closed(from).then_some(())).expect("closed");
        }
        meet(rt);
        rt.disconnect(other, LIMIT).expect("nothing is under way");
        drop(channel);
        until_used_again(rt, place);
        meet(rt);
    });
}

/// Its process goes on, and it has not closed its channels one by one.
fn memory_of_channels_with_one_that_has_left_is_used_again() {
    let [has_left, has_opened, has_closed] = [0; 3].map(|_| Barrier::new(3));
    run_owned(3, &Config::default(), |rt| {
        let channels = [0; 5].map(|_| open(&rt));
        let place = |channel: &Channel| {
            let other = usize::from(channel.me() == 0);
            channel.incoming(other, 0).as_ptr() as usize
        };
        let highest = channels.iter().map(place).max();
        if rt.rank() == Rank(2) {
            meet(&rt);
            rt.term(LIMIT).expect("term");
            has_left.wait();
            has_opened.wait();
            drop(channels);
            has_closed.wait();
            return;
        }
        let pair = rt.group_create().expect("a group");
        [0, 1].iter().for_each(|rank| rt.group_add(pair, Rank(*rank)).expect("a member"));
        rt.group_commit(pair, LIMIT).expect("committed");
        meet(&rt);
        drop(channels);
        has_left.wait();
        // Its channels are there still, so that their memory is not free.
        let early = rt.channel_open(pair, SPEC, LIMIT).expect("open");
        assert!(Some(place(&early)) > highest);
        has_opened.wait();
        has_closed.wait();
        let late = rt.channel_open(pair, SPEC, LIMIT).expect("open");
        assert!(Some(place(&late)) < highest, "its memory is lost");
        rt.barrier(pair, LIMIT).expect("barrier");
        drop((early, late));
        rt.term(LIMIT).expect("term");
    });
}

fn a_member_that_has_closed_its_end_is_told_from_one_that_is_late() {
    run(2, |rt| {
        let channel = open(rt);
        let other = 1 - channel.me();
        if channel.me() == 0 {
            send(&channel, other, 0).expect("sent");
            meet(rt);
            drop(channel);
        } else {
            meet(rt);
            until(&channel, || channel.has_closed(other).then_some(())).expect("closed");
            receive(&channel, other, 0).expect("sent before it closed");
            assert_eq!(channel.check(), Ok(()));
        }
        meet(rt);
    });
}

fn a_member_that_dies_is_named_by_open_and_by_check() {
    let (ready, parted) = (Barrier::new(3), Barrier::new(3));
    run_owned(3, &Config::default(), |rt| {
        let channel = open(&rt);
        let group = new_group(&rt);
        // Nobody is still on the way when one of them ends.
        ready.wait();
        if rt.rank() == Rank(1) {
            die(rt);
            // What a process holds ends with it.
            drop(channel);
            parted.wait();
            return;
        }
        let named = |error: Error| matches!(error, Error::RankDied { rank: Rank(1), .. });
        // Asleep, until the death wakes it.
        let outcome = until(&channel, || (channel.received(1) > 0).then_some(()));
        assert!(named(outcome.expect_err("nothing comes")));
        assert!(named(channel.check().expect_err("it is dead")));
        assert!(named(rt.channel_open(group, SPEC, LIMIT).expect_err("it is dead")));
        parted.wait();
        rt.term(LIMIT).expect("term");
    });
}

fn a_member_may_leave_as_soon_as_it_has_opened() {
    for _ in 0..100 {
        run_owned(3, &Config::default(), |rt| {
            let channel = open(&rt);
            if channel.me() != 1 {
                rt.term(LIMIT).expect("term");
            } else {
                for member in [0, 2] {
                    let left = || matches!(channel.alive(member), Err(Error::RankLeft { .. }));
                    until_left(&channel, left);
                }
            }
        });
    }
}

fn what_a_member_sent_before_it_left_is_there() {
    run_owned(2, &Config::default(), |rt| {
        let channel = open(&rt);
        let other = 1 - channel.me();
        if channel.me() == 0 {
            send(&channel, other, 0).expect("sent");
            rt.term(LIMIT).expect("term");
            fails!(channel.check(), Error::NotInitialised);
        } else {
            let left = || matches!(channel.alive(0), Err(Error::RankLeft { rank: Rank(0), .. }));
            until_left(&channel, left);
            receive(&channel, other, 0).expect("it was sent");
            assert_eq!(channel.check(), Ok(()), "it may have done its part");
            assert_eq!(channel.received(other), 1);
            drop(rt);
            fails!(channel.check(), Error::NotInitialised);
        }
    });
}

/// With how many members of other nodes this rank is connected, or has been.
fn in_touch(channel: &Channel) -> usize {
    let far = |member: &usize| !channel.is_local(*member) && channel.is_in_touch(*member);
    (0..channel.ranks().len()).filter(far).count()
}

/// Ranks that are nodes of their own, more than a rank is connected with after its start.
const FAR: u32 = 24;

/// Two for each power of two, or those of the root of a tree. Some of them may still come up when
/// the start has ended: news of ends come by them.
const AT_START: usize = 16;

fn run_far(body: impl Fn(&Runtime) + Sync) {
    let job = |id: &str, rank: Rank| Job::in_process(id, rank, FAR).on_node(rank.0.into());
    ranks::run_jobs(FAR, &Config::default(), job, |rt| {
        body(&rt);
        rt.term(LIMIT).expect("term");
    });
}

/// A member with whom this rank is connected by messages only.
fn far_from(channel: &Channel) -> usize {
    let n = channel.ranks().len();
    (channel.me() + n / 2 - 1) % n
}

fn a_channel_connects_those_that_send_each_other_something() {
    run_far(|rt| {
        let first = open(rt);
        let before = in_touch(&first);
        assert!(before <= AT_START, "{before} connections to begin with");
        let to = far_from(&first);
        let n = first.ranks().len();
        let from = (0..n).find(|member| (member + n / 2 - 1) % n == first.me()).expect("one");
        meet(rt);
        send(&first, to, 0).expect("sent");
        receive(&first, from, 0).expect("received");
        meet(rt);
        let after = in_touch(&first);
        assert!(
            first.is_in_touch(to) && after <= AT_START + 2,
            "{after} connections, {before} before"
        );
        drop(first);
        let second = open(rt);
        assert!(in_touch(&second) <= AT_START + 2, "the end of a channel connects nobody");
        meet(rt);
    });
}

/// The place of a channel is used again at once where nobody has sent anything.
fn what_comes_after_the_end_of_a_channel_goes_nowhere() {
    run_far(|rt| {
        let first = open(rt);
        let (me, n) = (first.me(), first.ranks().len());
        let far = |member: usize| (member + n / 2 - 1) % n;
        let place = first.incoming(far(0), 0).as_ptr() as usize;
        let first = (me != 0).then_some(first);
        let second = open(rt);
        if me == 0 {
            assert_eq!(second.incoming(far(0), 0).as_ptr() as usize, place, "the same place");
        }
        meet(rt);
        if let Some(first) = first.filter(|_| me == far(0)) {
            for index in 0..3 {
                post(&first, 0, index, &[0xff; HEADER + 256]).expect("nobody is gone");
            }
            first.publish_notice([4; 6]);
            until(&first, || first.has_closed(0).then_some(())).expect("told so");
            assert_eq!(first.check(), Ok(()), "that is no failure");
        }
        meet(rt);
        if me == 0 {
            assert_eq!((second.received(far(0)), second.read_notice(far(0))), (0, None));
        }
        meet(rt);
        if me == far(0) {
            send(&second, 0, 0).expect("sent");
        }
        if me == 0 {
            receive(&second, far(0), 0).expect("of the channel that is there");
        }
        meet(rt);
    });
}

fn a_member_without_a_connection_is_asked_for_its_notices() {
    run_far(|rt| {
        let channel = open(rt);
        let n = channel.ranks().len();
        channel.publish_notice([1; 6]);
        meet(rt);
        let to = far_from(&channel);
        if !channel.is_in_touch(to) {
            assert_eq!(channel.read_notice(to), None, "nobody has told it");
        }
        let before = channel.notice_count();
        channel.ask_for_notice(to);
        let told = until(&channel, || channel.read_notice(to)).expect("an answer");
        assert_eq!(told, [1; 6]);
        assert!(channel.notice_count() >= before);
        meet(rt);
        // From now on it is told of all, without being asked, and so is the other one.
        let from = (0..n).find(|member| (member + n / 2 - 1) % n == channel.me()).expect("one");
        assert_eq!(until(&channel, || channel.read_notice(from)).expect("told"), [1; 6]);
        meet(rt);
        channel.publish_notice([2; 6]);
        for member in [to, from] {
            let news = || channel.read_notice(member).filter(|words| *words == [2; 6]);
            until(&channel, news).expect("told");
        }
        meet(rt);
    });
}

fn until_left(channel: &Channel, left: impl Fn() -> bool) {
    channel.wait_for(LIMIT.deadline(), || left().then_some(())).expect("it leaves");
}

tests! {
    EVERY:
        an_open_that_timed_out_continues,
        all_hear_of_members_that_open_something_else,
        what_is_too_large_fails_on_all_and_leaves_nothing,
        several_groups_open_and_use_channels_at_once,
        memory_of_closed_channels_is_used_again,
        memory_that_a_member_may_still_write_to_is_not_used_again,
        memory_is_used_again_though_the_connection_has_gone_before_the_last_end,
        many_channels_open_at_once_and_do_not_disturb_each_other,
        all_hear_of_members_that_open_other_channels,
        status_words_are_read_by_all_while_their_owner_computes,
        memory_of_the_arena_is_mapped_by_the_members_of_the_node,
        a_member_that_has_closed_its_end_is_told_from_one_that_is_late,
        a_member_that_dies_is_named_by_open_and_by_check,
        a_member_may_leave_as_soon_as_it_has_opened,
        what_a_member_sent_before_it_left_is_there;
    SHM:
        memory_of_channels_with_one_that_has_left_is_used_again;
    TCP:
        a_channel_connects_those_that_send_each_other_something,
        what_comes_after_the_end_of_a_channel_goes_nowhere,
        a_member_without_a_connection_is_asked_for_its_notices;
    SEVERAL:
        memory_of_closed_channels_is_used_again,
        many_channels_open_at_once_and_do_not_disturb_each_other;
}
