//! Blocking operations called again and again, which then take the short way where there is one.

use super::ranks::{self, LIMIT};
use super::{Buffers, Memory, S0, SEGMENT_BYTES, case, on_all_sizes};
use crate::oracle::Case;
use gaspi_collectives::algorithms::Collective;
use gaspi_collectives::{Combination, DataType, Operation, Request, f16, run, start_raw};
use gaspi_core::{GroupId, Init, Rank, Runtime, Timeout};
use std::collections::HashMap;
use std::sync::{Barrier, Mutex};

/// How a case is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Blocking,
    /// By calls that do not wait.
    Looking,
    /// Behind one that was started, and waited for afterwards.
    Behind,
}

/// A number that differs from turn to turn and from rank to rank.
fn mixed(turn: usize, rank: usize) -> usize {
    let product = (turn * 8 + rank + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product >> 40
}

fn carry_out(rt: &Runtime, case: &Case, memory: Memory, way: Way) {
    let (me, n) = (rt.rank().index(), rt.size() as usize);
    let buffers = Buffers::new(rt, case, memory);
    let request = buffers.request(case, None, me, n);
    let other = super::case(Collective::Allreduce, 3);
    let others = Buffers::new(rt, &other, Memory::Private);
    let started = (way == Way::Behind).then(|| {
        let request = others.request(&other, None, me, n);
        // SAFETY: the buffers live until it has ended.
        unsafe { start_raw(rt, GroupId::ALL, &request, LIMIT) }.expect("start")
    });
    let timeout = if way == Way::Looking { Timeout::Test } else { LIMIT };
    loop {
        // SAFETY: the buffers live until the operation has ended.
        match unsafe { run(rt, GroupId::ALL, &request, timeout) } {
            Err(error) if way == Way::Looking && error.is_timeout() => std::thread::yield_now(),
            outcome => break outcome.unwrap_or_else(|error| panic!("{way:?}, {case:?}: {error}")),
        }
    }
    buffers.check(rt, case, "repeated");
    if let Some(mut started) = started {
        started.wait(LIMIT).expect("wait");
        others.check(rt, &other, "started before");
    }
}

const SHORT_WAYS: [Collective; 4] =
    [Collective::Allreduce, Collective::Broadcast, Collective::Reduce, Collective::Barrier];

fn in_lines_and_staged_with_ranks_at_different_paces() {
    on_all_sizes(|rt| {
        let (me, n) = (rt.rank().index(), rt.size() as usize);
        for turn in 0..60 {
            let (kind, which) = (mixed(turn, 0), turn % 5);
            let case = Case {
                root: kind / 4 % n,
                in_place: kind & 64 == 0,
                // In lines, of one word and of several, and staged.
                ..case(SHORT_WAYS[kind % 4], [1, 2, 10, 11, 300][which])
            };
            let memory = [Memory::Segment, Memory::Private, Memory::Odd][turn / 7 % 3];
            let way = match turn % 11 {
                0 => Way::Looking,
                5 => Way::Behind,
                _ => Way::Blocking,
            };
            // What was done once is remembered.
            for again in 0..4 {
                match mixed(4 * turn + again, me + 1) % 5 {
                    0 => std::thread::yield_now(),
                    1 => (0..2000).for_each(|_| std::hint::spin_loop()),
                    _ => {}
                }
                carry_out(rt, &case, memory, way);
            }
        }
    });
}

fn of_every_type_by_every_operation() {
    ranks::run(2, |rt| {
        rt.segment_create(S0, SEGMENT_BYTES, GroupId::ALL, LIMIT, Init::Zeroed).expect("create");
        for ty in DataType::ALL {
            for op in Operation::ALL.into_iter().filter(|op| op.is_defined_for(ty)) {
                for collective in [Collective::Allreduce, Collective::Reduce] {
                    for count in [1, 5, 301] {
                        for _ in 0..3 {
                            let case = Case { ty, op, ..case(collective, count) };
                            carry_out(rt, &case, Memory::Odd, Way::Blocking);
                        }
                    }
                }
            }
        }
    });
}

/// Sums of these depend on how often they are rounded.
fn averages_of_halves_have_the_same_bits_whoever_is_late() {
    let (meet, results) = (Barrier::new(4), Mutex::new(HashMap::new()));
    ranks::run(4, |rt| {
        let me = rt.rank().0;
        for count in [1, 100] {
            let mine = vec![f16::from_f32(if me == 0 { 2048.0 } else { 1.0 }); count];
            let mut mean = vec![f16::ZERO; count];
            let request = Request {
                collective: Collective::Allreduce,
                send: mine.as_ptr().cast(),
                receive: mean.as_mut_ptr().cast(),
                count: count as u64,
                blocks: Vec::new(),
                combination: Combination::BuiltIn(DataType::F16, Operation::Average),
                root: Rank(0),
                algorithm: None,
                mode: None,
                background: false,
            };
            // SAFETY: the buffers live until it has ended.
            let average = |timeout| unsafe { run(rt, GroupId::ALL, &request, timeout) };
            for turn in 0..6 {
                // After a look in vain the call takes the slow path.
                let early = usize::from(me) != turn % 4;
                if early && turn > 1 {
                    assert!(average(Timeout::Test).unwrap_err().is_timeout());
                }
                meet.wait();
                average(LIMIT).unwrap();
                let bits: Vec<u16> = mean.iter().map(|mean| mean.to_bits()).collect();
                let first =
                    results.lock().unwrap().entry((count, turn)).or_insert(bits.clone()).clone();
                assert_eq!(bits, first, "{count} elements, turn {turn}");
            }
        }
    });
}

tests! {
    DEVICES:
        in_lines_and_staged_with_ranks_at_different_paces,
        of_every_type_by_every_operation,
        averages_of_halves_have_the_same_bits_whoever_is_late;
}
