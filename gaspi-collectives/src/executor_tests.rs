//! The executor over a port in memory, with threads as ranks: results, timeouts that continue,
//! parities across calls, failing functions.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::*;
use crate::schedule::{Allreduce, LINE_BYTES, Shape};
use crate::user::{ReductionFailed, UserReduce};
use crate::{Line, Sliced, Staged};

/// What the ranks share: arrivals, two lines and two stages for each.
struct Board {
    arrivals: Vec<AtomicU64>,
    lines: Vec<[Mutex<[u8; LINE_BYTES as usize]>; 2]>,
    // Atomics only because shared memory has to be in something that may change.
    stages: Vec<[Vec<AtomicU64>; 2]>,
    stage_bytes: usize,
}

impl Board {
    fn new(size: u32, stage_bytes: usize) -> Board {
        assert_eq!(stage_bytes % 8, 0);
        let stage = || (0..stage_bytes / 8).map(|_| AtomicU64::new(u64::MAX)).collect();
        Board {
            arrivals: (0..size).map(|_| AtomicU64::new(0)).collect(),
            lines: (0..size)
                .map(|_| [(); 2].map(|()| Mutex::new([0; LINE_BYTES as usize])))
                .collect(),
            stages: (0..size).map(|_| [stage(), stage()]).collect(),
            stage_bytes,
        }
    }

    fn shape(&self, me: u32, count: u64, element_bytes: u64) -> Shape {
        let size = self.arrivals.len() as u32;
        Shape { me, size, count, element_bytes, stage_bytes: self.stage_bytes as u64 }
    }
}

/// One rank's port; lives through all calls.
struct ThreadPort<'a> {
    board: &'a Board,
    me: u32,
    cursor: u64,
    arrivals: u64,
    timeouts: u64,
}

impl<'a> ThreadPort<'a> {
    fn new(board: &'a Board, me: u32) -> ThreadPort<'a> {
        ThreadPort { board, me, cursor: 0, arrivals: 0, timeouts: 0 }
    }

    fn stage(&self, member: u32, arrival: u64) -> Target<'_> {
        let stage = &self.board.stages[member as usize][(arrival % 2) as usize];
        let start = stage.as_ptr().cast_mut().cast::<u8>();
        // SAFETY: the memory of atomics may change behind a shared reference, and lives as long as
        // the board; the checked schedules order the accesses.
        unsafe { Target::new(start, self.board.stage_bytes) }
    }
}

impl Port for ThreadPort<'_> {
    fn me(&self) -> u32 {
        self.me
    }

    fn size(&self) -> u32 {
        self.board.arrivals.len() as u32
    }

    fn rank(&self, member: u32) -> Rank {
        Rank(100 + member as u16)
    }

    fn cursor(&self) -> u64 {
        self.cursor
    }

    fn set_cursor(&mut self, step: u64) {
        self.cursor = step;
    }

    fn arrive(&mut self, payload: Source<'_>) {
        let parity = (self.arrivals % 2) as usize;
        let mut line = self.board.lines[self.me as usize][parity].lock().unwrap();
        *line = [0xaa; LINE_BYTES as usize];
        kernel::copy(Target::of(&mut line[..payload.len()]), payload);
        drop(line);
        self.arrivals += 1;
        // Release: publishes stage and line; pairs with the Acquire load in await_all.
        self.board.arrivals[self.me as usize].store(self.arrivals, Ordering::Release);
    }

    fn await_all(&mut self, deadline: Deadline) -> Result<()> {
        loop {
            let all = self.board.arrivals.iter();
            if all.into_iter().all(|peer| peer.load(Ordering::Acquire) >= self.arrivals) {
                return Ok(());
            }
            if deadline.passed() {
                self.timeouts += 1;
                return Err(Error::Timeout { pending: "the test's ranks".to_owned() });
            }
            thread::yield_now();
        }
    }

    fn line(&self, member: u32, to: Target<'_>) {
        let parity = ((self.arrivals - 1) % 2) as usize;
        let line = self.board.lines[member as usize][parity].lock().unwrap();
        kernel::copy(to, Source::of(&line[..to.len()]));
    }

    fn stage_used(&mut self, bytes: u64) {
        assert!(bytes <= self.board.stage_bytes as u64);
    }

    fn next_stage(&self, member: u32) -> Target<'_> {
        self.stage(member, self.arrivals)
    }

    fn last_stage(&self, member: u32) -> Source<'_> {
        self.stage(member, self.arrivals - 1).source()
    }
}

/// How a rank waits: `impatient` ranks make one attempt and come again.
fn complete(
    port: &mut ThreadPort<'_>,
    schedule: &impl Schedule,
    buffers: Buffers<'_>,
    reduction: &mut Reduction<'_>,
    impatient: bool,
) -> Result<()> {
    let deadline = if impatient { Deadline::Now } else { Deadline::Never };
    loop {
        match run(port, schedule, buffers, reduction, deadline) {
            Err(error) if error.is_timeout() => thread::yield_now(),
            result => {
                port.cursor = 0;
                return result;
            }
        }
    }
}

fn input(me: u32, count: u64, call: u64) -> Vec<f64> {
    // Sums of these depend on the order in which they are made.
    (0..count).map(|i| 1e15 / (1 + me) as f64 + (i * 7 + call) as f64 * 0.1).collect()
}

fn expected(size: u32, count: u64, call: u64) -> Vec<f64> {
    let mut sum = input(0, count, call);
    for me in 1..size {
        sum.iter_mut().zip(input(me, count, call)).for_each(|(sum, value)| *sum += value);
    }
    sum
}

/// Runs calls back to back on `size` threads; returns how many attempts timed out.
fn sums<S: Schedule>(
    size: u32,
    stage_bytes: usize,
    counts: &[u64],
    schedule: impl Fn(Shape) -> S + Sync,
) -> u64 {
    let board = Board::new(size, stage_bytes);
    let timeouts = AtomicU64::new(0);
    thread::scope(|scope| {
        for me in 0..size {
            let (board, timeouts, schedule) = (&board, &timeouts, &schedule);
            scope.spawn(move || {
                let mut port = ThreadPort::new(board, me);
                for (call, count) in counts.iter().copied().enumerate() {
                    let schedule = schedule(board.shape(me, count, 8));
                    let mut data = input(me, count, call as u64);
                    let mut apart = vec![f64::NAN; data.len()];
                    let own = Target::of(bytemuck::cast_slice_mut(&mut data));
                    let other = Target::of(bytemuck::cast_slice_mut(&mut apart));
                    let output = if call % 2 == 0 { own } else { other };
                    let buffers = Buffers { input: own.source(), output };
                    let mut sum = Reduction::BuiltIn(Operation::Sum, DataType::F64);
                    let impatient = !(call as u32 + me).is_multiple_of(3);
                    complete(&mut port, &schedule, buffers, &mut sum, impatient).unwrap();
                    let result = if call % 2 == 0 { &data } else { &apart };
                    assert_eq!(result, &expected(size, count, call as u64));
                }
                timeouts.fetch_add(port.timeouts, Ordering::Relaxed);
            });
        }
    });
    timeouts.into_inner()
}

#[test]
fn all_ranks_get_the_sum_in_the_order_of_the_ranks() {
    let counts = [1, 6, 2, 33, 100, 5, 257, 1, 64];
    let mut timeouts = 0;
    for size in [1, 2, 3, 4, 5, 8, 9] {
        timeouts += sums(size, 256, &counts, Allreduce::choose);
        timeouts += sums(size, 256, &counts, Staged::new);
        timeouts += sums(size, 256, &counts, |shape| Sliced::new(shape).unwrap());
        timeouts += sums(size, 256, &[1, 2, 3, 4, 5, 6, 6, 6, 1], Line::new);
    }
    assert!(timeouts > 0, "no call timed out, so none continued");
}

#[test]
fn large_messages_go_through_real_stages() {
    for size in [2, 4] {
        sums(size, 16384, &[2048, 2049, 100_001], Allreduce::choose);
    }
}

/// Composition of affine maps x -> a x + b over 64-bit integers: associative, not commutative.
fn compose(one: &[u8], two: &[u8], result: &mut [u8]) -> std::result::Result<(), ReductionFailed> {
    for memory in [one, two, result] {
        assert_eq!(memory.as_ptr() as usize % 16, 0, "arguments are aligned to 16 bytes");
    }
    let (one, two): (&[u64], &[u64]) = (bytemuck::cast_slice(one), bytemuck::cast_slice(two));
    let result: &mut [u64] = bytemuck::cast_slice_mut(result);
    for i in (0..result.len()).step_by(2) {
        result[i] = one[i].wrapping_mul(two[i]);
        result[i + 1] = one[i].wrapping_mul(two[i + 1]).wrapping_add(one[i + 1]);
    }
    Ok(())
}

fn maps(me: u32, count: u64) -> Vec<u64> {
    (0..count * 2).map(|i| (i + 3).wrapping_mul(u64::from(me) + 2)).collect()
}

#[test]
fn a_function_is_applied_in_the_order_of_the_ranks() {
    for size in [1, 2, 3, 5] {
        let board = Board::new(size, 160);
        thread::scope(|scope| {
            for me in 0..size {
                let board = &board;
                scope.spawn(move || {
                    let mut port = ThreadPort::new(board, me);
                    for count in [1, 10, 11, 35] {
                        let schedule = Staged::with_status(board.shape(me, count, 16));
                        let mut data = maps(me, count);
                        let output = Target::of(bytemuck::cast_slice_mut(&mut data));
                        let buffers = Buffers { input: output.source(), output };
                        let mut function = compose;
                        let user = UserReduction::new(&mut function, 16);
                        let mut reduction = Reduction::User(user);
                        complete(&mut port, &schedule, buffers, &mut reduction, me == 1).unwrap();
                        let expected = (1..size).fold(maps(0, count), |one, member| {
                            let mut result = vec![0_u64; one.len()];
                            let two = maps(member, count);
                            for i in (0..result.len()).step_by(2) {
                                result[i] = one[i].wrapping_mul(two[i]);
                                result[i + 1] =
                                    one[i].wrapping_mul(two[i + 1]).wrapping_add(one[i + 1]);
                            }
                            result
                        });
                        assert_eq!(data, expected);
                    }
                });
            }
        });
    }
}

/// Fails from a given call of the function on.
struct FailsAfter(u32);

impl UserReduce for FailsAfter {
    fn reduce(
        &mut self,
        _one: &[u8],
        _two: &[u8],
        _result: &mut [u8],
        count: u64,
    ) -> std::result::Result<(), ReductionFailed> {
        assert!(count > 0);
        self.0 = self.0.checked_sub(1).ok_or(ReductionFailed)?;
        Ok(())
    }
}

#[test]
fn a_function_that_fails_anywhere_fails_on_all_ranks() {
    const SIZE: u32 = 3;
    // Two calls of the function for each of five chunks. Which ranks fail after how many, and
    // whom all of them name: who failed in the earliest chunk, of several the lowest.
    let cases = [
        ([0, 99, 99], 0),
        ([99, 99, 9], 2),
        ([99, 9, 8], 1),
        ([99, 4, 5], 1),
        ([6, 5, 99], 1),
        ([99, 99, 1], 2),
    ];
    for (fails_after, named) in cases {
        let board = Board::new(SIZE, 64);
        thread::scope(|scope| {
            for me in 0..SIZE {
                let board = &board;
                scope.spawn(move || {
                    let mut port = ThreadPort::new(board, me);
                    let mut data = vec![0_u64; 8 * 5];
                    let schedule = Staged::with_status(board.shape(me, data.len() as u64, 8));
                    let output = Target::of(bytemuck::cast_slice_mut(&mut data));
                    let buffers = Buffers { input: output.source(), output };
                    let mut function = FailsAfter(fails_after[me as usize]);
                    let mut reduction = Reduction::User(UserReduction::new(&mut function, 8));
                    let result = complete(&mut port, &schedule, buffers, &mut reduction, me == 0);
                    let rank = Rank(100 + named);
                    assert_eq!(result, Err(Error::Reduction { rank }), "{fails_after:?}");

                    // The next call on the same group is not disturbed.
                    let schedule = Staged::with_status(board.shape(me, 16, 8));
                    let output = Target::of(bytemuck::cast_slice_mut(&mut data[..16]));
                    let buffers = Buffers { input: output.source(), output };
                    let mut function = FailsAfter(99);
                    let mut reduction = Reduction::User(UserReduction::new(&mut function, 8));
                    complete(&mut port, &schedule, buffers, &mut reduction, false).unwrap();
                });
            }
        });
    }
}
