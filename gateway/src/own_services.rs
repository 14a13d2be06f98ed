//! The services of the server itself: projects and keys.

use amalgam_engine::Time;
use amalgam_proto::v1::key_service_server::KeyService;
use amalgam_proto::v1::project_service_server::ProjectService;
use amalgam_proto::{Failure, Reason, instant, timestamp, v1};
use tonic::{Request, Response, Status};

use crate::catalog::{Catalog, CatalogError, KeyRecord, ListPlace, NewKey, Project};
use crate::identity::{Identity, Keys};
use crate::key::{KeyId, Scope, Scopes};
use crate::project::ProjectName;
use crate::projects::{ProjectError, Projects};
use crate::sandboxes::Sandboxes;
use crate::status::forbidden;

const PAGE_DEFAULT: u32 = 100;
const PAGE_MAX: u32 = 1_000;
/// Maximum length of the name of an agent, in bytes.
const AGENT_BYTES_MAX: usize = 128;

type Answer<T> = Result<Response<T>, Status>;

/// Answers the calls about projects and keys.
#[derive(Clone)]
pub(crate) struct OwnServices {
    pub(crate) catalog: Catalog,
    pub(crate) projects: Projects,
    pub(crate) sandboxes: Sandboxes,
    pub(crate) keys: Keys,
    pub(crate) now: fn() -> Time,
}

#[tonic::async_trait]
impl ProjectService for OwnServices {
    async fn create_project(&self, request: Request<v1::CreateProjectRequest>) -> Answer<v1::CreateProjectResponse> {
        let request = request.into_inner();
        let name = ProjectName::new(request.project_id).map_err(invalid)?;
        if request.validate_only {
            self.projects.refuse_local()?;
            return match self.projects.get(&name).await {
                Ok(_) => Err(CatalogError::ProjectExists(name).into()),
                Err(ProjectError::Catalog(CatalogError::NoProject(_))) => {
                    Ok(Response::new(v1::CreateProjectResponse { project: None }))
                }
                Err(error) => Err(error.into()),
            };
        }
        let project = self.projects.create(&name, (self.now)()).await?;
        Ok(Response::new(v1::CreateProjectResponse { project: Some(project_message(&project)) }))
    }

    async fn get_project(&self, request: Request<v1::GetProjectRequest>) -> Answer<v1::GetProjectResponse> {
        let name = reachable(&request, &request.get_ref().name)?;
        let project = self.projects.get(&name).await?;
        Ok(Response::new(v1::GetProjectResponse { project: Some(project_message(&project)) }))
    }

    async fn list_projects(&self, request: Request<v1::ListProjectsRequest>) -> Answer<v1::ListProjectsResponse> {
        let identity = identity(&request)?;
        let request = request.into_inner();
        if request.show_deleted && !identity.scopes().has(Scope::Admin) {
            return Err(forbidden("deleted projects are listed for the scope `admin` only"));
        }
        let mut after = match request.page_token.as_str() {
            "" => None,
            token => Some(ProjectName::new(token).map_err(|why| invalid(format!("page_token: {why}")))?),
        };
        let limit = page_size(request.page_size)?;
        let mut projects = Vec::new();
        let mut next = String::new();
        // Projects that the key may not use are left out, so a page may need several reads.
        while projects.len() < limit as usize {
            let page = self.projects.list(after.as_ref(), PAGE_MAX, request.show_deleted).await?;
            let is_last = page.len() < PAGE_MAX as usize;
            for project in page {
                after = Some(project.name.clone());
                if !identity.reaches(&project.name) {
                    continue;
                }
                projects.push(project_message(&project));
                if projects.len() == limit as usize {
                    next = project.name.to_string();
                    break;
                }
            }
            if is_last {
                break;
            }
        }
        Ok(Response::new(v1::ListProjectsResponse { projects, next_page_token: next }))
    }

    async fn delete_project(&self, request: Request<v1::DeleteProjectRequest>) -> Answer<v1::DeleteProjectResponse> {
        let name = reachable(&request, &request.get_ref().name)?;
        let project = match request.get_ref().validate_only {
            true => {
                self.projects.refuse_local()?;
                self.projects.get(&name).await?
            }
            false => {
                self.projects.refuse_local()?;
                // While the project is open, their workspaces can be committed.
                self.sandboxes.stop_project(&name).await;
                self.projects.delete(&name, (self.now)()).await?
            }
        };
        Ok(Response::new(v1::DeleteProjectResponse { project: Some(project_message(&project)) }))
    }

    async fn undelete_project(
        &self,
        request: Request<v1::UndeleteProjectRequest>,
    ) -> Answer<v1::UndeleteProjectResponse> {
        let name = reachable(&request, &request.get_ref().name)?;
        let project = self.projects.undelete(&name).await?;
        Ok(Response::new(v1::UndeleteProjectResponse { project: Some(project_message(&project)) }))
    }

    async fn get_project_usage(
        &self,
        request: Request<v1::GetProjectUsageRequest>,
    ) -> Answer<v1::GetProjectUsageResponse> {
        let name = reachable(&request, &request.get_ref().name)?;
        let store = self.projects.open(&name).await?;
        let measured = tokio::task::spawn_blocking(move || store.service().usage()).await;
        let usage = measured.map_err(|_| Status::internal("a bug in the server; its log says more"))?;
        let usage = usage.map_err(|error| Failure::new(error.reason(), error.to_string()).into_status())?;
        let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        Ok(Response::new(v1::GetProjectUsageResponse {
            disk_bytes: count(usage.disk_bytes),
            workspaces: count(usage.workspaces),
            operations: count(usage.operations),
        }))
    }
}

#[tonic::async_trait]
impl KeyService for OwnServices {
    async fn create_key(&self, request: Request<v1::CreateKeyRequest>) -> Answer<v1::CreateKeyResponse> {
        let request = request.into_inner();
        let scopes: Scopes = request.scopes.join(" ").parse().map_err(|why| invalid(format!("scopes: {why}")))?;
        if scopes.is_empty() {
            return Err(invalid("scopes: at least one of read, write, merge, run, admin"));
        }
        let agent = request.agent;
        if agent.is_empty() || agent.len() > AGENT_BYTES_MAX || !agent.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(invalid("agent: 1 to 128 visible ASCII characters"));
        }
        let projects: Result<Vec<_>, _> = request.projects.into_iter().map(ProjectName::new).collect();
        let projects = projects.map_err(|why| invalid(format!("projects: {why}")))?;
        let expires = request.expire_time.as_ref().map(instant);
        if expires.is_some_and(|expires| expires <= (self.now)()) {
            return Err(invalid("expire_time: it has passed already"));
        }
        let new = NewKey { agent, scopes, projects, expires };
        let (text, record) = self.catalog.create_key(&new, (self.now)()).await?;
        Ok(Response::new(v1::CreateKeyResponse { key: Some(key_message(&record)), text: text.reveal() }))
    }

    async fn list_keys(&self, request: Request<v1::ListKeysRequest>) -> Answer<v1::ListKeysResponse> {
        let request = request.into_inner();
        let limit = page_size(request.page_size)?;
        let after = request.page_token.parse().map_err(|why| invalid(format!("page_token: {why}")))?;
        let mut keys = self.catalog.list_keys_page(&after, limit + 1).await?;
        let next_page_token = next_token(&mut keys, limit, |last| ListPlace::behind(last.created, &last.id));
        Ok(Response::new(v1::ListKeysResponse { keys: keys.iter().map(key_message).collect(), next_page_token }))
    }

    async fn revoke_key(&self, request: Request<v1::RevokeKeyRequest>) -> Answer<v1::RevokeKeyResponse> {
        let request = request.into_inner();
        let id = request.name.strip_prefix("keys/").unwrap_or(&request.name);
        let id: KeyId = id.parse().map_err(|why| invalid(format!("name: {why}")))?;
        // First in memory, so that the key is refused even if the catalog cannot be written.
        self.keys.forget(&id);
        let record = self.catalog.revoke_key(&id, (self.now)()).await?;
        Ok(Response::new(v1::RevokeKeyResponse { key: Some(key_message(&record)) }))
    }

    async fn get_caller(&self, request: Request<v1::GetCallerRequest>) -> Answer<v1::GetCallerResponse> {
        let key = identity(&request)?.key.as_deref().map(key_message);
        Ok(Response::new(v1::GetCallerResponse { key }))
    }
}

/// Returns the page size for a request: the default for 0, else the requested size, at most [`PAGE_MAX`].
pub(crate) fn page_size(asked: i32) -> Result<u32, Status> {
    match u32::try_from(asked) {
        Ok(0) => Ok(PAGE_DEFAULT),
        Ok(asked) => Ok(asked.min(PAGE_MAX)),
        Err(_) => Err(invalid(format!("page_size: {asked} is negative"))),
    }
}

/// Truncates a list that was read with one item more than a page, and returns the token of the next page; empty on the last page.
pub(crate) fn next_token<T>(items: &mut Vec<T>, limit: u32, place: impl FnOnce(&T) -> ListPlace) -> String {
    let has_more = items.len() > limit as usize;
    items.truncate(limit as usize);
    items.last().filter(|_| has_more).map(|last| place(last).to_string()).unwrap_or_default()
}

fn invalid(why: impl Into<String>) -> Status {
    Failure::new(Reason::Invalid, why).into_status()
}

/// Returns the caller, whose identity the gate has put into the request.
fn identity<T>(request: &Request<T>) -> Result<Identity, Status> {
    request.extensions().get::<Identity>().cloned().ok_or_else(|| Status::internal("the call did not pass the gate"))
}

/// Returns the project that a request names, or refuses it if the caller may not use the project.
fn reachable<T>(request: &Request<T>, name: &str) -> Result<ProjectName, Status> {
    let name = ProjectName::new(name.strip_prefix("projects/").unwrap_or(name)).map_err(invalid)?;
    match identity(request)?.reaches(&name) {
        true => Ok(name),
        false => Err(forbidden(format!("the key may not use project {name}"))),
    }
}

fn project_message(project: &Project) -> v1::Project {
    v1::Project {
        name: format!("projects/{}", project.name),
        create_time: Some(timestamp(project.created)),
        delete_time: project.deleted.map(timestamp),
    }
}

fn key_message(key: &KeyRecord) -> v1::Key {
    v1::Key {
        name: format!("keys/{}", key.id),
        agent: key.agent.clone(),
        scopes: key.scopes.words(),
        projects: key.projects.iter().map(ToString::to_string).collect(),
        create_time: Some(timestamp(key.created)),
        expire_time: key.expires.map(timestamp),
        revoke_time: key.revoked.map(timestamp),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use amalgam_server::{Home, OpenStore, Service};
    use tonic::Code;

    use super::*;
    use crate::audit::Audit;
    use crate::identity::Authentication;
    use crate::projects::OpenHome;

    fn now() -> Time {
        Time(1_700_000_000_000_000_000)
    }

    fn services(catalog: &Catalog, projects: Projects) -> OwnServices {
        let keys = Keys::new(catalog.clone(), Authentication::Off, now);
        let sandboxes = Sandboxes::new(catalog.clone(), projects.clone(), None, false, Audit::off(), now);
        OwnServices { catalog: catalog.clone(), projects, sandboxes, keys, now }
    }

    fn checked_creation() -> Request<v1::CreateProjectRequest> {
        Request::new(v1::CreateProjectRequest { project_id: "one".to_owned(), validate_only: true })
    }

    #[tokio::test]
    async fn checks_of_changes_are_refused_when_there_is_only_the_local_store() {
        let directory = tempfile::tempdir().expect("a directory");
        let catalog = Catalog::open(&directory.path().join("catalog.db")).await.expect("a catalog");
        let home = Home::new(directory.path().join("home"));
        let opened = tokio::task::spawn_blocking(move || Service::open(&home, now, &[])).await;
        let store = OpenStore::beside(opened.expect("no panic").expect("a store"));
        let own = services(&catalog, Projects::local(catalog.clone(), store));
        let refused = own.create_project(checked_creation()).await.expect_err("it cannot be created");
        assert_eq!(refused.code(), Code::Unimplemented, "{refused:?}");
        let request = v1::DeleteProjectRequest { name: "projects/default".to_owned(), validate_only: true };
        let mut request = Request::new(request);
        request.extensions_mut().insert(Identity::without_key(None, false));
        let refused = own.delete_project(request).await.expect_err("it cannot be deleted");
        assert_eq!(refused.code(), Code::Unimplemented, "{refused:?}");
    }

    #[tokio::test]
    async fn a_check_of_a_creation_fails_when_the_catalog_does() {
        let directory = tempfile::tempdir().expect("a directory");
        let catalog = Catalog::open(&directory.path().join("catalog.db")).await.expect("a catalog");
        let open_home: OpenHome = Arc::new(|home| Service::open(home, now, &[]));
        let own = services(&catalog, Projects::in_directory(catalog.clone(), directory.path(), open_home));
        own.create_project(checked_creation()).await.expect("the name is free");
        catalog.close().await;
        assert!(own.create_project(checked_creation()).await.is_err(), "the catalog is closed");
    }
}
