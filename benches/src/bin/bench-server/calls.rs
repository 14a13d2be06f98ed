//! Rates and durations of small calls: reads, commits of edits, forks.

use std::time::{Duration, Instant};

use amalgam_benches::bench::Bench;
use amalgam_benches::{Bar, Result, Samples, microseconds};
use amalgam_proto::v1;
use amalgam_proto::v1::file_service_client::FileServiceClient;
use amalgam_proto::v1::workspace_service_client::WorkspaceServiceClient;
use sha2::{Digest as _, Sha256};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Server};
use tonic::{Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use amalgam_benches::served::{BoxedError, Served, WithKey, runtime};

pub const FIGURES: &[&str] = &[
    "read with a key, 64 connections / bare echo",
    "commit of edits, one client, p50",
    "commits of edits, 64 clients",
    "fork, p50",
];

const CONNECTIONS: usize = 64;

type Intercepted = InterceptedService<Channel, WithKey>;

pub fn run(bench: &mut Bench) -> Result<()> {
    let (directory, seconds) = (bench.directory("calls"), Duration::from_secs(bench.size(10, 2)));
    let runtime = runtime()?;
    let served = runtime.block_on(Served::start(&directory))?;
    let figures = runtime.block_on(async {
        let mut workspaces = workspaces(&served).await?;
        workspaces.create_workspace(create("main")).await?;
        let ours = reads(&served, seconds).await?;
        let (echo, alone) = echoes(seconds).await?;
        let durable = commits(&served, seconds / 5, false).await?;
        let commits = commits(&served, seconds, true).await?;
        let together = commits_together(&served, seconds).await?;
        let forks = forks(&mut workspaces, bench.size(2_000, 200)).await?;
        Ok::<_, BoxedError>((ours, (echo, alone), (commits, durable), together, forks))
    });
    runtime.block_on(served.stop())?;
    let (ours, (echo, alone), (commits, durable), together, forks) = figures?;
    let beside = format!("a bare echo to one client takes {:.0} us", alone.p50());
    let how = format!(
        "{ours:.0}/s of GetWorkspace; {echo:.0}/s of a bare tonic health check whose interceptor hashes the key"
    );
    bench.add(FIGURES[0], (ours / echo, "times"), Bar::AtLeast(0.5), how);
    bench.add(
        FIGURES[1],
        (commits.p50(), "us"),
        Bar::AtMost(400.0),
        format!("1 KiB, buffered: {}; durable p50 {:.0} us; {beside}", commits.describe("us"), durable.p50()),
    );
    bench.add(
        FIGURES[2],
        (together, "1/s"),
        Bar::AtLeast(3_000.0),
        "64 clients on 64 workspaces, 1 KiB, buffered".to_owned(),
    );
    bench.add(FIGURES[3], (forks.p50(), "us"), Bar::AtMost(300.0), format!("{}; {beside}", forks.describe("us")));
    Ok(())
}

fn create(name: &str) -> v1::CreateWorkspaceRequest {
    v1::CreateWorkspaceRequest { workspace_id: name.to_owned(), ..Default::default() }
}

async fn workspaces(served: &Served) -> Result<WorkspaceServiceClient<Intercepted>> {
    Ok(WorkspaceServiceClient::with_interceptor(served.connect().await?, served.with_key()?))
}

async fn files(served: &Served) -> Result<FileServiceClient<Intercepted>> {
    Ok(FileServiceClient::with_interceptor(served.connect().await?, served.with_key()?))
}

/// Calls per second of many clients that each call again and again.
async fn rate<F>(clients: Vec<impl FnMut() -> F + Send + 'static>, seconds: Duration) -> Result<f64>
where
    F: Future<Output = Result<(), Status>> + Send,
{
    let (begin, mut running) = (Instant::now(), tokio::task::JoinSet::new());
    for mut client in clients {
        running.spawn(async move {
            let mut calls = 0_u64;
            while begin.elapsed() < seconds {
                client().await?;
                calls += 1;
            }
            Ok::<_, Status>(calls)
        });
    }
    let mut calls = 0;
    while let Some(done) = running.join_next().await {
        calls += done??;
    }
    #[allow(clippy::cast_precision_loss, reason = "a count of calls fits")]
    Ok(calls as f64 / begin.elapsed().as_secs_f64())
}

async fn reads(served: &Served, seconds: Duration) -> Result<f64> {
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        let client = workspaces(served).await?;
        clients.push(move || {
            let mut client = client.clone();
            async move {
                client.get_workspace(v1::GetWorkspaceRequest { name: "workspaces/main".to_owned() }).await.map(drop)
            }
        });
    }
    rate(clients, seconds).await
}

/// The peer: a service that answers without doing anything, behind an interceptor that checks a key.
///
/// Returns the rate of many clients, and the durations of one client's calls.
async fn echoes(seconds: Duration) -> Result<(f64, Samples)> {
    let expected = Sha256::digest(b"a key of the same length as those of the server, which has 26 and 52");
    let check = move |request: Request<()>| {
        let given =
            request.metadata().get("x-api-key").map(tonic::metadata::MetadataValue::as_bytes).unwrap_or_default();
        if Sha256::digest(given) == expected { Ok(request) } else { Err(Status::unauthenticated("no")) }
    };
    let (_reporter, health) = tonic_health::server::health_reporter();
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?;
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    let service = InterceptedService::new(health, check);
    let serving = tokio::spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        let channel = tonic::transport::Endpoint::from_shared(format!("http://{address}"))?.connect().await?;
        let client = HealthClient::new(channel);
        clients.push(move || {
            let mut client = client.clone();
            async move {
                let mut request = Request::new(HealthCheckRequest::default());
                let key = "a key of the same length as those of the server, which has 26 and 52";
                request.metadata_mut().insert("x-api-key", tonic::metadata::MetadataValue::from_static(key));
                client.check(request).await.map(drop)
            }
        });
    }
    let (mut alone, begin) = (Vec::new(), Instant::now());
    while begin.elapsed() < seconds / 5 {
        let start = Instant::now();
        clients[0]().await?;
        alone.push(microseconds(start.elapsed()));
    }
    let found = rate(clients, seconds).await;
    serving.abort();
    Ok((found?, Samples::new(alone)))
}

/// A durable commit of one file of 1 KiB.
pub fn edit(workspace: &str, number: u64) -> v1::CommitEditsRequest {
    let text = format!("{number:>1024}");
    let write = v1::WriteEdit {
        path: "a/file.txt".to_owned(),
        content: Some(v1::write_edit::Content::Text(text)),
        create_parents: true,
        ..Default::default()
    };
    v1::CommitEditsRequest {
        workspace: format!("workspaces/{workspace}"),
        edits: vec![v1::FileEdit { edit: Some(v1::file_edit::Edit::Write(write)) }],
        message: "edit".to_owned(),
        ..Default::default()
    }
}

async fn commits(served: &Served, seconds: Duration, buffered: bool) -> Result<Samples> {
    let (mut client, mut values, begin) = (files(served).await?, Vec::new(), Instant::now());
    while begin.elapsed() < seconds {
        let number = values.len() as u64;
        let start = Instant::now();
        client.commit_edits(v1::CommitEditsRequest { buffered, ..edit("main", number) }).await?;
        values.push(microseconds(start.elapsed()));
    }
    Ok(Samples::new(values))
}

async fn commits_together(served: &Served, seconds: Duration) -> Result<f64> {
    let (mut made, mut clients) = (workspaces(served).await?, Vec::new());
    for number in 0..CONNECTIONS {
        let name = format!("w{number}");
        made.create_workspace(create(&name)).await?;
        let client = files(served).await?;
        let mut number = 0;
        clients.push(move || {
            number += 1;
            let request = v1::CommitEditsRequest { buffered: true, ..edit(&name, number) };
            let mut client = client.clone();
            async move { client.commit_edits(request).await.map(drop) }
        });
    }
    rate(clients, seconds).await
}

async fn forks(client: &mut WorkspaceServiceClient<Intercepted>, times: u32) -> Result<Samples> {
    let mut values = Vec::new();
    for number in 0..times {
        let request = v1::ForkWorkspaceRequest {
            name: "workspaces/main".to_owned(),
            workspace_ids: vec![format!("fork-{number}")],
            ..Default::default()
        };
        let start = Instant::now();
        client.fork_workspace(request).await?;
        values.push(microseconds(start.elapsed()));
    }
    Ok(Samples::new(values))
}
