//! Barriers that go along a tree, where each member of a group is a node of its own and they share
//! cores, so that each message is in the way of somebody: 2 (n - 1) messages instead of n (n - 1),
//! for as many hops as the tree has levels, twice.
//!
//! A member that has arrived, and heard of its children that all below them have, says so to its
//! parent; the first one says to its children that all have arrived, and so on down. Whoever
//! handles a frame passes on what there is to pass, also while the program computes. The tree is
//! binomial over the members' indices: the parent of v is v without its lowest bit.
//!
//! It only makes what goes well quicker. A member that waits for a while, whose time runs out, that
//! leaves, or sees that another one has called something else, sends its arrival to all, as in
//! every other step; and so do all who have arrived once they hear such an arrival. From then on
//! everything is as without a tree. But for one thing: who has left may have done so after the tree
//! had told it that all have arrived, and has no arrival slot then. It is missed by those who would
//! have heard of its arrival, and by those to whom the tree can tell nothing more, since the parent
//! has left; they tell all.

mod procedures;

use crate::bootstrap::Card;
use crate::ids::{GroupId, Rank};
use crate::os::affinity;
use crate::remote_arrivals::incarnation;
use crate::sync::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::wire::message::BarrierMessage;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// Fewest members, where they share cores and each message is in the way of somebody.
const FEW: usize = 3;
/// For each member that a rank would tell, so long it waits before it tells all.
const PATIENCE: Duration = Duration::from_millis(1);

/// The place of this rank in the tree of a group.
#[derive(Debug)]
pub(crate) struct Tree {
    ranks: Arc<[Rank]>,
    /// One, or for the first member none.
    parent: Option<Arc<[Rank]>>,
    /// The one with the most below it first.
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

/// The lowest bit of a place in a tree of so many; of the first one, which has none, a higher one
/// than all.
fn lowest(place: usize, size: usize) -> usize {
    if place == 0 { size.next_power_of_two() } else { place & place.wrapping_neg() }
}

/// The last step of either parity: a member may be one ahead of another, and a step that failed is
/// none of them.
type Steps = [u64; 2];

fn parity(step: u64) -> usize {
    (step % 2) as usize
}

/// Takes note of a step, unless it is heard of once more.
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
    /// The present use and the one before, of which something may still be on its way.
    uses: [Use; 2],
    /// At which this rank has arrived, of which it has told its parent, and of which it has told
    /// all.
    arrived: Steps,
    told: Steps,
    told_all: Steps,
    /// Of which others have told all.
    heard: Steps,
    /// By child: at which all below it have arrived.
    below: HashMap<Rank, Steps>,
    /// Who has left, and the first step that it is known to have missed.
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

/// What is to be told of a step, and to whom.
#[derive(Debug)]
pub(crate) struct Outbound {
    to: Arc<[Rank]>,
    step: u64,
    message: BarrierMessage,
}

/// The barriers of one group.
#[derive(Debug, Default)]
struct TreeBarrier {
    /// At which all have arrived, as far as the tree has told.
    complete: [AtomicU64; 2],
    /// Whether somebody has departed.
    hopeless: AtomicBool,
    state: Mutex<BarrierState>,
}

impl TreeBarrier {
    fn state(&self) -> MutexGuard<'_, BarrierState> {
        self.state.lock()
    }

    /// What there is to tell of a step now that something has come. This rank may be at the next
    /// one already, if all have told it.
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

    /// This rank arrives. Also whether somebody has told all, so that it has to.
    fn arrive(&self, step: u64) -> (Option<Outbound>, bool) {
        let mut state = self.state();
        note(&mut state.arrived, step);
        (self.next(&mut state, step), has(&state.heard, step))
    }

    /// Somebody has told all; whether this rank has to tell all too.
    fn hear_arrival(&self, step: u64) -> bool {
        let mut state = self.state();
        note(&mut state.heard, step);
        has(&state.arrived, step) && !has(&state.told_all, step)
    }

    /// A neighbour has told something, or whoever misses one that has left.
    fn hear(&self, peer: Rank, step: u64, message: BarrierMessage) -> Option<Outbound> {
        let mut state = self.state();
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
}

/// The barriers of all groups.
#[derive(Debug)]
pub(crate) struct TreeBarriers(Box<[TreeBarrier]>);

impl TreeBarriers {
    pub(crate) fn new(groups: u32) -> TreeBarriers {
        TreeBarriers((0..groups).map(|_| TreeBarrier::default()).collect())
    }

    /// A member has sent its arrival to all; whether this rank has to do so too.
    pub(super) fn hear_arrival(&self, group: GroupId, step: u64) -> bool {
        self.0[group.index()].hear_arrival(step)
    }

    /// A neighbour in the tree has told something.
    pub(super) fn hear(
        &self,
        group: GroupId,
        peer: Rank,
        step: u64,
        message: BarrierMessage,
    ) -> Option<Outbound> {
        self.0[group.index()].hear(peer, step, message)
    }

    /// A use of `group` begins.
    pub(crate) fn committed(&self, group: GroupId, incarnation: u32, tree: Option<Arc<Tree>>) {
        let uses = &mut self.0[group.index()].state().uses;
        uses.swap(0, 1);
        uses[0] = Use { incarnation, tree };
    }

    /// Whether all have arrived at `step`, as far as the tree has told.
    #[inline]
    pub(crate) fn has_completed(&self, group: GroupId, step: u64) -> bool {
        // Acquire: what the others did before is seen.
        self.0[group.index()].complete[parity(step)].load(Ordering::Acquire) == step
    }

    /// Whether this rank has told all that it has arrived at `step`.
    pub(crate) fn has_told_all(&self, group: GroupId, step: u64) -> bool {
        has(&self.0[group.index()].state().told_all, step)
    }

    /// Which of the members is known to have left without arriving at `step`.
    pub(crate) fn departed(&self, group: GroupId, step: u64, ranks: &[Rank]) -> Option<Rank> {
        let barrier = &self.0[group.index()];
        // Acquire: as above.
        if !barrier.hopeless.load(Ordering::Acquire) {
            return None;
        }
        let state = barrier.state();
        let mut missed = state.departed.iter().filter(|(_, missed)| **missed <= step);
        missed.find(|(rank, _)| ranks.binary_search(rank).is_ok()).map(|(rank, _)| *rank)
    }

    /// Whether a member is known to have arrived at `step`, by its index.
    pub(crate) fn has_arrived(&self, group: GroupId, step: u64, member: usize) -> bool {
        let state = self.0[group.index()].state();
        let Some(tree) = state.tree(step) else { return false };
        let children =
            tree.children.iter().filter_map(|child| tree.ranks.binary_search(child).ok());
        children.into_iter().any(|child| {
            tree.subtree(child).contains(&member) && state.has_gathered(tree.ranks[child], step)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::STEP_BITS;

    const GROUP: GroupId = GroupId(0);

    fn ranks(size: usize) -> Vec<Rank> {
        // Not their indices.
        (0..size).map(|member| Rank(3 * member as u16 + 1)).collect()
    }

    fn barriers(size: usize) -> Vec<TreeBarriers> {
        let ranks = ranks(size);
        let all = (0..size).map(|me| {
            let barriers = TreeBarriers::new(1);
            barriers.committed(GROUP, 1, Some(Arc::new(Tree::new(&ranks, me))));
            barriers
        });
        all.collect()
    }

    fn index(rank: Rank) -> usize {
        usize::from(rank.0) / 3
    }

    /// Delivers what a member says, and what follows from that; counts the messages.
    fn deliver(all: &[TreeBarriers], from: usize, outbound: Option<Outbound>) -> usize {
        let Some(Outbound { to, step, message }) = outbound else { return 0 };
        let sender = ranks(all.len())[from];
        let follow = to.iter().map(|rank| {
            let next = all[index(*rank)].0[0].hear(sender, step, message);
            deliver(all, index(*rank), next)
        });
        to.len() + follow.sum::<usize>()
    }

    fn arrive(all: &[TreeBarriers], member: usize, step: u64) -> usize {
        deliver(all, member, all[member].0[0].arrive(step).0)
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
                    assert!(
                        all.iter().all(|barriers| !barriers.has_completed(GROUP, step)),
                        "{size}"
                    );
                    messages += arrive(&all, (place * 7 + turn as usize) % size, step);
                    if size % 7 == 0 {
                        messages += arrive(&all, place, step);
                    }
                }
                assert!(all.iter().all(|barriers| barriers.has_completed(GROUP, step)), "{size}");
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
            (0..8).filter(|member| all[me].has_arrived(GROUP, step, *member)).collect()
        };
        assert_eq!(known(4), [6, 7]);
        assert!(known(0).is_empty());
    }

    #[test]
    fn who_has_left_misses_all_steps_from_the_first_on_that_it_missed() {
        let (all, ranks) = (barriers(3), ranks(3));
        let step = (1 << STEP_BITS) + 7;
        for of_step in [step + 1, step, step + 2] {
            all[1].0[0].hear(ranks[0], of_step, BarrierMessage::Departed(ranks[2]));
        }
        let departed = |step| all[1].departed(GROUP, step, &ranks);
        assert_eq!(departed(step - 1), None);
        assert!((step..step + 9).all(|step| departed(step) == Some(ranks[2])));
        // A group without it is none of its business.
        assert_eq!(all[1].departed(GROUP, step, &ranks[..2]), None);
    }

    #[test]
    fn all_who_have_arrived_tell_all_once_one_does() {
        let all = barriers(4);
        let step = (1 << STEP_BITS) + 1;
        arrive(&all, 1, step);
        assert!(all[1].0[0].hear_arrival(step));
        assert!(!all[2].0[0].hear_arrival(step));
        assert!(all[2].0[0].arrive(step).1 && !all[3].0[0].arrive(step).1);
    }

    #[test]
    fn what_comes_before_this_rank_has_committed_the_use_is_kept() {
        let all = barriers(3);
        let (old, step) = ((1 << STEP_BITS) + 5, (2 << STEP_BITS) + 1);
        arrive(&all, 0, old);
        let ranks = ranks(3);
        for rank in &ranks[1..] {
            assert!(all[0].0[0].hear(*rank, step, BarrierMessage::Gathered).is_none());
        }
        all[0].committed(GROUP, 2, Some(Arc::new(Tree::new(&ranks[..2], 0))));
        assert!(!all[0].has_completed(GROUP, step));
        // What belongs to the former use goes along its tree.
        all[0].0[0].hear(ranks[1], old, BarrierMessage::Gathered);
        assert!(!all[0].has_completed(GROUP, old));
        assert!(all[0].0[0].arrive(step).0.is_some());
        assert!(all[0].has_completed(GROUP, step) && !all[0].has_completed(GROUP, old));
    }

    #[test]
    fn who_is_a_step_ahead_still_tells_of_the_one_before() {
        let all = barriers(4);
        let (first, second) = ((1 << STEP_BITS) + 1, (1 << STEP_BITS) + 2);
        for member in 0..3 {
            arrive(&all, member, first);
        }
        // Member 3 has told all, and they have gone on, before it tells member 2 along the tree.
        for member in 0..3 {
            arrive(&all, member, second);
        }
        assert!(!all[0].has_completed(GROUP, first));
        arrive(&all, 3, first);
        assert!(all.iter().all(|barriers| barriers.has_completed(GROUP, first)));
        assert!(!all[0].has_completed(GROUP, second));
        arrive(&all, 3, second);
        assert!(all.iter().all(|barriers| barriers.has_completed(GROUP, second)));
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
            // It has failed there, and is in the next one.
            arrive(&all, elsewhere, second);
            for member in others().filter(|member| member % 3 == 0) {
                arrive(&all, member, first);
            }
            assert!(
                all.iter().all(|barriers| !barriers.has_completed(GROUP, first)),
                "{elsewhere}"
            );
            for member in others() {
                arrive(&all, member, second);
            }
            assert!(
                all.iter().all(|barriers| barriers.has_completed(GROUP, second)),
                "{elsewhere}"
            );
            assert!(
                all.iter().all(|barriers| !barriers.has_completed(GROUP, first)),
                "{elsewhere}"
            );
        }
    }
}
