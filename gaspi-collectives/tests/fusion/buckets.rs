//! Thousands of buckets: each has a channel of its own, whose memory follows its bytes. A step over
//! all of them ends well, and when they are freed their memory serves others.

use super::*;
use gaspi_core::Config;
use std::collections::HashSet;

/// How often they are made.
const ROUNDS: usize = 6;
/// In how many places they may lie in turn: a free that others have not all heard of yet keeps a
/// place for a while.
const PLACES_MAX: usize = 3;

/// Elements of a tensor, which is a bucket.
fn count(tensor: usize) -> usize {
    1 + tensor % 37
}

/// A step in which each rank submits and waits in orders of its own.
fn step(fusion: &Fusion<'_>, (me, ranks): (usize, usize), buckets: usize, step: usize) {
    let mut random = Random((me * 1000 + step) as u64);
    for tensor in random.order(buckets) {
        submit(fusion, tensor, &contribution(me, tensor, step, count(tensor)));
    }
    for tensor in random.order(buckets) {
        let expected = sum(ranks, tensor, step, count(tensor));
        assert_eq!(wait(fusion, tensor, count(tensor)), expected, "tensor {tensor}, step {step}");
    }
}

fn make_use_and_free(ranks: u32, buckets: usize) {
    let counts: Vec<usize> = (0..buckets).map(count).collect();
    ranks::run_with(ranks, &Config::default(), |rt| {
        let of = (rt.rank().index(), ranks as usize);
        let options = Options { threshold: 0, ..Options::default() };
        let mut places = HashSet::new();
        for round in 0..ROUNDS {
            let fusion = create(rt, &floats(&counts), &options);
            assert_eq!(fusion.buckets(), buckets);
            for tensor in [0, buckets / 2, buckets - 1] {
                assert_eq!(fusion.bucket(tensor), Ok(tensor));
            }
            let last = fusion.tensor_ptr(buckets - 1).expect("a place");
            places.insert((fusion.tensor_ptr(0).expect("a place").addr(), last.addr()));
            // The other rounds are there for the memory alone.
            if round == 0 || round == ROUNDS - 1 {
                (0..2).for_each(|nth| step(&fusion, of, buckets, nth));
            }
            drop(fusion);
            rt.barrier(ALL, LIMIT).expect("barrier");
        }
        assert!(places.len() <= PLACES_MAX, "{} places in {ROUNDS} rounds", places.len());
    });
}

fn is_full() -> bool {
    std::env::var_os("GASPI_TEST_FULL").is_some()
}

fn thousands_of_two_ranks() {
    make_use_and_free(2, if is_full() { 10_000 } else { 1000 });
}

fn thousands_of_sixteen_ranks() {
    make_use_and_free(16, if is_full() { 2000 } else { 200 });
}

tests! {
    REAL: thousands_of_two_ranks;
    TCP: thousands_of_sixteen_ranks;
}
