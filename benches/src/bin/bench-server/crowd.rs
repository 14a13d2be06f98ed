//! Many clients at once: readers and writers on one project in an open loop, idle subscriptions, subscribers of every commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use amalgam_benches::bench::Bench;
use amalgam_benches::{Bar, Result, Samples, microseconds};
use amalgam_proto::v1;
use amalgam_proto::v1::event_service_client::EventServiceClient;
use amalgam_proto::v1::file_service_client::FileServiceClient;
use amalgam_proto::v1::operation_service_client::OperationServiceClient;
use amalgam_proto::v1::workspace_service_client::WorkspaceServiceClient;
use prost::Message as _;
use tokio::task::JoinSet;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;

use super::calls::edit;
use amalgam_benches::served::{BoxedError, Served, WithKey, resident_bytes, runtime};

pub const FIGURES: &[&str] = &[
    "1,000 readers and 100 writers, read p99",
    "1,000 readers and 100 writers, errors and lost commits",
    "1,000 readers and 100 writers, memory at the end / after a fifth",
    "10,000 idle subscriptions, memory",
    "10,000 idle subscriptions, read p50 / without",
    "10,000 idle subscriptions, read p99 / without",
    "1,000 subscribers, commit to event, p99",
    "1,000 subscribers, bytes of an event",
];

type Intercepted = InterceptedService<Channel, WithKey>;

/// Connections that the clients of a crowd share.
const CONNECTIONS: usize = 100;
/// Agents that the idle subscriptions belong to.
const AGENTS: usize = 10;
/// The header of a gRPC message, and that of the HTTP/2 frame around it.
const FRAMING_BYTES: usize = 5 + 9;

pub fn run(bench: &mut Bench) -> Result<()> {
    let runtime = runtime()?;
    if FIGURES[..3].iter().any(|name| bench.wants(name)) {
        run_loop(bench, &runtime)?;
    }
    if FIGURES[3..6].iter().any(|name| bench.wants(name)) {
        run_idle(bench, &runtime)?;
    }
    if FIGURES[6..].iter().any(|name| bench.wants(name)) {
        run_subscribers(bench, &runtime)?;
    }
    Ok(())
}

fn run_loop(bench: &mut Bench, runtime: &tokio::runtime::Runtime) -> Result<()> {
    let directory = bench.directory("open-loop");
    let length = Duration::from_secs(bench.size(300, 10));
    let served = runtime.block_on(Served::start(&directory))?;
    let found = runtime.block_on(open_loop(&served, length, bench.size(1_000, 50), bench.size(100, 5)));
    runtime.block_on(served.stop())?;
    let found = found?;
    let how = format!("one read a second each, for {} s; {}", length.as_secs(), found.reads.describe("ms"));
    bench.add(FIGURES[0], (found.reads.p99(), "ms"), Bar::AtMost(100.0), how);
    let how = format!("{} commits acknowledged, a commit each 5 s and writer", found.commits);
    #[allow(clippy::cast_precision_loss, reason = "counts fit")]
    bench.add(FIGURES[1], ((found.errors + found.lost) as f64, ""), Bar::AtMost(0.0), how);
    let how = format!("{:.0} MB, then {:.0} MB", found.memory.0, found.memory.1);
    bench.add(FIGURES[2], (found.memory.1 / found.memory.0, "times"), Bar::AtMost(1.1), how);
    Ok(())
}

/// What an open loop came to.
struct OpenLoop {
    reads: Samples,
    commits: u64,
    errors: u64,
    lost: u64,
    /// Megabytes after a fifth of the time, and at the end.
    memory: (f64, f64),
}

async fn open_loop(served: &Served, length: Duration, readers: usize, writers: usize) -> Result<OpenLoop> {
    let channels = channels(served).await?;
    let key = served.with_key()?;
    let mut first = WorkspaceServiceClient::with_interceptor(channels[0].clone(), key.clone());
    for writer in 0..writers {
        first.create_workspace(create(&format!("w{writer}"))).await?;
    }
    let (begin, errors) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let mut reading = JoinSet::new();
    for reader in 0..readers {
        let client = WorkspaceServiceClient::with_interceptor(channels[reader % CONNECTIONS].clone(), key.clone());
        let (errors, name) = (Arc::clone(&errors), format!("workspaces/w{}", reader % writers));
        let offset = Duration::from_secs(1).mul_f64(fraction(reader, readers));
        reading.spawn(async move {
            let (mut due, mut times) = (offset, Vec::new());
            while due < length {
                tokio::time::sleep_until((begin + due).into()).await;
                // From the time at which the call was due: a late call is a slow call.
                let mut client = client.clone();
                match client.get_workspace(v1::GetWorkspaceRequest { name: name.clone() }).await {
                    Ok(_) => times.push((begin.elapsed() - due).as_secs_f64() * 1e3),
                    Err(_) => _ = errors.fetch_add(1, Ordering::Relaxed),
                }
                due += Duration::from_secs(1);
            }
            times
        });
    }
    let mut writing = JoinSet::new();
    for writer in 0..writers {
        let mut client = FileServiceClient::with_interceptor(channels[writer % CONNECTIONS].clone(), key.clone());
        let (errors, name) = (Arc::clone(&errors), format!("w{writer}"));
        let offset = Duration::from_secs(5).mul_f64(fraction(writer, writers));
        writing.spawn(async move {
            let (mut due, mut last, mut commits) = (offset, String::new(), 0_u64);
            while due < length {
                tokio::time::sleep_until((begin + due).into()).await;
                match client.commit_edits(edit(&name, commits)).await {
                    Ok(done) => {
                        last = done.into_inner().snapshot.map(|snapshot| snapshot.name).unwrap_or_default();
                        commits += 1;
                    }
                    Err(_) => _ = errors.fetch_add(1, Ordering::Relaxed),
                }
                due += Duration::from_secs(5);
            }
            (name, last, commits)
        });
    }
    tokio::time::sleep_until((begin + length / 5).into()).await;
    let early = megabytes()?;
    let mut reads = Vec::new();
    while let Some(times) = reading.join_next().await {
        reads.extend(times?);
    }
    let late = megabytes()?;
    let (mut commits, mut lost) = (0, 0);
    while let Some(done) = writing.join_next().await {
        let (name, last, count) = done?;
        commits += count;
        let found = first.get_workspace(v1::GetWorkspaceRequest { name: format!("workspaces/{name}") }).await?;
        let head = found.into_inner().workspace.map(|workspace| workspace.head).unwrap_or_default();
        lost += u64::from(count > 0 && head != last);
    }
    let errors = errors.load(Ordering::Relaxed);
    Ok(OpenLoop { reads: Samples::new(reads), commits, errors, lost, memory: (early, late) })
}

fn run_idle(bench: &mut Bench, runtime: &tokio::runtime::Runtime) -> Result<()> {
    let directory = bench.directory("idle");
    let (count, reads) = (bench.size(10_000, 500), bench.size(5_000, 300));
    let served = runtime.block_on(Served::start(&directory))?;
    let found = runtime.block_on(async {
        let channels = channels(&served).await?;
        let key = served.with_key()?;
        let mut client = WorkspaceServiceClient::with_interceptor(served.connect().await?, key.clone());
        client.create_workspace(create("main")).await?;
        let without = read_times(&mut client, reads).await?;
        let before = megabytes()?;
        let position = position(&channels[0], &key).await?;
        // One caller may have 4,096 streams.
        let mut keys = Vec::with_capacity(AGENTS);
        for number in 0..AGENTS {
            keys.push(served.with_key_of(&format!("agent-{number}")).await?);
        }
        let mut open = Vec::with_capacity(count);
        for number in 0..count {
            open.push(subscribe(&channels[number % CONNECTIONS], &keys[number % AGENTS], position).await?);
        }
        let memory = megabytes()? - before;
        let with = read_times(&mut client, reads).await?;
        drop(open);
        Ok::<_, BoxedError>((without, with, memory))
    });
    runtime.block_on(served.stop())?;
    let (without, with, memory) = found?;
    let how = format!("{count} streams of {AGENTS} agents on {CONNECTIONS} connections, server and clients together");
    bench.add(FIGURES[3], (memory, "MB"), Bar::AtMost(500.0), how);
    let how = format!("GetWorkspace: {}; without {}", with.describe("us"), without.describe("us"));
    bench.add(FIGURES[4], (with.p50() / without.p50(), "times"), Bar::AtMost(1.2), how.clone());
    bench.add(FIGURES[5], (with.p99() / without.p99(), "times"), Bar::AtMost(2.0), how);
    Ok(())
}

fn run_subscribers(bench: &mut Bench, runtime: &tokio::runtime::Runtime) -> Result<()> {
    let directory = bench.directory("subscribers");
    let (count, commits) = (bench.size(1_000, 50), bench.size(300, 10));
    let served = runtime.block_on(Served::start(&directory))?;
    let found = runtime.block_on(async {
        let channels = channels(&served).await?;
        let key = served.with_key()?;
        let mut workspaces = WorkspaceServiceClient::with_interceptor(served.connect().await?, key.clone());
        workspaces.create_workspace(create("main")).await?;
        let position = position(&channels[0], &key).await?;
        let begin = Instant::now();
        let mut subscribers = JoinSet::new();
        for number in 0..count {
            let mut stream = subscribe(&channels[number % CONNECTIONS], &key, position).await?;
            subscribers.spawn(async move {
                let (mut arrived, mut bytes) = (Vec::with_capacity(commits), 0);
                while arrived.len() < commits {
                    let Some(message) = stream.message().await? else { break };
                    if message.event.is_none() {
                        continue;
                    }
                    arrived.push(begin.elapsed());
                    bytes = message.encoded_len() + FRAMING_BYTES;
                }
                Ok::<_, tonic::Status>((arrived, bytes))
            });
        }
        let mut client = FileServiceClient::with_interceptor(served.connect().await?, key);
        let mut acknowledged = Vec::with_capacity(commits);
        let start = Instant::now();
        for number in 0..commits {
            tokio::time::sleep_until((start + Duration::from_millis(100) * u32::try_from(number)?).into()).await;
            client.commit_edits(edit("main", number as u64)).await?;
            acknowledged.push(begin.elapsed());
        }
        let (mut late, mut bytes) = (Vec::new(), 0);
        while let Some(done) = subscribers.join_next().await {
            let (arrived, size) = done??;
            if arrived.len() != commits {
                return Err(format!("{} of {commits} events arrived", arrived.len()).into());
            }
            bytes = bytes.max(size);
            let waited = arrived.iter().zip(&acknowledged).map(|(arrived, sent)| arrived.saturating_sub(*sent));
            late.extend(waited.map(|waited| waited.as_secs_f64() * 1e3));
        }
        Ok::<_, BoxedError>((Samples::new(late), bytes))
    });
    runtime.block_on(served.stop())?;
    let (late, bytes) = found?;
    let how = format!("10 commits a second, from the commit's answer to each subscriber; {}", late.describe("ms"));
    bench.add(FIGURES[6], (late.p99(), "ms"), Bar::AtMost(50.0), how);
    #[allow(clippy::cast_precision_loss, reason = "sizes fit")]
    bench.add(FIGURES[7], (bytes as f64, "B"), Bar::AtMost(150.0), "compact, with framing, the largest".to_owned());
    Ok(())
}

async fn channels(served: &Served) -> Result<Vec<Channel>> {
    let mut channels = Vec::with_capacity(CONNECTIONS);
    for _ in 0..CONNECTIONS {
        channels.push(served.connect().await?);
    }
    Ok(channels)
}

/// The number of the last operation.
async fn position(channel: &Channel, key: &WithKey) -> Result<u64> {
    let mut client = OperationServiceClient::with_interceptor(channel.clone(), key.clone());
    let request = v1::ListOperationsRequest { page_size: 1, ..Default::default() };
    let found = client.list_operations(request).await?.into_inner();
    Ok(found.operations.first().map_or(0, |operation| operation.sequence))
}

async fn subscribe(channel: &Channel, key: &WithKey, after: u64) -> Result<tonic::Streaming<v1::SubscribeResponse>> {
    let mut client = EventServiceClient::with_interceptor(channel.clone(), key.clone());
    let request = v1::SubscribeRequest { after: after.to_string(), compact: true, ..Default::default() };
    let mut stream = client.subscribe(request).await?.into_inner();
    // The first message tells where the stream begins.
    stream.message().await?.ok_or("a stream ended at once")?;
    Ok(stream)
}

async fn read_times(client: &mut WorkspaceServiceClient<Intercepted>, times: usize) -> Result<Samples> {
    let mut values = Vec::with_capacity(times);
    for _ in 0..times {
        let start = Instant::now();
        client.get_workspace(v1::GetWorkspaceRequest { name: "workspaces/main".to_owned() }).await?;
        values.push(microseconds(start.elapsed()));
    }
    Ok(Samples::new(values))
}

fn create(name: &str) -> v1::CreateWorkspaceRequest {
    v1::CreateWorkspaceRequest { workspace_id: name.to_owned(), ..Default::default() }
}

#[allow(clippy::cast_precision_loss, reason = "counts fit")]
fn fraction(part: usize, whole: usize) -> f64 {
    part as f64 / whole as f64
}

#[allow(clippy::cast_precision_loss, reason = "memory in bytes fits")]
fn megabytes() -> Result<f64> {
    Ok(resident_bytes()? as f64 / 1e6)
}
