//! `amalgam-gc STORE`: a collection of a store that no process has open. Works where the disk is full.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for people and scripts")]

mod show;

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use amalgam_engine::backend::RocksOptions;
use amalgam_engine::{
    Error, ErrorKind, History, LivedTime, OperationContext, Result, Store, StoreOptions, SweepScope, Time, Workspaces,
};
use amalgam_gc::retention::{Policies, Policy, Span};
use amalgam_gc::{
    CollectOptions, Collected, LivedClock, LogRule, Pace, Plan, WorkspaceUsage, collect, log_begins,
    measure_workspaces, operations_before, plan, reclaim,
};
use clap::Parser;

use show::Show;

/// Each time it begins anew after the disk was full there is more room; this many times suffice for the largest stores.
const TRIES_MAX: u32 = 1_000;

/// Collects what nothing leads to in a store that no process has open, and gives its room back.
#[derive(Parser)]
#[command(name = "amalgam-gc", version)]
struct Arguments {
    /// The store's directory.
    store: PathBuf,
    /// Say what would go, and leave it.
    #[arg(long)]
    dry_run: bool,
    /// One JSON object a line, each with a `type`.
    #[arg(long)]
    json: bool,
    /// End after this long. What was done stays done; the next run finds what is left.
    #[arg(long, value_name = "N")]
    max_seconds: Option<u64>,
    /// About how much memory the marks may take, in MiB. With less, more of what is dead stays until a later run.
    #[arg(long, value_name = "MIB", default_value_t = 192)]
    memory: usize,
    /// At most so many objects a second.
    #[arg(long, value_name = "N", default_value_t = 0)]
    objects_per_second: u64,
    /// Keep what can be undone for this long (24h, 30d, none). With it what was deleted before that is forgotten, histories are thinned and
    /// the log is shortened, as the store's own process does; without it nothing but what no name leads to goes.
    #[arg(long, value_name = "TIME")]
    grace: Option<Span>,
    /// With --grace: a part of the retention, as `automatic.daily=90d`; may be given again.
    #[arg(long, value_name = "PART=VALUE", requires = "grace", value_parser = part)]
    retention: Vec<(String, String)>,
    /// With --grace: for how long the log keeps operations.
    #[arg(long, value_name = "TIME", requires = "grace", default_value_t = LogRule::default().keep)]
    keep_operations: Span,
    /// With --grace: so many of the newest operations it keeps.
    #[arg(long, value_name = "N", requires = "grace", default_value_t = LogRule::default().most)]
    keep_operations_max: u64,
    /// Say at the end what remains for each workspace: all that it keeps, and what of that nothing else keeps. Reads what each of them
    /// keeps, twice.
    #[arg(long)]
    workspaces: bool,
    /// Rewrite at most so many MiB a second.
    #[arg(long, value_name = "MIB", default_value_t = 0)]
    mib_per_second: u64,
}

/// A part of a policy and its value; whether they are right is seen where they are set.
fn part(text: &str) -> std::result::Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write a key and its value, such as automatic.daily=90d")?;
    Policy::default().set(name, value)?;
    Ok((name.to_owned(), value.to_owned()))
}

/// From where to mark, what to thin, and where the log begins afterwards.
#[derive(Default)]
struct Prepared {
    scope: SweepScope,
    plan: Plan,
    operations_from: u64,
}

/// What the store's own process would do, with this grace time.
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
        without.extend(old);
    } else {
        workspaces.forget_deleted(&old, &OperationContext::new("amalgam-gc", now))?;
    }
    let mut policies = Policies::default();
    for (name, value) in &arguments.retention {
        policies.default.set(name, value).map_err(|why| Error::Invalid { what: "retention", why })?;
    }
    let operations_after = operations_before(store, at, lived)?;
    let scope = SweepScope { operations_after: Some(operations_after), without };
    let mut plan = plan(&History::of(store), &policies, &scope, at, lived)?;
    if !arguments.dry_run {
        plan.make_lean(store, &OperationContext::new("amalgam-gc", now), &mut || true)?;
    }
    let rule = LogRule { keep: arguments.keep_operations, most: arguments.keep_operations_max };
    let operations_from = log_begins(store, &rule, now, operations_after, lived)?;
    Ok(Prepared { scope, plan, operations_from })
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut show = Show::new(arguments.json);
    match run(&arguments, &mut show) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            show.failure(&error, &arguments.store);
            ExitCode::from(show::exit_code(&error))
        }
    }
}

fn run(arguments: &Arguments, show: &mut Show) -> Result<()> {
    let end = arguments.max_seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut whole: Option<Collected> = None;
    for attempt in 1.. {
        let store = open(arguments)?;
        let done = once(arguments, &store, show, end, attempt > 1);
        let full = match done {
            Ok(done) => {
                let whole = merged(whole.take(), done);
                let usage = remains(arguments, &store, show, end, &whole)?;
                drop(store);
                show.finished(arguments, &whole, usage.as_deref());
                return Ok(());
            }
            Err((done, error)) if error.kind() == ErrorKind::Full && attempt < TRIES_MAX => {
                let freed = done.as_deref().is_some_and(came_forward);
                whole = match done {
                    Some(done) => Some(merged(whole.take(), *done)),
                    None => whole,
                };
                if attempt > 1 && !freed {
                    return Err(error);
                }
                error
            }
            Err((_, error)) => return Err(error),
        };
        // A database that met a full disk takes nothing more until it is opened again.
        drop(store);
        show.again(&full);
    }
    unreachable!("it ends when nothing is left to do, or nothing more can be done")
}

/// What remains for each workspace, if that was asked for and there is time.
fn remains(
    arguments: &Arguments,
    store: &Store,
    show: &mut Show,
    end: Option<Instant>,
    done: &Collected,
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

/// A collection; after a full disk the room of what went already comes first.
fn once(
    arguments: &Arguments,
    store: &Store,
    show: &mut Show,
    end: Option<Instant>,
    reclaim_first: bool,
) -> std::result::Result<Collected, (Option<Box<Collected>>, Error)> {
    let sleep = |time: Duration| std::thread::sleep(time);
    let is_paced = arguments.objects_per_second > 0 || arguments.mib_per_second > 0;
    let pace = is_paced.then_some(Pace {
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
            show.clock(clock.lived().jump());
        }
        prepare(arguments, store, now, clock.lived())
    });
    let prepared = prepared.map_err(|error| (None, error))?;
    let options = CollectOptions {
        retention: &prepared.plan,
        scope: arguments.grace.is_some().then_some(&prepared.scope),
        operations_from: prepared.operations_from,
        memory_bytes: arguments.memory << 20,
        dry_run: arguments.dry_run,
        pace,
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
        Ok(done) => Ok(merged(first, done)),
        Err(error) => Err((first.map(Box::new), error)),
    }
}

/// Whether anything came back to the disk.
fn came_forward(done: &Collected) -> bool {
    done.reclaimed.is_some_and(|reclaimed| reclaimed.bytes_after < reclaimed.bytes_before)
}

/// Two collections told as one.
fn merged(before: Option<Collected>, after: Collected) -> Collected {
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
    Collected { freed, reclaimed, operations: before.operations + after.operations, ..after }
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
