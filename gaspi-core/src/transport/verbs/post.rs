//! Posting to a send queue in as few instructions as its device needs.

use super::work::{Local, Remote};
use crate::wire::frame::PUT_LEN;
use libibverbs_sys as sys;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr;

/// What fails where the device refuses a request.
pub(super) const POSTING: &str = "posting to the device";

/// A device's function that posts a chain of requests.
pub(super) type PostSend = sys::inline::PostSend;

/// Where memory of this rank lies, for a request.
#[inline(always)]
pub(super) fn part(local: Local, size: u64) -> sys::ibv_sge {
    sys::ibv_sge { addr: local.address, length: size as u32, lkey: local.key.unwrap_or(0) }
}

/// Data of a transfer: where it lies here and there, and how many bytes.
pub(super) type Data = (Local, Remote, u64);

/// A request of which only what its kind needs has been written.
#[derive(Debug)]
struct Posted {
    work: MaybeUninit<sys::ibv_send_wr>,
    part: sys::ibv_sge,
}

impl Posted {
    fn new(part: sys::ibv_sge) -> Posted {
        Posted { work: MaybeUninit::uninit(), part }
    }

    /// Writes what all kinds have.
    #[inline(always)]
    fn set(
        &mut self,
        id: u64,
        opcode: sys::ibv_wr_opcode,
        flags: u32,
        next: *mut sys::ibv_send_wr,
    ) {
        self.set_links(next);
        self.set_kind(id, opcode, flags);
    }

    /// Writes which memory it is about, and what follows it.
    #[inline(always)]
    fn set_links(&mut self, next: *mut sys::ibv_send_wr) {
        let (work, part) = (self.work.as_mut_ptr(), &raw mut self.part);
        // SAFETY: inside of the request, of which nothing is read.
        unsafe {
            (&raw mut (*work).next).write(next);
            (&raw mut (*work).sg_list).write(part);
            (&raw mut (*work).num_sge).write(1);
        }
    }

    #[inline(always)]
    fn set_kind(&mut self, id: u64, opcode: sys::ibv_wr_opcode, flags: u32) {
        let work = self.work.as_mut_ptr();
        // SAFETY: inside of the request too.
        unsafe {
            (&raw mut (*work).wr_id).write(id);
            (&raw mut (*work).opcode).write(opcode);
            (&raw mut (*work).send_flags).write(flags);
        }
    }

    #[inline(always)]
    fn set_remote(&mut self, remote: Remote) {
        let work = self.work.as_mut_ptr();
        // SAFETY: inside of the request too.
        unsafe {
            (&raw mut (*work).wr.rdma.remote_addr).write(remote.address);
            (&raw mut (*work).wr.rdma.rkey).write(remote.key);
        }
    }

    /// Hands it to the device, with all that follows it.
    ///
    /// # Safety
    /// The pair exists, and the memory that it names stays until the request has ended.
    #[inline(always)]
    unsafe fn post(&mut self, by: Poster) -> i32 {
        let mut refused = MaybeUninit::uninit();
        // SAFETY: the caller's promise; the device reads what a request of its kind has.
        unsafe { (by.post)(by.pair, self.work.as_mut_ptr(), refused.as_mut_ptr()) }
    }
}

#[inline(always)]
fn flags(signalled: bool, goes_along: bool) -> u32 {
    let flag = |is: bool, flag: u32| u32::from(is) * flag;
    flag(signalled, sys::IBV_SEND_SIGNALED) | flag(goes_along, sys::IBV_SEND_INLINE)
}

/// A send queue, and its device's function.
#[derive(Clone, Copy)]
pub(super) struct Poster {
    pub(super) pair: *mut sys::ibv_qp,
    pub(super) post: PostSend,
}

impl Poster {
    /// Posts a message with this number, for which somebody may wait while the peer's program
    /// computes: it asks for an event.
    ///
    /// # Safety
    /// The pair exists, and the memory stays until the request has ended; what goes along is read
    /// before this returns.
    #[inline(always)]
    pub(super) unsafe fn send(
        self,
        (id, signalled): (u64, bool),
        part: sys::ibv_sge,
        goes_along: bool,
    ) -> i32 {
        let mut send = Posted::new(part);
        let flags = sys::IBV_SEND_SOLICITED | flags(signalled, goes_along);
        send.set(id, sys::IBV_WR_SEND, flags, ptr::null_mut());
        // SAFETY: as the caller says.
        unsafe { send.post(self) }
    }

    /// Posts a write with this number and a message with the next one, which has to fit in line, as
    /// one chain. The message is the one that may be signalled.
    ///
    /// # Safety
    /// The pair exists, and the memory stays until the requests have ended.
    #[inline(always)]
    pub(super) unsafe fn write_and_send(
        self,
        (id, signalled): (u64, bool),
        (local, remote, size): Data,
        message: &[u8; PUT_LEN],
        inline: u32,
    ) -> i32 {
        let here = Local { address: message.as_ptr() as u64, key: None };
        let mut send = Posted::new(part(here, message.len() as u64));
        send.set(id + 1, sys::IBV_WR_SEND, flags(signalled, true), ptr::null_mut());
        let mut write = Posted::new(part(local, size));
        let along = flags(false, size <= u64::from(inline));
        write.set(id, sys::IBV_WR_RDMA_WRITE, along, send.work.as_mut_ptr());
        write.set_remote(remote);
        // SAFETY: as the caller says; the message is read before this returns.
        unsafe { write.post(self) }
    }
}

/// A request that is posted again and again from the same place: what is always alike has been
/// written there.
#[derive(Debug)]
pub(super) struct Template(UnsafeCell<Posted>);

// SAFETY: what it points to is its own part; any thread may post it.
unsafe impl Send for Template {}
// SAFETY: whoever prepares it or posts it does so alone, as those functions ask for.
unsafe impl Sync for Template {}

impl Default for Template {
    fn default() -> Template {
        Template(UnsafeCell::new(Posted::new(part(Local { address: 0, key: None }, 0))))
    }
}

impl Template {
    /// Writes what is always alike. It may not be moved any more.
    ///
    /// # Safety
    /// Nobody else prepares it or posts it meanwhile.
    pub(super) unsafe fn prepare(&self) {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.0.get() }.set_links(ptr::null_mut());
    }

    /// Posts a write with this number, of data that goes along where it fits in line, and with 32
    /// bits if there are such.
    ///
    /// # Safety
    /// It has been prepared, and nobody else prepares it or posts it meanwhile. The pair exists,
    /// and the memory stays until the request has ended.
    #[inline(always)]
    pub(super) unsafe fn write(
        &self,
        by: Poster,
        (id, signalled): (u64, bool),
        (local, remote, size): Data,
        (immediate, inline): (Option<u32>, u32),
    ) -> i32 {
        // SAFETY: the caller's promise.
        let write = unsafe { &mut *self.0.get() };
        write.part = part(local, size);
        let flags = flags(signalled, size <= u64::from(inline));
        let opcode = match immediate {
            Some(_) => sys::IBV_WR_RDMA_WRITE_WITH_IMM,
            None => sys::IBV_WR_RDMA_WRITE,
        };
        write.set_kind(id, opcode, flags);
        write.set_remote(remote);
        if let Some(immediate) = immediate {
            let work = write.work.as_mut_ptr();
            // SAFETY: inside of the request, of which nothing is read.
            unsafe { (&raw mut (*work).__bindgen_anon_1.imm_data).write(immediate.to_be()) };
        }
        // SAFETY: as the caller says.
        unsafe { write.post(by) }
    }

    /// Posts a read with this number, which is signalled.
    ///
    /// # Safety
    /// As for [`write`](Template::write).
    #[inline(always)]
    pub(super) unsafe fn read(&self, by: Poster, id: u64, (local, remote, size): Data) -> i32 {
        // SAFETY: the caller's promise.
        let read = unsafe { &mut *self.0.get() };
        read.part = part(local, size);
        read.set_kind(id, sys::IBV_WR_RDMA_READ, flags(true, false));
        read.set_remote(remote);
        // SAFETY: as the caller says.
        unsafe { read.post(by) }
    }
}
