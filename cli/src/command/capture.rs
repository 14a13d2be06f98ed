//! Takes a snapshot of a directory and prints the result, for several commands.

use std::collections::HashMap;

use amalgam_proto::v1;
use serde_json::{Value, json};

use crate::connect::Client;
use crate::error::CliError;
use crate::exit::Exit;
use crate::output::progress::drive;
use crate::output::style::{self, paint};
use crate::output::{Output, json as lines};
use crate::text;

/// Maximum number of skipped paths that are printed without `--verbose`.
const NOTICES_MAX: usize = 20;

/// Message, labels and metadata of a new snapshot.
#[derive(Clone, Debug, Default)]
pub struct SnapshotInfo {
    /// Why it is taken.
    pub message: String,
    /// Labels to put on it.
    pub labels: Vec<String>,
    /// Keys and values to store beside the message.
    pub metadata: HashMap<String, String>,
}

impl SnapshotInfo {
    /// Returns the info of a snapshot that has a message only.
    pub fn message(message: impl Into<String>) -> Self {
        Self { message: message.into(), ..Self::default() }
    }
}

/// Takes a snapshot of a directory, if it differs from the head.
pub async fn capture(
    output: &Output,
    client: &mut Client,
    directory: &str,
    about: SnapshotInfo,
) -> Result<v1::CaptureResult, CliError> {
    drive(output, client.directories.capture_directory(request(directory, about))).await
}

/// Takes a snapshot of a directory, and looks at every file of it, watched or not: the result counts all ignored paths and has a
/// notice for each path that could not be captured.
pub async fn capture_all(
    output: &Output,
    client: &mut Client,
    directory: &str,
    about: SnapshotInfo,
) -> Result<v1::CaptureResult, CliError> {
    let request = v1::CaptureDirectoryRequest { all: true, ..request(directory, about) };
    drive(output, client.directories.capture_directory(request)).await
}

fn request(directory: &str, about: SnapshotInfo) -> v1::CaptureDirectoryRequest {
    v1::CaptureDirectoryRequest {
        name: directory.to_owned(),
        message: about.message,
        metadata: about.metadata.into_iter().collect(),
        labels: about.labels,
        ..Default::default()
    }
}

/// Describes the number of changed paths, for example `12 changed (+3 ~8 -1), 5 of them in .git`. A directory's new times are
/// part of its snapshot, and are no changed path.
pub fn changed(result: &v1::CaptureResult) -> String {
    let all = result.added + result.modified + result.removed;
    if all == 0 && result.changed {
        return "only times changed".to_owned();
    }
    let words = format!("{} changed (+{} ~{} -{})", text::count(all), result.added, result.modified, result.removed);
    match result.in_git {
        0 => words,
        count => format!("{words}, {} of them in .git", text::count(count)),
    }
}

/// Describes the number of captured files, for example `79,314 files covered, 2 ignored`.
pub fn covered(counts: &v1::Counts) -> String {
    let mut words = format!("{} covered", text::plural(counts.files + counts.symlinks + counts.others, "file"));
    if counts.ignored > 0 {
        words.push_str(&format!(", {} ignored", text::count(counts.ignored)));
    }
    words
}

/// Returns one line that describes a new snapshot.
pub fn line(result: &v1::CaptureResult) -> String {
    let snapshot = result.snapshot.as_ref().map_or("", |snapshot| snapshot.name.as_str());
    let workspace = result.workspace.as_ref().map_or("", |workspace| workspace.name.as_str());
    let what = format!(
        "{}  {}  {}",
        paint(style::ID, text::short(snapshot)),
        paint(style::WORKSPACE, text::id(workspace)),
        changed(result)
    );
    // A mount knows its changes, so its tree is not walked to count files.
    match &result.counts {
        Some(counts) => format!("{what}, {}, store grew {}", covered(counts), text::bytes(result.stored_bytes)),
        None => what,
    }
}

/// Returns the JSON line of a capture, of the type `kind`.
pub fn json_line(kind: &str, result: &v1::CaptureResult) -> Value {
    lines::line(
        kind,
        json!({
            "snapshot": lines::snapshot_id(result.snapshot.as_ref()),
            "workspace": result.workspace.as_ref().map(|workspace| text::id(&workspace.name)),
            "changed": result.changed,
            "added": result.added,
            "modified": result.modified,
            "removed": result.removed,
            "stored_bytes": result.stored_bytes,
            "counts": result.counts.as_ref().map(lines::counts),
            "conflicts": result.conflicts.as_ref().map_or(0, |conflicts| conflicts.count),
            "in_git": result.in_git,
        }),
    )
}

/// Prints warnings about space that is getting short.
pub fn warn(output: &mut Output, warnings: &[String]) -> Result<(), CliError> {
    for warning in warnings {
        output.emit(&lines::line("warning", json!({"message": warning})))?;
        output.remark(format!("{} {}", paint(style::WARNING, "warning:"), text::printable(warning)))?;
    }
    Ok(())
}

/// Prints which paths were skipped. Returns [`Exit::PARTLY`] if one of them could not be captured.
pub fn report_notices(output: &mut Output, notices: &[v1::Notice]) -> Result<Exit, CliError> {
    for notice in notices {
        output.emit(&lines::notice(notice))?;
    }
    let (failures, others): (Vec<_>, Vec<_>) = notices.iter().partition(|notice| notice.failure);
    let exit = if failures.is_empty() { Exit::OK } else { Exit::PARTLY };
    let show = |notice: &v1::Notice, style| {
        format!("{}: {}", paint(style, text::path(&notice.path)), text::printable(&notice.message))
    };
    let shown = if output.is_verbose() { usize::MAX } else { NOTICES_MAX };
    for notice in failures.iter().take(shown) {
        output.remark(format!("{} {}", paint(style::WARNING, "skipped"), show(notice, style::TITLE)))?;
    }
    if failures.len() > shown {
        output.remark(format!("... and {} more; -v shows all", text::count((failures.len() - shown) as u64)))?;
    }
    // Always shown for a `.git` file: without it Git works in another repository, or in none.
    let is_shown = |notice: &&&v1::Notice| output.is_verbose() || notice.kind() == v1::NoticeKind::GitFile;
    let others: Vec<_> = others.iter().filter(is_shown).collect();
    for notice in others {
        output.remark(format!("left out: {}", show(notice, style::FAINT)))?;
    }
    if !output.is_verbose() {
        let ignored = |notice: &&v1::Notice| !notice.failure && notice.kind() == v1::NoticeKind::Ignored;
        let ignored: Vec<_> = notices.iter().filter(ignored).collect();
        output.remark(match ignored[..] {
            [] => return Ok(exit),
            [notice] => format!(
                "{} is left as it is on the disk, because ignore rules exclude it",
                paint(style::TITLE, text::path(&notice.path))
            ),
            _ => format!(
                "{} are left as they are on the disk, because ignore rules exclude them; -v lists them",
                text::plural(ignored.len() as u64, "path")
            ),
        })?;
    }
    Ok(exit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_one_line() {
        let result = v1::CaptureResult {
            snapshot: Some(v1::Snapshot { name: format!("snapshots/{}", "3f9a2c1e".repeat(8)), ..Default::default() }),
            workspace: Some(v1::Workspace { name: "workspaces/main".to_owned(), ..Default::default() }),
            changed: true,
            counts: Some(v1::Counts { files: 79_314, ignored: 2, ..Default::default() }),
            added: 3,
            modified: 8,
            removed: 1,
            stored_bytes: 1_234_567,
            notices: Vec::new(),
            warnings: Vec::new(),
            conflicts: None,
            in_git: 0,
        };
        let plain = anstream::adapter::strip_str(&line(&result)).to_string();
        let expected = "3f9a2c1e  main  12 changed (+3 ~8 -1), 79,314 files covered, 2 ignored, store grew 1.2 MB";
        assert_eq!(plain, expected);
    }
}
