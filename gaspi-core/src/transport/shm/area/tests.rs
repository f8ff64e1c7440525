//! What a death does to those who sleep, and where arenas lie.

use super::*;

#[test]
fn a_death_wakes_who_was_about_to_be_woken_by_the_dead() {
    let fd = memory::create(c"gaspi-node", SharedLayout::new(2, 1).bytes(), false).unwrap();
    let [area, dying] =
        [0, 1].map(|own| SharedArea::map(&fd, 2, 1, Rank(own), [Rank(0), Rank(1)].into()).unwrap());
    let sleeper = area.own_wakeup();
    let ticket = sleeper.ticket();
    sleeper.announce(wake_kind::NOTIFICATION, || ());
    // What a waker does first, and then it is killed.
    assert_ne!(dying.wakeup(Rank(0)).awaited.swap(0, Ordering::AcqRel), 0);
    // Another rank has something for the sleeper, and nobody to wake.
    area.wake(Rank(0));
    assert_eq!(sleeper.ticket(), ticket);
    assert!(area.mark_dead(Rank(1)));
    assert_ne!(sleeper.ticket(), ticket, "it would sleep on");
}

#[test]
fn each_death_is_news_before_and_after_it_shows() {
    let area = SharedArea::alone(3, 1, Rank(0)).unwrap();
    assert!(area.all_live() && area.death_news() == 0);
    assert!(area.mark_dead(Rank(1)));
    let news = area.death_news();
    assert!(news >= 2 && !area.all_live());
    assert!(area.mark_dead(Rank(2)));
    assert!(area.death_news() >= news + 2);
}

#[test]
fn the_order_of_deaths_is_that_of_the_first_news() {
    let fd = memory::create(c"gaspi-node", SharedLayout::new(4, 1).bytes(), false).unwrap();
    let locals: Box<[Rank]> = (0..4).map(Rank).collect();
    let [area, other] =
        [0, 3].map(|own| SharedArea::map(&fd, 4, 1, Rank(own), locals.clone()).unwrap());
    assert!(area.mark_dead(Rank(2)));
    assert!(other.mark_dead(Rank(1)));
    // Others notice later.
    assert!(!other.mark_dead(Rank(2)) && !area.mark_dead(Rank(1)));
    for area in [area, other] {
        assert!(area.end_order(Rank(2)) < area.end_order(Rank(1)));
    }
}

const MANY: u32 = 17;

/// The areas of the ranks of a node that have joined, in a file of so many bytes; those from `able`
/// on cannot map all arenas.
fn joined(bytes: u64, able: u32) -> Vec<SharedArea> {
    let fd = memory::create(c"gaspi-node", bytes, false).unwrap();
    let locals: Box<[Rank]> = (0..MANY as u16).map(Rank).collect();
    let map = |rank: &Rank| SharedArea::map(&fd, MANY, 1, *rank, locals.clone()).unwrap();
    let mut areas: Vec<SharedArea> = locals.iter().map(map).collect();
    areas.iter_mut().skip(able as usize).for_each(|area| area.arenas = None);
    areas.iter().for_each(SharedArea::join);
    areas
}

#[test]
fn arenas_of_many_ranks_lie_behind_the_area() {
    let layout = SharedLayout::new(MANY, 1);
    let areas = joined(layout.bytes_with_arenas(), MANY);
    for rank in (0..MANY as u16).map(Rank) {
        let at = |area: &SharedArea| {
            let room = area.arena_room(rank).unwrap().expect("room");
            assert_eq!(room.bytes, layout.arena_bytes());
            room.mapping.as_ptr().wrapping_add(room.offset as usize).cast::<u16>()
        };
        let (own, other) = (at(&areas[rank.index()]), at(&areas[3]));
        // SAFETY: the room of an arena that nobody uses, mapped as long as the areas are.
        unsafe { own.write_volatile(rank.0 + 1) };
        // SAFETY: the same room in the mapping of another rank.
        assert_eq!(unsafe { other.read_volatile() }, rank.0 + 1);
    }
}

#[test]
fn arenas_are_files_of_their_own_unless_all_can_map_them() {
    let layout = SharedLayout::new(MANY, 1);
    let has_room = |area: &SharedArea| area.arena_room(Rank(1)).unwrap().is_some();
    let last = joined(layout.bytes_with_arenas(), MANY - 1);
    assert!(!last.iter().any(has_room), "one rank cannot map so much");
    let short = joined(layout.bytes_with_arenas() - 4096, MANY);
    assert!(!short.iter().any(has_room), "the file ends before the last arena");
}

#[test]
fn the_last_that_has_closed_gives_the_memory_of_arenas_back() {
    let areas = joined(SharedLayout::new(MANY, 1).bytes_with_arenas(), MANY);
    let room = areas[0].arena_room(Rank(5)).unwrap().expect("room");
    let word = room.mapping.as_ptr().wrapping_add(room.offset as usize).cast::<u16>();
    // SAFETY: the room of an arena that nobody uses, mapped as long as `room` lives.
    unsafe { word.write_volatile(7) };
    // SAFETY: it stays mapped.
    let found = || unsafe { word.read_volatile() };
    let (last, others) = areas.split_last().expect("some");
    others.iter().chain(others).for_each(SharedArea::show_closed);
    assert_eq!(found(), 7, "one of them may use it");
    assert!(last.has_closed(Rank(3)) && !last.has_closed(Rank(MANY as u16 - 1)));
    last.show_closed();
    assert_eq!(found(), 0, "it takes memory still");
}

/// Ranks that look on, of a node in a job of so many ranks.
fn of_a_job(ranks: u32) -> [SharedArea; 2] {
    let bytes = SharedLayout::new(ranks, 1).of_node(2).bytes();
    let fd = memory::create(c"gaspi-node", bytes, false).unwrap();
    let locals: Box<[Rank]> = [Rank(0), Rank(1)].into();
    [0, 1].map(|own| SharedArea::map(&fd, ranks, 1, Rank(own), locals.clone()).unwrap())
}

/// What a reader is given, and after how many looks.
fn read(area: &SharedArea, ends: &mut ReadEnds) -> (Vec<(Rank, u32)>, usize) {
    let before = ends.looks;
    (area.ends_since(ends), ends.looks - before)
}

#[test]
fn each_rank_looks_at_each_end_of_very_many_ranks_once() {
    let full = std::env::var_os("GASPI_TEST_FULL").is_some();
    let ranks: u32 = if full { 65_535 } else { 10_000 };
    let [first, second] = of_a_job(ranks);
    let (mut ends, mut late) = (ReadEnds::default(), ReadEnds::default());
    // An entry, its rank, and the end of the log.
    for rank in (2..ranks as u16).rev().map(Rank) {
        let teller = if rank.0 % 3 == 0 { &first } else { &second };
        assert!(teller.mark_dead(rank));
        assert_eq!(read(&first, &mut ends), (vec![(rank, liveness::DEAD)], 3));
    }
    second.leave();
    first.mark_dead(Rank(0));
    // Nothing is left to be read, so that the log has no end.
    let last = vec![(Rank(1), liveness::LEFT), (Rank(0), liveness::DEAD)];
    assert_eq!(read(&first, &mut ends), (last, 4));
    assert_eq!(read(&first, &mut ends), (vec![], 0));
    let (all, looks) = read(&second, &mut late);
    assert_eq!((all.len(), looks), (ranks as usize, 2 * ranks as usize));
    assert!(all.windows(2).all(|pair| second.end_order(pair[0].0) < second.end_order(pair[1].0)));
}

#[test]
fn an_end_whose_teller_is_killed_before_it_shows_is_told_by_the_next_one() {
    let [first, second] = of_a_job(5);
    let mut ends = ReadEnds::default();
    // One is killed between the entry and the word of the rank, the other one behind both.
    second.log_entry(0).store(4 + 1, Ordering::Relaxed);
    assert!(read(&first, &mut ends).0.is_empty());
    second.log_end(Rank(3));
    assert_eq!([4, 3, 2].map(|rank| first.end_order(Rank(rank))), [1, 2, 0]);
    assert!(read(&first, &mut ends).0.is_empty());
    assert!(first.mark_dead(Rank(2)));
    assert_eq!(read(&first, &mut ends).0, [(Rank(2), liveness::DEAD)]);
    assert!(first.mark_dead(Rank(3)) && first.mark_dead(Rank(4)));
    let both = [Rank(4), Rank(3)].map(|rank| (rank, liveness::DEAD));
    assert_eq!(read(&first, &mut ends).0, both);
    assert_eq!(first.log_entry(3).load(Ordering::Relaxed), 0, "each stands there once");
}

#[test]
fn nonsense_in_the_log_of_ends_is_passed_over() {
    let [first, second] = of_a_job(3);
    second.log_entry(0).store(u32::MAX, Ordering::Relaxed);
    assert!(first.mark_dead(Rank(2)));
    let mut ends = ReadEnds::default();
    assert_eq!(read(&first, &mut ends).0, [(Rank(2), liveness::DEAD)]);
}

#[test]
fn ranks_that_tell_of_ends_at_once_write_each_down_once() {
    let ranks = 200;
    let areas = of_a_job(ranks);
    std::thread::scope(|scope| {
        for (at, area) in areas.iter().enumerate() {
            scope.spawn(move || {
                let all: Vec<Rank> = (2..ranks as u16).map(Rank).collect();
                all.iter().cycle().skip(at * 7).take(all.len()).for_each(|rank| {
                    area.mark_dead(*rank);
                });
            });
        }
    });
    let ends = areas[0].ends_since(&mut ReadEnds::default());
    let known: std::collections::BTreeSet<Rank> = ends.iter().map(|(rank, _)| *rank).collect();
    assert_eq!((ends.len(), known.len()), (198, 198));
    let is_there =
        |(at, (rank, _)): (usize, &(Rank, u32))| areas[1].end_order(*rank) == at as u32 + 1;
    assert!(ends.iter().enumerate().all(is_there));
}
