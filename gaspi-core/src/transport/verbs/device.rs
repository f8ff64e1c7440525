//! A device as an object: what is opened of it, memory registered with it, completions taken from
//! it.
//!
//! Invariant: everything that the device knows of keeps what it belongs to open, and is taken from
//! the device when it is dropped.

use super::atomics::AtomicReach;
use super::budget::{self, Budget};
use super::opened::{Opened, Wishes, load};
use super::port::{DeviceLimits, GidTable, Port};
use super::port_rows::PortRow;
use super::select::{self, GidEntry, NoDevice};
use super::subnet::{Favoured, Subnet};
use super::work::{EndAddress, Local, Remote, Timing, last_error};
use crate::config::{DeviceChoice, MessageCarrier, Network, WriteEnd};
use crate::os::event::set_nonblocking;
use crate::os::memory::{self, Mapping};
use crate::sync::{AtomicBool, AtomicU8, Mutex, Ordering};
use libibverbs_sys::{self as sys, Library, inline};
use std::ffi::CStr;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// Entries of a completion queue of sent requests; more queues are made as pairs come.
pub(super) const SENT_ENTRIES: u32 = 4096;
/// Bytes of a buffer for messages that come.
pub(super) const RECEIVE_BYTES: usize = 2048;

/// A completion queue of sent requests, and for how many pairs it has room.
#[derive(Debug)]
pub(super) struct SentQueue {
    pub(super) queue: NonNull<sys::ibv_cq>,
    pub(super) free: u32,
}

/// An open device. Its parts end in the opposite order of their making.
#[derive(Debug)]
pub(super) struct Handles {
    pub(super) library: Library,
    pub(super) context: NonNull<sys::ibv_context>,
    pub(super) domain: NonNull<sys::ibv_pd>,
    pub(super) channel: NonNull<sys::ibv_comp_channel>,
    pub(super) received: NonNull<sys::ibv_cq>,
    pub(super) receives: NonNull<sys::ibv_srq>,
    pub(super) sent: Mutex<Vec<SentQueue>>,
    pub(super) budget: Budget,
    name: String,
    pub(super) port: Port,
    /// Where the GID was seen last.
    gid_index: AtomicU8,
    pub(super) limits: DeviceLimits,
    pub(super) timing: Timing,
    /// Whether peers may have it execute atomic operations.
    pub(super) atomics: bool,
    /// The process that has opened it.
    process: u32,
}

// SAFETY: libibverbs may be called by any thread, with any object.
unsafe impl Send for Handles {}
// SAFETY: as for Send; each object has a lock of its own in the library.
unsafe impl Sync for Handles {}

/// A device.
#[derive(Debug)]
pub(crate) struct Device {
    flush_target: FlushTarget,
    pub(super) handles: Arc<Handles>,
    description: String,
    rows: Vec<PortRow>,
    networks: Vec<Subnet>,
    write_end: WriteEnd,
    messages: MessageCarrier,
    /// How many pairs were asked for.
    pairs: Option<u32>,
    /// Whether the rank has what it takes to vouch for it.
    pub(super) vouches: AtomicBool,
    /// A completion queue could not be looked at: what is under way may never be heard of.
    pub(super) is_blind: AtomicBool,
}

impl super::DeviceTable {
    /// What was found about each port, in words.
    pub(crate) fn report(&self) -> Vec<String> {
        self.device.rows().iter().map(ToString::to_string).collect()
    }
}

impl Device {
    /// Opens the device that is chosen by the wishes and by rule.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn open(wishes: &Wishes) -> Result<Device, NoDevice> {
        let missing = NoDevice::Missing;
        let library = load(&wishes.choice).map_err(missing)?;
        let Opened { context, name, port, limits, rows, networks } = Opened::new(&library, wishes)?;
        let kind = if port.global { "RoCE" } else { "InfiniBand" };
        let description = format!("{name}, port {}, {kind}", port.number);
        let timing = Timing::of(wishes.dead_after);
        let handles = Handles::new(library, context, name, port, limits, timing);
        let mut handles = handles.map_err(missing)?;
        handles.atomics = wishes.choice.atomics;
        let handles = Arc::new(handles);
        let flush_target = FlushTarget::new(&handles).map_err(missing)?;
        let DeviceChoice { write_end, messages, pairs, .. } = wishes.choice;
        Ok(Device {
            flush_target,
            handles,
            description,
            rows,
            networks,
            write_end,
            messages,
            pairs,
            vouches: AtomicBool::new(false),
            is_blind: AtomicBool::new(false),
        })
    }

    /// The networks of ports that could be used, the best one first.
    pub(crate) fn networks(&self) -> Vec<(IpAddr, u8)> {
        self.networks.iter().map(|network| network.parts()).collect()
    }

    /// Whether its port is in the first of the networks that this rank has.
    pub(crate) fn suits(&self, favoured: &Favoured) -> bool {
        let place = favoured.place_of(self.handles.port.subnet);
        self.networks.iter().all(|other| place <= favoured.place_of(Some(*other)))
    }

    /// So many ranks of this machine use it, this one among them: settles how many pairs it has.
    pub(crate) fn share_among(&self, sharers: u32) {
        let DeviceLimits { entries, depth, counts, .. } = self.handles.limits;
        let pairs_each = (SENT_ENTRIES.min(entries) / depth).max(1);
        let share = budget::share(counts, pairs_each, sharers);
        self.handles.budget.set_limit(self.pairs.unwrap_or(share));
        log::debug!("proc_init: {} pairs at most", self.pairs.unwrap_or(share));
    }

    /// What was found about each port: whether it is used, and why.
    pub(crate) fn rows(&self) -> &[PortRow] {
        &self.rows
    }

    pub(crate) fn description(&self) -> &str {
        &self.description
    }

    /// What its port is on.
    pub(crate) fn network(&self) -> Network {
        if self.handles.port.global { Network::Roce } else { Network::InfiniBand }
    }

    pub(super) fn channel(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the channel.
        unsafe { BorrowedFd::borrow_raw(self.handles.channel.as_ref().fd) }
    }

    /// Registers memory, for requests of this rank and of peers.
    ///
    /// # Errors
    /// In words, with the remedy.
    pub(super) fn register(&self, start: *mut u8, len: u64) -> Result<Registration, String> {
        Registration::new(&self.handles, start, len)
    }

    /// Registers memory for requests of this rank that only read it.
    ///
    /// # Errors
    /// In words, with the remedy.
    pub(super) fn register_source(
        &self,
        start: *const u8,
        len: u64,
    ) -> Result<Registration, String> {
        Registration::with(&self.handles, start.cast_mut(), len, 0)
    }

    /// What peers may read behind their writes, and where such reads of this rank arrive.
    pub(super) fn flush_memory(&self) -> (Remote, Local) {
        (self.flush_target.place(), self.flush_target.scratch())
    }

    /// When a write of this rank is done.
    pub(super) fn write_end(&self) -> WriteEnd {
        self.write_end
    }

    /// Its name, which is that of the same device in all processes of the node.
    pub(super) fn name(&self) -> &str {
        &self.handles.name
    }

    /// Whether it executes atomic operations, as GASPI_ATOMICS asks, and with what they are atomic.
    pub(crate) fn atomics(&self) -> Option<AtomicReach> {
        self.handles.atomics.then_some(self.handles.limits.atomics)
    }

    /// Whether it carries messages too, not data alone.
    pub(super) fn carries_messages(&self) -> bool {
        self.messages() == MessageCarrier::Device
    }

    pub(super) fn messages(&self) -> MessageCarrier {
        self.messages
    }

    /// Has the channel say when the next completion comes.
    pub(super) fn arm(&self) {
        self.request_events(false);
    }

    /// Has the channel say when the next message comes for which somebody may wait, or a request
    /// fails: a message that was lost has to be sent again, whatever its sender does.
    pub(super) fn arm_for_messages(&self) {
        self.request_events(true);
    }

    fn request_events(&self, solicited_or_failed: bool) {
        let request = |queue: NonNull<sys::ibv_cq>| {
            // SAFETY: the queue lives as long as the handles.
            unsafe { inline::ibv_req_notify_cq(queue.as_ptr(), solicited_or_failed.into()) };
        };
        request(self.handles.received);
        self.handles.sent.lock().iter().for_each(|sent| request(sent.queue));
    }

    /// Takes what the channel has said.
    pub(super) fn drain_channel(&self) {
        let verbs = &self.handles.library;
        loop {
            let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
            let channel = self.handles.channel.as_ptr();
            // SAFETY: the channel does not block, and what it gives is a queue of this device.
            unsafe {
                let found = (verbs.ibv_get_cq_event)(channel, &raw mut queue, &raw mut context);
                if found != 0 {
                    return;
                }
                (verbs.ibv_ack_cq_events)(queue, 1);
            }
        }
    }

    /// Why a request has failed.
    pub(super) fn in_words(&self, status: u32, vendor: u32) -> String {
        let what = match status {
            sys::IBV_WC_RETRY_EXC_ERR => "the peer's device does not answer",
            sys::IBV_WC_RNR_RETRY_EXC_ERR => "the peer takes no messages",
            sys::IBV_WC_REM_ACCESS_ERR => {
                "the peer's device refuses the access: the segment was deleted there"
            }
            sys::IBV_WC_LOC_PROT_ERR => "this rank's device does not know the local memory",
            // Without an error before it: that was of a request of the other end.
            sys::IBV_WC_WR_FLUSH_ERR => {
                "the pair was ended by an access of the other end, as to a segment that was deleted"
            }
            _ => "the device reports an error",
        };
        // SAFETY: the library has a text for each number.
        let text = unsafe {
            let text = (self.handles.library.ibv_wc_status_str)(status);
            if text.is_null() { c"unknown" } else { CStr::from_ptr(text) }
        };
        format!("{what} ({}, vendor code {vendor})", text.to_string_lossy())
    }
}

impl Handles {
    fn new(
        library: Library,
        context: NonNull<sys::ibv_context>,
        name: String,
        port: Port,
        limits: DeviceLimits,
        timing: Timing,
    ) -> Result<Handles, String> {
        // SAFETY: the context is open; each part is made of those before.
        let made = unsafe {
            let domain = NonNull::new((library.ibv_alloc_pd)(context.as_ptr()));
            let channel = NonNull::new((library.ibv_create_comp_channel)(context.as_ptr()));
            let received = channel.and_then(|channel| {
                let entries = limits.receives.cast_signed();
                NonNull::new((library.ibv_create_cq)(
                    context.as_ptr(),
                    entries,
                    ptr::null_mut(),
                    channel.as_ptr(),
                    0,
                ))
            });
            let receives = domain.and_then(|domain| {
                let mut attr: sys::ibv_srq_init_attr = std::mem::zeroed();
                attr.attr.max_wr = limits.receives;
                attr.attr.max_sge = 1;
                NonNull::new((library.ibv_create_srq)(domain.as_ptr(), &raw mut attr))
            });
            (domain, channel, received, receives)
        };
        let (Some(domain), Some(channel), Some(received), Some(receives)) = made else {
            let reason = last_error(&format!("making queues on {name}"));
            let (domain, channel, received, receives) = made;
            // SAFETY: made above, given back once.
            unsafe {
                receives.map(|it| (library.ibv_destroy_srq)(it.as_ptr()));
                received.map(|it| (library.ibv_destroy_cq)(it.as_ptr()));
                channel.map(|it| (library.ibv_destroy_comp_channel)(it.as_ptr()));
                domain.map(|it| (library.ibv_dealloc_pd)(it.as_ptr()));
                (library.ibv_close_device)(context.as_ptr());
            }
            return Err(reason);
        };
        // SAFETY: open as long as the channel and the context.
        let set = unsafe {
            let channel = BorrowedFd::borrow_raw(channel.as_ref().fd);
            let events = BorrowedFd::borrow_raw(context.as_ref().async_fd);
            set_nonblocking(channel).and_then(|()| set_nonblocking(events))
        };
        let handles = Handles {
            library,
            context,
            domain,
            channel,
            received,
            receives,
            sent: Mutex::default(),
            budget: Budget::default(),
            name,
            port,
            gid_index: AtomicU8::new(port.gid.index),
            limits,
            timing,
            atomics: false,
            process: std::process::id(),
        };
        set.map_err(|error| format!("its channels: {error}"))?;
        Ok(handles)
    }

    /// The GID that a new pair has, looked up anew: where it is now, or what takes its place.
    pub(super) fn present_gid(&self) -> Result<GidEntry, String> {
        let Port { gid: before, wanted_gid, number, .. } = self.port;
        if let Some(index) = self.index_of(before) {
            return Ok(GidEntry { index, ..before });
        }
        let there = self.gid_table().all(&self.name);
        let found = select::gid_again(&there, before, wanted_gid);
        found.ok_or_else(|| {
            format!("the GID {before} of {}, port {number}, is gone, without another", self.name)
        })
    }

    /// Where a GID of the port is now.
    pub(super) fn index_of(&self, gid: GidEntry) -> Option<u8> {
        let table = self.gid_table();
        let same = |entry: &GidEntry| (entry.gid, entry.kind) == (gid.gid, gid.kind);
        // Most often it is where it was.
        let last = table.entry(self.gid_index.load(Ordering::Relaxed), &self.name);
        let found = last.filter(same).or_else(|| table.all(&self.name).into_iter().find(same));
        let index = found?.index;
        self.gid_index.store(index, Ordering::Relaxed);
        Some(index)
    }

    /// Whether a GID is still where a pair has it from, if pairs need one.
    pub(super) fn is_in_place(&self, gid: GidEntry) -> bool {
        let needed = self.port.global || self.port.needs_header;
        !needed || self.gid_table().entry(gid.index, &self.name) == Some(gid)
    }

    fn gid_table(&self) -> GidTable<'_> {
        let Port { number, global, .. } = self.port;
        GidTable { library: &self.library, context: self.context, port: number, ethernet: global }
    }

    /// Where an end with this GID answers.
    pub(super) fn address(&self, gid: GidEntry) -> EndAddress {
        let Port { lid, mtu, global, .. } = self.port;
        // Ports of Ethernet have none, whatever their driver tells.
        let lid = if global { 0 } else { self.gid_table().lid().unwrap_or(lid) };
        EndAddress { gid: gid.gid, lid, mtu, reads: self.limits.reads }
    }
}

impl Drop for Handles {
    fn drop(&mut self) {
        let verbs = &self.library;
        // SAFETY: all that belongs to them has ended, and each ends once.
        unsafe {
            (verbs.ibv_destroy_srq)(self.receives.as_ptr());
            for sent in self.sent.lock().iter() {
                (verbs.ibv_destroy_cq)(sent.queue.as_ptr());
            }
            (verbs.ibv_destroy_cq)(self.received.as_ptr());
            (verbs.ibv_destroy_comp_channel)(self.channel.as_ptr());
            (verbs.ibv_dealloc_pd)(self.domain.as_ptr());
            (verbs.ibv_close_device)(self.context.as_ptr());
        }
    }
}

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
            | sys::IBV_ACCESS_REMOTE_READ
            | handles.atomic_rights();
        Registration::with(handles, start, len, rights)
    }

    fn with(
        handles: &Arc<Handles>,
        start: *mut u8,
        len: u64,
        rights: u32,
    ) -> Result<Registration, String> {
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
        let region = NonNull::new(region).ok_or_else(|| refusal(len, rights))?;
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
        // A forked child has no right to what its parent uses.
        if self.handles.process != std::process::id() {
            return;
        }
        // SAFETY: registered once, given back once.
        unsafe { (self.handles.library.ibv_dereg_mr)(self.region.as_ptr()) };
    }
}

/// Memory that peers read behind their writes, for nothing but that they know when it has happened.
#[derive(Debug)]
struct FlushTarget {
    registration: Registration,
    memory: Mapping,
}

impl FlushTarget {
    fn new(handles: &Arc<Handles>) -> Result<FlushTarget, String> {
        let file = memory::create(c"gaspi-flush", memory::PAGE, false);
        let file = file.map_err(|error| error.to_string())?;
        let memory = Mapping::new(file.as_fd(), 0, memory::PAGE);
        let memory = memory.map_err(|error| format!("memory to be read: {error}"))?;
        let registration = Registration::new(handles, memory.as_ptr(), memory::PAGE)?;
        Ok(FlushTarget { registration, memory })
    }

    fn place(&self) -> Remote {
        let (address, key) = (self.memory.as_ptr() as u64, self.registration.remote_key());
        Remote { address, key }
    }

    /// Where reads arrive whose result nobody wants, those of all pairs. Peers read other bytes.
    fn scratch(&self) -> Local {
        let address = self.memory.as_ptr() as u64 + memory::PAGE / 2;
        Local { address, key: Some(self.registration.local_key()) }
    }
}

/// Why memory was not registered with these rights, and what to do about it.
fn refusal(len: u64, rights: u32) -> String {
    let error = io::Error::last_os_error();
    let is_written = rights & sys::IBV_ACCESS_LOCAL_WRITE != 0;
    match error.raw_os_error() {
        Some(libc::ENOMEM) => format!(
            "the device cannot register {len} bytes ({error}); raise the limit of locked memory \
             (ulimit -l unlimited, or memlock in /etc/security/limits.conf)"
        ),
        Some(libc::EFAULT) => format!(
            "the device cannot register {len} bytes ({error}); all of that memory has to be \
             mapped{}",
            if is_written { " and writable" } else { "" }
        ),
        _ => format!("the device cannot register {len} bytes: {error}"),
    }
}
