//! Sandboxes as lines for people and for programs.

use amalgam_proto::v1;
use serde_json::{Value, json};

use crate::error::CliError;
use crate::output::json as lines;
use crate::session::Session;
use crate::text;

/// Returns the JSON line of a sandbox.
pub fn sandbox_json(sandbox: &v1::Sandbox) -> Value {
    let limit =
        |one: &v1::EnforcedLimit| json!({"limit": one.limit, "value": one.value, "enforced_by": one.enforced_by});
    lines::line(
        "sandbox",
        json!({
            "id": sandbox.id,
            "name": sandbox.name,
            "state": sandbox.state,
            "reason": sandbox.reason,
            "template": sandbox.template,
            "workspace": text::id(&sandbox.workspace),
            "project": sandbox.project,
            "runtime": sandbox.runtime,
            "network": sandbox.network,
            "allowed_hosts": sandbox.allowed_hosts,
            "provider": sandbox.provider,
            "fork_cost": sandbox.fork_cost,
            "read_only": sandbox.read_only,
            "created": lines::time(sandbox.created_at.as_ref()),
            "expires": lines::time(sandbox.expires_at.as_ref()),
            "limits": sandbox.limits.iter().map(limit).collect::<Vec<_>>(),
        }),
    )
}

/// Prints a sandbox as one line.
pub fn tell(session: &mut Session, sandbox: &v1::Sandbox) -> Result<(), CliError> {
    session.output.emit(&sandbox_json(sandbox))?;
    let name = if sandbox.name.is_empty() { "-" } else { &sandbox.name };
    let end = match sandbox.state.as_str() {
        "running" => {
            format!("expires in {}", text::until(text::timestamp(sandbox.expires_at.as_ref()), session.now))
        }
        _ => sandbox.reason.clone(),
    };
    let (id, state, workspace) = (&sandbox.id, &sandbox.state, text::id(&sandbox.workspace));
    session.output.say(format!("{id}  {name}  {state}  {workspace}  {end}"))
}
