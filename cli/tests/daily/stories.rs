//! Stories on real repositories: an agent edits, calls Git, builds, deletes and renames. At each step a plain copy is taken; undo
//! goes back through all of them and redo forward again, and `.git` is never touched.

use std::path::Path;

use crate::scratch::Scratch;
use crate::{Copy, assert_same, shell};

/// Plays the steps, each committed or left for the next undo to find, then goes back to the first state and forward to the last.
fn play(scratch: &Scratch, place: &Path, steps: &[&str]) {
    shell(scratch, place, "amalgam init --workspace story");
    let mut copies = vec![Copy::of(place)];
    for (number, step) in steps.iter().enumerate() {
        shell(scratch, place, step);
        let copy = Copy::of(place);
        // What changed nothing but .git is a snapshot, too, and a step of its own.
        let said = shell(scratch, place, &format!("amalgam commit --json -m 'step {number}'"));
        if said.contains("\"changed\":true") {
            copies.push(copy);
        }
    }
    // Uncommitted edits are one more step.
    shell(scratch, place, "echo draft >draft.txt");
    copies.push(Copy::of(place));
    let git = copies.last().expect("a copy").git.clone();
    let back: Vec<_> = copies.iter().rev().skip(1).collect();
    for (number, copy) in back.iter().enumerate() {
        shell(scratch, place, "amalgam undo");
        let found = Copy::of(place);
        assert_same(&found.files, &copy.files, &format!("{} undone of {}", number + 1, back.len()));
        assert_same(&found.git, &git, &format!("in .git, {} undone", number + 1));
    }
    for (number, copy) in copies.iter().enumerate().skip(1) {
        shell(scratch, place, "amalgam redo");
        let found = Copy::of(place);
        assert_same(&found.files, &copy.files, &format!("step {number} redone"));
        assert_same(&found.git, &git, &format!("in .git, step {number} redone"));
    }
    shell(scratch, place, "git fsck --no-progress 2>&1 || [ ! -e .git ]");
    shell(scratch, place, "amalgam verify");
}

#[test]
fn an_agent_in_this_repository_is_undone_and_redone_step_by_step() {
    let scratch = Scratch::new();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository").display().to_string();
    let place = scratch.project();
    // Without its history where it was unpacked from an archive.
    let clone = format!(
        "git clone -q --depth 3 file://{source} . 2>/dev/null \
         || {{ cp -r {source}/cli {source}/docs {source}/Makefile . && git init -q . && git add -A && git commit -qm all; }}"
    );
    shell(&scratch, &place, &clone);
    play(
        &scratch,
        &place,
        &[
            "sed -i 's/the/THE/' docs/*.md",
            "git add -A && git commit -qm 'louder docs'",
            "mv cli client && git add -A",
            "rm -r docs/design",
            "git stash -q -u",
            "mkdir build && cp Makefile build/ && chmod 755 build/Makefile && ln -s build out",
            "git checkout -q -b side && echo side >side.txt && git add side.txt && git commit -qm side",
            "git checkout -q - && git merge -q --no-edit side",
            "git gc -q --prune=now",
            "rm -rf build out && git clean -qfdx",
        ],
    );
}

#[test]
fn a_repository_with_submodules_and_worktrees_is_undone_and_redone_step_by_step() {
    let scratch = Scratch::new();
    let place = scratch.project();
    shell(&scratch, &scratch.path(), "git init -q part && cd part && echo part >p && git add p && git commit -qm part");
    shell(
        &scratch,
        &place,
        "git init -q . && echo top >top && git add top && git commit -qm top \
         && git submodule --quiet add ../part sub && git commit -qm sub && git worktree add -q wt -b wt",
    );
    play(
        &scratch,
        &place,
        &[
            "echo more >>sub/p && git -C sub commit -qam more && git add sub && git commit -qm bump",
            "echo in >wt/in && git -C wt add in && git -C wt commit -qm in",
            "mkdir nested && git -C nested init -q . && echo n >nested/n && git -C nested add n && git -C nested commit -qm n",
            "rm sub/p wt/top nested/n",
            "git -C sub checkout -q p && git -C wt rebase -q master 2>/dev/null || git -C wt status --short",
        ],
    );
}

#[test]
fn a_tree_without_git_is_undone_and_redone_step_by_step() {
    let scratch = Scratch::new();
    let place = scratch.project();
    shell(
        &scratch,
        &place,
        "mkdir -p a/b/c && for n in 1 2 3 4 5; do echo $n >a/b/f$n; done && ln -s a/b link && mkdir empty",
    );
    play(
        &scratch,
        &place,
        &[
            "mv a/b a/moved && rm link",
            "rmdir empty && echo file >empty",
            "rm empty && mkdir -p empty/again && echo x >empty/again/x",
            "chmod 600 a/moved/f1 && chmod 700 a/moved",
            "rm -r a empty && echo only >only",
        ],
    );
}
