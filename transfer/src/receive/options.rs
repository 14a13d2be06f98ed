//! Options and report of receiving a stream.

use amalgam_engine::reference::RefName;
use amalgam_engine::{Error as EngineError, Pin, SnapshotId};

use super::omissions::Omissions;
use crate::error::Result;

/// Options of receiving a stream.
#[derive(Clone, Debug, Default)]
pub struct ReceiveOptions {
    /// How the names of the stream are set.
    pub names: Names,
    /// Overwrite a name even if its present target is no ancestor of the new one.
    pub replace: bool,
    /// Accept tombstones for content that the sender has purged. They keep bytes out of this store, so accept them only from a
    /// trusted sender. Without this, a stream with purged content is refused.
    pub tombstones: bool,
}

/// Result of receiving a stream.
#[derive(Debug, Default)]
pub struct ReceiveReport {
    /// Objects and records in the stream.
    pub objects: u64,
    /// Those that the store did not have.
    pub objects_new: u64,
    /// Snapshots with their trees.
    pub snapshots: u64,
    /// Names that were set.
    pub names: Vec<RefName>,
    /// The snapshots that were asked for.
    pub tips: Vec<SnapshotId>,
    /// The length of the stream.
    pub bytes: u64,
    /// Omissions of a restore. Always empty for a stream, which is received completely or not at all.
    pub left_out: Omissions,
    /// Pins that protect the received objects from collection: snapshots without a name have no other protection.
    pub pins: Vec<Pin>,
}

/// How the names of a stream are set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Names {
    /// Unchanged.
    #[default]
    AsSent,
    /// With a prefix: `workspace/main` becomes `workspace/WORD/main`, and so on.
    Under(String),
    /// Not at all: only the returned pins protect the received objects.
    None,
}

impl Names {
    pub(super) fn local_name(&self, name: &RefName) -> Result<Option<RefName>> {
        match self {
            Self::AsSent => Ok(Some(name.clone())),
            Self::None => Ok(None),
            Self::Under(word) => {
                let (kind, rest) = name.as_str().split_once('/').unwrap_or(("", name.as_str()));
                // Notes and rewards are named by the id of their snapshot, independent of their origin.
                if matches!(kind, "note" | "reward") {
                    return Ok(Some(name.clone()));
                }
                let here = RefName::new(format!("{kind}/{word}/{rest}"));
                let why = |why: amalgam_engine::Malformed| EngineError::Invalid { what: "name", why: why.to_string() };
                Ok(Some(here.map_err(why)?))
            }
        }
    }
}
