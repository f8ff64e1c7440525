//! The memory of a bucket: where its tensors are summed, by turns where results are lent.
//!
//! Invariant: while a result is lent, its memory is not written. The step that begins meanwhile
//! works in other memory, which is made when it is needed. The sums of a step stay where they are
//! until the next one is reduced.

use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use gaspi_core::sync::Mutex;
use gaspi_core::{ArenaMemory, Error, Result, Runtime};

use super::layout::{ALIGNMENT, Layout, Part};
use super::occupied::{Noted, Occupied};
use crate::kernel::{Buffer, Target};

/// Memory of this process, aligned as places of tensors are.
#[derive(Debug)]
struct Plain {
    /// First: forgotten before it is freed.
    _noted: Noted,
    buffer: Buffer,
    bytes: u64,
}

impl Plain {
    fn new(occupied: &Arc<Occupied>, bytes: u64) -> Plain {
        let buffer = Buffer::new(bytes + ALIGNMENT);
        let start = Plain::aligned(&buffer, bytes).source().start();
        Plain { _noted: occupied.note(start, bytes), buffer, bytes }
    }

    fn aligned(buffer: &Buffer, bytes: u64) -> Target<'_> {
        let all = buffer.target(buffer.len());
        let start = all.source().start() as u64;
        all.part(start.next_multiple_of(ALIGNMENT) - start, bytes)
    }

    fn target(&self) -> Target<'_> {
        Plain::aligned(&self.buffer, self.bytes)
    }

    fn at(&self, offset: u64) -> *mut u8 {
        self.target().source().start().wrapping_add(offset as usize).cast_mut()
    }
}

/// Where contributions are added up in the type of the tensors, so that their sum is rounded once.
#[derive(Debug)]
struct PartialSums(Plain);

// SAFETY: a thread that has claimed a contribution to a tensor uses its part alone, and hands it on
// by the word of its claim.
unsafe impl Sync for PartialSums {}

/// One of the memories of a bucket.
#[derive(Debug)]
struct Memory {
    start: *mut u8,
    /// What it lies in; none for the first one, which lies in the memory of all buckets.
    arena: Option<(Noted, ArenaMemory)>,
    /// Results in the type of the tensors, where another type travels; the step of each tensor's.
    plain: Option<Plain>,
    plain_steps: Vec<u64>,
    /// Results that are lent, by tensor.
    lent: Vec<u64>,
}

impl Memory {
    fn new(start: *mut u8, arena: Option<(Noted, ArenaMemory)>) -> Memory {
        Memory { start, arena, plain: None, plain_steps: Vec::new(), lent: Vec::new() }
    }

    fn is_free(&self) -> bool {
        self.lent.iter().all(|lent| *lent == 0)
    }

    /// Where a tensor's part lies in the type of the tensor, once it was lent.
    fn place(&self, part: Part, travels_plainly: bool) -> Option<*const u8> {
        if travels_plainly {
            return Some(self.start.wrapping_add(part.at as usize));
        }
        self.plain.as_ref().map(|plain| plain.at(part.plain_at).cast_const())
    }
}

// SAFETY: the pointer leads into the arena, which the fused buffer keeps.
unsafe impl Send for Memory {}

/// A sum that was copied when it was lent: its memory is used for the next step already.
#[derive(Debug)]
struct Snapshot {
    nth: usize,
    plain: Plain,
}

#[derive(Debug)]
struct Memories {
    all: Vec<Memory>,
    /// The one of the last two steps, by [`turn`].
    by_turn: [usize; 2],
    snapshots: Vec<Snapshot>,
}

/// Where the memory of a step is remembered: beside that of the step before.
fn turn(step: u64) -> usize {
    (step % 2) as usize
}

/// The memories of a bucket.
#[derive(Debug)]
pub(super) struct BucketMemory {
    memories: Mutex<Memories>,
    /// The step for which memory is ready.
    ready: AtomicU64,
    /// Where the memory of the last two steps begins, by [`turn`].
    starts: [AtomicPtr<u8>; 2],
    bytes: u64,
    /// Bytes in the type of the tensors, where another type travels.
    plain_bytes: Option<u64>,
    /// Where another type travels and there are several contributions.
    partial_sums: Option<PartialSums>,
    /// What lies between tensors: places and lengths. It is summed with them, and so is cleared: a
    /// NaN or subnormal numbers would cost time, or trap where the program wants that.
    gaps: Box<[(u64, u64)]>,
    /// Where all but the first memory lie, with those of the other buckets.
    occupied: Arc<Occupied>,
}

/// Clears gaps of a memory that begins at `start`.
///
/// # Safety
/// They lie in memory that nobody else uses yet.
unsafe fn clear(start: *mut u8, gaps: &[(u64, u64)]) {
    for (at, bytes) in gaps {
        // SAFETY: caller's promise.
        unsafe { start.wrapping_add(*at as usize).write_bytes(0, *bytes as usize) };
    }
}

impl BucketMemory {
    /// The memories of a bucket of the layout, the first of which lies in that of all buckets.
    pub(super) fn new(
        (of_all, occupied): (Target<'static>, &Arc<Occupied>),
        layout: &Layout,
        bucket: usize,
        contributions: u32,
    ) -> BucketMemory {
        let bucket = &layout.buckets[bucket];
        let first = of_all.part(bucket.at, bucket.bytes());
        let plain_bytes =
            (bucket.ty != bucket.wire).then(|| bucket.elements * u64::from(bucket.ty.bytes()));
        let gaps = bucket.gaps(&layout.places);
        let start = first.source().start().cast_mut();
        // SAFETY: checked range: gaps lie between tensors of the bucket. Others read there once
        // this rank takes part in an all-reduce.
        unsafe { clear(start, &gaps) };
        let all = vec![Memory::new(start, None)];
        let partial_sums = plain_bytes.filter(|_| contributions > 1);
        BucketMemory {
            memories: Mutex::new(Memories { all, by_turn: [0; 2], snapshots: Vec::new() }),
            ready: AtomicU64::new(0),
            starts: [start, start].map(AtomicPtr::new),
            bytes: first.len() as u64,
            plain_bytes,
            partial_sums: partial_sums.map(|bytes| PartialSums(Plain::new(occupied, bytes))),
            gaps: gaps.into(),
            occupied: Arc::clone(occupied),
        }
    }

    /// The memory of a step: the one that is being collected or reduced, or the one before it.
    #[inline(always)]
    pub(super) fn of_step(&self, step: u64) -> Target<'static> {
        // Relaxed: who asks has seen the step made ready, or its end.
        let start = self.starts[turn(step)].load(Ordering::Relaxed);
        // SAFETY: memory of the bucket, which is kept as long as this. Threads that write there
        // have claimed what they write, or run the steps of the all-reduce.
        unsafe { Target::new(start, self.bytes as usize) }
    }

    /// The place of a tensor, whose part of this bucket that is, in the memory of a step.
    #[inline(always)]
    pub(super) fn place_of_step(&self, step: u64, part: Part) -> Target<'static> {
        debug_assert!(part.at + part.bytes <= self.bytes, "{part:?} of {} bytes", self.bytes);
        // Relaxed: as in `of_step`.
        let start = self.starts[turn(step)].load(Ordering::Relaxed);
        // SAFETY: as in `of_step`; the layout puts parts inside of their bucket.
        unsafe { Target::new(start.wrapping_add(part.at as usize), part.bytes as usize) }
    }

    /// Where the contributions to a tensor are added up until the last one comes; none where that
    /// is its place.
    pub(super) fn partial_sum(&self, part: Part) -> Option<Target<'_>> {
        let sums = self.partial_sums.as_ref()?;
        Some(sums.0.target().part(part.plain_at, part.plain_bytes))
    }

    /// Makes memory ready for a step, which is not lent.
    ///
    /// # Errors
    /// [`Error::Memory`]: all of it is lent, and there is no other.
    #[inline]
    pub(super) fn for_step(&self, rt: &Runtime, step: u64) -> Result<()> {
        // Acquire: pairs with the Release in `prepare`.
        if self.ready.load(Ordering::Acquire) != step {
            self.prepare(step, || Some(self.another(rt))).transpose()?;
        }
        Ok(())
    }

    /// Makes memory ready for a step, if there is some that is not lent.
    #[inline(always)]
    pub(super) fn has_for_step(&self, step: u64) -> bool {
        // Acquire: pairs with the Release in `prepare`.
        self.ready.load(Ordering::Acquire) == step
            || self.prepare(step, || None).is_some_and(|made| made.is_ok())
    }

    /// Does so for the first thread that comes to a step. `another` makes memory, or gives none.
    #[cold]
    fn prepare(
        &self,
        step: u64,
        another: impl FnOnce() -> Option<Result<Memory>>,
    ) -> Option<Result<()>> {
        let mut memories = self.memories.lock();
        if self.ready.load(Ordering::Relaxed) == step {
            return Some(Ok(()));
        }
        let memories = &mut *memories;
        let free = match memories.all.iter().position(Memory::is_free) {
            Some(free) => free,
            None => match another()? {
                Ok(memory) => {
                    memories.all.push(memory);
                    memories.all.len() - 1
                }
                Err(error) => return Some(Err(error)),
            },
        };
        memories.by_turn[turn(step)] = free;
        // Relaxed: published by the next store.
        self.starts[turn(step)].store(memories.all[free].start, Ordering::Relaxed);
        // Release: who sees the step sees the memory.
        self.ready.store(step, Ordering::Release);
        Some(Ok(()))
    }

    fn another(&self, rt: &Runtime) -> Result<Memory> {
        let arena = rt.arena_memory(self.bytes).map_err(|error| match error {
            Error::Memory { needed, available, reason } => {
                let reason = format!("{reason}; release results of earlier steps");
                Error::Memory { needed, available, reason }
            }
            other => other,
        })?;
        // SAFETY: checked range: it has as many bytes as the bucket, and is fresh.
        unsafe { clear(arena.pointer(), &self.gaps) };
        let start = arena.pointer();
        Ok(Memory::new(start, Some((self.occupied.note(start, self.bytes), arena))))
    }

    /// Lends the sum of a tensor that was computed in `step`, the last one in which it was
    /// submitted. `read` writes a tensor in its own type, from the memory of the bucket; it is used
    /// where another type travels, and where the next step has begun in the same memory.
    pub(super) fn lend(
        &self,
        step: u64,
        part: Part,
        read: impl FnOnce(Target<'_>, Target<'static>),
    ) -> *const u8 {
        let mut memories = self.memories.lock();
        let memories = &mut *memories;
        let [of_step, of_next] = [step, step + 1].map(|step| memories.by_turn[turn(step)]);
        // Relaxed: changed under the lock.
        if self.ready.load(Ordering::Relaxed) > step && of_step == of_next {
            let plain = Plain::new(&self.occupied, part.plain_bytes);
            read(plain.target(), self.of_step(step));
            let lent = plain.at(0).cast_const();
            memories.snapshots.push(Snapshot { nth: part.nth, plain });
            return lent;
        }
        let memory = &mut memories.all[of_step];
        let most = memory.lent.len().max(part.nth + 1);
        memory.lent.resize(most, 0);
        memory.lent[part.nth] += 1;
        let Some(plain_bytes) = self.plain_bytes else {
            return memory.start.wrapping_add(part.at as usize).cast_const();
        };
        memory.plain_steps.resize(most, 0);
        let plain = || Plain::new(&self.occupied, plain_bytes);
        let plain = memory.plain.get_or_insert_with(plain);
        if memory.plain_steps[part.nth] != step {
            memory.plain_steps[part.nth] = step;
            read(plain.target().part(part.plain_at, part.plain_bytes), self.of_step(step));
        }
        plain.at(part.plain_at).cast_const()
    }

    /// The place of a tensor in the first memory, in the tensor's type.
    pub(super) fn place(&self, part: Part) -> *mut u8 {
        let mut memories = self.memories.lock();
        let memory = &mut memories.all[0];
        let Some(bytes) = self.plain_bytes else {
            return memory.start.wrapping_add(part.at as usize);
        };
        let plain = || Plain::new(&self.occupied, bytes);
        memory.plain.get_or_insert_with(plain).at(part.plain_at)
    }

    /// Whether that is the place of a tensor.
    pub(super) fn is_place(&self, part: Part, memory: *const u8) -> bool {
        let memories = self.memories.lock();
        memories.all[0].place(part, self.plain_bytes.is_none()) == Some(memory)
    }

    /// Takes back a result of a tensor; false if none is lent there.
    pub(super) fn release(&self, part: Part, lent: *const u8) -> bool {
        let mut memories = self.memories.lock();
        let memories = &mut *memories;
        let travels_plainly = self.plain_bytes.is_none();
        let holds = |memory: &&mut Memory| memory.place(part, travels_plainly) == Some(lent);
        if let Some(memory) = memories.all.iter_mut().find(holds) {
            let count = memory.lent.get_mut(part.nth).filter(|count| **count > 0);
            return count.map(|count| *count -= 1).is_some();
        }
        let found = memories.snapshots.iter().position(|snapshot| {
            snapshot.nth == part.nth && snapshot.plain.at(0).cast_const() == lent
        });
        found.map(|at| memories.snapshots.swap_remove(at)).is_some()
    }

    /// Lets go of memory that other ranks may still write to.
    pub(super) fn abandon(&self) {
        let mut memories = self.memories.lock();
        let arenas = memories.all.drain(1..).filter_map(|memory| memory.arena);
        arenas.for_each(|(_, arena)| arena.abandon());
        memories.by_turn = [0; 2];
    }
}
