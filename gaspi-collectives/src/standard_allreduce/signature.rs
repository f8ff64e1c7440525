//! Signatures of the standard's all-reduces: what ranks must agree on, in 64 bits that can be
//! turned back into words. gaspi-core calls them signatures.
//!
//! | bits | all-reduce | user-defined |
//! |---|---|---|
//! | 0..4 | kind 2 | kind 3 |
//! | 4..8 | operation | element bytes, bits 0..4 |
//! | 8..12 | type | bits 4..8 |
//! | 12..20 | count, bits 0..8 | bits 8..16 |
//! | 20..56 | bits 8..44 | count, 36 bits |
//! | 56..60 | bits 44..48 | |
//! | 60..64 | step of the call, from 0 | the same |
//!
//! gaspi-core makes the signatures of other kinds. This module describes them for a rank that
//! called an all-reduce.

use gaspi_core::{CallKind, NUMBER_SHIFT};

use crate::datatype::{DataType, Operation};

const BARRIER: u64 = CallKind::Barrier as u64;
const ALLREDUCE: u64 = CallKind::Allreduce as u64;
const ALLREDUCE_USER: u64 = CallKind::AllreduceUser as u64;
const SEGMENT_CREATE: u64 = CallKind::SegmentCreate as u64;
const SEGMENT_USE: u64 = CallKind::SegmentUse as u64;
const CANNOT_SEND: u64 = CallKind::CannotSend as u64;

/// Elements that fit into the signature of an all-reduce.
pub(crate) const COUNT_MAX: u64 = (1 << 48) - 1;
/// Elements that fit into the signature of a user-defined one.
pub(crate) const USER_COUNT_MAX: u64 = (1 << 36) - 1;
/// Element sizes that do.
pub(crate) const USER_ELEMENT_MAX: u64 = (1 << 16) - 1;

/// The signature of an all-reduce.
pub(crate) fn allreduce(count: u64, op: Operation, ty: DataType) -> u64 {
    debug_assert!(count <= COUNT_MAX);
    CallKind::Allreduce.signature(op.code() | ty.code() << 4 | count << 8)
}

/// The signature of a user-defined all-reduce.
pub(crate) fn allreduce_user(count: u64, element_bytes: u64) -> u64 {
    debug_assert!(count <= USER_COUNT_MAX && element_bytes <= USER_ELEMENT_MAX);
    CallKind::AllreduceUser.signature(element_bytes | count << 16)
}

/// A signature in words, such as "allreduce of 4 x f64 sum".
pub(crate) fn describe(signature: u64) -> String {
    match (signature & 15, signature >> NUMBER_SHIFT) {
        (ALLREDUCE | ALLREDUCE_USER, number @ 1..) => {
            let call = describe_call(signature & ((1 << NUMBER_SHIFT) - 1));
            format!("step {} of {call}", number + 1)
        }
        _ => describe_call(signature),
    }
}

/// The same of a call, whichever of its steps.
fn describe_call(signature: u64) -> String {
    match signature & 15 {
        BARRIER => "barrier".to_owned(),
        ALLREDUCE => {
            let op = Operation::from_code(signature >> 4 & 15);
            let ty = DataType::from_code(signature >> 8 & 15);
            let count = signature >> 12;
            match (op, ty) {
                (Some(op), Some(ty)) => format!("allreduce of {count} x {ty} {op}"),
                _ => format!("allreduce of {count} elements of an unknown type or operation"),
            }
        }
        ALLREDUCE_USER => {
            let element_bytes = signature >> 4 & USER_ELEMENT_MAX;
            let count = signature >> 20;
            format!("allreduce_user of {count} x {element_bytes} bytes")
        }
        SEGMENT_CREATE => format!("segment_create of segment {}", signature >> 4),
        SEGMENT_USE => format!("segment_use of segment {}", signature >> 4),
        CANNOT_SEND => gaspi_core::describe_call(signature),
        kind => format!("collective of kind {kind}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_say_what_was_called() {
        let of = |count, op, ty| describe(allreduce(count, op, ty));
        assert_eq!(of(4, Operation::Sum, DataType::F64), "allreduce of 4 x f64 sum");
        assert_eq!(of(1 << 31, Operation::Min, DataType::U32), "allreduce of 2147483648 x u32 min");
        assert_eq!(
            of(COUNT_MAX, Operation::Max, DataType::I64),
            "allreduce of 281474976710655 x i64 max"
        );
        assert_eq!(describe(allreduce_user(7, 24)), "allreduce_user of 7 x 24 bytes");
        let largest = describe(allreduce_user(USER_COUNT_MAX, USER_ELEMENT_MAX));
        assert_eq!(largest, "allreduce_user of 68719476735 x 65535 bytes");
        let second = allreduce(4, Operation::Sum, DataType::F64) | 1 << NUMBER_SHIFT;
        assert_eq!(describe(second), "step 2 of allreduce of 4 x f64 sum");
        assert_eq!(describe(CallKind::Barrier.signature(0)), "barrier");
        let create = describe(CallKind::SegmentCreate.signature(7));
        assert_eq!(create, "segment_create of segment 7");
        assert_eq!(describe(9), "collective of kind 9");
    }
}
