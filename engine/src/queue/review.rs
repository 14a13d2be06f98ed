//! A review: a merge that was tried and needs a decision, with the conflicts that prevented it. Its reference protects the
//! versions from garbage collection: the snapshot to merge, the target's head at that time, and the merge bases.

use serde_json::{Value, json};

use super::entry::{self, QueueEntry, QueueOptions, REVIEW_PREFIX, SideChoice, path_value, read_path};
use super::{Queue, only};
use crate::error::{Error, Result};
use crate::id::SnapshotId;
use crate::merge::PathConflict;
use crate::name::TreePath;
use crate::operation::{OperationContext, Step, hold_snapshot, move_refs, snapshot_of};
use crate::reference::{REF_NOTE_BYTES_MAX, RefName, RefValue};
use crate::workspace::WorkspaceName;

/// Maximum total length of the paths that a review lists, in bytes.
const PATHS_BYTES_MAX: usize = 32 << 10;
/// Maximum number of merge bases that it keeps.
const BASES_MAX: usize = 8;
/// Maximum length of a reason, in bytes.
const REASON_BYTES_MAX: usize = 16 << 10;

/// A merge that waits for a decision by a user.
#[derive(Clone, Debug, PartialEq)]
pub struct Review {
    /// The entry to merge.
    pub entry: QueueEntry,
    /// The target's head when the merge was tried.
    pub ours: Option<SnapshotId>,
    /// The merge bases.
    pub bases: Vec<SnapshotId>,
    /// The conflicts.
    pub conflicts: Vec<ReviewedPath>,
    /// Number of conflicts that were omitted to limit the size.
    pub left_out: u64,
    /// The reason for the review besides its conflicts; may be empty.
    pub reason: String,
}

/// A conflicting path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReviewedPath {
    /// The path.
    pub path: TreePath,
    /// The name of the conflict kind.
    pub kind: String,
}

/// Builds the reference of a new review.
pub(super) fn reference(
    entry: &QueueEntry,
    ours: Option<SnapshotId>,
    bases: &[SnapshotId],
    conflicts: &[PathConflict],
    reason: &str,
) -> Result<(RefName, RefValue)> {
    let name = entry::name(REVIEW_PREFIX, &entry.target, entry.time, &entry.source)?;
    let mut note: Value = serde_json::from_slice(&entry.value.note).unwrap_or_else(|_| json!({}));
    let (mut listed, mut bytes) = (Vec::new(), 0);
    for conflict in conflicts {
        // A path that is not UTF-8 takes up to four characters per byte.
        let kind = match (conflict.kind.word(), conflict.kind.detail()) {
            (word, detail) if detail.is_empty() => word.to_owned(),
            (word, detail) => format!("{word} ({detail})"),
        };
        bytes += conflict.path.as_bytes().len() * 4 + kind.len() * 2 + 64;
        if bytes > PATHS_BYTES_MAX {
            break;
        }
        listed.push(json!({ "path": path_value(&conflict.path), "kind": kind }));
    }
    let mut reason = reason.to_owned();
    reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
    note["has_ours"] = json!(ours.is_some());
    loop {
        note["left_out"] = json!(conflicts.len() - listed.len());
        note["conflicts"] = json!(listed);
        note["reason"] = json!(reason);
        if note.to_string().len() <= REF_NOTE_BYTES_MAX {
            break;
        }
        if note["reason"].to_string().len() > note["conflicts"].to_string().len() {
            reason.truncate(reason.floor_char_boundary(reason.len() / 2));
        } else if !listed.is_empty() {
            listed.truncate(listed.len() / 2);
        } else if !shorten(&mut note) {
            break;
        }
    }
    let keeps = ours.into_iter().chain(bases.iter().copied().take(BASES_MAX)).map(SnapshotId::object).collect();
    let value = RefValue { target: entry.value.target, keeps, note: note.to_string().into_bytes().into() };
    value.check().map_err(|why| Error::Invalid { what: "review", why: why.to_string() })?;
    Ok((name, value))
}

/// Removes what an entry can be merged without from its note, which has almost the size of a reference's note. Returns false if
/// there is nothing left to remove.
fn shorten(note: &mut Value) -> bool {
    let Some(fields) = note.as_object_mut() else { return false };
    let removed = ["message", "takes"].map(|key| fields.remove(key));
    removed.iter().any(Option::is_some)
}

impl Queue {
    /// Lists the reviews of one target or of all, oldest first for each target.
    pub fn reviews(&self, target: Option<&WorkspaceName>) -> Result<Vec<Review>> {
        self.read_all(REVIEW_PREFIX, target, usize::MAX)
            .map(|entries| entries.into_iter().filter_map(|entry| read(entry).ok()).collect())
    }

    /// Lists up to `limit` reviews of one target or of all, oldest first for each target, behind a position. Returns the position of the
    /// next page with them; none after the last page.
    ///
    /// # Errors
    /// The position is not one of this list, or the store cannot be read.
    pub fn reviews_page(
        &self,
        target: Option<&WorkspaceName>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<Review>, Option<String>)> {
        let (entries, next) = self.read_page(REVIEW_PREFIX, target, after, limit)?;
        Ok((entries.into_iter().filter_map(|entry| read(entry).ok()).collect(), next))
    }

    /// Returns the review whose id starts with this prefix.
    pub fn find_review(&self, id: &str) -> Result<Review> {
        only(self.reviews(None)?, id, |review| &review.entry.id, "review")
    }

    /// Creates the entry to resubmit a review: with conflicts kept, or with sides taken. `approver` takes responsibility for changes
    /// that the policy refuses; empty without an approval.
    pub fn again(
        &self,
        review: &Review,
        keep_conflicts: bool,
        choices: &[SideChoice],
        approver: &str,
        context: &OperationContext,
    ) -> Result<QueueEntry> {
        let approver = approver.to_owned();
        let mut options = QueueOptions { keep_conflicts, approver, ..review.entry.options.clone() };
        options.choices.extend_from_slice(choices);
        let QueueEntry { source, target, snapshot, agent, .. } = &review.entry;
        QueueEntry::new(source, target, *snapshot, &options, agent, context)
    }

    /// Puts a review back into the queue as this entry, for example one from [`again`](Self::again).
    pub fn resubmit(&self, review: &Review, entry: &QueueEntry, context: &OperationContext) -> Result<()> {
        let _pins = hold_snapshot(self.store(), entry.snapshot)?;
        let steps = vec![
            Step { name: entry.name.clone(), before: None, after: Some(entry.value.clone()) },
            Step { name: review.entry.name.clone(), before: Some(review.entry.value.clone()), after: None },
        ];
        move_refs(self.store(), context, context.draft(super::REVIEW), steps).map(drop)
    }

    /// Rejects a review without merging it. Its workspace does not change.
    pub fn reject(&self, review: &Review, context: &OperationContext) -> Result<()> {
        let step = Step { name: review.entry.name.clone(), before: Some(review.entry.value.clone()), after: None };
        move_refs(self.store(), context, context.draft("reject"), vec![step]).map(drop)
    }
}

/// Validates a reference of the queue or of a review from outside. Other references are accepted.
pub(crate) fn check_reference(name: &RefName, value: &RefValue) -> Result<()> {
    match QueueEntry::read(name, value)? {
        Some(entry) if name.as_str().starts_with(REVIEW_PREFIX) => read(entry).map(drop),
        _ => Ok(()),
    }
}

fn read(entry: QueueEntry) -> Result<Review> {
    let damaged = || Error::DamagedRecord { what: format!("reference {}", entry.name), why: "its note".to_owned() };
    let note: Value = serde_json::from_slice(&entry.value.note).map_err(|_| damaged())?;
    let path = |one: &Value| {
        let (path, kind) = (read_path(one.get("path")?)?, one.get("kind")?.as_str()?.to_owned());
        Some(ReviewedPath { path, kind })
    };
    let listed = note.get("conflicts").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let conflicts = listed.iter().map(path).collect::<Option<Vec<_>>>().ok_or_else(damaged)?;
    let mut kept = entry.value.keeps.iter().copied().filter_map(snapshot_of);
    let has_ours = note.get("has_ours").and_then(Value::as_bool).unwrap_or_default();
    let ours = if has_ours { kept.next() } else { None };
    let bases = kept.collect();
    let left_out = note.get("left_out").and_then(Value::as_u64).unwrap_or_default();
    let reason = note.get("reason").and_then(Value::as_str).unwrap_or_default().to_owned();
    Ok(Review { ours, bases, conflicts, left_out, reason, entry })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::merge::ConflictKind;
    use crate::time::Time;

    #[test]
    fn a_review_of_an_entry_with_the_longest_possible_note_fits_into_a_reference() {
        let workspace = |name: &str| WorkspaceName::new(name).expect("a name");
        let (snapshot, options) = (SnapshotId::from_bytes([1; 32]), QueueOptions::default());
        let context = OperationContext::new("ada", Time(1));
        let entry = QueueEntry::new(&workspace("x"), &workspace("main"), snapshot, &options, "", &context);
        let mut entry = entry.expect("an entry");
        let mut note: Value = serde_json::from_slice(&entry.value.note).expect("JSON");
        note["message"] = json!("m".repeat(REF_NOTE_BYTES_MAX - entry.value.note.len()));
        entry.value.note = note.to_string().into_bytes().into();
        assert_eq!(entry.value.note.len(), REF_NOTE_BYTES_MAX);
        let (path, places) = (TreePath::new("a").expect("a path"), [None, None]);
        let conflict = PathConflict { path, kind: ConflictKind::Contents, others: Vec::new(), is_entry: true, places };
        let reason = "\u{1}".repeat(REASON_BYTES_MAX);
        let (name, value) = reference(&entry, Some(snapshot), &[], &[conflict], &reason).expect("it fits");
        let review = read(QueueEntry::read(&name, &value).expect("it can be read").expect("a review")).expect("a note");
        assert_eq!((review.entry.source, review.ours, review.left_out), (workspace("x"), Some(snapshot), 1));
    }
}
