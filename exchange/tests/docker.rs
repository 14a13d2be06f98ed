//! Images of a Docker engine, which a thread with a Unix socket stands for. `make integration` uses a real one.

#[path = "kit/snapshots.rs"]
mod snapshots;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use amalgam_engine::Store;
use amalgam_exchange::{
    DockerImage, Error, Imported, OciExport, OciImport, OciTarget, Progress, export_oci, import_docker,
};
use snapshots::two_snapshots;

/// An engine that answers one request, and returns its first line.
struct Engine {
    socket: PathBuf,
    answering: JoinHandle<String>,
}

impl Engine {
    fn start(home: &Path, answer: Vec<u8>) -> Self {
        let socket = home.join("socket");
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).expect("bind");
        let answering = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut lines = BufReader::new(stream.try_clone().expect("clone")).lines();
            let first = lines.next().expect("a request").expect("read");
            lines.map(|line| line.expect("read")).take_while(|line| !line.is_empty()).for_each(drop);
            // A client that has had enough closes the connection.
            let _ = stream.write_all(&answer);
            first
        });
        Self { socket, answering }
    }

    fn import(self, store: &Store, image: &str) -> (String, Result<Imported, Error>) {
        let from = DockerImage { socket: self.socket, image: image.to_owned() };
        let imported = import_docker(store, &from, &OciImport::default(), &Progress::default());
        (self.answering.join().expect("it answered"), imported)
    }
}

fn chunked(body: &[u8]) -> Vec<u8> {
    let mut answer =
        b"HTTP/1.1 200 OK\r\nContent-Type: application/x-tar\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for chunk in body.chunks(30_000) {
        answer.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        answer.extend_from_slice(chunk);
        answer.extend_from_slice(b"\r\n");
    }
    answer.extend_from_slice(b"0\r\n\r\n");
    answer
}

fn archive() -> (Store, Vec<u8>) {
    let store = Store::in_memory();
    let layers = two_snapshots(&store);
    let mut archive = Vec::new();
    let options = OciExport { name: Some("team/app:1".to_owned()), ..OciExport::default() };
    export_oci(&store, &layers, OciTarget::Archive(&mut archive), &options, &Progress::default()).expect("export");
    (store, archive)
}

#[test]
fn an_image_comes_from_an_engine() {
    let home = tempfile::tempdir().expect("a directory");
    let (made, archive) = archive();
    let store = Store::in_memory();
    let (request, imported) = Engine::start(home.path(), chunked(&archive)).import(&store, "team/app:1");
    assert_eq!(request, "GET /images/get?names=team%2Fapp%3A1 HTTP/1.1");
    assert_eq!(imported.expect("an image").snapshots.len(), 2);
    drop(made);
}

#[test]
fn refusals_of_an_engine_are_told() {
    let home = tempfile::tempdir().expect("a directory");
    let store = Store::in_memory();
    let answer =
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 36\r\n\r\n{\"message\":\"No such image: app:1\"}\r\n".to_vec();
    let error = Engine::start(home.path(), answer).import(&store, "app:1").1.err().expect("refused");
    assert!(error.to_string().contains("the engine has no `app:1`: No such image"), "{error}");
    let answer = b"HTTP/1.1 500 Oh\r\nContent-Length: 4\r\n\r\nfull".to_vec();
    let error = Engine::start(home.path(), answer).import(&store, "app:1").1.err().expect("refused");
    assert!(error.to_string().contains("status 500: full"), "{error}");
    // An archive that is cut off, by the connection or inside.
    let (_, archive) = archive();
    let whole = chunked(&archive);
    let cut = whole[..whole.len() / 2].to_vec();
    assert!(Engine::start(home.path(), cut).import(&store, "app:1").1.is_err());
    let cut = chunked(&archive[..archive.len() / 2]);
    assert!(Engine::start(home.path(), cut).import(&store, "app:1").1.is_err());
    assert!(store.list_refs("", None, 10).expect("list").is_empty());
}

#[test]
fn names_that_are_none_are_refused_before_anything_is_asked() {
    let from = |image: &str| DockerImage { socket: "/nowhere/socket".into(), image: image.to_owned() };
    let import =
        |image: &str| import_docker(&Store::in_memory(), &from(image), &OciImport::default(), &Progress::default());
    for image in ["", "a b", "x\r\nHost: y", "x&names=y", "x?"] {
        let error = import(image).err().expect("no name");
        assert!(error.to_string().contains("is no name of an image"), "{image:?}: {error}");
    }
    let error = import("app").err().expect("no engine");
    assert!(error.to_string().contains("none answers at /nowhere/socket"), "{error}");
}
