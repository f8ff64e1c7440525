//! The inner loops: copying, and combining elements of several sources in their order. With the
//! two types that stand for memory, [`Source`] and [`Target`], it holds the `unsafe` of the crate.
//!
//! `dst[i] = (((s0[i] op s1[i]) op s2[i]) ...)`: always a left fold in the order given, so that the
//! bits do not depend on how many sources one pass takes, on the length, on alignment or on the
//! instruction set. Two things need care for that. The payload of a NaN that an addition returns
//! depends on the order of its operands, which compilers may exchange: a result that is NaN is
//! the canonical one. Minimum and maximum are comparisons and selections, written out so that a NaN
//! does not disappear (see [`Operation`]).
//!
//! The loops are plain, for the compiler to vectorise, once for the baseline of the architecture
//! and once for AVX2; which one runs is decided by the processor. Both are bound by loads, stores
//! and the caches.

use std::marker::PhantomData;

use gaspi_core::{GroupCall, PeerSlice};
use std::mem::MaybeUninit;

use crate::datatype::{DataType, Operation};
use crate::schedule::LINE_BYTES;

/// Memory to read from: pointer and length, no reference, because a peer may write to it at
/// another time.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    start: *const u8,
    len: usize,
    lifetime: PhantomData<&'a u8>,
}

/// Memory to write to (and to read from).
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    start: *mut u8,
    len: usize,
    lifetime: PhantomData<&'a u8>,
}

impl<'a> Source<'a> {
    /// `len` bytes from `start`, of any alignment.
    ///
    /// # Safety
    /// The bytes stay readable for `'a`. Whoever else writes to them is ordered with the reads
    /// through this value, as a checked schedule does.
    pub unsafe fn new(start: *const u8, len: usize) -> Source<'a> {
        Source { start, len, lifetime: PhantomData }
    }

    /// Bytes of this memory that nobody writes to.
    pub fn of(bytes: &'a [u8]) -> Source<'a> {
        Source { start: bytes.as_ptr(), len: bytes.len(), lifetime: PhantomData }
    }

    /// Bytes.
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// `len` bytes from `offset` on. Panics when they are not all inside.
    pub fn part(self, offset: u64, len: u64) -> Source<'a> {
        let (offset, len) = inside(self.len, offset, len);
        // SAFETY: `inside` checked that the offset is not beyond the end of the same memory.
        Source { start: unsafe { self.start.add(offset) }, len, lifetime: PhantomData }
    }
}

impl<'a> Target<'a> {
    /// `len` bytes from `start`, of any alignment.
    ///
    /// # Safety
    /// The bytes stay readable and writable for `'a`. Whoever else reads or writes them is ordered
    /// with the accesses through this value, as a checked schedule does.
    pub unsafe fn new(start: *mut u8, len: usize) -> Target<'a> {
        Target { start, len, lifetime: PhantomData }
    }

    /// Staging, which gaspi-core keeps mapped for as long as the slice's borrow.
    pub(crate) fn of_peer(slice: PeerSlice<'a>) -> Target<'a> {
        Target { start: slice.as_ptr(), len: slice.len(), lifetime: PhantomData }
    }

    /// These bytes, which nobody else sees.
    pub fn of(bytes: &'a mut [u8]) -> Target<'a> {
        Target { start: bytes.as_mut_ptr(), len: bytes.len(), lifetime: PhantomData }
    }

    /// Bytes.
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// `len` bytes from `offset` on. Panics when they are not all inside.
    pub fn part(self, offset: u64, len: u64) -> Target<'a> {
        let (offset, len) = inside(self.len, offset, len);
        // SAFETY: `inside` checked that the offset is not beyond the end of the same memory.
        Target { start: unsafe { self.start.add(offset) }, len, lifetime: PhantomData }
    }

    /// The same memory to read from.
    pub fn source(self) -> Source<'a> {
        Source { start: self.start, len: self.len, lifetime: PhantomData }
    }
}

fn inside(size: usize, offset: u64, len: u64) -> (usize, usize) {
    let end = offset.checked_add(len);
    assert!(
        end.is_some_and(|end| end <= size as u64),
        "{len} bytes at {offset} are not inside of {size} bytes"
    );
    // Both are at most `size`, which is a usize.
    (offset as usize, len as usize)
}

/// Copies all of `src`, which has the length of `dst`.
pub fn copy(dst: Target<'_>, src: Source<'_>) {
    assert_eq!(dst.len, src.len, "a copy needs as many bytes as it fills");
    // SAFETY: both are valid for their length by the promise of their makers; `ptr::copy` allows
    // that they overlap.
    unsafe { std::ptr::copy(src.start, dst.start, src.len) };
}

/// Publishes `payload` with the arrival of a call.
pub(crate) fn publish(call: &mut GroupCall<'_>, payload: Source<'_>) {
    // SAFETY: valid for its length by the promise of its maker.
    unsafe { call.arrive_with(payload.start, payload.len) };
}

/// Copies what `member` has published into `to`.
pub(crate) fn collect(call: &GroupCall<'_>, member: u32, to: Target<'_>) {
    // SAFETY: valid for its length by the promise of its maker.
    unsafe { call.payload(member as usize, to.start, to.len) };
}

/// Asks for the cache lines of `src`, without waiting for them.
pub(crate) fn prefetch(src: Source<'_>) {
    #[cfg(target_arch = "x86_64")]
    for offset in (0..src.len).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing that the program could see and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(src.start.wrapping_add(offset).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = src;
}

/// Memory of a call for what rides in lines, not set to anything.
pub(crate) struct Scratch([MaybeUninit<u8>; LINE_BYTES as usize]);

impl Scratch {
    #[inline]
    pub(crate) fn new() -> Scratch {
        Scratch([const { MaybeUninit::uninit() }; LINE_BYTES as usize])
    }

    /// The first `len` bytes, to be written before they are read.
    pub(crate) fn target(&mut self, len: usize) -> Target<'_> {
        assert!(len <= self.0.len(), "{len} bytes do not fit into a line");
        Target { start: self.0.as_mut_ptr().cast(), len, lifetime: PhantomData }
    }
}

/// Sources that one pass combines at most, beside what is in the target.
const PASS: usize = 4;

/// `dst[i] = s0[i] op s1[i] op ...`, from left to right. Each source has the length of `dst`, a
/// multiple of the element size; one may be `dst` itself only if it is the first. With one source
/// it is a copy.
pub fn fold(op: Operation, ty: DataType, dst: Target<'_>, srcs: &[Source<'_>]) {
    fold_with(Isa::detect(), op, ty, dst, srcs);
}

/// `dst[i] = dst[i] op s0[i] op s1[i] op ...`, otherwise like [`fold`].
pub fn accumulate(op: Operation, ty: DataType, dst: Target<'_>, srcs: &[Source<'_>]) {
    accumulate_with(Isa::detect(), op, ty, dst, srcs);
}

fn fold_with(isa: Isa, op: Operation, ty: DataType, dst: Target<'_>, srcs: &[Source<'_>]) {
    match srcs {
        [] => {}
        [only] => copy(dst, *only),
        [first, rest @ ..] if first.start == dst.start.cast_const() => {
            assert_eq!(first.len, dst.len, "a source has the length of the target");
            accumulate_with(isa, op, ty, dst, rest);
        }
        _ => {
            let (pass, rest) = srcs.split_at(srcs.len().min(PASS));
            dispatch(isa, op, ty, dst, pass, false);
            accumulate_with(isa, op, ty, dst, rest);
        }
    }
}

fn accumulate_with(isa: Isa, op: Operation, ty: DataType, dst: Target<'_>, srcs: &[Source<'_>]) {
    for pass in srcs.chunks(PASS - 1) {
        dispatch(isa, op, ty, dst, pass, true);
    }
}

/// The instruction sets that the loops are compiled for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Isa {
    Baseline,
    #[cfg(target_arch = "x86_64")]
    Avx2,
}

impl Isa {
    #[inline]
    fn detect() -> Isa {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            return Isa::Avx2;
        }
        Isa::Baseline
    }
}

/// The instruction set whose loops run on this processor.
pub fn instruction_set() -> &'static str {
    match Isa::detect() {
        Isa::Baseline => "those of the baseline",
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => "AVX2",
    }
}

/// One pass over `dst`; `keep` says that `dst` is the first operand.
fn dispatch(
    isa: Isa,
    op: Operation,
    ty: DataType,
    dst: Target<'_>,
    srcs: &[Source<'_>],
    keep: bool,
) {
    for src in srcs {
        assert_eq!(src.len, dst.len, "a source has the length of the target");
    }
    macro_rules! by_operation {
        ($element:ty) => {
            match op {
                Operation::Min => by_isa::<$element, Min>(isa, dst, srcs, keep),
                Operation::Max => by_isa::<$element, Max>(isa, dst, srcs, keep),
                Operation::Sum => by_isa::<$element, Sum>(isa, dst, srcs, keep),
            }
        };
    }
    match ty {
        DataType::I32 => by_operation!(i32),
        DataType::U32 => by_operation!(u32),
        DataType::F32 => by_operation!(f32),
        DataType::F64 => by_operation!(f64),
        DataType::I64 => by_operation!(i64),
        DataType::U64 => by_operation!(u64),
    }
}

fn by_isa<T: Copy, O: Combine<T>>(isa: Isa, dst: Target<'_>, srcs: &[Source<'_>], keep: bool) {
    assert_eq!(dst.len % size_of::<T>(), 0, "a reduction works on whole elements");
    match isa {
        Isa::Baseline => pass::<T, O>(dst, srcs, keep),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `Isa::Avx2` is only made where the processor has AVX2.
        Isa::Avx2 => unsafe { pass_avx2::<T, O>(dst, srcs, keep) },
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn pass_avx2<T: Copy, O: Combine<T>>(dst: Target<'_>, srcs: &[Source<'_>], keep: bool) {
    pass::<T, O>(dst, srcs, keep);
}

// Inlined into each instruction set's clone, so that it is compiled for that set.
#[inline(always)]
fn pass<T: Copy, O: Combine<T>>(dst: Target<'_>, srcs: &[Source<'_>], keep: bool) {
    match (keep, srcs) {
        (_, []) => {}
        (false, [a]) => copy(dst, *a),
        (false, [a, b]) => combine::<T, O, 1>(dst, *a, [*b]),
        (false, [a, b, c]) => combine::<T, O, 2>(dst, *a, [*b, *c]),
        (false, [a, b, c, d, ..]) => combine::<T, O, 3>(dst, *a, [*b, *c, *d]),
        (true, [a]) => combine_into::<T, O, 1>(dst, [*a]),
        (true, [a, b]) => combine_into::<T, O, 2>(dst, [*a, *b]),
        (true, [a, b, c, ..]) => combine_into::<T, O, 3>(dst, [*a, *b, *c]),
    }
}

#[inline(always)]
fn combine<T: Copy, O: Combine<T>, const N: usize>(
    dst: Target<'_>,
    first: Source<'_>,
    srcs: [Source<'_>; N],
) {
    let out = dst.start.cast::<T>();
    let first = first.start.cast::<T>();
    let srcs = srcs.map(|src| src.start.cast::<T>());
    for i in 0..dst.len / size_of::<T>() {
        // SAFETY: `dispatch` checked that all are as long as `dst`; element `i` is inside. Nothing
        // is assumed about alignment.
        let mut value = unsafe { first.add(i).read_unaligned() };
        for src in srcs {
            // SAFETY: as above.
            value = O::combine(value, unsafe { src.add(i).read_unaligned() });
        }
        // SAFETY: as above.
        unsafe { out.add(i).write_unaligned(O::settle(value)) };
    }
}

// Apart from `combine`, because a loop that reads its first operand through the pointer it writes
// to needs no check for overlap, which would send it to the slow version.
#[inline(always)]
fn combine_into<T: Copy, O: Combine<T>, const N: usize>(dst: Target<'_>, srcs: [Source<'_>; N]) {
    let out = dst.start.cast::<T>();
    let srcs = srcs.map(|src| src.start.cast::<T>());
    for i in 0..dst.len / size_of::<T>() {
        // SAFETY: `dispatch` checked that all are as long as `dst`; element `i` is inside. Nothing
        // is assumed about alignment.
        let mut value = unsafe { out.add(i).read_unaligned() };
        for src in srcs {
            // SAFETY: as above.
            value = O::combine(value, unsafe { src.add(i).read_unaligned() });
        }
        // SAFETY: as above.
        unsafe { out.add(i).write_unaligned(O::settle(value)) };
    }
}

trait Combine<T> {
    fn combine(left: T, right: T) -> T;

    /// Applied to the result of a pass.
    fn settle(value: T) -> T;
}

struct Min;
struct Max;
struct Sum;

macro_rules! integer {
    ($($element:ty),*) => {$(
        impl Combine<$element> for Min {
            #[inline(always)]
            fn combine(left: $element, right: $element) -> $element {
                left.min(right)
            }
            #[inline(always)]
            fn settle(value: $element) -> $element {
                value
            }
        }
        impl Combine<$element> for Max {
            #[inline(always)]
            fn combine(left: $element, right: $element) -> $element {
                left.max(right)
            }
            #[inline(always)]
            fn settle(value: $element) -> $element {
                value
            }
        }
        impl Combine<$element> for Sum {
            #[inline(always)]
            fn combine(left: $element, right: $element) -> $element {
                left.wrapping_add(right)
            }
            #[inline(always)]
            fn settle(value: $element) -> $element {
                value
            }
        }
    )*};
}

// A minimum that kept the bits of a NaN would be one of its two operands, "keep or replace" where it
// is stored over the first: the compiler makes that a conditional store, which it does not
// vectorise (8 instead of 60 GB/s). With the canonical NaN there are three outcomes.
macro_rules! float {
    ($($element:ty),*) => {$(
        impl Combine<$element> for Min {
            #[inline(always)]
            fn combine(left: $element, right: $element) -> $element {
                let chosen = if right < left { right } else { left };
                if left.is_nan() | right.is_nan() { <$element>::NAN } else { chosen }
            }
            #[inline(always)]
            fn settle(value: $element) -> $element {
                value
            }
        }
        impl Combine<$element> for Max {
            #[inline(always)]
            fn combine(left: $element, right: $element) -> $element {
                let chosen = if right > left { right } else { left };
                if left.is_nan() | right.is_nan() { <$element>::NAN } else { chosen }
            }
            #[inline(always)]
            fn settle(value: $element) -> $element {
                value
            }
        }
        impl Combine<$element> for Sum {
            #[inline(always)]
            fn combine(left: $element, right: $element) -> $element {
                left + right
            }
            // Once per pass is enough: a sum with a NaN stays NaN.
            #[inline(always)]
            fn settle(value: $element) -> $element {
                if value.is_nan() { <$element>::NAN } else { value }
            }
        }
    )*};
}

integer!(i32, u32, i64, u64);
float!(f32, f64);

#[cfg(test)]
#[path = "kernel_tests.rs"]
mod tests;
