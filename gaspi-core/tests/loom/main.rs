//! The lock-free hand-overs between ranks under loom: all interleavings of at most three
//! preemptions and all values that weak memory may give.
//!
//! The structures of `gaspi_core::sync` run here on loom's atomics. What they hand over lies in
//! `loom::cell::UnsafeCell`s, so that an access that is not ordered is found even where its value
//! happens to be right. Every model has twins in which an ordering is weakened or a fence is left
//! out; loom has to find each of them broken, or the model would prove nothing.

mod arrival_counts;
mod holder;
mod in_flight;
mod lines;
mod model;
mod retired;
mod sleepers;
mod teams;

use gaspi_core::sync::Word32;
use gaspi_core::sync::arrival_slot::{ArrivalSlot, Poll};
use gaspi_core::sync::eventcount::EventCount;
use gaspi_core::sync::slots::{
    Passive, passive_end, passive_pending, passive_post, passive_taken, peek, set, take,
};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;
use model::*;

// Notifications.

/// A writer sets a notification behind its payload; two threads take it once they have seen it.
fn notification_of_one<const HOW: u8>() {
    let shared = Arc::new((W32::<HOW>::default(), Payload::default()));
    let takers: Vec<_> = (0..2)
        .map(|_| {
            spawn(&shared, move |shared| {
                let value = if peek(&shared.0) { take(&shared.0) } else { 0 };
                if value != 0 {
                    assert_eq!((value, shared.1.read()), (5, 77));
                }
                value
            })
        })
        .collect();
    shared.1.write(77);
    set(&shared.0, 5);
    let taken: u32 = takers.into_iter().map(|taker| taker.join().expect("taker")).sum();
    let left = take(&shared.0);
    assert_eq!(taken + left, 5, "exactly one gets it");
}

/// A thread that has seen the notification may read the payload before anybody takes it.
fn notification_seen<const HOW: u8>() {
    let shared = Arc::new((W32::<HOW>::default(), Payload::default()));
    let seen = spawn(&shared, move |shared| {
        until(|| peek(&shared.0));
        assert_eq!(shared.1.read(), 77);
        assert_eq!(take(&shared.0), 5);
        assert!(!peek(&shared.0));
    });
    shared.1.write(77);
    set(&shared.0, 5);
    seen.join().expect("reader");
}

/// A thread takes the notification without having looked before: what it took orders the payload.
fn notification_taken_blindly<const HOW: u8>() {
    let shared = Arc::new((W32::<HOW>::default(), Payload::default()));
    let taker = spawn(&shared, move |shared| {
        until(|| take(&shared.0) != 0);
        assert_eq!(shared.1.read(), 77);
    });
    shared.1.write(77);
    set(&shared.0, 5);
    taker.join().expect("taker");
}

/// Values set one after the other while they are taken: the last is never lost, none is seen twice.
/// `take` is the exchange, or the wrong thing.
fn notification_of_several(take: fn(&W32<EXCHANGED>) -> u32) {
    let word = Arc::new(W32::<EXCHANGED>::default());
    let taker = spawn(&word, move |word| [take(word), take(word)]);
    for value in 1..=3 {
        set(&*word, value);
    }
    let taken = taker.join().expect("taker");
    let mut seen: Vec<u32> = taken.into_iter().filter(|value| *value != 0).collect();
    seen.extend(Some(take(&word)).filter(|value| *value != 0));
    assert!(seen.is_sorted_by(|a, b| a < b), "in order, none twice: {seen:?}");
    assert_eq!(seen.last(), Some(&3), "the last one is not lost");
}

#[test]
fn notifications() {
    holds(notification_of_one::<AS_WRITTEN>);
    holds(notification_seen::<AS_WRITTEN>);
    holds(notification_taken_blindly::<EXCHANGED>);
    holds(|| notification_of_several(take));
}

#[test]
fn notifications_weakened() {
    breaks(notification_of_one::<NO_RELEASE>);
    breaks(notification_of_one::<NO_ACQUIRE>);
    breaks(notification_taken_blindly::<{ EXCHANGED | NO_RELEASE }>);
    breaks(notification_taken_blindly::<{ EXCHANGED | NO_ACQUIRE }>);
    breaks(notification_seen::<NO_RELEASE>);
    breaks(notification_seen::<NO_ACQUIRE>);
    breaks(|| {
        notification_of_several(|word| {
            let value = word.load(Ordering::Acquire);
            word.store(0, Ordering::Release);
            value
        });
    });
}

// Eventcount.

#[derive(Debug, Default)]
struct Bell {
    sequence: W32<AS_WRITTEN>,
    awaited: W32<AS_WRITTEN>,
    flags: [W32<AS_WRITTEN>; 2],
}

impl Bell {
    fn count(&self) -> EventCount<'_, W32<AS_WRITTEN>> {
        EventCount { sequence: &self.sequence, awaited: &self.awaited }
    }

    /// Sets a flag and wakes who sleeps, as the sender of a notification does.
    fn wake(&self, flag: usize, light: fn()) {
        set(&self.flags[flag], 1);
        // The sequence is advanced; the futex is what the sleepers below do without.
        self.count().someone_sleeps(kind(flag), light);
    }

    /// Announces `kinds`, looks for a flag once more, and returns the ticket to sleep on unless the
    /// flag is set.
    fn try_sleep(&self, flag: usize, kinds: u32, heavy: fn()) -> Option<u32> {
        let count = self.count();
        let ticket = count.ticket();
        count.announce(kinds, heavy);
        (!peek(&self.flags[flag])).then_some(ticket)
    }

    /// A sleeper sleeps for ever whose ticket is the sequence that is still there at the end.
    fn assert_woken(&self, sleepers: impl IntoIterator<Item = thread::JoinHandle<Option<u32>>>) {
        let tickets: Vec<_> =
            sleepers.into_iter().map(|thread| thread.join().expect("sleeper")).collect();
        let now = self.sequence.load(Ordering::Relaxed);
        for (sleeper, ticket) in tickets.into_iter().enumerate() {
            assert_ne!(Some(now), ticket, "sleeper {sleeper} sleeps for ever");
        }
    }
}

/// The news that a flag is set.
fn kind(flag: usize) -> u32 {
    1 << flag
}

// The light fence stops the compiler only; the heavy one makes every running thread of the node
// execute a full fence. Fences on both sides are what the two amount to.
fn full() {
    fence(Ordering::SeqCst);
}
fn nothing() {}

/// `sleepers` threads announce, look again and go to sleep while one wakes them.
fn lost_wake_up(sleepers: usize, heavy: fn(), light: fn()) {
    let bell = Arc::new(Bell::default());
    let sleeping: Vec<_> = (0..sleepers)
        .map(|_| spawn(&bell, move |bell| bell.try_sleep(0, kind(0), heavy)))
        .collect();
    bell.wake(0, light);
    bell.assert_woken(sleeping);
}

/// A sleeper waits for two wakers in turn, sleeping until the sequence has left its ticket. It may
/// be asked to look for nothing, but sleeps for ever for neither.
fn two_wakers(first_kind: u32) {
    let bell = Arc::new(Bell::default());
    let wakers = [0, 1].map(|flag| spawn(&bell, move |bell| bell.wake(flag, full)));
    for (flag, kinds) in [(0, first_kind), (1, kind(1))] {
        while !peek(&bell.flags[flag]) {
            let Some(ticket) = bell.try_sleep(flag, kinds, full) else { break };
            // The futex.
            until(|| bell.sequence.load(Ordering::Relaxed) != ticket);
        }
    }
    for waker in wakers {
        waker.join().expect("waker");
    }
}

/// Two sleepers for different news, one waker each. The first announces `first_kind`.
fn two_kinds(first_kind: u32) {
    let bell = Arc::new(Bell::default());
    let sleepers = [(0, first_kind), (1, kind(1))]
        .map(|(flag, kinds)| spawn(&bell, move |bell| bell.try_sleep(flag, kinds, full)));
    bell.wake(1, full);
    bell.wake(0, full);
    bell.assert_woken(sleepers);
}

/// Two sleepers for different news, each woken by a thread of its own, and both go on waiting for
/// what they have not seen. A waker may take back the announcement that the other one means.
fn two_kinds_two_wakers(first_kind: u32) {
    let bell = Arc::new(Bell::default());
    let other = spawn(&bell, move |bell| bell.try_sleep(1, kind(1), full));
    let waker = spawn(&bell, move |bell| bell.wake(0, full));
    let first = spawn(&bell, move |bell| bell.try_sleep(0, first_kind, full));
    bell.wake(1, full);
    waker.join().expect("waker");
    bell.assert_woken([first, other]);
}

/// A waker dies after it has taken the announcements back; another one, who has what the sleeper
/// waits for, finds nobody to wake. Then the death becomes known.
fn waker_dies(death_known: fn(&Bell)) {
    let bell = Arc::new(Bell::default());
    let sleeper = spawn(&bell, move |bell| bell.try_sleep(0, kind(0), full));
    let waker = spawn(&bell, move |bell| bell.wake(0, full));
    bell.awaited.swap(0, Ordering::AcqRel);
    waker.join().expect("waker");
    death_known(&bell);
    bell.assert_woken([sleeper]);
}

#[test]
fn eventcount_of_a_dead_waker() {
    holds(|| waker_dies(|bell| bell.count().wake_regardless()));
    breaks(|| {
        waker_dies(|bell| {
            bell.count().someone_sleeps(kind(0) | kind(1), full);
        });
    });
}

#[test]
fn eventcount() {
    holds(|| lost_wake_up(1, full, full));
    holds(|| lost_wake_up(2, full, full));
    holds(|| two_wakers(kind(0)));
    holds(|| two_wakers(kind(0) | kind(1)));
    holds(|| two_kinds(kind(0)));
    holds(|| two_kinds_two_wakers(kind(0)));
}

#[test]
fn eventcount_asleep_for_other_news() {
    breaks(|| two_kinds(kind(1)));
    breaks(|| two_kinds_two_wakers(kind(1)));
}

#[test]
fn eventcount_without_a_fence() {
    breaks(|| lost_wake_up(1, nothing, full));
    breaks(|| lost_wake_up(1, full, nothing));
    breaks(|| lost_wake_up(2, nothing, nothing));
}

// Passive slots.

/// Messages of one sender, whose outbox is reused as soon as a message was taken.
fn passive_taken_one_after_the_other<const HOW: u8>() {
    let shared = Arc::new((W64::<HOW>::default(), Payload::default()));
    let receiver = spawn(&shared, move |shared| {
        for message in 1..=2 {
            let mut posted = None;
            until(|| {
                posted = passive_pending(&shared.0);
                posted.is_some()
            });
            let posted = posted.expect("pending");
            let copy = shared.1.read();
            assert!(passive_end(&shared.0, posted, Passive::Taken));
            assert_eq!(copy, message * 10);
        }
    });
    for message in 1..=2 {
        shared.1.write(message * 10);
        passive_post(&shared.0, message);
        until(|| passive_taken(&shared.0, message));
    }
    receiver.join().expect("receiver");
}

/// A message and its description as shared memory holds them: a receiver that comes too late may
/// read anything, so these are atomics, and only a copy that was then taken counts.
#[derive(Debug, Default)]
struct Mailbox<const HOW: u8> {
    word: W64<HOW>,
    text: [AtomicU64; 2],
}

/// `number` of a message, for a receiver that mixes them up.
fn post<const HOW: u8>(mailbox: &Mailbox<HOW>, number: u64, text: u64) {
    for half in &mailbox.text {
        half.store(text, Ordering::Relaxed);
    }
    passive_post(&mailbox.word, number);
}

fn try_receive<const HOW: u8>(mailbox: &Mailbox<HOW>) -> Option<u64> {
    let posted = passive_pending(&mailbox.word)?;
    let copy: Vec<u64> = mailbox.text.iter().map(|half| half.load(Ordering::Relaxed)).collect();
    passive_end(&mailbox.word, posted, Passive::Taken).then(|| {
        assert_eq!(copy[0], copy[1], "the outbox was overwritten while it was read");
        copy[0]
    })
}

/// A sender takes its message back and posts another one while `receivers` threads receive.
/// `second` is the number of the second message.
fn passive_taken_back<const HOW: u8>(receivers: usize, second: u64) {
    let mailbox = Arc::new(Mailbox::<HOW>::default());
    let receivers: Vec<_> = (0..receivers).map(|_| spawn(&mailbox, try_receive)).collect();
    post(&mailbox, 1, 10);
    let back = match passive_pending(&mailbox.word) {
        Some(posted) => passive_end(&mailbox.word, posted, Passive::Empty),
        None => false,
    };
    assert_eq!(!back, passive_taken(&mailbox.word, 1), "exactly one ends it");
    post(&mailbox, second, 20);
    let mut got: Vec<u64> =
        receivers.into_iter().filter_map(|thread| thread.join().expect("receiver")).collect();
    got.extend(try_receive(&mailbox));
    got.sort_unstable();
    let expected: &[u64] = if back { &[20] } else { &[10, 20] };
    assert_eq!(got, expected, "taken back: {back}");
}

#[test]
fn passive() {
    holds(passive_taken_one_after_the_other::<AS_WRITTEN>);
    holds(|| passive_taken_back::<AS_WRITTEN>(1, 2));
    holds(|| passive_taken_back::<AS_WRITTEN>(2, 2));
}

#[test]
fn passive_weakened() {
    breaks(passive_taken_one_after_the_other::<NO_RELEASE>);
    breaks(passive_taken_one_after_the_other::<NO_ACQUIRE>);
    breaks(|| passive_taken_back::<NO_RELEASE>(1, 2));
    breaks(|| passive_taken_back::<NO_ACQUIRE>(1, 2));
    // Without numbers a receiver takes the second message for the first.
    breaks(|| passive_taken_back::<AS_WRITTEN>(1, 1));
}

// Arrival lines.
