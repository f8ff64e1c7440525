//! The devices of the host are read, and the chosen one is opened.

use super::port::{DeviceLimits, DeviceList, OpenContext, Port};
use super::port_rows::PortRow;
use super::select::{self, Chosen, DeviceFacts, NoDevice, Place, Selection, Wanted};
use super::subnet::{Favoured, HostNetworks, Subnet};
use super::work::check;
use crate::config::{DeviceChoice, Network, RdmaParams};
use libibverbs_sys::{self as sys, Library};
use std::net::IpAddr;
use std::ptr::NonNull;
use std::time::Duration;

/// What a rank wants of its device.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wishes {
    pub(crate) choice: DeviceChoice,
    pub(crate) params: RdmaParams,
    pub(crate) place: Place,
    /// The kind of network that is asked for, which is one of devices.
    pub(crate) network: Option<Network>,
    /// How long a host that does not answer is waited for.
    pub(crate) dead_after: Duration,
    /// In place of the interfaces of the host, for tests.
    pub(crate) interfaces: Option<&'static [(IpAddr, u8)]>,
    /// Which networks of ports come first.
    pub(crate) favoured: Favoured,
}

/// What was read of all devices, and what is chosen of it.
struct Inspected<'a> {
    facts: Vec<DeviceFacts>,
    open: Vec<Option<OpenContext<'a>>>,
    selection: Selection,
}

impl<'a> Inspected<'a> {
    fn new(library: &'a Library, wishes: &Wishes) -> Result<Inspected<'a>, String> {
        let (facts, open) = DeviceList::new(library)?.read(&wishes.choice.devices);
        let Wishes { choice, params, place, favoured, .. } = wishes;
        let (network, networks) = (wishes.network, &HostNetworks::read(wishes.interfaces));
        let wanted = Wanted { choice, params, place, network, networks, favoured };
        let selection = select::choose(&facts, wanted);
        Ok(Inspected { facts, open, selection })
    }
}

/// What was chosen, open.
pub(super) struct Opened {
    pub(super) context: NonNull<sys::ibv_context>,
    pub(super) name: String,
    pub(super) port: Port,
    pub(super) limits: DeviceLimits,
    pub(super) rows: Vec<PortRow>,
    pub(super) networks: Vec<Subnet>,
}

impl Opened {
    pub(super) fn new(library: &Library, wishes: &Wishes) -> Result<Opened, NoDevice> {
        let inspected = Inspected::new(library, wishes).map_err(NoDevice::Missing)?;
        let Inspected { facts, mut open, selection } = inspected;
        let Chosen { device, port, gid, pkey_index, mtu, subnet } = selection.chosen.clone()?;
        let (device, open) = (&facts[device], open.swap_remove(device));
        let name = device.name.clone();
        let facts = &device.ports[port];
        let port = Port {
            number: facts.number,
            gid,
            wanted_gid: wishes.choice.gid,
            lid: facts.lid,
            mtu,
            pkey_index,
            subnet,
            service_level: wishes.choice.service_level,
            traffic_class: wishes.choice.traffic_class,
            global: facts.ethernet,
            needs_header: facts.needs_header,
            active: facts.active,
        };
        let open = open.ok_or_else(|| NoDevice::Missing(format!("{name} is not open")))?;
        let message = u64::from(facts.message_bytes).max(1);
        let limits = DeviceLimits { message, ..open.limits };
        let Selection { rows, networks, .. } = selection;
        Ok(Opened { context: open.into_raw(), name, port, limits, rows, networks })
    }
}

/// What would be chosen, and why.
///
/// # Errors
/// In words, why nothing can be asked.
pub(crate) fn inspect(wishes: &Wishes) -> Result<(Result<(), NoDevice>, Vec<PortRow>), String> {
    let library = load(&wishes.choice)?;
    let selection = Inspected::new(&library, wishes)?.selection;
    Ok((selection.chosen.map(|_| ()), selection.rows))
}

/// The networks of ports that could be used, the best one first; none without a device.
pub(crate) fn networks(wishes: &Wishes) -> Vec<(IpAddr, u8)> {
    let Ok(library) = load(&wishes.choice) else { return Vec::new() };
    let inspected = Inspected::new(&library, wishes);
    let networks = inspected.map_or_else(|_| Vec::new(), |inspected| inspected.selection.networks);
    networks.into_iter().map(Subnet::parts).collect()
}

/// The library, which sees to it that children of this process do no harm.
///
/// # Errors
/// In words, with the remedy.
pub(super) fn load(choice: &DeviceChoice) -> Result<Library, String> {
    let library = Library::load(choice.library.as_deref()).map_err(|error| {
        format!(
            "{} cannot be loaded ({}); install libibverbs1 and ibverbs-providers, or name a file \
             with GASPI_IBVERBS_LIB",
            error.file, error.reason
        )
    })?;
    survive_forks(&library)?;
    Ok(library)
}

/// Has memory of devices stay in place when the program forks, where the kernel does not see to
/// that by itself.
fn survive_forks(library: &Library) -> Result<(), String> {
    // SAFETY: without arguments, at any time.
    let state = library.ibv_is_fork_initialized.map(|ask| unsafe { ask() });
    if matches!(state, Some(sys::IBV_FORK_UNNEEDED | sys::IBV_FORK_ENABLED)) {
        return Ok(());
    }
    // SAFETY: without arguments. It comes ahead of the first queue: to read a device makes some.
    check(unsafe { (library.ibv_fork_init)() }, "ibv_fork_init")
}
