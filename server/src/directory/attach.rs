//! Attaches directories of the host to workspaces, and detaches them.

use std::path::Path;

use amalgam_engine::reference::Operation;
use amalgam_engine::workspace::{NewWorkspace, WorkspaceName};
use amalgam_engine::{OperationContext, Time};
use amalgam_materializer::{HostDir, Rules};
use amalgam_proto::{Reason, v1};
use parking_lot::MutexGuard;

use super::{Directories, replaced};
use crate::error::{Error, Result};
use crate::host_path::{canonical, host_path};
use crate::messages::path_bytes;
use crate::registry::Record;

/// The treatment of uncommitted changes when a workspace is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Uncommitted {
    /// The workspace is not deleted.
    Refuse,
    /// The changes are lost.
    Discard,
}

impl Directories {
    /// Attaches a directory to a workspace, which is created if it does not exist.
    pub(crate) fn attach(&self, request: &v1::AttachDirectoryRequest, act: &OperationContext) -> Result<Record> {
        self.context.host.check("directories")?;
        let path = canonical(&host_path(&request.path)?)?;
        let host = HostDir::open(&path)?;
        Rules::new(&request.exclude)?;
        refuse_exclude_of_all(request.take_all, &request.exclude)?;
        if self.context.ours.contains(&host.identity()) || path.starts_with(self.context.home.path()) {
            let message = format!("{} holds Amalgam's own store; choose another directory", path.display());
            return Err(Error::new(Reason::NestedDirectory, message));
        }
        if request.again {
            return self.attach_again(&path, &host, request);
        }
        let _turn = self.context.registry.turn();
        self.refuse_nested(&path, &host)?;
        let (workspace, is_new) = match request.workspace_id.as_str() {
            "" => (self.free_name(&path)?, true),
            name => {
                let name = WorkspaceName::new(name)?;
                let found = self.context.workspaces.find(&name)?;
                (name, found.is_none())
            }
        };
        self.detach_ended(std::slice::from_ref(&workspace))?;
        if let Some(other) = self.context.registry.all().iter().find(|record| record.workspace == workspace.as_str()) {
            let hint = match self.open_host(other) {
                Ok(_) => "a second directory is a fork: `amalgam fork --dir PATH` makes one".to_owned(),
                Err(_) => format!(
                    "that one is lost: `amalgam checkout {workspace} --here` writes it into the directory you are in, `amalgam ws attach \
                     --workspace {workspace} --again` takes this one as it is"
                ),
            };
            let message = format!("workspace {workspace} has its directory at {}; {hint}", other.path.display());
            return Err(Error::new(Reason::AlreadyExists, message));
        }
        self.views.refuse_live(&workspace, "no directory can be attached to it")?;
        if is_new {
            let new = NewWorkspace { agent: act.actor.clone(), ..NewWorkspace::default() };
            self.context.workspaces.create(&workspace, &new, act)?;
        }
        let record = self.new_record(&path, &host, &workspace)?;
        let record = Record { exclude: request.exclude.clone(), takes_all: request.take_all, ..record };
        self.context.registry.put(record.clone())?;
        Ok(record)
    }

    /// Creates the record of a directory, without writing it. The caller holds the registry lock under which it was checked, and
    /// writes it under the same lock.
    pub(super) fn new_record(&self, path: &Path, host: &HostDir, workspace: &WorkspaceName) -> Result<Record> {
        let mut record = Record {
            id: self.context.registry.new_id()?,
            path: path.to_owned(),
            device: 0,
            inode: 0,
            birth: 0,
            workspace: workspace.to_string(),
            exclude: Vec::new(),
            takes_all: false,
            snapshot: None,
            looked: Time::EPOCH.0,
            made_here: false,
            conflicts: String::new(),
            aim: None,
            reverting: None,
            whole: None,
            settled: None,
            background: None,
            unwritten: Vec::new(),
            unlisted: 0,
            since: self.context.store.last_move(&workspace.reference())?,
        };
        record.identify(host.identity());
        Ok(record)
    }

    /// Attaches a known directory again that was moved, or replaced by a copy.
    fn attach_again(&self, path: &Path, host: &HostDir, request: &v1::AttachDirectoryRequest) -> Result<Record> {
        loop {
            let turn = self.context.registry.turn();
            let records = self.context.registry.all();
            let found = match request.workspace_id.as_str() {
                "" => records
                    .iter()
                    .find(|record| record.identity() == host.identity())
                    .or_else(|| records.iter().find(|record| record.path == path)),
                workspace => records.iter().find(|record| record.workspace == workspace),
            };
            let Some(found) = found else {
                let hint = "name its workspace with --workspace, or run `amalgam init` for a new one";
                let message = format!("{} was never attached to a workspace; {hint}", path.display());
                return Err(Error::new(Reason::NoDirectory, message));
            };
            self.refuse_inside_or_around(path, records.iter().filter(|record| record.id != found.id))?;
            let Some(mut live) = self.live(&found.id).try_lock_arc() else {
                self.await_end_of_work(turn, &found.id);
                continue;
            };
            // The watcher watches the directory that was there before; a background watch starts again with this one.
            live.end_watch();
            let mut record = found.clone();
            record.path = path.to_owned();
            if record.identity() != host.identity() {
                (record.unwritten, record.unlisted) = (Vec::new(), 0);
            }
            record.identify(host.identity());
            // Without rules in the request, the directory keeps its own.
            if request.take_all || !request.exclude.is_empty() {
                (record.exclude, record.takes_all) = (request.exclude.clone(), request.take_all);
            }
            self.context.registry.put(record.clone())?;
            self.retry_background(&record.id);
            return Ok(record);
        }
    }

    /// Waits for the call that works in a directory, perhaps for long. Releases the registry lock first.
    pub(super) fn await_end_of_work(&self, turn: MutexGuard<'_, ()>, id: &str) {
        drop(turn);
        drop(self.live(id).lock_arc());
    }

    /// Refuses a directory that is attached already, or that is inside or around an attached one: nested directories would be
    /// captured twice, and a restore of one would change the other.
    pub(super) fn refuse_nested(&self, path: &Path, host: &HostDir) -> Result<()> {
        let records = self.context.registry.all();
        if let Some(same) = records.iter().find(|record| record.identity() == host.identity()) {
            let message = match same.path == path {
                true => format!("{} belongs to workspace {} already", path.display(), same.workspace),
                false => format!(
                    "{} is the directory of workspace {}, moved here from {}; run `amalgam ws attach` to go on with it",
                    path.display(),
                    same.workspace,
                    same.path.display()
                ),
            };
            return Err(Error::new(Reason::AlreadyExists, message).with("workspace", same.workspace.as_str()));
        }
        self.refuse_inside_or_around(path, records.iter())
    }

    /// Refuses a path that is, contains, or lies inside the path of another directory.
    pub(super) fn refuse_inside_or_around<'a>(
        &self,
        path: &Path,
        records: impl Iterator<Item = &'a Record>,
    ) -> Result<()> {
        for record in records {
            let (other, workspace) = (record.path.display(), &record.workspace);
            let (reason, message) = match (path.starts_with(&record.path), record.path.starts_with(path)) {
                (true, true) => (
                    Reason::DirectoryReplaced,
                    format!("{}; `amalgam ws detach {workspace}` forgets it", replaced(record)),
                ),
                (true, _) => {
                    let hint = match self.open_host(record) {
                        Ok(_) => "run `amalgam status` there".to_owned(),
                        Err(_) => format!(
                            "that one is lost: `amalgam checkout {workspace}` writes it again, `amalgam ws detach {workspace}` forgets it"
                        ),
                    };
                    let message = format!(
                        "{} is inside {other}, which is already protected as workspace {workspace}; {hint}",
                        path.display()
                    );
                    (Reason::NestedDirectory, message)
                }
                (_, true) => {
                    let hint = format!("`amalgam ws detach {workspace}` forgets that one; or choose another directory");
                    let message = format!(
                        "{} contains {other}, which is already protected as workspace {workspace}; {hint}",
                        path.display()
                    );
                    (Reason::NestedDirectory, message)
                }
                _ => continue,
            };
            return Err(Error::new(reason, message).with("workspace", workspace.as_str()));
        }
        Ok(())
    }

    /// Returns a free name for a workspace, made of its directory's name; with a number if that is taken.
    fn free_name(&self, path: &Path) -> Result<WorkspaceName> {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let plain: String =
            name.chars().map(|c| if c.is_alphanumeric() || "._-".contains(c) { c } else { '-' }).collect();
        let plain = plain.trim_matches(['-', '.']).to_owned();
        let plain = if plain.is_empty() { "workspace".to_owned() } else { plain };
        for number in 1..10_000 {
            let name = if number == 1 { plain.clone() } else { format!("{plain}-{number}") };
            let Ok(name) = WorkspaceName::new(name) else { continue };
            if self.context.workspaces.find(&name)?.is_none() {
                return Ok(name);
            }
        }
        Err(Error::new(Reason::AlreadyExists, format!("all names like {plain} are taken; choose one with --workspace")))
    }

    /// Returns the innermost directory or mount that a path lies in, for the wire.
    pub(crate) fn find_place(&self, path: &[u8]) -> Result<v1::Directory> {
        let given = host_path(path)?;
        // By the text of the path first: the caller may be in another mount namespace, where the path means something else.
        let mount = self.views.find_mount(&given).or_else(|| self.views.find_mount(&canonical(&given).ok()?));
        let Some((number, mounted)) = mount else {
            return match self.find_directory(path) {
                Err(failure) if failure.reason() != Reason::DirectoryReplaced => {
                    self.views.refuse_left(&given).and(Err(failure))
                }
                found => found.map(|record| self.directory_message(&record)),
            };
        };
        match self.find_directory(path) {
            Ok(record) if record.path.starts_with(&mounted) => Ok(self.directory_message(&record)),
            _ => self.views.place_in_mount(number),
        }
    }

    /// Finds the attached directory that a path lies in. The error for a moved directory names its old path.
    fn find_directory(&self, path: &[u8]) -> Result<Record> {
        let path = canonical(&host_path(path)?)?;
        let records = self.context.registry.all();
        let holding = records.iter().filter(|record| path.starts_with(&record.path));
        if let Some(found) = holding.max_by_key(|record| record.path.as_os_str().len()) {
            return Ok(found.clone());
        }
        // The directory may have been moved: the inode identifies it.
        let mut here = Some(path.as_path());
        while let Some(directory) = here {
            if let Ok(host) = HostDir::open(directory)
                && let Some(moved) = records.iter().find(|record| record.identity() == host.identity())
            {
                let hint = "run `amalgam ws attach` here to go on with it";
                let message = format!(
                    "{} is the directory of workspace {}, which was at {}; {hint}",
                    directory.display(),
                    moved.workspace,
                    moved.path.display()
                );
                return Err(Error::new(Reason::DirectoryReplaced, message));
            }
            here = directory.parent();
        }
        let message = format!("{} is in no workspace; run `amalgam init` to protect it", path.display());
        Err(Error::new(Reason::NoDirectory, message))
    }

    /// Detaches a directory from its workspace.
    pub(crate) fn detach(&self, name: &str) -> Result<()> {
        let record = self.record(name)?;
        self.forget_directory(&record.id)
    }

    /// Detaches a directory as soon as no call works in it any more, and ends its watch.
    pub(super) fn forget_directory(&self, id: &str) -> Result<()> {
        let mut live = self.live(id).lock_arc();
        live.end_watch();
        self.context.registry.remove(id)?;
        self.live.lock().remove(id);
        Ok(())
    }

    /// Detaches the directories of a workspace that was deleted. Their files stay.
    pub(crate) fn let_go_of(&self, workspace: &WorkspaceName) -> Result<()> {
        let records = self.context.registry.all();
        let mut its_own = records.into_iter().filter(|record| record.workspace == workspace.as_str());
        its_own.try_for_each(|record| self.forget_directory(&record.id))
    }

    /// Detaches the directories and views of earlier workspaces with these names, before new ones are created. An undo of a
    /// creation leaves them attached for a redo.
    pub(crate) fn detach_ended_workspaces(&self, names: &[WorkspaceName]) -> Result<()> {
        let _turn = self.context.registry.turn();
        self.detach_ended(names)
    }

    /// Detaches the directories and views of those workspaces that do not exist. The caller holds the registry lock.
    pub(crate) fn detach_ended(&self, names: &[WorkspaceName]) -> Result<()> {
        for name in names {
            if self.context.workspaces.find(name)?.is_none() {
                self.views.forget_ended_view(name)?;
                self.let_go_of(name)?;
            }
        }
        Ok(())
    }

    /// Renames a workspace with its directories, its view and its publishing plan.
    pub(crate) fn rename_workspace(
        &self,
        from: &WorkspaceName,
        to: &WorkspaceName,
        act: &OperationContext,
    ) -> Result<()> {
        let workspaces = &self.context.workspaces;
        self.rename_workspace_by(from, to, || Ok(workspaces.rename(from, to, act).map(drop)?))
    }

    /// Renames a workspace by an operation of the caller: a renaming, or an undo of one.
    pub(crate) fn rename_workspace_by(
        &self,
        from: &WorkspaceName,
        to: &WorkspaceName,
        rename: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        self.with_locked_directories(from, |records| {
            self.context.workspaces.get(from)?;
            self.detach_ended(std::slice::from_ref(to))?;
            rename()?;
            self.move_places(from, to, records)
        })
    }

    /// Gives the directories, the view and the publishing plan of a renamed workspace its new name, if they kept the old one because
    /// the process died, or the disk was full, right after the renaming.
    pub(crate) fn complete_renaming(&self, from: &WorkspaceName, to: &WorkspaceName) -> Result<()> {
        self.with_locked_directories(from, |records| {
            let (workspaces, views) = (&self.context.workspaces, &self.views);
            // Places with the old name may belong to a newer workspace of that name.
            let is_renamed = workspaces.find(from)?.is_none() && workspaces.find(to)?.is_some();
            // A view that was opened with the new name since may have edits of its own.
            let has_both_views = views.numbered_view(from)?.is_some() && views.numbered_view(to)?.is_some();
            match is_renamed && !has_both_views {
                true => self.move_places(from, to, records),
                false => Ok(()),
            }
        })
    }

    /// Moves directories, the view and the publishing plan of a workspace to its new name.
    fn move_places(&self, from: &WorkspaceName, to: &WorkspaceName, records: &[Record]) -> Result<()> {
        for record in records {
            self.context.registry.put(Record { workspace: to.to_string(), ..record.clone() })?;
        }
        self.views.rename_views(from, to)?;
        self.publishing.rename_plan(from, to)
    }

    /// Runs work with the records of a workspace's directories, while no call works in one of them: it would write the old name into
    /// the record again. The registry is locked meanwhile.
    fn with_locked_directories<T>(&self, name: &WorkspaceName, work: impl FnOnce(&[Record]) -> Result<T>) -> Result<T> {
        loop {
            let turn = self.context.registry.turn();
            let mut mine = self.context.registry.all();
            mine.retain(|record| record.workspace == name.as_str());
            let lives: Vec<_> = mine.iter().filter_map(|record| self.live(&record.id).try_lock_arc()).collect();
            if lives.len() == mine.len() {
                return work(&mine);
            }
            drop(lives);
            drop(turn);
            mine.iter().for_each(|record| drop(self.live(&record.id).lock_arc()));
        }
    }

    /// Sets the ignore rules of a directory.
    pub(crate) fn update_directory(&self, name: &str, exclude: &[String]) -> Result<Record> {
        Rules::new(exclude)?;
        let id = self.record(name)?.id;
        let mut live = self.live(&id).lock_arc();
        let found = self.record(name)?;
        refuse_exclude_of_all(found.takes_all, exclude)?;
        let is_changed = found.exclude != exclude;
        let record = Record { exclude: exclude.to_vec(), ..found };
        self.context.registry.put(record.clone())?;
        if is_changed {
            // The watcher does not watch what the old rules left out; a background watch starts again with the new ones.
            live.end_watch();
            drop(live);
            self.retry_background(&id);
        }
        Ok(record)
    }

    /// Returns a directory, for the wire.
    pub(crate) fn directory_message(&self, record: &Record) -> v1::Directory {
        let problem = self.open_host(record).err().map(|failure| failure.to_string());
        let mut directory = v1::Directory {
            name: amalgam_proto::directory_name(&record.id),
            path: path_bytes(&record.path),
            workspace: format!("workspaces/{}", record.workspace),
            exclude: record.exclude.clone(),
            snapshot: record.snapshot().map(amalgam_proto::snapshot_name).unwrap_or_default(),
            last_look_time: (record.looked != 0).then(|| amalgam_proto::timestamp(Time(record.looked))),
            problem: problem.unwrap_or_default(),
            made_by_checkout: record.made_here,
            mounted: false,
            take_all: record.takes_all,
            ..v1::Directory::default()
        };
        self.tell_watch(record, &mut directory);
        directory
    }
}

/// Refuses patterns of paths to leave out for a directory that leaves nothing out.
fn refuse_exclude_of_all(takes_all: bool, exclude: &[String]) -> Result<()> {
    if takes_all && !exclude.is_empty() {
        return Err(Error::new(Reason::Invalid, "take_all leaves nothing out, and exclude names patterns"));
    }
    Ok(())
}

impl Directories {
    /// Refuses an etag that is not the current one of a workspace. An empty one always matches.
    pub(crate) fn check_etag(&self, name: &WorkspaceName, etag: &str) -> Result<()> {
        self.states.check_etag(name, etag)
    }

    /// Deletes a workspace that is not mounted. Its directories stay, detached.
    pub(crate) fn delete_workspace(
        &self,
        name: &WorkspaceName,
        etag: &str,
        uncommitted: Uncommitted,
        act: &OperationContext,
    ) -> Result<Operation> {
        let _turn = self.context.registry.turn();
        self.states.check_etag(name, etag)?;
        match uncommitted {
            Uncommitted::Refuse => self.views.refuse_live(name, "it cannot be removed")?,
            Uncommitted::Discard => self.views.discard_live(name, "it cannot be removed")?,
        }
        let done = self.context.workspaces.delete(name, act)?;
        self.views.forget_view(name)?;
        self.let_go_of(name)?;
        self.publishing.forget_plan(name)?;
        Ok(done)
    }

    /// Detaches the directories and views of a workspace that was deleted. If it is mounted or has uncommitted changes, it is
    /// undeleted instead.
    pub(crate) fn detach_deleted(&self, name: &WorkspaceName, act: &OperationContext) -> Result<()> {
        let _turn = self.context.registry.turn();
        if self.context.workspaces.find(name)?.is_some() {
            return Ok(());
        }
        if self.views.refuse_live(name, "it goes on").is_err() {
            let act = OperationContext { request: None, ..act.clone() };
            return Ok(self.context.workspaces.undelete(name, &act).map(drop)?);
        }
        self.views.forget_view(name)?;
        self.let_go_of(name)?;
        self.publishing.forget_plan(name)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use amalgam_materializer::Progress;

    use super::*;
    use crate::home::Home;
    use crate::service::Service;

    /// Runs work on many threads that begin at the same time, and returns the results.
    fn at_once<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
        let begin = Barrier::new(count);
        thread::scope(|scope| {
            let spawn = |number| {
                let (begin, work) = (&begin, &work);
                scope.spawn(move || {
                    begin.wait();
                    work(number)
                })
            };
            let threads: Vec<_> = (0..count).map(spawn).collect();
            threads.into_iter().map(|thread| thread.join().expect("it ends")).collect()
        })
    }

    #[test]
    fn a_directory_that_is_attached_again_keeps_its_rules_unless_others_are_named() {
        let around = tempfile::tempdir().expect("a directory");
        let service = Service::open(&Home::new(around.path().join("home")), || Time(5), &[]).expect("opened");
        let path = around.path().join("main");
        std::fs::create_dir(&path).expect("a directory");
        let rules_after = |request: v1::AttachDirectoryRequest| {
            let request = v1::AttachDirectoryRequest { path: path_bytes(&path), ..request };
            let record = service.directories.attach(&request, &service.context.act("ann")).expect("attached");
            (record.exclude, record.takes_all)
        };
        let exclude = vec!["build".to_owned()];
        let first = v1::AttachDirectoryRequest { exclude: exclude.clone(), ..Default::default() };
        let again = v1::AttachDirectoryRequest { again: true, ..Default::default() };
        assert_eq!(rules_after(first.clone()), (exclude.clone(), false));
        assert_eq!(rules_after(again.clone()), (exclude.clone(), false), "it names none");
        let everything = v1::AttachDirectoryRequest { take_all: true, ..again.clone() };
        assert_eq!(rules_after(everything), (Vec::new(), true));
        assert_eq!(rules_after(again), (Vec::new(), true), "it names none");
        assert_eq!(rules_after(v1::AttachDirectoryRequest { again: true, ..first }), (exclude, false));
    }

    #[test]
    fn a_watched_directory_with_other_rules_is_watched_where_the_old_ones_left_paths_out() {
        let around = tempfile::tempdir().expect("a directory");
        let service = Service::open(&Home::new(around.path().join("home")), || Time(5), &[]).expect("opened");
        let (directories, act) = (&service.directories, service.context.act("ann"));
        let path = around.path().join("main");
        std::fs::create_dir_all(path.join("build")).expect("directories");
        std::fs::write(path.join("build/first"), "1").expect("written");
        let (exclude, workspace_id) = (vec!["build".to_owned()], "main".to_owned());
        let asked = v1::AttachDirectoryRequest { path: path_bytes(&path), workspace_id, exclude, ..Default::default() };
        let record = directories.attach(&asked, &act).expect("attached");
        let workspace = WorkspaceName::new("main").expect("a name");
        let name = amalgam_proto::directory_name(&record.id);
        let added = || {
            let asked = v1::CaptureDirectoryRequest { name: name.clone(), ..Default::default() };
            directories.capture_directory(&asked, &act, &Progress::default()).expect("captured").added
        };
        let watch = directories.watch_writes(&workspace).expect("watched").expect("it has a directory");
        assert_eq!(added(), 0);
        directories.update_directory(&name, &["build".to_owned()]).expect("updated");
        assert!(!watch.is_ended(), "the rules are the same");
        directories.update_directory(&name, &[]).expect("updated");
        assert!(watch.is_ended());
        let _watch = directories.watch_writes(&workspace).expect("watched").expect("it has a directory");
        assert!(added() > 0);
        std::fs::write(path.join("build/second"), "2").expect("written");
        assert_eq!(added(), 1);
    }

    #[test]
    fn a_directory_that_takes_all_gets_no_rules() {
        let around = tempfile::tempdir().expect("a directory");
        let service = Service::open(&Home::new(around.path().join("home")), || Time(5), &[]).expect("opened");
        let path = around.path().join("main");
        std::fs::create_dir(&path).expect("a directory");
        let asked = v1::AttachDirectoryRequest { path: path_bytes(&path), take_all: true, ..Default::default() };
        let record = service.directories.attach(&asked, &service.context.act("ann")).expect("attached");
        let name = amalgam_proto::directory_name(&record.id);
        let refused = service.directories.update_directory(&name, &["build".to_owned()]).expect_err("refused");
        assert_eq!(refused.reason(), Reason::Invalid, "{refused}");
        service.directories.update_directory(&name, &[]).expect("updated");
    }

    #[test]
    fn of_many_who_want_a_directory_at_once_one_gets_it() {
        let around = tempfile::tempdir().expect("a directory");
        let service = Service::open(&Home::new(around.path().join("home")), || Time(5), &[]).expect("opened");
        let act = service.context.act("ann");
        let attach = |path: &Path, workspace: &str| {
            std::fs::create_dir_all(path).expect("a directory");
            let workspace_id = workspace.to_owned();
            service.directories.attach(
                &v1::AttachDirectoryRequest { path: path_bytes(path), workspace_id, ..Default::default() },
                &act,
            )
        };
        for round in 0..20 {
            let same = around.path().join(format!("same{round}"));
            let done = at_once(6, |_| attach(&same, ""));
            assert_eq!(done.iter().flatten().count(), 1, "one directory belongs to one workspace");
            let name = format!("of{round}");
            let done = at_once(6, |number| attach(&around.path().join(format!("{round}.{number}")), &name));
            assert_eq!(done.iter().flatten().count(), 1, "one workspace has one directory");
            let nested = [format!("n{round}/a"), format!("n{round}"), format!("n{round}/a/b")];
            let done = at_once(3, |number| attach(&around.path().join(&nested[number]), ""));
            assert_eq!(done.iter().flatten().count(), 1, "none lies in another");
            let apart = at_once(6, |number| attach(&around.path().join(format!("apart{round}.{number}")), ""));
            let mut ids: Vec<_> = apart.into_iter().map(|record| record.expect("no other is in its way").id).collect();
            ids.sort_unstable();
            ids.dedup();
            assert_eq!(ids.len(), 6, "each has an id of its own");
        }
        let records = service.context.registry.all();
        assert_eq!(records.len(), 20 * 9);
        assert!(records.iter().all(|record| {
            let name = WorkspaceName::new(record.workspace.as_str()).expect("a name");
            service.context.workspaces.find(&name).expect("read").is_some()
        }));
    }
}
