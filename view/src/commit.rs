//! Commits and checkpoints of a view that stays in use, moves of the journal's base, and the end of a view.

use amalgam_engine::backend::Durability;
use amalgam_engine::work::Stat;
use amalgam_engine::workspace::{Change, Committed, JournalPlace, WorkspaceName, Workspaces};
use amalgam_engine::{
    Commit, CommittedTree, Expect, OperationContext, RefName, RootId, SnapshotId, TreePath, WorkingTree,
};
use parking_lot::{Mutex, MutexGuard, RwLock};
use tracing::debug;

use crate::attributes::Kind;
use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::invalidation::Invalidation;
use crate::journal::{Edit, Journal};
use crate::saved_inodes;
use crate::writeback::Writeback;

/// Files with conflict markers that were not edited: a commit stores the conflicts that they show instead of them.
/// Computed from a fork of the tree before the commit.
pub struct ConflictFiles {
    /// The fork that the files were read from.
    pub seen: WorkingTree,
    /// A tree with the conflicts.
    pub root: RootId,
    /// The paths of the files.
    pub paths: Vec<TreePath>,
}

/// A commit to make from a view.
pub struct CommitRequest<'a> {
    /// The workspaces of the store.
    pub workspaces: &'a Workspaces,
    /// The workspace whose head moves.
    pub name: &'a WorkspaceName,
    /// Message and metadata.
    pub change: &'a Change,
    /// Actor, time, request id and durability.
    pub act: &'a OperationContext,
    /// Name of the operation in the log.
    pub action: &'a str,
    /// Files to replace by conflicts, where they are unchanged since they were read.
    pub conflict_files: Option<&'a ConflictFiles>,
}

/// A frozen state of the view that is being stored.
struct FrozenState {
    tree: WorkingTree,
    /// Where in the journal it ends.
    place: JournalPlace,
}

/// Commits and checkpoints of a view, one at a time.
#[derive(Default)]
pub(crate) struct Committer {
    freezing: Mutex<()>,
}

impl Committer {
    /// Keeps commits and checkpoints from beginning a new journal file. The caller must not hold the view's lock.
    pub(crate) fn hold_off(&self) -> MutexGuard<'_, ()> {
        self.freezing.lock()
    }

    /// Commits the current state. Writers continue meanwhile; their edits are not part of the commit.
    pub(crate) fn commit(&self, fs: &RwLock<FileSystem>, request: &CommitRequest<'_>) -> Result<Committed> {
        let CommitRequest { workspaces, name, change, act, action, conflict_files } = *request;
        let _one = self.freezing.lock();
        let repeated = act.request.as_ref().map(|request| workspaces.store().find_request(request)).transpose()?;
        let frozen = freeze(fs, conflict_files)?;
        let change = Change { journaled: Some(frozen.place), ..change.clone() };
        let (committed, landed) = workspaces.commit_fork(name, &frozen.tree, &change, act, action)?;
        if repeated.flatten().is_some() {
            // A repeated request returns its first result, which may differ from the current state: tree and journal stay.
            return Ok(committed);
        }
        let is_new = landed.is_some();
        finish_commit(fs, &frozen, committed.snapshot, landed)?;
        let is_durable = act.durability == Durability::Durable;
        let is_long = fs.read().journal.as_ref().is_some_and(Journal::is_long);
        if is_durable || is_long {
            if !(is_durable && is_new) {
                // The commit may be an earlier one, or not durable.
                workspaces.store().sync()?;
            }
            move_base(fs)?;
        }
        Ok(committed)
    }

    /// Stores the tree under a reference of its own, without a commit, so that the journal can begin anew.
    pub(crate) fn checkpoint(
        &self,
        fs: &RwLock<FileSystem>,
        reference: &RefName,
        act: &OperationContext,
    ) -> Result<()> {
        let _one = self.freezing.lock();
        let frozen = freeze(fs, None)?;
        let head = frozen.tree.base();
        let store = frozen.tree.store().clone();
        let current = store.read_ref(reference)?.and_then(|value| value.target);
        let current = current.map(|target| SnapshotId::from_bytes(target.hash));
        let commit = Commit::new(reference, "uncommitted work of a view")
            .by(act.actor.clone(), act.time)
            .expecting(current.map_or(Expect::Absent, Expect::At));
        let landed = frozen.tree.freeze().commit(commit)?;
        let state = landed.done.snapshot;
        let mut locked = fs.write();
        locked.tree.settle(landed)?;
        // The next commit follows the same snapshot as before the checkpoint.
        locked.tree.rebase(head);
        if let Some(journal) = locked.journal.as_mut() {
            journal.set_pending_base(frozen.place, Some(state), head);
        }
        drop(locked);
        move_base(fs)
    }

    /// Completes a restore whose earlier state is stored elsewhere. `head` has the restored tree, and is the snapshot that the next commit
    /// follows.
    pub(crate) fn finish_restore(&self, fs: &RwLock<FileSystem>, head: SnapshotId) -> Result<()> {
        let _one = self.freezing.lock();
        let mut locked = fs.write();
        locked.tree.rebase(Some(head));
        let (is_clean, now) = (locked.tree.is_clean(), locked.now());
        let Some(journal) = locked.journal.as_mut() else { return Ok(()) };
        journal.append(&Edit::Committed { snapshot: head }, now, &[])?;
        if !is_clean {
            return Ok(());
        }
        let place = journal.rotate()?;
        journal.set_pending_base(place, Some(head), Some(head));
        let store = locked.tree.store().clone();
        drop(locked);
        store.sync()?;
        move_base(fs)
    }

    /// Ends the view: see [`View::close`](crate::View::close).
    pub(crate) fn close(&self, fs: &RwLock<FileSystem>, writeback: &Writeback) -> Result<()> {
        if fs.read().journal.as_ref().is_some_and(Journal::has_failed) {
            fs.write().journal = None;
            return Ok(());
        }
        writeback.sync(fs)?;
        let _one = self.freezing.lock();
        if fs.read().journal.is_some() {
            // Commits may not be on disk yet, and the journal will no longer have them.
            let store = fs.read().tree.store().clone();
            store.sync()?;
            move_base(fs)?;
        }
        let _sync = writeback.lock();
        let fs = &mut *fs.write();
        let Some(journal) = &fs.journal else { return Ok(()) };
        // Other threads may have written since the sync; from now on the lock prevents that.
        let unsynced = journal.unsynced()?;
        let is_needed = !journal.is_at_head() || !(fs.is_clean() || journal.is_empty());
        let synced = unsynced.sync();
        fs.finish_sync(&unsynced, synced)?;
        if let (false, Some(journal)) = (is_needed, &fs.journal) {
            journal.remove()?;
        }
        if let Some(mut journal) = fs.journal.take() {
            journal.release_preallocated();
            // Without this file the next view derives numbers and times from the tree, as after a crash.
            saved_inodes::save(journal.directory(), &fs.inodes).ok();
        }
        Ok(())
    }
}

/// Forks the current state, and begins a new journal file behind it.
fn freeze(fs: &RwLock<FileSystem>, conflict_files: Option<&ConflictFiles>) -> Result<FrozenState> {
    let mut fs = fs.write();
    if let Some(files) = conflict_files {
        restore_conflicts(&mut fs, files)?;
    }
    let place = fs.journal.as_mut().ok_or(Error::ReadOnly)?.rotate()?;
    Ok(FrozenState { tree: fs.tree.fork(), place })
}

/// Replaces files by the conflicts that they show, where they are unchanged. Not journaled: the next commit does it again.
fn restore_conflicts(fs: &mut FileSystem, files: &ConflictFiles) -> Result<()> {
    for path in &files.paths {
        let (seen, now) = (files.seen.stat(path)?, fs.tree.stat(path)?);
        let is_equal = |one: &Stat, other: &Stat| {
            let compared = |stat: &Stat| (stat.kind, stat.mode, stat.mtime, stat.size, stat.links);
            compared(one) == compared(other)
        };
        if !seen.zip(now).is_some_and(|(seen, now)| now.kind == Kind::File && now.links == 1 && is_equal(&seen, &now)) {
            continue;
        }
        fs.tree.take_over(path, files.root)?;
        fs.invalidate_path(path);
        if let Some(ino) = fs.inodes.ino_of(path) {
            // The data stays equal.
            fs.watchers.notify_all(&Invalidation::Attributes(ino));
        }
    }
    Ok(())
}

/// Makes a committed state the base of the tree: only later edits stay dirty, and only those are needed in the journal.
fn finish_commit(
    fs: &RwLock<FileSystem>,
    frozen: &FrozenState,
    snapshot: SnapshotId,
    landed: Option<CommittedTree>,
) -> Result<()> {
    let mut fs = fs.write();
    if let Some(landed) = landed {
        fs.tree.settle(landed)?;
    }
    let now = fs.now();
    let Some(journal) = fs.journal.as_mut() else { return Ok(()) };
    let appended = journal.append(&Edit::Committed { snapshot }, now, &[]);
    journal.set_pending_base(frozen.place, Some(snapshot), Some(snapshot));
    match appended {
        // The commit is stored, and has its own record of the journal position.
        Err(error) if error.is_full() => {
            debug!("no room for the journal's record of a commit");
            Ok(())
        }
        appended => appended.map(drop),
    }
}

/// Moves the journal's base to the last stored state, without the view's lock. That state must be on disk: if a power cut lost the state of
/// the base, synced edits would be lost with it.
fn move_base(fs: &RwLock<FileSystem>) -> Result<()> {
    let pending = fs.write().journal.as_mut().and_then(Journal::take_pending_base);
    let Some((directory, base)) = pending else { return Ok(()) };
    if let Err(error) = base.write(&directory) {
        if !error.is_full() {
            return Err(error);
        }
        // Once the base is written, the removal of earlier files frees space.
        fs.write().journal.iter_mut().for_each(Journal::release_preallocated);
        base.write(&directory)?;
    }
    if let Some(journal) = fs.write().journal.as_mut() {
        journal.base_moved(&base);
    }
    base.remove_earlier(&directory)
}
