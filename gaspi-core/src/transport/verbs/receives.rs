//! Where messages of all peers come: buffers of one receive queue.

use super::by_number::Found;
use super::byte_stream::Streams;
use super::device::{Device, RECEIVE_BYTES, Registration};
use super::work::check;
use crate::os::memory::{self, Mapping};
use libibverbs_sys::{self as sys, inline};
use std::os::fd::AsFd;
use std::ptr;

/// Buffers that are posted at once, in a chain.
const CHAIN: usize = 16;

/// Looks that find something, at most, before one at what is rare.
const BUSY_LOOKS: u32 = 64;

/// How many looks in a row have found something.
#[derive(Debug, Default)]
pub(super) struct BusyLooks(u32);

impl BusyLooks {
    /// Whether what is rare is due behind this look: once nothing comes, and now and then where
    /// peers never stop to send.
    pub(super) fn note(&mut self, busy: bool) -> bool {
        self.0 = if busy { self.0 + 1 } else { 0 };
        self.0.is_multiple_of(BUSY_LOOKS)
    }
}

/// The buffers.
#[derive(Debug)]
pub(super) struct Receives {
    registration: Registration,
    memory: Mapping,
    /// Those that are to be posted again, once there are so many.
    free: Vec<u32>,
    chain: usize,
    /// Where fewer are left than this, the progress thread looks.
    low: u32,
    /// Whether the device says when few are left.
    limit_set: bool,
    /// By which pair something has come last.
    pub(super) last: Option<Found>,
    /// Looks of threads that wait for messages.
    pub(super) message_looks: u32,
    pub(super) busy_looks: BusyLooks,
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
        // What waits to be posted is missed where there are few.
        let chain = CHAIN.min(count as usize / 16).max(1);
        let mut receives = Receives {
            registration,
            memory,
            free,
            chain,
            low,
            limit_set: false,
            last: None,
            message_looks: 0,
            busy_looks: BusyLooks::default(),
            streams,
        };
        receives.refill(device)?;
        Ok(receives)
    }

    /// What has come in a buffer.
    pub(super) fn bytes(&self, place: usize, len: u32) -> &[u8] {
        bytes_of(&self.memory, place, len)
    }

    /// The same beside what is known of connections.
    pub(super) fn bytes_and_streams(&mut self, place: usize, len: u32) -> (&[u8], &mut Streams) {
        (bytes_of(&self.memory, place, len), &mut self.streams)
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

    /// Whether so many buffers have been dealt with that they are to be posted, or few are left.
    pub(super) fn has_to_refill(&self) -> bool {
        self.free.len() >= self.chain || !self.limit_set && !self.free.is_empty()
    }

    /// Posts all buffers that have been dealt with.
    ///
    /// # Errors
    /// What the device says.
    pub(super) fn refill(&mut self, device: &Device) -> Result<(), String> {
        while !self.free.is_empty() {
            self.post_chain(device)?;
        }
        if !self.limit_set {
            self.set_limit(device);
        }
        Ok(())
    }

    /// Posts the last ones of those that have been dealt with.
    fn post_chain(&mut self, device: &Device) -> Result<(), String> {
        let first = self.free.len().saturating_sub(CHAIN);
        let last = self.free.len() - first - 1;
        // SAFETY: plain numbers and pointers, set below.
        let mut parts: [sys::ibv_sge; CHAIN] = unsafe { std::mem::zeroed() };
        // SAFETY: plain numbers and pointers, set below.
        let mut works: [sys::ibv_recv_wr; CHAIN] = unsafe { std::mem::zeroed() };
        let (part, work) = (parts.as_mut_ptr(), works.as_mut_ptr());
        for (at, place) in self.free[first..].iter().enumerate() {
            let start = self.memory.as_ptr().wrapping_add(*place as usize * RECEIVE_BYTES);
            parts[at] = sys::ibv_sge {
                addr: start as u64,
                length: RECEIVE_BYTES as u32,
                lkey: self.registration.local_key(),
            };
            works[at] = sys::ibv_recv_wr {
                wr_id: (*place).into(),
                next: if at == last { ptr::null_mut() } else { work.wrapping_add(at + 1) },
                sg_list: part.wrapping_add(at),
                num_sge: 1,
            };
        }
        let mut refused = ptr::null_mut();
        let queue = device.handles.receives.as_ptr();
        // SAFETY: a chain of valid requests; the buffers are the device's until it gives them back.
        let result = unsafe { inline::ibv_post_srq_recv(queue, work, &raw mut refused) };
        let posted = match result {
            0 => last + 1,
            // Where it does not say which, all may be its own.
            _ => works.iter().position(|work| ptr::eq(work, refused)).unwrap_or(last + 1),
        };
        self.free.drain(first..first + posted);
        check(result, "posting a receive")
    }
}

/// What has come in a buffer that the device has given back, and that is not posted again while it
/// is borrowed.
fn bytes_of(memory: &Mapping, place: usize, len: u32) -> &[u8] {
    let len = (len as usize).min(RECEIVE_BYTES);
    let start = memory.as_ptr().wrapping_add(place * RECEIVE_BYTES);
    // SAFETY: a part of the memory, which nobody writes meanwhile.
    unsafe { std::slice::from_raw_parts(start, len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_rare_is_looked_at_though_something_comes_each_time() {
        let mut looks = BusyLooks::default();
        assert!(looks.note(false) && looks.note(false));
        let due: Vec<u32> = (1..=2 * BUSY_LOOKS + 1).filter(|_| looks.note(true)).collect();
        assert_eq!(due, [BUSY_LOOKS, 2 * BUSY_LOOKS]);
        assert!(looks.note(false) && !looks.note(true));
    }
}
