//! Which messages the leaders of nodes send each other in a step, as data: one schedule per node.
//!
//! Nodes are given by their index, `n` of them. Two schedules lead to all nodes knowing of all:
//!
//! ```text
//! tree           2 (n - 1) messages in all, 2 log2 n hops. Binomial: the parent of v is v without
//!                its lowest bit. Up: all below have arrived; down: all have.
//! dissemination  n ceil(log2 n) messages, ceil(log2 n) hops. In round k a node tells the one 2^k
//!                behind it of the 2^k nodes up to itself.
//! ```
//!
//! The tree costs the least where nodes share cores, so that each message delays a node.
//!
//! Invariant: a node sends a message only when it has arrived itself and has all messages that the
//! message depends on. So whoever has all of its messages knows that all nodes have arrived.

/// A set of neighbours among the nodes, around the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Nodes {
    first: usize,
    count: usize,
}

impl Nodes {
    /// Its nodes, of `n` in all.
    pub(super) fn iter(self, n: usize) -> impl Iterator<Item = usize> {
        (self.first..self.first + self.count).map(move |node| node % n)
    }

    /// Whether it has this node, of `n` in all.
    pub(super) fn has(self, node: usize, n: usize) -> bool {
        (node + n - self.first) % n < self.count
    }
}

/// A message that a node gets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Incoming {
    /// Its sender.
    pub(super) from: usize,
    pub(super) tag: u8,
    /// The nodes that it tells of.
    pub(super) of: Nodes,
}

/// A message that a node sends.
#[derive(Clone, Debug)]
pub(super) struct Outgoing {
    /// How many of the incoming messages, in their order, it depends on.
    pub(super) after: usize,
    pub(super) to: Box<[usize]>,
    pub(super) tag: u8,
    pub(super) of: Nodes,
}

/// The messages of one node.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    pub(super) incoming: Box<[Incoming]>,
    /// In the order in which they become due.
    pub(super) outgoing: Box<[Outgoing]>,
}

/// The tags of a tree's messages; those of a dissemination are the rounds.
const UP: u8 = 0;
const DOWN: u8 = 1;

/// Tags are below this number.
pub(super) const TAGS: usize = 16;
/// From here on they are those of chunks that members send each other (`control/chunks.rs`).
pub(in crate::control) const CHUNK_TAGS: u8 = TAGS as u8;

impl Schedule {
    /// That of node `me` in a tree.
    pub(super) fn tree(n: usize, me: usize) -> Schedule {
        let below = |node: usize| {
            let lowest = if node == 0 { n.next_power_of_two() } else { node & node.wrapping_neg() };
            Nodes { first: node, count: lowest.min(n - node) }
        };
        let all = Nodes { first: 0, count: n };
        let bits = if me == 0 { n.next_power_of_two() } else { me & me.wrapping_neg() };
        // The largest subtree first.
        let children = (0..bits.trailing_zeros()).rev().map(|bit| me + (1 << bit));
        let children: Box<[usize]> = children.filter(|child| *child < n).collect();
        let up = children.iter().map(|child| Incoming { from: *child, tag: UP, of: below(*child) });
        let parent = (me > 0).then(|| me & (me - 1));
        let down = parent.map(|parent| Incoming { from: parent, tag: DOWN, of: all });
        let incoming: Box<[Incoming]> = up.chain(down).collect();
        let send = |after, to, tag, of| Outgoing { after, to, tag, of };
        let up = parent.map(|parent| send(children.len(), [parent].into(), UP, below(me)));
        let down = (!children.is_empty()).then(|| send(incoming.len(), children, DOWN, all));
        Schedule { outgoing: up.into_iter().chain(down).collect(), incoming }
    }

    /// Rounds of a dissemination among `n` nodes.
    pub(super) fn rounds(n: usize) -> usize {
        n.next_power_of_two().trailing_zeros() as usize
    }

    /// That of node `me` where each round doubles what a node knows.
    pub(super) fn dissemination(n: usize, me: usize) -> Schedule {
        let rounds = Schedule::rounds(n);
        // What a node knows before a round.
        let known = |node: usize, round: usize| {
            let count = (1 << round).min(n);
            Nodes { first: (node + n + 1 - count) % n, count }
        };
        let incoming = (0..rounds).map(|round| {
            let from = (me + n - (1 << round)) % n;
            Incoming { from, tag: round as u8, of: known(from, round) }
        });
        let outgoing = (0..rounds).map(|round| {
            let to = [(me + (1 << round)) % n].into();
            Outgoing { after: round, to, tag: round as u8, of: known(me, round) }
        });
        Schedule { incoming: incoming.collect(), outgoing: outgoing.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// One node as it goes through its schedule.
    struct Node {
        schedule: Schedule,
        arrived: bool,
        got: Vec<bool>,
        sent: usize,
        /// Nodes that it may tell of.
        knows: Vec<bool>,
    }

    impl Node {
        fn is_complete(&self) -> bool {
            self.arrived && self.got.iter().all(|got| *got)
        }
    }

    /// Has the nodes arrive in some order, and delivers messages in another one that a seed gives;
    /// returns how many messages each node sent.
    fn play(n: usize, of: fn(usize, usize) -> Schedule, seed: usize) -> Vec<usize> {
        let mut nodes: Vec<Node> = (0..n)
            .map(|me| {
                let schedule = of(n, me);
                assert!(schedule.incoming.iter().all(|incoming| usize::from(incoming.tag) < TAGS));
                let got = vec![false; schedule.incoming.len()];
                Node { schedule, arrived: false, got, sent: 0, knows: vec![false; n] }
            })
            .collect();
        let mut sent = vec![0; n];
        let mut under_way: VecDeque<(usize, usize, u8, Vec<usize>)> = VecDeque::new();
        for place in 0..n {
            let arrives = (place * (2 * seed + 1) + seed) % n;
            assert!(nodes.iter().all(|node| !node.is_complete()), "{n}");
            // Some of these numbers repeat where the factor divides n: look for one that is left.
            let arrives = (0..n).map(|by| (arrives + by) % n).find(|node| !nodes[*node].arrived);
            let arrives = arrives.expect("one is left");
            nodes[arrives].arrived = true;
            nodes[arrives].knows[arrives] = true;
            let mut due = vec![arrives];
            loop {
                for me in due.drain(..) {
                    let node = &mut nodes[me];
                    let ready = node.got.iter().take_while(|got| **got).count();
                    while let Some(next) = node.schedule.outgoing.get(node.sent) {
                        if !node.arrived || next.after > ready {
                            break;
                        }
                        let of: Vec<usize> = next.of.iter(n).collect();
                        assert!(of.iter().all(|told| node.knows[*told]), "{n}: {me} tells {of:?}");
                        for to in &next.to {
                            sent[me] += 1;
                            under_way.push_back((me, *to, next.tag, of.clone()));
                        }
                        node.sent += 1;
                    }
                }
                let turn = if under_way.is_empty() { break } else { seed % under_way.len() };
                under_way.rotate_left(turn);
                let Some((from, to, tag, of)) = under_way.pop_front() else { break };
                let node = &mut nodes[to];
                let is_it = |i: &Incoming| i.from == from && i.tag == tag;
                let at = node.schedule.incoming.iter().position(is_it).expect("it is expected");
                assert!(!node.got[at], "{n}: twice");
                assert!(node.schedule.incoming[at].of.iter(n).eq(of.iter().copied()), "{n}");
                node.got[at] = true;
                of.iter().for_each(|told| node.knows[*told] = true);
                due.push(to);
            }
        }
        assert!(
            nodes.iter().all(|node| node.is_complete() && node.knows.iter().all(|k| *k)),
            "{n}"
        );
        sent
    }

    #[test]
    fn nobody_is_complete_before_all_have_arrived_and_then_all_are() {
        for n in 2..=65 {
            for seed in 0..7 {
                let sent = play(n, Schedule::tree, seed);
                assert_eq!(sent.iter().sum::<usize>(), 2 * (n - 1));
                let sent = play(n, Schedule::dissemination, seed);
                let rounds = n.next_power_of_two().trailing_zeros() as usize;
                assert!(sent.iter().all(|sent| *sent == rounds));
            }
        }
        play(257, Schedule::tree, 3);
        play(257, Schedule::dissemination, 3);
    }

    #[test]
    fn sets_of_nodes_go_around_the_end() {
        let nodes = Nodes { first: 5, count: 3 };
        assert!(nodes.iter(7).eq([5, 6, 0]));
        let has: Vec<usize> = (0..7).filter(|node| nodes.has(*node, 7)).collect();
        assert_eq!(has, [0, 5, 6]);
    }
}
