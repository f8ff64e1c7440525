//! libibverbs's functions over the model. Their contracts are the manual pages of rdma-core.

#![allow(unreachable_pub, reason = "programs reach the functions by their symbols")]
#![allow(clippy::missing_safety_doc, reason = "the manual pages of rdma-core have the contracts")]

mod device;
mod events;
mod memory;
mod pair;
mod post;
mod process;
mod queue;
pub(crate) mod running;
mod text;

use std::ffi::c_int;

/// Sets errno.
fn fail(error: c_int) {
    // SAFETY: the address is that of this thread's own errno.
    unsafe { libc::__errno_location().write(error) };
}

/// The result of a call that has no object to give.
fn null<T>(error: c_int) -> *mut T {
    fail(error);
    std::ptr::null_mut()
}

/// The result of a call that returns an error number.
fn code(done: Result<(), c_int>) -> c_int {
    match done {
        Ok(()) => 0,
        Err(error) => {
            fail(error);
            error
        }
    }
}

/// The model's numbers are those of verbs.h.
mod same {
    use crate::model::codes::{
        access, completed, completion_flag, event, flag, opcode, state, status,
    };
    use crate::model::pair::mask;
    use libibverbs_sys as sys;

    macro_rules! same {
        ($($ours:expr, $theirs:ident;)*) => {
            $(const _: () = assert!($ours == sys::$theirs as u32);)*
        };
    }

    same! {
        opcode::WRITE, IBV_WR_RDMA_WRITE;
        opcode::WRITE_IMM, IBV_WR_RDMA_WRITE_WITH_IMM;
        opcode::SEND, IBV_WR_SEND;
        opcode::SEND_IMM, IBV_WR_SEND_WITH_IMM;
        opcode::READ, IBV_WR_RDMA_READ;
        opcode::COMPARE_SWAP, IBV_WR_ATOMIC_CMP_AND_SWP;
        opcode::FETCH_ADD, IBV_WR_ATOMIC_FETCH_AND_ADD;
        completed::SEND, IBV_WC_SEND;
        completed::WRITE, IBV_WC_RDMA_WRITE;
        completed::READ, IBV_WC_RDMA_READ;
        completed::COMPARE_SWAP, IBV_WC_COMP_SWAP;
        completed::FETCH_ADD, IBV_WC_FETCH_ADD;
        completed::RECEIVE, IBV_WC_RECV;
        completed::RECEIVE_WRITE_IMM, IBV_WC_RECV_RDMA_WITH_IMM;
        flag::FENCE, IBV_SEND_FENCE;
        flag::SIGNALED, IBV_SEND_SIGNALED;
        flag::SOLICITED, IBV_SEND_SOLICITED;
        flag::INLINE, IBV_SEND_INLINE;
        completion_flag::WITH_IMM, IBV_WC_WITH_IMM;
        status::SUCCESS, IBV_WC_SUCCESS;
        status::LOCAL_LENGTH, IBV_WC_LOC_LEN_ERR;
        status::LOCAL_PROTECTION, IBV_WC_LOC_PROT_ERR;
        status::FLUSHED, IBV_WC_WR_FLUSH_ERR;
        status::REMOTE_INVALID, IBV_WC_REM_INV_REQ_ERR;
        status::REMOTE_ACCESS, IBV_WC_REM_ACCESS_ERR;
        status::REMOTE_OPERATION, IBV_WC_REM_OP_ERR;
        status::RETRY_EXCEEDED, IBV_WC_RETRY_EXC_ERR;
        status::RNR_EXCEEDED, IBV_WC_RNR_RETRY_EXC_ERR;
        access::LOCAL_WRITE, IBV_ACCESS_LOCAL_WRITE;
        access::REMOTE_WRITE, IBV_ACCESS_REMOTE_WRITE;
        access::REMOTE_READ, IBV_ACCESS_REMOTE_READ;
        access::REMOTE_ATOMIC, IBV_ACCESS_REMOTE_ATOMIC;
        access::ON_DEMAND, IBV_ACCESS_ON_DEMAND;
        access::RELAXED_ORDERING, IBV_ACCESS_RELAXED_ORDERING;
        state::RESET, IBV_QPS_RESET;
        state::INIT, IBV_QPS_INIT;
        state::RTR, IBV_QPS_RTR;
        state::RTS, IBV_QPS_RTS;
        state::SQD, IBV_QPS_SQD;
        state::SQE, IBV_QPS_SQE;
        state::ERR, IBV_QPS_ERR;
        event::CQ_ERR, IBV_EVENT_CQ_ERR;
        event::QP_FATAL, IBV_EVENT_QP_FATAL;
        event::DEVICE_FATAL, IBV_EVENT_DEVICE_FATAL;
        event::PORT_ACTIVE, IBV_EVENT_PORT_ACTIVE;
        event::PORT_ERR, IBV_EVENT_PORT_ERR;
        event::SRQ_LIMIT_REACHED, IBV_EVENT_SRQ_LIMIT_REACHED;
        event::QP_LAST_WQE_REACHED, IBV_EVENT_QP_LAST_WQE_REACHED;
        event::GID_CHANGE, IBV_EVENT_GID_CHANGE;
        mask::STATE, IBV_QP_STATE;
        mask::CURRENT_STATE, IBV_QP_CUR_STATE;
        mask::ACCESS, IBV_QP_ACCESS_FLAGS;
        mask::PKEY_INDEX, IBV_QP_PKEY_INDEX;
        mask::PORT, IBV_QP_PORT;
        mask::ADDRESS, IBV_QP_AV;
        mask::PATH_MTU, IBV_QP_PATH_MTU;
        mask::TIMEOUT, IBV_QP_TIMEOUT;
        mask::RETRY_COUNT, IBV_QP_RETRY_CNT;
        mask::RNR_RETRY, IBV_QP_RNR_RETRY;
        mask::RECEIVE_PSN, IBV_QP_RQ_PSN;
        mask::READS, IBV_QP_MAX_QP_RD_ATOMIC;
        mask::RNR_TIMER, IBV_QP_MIN_RNR_TIMER;
        mask::SEND_PSN, IBV_QP_SQ_PSN;
        mask::ACCEPTED_READS, IBV_QP_MAX_DEST_RD_ATOMIC;
        mask::PEER, IBV_QP_DEST_QPN;
    }
}
