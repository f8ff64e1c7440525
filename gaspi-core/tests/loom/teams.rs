//! The teams by which members of a large group find out that all have arrived.

use super::*;
use gaspi_core::sync::Word64;
use gaspi_core::sync::teams::{Found, LEVELS, Members, ascend, levels};

/// Members in teams of two.
#[derive(Debug)]
struct Pairs<const HOW: u8> {
    slots: Vec<ArrivalSlot<W64<HOW>>>,
    words: Vec<[W64<HOW>; LEVELS]>,
    payloads: Vec<Payload>,
    fence: fn(),
}

impl<const HOW: u8> Pairs<HOW> {
    fn new(members: usize, fence: fn()) -> Arc<Pairs<HOW>> {
        let slot = || ArrivalSlot {
            sequence: W64::default(),
            signature: W64::default(),
            payload: Default::default(),
        };
        Arc::new(Pairs {
            slots: (0..members).map(|_| slot()).collect(),
            words: (0..members).map(|_| Default::default()).collect(),
            payloads: (0..members).map(|_| Payload::default()).collect(),
            fence,
        })
    }

    fn arrive(&self, me: usize) -> Found {
        self.payloads[me].write(10 + me as u64);
        self.slots[me].publish(1, 7, &[]);
        ascend(self, me, (1, 7))
    }

    fn have_all(&self) -> bool {
        let top = levels(self.slots.len(), Self::TEAM) - 1;
        Word64::load(&self.words[0][top], Ordering::Acquire) == 1
    }

    fn read_all(&self) {
        for (member, payload) in self.payloads.iter().enumerate() {
            assert_eq!(payload.read(), 10 + member as u64);
        }
    }
}

impl<const HOW: u8> Members<W64<HOW>> for Pairs<HOW> {
    const TEAM: usize = 2;

    fn count(&self) -> usize {
        self.slots.len()
    }

    fn slot(&self, member: usize) -> &ArrivalSlot<W64<HOW>> {
        &self.slots[member]
    }

    fn word(&self, member: usize, level: usize) -> &W64<HOW> {
        &self.words[member][level]
    }

    fn fence(&self) {
        (self.fence)();
    }
}

/// Of `members` that arrive, exactly one finds that all have.
fn one_finds_all(members: usize, fence: fn()) {
    let pairs = Pairs::<AS_WRITTEN>::new(members, fence);
    let arrive = |me| spawn(&pairs, move |pairs| u32::from(pairs.arrive(me) == Found::All));
    let threads: Vec<_> = (1..members).map(arrive).collect();
    let mut found = u32::from(pairs.arrive(0) == Found::All);
    found += threads.into_iter().map(|thread| thread.join().expect("member")).sum::<u32>();
    assert_eq!(found, 1, "members that have found all");
    assert!(pairs.have_all());
}

/// Who knows that all have arrived sees what they have written before.
fn all_are_seen<const HOW: u8>(members: usize) {
    let pairs = Pairs::<HOW>::new(members, full);
    let take_part = |pairs: &Pairs<HOW>, me: usize| {
        if pairs.arrive(me) == Found::All || pairs.have_all() {
            pairs.read_all();
        }
    };
    let start = |me| spawn(&pairs, move |pairs| take_part(pairs, me));
    let threads: Vec<_> = (1..members).map(start).collect();
    take_part(&pairs, 0);
    for thread in threads {
        thread.join().expect("member");
    }
}

/// As many interleavings as fit: of three there are more than anybody can run.
pub(crate) fn holds_as_far_as_seen(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = builder();
    builder.max_duration = builder.max_duration.or(Some(std::time::Duration::from_secs(15)));
    builder.check(model);
}

#[test]
fn teams() {
    holds(|| one_finds_all(2, full));
    holds(|| all_are_seen::<AS_WRITTEN>(2));
}

#[test]
fn teams_of_two_levels() {
    holds_as_far_as_seen(|| one_finds_all(3, full));
    holds_as_far_as_seen(|| all_are_seen::<AS_WRITTEN>(3));
}

#[test]
fn teams_weakened() {
    breaks(|| one_finds_all(2, nothing));
    breaks(|| one_finds_all(3, nothing));
    breaks(|| all_are_seen::<NO_RELEASE>(3));
    breaks(|| all_are_seen::<NO_ACQUIRE>(3));
}
