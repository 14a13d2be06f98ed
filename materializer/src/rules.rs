//! Ignore rules: patterns of the settings, and `.amalgamignore` files in the directory itself.
//!
//! Patterns have Git's syntax and meaning: the last match decides, a file deeper in the tree has precedence, `!` includes a name
//! again, and nothing below an excluded directory is visited. Patterns of the settings have the lowest precedence. Without
//! patterns everything is part of the tree.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use amalgam_engine::work::Stat;
use amalgam_engine::{EntryKind, Name, RootId, Store, TreePath, WorkingTree};
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use parking_lot::Mutex;
use rustix::fs::OFlags;

use crate::error::{Error, Result};
use crate::host::{HostDir, Identity, is_absent, open_beneath};
use crate::report::Why;

/// Name of the file with the patterns for its directory and those below.
pub(crate) const RULES_FILE: &[u8] = b".amalgamignore";
/// Bytes of such a file that are used. A pattern may need 400 times its length in memory.
const RULES_FILE_BYTES_MAX: usize = 128 << 10;
/// Longest pattern: the kernel accepts no longer path.
const PATTERN_BYTES_MAX: usize = 4_096;
/// Pattern files of a stored tree that are kept in memory at once.
const TREE_RULES_MAX: usize = 64;

/// Ignore rules of a directory.
#[derive(Clone, Default)]
pub struct Rules {
    fingerprint: [u8; 32],
    settings: Chain,
    ours: Vec<Identity>,
    /// Whether `.amalgamignore` files are files like others.
    skips_files: bool,
}

/// The patterns that apply in a directory, its own first.
#[derive(Clone, Default)]
pub(crate) struct Chain(Option<Arc<Level>>);

struct Level {
    patterns: Gitignore,
    /// Length of the path prefix that its patterns do not see.
    skip: usize,
    above: Chain,
}

impl Rules {
    /// Compiles the patterns of the settings.
    pub fn new(patterns: &[String]) -> Result<Self> {
        let mut hasher = blake3::Hasher::new();
        let mut builder = builder();
        for pattern in patterns {
            if pattern.len() > PATTERN_BYTES_MAX {
                let why = format!("a pattern has {} bytes; {PATTERN_BYTES_MAX} are allowed", pattern.len());
                return Err(Error::Engine(amalgam_engine::Error::Invalid { what: "an ignore pattern", why }));
            }
            hasher.update(&(pattern.len() as u64).to_le_bytes()).update(pattern.as_bytes());
            builder.add_line(None, pattern).map_err(|error| bad(pattern, &error))?;
        }
        let built = builder.build().map_err(|error| bad(&patterns.join(" "), &error))?;
        let fingerprint = *hasher.finalize().as_bytes();
        let settings = Chain::default().and(built, &TreePath::root());
        Ok(Self { fingerprint, settings, ours: Vec::new(), skips_files: false })
    }

    /// Rules that exclude nothing: patterns in `.amalgamignore` files are not used.
    pub fn everything() -> Self {
        Self { skips_files: true, ..Self::default() }
    }

    /// Adds directories that are never entered: the store's own, the runtime directory.
    #[must_use]
    pub fn never(mut self, ours: &[Identity]) -> Self {
        self.ours.extend_from_slice(ours);
        self
    }

    /// Returns a fingerprint of the settings' patterns: a tree captured with others has to be scanned completely.
    pub(crate) fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }

    /// Returns whether the patterns of `.amalgamignore` files are used.
    pub(crate) fn uses_files(&self) -> bool {
        !self.skips_files
    }

    /// Returns the patterns that apply everywhere.
    pub(crate) fn settings(&self) -> Chain {
        self.settings.clone()
    }

    /// Returns whether a directory is one that is never entered.
    pub(crate) fn is_ours(&self, device: u64, inode: u64) -> bool {
        self.ours.iter().any(|ours| ours.device == device && ours.inode == inode)
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules").field("ours", &self.ours).finish_non_exhaustive()
    }
}

impl Chain {
    /// Returns whether there are no patterns.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns whether a directory is excluded. The directories above it are not.
    pub(crate) fn excludes_directory(&self, path: &[u8]) -> bool {
        self.excludes(path, true)
    }

    /// Returns whether a path is excluded. The directories above it are not.
    ///
    /// An `.amalgamignore` file is never excluded: a merge would remove the files that its patterns protect from the other
    /// directory, whose rules do not know these patterns.
    pub(crate) fn excludes(&self, path: &[u8], is_directory: bool) -> bool {
        if !is_directory && path.rsplit(|byte| *byte == b'/').next() == Some(RULES_FILE) {
            return false;
        }
        let mut here = self;
        while let Some(level) = &here.0 {
            let inside = Path::new(OsStr::from_bytes(&path[level.skip..]));
            match level.patterns.matched(inside, is_directory) {
                Match::Ignore(_) => return true,
                Match::Whitelist(_) => return false,
                Match::None => here = &level.above,
            }
        }
        false
    }

    /// Adds the patterns of a directory's own file, which may be missing. Returns them with a reason for a notice.
    pub(crate) fn enter(&self, host: &HostDir, directory: &TreePath) -> (Self, Option<Why>) {
        let text = match read(host, directory) {
            Ok(Some(text)) => text,
            Ok(None) => return (self.clone(), None),
            Err(error) => {
                let why = Why::Failed { action: "read its rules", error: error.to_string() };
                return (self.clone(), Some(why));
            }
        };
        self.and_text(&text, directory)
    }

    /// Adds the patterns of a file's text. Returns them with a reason for a notice.
    fn and_text(&self, text: &[u8], directory: &TreePath) -> (Self, Option<Why>) {
        let mut builder = builder();
        let failed = |error: String| Some(Why::Failed { action: "use all of its rules", error });
        let (text, mut wrong) = match within_bounds(text) {
            Ok(text) => (text, None),
            Err(text) => {
                (text, failed(format!("lines behind {} KiB are not used; shorten it", RULES_FILE_BYTES_MAX >> 10)))
            }
        };
        for (number, line) in String::from_utf8_lossy(text).lines().enumerate() {
            if line.len() > PATTERN_BYTES_MAX {
                let error = format!("line {} is longer than {PATTERN_BYTES_MAX} bytes and is not used", number + 1);
                wrong = failed(error);
            } else if let Err(error) = builder.add_line(None, line) {
                wrong = failed(bad(line, &error).to_string());
            }
        }
        match builder.build() {
            Ok(patterns) => (self.and(patterns, directory), wrong),
            Err(error) => (self.clone(), failed(error.to_string())),
        }
    }

    fn and(&self, patterns: Gitignore, directory: &TreePath) -> Self {
        if patterns.is_empty() {
            return self.clone();
        }
        let skip = if directory.is_root() { 0 } else { directory.as_bytes().len() + 1 };
        Self(Some(Arc::new(Level { patterns, skip, above: self.clone() })))
    }
}

/// The ignore rules of a stored tree: patterns of the settings, and its own `.amalgamignore` files. They tell an excluded path
/// from one that did not exist.
pub struct TreeRules {
    tree: WorkingTree,
    settings: Chain,
    uses_files: bool,
    /// Cached patterns by directory.
    chains: Mutex<HashMap<TreePath, Chain>>,
    /// Number of pattern files in `chains`.
    read: AtomicUsize,
}

impl TreeRules {
    /// Reads the rules of a tree as they are needed.
    pub fn new(store: &Store, root: RootId, rules: &Rules) -> Result<Self> {
        let tree = WorkingTree::open_root(store, root)?;
        let (settings, uses_files) = (rules.settings(), rules.uses_files());
        Ok(Self { tree, settings, uses_files, chains: Mutex::default(), read: AtomicUsize::new(0) })
    }

    /// Returns whether a path, or a directory above it, is excluded.
    pub fn excludes_at_any_depth(&self, path: &TreePath, is_directory: bool) -> Result<bool> {
        for ancestor in path.ancestors() {
            if self.excludes(&ancestor, is_directory || ancestor != *path)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns whether a path is excluded. The caller has checked the directories above it.
    pub(crate) fn excludes(&self, path: &TreePath, is_directory: bool) -> Result<bool> {
        let Some((directory, _)) = path.split_last() else { return Ok(false) };
        let chain = self.chain(&directory)?;
        Ok(!chain.is_empty() && chain.excludes(path.as_bytes(), is_directory))
    }

    fn chain(&self, directory: &TreePath) -> Result<Chain> {
        if !self.uses_files {
            return Ok(self.settings.clone());
        }
        if let Some(chain) = self.chains.lock().get(directory) {
            return Ok(chain.clone());
        }
        let mut chain = self.settings.clone();
        let mut above = TreePath::root();
        let names: Vec<_> = directory.names().collect();
        let rules_file = Name::new(RULES_FILE).expect("a name");
        for depth in 0..=names.len() {
            let file = above.join(&rules_file);
            let is_file = |stat: Stat| stat.kind == EntryKind::File;
            // A purged or damaged file has no patterns.
            if self.tree.stat(file.as_bytes())?.is_some_and(is_file)
                && let Ok(text) = self.tree.read_at(file.as_bytes(), 0, RULES_FILE_BYTES_MAX + 1)
            {
                self.read.fetch_add(1, Ordering::Relaxed);
                chain = chain.and_text(&text, &above).0;
            }
            if let Some(name) = names.get(depth) {
                above = above.join(name);
            }
        }
        let mut chains = self.chains.lock();
        if self.read.load(Ordering::Relaxed) > TREE_RULES_MAX {
            self.read.store(0, Ordering::Relaxed);
            chains.clear();
        }
        chains.insert(directory.clone(), chain.clone());
        Ok(chain)
    }
}

/// Returns the text, or as `Err` the complete lines of its usable part if it is too long.
fn within_bounds(text: &[u8]) -> Result<&[u8], &[u8]> {
    if text.len() <= RULES_FILE_BYTES_MAX {
        return Ok(text);
    }
    let text = &text[..RULES_FILE_BYTES_MAX];
    let end = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    Err(&text[..end])
}

fn builder() -> GitignoreBuilder {
    // Paths are relative to the directory of the patterns, so there is no prefix to strip.
    GitignoreBuilder::new(".")
}

fn bad(pattern: &str, error: &ignore::Error) -> Error {
    let why = format!("`{pattern}`: {error}");
    Error::Engine(amalgam_engine::Error::Invalid { what: "an ignore pattern", why })
}

fn read(host: &HostDir, directory: &TreePath) -> std::io::Result<Option<Vec<u8>>> {
    let mut path = directory.as_bytes().to_vec();
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(RULES_FILE);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match open_beneath(host.handle(), &path, flags) {
        Ok(file) => std::fs::File::from(file),
        Err(error) if is_absent(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    if !file.metadata()?.is_file() {
        return Ok(None);
    }
    let mut text = Vec::new();
    file.take(RULES_FILE_BYTES_MAX as u64 + 1).read_to_end(&mut text)?;
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> TreePath {
        TreePath::new(text).expect("a path")
    }

    #[test]
    fn a_bad_pattern_is_named() {
        let error = Rules::new(&["*.log".to_owned(), "a{b".to_owned()]).expect_err("it is bad");
        assert!(error.to_string().contains("a{b"), "{error}");
    }

    #[test]
    fn deeper_patterns_decide_first() {
        let rules = Rules::new(&["*.log".to_owned(), "/top".to_owned(), "dir/".to_owned()]).expect("good");
        let outer = rules.settings();
        assert!(outer.excludes(b"x.log", false) && outer.excludes(b"a/b/x.log", false));
        assert!(outer.excludes(b"top", false) && !outer.excludes(b"a/top", false));
        assert!(outer.excludes(b"a/dir", true) && !outer.excludes(b"a/dir", false));
        let mut builder = builder();
        builder.add_line(None, "!keep.log").expect("good");
        builder.add_line(None, "/own").expect("good");
        let inner = outer.and(builder.build().expect("good"), &path("a"));
        assert!(!inner.excludes(b"a/keep.log", false) && inner.excludes(b"a/other.log", false));
        assert!(inner.excludes(b"a/own", false) && !inner.excludes(b"a/b/own", false));
    }
}
