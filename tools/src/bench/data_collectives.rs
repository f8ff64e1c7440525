//! The collective operations that move data (gaspi_collectives.h), of all ranks, back to back.
//!
//! Sizes and columns are those that users of nccl-tests know: a size is that of the larger buffer,
//! all blocks together where there are blocks; `algbw` is that size by the time, and `busbw` that
//! times the share of it that has to leave or enter each rank, which does not depend on their
//! number.

use crate::algorithms::{self, Algorithm};
use crate::arguments::{DataCollective, Modes, Place, Plain, Reducing, Test};
use crate::elements::{Op, Pattern, Type};
use crate::failure::{Failure, Result};
use crate::job::{Job, LIMIT_MS, Segment};
use crate::library::{Collectives, Options};
use crate::measure::{Lane, Measured, interleave, timed};
use crate::memory::{PAGE, Region};
use crate::pair::{SEGMENT, rotation};
use crate::report::{Layout, Report};
use crate::row::{Comparison, Moved, Row};
use crate::standard_collectives;
use std::ffi::c_void;

/// Sizes without a choice.
pub(crate) const SIZES: [usize; 8] =
    [8, 64, 1 << 10, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20];
const GROUP_ALL: u8 = 0;
/// The segment of writes beside an operation.
const BESIDE: u8 = SEGMENT + 1;
const QUEUE: u8 = 0;

/// Which operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Allreduce,
    Reduce,
    Broadcast,
    ReduceScatter,
    Allgather,
    Allgatherv,
    Gather,
    Scatter,
    Alltoall,
    Alltoallv,
}

impl Kind {
    /// As it is called on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Allreduce => "allreduce",
            Kind::Reduce => "reduce",
            Kind::Broadcast => "broadcast",
            Kind::ReduceScatter => "reduce-scatter",
            Kind::Allgather => "allgather",
            Kind::Allgatherv => "allgatherv",
            Kind::Gather => "gather",
            Kind::Scatter => "scatter",
            Kind::Alltoall => "alltoall",
            Kind::Alltoallv => "alltoallv",
        }
    }

    /// Whether the larger buffer has a block for each rank.
    fn has_blocks(self) -> bool {
        !matches!(self, Kind::Allreduce | Kind::Reduce | Kind::Broadcast)
    }

    fn reduces(self) -> bool {
        matches!(self, Kind::Allreduce | Kind::Reduce | Kind::ReduceScatter)
    }

    /// busbw in terms of algbw.
    fn bus_factor(self, ranks: usize) -> f64 {
        let others = (ranks - 1) as f64 / ranks as f64;
        match self {
            Kind::Allreduce => 2.0 * others,
            Kind::Reduce | Kind::Broadcast => 1.0,
            _ => others,
        }
    }
}

/// What is asked for.
#[derive(Debug, Clone)]
struct Wish<'a> {
    kind: Kind,
    options: &'a DataCollective,
    op: Op,
}

impl<'a> Wish<'a> {
    /// Of a test, if it is one of these.
    fn of(test: &'a Test) -> Option<Wish<'a>> {
        let moves = |kind, options| Wish { kind, options, op: Op::Sum };
        let reduces = |kind, reducing: &'a Reducing| Wish {
            kind,
            options: &reducing.options,
            op: reducing.op,
        };
        Some(match test {
            Test::Allreduce(reducing) => reduces(Kind::Allreduce, reducing),
            Test::Reduce(reducing) => reduces(Kind::Reduce, reducing),
            Test::ReduceScatter(reducing) => reduces(Kind::ReduceScatter, reducing),
            Test::Broadcast(options) => moves(Kind::Broadcast, options),
            Test::Allgather(options) => moves(Kind::Allgather, options),
            Test::Allgatherv(options) => moves(Kind::Allgatherv, options),
            Test::Gather(options) => moves(Kind::Gather, options),
            Test::Scatter(options) => moves(Kind::Scatter, options),
            Test::Alltoall(options) => moves(Kind::Alltoall, options),
            Test::Alltoallv(options) => moves(Kind::Alltoallv, options),
            _ => return None,
        })
    }

    /// The name of the row.
    fn variant(&self) -> String {
        let ty = self.options.ty.name();
        if self.kind.reduces() { format!("{} {ty}", self.op.name()) } else { ty.to_owned() }
    }
}

/// Refuses what cannot be measured, before a job is there.
pub(crate) fn check(test: &Test, ranks: usize) -> Result<()> {
    let Some(wish) = Wish::of(test) else { return Ok(()) };
    let options = wish.options;
    if !wish.op.serves(options.ty) {
        let (op, ty) = (wish.op.name(), options.ty.name());
        return Err(Failure::usage(format!(
            "-o {op} is for integers; {ty} has no bits to combine"
        )));
    }
    if options.root as usize >= ranks {
        return Err(Failure::usage(format!("--root {}: the job has {ranks} ranks", options.root)));
    }
    let beside = [
        options.point_to_point,
        options.algorithm.as_deref() == Some(algorithms::EVERY),
        options.mode == Some(Modes::Both),
    ];
    if beside.into_iter().filter(|asked| *asked).count() > 1 {
        return Err(Failure::usage(
            "--point-to-point, --algorithm all and --mode both are measured beside different \
             things; ask for one",
        ));
    }
    if options.point_to_point && ranks < 2 {
        return Err(Failure::usage("--point-to-point: the job has 1 rank, start it with -n 2"));
    }
    let bytes = options.ty.bytes();
    match options.sizes.sizes(&SIZES)?.into_iter().find(|size| !size.is_multiple_of(bytes)) {
        Some(size) if !options.sizes.sizes.is_empty() => Err(Failure::usage(format!(
            "size {size}: elements of {} have {bytes} bytes, and sizes are multiples of that",
            options.ty.name()
        ))),
        _ => Ok(()),
    }
}

/// Whether a test is to try algorithms, of which some will not serve.
pub(crate) fn tries_all(test: &Test) -> bool {
    Wish::of(test).is_some_and(|wish| wish.options.algorithm.as_deref() == Some(algorithms::EVERY))
}

/// Measures a test, if it is one of these.
pub(crate) fn run(job: &Job, test: &Test, report: &mut Report) -> Result<()> {
    let Some(wish) = Wish::of(test) else { return Ok(()) };
    let sizes = wish.options.sizes.sizes(&SIZES)?;
    sizes.into_iter().try_for_each(|size| row(job, &wish, size, report))
}

/// Every operation with its default sizes, out of place.
pub(crate) fn run_all(job: &Job, plain: &Plain, cold: bool, report: &mut Report) -> Result<()> {
    let options = DataCollective::default_with(plain, cold);
    for kind in [
        Kind::Allreduce,
        Kind::Reduce,
        Kind::Broadcast,
        Kind::ReduceScatter,
        Kind::Allgather,
        Kind::Allgatherv,
        Kind::Gather,
        Kind::Scatter,
        Kind::Alltoall,
        Kind::Alltoallv,
    ] {
        let wish = Wish { kind, options: &options, op: Op::Sum };
        for size in SIZES {
            row(job, &wish, size, report)?;
        }
    }
    Ok(())
}

/// The memory of a row.
#[derive(Debug)]
enum Memory<'a> {
    Segment(Segment<'a>),
    Private(Vec<u64>),
}

impl<'a> Memory<'a> {
    fn new(job: &'a Job, place: Place, bytes: usize) -> Result<Memory<'a>> {
        Ok(match place {
            Place::Segment => Memory::Segment(job.segment(SEGMENT, bytes)?),
            Place::Private => Memory::Private(vec![1; bytes.div_ceil(8)]),
        })
    }

    fn region(&mut self) -> Region<'_> {
        match self {
            Memory::Segment(segment) => segment.region,
            Memory::Private(words) => {
                let bytes = 8 * words.len();
                // SAFETY: the words live as long as this borrow.
                unsafe { Region::new(words.as_mut_ptr().cast(), bytes) }
            }
        }
    }

    fn give_back(self) -> Result<()> {
        match self {
            Memory::Segment(segment) => segment.delete(),
            Memory::Private(_) => Ok(()),
        }
    }
}

/// One operation of one size on this rank: what is the same for every call.
#[derive(Debug)]
struct Call<'a> {
    job: &'a Job,
    procedures: Collectives,
    kind: Kind,
    ty: Type,
    op: Op,
    root: u16,
    in_place: bool,
    /// Elements as the procedure counts them.
    count: usize,
    /// Elements of all blocks of other lengths: what this rank sends to each, and receives of each.
    sends: Vec<u64>,
    receives: Vec<u64>,
}

/// Elements of a block between two ranks: half as many again, or half as many less.
fn uneven(count: usize, one: usize, other: usize) -> u64 {
    let half = count / 2;
    (if (one + other).is_multiple_of(2) { count + half } else { count - half }) as u64
}

fn before(blocks: &[u64], index: usize) -> usize {
    blocks[..index].iter().sum::<u64>() as usize
}

impl Call<'_> {
    /// Elements of the larger buffer.
    fn whole(&self) -> usize {
        match self.kind {
            Kind::Allgatherv => before(&self.receives, self.receives.len()),
            Kind::Alltoallv => {
                let (sends, receives) = (&self.sends, &self.receives);
                before(sends, sends.len()).max(before(receives, receives.len()))
            }
            kind if kind.has_blocks() => self.count * self.job.ranks,
            _ => self.count,
        }
    }

    /// The same of the rank that has most.
    fn largest(&self) -> usize {
        match self.kind {
            Kind::Alltoallv => (self.count + self.count / 2) * self.job.ranks,
            _ => self.whole(),
        }
    }

    fn is_root(&self) -> bool {
        self.job.rank == usize::from(self.root)
    }

    /// This rank's contribution: where in the input it begins, and elements.
    fn input(&self) -> (usize, usize) {
        let rank = self.job.rank;
        match self.kind {
            Kind::Broadcast | Kind::Scatter if !self.is_root() => (0, 0),
            Kind::Scatter | Kind::Alltoall | Kind::ReduceScatter => (0, self.whole()),
            Kind::Alltoallv => (0, before(&self.sends, self.sends.len())),
            Kind::Allgather | Kind::Gather if self.in_place => (rank * self.count, self.count),
            Kind::Allgatherv => {
                let own = self.receives[rank] as usize;
                (if self.in_place { before(&self.receives, rank) } else { 0 }, own)
            }
            _ => (0, self.count),
        }
    }

    /// Writes this rank's contribution for a round.
    fn write(&self, buffers: Buffers<'_>, round: u64) {
        let (at, count) = self.input();
        let pattern = Pattern::input(self.ty, self.op, self.job.rank, self.job.ranks, round);
        let to = if self.in_place { buffers.receive } else { buffers.send };
        pattern.write(to, at, count, 0);
    }

    /// Elements of this rank's result that are wrong.
    fn wrong(&self, buffers: Buffers<'_>, round: u64) -> u64 {
        let (job, to) = (self.job, buffers.receive);
        let (rank, count) = (job.rank, self.count);
        let is_root = self.is_root();
        let of = |rank| Pattern::input(self.ty, self.op, rank, job.ranks, round);
        let combined = || Pattern::combined(self.ty, self.op, job.ranks, round);
        match self.kind {
            Kind::Reduce | Kind::Gather if !is_root => 0,
            Kind::Allreduce | Kind::Reduce => combined().wrong(to, 0, count, 0),
            Kind::Broadcast => of(usize::from(self.root)).wrong(to, 0, count, 0),
            Kind::ReduceScatter => {
                let at = if self.in_place { rank * count } else { 0 };
                combined().wrong(to, at, count, rank * count)
            }
            Kind::Scatter => {
                let at = if self.in_place && is_root { rank * count } else { 0 };
                of(usize::from(self.root)).wrong(to, at, count, rank * count)
            }
            Kind::Allgather | Kind::Gather => {
                (0..job.ranks).map(|other| of(other).wrong(to, other * count, count, 0)).sum()
            }
            Kind::Alltoall => (0..job.ranks)
                .map(|other| of(other).wrong(to, other * count, count, rank * count))
                .sum(),
            Kind::Allgatherv => (0..job.ranks)
                .map(|other| {
                    let at = before(&self.receives, other);
                    of(other).wrong(to, at, self.receives[other] as usize, 0)
                })
                .sum(),
            Kind::Alltoallv => (0..job.ranks)
                .map(|other| {
                    let at = before(&self.receives, other);
                    let from = (0..rank).map(|to| uneven(count, other, to) as usize).sum();
                    of(other).wrong(to, at, self.receives[other] as usize, from)
                })
                .sum(),
        }
    }

    fn run(&self, algorithm: &Algorithm, buffers: Buffers<'_>) -> Result<()> {
        let p = &self.procedures;
        let receive: *mut c_void = buffers.receive.address().cast();
        let block = self.job.rank * self.count * self.ty.bytes();
        let send: *const c_void = match (self.in_place, self.kind) {
            (_, Kind::Broadcast | Kind::Scatter) if !self.is_root() => std::ptr::null(),
            // Blocks of the own rank lie where they stay.
            (true, Kind::Allgather | Kind::Allgatherv | Kind::Gather) => {
                receive.wrapping_byte_add(self.input().0 * self.ty.bytes()).cast_const()
            }
            (true, _) => receive.cast_const(),
            (false, _) => buffers.send.address().cast::<c_void>().cast_const(),
        };
        let own = receive.wrapping_byte_add(match self.kind {
            Kind::ReduceScatter if self.in_place => block,
            Kind::Scatter if self.in_place && self.is_root() => block,
            _ => 0,
        });
        let (count, ty, op, root) = (self.count as u64, self.ty.code(), self.op.code(), self.root);
        let options = Options::of(algorithm.name.as_deref(), algorithm.mode);
        let options = &raw const options;
        let (sends, receives) = (self.sends.as_ptr(), self.receives.as_ptr());
        let none = std::ptr::null();
        // SAFETY: the buffers have as many elements as each says, and stay until the call returns.
        let status = unsafe {
            match self.kind {
                Kind::Allreduce => {
                    (p.allreduce)(send, receive, count, ty, op, GROUP_ALL, options, LIMIT_MS)
                }
                Kind::Reduce => {
                    (p.reduce)(send, receive, count, ty, op, root, GROUP_ALL, options, LIMIT_MS)
                }
                Kind::Broadcast => {
                    (p.broadcast)(send, receive, count, ty, root, GROUP_ALL, options, LIMIT_MS)
                }
                Kind::ReduceScatter => {
                    (p.reduce_scatter)(send, own, count, ty, op, GROUP_ALL, options, LIMIT_MS)
                }
                Kind::Allgather => {
                    (p.allgather)(send, receive, count, ty, GROUP_ALL, options, LIMIT_MS)
                }
                Kind::Allgatherv => {
                    (p.allgatherv)(send, receive, receives, none, ty, GROUP_ALL, options, LIMIT_MS)
                }
                Kind::Gather => {
                    (p.gather)(send, receive, count, ty, root, GROUP_ALL, options, LIMIT_MS)
                }
                Kind::Scatter => {
                    (p.scatter)(send, own, count, ty, root, GROUP_ALL, options, LIMIT_MS)
                }
                Kind::Alltoall => {
                    (p.alltoall)(send, receive, count, ty, GROUP_ALL, options, LIMIT_MS)
                }
                Kind::Alltoallv => (p.alltoallv)(
                    send, sends, none, receive, receives, none, ty, GROUP_ALL, options, LIMIT_MS,
                ),
            }
        };
        self.job.call(self.kind.name(), status)
    }
}

/// The input and the result of one call.
#[derive(Debug, Clone, Copy)]
struct Buffers<'a> {
    send: Region<'a>,
    receive: Region<'a>,
}

/// The elements that this rank sends to each and receives from each, where blocks differ.
fn blocks(job: &Job, kind: Kind, count: usize) -> (Vec<u64>, Vec<u64>) {
    let all = 0..job.ranks;
    match kind {
        Kind::Allgatherv => (Vec::new(), all.map(|rank| uneven(count, rank, 0)).collect()),
        Kind::Alltoallv => {
            let blocks: Vec<u64> = all.map(|rank| uneven(count, job.rank, rank)).collect();
            (blocks.clone(), blocks)
        }
        _ => (Vec::new(), Vec::new()),
    }
}

fn row(job: &Job, wish: &Wish<'_>, size: usize, report: &mut Report) -> Result<()> {
    let (kind, options) = (wish.kind, wish.options);
    let procedures = job.extensions.collectives.ok_or_else(|| {
        let library = job.library.display();
        Failure::usage(format!("{library} has no gaspi_coll_*: it has no collectives to measure"))
    })?;
    let elements = size / options.ty.bytes();
    let count = if kind.has_blocks() { elements.div_ceil(job.ranks) } else { elements }.max(1);
    let (sends, receives) = blocks(job, kind, count);
    let call = Call {
        job,
        procedures,
        kind,
        ty: options.ty,
        op: wish.op,
        root: options.root as u16,
        in_place: options.in_place,
        count,
        sends,
        receives,
    };
    let (algorithms, measured) = measure(&call, options)?;
    let comparison = match (algorithms.len(), options.point_to_point) {
        (_, true) => Some(Comparison::Writes),
        (1, false) => None,
        _ if options.mode == Some(Modes::Both) => Some(Comparison::Modes),
        _ => Some(Comparison::Algorithms),
    };
    let best = (1..algorithms.len()).min_by(|one, other| {
        let median = |algorithm: usize| measured.samples[algorithm].median();
        median(*one).total_cmp(&median(*other))
    });
    for (index, algorithm) in algorithms.iter().enumerate() {
        let samples = measured.samples[index].clone();
        let moved = Moved {
            variant: wish.variant(),
            count,
            ty: options.ty.name(),
            op: kind.reduces().then(|| wish.op.name()),
            algorithm: algorithms::name(algorithm),
            in_place: call.in_place,
            memory: options.memory.name(),
            bus_factor: kind.bus_factor(job.ranks),
            comparison,
        };
        let bytes = call.whole() * options.ty.bytes();
        let mut row = Row::new(kind.name(), "", samples).size(bytes).moved(moved);
        match best {
            // Of all, since they are checked together.
            _ if index > 0 => {}
            Some(best) => {
                let name = algorithms::name(&algorithms[best]).unwrap_or_default();
                let us = measured.samples[best].median();
                row = row.limit(name, us).errors(measured.errors);
            }
            None => row = row.errors(measured.errors),
        }
        if options.point_to_point {
            let us = measured.samples[algorithms.len()].median();
            row = row.limit("write to the next rank, all at once", us).share();
        }
        report.row(Layout::Moved, &row)?;
    }
    Ok(())
}

/// Bytes that a rank has to send, or receive, in an operation on so many: the same on all ranks,
/// which make a segment of them.
fn bus_bytes(call: &Call<'_>) -> usize {
    let bytes = (call.largest() * call.ty.bytes()) as f64;
    ((bytes * call.kind.bus_factor(call.job.ranks)) as usize).max(1)
}

/// Each rank writes what it would have to send to the next one, and waits until it is there.
fn writes<'a>(segment: &'a Segment<'_>, job: &'a Job, bytes: usize) -> Lane<'a> {
    let next = (job.rank + 1) % job.ranks;
    Lane::new(move |batch| {
        let us = timed(batch, || {
            segment.write(0, next, bytes, bytes, QUEUE)?;
            job.wait(QUEUE)
        })?;
        Ok(Some(us))
    })
}

/// The algorithms that were measured, and their samples. Those of writes follow if
/// they are asked for.
fn measure(call: &Call<'_>, options: &DataCollective) -> Result<(Vec<Algorithm>, Measured)> {
    let job = call.job;
    let bytes = call.largest() * call.ty.bytes();
    let bytes_beside = bus_bytes(call);
    let ground =
        options.point_to_point.then(|| job.segment(BESIDE, 2 * bytes_beside)).transpose()?;
    let rotation = rotation(bytes, options.sizes.cold);
    let half = rotation.total.next_multiple_of(PAGE);
    let mut memory = Memory::new(job, options.memory, 2 * half)?;
    let measured = {
        let region = memory.region();
        let buffers = |at: usize| Buffers {
            send: region.part(at, bytes),
            receive: region.part(half + at, bytes),
        };
        // So that the first calls do not move what no check has ever written.
        call.write(buffers(0), 0);
        let wanted = (options.algorithm.as_deref(), options.mode);
        let algorithms = algorithms::of(&call.procedures, call.kind.name(), wanted, |algorithm| {
            call.run(algorithm, buffers(0))
        })?;
        let mut lanes: Vec<Lane<'_>> = (algorithms.iter())
            .map(|algorithm| {
                let mut places = rotation;
                Lane::new(move |batch| {
                    let us = timed(batch, || call.run(algorithm, buffers(places.offset())))?;
                    Ok(Some(us))
                })
            })
            .collect();
        lanes.extend(ground.as_ref().map(|segment| writes(segment, job, bytes_beside)));
        let schedule = standard_collectives::schedule(job, &options.sizes.plain, bytes);
        let measured = interleave(job, job.ranks, schedule, &mut lanes, |round| {
            let mut wrong = 0;
            for algorithm in &algorithms {
                call.write(buffers(0), round);
                call.run(algorithm, buffers(0))?;
                wrong += call.wrong(buffers(0), round);
            }
            Ok(wrong)
        })?;
        drop(lanes);
        (algorithms, measured)
    };
    memory.give_back()?;
    ground.map_or(Ok(()), Segment::delete)?;
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_bandwidth_counts_what_has_to_cross() {
        assert_eq!(Kind::Allreduce.bus_factor(4), 1.5);
        assert_eq!(Kind::Alltoall.bus_factor(4), 0.75);
        assert_eq!(Kind::Broadcast.bus_factor(4), 1.0);
        assert_eq!(Kind::Allreduce.bus_factor(1), 0.0);
    }

    #[test]
    fn uneven_blocks_are_those_that_the_other_expects() {
        for (one, other) in [(0, 0), (0, 1), (2, 5), (3, 3)] {
            assert_eq!(uneven(10, one, other), uneven(10, other, one));
        }
        assert_eq!((uneven(10, 0, 0), uneven(10, 0, 1), uneven(1, 0, 1)), (15, 5, 1));
    }
}
