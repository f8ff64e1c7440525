//! Devices and their ports, as libibverbs and sysfs tell of them. What is used is chosen elsewhere
//! ([`select`](super::select)).

use super::atomics::AtomicReach;
use super::budget::DeviceCounts;
use super::select::{DeviceFacts, GidEntry, GidKind, PortFacts, Protocol};
use super::subnet::Subnet;
use super::work::{DEPTH, INLINE, RECEIVES, check, last_error};
use crate::config::GidChoice;
use crate::os::affinity;
use crate::os::limits::setting;
use libibverbs_sys::{self as sys, Library, inline};
use std::ffi::CStr;
use std::ptr::{self, NonNull};

/// Entries of a GID table that are looked at: work requests name them by 8 bits.
const GIDS: i32 = 256;

/// Registrations without which nothing goes by a device: what peers read behind their writes, the
/// buffers of messages that come, those of a pair, and one segment.
const REGIONS: u32 = 4;
/// Fewer receives than this would hold peers back all the time.
const RECEIVES_LEAST: u32 = 16;

/// The limits of a device that matter here.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DeviceLimits {
    pub(super) depth: u32,
    pub(super) inline: u32,
    pub(super) reads: u8,
    pub(super) message: u64,
    pub(super) entries: u32,
    pub(super) atomics: AtomicReach,
    /// Buffers of the receive queue that all peers share.
    pub(super) receives: u32,
    pub(super) counts: DeviceCounts,
}

/// A limit, of which devices give no negative one.
fn count(limit: i32) -> u32 {
    limit.max(0).cast_unsigned()
}

/// The limit of a device that leaves too little for a rank, in words.
fn too_small(attr: &sys::ibv_device_attr) -> Option<String> {
    let depth = DEPTH.min(count(attr.max_qp_wr));
    let needed = [
        (count(attr.max_mr), REGIONS, "registrations of memory"),
        (count(attr.max_cqe), depth.max(RECEIVES_LEAST), "entries of a completion queue"),
        (count(attr.max_srq_wr), RECEIVES_LEAST, "receives of a shared receive queue"),
    ];
    let short = needed.into_iter().find(|(allowed, needed, _)| allowed < needed);
    short.map(|(allowed, needed, what)| {
        format!("it allows only {allowed} {what}; {needed} are needed")
    })
}

/// Gigabits per second of a port, by the codes of its width and of the speed of a lane. It says
/// which of several ports is faster: a speed that is not known here is of a newer standard than
/// those that are, and counts as faster than all of them.
fn rate(width: u8, speed: u32) -> u32 {
    let lanes = match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    };
    let gigabits = match speed {
        // A driver that tells none.
        0 => 0,
        1 => 2,
        2 => 5,
        4 | 8 => 10,
        16 => 14,
        32 => 25,
        64 => 50,
        128 => 100,
        256 => 200,
        _ => 400,
    };
    lanes * gigabits
}

/// A port of a device, as this rank uses it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Port {
    pub(super) number: u8,
    /// Kept by its value: indices move when a port flaps.
    pub(super) gid: GidEntry,
    pub(super) wanted_gid: Option<GidChoice>,
    pub(super) lid: u16,
    pub(super) mtu: u8,
    pub(super) pkey_index: u16,
    /// The network of its GID, where that is known and counts.
    pub(super) subnet: Option<Subnet>,
    pub(super) service_level: u8,
    pub(super) traffic_class: u8,
    /// Whether addresses are GIDs, as they are on Ethernet.
    pub(super) global: bool,
    /// Whether packets need a global header beside a LID.
    pub(super) needs_header: bool,
    pub(super) active: bool,
}

/// The devices that there are, open as long as this.
pub(super) struct DeviceList<'a> {
    library: &'a Library,
    list: NonNull<*mut sys::ibv_device>,
    count: usize,
}

impl<'a> DeviceList<'a> {
    pub(super) fn new(library: &'a Library) -> Result<DeviceList<'a>, String> {
        let mut count = 0;
        // SAFETY: `count` can be written.
        let list = unsafe { (library.ibv_get_device_list)(&raw mut count) };
        let list = NonNull::new(list).ok_or_else(|| last_error("ibv_get_device_list"))?;
        Ok(DeviceList { library, list, count: count.max(0) as usize })
    }

    fn devices(&self) -> impl Iterator<Item = (*mut sys::ibv_device, String)> + '_ {
        (0..self.count).map(|at| {
            // SAFETY: the list has so many entries, and their names end with a zero.
            unsafe {
                let device = *self.list.as_ptr().add(at);
                let name = CStr::from_ptr((self.library.ibv_get_device_name)(device));
                (device, name.to_string_lossy().into_owned())
            }
        })
    }

    /// Opens and reads the devices of these names, or all. Of others, and of those whose protocol
    /// is not used, only the name is read.
    pub(super) fn read(
        &self,
        named: &[String],
    ) -> (Vec<DeviceFacts>, Vec<Option<OpenContext<'a>>>) {
        let read = |(device, name)| {
            let mut facts = DeviceFacts {
                protocol: protocol(device),
                near_cores: None,
                numa_node: None,
                name,
                unreadable: None,
                shared_queues: false,
                too_small: None,
                unreliable: None,
                ports: Vec::new(),
            };
            let is_named = named.is_empty() || named.contains(&facts.name);
            if facts.protocol != Protocol::InfiniBand || !is_named {
                return (facts, None);
            }
            let of_sysfs =
                |file| setting(&format!("/sys/class/infiniband/{}/device/{file}", facts.name));
            facts.numa_node = of_sysfs("numa_node").and_then(|node| node.parse().ok());
            // Where the node is not known all cores are listed.
            let list = facts.numa_node.and_then(|_| of_sysfs("local_cpulist"));
            facts.near_cores = list.and_then(|list| affinity::parsed(&list));
            let opened = OpenContext::new(self.library, device)
                .and_then(|mut open| open.read(&mut facts).map(|()| open));
            let open = opened.map_err(|reason| facts.unreadable = Some(reason)).ok();
            (facts, open)
        };
        self.devices().map(read).unzip()
    }
}

/// What a device speaks: iWARP, or something else, is told by its type, without opening it.
fn protocol(device: *mut sys::ibv_device) -> Protocol {
    // SAFETY: of the list, which is there.
    let (node, transport) = unsafe { ((*device).node_type, (*device).transport_type) };
    match (node, transport) {
        (sys::IBV_NODE_RNIC, _) | (_, sys::IBV_TRANSPORT_IWARP) => Protocol::Iwarp,
        (sys::IBV_NODE_CA, sys::IBV_TRANSPORT_IB) => Protocol::InfiniBand,
        _ => Protocol::Other,
    }
}

impl Drop for DeviceList<'_> {
    fn drop(&mut self) {
        // SAFETY: given back once.
        unsafe { (self.library.ibv_free_device_list)(self.list.as_ptr()) };
    }
}

/// A context, until it becomes part of [`Handles`](super::device::Handles).
pub(super) struct OpenContext<'a> {
    library: &'a Library,
    context: NonNull<sys::ibv_context>,
    pub(super) limits: DeviceLimits,
}

impl Drop for OpenContext<'_> {
    fn drop(&mut self) {
        // SAFETY: opened once, closed once.
        unsafe { (self.library.ibv_close_device)(self.context.as_ptr()) };
    }
}

impl<'a> OpenContext<'a> {
    fn new(library: &'a Library, device: *mut sys::ibv_device) -> Result<OpenContext<'a>, String> {
        // SAFETY: of the list, which is there.
        let context = unsafe { (library.ibv_open_device)(device) };
        let context = NonNull::new(context).ok_or_else(|| last_error("ibv_open_device"))?;
        Ok(OpenContext { library, context, limits: DeviceLimits::default() })
    }

    /// The context, which somebody else closes.
    pub(super) fn into_raw(self) -> NonNull<sys::ibv_context> {
        let context = self.context;
        std::mem::forget(self);
        context
    }

    fn read(&mut self, facts: &mut DeviceFacts) -> Result<(), String> {
        // SAFETY: plain numbers, written by the library.
        let mut attr: sys::ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open.
        let result =
            unsafe { (self.library.ibv_query_device)(self.context.as_ptr(), &raw mut attr) };
        check(result, "ibv_query_device")?;
        facts.shared_queues = attr.max_srq >= 1;
        facts.too_small = too_small(&attr);
        let reads = attr.max_qp_rd_atom.min(attr.max_qp_init_rd_atom).clamp(1, 16);
        self.limits = DeviceLimits {
            depth: DEPTH.min(attr.max_qp_wr.max(1).cast_unsigned()),
            inline: INLINE,
            reads: reads as u8,
            message: 0,
            entries: attr.max_cqe.max(1).cast_unsigned(),
            atomics: AtomicReach::of(attr.atomic_cap),
            // Each that has come takes an entry of the queue of completions.
            receives: count(attr.max_srq_wr.min(attr.max_cqe)).min(RECEIVES),
            counts: DeviceCounts {
                pairs: attr.max_qp.max(1).cast_unsigned(),
                queues: attr.max_cq.max(1).cast_unsigned(),
            },
        };
        for number in 1..=attr.phys_port_cnt {
            facts.ports.push(self.port(number, &facts.name)?);
        }
        if facts.shared_queues && facts.ports.iter().any(|port| port.active) {
            facts.unreliable = self.make_reliable_pair().err();
        }
        Ok(())
    }

    fn port(&self, number: u8, device: &str) -> Result<PortFacts, String> {
        let (library, context) = (self.library, self.context);
        // SAFETY: plain numbers, written by the library.
        let mut all: inline::PortAttr = unsafe { std::mem::zeroed() };
        let (raw, to) = (context.as_ptr(), &raw mut all);
        // SAFETY: the context is open.
        let result = unsafe { inline::query_port_and_speed(library, raw, number, to) };
        check(result, "ibv_query_port")?;
        let inline::PortAttr { attr, active_speed_ex } = all;
        let ethernet = u32::from(attr.link_layer) == sys::IBV_LINK_LAYER_ETHERNET;
        let table = GidTable { library, context, port: number, ethernet };
        let pkey = |index| {
            let mut key = 0;
            // SAFETY: the context is open, and `key` can be written.
            let result =
                unsafe { (library.ibv_query_pkey)(context.as_ptr(), number, index, &raw mut key) };
            if result == 0 { u16::from_be(key) } else { 0 }
        };
        Ok(PortFacts {
            number,
            active: attr.state == sys::IBV_PORT_ACTIVE,
            ethernet,
            message_bytes: attr.max_msg_sz,
            mtu: attr.active_mtu as u8,
            lid: attr.lid,
            needs_header: u32::from(attr.flags) & sys::IB_UVERBS_QPF_GRH_REQUIRED != 0,
            rate: rate(attr.active_width, active_speed_ex.max(attr.active_speed.into())),
            gids: table.entries(attr.gid_tbl_len, device),
            pkeys: (0..i32::from(attr.pkey_tbl_len)).map(pkey).collect(),
        })
    }

    /// Makes a pair and ends it: no attribute tells whether a device has reliable ones.
    fn make_reliable_pair(&self) -> Result<(), String> {
        let library = self.library;
        // SAFETY: the context is open; each part is made of those before, and given back once.
        unsafe {
            let domain = NonNull::new((library.ibv_alloc_pd)(self.context.as_ptr()));
            let domain = domain.ok_or_else(|| last_error("ibv_alloc_pd"))?.as_ptr();
            let context = self.context.as_ptr();
            let queue = (library.ibv_create_cq)(context, 1, ptr::null_mut(), ptr::null_mut(), 0);
            let made = match NonNull::new(queue) {
                None => Err(last_error("ibv_create_cq")),
                Some(queue) => {
                    let mut attr: sys::ibv_qp_init_attr = std::mem::zeroed();
                    (attr.send_cq, attr.recv_cq) = (queue.as_ptr(), queue.as_ptr());
                    attr.qp_type = sys::IBV_QPT_RC;
                    (attr.cap.max_send_wr, attr.cap.max_recv_wr) = (1, 1);
                    (attr.cap.max_send_sge, attr.cap.max_recv_sge) = (1, 1);
                    let pair = (library.ibv_create_qp)(domain, &raw mut attr);
                    let made = NonNull::new(pair).ok_or_else(|| last_error("ibv_create_qp"));
                    let made = made.map(|pair| (library.ibv_destroy_qp)(pair.as_ptr()));
                    (library.ibv_destroy_cq)(queue.as_ptr());
                    made.map(|_| ())
                }
            };
            (library.ibv_dealloc_pd)(domain);
            made
        }
    }
}

/// The GID table of a port.
#[derive(Clone, Copy)]
pub(super) struct GidTable<'a> {
    pub(super) library: &'a Library,
    pub(super) context: NonNull<sys::ibv_context>,
    pub(super) port: u8,
    pub(super) ethernet: bool,
}

impl GidTable<'_> {
    /// An entry, if it is not empty.
    pub(super) fn entry(&self, index: u8, device: &str) -> Option<GidEntry> {
        // SAFETY: 16 bytes, written by the library.
        let mut gid: sys::ibv_gid = unsafe { std::mem::zeroed() };
        let (context, number) = (self.context.as_ptr(), i32::from(index));
        // SAFETY: the context is open.
        let result =
            unsafe { (self.library.ibv_query_gid)(context, self.port, number, &raw mut gid) };
        // SAFETY: all of it are bytes.
        let gid = unsafe { gid.raw };
        if result != 0 || gid == [0; 16] {
            return None;
        }
        let kind = if self.ethernet { self.kind(index, device) } else { GidKind::InfiniBand };
        Some(GidEntry { index, gid, kind })
    }

    /// All entries that are not empty, of a table of so many.
    pub(super) fn entries(&self, count: i32, device: &str) -> Vec<GidEntry> {
        let indices = 0..count.clamp(0, GIDS);
        indices.filter_map(|index| self.entry(index as u8, device)).collect()
    }

    /// All entries that are not empty, however many there are now.
    pub(super) fn all(&self, device: &str) -> Vec<GidEntry> {
        // SAFETY: plain numbers, written by the library.
        let mut attr: sys::ibv_port_attr = unsafe { std::mem::zeroed() };
        let (library, context) = (self.library, self.context.as_ptr());
        // SAFETY: the context is open.
        let result = unsafe { inline::ibv_query_port(library, context, self.port, &raw mut attr) };
        if result == 0 { self.entries(attr.gid_tbl_len, device) } else { Vec::new() }
    }

    /// The LID of the port now. The subnet manager may give it another one.
    pub(super) fn lid(&self) -> Option<u16> {
        // SAFETY: plain numbers, written by the library.
        let mut attr: sys::ibv_port_attr = unsafe { std::mem::zeroed() };
        let (library, context) = (self.library, self.context.as_ptr());
        // SAFETY: the context is open.
        let result = unsafe { inline::ibv_query_port(library, context, self.port, &raw mut attr) };
        (result == 0 && attr.lid != 0).then_some(attr.lid)
    }

    /// Which version of RoCE an entry is of: by the library, or by sysfs where that is too old.
    fn kind(&self, index: u8, device: &str) -> GidKind {
        let Some(query) = self.library._ibv_query_gid_ex else {
            let types = "gid_attrs/types";
            let port = self.port;
            let file = format!("/sys/class/infiniband/{device}/ports/{port}/{types}/{index}");
            let newer = setting(&file).is_some_and(|kind| kind == "RoCE v2");
            return if newer { GidKind::RoceV2 } else { GidKind::RoceV1 };
        };
        // SAFETY: plain numbers, written by the library.
        let mut entry: sys::ibv_gid_entry = unsafe { std::mem::zeroed() };
        let size = size_of::<sys::ibv_gid_entry>();
        let (port, index) = (u32::from(self.port), u32::from(index));
        // SAFETY: the context is open, and the entry has this size.
        let result = unsafe { query(self.context.as_ptr(), port, index, &raw mut entry, 0, size) };
        let newer = result == 0 && entry.gid_type == sys::IBV_GID_TYPE_ROCE_V2;
        if newer { GidKind::RoceV2 } else { GidKind::RoceV1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_speeds_are_faster_ones() {
        // From SDR to NDR, XDR, and two that nobody has defined.
        let speeds = [0, 1, 2, 4, 16, 32, 64, 128, 256, 512, 1024].map(|speed| rate(2, speed));
        assert!(speeds.is_sorted(), "{speeds:?}");
        let [.., ndr, xdr, newer, _] = speeds;
        assert!(ndr < xdr && xdr < newer, "{speeds:?}");
        assert_eq!((rate(2, 32), rate(2, 256)), (100, 800));
    }
}
