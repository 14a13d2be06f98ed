//! Reads workspaces from the store.

use amalgam_proto::v1;

use crate::connect::Client;
use crate::error::CliError;
use crate::session::missing_field;

/// Workspaces that one call returns.
const PAGE_SIZE: i32 = 500;

/// Returns a workspace by its resource name.
pub async fn workspace(client: &mut Client, name: &str) -> Result<v1::Workspace, CliError> {
    let request = v1::GetWorkspaceRequest { name: name.to_owned() };
    let found = client.workspaces.get_workspace(request).await?.into_inner();
    found.workspace.ok_or_else(|| missing_field("workspace"))
}

/// Returns all workspaces whose names start with a prefix.
pub async fn workspaces(client: &mut Client, prefix: &str) -> Result<Vec<v1::Workspace>, CliError> {
    let mut request =
        v1::ListWorkspacesRequest { prefix: prefix.to_owned(), page_size: PAGE_SIZE, page_token: String::new() };
    let mut all = Vec::new();
    loop {
        let page = client.workspaces.list_workspaces(request.clone()).await?.into_inner();
        all.extend(page.workspaces);
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            return Ok(all);
        }
    }
}
