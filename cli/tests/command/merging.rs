//! Merging through the real command: rules of a project, files that a command makes, decisions that are remembered, and
//! publishing by itself.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::scratch::Scratch;

/// Two forks of a project, each with a directory beside it.
fn forks(files: &str) -> Scratch {
    let scratch = Scratch::new();
    scratch.run(&format!("{files}; amalgam init --workspace main -q; amalgam fork -q ann bob --dir '../{{name}}'"));
    scratch
}

/// What a line prints, both streams, whatever it ends with.
fn said(scratch: &Scratch, line: &str) -> String {
    let done = scratch.output(&format!("{{ {line}; }} 2>&1"));
    String::from_utf8(done.stdout).expect("text")
}

/// Whether commands can run in `bwrap` here; says so if not.
#[allow(clippy::print_stderr, reason = "a test that cannot be run here says so")]
fn can_box() -> bool {
    let mut command = Command::new("bwrap");
    command.args(["--unshare-all", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "true"]);
    let can = command.output().is_ok_and(|done| done.status.success());
    if !can {
        eprintln!("not run: bwrap is not installed (package bubblewrap), or user namespaces are not allowed");
    }
    can
}

/// A rule that makes a lock file from what it locks, in an unusual place: what a shell can do in a line.
const LOCKED: &str = "mkdir .amalgam; printf '[[rule]]\\npath = \"lock\"\\nway = \"regenerate\"\\ncommand = \"sort wanted-* > lock\"\\n' \
    > .amalgam/rules.toml; echo base > wanted-base; echo base > lock";

#[test]
fn a_lock_file_is_made_anew_by_a_merge_and_by_the_queue() {
    if !can_box() {
        return;
    }
    for merge in ["amalgam merge bob", "amalgam complete bob"] {
        let scratch = forks(LOCKED);
        for agent in ["ann", "bob"] {
            scratch.run(&format!("cd ../{agent}; echo {agent} > wanted-{agent}; sort wanted-* > lock"));
        }
        assert!(said(&scratch, "amalgam complete ann").contains("2 paths"));
        let told = said(&scratch, merge);
        assert!(told.contains("merged lock (regenerate)"), "{merge}: {told}");
        assert_eq!(scratch.run("cat lock"), "ann\nbase\nbob\n");
        assert_eq!(scratch.run("amalgam conflicts"), "");
    }
}

#[test]
fn a_command_of_a_rule_has_no_network_and_writes_to_its_directory_alone() {
    if !can_box() {
        return;
    }
    let scratch = forks("true");
    let outside = [scratch.path().join("outside"), std::env::current_dir().expect("here").join("outside")];
    let [tried, elsewhere] = outside.each_ref().map(|path| path.display().to_string());
    let command = format!(
        "touch '{tried}' '{elsewhere}' 2>/dev/null; tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' ' > lock; \
         pwd | grep -c tree >> lock"
    );
    let rule = format!("[[rule]]\npath = \"lock\"\nway = \"regenerate\"\ncommand = {command:?}\n");
    std::fs::create_dir(scratch.project().join(".amalgam")).expect("made");
    std::fs::write(scratch.project().join(".amalgam/rules.toml"), rule).expect("written");
    for agent in ["ann", "bob"] {
        scratch.run(&format!("cd ../{agent}; echo {agent} > lock"));
    }
    scratch.run("amalgam commit -q; amalgam complete -q ann");
    let told = said(&scratch, "amalgam merge bob");
    assert!(told.contains("merged lock (regenerate)"), "{told}");
    assert_eq!(scratch.run("cat lock"), "lo\n1\n", "only its own loopback is there");
    assert!(!outside.iter().any(|path| path.exists()), "everything else is read-only, or its own");
}

#[test]
fn without_bwrap_the_conflict_stays_and_it_is_said_what_to_install() {
    for (merge, left) in
        [("amalgam merge bob", "merged into main with 1 conflict left"), ("amalgam complete bob", "waits")]
    {
        let scratch = forks(LOCKED);
        for agent in ["ann", "bob"] {
            scratch.run(&format!("cd ../{agent}; echo {agent} > lock"));
        }
        scratch.run("amalgam complete -q ann; amalgam stop -q");
        // Everything that is needed but that one program.
        let tools = scratch.path().join("tools");
        std::fs::create_dir(&tools).expect("made");
        let found = scratch.run("command -v amalgam sh sort");
        for tool in found.lines() {
            let name = tool.rsplit('/').next().expect("a name");
            std::os::unix::fs::symlink(tool, tools.join(name)).expect("linked");
        }
        let told = said(&scratch, &format!("export PATH='{}'; {merge}", tools.display()));
        assert!(told.contains("install bubblewrap") && told.contains(left), "{merge}: {told}");
    }
}

#[test]
fn the_rules_of_the_target_hold_and_not_those_that_come_in() {
    let scratch = forks("echo 1 > notes; echo 1 > data.bin; mkdir .amalgam; echo '# none yet' > .amalgam/rules.toml");
    let rule = |path: &str, way: &str| {
        format!("printf '\\n[[rule]]\\npath = \"{path}\"\\nway = \"{way}\"\\n' >> .amalgam/rules.toml")
    };
    scratch.run("cd ../ann; echo ann > notes");
    scratch.run(&format!("cd ../bob; echo bob > notes; {}", rule("notes", "theirs")));
    scratch.run("amalgam complete -q ann");
    let told = said(&scratch, "amalgam complete bob");
    assert!(told.contains("conflict notes"), "what comes in does not decide: {told}");
    // Said by the target itself, it holds.
    let explained =
        said(&scratch, &format!("{}; amalgam commit -q; amalgam rules explain notes", rule("notes", "theirs")));
    assert!(
        explained.contains("notes: theirs") && explained.contains("by `notes` in .amalgam/rules.toml of main, line 3")
    );
    let told = said(&scratch, "amalgam merge bob");
    assert!(told.contains("theirs notes (theirs)"), "{told}");
    assert_eq!(scratch.run("cat notes"), "bob\n");
}

#[test]
fn rules_go_from_the_call_over_the_project_and_the_store_to_those_built_in() {
    let scratch = forks("echo 1 > notes");
    let why = |more: &str| said(&scratch, &format!("amalgam rules explain notes {more}"));
    assert!(why("").contains("in built in, line"));
    std::fs::write(scratch.path().join("store/merge.toml"), "[[rule]]\npath = \"notes\"\nway = \"union\"\n")
        .expect("written");
    assert!(why("").contains("notes: union") && why("").contains("merge.toml, line 1"));
    scratch.run("mkdir .amalgam; printf '# ours\\n[[rule]]\\npath = \"notes\"\\nway = \"review\"\\n' > .amalgam/rules.toml; amalgam commit -q");
    assert!(
        why("").contains("notes: review") && why("").contains(".amalgam/rules.toml of main, line 2"),
        "{}",
        why("")
    );
    assert!(why("--way notes=ours").contains("in this call, line 1"));
    assert!(why("--into ann").contains("merge.toml, line 1"), "ann was forked before");
    let shown = said(&scratch, "amalgam rules");
    assert!(
        shown.find("merge.toml").expect("the store's")
            < shown.find(".amalgam/rules.toml of main").expect("the project's")
    );
}

#[test]
fn bad_rules_of_a_project_are_refused_by_file_line_and_column() {
    let scratch = forks("echo 1 > notes; mkdir .amalgam; touch .amalgam/rules.toml");
    let bad = "printf '\\n[[rule]]\\npath = \"notes\"\\nway = \"nonsense\"\\n' > .amalgam/rules.toml";
    let checked = said(&scratch, &format!("cd ../ann; {bad}; amalgam rules check .amalgam/rules.toml; echo $?"));
    assert!(checked.contains("rules.toml, line 4, column 7: ") && checked.ends_with("1\n"), "{checked}");
    // Nobody can bring such rules in through the queue.
    let told = said(&scratch, "amalgam complete ann; echo $?");
    assert!(told.contains(".amalgam/rules.toml of ann, line 4, column 7") && told.ends_with("5\n"), "{told}");
    // In the target they stop merges, and say where to mend them.
    let told = said(&scratch, &format!("{bad}; amalgam commit -q; echo 2 > ../bob/notes; amalgam merge bob; echo $?"));
    assert!(told.contains(".amalgam/rules.toml of main, line 4, column 7") && told.ends_with("1\n"), "{told}");
    for merge in ["amalgam merge bob", "amalgam publish bob"] {
        let told = said(&scratch, &format!("echo > .amalgam/rules.toml; {merge}; echo $?"));
        assert!(told.ends_with("\n0\n"), "mending the file is enough: {told}");
        scratch.run(&format!("amalgam undo -q; {bad}; amalgam commit -q"));
    }
}

#[test]
fn what_was_decided_once_is_decided_for_the_same_conflict_again() {
    for again in ["amalgam merge bob", "amalgam complete bob"] {
        let scratch = forks("printf 'top\\none\\nend\\n' > notes");
        for agent in ["ann", "bob"] {
            scratch.run(&format!("cd ../{agent}; sed -i s/one/{agent}/ notes"));
        }
        scratch.run("amalgam complete -q ann");
        assert!(said(&scratch, "amalgam merge bob").contains("with 1 conflict left"));
        assert!(said(&scratch, "amalgam log -n 1").contains("[1 conflict]"));
        scratch.run("printf 'top\\nboth\\nend\\n' > notes; amalgam commit -q -m decided");
        scratch.run("amalgam undo -q; amalgam undo -q");
        assert_eq!(scratch.run("cat notes"), "top\nann\nend\n");
        let told = said(&scratch, again);
        assert!(told.contains("merged notes (remembered)"), "{again}: {told}");
        assert_eq!(scratch.run("cat notes"), "top\nboth\nend\n");
        assert!(!said(&scratch, "amalgam log -n 1").contains("conflict]"));
    }
}

#[test]
fn what_the_queue_leaves_in_the_tree_is_counted_and_a_review_says_who_made_what() {
    let scratch = forks("echo one > notes");
    for agent in ["ann", "bob"] {
        scratch.run(&format!("cd ../{agent}; echo {agent} > notes; AMALGAM_AUTHOR={agent} amalgam commit -q"));
    }
    scratch.run("amalgam complete -q ann");
    assert!(said(&scratch, "amalgam complete bob").contains("waits for a person"));
    let id = "$(amalgam review --json | sed -n 's/.*\"id\":\"\\([0-9a-f]*\\)\".*/\\1/p')";
    let shown = said(&scratch, &format!("amalgam review show {id}"));
    let line =
        |word: &str| shown.lines().find(|line| line.trim_start().starts_with(word)).unwrap_or_default().to_owned();
    assert!(line("base").contains("in main, operation "), "{shown}");
    assert!(line("ours").contains("by ann in ann, operation "), "{shown}");
    assert!(line("theirs").contains("by bob in bob, operation "), "{shown}");
    assert!(line("theirs").ends_with("(capture)"), "{shown}");
    let told = said(&scratch, &format!("amalgam review accept {id}"));
    assert!(told.contains("with 1 conflict left"), "{told}");
    assert!(said(&scratch, "amalgam log -n 1").contains("[1 conflict]"));
}

#[test]
fn a_workspace_is_published_by_itself_on_a_commit() {
    let scratch = forks("echo one > notes");
    let told = said(&scratch, "amalgam publish ann --on-commit");
    assert!(told.contains("ann is published into main after each commit"), "{told}");
    scratch.run("cd ../ann; echo two > notes; amalgam commit -q");
    let begun = Instant::now();
    while scratch.run("cat notes") != "two\n" {
        assert!(begun.elapsed() < Duration::from_secs(120), "{}", said(&scratch, "amalgam ws show ann"));
        std::thread::sleep(Duration::from_millis(50));
    }
    let shown = said(&scratch, "amalgam ws show ann; cd ../ann; amalgam status; amalgam queue");
    assert_eq!(shown.matches("into main after each commit; last ").count(), 3, "{shown}");
    let told = said(&scratch, "amalgam publish ann --manual; amalgam ws show ann");
    assert!(told.contains("when somebody asks for it") && !told.contains("Published"), "{told}");
    for (arguments, why) in [
        ("--every 30", "30s, 5m"),
        ("--every 0s", "at least 1s"),
        ("--every 9999d", "a year"),
        ("--every 1h --manual", "cannot be used with"),
        ("--on-commit --into ann", "cannot be published into itself"),
        ("--on-commit --into nobody", "nobody"),
    ] {
        let told = said(&scratch, &format!("amalgam publish ann {arguments}; echo $?"));
        assert!(told.contains(why) && !told.ends_with("\n0\n"), "{arguments}: {told}");
    }
}

/// All that a dry run must leave as it is: operations, workspaces, what waits, and what is in the directories.
fn everything(scratch: &Scratch) -> String {
    let lists = "amalgam op log --json; amalgam ws list --json; amalgam queue --json; amalgam review --json";
    said(scratch, &format!("{lists}; cd ..; find project ann bob -type f | sort | xargs grep -H ''"))
}

#[test]
fn a_dry_run_says_what_would_be_captured_and_merged_and_changes_nothing() {
    let scratch = forks("echo 1 > a; echo 1 > b");
    scratch.run("echo mine > b; cd ../ann; echo ann > a; echo new > n; echo same > c; cd ../bob; echo same > c");
    let before = everything(&scratch);
    let captured = "would capture the directory of ann first: 2 added, 1 modified, 0 removed";
    let complete = said(&scratch, "amalgam complete ann --dry-run --test false; echo $?");
    for words in [
        captured,
        "would capture the directory of main first: 0 added, 1 modified, 0 removed",
        "would change 3 paths of main; nothing was changed",
        "the test was not run",
        "ann would end",
        "\n0\n",
    ] {
        assert!(complete.contains(words), "{words}: {complete}");
    }
    let publish = said(&scratch, "amalgam publish ann --dry-run");
    assert!(publish.contains(captured) && publish.contains("would change 3 paths of main"), "{publish}");
    assert!(!publish.contains("would end"), "{publish}");
    // What two sources change alike is one path.
    let merge = said(&scratch, "amalgam merge ann bob --dry-run");
    assert!(merge.contains(captured) && merge.contains("would change 3 paths of main; nothing"), "{merge}");
    let line = said(&scratch, "amalgam complete ann --dry-run --json");
    assert!(line.contains(r#""dry_run":true"#) && line.contains(r#""captures":[{"#), "{line}");
    assert_eq!(everything(&scratch), before);
    // It was right, and then bob's is not clean any more.
    scratch.run("amalgam complete -q ann; cd ../bob; echo bob > a");
    let before = everything(&scratch);
    let told = said(&scratch, "amalgam complete bob --dry-run; echo $?");
    assert!(
        told.contains("conflict a (contents") && told.contains("would wait for a person, with 1 conflict"),
        "{told}"
    );
    assert!(told.ends_with("\n5\n"), "{told}");
    assert_eq!(everything(&scratch), before);
    let told = said(&scratch, "amalgam publish bob --dry-run --every 30s");
    assert!(told.contains("cannot be used with"), "{told}");
}

#[test]
fn what_both_moved_waits_for_a_person_and_nothing_of_it_is_lost() {
    let scratch = forks("echo 'words that can be known again' > a");
    scratch.run("cd ../ann; mv a x; cd ../bob; mv a y; cd ../project; amalgam complete -q ann");
    let told = said(&scratch, "amalgam complete bob; echo $?");
    assert!(told.contains("(moved twice)") && told.ends_with("\n5\n"), "{told}");
    assert!(said(&scratch, "amalgam review").contains("bob"));
    assert_eq!(scratch.run("ls; ls ../bob"), "x\ny\n");
    let told = said(&scratch, "amalgam merge bob; ls");
    assert!(told.contains("(moved twice)") && told.ends_with("x\ny\n"), "{told}");
}
