//! One operation under way: its steps, and how far this rank has come.
//!
//! A task never waits. [`Task::advance`] runs steps until one needs something that is not there yet,
//! and says what; whoever waits calls it again. A step has happened completely or not at all, so a
//! task can be left at any time and be continued by any thread.

mod reaching;

use std::cell::{Cell, OnceCell, RefCell};
use std::sync::Arc;

use gaspi_core::sync::line::Look;
use gaspi_core::{Channel, Error, Rank, Result};

use crate::algorithms::Algorithm;
use crate::datatype::{DataType, Operation};
use crate::executor::Buffers;
use crate::kernel::{self, Buffer, Source, Target};
use crate::notice::{self, Cause, What};
use crate::print;
use crate::request::Reducer;
use crate::steps::{Carry, LINE_BYTES, Place, Span, Step};
use crate::whereabouts::Whereabouts;
use reaching::Way;

/// Bytes in front of a message's data: sequence, fingerprint, bytes, flags; a cache line.
pub(crate) const HEADER_BYTES: u64 = 64;
/// Words of a line's payload.
const WORDS: usize = 6;
/// Bits of a sequence that go into the stamp of a line.
const STAMP_SHIFT: u32 = 60;

/// How far the messages and lines of a channel are: what this rank has done on it.
#[derive(Debug)]
pub(crate) struct Tally {
    /// Messages sent to each member, and how many of them it is known to have taken.
    sent: Vec<u64>,
    room: Vec<u64>,
    /// Messages taken from each member.
    taken: Vec<u64>,
    /// Lines published.
    arrivals: u64,
    /// Notices that members have told of which none says that it has failed.
    notices: u64,
}

impl Tally {
    pub(crate) fn new(members: usize) -> Tally {
        let zeroes = || vec![0; members];
        Tally { sent: zeroes(), room: zeroes(), taken: zeroes(), arrivals: 0, notices: 0 }
    }

    /// The next arrival.
    #[inline]
    pub(crate) fn arrive(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }
}

/// What a reduction does with elements.
#[derive(Clone, Debug)]
pub(crate) enum Arithmetic {
    BuiltIn(Operation, DataType),
    User(Reducer),
}

/// What a task waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Blocked {
    /// A message of this member.
    Message(usize),
    /// This member to take a message.
    Room(usize),
    /// The line of this member.
    Line(usize),
}

impl Blocked {
    /// Whom it waits for.
    pub(crate) fn member(self) -> usize {
        match self {
            Blocked::Message(member) | Blocked::Room(member) | Blocked::Line(member) => member,
        }
    }
}

/// Steps that can be run again and again.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) algorithm: Algorithm,
    pub(crate) steps: Vec<Step>,
    pub(crate) scratch_bytes: u64,
    /// What all run instead where not all of them map all memory.
    pub(crate) detour: Option<Detour>,
    /// Bytes of input and output by member, where the operation is direct.
    pub(crate) extents: Vec<[u64; 2]>,
    /// Bytes of this member's input and output, and before its block where there are blocks.
    pub(crate) own: [u64; 2],
    pub(crate) before: u64,
    /// Whether the result is written when all steps have been done.
    pub(crate) keeps_apart: bool,
}

/// What members run in place of a direct operation.
#[derive(Debug)]
pub(crate) struct Detour {
    pub(crate) plan: Arc<Plan>,
    /// Whether also where the kernel would copy between processes, because this is faster: not where
    /// the call asks for the direct way, as it may on some members only. Lines tell.
    pub(crate) always: bool,
}

impl Plan {
    /// Whether members hear of each other by messages only.
    pub(crate) fn is_of_messages(&self) -> bool {
        !self.algorithm.requires_one_node()
    }

    /// Whether members use each other's input or output.
    fn is_direct(&self) -> bool {
        !self.extents.is_empty()
    }
}

/// Where a member's input and output lie, as its line tells.
type Ways = [Way; 2];

/// An operation under way.
#[derive(Debug)]
pub(crate) struct Task {
    plan: Arc<Plan>,
    /// The plan that it began with, where it has taken the detour.
    left: Option<Arc<Plan>>,
    /// Which operation of the channel it is, from 1.
    pub(crate) sequence: u64,
    pub(crate) fingerprint: u64,
    arithmetic: Arithmetic,
    buffers: Buffers<'static>,
    scratch: Buffer,
    /// Memory for what is copied from other processes, and for sums that are made apart.
    pulled: OnceCell<Buffer>,
    apart: OnceCell<Buffer>,
    /// Copies that a function of the program is handed.
    copies: RefCell<[Vec<u128>; 3]>,
    cursor: usize,
    /// Members whose lines of the last arrival have been seen.
    seen: usize,
    /// Arrivals of this task.
    arrived: u64,
    /// What it waited for when it was left.
    blocked: Option<Blocked>,
    /// By member, once their lines have told; empty before.
    ways: Vec<Ways>,
    /// A reduction has failed on this rank, or on one whose elements it has combined: 1 + that rank.
    /// Whatever is sent says so.
    failed: Cell<u64>,
    /// Why the members do not agree.
    cause: Cell<Cause>,
}

/// What a step came to.
enum Stepped {
    Done,
    Blocked(Blocked),
    /// The steps are others now, and begin anew.
    Again,
}

impl Task {
    pub(crate) fn new(
        plan: Arc<Plan>,
        sequence: u64,
        fingerprint: u64,
        arithmetic: Arithmetic,
        buffers: Buffers<'static>,
    ) -> Task {
        let scratch = Buffer::new(plan.scratch_bytes);
        Task {
            plan,
            left: None,
            sequence,
            fingerprint,
            arithmetic,
            buffers,
            scratch,
            pulled: OnceCell::new(),
            apart: OnceCell::new(),
            copies: RefCell::default(),
            cursor: 0,
            seen: 0,
            arrived: 0,
            blocked: None,
            ways: Vec::new(),
            failed: Cell::new(0),
            cause: Cell::default(),
        }
    }

    /// The same operation again.
    pub(crate) fn restart(&mut self, sequence: u64, buffers: Buffers<'static>) {
        (self.cursor, self.seen, self.arrived) = (0, 0, 0);
        self.blocked = None;
        self.failed.set(0);
        self.sequence = sequence;
        self.buffers = buffers;
        self.ways.clear();
        if let Some(plan) = self.left.take() {
            self.plan = plan;
        }
    }

    /// Whether it has run this plan, in this operation, before.
    pub(crate) fn is_like(&self, plan: &Arc<Plan>, fingerprint: u64) -> bool {
        let own = self.left.as_ref().unwrap_or(&self.plan);
        Arc::ptr_eq(own, plan) && self.fingerprint == fingerprint && !self.is_of_user()
    }

    fn is_of_user(&self) -> bool {
        matches!(self.arithmetic, Arithmetic::User(_))
    }

    /// Whether it calls a function of the program that may not be called by every thread.
    pub(crate) fn is_private(&self) -> bool {
        matches!(&self.arithmetic, Arithmetic::User(reducer) if !reducer.background)
    }

    /// What it waited for when it was left.
    pub(crate) fn blocked(&self) -> Option<Blocked> {
        self.blocked
    }

    /// Why the members do not agree, after [`Error::Mismatch`].
    pub(crate) fn cause(&self) -> Cause {
        self.cause.get()
    }

    /// The member is in another operation.
    #[cold]
    fn differs(&self, channel: &Channel, member: usize, (print, sequence): (u64, u64)) -> Error {
        self.cause.set(Cause { what: What::Print, member, words: [print, sequence] });
        print::mismatch(channel, [(channel.me(), self.fingerprint), (member, print)])
    }

    /// What its lines carry: the fingerprint, and which operation of the channel it is, so that the
    /// same one called earlier is told from it.
    pub(crate) fn stamp(&self) -> u64 {
        Task::stamp_of(self.fingerprint, self.sequence)
    }

    #[inline]
    pub(crate) fn stamp_of(fingerprint: u64, sequence: u64) -> u64 {
        fingerprint ^ sequence << STAMP_SHIFT
    }

    /// All steps before this one have been done.
    pub(crate) fn continue_at(&mut self, cursor: usize) {
        self.cursor = cursor;
    }

    /// The first arrival after which other members may use this rank's buffers, and the one with which
    /// a member says that it does not use others' any more; `None` while nobody may, or ever will.
    pub(crate) fn exposure(&self, tally: &Tally) -> Option<(u64, u64)> {
        if !self.plan.is_direct() || self.arrived == 0 {
            return None;
        }
        let first = tally.arrivals + 1 - self.arrived;
        let arrivals = self.plan.steps.iter().filter(|step| matches!(step, Step::Arrive(_)));
        Some((first, first + arrivals.count() as u64 - 1))
    }

    /// Whom it waits for.
    pub(crate) fn waits_for(&self, channel: &Channel) -> Option<Rank> {
        self.blocked.map(|blocked| channel.ranks()[blocked.member()])
    }

    /// Runs steps until all are done, which is `None`, or one has to wait.
    ///
    /// # Errors
    /// [`Error::Mismatch`] when a member is in another operation, [`Error::Reduction`] at the end, and
    /// those of the channel. All end the operation.
    pub(crate) fn advance(
        &mut self,
        channel: &Channel,
        tally: &mut Tally,
    ) -> Result<Option<Blocked>> {
        while let Some(step) = self.plan.steps.get(self.cursor).copied() {
            match self.run(channel, tally, step)? {
                Stepped::Done => self.cursor += 1,
                Stepped::Blocked(blocked) => {
                    self.blocked = Some(blocked);
                    return Ok(Some(blocked));
                }
                Stepped::Again => self.cursor = 0,
            }
        }
        match self.failed.get() {
            0 => Ok(None),
            rank => Err(Error::Reduction { rank: Rank((rank - 1) as u16) }),
        }
    }

    fn run(&mut self, channel: &Channel, tally: &mut Tally, step: Step) -> Result<Stepped> {
        match step {
            Step::Copy { dst, src } => self.copy(channel, tally, dst, src)?,
            Step::Combine { dst, left, right } => {
                let left = self.source(channel, tally, left);
                let right = self.source(channel, tally, right);
                self.combine(channel, self.target(channel, tally, dst), left, right);
            }
            Step::Send { to, src, .. } => return self.send(channel, tally, to as usize, src),
            Step::Receive { from, dst } => {
                return self.receive(channel, tally, from as usize, dst, None);
            }
            Step::ReceiveReduce { from, dst, with, theirs_first } => {
                let with = Some((with, theirs_first));
                return self.receive(channel, tally, from as usize, dst, with);
            }
            Step::Arrive(carry) => self.arrive(channel, tally, carry),
            Step::AwaitAll => return self.await_all(channel, tally),
            Step::Reduce { dsts, srcs, bytes } => self.reduce(channel, tally, dsts, srcs, bytes)?,
            Step::Finish { span } => self.finish(channel, tally, span),
        }
        Ok(Stepped::Done)
    }

    /// Own memory to read. Staging is what the last arrival has published.
    fn source<'a>(&'a self, channel: &'a Channel, tally: &Tally, span: Span) -> Source<'a> {
        let me = channel.me();
        let memory = match span.place {
            Place::Input(member) if member as usize == me => self.buffers.input,
            Place::Output(member) if member as usize == me => self.buffers.output.source(),
            Place::Scratch => self.scratch.target(self.scratch.len()).source(),
            Place::Stage(member) if member as usize == me => {
                Source::of_peer(channel.stage(me, tally.arrivals))
            }
            place => unreachable!("{place:?} is not member {me}'s own"),
        };
        memory.part(span.offset, span.bytes)
    }

    /// Own memory to write. Staging is what the next arrival will publish.
    fn target<'a>(&'a self, channel: &'a Channel, tally: &Tally, span: Span) -> Target<'a> {
        let me = channel.me();
        let memory = match span.place {
            Place::Output(member) if member as usize == me => self.buffers.output,
            Place::Scratch => self.scratch.target(self.scratch.len()),
            Place::Stage(member) if member as usize == me => {
                Target::of_peer(channel.stage(me, tally.arrivals + 1))
            }
            place => unreachable!("{place:?} may not be written by member {me}"),
        };
        memory.part(span.offset, span.bytes)
    }

    /// `dst = left op right`; `dst` may be the same memory as either.
    fn combine(&self, channel: &Channel, dst: Target<'_>, left: Source<'_>, right: Source<'_>) {
        if dst.is_empty() || self.failed.get() != 0 {
            return;
        }
        let reducer = match &self.arithmetic {
            Arithmetic::BuiltIn(op, ty) => {
                return kernel::fold(*op, *ty, &[dst], &[left, right]);
            }
            Arithmetic::User(reducer) => reducer,
        };
        let bytes = dst.len();
        let mut copies = self.copies.borrow_mut();
        for copy in copies.iter_mut().filter(|copy| copy.len() * size_of::<u128>() < bytes) {
            copy.resize(bytes.div_ceil(size_of::<u128>()), 0);
        }
        let [first, second, result] = copies.each_mut().map(|copy| {
            let copy: &mut [u8] = bytemuck::cast_slice_mut(copy);
            &mut copy[..bytes]
        });
        kernel::copy(Target::of(first), left);
        kernel::copy(Target::of(second), right);
        let count = bytes as u64 / u64::from(reducer.element_bytes);
        match (reducer.reduce)(first, second, result, count) {
            Ok(()) => kernel::copy(dst, Source::of(result)),
            Err(_) => self.failed.set(1 + u64::from(channel.ranks()[channel.me()].0)),
        }
    }

    fn finish(&self, channel: &Channel, tally: &Tally, span: Span) {
        let Arithmetic::BuiltIn(Operation::Average, ty) = self.arithmetic else { return };
        if span.bytes > 0 {
            let members = channel.ranks().len() as u32;
            kernel::divide(ty, self.target(channel, tally, span), members);
        }
    }

    fn send(&self, channel: &Channel, tally: &mut Tally, to: usize, src: Span) -> Result<Stepped> {
        let index = tally.sent[to];
        let slots = u64::from(channel.spec().slots);
        if index - tally.room[to] >= slots {
            tally.room[to] = channel.taken(to);
            if index - tally.room[to] >= slots {
                return Ok(Stepped::Blocked(Blocked::Room(to)));
            }
        }
        let header = [self.sequence, self.fingerprint, src.bytes, self.failed.get()];
        let slot = Target::of_peer(channel.outgoing(to, index));
        let header: &[u8] = bytemuck::cast_slice(&header);
        kernel::copy(slot.part(0, header.len() as u64), Source::of(header));
        kernel::copy(slot.part(HEADER_BYTES, src.bytes), self.source(channel, tally, src));
        channel.send(to, index, HEADER_BYTES + src.bytes)?;
        tally.sent[to] = index + 1;
        Ok(Stepped::Done)
    }

    fn receive(
        &self,
        channel: &Channel,
        tally: &mut Tally,
        from: usize,
        dst: Span,
        with: Option<(Span, bool)>,
    ) -> Result<Stepped> {
        let index = tally.taken[from];
        if channel.received(from) <= index {
            return Ok(Stepped::Blocked(Blocked::Message(from)));
        }
        let slot = Source::of_peer(channel.incoming(from, index));
        let mut header = [0u64; 4];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut header);
        kernel::copy(Target::of(bytes), slot.part(0, size_of::<[u64; 4]>() as u64));
        let [sequence, fingerprint, bytes, failed] = header;
        if (sequence, fingerprint) != (self.sequence, self.fingerprint) {
            return Err(self.differs(channel, from, (fingerprint, sequence)));
        }
        if bytes != dst.bytes {
            return Err(self.uneven(channel, from, bytes, dst.bytes));
        }
        if failed != 0 {
            // The lowest rank, so that all name the same one.
            let known = self.failed.get();
            self.failed.set(if known == 0 { failed } else { known.min(failed) });
        }
        let message = slot.part(HEADER_BYTES, bytes);
        let to = self.target(channel, tally, dst);
        match with {
            None => kernel::copy(to, message),
            Some((with, theirs_first)) => {
                let with = self.source(channel, tally, with);
                let (left, right) = if theirs_first { (message, with) } else { (with, message) };
                self.combine(channel, to, left, right);
            }
        }
        tally.taken[from] = index + 1;
        channel.take(from, index + 1);
        Ok(Stepped::Done)
    }

    fn arrive(&mut self, channel: &Channel, tally: &mut Tally, carry: Carry) {
        let arrival = tally.arrive();
        self.arrived += 1;
        let mut words = [0u64; WORDS];
        match carry {
            Carry::Data(span) => {
                assert!(span.bytes <= LINE_BYTES, "{} bytes do not fit into a line", span.bytes);
                let data: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
                let data = &mut data[..span.bytes as usize];
                kernel::copy(Target::of(data), self.source(channel, tally, span));
            }
            Carry::Nothing if self.plan.is_direct() && self.ways.is_empty() => {
                let detours = self.plan.detour.as_ref().is_some_and(|detour| detour.always);
                words = Whereabouts::of(channel, self.buffers).words(detours);
            }
            Carry::Nothing => {}
        }
        self.seen = 0;
        channel.arrive(arrival, self.stamp(), &words);
    }

    fn await_all(&mut self, channel: &Channel, tally: &mut Tally) -> Result<Stepped> {
        let (members, stamp) = (channel.ranks().len(), self.stamp());
        while self.seen < members {
            match channel.look(self.seen, tally.arrivals) {
                Look::Arrived(there) if there == stamp => self.seen += 1,
                Look::Arrived(there) => {
                    let differ = there ^ stamp;
                    // The same operation, but not as the same one of the channel.
                    let print = if differ << (64 - STAMP_SHIFT) == 0 { 0 } else { differ };
                    let there = (self.fingerprint ^ print, self.sequence);
                    return Err(self.differs(channel, self.seen, there));
                }
                Look::Missing => return Ok(Stepped::Blocked(Blocked::Line(self.seen))),
                Look::Passed => {
                    let rank = channel.ranks()[self.seen];
                    let reason = "this collective failed there; its own error says why".to_owned();
                    return Err(Error::Refused { rank, reason });
                }
            }
        }
        if self.plan.is_direct() && self.ways.is_empty() {
            // Whoever has failed since it arrived waits only for those who may use its memory by now.
            let notices = channel.notices();
            if notices != tally.notices {
                let failed = (0..members).find(|member| notice::has_failed(channel, *member));
                if let Some(member) = failed {
                    return Ok(Stepped::Blocked(Blocked::Line(member)));
                }
                tally.notices = notices;
            }
            return self.find_ways(channel, tally);
        }
        Ok(Stepped::Done)
    }

    #[cold]
    fn uneven(&self, channel: &Channel, member: usize, found: u64, expected: u64) -> Error {
        self.cause.set(Cause { what: What::Bytes, member, words: [found, expected] });
        print::uneven(channel, [member, channel.me()], [found, expected])
    }
}
