//! Barriers that go along a tree: 2 (n - 1) messages instead of n (n - 1), in twice as many hops as
//! the tree has levels. They are used where each member of a group is a node of its own and members
//! share cores: there each message delays a member.
//!
//! A member that has arrived, and whose children have told that all below them have, tells its
//! parent. The first member tells its children that all have arrived, and so on down. Handlers of
//! frames pass messages on, also while the program computes. The tree is binomial over the members'
//! indices: the parent of v is v without its lowest bit.
//!
//! The tree is a shortcut only. A member that waits for long, times out, leaves, or sees that
//! another one called something else sends its arrival to all, as in every other step. So does each
//! member that has arrived once it hears such an arrival. From then on everything is as without a
//! tree, with one exception: a member that leaves after the tree has told it that all have arrived
//! sends no arrival. It is reported to all by members that would have heard of its arrival, and by
//! those that hear nothing more by the tree since their parent has left.

mod procedures;

use crate::bootstrap::Card;
use crate::ids::{GroupId, Rank};
use crate::os::affinity;
use crate::remote_arrivals::incarnation;
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering};
use crate::wire::message::BarrierMessage;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// Fewest members for which a tree saves messages.
const FEW: usize = 3;
/// A rank waits so long for each member before it sends its arrival to all.
const PATIENCE: Duration = Duration::from_millis(1);

/// The place of this rank in the tree of a group.
#[derive(Debug)]
pub(crate) struct Tree {
    ranks: Arc<[Rank]>,
    /// None for the first member.
    parent: Option<Arc<[Rank]>>,
    /// Ordered by the size of their subtrees, the largest first.
    children: Arc<[Rank]>,
    me: usize,
}

impl Tree {
    /// The tree of a group, if it has one; all members come to the same.
    pub(crate) fn of(cards: &[Card], ranks: &[Rank], me: usize) -> Option<Tree> {
        let members = || ranks.iter().map(|rank| &cards[rank.index()]);
        let mut nodes = HashSet::new();
        if ranks.len() < FEW || !members().all(|card| nodes.insert(card.node)) {
            return None;
        }
        let crowded = || {
            members().any(|member| {
                let here = || cards.iter().filter(|card| card.machine == member.machine);
                // Without quotas: each rank knows its own only.
                here().count() as u32 > affinity::cores_of(here().map(|card| card.cpus.as_slice()))
            })
        };
        crowded().then(|| Tree::new(ranks, me))
    }

    fn new(ranks: &[Rank], me: usize) -> Tree {
        let parent = (me > 0).then(|| [ranks[me & (me - 1)]].into());
        let below = lowest(me, ranks.len()).trailing_zeros();
        let children = (0..below).rev().map(|bit| me + (1 << bit));
        let children = children.filter(|child| *child < ranks.len()).map(|child| ranks[child]);
        Tree { ranks: ranks.into(), parent, children: children.collect(), me }
    }

    /// How long a member waits before it tells all.
    pub(crate) fn patience(&self) -> Duration {
        PATIENCE * self.ranks.len() as u32
    }

    /// Whether `rank`, which has not been heard of, would have been if it had arrived.
    fn is_next_to(&self, rank: Rank) -> bool {
        self.parent.iter().chain([&self.children]).any(|ranks| ranks.contains(&rank))
    }

    /// The indices of a child and of all below it.
    fn subtree(&self, child: usize) -> std::ops::Range<usize> {
        child..(child + lowest(child, self.ranks.len())).min(self.ranks.len())
    }
}

/// The lowest bit of a member's index in a tree of this size; for index 0 a bit above all indices.
fn lowest(place: usize, size: usize) -> usize {
    if place == 0 { size.next_power_of_two() } else { place & place.wrapping_neg() }
}

/// The last step of each parity: a member may be one step ahead of another.
type Steps = [u64; 2];

fn parity(step: u64) -> usize {
    (step % 2) as usize
}

/// Notes a step; an earlier one changes nothing.
fn note(steps: &mut Steps, step: u64) {
    let last = &mut steps[parity(step)];
    *last = step.max(*last);
}

fn has(steps: &Steps, step: u64) -> bool {
    steps[parity(step)] == step
}

/// The tree of a use of a group's id, by its incarnation.
#[derive(Debug, Default)]
struct Use {
    incarnation: u32,
    tree: Option<Arc<Tree>>,
}

/// What one rank knows of the barriers of a group. Steps only grow.
#[derive(Debug, Default)]
struct BarrierState {
    /// The present use and the one before, of which messages may still come.
    uses: [Use; 2],
    /// Steps at which this rank has arrived, has told its parent so, and has sent its arrival to
    /// all.
    arrived: Steps,
    told: Steps,
    told_all: Steps,
    /// Steps at which another member has sent its arrival to all.
    heard: Steps,
    /// Steps at which all below a child have arrived.
    below: HashMap<Rank, Steps>,
    /// Members that have left, and the first step that each is known to have missed.
    departed: BTreeMap<Rank, u64>,
}

impl BarrierState {
    /// The tree of the use that a step belongs to.
    fn tree(&self, step: u64) -> Option<&Arc<Tree>> {
        let of_step = |usage: &&Use| usage.incarnation <= incarnation(step);
        self.uses.iter().find(of_step)?.tree.as_ref()
    }

    fn has_gathered(&self, child: Rank, step: u64) -> bool {
        self.below.get(&child).is_some_and(|below| has(below, step))
    }
}

/// A message about a step, and the ranks that get it.
#[derive(Debug)]
pub(crate) struct Outbound {
    to: Arc<[Rank]>,
    step: u64,
    message: BarrierMessage,
}

/// The barriers of one group.
#[derive(Debug, Default)]
pub(crate) struct TreeBarrier {
    /// Steps at which all have arrived, as far as the tree has told.
    complete: [AtomicU64; 2],
    /// Whether a member has departed.
    hopeless: AtomicBool,
    state: Mutex<BarrierState>,
}

impl TreeBarrier {
    /// The message that is due for a step after a change. This rank may be at the next step
    /// already, if all members have sent it their arrivals.
    fn next(&self, state: &mut BarrierState, step: u64) -> Option<Outbound> {
        let tree = state.tree(step)?;
        let all = tree.children.iter().all(|child| state.has_gathered(*child, step));
        if !all || !has(&state.arrived, step) || has(&state.told, step) {
            return None;
        }
        let parent = tree.parent.clone();
        note(&mut state.told, step);
        match parent {
            Some(to) => Some(Outbound { to, step, message: BarrierMessage::Gathered }),
            None => self.complete(state, step),
        }
    }

    /// This rank arrives. Also whether it has to send its arrival to all, as another member did.
    fn arrive(&self, step: u64) -> (Option<Outbound>, bool) {
        let mut state = self.state.lock();
        note(&mut state.arrived, step);
        (self.next(&mut state, step), has(&state.heard, step))
    }

    /// A member has sent its arrival to all; whether this rank has to do so too.
    pub(super) fn hear_arrival(&self, step: u64) -> bool {
        let mut state = self.state.lock();
        note(&mut state.heard, step);
        has(&state.arrived, step) && !has(&state.told_all, step)
    }

    /// Steps at which another member has sent its arrival to all, while this rank has not arrived,
    /// with their trees.
    fn awaited(&self) -> Vec<(u64, Arc<Tree>)> {
        let state = self.state.lock();
        let arrived = state.arrived.into_iter().max().unwrap_or(0);
        let ahead = state.heard.into_iter().filter(|step| *step > arrived);
        ahead.filter_map(|step| Some((step, Arc::clone(state.tree(step)?)))).collect()
    }

    /// A message has come along the tree, or from a member that reports a departure.
    pub(super) fn hear(&self, peer: Rank, step: u64, message: BarrierMessage) -> Option<Outbound> {
        let mut state = self.state.lock();
        match message {
            BarrierMessage::Gathered => {
                note(state.below.entry(peer).or_default(), step);
                self.next(&mut state, step)
            }
            BarrierMessage::Complete => self.complete(&state, step),
            BarrierMessage::Departed(rank) => {
                let missed = state.departed.entry(rank).or_insert(step);
                *missed = step.min(*missed);
                // Release: pairs with the Acquire in `departed`.
                self.hopeless.store(true, Ordering::Release);
                None
            }
        }
    }

    fn complete(&self, state: &BarrierState, step: u64) -> Option<Outbound> {
        let tree = state.tree(step).filter(|_| has(&state.arrived, step))?;
        let complete = &self.complete[parity(step)];
        // Relaxed: written under the lock only.
        if complete.load(Ordering::Relaxed) >= step {
            return None;
        }
        // Release: pairs with the Acquire in `has_completed`.
        complete.store(step, Ordering::Release);
        Some(Outbound { to: Arc::clone(&tree.children), step, message: BarrierMessage::Complete })
    }

    /// A use of the group begins.
    pub(crate) fn committed(&self, incarnation: u32, tree: Option<Arc<Tree>>) {
        let uses = &mut self.state.lock().uses;
        uses.swap(0, 1);
        uses[0] = Use { incarnation, tree };
    }

    /// Whether all have arrived at `step`, as far as the tree has told.
    #[inline]
    pub(crate) fn has_completed(&self, step: u64) -> bool {
        // Acquire: what the others did before is seen.
        self.complete[parity(step)].load(Ordering::Acquire) == step
    }

    /// Whether this rank has sent its arrival at `step` to all.
    pub(crate) fn has_told_all(&self, step: u64) -> bool {
        has(&self.state.lock().told_all, step)
    }

    /// The member that is known to have left without arriving at `step`.
    pub(crate) fn departed(&self, step: u64, ranks: &[Rank]) -> Option<Rank> {
        // Acquire: as above.
        if !self.hopeless.load(Ordering::Acquire) {
            return None;
        }
        let state = self.state.lock();
        let mut missed = state.departed.iter().filter(|(_, missed)| **missed <= step);
        missed.find(|(rank, _)| ranks.binary_search(rank).is_ok()).map(|(rank, _)| *rank)
    }

    /// Whether a member, given by its index, is known to have arrived at `step`.
    pub(crate) fn has_arrived(&self, step: u64, member: usize) -> bool {
        let state = self.state.lock();
        let Some(tree) = state.tree(step) else { return false };
        tree.children.iter().any(|child| {
            let index = tree.ranks.binary_search(child);
            index.is_ok_and(|index| tree.subtree(index).contains(&member))
                && state.has_gathered(*child, step)
        })
    }
}

/// The barriers of all groups.
#[derive(Debug)]
pub(crate) struct TreeBarriers(Box<[TreeBarrier]>);

impl TreeBarriers {
    pub(crate) fn new(groups: u32) -> TreeBarriers {
        TreeBarriers((0..groups).map(|_| TreeBarrier::default()).collect())
    }

    #[inline]
    pub(crate) fn of(&self, group: GroupId) -> &TreeBarrier {
        &self.0[group.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::STEP_BITS;

    fn ranks(size: usize) -> Vec<Rank> {
        // Not their indices.
        (0..size).map(|member| Rank(3 * member as u16 + 1)).collect()
    }

    fn barriers(size: usize) -> Vec<TreeBarrier> {
        let ranks = ranks(size);
        let all = (0..size).map(|me| {
            let barrier = TreeBarrier::default();
            barrier.committed(1, Some(Arc::new(Tree::new(&ranks, me))));
            barrier
        });
        all.collect()
    }

    fn index(rank: Rank) -> usize {
        usize::from(rank.0) / 3
    }

    /// Delivers a message of a member, and those that follow from it; counts them.
    fn deliver(all: &[TreeBarrier], from: usize, outbound: Option<Outbound>) -> usize {
        let Some(Outbound { to, step, message }) = outbound else { return 0 };
        let sender = ranks(all.len())[from];
        let follow = to.iter().map(|rank| {
            let next = all[index(*rank)].hear(sender, step, message);
            deliver(all, index(*rank), next)
        });
        to.len() + follow.sum::<usize>()
    }

    /// The number of members that know the step to be complete.
    fn completed(all: &[TreeBarrier], step: u64) -> usize {
        all.iter().filter(|barrier| barrier.has_completed(step)).count()
    }

    fn arrive(all: &[TreeBarrier], member: usize, step: u64) -> usize {
        deliver(all, member, all[member].arrive(step).0)
    }

    #[test]
    fn all_hear_of_all_by_two_messages_for_each_but_one_and_nobody_before_the_last() {
        for size in (FEW..20).chain([64, 100]) {
            let all = barriers(size);
            for turn in 1..4 {
                let step = (1 << STEP_BITS) + turn;
                let mut messages = 0;
                // In some order that differs.
                for place in 0..size {
                    assert_eq!(completed(&all, step), 0, "{size}");
                    messages += arrive(&all, (place * 7 + turn as usize) % size, step);
                    if size % 7 == 0 {
                        messages += arrive(&all, place, step);
                    }
                }
                assert_eq!(completed(&all, step), all.len(), "{size}");
                assert_eq!(messages, 2 * (size - 1), "{size}");
            }
        }
    }

    #[test]
    fn what_is_below_a_child_that_has_told_has_arrived() {
        let all = barriers(8);
        let step = (1 << STEP_BITS) + 1;
        for member in [6, 7] {
            arrive(&all, member, step);
        }
        let known = |me: usize| -> Vec<usize> {
            (0..8).filter(|member| all[me].has_arrived(step, *member)).collect()
        };
        assert_eq!(known(4), [6, 7]);
        assert!(known(0).is_empty());
    }

    #[test]
    fn a_member_that_has_left_misses_all_steps_from_its_first_missed_one() {
        let (all, ranks) = (barriers(3), ranks(3));
        let step = (1 << STEP_BITS) + 7;
        for of_step in [step + 1, step, step + 2] {
            all[1].hear(ranks[0], of_step, BarrierMessage::Departed(ranks[2]));
        }
        let departed = |step| all[1].departed(step, &ranks);
        assert_eq!(departed(step - 1), None);
        assert!((step..step + 9).all(|step| departed(step) == Some(ranks[2])));
        // Groups without the member are not affected.
        assert_eq!(all[1].departed(step, &ranks[..2]), None);
    }

    #[test]
    fn all_who_have_arrived_tell_all_once_one_does() {
        let all = barriers(4);
        let step = (1 << STEP_BITS) + 1;
        arrive(&all, 1, step);
        assert!(all[1].hear_arrival(step));
        assert!(!all[2].hear_arrival(step));
        assert!(all[2].arrive(step).1 && !all[3].arrive(step).1);
    }

    #[test]
    fn what_comes_before_this_rank_has_committed_the_use_is_kept() {
        let all = barriers(3);
        let (old, step) = ((1 << STEP_BITS) + 5, (2 << STEP_BITS) + 1);
        arrive(&all, 0, old);
        let ranks = ranks(3);
        for rank in &ranks[1..] {
            assert!(all[0].hear(*rank, step, BarrierMessage::Gathered).is_none());
        }
        all[0].committed(2, Some(Arc::new(Tree::new(&ranks[..2], 0))));
        assert!(!all[0].has_completed(step));
        // Messages of the former use go along its tree.
        all[0].hear(ranks[1], old, BarrierMessage::Gathered);
        assert!(!all[0].has_completed(old));
        assert!(all[0].arrive(step).0.is_some());
        assert!(all[0].has_completed(step) && !all[0].has_completed(old));
    }

    #[test]
    fn a_member_that_is_a_step_ahead_still_tells_of_the_one_before() {
        let all = barriers(4);
        let (first, second) = ((1 << STEP_BITS) + 1, (1 << STEP_BITS) + 2);
        for member in 0..3 {
            arrive(&all, member, first);
        }
        // Member 3 has told all, and they have gone on, before it tells member 2 along the tree.
        for member in 0..3 {
            arrive(&all, member, second);
        }
        assert!(!all[0].has_completed(first));
        arrive(&all, 3, first);
        assert_eq!(completed(&all, first), all.len());
        assert!(!all[0].has_completed(second));
        arrive(&all, 3, second);
        assert_eq!(completed(&all, second), all.len());
    }

    #[test]
    fn a_barrier_at_which_somebody_was_elsewhere_is_never_complete() {
        for elsewhere in 0..8 {
            let all = barriers(8);
            let (first, second) = ((1 << STEP_BITS) + 1, (1 << STEP_BITS) + 2);
            let others = || (0..8).filter(|member| *member != elsewhere);
            for member in others().filter(|member| member % 3 != 0) {
                arrive(&all, member, first);
            }
            // It has failed in the first one, and is in the second.
            arrive(&all, elsewhere, second);
            for member in others().filter(|member| member % 3 == 0) {
                arrive(&all, member, first);
            }
            assert_eq!(completed(&all, first), 0, "{elsewhere}");
            for member in others() {
                arrive(&all, member, second);
            }
            assert_eq!(completed(&all, second), all.len(), "{elsewhere}");
            assert_eq!(completed(&all, first), 0, "{elsewhere}");
        }
    }
}
