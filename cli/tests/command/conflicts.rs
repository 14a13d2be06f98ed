//! Conflicts through the real command: shown in a directory, edited, resolved, remembered.

use std::fs;
use std::sync::Arc;

use amalgam_engine::conflict::{CONFLICTS_KEY, Exchange};
use amalgam_engine::object::{Conflict, Entry, Node, Settled};
use amalgam_engine::workspace::{Change, NewWorkspace, WorkspaceName, Workspaces};
use amalgam_engine::{OperationContext, Store, Time, TreePath, WorkingTree};
use amalgam_transfer::{Progress, Selection, SendOptions, have, send};

use crate::scratch::Scratch;

/// A stream with a workspace `clash` whose head has a conflict of texts, one of binary files, one of a file that somebody
/// removed, and one of directories.
pub fn stream() -> Vec<u8> {
    let store = Store::in_memory();
    let (workspaces, name) = (Workspaces::of(&store), WorkspaceName::new("clash").expect("a name"));
    let act = OperationContext::new("ann", Time::from_seconds(1_700_000_000, 0));
    workspaces.create(&name, &NewWorkspace::default(), &act).expect("made");
    let mut parts = WorkingTree::new(&store);
    parts.set_now(act.time);
    for side in ["ours", "base", "theirs"] {
        parts.write(side, format!("top\n{side}\nend\n").as_bytes()).expect("written");
        parts.write(format!("binary-{side}"), format!("\0{side}").as_bytes()).expect("written");
        parts.create_directory(format!("d-{side}"), 0o755).expect("made");
        parts.write(format!("d-{side}/file"), side.as_bytes()).expect("written");
    }
    parts.write("plain", b"plain\n").expect("written");
    let first = workspaces.commit(&name, &mut parts, &Change::new("parts"), &act).expect("committed");
    let root = store.snapshot(first.snapshot).expect("read").root;
    let stored = WorkingTree::open(&store, first.snapshot).expect("opened");
    let entry = |at: &str| stored.stat(at).expect("read").and_then(|stat| stat.entry);
    let mut exchange = Exchange::new(&store, root, &[]).expect("begun");
    let path = |path: &str| TreePath::new(path).expect("a path");
    for (at, terms) in [
        ("text", ["ours", "base", "theirs"]),
        ("image", ["binary-ours", "binary-base", "binary-theirs"]),
        ("removed", ["-", "base", "theirs"]),
        ("folder", ["d-ours", "d-base", "d-theirs"]),
    ] {
        let terms = terms.map(entry).to_vec();
        let Ok(Settled::Conflicted(conflict)) = Conflict::settle(terms) else { panic!("they disagree") };
        let entry = Entry::new(Node::Conflict(Arc::new(conflict)), 0, Time::EPOCH);
        exchange.set(&path(at), Some(&entry)).expect("set");
    }
    for part in ["ours", "base", "theirs"] {
        for before in ["", "binary-", "d-"] {
            exchange.set(&path(&format!("{before}{part}")), None).expect("set");
        }
    }
    let (mut tree, _) = exchange.finish().expect("put together");
    tree.rebase(Some(first.snapshot));
    let mut change = Change::new("merge");
    change.metadata.insert(CONFLICTS_KEY.to_owned(), "4".to_owned());
    workspaces.commit(&name, &mut tree, &change, &act).expect("committed");
    let mut stream = Vec::new();
    let since = SendOptions::since(&have(&Store::in_memory()).expect("nothing"));
    let all = Selection::everything(&store).expect("everything");
    send(&store, &all, &since, &mut stream, &Progress::default()).expect("sent");
    stream
}

/// A store with that workspace, and a directory of it at `../clash`.
fn clash() -> Scratch {
    let scratch = Scratch::new();
    fs::write(scratch.path().join("clash.stream"), stream()).expect("written");
    scratch.run("amalgam init -q && amalgam receive -q ../clash.stream");
    scratch.run("amalgam checkout -q clash@ ../clash --workspace clash");
    scratch
}

/// A command in that directory.
fn run(scratch: &Scratch, line: &str) -> String {
    scratch.run(&format!("cd ../clash && {{ {line}; }} 2>&1"))
}

#[test]
fn a_checkout_shows_conflicts_and_an_untouched_one_changes_nothing() {
    let scratch = clash();
    let text = run(&scratch, "cat text");
    assert!(text.starts_with("top\n<<<<<<< ours [amalgam ") && text.ends_with(" 1/1]\nend\n"), "{text}");
    assert_eq!(run(&scratch, "cat removed folder/file"), "top\ntheirs\nend\nours");
    let status = run(&scratch, "amalgam status");
    assert!(status.contains("nothing changed") && status.contains("4 conflicts"), "{status}");
    assert!(run(&scratch, "amalgam commit").contains("nothing to commit"));
    assert!(run(&scratch, "amalgam log").contains("[4 conflicts]"));
    assert_eq!(run(&scratch, "amalgam status --exit-code > /dev/null; echo $?"), "5\n");
    let list = run(&scratch, "amalgam conflicts");
    assert_eq!(list.lines().count(), 4, "{list}");
    assert!(list.contains("! text  contents, 1 region") && list.contains("! removed  changed and removed"), "{list}");
}

#[test]
fn an_edit_without_markers_resolves_and_one_with_markers_stays() {
    let scratch = clash();
    let said = run(&scratch, "echo more >> text; amalgam commit -m half");
    assert!(said.contains("still a conflict: text has markers in 1 region"), "{said}");
    assert!(run(&scratch, "amalgam conflicts").contains("begun"));
    assert!(run(&scratch, "amalgam status").contains("nothing changed"));
    assert!(run(&scratch, "amalgam conflicts show text --version ours").contains("ours"));
    let said = run(&scratch, "printf 'top\\nboth\\nend\\n' > text; amalgam commit -m done");
    assert!(said.contains("resolved: text") && said.contains("3 conflicts"), "{said}");
    assert_eq!(run(&scratch, "amalgam show @:text"), "top\nboth\nend\n");
    assert!(run(&scratch, "amalgam conflicts remembered").contains("text -> file"));
    // The undo brings the draft back, as it was.
    run(&scratch, "amalgam undo");
    assert!(run(&scratch, "cat text").ends_with("end\nmore\n"));
    assert!(run(&scratch, "amalgam conflicts").contains("text"));
    assert!(run(&scratch, "amalgam status").contains("4 conflicts"));
    // It forgets the resolution, and the redo remembers it again.
    assert_eq!(run(&scratch, "amalgam conflicts remembered"), "");
    run(&scratch, "amalgam redo");
    assert!(run(&scratch, "amalgam conflicts remembered").contains("text -> file"));
    // What is remembered is replayed.
    run(&scratch, "amalgam restore @~ text");
    let said = run(&scratch, "amalgam conflicts resolve --all --remembered; echo $?");
    assert!(said.contains("1 conflict resolved") && said.ends_with("5\n"), "{said}");
    assert_eq!(run(&scratch, "cat text"), "top\nboth\nend\n");
    run(&scratch, "amalgam conflicts forget --all");
    assert_eq!(run(&scratch, "amalgam conflicts remembered"), "");
}

#[test]
fn resolving_by_a_side_works_where_the_directory_looks_the_same() {
    let scratch = clash();
    let plan = run(&scratch, "amalgam conflicts resolve image folder --ours --dry-run");
    assert!(plan.contains("2 conflicts to resolve; nothing was changed"), "{plan}");
    let said = run(&scratch, "amalgam conflicts resolve image folder --ours");
    assert!(said.contains("2 conflicts resolved") && said.contains("2 files left"), "{said}");
    assert!(run(&scratch, "amalgam status").contains("2 conflicts"));
    run(&scratch, "amalgam undo");
    assert!(run(&scratch, "amalgam status").contains("4 conflicts"));
    run(&scratch, "amalgam redo");
    assert!(run(&scratch, "amalgam status").contains("2 conflicts"));
    let said = run(&scratch, "amalgam conflicts resolve text --union && amalgam conflicts resolve removed --ours");
    assert!(said.contains("none is left"), "{said}");
    assert_eq!(
        run(&scratch, "cat text; test ! -e removed && amalgam conflicts list --exit-code"),
        "top\nours\ntheirs\nend\nno conflicts\n"
    );
}

#[test]
fn resolving_by_a_file_an_editor_and_a_tool() {
    let scratch = clash();
    run(&scratch, "echo image > ../image; amalgam conflicts resolve image --file ../image");
    assert_eq!(run(&scratch, "cat image"), "image\n");
    let failed = scratch.output("cd ../clash && EDITOR=true amalgam conflicts resolve text --edit");
    assert!(String::from_utf8_lossy(&failed.stderr).contains("nothing was changed"));
    let failed = scratch
        .output("cd ../clash && TMPDIR=$PWD/.. EDITOR='sed -i s/end/END/' amalgam conflicts resolve text --edit");
    assert!(String::from_utf8_lossy(&failed.stderr).contains("markers left"));
    run(&scratch, "EDITOR='sed -i /amalgam/d;/=======/d' amalgam conflicts resolve text --edit");
    assert_eq!(run(&scratch, "cat text"), "top\nours\nbase\ntheirs\nend\n");
    run(&scratch, "amalgam conflicts resolve removed --tool 'cat \"$LOCAL\" \"$BASE\" \"$REMOTE\" > \"$MERGED\"'");
    assert_eq!(run(&scratch, "cat removed"), "top\nbase\nend\ntop\ntheirs\nend\n");
}

#[test]
fn a_fork_carries_conflicts_and_a_side_can_be_shown_instead() {
    let scratch = clash();
    run(&scratch, "amalgam fork -q other --dir ../other");
    assert_eq!(scratch.run("cd ../other && cmp text ../clash/text && amalgam conflicts | wc -l"), "4\n");
    scratch.run("amalgam checkout clash@ ../theirs --workspace by-theirs --conflicts theirs");
    assert_eq!(scratch.run("cat ../theirs/text ../theirs/folder/file"), "top\ntheirs\nend\ntheirs");
    let status = scratch.run("cd ../theirs && amalgam status");
    assert!(status.contains("4 conflicts") && status.contains("nothing changed"), "{status}");
    // Where one side of a text is shown, an edit of it says nothing of the others.
    let edited = scratch.run("cd ../theirs && { echo more >> text; amalgam commit -m edited; } 2>&1");
    assert!(edited.contains("still a conflict: text was edited") && edited.contains("4 conflicts"), "{edited}");
    assert_eq!(scratch.run("cd ../theirs && amalgam conflicts show text --version theirs"), "top\ntheirs\nend\nmore\n");
    scratch.run("amalgam conflicts resolve text --workspace other --theirs");
    assert_eq!(scratch.run("cat ../other/text"), "top\ntheirs\nend\n");
}

#[test]
fn a_restore_brings_conflicts_back_and_a_diff_shows_them() {
    let scratch = clash();
    run(&scratch, "amalgam conflicts resolve --all --theirs");
    assert!(run(&scratch, "amalgam diff @~ @").contains("-<<<<<<< ours [amalgam "));
    assert!(run(&scratch, "amalgam diff --name-status @ @~").contains("text (conflict)"));
    assert!(run(&scratch, "amalgam show @~:text").contains("<<<<<<< ours [amalgam "));
    run(&scratch, "amalgam restore @~ text");
    let status = run(&scratch, "amalgam status");
    assert!(status.contains("1 conflict;"), "{status}");
    assert!(run(&scratch, "cat text").contains("<<<<<<< ours"));
    run(&scratch, "amalgam restore @~");
    assert!(run(&scratch, "amalgam status").contains("4 conflicts"));
}

#[test]
fn a_conflict_that_is_not_there_and_a_version_that_is_none_are_refused() {
    let scratch = clash();
    for (line, words) in [
        ("resolve plain --ours", "there is no conflict at plain"),
        ("resolve text --version nobody", "it has ours, base, theirs"),
        ("resolve image --union", "only where all are texts"),
        ("show plain", "there is no conflict at plain"),
        ("forget 00", "no resolution 00 is remembered"),
    ] {
        let done = scratch.output(&format!("cd ../clash && amalgam conflicts {line}"));
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.code() == Some(1) && said.contains(words), "{line}: {said}");
    }
    assert_eq!(scratch.output("amalgam conflicts resolve --ours").status.code(), Some(2));
}

#[test]
fn an_edit_of_a_file_that_another_side_removed_stays_a_conflict() {
    let scratch = clash();
    let said = run(&scratch, "echo more >> removed; amalgam commit -m edited");
    assert!(said.contains("still a conflict: removed was edited, but other versions are not in the file"), "{said}");
    assert!(run(&scratch, "amalgam status").contains("4 conflicts"));
    assert_eq!(run(&scratch, "cat removed"), "top\ntheirs\nend\nmore\n");
    let said = run(&scratch, "amalgam conflicts take theirs removed");
    assert!(said.contains("1 conflict resolved") && said.contains("3 files left"), "{said}");
    assert_eq!(run(&scratch, "cat removed"), "top\ntheirs\nend\nmore\n");
}

#[test]
fn a_purge_works_while_conflicts_are_shown() {
    let scratch = clash();
    run(&scratch, "echo secret > key; amalgam commit -q");
    run(&scratch, "amalgam purge key --yes -m 'a key'");
    assert!(run(&scratch, "rm key; amalgam status || true").contains("4 conflicts"));
}
