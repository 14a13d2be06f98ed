//! Writes the change between two trees as a patch in Git's format, for `git apply`.
//!
//! Git stores files, executable or not, and symlinks. All other differences are omitted and listed in the report. Contents are
//! complete: binary files are in the patch with both sides, so that it can be applied in reverse. Times and state values are not
//! part of a patch.

mod binary;
mod options;
mod plan;
mod quote;
mod render;

pub use options::{LeftOut, Omission, PatchOptions, PatchReport};

use std::io;

use rayon::prelude::*;

use super::similar::{self, DetectedChange};
use crate::diff::{DiffOptions, diff_roots};
use crate::error::{Error, Result};
use crate::id::RootId;
use crate::store::Store;
use crate::time::Time;
use plan::{Plan, Step};

/// Maximum number of files that are rendered in one batch, and maximum number of their bytes.
const BATCH_FILES: usize = 256;
const BATCH_BYTES_MAX: u64 = 32 << 20;

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
    let found: Box<dyn Iterator<Item = Result<DetectedChange>>> = match &options.renames {
        None => {
            let changes = diff_roots(store, before, after, diff)?;
            Box::new(changes.map(|change| Ok(DetectedChange { change: change?, similarity: None })))
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
        if waiting.len() >= BATCH_FILES || waiting_bytes >= BATCH_BYTES_MAX {
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
