//! Turns: long all-reduces by messages of a program that hands over many at once. Only so many are
//! under way that their data stays in the caches; the others begin in the order in which they were
//! handed over.
//!
//! Ranks may hand them over in other orders. So one begins at once if another member has begun it,
//! if a thread of the program waits for it, or if nothing has ended for [`PATIENCE`] that could
//! make room for it: a program may hand over what those under way wait for only when it has seen
//! the end of one that waits here.
//! Threads that drive operations look for that; nobody else is told.

use std::collections::VecDeque;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use gaspi_core::Deadline;
use gaspi_core::sync::{Mutex, MutexGuard};

/// How long nothing ends until the next one begins nevertheless.
pub(crate) const PATIENCE: Duration = Duration::from_millis(2);
/// How long the first of those that wait is put off by others of its own that begin out of turn.
const LONGEST: Duration = Duration::from_millis(16);
/// How many of those that wait a look asks for whether they are due.
const ASKED: usize = 4;

/// Whose all-reduces take turns.
pub(crate) trait TakesTurns: std::fmt::Debug + Send + Sync {
    /// Begins one, without a wait. Turns are locked: whoever frees one knows which have begun.
    fn begin(&self, index: usize);
    /// Whether it must not wait any longer.
    fn is_due(&self, index: usize) -> bool;
    /// Whether it has ended in this step.
    fn has_ended(&self, index: usize, step: u64) -> bool;
    /// It does not begin any more: the rank has left.
    fn give_up(&self, index: usize);
}

/// An all-reduce that has been handed over.
#[derive(Clone, Debug)]
pub(crate) struct Turn {
    pub(crate) of: Weak<dyn TakesTurns>,
    pub(crate) index: usize,
    pub(crate) step: u64,
    pub(crate) bytes: u64,
    /// It begins while fewer bytes are under way.
    pub(crate) window: u64,
}

impl Turn {
    fn is(&self, of: &Weak<dyn TakesTurns>, index: Option<usize>) -> bool {
        Weak::ptr_eq(&self.of, of) && index.is_none_or(|index| index == self.index)
    }

    fn has_ended(&self) -> bool {
        self.of.upgrade().is_none_or(|of| of.has_ended(self.index, self.step))
    }

    fn is_due(&self) -> bool {
        self.of.upgrade().is_none_or(|of| of.is_due(self.index))
    }

    fn begin(&self) {
        if let Some(of) = self.of.upgrade() {
            of.begin(self.index);
        }
    }

    pub(super) fn give_up(&self) {
        if let Some(of) = self.of.upgrade() {
            of.give_up(self.index);
        }
    }
}

/// One that is under way.
#[derive(Debug)]
struct Begun {
    turn: Turn,
    /// Whether it began when its turn had come.
    in_turn: bool,
}

#[derive(Debug)]
struct State {
    under_way: Vec<Begun>,
    waiting: VecDeque<Turn>,
    /// Where the next look goes on asking.
    asked: usize,
    /// When the last one began in its turn, or was seen to have ended that had.
    moved: Instant,
    /// The same of those that began otherwise, and whose that was.
    moved_out_of_turn: Option<(Weak<dyn TakesTurns>, Instant)>,
}

/// The turns of a rank.
#[derive(Debug)]
pub(crate) struct Turns {
    /// How many wait.
    waiting: AtomicUsize,
    state: Mutex<State>,
    /// A thread that was to look found the state locked.
    again: AtomicBool,
}

impl Default for Turns {
    fn default() -> Turns {
        let (under_way, waiting) = (Vec::new(), VecDeque::new());
        let (moved, moved_out_of_turn) = (Instant::now(), None);
        let state = State { under_way, waiting, asked: 0, moved, moved_out_of_turn };
        let (waiting, again) = (AtomicUsize::new(0), AtomicBool::new(false));
        Turns { waiting, state: Mutex::new(state), again }
    }
}

impl State {
    /// Whether so few bytes are under way that this one may begin.
    fn has_room(&mut self, turn: &Turn) -> bool {
        let ended: Vec<Begun> =
            self.under_way.extract_if(.., |begun| begun.turn.has_ended()).collect();
        for Begun { turn, in_turn } in &ended {
            self.note_move(turn, *in_turn);
        }
        self.under_way.iter().map(|begun| begun.turn.bytes).sum::<u64>() < turn.window
    }

    /// One has begun or ended.
    fn note_move(&mut self, turn: &Turn, in_turn: bool) {
        let now = Instant::now();
        match in_turn {
            true => self.moved = now,
            false => self.moved_out_of_turn = Some((Weak::clone(&turn.of), now)),
        }
    }

    /// Whether nothing has moved for long that puts this one off. What a program waits for of other
    /// fused buffers may begin and end for ever, while what this one waits behind does not. So may
    /// what begins out of turn of its own, which puts it off for a while only.
    fn has_waited_long(&self, turn: &Turn) -> bool {
        let is_own = |(of, _): &&(Weak<dyn TakesTurns>, Instant)| turn.is(of, None);
        let own = self.moved_out_of_turn.as_ref().filter(is_own);
        let quiet = self.moved.elapsed();
        let is_put_off = || quiet < LONGEST && own.is_some_and(|(_, at)| at.elapsed() < PATIENCE);
        quiet >= PATIENCE && !is_put_off()
    }

    /// Takes the next one that may begin.
    fn next(&mut self) -> Option<Turn> {
        let first = self.waiting.front()?.clone();
        if self.has_room(&first) || self.has_waited_long(&first) {
            return self.take(0, true);
        }
        let (len, from) = (self.waiting.len(), self.asked);
        let mut asked = (from..from + ASKED.min(len)).map(|nth| nth % len);
        let due = asked.find(|nth| self.waiting[*nth].is_due());
        self.asked = (due.unwrap_or(from + ASKED)) % len;
        self.take(due?, false)
    }

    fn take(&mut self, nth: usize, in_turn: bool) -> Option<Turn> {
        let turn = self.waiting.remove(nth)?;
        self.begin(turn.clone(), in_turn);
        Some(turn)
    }

    fn begin(&mut self, turn: Turn, in_turn: bool) {
        self.note_move(&turn, in_turn);
        self.under_way.push(Begun { turn, in_turn });
    }
}

impl Turns {
    /// Hands one over: how many wait now, with this one, or `None` if it begins now, by the caller.
    pub(super) fn hand_over(&self, turn: Turn) -> Option<usize> {
        let mut state = self.state.lock();
        // One that is handed over behind others waits like them.
        let begins = state.waiting.is_empty() && state.has_room(&turn);
        if begins {
            state.begin(turn, true);
            return None;
        }
        state.waiting.push_back(turn);
        self.count(&state);
        Some(state.waiting.len())
    }

    /// Behind a begin: who sees that none waits any more sees that all have begun.
    fn count(&self, state: &State) {
        // Release: pairs with the Acquire in `has_waiting`.
        self.waiting.store(state.waiting.len(), Ordering::Release);
    }

    /// Whether any wait.
    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// `None` while another thread has it, which looks once more for this one.
    fn try_hold(&self) -> Option<MutexGuard<'_, State>> {
        for _ in 0..2 {
            match self.state.try_lock() {
                Some(state) => return Some(state),
                // AcqRel: pairs with the swap of the holder, behind its unlock. If that one is
                // later, it sees this.
                None => self.again.swap(true, Ordering::AcqRel),
            };
        }
        None
    }

    /// Begins the next one whose turn has come; false if there is none, or another thread looks,
    /// which may have seen what was before, and so looks again.
    pub(super) fn begin_next(&self) -> bool {
        loop {
            let Some(mut state) = self.try_hold() else { return false };
            let next = state.next();
            let begins = self.begin(&state, next);
            drop(state);
            // Who has begun one looks again anyway. AcqRel: see `try_hold`.
            if begins || !self.again.swap(false, Ordering::AcqRel) {
                return begins;
            }
        }
    }

    /// Begins one of those that wait, or any of somebody; false if there is none. None of them is
    /// just beginning in another thread then. The caller looks for the [next](Turns::begin_next)
    /// behind this and behind a [hand over](Turns::hand_over), since others could not meanwhile.
    pub(super) fn begin_now(&self, of: &Weak<dyn TakesTurns>, index: Option<usize>) -> bool {
        let mut state = self.state.lock();
        let nth = state.waiting.iter().position(|turn| turn.is(of, index));
        let turn = nth.and_then(|nth| state.take(nth, false));
        self.begin(&state, turn)
    }

    fn begin(&self, state: &State, turn: Option<Turn>) -> bool {
        let begins = turn.is_some();
        if let Some(turn) = turn {
            turn.begin();
        }
        self.count(state);
        begins
    }

    /// Takes all that wait, whose rank has left.
    pub(super) fn take_all(&self) -> VecDeque<Turn> {
        let mut state = self.state.lock();
        let waiting = std::mem::take(&mut state.waiting);
        self.count(&state);
        waiting
    }

    /// The end of a wait, or the next look if one of those that wait may have to begin before.
    pub(crate) fn limit(&self, deadline: Deadline) -> Deadline {
        if self.has_waiting() { deadline.at_most(PATIENCE) } else { deadline }
    }
}

#[cfg(test)]
#[path = "turns_tests.rs"]
mod turns_tests;
