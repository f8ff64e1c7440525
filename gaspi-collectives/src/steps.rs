//! The steps of a collective on one rank, over memory that is named by its role.
//!
//! An algorithm is a pure function from [`Shape`] to the steps of one member. It knows no
//! transport, no pointer, no clock; the executor runs the steps, [`crate::proof`] proves them.
//! Steps wait but never choose, so a schedule that runs to its end once does so in every order of
//! the ranks.
//!
//! Two families of steps exist. **Messages** go between any two members: a channel has a ring of
//! slots for each ordered pair of members, messages of a pair arrive in the order in which they
//! were sent, and a sender waits while the ring is full. **Lines** exist where all members are on
//! one node: a line says that its member has arrived, and then all members may access each other's
//! memory. A group has lines and stages, also for members of several nodes, and between two
//! arrivals messages (chunks), any number of which may be under way. It has no access to buffers.

use gaspi_core::sync::arrival_slot::PAYLOAD_WORDS;

/// The shape of an operation. All but `me`, `sends` and `receives` are the same on every member.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Shape {
    /// Index of this rank among the members.
    pub me: u32,
    /// Members.
    pub size: u32,
    /// Elements, in the sense of the operation: each contributes `count` (all-reduce, reduce,
    /// gather, all-gather), the root has `count` (broadcast), or each gets `count` from each
    /// (scatter, reduce-scatter, all-to-all: blocks of `count`).
    pub count: u64,
    /// Elements by member, where blocks differ (all-gather, gather, scatter, reduce-scatter); empty
    /// where all have `count`. Blocks lie one behind the other in the order of the members.
    pub counts: Vec<u64>,
    /// All-to-all with blocks that differ: elements from this member to each; empty where all have
    /// `count`. Blocks lie one behind the other in the order of the members.
    pub sends: Vec<u64>,
    /// With `sends`: elements from each to this member.
    pub receives: Vec<u64>,
    /// Bytes of one element.
    pub element_bytes: u64,
    /// The member that has or gets everything, for rooted operations. For an all-reduce the root of
    /// its tree, by an algorithm that [has any](crate::algorithms::Algorithm::has_any_root), else
    /// 0.
    pub root: u32,
    /// The node of each member, numbered from 0 by first member; all 0 where all share memory.
    pub nodes: Vec<u32>,
    /// Largest message, in bytes; a multiple of every element size.
    pub message_bytes: u64,
    /// Messages that fit between two members until the receiver has taken the first.
    pub slots: u32,
    /// Bytes of staging that a member publishes with an arrival.
    pub stage_bytes: u64,
    /// Whether members share cores: an arrival within a node then takes context switches, and each
    /// message between nodes delays another member.
    pub shares_cores: bool,
    /// Whether all members are on one machine: messages between nodes then cost its cores.
    pub one_machine: bool,
    /// Whether the members know before the first step that all are in the same operation, or the
    /// output is not the caller's: partial results may lie in it then.
    pub agreed: bool,
}

impl Shape {
    /// Bytes of `count` elements.
    pub fn bytes(&self) -> u64 {
        self.count * self.element_bytes
    }

    /// Whether all members share memory: lines exist.
    pub fn is_one_node(&self) -> bool {
        self.nodes.iter().all(|node| *node == 0)
    }
}

/// Memory, by its role.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Place {
    /// The contribution of a member.
    Input(u32),
    /// The result of a member; in place it is the same memory as its input (of all-gather and
    /// gather: the input is the member's own block of the output; of scatter and reduce-scatter:
    /// the output is the member's own block of the input).
    Output(u32),
    /// Memory of this member for partial results, which no other member can reach. As long as the
    /// algorithm says (`scratch_bytes`). Its content is lost between calls.
    Scratch,
    /// As a target: this member's stage of its next arrival. As a source: a member's stage of the
    /// arrival awaited last, readable until the reader's next arrival. Up to `stage_bytes`; a
    /// member writes only its own. Only where lines exist.
    Stage(u32),
}

/// A piece of memory, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Span {
    /// Which memory.
    pub place: Place,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Some members.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Members {
    /// One.
    One(u32),
    /// All, in their order.
    All,
    /// All but one, in their order.
    AllBut(u32),
}

/// The kinds of memory that a step uses at several members at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Kind {
    /// [`Place::Input`].
    Input,
    /// [`Place::Output`].
    Output,
    /// [`Place::Stage`].
    Stage,
    /// The payload of the line of the arrival awaited last.
    Line,
}

/// The same bytes of several members' memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Spread {
    /// The members.
    pub members: Members,
    /// Which memory.
    pub kind: Kind,
    /// First byte.
    pub offset: u64,
}

/// The content of an arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Carry {
    /// Nothing but staging written since the arrival before.
    Nothing,
    /// At most [`LINE_BYTES`] of own memory.
    Data(Span),
}

/// Bytes of payload in a line.
pub const LINE_BYTES: u64 = (PAYLOAD_WORDS * size_of::<u64>()) as u64;

/// Most sources that are combined in one pass, between whose operands nothing is rounded. More are
/// combined one behind the other.
pub const PASS_SOURCES: usize = 64;

/// One step of one member.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Step {
    /// Copies between own memory (input, output, scratch, own stage), or, after an await of all,
    /// from any member's input, output or published stage, or to any member's output. Both spans
    /// have the same length. Nothing where they are the same memory (in place).
    Copy {
        /// Where to.
        dst: Span,
        /// Where from.
        src: Span,
    },
    /// `dst = left op right`, own memory, or of the operands what any member's stage holds, after
    /// an await of all; `dst` may be the same span as either. Equally long.
    Combine {
        /// Where to.
        dst: Span,
        /// The operand of the lower members.
        left: Span,
        /// The operand of the higher members.
        right: Span,
    },
    /// Sends own memory (input, output, scratch) to another member: at most `message_bytes`. Unless
    /// `copied`, the span is not written again before the step that received the message is known
    /// to have been done; the executor ends the operation only when the message has left. Waits
    /// while the ring is full.
    Send {
        /// The receiver.
        to: u32,
        /// The data.
        src: Span,
        /// Whether the span may be written by the very next step.
        copied: bool,
    },
    /// Takes the next message of a member, whose length must be that of `dst` (own memory). Waits
    /// for it.
    Receive {
        /// The sender.
        from: u32,
        /// Where to.
        dst: Span,
    },
    /// Takes the next message of a member and combines it: `dst = with op message`, or, where
    /// `theirs_first`, `dst = message op with`. `dst` and `with` are own memory, may be the same,
    /// and have the message's length.
    ReceiveReduce {
        /// The sender.
        from: u32,
        /// Where to.
        dst: Span,
        /// The other operand.
        with: Span,
        /// Whether the message is the left operand.
        theirs_first: bool,
    },
    /// Publishes that this member has arrived, with its stage. Only where lines exist. Each arrival
    /// is awaited before the next one.
    Arrive(Carry),
    /// Waits until all members have arrived as often as this one.
    AwaitAll,
    /// Combines the same bytes of several members, in the order of the members, into the same bytes
    /// of several members: `bytes` at `dsts` = `bytes` at each of `srcs`, combined in one pass, so
    /// that halves are rounded once (of more than [`PASS_SOURCES`], behind each one). With one
    /// source it is a copy. Only after an await; a target's memory may be the same as the same
    /// member's source (in place). Where the sources are all members, the result is finished, see
    /// [`Step::Finish`].
    Reduce {
        /// Where to.
        dsts: Spread,
        /// From where.
        srcs: Spread,
        /// Bytes.
        bytes: u64,
    },
    /// Average: divides own memory by the number of members. No-op for other operations. Once for
    /// each element, when all contributions are in it.
    Finish {
        /// The elements, in own memory.
        span: Span,
    },
}

/// Bytes of [`Place::Scratch`] that steps need.
pub fn scratch_bytes(steps: &[Step]) -> u64 {
    let end = |span: &Span| if span.place == Place::Scratch { span.offset + span.bytes } else { 0 };
    let need = |step: &Step| match step {
        Step::Copy { dst, src } => end(dst).max(end(src)),
        Step::Combine { dst, left, right } => end(dst).max(end(left)).max(end(right)),
        Step::Send { src, .. } => end(src),
        Step::Receive { dst, .. } => end(dst),
        Step::ReceiveReduce { dst, with, .. } => end(dst).max(end(with)),
        Step::Arrive(Carry::Data(span)) | Step::Finish { span } => end(span),
        Step::Arrive(Carry::Nothing) | Step::AwaitAll | Step::Reduce { .. } => 0,
    };
    steps.iter().map(need).max().unwrap_or(0)
}
