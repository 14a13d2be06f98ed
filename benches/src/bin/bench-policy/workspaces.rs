//! Many open workspaces: the radar after one more edit, and followers of a source with one changed file.

use std::time::Instant;

use amalgam_benches::bench::Bench;
use amalgam_benches::machine::peak_memory_bytes;
use amalgam_benches::trees::{Plan, Shape, reference};
use amalgam_benches::{Bar, Result, Samples, microseconds};
use amalgam_engine::workspace::{Change, NewWorkspace, WorkspaceName, Workspaces};
use amalgam_engine::{OperationContext, Time};
use amalgam_proto::v1;
use amalgam_proto::v1::follow_service_client::FollowServiceClient;
use amalgam_proto::v1::radar_service_client::RadarServiceClient;
use amalgam_server::{Home, Service};

const RADAR: &str = "radar: one more edit among 1,000 workspaces";
const MEMORY: &str = "radar: memory of 1,000 workspaces";
const FOLLOW: &str = "following: one changed file among 1 M, 100 followers, each";

pub(crate) const FIGURES: &[&str] = &[RADAR, MEMORY, FOLLOW];

/// Paths that each workspace changes.
const PATHS_EACH: usize = 100;

fn now() -> Time {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    Time(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}

fn act() -> OperationContext {
    OperationContext::new("bench", now()).buffered()
}

fn name(name: impl Into<String>) -> Result<WorkspaceName> {
    Ok(WorkspaceName::new(name)?)
}

fn edit(workspaces: &Workspaces, workspace: &WorkspaceName, paths: &[String], text: &str) -> Result<()> {
    let mut tree = workspaces.open(workspace)?;
    for path in paths {
        tree.write(path.as_str(), text.as_bytes())?;
    }
    workspaces.commit(workspace, &mut tree, &Change::new("edit"), &act())?;
    Ok(())
}

/// A service with a workspace `main` of this many files, and forks of it.
fn service(bench: &Bench, place: &str, files: usize, forks: usize) -> Result<(Service, Vec<WorkspaceName>)> {
    let home = Home::new(bench.directory(place).join("home"));
    let service = Service::open(&home, now, &[]).map_err(|error| error.to_string())?;
    let store = service.store();
    let (_, snapshot) = Plan { shape: Shape::Nested, files: files as u64 }.build(store, &reference("head/built"))?;
    let workspaces = Workspaces::of(store);
    let main = name("main")?;
    workspaces.create(&main, &NewWorkspace { from: Some(snapshot), ..NewWorkspace::default() }, &act())?;
    let forks = (0..forks).map(|number| name(format!("agent-{number}"))).collect::<Result<Vec<_>>>()?;
    workspaces.fork(&main, &forks, &act())?;
    Ok((service, forks))
}

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    radar(bench, &runtime)?;
    following(bench, &runtime)
}

fn radar(bench: &mut Bench, runtime: &tokio::runtime::Runtime) -> Result<()> {
    eprintln!("radar");
    let (count, times) = bench.size((1_000, 200), (20, 5));
    let (service, forks) = service(bench, "radar", 1_000, count)?;
    let workspaces = Workspaces::of(service.store());
    for (number, fork) in forks.iter().enumerate() {
        let own = (0..PATHS_EACH - 1).map(|path| format!("own-{number}-{path}"));
        let paths: Vec<_> = own.chain([format!("shared-{}", number / 2)]).collect();
        edit(&workspaces, fork, &paths, &format!("{number}"))?;
    }
    let before = peak_memory_bytes()?;
    let channel = runtime.block_on(amalgam_server::serve::in_process(service))?;
    let mut client = RadarServiceClient::new(channel);
    let all = v1::GetRadarRequest { paths_only: true, page_size: 1, ..Default::default() };
    runtime.block_on(client.get_radar(all))?;
    let memory = peak_memory_bytes()?.saturating_sub(before);
    let mut taken = Vec::new();
    for round in 0..times {
        let fork = &forks[round % forks.len()];
        edit(&workspaces, fork, &[format!("shared-{}", round % forks.len() / 2)], &format!("round {round}"))?;
        let workspace = amalgam_proto::workspace_name(fork);
        let request = v1::GetRadarRequest { workspace, paths_only: true, ..Default::default() };
        let start = Instant::now();
        let found = runtime.block_on(client.get_radar(request))?.into_inner();
        taken.push(microseconds(start.elapsed()));
        if found.overlaps.len() != 1 {
            return Err(format!("{} overlaps instead of one", found.overlaps.len()).into());
        }
    }
    let taken = Samples::new(taken);
    let how = format!("{count} workspaces with {PATHS_EACH} paths each, by call: {}", taken.describe("us"));
    bench.add(RADAR, (taken.p50() / 1e3, "ms"), Bar::AtMost(1.0), how);
    let how = format!("growth of the peak by the first look at {count} workspaces with {PATHS_EACH} paths each");
    bench.add(MEMORY, (memory as f64 / 1e6, "MB"), Bar::AtMost(100.0), how);
    Ok(())
}

fn following(bench: &mut Bench, runtime: &tokio::runtime::Runtime) -> Result<()> {
    eprintln!("following");
    let (files, count, rounds) = bench.size((1_000_000, 100, 3), (1_000, 5, 2));
    let (service, forks) = service(bench, "following", files, count)?;
    let workspaces = Workspaces::of(service.store());
    let channel = runtime.block_on(amalgam_server::serve::in_process(service))?;
    let mut client = FollowServiceClient::new(channel);
    for (number, fork) in forks.iter().enumerate() {
        // Half of them have changes of their own, so that the update is a merge.
        if number % 2 == 0 {
            edit(&workspaces, fork, &[format!("own-{number}")], "own")?;
        }
        let source = v1::follow_source_request::Source::SourceWorkspace("workspaces/main".to_owned());
        let request = v1::FollowSourceRequest {
            workspace: amalgam_proto::workspace_name(fork),
            source: Some(source),
            every_seconds: 3_600,
            ..Default::default()
        };
        runtime.block_on(client.follow_source(request))?;
    }
    let mut taken = Vec::new();
    for round in 0..rounds {
        edit(&workspaces, &name("main")?, &["changed".to_owned()], &format!("{round}"))?;
        for fork in &forks {
            let workspace = amalgam_proto::workspace_name(fork);
            let request = v1::UpdateFollowerRequest { workspace, ..Default::default() };
            let start = Instant::now();
            let done = runtime.block_on(client.update_follower(request))?.into_inner();
            taken.push(microseconds(start.elapsed()));
            let update = done.update.ok_or("no update")?;
            if (update.synced, update.total) != (1, 1) {
                return Err(format!("{} of {} files were synced", update.synced, update.total).into());
            }
        }
    }
    let taken = Samples::new(taken);
    let how = format!("{files} files, {count} followers, {rounds} rounds: {}", taken.describe("us"));
    bench.add(FOLLOW, (taken.p99() / 1e3, "ms"), Bar::AtMost(50.0), how);
    Ok(())
}
