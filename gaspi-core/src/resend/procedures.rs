//! What this rank says to the members of its groups: sent now, and again where a connection breaks.

use super::{COMMITS_MAX, Kept};
use crate::error::Result;
use crate::ids::{GroupId, Rank};
use crate::runtime::Inner;
use crate::sync::epoch;
use crate::timeout::Deadline;
use crate::wire::message::{Arrival, BarrierMessage, GroupMessage, Message};
use std::sync::Arc;

impl Inner {
    /// Publishes the arrival of a step to the members on other nodes.
    pub(crate) fn send_arrival(&self, to: Arc<[Rank]>, arrival: Arrival) {
        let (group, step, parity) = (arrival.group, arrival.step, (arrival.step % 2) as usize);
        let kept = Arc::new(Kept { to, message: Message::Group(GroupMessage::Arrive(arrival)) });
        // First kept, then said: a connection may break in between. A barrier's arrival may be
        // late, and then takes the place of none that is still needed.
        let is_later = |kept: &Kept| match &kept.message {
            Message::Group(GroupMessage::Arrive(arrival)) => arrival.step > step,
            _ => false,
        };
        {
            let mut messages = self.control.resend_buffer.messages(group);
            let place = &mut messages.arrivals[parity];
            if !place.as_deref().is_some_and(is_later) {
                *place = Some(Arc::clone(&kept));
            }
        }
        let behind = kept.to.partition_point(|rank| *rank <= self.ranks.me);
        let others = kept.to[behind..].iter().chain(&kept.to[..behind]);
        for rank in others.filter(|rank| !self.ranks.is_local(**rank)) {
            // Waiting for the others tells who cannot be reached any more.
            let _ = self.say(&kept, *rank, Deadline::Now);
            // It takes a while, and who shares this core may have to do what others wait for. A
            // handler does not yield: others wait for the sockets that this thread looks after.
            if !epoch::is_handling() {
                self.waiter.give_way();
            }
        }
    }

    /// Tells neighbours in a group's tree, or all members, something of a barrier.
    pub(crate) fn send_along_tree(
        &self,
        to: Arc<[Rank]>,
        group: GroupId,
        step: u64,
        message: BarrierMessage,
    ) {
        let kind = message.kind();
        let message = Message::Group(GroupMessage::Barrier { group, step, message });
        let kept = Arc::new(Kept { to, message });
        let parity = (step % 2) as usize;
        // As above.
        self.control.resend_buffer.messages(group).along[kind][parity] = Some(Arc::clone(&kept));
        for rank in kept.to.iter() {
            let _ = self.say(&kept, *rank, Deadline::Now);
        }
    }

    /// Tells the members what becomes of this rank's commit of this number. All are told, also
    /// after one could not be: the end of a round means something only to members who know that it
    /// began.
    ///
    /// # Errors
    /// That of the first that could not be told.
    pub(crate) fn send_commit(
        &self,
        attempt: u64,
        group: GroupId,
        to: &[Rank],
        message: GroupMessage,
        deadline: Deadline,
    ) -> Result<()> {
        let kept = Arc::new(Kept { to: to.into(), message: Message::Group(message) });
        {
            let mut messages = self.control.resend_buffer.messages(group);
            if messages.commits.len() == COMMITS_MAX {
                messages.commits.pop_front();
            }
            messages.commits.push_back((attempt, Arc::clone(&kept)));
        }
        let mut outcome = Ok(());
        for rank in to.iter().filter(|rank| **rank != self.ranks.me) {
            // One wait for an explanation is enough.
            let deadline = if outcome.is_ok() { deadline } else { Deadline::Now };
            outcome = outcome.and(self.say(&kept, *rank, deadline));
        }
        outcome
    }

    fn say(&self, kept: &Kept, to: Rank, deadline: Deadline) -> Result<()> {
        self.send_message(to, &kept.message, deadline)
    }

    /// A connection with `peer` broke, and what was on its way may be lost: says it again.
    pub(crate) fn resend(&self, peer: Rank) {
        for kept in self.control.resend_buffer.to(peer) {
            // Should the connection break again, so is this done again.
            let _ = self.say(&kept, peer, Deadline::Now);
        }
    }
}
