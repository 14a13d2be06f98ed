//! `amalgam mounts`: lists mounts.

use amalgam_proto::v1;
use clap::Args;
use serde_json::json;

use super::mount::{json_line, words};
use crate::connect::Client;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::json as lines;
use crate::output::style::{self, paint};
use crate::session::Session;
use crate::text;

/// Mounts in one answer of the server.
const PAGE_SIZE: i32 = 500;

/// List mounts
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam mounts\n  amalgam mounts --json")]
pub struct Mounts {}

impl Mounts {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        let (mounts, problems) = mounts(&mut client).await?;
        for mount in &mounts {
            session.output.emit(&json_line("mount", mount))?;
            let since = text::ago(text::timestamp(mount.mount_time.as_ref()), session.now);
            session.output.say(format!("{}  {}, since {since}", text::path(&mount.path), words(mount)))?;
        }
        for problem in &problems {
            session.output.emit(&lines::line("warning", json!({"message": problem})))?;
            let problem = text::printable(problem);
            session.output.remark(format!("{} {problem}", paint(style::WARNING, "warning:")))?;
        }
        if mounts.is_empty() {
            session.output.remark("nothing is mounted; `amalgam mount WORKSPACE DIR` mounts a workspace")?;
        }
        Ok(Exit::OK)
    }
}

/// Returns all mounts, and problems of mounts that an earlier process left.
pub async fn mounts(client: &mut Client) -> Result<(Vec<v1::MountPoint>, Vec<String>), CliError> {
    let mut request = v1::ListMountsRequest { page_size: PAGE_SIZE, page_token: String::new() };
    let (mut mounts, mut problems) = (Vec::new(), Vec::new());
    loop {
        let page = client.mounts.list_mounts(request.clone()).await?.into_inner();
        mounts.extend(page.mounts);
        problems.extend(page.problems);
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            return Ok((mounts, problems));
        }
    }
}
