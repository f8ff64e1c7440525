//! One end of a pair: a reliable connection between two devices.

use super::atomics::RESULTS;
use super::budget::{NotMade, PairKind, VARIABLE};
use super::chain::Chain;
use super::device::{Handles, RECEIVE_BYTES, Registration, SENT_ENTRIES, SentQueue};
use super::post::{POSTING, Poster, part};
use super::select::{GidEntry, written};
use super::subnet::Subnet;
use super::work::{
    Along, BUFFER_BYTES, EndAddress, Limits, Local, RETRIES, Remote, WorkRequest, check,
};
use crate::config::WriteEnd;
use crate::ids::QueueId;
use crate::os::pages::Pages;
use crate::os::socket::Piece;
use crate::wire::message::{AtomicOperation, PairOffer};
use libibverbs_sys::{self as sys, inline};
use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// Messages that do not go along with their request are sent from here.
const BUFFERS: usize = 8;
/// A peer without room for a message is asked again for ever: it may be stopped.
const ASKS_FOR_EVER: u8 = 7;
/// 0.64 ms between two such questions.
const NOT_READY_TIMER: u8 = 12;

/// Buffers of messages that are too long to go along.
#[derive(Debug)]
struct Buffers {
    memory: Pages,
    registration: Registration,
    /// The request that used each last.
    users: Vec<Option<u64>>,
    next: usize,
}

/// How many buffers there are for messages, and bytes of each.
#[derive(Debug, Clone, Copy)]
struct BufferShape {
    count: usize,
    bytes: usize,
}

impl BufferShape {
    fn of(kind: PairKind) -> BufferShape {
        match kind {
            // Notifications and refusals.
            PairKind::Data | PairKind::Own => BufferShape { count: BUFFERS, bytes: BUFFER_BYTES },
            PairKind::Messages => BufferShape { count: 32, bytes: RECEIVE_BYTES },
        }
    }
}

/// The number in front of the bytes of a connection.
pub(super) const STREAM_HEAD: usize = 4;

/// One end.
#[derive(Debug)]
pub(super) struct QueuePair {
    pair: NonNull<sys::ibv_qp>,
    limits: Limits,
    entries: u32,
    sent: NonNull<sys::ibv_cq>,
    first_packet: u32,
    /// What the peer was told to reach it by, and where that was when it was connected.
    pub(super) gid: GidEntry,
    /// What the peer may read of this rank at any time, and this rank of the peer.
    own_flush_target: Remote,
    scratch: Local,
    flush_target: Option<Remote>,
    buffers: Option<Buffers>,
    kind: PairKind,
    write_end: WriteEnd,
    shape: BufferShape,
    /// Whether its end is for lanes that found none to try again.
    is_news: bool,
    handles: Arc<Handles>,
}

// SAFETY: libibverbs may be called by any thread.
unsafe impl Send for QueuePair {}
// SAFETY: as for Send; what changes needs a unique reference.
unsafe impl Sync for QueuePair {}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: made once, ended once; nothing is taken from its memory any more then.
        unsafe { (self.handles.library.ibv_destroy_qp)(self.pair.as_ptr()) };
        self.handles.give_back_entries(self.sent, self.entries);
        if self.is_news {
            self.handles.budget.give_back(self.kind);
        } else {
            self.handles.budget.cancel(self.kind);
        }
    }
}

impl QueuePair {
    /// Makes an end that is not connected, as long as the budget has one left.
    pub(super) fn new(
        handles: &Arc<Handles>,
        own_memory: (Remote, Local),
        write_end: WriteEnd,
        kind: PairKind,
    ) -> Result<QueuePair, NotMade> {
        let gid = handles.present_gid()?;
        handles.budget.take(kind)?;
        let made = QueuePair::create(handles, gid, own_memory, (write_end, kind));
        let made = made.inspect_err(|_| handles.budget.cancel(kind))?;
        made.initialise()?;
        Ok(made)
    }

    fn create(
        handles: &Arc<Handles>,
        gid: GidEntry,
        (own_flush_target, scratch): (Remote, Local),
        (write_end, kind): (WriteEnd, PairKind),
    ) -> Result<QueuePair, NotMade> {
        let device = handles.limits;
        let entries = device.depth;
        let (sent, received) = handles.take_entries(entries)?;
        let made = [device.inline, 64, 0].into_iter().find_map(|bytes| {
            // SAFETY: plain numbers and pointers, set below.
            let mut attr: sys::ibv_qp_init_attr = unsafe { std::mem::zeroed() };
            attr.send_cq = sent.as_ptr();
            attr.recv_cq = received.as_ptr();
            attr.srq = handles.receives.as_ptr();
            attr.qp_type = sys::IBV_QPT_RC;
            attr.cap.max_send_wr = device.depth;
            attr.cap.max_send_sge = 1;
            attr.cap.max_inline_data = bytes;
            // SAFETY: all parts live as long as the handles.
            let pair =
                unsafe { (handles.library.ibv_create_qp)(handles.domain.as_ptr(), &raw mut attr) };
            NonNull::new(pair).map(|pair| (pair, attr.cap.max_inline_data))
        });
        let Some((pair, room)) = made else {
            let error = handles.not_made("ibv_create_qp");
            handles.give_back_entries(sent, entries);
            return Err(error);
        };
        let limits = Limits {
            depth: device.depth,
            inline: room.min(device.inline),
            message: device.message,
            ends_at_ack: write_end == WriteEnd::Ack,
        };
        // SAFETY: made above.
        let first_packet = unsafe { pair.as_ref().qp_num }.wrapping_mul(0x9e37) & 0x00ff_ffff;
        Ok(QueuePair {
            pair,
            limits,
            entries,
            sent,
            first_packet,
            gid,
            own_flush_target,
            scratch,
            flush_target: None,
            buffers: None,
            kind,
            write_end,
            shape: BufferShape::of(kind),
            is_news: true,
            handles: Arc::clone(handles),
        })
    }

    fn modify(&self, mut attr: sys::ibv_qp_attr, mask: u32, what: &str) -> Result<(), String> {
        let (verbs, pair) = (&self.handles.library, self.pair.as_ptr());
        // SAFETY: the pair exists.
        check(unsafe { (verbs.ibv_modify_qp)(pair, &raw mut attr, mask.cast_signed()) }, what)
    }

    fn initialise(&self) -> Result<(), String> {
        // SAFETY: plain numbers.
        let mut attr: sys::ibv_qp_attr = unsafe { std::mem::zeroed() };
        attr.qp_state = sys::IBV_QPS_INIT;
        attr.port_num = self.handles.port.number;
        attr.pkey_index = self.handles.port.pkey_index;
        attr.qp_access_flags = sys::IBV_ACCESS_REMOTE_WRITE
            | sys::IBV_ACCESS_REMOTE_READ
            | self.handles.atomic_rights();
        let mask = sys::IBV_QP_STATE
            | sys::IBV_QP_PKEY_INDEX
            | sys::IBV_QP_PORT
            | sys::IBV_QP_ACCESS_FLAGS;
        self.modify(attr, mask, "setting up a queue pair")
    }

    /// Its end calls nobody.
    pub(super) fn set_quiet(&mut self) {
        self.is_news = false;
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    /// What posts to it, as long as it exists.
    pub(super) fn poster(&self) -> Poster {
        let pair = self.pair.as_ptr();
        // SAFETY: the pair exists.
        Poster { pair, post: unsafe { inline::post_send_of(pair) } }
    }

    /// Where its requests complete, as long as the device is there.
    pub(super) fn completions(&self) -> NonNull<sys::ibv_cq> {
        self.sent
    }

    pub(super) fn number(&self) -> u32 {
        // SAFETY: the pair exists.
        unsafe { self.pair.as_ref().qp_num }
    }

    /// What the peer has to know of it; lane, attempt and whether this rank vouches are up to the
    /// caller.
    pub(super) fn offer(&self) -> PairOffer {
        let EndAddress { gid, lid, mtu, reads } = self.handles.address(self.gid);
        PairOffer {
            queue: QueueId(0),
            attempt: 0,
            number: self.number(),
            first_packet: self.first_packet,
            gid,
            lid,
            mtu,
            reads,
            flush_key: self.own_flush_target.key,
            flush_address: self.own_flush_target.address,
            vouches: false,
        }
    }

    /// Memory of the peer that can be read behind writes, whatever becomes of its segments.
    pub(super) fn flush_target(&self) -> Option<Remote> {
        self.flush_target
    }

    /// Connects it with the end of the peer.
    pub(super) fn connect(&mut self, offer: &PairOffer) -> Result<(), String> {
        // Ports of RoCE have no LID, those of InfiniBand always.
        let [own, other] = match (self.handles.port.global, offer.lid == 0) {
            (true, false) => ["RoCE", "InfiniBand"],
            (false, true) => ["InfiniBand", "RoCE"],
            _ => return self.connect_alike(offer),
        };
        Err(format!(
            "the device of this rank is on {own}, its device on {other}: name devices of one \
             network with GASPI_IB_DEVICE, or let TCP carry data (GASPI_TRANSPORT=auto)"
        ))
    }

    /// The same of two ports of one kind.
    fn connect_alike(&mut self, offer: &PairOffer) -> Result<(), String> {
        let port = &self.handles.port;
        let own = Subnet::of_infiniband(self.gid.gid);
        if !port.global && !own.contains(offer.gid) {
            return Err(format!(
                "the device of this rank is in the InfiniBand subnet {own}, its device in {}, and \
                 a LID reaches no other subnet: name devices of one subnet with GASPI_IB_DEVICE, \
                 or let TCP carry data (GASPI_TRANSPORT=auto)",
                Subnet::of_infiniband(offer.gid)
            ));
        }
        self.flush_target = Some(Remote { address: offer.flush_address, key: offer.flush_key });
        self.limits.ends_at_ack |= self.write_end == WriteEnd::Auto && offer.vouches;
        let own = self.handles.address(self.gid);
        // SAFETY: plain numbers.
        let mut attr: sys::ibv_qp_attr = unsafe { std::mem::zeroed() };
        attr.qp_state = sys::IBV_QPS_RTR;
        attr.path_mtu = u32::from(own.mtu.min(offer.mtu).clamp(1, 5));
        attr.dest_qp_num = offer.number;
        attr.rq_psn = offer.first_packet;
        attr.max_dest_rd_atomic = own.reads.min(offer.reads);
        attr.min_rnr_timer = NOT_READY_TIMER;
        attr.ah_attr.dlid = offer.lid;
        let port = &self.handles.port;
        attr.ah_attr.port_num = port.number;
        attr.ah_attr.sl = port.service_level;
        if port.global || port.needs_header {
            let gid = self.gid.gid;
            let gone = || format!("the GID {} of this rank is gone", written(gid));
            self.gid.index = self.handles.index_of(self.gid).ok_or_else(gone)?;
            attr.ah_attr.is_global = 1;
            attr.ah_attr.grh.dgid.raw = offer.gid;
            attr.ah_attr.grh.sgid_index = self.gid.index;
            attr.ah_attr.grh.traffic_class = port.traffic_class;
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
        attr.timeout = self.handles.timing.timeout;
        attr.retry_cnt = RETRIES;
        attr.rnr_retry = ASKS_FOR_EVER;
        attr.sq_psn = self.first_packet;
        attr.max_rd_atomic = own.reads.min(offer.reads);
        let mask = sys::IBV_QP_STATE
            | sys::IBV_QP_TIMEOUT
            | sys::IBV_QP_RETRY_CNT
            | sys::IBV_QP_RNR_RETRY
            | sys::IBV_QP_SQ_PSN
            | sys::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(attr, mask, "making a queue pair ready to send")
    }

    /// Nothing is taken from the peer any more, and what is under way ends; whether the device has
    /// done that.
    pub(super) fn stop(&self) -> bool {
        // SAFETY: plain numbers.
        let mut attr: sys::ibv_qp_attr = unsafe { std::mem::zeroed() };
        attr.qp_state = sys::IBV_QPS_ERR;
        let stopped = self.modify(attr, sys::IBV_QP_STATE, "stopping a queue pair");
        stopped.inspect_err(|reason| log::debug!("{reason}")).is_ok()
    }

    /// The buffers of messages, registered at first use.
    fn buffers(&mut self) -> Result<&mut Buffers, String> {
        if self.buffers.is_none() {
            let BufferShape { count, bytes } = self.shape;
            let mut memory = Pages::zeroed(count * bytes);
            let (start, len) = (memory.as_mut_ptr(), memory.len() as u64);
            let registration = Registration::new(&self.handles, start, len)?;
            let users = vec![None; count];
            self.buffers = Some(Buffers { memory, registration, users, next: 0 });
        }
        self.buffers.as_mut().ok_or_else(String::new)
    }

    /// Whether a message of so many bytes can be sent, where requests below `freed` have ended.
    pub(super) fn has_room_for(&self, bytes: usize, freed: u64) -> bool {
        let goes_along = bytes <= self.limits.inline as usize;
        goes_along
            || self
                .buffers
                .as_ref()
                .is_none_or(|buffers| buffers.users[buffers.next].is_none_or(|user| user < freed))
    }

    /// Where the device puts the result of the atomic operation with this number.
    pub(super) fn result(&mut self, request: u64) -> Result<Local, String> {
        let buffers = self.buffers()?;
        let start = buffers.memory.as_ptr();
        let nth = (request % RESULTS) as usize;
        let at = start.align_offset(size_of::<u64>()) + nth * size_of::<u64>();
        let local_key = buffers.registration.local_key();
        Ok(Local { address: start.wrapping_add(at) as u64, key: Some(local_key) })
    }

    /// Where a read whose result nobody wants puts it.
    pub(super) fn scratch(&self) -> Local {
        self.scratch
    }

    /// Posts a work request with this number, or adds it to a chain.
    pub(super) fn post(
        &mut self,
        id: u64,
        request: &WorkRequest<'_>,
        signalled: bool,
        chain: Option<&mut Chain>,
    ) -> Result<(), String> {
        // SAFETY: plain numbers and pointers, set below.
        let mut work: sys::ibv_send_wr = unsafe { std::mem::zeroed() };
        // SAFETY: plain numbers and pointers, set below.
        let mut parts: [sys::ibv_sge; 1] = unsafe { std::mem::zeroed() };
        let (opcode, count, goes_along) = match *request {
            WorkRequest::Nothing => (sys::IBV_WR_RDMA_WRITE, 0, false),
            WorkRequest::Write { local, remote, size, immediate } => {
                work.wr.rdma.remote_addr = remote.address;
                work.wr.rdma.rkey = remote.key;
                parts[0] = part(local, size);
                let goes_along = size <= u64::from(self.limits.inline);
                if local.key.is_none() && !goes_along {
                    return Err("the device does not know the memory to be sent".to_owned());
                }
                let opcode = match immediate {
                    Some(immediate) => {
                        work.__bindgen_anon_1.imm_data = immediate.to_be();
                        sys::IBV_WR_RDMA_WRITE_WITH_IMM
                    }
                    None => sys::IBV_WR_RDMA_WRITE,
                };
                (opcode, 1, goes_along)
            }
            WorkRequest::Read { local, remote, size } => {
                work.wr.rdma.remote_addr = remote.address;
                work.wr.rdma.rkey = remote.key;
                parts[0] = part(local, size);
                if local.key.is_none() {
                    return Err("the device does not know the memory to be read to".to_owned());
                }
                (sys::IBV_WR_RDMA_READ, 1, false)
            }
            WorkRequest::Atomic { local, remote, operation } => {
                parts[0] = part(local, size_of::<u64>() as u64);
                (set_atomic(&mut work, remote, operation), 1, false)
            }
            WorkRequest::Send(bytes) => {
                let goes_along;
                (parts[0], goes_along) = self.message(id, bytes)?;
                (sys::IBV_WR_SEND, 1, goes_along)
            }
        };
        work.wr_id = id;
        work.sg_list = parts.as_mut_ptr();
        work.num_sge = count;
        work.opcode = opcode;
        let flag = |is: bool, flag: u32| if is { flag } else { 0 };
        work.send_flags =
            flag(signalled, sys::IBV_SEND_SIGNALED) | flag(goes_along, sys::IBV_SEND_INLINE);
        if let Some(chain) = chain {
            chain.add(work, parts[0]);
            return Ok(());
        }
        // SAFETY: the memory that it names stays until the request has ended, by the caller.
        unsafe { self.post_chain(&raw mut work) }
    }

    /// Posts requests of which each names the next one.
    ///
    /// # Safety
    /// The memory that each names stays until it has ended.
    pub(super) unsafe fn post_chain(&self, first: *mut sys::ibv_send_wr) -> Result<(), String> {
        let mut refused = ptr::null_mut();
        // SAFETY: the caller's promise.
        let result = unsafe { inline::ibv_post_send(self.pair.as_ptr(), first, &raw mut refused) };
        check(result, POSTING)
    }

    /// Where a message lies, and whether it goes along with its request.
    fn message(&mut self, id: u64, bytes: &[u8]) -> Result<(sys::ibv_sge, bool), String> {
        let size = bytes.len() as u64;
        if bytes.len() <= self.limits.inline as usize {
            return Ok((part(Local { address: bytes.as_ptr() as u64, key: None }, size), true));
        }
        if bytes.len() >= BUFFER_BYTES {
            return Err(format!("a message of {size} bytes is too long"));
        }
        let buffers = self.buffers()?;
        let at = buffers.next;
        buffers.users[at] = Some(id);
        buffers.next = (at + 1) % BUFFERS;
        let from = at * BUFFER_BYTES;
        buffers.memory[from..from + bytes.len()].copy_from_slice(bytes);
        let address = buffers.memory.as_ptr() as u64 + from as u64;
        let key = Some(buffers.registration.local_key());
        Ok((part(Local { address, key }, size), false))
    }
}

/// What the pairs of a device share.
impl Handles {
    /// A completion queue with room for all that a pair can complete, and the one of what comes.
    fn take_entries(
        &self,
        entries: u32,
    ) -> Result<(NonNull<sys::ibv_cq>, NonNull<sys::ibv_cq>), NotMade> {
        let mut sent = self.sent.lock();
        if let Some(found) = sent.iter_mut().find(|sent| sent.free >= entries) {
            found.free -= entries;
            return Ok((found.queue, self.received));
        }
        // Each is larger than the one before: a look polls them all.
        let at_most = |size: u32| size.min(self.limits.entries).max(entries);
        let sizes = [at_most(SENT_ENTRIES << sent.len().min(16)), at_most(SENT_ENTRIES)];
        let made = sizes.into_iter().find_map(|size| {
            // SAFETY: context and channel are open.
            let made = unsafe {
                (self.library.ibv_create_cq)(
                    self.context.as_ptr(),
                    size.cast_signed(),
                    ptr::null_mut(),
                    self.channel.as_ptr(),
                    0,
                )
            };
            Some((NonNull::new(made)?, size))
        });
        let (queue, size) = made.ok_or_else(|| self.not_made("ibv_create_cq"))?;
        sent.push(SentQueue { queue, free: size - entries });
        Ok((queue, self.received))
    }

    /// What the library has said when it made nothing.
    fn not_made(&self, what: &str) -> NotMade {
        let error = io::Error::last_os_error();
        let reason = format!("{what}: {error}");
        match error.raw_os_error() {
            Some(libc::ENOMEM | libc::ENOSPC | libc::EAGAIN) => self.budget.short(format!(
                "the device has no more pairs ({reason}); {VARIABLE} sets how many a rank uses"
            )),
            _ => reason.into(),
        }
    }

    /// Gives the room of a pair that has ended back.
    fn give_back_entries(&self, queue: NonNull<sys::ibv_cq>, entries: u32) {
        if let Some(found) = self.sent.lock().iter_mut().find(|sent| sent.queue == queue) {
            found.free += entries;
        }
    }
}

/// A message with bytes of a connection, as it was posted.
pub(super) struct PostedBytes {
    /// How many bytes of the connection.
    pub(super) size: usize,
    pub(super) len: usize,
    /// Whether its end is told.
    pub(super) signalled: bool,
    /// The buffer that it is sent from, unless it goes along.
    pub(super) buffer: Option<usize>,
}

/// The bytes of connections.
impl QueuePair {
    /// Posts bytes as a message, as many as one takes; none without a free buffer, where requests
    /// below `freed` have ended. What goes along is put together in `along`.
    ///
    /// # Safety
    /// The pieces are readable.
    pub(super) unsafe fn post_bytes(
        &mut self,
        (id, freed): (u64, u64),
        (number, pieces): (u32, [Piece; 2]),
        signalled: bool,
        along: &mut Along,
    ) -> Result<Option<PostedBytes>, String> {
        let most = self.shape.bytes.min(self.limits.message as usize) - STREAM_HEAD;
        let size = (pieces[0].len + pieces[1].len).min(most);
        let len = STREAM_HEAD + size;
        let goes_along = len <= along.len().min(self.limits.inline as usize);
        let (to, key, buffer) = if goes_along {
            (along.as_mut_ptr(), None, None)
        } else {
            let bytes = self.shape.bytes;
            let buffers = self.buffers()?;
            let at = buffers.next;
            if buffers.users[at].is_some_and(|user| user >= freed) {
                return Ok(None);
            }
            buffers.users[at] = Some(id);
            buffers.next = (at + 1) % buffers.users.len();
            let to = buffers.memory[at * bytes..].as_mut_ptr();
            (to, Some(buffers.registration.local_key()), Some(at))
        };
        let first = size.min(pieces[0].len);
        // SAFETY: there is room for `len` bytes, and the pieces have so many.
        unsafe {
            to.cast::<[u8; STREAM_HEAD]>().write(number.to_le_bytes());
            let to = to.add(STREAM_HEAD);
            to.copy_from_nonoverlapping(pieces[0].pointer, first);
            to.add(first).copy_from_nonoverlapping(pieces[1].pointer, size - first);
        }
        // What takes a buffer gives it back soon.
        let signalled = signalled || !goes_along;
        let message = part(Local { address: to as u64, key }, len as u64);
        // SAFETY: a buffer is not used again before the request has ended.
        let result = unsafe { self.poster().send((id, signalled), message, goes_along) };
        check(result, POSTING)?;
        Ok(Some(PostedBytes { size, len, signalled, buffer }))
    }

    /// What was sent last from a buffer.
    pub(super) fn sent_from(&self, buffer: usize, len: usize) -> &[u8] {
        let start = buffer * self.shape.bytes;
        self.buffers.as_ref().map_or(&[], |buffers| &buffers.memory[start..start + len])
    }
}

/// Sets what an atomic operation needs; its opcode.
fn set_atomic(work: &mut sys::ibv_send_wr, remote: Remote, operation: AtomicOperation) -> u32 {
    let (opcode, compare_add, swap) = match operation {
        AtomicOperation::FetchAdd { add } => (sys::IBV_WR_ATOMIC_FETCH_AND_ADD, add, 0),
        AtomicOperation::CompareSwap { comparator, new } => {
            (sys::IBV_WR_ATOMIC_CMP_AND_SWP, comparator, new)
        }
    };
    work.wr.atomic.remote_addr = remote.address;
    work.wr.atomic.compare_add = compare_add;
    work.wr.atomic.swap = swap;
    work.wr.atomic.rkey = remote.key;
    opcode
}
