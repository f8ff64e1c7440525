//! What a death does to those who sleep.

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
