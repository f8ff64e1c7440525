//! What ranks must agree on, in 64 bits that can be turned back into words.
//!
//! | bits | all-reduce | user-defined |
//! |---|---|---|
//! | 0..4 | kind 2 | kind 3 |
//! | 4..8 | operation | element bytes, bits 0..4 |
//! | 8..12 | type | bits 4..8 |
//! | 12..28 | count, bits 0..16 | bits 8..24 |
//! | 28..64 | bits 16..52 | count, 36 bits |
//!
//! The fingerprints of other kinds are made by gaspi-core, but this module's words are asked for
//! when a rank that called an all-reduce meets one.

use gaspi_core::CallKind;

use crate::datatype::{DataType, Operation};

const BARRIER: u64 = CallKind::Barrier as u64;
const ALLREDUCE: u64 = CallKind::Allreduce as u64;
const ALLREDUCE_USER: u64 = CallKind::AllreduceUser as u64;
const SEGMENT_CREATE: u64 = CallKind::SegmentCreate as u64;
const SEGMENT_USE: u64 = CallKind::SegmentUse as u64;

/// Elements that fit into the fingerprint of an all-reduce.
pub(crate) const COUNT_MAX: u64 = (1 << 52) - 1;
/// Elements that fit into the fingerprint of a user-defined one.
pub(crate) const USER_COUNT_MAX: u64 = (1 << 36) - 1;
/// Element sizes that do.
pub(crate) const USER_ELEMENT_MAX: u64 = (1 << 24) - 1;

/// The fingerprint of an all-reduce.
pub(crate) fn allreduce(count: u64, op: Operation, ty: DataType) -> u64 {
    debug_assert!(count <= COUNT_MAX);
    CallKind::Allreduce.fingerprint(op.code() | ty.code() << 4 | count << 8)
}

/// The fingerprint of a user-defined all-reduce.
pub(crate) fn allreduce_user(count: u64, element_bytes: u64) -> u64 {
    debug_assert!(count <= USER_COUNT_MAX && element_bytes <= USER_ELEMENT_MAX);
    CallKind::AllreduceUser.fingerprint(element_bytes | count << 24)
}

/// A fingerprint in words, such as "allreduce of 4 x f64 sum".
pub(crate) fn describe(fingerprint: u64) -> String {
    match fingerprint & 15 {
        BARRIER => "barrier".to_owned(),
        ALLREDUCE => {
            let op = Operation::from_code(fingerprint >> 4 & 15);
            let ty = DataType::from_code(fingerprint >> 8 & 15);
            let count = fingerprint >> 12;
            match (op, ty) {
                (Some(op), Some(ty)) => format!("allreduce of {count} x {ty} {op}"),
                _ => format!("allreduce of {count} elements of an unknown type or operation"),
            }
        }
        ALLREDUCE_USER => {
            let element_bytes = fingerprint >> 4 & USER_ELEMENT_MAX;
            let count = fingerprint >> 28;
            format!("allreduce_user of {count} x {element_bytes} bytes")
        }
        SEGMENT_CREATE => format!("segment_create of segment {}", fingerprint >> 4),
        SEGMENT_USE => format!("segment_use of segment {}", fingerprint >> 4),
        kind => format!("collective of kind {kind}"),
    }
}

/// A hash of what a rank passed, to recognise a call that continues with other arguments.
pub(crate) fn mix(values: &[u64]) -> u64 {
    // The finaliser of splitmix64: every bit of the input reaches every bit of the output.
    values.iter().fold(0, |hash, value| {
        let mut z = (hash ^ value).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    })
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
            "allreduce of 4503599627370495 x i64 max"
        );
        assert_eq!(describe(allreduce_user(7, 24)), "allreduce_user of 7 x 24 bytes");
        let largest = describe(allreduce_user(USER_COUNT_MAX, USER_ELEMENT_MAX));
        assert_eq!(largest, "allreduce_user of 68719476735 x 16777215 bytes");
        assert_eq!(describe(CallKind::Barrier.fingerprint(0)), "barrier");
        let create = describe(CallKind::SegmentCreate.fingerprint(7));
        assert_eq!(create, "segment_create of segment 7");
        assert_eq!(describe(9), "collective of kind 9");
    }

    #[test]
    fn another_argument_or_order_is_another_hash() {
        assert_ne!(mix(&[1, 2]), mix(&[2, 1]));
        assert_ne!(mix(&[1, 2]), mix(&[1, 3]));
        assert_eq!(mix(&[1, 2]), mix(&[1, 2]));
    }
}
