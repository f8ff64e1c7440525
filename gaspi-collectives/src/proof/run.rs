//! The symbolic run of all steps of all members, with vector clocks.

use std::collections::VecDeque;
use std::rc::Rc;

use super::memory::{self, Area, Clock, Knowledge, Layout, Memory, Stamp};
use super::value::{Value, Values};
use super::{Call, Checked, Fault};
use crate::collective::Collective;
use crate::steps::{self, Carry, LINE_BYTES, Members, PASS_SOURCES, Span, Spread, Step};

/// A message that is under way.
pub(super) struct Message {
    number: u32,
    call: usize,
    values: Vec<Value>,
    sent: Stamp,
    /// The clock of the sender.
    clock: Rc<Clock>,
}

/// A member.
pub(super) struct Member {
    pub(super) call: usize,
    pub(super) step: usize,
    /// Steps done so far, over all calls: its time.
    pub(super) time: u32,
    pub(super) arrivals: u64,
    pub(super) awaited: u64,
    /// Its clock: the time of each other member, as it knows it.
    pub(super) clock: Rc<Clock>,
    /// When each of its calls began.
    pub(super) began: Vec<u32>,
    pub(super) memory: Memory,
    /// Its clock at its last arrival, itself included.
    published: Rc<Clock>,
}

/// A piece of a member's memory, in elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    pub(super) member: u32,
    pub(super) area: Area,
    pub(super) offset: u64,
    pub(super) len: u64,
}

pub(super) struct Run<'a> {
    pub(super) calls: &'a [Call],
    pub(super) size: u32,
    pub(super) slots: usize,
    pub(super) members: Vec<Member>,
    /// Messages from a to b, at a * size + b.
    pub(super) wires: Vec<VecDeque<Message>>,
    /// When each message was taken, by its number.
    pub(super) taken: Vec<u32>,
    pub(super) values: Values,
    /// The combination of each element of a call, at the first member that has it.
    pub(super) combined: Vec<Vec<Option<Value>>>,
    /// What each member has at the end of the last call.
    pub(super) results: Vec<Vec<Value>>,
    /// The joined clocks of all members after an arrival, with its number.
    pub(super) joined: (u64, Rc<Clock>),
}

impl<'a> Run<'a> {
    pub(super) fn new(calls: &'a [Call], slots: u32) -> Run<'a> {
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
            results: vec![Vec::new(); size],
            joined: (0, clock.clone()),
        }
    }

    pub(super) fn finish(&mut self) -> Result<(), Fault> {
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

    /// The caller fills its input. Its output may hold anything.
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
        self.results[me as usize] = values;
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

    /// A barrier ends when all members are known to have begun it.
    pub(super) fn all_have_come(&self, me: u32, call: usize) -> Checked {
        let knows = |peer: u32| {
            let began = self.at(peer).began.get(call);
            peer == me || began.is_some_and(|began| self.at(me).clock[peer as usize] >= *began)
        };
        match (0..self.size).find(|peer| !knows(*peer)) {
            None => Ok(()),
            Some(peer) => Err(format!("goes on before it knows that member {peer} has come")),
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
        self.combined_in_pass(left, right, true)
    }

    fn combined_in_pass(
        &mut self,
        left: Vec<Value>,
        right: Vec<Value>,
        rounded: bool,
    ) -> Checked<Vec<Value>> {
        if left.len() != right.len() {
            return Err("combines spans of different length".to_owned());
        }
        let pairs = left.into_iter().zip(right);
        let both = |(left, right)| self.values.combine(left, right, rounded);
        pairs.map(both).collect()
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
        // The first member that sees all arrivals joins the clocks; no member arrives again before.
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
        for (number, source) in sources.iter().enumerate() {
            let next = self.read(me, *source)?;
            let rounded = number + 1 == sources.len() || sources.len() > PASS_SOURCES;
            result = Some(match result {
                None => next,
                Some(before) => self.combined_in_pass(before, next, rounded)?,
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

    /// Whether that is another member.
    fn peer(&self, me: u32, peer: u32) -> Checked<bool> {
        if peer < self.size {
            return Ok(peer != me);
        }
        Err(format!("there is no member {peer}"))
    }

    pub(super) fn now(&self, me: u32) -> Stamp {
        Stamp { member: me, time: self.at(me).time }
    }

    pub(super) fn at(&self, me: u32) -> &Member {
        &self.members[me as usize]
    }

    pub(super) fn at_mut(&mut self, me: u32) -> &mut Member {
        &mut self.members[me as usize]
    }

    fn fault(&self, member: u32, what: String) -> Fault {
        let Member { call, step, .. } = *self.at(member);
        Fault { member, call, step, what }
    }
}

pub(super) fn parity(arrivals: u64) -> usize {
    (arrivals % 2) as usize
}

/// Joins another clock.
fn join(clock: &mut Clock, other: &Clock) {
    for (mine, theirs) in clock.iter_mut().zip(other) {
        *mine = (*theirs).max(*mine);
    }
}
