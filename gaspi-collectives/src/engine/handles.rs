//! Operations that have handles.

use gaspi_core::sync::Mutex;
use std::sync::Arc;

use gaspi_core::{Error, Result};

use super::Engine;
use crate::exec::buffers::{Arithmetic, Buffers};
use crate::exec::completion::Completion;
use crate::exec::executor::Executor;
use crate::exec::pack::PackBuffers;
use crate::plan::Plan;

/// An operation that has a handle.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) completion: Arc<Completion>,
    pub(crate) executor: Arc<Executor>,
    /// What a restart needs; `None` for an operation that runs once.
    pub(crate) prepared: Option<Prepared>,
    /// Memory for blocks that need packing. Held while the operation is started and while its
    /// result is unpacked.
    pub(crate) packed: Mutex<PackBuffers>,
    /// Whether there is a result to unpack.
    pub(crate) unpacks: bool,
}

impl Drop for Entry {
    fn drop(&mut self) {
        if self.completion.is_still_used() {
            let packed = self.packed.get_mut();
            std::mem::take(packed).abandon();
        }
    }
}

/// A prepared operation.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) plan: Arc<Plan>,
    pub(crate) arithmetic: Arithmetic,
    pub(crate) buffers: Buffers<'static>,
}

#[derive(Debug, Default)]
pub(super) struct Handles {
    /// Generation and entry.
    slots: Vec<(u32, Option<Arc<Entry>>)>,
    free: Vec<usize>,
}

impl Engine {
    /// Gives an operation a handle.
    pub(crate) fn register(&self, entry: Entry) -> u64 {
        let mut handles = self.shared.handles.lock();
        let index = handles.free.pop().unwrap_or_else(|| {
            handles.slots.push((0, None));
            handles.slots.len() - 1
        });
        let slot = &mut handles.slots[index];
        slot.0 = slot.0.wrapping_add(1).max(1);
        slot.1 = Some(Arc::new(entry));
        u64::from(slot.0) << 32 | index as u64
    }

    /// The operation of a handle.
    ///
    /// # Errors [`Error::InvalidOperation`] if there is none, or it was released.
    pub(crate) fn entry(&self, handle: u64) -> Result<Arc<Entry>> {
        let handles = self.shared.handles.lock();
        let slot = handles.slots.get(handle as u32 as usize);
        let slot = slot.filter(|slot| u64::from(slot.0) == handle >> 32);
        slot.and_then(|slot| slot.1.clone()).ok_or_else(|| no_operation(handle))
    }

    /// Releases a handle; `None` if another thread has done so.
    pub(crate) fn release(&self, handle: u64) -> Option<Arc<Entry>> {
        let mut handles = self.shared.handles.lock();
        let index = handle as u32 as usize;
        let slot = handles.slots.get_mut(index)?;
        if u64::from(slot.0) != handle >> 32 {
            return None;
        }
        let entry = slot.1.take()?;
        handles.free.push(index);
        Some(entry)
    }
}

#[cold]
fn no_operation(handle: u64) -> Error {
    let reason = "there is none; it was waited for or freed already".to_owned();
    Error::InvalidOperation { handle, reason }
}
