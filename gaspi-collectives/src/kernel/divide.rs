//! What makes an average of a sum.

use super::Target;
use super::chunk::{Chunk, Lanes, Pieces};
use super::combine::{Combine, Divisor, Product, Quotient};
use super::environment::Environment;
use super::halves::{Bf16, F16};
use super::reduce::Isa;
#[cfg(target_arch = "x86_64")]
use super::reduce::LaneOf;
use crate::datatype::DataType;

/// `dst[i] = dst[i] / n`, the last step of an average of `n` contributions. Integers are cut off
/// towards zero, f16 and bf16 are divided as f32 and rounded.
///
/// # Panics
/// `n` is 0, or the length is not one of whole elements.
pub fn divide(ty: DataType, dst: Target<'_>, n: u32) {
    divide_with(Isa::of_this_processor(), ty, dst, n);
}

pub(super) fn divide_with(isa: Isa, ty: DataType, dst: Target<'_>, n: u32) {
    assert!(n > 0, "an average has at least one contribution");
    assert_eq!(dst.len % ty.bytes() as usize, 0, "an average has whole elements");
    // Those of integers are quotients of floats as well.
    let _environment = Environment::enter();
    // The quotient of integers of up to 32 bits is off by less than what it lacks to the next
    // integer, so that what is cut off is the same; it takes a third of the time.
    macro_rules! small {
        ($element:ty) => {
            integers(dst, |value: $element| (f64::from(value) / f64::from(n)) as $element)
        };
    }
    match ty {
        DataType::I8 => small!(i8),
        DataType::U8 => small!(u8),
        DataType::I16 => small!(i16),
        DataType::U16 => small!(u16),
        DataType::I32 => small!(i32),
        DataType::U32 => small!(u32),
        DataType::I64 => integers(dst, |value: i64| value / i64::from(n)),
        DataType::U64 => integers(dst, |value: u64| value / u64::from(n)),
        DataType::F16 => floats::<F16>(isa, dst, n),
        DataType::Bf16 => floats::<Bf16>(isa, dst, n),
        DataType::F32 => floats::<f32>(isa, dst, n),
        DataType::F64 => floats::<f64>(isa, dst, n),
    }
}

fn integers<T>(dst: Target<'_>, quotient: impl Fn(T) -> T) {
    for i in 0..dst.len / size_of::<T>() {
        // SAFETY: element `i` is inside; every bit pattern is a number.
        let value = unsafe { dst.start.cast::<T>().add(i).read_unaligned() };
        // SAFETY: element `i` is inside.
        unsafe { dst.start.cast::<T>().add(i).write_unaligned(quotient(value)) };
    }
}

#[cfg(target_arch = "x86_64")]
fn floats<T: Pieces>(isa: Isa, dst: Target<'_>, n: u32)
where
    T::Lane: Divisor,
    LaneOf<T::Avx2>: Divisor,
    Quotient: Combine<T::Lane> + Combine<LaneOf<T::Avx2>>,
    Product: Combine<T::Lane> + Combine<LaneOf<T::Avx2>>,
{
    match isa {
        Isa::Baseline => sweep::<T::Baseline, T>(dst, n),
        // Divisions of wider vectors take as much longer.
        // SAFETY: these are only made where the processor has AVX2, F16C and FMA.
        Isa::Avx2 | Isa::Avx512 => unsafe { sweep_avx2::<T>(dst, n) },
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn floats<T: Pieces>(_: Isa, dst: Target<'_>, n: u32)
where
    T::Lane: Divisor,
    Quotient: Combine<T::Lane>,
    Product: Combine<T::Lane>,
{
    sweep::<T::Baseline, T>(dst, n);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c,fma")]
fn sweep_avx2<T: Pieces>(dst: Target<'_>, n: u32)
where
    T::Lane: Divisor,
    LaneOf<T::Avx2>: Divisor,
    Quotient: Combine<T::Lane> + Combine<LaneOf<T::Avx2>>,
    Product: Combine<T::Lane> + Combine<LaneOf<T::Avx2>>,
{
    sweep::<T::Avx2, T>(dst, n);
}

// Inlined into each instruction set's clone, so that it is compiled for that set.
#[inline(always)]
fn sweep<C: Chunk<Lane: Divisor>, T: Pieces<Lane: Divisor>>(dst: Target<'_>, n: u32)
where
    Quotient: Combine<C::Lane> + Combine<T::Lane>,
    Product: Combine<C::Lane> + Combine<T::Lane>,
{
    // Rounded once, from the same number, so that the bits are those of the quotient. A division
    // takes a processor five times as long as a multiplication.
    let at = if n.is_power_of_two() {
        let at = pieces::<C, Product>(dst, C::Lane::reciprocal(n), 0);
        pieces::<T::Single, Product>(dst, T::Lane::reciprocal(n), at)
    } else {
        let at = pieces::<C, Quotient>(dst, C::Lane::of(n), 0);
        pieces::<T::Single, Quotient>(dst, T::Lane::of(n), at)
    };
    debug_assert_eq!(at, dst.len);
}

/// Combines with `right`, from `at` on, for as long as there are whole chunks; returns where that
/// ends.
#[inline(always)]
fn pieces<C: Chunk, O: Combine<C::Lane>>(dst: Target<'_>, right: C::Lane, mut at: usize) -> usize {
    let right = C::Lanes::all(right);
    while dst.len - at >= C::BYTES {
        // SAFETY: the chunk is inside.
        let lanes = unsafe { C::load(dst.start.add(at)) };
        let mut lanes = lanes.combine::<O>(right);
        if lanes.is_unsettled::<O>() {
            lanes = lanes.settle::<O>();
        }
        // SAFETY: the chunk is inside.
        unsafe { C::store(dst.start.add(at), C::pack(lanes)) };
        at += C::BYTES;
    }
    at
}
