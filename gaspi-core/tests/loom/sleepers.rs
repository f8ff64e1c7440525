//! A thread that sleeps until a device tells of its completions, beside one that looks and leaves:
//! what the second one takes from the device's channel is not missed by the first.

use super::{AS_WRITTEN, W32, breaks, holds, spawn};
use gaspi_core::sync::sleepers::Sleepers;
use loom::sync::{Arc, Condvar, Mutex};

/// Completions that the sleeper waits for.
const WANTED: u32 = 2;

/// A device, and what its rank knows.
#[derive(Default)]
struct State {
    /// Completed, and not polled.
    completions: u32,
    /// The next completion is told.
    is_armed: bool,
    /// What was told and not taken.
    told: bool,
    /// Polled by anybody.
    done: u32,
    /// The sleeper can be woken by whoever polls, and was.
    announced: bool,
    woken: bool,
    /// Nobody does anything any more.
    over: bool,
}

#[derive(Default)]
struct Rank<const RECOUNTS: bool> {
    state: Mutex<State>,
    news: Condvar,
    sleepers: Sleepers<W32<AS_WRITTEN>>,
}

impl<const RECOUNTS: bool> Rank<RECOUNTS> {
    fn complete(&self) {
        let mut state = self.state.lock().expect("no panic");
        state.completions += 1;
        if std::mem::take(&mut state.is_armed) {
            state.told = true;
            self.news.notify_all();
        }
    }

    fn arm(&self) {
        self.state.lock().expect("no panic").is_armed = true;
    }

    /// Takes from the channel what it has told.
    fn disarm(&self) {
        self.state.lock().expect("no panic").told = false;
    }

    fn poll(&self) -> bool {
        let mut state = self.state.lock().expect("no panic");
        let come = std::mem::take(&mut state.completions);
        state.done += come;
        if come > 0 && state.announced {
            state.woken = true;
            self.news.notify_all();
        }
        come > 0
    }

    /// `Arrivals::sleep` and the loop around it.
    fn wait(&self) {
        self.sleepers.begin();
        loop {
            self.arm();
            if !self.poll() {
                let mut state = self.state.lock().expect("no panic");
                (state.announced, state.woken) = (true, false);
                drop(state);
                let mut state = self.state.lock().expect("no panic");
                while state.done < WANTED && !state.told && !state.woken && !state.over {
                    state = self.news.wait(state).expect("no panic");
                }
                let missed = state.over && state.done < WANTED && !state.told && !state.woken;
                state.announced = false;
                drop(state);
                assert!(!missed, "it sleeps for ever");
                self.disarm();
                self.poll();
            }
            if self.state.lock().expect("no panic").done >= WANTED {
                break;
            }
        }
        self.sleepers.end();
    }

    /// `Verbs::attend`, or a caller that looks and leaves.
    fn look_and_leave(&self) {
        self.disarm();
        while self.poll() {}
        while RECOUNTS && self.sleepers.are_any() {
            self.arm();
            if !self.poll() {
                break;
            }
        }
    }
}

fn model<const RECOUNTS: bool>() {
    let rank = Arc::new(Rank::<RECOUNTS>::default());
    let sleeper = spawn(&rank, Rank::wait);
    let looker = spawn(&rank, Rank::look_and_leave);
    (0..WANTED).for_each(|_| rank.complete());
    looker.join().expect("the looker");
    rank.state.lock().expect("no panic").over = true;
    rank.news.notify_all();
    sleeper.join().expect("the sleeper");
}

#[test]
fn who_looks_and_leaves_takes_nothing_from_who_sleeps() {
    holds(model::<true>);
}

#[test]
fn without_the_count_a_sleeper_is_not_told() {
    breaks(model::<false>);
}
