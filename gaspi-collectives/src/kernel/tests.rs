//! The kernels against a plain oracle, for every type, operation and instruction set.

use std::iter::successors;

use half::{bf16, f16};
use proptest::prelude::*;

use super::divide::divide_with;
use super::reduce::{Isa, average_with, fold_with};
use super::*;
use crate::datatype::{DataType, Operation};

/// Room for an element of any type; those of fewer bytes are the first ones.
type Raw = [u8; 8];

macro_rules! integer_oracle {
    ($element:ty, $op:expr, $column:expr) => {{
        let width = size_of::<$element>();
        let values =
            $column.iter().map(|raw| <$element>::from_le_bytes(raw[..width].try_into().unwrap()));
        let result = match $op {
            Operation::Min => values.min(),
            Operation::Max => values.max(),
            Operation::Sum | Operation::Average => values.reduce(<$element>::wrapping_add),
            Operation::Product => values.reduce(<$element>::wrapping_mul),
            Operation::And => values.reduce(|left, right| left & right),
            Operation::Or => values.reduce(|left, right| left | right),
            Operation::Xor => values.reduce(|left, right| left ^ right),
        };
        result.unwrap().to_le_bytes().to_vec()
    }};
}

/// Elements of `$element`, combined as `$wide`.
macro_rules! float_oracle {
    ($element:ty, $wide:ty, $widen:expr, $narrow:expr, $op:expr, $column:expr) => {{
        let width = size_of::<$element>();
        // One contribution is copied, whatever it is.
        if let [only] = $column {
            return only[..width].to_vec();
        }
        let values: Vec<$wide> = $column
            .iter()
            .map(|raw| $widen(<$element>::from_le_bytes(raw[..width].try_into().unwrap())))
            .collect();
        let mut result = values[0];
        for value in &values[1..] {
            match $op {
                Operation::Min if *value < result => result = *value,
                Operation::Max if *value > result => result = *value,
                Operation::Sum | Operation::Average => result += *value,
                Operation::Product => result *= *value,
                _ => {}
            }
        }
        if result.is_nan() || values.iter().any(|value| value.is_nan()) {
            <$element>::NAN.to_le_bytes().to_vec()
        } else {
            $narrow(result).to_le_bytes().to_vec()
        }
    }};
}

fn oracle(ty: DataType, op: Operation, column: &[Raw]) -> Vec<u8> {
    match ty {
        DataType::I8 => integer_oracle!(i8, op, column),
        DataType::U8 => integer_oracle!(u8, op, column),
        DataType::I16 => integer_oracle!(i16, op, column),
        DataType::U16 => integer_oracle!(u16, op, column),
        DataType::I32 => integer_oracle!(i32, op, column),
        DataType::U32 => integer_oracle!(u32, op, column),
        DataType::I64 => integer_oracle!(i64, op, column),
        DataType::U64 => integer_oracle!(u64, op, column),
        DataType::F16 => {
            float_oracle!(f16, f32, f16::to_f32_const, f16::from_f32_const, op, column)
        }
        DataType::Bf16 => {
            float_oracle!(bf16, f32, bf16::to_f32_const, bf16::from_f32_const, op, column)
        }
        DataType::F32 => float_oracle!(f32, f32, f32::from, f32::from, op, column),
        DataType::F64 => float_oracle!(f64, f64, f64::from, f64::from, op, column),
    }
}

/// Values that comparisons, roundings and carries stumble over.
fn special(ty: DataType) -> Vec<u64> {
    match ty {
        // Zeros, infinities, NaNs of all kinds, the smallest, the largest, one and next to it.
        DataType::F16 => vec![
            0, 0x8000, 0x7c00, 0xfc00, 0x7e00, 0xfe12, 0x7c01, 1, 0x8001, 0x3ff, 0x400, 0x7bff,
            0xfbff, 0x3c00, 0x3c01, 0x1000, 0x6800,
        ],
        DataType::Bf16 => vec![
            0, 0x8000, 0x7f80, 0xff80, 0x7fc0, 0xffff, 0x7f81, 1, 0x8001, 0x7f, 0x80, 0x7f7f,
            0xff7f, 0x3f80, 0x3f81, 0x3b80, 0x3b00,
        ],
        DataType::F32 => {
            vec![0, 1 << 31, 0x7f80_0000, 0xff80_0000, 0x7fc0_0000, 0xffc1_2345, 0x7f80_0001, 1]
        }
        DataType::F64 => vec![
            0,
            1 << 63,
            0x7ff0 << 48,
            0xfff0 << 48,
            0x7ff8 << 48,
            0xfff8_0000_1234_5678,
            0x7ff0_0000_0000_0001,
            1,
        ],
        _ => {
            let sign = 1 << (ty.bytes() * 8 - 1);
            vec![0, 1, u64::MAX, sign, sign - 1]
        }
    }
}

/// Raw bits of an element: anything, and often something special.
fn raw(ty: DataType) -> impl Strategy<Value = Raw> {
    prop_oneof![
        2 => any::<u64>().prop_map(u64::to_le_bytes),
        1 => proptest::sample::select(special(ty)).prop_map(u64::to_le_bytes),
    ]
}

#[derive(Debug, Clone)]
struct Case {
    ty: DataType,
    op: Operation,
    /// One row for each source.
    rows: Vec<Vec<Raw>>,
    shift: usize,
}

fn combinations() -> impl Iterator<Item = (DataType, Operation)> {
    let all = DataType::ALL.into_iter().flat_map(|ty| Operation::ALL.map(|op| (ty, op)));
    all.filter(|(ty, op)| op.is_defined_for(*ty))
}

fn case() -> impl Strategy<Value = Case> {
    let combinations = proptest::sample::select(combinations().collect::<Vec<_>>());
    (combinations, 1..10_usize, 0..200_usize, 0..8_usize).prop_flat_map(
        |((ty, op), sources, count, shift)| {
            let row = proptest::collection::vec(raw(ty), count);
            proptest::collection::vec(row, sources).prop_map(move |rows| Case {
                ty,
                op,
                rows,
                shift,
            })
        },
    )
}

impl Case {
    /// The same numbers for the same seed.
    fn of_seed(seed: u64, ty: DataType, op: Operation, sources: usize, count: usize) -> Case {
        let next = |state: &u64| Some(crate::signature::mix(&[*state]));
        let mut numbers = successors(next(&seed), next);
        let mut number = || numbers.next().unwrap();
        let special = special(ty);
        let mut raw = || match number() {
            one if one % 3 == 0 => special[(one / 3) as usize % special.len()].to_le_bytes(),
            any => any.rotate_left(7).to_le_bytes(),
        };
        let rows = (0..sources).map(|_| (0..count).map(|_| raw()).collect()).collect();
        Case { ty, op, rows, shift: seed as usize % 8 }
    }

    /// The elements of a row behind `shift` bytes, so that they are not aligned.
    fn packed(&self, row: usize) -> Vec<u8> {
        let mut bytes = vec![0xee; self.shift];
        for raw in &self.rows[row] {
            bytes.extend_from_slice(&raw[..self.ty.bytes() as usize]);
        }
        bytes
    }

    fn expected(&self) -> Vec<u8> {
        let column = |i| self.rows.iter().map(|row| row[i]).collect::<Vec<Raw>>();
        (0..self.rows[0].len()).flat_map(|i| oracle(self.ty, self.op, &column(i))).collect()
    }

    /// Compares every way to fold with the oracle.
    fn check(&self) {
        let Case { ty, op, shift, .. } = *self;
        let expected = self.expected();
        let inputs: Vec<Vec<u8>> = (0..self.rows.len()).map(|row| self.packed(row)).collect();
        let sources: Vec<Source<'_>> =
            inputs.iter().map(|bytes| Source::of(&bytes[shift..])).collect();
        for &isa in Isa::available() {
            let what = format!("{op} of {} x {} x {ty}, {isa:?}", sources.len(), expected.len());
            let mut apart = [const { Vec::new() }; 3];
            apart.fill(vec![0xdd; expected.len() + 5]);
            let targets =
                apart.each_mut().map(|bytes| Target::of(&mut bytes[3..][..expected.len()]));
            fold_with(isa, op, ty, &targets, &sources);
            for bytes in apart {
                assert_eq!(bytes[3..][..expected.len()], expected, "{what}, apart");
                assert_eq!(
                    (&bytes[..3], &bytes[expected.len() + 3..]),
                    (&[0xdd; 3][..], &[0xdd; 2][..])
                );
            }

            // Each source a target.
            let mut places = inputs.clone();
            let targets: Vec<Target<'_>> =
                places.iter_mut().map(|bytes| Target::of(&mut bytes[shift..])).collect();
            let from: Vec<Source<'_>> = targets.iter().map(|target| target.source()).collect();
            fold_with(isa, op, ty, &targets, &from);
            for bytes in places {
                assert_eq!(bytes[shift..], expected, "{what}, in place");
            }
        }
        let mut place = inputs[0].clone();
        accumulate(op, ty, Target::of(&mut place[shift..]), &sources[1..]);
        assert_eq!(place[shift..], expected, "{op} of {ty}, accumulated");
    }
}

proptest! {
    #[test]
    fn every_way_to_combine_agrees_with_the_oracle(case in case()) {
        case.check();
    }
}

/// The lengths end behind pieces of every instruction set, small ones and single elements. The
/// longest ends with less than half of it backwards.
#[test]
fn every_operation_on_every_type_agrees_with_the_oracle() {
    for (seed, (ty, op)) in combinations().enumerate() {
        let long = 2 * super::reduce::BACKWARDS_BYTES + 1000;
        for (sources, bytes) in [(2, 0), (2, 1000), (3, 256 + 16 + 8), (5, 120), (1, 40), (2, long)]
        {
            let count = bytes / ty.bytes() as usize;
            Case::of_seed(seed as u64, ty, op, sources, count).check();
        }
    }
}

/// Sums that are divided as they are made have the bits of sums that are divided later.
#[test]
fn averages_in_one_pass_have_the_bits_of_two() {
    for (seed, (ty, n)) in DataType::ALL.into_iter().zip(1_u32..).enumerate() {
        for (sources, bytes) in [(1, 72), (2, 1000), (3, 256 + 16 + 8), (5, 120), (2, 0)] {
            let count = bytes / ty.bytes() as usize;
            let case = Case::of_seed(seed as u64, ty, Operation::Sum, sources, count);
            let rows: Vec<Vec<u8>> = (0..sources).map(|row| case.packed(row)).collect();
            let srcs: Vec<Source<'_>> =
                rows.iter().map(|row| Source::of(&row[case.shift..])).collect();
            for &isa in Isa::available() {
                for n in [n, 1, 2, 3, 8] {
                    let (mut one, mut two) = (vec![0xee; bytes], vec![0xee; bytes]);
                    let dsts = [Target::of(&mut one), Target::of(&mut two)];
                    let done = average_with(isa, ty, &dsts, &srcs, n);
                    assert_eq!(done, matches!(ty, DataType::F32 | DataType::F64), "{ty}");
                    let mut expected = vec![0xee; bytes];
                    if done {
                        let sum = Target::of(&mut expected);
                        fold_with(isa, Operation::Sum, ty, &[sum], &srcs);
                        divide_with(isa, ty, Target::of(&mut expected), n);
                    }
                    assert!(one == expected && two == expected, "{ty} / {n}, {isa:?}");
                }
            }
        }
    }
}

/// Powers of two are multiplied by, which has to give the bits of quotients, also of those that
/// have fewer bits than others or are rounded to 0.
#[test]
fn averages_of_powers_of_two_have_the_bits_of_quotients() {
    let special = [0, 1, 2, 3, 5, 0x7f_ffff, 0x80_0000, 0x80_0001, 0x7f7f_ffff, 0x7f80_0000];
    let spread = (0..4096_u32).map(|i| i.wrapping_mul(0x9e37_79b9));
    let small = (0..512_u32).map(|i| i * 0x1_0007);
    let sums: Vec<f32> =
        special.into_iter().chain(spread).chain(small).map(f32::from_bits).collect();
    let singles: Vec<f32> = sums.iter().flat_map(|sum| [*sum, -*sum]).collect();
    let doubles: Vec<f64> = singles
        .iter()
        .map(|sum| f64::from(*sum))
        .chain((0..4096_u64).map(|i| f64::from_bits(i.wrapping_mul(0x9e37_79b9_7f4a_7c15))))
        .chain((0..512).map(f64::from_bits))
        .collect();
    for n in [1, 2, 4, 64, 1 << 15, 1 << 31] {
        for &isa in Isa::available() {
            let mut place = singles.clone();
            divide_with(isa, DataType::F32, Target::of(bytemuck::cast_slice_mut(&mut place)), n);
            for (sum, found) in singles.iter().zip(&place) {
                let quotient = sum / n as f32;
                let expected = if quotient.is_nan() { f32::NAN } else { quotient };
                assert_eq!(expected.to_bits(), found.to_bits(), "{sum:e} / {n}, {isa:?}");
            }
            let mut place = doubles.clone();
            divide_with(isa, DataType::F64, Target::of(bytemuck::cast_slice_mut(&mut place)), n);
            for (sum, found) in doubles.iter().zip(&place) {
                let quotient = sum / f64::from(n);
                let expected = if quotient.is_nan() { f64::NAN } else { quotient };
                assert_eq!(expected.to_bits(), found.to_bits(), "{sum:e} / {n}, {isa:?}");
            }
        }
    }
}

/// Quotients by numbers of ranks, with those that are exact in the middle of two.
#[test]
fn averages_are_divided_as_documented() {
    fn check<const N: usize>(ty: DataType, of: &[[u8; N]], n: u32, expected: &[[u8; N]]) {
        for &isa in Isa::available() {
            let mut place = [&[0xee], of.concat().as_slice()].concat();
            divide_with(isa, ty, Target::of(&mut place[1..]), n);
            assert!(place[1..] == expected.concat(), "{ty} / {n}, {isa:?}");
        }
    }
    check(
        DataType::I8,
        &[-128, -7, 7, 127].map(i8::to_le_bytes),
        2,
        &[-64, -3, 3, 63].map(i8::to_le_bytes),
    );
    check(DataType::I8, &[-128, 127].map(i8::to_le_bytes), 200, &[0_i8, 0].map(i8::to_le_bytes));
    check(DataType::U8, &[255_u8].map(u8::to_le_bytes), 65535, &[[0]]);
    check(DataType::I16, &[-32768_i16].map(i16::to_le_bytes), 3, &[(-10922_i16).to_le_bytes()]);
    check(DataType::U16, &[65535_u16].map(u16::to_le_bytes), 65535, &[1_u16.to_le_bytes()]);
    check(
        DataType::I32,
        &[i32::MIN, -1].map(i32::to_le_bytes),
        1,
        &[i32::MIN, -1].map(i32::to_le_bytes),
    );
    check(DataType::U32, &[u32::MAX].map(u32::to_le_bytes), 7, &[(u32::MAX / 7).to_le_bytes()]);
    check(
        DataType::I64,
        &[i64::MIN, -5].map(i64::to_le_bytes),
        3,
        &[i64::MIN / 3, -1].map(i64::to_le_bytes),
    );
    check(DataType::U64, &[u64::MAX].map(u64::to_le_bytes), 10, &[(u64::MAX / 10).to_le_bytes()]);
    check(
        DataType::F32,
        &[1.0_f32, -f32::NAN].map(f32::to_le_bytes),
        3,
        &[1.0 / 3.0, f32::NAN].map(f32::to_le_bytes),
    );
    check(
        DataType::F64,
        &[1.0, f64::INFINITY].map(f64::to_le_bytes),
        3,
        &[1.0 / 3.0, f64::INFINITY].map(f64::to_le_bytes),
    );
    // All there are, and some at the end that fill no vector.
    let sums: Vec<u16> = (0..=u16::MAX).chain(1020..1025).collect();
    let thirds = sums.iter().map(|bits| {
        let sum = f16::from_bits(*bits);
        if sum.is_nan() { f16::NAN } else { f16::from_f32_const(sum.to_f32_const() / 3.0) }
    });
    let thirds: Vec<[u8; 2]> = thirds.map(f16::to_le_bytes).collect();
    let raw: Vec<[u8; 2]> = sums.iter().map(|bits| bits.to_le_bytes()).collect();
    check(DataType::F16, &raw, 3, &thirds);
    let halves = sums.iter().map(|bits| {
        let sum = bf16::from_bits(*bits);
        if sum.is_nan() { bf16::NAN } else { bf16::from_f32_const(sum.to_f32_const() / 2.0) }
    });
    let halves: Vec<[u8; 2]> = halves.map(bf16::to_le_bytes).collect();
    check(DataType::Bf16, &raw, 2, &halves);
}

#[test]
fn halves_are_rounded_once() {
    // 2048 + 1 + 1 is 2050 in f32; rounded after each addition it stays 2048.
    let inputs = [2048.0, 1.0, 1.0].map(|value| f16::from_f32_const(value).to_le_bytes());
    let sources = inputs.each_ref().map(|bytes| Source::of(bytes));
    let mut sum = [0; 2];
    fold(Operation::Sum, DataType::F16, &[Target::of(&mut sum)], &sources);
    assert_eq!(f16::from_le_bytes(sum).to_f32_const(), 2050.0);
    let inputs = [256.0, 1.0, 1.0].map(|value| bf16::from_f32_const(value).to_le_bytes());
    let sources = inputs.each_ref().map(|bytes| Source::of(bytes));
    fold(Operation::Sum, DataType::Bf16, &[Target::of(&mut sum)], &sources);
    assert_eq!(bf16::from_le_bytes(sum).to_f32_const(), 258.0);
}

#[test]
fn nan_stays_and_integers_wrap() {
    let fold_f32 = |op, values: &[f32]| {
        let inputs: Vec<[u8; 4]> = values.iter().map(|value| value.to_le_bytes()).collect();
        let sources: Vec<Source<'_>> = inputs.iter().map(|bytes| Source::of(bytes)).collect();
        let mut result = [0; 4];
        fold(op, DataType::F32, &[Target::of(&mut result)], &sources);
        f32::from_le_bytes(result)
    };
    assert!(fold_f32(Operation::Min, &[1.0, f32::NAN, 0.0]).is_nan());
    assert!(fold_f32(Operation::Max, &[f32::NAN, 1.0]).is_nan());
    assert_eq!(
        fold_f32(Operation::Sum, &[f32::INFINITY, f32::NEG_INFINITY, 1.0]).to_bits(),
        f32::NAN.to_bits()
    );
    assert_eq!(fold_f32(Operation::Min, &[0.0, -0.0]).to_bits(), 0.0_f32.to_bits());
    assert_eq!(fold_f32(Operation::Max, &[-0.0, 0.0]).to_bits(), (-0.0_f32).to_bits());

    let mut sum = i32::MAX.to_le_bytes();
    let one = 1_i32.to_le_bytes();
    accumulate(Operation::Sum, DataType::I32, Target::of(&mut sum), &[Source::of(&one)]);
    assert_eq!(i32::from_le_bytes(sum), i32::MIN);
}

#[test]
#[should_panic(expected = "not inside")]
fn parts_beyond_the_end_are_refused() {
    let bytes = [0; 8];
    Source::of(&bytes).part(4, 5);
}

#[test]
#[should_panic(expected = "length of the target")]
fn a_shorter_source_is_refused() {
    let mut target = [0; 8];
    let (long, short) = ([0; 8], [0; 4]);
    let sources = [Source::of(&long), Source::of(&short)];
    fold(Operation::Sum, DataType::F32, &[Target::of(&mut target)], &sources);
}

#[test]
#[should_panic(expected = "xor is not defined for f64")]
fn bits_of_floats_are_refused() {
    let mut target = [0; 8];
    accumulate(Operation::Xor, DataType::F64, Target::of(&mut target), &[Source::of(&[0; 8])]);
}
