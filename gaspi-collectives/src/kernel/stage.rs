//! Handing data over: copying, scaling, converting and adding up, in one way through memory.
//!
//! A plain copy is the copy of the C library, a plain addition is [`accumulate`]. All else goes
//! through elements one by one, in loops that compilers make vectors of. What is added after that
//! waits in a block that fits into the innermost cache.

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

/// A way of handing data over.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Stage {
    from: DataType,
    to: DataType,
    scale: f64,
    write: Write,
}

impl Stage {
    /// Elements of `from` times `scale`, as elements of `to`: the same type, or f32 and one of f16
    /// and bf16, which are scaled as f32 and rounded once, to the nearest, ties to even. The scale
    /// is rounded to the type of the elements (f32 for halves); that of integers is an integer, and
    /// products wrap around.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for other pairs of types, integers by a scale that is none, and
    /// operations that the type does not have.
    pub(crate) fn new(from: DataType, to: DataType, scale: f64, write: Write) -> Result<Stage> {
        let unsupported = |reason: String| Err(Error::Unsupported { reason });
        let half = |ty| matches!(ty, DataType::F16 | DataType::Bf16);
        let widens = from == DataType::F32 && half(to) || half(from) && to == DataType::F32;
        if from != to && !widens {
            return unsupported(format!("elements of {from} are not converted to {to}"));
        }
        if from.is_integer() && (scale.fract() != 0.0 || scale.abs() > MOST_EXACT) {
            return unsupported(format!(
                "elements of {from} are multiplied by integers, not {scale}"
            ));
        }
        if let Write::Accumulate(operation) = write
            && !operation.is_defined_for(to)
        {
            return unsupported(format!("{operation} is not defined for elements of type {to}"));
        }
        Ok(Stage { from, to, scale, write })
    }

    /// Hands over all of `src`, which has as many elements as `dst`. Both may be the same memory
    /// where the types are the same and nothing is combined; then nothing is done for a scale of 1.
    ///
    /// # Panics
    /// The numbers of elements differ.
    pub(crate) fn run(&self, dst: Target<'_>, src: Source<'_>) {
        let elements = src.len / self.from.bytes() as usize;
        assert_eq!(
            elements,
            dst.len / self.to.bytes() as usize,
            "as many elements as there is room"
        );
        let plain = self.from == self.to && self.scale == 1.0;
        match self.write {
            Write::Store if plain && src.is_at(dst) => {}
            Write::Store if plain => copy(dst, src),
            Write::Store => self.convert(dst, src),
            Write::Accumulate(operation) if plain => accumulate(operation, self.to, dst, &[src]),
            Write::Accumulate(operation) => {
                let mut block = [0u64; BLOCK / size_of::<u64>()];
                let block = bytemuck::cast_slice_mut::<u64, u8>(&mut block);
                let (from, to) = (u64::from(self.from.bytes()), u64::from(self.to.bytes()));
                let step = BLOCK / from.max(to) as usize;
                for first in (0..elements).step_by(step) {
                    let count = step.min(elements - first) as u64;
                    let converted = &mut block[..(count * to) as usize];
                    self.convert(
                        Target::of(converted),
                        src.part(first as u64 * from, count * from),
                    );
                    let dst = dst.part(first as u64 * to, count * to);
                    accumulate(operation, self.to, dst, &[Source::of(converted)]);
                }
            }
        }
    }

    /// Combines `src` with `sum` as [`run`](Stage::run) does, and hands the outcome over to `dst`
    /// by another stage instead of writing it back: one way through memory. All have as many
    /// elements.
    pub(crate) fn run_through(
        &self,
        sum: Source<'_>,
        src: Source<'_>,
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
            self.run(block, src.part(src_part.0, src_part.1));
            next.run(dst.part(dst_part.0, dst_part.1), block.source());
        }
    }

    fn convert(&self, dst: Target<'_>, src: Source<'_>) {
        let _environment = (!self.from.is_integer()).then(Environment::enter);
        match Isa::of_this_processor() {
            Isa::Baseline => self.convert_inline(dst, src),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the processor has what was found.
            Isa::Avx2 | Isa::Avx512 => unsafe { self.convert_avx2(dst, src) },
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,f16c,fma")]
    fn convert_avx2(&self, dst: Target<'_>, src: Source<'_>) {
        self.convert_inline(dst, src);
    }

    #[inline(always)]
    fn convert_inline(&self, dst: Target<'_>, src: Source<'_>) {
        let single = self.scale as f32;
        let factor = self.scale as i64;
        macro_rules! integers {
            ($element:ty) => {
                each(dst, src, |value: $element| value.wrapping_mul(factor as $element))
            };
        }
        match (self.from, self.to) {
            (DataType::F32, DataType::F16) => {
                each(dst, src, |value: f32| F16::narrow(value * single));
            }
            (DataType::F32, DataType::Bf16) => {
                each(dst, src, |value: f32| Bf16::narrow(value * single));
            }
            (DataType::F16, DataType::F32) => each(dst, src, |bits| F16::widen(bits) * single),
            (DataType::Bf16, DataType::F32) => each(dst, src, |bits| Bf16::widen(bits) * single),
            (DataType::F16, _) => each(dst, src, |bits| F16::narrow(F16::widen(bits) * single)),
            (DataType::Bf16, _) => each(dst, src, |bits| Bf16::narrow(Bf16::widen(bits) * single)),
            (DataType::F32, _) => each(dst, src, |value: f32| value * single),
            (DataType::F64, _) => each(dst, src, |value: f64| value * self.scale),
            (DataType::I8, _) => integers!(i8),
            (DataType::U8, _) => integers!(u8),
            (DataType::I16, _) => integers!(i16),
            (DataType::U16, _) => integers!(u16),
            (DataType::I32, _) => integers!(i32),
            (DataType::U32, _) => integers!(u32),
            (DataType::I64, _) => integers!(i64),
            (DataType::U64, _) => integers!(u64),
        }
    }
}

/// The largest scale of integers: up to it, each integer is a number of f64.
const MOST_EXACT: f64 = (1u64 << 53) as f64;

#[inline(always)]
fn each<T: Copy, U: Copy>(dst: Target<'_>, src: Source<'_>, change: impl Fn(T) -> U) {
    for i in 0..dst.len / size_of::<U>() {
        // SAFETY: element `i` is inside, as `run` has checked; every bit pattern is a number.
        let value = unsafe { src.start.cast::<T>().add(i).read_unaligned() };
        // SAFETY: element `i` is inside.
        unsafe { dst.start.cast::<U>().add(i).write_unaligned(change(value)) };
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
                let stage = |write| Stage::new(DataType::F32, DataType::F32, scale, write);
                stage(Write::Store).expect("floats").run(stored.target(), source.source());
                assert_eq!(stored.read::<f32>(), expected, "{n} by {scale}");
                let sum = stage(Write::Accumulate(Operation::Sum)).expect("floats");
                sum.run(stored.target(), source.source());
                let twice: Vec<f32> = expected.iter().map(|v| v + v).collect();
                assert_eq!(stored.read::<f32>(), twice, "{n} by {scale}, added");
                let max = stage(Write::Accumulate(Operation::Max)).expect("floats");
                let mut most = Odd::new(&vec![5.0f32; n]);
                max.run(most.target(), source.source());
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
                    let stage = Stage::new(DataType::F32, ty, scale, Write::Store).expect("floats");
                    stage.run(narrow.target(), Odd::new(&input).source());
                    assert_eq!(narrow.read::<u16>(), expected, "{n} by {scale} to {ty}");
                    let mut wide = Odd::new(&vec![0f32; n]);
                    let back = Stage::new(ty, DataType::F32, 1.0, Write::Store).expect("floats");
                    back.run(wide.target(), narrow.source());
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
                let add = Stage::new(DataType::F32, DataType::F32, scale, add).expect("floats");
                let round = Stage::new(DataType::F32, DataType::Bf16, 1.0, Write::Store);
                let (round, input) = (round.expect("floats"), Odd::new(&input));
                add.run_through(before.source(), input.source(), &round, narrow.target());
                assert_eq!(narrow.read::<u16>(), expected, "{n} by {scale}");
                assert_eq!(before.read::<f32>(), vec![0.7; n], "nothing is written there");
            }
        }
    }

    #[test]
    fn integers_wrap_around() {
        let input: Vec<i16> = (0..2500).map(|i| (i * 13 - 9000) as i16).collect();
        let mut output = Odd::new(&input);
        let stage =
            Stage::new(DataType::I16, DataType::I16, -7.0, Write::Store).expect("an integer");
        stage.run(output.target(), Odd::new(&input).source());
        let expected: Vec<i16> = input.iter().map(|v| v.wrapping_mul(-7)).collect();
        assert_eq!(output.read::<i16>(), expected);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (from, to, scale, write) in [
            (DataType::F32, DataType::F64, 1.0, Write::Store),
            (DataType::F16, DataType::Bf16, 1.0, Write::Store),
            (DataType::I32, DataType::I32, 0.5, Write::Store),
            (DataType::I32, DataType::I32, f64::NAN, Write::Store),
            (DataType::I64, DataType::I64, 1e30, Write::Store),
            (DataType::F32, DataType::F32, 1.0, Write::Accumulate(Operation::Xor)),
        ] {
            let made = Stage::new(from, to, scale, write);
            assert!(matches!(made, Err(Error::Unsupported { .. })), "{from} {to} {scale}");
        }
    }
}
