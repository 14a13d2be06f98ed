//! The uncommitted changes and the conflicts of a workspace's live tree on a server.

use std::collections::BTreeSet;

use amalgam_proto::v1;
use serde_json::json;

use crate::command::conflicts;
use crate::error::Outcome;
use crate::exit::Exit;
use crate::output::json as lines;
use crate::output::style::{self, paint};
use crate::session::{Session, workspace_name};
use crate::text;

/// Prints what the next commit of a workspace on a server would change.
pub async fn show(session: &mut Session, name: &str, exit_code: bool) -> Outcome {
    let mut client = session.client().await?;
    let request = v1::GetStatusRequest { name: workspace_name(name) };
    let status = client.workspaces.get_status(request).await?.into_inner();
    let head = format!("{name}@");
    // No tree has a conflict before the first snapshot.
    let conflicts = match status.head.is_empty() {
        true => BTreeSet::new(),
        false => conflicts::paths_at(&mut client, name, &head).await?,
    };
    let output = &mut session.output;
    output.emit(&lines::line(
        "status",
        json!({
            "workspace": name,
            "head": lines::or_null(&status.head),
            "changes": status.changes.len(),
            "truncated": status.truncated,
            "state_changed": status.state_changed,
            "conflicts": conflicts.len(),
        }),
    ))?;
    let at = match status.head.as_str() {
        "" => "no snapshot yet".to_owned(),
        head => paint(style::ID, text::short(head)),
    };
    output.say(format!("the live tree of {} at {at}", paint(style::WORKSPACE, name)))?;
    for change in &status.changes {
        let kind = change.kind();
        let word = match kind {
            v1::ChangeKind::Added | v1::ChangeKind::Renamed => "added",
            v1::ChangeKind::Removed => "deleted",
            _ => "modified",
        };
        let fields = json!({
            "kind": word,
            "attributes_only": kind == v1::ChangeKind::Metadata,
            "directory": false,
            "in_git": text::git_part(change.path.as_bytes()).is_some(),
        });
        let mut line = lines::with_path(lines::line("status_path", fields), change.path.as_bytes());
        if !change.from_path.is_empty() {
            lines::put_bytes(&mut line, "from_path", change.from_path.as_bytes());
        }
        output.emit(&line)?;
        output.say(format!("{} {}", text::change_letter(kind), text::printable(&change.path)))?;
    }
    if status.truncated {
        output.say("... and more")?;
    }
    if status.state_changed {
        output.say("state values changed")?;
    }
    if !status.base.is_empty() && status.base != status.head {
        output.remark("the head moved meanwhile; `amalgam commit -w` merges these changes with it")?;
    }
    let is_changed = !status.changes.is_empty() || status.state_changed;
    if !is_changed {
        output.say("nothing changed")?;
    }
    if !conflicts.is_empty() {
        let count = paint(style::WARNING, text::plural(conflicts.len() as u64, "conflict"));
        output.say(format!("{count} at {head}; `amalgam conflicts list --rev {head}` lists them"))?;
    }
    Ok(match exit_code {
        true if !conflicts.is_empty() => Exit::CONFLICTS,
        true if is_changed => Exit::DIFFERS,
        _ => Exit::OK,
    })
}
