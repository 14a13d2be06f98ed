//! What waits for a person: shown with who made each version, and decided.

use std::collections::HashMap;

use amalgam_engine::object::Node;
use amalgam_engine::operation::operation;
use amalgam_engine::queue::{Review, Side, Take};
use amalgam_engine::{Act, OperationCursor, SnapshotId, TreePath, entry_at};
use amalgam_proto::{Failure, Reason, v1};

use super::path_bytes;
use super::queue::{entry_message, id_of};
use crate::failure::{Result, of_engine};
use crate::service::Service;

pub(super) const REVIEWS: &str = "reviews/";
/// How references of workspaces begin.
const WORKSPACES: &str = "workspace/";
/// Versions are looked up for so many paths of a review.
const VERSIONS_MAX: usize = 100;
/// So far back the log is read for who made them.
const OPERATIONS_MAX: u64 = 10_000;

impl Service {
    /// What waits for a person, for the wire.
    pub(crate) fn list_reviews(&self, target: &str) -> Result<Vec<v1::Review>> {
        let target = self.here(target)?;
        let reviews = self.inner.merging.queue.reviews(target.as_ref()).map_err(of_engine)?;
        Ok(reviews.iter().map(review_message).collect())
    }

    fn review(&self, name: &str) -> Result<Review> {
        self.inner.merging.queue.find_review(id_of(name, REVIEWS)).map_err(of_engine)
    }

    /// One review, with who made each version.
    pub(crate) fn review_with_versions(&self, name: &str) -> Result<v1::Review> {
        let review = self.review(name)?;
        let mut message = review_message(&review);
        for conflict in review.conflicts.iter().take(VERSIONS_MAX) {
            let version = |at: Option<SnapshotId>, workspace: &str| {
                at.map(|at| self.version(at, &conflict.path, workspace)).transpose()
            };
            message.versions.push(v1::ReviewVersions {
                path: path_bytes(&conflict.path),
                base: version(review.bases.first().copied(), "")?,
                ours: version(review.ours, review.entry.target.as_str())?,
                theirs: version(Some(review.entry.snapshot), review.entry.source.as_str())?,
            });
        }
        self.name_makers(&mut message.versions)?;
        Ok(message)
    }

    /// Says of versions in which workspace and by which operation they were made: what first made a head of their snapshots.
    fn name_makers(&self, versions: &mut [v1::ReviewVersions]) -> Result<()> {
        let store = &self.inner.store;
        let all = versions.iter_mut().flat_map(|paths| [&mut paths.base, &mut paths.ours, &mut paths.theirs]);
        let mut wanted: HashMap<String, Vec<&mut v1::PathVersion>> = HashMap::new();
        for version in all.flatten().filter(|version| !version.snapshot.is_empty()) {
            wanted.entry(version.snapshot.clone()).or_default().push(version);
        }
        if wanted.is_empty() {
            return Ok(());
        }
        let newest = OperationCursor::at_end(store).map_err(of_engine)?.position();
        for sequence in (newest.saturating_sub(OPERATIONS_MAX)..=newest).rev() {
            // The log may begin later than at its first operation.
            let Ok(made) = operation(store, sequence) else { break };
            // A fork takes a head over, an undo brings one back: neither makes it.
            for change in made.changes.iter().filter(|_| made.draft.reverts.is_none()) {
                let (Some(before), Some(after)) = (&change.before, &change.after) else { continue };
                let Some(workspace) = change.name.as_str().strip_prefix(WORKSPACES) else { continue };
                let Some(head) = after.target.filter(|head| before.target != Some(*head)) else { continue };
                let head = amalgam_proto::snapshot_name(SnapshotId::from_bytes(head.hash));
                let Some(found) = wanted.get_mut(&head) else { continue };
                for version in found {
                    version.workspace = workspace.to_owned();
                    (version.operation, version.action) = (sequence, made.draft.action.clone());
                }
            }
        }
        Ok(())
    }

    /// A path in a snapshot, and who brought it there.
    fn version(&self, at: SnapshotId, path: &TreePath, workspace: &str) -> Result<v1::PathVersion> {
        let store = &self.inner.store;
        let root = store.snapshot(at).and_then(|snapshot| store.root(snapshot.root)).map_err(of_engine)?;
        let entry = entry_at(store, &root, path).map_err(of_engine)?;
        let (content, size) = match entry.map(|entry| entry.node) {
            Some(Node::File { size, .. }) => ("file".to_owned(), size),
            Some(Node::Directory(_)) => ("directory".to_owned(), 0),
            Some(_) => ("other".to_owned(), 0),
            None => (String::new(), 0),
        };
        let mut versions = self.inner.history.versions(at, path, false).map_err(of_engine)?;
        let brought = versions.next().transpose().map_err(of_engine)?;
        let mut message = v1::PathVersion { content, size, ..v1::PathVersion::default() };
        if let Some(brought) = brought {
            message.snapshot = amalgam_proto::snapshot_name(brought.id);
            message.author = brought.snapshot.author.clone();
            message.time = Some(amalgam_proto::timestamp(brought.snapshot.time));
            message.workspace = workspace.to_owned();
        }
        Ok(message)
    }

    /// Merges what waited again, with what still conflicts as conflicts in the target's tree.
    pub(crate) fn accept_review(&self, name: &str, dry_run: bool, act: &Act) -> Result<v1::Merge> {
        self.try_again(name, true, &[], dry_run, act)
    }

    /// Merges what waited again, with one side where both cannot be had.
    pub(crate) fn take_review(&self, request: &v1::TakeReviewRequest, act: &Act) -> Result<v1::Merge> {
        let side = match request.side() {
            v1::MergeSide::Ours => Side::Ours,
            v1::MergeSide::Theirs => Side::Theirs,
            v1::MergeSide::Unspecified => {
                return Err(Failure::new(Reason::Invalid, "say which side is to be taken: ours or theirs"));
            }
        };
        let paths = request.paths.iter().map(TreePath::new).collect::<Result<Vec<_>, _>>();
        let paths = paths.map_err(|source| of_engine(source.into()))?;
        let takes: Vec<_> = match paths.is_empty() {
            true => vec![Take { path: None, side }],
            false => paths.into_iter().map(|path| Take { path: Some(path), side }).collect(),
        };
        self.try_again(&request.name, false, &takes, request.dry_run, act)
    }

    fn try_again(&self, name: &str, keep: bool, takes: &[Take], dry_run: bool, act: &Act) -> Result<v1::Merge> {
        let review = self.review(name)?;
        let queue = &self.inner.merging.queue;
        let entry = queue.again(&review, keep, takes, act).map_err(of_engine)?;
        if dry_run {
            return self.preview_entry(&entry, act);
        }
        super::test::refuse_unstartable(&entry.wish.test)?;
        queue.resubmit(&review, &entry, act).map_err(of_engine)?;
        let act = Act { request: None, ..act.clone() };
        self.wait_for(&entry, &act).map(|(_, merge)| merge)
    }

    /// Does not merge it.
    pub(crate) fn reject_review(&self, name: &str, dry_run: bool, act: &Act) -> Result<Option<v1::Workspace>> {
        let review = self.review(name)?;
        if !dry_run {
            self.inner.merging.queue.reject(&review, act).map_err(of_engine)?;
        }
        let source = self.inner.workspaces.find(&review.entry.source).map_err(of_engine)?;
        source.map(|source| self.workspace_message(&source.name)).transpose()
    }
}

fn review_message(review: &Review) -> v1::Review {
    let conflicts = review.conflicts.iter().map(|conflict| v1::MergedPath {
        path: path_bytes(&conflict.path),
        way: String::new(),
        result: conflict.kind.clone(),
        others: Vec::new(),
    });
    v1::Review {
        entry: Some(entry_message(&review.entry, REVIEWS)),
        ours: review.ours.map(amalgam_proto::snapshot_name).unwrap_or_default(),
        bases: review.bases.iter().copied().map(amalgam_proto::snapshot_name).collect(),
        conflicts: conflicts.collect(),
        reason: review.reason.clone(),
        versions: Vec::new(),
    }
}
