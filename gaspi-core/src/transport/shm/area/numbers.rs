//! The numbers of a node's ranks: by them the area is laid out.

use super::{Mapping, SharedArea};
use crate::error::Result;
use crate::ids::Rank;
use crate::sync::Ordering;
use crate::wire::shared_layout::{Number, SharedLayout};
use std::os::fd::OwnedFd;

/// Which number each rank of the node has, by its distance from the first one.
#[derive(Debug)]
pub(super) struct Numbers {
    first: u32,
    /// How many follow the first one without a gap: their numbers do too.
    run: u32,
    /// All others, 0 for ranks of other nodes.
    others: Box<[u16]>,
}

impl Numbers {
    /// Of these, which ascend and get their numbers in that order.
    pub(super) fn of(locals: &[Rank]) -> Numbers {
        let Some(first) = locals.first() else {
            return Numbers { first: 0, run: 0, others: Box::default() };
        };
        let breaks = |pair: &[Rank]| pair[0].0 + 1 != pair[1].0;
        let run = locals.windows(2).position(breaks).map_or(locals.len(), |at| at + 1);
        let scattered = if run == locals.len() { &[] } else { locals };
        let span = scattered.last().map_or(0, |last| usize::from(last.0 - first.0) + 1);
        let mut others = vec![0; span].into_boxed_slice();
        for (rank, number) in scattered.iter().zip(1..) {
            others[usize::from(rank.0 - first.0)] = number;
        }
        Numbers { first: first.0.into(), run: run as u32, others }
    }

    /// That of `rank`; 0 if it is of another node.
    pub(super) fn of_rank(&self, rank: Rank) -> Number {
        let distance = u32::from(rank.0).wrapping_sub(self.first);
        if distance < self.run {
            return Number(distance + 1);
        }
        Number(self.others.get(distance as usize).copied().unwrap_or(0).into())
    }
}

/// Where the parts of ranks lie in an area, as long as that is mapped.
#[derive(Debug)]
pub(super) struct Parts {
    numbers: Numbers,
    each: u64,
    /// That of the first rank, and how far it would be behind that of a rank 0.
    first: *const u8,
    before_first: u64,
    /// Bytes from there of those that follow without a gap.
    run: u64,
    own: *const u8,
}

// SAFETY: these are addresses only; whoever reads or writes there uses atomic operations.
unsafe impl Send for Parts {}
// SAFETY: none of them changes once it is made.
unsafe impl Sync for Parts {}

impl Parts {
    /// Those in `mapping`; `own` is the rank that maps it.
    pub(super) fn new(
        mapping: &Mapping,
        layout: SharedLayout,
        numbers: Numbers,
        own: Rank,
    ) -> Parts {
        let each = layout.part_bytes();
        let first = mapping.as_ptr().wrapping_add((layout.parts() + each) as usize).cast_const();
        let (before_first, run) = (u64::from(numbers.first) * each, u64::from(numbers.run) * each);
        let parts = Parts { numbers, each, first, before_first, run, own: first };
        Parts { own: parts.of(own), ..parts }
    }

    pub(super) fn number(&self, rank: Rank) -> Number {
        self.numbers.of_rank(rank)
    }

    /// That of this rank.
    #[inline]
    pub(super) fn own(&self) -> *const u8 {
        self.own
    }

    /// That of `rank`, or that of nobody where it is of another node.
    #[inline]
    pub(super) fn of(&self, rank: Rank) -> *const u8 {
        let behind_first = self.behind_first(rank);
        if behind_first < self.run { self.at(behind_first) } else { self.of_other(rank) }
    }

    #[cold]
    fn of_other(&self, rank: Rank) -> *const u8 {
        // That of nobody is in front of the first one.
        let behind_nobody = u64::from(self.number(rank).0) * self.each;
        self.at(behind_nobody).wrapping_sub(self.each as usize)
    }

    /// How far that of `rank` would be behind that of the first one if all followed one another.
    #[inline]
    pub(super) fn behind_first(&self, rank: Rank) -> u64 {
        (u64::from(rank.0) * self.each).wrapping_sub(self.before_first)
    }

    /// Below which that is right.
    pub(super) fn run_bytes(&self) -> u64 {
        self.run
    }

    /// The part that lies so far behind that of the first rank.
    #[inline]
    pub(super) fn at(&self, behind_first: u64) -> *const u8 {
        self.first.wrapping_add(behind_first as usize)
    }
}

impl SharedArea {
    /// The area as tools see it, which do not know who is of the node: what ranks have that map it
    /// by now, and zeroes of all others. What lies behind their parts is left out.
    pub(crate) fn observed(fd: &OwnedFd, ranks: u32, group_max: u32) -> Result<SharedArea> {
        let layout = SharedLayout::new(ranks, group_max);
        let words = super::map(fd, layout, layout.parts())?;
        let area = SharedArea::new(words, layout, Rank(0), Box::default(), Numbers::of(&[]));
        let all = || (0..ranks).map(|rank| Rank(rank as u16));
        let number = |rank| area.number_word(rank).load(Ordering::Relaxed);
        // A number that no rank can have is nonsense that somebody has written there.
        let valid = |number: u32| if number <= ranks { number as u16 } else { 0 };
        let others: Box<[u16]> = all().map(|rank| valid(number(rank))).collect();
        let shown = others.iter().copied().max().unwrap_or(0);
        let locals = all().filter(|rank| others[rank.index()] != 0).collect();
        let mapping = super::map(fd, layout, layout.of_node(shown.into()).parts_end())?;
        let numbers = Numbers { first: 0, run: 0, others };
        Ok(SharedArea::new(mapping, layout, Rank(0), locals, numbers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::memory;
    use crate::transport::shm::area::wake_kind;

    fn ranks(of: &[u16]) -> Box<[Rank]> {
        of.iter().copied().map(Rank).collect()
    }

    #[test]
    fn ranks_have_numbers_in_their_order_and_others_none() {
        for locals in [&[0][..], &[7, 8, 9], &[3, 4, 9], &[1, 5, 6, 7], &[0, 65_534]] {
            let numbers = Numbers::of(&ranks(locals));
            for rank in (0..20).chain(65_530..=65_535) {
                let place = locals.iter().position(|local| *local == rank);
                let expected = place.map_or(0, |place| place as u32 + 1);
                assert_eq!(numbers.of_rank(Rank(rank)), Number(expected), "{rank} of {locals:?}");
            }
        }
        assert_eq!(Numbers::of(&[]).of_rank(Rank(0)), Number(0));
    }

    const GROUPS: u32 = 4;

    /// The areas of these ranks, in a job of so many, and the file.
    fn areas(size: u32, locals: &[u16]) -> (Vec<SharedArea>, OwnedFd) {
        let fd = memory::create(c"gaspi-node", SharedLayout::new(size, GROUPS).bytes(), false);
        let fd = fd.expect("memory");
        let map = |own: &u16| SharedArea::map(&fd, size, GROUPS, Rank(*own), ranks(locals));
        (locals.iter().map(map).collect::<Result<_>>().expect("an area"), fd)
    }

    #[test]
    fn ranks_of_a_node_that_do_not_follow_one_another_share_its_area() {
        let locals = [1, 4, 5, 8];
        let (areas, _file) = areas(9, &locals);
        for (at, rank) in locals.into_iter().enumerate() {
            let (own, other) = (&areas[at], &areas[(at + 1) % areas.len()]);
            own.arrival_slots(Rank(rank), 3)[1].publish(u64::from(rank), 1, &[]);
            own.finish_step(3, 100 + u64::from(rank));
            let ticket = own.own_wakeup().ticket();
            own.own_wakeup().announce(wake_kind::ARRIVAL, || ());
            other.wake_for(Rank(rank), wake_kind::ARRIVAL);
            assert_ne!(own.own_wakeup().ticket(), ticket, "rank {rank} sleeps on");
        }
        for area in &areas {
            for rank in locals {
                let slots = area.arrival_slots(Rank(rank), 3);
                assert_eq!(slots[1].sequence.load(Ordering::Relaxed), u64::from(rank));
                let step = 100 + u64::from(rank);
                assert!(area.has_finished(Rank(rank), 3, step));
                assert!(!area.has_finished(Rank(rank), 3, step + 1));
            }
        }
    }

    #[test]
    fn the_area_of_a_small_node_of_a_large_job_is_small() {
        let (large, _file) = areas(60_000, &[40_000, 40_001]);
        let (small, _file) = areas(9, &[3, 4]);
        let lines = |ranks| 2 * SharedLayout::new(ranks, GROUPS).lines_of_rank();
        let beside = |area: &SharedArea, ranks| area.mapping.len() as u64 - lines(ranks);
        let more = beside(&large[0], 60_000) - beside(&small[0], 9);
        assert!(more <= 60_000 * 24 + 2 * memory::PAGE, "{more} bytes more");
    }

    #[test]
    fn tools_see_the_ranks_that_have_mapped_it() {
        let (areas, file) = areas(9, &[1, 4, 5]);
        areas[2].arrival_slots(Rank(5), 0)[1].publish(7, 1, &[]);
        areas[0].mark_dead(Rank(8));
        let seen = SharedArea::observed(&file, 9, GROUPS).expect("an area");
        assert_eq!(*seen.locals, *ranks(&[1, 4, 5]));
        let step = |rank| seen.arrival_slots(Rank(rank), 0)[1].sequence.load(Ordering::Relaxed);
        assert_eq!([4, 5, 6, 8].map(step), [0, 7, 0, 0]);
        assert!(!seen.all_live() && seen.notes(Rank(8)).len() == seen.notes(Rank(5)).len());
        // Somebody may have written anything there.
        for (rank, number) in [(0, 10), (2, u32::MAX), (3, 9)] {
            areas[0].number_word(Rank(rank)).store(number, Ordering::Relaxed);
        }
        let seen = SharedArea::observed(&file, 9, GROUPS).expect("an area");
        let numbers = [0, 2, 3, 5].map(|rank| seen.parts.number(Rank(rank)).0);
        assert_eq!(numbers, [0, 0, 9, 3]);
        assert_eq!(seen.arrival_slots(Rank(3), 3)[1].sequence.load(Ordering::Relaxed), 0);
    }
}
