//! Mounts that several callers make and remove at the same time.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use amalgam_proto::v1;
use amalgam_proto::v1::mount_service_client::MountServiceClient;

use super::{Caller, Line, OnSocket, Who};

const CALLERS: usize = 4;
const MOUNTS_PER_CALLER: usize = 60;

fn can_mount() -> bool {
    let device = std::fs::File::options().read(true).write(true).open("/dev/fuse");
    let can = rustix::process::geteuid().is_root() && device.is_ok();
    amalgam_test_support::has_or_skip("fuse", can, "mounting needs root and /dev/fuse here")
}

fn is_mounted(path: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("the table");
    table.lines().any(|line| line.split(' ').nth(4) == path.to_str())
}

async fn mount_and_unmount(mut mounts: MountServiceClient<Line>, workspace: String, path: &Path) {
    let at = path.to_str().expect("text").as_bytes().to_vec();
    for number in 0..MOUNTS_PER_CALLER {
        let name = format!("workspaces/{workspace}");
        let request = v1::MountRequest { workspace: name, path: at.clone().into(), ..Default::default() };
        mounts.mount(request).await.expect("mounted");
        assert!(is_mounted(path), "mount {number}");
        let target = Some(v1::unmount_request::Target::Path(at.clone().into()));
        mounts.unmount(v1::UnmountRequest { target, ..Default::default() }).await.expect("unmounted");
        assert!(!is_mounted(path), "mount {number} of {workspace} is still there after a successful unmount");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_unmount_removes_the_mount_although_others_are_made_and_listed_meanwhile() {
    if !can_mount() {
        return;
    }
    let around = tempfile::tempdir().expect("a directory");
    let server = OnSocket::start(around.path()).await;
    let channel = server.connect().await;
    let client = || MountServiceClient::with_interceptor(channel.clone(), Who("ada"));
    let mut caller = Caller::new(&channel, "ada");
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..CALLERS {
        let (workspace, path) = (format!("try-{number}"), around.path().join(format!("at-{number}")));
        caller.create(&workspace, "").await.expect("created");
        let mounts = client();
        tasks.spawn(async move { mount_and_unmount(mounts, workspace, &path).await });
    }
    let is_over = std::sync::Arc::new(AtomicBool::new(false));
    let lists = (0..CALLERS).map(|_| {
        let (mut mounts, is_over) = (client(), std::sync::Arc::clone(&is_over));
        tokio::spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                mounts.list_mounts(v1::ListMountsRequest::default()).await.expect("a list");
            }
        })
    });
    let lists: Vec<_> = lists.collect();
    let done = tasks.join_all().await;
    is_over.store(true, Ordering::Relaxed);
    for list in lists {
        list.await.expect("listed");
    }
    assert_eq!(done.len(), CALLERS);
    server.end().await;
}
