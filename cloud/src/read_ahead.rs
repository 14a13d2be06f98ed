//! How far to read ahead in a pack. Objects lie in the order in which they were written, which is nearly always that of reading: a reader
//! that goes on where it stopped gets more at once.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::pack::PackId;

/// The first request of a reader.
const WINDOW_BYTES_MIN: u64 = 1 << 20;
const WINDOW_BYTES_MAX: u64 = 16 << 20;
/// A reader that goes on gets this many times as much.
const GROWTH: u64 = 4;
/// Packs whose readers are remembered.
const PACKS_MAX: usize = 256;

/// The end of the last request, and its size.
#[derive(Clone, Copy)]
struct Window {
    end: u64,
    bytes: u64,
}

/// The last request for each pack.
#[derive(Default)]
pub(crate) struct ReadAhead {
    windows: Mutex<HashMap<PackId, Window>>,
}

impl ReadAhead {
    /// Returns the end of a request for a single object, at most that of the pack's objects.
    pub(crate) fn end(&self, pack: PackId, start: u64, end: u64, body_end: u64) -> u64 {
        let mut windows = self.windows.lock();
        let last = windows.get(&pack).copied();
        let goes_on = |last: &Window| start >= last.end && start <= last.end + WINDOW_BYTES_MIN;
        let bytes = match last.filter(goes_on) {
            Some(last) => (last.bytes * GROWTH).min(WINDOW_BYTES_MAX),
            None => WINDOW_BYTES_MIN,
        };
        let end = body_end.min(start + bytes).max(end);
        if windows.len() >= PACKS_MAX {
            windows.clear();
        }
        windows.insert(pack, Window { end, bytes });
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_goes_on_gets_more_at_once_and_one_that_jumps_does_not() {
        const MIB: u64 = 1 << 20;
        let ahead = ReadAhead::default();
        let end = |start: u64| ahead.end([1; 16], start, start + 10, 64 * MIB);
        assert_eq!(end(0), MIB);
        assert_eq!(end(MIB), 5 * MIB);
        assert_eq!(end(5 * MIB), 21 * MIB);
        assert_eq!(end(21 * MIB), 37 * MIB, "a limit");
        assert_eq!(end(3 * MIB), 4 * MIB, "a jump");
        assert_eq!(end(63 * MIB + 5), 64 * MIB, "the end of the objects");
        assert_eq!(ahead.end([2; 16], 0, 2 * MIB, 64 * MIB), 2 * MIB, "a large object");
    }
}
