//! Messages of this rank to members of its groups on other nodes that are not answered: arrivals of
//! collectives, lists of commits. A connection that breaks may lose them, while both ranks live and
//! wait for each other. They are kept here as long as a member may still need them, and sent again
//! to a member whose connection broke.
//!
//! Invariant: delivery is idempotent.

mod procedures;

use crate::ids::{GroupId, Rank};
use crate::sync::{Mutex, MutexGuard};
use crate::wire::message::{GroupMessage, Message};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Messages of commits that are kept for each group.
const COMMITS_MAX: usize = 32;

/// A message and its receivers.
#[derive(Debug)]
struct Kept {
    to: Arc<[Rank]>,
    message: Message,
}

impl Kept {
    /// The step that the arrival of a member is of.
    fn arrival_step(&self) -> Option<u64> {
        match &self.message {
            Message::Group(
                GroupMessage::Arrive(arrival) | GroupMessage::PassedOn { arrival, .. },
            ) => Some(arrival.step),
            _ => None,
        }
    }
}

/// Messages to one group.
#[derive(Debug, Default)]
struct GroupMessages {
    /// By the parity of the step: a member that has read the arrival at a step needs the one before
    /// no more.
    arrivals: [Option<Arc<Kept>>; 2],
    /// The same of messages among leaders, by their tag and the parity.
    lines: BTreeMap<(u8, usize), Arc<Kept>>,
    /// Chunks behind the last step, by receiver and tag.
    chunks: BTreeMap<(Rank, u8), Arc<Kept>>,
    /// Arrivals that are passed on along the tree of the members, by whose they are and the parity.
    passed_on: BTreeMap<(Rank, usize), Arc<Kept>>,
    /// This rank leaves.
    leaving: Option<Arc<Kept>>,
    /// With the number of the commit.
    commits: VecDeque<(u64, Arc<Kept>)>,
}

/// Messages to all groups.
#[derive(Debug)]
pub(crate) struct ResendBuffer(Box<[Mutex<GroupMessages>]>);

impl ResendBuffer {
    pub(crate) fn new(groups: u32) -> ResendBuffer {
        ResendBuffer((0..groups).map(|_| Mutex::default()).collect())
    }

    fn messages(&self, group: GroupId) -> MutexGuard<'_, GroupMessages> {
        self.0[group.index()].lock()
    }

    /// Keeps an arrival at a step, in the memory of the one that it replaces if nobody else uses
    /// that. A barrier's arrival may be late, and then replaces none that is still needed.
    fn keep_arrival(
        &self,
        group: GroupId,
        (step, parity): (u64, usize),
        arrival: Kept,
    ) -> Arc<Kept> {
        let place = &mut self.messages(group).arrivals[parity];
        if place.as_deref().is_some_and(|kept| kept.arrival_step() > Some(step)) {
            return Arc::new(arrival);
        }
        match place.as_mut() {
            Some(kept) => {
                match Arc::get_mut(kept) {
                    Some(kept) => *kept = arrival,
                    None => *kept = Arc::new(arrival),
                }
                Arc::clone(kept)
            }
            None => Arc::clone(place.insert(Arc::new(arrival))),
        }
    }

    /// A commit has succeeded here, so all members have announced it and need nothing of earlier
    /// ones.
    pub(crate) fn agreed(&self, group: GroupId, attempt: u64) {
        self.messages(group).commits.retain(|(number, _)| *number >= attempt);
    }

    /// No member needs chunks of this rank any more.
    pub(crate) fn forget_chunks(&self, group: GroupId) {
        self.messages(group).chunks.clear();
    }

    /// Arrivals at a step that are passed on go to these ranks from now on; gives those that some
    /// of them have not got.
    fn redirect(&self, group: GroupId, step: u64, to: &Arc<[Rank]>) -> Vec<(Vec<Rank>, Arc<Kept>)> {
        let mut redirected = Vec::new();
        for place in self.messages(group).passed_on.values_mut() {
            let fresh = to.iter().filter(|rank| !place.to.contains(rank));
            let fresh: Vec<Rank> = fresh.copied().collect();
            if place.arrival_step() == Some(step) && !fresh.is_empty() {
                *place = Arc::new(Kept { to: Arc::clone(to), message: place.message.clone() });
                redirected.push((fresh, Arc::clone(place)));
            }
        }
        redirected
    }

    /// All messages to `peer`, in order.
    fn to(&self, peer: Rank) -> Vec<Arc<Kept>> {
        let of_group = |messages: &Mutex<GroupMessages>| {
            let messages = messages.lock();
            let commits = messages.commits.iter().map(|(_, kept)| kept);
            let steps = messages.arrivals.iter().flatten().chain(messages.lines.values());
            let all = commits.chain(steps).chain(messages.passed_on.values());
            let all = all.chain(messages.chunks.values()).chain(&messages.leaving);
            all.filter(|kept| kept.to.contains(&peer)).cloned().collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of_group).collect()
    }
}
