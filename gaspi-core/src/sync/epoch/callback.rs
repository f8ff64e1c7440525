//! Functions of the program that the library calls.

use super::{Slot, current};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many threads of this process are in such functions. Most often there is none, which costs
/// less to find out than whether this thread is one.
static INSIDE: AtomicUsize = AtomicUsize::new(0);

/// While it lives, this thread is in a function of the program that the library calls: it takes no
/// fast path, so that whatever would wait comes where it is refused.
#[derive(Debug)]
pub struct Callback {
    slot: &'static Slot,
    // The slot belongs to this thread.
    _not_send: PhantomData<*const ()>,
}

/// The thread, which is outside, is about to call a function of the program; `None` if it is in one
/// already.
pub fn enter_callback() -> Option<Callback> {
    let slot = current();
    if slot.in_callback.load(Ordering::Relaxed) != 0 {
        return None;
    }
    INSIDE.fetch_add(1, Ordering::Relaxed);
    slot.in_callback.store(1, Ordering::Relaxed);
    slot.allow_fast();
    Some(Callback { slot, _not_send: PhantomData })
}

/// Whether this thread is in a function of the program that the library calls.
#[inline]
pub fn is_in_callback() -> bool {
    // Relaxed: a thread sees what it has added itself.
    INSIDE.load(Ordering::Relaxed) != 0 && current().in_callback.load(Ordering::Relaxed) != 0
}

impl Drop for Callback {
    fn drop(&mut self) {
        self.slot.in_callback.store(0, Ordering::Relaxed);
        self.slot.allow_fast();
        INSIDE.fetch_sub(1, Ordering::Relaxed);
    }
}
