//! What this rank does with messages of its groups' members, whichever transport brings them.
//!
//! A handler changes the record of its group and says what is to be done. It has no means to wait,
//! to send, or to reach anything else of the rank: it runs in whichever thread polls.

use super::Control;
use crate::group::Abort;
use crate::ids::{GroupId, Rank};
use crate::wire::message::{Arrival, GroupMessage};

/// The arrival of a member that its neighbours pass on.
#[derive(Debug)]
pub(crate) struct Onward {
    /// Who has passed it on to this rank.
    pub(crate) from: Rank,
    /// Whose it is.
    pub(crate) of: Rank,
    pub(crate) arrival: Arrival,
}

/// What a message makes this rank do.
#[derive(Debug, Default)]
pub(crate) struct Reaction {
    /// Threads that wait look again.
    pub(crate) wake: bool,
    /// A leader may have something to tell about this step.
    pub(crate) advance: Option<(GroupId, u64)>,
    /// This rank passes this on.
    pub(crate) onward: Option<Onward>,
    /// This rank tells all members of its arrival at this step.
    pub(crate) tell_all: Option<(GroupId, u64)>,
    /// There may be something to send for a commit of this group.
    pub(crate) commits: Option<GroupId>,
    /// This rank has sent this peer something for it that may have been lost.
    pub(crate) again: Option<Rank>,
}

const WAKE: Reaction = Reaction {
    wake: true,
    advance: None,
    onward: None,
    tell_all: None,
    commits: None,
    again: None,
};

impl Control {
    /// Handles a message of `peer`, a rank of a job of `size` ranks. Messages of groups that this
    /// rank does not know are ignored.
    pub(crate) fn handle(&self, peer: Rank, message: GroupMessage, size: u32) -> Reaction {
        let knows = |group: GroupId| group.index() < self.groups.max();
        match message {
            GroupMessage::Arrive(arrival) if knows(arrival.group) => {
                let (group, step) = (arrival.group, arrival.step);
                self.remote_arrivals.arrived(peer, arrival);
                let tells_all = self.steps.of(group).hear_arrival(step);
                Reaction { tell_all: tells_all.then_some((group, step)), ..WAKE }
            }
            GroupMessage::PassedOn { of, arrival }
                if knows(arrival.group) && u32::from(of.0) < size =>
            {
                let (group, step) = (arrival.group, arrival.step);
                let onward = self.remote_arrivals.passed_on(Onward { from: peer, of, arrival });
                let tells_all = self.steps.of(group).hear_arrival(step);
                Reaction { onward, tell_all: tells_all.then_some((group, step)), ..WAKE }
            }
            GroupMessage::Lines { group, mut lines } if knows(group) => {
                if self.chunks.hear(group, peer, &mut lines) {
                    return WAKE;
                }
                let step = lines.step;
                self.steps.of(group).hear(peer, lines);
                Reaction { advance: Some((group, step)), ..WAKE }
            }
            GroupMessage::Leaving(last) if knows(last.group) => {
                self.steps.of(last.group).hear_leaving(peer, last);
                WAKE
            }
            GroupMessage::Announce(announce) if knows(announce.group) => {
                let group = announce.group;
                self.groups.announced(peer, announce);
                Reaction { commits: Some(group), ..WAKE }
            }
            GroupMessage::Digest(digest) if knows(digest.group) => {
                let group = digest.group;
                let again = self.groups.digested(peer, digest).then_some(peer);
                Reaction { commits: Some(group), again, ..WAKE }
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
            GroupMessage::Arrive(_)
            | GroupMessage::PassedOn { .. }
            | GroupMessage::Lines { .. }
            | GroupMessage::Leaving(_)
            | GroupMessage::Announce(_)
            | GroupMessage::Digest(_) => Reaction::default(),
        }
    }
}
