//! What holds of every merge.

use std::collections::BTreeSet;

use amalgam_engine::object::Node;
use amalgam_engine::{Entry, NoContents, RootId, Store, Time, WorkingTree, list_directory, merge_trees};
use amalgam_tests::git::{self, Edit, Files};
use amalgam_tests::model::{Op, cases, contents, edit_unlinked, link_classes, op, ops, perform, write_root};
use proptest::prelude::*;

use crate::kit::{self, options};

/// Does what can be done of some operations.
fn run(tree: &mut WorkingTree, ops: &[Op]) {
    for op in ops {
        let _ = perform(tree, op);
    }
}

/// A tree and two that came of it.
fn three(store: &Store, base: &[Op], ours: &[Op], theirs: &[Op]) -> [RootId; 3] {
    let mut tree = WorkingTree::new(store);
    run(&mut tree, base);
    let base = write_root(&tree).expect("stored");
    let side = |ops: &[Op]| {
        let mut tree = WorkingTree::open_root(store, base).expect("open");
        run(&mut tree, ops);
        write_root(&tree).expect("stored")
    };
    [base, side(ours), side(theirs)]
}

fn merged(store: &Store, [base, ours, theirs]: [RootId; 3]) -> amalgam_engine::Outcome {
    merge_trees(store, Some(base), ours, theirs, &NoContents, &options()).expect("merged")
}

/// Everything that can be seen of a tree but times, which names are one file, and the state.
fn seen(store: &Store, root: RootId) -> String {
    let tree = WorkingTree::open_root(store, root).expect("open");
    format!("{:?}\n{:?}", contents(&tree).expect("contents").timeless(), link_classes(&tree).expect("links"))
}

/// The contents of all files below an entry, those in terms of conflicts too.
fn all_contents(store: &Store, entry: &Entry, into: &mut BTreeSet<String>) {
    match &entry.node {
        Node::Directory(contents) => {
            for item in list_directory(store, *contents).expect("a directory") {
                all_contents(store, &item.expect("an entry").1, into);
            }
        }
        Node::File { size, content } => drop(into.insert(format!("{size} {content:?}"))),
        Node::Symlink(target) => drop(into.insert(format!("{target:?}"))),
        Node::Conflict(conflict) => conflict.terms().iter().flatten().for_each(|term| all_contents(store, term, into)),
        other => drop(into.insert(format!("{other:?}"))),
    }
}

fn contents_of(store: &Store, root: RootId) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    all_contents(store, &store.root(root).expect("a root").directory, &mut found);
    found
}

fn nothing_is_lost(store: &Store, [base, ours, theirs]: [RootId; 3], merged: RootId) {
    let (base, merged) = (contents_of(store, base), contents_of(store, merged));
    for side in [ours, theirs] {
        for content in contents_of(store, side) {
            assert!(base.contains(&content) || merged.contains(&content), "{content} is lost");
        }
    }
}

/// A merged tree as text in which the order of terms does not matter.
fn unordered(tree: &WorkingTree) -> String {
    let words = kit::text(tree);
    let sorted = words.split(' ').map(|word| {
        let Some((path, terms)) = word.split_once('<') else { return word.to_owned() };
        let terms: Vec<_> = terms.trim_end_matches('>').split('|').collect();
        let (mut added, mut removed): (Vec<_>, Vec<_>) =
            (terms.iter().step_by(2).collect(), terms.iter().skip(1).step_by(2).collect());
        added.sort();
        removed.sort();
        format!("{path}<{added:?}{removed:?}>")
    });
    sorted.collect::<Vec<_>>().join(" ")
}

/// Trees of a few names with short contents, for text.
fn short(files: &Files) -> String {
    let words = files.iter().map(|(path, file)| {
        let name: String = path.escape_ascii().to_string().replace([' ', '\\', '-', '~', '|', '=', '+', '<'], "_");
        let bytes = format!("{file:?}");
        let sum: u64 = bytes.bytes().fold(7, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
        match file {
            git::File::Symlink(_) => format!("{name}->{sum}"),
            git::File::Executable(_) => format!("{name}+={sum}"),
            git::File::Plain(_) => format!("{name}={sum}"),
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

fn edited(files: &Files, edits: &[Edit]) -> Files {
    let mut files = files.clone();
    edits.iter().for_each(|edit| edit.apply(&mut files));
    files
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn a_side_that_did_nothing_leaves_the_other(base in ops(op(), 0..25), ops in ops(op(), 0..15)) {
        let store = Store::in_memory();
        let [base, other, _] = three(&store, &base, &ops, &[]);
        for roots in [[base, other, base], [base, base, other], [base, other, other]] {
            let outcome = merged(&store, roots);
            prop_assert!(outcome.conflicts.is_empty(), "{:?}", outcome.conflicts);
            prop_assert_eq!(seen(&store, write_root(&outcome.tree).expect("stored")), seen(&store, other));
        }
        let unchanged = merged(&store, [base, other, base]);
        prop_assert_eq!(write_root(&unchanged.tree).expect("stored"), other);
    }

    #[test]
    fn nothing_of_either_side_is_lost(
        base in ops(op(), 0..25), ours in ops(op(), 0..15), theirs in ops(op(), 0..15)
    ) {
        let store = Store::in_memory();
        let roots = three(&store, &base, &ours, &theirs);
        let outcome = merged(&store, roots);
        let root = write_root(&outcome.tree).expect("stored");
        nothing_is_lost(&store, roots, root);
        // The result is a tree like any other, its links too.
        kit::assert_sound(&store);
        // And merging a side once more changes nothing: it is in there.
        let again = merged(&store, [roots[2], root, roots[2]]);
        prop_assert_eq!(write_root(&again.tree).expect("stored"), root);
    }

    #[test]
    fn sides_swapped_give_the_mirrored_result(
        base in git::some_files(),
        ours in prop::collection::vec(git::some_edit(), 0..5),
        theirs in prop::collection::vec(git::some_edit(), 0..5),
    ) {
        let store = Store::in_memory();
        let files = [base.clone(), edited(&base, &ours), edited(&base, &theirs)];
        let [base, ours, theirs] = files.map(|files| kit::tree(&store, &short(&files)));
        let one = merged(&store, [base, ours, theirs]);
        let other = merged(&store, [base, theirs, ours]);
        prop_assert_eq!(unordered(&one.tree), unordered(&other.tree));
        prop_assert_eq!(one.conflicts.len(), other.conflicts.len());
    }

    #[test]
    fn changes_in_different_directories_come_together_in_any_order(
        base in ops(edit_unlinked(), 0..20), first in ops(edit_unlinked(), 0..10), second in ops(edit_unlinked(), 0..10)
    ) {
        let store = Store::in_memory();
        let within = |directory: &str, ops: &[Op], on: RootId| {
            // The operations are done to a tree of its own, which then is a directory of a larger one.
            let mut inner = WorkingTree::open_root(&store, on).expect("open");
            run(&mut inner, ops);
            (directory.to_owned(), inner)
        };
        let start = write_root(&WorkingTree::new(&store)).expect("stored");
        let inner = write_root(&within("", &base, start).1).expect("stored");
        let compose = |left: &WorkingTree, right: &WorkingTree| {
            let mut whole = WorkingTree::new(&store);
            for (directory, tree) in [("left", left), ("right", right)] {
                copy(tree, &mut whole, directory);
            }
            write_root(&whole).expect("stored")
        };
        let base_tree = WorkingTree::open_root(&store, inner).expect("open");
        let (_, left) = within("left", &first, inner);
        let (_, right) = within("right", &second, inner);
        let base = compose(&base_tree, &base_tree);
        let (ours, theirs, both) = (compose(&left, &base_tree), compose(&base_tree, &right), compose(&left, &right));
        for sides in [[base, ours, theirs], [base, theirs, ours]] {
            let outcome = merge_trees(
                &store, Some(sides[0]), sides[1], sides[2], &NoContents,
                &amalgam_engine::MergeOptions { renames: exact(), ..options() },
            ).expect("merged");
            prop_assert!(outcome.conflicts.is_empty(), "{:?}", outcome.conflicts);
            let root = write_root(&outcome.tree).expect("stored");
            let bare = |root| store.root(root).expect("a root").bare();
            prop_assert_eq!(bare(root), bare(both));
        }
    }
}

fn exact() -> amalgam_engine::RenameOptions {
    amalgam_engine::RenameOptions { percent_min: 100, ..Default::default() }
}

/// Writes what one tree holds into a directory of another: files, symlinks and directories with their modes.
fn copy(from: &WorkingTree, to: &mut WorkingTree, directory: &str) {
    to.create_directory(directory, 0o755).expect("a directory");
    to.set_now(Time(5));
    for (path, seen) in contents(from).expect("contents").paths {
        if path.is_root() {
            continue;
        }
        let target = [directory.as_bytes(), b"/", path.as_bytes()].concat();
        match seen.kind {
            amalgam_engine::EntryKind::Directory => to.create_directory(&target, seen.mode).expect("a directory"),
            amalgam_engine::EntryKind::Symlink => to.symlink(&target, &seen.bytes.0).expect("a symlink"),
            amalgam_engine::EntryKind::File => {
                to.write(&target, &seen.bytes.0).expect("a file");
                to.set_mode(&target, seen.mode).expect("its mode");
            }
            _ => {}
        }
    }
}
