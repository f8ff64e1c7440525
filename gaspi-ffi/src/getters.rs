//! Limits of the job (GASPI 17.1, 12).

use crate::types::*;
use gaspi_core::{Network, Runtime};

/// Bytes of the smallest message.
const TRANSFER_SIZE_MIN: gaspi_size_t = 1;
/// Bytes of the largest element of an allreduce.
const ELEMENT_BYTES: gaspi_size_t = 8;
/// Bytes of a notification.
const NOTIFICATION_BYTES: gaspi_number_t = 4;

procedures! {
    /// GASPI.h: bytes of the smallest transfer.
    fn transfer_size_min(transfer_size_min: *mut gaspi_size_t) with _rt {
        out!(transfer_size_min).give(TRANSFER_SIZE_MIN)
    }

    /// GASPI.h: bytes of the largest transfer.
    fn transfer_size_max(transfer_size_max: *mut gaspi_size_t) with rt {
        out!(transfer_size_max).give(rt.config().transfer_size_max)
    }

    /// GASPI.h: notifications of a segment.
    fn notification_num(notification_num: *mut gaspi_number_t) with rt {
        out!(notification_num).give(rt.config().notification_num)
    }

    /// GASPI_Ext.h: bytes of the notifications of a segment.
    fn notifications_space_size(size: *mut gaspi_number_t) with rt {
        out!(size).give(rt.config().notification_num * NOTIFICATION_BYTES)
    }

    /// GASPI.h: bytes of the smallest passive message.
    fn passive_transfer_size_min(passive_transfer_size_min: *mut gaspi_size_t) with _rt {
        out!(passive_transfer_size_min).give(TRANSFER_SIZE_MIN)
    }

    /// GASPI.h: bytes of the largest passive message.
    fn passive_transfer_size_max(passive_transfer_size_max: *mut gaspi_size_t) with rt {
        out!(passive_transfer_size_max).give(rt.config().passive_transfer_size_max.into())
    }

    /// GASPI.h: bytes of the largest gaspi_allreduce_user.
    fn allreduce_buf_size(buf_size: *mut gaspi_size_t) with rt {
        out!(buf_size).give(ELEMENT_BYTES * gaspi_size_t::from(rt.config().allreduce_elem_max))
    }

    /// GASPI.h: elements of the largest gaspi_allreduce.
    fn allreduce_elem_max(elem_max: *mut gaspi_number_t) with rt {
        out!(elem_max).give(rt.config().allreduce_elem_max)
    }

    /// GASPI_Ext.h: elements of the longest list.
    fn rw_list_elem_max(elem_max: *mut gaspi_number_t) with rt {
        out!(elem_max).give(rt.config().rw_list_elem_max)
    }

    /// GASPI.h: the network between hosts.
    fn network_type(network_type: *mut gaspi_network_t) with rt {
        out!(network_type).give(network(rt))
    }
}

/// The network between hosts.
pub(crate) fn network(rt: &Runtime) -> gaspi_network_t {
    match rt.network() {
        Network::InfiniBand => GASPI_IB,
        Network::Roce => GASPI_ROCE,
        Network::Ethernet => GASPI_ETHERNET,
    }
}
