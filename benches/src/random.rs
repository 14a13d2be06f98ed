//! Random numbers, bytes and text that are the same in every run.

use amalgam_engine::SplitMix64;

/// Random numbers of a seed.
pub struct Random(SplitMix64);

impl Random {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below this one.
    pub fn below(&mut self, end: u64) -> u64 {
        // The bias of the remainder does not matter for a choice among few.
        self.number() % end
    }

    /// Bytes that cannot be compressed.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        self.0.bytes(length)
    }

    /// Lines of words, which compress about as source text does.
    pub fn text(&mut self, length: usize) -> Vec<u8> {
        let mut text = Vec::with_capacity(length + 16);
        while text.len() < length {
            // Few words are frequent and many are rare.
            let rank = self.below(4_096) * self.below(4_096) / 4_096;
            let word = Random::new(rank).number();
            let letters = 2 + (word % 7) as u32;
            text.extend((0..letters).map(|at| b'a' + ((word >> (8 + at * 5)) % 26) as u8));
            text.push(if self.below(9) == 0 { b'\n' } else { b' ' });
        }
        text.truncate(length);
        text
    }
}
