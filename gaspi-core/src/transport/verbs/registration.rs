//! Memory that a device knows.
//!
//! Invariant: it is registered as long as the value that stands for it.

use super::device::Handles;
use super::work::{Local, Remote};
use crate::os::memory::{self, Mapping};
use libibverbs_sys::{self as sys, inline};
use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// Memory that the device knows, until this is dropped.
#[derive(Debug)]
pub(super) struct Registration {
    handles: Arc<Handles>,
    region: NonNull<sys::ibv_mr>,
}

// SAFETY: the region is used for its keys, and given back once.
unsafe impl Send for Registration {}
// SAFETY: as for Send.
unsafe impl Sync for Registration {}

impl Registration {
    pub(super) fn new(
        handles: &Arc<Handles>,
        start: *mut u8,
        len: u64,
    ) -> Result<Registration, String> {
        let rights = sys::IBV_ACCESS_LOCAL_WRITE
            | sys::IBV_ACCESS_REMOTE_WRITE
            | sys::IBV_ACCESS_REMOTE_READ;
        // SAFETY: the caller's memory stays until this is dropped.
        let region = unsafe {
            inline::ibv_reg_mr(
                &handles.library,
                handles.domain.as_ptr(),
                start.cast(),
                len as usize,
                rights,
            )
        };
        let region = NonNull::new(region).ok_or_else(|| refusal(len))?;
        Ok(Registration { handles: Arc::clone(handles), region })
    }

    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: registered.
        unsafe { self.region.as_ref().lkey }
    }

    pub(super) fn remote_key(&self) -> u32 {
        // SAFETY: registered.
        unsafe { self.region.as_ref().rkey }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: registered once, given back once.
        unsafe { (self.handles.library.ibv_dereg_mr)(self.region.as_ptr()) };
    }
}

/// Memory that peers read behind their writes, for nothing but that they know when it has happened.
#[derive(Debug)]
pub(super) struct FlushTarget {
    registration: Registration,
    memory: Mapping,
}

impl FlushTarget {
    pub(super) fn new(handles: &Arc<Handles>) -> Result<FlushTarget, String> {
        let file = memory::create(c"gaspi-flush", memory::PAGE, false);
        let file = file.map_err(|error| error.to_string())?;
        let memory = Mapping::new(file.as_fd(), 0, memory::PAGE);
        let memory = memory.map_err(|error| format!("memory to be read: {error}"))?;
        let registration = Registration::new(handles, memory.as_ptr(), memory::PAGE)?;
        Ok(FlushTarget { registration, memory })
    }

    pub(super) fn place(&self) -> Remote {
        let (address, key) = (self.memory.as_ptr() as u64, self.registration.remote_key());
        Remote { address, key }
    }

    /// Where reads arrive whose result nobody wants, those of all pairs. Peers read other bytes.
    pub(super) fn scratch(&self) -> Local {
        let address = self.memory.as_ptr() as u64 + memory::PAGE / 2;
        Local { address, key: Some(self.registration.local_key()) }
    }
}

/// Why memory was not registered, and what to do about it.
fn refusal(len: u64) -> String {
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENOMEM) => format!(
            "the device cannot register {len} bytes ({error}); raise the limit of locked memory \
             (ulimit -l unlimited, or memlock in /etc/security/limits.conf)"
        ),
        _ => format!("the device cannot register {len} bytes: {error}"),
    }
}
