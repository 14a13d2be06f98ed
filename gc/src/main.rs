//! `amalgam-gc STORE`: garbage collection of a store that no process has open. Works on a full disk.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for people and scripts")]

mod arguments;
mod report;

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use amalgam_engine::backend::RocksOptions;
use amalgam_engine::{
    Error, ErrorKind, History, LivedTime, OperationContext, Result, Store, StoreOptions, SweepScope, Time, Workspaces,
};
use amalgam_gc::retention::{Policies, Span};
use amalgam_gc::{
    CollectOptions, CollectReport, LivedClock, LogRetention, Plan, RateLimit, WorkspaceUsage, collect,
    first_kept_operation, last_operation_before, measure_workspaces, plan, reclaim,
};
use clap::{CommandFactory as _, Parser};

use arguments::Arguments;
use report::Reporter;

/// Most restarts after a full disk. Each restart has more free space; the largest stores need fewer.
const TRIES_MAX: u32 = 1_000;

/// Roots of the mark phase, snapshots to thin, and the first operation to keep.
#[derive(Default)]
struct Prepared {
    scope: SweepScope,
    plan: Plan,
    log_from: u64,
}

/// Prepares a collection as the background process does, with this grace time.
fn prepare(arguments: &Arguments, store: &Store, now: Time, lived: &LivedTime) -> Result<Prepared> {
    let Some(grace) = arguments.grace else { return Ok(Prepared::default()) };
    let at = match grace {
        Span::For(grace) => Time(now.0.saturating_sub(grace)),
        Span::Forever => Time(i64::MIN),
    };
    let workspaces = Workspaces::of(store);
    let old = workspaces.deleted_before(at, lived)?;
    let mut without = BTreeSet::new();
    if arguments.dry_run {
        without.extend(old.into_iter().map(|(name, _)| name));
    } else {
        workspaces.forget_deleted(&old, &OperationContext::new("amalgam-gc", now))?;
    }
    let mut policies = Policies::default();
    for (name, value) in &arguments.retention {
        policies.default.set(name, value).map_err(|why| Error::Invalid { what: "retention", why })?;
    }
    let undoable_after = last_operation_before(store, at, lived)?;
    let scope = SweepScope { undoable_after: Some(undoable_after), without };
    let mut plan = plan(&History::of(store), &policies, &scope, at, lived)?;
    if !arguments.dry_run {
        plan.make_lean(store, &OperationContext::new("amalgam-gc", now), &mut || true)?;
    }
    let rule = LogRetention { keep: arguments.keep_operations, operations_max: arguments.keep_operations_max };
    let log_from = first_kept_operation(store, &rule, now, undoable_after, lived)?;
    Ok(Prepared { scope, plan, log_from })
}

/// Prints the manual page, for the scripts that lay out an installation.
fn print_manual_page() -> ExitCode {
    // Section 8: section 1 has a page of this name, of the command `amalgam gc`.
    let page = clap_mangen::Man::new(Arguments::command()).section("8");
    match page.render(&mut std::io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn main() -> ExitCode {
    if std::env::args_os().skip(1).eq(["--man"]) {
        return print_manual_page();
    }
    let arguments = Arguments::parse();
    let mut show = Reporter::new(arguments.json);
    match run(&arguments, &mut show) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            show.failure(&error, &arguments.store);
            ExitCode::from(report::exit_code(&error))
        }
    }
}

fn run(arguments: &Arguments, show: &mut Reporter) -> Result<()> {
    let end = arguments.max_seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut whole: Option<CollectReport> = None;
    for attempt in 1.. {
        let store = open(arguments)?;
        let done = run_once(arguments, &store, show, end, attempt > 1);
        let full = match done {
            Ok(done) => {
                let whole = merge_reports(whole.take(), done);
                let usage = remains(arguments, &store, show, end, &whole)?;
                drop(store);
                show.finished(arguments, &whole, usage.as_deref());
                return Ok(());
            }
            Err((done, error)) if error.kind() == ErrorKind::Full && attempt < TRIES_MAX => {
                let freed = done.as_deref().is_some_and(has_freed_space);
                whole = match done {
                    Some(done) => Some(merge_reports(whole.take(), *done)),
                    None => whole,
                };
                if attempt > 1 && !freed {
                    return Err(error);
                }
                error
            }
            Err((_, error)) => return Err(error),
        };
        // After a full disk RocksDB refuses writes until it is opened again.
        drop(store);
        show.restarting(&full);
    }
    unreachable!("it ends when nothing is left to do, or nothing more can be done")
}

/// Measures the usage of each workspace, if it was asked for and time is left.
fn remains(
    arguments: &Arguments,
    store: &Store,
    show: &mut Reporter,
    end: Option<Instant>,
    done: &CollectReport,
) -> Result<Option<Vec<WorkspaceUsage>>> {
    if !arguments.workspaces || done.ended_in.is_some() {
        return Ok(None);
    }
    let measured = measure_workspaces(store, u64::MAX, &mut |at, total| {
        show.measuring(at, total);
        if end.is_some_and(|end| Instant::now() >= end) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(measured.map(|measured| measured.names))
}

/// Runs one collection; after a full disk it first reclaims the space of objects already deleted.
fn run_once(
    arguments: &Arguments,
    store: &Store,
    show: &mut Reporter,
    end: Option<Instant>,
    reclaim_first: bool,
) -> std::result::Result<CollectReport, (Option<Box<CollectReport>>, Error)> {
    let sleep = |time: Duration| std::thread::sleep(time);
    let is_limited = arguments.objects_per_second > 0 || arguments.mib_per_second > 0;
    let rate_limit = is_limited.then_some(RateLimit {
        objects_per_second: arguments.objects_per_second,
        bytes_per_second: arguments.mib_per_second << 20,
        sleep: &sleep,
    });
    #[expect(clippy::disallowed_methods, reason = "the binary is where the clock is read")]
    let now = Time::from(std::time::SystemTime::now());
    let prepared = LivedClock::open(&arguments.store, store, now, 0).and_then(|mut clock| {
        if !arguments.dry_run {
            clock.save();
        }
        if !reclaim_first && arguments.grace.is_some() {
            show.clock_jump(clock.lived().jump());
        }
        prepare(arguments, store, now, clock.lived())
    });
    let prepared = prepared.map_err(|error| (None, error))?;
    let options = CollectOptions {
        retention: &prepared.plan,
        scope: arguments.grace.is_some().then_some(&prepared.scope),
        log_from: prepared.log_from,
        memory_bytes: arguments.memory << 20,
        dry_run: arguments.dry_run,
        rate_limit,
        ..CollectOptions::default()
    };
    let mut watch = |progress: &amalgam_gc::Progress| {
        show.progress(progress);
        if end.is_some_and(|end| Instant::now() >= end) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let mut first = None;
    if reclaim_first {
        first = Some(reclaim(store, &options, &mut watch).map_err(|error| (None, error))?);
    }
    match collect(store, &options, &mut watch) {
        Ok(done) => Ok(merge_reports(first, done)),
        Err(error) => Err((first.map(Box::new), error)),
    }
}

/// Returns whether disk space was freed.
fn has_freed_space(done: &CollectReport) -> bool {
    done.reclaimed.is_some_and(|reclaimed| reclaimed.bytes_after < reclaimed.bytes_before)
}

/// Combines the reports of two collections.
fn merge_reports(before: Option<CollectReport>, after: CollectReport) -> CollectReport {
    let Some(before) = before else { return after };
    let mut freed = before.freed;
    freed.merge(&after.freed);
    let reclaimed = match (before.reclaimed, after.reclaimed) {
        (Some(before), Some(after)) => Some(amalgam_engine::backend::Reclaimed {
            rows: before.rows + after.rows,
            bytes_before: before.bytes_before,
            step_bytes_max: before.step_bytes_max.max(after.step_bytes_max),
            ..after
        }),
        (before, after) => after.or(before),
    };
    CollectReport { freed, reclaimed, operations: before.operations + after.operations, ..after }
}

fn open(arguments: &Arguments) -> Result<Store> {
    let rocks = RocksOptions {
        must_exist: true,
        for_collection: true,
        block_cache_bytes: 16 << 20,
        chunk_buffer_bytes: 4 << 20,
        other_buffer_bytes: 4 << 20,
        ..RocksOptions::default()
    };
    Store::open_with(&arguments.store, &StoreOptions { cache_bytes: 1 << 20, rocks, ..StoreOptions::default() })
}
