//! Proves steps: runs those of all members on symbolic contents and reports the first thing that is
//! wrong.
//!
//! What it proves, for the calls it is given, one after the other on the same channel:
//! - each member ends with what it should have in each element: every contribution exactly once, in
//!   order where that is asked for, combined in the same way for all members (equal bits), finished
//!   exactly once; or the right element of the right member;
//! - nothing is read before it was written, nothing is overwritten while it is still needed: any
//!   two accesses to one element of which one writes are ordered by messages, arrivals and awaits
//!   (happens-before, with vector clocks), so the order in which the members happen to run here
//!   does not matter, and one run stands for all. What a message that is not `copied` carries
//!   counts as being read until the receiver took it;
//! - input is not modified out of place; at the return nobody may touch a caller's buffers any
//!   more;
//! - progress: steps only wait, never choose, so one run to the end shows that all end. More slots
//!   never make a member wait that does not wait with fewer, so one slot stands for any number;
//! - the discipline of messages (length, none left over or taken by another call) and lines (each
//!   arrival is awaited before the next one, own stage and lines only).
//!
//! Data is tracked by element; what a combination consists of is interned, so that comparing two of
//! them compares two numbers. [`memory`] holds the elements, [`value`] what they hold.

use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;

use crate::algorithms::Collective;
use crate::steps::{self, Carry, Kind, LINE_BYTES, Members, Place, Shape, Span, Spread, Step};

mod memory;
mod value;

use memory::{Area, Clock, Knowledge, Layout, Memory, Stamp};
use value::{Value, Values};

/// One call of a collective by all members.
#[derive(Clone, Debug)]
pub struct Call {
    /// What they do.
    pub collective: Collective,
    /// The shape of each member.
    pub shapes: Vec<Shape>,
    /// The steps of each member.
    pub programs: Vec<Vec<Step>>,
    /// Whether input and output share memory, see [`Place::Output`].
    pub in_place: bool,
    /// Whether contributions have to be combined in the order of the members.
    pub in_order: bool,
}

/// What is wrong, where: "member 2, call 0, step 5: ...".
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The member that noticed.
    pub member: u32,
    /// Its call, from 0.
    pub call: usize,
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

/// Proves calls that follow each other, of the same members over a channel with that many slots.
///
/// # Errors
/// The first [`Fault`] found.
pub fn prove(calls: &[Call], slots: u32) -> Result<(), Fault> {
    Run::new(calls, slots).finish()
}

/// A message that is under way.
struct Message {
    number: u32,
    call: usize,
    values: Vec<Value>,
    sent: Stamp,
    /// What the sender knew.
    clock: Rc<Clock>,
}

/// A member.
struct Member {
    call: usize,
    step: usize,
    /// Steps done so far, over all calls: its time.
    time: u32,
    arrivals: u64,
    awaited: u64,
    /// What it knows of the time of each other.
    clock: Rc<Clock>,
    /// When each of its calls began.
    began: Vec<u32>,
    memory: Memory,
    /// What it knew at its last arrival, itself included.
    published: Rc<Clock>,
}

/// A piece of somebody's memory, in elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Piece {
    member: u32,
    area: Area,
    offset: u64,
    len: u64,
}

struct Run<'a> {
    calls: &'a [Call],
    size: u32,
    slots: usize,
    members: Vec<Member>,
    /// Messages from a to b, at a * size + b.
    wires: Vec<VecDeque<Message>>,
    /// When each message was taken, by its number.
    taken: Vec<u32>,
    values: Values,
    /// How each element of a call is combined, by the first who has it.
    combined: Vec<Vec<Option<Value>>>,
    /// What all know together after an arrival, with its number.
    joined: (u64, Rc<Clock>),
}

type Checked<T = ()> = Result<T, String>;

impl<'a> Run<'a> {
    fn new(calls: &'a [Call], slots: u32) -> Run<'a> {
        let size = calls.first().map_or(0, |call| call.shapes.len());
        let clock: Rc<Clock> = Rc::new(vec![0; size]);
        let member = |me| Member {
            call: 0,
            step: 0,
            time: 1,
            arrivals: 0,
            awaited: 0,
            clock: clock.clone(),
            began: Vec::new(),
            memory: Memory::new(me),
            published: clock.clone(),
        };
        Run {
            calls,
            size: size as u32,
            slots: slots as usize,
            members: (0..size as u32).map(member).collect(),
            wires: (0..size * size).map(|_| VecDeque::new()).collect(),
            taken: Vec::new(),
            values: Values::new(size as u32),
            combined: vec![Vec::new(); calls.len()],
            joined: (0, clock.clone()),
        }
    }

    fn finish(mut self) -> Result<(), Fault> {
        for me in 0..self.size {
            self.begin_call(me).map_err(|what| self.fault(me, what))?;
        }
        let mut moved = true;
        while moved {
            moved = false;
            for me in 0..self.size {
                while self.advance(me).map_err(|what| self.fault(me, what))? {
                    moved = true;
                }
            }
        }
        for me in 0..self.size {
            if self.at(me).call < self.calls.len() {
                return Err(self.fault(me, "waits for ever".to_owned()));
            }
        }
        match self.wires.iter().position(|wire| !wire.is_empty()) {
            None => Ok(()),
            Some(wire) => {
                let (from, to) = (wire as u32 / self.size, wire as u32 % self.size);
                Err(self.fault(to, format!("never takes a message of member {from}")))
            }
        }
    }

    /// Runs one step of a member; `false` if it waits or has ended.
    fn advance(&mut self, me: u32) -> Checked<bool> {
        let calls = self.calls;
        let Some(call) = calls.get(self.at(me).call) else { return Ok(false) };
        let Some(step) = call.programs[me as usize].get(self.at(me).step) else {
            self.end_call(me)?;
            return Ok(true);
        };
        let done = match *step {
            Step::Copy { dst, src } => self.copy(me, dst, src)?,
            Step::Combine { dst, left, right } => self.combine(me, dst, left, right)?,
            Step::Send { to, src, copied } => self.send(me, to, src, copied)?,
            Step::Receive { from, dst } => self.receive(me, from, dst)?,
            Step::ReceiveReduce { from, dst, with, theirs_first } => {
                self.receive_reduce(me, from, (dst, with), theirs_first)?
            }
            Step::Arrive(carry) => self.arrive(me, carry)?,
            Step::AwaitAll => self.await_all(me)?,
            Step::Reduce { dsts, srcs, bytes } => self.reduce(me, dsts, srcs, bytes)?,
            Step::Finish { span } => {
                let piece = self.own(me, span)?;
                let values = self.read(me, piece)?;
                let values = values.into_iter().map(|value| self.values.finish(value));
                let values: Vec<Value> = values.collect::<Checked<_>>()?;
                self.write(me, piece, &values)?
            }
        };
        if done {
            let member = self.at_mut(me);
            member.step += 1;
            member.time += 1;
        }
        Ok(done)
    }

    /// The caller fills its input and does not care what is in its output.
    fn begin_call(&mut self, me: u32) -> Checked {
        let number = self.at(me).call;
        let Some(call) = self.calls.get(number) else { return Ok(()) };
        let shape = &call.shapes[me as usize];
        let elements = |bytes: u64| bytes / shape.element_bytes;
        let layout = Layout {
            scratch: elements(steps::scratch_bytes(&call.programs[me as usize])),
            stage: elements(shape.stage_bytes),
            line: elements(LINE_BYTES),
            ..Layout::new(call, me)
        };
        let now = self.now(me);
        let Member { clock, memory, .. } = &mut self.members[me as usize];
        memory.enter(layout, number as u32, Knowledge { now, clock, taken: &self.taken })?;
        let member = self.at_mut(me);
        member.began.push(member.time);
        member.time += 1;
        Ok(())
    }

    /// The caller looks at its output.
    fn end_call(&mut self, me: u32) -> Checked {
        let Member { call: number, arrivals, awaited, .. } = *self.at(me);
        let call = &self.calls[number];
        if arrivals != awaited {
            return Err("ends with an arrival that it did not await".to_owned());
        }
        let len = self.at(me).memory.output_len();
        let output = Piece { member: me, area: Area::Output, offset: 0, len };
        let values = self.read(me, output)?;
        for (element, wanted) in memory::wanted(call, me).into_iter().enumerate() {
            let value = values[element];
            if let Err(name) = self.values.check(value, number as u32, wanted, call.in_order) {
                return Err(format!("element {element} of the output ends as {name}"));
            }
            if call.collective == Collective::Allreduce {
                let combined = &mut self.combined[number];
                combined.resize(values.len(), None);
                if *combined[element].get_or_insert(value) != value {
                    let what = "is not combined as it is for other members";
                    return Err(format!("element {element} of the output {what}"));
                }
            }
        }
        let now = self.now(me);
        let Member { clock, memory, .. } = &mut self.members[me as usize];
        memory.leave(number as u32, Knowledge { now, clock, taken: &self.taken })?;
        if call.collective == Collective::Barrier {
            self.all_have_come(me, number)?;
        }
        let member = self.at_mut(me);
        (member.call, member.step) = (number + 1, 0);
        self.begin_call(me)
    }

    /// A barrier ends where everybody is known to have begun it.
    fn all_have_come(&self, me: u32, call: usize) -> Checked {
        let knows = |peer: u32| {
            let began = self.at(peer).began.get(call);
            peer == me || began.is_some_and(|began| self.at(me).clock[peer as usize] >= *began)
        };
        match (0..self.size).find(|peer| !knows(*peer)) {
            None => Ok(()),
            Some(peer) => Err(format!("leaves before it knows that member {peer} has come")),
        }
    }

    fn copy(&mut self, me: u32, dst: Span, src: Span) -> Checked<bool> {
        let src = self.source(me, src)?;
        let dst = self.target(me, dst)?;
        if dst.len != src.len {
            return Err("copies between spans of different length".to_owned());
        }
        if self.overlap(dst, src)? {
            return Ok(true);
        }
        let values = self.read(me, src)?;
        self.write(me, dst, &values)
    }

    fn combine(&mut self, me: u32, dst: Span, left: Span, right: Span) -> Checked<bool> {
        let (left, right) = (self.operand(me, left)?, self.operand(me, right)?);
        let (ours, theirs) = (self.read(me, left)?, self.read(me, right)?);
        let dst = self.own(me, dst)?;
        self.overlap(dst, left)?;
        self.overlap(dst, right)?;
        let values = self.combined(ours, theirs)?;
        self.write(me, dst, &values)
    }

    fn combined(&mut self, left: Vec<Value>, right: Vec<Value>) -> Checked<Vec<Value>> {
        if left.len() != right.len() {
            return Err("combines spans of different length".to_owned());
        }
        let pairs = left.into_iter().zip(right);
        pairs.map(|(left, right)| self.values.combine(left, right)).collect()
    }

    fn send(&mut self, me: u32, to: u32, src: Span, copied: bool) -> Checked<bool> {
        let Some(call) = self.peer(me, to)?.then_some(self.at(me).call) else {
            return Err("sends to itself".to_owned());
        };
        if src.bytes > self.calls[call].shapes[me as usize].message_bytes {
            return Err("sends more than a message holds".to_owned());
        }
        let wire = (me * self.size + to) as usize;
        if self.wires[wire].len() >= self.slots {
            return Ok(false);
        }
        let piece = self.own(me, src)?;
        let values = self.read(me, piece)?;
        let number = self.taken.len() as u32;
        if !copied {
            let memory = &mut self.at_mut(me).memory;
            let cells = memory.cells(piece.area, piece.offset, piece.len)?;
            cells.iter_mut().for_each(|cell| cell.lend(to, number));
        }
        self.taken.push(u32::MAX);
        let (sent, clock) = (self.now(me), self.at(me).clock.clone());
        self.wires[wire].push_back(Message { number, call, values, sent, clock });
        Ok(true)
    }

    /// The next message of a member, if there is one.
    fn take(&mut self, me: u32, from: u32, bytes: u64) -> Checked<Option<Vec<Value>>> {
        if !self.peer(me, from)? {
            return Err("receives from itself".to_owned());
        }
        let wire = &mut self.wires[(from * self.size + me) as usize];
        let Some(Message { number, call, values, sent, clock }) = wire.pop_front() else {
            return Ok(None);
        };
        let now = self.now(me);
        self.taken[number as usize] = now.time;
        let element = self.calls[self.at(me).call].shapes[me as usize].element_bytes;
        if call != self.at(me).call || values.len() as u64 * element != bytes {
            let len = values.len() as u64 * element;
            return Err(format!(
                "expects {bytes} bytes of {from}, which sent {len} in call {call}"
            ));
        }
        let mine = Rc::make_mut(&mut self.at_mut(me).clock);
        join(mine, &clock);
        let theirs = &mut mine[sent.member as usize];
        *theirs = sent.time.max(*theirs);
        Ok(Some(values))
    }

    fn receive(&mut self, me: u32, from: u32, dst: Span) -> Checked<bool> {
        let dst_piece = self.own(me, dst)?;
        let Some(values) = self.take(me, from, dst.bytes)? else { return Ok(false) };
        self.write(me, dst_piece, &values)
    }

    fn receive_reduce(
        &mut self,
        me: u32,
        from: u32,
        (dst, with): (Span, Span),
        theirs_first: bool,
    ) -> Checked<bool> {
        let (to, own) = (self.own(me, dst)?, self.own(me, with)?);
        let Some(theirs) = self.take(me, from, dst.bytes)? else { return Ok(false) };
        self.overlap(to, own)?;
        let ours = self.read(me, own)?;
        let (left, right) = if theirs_first { (theirs, ours) } else { (ours, theirs) };
        let values = self.combined(left, right)?;
        self.write(me, to, &values)
    }

    fn arrive(&mut self, me: u32, carry: Carry) -> Checked<bool> {
        let Member { call, arrivals, awaited, time, .. } = *self.at(me);
        if arrivals != awaited {
            return Err("arrives again without having awaited".to_owned());
        }
        if !self.calls[call].shapes[me as usize].is_one_node() {
            return Err("arrives where members do not share memory".to_owned());
        }
        let mut values = Vec::new();
        if let Carry::Data(span) = carry {
            let piece = self.own(me, span)?;
            values = self.read(me, piece)?;
        }
        let len = values.len() as u64;
        let area = Area::Line(parity(arrivals + 1));
        self.write(me, Piece { member: me, area, offset: 0, len }, &values)?;
        let member = self.at_mut(me);
        member.arrivals += 1;
        let mut clock = (*member.clock).clone();
        clock[me as usize] = time;
        member.published = Rc::new(clock);
        Ok(true)
    }

    fn await_all(&mut self, me: u32) -> Checked<bool> {
        let Member { arrivals, awaited, .. } = *self.at(me);
        if arrivals == awaited {
            return Err("awaits without an arrival".to_owned());
        }
        if self.members.iter().any(|peer| peer.arrivals < arrivals) {
            return Ok(false);
        }
        // The first to see that all have come notes what they know; nobody arrives again before.
        if self.joined.0 != arrivals {
            let mut all = vec![0; self.size as usize];
            self.members.iter().for_each(|peer| join(&mut all, &peer.published));
            self.joined = (arrivals, Rc::new(all));
        }
        let joined = self.joined.1.clone();
        let member = self.at_mut(me);
        member.awaited = arrivals;
        join(Rc::make_mut(&mut member.clock), &joined);
        Ok(true)
    }

    fn reduce(&mut self, me: u32, dsts: Spread, srcs: Spread, bytes: u64) -> Checked<bool> {
        let sources: Vec<Piece> = self
            .chosen(srcs)
            .map(|peer| self.spread(me, peer, srcs, (bytes, false)))
            .collect::<Checked<_>>()?;
        let targets: Vec<Piece> = self
            .chosen(dsts)
            .map(|peer| self.spread(me, peer, dsts, (bytes, true)))
            .collect::<Checked<_>>()?;
        let mut result: Option<Vec<Value>> = None;
        for source in &sources {
            let next = self.read(me, *source)?;
            result = Some(match result {
                None => next,
                Some(before) => self.combined(before, next)?,
            });
        }
        let mut result = result.ok_or("reduces nothing")?;
        if srcs.members == Members::All {
            let finished = result.iter().map(|value| self.values.finish(*value));
            result = finished.collect::<Checked<_>>()?;
        }
        for target in targets {
            let mut same = false;
            for source in &sources {
                same |= self.overlap(target, *source)?;
            }
            if !(same && sources.len() == 1 && srcs.members != Members::All) {
                self.write(me, target, &result)?;
            }
        }
        Ok(true)
    }

    fn chosen(&self, spread: Spread) -> impl Iterator<Item = u32> + use<> {
        let (first, end, but) = match spread.members {
            Members::One(member) => (member, member + 1, None),
            Members::All => (0, self.size, None),
            Members::AllBut(member) => (0, self.size, Some(member)),
        };
        (first..end).filter(move |member| Some(*member) != but)
    }

    fn spread(
        &self,
        me: u32,
        member: u32,
        Spread { kind, offset, .. }: Spread,
        (bytes, is_target): (u64, bool),
    ) -> Checked<Piece> {
        let Member { arrivals, awaited, .. } = *self.at(me);
        let area = match kind {
            Kind::Input => Area::Input,
            Kind::Output => Area::Output,
            Kind::Line => Area::Line(parity(awaited)),
            Kind::Stage if is_target => Area::Stage(parity(arrivals + 1)),
            Kind::Stage => Area::Stage(parity(awaited)),
        };
        self.piece(me, member, area, (offset, bytes))
    }

    /// Own memory, for messages and combinations.
    fn own(&self, me: u32, span: Span) -> Checked<Piece> {
        let area = match span.place {
            Place::Input(member) if member == me => Area::Input,
            Place::Output(member) if member == me => Area::Output,
            Place::Scratch => Area::Scratch,
            _ => return Err(format!("is not own memory: {span:?}")),
        };
        self.piece(me, me, area, (span.offset, span.bytes))
    }

    /// What a combination reads: own memory, or what a member has published.
    fn operand(&self, me: u32, span: Span) -> Checked<Piece> {
        match span.place {
            Place::Stage(_) => self.source(me, span),
            _ => self.own(me, span),
        }
    }

    /// What a copy reads.
    fn source(&self, me: u32, span: Span) -> Checked<Piece> {
        let awaited = self.at(me).awaited;
        let (member, area) = match span.place {
            Place::Input(member) => (member, Area::Input),
            Place::Output(member) => (member, Area::Output),
            Place::Scratch => (me, Area::Scratch),
            Place::Stage(member) => (member, Area::Stage(parity(awaited))),
        };
        self.piece(me, member, area, (span.offset, span.bytes))
    }

    /// What a copy writes.
    fn target(&self, me: u32, span: Span) -> Checked<Piece> {
        let arrivals = self.at(me).arrivals;
        let (member, area) = match span.place {
            Place::Input(member) => (member, Area::Input),
            Place::Output(member) => (member, Area::Output),
            Place::Scratch => (me, Area::Scratch),
            Place::Stage(member) => (member, Area::Stage(parity(arrivals + 1))),
        };
        self.piece(me, member, area, (span.offset, span.bytes))
    }

    fn piece(
        &self,
        me: u32,
        member: u32,
        area: Area,
        (offset, bytes): (u64, u64),
    ) -> Checked<Piece> {
        let Member { call, arrivals, awaited, .. } = *self.at(me);
        let shape = &self.calls[call].shapes[me as usize];
        let element = shape.element_bytes;
        if !offset.is_multiple_of(element) || !bytes.is_multiple_of(element) {
            return Err(format!("divides an element: {bytes} bytes at {offset}"));
        }
        if member >= self.size {
            return Err(format!("there is no member {member}"));
        }
        let shared = member != me || matches!(area, Area::Stage(_) | Area::Line(_));
        if shared && !shape.is_one_node() {
            return Err("uses shared memory where there is none".to_owned());
        }
        if member != me && arrivals != awaited {
            return Err("uses memory of others between an arrival and its await".to_owned());
        }
        Ok(Piece { member, area, offset: offset / element, len: bytes / element })
    }

    /// Whether both are the same memory; to overlap in part is wrong.
    fn overlap(&self, a: Piece, b: Piece) -> Checked<bool> {
        if a.member != b.member || a.len == 0 || b.len == 0 {
            return Ok(false);
        }
        let memory = &self.at(a.member).memory;
        let ((first, start), (second, other)) =
            (memory.identity(a.area, a.offset), memory.identity(b.area, b.offset));
        if first != second || start + a.len <= other || other + b.len <= start {
            return Ok(false);
        }
        if start == other && a.len == b.len {
            return Ok(true);
        }
        Err(format!("{a:?} overlaps {b:?}"))
    }

    fn read(&mut self, me: u32, piece: Piece) -> Checked<Vec<Value>> {
        let Piece { member, area, offset, len } = piece;
        let (now, clock) = (self.now(me), self.at(me).clock.clone());
        let with = Knowledge { now, clock: &clock, taken: &self.taken };
        let cells = self.members[member as usize].memory.cells(area, offset, len)?;
        let values = cells.iter_mut().map(|cell| cell.read(member, with));
        values.collect::<Checked<_>>().map_err(|what| format!("reads {piece:?}, but {what}"))
    }

    fn write(&mut self, me: u32, piece: Piece, values: &[Value]) -> Checked<bool> {
        let Piece { member, area, offset, len } = piece;
        let may = match area {
            Area::Output => true,
            Area::Scratch | Area::Stage(_) | Area::Line(_) => member == me,
            Area::Input => false,
        };
        if !may || len != values.len() as u64 {
            return Err(format!("may not write {} elements to {piece:?}", values.len()));
        }
        let (now, clock) = (self.now(me), self.at(me).clock.clone());
        let with = Knowledge { now, clock: &clock, taken: &self.taken };
        let cells = self.members[member as usize].memory.cells(area, offset, len)?;
        for (cell, value) in cells.iter_mut().zip(values) {
            cell.write(member, Some(*value), with)
                .map_err(|what| format!("writes {piece:?}, but {what}"))?;
        }
        Ok(true)
    }

    /// Whether that is another member.
    fn peer(&self, me: u32, peer: u32) -> Checked<bool> {
        if peer < self.size {
            return Ok(peer != me);
        }
        Err(format!("there is no member {peer}"))
    }

    fn now(&self, me: u32) -> Stamp {
        Stamp { member: me, time: self.at(me).time }
    }

    fn at(&self, me: u32) -> &Member {
        &self.members[me as usize]
    }

    fn at_mut(&mut self, me: u32) -> &mut Member {
        &mut self.members[me as usize]
    }

    fn fault(&self, member: u32, what: String) -> Fault {
        let Member { call, step, .. } = *self.at(member);
        Fault { member, call, step, what }
    }
}

fn parity(arrivals: u64) -> usize {
    (arrivals % 2) as usize
}

/// Learns what another knew.
fn join(clock: &mut Clock, other: &Clock) {
    for (mine, theirs) in clock.iter_mut().zip(other) {
        *mine = (*theirs).max(*mine);
    }
}

#[cfg(test)]
#[path = "proof_tests.rs"]
mod tests;
