//! Arguments of the command.

use std::path::PathBuf;

use amalgam_gc::LogRetention;
use amalgam_gc::retention::{Policy, Span};
use clap::Parser;

/// Delete unreachable objects of a store that no process has open, and free their disk space.
#[derive(Parser)]
#[command(name = "amalgam-gc", version)]
pub struct Arguments {
    /// Directory of the store.
    pub store: PathBuf,
    /// Report what would be deleted, and delete nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Print one JSON object per line, each with a `type`.
    #[arg(long)]
    pub json: bool,
    /// Stop after this many seconds. Work that is done stays done; the next run continues.
    #[arg(long, value_name = "N")]
    pub max_seconds: Option<u64>,
    /// Approximate memory for the marks, in MiB. With less memory, more garbage stays until a later run.
    #[arg(long, value_name = "MIB", default_value_t = 192)]
    pub memory: usize,
    /// Process at most this many objects per second (0: no limit).
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub objects_per_second: u64,
    /// Keep what an undo of the operations of this time needs (24h, 30d, none). Also forget workspaces that were deleted before
    /// that, thin histories and trim the log, as the background process does. Without it, nothing is forgotten, thinned or
    /// trimmed, but objects that only an undo or redo of an earlier operation needs are deleted.
    #[arg(long, value_name = "TIME")]
    pub grace: Option<Span>,
    /// With --grace: set a part of the retention policy, for example `automatic.daily=90d`; repeatable.
    #[arg(long, value_name = "PART=VALUE", requires = "grace", value_parser = part)]
    pub retention: Vec<(String, String)>,
    /// With --grace: how long the log keeps operations.
    #[arg(long, value_name = "TIME", requires = "grace", default_value_t = LogRetention::default().keep)]
    pub keep_operations: Span,
    /// With --grace: how many of the newest operations the log keeps at most.
    #[arg(long, value_name = "N", requires = "grace", default_value_t = LogRetention::default().operations_max)]
    pub keep_operations_max: u64,
    /// Report at the end how much each workspace keeps, and how much of that no other name keeps. Reads the store twice.
    #[arg(long)]
    pub workspaces: bool,
    /// Rewrite at most this many MiB per second (0: no limit).
    #[arg(long, value_name = "MIB", default_value_t = 0)]
    pub mib_per_second: u64,
}

/// Parses `PART=VALUE` of a retention policy and checks both.
fn part(text: &str) -> std::result::Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write a key and its value, such as automatic.daily=90d")?;
    Policy::default().set(name, value)?;
    Ok((name.to_owned(), value.to_owned()))
}
