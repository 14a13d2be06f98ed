//! History beside Git's: random histories with merges and renames replayed into both, and the same questions asked.

#![allow(clippy::print_stderr, reason = "a failure is repeated by its seed")]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;

use amalgam_engine::history::{GraphLayout, History, LogOrder, PathChange, Verdict};
use amalgam_engine::object::Node;
use amalgam_engine::work::RenameMode;
use amalgam_engine::{
    Commit, Error, ErrorKind, Expect, SnapshotId, Store, SweepRound, Swept, Time, TreePath, WorkingTree,
};
use amalgam_tests::git;
use amalgam_tests::harness::{Random, name, over_all, seed};

/// A repository of its own.
struct Git(tempfile::TempDir);

impl Git {
    fn new() -> Self {
        let repository = Self(tempfile::tempdir().expect("a temporary directory"));
        repository.run(&["init", "--quiet", "--bare"]);
        repository
    }

    fn run_with_input(&self, arguments: &[&str], input: &[u8]) -> String {
        let out = git::run(git::git(self.0.path()).args(arguments), input);
        let out = out.unwrap_or_else(|error| panic!("git {}: {error}", arguments.join(" ")));
        String::from_utf8(out).expect("text")
    }

    fn run(&self, arguments: &[&str]) -> String {
        self.run_with_input(arguments, b"")
    }

    /// What is nothing is said with a failure, as `merge-base` does.
    fn run_or_nothing(&self, arguments: &[&str]) -> String {
        git::run(git::git(self.0.path()).args(arguments), b"")
            .map_or_else(|_| String::new(), |out| String::from_utf8(out).expect("text"))
    }

    fn succeeds(&self, arguments: &[&str]) -> bool {
        git::run(git::git(self.0.path()).args(arguments), b"").is_ok()
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.0.path().join(file)).expect("a file of Git's")
    }
}

type Files = BTreeMap<String, Vec<String>>;

struct Made {
    parents: Vec<usize>,
    files: Files,
}

/// A history in which every line that is ever written is unlike every other, so that there is one right answer.
fn history(random: &mut Random, length: usize, merges: bool) -> Vec<Made> {
    let mut made: Vec<Made> = Vec::new();
    for number in 0..length {
        let Some(last) = number.checked_sub(1) else {
            let lines = (0..20).map(|line| format!("line {line} of the first")).collect();
            made.push(Made { parents: Vec::new(), files: BTreeMap::from([("f0".to_owned(), lines)]) });
            continue;
        };
        let pick = |random: &mut Random| match merges {
            true => last - random.below(number.min(6) as u64) as usize,
            false => last,
        };
        let first = pick(random);
        let mut parents = vec![first];
        let mut files = made[first].files.clone();
        let second = pick(random);
        if merges && second != first && random.below(3) == 0 {
            parents.push(second);
            let names: BTreeSet<_> = files.keys().chain(made[second].files.keys()).cloned().collect();
            for name in names {
                if random.below(2) == 0 {
                    match made[second].files.get(&name) {
                        Some(lines) => files.insert(name, lines.clone()),
                        None => files.remove(&name),
                    };
                }
            }
        }
        if parents.len() == 1 || random.below(4) == 0 {
            edit(random, &mut files, number);
        }
        made.push(Made { parents, files });
    }
    made
}

fn edit(random: &mut Random, files: &mut Files, number: usize) {
    let fresh = |count: u64| (0..count).map(move |line| format!("line {line} of commit {number}"));
    let chosen = files.keys().nth(random.below(files.len().max(1) as u64) as usize).cloned();
    match (random.below(10), chosen) {
        (0, _) | (_, None) => {
            files.insert(format!("d/f{number}"), fresh(12).collect());
        }
        (1, Some(name)) if files.len() > 2 => {
            files.remove(&name);
        }
        (2, Some(name)) => {
            let mut lines = files.remove(&name).expect("it is there");
            lines.extend(fresh(1));
            files.insert(format!("moved{number}"), lines);
        }
        (_, Some(name)) => {
            let lines = files.get_mut(&name).expect("it is there");
            for _ in 0..random.below(3) {
                if !lines.is_empty() {
                    lines.remove(random.below(lines.len() as u64) as usize);
                }
            }
            let at = random.below(lines.len() as u64 + 1) as usize;
            let count = 1 + random.below(3);
            lines.splice(at..at, fresh(count));
        }
    }
}

fn text(lines: &[String]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// The history in a store; the snapshot of each commit.
fn into_store(store: &Store, made: &[Made]) -> Vec<SnapshotId> {
    let mut ids: Vec<SnapshotId> = Vec::new();
    for (number, Made { parents, files }) in made.iter().enumerate() {
        let mut tree = match parents.first() {
            Some(parent) => WorkingTree::open(store, ids[*parent]).expect("open"),
            None => WorkingTree::new(store),
        };
        let empty = BTreeMap::new();
        let before = parents.first().map_or(&empty, |parent| &made[*parent].files);
        for gone in before.keys().filter(|name| !files.contains_key(*name)) {
            tree.remove(gone).expect("remove");
        }
        for (name, lines) in files.iter().filter(|(name, lines)| before.get(*name) != Some(lines)) {
            if let Some((directory, _)) = name.rsplit_once('/') {
                tree.create_directories(directory).expect("mkdir");
            }
            tree.write(name, text(lines).as_bytes()).expect("write");
        }
        let reference = name(format!("head/{number}"));
        let mut commit = Commit::new(&reference, format!("commit {number}")).buffered().expecting(Expect::Absent);
        commit = commit.by(format!("author {}", number % 3), Time(number as i64 * 1_000_000_000));
        commit.other_parents = parents.iter().skip(1).map(|parent| ids[*parent]).collect();
        ids.push(tree.commit(commit).expect("commit").snapshot);
    }
    ids
}

/// The history in a Git repository; the hash of each commit.
fn into_git(git: &Git, made: &[Made]) -> Vec<String> {
    let mut stream = String::new();
    for (number, Made { parents, files }) in made.iter().enumerate() {
        let message = format!("commit {number}");
        writeln!(stream, "commit refs/heads/all\nmark :{}", number + 1).expect("a string");
        writeln!(stream, "committer a <a@b> {number} +0000\ndata {}\n{message}", message.len()).expect("a string");
        for (place, parent) in parents.iter().enumerate() {
            writeln!(stream, "{} :{}", ["from", "merge"][place.min(1)], parent + 1).expect("a string");
        }
        writeln!(stream, "deleteall").expect("a string");
        for (name, lines) in files {
            let text = text(lines);
            writeln!(stream, "M 100644 inline {name}\ndata {}\n{text}", text.len()).expect("a string");
        }
    }
    stream.push_str("done\n");
    git.run_with_input(&["fast-import", "--quiet", "--done", "--force", "--export-marks=marks"], stream.as_bytes());
    git.run(&["symbolic-ref", "HEAD", "refs/heads/all"]);
    let marks = git.read("marks");
    let mut hashes = vec![String::new(); made.len()];
    for line in marks.lines() {
        let (mark, hash) = line.split_once(' ').expect("a mark and a hash");
        hashes[mark[1..].parse::<usize>().expect("a number") - 1] = hash.to_owned();
    }
    hashes
}

struct Both {
    made: Vec<Made>,
    store: Store,
    ids: Vec<SnapshotId>,
    git: Git,
    hashes: Vec<String>,
    random: Random,
}

impl Both {
    fn new(seed: u64, length: usize, merges: bool) -> Self {
        eprintln!("AMALGAM_SEED={seed}");
        let mut random = Random::new(seed);
        let made = history(&mut random, length, merges);
        let store = Store::in_memory();
        let ids = into_store(&store, &made);
        let git = Git::new();
        let hashes = into_git(&git, &made);
        Self { made, store, ids, git, hashes, random }
    }

    fn number_of_id(&self, id: SnapshotId) -> usize {
        self.ids.iter().position(|other| *other == id).expect("one of ours")
    }

    fn number_of_hash(&self, hash: &str) -> usize {
        self.hashes.iter().position(|other| other == hash).expect("one of Git's")
    }
}

#[test]
fn common_ancestors_are_those_of_git() {
    for round in 0..3 {
        let mut both = Both::new(seed() ^ round, 80, true);
        let history = History::of(&both.store);
        for _ in 0..40 {
            let (a, b) = (both.random.below(80) as usize, both.random.below(80) as usize);
            let out = both.git.run_or_nothing(&["merge-base", "--all", &both.hashes[a], &both.hashes[b]]);
            let theirs: BTreeSet<_> = out.lines().map(|hash| both.number_of_hash(hash)).collect();
            let found = history.common_ancestors(both.ids[a], both.ids[b]).expect("found");
            let ours: BTreeSet<_> = found.iter().map(|id| both.number_of_id(*id)).collect();
            assert_eq!(ours, theirs, "of {a} and {b}");
            assert_eq!(history.merge_bases(both.ids[a], both.ids[b]).expect("found"), found, "nothing is thinned");
            let is_ancestor = both.git.succeeds(&["merge-base", "--is-ancestor", &both.hashes[a], &both.hashes[b]]);
            assert_eq!(history.is_ancestor(both.ids[a], both.ids[b]).expect("told"), is_ancestor);
        }
    }
}

#[test]
fn criss_cross_merges_have_several_common_ancestors() {
    let parents = [vec![], vec![0], vec![0], vec![1, 2], vec![2, 1], vec![3], vec![4]];
    let made = parents.into_iter().enumerate().map(|(number, parents)| {
        let files = BTreeMap::from([(format!("f{number}"), vec![number.to_string()])]);
        Made { parents, files }
    });
    let made: Vec<_> = made.collect();
    let store = Store::in_memory();
    let ids = into_store(&store, &made);
    let found = History::of(&store).common_ancestors(ids[5], ids[6]).expect("found");
    assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), BTreeSet::from([ids[1], ids[2]]));
}

#[test]
fn ranges_and_logs_are_those_of_git() {
    let both = Both::new(seed(), 120, true);
    let history = History::of(&both.store);
    let (from, to) = (40, 119);
    let out = both.git.run(&["rev-list", &both.hashes[to], &format!("^{}", both.hashes[from])]);
    let theirs: BTreeSet<_> = out.lines().map(|hash| both.number_of_hash(hash)).collect();
    let range = history.range(both.ids[to], &[both.ids[from]]).expect("range");
    assert_eq!(range.iter().map(|id| both.number_of_id(*id)).collect::<BTreeSet<_>>(), theirs);
    for order in [LogOrder::Time, LogOrder::Generation] {
        let log: Vec<_> = history.log(&[both.ids[to]], order).expect("log").map(|entry| entry.expect("read")).collect();
        let out = both.git.run(&["rev-list", "--date-order", &both.hashes[to]]);
        let theirs: Vec<_> = out.lines().map(|hash| both.number_of_hash(hash)).collect();
        let ours: Vec<_> = log.iter().map(|entry| both.number_of_id(entry.id)).collect();
        match order {
            LogOrder::Time => assert_eq!(ours, theirs),
            LogOrder::Generation => {
                assert_eq!(ours.iter().collect::<BTreeSet<_>>(), theirs.iter().collect::<BTreeSet<_>>());
            }
        }
        let places: HashMap<_, _> = log.iter().enumerate().map(|(place, entry)| (entry.id, place)).collect();
        let mut layout = GraphLayout::new();
        let mut above = BTreeSet::new();
        for (place, entry) in log.iter().enumerate() {
            assert!(entry.snapshot.parents.iter().all(|parent| places[parent] > place), "children first");
            let row = layout.row(entry.id, &entry.snapshot.parents);
            let from: BTreeSet<_> = row.edges.iter().map(|edge| edge.from).collect();
            assert!(row.lane < row.width && row.edges.iter().all(|edge| edge.from < row.width));
            assert!(above.iter().all(|lane| *lane == row.lane || from.contains(lane) || *lane < row.width));
            above = row.edges.iter().map(|edge| edge.to).collect();
        }
        assert!(above.is_empty(), "every line ends at the first commit");
    }
    assert_eq!(history.log(&[both.ids[to]], LogOrder::Time).expect("log").take(5).count(), 5);
}

#[test]
fn versions_of_a_path_are_those_of_git() {
    for (round, merges) in [false, true].into_iter().enumerate() {
        let both = Both::new(seed() ^ round as u64, 100, merges);
        let history = History::of(&both.store);
        let head = both.made.len() - 1;
        let paths: BTreeSet<_> = both.made.iter().flat_map(|made| made.files.keys()).cloned().collect();
        for path in paths {
            let out = both.git.run(&["log", "--format=%H", &both.hashes[head], "--", &path]);
            let theirs: BTreeSet<_> = out.lines().map(|hash| both.number_of_hash(hash)).collect();
            let tree_path = TreePath::new(&path).expect("a path");
            let versions = history.versions(both.ids[head], &tree_path, false).expect("versions");
            let versions: Vec<_> = versions.map(|version| version.expect("read")).collect();
            let ours: BTreeSet<_> = versions.iter().map(|version| both.number_of_id(version.id)).collect();
            assert_eq!(ours, theirs, "{path}");
            for version in versions {
                let lines = both.made[both.number_of_id(version.id)].files.get(&path);
                assert_eq!(version.entry.is_some(), lines.is_some(), "{path}");
                assert_eq!(version.change == PathChange::Removed, lines.is_none(), "{path}");
            }
        }
    }
}

#[test]
fn blame_is_that_of_git() {
    let mut renamed = 0;
    for (round, merges) in [false, false, true, true].into_iter().enumerate() {
        let both = Both::new(seed() ^ round as u64, 60, merges);
        let history = History::of(&both.store);
        let head = both.made.len() - 1;
        for (path, lines) in &both.made[head].files {
            let out = both.git.run(&["blame", "-s", "-l", "--root", "-n", "-f", &both.hashes[head], "--", path]);
            let theirs: Vec<_> = out
                .lines()
                .map(|line| {
                    let mut words = line.split_whitespace();
                    let hash = both.number_of_hash(words.next().expect("a hash").trim_start_matches('^'));
                    (hash, words.next().expect("a file").to_owned())
                })
                .collect();
            let blame = history.blame(both.ids[head], &TreePath::new(path).expect("a path")).expect("blame");
            assert_eq!(blame.text, text(lines).as_bytes());
            let mut ours = Vec::new();
            for run in &blame.runs {
                assert_eq!(run.lines.start, ours.len(), "the runs are all of the file");
                let number = both.number_of_id(run.id);
                for (offset, line) in lines[run.lines.clone()].iter().enumerate() {
                    let there = &both.made[number].files[&run.path.to_string()];
                    assert_eq!(&there[run.first_line + offset], line, "the line is where the run says");
                    ours.push((number, run.path.to_string()));
                }
                renamed += usize::from(run.path.to_string() != *path);
            }
            assert_eq!(ours, theirs, "{path}");
        }
    }
    assert!(renamed > 0, "no line came from behind a rename");
}

#[test]
fn bisect_finds_what_git_finds() {
    for (round, merges) in [false, true].into_iter().enumerate() {
        let mut both = Both::new(seed() ^ round as u64, 64, merges);
        let history = History::of(&both.store);
        let head = both.made.len() - 1;
        // Something breaks at one commit and stays broken in all that come of it.
        let on_the_way = history.range(both.ids[head], &[both.ids[0]]).expect("range");
        let culprit = on_the_way[both.random.below(on_the_way.len() as u64) as usize];
        let check = |id| Ok(if history.is_ancestor(culprit, id)? { Verdict::Bad } else { Verdict::Good });
        let found = history.bisect(&[both.ids[0]], both.ids[head], check).expect("found");
        assert_eq!(found.first_bad, [culprit]);
        assert!(found.tried <= 8, "{} tries for {} candidates", found.tried, on_the_way.len());

        let broken = &both.hashes[both.number_of_id(culprit)];
        both.git.run(&["bisect", "start", "--no-checkout", &both.hashes[head], &both.hashes[0]]);
        let script = format!("! git merge-base --is-ancestor {broken} BISECT_HEAD");
        let out = both.git.run(&["bisect", "run", "sh", "-c", &script]);
        assert!(out.contains(&format!("{broken} is the first bad commit")), "{out}");
    }
}

#[test]
fn bisect_says_what_it_could_not_tell() {
    let both = Both::new(7, 32, false);
    let history = History::of(&both.store);
    let check = |id| {
        let number = both.number_of_id(id);
        Ok(match number {
            10..=12 => Verdict::Skip,
            number if number >= 12 => Verdict::Bad,
            _ => Verdict::Good,
        })
    };
    let found = history.bisect(&[both.ids[0]], both.ids[31], check).expect("found");
    let first: BTreeSet<_> = found.first_bad.iter().map(|id| both.number_of_id(*id)).collect();
    assert_eq!(first, BTreeSet::from([10, 11, 12, 13]), "the first bad one, and those that could be");
    let error = history.bisect(&[both.ids[20]], both.ids[10], |_| Ok(Verdict::Good)).expect_err("nonsense");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let failed = history
        .bisect(&[both.ids[0]], both.ids[31], |_| Err(Error::Invalid { what: "test", why: "it broke".to_owned() }));
    assert!(failed.is_err(), "an error of the callback ends it");
}

/// Drops every tree that nothing but the given names refers to, as retention will; records stay.
fn thin(store: &Store, thinned: &[SnapshotId]) {
    let mut round: SweepRound = store.begin_sweep().expect("begin");
    let dead: BTreeSet<_> = thinned.iter().map(|id| store.snapshot(*id).expect("there").root.object()).collect();
    let swept = round.sweep(&|id| !dead.contains(&id)).expect("sweep");
    assert_eq!(swept, Swept::Done { objects: dead.len() as u64 });
}

#[test]
fn thinned_snapshots_are_passed_over() {
    over_all(|place| {
        let store = place.store();
        let mut tree = WorkingTree::new(&store);
        let mut ids = Vec::new();
        let commit = |tree: &mut WorkingTree, number: i64| {
            let reference = name(format!("head/{number}"));
            let commit = Commit::new(&reference, "c").buffered().expecting(Expect::Absent).by("a", Time(number));
            tree.commit(commit).expect("commit").snapshot
        };
        for number in 0..6_i64 {
            tree.write("f", format!("first\n{number}\n").as_bytes()).expect("write");
            ids.push(commit(&mut tree, number));
        }
        let mut left = WorkingTree::open(&store, ids[4]).expect("open");
        left.write("left", b"l").expect("write");
        let left_id = commit(&mut left, 10);
        drop((tree, left));
        thin(&store, &[ids[3], ids[4]]);
        let history = History::of(&store);
        assert!(history.is_thinned(ids[3]).expect("told") && !history.is_thinned(ids[2]).expect("told"));
        assert_eq!(history.common_ancestors(ids[5], left_id).expect("found"), [ids[4]], "its record is there");
        assert_eq!(history.merge_bases(ids[5], left_id).expect("found"), [ids[2]], "the nearest with a tree");
        assert_eq!(history.log(&[ids[5]], LogOrder::Time).expect("log").count(), 6);
        let path = TreePath::new("f").expect("a path");
        let versions = history.versions(ids[5], &path, true).expect("versions");
        let found: Vec<_> = versions.map(|version| version.expect("read").id).collect();
        assert_eq!(found, [ids[5], ids[2], ids[1], ids[0]]);
        let blame = history.blame(ids[5], &path).expect("blame");
        assert_eq!(blame.runs.iter().map(|run| run.id).collect::<Vec<_>>(), [ids[0], ids[5]]);
    });
}

/// Opens a store that was closed just now. A `git` that another test starts in this process holds the lock until it executes.
fn reopened(place: &std::path::Path) -> Store {
    for _ in 0..200 {
        match Store::open(place) {
            Err(error) if error.kind() == ErrorKind::Busy => std::thread::sleep(std::time::Duration::from_millis(50)),
            opened => return opened.expect("open"),
        }
    }
    panic!("the store stays locked");
}

#[test]
fn what_is_missing_below_a_root_is_damage_and_not_thinned() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let place = directory.path().join("store");
    let (head, first) = (name("head/main"), name("head/first"));
    let store = Store::open(&place).expect("open");
    let mut tree = WorkingTree::new(&store);
    tree.write("f", b"1").expect("write");
    let older = tree.commit(Commit::new(&first, "c")).expect("commit").snapshot;
    tree.write("f", b"2").expect("write");
    let newer = tree.commit(Commit::new(&head, "c").expecting(Expect::Absent)).expect("commit").snapshot;
    let root = store.root(store.snapshot(older).expect("there").root).expect("there");
    let Node::Directory(Some(contents)) = root.directory.node else { panic!("a directory") };
    drop(tree);
    let mut round = store.begin_sweep().expect("begin");
    let swept = round.sweep(&|id| id != contents.id.object()).expect("sweep");
    assert_eq!(swept, Swept::Done { objects: 1 });
    drop((round, store));
    let history = History::of(&reopened(&place));
    let path = TreePath::new("f").expect("a path");
    let found: Result<Vec<_>, _> = history.versions(newer, &path, true).expect("versions").collect();
    assert_eq!(found.expect_err("it is damaged").kind(), ErrorKind::Corrupt);
    assert_eq!(history.blame(newer, &path).expect_err("it is damaged").kind(), ErrorKind::Corrupt);
}

#[test]
fn versions_go_on_behind_renames_of_files_and_directories() {
    let store = Store::in_memory();
    let mut tree = WorkingTree::new(&store);
    let head = name("head/main");
    let mut ids = Vec::new();
    let mut commit = |tree: &mut WorkingTree| {
        ids.push(tree.commit(Commit::new(&head, "c").by("a", Time::EPOCH)).expect("commit").snapshot);
    };
    tree.create_directories("old").expect("mkdir");
    tree.write("old/f", b"one\ntwo\nthree\nfour\n").expect("write");
    commit(&mut tree);
    tree.rename("old", "new", RenameMode::Replace).expect("rename");
    commit(&mut tree);
    tree.rename("new/f", "g", RenameMode::Replace).expect("rename");
    tree.append("g", b"five\n").expect("append");
    commit(&mut tree);
    let history = History::of(&store);
    let versions = |follow| {
        let found = history.versions(ids[2], &TreePath::new("g").expect("a path"), follow).expect("versions");
        found.map(|version| version.expect("read")).map(|version| (version.path.to_string(), version.change)).collect()
    };
    let from = |path: &str| PathChange::Renamed { from: TreePath::new(path).expect("a path") };
    let followed: Vec<(String, PathChange)> = versions(true);
    let expected = [("g", from("new/f")), ("new/f", from("old/f")), ("old/f", PathChange::Added)];
    assert_eq!(followed, expected.map(|(path, change)| (path.to_owned(), change)));
    let plain: Vec<(String, PathChange)> = versions(false);
    assert_eq!(plain, [("g".to_owned(), PathChange::Added)]);
}

#[test]
fn what_is_not_there_is_said_plainly() {
    let store = Store::in_memory();
    let history = History::of(&store);
    let nowhere = SnapshotId::of(b"nowhere");
    for error in [
        history.log(&[nowhere], LogOrder::Time).err(),
        history.common_ancestors(nowhere, nowhere).err(),
        history.versions(nowhere, &TreePath::root(), false).err(),
        history.blame(nowhere, &TreePath::root()).err(),
    ] {
        let error = error.expect("it is not there");
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains(&nowhere.short()), "{error}");
    }
    let mut tree = WorkingTree::new(&store);
    tree.create_directories("d").expect("mkdir");
    let id = tree.commit(Commit::new(&name("head/main"), "c")).expect("commit").snapshot;
    let blame = |path: &str| history.blame(id, &TreePath::new(path).expect("a path")).expect_err("no file").kind();
    assert_eq!((blame("d"), blame("x")), (ErrorKind::Invalid, ErrorKind::NotFound));
}
