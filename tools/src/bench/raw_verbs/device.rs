//! The device of raw pairs: which one and which port, its completion queues, and memory that it
//! knows.

use crate::failure::{Failure, Result};
use crate::memory::Region;
use libibverbs_sys::{self as sys, Library, inline};
use std::ffi::CStr;
use std::io;
use std::ptr::{self, NonNull};

/// The variables that tell the library, and this program alike, which device to use.
const FILE: &str = "GASPI_IBVERBS_LIB";
const DEVICE: &str = "GASPI_IB_DEVICE";
/// Requests that have not ended, at most: all of a batch of calls that only post.
const DEPTH: u32 = 1024;
/// Fewer are not enough for chains whose requests are not all told of.
pub(super) const DEPTH_MIN: u32 = 8;
/// Reads that a pair has under way, at most.
const READS: i32 = 16;
/// Rights of the owner and of peers on memory.
const RIGHTS: u32 =
    sys::IBV_ACCESS_LOCAL_WRITE | sys::IBV_ACCESS_REMOTE_WRITE | sys::IBV_ACCESS_REMOTE_READ;

/// What the device or its library refuses.
pub(super) fn failure(reason: impl std::fmt::Display) -> Failure {
    Failure::run(format!("no raw verbs for the limits: {reason}"))
}

/// The error that a function has left in `errno`.
pub(super) fn last_error(what: &str) -> Failure {
    failure(format!("{what}: {}", io::Error::last_os_error()))
}

/// The result of a function that returns an error number.
pub(super) fn check(result: i32, what: &str) -> Result<()> {
    match result {
        0 => Ok(()),
        -1 => Err(last_error(what)),
        error => Err(failure(format!("{what}: {}", io::Error::from_raw_os_error(error)))),
    }
}

/// A port, as it is used here.
#[derive(Debug, Clone, Copy)]
pub(super) struct Port {
    pub(super) number: u8,
    pub(super) lid: u16,
    pub(super) mtu: u8,
    /// Whether addresses are GIDs, as they are on Ethernet.
    pub(super) global: bool,
    pub(super) gid_index: u8,
    pub(super) gid: [u8; 16],
    /// Bytes of one request.
    pub(super) message: usize,
}

/// An open device with an active port. All that is made of it ends before it.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) library: Library,
    pub(super) context: NonNull<sys::ibv_context>,
    pub(super) domain: NonNull<sys::ibv_pd>,
    pub(super) port: Port,
    /// Requests of a queue.
    pub(super) depth: u32,
    /// Reads under way.
    pub(super) reads: u8,
}

// SAFETY: libibverbs may be called by any thread, with any object.
unsafe impl Send for Device {}
// SAFETY: as for Send; each object has a lock of its own in the library.
unsafe impl Sync for Device {}

impl Device {
    /// Opens the device that GASPI_IB_DEVICE names, or the first one with an active port.
    pub(super) fn open() -> Result<Device> {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let library = Library::load(set(FILE).as_deref()).map_err(failure)?;
        let wish = set(DEVICE);
        let mut count = 0;
        // SAFETY: `count` can be written.
        let list = unsafe { (library.ibv_get_device_list)(&raw mut count) };
        let Some(list) = NonNull::new(list) else { return Err(last_error("ibv_get_device_list")) };
        let mut reasons = Vec::new();
        let mut found = None;
        for at in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the list has so many entries, and their names end with a zero.
            let (device, name) = unsafe {
                let device = *list.as_ptr().add(at);
                (device, CStr::from_ptr((library.ibv_get_device_name)(device)).to_string_lossy())
            };
            if wish.as_ref().is_some_and(|wish| *wish.to_string_lossy() != name) {
                continue;
            }
            match Opened::of(&library, device) {
                Ok(opened) => {
                    found = Some(opened);
                    break;
                }
                Err(reason) => reasons.push(format!("{name}: {reason}")),
            }
        }
        // SAFETY: of the library, and given back once.
        unsafe { (library.ibv_free_device_list)(list.as_ptr()) };
        let Some(Opened { context, domain, port, depth, reads }) = found else {
            let wish = wish.map(|wish| format!(" {}", wish.to_string_lossy()));
            return Err(match reasons.is_empty() {
                true => failure(format!("there is no RDMA device{}", wish.unwrap_or_default())),
                false => failure(reasons.join("; ")),
            });
        };
        Ok(Device { library, context, domain, port, depth, reads })
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: all that belongs to them has ended, and each ends once.
        unsafe {
            (self.library.ibv_dealloc_pd)(self.domain.as_ptr());
            (self.library.ibv_close_device)(self.context.as_ptr());
        }
    }
}

/// The parts of a device while it is being opened.
struct Opened {
    context: NonNull<sys::ibv_context>,
    domain: NonNull<sys::ibv_pd>,
    port: Port,
    depth: u32,
    reads: u8,
}

impl Opened {
    fn of(library: &Library, device: *mut sys::ibv_device) -> Result<Opened> {
        // SAFETY: of the list, which is there.
        let context = unsafe { (library.ibv_open_device)(device) };
        let context = NonNull::new(context).ok_or_else(|| last_error("ibv_open_device"))?;
        let found = Opened::with_port(library, context);
        if found.is_err() {
            // SAFETY: opened above, closed once.
            unsafe { (library.ibv_close_device)(context.as_ptr()) };
        }
        found
    }

    fn with_port(library: &Library, context: NonNull<sys::ibv_context>) -> Result<Opened> {
        // SAFETY: plain numbers, written by the library.
        let mut attr: sys::ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open.
        let result = unsafe { (library.ibv_query_device)(context.as_ptr(), &raw mut attr) };
        check(result, "ibv_query_device")?;
        let requests = attr.max_qp_wr.min(attr.max_cqe).max(0).cast_unsigned();
        if requests < DEPTH_MIN {
            return Err(failure(format!("its queues have room for {requests} requests only")));
        }
        let mut reason = failure("it has no port");
        for number in 1..=attr.phys_port_cnt {
            match port(library, context, number) {
                Ok(port) => {
                    // SAFETY: the context is open.
                    let domain = unsafe { (library.ibv_alloc_pd)(context.as_ptr()) };
                    let domain = NonNull::new(domain).ok_or_else(|| last_error("ibv_alloc_pd"))?;
                    let reads = attr.max_qp_rd_atom.min(attr.max_qp_init_rd_atom).clamp(1, READS);
                    let (depth, reads) = (DEPTH.min(requests), reads as u8);
                    return Ok(Opened { context, domain, port, depth, reads });
                }
                Err(error) => reason = error,
            }
        }
        Err(reason)
    }
}

/// A port, if it is active.
fn port(library: &Library, context: NonNull<sys::ibv_context>, number: u8) -> Result<Port> {
    // SAFETY: plain numbers, written by the library.
    let mut attr: sys::ibv_port_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the context is open.
    let result =
        unsafe { inline::ibv_query_port(library, context.as_ptr(), number, &raw mut attr) };
    check(result, "ibv_query_port")?;
    if attr.state != sys::IBV_PORT_ACTIVE {
        return Err(failure(format!("port {number} is not active")));
    }
    let global = u32::from(attr.link_layer) == sys::IBV_LINK_LAYER_ETHERNET;
    let found = gids(library, context, number, attr.gid_tbl_len, global);
    let Some((_, gid_index, gid)) = found.max_by_key(|(rank, index, _)| (*rank, !*index)) else {
        return Err(failure(format!("port {number} has no GID")));
    };
    let message = (attr.max_msg_sz as usize).max(1);
    let (lid, mtu) = (attr.lid, attr.active_mtu as u8);
    Ok(Port { number, lid, mtu, global, gid_index, gid, message })
}

/// The GIDs that others may reach the port by, each with how well it serves and its index.
fn gids(
    library: &Library,
    context: NonNull<sys::ibv_context>,
    port: u8,
    count: i32,
    global: bool,
) -> impl Iterator<Item = (u8, u8, [u8; 16])> {
    // InfiniBand's first one always serves.
    let count = if global { count.clamp(0, 256) } else { 1 };
    (0..count).filter_map(move |index| {
        // SAFETY: 16 bytes, written by the library.
        let mut gid: sys::ibv_gid = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open.
        let result =
            unsafe { (library.ibv_query_gid)(context.as_ptr(), port, index, &raw mut gid) };
        // SAFETY: all of it are bytes.
        let gid = unsafe { gid.raw };
        if result != 0 || gid == [0; 16] {
            return None;
        }
        // SAFETY: plain numbers, written by the library.
        let mut entry: sys::ibv_gid_entry = unsafe { std::mem::zeroed() };
        let (number, at) = (u32::from(port), index.cast_unsigned());
        let (context, to) = (context.as_ptr(), &raw mut entry);
        // SAFETY: the context is open.
        let known = unsafe { inline::ibv_query_gid_ex(library, context, number, at, to) } == 0;
        let newer = known && entry.gid_type == sys::IBV_GID_TYPE_ROCE_V2;
        Some((rank(newer, &gid), index as u8, gid))
    })
}

/// RoCE v2 before v1, IPv4 before IPv6, link-local last.
fn rank(newer: bool, gid: &[u8; 16]) -> u8 {
    let of_ipv4 = gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    let link_local = gid[..2] == [0xfe, 0x80];
    u8::from(newer) * 4 + u8::from(of_ipv4) * 2 + u8::from(!link_local)
}

/// A place in memory, as a device addresses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) address: u64,
    pub(crate) key: u32,
}

impl Place {
    pub(crate) fn at(self, offset: usize) -> Place {
        Place { address: self.address + offset as u64, ..self }
    }
}

/// Memory that a device knows, until this is dropped. The device keeps the pages, so that it does
/// no harm if they are unmapped before that.
#[derive(Debug)]
pub(super) struct Known<'a> {
    device: &'a Device,
    region: NonNull<sys::ibv_mr>,
}

// SAFETY: the region is used for its keys, and given back once.
unsafe impl Send for Known<'_> {}
// SAFETY: as for Send.
unsafe impl Sync for Known<'_> {}

/// Has a device know memory. The caller keeps what it returns, and gives it back once.
pub(super) fn register(device: &Device, region: Region<'_>) -> Result<NonNull<sys::ibv_mr>> {
    let (start, size) = (region.address(), region.size());
    // SAFETY: the memory is mapped, and the device keeps its pages as long as it knows them.
    let made = unsafe {
        let domain = device.domain.as_ptr();
        inline::ibv_reg_mr(&device.library, domain, start.cast(), size, RIGHTS)
    };
    NonNull::new(made).ok_or_else(|| {
        let error = io::Error::last_os_error();
        let remedy = match error.raw_os_error() {
            Some(libc::ENOMEM) => "; raise the limit of locked memory (ulimit -l)",
            _ => "",
        };
        failure(format!("the device does not register {size} bytes: {error}{remedy}"))
    })
}

impl<'a> Known<'a> {
    pub(super) fn new(device: &'a Device, region: Region<'_>) -> Result<Known<'a>> {
        Ok(Known { device, region: register(device, region)? })
    }

    fn keys(&self) -> (u64, u32, u32) {
        // SAFETY: registered.
        let region = unsafe { self.region.as_ref() };
        (region.addr as u64, region.lkey, region.rkey)
    }

    /// For requests of this rank.
    pub(super) fn local(&self) -> Place {
        let (address, key, _) = self.keys();
        Place { address, key }
    }

    /// For requests of the peer.
    pub(super) fn remote(&self) -> Place {
        let (address, _, key) = self.keys();
        Place { address, key }
    }
}

impl Drop for Known<'_> {
    fn drop(&mut self) {
        // SAFETY: registered once, given back once.
        unsafe { (self.device.library.ibv_dereg_mr)(self.region.as_ptr()) };
    }
}

/// Completion queues, and the channel that the second one tells of completions by.
#[derive(Debug)]
pub(super) struct Queues {
    pub(super) sent: NonNull<sys::ibv_cq>,
    pub(super) received: NonNull<sys::ibv_cq>,
    pub(super) channel: NonNull<sys::ibv_comp_channel>,
}

// SAFETY: libibverbs may be called by any thread, with any object.
unsafe impl Send for Queues {}
// SAFETY: as for Send; each object has a lock of its own in the library.
unsafe impl Sync for Queues {}

impl Queues {
    /// Lives as long as the process if what is made behind it fails.
    pub(super) fn new(device: &Device, receives: u32) -> Result<Queues> {
        let (verbs, context) = (&device.library, device.context.as_ptr());
        let queue = |entries: u32, channel| {
            // SAFETY: context and channel are open.
            let made = unsafe {
                let entries = entries.cast_signed();
                (verbs.ibv_create_cq)(context, entries, ptr::null_mut(), channel, 0)
            };
            NonNull::new(made).ok_or_else(|| last_error("ibv_create_cq"))
        };
        // SAFETY: the context is open.
        let channel = NonNull::new(unsafe { (verbs.ibv_create_comp_channel)(context) })
            .ok_or_else(|| last_error("ibv_create_comp_channel"))?;
        let sent = queue(device.depth, ptr::null_mut())?;
        Ok(Queues { sent, received: queue(receives, channel.as_ptr())?, channel })
    }

    /// Gives them back, when no pair uses them any more.
    pub(super) fn end(&self, device: &Device) {
        let verbs = &device.library;
        // SAFETY: nothing uses them, and each ends once.
        unsafe {
            (verbs.ibv_destroy_cq)(self.sent.as_ptr());
            (verbs.ibv_destroy_cq)(self.received.as_ptr());
            (verbs.ibv_destroy_comp_channel)(self.channel.as_ptr());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_gid_is_one_of_ipv4_by_the_newer_protocol() {
        let of_ipv4 = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 7, 0, 1];
        let local = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xff, 0xfe, 0, 0, 1];
        let global = [0xfd, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xff, 0xfe, 0, 0, 1];
        let order = [(true, of_ipv4), (true, global), (true, local), (false, of_ipv4)];
        let ranks = order.map(|(newer, gid)| rank(newer, &gid));
        assert!(ranks.is_sorted_by(|a, b| a > b), "{ranks:?}");
    }
}
