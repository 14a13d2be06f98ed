//! Random numbers that a seed repeats.

use std::hash::{BuildHasher as _, RandomState};

use amalgam_engine::SplitMix64;

const SEED_VARIABLE: &str = "AMALGAM_SEED";

/// A seed: the one in `AMALGAM_SEED`, to repeat a failure, or a fresh one.
pub fn seed() -> u64 {
    match std::env::var(SEED_VARIABLE) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{SEED_VARIABLE} is not a number: {text}")),
        Err(_) => RandomState::new().hash_one(0_u8) >> 16,
    }
}

/// Random numbers of a seed.
#[derive(Clone, Debug)]
pub struct Random(SplitMix64);

impl Random {
    /// The numbers of this seed.
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// The numbers that follow from several values together.
    pub fn of(parts: &[u64]) -> Self {
        let mut seed = 0;
        for part in parts {
            seed ^= part.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            seed = SplitMix64::new(seed).next_u64();
        }
        Self::new(seed)
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below this one.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0.below(end)
    }

    /// True once in so many times.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Bytes that no compressor makes smaller.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        self.0.bytes(length)
    }
}
