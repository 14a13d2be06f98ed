//! What a face says beside the versions: whose they are, and the structure by which the file is read.

use std::sync::OnceLock;

use amalgam_engine::TreePath;
use amalgam_engine::object::Conflict;
use amalgam_merge::rules::Content;
use amalgam_merge::{Rules, Way};

/// How a conflict is captioned. It changes how the conflict looks, never what it is.
#[derive(Clone, Debug, Default)]
pub struct Caption {
    /// The names of the workspaces whose versions compete, in the order of the terms; empty where one is not known.
    pub names: Vec<String>,
    /// The way in which the file is merged; markers follow its structure if it has one.
    pub way: Option<Way>,
}

/// Captions the conflict at a path.
pub type Captions<'a> = &'a dyn Fn(&TreePath, &Conflict) -> Caption;

impl Caption {
    /// The caption of a path by the rules that are built in, without names.
    pub fn of(path: &TreePath) -> Self {
        static RULES: OnceLock<Rules> = OnceLock::new();
        let rules = RULES.get_or_init(Rules::built_in);
        Self { names: Vec::new(), way: rules.choose(path.as_bytes(), Content::Text).cloned() }
    }
}

/// Captions without names, by the rules that are built in.
pub(crate) fn plain(path: &TreePath, _: &Conflict) -> Caption {
    Caption::of(path)
}
