//! Reviews: merges that wait for a person, shown with the makers of each version, and decided.

use std::collections::HashMap;

use amalgam_conflicts::{Caption, render_text};
use amalgam_engine::merge::side_names;
use amalgam_engine::object::{Conflict, Node, Settled};
use amalgam_engine::operation::operation;
use amalgam_engine::queue::{Review, Side, SideChoice};
use amalgam_engine::{Entry, OperationContext, OperationCursor, SnapshotId, TreePath, entry_at};
use amalgam_proto::{Reason, v1};
use bytes::Bytes;

use super::Merging;
use super::path_bytes;
use super::queue::{PROBLEMS_MAX, entry_message, id_of, problem_of};
use crate::call_log::restricted_agent;
use crate::caller::Caller;
use crate::error::{Error, Result};

pub(super) const REVIEWS: &str = "reviews/";
/// The prefix of references of workspaces.
const WORKSPACES: &str = "workspace/";
/// The most paths of a review for which versions are looked up.
const VERSIONS_MAX: usize = 100;
/// The largest text that is shown with a review.
const SHOWN_BYTES_MAX: usize = 256 << 10;
/// The most operations of the log that are searched for the makers of versions.
const OPERATIONS_MAX: u64 = 10_000;
/// The act of [`Merging::reject_review`], for messages.
const REJECT: &str = "reject a review";

/// The options for another merge of a review.
struct Retry<'a> {
    /// Whether conflicts are kept in the target's tree.
    keep: bool,
    takes: &'a [SideChoice],
    dry_run: bool,
}

impl Merging {
    /// Returns a page of the reviews. The first page also reports reviews that cannot be read.
    pub(crate) fn list_reviews(
        &self,
        request: &v1::ListReviewsRequest,
        limit: usize,
    ) -> Result<v1::ListReviewsResponse> {
        let (target, queue) = (self.context.here(&request.target)?, &self.context.queue);
        let after = Some(request.page_token.as_str()).filter(|token| !token.is_empty());
        let (reviews, next) = queue.reviews_page(target.as_ref(), after, limit)?;
        let unreadable = if after.is_none() { queue.unreadable_reviews()? } else { Vec::new() };
        let problems = unreadable.iter().take(PROBLEMS_MAX).map(|one| problem_of(one, "amalgam review reject"));
        Ok(v1::ListReviewsResponse {
            reviews: reviews.iter().map(review_message).collect(),
            problems: problems.collect(),
            next_page_token: next.unwrap_or_default(),
        })
    }

    fn review(&self, name: &str) -> Result<Review> {
        Ok(self.context.queue.find_review(id_of(name, REVIEWS))?)
    }

    /// Returns a review with the versions of its conflicting paths and their makers.
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
                shown: self.shown_in_review(&review, &conflict.path)?,
            });
        }
        self.name_makers(&mut message.versions)?;
        Ok(message)
    }

    /// Returns the text of a conflicting path with conflict markers; empty for a binary or long file, and without a conflict.
    fn shown_in_review(&self, review: &Review, path: &TreePath) -> Result<Bytes> {
        let store = &self.context.store;
        let at = |snapshot: Option<SnapshotId>| -> Result<Vec<Option<Entry>>> {
            let Some(snapshot) = snapshot else { return Ok(vec![None]) };
            let root = store.snapshot(snapshot).and_then(|snapshot| store.root(snapshot.root))?;
            Ok(match entry_at(store, &root, path)? {
                Some(Entry { node: Node::Conflict(conflict), .. }) => conflict.terms().to_vec(),
                entry => vec![entry.map(|entry| entry.with_extra(|extra| extra.link = None))],
            })
        };
        // Ours, less the base, plus theirs, as a merge would add them up.
        let ours = at(review.ours)?;
        let is_plain = ours.len() == 1;
        let terms = [ours, at(review.bases.first().copied())?, at(Some(review.entry.snapshot))?].concat();
        let Ok(Settled::Conflicted(conflict)) = Conflict::settle(terms) else { return Ok(Bytes::new()) };
        let mut caption = Caption::of(path);
        if let Some(ours) = review.ours.filter(|_| !is_plain) {
            caption.names = side_names(&self.context.history, ours, path, &conflict)?;
        }
        caption.names.resize(conflict.added().count(), String::new());
        if let [first, .., last] = &mut caption.names[..] {
            let both = [(first, &review.entry.target), (last, &review.entry.source)];
            both.into_iter().filter(|(name, _)| name.is_empty()).for_each(|(name, known)| *name = known.to_string());
        }
        let rendered = render_text(store, &conflict, &caption)?.map(|rendered| rendered.bytes);
        Ok(rendered.filter(|bytes| bytes.len() <= SHOWN_BYTES_MAX).unwrap_or_default().into())
    }

    /// Adds the workspace and the operation that made each version: the first operation that made its snapshot a head.
    fn name_makers(&self, versions: &mut [v1::ReviewVersions]) -> Result<()> {
        let store = &self.context.store;
        let all = versions.iter_mut().flat_map(|paths| [&mut paths.base, &mut paths.ours, &mut paths.theirs]);
        let mut wanted: HashMap<String, Vec<&mut v1::PathVersion>> = HashMap::new();
        for version in all.flatten().filter(|version| !version.snapshot.is_empty()) {
            wanted.entry(version.snapshot.clone()).or_default().push(version);
        }
        if wanted.is_empty() {
            return Ok(());
        }
        let newest = OperationCursor::at_end(store)?.position();
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

    /// Returns the version of a path in a snapshot, with the snapshot that brought it there.
    fn version(&self, at: SnapshotId, path: &TreePath, workspace: &str) -> Result<v1::PathVersion> {
        let store = &self.context.store;
        let root = store.snapshot(at).and_then(|snapshot| store.root(snapshot.root))?;
        let entry = entry_at(store, &root, path)?;
        let (content, size) = match entry.map(|entry| entry.node) {
            Some(Node::File { size, .. }) => ("file".to_owned(), size),
            Some(Node::Directory(_)) => ("directory".to_owned(), 0),
            Some(_) => ("other".to_owned(), 0),
            None => (String::new(), 0),
        };
        let mut versions = self.context.history.versions(at, path, false)?;
        let brought = versions.next().transpose()?;
        let mut message = v1::PathVersion { content, size, ..v1::PathVersion::default() };
        if let Some(brought) = brought {
            message.snapshot = amalgam_proto::snapshot_name(brought.id);
            message.author = brought.snapshot.author.clone();
            message.time = Some(amalgam_proto::timestamp(brought.snapshot.time));
            message.workspace = workspace.to_owned();
        }
        Ok(message)
    }

    /// Merges the changes of a review again. Paths that still conflict become conflicts in the target's tree.
    pub(crate) fn accept_review(
        &self,
        name: &str,
        dry_run: bool,
        act: &OperationContext,
        caller: &Caller,
    ) -> Result<v1::Merge> {
        let how = Retry { keep: true, takes: &[], dry_run };
        self.try_again(name, &how, act, caller)
    }

    /// Merges the changes of a review again, with the chosen side of paths that conflict.
    pub(crate) fn take_review(
        &self,
        request: &v1::TakeReviewRequest,
        act: &OperationContext,
        caller: &Caller,
    ) -> Result<v1::Merge> {
        let side = match (request.side(), request.version.as_str()) {
            (v1::MergeSide::Ours, "") => Side::Ours,
            (v1::MergeSide::Theirs, "") => Side::Theirs,
            (_, word) => self.side_named(&request.name, word)?,
        };
        let paths = request.paths.iter().map(TreePath::new).collect::<Result<Vec<_>, _>>();
        let paths = paths?;
        let takes: Vec<_> = match paths.is_empty() {
            true => vec![SideChoice { path: None, side }],
            false => paths.into_iter().map(|path| SideChoice { path: Some(path), side }).collect(),
        };
        let how = Retry { keep: false, takes: &takes, dry_run: request.dry_run };
        self.try_again(&request.name, &how, act, caller)
    }

    /// Parses the side of a review: `ours`, `theirs`, `base`, or the name of one of both workspaces.
    fn side_named(&self, review: &str, word: &str) -> Result<Side> {
        let entry = self.review(review)?.entry;
        match word {
            "ours" => Ok(Side::Ours),
            "theirs" => Ok(Side::Theirs),
            "base" => Ok(Side::Base),
            word if word == entry.target.as_str() => Ok(Side::Ours),
            word if word == entry.source.as_str() => Ok(Side::Theirs),
            _ => {
                let (target, source) = (&entry.target, &entry.source);
                let words = format!("ours ({target}), theirs ({source}) or base");
                let message = match word {
                    "" => format!("say which version is to be taken: {words}"),
                    word => format!("there is no version {word}; there is {words}"),
                };
                Err(Error::new(Reason::Invalid, message))
            }
        }
    }

    fn try_again(&self, name: &str, how: &Retry<'_>, act: &OperationContext, caller: &Caller) -> Result<v1::Merge> {
        let review = self.review(name)?;
        let queue = &self.context.queue;
        // The merge of a caller who is no reviewer is subject to the policy.
        let approver = if self.context.permissions.is_reviewer()? { act.actor.as_str() } else { "" };
        let entry = queue.again(&review, how.keep, how.takes, approver, act)?;
        if how.dry_run {
            return self.preview_entry(&entry, act, caller);
        }
        super::test::refuse_unstartable(&entry.options.test, &self.context)?;
        queue.resubmit(&review, &entry, act)?;
        let act = OperationContext { request: None, ..act.clone() };
        self.fold_until_done(&entry, &act, caller).map(|(_, merge)| merge)
    }

    /// Rejects a review, so that its changes are not merged. Returns the source workspace; `None` if it is gone, or the review
    /// was unreadable. Under a policy, reviewers reject all reviews, and other agents those of their own workspaces.
    pub(crate) fn reject_review(
        &self,
        name: &str,
        dry_run: bool,
        act: &OperationContext,
    ) -> Result<Option<v1::Workspace>> {
        let (queue, id) = (&self.context.queue, id_of(name, REVIEWS));
        let unreadable = queue.unreadable_reviews()?;
        if let Some(found) = unreadable.into_iter().find(|one| one.id == id) {
            self.judge_end(None, REJECT)?;
            if !dry_run {
                self.remove_unreadable(&found, "reject", act)?;
            }
            return Ok(None);
        }
        let review = self.review(name)?;
        self.judge_end(Some(&review.entry.agent), REJECT)?;
        if !dry_run {
            queue.reject(&review, act)?;
        }
        let source = self.context.workspaces.find(&review.entry.source)?;
        source.map(|source| self.views.workspace_message(&source.name)).transpose()
    }

    /// Refuses an end of another agent's review or queue entry to a caller who is neither a reviewer nor that agent, with `action`
    /// in the message. `agent` is `None` if the agent is not known.
    pub(super) fn judge_end(&self, agent: Option<&str>, action: &str) -> Result<()> {
        if self.context.permissions.is_reviewer()? {
            return Ok(());
        }
        match restricted_agent() {
            Some(caller) if agent != Some(caller.as_str()) => {
                let message = format!("{caller} may not {action} of another agent; a reviewer of the policy may");
                Err(Error::new(Reason::Forbidden, message).with("agent", caller))
            }
            _ => Ok(()),
        }
    }
}

fn review_message(review: &Review) -> v1::Review {
    let conflicts = review.conflicts.iter().map(|conflict| v1::MergedPath {
        path: path_bytes(&conflict.path),
        way: String::new(),
        result: conflict.kind.clone(),
        others: Vec::new(),
        remembered: String::new(),
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
