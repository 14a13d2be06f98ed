//! Templates of sandboxes: those of the runtimes, labels below `templates/`, and any snapshot.

use amalgam_proto::{Failure, Reason, v1};
use amalgam_sandbox::SandboxError;
use tonic::{Code, Status};

use super::workspace::StoreCalls;
use super::{Sandboxes, sandbox_status};

/// Prefix of labels that are templates.
const LABELS: &str = "templates/";
/// Prefix of a template that names any snapshot.
const SNAPSHOT: &str = "snapshot:";

impl Sandboxes {
    /// Returns the revision with the root directory of a template, or `None` if the template is no snapshot.
    pub(super) async fn root_of(&self, calls: &StoreCalls, name: &str) -> Result<Option<String>, Status> {
        if let Some(revision) = name.strip_prefix(SNAPSHOT) {
            return Ok(Some(revision.to_owned()));
        }
        let label = format!("{LABELS}{name}");
        let found = calls.labels(&label).await?.into_iter().any(|found| label_id(&found) == label);
        Ok(Some(label).filter(|_| found && !name.is_empty()))
    }

    /// Lists the templates of all runtimes, and the labels of a project that are templates.
    pub(super) async fn all_templates(&self, calls: &StoreCalls) -> Result<Vec<v1::Template>, Status> {
        let mut all = Vec::new();
        for slot in &self.parts()?.runtimes {
            all.extend(slot.runtime.templates().await.into_iter().map(|template| v1::Template {
                name: template.name,
                description: template.description,
                tags: template.tags,
                snapshot: String::new(),
            }));
        }
        for label in calls.labels(LABELS).await? {
            let name = label_id(&label).strip_prefix(LABELS).unwrap_or_default().to_owned();
            let description = format!("the files of the label {}", label_id(&label));
            all.push(v1::Template { name, description, tags: vec!["snapshot".to_owned()], snapshot: label.snapshot });
        }
        Ok(all)
    }
}

/// Returns the name of a label without `labels/`.
fn label_id(label: &v1::Label) -> &str {
    label.name.strip_prefix("labels/").unwrap_or(&label.name)
}

/// Converts a status of a missing snapshot to that of a missing template. Other statuses stay as they are.
pub(super) fn no_snapshot(name: &str, status: Status) -> Status {
    let is_missing = Failure::of_status(&status).is_some_and(|failure| failure.reason == Reason::NotFound);
    match is_missing || status.code() == Code::NotFound {
        true => sandbox_status(&SandboxError::NoTemplate(name.to_owned())),
        false => status,
    }
}
