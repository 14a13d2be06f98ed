//! Undo and redo in a directory.

use std::collections::HashSet;

use amalgam_engine::reference::{Operation, Revert};
use amalgam_engine::{DiffOptions, Entry, EntryKind, OperationContext, What, diff_roots, operation};
use amalgam_materializer::{Captured, Progress, Times};
use amalgam_proto::{Reason, v1};

use super::restore::{Target, add_skipped};
use super::uncovered::uncovered_warning;
use super::unfinished::is_written;
use super::{Directories, LockedDirectory};
use crate::context::ShownNames;
use crate::error::{Error, PARTLY, Result};
use crate::registry::Reverting;
use crate::states::{Direction, EDIT, GitScope, Renaming, Reverted};
use crate::views::ViewRevert;

/// The most paths that are compared to find out whether an undo was interrupted.
const COMPARED_PATHS_MAX: usize = 1_000_000;

impl Directories {
    /// Undoes the last change: uncommitted changes (they are recorded, so that nothing is lost), or else the last operation of the
    /// workspace.
    pub(crate) fn undo_directory(
        &self,
        request: &v1::UndoDirectoryRequest,
        act: &OperationContext,
        progress: &Progress,
    ) -> Result<v1::RevertResult> {
        if let Some(id) = self.live_named(&request.name)? {
            return match self.views.undo_view(id, request.with_git, act)? {
                ViewRevert::Done(result) => Ok(*result),
                ViewRevert::Renaming(renaming) => self.revert_renaming(&renaming, act),
            };
        }
        let mut locked = self.lock(&request.name)?;
        if self.is_complete(&locked, act)? {
            return Ok(v1::RevertResult::default());
        }
        let git = self.states.git_scope(&locked.workspace, request.with_git)?;
        self.refuse_git_at_work(&locked, git)?;
        let captured = self.capture_all(&mut locked, progress)?;
        if let Some(begun) = self.unfinished_revert(&locked, &captured, git, Direction::Undo)? {
            let begun = Reverted { set_id: request.set_id, ..begun };
            let mut result = self.follow_reverted(&mut locked, &begun, &captured, act, progress)?;
            result.took_back_changes = begun.of.draft.action == EDIT;
            return Ok(result);
        }
        if self.states.is_replayed(act)? {
            return Ok(v1::RevertResult::default());
        }
        let recorded = self.record_edits(&locked, &captured, "undo", git, act)?;
        locked.save(&self.context);
        let next = self.states.next_to_revert(&locked.workspace, Direction::Undo)?;
        if let Some(renaming) = Renaming::of(&next, Direction::Undo) {
            drop(locked);
            return self.revert_renaming(&renaming, act);
        }
        let reverted = self.states.revert_visibly(&locked.workspace, next, captured.root, git, Direction::Undo, act)?;
        let reverted = Reverted { set_id: request.set_id, ..reverted };
        let mut result = self.follow_reverted(&mut locked, &reverted, &captured, act, progress)?;
        result.took_back_changes = recorded.is_some();
        Ok(result)
    }

    /// Redoes the operation that was undone last. Refused if there are changes since.
    pub(crate) fn redo_directory(
        &self,
        request: &v1::RedoDirectoryRequest,
        act: &OperationContext,
        progress: &Progress,
    ) -> Result<v1::RevertResult> {
        if let Some(id) = self.live_named(&request.name)? {
            return match self.views.redo_view(id, request.with_git, act)? {
                ViewRevert::Done(result) => Ok(*result),
                ViewRevert::Renaming(renaming) => self.revert_renaming(&renaming, act),
            };
        }
        let mut locked = self.lock(&request.name)?;
        if self.is_complete(&locked, act)? {
            return Ok(v1::RevertResult::default());
        }
        let git = self.states.git_scope(&locked.workspace, request.with_git)?;
        self.refuse_git_at_work(&locked, git)?;
        let captured = self.capture_all(&mut locked, progress)?;
        locked.save(&self.context);
        if let Some(begun) = self.unfinished_revert(&locked, &captured, git, Direction::Redo)? {
            let begun = Reverted { set_id: request.set_id, ..begun };
            return self.follow_reverted(&mut locked, &begun, &captured, act, progress);
        }
        if self.states.is_replayed(act)? {
            return Ok(v1::RevertResult::default());
        }
        let ignored_in = |tree| self.ignored_in(&locked, tree);
        let next = self.states.next_to_redo(&locked.workspace, captured.root, ignored_in)?;
        if let Some(renaming) = Renaming::of(&next, Direction::Redo) {
            drop(locked);
            return self.revert_renaming(&renaming, act);
        }
        let mut safety = None;
        if git.includes()
            && self.states.differs(self.states.state_root(&locked.workspace)?, Some(captured.root), git)?
        {
            let aside = self.context.workspaces.keep_aside(&locked.workspace, &captured.tree, "before redo", act);
            safety = Some(aside?);
        }
        let reverted = self.states.revert_visibly(&locked.workspace, next, captured.root, git, Direction::Redo, act)?;
        let reverted = Reverted { set_id: request.set_id, ..reverted };
        let mut result = self.follow_reverted(&mut locked, &reverted, &captured, act, progress)?;
        if let (Some(safety), Some(restored)) = (safety, &mut result.restored) {
            restored.safety = Some(self.context.snapshot_message(safety, &ShownNames::default())?);
            self.states.drop_aside(&locked.workspace, act)?;
        }
        Ok(result)
    }

    /// Gives a workspace its other name back. Its files do not change.
    fn revert_renaming(&self, renaming: &Renaming, act: &OperationContext) -> Result<v1::RevertResult> {
        let (by, of) = (self.rename_back(renaming, act)?, renaming.operation.clone());
        let (steps, direction) = (vec![of.sequence], renaming.direction);
        let reverted = Reverted { by, of, steps, direction, git: GitScope::LeaveAlone, set_id: false };
        self.states.revert_result(&reverted, v1::RestoreResult::default())
    }

    /// Gives a workspace its other name back, with its directories, its view and its publishing plan. Returns the operation that
    /// did so.
    pub(crate) fn rename_back(&self, renaming: &Renaming, act: &OperationContext) -> Result<Operation> {
        let (store, sequence) = (&self.context.store, renaming.operation.sequence);
        let mut by = None;
        self.rename_workspace_by(&renaming.from, &renaming.to, || {
            let done = match renaming.direction {
                Direction::Undo => operation::undo_operation(store, sequence, act),
                Direction::Redo => operation::redo_operation(store, sequence, act),
            };
            by = Some(done?);
            Ok(())
        })?;
        Ok(by.expect("the operation was reverted"))
    }

    /// Returns whether a request was carried out before. One whose files are not all written is not complete.
    fn is_complete(&self, locked: &LockedDirectory, act: &OperationContext) -> Result<bool> {
        let begun = locked.record.reverting.as_ref();
        if act.request.is_some() && begun.is_some_and(|begun| begun.finished_by == request_text(act)) {
            return Ok(true);
        }
        let is_unfinished = |sequence| begun.is_some_and(|begun| begun.by == sequence && begun.from.is_some());
        Ok(self.context.done_before(act)?.is_some_and(|done| !is_unfinished(done.sequence)))
    }

    /// Returns the last operation of a workspace if it is an undo or a redo that was interrupted while the files of the directory
    /// were written, so that a repetition of the command goes on with it. Each path must be as the operation makes it, an incomplete
    /// new file, or as it was before: edits made since are a change of their own.
    fn unfinished_revert(
        &self,
        locked: &LockedDirectory,
        there: &Captured,
        git: GitScope,
        direction: Direction,
    ) -> Result<Option<Reverted>> {
        let (store, workspace) = (&self.context.store, &locked.workspace);
        let Some(Reverting { by, of, with_git, from: Some(from), token, .. }) = &locked.record.reverting else {
            return Ok(None);
        };
        let (by, of, from) = (*by, *of, *from);
        let Ok(_pin) = store.hold(from) else { return Ok(None) };
        // A request for more than was begun is another one.
        if store.last_move(&workspace.reference())? != by || git.includes() && !*with_git {
            return Ok(None);
        }
        let git = if *with_git { GitScope::Include } else { git };
        let (by, of) = (operation::operation(store, by)?, operation::operation(store, of)?);
        let is_same_direction = matches!(
            (by.draft.reverts, direction),
            (Some(Revert::Undo(_)), Direction::Undo) | (Some(Revert::Redo(_)), Direction::Redo)
        );
        let state = self.states.state_root(workspace)?;
        if !is_same_direction || !self.states.differs(state, Some(there.root), git)? {
            return Ok(None);
        }
        // The paths that must be as before, and those that may also be incomplete new files, which were not there before.
        let (mut same, mut same_or_new) = (HashSet::new(), HashSet::new());
        for change in diff_roots(store, state, Some(there.root), DiffOptions::default())? {
            let change = change?;
            let is_directory =
                |entry: &Option<Entry>| entry.as_ref().is_some_and(|entry| entry.kind() == EntryKind::Directory);
            // The attributes of a directory are written after its files.
            let is_attribute = is_directory(&change.before) && is_directory(&change.after);
            if !git.covers(&change.path) || is_attribute {
                continue;
            }
            match (&change.what, is_written(store, &change, token)?) {
                (What::Added, true) => {}
                (What::Metadata | What::Modified, true) => drop(same_or_new.insert(change.path)),
                _ => drop(same.insert(change.path)),
            }
            if same.len() + same_or_new.len() > COMPARED_PATHS_MAX {
                return Ok(None);
            }
        }
        for change in diff_roots(store, Some(there.root), Some(from), DiffOptions::default())? {
            let change = change?;
            let is_new = change.what == What::Removed;
            if same.contains(&change.path) || !is_new && same_or_new.contains(&change.path) {
                return Ok(None);
            }
        }
        // No step is taken back when nothing can be written: some of it was written before.
        Ok(Some(Reverted { by, of, steps: Vec::new(), direction, git, set_id: false }))
    }

    /// Brings a directory to the state that its workspace has after an undo or a redo.
    fn follow_reverted(
        &self,
        locked: &mut LockedDirectory,
        reverted: &Reverted,
        there: &Captured,
        act: &OperationContext,
        progress: &Progress,
    ) -> Result<v1::RevertResult> {
        let workspace = self.context.workspaces.get(&locked.workspace)?;
        let root = self.context.head_root(workspace.state())?.ok_or_else(|| {
            Error::new(
                Reason::NothingToRevert,
                "the workspace has no snapshot any more; the directory is left as it is",
            )
        })?;
        let target = Target { root, paths: None, with_git: reverted.git.includes(), set_id: reverted.set_id };
        let times = if there.counts.ignored == 0 { Times::Exact } else { Times::OfBytes(act.time) };
        let known = self.known_unwritten(locked, root)?;
        let (by, of, with_git) = (reverted.by.sequence, reverted.of.sequence, reverted.git.includes());
        let begun = Reverting { by, of, with_git, from: None, token: String::new(), finished_by: request_text(act) };
        let is_resumed = locked.record.reverting.as_ref().is_some_and(|begun| begun.by == by);
        if !is_resumed {
            let (from, finished_by) = (Some(there.root), None);
            locked.record.reverting = Some(Reverting { from, finished_by, ..begun.clone() });
        }
        let (mut brought, captured) = match self.bring_to(locked, &target, times, progress) {
            // No file was changed, so the workspace must not stay at the other state either.
            Err(error) if !error.details().contains_key(PARTLY) => {
                self.states.take_back(reverted, act)?;
                return Err(error);
            }
            // All files are written: another run would revert one more operation.
            Err(error @ Error::Hinted { .. }) => return Err(error),
            Err(error) => {
                // Kept in memory even if the disk is full.
                let _ = self.context.registry.note(&locked.record);
                return Err(error.with_hint_if_partly("run the command again to go on"));
            }
            Ok(brought) => brought,
        };
        brought.notices.retain(|notice| !known.contains(&notice.path));
        locked.record.in_step(workspace.head, act.time);
        // No operation records the request.
        locked.record.reverting = Some(begun).filter(|begun| is_resumed && begun.finished_by.is_some());
        if workspace.working.is_none() {
            self.note_conflicts(locked)?;
        }
        let warnings = locked.save(&self.context);
        let mut restored = self.restore_result(&brought, workspace.head)?;
        add_skipped(&mut restored.notices, there);
        restored.warnings = warnings;
        restored.warnings.extend(uncovered_warning(&self.uncovered(there.root, root, captured.root)?, "not committed"));
        restored.left_alone = self.states.count_left_alone(root, captured.root, reverted.git)?;
        self.states.revert_result(reverted, restored)
    }
}

/// Returns the request of a call as it is stored with a directory.
fn request_text(act: &OperationContext) -> Option<String> {
    act.request.as_ref().map(|request| format!("{request:?}"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use amalgam_engine::Time;
    use amalgam_engine::reference::RequestId;
    use amalgam_engine::workspace::WorkspaceName;

    use super::*;
    use crate::home::Home;
    use crate::service::Service;

    const FILES: [&str; 4] = ["a", "b", "c", "new"];

    /// A directory whose last undo stopped in the middle: one file is not written yet, half of a new one is.
    struct Interrupted {
        _around: tempfile::TempDir,
        service: Service,
        directory: String,
        path: std::path::PathBuf,
        first: v1::RevertResult,
    }

    impl Interrupted {
        fn new() -> Self {
            Self::with(|path| write(path, "b", "edited"))
        }

        /// `edit` is the edit of the file that is not written yet.
        fn with(edit: fn(&Path)) -> Self {
            let around = tempfile::tempdir().expect("a directory");
            let service = Service::open(&Home::new(around.path().join("home")), || Time(5), &[]).expect("opened");
            let (act, progress) = (service.context.act("ann"), Progress::default());
            let path = around.path().join("main");
            fs::create_dir(&path).expect("a directory");
            let asked = v1::AttachDirectoryRequest {
                path: crate::messages::path_bytes(&path),
                workspace_id: "main".to_owned(),
                ..Default::default()
            };
            let record = service.directories.attach(&asked, &act).expect("attached");
            let directory = amalgam_proto::directory_name(&record.id);
            FILES.iter().for_each(|file| write(&path, file, "before"));
            let request = v1::CaptureDirectoryRequest { name: directory.clone(), ..Default::default() };
            service.directories.capture_directory(&request, &act, &progress).expect("committed");
            ["a", "c"].iter().for_each(|file| write(&path, file, "edited"));
            edit(&path);
            fs::remove_file(path.join("new")).expect("removed");
            let mut locked = service.directories.lock(&directory).expect("locked");
            let from = service.directories.capture_all(&mut locked, &progress).expect("captured").root;
            locked.save(&service.context);
            drop(locked);
            let first = service.directories.undo_directory(&undo(&directory), &act, &progress).expect("undone");
            let of = first.reverted.as_ref().expect("an operation").sequence;
            let main = WorkspaceName::new("main").expect("a name");
            let by = service.context.store.last_move(&main.reference()).expect("a move");
            let mut locked = service.directories.lock(&directory).expect("locked");
            let (with_git, token, finished_by) = (false, String::new(), None);
            locked.record.reverting = Some(Reverting { by, of, with_git, from: Some(from), token, finished_by });
            locked.save(&service.context);
            drop(locked);
            let this = Self { _around: around, service, directory, path, first };
            assert_eq!(this.read(), ["before"; 4]);
            edit(&this.path);
            write(&this.path, "new", "bef");
            this
        }

        fn read(&self) -> [String; 4] {
            FILES.map(|file| fs::read_to_string(self.path.join(file)).unwrap_or_default())
        }

        fn undo(&self, act: &OperationContext) -> v1::RevertResult {
            let undone = self.service.directories.undo_directory(&undo(&self.directory), act, &Progress::default());
            undone.expect("undone")
        }

        fn redo(&self) -> Result<v1::RevertResult> {
            let request = v1::RedoDirectoryRequest { name: self.directory.clone(), ..Default::default() };
            self.service.directories.redo_directory(&request, &self.service.context.act("ann"), &Progress::default())
        }
    }

    fn write(directory: &Path, file: &str, text: &str) {
        fs::write(directory.join(file), text).expect("written");
    }

    fn undo(directory: &str) -> v1::UndoDirectoryRequest {
        v1::UndoDirectoryRequest { name: directory.to_owned(), ..Default::default() }
    }

    #[test]
    fn an_interrupted_undo_goes_on_when_it_is_repeated_and_one_redo_brings_everything_back() {
        let there = Interrupted::new();
        let act = OperationContext {
            request: Some(RequestId::new("again").expect("an id")),
            ..there.service.context.act("ann")
        };
        let second = there.undo(&act);
        assert_eq!(there.read(), ["before"; 4]);
        assert_eq!((&second.reverted, second.took_back_changes), (&there.first.reverted, true), "it is the same undo");
        // A retry whose first answer was lost.
        assert_eq!(there.undo(&act), v1::RevertResult::default());
        assert_eq!(there.read(), ["before"; 4]);
        there.redo().expect("redone");
        assert_eq!(there.read(), ["edited", "edited", "edited", ""], "nothing of the edit is out of reach");
        there.redo().expect_err("there is one undo to redo");
    }

    #[test]
    fn an_interrupted_undo_goes_on_where_a_file_to_write_is_a_beginning_of_its_target_or_differs_in_attributes() {
        use std::os::unix::fs::PermissionsExt as _;
        let edits: [fn(&Path); 3] = [
            |path| write(path, "b", "bef"),
            |path| write(path, "b", "before, and more"),
            |path| fs::set_permissions(path.join("b"), fs::Permissions::from_mode(0o755)).expect("changed"),
        ];
        for edit in edits {
            let there = Interrupted::with(edit);
            let mode = || fs::metadata(there.path.join("b")).expect("it is there").permissions().mode() & 0o777;
            let (edited, old) = (fs::read_to_string(there.path.join("b")).expect("read"), mode());
            there.undo(&there.service.context.act("ann"));
            assert_eq!((there.read(), mode()), (["before"; 4].map(str::to_owned), 0o644));
            there.redo().expect("redone");
            assert_eq!(there.read(), ["edited", edited.as_str(), "edited", ""], "one redo brings all edits back");
            assert_eq!(mode(), old);
            there.redo().expect_err("there is one undo to redo");
        }
    }

    #[test]
    fn edits_since_an_interrupted_undo_are_a_step_of_their_own() {
        use std::os::unix::fs::PermissionsExt as _;
        let edits: [fn(&Path); 3] = [
            |path| write(path, "c", "mine"),
            |path| write(path, "a", "bef"),
            |path| fs::set_permissions(path.join("a"), fs::Permissions::from_mode(0o755)).expect("changed"),
        ];
        for edit in edits {
            let there = Interrupted::new();
            edit(&there.path);
            let mode = || fs::metadata(there.path.join("a")).expect("it is there").permissions().mode() & 0o777;
            let (files, old) = (there.read(), mode());
            there.undo(&there.service.context.act("ann"));
            assert_eq!(there.read(), ["before"; 4]);
            there.redo().expect("redone");
            assert_eq!((there.read(), mode()), (files, old));
        }
    }
}
