//! Writing a snapshot into a new directory.

use std::path::Path;

use amalgam_conflicts::Style;
use amalgam_engine::RootId;
use amalgam_engine::workspace::WorkspaceName;
use amalgam_materializer::{Checkout, HostDir, Index, Pool, Progress, Times, checkout};
use amalgam_proto::{Failure, Reason, v1};
use parking_lot::{ArcMutexGuard, RawMutex};

use super::attach::{canonical, host_path};
use super::{Live, notice};
use crate::conflicts::Seen;
use crate::failure::{Result, of_engine, of_io, of_materializer};
use crate::registry::Record;
use crate::service::Service;
use crate::views::named;

/// A directory that belongs to a workspace and is being written for the first time: nobody else works in it. It belongs to nobody again
/// unless that comes to its end.
struct Attached<'a> {
    service: &'a Service,
    id: String,
    live: Option<ArcMutexGuard<RawMutex, Live>>,
}

impl Attached<'_> {
    /// It is written; its id.
    fn keep(mut self) -> String {
        self.live = None;
        std::mem::take(&mut self.id)
    }
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        if !self.id.is_empty() {
            self.live = None;
            // Nothing is lost with a record that cannot be removed; it says what it is about.
            let _ = self.service.forget_directory(&self.id);
        }
    }
}

impl Service {
    /// Writes a snapshot into a directory that is new or empty, and makes it belong to a workspace if asked to.
    pub(crate) fn checkout_directory(
        &self,
        request: &v1::CheckoutDirectoryRequest,
        progress: &Progress,
    ) -> Result<v1::CheckoutResult> {
        let here = self.here(&request.workspace)?;
        let wanted = self.hold_revision(&request.revision, here.as_ref())?;
        let (root, snapshot) =
            (wanted.root.expect("a revision has a tree"), wanted.snapshot.expect("and is a snapshot"));
        let attach = match request.attach_workspace.as_str() {
            "" => None,
            name => Some(amalgam_proto::workspace_id(name).map_err(of_engine)?),
        };
        let style = match request.conflicts.as_str() {
            "" => Style::default(),
            word => Style::from_word(word).ok_or_else(|| {
                let words = "markers, ours, theirs and base";
                Failure::new(Reason::Invalid, format!("conflicts cannot be shown as {word}; there are {words}"))
            })?,
        };
        if request.read_only && attach.is_some() {
            let message = "a read-only directory cannot belong to a workspace; leave out --workspace or --read-only";
            return Err(Failure::new(Reason::Invalid, message));
        }
        let path = canonical(&host_path(&request.path)?)?;
        let (host, attached) = match &attach {
            Some(workspace) => {
                let conflicts = if style == Style::default() { "" } else { style.word() };
                let (host, attached) = self.attach_new(&path, workspace, conflicts, root)?;
                (host, Some(attached))
            }
            None => {
                make_empty(&path)?;
                (HostDir::open(&path).map_err(of_materializer)?, None)
            }
        };
        // Clones come from a directory that nobody changes meanwhile; its own stamps prove each file once more.
        let source = match request.source.as_str() {
            "" => None,
            // A mount has no files that could be cloned.
            name if named(name).is_some() => None,
            name => Some(self.grasp(name)?),
        };
        let pool = request.read_only.then(|| self.pool()).transpose()?;
        let job = Checkout {
            keep_git: false,
            leave_git_file: true,
            paths: None,
            times: Times::Exact,
            source: source.as_ref().map(|grasp| (&grasp.host, grasp.index())),
            pool: pool.as_ref(),
            progress,
        };
        let index = Index::new(host.identity());
        let seen = Seen { conflicts: self.conflicts_of(root, None)?, ..Seen::default() };
        let faced = self.faced(root, style, None)?;
        let done = checkout(&self.inner.store, &host, &index, faced.face, &job).map_err(of_materializer)?;
        drop(source);
        let mut result = v1::CheckoutResult {
            directory: None,
            written: done.written,
            bytes: done.bytes,
            reflinked: done.reflinked,
            notices: done.notices.iter().map(notice).chain(wanted.notices()).collect(),
            conflicts: Some(seen.message()),
            linked: done.linked,
        };
        if let Some(attached) = attached {
            let mut grasp = self.grasp(&amalgam_proto::directory_name(&attached.keep()))?;
            self.look_where(&mut grasp, &done, &Progress::default())?;
            grasp.record.in_step(Some(snapshot), self.now());
            self.note_conflicts(&mut grasp)?;
            grasp.save(self)?;
            let record = grasp.record.clone();
            drop(grasp);
            result.directory = Some(self.directory_message(&record));
        }
        Ok(result)
    }

    /// The files that read-only directories share.
    pub(crate) fn pool(&self) -> Result<Pool> {
        Pool::open(&self.inner.home.pool_path())
            .map_err(|source| of_io("open the files that directories share", &source))
    }

    /// Makes a directory, empty, and lets it belong to a workspace whose tree it will have.
    fn attach_new(
        &self,
        path: &Path,
        workspace: &WorkspaceName,
        conflicts: &str,
        aim: RootId,
    ) -> Result<(HostDir, Attached<'_>)> {
        let _turn = self.inner.registry.turn();
        self.refuse_second(workspace)?;
        let made_here = make_empty(path)?;
        let host = HostDir::open(path).map_err(of_materializer)?;
        self.refuse_nested(path, &host)?;
        let (conflicts, aim) = (conflicts.to_owned(), Some(aim.to_string()));
        let record = Record { made_here, conflicts, aim, ..self.new_record(path, &host, workspace)? };
        self.inner.registry.put(record.clone())?;
        let live = self.live(&record.id).lock_arc();
        Ok((host, Attached { service: self, id: record.id, live: Some(live) }))
    }

    fn refuse_second(&self, workspace: &WorkspaceName) -> Result<()> {
        match self.inner.registry.all().iter().find(|record| record.workspace == workspace.as_str()) {
            Some(other) => {
                let message = format!("workspace {workspace} has its directory at {}", other.path.display());
                Err(Failure::new(Reason::AlreadyExists, message))
            }
            None => self.refuse_live(workspace, "no directory can be made for it"),
        }
    }
}

/// Makes sure that a directory is there and empty; true when it was made now.
pub(crate) fn make_empty(path: &Path) -> Result<bool> {
    match std::fs::read_dir(path) {
        Ok(mut names) => match names.next() {
            None => Ok(false),
            Some(_) => {
                let message = format!("{} is not empty; name a new directory", path.display());
                Err(Failure::new(Reason::AlreadyExists, message))
            }
        },
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => {
            std::fs::create_dir_all(path).map_err(|source| of_io(&format!("make {}", path.display()), &source))?;
            Ok(true)
        }
        Err(source) if source.kind() == std::io::ErrorKind::NotADirectory => {
            let message = format!("{} is a file; name a new directory", path.display());
            Err(Failure::new(Reason::AlreadyExists, message))
        }
        Err(source) => Err(of_io(&format!("read {}", path.display()), &source)),
    }
}
