//! Writes the change between two trees as a patch in Git's format, for `git apply`.
//!
//! Git stores files, executable or not, and symlinks. All other differences are omitted and listed in the report. Contents are
//! complete: binary files are in the patch with both sides, so that it can be applied in reverse. Times and state values are not
//! part of a patch.

mod binary;
mod plan;
mod quote;
mod render;

use std::io;

use rayon::prelude::*;

use super::similar::{self, Found, RenameOptions, RenameSearch};
use crate::diff::{DiffOptions, diff_roots};
use crate::error::{Error, Result};
use crate::id::RootId;
use crate::name::TreePath;
use crate::object::EntryKind;
use crate::store::Store;
use crate::time::Time;
use plan::{Plan, Step};

/// Options and limits of a patch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatchOptions {
    /// Number of unchanged context lines around a difference. With 0, `git apply` needs `--unidiff-zero`.
    pub context_lines: usize,
    /// Only include entries at or below one of these paths; all if empty. A file that was renamed out of them appears as deleted,
    /// one that was renamed into them as added.
    pub paths: Vec<TreePath>,
    /// How to search for renames; `None` writes them as deletions and additions.
    pub renames: Option<RenameOptions>,
    /// List entries that differ in their time in the report.
    pub times: bool,
    /// Omit every entry called `.git`, with everything below it, without listing it in the report.
    pub without_git: bool,
    /// Larger files are written as binary files.
    pub text_bytes_max: u64,
    /// Larger files are omitted.
    pub file_bytes_max: u64,
}

impl Default for PatchOptions {
    fn default() -> Self {
        Self {
            context_lines: 3,
            paths: Vec::new(),
            renames: Some(RenameOptions::default()),
            times: false,
            without_git: false,
            text_bytes_max: 16 << 20,
            file_bytes_max: 256 << 20,
        }
    }
}

/// The result of writing a patch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PatchReport {
    /// Number of files in the patch. A file whose kind changed counts twice.
    pub files: u64,
    /// Length of the patch in bytes. Git rejects patches of one gibibyte or more.
    pub bytes: u64,
    /// Whether the search for renames was complete.
    pub renames: RenameSearch,
    /// Differences that are not in the patch, and attributes that are lost where Git creates a file anew.
    pub left_out: Vec<LeftOut>,
}

/// A difference that is not in the patch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The path.
    pub path: TreePath,
    /// The reason.
    pub why: Omission,
}

/// The reason why a difference is not in a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Omission {
    /// Git does not store empty directories: an added or removed one is not in the patch, and Git removes a directory that a
    /// deletion leaves empty.
    EmptyDirectory,
    /// Git does not support this kind of entry: FIFOs, sockets, devices, conflicts.
    Kind(EntryKind),
    /// Permission bits other than the executable one.
    Mode,
    /// The modification time.
    Time,
    /// The owner.
    Owner,
    /// Extended attributes.
    Xattrs,
    /// The fact that several names share one file.
    HardLink,
    /// The file is above the limit.
    TooLarge {
        /// Its size on the larger side, in bytes.
        bytes: u64,
    },
    /// Git rejects a patch that changes a `.git` directory.
    GitDirectory,
    /// The bytes of one side were purged.
    Purged {
        /// The time of the purge.
        time: Time,
    },
}

/// Maximum number of files that are rendered in one batch, and maximum number of their bytes.
const TOGETHER: usize = 256;
const TOGETHER_BYTES_MAX: u64 = 32 << 20;

/// Writes the patch that turns one tree into the other; `None` stands for an empty tree. Files are sorted by path.
pub fn patch(
    store: &Store,
    before: Option<RootId>,
    after: Option<RootId>,
    options: &PatchOptions,
    out: &mut impl io::Write,
) -> Result<PatchReport> {
    let diff = DiffOptions { times: options.times, without_git: options.without_git };
    let mut report = PatchReport::default();
    let found: Box<dyn Iterator<Item = Result<Found>>> = match &options.renames {
        None => {
            let changes = diff_roots(store, before, after, diff)?;
            Box::new(changes.map(|change| Ok(Found { change: change?, similarity: None })))
        }
        Some(renames) => {
            let (found, search) = similar::changes(store, before, after, diff, renames)?;
            report.renames = search;
            Box::new(found.into_iter().map(Ok))
        }
    };
    let mut plan = Plan::new(store, after, options);
    let (mut waiting, mut waiting_bytes) = (Vec::new(), 0);
    for found in found {
        plan.take(found?)?;
        for step in plan.steps.drain(..) {
            waiting_bytes += step.bytes();
            waiting.push(step);
        }
        if waiting.len() >= TOGETHER || waiting_bytes >= TOGETHER_BYTES_MAX {
            write(store, &std::mem::take(&mut waiting), options, out, &mut report)?;
            waiting_bytes = 0;
        }
    }
    write(store, &waiting, options, out, &mut report)?;
    report.left_out.extend(plan.finish()?);
    Ok(report)
}

fn write(
    store: &Store,
    steps: &[Step],
    options: &PatchOptions,
    out: &mut impl io::Write,
    report: &mut PatchReport,
) -> Result<()> {
    let render = |step: &Step| match render::render(store, step, options) {
        Err(Error::Purged { tombstone, .. }) => Ok(Err(tombstone.time)),
        other => other.map(Ok),
    };
    let rendered: Vec<Result<Vec<u8>, Time>> = steps.par_iter().map(render).collect::<Result<_>>()?;
    for (step, text) in steps.iter().zip(rendered) {
        let text = match text {
            Ok(text) => text,
            Err(time) => {
                let side = step.after.as_ref().or(step.before.as_ref());
                let why = Omission::Purged { time };
                report.left_out.extend(side.map(|side| LeftOut { path: side.path.clone(), why }));
                continue;
            }
        };
        out.write_all(&text).map_err(|error| Error::from_io("write the patch", &error))?;
        report.files += 1;
        report.bytes += text.len() as u64;
    }
    Ok(())
}
