//! Steps by leaders: what this rank sends and publishes.

use super::{Due, Leaders, LineWidth, Own};
use crate::control::handlers::Onward;
use crate::ids::{GroupId, Rank};
use crate::runtime::Inner;
use crate::sync::Ordering;
use crate::sync::arrival_slot::Poll;
use crate::transport::shm::area::{liveness, wake_kind};
use crate::wire::message::{Arrival, LastStep};
use std::sync::Arc;

impl Inner {
    /// This rank arrives at a step of a group that has leaders.
    pub(in crate::control) fn arrive_by_leaders(&self, arrival: Arrival, width: LineWidth) {
        let (group, step) = (arrival.group, arrival.step);
        if self.control.steps.of(group).arrive(arrival, width) {
            self.tell_all_of_arrival(group, step);
        }
    }

    /// All of the node that this rank leads have arrived at a step of this signature, with lines of
    /// so many words.
    pub(in crate::control) fn node_arrived(
        &self,
        group: GroupId,
        (step, signature): (u64, u64),
        width: usize,
        lines: &[u64],
    ) {
        self.control.steps.of(group).node_arrived((step, signature), width, lines);
        self.advance_step(group, step);
    }

    /// Does what is due for a step of a group.
    pub(crate) fn advance_step(&self, group: GroupId, step: u64) {
        let publish = |leaders: &Leaders, lines: &[u64]| self.publish(group, step, leaders, lines);
        let Due { outbound, tell_all } = self.control.steps.of(group).advance(step, publish);
        for outbound in outbound {
            self.send_lines(outbound.to, group, outbound.message);
        }
        if tell_all {
            self.tell_all_of_arrival(group, step);
        }
    }

    /// Lets the members of this node know that all members of the group have arrived.
    fn publish(&self, group: GroupId, step: u64, leaders: &Leaders, lines: &[u64]) {
        let area = &self.ranks.area;
        let bytes = size_of_val(lines);
        if bytes > 0 {
            let to = area.lines(self.ranks.me, group.index(), (step % 2) as usize);
            // SAFETY: this rank's own memory, which it alone writes, has room for all lines, as
            // `Leaders::may_tell` has checked; members read them once the step is published.
            unsafe { to.copy_from_nonoverlapping(lines.as_ptr().cast(), bytes) };
        }
        area.publish_exchanged(group.index(), step);
        for rank in leaders.locals() {
            area.wake_for(*rank, wake_kind::ARRIVAL);
        }
    }

    /// Tells all members of this rank's arrival at a step that goes by leaders.
    #[cold]
    pub(crate) fn tell_all_of_arrival(&self, group: GroupId, step: u64) {
        if let Some((leaders, arrival)) = self.control.steps.of(group).tell_all(step) {
            let to = self.neighbours_of(&leaders);
            self.send_onward(to, None, (self.ranks.me, arrival));
        }
    }

    /// Passes on the arrival of a member that was heard of for the first time.
    pub(crate) fn pass_on(&self, Onward { from, of, arrival }: Onward) {
        let steps = self.control.steps.of(arrival.group);
        if let Some(leaders) = steps.leaders_at(arrival.step) {
            let to = self.neighbours_of(&leaders);
            self.send_onward(to, Some(from), (of, arrival));
        }
    }

    /// `rank` leaves. If others may count on it at a step, this rank tells all of its own arrival
    /// there, and what it has passed on goes another way.
    pub(crate) fn pass_around(&self, rank: Rank) {
        for LastStep { group, step, finished, .. } in self.last_steps_of(rank) {
            let leaders = self.control.steps.of(group).leaders_at(step);
            let of_it = |leaders: &Arc<Leaders>| !finished && leaders.ranks.contains(&rank);
            if let Some(leaders) = leaders.filter(of_it) {
                let to = self.neighbours_of(&leaders);
                self.pass_again(group, step, &to);
                if !self.control.steps.of(group).has_told_all(step) {
                    self.tell_all_of_arrival(group, step);
                }
            }
        }
    }

    /// Connects with those to whom this rank passes on arrivals at a step of a group: one that
    /// lacks descriptors later can say so.
    pub(crate) fn connect_neighbours(&self, group: GroupId, step: u64) {
        let leaders = self.control.steps.of(group).leaders_at(step);
        let neighbours = leaders.map(|leaders| self.neighbours_of(&leaders));
        for rank in neighbours.iter().flat_map(|neighbours| neighbours.iter()) {
            // Who cannot be reached is connected to when there is something to tell.
            let _ = self.endpoint(*rank).connect();
        }
    }

    /// To whom this rank passes on arrivals.
    fn neighbours_of(&self, leaders: &Leaders) -> Arc<[Rank]> {
        let ranks = &self.ranks;
        leaders.neighbours(ranks.known_ends(), |rank| {
            let has_ended = matches!(ranks.liveness(rank), liveness::DEAD | liveness::LEFT);
            // Also where this one leaves, and one that others are ahead of while it joins.
            rank == ranks.me || !has_ended && !ranks.is_leaving(rank)
        })
    }

    /// This rank leaves: sends what others may need of its last steps. Where it is in its groups
    /// goes ahead of the goodbye on each connection; without sockets it is said here.
    pub(crate) fn tell_last_steps(&self) {
        for steps in &self.control.steps.0 {
            for (own, leaders) in steps.last_own() {
                let (group, step) = (own.arrival.group, own.arrival.step);
                let told_all = steps.has_told_all(step);
                if !told_all && !self.has_exchanged(&leaders, group, step) {
                    self.tell_all_of_arrival(group, step);
                }
                if told_all {
                    self.pass_all_on(&own, &leaders);
                }
            }
        }
        if self.endpoints.stream.remote {
            return;
        }
        let to: Arc<[Rank]> = self.ranks.all().filter(|rank| !self.ranks.is_local(*rank)).collect();
        for last in self.last_steps_of(self.ranks.me) {
            self.send_leaving(&to, last);
        }
    }

    fn has_exchanged(&self, leaders: &Leaders, group: GroupId, step: u64) -> bool {
        self.ranks.area.has_exchanged(leaders.locals()[0], group.index(), step)
    }

    /// Passes on all arrivals at a step that this rank knows of and has not passed on: where some
    /// members end a step by arrivals and others by leaders, those that wait may have nothing of
    /// the former but what a rank that leaves has told them.
    fn pass_all_on(&self, own: &Own, leaders: &Leaders) {
        let (group, step, me) = (own.arrival.group, own.arrival.step, self.ranks.me);
        for (member, of) in leaders.ranks.iter().copied().enumerate() {
            if of == me || self.control.remote_arrivals.has(of, group.index(), step) {
                continue;
            }
            let Some(arrival) = self.known_arrival(own, leaders, member) else { continue };
            let onward = Onward { from: me, of, arrival };
            if let Some(onward) = self.control.remote_arrivals.passed_on(onward) {
                self.pass_on(onward);
            }
        }
    }

    /// The arrival of a member at the step at which this rank has arrived last, if it is known
    /// without a message of its own.
    fn known_arrival(&self, own: &Own, leaders: &Leaders, member: usize) -> Option<Arrival> {
        let Own { arrival: Arrival { group, step, signature, words, stage }, width } = own;
        let (rank, index, at) = (leaders.ranks[member], group.index(), (step % 2) as usize);
        let area = &self.ranks.area;
        // Of who has written what is read, which may be overwritten behind a death.
        let is_local = self.ranks.is_local(rank);
        let writer = if is_local { rank } else { leaders.locals()[0] };
        let slot = &area.arrival_slots(writer, index)[at];
        let (signature, words, from) = if is_local {
            let Poll::Arrived(signature) = slot.poll(*step) else { return None };
            (signature, slot.payload()[..words.len()].to_vec(), area.stage(rank, index, at))
        } else {
            if !self.has_exchanged(leaders, *group, *step) {
                return None;
            }
            let lines = area.lines(leaders.locals()[0], index, at);
            let line = lines.wrapping_add(member * width.all() * size_of::<u64>());
            let mut words = vec![0; width.words];
            let bytes = size_of_val(&*words);
            // SAFETY: `Leaders::may_tell` has checked that there is room for the lines of all. They
            // were written before the step was published, and stay until this rank arrives at the
            // step after the next.
            unsafe { words.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(line, bytes) };
            (*signature, words, line.wrapping_add(bytes))
        };
        let mut staged = vec![0; stage.len()];
        // SAFETY: all members stage as many bytes: of a line, or of staging, which is longer. The
        // member has staged them before it arrived, and stages others only behind the next step.
        unsafe { staged.as_mut_ptr().copy_from_nonoverlapping(from, staged.len()) };
        let arrival = Arrival { group: *group, step: *step, signature, words, stage: staged };
        slot.has_stayed(*step).then_some(arrival)
    }

    /// Where a rank that leaves is in its groups, as far as this one knows.
    pub(crate) fn last_steps_of(&self, rank: Rank) -> Vec<LastStep> {
        let groups = (0..self.control.steps.0.len()).map(|index| GroupId(index as u8));
        groups.filter_map(|group| self.last_step_of(rank, group)).collect()
    }

    /// The same in one group.
    pub(crate) fn last_step_of(&self, rank: Rank, group: GroupId) -> Option<LastStep> {
        if !self.ranks.is_local(rank) {
            return self.control.steps.of(group).last_of(rank);
        }
        let (area, index) = (&self.ranks.area, group.index());
        let slots = area.arrival_slots(rank, index).iter();
        let step = slots.map(|slot| slot.sequence.load(Ordering::Acquire)).max().unwrap_or(0);
        let finished = area.has_finished(rank, index, step);
        let (commit, digest) = area.last_commit(rank, index);
        let last = LastStep { group, step, finished, commit, digest };
        (step > 0 || commit.attempt > 0).then_some(last)
    }
}
