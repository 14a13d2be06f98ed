//! Which directory belongs to which workspace. One small file for each, written whole and renamed into place, so that a crash leaves
//! the old record or the new one.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use amalgam_engine::{RootId, SnapshotId, Time};
use amalgam_materializer::Identity;
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::home::replace_file;

/// A directory that belongs to a workspace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) id: String,
    #[serde(with = "path_text")]
    pub(crate) path: PathBuf,
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) birth: i64,
    pub(crate) workspace: String,
    #[serde(default)]
    pub(crate) exclude: Vec<String>,
    /// Nothing is left out of it: `.amalgamignore` files are files like others.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) takes_all: bool,
    /// The snapshot that the directory was last in step with.
    #[serde(default, with = "hex_id")]
    pub(crate) snapshot: Option<SnapshotId>,
    /// When it was last captured or checked, in nanoseconds since 1970.
    #[serde(default)]
    pub(crate) looked: i64,
    /// Whether a fork or a checkout made the directory, so that `ws rm --dir` may remove it.
    #[serde(default)]
    pub(crate) made_here: bool,
    /// How conflicts are shown in it, if not with markers.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) conflicts: String,
    /// The tree that it is being brought to: until that is done, its files may be of this tree or of the snapshot's.
    #[serde(default, with = "hex_id", skip_serializing_if = "Option::is_none")]
    pub(crate) aim: Option<RootId>,
    /// The tree of the snapshot, if that is known to have no conflict.
    #[serde(default, with = "hex_id", skip_serializing_if = "Option::is_none")]
    pub(crate) whole: Option<RootId>,
    /// A snapshot of the workspace in whose history no merge left a matter open that no file shows.
    #[serde(default, with = "hex_id", skip_serializing_if = "Option::is_none")]
    pub(crate) settled: Option<SnapshotId>,
    /// The watch of it that runs in the background, in every process that holds the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) background: Option<BackgroundWatch>,
    /// Paths that could not be written, and were not changed since, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) unwritten: Vec<UnwrittenPath>,
    /// How many such paths there were beyond those that are listed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) unlisted: u64,
    /// The undo or redo whose files are not all written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reverting: Option<Reverting>,
    /// The last operation of the workspace when the directory was attached. No capture of the directory is older.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) since: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(is_set: &bool) -> bool {
    !*is_set
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Record {
    pub(crate) fn identity(&self) -> Identity {
        Identity { device: self.device, inode: self.inode, birth: self.birth }
    }

    pub(crate) fn identify(&mut self, identity: Identity) {
        Identity { device: self.device, inode: self.inode, birth: self.birth } = identity;
    }

    pub(crate) fn snapshot(&self) -> Option<SnapshotId> {
        self.snapshot
    }

    pub(crate) fn in_step(&mut self, snapshot: Option<SnapshotId>, now: Time) {
        self.snapshot = snapshot;
        self.looked = now.0;
        self.aim = None;
        self.reverting = None;
    }
}

/// An undo or a redo in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reverting {
    /// The operation that moved the workspace.
    pub(crate) by: u64,
    /// The operation that it undoes or redoes.
    pub(crate) of: u64,
    /// Whether `.git` is written, too.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) with_git: bool,
    /// The tree that the directory had before; `None` once all files are written.
    #[serde(default, with = "hex_id")]
    pub(crate) from: Option<RootId>,
    /// The part that all temporary names of its checkout contain; empty before it has written a file.
    #[serde(default)]
    pub(crate) token: String,
    /// The request that wrote the rest after an interruption. A retry of it changes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) finished_by: Option<String>,
}

/// A path of a directory that could not be written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UnwrittenPath {
    #[serde(with = "path_text")]
    pub(crate) path: PathBuf,
    /// The entry that a capture found there right after the attempt.
    pub(crate) seen: String,
    /// The notice of it: its kind on the wire, its words, and whether it was a failure.
    pub(crate) kind: i32,
    pub(crate) message: String,
    pub(crate) failure: bool,
}

/// A watch in the background, as the record of a directory keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BackgroundWatch {
    pub(crate) quiet_milliseconds: u64,
    pub(crate) interval_milliseconds: u64,
    /// The actor that asked for the watch.
    pub(crate) actor: String,
}

/// All records of a home.
#[derive(Clone)]
pub(crate) struct Registry {
    place: PathBuf,
    records: Arc<Mutex<BTreeMap<String, Record>>>,
    /// The records in memory that could not be written to their files.
    unwritten: Arc<Mutex<BTreeSet<String>>>,
    turn: Arc<Mutex<()>>,
}

/// The file that says the last id that was given.
const LAST: &str = "last";

impl Registry {
    /// Reads all records. One that cannot be read is left alone and reported in words.
    pub(crate) fn open(place: &Path) -> Result<(Self, Vec<String>)> {
        let mut records = BTreeMap::new();
        let mut problems = Vec::new();
        let read = |source: std::io::Error| Error::io("read the registry of directories")(source);
        for file in fs::read_dir(place).map_err(read)? {
            let path = file.map_err(read)?.path();
            match path.extension().map(|suffix| suffix.as_bytes()) {
                Some(b"json") => {}
                // Left by a process that died while writing.
                Some(b"tmp") => {
                    let _ = fs::remove_file(&path);
                    continue;
                }
                _ => continue,
            }
            let record = fs::read(&path).map_err(|error| error.to_string());
            match record.and_then(|bytes| serde_json::from_slice::<Record>(&bytes).map_err(|error| error.to_string())) {
                Ok(record) => drop(records.insert(record.id.clone(), record)),
                Err(why) => problems.push(format!("{}: {why}", path.display())),
            }
        }
        let records = Arc::new(Mutex::new(records));
        let (unwritten, turn) = (Arc::default(), Arc::default());
        Ok((Self { place: place.to_owned(), records, unwritten, turn }, problems))
    }

    /// Locks the registry for a call that decides by its records which ones to add or to remove. The lock is taken before that of
    /// a directory or a view, never after.
    pub(crate) fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records.lock().is_empty()
    }

    pub(crate) fn all(&self) -> Vec<Record> {
        self.records.lock().values().cloned().collect()
    }

    pub(crate) fn get(&self, id: &str) -> Option<Record> {
        self.records.lock().get(id).cloned()
    }

    /// Returns an id that no directory has or had, because a client may still use an old one. Ids count up, so that names stay
    /// short. The caller holds the lock of [`turn`](Self::turn) until it has used the id.
    pub(crate) fn new_id(&self) -> Result<String> {
        let there = self.records.lock().keys().filter_map(|id| id.parse().ok()).max();
        let given = fs::read_to_string(self.place.join(LAST)).ok().and_then(|text| text.trim().parse().ok());
        let next = there.max(given).unwrap_or(0_u64) + 1;
        let failed = |source: std::io::Error| Error::io("write the registry of directories")(source);
        replace_file(&self.place.join(LAST), next.to_string().as_bytes()).map_err(failed)?;
        Ok(next.to_string())
    }

    pub(crate) fn put(&self, record: Record) -> Result<()> {
        let mut records = self.records.lock();
        self.write(&record)?;
        records.insert(record.id.clone(), record);
        Ok(())
    }

    /// Updates a record after the fact. If its file cannot be written, the record is kept in memory, and the next call writes it.
    pub(crate) fn note(&self, record: &Record) -> Result<()> {
        let mut records = self.records.lock();
        let is_written = !self.unwritten.lock().contains(&record.id);
        if is_written && records.get(&record.id) == Some(record) {
            return Ok(());
        }
        let written = self.write(record);
        records.insert(record.id.clone(), record.clone());
        written
    }

    fn write(&self, record: &Record) -> Result<()> {
        let failed = |source: std::io::Error| Error::io("write the registry of directories")(source);
        let bytes = serde_json::to_vec_pretty(record).expect("a record is plain data");
        let written = replace_file(&self.file(&record.id, "json"), &bytes).map_err(failed);
        let mut unwritten = self.unwritten.lock();
        match written {
            Ok(()) => unwritten.remove(&record.id),
            Err(_) => unwritten.insert(record.id.clone()),
        };
        written
    }

    pub(crate) fn remove(&self, id: &str) -> Result<()> {
        let mut records = self.records.lock();
        records.remove(id);
        self.unwritten.lock().remove(id);
        for kind in ["json", "index", "writing"] {
            match fs::remove_file(self.file(id, kind)) {
                Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Error::io("remove a record of the registry")(source));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the path of the file that marks a directory as being written to.
    pub(crate) fn writing_file(&self, id: &str) -> PathBuf {
        self.file(id, "writing")
    }

    /// Returns the path of the file that marks a directory, by its identity, as being written for the first time.
    pub(crate) fn unfinished_file(&self, identity: &str) -> PathBuf {
        self.file(identity, "unfinished")
    }

    /// Returns the path of the index of a directory.
    pub(crate) fn index_file(&self, id: &str) -> PathBuf {
        self.file(id, "index")
    }

    fn file(&self, id: &str, kind: &str) -> PathBuf {
        self.place.join(format!("{id}.{kind}"))
    }
}

/// Ids as hex text. Text that is no id reads as no id.
mod hex_id {
    use std::fmt::Display;

    use amalgam_engine::{RootId, SnapshotId};
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) trait FromHex: Sized {
        fn from_hex(text: &str) -> Option<Self>;
    }

    impl FromHex for RootId {
        fn from_hex(text: &str) -> Option<Self> {
            Self::from_hex(text)
        }
    }

    impl FromHex for SnapshotId {
        fn from_hex(text: &str) -> Option<Self> {
            Self::from_hex(text)
        }
    }

    pub(super) fn serialize<T: Display, S: Serializer>(id: &Option<T>, to: S) -> Result<S::Ok, S::Error> {
        match id {
            Some(id) => to.serialize_some(&id.to_string()),
            None => to.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, T: FromHex, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        Ok(text.as_deref().and_then(T::from_hex))
    }
}

/// Paths are bytes: as text where they are text, else as a list of numbers.
pub(crate) mod path_text {
    use super::{OsString, Path, PathBuf};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Form {
        Text(String),
        Bytes(Vec<u8>),
    }

    pub(crate) fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
        match path.to_str() {
            Some(text) => Form::Text(text.to_owned()),
            None => Form::Bytes(path.as_os_str().as_bytes().to_vec()),
        }
        .serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
        Ok(match Form::deserialize(from)? {
            Form::Text(text) => text.into(),
            Form::Bytes(bytes) => OsString::from_vec(bytes).into(),
        })
    }
}
