//! A bucket at run time: its channel, its countdown, its memory, and the all-reduce between them.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};

use gaspi_core::{Error, Result, Runtime};

use super::countdown::{Claim, Countdown, Refusal};
use super::fused::Fused;
use super::memory::BucketMemory;
use crate::algorithms::Algorithm;
use crate::engine::Shared;
use crate::exec::buffers::{Arithmetic, Buffers};
use crate::exec::completion::{Completion, EndHook};
use crate::exec::executor::{Driver, Executor};
use crate::plan::{Plan, TURN_BYTES_MIN};

/// Tells a fused buffer of the end of one of its buckets.
#[derive(Debug)]
pub(super) struct BucketEnd {
    pub(super) fused: Weak<Fused>,
    pub(super) bucket: usize,
}

impl EndHook for BucketEnd {
    fn ended(&self, outcome: &Result<()>) {
        if let Some(fused) = self.fused.upgrade() {
            fused.bucket_ended(self.bucket, outcome);
        }
    }
}

#[derive(Debug)]
pub(super) struct Bucket {
    pub(super) executor: Arc<Executor>,
    pub(super) completion: Arc<Completion>,
    pub(super) plan: Arc<Plan>,
    pub(super) arithmetic: Arithmetic,
    pub(super) countdown: Countdown,
    pub(super) memory: BucketMemory,
}

/// What may be under way for each member until the next bucket begins. Measured for two and four
/// members.
const WINDOW_BYTES: u64 = 512 << 10;

impl Bucket {
    /// Begins a contribution to a tensor.
    ///
    /// # Errors
    /// [`Error::Number`] if it has been submitted in this step.
    pub(super) fn claim(&self, word: &AtomicU64, tensor: usize) -> Result<Claim> {
        loop {
            match self.countdown.claim(word) {
                Ok(claim) => return Ok(claim),
                Err(Refusal::TooOften) => return Err(submitted_too_often(tensor)),
                // For as long as it takes to add up a tensor.
                Err(Refusal::Busy) => std::thread::yield_now(),
            }
        }
    }

    /// All tensors have been submitted: starts the all-reduce, and carries it on as far as it goes
    /// without waiting.
    ///
    /// # Errors
    /// Those of [`Executor::start`].
    pub(super) fn start(&self, shared: &Shared) -> Result<()> {
        let memory = self.memory.of_step(self.countdown.ended() + 1);
        let buffers = Buffers { input: memory.source(), output: memory };
        self.executor.start(&self.completion, &self.plan, &self.arithmetic, buffers)?;
        self.executor.progress(Driver::Other);
        if self.completion.background && self.executor.active() > 0 {
            shared.notify_resting_background(&self.executor);
        }
        Ok(())
    }

    /// Bytes below which others are under way when it begins, with so many of its own; `None` if it
    /// takes no turns. By these algorithms all members notice what one of them has begun.
    pub(super) fn window(&self, bytes: u64) -> Option<u64> {
        use Algorithm::{HalvingDoubling, RecursiveDoubling, Ring};
        let spreads = matches!(self.plan.algorithm, Ring | HalvingDoubling | RecursiveDoubling);
        let members = self.executor.channel.ranks().len() as u64;
        (spreads && bytes >= TURN_BYTES_MIN).then_some(WINDOW_BYTES * members)
    }

    /// Whether another member has begun the step that has not begun here.
    pub(super) fn has_begun_elsewhere(&self) -> bool {
        self.executor.has_message()
    }

    /// Whether members that are gone keep it from beginning or ending.
    pub(super) fn check(&self) -> Result<()> {
        let channel = &self.executor.channel;
        let checked = if self.executor.active() > 0 { Ok(()) } else { channel.check() };
        checked.inspect_err(|error| channel.note_told(error))
    }

    /// Makes ready the memory of the step that has been claimed.
    pub(super) fn prepare(&self, rt: &Runtime, word: &AtomicU64, claim: Claim) -> Result<()> {
        self.memory.for_step(rt, claim.step).inspect_err(|_| self.countdown.renounce(word, claim))
    }

    /// Whether other members may use its memory although it has ended.
    pub(super) fn is_still_used(&self) -> bool {
        self.completion.is_active() || self.completion.is_still_used()
    }
}

#[cold]
fn submitted_too_often(tensor: usize) -> Error {
    let reason = "it has been submitted in this step as often as it may be, and the step has not \
                  ended; wait for it first"
        .to_owned();
    Error::Number { number: tensor as u64, reason: format!("tensor {tensor}: {reason}") }
}
