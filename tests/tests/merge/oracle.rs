//! Git as an oracle: the same histories merged by `git merge-tree` and here.
//!
//! Where Git is clean, so are we, with the same files. Where Git conflicts, we conflict on its paths, but for what
//! `docs/design/0007-tree-merge.md` lists as better: each of those is known by its rule here, and loses nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::Path;

use amalgam_engine::merge::{ContestedFile, FileResult, PathConflict, Verdict};
use amalgam_engine::object::Node;
use amalgam_engine::{MergeContents, Result, RootId, Store, TreePath, list_directory, merge_trees};
use amalgam_tests::git::{self, Edit, File, Files, git, put};
use amalgam_tests::model::{Raw, write_root};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::kit;

/// How many histories are merged, unless `MERGE_HISTORIES` says otherwise.
const HISTORIES: usize = 600;
/// Of which kind they are, unless `MERGE_SEED` says otherwise.
const SEED: usize = 7;

fn number_of(variable: &str, otherwise: usize) -> usize {
    std::env::var(variable).ok().and_then(|number| number.parse().ok()).unwrap_or(otherwise)
}

struct History {
    base: Files,
    ours: Files,
    theirs: Files,
}

/// Moves all files of one directory into another.
#[derive(Clone, Debug)]
enum Step {
    Edit(Edit),
    MoveDirectory(usize, usize),
}

const DIRECTORIES: [&str; 6] = ["d", "e", "f/g", "n", "d/e", "m/d"];

fn some_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => git::some_edit().prop_map(Step::Edit),
        2 => (0..DIRECTORIES.len(), 0..DIRECTORIES.len()).prop_map(|(from, to)| Step::MoveDirectory(from, to)),
    ]
}

/// A few files that are long enough to be similar after an edit, and in the same directories.
fn some_base() -> impl Strategy<Value = Files> {
    (git::some_files(), prop::collection::vec((0..DIRECTORIES.len(), 0..6_usize, any::<u8>()), 2..8)).prop_map(
        |(mut files, more)| {
            for (directory, name, seed) in more {
                let lines: String = (0..12).map(|line| format!("line {line} of {seed}\n")).collect();
                let path = format!("{}/file{name}", DIRECTORIES[directory]);
                put(&mut files, path.as_bytes(), File::Plain(Raw(lines.into_bytes())));
            }
            files
        },
    )
}

fn done(mut files: Files, steps: &[Step]) -> Files {
    for step in steps {
        match step {
            Step::Edit(edit) => edit.apply(&mut files),
            Step::MoveDirectory(from, to) => {
                let (from, to) = (format!("{}/", DIRECTORIES[*from]), format!("{}/", DIRECTORIES[*to]));
                let below: Vec<_> = files.keys().filter(|path| path.starts_with(from.as_bytes())).cloned().collect();
                for path in below {
                    if let Some(file) = files.remove(&path) {
                        put(&mut files, &[to.as_bytes(), &path[from.len()..]].concat(), file);
                    }
                }
            }
        }
    }
    files
}

fn histories(count: usize) -> Vec<History> {
    let steps = || prop::collection::vec(some_step(), 1..5);
    let strategy = (some_base(), steps(), steps());
    let mut seed = [SEED as u8; 32];
    seed[..8].copy_from_slice(&number_of("MERGE_SEED", usize::from_le_bytes([SEED as u8; 8])).to_le_bytes());
    let mut runner = TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let one = |_| {
        let (base, ours, theirs) = strategy.new_tree(&mut runner).expect("a value").current();
        History { ours: done(base.clone(), &ours), theirs: done(base.clone(), &theirs), base }
    };
    (0..count).map(one).collect()
}

/// All histories as commits of one repository.
fn import(directory: &Path, histories: &[History]) {
    git::run(git(directory).args(["init", "--quiet"]), b"").expect("init");
    let mut stream = Vec::new();
    let mut commit = |name: String, mark: usize, from: Option<usize>, files: &Files| {
        write!(stream, "commit refs/heads/{name}\nmark :{mark}\ncommitter a <a@b> 0 +0000\ndata 0\n").expect("text");
        if let Some(from) = from {
            writeln!(stream, "from :{from}\ndeleteall").expect("text");
        }
        for (path, file) in files {
            let (mode, bytes) = match file {
                File::Plain(bytes) => ("100644", bytes),
                File::Executable(bytes) => ("100755", bytes),
                File::Symlink(target) => ("120000", target),
            };
            write!(stream, "M {mode} inline ").expect("text");
            stream.push(b'"');
            for byte in path {
                write!(stream, "\\{byte:03o}").expect("text");
            }
            write!(stream, "\"\ndata {}\n", bytes.0.len()).expect("text");
            stream.extend_from_slice(&bytes.0);
            stream.push(b'\n');
        }
        stream.push(b'\n');
    };
    for (number, History { base, ours, theirs }) in histories.iter().enumerate() {
        let mark = number * 3 + 1;
        commit(format!("b{number}"), mark, None, base);
        commit(format!("o{number}"), mark + 1, Some(mark), ours);
        commit(format!("t{number}"), mark + 2, Some(mark), theirs);
    }
    git::run(git(directory).args(["fast-import", "--quiet"]), &stream).expect("fast-import");
}

/// What Git makes of one history.
struct ByGit {
    is_clean: bool,
    tree: String,
    conflicts: Vec<Vec<u8>>,
    disputes: Vec<Dispute>,
}

/// One thing that Git does not merge: what it calls that, and the paths that it names, in its order.
struct Dispute {
    word: String,
    paths: Vec<Vec<u8>>,
}

impl std::fmt::Display for Dispute {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let paths: Vec<_> = self.paths.iter().map(|path| path.escape_ascii().to_string()).collect();
        write!(f, "{} of {}", self.word, paths.join(", "))
    }
}

/// The messages about one history that tell of conflicts.
fn disputes<'a>(words: &mut impl Iterator<Item = &'a [u8]>) -> Vec<Dispute> {
    let text = |word: Option<&[u8]>| String::from_utf8_lossy(word.expect("a word")).into_owned();
    let mut found = Vec::new();
    loop {
        let count = text(words.next());
        if count.is_empty() {
            return found;
        }
        let count: usize = count.parse().expect("a number");
        let paths = words.by_ref().take(count).map(<[u8]>::to_vec).collect();
        let (word, _message) = (text(words.next()), words.next());
        if let Some(word) = word.strip_prefix("CONFLICT ") {
            found.push(Dispute { word: word.trim_matches(['(', ')']).to_owned(), paths });
        }
    }
}

fn merge_by_git(directory: &Path, count: usize) -> Vec<ByGit> {
    let pairs: String = (0..count).map(|number| format!("o{number} t{number}\n")).collect();
    let mut command = git(directory);
    command.args(["-c", "merge.directoryRenames=true", "-c", "merge.renameLimit=10000"]);
    command.args(["merge-tree", "--write-tree", "--stdin", "--messages", "--name-only"]);
    let said = git::run(&mut command, pairs.as_bytes()).expect("merge-tree");
    let mut words = said.split(|byte| *byte == 0);
    let one = |_| {
        let is_clean = words.next().expect("a status") == b"1";
        let tree = String::from_utf8(words.next().expect("a tree").to_vec()).expect("hex");
        let conflicts = words.by_ref().take_while(|word| !word.is_empty()).map(<[u8]>::to_vec).collect();
        ByGit { is_clean, tree, conflicts, disputes: disputes(&mut words) }
    };
    (0..count).map(one).collect()
}

/// A file of a tree: its mode, path and bytes.
type Listed = BTreeSet<(String, Vec<u8>, Vec<u8>)>;

/// The files of some trees of Git's.
fn listed(directory: &Path, trees: &[&str]) -> Vec<Listed> {
    let (mut all, mut wanted) = (Vec::new(), String::new());
    for tree in trees {
        let said = git::run(git(directory).args(["ls-tree", "-r", "-z", tree]), b"").expect("ls-tree");
        let mut files = Vec::new();
        for line in said.split(|byte| *byte == 0).filter(|line| !line.is_empty()) {
            let tab = line.iter().position(|byte| *byte == b'\t').expect("a tab");
            let words = String::from_utf8(line[..tab].to_vec()).expect("text");
            let mut words = words.split(' ');
            let (mode, id) = (words.next().expect("a mode").to_owned(), words.nth(1).expect("an id"));
            wanted.push_str(id);
            wanted.push('\n');
            files.push((mode, line[tab + 1..].to_vec()));
        }
        all.push(files);
    }
    let blobs = git::run(git(directory).args(["cat-file", "--batch"]), wanted.as_bytes()).expect("cat-file");
    let mut rest = &blobs[..];
    let mut next = || {
        let end = rest.iter().position(|byte| *byte == b'\n').expect("a header");
        let header = String::from_utf8(rest[..end].to_vec()).expect("text");
        let size: usize = header.rsplit(' ').next().expect("a size").parse().expect("a number");
        let blob = rest[end + 1..end + 1 + size].to_vec();
        rest = &rest[end + 2 + size..];
        blob
    };
    all.into_iter().map(|files| files.into_iter().map(|(mode, path)| (mode, path, next())).collect()).collect()
}

/// How the versions of a conflict are listed, each under its path.
const TERM: &str = "term";

/// The files of one of ours in the same form, and the versions in its conflicts.
fn ours_listed(store: &Store, root: RootId) -> Listed {
    let root = store.root(root).expect("a root");
    let mut found = BTreeSet::new();
    let mut open = vec![(TreePath::root(), root.directory.clone(), false)];
    while let Some((path, entry, is_term)) = open.pop() {
        let (mode, bytes) = match &entry.node {
            Node::Directory(contents) => {
                for item in list_directory(store, *contents).expect("a directory") {
                    let (name, entry) = item.expect("an entry");
                    open.push((path.join(&name), entry, is_term));
                }
                continue;
            }
            Node::Conflict(conflict) => {
                // The base, each second one, is no version that anybody has.
                let sides = conflict.terms().iter().step_by(2).flatten();
                open.extend(sides.map(|term| (path.clone(), term.clone(), true)));
                continue;
            }
            Node::File { size, content } => {
                let mut bytes = vec![0; *size as usize];
                amalgam_engine::content::read_at(store, content, *size, 0, &mut bytes).expect("contents");
                (if entry.mode & 0o100 == 0 { "100644" } else { "100755" }, bytes)
            }
            Node::Symlink(target) => ("120000", target.to_vec()),
            other => panic!("{path}: {other:?} came of files and symlinks"),
        };
        let mode = if is_term { TERM } else { mode };
        found.insert((mode.to_owned(), path.as_bytes().to_vec(), bytes));
    }
    found
}

/// Merges texts as Git does, by asking it.
struct ByMergeFile<'a>(&'a Path);

impl MergeContents for ByMergeFile<'_> {
    fn merge(&self, contest: &ContestedFile<'_>) -> Result<Verdict> {
        let base = contest.base.as_ref().map(|base| base.read()).transpose()?.unwrap_or_default();
        let versions = [contest.ours.read()?, base, contest.theirs.read()?];
        let conflict = Verdict::Conflict { strategy: "git".to_owned() };
        if versions.iter().any(|bytes| bytes.contains(&0)) {
            return Ok(conflict);
        }
        for (name, bytes) in ["ours", "base", "theirs"].into_iter().zip(&versions) {
            std::fs::write(self.0.join(name), bytes).expect("written");
        }
        let arguments = ["merge-file", "-p", "-q", "--diff-algorithm=histogram", "ours", "base", "theirs"];
        Ok(match git::run(git(self.0).args(arguments), b"") {
            Ok(bytes) => Verdict::Merged { bytes: bytes.into(), strategy: "git".to_owned() },
            Err(_) => conflict,
        })
    }
}

fn names(conflict: &PathConflict) -> impl Iterator<Item = &TreePath> {
    std::iter::once(&conflict.path).chain(&conflict.others)
}

/// Whether one of our conflicts has to do with a path that Git names. Git puts files aside under other names where they meet
/// directories.
fn is_named(conflicts: &[PathConflict], path: &[u8]) -> bool {
    let text = String::from_utf8_lossy(path).into_owned();
    let plain = text.split('~').next().unwrap_or_default();
    conflicts.iter().flat_map(names).any(|ours| {
        let ours = String::from_utf8_lossy(ours.as_bytes()).into_owned();
        ours == plain || plain.starts_with(&format!("{ours}/")) || ours.starts_with(&format!("{plain}/"))
    })
}

#[test]
fn trees_are_merged_as_git_merges_them() {
    let count = number_of("MERGE_HISTORIES", HISTORIES);
    let histories = histories(count);
    let scratch = tempfile::tempdir().expect("a directory");
    import(scratch.path(), &histories);
    let by_git = merge_by_git(scratch.path(), count);
    let trees: Vec<_> = by_git.iter().filter(|one| one.is_clean).map(|one| one.tree.as_str()).collect();
    let mut trees = listed(scratch.path(), &trees).into_iter();
    let files = tempfile::tempdir().expect("a directory");
    let (mut clean, mut wrong) = (0, Vec::new());
    let (mut better, mut partly, mut led) = (Vec::new(), Vec::new(), Vec::new());
    let mut rules: BTreeMap<&str, usize> = BTreeMap::new();
    for (number, (history, by_git)) in histories.iter().zip(&by_git).enumerate() {
        let store = Store::in_memory();
        let [base, ours, theirs] =
            [&history.base, &history.ours, &history.theirs].map(|files| git::stored(&store, files));
        let contents = ByMergeFile(files.path());
        let outcome = merge_trees(&store, Some(base), ours, theirs, &contents, &kit::options());
        let gits = by_git.is_clean.then(|| trees.next().expect("a tree"));
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => {
                wrong.push(format!("history {number}: {error}\n{}", story(history)));
                continue;
            }
        };
        let mine = ours_listed(&store, write_root(&outcome.tree).expect("stored"));
        let is_merged = outcome.report.files.iter().any(|file| file.result == FileResult::Merged);
        if let Some(lost) = lost(history, &mine, is_merged) {
            wrong.push(format!("history {number}: {lost}\n{}", story(history)));
        }
        let unclear = unclear(history);
        if let Some(gits) = gits {
            clean += 1;
            let is_unclear = |path: &[u8]| unclear.iter().any(|(from, to)| path == *from || path == *to);
            if !outcome.conflicts.is_empty() {
                let mut all = outcome.conflicts.iter().flat_map(names);
                match all.all(|path| is_unclear(path.as_bytes())) {
                    true => *rules.entry(UNCLEAR).or_default() += 1,
                    false => {
                        wrong.push(format!("history {number}: {:?}\n{}", outcome.conflicts, story(history)));
                    }
                }
            } else if mine != gits && is_led_further(&mine, &gits) {
                led.push(number);
            } else if mine != gits && is_led_by(&unclear, &mine, &gits) {
                *rules.entry(UNCLEAR).or_default() += 1;
            } else if mine != gits {
                let lists = |one: &Listed, other: &Listed| {
                    one.difference(other)
                        .map(|(mode, path, _)| format!("{mode} {}", path.escape_ascii()))
                        .collect::<Vec<_>>()
                };
                let text = format!("only here {:?}, only Git {:?}", lists(&mine, &gits), lists(&gits, &mine));
                wrong.push(format!("history {number}: {text}\n{}", story(history)));
            }
            continue;
        }
        let is_met = |path: &Vec<u8>| !by_git.conflicts.contains(path) || is_named(&outcome.conflicts, path);
        for dispute in by_git.disputes.iter().filter(|dispute| !dispute.paths.iter().all(is_met)) {
            match rule(history, dispute, &mine) {
                Some(rule) => *rules.entry(rule).or_default() += 1,
                None => {
                    let here = &outcome.conflicts;
                    wrong.push(format!("history {number}: no rule for {dispute}, here {here:?}\n{}", story(history)));
                }
            }
        }
        if outcome.conflicts.is_empty() {
            better.push(number);
        } else if !by_git.conflicts.iter().all(|path| is_named(&outcome.conflicts, path)) {
            partly.push(number);
        }
    }
    let shown = if std::env::var_os("MERGE_HISTORIES").is_some() { wrong.len() } else { 3 };
    let some: Vec<_> = wrong.iter().take(shown).map(String::as_str).collect();
    assert!(wrong.is_empty(), "{} of {count} are wrong:\n{}", wrong.len(), some.join("\n"));
    assert!(clean > count / 5 && clean < count * 4 / 5, "{clean} of {count} are clean for Git");
    // Every rule has its own cases; if these grow, something else is going on.
    let text = format!(
        "{count} histories, {clean} clean for Git; clean only here: {better:?}; conflicts on other paths: {partly:?}; \
         sub-directories that followed: {led:?}; by rule: {rules:?}"
    );
    if std::env::var_os("MERGE_HISTORIES").is_some() {
        let stories = better.iter().chain(&partly).map(|at| format!("history {at}\n{}\n", story(&histories[*at])));
        writeln!(std::io::stderr(), "{text}\n{}", stories.collect::<String>()).expect("written");
    }
    assert!(better.len() * 20 <= count && partly.len() * 20 <= count && led.len() * 50 <= count, "{text}");
}

const WITH_ITS_DIRECTORY: &str = "it went along with its directory, which the other side did not move";
const SHORT_WITH_ITS_DIRECTORY: &str = "too short to be similar, it went along with its directory";
const NAME_TAKEN: &str = "the name is taken where its directory went: it stays where it was put";
const REMOVED_BEFORE: &str = "one of the two only went along with its directory, and the other side removed it";
const SAME_BYTES: &str = "both added the same bytes with different modes";
const NOTHING_IN_IT: &str = "one of two that meet has nothing in it: the other's bytes, with the modes of both";
const UNCLEAR: &str = "about half of it is as it was, or another is as like it: what was renamed is a guess";
const OTHER_KIND_MOVED: &str = "another kind that one side made of it follows a rename";

/// The rule by which a merge here does not conflict where Git does. Versions that both sides have under one name and that
/// differ are never any of them.
fn rule(history: &History, dispute: &Dispute, mine: &Listed) -> Option<&'static str> {
    let History { base, ours, theirs } = history;
    let sides = [(ours, theirs), (theirs, ours)];
    let is_unclear = || {
        unclear(history).iter().any(|(from, to)| {
            dispute.paths.iter().any(|path| path == *from) && dispute.paths.iter().any(|path| path == *to)
        })
    };
    match (dispute.word.as_str(), &dispute.paths[..]) {
        ("contents" | "binary", [path]) => match (ours.get(path), theirs.get(path)) {
            (Some(ours), Some(theirs)) if same_bytes(ours, theirs) => Some(SAME_BYTES),
            (Some(ours), Some(theirs)) if !base.contains_key(path) && has_nothing(ours) != has_nothing(theirs) => {
                let full = if has_nothing(ours) { theirs } else { ours };
                let is_there = |(_, at, bytes): &(String, Vec<u8>, Vec<u8>)| at == path && bytes == bytes_of(full);
                mine.iter().any(is_there).then_some(NOTHING_IN_IT)
            }
            (Some(_), Some(_)) => {
                let was = |(from, file): (&Vec<u8>, &File), side: &Files, other: &Files| {
                    !other.contains_key(from) && side.get(path) == Some(file) && went_along(side, from, path)
                };
                let is_removed = |(side, other): &(&Files, &Files)| base.iter().any(|from| was(from, side, other));
                sides.iter().any(is_removed).then_some(REMOVED_BEFORE)
            }
            _ => Some(NAME_TAKEN),
        },
        ("rename/rename", [from, to @ ..]) | ("rename/delete", [to @ .., from]) => {
            let was = base.get(from);
            // Where it went may be a directory that the other side moved on, so that Git names yet another place.
            let went = |side: &Files| {
                to.iter().any(|to| went_along(side, from, to))
                    || side.iter().any(|(to, file)| was == Some(file) && went_along(side, from, to))
            };
            let rule = sides.iter().any(|(side, _)| went(side)).then_some(WITH_ITS_DIRECTORY);
            rule.or_else(|| is_unclear().then_some(UNCLEAR))
        }
        ("file in way of directory rename", [taken, put]) => {
            let is_taken = ours.contains_key(taken) || theirs.contains_key(taken);
            let stays = |side: &Files| {
                let is_there = |file: &File| mine.iter().any(|(_, at, bytes)| at == put && bytes == bytes_of(file));
                side.get(put).is_some_and(is_there)
            };
            (is_taken && (stays(ours) || stays(theirs))).then_some(NAME_TAKEN)
        }
        ("modify/delete", [path]) if base.contains_key(path) => {
            let went = |side: &Files| side.keys().any(|to| !base.contains_key(to) && went_along(side, path, to));
            sides.iter().any(|(side, _)| went(side)).then_some(SHORT_WITH_ITS_DIRECTORY)
        }
        ("modify/delete", [path]) => {
            let is_symlink = |file: &File| matches!(file, File::Symlink(_));
            let is_other = |(from, file): (&Vec<u8>, &File), side: &Files, other: &Files| {
                side.get(path) == Some(file)
                    && !side.contains_key(from)
                    && other.get(from).is_some_and(|made| is_symlink(made) != is_symlink(file))
            };
            let known = |(side, other): &(&Files, &Files)| base.iter().any(|from| is_other(from, side, other));
            sides.iter().any(known).then_some(OTHER_KIND_MOVED)
        }
        _ => None,
    }
}

/// Whether a side has a file under its old name in another directory, and nothing any more in the old one.
fn went_along(side: &Files, from: &[u8], to: &[u8]) -> bool {
    let slash = |path: &[u8]| path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let (old, name) = from.split_at(slash(from));
    side.contains_key(to) && to[slash(to)..] == *name && !side.keys().any(|path| path.starts_with(old))
}

fn same_bytes(ours: &File, theirs: &File) -> bool {
    match (ours, theirs) {
        (File::Plain(ours) | File::Executable(ours), File::Plain(theirs) | File::Executable(theirs)) => ours == theirs,
        _ => false,
    }
}

fn bytes_of(file: &File) -> &[u8] {
    match file {
        File::Plain(bytes) | File::Executable(bytes) | File::Symlink(bytes) => &bytes.0,
    }
}

fn has_nothing(file: &File) -> bool {
    bytes_of(file).is_empty()
}

/// What of either side is in no file of the merged tree and in no version of its conflicts: whole files, or lines where files were
/// merged. What is in the base counts when it was there once and each side still has it.
fn lost(history: &History, merged: &Listed, is_merged: bool) -> Option<String> {
    let merged: BTreeSet<&[u8]> = merged.iter().map(|(_, _, bytes)| &bytes[..]).collect();
    let lines =
        |bytes: &'_ [u8]| -> BTreeSet<Vec<u8>> { bytes.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect() };
    let known_lines: BTreeSet<_> = history.base.values().flat_map(|file| lines(bytes_of(file))).collect();
    let merged_lines: BTreeSet<_> = merged.iter().flat_map(|bytes| lines(bytes)).collect();
    let count = |files: &Files, bytes: &[u8]| files.values().filter(|file| bytes_of(file) == bytes).count();
    for (path, file) in history.ours.iter().chain(&history.theirs) {
        let bytes = bytes_of(file);
        let is_everywhere = || count(&history.ours, bytes) > 0 && count(&history.theirs, bytes) > 0;
        let is_owed = match count(&history.base, bytes) {
            0 => true,
            1 => is_everywhere(),
            _ => false,
        };
        if !is_owed || merged.contains(bytes) {
            continue;
        }
        if !is_merged {
            return Some(format!("{} is lost", path.escape_ascii()));
        }
        let is_kept = |line: &Vec<u8>| known_lines.contains(line) || merged_lines.contains(line);
        if let Some(line) = lines(bytes).into_iter().find(|line| !is_kept(line)) {
            return Some(format!("{:?} of {} is lost", line.escape_ascii().to_string(), path.escape_ascii()));
        }
    }
    None
}

/// Files that are gone on one side, each with one that is new there and how many percent of their bytes are the same.
fn gone_and_new(history: &History) -> Vec<(&Vec<u8>, &Vec<u8>, usize)> {
    let mut found = Vec::new();
    for side in [&history.ours, &history.theirs] {
        let gone = history.base.iter().filter(|(path, _)| !side.contains_key(*path));
        for (from, before) in gone {
            let new = side.iter().filter(|(path, _)| !history.base.contains_key(*path));
            let alike = |after: &File| percent_alike(bytes_of(before), bytes_of(after));
            found.extend(new.map(|(to, after)| (from, to, alike(after))));
        }
    }
    found
}

/// Those of which about half is the same, and those with a rival that is as much alike: what is a rename to one estimate is none to
/// another.
fn unclear(history: &History) -> Vec<(&Vec<u8>, &Vec<u8>)> {
    let pairs = gone_and_new(history);
    let is_unclear = |(from, to, percent): &(&Vec<u8>, &Vec<u8>, usize)| {
        let is_rival = |(other, too, rival): &(&Vec<u8>, &Vec<u8>, usize)| {
            too == to && other != from && rival.abs_diff(*percent) <= 5
        };
        (45..=55).contains(percent) || (*percent >= 45 && pairs.iter().any(is_rival))
    };
    pairs.iter().filter(|pair| is_unclear(pair)).map(|(from, to, _)| (*from, *to)).collect()
}

/// How much of the larger of two texts is in lines that both have.
fn percent_alike(before: &[u8], after: &[u8]) -> usize {
    let mut left: Vec<_> = after.split_inclusive(|byte| *byte == b'\n').collect();
    let mut shared = 0;
    for line in before.split_inclusive(|byte| *byte == b'\n') {
        if let Some(at) = left.iter().position(|other| *other == line) {
            shared += left.swap_remove(at).len();
        }
    }
    shared * 100 / before.len().max(after.len()).max(1)
}

/// Whether all that lies elsewhere here than in Git's tree is what a directory leads or does not lead by a guess.
fn is_led_by(unclear: &[(&Vec<u8>, &Vec<u8>)], mine: &Listed, gits: &Listed) -> bool {
    let split = |path: &[u8]| path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash);
    let ends = |one: &Listed, other: &Listed| -> BTreeSet<_> {
        let name = |path: &[u8]| path[split(path)..].to_vec();
        one.difference(other).map(|(mode, path, bytes)| (mode.clone(), name(path), bytes.clone())).collect()
    };
    let is_near = |path: &[u8]| {
        let above = &path[..split(path)];
        unclear.iter().any(|(from, to)| above == &from[..split(from)] || above == &to[..split(to)])
    };
    ends(mine, gits) == ends(gits, mine)
        && mine.difference(gits).chain(gits.difference(mine)).any(|(_, path, _)| is_near(path))
}

/// Whether all that differs are files in new sub-directories that followed a moved directory here, which Git leaves behind.
fn is_led_further(mine: &Listed, gits: &Listed) -> bool {
    let end = |path: &[u8]| {
        let names: Vec<_> = path.rsplit(|byte| *byte == b'/').take(2).map(<[u8]>::to_vec).collect();
        (names.len() == 2).then_some(names)
    };
    let ends = |one: &Listed, other: &Listed| -> Option<BTreeSet<_>> {
        one.difference(other).map(|(mode, path, bytes)| Some((mode.clone(), end(path)?, bytes.clone()))).collect()
    };
    ends(mine, gits).is_some_and(|here| Some(here) == ends(gits, mine))
}

/// What each side did, in short.
fn story(history: &History) -> String {
    let changes = |side: &Files| {
        let paths: BTreeSet<_> = history.base.keys().chain(side.keys()).collect();
        let differing = paths.into_iter().filter(|path| history.base.get(*path) != side.get(*path));
        let one = |path: &Vec<u8>| {
            let short = |file: &File| {
                let (kind, bytes) = match file {
                    File::Plain(bytes) => ("p", bytes),
                    File::Executable(bytes) => ("x", bytes),
                    File::Symlink(bytes) => ("l", bytes),
                };
                let hash = bytes.0.iter().fold(7_u16, |sum, byte| sum.wrapping_mul(31) ^ u16::from(*byte));
                format!("{kind}{}-{hash:x}", bytes.0.len())
            };
            let state = |files: &Files| files.get(path).map_or_else(|| "-".to_owned(), short);
            format!("{} {}>{}", path.escape_ascii(), state(&history.base), state(side))
        };
        differing.map(one).collect::<Vec<_>>().join(", ")
    };
    let base: Vec<_> = history.base.keys().map(|path| path.escape_ascii().to_string()).collect();
    let alike = gone_and_new(history).into_iter().filter(|(.., percent)| (20..100).contains(percent));
    let alike = alike.map(|(from, to, percent)| format!("{} {percent}% {}", from.escape_ascii(), to.escape_ascii()));
    format!(
        "  base {}\n  ours {}\n  theirs {}\n  alike {}",
        base.join(", "),
        changes(&history.ours),
        changes(&history.theirs),
        alike.collect::<Vec<_>>().join(", ")
    )
}
