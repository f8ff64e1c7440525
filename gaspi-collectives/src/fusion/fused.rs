//! What the threads of a rank share of a fused buffer: submitting, waiting, ends.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use gaspi_core::sync::epoch;
use gaspi_core::{Deadline, Error, GroupId, Result, Runtime, SharedData, Timeout, may_wait};

use super::bucket::Bucket;
use super::close::{self, Closing};
use super::countdown::Claim;
use super::direct::Direct;
use super::ends::{Ends, OnEnd};
use super::layout::{Layout, Place};
use super::memory::Part;
use super::occupied::Occupied;
use super::stall::{Stalls, Subject, Watch};
use super::{Options, Tensor};
use crate::datatype::DataType;
use crate::engine::{Shared, TellsEnds};
use crate::exec::turns::{TakesTurns, Turn};
use crate::kernel::stage::{Stage, Write};
use crate::kernel::{Source, Target};

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
    pub(super) direct: Box<[Direct]>,
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
    pub(super) place: Place,
    pub(super) bucket: &'f Bucket,
    /// Types of the program's tensor and of what travels.
    pub(super) ty: DataType,
    pub(super) wire: DataType,
}

impl Found<'_> {
    /// Where it lies in the memories of its bucket.
    pub(super) fn part(&self) -> Part {
        let at = |ty: DataType| self.place.first * u64::from(ty.bytes());
        let (nth, plain_bytes) = (self.place.nth, self.bytes(self.ty));
        Part { nth, at: at(self.wire), plain_at: at(self.ty), plain_bytes }
    }

    fn bytes(&self, ty: DataType) -> u64 {
        self.place.count * u64::from(ty.bytes())
    }

    /// Its part of what travels.
    pub(super) fn part_of(&self, memory: Target<'static>) -> Target<'static> {
        memory.part(self.place.first * u64::from(self.wire.bytes()), self.bytes(self.wire))
    }

    /// How what the program has comes to its place.
    fn stage(&self, scale: f64, write: Write) -> Result<Stage> {
        Stage::new(self.ty, self.wire, scale, write)
    }

    /// The step in which it was submitted last, or the first one.
    pub(super) fn step(&self) -> u64 {
        self.bucket.countdown.submitted(self.place.nth).max(1)
    }
}

impl Fused {
    /// A tensor and its bucket; none if it has no elements.
    ///
    /// # Errors
    /// [`Error::Number`]: there is no such tensor.
    #[inline]
    pub(super) fn find(&self, tensor: usize) -> Result<Option<Found<'_>>> {
        match self.layout.places.get(tensor) {
            Some(Some(place)) => {
                let bucket = &self.buckets[place.bucket];
                let layout = &self.layout.buckets[place.bucket];
                let (ty, wire) = (layout.ty, layout.wire);
                Ok(Some(Found { tensor, place: *place, bucket, ty, wire }))
            }
            Some(None) => Ok(None),
            None => Err(self.no_tensor(tensor)),
        }
    }

    #[cold]
    fn no_tensor(&self, tensor: usize) -> Error {
        let reason = format!("there is no such tensor; {} were declared", self.tensors.len());
        Error::Number { number: tensor as u64, reason }
    }

    /// Hands over a tensor, times `scale`. Nothing here waits for another rank.
    ///
    /// # Errors
    /// Those of [`Fusion::submit`].
    ///
    /// # Safety
    /// `data` is readable for the bytes of the tensor.
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
        let (bucket, nth) = (found.bucket, found.place.nth);
        let is_own_place = self.check_overlap(&found, data, "data")?;
        // SAFETY: the caller's promise.
        let source = unsafe { Source::new(data, found.bytes(found.ty) as usize) };
        let store = found.stage(scale, Write::Store)?;
        let claim = bucket.claim(nth, tensor)?;
        bucket.prepare(rt, nth, claim)?;
        if self.write(&found, claim, store, (source, is_own_place), scale)? {
            self.start(found.place.bucket)?;
        }
        Ok(())
    }

    /// The same without a wait, a lock that buckets share, an error or an allocation: `None`, and
    /// nothing has happened, where it takes one of them. Otherwise the bucket of which this was the
    /// last contribution, whose all-reduce is to be [started](Fused::start).
    ///
    /// # Safety
    /// `data` is readable for the bytes of the tensor.
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn try_submit(
        &self,
        tensor: usize,
        data: *const u8,
        scale: f64,
    ) -> Option<Option<usize>> {
        let found = self.find(tensor).ok()??;
        if data.is_null() || self.ends.has_failed() {
            return None;
        }
        let (bucket, nth) = (found.bucket, found.place.nth);
        let is_own_place = self.check_overlap(&found, data, "data").ok()?;
        // SAFETY: the caller's promise.
        let source = unsafe { Source::new(data, found.bytes(found.ty) as usize) };
        let store = found.stage(scale, Write::Store).ok()?;
        let claim = bucket.countdown.claim(nth).ok()?;
        if !bucket.memory.has_for_step(claim.step) {
            bucket.countdown.renounce(nth, claim);
            return None;
        }
        let is_last = self.write(&found, claim, store, (source, is_own_place), scale).ok()?;
        Some(is_last.then_some(found.place.bucket))
    }

    /// Writes a contribution that has been claimed. True for the last one of the bucket.
    ///
    /// # Errors
    /// [`Error::Unsupported`]: it cannot be added, and has been renounced.
    #[inline]
    fn write(
        &self,
        found: &Found<'_>,
        claim: Claim,
        store: Stage,
        (source, is_own_place): (Source<'_>, bool),
        scale: f64,
    ) -> Result<bool> {
        let (bucket, nth) = (found.bucket, found.place.nth);
        let put = self.put(found, claim, store, (source, is_own_place), scale);
        put.inspect_err(|_| bucket.countdown.renounce(nth, claim))?;
        if bucket.countdown.completes_tensor(claim) {
            self.note_submitted(found.tensor, claim.step);
        }
        Ok(bucket.countdown.finish(nth, claim))
    }

    /// Stores a contribution, or adds it to those before it.
    ///
    /// # Errors
    /// [`Error::Unsupported`]: it cannot be added, and nothing has been written.
    #[inline]
    fn put(
        &self,
        found: &Found<'_>,
        claim: Claim,
        store: Stage,
        (source, is_own_place): (Source<'_>, bool),
        scale: f64,
    ) -> Result<()> {
        let bucket = found.bucket;
        let place = found.part_of(bucket.memory.of_step(claim.step));
        let (ty, add) = (found.ty, Write::Accumulate(self.options.operation));
        match bucket.memory.partial_sum(found.part()) {
            Some(sum) if claim.is_first => {
                Stage::new(ty, ty, scale, Write::Store)?.run(sum, source);
            }
            Some(sum) if bucket.countdown.completes_tensor(claim) => {
                let round = found.stage(1.0, Write::Store)?;
                Stage::new(ty, ty, scale, add)?.run_through(sum.source(), source, &round, place);
            }
            Some(sum) => Stage::new(ty, ty, scale, add)?.run(sum, source),
            None if claim.is_first => store.run(place, source),
            None if is_own_place => {
                return Err(Error::Unsupported { reason: added_from_place(found.tensor) });
            }
            None => found.stage(scale, add)?.run(place, source),
        }
        Ok(())
    }

    /// Lets the other ranks know that a tensor has been submitted in a step.
    #[inline]
    pub(super) fn note_submitted(&self, tensor: usize, step: u64) {
        let words = self.data.as_ref().map_or(&[][..], SharedData::own_status);
        if let Some(word) = words.get(tensor) {
            // Relaxed: nothing is read behind it.
            word.store(step as u32, Ordering::Relaxed);
        }
    }

    /// Whether what the program gives for a tensor lies in the tensor's own place in the memory of
    /// the buckets.
    ///
    /// # Errors
    /// [`Error::Size`]: it overlaps that memory elsewhere.
    #[inline]
    pub(super) fn check_overlap(
        &self,
        found: &Found<'_>,
        memory: *const u8,
        what: &str,
    ) -> Result<bool> {
        let (address, bytes) = (memory.addr(), found.bytes(found.ty));
        let end = address.saturating_add(bytes as usize);
        if address >= self.own.end || end <= self.own.start {
            return Ok(false);
        }
        let layout = &self.layout.buckets[found.place.bucket];
        let place = self.own.start + (layout.at + found.part().at) as usize;
        if found.ty == found.wire && address == place {
            return Ok(true);
        }
        Err(overlaps(found.tensor, bytes, what))
    }

    /// Whether the sum of a tensor may be written there.
    ///
    /// # Errors
    /// [`Error::Size`]: it overlaps memory of the buckets, also what is lent, elsewhere than in the
    /// place of the tensor.
    pub(super) fn check_result(&self, found: &Found<'_>, result: *const u8) -> Result<()> {
        if result.is_null() || self.check_overlap(found, result, "result")? {
            return Ok(());
        }
        let (address, bytes) = (result.addr(), found.bytes(found.ty));
        let range = address..address.saturating_add(bytes as usize);
        let is_allowed =
            !self.occupied.overlaps(&range) || found.bucket.memory.is_place(found.part(), result);
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
        self.shared.active.begin_now(&self.turns, Some(found.place.bucket));
        let pending = || self.pending(found);
        let ended = || self.outcome(found, step);
        let watch = Watch::begin(self, Subject::Bucket(found.place.bucket), step);
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
        let bucket = &self.layout.buckets[found.place.bucket];
        let Found { tensor, place, .. } = *found;
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
        let place = place.bucket;
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
        // SAFETY: the caller's promise.
        let target = unsafe { Target::new(to, found.bytes(found.ty) as usize) };
        let sum = found.part_of(found.bucket.memory.of_step(step)).source();
        Stage::new(found.wire, found.ty, 1.0, Write::Store)?.run(target, sum);
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

#[cold]
fn added_from_place(tensor: usize) -> String {
    format!(
        "tensor {tensor}: its place holds what was submitted before; further contributions come \
         from other memory"
    )
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
