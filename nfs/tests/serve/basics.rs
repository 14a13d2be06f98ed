//! Every procedure once, with what it says of attributes.

use amalgam_view::ROOT;
use nfs3_types::mount::{MOUNT_PROGRAM, dirpath, exports, mountlist};
use nfs3_types::nfs3::*;
use nfs3_types::xdr_codec::{Opaque, Void};

use crate::kit::{Ask as _, Home, Kit, OWNER, PATH, at, call, mode, options, spec};

#[test]
fn a_file_that_is_written_is_read_back_through_both_doors() {
    let mut kit = Kit::new();
    let root = kit.root.clone();
    let directory = kit.client.make_directory(&root, "d").expect("made");
    let file = kit.client.make(&directory, "f").expect("made");
    let written = kit.client.put(&file, 0, b"hello, world", stable_how::UNSTABLE).expect("written");
    assert_eq!((written.count, written.committed), (12, stable_how::UNSTABLE));
    assert_eq!(kit.client.get(&file, 0, 1 << 20), Ok((b"hello, world".to_vec(), true)));
    assert_eq!(kit.client.get(&file, 7, 3), Ok((b"wor".to_vec(), false)));
    assert_eq!(kit.client.get(&file, 12, 3), Ok((Vec::new(), true)));
    assert_eq!(kit.client.look(&directory, "f").expect("found"), file, "a handle is the same each time");
    let found = kit.client.attributes(&file).expect("attributes");
    assert_eq!((found.type_, found.size, found.nlink, found.uid), (ftype3::NF3REG, 12, 1, OWNER));
    let view = &kit.home.view;
    let ino =
        view.lookup(&kit.elsewhere(), view.lookup(&kit.elsewhere(), ROOT, b"d").expect("d").ino, b"f").expect("f").ino;
    assert_eq!(&view.read(ino, 0, 100).expect("read")[..], b"hello, world");
    view.write(&kit.elsewhere(), ino, 0, b"HELLO").expect("written");
    assert_eq!(kit.client.get(&file, 0, 100), Ok((b"HELLO, world".to_vec(), true)));
}

#[test]
fn files_of_a_snapshot_are_read_from_the_store() {
    let mut kit = Kit::new();
    let root = kit.root.clone();
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|number| (number / 7) as u8).collect();
    let file = kit.client.make(&root, "large").expect("made");
    for (number, piece) in bytes.chunks(1 << 20).enumerate() {
        kit.client.put(&file, (number << 20) as u64, piece, stable_how::UNSTABLE).expect("written");
    }
    kit.client.commit(&file).expect("synced");
    kit.home.commit();
    let mut kit = kit.restart(true);
    let file = kit.client.look(&kit.root.clone(), "large").expect("found");
    let mut found = Vec::new();
    loop {
        let (piece, is_end) = kit.client.get(&file, found.len() as u64, 1 << 20).expect("read");
        found.extend(piece);
        if is_end {
            break;
        }
    }
    assert!(found == bytes);
}

#[test]
fn symlinks_nodes_and_links_are_made() {
    let mut kit = Kit::new();
    let root = kit.root.clone();
    let client = &mut kit.client;
    let symlink =
        symlinkdata3 { symlink_attributes: sattr3::default(), symlink_data: nfspath3(Opaque::borrowed(b"a/b")) };
    let arguments = SYMLINK3args { where_: at(&root, "s"), symlink };
    let made: Result<SYMLINK3resok, (_, SYMLINK3resfail)> = call(client, NFS_PROGRAM::NFSPROC3_SYMLINK, &arguments);
    let symlink = made.expect("made").obj.unwrap();
    let read: Result<READLINK3resok<'_>, (_, READLINK3resfail)> =
        call(client, NFS_PROGRAM::NFSPROC3_READLINK, &READLINK3args { symlink });
    assert_eq!(read.expect("read").data.as_ref(), b"a/b");

    let mut node = |name: &str, what: mknoddata3| {
        let arguments = MKNOD3args { where_: at(&root, name), what };
        let made: Result<MKNOD3resok, (_, MKNOD3resfail)> = call(client, NFS_PROGRAM::NFSPROC3_MKNOD, &arguments);
        made.map(|ok| match ok.obj_attributes {
            post_op_attr::Some(attributes) => (attributes.type_, attributes.mode),
            post_op_attr::None => panic!("attributes"),
        })
        .map_err(|(status, _)| status)
    };
    assert_eq!(node("fifo", mknoddata3::NF3FIFO(mode(0o600))), Ok((ftype3::NF3FIFO, 0o600)));
    assert_eq!(node("socket", mknoddata3::NF3SOCK(mode(0o640))), Ok((ftype3::NF3SOCK, 0o640)));
    let device = || devicedata3 { dev_attributes: mode(0o600), spec: specdata3 { specdata1: 1, specdata2: 3 } };
    assert_eq!(node("null", mknoddata3::NF3CHR(device())), Err(nfsstat3::NFS3ERR_PERM), "devices are for root");
    assert_eq!(node("fifo", mknoddata3::NF3FIFO(mode(0o600))), Err(nfsstat3::NFS3ERR_EXIST));

    let file = kit.client.make(&root, "f").expect("made");
    let arguments = LINK3args { file: file.clone(), link: at(&root, "g") };
    let linked: Result<LINK3resok, (_, LINK3resfail)> = call(&mut kit.client, NFS_PROGRAM::NFSPROC3_LINK, &arguments);
    assert!(matches!(linked.expect("linked").file_attributes, post_op_attr::Some(fattr3 { nlink: 2, .. })));
    assert_eq!(kit.client.look(&root, "g").expect("found"), file, "both names are one file");
    kit.client.remove(&root, "f").expect("removed");
    assert_eq!(kit.client.attributes(&file).expect("there").nlink, 1, "the handle goes on with the other name");
    let directory = kit.client.make_directory(&root, "d").expect("made");
    let arguments = LINK3args { file: directory, link: at(&root, "e") };
    let linked: Result<LINK3resok, (_, LINK3resfail)> = call(&mut kit.client, NFS_PROGRAM::NFSPROC3_LINK, &arguments);
    assert_eq!(linked.expect_err("refused").0, nfsstat3::NFS3ERR_PERM);
}

#[test]
fn renames_replace_and_refuse_as_posix_has_it() {
    let mut kit = Kit::new();
    let root = kit.root.clone();
    let one = kit.client.make_directory(&root, "one").expect("made");
    let two = kit.client.make_directory(&root, "two").expect("made");
    let file = kit.client.make(&one, "f").expect("made");
    let other = kit.client.make(&two, "g").expect("made");
    kit.client.put(&other, 0, b"old", stable_how::UNSTABLE).expect("written");
    kit.client.rename((&one, "f"), (&two, "g")).expect("renamed");
    assert_eq!(kit.client.look(&two, "g"), Ok(file), "the handle moved along");
    assert_eq!(kit.client.look(&one, "f"), Err(nfsstat3::NFS3ERR_NOENT));
    assert_eq!(kit.client.get(&other, 0, 10), Ok((b"old".to_vec(), true)), "what was replaced goes on for a while");
    assert_eq!(kit.client.rename((&root, "one"), (&one, "x")), Err(nfsstat3::NFS3ERR_INVAL), "into itself");
    assert_eq!(kit.client.rename((&root, "one"), (&root, "two")), Err(nfsstat3::NFS3ERR_NOTEMPTY));
    assert_eq!(kit.client.rename((&two, "g"), (&root, "one")), Err(nfsstat3::NFS3ERR_ISDIR));
    assert_eq!(kit.client.remove(&root, "one"), Err(nfsstat3::NFS3ERR_ISDIR));
    assert_eq!(kit.client.remove_directory(&root, "two"), Err(nfsstat3::NFS3ERR_NOTEMPTY));
    assert_eq!(kit.client.remove_directory(&two, "g"), Err(nfsstat3::NFS3ERR_NOTDIR));
    kit.client.remove_directory(&root, "one").expect("removed");
    assert_eq!(kit.client.attributes(&one).expect_err("gone"), nfsstat3::NFS3ERR_STALE);
}

#[test]
fn limits_are_told() {
    let mut kit = Kit::new();
    let root = kit.root.clone();
    let limits: Result<FSINFO3resok, (_, FSINFO3resfail)> =
        call(&mut kit.client, NFS_PROGRAM::NFSPROC3_FSINFO, &FSINFO3args { fsroot: root.clone() });
    let limits = limits.expect("limits");
    assert_eq!((limits.rtmax, limits.wtmax, limits.maxfilesize), (1 << 20, 1 << 20, i64::MAX as u64));
    let room: Result<FSSTAT3resok, (_, FSSTAT3resfail)> =
        call(&mut kit.client, NFS_PROGRAM::NFSPROC3_FSSTAT, &FSSTAT3args { fsroot: root.clone() });
    let room = room.expect("room");
    assert!(room.fbytes <= room.tbytes);
    let paths: Result<PATHCONF3resok, (_, PATHCONF3resfail)> =
        call(&mut kit.client, NFS_PROGRAM::NFSPROC3_PATHCONF, &PATHCONF3args { object: root.clone() });
    let paths = paths.expect("limits");
    assert!(paths.no_trunc && paths.case_preserving && !paths.case_insensitive);
    assert_eq!(kit.client.make(&root, &"n".repeat(paths.name_max as usize)).map(drop), Ok(()));
    let too_long = "n".repeat(paths.name_max as usize + 1);
    assert_eq!(kit.client.make(&root, &too_long).map(drop), Err(nfsstat3::NFS3ERR_NAMETOOLONG));
    assert!(kit.client.attributes(&root).expect("attributes").nlink > 0);
}

#[test]
fn mounts_are_listed_until_they_end() {
    let home = Home::new();
    let mut kit = Kit::over(home, spec(), &options());
    let list = |kit: &mut Kit| -> Vec<String> {
        let found: mountlist<'_, '_> =
            kit.client.mount(MOUNT_PROGRAM::MOUNTPROC3_DUMP, &Void).expect("listed").result();
        found.0.iter().map(|mount| String::from_utf8_lossy(mount.ml_directory.0.as_ref()).into_owned()).collect()
    };
    assert_eq!(list(&mut kit), [PATH]);
    let path = dirpath(Opaque::borrowed(PATH.as_bytes()));
    let _: Void = kit.client.mount(MOUNT_PROGRAM::MOUNTPROC3_UMNT, &path).expect("told").result();
    assert!(list(&mut kit).is_empty());
    kit.client.root(PATH).expect("answered").expect("mounted");
    let _: Void = kit.client.mount(MOUNT_PROGRAM::MOUNTPROC3_UMNTALL, &Void).expect("told").result();
    assert!(list(&mut kit).is_empty());
    let all: exports<'_, '_> = kit.client.mount(MOUNT_PROGRAM::MOUNTPROC3_EXPORT, &Void).expect("listed").result();
    assert_eq!(all.0.len(), 1);
    assert_eq!(all.0[0].ex_dir.0.as_ref(), PATH.as_bytes());
    let _: Void = kit.client.mount(MOUNT_PROGRAM::MOUNTPROC3_NULL, &Void).expect("answered").result();
    let _: Void = kit.client.nfs(NFS_PROGRAM::NFSPROC3_NULL, &Void).expect("answered").result();
}
