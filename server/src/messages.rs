//! Messages of the wire that several parts of the service send.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use amalgam_engine::reference::{Operation, RefValue};
use amalgam_engine::{ObjectKind, SnapshotId, Summary, TreePath};
use amalgam_materializer::{Notice, Progress, Rename, Why};
use amalgam_proto::{operation_name, v1};
use bytes::Bytes;

/// The most bytes of changes in one message; clients take 4 MiB.
pub(crate) const CHANGES_BYTES_MAX: usize = 1 << 20;

/// Converts an operation to its message, with the changes from index `first` on, as many as fit.
pub(crate) fn operation_from(operation: &Operation, first: usize) -> v1::Operation {
    let target = |value: &Option<RefValue>| {
        let target = value.as_ref().and_then(|value| value.target);
        match target {
            Some(id) if id.kind == ObjectKind::Snapshot => {
                amalgam_proto::snapshot_name(SnapshotId::from_bytes(id.hash))
            }
            Some(id) => id.to_string(),
            None => String::new(),
        }
    };
    let (mut changes, mut bytes) = (Vec::new(), 0);
    for change in operation.changes.iter().skip(first) {
        let change = v1::ReferenceChange {
            reference: change.name.to_string(),
            before: target(&change.before),
            after: target(&change.after),
        };
        bytes += change_bytes(&change);
        if bytes > CHANGES_BYTES_MAX && !changes.is_empty() {
            break;
        }
        changes.push(change);
    }
    let reverts = operation.draft.reverts.and_then(|revert| revert.undone().or(revert.redone()));
    v1::Operation {
        name: operation_name(operation.sequence),
        sequence: operation.sequence,
        actor: operation.draft.actor.clone(),
        time: Some(amalgam_proto::timestamp(operation.draft.time)),
        action: operation.draft.action.clone(),
        reverts: reverts.unwrap_or(0),
        changes_left_out: operation.changes.len().saturating_sub(first + changes.len()) as u64,
        changes,
    }
}

/// Returns about how many bytes of a message a change takes.
pub(crate) fn change_bytes(change: &v1::ReferenceChange) -> usize {
    change.reference.len() + change.before.len() + change.after.len() + 12
}

/// Converts an operation to its message. A large one has its first changes, and the number of the others.
pub(crate) fn operation_message(operation: &Operation) -> v1::Operation {
    operation_from(operation, 0)
}

/// Returns the bytes of a path.
pub(crate) fn path_bytes(path: &Path) -> Bytes {
    Bytes::copy_from_slice(path.as_os_str().as_bytes())
}

/// Converts a rename to its message.
pub(crate) fn renamed_message(renamed: &Rename) -> v1::RenamedPath {
    let bytes = |path: &TreePath| Bytes::copy_from_slice(path.as_bytes());
    v1::RenamedPath { from_path: bytes(&renamed.from), path: bytes(&renamed.to) }
}

/// Converts a notice to its message.
pub(crate) fn notice(notice: &Notice) -> v1::Notice {
    let kind = match &notice.why {
        Why::Ignored | Why::Uncovered => v1::NoticeKind::Ignored,
        Why::Ours => v1::NoticeKind::Ours,
        Why::OtherFileSystem => v1::NoticeKind::OtherFileSystem,
        Why::Failed { .. } => v1::NoticeKind::Failed,
        Why::Changing => v1::NoticeKind::Changing,
        Why::ChangedSince | Why::KeptBeside(_) => v1::NoticeKind::ChangedSince,
        Why::Unsupported(_) => v1::NoticeKind::Unsupported,
        Why::NotEmpty => v1::NoticeKind::NotEmpty,
        Why::Purged(_) => v1::NoticeKind::Purged,
        Why::Damaged(_) => v1::NoticeKind::Damaged,
        Why::OwnerNotSet => v1::NoticeKind::OwnerNotSet,
        Why::Withheld => v1::NoticeKind::Withheld,
        Why::GitFile => v1::NoticeKind::GitFile,
        _ => v1::NoticeKind::Unspecified,
    };
    v1::Notice {
        path: bytes::Bytes::copy_from_slice(notice.path.as_bytes()),
        kind: kind.into(),
        message: notice.why.to_string(),
        failure: notice.why.is_failure(),
    }
}

/// The phase of a long call, in its progress messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Look,
    Read,
    Write,
    Verify,
    Import,
    Export,
    Send,
    Receive,
    Plan,
    Purge,
}

impl Phase {
    /// Returns the word for the phase in messages.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Look => "look",
            Self::Read => "read",
            Self::Write => "write",
            Self::Verify => "verify",
            Self::Import => "import",
            Self::Export => "export",
            Self::Send => "send",
            Self::Receive => "receive",
            Self::Plan => "plan",
            Self::Purge => "purge",
        }
    }
}

/// Converts the progress of a call to its message.
pub(crate) fn progress_message(phase: Phase, progress: &Progress) -> v1::Progress {
    use std::sync::atomic::Ordering::Relaxed;
    v1::Progress {
        phase: phase.word().to_owned(),
        names: progress.seen.load(Relaxed),
        files: progress.files.load(Relaxed),
        files_total: progress.files_total.load(Relaxed),
        bytes: progress.bytes.load(Relaxed),
        bytes_total: progress.bytes_total.load(Relaxed),
    }
}

/// Lists the first paths in words, with the number of the others.
pub(crate) fn words_of(paths: &[TreePath]) -> String {
    const SHOWN: usize = 3;
    let mut text = paths.iter().take(SHOWN).map(TreePath::to_string).collect::<Vec<_>>().join(", ");
    if paths.len() > SHOWN {
        text.push_str(&format!(" and {} more", paths.len() - SHOWN));
    }
    text
}

/// Converts the counts of a change to their message.
pub(crate) fn summary_message(summary: &Summary) -> v1::ChangeSummary {
    let files = summary.files;
    v1::ChangeSummary {
        files_added: files.added,
        files_removed: files.removed,
        files_modified: files.modified,
        files_renamed: files.renamed,
        files_other: files.kind_changed + files.metadata,
        directories_changed: summary.directories.total(),
        lines_added: summary.lines_added,
        lines_removed: summary.lines_removed,
        bytes_before: summary.bytes_before,
        bytes_after: summary.bytes_after,
        binary: summary.binary,
        risk_weight: summary.risk_weight,
        risks: summary.risks.iter().map(|(word, count)| ((*word).to_owned(), *count)).collect(),
        score: summary.score(),
    }
}
