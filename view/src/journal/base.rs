//! The base of a journal: the stored state that its first file is replayed on.

use std::path::Path;

use amalgam_engine::workspace::JournaledCommit;
use amalgam_engine::{Error as EngineError, SnapshotId, Store, WorkingTree};

use super::file::{Identity, MAGIC, new_identity, remove_files};
use crate::encoding::{Reader, Writer, io_error, replace_file, seal, unseal};
use crate::error::{Error, Result};

/// Name of the file in a view's directory that names the stored state its journal starts from.
pub const FILE_NAME: &str = "base";

/// The base of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JournalBase {
    /// The state that the first file is replayed on; `None` for the empty tree.
    pub(crate) state: Option<SnapshotId>,
    /// The snapshot that the next commit follows.
    pub(crate) head: Option<SnapshotId>,
    /// Number of the first file.
    pub(super) first: u64,
    pub(super) identity: Identity,
    /// Bytes that went into the state by checkpoints, without a commit.
    pub(super) checkpointed_bytes: u64,
}

impl JournalBase {
    /// Reads the base of the journal in a directory; `None` if there is no journal.
    pub(crate) fn read(directory: &Path) -> Result<Option<Self>> {
        let path = directory.join(FILE_NAME);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io_error("read the journal's base")(error)),
        };
        match Self::decode(&bytes) {
            Some(base) => Ok(Some(base)),
            None => Err(Error::Engine(EngineError::DamagedRecord {
                what: format!("journal base {}", path.display()),
                why: "it does not have the form that this version writes".to_owned(),
            })),
        }
    }

    /// Moves the base after a commit that was taken from this journal, if the journal does not have that commit.
    pub(crate) fn move_after_commit(
        self,
        store: &Store,
        directory: &Path,
        journaled: Option<JournaledCommit>,
    ) -> Result<Self> {
        if self.identity == Identity::default() {
            return Ok(Self { identity: new_identity()?, ..self });
        }
        let Some(JournaledCommit { snapshot, place }) = journaled else { return Ok(self) };
        if place.journal != self.identity || place.file <= self.first || WorkingTree::open(store, snapshot).is_err() {
            return Ok(self);
        }
        // The snapshot must be on disk before the files before it are removed.
        store.sync()?;
        let moved =
            Self { state: Some(snapshot), head: Some(snapshot), first: place.file, checkpointed_bytes: 0, ..self };
        moved.write(directory)?;
        Ok(moved)
    }

    /// Makes this the base of the journal in a directory, durably.
    pub(crate) fn write(&self, directory: &Path) -> Result<()> {
        replace_file(directory, FILE_NAME, &self.encode())
    }

    /// Removes the files before the base.
    pub(crate) fn remove_earlier(&self, directory: &Path) -> Result<()> {
        remove_files(directory, |number| number < self.first)
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        let mut out = Writer(&mut bytes);
        for snapshot in [self.state, self.head] {
            out.bytes(snapshot.as_ref().map_or(&[], |snapshot| snapshot.as_bytes()));
        }
        out.u64(self.first).bytes(&self.identity).u64(self.checkpointed_bytes);
        seal(bytes)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader(unseal(bytes)?.strip_prefix(MAGIC)?);
        let mut snapshot = || -> Option<Option<SnapshotId>> {
            match from.bytes()? {
                [] => Some(None),
                bytes => Some(Some(SnapshotId::from_bytes(bytes.try_into().ok()?))),
            }
        };
        let (state, head, first) = (snapshot()?, snapshot()?, from.u64()?);
        // Early versions wrote neither identity nor byte count.
        let identity = if from.0.is_empty() { Identity::default() } else { from.bytes()?.try_into().ok()? };
        let checkpointed_bytes = if from.0.is_empty() { 0 } else { from.u64()? };
        Some(Self { state, head, first, identity, checkpointed_bytes })
    }
}
