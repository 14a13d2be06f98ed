//! What is left out: patterns, files that hold them, our own directories.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use amalgam_materializer::{HostDir, Notice, Rules, Why};
use amalgam_tests::model::contents;

use crate::kit::{World, path};

fn world(patterns: &[&str], files: &[(&str, &str)]) -> World {
    let mut world = World::new();
    let patterns: Vec<String> = patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
    world.rules = Rules::new(&patterns).expect("good patterns");
    for (name, text) in files {
        let file = world.at(name);
        fs::create_dir_all(file.parent().expect("a directory")).expect("made");
        fs::write(file, text).expect("written");
    }
    world
}

fn names(world: &World) -> Vec<String> {
    let paths = contents(&world.fresh().tree).expect("read").paths;
    paths.into_keys().filter(|path| !path.is_root()).map(|path| path.to_string()).collect()
}

#[test]
fn patterns_leave_out_and_take_back_in() {
    let world = world(
        &["*.log", "/build/", "!keep.log"],
        &[("a.log", ""), ("keep.log", ""), ("build/x", ""), ("src/build/x", ""), ("src/b.log", "")],
    );
    assert_eq!(names(&world), ["keep.log", "src", "src/build", "src/build/x"]);
    assert_eq!(world.fresh().counts.ignored, 3);
}

#[test]
fn files_in_the_tree_hold_below_themselves() {
    let world = world(
        &["*.log"],
        &[
            (".amalgamignore", "*.tmp\n# a comment\n/only-here\n"),
            ("only-here", ""),
            ("x.tmp", ""),
            ("a/.amalgamignore", "!*.tmp\n!y.log\nsub/\n"),
            ("a/x.tmp", ""),
            ("a/y.log", ""),
            ("a/z.log", ""),
            ("a/only-here", ""),
            ("a/sub/file", ""),
            ("a/b/x.tmp", ""),
        ],
    );
    let expected = [".amalgamignore", "a", "a/.amalgamignore", "a/b", "a/b/x.tmp", "a/only-here", "a/x.tmp", "a/y.log"];
    assert_eq!(names(&world), expected);
}

#[test]
fn a_rule_that_changes_takes_effect_below_it() {
    let world = world(&[], &[("a/b/c/x.o", ""), ("a/b/c/x.c", ""), ("x.o", "")]);
    let mut index = world.index();
    world.capture(&mut index);
    let check = |index: &mut _| {
        // Only the directory of the file is dirty.
        let part = world.capture_in(index, &BTreeSet::from([path("a")]));
        assert_eq!(part.root, world.fresh().root);
    };
    fs::write(world.at("a/.amalgamignore"), "*.o\n").expect("written");
    check(&mut index);
    assert!(!names(&world).contains(&"a/b/c/x.o".to_owned()));
    fs::write(world.at("a/.amalgamignore"), "*.c\n").expect("written");
    check(&mut index);
    fs::remove_file(world.at("a/.amalgamignore")).expect("removed");
    check(&mut index);
    assert!(names(&world).contains(&"a/b/c/x.o".to_owned()));
}

#[test]
fn other_settings_look_at_everything() {
    let mut world = world(&[], &[("a/x.o", ""), ("b/x.o", "")]);
    let mut index = world.index();
    world.capture(&mut index);
    world.rules = Rules::new(&["*.o".to_owned()]).expect("good");
    let part = world.capture_in(&mut index, &BTreeSet::new());
    assert_eq!((part.root, part.counts.files), (world.fresh().root, 0));
}

#[test]
fn a_bad_rule_is_named() {
    let world = world(&[], &[("a/.amalgamignore", "a{b\n*.o\n"), ("a/x.o", "")]);
    let captured = world.fresh();
    assert!(!captured.tree.exists("a/x.o").expect("read"), "the other rules hold");
    assert!(matches!(&captured.notices[..], [Notice { why: Why::Failed { error, .. }, .. }] if error.contains("a{b")));
}

#[test]
fn a_rules_file_without_bounds_costs_no_memory_and_is_reported() {
    const INSIDE: &str = "AMALGAM_TEST_ENDLESS_RULES";
    if std::env::var_os(INSIDE).is_none() {
        // In a process of its own, whose memory no other test uses.
        let test = "rules::a_rules_file_without_bounds_costs_no_memory_and_is_reported";
        let mut again = Command::new(std::env::current_exe().expect("this program"));
        let done = again.args(["--exact", test, "--nocapture"]).env(INSIDE, "1").output().expect("it runs");
        let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let endless = "a*b?".repeat(5 << 20);
    let many = "*.o\n".to_owned() + &"x*y?z\n".repeat(1 << 20);
    let world = world(&[], &[(".amalgamignore", &endless), ("a/.amalgamignore", &many), ("a/x.o", ""), ("a/x.c", "")]);
    let before = peak_bytes();
    let captured = world.fresh();
    let grown = peak_bytes() - before;
    assert!(grown < 200 << 20, "{} MiB for rules", grown >> 20);
    assert!(captured.tree.exists("a/x.c").expect("read") && !captured.tree.exists("a/x.o").expect("read"));
    let told: Vec<_> =
        captured.notices.iter().map(|notice| (notice.path.to_string(), notice.why.to_string())).collect();
    let expected = [
        (".amalgamignore", "could not use all of its rules: lines behind 128 KiB are not used; shorten it"),
        ("a/.amalgamignore", "could not use all of its rules: lines behind 128 KiB are not used; shorten it"),
    ];
    assert_eq!(told, expected.map(|(path, why)| (path.to_owned(), why.to_owned())));
    assert!(captured.notices.iter().all(|notice| notice.why.is_failure()));
}

#[test]
fn a_line_that_no_path_matches_is_reported_and_the_others_hold() {
    let rules = format!("*.o\n{}\n*.tmp\n", "a*".repeat(4_000));
    let world = world(&[], &[(".amalgamignore", &rules), ("x.o", ""), ("x.tmp", ""), ("x.c", "")]);
    assert_eq!(names(&world), [".amalgamignore", "x.c"]);
    let [notice] = &world.fresh().notices[..] else { panic!("one notice") };
    assert!(notice.why.to_string().contains("line 2 is longer than 4096 bytes"), "{}", notice.why);
}

/// The most memory that this process has had.
fn peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("the kernel tells");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("it tells that");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

#[test]
fn files_with_names_like_temporary_ones_are_captured_like_any() {
    let long = format!(".amalgam-tmp.{}", "0a".repeat(100));
    let exact = ".amalgam-tmp.0123456789abcdef-00000001";
    let directory = ".amalgam-tmp.0a1f/deep/file";
    let world = world(&[], &[(".amalgam-tmp.0a1f0a1f0a1f0a1f", "a"), (&long, "b"), (exact, "c"), (directory, "d")]);
    let captured = world.fresh();
    for (name, bytes) in [(".amalgam-tmp.0a1f0a1f0a1f0a1f", "a"), (&long, "b"), (exact, "c"), (directory, "d")] {
        assert_eq!(captured.tree.read(name).expect("it is captured"), bytes.as_bytes(), "{name}");
    }
}

#[test]
fn what_is_ours_is_never_entered() {
    let mut world = world(&[], &[("store/object", ""), ("file", "")]);
    let ours = HostDir::open(world.at("store")).expect("it opens").identity();
    world.rules = Rules::new(&[]).expect("no rules").never(&[ours]);
    assert_eq!(names(&world), ["file"]);
    assert_eq!(world.fresh().notices, [Notice { path: path("store"), why: Why::Ours }]);
}
