//! What waits for a person: shown with who made each version, and decided.

use amalgam_engine::object::Node;
use amalgam_engine::queue::{Review, Side, Take};
use amalgam_engine::{Act, SnapshotId, TreePath, entry_at};
use amalgam_proto::{Failure, Reason, v1};

use super::path_bytes;
use super::queue::{Referee, entry_message, id_of};
use crate::failure::{Result, of_engine};
use crate::service::Service;

const REVIEWS: &str = "reviews/";
/// Versions are looked up for so many paths of a review.
const VERSIONS_MAX: usize = 100;

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
        Ok(message)
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
            let referee = Referee::new(self)?;
            let folded = queue.preview(&entry, &referee, act).map_err(of_engine)?;
            return self.folded_message(&folded);
        }
        queue.resubmit(&review, &entry, act).map_err(of_engine)?;
        let act = Act { request: None, ..act.clone() };
        self.wait_for(&entry, &act).map(|(_, merge)| merge)
    }

    /// Does not merge it.
    pub(crate) fn reject_review(&self, name: &str, act: &Act) -> Result<Option<v1::Workspace>> {
        let review = self.review(name)?;
        self.inner.merging.queue.reject(&review, act).map_err(of_engine)?;
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
