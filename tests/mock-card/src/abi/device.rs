//! Devices: listed, opened, asked.

use std::ffi::{CString, c_char, c_int, c_void};
use std::mem::{offset_of, zeroed};
use std::sync::Arc;

use libibverbs_sys as sys;
use sys::inline::PortAttr;
use sys::{
    ibv_async_event, ibv_context, ibv_device, ibv_device_attr, ibv_device_attr_ex, ibv_gid,
    ibv_gid_entry, ibv_port_attr, verbs_context,
};

use super::events::Events;
use super::running::{Ear, Fabric, chosen, is_about_card};
use super::{fail, null};
use crate::model::card::{Card, GidKind, lid};
use crate::model::codes::event;
use crate::model::network::Forks;
use crate::options::Traits;

/// A device that is listed. It lives as long as its fabric, and as contexts of it.
#[repr(C)]
pub(super) struct Device {
    device: ibv_device,
    fabric: u32,
    card: u32,
}

// SAFETY: shared by copies. Nothing changes it.
unsafe impl Send for Device {}
// SAFETY: shared by copies. Nothing changes it.
unsafe impl Sync for Device {}

impl std::fmt::Debug for Device {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "mock{}_{}", self.fabric, self.card)
    }
}

impl Device {
    pub(super) fn new(fabric: u32, card: u32, traits: &Traits) -> Device {
        // SAFETY: integers, arrays of them and absent functions, for which zeroes are valid.
        let mut device: ibv_device = unsafe { zeroed() };
        let name = CString::new(format!("mock{fabric}_{card}")).unwrap_or_default();
        for (to, from) in device.name.iter_mut().zip(name.as_bytes_with_nul()) {
            *to = *from as c_char;
        }
        device.dev_name = device.name;
        device.node_type =
            if traits.transport == 1 { sys::IBV_NODE_RNIC } else { sys::IBV_NODE_CA };
        device.transport_type = traits.transport as _;
        Device { device, fabric, card }
    }
}

/// An open device, around what the program sees of it.
#[repr(C)]
pub(super) struct Context {
    verbs: verbs_context,
    pub(super) fabric: Arc<Fabric>,
    pub(super) card: u32,
    pub(super) events: Arc<Events>,
    /// Keeps what `device` of the context leads to.
    _device: Arc<Device>,
}

/// # Safety
/// The context is open.
pub(super) unsafe fn context<'a>(context: *mut ibv_context) -> &'a Context {
    let whole = context.wrapping_byte_sub(offset_of!(verbs_context, context));
    // SAFETY: caller's promise; `ibv_open_device` makes no other ones.
    unsafe { &*whole.cast::<Context>() }
}

/// Lists the devices that this thread sees.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let (fabric, cards) = match chosen() {
        Some(chosen) => chosen,
        None => return null(libc::ENOSYS),
    };
    // SAFETY: no pointers.
    let list = unsafe { libc::calloc(cards.len() + 1, size_of::<*mut ibv_device>()) };
    let list = list.cast::<*mut ibv_device>();
    if list.is_null() {
        return list;
    }
    for (at, card) in cards.iter().enumerate() {
        let device = Arc::as_ptr(&fabric.device(*card)).cast_mut().cast();
        // SAFETY: checked range. There is room for one more than there are cards.
        unsafe { list.add(at).write(device) };
    }
    if !count.is_null() {
        // SAFETY: C contract.
        unsafe { count.write(cards.len() as c_int) };
    }
    list
}

/// Frees a list. Its devices stay.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: C contract: a list of `ibv_get_device_list`.
    unsafe { libc::free(list.cast()) };
}

/// The name of a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: C contract.
    unsafe { (&raw const (*device).name).cast() }
}

/// The index of a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    // SAFETY: C contract: a device of `ibv_get_device_list`.
    unsafe { (*device.cast::<Device>()).card as c_int }
}

/// The GUID of a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    // SAFETY: C contract: a device of `ibv_get_device_list`.
    let (fabric, card) =
        unsafe { ((*device.cast::<Device>()).fabric, (*device.cast::<Device>()).card) };
    guid(fabric, card)
}

fn guid(fabric: u32, card: u32) -> u64 {
    (0x0200_0000_0000_0000 | u64::from(fabric) << 32 | u64::from(card)).to_be()
}

/// Opens a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: C contract: a device of `ibv_get_device_list`.
    let (index, card) =
        unsafe { ((*device.cast::<Device>()).fabric, (*device.cast::<Device>()).card) };
    let Some(fabric) = super::running::find(index) else { return null(libc::ENODEV) };
    let Ok(events) = Events::new().map(Arc::new) else { return null(libc::EMFILE) };
    let kept = fabric.device(card);
    // SAFETY: integers, pointers and absent functions, for which zeroes are valid.
    let mut verbs: verbs_context = unsafe { zeroed() };
    verbs.sz = size_of::<verbs_context>();
    verbs.query_port = Some(query_port);
    verbs.query_device_ex = Some(query_device_ex);
    verbs.context.device = device;
    verbs.context.abi_compat = usize::MAX as *mut c_void;
    verbs.context.cmd_fd = -1;
    verbs.context.async_fd = events.raw();
    verbs.context.num_comp_vectors = 1;
    let ops = &mut verbs.context.ops;
    ops.poll_cq = Some(super::queue::poll_cq);
    ops.req_notify_cq = Some(super::queue::req_notify_cq);
    ops.post_send = Some(super::post::post_send);
    ops.post_recv = Some(super::post::post_recv);
    ops.post_srq_recv = Some(super::post::post_srq_recv);
    let mut entered = fabric.enter();
    if let Err(error) = entered.net().admit(card, "open_device") {
        return null(error);
    }
    entered.net().card(card).live.contexts += 1;
    let made =
        Context { verbs, fabric: fabric.clone(), card, events: events.clone(), _device: kept };
    let made = Box::into_raw(Box::new(made));
    entered.state.contexts.push((card, Ear { events, object: made as usize }));
    // SAFETY: kept alive. It was made just now.
    unsafe { &raw mut (*made).verbs.context }
}

/// Closes a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(open: *mut ibv_context) -> c_int {
    let whole = open.wrapping_byte_sub(offset_of!(verbs_context, context)).cast::<Context>();
    // SAFETY: C contract: made by `ibv_open_device`, and closed once.
    let context = unsafe { Box::from_raw(whole) };
    let mut entered = context.fabric.enter();
    entered.state.contexts.retain(|(_, ear)| ear.object != whole as usize);
    entered.net().card(context.card).live.contexts -= 1;
    0
}

/// Waits for an event of a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_async_event(
    open: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: C contract.
    let context = unsafe { context(open) };
    let (kind, about) = match context.events.take(|_| {}) {
        Ok(event) => event,
        Err(error) => {
            fail(error.raw_os_error().unwrap_or(libc::EIO));
            return -1;
        }
    };
    // SAFETY: a number and pointers, for which zeroes are valid.
    let mut found: ibv_async_event = unsafe { zeroed() };
    found.event_type = kind;
    match kind {
        event::CQ_ERR => found.element.cq = about as *mut _,
        event::SRQ_LIMIT_REACHED => found.element.srq = about as *mut _,
        event::QP_LAST_WQE_REACHED | event::QP_FATAL => found.element.qp = about as *mut _,
        _ if is_about_card(kind) => found.element.port_num = about as c_int,
        _ => {}
    }
    // SAFETY: C contract.
    unsafe { event.write(found) };
    0
}

/// Acknowledges an event. Objects are destroyed without waiting for that.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_async_event(_event: *mut ibv_async_event) {}

/// The limits of a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(
    open: *mut ibv_context,
    attributes: *mut ibv_device_attr,
) -> c_int {
    // SAFETY: C contract.
    let context = unsafe { context(open) };
    let mut entered = context.fabric.enter();
    if let Err(error) = entered.net().admit(context.card, "query_device") {
        return error;
    }
    let found = attributes_of(context.fabric.index, context.card, entered.net().card(context.card));
    // SAFETY: C contract.
    unsafe { attributes.write(found) };
    0
}

fn attributes_of(fabric: u32, index: u32, card: &Card) -> ibv_device_attr {
    let number = |limit: u64| c_int::try_from(limit).unwrap_or(c_int::MAX);
    let limits = &card.limits;
    // SAFETY: integers and arrays of them.
    let mut found: ibv_device_attr = unsafe { zeroed() };
    found.node_guid = guid(fabric, index);
    found.sys_image_guid = found.node_guid;
    found.max_mr_size = limits.max_mr_size;
    found.page_size_cap = 0xffff_f000;
    found.max_qp = number(limits.max_qp);
    found.max_qp_wr = number(limits.max_qp_wr);
    found.max_sge = number(limits.max_sge);
    found.max_sge_rd = found.max_sge;
    found.max_cq = number(limits.max_cq);
    found.max_cqe = number(limits.max_cqe);
    found.max_mr = number(limits.max_mr);
    found.max_pd = number(limits.max_pd);
    found.max_qp_rd_atom = number(limits.max_qp_rd_atom);
    found.max_res_rd_atom = found.max_qp_rd_atom.saturating_mul(found.max_qp);
    found.max_qp_init_rd_atom = number(limits.max_qp_init_rd_atom);
    found.atomic_cap = card.traits.atomic_cap as _;
    found.max_srq = number(limits.max_srq);
    found.max_srq_wr = number(limits.max_srq_wr);
    found.max_srq_sge = found.max_sge;
    found.max_pkeys = card.traits.pkeys as u16;
    found.local_ca_ack_delay = 15;
    found.phys_port_cnt = 1;
    found
}

unsafe extern "C" fn query_device_ex(
    open: *mut ibv_context,
    _input: *const sys::ibv_query_device_ex_input,
    attributes: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    // SAFETY: integers and arrays of them.
    let mut found: ibv_device_attr_ex = unsafe { zeroed() };
    // SAFETY: caller's promise.
    let error = unsafe { ibv_query_device(open, &raw mut found.orig_attr) };
    if error != 0 {
        return error;
    }
    found.phys_port_cnt_ex = 1;
    let size = size.min(size_of::<ibv_device_attr_ex>());
    // SAFETY: C contract: the program's struct has `size` bytes.
    unsafe {
        std::ptr::copy_nonoverlapping((&raw const found).cast(), attributes.cast::<u8>(), size)
    };
    0
}

/// The state of a port, as programs of the first libibverbs get it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(
    open: *mut ibv_context,
    port: u8,
    attributes: *mut sys::_compat_ibv_port_attr,
) -> c_int {
    // SAFETY: caller's promise; that struct ends before `port_cap_flags2`.
    unsafe { query_port(open, port, attributes.cast(), offset_of!(ibv_port_attr, port_cap_flags2)) }
}

unsafe extern "C" fn query_port(
    open: *mut ibv_context,
    port: u8,
    attributes: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    // SAFETY: caller's promise.
    let context = unsafe { context(open) };
    let mut entered = context.fabric.enter();
    if let Err(error) = entered.net().admit(context.card, "query_port") {
        return error;
    }
    if port != 1 {
        return libc::EINVAL;
    }
    let card = entered.net().card(context.card);
    // SAFETY: integers.
    let mut found: ibv_port_attr = unsafe { zeroed() };
    found.state = if card.up { sys::IBV_PORT_ACTIVE } else { sys::IBV_PORT_DOWN };
    found.phys_state = if card.up { 5 } else { 3 };
    found.max_mtu = sys::IBV_MTU_4096;
    found.active_mtu = card.traits.mtu as _;
    found.gid_tbl_len = card.gids.len() as c_int;
    found.max_msg_sz = card.limits.max_msg_sz as u32;
    found.pkey_tbl_len = card.traits.pkeys as u16;
    found.link_layer = card.traits.link_layer as u8;
    let is_infiniband = card.traits.link_layer == 1;
    if card.traits.grh_required != 0 {
        found.flags = sys::IB_UVERBS_QPF_GRH_REQUIRED as u8;
    }
    found.lid =
        if is_infiniband { lid(context.card, &card.traits) } else { card.traits.lid as u16 };
    let speed = card.traits.speed as u32;
    // Of a larger one the kernel leaves nothing there.
    (found.active_width, found.active_speed) = (2, u8::try_from(speed).unwrap_or(0));
    let found = PortAttr { attr: found, active_speed_ex: speed };
    let known = size.min(size_of::<PortAttr>());
    // SAFETY: C contract: the program's struct has `size` bytes.
    unsafe {
        attributes.cast::<u8>().write_bytes(0, size);
        std::ptr::copy_nonoverlapping((&raw const found).cast(), attributes.cast::<u8>(), known);
    }
    0
}

fn entry(index: usize, card: &Card) -> Option<ibv_gid_entry> {
    let (raw, kind) = (*card.gids.get(index)?)?;
    let gid_type = match kind {
        GidKind::InfiniBand => sys::IBV_GID_TYPE_IB,
        GidKind::RoceV1 => sys::IBV_GID_TYPE_ROCE_V1,
        GidKind::RoceV2 => sys::IBV_GID_TYPE_ROCE_V2,
    };
    let ndev_ifindex = u32::from(kind != GidKind::InfiniBand);
    let gid = ibv_gid { raw };
    Some(ibv_gid_entry { gid, gid_index: index as u32, port_num: 1, gid_type, ndev_ifindex })
}

/// An entry of the GID table; an empty one is zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(
    open: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    // SAFETY: C contract.
    let context = unsafe { context(open) };
    let mut entered = context.fabric.enter();
    let card = entered.net().card(context.card);
    let known = port == 1 && (0..card.gids.len() as c_int).contains(&index);
    if !known || card.is_lost() {
        fail(if known { libc::EIO } else { libc::EINVAL });
        return -1;
    }
    let found = entry(index as usize, card).map_or(ibv_gid { raw: [0; 16] }, |entry| entry.gid);
    // SAFETY: C contract.
    unsafe { gid.write(found) };
    0
}

/// An entry of the GID table with its kind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_ex(
    open: *mut ibv_context,
    port: u32,
    index: u32,
    to: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    // SAFETY: C contract.
    let context = unsafe { context(open) };
    let mut entered = context.fabric.enter();
    if let Err(error) = entered.net().admit(context.card, "query_gid") {
        return error;
    }
    let card = entered.net().card(context.card);
    if port != 1
        || index as usize >= card.gids.len()
        || flags != 0
        || size != size_of::<ibv_gid_entry>()
    {
        return libc::EINVAL;
    }
    let Some(found) = entry(index as usize, card) else { return libc::ENODATA };
    // SAFETY: C contract.
    unsafe { to.write(found) };
    0
}

/// All entries of the GID table that are not empty.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_table(
    open: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    room: usize,
    flags: u32,
    size: usize,
) -> isize {
    // SAFETY: C contract.
    let context = unsafe { context(open) };
    let mut entered = context.fabric.enter();
    if let Err(error) = entered.net().admit(context.card, "query_gid") {
        return -(error as isize);
    }
    let card = entered.net().card(context.card);
    let found: Vec<_> = (0..card.gids.len()).filter_map(|index| entry(index, card)).collect();
    if found.len() > room || flags != 0 || size != size_of::<ibv_gid_entry>() {
        return -(libc::EINVAL as isize);
    }
    // SAFETY: C contract: there is room for `room` entries.
    unsafe { std::ptr::copy_nonoverlapping(found.as_ptr(), entries, found.len()) };
    found.len() as isize
}

/// A partition key: all entries are the default partition.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_pkey(
    open: *mut ibv_context,
    port: u8,
    index: c_int,
    key: *mut u16,
) -> c_int {
    // SAFETY: C contract.
    let context = unsafe { context(open) };
    let mut entered = context.fabric.enter();
    let keys = entered.net().card(context.card).traits.pkeys;
    if port != 1 || index < 0 || index as u64 >= keys {
        fail(libc::EINVAL);
        return -1;
    }
    // The default key, then full members of others: 0x8001, 0x8002 and so on.
    let wanted = if index == 0 { 0xffff } else { 0x8000 | index as u16 };
    // SAFETY: C contract.
    unsafe { key.write(wanted.to_be()) };
    0
}

/// Keeps memory of cards from children, if nothing has been made yet.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_fork_init() -> c_int {
    let enabled = chosen().is_none_or(|(fabric, _)| fabric.enter().net().forks.enable());
    if enabled { 0 } else { libc::EINVAL }
}

/// Whether children of this process need anything, and have it.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_is_fork_initialized() -> sys::ibv_fork_status {
    let Some((fabric, _)) = chosen() else { return sys::IBV_FORK_UNNEEDED };
    let mut entered = fabric.enter();
    let net = entered.net();
    match (net.options.behaviour.needs_fork_init, net.forks) {
        (0, _) => sys::IBV_FORK_UNNEEDED,
        (_, Forks::Enabled) => sys::IBV_FORK_ENABLED,
        _ => sys::IBV_FORK_DISABLED,
    }
}

/// Reads tell nothing about the order in which data is placed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp_data_in_order(
    _pair: *mut sys::ibv_qp,
    _opcode: sys::ibv_wr_opcode,
    _flags: u32,
) -> c_int {
    0
}
