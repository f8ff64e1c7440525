//! What this rank has said to the members of its groups on other nodes and nobody answers to: lines
//! of collectives, lists of commits. A connection that breaks may lose it, while both ranks live
//! and wait for each other. It is kept here as long as a member may still need it, and said again
//! to one whose connection broke.
//!
//! Invariant: whoever hears something twice is as wise as before.

use crate::control::tree_barrier::{KINDS, News};
use crate::error::Result;
use crate::ids::{GroupId, Rank};
use crate::remote_arrivals::Arrival;
use crate::runtime::Inner;
use crate::sync::epoch;
use crate::timeout::Deadline;
use crate::transport::tcp::send_queue::Outgoing;
use crate::wire::frame::Frame;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How much of commits that fail again and again is kept for each group.
const COMMITS_MAX: usize = 32;

/// A frame, and to whom it was said.
#[derive(Debug)]
struct Word {
    to: Arc<[Rank]>,
    frame: Frame,
}

/// What was said to one group.
#[derive(Debug, Default)]
struct Words {
    /// By the parity of the step: whoever has read the line of a step has no need of the one
    /// before.
    lines: [Option<Arc<Word>>; 2],
    /// The same of what goes along a tree, by its kind.
    along: [[Option<Arc<Word>>; 2]; KINDS],
    /// With the number of the commit.
    commits: VecDeque<(u64, Arc<Word>)>,
}

/// What was said to all groups.
#[derive(Debug)]
pub(crate) struct Said(Box<[Mutex<Words>]>);

impl Said {
    pub(crate) fn new(groups: u32) -> Said {
        Said((0..groups).map(|_| Mutex::default()).collect())
    }

    fn words(&self, group: GroupId) -> MutexGuard<'_, Words> {
        self.0[group.index()].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A commit has succeeded here, so that all members have announced it: what concerned earlier
    /// ones is settled everywhere.
    pub(crate) fn agreed(&self, group: GroupId, attempt: u64) {
        self.words(group).commits.retain(|(number, _)| *number >= attempt);
    }

    /// All that was said to `peer`, in order.
    fn to(&self, peer: Rank) -> Vec<Arc<Word>> {
        let of_group = |words: &Mutex<Words>| {
            let words = words.lock().unwrap_or_else(PoisonError::into_inner);
            let commits = words.commits.iter().map(|(_, word)| word);
            let steps = words.lines.iter().chain(words.along.as_flattened()).flatten();
            let all = commits.chain(steps);
            all.filter(|word| word.to.contains(&peer)).cloned().collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of_group).collect()
    }
}

impl Inner {
    /// Publishes the line of a step to the members on other nodes.
    pub(crate) fn say_line(&self, to: Arc<[Rank]>, arrival: Arrival) {
        let (group, step, parity) = (arrival.group, arrival.step, (arrival.step % 2) as usize);
        let word = Arc::new(Word { to, frame: Frame::Arrive(arrival) });
        // First kept, then said: a connection may break in between. A barrier's line may be late,
        // and then takes the place of none that is still needed.
        let is_later = |kept: &Word| matches!(&kept.frame, Frame::Arrive(line) if line.step > step);
        {
            let mut words = self.said.words(group);
            let kept = &mut words.lines[parity];
            if !kept.as_deref().is_some_and(is_later) {
                *kept = Some(Arc::clone(&word));
            }
        }
        let behind = word.to.partition_point(|rank| *rank <= self.rank);
        let others = word.to[behind..].iter().chain(&word.to[..behind]);
        for rank in others.filter(|rank| !self.is_local(**rank)) {
            // Waiting for the others tells who cannot be reached any more.
            let _ = self.say(&word, *rank, Deadline::Now);
            // It takes a while, and who shares this core may have to do what others wait for. A
            // handler does not yield: others wait for the sockets that this thread looks after.
            if !epoch::is_handling() {
                self.waiter.give_way();
            }
        }
    }

    /// Tells neighbours in a group's tree, or all members, something of a barrier.
    pub(crate) fn say_along(&self, to: Arc<[Rank]>, group: GroupId, step: u64, news: News) {
        let word = Arc::new(Word { to, frame: Frame::Barrier { group, step, news } });
        let parity = (step % 2) as usize;
        // As above.
        self.said.words(group).along[news.kind()][parity] = Some(Arc::clone(&word));
        for rank in word.to.iter() {
            let _ = self.say(&word, *rank, Deadline::Now);
        }
    }

    /// Tells the members what becomes of this rank's commit of this number. All are told, also
    /// after one could not be: the end of a round means something only to members who know that it
    /// began.
    ///
    /// # Errors
    /// That of the first that could not be told.
    pub(crate) fn say_commit(
        &self,
        attempt: u64,
        group: GroupId,
        to: &[Rank],
        frame: Frame,
        deadline: Deadline,
    ) -> Result<()> {
        let word = Arc::new(Word { to: to.into(), frame });
        {
            let mut words = self.said.words(group);
            if words.commits.len() == COMMITS_MAX {
                words.commits.pop_front();
            }
            words.commits.push_back((attempt, Arc::clone(&word)));
        }
        let mut outcome = Ok(());
        for rank in to.iter().filter(|rank| **rank != self.rank) {
            // One wait for an explanation is enough.
            let deadline = if outcome.is_ok() { deadline } else { Deadline::Now };
            outcome = outcome.and(self.say(&word, *rank, deadline));
        }
        outcome
    }

    fn say(&self, word: &Word, to: Rank, deadline: Deadline) -> Result<()> {
        self.peers.send(self, to, Outgoing::new(&word.frame), deadline)
    }

    /// A connection with `peer` broke, and what was on its way may be lost: says it again.
    pub(crate) fn say_again(&self, peer: Rank) {
        for word in self.said.to(peer) {
            // Should the connection break again, so is this done again.
            let _ = self.say(&word, peer, Deadline::Now);
        }
    }
}
