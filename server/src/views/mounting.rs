//! Mounting and unmounting, and the messages about mounts.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use amalgam_engine::object::Owner;
use amalgam_engine::workspace::WorkspaceName;
use amalgam_engine::{SnapshotId, Time};
use amalgam_fuse::{Mount, MountError, MountOptions, unmount, unmount_lazily};
use amalgam_proto::{Reason, v1};
use amalgam_view::View;
use tracing::{debug, info};

use super::book::{Mode, MountRecord, RecordedOptions};
use super::local::LocalPathKind;
use super::{LockedView, Mounted, MountedTree, Views, follower_name, kernel, view_name};
use crate::error::{Error, Result};
use crate::host_path::{canonical, host_path, make_empty, shown_path};
use crate::messages::path_bytes;

impl Views {
    /// Mounts a workspace or a snapshot.
    pub(crate) fn mount(&self, request: &v1::MountRequest) -> Result<v1::MountResponse> {
        self.demand_lasting()?;
        // Dead mounts are removed before their path is checked.
        self.put_away_unmounted()?;
        let path = canonical(&host_path(&request.path)?)?;
        match self.find_remounted(request, &path)? {
            Some(number) => {
                let (recovered_edits, warnings) = self.recovered(number);
                Ok(v1::MountResponse {
                    mount: Some(self.mount_message(number)?),
                    recovered_edits,
                    made_directory: false,
                    warnings,
                })
            }
            None => self.mount_at(request, &path, false),
        }
    }

    /// Mounts the tree that a request names at a path without symlinks.
    pub(super) fn mount_at(
        &self,
        request: &v1::MountRequest,
        path: &Path,
        remounted: bool,
    ) -> Result<v1::MountResponse> {
        self.refuse_mount_point(path)?;
        let options = mount_options(request.options.as_ref());
        let Showable { view, shows, workspace, mode, locked } = self.make_showable(request)?;
        let made_directory = make_empty(path)?;
        let snapshot = match &shows {
            MountedTree::Snapshot(snapshot) => snapshot.to_string(),
            MountedTree::Live(_) | MountedTree::Following(..) => String::new(),
        };
        let record = MountRecord {
            path: path.to_owned(),
            mode,
            workspace,
            since: self.context.now().0,
            private: false,
            snapshot,
            options: RecordedOptions::of_message(request.options.as_ref()),
            remounted,
        };
        // Recorded first: if the process dies meanwhile, the next one knows the mount.
        let added = self.inner.book.add_mount(record.clone());
        let mounted = added.and_then(|number| match Mount::at(&view, path, &options) {
            Ok(mount) => Ok((number, mount)),
            Err(error) => {
                self.inner.book.remove_mount(number)?;
                Err(mount_error(&error, &options))
            }
        });
        let (number, mount) = match mounted {
            Ok(mounted) => mounted,
            Err(failure) => {
                drop(locked);
                if made_directory {
                    // The directory may have files of others by now.
                    let _ = std::fs::remove_dir(path);
                }
                if let MountedTree::Live(id) = shows {
                    self.close_view_if_unused(id, Duration::ZERO)?;
                }
                return Err(failure);
            }
        };
        let device = kernel::device_at(path);
        let mounted = Mounted { mount, shows, record, leaving: false, device, private: None, is_unclaimed: remounted };
        self.inner.state.lock().mounts.insert(number, mounted);
        // Earlier problems of this path are over.
        self.forget_problems(path);
        drop(locked);
        let mount = self.mount_message(number)?;
        info!(mount = number, workspace = mount.workspace, mode = ?mount.mode(), "mounted");
        debug!(mount = number, path = %path.display(), "mount point");
        let (recovered_edits, warnings) = self.recovered(number);
        Ok(v1::MountResponse { mount: Some(mount), recovered_edits, made_directory, warnings })
    }

    /// Opens the view that a request asks for.
    fn make_showable(&self, request: &v1::MountRequest) -> Result<Showable> {
        let asked = request.options.as_ref();
        match request.mode() {
            v1::MountMode::ReadWrite | v1::MountMode::Unspecified => {
                let workspace = crate::call_log::workspace_id(&request.workspace)?;
                self.await_private_end(&workspace)?;
                let locked = self.open_for_mount(&workspace)?;
                self.place_local(&locked, asked, LocalPathKind::Link)?;
                if let Some(quota_bytes) = asked.map(|asked| asked.quota_bytes).filter(|bytes| *bytes > 0) {
                    locked.live.view.set_quota(Some(quota_bytes));
                }
                let (view, shows) = (locked.live.view.clone(), MountedTree::Live(locked.id));
                let (workspace, mode) = (workspace.to_string(), Mode::ReadWrite);
                Ok(Showable { view, shows, workspace, mode, locked: Some(locked) })
            }
            v1::MountMode::Snapshot => {
                self.refuse_local(asked)?;
                let here = self.context.here(&request.workspace)?;
                let snapshot = self.context.resolve(&request.revision, here.as_ref())?;
                let (view, shows) = (self.read_only_view(snapshot)?, MountedTree::Snapshot(snapshot));
                Ok(Showable { view, shows, workspace: String::new(), mode: Mode::Snapshot, locked: None })
            }
            v1::MountMode::Follow => {
                self.refuse_local(asked)?;
                let workspace = crate::call_log::workspace_id(&request.workspace)?;
                let (view, head) = self.following_view(&workspace)?;
                let shows = MountedTree::Following(view.clone(), head);
                Ok(Showable { view, shows, workspace: workspace.to_string(), mode: Mode::Follow, locked: None })
            }
        }
    }

    /// Returns the mount that a request asks for, if this process has remounted it because an earlier one died. Returns each such
    /// mount once.
    fn find_remounted(&self, request: &v1::MountRequest, path: &Path) -> Result<Option<u64>> {
        let found = {
            let state = self.inner.state.lock();
            let mut unclaimed = state.mounts.iter().filter(|(_, mounted)| mounted.is_unclaimed && !mounted.leaving);
            unclaimed
                .find(|(_, mounted)| mounted.record.path == path)
                .map(|(number, mounted)| (*number, mounted.record.clone()))
        };
        let Some((number, record)) = found else { return Ok(None) };
        let is_asked_for = match record.mode {
            Mode::Snapshot => {
                let here = self.context.here(&request.workspace)?;
                let asked = self.context.resolve(&request.revision, here.as_ref());
                asked.is_ok_and(|snapshot| snapshot.to_string() == record.snapshot)
            }
            Mode::ReadWrite | Mode::Follow => {
                amalgam_proto::workspace_id(&request.workspace).is_ok_and(|asked| asked.as_str() == record.workspace)
            }
        };
        let is_same_mode = mode_of(request.mode()) == record.mode;
        let is_same =
            is_same_mode && is_asked_for && RecordedOptions::of_message(request.options.as_ref()) == record.options;
        if !is_same {
            return Ok(None);
        }
        if let Some(mounted) = self.inner.state.lock().mounts.get_mut(&number) {
            mounted.is_unclaimed = false;
        }
        self.forget_problems(path);
        Ok(Some(number))
    }

    /// Opens and locks the view of a workspace that is to be mounted.
    pub(super) fn open_for_mount(&self, workspace: &WorkspaceName) -> Result<LockedView> {
        // No other call attaches, renames or ends the workspace until its view exists.
        let _turn = self.context.registry.turn();
        let id = self.number_view(workspace)?;
        self.lock_view(id)
    }

    /// Returns the number of a workspace's view, and assigns a new one if it has none. Refuses a workspace with a directory. The
    /// caller holds the lock of the registry.
    pub(super) fn number_view(&self, workspace: &WorkspaceName) -> Result<u64> {
        self.context.workspaces.get(workspace)?;
        self.refuse_attached(workspace, &format!("mount the fork: `amalgam fork --from {workspace} --mount DIR`"))?;
        match &self.context.live_trees {
            Some(trees) => {
                let id = trees.number(workspace.as_str())?;
                self.inner.book.set_view(id, workspace.as_str())?;
                Ok(id)
            }
            None => self.inner.book.ensure_view(workspace.as_str()),
        }
    }

    /// Refuses a workspace whose live tree is a directory of the host. `instead` says what to do with a fork of it.
    pub(super) fn refuse_attached(&self, workspace: &WorkspaceName, instead: &str) -> Result<()> {
        let all = self.context.registry.all();
        let Some(record) = all.iter().find(|record| record.workspace == workspace.as_str()) else { return Ok(()) };
        let message = format!(
            "workspace {workspace} has its directory at {}, and has one live tree only; fork it and {instead}",
            shown_path(&record.path)
        );
        Err(Error::new(Reason::AlreadyExists, message))
    }

    /// Returns the number of edits that a mount's view recovered, and its warnings; 0 and empty if another mount shows the view,
    /// too.
    fn recovered(&self, number: u64) -> (u64, Vec<String>) {
        let state = self.inner.state.lock();
        let shows = state.mounts.get(&number).map(|mounted| &mounted.shows);
        let Some(MountedTree::Live(id)) = shows else { return Default::default() };
        let mut others = state.mounts.iter().filter(|(other, _)| **other != number);
        let is_first = !others.any(|(_, other)| matches!(other.shows, MountedTree::Live(shown) if shown == *id));
        let live = state.open.get(id).filter(|_| is_first);
        live.map_or_else(Default::default, |live| {
            (live.recovered.edits, live.recovered.warning().into_iter().collect())
        })
    }

    /// Opens a view of the head of a workspace. Also returns the head.
    pub(super) fn following_view(&self, workspace: &WorkspaceName) -> Result<(View, SnapshotId)> {
        let head = self.context.head(workspace)?.ok_or_else(|| {
            let message = format!("workspace {workspace} has no snapshot to show yet; commit to it first");
            Error::new(Reason::NotFound, message)
        })?;
        let view = View::of_snapshot(&self.context.store, head, self.view_options(workspace)?)?;
        Ok((view, head))
    }

    pub(super) fn read_only_view(&self, snapshot: SnapshotId) -> Result<View> {
        let mut options = self.view_options(&WorkspaceName::new("snapshot")?)?;
        // The snapshot belongs to no agent: only the user of the store mounts it.
        options.guard = std::sync::Arc::default();
        Ok(View::of_snapshot(&self.context.store, snapshot, options)?)
    }

    /// Refuses a mount if the features of the host are disabled, and in a process that ends with one command or is about to end.
    pub(super) fn demand_lasting(&self) -> Result<()> {
        self.context.host.check("mounts")?;
        if self.inner.handover_socket.lock().is_some() && !self.inner.is_ending() {
            return Ok(());
        }
        let message = "a mount needs the background process; run this without --in-process";
        Err(Error::new(Reason::MountRefused, message))
    }

    fn refuse_mount_point(&self, path: &Path) -> Result<()> {
        if path.starts_with(self.context.home.path()) && !path.starts_with(self.context.home.forks_path()) {
            let message = format!("{} lies in Amalgam's own store; choose another directory", path.display());
            return Err(Error::new(Reason::NestedDirectory, message));
        }
        let state = self.inner.state.lock();
        let around = state.mounts.values().find(|mounted| !mounted.leaving && path.starts_with(&mounted.record.path));
        match around {
            Some(mounted) if mounted.record.path == path => {
                let message = format!(
                    "{} is mounted at {} already; `amalgam umount {1}` takes it away",
                    words_of(&mounted.record),
                    shown_path(path)
                );
                Err(Error::new(Reason::AlreadyExists, message))
            }
            Some(mounted) => {
                let message = format!(
                    "{} lies in the mount of {}; choose a directory outside",
                    path.display(),
                    words_of(&mounted.record)
                );
                Err(Error::new(Reason::NestedDirectory, message))
            }
            None => Ok(()),
        }
    }

    /// Returns the number and the path of the innermost mount that contains a path.
    pub(crate) fn find_mount(&self, path: &Path) -> Option<(u64, PathBuf)> {
        let state = self.inner.state.lock();
        let around = state.mounts.iter().filter(|(_, mounted)| !mounted.leaving);
        let around = around.filter(|(_, mounted)| path.starts_with(&mounted.record.path));
        let nearest = around.max_by_key(|(_, mounted)| mounted.record.path.as_os_str().len());
        nearest.map(|(number, mounted)| (*number, mounted.record.path.clone()))
    }

    /// Returns the message of the directory that a mount belongs to. Fails for the mount of a snapshot.
    pub(crate) fn place_in_mount(&self, number: u64) -> Result<v1::Directory> {
        let mount = self.mount_message(number)?;
        if mount.directory.is_empty() {
            let path = String::from_utf8_lossy(&mount.path).into_owned();
            let message = format!("{path} shows a snapshot and belongs to no workspace");
            return Err(Error::new(Reason::NoDirectory, message));
        }
        Ok(v1::Directory {
            name: mount.directory,
            path: mount.path,
            workspace: mount.workspace,
            snapshot: mount.snapshot,
            mounted: true,
            ..v1::Directory::default()
        })
    }

    /// Waits until the kernels of some mounts have dropped their caches of changed files, so that the next read of a client sees the
    /// changes.
    pub(super) fn wait_for_kernels(&self, which: impl Fn(&MountedTree) -> bool) {
        let flushed: Vec<_> = {
            let state = self.inner.state.lock();
            state
                .mounts
                .values()
                .filter(|mounted| which(&mounted.shows))
                .map(|mounted| mounted.mount.flush_invalidations())
                .collect()
        };
        for one in flushed {
            // A slower kernel drops them after the timeout.
            let _ = one.recv_timeout(NOTIFY_TIMEOUT);
        }
    }

    /// Returns the paths at which a view is mounted.
    pub(super) fn mounts_of_view(&self, id: u64) -> Vec<PathBuf> {
        let state = self.inner.state.lock();
        let shown =
            state.mounts.values().filter(|mounted| matches!(mounted.shows, MountedTree::Live(other) if other == id));
        shown.map(|mounted| mounted.record.path.clone()).collect()
    }

    /// Returns the name of a workspace's live tree and the paths at which it is mounted; both empty without a live tree.
    pub(crate) fn live_of(&self, workspace: &WorkspaceName) -> (String, Vec<bytes::Bytes>) {
        let Ok(Some(id)) = self.find_view(workspace) else { return (String::new(), Vec::new()) };
        (view_name(id), self.mounts_of_view(id).iter().map(|path| path_bytes(path)).collect())
    }

    /// Returns the message of a mount.
    pub(super) fn mount_message(&self, number: u64) -> Result<v1::MountPoint> {
        let gone = || Error::new(Reason::NotFound, "it is no longer mounted");
        let (record, shown, leaving) = {
            let state = self.inner.state.lock();
            let mounted = state.mounts.get(&number).ok_or_else(gone)?;
            let shown = match &mounted.shows {
                MountedTree::Live(id) => Err(*id),
                MountedTree::Snapshot(snapshot) | MountedTree::Following(_, snapshot) => Ok(*snapshot),
            };
            (mounted.record.clone(), shown, mounted.leaving)
        };
        let mut local = Vec::new();
        let (snapshot, uncommitted) = match shown {
            Ok(snapshot) => (Some(snapshot), false),
            Err(id) => {
                let locked = self.lock_view(id)?;
                let placed = locked.live.view.local_entries();
                local.extend(placed.keys().map(|path| bytes::Bytes::copy_from_slice(path.as_bytes())));
                (locked.live.view.head(), self.is_uncommitted(&locked)?)
            }
        };
        let directory = match (shown, record.mode) {
            (Err(id), _) => view_name(id),
            (_, Mode::Follow) => follower_name(number),
            _ => String::new(),
        };
        let workspace = match record.workspace.as_str() {
            "" => String::new(),
            name => amalgam_proto::workspace_name(&WorkspaceName::new(name)?),
        };
        Ok(v1::MountPoint {
            name: amalgam_proto::mount_name(number),
            path: path_bytes(&record.path),
            mode: mode_message(record.mode).into(),
            workspace,
            snapshot: snapshot.map(amalgam_proto::snapshot_name).unwrap_or_default(),
            mount_time: Some(amalgam_proto::timestamp(Time(record.since))),
            is_private: record.private,
            uncommitted,
            directory,
            leaving,
            local,
        })
    }

    /// Returns a page of the mounts, by number. The first page also reports problems.
    pub(crate) fn list_mounts(&self, page_token: &str, limit: usize) -> Result<v1::ListMountsResponse> {
        let after = match page_token {
            "" => None,
            token => {
                let no_number = |_| Error::new(Reason::Invalid, format!("page_token: {token:?} is none of this list"));
                Some(token.parse::<u64>().map_err(no_number)?)
            }
        };
        self.put_away_unmounted()?;
        let mut numbers: Vec<_> = self.inner.state.lock().mounts.keys().copied().collect();
        numbers.retain(|number| after.is_none_or(|after| *number > after));
        numbers.sort_unstable();
        let next_page_token = if numbers.len() > limit { numbers[limit - 1].to_string() } else { String::new() };
        numbers.truncate(limit);
        let mut mounts = Vec::new();
        for number in numbers {
            match self.mount_message(number) {
                Ok(mount) => mounts.push(mount),
                // It was unmounted meanwhile.
                Err(failure) if failure.reason() == Reason::NotFound => {}
                Err(failure) => return Err(failure),
            }
        }
        let problems =
            self.inner.problems.lock().iter().filter(|_| after.is_none()).map(|(_, words)| words.clone()).collect();
        Ok(v1::ListMountsResponse { mounts, problems, next_page_token })
    }

    /// Unmounts the mounts that a request names.
    pub(crate) fn unmount(&self, request: &v1::UnmountRequest) -> Result<v1::UnmountResponse> {
        if let Some(v1::unmount_request::Target::Token(token)) = &request.target {
            return self.end_private(token).map(|()| v1::UnmountResponse::default());
        }
        self.put_away_unmounted()?;
        let numbers = self.mounts_meant(request)?;
        let mut response = v1::UnmountResponse::default();
        let mut uncommitted = std::collections::BTreeSet::new();
        for number in numbers {
            let message = self.mount_message(number)?;
            self.unmount_one(number, request.lazy)?;
            if message.uncommitted {
                uncommitted.insert(message.workspace.clone());
            }
            response.mounts.push(message);
        }
        for workspace in uncommitted {
            let workspace = amalgam_proto::workspace_id(&workspace)?;
            response.uncommitted.push(self.workspace_message(&workspace)?);
        }
        Ok(response)
    }

    fn mounts_meant(&self, request: &v1::UnmountRequest) -> Result<Vec<u64>> {
        use v1::unmount_request::Target;
        let nothing = |what: String| Error::new(Reason::NotFound, format!("{what}; `amalgam mounts` lists what is"));
        match &request.target {
            Some(Target::Name(name)) => {
                let number = amalgam_proto::mount_number(name)?;
                let is_there = self.inner.state.lock().mounts.contains_key(&number);
                is_there.then(|| vec![number]).ok_or_else(|| nothing(format!("{name} is not mounted")))
            }
            Some(Target::Path(path)) => {
                let path = host_path(path)?;
                // Compared as text first: a dead mount cannot be resolved.
                let found = self.find_mount(&path).or_else(|| self.find_mount(&canonical(&path).ok()?));
                let found = found.map(|(number, _)| vec![number]);
                if found.is_none() && self.forget_problems(&path) {
                    return Ok(Vec::new());
                }
                found.ok_or_else(|| nothing(format!("nothing of ours is mounted at {}", path.display())))
            }
            Some(Target::Workspace(name)) => {
                let workspace = crate::call_log::workspace_id(name)?;
                let state = self.inner.state.lock();
                let of_it = state.mounts.iter().filter(|(_, mounted)| mounted.record.workspace == workspace.as_str());
                let numbers: Vec<_> = of_it.map(|(number, _)| *number).collect();
                if numbers.is_empty() { Err(nothing(format!("{workspace} is not mounted"))) } else { Ok(numbers) }
            }
            Some(Target::Token(_)) | None => {
                Err(Error::new(Reason::Invalid, "target: name a mount, a path or a workspace"))
            }
        }
    }

    fn unmount_one(&self, number: u64, lazy: bool) -> Result<()> {
        let found = {
            let state = self.inner.state.lock();
            state.mounts.get(&number).map(|mounted| (mounted.record.clone(), mounted.is_at_its_path()))
        };
        let Some((record, is_there)) = found else { return Ok(()) };
        if record.private {
            return self.await_private(number);
        }
        let mut looks = ENDED_CHECKS_MAX;
        // Another file system may be mounted at its path by now.
        if !self.is_leaving(number) && is_there {
            // An unused mount goes at once, also in a lazy request.
            let done = match unmount(&record.path) {
                Err(error) if lazy && error.kind() == io::ErrorKind::ResourceBusy => {
                    looks = 1;
                    unmount_lazily(&record.path)
                }
                done => done,
            };
            done.map_err(|error| unmount_error(&record.path, error))?;
        }
        if self.await_end(number, looks) { self.put_away(number) } else { Ok(()) }
    }

    fn is_leaving(&self, number: u64) -> bool {
        self.inner.state.lock().mounts.get(&number).is_some_and(|mounted| mounted.leaving)
    }

    /// Waits a number of checks for the end of an unmounted file system, and returns whether it has ended. It is marked as
    /// leaving until its last file is closed, and the last namespace that has it, too, is gone.
    fn await_end(&self, number: u64, looks: u32) -> bool {
        // The kernel notifies the answering thread some moments after the end.
        for look in 0..looks {
            if look > 0 {
                std::thread::sleep(ENDED_CHECK_INTERVAL);
            }
            match self.inner.state.lock().mounts.get_mut(&number) {
                Some(mounted) if !mounted.mount.has_ended() => mounted.leaving = true,
                _ => return true,
            }
        }
        false
    }

    /// Cleans up after a mount that has ended.
    pub(super) fn put_away(&self, number: u64) -> Result<()> {
        let Some(mounted) = self.inner.state.lock().mounts.remove(&number) else { return Ok(()) };
        let removed = self.inner.book.remove_mount(number);
        let is_there = mounted.is_at_its_path();
        let Mounted { mount, shows, record, leaving, .. } = mounted;
        // No process answers, so the unmount cannot be refused.
        let _ = mount.unmount();
        info!(mount = number, workspace = record.workspace, "unmounted");
        // One whose connection was cut is still in the tree of directories, and answers nothing.
        if !leaving && is_there && kernel::is_dead(&record.path) {
            let _ = unmount_lazily(&record.path);
        }
        self.forget_problems(&record.path);
        match shows {
            MountedTree::Live(id) => self.close_view_if_unused(id, Duration::ZERO).and(removed),
            MountedTree::Snapshot(_) | MountedTree::Following(..) => removed,
        }
    }

    /// Cleans up after all mounts that have ended.
    pub(super) fn reap(&self) -> Result<()> {
        let ended: Vec<_> = {
            let state = self.inner.state.lock();
            let ended = state.mounts.iter().filter(|(_, mounted)| mounted.mount.has_ended());
            ended.map(|(number, _)| *number).collect()
        };
        ended.into_iter().map(|number| self.put_away(number)).fold(Ok(()), Result::and)
    }

    /// Cleans up after mounts that others unmounted, also before the answering thread notices.
    pub(super) fn put_away_unmounted(&self) -> Result<()> {
        self.reap()?;
        // Listed before the table is read: a mount that another call makes in between is in the table, too.
        let listed: Vec<_> = {
            let state = self.inner.state.lock();
            let listed = state.mounts.iter().filter(|(_, mounted)| !mounted.leaving);
            listed.filter_map(|(number, mounted)| Some((*number, mounted.device.clone()?))).collect()
        };
        let Ok(table) = kernel::mount_table() else { return Ok(()) };
        let gone = listed.into_iter().filter(|(_, device)| !kernel::has_device(&table, device));
        for (number, _) in gone {
            if self.await_end(number, ENDED_CHECKS_MAX) {
                self.put_away(number)?;
            }
        }
        Ok(())
    }

    /// Unmounts everything, in use or not, and closes all views. Returns the errors.
    pub(crate) fn end_mounting(&self) -> Vec<String> {
        self.inner.ending.store(true, std::sync::atomic::Ordering::Relaxed);
        self.inner.expected.lock().clear();
        let mut said = Vec::new();
        let numbers: Vec<_> = self.inner.state.lock().mounts.keys().copied().collect();
        for number in numbers {
            let there = {
                let state = self.inner.state.lock();
                let mounted = state.mounts.get(&number).filter(|mounted| mounted.is_at_its_path());
                mounted.map(|mounted| mounted.record.path.clone())
            };
            if let Some(path) = there {
                let done = unmount_lazily(&path);
                said.extend(done.err().map(|error| unmount_error(&path, error).to_string()));
            }
            let _ = self.inner.book.remove_mount(number);
        }
        let open: Vec<_> = {
            let mut state = self.inner.state.lock();
            state.exported.clear();
            state.open.keys().copied().collect()
        };
        for id in open {
            said.extend(self.end_view(id).err().map(|failure| failure.to_string()));
        }
        said
    }

    /// Closes a view, even with open files in it.
    fn end_view(&self, id: u64) -> Result<()> {
        if self.abandon_if_taken(id)? {
            return Ok(());
        }
        let locked = self.lock_view(id)?;
        self.close_view(locked)
    }
}

/// A view that is ready to be mounted.
struct Showable {
    view: View,
    shows: MountedTree,
    workspace: String,
    mode: Mode,
    /// Locked until the mount exists, so that no other call closes the view.
    locked: Option<LockedView>,
}

impl Mounted {
    /// Returns whether this file system, and no other, is mounted at its path.
    fn is_at_its_path(&self) -> bool {
        !self.record.private && self.device.is_some() && kernel::device_at(&self.record.path) == self.device
    }
}

fn mode_of(mode: v1::MountMode) -> Mode {
    match mode {
        v1::MountMode::ReadWrite | v1::MountMode::Unspecified => Mode::ReadWrite,
        v1::MountMode::Snapshot => Mode::Snapshot,
        v1::MountMode::Follow => Mode::Follow,
    }
}

pub(crate) fn mode_message(mode: Mode) -> v1::MountMode {
    match mode {
        Mode::ReadWrite => v1::MountMode::ReadWrite,
        Mode::Snapshot => v1::MountMode::Snapshot,
        Mode::Follow => v1::MountMode::Follow,
    }
}

pub(super) fn words_of(record: &MountRecord) -> String {
    match record.workspace.as_str() {
        "" => "a snapshot".to_owned(),
        workspace => format!("workspace {workspace}"),
    }
}

pub(super) fn mount_options(asked: Option<&v1::MountOptions>) -> MountOptions {
    let mut options = MountOptions::default();
    if let Some(asked) = asked {
        options.allow_other = asked.allow_other;
        options.writeback = asked.writeback;
        if asked.shown_uid > 0 && asked.shown_gid > 0 {
            options.shown_owner = Some(Owner { uid: asked.shown_uid, gid: asked.shown_gid });
        }
        if asked.threads > 0 {
            options.threads = usize::try_from(asked.threads).unwrap_or(usize::MAX).min(THREADS_MAX);
        }
    }
    options
}

const THREADS_MAX: usize = 64;
/// How long a call waits until the kernel was notified of its changes.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(5);
/// The interval and the number of checks whether a mount has ended.
const ENDED_CHECK_INTERVAL: Duration = Duration::from_millis(2);
const ENDED_CHECKS_MAX: u32 = 1_000;

/// Returns the error for a failed mount, with a hint.
pub(super) fn mount_error(error: &MountError, options: &MountOptions) -> Error {
    let (MountError::Refused { source, .. } | MountError::Busy { source, .. }) = error;
    let hint = match source.kind() {
        io::ErrorKind::PermissionDenied if options.allow_other => {
            "others may enter only if root has put `user_allow_other` into /etc/fuse.conf".to_owned()
        }
        io::ErrorKind::NotFound => {
            "FUSE is not there: install the package fuse3, or write the files out with `amalgam checkout`".to_owned()
        }
        _ => "`amalgam doctor` says what is missing; `amalgam checkout` works without".to_owned(),
    };
    // The helper's message ends with a newline.
    Error::new(Reason::MountRefused, format!("{}; {hint}", error.to_string().trim_end()))
}

fn unmount_error(path: &Path, error: io::Error) -> Error {
    if error.kind() == io::ErrorKind::ResourceBusy {
        let message = format!(
            "{} is in use; leave it (`fuser -m {0}` says who is in there), or `amalgam umount --lazy {0}`",
            path.display()
        );
        return Error::new(Reason::MountBusy, message);
    }
    Error::io(format!("unmount {}", path.display()))(error)
}
