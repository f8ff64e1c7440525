//! Atomic operations that devices execute (GASPI_ATOMICS=nic). The mock card's are not atomic with
//! processors unless it says so.

use super::device_returns::{failed, link, while_cut};
use super::verbs::{LIMIT_OF_CHANGE, NO_ANSWER};
use super::*;
use crate::ranks::layouts::{self, Devices};
use crate::ranks::{run_jobs, run_with_prepared};
use gaspi_mock_card::Fabric;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};

const ADDS: u64 = 1000;
/// A device whose operations are atomic with processors.
const GLOBAL: &str = "atomic_cap=2";

/// Ranks whose devices execute the atomic operations.
fn run_by_device<T: Send>(
    size: u32,
    options: &str,
    body: impl Fn(&Runtime, &Fabric) -> T + Sync,
) -> Vec<T> {
    let options = (options, &Config::default());
    run_with_prepared(size, options, |_| (), |choice| choice.atomics = true, body)
}

fn add(rt: &Runtime, rank: Rank) -> u64 {
    rt.atomic_fetch_add(S0, 8, rank, 1, LIMIT).expect("add")
}

fn additions_of_all_ranks_count_their_own_too() {
    run_by_device(3, "", |rt, fabric| {
        make(rt, S0, 64);
        let device = rt.rank().0.into();
        let before = fabric.counter(device, "fetch_add");
        for _ in 0..ADDS {
            all(rt).for_each(|rank| {
                add(rt, rank);
            });
        }
        let by_device = fabric.counter(device, "fetch_add") - before;
        assert_eq!(by_device, ADDS * 3, "own ones, and those of others");
        meet(rt);
        assert_eq!(get_u64(rt, S0, 8), ADDS * 3);
        assert_eq!((get_u64(rt, S0, 0), get_u64(rt, S0, 16)), (0, 0));
        meet(rt);
    });
}

/// Nothing but time tells that the cut is over.
fn operations_go_on_after_a_cut_that_has_refused_their_pair() {
    let options = ("time_scale=0", &Config::default());
    let ask = |choice: &mut DeviceChoice| {
        // Pairs of messages would fail too.
        (choice.atomics, choice.messages) = (true, MessageCarrier::Tcp);
    };
    let body = |rt: &Runtime, fabric: &Fabric| {
        make(rt, S0, 64);
        if rt.rank() == Rank(0) {
            add(rt, Rank(1));
            let (add, before) = (|| rt.atomic_fetch_add(S0, 8, Rank(1), 1, LIMIT), failed(rt));
            // The pair, and an attempt at the next one.
            let refused = || add().is_err() && failed(rt) >= before + 2;
            let until_refused = || soon("an attempt during the cut", refused);
            while_cut(rt, fabric, (link, 0), || (), until_refused);
            fabric.link(0, 1, 1);
            within(LIMIT_OF_CHANGE, "an operation", || while add().is_err() {});
        }
        meet(rt);
    };
    run_with_prepared(2, options, |_| (), ask, body);
}

fn threads_of_a_rank_share_the_pair() {
    run_by_device(2, "max_qp_rd_atom=1", |rt, _| {
        make(rt, S0, 64);
        // More at once than there are places for results.
        let seen = Mutex::new(BTreeSet::new());
        std::thread::scope(|scope| {
            for _ in 0..40 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let old = add(rt, Rank(0));
                        assert!(seen.lock().expect("no panic").insert(old), "{old} twice");
                    }
                });
            }
        });
        meet(rt);
        if rt.rank() == Rank(0) {
            assert_eq!(get_u64(rt, S0, 8), 1600);
        }
        meet(rt);
    });
}

fn a_lock_by_the_device_excludes() {
    run_by_device(3, "", |rt, _| {
        make(rt, S0, 64);
        rt.segment_alloc(S1, 64, Init::Zeroed).expect("alloc");
        let me = u64::from(rt.rank().0) + 1;
        let local = Transfer { local: S1, local_offset: 0, remote_offset: 8, ..eight(Rank(0)) };
        for _ in 0..50 {
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
            assert_eq!(get_u64(rt, S0, 8), 150);
        }
        meet(rt);
    });
}

fn a_call_whose_timeout_ran_out_is_continued() {
    run_by_device(2, "", |rt, _| {
        make(rt, S0, 64);
        for _ in 0..100 {
            let again = |_: &_| rt.atomic_fetch_add(S0, 8, Rank(0), 1, Timeout::Test);
            let ended = std::iter::repeat(())
                .map(|()| again(&()))
                .find(|sum| !sum.as_ref().is_err_and(Error::is_timeout));
            ended.expect("without end").expect("add");
        }
        meet(rt);
        if rt.rank() == Rank(0) {
            assert_eq!(get_u64(rt, S0, 8), 200, "each once");
        }
        meet(rt);
    });
}

fn devices_that_are_atomic_with_processors_leave_them_what_is_mapped() {
    let size = 4;
    run_by_device(size, GLOBAL, |rt, fabric| {
        make(rt, S0, 64);
        let nodes = Nodes::of_this_test();
        let word = rt.segment_ptr(S0).expect("pointer").cast::<AtomicU64>();
        for _ in 0..ADDS {
            // SAFETY: the segment lives, is aligned, and is only accessed by atomics here.
            unsafe { &*word.wrapping_add(1) }.fetch_add(1, Ordering::Relaxed);
            all(rt).for_each(|rank| {
                add(rt, rank);
            });
        }
        let others = u64::from(size - nodes.neighbours(rt.rank(), size));
        assert_eq!(fabric.counter(rt.rank().0.into(), "fetch_add"), ADDS * others);
        meet(rt);
        assert_eq!(get_u64(rt, S0, 8), ADDS * u64::from(size + 1));
        meet(rt);
    });
}

fn an_error_of_the_device_is_that_of_the_call() {
    run_by_device(2, "", |rt, fabric| {
        make(rt, S0, 64);
        for rank in all(rt) {
            add(rt, rank);
            // Barriers and waits may still have requests to post.
            fabric.fail_atomic(rt.rank().0.into(), 1, NO_ANSWER);
            let reason = match rt.atomic_fetch_add(S0, 8, rank, 1, LIMIT) {
                Err(error @ Error::Refused { .. }) => error.to_string(),
                other => panic!("{other:?}"),
            };
            assert!(reason.contains("does not answer"), "{reason}");
            assert!(reason.contains(&rank.to_string()), "{reason}");
            // By a new pair.
            add(rt, rank);
            meet(rt);
        }
        assert!(get_u64(rt, S0, 8) >= 4);
        meet(rt);
    });
}

fn a_target_that_dies_is_an_error() {
    let size = 2;
    let asked = |id: &str, rank| {
        let mut job = Nodes::of_this_test().job(id, rank, size);
        job.device.atomics = true;
        job
    };
    run_jobs(size, &Config::default(), asked, |runtime| {
        make(&runtime, S0, 64);
        add(&runtime, Rank(1));
        meet(&runtime);
        if runtime.rank() == Rank(1) {
            return die(runtime);
        }
        let ended =
            (0..u64::MAX).find_map(|_| runtime.atomic_fetch_add(S0, 8, Rank(1), 1, LIMIT).err());
        let error = ended.expect("an end");
        assert!(error.to_string().contains("rank 1"), "{error}");
        // Its own go on.
        add(&runtime, Rank(0));
        let _ = runtime.term(LIMIT);
    });
}

fn on_a_segment_that_was_deleted_they_fail_and_others_go_on() {
    let deleted = Barrier::new(2);
    run_by_device(2, "", |rt, _| {
        make(rt, S0, 64);
        make(rt, S1, 64);
        let peer = Rank(1 - rt.rank().0);
        add(rt, peer);
        rt.atomic_fetch_add(S1, 8, rt.rank(), 1, LIMIT).expect("an own one");
        meet(rt);
        if rt.rank() == Rank(1) {
            rt.segment_delete(S1).expect("delete");
            fails!(rt.atomic_fetch_add(S1, 8, Rank(1), 1, LIMIT), Error::InvalidSegment { .. });
        }
        deleted.wait();
        if rt.rank() == Rank(0) {
            let gone = rt.atomic_fetch_add(S1, 8, Rank(1), 1, LIMIT);
            fails!(gone, Error::Refused { rank: Rank(1), .. } | Error::InvalidSegment { .. });
        }
        meet(rt);
        add(rt, peer);
        meet(rt);
        assert_eq!(get_u64(rt, S0, 8), 2);
        meet(rt);
    });
}

/// What each rank of a job says that cannot begin.
fn starts(devices: &Devices, size: u32, asks: impl Fn(&mut Job) + Sync) -> Vec<String> {
    static JOBS: AtomicU64 = AtomicU64::new(0);
    let nodes = Nodes::of_this_test();
    let id = format!("atomics-{}", JOBS.fetch_add(1, Ordering::Relaxed));
    let (fabric, library) = devices;
    let start = |rank: u32| {
        nodes.enter();
        fabric.use_all();
        let mut job = nodes.job(&id, Rank(rank as u16), size);
        job.transport = nodes.transport_of_devices();
        job.device.library = Some(library.clone());
        job.device.devices = vec![format!("mock{}_{rank}", fabric.number())];
        job.device.atomics = true;
        asks(&mut job);
        let started = PendingInit::new(job, Config::default());
        let started = started.and_then(|mut pending| pending.wait(LIMIT).map(|_| ()));
        started.expect_err("it cannot begin").to_string()
    };
    std::thread::scope(|scope| {
        let start = &start;
        let ranks: Vec<_> = (0..size).map(|rank| scope.spawn(move || start(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("the rank ended well")).collect()
    })
}

fn ranks_that_differ_cannot_begin() {
    let devices = layouts::mocked_devices(3, "");
    let told = starts(&devices, 3, |job| job.device.atomics = job.rank != Rank(1));
    for reason in told {
        for word in ["GASPI_ATOMICS is nic", "on rank 0", "cpu on host", "on rank 1"] {
            assert!(reason.contains(word), "{word}: {reason}");
        }
    }
    assert_eq!(devices.0.end().contexts, 0, "devices stay open");
}

fn ranks_without_such_a_device_cannot_begin() {
    let devices = layouts::mocked_devices(2, "");
    devices.0.set(1, "atomic_cap=0");
    for reason in starts(&devices, 2, |_| ()) {
        for word in ["GASPI_ATOMICS is nic", "rank 1", "executes no atomic operations", "mock"] {
            assert!(reason.contains(word), "{word}: {reason}");
        }
    }
    for transport in [Transport::Tcp, Transport::SharedMemory] {
        let reason = &starts(&devices, 1 + 1, |job| job.transport = transport)[0];
        assert!(reason.contains("uses no RDMA device"), "{reason}");
    }
    assert_eq!(devices.0.end().contexts, 0, "devices stay open");
}

fn ranks_that_share_memory_cannot_begin_with_such_devices() {
    let devices = layouts::mocked_devices(4, "");
    for reason in starts(&devices, 4, |_| ()) {
        for word in ["rank 0 and rank 2 share memory", "not atomic with processors", "cpu"] {
            assert!(reason.contains(word), "{word}: {reason}");
        }
    }
    assert_eq!(devices.0.end().contexts, 0, "devices stay open");
}

tests! {
    BY_DEVICE:
        operations_go_on_after_a_cut_that_has_refused_their_pair;
    VERBS:
        a_call_whose_timeout_ran_out_is_continued,
        a_lock_by_the_device_excludes,
        a_target_that_dies_is_an_error,
        additions_of_all_ranks_count_their_own_too,
        an_error_of_the_device_is_that_of_the_call,
        on_a_segment_that_was_deleted_they_fail_and_others_go_on,
        ranks_that_differ_cannot_begin,
        ranks_without_such_a_device_cannot_begin,
        threads_of_a_rank_share_the_pair,
        devices_that_are_atomic_with_processors_leave_them_what_is_mapped;
    VERBS_PAIRS:
        devices_that_are_atomic_with_processors_leave_them_what_is_mapped,
        ranks_that_share_memory_cannot_begin_with_such_devices;
}
