//! Fused buffers when something is wrong.

use super::*;
use gaspi_collectives::algorithms::{Algorithm, Collective};
use gaspi_collectives::fusion::{Order, handles};
use gaspi_collectives::{Mode, Operation};
use gaspi_core::{Config, Error, Rank, Timeout};
use ranks::Nodes;

macro_rules! fails {
    ($call:expr, $error:pat, $text:expr) => {
        match $call {
            Err(error @ $error) => assert!(error.to_string().contains($text), "{error}"),
            other => panic!("{other:?}"),
        }
    };
}

fn declarations_that_differ_are_told_on_all() {
    ranks::run(3, |rt| {
        let differ = |tensors: &[Tensor], options: &Options, text: &str| {
            let made = Fusion::create(rt, tensors, ALL, options, LIMIT);
            fails!(made, Error::Mismatch { .. }, text);
        };
        let is_last = rt.rank() == Rank(2);
        let counts: Vec<usize> = (1..200).collect();
        let plain = Options::default();
        for wrong in [0, 1, 77, 198] {
            let mut tensors = floats(&counts);
            if is_last {
                tensors[wrong].count += 1000;
            }
            let text = format!(
                "tensor {wrong} of a fused buffer is {} x f32 on rank 0, and {} x f32 on rank 2",
                wrong + 1,
                wrong + 1001
            );
            differ(&tensors, &plain, &text);
        }
        let tensors = floats(if is_last { &counts[..50] } else { &counts });
        differ(&tensors, &plain, "rank 0 declares 199 tensors, rank 2 50");
        let tensors = floats(if is_last { &counts } else { &counts[..1] });
        differ(&tensors, &plain, "rank 0 declares 1 tensors, rank 2 199");
        // Each option that has to be the same.
        let others = [
            (Options { operation: Operation::Average, ..Options::default() }, "operation sum"),
            (Options { order: Order::Reverse, ..Options::default() }, "order declared"),
            (Options { threshold: 1 << 20, ..Options::default() }, "threshold 32768"),
            (Options { limit: Some(1000), ..Options::default() }, "limit none"),
            (Options { wire: Some(DataType::F16), ..Options::default() }, "wire none"),
            (Options { algorithm: Some(Algorithm::Linear), ..plain.clone() }, "algorithm none"),
            (Options { mode: Some(Mode::Stable), ..Options::default() }, "mode fast"),
        ];
        let values = ["average", "reverse", "1048576", "1000", "f16", "linear", "stable"];
        for ((other, first), last) in others.iter().zip(values) {
            let options = if is_last { other } else { &plain };
            let text = format!("rank 0 asks for {first} of a fused buffer, rank 2 for {last}");
            differ(&floats(&counts), options, &text);
        }
        // Those that concern a rank alone.
        let own = Options { contributions: 2, background: false, ..Options::default() };
        let options = if is_last { &own } else { &plain };
        drop(create(rt, &floats(&counts), options));
        // The next one works.
        let fusion = create(rt, &floats(&[10]), &plain);
        submit(&fusion, 0, &contribution(rt.rank().index(), 0, 0, 10));
        assert_eq!(wait(&fusion, 0, 10), sum(3, 0, 0, 10));
    });
}

fn what_is_wrong_with_arguments_is_said() {
    ranks::run(2, |rt| {
        let make = |tensors: &[Tensor], options: &Options| {
            Fusion::create(rt, tensors, ALL, options, LIMIT)
        };
        let plain = Options::default();
        let some = floats(&[10, 20, 0]);
        fails!(make(&[], &plain), Error::Number { .. }, "at least one tensor");
        let huge = [Tensor { count: 1 << 62, ty: DataType::F64 }];
        fails!(make(&huge, &plain), Error::Number { .. }, "tensor 0");
        let product = Options { operation: Operation::Product, ..Options::default() };
        fails!(make(&some, &product), Error::Unsupported { .. }, "not product");
        let wire = Options { wire: Some(DataType::F64), ..Options::default() };
        fails!(make(&some, &wire), Error::Unsupported { .. }, "not as f64");
        let often = Options { contributions: 0, ..Options::default() };
        fails!(make(&some, &often), Error::Number { .. }, "1 to 32767");
        let fusion = make(&some, &plain).expect("a fused buffer");
        let data = contribution(rt.rank().index(), 0, 0, 20);
        let submit = |tensor: usize, data: *const u8, scale: f64| {
            // SAFETY: the data has as many elements as any of the tensors.
            unsafe { fusion.submit(tensor, data, scale) }
        };
        let here = data.as_ptr().cast::<u8>();
        fails!(submit(3, here, 1.0), Error::Number { .. }, "3 were declared");
        fails!(submit(0, std::ptr::null(), 1.0), Error::Null { .. }, "null");
        let place = fusion.tensor_ptr(0).expect("a place");
        let beside = place.wrapping_add(4).cast_const();
        fails!(submit(0, beside, 1.0), Error::Size { .. }, "overlaps");
        fails!(submit(1, place, 1.0), Error::Size { .. }, "tensor 1 overlaps");
        submit(2, here, 1.0).expect("there is nothing to submit");
        submit(0, here, 1.0).expect("submitted");
        fails!(submit(0, here, 1.0), Error::Number { .. }, "wait for it first");
        // SAFETY: nothing is written.
        let early = unsafe { fusion.wait(0, std::ptr::null_mut(), Timeout::Millis(1)) };
        fails!(early, Error::Timeout { .. }, "this rank has not submitted tensor 1");
        submit(1, here, 1.0).expect("submitted");
        wait(&fusion, 1, 20);
        fails!(fusion.release(0, place), Error::Number { .. }, "no result of tensor 0");
        fails!(fusion.bucket(2), Error::Number { .. }, "no elements");
        wait(&fusion, 2, 0);
    });
}

/// Each is refused on all ranks, and the next one works.
fn what_is_not_allowed_is_an_error_on_all() {
    ranks::run(3, |rt| {
        let tensors = [DataType::F32, DataType::I32, DataType::F16, DataType::F64];
        let tensors = tensors.map(|ty| Tensor { count: 21, ty });
        let plain = Options::default();
        let make = |options: &Options| Fusion::create(rt, &tensors, ALL, options, LIMIT);
        for operation in [Operation::Product, Operation::And, Operation::Or, Operation::Xor] {
            let text = format!("not {operation}");
            fails!(make(&Options { operation, ..plain.clone() }), Error::Unsupported { .. }, &text);
        }
        for ty in
            DataType::ALL.into_iter().filter(|ty| ![DataType::F16, DataType::Bf16].contains(ty))
        {
            let text = format!("not as {ty}");
            let options = Options { wire: Some(ty), ..plain.clone() };
            fails!(make(&options), Error::Unsupported { .. }, &text);
        }
        for contributions in [0, 32_768, u32::MAX] {
            let options = Options { contributions, ..plain.clone() };
            fails!(make(&options), Error::Number { .. }, "1 to 32767");
        }
        for algorithm in Algorithm::ALL {
            let options = Options { algorithm: Some(algorithm), ..plain.clone() };
            if !algorithm.serves(Collective::Allreduce) {
                let text = format!("algorithm {algorithm} does not serve allreduce");
                fails!(make(&options), Error::Unsupported { .. }, &text);
            } else if algorithm == Algorithm::Inline && Nodes::of_this_test() == Nodes::One {
                // Lines have room for 48 bytes.
                fails!(make(&options), Error::Unsupported { .. }, "but not blocks of that size");
            } else if algorithm.requires_one_node() && Nodes::of_this_test() != Nodes::One {
                let text = format!("algorithm {algorithm} needs all members on one node");
                fails!(make(&options), Error::Unsupported { .. }, &text);
            } else {
                drop(make(&options).expect("a fused buffer"));
            }
        }
        // A submit that is refused has not happened.
        let fusion = make(&plain).expect("a fused buffer");
        let zeroes = [0u8; 21 * 8];
        let scales = [(1, 0.5), (1, f64::NAN), (1, f64::INFINITY), (1, 1e300)];
        for step in 0..2 {
            for (tensor, scale) in scales {
                // SAFETY: as many bytes as any of the tensors has.
                let submitted = unsafe { fusion.submit(tensor, zeroes.as_ptr(), scale) };
                fails!(submitted, Error::Unsupported { .. }, "multiplied by integers");
            }
            for tensor in 0..tensors.len() {
                // SAFETY: as many bytes as any of the tensors has.
                unsafe { fusion.submit(tensor, zeroes.as_ptr(), 1.0) }.expect("submitted");
            }
            for tensor in 0..tensors.len() {
                // SAFETY: nothing is written.
                let waited = unsafe { fusion.wait(tensor, std::ptr::null_mut(), LIMIT) };
                waited.unwrap_or_else(|error| panic!("step {step}: {error}"));
            }
        }
    });
}

fn a_dead_rank_ends_what_is_pending() {
    let (ready, parted) = (ranks::Barrier::new(3), ranks::Barrier::new(3));
    ranks::run_owned(3, &Config::default(), |rt| {
        let me = rt.rank().index();
        let counts = [5000, 100, 70_000];
        let options = Options { threshold: 0, ..Options::default() };
        let step = |fusion: &Fusion<'_>| {
            for (tensor, count) in counts.into_iter().enumerate() {
                submit(fusion, tensor, &contribution(me, tensor, 0, count));
                wait(fusion, tensor, count);
            }
            while fusion.next(Timeout::Test).is_ok() {}
        };
        if me == 1 {
            // It ends with the rank, and tells nobody.
            let made = handles::create(&rt, &floats(&counts), ALL, &options, LIMIT);
            let handle = made.expect("a fused buffer");
            let stepped = handles::with(&rt, handle, |fusion| {
                step(fusion);
                Ok(())
            });
            stepped.expect("a step");
            ready.wait();
            ranks::die(rt);
            parted.wait();
            return;
        }
        let fusion = create(&rt, &floats(&counts), &options);
        step(&fusion);
        ready.wait();
        // One is under way, one is not submitted by this rank.
        let data = contribution(me, 2, 1, 70_000);
        // SAFETY: as many elements as the tensor has.
        let submitted = unsafe { fusion.submit(2, data.as_ptr().cast(), 1.0) };
        for tensor in [2, 0] {
            // SAFETY: nothing is written.
            let waited = unsafe { fusion.wait(tensor, std::ptr::null_mut(), LIMIT) };
            if tensor == 2 || waited.is_err() {
                fails!(waited, Error::RankDied { rank: Rank(1), .. }, "died");
            }
        }
        if let Err(error) = submitted {
            assert!(matches!(error, Error::RankDied { rank: Rank(1), .. }), "{error}");
        }
        fails!(fusion.next(LIMIT), Error::RankDied { rank: Rank(1), .. }, "died");
        // SAFETY: as many elements as the tensor has.
        let after = unsafe { fusion.submit(0, data.as_ptr().cast(), 1.0) };
        fails!(after, Error::RankDied { rank: Rank(1), .. }, "died");
        drop(fusion);
        let group = rt.group_create().expect("a group");
        for rank in [0, 2] {
            rt.group_add(group, Rank(rank)).expect("a member");
        }
        rt.group_commit(group, LIMIT).expect("committed");
        let made = Fusion::create(&rt, &floats(&counts), group, &Options::default(), LIMIT);
        let fusion = made.expect("one on a new group");
        for (tensor, count) in counts.into_iter().enumerate() {
            submit(&fusion, tensor, &vec![1.0; count]);
        }
        for (tensor, count) in counts.into_iter().enumerate() {
            assert_eq!(wait(&fusion, tensor, count), vec![2.0; count]);
        }
        drop(fusion);
        parted.wait();
        rt.term(LIMIT).expect("term");
    });
}

/// A rank that frees in the middle of a step lets the others know; nothing is hit.
fn a_rank_frees_in_the_middle_of_a_step() {
    ranks::run(3, |rt| {
        let me = rt.rank().index();
        for round in 0..10 {
            let group = rt.group_create().expect("a group");
            (0..3).for_each(|rank| rt.group_add(group, Rank(rank)).expect("a member"));
            rt.group_commit(group, LIMIT).expect("committed");
            let counts = [20_000, 20_000];
            let options = Options { threshold: 0, ..Options::default() };
            let made = Fusion::create(rt, &floats(&counts), group, &options, LIMIT);
            let fusion = made.expect("a fused buffer");
            submit(&fusion, 0, &contribution(me, 0, round, counts[0]));
            if me == round % 3 {
                drop(fusion);
            } else {
                submit(&fusion, 1, &contribution(me, 1, round, counts[1]));
                let mut found = vec![0.0f32; counts[1]];
                // SAFETY: as many elements as the tensor has.
                let waited = unsafe { fusion.wait(1, found.as_mut_ptr().cast(), LIMIT) };
                waited.expect_err("a rank has gone");
            }
            rt.barrier(ALL, LIMIT).expect("barrier");
            rt.group_delete(group).expect("deleted");
        }
    });
}

/// Calls until there is something.
fn until<T>(mut call: impl FnMut() -> Option<T>) -> T {
    let started = std::time::Instant::now();
    loop {
        if let Some(found) = call() {
            return found;
        }
        assert!(started.elapsed() < std::time::Duration::from_secs(60), "it takes too long");
        std::thread::yield_now();
    }
}

fn creation_goes_on_after_a_timeout() {
    ranks::run(2, |rt| {
        let me = rt.rank().index();
        let tensors = floats(&[10, 5000]);
        let fusion = until(|| {
            let made = Fusion::create(rt, &tensors, ALL, &Options::default(), Timeout::Test);
            match made {
                Ok(fusion) => Some(fusion),
                Err(error) => {
                    assert!(error.is_timeout(), "{error}");
                    let other =
                        Fusion::create(rt, &tensors[..1], ALL, &Options::default(), Timeout::Test);
                    other.expect_err("another one is being made");
                    None
                }
            }
        });
        submit(&fusion, 0, &contribution(me, 0, 0, 10));
        submit(&fusion, 1, &contribution(me, 1, 0, 5000));
        assert_eq!(wait(&fusion, 1, 5000), sum(2, 1, 0, 5000));
    });
}

/// The group of a creation that has timed out is deleted, and its id serves another.
fn creation_on_a_new_group_of_the_same_id_starts_anew() {
    ranks::run(2, |rt| {
        let me = rt.rank().index();
        let group = || {
            let group = rt.group_create().expect("a group");
            (0..2).for_each(|rank| rt.group_add(group, Rank(rank)).expect("a member"));
            rt.group_commit(group, LIMIT).expect("committed");
            group
        };
        let options = Options::default();
        for round in 0..5 {
            let deleted = group();
            if me == round % 2 {
                let made =
                    Fusion::create(rt, &floats(&[10]), deleted, &options, Timeout::Millis(1));
                fails!(made, Error::Timeout { .. }, "");
            }
            rt.barrier(ALL, LIMIT).expect("barrier");
            rt.group_delete(deleted).expect("deleted");
            let group = group();
            assert_eq!(group, deleted);
            let made = Fusion::create(rt, &floats(&[7, 3000]), group, &options, LIMIT);
            let fusion = made.expect("another fused buffer");
            submit(&fusion, 0, &contribution(me, 0, round, 7));
            submit(&fusion, 1, &contribution(me, 1, round, 3000));
            assert_eq!(wait(&fusion, 1, 3000), sum(2, 1, round, 3000));
            drop(fusion);
            rt.barrier(ALL, LIMIT).expect("barrier");
            rt.group_delete(group).expect("deleted");
        }
    });
}

tests! {
    DEVICES:
        creation_on_a_new_group_of_the_same_id_starts_anew,
        declarations_that_differ_are_told_on_all,
        what_is_wrong_with_arguments_is_said,
        what_is_not_allowed_is_an_error_on_all,
        a_dead_rank_ends_what_is_pending,
        a_rank_frees_in_the_middle_of_a_step,
        creation_goes_on_after_a_timeout;
}
