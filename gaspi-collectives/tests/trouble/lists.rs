//! Broadcasts of lists: any pieces, and when something is wrong.

use super::{ALL, Dice, Memory, call, group_of, ranks, sum_of_all};
use gaspi_collectives::algorithms::{Algorithm, Collective};
use gaspi_collectives::{
    BroadcastList, DataType, Piece, run_broadcast_list, start_broadcast_list_raw,
};
use gaspi_core::{Config, Error, Rank, Result, Runtime, Timeout};
use ranks::LIMIT;
use std::sync::Barrier;

/// Bytes behind each piece that nobody may write.
const GUARD: usize = 24;
const UNTOUCHED: u8 = 0xee;

/// Pieces in memory of their own, each with a guard behind it.
struct Pieces {
    memory: Vec<Vec<u8>>,
    types: Vec<DataType>,
}

impl Pieces {
    /// Of so many elements each; what the root has.
    fn new(rt: &Runtime, counts: &[usize], root: Rank, round: usize) -> Pieces {
        let types: Vec<DataType> =
            (0..counts.len()).map(|index| DataType::ALL[(index * 5 + round) % 12]).collect();
        let memory = counts.iter().zip(&types).enumerate().map(|(index, (count, ty))| {
            let bytes = count * ty.bytes() as usize;
            let mut memory = vec![UNTOUCHED; bytes + GUARD];
            if rt.rank() == root {
                memory[..bytes].copy_from_slice(&content(index, round, bytes));
            }
            memory
        });
        Pieces { memory: memory.collect(), types }
    }

    fn list(&mut self, root: Rank) -> BroadcastList {
        let pieces = self.memory.iter_mut().zip(&self.types).map(|(memory, ty)| {
            let count = ((memory.len() - GUARD) / ty.bytes() as usize) as u64;
            Piece { data: memory.as_mut_ptr(), count, ty: *ty }
        });
        let pieces = pieces.collect();
        BroadcastList { pieces, root, algorithm: None, mode: None, background: false }
    }

    fn check(&self, round: usize) {
        for (index, memory) in self.memory.iter().enumerate() {
            let (found, guard) = memory.split_at(memory.len() - GUARD);
            assert!(found == content(index, round, found.len()), "piece {index} of round {round}");
            assert!(guard.iter().all(|byte| *byte == UNTOUCHED), "behind piece {index}");
        }
    }
}

fn content(index: usize, round: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 + at / 251 + index * 13 + round) as u8).collect()
}

/// [`run_broadcast_list`] of pieces that outlive it.
fn run(rt: &Runtime, list: &BroadcastList, timeout: Timeout) -> Result<()> {
    // SAFETY: the tests keep pieces until the operation has ended, or the job.
    unsafe { run_broadcast_list(rt, ALL, list, timeout) }
}

/// None, empty, odd, packed up to the limit, alone, more than a pack, and all of them.
fn lists() -> Vec<Vec<usize>> {
    let mut dice = Dice(7);
    let many = (0..300).map(|_| dice.below(3000) as usize).collect();
    let mixed = (0..40).map(|at| [0, 1, 33, 8192, 8193, 50_000][at % 6]).collect();
    vec![vec![], vec![0], vec![5], vec![100_000], vec![0, 3, 0], mixed, many, vec![8192; 40]]
}

fn all_pieces_come_to_all() {
    for n in ranks::sizes(&[1, 2, 3, 5]) {
        ranks::run(n, |rt| {
            for (round, counts) in lists().iter().enumerate() {
                let root = Rank((round as u32 % n) as u16);
                let mut pieces = Pieces::new(rt, counts, root, round);
                let mut list = pieces.list(root);
                list.background = round % 4 == 3;
                match round % 3 {
                    0 => run(rt, &list, LIMIT).expect("all are there"),
                    1 => {
                        // SAFETY: the pieces live until it has ended.
                        let started = unsafe { start_broadcast_list_raw(rt, ALL, &list, LIMIT) };
                        let mut started = started.expect("started");
                        while started.test().expect("all are there").is_none() {
                            std::thread::yield_now();
                        }
                    }
                    _ => {
                        // SAFETY: the pieces live until it has ended.
                        let started = unsafe { start_broadcast_list_raw(rt, ALL, &list, LIMIT) };
                        let mut started = started.expect("started");
                        sum_of_all(rt, ALL, 3);
                        started.wait(LIMIT).expect("all are there");
                    }
                }
                pieces.check(round);
            }
        });
    }
}

fn a_list_that_timed_out_goes_on_with_the_same_call() {
    let meet = Barrier::new(3);
    ranks::run(3, |rt| {
        for round in 0..3 {
            let (root, late) = (Rank(0), Rank(round as u16));
            let counts = [3, 60_000, 500, 100_000];
            let mut pieces = Pieces::new(rt, &counts, root, round);
            let list = pieces.list(root);
            // The root may have sent all; who is late may be the root.
            let mut outcome = Ok(());
            if rt.rank() != late {
                outcome = run(rt, &list, Timeout::Millis(30));
                if let Err(error) = &outcome {
                    assert!(error.is_timeout(), "{error}");
                }
                if outcome.is_err() && round > 0 {
                    let mut others = Pieces::new(rt, &[3], root, round);
                    let other = run(rt, &others.list(root), Timeout::Test);
                    assert!(matches!(other, Err(Error::ActiveCollective { .. })), "{other:?}");
                    let mut memory = Memory::new(rt.rank(), 5);
                    let sum = memory.request(Collective::Allreduce, 5);
                    let other = call(rt, ALL, &sum, Timeout::Test);
                    assert!(matches!(other, Err(Error::ActiveCollective { .. })), "{other:?}");
                }
                assert!(outcome.is_err() || late != root, "nothing can have come");
            }
            meet.wait();
            if rt.rank() == late || outcome.is_err() {
                run(rt, &list, LIMIT).expect("it goes on");
            }
            pieces.check(round);
            meet.wait();
        }
    });
}

/// The root is told by its next operation.
fn lists_that_differ_are_told() {
    let differences: [fn(&mut Vec<Piece>); 4] = [
        |pieces| pieces.swap(0, 1),
        |pieces| pieces.truncate(2),
        |pieces| pieces[2].count -= 1,
        |pieces| {
            pieces[0].ty = DataType::U8;
            pieces[1].ty = DataType::U8;
        },
    ];
    for (round, differ) in differences.into_iter().enumerate() {
        ranks::run(3, |rt| {
            let root = Rank(1);
            // The first operation opens the channel.
            sum_of_all(rt, ALL, 1);
            let mut pieces = Pieces::new(rt, &[3, 5, 60_000], root, 0);
            let mut list = pieces.list(root);
            list.pieces.iter_mut().for_each(|piece| piece.ty = DataType::I8);
            if rt.rank() == Rank(2) {
                differ(&mut list.pieces);
            }
            let mut memory = Memory::new(rt.rank(), 3000);
            let mut outcome = run(rt, &list, LIMIT);
            for _ in 0..4 {
                let next = memory.request(Collective::Allreduce, 3000);
                outcome = outcome.and_then(|()| call(rt, ALL, &next, LIMIT));
            }
            let error = outcome.expect_err("they differ");
            assert!(matches!(error, Error::Mismatch { .. }), "{round}: {error}");
            // Nobody leaves before all are told.
            rt.barrier(ALL, LIMIT).expect("barrier");
        });
    }
}

fn a_death_ends_a_list() {
    let met = Barrier::new(3);
    ranks::run_owned(3, &Config::default(), |rt| {
        let root = Rank(0);
        sum_of_all(&rt, ALL, 1);
        met.wait();
        if rt.rank() == Rank(2) {
            return ranks::die(rt);
        }
        let mut pieces = Pieces::new(&rt, &[3, 100_000, 500, 200_000], root, 0);
        let list = pieces.list(root);
        let mut memory = Memory::new(rt.rank(), 3000);
        let mut outcome = run(&rt, &list, LIMIT);
        let next = memory.request(Collective::Allreduce, 3000);
        outcome = outcome.and_then(|()| call(&rt, ALL, &next, LIMIT));
        let error = outcome.expect_err("one is gone");
        assert!(matches!(error, Error::RankDied { rank: Rank(2), .. }), "{error}");
        let pair = group_of(&rt, [Rank(0), Rank(1)]);
        rt.barrier(pair, LIMIT).expect("barrier");
        rt.term(LIMIT).expect("term");
    });
}

/// The first broadcast of the list fits into lines, the second one does not.
fn a_list_fails_of_which_a_part_cannot_be_started() {
    ranks::run(2, |rt| {
        let root = Rank(0);
        sum_of_all(rt, ALL, 1);
        for round in 0..3 {
            let mut pieces = Pieces::new(rt, &[3, 100_000], root, round);
            let mut list = pieces.list(root);
            (list.algorithm, list.background) = (Some(Algorithm::Inline), round == 2);
            let outcome = if round == 0 {
                run(rt, &list, LIMIT)
            } else {
                // SAFETY: the pieces live until it has ended.
                let started = unsafe { start_broadcast_list_raw(rt, ALL, &list, LIMIT) };
                started.expect("its first part is started").wait(LIMIT).map(drop)
            };
            let error = outcome.expect_err("a part is missing");
            assert!(matches!(error, Error::Unsupported { .. }), "{error}");
            // It has ended: what comes behind it goes on.
            sum_of_all(rt, ALL, 3);
        }
    });
}

tests! {
    SHM:
        a_list_fails_of_which_a_part_cannot_be_started;
    DEVICES:
        all_pieces_come_to_all,
        a_list_that_timed_out_goes_on_with_the_same_call,
        lists_that_differ_are_told,
        a_death_ends_a_list;
    SEVERAL:
        all_pieces_come_to_all;
}
