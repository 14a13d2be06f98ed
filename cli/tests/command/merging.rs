//! Merging through the real command: rules of a project, files that a command makes, decisions that are remembered, and
//! publishing by itself.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::scratch::{Scratch, can_mount};

/// Two forks of a project, each with a directory beside it.
pub(crate) fn forks(files: &str) -> Scratch {
    let scratch = Scratch::new();
    scratch.run(&format!("{files}; amalgam init --workspace main -q; amalgam fork -q ann bob --dir '../{{name}}'"));
    scratch
}

/// What a line prints, both streams, whatever it ends with.
pub(crate) fn said(scratch: &Scratch, line: &str) -> String {
    let done = scratch.output(&format!("{{ {line}; }} 2>&1"));
    String::from_utf8(done.stdout).expect("text")
}

/// Whether commands can run in `bwrap` here; says so if not.
pub(crate) fn can_box() -> bool {
    let mut command = Command::new("bwrap");
    command.args(["--unshare-all", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "true"]);
    let can = command.output().is_ok_and(|done| done.status.success());
    let why = "bwrap is not installed (package bubblewrap), or user namespaces are not allowed";
    amalgam_test_support::has_or_skip("bwrap", can, why)
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
        scratch.run("amalgam rules approve --yes");
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
fn a_group_of_which_two_sources_changed_different_files_is_a_conflict() {
    let scratch = forks(
        "mkdir .amalgam; printf '[[group]]\\npaths = [\"manifest\", \"lock\"]\\n' > .amalgam/rules.toml; \
         echo 1 > manifest; echo 1 > lock",
    );
    scratch.run("cd ../ann; echo 2 > manifest; cd ../bob; echo 2 > lock");
    let told = said(&scratch, "amalgam merge ann bob; echo $?");
    assert!(told.contains("(unit)") && told.ends_with("\n5\n"), "{told}");
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
    scratch.run("amalgam commit -q; amalgam rules approve --yes; amalgam complete -q ann");
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
        scratch.run("amalgam rules approve --yes; amalgam complete -q ann; amalgam stop -q");
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
    for again in ["amalgam merge bob --into try", "amalgam complete bob --into try"] {
        let scratch = disputed_notes();
        scratch.run("amalgam fork -q try");
        assert!(said(&scratch, "amalgam merge bob").contains("with 1 conflict left"));
        assert!(said(&scratch, "amalgam log -n 1").contains("[1 conflict]"));
        scratch.run("printf 'top\\nboth\\nend\\n' > notes; amalgam commit -q -m decided");
        let told = said(&scratch, again);
        assert!(told.contains("merged notes (remembered)"), "{again}: {told}");
        assert!(told.contains("1 conflict was resolved as before, without asking (notes)"), "{again}: {told}");
        assert!(told.contains("`amalgam merge --no-remembered`, or `amalgam conflicts forget "), "{again}: {told}");
        assert_eq!(scratch.run("amalgam show try@:notes"), "top\nboth\nend\n");
        assert!(!said(&scratch, "amalgam log -n 1 try@").contains("conflict]"));
    }
}

/// A project in which `main` has the line of `ann`, and `bob` another one in its place.
fn disputed_notes() -> Scratch {
    let scratch = forks("printf 'top\\none\\nend\\n' > notes");
    for agent in ["ann", "bob"] {
        scratch.run(&format!("cd ../{agent}; sed -i s/one/{agent}/ notes; amalgam commit -q"));
    }
    scratch.run("amalgam complete -q ann");
    scratch
}

#[test]
fn an_undo_of_a_resolution_forgets_it_and_a_merge_can_refuse_one() {
    for resolve in
        ["printf 'top\\nboth\\nend\\n' > notes; amalgam commit -q", "amalgam conflicts resolve -q notes --theirs"]
    {
        let scratch = disputed_notes();
        scratch.run("amalgam fork -q try");
        said(&scratch, "amalgam merge bob");
        scratch.run(resolve);
        assert!(scratch.run("amalgam conflicts remembered").contains("notes -> file"), "{resolve}");
        scratch.run("amalgam undo -q");
        assert_eq!(scratch.run("amalgam conflicts remembered"), "", "{resolve}");
        scratch.run("amalgam undo -q");
        let told = said(&scratch, "amalgam merge bob");
        assert!(told.contains("with 1 conflict left"), "{resolve}: {told}");
        assert!(scratch.run("cat notes").contains(">>>>>>> bob (theirs) [amalgam "), "{resolve}");
        // Remembered by one commit and by another after it: an undo of the first has nothing to say of the second.
        assert!(said(&scratch, "amalgam merge bob --into try").contains("with 1 conflict left"), "{resolve}");
        scratch.run("printf 'top\\nmine\\nend\\n' > notes; amalgam commit -q");
        scratch.run("amalgam conflicts resolve -q notes --theirs --workspace try");
        scratch.run("amalgam undo -q");
        assert!(scratch.run("cat notes").contains("<<<<<<<"), "{resolve}");
        assert!(scratch.run("amalgam conflicts remembered").contains("notes -> file"), "{resolve}");
        // What is remembered can be refused, for once or for ever.
        scratch.run("amalgam undo -q");
        let told = said(&scratch, "amalgam merge bob --no-remembered --dry-run");
        assert!(told.contains(", with 1 conflict;"), "{resolve}: {told}");
        let told = said(&scratch, "amalgam merge bob --dry-run");
        assert!(told.contains("1 conflict would be resolved as before"), "{resolve}: {told}");
        let id = told.split("conflicts forget ").nth(1).and_then(|rest| rest.split('`').next()).expect("an id");
        scratch.run(&format!("amalgam conflicts forget -q {id}"));
        assert!(said(&scratch, "amalgam merge bob").contains("with 1 conflict left"), "{resolve}");
    }
}

#[test]
fn an_undo_of_a_resolution_that_was_never_committed_remembers_nothing() {
    let scratch = disputed_notes();
    said(&scratch, "amalgam merge bob");
    scratch.run("printf 'top\\nboth\\nend\\n' > notes; amalgam undo -q");
    assert!(scratch.run("cat notes").contains(">>>>>>> bob (theirs)"));
    assert_eq!(scratch.run("amalgam conflicts remembered"), "");
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
    // A second look at the same commit may have found nothing new by now.
    assert_eq!(shown.matches("into main after each commit; ").count(), 3, "{shown}");
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
    let lists = "amalgam op log --json; amalgam ws list --json; amalgam queue --json; amalgam review --json; \
                 amalgam conflicts remembered --json; amalgam conflicts --json";
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
}

#[test]
fn a_dry_run_of_a_decision_says_what_it_would_do_and_changes_nothing() {
    let scratch = forks("echo 1 > a; echo 1 > b");
    scratch.run("cd ../ann; echo ann > a; cd ../bob; echo bob > a");
    // One that an undo brought back, one that waits for a person, and a resolution that is remembered.
    scratch.run("amalgam publish -q ann; amalgam complete -q bob; test $? = 5");
    scratch.run("amalgam merge -q bob --into ann; test $? = 5; cd ../ann; amalgam conflicts resolve a --theirs -q");
    scratch.run("echo 2 > ../ann/b; amalgam publish -q ann; amalgam undo -q");
    let id = |list: &str| {
        let line = scratch.run(&format!("amalgam {list} --json"));
        line.split("\"id\":\"").nth(1).and_then(|rest| rest.split('"').next()).expect("an id").to_owned()
    };
    let (entry, review) = (id("queue"), id("review"));
    let resolution = id("conflicts remembered");
    let before = everything(&scratch);
    let queue = format!("amalgam queue release {entry} --dry-run");
    for (line, words) in [
        (queue.as_str(), "would change 2 paths of main; nothing was changed"),
        (&format!("amalgam queue withdraw {entry} --dry-run"), "ann would stay what it is; nothing was changed"),
        (&format!("amalgam review reject {review} --dry-run"), "bob would stay what it is; nothing was changed"),
        (&format!("amalgam review take {review} theirs --dry-run"), "nothing was changed"),
        (&format!("amalgam review accept {review} --dry-run"), "nothing was changed"),
        (&format!("amalgam conflicts forget {resolution} --dry-run"), "1 resolution to forget; nothing was changed"),
        ("amalgam conflicts forget --all --dry-run", "1 resolution to forget; nothing was changed"),
        (
            "amalgam publish bob --every 30s --dry-run",
            "bob would be published into main every 30 s; nothing was changed",
        ),
        ("amalgam publish bob --on-commit --dry-run", "into main after each commit; nothing was changed"),
        ("amalgam publish bob --manual --dry-run", "when somebody asks for it; nothing was changed"),
    ] {
        let told = said(&scratch, line);
        assert!(told.contains(words), "{line}: {told}");
        let told = said(&scratch, &format!("{line} --json"));
        assert!(told.contains(r#""dry_run":true"#), "{line}: {told}");
        assert_eq!(everything(&scratch), before, "{line}");
    }
    // One that would be refused is refused.
    let told = said(&scratch, "amalgam publish bob --on-commit --into bob --dry-run; echo $?");
    assert!(told.contains("cannot be published into itself") && told.ends_with("\n1\n"), "{told}");
    // And what was said comes true.
    scratch.run(&format!("amalgam queue release -q {entry}; amalgam review reject -q {review}"));
    assert_eq!(scratch.run("cat a b; amalgam queue; amalgam review"), "bob\n2\n");
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

#[test]
fn what_both_moved_is_listed_until_it_is_decided() {
    let scratch = forks("echo 'words that can be known again' > a; echo 'others, that can be, too' > b");
    scratch.run("cd ../ann; mv a x; rm b; cd ../bob; mv a y; mv b z; cd ../project; amalgam complete -q ann");
    let told = said(&scratch, "amalgam merge bob; echo $?");
    assert!(told.contains("(moved twice)") && told.ends_with("\n5\n"), "{told}");
    let both = "! x  moved twice: ours x, theirs y\n! z  moved and removed: ours nowhere, theirs z\n";
    assert_eq!(scratch.run("amalgam conflicts"), both);
    assert_eq!(scratch.run("amalgam conflicts list x"), "! x  moved twice: ours x, theirs y\n");
    assert!(said(&scratch, "amalgam conflicts list --exit-code > /dev/null; echo $?").ends_with("5\n"));
    let told = said(&scratch, "amalgam status --exit-code; echo $?");
    assert!(told.contains("2 conflicts") && told.ends_with("5\n"), "{told}");
    assert_eq!(scratch.run("amalgam conflicts show x --version theirs"), "words that can be known again\n");
    assert!(said(&scratch, "amalgam conflicts show x --version base").contains("has no version base"));
    // An edit that is not committed decides it for `status`, too.
    let told = said(&scratch, "mv x elsewhere; amalgam status --exit-code; echo $?; mv elsewhere x");
    assert!(told.contains("1 conflict;") && told.ends_with("5\n"), "{told}");
    let told = said(&scratch, "amalgam undo; amalgam redo");
    assert!(told.contains("2 conflicts;"), "{told}");
    // It is carried on, forked and committed over.
    scratch.run("echo more > n; amalgam commit -q; amalgam fork -q cat");
    assert_eq!(scratch.run("amalgam conflicts list --rev cat@"), both);
    let before = everything(&scratch);
    let told = said(&scratch, "amalgam conflicts resolve x --theirs --dry-run");
    assert!(told.contains("1 conflict to resolve; nothing was changed"), "{told}");
    for (how, why) in [
        ("--base", "it has ours, theirs, and union"),
        ("--edit", "not about contents"),
        ("--file n", "not about contents"),
    ] {
        let told = said(&scratch, &format!("amalgam conflicts resolve x {how}; echo $?"));
        assert!(told.contains(why) && !told.ends_with("\n0\n"), "{how}: {told}");
    }
    assert_eq!(everything(&scratch), before);
    // One name is taken away, and an undo brings both back.
    let told = said(&scratch, "amalgam conflicts resolve x --theirs; ls");
    assert!(
        told.contains("1 conflict resolved") && told.contains("1 file left") && told.ends_with("\nn\ny\nz\n"),
        "{told}"
    );
    assert_eq!(scratch.run("amalgam conflicts"), "! z  moved and removed: ours nowhere, theirs z\n");
    scratch.run("amalgam undo -q");
    assert_eq!(scratch.run("ls; amalgam conflicts"), format!("n\nx\ny\nz\n{both}"));
    // Both names stay, which no file shows; what ours had removed goes.
    scratch.run("amalgam conflicts resolve x --union -q");
    assert_eq!(scratch.run("ls; amalgam conflicts"), "n\nx\ny\nz\n! z  moved and removed: ours nowhere, theirs z\n");
    let told = said(&scratch, "amalgam conflicts resolve --all --ours; ls; amalgam conflicts; amalgam status");
    assert!(told.contains("none is left") && told.contains("\nn\nx\ny\nno conflicts\n"), "{told}");
    assert!(said(&scratch, "amalgam status --exit-code; echo $?").ends_with("0\n"));
    // The fork is where it was, until somebody takes a name away there.
    assert_eq!(scratch.run("amalgam conflicts list --rev cat@"), both);
    scratch.run("amalgam checkout -q cat@ ../cat --workspace cat; rm ../cat/x");
    assert_eq!(scratch.run("cd ../cat; amalgam conflicts"), "! z  moved and removed: ours nowhere, theirs z\n");
    let told = said(&scratch, "cd ../cat; amalgam status --exit-code; echo $?");
    assert!(told.contains("1 conflict;") && told.ends_with("5\n"), "{told}");
    let told = said(&scratch, "cd ../cat; rm z; amalgam status --exit-code; echo $?");
    assert!(told.contains("D z") && told.ends_with("4\n"), "{told}");
    if can_mount() {
        scratch.run("cd ../cat; amalgam restore -q @; amalgam fork -q dee --backend fuse --mount ../dee");
        scratch.run("amalgam umount -q dee; amalgam stop -q");
        let told = said(&scratch, "amalgam mount -q dee ../dee; cd ../dee; echo 1 > new; amalgam commit");
        assert!(told.contains("conflict"), "{told}");
    }
}

#[test]
fn a_file_with_two_conflicts_counts_once_in_merge_and_status() {
    let scratch = forks("printf 'one\\ntwo\\nthree\\nfour\\nfive\\n' >f");
    scratch.run("cd ../ann; mv f g; sed -i s/one/ann/ g; amalgam commit -q");
    scratch.run("cd ../bob; mv f h; sed -i s/one/bob/ h; amalgam commit -q");
    let told = said(&scratch, "cd ../ann; amalgam merge bob");
    assert!(told.contains("with 2 conflicts left"), "{told}");
    let told = said(&scratch, "cd ../ann; amalgam status");
    assert!(told.contains("2 conflicts;"), "{told}");
    assert_eq!(scratch.run("cd ../ann; amalgam conflicts").lines().count(), 3, "each decision is listed");
}

#[test]
fn a_resolution_that_removes_a_file_counts_what_it_ends_about_its_name() {
    let scratch = Scratch::new();
    scratch.run("echo words > z; amalgam init --workspace main -q; amalgam fork -q ann bob cat --dir '../{name}'");
    scratch.run("cd ../ann; mv z y; chmod 700 y; amalgam commit -q; cd ../bob; mv z x; amalgam commit -q");
    scratch.run("cd ../cat; rm z; amalgam commit -q");
    for agent in ["ann", "bob", "cat"] {
        said(&scratch, &format!("amalgam merge -q {agent}"));
    }
    let both = "! x  changed and removed, of main, cat\n! y  moved twice: ours y, theirs x\n";
    assert_eq!(scratch.run("amalgam conflicts"), both);
    let told = said(&scratch, "amalgam conflicts take cat x");
    assert!(told.contains("2 conflicts resolved") && told.contains("none is left"), "{told}");
    assert_eq!(scratch.run("amalgam conflicts; ls"), "y\n");
    scratch.run("amalgam undo");
    assert_eq!(scratch.run("amalgam conflicts"), both);
}

#[test]
fn an_attribute_that_both_set_is_listed_until_it_is_decided() {
    let scratch = forks("echo 1 > a");
    let set = |place: &str, value: &str| {
        let path = scratch.path().join(place).join("a");
        rustix::fs::setxattr(&path, "user.note", value.as_bytes(), rustix::fs::XattrFlags::empty())
    };
    if !has_attributes(set("ann", "ann")) {
        return;
    }
    set("bob", "bob").expect("as before");
    scratch.run("amalgam complete -q ann; amalgam merge -q bob; test $? = 5");
    assert_eq!(scratch.run("amalgam conflicts"), "! a  attribute user.note\n");
    assert_eq!(scratch.run("amalgam conflicts show a --version ours"), "ann");
    assert_eq!(scratch.run("amalgam conflicts show a --version theirs"), "bob");
    let line = scratch.run("amalgam conflicts --json");
    assert!(line.contains(r#""about":"user.note""#) && line.contains(r#""value":"bob""#), "{line}");
    let now = || {
        let mut value = [0; 16];
        let bytes = rustix::fs::getxattr(scratch.project().join("a"), "user.note", &mut value).expect("it is set");
        String::from_utf8(value[..bytes].to_vec()).expect("text")
    };
    scratch.run("amalgam conflicts resolve a --ours -q");
    assert_eq!((scratch.run("amalgam conflicts"), now()), (String::new(), "ann".to_owned()));
    scratch.run("amalgam undo -q");
    assert_eq!(scratch.run("amalgam conflicts"), "! a  attribute user.note\n");
    scratch.run("amalgam conflicts resolve a --theirs -q");
    assert_eq!((scratch.run("amalgam conflicts"), now()), (String::new(), "bob".to_owned()));
    // Whoever sets it to something else has decided.
    scratch.run("amalgam undo -q");
    set("project", "cat").expect("as before");
    assert_eq!(scratch.run("amalgam conflicts"), "");
}

/// Whether files here have attributes; says so if not.
fn has_attributes(set: rustix::io::Result<()>) -> bool {
    if set == Err(rustix::io::Errno::OPNOTSUPP) {
        amalgam_test_support::skip("xattr", "the file system of the temporary directory has no extended attributes");
        return false;
    }
    set.expect("an attribute can be set");
    true
}

#[test]
fn what_landed_stays_though_the_process_died_before_the_directory_followed() {
    for (after, message) in
        [("amalgam complete -q bob", ""), ("amalgam commit -q -m mine; amalgam complete -q bob", "mine")]
    {
        let scratch = forks("echo 1 > a; echo 1 > b; echo 1 > c; printf 'x\\ny\\nz\\n' > text");
        scratch.run("cd ../ann; echo ann > a; echo ann > new; sed -i s/x/ann/ text; cd ../bob; echo bob > b");
        scratch.run("amalgam stop -q; cp -a ../store/directories ../registered; cp -a . ../before");
        scratch.run("amalgam complete -q ann; amalgam stop -q; test $(cat a) = ann");
        // As it is left by a process that dies when the merge has landed and half of the files are written; then somebody edits.
        scratch.run("rm -r ../store/directories; mv ../registered ../store/directories; cp -a ../before/. .");
        scratch.run("test $(cat a) = 1; echo mine > c; sed -i s/z/mine/ text");
        scratch.run(after);
        assert_eq!(scratch.run("cat a b c new text"), "ann\nbob\nmine\nann\nann\ny\nmine\n", "{after}");
        assert_eq!(
            scratch.run("amalgam show main@:a; amalgam show main@:c; amalgam status --exit-code > /dev/null"),
            "ann\nmine\n",
            "{after}"
        );
        assert!(scratch.run("amalgam log").contains(message));
    }
}

#[test]
fn a_test_is_a_line_of_the_shell_or_exact_words() {
    let scratch = forks("echo one > notes");
    scratch.run("cd ../ann; echo two > notes; echo 'exit 3' > fails; amalgam commit -q");
    let line = "amalgam publish ann --test 'grep -q two notes && ! test -e missing'";
    assert!(said(&scratch, line).contains("merged into main"), "{}", said(&scratch, line));
    scratch.run("cd ../ann; echo three > 'a b'; amalgam commit -q");
    // Words are not split, nor read by a shell.
    let words = "amalgam publish ann -- grep -q three 'a b'";
    assert!(said(&scratch, words).contains("merged into main"));
    scratch.run("cd ../ann; echo four > notes; amalgam commit -q");
    let told = said(&scratch, "amalgam complete ann --test 'echo what it said; sh fails'; echo $?");
    assert!(told.contains("what it said") && told.ends_with("\n5\n"), "{told}");
    let id = "$(amalgam review --json | sed -n 's/.*\"id\":\"\\([0-9a-f]*\\)\".*/\\1/p')";
    let shown = said(&scratch, &format!("amalgam review show {id}"));
    assert!(shown.contains("Test:      echo what it said; sh fails\n"), "{shown}");
    let both = said(&scratch, "amalgam publish ann --test true -- true; echo $?");
    assert!(both.contains("cannot be used with") && both.ends_with("\n2\n"), "{both}");
}

#[test]
fn a_test_that_cannot_be_started_is_an_error_and_nothing_waits() {
    let scratch = forks("echo one > notes");
    scratch.run("cd ../ann; echo two > notes; amalgam commit -q");
    let before = scratch.run("amalgam show main@:notes; amalgam queue --json; amalgam review --json");
    for arguments in [
        "publish ann --test 'no-such-program --all'",
        "publish ann --test '/no/such/program'",
        "publish ann --test 'cd . && no-such-program'",
        "publish ann --test './not-in-the-tree'",
        "publish ann --test ./notes",
        "publish ann --test '  '",
        "publish ann --test 'if then'",
        "publish ann -- no-such-program --all",
        "publish ann -- ./not-in-the-tree",
        "publish ann --detach --test no-such-program",
        "publish ann --dry-run --test no-such-program",
        "publish ann --every 1h --test no-such-program",
        "complete ann --test no-such-program",
    ] {
        let told = said(&scratch, &format!("amalgam {arguments}; echo $?"));
        assert!(told.contains("the test could not be started"), "{arguments}: {told}");
        assert!(told.ends_with("\n1\n"), "{arguments}: {told}");
        let after = scratch.run("amalgam show main@:notes; amalgam queue --json; amalgam review --json");
        assert_eq!(after, before, "{arguments}");
    }
    let told = said(&scratch, "amalgam publish ann --json -- no-such-program");
    assert!(told.contains("\"reason\":\"TEST_NOT_STARTED\""), "{told}");
    // The workspace is what it was, and nobody waits for anything.
    assert!(said(&scratch, "amalgam complete ann").contains("ann has ended"));
}

#[test]
fn a_test_that_nobody_waits_for_and_cannot_be_started_is_left_to_a_person() {
    let scratch = forks("echo one > notes");
    scratch.run("cd ../ann; echo two > notes; amalgam commit -q");
    scratch.run("amalgam publish ann --detach --test ./not-in-the-tree");
    let begun = Instant::now();
    while scratch.run("amalgam review --json").is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{}", said(&scratch, "amalgam queue"));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn equal_conflicts_of_two_projects_show_their_own_workspaces() {
    let scratch = Scratch::new();
    let project = |name: &str| {
        format!(
            "mkdir ../{name}; cd ../{name}; echo base > f; amalgam init -q --workspace {name}; \
             amalgam fork -q {name}-idea --dir ../{name}-idea; \
             cd ../{name}-idea; echo theirs > f; amalgam commit -q; cd ../{name}; echo ours > f; amalgam commit -q; \
             amalgam merge -q {name}-idea"
        )
    };
    for name in ["red", "blue"] {
        said(&scratch, &project(name));
    }
    let names = |line: &str| {
        let text = scratch.run(line);
        ["red", "blue"].map(|name| text.contains(&format!("{name}-idea")))
    };
    for (at, name) in ["red", "blue"].into_iter().enumerate() {
        let other = ["blue", "red"][at];
        let own = [at == 0, at == 1];
        assert_eq!(names(&format!("cat ../{name}/f")), own, "{name}");
        assert_eq!(names(&format!("cd ../{name}; amalgam conflicts")), own, "{name}");
        assert_eq!(names(&format!("cd ../{name}; amalgam show @:f")), own, "{name}");
        assert_eq!(names(&format!("cd ../{name}; amalgam grep '<<<|>>>'")), own, "{name}");
        assert_eq!(names(&format!("cd ../{other}; amalgam show {name}@:f")), own, "{name} from {other}");
        assert_eq!(names(&format!("cd ../{name}; amalgam undo -q; amalgam redo -q; cat f")), own, "{name}");
        if crate::scratch::can_mount() {
            let fork =
                format!("cd ../{name}; amalgam fork -q {name}-fork; amalgam mount -q {name}-fork ../{name}-mount");
            assert_eq!(names(&format!("{fork}; cat ../{name}-mount/f")), own, "{name}");
        }
    }
    said(&scratch, "cd ../blue; amalgam conflicts take blue-idea f");
    assert_eq!(scratch.run("cat ../blue/f"), "theirs\n");
}

#[test]
fn a_second_equal_conflict_shows_the_workspaces_of_its_own_merge() {
    let scratch = Scratch::new();
    scratch.run("printf 'a\\nb\\nc\\n' > f; amalgam init -q");
    let pair = |names: [&str; 2]| {
        for (name, line) in names.into_iter().zip(["X", "Y"]) {
            let edit = format!("cd ../{name}; printf 'a\\n{line}\\nc\\n' > f; amalgam commit -q");
            scratch.run(&format!("amalgam fork {name} --dir ../{name} -q; {edit}"));
        }
        said(&scratch, &format!("amalgam merge {} {} -q", names[0], names[1]));
    };
    pair(["w1", "w2"]);
    assert!(scratch.run("cat f").contains("w2"));
    scratch.run("amalgam conflicts take base f --no-remember -q");
    pair(["w3", "w4"]);
    for line in ["cat f", "amalgam conflicts", "amalgam show @:f"] {
        let text = scratch.run(line);
        assert!(text.contains("w3") && text.contains("w4"), "{line}: {text}");
        assert!(!text.contains("w1") && !text.contains("w2"), "{line}: {text}");
    }
}
