//! Arenas: made when a channel needs room, described to peers, learned from them.

use super::{ARENA_BYTES_MIN, Arena, Known, Reserved, View};
use crate::config::CHANNELS;
use crate::error::{Error, Result};
use crate::ids::Rank;
use crate::os::limits::{self, Resource};
use crate::runtime::Inner;
use crate::segment::{ARENA, Init, Segment, Target, may_copy};
use crate::sync::Ordering;
use crate::transport::endpoint::Departure;
use crate::transport::shm::area::liveness;
use crate::wire::message::{Register, Stream};
use crate::wire::shared_layout::ARENA_BYTES;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

impl Inner {
    /// A range of this rank's arena, which is made if there is none.
    pub(in crate::channel) fn reserve(&self, bytes: u64, words: u32) -> Result<Reserved> {
        self.make_arena()?.reserve(bytes, words, |rank| self.writes_no_more(rank))
    }

    /// Makes a part of a range known to the device, by which members of other nodes write there.
    /// Where that fails the range is given back, if data may go by devices only.
    ///
    /// # Errors
    /// The device does not take it.
    pub(in crate::channel) fn show_to_device(
        &self,
        reserved: &mut Reserved,
        part: Range<u64>,
    ) -> Result<()> {
        let Some(arena) = self.channels.arena() else { return Ok(()) };
        let start = reserved.bytes.start;
        let (segment, bytes) = (&arena.segment, start + part.start..start + part.end);
        match self.endpoints.register_part(segment, bytes.clone(), "memory of a channel") {
            Ok(device) => (reserved.device, reserved.device_bytes) = (device, bytes),
            Err(error) => {
                arena.free(reserved.clone());
                return Err(error);
            }
        }
        Ok(())
    }

    fn make_arena(&self) -> Result<&Arena> {
        let _making = self.channels.making.lock();
        if let Some(arena) = self.channels.arena() {
            return Ok(arena);
        }
        let segment = self.make_arena_memory()?;
        let arena = self.channels.arena.get_or_init(|| Arena::new(segment));
        self.memory.set_arena(&arena.segment);
        Ok(arena)
    }

    /// A part of the memory for all arenas of the node, or memory of its own.
    fn make_arena_memory(&self) -> Result<Segment> {
        let (generation, shape) = (self.memory.generation(), self.memory.shape);
        if let Some(room) = self.ranks.area.arena_room(self.ranks.me)? {
            return Segment::in_room(ARENA, (generation, ARENA_BYTES), &room, shape);
        }
        let mut size = self.arena_bytes();
        loop {
            match Segment::new(ARENA, generation, size, Init::Uninitialized, shape) {
                Err(Error::Memory { .. }) if size > ARENA_BYTES_MIN => size /= 2,
                made => return made,
            }
        }
    }

    /// As much as address space allows, of which every rank of the node maps all arenas.
    fn arena_bytes(&self) -> u64 {
        let mut size = ARENA_BYTES;
        if let Some(limit) = limits::allowed(Resource::AddressSpace) {
            let share = limit / 4 / self.ranks.area.locals().len().max(1) as u64;
            while size > share && size > ARENA_BYTES_MIN {
                size /= 2;
            }
        }
        size
    }

    /// A connection with `peer` broke: what was under way may be lost, among it that an end has
    /// been closed. A peer that has closed its own answers that it has.
    pub(crate) fn tell_closed_again(&self, peer: Rank) {
        let Some(arena) = self.channels.arena() else { return };
        for end in arena.awaited_ends(peer) {
            // Should the connection break again, this is done again.
            let _ = self.endpoint(peer).put(end.closed(), None, Departure::Now);
        }
    }

    /// Messages to `peer` were lost, whose senders may have ended with success: whoever waits for
    /// them there is told. Only where `peer` can be reached.
    pub(crate) fn tell_losses(&self, peer: Rank) {
        let losses = self.channels.losses(peer);
        let Some(arena) = self.channels.arena().filter(|_| losses > 0) else { return };
        for end in arena.untold_losses(peer, losses) {
            // Should that be lost too, it counts as one more.
            let _ = self.endpoint(peer).put(end.lost(), None, Departure::Now);
        }
    }

    /// Counts something that uses arenas, which ends by [`end_use`](Inner::end_use) in any case.
    ///
    /// # Errors
    /// This rank has left, and has perhaps said that it uses none.
    pub(in crate::channel) fn begin_use(&self) -> Result<()> {
        // SeqCst: either this sees that the rank has left, or that sees this use.
        self.channels.uses.fetch_add(1, Ordering::SeqCst);
        if self.channels.has_left.load(Ordering::SeqCst) {
            return Err(Error::NotInitialised);
        }
        Ok(())
    }

    /// It has ended. Whoever ends the last use of a rank that has left says so.
    pub(in crate::channel) fn end_use(&self) {
        // SeqCst: as above, and the last one tells of what all have done.
        let was_last = self.channels.uses.fetch_sub(1, Ordering::SeqCst) == 1;
        if was_last && self.channels.has_left.load(Ordering::SeqCst) {
            self.ranks.area.show_closed();
        }
    }

    /// This rank has left, and sends nothing more from its arena.
    pub(crate) fn leave_arenas(&self) {
        self.channels.has_left.store(true, Ordering::SeqCst);
        if self.channels.uses.load(Ordering::SeqCst) == 0 {
            self.ranks.area.show_closed();
        }
    }

    /// Whether nothing that `rank` wrote to channels can still come.
    fn writes_no_more(&self, rank: Rank) -> bool {
        let life = self.ranks.liveness(rank);
        if !self.ranks.is_local(rank) {
            // What it sent may still be unread.
            return matches!(life, liveness::DEAD | liveness::LEFT)
                && !self.endpoint(rank).may_bring_more();
        }
        let ended =
            || self.ranks.area.has_closed(rank) || self.ranks.process_has_ended(rank) == Some(true);
        life == liveness::DEAD || (life == liveness::LEFT && ended())
    }

    /// The arena of a peer of this node, as it describes it. Gives 1 if this rank may copy from its
    /// process.
    pub(crate) fn import_arena(
        &self,
        peer: Rank,
        register: &Register,
        descriptors: &[OwnedFd],
    ) -> std::result::Result<u64, String> {
        let known = self.channels.view(peer);
        if let Some(known) = known.filter(|view| view.target.generation == register.generation) {
            return Ok(known.copies.is_some().into());
        }
        if !self.endpoint(peer).capabilities().maps_memory {
            return Err("arenas of other nodes are not mapped".to_owned());
        }
        let shape = self.memory.shape;
        let target = match self.ranks.area.arena_room(peer) {
            Ok(Some(room)) => {
                Target::in_room(ARENA, (register.generation, register.size), &room, shape)
            }
            Ok(None) => {
                Target::import(register, self.ranks.cards.at(peer).pid(), descriptors, shape)
            }
            Err(error) => Err(error),
        };
        let target = target.map_err(|error| error.to_string())?;
        let copies = self.learn_arena(peer, target, (register.nonce_address, register.nonce));
        Ok(copies.into())
    }

    /// The arena of a peer of this node is mapped; says whether this rank may copy from its
    /// process, where a number lies at this address.
    pub(super) fn learn_arena(&self, peer: Rank, target: Target, nonce: (u64, u64)) -> bool {
        let pid = self.ranks.cards.at(peer).pid();
        let copies = match may_copy(nonce, pid) {
            Ok(()) => Some(pid),
            Err(reason) => {
                log::debug!("channel_open: memory of {peer} cannot be copied: {reason}");
                None
            }
        };
        let view = Arc::new(View { target, copies });
        *self.channels.views.of(peer.index()).lock() = Some(Known { view, gone: false });
        copies.is_some()
    }

    /// A request to `peer` failed; if that is not `certain`, its death may be the reason.
    pub(crate) fn request_failed(&self, peer: Rank, stream: Stream, reason: &str, certain: bool) {
        if stream.queue == CHANNELS {
            self.channels.failed(peer, reason, certain);
        } else {
            self.ranks.set_corrupt(peer);
        }
    }
}
