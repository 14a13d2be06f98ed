//! `amalgam mcp`: serves tools to a model, and enters itself into the configuration of its clients.

use std::env;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::json;

use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::mcp::clients::{McpClient, ServerCommand};
use crate::mcp::{Program, RemotePlace, Selection, TOOL_NAMES, serve};
use crate::output::json as lines;
use crate::program_name::program_name;
use crate::remote::Server;
use crate::session::Session;

/// Serve snapshots, forks and merges to a model, over the Model Context Protocol
#[derive(Debug, Args)]
#[command(after_help = "\
Speaks MCP on standard input and output; a client such as Claude Code starts it. It works on the
directory that it is started in, or on -C DIR. With --server or a context it works on a workspace of a server instead:
-w names it, and the tool `run` is offered if the server has sandboxes and the key has the scope `run`.

Examples:
  amalgam mcp init claude              enter it into .mcp.json of this project
  amalgam mcp init codex --remove      take it out again
  amalgam mcp --read-only              only tools that change nothing
  amalgam mcp --tools status,snapshot,diff,restore
  amalgam --server https://HOST/PROJECT mcp -w main")]
pub struct Mcp {
    #[command(subcommand)]
    command: Option<McpCommand>,
    #[command(flatten)]
    selection: ToolArgs,
}

/// Which tools a server offers.
#[derive(Clone, Debug, Args)]
struct ToolArgs {
    /// Offer only tools that change nothing
    #[arg(long)]
    read_only: bool,
    /// Offer only these tools, separated by commas [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    tools: Vec<String>,
    /// The workspace of a server to work in, unless a call names another one
    #[arg(short, long, value_name = "NAME")]
    workspace: Option<String>,
}

#[derive(Debug, Subcommand)]
enum McpCommand {
    Init(Init),
}

/// Add the server to the configuration of a client
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  amalgam mcp init claude
  amalgam mcp init vscode --read-only
  amalgam mcp init codex --remove")]
struct Init {
    /// The client
    client: McpClient,
    /// Remove the server from the configuration
    #[arg(long)]
    remove: bool,
    /// Print the text for the configuration, change nothing
    #[arg(long, conflicts_with = "remove")]
    print: bool,
    #[command(flatten)]
    selection: ToolArgs,
}

impl Mcp {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        match self.command {
            Some(McpCommand::Init(init)) => init.run(session),
            None => {
                let place = self.selection.place(session)?;
                let place = match place {
                    Some((server, name)) => Some(RemotePlace::open(server, name, &session.connect.actor).await?),
                    None => None,
                };
                let mut selection = self.selection.checked()?;
                selection.has_run = place.as_ref().is_none_or(|place| place.has_sandboxes);
                let program = Program {
                    server: place.as_ref().map(|place| place.server.clone()),
                    path: env::current_exe().map_err(|error| CliError::machine("find this program", &error))?,
                    store: session.home().to_owned(),
                    directory: session.cwd.clone(),
                    author: session.connect.actor.clone(),
                };
                let served = serve(program, session.connect.clone(), selection, place).await;
                served.map_err(|why| CliError::refused(format!("the client does not speak MCP: {why}")))?;
                Ok(Exit::OK)
            }
        }
    }
}

impl ToolArgs {
    fn checked(self) -> Result<Selection, CliError> {
        if let Some(unknown) = self.tools.iter().find(|name| !TOOL_NAMES.contains(&name.as_str())) {
            let message = format!("there is no tool `{unknown}`");
            return Err(CliError::usage(message).hint(format!("the tools are: {}", TOOL_NAMES.join(", "))));
        }
        Ok(Selection { is_read_only: self.read_only, names: self.tools, has_run: true })
    }

    /// Returns the server and the workspace that the session works on, or `None` for the store of this machine.
    fn place(&self, session: &Session) -> Result<Option<(Server, String)>, CliError> {
        match (session.server(), &self.workspace) {
            (Some(server), Some(name)) => Ok(Some((server.clone(), name.clone()))),
            (None, None) => Ok(None),
            (Some(server), None) => {
                let message = format!("no directory of this machine belongs to a workspace of {}", server.url);
                Err(CliError::usage(message)
                    .hint("name the workspace with -w; --server local uses the store of this machine"))
            }
            (None, Some(_)) => Err(CliError::usage("-w is for a workspace of a server; here, start it in a directory")
                .hint("--server names a server")),
        }
    }
}

impl Init {
    fn run(self, session: &mut Session) -> Outcome {
        let mut arguments = vec!["mcp".to_owned()];
        arguments.extend(self.selection.read_only.then(|| "--read-only".to_owned()));
        if !self.selection.tools.is_empty() {
            arguments.push(format!("--tools={}", self.selection.tools.join(",")));
        }
        if let Some((server, name)) = self.selection.place(session)? {
            arguments.splice(0..0, ["--server".to_owned(), server.url.to_string()]);
            arguments.push(format!("--workspace={name}"));
        }
        self.selection.clone().checked()?;
        let command = ServerCommand { program: program_name()?, arguments };
        if self.print {
            session.output.say(self.client.snippet(&command))?;
            return Ok(Exit::OK);
        }
        let home = env::var_os("HOME").map(PathBuf::from).ok_or_else(|| CliError::usage("HOME is not set"))?;
        let file = self.client.file(&session.cwd, &home);
        let shown = file.display().to_string();
        let (action, words) = if self.remove {
            match self.client.remove(&file)? {
                true => ("removed", format!("took amalgam out of {shown}")),
                false => ("absent", format!("{shown} has no entry for amalgam")),
            }
        } else {
            self.client.add(&file, &command)?;
            ("added", format!("entered amalgam into {shown}; the client starts it from now on"))
        };
        session.output.emit(&lines::line("client_configuration", json!({"path": shown, "action": action})))?;
        session.output.done(words)?;
        Ok(Exit::OK)
    }
}
