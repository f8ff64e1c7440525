//! K-nomial trees of places. Places have positions, that of the root is 0, and the parent of a
//! position is the position without its lowest digit that is not 0, in numbers to the base k, the
//! radix. With a radix of 2 it is a binomial tree, and a star with one that no position reaches.
//! Positions are in the order of the places, where the first one is the root.
//!
//! There are two of them:
//! - *of groups*: steps of groups go along it where members share cores, since whoever waits for
//!   many at once sleeps once. A higher radix takes more connections of the root. There are as many
//!   positions as the next power of two. If there are fewer places, each of the last ones takes two
//!   positions, so that each subtree stands for a power of two. In recursive doubling a place of
//!   two positions counts as much as two neighbours of one (gaspi-collectives,
//!   `algorithms/fold.rs`), so that doubling combines what subtrees combine. Any place may be the
//!   root: positions are XORed with its one, so that each subtree is of neighbours still, and of
//!   those that doubling combines.
//! - *binomial*: news of ends go along it, and so do trees of gaspi-collectives. Positions are
//!   places.

/// So many places have the higher radix. With 16 and 32 of them on two cores it takes the least
/// time of 2, 4, 8, 16; with 64 and 128 both take about as long.
const SMALL: usize = 64;
const DIGIT_BITS_OF_SMALL: u32 = 4;
const DIGIT_BITS: u32 = 3;

/// The tree of so many places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnomialTree {
    n: usize,
    /// The radix is 2 to this power.
    digit_bits: u32,
    /// So many places take one position, all behind them two.
    narrow: usize,
    /// What positions in the order of the places are XORed with. Not 0 only in trees of groups,
    /// which have a place at each position.
    turned: usize,
}

impl KnomialTree {
    /// That of a group, of `n` places; there is at least one. The first one is the root.
    pub const fn of(n: usize) -> KnomialTree {
        let digit_bits = if n <= SMALL { DIGIT_BITS_OF_SMALL } else { DIGIT_BITS };
        KnomialTree { n, digit_bits, narrow: 2 * n - n.next_power_of_two(), turned: 0 }
    }

    /// That of a group with another root.
    pub const fn with_root(n: usize, root: usize) -> KnomialTree {
        let tree = KnomialTree::of(n);
        KnomialTree { turned: tree.in_order(root), ..tree }
    }

    /// The binomial one of `n` places.
    pub const fn binomial(n: usize) -> KnomialTree {
        KnomialTree { n, digit_bits: 1, narrow: n, turned: 0 }
    }

    /// The first position of a place in the order of the places; of `n`: how many there are.
    const fn in_order(self, place: usize) -> usize {
        place + place.saturating_sub(self.narrow)
    }

    /// How many places begin before a position in the order of the places.
    const fn before(self, position: usize) -> usize {
        position - position.saturating_sub(self.narrow) / 2
    }

    /// The first position of a place.
    const fn position(self, place: usize) -> usize {
        // Two positions of one place differ in the lowest bit.
        (self.in_order(place) ^ self.turned) & !(self.width(place) - 1)
    }

    /// The place at a position.
    const fn place(self, position: usize) -> usize {
        let position = position ^ self.turned;
        self.before(if position < self.narrow { position } else { position & !1 })
    }

    /// How many positions a place takes itself: one, or two.
    pub const fn width(self, place: usize) -> usize {
        if place < self.narrow { 1 } else { 2 }
    }

    /// Of two neighbouring parts of the tree, of so many positions each: whether the places of the
    /// second one come before those of the first one.
    pub const fn is_turned(self, span: usize) -> bool {
        self.turned & span != 0
    }

    /// 2 to this power positions are in the subtree of a place, or would be if there were so many.
    const fn unit_bits(self, place: usize) -> u32 {
        match self.position(place) {
            0 => {
                let bits = self.in_order(self.n).next_power_of_two().trailing_zeros();
                bits.next_multiple_of(self.digit_bits)
            }
            position => {
                let bits = position.trailing_zeros();
                bits - bits % self.digit_bits
            }
        }
    }

    /// How many levels are below a place, where no place lacks.
    pub(crate) const fn height(self, place: usize) -> u32 {
        self.unit_bits(place) / self.digit_bits
    }

    /// The parent of a place; the root has none.
    pub const fn parent(self, place: usize) -> Option<usize> {
        let position = self.position(place);
        if position == 0 {
            return None;
        }
        let bits = self.unit_bits(place) + self.digit_bits;
        Some(self.place(position >> bits << bits))
    }

    /// The children of a place, the nearest and smallest subtrees first.
    pub fn children(self, place: usize) -> impl Iterator<Item = usize> {
        let (first, end) = (self.position(place), self.in_order(self.n));
        let units = (0..self.unit_bits(place)).step_by(self.digit_bits as usize);
        let digits = 1..1_usize << self.digit_bits;
        let positions =
            units.flat_map(move |bits| digits.clone().map(move |it| first + (it << bits)));
        let children =
            positions.take_while(move |at| *at < end).map(move |at| (at, self.place(at)));
        // No place begins at the second position of another one.
        children.filter(move |(at, child)| self.position(*child) == *at).map(|(_, child)| child)
    }

    /// How many places are in the subtree of a place: they are behind each other.
    pub fn subtree(self, place: usize) -> usize {
        let span = self.span(place);
        let first = (self.position(place) ^ self.turned) & !(span - 1);
        self.before((first + span).min(self.in_order(self.n))) - self.before(first)
    }

    /// How many positions the subtree of a place takes: in a tree of a group a power of two, and
    /// its first position a multiple of that.
    pub fn span(self, place: usize) -> usize {
        self.width(place).max(1 << self.unit_bits(place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes() -> impl Iterator<Item = usize> {
        (1..=140).chain([511, 512, 513, 4097])
    }

    #[test]
    fn a_subtree_has_a_place_and_the_subtrees_of_its_children() {
        for n in sizes() {
            for tree in [KnomialTree::of(n), KnomialTree::binomial(n)] {
                assert_eq!((tree.parent(0), tree.subtree(0)), (None, n));
                for place in 0..n {
                    let mut next = place + 1;
                    for child in tree.children(place) {
                        assert_eq!((child, tree.parent(child)), (next, Some(place)), "{tree:?}");
                        next += tree.subtree(child);
                    }
                    assert_eq!(next, place + tree.subtree(place), "{place} of {tree:?}");
                }
            }
        }
    }

    /// The first roots, and the last ones.
    fn roots(n: usize) -> impl Iterator<Item = usize> {
        (0..n).filter(move |root| *root < 70 || root + 3 > n)
    }

    #[test]
    fn any_place_is_the_root_of_a_tree_of_all() {
        for n in sizes() {
            for root in roots(n) {
                let tree = KnomialTree::with_root(n, root);
                assert_eq!((tree.parent(root), tree.subtree(root)), (None, n));
                let mut children: Vec<usize> = (0..n).flat_map(|it| tree.children(it)).collect();
                let is_child = |place: usize| {
                    tree.parent(place).is_none_or(|above| tree.children(above).any(|c| c == place))
                };
                assert!((0..n).all(is_child), "{tree:?}");
                children.push(root);
                children.sort_unstable();
                assert!(children.into_iter().eq(0..n), "{tree:?}");
            }
        }
        assert_eq!(KnomialTree::with_root(13, 0), KnomialTree::of(13));
    }

    /// So as many messages go between distant places, whichever is the root.
    #[test]
    fn subtrees_are_of_neighbours_whatever_the_root() {
        for n in 1..=140 {
            for root in roots(n) {
                let tree = KnomialTree::with_root(n, root);
                // Those of a subtree, one level after the other.
                let below = |place: usize| {
                    let mut found = vec![place];
                    let mut next = 0;
                    while let Some(at) = found.get(next) {
                        found.extend(tree.children(*at));
                        next += 1;
                    }
                    found.sort_unstable();
                    found
                };
                for place in 0..n {
                    let found = below(place);
                    assert_eq!(found.len(), tree.subtree(place), "{place} of {tree:?}");
                    assert!(found.windows(2).all(|two| two[0] + 1 == two[1]), "{tree:?}");
                    let first: usize = (0..found[0]).map(|place| tree.width(place)).sum();
                    let span: usize = found.iter().map(|place| tree.width(*place)).sum();
                    assert!(span.is_power_of_two() && first.is_multiple_of(span), "{tree:?}");
                    assert!(place == root || span == tree.span(place), "{place} of {tree:?}");
                }
            }
        }
    }

    /// Weights are those of recursive doubling, and each subtree has one that doubling knows.
    #[test]
    fn subtrees_of_groups_stand_for_powers_of_two() {
        for n in sizes() {
            let tree = KnomialTree::of(n);
            let folded = n - (1 << n.ilog2());
            for place in 0..n {
                let is_narrow = n.is_power_of_two() || place < 2 * folded;
                assert_eq!(tree.width(place), if is_narrow { 1 } else { 2 });
                let of_subtree = place..place + tree.subtree(place);
                let span: usize = of_subtree.map(|place| tree.width(place)).sum();
                let first: usize = (0..place).map(|place| tree.width(place)).sum();
                assert!(span.is_power_of_two() && first.is_multiple_of(span), "{place} of {n}");
                assert!(place == 0 || span == tree.span(place), "{place} of {n}");
            }
        }
    }

    #[test]
    fn a_binomial_tree_is_one_of_lowest_bits() {
        for n in 1..=70 {
            let tree = KnomialTree::binomial(n);
            for place in 1..n {
                assert_eq!(tree.parent(place), Some(place & (place - 1)));
                assert_eq!(tree.height(place), place.trailing_zeros());
                assert!(tree.height(place) < tree.height(0));
            }
        }
    }

    /// How many hops it is from the root to any place at most, and how many children the root has.
    fn shape(n: usize) -> (usize, usize) {
        let tree = KnomialTree::of(n);
        let above = |place| std::iter::successors(tree.parent(place), |at| tree.parent(*at));
        let depth = (0..n).map(|place| above(place).count()).max().unwrap();
        (depth, tree.children(0).count())
    }

    #[test]
    fn few_places_are_a_star_and_many_have_two_levels_or_three() {
        for n in 2..=16 {
            assert_eq!(shape(n), (1, n - 1));
            assert!(
                (0..n).all(|root| KnomialTree::with_root(n, root).children(root).count() == n - 1)
            );
        }
        assert!((17..=64).all(|n| shape(n).0 == 2));
        assert!((65..=512).all(|n| shape(n).0 <= 3));
        assert_eq!([17, 24, 31].map(|n| shape(n).1), [8 + 1, 15 + 1, 15 + 1]);
        assert_eq!(shape(64), (2, 15 + 3));
        assert_eq!(shape(128), (3, 7 + 7 + 1));
        assert_eq!(shape(512), (3, 7 + 7 + 7));
    }
}
