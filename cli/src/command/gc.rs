//! `amalgam gc`: deletes unreachable data and frees its space.

use amalgam_proto::v1;
use amalgam_proto::v1::collect_store_response::Event;
use amalgam_server::retention::Span;
use clap::Args;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::progress::{advance, progress_bar};
use crate::output::style::{self, paint};
use crate::output::{Output, json as lines};
use crate::session::{Session, missing_field, workspace_name};
use crate::text;

/// Maximum number of staying and thinned snapshots that `--plan` lists without `--verbose`.
const STAYING_MAX: usize = 100;

/// Delete unreachable data and free its space
#[derive(Debug, Args)]
#[command(after_help = "\
The background process collects garbage automatically: when the store has grown by a quarter, once a day, and when the
disk is nearly full. Data that can be undone or undeleted stays for the grace time (`amalgam config get gc.grace`, 24h).
Labelled snapshots stay. Other snapshots are thinned by age, as the settings retention.* say: a thinned snapshot stays in
the log without its files.

Operations leave the operation log when they are older than a month (`gc.keep-operations`), or not among the newest
20,000 (`gc.keep-operations-max`), and past the grace time. `amalgam op log` and `amalgam undo` reach back no further.

Jumps of the system clock do not make data older. A gap between two uses of the store counts as 24 hours at most; the
rest of it counts after another use a day later, or after `amalgam gc --confirm-clock`.

Examples:
  amalgam gc --dry-run
  amalgam gc
  amalgam gc --plan                    which snapshots stay, which go, and why
  amalgam gc --grace none              delete now what could still be undone, too
  amalgam gc --pause --for 2h          leave the disk to other programs for a while")]
pub struct Gc {
    /// Print what would be deleted, change nothing
    #[arg(long)]
    dry_run: bool,
    /// Keep what can be undone for this long instead of the setting gc.grace: 90s, 30m, 24h, 30d, none
    #[arg(long, value_name = "TIME")]
    grace: Option<Span>,
    /// Print for each snapshot whether it is kept, and why; change nothing
    #[arg(long, conflicts_with = "dry_run")]
    plan: bool,
    /// With --plan: show only the history of this workspace
    #[arg(short, long, value_name = "WORKSPACE", requires = "plan")]
    workspace: Option<String>,
    /// Pause automatic collection until --resume, and stop a running one
    #[arg(long, conflicts_with_all = ["dry_run", "plan", "grace"])]
    pause: bool,
    /// With --pause: pause only for this long, such as 30m, 2h or 1d
    #[arg(long = "for", value_name = "TIME", requires = "pause")]
    pause_for: Option<Span>,
    /// Resume automatic collection
    #[arg(long, conflicts_with_all = ["dry_run", "plan", "grace", "pause"])]
    resume: bool,
    /// Confirm that the system clock is right, and count the time that it jumped over
    #[arg(long, conflicts_with_all = ["dry_run", "plan", "grace", "pause", "resume", "status"])]
    confirm_clock: bool,
    /// Show what the last collection did, whether collection is paused, and when the next one is due
    #[arg(long, conflicts_with_all = ["dry_run", "plan", "grace", "pause", "resume"])]
    status: bool,
}

impl Gc {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let grace_seconds = self.grace.map(|grace| grace.duration().map_or(u64::MAX, |grace| grace.as_secs()));
        if self.confirm_clock {
            return confirm_clock(session).await;
        }
        if self.pause || self.resume || self.status {
            return self.state(session).await;
        }
        if self.plan {
            let workspace = self.workspace.as_deref().map(workspace_name).unwrap_or_default();
            return plan(session, v1::PlanCollectionRequest { workspace, grace_seconds }).await;
        }
        session.interrupts.say("the store is intact; `amalgam gc` does the rest");
        let request = v1::CollectStoreRequest { dry_run: self.dry_run, grace_seconds, ..Default::default() };
        let result = follow(session, request).await?;
        report(&mut session.output, &result)?;
        Ok(Exit::OK)
    }

    async fn state(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        if self.pause || self.resume {
            let seconds = self.pause_for.and_then(Span::duration).map(|time| time.as_secs());
            if seconds == Some(0) {
                return Err(CliError::usage("--for: the time must not be 0").hint("say 30m, 2h or 1d"));
            }
            let request = v1::PauseCollectionRequest { paused: self.pause, seconds, ..Default::default() };
            client.collections.pause_collection(request).await?;
        }
        let state = client.collections.get_collection(v1::GetCollectionRequest {}).await?.into_inner();
        emit_state(&mut session.output, &state)?;
        session.output.say(state_words(&state, session.now))?;
        super::capture::warn(&mut session.output, &state.warnings)?;
        Ok(Exit::OK)
    }
}

async fn confirm_clock(session: &mut Session) -> Outcome {
    let mut client = session.client().await?;
    let done = client.collections.confirm_clock(v1::ConfirmClockRequest::default()).await?.into_inner();
    let seconds = done.counted_seconds;
    session.output.emit(&lines::line("clock", json!({"counted_seconds": seconds})))?;
    session.output.done(match seconds {
        0 => "nothing to confirm: retention counts all the time that the clock says has passed".to_owned(),
        1..86_400 => format!("retention counts {} more", text::plural(seconds.div_ceil(60), "minute")),
        _ => format!("retention counts {} more", text::plural(seconds / 86_400, "day")),
    })?;
    Ok(Exit::OK)
}

/// Prints the JSON line about collections.
pub fn emit_state(output: &mut Output, state: &v1::GetCollectionResponse) -> Result<(), CliError> {
    let last = state.last.as_ref();
    output.emit(&lines::line(
        "collection",
        json!({
            "paused": state.paused,
            "paused_until": lines::time(state.paused_until.as_ref()),
            "under_way": state.under_way,
            "last_time": lines::time(last.and_then(|last| last.time.as_ref())),
            "last_why": last.map(|last| &last.why),
            "last_freed": last.map(|last| tally(last.freed)),
            "last_thinned": last.map(|last| last.thinned),
            "next_time": lines::time(state.next_time.as_ref()),
            "next_bytes": state.next_bytes,
            "disk_bytes": state.disk_bytes,
            "free_bytes": state.free_bytes,
            "budget_bytes": (state.budget_bytes > 0).then_some(state.budget_bytes),
            "floor_bytes": state.floor_bytes,
            "warnings": state.warnings,
        }),
    ))
}

/// Describes the state of collections in one line.
pub fn state_words(state: &v1::GetCollectionResponse, now: Timestamp) -> String {
    let last = match &state.last {
        Some(last) => {
            let freed = text::bytes(last.freed.unwrap_or_default().bytes);
            format!("last collected {}, {freed} freed", text::ago(text::timestamp(last.time.as_ref()), now))
        }
        None => "not collected yet".to_owned(),
    };
    let how = match (state.under_way, state.paused, &state.paused_until) {
        (true, ..) => "a collection is running".to_owned(),
        (false, true, None) => "paused until `amalgam gc --resume`".to_owned(),
        (false, true, Some(end)) => format!("paused for {} more", text::until(text::timestamp(Some(end)), now)),
        (false, false, _) => format!("the next one {}", next_words(state, now)),
    };
    let (taken, free) = (text::bytes(state.disk_bytes), text::bytes(state.free_bytes));
    format!("{last}; {how}; the store takes {taken}, {free} free")
}

/// Describes when the next collection runs.
fn next_words(state: &v1::GetCollectionResponse, now: Timestamp) -> String {
    let time = text::timestamp(state.next_time.as_ref());
    let moment = match time <= now {
        true => "at a quiet moment".to_owned(),
        false if time.as_second() - now.as_second() < 60 => "within a minute".to_owned(),
        false => format!("in {}", text::until(time, now)),
    };
    format!("{moment}, when the store takes {}, or when space is short", text::bytes(state.next_bytes))
}

/// Follows a collection to its end, with a bar on a terminal.
async fn follow(session: &mut Session, request: v1::CollectStoreRequest) -> Result<v1::CollectResult, CliError> {
    let mut client = session.client().await?;
    let bar = progress_bar(&session.output);
    let mut stream = client.collections.collect_store(request).await?.into_inner();
    let mut result = None;
    while let Some(message) = stream.message().await? {
        match message.event {
            Some(Event::Progress(progress)) => {
                if let Some(bar) = &bar {
                    advance(bar, progress.done, progress.total, progress.stage);
                    bar.set_message(format!("{} deleted", text::plural(progress.deleted, "object")));
                }
            }
            Some(Event::Result(done)) => result = Some(done),
            None => {}
        }
    }
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    result.ok_or_else(|| missing_field("result"))
}

fn tally(tally: Option<v1::ObjectTally>) -> Value {
    let tally = tally.unwrap_or_default();
    json!({"objects": tally.objects, "bytes": tally.bytes})
}

fn tally_words(tally: Option<v1::ObjectTally>) -> String {
    let tally = tally.unwrap_or_default();
    format!("{}, {}", text::plural(tally.objects, "object"), text::bytes(tally.bytes))
}

fn report(output: &mut Output, result: &v1::CollectResult) -> Result<(), CliError> {
    output.emit(&lines::line(
        "gc",
        json!({
            "dry_run": result.dry_run,
            "roots": result.roots,
            "alive": tally(result.alive),
            "dead": tally(result.dead),
            "young": tally(result.young),
            "waiting_since": result.waiting_since.as_ref().map(|since| lines::time(Some(since))),
            "freed": tally(result.freed),
            "thinned": result.thinned,
            "forgotten": result.forgotten,
            "operations_trimmed": result.operations_trimmed,
            "disk_bytes_before": result.disk_bytes_before,
            "disk_bytes_after": result.disk_bytes_after,
            "journal_bytes_before": result.journal_bytes_before,
            "journal_bytes_after": result.journal_bytes_after,
            "grace_seconds": (result.grace_seconds < u64::MAX).then_some(result.grace_seconds),
            "ended_in": (!result.ended_in.is_empty()).then_some(&result.ended_in),
        }),
    ))?;
    // A dry run prints its result even with `--quiet`; a collection does not.
    let mut say = |line: String| if result.dry_run { output.say(line) } else { output.done(line) };
    let kept = format!("{} from {}", tally_words(result.alive), text::plural(result.roots, "root"));
    say(format!("kept: {kept}"))?;
    if result.young.unwrap_or_default().objects > 0 {
        let waiting = match &result.waiting_since {
            Some(since) => format!(
                " wait for a running import or receive (since {}); a collection after its end frees them",
                text::wall_clock(text::timestamp(Some(since)))
            ),
            None => String::new(),
        };
        say(format!("kept because too young: {}{waiting}", tally_words(result.young)))?;
    }
    if result.forgotten > 0 {
        say(format!("forgotten: {}", text::plural(result.forgotten, "deleted workspace")))?;
    }
    if result.operations_trimmed > 0 {
        let trimmed = text::plural(result.operations_trimmed, "operation");
        say(format!("log of operations shortened by {trimmed}"))?;
    }
    if result.thinned > 0 {
        let thinned = text::plural(result.thinned, "snapshot");
        say(format!("thinned: {thinned} (records are kept, trees are dropped)"))?;
    }
    if result.dry_run {
        say(format!("{}: {}", paint(style::TITLE, "would be freed"), tally_words(result.dead)))?;
        say(format!("on disk: {}; nothing was deleted", text::bytes(result.disk_bytes_before)))?;
    } else {
        say(format!("{}: {}", paint(style::GOOD, "freed"), tally_words(result.freed)))?;
        let (before, after) = (text::bytes(result.disk_bytes_before), text::bytes(result.disk_bytes_after));
        say(format!("on disk: {before} before, {after} after"))?;
        if result.journal_bytes_before > result.journal_bytes_after {
            let (before, after) = (text::bytes(result.journal_bytes_before), text::bytes(result.journal_bytes_after));
            say(format!("uncommitted work of mounts: {before} of journals before, {after} after"))?;
        }
    }
    super::capture::warn(output, &result.warnings)?;
    if result.grace_seconds > 0 {
        output.remark("`amalgam du` says how much is kept for undo until the grace time is over")?;
    }
    match result.ended_in.as_str() {
        "" => Ok(()),
        stage => output.say(format!("stopped during {stage}; `amalgam gc` does the rest")),
    }
}

async fn plan(session: &mut Session, request: v1::PlanCollectionRequest) -> Outcome {
    let mut client = session.client().await?;
    let mut stream = client.collections.plan_collection(request).await?.into_inner();
    let output = &mut session.output;
    output.page();
    let (mut goes, mut soon, mut gone, mut stays) = (0_u64, 0_u64, 0_u64, 0_u64);
    let mut shown = 0;
    let most = if output.is_verbose() { usize::MAX } else { STAYING_MAX };
    while let Some(part) = stream.message().await? {
        for planned in &part.snapshots {
            let (word, style, counter) = match planned.fate() {
                v1::Fate::Goes => ("goes", style::REMOVED, &mut goes),
                v1::Fate::Soon => ("soon", style::MODIFIED, &mut soon),
                v1::Fate::Gone => ("gone", style::FAINT, &mut gone),
                v1::Fate::Stays | v1::Fate::Unspecified => ("stays", style::GOOD, &mut stays),
            };
            *counter += 1;
            emit_planned(output, planned, word)?;
            let is_listed = matches!(word, "goes" | "soon") || shown < most;
            shown += usize::from(word == "stays" || word == "gone");
            if is_listed {
                output.say(planned_line(planned, word, style, session.now))?;
            }
        }
    }
    if shown > most {
        output.say(format!("... and {} more; -v shows all", text::count((shown - most) as u64)))?;
    }
    output.say(format!("snapshots that stay: {stays}, go soon: {soon}, go: {goes}, are thinned already: {gone}"))?;
    if soon > 0 || goes > 0 {
        output.remark("`amalgam label NAME SNAPSHOT` keeps one that would go")?;
    }
    Ok(Exit::OK)
}

fn emit_planned(output: &mut Output, planned: &v1::PlannedSnapshot, word: &str) -> Result<(), CliError> {
    output.emit(&lines::line(
        "gc_plan",
        json!({
            "snapshot": text::id(&planned.snapshot),
            "workspace": (!planned.workspace.is_empty()).then(|| text::id(&planned.workspace)),
            "time": lines::time(planned.time.as_ref()),
            "message": planned.message,
            "automatic": planned.automatic,
            "fate": word,
            "why": (!planned.why.is_empty()).then_some(&planned.why),
            "go_time": lines::time(planned.go_time.as_ref()),
        }),
    ))
}

/// Describes a planned snapshot, for example `3f9a2c1e  main  2 hours ago  stays: head of main`.
fn planned_line(planned: &v1::PlannedSnapshot, word: &str, style: anstyle::Style, now: Timestamp) -> String {
    let why = match word {
        "goes" => ": no rule keeps it".to_owned(),
        "gone" => ": its tree was dropped by retention".to_owned(),
        "soon" => {
            let seconds = text::timestamp(planned.go_time.as_ref()).as_second() - now.as_second();
            format!(": goes in {} h ({})", (seconds.max(0) + 3_599) / 3_600, planned.why)
        }
        _ => format!(": {}", planned.why),
    };
    let workspace = if planned.workspace.is_empty() { "-" } else { text::id(&planned.workspace) };
    format!(
        "{}  {}  {}  {}{}",
        paint(style::ID, text::short(&planned.snapshot)),
        paint(style::WORKSPACE, workspace),
        text::ago(text::timestamp(planned.time.as_ref()), now),
        paint(style, word),
        text::printable(&why),
    )
}
