//! The Linux source tree, as data.

use std::path::PathBuf;

use crate::Result;

/// Where `scripts/setup bench` has put it.
pub fn tree() -> Result<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").filter(|cache| !cache.is_empty()).map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let tree = cache.ok_or("neither XDG_CACHE_HOME nor HOME is set")?.join("amalgam/linux-6.1");
    if tree.is_dir() { Ok(tree) } else { Err("the Linux tree is missing: run scripts/setup bench".into()) }
}
