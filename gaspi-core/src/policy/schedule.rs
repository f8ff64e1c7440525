//! Who tells whom, so that all of `n` nodes know of all: data, made by pure functions of `n` and
//! the place of a node. It sends nothing itself.
//!
//! ```text
//! tree           2 (n - 1) messages in all, 2 hops for up to 16 nodes. Up the k-nomial tree: all
//!                below have arrived; down: all have.
//! dissemination  n ceil(log2 n) messages, ceil(log2 n) hops. In round k a node tells the one 2^k
//!                behind it of the 2^k nodes up to itself, in the last round of those that are
//!                missing there.
//! ```
//!
//! Steps of groups go by it between the leaders of nodes, and so do commits (`control/leaders.rs`).
//! Barriers and all-gathers of gaspi-collectives are made of it too, and its proof proves both
//! schedules.
//!
//! Invariant: a node sends a message only when it has arrived itself and has all messages that the
//! message depends on. So whoever has all of its messages knows that all nodes have arrived.

use super::knomial_tree::KnomialTree;

/// The rule by which nodes tell each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Up a tree and down.
    Tree,
    /// All in rounds.
    Dissemination,
}

impl Pattern {
    /// The pattern that takes the least time among so many nodes, without data. It has to be asked
    /// what all of them know alike.
    ///
    /// Where members share cores each message delays another member, so that fewest messages take
    /// the least time; else fewest hops do. Two nodes take as many by either.
    pub fn of(nodes: usize, shares_cores: impl FnOnce() -> bool) -> Pattern {
        if nodes > 2 && shares_cores() { Pattern::Tree } else { Pattern::Dissemination }
    }

    /// The messages of node `me` of `n`.
    pub fn schedule(self, n: usize, me: usize) -> Schedule {
        match self {
            Pattern::Tree => Schedule::tree(n, me),
            Pattern::Dissemination => Schedule::dissemination(n, me),
        }
    }
}

/// A set of neighbours among the nodes, around the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// The first of them.
    pub first: usize,
    /// How many there are.
    pub count: usize,
}

impl Nodes {
    /// Its nodes, of `n` in all.
    pub fn iter(self, n: usize) -> impl Iterator<Item = usize> {
        (self.first..self.first + self.count).map(move |node| node % n)
    }

    /// Whether it has this node, of `n` in all.
    pub(crate) fn has(self, node: usize, n: usize) -> bool {
        (node + n - self.first) % n < self.count
    }
}

/// A message that a node gets.
#[derive(Clone, Copy, Debug)]
pub struct Incoming {
    /// Its sender.
    pub from: usize,
    /// What tells it from others of that sender.
    pub tag: u8,
    /// The nodes that it tells of.
    pub of: Nodes,
}

/// A message that a node sends.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// How many of the incoming messages, in their order, it depends on.
    pub after: usize,
    /// Who gets it.
    pub to: Box<[usize]>,
    /// What tells it from others of this sender.
    pub tag: u8,
    /// The nodes that it tells of.
    pub of: Nodes,
}

/// The messages of one node.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// Those that come.
    pub incoming: Box<[Incoming]>,
    /// Those that go, in the order in which they become due.
    pub outgoing: Box<[Outgoing]>,
}

/// The tags of a tree's messages; those of a dissemination are the rounds.
const UP: u8 = 0;
const DOWN: u8 = 1;

/// Tags are below this number.
pub const TAGS: usize = 16;

impl Schedule {
    fn tree(n: usize, me: usize) -> Schedule {
        let tree = KnomialTree::of(n);
        let below = |first: usize| Nodes { first, count: tree.subtree(first) };
        let all = below(0);
        // The largest subtree has the longest way to go.
        let mut below_me: Vec<usize> = tree.children(me).collect();
        below_me.reverse();
        let up = below_me.iter().map(|child| Incoming { from: *child, tag: UP, of: below(*child) });
        let down = tree.parent(me).map(|parent| Incoming { from: parent, tag: DOWN, of: all });
        let incoming: Box<[Incoming]> = up.chain(down).collect();
        let send = |after, to, tag, of| Outgoing { after, to, tag, of };
        let up = tree.parent(me).map(|parent| send(below_me.len(), [parent].into(), UP, below(me)));
        let down = (!below_me.is_empty()).then(|| send(incoming.len(), below_me.into(), DOWN, all));
        Schedule { outgoing: up.into_iter().chain(down).collect(), incoming }
    }

    /// Rounds of a dissemination among `n` nodes.
    pub const fn rounds(n: usize) -> usize {
        n.next_power_of_two().trailing_zeros() as usize
    }

    fn dissemination(n: usize, me: usize) -> Schedule {
        let rounds = Schedule::rounds(n);
        // What a node knows before a round, and its receiver does not.
        let told = |node: usize, round: usize| {
            let known = 1 << round;
            let count = known.min(n - known);
            Nodes { first: (node + n + 1 - count) % n, count }
        };
        let incoming = (0..rounds).map(|round| {
            let from = (me + n - (1 << round)) % n;
            Incoming { from, tag: round as u8, of: told(from, round) }
        });
        let outgoing = (0..rounds).map(|round| {
            let to = [(me + (1 << round)) % n].into();
            Outgoing { after: round, to, tag: round as u8, of: told(me, round) }
        });
        Schedule { incoming: incoming.collect(), outgoing: outgoing.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_nodes_go_around_the_end() {
        let nodes = Nodes { first: 5, count: 3 };
        assert!(nodes.iter(7).eq([5, 6, 0]));
        let has: Vec<usize> = (0..7).filter(|node| nodes.has(*node, 7)).collect();
        assert_eq!(has, [0, 5, 6]);
    }

    #[test]
    fn nodes_that_share_cores_go_along_a_tree_from_three_on() {
        for nodes in 1..=70 {
            let of = |shares_cores| Pattern::of(nodes, || shares_cores);
            let shared = if nodes < 3 { Pattern::Dissemination } else { Pattern::Tree };
            assert_eq!((of(true), of(false)), (shared, Pattern::Dissemination));
        }
    }

    /// Messages are told apart by receiver, sender and tag.
    #[test]
    fn each_message_is_expected_by_its_receiver_and_has_a_tag_of_its_own() {
        for pattern in [Pattern::Tree, Pattern::Dissemination] {
            for n in (1..=70).chain([257, 1000]) {
                let (mut sent, mut awaited) = (Vec::new(), Vec::new());
                for me in 0..n {
                    let Schedule { incoming, outgoing } = pattern.schedule(n, me);
                    for Outgoing { to, tag, of, .. } in outgoing {
                        sent.extend(
                            to.iter().map(|to| ([*to, me, tag.into()], of.first, of.count)),
                        );
                    }
                    for Incoming { from, tag, of } in incoming {
                        awaited.push(([me, from, tag.into()], of.first, of.count));
                    }
                }
                sent.sort_unstable();
                awaited.sort_unstable();
                assert_eq!(sent, awaited, "{pattern:?} of {n}");
                assert!(sent.is_sorted_by(|one, next| one.0 < next.0), "{pattern:?} of {n}");
                assert!(sent.iter().all(|([_, _, tag], ..)| *tag < TAGS), "{pattern:?} of {n}");
            }
        }
    }
}
