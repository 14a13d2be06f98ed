//! What a kernel forgets by reading, and how it gets it back with one message instead of many.
//!
//! Once it has asked for bytes of a file, the kernel does not trust the time of the last reading that it has, and asks for the
//! attributes when somebody wants them next: whoever goes over a tree a second time would cause a message for each file. A listing
//! brings the attributes of all files of a directory. So the kernel is told to forget the listing of a directory whose files were
//! read; it asks for it once more, and remembers that one.

use std::collections::VecDeque;

use amalgam_view::Ino;
use parking_lot::Mutex;

/// Directories that are read from at a time.
const DIRECTORIES_MAX: usize = 8;
/// So many files that were read are worth a listing, after which the attributes of the directory itself are asked for too.
const FILES_MIN: u32 = 8;

/// Directories from which files are read, the newest last, and how many.
#[derive(Default)]
pub(crate) struct Relist(Mutex<VecDeque<(Ino, u32)>>);

impl Relist {
    /// A file of this directory is read. Returns one whose listing is to be forgotten: nobody reads from it any more.
    pub(crate) fn read(&self, directory: Ino) -> Option<Ino> {
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
        let relist = Relist::default();
        for (directory, files) in [(100, FILES_MIN), (101, 1), (102, FILES_MIN)] {
            assert!((0..files).all(|_| relist.read(directory).is_none()));
        }
        let passed: Vec<_> = (200..211).filter_map(|directory| relist.read(directory)).collect();
        assert_eq!(passed, [100, 102], "of 101 only one file was read, and the last are read from");
        assert!((0..20).all(|_| relist.read(300).is_none()), "one after the other in one directory");
    }

    #[test]
    fn a_directory_that_is_come_back_to_is_not_passed() {
        let relist = Relist::default();
        for other in 1..FILES_MIN.into() {
            assert_eq!(relist.read(1_000 + other), None, "of each only one file was read");
            assert_eq!(relist.read(1), None);
        }
    }
}
