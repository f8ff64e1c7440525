//! Collective communication (GASPI 17.1, 11).

use crate::error::Failure;
use crate::runtime::timeout;
use crate::types::*;
use gaspi_collectives::{DataType, Operation, ReductionFailed, UserReduce};
use gaspi_core::GroupId;
use std::ffi::c_void;

fn operation(number: gaspi_operation_t) -> Result<Operation, Failure> {
    match number {
        GASPI_OP_MIN => Ok(Operation::Min),
        GASPI_OP_MAX => Ok(Operation::Max),
        GASPI_OP_SUM => Ok(Operation::Sum),
        other => Err(Failure::Rejected(format!(
            "operation {other} does not exist; use GASPI_OP_MIN, GASPI_OP_MAX or GASPI_OP_SUM"
        ))),
    }
}

fn data_type(number: gaspi_datatype_t) -> Result<DataType, Failure> {
    match number {
        GASPI_TYPE_INT => Ok(DataType::I32),
        GASPI_TYPE_UINT => Ok(DataType::U32),
        GASPI_TYPE_FLOAT => Ok(DataType::F32),
        GASPI_TYPE_DOUBLE => Ok(DataType::F64),
        GASPI_TYPE_LONG => Ok(DataType::I64),
        GASPI_TYPE_ULONG => Ok(DataType::U64),
        other => Err(Failure::Rejected(format!(
            "data type {other} does not exist; use GASPI_TYPE_INT to GASPI_TYPE_ULONG (0 to 5)"
        ))),
    }
}

type ReduceFunction = unsafe extern "C" fn(
    gaspi_pointer_t,
    gaspi_pointer_t,
    gaspi_pointer_t,
    gaspi_reduce_state_t,
    gaspi_number_t,
    gaspi_size_t,
    gaspi_timeout_t,
) -> gaspi_return_t;

/// A reduction of the program, with its state.
struct Callback {
    function: ReduceFunction,
    state: gaspi_reduce_state_t,
    element_size: gaspi_size_t,
    milliseconds: gaspi_timeout_t,
}

impl UserReduce for Callback {
    fn reduce(
        &mut self,
        one: &[u8],
        two: &[u8],
        result: &mut [u8],
        count: u64,
    ) -> Result<(), ReductionFailed> {
        let count = gaspi_number_t::try_from(count).map_err(|_| ReductionFailed)?;
        let read = |elements: &[u8]| elements.as_ptr().cast::<c_void>().cast_mut();
        // SAFETY: the program promises that its function reads `count` elements of the first two,
        // writes them to the third, and knows what its state is.
        let code = unsafe {
            (self.function)(
                read(one),
                read(two),
                result.as_mut_ptr().cast(),
                self.state,
                count,
                self.element_size,
                self.milliseconds,
            )
        };
        if code == GASPI_SUCCESS { Ok(()) } else { Err(ReductionFailed) }
    }

    fn identity(&self) -> u64 {
        (self.function as usize as u64).rotate_left(32) ^ self.state as usize as u64
    }
}

procedures! {
    /// GASPI.h: waits for all ranks of a group.
    fn barrier(group: gaspi_group_t, milliseconds: gaspi_timeout_t) try_fast rt {
        rt.barrier(GroupId(group), milliseconds == GASPI_TEST).map(|()| GASPI_SUCCESS)
    } holding rt {
        Ok(rt.barrier_call(GroupId(group), timeout(milliseconds))?)
    }

    /// GASPI.h: combines elements of all ranks of a group.
    fn allreduce(
        buffer_send: gaspi_pointer_t,
        buffer_receive: gaspi_pointer_t,
        num: gaspi_number_t,
        op: gaspi_operation_t,
        datatype: gaspi_datatype_t,
        group: gaspi_group_t,
        milliseconds: gaspi_timeout_t,
    ) holding_briefly rt {
        not_null!(buffer_send, buffer_receive);
        // SAFETY: the caller of the C function passes `num` elements of that type in both.
        Ok(unsafe {
            gaspi_collectives::allreduce(
                rt,
                buffer_send.cast(),
                buffer_receive.cast(),
                num.into(),
                operation(op)?,
                data_type(datatype)?,
                GroupId(group),
                timeout(milliseconds),
            )
        }?)
    }

    /// GASPI.h: combines elements of all ranks of a group by a function of the program.
    fn allreduce_user(
        buffer_send: gaspi_pointer_t,
        buffer_receive: gaspi_pointer_t,
        num: gaspi_number_t,
        element_size: gaspi_size_t,
        reduce_operation: gaspi_reduce_operation_t,
        reduce_state: gaspi_reduce_state_t,
        group: gaspi_group_t,
        milliseconds: gaspi_timeout_t,
    ) holding rt {
        not_null!(buffer_send, buffer_receive);
        let function = reduce_operation.ok_or(Failure::Null("reduce_operation"))?;
        let mut callback = Callback { function, state: reduce_state, element_size, milliseconds };
        // SAFETY: the caller of the C function passes `num` elements of that size in both.
        Ok(unsafe {
            gaspi_collectives::allreduce_user(
                rt,
                buffer_send.cast(),
                buffer_receive.cast(),
                num.into(),
                element_size,
                &mut callback,
                GroupId(group),
                timeout(milliseconds),
            )
        }?)
    }
}
