//! Protection domains and memory regions.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use libibverbs_sys::{ibv_context, ibv_mr, ibv_pd};

use super::device::context;
use super::running::Fabric;
use super::{code, null};
use crate::model::memory::Piece;

/// A protection domain.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Domain {
    pd: ibv_pd,
    pub(super) fabric: Arc<Fabric>,
    pub(super) card: u32,
    pub(super) number: u32,
}

/// A memory region.
#[repr(C)]
struct Region {
    mr: ibv_mr,
    fabric: Arc<Fabric>,
    card: u32,
    index: usize,
}

/// # Safety
/// A protection domain of `ibv_alloc_pd`.
pub(super) unsafe fn domain<'a>(pd: *mut ibv_pd) -> &'a Domain {
    // SAFETY: caller's promise.
    unsafe { &*pd.cast::<Domain>() }
}

/// Makes a protection domain.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(open: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: C contract.
    let context = unsafe { context(open) };
    let (fabric, card) = (context.fabric.clone(), context.card);
    let made = fabric.enter().net().create_domain(card);
    match made {
        Ok(number) => {
            let pd = ibv_pd { context: open, handle: number };
            Box::into_raw(Box::new(Domain { pd, fabric, card, number })).cast()
        }
        Err(error) => null(error),
    }
}

/// Frees a protection domain.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: C contract.
    let found = unsafe { domain(pd) };
    let done = found.fabric.enter().net().destroy_domain(found.card, found.number);
    if done.is_ok() {
        // SAFETY: C contract: freed once.
        drop(unsafe { Box::from_raw(pd.cast::<Domain>()) });
    }
    code(done)
}

/// Registers memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: C contract.
    unsafe { ibv_reg_mr_iova2(pd, address, length, address as u64, access.cast_unsigned()) }
}

/// Registers memory that peers address from `iova`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: C contract.
    unsafe { ibv_reg_mr_iova2(pd, address, length, iova, access.cast_unsigned()) }
}

/// The same, with flags that a card may ignore.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: C contract.
    let found = unsafe { domain(pd) };
    if !is_mapped(address as u64, length as u64) {
        return null(libc::EFAULT);
    }
    let (fabric, card) = (found.fabric.clone(), found.card);
    let memory = Piece { address: address as u64, length: length as u64 };
    let made = fabric.enter().net().register(card, found.number, memory, iova, access);
    match made {
        Ok((index, lkey, rkey)) => {
            let (context, handle) = (found.pd.context, index as u32);
            let mr = ibv_mr { context, pd, addr: address, length, handle, lkey, rkey };
            Box::into_raw(Box::new(Region { mr, fabric, card, index })).cast()
        }
        Err(error) => null(error),
    }
}

/// A card pins memory, which must be there. Pages are asked for in parts, and not looked at.
fn is_mapped(address: u64, length: u64) -> bool {
    const PAGE: u64 = 4096;
    let mut resident = [0_u8; 4096];
    let Some(end) = address.checked_add(length) else { return false };
    let mut start = address & !(PAGE - 1);
    while start < end {
        let part = (end - start).min(resident.len() as u64 * PAGE);
        let to = resident.as_mut_ptr();
        // SAFETY: kernel writes within: a byte for each page.
        if unsafe { libc::mincore(start as *mut c_void, part as usize, to) } != 0 {
            return false;
        }
        start += part;
    }
    true
}

/// Ends a registration: nothing is written there any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: C contract: made by a registration, and freed once.
    let region = unsafe { Box::from_raw(mr.cast::<Region>()) };
    let mut entered = region.fabric.enter();
    let done = entered.net().card(region.card).end_region(region.index);
    debug_assert!(done && region.mr.handle as usize == region.index, "a region ends once");
    0
}
