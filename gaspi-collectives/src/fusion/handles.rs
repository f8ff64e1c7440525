//! Fused buffers by number, for the C layer. Programs in Rust have [`Fusion`](super::Fusion).

use std::collections::HashMap;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use gaspi_core::sync::{Mutex, RwLock, epoch};
use gaspi_core::{Error, Extension, FastPath, GroupId, Result, Runtime, Timeout, outside_callback};

use super::create::{self, Creating};
use super::fused::Fused;
use super::{Fusion, Options, Tensor};

/// A fused buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Handle(pub u64);

/// So many fused buffers at a time are found without a lock.
const LOOKUP: usize = 64;

/// A fused buffer and its number.
#[derive(Debug)]
struct Known {
    handle: Handle,
    fused: Arc<Fused>,
}

/// Fused buffers by the place of their handle, found without a lock. A reader follows a pointer
/// inside of an epoch. What it leads to is dropped after the pointer was removed and that epoch has
/// ended.
#[derive(Debug)]
struct LookupTable([AtomicPtr<Known>; LOOKUP]);

impl Default for LookupTable {
    fn default() -> LookupTable {
        LookupTable([const { AtomicPtr::new(ptr::null_mut()) }; LOOKUP])
    }
}

/// The fused buffers of a rank.
#[derive(Debug, Default)]
pub(super) struct Fusions {
    /// Those that are being made.
    pub(super) creating: Mutex<HashMap<GroupId, Box<Creating>>>,
    lookup: LookupTable,
    table: RwLock<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// Generation and fused buffer.
    slots: Vec<(u32, Option<Box<Known>>)>,
    free: Vec<usize>,
}

impl Extension for Fusions {}

impl Fusions {
    #[inline(always)]
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
    let fusions = Fusions::of(rt);
    let mut table = fusions.table.write();
    let index = table.free.pop().unwrap_or_else(|| {
        table.slots.push((0, None));
        table.slots.len() - 1
    });
    let slot = &mut table.slots[index];
    slot.0 = slot.0.wrapping_add(1).max(1);
    let handle = Handle(u64::from(slot.0) << 32 | index as u64);
    let known = ptr::from_mut(&mut **slot.1.insert(Box::new(Known { handle, fused })));
    if let Some(found) = fusions.lookup.0.get(index) {
        // Release: it was made before; pairs with the Acquire in `try_submit`.
        found.store(known, Ordering::Release);
    }
    Ok(handle)
}

/// Hands a tensor over, as [`Fusion::submit`] does. `None`, and nothing has happened, unless that
/// takes a few instructions and a copy. Otherwise the bucket of which it was the last contribution,
/// which is to be [started](start) outside of the epoch.
///
/// # Safety
/// That of [`Fusion::submit`].
#[inline]
pub unsafe fn try_submit(
    inside: FastPath<'_>,
    handle: Handle,
    tensor: usize,
    data: *const u8,
    scale: f64,
) -> Option<Option<usize>> {
    let found = Fusions::of(inside.runtime()).lookup.0.get(handle.0 as u32 as usize)?;
    // Acquire: pairs with the Release in `create`.
    let known = found.load(Ordering::Acquire);
    // SAFETY: epoch. `free` waits for its end before it drops this.
    let known = unsafe { known.as_ref() }.filter(|known| known.handle == handle)?;
    // SAFETY: the caller's promise.
    match unsafe { known.fused.submit_directly(tensor, data, scale) } {
        // SAFETY: the caller's promise.
        None => unsafe { known.fused.try_submit(tensor, data, scale) },
        done => done,
    }
}

/// Starts the all-reduce of a bucket that [`try_submit`] has told of.
///
/// # Errors
/// [`Error::InvalidOperation`] if the fused buffer was freed meanwhile; and what has ended it.
pub fn start(rt: &Runtime, handle: Handle, bucket: usize) -> Result<()> {
    with(rt, handle, |fusion| fusion.fused.start(bucket))
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
        slot.and_then(|slot| slot.1.as_ref().map(|known| Arc::clone(&known.fused)))
    };
    let fused = fused.ok_or_else(|| no_fused_buffer(handle))?;
    call(&Fusion { rt, fused, frees: false })
}

/// Frees a fused buffer. What is under way is given up; all ranks free it.
///
/// # Errors
/// [`Error::InvalidOperation`] if there is none, or it was freed; [`Error::Unsupported`] in a
/// function that is told of ends.
pub fn free(rt: &Runtime, handle: Handle) -> Result<()> {
    outside_callback("freeing a fused buffer")?;
    let fusions = Fusions::of(rt);
    let known = {
        let mut table = fusions.table.write();
        let index = handle.0 as u32 as usize;
        let slot = table.slots.get_mut(index);
        let slot = slot.filter(|slot| u64::from(slot.0) == handle.0 >> 32);
        let known = slot.and_then(|slot| slot.1.take());
        if known.is_some() {
            if let Some(found) = fusions.lookup.0.get(index) {
                // Relaxed: ordered by `synchronize`.
                found.store(ptr::null_mut(), Ordering::Relaxed);
            }
            table.free.push(index);
        }
        known
    };
    let known = known.ok_or_else(|| no_fused_buffer(handle))?;
    epoch::synchronize();
    drop(Fusion { rt, fused: known.fused, frees: true });
    Ok(())
}

#[cold]
fn no_fused_buffer(handle: Handle) -> Error {
    let reason = "there is no such fused buffer; it was freed already".to_owned();
    Error::InvalidOperation { handle: handle.0, reason }
}
