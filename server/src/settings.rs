//! What a store's user has set about room: how long things are kept, and how much they may take. Where it is written is not known here.

use std::collections::BTreeMap;
use std::sync::Arc;

use amalgam_gc::LogRule;
use amalgam_gc::retention::{Policies, Span};

use crate::failure::Result;

/// What a user has set about room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// For how long a collection keeps what can be undone.
    pub grace: Span,
    /// What is kept of the log of operations.
    pub log: LogRule,
    /// What is kept of histories.
    pub policies: Policies,
    /// The most that the store may take on the disk.
    pub budget_bytes: Option<u64>,
    /// The free space below which nothing is committed; without one a GiB or a hundredth of the disk, whichever is less.
    pub floor_bytes: Option<u64>,
    /// The most that the files of a workspace may hold.
    pub quota_bytes: Option<u64>,
    /// The same for some workspaces, by name.
    pub quotas_bytes: BTreeMap<String, u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            grace: Span::hours(24),
            log: LogRule::default(),
            policies: Policies::default(),
            budget_bytes: None,
            floor_bytes: None,
            quota_bytes: None,
            quotas_bytes: BTreeMap::new(),
        }
    }
}

/// Where the settings of the moment come from.
pub type SettingsSource = Arc<dyn Fn() -> Result<Settings> + Send + Sync>;
