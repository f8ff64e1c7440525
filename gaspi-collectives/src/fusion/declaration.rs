//! What ranks declare of a fused buffer: as the program says it, in the words that they compare,
//! and what differs in text.

use std::ops::Range;

use crate::algorithms::Algorithm;
use crate::datatype::{DataType, Operation};
use crate::mode::Mode;

/// The threshold of a bucket unless the program sets one.
const USUAL_THRESHOLD: u64 = 32 << 10;

/// A tensor of a fused buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tensor {
    /// Elements.
    pub count: u64,
    /// Their type.
    pub ty: DataType,
}

/// The order in which tensors are put into buckets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Order {
    /// As they are declared.
    #[default]
    Declared,
    /// The last one first: the order in which gradients are computed.
    Reverse,
}

/// How a fused buffer works. All but `contributions` and `background` are the same on all ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// How contributions are combined: sum, average, minimum or maximum.
    pub operation: Operation,
    /// The order in which tensors are put into buckets.
    pub order: Order,
    /// A bucket gets further tensors while it has fewer bytes; 0: one tensor for each.
    pub threshold: u64,
    /// Most bytes of a bucket of several tensors.
    pub limit: Option<u64>,
    /// How often this rank submits each tensor in a step; they are combined before anything is
    /// sent. From 1 to 32767.
    pub contributions: u32,
    /// The type in which tensors of f32 travel: f16 or bf16. Each rank adds in f32 and rounds; its
    /// contributions are added up in f32 and rounded once, in memory of 4 bytes for each element.
    pub wire: Option<DataType>,
    /// The algorithm; `None` leaves the choice to the library.
    pub algorithm: Option<Algorithm>,
    /// What the bits may depend on; `None` is what GASPI_COLL_MODE says, else [`Mode::Fast`].
    pub mode: Option<Mode>,
    /// Whether a thread of the library carries all-reduces on while no thread of the program waits.
    pub background: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            operation: Operation::Sum,
            order: Order::Declared,
            threshold: USUAL_THRESHOLD,
            limit: None,
            contributions: 1,
            wire: None,
            algorithm: None,
            mode: None,
            background: true,
        }
    }
}

/// Words that each rank tells in a comparison: no more than go along with an arrival.
pub(super) const WORDS: usize = 6;
/// What they are: the hash of the declaration up to a tensor, that tensor, the number of tensors;
/// the options, of which two take a word of their own.
pub(super) const HASH: usize = 0;
pub(super) const TENSOR: usize = 1;
pub(super) const TENSORS: usize = 2;
const PACKED: usize = 3;
const THRESHOLD: usize = 4;
const LIMIT: usize = 5;

/// A tensor in a word.
pub(super) fn encode(tensor: Tensor) -> u64 {
    tensor.count << 8 | tensor.ty.code()
}

/// A tensor of a word, in text.
pub(super) fn tensor_in_text(word: u64) -> String {
    let (count, ty) = (word >> 8, DataType::from_code(word & 255));
    match ty {
        Some(ty) => format!("{count} x {ty}"),
        None => format!("{count} elements of an unknown type"),
    }
}

/// The words of the options, which come behind those of the tensors. `mode` is the one that is
/// meant, whoever has named it.
pub(super) fn options_in_words(options: &Options, mode: Mode) -> [u64; WORDS - PACKED] {
    let Options { operation, order, threshold, limit, wire, algorithm, .. } = *options;
    let packed = [
        (OPERATION, operation.code()),
        (ORDER, u64::from(order == Order::Reverse)),
        (WIRE, wire.map_or(0, |wire| 1 + wire.code())),
        (ALGORITHM, algorithm.map_or(0, |algorithm| 1 + algorithm as u64)),
        (MODE, mode as u64),
    ];
    let packed = packed.iter().fold(0, |word, (bits, value)| word | value << bits.start);
    // A limit that no bucket reaches is none.
    [packed, threshold, limit.map_or(0, |limit| limit.wrapping_add(1))]
}

/// Where options are in their common word.
const OPERATION: Range<u32> = 0..8;
const ORDER: Range<u32> = 8..16;
const WIRE: Range<u32> = 16..24;
const ALGORITHM: Range<u32> = 24..32;
const MODE: Range<u32> = 32..40;
const ALL_BITS: Range<u32> = 0..64;

/// An option that is the same on all ranks.
struct Compared {
    name: &'static str,
    word: usize,
    bits: Range<u32>,
    in_text: fn(u64) -> String,
}

const COMPARED: [Compared; 7] = [
    Compared { name: "operation", word: PACKED, bits: OPERATION, in_text: operation_in_text },
    Compared { name: "order", word: PACKED, bits: ORDER, in_text: order_in_text },
    Compared { name: "threshold", word: THRESHOLD, bits: ALL_BITS, in_text: |n| n.to_string() },
    Compared { name: "limit", word: LIMIT, bits: ALL_BITS, in_text: limit_in_text },
    Compared { name: "wire", word: PACKED, bits: WIRE, in_text: wire_in_text },
    Compared { name: "algorithm", word: PACKED, bits: ALGORITHM, in_text: algorithm_in_text },
    Compared { name: "mode", word: PACKED, bits: MODE, in_text: mode_in_text },
];

impl Compared {
    fn of(&self, words: &[u64]) -> u64 {
        words[self.word] >> self.bits.start & (u64::MAX >> (u64::BITS - self.bits.len() as u32))
    }
}

/// An option that two ranks give differently.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Difference {
    pub(super) option: &'static str,
    /// The place of the first rank that differs from the first of all.
    pub(super) other: usize,
    /// What both give.
    pub(super) values: [String; 2],
}

/// The first option that differs among what all ranks have told.
pub(super) fn difference(told: &[u64]) -> Option<Difference> {
    let first = told.get(..WORDS)?;
    COMPARED.iter().find_map(|compared| {
        let differs = |words: &[u64]| compared.of(words) != compared.of(first);
        let other = told.chunks_exact(WORDS).position(differs)?;
        let values = [0, other].map(|rank| compared.of(&told[WORDS * rank..][..WORDS]));
        let values = values.map(compared.in_text);
        Some(Difference { option: compared.name, other, values })
    })
}

const NONE: &str = "none";
/// What another version of the library knows.
const UNKNOWN: &str = "one of another kind";

fn operation_in_text(code: u64) -> String {
    Operation::from_code(code).map_or(UNKNOWN.to_owned(), |operation| operation.to_string())
}

fn order_in_text(code: u64) -> String {
    ["declared", "reverse"].get(code as usize).unwrap_or(&UNKNOWN).to_string()
}

fn limit_in_text(word: u64) -> String {
    word.checked_sub(1).map_or(NONE.to_owned(), |limit| limit.to_string())
}

fn wire_in_text(word: u64) -> String {
    let Some(code) = word.checked_sub(1) else { return NONE.to_owned() };
    DataType::from_code(code).map_or(UNKNOWN.to_owned(), |wire| wire.to_string())
}

fn algorithm_in_text(word: u64) -> String {
    let Some(code) = word.checked_sub(1) else { return NONE.to_owned() };
    let known = Algorithm::ALL.into_iter().find(|algorithm| *algorithm as u64 == code);
    known.map_or(UNKNOWN.to_owned(), |algorithm| algorithm.to_string())
}

fn mode_in_text(code: u64) -> String {
    Mode::ALL.get(code as usize).map_or(UNKNOWN, |mode| mode.name()).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What two ranks tell that declare the same tensors.
    fn told(one: &Options, other: &Options) -> Vec<u64> {
        let words = [one, other].map(|options| {
            let mode = options.mode.unwrap_or_default();
            [&[1, 2, 3][..], &options_in_words(options, mode)].concat()
        });
        words.concat()
    }

    fn found(one: &Options, other: &Options) -> Option<(&'static str, [String; 2])> {
        difference(&told(one, other)).map(|found| {
            assert_eq!(found.other, 1);
            (found.option, found.values)
        })
    }

    #[test]
    fn each_option_is_named_with_both_values() {
        let plain = Options::default();
        assert_eq!(found(&plain, &plain), None);
        let others = [
            (Options { operation: Operation::Max, ..plain.clone() }, ["operation", "sum", "max"]),
            (Options { order: Order::Reverse, ..plain.clone() }, ["order", "declared", "reverse"]),
            (Options { threshold: 0, ..plain.clone() }, ["threshold", "32768", "0"]),
            (Options { limit: Some(0), ..plain.clone() }, ["limit", "none", "0"]),
            (Options { wire: Some(DataType::Bf16), ..plain.clone() }, ["wire", "none", "bf16"]),
            (Options { mode: Some(Mode::Stable), ..plain.clone() }, ["mode", "fast", "stable"]),
        ];
        for (other, [option, one, two]) in others {
            let expected = Some((option, [one, two].map(str::to_owned)));
            assert_eq!(found(&plain, &other), expected);
        }
        for algorithm in Algorithm::ALL {
            let other = Options { algorithm: Some(algorithm), ..plain.clone() };
            let values = ["none".to_owned(), algorithm.to_string()];
            assert_eq!(found(&plain, &other), Some(("algorithm", values)));
        }
    }

    #[test]
    fn largest_values_disturb_no_others() {
        let most = Options {
            operation: Operation::Average,
            order: Order::Reverse,
            threshold: u64::MAX,
            limit: Some(u64::MAX - 1),
            wire: Some(DataType::F64),
            algorithm: Some(Algorithm::Hierarchical),
            mode: Some(Mode::Stable),
            ..Options::default()
        };
        for other in [
            Options { threshold: 1, ..most.clone() },
            Options { limit: None, ..most.clone() },
            Options { algorithm: None, ..most.clone() },
            Options { wire: None, ..most.clone() },
        ] {
            assert!(found(&most, &other).is_some(), "{other:?}");
        }
        // What only this rank is concerned with.
        let own = Options { contributions: 7, background: false, ..most.clone() };
        assert_eq!(found(&most, &own), None);
    }

    #[test]
    fn the_first_rank_that_differs_is_told() {
        let of = |threshold| Options { threshold, ..Options::default() };
        let all = [told(&of(1), &of(1)), told(&of(1), &of(7))].concat();
        let found = difference(&all).expect("the last one differs");
        assert_eq!((found.option, found.other), ("threshold", 3));
    }
}
