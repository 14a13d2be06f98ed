//! `amalgam label`: names on snapshots.

use amalgam_proto::v1;
use clap::Args;
use serde_json::{Value, json};

use crate::connect::Client;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::json as lines;
use crate::output::style::{self, paint};
use crate::session::{Session, current_workspace, missing_field};
use crate::text;

const PAGE_SIZE: i32 = 500;

/// List labels, put a label on a snapshot, or remove one
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  amalgam label
  amalgam label works                  on the last snapshot
  amalgam label works @~2              move it to another snapshot
  amalgam label works --delete")]
pub struct Label {
    /// The name of the label; without it, all labels are listed
    name: Option<String>,
    /// The snapshot to put the label on [default: @]
    #[arg(value_name = "REV", conflicts_with = "delete")]
    revision: Option<String>,
    /// Remove the label; the snapshot stays
    #[arg(long, requires = "name")]
    delete: bool,
}

impl Label {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        let Some(name) = self.name else { return list(session).await };
        if self.delete {
            let workspace = current_workspace(session.attached_directory_if_any().await?.as_ref());
            let request = v1::DeleteLabelRequest { name: format!("labels/{name}"), workspace, ..Default::default() };
            if find(&mut client, &name).await?.is_none() {
                let error = CliError::new(Exit::ERROR, "NOT_FOUND", format!("there is no label {name}"));
                return Err(error.hint("`amalgam label` lists them"));
            }
            client.snapshots.delete_label(request).await?;
            session.output.emit(&lines::line("label_deleted", json!({"name": name})))?;
            session.output.done(format!("removed the label {name}"))?;
            return Ok(Exit::OK);
        }
        let place = session.attached_directory_if_any().await?;
        let before = find(&mut client, &name).await?;
        let request = v1::SetLabelRequest {
            label_id: name,
            revision: self.revision.unwrap_or_else(|| "@".to_owned()),
            workspace: current_workspace(place.as_ref()),
            ..Default::default()
        };
        let set = client.snapshots.set_label(request).await?.into_inner();
        let label = set.label.ok_or_else(|| missing_field("label"))?;
        session.output.emit(&json_line(&label))?;
        session.output.done(line(&label))?;
        if let Some(before) = before.filter(|before| before.snapshot != label.snapshot) {
            let (name, old) = (text::id(&label.name), paint(style::ID, text::short(&before.snapshot)));
            session.output.done(format!("the label {name} was on {old}; `amalgam undo` puts it back there"))?;
        }
        Ok(Exit::OK)
    }
}

async fn list(session: &mut Session) -> Outcome {
    let mut client = session.client().await?;
    let mut request = v1::ListLabelsRequest { prefix: String::new(), page_size: PAGE_SIZE, page_token: String::new() };
    session.output.page();
    loop {
        let page = client.snapshots.list_labels(request.clone()).await?.into_inner();
        for label in &page.labels {
            session.output.emit(&json_line(label))?;
            session.output.say(line(label))?;
        }
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            return Ok::<_, CliError>(Exit::OK);
        }
    }
}

/// Returns a label by its name.
async fn find(client: &mut Client, name: &str) -> Result<Option<v1::Label>, CliError> {
    let request = v1::ListLabelsRequest { prefix: name.to_owned(), page_size: 1, page_token: String::new() };
    let page = client.snapshots.list_labels(request).await?.into_inner();
    Ok(page.labels.into_iter().find(|label| text::id(&label.name) == name))
}

fn line(label: &v1::Label) -> String {
    format!("{}  {}", paint(style::ID, text::short(&label.snapshot)), paint(style::LABEL, text::id(&label.name)))
}

fn json_line(label: &v1::Label) -> Value {
    lines::line("label", json!({"name": text::id(&label.name), "snapshot": text::id(&label.snapshot)}))
}
