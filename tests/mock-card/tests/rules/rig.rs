//! Ranks for tests: each has a device, a domain, queues, registered memory and pairs.

use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::{LazyLock, mpsc};
use std::time::Duration;

use gaspi_mock_card::{Fabric, MockCard, Options};
use libibverbs_sys as sys;
use sys::inline;
use sys::{
    Library, ibv_comp_channel, ibv_context, ibv_cq, ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr,
    ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq, ibv_wc,
};

/// The library under test, as a program loads it.
pub(crate) static VERBS: LazyLock<Library> = LazyLock::new(|| {
    let path = CARD.path().as_os_str().to_owned();
    Library::load(Some(&path)).expect("the mock card has all functions")
});

/// Its control side.
pub(crate) static CARD: LazyLock<MockCard> =
    LazyLock::new(|| MockCard::load().expect("cargo builds the library beside its tests"));

pub(crate) const ALL: u32 = sys::IBV_ACCESS_LOCAL_WRITE
    | sys::IBV_ACCESS_REMOTE_WRITE
    | sys::IBV_ACCESS_REMOTE_READ
    | sys::IBV_ACCESS_REMOTE_ATOMIC;

/// Bytes of a rank's memory.
pub(crate) const BYTES: usize = 4096;

/// Runs a test in time, or ends the process.
pub(crate) fn guarded(test: impl FnOnce()) {
    let (done, over) = mpsc::channel::<()>();
    std::thread::spawn(move || {
        if over.recv_timeout(Duration::from_secs(60)) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("a test of the mock card hangs");
            std::process::abort();
        }
    });
    test();
    drop(done);
}

/// What a rank is made with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Make {
    pub(crate) entries: c_int,
    pub(crate) sends: u32,
    pub(crate) receives: u32,
    pub(crate) shared: u32,
    pub(crate) channel: bool,
}

impl Default for Make {
    fn default() -> Make {
        Make { entries: 64, sends: 16, receives: 16, shared: 0, channel: false }
    }
}

/// A rank.
pub(crate) struct Rank {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) cq: *mut ibv_cq,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) mr: *mut ibv_mr,
    pub(crate) qps: Vec<*mut ibv_qp>,
    pub(crate) memory: Box<[u64; BYTES / 8]>,
    pub(crate) make: Make,
}

impl Rank {
    /// A rank on a device of its own.
    pub(crate) fn new(fabric: &Fabric, device: u32, make: Make) -> Rank {
        fabric.use_device(device);
        Rank::on(open(), make)
    }

    /// A rank on an open device.
    pub(crate) fn on(context: *mut ibv_context, make: Make) -> Rank {
        // SAFETY: a verbs program, with objects of its own.
        unsafe {
            let pd = (VERBS.ibv_alloc_pd)(context);
            let mut channel = null_mut();
            if make.channel {
                channel = (VERBS.ibv_create_comp_channel)(context);
            }
            let cq = (VERBS.ibv_create_cq)(context, make.entries, null_mut(), channel, 0);
            let mut srq = null_mut();
            if make.shared > 0 {
                let mut wanted: sys::ibv_srq_init_attr = zeroed();
                (wanted.attr.max_wr, wanted.attr.max_sge) = (make.shared, 2);
                srq = (VERBS.ibv_create_srq)(pd, &raw mut wanted);
                assert!(!srq.is_null());
            }
            assert!(!pd.is_null() && !cq.is_null());
            let mut memory = Box::new([0; BYTES / 8]);
            let mr = register(pd, memory.as_mut_ptr().cast(), BYTES, ALL);
            assert!(!mr.is_null());
            Rank { context, pd, channel, cq, srq, mr, qps: Vec::new(), memory, make }
        }
    }

    pub(crate) fn address(&self, offset: usize) -> u64 {
        self.memory.as_ptr() as u64 + offset as u64
    }

    /// A byte as another program's writes have left it.
    pub(crate) fn byte(&self, offset: usize) -> u8 {
        // SAFETY: within the memory.
        unsafe { (self.address(offset) as *const u8).read_volatile() }
    }

    pub(crate) fn set(&mut self, offset: usize, bytes: &[u8]) {
        for (at, byte) in bytes.iter().enumerate() {
            // SAFETY: within the memory.
            unsafe { ((self.address(offset + at)) as *mut u8).write_volatile(*byte) };
        }
    }

    pub(crate) fn bytes(&self, offset: usize, length: usize) -> Vec<u8> {
        (offset..offset + length).map(|at| self.byte(at)).collect()
    }

    /// A pair in state RESET.
    pub(crate) fn pair(&mut self) -> usize {
        let qp = self.try_pair();
        assert!(!qp.is_null(), "{}", std::io::Error::last_os_error());
        self.qps.push(qp);
        self.qps.len() - 1
    }

    pub(crate) fn try_pair(&self) -> *mut ibv_qp {
        // SAFETY: a verbs program, with objects of its own.
        unsafe {
            let mut wanted: ibv_qp_init_attr = zeroed();
            (wanted.send_cq, wanted.recv_cq, wanted.srq) = (self.cq, self.cq, self.srq);
            wanted.qp_type = sys::IBV_QPT_RC;
            wanted.cap.max_send_wr = self.make.sends;
            wanted.cap.max_recv_wr = self.make.receives;
            (wanted.cap.max_send_sge, wanted.cap.max_recv_sge) = (2, 2);
            wanted.cap.max_inline_data = 64;
            (VERBS.ibv_create_qp)(self.pd, &raw mut wanted)
        }
    }

    pub(crate) fn number(&self, pair: usize) -> u32 {
        // SAFETY: it exists.
        unsafe { (*self.qps[pair]).qp_num }
    }

    pub(crate) fn modify(&self, pair: usize, wanted: &mut ibv_qp_attr, mask: u32) -> c_int {
        // SAFETY: it exists.
        unsafe { (VERBS.ibv_modify_qp)(self.qps[pair], wanted, mask as c_int) }
    }

    /// The GID of RoCE v2 over IPv4: index and bytes.
    pub(crate) fn gid(&self) -> (u8, [u8; 16]) {
        for index in 0..8 {
            // SAFETY: integers and bytes; then a verbs program.
            unsafe {
                let mut entry: sys::ibv_gid_entry = zeroed();
                let query = VERBS._ibv_query_gid_ex.expect("the mock has it");
                let size = size_of::<sys::ibv_gid_entry>();
                let found = query(self.context, 1, index, &raw mut entry, 0, size) == 0;
                let v2 = entry.gid_type == sys::IBV_GID_TYPE_ROCE_V2;
                if found && v2 && entry.gid.raw[..2] == [0, 0] {
                    return (index as u8, entry.gid.raw);
                }
            }
        }
        panic!("no GID of RoCE v2");
    }

    /// The attributes of a pair that is connected to `peer`.
    pub(crate) fn attributes(&self, peer: &Rank, peer_pair: usize) -> ibv_qp_attr {
        // SAFETY: integers and bytes.
        let mut all: ibv_qp_attr = unsafe { zeroed() };
        (all.port_num, all.qp_access_flags) = (1, ALL);
        (all.path_mtu, all.dest_qp_num) = (sys::IBV_MTU_1024, peer.number(peer_pair));
        (all.max_rd_atomic, all.max_dest_rd_atomic) = (4, 4);
        (all.min_rnr_timer, all.timeout, all.retry_cnt, all.rnr_retry) = (12, 14, 6, 7);
        (all.rq_psn, all.sq_psn) = (77, 77);
        all.ah_attr.is_global = 1;
        (all.ah_attr.port_num, all.ah_attr.grh.hop_limit) = (1, 64);
        all.ah_attr.grh.sgid_index = self.gid().0;
        all.ah_attr.grh.dgid.raw = peer.gid().1;
        all
    }

    /// Takes a pair to RTS by its attributes.
    pub(crate) fn ready(&self, pair: usize, all: &mut ibv_qp_attr) {
        for (state, mask) in STEPS {
            all.qp_state = state;
            assert_eq!(self.modify(pair, all, mask), 0, "to state {state}");
        }
    }

    pub(crate) fn sge(&self, offset: usize, length: usize) -> ibv_sge {
        // SAFETY: it exists.
        let lkey = unsafe { (*self.mr).lkey };
        ibv_sge { addr: self.address(offset), length: length as u32, lkey }
    }

    pub(crate) fn remote_key(&self) -> u32 {
        // SAFETY: it exists.
        unsafe { (*self.mr).rkey }
    }

    pub(crate) fn post(&self, pair: usize, send: &Send) -> c_int {
        self.post_list(pair, std::slice::from_ref(send)).map_or_else(|(_, error)| error, |()| 0)
    }

    /// Posts a list; otherwise which was refused, and why.
    pub(crate) fn post_list(&self, pair: usize, sends: &[Send]) -> Result<(), (u64, c_int)> {
        let mut sges: Vec<ibv_sge> = sends.iter().map(|send| send.sge).collect();
        let mut list: Vec<ibv_send_wr> = sends.iter().map(Send::request).collect();
        for at in 0..list.len() {
            list[at].sg_list = &raw mut sges[at];
            list[at].num_sge = c_int::from(sges[at].length > 0);
            if at + 1 < list.len() {
                list[at].next = &raw mut list[at + 1];
            }
        }
        let mut bad = null_mut();
        // SAFETY: a list of requests that lives until the call returns.
        unsafe {
            match inline::ibv_post_send(self.qps[pair], list.as_mut_ptr(), &raw mut bad) {
                0 => Ok(()),
                error => Err(((*bad).wr_id, error)),
            }
        }
    }

    /// Posts a receive, to the shared queue if there is one.
    pub(crate) fn receive(&self, pair: usize, id: u64, offset: usize, length: usize) -> c_int {
        let mut sge = self.sge(offset, length);
        let (wr_id, next, sg_list, num_sge) = (id, null_mut(), &raw mut sge, 1);
        let mut wr = ibv_recv_wr { wr_id, next, sg_list, num_sge };
        let mut bad = null_mut();
        // SAFETY: a receive that lives until the call returns.
        unsafe {
            match self.srq.is_null() {
                true => inline::ibv_post_recv(self.qps[pair], &raw mut wr, &raw mut bad),
                false => inline::ibv_post_srq_recv(self.srq, &raw mut wr, &raw mut bad),
            }
        }
    }

    /// One look at the completion queue.
    pub(crate) fn poll(&self) -> Option<ibv_wc> {
        // SAFETY: integers; then a verbs program.
        unsafe {
            let mut entry: ibv_wc = zeroed();
            match inline::ibv_poll_cq(self.cq, 1, &raw mut entry) {
                0 => None,
                1 => Some(entry),
                other => panic!("poll said {other}"),
            }
        }
    }

    /// Polls until there is a completion.
    pub(crate) fn next(&self) -> ibv_wc {
        loop {
            if let Some(found) = self.poll() {
                return found;
            }
            std::thread::yield_now();
        }
    }

    pub(crate) fn state(&self, pair: usize) -> u32 {
        // SAFETY: a verbs program.
        unsafe {
            let (mut all, mut made): (ibv_qp_attr, ibv_qp_init_attr) = (zeroed(), zeroed());
            let done = (VERBS.ibv_query_qp)(self.qps[pair], &raw mut all, 1, &raw mut made);
            assert_eq!(done, 0);
            all.qp_state
        }
    }

    pub(crate) fn arm(&self, solicited_only: bool) {
        // SAFETY: a verbs program.
        let done = unsafe { inline::ibv_req_notify_cq(self.cq, c_int::from(solicited_only)) };
        assert_eq!(done, 0);
    }

    /// Whether the descriptor of the channel is readable, now or within some time.
    pub(crate) fn is_told(&self, ms: c_int) -> bool {
        // SAFETY: it exists.
        is_readable(unsafe { (*self.channel).fd }, ms)
    }

    /// The next asynchronous event, which must be there soon.
    pub(crate) fn event(&self) -> sys::ibv_async_event {
        // SAFETY: a verbs program.
        unsafe {
            assert!(is_readable((*self.context).async_fd, 10_000), "no event");
            let mut event: sys::ibv_async_event = zeroed();
            assert_eq!((VERBS.ibv_get_async_event)(self.context, &raw mut event), 0);
            (VERBS.ibv_ack_async_event)(&raw mut event);
            event
        }
    }

    pub(crate) fn has_event(&self) -> bool {
        // SAFETY: it exists.
        is_readable(unsafe { (*self.context).async_fd }, 0)
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // SAFETY: a verbs program gives back what it made.
        unsafe {
            for qp in self.qps.drain(..) {
                assert_eq!((VERBS.ibv_destroy_qp)(qp), 0);
            }
            if !self.srq.is_null() {
                assert_eq!((VERBS.ibv_destroy_srq)(self.srq), 0);
            }
            if !self.mr.is_null() {
                assert_eq!((VERBS.ibv_dereg_mr)(self.mr), 0);
            }
            assert_eq!((VERBS.ibv_destroy_cq)(self.cq), 0);
            if !self.channel.is_null() {
                assert_eq!((VERBS.ibv_destroy_comp_channel)(self.channel), 0);
            }
            assert_eq!((VERBS.ibv_dealloc_pd)(self.pd), 0);
            assert_eq!((VERBS.ibv_close_device)(self.context), 0);
        }
    }
}

fn is_readable(fd: c_int, ms: c_int) -> bool {
    let mut watched = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: kernel writes within.
    unsafe { libc::poll(&raw mut watched, 1, ms) == 1 }
}

/// The masks that take a pair to INIT, RTR and RTS.
pub(crate) const STEPS: [(u32, u32); 3] = [
    (
        sys::IBV_QPS_INIT,
        sys::IBV_QP_STATE | sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_PORT | sys::IBV_QP_ACCESS_FLAGS,
    ),
    (
        sys::IBV_QPS_RTR,
        sys::IBV_QP_STATE
            | sys::IBV_QP_AV
            | sys::IBV_QP_PATH_MTU
            | sys::IBV_QP_DEST_QPN
            | sys::IBV_QP_RQ_PSN
            | sys::IBV_QP_MAX_DEST_RD_ATOMIC
            | sys::IBV_QP_MIN_RNR_TIMER,
    ),
    (
        sys::IBV_QPS_RTS,
        sys::IBV_QP_STATE
            | sys::IBV_QP_TIMEOUT
            | sys::IBV_QP_RETRY_CNT
            | sys::IBV_QP_RNR_RETRY
            | sys::IBV_QP_SQ_PSN
            | sys::IBV_QP_MAX_QP_RD_ATOMIC,
    ),
];

/// A request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Send {
    pub(crate) id: u64,
    pub(crate) opcode: u32,
    pub(crate) flags: u32,
    pub(crate) sge: ibv_sge,
    pub(crate) remote: u64,
    pub(crate) key: u32,
    pub(crate) operands: (u64, u64),
    pub(crate) immediate: u32,
}

impl Send {
    /// A signalled request between the same offsets of two ranks.
    pub(crate) fn new(id: u64, opcode: u32, from: &Rank, to: &Rank, at: (usize, usize)) -> Send {
        let (offset, length) = at;
        Send {
            id,
            opcode,
            flags: sys::IBV_SEND_SIGNALED,
            sge: from.sge(offset, length),
            remote: to.address(offset),
            key: to.remote_key(),
            operands: (0, 0),
            immediate: 0,
        }
    }

    pub(crate) fn flags(self, flags: u32) -> Send {
        Send { flags, ..self }
    }

    fn request(&self) -> ibv_send_wr {
        // SAFETY: integers and pointers.
        let mut wr: ibv_send_wr = unsafe { zeroed() };
        (wr.wr_id, wr.opcode, wr.send_flags) = (self.id, self.opcode, self.flags);
        if self.opcode >= sys::IBV_WR_ATOMIC_CMP_AND_SWP {
            wr.wr.atomic.remote_addr = self.remote;
            wr.wr.atomic.rkey = self.key;
            wr.wr.atomic.compare_add = self.operands.0;
            wr.wr.atomic.swap = self.operands.1;
        } else {
            wr.wr.rdma.remote_addr = self.remote;
            wr.wr.rdma.rkey = self.key;
        }
        wr.__bindgen_anon_1.imm_data = self.immediate;
        wr
    }
}

/// Opens the only device that this thread sees.
pub(crate) fn open() -> *mut ibv_context {
    // SAFETY: a verbs program.
    unsafe {
        let mut count = 0;
        let list = (VERBS.ibv_get_device_list)(&raw mut count);
        assert_eq!(count, 1);
        let context = (VERBS.ibv_open_device)(*list);
        (VERBS.ibv_free_device_list)(list);
        assert!(!context.is_null(), "{}", std::io::Error::last_os_error());
        context
    }
}

pub(crate) fn register(pd: *mut ibv_pd, at: *mut u8, length: usize, access: u32) -> *mut ibv_mr {
    // SAFETY: the caller's memory; a wrong one is refused.
    unsafe { inline::ibv_reg_mr(&VERBS, pd, at.cast(), length, access) }
}

/// Connects a new pair of each.
pub(crate) fn connect(one: &mut Rank, other: &mut Rank) -> usize {
    let (first, second) = (one.pair(), other.pair());
    assert_eq!(first, second, "both have as many pairs");
    let mut all = one.attributes(other, second);
    one.ready(first, &mut all);
    let mut all = other.attributes(one, first);
    other.ready(second, &mut all);
    first
}

/// Two ranks with a pair, in a fabric of these options.
pub(crate) fn two(options: &Options, make: Make) -> (Fabric, Rank, Rank) {
    let fabric = CARD.fabric(options);
    let mut one = Rank::new(&fabric, 0, make);
    let mut other = Rank::new(&fabric, 1, make);
    connect(&mut one, &mut other);
    (fabric, one, other)
}

/// Requests wait until `settle` or a poll carries them out; bytes are placed when forced only.
pub(crate) fn strict() -> Options {
    let mut options = Options::unkind(1);
    (options.behaviour.placement, options.behaviour.time_scale) = (2, 0);
    options
}

/// Requests are done when posted; time stands still.
pub(crate) fn still() -> Options {
    let mut options = Options::kind();
    options.behaviour.time_scale = 0;
    options
}
