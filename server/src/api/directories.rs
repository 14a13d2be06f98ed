//! The gRPC methods of `DirectoryService`: real directories. All of these calls name paths of the host.

use amalgam_proto::v1;
use amalgam_proto::v1::directory_service_server::DirectoryService;
use tonic::{Request, Response, Status};

use super::{Answers, Api, actor, page_size};
use crate::call_log::workspace_id;
use crate::calls::Kind;
use crate::error::Result;
use crate::messages::Phase;

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl DirectoryService for Api {
    type DetectChangesStream = Answers<v1::DetectChangesResponse>;
    type CaptureDirectoryStream = Answers<v1::CaptureDirectoryResponse>;
    type RestoreDirectoryStream = Answers<v1::RestoreDirectoryResponse>;
    type UndoDirectoryStream = Answers<v1::UndoDirectoryResponse>;
    type RedoDirectoryStream = Answers<v1::RedoDirectoryResponse>;
    type CheckoutDirectoryStream = Answers<v1::CheckoutDirectoryResponse>;
    type WatchDirectoryStream = Answers<v1::WatchDirectoryResponse>;

    async fn attach_directory(
        &self,
        request: Request<v1::AttachDirectoryRequest>,
    ) -> Answer<v1::AttachDirectoryResponse> {
        self.local_only()?;
        let (actor, request) = self.identified(request);
        self.short(move |service| {
            let act = service.context.act_for(&actor, &request)?;
            let record = service.directories.attach(&request, &act)?;
            let workspace = amalgam_engine::WorkspaceName::new(record.workspace.as_str())?;
            Ok(v1::AttachDirectoryResponse {
                directory: Some(service.directories.directory_message(&record)),
                workspace: Some(service.views.workspace_message(&workspace)?),
            })
        })
        .await
    }

    async fn detach_directory(
        &self,
        request: Request<v1::DetachDirectoryRequest>,
    ) -> Answer<v1::DetachDirectoryResponse> {
        self.local_only()?;
        let (actor, request) = self.identified(request);
        self.slow(&actor.clone(), Kind::Work, move |service, _| {
            service.context.once(&actor, &request, || {
                service.directories.detach(&request.name)?;
                Ok(v1::DetachDirectoryResponse {})
            })
        })
        .await
    }

    async fn find_directory(&self, request: Request<v1::FindDirectoryRequest>) -> Answer<v1::FindDirectoryResponse> {
        self.local_only()?;
        let request = request.into_inner();
        self.short(move |service| {
            let directory = service.directories.find_place(&request.path)?;
            let workspace = workspace_id(&directory.workspace)?;
            Ok(v1::FindDirectoryResponse {
                directory: Some(directory),
                workspace: Some(service.views.workspace_message(&workspace)?),
            })
        })
        .await
    }

    async fn list_directories(
        &self,
        request: Request<v1::ListDirectoriesRequest>,
    ) -> Answer<v1::ListDirectoriesResponse> {
        self.local_only()?;
        let request = request.into_inner();
        self.short(move |service| {
            let limit = page_size(request.page_size)?;
            let all = service.context.registry.all();
            let rest = all.iter().filter(|record| record.id.as_str() > request.page_token.as_str());
            let page: Vec<_> = rest.take(limit).collect();
            let next = if page.len() == limit { page.last().map(|last| last.id.clone()) } else { None };
            let directories = page.into_iter().map(|record| service.directories.directory_message(record)).collect();
            Ok(v1::ListDirectoriesResponse { directories, next_page_token: next.unwrap_or_default() })
        })
        .await
    }

    async fn update_directory(
        &self,
        request: Request<v1::UpdateDirectoryRequest>,
    ) -> Answer<v1::UpdateDirectoryResponse> {
        self.local_only()?;
        let (actor, request) = self.identified(request);
        self.short(move |service| {
            service.context.once(&actor, &request, || {
                let record = service.directories.update_directory(&request.name, &request.exclude)?;
                Ok(v1::UpdateDirectoryResponse { directory: Some(service.directories.directory_message(&record)) })
            })
        })
        .await
    }

    async fn detect_changes(&self, request: Request<v1::DetectChangesRequest>) -> Answer<Self::DetectChangesStream> {
        use v1::detect_changes_response::Event;
        self.local_only()?;
        let (caller, request) = (actor(&request), request.into_inner());
        let tell = |progress| v1::DetectChangesResponse { event: Some(Event::Progress(progress)) };
        self.long(&caller, Phase::Look, tell, move |service, progress, sender| {
            let mut status = service.directories.status(&request.name, progress)?;
            if request.parts {
                for part in take_parts(&mut status) {
                    sender.send(v1::DetectChangesResponse { event: Some(Event::Part(part)) })?;
                }
            }
            Ok(v1::DetectChangesResponse { event: Some(Event::Status(status)) })
        })
    }

    async fn capture_directory(
        &self,
        request: Request<v1::CaptureDirectoryRequest>,
    ) -> Answer<Self::CaptureDirectoryStream> {
        use v1::capture_directory_response::Event;
        self.local_only()?;
        let (actor, request) = self.identified(request);
        let tell = |progress| v1::CaptureDirectoryResponse { event: Some(Event::Progress(progress)) };
        self.long(&actor.clone(), Phase::Read, tell, move |service, progress, _| {
            let act = service.context.act_for(&actor, &request)?;
            let result = service.directories.capture_directory(&request, &act, progress)?;
            Ok(v1::CaptureDirectoryResponse { event: Some(Event::Result(result)) })
        })
    }

    async fn restore_directory(
        &self,
        request: Request<v1::RestoreDirectoryRequest>,
    ) -> Answer<Self::RestoreDirectoryStream> {
        use v1::restore_directory_response::Event;
        self.local_only()?;
        let (actor, request) = self.identified(request);
        let tell = |progress| v1::RestoreDirectoryResponse { event: Some(Event::Progress(progress)) };
        self.long(&actor.clone(), Phase::Write, tell, move |service, progress, sender| {
            let act = service.context.act_for(&actor, &request)?;
            let part = |plan| match request.dry_run {
                true => sender.send(v1::RestoreDirectoryResponse { event: Some(Event::Plan(plan)) }),
                false => Ok(()),
            };
            let result = service.directories.restore_directory(&request, &act, progress, part)?;
            Ok(v1::RestoreDirectoryResponse { event: Some(Event::Result(result)) })
        })
    }

    async fn undo_directory(&self, request: Request<v1::UndoDirectoryRequest>) -> Answer<Self::UndoDirectoryStream> {
        use v1::undo_directory_response::Event;
        self.local_only()?;
        let (actor, request) = self.identified(request);
        let tell = |progress| v1::UndoDirectoryResponse { event: Some(Event::Progress(progress)) };
        self.long(&actor.clone(), Phase::Write, tell, move |service, progress, _| {
            let act = service.context.act_for(&actor, &request)?;
            let result = service.directories.undo_directory(&request, &act, progress)?;
            Ok(v1::UndoDirectoryResponse { event: Some(Event::Result(result)) })
        })
    }

    async fn redo_directory(&self, request: Request<v1::RedoDirectoryRequest>) -> Answer<Self::RedoDirectoryStream> {
        use v1::redo_directory_response::Event;
        self.local_only()?;
        let (actor, request) = self.identified(request);
        let tell = |progress| v1::RedoDirectoryResponse { event: Some(Event::Progress(progress)) };
        self.long(&actor.clone(), Phase::Write, tell, move |service, progress, _| {
            let act = service.context.act_for(&actor, &request)?;
            let result = service.directories.redo_directory(&request, &act, progress)?;
            Ok(v1::RedoDirectoryResponse { event: Some(Event::Result(result)) })
        })
    }

    async fn checkout_directory(
        &self,
        request: Request<v1::CheckoutDirectoryRequest>,
    ) -> Answer<Self::CheckoutDirectoryStream> {
        use v1::checkout_directory_response::Event;
        self.local_only()?;
        let (actor, request) = self.identified(request);
        let tell = |progress| v1::CheckoutDirectoryResponse { event: Some(Event::Progress(progress)) };
        self.long(&actor.clone(), Phase::Write, tell, move |service, progress, _| {
            let act = service.context.act(&actor);
            let checkout = || service.directories.checkout_directory(&request, &act, progress);
            let result = service.context.once(&actor, &request, checkout)?;
            Ok(v1::CheckoutDirectoryResponse { event: Some(Event::Result(result)) })
        })
    }

    async fn watch_directory(&self, request: Request<v1::WatchDirectoryRequest>) -> Answer<Self::WatchDirectoryStream> {
        self.local_only()?;
        let (actor, request) = (actor(&request), request.into_inner());
        let caller = actor.clone();
        self.subscribe(&caller, move |service, subscriber| async move {
            service.directories.watch_directory(request, actor, &subscriber).await
        })
    }
}

/// The most bytes of paths in one part of a status.
const PART_BYTES: usize = 1 << 20;

/// Moves the lists of a status that is larger than one part into parts. The last part stays in the status.
fn take_parts(status: &mut v1::DirectoryStatus) -> Vec<v1::DirectoryStatus> {
    fn cut<T>(
        from: &mut Vec<T>,
        bytes_of: impl Fn(&T) -> usize,
        into: impl Fn(&mut v1::DirectoryStatus) -> &mut Vec<T>,
        parts: &mut Vec<(v1::DirectoryStatus, usize)>,
    ) {
        for item in std::mem::take(from) {
            let bytes = bytes_of(&item) + 8;
            match parts.last_mut() {
                Some((part, held)) if *held + bytes <= PART_BYTES => {
                    into(part).push(item);
                    *held += bytes;
                }
                _ => {
                    let mut part = v1::DirectoryStatus::default();
                    into(&mut part).push(item);
                    parts.push((part, bytes));
                }
            }
        }
    }
    let mut parts = Vec::new();
    let path = |path: &bytes::Bytes| path.len();
    cut(&mut status.modified, path, |part| &mut part.modified, &mut parts);
    cut(&mut status.added, path, |part| &mut part.added, &mut parts);
    cut(&mut status.deleted, path, |part| &mut part.deleted, &mut parts);
    cut(&mut status.attributes, path, |part| &mut part.attributes, &mut parts);
    cut(&mut status.directories, path, |part| &mut part.directories, &mut parts);
    cut(&mut status.uncovered, path, |part| &mut part.uncovered, &mut parts);
    let renamed = |renamed: &v1::RenamedPath| renamed.from_path.len() + renamed.path.len();
    cut(&mut status.renamed, renamed, |part| &mut part.renamed, &mut parts);
    let notice = |notice: &v1::Notice| notice.path.len() + notice.message.len();
    cut(&mut status.notices, notice, |part| &mut part.notices, &mut parts);
    cut(&mut status.unwritten, notice, |part| &mut part.unwritten, &mut parts);
    // The last part is sent in the last message.
    if let Some((last, _)) = parts.pop() {
        let v1::DirectoryStatus {
            modified,
            added,
            deleted,
            attributes,
            directories,
            uncovered,
            renamed,
            notices,
            unwritten,
            ..
        } = last;
        (status.modified, status.added, status.deleted) = (modified, added, deleted);
        (status.attributes, status.directories, status.uncovered) = (attributes, directories, uncovered);
        (status.renamed, status.notices, status.unwritten) = (renamed, notices, unwritten);
    }
    parts.into_iter().map(|(part, _)| part).collect()
}
