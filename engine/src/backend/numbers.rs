//! An exact set of object numbers. Compact if the numbers are dense, as those of objects written together are.

use std::collections::BTreeMap;
use std::ops::Range;

const WORDS: usize = 64;
const PAGE_NUMBERS: u64 = WORDS as u64 * 64;

/// A set of numbers: a bitmap in pages of 4,096 numbers. Empty pages are not stored.
#[derive(Clone, Debug, Default)]
pub struct NumberSet {
    pages: BTreeMap<u64, Box<[u64; WORDS]>>,
    count: u64,
}

impl NumberSet {
    /// Adds a number. Returns false if it was already in the set.
    pub fn insert(&mut self, number: u64) -> bool {
        let page = self.pages.entry(number / PAGE_NUMBERS).or_insert_with(|| Box::new([0; WORDS]));
        let (word, bit) = place(number);
        let is_new = page[word] & bit == 0;
        page[word] |= bit;
        self.count += u64::from(is_new);
        is_new
    }

    /// Returns whether a number is in the set.
    pub fn contains(&self, number: u64) -> bool {
        let (word, bit) = place(number);
        self.pages.get(&(number / PAGE_NUMBERS)).is_some_and(|page| page[word] & bit != 0)
    }

    /// Returns the number of elements.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the number of elements in a range.
    pub fn count_in(&self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let pages = self.pages.range(range.start / PAGE_NUMBERS..=(range.end - 1) / PAGE_NUMBERS);
        let in_page = |(at, page): (&u64, &[u64; WORDS])| -> u64 {
            let first = at * PAGE_NUMBERS;
            if range.start <= first && first.saturating_add(PAGE_NUMBERS) <= range.end {
                return page.iter().map(|word| u64::from(word.count_ones())).sum();
            }
            let start = range.start.max(first);
            let end = range.end.min(first.saturating_add(PAGE_NUMBERS));
            let is_set = |number: &u64| {
                let (word, bit) = place(*number);
                page[word] & bit != 0
            };
            (start..end).filter(is_set).count() as u64
        };
        pages.map(|(at, page)| in_page((at, page))).sum()
    }

    /// Returns the approximate memory usage in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.pages.len() * (WORDS * 8 + 48)
    }
}

fn place(number: u64) -> (usize, u64) {
    let within = number % PAGE_NUMBERS;
    ((within / 64) as usize, 1 << (within % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_lies_in_a_range() {
        let mut numbers = NumberSet::default();
        let all: Vec<u64> = (0..40_000).filter(|number| number % 7 == 3 || (9_000..9_100).contains(number)).collect();
        for number in &all {
            assert!(numbers.insert(*number));
            assert!(!numbers.insert(*number));
        }
        assert_eq!(numbers.len(), all.len() as u64);
        for (start, end) in [(0, 40_000), (0, 1), (3, 4), (4_095, 4_097), (8_999, 9_101), (5, 5), (39_999, u64::MAX)] {
            let expected = all.iter().filter(|number| (start..end).contains(*number)).count() as u64;
            assert_eq!(numbers.count_in(start..end), expected, "{start}..{end}");
        }
        assert!(numbers.contains(3) && !numbers.contains(4) && !numbers.contains(u64::MAX));
    }
}
