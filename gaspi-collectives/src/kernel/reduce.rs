//! The inner loop: combining the elements of several sources and storing the result in one or
//! several targets.
//!
//! `dst[i] = (((s0[i] op s1[i]) op s2[i]) ...)`: always a left fold in the order given, so that the
//! bits do not depend on the length, on alignment, on who computes or on the instruction set.
//! Three things need care for that. The payload of a NaN that an addition returns depends on the
//! order of its operands, which compilers may exchange: a result that is NaN is the canonical one.
//! Minimum and maximum are comparisons and selections, written out so that a NaN does not disappear
//! (see [`Operation`]). Halves are f32 from the first source to the last and are rounded once.
//!
//! The loop goes through all memory once: a few vectors from each source, combined in registers,
//! then stored to each target, which is faster by half than to copy each block from one target to
//! the others while it is in the cache. Stores that go past the caches are slower. All loads of a
//! piece come before its stores, so that a target may be one of the sources. The loop is compiled
//! for each instruction set that pays off; which one runs is decided by the processor.

use std::sync::OnceLock;

use super::chunk::{Chunk, Lanes, Pieces};
use super::combine::{And, Combine, Divisor, Max, Min, Or, Product, Quotient, Sum, Xor};
use super::environment::Environment;
use super::halves::{Bf16, F16};
use super::{Source, Target, copy};
use crate::datatype::{DataType, Operation};

/// `dst[i] = s0[i] op s1[i] op ...` from left to right, for each of the targets. All have the same
/// length, a multiple of the element size. A target may be the same memory as one source; apart
/// from that targets overlap nothing. With one source it is a copy.
///
/// Elements of f16 and bf16 are combined as f32 and rounded once. An average is summed up, to be
/// [divided](super::divide()) when all contributions are in.
///
/// # Panics
/// A length differs or is not one of whole elements, or the operation is not defined for the type.
pub fn fold(op: Operation, ty: DataType, dsts: &[Target<'_>], srcs: &[Source<'_>]) {
    fold_with(Isa::of_this_processor(), op, ty, dsts, srcs);
}

/// `dst[i] = dst[i] op s0[i] op s1[i] op ...`, otherwise like [`fold`].
///
/// # Panics
/// As [`fold`].
pub fn accumulate(op: Operation, ty: DataType, dst: Target<'_>, srcs: &[Source<'_>]) {
    if !srcs.is_empty() {
        let pass = Pass { dsts: &[dst], first: dst.source(), rest: srcs };
        pass.run(Isa::of_this_processor(), op, ty);
    }
}

/// `dst[i] = (s0[i] + s1[i] + ...) / n` in one pass, otherwise like [`fold`], with the bits of a
/// sum that is [divided](super::divide()). False, and nothing has happened, for types of which it
/// needs two: integers, which have other loops for that, and halves, whose sums are rounded in
/// between.
///
/// # Panics
/// `n` is 0, or a length differs or is not one of whole elements.
pub fn average(ty: DataType, dsts: &[Target<'_>], srcs: &[Source<'_>], n: u32) -> bool {
    average_with(Isa::of_this_processor(), ty, dsts, srcs, n)
}

pub(super) fn average_with(
    isa: Isa,
    ty: DataType,
    dsts: &[Target<'_>],
    srcs: &[Source<'_>],
    n: u32,
) -> bool {
    assert!(n > 0, "an average has at least one contribution");
    let average = match ty {
        DataType::F32 => averaging::<f32>(isa),
        DataType::F64 => averaging::<f64>(isa),
        _ => return false,
    };
    if let [first, rest @ ..] = srcs {
        let pass = Pass { dsts, first: *first, rest };
        pass.check(ty);
        let _environment = Environment::enter();
        // SAFETY: instruction sets are only named where the processor has them.
        unsafe { average(&pass, n) };
    }
    true
}

pub(super) fn fold_with(
    isa: Isa,
    op: Operation,
    ty: DataType,
    dsts: &[Target<'_>],
    srcs: &[Source<'_>],
) {
    match srcs {
        [] => {}
        [only] => dsts.iter().for_each(|dst| copy(*dst, *only)),
        [first, rest @ ..] => Pass { dsts, first: *first, rest }.run(isa, op, ty),
    }
}

/// The instruction sets that the loops are compiled for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Isa {
    Baseline,
    /// With F16C, which is older, and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// The parts F, BW, DQ and VL.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Isa {
    /// All, by their numbers.
    const ALL: &[Isa] = &[
        Isa::Baseline,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512,
    ];

    /// The widest that runs here. Asked for once: each question takes nanoseconds.
    #[inline]
    pub(super) fn of_this_processor() -> Isa {
        static FOUND: OnceLock<Isa> = OnceLock::new();
        *FOUND.get_or_init(Isa::detect)
    }

    fn detect() -> Isa {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("fma")
        {
            let wider = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            return if wider { Isa::Avx512 } else { Isa::Avx2 };
        }
        Isa::Baseline
    }

    /// All that run on this processor.
    #[cfg(test)]
    pub(super) fn available() -> &'static [Isa] {
        &Isa::ALL[..=Isa::detect() as usize]
    }
}

/// The instruction set whose loops run on this processor.
pub fn instruction_set() -> &'static str {
    match Isa::of_this_processor() {
        Isa::Baseline => "those of the baseline",
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => "AVX2",
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => "AVX-512",
    }
}

/// One way through memory.
struct Pass<'a> {
    dsts: &'a [Target<'a>],
    first: Source<'a>,
    rest: &'a [Source<'a>],
}

impl Pass<'_> {
    /// Panics where sources and targets do not go together.
    #[inline(always)]
    fn check(&self, ty: DataType) {
        let len = self.first.len;
        let same = self.dsts.iter().all(|dst| dst.len == len)
            && self.rest.iter().all(|src| src.len == len);
        assert!(same, "a source has the length of the target");
        // A power of two, which the compiler does not know and would divide by.
        let whole = len & (ty.bytes() as usize - 1) == 0;
        assert!(whole, "a reduction works on whole elements");
    }

    fn run(&self, isa: Isa, op: Operation, ty: DataType) {
        self.check(ty);
        let _environment = (!ty.is_integer()).then(Environment::enter);
        match LOOPS[isa as usize][ty as usize][op as usize] {
            // SAFETY: instruction sets are only named where the processor has them.
            Some(sweep) => unsafe { sweep(self) },
            None => panic!("{op} is not defined for {ty}"),
        }
    }
}

/// A loop of a type and an operation. It may only be called where its instruction set is there.
type Loop = unsafe fn(&Pass<'_>);
type LoopsOfTypes = [[Option<Loop>; Operation::ALL.len()]; DataType::ALL.len()];

/// All loops: a choice in a table takes a nanosecond, one branch behind the other took ten.
static LOOPS: [LoopsOfTypes; Isa::ALL.len()] = {
    let mut loops = [[[None; Operation::ALL.len()]; DataType::ALL.len()]; Isa::ALL.len()];
    let mut place = 0;
    while place < Isa::ALL.len() * DataType::ALL.len() * Operation::ALL.len() {
        let op = Operation::ALL[place % Operation::ALL.len()];
        let ty = DataType::ALL[place / Operation::ALL.len() % DataType::ALL.len()];
        let isa = Isa::ALL[place / Operation::ALL.len() / DataType::ALL.len()];
        loops[isa as usize][ty as usize][op as usize] = loop_of(isa, op, ty);
        place += 1;
    }
    loops
};

/// The loop of a type and an operation, where it is defined.
const fn loop_of(isa: Isa, op: Operation, ty: DataType) -> Option<Loop> {
    // Sums and products of signed integers have the bits of unsigned ones.
    macro_rules! integer {
        ($element:ty, $unsigned:ty) => {
            match op {
                Operation::Min => compiled::<$element, Min>(isa),
                Operation::Max => compiled::<$element, Max>(isa),
                Operation::Sum | Operation::Average => compiled::<$unsigned, Sum>(isa),
                Operation::Product => compiled::<$unsigned, Product>(isa),
                Operation::And => compiled::<u8, And>(isa),
                Operation::Or => compiled::<u8, Or>(isa),
                Operation::Xor => compiled::<u8, Xor>(isa),
            }
        };
    }
    macro_rules! float {
        ($element:ty) => {
            match op {
                Operation::Min => compiled::<$element, Min>(isa),
                Operation::Max => compiled::<$element, Max>(isa),
                Operation::Sum | Operation::Average => compiled::<$element, Sum>(isa),
                Operation::Product => compiled::<$element, Product>(isa),
                Operation::And | Operation::Or | Operation::Xor => return None,
            }
        };
    }
    Some(match ty {
        DataType::I8 => integer!(i8, u8),
        DataType::U8 => integer!(u8, u8),
        DataType::I16 => integer!(i16, u16),
        DataType::U16 => integer!(u16, u16),
        DataType::I32 => integer!(i32, u32),
        DataType::U32 => integer!(u32, u32),
        DataType::I64 => integer!(i64, u64),
        DataType::U64 => integer!(u64, u64),
        DataType::F16 => float!(F16),
        DataType::Bf16 => float!(Bf16),
        DataType::F32 => float!(f32),
        DataType::F64 => float!(f64),
    })
}

/// The loop as it is compiled for an instruction set.
#[cfg(target_arch = "x86_64")]
const fn compiled<T, O>(isa: Isa) -> Loop
where
    T: Pieces,
    O: Combine<T::Lane> + Combine<LaneOf<T::Avx2>> + Combine<LaneOf<T::Avx512>>,
{
    match isa {
        Isa::Baseline => sweep::<T::Baseline, T, O>,
        Isa::Avx512 if T::GAINS_BY_AVX512 => sweep_avx512::<T, O>,
        Isa::Avx2 | Isa::Avx512 => sweep_avx2::<T, O>,
    }
}

#[cfg(not(target_arch = "x86_64"))]
const fn compiled<T: Pieces, O: Combine<T::Lane>>(_: Isa) -> Loop {
    sweep::<T::Baseline, T, O>
}

/// A loop that divides sums by a number.
type AveragingLoop = unsafe fn(&Pass<'_>, u32);

/// The same as it is compiled for an instruction set.
#[cfg(target_arch = "x86_64")]
fn averaging<T>(isa: Isa) -> AveragingLoop
where
    T: Pieces<Lane: Divisor, Avx2: Chunk<Lane: Divisor>>,
    Sum: Combine<T::Lane> + Combine<LaneOf<T::Avx2>>,
    Product: Combine<T::Lane> + Combine<LaneOf<T::Avx2>>,
    Quotient: Combine<T::Lane> + Combine<LaneOf<T::Avx2>>,
{
    match isa {
        Isa::Baseline => sweep_averages::<T::Baseline, T>,
        Isa::Avx2 | Isa::Avx512 => sweep_averages_avx2::<T>,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn averaging<T: Pieces<Lane: Divisor>>(_: Isa) -> AveragingLoop
where
    Sum: Combine<T::Lane>,
    Product: Combine<T::Lane>,
    Quotient: Combine<T::Lane>,
{
    sweep_averages::<T::Baseline, T>
}

#[cfg(target_arch = "x86_64")]
pub(super) type LaneOf<C> = <C as Chunk>::Lane;

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c,fma")]
fn sweep_averages_avx2<T>(pass: &Pass<'_>, n: u32)
where
    T: Pieces<Lane: Divisor, Avx2: Chunk<Lane: Divisor>>,
    Sum: Combine<T::Lane> + Combine<LaneOf<T::Avx2>>,
    Product: Combine<T::Lane> + Combine<LaneOf<T::Avx2>>,
    Quotient: Combine<T::Lane> + Combine<LaneOf<T::Avx2>>,
{
    sweep_averages::<T::Avx2, T>(pass, n);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c,fma")]
fn sweep_avx2<T: Pieces, O: Combine<T::Lane> + Combine<LaneOf<T::Avx2>>>(pass: &Pass<'_>) {
    sweep::<T::Avx2, T, O>(pass);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c,fma,avx512f,avx512bw,avx512dq,avx512vl")]
fn sweep_avx512<T: Pieces, O: Combine<T::Lane> + Combine<LaneOf<T::Avx512>>>(pass: &Pass<'_>) {
    sweep::<T::Avx512, T, O>(pass);
}

// Inlined into each instruction set's clone, so that it is compiled for that set.
#[inline(always)]
fn sweep<C: Chunk, T: Pieces, O: Combine<C::Lane> + Combine<T::Lane>>(pass: &Pass<'_>) {
    let at = chunks::<C, O, O>(pass, None);
    let at = pieces::<T::Small, O, O>(pass.dsts, pass.first, pass.rest, None, at);
    let at = pieces::<T::Single, O, O>(pass.dsts, pass.first, pass.rest, None, at);
    debug_assert_eq!(at, pass.first.len);
}

#[inline(always)]
fn sweep_averages<C: Chunk<Lane: Divisor>, T: Pieces<Lane: Divisor>>(pass: &Pass<'_>, n: u32)
where
    Sum: Combine<C::Lane> + Combine<T::Lane>,
    Product: Combine<C::Lane> + Combine<T::Lane>,
    Quotient: Combine<C::Lane> + Combine<T::Lane>,
{
    // See `divide`.
    let at = if n.is_power_of_two() {
        let (wide, single) = (C::Lane::reciprocal(n), T::Lane::reciprocal(n));
        let at = chunks::<C, Sum, Product>(pass, Some(wide));
        pieces::<T::Single, Sum, Product>(pass.dsts, pass.first, pass.rest, Some(single), at)
    } else {
        let (wide, single) = (C::Lane::of(n), T::Lane::of(n));
        let at = chunks::<C, Sum, Quotient>(pass, Some(wide));
        pieces::<T::Single, Sum, Quotient>(pass.dsts, pass.first, pass.rest, Some(single), at)
    };
    debug_assert_eq!(at, pass.first.len);
}

/// The whole chunks of a pass; returns where they end.
#[inline(always)]
fn chunks<C: Chunk, O: Combine<C::Lane>, F: Combine<C::Lane>>(
    pass: &Pass<'_>,
    last: Option<C::Lane>,
) -> usize {
    let Pass { dsts, first, rest } = *pass;
    // What two ranks do all the time is compiled apart, with lengths that the compiler knows: a
    // fifth faster.
    match (dsts, rest) {
        ([dst], [src]) => there_and_back::<C, O, F>(&[*dst], first, &[*src], last),
        ([one, two], [src]) => there_and_back::<C, O, F>(&[*one, *two], first, &[*src], last),
        _ => there_and_back::<C, O, F>(dsts, first, rest, last),
    }
}

/// Bytes at the end of a pass that are gone through backwards, if they are less than half of it.
/// Measured: 1 KiB gains half of what this does.
pub(super) const BACKWARDS_BYTES: usize = 4096;

/// The whole chunks, the last ones backwards; returns where they end. A processor prefetches what
/// lies behind memory that is gone through. Behind the block of a member is often one that another
/// core is writing, which would have to fetch its lines back.
#[inline(always)]
fn there_and_back<C: Chunk, O: Combine<C::Lane>, F: Combine<C::Lane>>(
    dsts: &[Target<'_>],
    first: Source<'_>,
    rest: &[Source<'_>],
    last: Option<C::Lane>,
) -> usize {
    let whole = first.len / C::BYTES;
    let turn = whole - (whole / 2).min(BACKWARDS_BYTES / C::BYTES);
    // No iterators: what these call is not compiled for the instruction set.
    let mut number = 0;
    while number < turn {
        // SAFETY: `Pass::check` has found all as long as the first; the chunk is inside.
        unsafe { chunk::<C, O, F>(dsts, first, rest, last, number * C::BYTES) };
        number += 1;
    }
    number = whole;
    while number > turn {
        number -= 1;
        // SAFETY: all are as long as the first; the chunk is inside.
        unsafe { chunk::<C, O, F>(dsts, first, rest, last, number * C::BYTES) };
    }
    whole * C::BYTES
}

/// Goes on from `at` for as long as there are whole chunks; returns where that ends. Results are
/// combined with `last` by `F`, if there is one.
#[inline(always)]
fn pieces<C: Chunk, O: Combine<C::Lane>, F: Combine<C::Lane>>(
    dsts: &[Target<'_>],
    first: Source<'_>,
    rest: &[Source<'_>],
    last: Option<C::Lane>,
    mut at: usize,
) -> usize {
    while first.len - at >= C::BYTES {
        // SAFETY: `Pass::check` has found all as long as the first; the chunk is inside.
        unsafe { chunk::<C, O, F>(dsts, first, rest, last, at) };
        at += C::BYTES;
    }
    at
}

/// Combines the chunk at `at`.
///
/// # Safety
/// The chunk lies inside of all of them.
#[inline(always)]
unsafe fn chunk<C: Chunk, O: Combine<C::Lane>, F: Combine<C::Lane>>(
    dsts: &[Target<'_>],
    first: Source<'_>,
    rest: &[Source<'_>],
    last: Option<C::Lane>,
    at: usize,
) {
    // SAFETY: the caller's promise.
    let mut lanes = unsafe { C::load(first.start.add(at)) };
    for src in rest {
        // SAFETY: the caller's promise.
        let more = unsafe { C::load(src.start.add(at)) };
        lanes = lanes.combine::<O>(more);
    }
    if let Some(last) = last {
        lanes = lanes.combine::<F>(C::Lanes::all(last));
    }
    if lanes.is_unsettled::<O>() {
        lanes = lanes.settle::<O>();
    }
    let packed = C::pack(lanes);
    let packed = C::hold(packed);
    for dst in dsts {
        // SAFETY: the caller's promise.
        unsafe { C::store(dst.start.add(at), packed) };
    }
}
