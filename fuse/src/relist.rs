//! Refreshes the kernel's attribute cache by one listing instead of one request per file.
//!
//! After a read, the kernel no longer trusts the cached access time of a file and requests its attributes at the next `stat`: a second pass
//! over a tree would send one request per file. A listing (READDIRPLUS) returns the attributes of all files of a directory. So the server
//! invalidates the listing of a directory whose files were read; the kernel requests it once more, and caches it.

use std::collections::VecDeque;

use amalgam_view::Ino;
use parking_lot::Mutex;

/// Limit of directories that are tracked.
const DIRECTORIES_MAX: usize = 8;
/// Files read from a directory that are worth a new listing, which also costs a request for the directory's own attributes.
const FILES_MIN: u32 = 8;

/// Directories from which files are read, newest last, and the number of files.
#[derive(Default)]
pub(crate) struct RecentReads(Mutex<VecDeque<(Ino, u32)>>);

impl RecentReads {
    /// Records a read of a file in a directory. Returns a directory that is no longer read from, whose listing should be invalidated.
    pub(crate) fn record(&self, directory: Ino) -> Option<Ino> {
        let mut directories = self.0.lock();
        if let Some((last, files)) = directories.back_mut()
            && *last == directory
        {
            *files += 1;
            return None;
        }
        let place = directories.iter().position(|(found, _)| *found == directory);
        let before = place.and_then(|place| directories.remove(place)).map_or(0, |(_, files)| files);
        directories.push_back((directory, before + 1));
        if directories.len() <= DIRECTORIES_MAX {
            return None;
        }
        directories.pop_front().filter(|(_, files)| *files >= FILES_MIN).map(|(directory, _)| directory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_listed_anew_once_others_are_read_from() {
        let reads = RecentReads::default();
        for (directory, files) in [(100, FILES_MIN), (101, 1), (102, FILES_MIN)] {
            assert!((0..files).all(|_| reads.record(directory).is_none()));
        }
        let passed: Vec<_> = (200..211).filter_map(|directory| reads.record(directory)).collect();
        assert_eq!(passed, [100, 102], "of 101 only one file was read, and the last are read from");
        assert!((0..20).all(|_| reads.record(300).is_none()), "one after the other in one directory");
    }

    #[test]
    fn a_directory_that_is_come_back_to_is_not_passed() {
        let reads = RecentReads::default();
        for other in 1..FILES_MIN.into() {
            assert_eq!(reads.record(1_000 + other), None, "of each only one file was read");
            assert_eq!(reads.record(1), None);
        }
    }
}
