//! Directories of workspaces that are merged, and their mounts: captured before, brought along after.

use amalgam_engine::conflict::CONFLICTS_KEY;
use amalgam_engine::merge::{NoContents, merge_trees};
use amalgam_engine::object::Snapshot;
use amalgam_engine::operation::operation;
use amalgam_engine::workspace::{Change, WorkspaceName};
use amalgam_engine::{Act, MergeContents, MergeOptions, RootId, SnapshotId, WriteSession};
use amalgam_materializer::{Progress, Times};
use amalgam_merge::trees::ByRules;
use amalgam_proto::v1;

use super::capture::{CAPTURE, Saying};
use super::restore::Target;
use super::{Grasp, notice};
use crate::error::Result;
use crate::service::Service;
use crate::views::ViewGrasp;
use crate::views::live::Secured;

/// What the log calls a merge.
const MERGE: &str = "merge";
/// The message of what was written into a place while a merge into it went on.
const WRITTEN_MEANWHILE: &str = "written during a merge";

/// Says that others may work in a place.
pub(crate) struct Free;

/// What a workspace's head would be after a capture.
pub(crate) struct Ahead {
    pub(crate) head: Option<SnapshotId>,
    /// What would be captured; nothing when a snapshot has it all.
    pub(crate) capture: Option<v1::MergeCapture>,
    /// Keeps what no name points at.
    _session: Option<WriteSession>,
}

/// Where a workspace's files are, held so that no other call commits or restores there.
enum Place {
    Nowhere,
    Directory(Box<Grasp>),
    View(ViewGrasp),
}

/// The same after what is there was taken into a snapshot.
pub(crate) enum SecuredPlace {
    Nowhere,
    Directory(Box<Grasp>, Option<SnapshotId>),
    View(ViewGrasp, Box<Secured>),
}

impl SecuredPlace {
    /// The snapshot that was taken.
    pub(crate) fn safety(&self) -> Option<SnapshotId> {
        match self {
            Self::Nowhere => None,
            Self::Directory(_, safety) => *safety,
            Self::View(_, secured) => secured.snapshot,
        }
    }
}

impl Service {
    /// Looks at a workspace's directory or mount, if it has one, as a capture would, and changes nothing: the snapshot has no name, and
    /// goes with the next collection.
    pub(crate) fn look_ahead(&self, workspace: &WorkspaceName, act: &Act) -> Result<Ahead> {
        let head = self.head(workspace)?;
        let unchanged = Ahead { head, capture: None, _session: None };
        let store = &self.inner.store;
        let session = store.session();
        let (root, _pin) = match self.place_of(workspace)? {
            Place::Nowhere => return Ok(unchanged),
            Place::Directory(mut grasp) => {
                self.refuse_out_of_step(&grasp, head)?;
                let captured = self.look(&mut grasp, &Progress::default())?;
                let pin = store.hold(captured.root)?;
                grasp.save(self);
                (captured.root, pin)
            }
            Place::View(grasp) => {
                let (_held, root) = self.look_ahead_in_view(&grasp, head)?;
                (root, store.hold(root)?)
            }
        };
        let before = self.head_root(head)?;
        if self.is_same(before, Some(root))? {
            return Ok(unchanged);
        }
        let tally = self.tally(before, Some(root))?;
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
        Ok(Ahead { head: Some(snapshot), capture: Some(capture), _session: Some(session) })
    }

    /// Takes hold of a workspace's directory, if it has one.
    pub(crate) fn grasp_of(&self, workspace: &WorkspaceName) -> Result<Option<Grasp>> {
        let record = self.inner.registry.all().into_iter().find(|record| record.workspace == workspace.as_str());
        record.map(|record| self.grasp(&amalgam_proto::directory_name(&record.id))).transpose()
    }

    /// Takes hold of the place where a workspace's files are.
    fn place_of(&self, workspace: &WorkspaceName) -> Result<Place> {
        if let Some(grasp) = self.grasp_of(workspace)? {
            return Ok(Place::Directory(Box::new(grasp)));
        }
        Ok(self.grasp_view_of(workspace)?.map_or(Place::Nowhere, Place::View))
    }

    /// Takes a snapshot of a workspace's directory or mount, if it has one and that changed.
    pub(crate) fn capture_of(&self, workspace: &WorkspaceName, before: &str, act: &Act) -> Result<()> {
        // The request belongs to what comes after it.
        let act = Act { request: None, ..act.clone() };
        match self.place_of(workspace)? {
            Place::Nowhere => Ok(()),
            Place::Directory(mut grasp) => {
                let saying = Saying { action: CAPTURE, change: Change::new(format!("before {before}")) };
                self.snapshot_directory(&mut grasp, &saying, &act, &Progress::default()).map(drop)
            }
            Place::View(grasp) => {
                self.check_room()?;
                if self.quota_of(workspace)?.is_some() {
                    let (_held, root) = self.hold_edited(&grasp)?;
                    self.check_quota(workspace, Some(root))?;
                }
                self.secure_view_before(&grasp, before, &act).map(drop)
            }
        }
    }

    /// Takes hold of the place of a workspace that is merged into, and takes what is there into a snapshot, if none has it yet. A
    /// directory that never had what its workspace holds is not the place: what is absent there was not removed by a user.
    pub(crate) fn secure_place(&self, workspace: &WorkspaceName, before: &str, act: &Act) -> Result<SecuredPlace> {
        match self.place_of(workspace)? {
            Place::Directory(grasp) if grasp.record.snapshot().is_none() && self.head(workspace)?.is_some() => {
                Ok(SecuredPlace::Nowhere)
            }
            Place::Directory(mut grasp) => {
                let safety = self.secure_before(&mut grasp, before, act)?;
                Ok(SecuredPlace::Directory(grasp, safety))
            }
            Place::View(grasp) => {
                let secured = self.secure_view_before(&grasp, before, act)?;
                Ok(SecuredPlace::View(grasp, Box::new(secured)))
            }
            Place::Nowhere => Ok(SecuredPlace::Nowhere),
        }
    }

    /// Lets others work in a place while a merge goes on. One that was never in step is kept: what is absent there was removed by nobody.
    pub(crate) fn let_go_of_place(&self, place: SecuredPlace) -> std::result::Result<SecuredPlace, Free> {
        match place {
            SecuredPlace::Directory(grasp, _) if grasp.record.snapshot().is_some() => Err(Free),
            SecuredPlace::View(..) => Err(Free),
            kept => Ok(kept),
        }
    }

    /// Brings a place along that was let go of during a merge. What was written there meanwhile is merged with what landed.
    pub(crate) fn catch_place_up(&self, workspace: &WorkspaceName, merge: &mut v1::Merge, act: &Act) -> Result<()> {
        match self.place_of(workspace)? {
            Place::Nowhere => Ok(()),
            Place::Directory(mut grasp) => {
                if grasp.record.snapshot().is_none() || self.is_in_step(&grasp, self.head(workspace)?)? {
                    return Ok(());
                }
                self.catch_up_with(&mut grasp, WRITTEN_MEANWHILE, merge, act).map(drop)
            }
            Place::View(grasp) => {
                let done = self.catch_view_up(&grasp, WRITTEN_MEANWHILE, act)?;
                (merge.written, merge.removed) = (done.written, done.removed);
                Ok(())
            }
        }
    }

    /// Brings a place to where its workspace's head is now.
    pub(crate) fn bring_place_along(&self, place: SecuredPlace, merge: &mut v1::Merge, act: &Act) -> Result<()> {
        match place {
            SecuredPlace::Nowhere => Ok(()),
            SecuredPlace::Directory(mut grasp, _) => self.bring_along(&mut grasp, merge, act),
            SecuredPlace::View(grasp, secured) => self.bring_view_along(&grasp, *secured, merge, act),
        }
    }

    /// Takes what is in a directory into a snapshot, if no snapshot has it yet. One whose workspace moved on without it is brought
    /// along first.
    pub(crate) fn secure_before(&self, grasp: &mut Grasp, what: &str, act: &Act) -> Result<Option<SnapshotId>> {
        let head = self.head(&grasp.workspace)?;
        match self.is_in_step(grasp, head)? {
            true => self.secure(grasp, what, act, &Progress::default()).map(|(safety, _)| safety),
            false => self.catch_up(grasp, what, act),
        }
    }

    /// Whether a merge landed in a directory's workspace and the process died before the directory was brought along.
    pub(super) fn is_left_behind(&self, grasp: &Grasp, head: Option<SnapshotId>) -> Result<bool> {
        let (Some(known), Some(now)) = (grasp.record.snapshot(), head) else { return Ok(false) };
        if self.is_in_step(grasp, head)? {
            return Ok(false);
        }
        let store = &self.inner.store;
        let moved = store.last_move(&grasp.workspace.reference())?;
        let is_merge = operation(store, moved).is_ok_and(|found| found.draft.action == MERGE);
        Ok(is_merge && self.inner.history.is_ancestor(known, now)?)
    }

    /// Brings a directory along whose workspace moved on without it. Each file there is as it was, or as the head has it if a
    /// process died while it brought them along; what is neither is an edit of the user, and is merged with what the head has. A capture
    /// on top of the head would take back what landed. Returns the snapshot of the edits, if there are any.
    pub(super) fn catch_up(&self, grasp: &mut Grasp, what: &str, act: &Act) -> Result<Option<SnapshotId>> {
        self.catch_up_with(grasp, &format!("before {what}"), &mut v1::Merge::default(), act)
    }

    fn catch_up_with(
        &self,
        grasp: &mut Grasp,
        message: &str,
        merge: &mut v1::Merge,
        act: &Act,
    ) -> Result<Option<SnapshotId>> {
        let (store, progress) = (&self.inner.store, Progress::default());
        // The request belongs to what comes after it.
        let act = &Act { request: None, ..act.clone() };
        let head = self.head(&grasp.workspace)?;
        let (Some(before), Some(now)) = (self.known_root(grasp.record.snapshot())?, self.head_root(head)?) else {
            let what = message.strip_prefix("before ").unwrap_or(message);
            return self.secure(grasp, what, act, &progress).map(|(safety, _)| safety);
        };
        let captured = self.look_as(grasp, &progress, true)?;
        let _pin = store.hold(captured.root)?;
        let mut safety = None;
        if ![before, now].contains(&captured.root) {
            safety = self.merge_edits(&grasp.workspace, before, captured.root, message, act)?;
        }
        self.bring_along(grasp, merge, act)?;
        Ok(safety)
    }

    /// Commits what was edited since a tree, merged with what the workspace's head has. Nothing if that has it all.
    pub(crate) fn merge_edits(
        &self,
        workspace: &WorkspaceName,
        before: RootId,
        edited: RootId,
        message: &str,
        act: &Act,
    ) -> Result<Option<SnapshotId>> {
        let store = &self.inner.store;
        let act = &Act { request: None, ..act.clone() };
        let head = self.head(workspace)?;
        let Some(now) = self.head_root(head)? else { return Ok(None) };
        let rules = self.merge_rules(Some(workspace), None);
        let by_rules = rules.as_ref().ok().map(|rules| ByRules::new(rules, "", ""));
        let contents = by_rules.as_ref().map_or(&NoContents as &dyn MergeContents, |by_rules| by_rules);
        let options = MergeOptions { time: act.time, ..MergeOptions::default() };
        let merged = merge_trees(store, Some(before), now, edited, contents, &options);
        let mut tree = merged?.tree;
        let session = store.session();
        let root = tree.freeze().write(&session)?;
        session.write_all_ahead()?;
        let _pin = store.hold(root)?;
        if self.is_same(Some(root), Some(now))? {
            return Ok(None);
        }
        tree.rebase(head);
        let mut change = Change::new(message);
        let conflicts = self.conflicts_of(root, Some(now))?.len();
        if conflicts > 0 {
            change.metadata.insert(CONFLICTS_KEY.to_owned(), conflicts.to_string());
        }
        let done = self.inner.workspaces.commit_as(workspace, &mut tree, &change, act, CAPTURE);
        Ok(Some(done?.snapshot))
    }

    /// Brings a directory to where its workspace's head is now.
    pub(crate) fn bring_along(&self, grasp: &mut Grasp, merge: &mut v1::Merge, act: &Act) -> Result<()> {
        let head = self.head(&grasp.workspace)?;
        let Some(root) = self.head_root(head)? else { return Ok(()) };
        if grasp.record.snapshot() == head {
            return Ok(());
        }
        let target = Target { root, paths: None, with_git: false, set_id: false };
        // What the merge wrote has its time already, and all else is there.
        let (brought, _) = self.bring_to(grasp, &target, Times::OfBytes(act.time), &Progress::default())?;
        grasp.record.in_step(head, act.time);
        grasp.save(self);
        (merge.written, merge.removed) = (brought.written, brought.removed);
        merge.notices = brought.notices.iter().map(notice).collect();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use amalgam_engine::Time;
    use amalgam_engine::workspace::NewWorkspace;

    use super::*;
    use crate::home::Home;
    use crate::registry::Record;

    fn name(name: &str) -> WorkspaceName {
        WorkspaceName::new(name).expect("a name")
    }

    fn write(service: &Service, workspace: &str, path: &str) {
        let (workspaces, act) = (&service.inner.workspaces, service.act("ann"));
        let mut tree = workspaces.open(&name(workspace)).expect("open");
        tree.write(path, path.as_bytes()).expect("written");
        workspaces.commit(&name(workspace), &mut tree, &Change::new(path), &act).expect("committed");
    }

    /// Each moment once.
    fn now() -> Time {
        static NOW: AtomicI64 = AtomicI64::new(1);
        Time(NOW.fetch_add(1, Ordering::Relaxed))
    }

    fn publish(service: &Service) {
        let act = &service.act("ann");
        let (workspace, target) = ("workspaces/try".to_owned(), "workspaces/main".to_owned());
        let asked = v1::Submission { workspace, target, capture: true, ..Default::default() };
        let done = service.submit(&asked, false, act, &crate::api::Caller::default()).expect("merged");
        assert!([v1::MergeHow::Merged, v1::MergeHow::Forward].contains(&done.merge.how()), "{:?}", done.merge);
    }

    #[test]
    fn a_directory_that_never_had_what_its_workspace_holds_removes_nothing() {
        let around = tempfile::tempdir().expect("a directory");
        let service = Service::open(&Home::new(around.path().join("home")), now, &[]).expect("opened");
        let act = service.act("ann");
        let workspaces = &service.inner.workspaces;
        workspaces.create(&name("main"), &NewWorkspace::default(), &act).expect("made");
        write(&service, "main", "first");
        workspaces.fork(&name("main"), &[name("try")], &act).expect("forked");
        // A directory that was attached to it, with nothing in it.
        let path = around.path().join("copy");
        std::fs::create_dir(&path).expect("a directory");
        let asked = v1::AttachDirectoryRequest {
            path: super::super::path_bytes(&path),
            workspace_id: "main".to_owned(),
            ..Default::default()
        };
        let record = service.attach(&asked, &act).expect("attached");
        write(&service, "try", "second");
        publish(&service);
        // A directory that a checkout left whose process died.
        let root = service.head_root(service.head(&name("main")).expect("a head")).expect("read").expect("a tree");
        let record = Record { aim: Some(root.to_string()), ..record };
        service.inner.registry.put(record.clone()).expect("put");
        write(&service, "try", "third");
        publish(&service);
        let tree = workspaces.open(&name("main")).expect("open");
        for path in ["first", "second", "third"] {
            assert_eq!(tree.read(path).expect("it is there"), path.as_bytes());
        }
        // Nor does a commit there, until it has what the workspace has.
        let mut grasp = service.grasp(&amalgam_proto::directory_name(&record.id)).expect("grasped");
        let saying = Saying { action: CAPTURE, change: Change::new("half of it") };
        let refused = service.snapshot_directory(&mut grasp, &saying, &act, &Progress::default());
        assert_eq!(refused.expect_err("refused").reason(), amalgam_proto::Reason::StaleHead);
    }
}
