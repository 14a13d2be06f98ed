//! `git clone` of a served workspace, beside the same server in front of `git http-backend`.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use amalgam_benches::bench::Bench;
use amalgam_benches::{Bar, Result};
use amalgam_engine::{SnapshotId, Store};
use amalgam_exchange::{GitCache, GitImport, GitRequest, GitRoute, GitServeLimits, Progress, git_route, import_git};
use amalgam_test_support::http::{HttpServer, Request, Response};

use crate::kit::{Beside, git, land, linux_tree, remove, repository_of, seconds};

const CLONE: &str = "git clone of a served workspace, depth 1";
const FIRST: &str = "first git clone of a served workspace, with its export";

pub(crate) const FIGURES: &[&str] = &[CLONE, FIRST];

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    eprintln!("a served workspace");
    let input = linux_tree(bench)?;
    let repository = bench.directory("served.git");
    repository_of(&input.path, &repository)?;
    let store = Store::open(bench.directory("served-store"))?;
    let imported = import_git(&store, &repository, &GitImport::default(), &Progress::default())?;
    land(&store, &imported)?;
    let head = imported.head;
    drop(imported);
    let cache = GitCache::open(&bench.directory("served-cache"), GitServeLimits::default())?;
    let ours = Arc::new(Workspace { store, head, cache });
    let ours = HttpServer::start(move |request| answered(ours.answer(request)))?;
    let theirs = HttpServer::start(move |request| answered(http_backend(&repository, request)))?;
    let clone = bench.directory("served-clone");
    let seconds_of = |server: &HttpServer| -> Result<f64> {
        let took = seconds(git(&["clone", "--quiet", "--depth=1", &server.url("main.git")]).arg(&clone))?;
        remove(&clone)?;
        Ok(took)
    };
    let first = seconds_of(&ours)?;
    let how = format!("{}; exported into the cache and cloned with checkout, once", input.words);
    bench.add(FIRST, (first, "s"), Bar::None, how);
    let mut beside = Beside::default();
    for _ in 0..bench.size(3, 1) {
        beside.ours.push(seconds_of(&ours)?);
        beside.theirs.push(seconds_of(&theirs)?);
    }
    let input = format!("{}, exported before, with checkout", input.words);
    beside.add(bench, CLONE, 1.5, &input, "git http-backend over a packed bare repository behind the same HTTP server");
    Ok(())
}

fn answered(response: Result<Response>) -> Response {
    response.unwrap_or_else(|error| Response::text(500, &error.to_string()))
}

struct Workspace {
    store: Store,
    head: SnapshotId,
    cache: GitCache,
}

impl Workspace {
    fn answer(&self, request: Request) -> Result<Response> {
        let tail = request.path.strip_prefix("/main.git/").unwrap_or_default();
        let protocol = request.headers.get("git-protocol").cloned();
        let asked = match git_route(&request.method, tail, &request.query) {
            GitRoute::Advertise => GitRequest::Advertise { protocol },
            GitRoute::UploadPack => {
                let is_gzip = request.headers.get("content-encoding").is_some_and(|value| value == "gzip");
                GitRequest::UploadPack { protocol, body: request.body, is_gzip }
            }
            GitRoute::Refused(why) => return Ok(Response::text(403, why)),
            GitRoute::Unknown => return Ok(Response::text(404, "unknown")),
        };
        let repository = self.cache.refresh(&self.store, "main", self.head, &Progress::default())?;
        let response = repository.respond(asked)?;
        let headers = vec![("Content-Type".to_owned(), response.content_type().to_owned())];
        Ok(Response { status: 200, headers, body: Box::new(response) })
    }
}

/// Answers by the CGI program of git.
fn http_backend(repository: &Path, mut request: Request) -> Result<Response> {
    let tail = request.path.strip_prefix("/main.git").unwrap_or_default();
    let root: PathBuf = repository.to_owned();
    let mut command = git(&["http-backend"]);
    command.env("GIT_PROJECT_ROOT", root).env("PATH_INFO", tail).env("GIT_HTTP_EXPORT_ALL", "1");
    command.env("REQUEST_METHOD", &request.method).env("QUERY_STRING", &request.query);
    for (header, variable) in [
        ("content-type", "CONTENT_TYPE"),
        ("content-length", "CONTENT_LENGTH"),
        ("content-encoding", "HTTP_CONTENT_ENCODING"),
        ("git-protocol", "GIT_PROTOCOL"),
    ] {
        if let Some(value) = request.headers.get(header) {
            command.env(variable, value);
        }
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut input = child.stdin.take().ok_or("git has no standard input")?;
    std::io::copy(&mut request.body, &mut input)?;
    drop(input);
    let mut output = BufReader::new(child.stdout.take().ok_or("git has no standard output")?);
    let (mut status, mut headers) = (200, Vec::new());
    loop {
        let mut line = String::new();
        output.read_line(&mut line)?;
        match line.trim_end().split_once(':') {
            Some(("Status", value)) => status = value.trim().split(' ').next().unwrap_or_default().parse()?,
            Some((name, value)) => headers.push((name.to_owned(), value.trim().to_owned())),
            None => break,
        }
    }
    Ok(Response { status, headers, body: Box::new(CgiBody { output, child }) })
}

/// The body of a CGI program, which is waited for at its end.
struct CgiBody<R> {
    output: R,
    child: std::process::Child,
}

impl<R: Read> Read for CgiBody<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let bytes = self.output.read(buffer)?;
        if bytes == 0 {
            self.child.wait()?;
        }
        Ok(bytes)
    }
}
