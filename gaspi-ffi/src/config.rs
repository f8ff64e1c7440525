//! `gaspi_config_t`: its layout, its defaults, what is accepted, and what core needs of it.

use crate::error::{Failure, Outcome};
use crate::getters;
use crate::lifecycle;
use crate::runtime;
use crate::types::*;
use gaspi_core::Error;
use gaspi_core::config::{Config, Network, RdmaParams, Topology};
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// InfiniBand and RoCE.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct gaspi_ib_params {
    pub(crate) netdev_id: gaspi_int,
    pub(crate) mtu: gaspi_uint,
    pub(crate) port_check: gaspi_uint,
}

/// Ethernet.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct gaspi_tcp_params {
    pub(crate) port: gaspi_uint,
}

/// Kept for the layout.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct gaspi_ofi_params {
    pub(crate) use_shm: gaspi_int,
    pub(crate) provider_info: gaspi_int,
    pub(crate) progress_auto: gaspi_int,
}

/// All networks: a structure, not a union.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct gaspi_dev_params {
    pub(crate) ib: gaspi_ib_params,
    pub(crate) tcp: gaspi_tcp_params,
    pub(crate) ofi: gaspi_ofi_params,
}

/// The device.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct gaspi_dev_config_t {
    pub(crate) network_type: gaspi_network_t,
    pub(crate) params: gaspi_dev_params,
}

/// The configuration as C sees it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct gaspi_config_t {
    pub(crate) logger: gaspi_uint,
    pub(crate) sn_port: gaspi_uint,
    pub(crate) net_info: gaspi_uint,
    pub(crate) user_net: gaspi_uint,
    pub(crate) sn_persistent: gaspi_int,
    pub(crate) sn_timeout: gaspi_timeout_t,
    pub(crate) dev_config: gaspi_dev_config_t,
    pub(crate) network: gaspi_network_t,
    pub(crate) queue_size_max: gaspi_uint,
    pub(crate) queue_num: gaspi_uint,
    pub(crate) group_max: gaspi_number_t,
    pub(crate) segment_max: gaspi_number_t,
    pub(crate) transfer_size_max: gaspi_size_t,
    pub(crate) notification_num: gaspi_number_t,
    pub(crate) passive_queue_size_max: gaspi_number_t,
    pub(crate) passive_transfer_size_max: gaspi_number_t,
    pub(crate) allreduce_buf_size: gaspi_size_t,
    pub(crate) allreduce_elem_max: gaspi_number_t,
    pub(crate) rw_list_elem_max: gaspi_number_t,
    pub(crate) build_infrastructure: gaspi_topology_t,
    pub(crate) user_defined: *mut c_void,
}

const _: () = assert!(size_of::<gaspi_config_t>() == 144 && align_of::<gaspi_config_t>() == 8);

/// What holds until the program says otherwise.
const DEFAULT: gaspi_config_t = gaspi_config_t {
    logger: 1,
    sn_port: 12121,
    net_info: 0,
    user_net: 0,
    sn_persistent: 1,
    sn_timeout: 30_000,
    dev_config: gaspi_dev_config_t {
        network_type: GASPI_ETHERNET,
        params: gaspi_dev_params {
            ib: gaspi_ib_params { netdev_id: -1, mtu: 0, port_check: 1 },
            tcp: gaspi_tcp_params { port: 19_000 },
            ofi: gaspi_ofi_params { use_shm: 1, provider_info: 0, progress_auto: 1 },
        },
    },
    network: GASPI_ETHERNET,
    queue_size_max: 1024,
    queue_num: 8,
    group_max: 32,
    segment_max: 255,
    transfer_size_max: 1 << 30,
    notification_num: 65_536,
    passive_queue_size_max: 1024,
    passive_transfer_size_max: 65_535,
    allreduce_buf_size: 2040,
    allreduce_elem_max: 255,
    rw_list_elem_max: 255,
    build_infrastructure: GASPI_TOPOLOGY_STATIC,
    user_defined: std::ptr::null_mut(),
};

struct Stored {
    /// Of the next init.
    config: gaspi_config_t,
    /// The network that a rank was last told to use.
    told: gaspi_network_t,
}

// SAFETY: `user_defined` is never followed here; what it points to is the program's business.
unsafe impl Send for Stored {}

static STORED: Mutex<Stored> = Mutex::new(Stored { config: DEFAULT, told: DEFAULT.network });

fn stored() -> MutexGuard<'static, Stored> {
    STORED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The present configuration for core.
pub(crate) fn for_core() -> Result<Config, Failure> {
    Ok(convert(&stored().config)?)
}

/// Whether `gaspi_printf` is to be heard.
pub(crate) fn logger() -> bool {
    stored().config.logger != 0
}

fn check(config: &gaspi_config_t) -> Result<(), Error> {
    let reject = |field, reason| Err(Error::Config { field, reason });
    if !(1024..=65_536).contains(&config.sn_port) {
        return reject("sn_port", format!("{} is not in the range 1024 to 65536", config.sn_port));
    }
    let ib = &config.dev_config.params.ib;
    if ib.netdev_id > 4 {
        return reject("dev_config.params.ib.netdev_id", format!("{} is above 4", ib.netdev_id));
    }
    if ![0, 1024, 2048, 4096].contains(&ib.mtu) {
        let reason = format!("{} is none of 0, 1024, 2048, 4096", ib.mtu);
        return reject("dev_config.params.ib.mtu", reason);
    }
    convert(config)?.check()
}

fn convert(config: &gaspi_config_t) -> Result<Config, Error> {
    let network = match config.network {
        GASPI_IB => Network::InfiniBand,
        GASPI_ROCE => Network::Roce,
        GASPI_ETHERNET => Network::Ethernet,
        other => {
            let reason = format!("{other} is none of GASPI_IB, GASPI_ROCE, GASPI_ETHERNET");
            return Err(Error::Config { field: "network", reason });
        }
    };
    let topology = match config.build_infrastructure {
        GASPI_TOPOLOGY_NONE => Topology::None,
        GASPI_TOPOLOGY_STATIC => Topology::Static,
        GASPI_TOPOLOGY_DYNAMIC => Topology::Dynamic,
        other => {
            let reason = format!("{other} is not one of GASPI_TOPOLOGY_NONE, _STATIC, _DYNAMIC");
            return Err(Error::Config { field: "build_infrastructure", reason });
        }
    };
    let ib = &config.dev_config.params.ib;
    Ok(Config {
        logger: config.logger != 0,
        net_info: config.net_info != 0,
        network: (config.user_net != 0).then_some(network),
        tcp_port: tcp_port(config.dev_config.params.tcp.port),
        rdma: RdmaParams {
            device_number: u32::try_from(ib.netdev_id).ok(),
            mtu_bytes: ib.mtu,
            port_check: ib.port_check != 0,
        },
        queue_size_max: config.queue_size_max,
        queue_num: config.queue_num,
        group_max: config.group_max,
        segment_max: config.segment_max,
        transfer_size_max: config.transfer_size_max,
        notification_num: config.notification_num,
        passive_queue_size_max: config.passive_queue_size_max,
        passive_transfer_size_max: config.passive_transfer_size_max,
        allreduce_elem_max: config.allreduce_elem_max,
        rw_list_elem_max: config.rw_list_elem_max,
        topology,
    })
}

/// The port that the program wants: the default stands for a free one, as does what is no port.
fn tcp_port(port: gaspi_uint) -> Option<u16> {
    let wanted = port != DEFAULT.dev_config.params.tcp.port;
    u16::try_from(port).ok().filter(|port| wanted && *port != 0)
}

/// Takes over what the program wants, or changes nothing.
fn accept(current: &mut gaspi_config_t, mut wanted: gaspi_config_t) -> Outcome {
    // A program passes on what config_get told: only a change is a choice.
    let chosen = wanted.user_net != 0 || wanted.network != current.network;
    wanted.user_net = (current.user_net != 0 || chosen).into();
    check(&wanted)?;
    wanted.dev_config.network_type = current.dev_config.network_type;
    *current = wanted;
    Ok(())
}

impl Stored {
    /// What a program is told: the network that its rank uses, if it is one.
    fn tell(&mut self, used: Option<gaspi_network_t>) -> gaspi_config_t {
        let mut config = self.config;
        if let Some(used) = used {
            (self.told, config.network, config.dev_config.network_type) = (used, used, used);
        }
        config
    }

    /// Takes over what the program wants, or changes nothing. The network that an earlier rank was
    /// told is no choice.
    fn accept(&mut self, mut wanted: gaspi_config_t) -> Outcome {
        if wanted.user_net == 0 && self.config.user_net == 0 && wanted.network == self.told {
            wanted.network = self.config.network;
        }
        accept(&mut self.config, wanted)
    }
}

procedures! {
    /// GASPI.h: the present configuration.
    fn config_get(config: *mut gaspi_config_t) {
        runtime::refuse_fork()?;
        let used = runtime::with(|rt| Ok(getters::network(rt))).ok();
        out!(config).give(stored().tell(used))
    }

    /// GASPI.h: the configuration of the next init.
    fn config_set(config: gaspi_config_t) {
        runtime::refuse_fork()?;
        if runtime::is_present() || lifecycle::is_starting() {
            return Err(Failure::Initialised);
        }
        stored().accept(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(change: impl FnOnce(&mut gaspi_config_t)) -> Outcome {
        let mut current = DEFAULT;
        let mut wanted = DEFAULT;
        change(&mut wanted);
        let outcome = accept(&mut current, wanted);
        if outcome.is_err() {
            assert_eq!(format!("{current:?}"), format!("{DEFAULT:?}"), "rejected, yet changed");
        }
        outcome
    }

    fn refused(f: impl FnOnce(&mut gaspi_config_t)) -> bool {
        change(f).is_err_and(|failure| failure.code() == GASPI_ERR_CONFIG)
    }

    #[test]
    fn the_defaults_are_those_of_core() {
        assert_eq!(convert(&DEFAULT), Ok(Config::default()));
        assert!(change(|_| {}).is_ok());
    }

    #[test]
    fn limits_are_accepted_and_one_more_is_refused() {
        macro_rules! limits {
            ($($($field:ident).+ in $low:literal..=$high:expr;)*) => {$(
                assert!(change(|c| c.$($field).+ = $low).is_ok(), stringify!($($field).+));
                assert!(change(|c| c.$($field).+ = $high).is_ok(), stringify!($($field).+));
                assert!(refused(|c| c.$($field).+ = $low - 1), stringify!($($field).+));
                assert!(refused(|c| c.$($field).+ = $high + 1), stringify!($($field).+));
            )*};
        }
        limits! {
            sn_port in 1024..=65_536;
            queue_size_max in 1..=4096;
            queue_num in 1..=16;
            group_max in 1..=255;
            segment_max in 1..=255;
            transfer_size_max in 1..=1 << 30;
            passive_queue_size_max in 1..=4096;
            passive_transfer_size_max in 1..=65_535;
            allreduce_elem_max in 1..=1 << 31;
            rw_list_elem_max in 1..=255;
        }
        assert!(change(|c| c.notification_num = 0).is_ok());
        assert!(change(|c| c.notification_num = 1 << 20).is_ok());
        assert!(refused(|c| c.notification_num = (1 << 20) + 1));
        assert!(refused(|c| c.build_infrastructure = 3));
        assert!(refused(|c| c.network = 3));
        assert!(refused(|c| c.network = u32::MAX));
        assert!(refused(|c| c.dev_config.params.ib.netdev_id = 5));
        assert!(change(|c| c.dev_config.params.ib.netdev_id = -7).is_ok());
        assert!(refused(|c| c.dev_config.params.ib.mtu = 1500));
        assert!(change(|c| c.dev_config.params.ib.mtu = 2048).is_ok());
        assert!(change(|c| c.dev_config.network_type = 99).is_ok());
    }

    #[test]
    fn what_is_asked_of_rdma_devices_reaches_the_core() {
        let mut wanted = DEFAULT;
        wanted.dev_config.params.ib = gaspi_ib_params { netdev_id: 2, mtu: 2048, port_check: 0 };
        let rdma = RdmaParams { device_number: Some(2), mtu_bytes: 2048, port_check: false };
        assert_eq!(convert(&wanted).unwrap().rdma, rdma);
        wanted.dev_config.params.ib.netdev_id = -7;
        assert_eq!(convert(&wanted).unwrap().rdma.device_number, None);
    }

    #[test]
    fn a_port_other_than_the_default_is_asked_for() {
        for (port, wanted) in [(19_000, None), (0, None), (65_536, None), (20_000, Some(20_000))] {
            let mut config = DEFAULT;
            config.dev_config.params.tcp.port = port;
            assert!(change(|current| *current = config).is_ok());
            assert_eq!(convert(&config).unwrap().tcp_port, wanted, "{port}");
        }
    }

    #[test]
    fn what_config_get_tells_of_the_network_is_no_choice() {
        let mut stored = Stored { config: DEFAULT, told: GASPI_ETHERNET };
        assert_eq!(stored.tell(Some(GASPI_IB)).network, GASPI_IB);
        let told = stored.tell(Some(GASPI_ROCE));
        assert_eq!((told.network, told.dev_config.network_type), (GASPI_ROCE, GASPI_ROCE));
        assert_eq!(stored.tell(None).network, GASPI_ETHERNET, "of the next init");
        stored.accept(gaspi_config_t { sn_timeout: 1, ..told }).unwrap();
        assert_eq!((stored.config.user_net, stored.config.sn_timeout), (0, 1));
        assert_eq!(convert(&stored.config).unwrap().network, None);
        // Another one is, and stays one.
        stored.accept(gaspi_config_t { network: GASPI_IB, ..told }).unwrap();
        assert_eq!(convert(&stored.config).unwrap().network, Some(Network::InfiniBand));
        stored.accept(told).unwrap();
        assert_eq!(convert(&stored.config).unwrap().network, Some(Network::Roce));
    }

    #[test]
    fn only_a_chosen_network_restricts() {
        let mut current = DEFAULT;
        accept(&mut current, DEFAULT).unwrap();
        assert_eq!(convert(&current).unwrap().network, None);
        accept(&mut current, gaspi_config_t { network: GASPI_IB, ..DEFAULT }).unwrap();
        assert_eq!(current.user_net, 1);
        assert_eq!(convert(&current).unwrap().network, Some(Network::InfiniBand));
        // Once chosen it stays a choice, also when it is passed on unchanged or set back.
        accept(&mut current, DEFAULT).unwrap();
        assert_eq!(convert(&current).unwrap().network, Some(Network::Ethernet));
    }
}
