//! Element types and reduction operations, by name.
//!
//! The numbers that C programs use for them belong to gaspi-ffi. The codes here travel in the
//! fingerprint of a call (four bits each), so that ranks that disagree can say in what.

use std::fmt;

/// The type of the elements of a reduction (GASPI 17.1, 11.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
#[repr(u8)]
pub enum DataType {
    /// Signed, 32 bits.
    I32 = 0,
    /// Unsigned, 32 bits.
    U32 = 1,
    /// IEEE 754 single precision.
    F32 = 2,
    /// IEEE 754 double precision.
    F64 = 3,
    /// Signed, 64 bits.
    I64 = 4,
    /// Unsigned, 64 bits.
    U64 = 5,
}

impl DataType {
    /// All types there are.
    pub const ALL: [DataType; 6] =
        [DataType::I32, DataType::U32, DataType::F32, DataType::F64, DataType::I64, DataType::U64];

    /// Bytes of one element.
    pub const fn bytes(self) -> u32 {
        match self {
            DataType::I32 | DataType::U32 | DataType::F32 => 4,
            DataType::F64 | DataType::I64 | DataType::U64 => 8,
        }
    }

    /// The type's place in a fingerprint, below 16.
    pub(crate) const fn code(self) -> u64 {
        self as u64
    }

    /// The type of a fingerprint; `None` where another version of the library knows more.
    pub(crate) fn from_code(code: u64) -> Option<DataType> {
        DataType::ALL.into_iter().find(|ty| ty.code() == code)
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DataType::I32 => "i32",
            DataType::U32 => "u32",
            DataType::F32 => "f32",
            DataType::F64 => "f64",
            DataType::I64 => "i64",
            DataType::U64 => "u64",
        })
    }
}

/// How elements are combined (GASPI 17.1, 11.3).
///
/// Contributions are always combined in the order of the ranks, every rank gets the same bits:
/// - integer sums wrap around;
/// - a NaN never disappears: where a contribution is NaN, or a sum becomes NaN, the result is the
///   one canonical quiet NaN, for minimum and maximum too;
/// - zeros of either sign are equal, minimum and maximum keep the lowest rank's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
#[repr(u8)]
pub enum Operation {
    /// The smallest.
    Min = 0,
    /// The largest.
    Max = 1,
    /// The sum.
    Sum = 2,
}

impl Operation {
    /// All operations there are.
    pub const ALL: [Operation; 3] = [Operation::Min, Operation::Max, Operation::Sum];

    /// The operation's place in a fingerprint, below 16.
    pub(crate) const fn code(self) -> u64 {
        self as u64
    }

    /// The operation of a fingerprint; `None` where another version of the library knows more.
    pub(crate) fn from_code(code: u64) -> Option<Operation> {
        Operation::ALL.into_iter().find(|op| op.code() == code)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::Min => "min",
            Operation::Max => "max",
            Operation::Sum => "sum",
        })
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that reductions know: `i32`, `u32`, `f32`, `f64`, `i64`, `u64`.
pub trait Element: sealed::Sealed + Copy + Send + Sync + 'static {
    /// Its type.
    const TYPE: DataType;
}

macro_rules! element {
    ($($name:ty => $ty:ident),*) => {$(
        impl sealed::Sealed for $name {}
        impl Element for $name {
            const TYPE: DataType = DataType::$ty;
        }
    )*};
}

element!(i32 => I32, u32 => U32, f32 => F32, f64 => F64, i64 => I64, u64 => U64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_fit_the_fingerprint_and_name_their_item() {
        for ty in DataType::ALL {
            assert!(ty.code() < 16);
            assert_eq!(DataType::from_code(ty.code()), Some(ty));
        }
        for op in Operation::ALL {
            assert!(op.code() < 16);
            assert_eq!(Operation::from_code(op.code()), Some(op));
        }
        assert_eq!(DataType::from_code(15), None);
        assert_eq!(Operation::from_code(15), None);
    }

    #[test]
    fn sizes_are_those_of_the_rust_types() {
        fn check<T: Element>() {
            assert_eq!(T::TYPE.bytes() as usize, size_of::<T>());
        }
        check::<i32>();
        check::<u32>();
        check::<f32>();
        check::<f64>();
        check::<i64>();
        check::<u64>();
    }
}
