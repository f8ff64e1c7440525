//! What this rank has said to the members of its groups on other nodes and nobody answers to:
//! arrivals of collectives, lists of commits. A connection that breaks may lose it, while both
//! ranks live and wait for each other. It is kept here as long as a member may still need it, and
//! said again to one whose connection broke.
//!
//! Invariant: whoever hears something twice is as wise as before.

mod procedures;

use crate::ids::{GroupId, Rank};
use crate::sync::{Mutex, MutexGuard};
use crate::wire::message::{KINDS, Message};
use std::collections::VecDeque;
use std::sync::Arc;

/// How much of commits that fail again and again is kept for each group.
const COMMITS_MAX: usize = 32;

/// A message, and to whom it was said.
#[derive(Debug)]
struct Kept {
    to: Arc<[Rank]>,
    message: Message,
}

/// What was said to one group.
#[derive(Debug, Default)]
struct GroupMessages {
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
pub(crate) struct ResendBuffer(Box<[Mutex<GroupMessages>]>);

impl ResendBuffer {
    pub(crate) fn new(groups: u32) -> ResendBuffer {
        ResendBuffer((0..groups).map(|_| Mutex::default()).collect())
    }

    fn messages(&self, group: GroupId) -> MutexGuard<'_, GroupMessages> {
        self.0[group.index()].lock()
    }

    /// A commit has succeeded here, so that all members have announced it: what concerned earlier
    /// ones is settled everywhere.
    pub(crate) fn agreed(&self, group: GroupId, attempt: u64) {
        self.messages(group).commits.retain(|(number, _)| *number >= attempt);
    }

    /// All that was said to `peer`, in order.
    fn to(&self, peer: Rank) -> Vec<Arc<Kept>> {
        let of_group = |messages: &Mutex<GroupMessages>| {
            let messages = messages.lock();
            let commits = messages.commits.iter().map(|(_, kept)| kept);
            let steps = messages.arrivals.iter().chain(messages.along.as_flattened()).flatten();
            let all = commits.chain(steps);
            all.filter(|kept| kept.to.contains(&peer)).cloned().collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of_group).collect()
    }
}
