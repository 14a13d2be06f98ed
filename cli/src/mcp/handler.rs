//! Answers the requests of an MCP client over standard input and output.

use std::future::Future;
use std::time::Duration;

use amalgam_engine::ChunkId;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig,
};
use rmcp::service::{MaybeSendFuture, RequestContext};
use rmcp::{ErrorData, RoleServer, ServerHandler, ServiceExt as _};
use serde_json::Map;

use super::arguments::Arguments;
use super::files::StoreFiles;
use super::program::{Finished, Program};
use super::remote::RemotePlace;
use super::tools::Selection;
use super::words;
use crate::connect::ConnectOptions;

/// Time limit of a command of this program.
const COMMAND_WITHIN: Duration = Duration::from_secs(300);
/// Default time limit of a command that the model runs.
const RUN_SECONDS: u64 = 600;
/// Digits of the id of a plan.
const PLAN_DIGITS: usize = 12;

const INSTRUCTIONS: &str = "Amalgam saves the whole directory as snapshots that can be compared, restored, forked and merged. Take a snapshot before \
     risky steps; `restore` and `diff` go back and compare. `fork` makes workspaces to try alternatives without touching the directory.";

/// Additional instructions for a model that works on a server.
const ON_SERVER: &str =
    "The files are on a server, in no directory of this machine: use `read`, `edit` and `search`. The workspace is";

/// The MCP server: answers the requests of one client.
#[derive(Clone)]
struct Handler {
    program: Program,
    connect: ConnectOptions,
    selection: Selection,
    /// The server that tools work on instead of the store of this machine.
    place: Option<RemotePlace>,
}

/// Serves until the client closes standard input.
///
/// # Errors
/// The client does not speak MCP.
pub async fn serve(
    program: Program,
    connect: ConnectOptions,
    selection: Selection,
    place: Option<RemotePlace>,
) -> Result<(), String> {
    let handler = Handler { program, connect, selection, place };
    let running = handler.serve(rmcp::transport::stdio()).await.map_err(|error| error.to_string())?;
    running.waiting().await.map_err(|error| error.to_string())?;
    Ok(())
}

impl ServerHandler for Handler {
    fn get_info(&self) -> ServerConfig {
        let mut info = ServerConfig::default();
        info.capabilities = ServerCapabilities::builder().enable_tools().build();
        info.server_info = Implementation::new("amalgam", env!("CARGO_PKG_VERSION"));
        info.instructions = Some(match &self.place {
            Some(place) => format!("{INSTRUCTIONS} {ON_SERVER} `{}` unless a call names another one.", place.workspace),
            None => INSTRUCTIONS.to_owned(),
        });
        info
    }

    fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> impl Future<Output = Result<ListToolsResult, ErrorData>> + MaybeSendFuture + '_ {
        std::future::ready(Ok(ListToolsResult::with_all_items(self.selection.tools())))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let mut handler = self.clone();
        if let Some(client) = context.client_info().filter(|client| !client.name.is_empty()) {
            handler.set_author(&client.name);
        }
        let arguments = request.arguments.unwrap_or_default();
        let answered = tokio::select! {
            answered = handler.call(&request.name, &arguments) => answered,
            // The client has cancelled the request; dropping the call ends its processes and deletes its sandbox.
            () = context.ct.cancelled() => Err("cancelled".to_owned()),
        };
        let result = match answered {
            Ok(text) => CallToolResult::success(vec![ContentBlock::text(text)]),
            Err(text) => CallToolResult::error(vec![ContentBlock::text(text)]),
        };
        Ok(result.into())
    }
}

impl Handler {
    /// Makes the client the author of snapshots, unless `AMALGAM_AUTHOR` names another one.
    fn set_author(&mut self, client: &str) {
        if std::env::var_os("AMALGAM_AUTHOR").is_none_or(|author| author.is_empty()) {
            client.clone_into(&mut self.program.author);
            client.clone_into(&mut self.connect.actor);
        }
    }

    async fn call(&self, name: &str, values: &Map<String, serde_json::Value>) -> Result<String, String> {
        let Some(tool) = self.selection.find(name) else {
            let names: Vec<_> = self.selection.tools().into_iter().map(|tool| tool.name).collect();
            return Err(format!("there is no tool `{name}`; the tools are: {}", names.join(", ")));
        };
        let filled = self.place.as_ref().map(|place| place.with_defaults(name, values));
        let values = filled.as_ref().unwrap_or(values);
        let arguments = Arguments::new(values, &tool.argument_names(self.selection.is_read_only), tool.required)?;
        let server = self.place.as_ref().map(|place| &place.server);
        let files = StoreFiles { connect: &self.connect, server, directory: &self.program.directory };
        let actor = &self.connect.actor;
        match (name, &self.place) {
            ("conflicts", Some(place)) => return place.conflicts(&arguments, actor).await,
            ("run", Some(place)) => return place.run(&arguments, run_within(&arguments)?, actor).await,
            _ => {}
        }
        match name {
            "status" => self.status(&arguments).await,
            "snapshot" => self.command(words::snapshot(&arguments)?).await,
            "history" => self.command(words::history(&arguments)?).await,
            "diff" => self.command(words::diff(&arguments)?).await,
            "restore" => self.restore(&arguments).await,
            "fork" => self.command(words::fork(&arguments)?).await,
            "merge" => self.command(words::merge(&arguments)?).await,
            "conflicts" => self.command(words::conflicts(&arguments)?).await,
            "run" => self.run(&arguments).await,
            "read" => files.read(&arguments).await,
            "edit" => files.edit(&arguments).await,
            "search" => files.search(&arguments).await,
            other => Err(format!("the tool `{other}` has no code")),
        }
    }

    /// Runs a command of this program. Exit codes 3 to 5, such as "there are differences", count as answers, not as failures.
    async fn command(&self, words: Vec<String>) -> Result<String, String> {
        let Finished { status, text, has_failed } = self.program.run(&words, COMMAND_WITHIN).await?;
        let is_answer = matches!(status.code(), Some(0 | 3 | 4 | 5)) && !has_failed;
        let text = if text.is_empty() { "nothing".to_owned() } else { text };
        if is_answer { Ok(text) } else { Err(text) }
    }

    async fn status(&self, arguments: &Arguments<'_>) -> Result<String, String> {
        let mut words = vec!["status".to_owned()];
        words.extend(self.place.as_ref().map(|place| format!("--workspace={}", place.workspace)));
        let status = self.command(words).await?;
        if !arguments.flag("workspaces")? {
            return Ok(status);
        }
        let workspaces = self.command(vec!["ws".to_owned()]).await?;
        Ok(format!("{status}\n\nWorkspaces:\n{workspaces}"))
    }

    /// Shows the changes of a restore and the id of this plan, or restores if the given plan id still fits.
    async fn restore(&self, arguments: &Arguments<'_>) -> Result<String, String> {
        let words = words::restore(arguments)?;
        let mut dry = words.clone();
        dry.insert(1, "--dry-run".to_owned());
        let actor = &self.connect.actor;
        let shown = match &self.place {
            Some(place) => place.restore(arguments, true, actor).await?,
            None => self.command(dry).await?,
        };
        let basis = format!("{}\n{shown}", words.join("\0"));
        let plan = &ChunkId::of(basis.as_bytes()).to_string()[..PLAN_DIGITS];
        match arguments.text("plan")? {
            None => Ok(format!("{shown}\n\nNothing was changed. Call restore again with plan=\"{plan}\" to do this.")),
            Some(given) if given == plan => match &self.place {
                Some(place) => place.restore(arguments, false, actor).await,
                None => self.command(words).await,
            },
            Some(_) => Err(format!(
                "the plan does not fit: the files or the arguments have changed since. It would now do this:\n{shown}\n\nNothing was \
                 changed. Call restore again with plan=\"{plan}\" to do this."
            )),
        }
    }

    async fn run(&self, arguments: &Arguments<'_>) -> Result<String, String> {
        let finished = self.program.run(&words::run(arguments)?, run_within(arguments)?).await?;
        // This program prints a remark of its own after the command has run.
        let has_run = finished.text.lines().any(|line| line.starts_with("amalgam: "));
        if finished.has_failed && !has_run {
            return Err(finished.text);
        }
        let end = match finished.status.code() {
            Some(0) => String::new(),
            Some(code) => format!("\nexit status {code}"),
            None => "\nended by a signal".to_owned(),
        };
        Ok(format!("{}{end}", finished.text).trim_start().to_owned())
    }
}

/// Returns the time limit of a command that the model runs.
fn run_within(arguments: &Arguments<'_>) -> Result<Duration, String> {
    let seconds = arguments.number("timeout_seconds")?.filter(|seconds| *seconds > 0).unwrap_or(RUN_SECONDS);
    Ok(Duration::from_secs(seconds))
}
