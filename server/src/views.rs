//! Workspaces as live file systems: which are open, and where they are mounted.
//!
//! A workspace has one live view, whoever looks at it: all its mounts and all calls about it share that view. It is opened by the
//! first mount, and closed when the last one is gone. What was not committed then stays in its journal and comes back with the next
//! one. One thing at a time happens to a view as a whole (a commit, a restore, an undo), while files in it are read and written.
//!
//! What is absent: nothing here answers a kernel; that is [`amalgam_fuse`]. No name of a workspace becomes a path of the host: a
//! view has a number, and a book says whose it is.

mod book;
mod handover;
mod keeper;
mod kernel;
mod left;
pub(crate) mod live;
mod local;
mod merged;
mod mounting;
mod private;
mod revert;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use amalgam_conflicts::{Caption, Stage};
use amalgam_engine::object::{Conflict, Owner};
use amalgam_engine::operation::operation;
use amalgam_engine::reference::{Operation, RefChange};
use amalgam_engine::workspace::WorkspaceName;
use amalgam_engine::{Act, RefName, SnapshotId, TreePath};
use amalgam_fuse::Mount;
use amalgam_proto::{Failure, Reason};
use amalgam_view::{Moment, Recovered, Room, View, ViewOptions};
use parking_lot::{ArcMutexGuard, Mutex, RawMutex};

use crate::failure::{Result, of_engine, of_view};
use crate::home::Home;
use crate::service::Service;
use book::{Book, MountRecord};
pub(crate) use handover::answer as answer_handover;

/// What the names of live views begin with among those of directories.
const VIEW: &str = "view-";
/// And those of mounts that only follow.
const FOLLOWER: &str = "follower-";

/// All live views and mounts of a store.
pub(crate) struct Views {
    book: Book,
    state: Mutex<State>,
    /// Mounts that somebody is about to make himself, by their tokens.
    expected: Mutex<HashMap<Vec<u8>, handover::Expected>>,
    /// Where devices are handed over; nothing in a process that ends with one command.
    door: Mutex<Option<PathBuf>>,
    ending: AtomicBool,
    /// What became of mounts that an earlier process left.
    problems: Mutex<Vec<(PathBuf, String)>>,
}

#[derive(Default)]
struct State {
    open: BTreeMap<u64, Arc<LiveView>>,
    mounts: BTreeMap<u64, Mounted>,
}

/// A workspace's view. The lock says whether it is closed, and is held while something happens to all of it.
struct LiveView {
    view: View,
    recovered: Recovered,
    turn: Arc<Mutex<bool>>,
    /// The head that the view stayed behind, because it had changes of its own.
    behind: Mutex<Option<SnapshotId>>,
    /// The state in which there was no room for a checkpoint that would have made room.
    crowded: Mutex<Option<Moment>>,
}

/// A mount that is there.
struct Mounted {
    mount: Mount,
    shows: Shows,
    record: MountRecord,
    leaving: bool,
    /// The kernel's number of the file system; nothing for a private mount, which this namespace does not have.
    device: Option<String>,
    /// Where a private mount is.
    private: Option<private::Whereabouts>,
    /// Mounted again by this process, because an earlier one died; nobody has asked for it since.
    is_unclaimed: bool,
}

/// What a mount shows.
enum Shows {
    /// The live view of this number.
    Live(u64),
    /// A snapshot.
    Snapshot(SnapshotId),
    /// A workspace's head; the snapshot that is shown now.
    Following(View, SnapshotId),
}

/// A live view that nobody else commits or restores while this lives.
pub(crate) struct ViewGrasp {
    id: u64,
    live: Arc<LiveView>,
    workspace: WorkspaceName,
    turn: ArcMutexGuard<RawMutex, bool>,
}

/// What the name of a directory means, if no directory of the host.
pub(crate) enum Named {
    /// A live view.
    View(u64),
    /// A mount that only follows.
    Follower,
}

impl Views {
    /// Reads the book.
    pub(crate) fn open(home: &Home) -> Result<Self> {
        Ok(Self {
            book: Book::open(&home.mounts_path())?,
            state: Mutex::default(),
            expected: Mutex::default(),
            door: Mutex::default(),
            ending: AtomicBool::new(false),
            problems: Mutex::default(),
        })
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }
}

/// What a directory's name means, if no directory of the host.
pub(crate) fn named(name: &str) -> Option<Named> {
    let id = amalgam_proto::directory_id(name).ok()?;
    if let Some(number) = id.strip_prefix(VIEW) {
        return number.parse().ok().map(Named::View);
    }
    id.starts_with(FOLLOWER).then_some(Named::Follower)
}

fn view_name(id: u64) -> String {
    amalgam_proto::directory_name(&format!("{VIEW}{id}"))
}

fn follower_name(mount: u64) -> String {
    amalgam_proto::directory_name(&format!("{FOLLOWER}{mount}"))
}

/// The name under which a view's tree is kept in the store between commits.
fn checkpoint_reference(id: u64) -> RefName {
    RefName::new(format!("view/{id}")).expect("a number is a part of a reference's name")
}

impl Service {
    /// From here on this process stays for as long as something is mounted, and takes devices at this socket. What an earlier one left
    /// mounted is mounted again.
    pub(crate) fn begin_mounting(&self, door: &Path) {
        *self.inner.views.door.lock() = Some(door.to_owned());
        self.remount_left();
    }

    /// How many file systems are mounted.
    pub fn mounted(&self) -> usize {
        self.inner.views.state.lock().mounts.len()
    }

    /// The view of a workspace, if it is open or has work that is in no snapshot.
    pub(crate) fn find_view(&self, workspace: &WorkspaceName) -> Option<u64> {
        let id = self.inner.views.book.view_of(workspace.as_str())?;
        let is_open = self.inner.views.state.lock().open.contains_key(&id);
        (is_open || View::has_work(&self.view_directory(id))).then_some(id)
    }

    /// Takes hold of the view of a workspace, if there is one now.
    pub(crate) fn grasp_view_of(&self, workspace: &WorkspaceName) -> Result<Option<ViewGrasp>> {
        self.find_view(workspace).map(|id| self.grasp_view(id)).transpose()
    }

    /// Takes hold of a view: opens it if need be, and waits for its turn.
    pub(crate) fn grasp_view(&self, id: u64) -> Result<ViewGrasp> {
        loop {
            let live = self.live_view(id)?;
            let turn = Mutex::lock_arc(&live.turn);
            // Whoever had it before may have closed it.
            if !*turn {
                let workspace = self.view_workspace(id)?;
                let grasp = ViewGrasp { id, live, workspace, turn };
                self.bring_in_step(&grasp)?;
                return Ok(grasp);
            }
        }
    }

    pub(crate) fn view_workspace(&self, id: u64) -> Result<WorkspaceName> {
        let unknown = || {
            let message = format!("there is no {}; `amalgam mounts` lists what is mounted", view_name(id));
            Failure::new(Reason::NoDirectory, message)
        };
        let name = self.inner.views.book.workspace_of(id).ok_or_else(unknown)?;
        WorkspaceName::new(name).map_err(of_engine)
    }

    fn view_directory(&self, id: u64) -> PathBuf {
        self.inner.home.views_path().join(id.to_string())
    }

    /// The open view of this number. Opening one does again what its journal has.
    fn live_view(&self, id: u64) -> Result<Arc<LiveView>> {
        let workspace = self.view_workspace(id)?;
        let mut state = self.inner.views.state.lock();
        if let Some(live) = state.open.get(&id) {
            return Ok(Arc::clone(live));
        }
        if self.inner.views.is_ending() {
            return Err(Failure::new(Reason::Busy, "the background process is ending; try again"));
        }
        let tree = self.inner.workspaces.open(&workspace).map_err(of_engine)?;
        let mut options = self.view_options(&workspace)?;
        options.journaled = self.inner.workspaces.get(&workspace).map_err(of_engine)?.journaled;
        let (view, recovered) = View::open(tree, &self.view_directory(id), options).map_err(of_view)?;
        tracing::info!(%workspace, edits = recovered.edits, "view opened");
        let live = Arc::new(LiveView {
            view,
            recovered,
            turn: Arc::default(),
            behind: Mutex::default(),
            crowded: Mutex::default(),
        });
        state.open.insert(id, Arc::clone(&live));
        Ok(live)
    }

    fn view_options(&self, workspace: &WorkspaceName) -> Result<ViewOptions> {
        let settings = self.settings()?;
        let owner = Owner { uid: rustix::process::getuid().as_raw(), gid: rustix::process::getgid().as_raw() };
        let mut options = ViewOptions::new(owner, self.inner.clock);
        options.quota_bytes = settings.quotas_bytes.get(workspace.as_str()).copied().or(settings.quota_bytes);
        // Weak: the view is part of the service.
        let inner = Arc::downgrade(&self.inner);
        let service = inner.clone();
        options.room =
            Some(Arc::new(move || service.upgrade().map_or_else(Room::default, |inner| Service { inner }.room())));
        let stage = Stage::default();
        options.conflicts = Some(Arc::new(move |store, path, conflict| {
            let captions = |path: &TreePath, conflict: &Conflict| match inner.upgrade() {
                Some(inner) => Service { inner }.captioner().caption(path, conflict),
                None => Caption::of(path),
            };
            stage.show(store, path, conflict, &captions)
        }));
        Ok(options)
    }

    /// A workspace got another name: its view belongs to that.
    pub(crate) fn views_follow(&self, from: &WorkspaceName, to: &WorkspaceName) -> Result<()> {
        self.inner.views.book.change(|pages| {
            for workspace in pages.views.values_mut().filter(|workspace| *workspace == from.as_str()) {
                *workspace = to.to_string();
            }
            for mount in pages.mounts.values_mut().filter(|mount| mount.workspace == from.as_str()) {
                mount.workspace = to.to_string();
            }
        })?;
        for mounted in self.inner.views.state.lock().mounts.values_mut() {
            if mounted.record.workspace == from.as_str() {
                mounted.record.workspace = to.to_string();
            }
        }
        Ok(())
    }

    /// Refuses what cannot be done to a workspace that is mounted, or whose mount left work behind.
    pub(crate) fn refuse_live(&self, workspace: &WorkspaceName, what: &str) -> Result<()> {
        let Some(id) = self.find_view(workspace) else { return Ok(()) };
        self.await_ended_mounts(id)?;
        self.refuse_shown(id, workspace, what)?;
        let grasp = self.grasp_view(id)?;
        // Whoever mounts it had the grasp until it was mounted.
        self.refuse_shown(id, workspace, what)?;
        if !self.is_uncommitted(&grasp)? {
            drop(grasp);
            return self.close_view_if_unused(id);
        }
        let message = format!(
            "workspace {workspace} has changes from a mount that are in no snapshot, so {what}; `amalgam mount {workspace} DIR` shows \
             them, and `amalgam commit` there keeps them"
        );
        Err(Failure::new(Reason::Mounted, message))
    }

    fn refuse_shown(&self, id: u64, workspace: &WorkspaceName, what: &str) -> Result<()> {
        let mounted = self.inner.views.state.lock().mounts.values().find_map(|mounted| match mounted.shows {
            Shows::Live(other) if other == id => Some((mounted.record.path.clone(), mounted.private.clone())),
            _ => None,
        });
        let message = match mounted {
            Some((_, Some(private))) => {
                format!("{} in workspace {workspace}, so {what}; wait until that has ended", private.words())
            }
            Some((path, None)) => {
                let path = path.display();
                format!(
                    "workspace {workspace} is mounted at {path}, so {what}; `amalgam umount {path}` first, or `amalgam fork` it"
                )
            }
            None if self.is_expected(id) => {
                format!("workspace {workspace} is being mounted, so {what}; try again in a minute")
            }
            None => return Ok(()),
        };
        Err(Failure::new(Reason::Mounted, message))
    }

    /// Refuses to take an operation back, or to do it again, where that takes a workspace away that is mounted.
    pub(crate) fn refuse_to_take_away(&self, sequence: u64, goes: impl Fn(&RefChange) -> bool) -> Result<()> {
        // One that cannot be read is refused by whoever does it.
        let Ok(found) = operation(&self.inner.store, sequence) else { return Ok(()) };
        for name in self.inner.views.book.read().views.values() {
            let workspace = WorkspaceName::new(name.as_str()).map_err(of_engine)?;
            let reference = workspace.reference();
            if found.changes.iter().any(|change| change.name == reference && goes(change)) {
                self.refuse_live(&workspace, "it cannot be taken away")?;
            }
        }
        Ok(())
    }

    /// Removes a workspace that is not mounted. Its directories belong to nobody then.
    pub(crate) fn delete_workspace(&self, name: &WorkspaceName, etag: &str, act: &Act) -> Result<Operation> {
        let _turn = self.inner.registry.turn();
        self.check_etag(name, etag)?;
        self.refuse_live(name, "it cannot be removed")?;
        let done = self.inner.workspaces.delete(name, act).map_err(of_engine)?;
        self.forget_view(name)?;
        self.let_go_of(name)?;
        self.forget_publishing(name)?;
        Ok(done)
    }

    /// A workspace has come to its end: what it had goes. One that is mounted, or has work in no snapshot, comes back.
    pub(crate) fn end_places_of(&self, name: &WorkspaceName, act: &Act) -> Result<()> {
        let _turn = self.inner.registry.turn();
        if self.inner.workspaces.find(name).map_err(of_engine)?.is_some() {
            return Ok(());
        }
        if self.refuse_live(name, "it goes on").is_err() {
            let act = Act { request: None, ..act.clone() };
            return self.inner.workspaces.undelete(name, &act).map(drop).map_err(of_engine);
        }
        self.forget_view(name)?;
        self.let_go_of(name)?;
        self.forget_publishing(name)
    }

    /// A name is given anew: the view of a workspace that had it before goes, unless it is in use or has work in no snapshot.
    pub(crate) fn let_go_of_ended_view(&self, name: &WorkspaceName) -> Result<()> {
        let Some(id) = self.inner.views.book.view_of(name.as_str()) else { return Ok(()) };
        let what = "its name cannot be given to another one";
        self.await_ended_mounts(id)?;
        self.refuse_shown(id, name, what)?;
        let is_open = self.inner.views.state.lock().open.contains_key(&id);
        let has_work = match is_open {
            true => self.is_uncommitted(&self.grasp_view(id)?)?,
            false => View::has_work(&self.view_directory(id)),
        };
        if has_work {
            let message = format!(
                "workspace {name} was taken away while it had changes from a mount that are in no snapshot, so {what}; `amalgam redo` or \
                 `amalgam ws undelete {name}` brings it back"
            );
            return Err(Failure::new(Reason::Mounted, message));
        }
        self.forget_view(name)
    }

    /// Refuses what cannot be done while anything is mounted.
    pub(crate) fn refuse_mounted(&self, why: &str) -> Result<()> {
        match self.mounted() {
            0 => Ok(()),
            number => {
                let what = if number == 1 { "1 file system is" } else { &format!("{number} file systems are") };
                let message = format!("{what} mounted, and {why}; `amalgam mounts` lists them");
                Err(Failure::new(Reason::Mounted, message))
            }
        }
    }

    /// Closes a view that no mount shows any more. What was not committed is kept for the next one.
    fn close_view_if_unused(&self, id: u64) -> Result<()> {
        let is_open = self.inner.views.state.lock().open.contains_key(&id);
        if !is_open || self.is_shown(id) {
            return Ok(());
        }
        let grasp = self.grasp_view(id)?;
        if self.is_shown(id) {
            return Ok(());
        }
        self.close_view(grasp)
    }

    /// Closes a view. What was not committed goes into the store first, so that the next one is opened quickly; where there is no room
    /// for that, it stays in the journal.
    fn close_view(&self, mut grasp: ViewGrasp) -> Result<()> {
        if self.is_uncommitted(&grasp)? {
            match self.checkpoint(&grasp) {
                Err(failure) if failure.reason == Reason::Full => {}
                done => done?,
            }
        }
        grasp.live.view.close().map_err(of_view)?;
        *grasp.turn = true;
        tracing::info!(workspace = %grasp.workspace, "view closed");
        self.inner.views.state.lock().open.remove(&grasp.id);
        Ok(())
    }

    /// Whether something shows a view, or is about to.
    fn is_shown(&self, id: u64) -> bool {
        let views = &self.inner.views;
        views.state.lock().mounts.values().any(|mounted| matches!(mounted.shows, Shows::Live(other) if other == id))
            || self.is_expected(id)
    }

    /// Forgets the view of a workspace that goes. Nothing in it is uncommitted.
    pub(crate) fn forget_view(&self, workspace: &WorkspaceName) -> Result<()> {
        let Some(id) = self.inner.views.book.view_of(workspace.as_str()) else { return Ok(()) };
        self.close_view_if_unused(id)?;
        self.refuse_shown(id, workspace, "what it has cannot be put away")?;
        self.inner.views.book.change(|pages| drop(pages.views.remove(&id)))?;
        // It holds numbers and times only; what is left of it harms nobody.
        let _ = amalgam_materializer::remove_tree(&self.view_directory(id));
        self.remove_local(id)
    }
}
