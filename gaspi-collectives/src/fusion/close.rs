//! The end of a fused buffer: what is under way ends by itself or is given up.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gaspi_core::Deadline;

use super::bucket::Bucket;
use super::fused::Fused;
use crate::engine::{FINISH_LIMIT, GivenUp, Shared};
use crate::exec::executor::Driver;

/// How long one that was given up waits for members that still use its memory.
const QUIESCE_LIMIT: Duration = Duration::from_secs(5);

/// Ends what is under way. Afterwards this rank touches the memory no more.
pub(super) fn close(shared: &Shared, buckets: &[Bucket]) {
    let limit = Deadline::Never.at_most(FINISH_LIMIT);
    let active = || buckets.iter().filter(|bucket| bucket.completion.is_active());
    for bucket in active() {
        let _ = shared.wait(&bucket.executor, &bucket.completion, limit);
    }
    active().for_each(|bucket| bucket.executor.cancel(&bucket.completion));
    let limit = Deadline::Never.at_most(QUIESCE_LIMIT);
    for bucket in active() {
        let _ = shared.wait(&bucket.executor, &bucket.completion, limit);
    }
    let_go(shared, buckets);
}

fn let_go(shared: &Shared, buckets: &[Bucket]) {
    for bucket in buckets {
        shared.close(&bucket.executor);
        if bucket.is_still_used() {
            bucket.memory.abandon();
        }
    }
}

/// A fused buffer that was given up where nothing may wait. It ends as [`close`] has it end.
#[derive(Debug)]
pub(super) struct Closing {
    pub(super) fused: Arc<Fused>,
    /// When what had not ended was cancelled.
    pub(super) cancelled: Option<Instant>,
}

impl GivenUp for Closing {
    fn carry_on(&mut self, shared: &Shared, since: Duration) -> bool {
        let buckets = &self.fused.buckets;
        let active = || buckets.iter().filter(|bucket| bucket.completion.is_active());
        for bucket in active() {
            bucket.executor.progress(Driver::Other);
            bucket.executor.look_around();
        }
        if since >= FINISH_LIMIT && self.cancelled.is_none() {
            active().for_each(|bucket| bucket.executor.cancel(&bucket.completion));
            self.cancelled = Some(Instant::now());
        }
        let quiesces = self.cancelled.is_none_or(|at| at.elapsed() < QUIESCE_LIMIT);
        if quiesces && active().next().is_some() {
            return false;
        }
        let_go(shared, buckets);
        true
    }
}
