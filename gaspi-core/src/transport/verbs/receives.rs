//! Where messages of all peers come: buffers of one receive queue.

use super::device::{Device, RECEIVE_BYTES, Registration};
use super::work::check;
use crate::os::memory::{self, Mapping};
use libibverbs_sys::{self as sys, inline};
use std::os::fd::AsFd;
use std::ptr;

/// The buffers.
#[derive(Debug)]
pub(super) struct Receives {
    registration: Registration,
    memory: Mapping,
    /// Those that are to be posted again.
    free: Vec<u32>,
}

impl Receives {
    /// Makes the buffers, and posts them.
    ///
    /// # Errors
    /// In words, why the device does not take them.
    pub(super) fn new(device: &Device, count: u32) -> Result<Receives, String> {
        let bytes = count as usize * RECEIVE_BYTES;
        // Shared memory: a fork of the program moves none of it.
        let file = memory::create(c"gaspi-receives", bytes as u64, false);
        let file = file.map_err(|error| error.to_string())?;
        let memory = Mapping::new(file.as_fd(), 0, bytes as u64);
        let memory = memory.map_err(|error| format!("memory for messages: {error}"))?;
        let registration = device.register(memory.as_ptr(), bytes as u64)?;
        let mut receives = Receives { registration, memory, free: (0..count).collect() };
        receives.refill(device)?;
        Ok(receives)
    }

    /// What has come in a buffer.
    pub(super) fn bytes(&self, place: usize, len: u32) -> &[u8] {
        let len = (len as usize).min(RECEIVE_BYTES);
        let start = self.memory.as_ptr().wrapping_add(place * RECEIVE_BYTES);
        // SAFETY: a buffer that the device has given back, and that is not posted again while it is
        // borrowed.
        unsafe { std::slice::from_raw_parts(start, len) }
    }

    /// A buffer has been dealt with.
    pub(super) fn give_back(&mut self, place: usize) {
        self.free.push(place as u32);
    }

    /// Posts all buffers that have been dealt with.
    ///
    /// # Errors
    /// What the device says.
    pub(super) fn refill(&mut self, device: &Device) -> Result<(), String> {
        while let Some(place) = self.free.pop() {
            let start = self.memory.as_ptr().wrapping_add(place as usize * RECEIVE_BYTES);
            let mut part = sys::ibv_sge {
                addr: start as u64,
                length: RECEIVE_BYTES as u32,
                lkey: self.registration.local_key(),
            };
            let mut work = sys::ibv_recv_wr {
                wr_id: place.into(),
                next: ptr::null_mut(),
                sg_list: &raw mut part,
                num_sge: 1,
            };
            let mut refused = ptr::null_mut();
            let queue = device.handles.receives.as_ptr();
            // SAFETY: the buffer is the device's until it gives it back.
            let result =
                unsafe { inline::ibv_post_srq_recv(queue, &raw mut work, &raw mut refused) };
            if let Err(reason) = check(result, "posting a receive") {
                self.free.push(place);
                return Err(reason);
            }
        }
        Ok(())
    }
}
