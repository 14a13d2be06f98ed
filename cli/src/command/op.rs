//! `amalgam op`: every change of state, in order.

use std::borrow::Cow;
use std::collections::BTreeSet;

use amalgam_proto::v1;
use clap::{Args, Subcommand};
use jiff::Timestamp;

use crate::connect::Client;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::json;
use crate::output::style::{self, paint};
use crate::session::{Session, missing_field, workspace_name};
use crate::text;

const PAGE_SIZE: i32 = 200;
/// Names that a line of the log shows of one operation.
const NAMES_SHOWN: usize = 20;

/// List and show operations: the changes of workspaces and labels
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam op log -n 5\n  amalgam op show 17\n  amalgam undo --op 17")]
pub struct Op {
    #[command(subcommand)]
    command: OpCommand,
}

#[derive(Debug, Subcommand)]
enum OpCommand {
    Log(OpLog),
    Show(OpShow),
}

/// List operations, newest first
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam op log\n  amalgam op log -n 5 --workspace main")]
struct OpLog {
    /// List at most N operations [default: all]; -5 is short for -n 5
    #[arg(short = 'n', long = "limit", value_name = "N")]
    limit: Option<usize>,
    /// List only operations that changed this workspace
    #[arg(short, long, value_name = "NAME", default_value = "", hide_default_value = true)]
    workspace: String,
}

/// Show one operation
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam op show 17")]
struct OpShow {
    /// The number of the operation
    number: u64,
}

impl Op {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        match self.command {
            OpCommand::Log(log) => log.run(session).await,
            OpCommand::Show(show) => show.run(session).await,
        }
    }
}

impl OpLog {
    async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        let mut left = self.limit.unwrap_or(usize::MAX);
        let mut request = v1::ListOperationsRequest {
            workspace: workspace_name(&self.workspace),
            page_size: PAGE_SIZE,
            page_token: String::new(),
        };
        session.output.page();
        while left > 0 {
            request.page_size = PAGE_SIZE.min(i32::try_from(left).unwrap_or(PAGE_SIZE));
            let page = client.operations.list_operations(request.clone()).await?.into_inner();
            let count = page.operations.len();
            for mut operation in page.operations.into_iter().take(left) {
                if session.output.is_json() {
                    operation = with_all_changes(&mut client, operation).await?;
                }
                session.output.emit(&json::operation(&operation))?;
                session.output.say(line(&operation, session.now))?;
            }
            left = left.saturating_sub(count);
            session.output.flush()?;
            request.page_token = page.next_page_token;
            if request.page_token.is_empty() {
                break;
            }
        }
        Ok(Exit::OK)
    }
}

/// Fetches the changes that were left out of the message of an operation, and returns the complete operation.
async fn with_all_changes(client: &mut Client, mut operation: v1::Operation) -> Result<v1::Operation, CliError> {
    while operation.changes_left_out > 0 {
        let page_token = operation.changes.len().to_string();
        let request = v1::GetOperationRequest { name: operation.name.clone(), page_token };
        let found = client.operations.get_operation(request).await?.into_inner();
        let part = found.operation.filter(|part| !part.changes.is_empty()).ok_or_else(|| missing_field("operation"))?;
        operation.changes.extend(part.changes);
        operation.changes_left_out = part.changes_left_out;
    }
    Ok(operation)
}

/// Returns the text that a list shows for a reference. For example, `foreign/58be...` is shown as `foreign 58be1234`.
fn name_of(reference: &str) -> Cow<'_, str> {
    for kind in ["resolution", "foreign"] {
        if let Some(id) = reference.strip_prefix(kind).and_then(|rest| rest.strip_prefix('/')) {
            return format!("{kind} {}", id.get(..8).unwrap_or(id)).into();
        }
    }
    text::printable(text::id(reference))
}

fn line(operation: &v1::Operation, now: Timestamp) -> String {
    let touched: BTreeSet<_> = operation.changes.iter().map(|change| name_of(&change.reference)).collect();
    let more = touched.len().saturating_sub(NAMES_SHOWN) as u64 + operation.changes_left_out;
    let mut touched = touched.into_iter().take(NAMES_SHOWN).collect::<Vec<_>>().join(", ");
    if more > 0 {
        touched.push_str(&format!(" and {} more", text::count(more)));
    }
    let age = paint(style::FAINT, text::ago(text::timestamp(operation.time.as_ref()), now));
    let reverts = if operation.reverts > 0 { format!(" of {}", operation.reverts) } else { String::new() };
    let number = paint(style::ID, format!("{:>5}", operation.sequence));
    format!("{number}  {}{reverts}  {touched}  {}  {age}", operation.action, text::printable(&operation.actor))
}

impl OpShow {
    async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        let name = amalgam_proto::operation_name(self.number);
        let request = v1::GetOperationRequest { name, ..Default::default() };
        let found = client.operations.get_operation(request).await?.into_inner();
        let operation = found.operation.ok_or_else(|| missing_field("operation"))?;
        let operation = with_all_changes(&mut client, operation).await?;
        let output = &mut session.output;
        output.emit(&json::operation(&operation))?;
        let time = text::timestamp(operation.time.as_ref());
        output.say(paint(style::ID, format!("operation {}", operation.sequence)))?;
        output.say(format!("Action: {}", text::printable(&operation.action)))?;
        output.say(format!("Actor:  {}", text::printable(&operation.actor)))?;
        output.say(format!("Time:   {} ({})", text::wall_clock(time), text::ago(time, session.now)))?;
        if operation.reverts > 0 {
            output.say(format!("Undoes operation {}", operation.reverts))?;
        }
        output.say("")?;
        let side = |name: &str| if name.is_empty() { "nothing".to_owned() } else { text::short(name).to_owned() };
        for change in &operation.changes {
            let name = text::printable(&change.reference);
            output.say(format!("{name}: {} -> {}", side(&change.before), side(&change.after)))?;
        }
        Ok(Exit::OK)
    }
}
