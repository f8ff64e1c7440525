//! A k-nomial tree of places, numbered from its root, which is 0: the parent of a place is the
//! place without its lowest digit that is not 0, in numbers to the base k, the radix. With a radix
//! of 2 it is a [binomial tree](super::binomial_tree), and a star with one that no place reaches.
//!
//! Steps of groups go along it where members share cores: whoever waits for many at once sleeps
//! once. A higher radix takes more connections of the root.

/// So many places have the higher radix. With 16 and 32 of them on two cores it takes the least
/// time of 2, 4, 8, 16; with 64 and 128 both take about as long.
const SMALL: usize = 64;
const RADIX_OF_SMALL: usize = 16;
const RADIX: usize = 8;

/// The tree of so many places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnomialTree {
    n: usize,
    radix: usize,
}

impl KnomialTree {
    /// That of `n` places.
    pub const fn of(n: usize) -> KnomialTree {
        KnomialTree { n, radix: if n <= SMALL { RADIX_OF_SMALL } else { RADIX } }
    }

    /// Whether all other places are children of the root.
    pub const fn is_star(self) -> bool {
        self.n <= self.radix
    }

    /// The power of the radix that the lowest digit of a place stands for which is not 0; for the
    /// root one that no place reaches.
    const fn unit(self, place: usize) -> usize {
        let mut unit = 1;
        while unit < self.n && place.is_multiple_of(unit * self.radix) {
            unit *= self.radix;
        }
        unit
    }

    /// The parent of a place; the root has none.
    pub const fn parent(self, place: usize) -> Option<usize> {
        if place == 0 { None } else { Some(place - place % (self.unit(place) * self.radix)) }
    }

    /// The children of a place, the nearest and smallest subtrees first.
    pub fn children(self, place: usize) -> impl Iterator<Item = usize> {
        let KnomialTree { n, radix } = self;
        let top = self.unit(place);
        let units = std::iter::successors(Some(1), move |unit| Some(unit * radix));
        let of_unit = move |unit| (1..radix).map(move |digit| place + digit * unit);
        units.take_while(move |unit| *unit < top).flat_map(of_unit).take_while(move |at| *at < n)
    }

    /// How many places are in the subtree of a place: they are behind each other.
    pub fn subtree(self, place: usize) -> usize {
        self.unit(place).min(self.n - place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subtree_has_a_place_and_the_subtrees_of_its_children() {
        for n in (1..=140).chain([511, 512, 513, 4097]) {
            let tree = KnomialTree::of(n);
            assert_eq!((tree.parent(0), tree.subtree(0)), (None, n));
            for place in 0..n {
                let mut next = place + 1;
                for child in tree.children(place) {
                    assert_eq!((child, tree.parent(child)), (next, Some(place)), "of {n}");
                    next += tree.subtree(child);
                }
                assert_eq!(next, place + tree.subtree(place), "{place} of {n}");
            }
        }
    }

    #[test]
    fn few_places_are_a_star_and_many_have_two_levels_or_three() {
        let depth = |n: usize| {
            let tree = KnomialTree::of(n);
            let of = |place| std::iter::successors(tree.parent(place), |at| tree.parent(*at));
            (0..n).map(|place| of(place).count()).max()
        };
        assert!(KnomialTree::of(16).is_star() && !KnomialTree::of(17).is_star());
        let shape = |n: usize| (depth(n), KnomialTree::of(n).children(0).count());
        assert_eq!(shape(16), (Some(1), 15));
        assert_eq!(shape(64), (Some(2), 15 + 3));
        assert_eq!(shape(128), (Some(3), 7 + 7 + 1));
        assert_eq!(shape(512), (Some(3), 7 + 7 + 7));
    }
}
