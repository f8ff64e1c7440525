//! The signature of an operation of a channel: what its members must agree on, in 64 bits that can
//! be turned back into words.
//!
//! | bits | what |
//! |---|---|
//! | 0..4 | operation |
//! | 4..8 | how elements are combined; 15: by the program |
//! | 8..12 | type; 15: the program's |
//! | 12..17 | algorithm |
//! | 17..19 | mode |
//! | 19..35 | root |
//! | 35 | whether the count is a hash: of a larger one, or of several |
//! | 36..64 | count |

use gaspi_core::{Channel, Error, Rank};

use crate::algorithms::Algorithm;
use crate::collective::Collective;
use crate::datatype::{DataType, Operation};
use crate::mode::Mode;
use crate::request::Combination;

const OF_THE_PROGRAM: u64 = 15;
const ALGORITHM_SHIFT: u32 = 12;
const MODE_SHIFT: u32 = 17;
const ROOT_SHIFT: u32 = 19;
const HASHED: u64 = 1 << 35;
const COUNT_SHIFT: u32 = 36;
const COUNT_MAX: u64 = (1 << (64 - COUNT_SHIFT)) - 1;

/// The description of an operation, from which its signature is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Description<'a> {
    pub(crate) collective: Collective,
    pub(crate) combination: &'a Combination,
    pub(crate) algorithm: Algorithm,
    pub(crate) mode: Mode,
    pub(crate) root: Rank,
    pub(crate) count: u64,
    /// Counts that are the same on all members, where they differ by member.
    pub(crate) counts: &'a [u64],
}

impl Description<'_> {
    pub(crate) fn bits(&self) -> u64 {
        let (op, ty) = match self.combination {
            Combination::BuiltIn(ty, _) if !self.collective.reduces() => (0, ty.code()),
            Combination::BuiltIn(ty, op) => (op.code(), ty.code()),
            Combination::User(_) => (OF_THE_PROGRAM, OF_THE_PROGRAM),
        };
        let sizes = [self.count, self.combination.element_bytes()];
        let plain = self.counts.is_empty() && op != OF_THE_PROGRAM && self.count <= COUNT_MAX;
        let (hashed, count) = match plain {
            true => (0, self.count),
            false => (HASHED, mix(&[mix(self.counts), mix(&sizes)]) & COUNT_MAX),
        };
        self.collective as u64
            | op << 4
            | ty << 8
            | (self.algorithm as u64) << ALGORITHM_SHIFT
            | (self.mode as u64) << MODE_SHIFT
            | u64::from(self.root.0) << ROOT_SHIFT
            | hashed
            | count << COUNT_SHIFT
    }
}

/// A signature in words, such as "allreduce of 4 x f32 sum (ring)".
pub(crate) fn describe(bits: u64) -> String {
    let Some(collective) = Collective::ALL.get((bits & 15) as usize).copied() else {
        return format!("an operation of kind {}", bits & 15);
    };
    if collective == Collective::Barrier {
        return algorithm(bits, "barrier".to_owned());
    }
    let ty = DataType::from_code(bits >> 8 & 15)
        .map_or_else(|| "elements of the program".to_owned(), |ty| ty.to_string());
    let count = bits >> COUNT_SHIFT;
    let mut words = match bits & HASHED {
        0 => format!("{collective} of {count} x {ty}"),
        _ => format!("{collective} of counts {count:#x} (a hash) of {ty}"),
    };
    if collective.reduces() {
        let op = Operation::from_code(bits >> 4 & 15)
            .map_or_else(|| "by a function of the program".to_owned(), |op| op.to_string());
        words = format!("{words} {op}");
    }
    let root = bits >> ROOT_SHIFT & 0xffff;
    // Those of a fused buffer have one in turn.
    if collective.is_rooted() || collective == Collective::Allreduce && root != 0 {
        words = format!("{words} with root {root}");
    }
    algorithm(bits, words)
}

fn algorithm(bits: u64, words: String) -> String {
    match Algorithm::ALL.get((bits >> ALGORITHM_SHIFT & 31) as usize) {
        Some(algorithm) => format!("{words} ({algorithm})"),
        None => words,
    }
}

/// The name of the mode.
fn mode(bits: u64) -> &'static str {
    Mode::ALL.get((bits >> MODE_SHIFT & 3) as usize).map_or("of another kind", |mode| mode.name())
}

/// The error for two members in different operations, or in different ones of the same kind.
#[cold]
pub(crate) fn mismatch(channel: &Channel, [one, two]: [(usize, u64); 2]) -> Error {
    let rank = |member: usize| channel.ranks()[member];
    let (first, second) = (rank(one.0), rank(two.0));
    let difference = if one.1 == two.1 {
        format!(
            "{first} and {second} have started different numbers of operations; both are in {}",
            describe(one.1)
        )
    } else {
        let modes = match [one.1, two.1].map(mode) {
            [one, two] if one == two => String::new(),
            [one, two] => format!("; {first} asks for mode {one}, {second} for {two}"),
        };
        format!("{first} called {}, {second} called {}{modes}", describe(one.1), describe(two.1))
    };
    Error::Mismatch { group: channel.group(), difference }
}

/// The error for a block of another size than the receiver expects.
#[cold]
pub(crate) fn uneven(
    channel: &Channel,
    [from, to]: [usize; 2],
    [found, expected]: [u64; 2],
) -> Error {
    let (from, to) = (channel.ranks()[from], channel.ranks()[to]);
    let difference = format!(
        "{from} sent a block of {found} bytes where {to} expects {expected}; counts of both have \
         to agree"
    );
    Error::Mismatch { group: channel.group(), difference }
}

/// A hash of arguments, to recognise a call that continues with other ones.
pub(crate) fn mix(values: &[u64]) -> u64 {
    // The finaliser of splitmix64: every bit of the input reaches every bit of the output.
    values.iter().fold(0, |hash, value| {
        let mut z = (hash ^ value).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_argument_or_order_is_another_hash() {
        assert_ne!(mix(&[1, 2]), mix(&[2, 1]));
        assert_ne!(mix(&[1, 2]), mix(&[1, 3]));
        assert_eq!(mix(&[1, 2]), mix(&[1, 2]));
    }
}
