//! Handing tensors over, in few instructions: all that this needs of a tensor was found once, when
//! the fused buffer was made.
//!
//! Nothing here waits for another rank. What needs more than a few instructions and the copy, an
//! error, a wait for another thread, memory that is to be made, is left to [`Fused::submit`] before
//! anything has been changed.

use std::sync::atomic::{AtomicPtr, Ordering};

use gaspi_core::{Error, Result, Runtime, SharedData};

use super::countdown::Claim;
use super::fused::Fused;
use super::layout::{Layout, Part, Place};
use super::memory::BucketMemory;
use super::{Options, Tensor};
use crate::datatype::DataType;
use crate::kernel::stage::{Stage, Write};
use crate::kernel::{Source, Target, copy};

/// A tensor, as far as it is known when the fused buffer is made.
#[derive(Debug)]
pub(super) struct Record {
    /// Its bucket; none of them for a tensor without elements.
    pub(super) bucket: usize,
    pub(super) part: Part,
    /// Types of the program's tensor and of what travels.
    pub(super) ty: DataType,
    pub(super) wire: DataType,
    /// The address of its place in the memory of all buckets; 0 where another type travels.
    place: usize,
    /// Whether a submit at a scale of 1 is a copy.
    is_copied: bool,
    /// How what the program has comes to its place, if there is one contribution, or the sum of
    /// several, where another type travels.
    store: Stage,
    /// Where several contributions are added up until the last one comes; null where that is its
    /// place.
    sum: AtomicPtr<u8>,
    /// How the first of them comes there.
    begin: Stage,
    /// How a further one is added there.
    add: Stage,
}

/// The records of all tensors of a layout whose memory begins at this address. Where contributions
/// are added up is [noted](Record::add_up_at) later.
///
/// # Errors
/// [`Error::Unsupported`]: they cannot be combined as the options say.
pub(super) fn records(
    (tensors, options): (&[Tensor], &Options),
    layout: &Layout,
    start: usize,
) -> Result<Box<[Record]>> {
    let record = |(tensor, place): (&Tensor, &Option<Place>)| {
        let place = place.unwrap_or(Place { bucket: 0, nth: 0, first: 0, count: 0 });
        let bucket = layout.buckets.get(place.bucket).filter(|_| place.count > 0);
        let (ty, wire) = (tensor.ty, bucket.map_or(tensor.ty, |bucket| bucket.wire));
        let part = place.part(ty, wire);
        let at = bucket.filter(|_| ty == wire).map(|bucket| start + (bucket.at + part.at) as usize);
        Ok(Record {
            bucket: if place.count == 0 { usize::MAX } else { place.bucket },
            part,
            ty,
            wire,
            place: at.unwrap_or(0),
            is_copied: ty == wire && options.contributions == 1,
            store: Stage::new(ty, wire, Write::Store)?,
            sum: AtomicPtr::default(),
            begin: Stage::new(ty, ty, Write::Store)?,
            add: Stage::new(ty, ty, Write::Accumulate(options.operation))?,
        })
    };
    tensors.iter().zip(&layout.places).map(record).collect()
}

impl Fused {
    /// Hands over a tensor, times `scale`. Nothing here waits for another rank.
    ///
    /// # Errors
    /// Those of [`Fusion::submit`](super::Fusion::submit).
    ///
    /// # Safety
    /// `data` is readable for the bytes of the tensor.
    #[cold]
    pub(super) unsafe fn submit(
        &self,
        rt: &Runtime,
        tensor: usize,
        data: *const u8,
        scale: f64,
    ) -> Result<()> {
        let Some(found) = self.find(tensor)? else { return Ok(()) };
        if data.is_null() {
            return Err(Error::Null { what: "data" });
        }
        if let Some(error) = self.ends.failure() {
            return Err(error);
        }
        let (record, bucket) = (found.record, found.bucket);
        self.check_overlap(&found, data, "data")?;
        record.store.check(scale)?;
        let word = bucket.countdown.tensor(record.part.nth);
        let claim = bucket.claim(word, tensor)?;
        if !record.is_added_from(data, claim) {
            bucket.countdown.renounce(word, claim);
            return Err(Error::Unsupported { reason: added_from_place(tensor) });
        }
        bucket.prepare(rt, word, claim)?;
        let completes = bucket.countdown.completes_tensor(claim);
        let place = bucket.memory.place_of_step(claim.step, record.part);
        // SAFETY: the caller's promise.
        unsafe { record.contribute(place, data, (claim, completes), scale) };
        if completes {
            self.note_submitted(tensor, claim.step);
        }
        if bucket.countdown.finish(word, claim) {
            self.start(record.bucket)?;
        }
        Ok(())
    }

    /// Hands a tensor over as [`submit`](Fused::submit) does, without a wait, a lock that buckets
    /// share, an error or an allocation: `None`, and nothing has happened, where it takes one of
    /// them. Otherwise the bucket of which this was the last contribution, whose all-reduce is to
    /// be [started](Fused::start).
    ///
    /// # Safety
    /// `data` is readable for the bytes of the tensor.
    #[inline(always)]
    pub(super) unsafe fn try_submit(
        &self,
        tensor: usize,
        data: *const u8,
        scale: f64,
    ) -> Option<Option<usize>> {
        let record = self.records.get(tensor)?;
        if data.is_null() || !self.may_lie_at(record, data) || self.ends.has_failed() {
            return None;
        }
        if scale == 1.0 && record.is_copied {
            // SAFETY: the caller's promise.
            return unsafe { self.try_write::<true>((tensor, record), data, scale) };
        }
        if !record.store.takes(scale) {
            return None;
        }
        // SAFETY: the caller's promise.
        unsafe { self.try_write::<false>((tensor, record), data, scale) }
    }

    /// Claims a contribution and writes it, by a copy if it `IS_COPIED`. Inlined for both, since
    /// each keeps other values in registers.
    ///
    /// # Safety
    /// That of [`try_submit`](Fused::try_submit).
    #[inline(always)]
    unsafe fn try_write<const IS_COPIED: bool>(
        &self,
        (tensor, record): (usize, &Record),
        data: *const u8,
        scale: f64,
    ) -> Option<Option<usize>> {
        let bucket = self.buckets.get(record.bucket)?;
        let word = bucket.countdown.tensor(record.part.nth);
        let claim = bucket.countdown.claim(word).ok()?;
        let may_be = IS_COPIED || record.is_added_from(data, claim);
        if !may_be || !bucket.memory.has_for_step(claim.step) {
            bucket.countdown.renounce(word, claim);
            return None;
        }
        let place = bucket.memory.place_of_step(claim.step, record.part);
        // What is copied is the only contribution of its step.
        let completes = IS_COPIED || bucket.countdown.completes_tensor(claim);
        if IS_COPIED {
            // SAFETY: the caller's promise; what is copied has as many bytes as its place.
            let source = unsafe { Source::new(data, place.len()) };
            if !source.is_at(place) {
                copy(place, source);
            }
        } else {
            // SAFETY: the caller's promise.
            unsafe { record.contribute(place, data, (claim, completes), scale) };
        }
        if completes {
            self.note_submitted(tensor, claim.step);
        }
        Some(bucket.countdown.finish(word, claim).then_some(record.bucket))
    }

    /// Lets the other ranks know that a tensor has been submitted in a step.
    #[inline]
    fn note_submitted(&self, tensor: usize, step: u64) {
        let words = self.data.as_ref().map_or(&[][..], SharedData::own_status);
        if let Some(word) = words.get(tensor) {
            // Relaxed: nothing is read behind it.
            word.store(step as u32, Ordering::Relaxed);
        }
    }

    /// Whether a tensor may be where the program has it: apart from the memory of all buckets, or
    /// in its own place there.
    #[inline(always)]
    pub(super) fn may_lie_at(&self, record: &Record, memory: *const u8) -> bool {
        let (address, bytes) = (memory.addr(), record.part.plain_bytes as usize);
        let is_apart = address >= self.own.end || address.saturating_add(bytes) <= self.own.start;
        is_apart || record.is_place(memory)
    }
}

impl Record {
    /// Notes where several contributions are added up, if not in their place.
    pub(super) fn add_up_at(&mut self, memory: &BucketMemory) {
        let sum = memory.partial_sum(self.part).map(|sum| sum.source().start().cast_mut());
        self.sum = AtomicPtr::new(sum.unwrap_or_default());
    }

    /// Whether that is the place of the tensor in the memory of all buckets.
    #[inline(always)]
    pub(super) fn is_place(&self, memory: *const u8) -> bool {
        memory.addr() == self.place
    }

    /// Whether that can be contributed from there: the place holds what came before.
    #[inline(always)]
    fn is_added_from(&self, data: *const u8, claim: Claim) -> bool {
        claim.is_first || !self.is_place(data)
    }

    /// Writes a contribution, or adds it to those before it. Where another type travels, several
    /// are added up in the type of the tensor, and the last one takes the sum to its place.
    ///
    /// # Safety
    /// `data` is readable for the bytes of the tensor.
    #[inline(always)]
    unsafe fn contribute(
        &self,
        place: Target<'_>,
        data: *const u8,
        (claim, completes): (Claim, bool),
        scale: f64,
    ) {
        let bytes = self.part.plain_bytes as usize;
        // SAFETY: the caller's promise.
        let source = unsafe { Source::new(data, bytes) };
        // Relaxed: it does not change.
        let sum = self.sum.load(Ordering::Relaxed);
        if sum.is_null() {
            let stage = if claim.is_first { &self.store } else { &self.add };
            return stage.run(scale, place, source);
        }
        // SAFETY: memory of the bucket, which is kept as long as this. A thread that has claimed a
        // contribution to a tensor uses its part alone.
        let sum = unsafe { Target::new(sum, bytes) };
        if completes && !claim.is_first {
            self.add.run_through(scale, (sum.source(), source), &self.store, place);
        } else {
            let stage = if claim.is_first { &self.begin } else { &self.add };
            stage.run(scale, sum, source);
        }
    }
}

#[cold]
fn added_from_place(tensor: usize) -> String {
    format!(
        "tensor {tensor}: its place holds what was submitted before; further contributions come \
         from other memory"
    )
}
