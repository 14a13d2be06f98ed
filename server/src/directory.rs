//! Real directories: finding them, looking at them, and keeping them and their workspaces in step.
//!
//! One thing at a time happens to a directory: a second call waits. A directory is known by its inode; the same path with
//! another directory under it is refused, so that nothing is captured or overwritten by mistake.

mod attach;
mod capture;
mod checkout;
mod contents;
mod merged;
mod renames;
mod restore;
mod revert;
mod unfinished;
mod watch;
mod working;
mod writing;

pub(crate) use attach::{canonical, host_path, path_bytes};
pub(crate) use capture::{CAPTURE, Saying, Tally};
pub(crate) use checkout::make_empty;
pub(crate) use merged::Free;
pub(crate) use renames::{is_directory, renamed_message};
pub(crate) use restore::{Target, words_of};
pub(crate) use revert::{Direction, Reverted, renaming};
pub(crate) use watch::{BackgroundWatch, Watches};
pub(crate) use working::{EDIT, cleared_action, restore_action};

use std::sync::Arc;

use amalgam_engine::workspace::WorkspaceName;
use amalgam_engine::{Pin, RootId, SnapshotId, TreePath};
use amalgam_materializer::{HostDir, Index, Notice, Progress, Rules, Why};
use amalgam_proto::{Failure, Reason, v1};
use parking_lot::{ArcMutexGuard, Mutex, RawMutex};

use crate::conflicts::Seen;
use crate::failure::{Result, of_engine, of_materializer};
use crate::registry::Record;
use crate::service::{Held, Service};
use crate::views::{Named, named};

/// What is kept in memory of a directory.
#[derive(Default)]
pub(crate) struct Live {
    index: Option<Index>,
    watch: Option<watch::Watch>,
    /// Keeps the tree that the index describes, where no snapshot does.
    face: Option<Pin>,
}

impl Live {
    /// Ends the watch of the directory.
    fn end_watch(&mut self) {
        self.watch = None;
    }

    pub(crate) fn let_go_of_face(&mut self) {
        self.face = None;
    }
}

/// A directory that no other call touches while this lives.
pub(crate) struct Grasp {
    pub(crate) record: Record,
    pub(crate) workspace: WorkspaceName,
    /// What the last look said of conflicts.
    pub(crate) seen: Seen,
    /// Which paths the tree is about that the directory is being made into.
    pub(crate) aim_paths: Option<Vec<TreePath>>,
    host: HostDir,
    live: ArcMutexGuard<RawMutex, Live>,
}

impl Service {
    /// The record of a directory by its resource name.
    pub(crate) fn record(&self, name: &str) -> Result<Record> {
        if named(name).is_some() {
            let message = "this is a mount, not a directory; `amalgam umount` unmounts it";
            return Err(Failure::new(Reason::Invalid, message));
        }
        let id = amalgam_proto::directory_id(name).map_err(of_engine)?;
        let unknown =
            || Failure::new(Reason::NoDirectory, format!("there is no {name}; `amalgam ws` lists directories"));
        self.inner.registry.get(id).ok_or_else(unknown)
    }

    fn live(&self, id: &str) -> Arc<Mutex<Live>> {
        Arc::clone(self.inner.live.lock().entry(id.to_owned()).or_default())
    }

    /// Takes hold of a directory: waits for its turn, opens it, and makes sure that it is the one that is meant.
    pub(crate) fn grasp(&self, name: &str) -> Result<Grasp> {
        let id = self.record(name)?.id;
        let live = Mutex::lock_arc(&self.live(&id));
        // The call before may have changed the record.
        let record = self.record(name)?;
        let host = self.open_host(&record)?;
        let workspace = WorkspaceName::new(record.workspace.as_str()).map_err(of_engine)?;
        crate::call_log::record_workspace(workspace.as_str());
        let mut grasp = Grasp { record, workspace, seen: Seen::default(), aim_paths: None, host, live };
        grasp.ready_index(self);
        self.clean_up_after_the_dead(&grasp)?;
        Ok(grasp)
    }

    fn open_host(&self, record: &Record) -> Result<HostDir> {
        let path = record.path.display();
        let host = match HostDir::open(&record.path) {
            Ok(host) => host,
            Err(error) if error.kind() == Some(amalgam_engine::ErrorKind::NotFound) => {
                let hint = format!(
                    "`amalgam checkout {}` writes it again; if it was moved, run `amalgam ws attach` in its new place",
                    record.workspace
                );
                return Err(Failure::new(Reason::DirectoryGone, format!("{path} no longer exists; {hint}")));
            }
            Err(error) => return Err(of_materializer(error)),
        };
        if host.identity() != record.identity() {
            return Err(Failure::new(Reason::DirectoryReplaced, attach::replaced(record)));
        }
        Ok(host)
    }

    /// The tree that a directory holds now, captured and kept, but in no snapshot.
    pub(crate) fn hold_directory(&self, name: &str) -> Result<Held> {
        if let Some(id) = self.live_named(name)? {
            return self.hold_view(id);
        }
        let mut grasp = self.grasp(name)?;
        let captured = self.look(&mut grasp, &Progress::default())?;
        let pin = self.inner.store.hold(captured.root).map_err(of_engine)?;
        grasp.save(self);
        Ok(Held { root: Some(captured.root), snapshot: None, lean: None, _pin: Some(pin) })
    }

    /// The live view that a name stands for; nothing for a directory of the host. A mount that only follows is refused.
    pub(crate) fn live_named(&self, name: &str) -> Result<Option<u64>> {
        match named(name) {
            None => Ok(None),
            Some(Named::View(id)) => {
                crate::call_log::record_workspace(self.view_workspace(id)?.as_str());
                Ok(Some(id))
            }
            Some(Named::Follower) => {
                let message = "this mount is read-only and follows its workspace, so it never has changes";
                Err(Failure::new(Reason::Invalid, message))
            }
        }
    }

    /// The root of a workspace's head.
    pub(crate) fn head_root(&self, head: Option<SnapshotId>) -> Result<Option<RootId>> {
        head.map(|head| self.inner.store.snapshot(head).map(|snapshot| snapshot.root)).transpose().map_err(of_engine)
    }

    pub(crate) fn head(&self, workspace: &WorkspaceName) -> Result<Option<SnapshotId>> {
        Ok(self.inner.workspaces.get(workspace).map_err(of_engine)?.head)
    }

    /// What is left out of a directory.
    fn rules(&self, record: &Record) -> Result<Rules> {
        Ok(Rules::new(&record.exclude).map_err(of_materializer)?.never(&self.inner.ours))
    }
}

impl Grasp {
    /// The index from memory or from its file. One whose tree is gone is worth nothing: everything is read again.
    fn ready_index(&mut self, service: &Service) {
        if self.live.index.is_none() {
            let file = service.inner.registry.index_file(&self.record.id);
            self.live.index = Index::load(&file).ok().flatten();
        }
        let is_usable = self.live.index.as_ref().is_some_and(|index| {
            let is_there = index.root().is_none_or(|root| service.inner.store.hold(root).is_ok());
            index.identity() == self.host.identity() && is_there
        });
        if !is_usable {
            self.live.index = Some(Index::new(self.host.identity()));
        }
    }

    fn index(&self) -> &Index {
        self.live.index.as_ref().expect("it was made ready when the directory was grasped")
    }

    /// Keeps the tree that the index describes.
    pub(crate) fn keep_face(&mut self, face: Pin) {
        self.live.face = Some(face);
    }

    /// Writes the index and the record, for the next process. What they say has happened already, so a failure (a full disk) is only a
    /// warning: both hold in memory, the next call writes them, and an index that is missing or old costs reading the files again.
    pub(crate) fn save(&self, service: &Service) -> Vec<String> {
        let mut warnings = Vec::new();
        // While it is watched, the index in memory is the better one; writing it would cost more than what changed.
        if self.live.watch.is_none() {
            let file = service.inner.registry.index_file(&self.record.id);
            if let Err(error) = self.index().save(&file) {
                warnings.push(format!("the index of the directory was not saved, so files may be read again: {error}"));
            }
        }
        if let Err(failure) = service.inner.registry.note(&self.record) {
            let message = failure.message;
            warnings
                .push(format!("the record of the directory was not saved; the next command tries again: {message}"));
        }
        warnings
    }
}

/// A notice for the wire.
pub(crate) fn notice(notice: &Notice) -> v1::Notice {
    let kind = match &notice.why {
        Why::Ignored | Why::Uncovered => v1::NoticeKind::Ignored,
        Why::Ours => v1::NoticeKind::Ours,
        Why::OtherFileSystem => v1::NoticeKind::OtherFileSystem,
        Why::Failed { .. } => v1::NoticeKind::Failed,
        Why::Changing => v1::NoticeKind::Changing,
        Why::ChangedSince | Why::KeptBeside(_) => v1::NoticeKind::ChangedSince,
        Why::Unsupported(_) => v1::NoticeKind::Unsupported,
        Why::NotEmpty => v1::NoticeKind::NotEmpty,
        Why::Purged(_) => v1::NoticeKind::Purged,
        Why::Damaged(_) => v1::NoticeKind::Damaged,
        Why::OwnerNotSet => v1::NoticeKind::OwnerNotSet,
        Why::Withheld => v1::NoticeKind::Withheld,
        _ => v1::NoticeKind::Unspecified,
    };
    v1::Notice {
        path: bytes::Bytes::copy_from_slice(notice.path.as_bytes()),
        kind: kind.into(),
        message: notice.why.to_string(),
        failure: notice.why.is_failure(),
    }
}

/// How far a piece of work is, for the wire.
pub(crate) fn progress_message(phase: &str, progress: &Progress) -> v1::Progress {
    use std::sync::atomic::Ordering::Relaxed;
    v1::Progress {
        phase: phase.to_owned(),
        names: progress.seen.load(Relaxed),
        files: progress.files.load(Relaxed),
        files_total: progress.files_total.load(Relaxed),
        bytes: progress.bytes.load(Relaxed),
        bytes_total: progress.bytes_total.load(Relaxed),
    }
}
