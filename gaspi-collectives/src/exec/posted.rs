//! Posted receives: a task says ahead where data goes, so that it is received in place.

use super::counters::Counters;
use super::substrate::Substrate;
use super::task::Task;
use crate::kernel::{self, Source, Target};
use crate::plan::posted_bytes;
use crate::steps::{Place, Span, Step};
use crate::user_reduction::Function;

/// How many steps a task looks ahead.
const AHEAD: usize = 24;

/// The own memory that a step of messages uses; `None` for other steps.
fn used(step: &Step) -> Option<[Option<Span>; 3]> {
    Some(match *step {
        Step::Copy { dst, src } => [Some(dst), Some(src), None],
        Step::Combine { dst, left, right } => [Some(dst), Some(left), Some(right)],
        Step::Send { src, .. } => [Some(src), None, None],
        Step::Receive { dst, .. } => [Some(dst), None, None],
        Step::ReceiveReduce { dst, with, .. } => [Some(dst), Some(with), None],
        Step::Finish { span } => [Some(span), None, None],
        Step::Arrive(_) | Step::AwaitAll | Step::Reduce { .. } => return None,
    })
}

/// The member whose message a step takes.
fn sender(step: &Step) -> Option<u32> {
    match *step {
        Step::Receive { from, .. } | Step::ReceiveReduce { from, .. } => Some(from),
        _ => None,
    }
}

/// Whether a step combines a message in the output. Where steps prove agreement, its sender has
/// heard of a part of the members only; this member must have heard of the others before any of the
/// message lies there.
fn puts_sum_in_output(step: &Step) -> bool {
    matches!(step, Step::ReceiveReduce { dst: Span { place: Place::Output(_), .. }, .. })
}

impl<F: Function> Task<F> {
    /// Posts receives for the next steps, as far as no step before uses their memory.
    pub(super) fn look_ahead<C: Substrate>(&mut self, on: &C, counters: &Counters) {
        if !self.plan.posts_receives || self.position.looked_at == Some(self.position.cursor) {
            return;
        }
        self.position.looked_at = Some(self.position.cursor);
        let (cursor, end) =
            (self.position.cursor, self.plan.steps.len().min(self.position.cursor + AHEAD));
        self.position.posted = self.position.posted.max(cursor);
        while self.position.posted < end && self.post(on, counters, cursor) {
            self.position.posted += 1;
        }
    }

    /// Posts the receive of the next step, if that pays; false if steps from `cursor` on have to be
    /// done first.
    fn post<C: Substrate>(&self, on: &C, counters: &Counters, cursor: usize) -> bool {
        let (before, step) =
            (&self.plan.steps[cursor..self.position.posted], self.plan.steps[self.position.posted]);
        let (from, dst) = match step {
            Step::Receive { from, dst } | Step::ReceiveReduce { from, dst, .. } => (from, dst),
            _ => return used(&step).is_some(),
        };
        let (channel, member) = (on.channel(), from as usize);
        if posted_bytes(&step) == 0 || !channel.may_post_receive(member) {
            return true;
        }
        let mut senders = before.iter().filter_map(sender);
        if self.plan.agrees_by_steps && puts_sum_in_output(&step) && senders.any(|s| s != from) {
            return false;
        }
        let messages = before.iter().filter(|step| sender(step) == Some(from)).count() as u64;
        if messages >= u64::from(channel.spec().slots) {
            return false;
        }
        let range = |span: Span| {
            let start = self.source(on, counters, span).start() as usize;
            start..start + span.bytes as usize
        };
        let to = range(dst);
        let overlaps = |span: Span| {
            let other = range(span);
            other.start < to.end && to.start < other.end
        };
        let is_apart = self.is_apart(on, counters, &step);
        if is_apart && dst.bytes > self.work.incoming.len() {
            return true;
        }
        let is_used = match is_apart {
            // There is memory for one message.
            true => before.iter().any(|step| self.is_apart(on, counters, step)),
            false => before.iter().filter_map(used).flatten().flatten().any(overlaps),
        };
        if is_used {
            return false;
        }
        let target = self.posted_target(on, counters, &step, dst);
        let head = [self.sequence, self.signature, dst.bytes];
        let index = counters.taken[member] + messages;
        kernel::post_receive(channel, (member, index), head, target);
        true
    }

    /// Whether a message is not received where the step puts its sum, since the other operand lies
    /// there.
    fn is_apart<C: Substrate>(&self, on: &C, counters: &Counters, step: &Step) -> bool {
        let Step::ReceiveReduce { dst, with, .. } = *step else { return false };
        let (sum, own) = (self.source(on, counters, dst), self.source(on, counters, with));
        sum.start() == own.start()
    }

    /// Where the message of a step is received, whose place is `dst`.
    fn posted_target<'a, C: Substrate>(
        &'a self,
        on: &'a C,
        counters: &'a Counters,
        step: &Step,
        dst: Span,
    ) -> Target<'a> {
        match self.is_apart(on, counters, step) {
            true => self.work.incoming.target(dst.bytes),
            false => self.target(on, counters, dst),
        }
    }

    /// The data of the message of a step that combines it: what was received where it was posted,
    /// with what came before in its slot, or all of it in the slot.
    pub(super) fn take_posted_sum<'a, C: Substrate>(
        &'a self,
        on: &'a C,
        counters: &'a Counters,
        (from, index): (usize, u64),
        in_slot: Source<'a>,
    ) -> Source<'a> {
        if !self.plan.posts_receives {
            return in_slot;
        }
        let Some(before) = on.channel().complete_receive(from, index) else { return in_slot };
        let step = &self.plan.steps[self.position.cursor];
        let Step::ReceiveReduce { dst, .. } = *step else { return in_slot };
        let posted = self.posted_target(on, counters, step, dst);
        kernel::copy(posted.part(0, before), in_slot.part(0, before));
        self.performed.copied(before as usize);
        posted.source()
    }
}
