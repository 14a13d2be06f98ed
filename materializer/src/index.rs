//! What a directory held when it was last looked at.

use std::collections::BTreeMap;

use amalgam_engine::{RootId, TreePath};

use crate::host::Identity;
use crate::stamp::Stamp;

/// A stored tree, and for each of its names what the host said of it.
#[derive(Debug)]
pub struct Index {
    identity: Identity,
    root: Option<RootId>,
    stamps: BTreeMap<TreePath, Stamp>,
}

impl Index {
    /// Nothing known yet.
    pub fn new(identity: Identity) -> Self {
        Self { identity, root: None, stamps: BTreeMap::new() }
    }

    /// The directory it is of.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// The stored tree it describes.
    pub fn root(&self) -> Option<RootId> {
        self.root
    }

    /// What the host said of a path.
    pub fn stamp(&self, path: &TreePath) -> Option<Stamp> {
        self.stamps.get(path).copied()
    }
}
