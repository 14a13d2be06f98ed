//! Workspaces served as git repositories, with git as the client.

#[path = "kit/listing.rs"]
mod listing;

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use amalgam_engine::{RefName, SnapshotId, Store, Time, WorkingTree};
use amalgam_exchange::{Error, GitCache, GitRequest, GitRoute, GitServeLimits, Progress, ServedRepository, git_route};
use amalgam_test_support::http::{HttpServer, Request, Response};
use listing::run;
use parking_lot::Mutex;

/// A store with one workspace, and the repositories that are made of it.
struct Served {
    store: Store,
    tree: Mutex<WorkingTree>,
    head: Mutex<Option<SnapshotId>>,
    cache: GitCache,
}

impl Served {
    fn new(home: &Path, limits: GitServeLimits) -> Arc<Self> {
        let store = Store::in_memory();
        let tree = Mutex::new(WorkingTree::new(&store));
        let cache = GitCache::open(&home.join("cache"), limits).expect("a cache");
        Arc::new(Self { store, tree, head: Mutex::new(None), cache })
    }

    fn commit(&self, path: &str, text: &str, seconds: i64) -> SnapshotId {
        let mut tree = self.tree.lock();
        tree.write(path, text.as_bytes()).expect("write");
        let name = RefName::new("head/main").expect("a name");
        let commit = amalgam_engine::Commit::new(&name, path).by("ann", Time::from_seconds(seconds, 0));
        let snapshot = tree.commit(commit.buffered()).expect("commit").snapshot;
        *self.head.lock() = Some(snapshot);
        snapshot
    }

    fn refresh(&self, key: &str) -> Result<ServedRepository, Error> {
        let head = self.head.lock().expect("something was committed");
        self.cache.refresh(&self.store, key, head, &Progress::default())
    }

    /// Answers as a gateway does.
    fn answer(&self, request: Request) -> Response {
        let Some(tail) = request.path.strip_prefix("/project/main.git/") else {
            return Response::text(404, "there is no such repository");
        };
        let protocol = request.headers.get("git-protocol").cloned();
        let asked = match git_route(&request.method, tail, &request.query) {
            GitRoute::Advertise => GitRequest::Advertise { protocol },
            GitRoute::UploadPack => {
                let is_gzip = request.headers.get("content-encoding").is_some_and(|value| value == "gzip");
                GitRequest::UploadPack { protocol, body: request.body, is_gzip }
            }
            GitRoute::Refused(why) => return Response::text(403, why),
            GitRoute::Unknown => return Response::text(404, "unknown"),
        };
        match self.refresh("main").and_then(|repository| repository.respond(asked)) {
            Ok(response) => {
                let headers = vec![("Content-Type".to_owned(), response.content_type().to_owned())];
                Response { status: 200, headers, body: Box::new(response) }
            }
            Err(error) => Response::text(500, &error.to_string()),
        }
    }
}

fn serve(served: &Arc<Served>) -> HttpServer {
    let served = Arc::clone(served);
    HttpServer::start(move |request| served.answer(request)).expect("a server")
}

fn git(directory: &Path) -> Command {
    let mut command = Command::new("git");
    command.arg("-C").arg(directory).env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    command.env("GIT_TERMINAL_PROMPT", "0");
    command
}

fn text(bytes: impl AsRef<[u8]>) -> String {
    String::from_utf8_lossy(bytes.as_ref()).trim().to_owned()
}

#[test]
fn a_workspace_is_cloned_and_fetched_over_every_protocol_version() {
    let home = tempfile::tempdir().expect("a directory");
    let served = Served::new(home.path(), GitServeLimits::default());
    served.commit("a", "1\n", 1_000);
    served.commit("b", "2\n", 2_000);
    let server = serve(&served);
    let url = server.url("project/main.git");
    for version in ["0", "1", "2"] {
        let clone = home.path().join(format!("clone{version}"));
        let version = format!("protocol.version={version}");
        run(git(home.path()).args(["-c", &version, "clone", "-q", &url]).arg(&clone));
        assert_eq!(fs::read_to_string(clone.join("b")).expect("read"), "2\n");
        run(git(&clone).args(["fsck", "--strict"]));
    }
    let clone = home.path().join("clone2");
    assert_eq!(text(run(git(&clone).args(["rev-list", "--count", "HEAD"]))), "2");
    assert_eq!(text(run(git(&clone).args(["rev-parse", "--abbrev-ref", "HEAD"]))), "main");
    served.commit("c", "3\n", 3_000);
    run(git(&clone).args(["fetch", "-q"]));
    assert_eq!(text(run(git(&clone).args(["log", "--format=%an %s", "HEAD..origin/main"]))), "ann c");
    run(git(&clone).args(["fetch", "-q"]));
    let shallow = home.path().join("shallow");
    run(git(home.path()).args(["clone", "-q", "--depth=1", &url]).arg(&shallow));
    assert_eq!(text(run(git(&shallow).args(["rev-list", "--count", "HEAD"]))), "1");
    let partial = home.path().join("partial");
    run(git(home.path()).args(["clone", "-q", "--filter=blob:none", &url]).arg(&partial));
    assert_eq!(fs::read_to_string(partial.join("c")).expect("read"), "3\n");
}

#[test]
fn a_head_that_moved_back_is_followed() {
    let home = tempfile::tempdir().expect("a directory");
    let served = Served::new(home.path(), GitServeLimits::default());
    let first = served.commit("a", "1\n", 1_000);
    served.commit("b", "2\n", 2_000);
    let server = serve(&served);
    let clone = home.path().join("clone");
    run(git(home.path()).args(["clone", "-q", &server.url("project/main.git")]).arg(&clone));
    let before = text(run(git(&clone).args(["rev-parse", "HEAD~1"])));
    *served.head.lock() = Some(first);
    run(git(&clone).args(["fetch", "-q"]));
    assert_eq!(text(run(git(&clone).args(["rev-parse", "origin/main"]))), before);
}

#[test]
fn a_push_and_an_unknown_repository_are_refused() {
    let home = tempfile::tempdir().expect("a directory");
    let served = Served::new(home.path(), GitServeLimits::default());
    served.commit("a", "1\n", 1_000);
    let server = serve(&served);
    let clone = home.path().join("clone");
    run(git(home.path()).args(["clone", "-q", &server.url("project/main.git")]).arg(&clone));
    let refused = |command: &mut Command| {
        let done = command.output().expect("git runs");
        assert!(!done.status.success());
        text(done.stderr)
    };
    let words = refused(git(&clone).args(["push", "-q", "origin", "HEAD:new"]));
    assert!(words.contains("403"), "{words}");
    let words = refused(git(home.path()).args(["clone", "-q", &server.url("project/other.git")]));
    assert!(words.contains("not found"), "{words}");
}

/// A request whose body ends when the writer is dropped.
fn pending() -> (GitRequest, io::PipeWriter) {
    let (reader, writer) = io::pipe().expect("a pipe");
    let protocol = Some("version=2".to_owned());
    (GitRequest::UploadPack { protocol, body: Box::new(reader), is_gzip: false }, writer)
}

#[test]
fn a_dropped_answer_ends_its_process_and_gives_its_place_back() {
    let home = tempfile::tempdir().expect("a directory");
    let limits = GitServeLimits { processes_max: 1, wait_max: Duration::ZERO, ..GitServeLimits::default() };
    let served = Served::new(home.path(), limits);
    served.commit("a", "1\n", 1_000);
    let repository = served.refresh("main").expect("a repository");
    let (request, _writer) = pending();
    let response = repository.respond(request).expect("an answer");
    let error = repository.respond(GitRequest::Advertise { protocol: None }).err().expect("no place");
    assert!(matches!(error, Error::Busy { .. }), "{error}");
    drop(response);
    let mut advertised = Vec::new();
    let mut response = repository.respond(GitRequest::Advertise { protocol: None }).expect("an answer");
    response.read_to_end(&mut advertised).expect("read");
    assert!(text(&advertised).starts_with("001e# service=git-upload-pack"));
    assert!(text(&advertised).contains("refs/heads/main"));
}

#[test]
fn a_process_that_runs_too_long_or_gets_too_much_is_ended() {
    let home = tempfile::tempdir().expect("a directory");
    let limits =
        GitServeLimits { run_max: Duration::from_millis(50), request_bytes_max: 100, ..GitServeLimits::default() };
    let served = Served::new(home.path(), limits);
    served.commit("a", "1\n", 1_000);
    let repository = served.refresh("main").expect("a repository");
    let (request, writer) = pending();
    let mut response = repository.respond(request).expect("an answer");
    let error = response.read_to_end(&mut Vec::new()).expect_err("it ran too long");
    assert!(error.to_string().contains("signal"), "{error}");
    drop(writer);
    let limits = GitServeLimits { request_bytes_max: 100, ..GitServeLimits::default() };
    let cache = GitCache::open(&home.path().join("cache"), limits).expect("a cache");
    let head = served.head.lock().expect("a head");
    let repository = cache.refresh(&served.store, "main", head, &Progress::default()).expect("a repository");
    let body = Box::new(io::repeat(b'0').take(1 << 20));
    let request = GitRequest::UploadPack { protocol: None, body, is_gzip: false };
    let ended = repository.respond(request).expect("an answer").read_to_end(&mut Vec::new());
    assert!(ended.is_err(), "a request that is too long fails");
}

fn repositories(home: &Path) -> usize {
    let names = fs::read_dir(home.join("cache")).expect("list");
    names.filter(|item| item.as_ref().expect("an entry").path().extension().is_some_and(|it| it == "git")).count()
}

#[test]
fn repositories_of_ended_workspaces_are_removed_unless_they_are_read() {
    let home = tempfile::tempdir().expect("a directory");
    let served = Served::new(home.path(), GitServeLimits::default());
    served.commit("a", "1\n", 1_000);
    let kept = served.refresh("one").expect("a repository");
    drop(served.refresh("two").expect("a repository"));
    assert_eq!(repositories(home.path()), 2);
    served.cache.retain(|key| key == "two").expect("retain");
    assert_eq!(repositories(home.path()), 2, "the first is being read");
    drop(kept);
    served.cache.retain(|key| key == "two").expect("retain");
    assert_eq!(repositories(home.path()), 1);
    assert_eq!(served.cache.clear().expect("clear"), 0);
    let left = fs::read_dir(home.path().join("cache")).expect("list").count();
    assert_eq!(left, 0, "no locks are left");
    served.refresh("one").expect("it is exported anew");
}

#[test]
fn the_least_recently_used_repositories_make_room() {
    let home = tempfile::tempdir().expect("a directory");
    let served = Served::new(home.path(), GitServeLimits { cache_bytes_max: 1, ..GitServeLimits::default() });
    served.commit("a", "1\n", 1_000);
    for key in ["one", "two", "three"] {
        drop(served.refresh(key).expect("a repository"));
        assert_eq!(repositories(home.path()), 1, "the newest stays, above the limit or not");
    }
}

#[test]
fn many_exports_keep_few_packs_and_a_cut_off_one_is_repeated() {
    let home = tempfile::tempdir().expect("a directory");
    let served = Served::new(home.path(), GitServeLimits::default());
    let mut path = None;
    for round in 0..20 {
        served.commit("a", &format!("{round}\n"), 1_000 + round);
        path = Some(served.refresh("main").expect("a repository").path().to_owned());
    }
    let path = path.expect("a path");
    let packs = fs::read_dir(path.join("objects/pack")).expect("list");
    let packs = packs.filter(|item| item.as_ref().expect("an entry").path().extension().is_some_and(|it| it == "pack"));
    assert!(packs.count() <= 16);
    run(git(&path).args(["fsck", "--strict"]));
    // As after a crash in the first export: the directory is there, and does not say what it holds.
    fs::remove_file(path.join("amalgam/head")).expect("remove");
    fs::remove_file(path.join("HEAD")).expect("remove");
    served.refresh("main").expect("it is exported anew");
    run(git(&path).args(["fsck", "--strict"]));
}
