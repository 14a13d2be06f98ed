//! The change between two trees as a patch in Git's format, which `git apply` takes.
//!
//! Git knows files, executable or not, and symlinks. What else differs is left out and listed in the report. Contents are
//! whole: binary files are in the patch too, with both sides, so that it can be applied in reverse. Times and state values
//! are no part of it.

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

/// What goes into a patch, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatchOptions {
    /// How many equal lines surround a difference. With 0, Git wants `--unidiff-zero` to apply it.
    pub context_lines: usize,
    /// Only what lies at or below one of these; all when there are none. A file that was renamed out of them is deleted,
    /// one that was renamed into them is added.
    pub paths: Vec<TreePath>,
    /// How renames are looked for; `None` writes them as deletions and additions.
    pub renames: Option<RenameOptions>,
    /// List in the report what differs in its time.
    pub times: bool,
    /// Leave out every entry called `.git`, with all below it, without a word in the report.
    pub without_git: bool,
    /// Larger files are written as binary ones.
    pub text_bytes_max: u64,
    /// Larger files are left out.
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

/// What was written, and what was not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PatchReport {
    /// How many files are in the patch; one that became of another kind counts twice.
    pub files: u64,
    /// How long the patch is. Git applies none of a gibibyte or more.
    pub bytes: u64,
    /// Whether all renames were looked for.
    pub renames: RenameSearch,
    /// What differs and is not in the patch, and attributes that are lost where Git writes a file anew.
    pub left_out: Vec<LeftOut>,
}

/// Something that differs and is not in the patch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Where.
    pub path: TreePath,
    /// Why.
    pub why: Omission,
}

/// Why something is not in a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Omission {
    /// Git keeps no empty directories: one that came or went is not in the patch, and one that a deletion leaves behind
    /// will be removed.
    EmptyDirectory,
    /// Git has no such entries: FIFOs, sockets, devices, conflicts.
    Kind(EntryKind),
    /// Permission bits other than the executable one.
    Mode,
    /// The time.
    Time,
    /// The owner.
    Owner,
    /// Extended attributes.
    Xattrs,
    /// That several names are one file.
    HardLink,
    /// The file is above the limit.
    TooLarge {
        /// Its size on the larger side.
        bytes: u64,
    },
    /// Git refuses a patch that touches its own directory.
    GitDirectory,
    /// Its bytes were purged on one side.
    Purged {
        /// When.
        time: Time,
    },
}

/// How many files are rendered together, and at most how many bytes of them.
const TOGETHER: usize = 256;
const TOGETHER_BYTES_MAX: u64 = 32 << 20;

/// Writes what makes one tree of the other; `None` is an empty one. Files come sorted by path.
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
