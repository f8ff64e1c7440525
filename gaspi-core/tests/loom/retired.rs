//! What a handler of frames unlinks while its own caller is inside of a section: a model of the
//! rule that `gaspi_core::sync::epoch` keeps.
//!
//! A reader enters, finds an entry, handles a frame in between that replaces the entry, goes on
//! reading the old one, and leaves. A second thread frees what was retired once nobody is inside
//! since before. The twins break the rule: a handler that frees at once, one that waits for all who
//! are inside (loom finds that nobody goes on), and a reader without its fence.

use super::{breaks, holds, spawn};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::Mutex;
use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

const WHOLE: u64 = 7;
const FREED: u64 = 0;
/// How often the second thread looks whether it may free: it may end without, as the progress
/// thread may.
const LOOKS: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Handler {
    Retires,
    FreesAtOnce,
    Waits,
}

struct World {
    epoch: AtomicU64,
    /// The epoch in which the reader entered, 0 while it is outside.
    entered: AtomicU64,
    /// Which entry the table holds.
    entry: AtomicUsize,
    entries: [UnsafeCell<u64>; 2],
    retired: Mutex<Option<usize>>,
}

impl World {
    fn new() -> World {
        World {
            epoch: AtomicU64::new(1),
            entered: AtomicU64::new(0),
            entry: AtomicUsize::new(0),
            entries: [UnsafeCell::new(WHOLE), UnsafeCell::new(WHOLE)],
            retired: Mutex::new(None),
        }
    }

    fn read(&self, entry: usize) {
        // SAFETY: what the model is about: nobody writes while this thread is inside.
        let found = self.entries[entry].with(|value| unsafe { *value });
        assert_eq!(found, WHOLE, "freed while it was used");
    }

    fn free(&self, entry: usize) {
        // SAFETY: what the model is about: nobody uses it any more.
        self.entries[entry].with_mut(|value| unsafe { *value = FREED });
    }

    /// Begins an epoch, with the fence of all threads that the rare side pays for.
    fn next_epoch(&self) -> u64 {
        let epoch = self.epoch.fetch_add(2, Ordering::SeqCst) + 2;
        fence(Ordering::SeqCst);
        epoch
    }

    fn is_used(&self, epoch: u64) -> bool {
        (1..epoch).contains(&self.entered.load(Ordering::Acquire))
    }

    fn handle(&self, handler: Handler) {
        let old = self.entry.swap(1, Ordering::AcqRel);
        match handler {
            Handler::Retires => *self.retired.lock().unwrap() = Some(old),
            Handler::FreesAtOnce => self.free(old),
            Handler::Waits => {
                let epoch = self.next_epoch();
                assert!(!self.is_used(epoch), "it would wait for itself");
                self.free(old);
            }
        }
    }
}

/// `handles_itself`: the reader handles the frame; else another thread does while it reads.
fn section(handler: Handler, handles_itself: bool, fenced: bool) {
    let world = Arc::new(World::new());
    let reader = spawn(&world, move |world| {
        let epoch = world.epoch.load(Ordering::Acquire);
        world.entered.store(epoch, Ordering::Relaxed);
        if fenced {
            fence(Ordering::SeqCst);
        }
        let entry = world.entry.load(Ordering::Acquire);
        world.read(entry);
        if handles_itself {
            world.handle(handler);
        }
        world.read(entry);
        world.entered.store(0, Ordering::Release);
    });
    if !handles_itself {
        world.handle(handler);
    }
    for _ in 0..LOOKS {
        let retired = world.retired.lock().unwrap().take();
        let Some(entry) = retired else { continue };
        let epoch = world.next_epoch();
        if world.is_used(epoch) {
            *world.retired.lock().unwrap() = Some(entry);
        } else {
            world.free(entry);
        }
    }
    reader.join().unwrap();
}

#[test]
fn what_a_handler_retires_is_freed_when_nobody_is_inside() {
    holds(|| section(Handler::Retires, true, true));
    holds(|| section(Handler::Retires, false, true));
}

#[test]
fn a_handler_that_frees_or_waits_is_found() {
    breaks(|| section(Handler::FreesAtOnce, true, true));
    breaks(|| section(Handler::FreesAtOnce, false, true));
    breaks(|| section(Handler::Waits, true, true));
    breaks(|| section(Handler::Retires, false, false));
}
