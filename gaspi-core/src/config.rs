//! What a job can be configured to (GASPI 17.1, 5.2), with limits checked in one place.

use crate::error::{Error, Result};
use crate::ids::QueueId;

/// Notifications of a segment at most.
const NOTIFICATIONS_MAX: u32 = 1 << 20;

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

/// The configuration of one rank. Every field but `logger` and `net_info` must agree on all ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Whether `printf` reaches the logger.
    pub logger: bool,
    /// Whether init prints the chosen transports.
    pub net_info: bool,
    /// The network asked for, `None` for the best one.
    pub network: Option<Network>,
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
    /// Notifications of each segment, 1..=2^20.
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

/// Stands for a queue in what channels post, which count for themselves: behind those of the
/// program.
pub(crate) const CHANNELS: QueueId = QueueId(QUEUE_MAX as u8);

impl Config {
    /// Checks every field against its limits.
    ///
    /// # Errors
    /// [`Error::Config`] names the first field that is out of range.
    pub fn check(&self) -> Result<()> {
        for (field, value, max) in [
            ("queue_size_max", u64::from(self.queue_size_max), 4096),
            ("queue_num", u64::from(self.queue_num), u64::from(QUEUE_MAX)),
            ("group_max", u64::from(self.group_max), 255),
            ("segment_max", u64::from(self.segment_max), 255),
            ("transfer_size_max", self.transfer_size_max, 1 << 30),
            ("passive_queue_size_max", u64::from(self.passive_queue_size_max), 4096),
            ("passive_transfer_size_max", u64::from(self.passive_transfer_size_max), 65535),
            ("allreduce_elem_max", u64::from(self.allreduce_elem_max), 1 << 31),
            ("rw_list_elem_max", u64::from(self.rw_list_elem_max), 255),
        ] {
            if value == 0 || value > max {
                let reason = format!("{value} is not in the range 1 to {max}");
                return Err(Error::Config { field, reason });
            }
        }
        if self.notification_num > NOTIFICATIONS_MAX {
            let value = self.notification_num;
            let reason = format!("{value} is not in the range 0 to {NOTIFICATIONS_MAX}");
            return Err(Error::Config { field: "notification_num", reason });
        }
        Ok(())
    }

    /// The fields that must agree on all ranks, by name, in a fixed order.
    pub fn agreed(&self) -> [(&'static str, u64); 11] {
        [
            ("queue_size_max", u64::from(self.queue_size_max)),
            ("queue_num", u64::from(self.queue_num)),
            ("group_max", u64::from(self.group_max)),
            ("segment_max", u64::from(self.segment_max)),
            ("transfer_size_max", self.transfer_size_max),
            ("notification_num", u64::from(self.notification_num)),
            ("passive_queue_size_max", u64::from(self.passive_queue_size_max)),
            ("passive_transfer_size_max", u64::from(self.passive_transfer_size_max)),
            ("allreduce_elem_max", u64::from(self.allreduce_elem_max)),
            ("rw_list_elem_max", u64::from(self.rw_list_elem_max)),
            ("build_infrastructure", self.topology as u64),
        ]
    }
}
