//! The message of a workspace, with its directories, its live tree and its mounts.

use amalgam_engine::workspace::WorkspaceName;
use amalgam_proto::v1;

use super::Views;
use crate::error::Result;
use crate::messages::path_bytes;

impl Views {
    /// Returns the message of a workspace. A caller from the network does not get directories, live tree and mounts.
    pub(crate) fn workspace_message(&self, name: &WorkspaceName) -> Result<v1::Workspace> {
        let workspace = self.context.workspaces.get(name)?;
        let moved = self.context.store.last_move(&name.reference())?;
        let text = name.as_str();
        let here = self.context.registry.all().into_iter().filter(|record| record.workspace == text);
        let directories = here.map(|record| v1::WorkspaceDirectory {
            name: amalgam_proto::directory_name(&record.id),
            path: path_bytes(&record.path),
        });
        let (live, mounts) = self.live_of(name);
        let is_shown = !crate::call_log::is_from_network();
        let publishing = self.publishing.publishing_message(&workspace)?;
        let mut following = self.context.following.following_message(&workspace);
        // The reason may name paths that only the agent of the source can see.
        if let Some(last) = following.as_mut().and_then(|following| following.last.as_mut())
            && self.context.permissions.reading(None)?.hides()
        {
            last.reason.clear();
        }
        Ok(v1::Workspace {
            name: amalgam_proto::workspace_name(name),
            head: workspace.head.map(amalgam_proto::snapshot_name).unwrap_or_default(),
            base: workspace.base.map(amalgam_proto::snapshot_name).unwrap_or_default(),
            agent: workspace.agent,
            project: workspace.project,
            create_time: Some(amalgam_proto::timestamp(workspace.created)),
            etag: moved.to_string(),
            directories: directories.filter(|_| is_shown).collect(),
            live: if is_shown { live } else { String::new() },
            mounts: if is_shown { mounts } else { Vec::new() },
            target: workspace.target.as_ref().map(amalgam_proto::workspace_name).unwrap_or_default(),
            publishing,
            following,
        })
    }
}
