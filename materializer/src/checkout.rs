//! Writes a tree as real files.
//!
//! The plan is the difference between the tree that an index describes and the target. It is walked directory by directory,
//! on all cores. A path is changed only while it is as the index says: a path that changed since is skipped with a notice, and
//! unknown files are never overwritten or deleted. Check and change cannot be one step, so an entry that loses its name is
//! first moved to a temporary name, checked again, and moved back if it differs ([`install`]). In existing directories files are
//! written under temporary names and renamed, so that a reader, or a crash, finds the old or the new file under each name. In
//! directories that the checkout created no other program expects anything yet, and files are written under their names.
//!
//! Three things are [`deferred`] until the walk is over: directories that are removed or replaced, after they were emptied;
//! files with several names; and the times of directories whose names changed late.
//!
//! A checkout syncs nothing and changes no index: a capture of the touched directories updates the index. A conflict is
//! displayed as the first of its versions that exists.
//!
//! Each piece of state has one owner: [`context`] the inputs, [`recorder`] the results, [`unchanged`] this checkout's own
//! changes of hard links, [`directory_modes`] the modes to restore, [`deferred`] the deferred work.

mod attributes;
mod content_writer;
mod context;
mod deferred;
mod deferred_writer;
mod directory_modes;
mod entry_writer;
mod grant;
mod install;
mod links;
mod new_entry;
mod open_directory;
mod pooled;
mod process;
mod recorder;
mod source;
mod unchanged;
mod walk;

use amalgam_engine::{RootId, Store};

pub use grant::grant_withheld;

use crate::checkout_options::{CheckoutOptions, CheckoutReport};
use crate::error::{Error, Result};
use crate::host::HostDir;
use crate::index::Index;
use crate::plan::check_path_count;
use crate::staging::Staging;
use context::Context;
use deferred::Deferred;
use deferred_writer::DeferredWriter;
use directory_modes::DirectoryModes;
use entry_writer::EntryWriter;
use walk::Walk;

/// Makes the directory that an index describes into a tree. An index without a root describes a directory with unknown
/// contents: everything is new there, and no existing file is touched.
///
/// After an error each name has its old or its new entry; a capture and another checkout finish the work.
pub fn checkout(
    store: &Store,
    directory: &HostDir,
    index: &Index,
    target: RootId,
    options: &CheckoutOptions<'_>,
) -> Result<CheckoutReport> {
    checkout_staged(store, directory, index, target, options, &Staging::new())
}

/// Does what [`checkout`] does, with temporary names of the caller's choice.
pub fn checkout_staged(
    store: &Store,
    directory: &HostDir,
    index: &Index,
    target: RootId,
    options: &CheckoutOptions<'_>,
    staging: &Staging<'_>,
) -> Result<CheckoutReport> {
    let _target = store.hold(target)?;
    let _base = index.root().map(|root| store.hold(root)).transpose()?;
    let _source = options.source.and_then(|(_, index)| index.root()).map(|root| store.hold(root)).transpose()?;
    let cx = Context::new(store, directory, index, target, options, staging)?;
    check_path_count(store, cx.before.as_deref(), &cx.after, options.paths)?;
    let done = run(&cx);
    match done {
        Ok(()) => Ok(cx.recorder.into_report()),
        Err(source) => {
            let (written, removed) = cx.recorder.counts();
            if written + removed == 0 && !cx.recorder.has_touched() {
                return Err(source);
            }
            Err(Error::Partial { written, removed, source: Box::new(source) })
        }
    }
}

fn run(cx: &Context<'_>) -> Result<()> {
    let entries = EntryWriter::new(cx)?;
    let modes = DirectoryModes::new(cx);
    let deferred = Deferred::default();
    let walked = Walk::new(cx, &entries, &modes, &deferred).run();
    let done = walked.and_then(|()| deferred.finish(&DeferredWriter::new(cx, &entries)));
    // Directories that were opened to their owner get their modes back after a failure, too.
    let restored = modes.restore();
    entries.installer.guard.record_contents();
    done.and(restored)
}
