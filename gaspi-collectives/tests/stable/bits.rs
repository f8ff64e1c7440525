//! Contributions whose sums depend on the order in which they are added, and the bits that an
//! operation has had before.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use gaspi_collectives::algorithms::Collective;
use gaspi_collectives::{DataType, Operation, bf16, f16};

/// An operation of which all ranks know the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Case {
    pub(crate) collective: Collective,
    pub(crate) ty: DataType,
    pub(crate) op: Operation,
    /// Elements: of a block for a reduce-scatter.
    pub(crate) count: usize,
    pub(crate) root: usize,
}

impl Case {
    /// Elements that each rank contributes.
    pub(crate) fn input_len(&self, ranks: usize) -> usize {
        if self.collective == Collective::ReduceScatter { self.count * ranks } else { self.count }
    }

    /// Bytes of the result of a rank.
    pub(crate) fn output_bytes(&self, rank: usize) -> usize {
        match self.collective {
            Collective::Reduce if rank != self.root => 0,
            _ => self.count * self.ty.bytes() as usize,
        }
    }
}

/// The bits of an element: random digits, sizes that differ by orders of magnitude, and some so
/// small that they are not normal.
fn pattern(ty: DataType, rank: usize, index: usize) -> u64 {
    let mut z = (rank * 1_000_003 + index + 1) as u64;
    z = z.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^= z >> 31;
    let sign = z >> 63;
    let small = index % 13 == 5;
    // A size from 2^-7 to 2^8; products of eight stay numbers.
    let size = (z >> 40) & 15;
    match ty {
        DataType::F16 => sign << 15 | if small { 0 } else { 8 + size } << 10 | z & 0x3ff,
        DataType::Bf16 => sign << 15 | if small { 0 } else { 120 + size } << 7 | z & 0x7f,
        DataType::F32 => sign << 31 | if small { 0 } else { 120 + size } << 23 | z & 0x7f_ffff,
        DataType::F64 => {
            sign << 63 | if small { 0 } else { 1016 + size } << 52 | z & 0xf_ffff_ffff_ffff
        }
        _ => z,
    }
}

/// What a rank contributes.
pub(crate) fn contribution(case: &Case, rank: usize, ranks: usize) -> Vec<u8> {
    let bytes = case.ty.bytes() as usize;
    let element = |index| pattern(case.ty, rank, index).to_le_bytes().into_iter().take(bytes);
    (0..case.input_len(ranks)).flat_map(element).collect()
}

/// Contributions of some ranks combined one behind the other, and rounded once: what ranks of one
/// host do. `None` for integers, whose order does not matter.
pub(crate) fn one_behind_the_other(case: &Case, order: &[usize], me: usize) -> Option<Vec<u8>> {
    let ranks = order.len();
    let first = if case.collective == Collective::ReduceScatter { me * case.count } else { 0 };
    let elements = first..first + case.output_bytes(me) / case.ty.bytes() as usize;
    let combine = |one: f64, two: f64, round: fn(f64) -> f64| match case.op {
        Operation::Sum | Operation::Average => round(one + two),
        Operation::Product => round(one * two),
        Operation::Min => one.min(two),
        _ => one.max(two),
    };
    // Sums and products of two f32 are exact enough in f64 to be rounded once more.
    let single = |value: f64| f64::from(value as f32);
    let folded = |index: usize, widen: &dyn Fn(u64) -> f64, round: fn(f64) -> f64| {
        let values = order.iter().map(|rank| widen(pattern(case.ty, *rank, index)));
        values.reduce(|one, two| combine(one, two, round)).unwrap_or_default()
    };
    let average = case.op == Operation::Average;
    let bytes = |index: usize| -> Vec<u8> {
        match case.ty {
            DataType::F64 => {
                let sum = folded(index, &f64::from_bits, |value| value);
                let result = if average { sum / ranks as f64 } else { sum };
                result.to_le_bytes().to_vec()
            }
            DataType::F32 => {
                let sum = folded(index, &|bits| f32::from_bits(bits as u32).into(), single) as f32;
                let result = if average { sum / ranks as f32 } else { sum };
                result.to_le_bytes().to_vec()
            }
            DataType::F16 => {
                let widen = |bits: u64| f16::from_bits(bits as u16).to_f64();
                let sum = f16::from_f32(folded(index, &widen, single) as f32);
                let result = f16::from_f32(sum.to_f32() / ranks as f32);
                (if average { result } else { sum }).to_le_bytes().to_vec()
            }
            _ => {
                let widen = |bits: u64| bf16::from_bits(bits as u16).to_f64();
                let sum = bf16::from_f32(folded(index, &widen, single) as f32);
                let result = bf16::from_f32(sum.to_f32() / ranks as f32);
                (if average { result } else { sum }).to_le_bytes().to_vec()
            }
        }
    };
    (!case.ty.is_integer()).then(|| elements.flat_map(bytes).collect())
}

/// An operation on so many ranks, and a rank of them.
type Key = (Case, usize, usize);

/// The bits that operations have had, by what they may depend on.
#[derive(Default)]
pub(crate) struct Bits(Mutex<HashMap<Key, Vec<u8>>>);

impl Bits {
    /// Compares with what was found before, and keeps what is found for the first time.
    ///
    /// # Errors
    /// Which element differs.
    pub(crate) fn compare(
        &self,
        case: &Case,
        (rank, ranks): (usize, usize),
        found: &[u8],
    ) -> Result<(), String> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known.entry((*case, rank, ranks)).or_insert_with(|| found.to_vec());
        match before.iter().zip(found).position(|(one, other)| one != other) {
            None if before.len() == found.len() => Ok(()),
            at => Err(format!(
                "rank {rank} of {ranks}, {case:?}: element {:?} has other bits than before",
                at.map(|at| at / case.ty.bytes() as usize)
            )),
        }
    }
}
