//! `gaspi-bench kernels`: the loops that combine elements, on one core, without a job.
//!
//! Each row is measured in turns with `a += b` of floats, as `limits` measures it, on memory of its
//! own: what counts is the ratio, which noise touches least.

use crate::failure::{Failure, Result};
use crate::memory::Region;
use crate::text::{self, parse_size};
use clap::Args;
use gaspi_collectives::kernel::{self, Source, Target};
use gaspi_collectives::{DataType, Operation, bf16, f16};
use std::hint::black_box;
use std::io::Write as _;
use std::time::Instant;

/// Sizes in the first cache, the second and none.
const SIZES: [usize; 3] = [4 << 10, 256 << 10, 16 << 20];
/// Bytes of a batch, or one call.
const BATCH: usize = 1 << 20;
/// Batches of each lane, of which the median counts.
const ROUNDS: usize = 15;
/// Buffers begin where pages do, as segments.
const PAGE: usize = 4096;

/// `kernels`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Options {
    /// Bytes of each operand, with K, M or G for powers of 1024 [default: 4K,256K,16M]
    #[arg(long, short = 's', value_name = "LIST", value_delimiter = ',', value_parser = parse_size,
          allow_hyphen_values = true)]
    sizes: Vec<usize>,

    /// Types of elements: f32,bf16 [default: all]
    #[arg(
        long = "type",
        short = 'd',
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = data_type
    )]
    types: Vec<DataType>,

    /// Operations: sum,max [default: all]
    #[arg(
        long = "operation",
        short = 'o',
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = operation
    )]
    operations: Vec<Operation>,

    /// One JSON object for each row, and nothing else
    #[arg(long)]
    json: bool,
}

fn data_type(text: &str) -> std::result::Result<DataType, String> {
    named(&DataType::ALL, text)
}

fn operation(text: &str) -> std::result::Result<Operation, String> {
    named(&Operation::ALL, text)
}

fn named<T: Copy + ToString>(all: &[T], text: &str) -> std::result::Result<T, String> {
    let names: Vec<String> = all.iter().map(T::to_string).collect();
    let found = names.iter().position(|name| name == text);
    found.map(|i| all[i]).ok_or_else(|| format!("there are {}", names.join(", ")))
}

/// Bytes per second of one operand, in GB.
struct Row {
    ty: DataType,
    op: Operation,
    size: usize,
    /// `a = a op b`.
    in_place: f64,
    /// `a = b = a op b`.
    to_both: f64,
    /// `a += b`, in floats.
    add: f64,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let mut output = std::io::stdout().lock();
    let mut print = |line: String| {
        writeln!(output, "{line}")
            .map_err(|error| Failure::run(format!("cannot write the rows: {error}")))
    };
    if !options.json {
        print(format!("# kernels by {}, on one core", kernel::instruction_set()))?;
        print("# GB/s of one operand; ratio to a += b of floats, measured in turns".to_owned())?;
        let [ty, op] = ["type", "op"];
        print(format!(
            "{ty:>5} {op:>8} {:>6} {:>9} {:>9} {:>6} {:>11}",
            "size", "a += b", "in place", "ratio", "two targets"
        ))?;
    }
    for (ty, op) in combinations(options)? {
        for size in if options.sizes.is_empty() { &SIZES[..] } else { &options.sizes } {
            let row = measure(ty, op, *size);
            print(if options.json { row.json() } else { row.line() })?;
        }
    }
    Ok(())
}

/// What was asked for, as far as it is defined.
fn combinations(options: &Options) -> Result<Vec<(DataType, Operation)>> {
    let types = if options.types.is_empty() { &DataType::ALL[..] } else { &options.types };
    let operations =
        if options.operations.is_empty() { &Operation::ALL[..] } else { &options.operations };
    let all = types.iter().flat_map(|ty| operations.iter().map(|op| (*ty, *op)));
    let defined: Vec<_> = all.filter(|(ty, op)| op.is_defined_for(*ty)).collect();
    match defined.is_empty() {
        true => Err(Failure::usage("none of these operations is defined for one of these types")),
        false => Ok(defined),
    }
}

impl Row {
    fn ratio(&self) -> f64 {
        self.in_place / self.add
    }

    fn line(&self) -> String {
        format!(
            "{:>5} {:>8} {:>6} {:>9.1} {:>9.1} {:>6.2} {:>11.1}",
            self.ty.to_string(),
            self.op.to_string(),
            text::size(self.size),
            self.add,
            self.in_place,
            self.ratio(),
            self.to_both
        )
    }

    fn json(&self) -> String {
        let object = serde_json::json!({
            "test": "kernels",
            "type": self.ty.to_string(),
            "operation": self.op.to_string(),
            "size": self.size,
            "add_gb_per_s": self.add,
            "in_place_gb_per_s": self.in_place,
            "two_targets_gb_per_s": self.to_both,
            "ratio": self.ratio(),
        });
        object.to_string()
    }
}

/// Memory of whole elements, each of them a one, that begins with a page.
struct Operand {
    memory: Vec<u8>,
    start: usize,
    size: usize,
}

impl Operand {
    fn new(one: &[u8], size: usize) -> Operand {
        let mut memory = vec![0; size + PAGE];
        let start = memory.as_ptr().align_offset(PAGE).min(PAGE);
        memory[start..]
            .chunks_exact_mut(one.len())
            .for_each(|element| element.copy_from_slice(one));
        Operand { memory, start, size }
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..][..self.size]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.size]
    }
}

/// A one of each type: neither sums nor products of them become slow numbers or NaN.
fn one(ty: DataType) -> Vec<u8> {
    match ty {
        DataType::F16 => f16::ONE.to_le_bytes().to_vec(),
        DataType::Bf16 => bf16::ONE.to_le_bytes().to_vec(),
        DataType::F32 => 1.0_f32.to_le_bytes().to_vec(),
        DataType::F64 => 1.0_f64.to_le_bytes().to_vec(),
        integer => 1_u64.to_le_bytes()[..integer.bytes() as usize].to_vec(),
    }
}

fn measure(ty: DataType, op: Operation, size: usize) -> Row {
    let size = size.next_multiple_of(ty.bytes() as usize);
    let (mut a, mut b) = (Operand::new(&one(ty), size), Operand::new(&one(ty), size));
    let of_floats = || Operand::new(&one(DataType::F32), size);
    let (mut sum, mut term) = (of_floats(), of_floats());
    let [sum, term] = [&mut sum, &mut term].map(|operand| {
        let bytes = operand.bytes_mut();
        // SAFETY: the operands live to the end of this function and are used by nothing else.
        unsafe { Region::new(bytes.as_mut_ptr(), size) }
    });
    let calls = (BATCH / size).max(1);
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..=ROUNDS {
        times[0].push(batch(calls, || black_box(sum).add_floats(black_box(term), size)));
        times[1].push(batch(calls, || {
            let b = Source::of(b.bytes());
            kernel::accumulate(op, ty, Target::of(a.bytes_mut()), &[b]);
        }));
        times[2].push(batch(calls, || {
            let targets = [Target::of(a.bytes_mut()), Target::of(b.bytes_mut())];
            kernel::fold(op, ty, &targets, &targets.map(Target::source));
        }));
    }
    let [add, in_place, to_both] = times.map(|mut times| {
        // The first round warms up.
        times.remove(0);
        times.sort_by(f64::total_cmp);
        size as f64 / times[times.len() / 2] / 1e9
    });
    Row { ty, op, size, in_place, to_both, add }
}

/// Seconds of one of so many calls.
fn batch(calls: usize, mut call: impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..calls {
        call();
    }
    start.elapsed().as_secs_f64() / calls as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(types: &[&str], operations: &[&str]) -> Options {
        Options {
            sizes: vec![1000],
            types: types.iter().map(|name| data_type(name).unwrap()).collect(),
            operations: operations.iter().map(|name| operation(name).unwrap()).collect(),
            json: true,
        }
    }

    #[test]
    fn rows_are_of_what_was_asked_for_and_is_defined() {
        assert_eq!(combinations(&options(&[], &[])).unwrap().len(), 12 * 8 - 4 * 3);
        let found = combinations(&options(&["bf16", "u8"], &["xor", "sum"])).unwrap();
        let [bf16, u8] = [DataType::Bf16, DataType::U8];
        let [xor, sum] = [Operation::Xor, Operation::Sum];
        assert_eq!(found, [(bf16, sum), (u8, xor), (u8, sum)]);
        let failure = combinations(&options(&["f64"], &["and"])).unwrap_err();
        assert!(failure.message.contains("defined"), "{failure}");
        assert!(data_type("float").unwrap_err().contains("bf16, f32"));
    }

    #[test]
    fn a_row_has_every_speed_and_whole_elements() {
        let row = measure(DataType::I64, Operation::Product, 1001);
        assert_eq!(row.size, 1008);
        assert!(row.add > 0.0 && row.in_place > 0.0 && row.to_both > 0.0);
        let object: serde_json::Value = serde_json::from_str(&row.json()).unwrap();
        assert_eq!((&object["type"], &object["operation"]), (&"i64".into(), &"product".into()));
        assert!(row.line().contains("product"));
    }
}
