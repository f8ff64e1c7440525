//! Reproducible choices: every random decision of a test comes from a seed that a failure prints.

/// A small generator (SplitMix64).
#[derive(Clone, Debug)]
pub struct Seed {
    state: u64,
}

impl Seed {
    /// The generator of this seed.
    pub fn new(seed: u64) -> Seed {
        Seed { state: seed }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below `limit`, which must not be 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next_u64() % limit
    }
}

/// Where the seeds of this run start: `GASPI_TEST_SEED`, or 1.
///
/// # Panics
/// When the variable is not a number.
pub fn base_seed() -> u64 {
    match std::env::var("GASPI_TEST_SEED") {
        Ok(text) => text.parse().expect("GASPI_TEST_SEED has to be a number"),
        Err(_) => 1,
    }
}
