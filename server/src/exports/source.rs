//! Opens the tree of an export for the NFS server.

use std::path::PathBuf;
use std::sync::Arc;

use amalgam_nfs::ViewSource;
use amalgam_proto::Reason;
use amalgam_view::{Error as ViewError, View};

use crate::call_log::warn_failure;
use crate::context::Context;
use crate::views::Views;

/// The tree of one export.
pub(super) struct ExportSource {
    context: Arc<Context>,
    views: Views,
    number: u64,
    /// The file that stores the handles of a snapshot's files.
    handles: PathBuf,
}

impl ExportSource {
    pub(super) fn new(context: &Arc<Context>, views: &Views, number: u64, handles: PathBuf) -> Self {
        Self { context: Arc::clone(context), views: views.clone(), number, handles }
    }
}

impl ViewSource for ExportSource {
    fn open(&self) -> Result<View, ViewError> {
        let _using = self.context.using();
        self.views.open_export(self.number, &self.handles).map_err(|failure| {
            warn_failure(&failure, "the tree of an export could not be opened");
            match failure.reason() {
                Reason::NotFound | Reason::Purged => ViewError::Stale(0),
                Reason::Corrupt | Reason::Full | Reason::Fault => ViewError::Journal(failure.to_string()),
                // The client retries: the process is ending, or another call holds the workspace.
                _ => ViewError::Locked,
            }
        })
    }
}
