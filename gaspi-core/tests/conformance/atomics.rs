//! Atomics (GASPI 17.1, 10).

use super::*;

fn arguments_are_checked() {
    run(2, |rt| {
        make(rt, S0, 20);
        let add = |segment, offset, rank| rt.atomic_fetch_add(segment, offset, rank, 1, LIMIT);
        fails!(add(S0, 4, Rank(1)), Error::Unaligned { offset: 4 });
        fails!(add(S0, 16, Rank(1)), Error::RemoteOffset { .. });
        fails!(add(S0, 24, Rank(1)), Error::RemoteOffset { .. });
        fails!(add(S0, u64::MAX - 7, Rank(1)), Error::RemoteOffset { .. });
        fails!(add(S1, 0, Rank(1)), Error::InvalidSegment { .. });
        fails!(add(S0, 0, Rank(2)), Error::InvalidRank { .. });
        let swap = rt.atomic_compare_swap(S0, 1, Rank(1), 0, 1, LIMIT);
        fails!(swap, Error::Unaligned { offset: 1 });
        assert_eq!(add(S0, 8, Rank(rt.rank().0)), Ok(0));
        meet(rt);
    });
}

fn sums_are_exact_and_old_values_unique() {
    const ADDS: u64 = 300;
    for size in ranks::sizes(&SIZES) {
        let seen = run(size, |rt| {
            make(rt, S0, 64);
            let add = |_| rt.atomic_fetch_add(S0, 8, Rank(0), 1, LIMIT).expect("add");
            let seen: Vec<u64> = (0..ADDS).map(add).collect();
            assert!(seen.is_sorted());
            meet(rt);
            if rt.rank() == Rank(0) {
                assert_eq!(get_u64(rt, S0, 8), ADDS * u64::from(size));
                assert_eq!((get_u64(rt, S0, 0), get_u64(rt, S0, 16)), (0, 0));
            }
            seen
        });
        let mut seen: Vec<u64> = seen.into_iter().flatten().collect();
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..ADDS * u64::from(size)));
    }
}

fn a_lock_by_compare_and_swap_excludes() {
    for size in ranks::sizes(&[3]) {
        let rounds = 300 / size;
        run(size, |rt| {
            make(rt, S0, 64);
            rt.segment_alloc(S1, 64, Init::Zeroed).expect("alloc");
            let me = u64::from(rt.rank().0) + 1;
            let local = Transfer { local: S1, local_offset: 0, remote_offset: 8, ..eight(Rank(0)) };
            for _ in 0..rounds {
                while rt.atomic_compare_swap(S0, 0, Rank(0), 0, me, LIMIT) != Ok(0) {
                    ranks::pause();
                }
                // Not atomic: only the lock makes it right.
                rt.read(&local, Q0, LIMIT).expect("read");
                rt.wait(Q0, LIMIT).expect("wait");
                put_u64(rt, S1, 0, get_u64(rt, S1, 0) + 1);
                rt.write(&local, Q0, LIMIT).expect("write");
                rt.wait(Q0, LIMIT).expect("wait");
                assert_eq!(rt.atomic_compare_swap(S0, 0, Rank(0), me, 0, LIMIT), Ok(me));
            }
            meet(rt);
            if rt.rank() == Rank(0) {
                assert_eq!(get_u64(rt, S0, 8), u64::from(size * rounds));
            }
            meet(rt);
        });
    }
}

fn additions_wrap() {
    run(1, |rt| {
        make(rt, S0, 64);
        assert_eq!(rt.atomic_fetch_add(S0, 0, Rank(0), u64::MAX, LIMIT), Ok(0));
        assert_eq!(rt.atomic_fetch_add(S0, 0, Rank(0), 2, LIMIT), Ok(u64::MAX));
        assert_eq!(get_u64(rt, S0, 0), 1);
        assert_eq!(rt.atomic_compare_swap(S0, 0, Rank(0), 2, 9, LIMIT), Ok(1));
        assert_eq!(get_u64(rt, S0, 0), 1, "not the comparator");
    });
}

fn they_are_atomic_against_the_owners_own_instructions() {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    let done = AtomicBool::new(false);
    run(2, |rt| {
        make(rt, S0, 64);
        let mut own = 0;
        if rt.rank() == Rank(0) {
            let word = rt.segment_ptr(S0).expect("pointer").cast::<AtomicU64>();
            // As long as the other rank adds, which may take its time over a network.
            while !done.load(Ordering::Relaxed) {
                // SAFETY: the segment lives, is aligned, and is only accessed by atomics here.
                unsafe { &*word }.fetch_add(1, Ordering::Relaxed);
                own += 1;
                if own % 256 == 0 {
                    ranks::pause();
                }
            }
        } else {
            for _ in 0..10_000 {
                rt.atomic_fetch_add(S0, 0, Rank(0), 1, LIMIT).expect("add");
            }
            done.store(true, Ordering::Relaxed);
        }
        meet(rt);
        if rt.rank() == Rank(0) {
            assert_eq!(get_u64(rt, S0, 0), own + 10_000);
        }
        meet(rt);
    });
}

fn on_a_deleted_segment_they_fail() {
    run(2, |rt| {
        make(rt, S0, 64);
        if rt.rank() == Rank(1) {
            rt.segment_delete(S0).expect("delete");
        }
        meet(rt);
        if rt.rank() == Rank(0) {
            let add = rt.atomic_fetch_add(S0, 0, Rank(1), 1, LIMIT);
            fails!(add, Error::Refused { rank: Rank(1), .. } | Error::InvalidSegment { .. });
        }
        meet(rt);
    });
}

tests! {
    EVERY:
        arguments_are_checked,
        sums_are_exact_and_old_values_unique,
        a_lock_by_compare_and_swap_excludes,
        additions_wrap,
        they_are_atomic_against_the_owners_own_instructions,
        on_a_deleted_segment_they_fail;
    SEVERAL:
        sums_are_exact_and_old_values_unique,
        a_lock_by_compare_and_swap_excludes;
}
