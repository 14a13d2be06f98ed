//! The common part of the commands `push`, `pull` and `clone`: the choice of the server, messages and JSON lines.

use amalgam_proto::Reason;
use serde_json::{Value, json};

use crate::config::{NamedKey, find_key};
use crate::contexts::Contexts;
use crate::error::CliError;
use crate::exit::Exit;
use crate::output::json as lines;
use crate::remote::Server;
use crate::session::Session;
use crate::store_copy::{Copied, NamedHead};
use crate::text;

/// Returns the error for a name that the sender does not have.
pub fn not_found(word: &str, place: &str) -> CliError {
    let message = format!("there is no workspace and no label `{}` in {place}", text::printable(word));
    CliError::new(Exit::ERROR, Reason::NotFound.word(), message)
}

/// Adds the next step to the error of a copy that holds purged contents.
pub fn hinted(error: CliError) -> CliError {
    match error.is(Reason::DamagedStream) && error.message.contains("tombstones are welcome") {
        true => error.hint("pass --tombstones"),
        false => error,
    }
}

/// Returns the server to push to or to pull from: the named one, the one that settings name for the workspace, the current context,
/// or the only known one.
pub fn choose_server(session: &Session, named: Option<Server>, workspace: &str) -> Result<Server, CliError> {
    if let Some(server) = named {
        return Ok(server);
    }
    let contexts = Contexts::load()?;
    let names = contexts.names();
    let word = match (stored_server(session, workspace)?, contexts.current(), names.as_slice()) {
        (Some(word), ..) => word,
        (None, Some(current), _) => current.to_owned(),
        (None, None, [only]) => only.clone(),
        (None, None, []) => {
            return Err(CliError::usage("no server is known").hint("`amalgam login URL`, or --server URL"));
        }
        (None, None, _) => {
            let message = format!("there are several servers: {}", names.join(", "));
            return Err(CliError::usage(message).hint("name one with --server"));
        }
    };
    let local =
        || CliError::usage(format!("`{word}` is the store of this machine")).hint("name a server with --server");
    contexts.resolve(&word)?.ok_or_else(local)
}

/// Returns the key of the setting that names the server of a workspace, or of all workspaces.
fn server_key(workspace: Option<&str>) -> Result<NamedKey, CliError> {
    let named = find_key("workspace.server")?;
    Ok(NamedKey { workspace: workspace.map(str::to_owned), ..named })
}

/// Returns the server that the settings name for a workspace, or for all workspaces.
fn stored_server(session: &Session, workspace: &str) -> Result<Option<String>, CliError> {
    let of_workspace = session.config.shown(&server_key(Some(workspace))?);
    Ok(of_workspace.or(session.config.shown(&server_key(None)?)))
}

/// Stores the server that a workspace is pushed to and pulled from.
pub fn store_server(session: &mut Session, workspace: &str, server: &Server) -> Result<(), CliError> {
    let key = server_key(Some(workspace))?;
    session.config.update(|config| config.set(&key, &[server.url.to_string()]))
}

/// Returns the JSON line of a push or a pull. `copied` is `None` if there was nothing to send.
pub fn json_line(kind: &str, named: &NamedHead, server: &Server, copied: Option<&Copied>) -> Value {
    let sent = copied.map(|copied| copied.sent).unwrap_or_default();
    let names = copied.map_or(&[][..], |copied| &copied.received.names);
    lines::line(
        kind,
        json!({
            "kind": named.kind.word(),
            "name": named.name,
            "snapshot": text::id(&named.head),
            "server": server.url.to_string(),
            "changed": !names.is_empty(),
            "names": names,
            "snapshots": sent.snapshots,
            "objects": sent.objects,
            "objects_new": copied.map_or(0, |copied| copied.received.objects_new),
            "bytes": sent.bytes,
        }),
    )
}
