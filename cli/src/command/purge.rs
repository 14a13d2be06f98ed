//! `amalgam purge`: forgets the bytes of a file for good.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use amalgam_proto::v1;
use amalgam_proto::v1::purge_target::Target;
use clap::Args;
use serde_json::{Value, json};
use tonic::codegen::Bytes;

use super::revisions::tree_path;
use crate::connect::Client;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::progress::drive;
use crate::output::style::{self, paint};
use crate::output::{Output, json as lines};
use crate::prompt::confirm;
use crate::session::Session;
use crate::text;

/// Most lines of a plan that are listed; the rest is counted.
const LISTED_MAX: usize = 20;
const PAGE_SIZE: i32 = 500;

/// Delete the contents of a file for good, in all snapshots
#[derive(Debug, Args)]
#[command(after_help = "\
Snapshots keep their ids and all other files. A reader of the file gets an error that says when and why it was purged.
The store refuses the same bytes from then on. A purge cannot be undone. It does not reach backups, streams, other
stores, or files on the disk.

Examples:
  amalgam purge .env --dry-run
  amalgam purge .env -m 'a key that was published'
  amalgam purge keys/old.pem --everywhere --yes
  amalgam purge --list                 what was purged, when, by whom and why
  amalgam purge --forget chunk:ID      let the same bytes be stored again")]
pub struct Purge {
    /// A path, with its contents in every snapshot; or contents by their object id, chunk:ID or rope:ID
    #[arg(value_name = "PATH|OBJECT", required_unless_present_any = ["list", "forget"])]
    what: Option<OsString>,
    /// Purge the contents even if other files have them, too
    #[arg(long)]
    everywhere: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
    /// Print what would be done, change nothing
    #[arg(long)]
    dry_run: bool,
    /// The reason, shown in the errors that readers of the file get
    #[arg(short = 'm', long = "message", value_name = "REASON", default_value = "", hide_default_value = true)]
    reason: String,
    /// List tombstones: the records of purged contents
    #[arg(long, conflicts_with_all = ["what", "everywhere", "yes", "dry_run", "reason", "forget"])]
    list: bool,
    /// Remove a tombstone, so that the same bytes may be stored again; purged bytes do not come back
    #[arg(long, value_name = "OBJECT", conflicts_with_all = ["what", "everywhere", "dry_run", "reason"])]
    forget: Option<String>,
}

impl Purge {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        if self.list {
            return list(session).await;
        }
        if let Some(object) = &self.forget {
            return forget(session, object, self.yes).await;
        }
        let target = self.target(session).await?;
        let mut client = session.client().await?;
        let request = v1::PlanPurgeRequest { target: Some(target.clone()), everywhere: self.everywhere };
        let plan = drive(&session.output, client.transfer.plan_purge(request)).await?;
        say_plan(&mut session.output, &plan)?;
        let on_disk = match session.server() {
            Some(_) => Vec::new(),
            None => on_disk(&mut client, &plan).await?,
        };
        if plan.chunks == 0 && plan.purged_before == 0 {
            let message = "nothing to purge: other files have all of these bytes, too";
            return Err(CliError::refused(message).hint("--everywhere purges them from those, too"));
        }
        if self.dry_run {
            session.output.say("nothing was purged")?;
            return Ok(Exit::OK);
        }
        if !self.yes {
            let what = text::plural(plan.snapshots, "snapshot");
            confirm(session, &format!("Purge this from {what}? It cannot be undone.")).await?;
        }
        let request = v1::PurgeContentRequest {
            target: Some(target),
            everywhere: self.everywhere,
            reason: self.reason,
            etag: plan.etag,
            ..Default::default()
        };
        let done = drive(&session.output, client.transfer.purge_content(request)).await?;
        let output = &mut session.output;
        let shown: Vec<_> = on_disk.iter().map(|path| path.to_string_lossy()).collect();
        output.emit(&lines::line("purged", json!({"chunks": done.chunks, "bytes": done.bytes, "on_disk": shown})))?;
        let what = text::plural(done.chunks, "chunk");
        output.done(format!("purged {what} ({}); no file of the store has these bytes", text::bytes(done.bytes)))?;
        for path in &on_disk {
            let path = text::path(path.as_os_str().as_bytes());
            output.done(format!("{} {path} is still there", paint(style::WARNING, "on the disk:")))?;
        }
        if !on_disk.is_empty() {
            output.remark(
                "remove it, or leave it out with a line in .amalgamignore: purged bytes are not stored again",
            )?;
        }
        output.remark("backups, streams and other stores may still have it")?;
        Ok(Exit::OK)
    }

    async fn target(&self, session: &mut Session) -> Result<v1::PurgeTarget, CliError> {
        let is_object = |text: &str| {
            let hex = text.strip_prefix("chunk:").or_else(|| text.strip_prefix("rope:")).unwrap_or(text);
            text.contains(':') && hex != text || hex.len() == 64 && hex.chars().all(|c| c.is_ascii_hexdigit())
        };
        let what = self.what.as_deref().unwrap_or_default();
        let is_file = session.cwd.join(what).symlink_metadata().is_ok();
        if let Some(text) = what.to_str().filter(|text| !is_file && is_object(text)) {
            return Ok(v1::PurgeTarget { target: Some(Target::Object(text.to_owned())) });
        }
        let place = session.attached_directory_if_any().await?;
        let path = tree_path(session, place.as_ref(), what)?;
        Ok(v1::PurgeTarget { target: Some(Target::Path(path)) })
    }
}

/// Lists all tombstones, in the order of their ids.
async fn list(session: &mut Session) -> Outcome {
    let mut client = session.client().await?;
    let output = &mut session.output;
    output.page();
    let mut request = v1::ListTombstonesRequest { page_size: PAGE_SIZE, page_token: String::new() };
    let mut is_empty = true;
    loop {
        let page = client.transfer.list_tombstones(request.clone()).await?.into_inner();
        for tombstone in &page.tombstones {
            is_empty = false;
            output.emit(&lines::line("tombstone", tombstone_fields(tombstone)))?;
            let when = text::ago(text::timestamp(tombstone.time.as_ref()), session.now);
            let by = if tombstone.actor.is_empty() { "" } else { " by " };
            let why = if tombstone.reason.is_empty() { "" } else { ": " };
            let words = format!("purged {when}{by}{}{why}{}", tombstone.actor, tombstone.reason);
            output.say(format!("{}  {}", paint(style::ID, &tombstone.object), text::printable(&words)))?;
        }
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            break;
        }
    }
    if is_empty {
        output.remark("nothing was purged from this store")?;
    }
    Ok(Exit::OK)
}

/// Removes a tombstone, so that the same bytes may be stored again.
async fn forget(session: &mut Session, object: &str, yes: bool) -> Outcome {
    if !yes {
        let question = format!("Forget that {object} was purged? The same bytes are stored again then.");
        confirm(session, &question).await?;
    }
    let mut client = session.client().await?;
    let request = v1::ForgetTombstoneRequest { object: object.to_owned(), ..Default::default() };
    let forgotten = client.transfer.forget_tombstone(request).await?.into_inner().tombstone.unwrap_or_default();
    let output = &mut session.output;
    output.emit(&lines::line("tombstone_forgotten", tombstone_fields(&forgotten)))?;
    output.done(format!("{} may be stored again; purged bytes do not come back by themselves", forgotten.object))?;
    Ok(Exit::OK)
}

fn tombstone_fields(tombstone: &v1::Tombstone) -> Value {
    json!({
        "object": tombstone.object,
        "time": lines::time(tombstone.time.as_ref()),
        "actor": tombstone.actor,
        "reason": tombstone.reason,
    })
}

fn say_plan(output: &mut Output, plan: &v1::PurgePlan) -> Result<(), CliError> {
    let fields = json!({
        "chunks": plan.chunks,
        "bytes": plan.bytes,
        "snapshots": plan.snapshots,
        "places": plan.places.len() as u64 + plan.places_more,
        "shared": plan.shared.len(),
        "purged_before": plan.purged_before,
    });
    output.emit(&lines::line("purge_plan", fields))?;
    let ids = |names: &[String]| names.iter().map(|name| text::id(name).to_owned()).collect::<Vec<_>>();
    for place in &plan.places {
        let line = lines::line("purge_place", json!({"snapshots": ids(&place.snapshots)}));
        output.emit(&lines::with_path(line, &place.path))?;
    }
    for shared in &plan.shared {
        let place = shared.place.clone().unwrap_or_default();
        let fields =
            json!({"chunk": shared.chunk, "snapshots": ids(&place.snapshots), "places_more": shared.places_more});
        output.emit(&lines::with_path(lines::line("purge_shared", fields), &place.path))?;
    }
    let paths: BTreeSet<&Bytes> = plan.places.iter().map(|place| &place.path).collect();
    let (chunks, snapshots) = (text::plural(plan.chunks, "chunk"), text::plural(plan.snapshots, "snapshot"));
    output.say(format!("{chunks} ({}) in {snapshots}, as", text::bytes(plan.bytes)))?;
    for path in paths.iter().take(LISTED_MAX) {
        let within = plan.places.iter().filter(|place| place.path == **path).flat_map(|place| &place.snapshots);
        let within: Vec<_> = within.map(|name| text::short(name)).take(LISTED_MAX).collect();
        output.say(format!("  {}  {}", text::path(path), paint(style::ID, within.join(" "))))?;
    }
    if paths.len() > LISTED_MAX {
        output.say(format!("  ... and {} more paths", text::count((paths.len() - LISTED_MAX) as u64)))?;
    }
    if plan.purged_before > 0 {
        output.say(format!("{} purged before", text::plural(plan.purged_before, "chunk")))?;
    }
    let holders: BTreeSet<Bytes> =
        plan.shared.iter().filter_map(|shared| shared.place.as_ref()).map(|place| place.path.clone()).collect();
    if !holders.is_empty() {
        let chunks = text::plural(plan.shared.len() as u64, "chunk");
        output.say(format!("{} {chunks}, because other files hold the same bytes", paint(style::WARNING, "stays:")))?;
        holders.iter().take(LISTED_MAX).try_for_each(|path| output.say(format!("  {}", text::path(path))))?;
    }
    Ok(())
}

/// Returns the paths of a plan that exist in an attached directory now. Does not compare contents.
async fn on_disk(client: &mut Client, plan: &v1::PurgePlan) -> Result<Vec<PathBuf>, CliError> {
    let paths: BTreeSet<&Bytes> = plan.places.iter().map(|place| &place.path).collect();
    let mut found = Vec::new();
    let mut request = v1::ListDirectoriesRequest { page_size: PAGE_SIZE, page_token: String::new() };
    loop {
        let page = client.directories.list_directories(request.clone()).await?.into_inner();
        for directory in &page.directories {
            let root = Path::new(OsStr::from_bytes(&directory.path));
            let files = paths.iter().map(|path| root.join(OsStr::from_bytes(path)));
            found.extend(files.filter(|path| path.symlink_metadata().is_ok()));
        }
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            return Ok(found);
        }
    }
}
