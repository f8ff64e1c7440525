//! Who is told of buckets that have ended.

use super::*;
use gaspi_collectives::algorithms::Collective;
use gaspi_collectives::fusion::handles as fused;
use gaspi_collectives::handles::{self, Handle};
use gaspi_collectives::{
    BroadcastList, Combination, Operation, Request, allreduce_slice, run, run_broadcast_list,
};
use gaspi_core::sync::{Condvar, Mutex};
use gaspi_core::{Config, Error, Init, Rank, Result, SegmentId, Timeout};
use std::collections::BTreeSet;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Buckets of which a function was told.
type Told = Vec<(usize, Result<()>)>;

fn next_gives_each_bucket_once_in_a_step() {
    ranks::run(3, |rt| {
        let me = rt.rank().index();
        let counts = [9000, 100, 20_000, 3, 9000];
        let options = Options { threshold: 1000, ..Options::default() };
        let fusion = create(rt, &floats(&counts), &options);
        let mut random = Random(me as u64);
        assert!(fusion.next(Timeout::Test).expect_err("nothing has ended").is_timeout());
        for step in 0..10 {
            for tensor in random.order(counts.len()) {
                submit(&fusion, tensor, &contribution(me, tensor, step, counts[tensor]));
            }
            let mut ended = BTreeSet::new();
            while ended.len() < fusion.buckets() {
                let bucket = fusion.next(LIMIT).expect("a bucket ends");
                assert!(ended.insert(bucket), "bucket {bucket} was told twice");
                for (tensor, count) in counts.into_iter().enumerate() {
                    if fusion.bucket(tensor).expect("it has elements") == bucket {
                        let mut found = vec![0.0f32; count];
                        // SAFETY: as many elements as the tensor has.
                        let there = unsafe { fusion.test(tensor, found.as_mut_ptr().cast()) };
                        assert!(there.expect("no error"), "tensor {tensor} has ended");
                        assert_eq!(found, sum(3, tensor, step, count));
                    }
                }
            }
            assert!(fusion.next(Timeout::Test).expect_err("all were told").is_timeout());
        }
    });
}

fn a_function_is_told_of_each_bucket() {
    ranks::run(2, |rt| {
        let me = rt.rank().index();
        let counts = [9000, 100, 20_000];
        let options = Options { threshold: 0, ..Options::default() };
        let fusion = create(rt, &floats(&counts), &options);
        let told: Arc<(Mutex<Told>, Condvar)> = Arc::default();
        let teller = Arc::clone(&told);
        let function = move |bucket: usize, outcome: Result<()>| {
            teller.0.lock().push((bucket, outcome));
            teller.1.notify_one();
        };
        fusion.on_end(Some(Arc::new(function))).expect("a function");
        for step in 0..20 {
            for (tensor, count) in counts.into_iter().enumerate() {
                submit(&fusion, tensor, &contribution(me, tensor, step, count));
            }
            // Nobody waits: the thread of the library carries them on, and tells.
            let mut list = told.0.lock();
            while list.len() < counts.len() {
                list = told.1.wait(list);
            }
            let mut buckets: Vec<usize> = list
                .drain(..)
                .map(|(bucket, outcome)| {
                    outcome.expect("no failure");
                    bucket
                })
                .collect();
            drop(list);
            buckets.sort_unstable();
            assert_eq!(buckets, [0, 1, 2]);
            for (tensor, count) in counts.into_iter().enumerate() {
                assert_eq!(wait(&fusion, tensor, count), sum(2, tensor, step, count));
            }
        }
        fusion.on_end(None).expect("no function");
    });
}

/// The thread of the library rests while one of the program waits, at first briefly.
fn the_library_goes_on_behind_a_wait_that_timed_out() {
    for millis in [1, 2, 4, 50] {
        let timed_out = std::sync::Barrier::new(2);
        ranks::run(2, |rt| {
            let me = rt.rank().index();
            let options = Options { threshold: 0, ..Options::default() };
            let fusion = create(rt, &floats(&[70_000, 500]), &options);
            let submit_all = |step| {
                submit(&fusion, 0, &contribution(me, 0, step, 70_000));
                submit(&fusion, 1, &contribution(me, 1, step, 500));
            };
            let (ended, heard) = std::sync::mpsc::channel();
            let function = move |bucket: usize, outcome: Result<()>| {
                outcome.expect("no failure");
                let _ = ended.send(bucket);
            };
            fusion.on_end(Some(Arc::new(function))).expect("a function");
            for step in 0..10 {
                if me == 0 {
                    submit_all(step);
                    // SAFETY: the sum goes nowhere.
                    let waited =
                        unsafe { fusion.wait(0, std::ptr::null_mut(), Timeout::Millis(millis)) };
                    assert!(waited.expect_err("the other rank has not come").is_timeout());
                    timed_out.wait();
                } else {
                    timed_out.wait();
                    submit_all(step);
                }
                let mut buckets = [0, 0].map(|_| heard.recv().expect("the end of a bucket"));
                buckets.sort_unstable();
                assert_eq!(buckets, [0, 1]);
                assert_eq!(wait(&fusion, 1, 500), sum(2, 1, step, 500));
                assert_eq!(wait(&fusion, 0, 70_000), sum(2, 0, step, 70_000));
            }
            fusion.on_end(None).expect("no function");
        });
    }
}

fn a_descriptor_is_readable_while_next_has_something_to_tell() {
    ranks::run(2, |rt| {
        let me = rt.rank().index();
        let fusion =
            create(rt, &floats(&[500, 70_000]), &Options { threshold: 0, ..Options::default() });
        let descriptor = fusion.descriptor().expect("a descriptor");
        assert_eq!(fusion.descriptor().expect("the same"), descriptor);
        for step in 0..20 {
            assert!(!is_readable(descriptor, 0));
            submit(&fusion, 1, &contribution(me, 1, step, 70_000));
            submit(&fusion, 0, &contribution(me, 0, step, 500));
            for left in [1, 0] {
                assert!(is_readable(descriptor, 60_000), "something ends");
                fusion.next(Timeout::Test).expect("it is there");
                // The other one may not have ended yet.
                assert!(left == 1 || !is_readable(descriptor, 0));
            }
        }
    });
}

pub(crate) fn is_readable(descriptor: i32, millis: i32) -> bool {
    let mut poll = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid entry.
    unsafe { libc::poll(&raw mut poll, 1, millis) == 1 }
}

/// An all-reduce of a word, in place.
fn request(word: &mut u64) -> Request {
    let word: *mut u64 = word;
    Request {
        collective: Collective::Allreduce,
        send: word.cast(),
        receive: word.cast(),
        count: 1,
        blocks: Vec::new(),
        combination: Combination::BuiltIn(DataType::U64, Operation::Sum),
        root: Rank(0),
        algorithm: None,
        mode: None,
        background: true,
    }
}

/// What is there before the function is called.
struct Prepared {
    /// Committed, and without a collective so far.
    new: GroupId,
    /// Not committed.
    uncommitted: GroupId,
    segment: SegmentId,
    started: Handle,
}

/// All that waits, and what came of it.
fn calls_that_wait(
    rt: &Runtime,
    fusion: &Fusion<'_>,
    prepared: &Prepared,
) -> Vec<(&'static str, Result<()>)> {
    let Prepared { new, uncommitted, segment, started } = *prepared;
    let (mut word, mut words, null) = (1, [0.0], std::ptr::null_mut());
    let request = request(&mut word);
    let none = BroadcastList {
        pieces: Vec::new(),
        root: Rank(0),
        algorithm: None,
        mode: None,
        background: true,
    };
    while fusion.next(Timeout::Test).is_ok() {}
    let made = Fusion::create(rt, &floats(&[1]), ALL, &Options::default(), LIMIT);
    vec![
        // SAFETY: nothing is written.
        ("wait", unsafe { fusion.wait(1, null, LIMIT) }),
        ("result", fusion.result(1, Timeout::Block).map(drop)),
        ("next", fusion.next(Timeout::Millis(1)).map(drop)),
        ("create", made.map(std::mem::forget)),
        // SAFETY: the word outlives what does not begin.
        ("run", unsafe { run(rt, ALL, &request, LIMIT) }),
        // SAFETY: the same.
        ("start", unsafe { handles::start(rt, new, &request, LIMIT) }.map(drop)),
        // SAFETY: the same.
        ("prepare", unsafe { handles::prepare(rt, ALL, &request, LIMIT) }.map(drop)),
        ("wait for an operation", handles::wait(rt, started, LIMIT)),
        // SAFETY: there are no pieces.
        ("list", unsafe { run_broadcast_list(rt, ALL, &none, LIMIT) }),
        ("allreduce", allreduce_slice(rt, &[1.0], &mut words, Operation::Sum, ALL, LIMIT)),
        ("barrier", rt.barrier(ALL, LIMIT)),
        ("commit", rt.group_commit(uncommitted, LIMIT)),
        ("create a segment", rt.segment_create(SegmentId(9), 64, ALL, LIMIT, Init::Zeroed)),
        ("receive", rt.passive_receive(segment, 0, 8, LIMIT).map(drop)),
        ("waitsome", rt.notify_waitsome(segment, 0, 1, LIMIT).map(drop)),
        ("term", rt.term(LIMIT)),
    ]
}

/// Each is refused, and none has begun: afterwards all of them work.
fn nobody_waits_in_a_function_that_is_told() {
    ranks::run(2, |rt| {
        let (me, segment) = (rt.rank().index(), SegmentId(3));
        let options = Options { threshold: 0, ..Options::default() };
        let fusion = create(rt, &floats(&[10, 10]), &options);
        let group = || {
            let group = rt.group_create().expect("a group");
            (0..2).for_each(|rank| rt.group_add(group, Rank(rank)).expect("a member"));
            group
        };
        let new = group();
        rt.group_commit(new, LIMIT).expect("committed");
        let uncommitted = group();
        rt.segment_alloc(segment, 64, Init::Zeroed).expect("a segment");
        let mut word = 1;
        // SAFETY: the word lives until the operation has ended, below.
        let started = unsafe { handles::start(rt, ALL, &request(&mut word), LIMIT) };
        let started = started.expect("started");
        let (tell, heard) = std::sync::mpsc::channel();
        let prepared = Prepared { new, uncommitted, segment, started };
        // Both outlive the function, which is taken away below.
        let (rank, fused) =
            (ptr::from_ref(rt).expose_provenance(), ptr::from_ref(&fusion).expose_provenance());
        let function = move |_: usize, _: Result<()>| {
            // SAFETY: see above.
            let rt = unsafe { &*ptr::with_exposed_provenance::<Runtime>(rank) };
            // SAFETY: see above.
            let fusion = unsafe { &*ptr::with_exposed_provenance::<Fusion<'_>>(fused) };
            let _ = tell.send(calls_that_wait(rt, fusion, &prepared));
        };
        fusion.on_end(Some(Arc::new(function))).expect("a function");
        submit(&fusion, 0, &contribution(me, 0, 0, 10));
        for (call, outcome) in heard.recv().expect("the function is called") {
            let error = outcome.expect_err(call);
            assert!(error.to_string().contains("may not wait"), "{call}: {error}");
        }
        fusion.on_end(None).expect("no function");
        submit(&fusion, 1, &contribution(me, 1, 0, 10));
        assert_eq!(wait(&fusion, 1, 10), sum(2, 1, 0, 10));
        handles::wait(rt, started, LIMIT).expect("it has ended");
        assert_eq!(word, 2);
        rt.barrier(ALL, LIMIT).expect("barrier");
        rt.group_commit(uncommitted, LIMIT).expect("committed");
        // SAFETY: the word outlives the call.
        unsafe { run(rt, new, &request(&mut word), LIMIT) }.expect("a sum");
        assert_eq!(word, 4);
    });
}

/// A program that lives in its function: each bucket goes from step to step by itself.
fn a_function_takes_sums_and_submits_the_next_step() {
    const STEPS: usize = 20;
    const TENSORS: [usize; 3] = [9000, 100, 20_000];
    ranks::run(3, |rt| {
        let (me, n) = (rt.rank().index(), rt.size() as usize);
        let options = Options { threshold: 0, ..Options::default() };
        let fusion = create(rt, &floats(&TENSORS), &options);
        let (tell, heard) = std::sync::mpsc::channel();
        // It outlives the function, which is taken away below.
        let fused = ptr::from_ref(&fusion).expose_provenance();
        let steps: [AtomicUsize; TENSORS.len()] = Default::default();
        let function = move |bucket: usize, outcome: Result<()>| {
            // SAFETY: see above.
            let fusion = unsafe { &*ptr::with_exposed_provenance::<Fusion<'_>>(fused) };
            let count = TENSORS[bucket];
            let mut copied = vec![f32::NAN; count];
            // SAFETY: as many elements as the tensor has.
            let ended = unsafe { fusion.test(bucket, copied.as_mut_ptr().cast()) };
            let lent = fusion.result(bucket, LIMIT);
            let is_lent = lent.as_ref().is_ok_and(|lent| read(*lent, count) == copied);
            let is_right = matches!(ended, Ok(true)) && is_lent;
            let step = steps[bucket].fetch_add(1, Ordering::Relaxed) + 1;
            let mut outcome = outcome.and(lent).and_then(|lent| fusion.release(bucket, lent));
            if step < STEPS && outcome.is_ok() {
                let data = contribution(me, bucket, step, count);
                // SAFETY: as many elements as the tensor has.
                outcome = unsafe { fusion.submit(bucket, data.as_ptr().cast(), 1.0) };
            }
            let _ = tell.send((bucket, outcome, copied, is_right));
        };
        fusion.on_end(Some(Arc::new(function))).expect("a function");
        for (tensor, count) in TENSORS.into_iter().enumerate() {
            submit(&fusion, tensor, &contribution(me, tensor, 0, count));
        }
        let mut told = [0; TENSORS.len()];
        for _ in 0..STEPS * TENSORS.len() {
            let (bucket, outcome, copied, is_right) = heard.recv().expect("a bucket ends");
            outcome.expect("no failure");
            assert!(is_right, "what is told has ended, and is lent as it is copied");
            assert_eq!(copied, sum(n, bucket, told[bucket], TENSORS[bucket]));
            told[bucket] += 1;
        }
        fusion.on_end(None).expect("no function");
        assert!(heard.try_recv().is_err(), "each bucket ends once in a step");
        assert_eq!(told, [STEPS; TENSORS.len()]);
    });
}

/// Each bucket that is pending fails once; what is told of it stays.
fn a_death_is_told_to_the_function_the_descriptor_and_next() {
    let (pending, parted) = (ranks::Barrier::new(3), ranks::Barrier::new(3));
    ranks::run_owned(3, &Config::default(), |rt| {
        let (me, counts) = (rt.rank().index(), [5000, 100, 70_000]);
        let options = Options { threshold: 0, ..Options::default() };
        if me == 1 {
            // It ends with the rank, and tells nobody.
            let made = fused::create(&rt, &floats(&counts), ALL, &options, LIMIT);
            made.expect("a fused buffer");
            pending.wait();
            ranks::die(rt);
            parted.wait();
            return;
        }
        let fusion = create(&rt, &floats(&counts), &options);
        let descriptor = fusion.descriptor().expect("a descriptor");
        let (tell, heard) = std::sync::mpsc::channel();
        let function = move |bucket: usize, outcome: Result<()>| {
            let _ = tell.send((bucket, outcome));
        };
        fusion.on_end(Some(Arc::new(function))).expect("a function");
        for tensor in [0, 2] {
            submit(&fusion, tensor, &contribution(me, tensor, 0, counts[tensor]));
        }
        assert!(!is_readable(descriptor, 0), "nothing has ended");
        pending.wait();
        let is_death = |error: &Error| matches!(error, Error::RankDied { rank: Rank(1), .. });
        let mut failed = [0, 2].map(|_| {
            let (bucket, outcome) = heard.recv().expect("a bucket fails");
            let error = outcome.expect_err("a rank has died");
            assert!(is_death(&error), "{error}");
            bucket
        });
        failed.sort_unstable();
        assert_eq!(failed, [0, 2]);
        for _ in 0..2 {
            assert!(is_readable(descriptor, 60_000), "there is something to tell");
            let error = fusion.next(Timeout::Test).expect_err("nothing has ended well");
            assert!(is_death(&error), "{error}");
        }
        for tensor in 0..3 {
            // SAFETY: nothing is written.
            let waited = unsafe { fusion.wait(tensor, ptr::null_mut(), LIMIT) };
            assert!(is_death(&waited.expect_err("it has failed")));
        }
        fusion.on_end(None).expect("no function");
        assert!(heard.try_recv().is_err(), "no bucket is told of twice");
        drop(fusion);
        parted.wait();
        rt.term(LIMIT).expect("term");
    });
}

fn next_says_at_once_that_there_are_no_buckets() {
    ranks::run(2, |rt| {
        let fusion = create(rt, &floats(&[0, 0]), &Options::default());
        assert_eq!(fusion.buckets(), 0);
        for timeout in [Timeout::Test, Timeout::Block] {
            let error = fusion.next(timeout).expect_err("nothing will end");
            assert!(matches!(error, Error::Unsupported { .. }), "{error}");
            assert!(error.to_string().contains("no tensor has elements"), "{error}");
        }
        wait(&fusion, 1, 0);
    });
}

tests! {
    DEVICES:
        next_gives_each_bucket_once_in_a_step,
        a_function_is_told_of_each_bucket,
        the_library_goes_on_behind_a_wait_that_timed_out,
        a_descriptor_is_readable_while_next_has_something_to_tell,
        nobody_waits_in_a_function_that_is_told,
        a_function_takes_sums_and_submits_the_next_step,
        a_death_is_told_to_the_function_the_descriptor_and_next,
        next_says_at_once_that_there_are_no_buckets;
}
