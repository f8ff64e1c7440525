//! What this rank does with messages of its groups' members, whichever transport brings them.
//!
//! A handler changes the record of its group and says what is to be done. It has no means to wait,
//! to send, or to reach anything else of the rank: it runs in whichever thread polls.

use super::Control;
use super::tree_barrier::Outbound;
use crate::group::Abort;
use crate::ids::{GroupId, Rank};
use crate::wire::message::GroupMessage;

/// What a message makes this rank do.
#[derive(Debug, Default)]
pub(crate) struct Reaction {
    /// Threads that wait look again.
    pub(crate) wake: bool,
    /// A barrier's message goes on along its tree.
    pub(crate) pass_on: Option<(GroupId, Outbound)>,
    /// This rank sends its arrival at this step to all members.
    pub(crate) tell_all: Option<(GroupId, u64)>,
    /// Members of this group wait; this rank may know that one has left.
    pub(crate) report_departures: Option<GroupId>,
}

const WAKE: Reaction =
    Reaction { wake: true, pass_on: None, tell_all: None, report_departures: None };

impl Control {
    /// Handles a message of `peer`, a rank of a job of `size` ranks. Messages of groups that this
    /// rank does not know are ignored.
    pub(crate) fn handle(&self, peer: Rank, message: GroupMessage, size: u32) -> Reaction {
        let knows = |group: GroupId| group.index() < self.groups.max();
        match message {
            GroupMessage::Arrive(arrival) if knows(arrival.group) => {
                let (group, step) = (arrival.group, arrival.step);
                self.remote_arrivals.arrived(peer, arrival);
                let tells_all = self.tree_barriers.of(group).hear_arrival(step);
                let tell_all = tells_all.then_some((group, step));
                Reaction { tell_all, report_departures: Some(group), ..WAKE }
            }
            GroupMessage::Barrier { group, step, message } if knows(group) => {
                let next = self.tree_barriers.of(group).hear(peer, step, message);
                Reaction { pass_on: next.map(|next| (group, next)), ..WAKE }
            }
            GroupMessage::Announce(announce) if knows(announce.group) => {
                self.groups.announced(peer, announce);
                WAKE
            }
            GroupMessage::Withdraw { group, attempt } => {
                self.groups.withdrawn(peer, group, attempt);
                Reaction::default()
            }
            GroupMessage::Abort { group, attempt, round, dead, reason } => {
                let dead = dead.filter(|rank| u32::from(rank.0) < size);
                let abort = Abort { reporter: peer, dead, reason };
                self.groups.aborted(peer, group, attempt, round, &abort);
                WAKE
            }
            GroupMessage::Arrive(_) | GroupMessage::Barrier { .. } | GroupMessage::Announce(_) => {
                Reaction::default()
            }
        }
    }
}
