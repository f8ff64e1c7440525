//! Statistics (GASPI 17.1, 12).

use super::*;

const NAMES: [&str; 18] = [
    "BytesWritten",
    "BytesRead",
    "NumberOfBarriers",
    "NumberOfWaits",
    "NumberOfWrites",
    "NumberOfWriteNotifys",
    "NumberOfReads",
    "NumberOfReadNotifys",
    "NumberOfSegmentCreate",
    "NumberOfSegmentAlloc",
    "NumberOfSegmentRegister",
    "NumberOfSegmentDelete",
    "NumberOfSegmentBind",
    "NumberOfSegmentUse",
    "TimeInBarrier",
    "TimeInWait",
    "TimeInWaitSome",
    "TimeWaitingInGaspi",
];

fn counter(rt: &Runtime, name: &str) -> u64 {
    let number = NAMES.iter().position(|known| *known == name).expect("a known name");
    rt.statistic_get(number as u32, 0).expect("counter")
}

fn the_counters_have_their_names_and_order() {
    run(1, |rt| {
        assert!(rt.statistic_num() >= 18);
        for (number, name) in (0..).zip(NAMES) {
            let info = Runtime::statistic_info(number).expect("counter");
            assert_eq!(info.name, name);
            assert!(!info.description.is_empty());
        }
        let beyond = rt.statistic_num();
        assert!(Runtime::statistic_info(beyond).is_none());
        fails!(rt.statistic_get(beyond, 0), Error::Number { .. });
        fails!(rt.statistic_reset(beyond), Error::Number { .. });
    });
}

fn every_call_is_counted_once() {
    run(2, |rt| {
        make(rt, S0, 64);
        let peer = Rank(1 - rt.rank().0);
        let (t, n) = (eight(peer), NotificationId(0));
        for _ in 0..3 {
            rt.write(&t, Q0, LIMIT).expect("write");
            rt.write_notify(&t, n, 1, Q0, LIMIT).expect("write_notify");
        }
        rt.read(&t, Q0, LIMIT).expect("read");
        rt.read_notify(&t, n, Q0, LIMIT).expect("read_notify");
        rt.wait(Q0, LIMIT).expect("wait");
        rt.segment_alloc(S1, 8, Init::Zeroed).expect("alloc");
        rt.segment_register(S1, peer, LIMIT).expect("register");
        meet(rt);
        rt.segment_delete(S1).expect("delete");
        let mut memory = [0u64; 8];
        let pointer = memory.as_mut_ptr().cast();
        // SAFETY: the memory outlives the segments.
        unsafe {
            rt.segment_bind(S1, pointer, 64).expect("bind");
            rt.segment_use(S2, pointer, 64, GroupId::ALL, LIMIT).expect("use");
        }
        let expected = [48, 16, 1, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1];
        for (name, value) in NAMES.iter().zip(expected) {
            assert_eq!(counter(rt, name), value, "{name}");
        }
        meet(rt);
        rt.segment_delete(S1).expect("delete");
        rt.segment_delete(S2).expect("delete");
    });
}

fn failed_calls_and_timeouts_are_not_counted() {
    run(2, |rt| {
        make(rt, S0, 64);
        let beyond = Transfer { size: 1 << 20, ..eight(Rank(0)) };
        assert!(rt.write(&beyond, Q0, LIMIT).is_err());
        assert!(rt.segment_alloc(S0, 8, Init::Zeroed).is_err());
        assert_eq!((counter(rt, "NumberOfWrites"), counter(rt, "BytesWritten")), (0, 0));
        assert_eq!(counter(rt, "NumberOfSegmentAlloc"), 0);
        meet(rt);
    });
}

fn a_reset_counter_starts_again_and_others_stay() {
    run(1, |rt| {
        make(rt, S0, 64);
        rt.write(&eight(Rank(0)), Q0, LIMIT).expect("write");
        rt.statistic_reset(0).expect("reset");
        assert_eq!((counter(rt, "BytesWritten"), counter(rt, "NumberOfWrites")), (0, 1));
        rt.write(&eight(Rank(0)), Q0, LIMIT).expect("write");
        assert_eq!((counter(rt, "BytesWritten"), counter(rt, "NumberOfWrites")), (8, 2));
    });
}

fn counts_of_all_threads_add_up() {
    run(2, |rt| {
        make(rt, S0, 64);
        ranks::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        rt.write(&eight(Rank(0)), Q0, LIMIT).expect("write");
                    }
                });
            }
        });
        assert_eq!(counter(rt, "NumberOfWrites"), 400);
        meet(rt);
    });
}

fn waiting_time_is_counted_where_a_call_waits() {
    run(2, |rt| {
        make(rt, S0, 64);
        let before = counter(rt, "TimeInWaitSome");
        fails!(rt.notify_waitsome(S0, 0, 1, Timeout::Millis(20)), Error::Timeout { .. });
        assert!(counter(rt, "TimeInWaitSome") >= before + 20_000_000, "nanoseconds");
        assert!(counter(rt, "TimeWaitingInGaspi") >= counter(rt, "TimeInWaitSome"));
        let all = counter(rt, "TimeInWaitSome");
        fails!(rt.notify_waitsome(S0, 0, 1, Timeout::Test), Error::Timeout { .. });
        assert_eq!(counter(rt, "TimeInWaitSome"), all, "TEST does not wait");
        meet(rt);
    });
}

tests! {
    EVERY:
        the_counters_have_their_names_and_order,
        every_call_is_counted_once,
        failed_calls_and_timeouts_are_not_counted,
        a_reset_counter_starts_again_and_others_stay,
        counts_of_all_threads_add_up,
        waiting_time_is_counted_where_a_call_waits;
}
