//! A note that a directory is being written to, so that what a process that died leaves there is found and removed.
//!
//! A checkout writes files under names of its own and moves them into place. Killed in between, it leaves such a name behind. The
//! note lists the directories where that can be; whoever takes hold of the directory next removes what is left.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use amalgam_engine::TreePath;
use amalgam_materializer::clean_leftovers;

use super::Grasp;
use crate::failure::{Result, of_io, of_materializer};
use crate::service::Service;

/// The note, until it is dropped.
pub(super) struct Writing(PathBuf);

impl Drop for Writing {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl Service {
    /// Notes that names in these directories will be written.
    pub(super) fn writing(&self, id: &str, directories: &BTreeSet<TreePath>) -> Result<Writing> {
        let file = self.inner.registry.writing_file(id);
        // No name holds a NUL.
        let text: Vec<_> = directories.iter().map(TreePath::as_bytes).collect();
        fs::write(&file, text.join(&0)).map_err(|source| of_io("note that a directory is written to", &source))?;
        Ok(Writing(file))
    }

    /// Removes what a checkout left that did not come to its end.
    pub(super) fn clean_up_after_the_dead(&self, grasp: &Grasp) -> Result<()> {
        let file = self.inner.registry.writing_file(&grasp.record.id);
        let Ok(noted) = fs::read(&file) else { return Ok(()) };
        let paths = noted.split(|byte| *byte == 0).filter_map(|path| TreePath::new(path).ok());
        clean_leftovers(&grasp.host, &paths.collect::<Vec<_>>()).map_err(of_materializer)?;
        let _ = fs::remove_file(file);
        Ok(())
    }
}
