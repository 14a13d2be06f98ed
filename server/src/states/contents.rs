//! A tree in which some files have other contents, for a restore of parts of files.

use amalgam_engine::object::Node;
use amalgam_engine::{Error as EngineError, Pin, RootId, TreePath, WorkingTree, entry_at};
use amalgam_proto::{Reason, v1};

use super::States;
use crate::error::{Error, Result};

impl States {
    /// Writes a tree with other contents in some of its files. The pin keeps the tree in the store.
    pub(crate) fn with_contents(&self, root: RootId, contents: &[v1::FileContents]) -> Result<(RootId, Pin)> {
        let store = &self.context.store;
        if contents.is_empty() {
            return Ok((root, store.pin(root)));
        }
        let session = store.session();
        let stored = store.root(root)?;
        let mut tree = WorkingTree::open_root(store, root)?;
        tree.set_now(self.context.now());
        for file in contents {
            let path = TreePath::new(&file.path)?;
            match entry_at(store, &stored, &path)?.map(|entry| entry.node) {
                Some(Node::File { .. }) => tree.write(&path, &file.data)?,
                Some(_) => return Err(Error::new(Reason::Invalid, format!("{path} is not a file"))),
                None => return Err(EngineError::NotFound { path }.into()),
            }
        }
        let root = tree.freeze().write(&session)?;
        session.write_all_ahead()?;
        Ok((root, store.hold(root)?))
    }
}
