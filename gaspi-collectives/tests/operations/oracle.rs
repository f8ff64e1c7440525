//! What collective operations have to give, worked out in the plainest way.
//!
//! Elements are numbers that every type represents exactly, and so small that sums and products of
//! all ranks are exact too: the order in which an algorithm combines does not matter.

use gaspi_collectives::algorithms::Collective;
use gaspi_collectives::{DataType, Operation, bf16, f16};

/// One operation, as all ranks ask for it.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) collective: Collective,
    pub(crate) ty: DataType,
    pub(crate) op: Operation,
    pub(crate) count: usize,
    /// Elements by member, where blocks differ.
    pub(crate) counts: Vec<usize>,
    /// All-to-all with blocks that differ.
    pub(crate) uneven: bool,
    pub(crate) root: usize,
    pub(crate) in_place: bool,
}

impl Case {
    /// Elements of the block of a member.
    fn block(&self, member: usize) -> usize {
        self.counts.get(member).copied().unwrap_or(self.count)
    }

    /// Where it begins.
    pub(crate) fn begin(&self, member: usize) -> usize {
        (0..member).map(|m| self.block(m)).sum()
    }

    /// Elements that one rank sends to another, all-to-all.
    pub(crate) fn exchanged(&self, from: usize, to: usize) -> usize {
        if self.uneven { (self.count * (from * 5 + to * 3 + 1)) % 7 } else { self.count }
    }

    /// Elements of a rank's input.
    pub(crate) fn input_len(&self, me: usize, n: usize) -> usize {
        match self.collective {
            Collective::Allreduce | Collective::Reduce => self.count,
            Collective::Broadcast => {
                if me == self.root {
                    self.count
                } else {
                    0
                }
            }
            Collective::ReduceScatter => self.begin(n),
            Collective::Allgather | Collective::Gather => self.block(me),
            Collective::Scatter => {
                if me == self.root {
                    self.begin(n)
                } else {
                    0
                }
            }
            Collective::Alltoall => (0..n).map(|to| self.exchanged(me, to)).sum(),
            Collective::Barrier => 0,
        }
    }

    /// Element `index` of the input of a rank.
    pub(crate) fn input(&self, rank: usize, index: usize) -> f64 {
        let range = if self.op == Operation::Product { 2 } else { 6 };
        ((rank * 7 + index * 3 + index / 50) % range + 1) as f64
    }

    /// The output of a rank.
    pub(crate) fn output(&self, me: usize, n: usize) -> Vec<f64> {
        let combined = |index: usize| {
            let all = (0..n).map(|rank| self.input(rank, index));
            self.finish(all.reduce(|a, b| self.combine(a, b)).unwrap_or(0.0), n)
        };
        let gathered = || {
            (0..n)
                .flat_map(|rank| (0..self.block(rank)).map(move |i| self.input(rank, i)))
                .collect()
        };
        match self.collective {
            Collective::Reduce | Collective::Gather if me != self.root => Vec::new(),
            Collective::Allreduce | Collective::Reduce => (0..self.count).map(combined).collect(),
            Collective::Broadcast => (0..self.count).map(|i| self.input(self.root, i)).collect(),
            Collective::ReduceScatter => {
                (0..self.block(me)).map(|i| combined(self.begin(me) + i)).collect()
            }
            Collective::Allgather | Collective::Gather => gathered(),
            Collective::Scatter => {
                (0..self.block(me)).map(|i| self.input(self.root, self.begin(me) + i)).collect()
            }
            Collective::Alltoall => (0..n)
                .flat_map(|from| {
                    let begin: usize = (0..me).map(|to| self.exchanged(from, to)).sum();
                    (0..self.exchanged(from, me)).map(move |i| self.input(from, begin + i))
                })
                .collect(),
            Collective::Barrier => Vec::new(),
        }
    }

    fn combine(&self, a: f64, b: f64) -> f64 {
        let bits = |f: fn(i64, i64) -> i64| f(a as i64, b as i64) as f64;
        match self.op {
            Operation::Min => a.min(b),
            Operation::Max => a.max(b),
            Operation::Product => a * b,
            Operation::And => bits(|a, b| a & b),
            Operation::Or => bits(|a, b| a | b),
            Operation::Xor => bits(|a, b| a ^ b),
            _ => a + b,
        }
    }

    fn finish(&self, sum: f64, n: usize) -> f64 {
        if self.op != Operation::Average {
            return sum;
        }
        match self.ty {
            DataType::F64 => sum / n as f64,
            DataType::F32 => f64::from(sum as f32 / n as f32),
            DataType::F16 => f16::from_f32(sum as f32 / n as f32).to_f64(),
            DataType::Bf16 => bf16::from_f32(sum as f32 / n as f32).to_f64(),
            _ => (sum / n as f64).trunc(),
        }
    }
}

/// A number as an element.
pub(crate) fn encode(ty: DataType, value: f64, to: &mut [u8]) {
    match ty {
        DataType::I8 => to.copy_from_slice(&(value as i8).to_ne_bytes()),
        DataType::U8 => to.copy_from_slice(&(value as u8).to_ne_bytes()),
        DataType::I16 => to.copy_from_slice(&(value as i16).to_ne_bytes()),
        DataType::U16 => to.copy_from_slice(&(value as u16).to_ne_bytes()),
        DataType::I32 => to.copy_from_slice(&(value as i32).to_ne_bytes()),
        DataType::U32 => to.copy_from_slice(&(value as u32).to_ne_bytes()),
        DataType::I64 => to.copy_from_slice(&(value as i64).to_ne_bytes()),
        DataType::U64 => to.copy_from_slice(&(value as u64).to_ne_bytes()),
        DataType::F16 => to.copy_from_slice(&f16::from_f64(value).to_ne_bytes()),
        DataType::Bf16 => to.copy_from_slice(&bf16::from_f64(value).to_ne_bytes()),
        DataType::F32 => to.copy_from_slice(&(value as f32).to_ne_bytes()),
        DataType::F64 => to.copy_from_slice(&value.to_ne_bytes()),
        other => panic!("no oracle for {other}"),
    }
}

/// Elements of numbers.
pub(crate) fn encode_all(ty: DataType, values: impl Iterator<Item = f64>, to: &mut [u8]) {
    let bytes = ty.bytes() as usize;
    to.chunks_exact_mut(bytes).zip(values).for_each(|(to, value)| encode(ty, value, to));
}
