//! An entry of a directory, as JSON.

use std::collections::{BTreeMap, HashMap};
use std::ffi::CStr;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use serde_json::{Value, json};

use super::Result;
use super::failure::Failure;

/// Extended attributes that begin so are metadata of a file.
pub(crate) const METADATA: &str = "user.metadata.";
/// The most bytes of names and of one value of metadata.
const ATTRIBUTES_BYTES_MAX: usize = 64 << 10;

/// Names of users and groups by number.
pub(crate) struct Names {
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

impl Names {
    pub(crate) fn load() -> Self {
        let of = |path: &str| parse(&fs::read_to_string(path).unwrap_or_default());
        Self { users: of("/etc/passwd"), groups: of("/etc/group") }
    }
}

/// Reads lines of `name:x:number:...`.
fn parse(text: &str) -> HashMap<u32, String> {
    let line = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        Some((fields.nth(1)?.parse().ok()?, name))
    };
    text.lines().filter_map(line).collect()
}

/// Describes the entry at a path. The type of a symlink is that of its target.
pub(crate) fn entry(path: &Path, names: &Names) -> Result<Value> {
    let found = fs::symlink_metadata(path).map_err(Failure::at(path))?;
    let is_link = found.is_symlink();
    let target = if is_link { fs::metadata(path).ok() } else { None };
    let shown = target.as_ref().unwrap_or(&found);
    let kind = match shown.file_type() {
        kind if kind.is_dir() => "directory",
        kind if kind.is_symlink() => "symlink",
        _ => "file",
    };
    let name = |numbers: &HashMap<u32, String>, number: u32| {
        numbers.get(&number).cloned().unwrap_or_else(|| number.to_string())
    };
    let leads_to = if is_link { fs::canonicalize(path).or_else(|_| fs::read_link(path)).ok() } else { None };
    Ok(json!({
        "name": path.file_name().map_or_else(|| "/".into(), |name| name.to_string_lossy()),
        "type": kind,
        "path": path.to_string_lossy(),
        "size": shown.len(),
        "mode": found.mode() & 0o7777,
        "permissions": permissions(found.mode()),
        "owner": name(&names.users, found.uid()),
        "group": name(&names.groups, found.gid()),
        "seconds": found.mtime(),
        "nanoseconds": found.mtime_nsec(),
        "isSymlink": is_link,
        "target": leads_to.map(|target| target.to_string_lossy().into_owned()),
        "metadata": metadata(path),
    }))
}

/// Formats the permissions as `ls -l` does, except that a symlink begins with `L`, and set-ID and sticky bits are not shown.
fn permissions(mode: u32) -> String {
    let kind = match mode & 0o170_000 {
        0o040_000 => 'd',
        0o120_000 => 'L',
        _ => '-',
    };
    let bits = (0..9).rev().map(|bit| match mode & (1 << bit) != 0 {
        true => ['x', 'w', 'r'][bit % 3],
        false => '-',
    });
    std::iter::once(kind).chain(bits).collect()
}

/// Reads the metadata of a file from its extended attributes. Returns an empty map if the file system has none.
fn metadata(path: &Path) -> BTreeMap<String, String> {
    let mut list = vec![0; ATTRIBUTES_BYTES_MAX];
    let Ok(length) = rustix::fs::llistxattr(path, &mut list[..]) else { return BTreeMap::new() };
    let mut found = BTreeMap::new();
    for name in list[..length].split_inclusive(|byte| *byte == 0) {
        let Some(name) = CStr::from_bytes_with_nul(name).ok().and_then(|name| name.to_str().ok()) else { continue };
        let Some(key) = name.strip_prefix(METADATA) else { continue };
        let mut value = vec![0; ATTRIBUTES_BYTES_MAX];
        if let Ok(length) = rustix::fs::lgetxattr(path, name, &mut value[..]) {
            found.insert(key.to_owned(), String::from_utf8_lossy(&value[..length]).into_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_shown_like_ls_does() {
        assert_eq!(permissions(0o100_644), "-rw-r--r--");
        assert_eq!(permissions(0o040_755), "drwxr-xr-x");
        assert_eq!(permissions(0o120_777), "Lrwxrwxrwx");
    }

    #[test]
    fn a_link_has_the_type_of_what_it_leads_to_and_a_broken_one_is_a_link() {
        let directory = std::env::temp_dir().join(format!("amalgam-entry-{}", std::process::id()));
        fs::create_dir(&directory).expect("made");
        std::os::unix::fs::symlink(&directory, directory.join("link")).expect("made");
        std::os::unix::fs::symlink("nowhere", directory.join("broken")).expect("made");
        let names = Names::load();
        let link = entry(&directory.join("link"), &names).expect("there");
        assert_eq!((&link["type"], &link["isSymlink"]), (&json!("directory"), &json!(true)));
        let broken = entry(&directory.join("broken"), &names).expect("there");
        assert_eq!((&broken["type"], &broken["target"]), (&json!("symlink"), &json!("nowhere")));
        assert_eq!(entry(&directory.join("none"), &names).expect_err("gone").code, "not_found");
        fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    fn names_of_users_are_read_and_malformed_lines_are_left_out() {
        let names = parse("root:x:0:0::/:/bin/sh\nbroken\nx:y:z\nsandbox:x:1000:1000\n");
        assert_eq!(names.get(&0).map(String::as_str), Some("root"));
        assert_eq!(names.get(&1_000).map(String::as_str), Some("sandbox"));
        assert_eq!(names.len(), 2);
    }
}
