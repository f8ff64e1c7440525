//! f16 and bf16 to f32 and back, one element at a time and without branches, so that compilers make
//! vectors of it. Rounding is to the nearest, ties to even, with the same bits as the instructions
//! of a processor that has them.

/// How the 16 bits of a half type become an f32.
pub(crate) trait Half: Copy {
    /// Exact. A NaN stays one, of any kind.
    fn widen(bits: u16) -> f32;

    /// The nearest, where a NaN is the canonical one.
    fn narrow(value: f32) -> u16;
}

/// IEEE 754 half precision: 5 bits of exponent, 10 of fraction.
#[derive(Clone, Copy)]
pub(crate) struct F16;

/// The upper half of an f32.
#[derive(Clone, Copy)]
pub(crate) struct Bf16;

/// What the exponents of f32 and f16 differ by, where it lies in an f32.
const REBIAS: u32 = (127 - 15) << 23;
/// The smallest normal f16, as an f32.
const SMALLEST_NORMAL: u32 = (127 - 14) << 23;

impl Half for F16 {
    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        let sign = u32::from(bits & 0x8000) << 16;
        let shifted = u32::from(bits & 0x7fff) << 13;
        let normal = shifted + REBIAS;
        // An exponent of all ones stays one.
        let endless = normal + REBIAS;
        // The fraction behind a leading one that is then taken away, which normalises it.
        let small = f32::from_bits(shifted + SMALLEST_NORMAL) - f32::from_bits(SMALLEST_NORMAL);
        let finite = if shifted < 1 << 23 { small.to_bits() } else { normal };
        f32::from_bits(sign | if shifted >= 0x7c00 << 13 { endless } else { finite })
    }

    #[inline(always)]
    fn narrow(value: f32) -> u16 {
        let bits = value.to_bits();
        let sign = bits >> 16 & 0x8000;
        let size = bits & 0x7fff_ffff;
        // What is rounded up to the next power of two carries into the exponent, to infinity too.
        let odd = size >> 13 & 1;
        let normal = size.wrapping_sub(REBIAS).wrapping_add(0xfff + odd) >> 13;
        // The last place of 0.5 is the last place of a small f16: the addition rounds to it.
        let small = (f32::from_bits(size) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
        let finite = if size < SMALLEST_NORMAL { small } else { normal };
        let rounded = if size >= 0x4780_0000 { 0x7c00 } else { finite };
        if size > 0x7f80_0000 { 0x7e00 } else { (sign | rounded) as u16 }
    }
}

impl Half for Bf16 {
    #[inline(always)]
    fn widen(bits: u16) -> f32 {
        f32::from_bits(u32::from(bits) << 16)
    }

    #[inline(always)]
    fn narrow(value: f32) -> u16 {
        if value.is_nan() { 0x7fc0 } else { (round_to_upper(value) >> 16) as u16 }
    }
}

/// An f32 that is no NaN, or the canonical one, with its upper 16 bits rounded by the lower ones,
/// which are left as something.
#[inline(always)]
pub(crate) fn round_to_upper(value: f32) -> u32 {
    let bits = value.to_bits();
    bits.wrapping_add(0x7fff + (bits >> 16 & 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_widens_as_the_crate_half_does() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (F16::widen(bits), half::f16::from_bits(bits).to_f32_const());
            assert!(
                ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(),
                "{bits:#06x}"
            );
            let (ours, theirs) = (Bf16::widen(bits), half::bf16::from_bits(bits).to_f32_const());
            assert!(
                ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(),
                "{bits:#06x}"
            );
        }
    }

    /// The halves themselves, what lies in the middle of two, what is next to it, and more.
    #[test]
    fn what_lies_around_each_half_is_rounded_as_the_crate_half_does() {
        let check = |value: f32| {
            if value.is_nan() {
                assert_eq!((F16::narrow(value), Bf16::narrow(value)), (0x7e00, 0x7fc0));
                return;
            }
            assert_eq!(F16::narrow(value), half::f16::from_f32_const(value).to_bits(), "{value:e}");
            let theirs = half::bf16::from_f32_const(value).to_bits();
            assert_eq!(Bf16::narrow(value), theirs, "{value:e}");
        };
        for bits in 0..=u16::MAX {
            let exact = F16::widen(bits).to_bits();
            for middle in [0, 0x1000, 0x0800] {
                for beside in [-1_i32, 0, 1] {
                    check(f32::from_bits(exact.wrapping_add(middle).wrapping_add_signed(beside)));
                }
            }
            let upper = u32::from(bits) << 16;
            for lower in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                check(f32::from_bits(upper | lower));
            }
        }
    }
}
