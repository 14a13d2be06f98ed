//! `amalgam ws`: workspaces, and the directories that belong to them.

mod attach;
mod remove;

use amalgam_proto::{Reason, v1};
use clap::{Args, Subcommand};

use super::follow::following_line;
use super::publish::publishing_line;
use super::work_folders::remark_abandoned;
use super::workspaces::{workspace, workspaces};
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::style::{self, paint};
use crate::output::{Output, json};
use crate::session::{Session, missing_field, workspace_name};
use crate::text;

/// List, show, create, rename, remove and undelete workspaces, and attach directories to them
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  amalgam ws
  amalgam ws show main
  amalgam ws rm try-1 try-2 --dir
  amalgam ws undelete try-2")]
pub struct Ws {
    #[command(subcommand)]
    command: Option<WsCommand>,
}

#[derive(Debug, Subcommand)]
enum WsCommand {
    #[command(visible_alias = "ls")]
    List(List),
    Show(Show),
    Create(Create),
    Rename(Rename),
    Rm(remove::Remove),
    Undelete(Undelete),
    Attach(attach::Attach),
    Detach(attach::Detach),
}

/// List workspaces; the default
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam ws list\n  amalgam ws list --prefix try-")]
struct List {
    /// List only names that begin with this
    #[arg(long, default_value = "", hide_default_value = true)]
    prefix: String,
}

/// Show one workspace
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam ws show\n  amalgam ws show main")]
struct Show {
    /// The workspace [default: the one of this directory]
    name: Option<String>,
}

/// Create a workspace
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam ws create main\n  amalgam --server prod ws create try --from main@~2")]
struct Create {
    /// The name
    name: String,
    /// Begin at this snapshot [default: an empty tree]
    #[arg(long, value_name = "REV", default_value = "", hide_default_value = true)]
    from: String,
}

/// Rename a workspace
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam ws rename try-2 parser")]
struct Rename {
    /// The current name
    from: String,
    /// The new name
    to: String,
}

/// Bring a removed workspace back
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam ws undelete try-2")]
struct Undelete {
    /// The name it had
    name: String,
}

impl Ws {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        match self.command {
            None => List { prefix: String::new() }.run(session).await,
            Some(WsCommand::List(list)) => list.run(session).await,
            Some(WsCommand::Show(show)) => show.run(session).await,
            Some(WsCommand::Create(create)) => create.run(session).await,
            Some(WsCommand::Rename(rename)) => rename.run(session).await,
            Some(WsCommand::Rm(remove)) => remove.run(session).await,
            Some(WsCommand::Undelete(undelete)) => undelete.run(session).await,
            Some(WsCommand::Attach(attach)) => attach.run(session).await,
            Some(WsCommand::Detach(detach)) => detach.run(session).await,
        }
    }
}

impl List {
    async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        let here = session.attached_directory_if_any().await?.map(|place| place.workspace.name).unwrap_or_default();
        let workspaces = workspaces(&mut client, &self.prefix).await?;
        session.output.page();
        let width = workspaces.iter().map(|workspace| text::id(&workspace.name).chars().count()).max().unwrap_or(0);
        for workspace in &workspaces {
            session.output.emit(&json::workspace(workspace))?;
            session.output.say(line(workspace, &here, width))?;
        }
        if workspaces.is_empty() {
            session.output.remark(match session.server() {
                Some(_) => "no workspaces yet; `amalgam ws create NAME` and `amalgam push` make one",
                None => "no workspaces yet; `amalgam init` makes one from a directory",
            })?;
        }
        if session.server().is_none() {
            remark_abandoned(session)?;
        }
        Ok(Exit::OK)
    }
}

fn line(workspace: &v1::Workspace, here: &str, width: usize) -> String {
    let mark = if workspace.name == here { '*' } else { ' ' };
    let name = format!("{:width$}", text::id(&workspace.name));
    let head = if workspace.head.is_empty() { "no snapshot" } else { text::short(&workspace.head) };
    let paths: Vec<_> = workspace.directories.iter().map(|directory| text::path(&directory.path)).collect();
    let agent =
        if workspace.agent.is_empty() { String::new() } else { format!("  {}", text::printable(&workspace.agent)) };
    let line =
        format!("{mark} {}  {}{agent}  {}", paint(style::WORKSPACE, name), paint(style::ID, head), paths.join(", "));
    line.trim_end().to_owned()
}

impl Show {
    async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        let name = match self.name {
            Some(name) => workspace_name(&name),
            None => session.attached_directory().await?.workspace.name,
        };
        let workspace = workspace(&mut client, &name).await?;
        let output = &mut session.output;
        output.emit(&json::workspace(&workspace))?;
        let or_none = |name: &str| if name.is_empty() { "none".to_owned() } else { text::id(name).to_owned() };
        let made = text::timestamp(workspace.create_time.as_ref());
        output.say(paint(style::WORKSPACE, text::id(&workspace.name)))?;
        output.say(format!("Head:      {}", or_none(&workspace.head)))?;
        output.say(format!("Base:      {}", or_none(&workspace.base)))?;
        if !workspace.target.is_empty() {
            output.say(format!("Target:    {}", text::printable(text::id(&workspace.target))))?;
        }
        output.say(format!("Made:      {} ({})", text::wall_clock(made), text::ago(made, session.now)))?;
        for (word, value) in [("Agent:    ", &workspace.agent), ("Project:  ", &workspace.project)] {
            if !value.is_empty() {
                output.say(format!("{word} {}", text::printable(value)))?;
            }
        }
        for directory in &workspace.directories {
            output.say(format!("Directory: {}", text::path(&directory.path)))?;
        }
        if let Some(publishing) = &workspace.publishing {
            output.say(format!("Published: {}", publishing_line(publishing, session.now)))?;
        }
        if let Some(following) = &workspace.following {
            output.say(format!("Follows:   {}", following_line(following, session.now)))?;
        }
        Ok(Exit::OK)
    }
}

impl Create {
    async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client_of_new_store().await?;
        let request =
            v1::CreateWorkspaceRequest { workspace_id: self.name.clone(), from: self.from, ..Default::default() };
        let made = client.workspaces.create_workspace(request).await?.into_inner();
        say_workspace(&mut session.output, made.workspace.as_ref(), &format!("{} is there", self.name))
    }
}

impl Rename {
    async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        let request = v1::RenameWorkspaceRequest {
            name: workspace_name(&self.from),
            new_workspace_id: self.to.clone(),
            ..Default::default()
        };
        let renamed = client.workspaces.rename_workspace(request).await?.into_inner();
        say_workspace(&mut session.output, renamed.workspace.as_ref(), &format!("{} is now {}", self.from, self.to))
    }
}

impl Undelete {
    async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        let request = v1::UndeleteWorkspaceRequest { name: workspace_name(&self.name), ..Default::default() };
        let found = client.workspaces.undelete_workspace(request).await.map_err(|status| {
            let error = CliError::from(status);
            match error.is(Reason::AlreadyExists) {
                true => {
                    error.hint(format!("`amalgam ws rename {0} NEW` gives the present one another name", self.name))
                }
                false => error,
            }
        })?;
        let found = found.into_inner();
        let words = match session.server() {
            Some(_) => format!("{} is back", self.name),
            None => format!(
                "{0} is back; `amalgam checkout {0}@ DIR --workspace {0}` gets its files, `amalgam ws attach -w {0}` attaches the \
                 directory you are in to it again",
                self.name
            ),
        };
        say_workspace(&mut session.output, found.workspace.as_ref(), &words)
    }
}

fn say_workspace(output: &mut Output, workspace: Option<&v1::Workspace>, words: &str) -> Outcome {
    output.emit(&json::workspace(workspace.ok_or_else(|| missing_field("workspace"))?))?;
    output.done(words)?;
    Ok(Exit::OK)
}
