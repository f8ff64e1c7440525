//! How a few elements at once come from memory into registers and go back.
//!
//! A chunk is an array of constant length, of which the compiler makes vector registers. Nothing is
//! assumed about alignment.

#![allow(
    clippy::needless_range_loop,
    reason = "two arrays are gone through at once, of which clippy sees one"
)]

use std::marker::PhantomData;

use super::combine::Combine;
use super::halves::{self, Bf16, F16, Half};
#[cfg(target_arch = "x86_64")]
use super::x86::{Avx2Bf16, Avx2F16, Avx512Bf16, Avx512F16};

/// Lanes in registers, on which an operation works one by one.
// Loops and no closures: what is always inlined gets the instruction set of the function that it
// ends up in, everything else may be left behind without it.
pub(crate) trait Lanes<A>: Copy {
    fn combine<O: Combine<A>>(self, other: Self) -> Self;

    /// Whether one of them is not [settled](Combine::settle).
    fn is_unsettled<O: Combine<A>>(self) -> bool;

    fn settle<O: Combine<A>>(self) -> Self;

    /// This number in all of them.
    fn all(number: A) -> Self;
}

impl<A: Copy, const N: usize> Lanes<A> for [A; N] {
    #[inline(always)]
    fn combine<O: Combine<A>>(self, other: Self) -> Self {
        let mut lanes = self;
        for lane in 0..N {
            lanes[lane] = O::combine(self[lane], other[lane]);
        }
        lanes
    }

    #[inline(always)]
    fn is_unsettled<O: Combine<A>>(self) -> bool {
        let mut any = N % 2 == 1 && O::is_unsettled(self[N - 1], self[N - 1]);
        for lane in 0..N / 2 {
            any |= O::is_unsettled(self[lane], self[lane + N / 2]);
        }
        any
    }

    #[inline(always)]
    fn settle<O: Combine<A>>(self) -> Self {
        let mut lanes = self;
        for lane in 0..N {
            lanes[lane] = O::settle(self[lane]);
        }
        lanes
    }

    #[inline(always)]
    fn all(number: A) -> Self {
        [number; N]
    }
}

/// Two times `N` lanes that go together: the elements at even and at odd places.
#[derive(Clone, Copy)]
pub(crate) struct TwoArrays<A, const N: usize>(pub(crate) [A; N], pub(crate) [A; N]);

impl<A: Copy, const N: usize> Lanes<A> for TwoArrays<A, N> {
    #[inline(always)]
    fn combine<O: Combine<A>>(self, other: Self) -> Self {
        TwoArrays(self.0.combine::<O>(other.0), self.1.combine::<O>(other.1))
    }

    #[inline(always)]
    fn is_unsettled<O: Combine<A>>(self) -> bool {
        let mut any = false;
        for lane in 0..N {
            any |= O::is_unsettled(self.0[lane], self.1[lane]);
        }
        any
    }

    #[inline(always)]
    fn settle<O: Combine<A>>(self) -> Self {
        TwoArrays(self.0.settle::<O>(), self.1.settle::<O>())
    }

    #[inline(always)]
    fn all(number: A) -> Self {
        TwoArrays([number; N], [number; N])
    }
}

/// So many elements of a type.
pub(crate) trait Chunk {
    /// What an element is in a register.
    type Lane: Copy;
    /// All of them.
    type Lanes: Lanes<Self::Lane>;
    /// All of them, in registers too, as they are in memory.
    type Packed: Copy;
    /// What they take in memory.
    const BYTES: usize;

    /// # Safety
    /// `BYTES` bytes can be read there.
    unsafe fn load(from: *const u8) -> Self::Lanes;

    /// Rounds halves; a NaN has to be the canonical one.
    fn pack(lanes: Self::Lanes) -> Self::Packed;

    /// The same, in registers before any of it is stored.
    #[inline(always)]
    fn hold(packed: Self::Packed) -> Self::Packed {
        packed
    }

    /// # Safety
    /// `BYTES` bytes can be written there.
    unsafe fn store(to: *mut u8, packed: Self::Packed);
}

/// The chunks that memory of a type is cut into, from its start: those of the instruction set,
/// [small](Self::Small) ones, single elements.
pub(crate) trait Pieces {
    type Lane: Copy;
    type Baseline: Chunk<Lane = Self::Lane>;
    #[cfg(target_arch = "x86_64")]
    type Avx2: Chunk;
    #[cfg(target_arch = "x86_64")]
    type Avx512: Chunk;
    /// Whether AVX-512 is faster than AVX2 by more than the noise of measurements.
    #[cfg(target_arch = "x86_64")]
    const GAINS_BY_AVX512: bool;
    type Small: Chunk<Lane = Self::Lane>;
    type Single: Chunk<Lane = Self::Lane>;
}

macro_rules! plain {
    ($gains:literal, $avx2:literal, $avx512:literal: $($element:ty),*) => {$(
        // As many bytes as fill four registers of the instruction set, where all goes well.
        impl Pieces for $element {
            type Lane = $element;
            type Baseline = Plain<$element, { 64 / size_of::<$element>() }>;
            #[cfg(target_arch = "x86_64")]
            type Avx2 = Plain<$element, { $avx2 / size_of::<$element>() }>;
            #[cfg(target_arch = "x86_64")]
            type Avx512 = Plain<$element, { $avx512 / size_of::<$element>() }>;
            #[cfg(target_arch = "x86_64")]
            const GAINS_BY_AVX512: bool = $gains;
            type Small = Plain<$element, { 16 / size_of::<$element>() }>;
            type Single = Plain<$element, 1>;
        }
    )*};
}

plain!(false, 128, 256: i8, u8, i16, u16, i32, u32);
// AVX2 has neither their products nor their minima.
plain!(true, 128, 128: i64, u64);
plain!(false, 128, 256: f32, f64);

impl Pieces for F16 {
    type Lane = f32;
    type Baseline = Converted<F16, 16>;
    #[cfg(target_arch = "x86_64")]
    type Avx2 = Avx2F16<4>;
    #[cfg(target_arch = "x86_64")]
    type Avx512 = Avx512F16<4>;
    #[cfg(target_arch = "x86_64")]
    const GAINS_BY_AVX512: bool = true;
    type Small = Converted<F16, 8>;
    type Single = Converted<F16, 1>;
}

impl Pieces for Bf16 {
    type Lane = f32;
    type Baseline = Bf16Pairs<8>;
    #[cfg(target_arch = "x86_64")]
    type Avx2 = Avx2Bf16<2>;
    #[cfg(target_arch = "x86_64")]
    type Avx512 = Avx512Bf16<2>;
    #[cfg(target_arch = "x86_64")]
    const GAINS_BY_AVX512: bool = true;
    type Small = Bf16Pairs<4>;
    type Single = Converted<Bf16, 1>;
}

/// Elements that are in registers what they are in memory.
pub(crate) struct Plain<T, const N: usize>(PhantomData<T>);

impl<T: Copy, const N: usize> Chunk for Plain<T, N> {
    type Lane = T;
    type Lanes = [T; N];
    type Packed = [T; N];
    const BYTES: usize = N * size_of::<T>();

    #[inline(always)]
    unsafe fn load(from: *const u8) -> [T; N] {
        // SAFETY: by the caller's promise; every bit pattern is a number.
        unsafe { from.cast::<[T; N]>().read_unaligned() }
    }

    #[inline(always)]
    fn pack(lanes: [T; N]) -> [T; N] {
        lanes
    }

    #[inline(always)]
    unsafe fn store(to: *mut u8, packed: [T; N]) {
        // SAFETY: by the caller's promise.
        unsafe { to.cast::<[T; N]>().write_unaligned(packed) };
    }
}

/// Halves that are converted one by one.
pub(crate) struct Converted<H, const N: usize>(PhantomData<H>);

impl<H: Half, const N: usize> Chunk for Converted<H, N> {
    type Lane = f32;
    type Lanes = [f32; N];
    type Packed = [u16; N];
    const BYTES: usize = N * 2;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> [f32; N] {
        // SAFETY: by the caller's promise; every bit pattern is a number.
        let halves = unsafe { from.cast::<[u16; N]>().read_unaligned() };
        let mut lanes = [0.0; N];
        for lane in 0..N {
            lanes[lane] = H::widen(halves[lane]);
        }
        lanes
    }

    #[inline(always)]
    fn pack(lanes: [f32; N]) -> [u16; N] {
        let mut halves = [0; N];
        for lane in 0..N {
            halves[lane] = H::narrow(lanes[lane]);
        }
        halves
    }

    #[inline(always)]
    unsafe fn store(to: *mut u8, halves: [u16; N]) {
        // SAFETY: by the caller's promise.
        unsafe { to.cast::<[u16; N]>().write_unaligned(halves) };
    }
}

/// `N` pairs of bf16. Half of them lie where an f32 has its upper half and the others a shift away:
/// nothing has to be moved between lanes.
pub(crate) struct Bf16Pairs<const N: usize>;

impl<const N: usize> Chunk for Bf16Pairs<N> {
    type Lane = f32;
    /// Those at even and those at odd places.
    type Lanes = TwoArrays<f32, N>;
    type Packed = [u32; N];
    const BYTES: usize = N * 4;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> TwoArrays<f32, N> {
        // SAFETY: by the caller's promise; every bit pattern is a number.
        let pairs = unsafe { from.cast::<[u32; N]>().read_unaligned() };
        let mut lanes = TwoArrays([0.0; N], [0.0; N]);
        for lane in 0..N {
            let pair = u32::from_le(pairs[lane]);
            lanes.0[lane] = f32::from_bits(pair << 16);
            lanes.1[lane] = f32::from_bits(pair & 0xffff_0000);
        }
        lanes
    }

    #[inline(always)]
    fn pack(lanes: TwoArrays<f32, N>) -> [u32; N] {
        let mut pairs = [0; N];
        for lane in 0..N {
            let even = halves::round_to_upper(lanes.0[lane]) >> 16;
            let odd = halves::round_to_upper(lanes.1[lane]) & 0xffff_0000;
            pairs[lane] = (even | odd).to_le();
        }
        pairs
    }

    #[inline(always)]
    unsafe fn store(to: *mut u8, pairs: [u32; N]) {
        // SAFETY: by the caller's promise.
        unsafe { to.cast::<[u32; N]>().write_unaligned(pairs) };
    }
}
