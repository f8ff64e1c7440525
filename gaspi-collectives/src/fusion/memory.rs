//! The memory of a bucket: where its tensors are summed, by turns where results are lent.
//!
//! Invariant: while a result is lent, its memory is not written. The step that begins meanwhile
//! works in other memory, which is made when it is needed.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use gaspi_core::sync::Mutex;
use gaspi_core::{ArenaMemory, Error, Result, Runtime};

use super::layout::ALIGNMENT;
use crate::kernel::{Buffer, Target};

/// Memory of this process, aligned as places of tensors are.
#[derive(Debug)]
struct Plain {
    buffer: Buffer,
    bytes: u64,
}

impl Plain {
    fn new(bytes: u64) -> Plain {
        Plain { buffer: Buffer::new(bytes + ALIGNMENT), bytes }
    }

    fn target(&self) -> Target<'_> {
        let all = self.buffer.target(self.buffer.len());
        let start = all.source().start() as u64;
        all.part(start.next_multiple_of(ALIGNMENT) - start, self.bytes)
    }
}

/// One of the memories of a bucket.
#[derive(Debug)]
struct Memory {
    start: *mut u8,
    /// What it lies in; none for the first one, which lies in the memory of all buckets.
    arena: Option<ArenaMemory>,
    /// Results in the type of the tensors, where another type travels; the step of each tensor's.
    plain: Option<Plain>,
    plain_steps: Vec<u64>,
    /// Results that are lent.
    lent: u64,
}

// SAFETY: the pointer leads into the arena, which the fused buffer keeps.
unsafe impl Send for Memory {}

#[derive(Debug)]
struct Memories {
    all: Vec<Memory>,
    current: usize,
}

/// The memories of a bucket.
#[derive(Debug)]
pub(super) struct BucketMemory {
    memories: Mutex<Memories>,
    /// The step for which the current memory is ready.
    ready: AtomicU64,
    current: AtomicPtr<u8>,
    bytes: u64,
    /// Bytes in the type of the tensors, where another type travels.
    plain_bytes: Option<u64>,
}

impl BucketMemory {
    pub(super) fn new(first: Target<'static>, plain_bytes: Option<u64>) -> BucketMemory {
        let start = first.source().start().cast_mut();
        let (arena, plain, plain_steps) = (None, None, Vec::new());
        let memory = Memory { start, arena, plain, plain_steps, lent: 0 };
        BucketMemory {
            memories: Mutex::new(Memories { all: vec![memory], current: 0 }),
            ready: AtomicU64::new(0),
            current: AtomicPtr::new(start),
            bytes: first.len() as u64,
            plain_bytes,
        }
    }

    /// The memory of the step that is being collected or reduced, or has ended last.
    #[inline]
    pub(super) fn current(&self) -> Target<'static> {
        // Acquire: pairs with the Release in `prepare`.
        let start = self.current.load(Ordering::Acquire);
        // SAFETY: memory of the bucket, which is kept as long as this. Threads that write there
        // have claimed what they write, or run the steps of the all-reduce.
        unsafe { Target::new(start, self.bytes as usize) }
    }

    /// The memory for a step, which is not lent.
    ///
    /// # Errors
    /// [`Error::Memory`]: all of it is lent, and there is no other.
    #[inline]
    pub(super) fn for_step(&self, rt: &Runtime, step: u64) -> Result<Target<'static>> {
        // Acquire: pairs with the Release in `prepare`.
        if self.ready.load(Ordering::Acquire) != step {
            self.prepare(rt, step)?;
        }
        Ok(self.current())
    }

    /// The step for which memory was made ready last.
    pub(super) fn step(&self) -> u64 {
        self.ready.load(Ordering::Acquire)
    }

    /// Does so for the first thread that comes to a step.
    fn prepare(&self, rt: &Runtime, step: u64) -> Result<()> {
        let mut memories = self.memories.lock();
        if self.ready.load(Ordering::Relaxed) == step {
            return Ok(());
        }
        let memories = &mut *memories;
        if memories.all[memories.current].lent > 0 {
            memories.current = match memories.all.iter().position(|memory| memory.lent == 0) {
                Some(free) => free,
                None => {
                    memories.all.push(self.another(rt)?);
                    memories.all.len() - 1
                }
            };
        }
        let start = memories.all[memories.current].start;
        self.current.store(start, Ordering::Relaxed);
        // Release: who sees the step sees the memory.
        self.ready.store(step, Ordering::Release);
        Ok(())
    }

    fn another(&self, rt: &Runtime) -> Result<Memory> {
        let arena = rt.arena_memory(self.bytes).map_err(|error| match error {
            Error::Memory { needed, available, reason } => {
                let reason = format!("{reason}; release results of earlier steps");
                Error::Memory { needed, available, reason }
            }
            other => other,
        })?;
        let start = arena.pointer();
        let (plain, plain_steps) = (None, Vec::new());
        Ok(Memory { start, arena: Some(arena), plain, plain_steps, lent: 0 })
    }

    /// Lends a tensor's part of the current memory, which holds the sums of `step`; `None` if a
    /// later step has begun. Where another type travels, `widen` converts it first.
    pub(super) fn lend(
        &self,
        step: u64,
        nth: usize,
        (offset, plain_offset): (u64, u64),
        widen: impl FnOnce(Target<'_>, Target<'static>),
    ) -> Option<*const u8> {
        let mut memories = self.memories.lock();
        if self.ready.load(Ordering::Relaxed) != step {
            return None;
        }
        let memories = &mut *memories;
        let memory = &mut memories.all[memories.current];
        memory.lent += 1;
        let Some(plain_bytes) = self.plain_bytes else {
            return Some(memory.start.wrapping_add(offset as usize).cast_const());
        };
        let plain = memory.plain.get_or_insert_with(|| Plain::new(plain_bytes));
        let target = plain.target();
        if memory.plain_steps.len() <= nth {
            memory.plain_steps.resize(nth + 1, 0);
        }
        if memory.plain_steps[nth] != step {
            memory.plain_steps[nth] = step;
            widen(target, self.current());
        }
        Some(target.source().start().wrapping_add(plain_offset as usize))
    }

    /// The place of a tensor in the first memory, in the tensor's type.
    pub(super) fn place(&self, (offset, plain_offset): (u64, u64)) -> *mut u8 {
        let mut memories = self.memories.lock();
        let memory = &mut memories.all[0];
        let Some(plain_bytes) = self.plain_bytes else {
            return memory.start.wrapping_add(offset as usize);
        };
        let plain = memory.plain.get_or_insert_with(|| Plain::new(plain_bytes));
        plain.target().source().start().wrapping_add(plain_offset as usize).cast_mut()
    }

    /// Takes back what was lent; false if nothing of this memory is.
    pub(super) fn release(&self, lent: *const u8) -> bool {
        let mut memories = self.memories.lock();
        let inside = |start: *const u8, bytes: u64| {
            (lent as u64).checked_sub(start as u64).is_some_and(|offset| offset < bytes)
        };
        let holds = |memory: &&mut Memory| match &memory.plain {
            Some(plain) => inside(plain.target().source().start(), plain.bytes),
            None => inside(memory.start, self.bytes),
        };
        match memories.all.iter_mut().find(holds) {
            Some(memory) if memory.lent > 0 => {
                memory.lent -= 1;
                true
            }
            _ => false,
        }
    }

    /// Lets go of memory that other ranks may still write to.
    pub(super) fn abandon(&self) {
        let mut memories = self.memories.lock();
        memories.all.drain(1..).filter_map(|memory| memory.arena).for_each(ArenaMemory::abandon);
        memories.current = 0;
    }
}
