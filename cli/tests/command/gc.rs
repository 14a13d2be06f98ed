//! Room that comes back: what a collection frees, what it must not, and what happens where there is no room.

use serde_json::Value;

use crate::scratch::Scratch;

impl Scratch {
    /// The first line of JSON that a command prints.
    fn json(&self, line: &str) -> Value {
        let printed = self.run(line);
        serde_json::from_str(printed.lines().next().expect("a line")).expect("JSON")
    }

    /// The exit code of a command and what it says on standard error.
    fn refused(&self, line: &str) -> (Option<i32>, String) {
        let done = self.output(line);
        (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
    }

    /// The same line of a collection, as soon as one that runs by itself is done.
    fn collect(&self, line: &str) -> Value {
        loop {
            let done = self.output(line);
            match done.status.code() {
                Some(0) => return serde_json::from_slice(&done.stdout).expect("one line of JSON"),
                Some(11) => std::thread::sleep(std::time::Duration::from_millis(50)),
                code => panic!("{line} ended with {code:?}: {}", String::from_utf8_lossy(&done.stderr)),
            }
        }
    }
}

const MEGABYTE: u64 = 1_000_000;

/// A project with a small file, and a workspace `idea` with three megabytes that nothing else has.
fn with_idea() -> Scratch {
    let scratch = Scratch::new();
    scratch.run("echo a > a; amalgam init; amalgam fork idea --dir ../idea");
    scratch.run("cd ../idea; head -c 3000000 /dev/urandom > b; amalgam commit -m big");
    scratch
}

fn freed(done: &Value) -> u64 {
    done["freed"]["bytes"].as_u64().expect("bytes")
}

#[test]
fn a_deleted_workspace_comes_back_within_the_grace_time_and_is_freed_after_it() {
    let scratch = with_idea();
    assert!(scratch.json("amalgam du --exact idea --json")["bytes"].as_u64().expect("bytes") > 3 * MEGABYTE);
    scratch.run("cp ../idea/b ../b; amalgam ws rm idea --dir --yes");
    let kept = scratch.json("amalgam gc --json");
    assert_eq!((freed(&kept), kept["forgotten"].as_u64()), (0, Some(0)));
    scratch.run("amalgam ws undelete idea; amalgam show idea@:b > ../again; cmp ../b ../again");
    scratch.run("amalgam ws rm idea --yes");
    let done = scratch.json("amalgam gc --grace none --json");
    assert!(freed(&done) > 3 * MEGABYTE, "{done}");
    assert_eq!(done["forgotten"], 1);
    assert!(done["disk_bytes_after"].as_u64() < done["disk_bytes_before"].as_u64(), "{done}");
    let (code, said) = scratch.refused("amalgam ws undelete idea");
    assert_eq!(code, Some(1));
    assert!(said.contains("it was forgotten since"), "{said}");
    assert!(scratch.run("amalgam verify --read-data").contains("all is well"));
    assert_eq!(scratch.run("amalgam show @:a"), "a\n");
}

#[test]
fn a_dry_run_changes_nothing() {
    let scratch = with_idea();
    scratch.run("amalgam ws rm idea --dir --yes");
    let log = scratch.run("amalgam op log --json");
    let would = scratch.json("amalgam gc --dry-run --grace none --json");
    assert!(would["dead"]["bytes"].as_u64().expect("bytes") > 3 * MEGABYTE, "{would}");
    assert_eq!((freed(&would), would["forgotten"].as_u64()), (0, Some(1)));
    assert_eq!(scratch.run("amalgam op log --json"), log);
    assert_eq!(scratch.json("amalgam gc --dry-run --grace none --json")["dead"], would["dead"]);
    scratch.run("amalgam ws undelete idea; amalgam show idea@:b > /dev/null");
}

#[test]
fn undo_works_within_the_grace_time_and_says_why_not_after_it() {
    let scratch = Scratch::new();
    scratch
        .run("echo 1 > n; amalgam init; echo 2 > n; amalgam commit; amalgam label here; amalgam label here --delete");
    scratch.run("echo 3 > n; amalgam commit; amalgam undo");
    // The snapshot with 3 hangs on operations alone.
    scratch.run("amalgam gc");
    scratch.run("amalgam redo; test $(cat n) = 3; amalgam undo; test $(cat n) = 2");
    scratch.run("amalgam gc --grace none");
    let (code, said) = scratch.refused("amalgam redo");
    assert_eq!(code, Some(1));
    assert!(said.contains("there is no way to redo operation"), "{said}");
    assert!(said.contains("for the grace time only"), "{said}");
    assert_eq!(scratch.run("cat n"), "2\n");
    assert!(scratch.run("amalgam verify --read-data").contains("all is well"));
}

#[test]
fn thinned_snapshots_keep_their_record_and_labels_keep_trees() {
    let scratch = Scratch::new();
    scratch.run("echo 1 > n; amalgam init");
    for number in 2..=5 {
        scratch.run(&format!("echo {number} >> n; amalgam commit -m n{number}"));
    }
    scratch.run("amalgam label good @~2; amalgam config set retention.people.all none");
    let plan = scratch.run("amalgam gc --plan --grace none");
    let has = |line: &str| plan.lines().filter(|found| found.contains(line)).count();
    assert_eq!(has("goes: no rule keeps it"), 3, "{plan}");
    assert_eq!((has("stays: head of project"), has("stays: label good")), (1, 1), "{plan}");
    assert!(plan.ends_with("snapshots that stay: 2, go soon: 0, go: 3, are thinned already: 0\n"), "{plan}");
    // Within the grace time each of them is one that an undo could need.
    assert_eq!(scratch.json("amalgam gc --json")["thinned"], 0);
    assert_eq!(scratch.json("amalgam gc --grace none --json")["thinned"], 3);
    let (code, said) = scratch.refused("amalgam show @~:n");
    assert_eq!(code, Some(1));
    assert!(said.contains("was dropped by retention"), "{said}");
    let (_, said) = scratch.refused("amalgam restore @~");
    assert!(said.contains("was dropped by retention"), "{said}");
    assert_eq!(scratch.run("amalgam show good:n"), "1\n2\n3\n");
    assert_eq!(scratch.run("amalgam log --json").lines().count(), 5);
    assert_eq!(scratch.run("amalgam blame n").lines().count(), 5);
    assert!(scratch.run("amalgam gc --plan --grace none").contains("gone: its tree was dropped by retention"));
    assert_eq!(scratch.json("amalgam gc --grace none --json")["thinned"], 0);
    assert!(scratch.run("amalgam verify --read-data").contains("all is well"));
}

#[test]
fn above_a_budget_nothing_is_committed_until_room_came_back() {
    let scratch = with_idea();
    // Bring it into tables, so that the figures on the disk are those of what is stored.
    scratch.run("amalgam gc; amalgam config set store.budget 2MB; echo more > more");
    let (code, said) = scratch.refused("amalgam commit");
    assert_eq!(code, Some(13), "{said}");
    assert!(said.contains("of a budget of 2.0 MB, so nothing is committed; delete workspaces"), "{said}");
    let (_, said) = scratch.refused("amalgam status");
    assert!(said.contains("warning: the store takes"), "{said}");
    scratch.run("amalgam ws rm idea --dir --yes; amalgam gc --grace none");
    scratch.run("amalgam commit");
    assert_eq!(scratch.run("amalgam show @:more"), "more\n");
}

#[test]
fn a_quota_and_the_free_floor_are_held() {
    let scratch = Scratch::new();
    scratch.run("echo a > a; amalgam init; amalgam config set workspace.project.quota 100000");
    scratch.run("head -c 95000 /dev/urandom > b");
    let (code, said) = scratch.refused("amalgam commit");
    assert_eq!(code, Some(0));
    assert!(said.contains("warning: project has added 9") && said.contains(" kB of a quota of 100.0 kB"), "{said}");
    scratch.run("head -c 20000 /dev/urandom > c");
    let (code, said) = scratch.refused("amalgam commit");
    assert_eq!(code, Some(13), "{said}");
    assert!(said.contains(" kB of a quota of 100.0 kB, so nothing is committed; take commits back"), "{said}");
    let (_, said) = scratch.refused("amalgam status");
    assert!(said.contains("warning: project has added 9"), "{said}");
    scratch.run("amalgam config unset workspace.project.quota; amalgam config set store.free-floor 1000TB");
    let (code, said) = scratch.refused("amalgam commit");
    assert_eq!(code, Some(13), "{said}");
    assert!(said.contains("its floor is 1.0 PB"), "{said}");
    scratch.run("amalgam config unset store.free-floor; amalgam commit");
}

/// What a fork began with is not its own doing, what came back was there, and what was thinned counts no more.
#[test]
fn a_quota_is_about_what_a_workspace_added_and_what_is_kept_of_it() {
    let scratch = Scratch::new();
    scratch.run("head -c 200000 /dev/urandom > large; amalgam init; amalgam fork idea --dir ../idea");
    scratch.run("amalgam config set workspace.idea.quota 50000");
    let commit = |count: u64| {
        scratch.run(&format!("head -c {count} /dev/urandom > ../idea/f"));
        scratch.refused("cd ../idea; amalgam commit -m more")
    };
    assert_eq!(commit(20_000), (Some(0), String::new()), "far from it");
    scratch.run("cd ../idea; cp f ../first");
    assert_eq!(commit(20_000).0, Some(0));
    scratch.run("cd ../idea; cp ../first f; amalgam commit -m back");
    let (code, said) = commit(20_000);
    assert_eq!(code, Some(13), "{said}");
    assert!(said.contains("idea has added 6") && said.contains(" of a quota of 50.0 kB"), "{said}");
    assert_eq!(scratch.run("amalgam log idea@ --json").lines().count(), 4, "nothing was committed");
    scratch.run("cp ../idea/f ../wanted; cd ../idea; cp ../first f; amalgam commit; cp ../wanted f");
    // The one in the middle goes, and with it what nothing else has.
    scratch.run("amalgam config set workspace.idea.retention.people.all none");
    scratch.collect("amalgam gc --grace none --json");
    scratch.run("cd ../idea; amalgam commit -m wanted; amalgam show @:f | cmp - ../wanted");
    scratch.run("amalgam commit -q; head -c 90000 /dev/urandom > more; amalgam commit");
    assert!(scratch.run("amalgam verify --read-data").contains("all is well"));
}

#[test]
fn a_pause_survives_the_process() {
    let scratch = Scratch::new();
    scratch.run("echo a > a; amalgam init; amalgam gc");
    assert_eq!(scratch.json("amalgam gc --status --json")["last_why"], "asked");
    scratch.run("amalgam gc --pause; amalgam stop");
    assert_eq!(scratch.json("amalgam gc --status --json")["paused"], true);
    assert!(scratch.run("amalgam doctor").contains("; paused"));
    // Whoever asks is answered all the same.
    scratch.run("amalgam gc; amalgam gc --resume");
    assert_eq!(scratch.json("amalgam gc --status --json")["paused"], false);
}

#[test]
fn status_and_doctor_say_what_was_collected_whether_it_is_paused_and_what_comes_next() {
    let scratch = Scratch::new();
    scratch.run("echo a > a; amalgam init");
    let status = |scratch: &Scratch| {
        let printed = scratch.run("amalgam status --json");
        let lines = printed.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        lines.into_iter().find(|line| line["type"] == "collection").expect("a line about collections")
    };
    let (_, said) = scratch.refused("amalgam status");
    assert!(!said.contains("room:"), "a young store has nothing to tell: {said}");
    assert_eq!(status(&scratch)["last_time"], Value::Null);

    let done = scratch.json("amalgam gc --json");
    let (_, said) = scratch.refused("amalgam status -v");
    assert!(said.contains("room: last collected ") && said.contains("; the next one in "), "{said}");
    let told = status(&scratch);
    assert_eq!((&told["last_why"], &told["paused_until"]), (&"asked".into(), &Value::Null));
    let grown = done["disk_bytes_after"].as_u64().expect("bytes") + 256 * MEGABYTE;
    assert_eq!(told["next_bytes"].as_u64(), Some(grown), "{told}");
    assert!(told["next_time"].as_str() > told["last_time"].as_str(), "{told}");
    assert!(scratch.run("amalgam doctor").contains("; the next one in "));

    assert_ne!(scratch.json("amalgam gc --pause --for 2h --json")["paused_until"], Value::Null);
    for told in [scratch.refused("amalgam status -v").1, scratch.run("amalgam doctor")] {
        assert!(told.contains("; paused for 2 hours more;"), "{told}");
    }
    assert_eq!(scratch.json("amalgam gc --pause --json")["paused_until"], Value::Null);
    let (_, said) = scratch.refused("amalgam status -v");
    assert!(said.contains("; paused until `amalgam gc --resume`;"), "{said}");
    assert_eq!(scratch.refused("amalgam gc --for 2h").0, Some(2));
    assert_eq!(scratch.refused("amalgam gc --pause --for none").0, Some(2));
}

#[test]
fn the_log_is_shortened_as_set_and_says_how_far_back_it_reaches() {
    let scratch = Scratch::new();
    scratch.run("echo 1 > n; amalgam init");
    for number in 2..=6 {
        scratch.run(&format!("echo {number} > n; amalgam commit -m n{number}"));
    }
    let lines = || scratch.run("amalgam op log --json").lines().count();
    let before = lines();
    scratch.run("amalgam config set gc.keep-operations-max 2");
    assert_eq!(scratch.json("amalgam gc --json")["operations_trimmed"], 0, "within the grace time all of it stays");
    let done = scratch.json("amalgam gc --grace none --json");
    assert_eq!(done["operations_trimmed"].as_u64(), Some(before as u64 - 2), "{done}");
    assert_eq!(lines(), 2);
    let (code, said) = scratch.refused("amalgam op show 1");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&format!("which reaches back to operation {} of 20", before - 1)), "{said}");
    scratch.run("amalgam undo; test $(cat n) = 5; amalgam undo; test $(cat n) = 4");
    let (code, said) = scratch.refused("amalgam undo");
    assert_ne!(code, Some(0));
    assert!(said.contains("which reaches back to operation"), "{said}");
    assert_eq!(scratch.run("cat n"), "4\n");
    scratch.run("amalgam redo; test $(cat n) = 5; amalgam status; amalgam log");
    assert!(scratch.run("amalgam verify --read-data").contains("all is well"));
}

/// Fifty workspaces commit at once while the budget runs out: each is told yes or no, and what was told yes is there. Once some were
/// deleted and collected the store is small again, and those that were refused can commit.
#[test]
fn a_budget_that_runs_out_among_fifty_committers_refuses_and_breaks_nothing() {
    const BUDGET: u64 = 12 * MEGABYTE;
    let scratch = Scratch::new();
    scratch.run("echo a > a; amalgam init; for n in $(seq 50); do amalgam fork w$n --dir ../w$n; done");
    scratch.run(&format!("amalgam gc; amalgam config set store.budget {BUDGET}"));
    let commit = "cd ../w$1 && head -c 1000000 /dev/urandom > big && amalgam commit 2> said; echo $? > code";
    let lines = format!("seq 50 | xargs -P 10 -n 1 sh -c '{commit}' sh");
    scratch.run(&lines);
    let read = |n: u32, file: &str| {
        std::fs::read_to_string(scratch.path().join(format!("w{n}")).join(file)).expect("each of them wrote it")
    };
    let (mut done, mut refused) = (Vec::new(), Vec::new());
    for n in 1..=50 {
        match read(n, "code").trim() {
            "0" => done.push(n),
            "13" => {
                assert!(read(n, "said").contains("so nothing is committed; delete workspaces"), "{}", read(n, "said"));
                refused.push(n);
            }
            code => panic!("w{n} ended with {code}: {}", read(n, "said")),
        }
    }
    assert!(done.len() >= 5 && refused.len() >= 5, "{} committed, {} refused", done.len(), refused.len());
    assert!(scratch.run("amalgam verify --read-data").contains("all is well"));
    let assert_there = |workspaces: &[u32]| {
        for n in workspaces {
            scratch.run(&format!("amalgam show w{n}@:big | cmp - ../w{n}/big"));
        }
    };
    assert_there(&done);

    let deleted = done.split_off(2);
    for n in &deleted {
        scratch.run(&format!("amalgam ws rm w{n} --yes"));
    }
    let collected = scratch.collect("amalgam gc --grace none --json");
    assert!(freed(&collected) >= deleted.len() as u64 * MEGABYTE, "{collected}");
    let bytes = collected["disk_bytes_after"].as_u64().expect("bytes");
    assert!(bytes < 5 * MEGABYTE, "two megabytes are left: {collected}");
    for n in &refused[..3] {
        scratch.run(&format!("cd ../w{n}; amalgam commit"));
    }
    assert_there(&done);
    assert_there(&refused[..3]);
    assert!(scratch.run("amalgam verify --read-data").contains("all is well"));
    assert!(scratch.json("amalgam gc --status --json")["disk_bytes"].as_u64() < Some(BUDGET));
}

#[test]
fn directories_for_reading_share_their_files_until_nobody_has_them() {
    use std::os::unix::fs::MetadataExt as _;
    let scratch = Scratch::new();
    scratch.run("head -c 3000000 /dev/urandom > large; echo a > small; amalgam init; amalgam label one @");
    scratch.run("echo b > small; amalgam commit -m second");
    let first = scratch.json("amalgam checkout --json one ../first --read-only");
    let second = scratch.json("amalgam checkout --json @ ../second --read-only");
    assert_eq!((&first["linked"], &second["linked"]), (&2.into(), &2.into()));
    scratch.run(
        "cmp large ../first/large && cmp large ../second/large && grep a ../first/small && grep b ../second/small",
    );
    let look = |path: &str| std::fs::metadata(scratch.path().join(path)).expect("it is there");
    assert_eq!(look("first/large").ino(), look("second/large").ino());
    assert_eq!(look("first/large").mode() & 0o222, 0);
    let (code, said) = scratch.refused("amalgam checkout one ../third --read-only --workspace third");
    assert_eq!(code, Some(2), "{said}");
    // Ordinary directories can be removed in the ordinary way, and the room comes back with the next collection.
    let pool = "find $AMALGAM_STORE/pool -type f | wc -l";
    assert_eq!(scratch.run(pool).trim(), "3");
    scratch.run("rm -r ../first && amalgam gc -q");
    assert_eq!(scratch.run(pool).trim(), "2");
    scratch.run("cmp large ../second/large; rm -r ../second && amalgam gc -q");
    assert_eq!(scratch.run(pool).trim(), "0");
}

/// A project with a cache, and automatic snapshots of it as they come when it is watched. Each has another file in the cache.
struct Watched {
    scratch: Scratch,
    automatic: Vec<String>,
}

impl Watched {
    fn new(automatic: usize) -> Self {
        let scratch = Scratch::new();
        let signature = "Signature: 8a477f597d28d172789f06886806bc55";
        scratch.run(&format!("mkdir -p sub/target; echo {signature} > sub/target/CACHEDIR.TAG; echo 0 > n"));
        scratch.run("head -c 300000 /dev/urandom > sub/target/blob; cp sub/target/blob ../blob-0; amalgam init");
        let mut watched = Self { scratch, automatic: Vec::new() };
        for number in 1..=automatic {
            watched.change(number);
            watched.scratch.run("amalgam watch --background --quiet-for 50ms");
            let head = watched.wait_for(number);
            watched.automatic.push(head);
            watched.scratch.run("amalgam watch --stop");
        }
        watched
    }

    fn change(&self, number: usize) {
        let keep = format!("cp sub/target/blob ../blob-{number}");
        self.scratch.run(&format!("head -c 300000 /dev/urandom > sub/target/blob; {keep}; echo {number} > n"));
    }

    /// The automatic snapshot in which the file has this number.
    fn wait_for(&self, number: usize) -> String {
        let begun = std::time::Instant::now();
        while self.scratch.output(&format!("test $(amalgam show @:n) = {number}")).status.code() != Some(0) {
            assert!(begun.elapsed() < std::time::Duration::from_secs(60), "no snapshot was taken");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        let head = self.scratch.json("amalgam log --json -n 1");
        assert_eq!(head["metadata"]["automatic"], "true", "{head}");
        head["id"].as_str().expect("an id").to_owned()
    }
}

#[test]
fn caches_are_kept_only_in_the_newest_automatic_snapshot() {
    let watched = Watched::new(3);
    let (scratch, [first, second, third]) = (&watched.scratch, &watched.automatic[..]) else { panic!("three") };
    // What somebody commits keeps its caches, and so does whatever else leads to the same bytes.
    scratch.run("amalgam fork other --dir ../other; cp ../blob-2 ../other/copy; cd ../other; amalgam commit");
    watched.change(4);
    scratch.run("amalgam commit");
    let plan = scratch.run("amalgam gc --plan --grace none");
    assert_eq!(plan.lines().filter(|line| line.ends_with(", without caches")).count(), 2, "{plan}");
    assert_eq!(scratch.json("amalgam gc --json")["freed"]["bytes"], 0, "within the grace time all of it can be undone");
    let done = scratch.collect("amalgam gc --grace none --json");
    assert!((300_000..600_000).contains(&freed(&done)), "one cache, and not what another snapshot has too: {done}");

    for (at, blob) in [(third.as_str(), 3), ("project@", 4), ("project@~4", 0)] {
        scratch.run(&format!("amalgam show {at}:sub/target/blob | cmp - ../blob-{blob}"));
    }
    scratch.run("amalgam show other@:copy | cmp - ../blob-2");
    for (number, id) in [(1, first), (2, second)] {
        assert_eq!(scratch.run(&format!("amalgam show {id}:n")), format!("{number}\n"));
        assert!(scratch.run(&format!("amalgam show {id}:sub/target/CACHEDIR.TAG")).starts_with("Signature: "));
        let (code, said) = scratch.refused(&format!("amalgam show {id}:sub/target/blob"));
        assert_eq!(code, Some(1));
        assert!(said.contains("sub/target/blob is gone: sub/target was a cache (CACHEDIR.TAG)"), "{said}");
    }
    let log = scratch.run("amalgam log");
    assert_eq!(log.matches("[caches not kept]").count(), 2, "{log}");
    let differs = scratch.run(&format!("amalgam diff {first} {second} --name-only"));
    assert_eq!(differs, "n\n");
    scratch.run("amalgam blame n > /dev/null");
    assert!(scratch.run("amalgam verify --read-data").contains("all is well"));
    assert_eq!(freed(&scratch.collect("amalgam gc --grace none --json")), 0, "it is done once");
}

#[test]
fn a_snapshot_without_its_caches_is_restored_and_thinned_like_others_and_sent_as_a_record() {
    let watched = Watched::new(2);
    let (scratch, first) = (&watched.scratch, &watched.automatic[0]);
    scratch.collect("amalgam gc --grace none --json");
    let (code, said) = scratch.refused(&format!("amalgam restore {first}"));
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("skipped sub/target: a cache (CACHEDIR.TAG)"), "{said}");
    assert_eq!(scratch.run("cat n; ls sub/target"), "1\nCACHEDIR.TAG\n");
    scratch.run("amalgam undo; cmp sub/target/blob ../blob-2; test $(cat n) = 2");
    let (code, said) = scratch.refused(&format!("amalgam checkout {first} ../out"));
    assert_eq!(code, Some(3), "{said}");
    assert_eq!(scratch.run("cat ../out/n; ls ../out/sub/target"), "1\nCACHEDIR.TAG\n");

    scratch.run("amalgam send --all | amalgam --store ../second receive -");
    // Its record arrives. What is left of its tree stays at home: nobody over there could tell whether it is that.
    let there = format!("amalgam --store ../second show {first}:n 2>&1; amalgam --store ../second verify --read-data");
    let told = scratch.run(&format!("{there}; code=$?; amalgam --store ../second stop > /dev/null; exit $code"));
    assert!(told.contains("was dropped by retention") && told.contains("all is well"), "{told}");

    scratch.run("echo 3 > n; amalgam commit; for part in all hourly daily; do amalgam config set retention.automatic.$part none; done");
    scratch.run("amalgam config set retention.automatic.last 0");
    scratch.collect("amalgam gc --grace none --json");
    let (code, said) = scratch.refused(&format!("amalgam show {first}:n"));
    assert_eq!(code, Some(1));
    assert!(said.contains("was dropped by retention"), "{said}");
    assert!(scratch.run("amalgam log").contains("[tree dropped]"));
    assert!(scratch.run("amalgam verify --read-data").contains("all is well"));
}
