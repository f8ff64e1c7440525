//! Along which edges ranks tell each other of ends: a binomial tree of the ranks of each node, and
//! one of the nodes, of which the lowest living rank speaks.
//!
//! Invariant: a parent comes before its child in the order of the nodes and of the ranks in them,
//! so that edges form no circle, whatever each rank knows of who lives.

use super::knomial_tree::KnomialTree;
use crate::ids::Rank;
use std::sync::Arc;

/// The place of one rank in the tree.
#[derive(Debug)]
pub(crate) struct RankTree {
    order: Arc<Order>,
    node: usize,
    position: usize,
}

/// What is the same for all ranks of a job: who is of which node. Nodes have the order of their
/// first ranks.
#[derive(Debug)]
pub(crate) struct Order {
    /// The ranks of one node after the other, ascending.
    ranks: Box<[Rank]>,
    /// Where those of each node begin, and where the last ones end.
    starts: Box<[u32]>,
    /// Of each rank: its node, and where it stands among the ranks of that.
    places: Box<[(u16, u16)]>,
}

impl Order {
    /// That of ranks whose nodes have these names.
    pub(crate) fn new(node_of: impl Iterator<Item = u64>) -> Arc<Order> {
        let with_rank = |(rank, name)| [name, rank as u64];
        Order::sorting(&mut node_of.enumerate().map(with_rank).collect::<Vec<_>>())
    }

    /// The same by a list of names and ranks, which is sorted.
    pub(crate) fn sorting(by_name: &mut [[u64; 2]]) -> Arc<Order> {
        by_name.sort_unstable();
        // First with the first rank of the node instead of its number.
        let mut places: Box<[(u16, u16)]> = by_name.iter().map(|_| (0, 0)).collect();
        for of_node in by_name.chunk_by(|one, other| one[0] == other[0]) {
            for (at, [_, rank]) in of_node.iter().enumerate() {
                places[*rank as usize] = (of_node[0][1] as u16, at as u16);
            }
        }
        let mut nodes = 0;
        for rank in 0..places.len() {
            let (first, at) = places[rank];
            if at == 0 {
                places[rank].0 = nodes as u16;
                nodes += 1;
            } else {
                places[rank].0 = places[usize::from(first)].0;
            }
        }
        let mut starts: Box<[u32]> = (0..=nodes).map(|_| 0).collect();
        for (node, _) in &places {
            starts[usize::from(*node) + 1] += 1;
        }
        for node in 1..starts.len() {
            starts[node] += starts[node - 1];
        }
        let mut ranks: Box<[Rank]> = places.iter().map(|_| Rank(0)).collect();
        for (rank, (node, at)) in places.iter().enumerate() {
            let start = starts[usize::from(*node)] as usize;
            ranks[start + usize::from(*at)] = Rank(rank as u16);
        }
        Arc::new(Order { ranks, starts, places })
    }

    /// How many nodes there are.
    pub(crate) fn nodes(&self) -> usize {
        self.starts.len() - 1
    }

    /// The ranks of a node, ascending.
    pub(crate) fn of_node(&self, node: usize) -> &[Rank] {
        &self.ranks[self.starts[node] as usize..self.starts[node + 1] as usize]
    }

    /// The node of a rank: nodes are in the order of their first ranks.
    pub(crate) fn node_of(&self, rank: Rank) -> usize {
        self.places[rank.index()].0.into()
    }
}

impl RankTree {
    /// The place of `me`.
    pub(crate) fn of(order: Arc<Order>, me: Rank) -> RankTree {
        let (node, position) = order.places[me.index()];
        RankTree { order, node: node.into(), position: position.into() }
    }

    /// The same, where `node_of` tells the node of each rank of a job.
    #[cfg(test)]
    pub(crate) fn new(me: Rank, node_of: &[u64]) -> RankTree {
        RankTree::of(Order::new(node_of.iter().copied()), me)
    }

    /// Who is of which node.
    pub(crate) fn order(&self) -> &Order {
        &self.order
    }

    /// The node of this rank.
    pub(crate) fn node(&self) -> usize {
        self.node
    }

    /// The place of another rank of the same job.
    #[cfg(test)]
    pub(crate) fn seen_by(&self, rank: Rank) -> RankTree {
        RankTree::of(Arc::clone(&self.order), rank)
    }

    /// Whether `rank` comes before `other`, as a parent does before its child.
    pub(crate) fn is_before(&self, rank: Rank, other: Rank) -> bool {
        self.order.places[rank.index()] < self.order.places[other.index()]
    }

    /// Whether both are of the same node.
    pub(crate) fn are_beside(&self, rank: Rank, other: Rank) -> bool {
        self.order.node_of(rank) == self.order.node_of(other)
    }

    /// With whom this rank keeps a connection; none for the first one that lives.
    pub(crate) fn parent(&self, lives: impl Fn(Rank) -> bool) -> Option<Rank> {
        let own = self.order.of_node(self.node);
        if let Some(position) = parent_of(self.position, own.len(), |at| lives(own[at])) {
            return Some(own[position]);
        }
        let first_of = |node| self.first_of(node, &lives);
        let node_lives = |node| first_of(node).is_some();
        parent_of(self.node, self.order.nodes(), node_lives).and_then(first_of)
    }

    /// Whose parent this rank is, which lives.
    pub(crate) fn children(&self, lives: impl Fn(Rank) -> bool) -> Vec<Rank> {
        let own = self.order.of_node(self.node);
        let lives_at = |at: usize| lives(own[at]);
        let in_node = children_of(self.position, own.len(), lives_at);
        let mut children: Vec<Rank> = in_node.into_iter().map(|at| own[at]).collect();
        if parent_of(self.position, own.len(), lives_at).is_none() {
            let first_of = |node| self.first_of(node, &lives);
            let node_lives = |node| first_of(node).is_some();
            let nodes = children_of(self.node, self.order.nodes(), node_lives);
            children.extend(nodes.into_iter().filter_map(first_of));
        }
        children
    }

    /// All ranks, those first that have most others below them while all live.
    pub(crate) fn highest_first(&self) -> Vec<Rank> {
        let of_nodes = KnomialTree::binomial(self.order.nodes());
        let of_node = |node| {
            let ranks = self.order.of_node(node);
            let of_ranks = KnomialTree::binomial(ranks.len());
            let height_at = move |at| match at {
                0 => u32::BITS + of_nodes.height(node),
                position => of_ranks.height(position),
            };
            let ranks = ranks.iter().enumerate();
            ranks.map(move |(at, rank)| (height_at(at), *rank))
        };
        let mut all: Vec<_> = (0..self.order.nodes()).flat_map(of_node).collect();
        all.sort_by_key(|(height, _)| std::cmp::Reverse(*height));
        all.into_iter().map(|(_, rank)| rank).collect()
    }

    /// The lowest living rank of a node.
    fn first_of(&self, node: usize, lives: impl Fn(Rank) -> bool) -> Option<Rank> {
        self.order.of_node(node).iter().copied().find(|rank| lives(*rank))
    }
}

/// The parent of an index, of so many; the next living ancestor if that one is gone, else the
/// lowest living index.
fn parent_of(of: usize, count: usize, lives: impl Fn(usize) -> bool) -> Option<usize> {
    let tree = KnomialTree::binomial(count);
    let mut ancestor = of;
    while let Some(parent) = tree.parent(ancestor) {
        if lives(parent) {
            return Some(parent);
        }
        ancestor = parent;
    }
    (0..of).find(|index| lives(*index))
}

/// The living indexes, of so many, whose parent this one is, which lives.
fn children_of(of: usize, count: usize, lives: impl Fn(usize) -> bool) -> Vec<usize> {
    let mut above = vec![of];
    if parent_of(of, count, &lives).is_none() && of != 0 {
        // It is in the place of all that were above others.
        above.push(0);
    }
    let tree = KnomialTree::binomial(count);
    let mut children = Vec::new();
    while let Some(at) = above.pop() {
        for index in tree.children(at) {
            if lives(index) { children.push(index) } else { above.push(index) }
        }
    }
    children.retain(|index| *index != of);
    children
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who tells whom, where these ranks live on nodes of so many.
    fn parents(size: u16, per_node: u16, lives: impl Fn(Rank) -> bool) -> Vec<Option<Rank>> {
        let node_of: Vec<u64> = (0..size).map(|rank| u64::from(rank / per_node)).collect();
        let of = |rank| RankTree::new(Rank(rank), &node_of).parent(&lives);
        (0..size).map(of).collect()
    }

    /// How far a rank is from the first one.
    fn depth(parents: &[Option<Rank>], rank: usize) -> usize {
        parents[rank].map_or(0, |parent| {
            assert!(parent.index() < rank, "{rank} has {parent}");
            1 + depth(parents, parent.index())
        })
    }

    #[test]
    fn all_that_live_hang_together_whoever_has_ended() {
        for (size, per_node) in [(1, 1), (2, 1), (3, 2), (24, 2), (33, 1), (64, 8), (70, 16)] {
            for seed in 0..200u32 {
                // Each seed leaves others alive, from nearly all to very few.
                let lives = |rank: Rank| {
                    let drawn = (seed ^ u32::from(rank.0)).wrapping_mul(0x9E37_79B1) >> 24;
                    drawn >= seed
                };
                let parents = parents(size, per_node, lives);
                let living = (0..size).map(Rank).filter(|rank| lives(*rank));
                let roots = living.clone().filter(|rank| parents[rank.index()].is_none());
                assert_eq!(roots.count(), living.clone().count().min(1), "{size}, {seed}");
                let node_of: Vec<u64> = (0..size).map(|rank| u64::from(rank / per_node)).collect();
                for rank in living {
                    let parent = parents[rank.index()];
                    let tree = RankTree::new(rank, &node_of);
                    assert!(
                        parent.is_none_or(|parent| lives(parent) && tree.is_before(parent, rank))
                    );
                    let has_it = |of: &Rank| lives(*of) && parents[of.index()] == Some(rank);
                    let mut children: Vec<Rank> = (0..size).map(Rank).filter(has_it).collect();
                    let mut found = tree.children(lives);
                    children.sort_unstable();
                    found.sort_unstable();
                    assert_eq!(found, children, "of {rank} among {size}, {seed}");
                    depth(&parents, rank.index());
                }
            }
        }
    }

    #[test]
    fn those_with_most_ranks_below_them_come_first() {
        let order = |size: u64, per_node| -> Vec<u16> {
            let node_of: Vec<u64> = (0..size).map(|rank| rank / per_node).collect();
            let order = RankTree::new(Rank(1), &node_of).highest_first();
            order.into_iter().map(|rank| rank.0).collect()
        };
        assert_eq!(order(8, 1), [0, 4, 2, 6, 1, 3, 5, 7]);
        // Two nodes, whose first ranks speak for them.
        assert_eq!(order(8, 4), [0, 4, 2, 6, 1, 3, 5, 7]);
        assert_eq!(order(6, 3), [0, 3, 2, 5, 1, 4]);
    }

    #[test]
    fn connections_of_a_rank_and_the_way_grow_with_the_logarithm() {
        for (size, per_node) in [(128, 1), (128, 16), (1024, 64), (1000, 3)] {
            let parents = parents(size, per_node, |_| true);
            let limit = 2 + size.ilog2() as usize;
            for rank in 0..usize::from(size) {
                let children = parents.iter().flatten().filter(|p| p.index() == rank).count();
                assert!(children <= limit, "{rank} of {size} has {children}");
                assert!(depth(&parents, rank) <= limit);
            }
        }
    }
}
