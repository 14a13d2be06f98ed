//! A note that a directory is being written, so that the leftovers of a process that died are found and removed.
//!
//! A checkout writes files under temporary names and moves them into place. If it is killed in between, it leaves such a name
//! behind. The note has the token of the checkout, which all these names contain, and lists the directories where they can be; the
//! next call that locks the directory removes the leftovers.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use amalgam_engine::TreePath;
use amalgam_materializer::{Staging, clean_leftovers};

use super::Directories;
use super::LockedDirectory;
use crate::call_log::warn_failure;
use crate::error::{Error, Result};

/// The prefix of the first part of a note; the token follows.
const TOKEN: &[u8] = b"token ";

/// The note of a running checkout, which is removed on drop.
pub(super) struct Writing(PathBuf);

impl Drop for Writing {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl Directories {
    /// Writes the note that a checkout will write names in these directories.
    pub(super) fn writing(&self, id: &str, staging: &Staging<'_>, directories: &BTreeSet<TreePath>) -> Result<Writing> {
        let file = self.context.registry.writing_file(id);
        let token = [TOKEN, staging.token().as_bytes()].concat();
        // No name contains a NUL.
        let parts = std::iter::once(&token[..]).chain(directories.iter().map(TreePath::as_bytes));
        let text: Vec<_> = parts.collect();
        fs::write(&file, text.join(&0)).map_err(Error::io("note that a directory is written to"))?;
        Ok(Writing(file))
    }

    /// Removes the leftovers of a checkout whose process died. If some stay, for example in a directory that cannot be read, the
    /// note stays as well, and the next call tries again.
    pub(super) fn remove_leftovers(&self, locked: &LockedDirectory) {
        let file = self.context.registry.writing_file(&locked.record.id);
        let Ok(noted) = fs::read(&file) else { return };
        let mut parts = noted.split(|byte| *byte == 0);
        let token = parts.next().and_then(|part| part.strip_prefix(TOKEN)).map(String::from_utf8_lossy);
        if let Some(token) = token {
            let paths: Vec<_> = parts.filter_map(|path| TreePath::new(path).ok()).collect();
            if let Err(error) = clean_leftovers(&locked.host, &paths, &token) {
                return warn_failure(&error.into(), "temporary files of a checkout were not removed");
            }
        }
        let _ = fs::remove_file(file);
    }
}
