//! What was unlinked by a thread that may not wait until nobody uses it any more.
//!
//! Handlers of frames replace entries of tables that other threads, and callers further up their
//! own stack, may be reading. They leave the old entry here. The progress thread frees it once
//! every thread that was inside has come out.

use super::{next_epoch, slots};
use crate::sync::Mutex;
use std::any::Any;
use std::fmt;
use std::sync::Arc;

type Item = Arc<dyn Any + Send + Sync>;

/// What waits to be freed.
#[derive(Default)]
pub(crate) struct Retired(Mutex<Items>);

#[derive(Default)]
struct Items {
    /// Unlinked since the last look.
    fresh: Vec<Item>,
    /// With the epoch behind which they were unlinked.
    aging: Vec<(u64, Vec<Item>)>,
}

impl Retired {
    /// Leaves something that has been unlinked; true if nothing was here, so that the progress
    /// thread has to be told. Does not wait.
    #[must_use]
    pub(crate) fn leave(&self, item: Arc<impl Any + Send + Sync>) -> bool {
        let mut items = self.0.lock();
        let was_empty = items.fresh.is_empty() && items.aging.is_empty();
        items.fresh.push(item);
        was_empty
    }

    /// Frees what nobody can be using any more; true if nothing is left. Does not wait.
    pub(crate) fn free(&self) -> bool {
        let (free, is_empty) = {
            let mut items = self.0.lock();
            if items.fresh.is_empty() && items.aging.is_empty() {
                return true;
            }
            let fresh = std::mem::take(&mut items.fresh);
            if !fresh.is_empty() {
                items.aging.push((next_epoch(), fresh));
            }
            let slots = slots();
            let is_used = |epoch: u64| slots.iter().any(|slot| slot.is_inside_before(epoch));
            let free: Vec<_> = items.aging.extract_if(.., |(epoch, _)| !is_used(*epoch)).collect();
            (free, items.aging.is_empty())
        };
        // Without the lock: freeing unmaps memory.
        drop(free);
        is_empty
    }
}

impl fmt::Debug for Retired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let items = self.0.lock();
        f.debug_struct("Retired")
            .field("fresh", &items.fresh.len())
            .field("aging", &items.aging.len())
            .finish()
    }
}
