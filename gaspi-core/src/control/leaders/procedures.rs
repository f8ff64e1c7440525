//! Steps by leaders: what this rank sends and publishes.

use super::{Due, Leaders};
use crate::control::handlers::Onward;
use crate::ids::{GroupId, Rank};
use crate::runtime::Inner;
use crate::sync::Ordering;
use crate::transport::shm::area::{liveness, wake_kind};
use crate::wire::message::{Arrival, LastStep};
use std::sync::Arc;

impl Inner {
    /// This rank arrives at a step of a group that has leaders.
    pub(in crate::control) fn arrive_by_leaders(&self, arrival: Arrival) {
        let (group, step) = (arrival.group, arrival.step);
        if self.control.steps.of(group).arrive(arrival) {
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
        for LastStep { group, step, finished } in self.last_steps_of(rank) {
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

    /// Whether all members come to the end of a step that `rank`, of this node, has finished,
    /// without anything more of it: leaders have told of all arrivals, or it has passed them on.
    fn has_passed_on(&self, rank: Rank, group: GroupId, step: u64) -> bool {
        let Some(leaders) = self.control.steps.of(group).leaders_at(step) else { return true };
        // Those of its node it sees without a message, which others may be waiting for.
        let is_in = |member: &Rank| {
            *member == rank || self.control.remote_arrivals.has(*member, group.index(), step)
        };
        self.ranks.area.has_exchanged(leaders.locals()[0], group.index(), step)
            || rank == self.ranks.me && leaders.ranks.iter().all(is_in)
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

    /// This rank leaves: sends its arrivals at steps that have not ended, and says where it is in
    /// its groups to those whose connection ends with it.
    pub(crate) fn tell_last_steps(&self) {
        for (index, steps) in self.control.steps.0.iter().enumerate() {
            let group = GroupId(index as u8);
            for (step, leader) in steps.untold() {
                if !self.ranks.area.has_exchanged(leader, index, step) {
                    self.tell_all_of_arrival(group, step);
                }
            }
        }
        let with_news = self.endpoints.stream.remote;
        let is_told = |rank: &Rank| {
            let connected = || self.endpoints.stream.connections.is_established(*rank);
            !self.ranks.is_local(*rank) && (!with_news || connected())
        };
        // What comes on a connection ends there, perhaps before the news.
        let to: Arc<[Rank]> = self.ranks.all().filter(is_told).collect();
        for last in self.last_steps_of(self.ranks.me) {
            self.send_leaving(&to, last);
        }
    }

    /// Where a rank that leaves is in its groups, as far as this one knows.
    pub(crate) fn last_steps_of(&self, rank: Rank) -> Vec<LastStep> {
        let groups = self.control.steps.0.iter();
        if !self.ranks.is_local(rank) {
            return groups.filter_map(|steps| steps.last_of(rank)).collect();
        }
        let of_node = (0..groups.len()).map(|index| {
            let slots = self.ranks.area.arrival_slots(rank, index);
            let steps = slots.iter().map(|slot| slot.sequence.load(Ordering::Acquire));
            let step = steps.max().unwrap_or(0);
            let group = GroupId(index as u8);
            let finished = self.ranks.area.has_finished(rank, index, step);
            LastStep { group, step, finished: finished && self.has_passed_on(rank, group, step) }
        });
        of_node.filter(|last| last.step > 0).collect()
    }
}
