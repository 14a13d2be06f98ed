//! Commands of projects' rules that a person has approved: by the hash of their text, in the store's home. An approval is in no tree,
//! no stream and no backup.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use amalgam_engine::ChunkId;
use amalgam_engine::workspace::WorkspaceName;
use amalgam_proto::Reason;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::home::{Home, replace_file};

const FILE: &str = "approved-commands.json";
/// Keeps the hash of a command apart from that of a file with the same text.
const DOMAIN: &[u8] = b"amalgam rule command\0";
/// The number of digits of a hash in messages: 64 bits, for which no second command can be found on purpose.
const SHORT: usize = 16;

/// The approved commands, by the hash of their text.
pub(crate) struct Approvals {
    file: PathBuf,
    approved: Mutex<BTreeMap<String, Approval>>,
}

/// The approval of a command: its actor and its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Approval {
    pub(super) command: String,
    pub(super) actor: String,
    pub(super) time: i64,
}

/// Returns the hash of a command's text, which differs from the hash of a file with this text.
pub(super) fn hash_of(command: &str) -> String {
    ChunkId::of(&[DOMAIN, command.as_bytes()].concat()).to_string()
}

/// Returns why a command is not run, with the command line that approves it.
pub(super) fn refusal(command: &str, source: &str, target: &WorkspaceName) -> String {
    let hash = hash_of(command);
    format!(
        "the command `{command}` of {source} is not approved: `amalgam rules approve {} --into {target}` shows it, and lets it run",
        &hash[..SHORT]
    )
}

impl Approvals {
    /// Reads the approvals of a home. A file that cannot be read is an error: no approval is guessed.
    pub(crate) fn open(home: &Home) -> Result<Self> {
        let file = home.path().join(FILE);
        let action = format!("read {}", file.display());
        let approved = match std::fs::read(&file) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| {
                let message = format!("{}: {error}; remove it, and approve commands again", file.display());
                Error::new(Reason::Invalid, message)
            })?,
            Err(source) if source.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(source) => return Err(Error::io(action)(source)),
        };
        Ok(Self { file, approved: Mutex::new(approved) })
    }

    /// Returns whether exactly this command was approved.
    pub(super) fn is_approved(&self, command: &str) -> bool {
        // The text is compared, too, so that a wrong key in the file approves nothing.
        self.approved.lock().get(&hash_of(command)).is_some_and(|approval| approval.command == command)
    }

    /// Returns all approvals, by the hashes of their commands.
    pub(super) fn all(&self) -> BTreeMap<String, Approval> {
        self.approved.lock().clone()
    }

    /// Keeps an approval.
    pub(super) fn add(&self, hash: &str, approval: Approval) -> Result<()> {
        self.change(|approved| drop(approved.insert(hash.to_owned(), approval)))
    }

    /// Takes an approval back, by the whole hash of the command's text.
    pub(super) fn revoke(&self, hash: &str) -> Result<()> {
        if !self.approved.lock().contains_key(hash) {
            return Err(Error::new(Reason::NotFound, format!("no command with the hash {hash} is approved")));
        }
        self.change(|approved| drop(approved.remove(hash)))
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, Approval>)) -> Result<()> {
        let mut approved = self.approved.lock();
        let mut changed = approved.clone();
        change(&mut changed);
        let bytes = serde_json::to_vec_pretty(&changed).expect("approvals are plain values");
        replace_file(&self.file, &bytes).map_err(Error::io(format!("write {}", self.file.display())))?;
        *approved = changed;
        Ok(())
    }
}
