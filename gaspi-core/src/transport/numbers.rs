//! Tables by numbers that this rank or its device has given, or that are few: nobody can choose
//! ones that collide, so that a few instructions spread them.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A table by such numbers.
pub(crate) type NumberMap<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// Spreads numbers.
#[derive(Debug, Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u16(&mut self, number: u16) {
        self.write_u64(u64::from(number));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        // The table takes bits from both ends.
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn numbers_in_a_row_and_with_gaps_are_spread() {
        // Bits from both ends, as the table takes them.
        let bits = |number: u64| {
            let mut hasher = NumberHasher::default();
            hasher.write_u64(number);
            (hasher.finish() & 0xfff, hasher.finish() >> 57)
        };
        // Names of connections begin high.
        for (begin, step) in [(0, 1), (1 << 43, 1), (0, 1 << 8), (1, 1 << 16), (1, 1 << 20)] {
            let numbers = (0..1000).map(|nth| begin + nth * step);
            let found: HashSet<(u64, u64)> = numbers.map(bits).collect();
            assert!(found.len() > 990, "{} of 1000 with steps of {step}", found.len());
        }
    }
}
