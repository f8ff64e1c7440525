//! Segments of any rank as this rank reaches them.

use super::published::Published;
use super::{ALIVE, Control, DELETED, Segment, Shape, parts_of};
use crate::error::{Error, Result};
use crate::ids::{Rank, SegmentId};
use crate::os::cross_memory;
use crate::os::memory::{Mapping, Room};
use crate::sync::{AtomicU32, Ordering};
use crate::wire::message::{MemoryKey, Register};
use std::os::fd::OwnedFd;
use std::sync::Arc;

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

    /// A segment of `size` bytes of a peer, in memory that is mapped here too. Nothing is looked
    /// at: it exists, since its owner has told of it.
    ///
    /// # Errors
    /// It would be longer than that.
    pub(crate) fn in_room(
        segment: SegmentId,
        (generation, size): (u32, u64),
        room: &Room,
        shape: Shape,
    ) -> Result<Target> {
        let (control, data) = parts_of(segment, size, room, shape)?;
        Ok(Target::imported(control, Some(data), Reach::Mapped, size, generation))
    }

    pub(super) fn imported(
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
    pub(crate) fn remote((size, generation): (u64, u32), key: Option<MemoryKey>) -> Target {
        Target {
            alive: &raw const THERE,
            notifications: std::ptr::null(),
            data: std::ptr::null_mut(),
            mapped: 0,
            size,
            generation,
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
    match may_copy((register.nonce_address, register.nonce), pid) {
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
/// owner knows where to find, `nonce` at `address`. Yama, seccomp and namespaces all show here.
///
/// # Errors
/// Why not, and what to do about it.
pub(crate) fn may_copy((address, nonce): (u64, u64), pid: i32) -> Result<(), String> {
    let mut found = 0u64;
    // SAFETY: writes 8 bytes onto this stack.
    let read = unsafe {
        let target = (&raw mut found).cast();
        cross_memory::read(pid, address, target, size_of::<u64>())
    };
    match read {
        Ok(()) if pid != 0 && found == nonce => Ok(()),
        Ok(()) => {
            Err("ranks do not see each other's processes; run them in one pid namespace".into())
        }
        Err(error) => {
            let (reason, remedy) = cross_memory::refusal(&error);
            Err(format!("{reason}; {remedy}"))
        }
    }
}
