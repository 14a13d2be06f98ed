//! A server under load that is killed again and again: every acknowledged call is there afterwards, and a retry with the same request id
//! does nothing twice.
#![expect(clippy::print_stdout, reason = "figures are printed")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use amalgam_proto::v1;
use amalgam_proto::v1::file_service_client::FileServiceClient;
use amalgam_proto::v1::request_service_client::RequestServiceClient;
use amalgam_proto::v1::snapshot_service_client::SnapshotServiceClient;
use amalgam_proto::v1::workspace_service_client::WorkspaceServiceClient;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use crate::scratch::Scratch;
use crate::served::{Served, key};

/// How often the server is killed, unless this variable says otherwise.
const ROUNDS: u64 = 3;
const ROUNDS_VARIABLE: &str = "AMALGAM_SERVER_KILLS";
const WRITERS: usize = 8;
/// Every so many commits a writer forks its workspace, too.
const FORK_EVERY: u64 = 4;

/// Sends the key with each call.
#[derive(Clone)]
struct WithKey(String);

impl Interceptor for WithKey {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert("x-api-key", self.0.parse().expect("a key"));
        Ok(request)
    }
}

type Line = InterceptedService<Channel, WithKey>;

/// Clients of one server.
#[derive(Clone)]
struct Clients {
    workspaces: WorkspaceServiceClient<Line>,
    files: FileServiceClient<Line>,
    snapshots: SnapshotServiceClient<Line>,
    requests: RequestServiceClient<Line>,
}

impl Clients {
    async fn connect(server: &Served, key: &str) -> Self {
        let channel = Endpoint::from_shared(server.url.clone()).expect("a URL").connect().await.expect("a connection");
        let line = || InterceptedService::new(channel.clone(), WithKey(key.to_owned()));
        Self {
            workspaces: WorkspaceServiceClient::new(line()),
            files: FileServiceClient::new(line()),
            snapshots: SnapshotServiceClient::new(line()),
            requests: RequestServiceClient::new(line()),
        }
    }
}

/// One writer with a workspace of its own. Its calls have numbers; call `next` is the first that was not acknowledged.
struct Writer {
    workspace: String,
    next: u64,
}

impl Writer {
    fn name(&self) -> String {
        format!("workspaces/{}", self.workspace)
    }

    fn request_id(&self, number: u64) -> String {
        format!("{}-{number}", self.workspace)
    }

    /// Makes the commit of a number, and sometimes the fork that belongs to it. All have the ids of their number.
    async fn act(&self, clients: &mut Clients, number: u64) -> Result<(), Status> {
        let write = v1::WriteEdit {
            path: format!("files/{number:06}"),
            content: Some(v1::write_edit::Content::Text(format!("{number}\n"))),
            create_parents: true,
            // A second one of the same number would be refused.
            if_absent: true,
            ..Default::default()
        };
        let commit = v1::CommitEditsRequest {
            workspace: self.name(),
            edits: vec![v1::FileEdit { edit: Some(v1::file_edit::Edit::Write(write)) }],
            message: format!("commit {number}"),
            buffered: number.is_multiple_of(2),
            request_id: self.request_id(number),
            ..Default::default()
        };
        clients.files.commit_edits(commit).await?;
        if number.is_multiple_of(FORK_EVERY) {
            let fork = v1::ForkWorkspaceRequest {
                name: self.name(),
                workspace_ids: vec![format!("{}-fork-{number}", self.workspace)],
                request_id: self.request_id(number),
                ..Default::default()
            };
            clients.workspaces.fork_workspace(fork).await?;
        }
        Ok(())
    }

    /// Goes on until a call fails, which is an error unless the server is being killed.
    async fn work(&mut self, clients: &mut Clients, is_killed: &AtomicBool) {
        loop {
            match self.act(clients, self.next).await {
                Ok(()) => self.next += 1,
                Err(status) => {
                    assert!(
                        is_killed.load(Ordering::SeqCst),
                        "{}: call {} of a living server: {status}",
                        self.workspace,
                        self.next
                    );
                    return;
                }
            }
        }
    }

    /// Checks that the history has each acknowledged commit once, and of the call in doubt at most one.
    async fn check(&self, clients: &mut Clients) {
        let mut messages = Vec::new();
        let mut request = v1::ListSnapshotsRequest { workspace: self.name(), page_size: 1_000, ..Default::default() };
        // A workspace without a snapshot has no log.
        let found = clients.workspaces.get_workspace(v1::GetWorkspaceRequest { name: self.name() }).await.expect("it");
        while !found.get_ref().workspace.as_ref().expect("a workspace").head.is_empty() {
            let page = clients.snapshots.list_snapshots(request.clone()).await.expect("a log").into_inner();
            messages.extend(page.snapshots.into_iter().map(|snapshot| snapshot.message));
            request.page_token = page.next_page_token;
            if request.page_token.is_empty() {
                break;
            }
        }
        messages.reverse();
        let is_landed = messages.len() as u64 == self.next + 1;
        let expected = self.next + u64::from(is_landed);
        let expected: Vec<_> = (0..expected).map(|number| format!("commit {number}")).collect();
        assert_eq!(messages, expected, "{} was told of {} commits", self.workspace, self.next);
        let asked = v1::GetRequestRequest { request_id: self.request_id(self.next), method: "CommitEdits".to_owned() };
        let state = clients.requests.get_request(asked).await.expect("an answer").into_inner().state();
        let known = if is_landed { v1::RequestState::Done } else { v1::RequestState::NotDone };
        assert_eq!(state, known, "{}: call {}", self.workspace, self.next);
        let last_fork = (0..self.next).rev().find(|number| number % FORK_EVERY == 0);
        if let Some(number) = last_fork {
            let name = format!("{}-fork-{number}", self.name());
            clients
                .workspaces
                .get_workspace(v1::GetWorkspaceRequest { name })
                .await
                .expect("the fork was acknowledged");
        }
    }
}

fn rounds() -> u64 {
    let text = std::env::var(ROUNDS_VARIABLE).ok();
    text.map_or(ROUNDS, |text| text.parse().unwrap_or_else(|_| panic!("{ROUNDS_VARIABLE} is not a number: {text}")))
}

#[test]
fn acknowledged_calls_survive_kills_of_the_server_and_retries_double_nothing() {
    let scratch = Scratch::new();
    let key = key(&scratch, "write");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let mut server = Served::start(&scratch);
    let mut writers: Vec<_> = (0..WRITERS).map(|number| Writer { workspace: format!("w{number}"), next: 0 }).collect();
    runtime.block_on(async {
        let mut clients = Clients::connect(&server, &key).await;
        for writer in &writers {
            let create = v1::CreateWorkspaceRequest { workspace_id: writer.workspace.clone(), ..Default::default() };
            clients.workspaces.create_workspace(create).await.expect("created");
        }
    });
    for round in 0..rounds() {
        let is_killed = Arc::new(AtomicBool::new(false));
        let working: Vec<_> = runtime.block_on(async {
            let mut working = Vec::new();
            for mut writer in writers.drain(..) {
                let (mut clients, is_killed) = (Clients::connect(&server, &key).await, Arc::clone(&is_killed));
                working.push(tokio::spawn(async move {
                    writer.work(&mut clients, &is_killed).await;
                    writer
                }));
            }
            working
        });
        // Different moments of the load: begun, in full swing, after many files.
        std::thread::sleep(Duration::from_millis(60 + (round * 97) % 400));
        is_killed.store(true, Ordering::SeqCst);
        drop(server);
        for worker in working {
            writers.push(runtime.block_on(worker).expect("each call of a living server succeeds"));
        }
        server = Served::start(&scratch);
        runtime.block_on(async {
            let mut clients = Clients::connect(&server, &key).await;
            for writer in &writers {
                writer.check(&mut clients).await;
            }
        });
    }
    let done: u64 = writers.iter().map(|writer| writer.next).sum();
    println!("{} kills, {done} acknowledged commits", rounds());
    assert!(done >= WRITERS as u64, "the load did something");
    // The calls in doubt are retried, and then each is there once.
    runtime.block_on(async {
        let mut clients = Clients::connect(&server, &key).await;
        for writer in &mut writers {
            for _ in 0..2 {
                writer.act(&mut clients, writer.next).await.expect("a retry succeeds");
            }
            writer.next += 1;
            writer.check(&mut clients).await;
            let asked = v1::ListFilesRequest {
                workspace: writer.name(),
                path: "files".to_owned(),
                page_size: 1_000,
                ..Default::default()
            };
            let files = clients.files.list_files(asked).await.expect("listed").into_inner();
            assert!(!files.next_page_token.is_empty() || files.files.len() as u64 == writer.next);
        }
    });
    server.stop();
}
