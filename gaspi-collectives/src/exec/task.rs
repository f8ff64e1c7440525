//! An active operation: its steps, and how far this rank has come.
//!
//! A task never waits. [`Task::advance`] runs steps until one is blocked, and returns the reason; a
//! thread that waits calls it again. A step happens completely or not at all, so a task can be left
//! at any time and be continued by any thread.

use std::cell::{Cell, OnceCell, RefCell};
use std::sync::Arc;

use gaspi_core::sync::arrival_slot::{PAYLOAD_WORDS as WORDS, Poll};
use gaspi_core::{Channel, Error, Head, Lifetime, Rank, Result};

use super::buffer_location::BufferLocation;
use super::buffers::{Arithmetic, Buffers};
use super::counters::Counters;
use super::notice::{self, Cause, What};
use super::peer_access::Accesses;
use super::substrate::Substrate;
use crate::algorithms::Algorithm;
use crate::kernel::{self, Buffer, Source, Target};
use crate::plan::{Plan, ZeroCopy};
use crate::request::Reducer;
use crate::signature;
use crate::steps::{Carry, Kind, LINE_BYTES, Place, Span, Step};
use crate::user_reduction::{Arguments, Function};

/// The bits of the stamp of a line from here on hold the sequence.
const STAMP_SHIFT: u32 = 60;

/// What a task waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Blocked {
    /// A message of this member.
    Message(usize),
    /// Room for a message to this member.
    Room(usize),
    /// The line of this member.
    Line(usize),
    /// The acknowledgement of a zero-copy send to this member.
    ZeroCopy(usize),
}

impl Blocked {
    /// The member that it waits for.
    pub(crate) fn member(self) -> usize {
        match self {
            Blocked::Message(member)
            | Blocked::Room(member)
            | Blocked::Line(member)
            | Blocked::ZeroCopy(member) => member,
        }
    }
}

/// Memory that a task takes for itself.
#[derive(Debug)]
pub(super) struct WorkMemory {
    pub(super) scratch: Buffer,
    /// For copies from other processes, and for sums that are then copied to several members.
    pub(super) pulled: OnceCell<Buffer>,
    pub(super) sums: OnceCell<Buffer>,
    /// For a message that is to be combined, see `is_apart`; nothing is there between operations.
    pub(super) incoming: Buffer,
}

/// How far a task has come in its plan.
#[derive(Debug, Default)]
pub(super) struct Position {
    /// The next step.
    pub(super) cursor: usize,
    /// Receives are posted up to this step; the cursor when this was done last.
    pub(super) posted: usize,
    pub(super) looked_at: Option<usize>,
    /// Number of members whose lines of the last arrival have been seen.
    pub(super) seen: usize,
    /// Number of arrivals of this task.
    pub(super) arrived: u64,
}

/// An active operation; `F` is the function of the program that combines, if one does.
#[derive(Debug)]
pub(crate) struct Task<F = Reducer> {
    pub(super) plan: Arc<Plan>,
    /// The plan that it began with, after it has switched to the fallback.
    pub(super) replaced: Option<Arc<Plan>>,
    /// Which operation of the channel it is, from 1.
    pub(crate) sequence: u64,
    pub(crate) signature: u64,
    pub(super) arithmetic: Arithmetic<F>,
    pub(super) buffers: Buffers<'static>,
    pub(super) work: WorkMemory,
    /// The arguments of a function of the program.
    pub(super) arguments: RefCell<Arguments>,
    pub(super) position: Position,
    /// What it waited for when it was left.
    pub(super) blocked: Option<Blocked>,
    /// The memory of the members, after the first arrival.
    pub(super) accesses: Accesses,
    /// 1 + the rank on which a reduction has failed, 0 if none has. Messages carry it, and lines
    /// without data.
    pub(super) failed: Cell<u64>,
    /// The cause of a mismatch.
    pub(super) cause: Cell<Cause>,
    pub(super) performed: Performed,
}

/// What a task has come to, for the statistics.
#[derive(Debug, Default)]
pub(crate) struct Performed {
    /// Messages and arrivals.
    messages: Cell<u64>,
    /// Bytes that were copied without being combined. What the kernel copies for a socket is not
    /// among them.
    copied: Cell<u64>,
}

impl Performed {
    #[inline]
    fn sent(&self) {
        self.messages.set(self.messages.get() + 1);
    }

    #[inline]
    pub(super) fn copied(&self, bytes: usize) {
        self.copied.set(self.copied.get() + bytes as u64);
    }

    /// Adds to the statistics of a rank, once.
    pub(super) fn count(&self, channel: &Channel) {
        channel.count_operation(self.messages.take(), self.copied.take());
    }
}

/// The outcome of a step.
pub(super) enum Stepped {
    Done,
    /// And so has the next one.
    BothDone,
    Blocked(Blocked),
    /// The plan has changed, and its steps begin anew.
    Again,
}

impl Task {
    /// Whether it calls a function of the program that only the program's threads may call.
    pub(crate) fn is_private(&self) -> bool {
        matches!(&self.arithmetic, Arithmetic::User(reducer) if !reducer.background)
    }
}

/// The stamp of an operation's lines: its signature and some bits of its sequence, so that an
/// earlier operation with the same signature differs.
#[inline]
pub(crate) fn stamp(signature: u64, sequence: u64) -> u64 {
    signature ^ sequence << STAMP_SHIFT
}

impl<F: Function> Task<F> {
    pub(crate) fn new(
        plan: Arc<Plan>,
        sequence: u64,
        signature: u64,
        arithmetic: Arithmetic<F>,
        buffers: Buffers<'static>,
    ) -> Task<F> {
        let work = WorkMemory {
            scratch: Buffer::new(plan.scratch_bytes),
            pulled: OnceCell::new(),
            sums: OnceCell::new(),
            incoming: Buffer::new(0),
        };
        Task {
            plan,
            replaced: None,
            sequence,
            signature,
            arithmetic,
            buffers,
            work,
            arguments: RefCell::default(),
            position: Position::default(),
            blocked: None,
            accesses: Accesses::default(),
            failed: Cell::new(0),
            cause: Cell::default(),
            performed: Performed::default(),
        }
    }

    /// Starts the same operation again.
    pub(crate) fn restart(&mut self, sequence: u64, buffers: Buffers<'static>) {
        self.position = Position::default();
        self.blocked = None;
        self.failed.set(0);
        self.sequence = sequence;
        self.buffers = buffers;
        self.accesses.close();
        self.performed = Performed::default();
        if let Some(plan) = self.replaced.take() {
            self.plan = plan;
        }
    }

    /// Whether it can be restarted for this plan and signature.
    pub(crate) fn is_like(&self, plan: &Arc<Plan>, signature: u64) -> bool {
        let own = self.replaced.as_ref().unwrap_or(&self.plan);
        Arc::ptr_eq(own, plan) && self.signature == signature && !self.is_of_user()
    }

    fn is_of_user(&self) -> bool {
        matches!(self.arithmetic, Arithmetic::User(_))
    }

    /// What it waited for when it was left.
    pub(crate) fn blocked(&self) -> Option<Blocked> {
        self.blocked
    }

    /// The cause of the mismatch, after [`Error::Mismatch`].
    pub(crate) fn cause(&self) -> Cause {
        self.cause.get()
    }

    /// The error for a member that is in another operation.
    #[cold]
    fn differs(
        &self,
        channel: &Channel,
        member: usize,
        (signature, sequence): (u64, u64),
    ) -> Error {
        self.cause.set(Cause { what: What::Signature, member, words: [signature, sequence] });
        signature::mismatch(channel, [(channel.me(), self.signature), (member, signature)])
    }

    /// The stamp of its lines.
    pub(crate) fn stamp(&self) -> u64 {
        stamp(self.signature, self.sequence)
    }

    /// Continues at this step: all before have been done.
    pub(crate) fn continue_at(&mut self, cursor: usize) {
        self.position.cursor = cursor;
    }

    /// Continues where a reduction may have failed, see [`failed`](Task::failed).
    pub(crate) fn continue_failed(&self, failed: u64) {
        self.failed.set(failed);
    }

    /// The step that comes next.
    pub(crate) fn cursor(&self) -> usize {
        self.position.cursor
    }

    /// 1 + the rank on which a reduction is known to have failed, else 0.
    pub(crate) fn failed(&self) -> u64 {
        self.failed.get()
    }

    /// The arrival after which other members may use this rank's buffers, and the one with which a
    /// member says that it no longer does; `None` if the buffers are not exposed.
    pub(crate) fn exposure(&self, counters: &Counters) -> Option<(u64, u64)> {
        if !self.plan.is_direct() || self.position.arrived == 0 {
            return None;
        }
        let first = counters.arrivals + 1 - self.position.arrived;
        let arrivals = self.plan.steps.iter().filter(|step| matches!(step, Step::Arrive(_)));
        Some((first, first + arrivals.count() as u64 - 1))
    }

    /// The rank that it waits for.
    pub(crate) fn waits_for(&self, channel: &Channel) -> Option<Rank> {
        self.blocked.map(|blocked| channel.ranks()[blocked.member()])
    }

    /// Runs steps until all are done, which is `None`, or one is blocked.
    ///
    /// # Errors
    /// [`Error::Mismatch`] when a member is in another operation, [`Error::Reduction`] at the end,
    /// and those of the channel. All end the operation.
    pub(crate) fn advance<C: Substrate>(
        &mut self,
        on: &mut C,
        counters: &mut Counters,
    ) -> Result<Option<Blocked>> {
        while let Some(step) = self.plan.steps.get(self.position.cursor).copied() {
            match self.run(on, counters, step)? {
                Stepped::Done => {
                    self.position.cursor += 1;
                    if let Step::Receive { .. } = step {
                        self.look_ahead(on, counters);
                    }
                }
                Stepped::BothDone => self.position.cursor += 2,
                Stepped::Blocked(blocked) => {
                    self.look_ahead(on, counters);
                    self.blocked = Some(blocked);
                    return Ok(Some(blocked));
                }
                Stepped::Again => self.position.cursor = 0,
            }
        }
        // The data of zero-copy sends belongs to the transport until it is acknowledged.
        if !self.plan.zero_copy.lasts.is_empty()
            && let Some((member, _)) = on.channel().in_flight().first()
        {
            self.blocked = Some(Blocked::ZeroCopy(*member));
            return Ok(self.blocked);
        }
        match self.failed.get() {
            0 => Ok(None),
            rank => Err(Error::Reduction { rank: Rank((rank - 1) as u16) }),
        }
    }

    fn run<C: Substrate>(
        &mut self,
        on: &mut C,
        counters: &mut Counters,
        step: Step,
    ) -> Result<Stepped> {
        match step {
            Step::Copy { dst, src } => {
                self.copy(on, counters, dst, src)?;
                if let Place::Stage(_) = dst.place {
                    // Of an all-reduce, members stage the same chunk.
                    let alike = self.plan.algorithm == Algorithm::CopyInCopyOut;
                    on.stage_used(dst.offset + dst.bytes, alike);
                }
            }
            Step::Combine { dst, left, right } => {
                let (left, right) =
                    (self.operand(on, counters, left), self.operand(on, counters, right));
                self.combine(on, self.target(on, counters, dst), left, right);
            }
            Step::Send { to, src, .. } if !C::IS_CHANNEL => {
                self.send_chunk(on, counters, to as usize, src);
            }
            Step::Send { to, src, copied } => {
                return self.send(on, counters, to as usize, src, copied);
            }
            Step::Receive { from, dst } => {
                return self.receive(on, counters, from as usize, dst, None);
            }
            Step::ReceiveReduce { from, dst, with, theirs_first } => {
                let with = Some((with, theirs_first));
                return self.receive(on, counters, from as usize, dst, with);
            }
            Step::Arrive(carry) => self.arrive(on, counters, carry),
            Step::AwaitAll => return self.await_all(on, counters),
            Step::Reduce { dsts, srcs, bytes } => {
                self.reduce(on, counters, dsts, srcs, bytes)?;
                if dsts.kind == Kind::Stage {
                    on.stage_used(dsts.offset + bytes, false);
                }
            }
            Step::Finish { span } => self.finish(on, counters, span),
        }
        Ok(Stepped::Done)
    }

    /// Own memory to read. Staging is that of the last arrival.
    pub(super) fn source<'a, C: Substrate>(
        &'a self,
        on: &'a C,
        counters: &Counters,
        span: Span,
    ) -> Source<'a> {
        let me = on.me();
        let memory = match span.place {
            Place::Input(member) if member as usize == me => self.buffers.input,
            Place::Output(member) if member as usize == me => self.buffers.output.source(),
            Place::Scratch => self.work.scratch.target(self.work.scratch.len()).source(),
            Place::Stage(member) if member as usize == me => {
                Source::of_peer(on.stage(me, counters.arrivals))
            }
            place => unreachable!("{place:?} is not member {me}'s own"),
        };
        memory.part(span.offset, span.bytes)
    }

    /// Own memory to write. Staging is that of the next arrival.
    pub(super) fn target<'a, C: Substrate>(
        &'a self,
        on: &'a C,
        counters: &Counters,
        span: Span,
    ) -> Target<'a> {
        let me = on.me();
        let memory = match span.place {
            Place::Output(member) if member as usize == me => self.buffers.output,
            Place::Scratch => self.work.scratch.target(self.work.scratch.len()),
            Place::Stage(member) if member as usize == me => {
                Target::of_peer(on.stage(me, counters.arrivals + 1))
            }
            place => unreachable!("{place:?} may not be written by member {me}"),
        };
        memory.part(span.offset, span.bytes)
    }

    /// Notes the failure that a member reports, unless it is 0. The lowest rank is kept, so that
    /// all members report the same one.
    pub(super) fn hear_of_failure(&self, told: u64) {
        let known = self.failed.get();
        if told != 0 && (known == 0 || told < known) {
            self.failed.set(told);
        }
    }

    fn send<C: Substrate>(
        &self,
        on: &C,
        counters: &mut Counters,
        to: usize,
        src: Span,
        copied: bool,
    ) -> Result<Stepped> {
        let channel = on.channel();
        let index = counters.sent[to];
        let slots = u64::from(channel.spec().slots);
        if index - counters.room[to] >= slots {
            counters.room[to] = channel.taken(to);
            if index - counters.room[to] >= slots {
                return Ok(Stepped::Blocked(Blocked::Room(to)));
            }
        }
        let mut head = Head::default();
        head[..4].copy_from_slice(&[self.sequence, self.signature, src.bytes, self.failed.get()]);
        let ZeroCopy { lasts, by_devices_only } = &self.plan.zero_copy;
        let by_socket = || *by_devices_only && !channel.reaches_by_device(to);
        let lifetime = match copied || lasts.is_empty() || by_socket() {
            true => Lifetime::Call,
            false => Lifetime::UntilAcknowledged {
                awaited: lasts.binary_search(&self.position.cursor).is_ok(),
            },
        };
        if !kernel::send(channel, to, index, &head, self.source(on, counters, src), lifetime)? {
            return Ok(Stepped::Blocked(Blocked::Room(to)));
        }
        counters.sent[to] = index + 1;
        self.performed.sent();
        if !channel.may_post_receive(to) {
            self.performed.copied(src.bytes as usize);
        }
        Ok(Stepped::Done)
    }

    fn receive<C: Substrate>(
        &self,
        on: &C,
        counters: &mut Counters,
        from: usize,
        dst: Span,
        with: Option<(Span, bool)>,
    ) -> Result<Stepped> {
        if !C::IS_CHANNEL {
            return self.receive_chunk(on, counters, from, dst, with);
        }
        let channel = on.channel();
        let index = counters.taken[from];
        if channel.received(from) <= index {
            return Ok(Stepped::Blocked(Blocked::Message(from)));
        }
        let [sequence, signature, bytes, failed, ..] = channel.head(from, index);
        if (sequence, signature) != (self.sequence, self.signature) {
            return Err(self.differs(channel, from, (signature, sequence)));
        }
        if bytes != dst.bytes {
            return Err(self.uneven(channel, from, bytes, dst.bytes));
        }
        self.hear_of_failure(failed);
        let message = Source::of_peer(channel.incoming(from, index)).part(0, bytes);
        let mut stepped = Stepped::Done;
        match with {
            None => {
                let to = self.target(on, counters, dst);
                // The rest was received in place.
                let here = channel.complete_receive(from, index).unwrap_or(bytes);
                kernel::copy(to.part(0, here), message.part(0, here));
                self.performed.copied(here as usize);
            }
            Some(_) => {
                let message = self.take_posted_sum(on, counters, (from, index), message);
                stepped = self.combine_message(on, counters, message, dst, with);
            }
        }
        counters.taken[from] = index + 1;
        channel.take(from, index + 1);
        Ok(stepped)
    }

    /// Takes what has come: as it is, or combined with the other operand.
    #[inline]
    pub(super) fn combine_message<C: Substrate>(
        &self,
        on: &C,
        counters: &Counters,
        message: Source<'_>,
        dst: Span,
        with: Option<(Span, bool)>,
    ) -> Stepped {
        let to = self.target(on, counters, dst);
        let Some((with, theirs_first)) = with else {
            kernel::copy(to, message);
            return Stepped::Done;
        };
        let with = self.source(on, counters, with);
        let (left, right) = if theirs_first { (message, with) } else { (with, message) };
        if self.finishes(dst) && self.average(on, to, left, right) {
            return Stepped::BothDone;
        }
        self.combine(on, to, left, right);
        Stepped::Done
    }

    fn arrive<C: Substrate>(&mut self, on: &mut C, counters: &mut Counters, carry: Carry) {
        let arrival = counters.arrive();
        self.position.arrived += 1;
        self.performed.sent();
        let mut words = [0u64; WORDS];
        let mut used = 0;
        match carry {
            Carry::Data(span) => {
                assert!(span.bytes <= LINE_BYTES, "{} bytes do not fit into a line", span.bytes);
                let data: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
                let data = &mut data[..span.bytes as usize];
                used = data.len().div_ceil(size_of::<u64>());
                kernel::copy(Target::of(data), self.source(on, counters, span));
            }
            Carry::Nothing if self.plan.is_direct() && !self.accesses.are_open() => {
                let takes_fallback =
                    self.plan.fallback.as_ref().is_some_and(|fallback| fallback.always);
                words = BufferLocation::of(on.channel(), self.buffers).words(takes_fallback);
                used = WORDS;
            }
            Carry::Nothing if self.is_of_user() => (words[0], used) = (self.failed.get(), 1),
            Carry::Nothing => {}
        }
        self.position.seen = 0;
        on.arrive(arrival, self.stamp(), &words[..used]);
    }

    fn await_all<C: Substrate>(&mut self, on: &C, counters: &mut Counters) -> Result<Stepped> {
        let (members, stamp) = (on.ranks().len(), self.stamp());
        while self.position.seen < members {
            match on.look(self.position.seen, counters.arrivals, stamp) {
                Poll::Arrived(there) if there == stamp => self.position.seen += 1,
                Poll::Arrived(there) => {
                    let differ = there ^ stamp;
                    // The same signature, but another sequence.
                    let signature = if differ << (64 - STAMP_SHIFT) == 0 { 0 } else { differ };
                    let there = (self.signature ^ signature, self.sequence);
                    return Err(self.differs(on.channel(), self.position.seen, there));
                }
                Poll::Missing => return Ok(Stepped::Blocked(Blocked::Line(self.position.seen))),
                Poll::Passed => {
                    let group = on.channel().group();
                    let rank = on.ranks()[self.position.seen];
                    let difference = format!("{rank} is in a later operation already");
                    return Err(Error::Mismatch { group, difference });
                }
            }
        }
        if self.plan.is_direct() && !self.accesses.are_open() {
            // A member that fails after its arrival waits only for members that may already use its
            // memory: do not begin to.
            let channel = on.channel();
            let notices = channel.notice_count();
            if notices != counters.notices {
                let failed = (0..members).find(|member| notice::has_failed(channel, *member));
                if let Some(member) = failed {
                    return Ok(Stepped::Blocked(Blocked::Line(member)));
                }
                counters.notices = notices;
            }
            return self.find_peers(channel, counters);
        }
        if self.is_of_user() {
            for member in 0..members {
                self.hear_of_failure(on.payload(member, counters.arrivals)[0]);
            }
        }
        Ok(Stepped::Done)
    }

    #[cold]
    fn uneven(&self, channel: &Channel, member: usize, found: u64, expected: u64) -> Error {
        self.cause.set(Cause { what: What::Bytes, member, words: [found, expected] });
        signature::uneven(channel, [member, channel.me()], [found, expected])
    }
}
