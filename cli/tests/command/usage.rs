//! Who takes what: workspaces and snapshots, what they share, and what each commit brought.

use serde_json::Value;

use crate::scratch::Scratch;

/// All lines of JSON of one type that a command prints.
fn lines(scratch: &Scratch, line: &str, kind: &str) -> Vec<Value> {
    let printed = scratch.run(line);
    let lines = printed.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    lines.filter(|line| line["type"] == kind).collect()
}

fn bytes(line: &Value, field: &str) -> u64 {
    line[field]["bytes"].as_u64().unwrap_or_else(|| panic!("{field}: {line}"))
}

fn alive(scratch: &Scratch) -> u64 {
    bytes(&lines(scratch, "amalgam gc --dry-run --grace none --json", "gc")[0], "alive")
}

/// Two workspaces that share 50,000 bytes and have 30,000 and 20,000 of their own.
fn shared() -> Scratch {
    let scratch = Scratch::new();
    scratch.run("head -c 50000 /dev/urandom > both; amalgam init; amalgam fork idea --dir ../idea");
    scratch.run("head -c 30000 /dev/urandom > own; amalgam commit -m own");
    scratch.run("cd ../idea; head -c 20000 /dev/urandom > other; amalgam commit -m other");
    scratch
}

#[test]
fn what_is_shared_and_what_is_its_own_adds_up_to_what_is_alive() {
    let scratch = shared();
    let store = &lines(&scratch, "amalgam du --json", "store_usage")[0];
    let workspaces = lines(&scratch, "amalgam du --json", "workspace_usage");
    assert_eq!(workspaces.iter().map(|line| &line["workspace"]).collect::<Vec<_>>(), ["idea", "project"]);
    for (line, own) in workspaces.iter().zip([20_000, 30_000]) {
        assert_eq!(bytes(line, "reached"), bytes(line, "private") + bytes(line, "shared"), "{line}");
        assert!((own..own + 3_000).contains(&bytes(line, "private")), "{line}");
        assert!((50_000..53_000).contains(&bytes(line, "shared")), "{line}");
        assert_eq!(line["bytes"].as_u64(), Some(50_000 + own), "{line}");
    }
    let own: u64 = workspaces.iter().map(|line| bytes(line, "private")).sum();
    assert_eq!(own + bytes(store, "shared") + bytes(store, "others"), bytes(store, "alive"), "{store}");
    assert_eq!(bytes(store, "alive"), alive(&scratch), "{store}");
    assert_eq!(bytes(store, "others"), 0, "{store}");
    // A label leads to it as well now.
    scratch.run("amalgam label here");
    let after = lines(&scratch, "amalgam du project --json", "workspace_usage");
    assert_eq!(bytes(&after[0], "private"), 0, "{after:?}");
    assert_eq!(bytes(&after[0], "reached"), bytes(&workspaces[1], "reached"));
    let said = scratch.run("amalgam du");
    assert!(said.contains(" stored, of it ") && said.contains(" its own, "), "{said}");
}

#[test]
fn a_workspace_lists_its_snapshots_with_what_each_brought() {
    let scratch = Scratch::new();
    scratch.run("echo a > a; amalgam init");
    let mut grown = Vec::new();
    for number in 1..=3 {
        let before = alive(&scratch);
        scratch.run(&format!("head -c {number}0000 /dev/urandom > f; amalgam commit -m n{number}"));
        grown.insert(0, alive(&scratch) - before);
    }
    let all = lines(&scratch, "amalgam du project --json", "snapshot_usage");
    assert_eq!(all.len(), 4, "{all:?}");
    assert_eq!(all[..3].iter().map(|line| bytes(line, "growth")).collect::<Vec<_>>(), grown);
    assert_eq!((&all[0]["message"], &all[2]["message"]), (&"n3".into(), &"n1".into()));
    for line in &all {
        assert_eq!(bytes(line, "reached"), bytes(line, "private") + bytes(line, "shared"), "{line}");
    }
    assert!(bytes(&all[0], "private") > 30_000 && bytes(&all[1], "private") > 20_000, "{all:?}");
    let quick = lines(&scratch, "amalgam du project --growth --limit 2 --json", "snapshot_usage");
    assert_eq!(quick.iter().map(|line| bytes(line, "growth")).collect::<Vec<_>>(), grown[..2]);
    assert_eq!((&quick[0]["private"], &quick[0]["snapshot"]), (&Value::Null, &all[0]["snapshot"]));
    let one = lines(&scratch, "amalgam du @~ --json", "snapshot_usage");
    assert_eq!(one, all[1..2]);
    assert_eq!(lines(&scratch, "amalgam du project --limit 1 --json", "snapshot_usage"), all[..1]);
    let said = scratch.output("amalgam du project --limit 1");
    assert!(String::from_utf8_lossy(&said.stderr).contains("3 more snapshots; --limit N lists more"), "{said:?}");
}

#[test]
fn thinned_and_purged_things_an_empty_workspace_and_an_unknown_name_are_told_apart() {
    let scratch = Scratch::new();
    scratch.run("echo 1 > n; amalgam init; mkdir ../void; cd ../void; amalgam init");
    for number in 2..=4 {
        scratch.run(&format!("head -c 5000 /dev/urandom > n; amalgam commit -m n{number}"));
    }
    scratch.run("amalgam config set retention.people.all none; amalgam gc --grace none");
    let all = lines(&scratch, "amalgam du project --json", "snapshot_usage");
    assert_eq!(all.iter().map(|line| &line["thinned"]).collect::<Vec<_>>(), [false, true, true, true]);
    assert_eq!((&all[1]["growth"], all[0]["growth"].is_null()), (&Value::Null, false));
    assert!(bytes(&all[1], "reached") < 1_000, "only its record: {all:?}");
    assert!(scratch.run("amalgam du project --growth").contains("gone"));

    scratch
        .run("amalgam config unset retention.people.all; echo secret > key; amalgam commit; amalgam purge key --yes");
    let after = lines(&scratch, "amalgam du project --json", "snapshot_usage");
    assert_eq!(after.len(), 5);
    assert!(bytes(&after[0], "growth") > 0, "{after:?}");

    let void = lines(&scratch, "amalgam du void --json", "workspace_usage");
    assert_eq!((&void[0]["files"], &void[0]["bytes"]), (&0.into(), &0.into()));
    assert!(bytes(&void[0], "reached") < 1_000, "{void:?}");

    let done = scratch.output("amalgam du nowhere");
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    let log = scratch.output("amalgam log nowhere@");
    assert_eq!(done.status.code(), log.status.code());
    assert!(String::from_utf8_lossy(&done.stderr).contains("nowhere"), "{done:?}");
    assert_eq!(scratch.output("amalgam du --growth").status.code(), Some(2));
}

#[test]
fn a_measuring_beside_two_that_commit_does_not_fail_and_neither_do_they() {
    let scratch = shared();
    let write = |folder: &str| {
        format!(
            "(cd ../{folder}; while test ! -e ../stop; do head -c 9000 /dev/urandom > more; amalgam commit -q -m more \
             || echo {folder} >> ../failed; done) & "
        )
    };
    let measure =
        "for n in 1 2 3 4 5; do amalgam du > ../said && amalgam du project > ../said || echo du >> ../failed; done";
    scratch.run(&format!("{} {} {measure}; touch ../stop; wait", write("project"), write("idea")));
    assert!(!scratch.path().join("failed").exists(), "{:?}", std::fs::read_to_string(scratch.path().join("failed")));
    let store = &lines(&scratch, "amalgam du --json", "store_usage")[0];
    assert_eq!(bytes(store, "alive"), alive(&scratch), "{store}");
    assert!(scratch.run("amalgam verify").contains("all is well"));
}
