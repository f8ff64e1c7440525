//! A rank dies at any stage of creating a fused buffer and of a step, in which it and the others
//! submit by one thread or several. The others hear of it with its name, free what they have, and a
//! fused buffer on a new group works.

use super::*;
use gaspi_collectives::fusion::handles;
use gaspi_core::{Config, Error, Rank, Result, Timeout};
use std::time::{Duration, Instant};

const SIZE: usize = 4;
/// Small ones that share a bucket, and some of several messages.
const COUNTS: [usize; 7] = [500, 3, 60_000, 17, 9000, 120_000, 1];
/// Longer than any error of a death takes.
const SOON: Duration = Duration::from_secs(20);

/// Where the rank dies.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Before, between and behind so many attempts to create it.
    Creating { attempts: usize },
    /// Behind so many of the tensors of a step, without a wait.
    Submitting { tensors: usize },
    /// The same, by threads that submit at the same time.
    SubmittingByThreads { tensors: usize },
    /// In the all-reduces of a step: behind so many looks whether they have ended.
    Reducing { looks: usize },
    /// Behind so many ends of buckets, which are not fetched by the others yet.
    Ended { buckets: usize },
    /// While it holds lent results of the step before, in the next one.
    Lent,
    /// In the middle of the step behind so many others, while the other ranks are in that or behind
    /// it.
    Later { steps: usize, tensors: usize },
}

const STAGES: usize = 7;
/// How often each stage is tried.
const TURNS: usize = 3;
const TURNS_IN_FULL: usize = 12;
/// Most threads that submit.
const THREADS_MAX: usize = 4;

/// Below a power of two, the exponent of which is drawn first.
fn few_or_many(random: &mut Random, exponents: usize) -> usize {
    let limit = 1 << random.below(exponents);
    random.below(limit)
}

fn stage(seed: usize, random: &mut Random) -> Stage {
    match seed % STAGES {
        0 => Stage::Creating { attempts: few_or_many(random, 10) },
        1 => Stage::Submitting { tensors: random.below(COUNTS.len() + 1) },
        2 => Stage::Reducing { looks: few_or_many(random, 12) },
        3 => Stage::Ended { buckets: random.below(5) },
        4 => Stage::Lent,
        5 => Stage::SubmittingByThreads { tensors: random.below(COUNTS.len() + 1) },
        _ => {
            Stage::Later { steps: few_or_many(random, 6), tensors: random.below(COUNTS.len() + 1) }
        }
    }
}

fn hand_over(fusion: &Fusion<'_>, tensor: usize, step: usize, me: usize) -> Result<()> {
    let data = contribution(me, tensor, step, COUNTS[tensor]);
    // SAFETY: as many elements as the tensor has.
    unsafe { fusion.submit(tensor, data.as_ptr().cast(), 1.0) }
}

/// The same of some tensors, by several threads at once. The first error, if there was one.
fn hand_over_by_threads(
    fusion: &Fusion<'_>,
    tensors: &[usize],
    (step, me): (usize, usize),
    random: &mut Random,
) -> Result<()> {
    let threads = 1 + random.below(THREADS_MAX);
    let part = tensors.len().div_ceil(threads).max(1);
    ranks::scope(|scope| {
        let of_part = |part: &'_ [usize]| {
            let part = part.to_vec();
            move || part.iter().try_for_each(|tensor| hand_over(fusion, *tensor, step, me))
        };
        let threads: Vec<_> = tensors.chunks(part).map(|part| scope.spawn(of_part(part))).collect();
        let outcomes = threads.into_iter().map(|thread| thread.join().expect("no panic"));
        let outcomes: Vec<Result<()>> = outcomes.collect();
        outcomes.into_iter().collect()
    })
}

/// A step up to its end, in an order of this rank's; tensors of a step that has ended are right.
fn one_step(fusion: &Fusion<'_>, step: usize, me: usize, random: &mut Random) -> Result<()> {
    let order = random.order(COUNTS.len());
    hand_over_by_threads(fusion, &order, (step, me), random)?;
    for tensor in order {
        let mut found = vec![f32::NAN; COUNTS[tensor]];
        // SAFETY: as many elements as the tensor has.
        unsafe { fusion.wait(tensor, found.as_mut_ptr().cast(), LIMIT) }?;
        assert_eq!(found, sum(SIZE, tensor, step, COUNTS[tensor]));
    }
    Ok(())
}

/// What the rank does that dies. Its fused buffer ends with it, and tells nobody.
fn up_to(rt: &Runtime, stage: Stage, options: &Options, me: usize, random: &mut Random) {
    let tensors = floats(&COUNTS);
    if let Stage::Creating { attempts } = stage {
        for _ in 0..attempts {
            // What another attempt has begun is continued.
            if handles::create(rt, &tensors, ALL, options, Timeout::Test).is_ok() {
                return;
            }
            std::thread::yield_now();
        }
        return;
    }
    let handle = handles::create(rt, &tensors, ALL, options, LIMIT).expect("a fused buffer");
    let done = handles::with(rt, handle, |fusion| {
        let whole = if let Stage::Later { steps, .. } = stage { 1 + steps } else { 1 };
        for step in 0..whole {
            one_step(fusion, step, me, random)?;
            while fusion.next(Timeout::Test).is_ok() {}
        }
        part_of_a_step(fusion, (stage, whole), me, random)
    });
    done.expect("all live");
}

fn part_of_a_step(
    fusion: &Fusion<'_>,
    (stage, step): (Stage, usize),
    me: usize,
    random: &mut Random,
) -> Result<()> {
    let is_lent = matches!(stage, Stage::Lent);
    let lent = is_lent.then(|| fusion.result(2, LIMIT)).transpose()?;
    let tensors = match stage {
        Stage::Submitting { tensors }
        | Stage::SubmittingByThreads { tensors }
        | Stage::Later { tensors, .. } => tensors,
        Stage::Lent => 4,
        _ => COUNTS.len(),
    };
    let order = random.order(COUNTS.len());
    let order = &order[..tensors];
    match stage {
        Stage::SubmittingByThreads { .. } => {
            hand_over_by_threads(fusion, order, (step, me), random)?;
        }
        _ => order.iter().try_for_each(|tensor| hand_over(fusion, *tensor, step, me))?,
    }
    match stage {
        Stage::Reducing { looks } => {
            (0..looks).for_each(|_| drop(fusion.next(Timeout::Test)));
        }
        Stage::Ended { buckets } => {
            (0..buckets).try_for_each(|_| fusion.next(LIMIT).map(drop))?;
        }
        _ => {}
    }
    if let Some(lent) = lent {
        let expected = sum(SIZE, 2, step - 1, COUNTS[2]);
        assert_eq!(read(lent, COUNTS[2]), expected, "it does not change");
    }
    Ok(())
}

/// What the others do, until they are told.
fn until_told(rt: &Runtime, options: &Options, me: usize, random: &mut Random) -> Error {
    let fusion = match Fusion::create(rt, &floats(&COUNTS), ALL, options, LIMIT) {
        Ok(fusion) => fusion,
        Err(error) => return error,
    };
    let mut step = 0;
    loop {
        if let Err(error) = one_step(&fusion, step, me, random) {
            // It stays so, behind what has ended before.
            let told = (0..=COUNTS.len()).find_map(|_| fusion.next(LIMIT).err());
            let told = told.expect("nothing of it works any more");
            assert_eq!(std::mem::discriminant(&told), std::mem::discriminant(&error), "{told}");
            return error;
        }
        step += 1;
    }
}

/// A new one of those that are left.
fn go_on_without(rt: &Runtime, dead: usize, options: &Options) {
    let group = rt.group_create().expect("a group");
    let left: Vec<usize> = (0..SIZE).filter(|rank| *rank != dead).collect();
    left.iter().for_each(|rank| rt.group_add(group, Rank(*rank as u16)).expect("a member"));
    rt.group_commit(group, LIMIT).expect("committed");
    let fusion = Fusion::create(rt, &floats(&COUNTS), group, options, LIMIT).expect("a new one");
    for step in 1..4 {
        for (tensor, count) in COUNTS.into_iter().enumerate() {
            submit(&fusion, tensor, &vec![step as f32; count]);
        }
        for (tensor, count) in COUNTS.into_iter().enumerate() {
            assert_eq!(wait(&fusion, tensor, count), vec![(step * left.len()) as f32; count]);
        }
    }
    drop(fusion);
    rt.barrier(group, LIMIT).expect("barrier");
}

fn turns() -> usize {
    if std::env::var_os("GASPI_TEST_FULL").is_some() { TURNS_IN_FULL } else { TURNS }
}

/// The seed that tests begin at.
fn seed_of_this_run() -> usize {
    std::env::var("GASPI_TEST_SEED").map_or(0, |text| text.parse().expect("a number"))
}

fn a_rank_that_dies_at_any_stage_is_named() {
    let first = seed_of_this_run();
    for seed in first..first + turns() * STAGES {
        let dead = seed / STAGES % (SIZE - 1) + seed % 2;
        let threshold = [0, 1 << 15][seed % 2];
        let options = Options { threshold, background: seed % 3 > 0, ..Options::default() };
        let (joined, parted) = (ranks::Barrier::new(SIZE), ranks::Barrier::new(SIZE));
        ranks::run_owned(SIZE as u32, &Config::default(), |rt| {
            // A rank that dies while others join ends their start.
            joined.wait();
            let me = rt.rank().index();
            let mut random = Random((seed * SIZE + me) as u64);
            if me == dead {
                let stage = stage(seed, &mut random);
                up_to(&rt, stage, &options, me, &mut random);
                ranks::die(rt);
                parted.wait();
                return;
            }
            let began = Instant::now();
            let error = until_told(&rt, &options, me, &mut random);
            let named = matches!(error, Error::RankDied { rank, .. } if rank.index() == dead);
            assert!(named, "seed {seed}, rank {me}, without rank {dead}: {error}");
            assert!(began.elapsed() < SOON, "seed {seed}, rank {me}: {:?}", began.elapsed());
            go_on_without(&rt, dead, &options);
            parted.wait();
            rt.term(LIMIT).expect("term");
        });
    }
}

tests! {
    DEVICES:
        a_rank_that_dies_at_any_stage_is_named;
}
