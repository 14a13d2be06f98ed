//! Parts of git repositories: submodules, ranges of history, imports that were interrupted.

#[path = "kit/listing.rs"]
mod listing;
#[path = "kit/repository.rs"]
mod repository;

use std::fs;
use std::path::{Path, PathBuf};

use amalgam_engine::{SnapshotId, Store, Time, WorkingTree};
use amalgam_exchange::{
    GITLINK_XATTR, GitExport, GitHistory, GitImport, Identity, Imported, Progress, export_git, import_git,
};
use listing::run;
use repository::{feed, git, new_repository, rev, text};

fn all() -> GitImport {
    GitImport { history: GitHistory::All, ..GitImport::default() }
}

fn import(store: &Store, path: &Path, options: &GitImport) -> Imported {
    import_git(store, path, options, &Progress::default()).expect("import")
}

fn export(store: &Store, head: SnapshotId, to: &Path, since: Option<SnapshotId>) -> amalgam_exchange::GitExportReport {
    let options = GitExport {
        branch: "main".to_owned(),
        history: GitHistory::All,
        since,
        identity: Identity::default(),
        create: true,
        is_mirror: false,
        dry_run: false,
    };
    export_git(store, head, to, &options, &Progress::default()).expect("export")
}

fn commit_all(path: &Path, message: &str) {
    run(git(path).args(["add", "-A"]));
    run(git(path).args(["commit", "-q", "-m", message]));
}

/// A work tree with a submodule that has a submodule itself. The outer one moves once.
fn nested(home: &Path) -> PathBuf {
    let make = |name: &str| {
        let path = home.join(name);
        run(git(home).args(["init", "-q", "-b", "main"]).arg(&path));
        fs::write(path.join("file"), name).expect("write");
        commit_all(&path, name);
        path
    };
    let (inner, outer, top) = (make("inner"), make("outer"), make("top"));
    let add = |into: &Path, from: &Path, at: &str| {
        let allow = ["-c", "protocol.file.allow=always"];
        run(git(into).args(allow).args(["submodule", "--quiet", "add"]).arg(from).arg(at));
        run(git(into).args(allow).args(["submodule", "--quiet", "update", "--init", "--recursive"]));
        commit_all(into, "add a submodule");
    };
    add(&outer, &inner, "deep");
    add(&top, &outer, "libs/outer");
    let module = top.join("libs/outer");
    fs::write(module.join("file"), "moved").expect("write");
    commit_all(&module, "moved");
    commit_all(&top, "move the submodule");
    top
}

#[test]
fn submodules_are_imported_with_their_files_when_asked() {
    let home = tempfile::tempdir().expect("a directory");
    let top = nested(home.path());
    let store = Store::in_memory();
    let with = GitImport { submodules: true, ..all() };
    let imported = import(&store, &top, &with);
    assert_eq!(imported.snapshots.len(), 3);
    let tree = |snapshot| WorkingTree::open(&store, snapshot).expect("open");
    assert_eq!(tree(imported.head).read("libs/outer/file").expect("read"), b"moved");
    assert_eq!(tree(imported.snapshots[1]).read("libs/outer/file").expect("read"), b"outer");
    assert_eq!(tree(imported.head).read("libs/outer/deep/file").expect("read"), b"inner");
    let link = tree(imported.head).xattr("libs/outer", GITLINK_XATTR.as_bytes()).expect("look").expect("a link");
    assert_eq!(text(&link), rev(&top.join("libs/outer"), "HEAD"));
    assert!(imported.report.notices.is_empty(), "{:?}", imported.report.notices);
    // Without submodules the same commits are other snapshots, and neither rests on the other.
    let without = import(&store, &top, &GitImport { known: vec![imported.head], ..all() });
    assert_eq!(without.snapshots.len(), 3);
    assert!(tree(without.head).list("libs/outer").expect("list").next().is_none());
    assert_eq!(import(&store, &top, &GitImport { known: vec![without.head], ..with.clone() }).head, imported.head);
    assert!(import(&store, &top, &GitImport { known: vec![imported.head], ..with }).snapshots.is_empty());
    // Files of a submodule are exported as files, also where the repository has the commit with the link.
    let out = home.path().join("out.git");
    run(git(home.path()).args(["clone", "-q", "--bare"]).arg(&top).arg(&out));
    run(git(&out).args(["update-ref", "-d", "refs/heads/main"]));
    let exported = export(&store, imported.head, &out, None);
    assert_eq!(text(run(git(&out).args(["show", "main:libs/outer/deep/file"]))), "inner");
    assert_ne!(exported.commit, rev(&top, "HEAD"));
    run(git(&out).args(["fsck", "--strict", "--no-dangling"]));
}

#[test]
fn a_submodule_that_git_has_not_fetched_stays_a_link() {
    let home = tempfile::tempdir().expect("a directory");
    let top = nested(home.path());
    let clone = home.path().join("clone");
    run(git(home.path()).args(["clone", "-q"]).arg(&top).arg(&clone));
    let store = Store::in_memory();
    let imported = import(&store, &clone, &GitImport { submodules: true, ..all() });
    let tree = WorkingTree::open(&store, imported.head).expect("open");
    assert!(tree.list("libs/outer").expect("list").next().is_none());
    assert!(imported.report.notices.iter().any(|notice| notice.what.contains("submodules")));
}

#[test]
fn replaced_objects_are_imported_as_they_were() {
    let home = tempfile::tempdir().expect("a directory");
    let path = home.path().join("work");
    run(git(home.path()).args(["init", "-q", "-b", "main"]).arg(&path));
    for round in ["one", "two"] {
        fs::write(path.join("file"), round).expect("write");
        commit_all(&path, round);
    }
    let before = import(&Store::in_memory(), &path, &all()).head;
    run(git(&path).args(["replace", "--graft", "HEAD"]));
    assert_eq!(import(&Store::in_memory(), &path, &all()).head, before);
}

#[test]
fn a_range_is_exported_onto_what_the_repository_has() {
    let home = tempfile::tempdir().expect("a directory");
    let store = Store::in_memory();
    let mut tree = WorkingTree::new(&store);
    let mut snapshots = Vec::new();
    for round in 0..4_i64 {
        tree.write(format!("f{round}"), round.to_string().as_bytes()).expect("write");
        let name = amalgam_engine::RefName::new("head/main").expect("a name");
        let commit = amalgam_engine::Commit::new(&name, "made").by("ann", Time::from_seconds(round, 0));
        snapshots.push(tree.commit(commit.buffered()).expect("commit").snapshot);
    }
    // Nothing is there: the range begins a history.
    let apart = home.path().join("apart.git");
    let exported = export(&store, snapshots[3], &apart, Some(snapshots[1]));
    assert_eq!(text(run(git(&apart).args(["rev-list", "--count", "main"]))), "2");
    assert_eq!(text(run(git(&apart).args(["ls-tree", "--name-only", "main"]))), "f0\nf1\nf2\nf3");
    assert!(exported.report.notices.iter().any(|notice| notice.what.contains("before the range")));
    // The start is there: the range continues it.
    let joined = home.path().join("joined.git");
    export(&store, snapshots[1], &joined, None);
    let exported = export(&store, snapshots[3], &joined, Some(snapshots[1]));
    assert_eq!(text(run(git(&joined).args(["rev-list", "--count", "main"]))), "4");
    assert!(exported.report.notices.is_empty(), "{:?}", exported.report.notices);
    let options = GitExport {
        branch: "main".to_owned(),
        history: GitHistory::All,
        since: Some(snapshots[3]),
        identity: Identity::default(),
        create: true,
        is_mirror: false,
        dry_run: true,
    };
    let error = export_git(&store, snapshots[1], &joined, &options, &Progress::default()).expect_err("an empty range");
    assert!(error.to_string().contains("it has no snapshots"), "{error}");
}

#[test]
fn an_import_that_was_interrupted_is_repeated_with_what_is_stored() {
    let home = tempfile::tempdir().expect("a directory");
    let path = new_repository(home.path(), "long.git");
    let commit = |number: u32, from: &str| {
        let head = format!("commit refs/heads/main\ncommitter C <c@x> {} +0000\ndata 1\nx\n", 1_000 + number);
        let content = format!("content {number}");
        format!("{head}{from}M 100644 inline f{}\ndata {}\n{content}\n\n", number % 7, content.len())
    };
    feed(&path, (0..300).map(|number| commit(number, "")).collect::<String>().as_bytes());
    feed(&path, commit(300, "from refs/heads/main^0\n").as_bytes());
    let whole = import(&Store::in_memory(), &path, &all());
    assert_eq!(whole.snapshots.len(), 301);
    // The last blob vanishes: the import stops in its second batch of commits.
    let blob = rev(&path, "main:f6");
    let loose = path.join("objects").join(&blob[..2]).join(&blob[2..]);
    let kept = fs::read(&loose).expect("a loose object");
    fs::remove_file(&loose).expect("remove");
    let store = Store::in_memory();
    import_git(&store, &path, &all(), &Progress::default()).err().expect("a blob is missing");
    assert!(store.list_refs("", None, 10).expect("list").is_empty(), "nothing is visible");
    assert!(store.snapshot(whole.snapshots[200]).is_ok(), "the first batch is stored");
    fs::write(&loose, kept).expect("write");
    assert_eq!(import(&store, &path, &all()).head, whole.head);
    // A caller that knows how far an import came goes on from there.
    let rest = import(&store, &path, &GitImport { known: vec![whole.snapshots[200]], ..all() });
    assert_eq!((rest.snapshots.len(), rest.head), (100, whole.head));
}
