//! Queues (GASPI 17.1, 8.5).

use crate::runtime::timeout;
use crate::types::*;
use gaspi_core::QueueId;

procedures! {
    /// GASPI.h: waits until all requests of a queue are complete.
    fn wait(queue: gaspi_queue_id_t, milliseconds: gaspi_timeout_t) try_fast rt {
        rt.wait(QueueId(queue)).map(|()| GASPI_SUCCESS)
    } holding_briefly rt {
        Ok(rt.wait(QueueId(queue), timeout(milliseconds))?)
    }

    /// GASPI.h: makes a queue.
    fn queue_create(queue: *mut gaspi_queue_id_t, milliseconds: gaspi_timeout_t) holding rt {
        out!(queue).give(rt.queue_create(timeout(milliseconds))?.0)
    }

    /// GASPI.h: deletes a queue.
    fn queue_delete(queue: gaspi_queue_id_t) holding rt {
        Ok(rt.queue_delete(QueueId(queue))?)
    }

    /// GASPI.h: requests that were posted and not yet waited for.
    fn queue_size(queue: gaspi_queue_id_t, queue_size: *mut gaspi_number_t) with rt {
        out!(queue_size).give(rt.queue_size(QueueId(queue))?)
    }

    /// GASPI.h: the number of queues.
    fn queue_num(queue_num: *mut gaspi_number_t) with rt {
        out!(queue_num).give(rt.queue_num())
    }

    /// GASPI.h: requests that fit into a queue.
    fn queue_size_max(queue_size_max: *mut gaspi_number_t) with rt {
        out!(queue_size_max).give(rt.queue_size_max())
    }

    /// GASPI.h: how many queues there can be.
    fn queue_max(queue_max: *mut gaspi_number_t) with rt {
        out!(queue_max).give(rt.queue_max())
    }

    /// GASPI.h: forgets the failed requests of a queue.
    fn queue_purge(queue: gaspi_queue_id_t, milliseconds: gaspi_timeout_t) holding rt {
        Ok(rt.queue_purge(QueueId(queue), timeout(milliseconds))?)
    }
}
