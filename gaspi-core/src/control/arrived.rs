//! What members have published with their arrivals at a step.

use super::CALL_BITS;
use super::call::GroupCall;
use super::leaders::LineWidth;
use super::peer_slice::PeerSlice;
use crate::error::{Error, Result};
use crate::ids::Rank;
use crate::sync::arrival_slot::{PAYLOAD_WORDS, Poll};
use crate::sync::{Ordering, fence};
use crate::wire::shared_layout::STAGE_BYTES;

impl GroupCall<'_> {
    /// To be asked once everything of the last step has been read, before the call ends well: a
    /// member of this node that had arrived may have given the use up, and use the id for others,
    /// which overwrites what it had published.
    ///
    /// # Errors
    /// [`Error::Mismatch`], or [`Error::RankDied`] if a member has died: what was read may not be
    /// of this step. It ends the call on this rank.
    #[inline]
    pub fn check_read(&mut self) -> Result<()> {
        match self.overwriter() {
            None => Ok(()),
            Some(rank) => Err(self.overwritten(rank)),
        }
    }

    /// What the arrivals of all members at the last step carry, once that is known to be of it.
    ///
    /// # Errors
    /// As [`check_read`](GroupCall::check_read).
    pub(crate) fn payloads(&mut self) -> Result<Vec<[u64; PAYLOAD_WORDS]>> {
        let step = self.step();
        let payloads = (0..self.ranks().len()).map(|member| self.payload(member, step)).collect();
        self.check_read()?;
        Ok(payloads)
    }

    /// A member by which something that has been read of the last step may have been overwritten.
    #[inline]
    pub(super) fn overwriter(&self) -> Option<Rank> {
        let step = self.step();
        // Of other nodes copies are read, or lines.
        let locals = self.by_leaders().map(|(leaders, _)| leaders.locals());
        // Acquire: what was read stays before this look; pairs with the Release fence in
        // `open_slots`.
        fence(Ordering::Acquire);
        let group = self.group;
        let passed = |rank: &&Rank| {
            let slot = &self.inner.arrival_slots_of(**rank, group)[(step % 2) as usize];
            slot.sequence.load(Ordering::Relaxed) > step
        };
        locals.unwrap_or(self.ranks()).iter().find(passed).copied()
    }

    #[cold]
    fn overwritten(&mut self, rank: Rank) -> Error {
        // It may have given the use up because of another member's death.
        let error = self.death().unwrap_or_else(|| self.has_gone_on(rank));
        self.fail_at(self.step());
        error
    }

    /// What a member's arrival at `step` carries. To be called between the end of the wait for it
    /// and this rank's next arrival.
    #[inline]
    pub fn payload(&self, member: usize, step: u64) -> [u64; PAYLOAD_WORDS] {
        let Some((line, width)) = self.line(member, step) else {
            return self.slot(member, step).payload();
        };
        let mut words = [0; PAYLOAD_WORDS];
        let (to, bytes) = (words.as_mut_ptr().cast::<u8>(), width.words * size_of::<u64>());
        // SAFETY: checked range. A line has at most as many words as an arrival slot; it was
        // written before the step was published.
        unsafe { to.copy_from_nonoverlapping(line, bytes) };
        words
    }

    /// The line of a member of which only leaders have told.
    #[inline]
    fn line(&self, member: usize, step: u64) -> Option<(*mut u8, LineWidth)> {
        let (leaders, width) = self.by_leaders()?;
        let is_local = self.inner.ranks.is_local(self.ranks()[member]);
        // One that could not send its data to this rank has said so there. The next step may have
        // another number already.
        let is_of_call = |other: u64| (other ^ self.key.signature) & CALL_BITS == 0;
        let look = self.slot(member, step).poll(step);
        if is_local || matches!(look, Poll::Arrived(other) if is_of_call(other)) {
            return None;
        }
        let (leader, group) = (leaders.locals()[0], self.group.index());
        let lines = self.inner.ranks.area.lines(leader, group, (step % 2) as usize);
        Some((lines.wrapping_add(member * width.all() * size_of::<u64>()), width))
    }

    /// The same where it lies: as many words as all members have published.
    #[inline]
    pub fn carried(&self, member: usize, step: u64) -> PeerSlice<'_> {
        if let Some((line, width)) = self.line(member, step) {
            return PeerSlice::new(line, width.words * size_of::<u64>());
        }
        let payload = &raw const self.slot(member, step).payload;
        PeerSlice::new(payload.cast_mut().cast::<u8>(), PAYLOAD_WORDS * size_of::<u64>())
    }

    /// Staging of a member for `step`. A step that has been awaited may be read until this rank's
    /// next arrival: a member that has seen that may write there again.
    #[inline]
    pub fn stage(&self, member: usize, step: u64) -> PeerSlice<'_> {
        if let Some((line, width)) = self.line(member, step) {
            let [words, staged] = [width.words, width.staged].map(|words| words * size_of::<u64>());
            return PeerSlice::new(line.wrapping_add(words), staged);
        }
        let (rank, group) = (self.ranks()[member], self.group.index());
        let parity = (step % 2) as usize;
        let pointer = if self.inner.ranks.is_local(rank) {
            self.inner.ranks.area.stage(rank, group, parity)
        } else {
            self.inner.control.remote_arrivals.stage(rank, group, parity)
        };
        PeerSlice::new(pointer, STAGE_BYTES)
    }
}
