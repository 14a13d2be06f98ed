//! Checks whether the file system of a directory can clone files (reflinks), by cloning a small file.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::fs::ioctl_ficlone;

/// Returns whether files can be cloned at a path that may not exist yet.
pub fn can_clone(path: &Path) -> bool {
    nearest_directory(path).is_some_and(|place| try_clone_in(&place).unwrap_or(false))
}

/// Clones a small file in a directory and removes both files. Returns whether that works.
pub fn try_clone_in(place: &Path) -> std::io::Result<bool> {
    let name = |part: &str| place.join(format!(".amalgam-doctor-{}-{part}", std::process::id()));
    let (from, to) = (name("from"), name("to"));
    let tried = try_clone(&from, &to);
    for path in [&from, &to] {
        // A file that was not created cannot be removed.
        drop(fs::remove_file(path));
    }
    tried
}

fn try_clone(from: &Path, to: &Path) -> std::io::Result<bool> {
    fs::write(from, [7; 4_096])?;
    let (source, target) = (File::open(from)?, File::create(to)?);
    Ok(ioctl_ficlone(&target, &source).is_ok())
}

/// Returns the path itself or the nearest directory above it that exists.
pub fn nearest_directory(path: &Path) -> Option<PathBuf> {
    path.ancestors().find(|path| path.is_dir()).map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_not_there_yet_is_judged_by_the_directory_above_it() {
        let around = std::env::temp_dir();
        assert_eq!(nearest_directory(&around.join("amalgam-not-there/store")), Some(around));
    }
}
