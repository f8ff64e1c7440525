//! What makes an average of a sum.

use super::Target;
use super::chunk::{Chunk, Converted, Lanes, Plain};
use super::halves::{Bf16, F16};
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
            each::<Plain<$element, 1>>(dst, |value| (<$wide>::from(value) / n) as $element);
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
        DataType::F16 => each::<Converted<F16, 1>>(dst, |value| settled(value / n as f32)),
        DataType::Bf16 => each::<Converted<Bf16, 1>>(dst, |value| settled(value / n as f32)),
        DataType::F32 => each::<Plain<f32, 1>>(dst, |value| settled(value / n as f32)),
        DataType::F64 => each::<Plain<f64, 1>>(dst, |value| {
            let quotient = value / f64::from(n);
            if quotient.is_nan() { f64::NAN } else { quotient }
        }),
    }
}

fn each<C: Chunk>(dst: Target<'_>, quotient: impl Fn(C::Lane) -> C::Lane) {
    for at in (0..dst.len).step_by(C::BYTES) {
        // SAFETY: `divide` checked that there are whole elements.
        let lanes = unsafe { C::load(dst.start.add(at)) };
        // SAFETY: as above.
        unsafe { C::store(dst.start.add(at), lanes.map(&quotient)) };
    }
}

fn settled(value: f32) -> f32 {
    if value.is_nan() { f32::NAN } else { value }
}
