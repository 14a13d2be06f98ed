//! The gRPC methods of `FileService`: files of live trees and snapshots.

mod read;
mod write;

use std::time::Duration;

use amalgam_proto::v1::file_edit::Edit;
use amalgam_proto::v1::file_service_server::FileService;
use amalgam_proto::v1::write_edit::Content;
use amalgam_proto::{Identified, v1};
use prost::Message;
use tonic::{Request, Response, Status, Streaming};

use super::{Answers, Api, actor};
use crate::call_log::in_call;
use crate::error::{Error, Result};
use crate::files::{Glob, TreeWatch, parse_path};
use crate::service::Service;

type Answer<T> = Result<Response<T>, Status>;

/// The most entries and lines in one message.
const AT_ONCE: usize = 64;
/// Changes of a tree within this time are reported together (debounce).
const WATCH_DELAY: Duration = Duration::from_millis(20);

/// The most edits, and the most bytes of new files, of a commit that runs without a blocking thread.
const BRIEF_EDITS_MAX: usize = 16;
const BRIEF_EDIT_BYTES_MAX: usize = 64 << 10;

/// Returns whether a commit of edits is quick: it is buffered and only writes small files, and neither a live tree nor a directory
/// of the host has to follow it.
fn is_brief_commit(service: &Service, request: &v1::CommitEditsRequest) -> bool {
    let written = |edit: &v1::FileEdit| match &edit.edit {
        Some(Edit::Write(write)) if write.offset.is_none() => Some(match &write.content {
            Some(Content::Data(data)) => data.len(),
            Some(Content::Text(text)) => text.len(),
            None => 0,
        }),
        _ => None,
    };
    let is_small = || {
        let bytes: Option<usize> = request.edits.iter().map(written).sum();
        request.edits.len() <= BRIEF_EDITS_MAX && bytes.is_some_and(|bytes| bytes <= BRIEF_EDIT_BYTES_MAX)
    };
    let has_view = || match amalgam_proto::workspace_id(&request.workspace) {
        Ok(name) => service.views.numbered_view(&name).is_ok_and(|view| view.is_some()),
        Err(_) => true,
    };
    let is_plain = request.buffered && !request.with_changes && !request.with_summary && request.revision.is_empty();
    !service.context.is_shared() && is_plain && is_small() && service.context.registry.is_empty() && !has_view()
}

/// Makes one edit of a live tree, and returns the entry that it leaves.
fn edit_one(service: &Service, workspace: &str, edit: Edit) -> Result<v1::FileStat> {
    let files = service.files.edit(workspace, &[v1::FileEdit { edit: Some(edit) }])?;
    Ok(files.into_iter().next().unwrap_or_default())
}

impl Api {
    /// Changes a live tree. No operation is recorded for it, so only this process remembers the request id.
    async fn edit_once<R: Identified + Clone + Send + 'static, T: Message + Default + 'static>(
        &self,
        request: Request<R>,
        work: impl FnOnce(&Service, R) -> Result<T> + Send + 'static,
    ) -> Answer<T> {
        let (actor, request) = self.identified(request);
        self.short(move |service| match request.request_id().is_empty() {
            true => work(service, request),
            false => service.context.once(&actor, &request, || work(service, request.clone())),
        })
        .await
    }
}

#[tonic::async_trait]
impl FileService for Api {
    type ReadFileStream = Answers<v1::FileServiceReadFileResponse>;
    type GlobFilesStream = Answers<v1::GlobFilesResponse>;
    type GrepFilesStream = Answers<v1::GrepFilesResponse>;
    type WatchFilesStream = Answers<v1::WatchFilesResponse>;

    async fn stat_file(&self, request: Request<v1::StatFileRequest>) -> Answer<v1::StatFileResponse> {
        let request = request.into_inner();
        self.short(move |service| {
            let path = parse_path(&request.path)?;
            let tree = service.files.read_tree(&request.workspace, &request.revision)?;
            Ok(v1::StatFileResponse { file: Some(read::stat(service, &tree, &path)?) })
        })
        .await
    }

    async fn stat_files(&self, request: Request<v1::StatFilesRequest>) -> Answer<v1::StatFilesResponse> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.read(&caller, move |service| read::stat_many(service, &request)).await
    }

    async fn read_file(&self, request: Request<v1::FileServiceReadFileRequest>) -> Answer<Self::ReadFileStream> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.stream(&caller, move |service, sender| read::read(service, &request, sender))
    }

    async fn read_files(&self, request: Request<v1::ReadFilesRequest>) -> Answer<v1::ReadFilesResponse> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.read(&caller, move |service| read::read_many(service, &request)).await
    }

    async fn list_files(&self, request: Request<v1::ListFilesRequest>) -> Answer<v1::ListFilesResponse> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.read(&caller, move |service| {
            let limit = super::page_size(request.page_size)?;
            service.files.list(&request, limit)
        })
        .await
    }

    async fn glob_files(&self, request: Request<v1::GlobFilesRequest>) -> Answer<Self::GlobFilesStream> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.stream(&caller, move |service, sender| {
            let (glob, mut files) = (Glob::new(&request.pattern)?, Vec::new());
            service.files.glob(&request, &glob, |file| {
                files.push(file);
                match files.len() == AT_ONCE {
                    true => sender.send(v1::GlobFilesResponse { files: std::mem::take(&mut files) }),
                    false => Ok(()),
                }
            })?;
            sender.send(v1::GlobFilesResponse { files })
        })
    }

    async fn grep_files(&self, request: Request<v1::GrepFilesRequest>) -> Answer<Self::GrepFilesStream> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.stream(&caller, move |service, sender| {
            let mut matches = Vec::new();
            service.files.grep(&request, |found| {
                matches.push(found);
                match matches.len() == AT_ONCE {
                    true => sender.send(v1::GrepFilesResponse { matches: std::mem::take(&mut matches) }),
                    false => Ok(()),
                }
            })?;
            sender.send(v1::GrepFilesResponse { matches })
        })
    }

    async fn write_file(&self, request: Request<Streaming<v1::WriteFileRequest>>) -> Answer<v1::WriteFileResponse> {
        let caller = actor(&request);
        self.write_stream(&caller, request.into_inner()).await
    }

    async fn make_directory(&self, request: Request<v1::MakeDirectoryRequest>) -> Answer<v1::MakeDirectoryResponse> {
        self.edit_once(request, |service, request| {
            let v1::MakeDirectoryRequest { workspace, path, mode, parents, .. } = request;
            let edit = Edit::MakeDirectory(v1::DirectoryEdit { path, mode, parents });
            Ok(v1::MakeDirectoryResponse { file: Some(edit_one(service, &workspace, edit)?) })
        })
        .await
    }

    async fn remove_file(&self, request: Request<v1::RemoveFileRequest>) -> Answer<v1::RemoveFileResponse> {
        self.edit_once(request, |service, request| {
            let v1::RemoveFileRequest { workspace, path, recursive, if_match, allow_missing, .. } = request;
            let edit = Edit::Remove(v1::RemoveEdit { path, recursive, if_match, allow_missing });
            edit_one(service, &workspace, edit)?;
            Ok(v1::RemoveFileResponse {})
        })
        .await
    }

    async fn rename_file(&self, request: Request<v1::RenameFileRequest>) -> Answer<v1::RenameFileResponse> {
        self.edit_once(request, |service, request| {
            let v1::RenameFileRequest { workspace, path, new_path, no_replace, create_parents, if_match, .. } = request;
            let edit = Edit::Rename(v1::RenameEdit { path, new_path, no_replace, create_parents, if_match });
            Ok(v1::RenameFileResponse { file: Some(edit_one(service, &workspace, edit)?) })
        })
        .await
    }

    async fn create_symlink(&self, request: Request<v1::CreateSymlinkRequest>) -> Answer<v1::CreateSymlinkResponse> {
        self.edit_once(request, |service, request| {
            let v1::CreateSymlinkRequest { workspace, path, target, create_parents, .. } = request;
            let edit = Edit::CreateSymlink(v1::SymlinkEdit { path, target, create_parents });
            Ok(v1::CreateSymlinkResponse { file: Some(edit_one(service, &workspace, edit)?) })
        })
        .await
    }

    async fn set_attributes(&self, request: Request<v1::SetAttributesRequest>) -> Answer<v1::SetAttributesResponse> {
        self.edit_once(request, |service, request| {
            let v1::SetAttributesRequest { workspace, attributes, .. } = request;
            let edit = Edit::SetAttributes(attributes.unwrap_or_default());
            Ok(v1::SetAttributesResponse { file: Some(edit_one(service, &workspace, edit)?) })
        })
        .await
    }

    async fn edit_file(&self, request: Request<v1::EditFileRequest>) -> Answer<v1::EditFileResponse> {
        use v1::edit_file_request::Edit as Asked;
        self.edit_once(request, |service, request| {
            let v1::EditFileRequest { workspace, edit, .. } = request;
            let edit = edit.map(|edit| match edit {
                Asked::Replace(replace) => Edit::Replace(replace),
                Asked::Patch(patch) => Edit::Patch(patch),
            });
            let (files, edit) = (&service.files, v1::FileEdit { edit });
            files.open_live(&workspace)?.edit(&mut [], |tree, _| {
                let mut plan = files.plan(tree, &workspace)?;
                plan.add(&edit)?;
                let replacements = plan.replacements();
                let (edits, mut left) = plan.finish()?;
                Ok((edits, v1::EditFileResponse { file: left.pop(), replacements }))
            })
        })
        .await
    }

    async fn apply_edits(&self, request: Request<v1::ApplyEditsRequest>) -> Answer<v1::ApplyEditsResponse> {
        self.edit_once(request, |service, request| {
            let files = service.files.edit(&request.workspace, &request.edits)?;
            Ok(v1::ApplyEditsResponse { files })
        })
        .await
    }

    async fn commit_edits(&self, request: Request<v1::CommitEditsRequest>) -> Answer<v1::CommitEditsResponse> {
        let (actor, request) = self.identified(request);
        let is_brief = is_brief_commit(&self.service, &request);
        let work = move |service: &Service| {
            let act = service.context.act_for(&actor, &request)?;
            service.files.commit_edits(&request, &act)
        };
        let work = match is_brief {
            true => match self.brief(work) {
                Ok(done) => return done,
                Err(work) => work,
            },
            false => work,
        };
        self.short(work).await
    }

    async fn watch_files(&self, request: Request<v1::WatchFilesRequest>) -> Answer<Self::WatchFilesStream> {
        let (caller, request) = (actor(&request), request.into_inner());
        let watch = self.short(move |service| service.files.watch(&request)).await?.into_inner();
        self.subscribe(&caller, |service, subscriber| async move {
            let reference = watch.name.reference().to_string();
            let (mut changes, mut watch) = (watch.changes.clone(), Some(watch));
            let newest = service.context.store.last_operation()?;
            let mut operations = service.context.operations.follow(&service.context.store, newest);
            subscriber.send(v1::WatchFilesResponse::default()).await?;
            loop {
                tokio::select! {
                    changed = changes.changed() => changed.map_err(|_| crate::caller::ends())?,
                    page = operations.next() => {
                        let is_ours = |one: &v1::Operation| one.changes.iter().any(|change| change.reference == reference);
                        if !page?.iter().any(is_ours) {
                            continue;
                        }
                    }
                    ended = subscriber.ended() => return Err(ended),
                }
                tokio::time::sleep(WATCH_DELAY).await;
                changes.mark_unchanged();
                let permit = subscriber.permit().await;
                let (mut reporting, service) = (watch.take(), service.clone());
                // It belongs to the call, whose agent decides which paths are reported.
                let reported = tokio::task::spawn_blocking(in_call(move || {
                    let _held = permit;
                    let _using = service.using();
                    let report = reporting.as_mut().map_or(Ok(None), TreeWatch::report);
                    (reporting, report)
                }));
                let (again, report) = reported.await.map_err(|error| Error::io("watch files")(error.into()))?;
                watch = again;
                if let Some(report) = report? {
                    subscriber.send(report).await?;
                }
            }
        })
    }
}
