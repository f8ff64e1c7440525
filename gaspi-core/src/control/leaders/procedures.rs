//! Steps by leaders: what this rank sends and publishes.

use super::{Due, Leaders};
use crate::ids::GroupId;
use crate::runtime::Inner;
use crate::transport::shm::area::wake_kind;
use crate::wire::message::Arrival;

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

    /// Sends this rank's arrival at a step that goes by leaders to all members.
    #[cold]
    pub(crate) fn tell_all_of_arrival(&self, group: GroupId, step: u64) {
        if let Some((ranks, arrival)) = self.control.steps.of(group).tell_all(step) {
            self.send_arrival(ranks, arrival);
        }
    }

    /// This rank leaves: sends its arrivals at steps that have not ended, and says at which step of
    /// each group it has arrived last.
    pub(crate) fn tell_last_steps(&self) {
        for (index, steps) in self.control.steps.0.iter().enumerate() {
            let group = GroupId(index as u8);
            for (step, leader) in steps.untold() {
                if !self.ranks.area.has_exchanged(leader, index, step) {
                    self.tell_all_of_arrival(group, step);
                }
            }
            if let Some((step, ranks)) = steps.last() {
                self.send_leaving(ranks, group, step);
            }
        }
    }
}
