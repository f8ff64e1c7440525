//! A reliable connection of verbs between the two ranks of a pair, without the library: requests,
//! messages and completions. What is measured with it is in [`crate::verbs_baseline`].
//!
//! It shares no code with the library's own verbs, so that a mistake there is no part of the limit.
//! Messages come into buffers that are always posted. Most requests are not told of: one of several
//! is, and the last one of those that are waited for.
//!
//! Invariant: what a request names stays registered until it has ended. Each lane waits for the end
//! of all that it has posted.

mod device;
mod exchange;

pub(crate) use device::Place;
pub(crate) use exchange::{Offer, Verbs};

use crate::failure::Result;
use crate::job::Job;
use crate::memory::{Region, Shared};
use crate::system;
use device::{DEPTH_MIN, Device, Known, Queues, check, failure, last_error, register};
use libibverbs_sys::{self as sys, inline};
use std::ffi::CStr;
use std::mem::{MaybeUninit, zeroed};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The segment of the exchange; no test has one when it is made.
const EXCHANGE: u8 = 0;
/// Where this rank's card lies in it, and where the peer's comes.
const OWN: usize = 0;
const OF_PEER: usize = 64;
const EXCHANGE_BYTES: usize = 4096;
/// Bytes of a card.
const CARD: usize = 32;

/// Buffers for messages, and bytes of each.
const SLOTS: u32 = 256;
pub(crate) const SLOT: usize = 4096;
/// Buffers that are posted at once, again.
const REFILL: u64 = 32;
/// Bytes that are asked for to go along with a request, as perftest does; less does too.
const INLINE: u32 = 220;
/// Completions that are taken in one go.
const TAKEN: usize = 16;
/// One request of so many is told of, at least.
const TELL_EVERY: u64 = 32;
/// 4.096 us times two to this power until a request is tried again, as perftest has it.
const TIMEOUT: u8 = 14;
/// For ever on some devices; the limit of every wait ends that.
const RETRIES: u8 = 7;
/// A peer that has posted no buffer is asked for ever, each 0.64 ms.
const ASKS_FOR_EVER: u8 = 7;
const NOT_READY_TIMER: u8 = 12;
/// A sleep on the channel; then ranks are looked at.
const NAP: Duration = Duration::from_millis(20);
const WHAT: &str = "a raw request by verbs";

/// What a device is to do. Places are this rank's and the peer's.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Work {
    Write {
        from: Place,
        to: Place,
        size: usize,
    },
    /// A write of which the target is told.
    Notified {
        from: Place,
        to: Place,
        size: usize,
    },
    Read {
        to: Place,
        from: Place,
        size: usize,
    },
    Send {
        from: Place,
        size: usize,
    },
    /// A write of nothing.
    Nothing,
}

/// What the other end of a pair has to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Card {
    gid: [u8; 16],
    number: u32,
    lid: u16,
    mtu: u8,
    reads: u8,
}

impl Card {
    fn bytes(&self) -> [u8; CARD] {
        let mut bytes = [0; CARD];
        bytes[..16].copy_from_slice(&self.gid);
        bytes[16..20].copy_from_slice(&self.number.to_le_bytes());
        bytes[20..22].copy_from_slice(&self.lid.to_le_bytes());
        (bytes[22], bytes[23]) = (self.mtu, self.reads);
        // A card that has not come is none.
        bytes[CARD - 1] = 1;
        bytes
    }

    fn of(bytes: &[u8]) -> Option<Card> {
        let bytes: &[u8; CARD] = bytes.try_into().ok()?;
        let (gid, rest) = bytes.split_first_chunk::<16>()?;
        let (number, rest) = rest.split_first_chunk::<4>()?;
        let (lid, rest) = rest.split_first_chunk::<2>()?;
        (bytes[CARD - 1] == 1).then_some(Card {
            gid: *gid,
            number: u32::from_le_bytes(*number),
            lid: u16::from_le_bytes(*lid),
            mtu: rest[0],
            reads: rest[1],
        })
    }
}

/// This rank's end of a raw pair.
#[derive(Debug)]
pub(crate) struct End {
    pair: NonNull<sys::ibv_qp>,
    queues: Queues,
    inline: usize,
    /// Buffers for messages, and behind them a place for what nobody wants.
    slots: Shared,
    slots_key: NonNull<sys::ibv_mr>,
    /// Requests that were posted, and those that have ended, by their numbers from 1 on.
    posted: AtomicU64,
    ended: AtomicU64,
    told: AtomicU64,
    /// Messages that have come.
    come: AtomicU64,
    device: Device,
}

// SAFETY: libibverbs may be called by any thread, with any object.
unsafe impl Send for End {}
// SAFETY: as for Send. Only the main thread of a rank uses it.
unsafe impl Sync for End {}

/// Makes the raw pair of this rank with its peer, if `wanted`; all ranks together. Addresses go by
/// the library.
pub(crate) fn connect(job: &Job, wanted: bool) -> Result<Option<End>> {
    let segment = job.segment(EXCHANGE, EXCHANGE_BYTES)?;
    let end = wanted.then(End::new).transpose()?;
    if let Some(end) = &end {
        segment.region.put(OWN, &end.card().bytes());
        segment.write(OWN, job.rank ^ 1, OF_PEER, CARD, 0)?;
        job.wait(0)?;
    }
    job.barrier()?;
    if let Some(end) = &end {
        let card = Card::of(&segment.region.get(OF_PEER, CARD));
        end.join(&card.ok_or_else(|| failure("the peer's address has not come"))?)?;
    }
    // Both ends are ready before the first request.
    segment.delete()?;
    Ok(end)
}

impl End {
    fn new() -> Result<End> {
        let device = Device::open()?;
        let size = (SLOTS as usize + 1) * SLOT;
        let file = system::memory_file(size)
            .map_err(|error| failure(format!("{size} bytes of memory: {error}")))?;
        let slots = Shared::map(&file, size)?;
        slots.region().touch();
        let slots_key = register(&device, slots.region())?;
        let queues = Queues::new(&device, SLOTS)?;
        let made = [INLINE, 64, 0].into_iter().find_map(|bytes| {
            // SAFETY: plain numbers and pointers, set below.
            let mut attr: sys::ibv_qp_init_attr = unsafe { zeroed() };
            (attr.send_cq, attr.recv_cq) = (queues.sent.as_ptr(), queues.received.as_ptr());
            attr.qp_type = sys::IBV_QPT_RC;
            attr.cap.max_send_wr = device.depth;
            attr.cap.max_recv_wr = SLOTS;
            (attr.cap.max_send_sge, attr.cap.max_recv_sge) = (1, 1);
            attr.cap.max_inline_data = bytes;
            // SAFETY: domain and queues live as long as the pair.
            let pair =
                unsafe { (device.library.ibv_create_qp)(device.domain.as_ptr(), &raw mut attr) };
            NonNull::new(pair).map(|pair| (pair, attr.cap.max_inline_data))
        });
        let (pair, inline) = made.ok_or_else(|| last_error("ibv_create_qp"))?;
        let inline = inline.min(INLINE) as usize;
        let [posted, ended, told, come] = [const { AtomicU64::new(0) }; 4];
        let end = End { pair, queues, inline, slots, slots_key, posted, ended, told, come, device };
        end.initialise()?;
        Ok(end)
    }

    fn modify(&self, mut attr: sys::ibv_qp_attr, mask: u32, what: &str) -> Result<()> {
        let (verbs, pair) = (&self.device.library, self.pair.as_ptr());
        // SAFETY: the pair exists.
        check(unsafe { (verbs.ibv_modify_qp)(pair, &raw mut attr, mask.cast_signed()) }, what)
    }

    /// Lets it receive, with all its buffers posted.
    fn initialise(&self) -> Result<()> {
        // SAFETY: plain numbers.
        let mut attr: sys::ibv_qp_attr = unsafe { zeroed() };
        attr.qp_state = sys::IBV_QPS_INIT;
        attr.port_num = self.device.port.number;
        attr.qp_access_flags = sys::IBV_ACCESS_REMOTE_WRITE | sys::IBV_ACCESS_REMOTE_READ;
        let mask = sys::IBV_QP_STATE
            | sys::IBV_QP_PKEY_INDEX
            | sys::IBV_QP_PORT
            | sys::IBV_QP_ACCESS_FLAGS;
        self.modify(attr, mask, "setting up a queue pair")?;
        (0..u64::from(SLOTS) / REFILL).try_for_each(|batch| self.receive_into(batch * REFILL))
    }

    fn card(&self) -> Card {
        let port = self.device.port;
        // SAFETY: the pair exists.
        let number = unsafe { self.pair.as_ref().qp_num };
        Card { gid: port.gid, number, lid: port.lid, mtu: port.mtu, reads: self.device.reads }
    }

    /// Connects it with the end of the peer.
    fn join(&self, peer: &Card) -> Result<()> {
        let (port, own) = (self.device.port, self.card());
        // SAFETY: plain numbers.
        let mut attr: sys::ibv_qp_attr = unsafe { zeroed() };
        attr.qp_state = sys::IBV_QPS_RTR;
        attr.path_mtu = u32::from(own.mtu.min(peer.mtu).clamp(1, 5));
        attr.dest_qp_num = peer.number;
        attr.max_dest_rd_atomic = own.reads.min(peer.reads);
        attr.min_rnr_timer = NOT_READY_TIMER;
        attr.ah_attr.dlid = peer.lid;
        attr.ah_attr.port_num = port.number;
        if port.global {
            attr.ah_attr.is_global = 1;
            attr.ah_attr.grh.dgid.raw = peer.gid;
            attr.ah_attr.grh.sgid_index = port.gid_index;
            attr.ah_attr.grh.hop_limit = 64;
        }
        let mask = sys::IBV_QP_STATE
            | sys::IBV_QP_AV
            | sys::IBV_QP_PATH_MTU
            | sys::IBV_QP_DEST_QPN
            | sys::IBV_QP_RQ_PSN
            | sys::IBV_QP_MAX_DEST_RD_ATOMIC
            | sys::IBV_QP_MIN_RNR_TIMER;
        self.modify(attr, mask, "connecting a queue pair")?;
        attr.qp_state = sys::IBV_QPS_RTS;
        (attr.timeout, attr.retry_cnt, attr.rnr_retry) = (TIMEOUT, RETRIES, ASKS_FOR_EVER);
        attr.max_rd_atomic = own.reads.min(peer.reads);
        let mask = sys::IBV_QP_STATE
            | sys::IBV_QP_TIMEOUT
            | sys::IBV_QP_RETRY_CNT
            | sys::IBV_QP_RNR_RETRY
            | sys::IBV_QP_SQ_PSN
            | sys::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(attr, mask, "making a queue pair ready to send")
    }

    /// Has the device know memory.
    fn know(&self, region: Region<'_>) -> Result<Known<'_>> {
        Known::new(&self.device, region)
    }

    /// Bytes that go along with a request.
    pub(crate) fn inline(&self) -> usize {
        self.inline
    }

    /// Bytes of one request, at most.
    pub(crate) fn longest(&self) -> usize {
        self.device.port.message
    }

    fn slot(&self, number: u64) -> (Region<'_>, Place) {
        let offset = number as usize * SLOT;
        // SAFETY: registered.
        let key = unsafe { self.slots_key.as_ref() }.lkey;
        let region = self.slots.region().part(offset, SLOT);
        (region, Place { address: region.address() as u64, key })
    }

    /// Where a read puts what nobody wants.
    pub(crate) fn scratch(&self) -> Place {
        self.slot(SLOTS.into()).1
    }

    /// Posts a chain of requests; of the last one a completion tells, if `tell`.
    #[inline]
    pub(crate) fn post<const N: usize>(
        &self,
        job: &Job,
        works: [Work; N],
        tell: bool,
    ) -> Result<()> {
        const { assert!(0 < N && N <= DEPTH_MIN as usize / 2) };
        // Relaxed here and below: one thread uses an end.
        let before = self.posted.load(Relaxed);
        let fits = || before + N as u64 - self.ended.load(Relaxed) <= self.device.depth.into();
        if !fits() {
            job.spin_until(WHAT, || {
                self.take_sent()?;
                Ok(fits())
            })?;
        }
        let mut parts = [const { sys::ibv_sge { addr: 0, length: 0, lkey: 0 } }; N];
        // SAFETY: plain numbers and pointers, set below.
        let mut requests: [sys::ibv_send_wr; N] = unsafe { zeroed() };
        let (part, request) = (parts.as_mut_ptr(), requests.as_mut_ptr());
        let tell_every = TELL_EVERY.min(u64::from(self.device.depth) / 4);
        for (at, work) in works.into_iter().enumerate() {
            let id = before + 1 + at as u64;
            let tells = tell && at + 1 == N || id.is_multiple_of(tell_every);
            if tells {
                self.told.store(id, Relaxed);
            }
            let next = if at + 1 == N { ptr::null_mut() } else { request.wrapping_add(at + 1) };
            let wanted = &mut requests[at];
            (wanted.wr_id, wanted.next) = (id, next);
            wanted.send_flags = if tells { sys::IBV_SEND_SIGNALED } else { 0 };
            (wanted.sg_list, wanted.num_sge) = (part.wrapping_add(at), 1);
            self.describe(work, wanted, &mut parts[at]);
        }
        let mut refused = ptr::null_mut();
        // SAFETY: a chain of valid requests, which the call reads only.
        let result =
            unsafe { inline::ibv_post_send(self.pair.as_ptr(), request, &raw mut refused) };
        self.posted.store(before + N as u64, Relaxed);
        check(result, "ibv_post_send")
    }

    #[inline]
    fn describe(&self, work: Work, wanted: &mut sys::ibv_send_wr, part: &mut sys::ibv_sge) {
        let (opcode, local, remote, size) = match work {
            Work::Write { from, to, size } => (sys::IBV_WR_RDMA_WRITE, from, Some(to), size),
            Work::Notified { from, to, size } => {
                (sys::IBV_WR_RDMA_WRITE_WITH_IMM, from, Some(to), size)
            }
            Work::Read { to, from, size } => (sys::IBV_WR_RDMA_READ, to, Some(from), size),
            Work::Send { from, size } => (sys::IBV_WR_SEND, from, None, size),
            Work::Nothing => {
                (wanted.opcode, wanted.num_sge) = (sys::IBV_WR_RDMA_WRITE, 0);
                return;
            }
        };
        wanted.opcode = opcode;
        if let Some(Place { address, key }) = remote {
            wanted.wr.rdma =
                sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: address, rkey: key };
        }
        (part.addr, part.length, part.lkey) = (local.address, size as u32, local.key);
        if opcode != sys::IBV_WR_RDMA_READ && size <= self.inline {
            wanted.send_flags |= sys::IBV_SEND_INLINE;
        }
    }

    /// Takes completions of requests.
    fn take_sent(&self) -> Result<()> {
        let mut found = MaybeUninit::<[sys::ibv_wc; TAKEN]>::uninit();
        let to = found.as_mut_ptr().cast::<sys::ibv_wc>();
        // SAFETY: there is room for so many.
        let taken = unsafe { inline::ibv_poll_cq(self.queues.sent.as_ptr(), TAKEN as i32, to) };
        for at in 0..self.count(taken)? {
            // SAFETY: written by the call.
            let one = unsafe { &*to.add(at) };
            self.examine(one)?;
            self.ended.store(one.wr_id, Relaxed);
        }
        Ok(())
    }

    fn count(&self, taken: i32) -> Result<usize> {
        usize::try_from(taken).map_err(|_| failure("ibv_poll_cq fails"))
    }

    /// Fails if a request did.
    fn examine(&self, one: &sys::ibv_wc) -> Result<()> {
        if one.status == sys::IBV_WC_SUCCESS {
            return Ok(());
        }
        // SAFETY: the library has a text for each number.
        let text = unsafe {
            let text = (self.device.library.ibv_wc_status_str)(one.status);
            if text.is_null() { c"unknown" } else { CStr::from_ptr(text) }
        };
        let (text, vendor) = (text.to_string_lossy(), one.vendor_err);
        Err(failure(format!("a request ended with \"{text}\", vendor code {vendor}")))
    }

    /// Waits for the request that was posted last, of which a completion tells.
    #[inline]
    pub(crate) fn await_sent(&self, job: &Job) -> Result<()> {
        let last = self.posted.load(Relaxed);
        job.spin_until(WHAT, || {
            self.take_sent()?;
            Ok(self.ended.load(Relaxed) == last)
        })
    }

    /// Waits for the end of all that was posted.
    pub(crate) fn settle(&self, job: &Job) -> Result<()> {
        if self.told.load(Relaxed) != self.posted.load(Relaxed) {
            self.post(job, [Work::Nothing], true)?;
        }
        self.await_sent(job)
    }

    /// Posts as many buffers as belong together, from this number on.
    fn receive_into(&self, first: u64) -> Result<()> {
        let mut parts = [const { sys::ibv_sge { addr: 0, length: 0, lkey: 0 } }; REFILL as usize];
        // SAFETY: plain numbers and pointers, set below.
        let mut requests: [sys::ibv_recv_wr; REFILL as usize] = unsafe { zeroed() };
        let (part, request) = (parts.as_mut_ptr(), requests.as_mut_ptr());
        for at in 0..REFILL as usize {
            let number = (first + at as u64) % u64::from(SLOTS);
            let Place { address, key } = self.slot(number).1;
            parts[at] = sys::ibv_sge { addr: address, length: SLOT as u32, lkey: key };
            let is_last = at + 1 == REFILL as usize;
            requests[at] = sys::ibv_recv_wr {
                wr_id: number,
                next: if is_last { ptr::null_mut() } else { request.wrapping_add(at + 1) },
                sg_list: part.wrapping_add(at),
                num_sge: 1,
            };
        }
        let mut refused = ptr::null_mut();
        // SAFETY: a chain of valid requests, which the call reads only.
        let result =
            unsafe { inline::ibv_post_recv(self.pair.as_ptr(), request, &raw mut refused) };
        check(result, "ibv_post_recv")
    }

    /// Takes a message, if one has come: where it lies until [`REFILL`] more have come, and its
    /// length.
    #[inline]
    fn take_message(&self) -> Result<Option<(Region<'_>, usize)>> {
        let mut found = MaybeUninit::<sys::ibv_wc>::uninit();
        // SAFETY: there is room for one.
        let taken =
            unsafe { inline::ibv_poll_cq(self.queues.received.as_ptr(), 1, found.as_mut_ptr()) };
        if self.count(taken)? == 0 {
            return Ok(None);
        }
        // SAFETY: written by the call.
        let one = unsafe { found.assume_init() };
        self.examine(&one)?;
        let come = self.come.fetch_add(1, Relaxed) + 1;
        // Those before the last ones, which may still be looked at.
        if come.is_multiple_of(REFILL) && come > REFILL {
            self.receive_into(come - 2 * REFILL)?;
        }
        Ok(Some((self.slot(one.wr_id).0, (one.byte_len as usize).min(SLOT))))
    }

    /// Spins until a message has come.
    #[inline]
    pub(crate) fn await_message(&self, job: &Job) -> Result<(Region<'_>, usize)> {
        let mut found = None;
        job.spin_until("a raw message by verbs", || {
            found = self.take_message()?;
            Ok(found.is_some())
        })?;
        found.ok_or_else(|| failure("a message was lost"))
    }

    /// Sleeps until a message has come.
    pub(crate) fn await_message_asleep(&self, job: &Job) -> Result<(Region<'_>, usize)> {
        let mut patience = job.patience("a raw message by verbs");
        let (verbs, queues) = (&self.device.library, &self.queues);
        loop {
            if let Some(found) = self.take_message()? {
                return Ok(found);
            }
            // SAFETY: the queue exists.
            let asked = unsafe { inline::ibv_req_notify_cq(queues.received.as_ptr(), 0) };
            check(asked, "ibv_req_notify_cq")?;
            // One that has come before the device was asked makes no event.
            if let Some(found) = self.take_message()? {
                return Ok(found);
            }
            // SAFETY: the channel exists.
            let descriptor = unsafe { queues.channel.as_ref() }.fd;
            while !system::await_readable(descriptor, NAP) {
                patience.check(job)?;
            }
            let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: there is an event, of a queue of this device.
            unsafe {
                let channel = queues.channel.as_ptr();
                let got = (verbs.ibv_get_cq_event)(channel, &raw mut queue, &raw mut context);
                check(got, "ibv_get_cq_event")?;
                (verbs.ibv_ack_cq_events)(queue, 1);
            }
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let verbs = &self.device.library;
        // SAFETY: made once, ended once; the device takes nothing from its memory any more then.
        unsafe { (verbs.ibv_destroy_qp)(self.pair.as_ptr()) };
        self.queues.end(&self.device);
        // SAFETY: registered once, given back once; the memory goes after this.
        unsafe { (verbs.ibv_dereg_mr)(self.slots_key.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_arrive_as_they_were_sent() {
        let card = Card { gid: [7; 16], number: 0x01_02_03, lid: 500, mtu: 3, reads: 16 };
        assert_eq!(Card::of(&card.bytes()), Some(card));
        assert_eq!(Card::of(&[0; CARD]), None);
        assert_eq!(Card::of(&card.bytes()[1..]), None);
    }
}
