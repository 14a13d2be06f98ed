//! The changes of a directory as a short list: a directory that is new, gone or renamed as a whole is one line, and what lies in a
//! `.git` is counted.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use amalgam_proto::v1;

use crate::text;

/// A line of the listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The letter of the kind of change.
    pub letter: char,
    /// The changed path or directory, as it is printed.
    pub text: String,
}

/// The changes of a directory, folded.
#[derive(Debug, Default)]
pub struct Changes {
    /// The short list.
    pub folded: Vec<Line>,
    /// Every path, those in `.git` too.
    pub every_path: Vec<Line>,
    /// Number of changed paths in each `.git`.
    pub git: BTreeMap<Vec<u8>, u64>,
    /// Number of changed files outside of `.git`; a directory counts if nothing in it does.
    pub count: u64,
}

impl Changes {
    /// Folds the paths of a status into the lines of the listing.
    pub fn new(status: &v1::DirectoryStatus) -> Self {
        let mut changes = Self { every_path: every_path(status), ..Self::default() };
        for path in [&status.modified, &status.added, &status.deleted].into_iter().flatten() {
            if let Some(git) = text::git_part(path) {
                *changes.git.entry(git.to_vec()).or_default() += 1;
            }
        }
        let attributes: HashSet<&[u8]> = status.attributes.iter().map(|path| &path[..]).collect();
        for path in outside_git(&status.modified) {
            let letter = if attributes.contains(path) { 'm' } else { 'M' };
            changes.push(letter, text::path(path).into_owned(), 1);
        }
        let sides = Sides::new(status);
        let mut renames: Vec<_> = status.renamed.iter().map(|one| (&one.from_path[..], &one.path[..])).collect();
        renames.retain(|(from, to)| text::git_part(from).is_none() && text::git_part(to).is_none());
        let covered = changes.fold_renames(&sides, &renames);
        changes.fold_side('A', &sides.added, &sides.directories, &covered.to);
        changes.fold_side('D', &sides.deleted, &sides.directories, &covered.from);
        changes
    }

    fn push(&mut self, letter: char, text: String, count: u64) {
        self.folded.push(Line { letter, text });
        self.count += count;
    }

    /// Adds lines for renames. A directory that is gone, and of which at least two files moved to one new directory, becomes one
    /// line.
    fn fold_renames<'a>(&mut self, sides: &Sides<'a>, renames: &[(&'a [u8], &'a [u8])]) -> Covered<'a> {
        let mut groups: BTreeMap<(&[u8], &[u8]), u64> = BTreeMap::new();
        let mut tops = HashMap::new();
        for (from, to) in renames {
            let top = sides.renamed_directory(from, to);
            if let Some(top) = top {
                *groups.entry(top).or_default() += 1;
            }
            tops.insert((*from, *to), top);
        }
        let mut covered = Covered::default();
        for (from, to) in renames {
            covered.from.insert(*from);
            covered.to.insert(*to);
            let top = tops.get(&(*from, *to)).copied().flatten().filter(|top| groups.get(top).is_some_and(|n| *n > 1));
            match top {
                Some(top) => {
                    covered.folded.insert(top);
                }
                None => self.push('R', format!("{} -> {}", text::path(from), text::path(to)), 1),
            }
        }
        for (from, to) in covered.folded.clone() {
            let files = groups.get(&(from, to)).copied().unwrap_or_default();
            let words = format!("{}/ -> {}/ ({})", text::path(from), text::path(to), text::plural(files, "file"));
            self.push('R', words, files);
        }
        covered
    }

    /// Adds lines for added or deleted paths, except those that are part of a rename.
    fn fold_side(
        &mut self,
        letter: char,
        paths: &BTreeSet<&[u8]>,
        directories: &HashSet<&[u8]>,
        covered: &HashSet<&[u8]>,
    ) {
        let files = paths.iter().copied().filter(|path| !directories.contains(path) && !covered.contains(path));
        let mut below: BTreeMap<&[u8], u64> = BTreeMap::new();
        let mut renamed_below: HashSet<&[u8]> = HashSet::new();
        for file in files {
            for above in ancestors(file).filter(|above| paths.contains(above)) {
                *below.entry(above).or_default() += 1;
            }
        }
        for file in covered.iter().copied() {
            renamed_below.extend(ancestors(file).filter(|above| paths.contains(above)));
        }
        let mut inside: Option<&[u8]> = None;
        for path in paths.iter().copied().filter(|path| !covered.contains(path)) {
            if inside.is_some_and(|inside| is_below(path, inside)) {
                continue;
            }
            inside = None;
            let files = below.get(path).copied().unwrap_or_default();
            match directories.contains(path) {
                false => self.push(letter, text::path(path).into_owned(), 1),
                // The line of the rename stands for the directory; other paths in it get their own lines.
                true if renamed_below.contains(path) => {}
                true => {
                    inside = Some(path);
                    let count = if files == 0 { String::new() } else { format!(" ({})", text::plural(files, "file")) };
                    self.push(letter, format!("{}/{count}", text::path(path)), files.max(1));
                }
            }
        }
    }
}

/// Paths that are part of renames.
#[derive(Default)]
struct Covered<'a> {
    from: HashSet<&'a [u8]>,
    to: HashSet<&'a [u8]>,
    /// Renamed directories: the old and the new path.
    folded: BTreeSet<(&'a [u8], &'a [u8])>,
}

/// Added and removed paths outside of `.git`.
struct Sides<'a> {
    added: BTreeSet<&'a [u8]>,
    deleted: BTreeSet<&'a [u8]>,
    directories: HashSet<&'a [u8]>,
}

impl<'a> Sides<'a> {
    fn new(status: &'a v1::DirectoryStatus) -> Self {
        Self {
            added: outside_git(&status.added).collect(),
            deleted: outside_git(&status.deleted).collect(),
            directories: status.directories.iter().map(|path| &path[..]).collect(),
        }
    }

    /// Returns the topmost renamed directories, before and after, that explain the rename of a file, or `None` if only the file was
    /// renamed. Strips equal names from the end of both paths while the remaining paths are deleted on one side and added on the
    /// other.
    fn renamed_directory(&self, from: &'a [u8], to: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
        let (mut from, mut to) = (from, to);
        let mut found = None;
        while let (Some((from_parent, from_name)), Some((to_parent, to_name))) = (split_last(from), split_last(to)) {
            if from_name != to_name || !self.deleted.contains(from_parent) || !self.added.contains(to_parent) {
                break;
            }
            (from, to) = (from_parent, to_parent);
            found = Some((from, to));
        }
        found
    }
}

fn outside_git<'a>(paths: &'a [tonic::codegen::Bytes]) -> impl Iterator<Item = &'a [u8]> + use<'a> {
    paths.iter().map(|path| &path[..]).filter(|path| text::git_part(path).is_none())
}

fn split_last(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let slash = path.iter().rposition(|byte| *byte == b'/')?;
    Some((&path[..slash], &path[slash + 1..]))
}

/// Iterates over the parent directories of a path, the nearest first.
fn ancestors(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::successors(split_last(path), |(parent, _)| split_last(parent)).map(|(parent, _)| parent)
}

fn is_below(path: &[u8], directory: &[u8]) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.starts_with(b"/"))
}

fn every_path(status: &v1::DirectoryStatus) -> Vec<Line> {
    let attributes: HashSet<_> = status.attributes.iter().collect();
    let renamed: HashMap<_, _> = status.renamed.iter().map(|one| (&one.path, &one.from_path)).collect();
    let gone: HashSet<_> = status.renamed.iter().map(|one| &one.from_path).collect();
    let line = |letter, text: String| Line { letter, text };
    let modified = status.modified.iter().map(|path| {
        let letter = if attributes.contains(path) { 'm' } else { 'M' };
        line(letter, text::path(path).into_owned())
    });
    let added = status.added.iter().map(|path| match renamed.get(path) {
        Some(from) => line('R', format!("{} -> {}", text::path(from), text::path(path))),
        None => line('A', text::path(path).into_owned()),
    });
    let deleted = status.deleted.iter().filter(|path| !gone.contains(path));
    let deleted = deleted.map(|path| line('D', text::path(path).into_owned()));
    modified.chain(added).chain(deleted).collect()
}

#[cfg(test)]
mod tests {
    use tonic::codegen::Bytes;

    use super::*;

    fn paths(texts: &[&str]) -> Vec<Bytes> {
        texts.iter().map(|text| Bytes::copy_from_slice(text.as_bytes())).collect()
    }

    fn lines(changes: &Changes) -> Vec<String> {
        changes.folded.iter().map(|line| format!("{} {}", line.letter, line.text)).collect()
    }

    #[test]
    fn directories_that_came_or_went_are_one_line() {
        let status = v1::DirectoryStatus {
            modified: paths(&["a", "tool"]),
            attributes: paths(&["tool"]),
            added: paths(&["new", "new/x", "new/deep", "new/deep/y", "empty", "single"]),
            deleted: paths(&["docs/design", "docs/design/1.md", "docs/design/2.md", "docs/old.md"]),
            directories: paths(&["new", "new/deep", "empty", "docs/design"]),
            ..Default::default()
        };
        let changes = Changes::new(&status);
        let expected =
            ["M a", "m tool", "A empty/", "A new/ (2 files)", "A single", "D docs/design/ (2 files)", "D docs/old.md"];
        assert_eq!(lines(&changes), expected);
        assert_eq!(changes.count, 9);
        assert_eq!(changes.every_path.len(), 12);
    }

    #[test]
    fn a_directory_that_was_renamed_is_one_line_with_what_else_changed_in_it() {
        let rename = |from: &str, to: &str| v1::RenamedPath {
            from_path: Bytes::copy_from_slice(from.as_bytes()),
            path: Bytes::copy_from_slice(to.as_bytes()),
        };
        let status = v1::DirectoryStatus {
            added: paths(&["cli/source", "cli/source/a", "cli/source/b", "cli/source/b/c", "cli/source/new", "moved"]),
            deleted: paths(&["cli/src", "cli/src/a", "cli/src/b", "cli/src/b/c", "cli/src/old", "was"]),
            directories: paths(&["cli/source", "cli/source/b", "cli/src", "cli/src/b"]),
            renamed: vec![
                rename("cli/src/a", "cli/source/a"),
                rename("cli/src/b/c", "cli/source/b/c"),
                rename("was", "moved"),
            ],
            ..Default::default()
        };
        let changes = Changes::new(&status);
        let expected = ["R was -> moved", "R cli/src/ -> cli/source/ (2 files)", "A cli/source/new", "D cli/src/old"];
        assert_eq!(lines(&changes), expected);
        assert_eq!(changes.count, 5);
    }

    #[test]
    fn files_that_left_a_directory_that_stays_are_listed_each() {
        let rename = |from: &str, to: &str| v1::RenamedPath {
            from_path: Bytes::copy_from_slice(from.as_bytes()),
            path: Bytes::copy_from_slice(to.as_bytes()),
        };
        let status = v1::DirectoryStatus {
            added: paths(&["b", "b/x", "b/y"]),
            deleted: paths(&["a/x", "a/y"]),
            directories: paths(&["b"]),
            renamed: vec![rename("a/x", "b/x"), rename("a/y", "b/y")],
            ..Default::default()
        };
        assert_eq!(lines(&Changes::new(&status)), ["R a/x -> b/x", "R a/y -> b/y"]);
    }

    #[test]
    fn what_lies_in_git_is_counted_and_no_change() {
        let status = v1::DirectoryStatus {
            modified: paths(&[".git/index"]),
            added: paths(&[".git/objects/aa", "sub/.git/HEAD"]),
            directories: paths(&[".git/objects/aa"]),
            ..Default::default()
        };
        let changes = Changes::new(&status);
        assert_eq!((lines(&changes), changes.count), (Vec::new(), 0));
        assert_eq!(changes.git.into_iter().collect::<Vec<_>>(), [(b".git".to_vec(), 2), (b"sub/.git".to_vec(), 1)]);
    }
}
