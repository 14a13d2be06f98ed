//! Directories and mounts of workspaces in a merge: captured before it, updated after it.

use amalgam_engine::object::Snapshot;
use amalgam_engine::operation::operation;
use amalgam_engine::workspace::{Change, WorkspaceName};
use amalgam_engine::{OperationContext, SnapshotId, WriteSession};
use amalgam_materializer::{Progress, Times};
use amalgam_proto::v1;

use super::capture::{CaptureScope, CommitDraft};
use super::restore::Target;
use super::{Directories, LockedDirectory};
use crate::error::Result;
use crate::messages::notice;
use crate::states::CAPTURE;
use crate::views::live::Secured;
use crate::views::{LockedView, WriterRule};

/// The action in the operation log for a merge.
const MERGE: &str = "merge";
/// The message of a snapshot of files written during a merge.
const WRITTEN_MEANWHILE: &str = "written during a merge";

/// The files of the target of a merge while the merge is computed.
pub(crate) enum FilesInMerge {
    /// They are locked until [`Directories::update_files`] has updated them, or the workspace has none.
    Locked(SecuredFiles),
    /// They are unlocked, because a command runs meanwhile. [`Directories::catch_up_files`] updates them.
    Unlocked,
}

/// The head of a workspace as a capture would make it.
pub(crate) struct PreviewedHead {
    pub(crate) head: Option<SnapshotId>,
    /// The counts of a capture; `None` when there are no edits.
    pub(crate) capture: Option<v1::MergeCapture>,
    /// Keeps the snapshot, which no reference names.
    _session: Option<WriteSession>,
}

impl PreviewedHead {
    /// Returns a head without a capture.
    pub(crate) fn at(head: Option<SnapshotId>) -> Self {
        Self { head, capture: None, _session: None }
    }
}

/// The files of a workspace, locked so that no other call commits or restores there.
enum LockedFiles {
    Nowhere,
    Directory(Box<LockedDirectory>),
    View(LockedView),
}

/// The locked files of a workspace, after their edits were committed.
pub(crate) enum SecuredFiles {
    Nowhere,
    Directory(Box<LockedDirectory>, Option<SnapshotId>),
    View(LockedView, Box<Secured>),
}

impl SecuredFiles {
    /// Returns the snapshot of the edits; `None` if there were no edits.
    pub(crate) fn safety(&self) -> Option<SnapshotId> {
        match self {
            Self::Nowhere => None,
            Self::Directory(_, safety) => *safety,
            Self::View(_, secured) => secured.snapshot,
        }
    }
}

impl Directories {
    /// Returns the head of a workspace as a capture of its directory or mount would make it, and moves nothing. The next collection
    /// removes the snapshot, which no reference names.
    pub(crate) fn preview_capture(&self, workspace: &WorkspaceName, act: &OperationContext) -> Result<PreviewedHead> {
        let head = self.context.head(workspace)?;
        let unchanged = PreviewedHead { head, capture: None, _session: None };
        let store = &self.context.store;
        let session = store.session();
        let (root, _pin) = match self.lock_files_of(workspace)? {
            LockedFiles::Nowhere => return Ok(unchanged),
            LockedFiles::Directory(mut locked) => {
                self.adopt_equal_head(&mut locked, head, &Progress::default())?;
                self.refuse_out_of_step(&locked, head)?;
                let captured = self.capture(&mut locked, &Progress::default())?;
                let held = self.hold_with_states_of(&captured, self.context.head_root(head)?)?;
                locked.save(&self.context);
                held
            }
            LockedFiles::View(locked) => {
                let (_held, root) = self.views.preview_in_view(&locked, head)?;
                (root, store.hold(root)?)
            }
        };
        let before = self.context.head_root(head)?;
        if self.states.is_same_with_states(before, Some(root))? {
            return Ok(unchanged);
        }
        let tally = self.states.tally(before, Some(root))?;
        let generation = match head {
            Some(head) => store.snapshot(head)?.generation + 1,
            None => 0,
        };
        let (parents, author, time) = (head.into_iter().collect(), act.actor.clone(), act.time);
        let (message, metadata) = (String::new(), std::collections::BTreeMap::new());
        let snapshot = Snapshot { root, parents, author, time, message, metadata, generation };
        let snapshot = session.put_snapshot(snapshot)?;
        session.write_all_ahead()?;
        let capture = v1::MergeCapture {
            workspace: amalgam_proto::workspace_name(workspace),
            added: tally.added,
            modified: tally.modified,
            removed: tally.removed,
        };
        Ok(PreviewedHead { head: Some(snapshot), capture: Some(capture), _session: Some(session) })
    }

    /// Locks the directory of a workspace, if it has one.
    pub(crate) fn lock_directory_of(&self, workspace: &WorkspaceName) -> Result<Option<LockedDirectory>> {
        let record = self.context.registry.all().into_iter().find(|record| record.workspace == workspace.as_str());
        record.map(|record| self.lock(&amalgam_proto::directory_name(&record.id))).transpose()
    }

    /// Locks the files of a workspace: its directory, or else its live view.
    fn lock_files_of(&self, workspace: &WorkspaceName) -> Result<LockedFiles> {
        if let Some(locked) = self.lock_directory_of(workspace)? {
            return Ok(LockedFiles::Directory(Box::new(locked)));
        }
        Ok(self.views.lock_view_of(workspace)?.map_or(LockedFiles::Nowhere, LockedFiles::View))
    }

    /// Commits the files of a workspace's directory or mount, if it has one and they changed.
    pub(crate) fn capture_of(&self, workspace: &WorkspaceName, reason: &str, act: &OperationContext) -> Result<()> {
        // The request id belongs to the merge that follows.
        let act = OperationContext { request: None, ..act.clone() };
        match self.lock_files_of(workspace)? {
            LockedFiles::Nowhere => Ok(()),
            LockedFiles::Directory(mut locked) => {
                let saying = CommitDraft { action: CAPTURE, change: Change::new(format!("before {reason}")) };
                self.snapshot_directory(&mut locked, &saying, CaptureScope::Dirty, &act, &Progress::default()).map(drop)
            }
            LockedFiles::View(locked) => {
                self.quota.check_space()?;
                if self.quota.quota_of(workspace)?.is_some() {
                    let (_held, root) = self.views.hold_edited(&locked)?;
                    self.quota.check_quota(workspace, Some(root))?;
                }
                self.views.secure_view_before(&locked, reason, &act).map(drop)
            }
        }
    }

    /// Locks the files of a workspace that is merged into, and commits their edits, if there are any. Leaves out a directory that
    /// was neither captured nor checked out yet although the workspace has a head: its missing files would count as deletions.
    pub(crate) fn secure_files(
        &self,
        workspace: &WorkspaceName,
        reason: &str,
        act: &OperationContext,
    ) -> Result<SecuredFiles> {
        match self.lock_files_of(workspace)? {
            LockedFiles::Directory(locked)
                if locked.record.snapshot().is_none() && self.context.head(workspace)?.is_some() =>
            {
                Ok(SecuredFiles::Nowhere)
            }
            LockedFiles::Directory(mut locked) => {
                let safety = self.secure_before(&mut locked, reason, act)?;
                Ok(SecuredFiles::Directory(locked, safety))
            }
            LockedFiles::View(locked) => {
                let secured = self.views.secure_view_before(&locked, reason, act)?;
                Ok(SecuredFiles::View(locked, Box::new(secured)))
            }
            LockedFiles::Nowhere => Ok(SecuredFiles::Nowhere),
        }
    }

    /// Unlocks files during a long merge. A directory that was neither captured nor checked out yet stays locked, because
    /// [`catch_up_files`](Self::catch_up_files) skips it.
    pub(crate) fn release_files(&self, place: SecuredFiles) -> FilesInMerge {
        match place {
            SecuredFiles::Directory(locked, _) if locked.record.snapshot().is_some() => FilesInMerge::Unlocked,
            SecuredFiles::View(..) => FilesInMerge::Unlocked,
            kept => FilesInMerge::Locked(kept),
        }
    }

    /// Updates files that were unlocked during a merge. Edits made meanwhile are merged with the new head.
    pub(crate) fn catch_up_files(
        &self,
        workspace: &WorkspaceName,
        merge: &mut v1::Merge,
        act: &OperationContext,
    ) -> Result<()> {
        match self.lock_files_of(workspace)? {
            LockedFiles::Nowhere => Ok(()),
            LockedFiles::Directory(mut locked) => {
                if locked.record.snapshot().is_none() || self.is_in_step(&locked, self.context.head(workspace)?)? {
                    return Ok(());
                }
                self.catch_up_with(&mut locked, WRITTEN_MEANWHILE, merge, act).map(drop)
            }
            LockedFiles::View(locked) => {
                let done = self.views.catch_up_view(&locked, WRITTEN_MEANWHILE, act)?;
                (merge.written, merge.removed) = (done.written, done.removed);
                Ok(())
            }
        }
    }

    /// Updates the files of a workspace to its head.
    pub(crate) fn update_files(
        &self,
        place: SecuredFiles,
        merge: &mut v1::Merge,
        act: &OperationContext,
    ) -> Result<()> {
        self.update_files_by(place, WriterRule::Overrule, merge, act)
    }

    /// Updates the files of a workspace to its head, with a rule for processes that write there meanwhile.
    pub(crate) fn update_files_by(
        &self,
        place: SecuredFiles,
        writers: WriterRule,
        merge: &mut v1::Merge,
        act: &OperationContext,
    ) -> Result<()> {
        match place {
            SecuredFiles::Nowhere => Ok(()),
            SecuredFiles::Directory(mut locked, _) => self.update_directory_files(&mut locked, merge, act),
            SecuredFiles::View(locked, secured) => self.views.update_view(&locked, *secured, writers, merge, act),
        }
    }

    /// Commits the edits of a directory, if there are any. A directory whose workspace moved on without it is updated first.
    pub(crate) fn secure_before(
        &self,
        locked: &mut LockedDirectory,
        reason: &str,
        act: &OperationContext,
    ) -> Result<Option<SnapshotId>> {
        let head = self.context.head(&locked.workspace)?;
        match self.is_in_step(locked, head)? {
            true => self.secure(locked, reason, act, &Progress::default()).map(|(safety, _)| safety),
            false => self.catch_up(locked, reason, act),
        }
    }

    /// Returns whether a directory misses a merge into its workspace, because the process died before it updated the directory.
    pub(super) fn is_left_behind(&self, locked: &LockedDirectory, head: Option<SnapshotId>) -> Result<bool> {
        let (Some(known), Some(now)) = (locked.record.snapshot(), head) else { return Ok(false) };
        if self.is_in_step(locked, head)? {
            return Ok(false);
        }
        let store = &self.context.store;
        let moved = store.last_move(&locked.workspace.reference())?;
        let is_merge = operation(store, moved).is_ok_and(|found| found.draft.action == MERGE);
        Ok(is_merge && self.context.history.is_ancestor(known, now)?)
    }

    /// Updates a directory whose workspace moved on without it. Each file there is unchanged, or already the head's if a process
    /// died during the update; any other file was edited by the user, and is merged with the head's. A capture on top of the head
    /// would revert the merge. Returns the snapshot of the edits, if there are any.
    pub(super) fn catch_up(
        &self,
        locked: &mut LockedDirectory,
        reason: &str,
        act: &OperationContext,
    ) -> Result<Option<SnapshotId>> {
        self.catch_up_with(locked, &format!("before {reason}"), &mut v1::Merge::default(), act)
    }

    fn catch_up_with(
        &self,
        locked: &mut LockedDirectory,
        message: &str,
        merge: &mut v1::Merge,
        act: &OperationContext,
    ) -> Result<Option<SnapshotId>> {
        let progress = Progress::default();
        // The request id belongs to the merge that follows.
        let act = &OperationContext { request: None, ..act.clone() };
        let head = self.context.head(&locked.workspace)?;
        let (Some(before), Some(now)) =
            (self.context.known_root(locked.record.snapshot())?, self.context.head_root(head)?)
        else {
            let what = message.strip_prefix("before ").unwrap_or(message);
            return self.secure(locked, what, act, &progress).map(|(safety, _)| safety);
        };
        let captured = self.capture_all(locked, &progress)?;
        let (edited, _pin) = self.hold_with_states_of(&captured, Some(before))?;
        let mut safety = None;
        if ![before, now].contains(&edited) {
            safety = self.states.merge_edits(&locked.workspace, before, edited, message, act)?;
        }
        self.update_directory_files(locked, merge, act)?;
        Ok(safety)
    }

    /// Updates a directory to its workspace's head.
    pub(crate) fn update_directory_files(
        &self,
        locked: &mut LockedDirectory,
        merge: &mut v1::Merge,
        act: &OperationContext,
    ) -> Result<()> {
        let head = self.context.head(&locked.workspace)?;
        let Some(root) = self.context.head_root(head)? else { return Ok(()) };
        if locked.record.snapshot() == head {
            return Ok(());
        }
        let target = Target { root, paths: None, with_git: false, set_id: false };
        // Files that the merge wrote get its time, and all others stay.
        let known = self.known_unwritten(locked, root)?;
        let (mut brought, _) = self.bring_to(locked, &target, Times::OfBytes(act.time), &Progress::default())?;
        brought.notices.retain(|notice| !known.contains(&notice.path));
        locked.record.in_step(head, act.time);
        locked.save(&self.context);
        (merge.written, merge.removed) = (brought.written, brought.removed);
        merge.notices = brought.notices.iter().map(notice).collect();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicI64, Ordering};

    use amalgam_engine::merge::MergeRequest;
    use amalgam_engine::workspace::NewWorkspace;
    use amalgam_engine::{NoContents, Time, WorkingTree};

    use super::*;
    use crate::home::Home;
    use crate::merging::AfterMerge;
    use crate::registry::Record;
    use crate::service::Service;

    fn name(name: &str) -> WorkspaceName {
        WorkspaceName::new(name).expect("a name")
    }

    fn write(service: &Service, workspace: &str, path: &str) {
        let (workspaces, act) = (&service.context.workspaces, service.context.act("ann"));
        let mut tree = workspaces.open(&name(workspace)).expect("open");
        tree.write(path, path.as_bytes()).expect("written");
        workspaces.commit(&name(workspace), &mut tree, &Change::new(path), &act).expect("committed");
    }

    /// Returns a time that is later than all before it.
    fn now() -> Time {
        static NOW: AtomicI64 = AtomicI64::new(1);
        Time(NOW.fetch_add(1, Ordering::Relaxed))
    }

    fn publish(service: &Service) {
        let act = &service.context.act("ann");
        let (workspace, target) = ("workspaces/try".to_owned(), "workspaces/main".to_owned());
        let asked = v1::Submission { workspace, target, capture: true, ..Default::default() };
        let done = service
            .merging
            .submit(&asked, AfterMerge::KeepWorkspace, act, &crate::caller::Caller::default())
            .expect("merged");
        assert!([v1::MergeHow::Merged, v1::MergeHow::Forward].contains(&done.merge.how()), "{:?}", done.merge);
    }

    /// Attaches a new directory to a new workspace `main`.
    fn attach(service: &Service, path: &Path) -> Record {
        std::fs::create_dir(path).expect("a directory");
        let asked = v1::AttachDirectoryRequest {
            path: crate::messages::path_bytes(path),
            workspace_id: "main".to_owned(),
            ..Default::default()
        };
        service.directories.attach(&asked, &service.context.act("ann")).expect("attached")
    }

    /// Commits the files of a directory.
    fn commit_files(service: &Service, record: &Record) {
        let act = service.context.act("ann");
        let mut locked = service.directories.lock(&amalgam_proto::directory_name(&record.id)).expect("locked");
        let saying = CommitDraft { action: CAPTURE, change: Change::new("files") };
        let (scope, progress) = (CaptureScope::Dirty, Progress::default());
        let done = service.directories.snapshot_directory(&mut locked, &saying, scope, &act, &progress);
        done.expect("committed");
    }

    /// Merges a fork that writes these paths into `main`, and leaves the directory of `main` behind.
    fn merge_fork(service: &Service, paths: &[&str]) {
        let (context, act) = (&service.context, service.context.act("ann"));
        context.workspaces.fork(&name("main"), &[name("try")], &act).expect("forked");
        paths.iter().for_each(|path| write(service, "try", path));
        let (target, sources) = (name("main"), [name("try")]);
        let request = MergeRequest::new(&target, &sources, &NoContents);
        context.workspaces.merge(&context.history, &request, &act).expect("merged");
    }

    #[test]
    fn state_values_stay_when_a_directory_catches_up_with_a_merge() {
        let around = tempfile::tempdir().expect("a directory");
        let service = Service::open(&Home::new(around.path().join("home")), now, &[]).expect("opened");
        let (workspaces, act) = (&service.context.workspaces, service.context.act("ann"));
        let path = around.path().join("copy");
        let record = attach(&service, &path);
        std::fs::write(path.join("first"), "1").expect("written");
        commit_files(&service, &record);
        let mut tree = workspaces.open(&name("main")).expect("open");
        tree.set_state("k", "1").expect("set");
        workspaces.commit(&name("main"), &mut tree, &Change::new("a value"), &act).expect("committed");
        std::fs::write(path.join("first"), "one").expect("written");
        let previewed = service.directories.preview_capture(&name("main"), &act).expect("previewed");
        let tree = WorkingTree::open(&service.context.store, previewed.head.expect("a head")).expect("open");
        assert_eq!(tree.read("first").expect("it is there"), b"one");
        assert_eq!(tree.state("k").expect("read").as_deref(), Some("1"), "in a preview");
        // From here on the record of the directory names a snapshot with the value.
        commit_files(&service, &record);
        merge_fork(&service, &["second"]);
        commit_files(&service, &record);
        let tree = workspaces.open(&name("main")).expect("open");
        assert_eq!(tree.read("second").expect("it is there"), b"second");
        assert_eq!(tree.state("k").expect("read").as_deref(), Some("1"));
        assert!(path.join("second").exists(), "the directory is updated");
    }

    #[test]
    fn a_preview_of_a_live_tree_has_uncommitted_state_values() {
        let around = tempfile::tempdir().expect("a directory");
        let service = Service::open(&Home::new(around.path().join("home")), now, &[]).expect("opened");
        let (workspaces, act) = (&service.context.workspaces, service.context.act("ann"));
        workspaces.create(&name("main"), &NewWorkspace::default(), &act).expect("made");
        write(&service, "main", "first");
        let used = service.views.use_view(&name("main")).expect("opened");
        let edit = amalgam_view::TreeEdit::SetState { key: "k".to_owned(), value: Some("1".to_owned()) };
        used.edit(&mut [], |_, _| Ok((vec![edit], ()))).expect("edited");
        let previewed = service.directories.preview_capture(&name("main"), &act).expect("previewed");
        let tree = WorkingTree::open(&service.context.store, previewed.head.expect("a head")).expect("open");
        assert_eq!(tree.state("k").expect("read").as_deref(), Some("1"));
    }

    #[test]
    fn an_edit_that_a_rule_drops_when_a_directory_catches_up_is_brought_back_by_an_undo() {
        for has_other_edit in [false, true] {
            let around = tempfile::tempdir().expect("a directory");
            let service = Service::open(&Home::new(around.path().join("home")), now, &[]).expect("opened");
            let act = service.context.act("ann");
            let path = around.path().join("copy");
            let record = attach(&service, &path);
            let rules = "[[rule]]\npath = \"docs/\"\nway = \"ours\"\n";
            for (directory, file, text) in [(".amalgam", "rules.toml", rules), ("docs", "a", "1")] {
                std::fs::create_dir(path.join(directory)).expect("a directory");
                std::fs::write(path.join(directory).join(file), text).expect("written");
            }
            commit_files(&service, &record);
            merge_fork(&service, &["docs/a", "second"]);
            std::fs::write(path.join("docs/a"), "mine").expect("written");
            if has_other_edit {
                std::fs::write(path.join("other"), "mine").expect("written");
            }
            let directory = amalgam_proto::directory_name(&record.id);
            let mut locked = service.directories.lock(&directory).expect("locked");
            let safety = service.directories.catch_up(&mut locked, "a test", &act).expect("caught up");
            drop(locked);
            assert_eq!(safety.is_some(), has_other_edit);
            let read = |file: &str| std::fs::read_to_string(path.join(file)).expect("it is there");
            assert_eq!(read("docs/a"), "docs/a", "the rule takes the version of the head");
            let asked = v1::UndoDirectoryRequest { name: directory, ..Default::default() };
            service.directories.undo_directory(&asked, &act, &Progress::default()).expect("undone");
            assert_eq!(read("docs/a"), "mine");
            assert_eq!(read("second"), "second", "the other changes of the merge stay");
            assert_eq!(path.join("other").exists(), has_other_edit);
        }
    }

    #[test]
    fn a_commit_is_refused_when_the_directory_misses_edits_of_an_older_revision() {
        let around = tempfile::tempdir().expect("a directory");
        let service = Service::open(&Home::new(around.path().join("home")), now, &[]).expect("opened");
        let (context, act) = (&service.context, service.context.act("ann"));
        let path = around.path().join("copy");
        let record = attach(&service, &path);
        std::fs::write(path.join("a"), "a").expect("written");
        commit_files(&service, &record);
        let first = context.head(&name("main")).expect("a head");
        std::fs::write(path.join("b"), "b").expect("written");
        commit_files(&service, &record);
        let mut tree = WorkingTree::open(&context.store, first.expect("a snapshot")).expect("open");
        tree.write("c", b"c").expect("written");
        let (edited, _pin) = tree.freeze().hold().expect("stored");
        let before = context.head_root(first).expect("read").expect("a tree");
        // The process dies before it updates the directory.
        let states = &service.directories.states;
        let head = context.head(&name("main")).expect("read").expect("a head");
        let guard = context.permissions.writing(&name("main")).expect("read");
        let merged = states.merge_change(&name("main"), head, [before, edited], Change::new("edits"), &guard, &act);
        merged.expect("merged");
        let mut locked = service.directories.lock(&amalgam_proto::directory_name(&record.id)).expect("locked");
        let saying = CommitDraft { action: CAPTURE, change: Change::new("files") };
        let (scope, progress) = (CaptureScope::Dirty, Progress::default());
        let refused = service.directories.snapshot_directory(&mut locked, &saying, scope, &act, &progress);
        assert_eq!(refused.expect_err("refused").reason(), amalgam_proto::Reason::StaleHead);
        let tree = context.workspaces.open(&name("main")).expect("open");
        for path in ["a", "b", "c"] {
            assert_eq!(tree.read(path).expect("it is there"), path.as_bytes());
        }
    }

    #[test]
    fn a_directory_that_never_had_what_its_workspace_holds_removes_nothing() {
        let around = tempfile::tempdir().expect("a directory");
        let service = Service::open(&Home::new(around.path().join("home")), now, &[]).expect("opened");
        let act = service.context.act("ann");
        let workspaces = &service.context.workspaces;
        workspaces.create(&name("main"), &NewWorkspace::default(), &act).expect("made");
        write(&service, "main", "first");
        workspaces.fork(&name("main"), &[name("try")], &act).expect("forked");
        // An empty directory that was attached to it.
        let path = around.path().join("copy");
        std::fs::create_dir(&path).expect("a directory");
        let asked = v1::AttachDirectoryRequest {
            path: crate::messages::path_bytes(&path),
            workspace_id: "main".to_owned(),
            ..Default::default()
        };
        let record = service.directories.attach(&asked, &act).expect("attached");
        write(&service, "try", "second");
        publish(&service);
        // A directory of a checkout whose process died.
        let root = service
            .context
            .head_root(service.context.head(&name("main")).expect("a head"))
            .expect("read")
            .expect("a tree");
        let record = Record { aim: Some(root), ..record };
        service.context.registry.put(record.clone()).expect("put");
        write(&service, "try", "third");
        publish(&service);
        let tree = workspaces.open(&name("main")).expect("open");
        for path in ["first", "second", "third"] {
            assert_eq!(tree.read(path).expect("it is there"), path.as_bytes());
        }
        // A commit there is refused, too, until the directory has the files of the workspace.
        let mut locked = service.directories.lock(&amalgam_proto::directory_name(&record.id)).expect("locked");
        let saying = CommitDraft { action: CAPTURE, change: Change::new("half of it") };
        let (scope, progress) = (CaptureScope::Dirty, Progress::default());
        let refused = service.directories.snapshot_directory(&mut locked, &saying, scope, &act, &progress);
        assert_eq!(refused.expect_err("refused").reason(), amalgam_proto::Reason::StaleHead);
    }

    #[test]
    fn a_commit_that_waited_for_a_directory_is_refused_if_its_expected_head_moved() {
        let around = tempfile::tempdir().expect("a directory");
        let service = Service::open(&Home::new(around.path().join("home")), now, &[]).expect("opened");
        let path = around.path().join("copy");
        let record = attach(&service, &path);
        std::fs::write(path.join("a"), "1").expect("written");
        commit_files(&service, &record);
        let head = || service.context.head(&name("main")).expect("read").expect("a head");
        let first = head();
        std::fs::write(path.join("a"), "second").expect("written");
        let mut locked = service.directories.lock_directory_of(&name("main")).expect("locked").expect("a directory");
        let asked = v1::CommitWorkspaceRequest {
            name: "workspaces/main".to_owned(),
            expected_head: amalgam_proto::snapshot_name(first),
            ..Default::default()
        };
        let edits = v1::CommitEditsRequest {
            workspace: asked.name.clone(),
            expected_head: asked.expected_head.clone(),
            ..Default::default()
        };
        let act = service.context.act("ann");
        let refused = std::thread::scope(|scope| {
            let commit = scope.spawn(|| service.files.commit_workspace(&asked, &act).map(drop));
            let edit = scope.spawn(|| service.files.commit_edits(&edits, &act).map(drop));
            // Both wait for the lock.
            std::thread::sleep(std::time::Duration::from_millis(200));
            let saying = CommitDraft { action: CAPTURE, change: Change::new("another commit") };
            let done = service.directories.snapshot_directory(
                &mut locked,
                &saying,
                CaptureScope::Dirty,
                &act,
                &Progress::default(),
            );
            done.expect("committed");
            drop(locked);
            [commit, edit].map(|waiting| waiting.join().expect("no panic").expect_err("another head"))
        });
        let second = head();
        assert_ne!(second, first);
        for refused in refused {
            assert_eq!(refused.reason(), amalgam_proto::Reason::StaleHead, "{refused}");
            assert_eq!(refused.details()["head"], amalgam_proto::snapshot_name(second));
        }
        // With the head as it is, edits land on the snapshot of the files that were changed since.
        std::fs::write(path.join("a"), "the third").expect("written");
        let edits = v1::CommitEditsRequest { expected_head: amalgam_proto::snapshot_name(second), ..edits };
        service.files.commit_edits(&edits, &act).expect("committed");
        let parents = service.context.store.snapshot(head()).expect("read").parents.clone();
        assert_eq!(parents, [second], "edits without a change make no snapshot of their own");
    }
}
