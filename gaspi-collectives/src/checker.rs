//! Proves schedules: runs the steps of all members on symbolic contents and reports the first
//! thing that is wrong.
//!
//! What it proves, for the shape it is given:
//! - each rank ends with each contribution exactly once in each element, and in the order of the
//!   ranks where that is asked for;
//! - nothing is read before it was written, no input is lost before it was read, nothing is
//!   overwritten while another rank may still read it: any two accesses to one element of which
//!   one writes are ordered by arrivals and awaits (happens-before), so the order in which the
//!   checker happens to run the ranks does not matter, and one run stands for all;
//! - progress: steps only wait, never choose, so one run to the end shows that all end;
//! - the discipline of the port: each arrival is awaited before the next one, staging and lines are
//!   written by their owner only.
//!
//! The call is repeated, so that what one call leaves behind for the next one is covered too. Data
//! is tracked by element. An await waits for all members, which makes the vector clocks of
//! happens-before collapse: rank y knows of everything before the arrival of x that it awaited, and
//! that is one number. Steps that wait for single peers will need the vector.

use std::fmt;
use std::rc::Rc;

use crate::schedule::{
    LINE_BYTES, Payload, Place, Schedule, Shape, SourcePlace, Sources, Span, Step,
};

/// What to prove.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// The shape; `me` does not matter.
    pub shape: Shape,
    /// Whether input and output are the same memory.
    pub in_place: bool,
    /// Whether contributions have to be combined in the order of the ranks.
    pub in_order: bool,
    /// How often the call is made, one after the other.
    pub calls: u32,
}

/// What is wrong, where: "member 2, call 0, step 5: ...".
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The member that noticed.
    pub member: u32,
    /// Its call, from 0.
    pub call: u32,
    /// Its step.
    pub step: usize,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "member {}, call {}, step {}: {}", self.member, self.call, self.step, self.what)
    }
}

impl std::error::Error for Fault {}

/// All steps of a schedule up to the end, which is not included.
pub fn steps(schedule: &impl Schedule) -> Vec<Step> {
    (0..).map(|index| schedule.step(index)).take_while(|step| *step != Step::Done).collect()
}

/// Proves an all-reduce: `programs[m]` are the steps of member `m`.
///
/// # Errors
/// The first [`Fault`] found.
pub fn check_allreduce(claim: Claim, programs: &[Vec<Step>]) -> Result<(), Fault> {
    assert_eq!(programs.len(), claim.shape.size as usize, "one program for each member");
    Run::new(claim, programs).finish()
}

/// Ranks combined one after the other: first and last, in order.
type Runs = Rc<[(u32, u32)]>;

/// What an element of memory holds.
#[derive(Clone, PartialEq, Debug)]
struct Value {
    call: u32,
    element: u64,
    runs: Runs,
}

/// An element of memory: its content and who touched it last, with the number of arrivals that
/// the toucher had made by then.
#[derive(Clone, Default)]
struct Cell {
    value: Option<Value>,
    write: Option<(u32, u64)>,
    /// Reads since the write, at most one entry for each member.
    reads: Vec<(u32, u64)>,
}

/// How far a member is.
#[derive(Clone, Default)]
struct Progress {
    call: u32,
    step: usize,
    arrivals: u64,
    awaited: u64,
    /// Arrivals of earlier calls, which parities do not count.
    before_call: u64,
}

struct Member {
    at: Progress,
    input: Vec<Cell>,
    output: Vec<Cell>,
    stage: [Vec<Cell>; 2],
    line: [Vec<Cell>; 2],
}

struct Run<'a> {
    claim: Claim,
    programs: &'a [Vec<Step>],
    members: Vec<Member>,
    whole: Runs,
    single: Vec<Runs>,
}

impl<'a> Run<'a> {
    fn new(claim: Claim, programs: &'a [Vec<Step>]) -> Run<'a> {
        let Shape { size, count, element_bytes, stage_bytes, .. } = claim.shape;
        let cells = |bytes: u64| vec![Cell::default(); (bytes / element_bytes) as usize];
        let member = || Member {
            at: Progress::default(),
            input: cells(count * element_bytes),
            output: cells(if claim.in_place { 0 } else { count * element_bytes }),
            stage: [cells(stage_bytes), cells(stage_bytes)],
            line: [cells(LINE_BYTES), cells(LINE_BYTES)],
        };
        Run {
            claim,
            programs,
            members: (0..size).map(|_| member()).collect(),
            whole: Rc::new([(0, size - 1)]),
            single: (0..size).map(|m| Rc::new([(m, m)]) as Runs).collect(),
        }
    }

    fn finish(mut self) -> Result<(), Fault> {
        for member in 0..self.claim.shape.size {
            self.begin_call(member)?;
        }
        loop {
            let mut moved = false;
            for member in 0..self.claim.shape.size {
                while self.advance(member)? {
                    moved = true;
                }
            }
            if !moved {
                break;
            }
        }
        for member in 0..self.claim.shape.size {
            if self.at(member).call < self.claim.calls {
                return Err(self.fault(member, "waits for ever".to_owned()));
            }
        }
        Ok(())
    }

    /// Runs one step of a member; `false` if it waits or has ended.
    fn advance(&mut self, member: u32) -> Result<bool, Fault> {
        let at = self.at(member).clone();
        if at.call == self.claim.calls {
            return Ok(false);
        }
        let Some(step) = self.programs[member as usize].get(at.step).copied() else {
            self.end_call(member)?;
            return Ok(true);
        };
        match step {
            Step::Copy { dst, src } => self.copy(member, dst, src)?,
            Step::Reduce { dst, srcs } => self.reduce(member, dst, srcs)?,
            Step::Arrive(payload) => self.arrive(member, payload)?,
            Step::Await => {
                if at.arrivals == at.awaited {
                    return Err(self.fault(member, "awaits without an arrival".to_owned()));
                }
                if self.members.iter().any(|peer| peer.at.arrivals < at.arrivals) {
                    return Ok(false);
                }
                self.at_mut(member).awaited = at.arrivals;
            }
            Step::Check => self.read_lines(member)?,
            Step::Done => {
                return Err(self.fault(member, "ends before its last step".to_owned()));
            }
        }
        self.at_mut(member).step += 1;
        Ok(true)
    }

    /// The caller fills its input and does not care what is in its output.
    fn begin_call(&mut self, member: u32) -> Result<(), Fault> {
        let at = self.at_mut(member);
        at.before_call = at.arrivals;
        let Progress { call, arrivals, awaited, .. } = *at;
        let runs = self.single[member as usize].clone();
        let memory = &mut self.members[member as usize];
        let values = (0..).map(|element| Some(Value { call, element, runs: runs.clone() }));
        let input = memory.input.iter_mut().zip(values);
        let output = memory.output.iter_mut().map(|cell| (cell, None));
        for (cell, value) in input.chain(output) {
            if let Err(what) = cell.write(member, arrivals, awaited, value) {
                let what = format!("the call before has returned, but {what} its buffers");
                return Err(self.fault(member, what));
            }
        }
        Ok(())
    }

    /// The caller looks at its output.
    fn end_call(&mut self, member: u32) -> Result<(), Fault> {
        let Progress { call, arrivals, awaited, .. } = *self.at(member);
        if arrivals != awaited {
            return Err(self.fault(member, "ends with an arrival that it did not await".to_owned()));
        }
        for element in 0..self.claim.shape.count {
            let value = self.read(member, Place::Output(member), element)?;
            let complete = if self.claim.in_order {
                value.runs == self.whole
            } else {
                sorted(&value.runs) == *self.whole
            };
            if !complete || value.element != element || value.call != call {
                let what = format!("element {element} of the output ends as {value}");
                return Err(self.fault(member, what));
            }
        }
        let at = self.at_mut(member);
        at.call += 1;
        at.step = 0;
        if call + 1 < self.claim.calls {
            self.begin_call(member)?;
        }
        Ok(())
    }

    fn copy(&mut self, member: u32, dst: Span, src: Span) -> Result<(), Fault> {
        if dst.bytes != src.bytes {
            return Err(self.fault(member, "copies between spans of different length".to_owned()));
        }
        let (to, from) = (self.first_element(member, dst)?, self.first_element(member, src)?);
        for i in 0..dst.bytes / self.claim.shape.element_bytes {
            let value = self.read(member, src.place, from + i)?;
            self.write(member, dst.place, to + i, value)?;
        }
        Ok(())
    }

    fn reduce(&mut self, member: u32, dst: Span, srcs: Sources) -> Result<(), Fault> {
        let to = self.first_element(member, dst)?;
        if srcs.first >= srcs.end || srcs.end > self.claim.shape.size {
            return Err(self.fault(member, "reduces from members that do not exist".to_owned()));
        }
        for i in 0..dst.bytes / self.claim.shape.element_bytes {
            let mut runs: Vec<(u32, u32)> = Vec::new();
            let mut of = None;
            for peer in srcs.first..srcs.end {
                let value = self.read_source(member, peer, srcs.place, i)?;
                if *of.get_or_insert((value.call, value.element)) != (value.call, value.element) {
                    return Err(self.fault(member, "combines different elements".to_owned()));
                }
                append(&mut runs, &value.runs).map_err(|what| self.fault(member, what))?;
            }
            if let Some((call, element)) = of {
                // Almost always the same; sharing it keeps the check of many ranks small.
                let runs = if *runs == *self.whole { self.whole.clone() } else { runs.into() };
                self.write(member, dst.place, to + i, Value { call, element, runs })?;
            }
        }
        Ok(())
    }

    fn read_source(
        &mut self,
        member: u32,
        peer: u32,
        place: SourcePlace,
        element: u64,
    ) -> Result<Value, Fault> {
        match place {
            SourcePlace::Scratch { parity, offset } => {
                let place = Place::Scratch { member: peer, parity };
                let from = self.first_element(member, Span { place, offset, bytes: 0 })?;
                self.read(member, place, from + element)
            }
            SourcePlace::Line => {
                let awaited = self.at(member).awaited;
                let line = self.awaited_line(member, awaited)?;
                let now = self.at(member).arrivals;
                let cell = self.members[peer as usize].line[line].get_mut(element as usize);
                let value = cell.and_then(|cell| cell.read(member, now, awaited));
                value.ok_or_else(|| self.fault(member, format!("reads no data in line of {peer}")))
            }
        }
    }

    fn arrive(&mut self, member: u32, payload: Payload) -> Result<(), Fault> {
        let Progress { arrivals, awaited, .. } = *self.at(member);
        if arrivals != awaited {
            return Err(self.fault(member, "arrives again without awaiting".to_owned()));
        }
        let mut values = Vec::new();
        if let Payload::Data(span) = payload {
            if span.bytes > LINE_BYTES {
                return Err(self.fault(member, "payload does not fit into a line".to_owned()));
            }
            let from = self.first_element(member, span)?;
            for i in 0..span.bytes / self.claim.shape.element_bytes {
                values.push(self.read(member, span.place, from + i)?);
            }
        }
        let mut values = values.into_iter();
        let line = (arrivals % 2) as usize;
        for cell in 0..self.members[member as usize].line[line].len() {
            let cell = &mut self.members[member as usize].line[line][cell];
            cell.write(member, arrivals, awaited, values.next())
                .map_err(|what| self.fault(member, what))?;
        }
        self.at_mut(member).arrivals += 1;
        Ok(())
    }

    /// Reading the status of all: only what it does to the order matters.
    fn read_lines(&mut self, member: u32) -> Result<(), Fault> {
        let Progress { arrivals, awaited, .. } = *self.at(member);
        let line = self.awaited_line(member, awaited)?;
        for peer in &mut self.members {
            peer.line[line][0].read(member, arrivals, awaited);
        }
        Ok(())
    }

    fn awaited_line(&self, member: u32, awaited: u64) -> Result<usize, Fault> {
        let at = self.at(member);
        if awaited == at.before_call || awaited != at.arrivals {
            return Err(self.fault(member, "reads lines that it did not await".to_owned()));
        }
        Ok(((awaited - 1) % 2) as usize)
    }

    fn read(&mut self, member: u32, place: Place, element: u64) -> Result<Value, Fault> {
        let Progress { arrivals, awaited, .. } = *self.at(member);
        let found = match self.cell(member, place, element) {
            None => Err("reads beyond the end of"),
            Some(cell) if !cell.written_before(member, awaited) => {
                Err("reads what another rank may still be writing:")
            }
            Some(cell) => cell.read(member, arrivals, awaited).ok_or("reads before any write:"),
        };
        found.map_err(|what| self.fault(member, format!("{what} {place:?}, element {element}")))
    }

    fn write(
        &mut self,
        member: u32,
        place: Place,
        element: u64,
        value: Value,
    ) -> Result<(), Fault> {
        let own = match place {
            Place::Input(_) => false,
            Place::Output(owner) | Place::Scratch { member: owner, .. } => owner == member,
        };
        if !own {
            return Err(self.fault(member, format!("may not write to {place:?}")));
        }
        let Progress { arrivals, awaited, .. } = *self.at(member);
        let done = match self.cell(member, place, element) {
            None => Err("it ends before".to_owned()),
            Some(cell) => cell.write(member, arrivals, awaited, Some(value)),
        };
        done.map_err(|what| {
            self.fault(member, format!("writes to {place:?}, element {element}: {what}"))
        })
    }

    fn cell(&mut self, member: u32, place: Place, element: u64) -> Option<&mut Cell> {
        let in_place = self.claim.in_place;
        // Parities count from the start of the reader's call; memory does not.
        let base = self.at(member).before_call;
        let of = |owner: u32| owner as usize;
        let cells = match place {
            Place::Input(owner) => &mut self.members.get_mut(of(owner))?.input,
            Place::Output(owner) if in_place => &mut self.members.get_mut(of(owner))?.input,
            Place::Output(owner) => &mut self.members.get_mut(of(owner))?.output,
            Place::Scratch { member: owner, parity } => {
                let parity = ((base + u64::from(parity)) % 2) as usize;
                &mut self.members.get_mut(of(owner))?.stage[parity]
            }
        };
        cells.get_mut(element as usize)
    }

    fn first_element(&self, member: u32, span: Span) -> Result<u64, Fault> {
        let bytes = self.claim.shape.element_bytes;
        if !span.offset.is_multiple_of(bytes) || !span.bytes.is_multiple_of(bytes) {
            return Err(self.fault(member, format!("divides an element: {span:?}")));
        }
        Ok(span.offset / bytes)
    }

    fn at(&self, member: u32) -> &Progress {
        &self.members[member as usize].at
    }

    fn at_mut(&mut self, member: u32) -> &mut Progress {
        &mut self.members[member as usize].at
    }

    fn fault(&self, member: u32, what: String) -> Fault {
        let Progress { call, step, .. } = *self.at(member);
        Fault { member, call, step, what }
    }
}

impl Cell {
    /// Whether the last write happened before what `member`, having awaited that many arrivals,
    /// does now: the writer's next arrival is among the awaited ones.
    fn written_before(&self, member: u32, awaited: u64) -> bool {
        self.write.is_none_or(|write| ordered(write, member, awaited))
    }

    /// The content, `None` if there is none or if it may be about to change.
    fn read(&mut self, member: u32, arrivals: u64, awaited: u64) -> Option<Value> {
        if !self.written_before(member, awaited) {
            return None;
        }
        match self.reads.iter_mut().find(|(reader, _)| *reader == member) {
            Some(read) => read.1 = arrivals,
            None => self.reads.push((member, arrivals)),
        }
        self.value.clone()
    }

    fn write(
        &mut self,
        member: u32,
        arrivals: u64,
        awaited: u64,
        value: Option<Value>,
    ) -> Result<(), String> {
        if !self.written_before(member, awaited) {
            return Err("another rank may be writing".to_owned());
        }
        if let Some((reader, _)) = self.reads.iter().find(|read| !ordered(**read, member, awaited))
        {
            return Err(format!("member {reader} may still be reading"));
        }
        *self = Cell { value, write: Some((member, arrivals)), reads: Vec::new() };
        Ok(())
    }
}

/// Whether an access by a member that had made that many arrivals is known to `member`, which has
/// awaited `awaited` of them.
fn ordered((by, arrivals): (u32, u64), member: u32, awaited: u64) -> bool {
    by == member || arrivals < awaited
}

/// Appends what is combined next; joins neighbours, refuses a second helping.
fn append(runs: &mut Vec<(u32, u32)>, more: &[(u32, u32)]) -> Result<(), String> {
    for &(first, last) in more {
        if let Some(twice) = runs.iter().find(|run| run.0 <= last && first <= run.1) {
            return Err(format!("combines the contribution of {} twice", twice.0.max(first)));
        }
        match runs.last_mut() {
            Some(run) if run.1 + 1 == first => run.1 = last,
            _ => runs.push((first, last)),
        }
    }
    Ok(())
}

/// The same contributions without their order.
fn sorted(runs: &[(u32, u32)]) -> Vec<(u32, u32)> {
    let mut sorted = runs.to_vec();
    sorted.sort_unstable();
    let mut joined = Vec::new();
    // They do not overlap, as `append` made sure.
    for run in sorted {
        match joined.last_mut() {
            Some((_, last)) if *last + 1 == run.0 => *last = run.1,
            _ => joined.push(run),
        }
    }
    joined
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "element {} of call {} combined from ", self.element, self.call)?;
        for (i, (first, last)) in self.runs.iter().enumerate() {
            write!(f, "{}{first}..={last}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "checker_tests.rs"]
mod tests;
