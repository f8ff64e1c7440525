//! A right that one thread uses without a lock, and lets rest in between, beside a thread that
//! takes it under the lock: what both change with it is never changed by two at once.
//!
//! Sections are those of `gaspi_core::sync::epoch`: a store and a fence at their begin, a store at
//! their end, which a thread that has taken a right waits for behind a fence of its own. In the
//! twins the holder lets its right rest by a plain store, takes it up again without looking whether
//! it still has it, or orderings are weakened.

use super::*;
use gaspi_core::sync::holder::Holder;
use loom::sync::Mutex;

/// Names of threads.
const OWN: u64 = 2;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Rule {
    AsWritten,
    /// The holder lets its right rest whether it still has it or not.
    RestsBlindly,
    /// It does so before it is done.
    RestsEarly,
    /// A thread that takes the right does not wait for the holder's section.
    DoesNotWait,
}

struct Shared<const HOW: u8> {
    rule: Rule,
    holder: Holder<W64<HOW>>,
    lock: Mutex<()>,
    /// The holder is in a section.
    entered: AtomicU64,
    /// What the right is for.
    count: Payload,
}

impl<const HOW: u8> Shared<HOW> {
    fn add(&self) {
        self.count.write(self.count.read() + 1);
    }

    fn rest(&self) {
        match self.rule {
            Rule::RestsBlindly => self.holder.set(OWN | 1),
            _ => self.holder.rest_in_section(OWN),
        }
    }

    /// A request, and the wait for it.
    fn use_once(&self) {
        self.entered.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let has = self.holder.is(OWN) || self.holder.resume(OWN);
        if has {
            if self.rule == Rule::RestsEarly {
                self.rest();
            }
            self.add();
            self.rest();
        }
        self.entered.store(0, Ordering::Release);
        if !has {
            let _lock = self.lock.lock().expect("no panic");
            self.take();
            self.add();
        }
    }

    fn take(&self) {
        self.holder.take(|holder| {
            assert_eq!(holder, OWN);
            fence(Ordering::SeqCst);
            until(|| self.rule == Rule::DoesNotWait || self.entered.load(Ordering::Acquire) == 0);
        });
    }
}

fn model<const HOW: u8>(rule: Rule) {
    let shared = Arc::new(Shared::<HOW> {
        rule,
        holder: Holder::default(),
        lock: Mutex::new(()),
        entered: AtomicU64::new(0),
        count: Payload::default(),
    });
    shared.holder.set(OWN);
    let other = spawn(&shared, |shared| {
        let _lock = shared.lock.lock().expect("no panic");
        shared.take();
        shared.add();
    });
    shared.use_once();
    shared.use_once();
    other.join().expect("the other one");
    assert_eq!(shared.count.read(), 3);
}

#[test]
fn a_right_that_rests_in_a_section_is_never_used_by_two() {
    holds(|| model::<EXCHANGED>(Rule::AsWritten));
}

#[test]
fn a_right_that_rests_wrongly() {
    for rule in [Rule::RestsBlindly, Rule::RestsEarly, Rule::DoesNotWait] {
        breaks(move || model::<EXCHANGED>(rule));
    }
    breaks(|| model::<{ EXCHANGED | NO_RELEASE }>(Rule::AsWritten));
    breaks(|| model::<{ EXCHANGED | NO_ACQUIRE }>(Rule::AsWritten));
}
