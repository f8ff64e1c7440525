//! What a job can be configured to (GASPI 17.1, 5.2), with limits checked in one place.

use crate::error::{Error, Result};
use crate::ids::QueueId;
use std::ffi::OsString;
use std::net::Ipv6Addr;

/// Which connections `proc_init` makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Topology {
    /// None; the group of all ranks does not exist.
    None,
    /// All of them.
    #[default]
    Static,
    /// On first use.
    Dynamic,
}

/// Restriction of the transport between hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Network {
    /// InfiniBand.
    InfiniBand,
    /// RDMA over converged Ethernet.
    Roce,
    /// Ethernet by TCP.
    Ethernet,
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Network::InfiniBand => "InfiniBand",
            Network::Roce => "RoCE",
            Network::Ethernet => "Ethernet",
        })
    }
}

/// The configuration of one rank. Every field but `logger`, `net_info` and `rdma` must agree on all
/// ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Whether `printf` reaches the logger.
    pub logger: bool,
    /// Whether init prints the chosen transports.
    pub net_info: bool,
    /// The network asked for between hosts, `None` for the best one. A rank without a device on
    /// InfiniBand or RoCE does not start if that is asked for.
    pub network: Option<Network>,
    /// The port that ranks of other nodes connect to, `None` for a free one. Of several ranks on a
    /// host the further ones take the next ports. GASPI_PORT_RANGE comes before it.
    pub tcp_port: Option<u16>,
    /// Which RDMA device is used, as far as no variable says it.
    pub rdma: RdmaParams,
    /// Requests that fit into one queue, 1..=4096.
    pub queue_size_max: u32,
    /// Queues that exist after init, 1..=16.
    pub queue_num: u32,
    /// Groups that may exist, 1..=255.
    pub group_max: u32,
    /// Segments that may exist, 1..=255.
    pub segment_max: u32,
    /// Bytes of the largest transfer, 1..=2^30.
    pub transfer_size_max: u64,
    /// Notifications of each segment, 0..=2^20.
    pub notification_num: u32,
    /// Passive requests, 1..=4096.
    pub passive_queue_size_max: u32,
    /// Bytes of the largest passive message, 1..=65535.
    pub passive_transfer_size_max: u32,
    /// Elements of the largest allreduce, 1..=2^31.
    pub allreduce_elem_max: u32,
    /// Elements of the longest list operation, 1..=255.
    pub rw_list_elem_max: u32,
    /// Which connections init makes.
    pub topology: Topology,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            logger: true,
            net_info: false,
            network: None,
            tcp_port: None,
            rdma: RdmaParams::default(),
            queue_size_max: 1024,
            queue_num: 8,
            group_max: 32,
            segment_max: 255,
            transfer_size_max: 1 << 30,
            notification_num: 65536,
            passive_queue_size_max: 1024,
            passive_transfer_size_max: 65535,
            allreduce_elem_max: 255,
            rw_list_elem_max: 255,
            topology: Topology::Static,
        }
    }
}

/// Queues that can exist at once, created ones included.
pub const QUEUE_MAX: u32 = 16;

/// The queue of requests of channels, which count for themselves: the number behind those of the
/// program.
pub(crate) const CHANNELS: QueueId = QueueId(QUEUE_MAX as u8);

/// The queue of reads of status words, whose outcome concerns nobody but the reader. The number
/// between is that of a device's atomics.
pub(crate) const STATUS: QueueId = QueueId(CHANNELS.0 + 2);

impl Config {
    /// The fields that have limits, with their least and largest values. All ranks agree on them.
    fn limited(&self) -> [(&'static str, u64, u64, u64); 10] {
        [
            ("queue_size_max", self.queue_size_max.into(), 1, 4096),
            ("queue_num", self.queue_num.into(), 1, QUEUE_MAX.into()),
            ("group_max", self.group_max.into(), 1, 255),
            ("segment_max", self.segment_max.into(), 1, 255),
            ("transfer_size_max", self.transfer_size_max, 1, 1 << 30),
            ("notification_num", self.notification_num.into(), 0, 1 << 20),
            ("passive_queue_size_max", self.passive_queue_size_max.into(), 1, 4096),
            ("passive_transfer_size_max", self.passive_transfer_size_max.into(), 1, 65535),
            ("allreduce_elem_max", self.allreduce_elem_max.into(), 1, 1 << 31),
            ("rw_list_elem_max", self.rw_list_elem_max.into(), 1, 255),
        ]
    }

    /// Checks every field against its limits.
    ///
    /// # Errors
    /// [`Error::Config`] names the first field that is out of range.
    pub fn check(&self) -> Result<()> {
        let mut fields = self.limited().into_iter();
        match fields.find(|(_, value, min, max)| !(min..=max).contains(&value)) {
            None => Ok(()),
            Some((field, value, min, max)) => {
                let reason = format!("{value} is not in the range {min} to {max}");
                Err(Error::Config { field, reason })
            }
        }
    }

    /// The fields that must agree on all ranks, by name, in a fixed order.
    pub fn agreed(&self) -> [(&'static str, u64); 11] {
        let mut agreed = [("build_infrastructure", self.topology as u64); 11];
        for (to, (field, value, ..)) in agreed.iter_mut().zip(self.limited()) {
            *to = (field, value);
        }
        agreed
    }
}

/// What a program asks of its RDMA device (`dev_config.params.ib`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RdmaParams {
    /// Number of the device in the order of libibverbs's list; GASPI_IB_DEVICE comes before it.
    pub device_number: Option<u32>,
    /// Bytes that the path MTU does not exceed; 0 for the MTU of the port.
    pub mtu_bytes: u32,
    /// Whether a port has to be active when it is chosen.
    pub port_check: bool,
}

impl Default for RdmaParams {
    fn default() -> RdmaParams {
        RdmaParams { device_number: None, mtu_bytes: 0, port_check: true }
    }
}

/// Which address of a port is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GidChoice {
    /// Its place in the table of the port, as it is at init.
    Index(u8),
    /// The address itself; of IPv4 the mapped form.
    Address(Ipv6Addr),
}

/// With what `gaspi_wait` ends the writes that a device carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WriteEnd {
    /// With the acknowledgement of the target's device where the target sees to it that no news
    /// comes before the data; else with a read.
    #[default]
    Auto,
    /// With a read behind the writes.
    Read,
    /// With the acknowledgement.
    Ack,
}

/// What carries messages between nodes: those of groups and channels, atomics, passive ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MessageCarrier {
    /// The device that carries data, once it can.
    #[default]
    Device,
    /// TCP, whatever carries data.
    Tcp,
}

/// Which RDMA device carries data, and how. What is not named is chosen by rule.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceChoice {
    /// In place of libibverbs.so.1 (GASPI_IBVERBS_LIB).
    pub library: Option<OsString>,
    /// Names of devices that may be used, all if empty (GASPI_IB_DEVICE).
    pub devices: Vec<String>,
    /// Number of the port (GASPI_IB_PORT).
    pub port: Option<u8>,
    /// The address of the port (GASPI_IB_GID).
    pub gid: Option<GidChoice>,
    /// The partition key (GASPI_IB_PKEY); else the first in the table of the port.
    pub pkey: Option<u16>,
    /// The service level of what is sent, 0..=15 (GASPI_IB_SL).
    pub service_level: u8,
    /// The traffic class of what is sent (GASPI_IB_TRAFFIC_CLASS).
    pub traffic_class: u8,
    /// When a write is done (GASPI_IB_WAIT).
    pub write_end: WriteEnd,
    /// What carries messages (GASPI_IB_MESSAGES).
    pub messages: MessageCarrier,
    /// How many pairs this rank may have (GASPI_IB_PAIRS); else its share of the device.
    pub pairs: Option<u32>,
    /// Whether devices execute atomic operations, of all ranks (GASPI_ATOMICS is nic).
    pub atomics: bool,
}

impl DeviceChoice {
    /// Whether a device, or something of one, is named.
    pub(crate) fn names_something(&self) -> bool {
        let nothing = self.devices.is_empty() && self.port.is_none();
        !nothing || self.gid.is_some() || self.pkey.is_some()
    }
}
