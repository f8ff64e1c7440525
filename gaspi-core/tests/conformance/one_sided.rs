//! Writes, reads and their lists (GASPI 17.1, 8.2 and 8.4).

use super::*;

fn ranges_are_checked_on_both_sides() {
    let config = Config { transfer_size_max: 1024, ..Config::default() };
    run_with(2, &config, |rt| {
        make(rt, S0, 4096);
        let good = eight(Rank(1));
        type Call<'a> = (&'a str, &'a dyn Fn(&Transfer) -> Result<()>);
        let calls: [Call<'_>; 4] = [
            ("write", &|t| rt.write(t, Q0, LIMIT)),
            ("read", &|t| rt.read(t, Q0, LIMIT)),
            ("write_notify", &|t| rt.write_notify(t, NotificationId(0), 1, Q0, LIMIT)),
            ("read_notify", &|t| rt.read_notify(t, NotificationId(0), Q0, LIMIT)),
        ];
        for (name, call) in calls {
            let is = |t: Transfer, wanted: fn(&Error) -> bool| {
                let error = call(&t).expect_err(name);
                assert!(wanted(&error), "{name} of {t:?}: {error}");
            };
            is(Transfer { local_offset: 4096, ..good }, |e| matches!(e, Error::LocalOffset { .. }));
            is(Transfer { local_offset: u64::MAX, ..good }, |e| {
                matches!(e, Error::LocalOffset { .. })
            });
            is(Transfer { remote_offset: 4096, ..good }, |e| {
                matches!(e, Error::RemoteOffset { .. })
            });
            is(Transfer { local_offset: 4096, size: 0, ..good }, |e| {
                matches!(e, Error::LocalOffset { .. })
            });
            is(Transfer { remote_offset: u64::MAX, size: 0, ..good }, |e| {
                matches!(e, Error::RemoteOffset { .. })
            });
            is(Transfer { local_offset: 4089, ..good }, |e| matches!(e, Error::CommSize { .. }));
            is(Transfer { remote_offset: 4089, ..good }, |e| matches!(e, Error::CommSize { .. }));
            is(Transfer { size: 1025, ..good }, |e| matches!(e, Error::CommSize { .. }));
            is(Transfer { size: u64::MAX, ..good }, |e| matches!(e, Error::CommSize { .. }));
            is(Transfer { local: S1, ..good }, |e| matches!(e, Error::InvalidSegment { .. }));
            is(Transfer { remote: S1, ..good }, |e| matches!(e, Error::InvalidSegment { .. }));
            is(Transfer { remote: SegmentId(255), ..good }, |e| {
                matches!(e, Error::InvalidSegment { .. })
            });
            is(Transfer { rank: Rank(2), ..good }, |e| matches!(e, Error::InvalidRank { .. }));
        }
        fails!(rt.write(&good, QueueId(8), LIMIT), Error::InvalidQueue { .. });
        fails!(rt.read(&good, QueueId(255), LIMIT), Error::InvalidQueue { .. });
        assert_eq!(rt.queue_size(Q0), Ok(0), "what is refused takes no slot");
        // Up to the limits everything works.
        let whole = Transfer { local_offset: 3072, remote_offset: 3072, size: 1024, ..good };
        rt.write(&whole, Q0, LIMIT).expect("write");
        rt.wait(Q0, LIMIT).expect("wait");
        let first = rt.notify_waitsome(S0, 0, 65536, Timeout::Test);
        assert!(first.expect_err("nothing was notified").is_timeout());
        meet(rt);
    });
}

fn data_arrives_whole_at_every_size_and_offset() {
    for ranks in ranks::sizes(&SIZES) {
        run(ranks, |rt| {
            let len = 1 << 18;
            let me = rt.rank();
            make(rt, S0, len);
            make(rt, S1, len);
            let byte = |rank: Rank, at: u64| (u64::from(rank.0) * 31 + at * 7 + at / 256) as u8;
            let pattern: Vec<u8> = (0..len).map(|at| byte(me, at)).collect();
            rt.segment_write(S0, 0, &pattern).expect("inside");
            meet(rt);
            let next = Rank((me.0 + 1) % ranks as u16);
            let previous = Rank((me.0 + ranks as u16 - 1) % ranks as u16);
            for (size, offset) in [(1, 0), (7, 3), (64, 64), (4096, 1), (len, 0), (len - 5, 5)] {
                let mut bytes = vec![0; size as usize];
                let t = Transfer {
                    local: S0,
                    local_offset: offset,
                    rank: next,
                    remote: S1,
                    remote_offset: offset,
                    size,
                };
                rt.write(&t, Q0, LIMIT).expect("write");
                rt.wait(Q0, LIMIT).expect("wait");
                meet(rt);
                rt.segment_read(S1, offset, &mut bytes).expect("inside");
                assert!((offset..).zip(&bytes).all(|(at, got)| *got == byte(previous, at)));
                meet(rt);
                let t = Transfer { local: S1, remote: S0, ..t };
                rt.read(&t, Q0, LIMIT).expect("read");
                rt.wait(Q0, LIMIT).expect("wait");
                rt.segment_read(S1, offset, &mut bytes).expect("inside");
                assert!((offset..).zip(&bytes).all(|(at, got)| *got == byte(next, at)));
                meet(rt);
            }
        });
    }
}

fn a_source_may_be_written_again_as_soon_as_wait_has_returned() {
    // Pages of the source may travel themselves, and not a copy of them.
    let sizes = [40 * 1024, 1 << 20, 1 << 20, 5 << 20];
    let other = vec![0xff; 5 << 20];
    run(2, |rt| {
        make(rt, S0, 5 << 20);
        make(rt, S1, 5 << 20);
        for (round, size) in (1..=240u8).zip(sizes.into_iter().cycle()) {
            meet(rt);
            if rt.rank() == Rank(0) {
                rt.segment_write(S0, 0, &vec![round; size as usize]).expect("inside");
                let t = Transfer {
                    local_offset: 0,
                    remote: S1,
                    remote_offset: 0,
                    size,
                    ..eight(Rank(1))
                };
                rt.write(&t, Q0, LIMIT).expect("write");
                rt.wait(Q0, LIMIT).expect("wait");
                rt.segment_write(S0, 0, &other[..size as usize]).expect("inside");
            }
            meet(rt);
            if rt.rank() == Rank(1) {
                let mut bytes = vec![0; size as usize];
                rt.segment_read(S1, 0, &mut bytes).expect("inside");
                assert!(bytes.iter().all(|byte| *byte == round), "round {round}");
            }
        }
    });
}

fn nothing_beside_the_range_is_touched() {
    run(2, |rt| {
        make(rt, S0, 64);
        rt.segment_write(S0, 0, &[0xee; 64]).expect("inside");
        make(rt, S1, 16);
        meet(rt);
        if rt.rank() == Rank(0) {
            let t = Transfer { local: S1, remote_offset: 9, size: 13, ..eight(Rank(1)) };
            rt.write(&t, Q0, LIMIT).expect("write");
            rt.wait(Q0, LIMIT).expect("wait");
        }
        meet(rt);
        let mut bytes = [0; 64];
        rt.segment_read(S0, 0, &mut bytes).expect("inside");
        for (at, byte) in bytes.into_iter().enumerate() {
            let written = rt.rank() == Rank(1) && (9..22).contains(&at);
            assert_eq!(byte, if written { 0 } else { 0xee }, "byte {at}");
        }
    });
}

fn overlapping_ranges_of_ones_own_segment_are_moved() {
    run(1, |rt| {
        make(rt, S0, 64);
        let bytes: Vec<u8> = (0..64).collect();
        rt.segment_write(S0, 0, &bytes).expect("inside");
        let t = Transfer { remote_offset: 4, size: 32, ..eight(Rank(0)) };
        rt.write(&t, Q0, LIMIT).expect("write");
        rt.wait(Q0, LIMIT).expect("wait");
        let mut moved = [0; 32];
        rt.segment_read(S0, 4, &mut moved).expect("inside");
        assert_eq!(moved[..], bytes[..32]);
    });
}

fn a_transfer_of_nothing_takes_no_slot() {
    run(2, |rt| {
        make(rt, S0, 64);
        let nothing = Transfer { size: 0, ..eight(Rank(1)) };
        rt.write(&nothing, Q0, LIMIT).expect("write");
        rt.read(&nothing, Q0, LIMIT).expect("read");
        assert_eq!(rt.queue_size(Q0), Ok(0));
        meet(rt);
        if rt.rank() == Rank(0) {
            rt.write_notify(&nothing, NotificationId(4), 9, Q0, LIMIT).expect("write_notify");
            rt.read_notify(&nothing, NotificationId(5), Q0, LIMIT).expect("read_notify");
            assert_eq!(rt.queue_size(Q0), Ok(2), "their notifications do");
            rt.wait(Q0, LIMIT).expect("wait");
            assert_eq!(rt.notify_reset(S0, NotificationId(5)), Ok(1));
        } else {
            assert_eq!(rt.notify_waitsome(S0, 0, 16, LIMIT), Ok(Some(NotificationId(4))));
            assert_eq!(rt.notify_reset(S0, NotificationId(4)), Ok(9));
        }
        meet(rt);
    });
}

fn a_notification_follows_all_earlier_writes_of_its_queue() {
    const ROUNDS: u64 = 2000;
    run(2, |rt| {
        make(rt, S0, 4096);
        make(rt, S1, 4096);
        for round in 1..=ROUNDS {
            if rt.rank() == Rank(0) {
                put_u64(rt, S0, 0, round);
                put_u64(rt, S0, 8, round + 1);
                let one = Transfer { remote: S1, remote_offset: 1000, ..eight(Rank(1)) };
                let two = Transfer { local_offset: 8, remote_offset: 2000, ..one };
                rt.write(&one, Q0, LIMIT).expect("write");
                if round % 2 == 0 {
                    rt.write(&two, Q0, LIMIT).expect("write");
                    let n = NotificationId(0);
                    rt.notify(Rank(1), S1, n, round as u32, Q0, LIMIT).expect("notify");
                } else {
                    let n = NotificationId(0);
                    rt.write_notify(&two, n, round as u32, Q0, LIMIT).expect("write_notify");
                }
                rt.wait(Q0, LIMIT).expect("wait");
                rt.notify_waitsome(S0, 1, 1, LIMIT).expect("answer");
                rt.notify_reset(S0, NotificationId(1)).expect("reset");
            } else {
                rt.notify_waitsome(S1, 0, 1, LIMIT).expect("notified");
                assert_eq!(rt.notify_reset(S1, NotificationId(0)), Ok(round as u32));
                assert_eq!(get_u64(rt, S1, 1000), round);
                assert_eq!(get_u64(rt, S1, 2000), round + 1);
                rt.notify(Rank(0), S0, NotificationId(1), 1, Q0, LIMIT).expect("notify");
                rt.wait(Q0, LIMIT).expect("wait");
            }
        }
        meet(rt);
    });
}

fn posted_requests_progress_without_further_calls() {
    run(2, |rt| {
        make(rt, S0, 64);
        if rt.rank() == Rank(0) {
            put_u64(rt, S0, 0, 3);
            rt.write_notify(&eight(Rank(1)), NotificationId(2), 1, Q0, LIMIT).expect("write");
            // No wait, no other call: the answer comes through the test's own memory.
            rt.notify_waitsome(S0, 2, 1, LIMIT).expect("answer");
        } else {
            rt.notify_waitsome(S0, 2, 1, LIMIT).expect("notified");
            assert_eq!(get_u64(rt, S0, 8), 3);
            rt.notify(Rank(0), S0, NotificationId(2), 1, Q0, LIMIT).expect("notify");
        }
        meet(rt);
    });
}

fn write_wait_barrier_is_enough() {
    for size in ranks::sizes(&[8]) {
        run(size, |rt| {
            make(rt, S0, 16 * u64::from(size));
            for round in 0..100 {
                let me = u64::from(rt.rank().0);
                put_u64(rt, S0, 0, round * 100 + me);
                for rank in all(rt) {
                    let t = Transfer { remote_offset: 8 * (me + 1), ..eight(rank) };
                    rt.write(&t, Q0, LIMIT).expect("write");
                }
                rt.wait(Q0, LIMIT).expect("wait");
                meet(rt);
                for rank in 0..u64::from(size) {
                    assert_eq!(get_u64(rt, S0, 8 * (rank + 1)), round * 100 + rank);
                }
                meet(rt);
            }
        });
    }
}

/// Elements of 8 bytes from consecutive words of S0 to consecutive words of S1, beginning at 8.
struct Lists {
    segments: [Vec<SegmentId>; 2],
    offsets: [Vec<u64>; 2],
    sizes: Vec<u64>,
}

impl Lists {
    fn new(sizes: &[u64]) -> Lists {
        let words = |first: u64| (0..sizes.len() as u64).map(|i| 8 * (i + first)).collect();
        Lists {
            segments: [vec![S0; sizes.len()], vec![S1; sizes.len()]],
            offsets: [words(0), words(1)],
            sizes: sizes.to_vec(),
        }
    }

    fn to(&self, rank: Rank) -> TransferList<'_> {
        TransferList {
            rank,
            local: &self.segments[0],
            local_offsets: &self.offsets[0],
            remote: &self.segments[1],
            remote_offsets: &self.offsets[1],
            sizes: &self.sizes,
        }
    }
}

fn lists_move_their_elements_and_notify_behind_them() {
    for ranks in ranks::sizes(&[1, 2, 5]) {
        run(ranks, |rt| {
            make(rt, S0, 8 * 300);
            make(rt, S1, 8 * 300);
            let me = rt.rank();
            let next = Rank((me.0 + 1) % ranks as u16);
            let previous = u64::from((u32::from(me.0) + ranks - 1) % ranks);
            for word in 0..255 {
                put_u64(rt, S0, 8 * word, word * 100 + u64::from(me.0));
            }
            meet(rt);
            let mut sizes = vec![8; 255];
            sizes[17] = 0;
            let lists = Lists::new(&sizes);
            let n = NotificationId(12);
            rt.write_list_notify(&lists.to(next), S0, n, 5, Q0, LIMIT).expect("write list");
            assert_eq!(rt.queue_size(Q0), Ok(255), "254 elements and a notification");
            assert_eq!(rt.notify_waitsome(S0, 0, 100, LIMIT), Ok(Some(n)));
            assert_eq!(rt.notify_reset(S0, n), Ok(5));
            for word in (0..255).filter(|word| *word != 17) {
                assert_eq!(get_u64(rt, S1, 8 * (word + 1)), word * 100 + previous);
            }
            assert_eq!(get_u64(rt, S1, 8 * 18), 0, "an empty element moves nothing");
            rt.wait(Q0, LIMIT).expect("wait");
            meet(rt);
            // Back: what the next rank has in S1 came from here.
            rt.segment_write(S0, 0, &[0; 8 * 255]).expect("inside");
            rt.read_list_notify(&lists.to(next), S1, n, Q0, LIMIT).expect("read list");
            assert_eq!(rt.notify_waitsome(S1, 0, 100, LIMIT), Ok(Some(n)));
            assert_eq!(rt.notify_reset(S1, n), Ok(1));
            rt.wait(Q0, LIMIT).expect("wait");
            for word in (0..255).filter(|word| *word != 17) {
                assert_eq!(get_u64(rt, S0, 8 * word), word * 100 + u64::from(me.0));
            }
            meet(rt);
        });
    }
}

fn lists_are_checked_before_anything_is_posted() {
    let config = Config { rw_list_elem_max: 4, queue_size_max: 6, ..Config::default() };
    run_with(2, &config, |rt| {
        make(rt, S0, 64);
        make(rt, S1, 64);
        put_u64(rt, S0, 0, 1);
        meet(rt);
        let peer = Rank(1 - rt.rank().0);
        let write = |lists: &Lists| rt.write_list(&lists.to(peer), Q0, LIMIT);
        fails!(write(&Lists::new(&[])), Error::Number { number: 0, .. });
        fails!(write(&Lists::new(&[8; 5])), Error::Number { number: 5, .. });
        fails!(write(&Lists::new(&[8, 8, 8, 800])), Error::CommSize { .. });
        let mut wrong = Lists::new(&[8; 4]);
        wrong.offsets[1][3] = 64;
        fails!(write(&wrong), Error::RemoteOffset { .. });
        wrong = Lists::new(&[8; 4]);
        wrong.segments[0][2] = S2;
        fails!(write(&wrong), Error::InvalidSegment { .. });
        let good = Lists::new(&[8; 4]);
        let notify = |segment, id, value| {
            rt.write_list_notify(&good.to(peer), segment, NotificationId(id), value, Q0, LIMIT)
        };
        fails!(notify(S0, 0, 0), Error::NotificationValue);
        fails!(notify(S0, 65536, 1), Error::NotificationRange { .. });
        fails!(notify(S2, 0, 1), Error::InvalidSegment { .. });
        assert_eq!(rt.queue_size(Q0), Ok(0));
        meet(rt);
        assert_eq!(get_u64(rt, S1, 8), 0, "nothing was written");
        meet(rt);
        write(&good).expect("four fit");
        fails!(write(&good), Error::QueueFull { .. });
        fails!(notify(S0, 0, 1), Error::QueueFull { .. });
        rt.write_list(&Lists::new(&[8, 0, 0, 8]).to(peer), Q0, LIMIT).expect("two more fit");
        assert_eq!(rt.queue_size(Q0), Ok(6));
        rt.wait(Q0, LIMIT).expect("wait");
        meet(rt);
    });
}

fn what_failed_is_not_announced() {
    run(2, |rt| {
        make(rt, S0, 64);
        make(rt, S1, 64);
        make(rt, S2, 64);
        if rt.rank() == Rank(1) {
            rt.segment_delete(S1).expect("delete");
        }
        meet(rt);
        if rt.rank() == Rank(0) {
            let mut lists = Lists::new(&[8, 8]);
            lists.segments[1][1] = S2;
            let n = NotificationId(7);
            rt.write_list_notify(&lists.to(Rank(1)), S2, n, 1, Q0, LIMIT).expect("posted");
            fails!(rt.wait(Q0, LIMIT), Error::RequestFailed { .. });
            rt.queue_purge(Q0, LIMIT).expect("purge");
            rt.read_list_notify(&lists.to(Rank(1)), S2, n, Q0, LIMIT).expect("posted");
            fails!(rt.wait(Q0, LIMIT), Error::RequestFailed { .. });
            rt.queue_purge(Q0, LIMIT).expect("purge");
        }
        meet(rt);
        assert_eq!(rt.notify_reset(S2, NotificationId(7)), Ok(0), "an element failed");
    });
}

tests! {
    EVERY:
        ranges_are_checked_on_both_sides,
        data_arrives_whole_at_every_size_and_offset,
        a_source_may_be_written_again_as_soon_as_wait_has_returned,
        nothing_beside_the_range_is_touched,
        overlapping_ranges_of_ones_own_segment_are_moved,
        a_transfer_of_nothing_takes_no_slot,
        a_notification_follows_all_earlier_writes_of_its_queue,
        posted_requests_progress_without_further_calls,
        write_wait_barrier_is_enough,
        lists_move_their_elements_and_notify_behind_them,
        lists_are_checked_before_anything_is_posted,
        what_failed_is_not_announced;
    SEVERAL:
        data_arrives_whole_at_every_size_and_offset,
        lists_move_their_elements_and_notify_behind_them,
        write_wait_barrier_is_enough;
}
