//! Workspaces as repositories for git clients: exported into a cache beside the store, and read over smart HTTP.

use std::sync::Arc;

use amalgam_engine::Progress;
use amalgam_engine::workspace::WorkspaceName;
use amalgam_exchange::{GitCache, GitRequest, GitResponse, GitServeLimits};
use amalgam_proto::Reason;
use tonic::codegen::http::HeaderMap;

use crate::call_log::restricted_agent_of;
use crate::error::{Error, Result};
use crate::service::Service;

impl Service {
    /// Answers a request of a git client about a workspace's history. The first request exports it; later ones only new snapshots.
    ///
    /// `headers` say who asks, as for a call. A repository has whole histories, so an agent from whom the policy hides paths gets none.
    /// The export ends when `progress` is cancelled.
    pub fn serve_git(
        &self,
        workspace: &str,
        headers: &HeaderMap,
        request: GitRequest,
        progress: &Progress,
    ) -> Result<GitResponse> {
        let _using = self.using();
        let name = WorkspaceName::new(workspace)?;
        let agent = restricted_agent_of(headers).unwrap_or_default();
        if self.context.permissions.guard(&[agent])?.hides() {
            let message = format!("the policy hides paths from {agent}, and a repository cannot leave them out");
            return Err(Error::new(Reason::Forbidden, message));
        }
        let found = self.context.workspaces.get(&name)?;
        let head = found.head.ok_or_else(|| {
            let message = format!("workspace {name} has no snapshot yet, so there is nothing to clone");
            Error::new(Reason::NotFound, message)
        })?;
        // A name can be given to another workspace later.
        let key = format!("{name}@{}", found.created.0);
        let cache = self.git_cache()?;
        let repository = cache.refresh(&self.context.store, &key, head, progress)?;
        Ok(repository.respond(request)?)
    }

    /// Returns the store's cache of repositories, which the first call opens. Its limits hold for all requests together.
    fn git_cache(&self) -> Result<Arc<GitCache>> {
        let mut opened = self.git.lock();
        if let Some(cache) = &*opened {
            return Ok(Arc::clone(cache));
        }
        let cache = Arc::new(GitCache::open(&self.context.home.git_cache_path(), GitServeLimits::default())?);
        *opened = Some(Arc::clone(&cache));
        Ok(cache)
    }

    /// Removes all exported repositories: they may hold contents that were purged.
    pub(crate) fn clear_served_repositories(&self) -> Result<()> {
        let path = self.context.home.git_cache_path();
        if path.is_dir() {
            self.git_cache()?.clear()?;
        }
        Ok(())
    }
}
