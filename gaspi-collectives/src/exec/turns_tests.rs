//! Which one begins, of all-reduces that only say what they are.

use std::sync::{Arc, Barrier};

use super::*;

const WINDOW: u64 = 100;

/// What has begun, is due or has ended.
#[derive(Debug, Default)]
struct Marks {
    begun: Vec<usize>,
    due: Vec<usize>,
    asked: Vec<usize>,
    ended: Vec<(usize, u64)>,
    given_up: Vec<usize>,
}

#[derive(Debug, Default)]
struct Played {
    marks: Mutex<Marks>,
    /// Where the next one that asks whether the second has ended stops, behind what it has seen.
    stop: Mutex<Option<Arc<Barrier>>>,
}

impl TakesTurns for Played {
    fn begin(&self, index: usize) {
        self.marks.lock().begun.push(index);
    }

    fn is_due(&self, index: usize) -> bool {
        let mut marks = self.marks.lock();
        marks.asked.push(index);
        marks.due.contains(&index)
    }

    fn has_ended(&self, index: usize, step: u64) -> bool {
        let has_ended = self.marks.lock().ended.contains(&(index, step));
        let stop = if index == 1 { self.stop.lock().take() } else { None };
        if let Some(stop) = stop {
            stop.wait();
            stop.wait();
        }
        has_ended
    }

    fn give_up(&self, index: usize) {
        self.marks.lock().given_up.push(index);
    }
}

fn turn(of: &Arc<Played>, index: usize, bytes: u64) -> Turn {
    let of: Weak<Played> = Arc::downgrade(of);
    Turn { of, index, step: 1, bytes, window: WINDOW }
}

/// Turns of which this many have been handed over, of 60 bytes each: two are under way.
fn handed_over(count: usize) -> (Turns, Arc<Played>) {
    let (turns, played) = (Turns::default(), Arc::new(Played::default()));
    for index in 0..count {
        let waiting = turns.hand_over(turn(&played, index, 60));
        assert_eq!(waiting, (index + 1).checked_sub(2).filter(|waiting| *waiting > 0), "{index}");
    }
    (turns, played)
}

/// Looks once, as if something had moved just now.
fn look(turns: &Turns) -> bool {
    turns.state.lock().moved = Instant::now();
    turns.begin_next()
}

fn begun(played: &Played) -> Vec<usize> {
    std::mem::take(&mut played.marks.lock().begun)
}

#[test]
fn one_begins_for_each_that_ends_in_the_order_of_handing_over() {
    let (turns, played) = handed_over(5);
    assert!(!look(&turns) && turns.has_waiting());
    played.marks.lock().ended = vec![(1, 1), (0, 2)];
    assert!(look(&turns) && !look(&turns), "one of step 1 has ended");
    played.marks.lock().ended.extend([(0, 1), (2, 1)]);
    assert!(look(&turns) && look(&turns) && !look(&turns));
    assert_eq!(begun(&played), [2, 3, 4]);
    assert!(!turns.has_waiting());
}

#[test]
fn one_that_is_handed_over_behind_others_waits_like_them() {
    let (turns, played) = handed_over(3);
    played.marks.lock().ended = vec![(0, 1), (1, 1)];
    assert_eq!(turns.hand_over(turn(&played, 3, 1)), Some(2), "2 has been there before");
    assert!(look(&turns) && look(&turns));
    assert_eq!(begun(&played), [2, 3]);
}

#[test]
fn one_that_is_longer_than_the_window_begins_alone() {
    let (turns, played) = (Turns::default(), Arc::new(Played::default()));
    assert_eq!(turns.hand_over(turn(&played, 0, 10 * WINDOW)), None);
    assert_eq!(turns.hand_over(turn(&played, 1, 10 * WINDOW)), Some(1));
    assert!(!look(&turns));
    played.marks.lock().ended = vec![(0, 1)];
    assert!(look(&turns));
}

#[test]
fn one_that_another_member_has_begun_does_not_wait_for_its_turn() {
    let (turns, played) = handed_over(4);
    played.marks.lock().due = vec![3];
    assert!(look(&turns), "3 is due, though two are under way");
    assert_eq!(begun(&played), [3]);
    assert!(!look(&turns));
}

#[test]
fn each_look_asks_a_few_and_all_are_asked_in_their_turn() {
    let waiting = 3 * ASKED + 1;
    let (turns, played) = handed_over(2 + waiting);
    let last = 1 + waiting;
    played.marks.lock().due = vec![last];
    for _ in 0..3 {
        assert!(!look(&turns));
        assert!(played.marks.lock().asked.len() <= ASKED, "{played:?}");
        played.marks.lock().asked.clear();
    }
    assert!(look(&turns));
    assert_eq!(begun(&played), [last]);
}

#[test]
fn one_begins_when_nothing_has_moved_for_long() {
    let (turns, played) = handed_over(3);
    turns.state.lock().moved = Instant::now().checked_sub(PATIENCE).expect("a time before");
    assert!(turns.begin_next());
    assert_eq!(begun(&played), [2]);
}

/// Has one of another fused buffer begin because it is waited for, and end.
fn begin_and_end(turns: &Turns, other: &Arc<Played>, index: usize) {
    let of: Weak<dyn TakesTurns> = Arc::downgrade(other) as Weak<dyn TakesTurns>;
    turns.hand_over(turn(other, index, 60));
    assert!(turns.begin_now(&of, Some(index)));
    other.marks.lock().ended.push((index, 1));
}

#[test]
fn what_others_wait_for_puts_nobody_off() {
    let (turns, played) = handed_over(3);
    let other = Arc::new(Played::default());
    turns.state.lock().moved = Instant::now().checked_sub(PATIENCE).expect("a time before");
    begin_and_end(&turns, &other, 0);
    begin_and_end(&turns, &other, 1);
    assert!(turns.begin_next(), "nothing that holds 2 back has moved for long");
    assert_eq!(begun(&played), [2]);
}

#[test]
fn what_begins_out_of_turn_puts_off_those_of_its_own() {
    let (turns, played) = handed_over(4);
    turns.state.lock().moved = Instant::now().checked_sub(PATIENCE).expect("a time before");
    let of: Weak<dyn TakesTurns> = Arc::downgrade(&played) as Weak<dyn TakesTurns>;
    let moves = Instant::now();
    assert!(turns.begin_now(&of, Some(3)));
    let begins = turns.begin_next();
    assert!(!begins || moves.elapsed() >= PATIENCE, "3 has just begun");
}

/// However often others of its own have begun lately: and then the next one waits as long.
#[test]
fn what_begins_out_of_turn_puts_off_those_of_its_own_for_a_while_only() {
    let (turns, played) = handed_over(5);
    let of: Weak<dyn TakesTurns> = Arc::downgrade(&played) as Weak<dyn TakesTurns>;
    turns.state.lock().moved = Instant::now().checked_sub(LONGEST).expect("a time before");
    assert!(turns.begin_now(&of, Some(4)) && turns.begin_next());
    assert_eq!(begun(&played), [4, 2]);
    let moved = turns.state.lock().moved;
    let begins = turns.begin_next();
    assert!(!begins || moved.elapsed() >= PATIENCE, "2 has just begun in its turn");
}

/// Those of another fused buffer wait behind it, and no longer.
#[test]
fn what_is_put_off_at_the_head_does_not_hold_others_back_for_ever() {
    let (turns, played) = handed_over(4);
    let other = Arc::new(Played::default());
    turns.hand_over(turn(&other, 0, 60));
    let of: Weak<dyn TakesTurns> = Arc::downgrade(&played) as Weak<dyn TakesTurns>;
    assert!(turns.begin_now(&of, Some(3)));
    for _ in 0..2 {
        let mut state = turns.state.lock();
        state.moved = Instant::now().checked_sub(LONGEST).expect("a time before");
        state.moved_out_of_turn = Some((Weak::clone(&of), Instant::now() + LONGEST));
        drop(state);
        assert!(turns.begin_next());
    }
    assert_eq!((begun(&played), begun(&other)), (vec![3, 2], vec![0]));
}

#[test]
fn one_that_is_waited_for_begins_at_once_and_so_do_all_of_one_that_is_freed() {
    let (turns, played) = handed_over(5);
    let other = Arc::new(Played::default());
    turns.hand_over(turn(&other, 4, 60));
    let of: Weak<dyn TakesTurns> = Arc::downgrade(&played) as Weak<dyn TakesTurns>;
    assert!(turns.begin_now(&of, Some(4)) && !turns.begin_now(&of, Some(4)));
    while turns.begin_now(&of, None) {}
    assert_eq!(begun(&played), [4, 2, 3]);
    assert!(begun(&other).is_empty() && turns.has_waiting());
    let left = turns.take_all();
    left.iter().for_each(Turn::give_up);
    assert_eq!((left.len(), &other.marks.lock().given_up[..]), (1, &[4][..]));
    assert!(!turns.has_waiting());
}

#[test]
fn what_is_gone_holds_nobody_back() {
    let (turns, played) = handed_over(2);
    let other = Arc::new(Played::default());
    assert_eq!(turns.hand_over(turn(&other, 0, 60)), Some(1));
    drop(played);
    assert!(look(&turns));
    assert_eq!(begun(&other), [0]);
}

#[test]
fn who_cannot_look_has_the_thread_look_again_that_does() {
    let (turns, played) = handed_over(3);
    let stop = Arc::new(Barrier::new(2));
    *played.stop.lock() = Some(Arc::clone(&stop));
    // Nobody loses patience.
    turns.state.lock().moved = Instant::now() + Duration::from_secs(3600);
    std::thread::scope(|scope| {
        let looks = scope.spawn(|| turns.begin_next());
        stop.wait();
        played.marks.lock().ended = vec![(0, 1), (1, 1)];
        assert!(!turns.begin_next(), "the other thread looks");
        stop.wait();
        assert!(looks.join().expect("no panic"));
    });
    assert_eq!(begun(&played), [2]);
}
