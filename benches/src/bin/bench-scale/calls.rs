//! Calls of the API, as the command makes them.

use std::os::unix::ffi::OsStrExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use amalgam_benches::bench::Bench;
use amalgam_benches::{Bar, Result, Samples, microseconds};
use amalgam_engine::workspace::{Change, Workspaces};
use amalgam_proto::v1;
use amalgam_proto::v1::collection_service_client::CollectionServiceClient;
use amalgam_proto::v1::directory_service_client::DirectoryServiceClient;
use amalgam_proto::v1::merge_service_client::MergeServiceClient;
use amalgam_proto::v1::operation_service_client::OperationServiceClient;
use amalgam_proto::v1::snapshot_service_client::SnapshotServiceClient;
use amalgam_proto::v1::workspace_service_client::WorkspaceServiceClient;
use tonic::transport::Channel;

use crate::CALLS;
use crate::grown::{Grown, act};

pub const TIMES: usize = 300;
const WARM_UP: usize = 30;

/// Clients of one service.
pub struct Calls {
    pub snapshots: SnapshotServiceClient<Channel>,
    pub operations: OperationServiceClient<Channel>,
    collections: CollectionServiceClient<Channel>,
    directories: DirectoryServiceClient<Channel>,
    workspaces: WorkspaceServiceClient<Channel>,
    merges: MergeServiceClient<Channel>,
    directory: String,
}

/// How long each of the calls took, in their order.
pub struct Times(pub Vec<Samples>);

impl Times {
    pub fn describe(&self) -> String {
        let each = CALLS.iter().zip(&self.0).map(|(name, times)| format!("{name} {:.0} us", times.p50()));
        each.collect::<Vec<_>>().join(", ")
    }
}

impl Calls {
    /// Connects to the service, and gives it a directory with two files.
    pub async fn connect(grown: &Grown) -> Result<Self> {
        let channel = amalgam_server::serve::in_process(grown.service.clone()).await?;
        let mut directories = DirectoryServiceClient::new(channel.clone());
        let path = grown.directory.join("project");
        std::fs::create_dir_all(&path)?;
        std::fs::write(path.join("one"), "one")?;
        std::fs::write(path.join("two"), "two")?;
        let request = v1::AttachDirectoryRequest {
            path: bytes::Bytes::copy_from_slice(path.as_os_str().as_bytes()),
            workspace_id: "project".to_owned(),
            ..v1::AttachDirectoryRequest::default()
        };
        let attached = directories.attach_directory(request).await?.into_inner();
        let directory = attached.directory.ok_or("no directory was attached")?.name;
        let request = v1::CaptureDirectoryRequest {
            name: directory.clone(),
            message: "first".to_owned(),
            ..v1::CaptureDirectoryRequest::default()
        };
        let mut stream = directories.capture_directory(request).await?.into_inner();
        while stream.message().await?.is_some() {}
        Ok(Self {
            snapshots: SnapshotServiceClient::new(channel.clone()),
            operations: OperationServiceClient::new(channel.clone()),
            collections: CollectionServiceClient::new(channel.clone()),
            directories,
            workspaces: WorkspaceServiceClient::new(channel.clone()),
            merges: MergeServiceClient::new(channel),
            directory,
        })
    }

    /// The call with this number.
    async fn call(&self, number: usize) -> Result<()> {
        let workspace = "workspaces/main".to_owned();
        match number {
            0 => {
                let request =
                    v1::ListSnapshotsRequest { workspace, page_size: 1, ..v1::ListSnapshotsRequest::default() };
                self.snapshots.clone().list_snapshots(request).await?;
            }
            1 => {
                let request = v1::GetSnapshotRequest { revision: "@".to_owned(), workspace };
                self.snapshots.clone().get_snapshot(request).await?;
            }
            2 => {
                let request = v1::DetectChangesRequest { name: self.directory.clone(), parts: true };
                let mut stream = self.directories.clone().detect_changes(request).await?.into_inner();
                // As the command does: the answer is all that it waits for.
                while let Some(message) = stream.message().await? {
                    if matches!(message.event, Some(v1::detect_changes_response::Event::Status(_))) {
                        break;
                    }
                }
            }
            3 => {
                self.workspaces.clone().list_workspaces(v1::ListWorkspacesRequest::default()).await?;
            }
            _ => {
                self.merges.clone().list_queue(v1::ListQueueRequest::default()).await?;
            }
        }
        Ok(())
    }

    /// Makes each call again and again, in turns.
    pub async fn measure(&self) -> Result<Times> {
        let mut times = vec![Vec::new(); CALLS.len()];
        for round in 0..WARM_UP + TIMES {
            for (number, times) in times.iter_mut().enumerate() {
                let begun = Instant::now();
                self.call(number).await?;
                if round >= WARM_UP {
                    times.push(microseconds(begun.elapsed()));
                }
            }
        }
        Ok(Times(times.into_iter().map(Samples::new).collect()))
    }

    /// What looks at the whole store: `du`, the plan of retention, a collection and commits beside it.
    pub async fn measure_whole(&self, bench: &mut Bench, grown: &Grown, made: &str) -> Result<()> {
        let store = self.usage(None).await?;
        let first = self.usage(Some("agent/000002")).await?;
        let again = self.usage(Some("agent/000003")).await?;
        let how = format!(
            "after another `du` on a store that has not changed since; the first one, which looks at all names, took {first:.2} s; {made}"
        );
        bench.add("du of one workspace", (again, "s"), Bar::AtMost(0.2), how);
        bench.add("du of the store", (store, "s"), Bar::AtMost(10.0), made.to_owned());
        let begun = Instant::now();
        let mut stream =
            self.collections.clone().plan_collection(v1::PlanCollectionRequest::default()).await?.into_inner();
        let mut planned = 0;
        while let Some(part) = stream.message().await? {
            planned += part.snapshots.len();
        }
        let how = format!("`gc --plan`, {planned} snapshots; {made}");
        bench.add("retention plan", (begun.elapsed().as_secs_f64(), "s"), Bar::AtMost(5.0), how);
        // What there is to free goes first.
        self.collect().await?;
        let is_done = AtomicBool::new(false);
        let (took, times) = std::thread::scope(|scope| -> Result<_> {
            let commits = scope.spawn(|| commit_until(grown, &is_done));
            let begun = Instant::now();
            let collected = futures_block(self.collect());
            let took = begun.elapsed();
            is_done.store(true, Ordering::Relaxed);
            collected?;
            Ok((took, commits.join().map_err(|_| "the committer panicked")??))
        })?;
        let how = format!("with buffered commits beside it, one every millisecond; {made}");
        bench.add("collection with nothing to free", (took.as_secs_f64(), "s"), Bar::AtMost(15.0), how);
        let how = format!("buffered commits of one small file: {}; {made}", times.describe("us"));
        bench.add("commit beside a collection, p99", (times.p99() / 1e3, "ms"), Bar::AtMost(10.0), how);
        Ok(())
    }

    async fn usage(&self, workspace: Option<&str>) -> Result<f64> {
        use v1::measure_usage_request::Target;
        let target = workspace.map(|name| Target::Workspace(format!("workspaces/{name}")));
        let begun = Instant::now();
        let request = v1::MeasureUsageRequest { target, ..v1::MeasureUsageRequest::default() };
        let mut stream = self.collections.clone().measure_usage(request).await?.into_inner();
        while stream.message().await?.is_some() {}
        Ok(begun.elapsed().as_secs_f64())
    }

    async fn collect(&self) -> Result<()> {
        let mut stream = self.collections.clone().collect_store(v1::CollectStoreRequest::default()).await?.into_inner();
        while stream.message().await?.is_some() {}
        Ok(())
    }
}

/// Waits for something on a thread of the runtime that may wait.
fn futures_block<T>(future: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(future))
}

fn commit_until(grown: &Grown, is_done: &AtomicBool) -> Result<Samples> {
    let workspaces = Workspaces::of(grown.store());
    let name = crate::grown::main_name();
    let (mut tree, mut times, mut round) = (workspaces.open(&name)?, Vec::new(), 0_u64);
    while !is_done.load(Ordering::Relaxed) || times.len() < 100 {
        round += 1;
        tree.write(format!("d0/f{}", round % 40), &round.to_le_bytes())?;
        let begun = Instant::now();
        workspaces.commit(&name, &mut tree, &Change::new("beside"), &act())?;
        times.push(microseconds(begun.elapsed()));
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(Samples::new(times))
}
