//! Report of an import or an export: counts, and notices about data that the other format cannot represent.

use crate::error::printable;

/// Examples in a notice.
const EXAMPLES_MAX: usize = 5;

/// Counts of an import or an export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Regular files.
    pub files: u64,
    /// Directories that were named, not those that were only implied.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Further names of files.
    pub hard_links: u64,
    /// Devices, FIFOs and sockets.
    pub specials: u64,
    /// Paths that were removed: whiteouts and opaque directories.
    pub removed: u64,
    /// Bytes of files, holes included.
    pub bytes: u64,
    /// Snapshots that were made or, by an export, written as commits or layers.
    pub snapshots: u64,
    /// Data that was changed or omitted, by reason.
    pub notices: Vec<Notice>,
}

/// One reason why something was changed or left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The reason.
    pub what: &'static str,
    /// Number of cases.
    pub count: u64,
    /// The first few paths, in a printable form.
    pub examples: Vec<String>,
}

impl Report {
    /// Counts one more case of a notice.
    pub(crate) fn note(&mut self, what: &'static str, path: &[u8]) {
        let notice = match self.notices.iter_mut().find(|notice| notice.what == what) {
            Some(notice) => notice,
            None => {
                self.notices.push(Notice { what, count: 0, examples: Vec::new() });
                self.notices.last_mut().expect("it was just pushed")
            }
        };
        notice.count += 1;
        if notice.examples.len() < EXAMPLES_MAX {
            notice.examples.push(printable(path));
        }
    }

    /// Returns the number of cases of a notice.
    pub fn count_of(&self, what: &str) -> u64 {
        self.notices.iter().find(|notice| notice.what == what).map_or(0, |notice| notice.count)
    }

    /// Adds the counts of another report.
    pub(crate) fn add(&mut self, other: &Self) {
        self.files += other.files;
        self.directories += other.directories;
        self.symlinks += other.symlinks;
        self.hard_links += other.hard_links;
        self.specials += other.specials;
        self.removed += other.removed;
        self.bytes += other.bytes;
        self.snapshots += other.snapshots;
        for notice in &other.notices {
            let mine = match self.notices.iter_mut().find(|mine| mine.what == notice.what) {
                Some(mine) => mine,
                None => {
                    self.notices.push(Notice { what: notice.what, count: 0, examples: Vec::new() });
                    self.notices.last_mut().expect("it was just pushed")
                }
            };
            mine.count += notice.count;
            let room = EXAMPLES_MAX.saturating_sub(mine.examples.len());
            mine.examples.extend(notice.examples.iter().take(room).cloned());
        }
    }
}
