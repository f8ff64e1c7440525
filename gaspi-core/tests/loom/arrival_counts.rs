//! The counts by which the last of many members that arrive is found.

use super::*;
use gaspi_core::sync::arrival_counts::ArrivalCounts;

/// Members in teams of two.
const TEAM: usize = 2;

#[derive(Debug)]
struct Members<const HOW: u8> {
    slots: Vec<ArrivalSlot<W64<HOW>>>,
    counts: Vec<ArrivalCounts<W64<HOW>>>,
    payloads: Vec<Payload>,
}

impl<const HOW: u8> Members<HOW> {
    fn new(members: usize) -> Arc<Members<HOW>> {
        let slot = || ArrivalSlot {
            sequence: W64::default(),
            signature: W64::default(),
            payload: Default::default(),
        };
        Arc::new(Members {
            slots: (0..members).map(|_| slot()).collect(),
            counts: (0..members).map(|_| ArrivalCounts::default()).collect(),
            payloads: (0..members).map(|_| Payload::default()).collect(),
        })
    }

    /// Arrives; the last one looks at what the others have written.
    fn arrive(&self, me: usize, step: u64) -> u32 {
        self.slots[me].publish(step, 7, &[]);
        let (members, first) = (self.slots.len(), me / TEAM * TEAM);
        let of_team = TEAM.min(members - first) as u64;
        let is_last = self.counts[first].of_team.add(of_team)
            && self.counts[0].of_teams.add(members.div_ceil(TEAM) as u64);
        if is_last {
            for (member, payload) in self.payloads.iter().enumerate() {
                assert_eq!(payload.read(), 10 + member as u64);
            }
        }
        u32::from(is_last)
    }

    /// Takes as many steps as it can without waiting, and gives how often it was the last one and
    /// how many steps it has taken.
    fn take_part(&self, me: usize, steps: u64) -> (u32, u32) {
        self.payloads[me].write(10 + me as u64);
        let (mut last, mut taken) = (0, 0);
        for step in 1..=steps {
            last += self.arrive(me, step);
            taken += 1;
            let there = |slot: &ArrivalSlot<W64<HOW>>| slot.poll(step) != Poll::Missing;
            if !self.slots.iter().all(there) {
                break;
            }
        }
        (last, taken)
    }
}

/// So many members take steps until one is missing: in each full step one of them is the last.
fn one_is_last<const HOW: u8>(members: usize, steps: u64) {
    let all = Members::<HOW>::new(members);
    let take_part = |me| spawn(&all, move |all| all.take_part(me, steps));
    let others: Vec<_> = (1..members).map(take_part).collect();
    let mut found = vec![all.take_part(0, steps)];
    found.extend(others.into_iter().map(|other| other.join().expect("member")));
    let last: u32 = found.iter().map(|(last, _)| last).sum();
    let full = found.iter().map(|(_, taken)| *taken).min().expect("members");
    assert_eq!(last, full, "{found:?}");
}

#[test]
fn the_last_arrival() {
    holds(|| one_is_last::<AS_WRITTEN>(2, 1));
    holds(|| one_is_last::<AS_WRITTEN>(2, 2));
}

#[test]
fn the_last_arrival_of_two_teams() {
    teams::holds_as_far_as_seen(|| one_is_last::<AS_WRITTEN>(3, 1));
}

#[test]
fn the_last_arrival_weakened() {
    breaks(|| one_is_last::<NO_RELEASE>(2, 1));
    breaks(|| one_is_last::<NO_ACQUIRE>(2, 1));
}
