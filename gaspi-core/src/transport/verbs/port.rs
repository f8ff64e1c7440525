//! Which device and port there are, and what they can do.

use super::work::{BUFFER_BYTES, DEPTH, INLINE, check, last_error};
use libibverbs_sys::{self as sys, Library, inline};
use std::ffi::CStr;
use std::ptr::NonNull;

/// The limits of a device that matter here.
#[derive(Debug, Clone, Copy)]
pub(super) struct DeviceLimits {
    pub(super) depth: u32,
    pub(super) inline: u32,
    pub(super) reads: u8,
    pub(super) message: u64,
    pub(super) entries: u32,
}

/// A port of a device, as this rank uses it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Port {
    pub(super) number: u8,
    pub(super) gid_index: u8,
    pub(super) gid: [u8; 16],
    pub(super) lid: u16,
    pub(super) mtu: u8,
    /// Whether addresses are GIDs, as they are on Ethernet.
    pub(super) global: bool,
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

    pub(super) fn devices(&self) -> impl Iterator<Item = (*mut sys::ibv_device, String)> + '_ {
        (0..self.count).map(|at| {
            // SAFETY: the list has so many entries, and their names end with a zero.
            unsafe {
                let device = *self.list.as_ptr().add(at);
                let name = CStr::from_ptr((self.library.ibv_get_device_name)(device));
                (device, name.to_string_lossy().into_owned())
            }
        })
    }
}

impl Drop for DeviceList<'_> {
    fn drop(&mut self) {
        // SAFETY: given back once.
        unsafe { (self.library.ibv_free_device_list)(self.list.as_ptr()) };
    }
}

/// A context, until it becomes part of [`Handles`].
pub(super) struct OpenContext(NonNull<sys::ibv_context>);

impl OpenContext {
    pub(super) fn new(
        library: &Library,
        device: *mut sys::ibv_device,
    ) -> Result<OpenContext, String> {
        // SAFETY: of the list, which is there.
        let context = unsafe { (library.ibv_open_device)(device) };
        NonNull::new(context).map(OpenContext).ok_or_else(|| last_error("ibv_open_device"))
    }

    pub(super) fn with_port(
        self,
        library: &Library,
    ) -> Result<(NonNull<sys::ibv_context>, Port, DeviceLimits), String> {
        let found = self.limits(library).and_then(|limits| {
            let ports = 1..=limits.1;
            let mut reason = "it has no port".to_owned();
            for number in ports {
                match self.port(library, number) {
                    Ok((port, message)) => {
                        return Ok((port, DeviceLimits { message, ..limits.0 }));
                    }
                    Err(error) => reason = error,
                }
            }
            Err(reason)
        });
        match found {
            Ok((port, limits)) => Ok((self.0, port, limits)),
            Err(reason) => {
                // SAFETY: opened above, closed once.
                unsafe { (library.ibv_close_device)(self.0.as_ptr()) };
                Err(reason)
            }
        }
    }

    fn limits(&self, library: &Library) -> Result<(DeviceLimits, u8), String> {
        // SAFETY: plain numbers, written by the library.
        let mut attr: sys::ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open.
        let result = unsafe { (library.ibv_query_device)(self.0.as_ptr(), &raw mut attr) };
        check(result, "ibv_query_device")?;
        if attr.max_srq < 1 {
            return Err("it has no shared receive queues".to_owned());
        }
        let reads = attr.max_qp_rd_atom.min(attr.max_qp_init_rd_atom).clamp(1, 16);
        let limits = DeviceLimits {
            depth: DEPTH.min(attr.max_qp_wr.max(1).cast_unsigned()),
            inline: INLINE,
            reads: reads as u8,
            message: 0,
            entries: attr.max_cqe.max(1).cast_unsigned(),
        };
        Ok((limits, attr.phys_port_cnt))
    }

    /// A port, if it is active, and the longest message there.
    fn port(&self, library: &Library, number: u8) -> Result<(Port, u64), String> {
        // SAFETY: plain numbers, written by the library.
        let mut attr: sys::ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open.
        let result =
            unsafe { inline::ibv_query_port(library, self.0.as_ptr(), number, &raw mut attr) };
        check(result, "ibv_query_port")?;
        if attr.state != sys::IBV_PORT_ACTIVE {
            return Err(format!("port {number} is not active"));
        }
        if (attr.max_msg_sz as usize) < BUFFER_BYTES {
            return Err(format!("port {number} takes messages of {} bytes only", attr.max_msg_sz));
        }
        let global = u32::from(attr.link_layer) == sys::IBV_LINK_LAYER_ETHERNET;
        let (gid_index, gid) = self.gid(library, number, attr.gid_tbl_len, global)?;
        let (lid, mtu) = (attr.lid, attr.active_mtu as u8);
        let port = Port { number, gid_index, gid, lid, mtu, global };
        Ok((port, u64::from(attr.max_msg_sz).max(1)))
    }

    /// The GID that others reach the port by.
    fn gid(
        &self,
        library: &Library,
        port: u8,
        count: i32,
        global: bool,
    ) -> Result<(u8, [u8; 16]), String> {
        let mut best: Option<(u8, u8, [u8; 16])> = None;
        for index in 0..count.clamp(0, 256) {
            // SAFETY: 16 bytes, written by the library.
            let mut gid: sys::ibv_gid = unsafe { std::mem::zeroed() };
            // SAFETY: the context is open.
            let result =
                unsafe { (library.ibv_query_gid)(self.0.as_ptr(), port, index, &raw mut gid) };
            // SAFETY: all of it are bytes.
            let gid = unsafe { gid.raw };
            if result != 0 || gid == [0; 16] {
                continue;
            }
            let mapped = gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
            let link_local = gid[..2] == [0xfe, 0x80];
            let newer = self.is_second_version(library, port, index);
            let rank = u8::from(newer) * 4 + u8::from(mapped) * 2 + u8::from(!link_local);
            if best.is_none_or(|(found, ..)| rank > found) {
                best = Some((rank, index as u8, gid));
            }
            if !global {
                break;
            }
        }
        let found = best.map(|(_, index, gid)| (index, gid));
        found.ok_or_else(|| format!("port {port} has no GID"))
    }

    /// Whether a GID is of RoCE v2, as far as the library tells.
    fn is_second_version(&self, library: &Library, port: u8, index: i32) -> bool {
        let Some(query) = library._ibv_query_gid_ex else { return false };
        // SAFETY: plain numbers, written by the library.
        let mut entry: sys::ibv_gid_entry = unsafe { std::mem::zeroed() };
        let size = size_of::<sys::ibv_gid_entry>();
        let (port, index) = (u32::from(port), index.cast_unsigned());
        // SAFETY: the context is open, and the entry has this size.
        let result = unsafe { query(self.0.as_ptr(), port, index, &raw mut entry, 0, size) };
        result == 0 && entry.gid_type == sys::IBV_GID_TYPE_ROCE_V2
    }
}
