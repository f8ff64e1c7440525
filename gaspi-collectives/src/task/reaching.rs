//! Memory of other members as a task gets at it: mapped, or across processes.

use std::mem;
use std::sync::Arc;

use gaspi_core::{Channel, Location, Reached, Result};

use super::{Arithmetic, Stepped, Tally, Task, WORDS};
use crate::carrier::Carrier;
use crate::datatype::{DataType, Operation};
use crate::kernel::{self, Buffer, Source, Target};
use crate::plan::Detour;
use crate::steps::{Kind, Members, Place, Span, Spread};
use crate::user::Function;
use crate::whereabouts::Whereabouts;

/// Bytes that are combined at once where they have to be copied first: a system call each, and all
/// in a core's second cache.
const PULL_BYTES: u64 = 128 << 10;
/// Members whose memory is used in one pass: what is kept of each on the stack costs time for few.
const FEW: usize = 4;
const MANY: usize = 64;

/// Memory of another member as this rank gets at it.
#[derive(Debug)]
pub(super) struct Way {
    address: u64,
    reached: Reached,
}

/// Memory that a step reads.
enum Readable<'a> {
    Here(Source<'a>),
    /// At this address of a member's process.
    Across(usize, u64),
}

/// Memory that a step writes.
enum Writable<'a> {
    Here(Target<'a>),
    Across(usize, u64),
}

impl<F: Function> Task<F> {
    /// The lines of the first arrival have told where everybody's memory is. Where somebody's is
    /// not mapped by all, all know so and take the other way.
    pub(super) fn find_ways(&mut self, channel: &Channel, tally: &Tally) -> Result<Stepped> {
        let members = 0..channel.ranks().len();
        let told = |member| Whereabouts::of_words(channel.payload(member, tally.arrivals));
        let across = channel.all_reachable();
        let detours = |member| Whereabouts::detours(channel.payload(member, tally.arrivals));
        if let Some(Detour { plan, .. }) = &self.plan.detour
            && (!across || members.clone().all(detours))
            && !members.clone().all(|member| told(member).are_mapped())
        {
            let plan = Arc::clone(plan);
            if plan.scratch_bytes > self.scratch.len() {
                self.scratch = Buffer::new(plan.scratch_bytes);
            }
            self.left = Some(mem::replace(&mut self.plan, plan));
            return Ok(Stepped::Again);
        }
        for member in members {
            let Whereabouts { input, output } = told(member);
            let [input_bytes, output_bytes] = self.plan.extents[member];
            let found = way(channel, member, input, input_bytes)
                .and_then(|input| Ok([input, way(channel, member, output, output_bytes)?]));
            match found {
                Ok(ways) => self.ways.push(ways),
                Err(error) => {
                    // This may be looked at again.
                    self.ways.clear();
                    return Err(error);
                }
            }
        }
        Ok(Stepped::Done)
    }

    /// Memory of any member of this node, to read.
    fn readable<'a, C: Carrier>(&'a self, on: &'a C, tally: &Tally, span: Span) -> Readable<'a> {
        let (member, way) = match span.place {
            Place::Input(member) => (member as usize, 0),
            Place::Output(member) => (member as usize, 1),
            Place::Stage(member) => {
                let stage = Source::of_peer(on.stage(member as usize, tally.arrivals));
                return Readable::Here(stage.part(span.offset, span.bytes));
            }
            Place::Scratch => return Readable::Here(self.source(on, tally, span)),
        };
        if member == on.me() {
            return Readable::Here(self.source(on, tally, span));
        }
        let way = &self.ways[member][way];
        match way.reached.slice() {
            Some(slice) => Readable::Here(Source::of_peer(slice).part(span.offset, span.bytes)),
            None => Readable::Across(member, way.address + span.offset),
        }
    }

    /// Own memory, or what a member has published.
    pub(super) fn operand<'a, C: Carrier>(
        &'a self,
        on: &'a C,
        tally: &Tally,
        span: Span,
    ) -> Source<'a> {
        match self.readable(on, tally, span) {
            Readable::Here(source) => source,
            Readable::Across(member, _) => {
                unreachable!("{span:?} of member {member} is no operand")
            }
        }
    }

    /// Memory of any member of this node, to write.
    fn writable<'a, C: Carrier>(&'a self, on: &'a C, tally: &Tally, span: Span) -> Writable<'a> {
        let Place::Output(member) = span.place else {
            return Writable::Here(self.target(on, tally, span));
        };
        let member = member as usize;
        if member == on.me() {
            return Writable::Here(self.target(on, tally, span));
        }
        let way = &self.ways[member][1];
        match way.reached.slice() {
            Some(slice) => Writable::Here(Target::of_peer(slice).part(span.offset, span.bytes)),
            None => Writable::Across(member, way.address + span.offset),
        }
    }

    pub(super) fn copy<C: Carrier>(
        &self,
        on: &C,
        tally: &Tally,
        dst: Span,
        src: Span,
    ) -> Result<()> {
        match (self.readable(on, tally, src), self.writable(on, tally, dst)) {
            (Readable::Here(from), Writable::Here(to)) => {
                // In place there is nothing to do.
                if !from.is_at(to) {
                    kernel::copy(to, from);
                }
                Ok(())
            }
            (Readable::Across(member, address), Writable::Here(to)) => {
                kernel::pull(on.channel(), member, address, to)
            }
            (Readable::Here(from), Writable::Across(member, address)) => {
                kernel::push(on.channel(), member, address, from)
            }
            (Readable::Across(..), Writable::Across(..)) => {
                unreachable!("one end of a copy is at this rank")
            }
        }
    }

    /// Combines what lies at several members into what lies at several members.
    pub(super) fn reduce<C: Carrier>(
        &self,
        on: &C,
        tally: &Tally,
        dsts: Spread,
        srcs: Spread,
        bytes: u64,
    ) -> Result<()> {
        let (op, ty) = match &self.arithmetic {
            Arithmetic::BuiltIn(op, ty) => (*op, *ty),
            Arithmetic::User(function) => {
                self.reduce_by(function, on, tally, (dsts, srcs, bytes));
                return Ok(());
            }
        };
        let divided = op == Operation::Average && srcs.members == Members::All;
        let size = on.ranks().len();
        let whole = (dsts, srcs, bytes);
        // What goes to others is divided before it does. An own result is rounded as often as where
        // steps are not walked.
        let own = dsts.members == Members::One(on.me() as u32);
        let at_once = if divided && !own || size > MANY {
            false
        } else if size <= FEW {
            self.reduce_at_once::<FEW, C>(on, tally, whole, op, ty)
        } else {
            self.reduce_at_once::<MANY, C>(on, tally, whole, op, ty)
        };
        if at_once {
            if divided {
                let to = self.target(on, tally, span(dsts, on.me() as u32, bytes));
                kernel::divide(ty, to, size as u32);
            }
            return Ok(());
        }
        let mut done = 0;
        while done < bytes {
            let part = PULL_BYTES.min(bytes - done);
            let at = |spread: Spread| Spread { offset: spread.offset + done, ..spread };
            let sum = self.apart.get_or_init(|| Buffer::new(PULL_BYTES)).target(part);
            self.gather(on, tally, sum, at(srcs), op, ty)?;
            if divided {
                kernel::divide(ty, sum, on.ranks().len() as u32);
            }
            for member in members(dsts.members, on.ranks().len() as u32) {
                match self.writable(on, tally, span(at(dsts), member, part)) {
                    Writable::Here(to) => kernel::copy(to, sum.source()),
                    Writable::Across(member, address) => {
                        kernel::push(on.channel(), member, address, sum.source())?;
                    }
                }
            }
            done += part;
        }
        Ok(())
    }

    /// The same in one pass over all memory, for at most `N` members whose memory is mapped; false
    /// where it is not.
    fn reduce_at_once<const N: usize, C: Carrier>(
        &self,
        on: &C,
        tally: &Tally,
        (dsts, srcs, bytes): (Spread, Spread, u64),
        op: Operation,
        ty: DataType,
    ) -> bool {
        let size = on.ranks().len();
        let mut lines = [[0; WORDS]; N];
        if srcs.kind == Kind::Line {
            for (member, line) in lines.iter_mut().enumerate().take(size) {
                *line = on.payload(member, tally.arrivals);
            }
        }
        let nothing: Source<'_> = Source::of(&[]);
        let (mut from, mut from_len) = ([nothing; N], 0);
        for member in members(srcs.members, size as u32) {
            from[from_len] = if srcs.kind == Kind::Line {
                let line: &[u8] = bytemuck::cast_slice(&lines[member as usize]);
                Source::of(line).part(srcs.offset, bytes)
            } else {
                match self.readable(on, tally, span(srcs, member, bytes)) {
                    Readable::Here(source) => source,
                    Readable::Across(..) => return false,
                }
            };
            from_len += 1;
        }
        let (mut to, mut to_len) = ([Target::of(&mut []); N], 0);
        for member in members(dsts.members, size as u32) {
            to[to_len] = match self.writable(on, tally, span(dsts, member, bytes)) {
                Writable::Here(target) => target,
                Writable::Across(..) => return false,
            };
            to_len += 1;
        }
        kernel::fold(op, ty, &to[..to_len], &from[..from_len]);
        true
    }

    /// Combines the sources into `sum`, in their order, whatever that takes.
    fn gather<C: Carrier>(
        &self,
        on: &C,
        tally: &Tally,
        sum: Target<'_>,
        srcs: Spread,
        op: Operation,
        ty: DataType,
    ) -> Result<()> {
        let bytes = sum.len() as u64;
        let mut begun = false;
        let mut combine = |source: Source<'_>| {
            if begun {
                kernel::accumulate(op, ty, sum, &[source]);
            } else {
                kernel::copy(sum, source);
            }
            begun = true;
        };
        for member in members(srcs.members, on.ranks().len() as u32) {
            if srcs.kind == Kind::Line {
                let line = on.payload(member as usize, tally.arrivals);
                let line: &[u8] = bytemuck::cast_slice(&line);
                combine(Source::of(line).part(srcs.offset, bytes));
                continue;
            }
            match self.readable(on, tally, span(srcs, member, bytes)) {
                Readable::Here(source) => combine(source),
                Readable::Across(member, address) => {
                    let copy = self.pulled.get_or_init(|| Buffer::new(PULL_BYTES)).target(bytes);
                    kernel::pull(on.channel(), member, address, copy)?;
                    combine(copy.source());
                }
            }
        }
        Ok(())
    }

    /// Has a function of the program combine what members have staged, into memory of this rank.
    fn reduce_by<C: Carrier>(
        &self,
        function: &F,
        on: &C,
        tally: &Tally,
        (dsts, srcs, bytes): (Spread, Spread, u64),
    ) {
        if bytes == 0 || self.failed.get() != 0 {
            return;
        }
        let size = on.ranks().len() as u32;
        for member in members(dsts.members, size) {
            let sources = members(srcs.members, size).map(|member| {
                match self.readable(on, tally, span(srcs, member, bytes)) {
                    Readable::Here(source) => source,
                    Readable::Across(..) => unreachable!("it is handed what has been staged"),
                }
            });
            self.apply(on, function, self.target(on, tally, span(dsts, member, bytes)), sources);
        }
    }
}

/// How this rank gets at memory of a member.
fn way(channel: &Channel, member: usize, location: Location, bytes: u64) -> Result<Way> {
    let address = match location {
        Location::Address(address) => address,
        Location::Segment { .. } => 0,
    };
    // Nobody will ask for nothing.
    if bytes == 0 || member == channel.me() {
        return Ok(Way { address, reached: Reached::CrossMemory });
    }
    let reached = channel.reach(member, location, bytes).ok_or_else(|| {
        let reason = format!("its {bytes} bytes cannot be reached; has it deleted the segment?");
        channel.refused(member, reason)
    })?;
    Ok(Way { address, reached })
}

/// The members of a set, in their order.
fn members(set: Members, size: u32) -> impl Iterator<Item = u32> {
    let (range, without) = match set {
        Members::One(member) => (member..member + 1, None),
        Members::All => (0..size, None),
        Members::AllBut(member) => (0..size, Some(member)),
    };
    range.filter(move |member| Some(*member) != without)
}

/// A member's part of a spread.
fn span(spread: Spread, member: u32, bytes: u64) -> Span {
    let place = match spread.kind {
        Kind::Input => Place::Input(member),
        Kind::Output => Place::Output(member),
        Kind::Stage => Place::Stage(member),
        Kind::Line => unreachable!("lines are no memory to point to"),
    };
    Span { place, offset: spread.offset, bytes }
}
