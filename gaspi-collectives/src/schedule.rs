//! What an algorithm is: a pure function from (member, size, count, element size, staging size) to
//! steps over logical memory. It knows no transport, no pointer and no clock; the executor runs it,
//! the checker proves it.
//!
//! Steps are made one by one, from their number, and take no memory: the number is all that has
//! to be remembered when a call times out. Steps wait but never choose, so a schedule that runs to
//! its end once does so in every order of the ranks.

use crate::allreduce_line::Line;
use crate::allreduce_sliced::Sliced;
use crate::allreduce_staged::Staged;

/// Bytes of payload that ride in the line by which a rank says that it has arrived.
pub const LINE_BYTES: u64 = gaspi_core::INLINE_MAX as u64;

/// What a schedule is made for. All but `me` are the same on every member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Index of this rank among the members of the group.
    pub me: u32,
    /// Members of the group.
    pub size: u32,
    /// Elements that each member contributes.
    pub count: u64,
    /// Bytes of one element.
    pub element_bytes: u64,
    /// Bytes of one member's staging for one arrival.
    pub stage_bytes: u64,
}

impl Shape {
    /// Bytes that each member contributes.
    pub fn bytes(&self) -> u64 {
        self.count * self.element_bytes
    }
}

/// Memory, by its role.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// What the member contributes.
    Input(u32),
    /// Where the member gets the result; may be the same memory as its input.
    Output(u32),
    /// Staging of the member that all others read. There are two, used in turn: arrival number `a`
    /// of a call publishes parity `a % 2`. What an arrival published may be read from its await
    /// until the reader's next arrival.
    Scratch {
        /// Whose.
        member: u32,
        /// Which of the two.
        parity: u32,
    },
}

/// A piece of memory, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// Which memory.
    pub place: Place,
    /// First byte.
    pub offset: u64,
    /// Bytes; 0 makes the step empty.
    pub bytes: u64,
}

/// Where the sources of a reduction lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SourcePlace {
    /// The staging of that parity, from that byte on.
    Scratch {
        /// Which of the two.
        parity: u32,
        /// First byte.
        offset: u64,
    },
    /// The payload of the line of the arrival awaited last.
    Line,
}

/// The same place of several members, combined in the order of the members.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sources {
    /// The first member.
    pub first: u32,
    /// One behind the last member.
    pub end: u32,
    /// Where.
    pub place: SourcePlace,
}

/// What an arrival carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payload {
    /// Nothing.
    Nothing,
    /// At most [`LINE_BYTES`] of this memory.
    Data(Span),
    /// Whether a reduction has failed on this rank.
    Status,
}

/// One step of one rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Copies; both spans have the same length.
    Copy {
        /// Where to.
        dst: Span,
        /// Where from.
        src: Span,
    },
    /// Combines the sources, each of the length of `dst`.
    Reduce {
        /// Where to.
        dst: Span,
        /// What is combined.
        srcs: Sources,
    },
    /// Publishes what was written to the own staging since the arrival before, and a line.
    Arrive(Payload),
    /// Waits until all members have arrived as often as this rank has.
    Await,
    /// Ends the call with an error if the awaited lines say that a reduction failed somewhere.
    Check,
    /// The end.
    Done,
}

/// A schedule of one rank.
pub trait Schedule {
    /// Step `index`, from 0 on; [`Step::Done`] at the end and everywhere behind it.
    fn step(&self, index: u64) -> Step;

    /// How many of the steps before `index` are arrivals.
    fn arrivals_before(&self, index: u64) -> u64;
}

/// The all-reduce algorithms there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allreduce {
    /// In the lines of one arrival.
    Line(Line),
    /// Through staging, each rank combining everything.
    Staged(Staged),
    /// Through staging, each rank combining its slice.
    Sliced(Sliced),
}

/// Where slicing begins to pay: a rank saves reading its bytes (n - 3) times, and has one more
/// arrival to wait for. With two or three members there is nothing to save.
const SLICED_SAVES_BYTES_MIN: u64 = 128 << 10;

impl Allreduce {
    /// The algorithm for a shape; uses only what all members know.
    pub fn choose(shape: Shape) -> Allreduce {
        let saved = shape.bytes().saturating_mul(u64::from(shape.size).saturating_sub(3));
        let slices = saved > SLICED_SAVES_BYTES_MIN;
        match Sliced::new(shape) {
            Some(sliced) if slices => Allreduce::Sliced(sliced),
            _ if shape.bytes() <= LINE_BYTES => Allreduce::Line(Line::new(shape)),
            _ => Allreduce::Staged(Staged::new(shape)),
        }
    }
}

impl Schedule for Allreduce {
    fn step(&self, index: u64) -> Step {
        match self {
            Allreduce::Line(line) => line.step(index),
            Allreduce::Staged(staged) => staged.step(index),
            Allreduce::Sliced(sliced) => sliced.step(index),
        }
    }

    fn arrivals_before(&self, index: u64) -> u64 {
        match self {
            Allreduce::Line(line) => line.arrivals_before(index),
            Allreduce::Staged(staged) => staged.arrivals_before(index),
            Allreduce::Sliced(sliced) => sliced.arrivals_before(index),
        }
    }
}
