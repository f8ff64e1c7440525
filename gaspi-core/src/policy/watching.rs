//! Which processes of its node a rank watches.
//!
//! Each one watched costs a descriptor, and all watching each other as many as there are pairs. So
//! in a node of many each rank watches those at distances of 1, 2, 4 and so on, in both directions
//! of a ring of those that live. Each is watched by as many as it watches itself: some of them may
//! be stopped, or end with it. Whoever notices an end tells all by the shared area.

/// Ranks of a node of which each watches all others.
const ALL: usize = 16;

/// The positions of those to watch among `others` living ranks, which follow this one in a ring.
pub(crate) fn watched(others: usize) -> Vec<usize> {
    if others < ALL {
        return (0..others).collect();
    }
    let distances = (0..usize::BITS).map(|power| 1 << power).take_while(|far| 2 * far <= others);
    let both = |far: usize| [far - 1, others - far];
    let mut found: Vec<usize> = distances.flat_map(both).collect();
    found.sort_unstable();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::watched;

    #[test]
    fn in_a_small_node_all_watch_each_other() {
        for others in 0..16 {
            assert_eq!(watched(others), (0..others).collect::<Vec<_>>());
        }
    }

    #[test]
    fn each_is_watched_by_those_that_it_watches_and_the_nearest_are_among_them() {
        for others in 16..600 {
            let found = watched(others);
            let mirrored: Vec<usize> = found.iter().rev().map(|at| others - 1 - at).collect();
            assert_eq!(found, mirrored, "{others}");
            assert!(found.contains(&0) && found.contains(&(others - 1)));
        }
    }

    #[test]
    fn they_grow_with_the_logarithm() {
        assert_eq!(watched(16).len(), 8);
        assert_eq!(watched(127).len(), 12);
        assert_eq!(watched(511).len(), 16);
    }
}
