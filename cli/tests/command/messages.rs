//! Messages that say what happened and what to do next, as a person meets them in the first hour.

use std::process::Output;

use crate::scratch::Scratch;

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_root_of_a_plan_is_shown_as_a_dot() {
    let scratch = Scratch::new();
    scratch.run("echo a > a; amalgam init; chmod 711 .");
    let plan = scratch.run("amalgam restore @ --dry-run");
    assert!(plan.contains("m .\n"), "{plan}");
    assert!(scratch.run("amalgam restore @ --dry-run --json").contains("\"path\":\"\""), "programs get the path");
}

#[test]
fn undelete_says_how_to_get_the_files_in_one_command() {
    let scratch = Scratch::new();
    scratch.run("echo a > a; amalgam init; amalgam fork idea; amalgam ws rm idea --yes");
    let printed = scratch.run("amalgam ws undelete idea");
    let command = printed.split('`').nth(1).expect("a command").replace("DIR", "../idea");
    scratch.run(&command);
    assert!(scratch.run("cd ../idea; amalgam status; cat a").ends_with("a\n"));
}

#[test]
fn fork_refuses_options_that_have_no_effect() {
    let scratch = Scratch::new();
    scratch.run("echo a > a; amalgam init");
    for (options, named) in [
        ("--threads 3", "--threads"),
        ("--backend checkout --threads 3", "--threads"),
        ("--dir ../x --writeback", "--writeback"),
        ("--backend fuse", "--backend"),
        ("--for build", "--for"),
        ("--explain", "--explain"),
        ("--allow-other", "--allow-other"),
    ] {
        let done = scratch.output(&format!("amalgam fork idea {options}"));
        assert_eq!(done.status.code(), Some(2), "{options}: {}", said(&done));
        assert!(said(&done).contains(&format!("{named} works only with --mount")), "{options}: {}", said(&done));
    }
    let done = scratch.output("amalgam fork idea --mount ../x --backend checkout --threads 3");
    assert_eq!(done.status.code(), Some(2), "{}", said(&done));
    assert!(said(&done).contains("--backend checkout mounts nothing"), "{}", said(&done));
    assert!(!scratch.run("amalgam ws").contains("idea"), "nothing was forked");
    scratch.run("amalgam fork idea --dir ../idea");
}

#[test]
fn checkout_refuses_options_that_need_a_directory() {
    let scratch = Scratch::new();
    scratch.run("echo a > a; amalgam init --workspace main");
    let done = scratch.output("amalgam checkout main --detached");
    assert_eq!(done.status.code(), Some(2), "{}", said(&done));
    scratch.run("amalgam checkout main ../apart --detached; test -f ../apart/a");
}

#[test]
fn redo_by_number_says_when_there_was_no_undo() {
    let scratch = Scratch::new();
    scratch.run("echo a > a; amalgam init; amalgam label here; amalgam label there");
    let first = scratch.output("amalgam redo --op 1");
    assert!(!first.status.success());
    assert!(said(&first).contains("operation 1 is not an undo"), "{}", said(&first));
    let last = |scratch: &Scratch| {
        let printed = scratch.run("amalgam op log --json");
        let line: serde_json::Value = serde_json::from_str(printed.lines().next().expect("a line")).expect("JSON");
        line["sequence"].as_u64().expect("a number")
    };
    let labelled = last(&scratch);
    scratch.run(&format!("amalgam undo --op {labelled}"));
    assert!(!scratch.run("amalgam label").contains("there"));
    // By the number of the undo, then by that of the operation.
    scratch.run(&format!("amalgam redo --op {}", last(&scratch)));
    assert!(scratch.run("amalgam label").contains("there"));
    scratch.run(&format!("amalgam undo --op {labelled}; amalgam redo --op {labelled}"));
    assert!(scratch.run("amalgam label").contains("there"));
}

#[test]
fn a_new_store_is_not_collected_in_zero_seconds() {
    let scratch = Scratch::new();
    scratch.run("echo a > a; amalgam init");
    for line in ["amalgam gc --status", "amalgam doctor"] {
        let done = scratch.output(line);
        let printed = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(!printed.contains("in 0 seconds"), "{printed}");
        assert!(
            printed.contains("within a minute")
                || printed.contains("at a quiet moment")
                || printed.contains("running")
                || printed.contains("last collected"),
            "{printed}"
        );
    }
}

#[test]
fn one_change_is_an_it() {
    let scratch = Scratch::new();
    scratch.run("echo a > a; amalgam init; echo b > a");
    assert!(said(&scratch.output("amalgam status")).contains("1 change; `amalgam diff` shows it"));
    scratch.run("echo b > b");
    assert!(said(&scratch.output("amalgam status")).contains("2 changes; `amalgam diff` shows them"));
}

#[test]
fn a_path_in_the_place_of_a_revision_gets_a_hint() {
    let scratch = Scratch::new();
    scratch.run("mkdir src; echo a > src/a; amalgam init");
    for kind in ["tar", "zip"] {
        let done = scratch.output(&format!("amalgam export {kind} src -o ../out"));
        let message = said(&done);
        assert!(message.contains("`src` is a path, not a revision") && message.contains("@ src"), "{message}");
        scratch.run(&format!("amalgam export {kind} @ src -o ../out"));
    }
    let absolute = said(&scratch.output("amalgam export tar @ /o.tar > ../out"));
    assert!(absolute.contains("`/o.tar` is absolute") && absolute.contains("-o FILE"), "{absolute}");
    let unknown = said(&scratch.output("amalgam export tar nothing -o ../out"));
    assert!(!unknown.contains("is a path"), "{unknown}");
}

#[test]
fn a_restored_backup_lists_names_that_people_gave() {
    let scratch = Scratch::new();
    scratch.run("echo a > a; amalgam init; amalgam label works");
    scratch.run("amalgam fork idea --dir ../idea; cd ../idea; echo b > b; amalgam commit -q; amalgam publish -q; amalgam undo -q || true");
    scratch.run("amalgam backup ../backup");
    let printed =
        scratch.run("export AMALGAM_STORE=../second; amalgam restore-backup ../backup; amalgam stop > /dev/null");
    assert!(printed.contains("  workspace project\n") && printed.contains("  label works\n"), "{printed}");
    let names: Vec<_> = printed.lines().filter(|line| line.starts_with("  ")).collect();
    let is_named = |line: &&str| {
        ["  workspace ", "  label ", "  ... and"].iter().any(|start| line.starts_with(start)) || line.contains("record")
    };
    assert!(names.iter().all(is_named), "{printed}");
}

#[test]
fn stop_and_logs_are_in_the_list_of_commands() {
    let scratch = Scratch::new();
    let help = scratch.run("amalgam help");
    assert!(help.contains("\n  stop ") && help.contains("\n  logs "), "{help}");
}

#[test]
fn settings_take_underscores_and_show_hyphens() {
    let scratch = Scratch::new();
    scratch.run("amalgam config set idle_seconds 30; amalgam config set idle-seconds 40");
    assert_eq!(scratch.run("amalgam config get idle_seconds"), "40\n");
    let list = scratch.run("amalgam config");
    assert!(list.contains("idle-seconds = 40") && !list.contains("idle_seconds"), "{list}");
}

#[test]
fn settings_that_processes_change_at_once_are_all_kept() {
    let scratch = Scratch::new();
    let set = "for n in $(seq 20); do amalgam config set -q workspace.w$n.quota ${n}MB & done; wait; amalgam config";
    let list = scratch.run(set);
    for number in 1..=20 {
        assert!(list.contains(&format!("workspace.w{number}.quota = {number}MB")), "{number}: {list}");
    }
}

#[test]
fn a_setting_of_the_environment_is_the_value_that_is_printed() {
    let scratch = Scratch::new();
    scratch.run("amalgam config set author bob");
    assert_eq!(scratch.run("AMALGAM_AUTHOR=eve amalgam config get author"), "eve\n");
    let printed = scratch.run("AMALGAM_AUTHOR=eve amalgam config get author --json");
    let line: serde_json::Value = serde_json::from_str(&printed).expect("one line of JSON");
    assert_eq!((&line["value"], &line["source"]), (&"eve".into(), &"environment AMALGAM_AUTHOR".into()));
    assert_eq!(scratch.run("env -u AMALGAM_AUTHOR amalgam config get author"), "bob\n");
}
