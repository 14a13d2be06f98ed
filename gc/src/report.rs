//! Output of the command: text for people, or JSON lines for programs.

use std::io::{IsTerminal as _, Write as _};
use std::path::Path;

use amalgam_engine::{Error, ErrorKind, Jump, Tallies, Tally};
use amalgam_gc::{CollectReport, Progress, Stage, WorkspaceUsage};
use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use crate::arguments::Arguments;

/// Returns the exit code of a failure, equal to that of the `amalgam` command.
pub fn exit_code(error: &Error) -> u8 {
    match (error, error.kind()) {
        (Error::NoStore { .. } | Error::ForeignDirectory { .. }, _) => 10,
        (_, ErrorKind::Busy) => 11,
        (_, ErrorKind::Full) => 13,
        _ => 1,
    }
}

/// Prints progress, results and failures.
pub struct Reporter {
    json: bool,
    bar: Option<ProgressBar>,
    stage: Option<Stage>,
    /// Percentage of the stage that was printed last.
    last_percent: u64,
}

impl Reporter {
    /// Shows a progress bar on a terminal, JSON lines with `json`, and no progress otherwise.
    pub fn new(json: bool) -> Self {
        let bar = (!json && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
            let style = ProgressStyle::with_template("{prefix:8} [{bar:30}] {percent:>3} %  {msg}");
            bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "))
        });
        Self { json, bar, stage: None, last_percent: 0 }
    }

    /// Shows the progress of a collection.
    pub fn progress(&mut self, progress: &Progress) {
        let Progress { stage, done, total, deleted } = *progress;
        if let Some(bar) = &self.bar {
            bar.set_length(total.max(1));
            bar.set_position(done.min(total));
            bar.set_prefix(stage.word());
            bar.set_message(format!("{} objects deleted", HumanCount(deleted)));
        }
        let hundredth = done * 100 / total.max(1);
        if self.json && (self.stage != Some(stage) || hundredth >= self.last_percent + 10) {
            (self.stage, self.last_percent) = (Some(stage), hundredth);
            print_json(&json!({
                "type": "progress", "stage": stage.word(), "done": done, "total": total, "deleted": deleted,
            }));
        }
    }

    /// Shows how many names were measured.
    pub fn measuring(&mut self, done: u64, total: u64) {
        if let Some(bar) = &self.bar {
            bar.set_length(total.max(1));
            bar.set_position(done);
            bar.set_prefix("measure");
            bar.set_message("");
        }
    }

    /// Reports that the wall clock jumped, and how much of the jump retention ignores.
    pub fn clock_jump(&mut self, jump: Option<Jump>) {
        let Some(jump) = jump else { return };
        if self.json {
            let seconds = |nanoseconds: i64| nanoseconds / 1_000_000_000;
            print_json(
                &json!({"type": "clock", "jump_seconds": seconds(jump.by), "uncounted_seconds": seconds(jump.missing)}),
            );
        } else {
            eprintln!("amalgam-gc: {}", jump.words());
        }
    }

    /// Reports that the disk was full and that the collection starts again.
    pub fn restarting(&mut self, error: &Error) {
        if self.json {
            print_json(&json!({"type": "again", "why": error.to_string()}));
        } else if self.bar.is_none() {
            eprintln!("amalgam-gc: {error}; going on with the room that came back");
        }
    }

    /// Reports the result, and the usage of each workspace if it was measured.
    pub fn finished(&mut self, arguments: &Arguments, done: &CollectReport, usage: Option<&[WorkspaceUsage]>) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        if self.json {
            usage.unwrap_or_default().iter().for_each(|usage| print_json(&usage_json(usage)));
            print_json(&report_json(arguments, done));
            return;
        }
        print_report(arguments, done);
        if let Some(usage) = usage {
            print_usage(usage);
        } else if arguments.workspaces {
            println!("there was no time to measure what remains for each workspace");
        }
    }

    /// Reports a failure with a hint.
    pub fn failure(&mut self, error: &Error, store: &Path) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        let hint = match exit_code(error) {
            10 => "name the directory of a store".to_owned(),
            11 => format!(
                "another process has {} open; `amalgam stop` ends it, `amalgam gc` has it collect",
                store.display()
            ),
            13 => "free some room elsewhere on the disk, a few MiB are enough, and run it again".to_owned(),
            _ if error.kind() == ErrorKind::Corrupt => {
                "run `amalgam verify` to see the damage; nothing was deleted".to_owned()
            }
            _ => String::new(),
        };
        if self.json {
            let code = exit_code(error);
            print_json(&json!({"type": "error", "message": error.to_string(), "hint": hint, "exit": code}));
            return;
        }
        eprintln!("amalgam-gc: {error}");
        if !hint.is_empty() {
            eprintln!("  {hint}");
        }
    }
}

/// Prints the result as text.
fn print_report(arguments: &Arguments, done: &CollectReport) {
    let (alive, dead, young, freed) = (done.alive.total(), done.dead.total(), done.young.total(), done.freed.total());
    println!(
        "{} roots keep {} objects, {}",
        HumanCount(done.roots),
        HumanCount(alive.objects),
        HumanBytes(alive.bytes)
    );
    println!("dead: {} objects, {}", HumanCount(dead.objects), HumanBytes(dead.bytes));
    if young.objects > 0 {
        println!("kept because they are new: {} objects, {}", HumanCount(young.objects), HumanBytes(young.bytes));
    }
    if done.mark.thinned > 0 {
        println!("thinned: {} snapshots keep their record only", HumanCount(done.mark.thinned));
    }
    if done.operations > 0 {
        println!("operations removed from the log: {}", HumanCount(done.operations));
    }
    if arguments.dry_run {
        println!("nothing was deleted (--dry-run)");
        return;
    }
    println!("deleted: {} objects, {}", HumanCount(freed.objects), HumanBytes(freed.bytes));
    for (kind, tally) in &done.freed.kinds {
        println!("  {:10} {:>14}  {}", kind.word(), HumanCount(tally.objects).to_string(), HumanBytes(tally.bytes));
    }
    if let Some(reclaimed) = done.reclaimed {
        println!(
            "on disk: {} before, {} after; up to {} more in between",
            HumanBytes(reclaimed.bytes_before),
            HumanBytes(reclaimed.bytes_after),
            HumanBytes(reclaimed.step_bytes_max),
        );
    }
    if let Some(stage) = done.ended_in {
        println!("ended during {}: run it again for the rest", stage.word());
    }
}

/// Prints the usage of each workspace as text.
fn print_usage(usage: &[WorkspaceUsage]) {
    println!("what remains, by workspace (shared things count for each):");
    for WorkspaceUsage { workspace, reached, private } in usage {
        let name = workspace.as_deref().unwrap_or("(other names)");
        println!("  {name}: {}; for it alone {}", HumanBytes(reached.bytes), HumanBytes(private.bytes));
    }
}

fn usage_json(usage: &WorkspaceUsage) -> Value {
    let tally = |tally: Tally| json!({"objects": tally.objects, "bytes": tally.bytes});
    json!({
        "type": "workspace_remains",
        "workspace": usage.workspace,
        "reached": tally(usage.reached),
        "private": tally(usage.private),
    })
}

fn report_json(arguments: &Arguments, done: &CollectReport) -> Value {
    let reclaimed = done.reclaimed.map(|reclaimed| {
        json!({
            "finished": reclaimed.finished,
            "rows": reclaimed.rows,
            "disk_bytes_before": reclaimed.bytes_before,
            "disk_bytes_after": reclaimed.bytes_after,
            "step_bytes_max": reclaimed.step_bytes_max,
        })
    });
    json!({
        "type": "report",
        "dry_run": arguments.dry_run,
        "ended_in": done.ended_in.map(Stage::word),
        "roots": done.roots,
        "alive": tallies(&done.alive),
        "dead": tallies(&done.dead),
        "young": tallies(&done.young),
        "freed": tallies(&done.freed),
        "thinned": done.mark.thinned,
        "operations_trimmed": done.operations,
        "mark_memory_bytes": done.mark.memory_bytes,
        "reclaimed": reclaimed,
    })
}

fn tallies(tallies: &Tallies) -> Value {
    let total = tallies.total();
    let kinds = tallies
        .kinds
        .iter()
        .map(|(kind, tally)| (kind.word().to_owned(), json!({"objects": tally.objects, "bytes": tally.bytes})));
    let kinds: serde_json::Map<_, _> = kinds.collect();
    json!({"objects": total.objects, "bytes": total.bytes, "kinds": kinds})
}

/// Prints one line with one write. A failure cannot be reported: the reader is gone.
fn print_json(value: &Value) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{value}\n").as_bytes()).and_then(|()| out.flush()).ok();
}
