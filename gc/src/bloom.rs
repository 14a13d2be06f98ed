//! Blocked Bloom filter over object ids: false positives are possible, false negatives are not.
//!
//! The eight bits of an id lie in one block of 32 bytes, so a lookup costs one cache miss. With 16 bits per id the false
//! positive rate is about 0.1 %, with 8 bits 2.5 %.

use amalgam_engine::ObjectId;

const LANES: usize = 8;
/// Odd multipliers that choose the bit in each lane of a block.
const LANE_MULTIPLIERS: [u32; LANES] =
    [0x47b6_137b, 0x4497_4d91, 0x8824_ad5b, 0xa2b7_289d, 0x7054_95c7, 0x2df1_424b, 0x9efc_4947, 0x5c6b_fb31];

/// The eight bytes of an id's hash that the filter uses.
pub(crate) type Fingerprint = u64;

/// Returns the fingerprint of an id.
pub(crate) fn fingerprint(id: &ObjectId) -> Fingerprint {
    fingerprint_of_hash(&id.hash)
}

pub(crate) fn fingerprint_of_hash(hash: &[u8; 32]) -> Fingerprint {
    let [a, b, c, d, e, f, g, h, ..] = *hash;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// The filter.
pub(crate) struct BloomFilter {
    blocks: Vec<[u32; LANES]>,
    salt: u64,
}

impl BloomFilter {
    /// Creates an empty filter of `bytes` bytes. Filters with different salts have different false positives.
    pub(crate) fn new(bytes: usize, salt: u64) -> Self {
        Self { blocks: vec![[0; LANES]; (bytes / (LANES * 4)).max(1)], salt: mix(salt | 1) }
    }

    pub(crate) fn insert(&mut self, id: Fingerprint) {
        let (block, bits) = self.locate(id);
        self.blocks[block].iter_mut().zip(bits).for_each(|(lane, bit)| *lane |= bit);
    }

    pub(crate) fn contains(&self, id: Fingerprint) -> bool {
        let (block, bits) = self.locate(id);
        self.blocks[block].iter().zip(bits).all(|(lane, bit)| lane & bit != 0)
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.blocks.len() * LANES * 4
    }

    #[inline]
    fn locate(&self, id: Fingerprint) -> (usize, [u32; LANES]) {
        let mixed = mix(id ^ self.salt);
        let block = ((u128::from(mixed) * self.blocks.len() as u128) >> 64) as usize;
        let low = mixed as u32;
        (block, LANE_MULTIPLIERS.map(|spread| 1 << (low.wrapping_mul(spread) >> 27)))
    }
}

fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let value = (value ^ (value >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    value ^ (value >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_forgets_and_is_seldom_wrong() {
        const IDS: u64 = 100_000;
        let id = |number: u64| mix(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut wrong = Vec::new();
        for salt in [1, 2] {
            let mut filter = BloomFilter::new(IDS as usize * 2, salt);
            (0..IDS).for_each(|number| filter.insert(id(number)));
            assert!((0..IDS).all(|number| filter.contains(id(number))));
            wrong.push((IDS..2 * IDS).filter(|number| filter.contains(id(*number))).collect::<Vec<_>>());
        }
        assert!(wrong.iter().all(|wrong| wrong.len() < 250), "more than one in 400 is wrong");
        let both = wrong[0].iter().filter(|number| wrong[1].contains(number)).count();
        assert!(both * 10 <= wrong[0].len(), "another salt is wrong about the same ids");
    }
}
