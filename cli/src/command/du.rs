//! `amalgam du`: how much room things take.

use amalgam_proto::v1;
use clap::Args;
use serde_json::json;

use crate::error::Outcome;
use crate::exit::Exit;
use crate::output::json as lines;
use crate::output::style::{self, paint};
use crate::session::{Session, here, workspace_name};
use crate::text;

/// Say how much room the store and its workspaces take
#[derive(Debug, Args)]
#[command(after_help = "\
Workspaces share what is equal, so the store is smaller than the sum of their files.

Examples:
  amalgam du
  amalgam du --exact main              what would come free without a workspace
  amalgam du --exact @~3               or without the tree of a snapshot
  amalgam du --json")]
pub struct Du {
    /// What would come free if this workspace, or the tree of this snapshot, went and its grace time were over
    #[arg(long, value_name = "WORKSPACE|SNAPSHOT")]
    exact: Option<String>,
}

impl Du {
    /// Does it.
    pub async fn run(self, session: &mut Session) -> Outcome {
        if let Some(subject) = self.exact {
            return exactly(session, subject).await;
        }
        let mut client = session.client().await?;
        let measured = client.store.measure_store(v1::MeasureStoreRequest {}).await?.into_inner();
        let home = session.home().display().to_string();
        let output = &mut session.output;
        output.emit(&lines::line(
            "store_usage",
            json!({"disk_bytes": measured.disk_bytes, "free_bytes": measured.free_bytes}),
        ))?;
        let (disk, free) = (text::bytes(measured.disk_bytes), text::bytes(measured.free_bytes));
        output.say(format!("{} in {home}, {free} free", paint(style::TITLE, disk)))?;
        let width = measured.workspaces.iter().map(|usage| text::id(&usage.workspace).len()).max().unwrap_or(0);
        for usage in &measured.workspaces {
            let name = text::id(&usage.workspace);
            output.emit(&lines::line(
                "workspace_usage",
                json!({
                    "workspace": name,
                    "files": usage.files,
                    "bytes": usage.bytes,
                    "snapshots": usage.snapshots,
                }),
            ))?;
            output.say(format!(
                "  {}  {:>8} in {}, {}",
                paint(style::WORKSPACE, format!("{name:width$}")),
                text::bytes(usage.bytes),
                text::plural(usage.files, "file"),
                text::plural(usage.snapshots, "snapshot"),
            ))?;
        }
        Ok(Exit::OK)
    }
}

/// What is in nothing else. A workspace of this name comes before a snapshot.
async fn exactly(session: &mut Session, subject: String) -> Outcome {
    use v1::measure_exactly_request::Target;
    let place = session.place_if_any().await?;
    let mut client = session.client().await?;
    let name = workspace_name(&subject);
    let target = match client.workspaces.get_workspace(v1::GetWorkspaceRequest { name: name.clone() }).await {
        Ok(_) => Target::Workspace(name),
        Err(_) => Target::Revision(subject),
    };
    let is_workspace = matches!(target, Target::Workspace(_));
    let request = v1::MeasureExactlyRequest { target: Some(target), here: here(place.as_ref()) };
    let measured = client.collections.measure_exactly(request).await?.into_inner();
    let freed = measured.freed.unwrap_or_default();
    let kind = if is_workspace { "workspace" } else { "snapshot" };
    session.output.emit(&lines::line(
        "exact_usage",
        json!({"kind": kind, "subject": measured.subject, "objects": freed.objects, "bytes": freed.bytes}),
    ))?;
    let size = paint(style::TITLE, text::bytes(freed.bytes));
    let objects = text::plural(freed.objects, "object");
    session.output.say(format!("{size} in {objects} would come free without {kind} {}", measured.subject))?;
    if freed.objects == 0 && !is_workspace {
        session.output.remark("a head or a label keeps it, or others share all that it has")?;
    }
    Ok(Exit::OK)
}
