//! Short operations that are called again: their fast path, also by messages, where each rank has a
//! core of its own.

use super::ranks::{self, LIMIT};
use super::{ALL, Memory, SOON, UNTOUCHED, call, check_sum, counter, ranks_below};
use gaspi_collectives::algorithms::Collective;
use gaspi_collectives::start_raw;
use gaspi_core::{Error, Rank, TestMachine, Timeout};
use std::sync::Barrier;
use std::time::Instant;

/// Enough that no rank shares one.
const MANY_CORES: TestMachine =
    TestMachine { cores: Some(64), without_cross_memory: false, networks: None };
const COUNT: usize = 40;
const ROUNDS: usize = 20;

fn each_has_its_own_result() {
    for size in 2..=5 {
        ranks::run_on_machine(size, MANY_CORES, |rt| {
            let members: Vec<Rank> = ranks_below(size).collect();
            for round in 0..ROUNDS {
                let mut memory = Memory::new(rt.rank(), COUNT);
                // The next call begins with other memory, also in place.
                let mut request = memory.request(Collective::Allreduce, COUNT as u64);
                if round % 3 == 2 {
                    request.send = request.receive;
                    memory.output.copy_from_slice(&memory.input);
                }
                call(rt, ALL, &request, LIMIT).expect("allreduce");
                check_sum(&memory.output, &members);
                let mut sent = Memory::new(rt.rank(), COUNT);
                let mut request = sent.request(Collective::Broadcast, COUNT as u64);
                request.root = Rank(round as u16 % size as u16);
                request.receive = request.send.cast_mut();
                call(rt, ALL, &request, LIMIT).expect("broadcast");
                assert_eq!(sent.input, Memory::new(request.root, COUNT).input);
            }
        });
    }
}

/// The message and the copies of each call count, on whichever path it goes.
fn each_is_counted() {
    ranks::run_on_machine(3, MANY_CORES, |rt| {
        let messages = [0; 4].map(|_| {
            let before = counter(rt, "NumberOfCollectiveMessages");
            super::sum_of_all(rt, ALL, COUNT);
            counter(rt, "NumberOfCollectiveMessages") - before
        });
        // By lines the fast path counts nothing.
        let by_lines = messages[1..].iter().all(|count| *count == 0);
        assert!(by_lines || messages.iter().all(|count| *count == messages[0]), "{messages:?}");
    });
}

/// A call that the fast path has begun is continued by the same one, and by the next one behind a
/// timeout; until its end nothing is in its memory.
fn one_whose_member_is_late_is_handed_over() {
    const SIZE: u32 = 4;
    let timed_out = Barrier::new(SIZE as usize);
    ranks::run_on_machine(SIZE, MANY_CORES, |rt| {
        let late = rt.rank() == Rank(2);
        for round in 0..ROUNDS {
            super::sum_of_all(rt, ALL, COUNT);
            let mut memory = Memory::new(rt.rank(), COUNT);
            let request = memory.request(Collective::Allreduce, COUNT as u64);
            if !late && round % 2 == 0 {
                let error = call(rt, ALL, &request, Timeout::Millis(1)).expect_err("one is late");
                assert!(error.is_timeout(), "{error}");
                assert_eq!(memory.output, [UNTOUCHED; COUNT]);
            }
            timed_out.wait();
            call(rt, ALL, &request, LIMIT).expect("allreduce");
            check_sum(&memory.output, &ranks_below(SIZE).collect::<Vec<_>>());
        }
    });
}

/// The data of a message that a rank has asked for goes to its place without a copy of the library.
fn what_was_asked_for_is_received_in_its_place() {
    const LONG: usize = 4 << 10;
    let asked = Barrier::new(2);
    ranks::run_on_machine(2, MANY_CORES, |rt| {
        // Opens the channel.
        super::sum_of_all(rt, ALL, COUNT);
        let copied = [0; 50].map(|_| {
            let mut memory = Memory::new(rt.rank(), LONG);
            let mut request = memory.request(Collective::Broadcast, LONG as u64);
            request.root = Rank(0);
            request.receive = request.send.cast_mut();
            let before = counter(rt, "BytesCopiedByCollectives");
            if rt.rank() == request.root {
                asked.wait();
                call(rt, ALL, &request, LIMIT).expect("broadcast");
            } else {
                // SAFETY: the buffer lives until the operation has ended.
                let mut started = unsafe { start_raw(rt, ALL, &request, LIMIT) }.expect("start");
                let early = started.wait(Timeout::Test).expect_err("nothing was sent");
                assert!(early.is_timeout(), "{early}");
                asked.wait();
                started.wait(LIMIT).expect("broadcast");
            }
            assert_eq!(memory.input, Memory::new(request.root, LONG).input);
            counter(rt, "BytesCopiedByCollectives") - before
        });
        // What comes along with a head is copied, and all of one behind many other frames.
        let in_place = copied.iter().filter(|bytes| **bytes < 1 << 10).count();
        assert!(in_place >= 40, "{in_place}: {copied:?}");
    });
}

fn ranks_that_call_others_are_told() {
    const SIZE: u32 = 3;
    let told = Barrier::new(SIZE as usize);
    ranks::run_on_machine(SIZE, MANY_CORES, |rt| {
        for count in [COUNT, COUNT / 2].repeat(3) {
            super::sum_of_all(rt, ALL, count);
        }
        let count = if rt.rank() == Rank(1) { COUNT / 2 } else { COUNT };
        let mut memory = Memory::new(rt.rank(), COUNT);
        let request = memory.request(Collective::Allreduce, count as u64);
        let begin = Instant::now();
        let error = call(rt, ALL, &request, Timeout::Block).expect_err("they differ");
        // Nobody leaves before all have been told.
        told.wait();
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
        assert!(begin.elapsed() < SOON);
        assert_eq!(memory.output, [UNTOUCHED; COUNT]);
    });
}

tests! {
    DEVICES:
        each_has_its_own_result,
        each_is_counted,
        one_whose_member_is_late_is_handed_over,
        ranks_that_call_others_are_told;
    TCP:
        what_was_asked_for_is_received_in_its_place;
}
