//! Writes a snapshot into a new directory.

use std::path::Path;

use amalgam_conflicts::Style;
use amalgam_engine::workspace::WorkspaceName;
use amalgam_engine::{OperationContext, RootId, WorkingTree};
use amalgam_materializer::{CheckoutOptions, HostDir, Index, Progress, Staging, Times, checkout_staged};
use amalgam_proto::{Reason, v1};
use parking_lot::{ArcMutexGuard, RawMutex};

use super::written_tree::WrittenTree;
use super::{Directories, Live};
use crate::conflicts::{CaptionSource, CapturedConflicts, FaceKey};
use crate::context::HeldTree;
use crate::error::{Error, Result};
use crate::host_path::{canonical, host_path, make_empty};
use crate::messages::{notice, path_bytes};
use crate::permissions::hidden_paths;
use crate::registry::Record;
use crate::views::named;

/// An attached directory that is being written and that no other call uses. If the checkout fails, a new directory is detached
/// again; one that is written again keeps its record, and a restore can complete it.
struct Attached<'a> {
    directories: &'a Directories,
    id: String,
    is_new: bool,
    live: Option<ArcMutexGuard<RawMutex, Live>>,
}

impl Attached<'_> {
    /// Unlocks the directory, keeps it attached, and returns its id.
    fn keep(mut self) -> String {
        self.live = None;
        std::mem::take(&mut self.id)
    }
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        if !self.id.is_empty() && self.is_new {
            self.live = None;
            // A record that cannot be removed loses nothing: it names its directory.
            let _ = self.directories.forget_directory(&self.id);
        }
    }
}

impl Directories {
    /// Writes a snapshot into a new or empty directory and attaches it to a workspace if the request says so, or writes the lost
    /// directory of a workspace again.
    pub(crate) fn checkout_directory(
        &self,
        request: &v1::CheckoutDirectoryRequest,
        act: &OperationContext,
        progress: &Progress,
    ) -> Result<v1::CheckoutResult> {
        self.context.host.check("checkouts")?;
        if request.again {
            return self.bring_back(request, act, progress);
        }
        let here = self.context.here(&request.workspace)?;
        let wanted = self.context.hold_revision(&request.revision, here.as_ref())?;
        let root = wanted.root.expect("a revision has a tree");
        let attach = match request.attach_workspace.as_str() {
            "" => None,
            name => Some(amalgam_proto::workspace_id(name)?),
        };
        let style = match request.conflicts.as_str() {
            "" => Style::default(),
            word => Style::from_word(word).ok_or_else(|| {
                let words = "markers, ours, theirs or base";
                Error::new(Reason::Invalid, format!("`{word}` is not a way to show conflicts; use {words}"))
            })?,
        };
        if request.read_only && attach.is_some() {
            let message = "a read-only directory cannot belong to a workspace; leave out --workspace or --read-only";
            return Err(Error::new(Reason::Invalid, message));
        }
        if let Some(workspace) = &attach {
            self.refuse_hidden(workspace, root)?;
        }
        let path = canonical(&host_path(&request.path)?)?;
        self.clean_unfinished(&path)?;
        let (host, attached) = match &attach {
            Some(workspace) => {
                let conflicts = if style == Style::default() { "" } else { style.word() };
                let (host, attached) = self.attach_new(&path, workspace, conflicts, root, request.take_all)?;
                (host, Some(attached))
            }
            None => {
                make_empty(&path)?;
                (HostDir::open(&path)?, None)
            }
        };
        let source = CaptionSource::of(wanted.snapshot.filter(|_| attach.is_none()), attach.as_ref());
        self.write_checkout(request, (&wanted, (style, source)), (host, attached), progress)
    }

    /// Refuses to write files into the directory of a workspace that are hidden from its agent: a directory cannot hide them.
    fn refuse_hidden(&self, workspace: &WorkspaceName, root: RootId) -> Result<()> {
        let guard = self.context.permissions.workspace_guard(workspace)?;
        let tree = WorkingTree::open_root(&self.context.store, root)?;
        if hidden_paths(&tree, &guard)?.is_empty() {
            return Ok(());
        }
        let message = format!(
            "the policy hides files from the agent of {workspace}, and a directory cannot hide them; use `amalgam mount` or `amalgam run --in`"
        );
        Err(Error::new(Reason::Forbidden, message))
    }

    /// Writes a tree into an empty directory. If that is attached, records that it is in step with its workspace.
    fn write_checkout(
        &self,
        request: &v1::CheckoutDirectoryRequest,
        (wanted, face): (&HeldTree, FaceKey),
        (host, attached): (HostDir, Option<Attached<'_>>),
        progress: &Progress,
    ) -> Result<v1::CheckoutResult> {
        let (root, snapshot) =
            (wanted.root.expect("a revision has a tree"), wanted.snapshot.expect("and is a snapshot"));
        // Files are cloned from a directory that no other call changes meanwhile; its index proves each file once more.
        let source = match request.source.as_str() {
            "" => None,
            // A mount has no files that could be cloned.
            name if named(name).is_some() => None,
            name => Some(self.lock(name)?),
        };
        let pool = request.read_only.then(|| self.context.pool()).transpose()?;
        let job = CheckoutOptions {
            keep_git: false,
            rules: None,
            // A `.git` file names a repository elsewhere, which two directories must not share; a lost directory shares it with no
            // other.
            leave_git_file: !request.again && !request.take_all,
            withholds: !request.set_id && self.is_foreign(&[snapshot], None)?,
            paths: None,
            times: Times::Exact,
            source: source.as_ref().map(|locked| (&locked.host, locked.index())),
            pool: pool.as_ref(),
            progress,
        };
        let index = Index::new(host.identity());
        let seen =
            CapturedConflicts { conflicts: self.conflicts.conflicts_of(root, None)?, ..CapturedConflicts::default() };
        let faced = self.conflicts.faced(root, face, None)?;
        let staging = Staging::new();
        let begun = self.begin_checkout(&host, faced.rendered, &staging)?;
        let done = checkout_staged(&self.context.store, &host, &index, faced.rendered, &job, &staging);
        let done = done?;
        drop(source);
        let mut result = v1::CheckoutResult {
            directory: None,
            written: done.written,
            bytes: done.bytes,
            reflinked: done.reflinked,
            notices: done.notices.iter().map(notice).chain(wanted.notices()).collect(),
            conflicts: Some(self.conflicts.summary(&seen, Some(snapshot), root).unwrap_or_else(|_| seen.message())),
            linked: done.linked,
            ..v1::CheckoutResult::default()
        };
        if let Some(attached) = attached {
            let mut locked = self.lock(&amalgam_proto::directory_name(&attached.keep()))?;
            let written = WrittenTree { rendered: faced.rendered, paths: None, notices: &done.notices };
            self.recapture_touched(&mut locked, &done, &written, &Progress::default())?;
            locked.record.in_step(Some(snapshot), self.context.now());
            self.note_conflicts(&mut locked)?;
            result.warnings = locked.save(&self.context);
            let record = locked.record.clone();
            drop(locked);
            result.directory = Some(self.directory_message(&record));
        }
        begun.finish();
        Ok(result)
    }

    /// Creates an empty directory and attaches it to a workspace.
    fn attach_new(
        &self,
        path: &Path,
        workspace: &WorkspaceName,
        conflicts: &str,
        aim: RootId,
        takes_all: bool,
    ) -> Result<(HostDir, Attached<'_>)> {
        let _turn = self.context.registry.turn();
        self.refuse_second(workspace)?;
        // A refusal leaves no new directory behind.
        if path.symlink_metadata().is_err() {
            self.refuse_inside_or_around(path, self.context.registry.all().iter())?;
        }
        let made_here = make_empty(path)?;
        let host = HostDir::open(path)?;
        self.refuse_nested(path, &host)?;
        let (conflicts, aim) = (conflicts.to_owned(), Some(aim));
        let record = Record { made_here, conflicts, aim, takes_all, ..self.new_record(path, &host, workspace)? };
        self.context.registry.put(record.clone())?;
        let live = self.live(&record.id).lock_arc();
        Ok((host, Attached { directories: self, id: record.id, is_new: true, live: Some(live) }))
    }

    /// Writes the lost or replaced directory of a workspace again. Files that exist there are captured first.
    fn bring_back(
        &self,
        request: &v1::CheckoutDirectoryRequest,
        act: &OperationContext,
        progress: &Progress,
    ) -> Result<v1::CheckoutResult> {
        let workspace = amalgam_proto::workspace_id(&request.attach_workspace)?;
        let head = self.context.head(&workspace)?.ok_or_else(|| {
            Error::new(
                Reason::NotFound,
                format!("workspace {workspace} has no snapshot yet, so there is nothing to check out"),
            )
        })?;
        let record = self.context.registry.all().into_iter().find(|record| record.workspace == workspace.as_str());
        let path = match (&record, request.path.is_empty()) {
            (_, false) => canonical(&host_path(&request.path)?)?,
            (Some(record), true) => record.path.clone(),
            (None, true) => {
                let message =
                    format!("workspace {workspace} has no directory; name one: `amalgam checkout {workspace}@ DIR`");
                return Err(Error::new(Reason::NoDirectory, message));
            }
        };
        if let Some(record) = record.as_ref().filter(|record| self.open_host(record).is_ok()) {
            // The process died during the checkout: a restore completes it.
            if record.snapshot().is_none() && record.aim.is_some() {
                return self.bring_back_into(&path, &workspace, true, request, act, progress);
            }
            let message = format!(
                "workspace {workspace} has its directory at {}, and that is not lost; `amalgam restore` in it brings files back",
                record.path.display()
            );
            return Err(Error::new(Reason::AlreadyExists, message));
        }
        if !is_empty_or_absent(&path)? {
            return self.bring_back_into(&path, &workspace, record.is_some(), request, act, progress);
        }
        let wanted = self.context.hold_revision(&head.to_string(), Some(&workspace))?;
        let root = wanted.root.expect("a revision has a tree");
        let word = record.as_ref().map(|record| record.conflicts.clone()).unwrap_or_default();
        let style = Style::from_word(&word).unwrap_or_default();
        let (host, attached) = match record {
            Some(record) => self.attach_lost(&path, &record.id, root)?,
            None => self.attach_new(&path, &workspace, "", root, false)?,
        };
        let request = v1::CheckoutDirectoryRequest { source: String::new(), read_only: false, ..request.clone() };
        let face = (style, CaptionSource::Workspace(workspace));
        self.write_checkout(&request, (&wanted, face), (host, Some(attached)), progress)
    }

    /// Attaches a directory that has other files to a workspace, captures these, and restores the workspace's head.
    fn bring_back_into(
        &self,
        path: &Path,
        workspace: &WorkspaceName,
        is_known: bool,
        request: &v1::CheckoutDirectoryRequest,
        act: &OperationContext,
        progress: &Progress,
    ) -> Result<v1::CheckoutResult> {
        let head = self.context.head(workspace)?.map(|head| head.to_string()).unwrap_or_default();
        let attach = v1::AttachDirectoryRequest {
            path: path_bytes(path),
            workspace_id: workspace.to_string(),
            again: is_known,
            ..v1::AttachDirectoryRequest::default()
        };
        let record = self.attach(&attach, act)?;
        let has_git = path.join(".git").symlink_metadata().is_ok();
        let restore = v1::RestoreDirectoryRequest {
            name: amalgam_proto::directory_name(&record.id),
            revision: head,
            with_git: request.with_git || !has_git,
            ..v1::RestoreDirectoryRequest::default()
        };
        let done = self.restore_directory(&restore, act, progress, |_| Ok(()))?;
        Ok(v1::CheckoutResult {
            directory: Some(self.directory_message(&record)),
            written: done.written,
            bytes: done.bytes,
            notices: done.notices,
            conflicts: done.conflicts,
            safety: done.safety,
            warnings: done.warnings,
            removed: done.removed,
            git_kept: has_git && !request.with_git,
            ..v1::CheckoutResult::default()
        })
    }

    /// Creates an empty directory, and moves the record of a lost one to it.
    fn attach_lost(&self, path: &Path, id: &str, aim: RootId) -> Result<(HostDir, Attached<'_>)> {
        loop {
            let turn = self.context.registry.turn();
            let records = self.context.registry.all();
            let gone =
                || Error::new(Reason::NoDirectory, "the directory was detached meanwhile; run the command again");
            let found = records.iter().find(|record| record.id == id).ok_or_else(gone)?;
            self.refuse_inside_or_around(path, records.iter().filter(|record| record.id != id))?;
            let Some(mut live) = self.live(id).try_lock_arc() else {
                self.await_end_of_work(turn, id);
                continue;
            };
            make_empty(path)?;
            let host = HostDir::open(path)?;
            live.end_watch();
            let mut record = Record { path: path.to_owned(), aim: Some(aim), ..found.clone() };
            record.snapshot = None;
            (record.unwritten, record.unlisted) = (Vec::new(), 0);
            record.identify(host.identity());
            self.context.registry.put(record)?;
            self.retry_background(id);
            return Ok((host, Attached { directories: self, id: id.to_owned(), is_new: false, live: Some(live) }));
        }
    }

    fn refuse_second(&self, workspace: &WorkspaceName) -> Result<()> {
        match self.context.registry.all().iter().find(|record| record.workspace == workspace.as_str()) {
            Some(other) => {
                let hint = match self.open_host(other) {
                    Ok(_) => "; `amalgam fork --dir PATH` makes a second one".to_owned(),
                    Err(_) => format!(", which is lost; `amalgam checkout {workspace}` writes it again"),
                };
                let message = format!("workspace {workspace} has its directory at {}{hint}", other.path.display());
                Err(Error::new(Reason::AlreadyExists, message))
            }
            None => self.views.refuse_live(workspace, "no directory can be made for it"),
        }
    }
}

/// Returns whether a path does not exist or is an empty directory.
fn is_empty_or_absent(path: &Path) -> Result<bool> {
    match std::fs::read_dir(path) {
        Ok(mut names) => Ok(names.next().is_none()),
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => Ok(true),
        Err(source) => Err(Error::io(format!("read {}", path.display()))(source)),
    }
}

#[cfg(test)]
mod tests {
    use amalgam_engine::Time;

    use super::*;
    use crate::home::Home;
    use crate::service::Service;

    #[test]
    fn a_refused_checkout_leaves_no_directory_behind() {
        let around = tempfile::tempdir().expect("a directory");
        let service = Service::open(&Home::new(around.path().join("home")), || Time(5), &[]).expect("opened");
        let around = around.path().canonicalize().expect("a path");
        let (outer, act) = (around.join("outer"), service.context.act("ann"));
        std::fs::create_dir(&outer).expect("made");
        let attach = v1::AttachDirectoryRequest { path: path_bytes(&outer), ..Default::default() };
        service.directories.attach(&attach, &act).expect("attached");
        let store = &service.context.store;
        let session = store.session();
        let root = WorkingTree::new(store).freeze().write(&session).expect("written");
        let inner = outer.join("above/inner");
        let name = WorkspaceName::new("other").expect("a name");
        let refused = service.directories.attach_new(&inner, &name, "", root, false).err().expect("it is nested");
        assert_eq!(refused.reason(), Reason::NestedDirectory, "{refused}");
        assert!(!outer.join("above").exists());
    }
}
