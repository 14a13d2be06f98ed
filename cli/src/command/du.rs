//! `amalgam du`: how much room things take.

use amalgam_proto::v1;
use clap::Args;
use serde_json::json;

use crate::error::Outcome;
use crate::exit::Exit;
use crate::output::json as lines;
use crate::output::style::{self, paint};
use crate::session::Session;
use crate::text;

/// Say how much room the store and its workspaces take
#[derive(Debug, Args)]
#[command(after_help = "\
Workspaces share what is equal, so the store is smaller than the sum of their files.

Examples:
  amalgam du
  amalgam du --json")]
pub struct Du {}

impl Du {
    /// Does it.
    pub async fn run(self, session: &mut Session) -> Outcome {
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
