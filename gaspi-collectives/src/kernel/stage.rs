//! Handing data over: copying, scaling, converting and adding up, in one way through memory.
//!
//! A plain copy is the copy of the C library, a plain addition is [`accumulate`]. All else goes
//! through elements one by one, in loops that compilers make vectors of. What is added after that
//! waits in a block that fits into the innermost cache.

use std::marker::PhantomData;

use gaspi_core::{Error, Result};

use super::environment::Environment;
use super::halves::{Bf16, F16, Half};
use super::reduce::Isa;
use super::{Source, Target, accumulate, copy};
use crate::datatype::{DataType, Operation};

/// Bytes of a block that waits to be added.
const BLOCK: usize = 4096;

/// What happens to what lies at the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Write {
    /// It is overwritten.
    Store,
    /// It is combined with what comes.
    Accumulate(Operation),
}

/// A loop that hands over so many elements, from the second place to the first, times a factor.
type Loop = unsafe fn(*mut u8, *const u8, usize, f64);

/// A way of handing data over, found once for many of them: all but the factor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stage {
    from: DataType,
    to: DataType,
    write: Write,
    convert: Loop,
}

/// The largest scale of integers: up to it, each integer is a number of f64.
const MOST_EXACT: f64 = (1u64 << 53) as f64;

impl Stage {
    /// Elements of `from` times a scale, as elements of `to`: the same type, or f32 and one of f16
    /// and bf16, which are scaled as f32 and rounded once, to the nearest, ties to even. The scale
    /// is rounded to the type of the elements (f32 for halves); that of integers is an integer, and
    /// products wrap around.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for other pairs of types, and operations that the type does not have.
    pub(crate) fn new(from: DataType, to: DataType, write: Write) -> Result<Stage> {
        let Some(convert) = loop_of(from, to) else {
            let reason = format!("elements of {from} are not converted to {to}");
            return Err(Error::Unsupported { reason });
        };
        if let Write::Accumulate(operation) = write
            && !operation.is_defined_for(to)
        {
            let reason = format!("{operation} is not defined for elements of type {to}");
            return Err(Error::Unsupported { reason });
        }
        Ok(Stage { from, to, write, convert })
    }

    /// Whether elements can be multiplied by that.
    #[inline(always)]
    pub(crate) fn takes(&self, scale: f64) -> bool {
        !self.from.is_integer() || scale.fract() == 0.0 && scale.abs() <= MOST_EXACT
    }

    /// # Errors
    /// [`Error::Unsupported`] for integers by a scale that is none.
    pub(crate) fn check(&self, scale: f64) -> Result<()> {
        if self.takes(scale) {
            return Ok(());
        }
        let from = self.from;
        let reason = format!("elements of {from} are multiplied by integers, not {scale}");
        Err(Error::Unsupported { reason })
    }

    /// Hands over all of `src`, which has as many elements as `dst`, times a scale that it
    /// [takes](Stage::takes). Both may be the same memory where the types are the same and nothing
    /// is combined; then nothing is done for a scale of 1.
    ///
    /// # Panics
    /// The numbers of elements differ.
    #[inline(never)]
    pub(crate) fn run(&self, scale: f64, dst: Target<'_>, src: Source<'_>) {
        let plain = self.from == self.to && scale == 1.0;
        match self.write {
            Write::Store if plain && src.is_at(dst) => {}
            Write::Store if plain => copy(dst, src),
            Write::Store => self.convert(scale, dst, src),
            Write::Accumulate(operation) if plain => accumulate(operation, self.to, dst, &[src]),
            Write::Accumulate(operation) => {
                let mut block = [0u64; BLOCK / size_of::<u64>()];
                let block = bytemuck::cast_slice_mut::<u64, u8>(&mut block);
                let (from, to) = (u64::from(self.from.bytes()), u64::from(self.to.bytes()));
                let elements = self.elements(dst, src) as u64;
                let step = BLOCK as u64 / from.max(to);
                for first in (0..elements).step_by(step as usize) {
                    let count = step.min(elements - first);
                    let converted = &mut block[..(count * to) as usize];
                    let part = src.part(first * from, count * from);
                    self.convert(scale, Target::of(converted), part);
                    let dst = dst.part(first * to, count * to);
                    accumulate(operation, self.to, dst, &[Source::of(converted)]);
                }
            }
        }
    }

    /// Combines `src` with `sum` as [`run`](Stage::run) does, and hands the outcome over to `dst`
    /// by another stage, at a scale of 1, instead of writing it back: one way through memory. All
    /// have as many elements.
    #[inline(never)]
    pub(crate) fn run_through(
        &self,
        scale: f64,
        (sum, src): (Source<'_>, Source<'_>),
        next: &Stage,
        dst: Target<'_>,
    ) {
        let mut block = [0u64; BLOCK / size_of::<u64>()];
        let block = bytemuck::cast_slice_mut::<u64, u8>(&mut block);
        let bytes = [self.from, self.to, next.to].map(|ty| u64::from(ty.bytes()));
        let elements = sum.len as u64 / bytes[1];
        let step = BLOCK as u64 / bytes[1];
        for first in (0..elements).step_by(step as usize) {
            let count = step.min(elements - first);
            let [src_part, sum_part, dst_part] = bytes.map(|bytes| (first * bytes, count * bytes));
            let block = Target::of(&mut block[..sum_part.1 as usize]);
            copy(block, sum.part(sum_part.0, sum_part.1));
            self.run(scale, block, src.part(src_part.0, src_part.1));
            next.run(1.0, dst.part(dst_part.0, dst_part.1), block.source());
        }
    }

    /// The elements of both.
    ///
    /// # Panics
    /// Their numbers differ.
    fn elements(&self, dst: Target<'_>, src: Source<'_>) -> usize {
        // Powers of two, which the compiler does not know and would divide by.
        let [from, to] = [self.from, self.to].map(|ty| ty.bytes().trailing_zeros());
        let elements = src.len >> from;
        assert_eq!(elements, dst.len >> to, "as many elements as there is room");
        elements
    }

    fn convert(&self, scale: f64, dst: Target<'_>, src: Source<'_>) {
        let elements = self.elements(dst, src);
        // SAFETY: both hold so many elements, and the processor has what `compiled` has found.
        unsafe { (self.convert)(dst.start, src.start, elements, scale) };
    }
}

/// What happens to an element.
trait Change {
    type From: Copy;
    type To: Copy;
    /// A scale as elements are multiplied by it.
    type Factor: Copy;
    const IS_INTEGER: bool;

    fn factor(scale: f64) -> Self::Factor;

    fn change(value: Self::From, factor: Self::Factor) -> Self::To;
}

/// Elements of one type are multiplied.
struct Multiply<T>(PhantomData<T>);

macro_rules! multiply {
    ($element:ty, $is_integer:literal, $factor:expr, $change:expr) => {
        impl Change for Multiply<$element> {
            type From = $element;
            type To = $element;
            type Factor = $element;
            const IS_INTEGER: bool = $is_integer;

            #[inline(always)]
            fn factor(scale: f64) -> $element {
                $factor(scale)
            }

            #[inline(always)]
            fn change(value: $element, factor: $element) -> $element {
                $change(value, factor)
            }
        }
    };
}

multiply!(f32, false, |scale| scale as f32, |value, factor| value * factor);
multiply!(f64, false, |scale| scale, |value, factor| value * factor);
// Products of signed integers have the bits of unsigned ones.
multiply!(u8, true, |scale| scale as i64 as u8, u8::wrapping_mul);
multiply!(u16, true, |scale| scale as i64 as u16, u16::wrapping_mul);
multiply!(u32, true, |scale| scale as i64 as u32, u32::wrapping_mul);
multiply!(u64, true, |scale| scale as i64 as u64, u64::wrapping_mul);

/// Halves are multiplied.
struct MultiplyHalves<H>(PhantomData<H>);
/// f32 become halves.
struct Narrow<H>(PhantomData<H>);
/// Halves become f32.
struct Widen<H>(PhantomData<H>);

macro_rules! halves {
    ($change:ident from $from:ty, $to:ty, $each:expr) => {
        impl<H: Half> Change for $change<H> {
            type From = $from;
            type To = $to;
            type Factor = f32;
            const IS_INTEGER: bool = false;

            #[inline(always)]
            fn factor(scale: f64) -> f32 {
                scale as f32
            }

            #[inline(always)]
            fn change(value: $from, factor: f32) -> $to {
                $each(value, factor)
            }
        }
    };
}

halves!(Narrow from f32, u16, |value, factor| H::narrow(value * factor));
halves!(Widen from u16, f32, |bits, factor| H::widen(bits) * factor);
halves!(MultiplyHalves from u16, u16, |bits, factor| H::narrow(H::widen(bits) * factor));

/// The loop from one type to another, if there is one.
fn loop_of(from: DataType, to: DataType) -> Option<Loop> {
    Some(match (from, to) {
        (DataType::F32, DataType::F16) => compiled::<Narrow<F16>>(),
        (DataType::F32, DataType::Bf16) => compiled::<Narrow<Bf16>>(),
        (DataType::F16, DataType::F32) => compiled::<Widen<F16>>(),
        (DataType::Bf16, DataType::F32) => compiled::<Widen<Bf16>>(),
        _ if from != to => return None,
        (DataType::F16, _) => compiled::<MultiplyHalves<F16>>(),
        (DataType::Bf16, _) => compiled::<MultiplyHalves<Bf16>>(),
        (DataType::F32, _) => compiled::<Multiply<f32>>(),
        (DataType::F64, _) => compiled::<Multiply<f64>>(),
        (DataType::I8 | DataType::U8, _) => compiled::<Multiply<u8>>(),
        (DataType::I16 | DataType::U16, _) => compiled::<Multiply<u16>>(),
        (DataType::I32 | DataType::U32, _) => compiled::<Multiply<u32>>(),
        (DataType::I64 | DataType::U64, _) => compiled::<Multiply<u64>>(),
    })
}

/// The loop as it is compiled for this processor.
fn compiled<C: Change>() -> Loop {
    match Isa::of_this_processor() {
        Isa::Baseline => each::<C>,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx512 => each_avx2::<C>,
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c,fma")]
unsafe fn each_avx2<C: Change>(dst: *mut u8, src: *const u8, elements: usize, scale: f64) {
    // SAFETY: the caller's promise.
    unsafe { each::<C>(dst, src, elements, scale) };
}

/// Changes `elements` elements.
///
/// # Safety
/// `src` is readable and `dst` writable for so many. The processor has what the caller is compiled
/// for.
#[inline(always)]
unsafe fn each<C: Change>(dst: *mut u8, src: *const u8, elements: usize, scale: f64) {
    let _environment = (!C::IS_INTEGER).then(Environment::enter);
    let factor = C::factor(scale);
    for i in 0..elements {
        // SAFETY: element `i` is inside; every bit pattern is a number.
        let value = unsafe { src.cast::<C::From>().add(i).read_unaligned() };
        // SAFETY: element `i` is inside.
        unsafe { dst.cast::<C::To>().add(i).write_unaligned(C::change(value, factor)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Elements as bytes that begin at an odd address.
    struct Odd(Vec<u8>);

    impl Odd {
        fn new<T: bytemuck::NoUninit>(elements: &[T]) -> Odd {
            Odd([&[0], bytemuck::cast_slice::<T, u8>(elements)].concat())
        }

        fn source(&self) -> Source<'_> {
            Source::of(&self.0[1..])
        }

        fn target(&mut self) -> Target<'_> {
            Target::of(&mut self.0[1..])
        }

        fn read<T: bytemuck::AnyBitPattern>(&self) -> Vec<T> {
            bytemuck::pod_collect_to_vec_any(&self.0[1..])
        }
    }

    mod bytemuck {
        pub(super) use ::bytemuck::{AnyBitPattern, NoUninit, cast_slice};

        pub(super) fn pod_collect_to_vec_any<T: AnyBitPattern>(bytes: &[u8]) -> Vec<T> {
            bytes.chunks_exact(size_of::<T>()).map(::bytemuck::pod_read_unaligned).collect()
        }
    }

    const LENGTHS: [usize; 8] = [0, 1, 7, 64, 1023, 1024, 1025, 5000];

    fn values(n: usize) -> Vec<f32> {
        let special = [0.0, -0.0, f32::INFINITY, f32::MIN_POSITIVE, 1e-42, 65504.0, 65520.0];
        let value = |i: usize| match i % 11 {
            0 => special[i / 11 % special.len()],
            _ => (i as f32 - 700.0) * 0.37,
        };
        (0..n).map(value).collect()
    }

    #[test]
    fn floats_are_scaled_and_added() {
        for n in LENGTHS {
            let input = values(n);
            for scale in [1.0, 0.125, 3.3] {
                let expected: Vec<f32> = input.iter().map(|v| v * scale as f32).collect();
                let source = Odd::new(&input);
                let mut stored = Odd::new(&vec![9.0f32; n]);
                let stage = |write| Stage::new(DataType::F32, DataType::F32, write);
                let store = stage(Write::Store).expect("floats");
                store.run(scale, stored.target(), source.source());
                assert_eq!(stored.read::<f32>(), expected, "{n} by {scale}");
                let sum = stage(Write::Accumulate(Operation::Sum)).expect("floats");
                sum.run(scale, stored.target(), source.source());
                let twice: Vec<f32> = expected.iter().map(|v| v + v).collect();
                assert_eq!(stored.read::<f32>(), twice, "{n} by {scale}, added");
                let max = stage(Write::Accumulate(Operation::Max)).expect("floats");
                let mut most = Odd::new(&vec![5.0f32; n]);
                max.run(scale, most.target(), source.source());
                let expected: Vec<f32> = expected.iter().map(|v| v.max(5.0)).collect();
                assert_eq!(most.read::<f32>(), expected, "{n} by {scale}, the larger ones");
            }
        }
    }

    #[test]
    fn halves_are_rounded_once() {
        for n in LENGTHS {
            let input = values(n);
            for scale in [1.0, 0.3] {
                let scaled = |v: &f32| v * scale as f32;
                let f16: Vec<u16> =
                    input.iter().map(|v| half::f16::from_f32(scaled(v)).to_bits()).collect();
                let bf16: Vec<u16> =
                    input.iter().map(|v| half::bf16::from_f32(scaled(v)).to_bits()).collect();
                for (ty, expected) in [(DataType::F16, f16), (DataType::Bf16, bf16)] {
                    let mut narrow = Odd::new(&vec![0u16; n]);
                    let stage = Stage::new(DataType::F32, ty, Write::Store).expect("floats");
                    stage.run(scale, narrow.target(), Odd::new(&input).source());
                    assert_eq!(narrow.read::<u16>(), expected, "{n} by {scale} to {ty}");
                    let mut wide = Odd::new(&vec![0f32; n]);
                    let back = Stage::new(ty, DataType::F32, Write::Store).expect("floats");
                    back.run(1.0, wide.target(), narrow.source());
                    let widen = |bits: &u16| match ty {
                        DataType::F16 => half::f16::from_bits(*bits).to_f32(),
                        _ => half::bf16::from_bits(*bits).to_f32(),
                    };
                    assert_eq!(wide.read::<f32>(), expected.iter().map(widen).collect::<Vec<_>>());
                }
            }
        }
    }

    #[test]
    fn sums_of_f32_are_rounded_behind_the_addition() {
        for n in LENGTHS {
            let input = values(n);
            for scale in [1.0, 0.3] {
                let sum = |v: &f32| 0.7 + v * scale as f32;
                let expected: Vec<u16> =
                    input.iter().map(|v| half::bf16::from_f32(sum(v)).to_bits()).collect();
                let mut narrow = Odd::new(&vec![0u16; n]);
                let before = Odd::new(&vec![0.7f32; n]);
                let add = Write::Accumulate(Operation::Sum);
                let add = Stage::new(DataType::F32, DataType::F32, add).expect("floats");
                let round = Stage::new(DataType::F32, DataType::Bf16, Write::Store);
                let (round, input) = (round.expect("floats"), Odd::new(&input));
                let both = (before.source(), input.source());
                add.run_through(scale, both, &round, narrow.target());
                assert_eq!(narrow.read::<u16>(), expected, "{n} by {scale}");
                assert_eq!(before.read::<f32>(), vec![0.7; n], "nothing is written there");
            }
        }
    }

    #[test]
    fn integers_wrap_around() {
        let input: Vec<i16> = (0..2500).map(|i| (i * 13 - 9000) as i16).collect();
        let mut output = Odd::new(&input);
        let stage = Stage::new(DataType::I16, DataType::I16, Write::Store).expect("the same");
        stage.run(-7.0, output.target(), Odd::new(&input).source());
        let expected: Vec<i16> = input.iter().map(|v| v.wrapping_mul(-7)).collect();
        assert_eq!(output.read::<i16>(), expected);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let xor = Write::Accumulate(Operation::Xor);
        for (from, to, write) in [
            (DataType::F32, DataType::F64, Write::Store),
            (DataType::F16, DataType::Bf16, Write::Store),
            (DataType::F32, DataType::F32, xor),
        ] {
            let made = Stage::new(from, to, write);
            assert!(matches!(made, Err(Error::Unsupported { .. })), "{from} {to}");
        }
        for (ty, scale, is_taken) in [
            (DataType::I32, 0.5, false),
            (DataType::I32, f64::NAN, false),
            (DataType::I64, 1e30, false),
            (DataType::I64, f64::NEG_INFINITY, false),
            (DataType::I64, -MOST_EXACT, true),
            (DataType::F32, f64::NAN, true),
        ] {
            let stage = Stage::new(ty, ty, Write::Store).expect("the same");
            assert_eq!(stage.takes(scale), is_taken, "{ty} {scale}");
            let checked = stage.check(scale);
            assert_eq!(checked.is_ok(), is_taken, "{ty} {scale}");
            assert!(matches!(checked, Ok(()) | Err(Error::Unsupported { .. })), "{checked:?}");
        }
    }
}
