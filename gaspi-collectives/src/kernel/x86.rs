//! f16 and bf16 in vector registers of x86, for which compilers do not find the instructions.
//!
//! Everything here is inlined into functions that are compiled for the instruction set, and which
//! are called only where the processor has it.

#![allow(
    clippy::needless_range_loop,
    reason = "two arrays are gone through at once, of which clippy sees one"
)]

use std::arch::asm;
use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::chunk::{Chunk, TwoArrays};
use super::combine::{Combine, Divisor, Max, Min, Product, Quotient, Sum};

/// Safe functions of intrinsics that touch no memory.
macro_rules! by_intrinsics {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $result:ty $body:block)*) => {$(
        #[inline(always)]
        fn $name($($argument: $kind),*) -> $result {
            // SAFETY: types of this module are only used on processors with the instruction set of
            // their name; no memory is touched.
            unsafe { $body }
        }
    )*};
}

/// The four operations on vectors of f32, as they are on single ones, by intrinsics. `unordered`
/// tells in which lanes one of two is NaN, `any` whether there are such, `select` takes the second
/// there.
macro_rules! operations {
    (
        $vector:ty, $module:ident: $add:ident, $multiply:ident, $divide:ident, $min:ident,
        $max:ident, $unordered:expr, $any:expr, $select:expr, $nan:expr
    ) => {
        mod $module {
            use super::*;

            by_intrinsics! {
                sum(left: $vector, right: $vector) -> $vector { $add(left, right) }
                product(left: $vector, right: $vector) -> $vector { $multiply(left, right) }
                quotient(left: $vector, right: $vector) -> $vector { $divide(left, right) }
                min(left: $vector, right: $vector) -> $vector {
                    // The instruction takes its second operand where none is less.
                    $select($min(right, left), $nan, $unordered(left, right))
                }
                max(left: $vector, right: $vector) -> $vector {
                    $select($max(right, left), $nan, $unordered(left, right))
                }
                is_unsettled(one: $vector, two: $vector) -> bool { $any($unordered(one, two)) }
                settle(value: $vector) -> $vector { $select(value, $nan, $unordered(value, value)) }
            }

            operation!(Sum, $vector, sum, is_unsettled, settle);
            operation!(Product, $vector, product, is_unsettled, settle);
            operation!(Quotient, $vector, quotient, is_unsettled, settle);
            operation!(Min, $vector, min);
            operation!(Max, $vector, max);
        }
    };
}

macro_rules! operation {
    ($name:ident, $vector:ty, $combine:ident $(, $is_unsettled:ident, $settle:ident)?) => {
        impl Combine<$vector> for $name {
            #[inline(always)]
            fn combine(left: $vector, right: $vector) -> $vector {
                $combine(left, right)
            }
            $(
                #[inline(always)]
                fn is_unsettled(one: $vector, two: $vector) -> bool {
                    $is_unsettled(one, two)
                }

                #[inline(always)]
                fn settle(value: $vector) -> $vector {
                    $settle(value)
                }
            )?
        }
    };
}

operations!(
    __m256,
    of_256:
    sum_of_256,
    _mm256_mul_ps,
    _mm256_div_ps,
    _mm256_min_ps,
    _mm256_max_ps,
    _mm256_cmp_ps::<_CMP_UNORD_Q>,
    any_of_256,
    _mm256_blendv_ps,
    _mm256_set1_ps(f32::NAN)
);
operations!(
    __m512,
    of_512:
    _mm512_add_ps,
    _mm512_mul_ps,
    _mm512_div_ps,
    _mm512_min_ps,
    _mm512_max_ps,
    _mm512_cmp_ps_mask::<_CMP_UNORD_Q>,
    any_of_512,
    select_512,
    _mm512_set1_ps(f32::NAN)
);

impl Divisor for __m256 {
    #[inline(always)]
    fn of(n: u32) -> __m256 {
        all_of_256(n as f32)
    }

    #[inline(always)]
    fn reciprocal(n: u32) -> __m256 {
        all_of_256(1.0 / n as f32)
    }
}

#[inline(always)]
fn any_of_512(mask: __mmask16) -> bool {
    mask != 0
}

/// A one that the compiler does not know: it would make additions of the multiplications by it.
#[inline(always)]
fn unknown_one() -> __m128 {
    let mut one = one_128();
    // SAFETY: there is no instruction.
    unsafe {
        asm!("/* {0} */", inout(xmm_reg) one, options(pure, nomem, nostack, preserves_flags));
    }
    one
}

/// `left * 1 + right`, which has the bits of the sum. Where processors of AMD add they convert,
/// too, so that f16 would wait for its sums; they multiply elsewhere.
///
/// # Safety
/// As for intrinsics: the processor has the instruction.
#[inline(always)]
unsafe fn sum_of_256(left: __m256, right: __m256) -> __m256 {
    // SAFETY: by the caller's promise.
    unsafe { _mm256_fmadd_ps(left, _mm256_broadcastss_ps(unknown_one()), right) }
}

/// The same, in a register.
#[inline(always)]
fn held(vector: __m128i) -> __m128i {
    let mut vector = vector;
    // SAFETY: there is no instruction.
    unsafe {
        asm!("/* {0} */", inout(xmm_reg) vector, options(pure, nomem, nostack, preserves_flags));
    }
    vector
}

/// The same vector, in which AVX-512 looks for NaN by masks: f16 is 7 % faster for it.
#[derive(Clone, Copy)]
pub(crate) struct Masked(__m256);

macro_rules! masked {
    ($($name:ident $(, $is_unsettled:ident)?;)*) => {$(
        impl Combine<Masked> for $name {
            #[inline(always)]
            fn combine(left: Masked, right: Masked) -> Masked {
                Masked($name::combine(left.0, right.0))
            }
            $(
                #[inline(always)]
                fn is_unsettled(one: Masked, two: Masked) -> bool {
                    $is_unsettled(one.0, two.0)
                }

                #[inline(always)]
                fn settle(value: Masked) -> Masked {
                    Masked($name::settle(value.0))
                }
            )?
        }
    )*};
}

masked! {
    Sum, is_unordered;
    Product, is_unordered;
    Min;
    Max;
}

/// Eight f32 in a register.
pub(crate) trait Eight: Copy {
    fn of(vector: __m256) -> Self;

    fn vector(self) -> __m256;
}

impl Eight for __m256 {
    #[inline(always)]
    fn of(vector: __m256) -> __m256 {
        vector
    }

    #[inline(always)]
    fn vector(self) -> __m256 {
        self
    }
}

impl Eight for Masked {
    #[inline(always)]
    fn of(vector: __m256) -> Masked {
        Masked(vector)
    }

    #[inline(always)]
    fn vector(self) -> __m256 {
        self.0
    }
}

/// `N` times 8 f16. Wider vectors are converted no faster.
pub(crate) struct EightF16<L, const N: usize>(PhantomData<L>);
pub(crate) type Avx2F16<const N: usize> = EightF16<__m256, N>;
pub(crate) type Avx512F16<const N: usize> = EightF16<Masked, N>;

impl<L: Eight, const N: usize> Chunk for EightF16<L, N> {
    type Lane = L;
    type Lanes = [L; N];
    type Packed = [__m128i; N];
    const BYTES: usize = N * 16;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> [L; N] {
        let from = from.cast::<__m128i>();
        let mut lanes = [L::of(zero_256()); N];
        for i in 0..N {
            // SAFETY: by the caller's promise, on a processor with F16C.
            lanes[i] = L::of(unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.add(i))) });
        }
        lanes
    }

    #[inline(always)]
    fn pack(lanes: [L; N]) -> [__m128i; N] {
        let mut packed = [zero_128(); N];
        for i in 0..N {
            packed[i] = f16_of_256(lanes[i].vector());
        }
        packed
    }

    // Conversions that end in memory take longer, and for several targets the compiler would make
    // each anew.
    #[inline(always)]
    fn hold(mut packed: [__m128i; N]) -> [__m128i; N] {
        for i in 0..N {
            packed[i] = held(packed[i]);
        }
        packed
    }

    #[inline(always)]
    unsafe fn store(to: *mut u8, packed: [__m128i; N]) {
        let to = to.cast::<__m128i>();
        for i in 0..N {
            // SAFETY: by the caller's promise.
            unsafe { _mm_storeu_si128(to.add(i), packed[i]) };
        }
    }
}

/// `N` times 16 bf16. Every other one lies where an f32 has its upper half, those between them a
/// shift away: nothing has to be moved between lanes.
pub(crate) struct Avx2Bf16<const N: usize>;

by_intrinsics! {
    any_of_256(mask: __m256) -> bool { _mm256_movemask_ps(mask) != 0 }
    is_unordered(one: __m256, two: __m256) -> bool {
        _mm256_cmp_ps_mask::<_CMP_UNORD_Q>(one, two) != 0
    }
    select_512(otherwise: __m512, then: __m512, mask: __mmask16) -> __m512 {
        _mm512_mask_mov_ps(otherwise, mask, then)
    }
    f16_of_256(lanes: __m256) -> __m128i {
        _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(lanes)
    }
    one_128() -> __m128 { _mm_set1_ps(1.0) }
    all_of_256(number: f32) -> __m256 { _mm256_set1_ps(number) }
    zero_128() -> __m128i { _mm_setzero_si128() }
    zero_256() -> __m256 { _mm256_setzero_ps() }
    zero_512() -> __m512 { _mm512_setzero_ps() }
    even_of_256(pairs: __m256i) -> __m256 { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs)) }
    odd_of_256(pairs: __m256i) -> __m256 {
        _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(!0xffff)))
    }
    // As `halves::round_to_upper`.
    rounded_256(value: __m256) -> __m256i {
        let bits = _mm256_castps_si256(value);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd)
    }
    merged_256(even: __m256, odd: __m256) -> __m256i {
        let even = _mm256_srli_epi32::<16>(rounded_256(even));
        _mm256_blend_epi16::<0b1010_1010>(even, rounded_256(odd))
    }
    even_of_512(pairs: __m512i) -> __m512 { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)) }
    odd_of_512(pairs: __m512i) -> __m512 {
        _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(!0xffff)))
    }
    // As `halves::round_to_upper`, for words. What lies in the lower ones is more than half of the
    // last place of the upper ones, or half of it and that place odd: the latter makes it more by
    // one.
    merged_512(even: __m512, odd: __m512) -> __m512i {
        let (even, odd) = (_mm512_castps_si512(even), _mm512_castps_si512(odd));
        let upper = _mm512_permutex2var_epi16(even, every_other_512(1), odd);
        let lower = _mm512_permutex2var_epi16(even, every_other_512(0), odd);
        // lower | (upper & 1)
        let lower = _mm512_ternarylogic_epi32::<0xf8>(lower, upper, _mm512_set1_epi16(1));
        let up = _mm512_cmpgt_epu16_mask(lower, _mm512_set1_epi16(1 << 15));
        _mm512_mask_sub_epi16(upper, up, upper, _mm512_set1_epi16(-1))
    }
    // Where every other word of two vectors lies, in turns, from the first or the second of each.
    every_other_512(first: i32) -> __m512i {
        let pairs = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        let both = _mm512_or_si512(pairs, _mm512_slli_epi32::<16>(pairs));
        _mm512_add_epi32(both, _mm512_set1_epi32(first << 16 | 32 << 16 | first))
    }
}

impl<const N: usize> Chunk for Avx2Bf16<N> {
    type Lane = __m256;
    /// Those at even and those at odd places.
    type Lanes = TwoArrays<__m256, N>;
    type Packed = [__m256i; N];
    const BYTES: usize = N * 32;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> TwoArrays<__m256, N> {
        let from = from.cast::<__m256i>();
        let mut lanes = TwoArrays([zero_256(); N], [zero_256(); N]);
        for i in 0..N {
            // SAFETY: by the caller's promise.
            let pairs = unsafe { _mm256_loadu_si256(from.add(i)) };
            lanes.0[i] = even_of_256(pairs);
            lanes.1[i] = odd_of_256(pairs);
        }
        lanes
    }

    #[inline(always)]
    fn pack(TwoArrays(even, odd): TwoArrays<__m256, N>) -> [__m256i; N] {
        let mut packed = [merged_256(even[0], odd[0]); N];
        for i in 1..N {
            packed[i] = merged_256(even[i], odd[i]);
        }
        packed
    }

    #[inline(always)]
    unsafe fn store(to: *mut u8, packed: [__m256i; N]) {
        let to = to.cast::<__m256i>();
        for i in 0..N {
            // SAFETY: by the caller's promise.
            unsafe { _mm256_storeu_si256(to.add(i), packed[i]) };
        }
    }
}

/// `N` times 32 bf16, as [`Avx2Bf16`].
pub(crate) struct Avx512Bf16<const N: usize>;

impl<const N: usize> Chunk for Avx512Bf16<N> {
    type Lane = __m512;
    /// Those at even and those at odd places.
    type Lanes = TwoArrays<__m512, N>;
    type Packed = [__m512i; N];
    const BYTES: usize = N * 64;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> TwoArrays<__m512, N> {
        let from = from.cast::<__m512i>();
        let mut lanes = TwoArrays([zero_512(); N], [zero_512(); N]);
        for i in 0..N {
            // SAFETY: by the caller's promise.
            let pairs = unsafe { _mm512_loadu_si512(from.add(i)) };
            lanes.0[i] = even_of_512(pairs);
            lanes.1[i] = odd_of_512(pairs);
        }
        lanes
    }

    #[inline(always)]
    fn pack(TwoArrays(even, odd): TwoArrays<__m512, N>) -> [__m512i; N] {
        let mut packed = [merged_512(even[0], odd[0]); N];
        for i in 1..N {
            packed[i] = merged_512(even[i], odd[i]);
        }
        packed
    }

    #[inline(always)]
    unsafe fn store(to: *mut u8, packed: [__m512i; N]) {
        let to = to.cast::<__m512i>();
        for i in 0..N {
            // SAFETY: by the caller's promise.
            unsafe { _mm512_storeu_si512(to.add(i), packed[i]) };
        }
    }
}
