//! How a few elements at once come from memory into registers and go back.
//!
//! A chunk is an array of constant length, of which the compiler makes vector registers. Nothing is
//! assumed about alignment.

use std::marker::PhantomData;

use super::halves::{self, Bf16, F16, Half};

/// Lanes in registers, on which an operation works one by one.
pub(crate) trait Lanes<A>: Copy {
    fn zip(self, other: Self, combine: impl Fn(A, A) -> A) -> Self;

    fn map(self, change: impl Fn(A) -> A) -> Self;
}

impl<A: Copy, const N: usize> Lanes<A> for [A; N] {
    #[inline(always)]
    fn zip(self, other: Self, combine: impl Fn(A, A) -> A) -> Self {
        std::array::from_fn(|lane| combine(self[lane], other[lane]))
    }

    #[inline(always)]
    fn map(self, change: impl Fn(A) -> A) -> Self {
        std::array::from_fn(|lane| change(self[lane]))
    }
}

/// `M` arrays of `N` lanes each.
#[derive(Clone, Copy)]
pub(crate) struct Rows<const N: usize, const M: usize>([[f32; N]; M]);

impl<const N: usize, const M: usize> Lanes<f32> for Rows<N, M> {
    #[inline(always)]
    fn zip(self, other: Self, combine: impl Fn(f32, f32) -> f32) -> Self {
        Rows(std::array::from_fn(|row| self.0[row].zip(other.0[row], &combine)))
    }

    #[inline(always)]
    fn map(self, change: impl Fn(f32) -> f32) -> Self {
        Rows(std::array::from_fn(|row| Lanes::map(self.0[row], &change)))
    }
}

/// So many elements of a type.
pub(crate) trait Chunk {
    /// What an element is in a register.
    type Lane: Copy;
    /// All of them.
    type Lanes: Lanes<Self::Lane>;
    /// What they take in memory.
    const BYTES: usize;

    /// # Safety
    /// `BYTES` bytes can be read there.
    unsafe fn load(from: *const u8) -> Self::Lanes;

    /// Halves are rounded; a NaN has to be the canonical one.
    ///
    /// # Safety
    /// `BYTES` bytes can be written there.
    unsafe fn store(to: *mut u8, lanes: Self::Lanes);
}

/// The chunks that memory of a type is cut into, from its start: those of the instruction set,
/// [small](Self::Small) ones, single elements.
pub(crate) trait Pieces {
    type Lane: Copy;
    type Baseline: Chunk<Lane = Self::Lane>;
    #[cfg(target_arch = "x86_64")]
    type Avx2: Chunk<Lane = Self::Lane>;
    #[cfg(target_arch = "x86_64")]
    type Avx512: Chunk<Lane = Self::Lane>;
    type Small: Chunk<Lane = Self::Lane>;
    type Single: Chunk<Lane = Self::Lane>;
}

macro_rules! plain {
    ($($element:ty),*) => {$(
        // As many bytes as fill four registers of the instruction set.
        impl Pieces for $element {
            type Lane = $element;
            type Baseline = Plain<$element, { 64 / size_of::<$element>() }>;
            #[cfg(target_arch = "x86_64")]
            type Avx2 = Plain<$element, { 128 / size_of::<$element>() }>;
            #[cfg(target_arch = "x86_64")]
            type Avx512 = Plain<$element, { 256 / size_of::<$element>() }>;
            type Small = Plain<$element, { 16 / size_of::<$element>() }>;
            type Single = Plain<$element, 1>;
        }
    )*};
}

plain!(i8, u8, i16, u16, i32, u32, i64, u64, f32, f64);

impl Pieces for F16 {
    type Lane = f32;
    type Baseline = Converted<F16, 16>;
    #[cfg(target_arch = "x86_64")]
    type Avx2 = F16Eights<4>;
    #[cfg(target_arch = "x86_64")]
    type Avx512 = F16Sixteens<4>;
    type Small = Converted<F16, 8>;
    type Single = Converted<F16, 1>;
}

impl Pieces for Bf16 {
    type Lane = f32;
    type Baseline = Bf16Pairs<8>;
    #[cfg(target_arch = "x86_64")]
    type Avx2 = Bf16Pairs<16>;
    #[cfg(target_arch = "x86_64")]
    type Avx512 = Bf16Pairs<32>;
    type Small = Bf16Pairs<4>;
    type Single = Converted<Bf16, 1>;
}

/// Elements that are in registers what they are in memory.
pub(crate) struct Plain<T, const N: usize>(PhantomData<T>);

impl<T: Copy, const N: usize> Chunk for Plain<T, N> {
    type Lane = T;
    type Lanes = [T; N];
    const BYTES: usize = N * size_of::<T>();

    #[inline(always)]
    unsafe fn load(from: *const u8) -> [T; N] {
        // SAFETY: by the caller's promise; every bit pattern is a number.
        unsafe { from.cast::<[T; N]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(to: *mut u8, lanes: [T; N]) {
        // SAFETY: by the caller's promise.
        unsafe { to.cast::<[T; N]>().write_unaligned(lanes) };
    }
}

/// Halves that are converted one by one.
pub(crate) struct Converted<H, const N: usize>(PhantomData<H>);

impl<H: Half, const N: usize> Chunk for Converted<H, N> {
    type Lane = f32;
    type Lanes = [f32; N];
    const BYTES: usize = N * 2;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> [f32; N] {
        // SAFETY: by the caller's promise; every bit pattern is a number.
        let halves = unsafe { from.cast::<[u16; N]>().read_unaligned() };
        std::array::from_fn(|lane| H::widen(halves[lane]))
    }

    #[inline(always)]
    unsafe fn store(to: *mut u8, lanes: [f32; N]) {
        let halves: [u16; N] = std::array::from_fn(|lane| H::narrow(lanes[lane]));
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
    type Lanes = Rows<N, 2>;
    const BYTES: usize = N * 4;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Rows<N, 2> {
        // SAFETY: by the caller's promise; every bit pattern is a number.
        let pairs = unsafe { from.cast::<[u32; N]>().read_unaligned() };
        let pairs = pairs.map(u32::from_le);
        Rows([
            std::array::from_fn(|lane| f32::from_bits(pairs[lane] << 16)),
            std::array::from_fn(|lane| f32::from_bits(pairs[lane] & 0xffff_0000)),
        ])
    }

    #[inline(always)]
    unsafe fn store(to: *mut u8, lanes: Rows<N, 2>) {
        let Rows([even, odd]) = lanes;
        let pairs: [u32; N] = std::array::from_fn(|lane| {
            let even = halves::round_to_upper(even[lane]) >> 16;
            let odd = halves::round_to_upper(odd[lane]) & 0xffff_0000;
            (even | odd).to_le()
        });
        // SAFETY: by the caller's promise.
        unsafe { to.cast::<[u32; N]>().write_unaligned(pairs) };
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use with_f16c::{F16Eights, F16Sixteens};

#[cfg(target_arch = "x86_64")]
mod with_f16c {
    use std::arch::x86_64::*;

    use super::{Chunk, Rows};

    /// `N` times 8 f16, on processors with F16C.
    pub(crate) struct F16Eights<const N: usize>;

    impl<const N: usize> Chunk for F16Eights<N> {
        type Lane = f32;
        type Lanes = Rows<8, N>;
        const BYTES: usize = N * 16;

        #[inline(always)]
        unsafe fn load(from: *const u8) -> Rows<8, N> {
            Rows(std::array::from_fn(|i| {
                // SAFETY: by the caller's promise.
                let halves = unsafe { _mm_loadu_si128(from.cast::<__m128i>().add(i)) };
                // SAFETY: whoever takes this type knows that the processor has F16C; arrays and
                // vectors of as many floats are the same.
                unsafe { std::mem::transmute::<__m256, [f32; 8]>(_mm256_cvtph_ps(halves)) }
            }))
        }

        #[inline(always)]
        unsafe fn store(to: *mut u8, lanes: Rows<8, N>) {
            for (i, lanes) in lanes.0.into_iter().enumerate() {
                // SAFETY: as in `load`.
                let halves = unsafe {
                    let lanes = std::mem::transmute::<[f32; 8], __m256>(lanes);
                    _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(lanes)
                };
                // SAFETY: by the caller's promise.
                unsafe { _mm_storeu_si128(to.cast::<__m128i>().add(i), halves) };
            }
        }
    }

    /// `N` times 16 f16, on processors with AVX-512.
    pub(crate) struct F16Sixteens<const N: usize>;

    impl<const N: usize> Chunk for F16Sixteens<N> {
        type Lane = f32;
        type Lanes = Rows<16, N>;
        const BYTES: usize = N * 32;

        #[inline(always)]
        unsafe fn load(from: *const u8) -> Rows<16, N> {
            Rows(std::array::from_fn(|i| {
                // SAFETY: by the caller's promise.
                let halves = unsafe { _mm256_loadu_si256(from.cast::<__m256i>().add(i)) };
                // SAFETY: whoever takes this type knows that the processor has AVX-512; arrays and
                // vectors of as many floats are the same.
                unsafe { std::mem::transmute::<__m512, [f32; 16]>(_mm512_cvtph_ps(halves)) }
            }))
        }

        #[inline(always)]
        unsafe fn store(to: *mut u8, lanes: Rows<16, N>) {
            for (i, lanes) in lanes.0.into_iter().enumerate() {
                // SAFETY: as in `load`.
                let halves = unsafe {
                    let lanes = std::mem::transmute::<[f32; 16], __m512>(lanes);
                    _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(lanes)
                };
                // SAFETY: by the caller's promise.
                unsafe { _mm256_storeu_si256(to.cast::<__m256i>().add(i), halves) };
            }
        }
    }
}
