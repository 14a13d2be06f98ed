//! Events that are no changes of workspaces: overlaps of the radar and refusals of the policy. Each is an operation that moves a
//! reference of its own; the note of the reference says what happened.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use amalgam_engine::reference::Operation;
use serde::{Deserialize, Serialize};

/// The action, and the kind of the event, of workspaces that changed a path which others had changed.
pub(crate) const OVERLAP_BEGAN: &str = "overlap.began";
/// The action, and the kind of the event, of workspaces that left an overlap.
pub(crate) const OVERLAP_ENDED: &str = "overlap.ended";
/// The start of the references of overlaps.
pub(crate) const OVERLAP_PREFIX: &str = "overlap/";
/// The action, and the kind of the event, of an act that the policy refused.
pub(crate) const POLICY_REFUSED: &str = "policy.refused";
/// The start of the references of refusals.
pub(crate) const REFUSED_PREFIX: &str = "refused/";

/// The note of an overlap's reference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OverlapNote {
    pub(crate) path: String,
    /// The workspaces that changed the path, the earliest first.
    pub(crate) workspaces: Vec<String>,
    /// When the second of them changed it, in nanoseconds.
    pub(crate) since: i64,
}

/// The note of a refusal's reference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RefusalNote {
    pub(crate) agent: String,
    pub(crate) path: String,
    pub(crate) act: String,
    pub(crate) rule: String,
    pub(crate) level: String,
    /// Refusals before this one that have no event of their own.
    pub(crate) left_out: u64,
    /// In nanoseconds.
    pub(crate) time: i64,
}

/// The notice that an operation carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    Overlap(OverlapNote),
    Refusal(RefusalNote),
}

/// Returns whether operations of an action have a notice.
pub(crate) fn has_notice(action: &str) -> bool {
    [OVERLAP_BEGAN, OVERLAP_ENDED, POLICY_REFUSED].contains(&action)
}

impl Notice {
    /// Reads the notice of an operation, or returns `None` if it has none.
    pub(crate) fn of_operation(operation: &Operation) -> Option<Self> {
        let change = operation.changes.first()?;
        let value = change.after.as_ref().or(change.before.as_ref())?;
        match operation.draft.action.as_str() {
            // The value before the end names the workspaces of the overlap.
            OVERLAP_ENDED => {
                let value = change.before.as_ref().or(change.after.as_ref())?;
                serde_json::from_slice(&value.note).ok().map(Self::Overlap)
            }
            OVERLAP_BEGAN => serde_json::from_slice(&value.note).ok().map(Self::Overlap),
            POLICY_REFUSED => serde_json::from_slice(&value.note).ok().map(Self::Refusal),
            _ => None,
        }
    }
}

/// The number of subscribers that listen for overlaps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listeners(Arc<AtomicUsize>);

/// A subscriber that listens while this exists.
#[derive(Debug)]
pub(crate) struct Listening(Listeners);

impl Listeners {
    pub(crate) fn listen(&self) -> Listening {
        self.0.fetch_add(1, Ordering::Relaxed);
        Listening(self.clone())
    }

    pub(crate) fn is_any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}
