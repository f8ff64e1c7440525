//! For tests of decoders: good bytes with some changed, a million times in the full tier and in the
//! stage `fuzz`.

/// xorshift64*: the same bytes in every run.
struct Bytes(u64);

impl Bytes {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// Has `take` take bytes that differ from one of `good`, none of which is empty, by a few.
pub(crate) fn mutated(good: &[Vec<u8>], mut take: impl FnMut(&[u8])) {
    let mut source = Bytes(1);
    let is_full = std::env::var_os("GASPI_TEST_FULL").is_some();
    let cases = if is_full { 1_000_000 } else { 20_000 };
    for round in 0..cases {
        let mut bytes = good[round % good.len()].clone();
        for _ in 0..=source.next() % 4 {
            let at = (source.next() % bytes.len() as u64) as usize;
            bytes[at] = source.next() as u8;
        }
        take(&bytes);
    }
}
