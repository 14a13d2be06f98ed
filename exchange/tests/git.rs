//! git repositories in and out, with git itself as the oracle.

#[path = "kit/listing.rs"]
mod listing;
#[path = "kit/repository.rs"]
mod repository;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use amalgam_engine::object::Snapshot;
use amalgam_engine::{SnapshotId, Store, Time, WorkingTree};
use amalgam_exchange::{
    Error, GITLINK_XATTR, GitExport, GitHistory, GitImport, Identity, Imported, Progress, count_git, export_git,
    import_git,
};
use listing::run;
use repository::{feed, git, new_repository, rev, text};

/// A history with every oddity that git allows and fast-import can write.
fn odd_stream() -> Vec<u8> {
    let mut stream = Vec::new();
    let mut put = |text: &[u8]| stream.extend_from_slice(text);
    let commit = |mark: u32, seconds: u32, message: &[u8], rest: &[u8]| {
        let head = format!(
            "commit refs/heads/main\nmark :{mark}\nauthor A \u{fc} <a@x> {seconds} +0100\ncommitter C <c@x> {seconds} -0730\n"
        );
        let data = format!("data {}\n", message.len());
        [head.as_bytes(), data.as_bytes(), message, b"\n", rest, b"\n"].concat()
    };
    put(&commit(
        1,
        1_000_000_000,
        b"first\n",
        b"M 100644 inline a\ndata 2\n1\n\nM 100644 inline d/e/f\ndata 2\nx\n\nM 100644 inline d/g\ndata 2\ny\n",
    ));
    put(&commit(2, 1_000_000_100, b"mode, symlink, names\n\nbody\n", b"from :1\nM 100755 inline a\ndata 2\n1\n\nM 120000 inline link\ndata 9\n../target\nM 100644 inline \"\\377\\376 \\\"q\\\"\\n\"\ndata 3\nodd\n"));
    put(&commit(
        3,
        1_000_000_200,
        b"no newline at the end",
        b"from :2\nM 100644 inline crlf\ndata 4\na\r\n\nM 160000 1234567890123456789012345678901234567890 sub\n",
    ));
    put(&commit(4, 1_000_000_300, b"", b"from :1\nM 100644 inline side\ndata 1\ns\n"));
    put(&commit(5, 1_000_000_300, b"other\n", b"from :1\nD d/g\nM 100644 inline d/h\ndata 1\nh\n"));
    put(&commit(
        6,
        1_000_000_400,
        b"octopus\n",
        b"from :3\nmerge :4\nmerge :5\nM 100644 inline side\ndata 1\ns\nM 100644 inline d/h\ndata 1\nh\nD d/g\n",
    ));
    put(&commit(7, 1_000_000_500, b"empty commit\n", b"from :6\n"));
    put(&commit(
        8,
        1_000_000_050,
        b"older than its parent, latin \xe9\xff\n",
        b"from :7\nD d\nM 100644 inline d\ndata 3\nnow\n",
    ));
    put(&commit(
        9,
        1_000_000_600,
        b"file to directory\n",
        b"from :8\nD d\nM 100644 inline d/again/x\ndata 1\nx\nR a moved\n",
    ));
    put(b"commit refs/heads/main\nmark :10\nauthor E <e@x> 1000000700 +0000\ncommitter E <e@x> 1000000700 +0000\nencoding ISO-8859-1\ndata 5\ncaf\xe9\n\nfrom :9\nM 120000 inline bad\ndata 0\n\n\n");
    let large: Vec<u8> = (0..300_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    put(b"commit refs/heads/main\nmark :11\nauthor E <e@x> 1000000800 +0000\ncommitter E <e@x> 1000000800 +0000\ndata 5\nlarge\nfrom :10\nM 100644 inline large\n");
    put(format!("data {}\n", large.len()).as_bytes());
    put(&large);
    put(b"\n\n");
    stream
}

fn odd_repository(home: &Path) -> PathBuf {
    let path = new_repository(home, "odd.git");
    feed(&path, &odd_stream());
    run(git(&path).args(["fsck", "--strict", "--no-dangling"]));
    path
}

fn all() -> GitImport {
    GitImport { history: GitHistory::All, ..GitImport::default() }
}

fn import(store: &Store, path: &Path, options: &GitImport) -> Imported {
    import_git(store, path, options, &Progress::default()).expect("import")
}

fn export_options(branch: &str) -> GitExport {
    GitExport {
        branch: branch.to_owned(),
        history: GitHistory::All,
        since: None,
        identity: Identity::default(),
        create: true,
        is_mirror: false,
        dry_run: false,
    }
}

fn snapshot(store: &Store, id: SnapshotId) -> Snapshot {
    Snapshot::clone(&*store.snapshot(id).expect("there"))
}

#[test]
fn a_history_comes_back_from_a_store_with_the_same_ids() {
    let home = tempfile::tempdir().expect("a directory");
    let path = odd_repository(home.path());
    let store = Store::in_memory();
    let imported = import(&store, &path, &all());
    assert_eq!(imported.snapshots.len(), 11);
    let out = home.path().join("out.git");
    let exported =
        export_git(&store, imported.head, &out, &export_options("main"), &Progress::default()).expect("export");
    assert_eq!(exported.commit, rev(&path, "main"), "{:?}", exported.report);
    run(git(&out).args(["fsck", "--strict", "--no-dangling"]));
    let list = |path: &Path| text(run(git(path).args(["log", "--format=%H %T %P", "main"])));
    assert_eq!(list(&out), list(&path));
    for commit in text(run(git(&path).args(["rev-list", "main"]))).lines() {
        let tree = |path: &Path| run(git(path).args(["ls-tree", "-r", "-z", commit]));
        assert_eq!(tree(&out), tree(&path), "{commit}");
    }
    assert!(exported.report.notices.is_empty(), "{:?}", exported.report.notices);
}

#[test]
fn the_same_commit_is_the_same_snapshot_in_every_store() {
    let home = tempfile::tempdir().expect("a directory");
    let path = odd_repository(home.path());
    let copy = home.path().join("copy");
    run(git(home.path()).args(["clone", "-qn"]).arg(&path).arg(&copy));
    run(git(&path).args(["repack", "-adfq", "--depth=50", "--window=50"]));
    let (one, other) = (Store::in_memory(), Store::in_memory());
    let first = import(&one, &path, &all());
    let second = import(&other, &copy, &all());
    assert_eq!(first.head, second.head);
    // In steps, each on what was there, it comes to the same.
    let stepped = Store::in_memory();
    let mut known = Vec::new();
    for commit in text(run(git(&path).args(["rev-list", "--reverse", "--topo-order", "main"]))).lines() {
        let options = GitImport { reference: Some(commit.to_owned()), known: known.clone(), ..all() };
        let imported = import(&stepped, &path, &options);
        assert_eq!(imported.snapshots.len(), 1, "{commit}");
        known.push(imported.head);
    }
    assert_eq!(known.last(), Some(&first.head));
}

#[test]
fn a_snapshot_says_what_the_commit_said() {
    let home = tempfile::tempdir().expect("a directory");
    let path = odd_repository(home.path());
    let store = Store::in_memory();
    let imported = import(&store, &path, &all());
    let second = snapshot(&store, imported.snapshots[1]);
    assert_eq!((second.author.as_str(), second.time), ("A \u{fc} <a@x>", Time(1_000_000_100_000_000_000)));
    assert_eq!(second.message, "mode, symlink, names\n\nbody");
    let tree = WorkingTree::open(&store, imported.snapshots[1]).expect("open");
    let stat = |path: &[u8]| tree.stat(path).expect("stat").expect("there");
    assert_eq!(stat(b"a").mode, 0o755);
    assert_eq!(stat(b"a").mtime, second.time, "the mode changed in this commit");
    assert_eq!(stat(b"d/e/f").mtime, Time(1_000_000_000_000_000_000), "the first commit changed it last");
    assert_eq!(&tree.read_link("link").expect("a target")[..], b"../target");
    assert_eq!(tree.read(b"\xff\xfe \"q\"\n").expect("read"), b"odd");
    let tree = WorkingTree::open(&store, imported.head).expect("open");
    let link = tree.xattr("sub", GITLINK_XATTR.as_bytes()).expect("look").expect("a submodule");
    assert_eq!(&link[..], b"1234567890123456789012345678901234567890");
    assert_eq!(tree.stat("side").expect("stat").expect("there").mtime, Time(1_000_000_300_000_000_000));
}

#[test]
fn only_new_commits_are_imported_again() {
    let home = tempfile::tempdir().expect("a directory");
    let path = odd_repository(home.path());
    let store = Store::in_memory();
    let first = import(&store, &path, &all());
    feed(
        &path,
        b"commit refs/heads/main\nmark :1\ncommitter N <n@x> 1000000900 +0000\ndata 4\nnew\n\nfrom refs/heads/main^0\nM 100644 inline n\ndata 1\nn\n\n",
    );
    let options = GitImport { known: vec![first.head], ..all() };
    assert_eq!(count_git(&store, &path, &options, &Progress::default()).expect("count").snapshots, 1);
    let second = import(&store, &path, &options);
    assert_eq!(second.snapshots.len(), 1);
    assert_eq!(snapshot(&store, second.head).parents, [first.head]);
    assert_eq!(second.report.files, 1);
    // Nothing new at all.
    let third = import(&store, &path, &GitImport { known: vec![second.head], ..all() });
    assert_eq!((third.snapshots.len(), third.head), (0, second.head));
    // What was committed on top of it in the store is looked through.
    let mut tree = WorkingTree::open(&store, second.head).expect("open");
    tree.write("mine", b"1").expect("write");
    let name = amalgam_engine::RefName::new("head/x").expect("a name");
    let commit = amalgam_engine::Commit::new(&name, "mine").expecting(amalgam_engine::Expect::Absent);
    let mine = tree.commit(commit).expect("commit").snapshot;
    assert!(import(&store, &path, &GitImport { known: vec![mine], ..all() }).snapshots.is_empty());
}

#[test]
fn history_is_cut_where_it_is_asked_or_where_the_repository_is_shallow() {
    let home = tempfile::tempdir().expect("a directory");
    let path = odd_repository(home.path());
    let store = Store::in_memory();
    let one = import(&store, &path, &GitImport::default());
    assert_eq!(one.snapshots.len(), 1);
    assert!(snapshot(&store, one.head).parents.is_empty());
    let tree = |snapshot| WorkingTree::open(&store, snapshot).expect("open").read("d/again/x").expect("read");
    assert_eq!(tree(one.head), b"x");
    let three = import(&store, &path, &GitImport { history: GitHistory::Last(3), ..GitImport::default() });
    assert_eq!(three.snapshots.len(), 3);
    // The same boundary gives the same snapshot, also in a shallow clone.
    let shallow = home.path().join("shallow");
    let url = format!("file://{}", path.display());
    run(git(home.path()).args(["clone", "-qn", "--depth=3", &url]).arg(&shallow));
    let cloned = import(&store, &shallow, &all());
    assert_eq!((cloned.head, cloned.snapshots.len()), (three.head, 3));
    // A full import does not rest on a limited one.
    let full = import(&store, &path, &GitImport { known: vec![three.head], ..all() });
    assert_eq!(full.snapshots.len(), 11);
}

#[test]
fn references_and_ids_name_commits() {
    let home = tempfile::tempdir().expect("a directory");
    let path = odd_repository(home.path());
    run(git(&path).args(["tag", "-a", "-m", "tagged", "v1", "main~2"]));
    run(git(&path).args(["branch", "topic", "main~3"]));
    let store = Store::in_memory();
    for (name, commit) in [("v1", "main~2"), ("topic", "main~3"), ("refs/heads/topic", "main~3")] {
        let imported = import(&store, &path, &GitImport { reference: Some(name.to_owned()), ..GitImport::default() });
        assert_eq!(snapshot(&store, imported.head).metadata["git.commit"], rev(&path, commit));
    }
    for name in ["nothing", "0123456789012345678901234567890123456789", "main:d"] {
        let options = GitImport { reference: Some(name.to_owned()), ..GitImport::default() };
        let error = import_git(&store, &path, &options, &Progress::default()).err().expect("no commit");
        assert!(error.to_string().contains("git reference"), "{name}: {error}");
    }
    let empty = new_repository(home.path(), "empty.git");
    let error = import_git(&store, &empty, &GitImport::default(), &Progress::default()).err().expect("empty");
    assert!(error.to_string().contains("may be empty"), "{error}");
    let error = import_git(&store, home.path(), &GitImport::default(), &Progress::default()).err().expect("none");
    assert!(error.to_string().contains("name the top of a work tree"), "{error}");
}

#[test]
fn a_repository_of_files_and_merges_made_by_git_comes_back() {
    let home = tempfile::tempdir().expect("a directory");
    let path = home.path().join("work");
    run(git(home.path()).args(["init", "-q", "-b", "main"]).arg(&path));
    for round in 0..6 {
        fs::create_dir_all(path.join(format!("dir{round}/sub"))).expect("mkdir");
        fs::write(path.join(format!("dir{round}/sub/file")), format!("{round}\n")).expect("write");
        fs::write(path.join("shared"), format!("{}\n", "line\n".repeat(round))).expect("write");
        run(git(&path).args(["add", "-A"]));
        run(git(&path).args(["commit", "-q", "-m", &format!("round {round}")]));
        if round == 2 {
            run(git(&path).args(["checkout", "-q", "-b", "topic"]));
            fs::rename(path.join("dir0"), path.join("renamed")).expect("rename");
            run(git(&path).args(["add", "-A"]));
            run(git(&path).args(["commit", "-q", "-m", "topic"]));
            run(git(&path).args(["checkout", "-q", "main"]));
        }
    }
    run(git(&path).args(["merge", "-q", "--no-ff", "-m", "merged", "topic"]));
    let store = Store::in_memory();
    let imported = import(&store, &path, &all());
    let out = home.path().join("out.git");
    let exported =
        export_git(&store, imported.head, &out, &export_options("main"), &Progress::default()).expect("export");
    assert_eq!(exported.commit, rev(&path, "main"));
    run(git(&out).args(["fsck", "--strict"]));
    // The work tree's files and index were not touched.
    assert_eq!(text(run(git(&path).args(["status", "--porcelain"]))), "");
}

fn commit(store: &Store, tree: &mut WorkingTree, message: &str, seconds: i64) -> SnapshotId {
    let name = amalgam_engine::RefName::new("head/main").expect("a name");
    let commit = amalgam_engine::Commit::new(&name, message).by("ann", Time::from_seconds(seconds, 5));
    tree.commit(commit.buffered()).map(|done| done.snapshot).unwrap_or_else(|error| panic!("{error} {store:p}"))
}

#[test]
fn snapshots_become_commits_and_only_new_ones_are_written() {
    let home = tempfile::tempdir().expect("a directory");
    let store = Store::in_memory();
    let mut tree = WorkingTree::new(&store);
    tree.write("a", b"1").expect("write");
    tree.create_directories("d/e").expect("mkdir");
    tree.write("d/e/f", b"x").expect("write");
    tree.create_directories("empty/inside").expect("mkdir");
    tree.create_directories(".git/hooks").expect("mkdir");
    tree.write(".git/hooks/post-checkout", b"evil").expect("write");
    tree.create_directories("deep").expect("mkdir");
    tree.write("deep/.GIT", b"evil").expect("write");
    tree.set_xattr("a", b"user.x", b"y").expect("attribute");
    tree.link("a", "b").expect("link");
    tree.create_special("p", amalgam_engine::work::Special::Fifo, 0o600).expect("special");
    let first = commit(&store, &mut tree, "first", 1_000);
    tree.remove_all("d").expect("remove");
    tree.write("d", b"a file now").expect("write");
    tree.set_mode("a", 0o700).expect("mode");
    let second = commit(&store, &mut tree, "second\n\nwith a body", 2_000);
    let out = home.path().join("out.git");
    let options = export_options("work");
    let one = export_git(&store, first, &out, &options, &Progress::default()).expect("export");
    assert_eq!((one.report.snapshots, one.reused), (1, 0));
    for (what, count) in
        [("`.git`", 2), ("empty directories", 1), ("extended attributes", 2), ("hard links", 2), ("FIFOs", 1)]
    {
        let notice = one.report.notices.iter().find(|notice| notice.what.contains(what));
        assert_eq!(notice.map(|notice| notice.count), Some(count), "{what}: {:?}", one.report.notices);
    }
    let two = export_git(&store, second, &out, &options, &Progress::default()).expect("export");
    assert_eq!((two.report.snapshots, two.reused), (1, 1));
    assert_eq!(text(run(git(&out).args(["ls-tree", "-r", "--name-only", "work"]))), "a\nb\nd");
    assert_eq!(
        text(run(git(&out).args(["show", "-s", "--format=%an %ae %at %s|%b", "work"]))),
        "ann ann@localhost 2000 second|with a body"
    );
    assert_eq!(rev(&out, "work~1"), one.commit);
    run(git(&out).args(["fsck", "--strict"]));
    // Another repository gets the same commits; nothing is written where everything is there.
    let other = home.path().join("other.git");
    let again = export_git(&store, second, &other, &options, &Progress::default()).expect("export");
    assert_eq!(again.commit, two.commit);
    let third = export_git(&store, second, &other, &options, &Progress::default()).expect("export");
    assert_eq!((third.commit.as_str(), third.report.snapshots), (two.commit.as_str(), 0));
    // Without the list of what was exported it costs time, and comes to the same.
    fs::remove_file(other.join("amalgam/exported")).expect("remove");
    let fourth = export_git(&store, second, &other, &options, &Progress::default()).expect("export");
    assert_eq!((fourth.commit.as_str(), fourth.report.snapshots), (two.commit.as_str(), 2));
}

#[test]
fn authors_are_mapped() {
    let home = tempfile::tempdir().expect("a directory");
    let store = Store::in_memory();
    let mut tree = WorkingTree::new(&store);
    tree.write("a", b"1").expect("write");
    let first = commit(&store, &mut tree, "first", -5);
    let mut options = export_options("work");
    options.identity.map.insert("ann".to_owned(), "Ann B <ann@example.org>".to_owned());
    let out = home.path().join("out.git");
    let exported = export_git(&store, first, &out, &options, &Progress::default()).expect("export");
    assert_eq!(text(run(git(&out).args(["show", "-s", "--format=%an %ae %at", "work"]))), "Ann B ann@example.org 0");
    assert_eq!(exported.report.notices.len(), 1);
}

#[test]
fn a_branch_that_is_checked_out_or_has_other_commits_is_not_moved() {
    let home = tempfile::tempdir().expect("a directory");
    let path = home.path().join("work");
    run(git(home.path()).args(["init", "-q", "-b", "main"]).arg(&path));
    fs::write(path.join("f"), "x").expect("write");
    run(git(&path).args(["add", "-A"]));
    run(git(&path).args(["commit", "-q", "-m", "mine"]));
    run(git(&path).args(["branch", "other"]));
    let before = (rev(&path, "main"), rev(&path, "other"));
    let store = Store::in_memory();
    let mut tree = WorkingTree::new(&store);
    tree.write("a", b"1").expect("write");
    let first = commit(&store, &mut tree, "first", 1);
    let error =
        export_git(&store, first, &path, &export_options("main"), &Progress::default()).expect_err("checked out");
    assert!(error.to_string().contains("checked out"), "{error}");
    let error = export_git(&store, first, &path, &export_options("other"), &Progress::default()).expect_err("diverged");
    assert!(error.to_string().contains("other"), "{error}");
    assert_eq!(before, (rev(&path, "main"), rev(&path, "other")));
    for branch in ["a..b", "-x ", ""] {
        let error =
            export_git(&store, first, &path, &export_options(branch), &Progress::default()).expect_err("a name");
        assert!(matches!(error, Error::Invalid { what: "branch", .. }), "{branch}: {error}");
    }
    let dry = GitExport { dry_run: true, ..export_options("new") };
    let exported = export_git(&store, first, &path, &dry, &Progress::default()).expect("dry run");
    assert_eq!(exported.report.snapshots, 1);
    assert!(!text(run(git(&path).args(["branch", "--list"]))).contains("new"));
}

/// A bare repository with one commit of a tree of any bytes.
fn repository_of(home: &Path, name: &str, tree: &[u8]) -> PathBuf {
    use std::io::Write;
    let path = new_repository(home, name);
    let object = |kind: &str, bytes: &[u8]| {
        let mut command = git(&path);
        command.args(["hash-object", "-w", "--literally", "--stdin", "-t", kind]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("git runs");
        child.stdin.take().expect("a pipe").write_all(bytes).expect("written");
        let done = child.wait_with_output().expect("ended");
        assert!(done.status.success());
        text(done.stdout)
    };
    let tree = object("tree", tree);
    let commit =
        object("commit", format!("tree {tree}\nauthor A <a> 1 +0000\ncommitter A <a> 1 +0000\n\nm\n").as_bytes());
    run(git(&path).args(["update-ref", "refs/heads/main", &commit]));
    path
}

#[test]
fn trees_that_no_checkout_may_make_are_refused() {
    let home = tempfile::tempdir().expect("a directory");
    let blob = [
        0xe6, 0x9d, 0xe2, 0x9b, 0xb2, 0xd1, 0xd6, 0x43, 0x4b, 0x8b, 0x29, 0xae, 0x77, 0x5a, 0xd8, 0xc2, 0xe4, 0x8c,
        0x53, 0x91,
    ];
    let entry = |mode: &str, name: &[u8]| [mode.as_bytes(), b" ", name, b"\0", &blob[..]].concat();
    for (name, tree, says) in [
        ("git", entry("100644", b".git"), ".git"),
        ("dots", entry("100644", b".."), "`..`"),
        ("slash", entry("100644", b"a/b"), "slash"),
        ("empty", entry("100644", b""), "empty"),
        ("twice", [entry("100644", b"a"), entry("100755", b"a")].concat(), "two entries"),
        ("long", entry("100644", &[b'x'; 300]), "300 bytes"),
        ("mode", entry("666", b"a"), "mode"),
        ("cut", b"100644 a\0short".to_vec(), "not `mode name id`"),
        ("kind", entry("40000", b"a"), "is expected"),
    ] {
        let path = repository_of(home.path(), name, &tree);
        // The entries name the empty blob.
        run(git(&path).args(["hash-object", "-w", "-t", "blob", "/dev/null"]));
        let store = Store::in_memory();
        let error = import_git(&store, &path, &all(), &Progress::default()).err();
        let error = error.unwrap_or_else(|| panic!("{name} was imported")).to_string();
        assert!(error.contains(says), "{name}: {error}");
    }
}

#[test]
fn a_tree_at_very_many_paths_is_stored_once() {
    use std::io::Write;
    // Ten levels of ten names for the same tree: ten thousand million files.
    let home = tempfile::tempdir().expect("a directory");
    let path = new_repository(home.path(), "bomb.git");
    let mktree = |lines: &str| {
        let mut command = git(&path);
        let mut child = command.arg("mktree").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("git runs");
        child.stdin.take().expect("a pipe").write_all(lines.as_bytes()).expect("written");
        text(child.wait_with_output().expect("ended").stdout)
    };
    let blob = text(run(git(&path).args(["hash-object", "-w", "-t", "blob", "/dev/null"])));
    let mut tree = mktree(&format!("100644 blob {blob}\tfile\n"));
    for _ in 0..10 {
        let lines: String = (0..10).map(|n| format!("040000 tree {tree}\td{n}\n")).collect();
        tree = mktree(&lines);
    }
    let commit = text(run(git(&path).args(["commit-tree", "-m", "bomb", &tree])));
    run(git(&path).args(["update-ref", "refs/heads/main", &commit]));
    let store = Store::in_memory();
    let imported = import(&store, &path, &all());
    assert_eq!((imported.report.files, imported.report.directories), (1, 11));
}

#[test]
fn damaged_objects_are_refused() {
    let home = tempfile::tempdir().expect("a directory");
    let path = odd_repository(home.path());
    run(git(&path).args(["repack", "-adfq"]));
    let packs = fs::read_dir(path.join("objects/pack")).expect("list");
    let pack =
        packs.map(|item| item.expect("an entry").path()).find(|path| path.extension().is_some_and(|it| it == "pack"));
    let pack = pack.expect("a pack");
    let whole = fs::read(&pack).expect("read");
    let mut refused = 0;
    fs::set_permissions(&pack, std::os::unix::fs::PermissionsExt::from_mode(0o644)).expect("chmod");
    let places: Vec<_> = (20..whole.len() - 20).step_by(whole.len() / 60).collect();
    for place in &places {
        let mut damaged = whole.clone();
        damaged[*place] ^= 0x55;
        fs::write(&pack, &damaged).expect("write");
        refused += u32::from(import_git(&Store::in_memory(), &path, &all(), &Progress::default()).is_err());
    }
    assert!(refused as usize >= places.len() - 2, "{refused} of {}", places.len());
    fs::write(&pack, &whole).expect("write");
    import(&Store::in_memory(), &path, &all());
}

#[test]
fn an_object_in_the_place_of_another_is_refused() {
    let home = tempfile::tempdir().expect("a directory");
    let path = new_repository(home.path(), "swapped.git");
    let loose = |name: &str| path.join(format!("objects/{}/{}", &name[..2], &name[2..]));
    let stream = b"commit refs/heads/main\ncommitter A <a@x> 1 +0000\ndata 1\nx\nM 100644 inline a\ndata 1\n1\nM 100644 inline b\ndata 1\n2\n\n";
    feed(&path, stream);
    // Few objects are unpacked by fast-import.
    let (one, other) = (rev(&path, "main:a"), rev(&path, "main:b"));
    import(&Store::in_memory(), &path, &all());
    fs::remove_file(loose(&one)).expect("a loose object");
    fs::copy(loose(&other), loose(&one)).expect("copied");
    let error = import_git(&Store::in_memory(), &path, &all(), &Progress::default()).err().expect("damaged");
    assert!(error.to_string().contains("hash"), "{error}");
}

#[test]
fn objects_above_the_limit_are_refused() {
    let home = tempfile::tempdir().expect("a directory");
    let path = odd_repository(home.path());
    let options = GitImport { object_bytes_max: 100_000, ..all() };
    let error = import_git(&Store::in_memory(), &path, &options, &Progress::default()).err().expect("too large");
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
}

/// Skipped where the sources are no repository with its whole history: an archive of them, or a shallow clone.
#[test]
fn this_repository_comes_back() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let shallow = Command::new("git").arg("-C").arg(here).args(["rev-parse", "--is-shallow-repository"]).output();
    if !here.join(".git").exists() || shallow.is_ok_and(|done| text(done.stdout) != "false") {
        return amalgam_test_support::skip("history", "the sources are no repository with its whole history");
    }
    let home = tempfile::tempdir().expect("a directory");
    let store = Store::in_memory();
    let imported = import(&store, here, &all());
    let out = home.path().join("out.git");
    let exported =
        export_git(&store, imported.head, &out, &export_options("main"), &Progress::default()).expect("export");
    assert_eq!(exported.commit, rev(here, "HEAD"), "{:?}", exported.report);
    run(git(&out).args(["fsck", "--strict", "--no-dangling"]));
    let tree = |path: &Path| run(git(path).args(["ls-tree", "-r", "-z", &exported.commit]));
    assert_eq!(tree(&out), tree(here));
}

/// A snapshot of a tree whose metadata says that it was imported from a commit, as any client can write it.
fn claiming(store: &Store, tree: &WorkingTree, commit: &str) -> SnapshotId {
    let session = store.session();
    let root = tree.freeze().write(&session).expect("written");
    let metadata = [("git.commit", commit), ("git.author", "A <a@x> 1 +0000"), ("git.committer", "A <a@x> 1 +0000")];
    let snapshot = Snapshot {
        root,
        parents: Vec::new(),
        author: "ann".to_owned(),
        time: Time::from_seconds(1, 0),
        message: "forged".to_owned(),
        metadata: metadata.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        generation: 0,
    };
    let id = session.put_snapshot(snapshot).expect("put");
    session.write_all_ahead().expect("stored");
    // The session ends here; a store in memory collects nothing by itself.
    id
}

#[test]
fn a_snapshot_that_claims_a_commit_with_another_tree_becomes_a_new_commit() {
    let home = tempfile::tempdir().expect("a directory");
    let (store, path) = (Store::in_memory(), odd_repository(home.path()));
    let imported = import(&store, &path, &all());
    let head = imported.head;
    let victim = rev(&path, "main");
    let options = export_options("work");
    // The true claim is taken, also where the list of exported snapshots does not have it, and with a tree of every
    // oddity.
    let honest = export_git(&store, head, &path, &options, &Progress::default()).expect("exported");
    assert_eq!((honest.commit.as_str(), honest.report.snapshots, honest.reused), (victim.as_str(), 0, 1));
    let change = |edit: &dyn Fn(&mut WorkingTree)| {
        let mut tree = WorkingTree::open(&store, head).expect("opened");
        edit(&mut tree);
        tree
    };
    let forgeries = [
        change(&|tree| tree.write("crlf", b"other bytes").expect("written")),
        change(&|tree| tree.write("crlf", b"A\r\n\n").expect("written")),
        change(&|tree| tree.write("more", b"").expect("written")),
        change(&|tree| tree.remove("crlf").expect("removed")),
        change(&|tree| tree.write("d/again/x", b"y").expect("written")),
        change(&|tree| tree.set_mode("large", 0o755).expect("set")),
        change(&|tree| tree.truncate("large", 1 << 60).expect("a hole")),
        WorkingTree::new(&store),
    ];
    for (number, tree) in forgeries.iter().enumerate() {
        let forged = claiming(&store, tree, &victim);
        // One with an enormous file is only counted: git would write the zeros.
        let dry_run = number == 6;
        let options = GitExport { branch: format!("forged{number}"), dry_run, ..export_options("") };
        let done = export_git(&store, forged, &path, &options, &Progress::default()).expect("exported");
        assert_eq!((done.report.snapshots, done.reused), (1, 0), "forgery {number}");
        assert!(done.report.notices.iter().any(|notice| notice.what.contains("another tree")), "{number}");
        if !dry_run {
            assert_ne!(done.commit, victim, "forgery {number}");
            let parents = text(run(git(&path).args(["rev-list", "--parents", &options.branch])));
            assert_eq!(parents, done.commit, "it has no parents");
        }
    }
    // An equal tree with another mtime, empty directories and attributes is the commit's tree for git.
    let equal = change(&|tree| {
        tree.create_directories("nothing/inside").expect("made");
        tree.set_xattr("crlf", b"user.x", b"y").expect("set");
    });
    let same = claiming(&store, &equal, &victim);
    let options = export_options("same");
    let done = export_git(&store, same, &path, &options, &Progress::default()).expect("exported");
    assert_eq!((done.commit.as_str(), done.reused), (victim.as_str(), 1));
    // A claim of an object that is no commit, or of none.
    for claim in [rev(&path, "main^{tree}"), "12".repeat(20)] {
        let forged = claiming(&store, &equal, &claim);
        let options = export_options(&format!("none{}", &claim[..4]));
        let done = export_git(&store, forged, &path, &options, &Progress::default()).expect("exported");
        assert_eq!((done.report.snapshots, done.reused), (1, 0), "{claim}");
    }
}

#[test]
fn a_repository_with_sha256_ids_is_refused_by_name() {
    let home = tempfile::tempdir().expect("a directory");
    let path = home.path().join("sha256.git");
    let made = git(home.path()).args(["init", "--quiet", "--bare", "--object-format=sha256"]).arg(&path).status();
    if !made.is_ok_and(|status| status.success()) {
        // A git without SHA-256 makes no such repository.
        return;
    }
    let store = Store::in_memory();
    let imported = import_git(&store, &path, &all(), &Progress::default()).map(drop);
    let mut tree = WorkingTree::new(&store);
    tree.write("a", b"1").expect("written");
    let head = commit(&store, &mut tree, "first", 1_000);
    let exported = export_git(&store, head, &path, &export_options("work"), &Progress::default()).map(drop);
    for refused in [imported, exported] {
        let message = refused.expect_err("refused").to_string();
        assert!(message.contains("SHA-256 ids") && message.contains("only repositories with SHA-1 ids"), "{message}");
        assert!(!message.contains("top of a work tree"), "{message}");
    }
}
