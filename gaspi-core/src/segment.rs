//! Segments: memory that other ranks may write, read and notify (GASPI 17.1, 7).
//!
//! A segment is one sealed memory file: a header page that says whether it still exists, its
//! notification space, and its data; bound user memory has the first two only. Registering hands
//! the descriptor to a peer, which maps it ([`Target`]).
//!
//! Invariants: an access looks at the header first, so that one that comes after a delete is an
//! error; one that races with it lands in pages that nobody reads any more.

pub(crate) mod own;
pub(crate) mod prepared;
pub(crate) mod published;
pub(crate) mod table;

use crate::diagnostics::{self, CheckState};
use crate::error::{Error, Result};
use crate::ids::{Rank, SegmentId};
use crate::os::cross_memory;
use crate::os::memory::{self, HUGE_PAGE, Mapping, PAGE};
use crate::segment::prepared::PreparedMemory;
use crate::segment::published::Published;
use crate::sync::{AtomicU32, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::wire::message::{MemoryKey, Register};
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
/// Words of its notification space.
pub(crate) const ARENA_WORDS: u32 = 1 << 20;

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
            .map_err(|error| Error::os(format!("mapping {segment}"), &error))?;
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
        Mapping::new(file.as_fd(), at, len)
            .map_err(|error| Error::os(format!("mapping {segment}"), &error))
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
    file: OwnedFd,
    data: Data,
    /// Who has been told about it, and has to be told that it is gone.
    pub(crate) registered: Mutex<BTreeSet<Rank>>,
    /// Who has answered that it can reach it, and with which number.
    pub(crate) answered: Mutex<BTreeMap<Rank, u64>>,
    /// Held while the progress thread writes into it; false once it is deleted.
    accepts: Mutex<bool>,
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
        let file = memory::create(FILE_NAME, file_len, false)?;
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
        let control = Control { mapping, layout };
        control.alive().store(ALIVE, Ordering::Release);
        Ok(Segment {
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
        })
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

/// How this rank gets at a peer's bound memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// It is mapped here.
    Mapped,
    /// By copying across processes.
    CrossMemory { pid: i32, address: u64 },
    /// By its owner's progress.
    Staged,
    /// By frames to its owner, on another node.
    Remote,
    /// By devices, on another node; by frames to its owner where a lane has none.
    Device { key: u32, address: u64 },
    /// It will be mapped here at first access.
    Published,
}

impl Reach {
    /// The way, in words.
    pub(crate) fn in_words(self) -> &'static str {
        match self {
            Reach::Mapped => "mapped",
            Reach::CrossMemory { .. } => "copied across processes",
            Reach::Staged => "copied by its owner",
            Reach::Remote => "reached by TCP",
            Reach::Device { .. } => "reached by an RDMA device",
            Reach::Published => "mapped at first access",
        }
    }
}

#[derive(Debug)]
enum Keep {
    Own(Arc<Segment>),
    Imported { control: Control, _data: Option<Mapping> },
    Published(Published),
    Nothing,
}

/// What a [`Target`] that is gone points to.
static GONE: AtomicU32 = AtomicU32::new(DELETED);
/// What a [`Target`] of another node points to, until its owner says that it is gone.
static THERE: AtomicU32 = AtomicU32::new(ALIVE);

/// A segment of any rank as this rank reaches it. What a transfer looks at comes first, in one
/// cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Target {
    /// Null unless `reach` is `Mapped`.
    data: *mut u8,
    /// Bytes that are mapped at `data`: all or none.
    mapped: u64,
    alive: *const AtomicU32,
    notifications: *const AtomicU32,
    /// Bytes.
    pub(crate) size: u64,
    pub(crate) generation: u32,
    pub(crate) reach: Reach,
    keep: Keep,
}

// SAFETY: the pointers lead into the mappings (or the segment) that `keep` holds.
unsafe impl Send for Target {}
// SAFETY: shared by copies. `keep` holds what the pointers lead to.
unsafe impl Sync for Target {}

impl Target {
    /// A segment of this rank itself.
    pub(crate) fn own(segment: Arc<Segment>) -> Target {
        Target {
            alive: segment.control.alive(),
            notifications: segment.control.notifications(),
            data: segment.pointer(),
            mapped: segment.size,
            size: segment.size,
            generation: segment.generation,
            reach: Reach::Mapped,
            keep: Keep::Own(segment),
        }
    }

    /// Maps a peer's segment from what it sent.
    pub(crate) fn import(
        register: &Register,
        pid: i32,
        descriptors: &[OwnedFd],
        shape: Shape,
    ) -> Result<Target> {
        let missing = || Error::System {
            call: format!("importing {}", register.segment),
            reason: "its descriptor did not arrive; the limit of open files may be reached, \
                     raise it with ulimit -n"
                .to_owned(),
        };
        if descriptors.len() != usize::from(register.descriptors) {
            return Err(missing());
        }
        let file = descriptors.first().ok_or_else(missing)?;
        let control = Control::import(register.segment, file, shape)?;
        let (size, generation) = (register.size, register.generation);
        if register.address == 0 {
            let data = control.map_data(register.segment, file, descriptors.get(1), size)?;
            return Ok(Target::imported(control, Some(data), Reach::Mapped, size, generation));
        }
        let reach = probe(register, pid);
        Ok(Target::imported(control, None, reach, size, generation))
    }

    fn imported(
        control: Control,
        data: Option<Mapping>,
        reach: Reach,
        size: u64,
        generation: u32,
    ) -> Target {
        Target {
            alive: control.alive(),
            notifications: control.notifications(),
            data: data.as_ref().map_or(std::ptr::null_mut(), Mapping::as_ptr),
            mapped: if data.is_some() { size } else { 0 },
            size,
            generation,
            reach,
            keep: Keep::Imported { control, _data: data },
        }
    }

    /// A segment of a rank of another node, which this rank's device reaches by `key`.
    pub(crate) fn remote(register: &Register, key: Option<MemoryKey>) -> Target {
        Target {
            alive: &raw const THERE,
            notifications: std::ptr::null(),
            data: std::ptr::null_mut(),
            mapped: 0,
            size: register.size,
            generation: register.generation,
            reach: match key {
                Some(MemoryKey { key, address, .. }) => Reach::Device { key, address },
                None => Reach::Remote,
            },
            keep: Keep::Nothing,
        }
    }

    /// A segment of a rank of this node that is mapped at first access.
    pub(crate) fn published(published: Published) -> Target {
        Target {
            alive: &raw const THERE,
            notifications: std::ptr::null(),
            data: std::ptr::null_mut(),
            mapped: 0,
            size: published.size,
            generation: published.generation,
            reach: Reach::Published,
            keep: Keep::Published(published),
        }
    }

    /// Where to map it from, if that has not been done.
    #[inline]
    pub(crate) fn is_published(&self) -> Option<&Published> {
        match &self.keep {
            Keep::Published(published) => Some(published),
            _ => None,
        }
    }

    /// What remains of a segment whose owner deleted it, left or died: every access fails.
    pub(crate) fn gone(size: u64, generation: u32) -> Target {
        Target {
            alive: &raw const GONE,
            notifications: std::ptr::null(),
            data: std::ptr::null_mut(),
            mapped: 0,
            size,
            generation,
            reach: Reach::Mapped,
            keep: Keep::Nothing,
        }
    }

    /// Whether it still exists: asked before each access.
    #[inline(always)]
    pub(crate) fn alive(&self) -> bool {
        // SAFETY: points into `keep`'s mapping, or to a constant.
        let word = unsafe { &*self.alive };
        // Acquire is not needed: what follows is ordered by the segment having been registered.
        word.load(Ordering::Relaxed) == ALIVE
    }

    /// The bytes that are mapped here: all or none.
    #[inline(always)]
    pub(crate) fn mapped(&self) -> u64 {
        self.mapped
    }

    /// The address of `offset`, if it lies in what is mapped.
    #[inline(always)]
    pub(crate) fn start(&self, offset: u64) -> *mut u8 {
        self.data.wrapping_add(offset as usize)
    }

    /// The mapped data at `offset`, null where it is not mapped. Only if `alive`.
    #[inline(always)]
    pub(crate) fn data(&self, offset: u64) -> *mut u8 {
        if self.data.is_null() { self.data } else { self.data.wrapping_add(offset as usize) }
    }

    /// Whether its notifications can be set from here. Only if `alive`.
    #[inline(always)]
    pub(crate) fn is_notified_here(&self) -> bool {
        !self.notifications.is_null()
    }

    /// A word of the notification space; the id was checked. Only if `alive` and notified from
    /// here.
    #[inline]
    pub(crate) fn notification(&self, id: usize) -> &AtomicU32 {
        debug_assert!(!self.notifications.is_null());
        // SAFETY: the space has notification_num words, which agrees on all ranks.
        unsafe { &*self.notifications.add(id) }
    }

    /// Marks this rank as copying, unless the segment has ended: its delete waits for the mark.
    pub(crate) fn copying(&self, rank: Rank) -> Option<Copying<'_>> {
        let control = match &self.keep {
            Keep::Own(segment) => &segment.control,
            Keep::Imported { control, .. } => control,
            Keep::Published(_) | Keep::Nothing => return None,
        };
        let word = control.in_use(rank);
        // SeqCst: either the delete sees this mark, or the look below sees the delete.
        word.fetch_add(1, Ordering::SeqCst);
        let copying = Copying { word };
        (control.alive().load(Ordering::SeqCst) == ALIVE).then_some(copying)
    }
}

/// While it lives, the owner of the segment waits with its delete.
#[derive(Debug)]
pub(crate) struct Copying<'a> {
    word: &'a AtomicU32,
}

impl Drop for Copying<'_> {
    fn drop(&mut self) {
        self.word.fetch_sub(1, Ordering::SeqCst);
    }
}

/// How this rank gets at memory of the program of a rank of its node.
fn probe(register: &Register, pid: i32) -> Reach {
    match may_copy(register, pid) {
        Ok(()) => Reach::CrossMemory { pid, address: register.address },
        Err(reason) => {
            // Not the peer: what keeps this rank from one keeps it from all, and is told once.
            log::warn!(
                "segment_register: memory of programs is copied by its owners, since {reason}"
            );
            Reach::Staged
        }
    }
}

/// Whether the kernel lets this rank copy from the owner's memory: reads a number that only the
/// owner knows where to find. Yama, seccomp and namespaces all show here.
///
/// # Errors
/// Why not, and what to do about it.
pub(crate) fn may_copy(register: &Register, pid: i32) -> Result<(), String> {
    let mut found = 0u64;
    // SAFETY: writes 8 bytes onto this stack.
    let read = unsafe {
        let target = (&raw mut found).cast();
        cross_memory::read(pid, register.nonce_address, target, size_of::<u64>())
    };
    match read {
        Ok(()) if pid != 0 && found == register.nonce => Ok(()),
        Ok(()) => {
            Err("ranks do not see each other's processes; run them in one pid namespace".into())
        }
        Err(error) => {
            let (reason, remedy) = cross_memory::refusal(&error);
            Err(format!("{reason}; {remedy}"))
        }
    }
}
