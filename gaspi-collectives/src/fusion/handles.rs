//! Fused buffers by number, for the C layer. Programs in Rust have [`Fusion`](super::Fusion).

use std::collections::HashMap;
use std::sync::Arc;

use gaspi_core::sync::{Mutex, RwLock};
use gaspi_core::{Error, GroupId, Result, Runtime, Timeout};

use super::create::{self, Creating};
use super::fused::Fused;
use super::{Fusion, Options, Tensor};

/// A fused buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Handle(pub u64);

/// The fused buffers of a rank.
#[derive(Debug, Default)]
pub(super) struct Fusions {
    /// Those that are being made.
    pub(super) creating: Mutex<HashMap<GroupId, Box<Creating>>>,
    table: RwLock<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// Generation and fused buffer.
    slots: Vec<(u32, Option<Arc<Fused>>)>,
    free: Vec<usize>,
}

impl Fusions {
    pub(super) fn of(rt: &Runtime) -> &Fusions {
        rt.extension(Fusions::default)
    }
}

/// Makes a fused buffer, as [`Fusion::create`] does.
///
/// # Errors
/// Those of [`Fusion::create`].
pub fn create(
    rt: &Runtime,
    tensors: &[Tensor],
    group: GroupId,
    options: &Options,
    timeout: Timeout,
) -> Result<Handle> {
    let fused = create::create(rt, tensors, group, options, timeout)?;
    let mut table = Fusions::of(rt).table.write();
    let index = table.free.pop().unwrap_or_else(|| {
        table.slots.push((0, None));
        table.slots.len() - 1
    });
    let slot = &mut table.slots[index];
    slot.0 = slot.0.wrapping_add(1).max(1);
    slot.1 = Some(fused);
    Ok(Handle(u64::from(slot.0) << 32 | index as u64))
}

/// Does something with a fused buffer.
///
/// # Errors
/// [`Error::InvalidOperation`] if there is none, or it was freed; and those of `call`.
#[inline]
pub fn with<T>(
    rt: &Runtime,
    handle: Handle,
    call: impl FnOnce(&Fusion<'_>) -> Result<T>,
) -> Result<T> {
    let fused = {
        let table = Fusions::of(rt).table.read();
        let slot = table.slots.get(handle.0 as u32 as usize);
        let slot = slot.filter(|slot| u64::from(slot.0) == handle.0 >> 32);
        slot.and_then(|slot| slot.1.clone())
    };
    let fused = fused.ok_or_else(|| no_fused_buffer(handle))?;
    call(&Fusion { rt, fused, frees: false })
}

/// Frees a fused buffer. What is under way is given up; all ranks free it.
///
/// # Errors
/// [`Error::InvalidOperation`] if there is none, or it was freed.
pub fn free(rt: &Runtime, handle: Handle) -> Result<()> {
    let fused = {
        let mut table = Fusions::of(rt).table.write();
        let index = handle.0 as u32 as usize;
        let slot = table.slots.get_mut(index);
        let slot = slot.filter(|slot| u64::from(slot.0) == handle.0 >> 32);
        let fused = slot.and_then(|slot| slot.1.take());
        if fused.is_some() {
            table.free.push(index);
        }
        fused
    };
    let fused = fused.ok_or_else(|| no_fused_buffer(handle))?;
    drop(Fusion { rt, fused, frees: true });
    Ok(())
}

#[cold]
fn no_fused_buffer(handle: Handle) -> Error {
    let reason = "there is no such fused buffer; it was freed already".to_owned();
    Error::InvalidOperation { handle: handle.0, reason }
}
