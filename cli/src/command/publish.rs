//! `amalgam complete` and `amalgam publish`: what a workspace changed goes through the queue of its target.

use amalgam_proto::v1;
use clap::Args;

use super::merge::say_merge;
use crate::error::Outcome;
use crate::exit::Exit;
use crate::session::{Session, incomplete, workspace_name};

/// Merge a workspace into its target and end it
#[derive(Debug, Args)]
#[command(after_help = "\
Its directory is captured first, if it has one. The workspace ends when all it holds has landed; what cannot be merged waits for
a person (`amalgam review`), and the workspace with it. `amalgam ws undelete` brings an ended workspace back.

Examples:
  amalgam complete
  amalgam complete try-1 --into main -m 'a better parser'
  amalgam complete try-1 --test make --test check")]
pub struct Complete {
    #[command(flatten)]
    what: What,
}

/// Merge a workspace into its target and go on in it
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  amalgam publish
  amalgam publish try-1 --into main --detach")]
pub struct Publish {
    #[command(flatten)]
    what: What,
}

#[derive(Debug, Args)]
struct What {
    /// The workspace [default: the one of this directory]
    workspace: Option<String>,
    /// The workspace that gets it [default: the one it was forked from]
    #[arg(long, value_name = "WORKSPACE")]
    into: Option<String>,
    /// The message of the merge
    #[arg(short, long, default_value = "", hide_default_value = true)]
    message: String,
    /// A command that must succeed with the merged files, word by word
    #[arg(long, value_name = "WORD")]
    test: Vec<String>,
    /// How many seconds that may take
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    test_seconds: u32,
    /// Do not wait until it is merged
    #[arg(long)]
    detach: bool,
    /// A name for this request: the same one again changes nothing
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    request_id: String,
}

impl What {
    async fn submission(&self, session: &mut Session) -> Result<v1::Submission, crate::error::CliError> {
        let workspace = match &self.workspace {
            Some(name) => workspace_name(name),
            None => session.place().await?.workspace.name,
        };
        Ok(v1::Submission {
            workspace,
            target: self.into.as_deref().map(workspace_name).unwrap_or_default(),
            message: self.message.clone(),
            test: self.test.clone(),
            test_seconds: self.test_seconds,
            detach: self.detach,
            capture: true,
        })
    }
}

impl Complete {
    /// Does it.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        let submission = self.what.submission(session).await?;
        // Asked before: an ended workspace has none.
        let before = v1::GetWorkspaceRequest { name: submission.workspace.clone() };
        let before = client.workspaces.get_workspace(before).await?.into_inner().workspace.unwrap_or_default();
        let request = v1::CompleteWorkspaceRequest { submission: Some(submission), request_id: self.what.request_id };
        let done = client.merges.complete_workspace(request).await?.into_inner();
        let exit = say_merge(&mut session.output, &done.merge.ok_or_else(|| incomplete("merge"))?, false)?;
        if done.ended {
            let name = done.entry.map(|entry| entry.workspace).unwrap_or_default();
            session.output.done(format!("{} has ended", crate::text::id(&name)))?;
            for directory in &before.directories {
                let path = crate::text::path(&directory.path);
                session.output.remark(format!("{path} stays where it is, and is no workspace's any more"))?;
            }
        } else if exit == Exit::OK {
            session.output.remark("the workspace goes on: it was changed meanwhile, or waits")?;
        }
        Ok(exit)
    }
}

impl Publish {
    /// Does it.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        let submission = Some(self.what.submission(session).await?);
        let request = v1::PublishWorkspaceRequest { submission, request_id: self.what.request_id };
        let done = client.merges.publish_workspace(request).await?.into_inner();
        say_merge(&mut session.output, &done.merge.ok_or_else(|| incomplete("merge"))?, false)
    }
}
