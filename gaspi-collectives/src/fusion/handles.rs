//! Fused buffers by number, for the C layer. Programs in Rust have [`Fusion`](super::Fusion).

use std::collections::HashMap;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, OnceLock};

use gaspi_core::sync::{Mutex, RwLock, epoch};
use gaspi_core::{Error, Extension, FastPath, GroupId, Result, Runtime, Timeout, outside_callback};

use super::create::{self, Creating};
use super::fused::Fused;
use super::{Fusion, Options, Tensor};

/// A fused buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Handle(pub u64);

/// Fused buffers that the first row of places has room for; each further row has room for twice as
/// many as the one before, the first of them for as many as this.
const ROW: usize = 64;
/// Rows that places of 32 bits lie in, besides the first one.
const ROWS: usize = 26;

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
struct LookupTable {
    first: [AtomicPtr<Known>; ROW],
    /// Rows stay once they are there.
    further: [OnceLock<Row>; ROWS],
}

type Row = Box<[AtomicPtr<Known>]>;

impl Default for LookupTable {
    fn default() -> LookupTable {
        LookupTable {
            first: [const { AtomicPtr::new(ptr::null_mut()) }; ROW],
            further: [const { OnceLock::new() }; ROWS],
        }
    }
}

impl LookupTable {
    /// Where the fused buffer of a place is noted, if there has been one in its row.
    #[inline(always)]
    fn get(&self, index: u32) -> Option<&AtomicPtr<Known>> {
        match self.first.get(index as usize) {
            None => {
                let (row, at) = LookupTable::further(index);
                self.further.get(row)?.get()?.get(at)
            }
            found => found,
        }
    }

    /// The same, which makes the row.
    fn make(&self, index: u32) -> &AtomicPtr<Known> {
        match self.first.get(index as usize) {
            None => {
                let (row, at) = LookupTable::further(index);
                let places = || (0..ROW << row).map(|_| AtomicPtr::default()).collect();
                &self.further[row].get_or_init(places)[at]
            }
            Some(found) => found,
        }
    }

    /// The row behind the first one in which a place lies, and where.
    #[inline(always)]
    fn further(index: u32) -> (usize, usize) {
        let row = (index / ROW as u32).ilog2() as usize;
        (row, index as usize - (ROW << row))
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
    // Release: it was made before; pairs with the Acquire in `find`.
    fusions.lookup.make(index as u32).store(known, Ordering::Release);
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
    let fused = find(inside, handle)?;
    // SAFETY: the caller's promise.
    unsafe { fused.try_submit(tensor, data, scale) }
}

/// Whether a wait for a tensor, as [`Fusion::wait`], is over at once. False where it takes a closer
/// look.
#[inline]
pub fn has_sum(inside: FastPath<'_>, handle: Handle, tensor: usize) -> bool {
    find(inside, handle).is_some_and(|fused| fused.has_sum(tensor))
}

/// A fused buffer, for as long as the epoch.
#[inline(always)]
fn find(inside: FastPath<'_>, handle: Handle) -> Option<&Fused> {
    let found = Fusions::of(inside.runtime()).lookup.get(handle.0 as u32)?;
    // Acquire: pairs with the Release in `create`.
    let known = found.load(Ordering::Acquire);
    // SAFETY: epoch. `free` waits for its end before it drops this.
    let known = unsafe { known.as_ref() }.filter(|known| known.handle == handle)?;
    Some(&known.fused)
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
            if let Some(found) = fusions.lookup.get(index as u32) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_has_its_own_pointer_and_keeps_it() {
        let table = LookupTable::default();
        let ends = (0..7).flat_map(|row| [(ROW << row) - 1, ROW << row]);
        for index in (0..2000).chain(ends).map(|index| index as u32) {
            let of_row = table.get(index).is_some();
            assert!(of_row || index as usize >= ROW, "the first row is there: {index}");
            let made: *const _ = table.make(index);
            assert!(std::ptr::eq(table.get(index).expect("made"), made), "{index}");
            let mark = ptr::without_provenance_mut(index as usize + 1);
            table.make(index).store(mark, Ordering::Relaxed);
        }
        for index in 0..2000 {
            let marked = table.get(index).expect("made").load(Ordering::Relaxed);
            assert_eq!(marked.addr(), index as usize + 1);
        }
        assert!(table.get(u32::MAX).is_none() && table.get(1 << 20).is_none());
        assert_eq!(LookupTable::further(u32::MAX).0, ROWS - 1);
    }
}
