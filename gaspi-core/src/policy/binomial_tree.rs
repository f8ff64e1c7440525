//! A binomial tree of places, numbered from its root, which is 0: the parent of a place is the
//! place without its lowest bit.
//!
//! Steps of groups and news of ends go along it, and so do the trees of gaspi-collectives.

/// The parent of a place; the root has none.
pub const fn parent(place: usize) -> Option<usize> {
    if place == 0 { None } else { Some(place & (place - 1)) }
}

/// How many levels are below a place, where no place lacks.
pub const fn height(place: usize) -> u32 {
    if place == 0 { u32::BITS } else { place.trailing_zeros() }
}

/// The children of a place among the first `n`, the nearest and smallest subtree first.
pub fn children(place: usize, n: usize) -> impl Iterator<Item = usize> {
    let children = (0..height(place)).map(move |bit| place + (1 << bit));
    children.take_while(move |child| *child < n)
}

/// How many of the first `n` places are in the subtree of a place: they are behind each other.
pub fn subtree(place: usize, n: usize) -> usize {
    if place == 0 { n } else { (1 << height(place)).min(n - place) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subtree_has_a_place_and_the_subtrees_of_its_children() {
        for n in 1..=70 {
            assert_eq!((parent(0), subtree(0, n)), (None, n));
            for place in 0..n {
                let mut next = place + 1;
                for child in children(place, n) {
                    assert_eq!((child, parent(child)), (next, Some(place)), "of {n}");
                    next += subtree(child, n);
                }
                assert_eq!(next, place + subtree(place, n), "{place} of {n}");
            }
        }
    }
}
