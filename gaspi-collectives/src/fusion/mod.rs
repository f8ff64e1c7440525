//! Fused buffers: many tensors, handed over in any order, are summed over all ranks in few
//! all-reduces, while the program still computes the others.
//!
//! All ranks declare the same tensors once. They are laid out in buckets ([`layout`]), each of
//! which has a channel of its own ([`create`]). Whoever submits the last tensor of a bucket
//! ([`countdown`]) starts its all-reduce, or has it wait until fewer are under way. Nothing but
//! that is ever sent.
//!
//! Invariant: a rank writes into the memory of a bucket only between the end of a step and its own
//! last submit of the next, and never where a result is lent ([`memory`]).

mod bucket;
mod close;
#[doc(hidden)]
pub mod countdown;
mod create;
mod declaration;
mod ends;
mod fused;
#[doc(hidden)]
pub mod handles;
mod layout;
mod memory;
mod occupied;
mod stall;
mod submit;

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gaspi_core::sync::epoch;
use gaspi_core::{Error, GroupId, Result, Runtime, Timeout, may_wait};

use crate::engine::{Engine, TellsEnds};
use crate::kernel::Target;
use crate::kernel::stage::{Stage, Write};
pub use declaration::{Options, Order, Tensor};
pub use ends::OnEnd;
use fused::{Found, Fused};
use stall::{Subject, Watch};

/// Many tensors that are summed over the ranks of a group in few all-reduces.
///
/// Each step, every rank submits each tensor, in any order and from any thread, and waits for those
/// that it needs. A tensor can be submitted again when its bucket has ended.
///
/// Dropping it frees it. What is under way may still end by itself for a moment (100 ms), then it
/// is given up, which is an error on the other ranks. The drop returns when no other rank can use
/// the memory any more, or after 5 s, when the memory stays as it is. In a function that is told of
/// ends it does not wait: the library's thread does all that behind it. In a forked child it does
/// nothing: the fused buffer is the parent's, and calls on it are [`Error::NotInitialised`].
#[derive(Debug)]
#[must_use = "dropping a fused buffer frees it"]
pub struct Fusion<'r> {
    rt: &'r Runtime,
    fused: Arc<Fused>,
    /// Whether dropping this frees it.
    frees: bool,
}

impl Drop for Fusion<'_> {
    fn drop(&mut self) {
        if self.frees && self.fused.shared.is_of_parent() {
            // Nor does it drop what its parent's threads may have locked.
            std::mem::forget(Arc::clone(&self.fused));
        } else if self.frees {
            if epoch::is_in_callback() {
                // It ends with the rank if there is no thread.
                let _ = Engine::of(self.rt).start_background_thread();
            }
            self.fused.close();
        }
    }
}

impl<'r> Fusion<'r> {
    /// Makes a fused buffer, together with all ranks of the group, which declare the same tensors
    /// with the same options. After a timeout, call again with the same arguments to continue.
    ///
    /// # Errors
    /// [`Error::Mismatch`] names the first tensor, or an option, in which declarations differ, and
    /// the ranks;
    /// [`Error::Number`] if there are no tensors, or too many elements; [`Error::Unsupported`] if
    /// the operation or the type does not serve; [`Error::Memory`] if the buckets do not fit; and
    /// those of [`run`](crate::run).
    pub fn create(
        rt: &'r Runtime,
        tensors: &[Tensor],
        group: GroupId,
        options: &Options,
        timeout: Timeout,
    ) -> Result<Fusion<'r>> {
        let fused = create::create(rt, tensors, group, options, timeout)?;
        Ok(Fusion { rt, fused, frees: true })
    }

    /// A tensor of this process's, none if it has no elements.
    fn find(&self, tensor: usize) -> Result<Option<Found<'_>>> {
        self.fused.shared.refuse_child()?;
        self.fused.find(tensor)
    }

    /// Writes `data` times `scale` to the place of a tensor. The last tensor of a bucket starts its
    /// all-reduce, or hands it over to begin when fewer bytes are under way. Never waits for other
    /// ranks. A tensor without elements need not be submitted.
    ///
    /// # Errors
    /// [`Error::Number`]: there is no such tensor, or it has been submitted in this step;
    /// [`Error::Null`]; [`Error::Size`]: the data overlaps the fused buffer elsewhere than in the
    /// [place](Fusion::tensor_ptr) of the tensor; [`Error::Unsupported`]: integers by a scale that
    /// is no integer, or a second contribution from the place of the tensor, which holds the first;
    /// and what has ended the fused buffer.
    ///
    /// # Safety
    /// `data` is readable for the bytes of the tensor, in its type, and nobody writes there during
    /// the call.
    pub unsafe fn submit(&self, tensor: usize, data: *const u8, scale: f64) -> Result<()> {
        self.fused.shared.refuse_child()?;
        // SAFETY: the caller's promise.
        match unsafe { self.fused.try_submit(tensor, data, scale) } {
            Some(None) => Ok(()),
            Some(Some(bucket)) => self.fused.start(bucket),
            // SAFETY: the caller's promise.
            None => unsafe { self.fused.submit(self.rt, tensor, data, scale) },
        }
    }

    /// Whether the step has ended in which the tensor was submitted last. Copies the sum to
    /// `result` then, unless that is null.
    ///
    /// # Errors
    /// As [`wait`](Fusion::wait), but for the timeout.
    ///
    /// # Safety
    /// `result` is null or writable for the bytes of the tensor.
    pub unsafe fn test(&self, tensor: usize, result: *mut u8) -> Result<bool> {
        // SAFETY: the caller's promise.
        match unsafe { self.wait(tensor, result, Timeout::Test) } {
            Ok(()) => Ok(true),
            Err(error) if error.is_timeout() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits until the step has ended in which the tensor was submitted last, and copies the sum to
    /// `result`, unless that is null.
    ///
    /// # Errors
    /// [`Error::Timeout`]: all goes on; [`Error::Size`], and nothing is written: `result` overlaps
    /// the fused buffer elsewhere than in the [place](Fusion::tensor_ptr) of the tensor; and what
    /// has ended the fused buffer.
    ///
    /// # Safety
    /// `result` is null or writable for the bytes of the tensor.
    pub unsafe fn wait(&self, tensor: usize, result: *mut u8, timeout: Timeout) -> Result<()> {
        let Some(found) = self.find(tensor)? else { return Ok(()) };
        self.fused.check_result(&found, result)?;
        let step = self.fused.wait(&found, timeout)?;
        if result.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.fused.copy_out(&found, step, result) }
    }

    /// Waits like [`wait`](Fusion::wait) and lends the sum where it lies: it does not change until
    /// it is [released](Fusion::release), as often as it was lent. For a tensor without elements a
    /// pointer that may not be followed.
    ///
    /// # Errors
    /// As [`wait`](Fusion::wait).
    pub fn result(&self, tensor: usize, timeout: Timeout) -> Result<*const u8> {
        let Some(found) = self.find(tensor)? else {
            return Ok(std::ptr::without_provenance(layout::ALIGNMENT as usize));
        };
        let (record, memory) = (found.record, &found.bucket.memory);
        let (part, stage) = (record.part, Stage::new(record.wire, record.ty, Write::Store)?);
        let read = |to: Target<'_>, from: Target<'static>| {
            stage.run(1.0, to, from.part(part.at, part.bytes).source());
        };
        loop {
            let step = self.fused.wait(&found, timeout)?;
            let lent = memory.lend(step, part, read);
            if found.step() == step {
                return Ok(lent);
            }
            // Another thread has submitted the tensor meanwhile: that step's sum is the last.
            memory.release(part, lent);
        }
    }

    /// Takes back what [`result`](Fusion::result) has lent.
    ///
    /// # Errors
    /// [`Error::Number`]: nothing of the tensor is lent there.
    pub fn release(&self, tensor: usize, lent: *const u8) -> Result<()> {
        match self.find(tensor)? {
            Some(found) if !found.bucket.memory.release(found.record.part, lent) => {
                let reason = format!("no result of tensor {tensor} is lent at {lent:p}");
                Err(Error::Number { number: tensor as u64, reason })
            }
            _ => Ok(()),
        }
    }

    /// The place of a tensor in the fused buffer, aligned to 64 bytes and always the same.
    /// Submitting it copies nothing, or just converts where another type travels. The program may
    /// write there from the end of a step until it submits the tensor again. Unless results of the
    /// bucket are lent when a step begins, its sum comes there too; where another type travels only
    /// if it is the result of [`wait`](Fusion::wait). A result that is lent there changes if the
    /// program writes there.
    ///
    /// # Errors
    /// [`Error::Number`]: there is no such tensor.
    pub fn tensor_ptr(&self, tensor: usize) -> Result<*mut u8> {
        Ok(match self.find(tensor)? {
            Some(found) => found.bucket.memory.place(found.record.part),
            None => std::ptr::without_provenance_mut(layout::ALIGNMENT as usize),
        })
    }

    /// Waits until a bucket has ended that was not given here since: each once in a step.
    ///
    /// # Errors
    /// As [`wait`](Fusion::wait); [`Error::Unsupported`] at once if no tensor has elements.
    pub fn next(&self, timeout: Timeout) -> Result<usize> {
        let fused = &*self.fused;
        fused.shared.refuse_child()?;
        if let Some(fetched) = fused.ends.fetch() {
            return fetched;
        }
        may_wait(timeout, "waiting for a bucket")?;
        let Some(first) = fused.buckets.first() else {
            let reason = "no tensor has elements, so there are no buckets".to_owned();
            return Err(Error::Unsupported { reason });
        };
        fused.waiting.fetch_add(1, Ordering::Relaxed);
        let group = fused.group;
        let pending =
            || Error::Timeout { pending: format!("a bucket of a fused buffer of {group}") };
        let ended = || fused.ends.fetch().or_else(|| first.check().err().map(Err));
        let watch = Watch::begin(fused, Subject::Any, fused.ends.count());
        let found = fused.wait_on(first, watch, timeout.deadline(), ended, pending);
        fused.waiting.fetch_sub(1, Ordering::Relaxed);
        found
    }

    /// Has a function told of each bucket that ends, or fails, by whatever thread finds out, one of
    /// the library among them. It may submit, test and take results of what has ended. All else
    /// that may wait is [`Error::Unsupported`] there at once and begins nothing, unless its timeout
    /// is [`Timeout::Test`]. Fused buffers and operations that are dropped there end behind it.
    ///
    /// A former function is not called any more when this returns, and no thread is in it. Called
    /// from within a function that is told of ends, this does not wait for the calling thread, nor
    /// for threads that have come here before, from within one too, and still wait: so of several
    /// that do so at once one waits for the others, and none for ever that holds nothing which the
    /// function waits for, such as a lock.
    ///
    /// # Errors
    /// [`Error::System`]: the thread of the library cannot be started.
    pub fn on_end(&self, function: Option<Arc<OnEnd>>) -> Result<()> {
        self.fused.shared.refuse_child()?;
        if function.is_some() {
            Engine::of(self.rt).start_background_thread()?;
            self.register_ends();
        }
        self.fused.set_function(function);
        Ok(())
    }

    /// A descriptor that is readable while [`next`](Fusion::next) has something to tell. It belongs
    /// to the fused buffer.
    ///
    /// # Errors
    /// Descriptors have run out.
    pub fn descriptor(&self) -> Result<RawFd> {
        self.fused.shared.refuse_child()?;
        self.register_ends();
        self.fused.ends.descriptor()
    }

    /// Has the library's thread tell the program of ends, and warn of buckets that do not end.
    fn register_ends(&self) {
        let fused: Arc<dyn TellsEnds> = Arc::clone(&self.fused) as Arc<dyn TellsEnds>;
        self.fused.shared.register_ends(&fused);
    }

    /// Says after another time than that of GASPI_STALL_WARNING what a bucket waits for; `None`:
    /// never. For tests.
    #[doc(hidden)]
    pub fn warn_of_stalls_after(&self, time: Option<Duration>) {
        self.fused.stalls.set_after(time);
    }

    /// Number of buckets.
    pub fn buckets(&self) -> usize {
        self.fused.buckets.len()
    }

    /// The bucket of a tensor.
    ///
    /// # Errors
    /// [`Error::Number`]: there is no such tensor, or it has no elements.
    pub fn bucket(&self, tensor: usize) -> Result<usize> {
        match self.find(tensor)? {
            Some(found) => Ok(found.record.bucket),
            None => {
                let reason = format!("tensor {tensor} has no elements and so no bucket");
                Err(Error::Number { number: tensor as u64, reason })
            }
        }
    }
}
