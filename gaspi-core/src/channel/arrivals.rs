//! Arrival slots and staging, of members of one node.
//!
//! Each arrival wakes all members that sleep, up to [`TEAM`] of them. Where there are more, most of
//! them would find that others are missing still, and sleep again. So these count their arrivals
//! ([`ArrivalCounts`]), and the last one wakes all. Who waits looks at the slots nevertheless.

use super::layout::{LINE, Layout};
use super::{Channel, Member};
use crate::control::PeerSlice;
use crate::sync::AtomicU64;
use crate::sync::arrival_counts::ArrivalCounts;
use crate::sync::arrival_slot::{ArrivalSlot, PAYLOAD_WORDS, Poll};
use crate::sync::teams::TEAM;
use crate::transport::shm::area::wake_kind;
use std::ptr::NonNull;

/// Where the arrival slots of the members of this node are.
#[derive(Debug)]
pub(super) struct ArrivalSlots {
    /// Those of even arrivals.
    even: Box<[Option<NonNull<u8>>]>,
    /// From there to that of odd arrivals.
    to_odd: usize,
    /// Where in a member's part arrivals are counted, if all slots lie together.
    counts: Option<u64>,
}

// SAFETY: the pointers lead into what the members of the channel keep mapped, to atomics.
unsafe impl Send for ArrivalSlots {}
// SAFETY: what they lead to are atomics.
unsafe impl Sync for ArrivalSlots {}

impl ArrivalSlots {
    pub(super) fn new(members: &[Member], layout: &Layout) -> ArrivalSlots {
        let at = |start: *mut u8, offset: u64| NonNull::new(start.wrapping_add(offset as usize));
        let starts = members.iter().map(|member| member.start);
        if let (Some(of_all), Some(starts)) =
            (layout.slots_of_all(), starts.clone().collect::<Option<Vec<_>>>())
        {
            let first = starts[0].wrapping_add(of_all.start as usize);
            let even = (0..members.len() as u64).map(|member| at(first, member * LINE)).collect();
            let to_odd = (of_all.end - of_all.start) as usize / 2;
            return ArrivalSlots { even, to_odd, counts: layout.arrival_counts() };
        }
        let even = starts.map(|start| at(start?, layout.arrival_slot(0))).collect();
        let to_odd = (layout.arrival_slot(1) - layout.arrival_slot(0)) as usize;
        ArrivalSlots { even, to_odd, counts: None }
    }

    #[inline]
    fn of(&self, member: usize, sequence: u64) -> Option<NonNull<ArrivalSlot<AtomicU64>>> {
        let even = self.even[member]?;
        // SAFETY: the odd slot lies in the same part.
        Some(unsafe { even.add((sequence % 2) as usize * self.to_odd) }.cast())
    }
}

impl Channel {
    #[inline]
    fn arrival_slot(&self, member: usize, sequence: u64) -> &ArrivalSlot<AtomicU64> {
        let Some(slot) = self.arrival_slots.of(member, sequence) else { self.not_here(member) };
        // SAFETY: inside of a part, aligned to a line, and made of atomics.
        unsafe { slot.as_ref() }
    }

    /// Publishes this rank's arrival `sequence`, counted from 1, with a signature, up to
    /// [`PAYLOAD_WORDS`] words, and the staging of the same sequence. Among many members only the
    /// last one to arrive wakes those that wait.
    #[inline]
    pub fn arrive(&self, sequence: u64, signature: u64, payload: &[u64]) {
        self.arrival_slot(self.me, sequence).publish(sequence, signature, payload);
        if let Some(counts) = self.arrival_slots.counts
            && !self.is_last(counts)
        {
            // Whoever fails either sees the arrival, or has its notice seen by this rank: those
            // that it wakes otherwise are looked at behind such a fence.
            self.inner.ranks.area.light().fence();
            return;
        }
        for member in self.neighbours() {
            self.inner.ranks.area.wake_for(member.rank, wake_kind::ARRIVAL);
        }
    }

    /// Counts this rank's arrival, where the counts lie: whether nobody has to be waited for any
    /// more.
    fn is_last(&self, counts: u64) -> bool {
        let (members, first) = (self.members.len(), self.me / TEAM * TEAM);
        let of_team = TEAM.min(members - first) as u64;
        let counts_of = |member| {
            let counts = self.at(member, counts).cast::<ArrivalCounts<AtomicU64>>();
            // SAFETY: inside of the part, aligned to a line, and made of atomics.
            unsafe { &*counts }
        };
        counts_of(first).of_team.add(of_team)
            && counts_of(0).of_teams.add(members.div_ceil(TEAM) as u64)
    }

    /// Whether a member has arrived.
    #[inline]
    pub fn poll(&self, member: usize, sequence: u64) -> Poll {
        self.arrival_slot(member, sequence).poll(sequence)
    }

    /// What a member's arrival carries, once it has been seen and until this rank's next one.
    #[inline]
    pub fn payload(&self, member: usize, sequence: u64) -> [u64; PAYLOAD_WORDS] {
        self.arrival_slot(member, sequence).payload()
    }

    /// The same where it lies: [`PAYLOAD_WORDS`] words.
    #[inline]
    pub fn carried(&self, member: usize, sequence: u64) -> PeerSlice<'_> {
        let payload = &raw const self.arrival_slot(member, sequence).payload;
        PeerSlice::new(payload.cast_mut().cast::<u8>(), PAYLOAD_WORDS * size_of::<u64>())
    }

    /// Staging of a member for its arrival `sequence`.
    #[inline]
    pub fn stage(&self, member: usize, sequence: u64) -> PeerSlice<'_> {
        let pointer = self.at(member, self.layout.stage(member, sequence));
        PeerSlice::new(pointer, self.spec.stage_bytes as usize)
    }
}
