//! Which ranks of a node watch other nodes on behalf of all of it.
//!
//! A rank that is named here has a keepalive connection with the other node, or makes one; what it
//! finds out all of its node see in the liveness words. A rank takes the place of one that has
//! ended, and gives up its own where it cannot watch. Nodes go by their numbers in the order of
//! their first ranks, which all ranks of the job agree on.

use super::{SharedArea, liveness};
use crate::ids::Rank;
use crate::sync::{AtomicU32, Ordering};
use crate::wire::shared_layout::WATCHERS;

impl SharedArea {
    fn watchers(&self, node: usize) -> &[AtomicU32; WATCHERS] {
        self.at(self.layout.watchers(node))
    }

    /// The word of a watcher.
    fn watches(&self) -> u32 {
        u32::from(self.own.0) + 1
    }

    /// Whether a word names a rank of this node that has not ended.
    fn names_one_that_lives(&self, word: u32) -> bool {
        let rank = word.checked_sub(1).and_then(|rank| u16::try_from(rank).ok()).map(Rank);
        let lives = |rank: &Rank| !matches!(self.liveness(*rank), liveness::DEAD | liveness::LEFT);
        rank.is_some_and(|rank| self.locals.binary_search(&rank).is_ok() && lives(&rank))
    }

    /// Whether this rank watches `node` for all of its own.
    pub(crate) fn is_watcher(&self, node: usize) -> bool {
        self.watchers(node).iter().any(|word| word.load(Ordering::Relaxed) == self.watches())
    }

    /// Whether as many others as have to watch `node`, so that this rank needs not.
    pub(crate) fn is_watched_by_others(&self, node: usize) -> bool {
        self.watchers(node).iter().all(|word| {
            let word = word.load(Ordering::Relaxed);
            word != self.watches() && self.names_one_that_lives(word)
        })
    }

    /// This rank watches `node` for all of its own from now on, unless enough others do; whether it
    /// is one that does.
    pub(crate) fn claim_watch(&self, node: usize) -> bool {
        if self.is_watcher(node) {
            return true;
        }
        self.watchers(node).iter().any(|place| {
            let (word, order) = (place.load(Ordering::Relaxed), Ordering::Relaxed);
            // Nothing else is published by these words: a rank acts on what it reads here alone.
            !self.names_one_that_lives(word)
                && place.compare_exchange(word, self.watches(), order, order).is_ok()
        })
    }

    /// This rank does not watch `node` any more: nobody of it lives.
    pub(crate) fn end_watch(&self, node: usize) -> bool {
        self.watchers(node).iter().any(|place| {
            let order = Ordering::Relaxed;
            place.compare_exchange(self.watches(), 0, order, order).is_ok()
        })
    }

    /// The same where this rank cannot: others of its node, who rely on it, look anew.
    pub(crate) fn hand_over_watch(&self, node: usize) {
        if self.end_watch(node) {
            // Release: pairs with the Acquire in `ends`.
            self.departures().fetch_add(1, Ordering::Release);
            self.wake_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{SharedLayout, memory};
    use super::*;

    const RANKS: u16 = 4;

    fn areas() -> [SharedArea; RANKS as usize] {
        let layout = SharedLayout::new(u32::from(RANKS), 1);
        let fd = memory::create(c"gaspi-node", layout.bytes(), false).unwrap();
        let locals: Box<[Rank]> = (0..RANKS).map(Rank).collect();
        std::array::from_fn(|own| {
            let own = Rank(own as u16);
            SharedArea::map(&fd, RANKS.into(), 1, own, locals.clone()).unwrap()
        })
    }

    #[test]
    fn two_ranks_watch_a_node_and_others_take_the_place_of_one_that_has_ended() {
        let [a, b, c, d] = areas();
        [&a, &b, &c, &d].into_iter().for_each(SharedArea::join);
        assert!(!c.is_watched_by_others(1));
        assert!(a.claim_watch(1) && !c.is_watched_by_others(1));
        assert!(a.claim_watch(1) && b.claim_watch(1) && !c.claim_watch(1));
        assert!(c.is_watched_by_others(1) && !a.is_watched_by_others(1));
        // Each node has words of its own, the last one too.
        assert!(d.claim_watch(3) && !d.is_watcher(2) && !d.is_watcher(1));

        c.mark_dead(Rank(0));
        assert!(!c.is_watched_by_others(1) && c.claim_watch(1) && !d.claim_watch(1));
        b.leave();
        assert!(!d.is_watched_by_others(1) && d.claim_watch(1));
        assert!(c.is_watcher(1) && d.is_watcher(1) && !a.is_watcher(1));
    }

    #[test]
    fn whoever_gives_up_a_watch_tells_those_who_rely_on_it() {
        let [a, b, c, _] = areas();
        assert!(a.claim_watch(0) && b.claim_watch(0));
        let known = c.ends();
        a.hand_over_watch(0);
        assert!(c.ends() != known && c.claim_watch(0) && !a.claim_watch(0));
        // Who does not watch has nothing to give up.
        let known = c.ends();
        a.hand_over_watch(0);
        assert!(c.ends() == known && c.is_watcher(0));
    }
}
