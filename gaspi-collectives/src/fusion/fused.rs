//! What the threads of a rank share of a fused buffer: submitting, waiting, ends.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use gaspi_core::sync::epoch;
use gaspi_core::{Deadline, Error, GroupId, Result, SharedData, Timeout, may_wait};

use super::bucket::Bucket;
use super::close::{self, Closing};
use super::ends::{Ends, OnEnd};
use super::layout::Layout;
use super::occupied::Occupied;
use super::stall::{Stalls, Subject, Watch};
use super::submit::Record;
use super::{Options, Tensor};
use crate::engine::{Shared, TellsEnds};
use crate::exec::turns::{TakesTurns, Turn};
use crate::kernel::Target;
use crate::kernel::stage::{Stage, Write};

/// What the threads of a rank share of a fused buffer.
pub(crate) struct Fused {
    pub(super) group: GroupId,
    /// Itself, whose buckets take turns.
    pub(super) turns: Weak<dyn TakesTurns>,
    pub(super) shared: Arc<Shared>,
    pub(super) tensors: Box<[Tensor]>,
    pub(super) options: Options,
    pub(super) layout: Layout,
    pub(super) buckets: Box<[Bucket]>,
    pub(super) ends: Ends,
    /// Threads that wait for any bucket.
    pub(super) waiting: AtomicUsize,
    /// The memory of all buckets, and words by which the other ranks find out what this one has
    /// submitted: by tensor the step in which it has been last, without its upper bits.
    pub(super) data: Option<SharedData>,
    pub(super) stalls: Stalls,
    /// By tensor.
    pub(super) records: Box<[Record]>,
    /// The addresses of the memory of all buckets.
    pub(super) own: Range<usize>,
    /// Those of all other memory of the buckets.
    pub(super) occupied: Arc<Occupied>,
}

impl fmt::Debug for Fused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fused")
            .field("group", &self.group)
            .field("tensors", &self.tensors.len())
            .field("buckets", &self.buckets.len())
            .finish_non_exhaustive()
    }
}

/// A tensor that a bucket holds.
#[derive(Clone, Copy)]
pub(super) struct Found<'f> {
    tensor: usize,
    pub(super) record: &'f Record,
    pub(super) bucket: &'f Bucket,
}

impl Found<'_> {
    /// The step in which it was submitted last, or the first one.
    #[inline]
    pub(super) fn step(&self) -> u64 {
        self.bucket.countdown.submitted(self.record.part.nth).max(1)
    }

    /// Whether that has ended.
    #[inline]
    fn has_ended(&self) -> bool {
        self.bucket.countdown.ended() >= self.step()
    }
}

impl Fused {
    /// A tensor and its bucket; none if it has no elements.
    ///
    /// # Errors
    /// [`Error::Number`]: there is no such tensor.
    #[inline]
    pub(super) fn find(&self, tensor: usize) -> Result<Option<Found<'_>>> {
        let record = self.records.get(tensor).ok_or_else(|| self.no_tensor(tensor))?;
        let has_elements = record.part.bytes > 0;
        Ok(has_elements.then(|| Found { tensor, record, bucket: &self.buckets[record.bucket] }))
    }

    #[cold]
    fn no_tensor(&self, tensor: usize) -> Error {
        let reason = format!("there is no such tensor; {} were declared", self.tensors.len());
        Error::Number { number: tensor as u64, reason }
    }

    /// # Errors
    /// [`Error::Size`]: what the program gives for a tensor overlaps the memory of the buckets,
    /// elsewhere than in the tensor's own place.
    pub(super) fn check_overlap(
        &self,
        found: &Found<'_>,
        memory: *const u8,
        what: &str,
    ) -> Result<()> {
        if self.may_lie_at(found.record, memory) {
            return Ok(());
        }
        Err(overlaps(found.tensor, found.record.part.plain_bytes, what))
    }

    /// Whether the sum of a tensor may be written there.
    ///
    /// # Errors
    /// [`Error::Size`]: it overlaps memory of the buckets, also what is lent, elsewhere than in the
    /// place of the tensor.
    pub(super) fn check_result(&self, found: &Found<'_>, result: *const u8) -> Result<()> {
        self.check_overlap(found, result, "result")?;
        let (record, bytes) = (found.record, found.record.part.plain_bytes);
        let range = result.addr()..result.addr().saturating_add(bytes as usize);
        let is_allowed = result.is_null()
            || record.is_place(result)
            || !self.occupied.overlaps(&range)
            || found.bucket.memory.is_place(record.part, result);
        if is_allowed { Ok(()) } else { Err(overlaps(found.tensor, bytes, "result")) }
    }

    /// Starts the all-reduce of a bucket, all contributions to which have been made, or has it wait
    /// for its turn.
    #[cold]
    #[inline(never)]
    pub(super) fn start(&self, bucket: usize) -> Result<()> {
        let active = &self.shared.active;
        let waiting = self.turn(bucket).and_then(|turn| active.hand_over(turn));
        let started = if waiting.is_none() { self.begin_bucket(bucket) } else { Ok(()) };
        active.begin_next();
        if let Some(waiting) = waiting.filter(|_| active.turns.has_waiting()) {
            let executor = &self.buckets[bucket].executor;
            if self.options.background {
                // What it waits for may be carried on by the program alone.
                self.shared.notify_resting_background(executor);
            }
            if waiting == 1 {
                // Threads that sleep look at it sooner than they meant to.
                executor.channel.wake_waiters();
            }
        }
        self.tell();
        started
    }

    /// The turn of a bucket that takes turns.
    fn turn(&self, index: usize) -> Option<Turn> {
        let bucket = &self.buckets[index];
        let layout = &self.layout.buckets[index];
        let (of, step) = (Weak::clone(&self.turns), bucket.countdown.ended() + 1);
        let bytes = layout.elements * u64::from(layout.wire.bytes());
        bucket.window(bytes).map(|window| Turn { of, index, step, bytes, window })
    }

    fn begin_bucket(&self, bucket: usize) -> Result<()> {
        let begun = self.buckets[bucket].start(&self.shared);
        begun.inspect_err(|error| self.bucket_ended(bucket, &Err(error.clone())))
    }

    /// The all-reduce of a bucket has ended. Called while its executor is locked.
    pub(super) fn bucket_ended(&self, index: usize, outcome: &Result<()>) {
        let bucket = &self.buckets[index];
        if outcome.is_ok() {
            bucket.countdown.end();
        }
        self.ends.add(index, outcome);
        if self.ends.has_untold() {
            self.shared.notify_ends(&bucket.executor);
        } else if outcome.is_err() || self.waiting.load(Ordering::Relaxed) > 0 {
            bucket.executor.channel.wake_waiters();
        }
    }

    /// Tells the function of the program of ends, unless this thread is in it.
    fn tell(&self) {
        if !self.ends.has_untold() {
            return;
        }
        let Some(_inside) = epoch::enter_callback() else { return };
        self.ends.tell();
    }

    /// Has a function told of ends, or none any more.
    pub(super) fn set_function(&self, function: Option<Arc<OnEnd>>) {
        self.ends.set_function(function);
    }

    /// Whether a wait for a tensor is over at once. False where it takes a closer look.
    #[inline(always)]
    pub(super) fn has_sum(&self, tensor: usize) -> bool {
        let Some(record) = self.records.get(tensor) else { return false };
        let Some(bucket) = self.buckets.get(record.bucket) else { return false };
        record.part.bytes > 0 && Found { tensor, record, bucket }.has_ended()
    }

    /// Whether the step has ended in which a tensor was submitted last.
    fn outcome(&self, found: &Found<'_>, step: u64) -> Option<Result<()>> {
        if found.bucket.countdown.ended() >= step {
            return Some(Ok(()));
        }
        if let Some(error) = self.ends.failure() {
            return Some(Err(error));
        }
        found.bucket.check().err().map(|error| {
            // It may have ended just before.
            if found.bucket.countdown.ended() >= step { Ok(()) } else { Err(error) }
        })
    }

    /// Waits until the step has ended in which a tensor was submitted last. Returns that step.
    pub(super) fn wait(&self, found: &Found<'_>, timeout: Timeout) -> Result<u64> {
        let step = found.step();
        if let Some(outcome) = self.outcome(found, step) {
            return outcome.map(|()| step);
        }
        may_wait(timeout, "waiting for a tensor")?;
        self.shared.active.begin_now(&self.turns, Some(found.record.bucket));
        let pending = || self.pending(found);
        let ended = || self.outcome(found, step);
        let watch = Watch::begin(self, Subject::Bucket(found.record.bucket), step);
        self.wait_on(found.bucket, watch, timeout.deadline(), ended, pending).map(|()| step)
    }

    /// Waits on a bucket, and tells the program of ends meanwhile, and people of what is missing.
    pub(super) fn wait_on<T>(
        &self,
        bucket: &Bucket,
        mut watch: Watch<'_>,
        deadline: Deadline,
        mut ended: impl FnMut() -> Option<Result<T>>,
        pending: impl Fn() -> Error,
    ) -> Result<T> {
        let mut wait = None;
        loop {
            self.tell();
            let attempt = || match ended() {
                None if self.ends.has_untold() && !epoch::is_in_callback() => Some(Ok(None)),
                None if watch.is_answered() => Some(Ok(None)),
                other => other.map(|ended| ended.map(Some)),
            };
            let limit = watch.limit(deadline);
            let waited = self.shared.wait_until(&bucket.executor, limit, attempt, &pending);
            match waited {
                Ok(Some(ended)) => {
                    self.tell();
                    return Ok(ended);
                }
                Ok(None) => watch.look(),
                Err(error) if error.is_timeout() && !deadline.passed() => {
                    let channel = &bucket.executor.channel;
                    wait.get_or_insert_with(|| channel.long_wait(watch.began(), deadline));
                    watch.look();
                }
                Err(error) => {
                    if error.is_timeout() {
                        watch.look();
                    }
                    self.tell();
                    return Err(error);
                }
            }
        }
    }

    /// What a tensor waits for, in words.
    #[cold]
    fn pending(&self, found: &Found<'_>) -> Error {
        let bucket = &self.layout.buckets[found.record.bucket];
        let Found { tensor, record, .. } = *found;
        let step = found.step();
        let missing = bucket.tensors.iter().enumerate();
        let missing = missing.filter(|(nth, _)| !found.bucket.countdown.is_complete(*nth, step));
        let missing: Vec<String> = missing.map(|(_, tensor)| tensor.to_string()).collect();
        let group = self.group;
        let pending = match &missing[..] {
            [] => found.bucket.executor.pending(&found.bucket.completion),
            [..] if missing.len() <= 4 => {
                format!("this rank has not submitted tensor {}", missing.join(", "))
            }
            [first, ..] => {
                format!("this rank has not submitted tensor {first} and {} more", missing.len() - 1)
            }
        };
        let place = record.bucket;
        let pending =
            format!("tensor {tensor} of a fused buffer of {group}, bucket {place}: {pending}");
        Error::Timeout { pending }
    }

    /// Copies the sum of a tensor, of the step in which it was submitted last, to the program's
    /// memory.
    ///
    /// # Safety
    /// `to` is writable for the bytes of the tensor.
    pub(super) unsafe fn copy_out(&self, found: &Found<'_>, step: u64, to: *mut u8) -> Result<()> {
        let record = found.record;
        // SAFETY: the caller's promise.
        let target = unsafe { Target::new(to, record.part.plain_bytes as usize) };
        let sum = found.bucket.memory.of_step(step).part(record.part.at, record.part.bytes);
        Stage::new(record.wire, record.ty, Write::Store)?.run(1.0, target, sum.source());
        Ok(())
    }
}

impl Fused {
    /// Ends what is under way, and tells nobody. In a function of the program that may not wait it
    /// ends later.
    pub(super) fn close(self: &Arc<Fused>) {
        let is_in_callback = epoch::is_in_callback();
        if is_in_callback {
            // Nor does it wait for other threads that are in a function.
            drop(self.ends.replace_function(None));
        } else {
            self.set_function(None);
        }
        self.shared.active.begin_now(&self.turns, None);
        if is_in_callback {
            let closing = Closing { fused: Arc::clone(self), cancelled: None };
            self.shared.end_later(Box::new(closing));
        } else {
            close::close(&self.shared, &self.buckets);
        }
    }
}

#[cold]
fn overlaps(tensor: usize, size: u64, what: &str) -> Error {
    let reason = format!(
        "the {what} of tensor {tensor} overlaps the memory of the fused buffer, but is not the \
         tensor's own place there"
    );
    Error::Size { size, reason }
}

impl TakesTurns for Fused {
    fn begin(&self, index: usize) {
        // Who waits for it, or asks for ends, is told of a failure.
        let _ = self.begin_bucket(index);
    }

    fn is_due(&self, index: usize) -> bool {
        self.ends.has_failed() || self.buckets[index].has_begun_elsewhere()
    }

    fn has_ended(&self, index: usize, step: u64) -> bool {
        self.ends.has_failed() || self.buckets[index].countdown.ended() >= step
    }

    fn give_up(&self, index: usize) {
        self.bucket_ended(index, &Err(Error::NotInitialised));
    }
}

impl TellsEnds for Fused {
    fn tell_ends(&self) {
        self.tell();
    }

    fn look_for_stalls(&self) {
        self.warn_of_stalls();
    }
}
