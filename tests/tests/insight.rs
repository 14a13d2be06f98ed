//! Insights against `git diff --numstat` on the same trees, and every hint with a case that gives it and one that does not.

#![expect(clippy::print_stdout, reason = "what is found is printed")]

use std::collections::BTreeMap;

use amalgam_engine::insight::{Contents, GrowthLimit, RenameSearch};
use amalgam_engine::object::EntryKind;
use amalgam_engine::work::Special;
use amalgam_engine::{
    FileInsight, InsightOptions, RenameOptions, RiskHint, RootId, Store, Summary, What, WorkingTree, insight,
};
use amalgam_tests::git::{File, Files, files, git, own_history, run, some_edit, some_files, stored, two_trees};
use amalgam_tests::model::{Raw, cases, write_root};
use proptest::prelude::*;

fn look(store: &Store, before: RootId, after: RootId, options: &InsightOptions) -> (Vec<FileInsight>, Summary) {
    let mut all = insight(store, Some(before), Some(after), options).expect("an insight");
    let files = all.by_ref().map(|file| file.expect("read")).collect();
    (files, all.summary().clone())
}

fn look_at(before: &Files, after: &Files, options: &InsightOptions) -> (Vec<FileInsight>, Summary) {
    let store = Store::in_memory();
    let (before, after) = (stored(&store, before), stored(&store, after));
    look(&store, before, after, options)
}

fn without_renames() -> InsightOptions {
    InsightOptions { renames: None, ..InsightOptions::default() }
}

/// Lines added and removed, or nothing for a binary file, by path.
type Numbers = BTreeMap<Vec<u8>, Option<(u64, u64)>>;

/// What was renamed, by its new path: the old one and the similarity.
type Renames = BTreeMap<Vec<u8>, (Vec<u8>, u8)>;

/// What we say of each file.
fn ours(files: &[FileInsight]) -> Numbers {
    let is_directory = |file: &FileInsight| {
        let (before, after) = file.kinds();
        [before, after].into_iter().flatten().all(|kind| kind == EntryKind::Directory)
    };
    let leaves = files.iter().filter(|file| !is_directory(file));
    leaves
        .map(|file| {
            let numbers = match file.contents {
                Contents::Text { lines_added, lines_removed } => Some((lines_added, lines_removed)),
                Contents::Binary | Contents::TooLarge | Contents::Purged => None,
                Contents::Same | Contents::None => Some((0, 0)),
            };
            (file.change.path.as_bytes().to_vec(), numbers)
        })
        .collect()
}

/// What Git says of each file, and what was renamed.
fn gits(before: &Files, after: &Files, more: &[&str]) -> (Numbers, Renames) {
    let directory = tempfile::tempdir().expect("a directory");
    let [first, second] = two_trees(directory.path(), before, after);
    let ask = |form: &str| {
        let mut command = git(directory.path());
        command.args(["diff-tree", "-r", "-z", "--histogram", form]).args(more).args([&first, &second]);
        run(&mut command, b"").expect("diff-tree")
    };
    let mut numbers = Numbers::new();
    let text = ask("--numstat");
    let mut parts = text.split(|byte| *byte == 0);
    while let Some(part) = parts.next().filter(|part| !part.is_empty()) {
        let mut fields = part.splitn(3, |byte| *byte == b'\t');
        let mut number = || std::str::from_utf8(fields.next().expect("a field")).expect("text").parse().ok();
        let (added, removed) = (number(), number());
        let path = match fields.next().expect("a path") {
            // A rename: old and new path follow.
            b"" => parts.nth(1).expect("a path"),
            path => path,
        };
        numbers.insert(path.to_vec(), added.zip(removed));
    }
    let mut renames = Renames::new();
    let text = ask("--raw");
    let mut parts = text.split(|byte| *byte == 0);
    while let Some(part) = parts.next().filter(|part| !part.is_empty()) {
        let status = part.rsplit(|byte| *byte == b' ').next().expect("a status");
        let path = parts.next().expect("a path").to_vec();
        if let Some(score) = status.strip_prefix(b"R") {
            let to = parts.next().expect("a path").to_vec();
            renames.insert(to, (path, std::str::from_utf8(score).expect("text").parse().expect("a number")));
        }
    }
    (numbers, renames)
}

/// Two valid differences of the same texts may have more or fewer lines, but always the same balance.
fn assert_agree(ours: &Numbers, gits: &Numbers) -> Result<usize, String> {
    let mut other = 0;
    if !ours.keys().eq(gits.keys()) {
        return Err(format!("{:?} instead of {:?}", ours.keys(), gits.keys()));
    }
    for (path, ours) in ours {
        let gits = &gits[path];
        // Equal contents are not read here; Git reads them to say that they are binary.
        if *ours == Some((0, 0)) && gits.is_none() {
            continue;
        }
        let balance = |numbers: &Option<(u64, u64)>| numbers.map(|(added, removed)| added as i64 - removed as i64);
        if balance(ours) != balance(gits) {
            return Err(format!("{}: {ours:?} instead of {gits:?}", path.escape_ascii()));
        }
        other += usize::from(ours != gits);
    }
    Ok(other)
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn lines_are_those_of_git(before in some_files(), edits in prop::collection::vec(some_edit(), 0..10)) {
        let mut after = before.clone();
        edits.iter().for_each(|edit| edit.apply(&mut after));
        let (found, summary) = look_at(&before, &after, &without_renames());
        let (numbers, _) = gits(&before, &after, &["--no-renames"]);
        assert_agree(&ours(&found), &numbers).map_err(TestCaseError::fail)?;
        let lines = |files: &[FileInsight]| ours(files).values().flatten().fold((0, 0), |(a, r), (x, y)| (a + x, r + y));
        prop_assert_eq!((summary.lines_added, summary.lines_removed), lines(&found));
        let (_, with_renames) = look_at(&before, &after, &InsightOptions::default());
        prop_assert!(with_renames.lines_added <= summary.lines_added);
    }
}

#[test]
fn consecutive_commits_count_as_in_git() {
    let history = own_history(5);
    if history.len() < 2 {
        return amalgam_test_support::skip("history", "the sources are no checkout with history");
    }
    let (mut files, mut other) = (0, 0);
    for pair in history.windows(2).map(|pair| (&pair[1], &pair[0])).chain([(&history[history.len() - 1], &history[0])])
    {
        let (found, _) = look_at(pair.0, pair.1, &without_renames());
        let (numbers, _) = gits(pair.0, pair.1, &["--no-renames"]);
        files += numbers.len();
        other += assert_agree(&ours(&found), &numbers).expect("the same balance");
    }
    println!("{files} files, {other} with other lines than Git chose");
    // The two histograms break ties differently.
    assert!(other * 10 <= files, "{other} of {files} files have other lines than in Git");
}

fn lines(range: std::ops::Range<u32>) -> String {
    range.map(|line| format!("this is line {line} of the file\n")).collect()
}

#[test]
fn clear_renames_are_those_of_git() {
    let before = files([
        ("src/moved.rs", File::text(&lines(0..100))),
        ("src/edited.rs", File::text(&lines(100..200))),
        ("src/rewritten.rs", File::text(&lines(200..300))),
        ("docs/renamed.md", File::text(&lines(300..400))),
        ("gone.txt", File::text(&lines(400..420))),
    ]);
    let edited = lines(100..200).replace("line 150", "another line").replace("line 110", "one more");
    let renamed = lines(300..370) + &lines(900..930);
    let after = files([
        ("lib/moved.rs", File::text(&lines(0..100))),
        ("lib/edited.rs", File::text(&edited)),
        ("lib/rewritten.rs", File::text(&lines(500..600))),
        ("manual/other name.md", File::text(&renamed)),
        ("new.txt", File::text(&lines(700..720))),
    ]);
    let (found, summary) = look_at(&before, &after, &InsightOptions::default());
    let (numbers, renames) = gits(&before, &after, &["-M"]);
    let our_renames: Renames = found
        .iter()
        .filter_map(|file| match &file.change.what {
            What::Renamed { from } => {
                Some((file.change.path.as_bytes().to_vec(), (from.as_bytes().to_vec(), file.similarity?)))
            }
            _ => None,
        })
        .collect();
    assert_eq!(our_renames.len(), 3, "{our_renames:?}");
    assert_eq!(our_renames.keys().collect::<Vec<_>>(), renames.keys().collect::<Vec<_>>());
    for (to, (from, similarity)) in &our_renames {
        assert_eq!(from, &renames[to].0);
        assert!(similarity.abs_diff(renames[to].1) <= 2, "{} for {}", similarity, renames[to].1);
    }
    // Files were moved, so nothing is below the new paths but what Git lists.
    let removed = |files: &Numbers| files.values().flatten().map(|(_, removed)| removed).sum::<u64>();
    assert_eq!(removed(&ours(&found)), removed(&numbers));
    assert_eq!((summary.files.renamed, summary.files.added, summary.files.removed), (3, 2, 2));
    assert_eq!(summary.renames, RenameSearch::Complete);
}

#[test]
fn the_threshold_decides() {
    let before = files([("a", File::text(&lines(0..100)))]);
    let after = files([("b", File::text(&(lines(0..70) + &lines(500..530))))]);
    let renamed = |percent_min| {
        let renames = Some(RenameOptions { percent_min, ..RenameOptions::default() });
        let (_, summary) = look_at(&before, &after, &InsightOptions { renames, ..InsightOptions::default() });
        (summary.files.renamed, summary.files.added)
    };
    assert_eq!(renamed(50), (1, 0));
    assert_eq!(renamed(80), (0, 1));
    assert_eq!(renamed(100), (0, 1));
}

/// Files that were moved and edited, with names that do not tell.
fn many_moved(count: u32) -> (Files, Files) {
    let text = |number: u32, edit: u32| lines(number * 100..number * 100 + 20) + &lines(90_000 + edit..90_001 + edit);
    let of = |prefix: &str, edit: u32| -> Files {
        (0..count)
            .map(|number| (format!("{prefix}{number}").into_bytes(), File::text(&text(number, edit * (number + 1)))))
            .collect()
    };
    (of("old/a", 0), of("new/b", 1))
}

#[test]
fn the_best_of_many_pairs_are_renames() {
    let (before, after) = many_moved(40);
    let (found, summary) = look_at(&before, &after, &InsightOptions::default());
    assert_eq!((summary.files.renamed, summary.renames), (40, RenameSearch::Complete));
    for file in found {
        if let What::Renamed { from } = &file.change.what {
            let number = |path: &[u8]| String::from_utf8_lossy(&path[5..]).into_owned();
            assert_eq!(number(from.as_bytes()), number(file.change.path.as_bytes()));
        }
    }
}

#[test]
fn bounds_on_the_search_for_renames_are_kept_and_said() {
    let (before, after) = many_moved(20);
    let search = |renames: RenameOptions| {
        let options = InsightOptions { renames: Some(renames), ..InsightOptions::default() };
        let (_, summary) = look_at(&before, &after, &options);
        (summary.files.renamed, summary.renames)
    };
    let all = RenameOptions::default();
    let limited = RenameSearch::Limited { removed: 20, added: 20 };
    assert_eq!(search(RenameOptions { pairs_max: 400, ..all }), (20, RenameSearch::Complete));
    assert_eq!(search(RenameOptions { pairs_max: 399, ..all }), (0, limited));
    assert_eq!(search(RenameOptions { bytes_max: 1_000, ..all }), (0, limited));
    assert_eq!(search(RenameOptions { file_bytes_max: 10, ..all }), (0, RenameSearch::Complete));
    let (_, summary) = look_at(&before, &after, &without_renames());
    assert_eq!(summary.renames, RenameSearch::Off);
}

#[test]
fn unique_names_are_matched_beyond_the_bound() {
    let mut before = many_moved(20).0;
    let mut after = many_moved(20).1;
    before.insert(b"old/unique.c".to_vec(), File::text(&lines(0..50)));
    after.insert(b"new/unique.c".to_vec(), File::text(&(lines(0..50) + "more\n")));
    let renames = Some(RenameOptions { pairs_max: 10, ..RenameOptions::default() });
    let (found, summary) = look_at(&before, &after, &InsightOptions { renames, ..InsightOptions::default() });
    assert_eq!((summary.files.renamed, summary.renames), (1, RenameSearch::Limited { removed: 20, added: 20 }));
    assert!(found.iter().any(|file| file.change.path.as_bytes() == b"new/unique.c" && file.similarity > Some(90)));
}

#[test]
fn what_is_too_large_is_counted_in_bytes() {
    let before = files([("f", File::text("a\n"))]);
    let after = files([("f", File::text(&lines(0..100)))]);
    let options = InsightOptions { file_bytes_max: 100, ..InsightOptions::default() };
    let (found, summary) = look_at(&before, &after, &options);
    assert_eq!(found[0].contents, Contents::TooLarge);
    assert_eq!((summary.too_large, summary.lines_added, summary.bytes_before), (1, 0, 2));
    assert_eq!(summary.bytes_after, lines(0..100).len() as u64);
}

#[test]
fn binary_files_metadata_and_languages_are_told() {
    let before = files([
        ("a.png", File::Plain(Raw(vec![0, 1]))),
        ("run.sh", File::text("x\n")),
        ("l", File::Symlink("a".into())),
    ]);
    let after = files([
        ("a.png", File::Plain(Raw(vec![0, 2, 3]))),
        ("run.sh", File::Executable("x\n".into())),
        ("l", File::Symlink("b".into())),
        ("src/main.rs", File::text("fn main() {}\n")),
    ]);
    let (found, summary) = look_at(&before, &after, &InsightOptions::default());
    let of = |path: &str| found.iter().find(|file| file.change.path.as_bytes() == path.as_bytes()).expect("it changed");
    assert_eq!(of("a.png").contents, Contents::Binary);
    assert_eq!((of("run.sh").contents, &of("run.sh").change.what), (Contents::Same, &What::Metadata));
    assert_eq!(of("l").contents, Contents::Text { lines_added: 1, lines_removed: 1 });
    assert_eq!(of("src/main.rs").language, Some("Rust"));
    assert_eq!((summary.binary, summary.modes, summary.symlinks, summary.directories.added), (1, 1, 1, 1));
    assert_eq!((summary.languages["Rust"].lines_added, summary.languages["Shell"].files), (1, 1));
    assert_eq!((summary.bytes_before, summary.bytes_after), (2 + 2 + 1, 3 + 2 + 1 + 13));
}

#[test]
fn a_directory_that_moved_is_one_change() {
    let before: Files =
        (0..100).map(|number| (format!("d/{number}").into_bytes(), File::text(&lines(number..number + 9)))).collect();
    let after = before.iter().map(|(path, file)| ([b"moved/", &path[..]].concat(), file.clone())).collect();
    let (found, summary) = look_at(&before, &after, &InsightOptions::default());
    assert_eq!((summary.directories.renamed, summary.files.total(), summary.lines_added), (1, 0, 0));
    assert_eq!(found.iter().filter_map(|file| file.similarity).collect::<Vec<_>>(), [100]);
}

#[test]
fn changes_are_read_as_they_are_asked_for() {
    let before = Files::new();
    let after: Files = (0..2_000).map(|number| (format!("{number:04}").into_bytes(), File::text("x\n"))).collect();
    let store = Store::in_memory();
    let (before, after) = (stored(&store, &before), stored(&store, &after));
    for options in [without_renames(), InsightOptions::default()] {
        let mut all = insight(&store, Some(before), Some(after), &options).expect("an insight");
        let first = all.next().expect("one").expect("read");
        assert_eq!((first.change.path.as_bytes(), all.summary().files.added), (&b"0000"[..], 1));
        let summary = all.finish().expect("read");
        assert_eq!((summary.files.added, summary.lines_added), (2_000, 2_000));
    }
}

#[test]
fn the_score_is_plain_arithmetic() {
    let before =
        files([("a", File::text("1\n2\n3\n")), ("gone", File::text("x\n")), ("old", File::text(&lines(0..9)))]);
    let after = files([
        ("a", File::text("1\n3\n4\n")),
        ("new", File::text(&lines(0..9))),
        ("run", File::Executable("y\n".into())),
    ]);
    let (_, summary) = look_at(&before, &after, &InsightOptions::default());
    // Four lines, one file added and one removed, one renamed, one that can be executed.
    assert_eq!(summary.score(), 4 + 2 * 10 + 2 + 5);
    assert_eq!(look_at(&after, &after, &InsightOptions::default()).1.score(), 0);
}

/// The hints that a change gives, by their words.
fn hints(before: &Files, after: &Files) -> Vec<RiskHint> {
    let (found, summary) = look_at(before, after, &InsightOptions::default());
    let hints: Vec<_> = found.into_iter().flat_map(|file| file.risks).map(|risk| risk.hint).collect();
    assert_eq!(summary.risk_weight, hints.iter().map(RiskHint::weight).sum::<u64>());
    assert_eq!(summary.risks.values().sum::<u64>(), hints.len() as u64);
    hints
}

#[track_caller]
fn gives(hint: &RiskHint, before: &Files, after: &Files) {
    assert_eq!(hints(before, after), std::slice::from_ref(hint));
}

#[track_caller]
fn gives_none(before: &Files, after: &Files) {
    assert_eq!(hints(before, after), []);
}

fn none() -> Files {
    Files::new()
}

fn one(path: &str, text: &str) -> Files {
    files([(path, File::text(text))])
}

#[test]
fn a_file_that_becomes_executable_is_hinted_at() {
    let (plain, executable) = (one("run", "x\n"), files([("run", File::Executable("x\n".into()))]));
    gives(&RiskHint::Executable, &plain, &executable);
    gives(&RiskHint::Executable, &none(), &executable);
    gives_none(&executable, &plain);
    gives_none(&executable, &files([("run", File::Executable("y\n".into()))]));
}

#[test]
fn new_set_id_bits_are_hinted_at() {
    let store = Store::in_memory();
    let mut tree = WorkingTree::new(&store);
    tree.write("f", b"x\n").expect("write");
    tree.set_mode("f", 0o755).expect("mode");
    let mut root_with = |mode| {
        tree.set_mode("f", mode).expect("mode");
        write_root(&tree).expect("stored")
    };
    let [plain, setuid, both] = [0o755, 0o4755, 0o6755].map(&mut root_with);
    let hints = |before, after| -> Vec<RiskHint> {
        let (found, _) = look(&store, before, after, &InsightOptions::default());
        found.into_iter().flat_map(|file| file.risks).map(|risk| risk.hint).collect()
    };
    assert_eq!(hints(plain, setuid), [RiskHint::SetId { bits: 0o4000 }]);
    assert_eq!(hints(setuid, both), [RiskHint::SetId { bits: 0o2000 }]);
    assert_eq!(hints(both, setuid), []);
}

#[test]
fn lock_files_and_build_files_are_hinted_at() {
    gives(&RiskHint::LockFile, &one("Cargo.lock", "a\n"), &one("Cargo.lock", "b\n"));
    gives_none(&one("Cargo.toml", "a\n"), &one("Cargo.toml", "b\n"));
    gives(&RiskHint::CiFile, &none(), &one(".github/workflows/ci.yml", "on: push\n"));
    gives_none(&none(), &one(".github/CODEOWNERS", "* @me\n"));
}

/// Made up here, so that no file of ours holds the shape itself.
fn token() -> String {
    let letters = b"q7Rw2eTy9UiZoP4aSdF6gHj1KlX3cVb8Nm5";
    "ghp_".chars().chain((0..36).map(|at| char::from(letters[at * 11 % letters.len()]))).collect()
}

#[test]
fn names_of_credentials_are_hinted_at() {
    gives(&RiskHint::CredentialName, &none(), &one("deploy/.env", "MODE=dev\n"));
    gives(&RiskHint::CredentialName, &one("id_rsa", "x\n"), &one("id_rsa", "y\n"));
    gives_none(&none(), &one("deploy/.env.example", "MODE=dev\n"));
    gives_none(&one("deploy/.env", "MODE=dev\n"), &none());
}

#[test]
fn credentials_in_added_lines_are_hinted_at() {
    let holds = format!("first\nlet key = \"{}\";\nlast\n", token());
    let hint = RiskHint::Credential { shape: "GitHub token", line: 2 };
    gives(&hint, &none(), &one("a.rs", &holds));
    gives(&hint, &one("a.rs", "first\nlast\n"), &one("a.rs", &holds));
    gives(
        &RiskHint::Credential { shape: "private key", line: 1 },
        &none(),
        &one("a", "-----BEGIN RSA PRIVATE KEY-----\n"),
    );
    // It was there before, or it goes away.
    gives_none(&one("a.rs", &holds), &one("a.rs", &format!("{holds}more\n")));
    gives_none(&one("a.rs", &holds), &none());
    gives_none(&none(), &one("a.rs", "let key = \"ghp_ and 36 letters\";\n"));
}

#[test]
fn the_search_for_credentials_is_bounded_and_says_so() {
    let text = format!("{}\n{}\n", "x".repeat(100), token());
    let options = InsightOptions { scan_bytes_max: 101, ..InsightOptions::default() };
    let (found, summary) = look_at(&none(), &one("a", &text), &options);
    assert_eq!((found[0].risks.len(), summary.unscanned_bytes), (0, 41));
    let many = (0..100).map(|_| token() + "\n").collect::<String>();
    assert_eq!(hints(&none(), &one("a", &many)).len(), 16);
}

#[test]
fn growth_by_a_lot_is_hinted_at() {
    let growth = GrowthLimit { bytes_min: 1_000, factor: 10 };
    let hints = |before: &str, after: &str| -> Vec<RiskHint> {
        let options = InsightOptions { growth, ..InsightOptions::default() };
        let (found, _) = look_at(&one("f", before), &one("f", after), &options);
        found.into_iter().flat_map(|file| file.risks).map(|risk| risk.hint).collect()
    };
    let of = |length: usize| "x".repeat(length);
    assert_eq!(hints(&of(200), &of(2_000)), [RiskHint::Growth { before: 200, after: 2_000 }]);
    assert_eq!(hints(&of(200), &of(1_999)), []);
    assert_eq!(hints(&of(10), &of(900)), []);
    assert_eq!(hints(&of(2_000), &of(200)), []);
}

#[test]
fn tests_that_go_are_hinted_at() {
    gives(&RiskHint::TestRemoved, &one("tests/a.rs", "x\n"), &none());
    gives(&RiskHint::TestRemoved, &one("src/a_test.go", &lines(0..9)), &one("src/a.go", &lines(0..9)));
    gives_none(&one("src/a.rs", "x\n"), &none());
    gives_none(&none(), &one("tests/a.rs", "x\n"));
    gives_none(&one("tests/a.rs", &lines(0..9)), &one("tests/b.rs", &lines(0..9)));
}

#[test]
fn new_binary_files_are_hinted_at() {
    let binary = |bytes: &[u8]| files([("a.bin", File::Plain(Raw(bytes.to_vec())))]);
    gives(&RiskHint::BinaryAdded { bytes: 2 }, &none(), &binary(b"\0a"));
    gives_none(&binary(b"\0a"), &binary(b"\0b"));
    gives_none(&binary(b"\0a"), &none());
}

#[test]
fn symlinks_that_lead_outside_are_hinted_at() {
    let link = |target: &str| files([("d/l", File::Symlink(target.into()))]);
    for target in ["/etc/passwd", "../../x"] {
        gives(&RiskHint::SymlinkOutside { target: target.into() }, &none(), &link(target));
        gives_none(&link(target), &none());
    }
    gives_none(&none(), &link("../x"));
}

#[test]
fn kinds_without_bytes_are_counted() {
    let store = Store::in_memory();
    let mut tree = WorkingTree::new(&store);
    tree.write("f", b"x\n").expect("write");
    let before = write_root(&tree).expect("stored");
    tree.remove("f").expect("remove");
    tree.create_special("f", Special::Fifo, 0o644).expect("mkfifo");
    let after = write_root(&tree).expect("stored");
    let (found, summary) = look(&store, before, after, &InsightOptions::default());
    assert_eq!(found[0].kinds(), (Some(EntryKind::File), Some(EntryKind::Fifo)));
    assert_eq!(found[0].contents, Contents::Text { lines_added: 0, lines_removed: 1 });
    assert_eq!(summary.files.kind_changed, 1);
}
