//! The steps of one member while an algorithm writes them, and who takes part.

use super::blocks::Part;
use crate::steps::{Carry, Kind, Members, Place, Shape, Span, Spread, Step};

/// The members that run a part of an algorithm together, in the order that it wants.
#[derive(Clone, Debug)]
pub(super) struct Team {
    members: Vec<u32>,
    /// The place of this member.
    pub(super) me: u32,
}

impl Team {
    /// These members, one of which is `me`.
    pub(super) fn of(members: Vec<u32>, me: u32) -> Team {
        let place = members.iter().position(|member| *member == me);
        Team { members, me: place.unwrap_or_default() as u32 }
    }

    /// All, the root first, the members behind it next.
    pub(super) fn from_root(shape: &Shape) -> Team {
        let Shape { me, size, root, .. } = *shape;
        let members = (0..size).map(|i| (root + i) % size).collect();
        Team { members, me: (me + size - root) % size }
    }

    /// All, in their order.
    pub(super) fn all(shape: &Shape) -> Team {
        Team { members: (0..shape.size).collect(), me: shape.me }
    }

    pub(super) fn size(&self) -> u32 {
        self.members.len() as u32
    }

    /// The member at a place.
    pub(super) fn member(&self, place: u32) -> u32 {
        self.members[place as usize]
    }

    /// The member that many places behind this one, in a ring.
    pub(super) fn behind(&self, places: u32) -> u32 {
        self.member((self.me + places) % self.size())
    }

    /// The member that many places before this one, in a ring.
    pub(super) fn before(&self, places: u32) -> u32 {
        self.member((self.me + self.size() - places % self.size()) % self.size())
    }
}

const NOTHING: Part = Part { offset: 0, bytes: 0 };

/// Steps of one member.
#[derive(Clone, Debug)]
pub(super) struct Program {
    me: u32,
    /// Bytes of a full message.
    pub(super) piece_bytes: u64,
    steps: Vec<Step>,
}

impl Program {
    /// No steps yet; `None` where not even one element fits into a message.
    pub(super) fn new(shape: &Shape) -> Option<Program> {
        let piece_bytes = shape.message_bytes / shape.element_bytes * shape.element_bytes;
        (piece_bytes > 0).then(|| Program { me: shape.me, piece_bytes, steps: Vec::new() })
    }

    pub(super) fn into_steps(self) -> Vec<Step> {
        self.steps
    }

    /// Own input.
    pub(super) fn input(&self, part: Part) -> Span {
        span(Place::Input(self.me), part)
    }

    /// Own output.
    pub(super) fn output(&self, part: Part) -> Span {
        span(Place::Output(self.me), part)
    }

    /// The next stage as a target, the last one as a source.
    pub(super) fn stage(&self, part: Part) -> Span {
        span(Place::Stage(self.me), part)
    }

    pub(super) fn push(&mut self, step: Step) {
        self.steps.push(step);
    }

    pub(super) fn extend(&mut self, steps: impl IntoIterator<Item = Step>) {
        self.steps.extend(steps);
    }

    /// A copy, unless there is nothing to copy.
    pub(super) fn copy(&mut self, dst: Span, src: Span) {
        if dst.bytes > 0 {
            self.push(Step::Copy { dst, src });
        }
    }

    /// [`Step::Finish`], unless there is nothing: behind each message that was combined there, if
    /// these came last, since what was combined is still in the cache.
    pub(super) fn finish(&mut self, span: Span) {
        let Some(first) = self.first_received(span) else {
            if span.bytes > 0 {
                self.push(Step::Finish { span });
            }
            return;
        };
        for step in self.steps.split_off(first) {
            self.push(step);
            if let Step::ReceiveReduce { dst, .. } = step {
                self.push(Step::Finish { span: dst });
            }
        }
    }

    /// The first of the last steps, which combine messages into the parts of a span one behind the
    /// other, and send parts only before that; `None` if there are others among them.
    fn first_received(&self, span: Span) -> Option<usize> {
        let mut rest = span;
        for (at, step) in self.steps.iter().enumerate().rev() {
            match *step {
                Step::ReceiveReduce { dst, .. }
                    if dst.place == rest.place
                        && dst.bytes > 0
                        && dst.bytes <= rest.bytes
                        && dst.offset + dst.bytes == rest.offset + rest.bytes =>
                {
                    rest.bytes -= dst.bytes;
                    if rest.bytes == 0 {
                        return Some(at);
                    }
                }
                Step::Send { src, .. } if !overlap(src, rest) => {}
                _ => return None,
            }
        }
        None
    }

    /// [`Step::Reduce`], unless there is nothing.
    pub(super) fn reduce(&mut self, dsts: Spread, srcs: Spread, bytes: u64) {
        if bytes > 0 {
            self.push(Step::Reduce { dsts, srcs, bytes });
        }
    }

    /// An arrival and its await.
    pub(super) fn meet(&mut self, carry: Carry) {
        self.extend([Step::Arrive(carry), Step::AwaitAll]);
    }

    /// The messages that carry a span, whose memory is not written again before they are known to
    /// have been taken.
    pub(super) fn sends(&self, to: u32, src: Span) -> Vec<Step> {
        self.sends_as(to, src, false)
    }

    /// The messages that carry a span, whose memory is written again soon.
    pub(super) fn sends_copied(&self, to: u32, src: Span) -> Vec<Step> {
        self.sends_as(to, src, true)
    }

    fn sends_as(&self, to: u32, src: Span, copied: bool) -> Vec<Step> {
        pieces(src, self.piece_bytes).map(|src| Step::Send { to, src, copied }).collect()
    }

    /// Takes the messages that carry a span.
    pub(super) fn receives(&self, from: u32, dst: Span) -> Vec<Step> {
        pieces(dst, self.piece_bytes).map(|dst| Step::Receive { from, dst }).collect()
    }

    /// Takes and combines the messages that carry a span.
    pub(super) fn receives_reduced(
        &self,
        from: u32,
        dst: Span,
        with: Span,
        theirs_first: bool,
    ) -> Vec<Step> {
        pieces(dst, self.piece_bytes)
            .zip(pieces(with, self.piece_bytes))
            .map(|(dst, with)| Step::ReceiveReduce { from, dst, with, theirs_first })
            .collect()
    }

    /// An empty message.
    pub(super) fn signal(&self, to: u32) -> Step {
        Step::Send { to, src: self.input(NOTHING), copied: false }
    }

    /// Takes an empty message.
    pub(super) fn awaited(&self, from: u32) -> Step {
        Step::Receive { from, dst: self.output(NOTHING) }
    }

    /// Sending and receiving in turn, the first message first: no more than one message is ever
    /// sent ahead of those that the peers need before they can take it.
    pub(super) fn exchange(&mut self, sends: Vec<Step>, receives: Vec<Step>) {
        let mut receives = receives.into_iter();
        for send in sends {
            self.push(send);
            self.steps.extend(receives.next());
        }
        self.steps.extend(receives);
    }
}

/// A part of a place.
pub(super) fn span(place: Place, Part { offset, bytes }: Part) -> Span {
    Span { place, offset, bytes }
}

/// This member's memory for partial results.
pub(super) fn scratch(part: Part) -> Span {
    span(Place::Scratch, part)
}

fn overlap(one: Span, other: Span) -> bool {
    one.place == other.place
        && one.offset < other.offset + other.bytes
        && other.offset < one.offset + one.bytes
}

/// Spans of at most `piece_bytes`, in order.
pub(super) fn pieces(whole: Span, piece_bytes: u64) -> impl Iterator<Item = Span> {
    let part = Part { offset: whole.offset, bytes: whole.bytes };
    part.pieces(piece_bytes).map(move |part| span(whole.place, part))
}

/// The same bytes of all members.
pub(super) fn all(kind: Kind, offset: u64) -> Spread {
    Spread { members: Members::All, kind, offset }
}

/// Bytes of one member.
pub(super) fn one(member: u32, kind: Kind, offset: u64) -> Spread {
    Spread { members: Members::One(member), kind, offset }
}
