//! The background thread, which drives operations while no thread of the program does.

use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use gaspi_core::os::process;
use gaspi_core::{Deadline, Error, Result};

use super::{Engine, Shared, TellsEnds, given_up};
use crate::exec::executor::{self, Driver, Executor};
use crate::exec::turns;

/// How long the background waits on a channel before it checks for other work.
const BACKGROUND_LIMIT: Duration = Duration::from_millis(250);
/// How long it rests first because a thread of the program waits, and how often it then rests twice
/// as long. Up to here it looks by itself whether it is needed again: threads wait for one bucket
/// after the other, and to tell it behind each costs more than the wait.
const BRIEF_REST: Duration = Duration::from_micros(200);
const BRIEF_RESTS: u32 = 4;
/// A program that begins to wait so soon after a start that woke the thread carries its fused
/// buffers on by itself. Longer where ranks share cores: the thread would take one from a rank.
const SOON: Duration = Duration::from_micros(500);
const SOON_SHARING: Duration = Duration::from_millis(2);
/// So many wake-ups in a row were in vain, until the thread relies on it: at first, and at most.
const IN_VAIN: u32 = 4;
const IN_VAIN_MAX: u32 = 256;
/// How often the thread looks then whether that still holds, while buckets do not wake it; and
/// after how many looks in a row that find nothing they do again.
const LOOK: Duration = Duration::from_millis(1);
const LOOKS: u32 = 4;
/// A wait that has begun, in [`Shared::waits`], whose lower half are the waits that have not ended.
const BEGUN: u64 = 1 << 32;

fn soon(executor: &Executor) -> Duration {
    if executor.channel.shares_cores() { SOON_SHARING } else { SOON }
}

/// What the thread was told since it last looked.
#[derive(Debug, Default)]
pub(super) struct Work {
    /// That there may be work.
    pub(super) told: bool,
    /// That the program has started an operation which it leaves to the thread from the start on.
    asked: bool,
}

/// How many waits have not ended, of [`Shared::waits`].
fn under_way(waits: u64) -> u64 {
    waits % BEGUN
}

/// What the thread knows of how the program carries on what it starts.
#[derive(Debug)]
struct Habits {
    /// When a start has woken the thread, until the program waits, or nothing is left.
    woken: Option<Instant>,
    /// How many wake-ups in a row were in vain, and how many it takes to rely on it: the more, the
    /// more often that was wrong.
    in_vain: u32,
    needed: u32,
    /// How many waits had begun at the last look.
    begun: u64,
    /// Looks in a row that found nothing.
    looks: u32,
}

impl Habits {
    fn new() -> Habits {
        Habits { woken: None, in_vain: 0, needed: IN_VAIN, begun: 0, looks: 0 }
    }

    /// Whether the program carries on by itself what it starts.
    fn waits_soon(&self) -> bool {
        self.in_vain >= self.needed
    }

    /// The program waits.
    fn found_waiting(&mut self, executor: &Executor) {
        let Some(woken) = self.woken.take() else { return };
        // What the thread relies on is judged by `leaves_to_program`.
        if !self.waits_soon() {
            self.in_vain = if woken.elapsed() < soon(executor) { self.in_vain + 1 } else { 0 };
        }
    }

    /// Nothing is under way.
    fn found_nothing(&mut self) {
        // The thread has ended what woke it, or the program without a wait.
        if self.woken.take().is_some() && !self.waits_soon() {
            self.in_vain = 0;
        }
    }

    fn was_wrong(&mut self) {
        self.in_vain = 0;
        self.needed = (2 * self.needed).min(IN_VAIN_MAX);
    }

    /// Whether a wait has begun since the last look.
    fn has_begun(&mut self, begun: u64) -> bool {
        std::mem::replace(&mut self.begun, begun) != begun
    }
}

impl Engine {
    /// Starts the background thread, unless it runs.
    ///
    /// # Errors
    /// [`Error::System`]: it cannot be started.
    pub(crate) fn start_background_thread(&self) -> Result<()> {
        let mut background = self.background.lock();
        if background.is_none() {
            let shared = Arc::clone(&self.shared);
            // The thread inherits the mask of signals: none of the program's are delivered to it.
            let thread = process::with_signals_blocked(|| {
                std::thread::Builder::new()
                    .name("gaspi-collective".to_owned())
                    .spawn(move || shared.run_background())
            });
            let what = "the thread for operations in the background";
            *background = Some(thread.map_err(|error| Error::thread(what, &error))?);
            self.shared.has_thread.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Shared {
    /// Tells the thread of a new operation on an executor.
    pub(crate) fn notify_background(&self, executor: &Executor) {
        self.end_rest();
        // It may be waiting for something else.
        executor.channel.wake_waiters();
    }

    /// Has an operation driven that was started and not looked at: by the thread, if it is one of
    /// the background, and by threads that wait for others and sleep.
    pub(crate) fn notify_started(&self, executor: &Executor, background: bool) {
        match background {
            true => {
                self.work.lock().asked = true;
                self.notify_background(executor);
            }
            false => executor.channel.wake_waiters(),
        }
    }

    fn end_rest(&self) {
        self.work.lock().told = true;
        self.started.notify_one();
    }

    /// The same for an operation that has been carried on as far as it goes without waiting: a
    /// thread that drives others, or waits for one, is woken by what this one waits for. One that
    /// rests for a short time looks by itself.
    pub(crate) fn notify_resting_background(&self, executor: &Executor) {
        // SeqCst: pairs with the fence in `rest`. Either the thread sees the operation, or this one
        // that it rests.
        fence(Ordering::SeqCst);
        if self.rests.load(Ordering::Relaxed) && !self.has_waiters() {
            self.notify_background(executor);
        }
    }

    /// A thread of the program begins to wait. It drives all operations, so that the background
    /// rests meanwhile: else what comes would wake both.
    #[inline]
    pub(super) fn waiter(&self, deadline: Deadline) -> Option<Waiter<'_>> {
        // Relaxed: without the thread there is nobody to tell.
        if deadline == Deadline::Now || !self.has_thread.load(Ordering::Relaxed) {
            return None;
        }
        self.waits.fetch_add(BEGUN + 1, Ordering::Relaxed);
        Some(Waiter(self))
    }

    /// Has the thread tell the program of ends.
    pub(crate) fn notify_ends(&self, executor: &Executor) {
        // Release: pairs with the swap in `tell_ends`.
        self.has_ends.store(true, Ordering::Release);
        self.notify_background(executor);
    }

    /// Has the thread call this one when there is something to tell, and now and then while it
    /// drives operations.
    pub(crate) fn register_ends(&self, teller: &Arc<dyn TellsEnds>) {
        let mut tellers = self.tellers.lock();
        tellers.retain(|known| known.strong_count() > 0);
        if !tellers.iter().any(|known| Weak::ptr_eq(known, &Arc::downgrade(teller))) {
            tellers.push(Arc::downgrade(teller));
        }
    }

    fn tell_ends(&self) {
        if self.has_ends.swap(false, Ordering::AcqRel) {
            let tellers: Vec<_> = self.tellers.lock().iter().filter_map(Weak::upgrade).collect();
            tellers.iter().for_each(|teller| teller.tell_ends());
        }
    }

    /// Has warned of what no thread of the program waits for.
    fn look_for_stalls(&self) {
        let tellers: Vec<_> = self.tellers.lock().iter().filter_map(Weak::upgrade).collect();
        tellers.iter().for_each(|teller| teller.look_for_stalls());
    }

    /// An executor with background operations.
    pub(super) fn background_executor(&self) -> Option<Arc<Executor>> {
        self.active.find(|executor| executor.has_background().then(|| Arc::clone(executor)))
    }

    fn has_waiters(&self) -> bool {
        under_way(self.waits.load(Ordering::Relaxed)) > 0
    }

    fn begun_waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed) / BEGUN
    }

    /// How long the thread may wait for something else than what was given up.
    fn wait_limit(&self) -> Duration {
        if self.given_up.is_any() { given_up::LOOK } else { BACKGROUND_LIMIT }
    }

    /// How long it may rest while it has nothing to drive; `None`: until it is told.
    fn rest_limit(&self) -> Option<Duration> {
        if self.active.turns.has_waiting() {
            // What is under way before is carried on by the program alone, which may wait for the
            // end of one that waits.
            return Some(turns::PATIENCE);
        }
        self.given_up.is_any().then_some(given_up::LOOK)
    }

    /// Rests for so long, or until it is told; whether it was.
    fn rest_for(&self, limit: Duration) -> bool {
        let mut work = self.work.lock();
        if !work.told && !self.ending.load(Ordering::Acquire) {
            work = self.started.wait_at_most(work, limit);
        }
        std::mem::take(&mut work.told)
    }

    /// Waits until there may be work.
    fn rest(&self, habits: &mut Habits) {
        habits.found_nothing();
        if habits.waits_soon() && habits.looks < LOOKS {
            habits.looks += 1;
            self.rest_for(LOOK);
            return;
        }
        self.rests.store(true, Ordering::Relaxed);
        // SeqCst: pairs with the fence in `notify_resting_background`.
        fence(Ordering::SeqCst);
        if self.background_executor().is_none() {
            let mut work = self.work.lock();
            while !work.told && !self.ending.load(Ordering::Acquire) {
                if let Some(limit) = self.rest_limit() {
                    work = self.started.wait_at_most(work, limit);
                    break;
                }
                work = self.started.wait(work);
            }
            habits.woken = std::mem::take(&mut work.told).then(Instant::now);
        }
        self.rests.store(false, Ordering::Relaxed);
    }

    /// Waits while threads of the program may do the work; the longer, the more often it has.
    fn rest_beside_waiters(&self, habits: &mut Habits, rests: u32) {
        let brief = if habits.waits_soon() {
            habits.looks = if habits.has_begun(self.begun_waits()) { 0 } else { habits.looks + 1 };
            (habits.looks < LOOKS).then_some(LOOK)
        } else {
            (rests < BRIEF_RESTS).then(|| BRIEF_REST * (1 << rests))
        };
        if let Some(limit) = brief {
            self.rest_for(limit);
            return;
        }
        self.rests.store(true, Ordering::Relaxed);
        // SeqCst: pairs with the fence in the drop of `Waiter`.
        fence(Ordering::SeqCst);
        if self.has_waiters() {
            self.rest_for(self.wait_limit());
        }
        self.rests.store(false, Ordering::Relaxed);
        // A thread that waits may be in a function of the program for long.
        self.progress(Driver::Background, |executor| executor.has_background());
    }

    /// Whether what is under way is left to the program for now: it has begun to wait since the
    /// last look, or does so soon.
    fn leaves_to_program(&self, habits: &mut Habits, executor: &Executor) -> bool {
        if std::mem::take(&mut self.work.lock().asked) || !habits.waits_soon() {
            return false;
        }
        habits.looks = 0;
        self.progress(Driver::Background, |executor| executor.has_background());
        let has_begun = habits.has_begun(self.begun_waits());
        let is_told = self.rest_for(if has_begun { LOOK } else { soon(executor) });
        if has_begun || is_told || habits.has_begun(self.begun_waits()) {
            return true;
        }
        let is_left = self.background_executor().is_some();
        if is_left {
            habits.was_wrong();
        }
        !is_left
    }

    /// The loop of the background thread.
    fn run_background(&self) {
        executor::become_library_thread();
        let mut looked = Instant::now();
        let (mut habits, mut rests) = (Habits::new(), 0);
        let mut drives = false;
        while !self.ending.load(Ordering::Acquire) {
            self.active.begin_next();
            self.tell_ends();
            self.carry_given_up_on();
            if looked.elapsed() >= BACKGROUND_LIMIT {
                self.look_for_stalls();
                looked = Instant::now();
            }
            let Some(executor) = self.background_executor() else {
                drives = false;
                self.rest(&mut habits);
                continue;
            };
            if self.has_waiters() {
                drives = false;
                habits.found_waiting(&executor);
                self.rest_beside_waiters(&mut habits, rests);
                rests += 1;
                continue;
            }
            rests = 0;
            drives = drives || !self.leaves_to_program(&mut habits, &executor);
            if !drives {
                continue;
            }
            let looks_at_turns = self.active.turns.has_waiting();
            let limit = self.active.turns.limit(Deadline::Never.at_most(self.wait_limit()));
            let looks_after_any = self.given_up.is_any();
            let ended = executor.channel.wait_in_background(limit, || {
                self.progress(Driver::Background, |executor| executor.has_background());
                let other_work = self.has_ends.load(Ordering::Relaxed)
                    || !looks_after_any && self.given_up.is_any()
                    || !looks_at_turns && self.active.turns.has_waiting()
                    || self.has_waiters()
                    || self.ending.load(Ordering::Acquire);
                (!executor.has_background() || other_work).then_some(())
            });
            if ended.is_none() {
                self.look_around(|executor| executor.has_background());
            }
        }
    }
}

/// A thread of the program that waits, and drives all operations.
pub(super) struct Waiter<'a>(&'a Shared);

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let shared = self.0;
        // What this thread has ended may have left its turn to another one.
        shared.active.begin_next();
        if under_way(shared.waits.fetch_sub(1, Ordering::Relaxed)) > 1 {
            return;
        }
        // SeqCst: pairs with the fence in `rest_beside_waiters`.
        fence(Ordering::SeqCst);
        if shared.rests.load(Ordering::Relaxed) {
            match shared.background_executor() {
                Some(executor) => shared.notify_background(&executor),
                None if shared.active.turns.has_waiting() => shared.end_rest(),
                None => {}
            }
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let thread = self.background.lock().take();
        if self.shared.is_of_parent() {
            // So is the thread; and one that drove operations may hold locks.
            std::mem::forget((thread, Arc::clone(&self.shared)));
            return;
        }
        if let Some(thread) = thread {
            self.shared.ending.store(true, Ordering::Release);
            drop(self.shared.work.lock());
            self.shared.started.notify_one();
            let executor = self.shared.background_executor();
            if let Some(executor) = executor {
                executor.channel.wake_waiters();
            }
            // It ends within its limit. A panic was reported when it happened.
            let _ = thread.join();
        }
        self.shared.end_given_up();
    }
}
