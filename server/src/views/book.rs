//! The book of views and mounts: which view belongs to which workspace, and what is mounted where. One small file, written whole and
//! renamed into place, so that a crash leaves the old page or the new one.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use amalgam_proto::{Failure, Reason};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::failure::{Result, of_io};
use crate::registry::path_text;

/// What is written in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pages {
    /// The last number given to a view or a mount; none is given twice.
    pub(super) last: u64,
    /// The workspace of each view.
    pub(super) views: BTreeMap<u64, String>,
    /// What is mounted, and what was when a process died.
    pub(super) mounts: BTreeMap<u64, MountRecord>,
}

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MountRecord {
    #[serde(with = "path_text")]
    pub(super) path: PathBuf,
    pub(super) mode: Mode,
    /// Empty for a snapshot.
    #[serde(default)]
    pub(super) workspace: String,
    /// When it was made, in nanoseconds since 1970.
    pub(super) since: i64,
    /// In a namespace of its own.
    #[serde(default)]
    pub(super) private: bool,
}

/// What a mount shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Mode {
    /// A workspace, to be changed.
    ReadWrite,
    /// A snapshot.
    Snapshot,
    /// A workspace's head, wherever it goes.
    Follow,
}

/// The book.
pub(super) struct Book {
    file: PathBuf,
    pages: Mutex<Pages>,
}

impl Book {
    pub(super) fn open(file: &Path) -> Result<Self> {
        let pages = match fs::read(file) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|why| {
                let message = format!(
                    "{} cannot be read: {why}; it says which workspace the work in views/ belongs to: bring it back, or move both away",
                    file.display()
                );
                Failure::new(Reason::Corrupt, message)
            })?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Pages::default(),
            Err(error) => return Err(of_io("read the book of mounts", &error)),
        };
        Ok(Self { file: file.to_owned(), pages: Mutex::new(pages) })
    }

    pub(super) fn read(&self) -> Pages {
        self.pages.lock().clone()
    }

    /// Changes the book, in memory and on disk or not at all.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Pages) -> T) -> Result<T> {
        let mut pages = self.pages.lock();
        let mut new = pages.clone();
        let done = change(&mut new);
        if new == *pages {
            return Ok(done);
        }
        let failed = |source: std::io::Error| of_io("write the book of mounts", &source);
        let bytes = serde_json::to_vec_pretty(&new).expect("pages are plain data");
        let temporary = self.file.with_extension("tmp");
        let mut out = fs::File::create(&temporary).map_err(failed)?;
        out.write_all(&bytes).and_then(|()| out.sync_data()).map_err(failed)?;
        fs::rename(&temporary, &self.file).map_err(failed)?;
        // A number that is forgotten would be given to another view, with the journal of the first.
        let place = self.file.parent().map(fs::File::open).transpose().map_err(failed)?;
        place.map_or(Ok(()), |place| place.sync_all()).map_err(failed)?;
        *pages = new;
        Ok(done)
    }

    /// The number of a workspace's view, if it ever had one.
    pub(super) fn view_of(&self, workspace: &str) -> Option<u64> {
        self.pages.lock().views.iter().find(|(_, name)| *name == workspace).map(|(id, _)| *id)
    }

    pub(super) fn workspace_of(&self, id: u64) -> Option<String> {
        self.pages.lock().views.get(&id).cloned()
    }

    /// The number of a workspace's view; a new one if it never had one.
    pub(super) fn ensure_view(&self, workspace: &str) -> Result<u64> {
        if let Some(id) = self.view_of(workspace) {
            return Ok(id);
        }
        self.change(|pages| {
            pages.last += 1;
            pages.views.insert(pages.last, workspace.to_owned());
            pages.last
        })
    }

    /// Writes a mount down; its number.
    pub(super) fn add_mount(&self, record: MountRecord) -> Result<u64> {
        self.change(|pages| {
            pages.last += 1;
            pages.mounts.insert(pages.last, record);
            pages.last
        })
    }

    pub(super) fn remove_mount(&self, number: u64) -> Result<()> {
        self.change(|pages| drop(pages.mounts.remove(&number)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_there_again_and_no_number_is_given_twice() {
        let place = tempfile::tempdir().expect("a directory");
        let file = place.path().join("mounts.json");
        let book = Book::open(&file).expect("new");
        let id = book.ensure_view("main").expect("written");
        assert_eq!(book.ensure_view("main").expect("known"), id);
        let record = MountRecord {
            path: "/mnt/a".into(),
            mode: Mode::ReadWrite,
            workspace: "main".to_owned(),
            since: 7,
            private: false,
        };
        let mount = book.add_mount(record).expect("written");
        let again = Book::open(&file).expect("read");
        assert_eq!(again.read(), book.read());
        again.remove_mount(mount).expect("written");
        assert!(again.ensure_view("other").expect("written") > mount);
    }

    #[test]
    fn a_damaged_book_is_refused_and_left_alone() {
        let place = tempfile::tempdir().expect("a directory");
        let file = place.path().join("mounts.json");
        std::fs::write(&file, "{").expect("written");
        let failure = Book::open(&file).err().expect("refused");
        assert_eq!(failure.reason, Reason::Corrupt);
        assert_eq!(std::fs::read(&file).expect("there"), b"{");
    }
}
