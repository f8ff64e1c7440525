//! Segments: memory that other ranks may write, read and notify (GASPI 17.1, 7).
//!
//! A segment is one sealed memory file: a header page that says whether it still exists, its
//! notification space, and its data; bound user memory has the first two only. Registering hands
//! the descriptor to a peer, which maps it ([`Target`]).
//!
//! Invariants: an access looks at the header first, so that one that comes after a delete is an
//! error; one that races with it lands in pages that nobody reads any more.

pub(crate) mod leases;
pub(crate) mod own;
pub(crate) mod prepared;
pub(crate) mod published;
pub(crate) mod table;
mod target;

pub(crate) use target::{Reach, Target, may_copy};

use crate::diagnostics::{self, CheckState};
use crate::error::{Error, Result};
use crate::ids::{Rank, SegmentId};
use crate::os::memory::{self, HUGE_PAGE, Mapping, PAGE, Room};
use crate::segment::leases::Leases;
use crate::segment::prepared::PreparedMemory;
use crate::sync::{AtomicU32, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::wire::message::Register;
use crate::wire::shared_layout::ARENA_WORDS;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// What fresh memory of a segment holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Init {
    /// Anything; pages are placed by whoever touches them first.
    Uninitialized,
    /// Zeroes, placed by the calling thread.
    Zeroed,
}

/// The segment of each rank that channels lie in: above all ids that a program can have.
pub(crate) const ARENA: SegmentId = SegmentId(u8::MAX);

/// Ranks of a node that hear of each other's memory by messages, and map it in the call that makes
/// it. Where there are more, arrivals tell of it, and a segment is mapped at first access.
pub(crate) const MAPPED_AT_ONCE: usize = 16;

/// The name of its memory file, for tools.
const FILE_NAME: &CStr = c"gaspi-segment";

const ALIVE: u32 = 1;
const DELETED: u32 = 0;
/// Bit of a rank's word in the header: it has mapped the segment by what was published, and has to
/// be told of its end. Below it the word counts copies under way.
const MAPPED: u32 = 1 << 31;

/// Where the parts of a segment's memory file begin.
#[derive(Debug, Clone, Copy)]
struct Layout {
    notifications_at: u64,
    control_len: u64,
}

impl Layout {
    fn new(segment: SegmentId, shape: Shape) -> Layout {
        // One word for existence, one per rank that copies across processes.
        let notifications_at = (64 + u64::from(shape.ranks) * 4).next_multiple_of(64);
        let words = u64::from(shape.notifications_of(segment));
        let control_len = (notifications_at + words * 4).next_multiple_of(PAGE);
        Layout { notifications_at, control_len }
    }

    fn data_at(self, size: u64) -> u64 {
        self.control_len.next_multiple_of(if size >= HUGE_PAGE { HUGE_PAGE } else { PAGE })
    }
}

/// Header and notification space of a segment, as mapped by its owner or by a peer.
#[derive(Debug)]
pub(crate) struct Control {
    mapping: Mapping,
    layout: Layout,
}

impl Control {
    fn word(&self, offset: u64) -> &AtomicU32 {
        debug_assert!(offset as usize + 4 <= self.mapping.len());
        let pointer = self.mapping.as_ptr().wrapping_add(offset as usize).cast::<AtomicU32>();
        // SAFETY: inside of the mapping, aligned to 4, and used as an atomic by everybody.
        unsafe { &*pointer }
    }

    fn alive(&self) -> &AtomicU32 {
        self.word(0)
    }

    fn in_use(&self, rank: Rank) -> &AtomicU32 {
        self.word(64 + u64::from(rank.0) * 4)
    }

    /// Says which segment it is, for whoever opens the file by its number.
    fn identify(&self, generation: u32, nonce: u64) {
        for (word, value) in self.identity().into_iter().zip(identity(generation, nonce)) {
            // Relaxed: published by the arrival that tells of it.
            word.store(value, Ordering::Relaxed);
        }
    }

    fn is(&self, generation: u32, nonce: u64) -> bool {
        self.identity().map(|word| word.load(Ordering::Relaxed)) == identity(generation, nonce)
    }

    fn identity(&self) -> [&AtomicU32; 3] {
        [4, 8, 12].map(|offset| self.word(offset))
    }

    /// Maps header and notification space of a peer's `segment`.
    fn import(segment: SegmentId, file: &OwnedFd, shape: Shape) -> Result<Control> {
        let layout = Layout::new(segment, shape);
        memory::check_sealed(file.as_fd(), layout.control_len)?;
        let mapping = Mapping::new(file.as_fd(), 0, layout.control_len)
            .map_err(|error| cannot_map(segment, &error))?;
        Ok(Control { mapping, layout })
    }

    /// Maps the data behind it, which may lie in a file of its own.
    fn map_data(
        &self,
        segment: SegmentId,
        file: &OwnedFd,
        huge: Option<&OwnedFd>,
        size: u64,
    ) -> Result<Mapping> {
        let (file, at, len) = match huge {
            Some(huge) => (huge, 0, size.checked_next_multiple_of(HUGE_PAGE)),
            None => (file, self.layout.data_at(size), Some(size)),
        };
        let too_large = || Error::Memory {
            needed: size,
            available: u64::MAX,
            reason: "no address space is so large".to_owned(),
        };
        let len = len.ok_or_else(too_large)?;
        memory::check_sealed(file.as_fd(), at.checked_add(len).ok_or_else(too_large)?)?;
        let mapping =
            Mapping::new(file.as_fd(), at, len).map_err(|error| cannot_map(segment, &error))?;
        if segment == ARENA {
            mapping.keep_from_core_dumps();
        }
        Ok(mapping)
    }

    /// Whether its owner has not ended it.
    fn exists(&self) -> bool {
        self.alive().load(Ordering::SeqCst) == ALIVE
    }

    /// Tells the owner that rank `me` has mapped it. False if it has ended.
    fn note_mapped(&self, me: Rank) -> bool {
        // SeqCst: either the owner's delete sees this, or the look below sees the delete.
        self.in_use(me).fetch_or(MAPPED, Ordering::SeqCst);
        self.exists()
    }

    fn notifications(&self) -> *const AtomicU32 {
        self.word(self.layout.notifications_at)
    }
}

/// Header and data of a segment that lies in a part of a mapping.
fn parts_of(id: SegmentId, size: u64, room: &Room, shape: Shape) -> Result<(Control, Mapping)> {
    let layout = Layout::new(id, shape);
    let data_at = layout.data_at(size);
    if data_at.checked_add(size).is_none_or(|end| end > room.bytes) {
        let (available, reason) = (room.bytes, "the room for it is shorter".to_owned());
        return Err(Error::Memory { needed: size, available, reason });
    }
    let part = |offset, bytes| Mapping::part(&room.mapping, room.offset + offset, bytes);
    Ok((Control { mapping: part(0, layout.control_len), layout }, part(data_at, size)))
}

/// The memory of a peer cannot be mapped.
fn cannot_map(segment: SegmentId, error: &std::io::Error) -> Error {
    let what = match segment {
        ARENA => "mapping a peer's memory for messages of collectives".to_owned(),
        segment => format!("mapping {segment} of a peer"),
    };
    if error.raw_os_error() == Some(libc::ENOMEM) {
        let reason = format!("{error}; see ulimit -v and vm.max_map_count");
        return Error::System { call: what, reason };
    }
    Error::os(what, error)
}

fn identity(generation: u32, nonce: u64) -> [u32; 3] {
    [generation, nonce as u32, (nonce >> 32) as u32]
}

#[derive(Debug)]
enum Data {
    Mapped { mapping: Mapping, file: Option<OwnedFd> },
    Bound(*mut u8),
}

/// A segment of this rank. What a transfer looks at comes first, in one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Segment {
    /// First byte of the data.
    start: *mut u8,
    /// Bytes.
    pub(crate) size: u64,
    notifications: *const AtomicU32,
    pub(crate) id: SegmentId,
    pub(crate) generation: u32,
    /// What this rank's device knows of it.
    pub(crate) prepared: PreparedMemory,
    control: Control,
    /// Arenas of a node may share one.
    file: Arc<OwnedFd>,
    data: Data,
    /// Who has been told about it, and has to be told that it is gone.
    pub(crate) registered: Mutex<BTreeSet<Rank>>,
    /// Who has answered that it can reach it, and with which number.
    pub(crate) answered: Mutex<BTreeMap<Rank, u64>>,
    /// Held while the progress thread writes into it; false once it is deleted.
    accepts: Mutex<bool>,
    /// Of an arena.
    pub(crate) leases: Leases,
}

// SAFETY: the pointers lead into the segment's own mappings, or to bound memory, which is only used
// for copies that the caller of `bind` vouched for; everything else is Send.
unsafe impl Send for Segment {}
// SAFETY: shared by copies. Everything that is no pointer is Sync.
unsafe impl Sync for Segment {}

/// What all segments of a rank share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) ranks: u32,
    pub(crate) notifications: u32,
}

impl Shape {
    /// Words of the notification space of `segment`.
    #[inline]
    pub(crate) fn notifications_of(self, segment: SegmentId) -> u32 {
        if segment == ARENA { ARENA_WORDS } else { self.notifications }
    }
}

impl Segment {
    fn with(
        id: SegmentId,
        generation: u32,
        size: u64,
        shape: Shape,
        bound: Option<*mut u8>,
        init: Init,
    ) -> Result<Segment> {
        let layout = Layout::new(id, shape);
        let own_data = if bound.is_some() { 0 } else { size };
        let file_len = layout.data_at(own_data).checked_add(own_data).ok_or(Error::Memory {
            needed: size,
            available: u64::MAX,
            reason: "no address space is so large".to_owned(),
        })?;
        let out_of_memory = |error: &std::io::Error| {
            if error.raw_os_error() == Some(libc::ENOMEM) {
                let available = crate::os::limits::memory().available;
                let reason = format!(
                    "the kernel refused to map it ({error}); see ulimit -v and \
                                      vm.max_map_count"
                );
                return Error::Memory { needed: size, available, reason };
            }
            Error::os(format!("mapping {id}"), error)
        };
        let file = Arc::new(memory::create(FILE_NAME, file_len, false)?);
        let mapping = Mapping::new(file.as_fd(), 0, layout.control_len)
            .map_err(|error| out_of_memory(&error))?;
        let data = match bound {
            Some(pointer) => Data::Bound(pointer),
            // Reserved pages are taken at once: not for memory of which a part may never be used.
            None => match (id != ARENA).then(|| huge(size)).flatten() {
                Some((mapping, file)) => Data::Mapped { mapping, file: Some(file) },
                None => {
                    let mapping = Mapping::new(file.as_fd(), layout.data_at(size), size)
                        .map_err(|error| out_of_memory(&error))?;
                    Data::Mapped { mapping, file: None }
                }
            },
        };
        if let (Data::Mapped { mapping, .. }, Init::Zeroed) = (&data, init) {
            mapping.populate().map_err(|error| out_of_memory(&error))?;
        }
        if let (ARENA, Data::Mapped { mapping, .. }) = (id, &data) {
            mapping.keep_from_core_dumps();
        }
        let control = Control { mapping, layout };
        Ok(Segment::of((id, generation, size), control, file, data))
    }

    /// A segment of these parts, which exists from now on.
    fn of(
        (id, generation, size): (SegmentId, u32, u64),
        control: Control,
        file: Arc<OwnedFd>,
        data: Data,
    ) -> Segment {
        control.alive().store(ALIVE, Ordering::Release);
        Segment {
            start: match &data {
                Data::Mapped { mapping, .. } => mapping.as_ptr(),
                Data::Bound(pointer) => *pointer,
            },
            size,
            notifications: control.notifications(),
            id,
            generation,
            prepared: PreparedMemory::default(),
            control,
            file,
            data,
            registered: Mutex::default(),
            answered: Mutex::default(),
            accepts: Mutex::new(true),
            leases: Leases::default(),
        }
    }

    /// A segment of `size` bytes in memory that is mapped, zeroed and nobody else's.
    ///
    /// # Errors
    /// There is not so much.
    pub(crate) fn in_room(
        id: SegmentId,
        (generation, size): (u32, u64),
        room: &Room,
        shape: Shape,
    ) -> Result<Segment> {
        let (control, mapping) = parts_of(id, size, room, shape)?;
        let data = Data::Mapped { mapping, file: None };
        Ok(Segment::of((id, generation, size), control, Arc::clone(&room.file), data))
    }

    /// A segment with memory of its own.
    pub(crate) fn new(
        id: SegmentId,
        generation: u32,
        size: u64,
        init: Init,
        shape: Shape,
    ) -> Result<Segment> {
        Segment::with(id, generation, size, shape, None, init)
    }

    /// A segment on memory of the caller's.
    pub(crate) fn bound(
        id: SegmentId,
        generation: u32,
        pointer: *mut u8,
        size: u64,
        shape: Shape,
    ) -> Result<Segment> {
        Segment::with(id, generation, size, shape, Some(pointer), Init::Uninitialized)
    }

    /// What its memory consists of, in words.
    pub(crate) fn pages(&self) -> String {
        match &self.data {
            Data::Bound(_) => "memory of the program".to_owned(),
            Data::Mapped { file: Some(_), .. } => "reserved huge pages".to_owned(),
            Data::Mapped { .. } if self.size < HUGE_PAGE => "small pages".to_owned(),
            Data::Mapped { .. } => {
                let found = diagnostics::huge_pages();
                match found.state {
                    CheckState::Usable => {
                        format!("huge pages where there are any ({})", found.reason)
                    }
                    _ => format!("small pages: {}; {}", found.reason, found.remedy),
                }
            }
        }
    }

    /// Bytes of the data with what is left of its last huge page, which can only be treated as a
    /// whole.
    pub(crate) fn whole_pages(&self) -> u64 {
        match &self.data {
            Data::Mapped { mapping, file: Some(_) } => mapping.len() as u64,
            _ => self.size,
        }
    }

    /// First byte of the data.
    #[inline]
    pub(crate) fn pointer(&self) -> *mut u8 {
        self.start
    }

    /// Whether peers of this node map its data.
    #[inline]
    pub(crate) fn is_mapped(&self) -> bool {
        matches!(self.data, Data::Mapped { .. })
    }

    /// Notes that `rank` can reach it.
    pub(crate) fn note_answered(&self, rank: Rank, answer: u64) {
        self.answered.lock().insert(rank, answer);
    }

    /// What `rank` answered to its registration.
    pub(crate) fn answer_of(&self, rank: Rank) -> Option<u64> {
        self.answered.lock().get(&rank).copied()
    }

    /// A word of the notification space; the caller has checked the id.
    #[inline]
    pub(crate) fn notification(&self, id: usize) -> &AtomicU32 {
        // SAFETY: the space has notification_num words, and ids are checked against that.
        unsafe { &*self.notifications.add(id) }
    }

    /// What a peer has to know to reach it, and the descriptors that go along.
    pub(crate) fn describe(&self, nonce: &u64) -> (Register, Vec<BorrowedFd<'_>>) {
        let mut descriptors = vec![self.file.as_fd()];
        let address = match &self.data {
            Data::Mapped { file, .. } => {
                descriptors.extend(file.iter().map(AsFd::as_fd));
                0
            }
            Data::Bound(pointer) => *pointer as u64,
        };
        let register = Register {
            request: 0,
            segment: self.id,
            generation: self.generation,
            size: self.size,
            address,
            nonce_address: std::ptr::from_ref(nonce) as u64,
            nonce: *nonce,
            descriptors: descriptors.len() as u8,
            keys: Vec::new(),
        };
        (register, descriptors)
    }

    /// Ends its existence for all accesses that come later, of whatever rank.
    pub(crate) fn end(&self) {
        self.control.alive().store(DELETED, Ordering::SeqCst);
        *self.accept() = false;
    }

    /// Keeps it from ending; false if it has ended.
    pub(crate) fn accept(&self) -> MutexGuard<'_, bool> {
        self.accepts.lock()
    }

    /// Data that comes later is not written any more to the range of an arena that begins here.
    /// Notifications are answered but for those of ranks that are told in another way.
    pub(crate) fn end_data(&self, start: u64, told: Box<[Rank]>) {
        let _accepts = self.accept();
        self.leases.end_data(start, told);
    }

    /// The same for all that comes later.
    pub(crate) fn end_lease(&self, start: u64) {
        let _accepts = self.accept();
        self.leases.end(start);
    }

    /// The first of `ranks` that is copying from or to it right now.
    pub(crate) fn copied_by(&self, mut ranks: impl Iterator<Item = Rank>) -> Option<Rank> {
        match self.data {
            // What a peer maps are pages of its own after the delete.
            Data::Mapped { .. } => None,
            Data::Bound(_) => {
                let copying = |rank| self.control.in_use(rank).load(Ordering::SeqCst) & !MAPPED;
                ranks.find(|rank| copying(*rank) != 0)
            }
        }
    }

    /// Whether `rank` has mapped it by what was published. Once it has ended, nobody begins to.
    pub(crate) fn is_mapped_by(&self, rank: Rank) -> bool {
        self.control.in_use(rank).load(Ordering::SeqCst) & MAPPED != 0
    }
}

/// Reserved huge pages, where there are any: only the mapping finds out.
fn huge(size: u64) -> Option<(Mapping, OwnedFd)> {
    if size < HUGE_PAGE {
        return None;
    }
    let file = memory::create(FILE_NAME, size.next_multiple_of(HUGE_PAGE), true).ok()?;
    let mapping = Mapping::huge(file.as_fd(), size.next_multiple_of(HUGE_PAGE)).ok()?;
    Some((mapping, file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::shared_layout::{ARENA_BYTES, SharedLayout};

    fn room(bytes: u64) -> Room {
        let fd = memory::create(c"test", bytes, false).unwrap();
        let mapping = Arc::new(Mapping::new(fd.as_fd(), 0, bytes).unwrap());
        Room { file: Arc::new(fd), mapping, offset: 0, bytes }
    }

    #[test]
    fn the_layout_of_the_area_has_room_for_an_arena() {
        for ranks in [1, 17, 4096, 65_535] {
            let shape = Shape { ranks, notifications: 16 };
            let data_at = Layout::new(ARENA, shape).data_at(ARENA_BYTES);
            let room = SharedLayout::new(ranks, 1).arena_bytes();
            assert!(data_at + ARENA_BYTES <= room, "{ranks} ranks");
        }
    }

    #[test]
    fn a_segment_in_room_that_is_shared_is_reached_by_its_peers() {
        let shape = Shape { ranks: 2, notifications: 16 };
        let bytes = Layout::new(ARENA, shape).data_at(PAGE) + PAGE;
        let room = room(bytes);
        let own = Segment::in_room(ARENA, (7, PAGE), &room, shape).unwrap();
        let seen = Target::in_room(ARENA, (7, PAGE), &room, shape).unwrap();
        assert!(seen.alive() && seen.mapped() == PAGE && seen.generation == 7);
        assert_eq!(seen.start(8), own.pointer().wrapping_add(8));
        own.notification(5).store(3, Ordering::Relaxed);
        assert_eq!(seen.notification(5).load(Ordering::Relaxed), 3);
        own.end();
        assert!(!seen.alive());
        assert!(Segment::in_room(ARENA, (8, PAGE + 1), &room, shape).is_err());
    }
}
