//! The gRPC methods of `ExchangeService`: imports and exports of trees.

use std::io::{self, Write};
use std::sync::atomic::Ordering::Relaxed;

use amalgam_engine::object::Owner;
use amalgam_engine::reference::Operation;
use amalgam_engine::workspace::{NewWorkspace, WorkspaceName};
use amalgam_engine::{OperationContext, SnapshotId, TreePath};
use amalgam_exchange::{
    Compression, DOCKER_SOCKET, DockerImage, GitExport, GitHistory, GitImport, Identity, Imported, OciExport,
    OciImport, OciTarget, OverlayExport, OverlayImport, Owners, Progress, Report, SnapshotInfo, TarExport, TarImport,
    Whiteouts, ZipExport, ZipImport, count_git, export_git, export_oci, export_overlay, export_tar, export_zip,
    import_docker, import_git, import_oci, import_overlay, import_tar, import_zip,
};
use amalgam_proto::v1::exchange_service_server::ExchangeService;
use amalgam_proto::{Reason, snapshot_name, v1};
use tokio_stream::StreamExt as _;
use tonic::{Request, Response, Status, Streaming};

use super::transfer::bridge::{Arriving, Pieces, STALL_MAX, arriving};
use super::{Answers, Api, Sender, Watched, actor};
use crate::calls::Kind;
use crate::error::{Error, Result};
use crate::host_path::{host_path, open_file};
use crate::messages::Phase;
use crate::service::Service;

type Answer<T> = Result<Response<T>, Status>;

impl Watched for Progress {
    fn message(&self, phase: Phase) -> v1::Progress {
        v1::Progress {
            phase: phase.word().to_owned(),
            names: self.items.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            ..v1::Progress::default()
        }
    }

    fn stop(&self) {
        self.cancel();
    }
}

#[tonic::async_trait]
impl ExchangeService for Api {
    type ImportTreeStream = Answers<v1::ImportTreeResponse>;
    type ExportTreeStream = Answers<v1::ExportTreeResponse>;

    async fn import_tree(&self, request: Request<Streaming<v1::ImportTreeRequest>>) -> Answer<Self::ImportTreeStream> {
        use v1::import_tree_response::Event;
        let (actor, mut stream) = (actor(&request), request.into_inner());
        let caller = actor.clone();
        let first = stream.message().await?.and_then(|message| message.event);
        let Some(v1::import_tree_request::Event::Options(options)) = first else {
            return Err(invalid("the first message of a stream says how to import it").into_status());
        };
        if !matches!(options.source, Some(v1::import_options::Source::Tar(_))) {
            self.host_paths_only_local()?;
        }
        self.keep_identified(&actor, &options);
        let data = arriving(stream.map(|message| message.map(piece)), STALL_MAX);
        let tell = |progress| v1::ImportTreeResponse { event: Some(Event::Progress(progress)) };
        let work = move |service: &Service, progress: &Progress, _: &Sender<_>| {
            let _using = service.using();
            let import = || import(service, &options, data, &actor, progress);
            let result = service.context.once(&actor, &options, import)?;
            Ok(v1::ImportTreeResponse { event: Some(Event::Result(result)) })
        };
        self.watch(&caller, Kind::Transfer, Phase::Import, tell, work)
    }

    async fn export_tree(&self, request: Request<v1::ExportTreeRequest>) -> Answer<Self::ExportTreeStream> {
        use v1::export_tree_request::Target;
        use v1::export_tree_response::Event;
        let (caller, request) = (actor(&request), request.into_inner());
        let is_on_host = match &request.target {
            Some(Target::Git(_) | Target::Overlay(_)) => true,
            Some(Target::Oci(oci)) => !oci.directory.is_empty(),
            _ => false,
        };
        if is_on_host {
            self.host_paths_only_local()?;
        }
        let tell = |progress| v1::ExportTreeResponse { event: Some(Event::Progress(progress)) };
        let work = move |service: &Service, progress: &Progress, sender: &Sender<_>| {
            let _using = service.using();
            let wrap = |data| v1::ExportTreeResponse { event: Some(Event::Data(data)) };
            // A dry run writes the archive to a sink, to count it.
            let out: Box<dyn Write> = match request.dry_run {
                true => Box::new(io::sink()),
                false => Box::new(io::BufWriter::with_capacity(256 << 10, Pieces::new(sender, wrap))),
            };
            let result = export(service, &request, out, progress)?;
            Ok(v1::ExportTreeResponse { event: Some(Event::Result(result)) })
        };
        self.watch(&caller, Kind::Transfer, Phase::Export, tell, work)
    }
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(Reason::Invalid, message)
}

/// Wraps a piece of an archive as a piece of a received stream. Other messages become one without an event, which the reader
/// refuses.
fn piece(message: v1::ImportTreeRequest) -> v1::ReceiveSnapshotsRequest {
    let event = match message.event {
        Some(v1::import_tree_request::Event::Data(data)) => Some(v1::receive_snapshots_request::Event::Data(data)),
        _ => None,
    };
    v1::ReceiveSnapshotsRequest { event }
}

fn compression(value: i32) -> Option<Compression> {
    match v1::ArchiveCompression::try_from(value).unwrap_or_default() {
        v1::ArchiveCompression::Unspecified => None,
        v1::ArchiveCompression::None => Some(Compression::None),
        v1::ArchiveCompression::Gzip => Some(Compression::Gzip),
        v1::ArchiveCompression::Zstd => Some(Compression::Zstd),
        v1::ArchiveCompression::Xz => Some(Compression::Xz),
    }
}

fn whiteouts(value: i32) -> Whiteouts {
    match v1::WhiteoutForm::try_from(value).unwrap_or_default() {
        v1::WhiteoutForm::Unspecified | v1::WhiteoutForm::Device => Whiteouts::Devices,
        v1::WhiteoutForm::Xattr => Whiteouts::Xattrs,
        v1::WhiteoutForm::Aufs => Whiteouts::Aufs,
    }
}

fn history(commits: u64) -> GitHistory {
    if commits == 0 { GitHistory::All } else { GitHistory::Last(commits) }
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn import(
    service: &Service,
    options: &v1::ImportOptions,
    data: Arriving,
    actor: &str,
    progress: &Progress,
) -> Result<v1::ImportResult> {
    use v1::import_options::Source;
    let name = WorkspaceName::new(options.workspace_id.as_str())?;
    let act = service.context.act_for(actor, options)?;
    if let Some(done) = service.context.done_before(&act)? {
        return Ok(import_done_before(&name, &done));
    }
    let onto = match options.onto.as_str() {
        "" => None,
        revision => Some(service.context.resolve(revision, None)?),
    };
    let (store, dry_run) = (&service.context.store, options.dry_run);
    let words = SnapshotInfo {
        author: actor.to_owned(),
        time: service.context.now(),
        message: options.message.clone(),
        ..SnapshotInfo::default()
    };
    let source = options.source.as_ref().ok_or_else(|| invalid("say what to import"))?;
    if onto.is_some() && matches!(source, Source::Git(_) | Source::Oci(_) | Source::Docker(_)) {
        return Err(invalid(
            "a repository or an image brings its own history; only archives and upper directories go onto a snapshot",
        ));
    }
    if let (Source::Git(git), true) = (source, dry_run) {
        let report = count_git(store, &host_path(&git.path)?, &git_import(service, &name, git)?, progress)?;
        return Ok(v1::ImportResult { report: Some(report_message(&report)), ..Default::default() });
    }
    let read = || match source {
        Source::Tar(tar) => {
            let owners = if tar.drop_owners { Owners::Drop } else { Owners::LikeFirst };
            let compression = compression(tar.compression);
            let options = TarImport { compression, owners, onto, dry_run, words, ..TarImport::default() };
            Ok(import_tar(store, data, options, progress)?)
        }
        Source::Zip(zip) => {
            let path = host_path(&zip.path)?;
            let file = open_file(&path)?;
            Ok(import_zip(store, &file, ZipImport { onto, dry_run, words, ..ZipImport::default() }, progress)?)
        }
        Source::Git(git) => {
            let (path, options) = (host_path(&git.path)?, git_import(service, &name, git)?);
            Ok(import_git(store, &path, &options, progress)?)
        }
        Source::Oci(oci) => {
            let (tag, platform) = (some(&oci.tag), some(&oci.platform));
            let options = OciImport { tag, platform, dry_run, author: actor.to_owned(), ..OciImport::default() };
            Ok(import_oci(store, &host_path(&oci.path)?, &options, progress)?)
        }
        Source::Docker(docker) => {
            let socket = if docker.socket.is_empty() { DOCKER_SOCKET.into() } else { host_path(&docker.socket)? };
            let from = DockerImage { socket, image: docker.image.clone() };
            let platform = some(&docker.platform);
            let options = OciImport { platform, dry_run, author: actor.to_owned(), ..OciImport::default() };
            Ok(import_docker(store, &from, &options, progress)?)
        }
        Source::Overlay(overlay) => {
            let options = OverlayImport { base: onto, aufs: overlay.aufs, dry_run, words, ..OverlayImport::default() };
            Ok(import_overlay(store, &host_path(&overlay.path)?, options, progress)?)
        }
    };
    // A dry run needs room, too: it stores no contents of files, but it stores directories.
    let imported = service.collections.quota.checking_space(&|| progress.cancel(), read)?;
    // A fast import may have filled the disk between two checks.
    service.collections.quota.check_space()?;
    let report = Some(report_message(&imported.report));
    if dry_run {
        return Ok(v1::ImportResult { report, ..Default::default() });
    }
    let created = land(service, &name, &imported, &act)?;
    let workspace = amalgam_proto::workspace_name(&name);
    Ok(v1::ImportResult { workspace, snapshot: snapshot_name(imported.head), created, report })
}

/// Returns the result of an import that an earlier process completed. The report is absent, because the log does not record it.
fn import_done_before(name: &WorkspaceName, done: &Operation) -> v1::ImportResult {
    let reference = name.reference();
    let change = done.changes.iter().find(|change| change.name == reference);
    let target = change.and_then(|change| change.after.as_ref()).and_then(|value| value.target);
    v1::ImportResult {
        workspace: amalgam_proto::workspace_name(name),
        snapshot: target.map(|id| snapshot_name(SnapshotId::from_bytes(id.hash))).unwrap_or_default(),
        created: change.is_some_and(|change| change.before.is_none()),
        report: None,
    }
}

/// Returns the options for an import of a Git repository. Commits that the workspace's head already has are not imported again.
fn git_import(service: &Service, name: &WorkspaceName, git: &v1::GitSource) -> Result<GitImport> {
    let known = service.context.workspaces.find(name)?.and_then(|found| found.head);
    Ok(GitImport {
        reference: some(&git.reference),
        history: history(git.history),
        submodules: git.submodules,
        known: known.into_iter().collect(),
        ..GitImport::default()
    })
}

/// The action in the operation log for an import. It is not a merge: after it, as after a receive, a commit of a directory with
/// edits is refused instead of merged.
const IMPORT: &str = "import";

/// Publishes an import as a new workspace, or as the new head of the workspace that it continues. Returns whether the workspace is
/// new.
fn land(service: &Service, name: &WorkspaceName, imported: &Imported, act: &OperationContext) -> Result<bool> {
    let workspaces = &service.context.workspaces;
    // The request id belongs to the operation that publishes the import.
    let before = OperationContext { request: None, ..act.clone() };
    imported.mark_foreign(&before)?;
    if workspaces.find(name)?.is_none() {
        service.directories.detach_ended_workspaces(std::slice::from_ref(name))?;
        let new = NewWorkspace { from: Some(imported.head), ..NewWorkspace::default() };
        workspaces.create(name, &new, act)?;
        return Ok(true);
    }
    let history = amalgam_engine::History::of(&service.context.store);
    service.views.move_head(name, &[], IMPORT, &before, || {
        let moved = workspaces.fast_forward(&history, name, imported.head, act, IMPORT)?;
        moved.ok_or_else(|| {
            let message = format!(
                "workspace {name} is there, and what was imported does not continue it; import into another \
                 workspace, or onto {name}@"
            );
            Error::new(Reason::AlreadyExists, message)
        })
    })?;
    Ok(false)
}

fn export(
    service: &Service,
    request: &v1::ExportTreeRequest,
    mut out: Box<dyn Write + '_>,
    progress: &Progress,
) -> Result<v1::ExportResult> {
    use v1::export_tree_request::Target;
    let here = service.context.here(&request.workspace)?;
    let held = service.context.resolve(&request.revision, here.as_ref())?;
    let store = &service.context.store;
    let guard = service.context.permissions.reading(here.as_ref())?;
    let target = request.target.as_ref().ok_or_else(|| invalid("say what to export to"))?;
    // Layers and histories are made of snapshots, which name hidden paths.
    if guard.hides() && !matches!(target, Target::Tar(_) | Target::Zip(_)) {
        let message = "the policy hides paths of this tree; export a tar or zip archive, which leaves them out";
        return Err(Error::new(Reason::Forbidden, message));
    }
    let seen = service.context.permissions.visible_tree(store.snapshot(held)?.root, &guard)?;
    let root = seen.root;
    let paths = request.paths.iter().map(TreePath::new).collect::<Result<Vec<_>, _>>();
    let paths = paths?;
    let archive = |report: Report| v1::ExportResult { report: Some(report_message(&report)), ..Default::default() };
    match target {
        Target::Tar(tar) => {
            let compression = compression(tar.compression).unwrap_or_default();
            let options = TarExport { compression, owner: Owner { uid: 0, gid: 0 }, paths };
            Ok(export_tar(store, root, out, &options, progress).map(archive)?)
        }
        Target::Zip(_) => Ok(export_zip(store, root, out, &ZipExport { paths }, progress).map(archive)?),
        Target::Git(git) => {
            let identity = Identity { map: git.identities.clone().into_iter().collect(), domain: String::new() };
            let (branch, history) = (git.branch.clone(), history(git.history));
            let since = match git.since.as_str() {
                "" => None,
                since => Some(service.context.resolve(since, here.as_ref())?),
            };
            let dry_run = request.dry_run;
            let options = GitExport { branch, history, since, identity, create: true, is_mirror: false, dry_run };
            let done = export_git(store, held, &host_path(&git.path)?, &options, progress)?;
            let report = Some(report_message(&done.report));
            Ok(v1::ExportResult { report, id: done.commit, reused: done.reused })
        }
        Target::Oci(oci) => {
            let mut layers = Vec::<SnapshotId>::new();
            for base in &oci.bases {
                layers.push(service.context.resolve(base, here.as_ref())?);
            }
            layers.push(held);
            let compression = compression(oci.compression).unwrap_or(Compression::Gzip);
            let options = OciExport { compression, name: some(&oci.name) };
            let done = if oci.directory.is_empty() || request.dry_run {
                export_oci(store, &layers, OciTarget::Archive(&mut *out), &options, progress)
            } else {
                export_oci(store, &layers, OciTarget::Directory(&host_path(&oci.directory)?), &options, progress)
            };
            let done = done?;
            let id = if request.dry_run { String::new() } else { done.digest };
            Ok(v1::ExportResult { report: Some(report_message(&done.report)), id, reused: 0 })
        }
        Target::Overlay(overlay) => {
            let base = match overlay.base.as_str() {
                "" => None,
                base => Some(store.snapshot(service.context.resolve(base, here.as_ref())?)?.root),
            };
            let whiteouts = whiteouts(overlay.whiteouts);
            let options = OverlayExport { base, whiteouts, set_id: overlay.set_id, dry_run: request.dry_run };
            Ok(export_overlay(store, root, &host_path(&overlay.directory)?, &options, progress).map(archive)?)
        }
    }
}

fn report_message(report: &Report) -> v1::ExchangeReport {
    let notice = |notice: &amalgam_exchange::Notice| v1::ExchangeNotice {
        what: notice.what.to_owned(),
        count: notice.count,
        examples: notice.examples.clone(),
    };
    v1::ExchangeReport {
        files: report.files,
        directories: report.directories,
        symlinks: report.symlinks,
        hard_links: report.hard_links,
        specials: report.specials,
        removed: report.removed,
        bytes: report.bytes,
        snapshots: report.snapshots,
        notices: report.notices.iter().map(notice).collect(),
    }
}
