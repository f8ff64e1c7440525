//! What makes an average of a sum.

use super::Target;
use super::halves::{Bf16, F16, Half};
use crate::datatype::DataType;

/// `dst[i] = dst[i] / n`, the last step of an average of `n` contributions. Integers are cut off
/// towards zero, f16 and bf16 are divided as f32 and rounded.
///
/// # Panics
/// `n` is 0, or the length is not one of whole elements.
pub fn divide(ty: DataType, dst: Target<'_>, n: u32) {
    assert!(n > 0, "an average has at least one contribution");
    assert_eq!(dst.len % ty.bytes() as usize, 0, "an average has whole elements");
    // A quotient fits, whatever type the number has.
    macro_rules! integer {
        ($element:ty, $wide:ty) => {{
            let n = <$wide>::from(n);
            each(dst, |value: $element| (<$wide>::from(value) / n) as $element);
        }};
    }
    match ty {
        DataType::I8 => integer!(i8, i64),
        DataType::U8 => integer!(u8, u64),
        DataType::I16 => integer!(i16, i64),
        DataType::U16 => integer!(u16, u64),
        DataType::I32 => integer!(i32, i64),
        DataType::U32 => integer!(u32, u64),
        DataType::I64 => integer!(i64, i64),
        DataType::U64 => integer!(u64, u64),
        DataType::F16 => each(dst, |bits| F16::narrow(F16::widen(bits) / n as f32)),
        DataType::Bf16 => each(dst, |bits| Bf16::narrow(Bf16::widen(bits) / n as f32)),
        DataType::F32 => each(dst, |value: f32| {
            let quotient = value / n as f32;
            if quotient.is_nan() { f32::NAN } else { quotient }
        }),
        DataType::F64 => each(dst, |value: f64| {
            let quotient = value / f64::from(n);
            if quotient.is_nan() { f64::NAN } else { quotient }
        }),
    }
}

fn each<T>(dst: Target<'_>, quotient: impl Fn(T) -> T) {
    for i in 0..dst.len / size_of::<T>() {
        // SAFETY: element `i` is inside; every bit pattern is a number.
        let value = unsafe { dst.start.cast::<T>().add(i).read_unaligned() };
        // SAFETY: as above.
        unsafe { dst.start.cast::<T>().add(i).write_unaligned(quotient(value)) };
    }
}
