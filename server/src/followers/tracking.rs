//! Brings the workspaces that hold the files of outside sources up to date: captures of directories, imports of git branches, archives and
//! buckets.

use std::path::Path;

use amalgam_engine::OperationContext;
use amalgam_engine::workspace::{Change, NewWorkspace, WorkspaceName};
use amalgam_exchange::{
    BUCKET_OBJECTS_MAX, BucketCounts, BucketImport, BucketIndex, GitHistory, GitImport, Imported, Owners, Progress,
    SnapshotInfo, TarImport, ZipImport, import_bucket, import_git, import_tar, import_zip,
};
use amalgam_proto::v1;
use tracing::{info, warn};

use super::Followers;
use super::origin::{FileVersion, Origin};
use super::s3::{S3Prefix, S3Source};
use crate::error::{Error, Result};
use crate::home::replace_file;
use crate::host_path::open_file;
use crate::messages::path_bytes;

/// The start of the names of workspaces that hold the files of outside sources.
const TRACKING_PREFIX: &str = "following/";
/// The action in the operation log for an import.
const IMPORT: &str = "import";
/// The first bytes of a zip archive: with members, or without any.
const ZIP_MAGICS: [&[u8]; 2] = [b"PK\x03\x04", b"PK\x05\x06"];

impl Followers {
    /// Returns the workspace that holds the files of an origin: that of the directory, if it is attached, or else one for the
    /// follower.
    pub(super) fn tracking_workspace(&self, follower: &WorkspaceName, origin: &Origin) -> Result<WorkspaceName> {
        if let Origin::Directory(path) = origin {
            let records = self.context.registry.all();
            if let Some(record) = records.iter().find(|record| record.path == *path) {
                return Ok(WorkspaceName::new(record.workspace.as_str())?);
            }
        }
        let follow = self.context.workspaces.get(follower)?.follow;
        if let Some(follow) = follow.filter(|follow| Origin::of_text(&follow.origin).as_ref() == Some(origin)) {
            return Ok(follow.source);
        }
        // Another origin that the workspace followed before keeps its name.
        for number in 1_u32.. {
            let suffix = if number == 1 { String::new() } else { format!("-{number}") };
            let name = WorkspaceName::new(format!("{TRACKING_PREFIX}{follower}/{}{suffix}", origin.word()))?;
            if self.context.workspaces.find(&name)?.is_none() {
                return Ok(name);
            }
        }
        unreachable!("there are more numbers than workspaces")
    }

    /// Reads an origin for the first time. Returns the workspace that holds its files.
    pub(super) fn track(
        &self,
        follower: &WorkspaceName,
        origin: &Origin,
        act: &OperationContext,
    ) -> Result<WorkspaceName> {
        let source = self.tracking_workspace(follower, origin)?;
        if let Origin::Directory(path) = origin
            && self.context.registry.all().iter().all(|record| record.path != *path)
        {
            let workspace_id = source.to_string();
            let request = v1::AttachDirectoryRequest { path: path_bytes(path), workspace_id, ..Default::default() };
            self.directories.attach(&request, &OperationContext { request: None, ..act.clone() })?;
        }
        self.refresh(follower, &source, origin, act)?;
        Ok(source)
    }

    /// Brings the workspace of an origin up to date.
    pub(super) fn refresh(
        &self,
        follower: &WorkspaceName,
        source: &WorkspaceName,
        origin: &Origin,
        act: &OperationContext,
    ) -> Result<()> {
        // The request belongs to the update.
        let act = &OperationContext { request: None, ..act.clone() };
        if !matches!(origin, Origin::S3(_)) {
            self.context.host.check("sources on the host")?;
        }
        match origin {
            Origin::Directory(_) => self.directories.capture_of(source, &format!("an update of {follower}"), act),
            Origin::Git(path, reference) => {
                let known = self.context.workspaces.find(source)?.and_then(|found| found.head);
                let options = GitImport {
                    reference: (!reference.is_empty()).then(|| reference.clone()),
                    history: GitHistory::All,
                    known: known.into_iter().collect(),
                    ..GitImport::default()
                };
                let progress = Progress::default();
                let read = || Ok(import_git(&self.context.store, path, &options, &progress)?);
                let imported = self.quota.checking_space(&|| progress.cancel(), read)?;
                if known == Some(imported.head) {
                    return Ok(());
                }
                self.land(source, &imported, act)
            }
            Origin::Archive(path) => {
                let version = FileVersion::of(path)?;
                let is_known = self.inner.archives.lock().get(source.as_str()) == Some(&version);
                if is_known && self.context.workspaces.find(source)?.is_some() {
                    return Ok(());
                }
                let progress = Progress::default();
                let imported =
                    self.quota.checking_space(&|| progress.cancel(), || self.read_archive(path, act, &progress))?;
                self.land(source, &imported, act)?;
                self.inner.archives.lock().insert(source.to_string(), version);
                Ok(())
            }
            Origin::S3(place) => self.refresh_bucket(source, place, act),
        }
    }

    /// Reads the objects of a bucket that changed. The index of objects that were read lies beside the store; it is written after the snapshot that
    /// it describes, so a crash between both costs that objects are read again.
    fn refresh_bucket(&self, source: &WorkspaceName, place: &S3Prefix, act: &OperationContext) -> Result<()> {
        let name = amalgam_engine::ChunkId::of(source.as_str().as_bytes()).to_string();
        let file = self.context.home.buckets_path().join(format!("{}.index", &name[..32]));
        let known = std::fs::read(&file).ok().and_then(|bytes| BucketIndex::decode(&bytes));
        let message = format!("import s3://{}/{}", place.bucket, place.prefix);
        let options = BucketImport {
            onto: self.context.workspaces.find(source)?.and_then(|found| found.head),
            known,
            objects_max: BUCKET_OBJECTS_MAX,
            words: SnapshotInfo { author: act.actor.clone(), time: act.time, message, ..SnapshotInfo::default() },
        };
        let mut bucket = S3Source::open(place)?;
        let progress = Progress::default();
        let read = || Ok(import_bucket(&self.context.store, &mut bucket, options, &progress)?);
        let done = self.quota.checking_space(&|| progress.cancel(), read)?;
        let BucketCounts { synced, skipped, removed, left_out, total } = done.counts;
        if let Some(imported) = &done.imported {
            self.land(source, imported, act)?;
            info!(workspace = %source, synced, skipped, removed, left_out, total, "bucket imported");
        }
        if done.imported.is_some() || synced > 0 {
            for notice in &done.report.notices {
                warn!(workspace = %source, count = notice.count, examples = ?notice.examples, "{}", notice.what);
            }
        }
        let failed = || Error::io(format!("write {}", file.display()));
        std::fs::create_dir_all(self.context.home.buckets_path()).map_err(failed())?;
        replace_file(&file, &done.index.encode()).map_err(failed())
    }

    fn read_archive(&self, path: &Path, act: &OperationContext, progress: &Progress) -> Result<Imported> {
        use std::io::{Read as _, Seek as _};
        let failed = || Error::io(format!("read {}", path.display()));
        let mut file = open_file(path)?;
        let mut start = Vec::new();
        file.by_ref().take(4).read_to_end(&mut start).map_err(failed())?;
        file.rewind().map_err(failed())?;
        let message = format!("import {}", path.file_name().unwrap_or_default().display());
        let words = SnapshotInfo { author: act.actor.clone(), time: act.time, message, ..SnapshotInfo::default() };
        let store = &self.context.store;
        if ZIP_MAGICS.contains(&&start[..]) {
            return Ok(import_zip(store, &file, ZipImport { words, ..ZipImport::default() }, progress)?);
        }
        let options = TarImport { owners: Owners::LikeFirst, words, ..TarImport::default() };
        Ok(import_tar(store, file, options, progress)?)
    }

    /// Makes an import the head of its workspace. One that does not continue the head, such as a rewritten branch or another archive,
    /// becomes a snapshot behind it, so that the follower gets the difference.
    fn land(&self, source: &WorkspaceName, imported: &Imported, act: &OperationContext) -> Result<()> {
        self.quota.check_space()?;
        let (workspaces, history) = (&self.context.workspaces, &self.context.history);
        imported.mark_foreign(act)?;
        let Some(found) = workspaces.find(source)? else {
            self.directories.detach_ended_workspaces(std::slice::from_ref(source))?;
            let new = NewWorkspace { from: Some(imported.head), ..NewWorkspace::default() };
            return Ok(workspaces.create(source, &new, act).map(drop)?);
        };
        if self.context.head_root(found.head)? == Some(imported.root) {
            return Ok(());
        }
        self.views.move_head(source, &[], IMPORT, act, || {
            if workspaces.fast_forward(history, source, imported.head, act, IMPORT)?.is_some() {
                return Ok(());
            }
            let mut tree = amalgam_engine::WorkingTree::open_root(&self.context.store, imported.root)?;
            tree.rebase(workspaces.get(source)?.head);
            let message = self.context.store.snapshot(imported.head)?.message.clone();
            Ok(workspaces.commit_as(source, &mut tree, &Change::new(message), act, IMPORT).map(drop)?)
        })
    }
}
