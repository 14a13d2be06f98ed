//! Looking at what changed, naming snapshots, finding things in them, and help.

use serde_json::Value;

use crate::scratch::Scratch;

/// What a command prints on both outputs, and how it ends.
fn all(scratch: &Scratch, line: &str) -> (String, i32) {
    let done = scratch.output(&format!("exec 2>&1; {line}"));
    (String::from_utf8(done.stdout).expect("text"), done.status.code().unwrap_or(-1))
}

/// A Git repository that is protected, with three snapshots: `one`, `two`, `three`.
fn repository() -> Scratch {
    let scratch = Scratch::new();
    scratch.run(
        "git init -q; git config user.email a@b; git config user.name a; mkdir -p src/deep docs; \
         for n in 1 2 3 4; do echo text $n > src/$n.rs; done; echo deep > src/deep/d.rs; echo doc > docs/a.md; \
         echo other > docs/b.md; echo '#!/bin/sh' > tool; git add .; git commit -qm one; amalgam init -q; \
         amalgam label one; echo 2 > n; amalgam commit -q -m two; echo 3 > n; amalgam commit -q -m three",
    );
    scratch
}

#[test]
fn status_folds_directories_renames_modes_and_git() {
    let scratch = repository();
    scratch.run("git mv src source; git rm -rq docs; chmod +x tool; mkdir new; echo x > new/x; echo 4 > n; git commit -qam move");
    let (said, _) = all(&scratch, "amalgam status");
    let lines: Vec<_> = said.lines().skip(1).collect();
    let git = lines.iter().find(|line| line.starts_with(".git: ")).expect("a line about .git");
    assert!(git.ends_with(" changes (-v lists them)"), "{said}");
    let rest: Vec<_> = lines.iter().filter(|line| !line.starts_with(".git: ")).copied().collect();
    let expected = [
        "M n",
        "m tool",
        "R src/ -> source/ (5 files)",
        "A new/ (1 file)",
        "D docs/ (2 files)",
        "10 changes; `amalgam diff` shows them",
    ];
    assert_eq!(rest, expected, "{said}");
    let (verbose, _) = all(&scratch, "amalgam status -v");
    for line in ["A new/x", "D docs/a.md", "R src/deep/d.rs -> source/deep/d.rs", "M .git/index"] {
        assert!(verbose.lines().any(|found| found == line), "{line}: {verbose}");
    }
    let json = scratch.run("amalgam status --json");
    let json: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let status = json.iter().find(|line| line["type"] == "status").expect("a status");
    assert_eq!((&status["renamed"], &status["attributes_only"]), (&5.into(), &1.into()));
    assert!(status["git_changes"].as_u64() > Some(0), "{status}");
    let moved = json.iter().find(|line| line["path"] == "source/1.rs").expect("a path");
    assert_eq!((&moved["kind"], &moved["from_path"]), (&"added".into(), &"src/1.rs".into()));
}

#[test]
fn a_mount_and_a_capture_fold_alike() {
    if !crate::scratch::can_mount() {
        return;
    }
    let scratch = repository();
    scratch.run("amalgam fork -q m --mount ../m --backend fuse; cd ../m; mv src source; rm -r docs; chmod +x tool; touch .git/new");
    let (said, _) = all(&scratch, "cd ../m; amalgam status");
    for line in ["m tool", "R src/ -> source/ (5 files)", "D docs/ (2 files)"] {
        assert!(said.lines().any(|found| found == line), "{line}: {said}");
    }
    assert!(said.contains("\n.git: "), "{said}");
    scratch.run("amalgam umount ../m");
}

#[test]
fn hard_links_that_were_made_or_broken_are_changes() {
    let scratch = Scratch::new();
    scratch.run("echo pair > a; ln a b; echo same > c; echo same > d; amalgam init -q");
    let (said, code) = all(&scratch, "amalgam status --exit-code");
    assert_eq!(code, 0, "{said}");
    scratch.run("cp -p a new; mv new a; ln -f c d");
    // The second one finds what the first one found.
    for _ in 0..2 {
        let (said, code) = all(&scratch, "amalgam status --exit-code");
        assert_eq!(code, 4, "{said}");
        for line in ["m a", "m b", "m c", "m d"] {
            assert!(said.lines().any(|found| found == line), "{line}: {said}");
        }
    }
    scratch.run("amalgam undo -q");
    assert_eq!(scratch.run("stat -c %h a b c d"), "2\n2\n1\n1\n");
    let (said, code) = all(&scratch, "amalgam status --exit-code");
    assert_eq!(code, 0, "{said}");
    // A name outside of the directory is no change.
    scratch.run("ln c ../outside");
    let (said, code) = all(&scratch, "amalgam status --exit-code");
    assert_eq!(code, 0, "{said}");
}

#[test]
fn git_alone_is_no_change() {
    let scratch = repository();
    scratch.run("git add -A; git commit -qm more");
    let (said, code) = all(&scratch, "amalgam status --exit-code");
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("nothing changed since") && said.contains(".git: "), "{said}");
    let (said, code) = all(&scratch, "amalgam diff --exit-code");
    assert_eq!(code, 0, "{said}");
    assert!(said.contains(" in .git left out; --with-git shows them"), "{said}");
    assert!(!said.contains("diff --git"), "{said}");
    let (said, code) = all(&scratch, "amalgam diff --exit-code --name-only --with-git");
    assert_eq!(code, 4, "{said}");
    assert!(said.contains(".git/index") && !said.contains("left out"), "{said}");
    assert!(scratch.run("amalgam diff --name-only .git").contains(".git/index"));
    assert!(scratch.run("amalgam diff --stat 2>&1").contains("left out"));
}

#[test]
fn status_says_nothing_of_collections_unless_room_is_short() {
    let scratch = repository();
    scratch.run("amalgam gc -q --grace none");
    let (said, _) = all(&scratch, "amalgam status");
    assert!(!said.contains("room:"), "{said}");
    assert!(all(&scratch, "amalgam status -v").0.contains("room:"));
    scratch.run("amalgam config set workspace.quota 1 > /dev/null");
    let (said, _) = all(&scratch, "amalgam status");
    assert!(said.contains("room:") && said.contains("warning:"), "{said}");
}

#[test]
fn bare_workspace_names_times_operations_and_ranges_are_revisions() {
    let scratch = repository();
    scratch.run("amalgam fork -q idea; sleep 1.1; echo 4 > n; amalgam commit -q -m four");
    for (revision, text) in [
        ("project", "4"),
        ("idea", "3"),
        ("idea~1", "2"),
        ("@{1 second ago}", "3"),
        ("project@{now}", "4"),
        ("one~0", ""),
    ] {
        let said = scratch.output(&format!("amalgam show '{revision}:n'"));
        assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), text, "{revision}: {said:?}");
    }
    let operations = scratch.run("amalgam op log --json --workspace project");
    let operations: Vec<Value> = operations.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let before = operations[1]["sequence"].as_u64().expect("a number");
    assert_eq!(scratch.run(&format!("amalgam cat '@{{op:{before}}}' n")).trim(), "3");
    assert_eq!(scratch.run("amalgam diff --name-only idea project").trim(), "n");
    assert_eq!(scratch.run("amalgam diff --name-only idea..").trim(), "n");
    assert_eq!(scratch.run("amalgam diff --name-only one..idea").trim(), "n");
    assert_eq!(scratch.run("amalgam log idea..project").lines().count(), 1);
    assert_eq!(scratch.run("amalgam log one..@~").lines().count(), 2);
    scratch.run("amalgam label here idea; amalgam checkout -q idea ../idea; amalgam restore -q idea; amalgam fork -q deep --from idea");
    assert_eq!(scratch.run("cat n").trim(), "3");
    let sent = "amalgam send -q idea -o ../idea.stream; AMALGAM_STORE=../second amalgam receive --json ../idea.stream";
    assert!(scratch.run(sent).contains("\"workspace/idea\""), "a bare name is sent under its name");
    scratch.run("AMALGAM_STORE=../second amalgam stop -q");
    let (said, code) = all(&scratch, "amalgam show '@{next week}'");
    assert_eq!(code, 1);
    assert!(said.contains("`next week` is not a time; write 10 minutes ago"), "{said}");
    let help = scratch.run("amalgam help revisions");
    assert!(help.contains("@{yesterday 14:00}") && help.contains("A..B"), "{help}");
}

#[test]
fn a_name_that_is_a_revision_and_a_path_is_not_guessed() {
    let scratch = repository();
    scratch.run("amalgam fork -q docs");
    let (said, code) = all(&scratch, "amalgam restore docs");
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("`docs` is a revision and a path; put -- before paths"), "{said}");
    scratch.run("rm -r docs");
    let (said, code) = all(&scratch, "amalgam restore docs");
    assert_eq!(code, 2, "gone from the disk, but in the last snapshot: {said}");
    scratch.run("amalgam restore -q -- docs; test -e docs/a.md");
}

#[test]
fn log_shows_changes_and_numbers_and_only_this_project() {
    let scratch = repository();
    assert_eq!(scratch.run("amalgam log -2").lines().count(), 2);
    let stat = scratch.run("amalgam log -2 --oneline --stat");
    assert!(stat.contains("\nM n  +1 -1\n") && stat.contains("\nA n  +1 -0\n"), "{stat}");
    let patch = scratch.run("amalgam log -1 -p");
    assert!(patch.contains("    three\n") && patch.contains("-2\n+3\n"), "{patch}");
    assert_eq!(all(&scratch, "amalgam log -n 1 -2").1, 2);
    let (said, code) = all(&scratch, "amalgam log -5 -6");
    assert!(code == 2 && said.contains("-5 and -6 are two numbers"), "{said}");
    scratch.run("amalgam fork -q idea; mkdir ../other; cd ../other; echo o > o; amalgam init -q; amalgam label theirs");
    let graph = scratch.run("amalgam log --graph");
    assert!(graph.contains("idea") && !graph.contains("other"), "{graph}");
    assert!(scratch.run("amalgam log --graph --all").contains("other"));
    let (said, code) = all(&scratch, "amalgam log projct");
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("`projct` is neither a path nor a revision") && said.contains("project"), "{said}");
    assert_eq!(all(&scratch, "amalgam diff projct").1, 1);
    // A path that was, and is not any more, is one.
    scratch.run("rm n; amalgam commit -q -m gone");
    assert_eq!(scratch.run("amalgam log n").lines().count(), 3);
}

#[test]
fn files_are_listed_printed_searched_and_found_at_any_revision() {
    let scratch = repository();
    scratch.run(
        "rm src/1.rs docs/a.md; echo 'needle [1]' > src/2.rs; printf 'a\\0needle' > bin; amalgam commit -q -m four",
    );
    let listed = scratch.run("amalgam ls src");
    assert!(listed.contains("2.rs") && !listed.contains("1.rs") && listed.contains("deep/"), "{listed}");
    assert!(scratch.run("amalgam ls one src").contains("1.rs"));
    assert!(scratch.run("amalgam ls --recursive one:src").contains("src/deep/d.rs"));
    assert_eq!(scratch.run("cd src; amalgam cat one 1.rs ./2.rs"), "text 1\ntext 2\n");
    assert_eq!(scratch.run("amalgam cat one:src/1.rs"), "text 1\n");
    assert_eq!(all(&scratch, "amalgam cat one:src").1, 1);
    assert_eq!(scratch.run("amalgam grep needle"), "bin: a binary file matches\nsrc/2.rs:1: needle [1]\n");
    assert_eq!(scratch.run("amalgam grep -F '[1]' src"), "src/2.rs:1: needle [1]\n");
    assert_eq!(scratch.run("amalgam grep -i 'TEXT \\d' one -- src/1.rs"), "src/1.rs:1: text 1\n");
    assert_eq!(scratch.run("amalgam grep --files-with-matches . one docs"), "docs/a.md\ndocs/b.md\n");
    assert_eq!(all(&scratch, "amalgam grep nowhere").1, 1);
    let (said, code) = all(&scratch, "amalgam grep '('");
    assert!(code == 1 && said.contains("unclosed group"), "{said}");
    let found = scratch.run("amalgam find '*.md'");
    let lines: Vec<_> = found.lines().collect();
    assert_eq!(lines.len(), 2, "{found}");
    assert!(lines[0].ends_with("  docs/b.md"), "{found}");
    assert!(lines[1].contains("  docs/a.md  gone since "), "{found}");
    assert_eq!(scratch.run("amalgam find --gone 'src/*.rs'").lines().count(), 1);
    // The newest snapshot that has it can be used at once.
    scratch.run("amalgam restore $(amalgam find docs/a.md | cut -d' ' -f1) -- docs/a.md; test -e docs/a.md");
    assert_eq!(all(&scratch, "amalgam find 'nowhere*'"), ("nothing found\n".to_owned(), 1));
}

#[test]
fn a_command_line_that_cannot_be_read_is_a_failure_in_the_form_that_is_wanted() {
    let scratch = Scratch::new();
    let done = scratch.output("amalgam status --json --nowhere");
    assert_eq!(done.status.code(), Some(2));
    let line: Value = serde_json::from_slice(&done.stderr).expect("JSON");
    assert_eq!((&line["type"], &line["reason"]), (&"error".into(), &"USAGE".into()));
    let done = scratch.output("amalgam --json stash");
    let line: Value = serde_json::from_slice(&done.stderr).expect("JSON");
    assert_eq!((done.status.code(), &line["message"]), (Some(2), &"there is no command `stash`".into()));
    let (said, code) = all(&scratch, "amalgam reset");
    assert_eq!(code, 2);
    assert_eq!(
        said.trim(),
        "error: there is no command `reset`; `amalgam undo` takes the last thing back, `amalgam restore REV` goes back to a snapshot"
    );
    let (said, code) = all(&scratch, "amalgam run -- sh -c 'exit 3' --json --nowhere");
    assert!(code != 2, "words behind -- are the command's own: {said}");
    let help = scratch.run("amalgam help");
    assert!(help.contains("\nGo back:\n") && help.contains("../try-{n}"), "{help}");
    assert_eq!(scratch.run("amalgam --help"), help);
    assert_eq!(scratch.run("amalgam help restore"), scratch.run("amalgam restore --help"));
    let (said, code) = all(&scratch, "amalgam help nothing");
    assert!(code == 2 && said.contains("there is no command `nothing`"), "{said}");
}

#[test]
fn quiet_commands_print_results_only() {
    let scratch = repository();
    let mut loud = Vec::new();
    for line in [
        "echo 4 > n; amalgam commit -q",
        "echo 5 > n; amalgam undo -q",
        "amalgam redo -q",
        "amalgam restore -q @~",
        "amalgam label -q here",
        "amalgam label -q here --delete",
        "amalgam fork -q idea",
        "amalgam ws rename -q idea thought",
        "amalgam ws rm -q --yes thought",
        "amalgam ws undelete -q thought",
        "amalgam checkout -q @ ../out",
        "amalgam run -q -- true",
        "amalgam watch -q --background",
        "amalgam watch -q --stop",
        "amalgam gc -q",
        "amalgam verify -q",
        "amalgam config set -q author ann",
        "amalgam backup -q ../backup",
        "amalgam send -q --all -o ../stream",
        "amalgam receive -q ../stream",
        "mkdir ../more; cd ../more; amalgam init -q; amalgam ws detach -q; amalgam ws attach -q",
    ] {
        let (said, code) = all(&scratch, line);
        assert_eq!(code, 0, "{line}: {said}");
        if !said.is_empty() {
            loud.push((line, said));
        }
    }
    assert!(loud.is_empty(), "{loud:#?}");
}

#[test]
fn parts_of_files_are_restored_as_chosen_and_can_be_undone() {
    let scratch = Scratch::new();
    scratch.run("seq 30 > a; seq 5 > b; echo x > gone; amalgam init -q");
    scratch.run(
        "sed -i 's/^2$/two/; s/^15$/fifteen/; s/^29$/twenty-nine/' a; sed -i 's/^3$/three/' b; rm gone; echo new > new",
    );
    // Of a the first and the last hunk; nothing of b; what is gone comes back, what is new stays.
    let (said, code) = all(&scratch, "printf '?\\ny\\nn\\ny\\nn\\ny\\nn\\n' | amalgam restore -p");
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("(2/3) restore this hunk [y,n,a,d,q,?]?") && said.contains("-fifteen"), "{said}");
    assert_eq!(scratch.run("seq 30 | diff - a | grep '^[<>]'"), "< 15\n> fifteen\n");
    assert_eq!(scratch.run("cat b gone new"), "1\n2\nthree\n4\n5\nx\nnew\n");
    scratch.run("amalgam undo -q");
    assert_eq!(scratch.run("grep -c 'two\\|twenty-nine' a"), "2\n");
    assert_eq!(all(&scratch, "echo q | amalgam restore -p -q; test -e gone").1, 1);
    assert_eq!(all(&scratch, "amalgam restore -p --no-input").1, 2);
}

#[test]
fn a_new_directory_is_removed_as_a_whole_or_file_by_file() {
    let scratch = Scratch::new();
    scratch.run("echo x > kept; amalgam init -q; mkdir new; echo a > new/a; echo b > new/b; echo c > new-c");
    let (said, code) = all(&scratch, "printf 'y\\nn\\n' | amalgam restore -p");
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("remove new with everything in it [") && !said.contains("remove new/a"), "{said}");
    assert_eq!(scratch.run("ls; amalgam undo -q; ls new"), "kept\nnew-c\na\nb\n");
    let (said, code) = all(&scratch, "printf 'n\\ny\\nn\\nn\\n' | amalgam restore -p");
    assert_eq!(code, 0, "{said}");
    assert_eq!(scratch.run("ls new; ls"), "b\nkept\nnew\nnew-c\n");
}

#[test]
fn parts_of_files_are_restored_in_a_mount_as_in_a_directory() {
    if !crate::scratch::can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.run("seq 30 > a; echo x > gone; amalgam init -q; amalgam fork -q m --mount ../m --backend fuse");
    scratch.run("cd ../m; sed -i 's/^2$/two/; s/^15$/fifteen/; s/^29$/twenty-nine/' a; rm gone; echo new > new");
    let (said, code) = all(&scratch, "cd ../m; printf 'y\\nn\\ny\\ny\\nn\\n' | amalgam restore -p");
    assert_eq!(code, 0, "{said}");
    assert_eq!(scratch.run("cd ../m; seq 30 | diff - a | grep '^[<>]'; cat gone new"), "< 15\n> fifteen\nx\nnew\n");
    scratch.run("cd ../m; amalgam undo -q");
    assert_eq!(scratch.run("cd ../m; grep -c 'two\\|twenty-nine' a; ls"), "2\na\nnew\n");
    scratch.run("amalgam umount ../m");
}

#[test]
fn the_log_shows_whole_names_of_workspaces_and_labels() {
    let scratch = Scratch::new();
    scratch.run("echo 1 > f; amalgam init -q --workspace main; amalgam fork -q stranger/main; amalgam label -q a/b");
    let (said, _) = all(&scratch, "amalgam log -n1; amalgam show");
    assert_eq!(said.matches("stranger/main").count(), 2, "{said}");
    assert_eq!(said.matches("a/b").count(), 2, "{said}");
    let (said, _) = all(&scratch, "amalgam log -n1 --json");
    let line: Value = serde_json::from_str(said.lines().next().expect("a line")).expect("JSON");
    assert_eq!(line["workspaces"], serde_json::json!(["main", "stranger/main"]), "{said}");
    assert_eq!(line["labels"], serde_json::json!(["a/b"]), "{said}");
}
