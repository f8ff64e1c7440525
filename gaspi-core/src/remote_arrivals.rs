//! What ranks of other nodes have sent to the groups of this rank: copies of their arrival slots
//! and of the staging behind them.
//!
//! A rank of this node is seen in the shared area; of one of another node this rank keeps a copy of
//! its own, written by whoever handles the frames that carry it. The order in which arrival slots
//! are written and read is the same in both. An arrival slot that belongs to the next use of a
//! group's id waits until this rank has committed it: the members of the former use may still be
//! reading.

use crate::ids::{GroupId, Rank};
use crate::sync::arrival_slot::ArrivalSlot;
use crate::sync::{AtomicU8, AtomicU64};
use crate::sync::{Mutex, MutexGuard};
use crate::wire::message::Arrival;
use crate::wire::shared_layout::STAGE_BYTES;
use std::sync::OnceLock;

/// Staging for both parities of a step.
#[repr(C, align(64))]
#[derive(Debug)]
struct Stages([[AtomicU8; STAGE_BYTES]; 2]);

/// What one rank has sent to one group.
#[derive(Debug)]
struct PeerArrivals {
    arrival_slots: [ArrivalSlot<AtomicU64>; 2],
    stages: OnceLock<Box<Stages>>,
}

/// What one rank has sent to all groups.
type AllOfPeer = Box<[OnceLock<Box<PeerArrivals>>]>;

/// What is known of a group's use.
#[derive(Debug, Default)]
struct Use {
    incarnation: u32,
    /// Arrival slots of later uses.
    early: Vec<(Rank, Arrival)>,
}

/// Copies of what ranks of other nodes have published.
#[derive(Debug)]
pub(crate) struct RemoteArrivals {
    /// By rank, then by group; made when something arrives.
    peers: Box<[OnceLock<AllOfPeer>]>,
    uses: Box<[Mutex<Use>]>,
}

/// The incarnation that a step belongs to.
pub(crate) fn incarnation(step: u64) -> u32 {
    (step >> crate::group::STEP_BITS) as u32
}

impl RemoteArrivals {
    pub(crate) fn new(ranks: u32, groups: u32) -> RemoteArrivals {
        RemoteArrivals {
            peers: (0..ranks).map(|_| OnceLock::new()).collect(),
            uses: (0..groups).map(|_| Mutex::default()).collect(),
        }
    }

    fn peer(&self, rank: Rank, group: usize) -> &PeerArrivals {
        let groups = self.uses.len();
        let peers =
            self.peers[rank.index()].get_or_init(|| (0..groups).map(|_| OnceLock::new()).collect());
        peers[group].get_or_init(|| {
            let slot = || ArrivalSlot {
                sequence: AtomicU64::new(0),
                signature: AtomicU64::new(0),
                payload: std::array::from_fn(|_| AtomicU64::new(0)),
            };
            Box::new(PeerArrivals { arrival_slots: [slot(), slot()], stages: OnceLock::new() })
        })
    }

    /// The two arrival slots of `rank` in `group`, by the parity of the step.
    pub(crate) fn arrival_slots(&self, rank: Rank, group: usize) -> &[ArrivalSlot<AtomicU64>; 2] {
        &self.peer(rank, group).arrival_slots
    }

    /// Staging of `rank` in `group` for steps of this parity, STAGE_BYTES long.
    pub(crate) fn stage(&self, rank: Rank, group: usize, parity: usize) -> *mut u8 {
        let stages = self.peer(rank, group).stages.get_or_init(stages);
        stages.0[parity].as_ptr().cast_mut().cast()
    }

    fn use_of(&self, group: usize) -> MutexGuard<'_, Use> {
        self.uses[group].lock()
    }

    /// An arrival slot has come.
    pub(crate) fn arrived(&self, rank: Rank, arrival: Arrival) {
        let mut found = self.use_of(arrival.group.index());
        if incarnation(arrival.step) > found.incarnation {
            found.early.push((rank, arrival));
        } else {
            self.publish(rank, &arrival);
        }
    }

    /// This rank has committed a use of `group`.
    pub(crate) fn committed(&self, group: GroupId, incarnation: u32) {
        let mut found = self.use_of(group.index());
        found.incarnation = incarnation;
        let early = std::mem::take(&mut found.early);
        for (rank, arrival) in early {
            if self::incarnation(arrival.step) > incarnation {
                found.early.push((rank, arrival));
            } else {
                self.publish(rank, &arrival);
            }
        }
    }

    fn publish(&self, rank: Rank, arrival: &Arrival) {
        let (group, parity) = (arrival.group.index(), (arrival.step % 2) as usize);
        let slot = &self.peer(rank, group).arrival_slots[parity];
        // An arrival slot of a former use would come after the present one only from a sender that
        // is wrong.
        if slot.sequence.load(crate::sync::Ordering::Relaxed) >= arrival.step {
            return;
        }
        let bytes = arrival.stage.len().min(STAGE_BYTES);
        if bytes > 0 {
            let to = self.stage(rank, group, parity);
            // SAFETY: staging has STAGE_BYTES, consists of atomics, and is read only after the
            // arrival slot has been published.
            unsafe { std::ptr::copy_nonoverlapping(arrival.stage.as_ptr(), to, bytes) };
        }
        slot.publish(arrival.step, arrival.signature, &arrival.words);
    }
}

fn stages() -> Box<Stages> {
    let layout = std::alloc::Layout::new::<Stages>();
    // SAFETY: the type has a size.
    let memory = unsafe { std::alloc::alloc_zeroed(layout) };
    if memory.is_null() {
        std::alloc::handle_alloc_error(layout);
    }
    // SAFETY: allocated with this layout, and zeroes are valid atomics.
    unsafe { Box::from_raw(memory.cast()) }
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
    fn lines_of_the_next_use_wait_for_its_commit() {
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
