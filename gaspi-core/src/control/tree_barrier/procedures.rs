//! Barriers along a tree: what this rank passes on.

use super::super::BARRIER;
use super::{BarrierMessage, Outbound, has, note};
use crate::ids::{GroupId, Rank};
use crate::runtime::Inner;
use crate::sync::arrival_slot::Poll;
use crate::transport::shm::area::liveness;
use crate::wire::message::Arrival;
use std::sync::Arc;

impl Inner {
    /// This rank arrives at a barrier of a group that has a tree.
    pub(in crate::control) fn arrive_at_tree(&self, group: GroupId, step: u64) {
        let (next, heard) = self.control.tree_barriers.of(group).arrive(step);
        self.pass_on(group, next);
        if heard {
            self.tell_all_of_barrier(group, step);
        }
    }

    /// Sends this rank's arrival at a barrier to all members.
    #[cold]
    pub(crate) fn tell_all_of_barrier(&self, group: GroupId, step: u64) {
        let ranks = {
            let mut state = self.control.tree_barriers.of(group).state.lock();
            note(&mut state.told_all, step);
            let Some(tree) = state.tree(step) else { return };
            Arc::clone(&tree.ranks)
        };
        let (signature, words, stage) = (BARRIER.signature, Vec::new(), Vec::new());
        self.send_arrival(ranks, Arrival { group, step, signature, words, stage });
    }

    /// This rank leaves: sends its arrivals at barriers that have not ended here.
    pub(crate) fn tell_all_of_unfinished_barriers(&self) {
        for (index, barrier) in self.control.tree_barriers.0.iter().enumerate() {
            let (arrived, told_all) = {
                let state = barrier.state.lock();
                (state.arrived, state.told_all)
            };
            let group = GroupId(index as u8);
            let ended = |step| barrier.has_completed(step) || has(&told_all, step);
            for step in arrived.into_iter().filter(|step| *step > 0 && !ended(*step)) {
                self.tell_all_of_barrier(group, step);
            }
        }
    }

    /// Whether `rank`, which has left without an arrival slot, cannot be heard of any more: this
    /// rank would have heard of its arrival at `step`, or nothing more of the others'.
    pub(in crate::control) fn has_missed(&self, group: GroupId, step: u64, rank: Rank) -> bool {
        let state = self.control.tree_barriers.of(group).state.lock();
        let Some(tree) = state.tree(step) else { return false };
        let parent = tree.parent.as_deref().unwrap_or_default();
        let cut_off = parent.iter().any(|parent| self.ranks.liveness(*parent) == liveness::LEFT);
        cut_off || tree.is_next_to(rank) && !state.has_gathered(rank, step)
    }

    /// Sends on what there is to say along the tree.
    pub(crate) fn pass_on(&self, group: GroupId, outbound: Option<Outbound>) {
        if let Some(Outbound { to, step, message }) =
            outbound.filter(|outbound| !outbound.to.is_empty())
        {
            self.send_along_tree(to, group, step, message);
        }
    }

    /// Tells the members at a step that this rank has not arrived at who has left without arriving:
    /// the step cannot have been completed, which only a member that has not arrived knows of those
    /// it is not next to. One that has left itself reports nobody else: members whose barrier ends
    /// because of it leave too, and their arrivals reach it no more.
    pub(crate) fn report_departures(&self, group: GroupId) {
        let (barrier, me) = (self.control.tree_barriers.of(group), self.ranks.me);
        let open = self.check_open().is_ok();
        for (step, tree) in barrier.awaited() {
            let missing = |rank: Rank| {
                if rank != me && !open {
                    return false;
                }
                let slot = &self.arrival_slots_of(rank, group)[(step % 2) as usize];
                self.ranks.liveness(rank) == liveness::LEFT && slot.poll(step) == Poll::Missing
            };
            for rank in tree.ranks.iter().copied().filter(|rank| missing(*rank)) {
                if barrier.departed(step, &[rank]).is_none() {
                    barrier.hear(me, step, BarrierMessage::Departed(rank));
                    self.say_departed(group, step, rank);
                }
            }
        }
    }

    /// Tells all members that one has left without arriving.
    pub(in crate::control) fn say_departed(&self, group: GroupId, step: u64, rank: Rank) {
        let tree = self.control.tree_barriers.of(group).state.lock().tree(step).cloned();
        let Some(tree) = tree else { return };
        let me = tree.ranks[tree.me];
        let others = tree.ranks.iter().copied().filter(|other| ![me, rank].contains(other));
        self.send_along_tree(others.collect(), group, step, BarrierMessage::Departed(rank));
    }
}
