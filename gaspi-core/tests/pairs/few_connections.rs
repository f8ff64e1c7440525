//! Many ranks meet, make segments, open channels: that makes few connections, and others come to be
//! on first use.

use super::*;

/// Many ranks, which meet, and wait for each other: init and steps make few connections, and all
/// know who is late. Others are made on first use.
fn steps_of_many_ranks_need_few_connections() {
    const RANKS: u16 = 64;
    const LATE: Rank = Rank(37);
    const LATE_BY: Timeout = Timeout::Millis(1500);
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // Two for each power of two, and on average two by which news of ends come.
    let most = usize::from(RANKS) * (2 * RANKS.ilog2() as usize + 2);
    let together = Barrier::new(RANKS.into());
    run_over(Nodes::Each, RANKS.into(), &Config::default(), |rt| {
        together.wait();
        assert!(sockets() <= most, "{} sockets after init", sockets());
        rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
        together.wait();
        if rt.rank() != LATE {
            let error = rt.barrier(GroupId::ALL, LATE_BY).expect_err("one is late").to_string();
            assert!(error.contains("rank 37 to arrive"), "{}: {error}", rt.rank());
        }
        together.wait();
        rt.barrier(GroupId::ALL, LIMIT).expect("all have come");
        together.wait();
        assert!(sockets() <= most, "{} sockets after barriers", sockets());
        together.wait();
        rt.ping(Rank(RANKS - 1 - rt.rank().0), LIMIT).expect("it lives");
        rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
        rt.term(LIMIT).expect("term");
    });
}

/// How many requests the device of a rank has carried.
fn carried(rt: &Runtime) -> u64 {
    let named = |counter: &u32| {
        Runtime::statistic_info(*counter).is_some_and(|it| it.name == "NumberOfRequestsVerbs")
    };
    let counter = (0..rt.statistic_num()).find(named).expect("it is counted");
    rt.statistic_get(counter, 0).expect("counter")
}

/// Ranks with devices make a segment: keys go with the step, and nobody connects for them. Each
/// device then writes to memory of a rank with which there was no connection.
fn keys_of_many_ranks_need_few_connections() {
    const RANKS: u16 = 24;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let most = usize::from(RANKS) * (2 * RANKS.ilog2() as usize + 2);
    let together = Barrier::new(RANKS.into());
    ranks::run_with_devices(RANKS.into(), "", |rt, _| {
        for round in 1..=2u64 {
            together.wait();
            make(rt, 4096 * round);
            together.wait();
            assert!(round > 1 || sockets() <= most, "{} sockets", sockets());
            together.wait();
            let (me, target) = (u64::from(rt.rank().0), Rank((rt.rank().0 + 11) % RANKS));
            let (before, begin) = (carried(rt), Instant::now());
            let mut value = 0u64;
            while carried(rt) == before {
                assert!(begin.elapsed() < SOON, "{}: no request by the device", rt.rank());
                value += 1;
                rt.segment_write(S0, 8 * me, &(round << 32 | value).to_ne_bytes()).expect("inside");
                rt.write(&to(target, 8 * me, 8), Q0, LIMIT).expect("post");
                rt.wait(Q0, LIMIT).expect("wait");
            }
            rt.write_notify(&to(target, 8 * me, 8), NotificationId(0), value as u32, Q0, LIMIT)
                .expect("post");
            let (value, from) = (take(rt, 0), (rt.rank().0 + RANKS - 11) % RANKS);
            assert_eq!(word(rt, 8 * u64::from(from)), round << 32 | u64::from(value));
            rt.wait(Q0, LIMIT).expect("wait");
            rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
            rt.segment_delete(S0).expect("delete");
        }
    });
}

/// Ranks with devices open channels, and nobody connects for them. Devices then write data of
/// messages to ranks with which there was no connection, and memory is given back without a word
/// from those that have sent nothing.
fn channels_of_many_ranks_need_few_connections() {
    const RANKS: u16 = 24;
    const SLOTS: u64 = 4;
    const BYTES: usize = 8192;
    const ROUNDS: u32 = 6;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let most = usize::from(RANKS) * (2 * RANKS.ilog2() as usize + 2);
    let (together, missing) = (Barrier::new(RANKS.into()), AtomicU64::new(0));
    let spec = ChannelSpec { slots: SLOTS as u32, message_bytes: BYTES as u64, stage_bytes: 0 };
    ranks::run_with_devices(RANKS.into(), "", |rt, fabric| {
        let me = rt.rank().0;
        let (to, from) = ((me + 11) % RANKS, (me + RANKS - 11) % RANKS);
        let bytes = |sender: u16, index: u64| vec![(index as u8) << 5 | sender as u8; BYTES];
        let regions = || fabric.live(me.into()).regions;
        let mut most_regions = u64::MAX;
        for round in 0..ROUNDS {
            let channel = rt.channel_open(GroupId::ALL, spec, LIMIT).expect("a channel");
            assert!(regions() <= most_regions, "{me}: {} of {most_regions}", regions());
            together.wait();
            // Later rounds find the connections of the first one, and no others.
            let used = if round > 0 { 2 * usize::from(RANKS) } else { 0 };
            assert!(sockets() <= most + used, "round {round}: {} sockets", sockets());
            together.wait();
            let wait = |attempt: &mut dyn FnMut() -> Option<()>| {
                let came = channel.wait_for(LIMIT.deadline(), attempt);
                assert!(came.is_some(), "{me}, round {round}: {:?}", channel.check());
            };
            let written = || fabric.counter(me.into(), "written");
            let begin = Instant::now();
            for index in 0.. {
                let (before, data) = (written(), bytes(me, index));
                wait(&mut || (index < channel.taken(to.into()) + SLOTS).then_some(()));
                let data = (data.as_ptr(), data.len());
                wait(&mut || {
                    // SAFETY: the bytes live until the message has been sent, which copies them.
                    let sent =
                        unsafe { channel.send(to.into(), index, &[0; 8], data, Lifetime::Call) };
                    sent.expect("it lives").then_some(())
                });
                wait(&mut || (channel.received(from.into()) > index).then_some(()));
                let came = channel.incoming(from.into(), index);
                // SAFETY: it has come, and is not written before it is taken.
                let came = unsafe { std::slice::from_raw_parts(came.as_ptr(), BYTES) };
                assert!(came == bytes(from, index), "{me}: message {index}");
                channel.take(from.into(), index + 1);
                if index == 0 {
                    assert_eq!(written(), before, "{me}: to a rank that knows nothing of this one");
                }
                if written() < before + BYTES as u64 {
                    missing.fetch_add(1, Ordering::Relaxed);
                }
                together.wait();
                let all = missing.load(Ordering::Relaxed) == 0;
                together.wait();
                missing.store(0, Ordering::Relaxed);
                together.wait();
                if all {
                    break;
                }
                assert!(begin.elapsed() < SOON, "{me}: no data by the device");
            }
            drop(channel);
            rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
            // What was closed goes when the next one is opened, or when one more is.
            if round == 1 {
                most_regions = regions() + 1;
            }
        }
    });
}

tests! {
    TCP:
        steps_of_many_ranks_need_few_connections;
    VERBS:
        keys_of_many_ranks_need_few_connections;
    VERBS_PAIRS:
        channels_of_many_ranks_need_few_connections;
}
