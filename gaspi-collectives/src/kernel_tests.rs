//! The kernels against a plain oracle, for every type, operation and instruction set.

use proptest::prelude::*;

use super::*;

#[cfg(target_arch = "x86_64")]
fn isas() -> Vec<Isa> {
    let mut isas = vec![Isa::Baseline];
    if Isa::detect() != Isa::Baseline {
        isas.push(Isa::detect());
    }
    isas
}

#[cfg(not(target_arch = "x86_64"))]
fn isas() -> Vec<Isa> {
    vec![Isa::Baseline]
}

macro_rules! integer_oracle {
    ($name:ident, $element:ty) => {
        fn $name(op: Operation, column: &[[u8; 8]]) -> Vec<u8> {
            let width = size_of::<$element>();
            let values = column
                .iter()
                .map(|raw| <$element>::from_le_bytes(raw[..width].try_into().unwrap()));
            let result = match op {
                Operation::Min => values.min(),
                Operation::Max => values.max(),
                Operation::Sum => values.reduce(<$element>::wrapping_add),
            };
            result.unwrap().to_le_bytes().to_vec()
        }
    };
}

macro_rules! float_oracle {
    ($name:ident, $element:ty) => {
        fn $name(op: Operation, column: &[[u8; 8]]) -> Vec<u8> {
            let width = size_of::<$element>();
            let values: Vec<$element> = column
                .iter()
                .map(|raw| <$element>::from_le_bytes(raw[..width].try_into().unwrap()))
                .collect();
            let mut result = values[0];
            for value in &values[1..] {
                match op {
                    Operation::Min if *value < result => result = *value,
                    Operation::Max if *value > result => result = *value,
                    Operation::Sum => result += *value,
                    _ => {}
                }
            }
            // One contribution is copied, whatever it is.
            let nan = result.is_nan() || values.iter().any(|value| value.is_nan());
            if nan && values.len() > 1 {
                result = <$element>::NAN;
            }
            result.to_le_bytes().to_vec()
        }
    };
}

integer_oracle!(oracle_i32, i32);
integer_oracle!(oracle_u32, u32);
integer_oracle!(oracle_i64, i64);
integer_oracle!(oracle_u64, u64);
float_oracle!(oracle_f32, f32);
float_oracle!(oracle_f64, f64);

fn oracle(ty: DataType, op: Operation, column: &[[u8; 8]]) -> Vec<u8> {
    match ty {
        DataType::I32 => oracle_i32(op, column),
        DataType::U32 => oracle_u32(op, column),
        DataType::F32 => oracle_f32(op, column),
        DataType::F64 => oracle_f64(op, column),
        DataType::I64 => oracle_i64(op, column),
        DataType::U64 => oracle_u64(op, column),
    }
}

/// Raw bits of an element: anything, with the values that comparisons stumble over made likely.
fn raw(ty: DataType) -> impl Strategy<Value = [u8; 8]> {
    let special: Vec<u64> = match ty {
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
        _ => vec![0, u64::MAX, 1 << 31, 1 << 63, (1 << 31) - 1, (1 << 63) - 1],
    };
    prop_oneof![
        4 => any::<u64>().prop_map(u64::to_le_bytes),
        1 => proptest::sample::select(special).prop_map(u64::to_le_bytes),
    ]
}

#[derive(Debug, Clone)]
struct Case {
    ty: DataType,
    op: Operation,
    /// One row for each source.
    rows: Vec<Vec<[u8; 8]>>,
    shift: usize,
}

fn case() -> impl Strategy<Value = Case> {
    let types = proptest::sample::select(DataType::ALL.to_vec());
    let ops = proptest::sample::select(Operation::ALL.to_vec());
    (types, ops, 1..10_usize, 0..80_usize, 0..8_usize).prop_flat_map(
        |(ty, op, sources, count, shift)| {
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

/// The bytes of a row behind `shift` others, so that elements are not aligned.
fn packed(row: &[[u8; 8]], ty: DataType, shift: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; shift];
    for raw in row {
        bytes.extend_from_slice(&raw[..ty.bytes() as usize]);
    }
    bytes
}

proptest! {
    #[test]
    fn every_way_to_combine_agrees_with_the_oracle(case in case()) {
        let Case { ty, op, rows, shift } = case;
        let count = rows[0].len();
        let expected: Vec<u8> = (0..count)
            .flat_map(|i| {
                let column: Vec<[u8; 8]> = rows.iter().map(|row| row[i]).collect();
                oracle(ty, op, &column)
            })
            .collect();
        let inputs: Vec<Vec<u8>> = rows.iter().map(|row| packed(row, ty, shift)).collect();
        let sources: Vec<Source<'_>> =
            inputs.iter().map(|bytes| Source::of(&bytes[shift..])).collect();
        for isa in isas() {
            let mut apart = vec![0; expected.len() + 3];
            fold_with(isa, op, ty, Target::of(&mut apart[3..]), &sources);
            prop_assert_eq!(&apart[3..], &expected[..]);

            let mut in_place = inputs[0].clone();
            let target = Target::of(&mut in_place[shift..]);
            accumulate_with(isa, op, ty, target, &sources[1..]);
            prop_assert_eq!(&in_place[shift..], &expected[..]);

            let mut in_place = inputs[0].clone();
            let target = Target::of(&mut in_place[shift..]);
            let mut own_first = sources.clone();
            own_first[0] = target.source();
            fold_with(isa, op, ty, target, &own_first);
            prop_assert_eq!(&in_place[shift..], &expected[..]);
        }
    }
}

#[test]
fn nan_stays_and_integers_wrap() {
    let fold_f32 = |op, values: &[f32]| {
        let inputs: Vec<[u8; 4]> = values.iter().map(|value| value.to_le_bytes()).collect();
        let sources: Vec<Source<'_>> = inputs.iter().map(|bytes| Source::of(bytes)).collect();
        let mut result = [0; 4];
        fold(op, DataType::F32, Target::of(&mut result), &sources);
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
    fold(Operation::Sum, DataType::F32, Target::of(&mut target), &sources);
}
