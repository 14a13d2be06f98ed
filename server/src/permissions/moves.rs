//! Which entries a merge moves along with a renamed directory: those that the same rules apply to at both paths.

use std::sync::Arc;

use amalgam_engine::TreePath;
use amalgam_engine::merge::AdmitMove;
use amalgam_policy::{MoveGuard, Policy};

use super::Permissions;
use crate::error::Result;

/// Admits moves that change the rights of no agent.
#[derive(Debug)]
struct SameRules(MoveGuard);

impl AdmitMove for SameRules {
    fn admits(&self, from: &TreePath, to: &TreePath) -> bool {
        self.0.is_same(from.as_bytes(), to.as_bytes())
    }

    fn admits_below(&self, from: &TreePath, to: &TreePath) -> bool {
        self.0.is_same_below(from.as_bytes(), to.as_bytes())
    }
}

/// Returns which entries follow a renamed directory under a policy.
pub(crate) fn moves_of(policy: &Arc<Policy>) -> Arc<dyn AdmitMove> {
    Arc::new(SameRules(MoveGuard::new(Arc::clone(policy))))
}

impl Permissions {
    /// Returns which entries follow a renamed directory; all of them without a policy.
    pub(crate) fn moves(&self) -> Result<Option<Arc<dyn AdmitMove>>> {
        Ok(self.policy()?.as_ref().map(moves_of))
    }
}
