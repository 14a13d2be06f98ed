//! Labels of a rendered conflict: the workspaces of its versions, and the merge strategy whose structure the markers follow.

use std::sync::OnceLock;

use amalgam_engine::TreePath;
use amalgam_engine::object::Conflict;
use amalgam_merge::rules::Content;
use amalgam_merge::{MergeStrategy, Rules};

/// The labels and the strategy for rendering a conflict. They change its appearance, never the conflict itself.
#[derive(Clone, Debug, Default)]
pub struct Caption {
    /// The workspace names of the competing versions, in the order of the terms; empty for an unknown one.
    pub names: Vec<String>,
    /// The merge strategy of the file. If it is structural, the markers follow the structure.
    pub strategy: Option<MergeStrategy>,
}

/// Returns the caption for the conflict at a path.
pub type Captions<'a> = &'a dyn Fn(&TreePath, &Conflict) -> Caption;

impl Caption {
    /// Returns the caption of a path by the built-in rules, without names.
    pub fn of(path: &TreePath) -> Self {
        static RULES: OnceLock<Rules> = OnceLock::new();
        let rules = RULES.get_or_init(Rules::built_in);
        Self { names: Vec::new(), strategy: rules.choose(path.as_bytes(), Content::Text).cloned() }
    }
}

/// Returns captions without names, by the built-in rules.
pub(crate) fn by_built_in_rules(path: &TreePath, _: &Conflict) -> Caption {
    Caption::of(path)
}
