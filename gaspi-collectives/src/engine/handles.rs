//! The numbers by which the C layer knows operations.

use std::sync::Arc;

use gaspi_core::{Error, Result};

use super::{Engine, Operation};

#[derive(Debug, Default)]
pub(super) struct Handles {
    /// Generation and operation.
    slots: Vec<(u32, Option<Arc<Operation>>)>,
    free: Vec<usize>,
}

impl Engine {
    /// Gives an operation a handle.
    pub(crate) fn register(&self, operation: Operation) -> u64 {
        let mut handles = self.shared.handles.lock();
        let index = handles.free.pop().unwrap_or_else(|| {
            handles.slots.push((0, None));
            handles.slots.len() - 1
        });
        let slot = &mut handles.slots[index];
        slot.0 = slot.0.wrapping_add(1).max(1);
        slot.1 = Some(Arc::new(operation));
        u64::from(slot.0) << 32 | index as u64
    }

    /// The operation of a handle.
    ///
    /// # Errors
    /// [`Error::InvalidOperation`] if there is none, or it was released.
    pub(crate) fn entry(&self, handle: u64) -> Result<Arc<Operation>> {
        let handles = self.shared.handles.lock();
        let slot = handles.slots.get(handle as u32 as usize);
        let slot = slot.filter(|slot| u64::from(slot.0) == handle >> 32);
        slot.and_then(|slot| slot.1.clone()).ok_or_else(|| no_operation(handle))
    }

    /// Releases a handle; `None` if another thread has done so.
    pub(crate) fn release(&self, handle: u64) -> Option<Arc<Operation>> {
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
