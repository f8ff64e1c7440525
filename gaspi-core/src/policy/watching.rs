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

/// Which of the others of a node live, in the order of a ring behind this rank. What is asked and
/// changed takes steps of the logarithm, as sums over parts of the ring are kept.
#[derive(Debug)]
pub(crate) struct Ring {
    /// A Fenwick tree: at an index, from 1, how many live of as many places up to it as its lowest
    /// bit says.
    sums: Box<[u32]>,
    lives: Box<[bool]>,
}

impl Ring {
    /// All of so many live.
    pub(crate) fn new(others: usize) -> Ring {
        let lowest_bit = |index: usize| (index & index.wrapping_neg()) as u32;
        Ring {
            sums: (0..=others).map(lowest_bit).collect(),
            lives: vec![true; others].into_boxed_slice(),
        }
    }

    /// The one at a place has ended.
    pub(crate) fn end(&mut self, place: usize) {
        if !std::mem::replace(&mut self.lives[place], false) {
            return;
        }
        let mut index = place + 1;
        while let Some(sum) = self.sums.get_mut(index) {
            *sum -= 1;
            index += index & index.wrapping_neg();
        }
    }

    /// How many live.
    pub(crate) fn living(&self) -> usize {
        let (mut sum, mut index) = (0, self.lives.len());
        while index != 0 {
            sum += self.sums[index] as usize;
            index &= index - 1;
        }
        sum
    }

    /// The place of the living one behind so many others that live; there has to be one.
    pub(crate) fn place(&self, behind: usize) -> usize {
        let (mut at, mut left) = (0, behind as u32);
        let mut step = self.sums.len().next_power_of_two();
        while step != 0 {
            match self.sums.get(at + step) {
                Some(sum) if at + step != 0 && *sum <= left => {
                    left -= sum;
                    at += step;
                }
                _ => {}
            }
            step /= 2;
        }
        at
    }

    /// The places of those to watch.
    pub(crate) fn watched(&self) -> Vec<usize> {
        watched(self.living()).into_iter().map(|at| self.place(at)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Ring, watched};

    #[test]
    fn a_ring_finds_those_that_live_at_each_distance() {
        for others in [0, 1, 2, 7, 8, 9, 100, 511] {
            let mut ring = Ring::new(others);
            let mut living: Vec<usize> = (0..others).collect();
            // In an order without a pattern that the tree has too.
            for end in (0..others).map(|at| at * 389 % others) {
                assert_eq!(ring.living(), living.len());
                let places: Vec<usize> = (0..living.len()).map(|at| ring.place(at)).collect();
                assert_eq!(places, living);
                let expected: Vec<_> = watched(living.len()).iter().map(|at| living[*at]).collect();
                assert_eq!(ring.watched(), expected);
                ring.end(end);
                ring.end(end);
                living.retain(|at| *at != end);
            }
            assert!(ring.living() == 0 && ring.watched().is_empty());
        }
    }

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
