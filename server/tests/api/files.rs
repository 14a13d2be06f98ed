//! Files by call: written, read, listed, searched and watched, without a directory.

use amalgam_proto::{Reason, v1};
use tonic::Status;
use v1::write_file_request::Part;

use super::{Caller, OnSocket, in_process, open, reason};

/// The header of a write that replaces a whole file.
pub(crate) fn header(workspace: &str, path: &str) -> v1::WriteFileHeader {
    v1::WriteFileHeader {
        workspace: format!("workspaces/{workspace}"),
        path: path.to_owned(),
        create_parents: true,
        ..Default::default()
    }
}

impl Caller {
    /// Sends the parts of a write, and the end.
    pub(crate) async fn send_parts(&mut self, mut parts: Vec<Part>) -> Result<v1::WriteFileResponse, Status> {
        if !matches!(parts.last(), Some(Part::End(_))) {
            parts.push(Part::End(v1::WriteFileEnd::default()));
        }
        let parts = parts.into_iter().map(|part| v1::WriteFileRequest { part: Some(part) });
        Ok(self.files.write_file(tokio_stream::iter(parts)).await?.into_inner())
    }

    /// Writes a file.
    pub(crate) async fn write(&mut self, workspace: &str, path: &str, data: &[u8]) -> Result<v1::FileStat, Status> {
        let mut parts = vec![Part::Header(header(workspace, path))];
        parts.extend(data.chunks(64 << 10).map(|data| Part::Data(data.to_vec().into())));
        Ok(self.send_parts(parts).await?.file.expect("a file"))
    }

    /// Reads a file, and checks the digest.
    pub(crate) async fn read_at(&mut self, workspace: &str, revision: &str, path: &str) -> Result<Vec<u8>, Status> {
        let request = v1::FileServiceReadFileRequest {
            workspace: format!("workspaces/{workspace}"),
            revision: revision.to_owned(),
            path: path.to_owned(),
            ..Default::default()
        };
        let mut answers = self.files.read_file(request).await?.into_inner();
        let (mut data, mut digest) = (Vec::new(), String::new());
        while let Some(answer) = answers.message().await? {
            data.extend_from_slice(&answer.data);
            if !answer.digest.is_empty() {
                (digest, _) = (answer.digest, assert_eq!(answer.sent_bytes, data.len() as u64));
            }
        }
        assert_eq!(digest, blake3::hash(&data).to_hex().to_string());
        Ok(data)
    }

    /// Reads a file of the live tree.
    pub(crate) async fn read(&mut self, workspace: &str, path: &str) -> Result<Vec<u8>, Status> {
        self.read_at(workspace, "", path).await
    }

    /// Lists everything below the root, with pages of this size.
    pub(crate) async fn list(&mut self, workspace: &str, page_size: i32) -> Vec<String> {
        let (mut found, mut page_token) = (Vec::new(), String::new());
        loop {
            let request = v1::ListFilesRequest {
                workspace: format!("workspaces/{workspace}"),
                recursive: true,
                page_size,
                page_token,
                ..Default::default()
            };
            let page = self.files.list_files(request).await.expect("listed").into_inner();
            found.extend(page.files.into_iter().map(|file| file.path));
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return found;
            }
        }
    }

    /// Commits the live tree.
    pub(crate) async fn commit_live(
        &mut self,
        workspace: &str,
        expected_head: &str,
    ) -> Result<v1::CommitWorkspaceResponse, Status> {
        let request = v1::CommitWorkspaceRequest {
            name: format!("workspaces/{workspace}"),
            message: "by call".to_owned(),
            expected_head: expected_head.to_owned(),
            with_changes: true,
            ..Default::default()
        };
        Ok(self.workspaces.commit_workspace(request).await?.into_inner())
    }

    pub(crate) async fn status(&mut self, workspace: &str) -> v1::GetStatusResponse {
        let request = v1::GetStatusRequest { name: format!("workspaces/{workspace}") };
        self.workspaces.get_status(request).await.expect("a status").into_inner()
    }

    pub(crate) async fn stat(&mut self, workspace: &str, path: &str) -> Result<v1::FileStat, Status> {
        let workspace = format!("workspaces/{workspace}");
        let request = v1::StatFileRequest { workspace, path: path.to_owned(), ..Default::default() };
        Ok(self.files.stat_file(request).await?.into_inner().file.expect("a file"))
    }
}

#[tokio::test]
async fn files_written_by_call_are_read_listed_committed_and_read_at_the_revision() {
    let around = tempfile::tempdir().expect("a directory");
    let channel = in_process(open(around.path())).await;
    let (mut ada, mut bob) = (Caller::new(&channel, "ada"), Caller::new(&channel, "bob"));
    ada.create("main", "").await.expect("made");
    ada.write("main", "src/lib.rs", b"fn main() {}\n").await.expect("written");
    let large: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
    let written = ada.write("main", "data/large.bin", &large).await.expect("written");
    assert_eq!((written.size, written.mode), (3_000_000, 0o644));
    assert_eq!(bob.read("main", "data/large.bin").await.expect("read"), large);
    assert_eq!(bob.read("main", "src/lib.rs").await.expect("read"), b"fn main() {}\n");
    let all = ["data", "data/large.bin", "src", "src/lib.rs"];
    for page_size in [1, 2, 3, 100] {
        assert_eq!(bob.list("main", page_size).await, all, "pages of {page_size}");
    }
    let status = bob.status("main").await;
    assert_eq!(status.changes.len(), 4, "{status:?}");
    let done = ada.commit_live("main", "").await.expect("committed");
    assert!(done.changed && !done.merged, "{done:?}");
    assert!(done.changes.iter().any(|change| change.path == "src/lib.rs"));
    let snapshot = done.snapshot.expect("a snapshot");
    assert_eq!((snapshot.author.as_str(), snapshot.message.as_str()), ("ada", "by call"));
    assert!(bob.status("main").await.changes.is_empty());
    let stat = bob.stat("main", "data/large.bin").await.expect("found");
    assert_eq!((&stat.etag, &stat.content_id), (&written.etag, &written.content_id), "a commit changes no etag");
    bob.write("main", "src/lib.rs", b"other\n").await.expect("written");
    assert_eq!(ada.read_at("main", "@", "src/lib.rs").await.expect("read"), b"fn main() {}\n");
    assert_eq!(ada.read("main", "src/lib.rs").await.expect("read"), b"other\n");
    let again = ada.commit_live("main", "").await.expect("committed");
    assert!(again.changed);
    assert!(!ada.commit_live("main", "").await.expect("nothing to commit").changed);
}

#[tokio::test]
async fn a_write_whose_digest_or_etag_differs_changes_nothing() {
    let around = tempfile::tempdir().expect("a directory");
    let channel = in_process(open(around.path())).await;
    let mut ada = Caller::new(&channel, "ada");
    ada.create("main", "").await.expect("made");
    let first = ada.write("main", "a", b"one").await.expect("written");
    for size in [3, 2 << 20] {
        let data = vec![b'x'; size];
        let end = |digest: String| Part::End(v1::WriteFileEnd { digest });
        let parts = |end| vec![Part::Header(header("main", "a")), Part::Data(data.clone().into()), end];
        let wrong = ada.send_parts(parts(end("00".repeat(32)))).await.expect_err("a wrong digest");
        assert_eq!(reason(&wrong), Reason::DamagedStream, "{wrong}");
        assert_eq!(ada.read("main", "a").await.expect("read"), b"one");
        let digest = blake3::hash(&data).to_hex().to_string();
        let stale = v1::WriteFileHeader { if_match: "0123".to_owned(), ..header("main", "a") };
        let refused = ada.send_parts(vec![Part::Header(stale), Part::Data(data.clone().into())]).await;
        let refused = refused.expect_err("another etag");
        assert_eq!(reason(&refused), Reason::StaleFile, "{refused}");
        assert_eq!(ada.read("main", "a").await.expect("read"), b"one");
        let absent = v1::WriteFileHeader { if_absent: true, ..header("main", "a") };
        let refused = ada.send_parts(vec![Part::Header(absent)]).await.expect_err("there already");
        assert_eq!(reason(&refused), Reason::AlreadyExists, "{refused}");
        let matching = v1::WriteFileHeader { if_match: first.etag.clone(), ..header("main", "b") };
        let refused = ada.send_parts(vec![Part::Header(matching)]).await.expect_err("nothing there");
        assert_eq!(reason(&refused), Reason::StaleFile, "{refused}");
        let _ = digest;
    }
    let matching = v1::WriteFileHeader { if_match: first.etag, ..header("main", "a") };
    let end = Part::End(v1::WriteFileEnd { digest: blake3::hash(b"two").to_hex().to_string() });
    let done = ada.send_parts(vec![Part::Header(matching), Part::Data(b"two".to_vec().into()), end]).await;
    assert_eq!(done.expect("written").received_bytes, 3);
    let part = v1::WriteFileHeader { offset: Some(1), ..header("main", "a") };
    ada.send_parts(vec![Part::Header(part), Part::Data(b"W".to_vec().into())]).await.expect("written");
    assert_eq!(ada.read("main", "a").await.expect("read"), b"tWo");
}

#[tokio::test]
async fn hostile_paths_offsets_and_streams_are_refused() {
    let around = tempfile::tempdir().expect("a directory");
    let channel = in_process(open(around.path())).await;
    let mut ada = Caller::new(&channel, "ada");
    ada.create("main", "").await.expect("made");
    let deep = "a/".repeat(2_048) + "a";
    let long = "a".repeat(256);
    for path in ["..", "../a", "a/../b", "/etc/passwd", "", "a\0b", "a//b", ".", "a\\b", &deep, &long] {
        let refused = ada.write("main", path, b"x").await.expect_err(path);
        assert!([Reason::Invalid, Reason::AlreadyExists].contains(&reason(&refused)), "{path:?}: {refused}");
        if !path.is_empty() {
            let refused = ada.stat("main", path).await.expect_err(path);
            assert_eq!(reason(&refused), Reason::Invalid, "{path:?}: {refused}");
        }
    }
    for offset in [u64::MAX, i64::MAX as u64] {
        let far = v1::WriteFileHeader { offset: Some(offset), ..header("main", "far") };
        let refused = ada.send_parts(vec![Part::Header(far), Part::Data(b"xyz".to_vec().into())]).await;
        assert_eq!(reason(&refused.expect_err("too far")), Reason::Invalid);
    }
    let far = v1::WriteFileHeader { offset: Some(5 << 30), ..header("main", "far") };
    let sparse = ada.send_parts(vec![Part::Header(far), Part::Data(b"x".to_vec().into())]).await.expect("sparse");
    assert_eq!(sparse.file.expect("a file").size, (5 << 30) + 1);
    let refused = ada.send_parts(vec![Part::Data(b"x".to_vec().into())]).await.expect_err("no header");
    assert_eq!(reason(&refused), Reason::Invalid);
    let twice = vec![Part::Header(header("main", "a")), Part::Header(header("main", "b"))];
    assert_eq!(reason(&ada.send_parts(twice).await.expect_err("two headers")), Reason::Invalid);
    let missing = ada.write("other", "a", b"x").await.expect_err("no such workspace");
    assert_eq!(reason(&missing), Reason::NotFound, "{missing}");
    assert_eq!(ada.list("main", 10).await, ["far"]);
    // A stream that sends nothing more ends with its client, and leaves nothing.
    let cut = tokio_stream::iter([Part::Header(header("main", "cut")), Part::Data(b"x".to_vec().into())]);
    let cut = tokio_stream::StreamExt::map(cut, |part| v1::WriteFileRequest { part: Some(part) });
    assert_eq!(reason(&ada.files.write_file(cut).await.expect_err("no end")), Reason::DamagedStream);
    let (send, receive) = tokio::sync::mpsc::channel(4);
    let first = v1::WriteFileRequest { part: Some(Part::Header(header("main", "endless"))) };
    send.send(first).await.expect("open");
    let mut other = ada.clone();
    let call = tokio::spawn(async move {
        other.files.write_file(tokio_stream::wrappers::ReceiverStream::new(receive)).await.map(drop)
    });
    for _ in 0..64 {
        let data = v1::WriteFileRequest { part: Some(Part::Data(vec![0; 256 << 10].into())) };
        send.send(data).await.expect("open");
    }
    call.abort();
    let _ = call.await;
    assert_eq!(ada.list("main", 10).await, ["far"]);
}

#[tokio::test]
async fn names_that_are_not_text_are_escaped_and_read_back() {
    let around = tempfile::tempdir().expect("a directory");
    let channel = in_process(open(around.path())).await;
    let mut ada = Caller::new(&channel, "ada");
    ada.create("main", "").await.expect("made");
    for path in ["caf\u{e9}.txt", "raw-\\xff", "back\\\\slash"] {
        let written = ada.write("main", path, path.as_bytes()).await.expect("written");
        assert_eq!(written.path, path);
        assert_eq!(ada.read("main", path).await.expect("read"), path.as_bytes());
    }
    assert_eq!(ada.list("main", 10).await, ["back\\\\slash", "caf\u{e9}.txt", "raw-\\xff"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_reports_paths_that_change_in_the_tree_and_by_commits() {
    let around = tempfile::tempdir().expect("a directory");
    let server = OnSocket::start(around.path()).await;
    let channel = server.connect().await;
    let mut ada = Caller::new(&channel, "ada");
    ada.create("main", "").await.expect("made");
    let request = v1::WatchFilesRequest { workspace: "workspaces/main".to_owned(), path: "src".to_owned() };
    let mut watch = ada.files.watch_files(request).await.expect("watched").into_inner();
    assert!(watch.message().await.expect("open").expect("begun").changes.is_empty());
    ada.write("main", "other", b"x").await.expect("written");
    ada.write("main", "src/a", b"x").await.expect("written");
    let paths = |answer: v1::WatchFilesResponse| answer.changes.into_iter().map(|one| one.path).collect::<Vec<_>>();
    assert_eq!(paths(watch.message().await.expect("open").expect("a change")), ["src", "src/a"]);
    ada.commit_live("main", "").await.expect("committed");
    let write = v1::WriteEdit { path: "src/b".to_owned(), ..Default::default() };
    let edit = v1::FileEdit { edit: Some(v1::file_edit::Edit::Write(write)) };
    let workspace = "workspaces/main".to_owned();
    let request = v1::CommitEditsRequest { workspace, edits: vec![edit], ..Default::default() };
    ada.files.commit_edits(request).await.expect("committed");
    assert_eq!(paths(watch.message().await.expect("open").expect("a change")), ["src/b"]);
    drop(watch);
    server.end().await;
}
