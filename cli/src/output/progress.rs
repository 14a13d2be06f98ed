//! Long calls: their progress while they run, their result at the end.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use amalgam_proto::v1;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tonic::codegen::Bytes;
use tonic::{Response, Status, Streaming};

use super::Output;
use crate::error::CliError;
use crate::exit::Exit;
use crate::text;

/// Delay before a call shows progress, so that quick calls show none.
const PROGRESS_DELAY: Duration = Duration::from_millis(300);
const REDRAW_INTERVAL: Duration = Duration::from_millis(100);
/// Time limit for the status that follows a result.
const STATUS_TIMEOUT: Duration = Duration::from_secs(1);

/// One message of a long call.
pub enum Step<R> {
    /// The progress.
    Progress(v1::Progress),
    /// A part of the plan.
    Plan(v1::Plan),
    /// A part of the result.
    Part(R),
    /// The result.
    Done(R),
}

/// The messages of a long call.
pub trait Steps {
    /// The result of the call.
    type Result;
    /// Reads a message; nothing if it is empty.
    fn step(self) -> Option<Step<Self::Result>>;
    /// Joins the parts of a result. The last part holds the fields that are not split.
    fn join(mut parts: Vec<Self::Result>) -> Self::Result {
        parts.pop().expect("there is a last one")
    }
}

macro_rules! steps {
    ($($response:ident, $module:ident, $last:ident => $result:ident $(, $plan:ident)?;)+) => {$(
        impl Steps for v1::$response {
            type Result = v1::$result;

            fn step(self) -> Option<Step<v1::$result>> {
                Some(match self.event? {
                    v1::$module::Event::Progress(progress) => Step::Progress(progress),
                    $(v1::$module::Event::$plan(plan) => Step::Plan(plan),)?
                    v1::$module::Event::$last(result) => Step::Done(result),
                })
            }
        }
    )+};
}

steps! {
    CaptureDirectoryResponse, capture_directory_response, Result => CaptureResult;
    RestoreDirectoryResponse, restore_directory_response, Result => RestoreResult, Plan;
    UndoDirectoryResponse, undo_directory_response, Result => RevertResult;
    RedoDirectoryResponse, redo_directory_response, Result => RevertResult;
    CheckoutDirectoryResponse, checkout_directory_response, Result => CheckoutResult;
    VerifyStoreResponse, verify_store_response, Result => VerifyResult;
    BackUpStoreResponse, back_up_store_response, Result => BackupResult;
    RestoreBackupResponse, restore_backup_response, Result => ReceiveSnapshotsResponse;
    PlanPurgeResponse, plan_purge_response, Plan => PurgePlan;
    PurgeContentResponse, purge_content_response, Result => PurgeResult;
    ImportTreeResponse, import_tree_response, Result => ImportResult;
}

impl Steps for v1::ExportTreeResponse {
    type Result = v1::ExportResult;

    fn step(self) -> Option<Step<v1::ExportResult>> {
        match self.part()? {
            Part::Progress(progress) => Some(Step::Progress(progress)),
            Part::Done(result) => Some(Step::Done(result)),
            // An export to the host brings no bytes.
            Part::Data(_) => None,
        }
    }
}

impl Steps for v1::SubmitWorkspaceResponse {
    type Result = v1::SubmitResult;

    fn step(self) -> Option<Step<v1::SubmitResult>> {
        use v1::submit_workspace_response::Event;
        Some(match self.event? {
            Event::Progress(progress) => Step::Progress(merge_progress(&progress)),
            Event::Result(result) => Step::Done(result),
        })
    }
}

/// Converts the stage of a queued merge to a progress message.
fn merge_progress(progress: &v1::SubmitProgress) -> v1::Progress {
    let phase = match (progress.stage.as_str(), progress.entries_ahead) {
        ("capture", _) => "capturing changes".to_owned(),
        ("wait", 0) => "waiting for other merges".to_owned(),
        ("wait", ahead) => format!("waiting for {}", text::plural(ahead, "other merge")),
        ("merge", _) => "merging".to_owned(),
        ("test", _) => format!("running the test for {} s", progress.stage_seconds),
        ("regenerate", _) => format!("regenerating files for {} s", progress.stage_seconds),
        (other, _) => other.to_owned(),
    };
    v1::Progress { phase, ..v1::Progress::default() }
}

impl Steps for v1::DetectChangesResponse {
    type Result = v1::DirectoryStatus;

    fn step(self) -> Option<Step<v1::DirectoryStatus>> {
        use v1::detect_changes_response::Event;
        Some(match self.event? {
            Event::Progress(progress) => Step::Progress(progress),
            Event::Status(status) => Step::Done(status),
            Event::Part(part) => Step::Part(part),
        })
    }

    fn join(mut parts: Vec<v1::DirectoryStatus>) -> v1::DirectoryStatus {
        let mut last = parts.pop().expect("there is a last one");
        let mut joined = v1::DirectoryStatus::default();
        for part in parts.iter_mut().chain([&mut last]) {
            joined.modified.append(&mut part.modified);
            joined.added.append(&mut part.added);
            joined.deleted.append(&mut part.deleted);
            joined.attributes.append(&mut part.attributes);
            joined.directories.append(&mut part.directories);
            joined.uncovered.append(&mut part.uncovered);
            joined.renamed.append(&mut part.renamed);
            joined.notices.append(&mut part.notices);
            joined.unwritten.append(&mut part.unwritten);
        }
        let v1::DirectoryStatus { directory, workspace, head, counts, warnings, conflicts, .. } = last;
        v1::DirectoryStatus { directory, workspace, head, counts, warnings, conflicts, ..joined }
    }
}

/// Waits for the result of a long call, and shows its progress.
pub async fn drive<M: Steps>(
    output: &Output,
    call: impl Future<Output = Result<Response<Streaming<M>>, Status>>,
) -> Result<M::Result, CliError> {
    drive_with(output, call, |_| {}).await
}

/// Waits for the result of a long call, shows its progress, and calls `plan` with each part of its plan.
pub async fn drive_with<M: Steps>(
    output: &Output,
    call: impl Future<Output = Result<Response<Streaming<M>>, Status>>,
    mut plan: impl FnMut(v1::Plan),
) -> Result<M::Result, CliError> {
    let mut meter = Meter::new(output.shows_progress());
    let mut ticks = interval_at(Instant::now() + PROGRESS_DELAY, REDRAW_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut parts = Vec::new();
    let mut call = std::pin::pin!(call);
    let mut stream = loop {
        tokio::select! {
            response = &mut call => break response?.into_inner(),
            _ = ticks.tick() => meter.tick(),
        }
    };
    loop {
        let message = tokio::select! {
            message = stream.message() => message?,
            _ = ticks.tick() => {
                meter.tick();
                continue;
            }
        };
        let Some(message) = message else { return Err(no_result()) };
        match message.step() {
            Some(Step::Progress(progress)) => meter.now = progress,
            Some(Step::Plan(part)) => plan(part),
            Some(Step::Part(part)) => parts.push(part),
            Some(Step::Done(result)) => {
                parts.push(result);
                read_status(&mut stream).await;
                return Ok(M::join(parts));
            }
            None => {}
        }
    }
}

/// Reads the status that follows the last message. A stream that is dropped before it counts as cancelled in the server's log.
async fn read_status<M>(stream: &mut Streaming<M>) {
    // The caller has the result: neither a late status nor a failure to send it changes it.
    tokio::time::timeout(STATUS_TIMEOUT, stream.message()).await.ok();
}

/// A message of a call that streams bytes.
pub trait Data {
    /// The type of the result, which the last message holds.
    type Result;

    /// Returns the contents of the message, or `None` if it is empty.
    fn part(self) -> Option<Part<Self::Result>>;
}

/// A part of a stream of bytes.
pub enum Part<R> {
    /// The progress.
    Progress(v1::Progress),
    /// Some bytes.
    Data(Bytes),
    /// The end.
    Done(R),
}

macro_rules! data {
    ($($response:ident, $module:ident => $result:ident;)+) => {$(
        impl Data for v1::$response {
            type Result = v1::$result;

            fn part(self) -> Option<Part<v1::$result>> {
                Some(match self.event? {
                    v1::$module::Event::Progress(progress) => Part::Progress(progress),
                    v1::$module::Event::Data(data) => Part::Data(data),
                    v1::$module::Event::Result(result) => Part::Done(result),
                })
            }
        }
    )+};
}

data! {
    SendSnapshotsResponse, send_snapshots_response => SendResult;
    ExportTreeResponse, export_tree_response => ExportResult;
}

/// Forwards every piece of a stream of bytes. Returns `Err(None)` when the receiver is gone.
pub async fn drive_pieces<M: Data>(
    shows_progress: bool,
    call: impl Future<Output = Result<Response<Streaming<M>>, Status>>,
    pieces: &mpsc::Sender<Bytes>,
) -> Result<M::Result, Option<CliError>> {
    let mut meter = Meter::new(shows_progress);
    let mut ticks = interval_at(Instant::now() + PROGRESS_DELAY, REDRAW_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut stream = call.await.map_err(|status| Some(status.into()))?.into_inner();
    loop {
        let message = tokio::select! {
            message = stream.message() => message.map_err(|status| Some(status.into()))?,
            _ = ticks.tick() => {
                meter.tick();
                continue;
            }
        };
        match message.ok_or_else(|| Some(no_result()))?.part() {
            Some(Part::Progress(progress)) => meter.now = progress,
            Some(Part::Data(piece)) => pieces.send(piece).await.map_err(|_| None)?,
            Some(Part::Done(result)) => {
                read_status(&mut stream).await;
                return Ok(result);
            }
            None => {}
        }
    }
}

/// Waits for a call that sends no progress, and shows the number of bytes that were passed to it.
pub async fn count_bytes<T>(output: &Output, phase: &str, bytes: &AtomicU64, call: impl Future<Output = T>) -> T {
    let mut meter = Meter::new(output.shows_progress());
    let mut ticks = interval_at(Instant::now() + PROGRESS_DELAY, REDRAW_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut call = std::pin::pin!(call);
    loop {
        tokio::select! {
            done = &mut call => return done,
            _ = ticks.tick() => {
                meter.now.phase = phase.to_owned();
                meter.now.bytes = bytes.load(Ordering::Relaxed);
                meter.tick();
            }
        }
    }
}

/// Creates a progress bar for work of known size, or returns `None` if progress is not shown.
pub fn progress_bar(output: &Output) -> Option<ProgressBar> {
    output.shows_progress().then(|| {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
        let style = ProgressStyle::with_template("{prefix:8} [{bar:30}] {percent:>3} %  {msg}");
        bar.with_style(style.expect("the template is right").progress_chars("=> "))
    })
}

/// Updates a progress bar with a position and a stage.
pub fn advance(bar: &ProgressBar, done: u64, total: u64, stage: String) {
    bar.set_length(total.max(1));
    bar.set_position(done.min(total));
    bar.set_prefix(stage);
}

fn no_result() -> CliError {
    let message = "the background process ended the call without a result";
    CliError::new(Exit::ERROR, "UNAVAILABLE", message).hint("try again")
}

/// A progress line on the terminal, which is removed at the end.
struct Meter {
    bar: Option<ProgressBar>,
    now: v1::Progress,
    is_shown: bool,
}

impl Meter {
    fn new(is_shown: bool) -> Self {
        Self { bar: None, now: v1::Progress::default(), is_shown }
    }

    fn tick(&mut self) {
        if !self.is_shown {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            bar.set_style(ProgressStyle::with_template("{spinner} {msg}").expect("the template is right"));
            bar
        });
        bar.set_message(words(&self.now));
        bar.tick();
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Describes progress: `reading  1,204 of 9,800 files, 12 MB of 1.0 GB (1%)`.
fn words(progress: &v1::Progress) -> String {
    let phase = match progress.phase.as_str() {
        "look" => "looking",
        "read" => "reading",
        "write" => "writing",
        "verify" => "verifying",
        "send" => "sending",
        "receive" => "receiving",
        "plan" => "looking for it in every snapshot",
        "purge" => "purging",
        "" => "waiting",
        other => other,
    };
    let mut parts = Vec::new();
    if progress.names > 0 && progress.files_total == 0 {
        parts.push(text::plural(progress.names, "name"));
    }
    match (progress.files, progress.files_total) {
        (0, 0) => {}
        (files, 0) => parts.push(text::plural(files, "file")),
        (files, total) => parts.push(format!("{} of {}", text::count(files), text::plural(total, "file"))),
    }
    match (progress.bytes, progress.bytes_total) {
        (0, 0) => {}
        (bytes, 0) => parts.push(text::bytes(bytes)),
        (bytes, total) => {
            let percent = (u128::from(bytes) * 100 / u128::from(total)).min(100);
            parts.push(format!("{} of {} ({percent}%)", text::bytes(bytes), text::bytes(total)));
        }
    }
    format!("{phase}  {}", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_says_what_is_known() {
        let progress = |names, files, files_total, bytes, bytes_total| {
            words(&v1::Progress { phase: "read".to_owned(), names, files, files_total, bytes, bytes_total })
        };
        assert_eq!(progress(0, 0, 0, 0, 0), "reading  ");
        assert_eq!(progress(1_500, 1, 0, 2_000_000, 0), "reading  1,500 names, 1 file, 2.0 MB");
        assert_eq!(progress(9, 3, 6, 50, 200), "reading  3 of 6 files, 50 B of 200 B (25%)");
        assert_eq!(words(&v1::Progress::default()), "waiting  ");
        let merging = |stage: &str, entries_ahead| {
            let progress = v1::SubmitProgress { stage: stage.to_owned(), entries_ahead, ..Default::default() };
            words(&merge_progress(&progress))
        };
        assert_eq!(merging("wait", 2), "waiting for 2 other merges  ");
        assert_eq!(merging("merge", 0), "merging  ");
    }
}
