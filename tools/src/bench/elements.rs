//! Types and operations of collective tests, and patterns of elements whose combination is known:
//! small whole numbers, which every type holds exactly, whatever the order in which they are
//! combined.

use crate::memory::Region;
use clap::ValueEnum;

/// Type of an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Type {
    #[value(alias = "int8")]
    I8,
    #[value(alias = "uint8")]
    U8,
    #[value(alias = "int16")]
    I16,
    #[value(alias = "uint16")]
    U16,
    #[value(alias = "int32")]
    I32,
    #[value(alias = "uint32")]
    U32,
    #[value(alias = "int64")]
    I64,
    #[value(alias = "uint64")]
    U64,
    #[value(alias = "half")]
    F16,
    #[value(alias = "bfloat16")]
    Bf16,
    #[value(alias = "float")]
    F32,
    #[value(alias = "double")]
    F64,
}

impl Type {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Type::I8 => "i8",
            Type::U8 => "u8",
            Type::I16 => "i16",
            Type::U16 => "u16",
            Type::I32 => "i32",
            Type::U32 => "u32",
            Type::I64 => "i64",
            Type::U64 => "u64",
            Type::F16 => "f16",
            Type::Bf16 => "bf16",
            Type::F32 => "f32",
            Type::F64 => "f64",
        }
    }

    /// As gaspi_collectives.h numbers it.
    pub(crate) fn code(self) -> u32 {
        match self {
            Type::I8 => 16,
            Type::U8 => 17,
            Type::I16 => 18,
            Type::U16 => 19,
            Type::I32 => 20,
            Type::U32 => 21,
            Type::I64 => 22,
            Type::U64 => 23,
            Type::F16 => 32,
            Type::Bf16 => 33,
            Type::F32 => 34,
            Type::F64 => 35,
        }
    }

    pub(crate) fn bytes(self) -> usize {
        match self {
            Type::I8 | Type::U8 => 1,
            Type::I16 | Type::U16 | Type::F16 | Type::Bf16 => 2,
            Type::I32 | Type::U32 | Type::F32 => 4,
            Type::I64 | Type::U64 | Type::F64 => 8,
        }
    }

    /// Up to this it holds every whole number.
    fn whole_max(self) -> u64 {
        match self {
            Type::I8 => 127,
            Type::U8 => 255,
            Type::Bf16 => 256,
            Type::F16 => 2048,
            Type::I16 => 32_767,
            Type::U16 => 65_535,
            Type::F32 => 1 << 24,
            Type::I32 | Type::U32 | Type::I64 | Type::U64 | Type::F64 => 1 << 31,
        }
    }

    fn is_float(self) -> bool {
        matches!(self, Type::F16 | Type::Bf16 | Type::F32 | Type::F64)
    }

    /// The bytes of a small number; integers wrap around.
    fn encode(self, number: u64) -> Vec<u8> {
        match self {
            Type::F16 => half(number).to_ne_bytes().to_vec(),
            // The upper half of an f32.
            Type::Bf16 => (((number as f32).to_bits() >> 16) as u16).to_ne_bytes().to_vec(),
            Type::F32 => (number as f32).to_ne_bytes().to_vec(),
            Type::F64 => (number as f64).to_ne_bytes().to_vec(),
            _ => number.to_le_bytes()[..self.bytes()].to_vec(),
        }
    }
}

/// A whole number up to 2048 in half precision.
fn half(number: u64) -> u16 {
    if number == 0 {
        return 0;
    }
    let exponent = number.ilog2();
    // The bits behind the leading one, moved up to the ten of the fraction.
    let fraction = (number << 10 >> exponent) as u16 & 0x3ff;
    ((exponent as u16 + 15) << 10) | fraction
}

/// How elements are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Op {
    Sum,
    #[value(alias = "prod")]
    Product,
    Min,
    Max,
    And,
    Or,
    Xor,
    #[value(alias = "avg")]
    Average,
}

impl Op {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Op::Sum => "sum",
            Op::Product => "product",
            Op::Min => "min",
            Op::Max => "max",
            Op::And => "and",
            Op::Or => "or",
            Op::Xor => "xor",
            Op::Average => "average",
        }
    }

    /// As gaspi_collectives.h numbers it.
    pub(crate) fn code(self) -> u64 {
        match self {
            Op::Sum => 16,
            Op::Product => 17,
            Op::Min => 18,
            Op::Max => 19,
            Op::And => 20,
            Op::Or => 21,
            Op::Xor => 22,
            Op::Average => 23,
        }
    }

    /// Whether it is for elements of this type.
    pub(crate) fn serves(self, ty: Type) -> bool {
        !(matches!(self, Op::And | Op::Or | Op::Xor) && ty.is_float())
    }

    /// A rank's contribution at an index, to elements that hold whole numbers up to `most`.
    fn input(self, most: u64, rank: usize, ranks: usize, index: u64) -> u64 {
        let is_turn = index % ranks as u64 == rank as u64;
        match self {
            // One of all has a 2, so that the product never leaves any type.
            Op::Product => 1 + u64::from(is_turn),
            // One of all has so much that the sum can be divided, if an element can hold that.
            Op::Average => {
                let all = ranks as u64;
                let each = if 2 * all <= most { index % 2 } else { 0 };
                each + if is_turn && all <= most { all } else { 0 }
            }
            // One in turn has all where an element cannot count the ranks.
            Op::Sum if ranks as u64 >= most => u64::from(is_turn) * (1 + index % 2),
            // One in turn has a 1 more, so that sums stay small.
            _ if ranks > 16 => u64::from(is_turn) + index % 2,
            _ => (index + rank as u64) % 4,
        }
    }

    /// All of them combined.
    fn combined(self, most: u64, ranks: usize, index: u64) -> u64 {
        let all = (0..ranks).map(|rank| self.input(most, rank, ranks, index));
        let all = all.reduce(|one, two| match self {
            Op::Sum | Op::Average => one + two,
            Op::Product => one * two,
            Op::Min => one.min(two),
            Op::Max => one.max(two),
            Op::And => one & two,
            Op::Or => one | two,
            Op::Xor => one ^ two,
        });
        let all = all.unwrap_or_default();
        if self == Op::Average { all / ranks as u64 } else { all }
    }
}

/// Elements that repeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pattern {
    bytes: Vec<u8>,
    element: usize,
}

impl Pattern {
    fn new(ty: Type, ranks: usize, round: u64, value: impl Fn(u64) -> u64) -> Pattern {
        // All that values depend on: index modulo 4 and modulo the ranks.
        let period = 4 * ranks as u64;
        let shift = round % 61;
        let bytes = (0..period).flat_map(|index| ty.encode(value(index + shift))).collect();
        Pattern { bytes, element: ty.bytes() }
    }

    /// What a rank contributes in a round.
    pub(crate) fn input(ty: Type, op: Op, rank: usize, ranks: usize, round: u64) -> Pattern {
        Pattern::new(ty, ranks, round, |index| op.input(ty.whole_max(), rank, ranks, index))
    }

    /// What all contributions come to.
    pub(crate) fn combined(ty: Type, op: Op, ranks: usize, round: u64) -> Pattern {
        Pattern::new(ty, ranks, round, |index| op.combined(ty.whole_max(), ranks, index))
    }

    /// The stretches of `count` elements that begin with element `first` of the pattern: where each
    /// begins, in elements, and its bytes.
    fn stretches(&self, count: usize, first: usize) -> impl Iterator<Item = (usize, &[u8])> {
        let period = self.bytes.len() / self.element;
        let mut done = 0;
        std::iter::from_fn(move || {
            if done == count {
                return None;
            }
            let (at, from) = (done, (first + done) % period);
            let some = (period - from).min(count - done);
            done += some;
            Some((at, &self.bytes[from * self.element..(from + some) * self.element]))
        })
    }

    /// Writes `count` elements at element `at` of a region.
    pub(crate) fn write(&self, to: Region<'_>, at: usize, count: usize, first: usize) {
        for (place, bytes) in self.stretches(count, first) {
            to.put((at + place) * self.element, bytes);
        }
    }

    /// How many of `count` elements at element `at` of a region are different.
    pub(crate) fn wrong(&self, of: Region<'_>, at: usize, count: usize, first: usize) -> u64 {
        let wrong = |place: usize, bytes: &[u8]| {
            let found = of.get((at + place) * self.element, bytes.len());
            if found == bytes {
                return 0;
            }
            let pairs = found.chunks(self.element).zip(bytes.chunks(self.element));
            pairs.filter(|(found, wanted)| found != wanted).count() as u64
        };
        self.stretches(count, first).map(|(place, bytes)| wrong(place, bytes)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_same_in_every_type() {
        assert_eq!((half(1), half(2), half(3), half(0)), (0x3c00, 0x4000, 0x4200, 0));
        assert_eq!(half(2047), 0x67ff);
        assert_eq!(Type::Bf16.encode(3), 0x4040u16.to_ne_bytes());
        assert_eq!(Type::I8.encode(200), [200]);
        assert_eq!(Type::F64.encode(3), 3f64.to_ne_bytes());
        for ty in Type::value_variants() {
            assert_eq!(ty.encode(5).len(), ty.bytes());
            assert_eq!(ty.to_possible_value().unwrap().get_name(), ty.name());
        }
    }

    #[test]
    fn combinations_stay_small_and_are_what_they_are_called() {
        for ranks in [1, 2, 3, 5, 16, 17, 100, 300, 3000] {
            for index in (0..8).chain(ranks as u64 - 1..ranks as u64 + 3) {
                for ty in [Type::I8, Type::Bf16, Type::F16, Type::F32] {
                    let most = ty.whole_max();
                    let of = |op: Op| {
                        let input = |rank| op.input(most, rank, ranks, index);
                        let inputs: Vec<u64> = (0..ranks).map(input).collect();
                        (inputs.iter().sum::<u64>(), inputs, op.combined(most, ranks, index))
                    };
                    let (sum, _, combined) = of(Op::Sum);
                    assert!(sum == combined && sum <= most, "{ty:?} {ranks} {index}: {sum}");
                    let (sum, _, combined) = of(Op::Average);
                    assert!(sum <= most, "{ty:?} {ranks} {index}: {sum}");
                    assert_eq!(sum, combined * ranks as u64);
                    assert!(2 * ranks as u64 > most || combined == 1 + index % 2);
                    let (_, inputs, combined) = of(Op::Max);
                    assert_eq!(combined, inputs.into_iter().max().unwrap());
                    assert_eq!(of(Op::Product).2, 2);
                }
            }
        }
        assert!(Op::Xor.serves(Type::U8) && !Op::Xor.serves(Type::Bf16));
    }

    #[test]
    fn each_type_holds_the_whole_numbers_that_it_is_said_to() {
        let most = Type::Bf16.whole_max();
        assert_ne!(Type::Bf16.encode(most), Type::Bf16.encode(most - 1));
        assert_eq!(Type::Bf16.encode(most), Type::Bf16.encode(most + 1));
        assert_eq!(half(2048), 0x6800);
    }

    #[test]
    fn a_pattern_finds_what_was_not_written_by_it() {
        let mut words = vec![0u64; 100];
        // SAFETY: the vector lives to the end of the test.
        let region = unsafe { Region::new(words.as_mut_ptr().cast(), 800) };
        let pattern = Pattern::input(Type::U16, Op::Sum, 1, 3, 7);
        pattern.write(region, 5, 300, 2);
        assert_eq!(pattern.wrong(region, 5, 300, 2), 0);
        assert_eq!(pattern.wrong(region, 10, 100, 7), 0);
        assert!(pattern.wrong(region, 5, 300, 3) > 200);
        assert!(Pattern::input(Type::U16, Op::Sum, 1, 3, 8).wrong(region, 5, 300, 2) > 200);
        region.put(2 * 20, &[9, 9]);
        assert_eq!(pattern.wrong(region, 5, 300, 2), 1);
    }
}
