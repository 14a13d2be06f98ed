//! What is on disk when, and what clients are told of it.

use nfs3_types::nfs3::*;

use crate::kit::{Ask as _, Kit, options, spec};

#[test]
fn the_verifier_stays_while_the_server_runs_and_changes_with_each_start() {
    let mut kit = Kit::new();
    let root = kit.root.clone();
    let file = kit.client.make(&root, "f").expect("made");
    let mut seen = Vec::new();
    for stable in [stable_how::UNSTABLE, stable_how::DATA_SYNC, stable_how::FILE_SYNC] {
        let written = kit.client.put(&file, 0, b"x", stable).expect("written");
        assert_eq!(written.committed, stable);
        seen.push(written.verf);
    }
    seen.push(kit.client.commit(&file).expect("synced"));
    assert!(seen.iter().all(|verifier| *verifier == seen[0]));
    let mut kit = kit.restart(true);
    assert_ne!(kit.client.commit(&file).expect("synced"), seen[0]);
}

#[test]
fn what_was_written_outlives_a_kill_of_the_server() {
    let mut kit = Kit::new();
    let root = kit.root.clone();
    let mut files = Vec::new();
    for round in 0..10_u64 {
        let name = format!("f{round}");
        let file = kit.client.make(&root, &name).expect("made");
        kit.client.put(&file, 0, name.as_bytes(), stable_how::UNSTABLE).expect("written");
        kit.client.commit(&file).expect("synced");
        kit.client.rename((&root, &name), (&root, &format!("renamed{round}"))).expect("renamed");
        files.push((file, name));
        kit = kit.restart(round % 2 == 0);
        for (file, bytes) in &files {
            assert_eq!(kit.client.get(file, 0, 100), Ok((bytes.as_bytes().to_vec(), true)), "{bytes} in round {round}");
        }
    }
}

#[test]
fn writes_of_lying_sizes_change_nothing() {
    let mut kit = Kit::new();
    let root = kit.root.clone();
    let file = kit.client.make(&root, "f").expect("made");
    for count in [0, 2, u32::MAX] {
        let data = nfs3_types::xdr_codec::Opaque::borrowed(b"x");
        let arguments = WRITE3args { file: file.clone(), offset: 0, count, stable: stable_how::UNSTABLE, data };
        let done: Result<WRITE3resok, (_, WRITE3resfail)> =
            crate::kit::call(&mut kit.client, NFS_PROGRAM::NFSPROC3_WRITE, &arguments);
        assert_eq!(done.expect_err("refused").0, nfsstat3::NFS3ERR_INVAL);
    }
    assert_eq!(kit.client.attributes(&file).expect("attributes").size, 0);
    let far = kit.client.put(&file, u64::MAX - 1, b"xyz", stable_how::UNSTABLE);
    assert_eq!(far.map(drop), Err(nfsstat3::NFS3ERR_FBIG));
    assert_eq!(kit.client.put(&root, 0, b"x", stable_how::UNSTABLE).map(drop), Err(nfsstat3::NFS3ERR_ISDIR));
    assert_eq!(kit.client.get(&root, 0, 1).map(drop), Err(nfsstat3::NFS3ERR_ISDIR));
}

#[test]
fn an_export_that_is_not_durable_answers_changes_at_once() {
    let mut kit = Kit::with(amalgam_nfs::ExportSpec { durable: false, ..spec() }, &options());
    let root = kit.root.clone();
    let file = kit.client.make(&root, "f").expect("made");
    kit.client.put(&file, 0, b"x", stable_how::FILE_SYNC).expect("written");
    kit.client.commit(&file).expect("synced");
    assert_eq!(kit.client.get(&file, 0, 1), Ok((b"x".to_vec(), true)));
}
