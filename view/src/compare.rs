//! Comparison of two working trees without storing them. Ignores times, and skips directories that are stored equally in both. A
//! comparison of stored trees is faster, but an edited tree must be stored for it, and the disk may be full.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::ops::ControlFlow;

use amalgam_engine::object::{Entry, Node};
use amalgam_engine::work::Stat;
use amalgam_engine::{TreePath, WorkingTree};

use crate::attributes::Kind;
use crate::error::Result;

/// Bytes of two files that are compared in one step.
const STEP_BYTES: usize = 1 << 20;

/// How a path differs between two trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// Only the second tree has it.
    Added,
    /// Only the first tree has it.
    Removed,
    /// Both trees have it, and it differs.
    Modified,
}

/// Returns whether two trees and their state values are equal, ignoring times.
pub fn holds_same(before: &WorkingTree, after: &WorkingTree) -> Result<bool> {
    if !before.has_same_states(after)? || !has_equal_root(before, after)? {
        return Ok(false);
    }
    let mut same = true;
    compare(before, after, &mut |_, _| {
        same = false;
        ControlFlow::Break(())
    })?;
    Ok(same)
}

/// Returns all paths at which two trees differ, ignoring times, sorted. A file with several names differs at each of them, also when
/// only its set of names changed. Leaves out the attributes of the root directory.
pub fn differences(before: &WorkingTree, after: &WorkingTree) -> Result<Vec<(TreePath, Difference)>> {
    let mut found = Vec::new();
    compare(before, after, &mut |path, difference| {
        found.push((path.clone(), difference));
        ControlFlow::Continue(())
    })?;
    found.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(found)
}

/// A callback for each difference, which can end the comparison.
type Report<'a> = dyn FnMut(&TreePath, Difference) -> ControlFlow<()> + 'a;

/// Reports each difference until the callback ends the comparison.
fn compare(before: &WorkingTree, after: &WorkingTree, report: &mut Report<'_>) -> Result<()> {
    let edited = directories_of_edited_links([before, after]);
    let mut open = vec![TreePath::root()];
    while let Some(directory) = open.pop() {
        let (mut ours, mut theirs) = (before.list(&directory)?, after.list(&directory)?);
        let (mut left, mut right) = (ours.next().transpose()?, theirs.next().transpose()?);
        loop {
            let order = match (&left, &right) {
                (None, None) => break,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((one, _)), Some((other, _))) => one.cmp(other),
            };
            let took_left = if order.is_le() { std::mem::replace(&mut left, ours.next().transpose()?) } else { None };
            let took_right =
                if order.is_ge() { std::mem::replace(&mut right, theirs.next().transpose()?) } else { None };
            let step = match (took_left, took_right) {
                (Some((name, left)), Some((_, right))) => {
                    let path = directory.join(&name);
                    if is_stored_equal(&left, &right) && !edited.contains(&path) {
                        continue;
                    }
                    let are_directories = left.kind == Kind::Directory && right.kind == Kind::Directory;
                    let same = is_equal(before, after, &path, [&left, &right])?;
                    let mut step = ControlFlow::Continue(());
                    if !same {
                        step = report(&path, Difference::Modified);
                    }
                    if are_directories {
                        open.push(path);
                    } else if step.is_continue() && !same {
                        step = report_below(before, &path, left.kind, Difference::Removed, report)?;
                        if step.is_continue() {
                            step = report_below(after, &path, right.kind, Difference::Added, report)?;
                        }
                    }
                    step
                }
                (Some((name, left)), None) => {
                    report_all(before, &directory.join(&name), left.kind, Difference::Removed, report)?
                }
                (None, Some((name, right))) => {
                    report_all(after, &directory.join(&name), right.kind, Difference::Added, report)?
                }
                (None, None) => ControlFlow::Continue(()),
            };
            if step.is_break() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Reports a path that only one tree has, and all paths below it.
fn report_all(
    tree: &WorkingTree,
    path: &TreePath,
    kind: Kind,
    difference: Difference,
    report: &mut Report<'_>,
) -> Result<ControlFlow<()>> {
    if report(path, difference).is_break() {
        return Ok(ControlFlow::Break(()));
    }
    report_below(tree, path, kind, difference, report)
}

/// Reports all paths below a directory that only one tree has.
fn report_below(
    tree: &WorkingTree,
    path: &TreePath,
    kind: Kind,
    difference: Difference,
    report: &mut Report<'_>,
) -> Result<ControlFlow<()>> {
    let mut open = if kind == Kind::Directory { vec![path.clone()] } else { Vec::new() };
    while let Some(directory) = open.pop() {
        for found in tree.list(&directory)? {
            let (name, stat) = found?;
            let path = directory.join(&name);
            if report(&path, difference).is_break() {
                return Ok(ControlFlow::Break(()));
            }
            if stat.kind == Kind::Directory {
                open.push(path);
            }
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// Returns the directories above the names of edited hard-linked files. They may be stored equally although such a file differs,
/// because its edits are kept apart from its names.
fn directories_of_edited_links(trees: [&WorkingTree; 2]) -> HashSet<TreePath> {
    let mut found = HashSet::new();
    for path in trees.into_iter().flat_map(WorkingTree::edited_links) {
        let mut above = path.split_last().map(|(above, _)| above);
        while let Some(directory) = above {
            above = directory.split_last().map(|(above, _)| above);
            if !found.insert(directory) {
                break;
            }
        }
    }
    found
}

/// Returns whether the attributes of the root directories are equal, ignoring times.
fn has_equal_root(before: &WorkingTree, after: &WorkingTree) -> Result<bool> {
    let root = TreePath::root();
    match (before.stat(&root)?, after.stat(&root)?) {
        (Some(left), Some(right)) => is_equal(before, after, &root, [&left, &right]),
        _ => Ok(false),
    }
}

/// Returns whether both entries are stored and differ in nothing but times.
fn is_stored_equal(one: &Stat, other: &Stat) -> bool {
    let (Some(left), Some(right)) = (&one.entry, &other.entry) else { return false };
    let same_node = match (&left.node, &right.node) {
        (Node::Directory(Some(left)), Node::Directory(Some(right))) => left.bare == right.bare,
        (left, right) => left == right,
    };
    let is_linked = |entry: &Entry| entry.link().is_some();
    same_node && left.mode == right.mode && left.extra == right.extra && !is_linked(left) && !is_linked(right)
}

/// Returns whether a path is equal in both trees, without the contents of a directory.
fn is_equal(one: &WorkingTree, other: &WorkingTree, path: &TreePath, [left, right]: [&Stat; 2]) -> Result<bool> {
    let compared = |stat: &Stat| (stat.kind, stat.mode, stat.size, stat.links, stat.owner);
    if compared(left) != compared(right) || one.xattrs(path)? != other.xattrs(path)? {
        return Ok(false);
    }
    if left.links > 1 && one.names_of(path)? != other.names_of(path)? {
        return Ok(false);
    }
    match left.kind {
        Kind::Directory => Ok(true),
        Kind::Conflict => Ok(left.entry.is_some() && left.entry == right.entry),
        _ => is_equal_file(one, other, path),
    }
}

fn is_equal_file(one: &WorkingTree, other: &WorkingTree, path: &TreePath) -> Result<bool> {
    let (left, right) = (one.loose(path)?, other.loose(path)?);
    if left.target() != right.target() || left.device() != right.device() {
        return Ok(false);
    }
    let stat = left.stat();
    if stat.kind != Kind::File || left.stored().is_some_and(|stored| right.stored() == Some(stored)) {
        return Ok(true);
    }
    let mut offset = 0;
    while offset < stat.size {
        // A file may be exabytes long, as a hole or by repeating a chunk: ranges that are stored equally are skipped.
        let shared = left.shared_at(&right, offset)?;
        let equal = if shared > 0 { shared } else { left.hole_at(offset)?.min(right.hole_at(offset)?) };
        if equal > 0 {
            offset += equal;
            continue;
        }
        if left.read_at(offset, STEP_BYTES)? != right.read_at(offset, STEP_BYTES)? {
            return Ok(false);
        }
        offset += STEP_BYTES as u64;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use amalgam_engine::work::RenameMode;
    use amalgam_engine::{Commit, DiffOptions, RefName, Store, What, diff_roots};

    use super::*;

    fn committed() -> WorkingTree {
        let mut tree = WorkingTree::new(&Store::in_memory());
        tree.create_directories("d/e").expect("made");
        tree.create_directories("other").expect("made");
        for path in ["a", "d/b", "d/e/c", "other/x"] {
            tree.write(path, format!("bytes of {path}").as_bytes()).expect("written");
        }
        tree.link("a", "other/a").expect("linked");
        let head = RefName::new("head/main").expect("a name");
        tree.commit(Commit::new(&head, "all")).expect("committed");
        tree
    }

    /// Commits a file with the names `one/x` and `two/x` below a directory.
    fn link_below(tree: &mut WorkingTree, directory: &str) {
        let [one, two] = ["one", "two"].map(|name| format!("{directory}/{name}"));
        tree.create_directories(&*one).expect("made");
        tree.create_directories(&*two).expect("made");
        tree.write(&*format!("{one}/x"), b"bytes").expect("written");
        tree.link(&*format!("{one}/x"), &*format!("{two}/x")).expect("linked");
        tree.commit(Commit::new(&RefName::new("head/main").expect("a name"), "links")).expect("committed");
    }

    fn rename(tree: &mut WorkingTree, from: &str, to: &str) -> amalgam_engine::Result<()> {
        tree.rename(from, to, RenameMode::Replace)
    }

    #[test]
    fn what_differs_is_found_and_what_only_was_touched_is_not() {
        type Change = fn(&mut WorkingTree) -> amalgam_engine::Result<()>;
        let changes: [(&str, Change, bool); 13] = [
            ("nothing", |_| Ok(()), true),
            ("the same bytes", |tree| tree.write("d/e/c", b"bytes of d/e/c"), true),
            ("other bytes", |tree| tree.write("d/e/c", b"bytes of d/e/x"), false),
            ("one more", |tree| tree.write("new", b""), false),
            ("one less", |tree| tree.remove("d/b"), false),
            ("bytes of a linked file", |tree| tree.write("d/one/x", b"other bytes"), false),
            ("a mode of a linked file", |tree| tree.set_mode("d/two/x", 0o700), false),
            ("a mode", |tree| tree.set_mode("d/e", 0o700), false),
            ("the mode of the root", |tree| tree.set_mode("", 0o700), false),
            ("an attribute of the root", |tree| tree.set_xattr("", b"user.a", b"1"), false),
            ("moved and back", |tree| rename(tree, "d", "f").and_then(|()| rename(tree, "f", "d")), true),
            ("moved onto", |tree| rename(tree, "d/e", "e").and_then(|()| rename(tree, "other", "d/e")), false),
            ("a link less", |tree| tree.remove("other/a").and_then(|()| tree.write("other/a", b"bytes of a")), false),
        ];
        for (what, change, same) in changes {
            let mut tree = committed();
            link_below(&mut tree, "d");
            let mut edited = tree.fork();
            change(&mut edited).expect(what);
            assert_eq!(holds_same(&edited, &tree).expect(what), same, "{what}");
            assert_eq!(holds_same(&tree, &edited).expect(what), same, "{what}");
        }
    }

    #[test]
    fn files_with_large_holes_are_compared_by_their_data() {
        const END: u64 = i64::MAX as u64;
        let mut tree = committed();
        tree.write_at("a", END - 1, b"x").expect("written");
        let mut other = tree.fork();
        tree.truncate("a", END - 1).expect("cut");
        other.truncate("a", END - 2).expect("cut");
        other.truncate("a", END - 1).expect("made longer");
        assert!(holds_same(&tree, &other).expect("compared"));
        other.write_at("a", END / 2, &[0; 100]).expect("zeros written");
        assert!(holds_same(&tree, &other).expect("compared"));
        other.write_at("a", END / 2 + 50, b"1").expect("written");
        assert!(!holds_same(&tree, &other).expect("compared"));
        tree.write_at("a", END / 2 + 50, b"1").expect("written");
        assert!(holds_same(&other, &tree).expect("compared"));
    }

    #[test]
    fn differences_are_those_that_a_comparison_of_stored_trees_finds() {
        let mut tree = committed();
        link_below(&mut tree, "linked");
        let mut edited = tree.fork();
        rename(&mut edited, "d/e", "e").expect("moved");
        edited.remove_all("other").expect("removed");
        edited.write("other", b"a file now").expect("written");
        edited.write("d/b", b"other bytes").expect("written");
        edited.write("linked/two/x", b"other bytes").expect("written");
        edited.set_mode("d", 0o700).expect("set");
        let session = tree.store().session();
        let [before, after] = [&tree, &edited].map(|tree| tree.freeze().write(&session).expect("written"));
        session.write_all_ahead().expect("written");
        let stored = diff_roots(tree.store(), Some(before), Some(after), DiffOptions::default()).expect("compared");
        let mut expected: Vec<_> = stored
            .map(|change| change.expect("read"))
            .map(|change| match change.what {
                What::Added => (change.path, Difference::Added),
                What::Removed => (change.path, Difference::Removed),
                _ => (change.path, Difference::Modified),
            })
            .collect();
        expected.sort_by(|one, other| one.0.cmp(&other.0));
        assert_eq!(differences(&tree, &edited).expect("compared"), expected);
        assert!(expected.len() >= 8, "{expected:?}");
    }
}
