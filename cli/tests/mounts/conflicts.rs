//! Conflicts in a mount: shown with markers, and read back by a commit.

use super::{read, until};
use crate::scratch::{Scratch, can_mount};

const FILES: [&str; 5] = ["edited", "kept", "resolved", "saved", "touched"];

/// A workspace `ours`, mounted, whose head has a conflict in each of the files.
fn clash() -> Scratch {
    let scratch = Scratch::new();
    let files = FILES.join(" ");
    scratch
        .run(&format!("for f in {files}; do printf 'top\\nbase\\nend\\n' > $f; done; amalgam init --workspace base"));
    for side in ["ours", "theirs"] {
        scratch.run(&format!(
            "amalgam fork {side} --mount ../{side} --backend fuse && cd ../{side} && \
             for f in {files}; do printf 'top\\n{side}\\nend\\n' > $f; done && amalgam commit -q -m {side}"
        ));
    }
    assert_eq!(scratch.output("amalgam merge theirs --into ours").status.code(), Some(5));
    let path = scratch.path().join("ours/kept");
    until("the merge is seen", || read(&path).contains("<<<<<<< ours [amalgam "));
    scratch
}

#[test]
fn a_mount_shows_all_sides_by_name_and_an_edit_elsewhere_keeps_them() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.run(
        "printf 'top\\nbase\\nend\\n' > file; amalgam init -q --workspace main && amalgam fork -q ann bob cleo dan && \
         amalgam fork -q all --mount ../all --backend fuse",
    );
    for agent in ["ann", "bob", "cleo", "dan"] {
        scratch.run(&format!("amalgam run --in {agent} -- sed -i s/base/{agent}/ file"));
        scratch.output(&format!("amalgam merge {agent} --into all"));
    }
    let path = scratch.path().join("all/file");
    until("the merges are seen", || read(&path).contains("end of 4 versions"));
    let sides =
        ["all (ours)", "\nann\n", "bob (side-2)", "\nbob\n", "cleo (side-3)", "\ncleo\n", "dan (theirs)", "\ndan\n"];
    let all_are_there = |text: &str| sides.iter().all(|side| text.contains(side));
    assert!(all_are_there(&read(&path)), "{}", read(&path));
    scratch.run("cd ../all && sed -i 's/^top/TOP/' file && amalgam commit -q -m elsewhere");
    let shown = read(&path);
    assert!(all_are_there(&shown) && shown.starts_with("TOP\n"), "{shown}");
    assert_eq!(scratch.run("amalgam conflicts show file --rev all@ --version cleo"), "top\ncleo\nend\n");
    // A resolution that is undone is forgotten, in a mount as in a directory.
    scratch.run("cd ../all && printf 'top\\nboth\\nend\\n' > file && amalgam commit -q -m decided");
    assert!(scratch.run("amalgam conflicts remembered").contains("file -> file"));
    scratch.run("cd ../all && amalgam undo -q");
    assert_eq!(scratch.run("amalgam conflicts remembered"), "");
    until("the undo is seen", || all_are_there(&read(&path)));
    scratch.run("amalgam umount all; amalgam verify --read-data");
}

fn conflicts(scratch: &Scratch) -> String {
    let told = super::json(&scratch.run("cd ../ours && amalgam conflicts --json"));
    let paths = told.iter().filter_map(|line| line["path"].as_str());
    paths.collect::<Vec<_>>().join(" ")
}

#[test]
fn a_commit_of_a_mount_reads_conflicts_back() {
    if !can_mount() {
        return;
    }
    let scratch = clash();
    assert_eq!(conflicts(&scratch), "edited kept resolved saved touched");
    let status = scratch.output("cd ../ours && amalgam status --exit-code");
    let told = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(status.status.code() == Some(5) && told.contains("5 conflicts; `amalgam conflicts` lists them"), "{told}");
    // One is written again as it was, one gets a line and keeps its markers, one is resolved in place, one as editors do it.
    scratch.run(
        "cd ../ours && cp touched ../t && cat ../t > touched && echo more >> edited && \
         printf 'top\\nboth\\nend\\n' > resolved && printf 'top\\nnew\\nend\\n' > .new && mv .new saved",
    );
    assert_eq!(conflicts(&scratch), "edited kept touched", "as the commit will store them");
    let before = scratch.run("cd ../ours && amalgam status 2>&1");
    let committed = scratch.run("cd ../ours && amalgam commit -m decided 2>&1");
    for told in [before, committed] {
        assert!(told.contains("resolved: resolved") && told.contains("resolved: saved"), "{told}");
        assert!(told.contains("still a conflict: edited has markers in 1 region"), "{told}");
        assert!(told.contains("3 conflicts; `amalgam conflicts` lists them"), "{told}");
    }
    assert!(scratch.run("amalgam log ours -n 1 --json").contains(r#""conflicts":3"#), "the snapshot has the number");
    assert_eq!(conflicts(&scratch), "edited kept touched");
    assert_eq!(scratch.run("amalgam show ours@:resolved; amalgam show ours@:saved"), "top\nboth\nend\ntop\nnew\nend\n");
    // No version is lost, and the draft is shown as it was left.
    for (side, line) in [("ours", "ours"), ("theirs", "theirs")] {
        let shown = scratch.run(&format!("cd ../ours && amalgam conflicts show edited --version {side}"));
        assert!(shown.contains(line), "{shown}");
    }
    let draft = read(scratch.path().join("ours/edited"));
    assert!(draft.contains("<<<<<<< ours [amalgam ") && draft.ends_with("end\nmore\n"), "{draft}");
    assert_eq!(scratch.output("cd ../ours && amalgam status --exit-code").status.code(), Some(5));
    let remembered = scratch.run("amalgam conflicts remembered");
    assert!(remembered.contains("-> file"), "{remembered}");

    // The draft is gone on with, and resolved; what was taken back is a conflict again.
    scratch.run("cd ../ours && printf 'top\\nlast\\nend\\n' > edited && amalgam commit -m last");
    assert_eq!(conflicts(&scratch), "kept touched");
    scratch.run("cd ../ours && amalgam undo && amalgam undo");
    assert_eq!(conflicts(&scratch), "edited kept resolved saved touched");
    assert!(read(scratch.path().join("ours/resolved")).contains("<<<<<<< ours [amalgam "));
    // It holds over a restart, too.
    scratch.run("cd ../ours && rm kept && echo x >> saved && cd .. && amalgam umount ours && amalgam stop --force");
    scratch.run("amalgam mount ours ../ours && cd ../ours && amalgam commit -m again");
    assert_eq!(conflicts(&scratch), "edited resolved saved touched");
    scratch.run("amalgam umount ours; amalgam umount theirs; amalgam verify --read-data");
}

#[test]
fn the_recorded_number_of_conflicts_is_that_of_the_committed_tree() {
    if !can_mount() {
        return;
    }
    let scratch = clash();
    let commit_and_count = |line: &str| {
        scratch.run(&format!("cd ../ours && {line} && amalgam commit -m more"));
        let logged = super::json(&scratch.run("amalgam log ours -n 1 --json"));
        let listed = conflicts(&scratch).split_whitespace().count();
        (logged[0]["conflicts"].as_u64(), listed)
    };
    assert_eq!(commit_and_count("printf 'top\\nboth\\nend\\n' >kept"), (Some(4), 4));
    // A conflict of an earlier snapshot comes back.
    scratch.run("cd ../ours && amalgam restore @~ -- kept");
    assert!(scratch.run("cd ../ours && amalgam status").contains("5 conflicts"));
    assert_eq!(commit_and_count("true"), (Some(5), 5));
    // A file with several names is committed as a file.
    assert_eq!(commit_and_count("echo more >>edited && ln edited second"), (Some(4), 4));
    scratch.run("amalgam umount ours; amalgam umount theirs; amalgam verify --read-data");
}
