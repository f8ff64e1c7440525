//! Runs a schedule, step by step, over a [`Port`]. It knows no algorithm and no transport.
//!
//! The number of the step to run is kept in the port as its cursor, which outlives a call that
//! timed out: the same call continues there. Only an await can time out, and everything before it
//! has happened by then, so no step runs twice and nothing of the call has to be kept elsewhere.

use std::ops::Range;

use gaspi_core::{Deadline, Error, Rank, Result};

use crate::datatype::{DataType, Operation};
use crate::kernel::{self, Scratch, Source, Target};
use crate::schedule::{Payload, Place, Schedule, SourcePlace, Sources, Span, Step};
use crate::user::UserReduction;

/// One call on one group, as the executor needs it.
pub trait Port {
    /// Index of this rank among the members.
    fn me(&self) -> u32;

    /// Members of the group.
    fn size(&self) -> u32;

    /// The rank of a member, for messages.
    fn rank(&self, member: u32) -> Rank;

    /// The step to run; 0 for a new call.
    fn cursor(&self) -> u64;

    /// Remembers the step to run.
    fn set_cursor(&mut self, step: u64);

    /// Publishes this rank's next line with this payload, and its staging.
    fn arrive(&mut self, payload: Source<'_>);

    /// Waits until all members have arrived as often as this rank.
    ///
    /// # Errors
    /// [`Error::Timeout`] leaves the call continuable; all others end it.
    fn await_all(&mut self, deadline: Deadline) -> Result<()>;

    /// Copies the first bytes of the payload of a member's line, of the arrival awaited last.
    fn line(&self, member: u32, to: Target<'_>);

    /// The next arrival publishes at least the first `bytes` of this rank's staging.
    fn stage_used(&mut self, bytes: u64);

    /// The member's staging that the next arrival will publish.
    fn next_stage(&self, member: u32) -> Target<'_>;

    /// The member's staging that the arrival awaited last has published.
    fn last_stage(&self, member: u32) -> Source<'_>;
}

/// What the caller handed in: equally long; the same memory or disjoint.
#[derive(Clone, Copy, Debug)]
pub struct Buffers<'a> {
    /// What this rank contributes.
    pub input: Source<'a>,
    /// Where the result goes.
    pub output: Target<'a>,
}

/// How contributions are combined.
#[derive(Debug)]
pub enum Reduction<'a> {
    /// By a kernel.
    BuiltIn(Operation, DataType),
    /// By the caller's function, which may fail.
    User(UserReduction<'a>),
}

/// Runs the schedule from the port's cursor to its end.
///
/// # Errors
/// Those of [`Port::await_all`], and [`Error::Reduction`] on all ranks, at the same step, when the
/// caller's function failed on one of them.
pub fn run(
    port: &mut impl Port,
    schedule: &impl Schedule,
    buffers: Buffers<'_>,
    reduction: &mut Reduction<'_>,
    deadline: Deadline,
) -> Result<()> {
    let mut index = port.cursor();
    let mut arrivals = schedule.arrivals_before(index);
    // A failure is told by the next arrival. No await lies between, so it need not outlive the call.
    let mut failed = false;
    loop {
        match schedule.step(index) {
            Step::Copy { dst, src } => {
                if dst.bytes > 0 {
                    let src = source(port, arrivals, buffers, src);
                    kernel::copy(target(port, arrivals, buffers, dst), src);
                    note_staged(port, dst);
                }
            }
            Step::Reduce { dst, srcs } => {
                if dst.bytes > 0 && !failed {
                    failed = reduce(port, arrivals, buffers, dst, srcs, reduction).is_err();
                    note_staged(port, dst);
                }
            }
            Step::Arrive(payload) => {
                arrive(port, buffers, payload, failed);
                arrivals += 1;
            }
            Step::Await => port.await_all(deadline)?,
            Step::Check => check(port)?,
            Step::Done => return Ok(()),
        }
        index += 1;
        port.set_cursor(index);
    }
}

fn note_staged(port: &mut impl Port, dst: Span) {
    if let Place::Scratch { .. } = dst.place {
        port.stage_used(dst.offset + dst.bytes);
    }
}

fn arrive(port: &mut impl Port, buffers: Buffers<'_>, payload: Payload, failed: bool) {
    match payload {
        Payload::Nothing => port.arrive(Source::of(&[])),
        Payload::Status => port.arrive(Source::of(&[u8::from(failed)])),
        // A line carries memory of the caller, never what the port itself holds.
        Payload::Data(span) => {
            let memory = match span.place {
                Place::Input(_) => buffers.input,
                Place::Output(_) => buffers.output.source(),
                Place::Scratch { .. } => unreachable!("staging is published as it is"),
            };
            port.arrive(memory.part(span.offset, span.bytes));
        }
    }
}

/// The error of the lowest member whose line says that a reduction failed.
fn check(port: &impl Port) -> Result<()> {
    let failed = |member: &u32| {
        let mut status = [0];
        port.line(*member, Target::of(&mut status));
        status != [0]
    };
    match (0..port.size()).find(failed) {
        Some(member) => Err(Error::Reduction { rank: port.rank(member) }),
        None => Ok(()),
    }
}

fn reduce(
    port: &impl Port,
    arrivals: u64,
    buffers: Buffers<'_>,
    dst: Span,
    srcs: Sources,
    reduction: &mut Reduction<'_>,
) -> std::result::Result<(), crate::user::ReductionFailed> {
    let target = target(port, arrivals, buffers, dst);
    match (reduction, srcs.place) {
        (Reduction::BuiltIn(op, ty), SourcePlace::Line) => {
            reduce_lines(port, target, srcs.first..srcs.end, *op, *ty);
            Ok(())
        }
        (Reduction::BuiltIn(op, ty), SourcePlace::Scratch { parity, offset }) => {
            reduce_staged(target, srcs.first..srcs.end, *op, *ty, |member| {
                let place = Place::Scratch { member, parity };
                source(port, arrivals, buffers, Span { place, offset, bytes: dst.bytes })
            });
            Ok(())
        }
        (Reduction::User(user), SourcePlace::Scratch { parity, offset }) => {
            user.reduce(target, srcs.first..srcs.end, |member| {
                let place = Place::Scratch { member, parity };
                source(port, arrivals, buffers, Span { place, offset, bytes: dst.bytes })
            })
        }
        (Reduction::User(_), SourcePlace::Line) => {
            unreachable!("a line that carries data has no room for the status of a reduction")
        }
    }
}

/// Sources that are handed to the kernel at once.
const BATCH: usize = 4;

/// Combines what rides in the lines of these members.
pub(crate) fn reduce_lines(
    port: &impl Port,
    target: Target<'_>,
    members: Range<u32>,
    op: Operation,
    ty: DataType,
) {
    let mut line = Scratch::new();
    for member in members.clone() {
        if member == members.start {
            port.line(member, target);
        } else {
            let line = line.target(target.len());
            port.line(member, line);
            kernel::accumulate(op, ty, target, &[line.source()]);
        }
    }
}

/// Combines what `source` gives for these members.
pub(crate) fn reduce_staged<'a>(
    target: Target<'_>,
    members: Range<u32>,
    op: Operation,
    ty: DataType,
    source: impl Fn(u32) -> Source<'a>,
) {
    let mut first = members.start;
    while first < members.end {
        let taken = (members.end - first).min(BATCH as u32);
        let batch: [Source<'_>; BATCH] =
            std::array::from_fn(|i| source(first + (i as u32).min(taken - 1)));
        fold_batch(op, ty, target, &batch[..taken as usize], first == members.start);
        first += taken;
    }
}

fn fold_batch(op: Operation, ty: DataType, target: Target<'_>, batch: &[Source<'_>], begin: bool) {
    if begin {
        kernel::fold(op, ty, &[target], batch);
    } else {
        kernel::accumulate(op, ty, target, batch);
    }
}

/// Memory to read, `arrivals` into the call.
fn source<'a>(port: &'a impl Port, arrivals: u64, buffers: Buffers<'a>, span: Span) -> Source<'a> {
    let memory = match span.place {
        Place::Input(member) => {
            assert_eq!(member, port.me(), "only the own input can be reached");
            buffers.input
        }
        Place::Output(member) => {
            assert_eq!(member, port.me(), "only the own output can be reached");
            buffers.output.source()
        }
        Place::Scratch { member, parity } if is_next(arrivals, parity) => {
            port.next_stage(member).source()
        }
        Place::Scratch { member, .. } => port.last_stage(member),
    };
    memory.part(span.offset, span.bytes)
}

/// Memory to write, `arrivals` into the call.
fn target<'a>(port: &'a impl Port, arrivals: u64, buffers: Buffers<'a>, span: Span) -> Target<'a> {
    let memory = match span.place {
        Place::Output(member) => {
            assert_eq!(member, port.me(), "only the own output can be reached");
            buffers.output
        }
        Place::Scratch { member, parity } => {
            assert_eq!(member, port.me(), "only the own staging may be written");
            assert!(is_next(arrivals, parity), "staging that was published may not be written");
            port.next_stage(member)
        }
        Place::Input(_) => unreachable!("an input is never written"),
    };
    memory.part(span.offset, span.bytes)
}

/// Whether this parity is published by the next arrival, rather than by the one before.
fn is_next(arrivals: u64, parity: u32) -> bool {
    arrivals % 2 == u64::from(parity)
}

#[cfg(test)]
#[path = "executor_tests.rs"]
mod tests;
