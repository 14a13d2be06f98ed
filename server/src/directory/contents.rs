//! A tree in which some files have other contents, for a restore of parts of files.

use amalgam_engine::object::Node;
use amalgam_engine::{Error, Pin, RootId, TreePath, WorkingTree, entry_at};
use amalgam_proto::{Failure, Reason, v1};

use crate::failure::{Result, of_engine};
use crate::service::Service;

impl Service {
    /// A tree with other contents in some of its files, kept in the store for as long as the pin lives.
    pub(crate) fn with_contents(&self, root: RootId, contents: &[v1::FileContents]) -> Result<(RootId, Pin)> {
        let store = &self.inner.store;
        if contents.is_empty() {
            return Ok((root, store.pin(root)));
        }
        let session = store.session();
        let stored = store.root(root).map_err(of_engine)?;
        let mut tree = WorkingTree::open_root(store, root).map_err(of_engine)?;
        tree.set_now(self.now());
        for file in contents {
            let path = TreePath::new(&file.path).map_err(|source| of_engine(source.into()))?;
            match entry_at(store, &stored, &path).map_err(of_engine)?.map(|entry| entry.node) {
                Some(Node::File { .. }) => tree.write(&path, &file.data).map_err(of_engine)?,
                Some(_) => return Err(Failure::new(Reason::Invalid, format!("{path} is not a file"))),
                None => return Err(of_engine(Error::NotFound { path })),
            }
        }
        let root = tree.freeze().write(&session).map_err(of_engine)?;
        session.write_all_ahead().map_err(of_engine)?;
        Ok((root, store.hold(root).map_err(of_engine)?))
    }
}
