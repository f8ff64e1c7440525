//! Element types and reduction operations, by name.
//!
//! The numbers that C programs use for them belong to gaspi-ffi. The codes here travel in the
//! signature of a call (four bits each), so that ranks that disagree can say in what.

use std::fmt;

use half::{bf16, f16};

/// The type of the elements of a reduction (GASPI 17.1, 11.3, and those that it does not have).
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
    /// Signed, 8 bits.
    I8 = 6,
    /// Unsigned, 8 bits.
    U8 = 7,
    /// Signed, 16 bits.
    I16 = 8,
    /// Unsigned, 16 bits.
    U16 = 9,
    /// IEEE 754 half precision: 5 bits of exponent, 10 of fraction.
    F16 = 10,
    /// The upper half of an [`F32`](Self::F32): 8 bits of exponent, 7 of fraction.
    Bf16 = 11,
}

impl DataType {
    /// All types there are.
    pub const ALL: [DataType; 12] = [
        DataType::I8,
        DataType::U8,
        DataType::I16,
        DataType::U16,
        DataType::I32,
        DataType::U32,
        DataType::I64,
        DataType::U64,
        DataType::F16,
        DataType::Bf16,
        DataType::F32,
        DataType::F64,
    ];

    /// Bytes of one element.
    pub const fn bytes(self) -> u32 {
        match self {
            DataType::I8 | DataType::U8 => 1,
            DataType::I16 | DataType::U16 | DataType::F16 | DataType::Bf16 => 2,
            DataType::I32 | DataType::U32 | DataType::F32 => 4,
            DataType::F64 | DataType::I64 | DataType::U64 => 8,
        }
    }

    /// Whether elements are combined in more digits than they are stored with.
    pub(crate) const fn is_half(self) -> bool {
        matches!(self, DataType::F16 | DataType::Bf16)
    }

    /// Whether elements are integers, as opposed to floating-point numbers.
    pub const fn is_integer(self) -> bool {
        match self {
            DataType::F16 | DataType::Bf16 | DataType::F32 | DataType::F64 => false,
            DataType::I8
            | DataType::U8
            | DataType::I16
            | DataType::U16
            | DataType::I32
            | DataType::U32
            | DataType::I64
            | DataType::U64 => true,
        }
    }

    /// The type's place in a signature, below 16.
    pub(crate) const fn code(self) -> u64 {
        self as u64
    }

    /// The type of a signature; `None` where another version of the library knows more.
    pub(crate) fn from_code(code: u64) -> Option<DataType> {
        DataType::ALL.into_iter().find(|ty| ty.code() == code)
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DataType::I8 => "i8",
            DataType::U8 => "u8",
            DataType::I16 => "i16",
            DataType::U16 => "u16",
            DataType::F16 => "f16",
            DataType::Bf16 => "bf16",
            DataType::I32 => "i32",
            DataType::U32 => "u32",
            DataType::F32 => "f32",
            DataType::F64 => "f64",
            DataType::I64 => "i64",
            DataType::U64 => "u64",
        })
    }
}

/// How elements are combined (GASPI 17.1, 11.3, and those that it does not have).
///
/// Every rank gets the same bits. They do not depend on the processor; where rounding makes them
/// depend on the order, the algorithm's order is the same on all ranks.
///
/// - **Integers** wrap around, in sums, products, and in the sum that an average is made of.
/// - **f16 and bf16** are combined as f32, and rounded to the nearest, ties to even, once for all
///   that one rank combines at a time. A sum beyond the largest f16 (65504) is infinite, also where
///   the average would not be.
/// - **NaN** never disappears: where one of several contributions is NaN, or a result becomes NaN,
///   the result is the one canonical quiet NaN, for minimum and maximum too.
/// - **Zeros** of either sign are equal: minimum and maximum keep the first in the order.
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
    /// The product.
    Product = 3,
    /// Bits that all have. Integers only.
    And = 4,
    /// Bits that any has. Integers only.
    Or = 5,
    /// Bits that an odd number has. Integers only.
    Xor = 6,
    /// The sum, divided at the end by the number of contributions. The quotient of integers is cut
    /// off towards zero; that of f16 and bf16, whose sum has been rounded, is made as f32 and
    /// rounded again.
    Average = 7,
}

impl Operation {
    /// All operations there are.
    pub const ALL: [Operation; 8] = [
        Operation::Sum,
        Operation::Product,
        Operation::Min,
        Operation::Max,
        Operation::And,
        Operation::Or,
        Operation::Xor,
        Operation::Average,
    ];

    /// Whether elements of this type can be combined so: those on bits are for integers.
    pub const fn is_defined_for(self, ty: DataType) -> bool {
        match self {
            Operation::And | Operation::Or | Operation::Xor => ty.is_integer(),
            Operation::Min
            | Operation::Max
            | Operation::Sum
            | Operation::Product
            | Operation::Average => true,
        }
    }

    /// The operation's place in a signature, below 16.
    pub(crate) const fn code(self) -> u64 {
        self as u64
    }

    /// The operation of a signature; `None` where another version of the library knows more.
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
            Operation::Product => "product",
            Operation::And => "and",
            Operation::Or => "or",
            Operation::Xor => "xor",
            Operation::Average => "average",
        })
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that reductions know: the integers of 8 to 64 bits, [`f16`], [`bf16`], `f32`, `f64`.
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

element!(i8 => I8, u8 => U8, i16 => I16, u16 => U16);
element!(i32 => I32, u32 => U32, i64 => I64, u64 => U64);
element!(f16 => F16, bf16 => Bf16, f32 => F32, f64 => F64);

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn codes_fit_the_signature_and_name_their_item() {
        let codes: HashSet<u64> = DataType::ALL.into_iter().map(DataType::code).collect();
        assert_eq!(codes, (0..12).collect());
        for ty in DataType::ALL {
            assert_eq!(DataType::from_code(ty.code()), Some(ty));
        }
        let codes: HashSet<u64> = Operation::ALL.into_iter().map(Operation::code).collect();
        assert_eq!(codes, (0..8).collect());
        for op in Operation::ALL {
            assert_eq!(Operation::from_code(op.code()), Some(op));
        }
        assert_eq!(DataType::from_code(15), None);
        assert_eq!(Operation::from_code(15), None);
    }

    /// Libraries of other versions read them.
    #[test]
    fn codes_stay_what_they_were() {
        assert_eq!((DataType::I32.code(), DataType::F64.code(), DataType::U64.code()), (0, 3, 5));
        let ops = [Operation::Min, Operation::Max, Operation::Sum];
        assert_eq!(ops.map(Operation::code), [0, 1, 2]);
    }

    #[test]
    fn sizes_are_those_of_the_rust_types() {
        fn check<T: Element>(name: &str) {
            assert_eq!(T::TYPE.bytes() as usize, size_of::<T>());
            assert_eq!(T::TYPE.to_string(), name);
        }
        check::<i8>("i8");
        check::<u8>("u8");
        check::<i16>("i16");
        check::<u16>("u16");
        check::<i32>("i32");
        check::<u32>("u32");
        check::<i64>("i64");
        check::<u64>("u64");
        check::<f16>("f16");
        check::<bf16>("bf16");
        check::<f32>("f32");
        check::<f64>("f64");
    }

    #[test]
    fn bits_are_of_integers_only() {
        for op in [Operation::And, Operation::Or, Operation::Xor] {
            assert!(op.is_defined_for(DataType::I8) && op.is_defined_for(DataType::U64));
            assert!(!op.is_defined_for(DataType::F16) && !op.is_defined_for(DataType::F64));
        }
        assert!(DataType::ALL.into_iter().all(|ty| Operation::Average.is_defined_for(ty)));
    }
}
