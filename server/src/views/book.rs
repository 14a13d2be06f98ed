//! The book of views, mounts and exports: which view belongs to which workspace, where views are mounted, and which trees are
//! exported. One small file, written whole and renamed into place, so that a crash leaves the old page or the new one.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use amalgam_proto::{Reason, v1};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::messages::path_bytes;
use crate::registry::path_text;

/// The most lost mounts that are kept; the oldest are forgotten.
const LOST_MOUNTS_MAX: usize = 64;

/// The contents of the book.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pages {
    /// The last number given to a view or a mount; none is given twice.
    pub(super) last: u64,
    /// The workspace of each view.
    pub(super) views: BTreeMap<u64, String>,
    /// The mounts, including those of a process that died.
    pub(super) mounts: BTreeMap<u64, MountRecord>,
    /// The exports. Every process that holds the store serves them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) exports: BTreeMap<u64, ExportRecord>,
    /// Mounts that ended with their process and were not mounted again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) lost: Vec<LostMount>,
    /// The port at which exports were served last, so that clients find them there after a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) nfs_port: Option<u16>,
}

/// An export of a workspace or a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ExportRecord {
    /// The path that clients mount, without the secret component. It stays when the workspace is renamed.
    pub(crate) path: String,
    pub(crate) mode: Mode,
    /// Empty for a snapshot.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) workspace: String,
    /// The snapshot in hex; empty for a workspace.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) snapshot: String,
    /// Clients cannot change the live tree.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) read_only: bool,
    /// The addresses and networks that may mount it.
    pub(crate) allow: Vec<String>,
    /// The secret last component of the path that clients mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) secret: Option<String>,
    /// Believes the user ids that clients send.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) trusts_users: bool,
    /// When it was made, in nanoseconds since 1970.
    pub(crate) since: i64,
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
    /// The snapshot that is shown, in hex, where that is not a workspace's.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) snapshot: String,
    /// How it was asked for.
    #[serde(default, skip_serializing_if = "RecordedOptions::is_default")]
    pub(super) options: RecordedOptions,
    /// Mounted again by a process that found it dead.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) remounted: bool,
}

/// A mount that ended with its process and was not mounted again. Commands at its path report it until a mount is there again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LostMount {
    #[serde(with = "path_text")]
    pub(super) path: PathBuf,
    /// Empty for a snapshot.
    #[serde(default)]
    pub(super) workspace: String,
    /// When that was found, in nanoseconds since 1970.
    pub(super) since: i64,
    /// The message for the user.
    pub(super) message: String,
}

/// How a mount was asked for, so that it can be made again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct RecordedOptions {
    allow_other: bool,
    writeback: bool,
    threads: u32,
    local: Vec<RecordedPath>,
    shown_uid: u32,
    shown_gid: u32,
    #[serde(skip_serializing_if = "is_zero")]
    quota_bytes: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A path in a tree, which need not be text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
struct RecordedPath(#[serde(with = "path_text")] PathBuf);

impl RecordedOptions {
    /// Converts the mount options of a request.
    pub(super) fn of_message(asked: Option<&v1::MountOptions>) -> Self {
        let Some(asked) = asked else { return Self::default() };
        let local = asked.local.iter().map(|path| RecordedPath(OsStr::from_bytes(path).into())).collect();
        Self {
            allow_other: asked.allow_other,
            writeback: asked.writeback,
            threads: asked.threads,
            local,
            shown_uid: asked.shown_uid,
            shown_gid: asked.shown_gid,
            quota_bytes: asked.quota_bytes,
        }
    }

    /// Converts the options to their message.
    pub(super) fn message(&self) -> v1::MountOptions {
        let local = self.local.iter().map(|path| path_bytes(&path.0)).collect();
        v1::MountOptions {
            allow_other: self.allow_other,
            writeback: self.writeback,
            threads: self.threads,
            local,
            shown_uid: self.shown_uid,
            shown_gid: self.shown_gid,
            quota_bytes: self.quota_bytes,
        }
    }

    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The tree that a mount or an export shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    /// A workspace, to be changed.
    ReadWrite,
    /// A snapshot.
    Snapshot,
    /// A workspace's head, wherever it goes.
    Follow,
}

/// The book, in memory and in its file.
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
                Error::new(Reason::Corrupt, message)
            })?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Pages::default(),
            Err(error) => return Err(Error::io("read the book of mounts")(error)),
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
        self.write(&new)?;
        *pages = new;
        Ok(done)
    }

    fn write(&self, pages: &Pages) -> Result<()> {
        let failed = |source: std::io::Error| Error::io("write the book of mounts")(source);
        let bytes = serde_json::to_vec_pretty(pages).expect("pages are plain data");
        let temporary = self.file.with_extension("tmp");
        // The secrets of exports are in it.
        let created = fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(&temporary);
        let mut out = created.map_err(failed)?;
        let written = out.write_all(&bytes).and_then(|()| out.sync_data());
        // A partial file would take space on a full disk.
        written.inspect_err(|_| fs::remove_file(&temporary).unwrap_or_default()).map_err(failed)?;
        fs::rename(&temporary, &self.file).map_err(failed)?;
        // A number that is forgotten would be given to another view, with the journal of the first.
        let place = self.file.parent().map(fs::File::open).transpose().map_err(failed)?;
        place.map_or(Ok(()), |place| place.sync_all()).map_err(failed)
    }

    /// Returns the number of a workspace's view, if it ever had one.
    pub(super) fn view_of(&self, workspace: &str) -> Option<u64> {
        self.pages.lock().views.iter().find(|(_, name)| *name == workspace).map(|(id, _)| *id)
    }

    pub(super) fn workspace_of(&self, id: u64) -> Option<String> {
        self.pages.lock().views.get(&id).cloned()
    }

    /// Records the number of a workspace's view, which nodes that share the store agree on.
    pub(super) fn set_view(&self, id: u64, workspace: &str) -> Result<()> {
        if self.pages.lock().views.get(&id).is_some_and(|known| known == workspace) {
            return Ok(());
        }
        self.change(|pages| {
            pages.views.retain(|_, known| known != workspace);
            pages.views.insert(id, workspace.to_owned());
        })
    }

    /// Returns the number of a workspace's view, and assigns a new one if it never had one.
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

    /// Records a mount. Returns its number.
    pub(super) fn add_mount(&self, record: MountRecord) -> Result<u64> {
        self.change(|pages| {
            pages.last += 1;
            pages.mounts.insert(pages.last, record);
            pages.last
        })
    }

    /// Records an export. Returns its number.
    pub(super) fn add_export(&self, record: ExportRecord) -> Result<u64> {
        self.change(|pages| {
            pages.last += 1;
            pages.exports.insert(pages.last, record);
            pages.last
        })
    }

    /// Removes a mount. On a full disk only this process knows of it, until the next change is written: the process after a crash
    /// finds a record of a mount that is gone, and says so.
    pub(super) fn remove_mount(&self, number: u64) -> Result<()> {
        let mut pages = self.pages.lock();
        if pages.mounts.remove(&number).is_none() {
            return Ok(());
        }
        match self.write(&pages) {
            Err(failure) if failure.reason() == Reason::Full => Ok(()),
            written => written,
        }
    }

    /// Records a mount that was not mounted again, in the place of an earlier one at its path.
    pub(super) fn add_lost(&self, mount: LostMount) -> Result<()> {
        self.change(|pages| {
            pages.lost.retain(|known| known.path != mount.path);
            pages.lost.push(mount);
            let surplus = pages.lost.len().saturating_sub(LOST_MOUNTS_MAX);
            pages.lost.drain(..surplus);
        })
    }

    /// Forgets lost mounts. Writes nothing if there is none to forget.
    pub(super) fn forget_lost(&self, is_over: impl Fn(&LostMount) -> bool) -> Result<()> {
        self.change(|pages| pages.lost.retain(|mount| !is_over(mount)))
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
            snapshot: String::new(),
            options: RecordedOptions::of_message(Some(&v1::MountOptions {
                threads: 3,
                local: vec!["target".into(), vec![b'x', 0xff].into()],
                ..Default::default()
            })),
            remounted: false,
        };
        let mount = book.add_mount(record).expect("written");
        let again = Book::open(&file).expect("read");
        assert_eq!(again.read(), book.read());
        again.remove_mount(mount).expect("written");
        assert!(again.ensure_view("other").expect("written") > mount);
    }

    #[test]
    fn a_record_of_an_earlier_version_is_read() {
        let place = tempfile::tempdir().expect("a directory");
        let file = place.path().join("mounts.json");
        let text = r#"{"last": 2, "views": {"1": "main"},
            "mounts": {"2": {"path": "/mnt/a", "mode": "read_write", "workspace": "main", "since": 7}}}"#;
        std::fs::write(&file, text).expect("written");
        let pages = Book::open(&file).expect("read").read();
        assert_eq!(pages.mounts[&2].options, RecordedOptions::default());
        assert_eq!(pages.mounts[&2].path, Path::new("/mnt/a"));
    }

    #[test]
    fn a_damaged_book_is_refused_and_left_alone() {
        let place = tempfile::tempdir().expect("a directory");
        let file = place.path().join("mounts.json");
        std::fs::write(&file, "{").expect("written");
        let failure = Book::open(&file).err().expect("refused");
        assert_eq!(failure.reason(), Reason::Corrupt);
        assert_eq!(std::fs::read(&file).expect("there"), b"{");
    }
}
