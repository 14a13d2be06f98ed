//! Changes: what was before and after, guards, exclusive creation, retransmission.

use amalgam_nfs::client::read_reply;
use amalgam_view::ROOT;
use nfs3_types::nfs3::*;

use crate::kit::{Ask as _, Kit, at, call, mode};

fn create(kit: &mut Kit, name: &str, how: createhow3) -> Result<CREATE3resok, nfsstat3> {
    let arguments = CREATE3args { where_: at(&kit.root, name), how };
    let made: Result<CREATE3resok, (_, CREATE3resfail)> =
        call(&mut kit.client, NFS_PROGRAM::NFSPROC3_CREATE, &arguments);
    made.map_err(|(status, _)| status)
}

#[test]
fn before_and_after_belong_to_one_change() {
    let mut kit = Kit::new();
    let root = kit.root.clone();
    let mut known = kit.client.attributes(&root).expect("attributes");
    for number in 0..10 {
        let made = create(&mut kit, &format!("f{number}"), createhow3::GUARDED(mode(0o644))).expect("made");
        let (pre_op_attr::Some(before), post_op_attr::Some(after)) = (made.dir_wcc.before, made.dir_wcc.after) else {
            panic!("both are told when nobody else changes anything")
        };
        assert_eq!((before.mtime, before.ctime, before.size), (known.mtime, known.ctime, known.size));
        assert_ne!(after.mtime, before.mtime);
        known = after;
    }
    let file = kit.client.look(&root, "f0").expect("found");
    let written = kit.client.put(&file, 0, b"x", stable_how::UNSTABLE).expect("written");
    assert!(matches!(written.file_wcc.before, pre_op_attr::Some(wcc_attr { size: 0, .. })));
    assert!(matches!(written.file_wcc.after, post_op_attr::Some(fattr3 { size: 1, .. })));
}

#[test]
fn a_client_does_not_take_changes_of_others_for_its_own() {
    let mut kit = Kit::new();
    let view = kit.home.view.clone();
    let caller = kit.elsewhere();
    let is_done = std::sync::atomic::AtomicBool::new(false);
    let mut left_out = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0;
            while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                let name = format!("other{}", number % 50);
                number += 1;
                if view.create(&caller, ROOT, name.as_bytes(), 0o644).is_err() {
                    view.unlink(&caller, ROOT, name.as_bytes()).expect("removed");
                }
            }
        });
        for number in 0..300 {
            let made = create(&mut kit, &format!("f{number}"), createhow3::GUARDED(mode(0o644))).expect("made");
            assert!(made.dir_wcc.after.is_some());
            left_out += u32::from(made.dir_wcc.before.is_none());
        }
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(left_out > 0, "with somebody else at work all the time, some changes are not alone");
}

#[test]
fn a_guard_refuses_what_changed_since() {
    let mut kit = Kit::new();
    let root = kit.root.clone();
    let file = kit.client.make(&root, "f").expect("made");
    let known = kit.client.attributes(&file).expect("attributes").ctime;
    let guarded = |kit: &mut Kit, guard, wanted| {
        let arguments =
            SETATTR3args { object: file.clone(), new_attributes: mode(wanted), guard: sattrguard3::Some(guard) };
        let done: Result<SETATTR3resok, (_, SETATTR3resfail)> =
            call(&mut kit.client, NFS_PROGRAM::NFSPROC3_SETATTR, &arguments);
        done.map(drop).map_err(|(status, _)| status)
    };
    assert_eq!(guarded(&mut kit, known, 0o600), Ok(()));
    assert_eq!(guarded(&mut kit, known, 0o640), Err(nfsstat3::NFS3ERR_NOT_SYNC));
    let found = kit.client.attributes(&file).expect("attributes");
    assert_eq!(found.mode, 0o600);
    assert_eq!(guarded(&mut kit, found.ctime, 0o640), Ok(()));
}

#[test]
fn attributes_are_set_and_sizes_cut_and_grow() {
    let mut kit = Kit::new();
    let root = kit.root.clone();
    let file = kit.client.make(&root, "f").expect("made");
    kit.client.put(&file, 0, b"hello", stable_how::UNSTABLE).expect("written");
    let size = |size| sattr3 { size: set_size3::Some(size), ..sattr3::default() };
    kit.client.set(&file, size(2)).expect("cut");
    kit.client.set(&file, size(4)).expect("grown");
    assert_eq!(kit.client.get(&file, 0, 10), Ok((b"he\0\0".to_vec(), true)));
    let time = nfstime3 { seconds: 1_000_000_000, nseconds: 7 };
    let times = sattr3 {
        atime: set_atime::SET_TO_CLIENT_TIME(time),
        mtime: set_mtime::SET_TO_CLIENT_TIME(time),
        ..sattr3::default()
    };
    kit.client.set(&file, times).expect("set");
    let found = kit.client.attributes(&file).expect("attributes");
    assert_eq!((found.atime, found.mtime), (time, time));
    let now = sattr3 { mtime: set_mtime::SET_TO_SERVER_TIME, ..sattr3::default() };
    kit.client.set(&file, now).expect("set");
    assert!(kit.client.attributes(&file).expect("attributes").mtime.seconds > time.seconds);
    assert_eq!(kit.client.set(&root, size(0)), Err(nfsstat3::NFS3ERR_ISDIR));
    assert_eq!(kit.client.set(&file, size(u64::MAX)), Err(nfsstat3::NFS3ERR_FBIG));
    kit.client.set(&file, mode(0o400)).expect("set");
    kit.client.put(&file, 0, b"H", stable_how::UNSTABLE).expect("the owner had opened it before");
}

#[test]
fn a_file_that_is_there_is_taken_refused_or_known_by_its_verifier() {
    let mut kit = Kit::new();
    let unchecked = |size| createhow3::UNCHECKED(sattr3 { size, ..mode(0o644) });
    let first = create(&mut kit, "f", unchecked(set_size3::None)).expect("made").obj.unwrap();
    kit.client.put(&first, 0, b"hello", stable_how::UNSTABLE).expect("written");
    assert_eq!(create(&mut kit, "f", unchecked(set_size3::None)).expect("taken").obj.unwrap(), first);
    assert_eq!(kit.client.attributes(&first).expect("attributes").size, 5);
    assert_eq!(create(&mut kit, "f", unchecked(set_size3::Some(0))).expect("taken").obj.unwrap(), first);
    assert_eq!(kit.client.attributes(&first).expect("attributes").size, 0, "as an open that truncates");
    assert_eq!(create(&mut kit, "f", createhow3::GUARDED(mode(0o644))).map(drop), Err(nfsstat3::NFS3ERR_EXIST));

    let exclusive = |verifier| createhow3::EXCLUSIVE(createverf3(verifier));
    let made = create(&mut kit, "x", exclusive(*b"verifier")).expect("made").obj.unwrap();
    assert_eq!(create(&mut kit, "x", exclusive(*b"verifier")).expect("the same client").obj.unwrap(), made);
    assert_eq!(create(&mut kit, "x", exclusive(*b"another!")).map(drop), Err(nfsstat3::NFS3ERR_EXIST));
    assert_eq!(create(&mut kit, "f", exclusive(*b"verifier")).map(drop), Err(nfsstat3::NFS3ERR_EXIST));
    // After a crash the client asks again, with a number that the server has not seen.
    let mut kit = kit.restart(false);
    assert_eq!(create(&mut kit, "x", exclusive(*b"verifier")).expect("the same client").obj.unwrap(), made);
    assert_eq!(create(&mut kit, "x", exclusive(*b"another!")).map(drop), Err(nfsstat3::NFS3ERR_EXIST));
}

#[test]
fn a_change_that_is_sent_again_is_answered_as_before_and_done_once() {
    let mut kit = Kit::new();
    let root = kit.root.clone();
    kit.client.make(&root, "f").expect("made");
    let mut record = |procedure: NFS_PROGRAM, name: &str| {
        let how = createhow3::GUARDED(mode(0o644));
        let (program, version) = (nfs3_types::nfs3::PROGRAM, nfs3_types::nfs3::VERSION);
        let record = match procedure {
            NFS_PROGRAM::NFSPROC3_REMOVE => {
                kit.client.record(program, version, procedure as u32, &REMOVE3args { object: at(&root, name) })
            }
            _ => kit.client.record(program, version, procedure as u32, &CREATE3args { where_: at(&root, name), how }),
        };
        record.expect("packed")
    };
    let remove = record(NFS_PROGRAM::NFSPROC3_REMOVE, "f");
    let create = record(NFS_PROGRAM::NFSPROC3_CREATE, "g");
    for sent in [&remove, &create] {
        let mut answers = Vec::new();
        for _ in 0..3 {
            // As a client does that lost its connection.
            let mut client = kit.connect();
            client.send(sent).expect("sent");
            answers.push(client.receive().expect("answered"));
        }
        let (_, reply) = read_reply::<nfsstat3>(&answers[0][..28]).expect("a reply");
        assert_eq!(reply.result(), nfsstat3::NFS3_OK);
        assert!(answers.iter().all(|answer| *answer == answers[0]));
    }
    assert_eq!(kit.server.statistics().replayed, 4);
    // Without the cache a second removal finds nothing.
    assert_eq!(kit.client.remove(&root, "f"), Err(nfsstat3::NFS3ERR_NOENT));
}

#[test]
fn calls_sent_twice_at_once_are_done_once() {
    let mut kit = Kit::new();
    let root = kit.root.clone();
    for number in 0..50 {
        let name = format!("d{number}");
        let arguments = MKDIR3args { where_: at(&root, &name), attributes: mode(0o755) };
        let record = kit
            .client
            .record(nfs3_types::nfs3::PROGRAM, 3, NFS_PROGRAM::NFSPROC3_MKDIR as u32, &arguments)
            .expect("packed");
        let twice = [&record[..], &record[..]].concat();
        kit.client.send(&twice).expect("sent");
        let answers = [kit.client.receive().expect("answered"), kit.client.receive().expect("answered")];
        assert_eq!(answers[0], answers[1]);
    }
}

#[test]
fn a_change_that_is_sent_again_to_the_next_server_is_answered_as_before() {
    let mut kit = Kit::new();
    let root = kit.root.clone();
    kit.client.make(&root, "f").expect("made");
    kit.client.make(&root, "g").expect("made");
    let mut options = crate::kit::options();
    options.reply_log = Some(kit.home.scratch().join("replies"));
    let rename = RENAME3args { from: at(&root, "g"), to: at(&root, "h") };
    let remove = REMOVE3args { object: at(&root, "f") };
    let sent = [
        kit.client.record(PROGRAM, VERSION, NFS_PROGRAM::NFSPROC3_REMOVE as u32, &remove).expect("packed"),
        kit.client.record(PROGRAM, VERSION, NFS_PROGRAM::NFSPROC3_RENAME as u32, &rename).expect("packed"),
    ];
    let Kit { mut home, server, client, .. } = kit;
    drop((client, server));
    let mut answers: Vec<Vec<Vec<u8>>> = Vec::new();
    for _ in 0..3 {
        let kit = Kit::over(home, crate::kit::spec(), &options);
        let ask = |record: &Vec<u8>| {
            let mut client = kit.connect();
            client.send(record).expect("sent");
            client.receive().expect("answered")
        };
        answers.push(sent.iter().map(ask).collect());
        let Kit { home: before, server, client, .. } = kit;
        drop((client, server));
        home = before.reopen(false);
    }
    for answer in &answers[0] {
        assert_eq!(read_reply::<nfsstat3>(&answer[..28]).expect("a reply").1.result(), nfsstat3::NFS3_OK);
    }
    assert!(answers.iter().all(|others| *others == answers[0]));
}
