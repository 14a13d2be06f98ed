//! Exports: who may mount what, as whom.

use std::sync::Arc;

use amalgam_engine::object::Owner;
use amalgam_nfs::client::Client;
use amalgam_nfs::{Credentials, ExportSpec, Exports, MountChange, Network};
use amalgam_view::{Caller, ROOT, View, ViewOptions};
use nfs3_types::mount::{MOUNT_PROGRAM, exports, mountstat3};
use nfs3_types::nfs3::*;
use nfs3_types::xdr_codec::Void;

use crate::kit::{Ask as _, Home, Kit, OWNER, PATH, at, call, mode, now, options, serve, spec};

fn is_refused(client: &mut Client, path: &str) -> bool {
    matches!(client.root(path).expect("answered"), Err(mountstat3::MNT3ERR_NOENT))
}

#[test]
fn only_exported_paths_are_mounted() {
    let mut kit = Kit::new();
    for path in ["", "/", "/p", "/p/w/..", "/../../etc", "/etc", "/p/w/x", "//p/w", "/p/./w", "/P/W", "p/w", "/p/w\0"] {
        assert!(is_refused(&mut kit.client, path), "{path:?}");
    }
    assert!(!is_refused(&mut kit.client, "/p/w/"), "a slash at the end is nothing");
    let up = kit.client.look(&kit.root.clone(), "..").expect("found");
    assert_eq!(up, kit.root, "there is nothing above the root");
    let directory = kit.client.make_directory(&kit.root.clone(), "d").expect("made");
    assert_eq!(kit.client.look(&directory, "..").expect("found"), kit.root);
    assert_eq!(kit.client.look(&directory, ".").expect("found"), directory);
    for name in ["", "a/b", "../x", "/etc", "a\0b"] {
        assert_eq!(kit.client.look(&directory, name), Err(nfsstat3::NFS3ERR_INVAL), "{name:?}");
        assert_eq!(kit.client.make(&directory, name).map(drop), Err(nfsstat3::NFS3ERR_INVAL), "{name:?}");
    }
    for name in [".", ".."] {
        assert_eq!(kit.client.make(&directory, name).map(drop), Err(nfsstat3::NFS3ERR_EXIST));
        assert!(kit.client.remove(&directory, name).is_err());
        assert!(kit.client.remove_directory(&directory, name).is_err());
        assert!(kit.client.rename((&directory, name), (&directory, "x")).is_err());
    }
}

#[test]
fn a_secret_component_is_needed_and_never_listed() {
    let spec = ExportSpec { secret: Some("Xy7".to_owned()), ..spec() };
    let mut kit = Kit::with(spec, &options());
    for path in [PATH, "/p/w/", "/p/w/Xy", "/p/w/xy7", "/p/w/Xy77", "/p/w/Xy7/x"] {
        assert!(is_refused(&mut kit.client, path), "{path}");
    }
    let all: exports<'_, '_> = kit.client.mount(MOUNT_PROGRAM::MOUNTPROC3_EXPORT, &Void).expect("listed").result();
    assert_eq!(all.0[0].ex_dir.0.as_ref(), PATH.as_bytes());
    let mounts: nfs3_types::mount::mountlist<'_, '_> =
        kit.client.mount(MOUNT_PROGRAM::MOUNTPROC3_DUMP, &Void).expect("listed").result();
    assert_eq!(mounts.0[0].ml_directory.0.as_ref(), PATH.as_bytes());
    // Another secret makes the handles of the old one worthless.
    let exports = Arc::clone(kit.server.exports());
    assert!(exports.remove(PATH));
    assert_eq!(kit.client.attributes(&kit.root.clone()).expect_err("removed"), nfsstat3::NFS3ERR_STALE);
    let spec = ExportSpec { secret: Some("other".to_owned()), ..crate::kit::spec() };
    exports.add(spec, Arc::new(kit.home.view.clone())).expect("exported");
    assert_eq!(kit.client.attributes(&kit.root.clone()).expect_err("of the old one"), nfsstat3::NFS3ERR_STALE);
    assert!(!is_refused(&mut kit.client, "/p/w/other"));
}

#[test]
fn hosts_that_are_not_allowed_cannot_mount_nor_use_handles() {
    let mut kit = Kit::new();
    let exports = Arc::clone(kit.server.exports());
    assert!(exports.remove(PATH));
    let allow: Vec<Network> = vec!["192.0.2.0/24".parse().expect("a network")];
    exports.add(ExportSpec { allow, ..spec() }, Arc::new(kit.home.view.clone())).expect("exported");
    assert!(is_refused(&mut kit.client, PATH));
    assert_eq!(kit.client.attributes(&kit.root.clone()).expect_err("from here"), nfsstat3::NFS3ERR_ACCES);
    let all: nfs3_types::mount::exports<'_, '_> =
        kit.client.mount(MOUNT_PROGRAM::MOUNTPROC3_EXPORT, &Void).expect("listed").result();
    assert!(all.0.is_empty());
}

#[test]
fn handles_of_one_export_are_of_no_use_for_another() {
    let mut kit = Kit::new();
    let other = Home::new();
    kit.server.exports().add(ExportSpec::new("/p/v", (OWNER, OWNER)), Arc::new(other.view)).expect("exported");
    let ours = kit.root.clone();
    let theirs = kit.client.root("/p/v").expect("answered").expect("mounted");
    kit.client.make(&ours, "f").expect("made");
    kit.client.make_directory(&theirs, "d").expect("made");
    assert_eq!(kit.client.look(&theirs, "f"), Err(nfsstat3::NFS3ERR_NOENT));
    assert_eq!(kit.client.rename((&ours, "f"), (&theirs, "f")), Err(nfsstat3::NFS3ERR_XDEV));
    // The number of one export in the handle of the other.
    let mut mixed = ours.data.to_vec();
    mixed[1..9].copy_from_slice(&theirs.data[1..9]);
    let mixed = nfs_fh3 { data: mixed.into() };
    assert_eq!(kit.client.attributes(&mixed).expect_err("mixed"), nfsstat3::NFS3ERR_BADHANDLE);
}

#[test]
fn read_only_exports_refuse_every_change() {
    let mut kit = Kit::new();
    let root = kit.root.clone();
    let file = kit.client.make(&root, "f").expect("made");
    kit.client.put(&file, 0, b"x", stable_how::UNSTABLE).expect("written");
    let snapshot = kit.home.commit();
    let snapshot_view = View::of_snapshot(
        kit.home.workspaces.store(),
        snapshot,
        ViewOptions::new(Owner { uid: OWNER, gid: OWNER }, now),
    );
    let snapshot_view = snapshot_view.expect("a view");
    snapshot_view.keep_handles_at(&kit.home.scratch().join("snapshot-handles")).expect("handles");
    let live = kit.home.view.clone();
    for (view, read_only) in [(&live, true), (&snapshot_view, false)] {
        let server = serve(view, ExportSpec { read_only, ..spec() }, &options());
        let mut client = Client::connect(server.address()).expect("connected");
        let root = client.root(PATH).expect("answered").expect("mounted");
        let file = client.look(&root, "f").expect("found");
        assert_eq!(client.get(&file, 0, 10), Ok((b"x".to_vec(), true)));
        let refused = nfsstat3::NFS3ERR_ROFS;
        assert_eq!(client.put(&file, 0, b"y", stable_how::UNSTABLE).map(drop), Err(refused));
        assert_eq!(client.make(&root, "g").map(drop), Err(refused));
        assert_eq!(client.make_directory(&root, "d").map(drop), Err(refused));
        assert_eq!(client.remove(&root, "f"), Err(refused));
        assert_eq!(client.rename((&root, "f"), (&root, "g")), Err(refused));
        assert_eq!(client.set(&file, mode(0o600)), Err(refused));
        let wanted = ACCESS3_READ | ACCESS3_MODIFY | ACCESS3_EXTEND;
        let access: Result<ACCESS3resok, (_, ACCESS3resfail)> =
            call(&mut client, NFS_PROGRAM::NFSPROC3_ACCESS, &ACCESS3args { object: file, access: wanted });
        assert_eq!(access.expect("answered").access, ACCESS3_READ);
    }
}

#[test]
fn everybody_is_the_owner_unless_hosts_are_trusted() {
    let owner = |credentials| {
        let mut kit = Kit::with(ExportSpec { credentials, ..spec() }, &options());
        let root = kit.root.clone();
        kit.home
            .view
            .set_attributes(
                &Caller::owner(OWNER, OWNER),
                ROOT,
                &amalgam_view::SetAttributes { mode: Some(0o1777), ..Default::default() },
            )
            .expect("everybody may write");
        let mut made = Vec::new();
        for (uid, gid) in [(OWNER, OWNER), (0, 0), (2_000, 2_001)] {
            kit.client.act_as(uid, gid, &[]);
            let file = kit.client.make(&root, &format!("by{uid}")).expect("made");
            let found = kit.client.attributes(&file).expect("attributes");
            made.push((found.uid, found.gid));
        }
        made
    };
    assert_eq!(owner(Credentials::Owner), [(OWNER, OWNER); 3]);
    let nobody = 65_534;
    assert_eq!(owner(Credentials::Trusted { squash_root: true }), [(OWNER, OWNER), (nobody, nobody), (2_000, 2_001)]);
    assert_eq!(owner(Credentials::Trusted { squash_root: false }), [(OWNER, OWNER), (0, 0), (2_000, 2_001)]);
}

#[test]
fn permissions_are_checked_for_trusted_hosts() {
    let mut kit =
        Kit::with(ExportSpec { credentials: Credentials::Trusted { squash_root: true }, ..spec() }, &options());
    let root = kit.root.clone();
    let file = kit.client.make(&root, "f").expect("made");
    kit.client.put(&file, 0, b"secret", stable_how::UNSTABLE).expect("written");
    kit.client.set(&file, mode(0o640)).expect("set");
    let access = |kit: &mut Kit| {
        let wanted = ACCESS3_READ | ACCESS3_MODIFY | ACCESS3_EXECUTE;
        let arguments = ACCESS3args { object: file.clone(), access: wanted };
        let found: Result<ACCESS3resok, (_, ACCESS3resfail)> =
            call(&mut kit.client, NFS_PROGRAM::NFSPROC3_ACCESS, &arguments);
        found.expect("answered").access
    };
    assert_eq!(access(&mut kit), ACCESS3_READ | ACCESS3_MODIFY);
    for (uid, gid, groups, may_read) in
        [(2_000, 2_000, vec![], false), (2_000, 2_000, vec![OWNER], true), (0, 0, vec![OWNER], false)]
    {
        kit.client.act_as(uid, gid, &groups);
        assert_eq!(kit.client.get(&file, 0, 10).is_ok(), may_read, "{uid} {groups:?}");
        assert_eq!(access(&mut kit), if may_read { ACCESS3_READ } else { 0 });
        assert_eq!(kit.client.put(&file, 0, b"x", stable_how::UNSTABLE).map(drop), Err(nfsstat3::NFS3ERR_ACCES));
        assert_eq!(kit.client.set(&file, mode(0o666)), Err(nfsstat3::NFS3ERR_PERM));
        assert_eq!(kit.client.make(&root, "g").map(drop), Err(nfsstat3::NFS3ERR_ACCES));
        assert_eq!(kit.client.remove(&root, "f"), Err(nfsstat3::NFS3ERR_ACCES));
        let size = sattr3 { size: set_size3::Some(0), ..sattr3::default() };
        assert_eq!(kit.client.set(&file, size), Err(nfsstat3::NFS3ERR_ACCES));
    }
    // A write by somebody else takes away what lets a program act for its owner.
    kit.client.act_as(OWNER, OWNER, &[]);
    kit.client.set(&file, mode(0o6777)).expect("set");
    kit.client.act_as(2_000, 2_000, &[]);
    kit.client.put(&file, 0, b"x", stable_how::UNSTABLE).expect("written");
    kit.client.act_as(OWNER, OWNER, &[]);
    assert_eq!(kit.client.attributes(&file).expect("attributes").mode, 0o777);
    let arguments = LOOKUP3args { what: at(&root, "f") };
    let found: Result<LOOKUP3resok, (_, LOOKUP3resfail)> =
        call(&mut kit.client, NFS_PROGRAM::NFSPROC3_LOOKUP, &arguments);
    assert!(found.is_ok());
}

#[test]
fn mounts_are_told_and_views_are_opened_when_needed() {
    let home = Home::new();
    let told: Arc<std::sync::Mutex<Vec<_>>> = Arc::default();
    let mut options = options();
    let events = Arc::clone(&told);
    options.on_mount =
        Some(Arc::new(move |event| events.lock().expect("no panic").push((event.path.clone(), event.what))));
    let mut kit = Kit::over(home, spec(), &options);
    assert!(is_refused(&mut kit.client, "/p/w/guess"));
    let _: Void = kit.client.mount(MOUNT_PROGRAM::MOUNTPROC3_UMNTALL, &Void).expect("told").result();
    let expected = [
        (PATH.to_owned(), MountChange::Mounted),
        ("?".to_owned(), MountChange::Refused),
        (PATH.to_owned(), MountChange::Unmounted),
    ];
    assert_eq!(*told.lock().expect("no panic"), expected);
    let root = kit.root.clone();
    let file = kit.client.make(&root, "f").expect("made");
    kit.server.exports().release(PATH);
    kit.client.attributes(&file).expect("the view is taken again");
    let released = || {
        let mut paths = Vec::new();
        kit.server.exports().release_idle(|path| paths.push(path.to_owned()));
        paths
    };
    assert!(released().is_empty(), "it was used");
    assert_eq!(released(), [PATH]);
    assert!(released().is_empty(), "it is not open");
    kit.client.attributes(&file).expect("the view is taken again");
    let twice = kit.server.exports().add(spec(), Arc::new(kit.home.view.clone()));
    assert!(twice.expect_err("taken").to_string().contains(PATH));
    assert!(Exports::new([0; 32]).list().is_empty());
}

#[test]
fn addresses_outside_of_the_list_of_the_server_are_disconnected() {
    let mut options = options();
    options.allow = vec!["127.0.0.2".parse().expect("a network")];
    let home = Home::new();
    let server = serve(&home.view, spec(), &options);
    let mut client = Client::connect(server.address()).expect("connected");
    assert!(client.root(PATH).is_err(), "127.0.0.1 is not in the list");
    assert_eq!(server.statistics().accepted, 0);
}

/// An access control list in the form of Linux: version, then tag, rights and id of each entry.
fn access_list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&rights.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}

#[test]
fn access_control_lists_are_enforced_for_trusted_hosts() {
    let mut kit =
        Kit::with(ExportSpec { credentials: Credentials::Trusted { squash_root: true }, ..spec() }, &options());
    let root = kit.root.clone();
    let file = kit.client.make(&root, "f").expect("created");
    kit.client.put(&file, 0, b"secret", stable_how::UNSTABLE).expect("written");
    let directory = kit.client.make_directory(&root, "d").expect("created");
    let (unnamed, named_user, named_group, none) = (u32::MAX, 2_000, 3_000, 4_000);
    // The group bits of the mode become the mask (7); the owning group itself has no rights.
    let list = access_list(&[
        (0x01, 7, unnamed),
        (0x02, 4, named_user),
        (0x04, 0, unnamed),
        (0x08, 6, named_group),
        (0x10, 7, unnamed),
        (0x20, 0, unnamed),
    ]);
    let (view, owner) = (kit.home.view.clone(), kit.elsewhere());
    for name in [&b"f"[..], b"d"] {
        let ino = view.lookup(&owner, ROOT, name).expect("found").ino;
        let set = view.set_xattr(&owner, ino, b"system.posix_acl_access", &list, amalgam_view::XattrSet::Either);
        set.expect("set");
    }
    for (uid, groups, may_read, may_write) in [
        (named_user, vec![], true, false),
        (named_user, vec![named_group], true, false),
        (none, vec![named_group], true, true),
        (none, vec![OWNER], false, false),
        (none, vec![], false, false),
    ] {
        kit.client.act_as(uid, none, &groups);
        assert_eq!(kit.client.get(&file, 0, 10).is_ok(), may_read, "read by {uid} {groups:?}");
        let written = kit.client.put(&file, 0, b"S", stable_how::UNSTABLE);
        assert_eq!(written.is_ok(), may_write, "write by {uid} {groups:?}");
        // No entry gives the right to search the directory.
        assert_eq!(kit.client.make(&directory, "x").map(drop), Err(nfsstat3::NFS3ERR_ACCES));
    }
}
