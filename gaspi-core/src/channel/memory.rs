//! How members of a node reach each other's memory: segments that all have mapped by pointers,
//! other memory by copies between processes.

use super::arena::View;
use super::{Channel, Member};
use crate::control::PeerSlice;
use crate::error::{Error, Result};
use crate::ids::{Rank, SegmentId};
use crate::os::cross_memory;
use crate::segment::{ARENA, Target};
use crate::sync::{AtomicBool, AtomicU64, Ordering, epoch};
use std::io;
use std::sync::Arc;

/// Where memory of a rank lies, for the other members of its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Location {
    /// In a segment that all of them have mapped.
    Segment {
        /// The segment of the rank.
        id: SegmentId,
        /// Which use of the id.
        generation: u32,
        /// Bytes.
        offset: u64,
    },
    /// At this address of the process.
    Address(u64),
    /// The same, of a segment that some of them have not mapped, as far as this rank knows. Who has
    /// been told of it maps it when it hears of it by this; once all have, its memory is found in
    /// the segment.
    Unmapped {
        /// The segment of the rank.
        id: SegmentId,
        /// Which use of the id.
        generation: u32,
        /// The address.
        address: u64,
    },
}

/// Set in the first word of a location in a segment that all have mapped.
const IN_SEGMENT: u64 = 1;

/// The word that names a segment; never 0, since generations begin at 1.
fn named(id: SegmentId, generation: u32) -> u64 {
    u64::from(id.0) << 8 | u64::from(generation) << 32
}

impl Location {
    /// Whether it is memory of channels, which is mapped as long as they exist.
    pub fn is_in_arena(self) -> bool {
        matches!(self, Location::Segment { id: ARENA, .. })
    }

    /// As two words, to ride in a line.
    pub fn encode(self) -> [u64; 2] {
        match self {
            Location::Segment { id, generation, offset } => {
                [IN_SEGMENT | named(id, generation), offset]
            }
            Location::Unmapped { id, generation, address } => [named(id, generation), address],
            Location::Address(address) => [0, address],
        }
    }

    /// What [`encode`](Location::encode) made into words.
    pub fn decode([kind, at]: [u64; 2]) -> Location {
        let (id, generation) = (SegmentId((kind >> 8) as u8), (kind >> 32) as u32);
        match kind {
            0 => Location::Address(at),
            _ if kind & IN_SEGMENT == 0 => Location::Unmapped { id, generation, address: at },
            _ => Location::Segment { id, generation, offset: at },
        }
    }
}

/// What a channel has found out about memory.
#[derive(Debug, Default)]
pub(super) struct FoundMemory {
    /// The segment in which memory was located last: id and generation.
    recent: AtomicU64,
    /// A segment of a member could not be mapped.
    maps_nothing: AtomicBool,
}

/// Memory of a member that is mapped here, and stays so while this lives.
#[derive(Debug, Clone)]
pub struct Mapped {
    pointer: *mut u8,
    len: usize,
    _keep: Keep,
}

/// What keeps memory mapped.
#[derive(Debug, Clone)]
enum Keep {
    Own,
    Segment { _target: Arc<Target> },
    Arena { _view: Arc<View> },
}

// SAFETY: the pointer leads into what `_keep` has mapped, or to memory of this process; it is only
// used for copies.
unsafe impl Send for Mapped {}
// SAFETY: shared by copies.
unsafe impl Sync for Mapped {}

/// How this rank gets at memory of a member.
#[derive(Debug, Clone)]
pub enum Reached {
    /// By pointers.
    Mapped(Mapped),
    /// By [`Channel::pull`] and [`Channel::push`].
    CrossMemory,
}

impl Reached {
    /// The memory, where it is mapped.
    pub fn slice(&self) -> Option<PeerSlice<'_>> {
        match self {
            Reached::Mapped(mapped) => Some(PeerSlice::new(mapped.pointer, mapped.len)),
            Reached::CrossMemory => None,
        }
    }
}

impl Channel {
    /// Where `len` bytes of this rank's memory lie: in a segment, if all of them lie in one that
    /// all members of this node have mapped. If that is so on all members, each can
    /// [`reach`](Channel::reach) the others' memory; an address, if [`all_reachable`] says so.
    ///
    /// [`all_reachable`]: Channel::all_reachable
    pub fn locate(&self, address: *const u8, len: u64) -> Location {
        let inner = &self.inner;
        let in_arena = (address as u64).wrapping_sub(self.segment.pointer() as u64);
        if in_arena <= self.segment.size && len <= self.segment.size - in_arena {
            // All members had been told of it before they opened the channel.
            let generation = self.segment.generation;
            return Location::Segment { id: ARENA, generation, offset: in_arena };
        }
        let inside = epoch::enter();
        let recent = self.found.recent.load(Ordering::Relaxed);
        let first = (recent != 0).then_some(SegmentId((recent >> 32) as u8));
        for id in first.into_iter().chain(inner.memory.existing()) {
            let Some(segment) = inner.memory.segments.get(id, &inside).filter(|s| s.is_mapped())
            else {
                continue;
            };
            let offset = (address as u64).wrapping_sub(segment.pointer() as u64);
            if offset > segment.size || len > segment.size - offset {
                continue;
            }
            let generation = segment.generation;
            let known = u64::from(id.0) << 32 | u64::from(generation);
            let has_mapped =
                |m: &Member| segment.is_mapped_by(m.rank) || segment.answer_of(m.rank).is_some();
            // Generations begin at 1, so that 0 is none.
            if recent == known || self.neighbours().all(has_mapped) {
                self.found.recent.store(known, Ordering::Relaxed);
                return Location::Segment { id, generation, offset };
            }
            return Location::Unmapped { id, generation, address: address as u64 };
        }
        Location::Address(address as u64)
    }

    /// How this rank gets at `len` bytes of memory of `member`, of this node, where that member's
    /// [`locate`](Channel::locate) has found them; `None` if it cannot, or not any more.
    pub fn reach(&self, member: usize, location: Location, len: u64) -> Option<Reached> {
        let at = &self.members[member];
        match location {
            Location::Segment { id: ARENA, generation, offset } if member != self.me => {
                let view = at.view.as_ref()?;
                let fits = offset <= view.target.mapped() && len <= view.target.mapped() - offset;
                if view.target.generation != generation || !fits {
                    return None;
                }
                let pointer = view.target.start(offset);
                let _view = Arc::clone(view);
                let keep = Keep::Arena { _view };
                Some(Reached::Mapped(Mapped { pointer, len: len as usize, _keep: keep }))
            }
            Location::Segment { id: ARENA, offset, .. } => {
                let pointer = self.segment.pointer().wrapping_add(offset as usize);
                Some(Reached::Mapped(Mapped { pointer, len: len as usize, _keep: Keep::Own }))
            }
            Location::Segment { id, generation, offset } => {
                let target = self.mapped_target(at.rank, id, generation)?;
                let fits = offset <= target.mapped() && len <= target.mapped() - offset;
                if !target.alive() || target.generation != generation || !fits {
                    return None;
                }
                let pointer = target.start(offset);
                Some(Reached::Mapped(Mapped {
                    pointer,
                    len: len as usize,
                    _keep: Keep::Segment { _target: target },
                }))
            }
            Location::Address(address) if member == self.me => {
                let pointer = address as *mut u8;
                Some(Reached::Mapped(Mapped { pointer, len: len as usize, _keep: Keep::Own }))
            }
            Location::Unmapped { address, .. } if member == self.me => {
                self.reach(member, Location::Address(address), len)
            }
            Location::Address(_) | Location::Unmapped { .. } => {
                at.copies().map(|_| Reached::CrossMemory)
            }
        }
    }

    /// A member's segment. One that is not mapped here may be about to be, by another thread.
    fn mapped_target(&self, rank: Rank, id: SegmentId, generation: u32) -> Option<Arc<Target>> {
        let known = || self.inner.ranks.targets_of(rank).get_arc(id);
        let target = known()?;
        let Some(published) = target.is_published().filter(|it| it.generation == generation) else {
            return Some(target);
        };
        self.inner.try_to_map(rank, id, published).ok()?;
        known()
    }

    /// Maps the segment in which a member has found its memory, unless that was done. Where it
    /// cannot be mapped the memory stays where it is, and this channel maps nothing more.
    pub fn map_unmapped(&self, member: usize, location: Location) {
        let Location::Unmapped { id, generation, .. } = location else { return };
        let rank = self.members[member].rank;
        // Relaxed: a second attempt does no harm.
        if member == self.me || self.found.maps_nothing.load(Ordering::Relaxed) {
            return;
        }
        let Some(target) = self.inner.ranks.targets_of(rank).get_arc(id) else { return };
        let Some(published) = target.is_published().filter(|it| it.generation == generation) else {
            return;
        };
        if let Err(error) = self.inner.try_to_map(rank, id, published) {
            log::info!("collectives copy {id} of {rank}, since it cannot be mapped: {error}");
            self.found.maps_nothing.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the members of each node can copy from each other's processes: the same on all
    /// members.
    pub fn all_reachable(&self) -> bool {
        self.placement.all_reachable
    }

    /// The process of `member`, to copy from or to it.
    fn process_of(&self, member: usize) -> Result<i32> {
        let at = &self.members[member];
        let Some(pid) = at.copies() else {
            return Err(self.refused(member, "this rank cannot copy from or to its memory"));
        };
        // The kernel may give the number to another process once the member has ended.
        if self.inner.ranks.process_has_ended(at.rank) == Some(true) {
            self.inner.ranks.note_end(at.rank);
        }
        self.alive(member)?;
        Ok(pid)
    }

    fn not_copied(&self, member: usize, len: usize, error: &io::Error) -> Error {
        if error.raw_os_error() == Some(libc::ESRCH) {
            self.inner.ranks.may_have_ended(self.ranks[member]);
        }
        let reason = format!("copying {len} bytes from or to its memory: {error}");
        self.alive(member).err().unwrap_or_else(|| self.refused(member, reason))
    }

    /// Copies `len` bytes from `address` of the process of `member`, of this node, to `to`.
    ///
    /// # Errors
    /// [`Error::RankDied`]; [`Error::Refused`] if the kernel does not allow it, or not all of the
    /// range exists there.
    ///
    /// # Safety
    /// `to` is writable for `len` bytes.
    pub unsafe fn pull(&self, member: usize, address: u64, to: *mut u8, len: usize) -> Result<()> {
        let pid = self.process_of(member)?;
        // SAFETY: as the caller promises.
        let copied = unsafe { cross_memory::read(pid, address, to, len) };
        copied.map_err(|error| self.not_copied(member, len, &error))
    }

    /// Copies `len` bytes from `from` to `address` of the process of `member`, of this node.
    ///
    /// # Errors
    /// As [`pull`](Channel::pull).
    ///
    /// # Safety
    /// `from` is readable for `len` bytes. The member expects its memory to be written.
    pub unsafe fn push(
        &self,
        member: usize,
        address: u64,
        from: *const u8,
        len: usize,
    ) -> Result<()> {
        let pid = self.process_of(member)?;
        // SAFETY: as the caller promises.
        let copied = unsafe { cross_memory::write(pid, address, from, len) };
        copied.map_err(|error| self.not_copied(member, len, &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_rides_in_two_words() {
        for location in [
            Location::Address(0),
            Location::Address(u64::MAX),
            Location::Unmapped { id: SegmentId(0), generation: 1, address: 0 },
            Location::Unmapped { id: SegmentId(254), generation: u32::MAX, address: u64::MAX },
            Location::Segment { id: SegmentId(0), generation: 1, offset: 0 },
            Location::Segment { id: SegmentId(254), generation: u32::MAX, offset: u64::MAX },
        ] {
            assert_eq!(Location::decode(location.encode()), location);
        }
    }
}
