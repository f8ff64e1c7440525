//! Both sides of a pair, whatever order things happen in.

use super::*;
use crate::ids::QueueId;
use crate::transport::verbs::ended::Ended;
use crate::transport::verbs::lane::{LaneState, Request};
use crate::transport::verbs::shown::Attempts;
use proptest::prelude::*;
use std::collections::VecDeque;

/// What travels between the two, in order.
#[derive(Debug, Clone)]
enum Told {
    Offer(u32),
    Connected(u32),
    Ended(u32, bool),
    Lost(u32),
}

#[derive(Default)]
struct Side {
    state: PairState,
    /// The attempt of the end that exists, and that of the one it is connected with.
    end: Option<u32>,
    connected: Option<u32>,
    proves: bool,
    sends: VecDeque<Told>,
    /// Whether its connection is gone, and it does not know yet.
    is_cut: bool,
    /// What threads without the lock know, and whether a loss has not been carried out.
    attempts: Attempts,
    has_lost: bool,
    /// Whether no end can be made.
    has_none: bool,
}

impl Side {
    /// The connection is lost here, and what was sent on it too.
    fn lose(&mut self) {
        self.sends.clear();
        self.is_cut = false;
        let steps = self.state.reset("lost");
        self.carry_out(steps);
    }

    /// Ends can be made again: where there were too few, another attempt begins.
    fn find_more(&mut self) {
        self.has_none = false;
        if self.state.is_scarce() {
            let steps = self.state.try_again();
            self.carry_out(steps);
        }
    }

    fn carry_out(&mut self, steps: Vec<Step>) {
        self.carry_out_all(steps);
        self.attempts.note(self.state.attempt());
        if self.is_cut {
            self.sends.clear();
        }
    }

    fn carry_out_all(&mut self, steps: Vec<Step>) {
        for step in steps {
            match step {
                Step::Offer(_) if self.has_none => {
                    let scarce = NotMade { reason: "scarce".to_owned(), scarce: true };
                    let steps = self.state.not_made(&scarce);
                    return self.carry_out_all(steps);
                }
                Step::Offer(attempt) => {
                    assert!(self.end.is_none(), "an end that nobody has taken down");
                    self.end = Some(attempt);
                    self.sends.push_back(Told::Offer(attempt));
                }
                Step::Connect(offer) => {
                    assert_eq!(self.end, Some(offer.attempt));
                    self.connected = Some(offer.attempt);
                    self.sends.push_back(Told::Connected(offer.attempt));
                }
                Step::Prove => self.proves = true,
                Step::TakeDown { .. } => {
                    assert!(self.end.is_some(), "nothing to take down");
                    (self.end, self.connected, self.proves) = (None, None, false);
                }
                Step::TellEnd { attempt, refuses, .. } => {
                    self.sends.push_back(Told::Ended(attempt, refuses));
                }
                Step::TellLoss(attempt) => self.sends.push_back(Told::Lost(attempt)),
            }
        }
    }

    fn hear(&mut self, told: &Told) {
        let steps = match *told {
            Told::Offer(attempt) => self.state.on_offer(PairOffer {
                queue: QueueId(0),
                attempt,
                number: 0,
                first_packet: 0,
                gid: [0; 16],
                lid: 0,
                mtu: 1,
                reads: 1,
                flush_key: 0,
                flush_address: 0,
                vouches: false,
            }),
            Told::Connected(attempt) => self.state.on_connected(attempt),
            Told::Ended(attempt, refuses) => self.state.on_ended(attempt, "told", refuses),
            Told::Lost(attempt) => self.state.on_lost(attempt, "told"),
        };
        self.carry_out(steps);
    }
}

impl Side {
    /// The connection is lost here; its pairs are taken down later.
    fn note_loss(&mut self) {
        self.sends.clear();
        self.is_cut = false;
        self.attempts.lose();
        self.has_lost = true;
    }

    /// Takes down what was lost before, and nothing that was begun since.
    fn take_down_lost(&mut self) {
        if std::mem::take(&mut self.has_lost) && self.attempts.is_lost(self.state.attempt()) {
            let steps = self.state.reset("lost");
            self.carry_out(steps);
        }
    }
}

/// Both begin, fail, hear and lose their connection in any order, at once or one before the
/// other, or one of them only; then nothing more goes wrong,
/// and both are up, or one has refused and none is up.
fn play(moves: &[(u8, bool)]) {
    let mut sides = [Side::default(), Side::default()];
    for (kind, first) in moves {
        let (one, other) = (usize::from(*first), usize::from(!*first));
        match kind {
            0..=2 => {
                let steps = sides[one].state.begin();
                sides[one].carry_out(steps);
            }
            3..=8 => {
                if let Some(told) = sides[other].sends.pop_front() {
                    sides[one].hear(&told);
                }
            }
            9 => {
                let state = &mut sides[one].state;
                let steps = if *first { state.fail("broken") } else { state.refuse("no way") };
                sides[one].carry_out(steps);
            }
            10 => prove(&mut sides),
            11 => sides.iter_mut().for_each(Side::lose),
            // To one side; what the other one has sent is still heard.
            12 => sides[one].lose(),
            13 => {
                sides[one].lose();
                sides[other].sends.clear();
                sides[other].is_cut = true;
            }
            14 | 15 if sides[one].is_cut => sides[one].note_loss(),
            15 => {
                sides[other].sends.clear();
                sides[other].is_cut = true;
                sides[one].note_loss();
            }
            16 => sides[one].take_down_lost(),
            17 if sides[one].is_cut => sides[one].lose(),
            18 => sides[one].has_none = true,
            19 => sides[one].find_more(),
            _ => {}
        }
        check(&sides);
    }
    sides.iter_mut().filter(|side| side.is_cut).for_each(Side::lose);
    sides.iter_mut().for_each(Side::take_down_lost);
    // Nobody holds an end, and posts to it, where the other one's is gone.
    exchange(&mut sides);
    let up = sides.each_ref().map(|side| side.state.is_up());
    assert!(up[0] == up[1], "{up:?}");
    for _ in 0..200 {
        for side in &mut sides {
            side.find_more();
            let steps = side.state.begin();
            side.carry_out(steps);
        }
        exchange(&mut sides);
    }
    assert!(sides.iter().all(|side| !side.state.is_ending()), "somebody waits for ever");
    let up = sides.each_ref().map(|side| side.state.is_up());
    let refused = sides.iter().any(|side| side.state.refused().is_some());
    assert!(up == [true; 2] || (refused && up == [false; 2]), "{up:?}");
}

/// All that is said is heard.
fn exchange(sides: &mut [Side; 2]) {
    while sides.iter().any(|side| !side.sends.is_empty()) {
        for one in 0..2 {
            while let Some(told) = sides[1 - one].sends.pop_front() {
                sides[one].hear(&told);
            }
        }
        prove(sides);
        check(sides);
    }
    prove(sides);
}

/// A request that proves the way arrives where the other end exists.
fn prove(sides: &mut [Side; 2]) {
    for one in 0..2 {
        let arrives = sides[one].proves && sides[1 - one].connected == sides[one].connected;
        if arrives && sides[one].connected.is_some() {
            sides[one].proves = false;
            sides[one].state.on_proved();
        }
    }
}

/// Ends of different attempts are never connected while one is up.
fn check(sides: &[Side; 2]) {
    for (one, other) in [(0, 1), (1, 0)] {
        let side = &sides[one];
        if side.state.is_up() {
            assert_eq!(side.end, side.connected);
            let there = sides[other].end;
            assert!(there.is_none_or(|there| Some(there) >= side.end), "an older end there");
        }
    }
}

proptest! {
    #[test]
    fn both_come_to_the_same_whatever_happens(
        moves in prop::collection::vec((0u8..20, any::<bool>()), 0..60)
    ) {
        play(&moves);
    }
}

#[test]
fn a_loss_that_is_carried_out_late_leaves_a_pair_made_since() {
    let mut sides = both_up();
    sides[0].note_loss();
    // The other one has carried it out, and has begun anew.
    sides[1].lose();
    exchange(&mut sides);
    let steps = sides[1].state.begin();
    sides[1].carry_out(steps);
    exchange(&mut sides);
    assert!(sides.iter().all(|side| side.state.is_up()));
    sides[0].take_down_lost();
    exchange(&mut sides);
    assert!(sides.iter().all(|side| side.state.is_up()), "the pair was made since");
}

#[test]
fn a_pair_goes_with_the_connection_that_it_was_made_by() {
    let mut sides = both_up();
    sides[0].note_loss();
    sides[0].take_down_lost();
    assert_eq!(sides[0].end, None);
    exchange(&mut sides);
    assert_eq!(sides[1].end, None, "it is told");
}

#[test]
fn the_end_of_an_older_attempt_refuses_nothing() {
    let mut side = Side::default();
    let steps = side.state.begin();
    side.carry_out(steps);
    side.hear(&Told::Lost(1));
    let steps = side.state.begin();
    assert_eq!(steps, [Step::Offer(2)]);
    side.carry_out(steps);
    side.hear(&Told::Ended(1, true));
    assert_eq!((side.state.refused(), side.end), (None, Some(2)));
}

#[test]
fn both_begin_at_once() {
    play(&[(0, true), (0, false), (3, true), (3, false), (3, true), (3, false)]);
}

/// A side whose peer has ended an end that this one has offered, and connected if `proves`.
fn ended_by_peer(proves: bool, refuses: bool) -> Side {
    let mut side = Side::default();
    let steps = side.state.begin();
    side.carry_out(steps);
    side.hear(&Told::Offer(1));
    if proves {
        side.hear(&Told::Connected(1));
        assert!(side.proves);
    }
    side.hear(&Told::Ended(1, refuses));
    assert_eq!((side.end, side.state.is_ending()), (None, false));
    side
}

#[test]
fn a_peer_that_refuses_is_not_asked_again_for_each_request() {
    for proves in [false, true] {
        let mut side = ended_by_peer(proves, true);
        assert_eq!(side.state.refused(), Some("told"));
        assert_eq!(side.state.begin(), []);
    }
}

#[test]
fn an_attempt_that_is_refused_for_now_is_followed_by_another_one_in_time() {
    let mut side = Side::default();
    let steps = side.state.begin();
    side.carry_out(steps);
    let steps = side.state.refuse("no answer");
    side.state.retry_later(5);
    side.carry_out(steps);
    let wakes_ns = |side: &Side| side.state.retry().and_then(|retry| retry.wakes_ns());
    let due_ns = wakes_ns(&side).expect("it is tried again");
    // However late the peer answers.
    assert_eq!(side.state.begin_by_time(|| due_ns - 1), []);
    side.hear(&Told::Ended(1, false));
    assert_eq!(side.state.begin_by_time(|| due_ns - 1), []);
    assert_eq!(side.state.refused_still(|| due_ns - 1), Some("no answer"));
    assert_eq!(side.state.refused_still(|| due_ns), None);
    let steps = side.state.begin_by_time(|| due_ns);
    assert_eq!(steps, [Step::Offer(2)]);
    side.carry_out(steps);
    assert_eq!(wakes_ns(&side), None, "an attempt is under way");
    // For a reason that does not pass.
    side.hear(&Told::Ended(2, true));
    assert_eq!((side.state.refused(), wakes_ns(&side)), (Some("told"), None));
    assert_eq!(side.state.begin_by_time(|| u64::MAX), []);
}

#[test]
fn the_failure_of_a_pair_that_was_up_is_no_refusal() {
    let [mut side, _] = both_up();
    let steps = side.state.refuse("no answer");
    side.state.retry_later(5);
    assert!(matches!(steps[..], [_, Step::TellEnd { refuses: false, .. }]), "{steps:?}");
    assert!(side.state.refused().is_none() && side.state.retry().is_none());
    assert!(!side.state.end_retries());
}

#[test]
fn an_end_that_has_failed_elsewhere_is_tried_again() {
    for proves in [false, true] {
        let mut side = ended_by_peer(proves, false);
        assert_eq!(side.state.refused(), None);
        assert_eq!(side.state.begin(), [Step::Offer(2)]);
    }
}

#[test]
fn an_end_that_follows_that_of_the_peer_hears_why_there_will_be_no_other() {
    for (proved, refuses) in [(false, true), (false, false), (true, true)] {
        let mut state = if proved {
            let [one, _] = both_up();
            one.state
        } else {
            let mut state = PairState::default();
            state.begin();
            state
        };
        let steps = state.follow("the peer's end is gone");
        assert!(matches!(steps[..], [_, Step::TellEnd { refuses: false, .. }]), "{steps:?}");
        assert_eq!((state.follow("again"), state.is_ending()), (vec![], true));
        assert_eq!(state.on_ended(1, "cut", refuses), []);
        assert_eq!(state.refused(), (!proved && refuses).then_some("cut"));
        assert!(state.is_idle());
    }
}

#[test]
fn a_peer_that_was_up_before_this_side_has_refused_nothing() {
    let mut side = Side::default();
    let steps = side.state.begin();
    side.carry_out(steps);
    side.hear(&Told::Offer(1));
    side.hear(&Told::Connected(1));
    assert!(side.proves, "the peer may have proved its way already, and used it");
    let mut peer = both_up()[1].state.fail("broken");
    let Some(Step::TellEnd { refuses, .. }) = peer.pop() else { panic!("it is told") };
    side.hear(&Told::Ended(1, refuses));
    assert_eq!((side.state.refused(), side.end), (None, None));
    assert_eq!(side.state.begin(), [Step::Offer(2)]);
}

#[test]
fn an_end_that_cannot_be_made_is_told_to_a_peer_that_has_offered_its_own() {
    let mut sides = [Side::default(), Side::default()];
    sides[1].has_none = true;
    let steps = sides[1].state.begin();
    sides[1].carry_out(steps);
    assert!(sides[1].sends.is_empty() && !sides[1].state.is_ending(), "nobody knows of it");
    let steps = sides[0].state.begin();
    sides[0].carry_out(steps);
    exchange(&mut sides);
    assert!(sides[0].state.refused().is_some() && sides[0].end.is_none());
    assert!(!sides[0].state.is_scarce() && sides[1].state.is_scarce());
    for side in &mut sides {
        assert!(side.state.begin().is_empty(), "not for each request");
    }
    sides[1].find_more();
    exchange(&mut sides);
    assert_eq!(sides.each_ref().map(|side| side.state.is_up()), [true; 2]);
}

fn both_up() -> [Side; 2] {
    let mut sides = [Side::default(), Side::default()];
    let steps = sides[0].state.begin();
    sides[0].carry_out(steps);
    exchange(&mut sides);
    assert!(sides.iter().all(|side| side.state.is_up()));
    sides
}

#[test]
fn a_connection_that_one_side_has_lost_costs_the_other_its_end() {
    let mut sides = both_up();
    sides[0].lose();
    exchange(&mut sides);
    assert_eq!(sides.each_ref().map(|side| side.end), [None; 2]);
    assert!(sides.iter().all(|side| side.state.refused().is_none()));
    assert_eq!(sides[1].state.begin(), [Step::Offer(2)]);
}

#[test]
fn an_end_whose_answer_was_lost_with_the_connection_is_no_end_to_wait_for() {
    let mut sides = both_up();
    let steps = sides[0].state.fail("broken");
    sides[0].carry_out(steps);
    let told = sides[0].sends.pop_front().expect("the end is told");
    sides[1].hear(&told);
    // The answer is on its way there.
    sides[1].lose();
    assert!(sides[0].state.is_ending());
    exchange(&mut sides);
    assert!(!sides[0].state.is_ending());
}

#[test]
fn a_read_that_was_lost_is_not_made_by_the_next_pair() {
    let ([mut side, _], mut lane) = (both_up(), LaneState::default());
    std::mem::swap(&mut lane.pairing, &mut side.state);
    let losses = lane.counters.losses;
    assert!(lane.has_read(losses));
    lane.push(Request::Fence { run: None });
    lane.lose_all(QueueId(0), &mut Ended::default());
    // Another thread has made the next one by now.
    assert!(lane.pairing.is_up() && !lane.has_read(losses));
    assert!(lane.has_read(lane.counters.losses));
}

#[test]
fn a_pair_that_was_up_is_made_again() {
    let mut sides = both_up();
    let steps = sides[1].state.fail("an access was refused");
    let ends = |step: &Step| matches!(step, Step::TellEnd { attempt: 1, refuses: false, .. });
    assert!(matches!(&steps[..], [Step::TakeDown { was_up: true, .. }, end] if ends(end)));
    sides[1].carry_out(steps);
    assert!(sides[1].state.begin().is_empty(), "the peer has not ended its end");
    let told = sides[1].sends.pop_front().expect("the end is told");
    sides[0].hear(&told);
    let told = sides[0].sends.pop_front().expect("the answer");
    sides[1].hear(&told);
    assert_eq!(sides[1].state.begin(), [Step::Offer(2)]);
}
