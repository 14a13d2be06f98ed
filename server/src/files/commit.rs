//! Commits: of edits in one call without a live tree, and of the changes of a live tree.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};

use amalgam_engine::object::Snapshot;
use amalgam_engine::reference::Operation;
use amalgam_engine::workspace::{Change, Committed, LabelName, WorkspaceName};
use amalgam_engine::{
    DiffOptions, Error as EngineError, InsightOptions, OperationContext, RootId, SnapshotId, TreePath, What,
    WorkingTree, diff_roots, insight,
};
use amalgam_gc::retention::AUTOMATIC_KEY;
use amalgam_proto::{Reason, v1};
use amalgam_view::{Difference, Guard, differences};
use parking_lot::MutexGuard;

use super::path::show_path;
use super::plan::Plan;
use super::watch::difference_kind;
use super::{COMMIT_LOCKS, Files};
use crate::context::ExpectedHead;
use crate::directory::SecuredFiles;
use crate::error::{Error, Result};
use crate::messages::summary_message;
use crate::permissions::is_visible_in;
use crate::states::COMMIT;
use crate::views::live::CommittedView;

/// The metadata key that says how a snapshot came to be.
const KIND_KEY: &str = "kind";
/// The most attempts to commit edits on a head that other writers move.
const ATTEMPTS_MAX: usize = 1_000;
/// The most paths in a response.
const CHANGES_MAX: usize = 10_000;

/// The fields of a commit that all requests have.
struct CommitFields<'a> {
    message: &'a str,
    metadata: &'a BTreeMap<String, String>,
    labels: &'a [String],
    kind: v1::CommitKind,
    note: Option<&'a String>,
    reward: Option<f64>,
}

impl CommitFields<'_> {
    fn change(&self) -> Result<Change> {
        let labels = self.labels.iter().map(LabelName::new).collect::<Result<Vec<_>, _>>()?;
        let mut metadata = self.metadata.clone();
        if let Some(reserved) = [KIND_KEY, AUTOMATIC_KEY].into_iter().find(|key| metadata.contains_key(*key)) {
            let message = format!("the metadata key {reserved:?} is set by the field `kind`; use that");
            return Err(Error::new(Reason::Invalid, message));
        }
        let word = match self.kind {
            v1::CommitKind::Unspecified | v1::CommitKind::Manual => None,
            v1::CommitKind::Step => Some("step"),
            v1::CommitKind::Automatic => {
                metadata.insert(AUTOMATIC_KEY.to_owned(), "true".to_owned());
                Some("automatic")
            }
        };
        metadata.extend(word.map(|word| (KIND_KEY.to_owned(), word.to_owned())));
        let change = Change {
            message: self.message.to_owned(),
            metadata,
            labels,
            note: self.note.cloned(),
            reward: self.reward,
            ..Change::default()
        };
        Ok(change)
    }
}

impl Files {
    /// Makes edits on the head of a workspace, or on a snapshot, and commits them.
    pub(crate) fn commit_edits(
        &self,
        request: &v1::CommitEditsRequest,
        act: &OperationContext,
    ) -> Result<v1::CommitEditsResponse> {
        let workspace = crate::call_log::workspace_id(&request.workspace)?;
        let fields = CommitFields {
            message: &request.message,
            metadata: &request.metadata,
            labels: &request.labels,
            kind: request.kind(),
            note: request.note.as_ref(),
            reward: request.reward,
        };
        let change = fields.change()?;
        let act = &durable_as_asked(act, request.buffered);
        let _turn = self.commit_turn(&workspace);
        if let Some(done) = self.context.done_before(act)? {
            let committed = committed_by(&done, &workspace)?;
            return self.commit_response(request, committed.snapshot, committed.is_new);
        }
        self.quota.check_space()?;
        let expected = ExpectedHead::parse(&request.expected_head)?;
        self.context.expect_head(&workspace, expected)?;
        let secured = match self.directory_of(&workspace) {
            Some(_) => Some(self.directories.secure_files(&workspace, "edits by call", act)?),
            None => None,
        };
        // A capture of the directory may have moved the head that was expected.
        let safety = secured.as_ref().and_then(SecuredFiles::safety);
        let expected = self.context.expect_after(&workspace, expected, safety)?;
        let (snapshot, changed) = self.land_edits(&workspace, request, expected, &change, act)?;
        if let Some(secured) = secured {
            self.directories.update_files(secured, &mut v1::Merge::default(), act)?;
        }
        self.views.head_moved(&workspace)?;
        self.commit_response(request, snapshot, changed)
    }

    /// Applies the edits to the head and commits them. Starts over whenever another writer moved the head.
    fn land_edits(
        &self,
        workspace: &WorkspaceName,
        request: &v1::CommitEditsRequest,
        expected: ExpectedHead,
        change: &Change,
        act: &OperationContext,
    ) -> Result<(SnapshotId, bool)> {
        let workspaces = &self.context.workspaces;
        let mut attempts = 0;
        loop {
            let head = self.context.expect_head(workspace, expected)?;
            let base = match request.revision.as_str() {
                "" => head,
                revision => Some(self.context.resolve(revision, Some(workspace))?),
            };
            let guard = self.context.permissions.writing(workspace)?;
            let mut tree = self.edited_tree(base, &request.edits, guard, act)?;
            self.check_quota(workspace, &tree)?;
            let done = match (base == head, base) {
                (false, Some(base)) => self.land_merged(workspace, base, head, &tree, change, act),
                _ => {
                    let done = workspaces.commit_as(workspace, &mut tree, change, act, COMMIT);
                    done.map(|done| (done.snapshot, done.is_new)).map_err(Error::from)
                }
            };
            attempts += 1;
            match done {
                Err(Error::Engine(EngineError::StaleHead { .. }))
                    if expected == ExpectedHead::Any && attempts < ATTEMPTS_MAX => {}
                done => return done,
            }
        }
    }

    /// Returns the tree of a snapshot with edits on behalf of some agents.
    pub(crate) fn edited_tree(
        &self,
        base: Option<SnapshotId>,
        edits: &[v1::FileEdit],
        guard: Guard,
        act: &OperationContext,
    ) -> Result<WorkingTree> {
        let mut tree = match base {
            Some(base) => WorkingTree::open(&self.context.store, base)?,
            None => WorkingTree::new(&self.context.store),
        };
        tree.set_now(act.time);
        let mut plan = Plan::new(tree, self.owner(), guard);
        edits.iter().try_for_each(|edit| plan.add(edit))?;
        Ok(plan.into_tree())
    }

    fn land_merged(
        &self,
        workspace: &WorkspaceName,
        base: SnapshotId,
        head: Option<SnapshotId>,
        tree: &WorkingTree,
        change: &Change,
        act: &OperationContext,
    ) -> Result<(SnapshotId, bool)> {
        let (edited, _pin) = tree.freeze().hold()?;
        let before = self.context.store.snapshot(base)?.root;
        let Some(head) = head else {
            let message = format!("workspace {workspace} has no snapshot, so the edits cannot be merged with it");
            return Err(Error::new(Reason::StaleHead, message));
        };
        let guard = self.context.permissions.writing(workspace)?;
        let landed = self.states.merge_change(workspace, head, [before, edited], change.clone(), &guard, act)?;
        Ok(landed.map_or((head, false), |snapshot| (snapshot, true)))
    }

    /// Commits the changes of a live tree.
    pub(crate) fn commit_workspace(
        &self,
        request: &v1::CommitWorkspaceRequest,
        act: &OperationContext,
    ) -> Result<v1::CommitWorkspaceResponse> {
        let workspace = crate::call_log::workspace_id(&request.name)?;
        let fields = CommitFields {
            message: &request.message,
            metadata: &request.metadata,
            labels: &request.labels,
            kind: request.kind(),
            note: request.note.as_ref(),
            reward: request.reward,
        };
        let change = fields.change()?;
        let act = &durable_as_asked(act, request.buffered);
        if let Some(done) = self.workspace_committed_by(&workspace, act)? {
            return Ok(done);
        }
        let expected = ExpectedHead::parse(&request.expected_head)?;
        let (before, CommittedView { snapshot, is_new: changed, is_merged: merged }) =
            match self.commit_live_files(&workspace, &change, expected, act) {
                // The first attempt of this request may have moved the head meanwhile.
                Err(failure) if failure.reason() == Reason::StaleHead => {
                    return self.workspace_committed_by(&workspace, act)?.ok_or(failure);
                }
                done => done?,
            };
        let changes = match (request.with_changes, snapshot) {
            (true, Some(snapshot)) => self.changes_since(before, snapshot)?,
            _ => Vec::new(),
        };
        let snapshot = snapshot.map(|id| self.context.one_snapshot(id)).transpose()?;
        Ok(v1::CommitWorkspaceResponse { snapshot, changed, merged, changes })
    }

    /// Commits the files of a workspace's directory, or else of its live tree. Returns the head before it with the result.
    fn commit_live_files(
        &self,
        workspace: &WorkspaceName,
        change: &Change,
        expected: ExpectedHead,
        act: &OperationContext,
    ) -> Result<(Option<SnapshotId>, CommittedView)> {
        let before = self.context.expect_head(workspace, expected)?;
        let done = match self.directories.commit_directory_of(workspace, change.clone(), expected, act)? {
            Some((snapshot, is_new)) => CommittedView { snapshot, is_new, is_merged: false },
            None => {
                let done = self.views.commit_live(workspace, change, expected, act)?;
                CommittedView { snapshot: done.snapshot.or(before), ..done }
            }
        };
        Ok((before, done))
    }

    /// Returns the result of a commit of a live tree that was carried out before.
    fn workspace_committed_by(
        &self,
        workspace: &WorkspaceName,
        act: &OperationContext,
    ) -> Result<Option<v1::CommitWorkspaceResponse>> {
        let Some(done) = self.context.done_before(act)? else { return Ok(None) };
        let committed = committed_by(&done, workspace)?;
        let snapshot = Some(self.context.one_snapshot(committed.snapshot)?);
        Ok(Some(v1::CommitWorkspaceResponse { snapshot, changed: committed.is_new, ..Default::default() }))
    }

    /// Returns the changes of a live tree.
    pub(crate) fn status(&self, workspace: &WorkspaceName) -> Result<v1::GetStatusResponse> {
        let head = self.context.head(workspace)?;
        let name = |snapshot: Option<SnapshotId>| snapshot.map(amalgam_proto::snapshot_name).unwrap_or_default();
        let (base, differences, trees, state_changed) = match self.directory_of(workspace) {
            Some(directory) => {
                let held = self.directories.hold_directory(&directory)?;
                let root = held.root.expect("a directory has a tree");
                let now = WorkingTree::open_root(&self.context.store, root)?;
                let before = match head {
                    Some(head) => WorkingTree::open(&self.context.store, head)?,
                    None => WorkingTree::new(&self.context.store),
                };
                (head, differences(&before, &now)?, Some([before, now]), false)
            }
            None => match self.views.changes_of(workspace)? {
                Some(changes) => (changes.base, changes.paths, Some(changes.trees), changes.has_changed_states),
                None => (head, Vec::new(), None, false),
            },
        };
        let guard = self.context.permissions.reading(Some(workspace))?;
        let trees: Vec<&WorkingTree> = trees.iter().flatten().collect();
        let mut shown = Vec::new();
        for (path, difference) in differences {
            if is_visible_in(&guard, &trees, &path)? {
                shown.push((path, difference));
            }
        }
        let message = |(path, difference): &(TreePath, Difference)| v1::FileChange {
            path: show_path(path),
            kind: difference_kind(*difference).into(),
            from_path: String::new(),
        };
        Ok(v1::GetStatusResponse {
            head: name(head),
            base: name(base),
            changes: shown.iter().take(CHANGES_MAX).map(message).collect(),
            truncated: shown.len() > CHANGES_MAX,
            state_changed,
        })
    }

    fn check_quota(&self, workspace: &WorkspaceName, tree: &WorkingTree) -> Result<()> {
        if self.quota.quota_of(workspace)?.is_some() {
            let (root, _pin) = tree.freeze().hold()?;
            self.quota.check_quota(workspace, Some(root))?;
        }
        Ok(())
    }

    /// Waits until no other commit of edits to this workspace is under way.
    fn commit_turn(&self, workspace: &WorkspaceName) -> MutexGuard<'_, ()> {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(workspace.as_str());
        self.commits[(hash % COMMIT_LOCKS as u64) as usize].lock()
    }

    fn commit_response(
        &self,
        request: &v1::CommitEditsRequest,
        snapshot: SnapshotId,
        changed: bool,
    ) -> Result<v1::CommitEditsResponse> {
        let parent = match changed {
            true => self.context.store.snapshot(snapshot)?.parents.first().copied(),
            false => Some(snapshot),
        };
        let summary = match request.with_summary {
            true => {
                let roots = self.roots(parent, snapshot)?;
                let found = insight(&self.context.store, roots.0, Some(roots.1), &InsightOptions::default())?;
                Some(summary_message(&found.finish()?))
            }
            false => None,
        };
        let changes = if request.with_changes { self.changes_since(parent, snapshot)? } else { Vec::new() };
        let snapshot = Some(self.context.one_snapshot(snapshot)?);
        Ok(v1::CommitEditsResponse { snapshot, changed, changes, summary })
    }

    fn roots(&self, before: Option<SnapshotId>, after: SnapshotId) -> Result<(Option<RootId>, RootId)> {
        let root = |snapshot: std::sync::Arc<Snapshot>| snapshot.root;
        let store = &self.context.store;
        Ok((before.map(|before| store.snapshot(before)).transpose()?.map(root), root(store.snapshot(after)?)))
    }

    /// Opens the trees in which files may have hidden names; none if the guard hides nothing.
    fn trees_if_hidden(&self, guard: &Guard, roots: [Option<RootId>; 2]) -> Result<Vec<WorkingTree>> {
        let roots = roots.into_iter().flatten().filter(|_| guard.hides());
        Ok(roots.map(|root| WorkingTree::open_root(&self.context.store, root)).collect::<Result<_, _>>()?)
    }

    /// Returns the paths of the head that a restore would change and that the caller can see, up to a limit. Without paths, all are
    /// restored.
    pub(crate) fn changes_of_restore(
        &self,
        workspace: &WorkspaceName,
        snapshot: SnapshotId,
        paths: &[TreePath],
    ) -> Result<Vec<v1::FileChange>> {
        let head = self.context.head(workspace)?;
        let held = self.context.hold_revision(&snapshot.to_string(), Some(workspace))?;
        let before = self.context.head_root(head)?;
        let guard = self.context.permissions.reading(Some(workspace))?;
        let trees = self.trees_if_hidden(&guard, [before, held.root])?;
        let trees: Vec<&WorkingTree> = trees.iter().collect();
        let is_wanted = |path: &TreePath| paths.is_empty() || paths.iter().any(|above| path.below(above).is_some());
        let mut changes = Vec::new();
        for change in diff_roots(&self.context.store, before, held.root, DiffOptions::default())? {
            let change = change?;
            if !is_wanted(&change.path) || !is_visible_in(&guard, &trees, &change.path)? {
                continue;
            }
            let kind = amalgam_proto::change_kind(&change.what).into();
            changes.push(v1::FileChange { path: show_path(&change.path), kind, from_path: String::new() });
            if changes.len() == CHANGES_MAX {
                break;
            }
        }
        Ok(changes)
    }

    /// Returns the paths that differ between two snapshots, up to a limit.
    fn changes_since(&self, before: Option<SnapshotId>, after: SnapshotId) -> Result<Vec<v1::FileChange>> {
        let (before, after) = self.roots(before, after)?;
        let guard = self.context.permissions.reading(None)?;
        let trees = self.trees_if_hidden(&guard, [before, Some(after)])?;
        let trees: Vec<&WorkingTree> = trees.iter().collect();
        let mut changes = Vec::new();
        for change in diff_roots(&self.context.store, before, Some(after), DiffOptions::default())?.take(CHANGES_MAX) {
            let change = change?;
            if !is_visible_in(&guard, &trees, &change.path)? {
                continue;
            }
            let from_path = match &change.what {
                What::Renamed { from } => show_path(from),
                _ => String::new(),
            };
            let kind = amalgam_proto::change_kind(&change.what).into();
            changes.push(v1::FileChange { path: show_path(&change.path), kind, from_path });
        }
        Ok(changes)
    }
}

fn durable_as_asked(act: &OperationContext, is_buffered: bool) -> OperationContext {
    if is_buffered { act.clone().buffered() } else { act.clone() }
}

/// Returns the result of the commit to a workspace that an operation recorded.
fn committed_by(done: &Operation, workspace: &WorkspaceName) -> Result<Committed> {
    Committed::of_operation(workspace, done).ok_or_else(|| {
        Error::new(Reason::RequestReused, "the request id belongs to an operation that committed nothing")
    })
}
