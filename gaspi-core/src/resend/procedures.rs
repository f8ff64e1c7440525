//! Messages to the members of groups: sent now, and again where a connection breaks.

use super::{COMMITS_MAX, Kept};
use crate::control::leaders::route::COMMIT_TAGS;
use crate::error::{Error, Result};
use crate::ids::{GroupId, Rank};
use crate::runtime::Inner;
use crate::sync::epoch;
use crate::timeout::Deadline;
use crate::wire::message::{Arrival, GroupMessage, LastStep, Lines, Message};
use std::sync::Arc;

impl Inner {
    /// Publishes the arrival of a step to the members on other nodes.
    pub(crate) fn send_arrival(&self, to: Arc<[Rank]>, arrival: Arrival) {
        let (group, step, parity) = (arrival.group, arrival.step, (arrival.step % 2) as usize);
        let kept = Kept { to, message: Message::Group(GroupMessage::Arrive(arrival)) };
        // First kept, then sent: a connection may break in between.
        let kept = self.control.resend_buffer.keep_arrival(group, (step, parity), kept);
        let behind = kept.to.partition_point(|rank| *rank <= self.ranks.me);
        let others = kept.to[behind..].iter().chain(&kept.to[..behind]);
        for rank in others.filter(|rank| !self.ranks.is_local(**rank)) {
            // The wait for the others finds out which of them cannot be reached any more.
            let _ = self.send_message(*rank, &kept.message, Deadline::Now);
            // Sending takes a while, and a rank that shares this core may have to do what others
            // wait for. A handler does not yield: others wait for the sockets that it serves.
            if !epoch::is_handling() {
                self.waiter.give_way();
            }
        }
    }

    /// Passes on the arrival of a member along the tree of the members, but not to whom it comes
    /// from.
    pub(crate) fn send_onward(
        &self,
        to: Arc<[Rank]>,
        from: Option<Rank>,
        (of, arrival): (Rank, Arrival),
    ) {
        let (group, step) = (arrival.group, arrival.step);
        let message = Message::Group(GroupMessage::PassedOn { of, arrival });
        let kept = Arc::new(Kept { to, message });
        // As above.
        {
            let mut messages = self.control.resend_buffer.messages(group);
            let place = messages.passed_on.entry((of, (step % 2) as usize));
            let place = place.or_insert_with(|| Arc::clone(&kept));
            if place.arrival_step() < Some(step) {
                *place = Arc::clone(&kept);
            }
        }
        for rank in kept.to.iter().filter(|rank| Some(**rank) != from) {
            let _ = self.send_message(*rank, &kept.message, Deadline::Now);
            if !epoch::is_handling() {
                self.waiter.give_way();
            }
        }
    }

    /// Sends the arrivals at a step that this rank has passed on to those of these ranks that have
    /// not got them.
    pub(crate) fn pass_again(&self, group: GroupId, step: u64, to: &Arc<[Rank]>) {
        for (fresh, kept) in self.control.resend_buffer.redirect(group, step, to) {
            for rank in fresh {
                let _ = self.send_message(rank, &kept.message, Deadline::Now);
            }
        }
    }

    /// Tells other leaders of a step.
    pub(crate) fn send_lines(&self, to: Arc<[Rank]>, group: GroupId, lines: Lines) {
        let place = (lines.tag, (lines.step % 2) as usize);
        let message = Message::Group(GroupMessage::Lines { group, lines });
        let kept = Arc::new(Kept { to, message });
        // As above.
        self.control.resend_buffer.messages(group).lines.insert(place, Arc::clone(&kept));
        for rank in kept.to.iter() {
            let _ = self.send_message(*rank, &kept.message, Deadline::Now);
        }
    }

    /// Sends a member a chunk behind a step.
    pub(crate) fn send_chunk(&self, rank: Rank, group: GroupId, lines: Lines) {
        let place = (rank, lines.tag);
        let message = Message::Group(GroupMessage::Lines { group, lines });
        let kept = Arc::new(Kept { to: [rank].into(), message });
        // As above.
        self.control.resend_buffer.messages(group).chunks.insert(place, Arc::clone(&kept));
        let _ = self.send_message(rank, &kept.message, Deadline::Now);
        self.waiter.give_way();
    }

    /// Tells ranks of other nodes where this one, which leaves, is in a group.
    pub(crate) fn send_leaving(&self, to: &Arc<[Rank]>, last: LastStep) {
        let message = Message::Group(GroupMessage::Leaving(last));
        let kept = Arc::new(Kept { to: Arc::clone(to), message });
        // As above.
        self.control.resend_buffer.messages(last.group).leaving = Some(Arc::clone(&kept));
        for rank in kept.to.iter() {
            // Who cannot be told has left itself, or learns of this rank's end.
            let _ = self.send_message(*rank, &kept.message, Deadline::Now);
        }
    }

    /// Sends the members a message of this rank's commit of this number. All are tried, also after
    /// one could not be reached: members that know that a round began have to learn of its end.
    ///
    /// # Errors
    /// That of the first member that could not be reached and has not left.
    pub(crate) fn send_commit(
        &self,
        attempt: u64,
        group: GroupId,
        to: Arc<[Rank]>,
        message: GroupMessage,
        deadline: Deadline,
    ) -> Result<()> {
        // Questions are asked again, and answered again.
        let is_kept = !matches!(&message, GroupMessage::Digest(it) if it.tag >= COMMIT_TAGS);
        let kept = Arc::new(Kept { to, message: Message::Group(message) });
        if is_kept {
            let mut messages = self.control.resend_buffer.messages(group);
            if messages.commits.len() == COMMITS_MAX {
                messages.commits.pop_front();
            }
            messages.commits.push_back((attempt, Arc::clone(&kept)));
        }
        let (mut outcome, mut deadline) = (Ok(()), deadline);
        for rank in kept.to.iter().filter(|rank| **rank != self.ranks.me) {
            let Err(error) = self.send_message(*rank, &kept.message, deadline) else { continue };
            // One wait for an explanation is enough.
            deadline = Deadline::Now;
            // Whether the commit needs one that has left depends on what that has committed.
            if !matches!(error, Error::RankLeft { .. }) {
                outcome = outcome.and(Err(error));
            }
        }
        outcome
    }

    /// `peer` waits for this rank in a commit of a group: sends again what it has been sent.
    pub(crate) fn resend_commits(&self, group: GroupId, peer: Rank) {
        let kept: Vec<Arc<Kept>> = {
            let messages = self.control.resend_buffer.messages(group);
            let commits = messages.commits.iter().map(|(_, kept)| kept);
            commits.filter(|kept| kept.to.contains(&peer)).cloned().collect()
        };
        for kept in kept {
            let _ = self.send_message(peer, &kept.message, Deadline::Now);
        }
    }

    /// A connection with `peer` broke, and messages under way may be lost: sends them again.
    pub(crate) fn resend(&self, peer: Rank) {
        for kept in self.control.resend_buffer.to(peer) {
            // Should the connection break again, this is done again.
            let _ = self.send_message(peer, &kept.message, Deadline::Now);
        }
    }
}
