//! The checker proved: faults planted in the steps of each algorithm, all of which it has to find,
//! unless a rule says that they change nothing.

use super::*;
use crate::proof::memory::{Area, Layout, Memory};

/// A change to the steps of one member.
#[derive(Clone, Copy, Debug)]
enum Change {
    Drop,
    SwapWithNext,
    /// Another step in its place.
    Replace(Step),
}

/// The steps that a step might have been by mistake.
fn mistakes(step: Step, size: u32, element: u64) -> Vec<Step> {
    let mut mistakes = wrong_spans(step, element);
    mistakes.extend(wrong_members(step, size));
    mistakes
}

/// The same step on memory that begins or ends elsewhere.
fn wrong_spans(step: Step, element: u64) -> Vec<Step> {
    let mut mistakes = Vec::new();
    for span_mistake in [0, 1, 2] {
        let wrong = |span: Span| match span_mistake {
            0 => Span { offset: span.offset + element, ..span },
            1 => Span { offset: span.offset.wrapping_sub(element), ..span },
            _ => Span { bytes: span.bytes.saturating_sub(element), ..span },
        };
        let here = |span: Span| span.bytes > 0 && (span_mistake != 1 || span.offset > 0);
        let mut push = |span: Span, step: Step| {
            if here(span) {
                mistakes.push(step);
            }
        };
        match step {
            Step::Copy { dst, src } => {
                push(dst, Step::Copy { dst: wrong(dst), src });
                push(src, Step::Copy { dst, src: wrong(src) });
                if span_mistake == 2 {
                    push(dst, Step::Copy { dst: wrong(dst), src: wrong(src) });
                }
            }
            Step::Combine { dst, left, right } => {
                push(dst, Step::Combine { dst: wrong(dst), left, right });
                push(left, Step::Combine { dst, left: wrong(left), right });
                push(right, Step::Combine { dst, left, right: wrong(right) });
            }
            Step::Send { to, src, copied } => {
                push(src, Step::Send { to, src: wrong(src), copied });
            }
            Step::Receive { from, dst } => push(dst, Step::Receive { from, dst: wrong(dst) }),
            Step::ReceiveReduce { from, dst, with, theirs_first } => {
                let step = |dst, with| Step::ReceiveReduce { from, dst, with, theirs_first };
                push(dst, step(wrong(dst), with));
                push(with, step(dst, wrong(with)));
            }
            Step::Finish { span } => push(span, Step::Finish { span: wrong(span) }),
            Step::Arrive(Carry::Data(span)) => push(span, Step::Arrive(Carry::Data(wrong(span)))),
            Step::Reduce { dsts, srcs, bytes } => {
                let moved = wrong(Span { place: Place::Scratch, offset: dsts.offset, bytes });
                let (offset, len) = (moved.offset, moved.bytes);
                push(moved, Step::Reduce { dsts: Spread { offset, ..dsts }, srcs, bytes: len });
                let moved = wrong(Span { place: Place::Scratch, offset: srcs.offset, bytes });
                let offset = moved.offset;
                push(moved, Step::Reduce { dsts, srcs: Spread { offset, ..srcs }, bytes: len });
            }
            Step::Arrive(Carry::Nothing) | Step::AwaitAll => (),
        }
    }
    mistakes
}

/// The same step with other members, or with operands that have changed places.
fn wrong_members(step: Step, size: u32) -> Vec<Step> {
    let other = |member: u32| (member + 1) % size;
    let mut mistakes = Vec::new();
    match step {
        Step::Send { to, src, copied } => {
            mistakes.push(Step::Send { to: other(to), src, copied });
        }
        Step::Receive { from, dst } => mistakes.push(Step::Receive { from: other(from), dst }),
        Step::ReceiveReduce { from, dst, with, theirs_first } => {
            mistakes.push(Step::ReceiveReduce { from: other(from), dst, with, theirs_first });
            let theirs_first = !theirs_first;
            mistakes.push(Step::ReceiveReduce { from, dst, with, theirs_first });
            mistakes.push(Step::Receive { from, dst });
        }
        Step::Combine { dst, left, right } => {
            mistakes.push(Step::Combine { dst, left: right, right: left });
        }
        Step::Reduce { dsts, srcs, bytes } => {
            for spread in [dsts, srcs] {
                let members = match spread.members {
                    Members::One(member) => Members::One(other(member)),
                    _ => Members::AllBut(0),
                };
                let wrong = Spread { members, ..spread };
                let is_target = spread == dsts;
                let (dsts, srcs) = if is_target { (wrong, srcs) } else { (dsts, wrong) };
                mistakes.push(Step::Reduce { dsts, srcs, bytes });
            }
        }
        Step::Copy { dst, src } => {
            for (i, span) in [dst, src].into_iter().enumerate() {
                let place = match span.place {
                    Place::Input(member) => Place::Input(other(member)),
                    Place::Output(member) => Place::Output(other(member)),
                    Place::Stage(member) => Place::Stage(other(member)),
                    Place::Scratch => continue,
                };
                let wrong = Span { place, ..span };
                let (dst, src) = if i == 0 { (wrong, src) } else { (dst, wrong) };
                mistakes.push(Step::Copy { dst, src });
            }
        }
        Step::Arrive(Carry::Data(_)) => mistakes.push(Step::Arrive(Carry::Nothing)),
        _ => (),
    }
    mistakes
}

fn changed(call: &Call, member: usize, at: usize, change: Change) -> Call {
    let mut call = call.clone();
    let program = &mut call.programs[member];
    match change {
        Change::Drop => drop(program.remove(at)),
        Change::SwapWithNext => program.swap(at, at + 1),
        Change::Replace(step) => program[at] = step,
    }
    call
}

/// A use of memory: whose, which, from where to where in elements, and whether it writes.
type Use = (u32, (usize, u64), u64, bool);

/// The memory that a step uses.
fn uses(call: &Call, me: u32, step: Step) -> Vec<Use> {
    let area = |kind: Kind, writes: bool| match kind {
        Kind::Input => Area::Input,
        Kind::Output => Area::Output,
        // The next one and the last one.
        Kind::Stage => Area::Stage(usize::from(writes)),
        Kind::Line => Area::Line(0),
    };
    let own = |span: Span, writes: bool| {
        let (member, area) = match span.place {
            Place::Input(member) => (member, area(Kind::Input, writes)),
            Place::Output(member) => (member, area(Kind::Output, writes)),
            Place::Stage(member) => (member, area(Kind::Stage, writes)),
            Place::Scratch => (me, Area::Scratch),
        };
        (member, area, span.offset, span.bytes, writes)
    };
    let spread = |Spread { members, kind, offset }: Spread, bytes: u64, writes: bool| {
        let members = match members {
            Members::One(member) => member..member + 1,
            _ => 0..call.shapes[0].size,
        };
        members.map(move |member| (member, area(kind, writes), offset, bytes, writes))
    };
    let used = match step {
        Step::Copy { dst, src } => vec![own(src, false), own(dst, true)],
        Step::Combine { dst, left, right } => {
            vec![own(left, false), own(right, false), own(dst, true)]
        }
        Step::Send { src, .. } | Step::Arrive(Carry::Data(src)) => vec![own(src, false)],
        Step::Receive { dst, .. } => vec![own(dst, true)],
        Step::ReceiveReduce { dst, with, .. } => vec![own(with, false), own(dst, true)],
        Step::Finish { span } => vec![own(span, true)],
        Step::Arrive(Carry::Nothing) | Step::AwaitAll => Vec::new(),
        Step::Reduce { dsts, srcs, bytes } => {
            spread(srcs, bytes, false).chain(spread(dsts, bytes, true)).collect()
        }
    };
    let element = call.shapes[me as usize].element_bytes;
    let found = used.into_iter().map(|(member, area, offset, bytes, writes)| {
        let mut memory = Memory::new(member);
        memory.layout = Layout::new(call, member);
        (member, memory.identity(area, offset / element), bytes / element, writes)
    });
    let found: Vec<Use> = found.collect();
    match (step, &found[..]) {
        // In place such a copy does nothing.
        (Step::Copy { .. }, [src, dst]) if (src.0, src.1) == (dst.0, dst.1) => Vec::new(),
        _ => found,
    }
}

fn conflict(first: &[Use], second: &[Use]) -> bool {
    let overlap = |a: &Use, b: &Use| {
        let ((x, from), (y, start)) = (a.1, b.1);
        let same = (a.0, x) == (b.0, y) && from < start + b.2 && start < from + a.2;
        same && (a.3 || b.3)
    };
    first.iter().any(|a| second.iter().any(|b| overlap(a, b)))
}

/// The wire that a step uses: peer, and whether it sends.
fn wire(step: Step) -> Option<(u32, bool)> {
    match step {
        Step::Send { to, .. } => Some((to, true)),
        Step::Receive { from, .. } | Step::ReceiveReduce { from, .. } => Some((from, false)),
        _ => None,
    }
}

/// Whether two neighbouring steps may be done in either order: they are no messages of one wire,
/// and do not use the same memory; with an arrival or await, if nobody else uses the memory of the
/// other. (Progress may depend on their order, and often does, but then their swap is found.)
fn commute(call: &Call, me: usize, (first, second): (Step, Step)) -> bool {
    if wire(first).is_some() && wire(first) == wire(second) {
        return false;
    }
    let meets = |step: Step| matches!(step, Step::Arrive(_) | Step::AwaitAll);
    [false, true].into_iter().all(|in_place| {
        let call = Call { in_place, ..call.clone() };
        let (a, b) = (uses(&call, me as u32, first), uses(&call, me as u32, second));
        if !meets(first) && !meets(second) {
            return !conflict(&a, &b);
        }
        let (other, moved) = if meets(first) { (second, &b) } else { (first, &a) };
        let is_shared = |of: &Use| of.1.0 > 2;
        let elsewhere = call.programs.iter().enumerate().filter(|(member, _)| *member != me);
        let mut theirs =
            elsewhere.flat_map(|(member, program)| program.iter().map(move |step| (member, *step)));
        !meets(other)
            && !conflict(&a, &b)
            && !moved.iter().any(is_shared)
            && !theirs.any(|(member, step)| conflict(moved, &uses(&call, member as u32, step)))
    })
}

/// The steps of a program between the await of its arrival with that number, from 1, and the next
/// arrival; those behind the last await for 0, which come before the first arrival of the next
/// call.
fn round(program: &[Step], number: usize) -> &[Step] {
    let awaits = || program.iter().enumerate().filter(|(_, step)| **step == Step::AwaitAll);
    let number = if number == 0 { awaits().count() } else { number };
    let start = awaits().nth(number - 1).map_or(0, |(at, _)| at + 1);
    let len = program[start..].iter().take_while(|step| !matches!(step, Step::Arrive(_))).count();
    &program[start..start + len]
}

/// Whether an await that is followed by writing the own stage may come behind that: of the arrival
/// before, which had the same stage, nobody reads what is written.
fn stages_early(call: &Call, me: usize, at: usize) -> bool {
    let program = &call.programs[me];
    let written: Vec<Use> = uses(call, me as u32, program[at + 1])
        .into_iter()
        .filter(|of| of.3 && of.1.0 == STAGES + 1)
        .map(|of| (of.0, (STAGES, of.1.1), of.2, true))
        .collect();
    let awaits = program[..at].iter().filter(|step| **step == Step::AwaitAll).count();
    let mut read = call.programs.iter().enumerate().flat_map(|(member, program)| {
        let steps = round(program, awaits).iter();
        steps.flat_map(move |step| uses(call, member as u32, *step))
    });
    program[at] == Step::AwaitAll
        && !written.is_empty()
        && !read.any(|of| conflict(&[of], &written))
}

/// The number by which [`Memory::identity`] knows the first of the two stages.
const STAGES: usize = 3;

/// Whether two neighbouring steps take contributions into the same sum, whose order is free.
fn add_up(call: &Call, first: Step, second: Step) -> bool {
    let sum = |step| match step {
        Step::ReceiveReduce { dst, with, .. } if dst == with => Some(dst),
        _ => None,
    };
    !call.in_order && sum(first).is_some() && sum(first) == sum(second)
}

/// Whether a change need not be found: steps that commute were swapped; or contributions or
/// operands were, at one member, where their order is free.
fn is_harmless(call: &Call, me: usize, at: usize, change: Change) -> bool {
    let program = &call.programs[me];
    match (change, program[at]) {
        (Change::SwapWithNext, step) => {
            let next = program[at + 1];
            commute(call, me, (step, next))
                || add_up(call, step, next)
                || stages_early(call, me, at)
        }
        (
            Change::Replace(Step::ReceiveReduce { theirs_first, .. }),
            Step::ReceiveReduce { theirs_first: before, .. },
        ) => !call.in_order && theirs_first != before,
        _ => false,
    }
}

/// All changes to a member's steps.
fn changes(call: &Call, me: usize) -> Vec<(usize, Change)> {
    let Shape { size, element_bytes, .. } = call.shapes[me];
    let program = &call.programs[me];
    let of_step = |(at, step): (usize, &Step)| {
        let next = program.get(at + 1).filter(|next| *next != step);
        let swap = next.map(|_| Change::SwapWithNext);
        let mistakes = mistakes(*step, size, element_bytes).into_iter().map(Change::Replace);
        let all = [Change::Drop].into_iter().chain(swap).chain(mistakes);
        all.map(move |change| (at, change)).collect::<Vec<_>>()
    };
    program.iter().enumerate().flat_map(of_step).collect()
}

#[test]
fn planted_faults_are_found() {
    let mut missed = Vec::new();
    for algorithm in Algorithm::ALL {
        let on_nodes = algorithm == Algorithm::Hierarchical;
        let (mut planted, mut harmless) = (0, 0);
        for collective in Collective::ALL {
            for (size, count) in [(2, 3), (3, 4), (4, 3), (5, 2), (5, 6)] {
                let shape = Shape {
                    root: size - 1,
                    stage_bytes: 6 * ELEMENT_BYTES,
                    shares_cores: false,
                    nodes: (0..size).map(|m| if on_nodes { m % 2 } else { 0 }).collect(),
                    ..shape(size, if algorithm == Algorithm::Inline { 1 } else { count })
                };
                let Some(call) = call(algorithm, collective, &short(&shape)) else { continue };
                for me in 0..size as usize {
                    for (at, change) in changes(&call, me) {
                        planted += 1;
                        if prove(&thrice(&changed(&call, me, at, change)), 1).is_err() {
                            continue;
                        }
                        harmless += 1;
                        let step = call.programs[me][at];
                        let name = format!("{algorithm} {collective}, {size} members");
                        if !is_harmless(&call, me, at, change) {
                            missed.push(format!("{name}: {change:?}, member {me}, {at}: {step:?}"));
                        }
                    }
                }
            }
        }
        assert!(planted > 50 && harmless < planted / 4, "{algorithm}: {harmless} of {planted}");
    }
    let some = missed.iter().take(20).map(String::as_str).collect::<Vec<_>>().join("\n");
    assert!(missed.is_empty(), "{} are not found:\n{some}", missed.len());
}
