//! What this rank has said to the members of its groups on other nodes and nobody answers to:
//! arrivals of collectives, lists of commits. A connection that breaks may lose it, while both
//! ranks live and wait for each other. It is kept here as long as a member may still need it, and
//! said again to one whose connection broke.
//!
//! Invariant: whoever hears something twice is as wise as before.

use crate::error::Result;
use crate::ids::{GroupId, Rank};
use crate::runtime::Inner;
use crate::sync::epoch;
use crate::sync::{Mutex, MutexGuard};
use crate::timeout::Deadline;
use crate::transport::tcp::send_queue::Outgoing;
use crate::wire::frame::Frame;
use crate::wire::group_message::{Arrival, BarrierMessage, KINDS};
use std::collections::VecDeque;
use std::sync::Arc;

/// How much of commits that fail again and again is kept for each group.
const COMMITS_MAX: usize = 32;

/// A frame, and to whom it was said.
#[derive(Debug)]
struct Kept {
    to: Arc<[Rank]>,
    frame: Frame,
}

/// What was said to one group.
#[derive(Debug, Default)]
struct GroupFrames {
    /// By the parity of the step: whoever has read the arrival of a step has no need of the one
    /// before.
    arrivals: [Option<Arc<Kept>>; 2],
    /// The same of what goes along a tree, by its kind.
    along: [[Option<Arc<Kept>>; 2]; KINDS],
    /// With the number of the commit.
    commits: VecDeque<(u64, Arc<Kept>)>,
}

/// What was said to all groups.
#[derive(Debug)]
pub(crate) struct ResendBuffer(Box<[Mutex<GroupFrames>]>);

impl ResendBuffer {
    pub(crate) fn new(groups: u32) -> ResendBuffer {
        ResendBuffer((0..groups).map(|_| Mutex::default()).collect())
    }

    fn frames(&self, group: GroupId) -> MutexGuard<'_, GroupFrames> {
        self.0[group.index()].lock()
    }

    /// A commit has succeeded here, so that all members have announced it: what concerned earlier
    /// ones is settled everywhere.
    pub(crate) fn agreed(&self, group: GroupId, attempt: u64) {
        self.frames(group).commits.retain(|(number, _)| *number >= attempt);
    }

    /// All that was said to `peer`, in order.
    fn to(&self, peer: Rank) -> Vec<Arc<Kept>> {
        let of_group = |frames: &Mutex<GroupFrames>| {
            let frames = frames.lock();
            let commits = frames.commits.iter().map(|(_, kept_frame)| kept_frame);
            let steps = frames.arrivals.iter().chain(frames.along.as_flattened()).flatten();
            let all = commits.chain(steps);
            all.filter(|kept_frame| kept_frame.to.contains(&peer)).cloned().collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of_group).collect()
    }
}

impl Inner {
    /// Publishes the arrival of a step to the members on other nodes.
    pub(crate) fn send_arrival(&self, to: Arc<[Rank]>, arrival: Arrival) {
        let (group, step, parity) = (arrival.group, arrival.step, (arrival.step % 2) as usize);
        let kept_frame = Arc::new(Kept { to, frame: Frame::Arrive(arrival) });
        // First kept, then said: a connection may break in between. A barrier's arrival may be
        // late, and then takes the place of none that is still needed.
        let is_later =
            |kept: &Kept| matches!(&kept.frame, Frame::Arrive(arrival) if arrival.step > step);
        {
            let mut frames = self.resend_buffer.frames(group);
            let kept = &mut frames.arrivals[parity];
            if !kept.as_deref().is_some_and(is_later) {
                *kept = Some(Arc::clone(&kept_frame));
            }
        }
        let behind = kept_frame.to.partition_point(|rank| *rank <= self.rank);
        let others = kept_frame.to[behind..].iter().chain(&kept_frame.to[..behind]);
        for rank in others.filter(|rank| !self.is_local(**rank)) {
            // Waiting for the others tells who cannot be reached any more.
            let _ = self.say(&kept_frame, *rank, Deadline::Now);
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
        let kept_frame = Arc::new(Kept { to, frame: Frame::Barrier { group, step, message } });
        let parity = (step % 2) as usize;
        // As above.
        self.resend_buffer.frames(group).along[message.kind()][parity] =
            Some(Arc::clone(&kept_frame));
        for rank in kept_frame.to.iter() {
            let _ = self.say(&kept_frame, *rank, Deadline::Now);
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
        frame: Frame,
        deadline: Deadline,
    ) -> Result<()> {
        let kept_frame = Arc::new(Kept { to: to.into(), frame });
        {
            let mut frames = self.resend_buffer.frames(group);
            if frames.commits.len() == COMMITS_MAX {
                frames.commits.pop_front();
            }
            frames.commits.push_back((attempt, Arc::clone(&kept_frame)));
        }
        let mut outcome = Ok(());
        for rank in to.iter().filter(|rank| **rank != self.rank) {
            // One wait for an explanation is enough.
            let deadline = if outcome.is_ok() { deadline } else { Deadline::Now };
            outcome = outcome.and(self.say(&kept_frame, *rank, deadline));
        }
        outcome
    }

    fn say(&self, kept_frame: &Kept, to: Rank, deadline: Deadline) -> Result<()> {
        self.endpoints.send(self, to, Outgoing::new(&kept_frame.frame), deadline)
    }

    /// A connection with `peer` broke, and what was on its way may be lost: says it again.
    pub(crate) fn resend(&self, peer: Rank) {
        for kept_frame in self.resend_buffer.to(peer) {
            // Should the connection break again, so is this done again.
            let _ = self.say(&kept_frame, peer, Deadline::Now);
        }
    }
}
