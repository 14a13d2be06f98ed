//! Two clients of NFS and a FUSE mount on one live tree.

use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use amalgam_engine::object::Owner;
use amalgam_engine::workspace::{Change, NewWorkspace, WorkspaceName, Workspaces};
use amalgam_engine::{OperationContext, Store, Time};
use amalgam_fuse::{Mount, MountOptions};
use amalgam_nfs::client::{Client, Reply};
use amalgam_nfs::{ExportSpec, Exports, Server, ServerOptions};
use amalgam_tests::harness::mounting::can_mount;
use amalgam_view::{View, ViewOptions};
use nfs3_types::nfs3::*;
use nfs3_types::xdr_codec::Opaque;

#[expect(clippy::disallowed_methods, reason = "what is mounted shows the time that it is")]
fn now() -> Time {
    Time::from(SystemTime::now())
}

fn look(client: &mut Client, directory: &nfs_fh3, name: &str) -> Option<(nfs_fh3, fattr3)> {
    let what = diropargs3 { dir: directory.clone(), name: filename3(Opaque::borrowed(name.as_bytes())) };
    let reply: Reply<LOOKUP3res> = client.nfs(NFS_PROGRAM::NFSPROC3_LOOKUP, &LOOKUP3args { what }).expect("answered");
    match reply.result() {
        Nfs3Result::Ok(found) => Some((found.object, found.obj_attributes.unwrap())),
        Nfs3Result::Err((nfsstat3::NFS3ERR_NOENT, _)) => None,
        Nfs3Result::Err((status, _)) => panic!("{name}: {status}"),
    }
}

fn write(client: &mut Client, file: &nfs_fh3, offset: u64, data: &[u8]) {
    let (count, stable) = (data.len() as u32, stable_how::UNSTABLE);
    let arguments = WRITE3args { file: file.clone(), offset, count, stable, data: Opaque::borrowed(data) };
    let reply: Reply<WRITE3res> = client.nfs(NFS_PROGRAM::NFSPROC3_WRITE, &arguments).expect("answered");
    assert_eq!(reply.result().unwrap().count, count);
}

fn read(client: &mut Client, file: &nfs_fh3) -> Vec<u8> {
    let arguments = READ3args { file: file.clone(), offset: 0, count: 1 << 20 };
    let reply: Reply<READ3res<'_>> = client.nfs(NFS_PROGRAM::NFSPROC3_READ, &arguments).expect("answered");
    reply.result().unwrap().data.into_owned()
}

/// The kernel is told by a thread of its own.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn two_clients_of_nfs_and_a_mount_share_one_live_tree() {
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().expect("a directory");
    let workspaces = Workspaces::of(&Store::in_memory());
    let name = WorkspaceName::new("main").expect("a name");
    workspaces.create(&name, &NewWorkspace::default(), &OperationContext::new("test", now())).expect("a workspace");
    let tree = workspaces.open(&name).expect("a tree");
    let options = ViewOptions::new(Owner { uid: 0, gid: 0 }, now);
    let (view, _) = View::open(tree, &scratch.path().join("journal"), options).expect("a view");
    view.keep_handles().expect("handles");
    let at = scratch.path().join("mount");
    std::fs::create_dir(&at).expect("made");
    let mount = Mount::at(&view, &at, &MountOptions::default()).expect("mounted");
    let exports = Exports::new([1; 32]);
    exports.add(ExportSpec::new("/p/w", (0, 0)), Arc::new(view.clone())).expect("exported");
    let listener = amalgam_nfs::listen("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let server = Server::start(listener, Arc::new(exports), &ServerOptions::new(now)).expect("a server");
    let mut clients = [(); 2].map(|()| Client::connect(server.address()).expect("connected"));
    let root = clients[0].root("/p/w").expect("answered").expect("mounted");

    std::fs::write(at.join("f"), b"by the kernel").expect("written");
    let (file, _) = look(&mut clients[0], &root, "f").expect("found");
    assert_eq!(look(&mut clients[1], &root, "f").expect("found").0, file);
    assert_eq!(read(&mut clients[1], &file), b"by the kernel");

    let open = std::fs::File::options().read(true).write(true).open(at.join("f")).expect("opened");
    write(&mut clients[0], &file, 0, b"BY");
    write(&mut clients[1], &file, 13, b", and by NFS");
    let expected = b"BY the kernel, and by NFS";
    eventually("the mount shows what clients of NFS wrote", || {
        let mut found = vec![0; 100];
        open.read_at(&mut found, 0).is_ok_and(|count| found[..count] == expected[..])
    });
    open.write_all_at(b"by", 0).expect("written");
    assert_eq!(read(&mut clients[0], &file), b"by the kernel, and by NFS");

    let committed = workspaces_commit(&view, &workspaces, &name);
    std::fs::rename(at.join("f"), at.join("g")).expect("renamed");
    assert!(look(&mut clients[0], &root, "f").is_none());
    assert_eq!(look(&mut clients[1], &root, "g").expect("found").0, file);
    std::fs::remove_file(at.join("g")).expect("removed");
    assert_eq!(read(&mut clients[1], &file), b"by the kernel, and by NFS", "a client had it open");

    view.restore(committed, Some(committed)).expect("gone back");
    let (back, _) = look(&mut clients[0], &root, "f").expect("a rollback is seen");
    assert_eq!(read(&mut clients[0], &back), b"by the kernel, and by NFS");
    eventually("by the mount, too", || std::fs::read(at.join("f")).is_ok_and(|bytes| bytes.len() == 25));
    drop(open);
    server.stop(Duration::from_secs(5));
    mount.unmount().expect("unmounted");
}

fn workspaces_commit(view: &View, workspaces: &Workspaces, name: &WorkspaceName) -> amalgam_engine::SnapshotId {
    let act = OperationContext::new("test", now());
    view.commit(workspaces, name, &Change::new("x"), &act, "commit").expect("committed").snapshot
}
