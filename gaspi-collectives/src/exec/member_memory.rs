//! Steps on memory of other members: mapped, or across processes.

use std::mem;
use std::sync::Arc;

use gaspi_core::sync::arrival_slot::PAYLOAD_WORDS as WORDS;
use gaspi_core::{Channel, Result};

use super::buffer_location::BufferLocation;
use super::buffers::Arithmetic;
use super::counters::Counters;
use super::peer_access::PeerAccess;
use super::single_phase::{FEW, MANY};
use super::substrate::Substrate;
use super::task::{Stepped, Task};
use crate::datatype::{DataType, Operation};
use crate::kernel::{self, Buffer, Source, Target};
use crate::plan::FallbackPlan;
use crate::steps::{Kind, Members, Place, Span, Spread};
use crate::user_reduction::Function;

/// Bytes that are copied by one system call and then combined: they fit a core's second-level
/// cache.
const PULL_BYTES: u64 = 128 << 10;
/// A cache line.
const LINE: u64 = 64;
/// The least of it where several copies lie beside each other.
const PULL_BYTES_MIN: u64 = 16 << 10;

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

/// How sources are combined.
#[derive(Clone, Copy)]
struct Combining {
    op: Operation,
    ty: DataType,
    /// Divided by the number of members, in the same pass.
    averaged: bool,
}

impl<F: Function> Task<F> {
    /// Opens the memory of all members, whose locations are in the lines of the first arrival. If
    /// some memory is not mapped, all members know it and switch to the fallback plan; what can be
    /// mapped is from the next operation on.
    pub(super) fn find_peers(&mut self, channel: &Channel, counters: &Counters) -> Result<Stepped> {
        let members = 0..channel.ranks().len();
        let line = |member| channel.payload(member, counters.arrivals);
        if self.accesses.open_again(line) {
            return Ok(Stepped::Done);
        }
        let told = |member| BufferLocation::of_words(line(member));
        let all_mapped = members.clone().all(|member| told(member).are_mapped());
        for member in members.clone().filter(|_| !all_mapped) {
            let BufferLocation { input, output } = told(member);
            channel.map_unmapped(member, input);
            channel.map_unmapped(member, output);
        }
        let across = channel.all_reachable();
        let takes_fallback = |member| BufferLocation::takes_fallback(line(member));
        if let Some(FallbackPlan { plan, .. }) = &self.plan.fallback
            && !all_mapped
            && (!across || members.clone().all(takes_fallback))
        {
            let plan = Arc::clone(plan);
            if plan.scratch_bytes > self.work.scratch.len() {
                self.work.scratch = Buffer::new(plan.scratch_bytes);
            }
            self.replaced = Some(mem::replace(&mut self.plan, plan));
            return Ok(Stepped::Again);
        }
        for member in members {
            let BufferLocation { input, output } = told(member);
            let [input_bytes, output_bytes] = self.plan.extents[member];
            let found = PeerAccess::open(channel, member, input, input_bytes).and_then(|input| {
                Ok([input, PeerAccess::open(channel, member, output, output_bytes)?])
            });
            match found {
                Ok(found) => self.accesses.add(found, line(member)),
                Err(error) => {
                    // The step may run again.
                    self.accesses.forget();
                    return Err(error);
                }
            }
        }
        Ok(Stepped::Done)
    }

    /// Memory of any member of this node, to read.
    fn readable<'a, C: Substrate>(
        &'a self,
        on: &'a C,
        counters: &Counters,
        span: Span,
    ) -> Readable<'a> {
        let (member, buffer) = match span.place {
            Place::Input(member) => (member as usize, 0),
            Place::Output(member) => (member as usize, 1),
            Place::Stage(member) => {
                let stage = Source::of_peer(on.stage(member as usize, counters.arrivals));
                return Readable::Here(stage.part(span.offset, span.bytes));
            }
            Place::Scratch => return Readable::Here(self.source(on, counters, span)),
        };
        if member == on.me() {
            return Readable::Here(self.source(on, counters, span));
        }
        let access = self.accesses.access(member, buffer);
        match access.slice() {
            Some(slice) => Readable::Here(Source::of_peer(slice).part(span.offset, span.bytes)),
            None => Readable::Across(member, access.address(span.offset)),
        }
    }

    /// Own memory, or what a member has published.
    pub(super) fn operand<'a, C: Substrate>(
        &'a self,
        on: &'a C,
        counters: &Counters,
        span: Span,
    ) -> Source<'a> {
        match self.readable(on, counters, span) {
            Readable::Here(source) => source,
            Readable::Across(member, _) => {
                unreachable!("{span:?} of member {member} is no operand")
            }
        }
    }

    /// Memory of any member of this node, to write.
    fn writable<'a, C: Substrate>(
        &'a self,
        on: &'a C,
        counters: &Counters,
        span: Span,
    ) -> Writable<'a> {
        let Place::Output(member) = span.place else {
            return Writable::Here(self.target(on, counters, span));
        };
        let member = member as usize;
        if member == on.me() {
            return Writable::Here(self.target(on, counters, span));
        }
        let access = self.accesses.access(member, 1);
        match access.slice() {
            Some(slice) => Writable::Here(Target::of_peer(slice).part(span.offset, span.bytes)),
            None => Writable::Across(member, access.address(span.offset)),
        }
    }

    pub(super) fn copy<C: Substrate>(
        &self,
        on: &C,
        counters: &Counters,
        dst: Span,
        src: Span,
    ) -> Result<()> {
        let (from, to) = (self.readable(on, counters, src), self.writable(on, counters, dst));
        // In place there is nothing to copy.
        if let (Readable::Here(from), Writable::Here(to)) = (&from, &to)
            && from.is_at(*to)
        {
            return Ok(());
        }
        self.performed.copied(dst.bytes as usize);
        match (from, to) {
            (Readable::Here(from), Writable::Here(to)) => {
                kernel::copy(to, from);
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

    /// Combines memory of several members into memory of several members.
    pub(super) fn reduce<C: Substrate>(
        &self,
        on: &C,
        counters: &Counters,
        dsts: Spread,
        srcs: Spread,
        bytes: u64,
    ) -> Result<()> {
        let (op, ty) = match &self.arithmetic {
            Arithmetic::BuiltIn(op, ty) => (*op, *ty),
            Arithmetic::User(function) => {
                self.reduce_by(function, on, counters, (dsts, srcs, bytes));
                return Ok(());
            }
        };
        let divided = op == Operation::Average && srcs.members == Members::All;
        let size = on.ranks().len();
        let whole = (dsts, srcs, bytes);
        // Floats are divided as they are summed up. Other results for other members are divided
        // before they are copied. An own result is rounded as often as in a single phase.
        let averaged = divided && matches!(ty, DataType::F32 | DataType::F64);
        let own = dsts.members == Members::One(on.me() as u32);
        let combining = Combining { op, ty, averaged };
        let at_once = if divided && !averaged && !own || size > MANY {
            false
        } else if size <= FEW {
            self.reduce_at_once::<FEW, C>(on, counters, whole, combining)
        } else {
            self.reduce_at_once::<MANY, C>(on, counters, whole, combining)
        };
        if at_once {
            if divided && !averaged {
                let to = self.target(on, counters, span(dsts, on.me() as u32, bytes));
                kernel::divide(ty, to, size as u32);
            }
            return Ok(());
        }
        // What is rounded whenever it is stored is combined in one pass, as it is where all memory
        // is mapped.
        let in_one_pass = ty.is_half() && size <= MANY;
        let piece_bytes = match in_one_pass {
            true => (PULL_BYTES / size as u64 / LINE * LINE).max(PULL_BYTES_MIN),
            false => PULL_BYTES,
        };
        let mut done = 0;
        while done < bytes {
            let part = piece_bytes.min(bytes - done);
            let at = |spread: Spread| Spread { offset: spread.offset + done, ..spread };
            let sum = self.work.sums.get_or_init(|| Buffer::new(PULL_BYTES)).target(part);
            if in_one_pass {
                self.gather_in_one_pass(on, counters, sum, at(srcs), op, ty)?;
            } else {
                self.gather(on, counters, sum, at(srcs), op, ty)?;
            }
            if divided {
                kernel::divide(ty, sum, on.ranks().len() as u32);
            }
            for member in members(dsts.members, on.ranks().len() as u32) {
                self.performed.copied(part as usize);
                match self.writable(on, counters, span(at(dsts), member, part)) {
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
    fn reduce_at_once<const N: usize, C: Substrate>(
        &self,
        on: &C,
        counters: &Counters,
        (dsts, srcs, bytes): (Spread, Spread, u64),
        Combining { op, ty, averaged }: Combining,
    ) -> bool {
        let size = on.ranks().len();
        let mut lines = [[0; WORDS]; N];
        if srcs.kind == Kind::Line {
            for (member, line) in lines.iter_mut().enumerate().take(size) {
                *line = on.payload(member, counters.arrivals);
            }
        }
        let nothing: Source<'_> = Source::of(&[]);
        let (mut from, mut from_len) = ([nothing; N], 0);
        for member in members(srcs.members, size as u32) {
            from[from_len] = if srcs.kind == Kind::Line {
                let line: &[u8] = bytemuck::cast_slice(&lines[member as usize]);
                Source::of(line).part(srcs.offset, bytes)
            } else {
                match self.readable(on, counters, span(srcs, member, bytes)) {
                    Readable::Here(source) => source,
                    Readable::Across(..) => return false,
                }
            };
            from_len += 1;
        }
        let (mut to, mut to_len) = ([Target::of(&mut []); N], 0);
        for member in members(dsts.members, size as u32) {
            to[to_len] = match self.writable(on, counters, span(dsts, member, bytes)) {
                Writable::Here(target) => target,
                Writable::Across(..) => return false,
            };
            to_len += 1;
        }
        let (to, from) = (&to[..to_len], &from[..from_len]);
        if averaged {
            return kernel::average(ty, to, from, size as u32);
        }
        kernel::fold(op, ty, to, from);
        true
    }

    /// Combines the sources into `sum`, in their order; memory that is not mapped is copied first.
    fn gather<C: Substrate>(
        &self,
        on: &C,
        counters: &Counters,
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
                let line = on.payload(member as usize, counters.arrivals);
                let line: &[u8] = bytemuck::cast_slice(&line);
                combine(Source::of(line).part(srcs.offset, bytes));
                continue;
            }
            match self.readable(on, counters, span(srcs, member, bytes)) {
                Readable::Here(source) => combine(source),
                Readable::Across(member, address) => {
                    let copy =
                        self.work.pulled.get_or_init(|| Buffer::new(PULL_BYTES)).target(bytes);
                    kernel::pull(on.channel(), member, address, copy)?;
                    self.performed.copied(bytes as usize);
                    combine(copy.source());
                }
            }
        }
        Ok(())
    }

    /// The same in one pass, for at most [`MANY`] members: what is not mapped is copied for all of
    /// them first.
    fn gather_in_one_pass<C: Substrate>(
        &self,
        on: &C,
        counters: &Counters,
        sum: Target<'_>,
        srcs: Spread,
        op: Operation,
        ty: DataType,
    ) -> Result<()> {
        let (bytes, size) = (sum.len() as u64, on.ranks().len());
        let room = || Buffer::new(size as u64 * PULL_BYTES_MIN.max(PULL_BYTES / size as u64));
        let pulled = self.work.pulled.get_or_init(room);
        let copies = pulled.target(pulled.len());
        let mut sources = [Source::of(&[]); MANY];
        let mut count = 0;
        for member in members(srcs.members, size as u32) {
            sources[count] = match self.readable(on, counters, span(srcs, member, bytes)) {
                Readable::Here(source) => source,
                Readable::Across(member, address) => {
                    let copy = copies.part(count as u64 * bytes, bytes);
                    kernel::pull(on.channel(), member, address, copy)?;
                    self.performed.copied(bytes as usize);
                    copy.source()
                }
            };
            count += 1;
        }
        kernel::fold(op, ty, &[sum], &sources[..count]);
        Ok(())
    }

    /// Combines what members have staged, by a function of the program, into memory of this rank.
    fn reduce_by<C: Substrate>(
        &self,
        function: &F,
        on: &C,
        counters: &Counters,
        (dsts, srcs, bytes): (Spread, Spread, u64),
    ) {
        if bytes == 0 || self.failed.get() != 0 {
            return;
        }
        let size = on.ranks().len() as u32;
        for member in members(dsts.members, size) {
            let sources = members(srcs.members, size).map(|member| {
                match self.readable(on, counters, span(srcs, member, bytes)) {
                    Readable::Here(source) => source,
                    Readable::Across(..) => unreachable!("it is handed what has been staged"),
                }
            });
            self.apply(on, function, self.target(on, counters, span(dsts, member, bytes)), sources);
        }
    }
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
