//! What the operations do to two elements, as they are in registers: halves are f32 there.

/// An operation on lanes of type `A`.
pub(crate) trait Combine<A> {
    fn combine(left: A, right: A) -> A;

    /// Whether one of two results may have other bits than it is to have, which is rare.
    #[inline(always)]
    fn is_unsettled(_: A, _: A) -> bool {
        false
    }

    /// Gives results the bits that they are to have.
    #[inline(always)]
    fn settle(value: A) -> A {
        value
    }
}

/// What contributions can be divided by.
pub(crate) trait Divisor {
    fn of(n: u32) -> Self;

    /// 1 / `n`; exact for powers of two.
    fn reciprocal(n: u32) -> Self;
}

impl Divisor for f32 {
    #[inline(always)]
    fn of(n: u32) -> f32 {
        n as f32
    }

    #[inline(always)]
    fn reciprocal(n: u32) -> f32 {
        1.0 / f32::of(n)
    }
}

impl Divisor for f64 {
    #[inline(always)]
    fn of(n: u32) -> f64 {
        f64::from(n)
    }

    #[inline(always)]
    fn reciprocal(n: u32) -> f64 {
        1.0 / f64::of(n)
    }
}

pub(crate) struct Min;
pub(crate) struct Max;
pub(crate) struct Sum;
pub(crate) struct Product;
/// Of floats: what makes an average of a sum.
pub(crate) struct Quotient;
pub(crate) struct And;
pub(crate) struct Or;
pub(crate) struct Xor;

macro_rules! operation {
    ($name:ident on $($lane:ty),*: |$left:ident, $right:ident| $combined:expr) => {$(
        impl Combine<$lane> for $name {
            #[inline(always)]
            fn combine($left: $lane, $right: $lane) -> $lane {
                $combined
            }
        }
    )*};
    ($name:ident on $($lane:ident),*: |$left:ident, $right:ident| $combined:expr, settled) => {$(
        impl Combine<$lane> for $name {
            #[inline(always)]
            fn combine($left: $lane, $right: $lane) -> $lane {
                $combined
            }

            // Once at the end is enough: what is NaN stays NaN.
            #[inline(always)]
            fn is_unsettled(one: $lane, two: $lane) -> bool {
                one.is_nan() | two.is_nan()
            }

            #[inline(always)]
            fn settle(value: $lane) -> $lane {
                if value.is_nan() { $lane::NAN } else { value }
            }
        }
    )*};
}

operation!(Min on i8, u8, i16, u16, i32, u32, i64, u64: |left, right| left.min(right));
operation!(Max on i8, u8, i16, u16, i32, u32, i64, u64: |left, right| left.max(right));
// Those of signed integers have the same bits.
operation!(Sum on u8, u16, u32, u64: |left, right| left.wrapping_add(right));
operation!(Product on u8, u16, u32, u64: |left, right| left.wrapping_mul(right));
// On bytes, of whatever integer.
operation!(And on u8: |left, right| left & right);
operation!(Or on u8: |left, right| left | right);
operation!(Xor on u8: |left, right| left ^ right);

operation!(Sum on f32, f64: |left, right| left + right, settled);
operation!(Product on f32, f64: |left, right| left * right, settled);
operation!(Quotient on f32, f64: |left, right| left / right, settled);

// Comparison and selection, which is one instruction for all that is no NaN.
macro_rules! extremum {
    ($name:ident on $($lane:ident),*: $than:tt) => {$(
        operation!($name on $lane: |left, right| {
            let chosen = if right $than left { right } else { left };
            if left.is_nan() | right.is_nan() { $lane::NAN } else { chosen }
        });
    )*};
}

extremum!(Min on f32, f64: <);
extremum!(Max on f32, f64: >);
