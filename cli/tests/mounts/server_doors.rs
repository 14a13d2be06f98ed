//! One list of scenarios through every door of one server: gRPC, REST, the command in a directory, and a FUSE mount. All end in the same
//! tree but for times, and on one workspace each door sees the work of the others at once.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use amalgam_engine::workspace::WorkspaceName;
use amalgam_engine::{Store, Workspaces};
use amalgam_proto::v1;
use amalgam_proto::v1::file_service_client::FileServiceClient;
use amalgam_proto::v1::workspace_service_client::WorkspaceServiceClient;
use serde_json::{Value, json};
use tonic::transport::{Channel, Endpoint};
use v1::write_file_request::Part;

use super::scratch::{Scratch, can_mount};
use super::served::Served;

/// One step of a scenario.
#[derive(Clone, Copy, Debug)]
enum Step {
    Write(&'static str, &'static str),
    /// Writes a file of so many bytes.
    Large(&'static str, usize),
    MakeDirectory(&'static str),
    Rename(&'static str, &'static str),
    Symlink(&'static str, &'static str),
    SetMode(&'static str, u32),
    Remove(&'static str),
    Commit(&'static str),
}

use Step::{Commit, Large, MakeDirectory, Remove, Rename, SetMode, Symlink, Write};

/// The scenarios, one after another.
const SCENARIOS: &[(&str, &[Step])] = &[
    ("a first file", &[Write("README.md", "hello\n"), Commit("first")]),
    (
        "a program",
        &[
            MakeDirectory("src"),
            Write("src/app.py", "print(1)\n"),
            SetMode("src/app.py", 0o755),
            Write("src/app.py", "print(2)\n"),
            Commit("program"),
        ],
    ),
    (
        "files that move",
        &[
            MakeDirectory("docs"),
            MakeDirectory("docs/deep"),
            Write("docs/deep/a.txt", "a\n"),
            Rename("docs/deep/a.txt", "docs/b.txt"),
            Remove("docs/deep"),
            Rename("docs", "pages"),
            Symlink("link", "pages/b.txt"),
            Symlink("dangling", "../nowhere"),
            Commit("moved"),
        ],
    ),
    ("sizes", &[Write("empty", ""), Large("large", 3_000_000), Write("name with space \u{e4}", "x"), Commit("sizes")]),
    ("replaced and removed", &[Write("README.md", "hello again\n"), Remove("empty"), Remove("link"), Commit("last")]),
];

/// The bytes of a large file.
fn large(size: usize) -> Vec<u8> {
    (0..size).map(|number| (number % 251) as u8).collect()
}

/// A way to change and read the files of a workspace.
trait Door {
    fn name(&self) -> &'static str;
    fn perform(&self, workspace: &str, step: Step);
    /// The bytes of a file; nothing if there is none.
    fn read(&self, workspace: &str, path: &str) -> Option<Vec<u8>>;
}

/// The server and the ways to it.
struct Around<'a> {
    scratch: &'a Scratch,
    url: String,
    key: String,
    runtime: tokio::runtime::Runtime,
}

impl Around<'_> {
    /// Makes a REST call with a body of JSON.
    fn post(&self, verb: &str, path: &str, body: &Value) {
        let url = format!("{}/api/v1{path}", self.url);
        let line = format!(
            "curl -sS --fail-with-body -o /dev/null -X {verb} -H 'X-API-Key: {}' -d '{body}' '{url}'",
            self.key
        );
        self.scratch.run(&line);
    }

    fn rest_file(&self, workspace: &str, path: &str) -> String {
        let path: String = path
            .bytes()
            .map(|byte| match byte {
                b'/' => "/".to_owned(),
                byte if byte.is_ascii_alphanumeric() || b"._-".contains(&byte) => char::from(byte).to_string(),
                byte => format!("%{byte:02X}"),
            })
            .collect();
        format!("{}/api/v1/workspaces/{workspace}/files/{path}", self.url)
    }
}

struct Grpc<'a> {
    around: &'a Around<'a>,
    channel: Channel,
}

impl Grpc<'_> {
    fn request<T>(&self, message: T) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        request.metadata_mut().insert("x-api-key", self.around.key.parse().expect("a key"));
        request
    }

    async fn step(&self, workspace: &str, step: Step) -> Result<(), tonic::Status> {
        let workspace = format!("workspaces/{workspace}");
        let mut files = FileServiceClient::new(self.channel.clone());
        match step {
            Write(path, text) => self.write(workspace, path, text.as_bytes().to_vec()).await?,
            Large(path, size) => self.write(workspace, path, large(size)).await?,
            MakeDirectory(path) => {
                let make = v1::MakeDirectoryRequest { workspace, path: path.to_owned(), ..Default::default() };
                files.make_directory(self.request(make)).await?;
            }
            Rename(path, new) => {
                let (path, new_path) = (path.to_owned(), new.to_owned());
                let rename = v1::RenameFileRequest { workspace, path, new_path, ..Default::default() };
                files.rename_file(self.request(rename)).await?;
            }
            Symlink(path, target) => {
                let (path, target) = (path.to_owned(), target.to_owned());
                let link =
                    v1::CreateSymlinkRequest { workspace, path, target, create_parents: false, ..Default::default() };
                files.create_symlink(self.request(link)).await?;
            }
            SetMode(path, mode) => {
                let attributes = v1::AttributesEdit { path: path.to_owned(), mode: Some(mode), ..Default::default() };
                let set = v1::SetAttributesRequest { workspace, attributes: Some(attributes), ..Default::default() };
                files.set_attributes(self.request(set)).await?;
            }
            Remove(path) => {
                let remove = v1::RemoveFileRequest { workspace, path: path.to_owned(), ..Default::default() };
                files.remove_file(self.request(remove)).await?;
            }
            Commit(message) => {
                let commit =
                    v1::CommitWorkspaceRequest { name: workspace, message: message.to_owned(), ..Default::default() };
                WorkspaceServiceClient::new(self.channel.clone()).commit_workspace(self.request(commit)).await?;
            }
        }
        Ok(())
    }

    async fn write(&self, workspace: String, path: &str, data: Vec<u8>) -> Result<(), tonic::Status> {
        let header = v1::WriteFileHeader { workspace, path: path.to_owned(), ..Default::default() };
        let mut parts = vec![Part::Header(header)];
        parts.extend(data.chunks(256 << 10).map(|data| Part::Data(data.to_vec().into())));
        parts.push(Part::End(v1::WriteFileEnd::default()));
        let parts = parts.into_iter().map(|part| v1::WriteFileRequest { part: Some(part) });
        let mut files = FileServiceClient::new(self.channel.clone());
        files.write_file(self.request(tokio_stream::iter(parts))).await.map(drop)
    }
}

impl Door for Grpc<'_> {
    fn name(&self) -> &'static str {
        "gRPC"
    }

    fn perform(&self, workspace: &str, step: Step) {
        let done = self.around.runtime.block_on(self.step(workspace, step));
        done.unwrap_or_else(|status| panic!("gRPC: {step:?}: {status}"));
    }

    fn read(&self, workspace: &str, path: &str) -> Option<Vec<u8>> {
        self.around.runtime.block_on(async {
            let workspace = format!("workspaces/{workspace}");
            let read = v1::FileServiceReadFileRequest { workspace, path: path.to_owned(), ..Default::default() };
            let mut answers =
                FileServiceClient::new(self.channel.clone()).read_file(self.request(read)).await.ok()?.into_inner();
            let mut data = Vec::new();
            while let Some(answer) = answers.message().await.ok()? {
                data.extend_from_slice(&answer.data);
            }
            Some(data)
        })
    }
}

struct Rest<'a>(&'a Around<'a>);

impl Door for Rest<'_> {
    fn name(&self) -> &'static str {
        "REST"
    }

    fn perform(&self, workspace: &str, step: Step) {
        let put = |path: &str, data: &[u8]| {
            let file = self.0.scratch.path().join("upload");
            fs::write(&file, data).expect("written");
            let url = self.0.rest_file(workspace, path);
            self.0.scratch.run(&format!(
                "curl -sS --fail-with-body -o /dev/null -X PUT -H 'X-API-Key: {}' --data-binary @../upload '{url}'",
                self.0.key
            ));
        };
        let call =
            |verb: &str, path: &str, body: Value| self.0.post(verb, &format!("/workspaces/{workspace}/{path}"), &body);
        match step {
            Write(path, text) => put(path, text.as_bytes()),
            Large(path, size) => put(path, &large(size)),
            MakeDirectory(path) => call("POST", "directories", json!({"path": path})),
            Rename(path, new) => call("POST", "rename-file", json!({"path": path, "newPath": new})),
            Symlink(path, target) => call("POST", "symlinks", json!({"path": path, "target": target})),
            SetMode(path, mode) => call("PATCH", "attributes", json!({"attributes": {"path": path, "mode": mode}})),
            Remove(path) => call("POST", "remove", json!({"path": path})),
            Commit(message) => call("POST", "commit", json!({"message": message})),
        }
    }

    fn read(&self, workspace: &str, path: &str) -> Option<Vec<u8>> {
        let url = self.0.rest_file(workspace, path);
        let done = self.0.scratch.output(&format!("curl -sS -f -H 'X-API-Key: {}' '{url}'", self.0.key));
        done.status.success().then_some(done.stdout)
    }
}

/// Files of a directory of the host: a mount, or a checkout of the command.
struct Directory<'a> {
    around: &'a Around<'a>,
    name: &'static str,
}

impl Directory<'_> {
    fn at(&self, workspace: &str) -> PathBuf {
        self.around.scratch.path().join(workspace)
    }
}

impl Door for Directory<'_> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn perform(&self, workspace: &str, step: Step) {
        let at = self.at(workspace);
        let done = match step {
            Write(path, text) => fs::write(at.join(path), text),
            Large(path, size) => fs::write(at.join(path), large(size)),
            MakeDirectory(path) => fs::create_dir(at.join(path)),
            Rename(path, new) => fs::rename(at.join(path), at.join(new)),
            Symlink(path, target) => symlink(target, at.join(path)),
            SetMode(path, mode) => fs::set_permissions(at.join(path), fs::Permissions::from_mode(mode)),
            Remove(path) => match fs::symlink_metadata(at.join(path)).expect("it is there").is_dir() {
                true => fs::remove_dir(at.join(path)),
                false => fs::remove_file(at.join(path)),
            },
            Commit(message) => {
                self.around.scratch.run(&format!("cd '{}' && amalgam commit -q -m '{message}'", at.display()));
                Ok(())
            }
        };
        done.unwrap_or_else(|error| panic!("{}: {step:?}: {error}", self.name));
    }

    fn read(&self, workspace: &str, path: &str) -> Option<Vec<u8>> {
        fs::read(self.at(workspace).join(path)).ok()
    }
}

/// The paths that the scenarios write, so that each door can be asked for all of them.
fn paths() -> Vec<&'static str> {
    let mut paths: Vec<_> = SCENARIOS
        .iter()
        .flat_map(|(_, steps)| steps.iter())
        .flat_map(|step| match *step {
            Write(path, _) | Large(path, _) => vec![path],
            Rename(_, new) => vec![new],
            _ => vec![],
        })
        .chain(["pages/b.txt"])
        .filter(|path| *path != "pages")
        .collect();
    paths.sort_unstable();
    paths.dedup();
    paths
}

/// The hash of the tree of a workspace's head, without times.
fn bare(store: &Path, workspace: &str) -> [u8; 32] {
    let store = Store::open(store).expect("the server has let go of it");
    let name = WorkspaceName::new(workspace).expect("a name");
    let head = Workspaces::of(&store).get(&name).expect("the workspace").head.expect("a head");
    let root = store.snapshot(head).expect("a snapshot").root;
    *store.root(root).expect("a root").bare().as_bytes()
}

#[test]
fn every_door_of_a_server_ends_in_the_same_tree_and_sees_the_work_of_the_others() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.run("echo base > base.txt && amalgam init --workspace base && amalgam stop");
    let key = scratch.run("amalgam key create ann --scope write -q").trim().to_owned();
    let server = Served::with(&scratch, "");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let around = Around { scratch: &scratch, url: server.url.clone(), key, runtime };
    let endpoint = Endpoint::from_shared(server.url.clone()).expect("a URL");
    let channel = around.runtime.block_on(endpoint.connect()).expect("a connection");
    scratch.run("amalgam fork --from base via-grpc && amalgam fork --from base via-rest");
    scratch.run("amalgam fork --from base via-command --dir ../via-command");
    for mounted in ["via-fuse", "shared"] {
        scratch.run(&format!("amalgam fork --from base {mounted} --mount ../{mounted} --backend fuse"));
    }
    let grpc = Grpc { around: &around, channel };
    let rest = Rest(&around);
    let (command, fuse) = (Directory { around: &around, name: "command" }, Directory { around: &around, name: "FUSE" });
    let alone: [(&str, &dyn Door); 4] =
        [("via-grpc", &grpc), ("via-rest", &rest), ("via-command", &command), ("via-fuse", &fuse)];
    let live: [&dyn Door; 3] = [&grpc, &rest, &fuse];
    let mut turn = 0;
    for (scenario, steps) in SCENARIOS {
        for step in *steps {
            for (workspace, door) in &alone {
                door.perform(workspace, *step);
            }
            // On the shared workspace each step has another door, and all doors see it at once.
            live[turn % live.len()].perform("shared", *step);
            turn += 1;
            for path in paths() {
                let expected = grpc.read("via-grpc", path);
                for door in live {
                    let found = door.read("shared", path);
                    assert!(found == expected, "{scenario}: {step:?}: {path} through {}", door.name());
                }
            }
        }
        // The network sees every workspace, and so does the command once it is committed.
        for path in paths() {
            let expected = grpc.read("via-grpc", path);
            for workspace in ["via-rest", "via-command", "via-fuse", "shared"] {
                assert!(rest.read(workspace, path) == expected, "{scenario}: {workspace}/{path} by REST");
            }
            for workspace in ["via-grpc", "shared"] {
                let shown = scratch.output(&format!("amalgam cat '{workspace}:{path}'"));
                let shown = shown.status.success().then_some(shown.stdout);
                assert!(shown == expected, "{scenario}: `amalgam cat {workspace}:{path}`");
            }
        }
    }
    scratch.run("amalgam umount ../via-fuse && amalgam umount ../shared");
    server.stop();
    let store = scratch.path().join("store/store");
    let expected = bare(&store, "via-grpc");
    for workspace in ["via-rest", "via-command", "via-fuse", "shared"] {
        assert_eq!(bare(&store, workspace), expected, "{workspace}");
    }
}
