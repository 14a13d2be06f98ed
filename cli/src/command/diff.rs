//! `amalgam diff`: shows the differences between two states.

use std::ffi::OsString;

use amalgam_proto::v1;
use clap::Args;
use serde_json::json;
use tonic::codegen::Bytes;

use super::revisions::{RevisionLimits, split_revisions_and_paths};
use crate::connect::Client;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::style::{self, paint};
use crate::output::{Output, json as lines};
use crate::session::{Session, current_workspace, directory_state, empty_state, revision_state};
use crate::text;

/// Show what differs between two states
#[derive(Debug, Args)]
#[command(after_help = "\
Without a revision, the command compares the last snapshot with the files on the disk. With one revision, it compares
that snapshot with the disk. With two, or a range A..B, it compares the first with the second. Changes in .git are left
out unless --with-git or a path in .git is given. `amalgam help revisions` explains how snapshots are named.

Examples:
  amalgam diff
  amalgam diff src/main.rs
  amalgam diff --stat '@{1 hour ago}'
  amalgam diff try-1..try-2 -- src")]
pub struct Diff {
    /// The first revision [default: @], the second [default: the files on the disk], then paths
    #[arg(value_name = "REV|PATH")]
    words: Vec<OsString>,
    #[command(flatten)]
    form: DiffFormat,
    /// Exit with 4 if something differs
    #[arg(long)]
    exit_code: bool,
    /// Compare only these paths and everything below them
    #[arg(last = true, value_name = "PATH")]
    paths: Vec<OsString>,
}

/// Options of the output of differences.
#[derive(Clone, Debug, Default, Args)]
pub struct DiffFormat {
    /// Show the number of lines added and removed in each file
    #[arg(long)]
    pub stat: bool,
    /// Show the names of changed files
    #[arg(long)]
    pub name_only: bool,
    /// Show names with a letter: A added, D deleted, M modified, R renamed, T type changed, m attributes only
    #[arg(long)]
    pub name_status: bool,
    /// Show a patch that `git apply` accepts; the default of `diff` and `show`
    #[arg(short, long)]
    pub patch: bool,
    /// Show a summary of the change: languages, lines, renames, risks
    #[arg(long)]
    pub insight: bool,
    /// Show changes in .git, too
    #[arg(long)]
    pub with_git: bool,
}

impl DiffFormat {
    /// Returns whether the user chose a form of output.
    pub fn is_asked_for(&self) -> bool {
        self.patch || self.stat || self.name_only || self.name_status || self.insight
    }

    fn wants_patch(&self, is_json: bool) -> bool {
        self.patch || !(is_json || self.stat || self.name_only || self.name_status || self.insight)
    }

    fn wants_names(&self, is_json: bool) -> bool {
        self.name_only || self.name_status || (is_json && !self.patch && !self.insight && !self.stat)
    }
}

/// Two states to compare.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The state before the change.
    pub before: v1::State,
    /// The state after the change.
    pub after: v1::State,
    /// The workspace that `@` stands for.
    pub workspace: String,
    /// The paths to compare; empty for all.
    pub paths: Vec<Bytes>,
}

impl Comparison {
    /// Compares a snapshot with its first parent.
    pub fn of_snapshot(snapshot: &v1::Snapshot, paths: Vec<Bytes>) -> Self {
        let before = snapshot.parents.first().map_or_else(empty_state, |parent| revision_state(text::id(parent)));
        Self { before, after: revision_state(text::id(&snapshot.name)), workspace: String::new(), paths }
    }

    /// Returns whether the user named a path in `.git`.
    fn is_about_git(&self) -> bool {
        self.paths.iter().any(|path| text::git_part(path).is_some())
    }
}

impl Diff {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let place = session.attached_directory_if_any().await?;
        let wanted = RevisionLimits { revisions_max: 2, ranges: true };
        let mut words = split_revisions_and_paths(session, place.as_ref(), &self.words, &self.paths, wanted).await?;
        if words.revisions.is_empty() && words.ranges.is_empty() {
            words = words.require_known()?;
        }
        let (from, to) = match (&words.revisions[..], &words.ranges[..]) {
            ([], [range]) => (Some(range.from.clone()), Some(range.to.clone())),
            (revisions, []) => (revisions.first().cloned(), revisions.get(1).cloned()),
            _ => return Err(CliError::usage("give either a range or revisions, not both")),
        };
        // Outside of an attached directory this fails with an explanation.
        let place = if to.is_none() { Some(session.attached_directory().await?) } else { place };
        let before = match (&from, &place) {
            (Some(from), _) => revision_state(from),
            (None, Some(place)) if place.workspace.head.is_empty() => crate::session::empty_state(),
            (None, _) => revision_state("@"),
        };
        let after = match (&to, &place) {
            (Some(to), _) => revision_state(to),
            (None, Some(place)) => directory_state(place),
            (None, None) => return Err(CliError::usage("a second revision is needed outside of a directory")),
        };
        let sides = Comparison { before, after, workspace: current_workspace(place.as_ref()), paths: words.paths };
        let mut client = session.client().await?;
        let differs = show(&mut session.output, &mut client, &sides, &self.form).await?;
        Ok(if differs && self.exit_code { Exit::DIFFERS } else { Exit::OK })
    }
}

/// Shows what differs between two sides. Returns whether anything does.
pub async fn show(
    output: &mut Output,
    client: &mut Client,
    sides: &Comparison,
    form: &DiffFormat,
) -> Result<bool, CliError> {
    output.page();
    let mut seen = DiffTotals { without_git: !form.with_git && !sides.is_about_git(), ..DiffTotals::default() };
    if form.wants_names(output.is_json()) {
        names(output, client, sides, form, &mut seen).await?;
    }
    if form.stat || form.insight {
        inspect(output, client, sides, form, &mut seen).await?;
    }
    if form.wants_patch(output.is_json()) {
        patch(output, client, sides, &mut seen).await?;
    }
    if seen.git_changes > 0 {
        output.emit(&lines::line("git_changes", json!({"left_out": seen.git_changes})))?;
        let changes = text::plural(seen.git_changes, "change");
        let them = text::them(seen.git_changes);
        output.remark(format!("{changes} in .git left out; --with-git shows {them}"))?;
    }
    Ok(seen.differs)
}

/// Totals of the parts of a comparison.
#[derive(Default)]
struct DiffTotals {
    without_git: bool,
    differs: bool,
    /// Number of changes in `.git` that were left out.
    git_changes: u64,
}

async fn names(
    output: &mut Output,
    client: &mut Client,
    sides: &Comparison,
    form: &DiffFormat,
    seen: &mut DiffTotals,
) -> Result<(), CliError> {
    let request = v1::DiffStatesRequest {
        before: Some(sides.before.clone()),
        after: Some(sides.after.clone()),
        workspace: sides.workspace.clone(),
        paths: sides.paths.clone(),
        times: false,
        renames: true,
        without_git: seen.without_git,
    };
    let mut stream = client.snapshots.diff_states(request).await?.into_inner();
    while let Some(part) = stream.message().await? {
        seen.git_changes = seen.git_changes.max(part.git_changes);
        for change in &part.changes {
            seen.differs = true;
            output.emit(&lines::change(change))?;
            output.say(if form.name_status { named(change) } else { text::path(&change.path).into_owned() })?;
        }
    }
    Ok(())
}

/// Describes a change in one line that begins with its letter, for example `M src/main.rs`.
pub fn named(change: &v1::Change) -> String {
    let letter = paint(style_of(change.kind()), text::change_letter(change.kind()));
    let is_conflict = change.after.as_ref().is_some_and(|entry| entry.kind() == v1::EntryKind::Conflict);
    match change.kind() {
        _ if is_conflict => format!("{letter} {} ({})", text::path(&change.path), paint(style::WARNING, "conflict")),
        v1::ChangeKind::Renamed => {
            format!("{letter} {} -> {}", text::path(&change.from_path), text::path(&change.path))
        }
        v1::ChangeKind::Metadata => format!("{letter} {} ({})", text::path(&change.path), change.attributes.join(", ")),
        _ => format!("{letter} {}", text::path(&change.path)),
    }
}

/// Returns the colour of a kind of change.
pub fn style_of(kind: v1::ChangeKind) -> anstyle::Style {
    match kind {
        v1::ChangeKind::Added => style::ADDED,
        v1::ChangeKind::Removed => style::REMOVED,
        _ => style::MODIFIED,
    }
}

async fn inspect(
    output: &mut Output,
    client: &mut Client,
    sides: &Comparison,
    form: &DiffFormat,
    seen: &mut DiffTotals,
) -> Result<(), CliError> {
    let request = v1::InspectChangeRequest {
        before: Some(sides.before.clone()),
        after: Some(sides.after.clone()),
        workspace: sides.workspace.clone(),
        paths: sides.paths.clone(),
        without_git: seen.without_git,
    };
    let mut stream = client.snapshots.inspect_change(request).await?.into_inner();
    let mut summary = v1::ChangeSummary::default();
    let (mut differs, mut moved_directories) = (false, 0);
    while let Some(part) = stream.message().await? {
        seen.git_changes = seen.git_changes.max(part.git_changes);
        for file in &part.files {
            differs = true;
            moved_directories += u64::from(file.change.as_ref().is_some_and(is_moved_directory));
            output.emit(&file_json(file))?;
            output.say(file_line(file, form.insight))?;
        }
        if let Some(last) = part.summary {
            summary = last;
        }
    }
    output.emit(&summary_json(&summary))?;
    if differs {
        summary_lines(&summary, moved_directories, form.insight).into_iter().try_for_each(|line| output.say(line))?;
    }
    seen.differs |= differs;
    Ok(())
}

fn file_line(file: &v1::FileInsight, with_insight: bool) -> String {
    let change = file.change.clone().unwrap_or_default();
    let amount = if file.binary {
        format!("binary, {} -> {}", text::bytes(file.bytes_before), text::bytes(file.bytes_after))
    } else {
        let added = paint(style::ADDED, format!("+{}", file.lines_added));
        format!("{added} {}", paint(style::REMOVED, format!("-{}", file.lines_removed)))
    };
    let mut line = format!("{}  {amount}", named(&change));
    if with_insight {
        if !file.language.is_empty() {
            line.push_str(&format!("  {}", text::printable(&file.language)));
        }
        for risk in &file.risks {
            let words = format!("{}: {}", risk.kind, text::printable(&risk.message));
            line.push_str(&format!("\n    {}", paint(style::WARNING, words)));
        }
    }
    line
}

/// Returns whether a change moves a directory as a whole. The files in it are no changes of their own.
fn is_moved_directory(change: &v1::Change) -> bool {
    let after = change.after.as_ref().map(v1::Entry::kind);
    change.kind() == v1::ChangeKind::Renamed && after == Some(v1::EntryKind::Directory)
}

fn summary_lines(summary: &v1::ChangeSummary, moved_directories: u64, with_insight: bool) -> Vec<String> {
    let files = summary.files_added + summary.files_removed + summary.files_modified + summary.files_renamed;
    let files = files + summary.files_other;
    let mut parts = Vec::new();
    if files > 0 || moved_directories == 0 {
        parts.push(format!("{} changed", text::plural(files, "file")));
    }
    match moved_directories {
        0 => {}
        1 => parts.push("1 directory moved".to_owned()),
        more => parts.push(format!("{} directories moved", text::count(more))),
    }
    let counts =
        [(summary.files_added, "added"), (summary.files_removed, "removed"), (summary.files_renamed, "renamed")];
    parts.extend(counts.iter().filter(|(n, _)| *n > 0).map(|(n, word)| format!("{} {word}", text::count(*n))));
    parts.push(format!("+{} -{}", text::count(summary.lines_added), text::count(summary.lines_removed)));
    let mut lines = vec![parts.join(", ")];
    if with_insight {
        lines.push(format!(
            "{} before, {} after; {} binary",
            text::bytes(summary.bytes_before),
            text::bytes(summary.bytes_after),
            text::plural(summary.binary, "file")
        ));
        let risks: std::collections::BTreeMap<_, _> = summary.risks.iter().collect();
        let risks: Vec<_> = risks.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        let risks = if risks.is_empty() { "none seen".to_owned() } else { risks.join(", ") };
        lines.push(format!("risks: {risks}; score {}", summary.score));
    }
    lines
}

fn file_json(file: &v1::FileInsight) -> serde_json::Value {
    let change = file.change.clone().unwrap_or_default();
    let risk = |risk: &v1::Risk| json!({"kind": risk.kind, "message": risk.message, "weight": risk.weight});
    let mut object = lines::line(
        "file",
        json!({
            "kind": text::change_word(change.kind()),
            "binary": file.binary,
            "lines_added": file.lines_added,
            "lines_removed": file.lines_removed,
            "bytes_before": file.bytes_before,
            "bytes_after": file.bytes_after,
            "language": file.language,
            "similarity_percent": file.similarity_percent,
            "risks": file.risks.iter().map(risk).collect::<Vec<_>>(),
        }),
    );
    if change.kind() == v1::ChangeKind::Renamed {
        lines::put_bytes(&mut object, "from_path", &change.from_path);
    }
    lines::with_path(object, &change.path)
}

fn summary_json(summary: &v1::ChangeSummary) -> serde_json::Value {
    let risks: std::collections::BTreeMap<_, _> = summary.risks.iter().collect();
    lines::line(
        "summary",
        json!({
            "files_added": summary.files_added,
            "files_removed": summary.files_removed,
            "files_modified": summary.files_modified,
            "files_renamed": summary.files_renamed,
            "files_other": summary.files_other,
            "directories_changed": summary.directories_changed,
            "lines_added": summary.lines_added,
            "lines_removed": summary.lines_removed,
            "bytes_before": summary.bytes_before,
            "bytes_after": summary.bytes_after,
            "binary": summary.binary,
            "risk_weight": summary.risk_weight,
            "risks": risks,
            "score": summary.score,
        }),
    )
}

async fn patch(
    output: &mut Output,
    client: &mut Client,
    sides: &Comparison,
    seen: &mut DiffTotals,
) -> Result<(), CliError> {
    let request = v1::GetPatchRequest {
        before: Some(sides.before.clone()),
        after: Some(sides.after.clone()),
        workspace: sides.workspace.clone(),
        paths: sides.paths.clone(),
        context_lines: None,
        without_git: seen.without_git,
    };
    let mut stream = client.snapshots.get_patch(request).await?.into_inner();
    let mut lines_of = Lines::default();
    let mut left_out = Vec::new();
    while let Some(part) = stream.message().await? {
        seen.git_changes = seen.git_changes.max(part.git_changes);
        seen.differs |= !part.data.is_empty() || !part.left_out.is_empty();
        lines_of.push(output, &part.data)?;
        left_out.extend(part.left_out);
    }
    lines_of.finish(output)?;
    for omission in &left_out {
        let line = lines::line("patch_omission", json!({"message": omission.message}));
        output.emit(&lines::with_path(line, &omission.path))?;
        output.remark(format!(
            "not in the patch: {}: {}",
            text::path(&omission.path),
            text::printable(&omission.message)
        ))?;
    }
    Ok(())
}

/// A patch as it arrives: cut into lines for colours, or gathered for one line of JSON.
#[derive(Default)]
struct Lines {
    pending: Vec<u8>,
}

impl Lines {
    fn push(&mut self, output: &mut Output, data: &[u8]) -> Result<(), CliError> {
        self.pending.extend_from_slice(data);
        if output.is_json() {
            return Ok(());
        }
        let Some(end) = self.pending.iter().rposition(|byte| *byte == b'\n') else { return Ok(()) };
        let rest = self.pending.split_off(end + 1);
        for line in self.pending.split_inclusive(|byte| *byte == b'\n') {
            output.raw_styled(patch_style(line), line)?;
        }
        self.pending = rest;
        Ok(())
    }

    fn finish(self, output: &mut Output) -> Result<(), CliError> {
        if output.is_json() {
            let mut line = lines::line("patch", json!({}));
            lines::put_bytes(&mut line, "text", &self.pending);
            return output.emit(&line);
        }
        output.raw_styled(patch_style(&self.pending), &self.pending)
    }
}

/// Returns the colour of a line of a patch.
pub fn patch_style(line: &[u8]) -> anstyle::Style {
    let titles: [&[u8]; 4] = [b"diff ", b"--- ", b"+++ ", b"index "];
    match line.first() {
        _ if titles.iter().any(|title| line.starts_with(title)) => style::TITLE,
        Some(b'+') => style::ADDED,
        Some(b'-') => style::REMOVED,
        Some(b'@') => style::HUNK,
        _ => style::PLAIN,
    }
}
