//! The settings of a store's user: retention, limits, and local paths of mounts. Where they are
//! stored is not known here.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use amalgam_engine::TreePath;
use amalgam_gc::LogRetention;
use amalgam_gc::retention::{Policies, Span};

use crate::error::Result;

/// The settings of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// For how long a collection keeps what can be undone.
    pub grace: Span,
    /// The retention of the operation log.
    pub log: LogRetention,
    /// The retention of histories.
    pub policies: Policies,
    /// The most that the store may take on the disk.
    pub budget_bytes: Option<u64>,
    /// The free space below which nothing is committed; without one a GiB or a hundredth of the disk, whichever is less.
    pub floor_bytes: Option<u64>,
    /// The most that a workspace may add to the store.
    pub quota_bytes: Option<u64>,
    /// The values of single workspaces, by name.
    pub quotas_bytes: BTreeMap<String, u64>,
    /// Whether restores, undo and redo write into `.git`, too.
    pub include_git: bool,
    /// The values of single workspaces, by name.
    pub include_git_of: BTreeMap<String, bool>,
    /// Paths in every mounted workspace that are kept out of its snapshots.
    pub local: BTreeSet<TreePath>,
    /// How commands of tests and rules are started.
    pub commands: CommandSettings,
}

/// How commands of tests and rules are started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandSettings {
    /// The whole environment of a test. Commands of rules have one of their own.
    pub environment: BTreeMap<OsString, OsString>,
    /// The program, with its first arguments, that runs a command and then ends everything that the command started. Without one
    /// the process group of the command is ended.
    pub supervisor: Vec<OsString>,
    /// Directories that commands of rules can read and run programs from, beside those of the system.
    pub toolchain: Vec<PathBuf>,
}

impl Default for CommandSettings {
    fn default() -> Self {
        let path = ("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into());
        Self { environment: BTreeMap::from([path]), supervisor: Vec::new(), toolchain: Vec::new() }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            grace: Span::hours(24),
            log: LogRetention::default(),
            policies: Policies::default(),
            budget_bytes: None,
            floor_bytes: None,
            quota_bytes: None,
            quotas_bytes: BTreeMap::new(),
            include_git: false,
            include_git_of: BTreeMap::new(),
            local: BTreeSet::new(),
            commands: CommandSettings::default(),
        }
    }
}

impl Settings {
    /// Returns whether restores, undo and redo in a workspace also write into `.git`.
    pub fn includes_git(&self, workspace: &str) -> bool {
        self.include_git_of.get(workspace).copied().unwrap_or(self.include_git)
    }
}

/// A function that returns the current settings.
pub type SettingsSource = Arc<dyn Fn() -> Result<Settings> + Send + Sync>;

/// Parses paths that are kept out of snapshots. The error is a message for the user.
pub fn local_paths<W: AsRef<[u8]>>(
    words: impl IntoIterator<Item = W>,
) -> std::result::Result<BTreeSet<TreePath>, String> {
    let mut paths = BTreeSet::new();
    for word in words {
        let word = word.as_ref();
        let shown = String::from_utf8_lossy(word);
        if word.is_empty() || word == b"." {
            return Err("the root cannot be local: everything would be kept out of snapshots".to_owned());
        }
        let path = TreePath::new(word).map_err(|why| {
            format!("`{shown}` cannot be local: {why}; name one directory from the root of the workspace, as in web/node_modules")
        })?;
        paths.insert(path);
    }
    for (one, other) in paths.iter().zip(paths.iter().skip(1)) {
        // What lies below a path follows it at once.
        if other.below(one).is_some() {
            return Err(format!("{other} lies in {one}, which is local already; leave it out"));
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_paths_are_relative_plain_and_apart() {
        let good = local_paths(["target", "web/node_modules", "target"]).expect("good");
        assert_eq!(good.into_iter().map(|path| path.to_string()).collect::<Vec<_>>(), ["target", "web/node_modules"]);
        for wrong in
            [&[""][..], &["."], &["/target"], &["a/../b"], &[".."], &["a//b"], &["a", "a/b"], &["a/b", "a-b", "a"]]
        {
            assert!(local_paths(wrong).is_err(), "{wrong:?}");
        }
    }
}
