//! Where messages of all peers come: buffers of one receive queue.

use super::byte_stream::Streams;
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
    /// Where fewer are left than this, the progress thread looks.
    low: u32,
    /// Whether the device says when few are left.
    limit_set: bool,
    pub(super) streams: Streams,
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
        let (free, streams) = ((0..count).collect(), Streams::default());
        let low = count / 4;
        let mut receives = Receives { registration, memory, free, low, limit_set: false, streams };
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

    /// The device has said that few are left, once.
    pub(super) fn limit_reached(&mut self) {
        self.limit_set = false;
    }

    /// Whether few are left, and none has been posted since the device has said so.
    pub(super) fn are_low(&self) -> bool {
        !self.limit_set
    }

    /// Has the device say when few are left: while the program computes nobody looks otherwise.
    fn set_limit(&mut self, device: &Device) {
        // SAFETY: plain numbers.
        let mut attr: sys::ibv_srq_attr = unsafe { std::mem::zeroed() };
        attr.srq_limit = self.low;
        let (library, queue) = (&device.handles.library, device.handles.receives.as_ptr());
        // SAFETY: the queue exists. Where this fails, messages wait for the program's next call.
        let set = unsafe {
            (library.ibv_modify_srq)(queue, &raw mut attr, sys::IBV_SRQ_LIMIT.cast_signed())
        };
        if let Err(reason) = check(set, "setting the limit of the receive queue") {
            log::debug!("{reason}");
        }
        self.limit_set = true;
    }

    /// Whether buffers have been dealt with since.
    pub(super) fn has_free(&self) -> bool {
        !self.free.is_empty()
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
        if !self.limit_set {
            self.set_limit(device);
        }
        Ok(())
    }
}
