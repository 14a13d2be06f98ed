//! The differences between two states.

use std::io;

use amalgam_engine::insight::{Contents, Omission};
use amalgam_engine::{
    Change, DiffOptions, FileInsight, InsightOptions, PatchOptions, RiskHint, TreePath, What, diff_roots,
    diff_with_renames, insight,
};
use amalgam_proto::{change_kind, v1};
use bytes::Bytes;

use super::super::Sender;
use super::paths::{is_wanted, tree_paths};
use crate::conflicts::CaptionSource;
use crate::context::HeldTree;
use crate::error::{Error, Result};
use crate::messages::summary_message;
use crate::service::Service;

const AT_ONCE: usize = 256;
/// The approximate size of the pieces in which a patch is sent.
const PIECE_BYTES: usize = 256 << 10;

fn hold(
    service: &Service,
    before: Option<&v1::State>,
    after: Option<&v1::State>,
    workspace: &str,
) -> Result<(HeldTree, HeldTree)> {
    let here = service.context.here(workspace)?;
    Ok((service.directories.hold_state(before, here.as_ref())?, service.directories.hold_state(after, here.as_ref())?))
}

/// Returns a change, for the wire.
fn change_message(change: &Change) -> v1::Change {
    let bytes = |path: &amalgam_engine::TreePath| Bytes::copy_from_slice(path.as_bytes());
    let from = match &change.what {
        What::Renamed { from } => Some(from),
        _ => None,
    };
    let metadata = change.metadata;
    let differing = [
        ("mode", metadata.mode),
        ("mtime", metadata.mtime),
        ("owner", metadata.owner),
        ("xattrs", metadata.xattrs),
        ("link", metadata.link),
    ];
    v1::Change {
        path: bytes(&change.path),
        kind: change_kind(&change.what).into(),
        from_path: from.map(bytes).unwrap_or_default(),
        before: change.before.as_ref().map(|entry| amalgam_proto::entry(from.unwrap_or(&change.path), entry)),
        after: change.after.as_ref().map(|entry| amalgam_proto::entry(&change.path, entry)),
        attributes: differing.iter().filter(|(_, differs)| *differs).map(|(word, _)| (*word).to_owned()).collect(),
    }
}

/// Sends the differences, path by path.
pub(super) fn diff(
    service: &Service,
    request: &v1::DiffStatesRequest,
    sender: &Sender<v1::DiffStatesResponse>,
) -> Result<()> {
    let wanted = tree_paths(&request.paths)?;
    let (before, after) = hold(service, request.before.as_ref(), request.after.as_ref(), &request.workspace)?;
    sender.caller.walking(|| send_changes(service, request, [&before, &after], &wanted, sender))
}

fn send_changes(
    service: &Service,
    request: &v1::DiffStatesRequest,
    [before, after]: [&HeldTree; 2],
    wanted: &[TreePath],
    sender: &Sender<v1::DiffStatesResponse>,
) -> Result<()> {
    let options = DiffOptions { times: request.times, without_git: request.without_git };
    let store = &service.context.store;
    let found: Box<dyn Iterator<Item = amalgam_engine::Result<Change>>> = match request.renames {
        true => Box::new(diff_with_renames(store, before.root, after.root, options)?.into_iter().map(Ok)),
        false => Box::new(diff_roots(store, before.root, after.root, options)?),
    };
    let mut changes = Vec::new();
    for change in found {
        let change = change?;
        if is_wanted(&change.path, wanted) {
            changes.push(change_message(&change));
        }
        if changes.len() == AT_ONCE {
            sender.send(v1::DiffStatesResponse { changes: std::mem::take(&mut changes), git_changes: 0 })?;
        }
    }
    let git_changes = if request.without_git { git_changes(service, before, after, wanted)? } else { 0 };
    sender.send(v1::DiffStatesResponse { changes, git_changes })
}

/// Counts the paths in `.git` that differ between two trees.
fn git_changes(service: &Service, before: &HeldTree, after: &HeldTree, wanted: &[TreePath]) -> Result<u64> {
    let mut count = 0;
    let diff = diff_roots(&service.context.store, before.root, after.root, DiffOptions::default());
    for change in diff? {
        let path = change?.path;
        count += u64::from(path.is_in_git() && is_wanted(&path, wanted));
    }
    Ok(count)
}

/// Sends the insights of a change.
pub(super) fn inspect(
    service: &Service,
    request: &v1::InspectChangeRequest,
    sender: &Sender<v1::InspectChangeResponse>,
) -> Result<()> {
    let wanted = tree_paths(&request.paths)?;
    let (before, after) = hold(service, request.before.as_ref(), request.after.as_ref(), &request.workspace)?;
    sender.caller.walking(|| send_insight(service, request, [&before, &after], &wanted, sender))
}

fn send_insight(
    service: &Service,
    request: &v1::InspectChangeRequest,
    [before, after]: [&HeldTree; 2],
    wanted: &[TreePath],
    sender: &Sender<v1::InspectChangeResponse>,
) -> Result<()> {
    let options = InsightOptions { without_git: request.without_git, ..InsightOptions::default() };
    let mut found = insight(&service.context.store, before.root, after.root, &options)?;
    let mut files = Vec::new();
    for file in found.by_ref() {
        let file = file?;
        if is_wanted(&file.change.path, wanted) {
            files.push(file_message(&file));
        }
        if files.len() == AT_ONCE {
            let files = std::mem::take(&mut files);
            sender.send(v1::InspectChangeResponse { files, ..Default::default() })?;
        }
    }
    let summary = summary_message(found.summary());
    let git_changes = if request.without_git { git_changes(service, before, after, wanted)? } else { 0 };
    sender.send(v1::InspectChangeResponse { files, summary: Some(summary), git_changes })
}

fn file_message(file: &FileInsight) -> v1::FileInsight {
    let (lines_added, lines_removed) = match file.contents {
        Contents::Text { lines_added, lines_removed } => (lines_added, lines_removed),
        _ => (0, 0),
    };
    let risk = |risk: &amalgam_engine::Risk| v1::Risk {
        kind: risk.hint.word().to_owned(),
        message: risk_words(&risk.hint),
        weight: risk.hint.weight(),
    };
    v1::FileInsight {
        change: Some(change_message(&file.change)),
        binary: matches!(file.contents, Contents::Binary | Contents::TooLarge),
        lines_added,
        lines_removed,
        bytes_before: file.bytes_before,
        bytes_after: file.bytes_after,
        language: file.language.unwrap_or_default().to_owned(),
        similarity_percent: file.similarity.unwrap_or(0).into(),
        risks: file.risks.iter().map(risk).collect(),
    }
}

fn risk_words(hint: &RiskHint) -> String {
    match hint {
        RiskHint::Executable => "became executable".to_owned(),
        RiskHint::SetId { bits } => format!("set-user-ID or set-group-ID bit set ({bits:o})"),
        RiskHint::LockFile => "a lock file: exact versions of dependencies".to_owned(),
        RiskHint::CiFile => "configures continuous integration".to_owned(),
        RiskHint::CredentialName => "named like a file with credentials".to_owned(),
        RiskHint::Credential { shape, line } => format!("line {line} looks like {shape}"),
        RiskHint::Growth { before, after } => format!("grew from {before} to {after} bytes"),
        RiskHint::TestRemoved => "a test was removed".to_owned(),
        RiskHint::BinaryAdded { bytes } => format!("a new binary file of {bytes} bytes"),
        RiskHint::SymlinkOutside { target } => {
            format!("symlink out of the tree, to {}", String::from_utf8_lossy(target))
        }
        other => other.word().to_owned(),
    }
}

/// Sends a unified patch, in pieces.
pub(super) fn patch(
    service: &Service,
    request: &v1::GetPatchRequest,
    sender: &Sender<v1::GetPatchResponse>,
) -> Result<()> {
    let paths = tree_paths(&request.paths)?;
    let (before, after) = hold(service, request.before.as_ref(), request.after.as_ref(), &request.workspace)?;
    let git_changes = if request.without_git { git_changes(service, &before, &after, &paths)? } else { 0 };
    let mut options = PatchOptions { paths, without_git: request.without_git, ..PatchOptions::default() };
    if let Some(lines) = request.context_lines {
        options.context_lines = lines as usize;
    }
    let mut out = Pieces { sender, waiting: Vec::with_capacity(PIECE_BYTES) };
    // A patch cannot show conflicts, so it compares the rendered trees.
    let report = sender.caller.walking(|| {
        let here = service.context.here(&request.workspace)?;
        let [before, after] =
            [&before, &after].map(|held| (held.root, CaptionSource::of(held.snapshot, here.as_ref())));
        let faces = service.conflicts.faces_of_difference(before, after)?;
        let [before, after] = faces.each_ref().map(|faced| faced.as_ref().map(|faced| faced.rendered));
        Ok::<_, Error>(amalgam_engine::patch(&service.context.store, before, after, &options, &mut out)?)
    })?;
    let data = Bytes::from(std::mem::take(&mut out.waiting));
    let left_out = report.left_out.iter().map(|left| v1::PatchOmission {
        path: Bytes::copy_from_slice(left.path.as_bytes()),
        message: omission_words(left.why),
    });
    sender.send(v1::GetPatchResponse { data, left_out: left_out.collect(), git_changes })
}

fn omission_words(why: Omission) -> String {
    match why {
        Omission::EmptyDirectory => "an empty directory, which a patch cannot hold".to_owned(),
        Omission::Kind(kind) => format!("{}, which a patch cannot hold", kind.word()),
        Omission::Mode => "permission bits other than the executable one".to_owned(),
        Omission::Time => "its time".to_owned(),
        Omission::Owner => "its owner".to_owned(),
        Omission::Xattrs => "its extended attributes".to_owned(),
        Omission::HardLink => "hard links".to_owned(),
        Omission::TooLarge { bytes } => format!("too large for a patch ({bytes} bytes)"),
        Omission::Purged { time } => format!("purged on {}", time.date()),
        Omission::GitDirectory => "inside .git; Git refuses such patches".to_owned(),
        _ => "not in the patch".to_owned(),
    }
}

/// A writer that sends its bytes as answers.
struct Pieces<'a> {
    sender: &'a Sender<v1::GetPatchResponse>,
    waiting: Vec<u8>,
}

impl io::Write for Pieces<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.waiting.extend_from_slice(bytes);
        if self.waiting.len() >= PIECE_BYTES {
            let data = Bytes::from(std::mem::take(&mut self.waiting));
            let sent = self.sender.send(v1::GetPatchResponse { data, ..Default::default() });
            sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
