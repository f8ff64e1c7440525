//! What ranks of other nodes have sent to the groups of this rank: copies of their arrival slots
//! and of the staging behind them.
//!
//! Ranks of this node are seen in the shared area. Copies of the others are written by the threads
//! that handle their frames, and read in the same order as slots of the shared area. What is passed
//! on of ranks of this node is copied too, so that it goes on once. An arrival at the next use of a
//! group's id waits until this rank has committed that: members of the former use may still be
//! reading.

use crate::control::handlers::Onward;
use crate::ids::{GroupId, Rank};
use crate::sync::arrival_slot::{ArrivalSlot, LINE};
use crate::sync::by_rank::ByRank;
use crate::sync::{AtomicU8, AtomicU64, Mutex, Ordering};
use crate::wire::message::Arrival;
use crate::wire::shared_layout::STAGE_BYTES;
use std::sync::OnceLock;

/// A cache line of staging.
#[repr(C, align(64))]
#[derive(Debug)]
struct Line([AtomicU8; LINE]);

/// What one rank has sent to one group.
#[derive(Debug)]
struct PeerArrivals {
    arrival_slots: [ArrivalSlot<AtomicU64>; 2],
    /// For both parities of a step.
    stages: OnceLock<Box<[Line]>>,
}

/// What one rank has sent to all groups.
type AllOfPeer = Box<[OnceLock<Box<PeerArrivals>>]>;

/// An arrival at a use that this rank has not committed.
#[derive(Debug)]
struct Early {
    of: Rank,
    arrival: Arrival,
    /// Who has passed it on, unless it has come from its own rank.
    from: Option<Rank>,
}

/// What is known of a group's use.
#[derive(Debug, Default)]
struct Use {
    incarnation: u32,
    /// Arrivals at later uses.
    early: Vec<Early>,
}

/// Copies of what ranks of other nodes have published.
#[derive(Debug)]
pub(crate) struct RemoteArrivals {
    /// By rank, then by group; made when something arrives.
    peers: ByRank<OnceLock<AllOfPeer>>,
    /// What is seen of ranks of which nothing has.
    nothing: Box<[ArrivalSlot<AtomicU64>; 2]>,
    uses: Box<[Mutex<Use>]>,
}

/// The incarnation that a step belongs to.
pub(crate) fn incarnation(step: u64) -> u32 {
    (step >> crate::group::STEP_BITS) as u32
}

impl RemoteArrivals {
    pub(crate) fn new(ranks: u32, groups: u32) -> RemoteArrivals {
        RemoteArrivals {
            peers: ByRank::new(ranks),
            nothing: Box::default(),
            uses: (0..groups).map(|_| Mutex::default()).collect(),
        }
    }

    fn peer(&self, rank: Rank, group: usize) -> &PeerArrivals {
        let groups = self.uses.len();
        let peers = self
            .peers
            .of(rank.index())
            .get_or_init(|| (0..groups).map(|_| OnceLock::new()).collect());
        peers[group].get_or_init(|| {
            Box::new(PeerArrivals { arrival_slots: Default::default(), stages: OnceLock::new() })
        })
    }

    /// The two arrival slots of `rank` in `group`, by the parity of the step, to be read. Where
    /// nothing has come yet they are not those in which the first arrival will be.
    pub(crate) fn arrival_slots(&self, rank: Rank, group: usize) -> &[ArrivalSlot<AtomicU64>; 2] {
        let of_peer = self.peers.find(rank.index()).and_then(OnceLock::get);
        let of_group = of_peer.and_then(|groups| groups[group].get());
        of_group.map_or(&self.nothing, |peer| &peer.arrival_slots)
    }

    /// Whether a message has told that `rank` has arrived at `step`.
    pub(crate) fn has(&self, rank: Rank, group: usize, step: u64) -> bool {
        let slot = &self.arrival_slots(rank, group)[(step % 2) as usize];
        slot.sequence.load(Ordering::Acquire) >= step
    }

    /// Staging of `rank` in `group` for steps of this parity, STAGE_BYTES long.
    pub(crate) fn stage(&self, rank: Rank, group: usize, parity: usize) -> *mut u8 {
        let line = || Line(std::array::from_fn(|_| AtomicU8::new(0)));
        let lines = || std::iter::repeat_with(line).take(2 * STAGE_BYTES / LINE).collect();
        let stages = self.peer(rank, group).stages.get_or_init(lines);
        stages.as_ptr().cast_mut().cast::<u8>().wrapping_add(parity * STAGE_BYTES)
    }

    /// An arrival has come.
    pub(crate) fn arrived(&self, rank: Rank, arrival: Arrival) {
        let mut found = self.uses[arrival.group.index()].lock();
        if incarnation(arrival.step) > found.incarnation {
            found.early.push(Early { of: rank, arrival, from: None });
        } else {
            self.publish(rank, &arrival);
        }
    }

    /// An arrival has come that others pass on; it is given back if this rank has to do so too.
    pub(crate) fn passed_on(&self, onward: Onward) -> Option<Onward> {
        let mut found = self.uses[onward.arrival.group.index()].lock();
        if incarnation(onward.arrival.step) > found.incarnation {
            let Onward { from, of, arrival } = onward;
            found.early.push(Early { of, arrival, from: Some(from) });
            return None;
        }
        self.publish(onward.of, &onward.arrival).then_some(onward)
    }

    /// This rank has committed a use of `group`; gives what it has to pass on.
    pub(crate) fn committed(&self, group: GroupId, incarnation: u32) -> Vec<Onward> {
        let mut found = self.uses[group.index()].lock();
        found.incarnation = incarnation;
        let early = std::mem::take(&mut found.early);
        let mut onward = Vec::new();
        for Early { of, arrival, from } in early {
            if self::incarnation(arrival.step) > incarnation {
                found.early.push(Early { of, arrival, from });
            } else if self.publish(of, &arrival) {
                onward.extend(from.map(|from| Onward { from, of, arrival }));
            }
        }
        onward
    }

    /// Whether this one was not known.
    fn publish(&self, rank: Rank, arrival: &Arrival) -> bool {
        let (group, parity) = (arrival.group.index(), (arrival.step % 2) as usize);
        let slot = &self.peer(rank, group).arrival_slots[parity];
        // Only a faulty sender would send an arrival at a former use after one at the present use.
        if slot.sequence.load(Ordering::Relaxed) >= arrival.step {
            return false;
        }
        let bytes = arrival.stage.len().min(STAGE_BYTES);
        if bytes > 0 {
            let to = self.stage(rank, group, parity);
            // SAFETY: staging has STAGE_BYTES, consists of atomics, and is read only after the
            // arrival slot has been published.
            unsafe { std::ptr::copy_nonoverlapping(arrival.stage.as_ptr(), to, bytes) };
        }
        slot.publish(arrival.step, arrival.signature, &arrival.words);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::arrival_slot::Poll;

    fn arrival(incarnation: u64, step: u64, stage: &[u8]) -> Arrival {
        Arrival {
            group: GroupId(1),
            step: (incarnation << crate::group::STEP_BITS) + step,
            signature: 7,
            words: vec![step],
            stage: stage.to_vec(),
        }
    }

    #[test]
    fn arrivals_at_the_next_use_wait_for_its_commit() {
        let arrivals = RemoteArrivals::new(3, 2);
        arrivals.committed(GroupId(1), 4);
        let (now, next) = (arrival(4, 1, b"now"), arrival(5, 1, b"next"));
        arrivals.arrived(Rank(2), now.clone());
        arrivals.arrived(Rank(2), next.clone());
        let slot = &arrivals.arrival_slots(Rank(2), 1)[1];
        assert_eq!(slot.poll(now.step), Poll::Arrived(7));
        assert_eq!(slot.payload()[0], 1);
        // SAFETY: three bytes of the staging, which nobody writes now.
        let staged = unsafe { std::slice::from_raw_parts(arrivals.stage(Rank(2), 1, 1), 3) };
        assert_eq!(staged, b"now");
        arrivals.committed(GroupId(1), 5);
        assert_eq!(slot.poll(next.step), Poll::Arrived(7));
        assert_eq!(arrivals.arrival_slots(Rank(1), 1)[1].poll(next.step), Poll::Missing);
    }
}
