//! Streams that are cut, bent, put together otherwise, or made to harm: a clear error, nothing visible, a sound store, and
//! the whole stream goes through afterwards.

use amalgam_engine::backend::StoredObject;
use amalgam_engine::reference::RefValue;
use amalgam_engine::{Commit, ErrorKind, ObjectId, ObjectKind, Store, WorkingTree};
use amalgam_tests::harness::lives::{assert_sound, live};
use amalgam_tests::harness::{Place, Random, name, seed};
use amalgam_transfer::stream::{Frame, StreamReader, StreamWriter};
use amalgam_transfer::{Error, Have};

use super::kit::{refs, send_all, sent_refs, take};

/// Where each frame begins, and where the stream ends.
fn places(stream: &[u8]) -> Vec<usize> {
    let mut reader = StreamReader::new(stream);
    let mut places = Vec::new();
    loop {
        let frame = reader.next_frame().expect("a whole stream");
        places.push(reader.place().byte as usize);
        if matches!(frame, Frame::End { .. }) {
            places.push(stream.len());
            return places;
        }
    }
}

fn frames(stream: &[u8]) -> Vec<Frame> {
    let mut reader = StreamReader::new(stream);
    let mut frames = Vec::new();
    loop {
        match reader.next_frame().expect("a whole stream") {
            Frame::End { .. } => return frames,
            frame => frames.push(frame),
        }
    }
}

fn written(frames: &[Frame]) -> Vec<u8> {
    let mut stream = Vec::new();
    let mut writer = StreamWriter::new(&mut stream);
    for frame in frames {
        match frame {
            Frame::Base(id) => writer.base(*id),
            Frame::Opened(ids) => writer.opened(ids),
            Frame::Object(StoredObject { id, bytes }) => writer.object(*id, bytes),
            Frame::Thinned(bytes) => writer.thinned(bytes),
            Frame::Purged(id, tombstone) => writer.purged(*id, tombstone),
            Frame::Tip(id) => writer.tip(*id),
            Frame::Name(name, value) => writer.name(name, value),
            Frame::Unreadable { .. } | Frame::End { .. } => Ok(()),
        }
        .expect("memory takes everything");
    }
    writer.end().expect("memory takes everything");
    stream
}

/// Receives what must fail; the store stays sound and shows nothing of it.
fn refused(store: &Store, stream: &[u8]) -> Error {
    let before = refs(store);
    let error = take(store, stream).expect_err("the stream is broken");
    assert_eq!(refs(store), before, "a broken stream showed: {error}");
    error
}

#[test]
fn a_stream_cut_anywhere_is_noticed_and_resumed() {
    let from = Store::in_memory();
    live(&from, &mut Random::new(21), 12).expect("a life");
    let (stream, sent) = send_all(&from, &Have::default());
    let places = places(&stream);
    let directory = tempfile::tempdir().expect("a directory");
    let on_disk = Place::Disk(&directory.path().join("store")).store();
    let mut skipped = 0;
    let cuts = places.iter().flat_map(|place| [place.saturating_sub(1), *place, place + 1, place + 5, place + 40]);
    let cuts: Vec<_> = cuts.chain([0, 1, 15, 16]).filter(|cut| *cut < stream.len()).collect();
    for (number, cut) in cuts.iter().enumerate() {
        let to = if number % 37 == 0 { on_disk.clone() } else { Store::in_memory() };
        let error = refused(&to, &stream[..*cut]);
        match &error {
            Error::NotAStream { .. } => assert!(*cut < 16, "cut at {cut}: {error}"),
            Error::Cut { place } => {
                let frame = places.iter().rposition(|start| start <= cut).expect("after the header");
                assert_eq!((place.frame, place.byte), (frame as u64 + 1, places[frame] as u64), "cut at {cut}");
                assert!(error.to_string().contains(&format!("frame {}", frame + 1)), "{error}");
            }
            _ => panic!("cut at {cut}: {error}"),
        }
        if number % 37 == 0 {
            assert_sound(&to);
            continue;
        }
        if number % 11 == 0 {
            let again = take(&to, &stream).expect("the whole stream");
            skipped += again.objects - again.objects_new;
            assert_eq!(again.objects, sent.objects);
            assert_eq!(sent_refs(&from), refs(&to));
            assert_sound(&to);
        }
    }
    assert!(skipped > 0, "what had arrived is skipped");
    take(&on_disk, &stream).expect("the whole stream");
    assert_eq!(sent_refs(&from), refs(&on_disk));
}

#[test]
fn a_flipped_bit_anywhere_is_noticed() {
    let seed = seed();
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let from = Store::in_memory();
    live(&from, &mut random, 8).expect("a life");
    let (stream, _) = send_all(&from, &Have::default());
    let places = places(&stream);
    // All of the heads of frames, and any place.
    let heads = places.iter().flat_map(|place| [*place, place + 1, place + 3]);
    let mut flips: Vec<_> = heads.chain(0..16).filter(|at| *at < stream.len()).collect();
    flips.extend((0..1_500).map(|_| random.below(stream.len() as u64) as usize));
    for at in flips {
        let mut bent = stream.clone();
        bent[at] ^= 1 << random.below(8);
        let to = Store::in_memory();
        let error = refused(&to, &bent);
        assert!(error.kind().is_some(), "flipped at {at}: {error}");
        if at.is_multiple_of(29) {
            assert_sound(&to);
            take(&to, &stream).expect("the sound stream goes through");
            assert_eq!(sent_refs(&from), refs(&to));
        }
    }
}

#[test]
fn a_flipped_bit_of_what_is_there_already_is_noticed_too() {
    let from = Store::in_memory();
    live(&from, &mut Random::new(23), 8).expect("a life");
    let (stream, _) = send_all(&from, &Have::default());
    let to = Store::in_memory();
    take(&to, &stream).expect("receive");
    let mut random = Random::new(24);
    for _ in 0..200 {
        let mut bent = stream.clone();
        bent[random.below(stream.len() as u64) as usize] ^= 1;
        refused(&to, &bent);
    }
    assert_sound(&to);
}

#[test]
fn frames_in_another_order_are_refused_or_do_no_harm() {
    let seed = seed();
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let from = Store::in_memory();
    live(&from, &mut random, 8).expect("a life");
    let whole = frames(&send_all(&from, &Have::default()).0);
    let (mut refusals, mut harmless) = (0, 0);
    for round in 0..300 {
        let mut frames = whole.clone();
        let (one, other) = (random.below(frames.len() as u64) as usize, random.below(frames.len() as u64) as usize);
        match round % 3 {
            0 => frames.swap(one, other),
            1 => drop(frames.remove(one)),
            _ => frames.insert(other, frames[one].clone()),
        }
        let to = Store::in_memory();
        match take(&to, &written(&frames)) {
            Ok(_) => {
                harmless += 1;
                assert!(refs(&to).iter().all(|(name, value)| refs(&from).get(name) == Some(value)));
            }
            Err(error) => {
                refusals += 1;
                assert!(refs(&to).is_empty(), "{error}");
                assert!(error.to_string().contains("frame "), "it says where: {error}");
            }
        }
        if round % 10 == 0 {
            assert_sound(&to);
        }
    }
    println!("{refusals} refused, {harmless} harmless");
    assert!(refusals > 50 && harmless > 20, "{refusals} refused, {harmless} harmless");
}

#[test]
fn lengths_that_lie_allocate_nothing() {
    for length in [u32::MAX, (32 << 20) + 34, 32 << 20, 1 << 20] {
        let mut stream = b"amalgam stream\n\x01\x03".to_vec();
        stream.extend(length.to_le_bytes());
        stream.extend([1; 40]);
        let error = refused(&Store::in_memory(), &stream);
        let told = matches!(error, Error::Damaged { .. } | Error::Cut { .. });
        assert!(told, "{length}: {error}");
    }
}

#[test]
fn another_version_and_another_thing_are_told_apart() {
    let to = Store::in_memory();
    assert!(matches!(refused(&to, b"amalgam stream\n\x02"), Error::Version { found: 2, known: 1 }));
    assert!(matches!(refused(&to, b"PK\x03\x04 and so on and so on"), Error::NotAStream { .. }));
    assert!(matches!(refused(&to, b""), Error::NotAStream { .. }));
}

fn small() -> (Store, Vec<Frame>) {
    let from = Store::in_memory();
    let mut tree = WorkingTree::new(&from);
    tree.write("file", b"text").expect("write");
    tree.commit(Commit::new(&name("workspace/main"), "one")).expect("commit");
    let frames = frames(&send_all(&from, &Have::default()).0);
    (from, frames)
}

#[test]
fn objects_that_are_not_what_they_say_are_refused() {
    let (_, whole) = small();
    let chunk = ObjectId::of(ObjectKind::Chunk, b"text");
    let planted = [
        // Other bytes under an id, an unknown form, pressed bytes that are none, no bytes, a bomb's header.
        &b"\0another"[..],
        b"\x07text",
        b"\x01\x04\0\0\0text",
        b"",
        b"\x01\xff\xff\xff\xff\x28\xb5\x2f\xfd",
    ];
    for bytes in planted {
        let mut frames = whole.clone();
        frames[0] = Frame::Object(StoredObject { id: chunk, bytes: bytes::Bytes::from_static(bytes) });
        let error = refused(&Store::in_memory(), &written(&frames));
        assert!(matches!(error, Error::Refused { place, id, .. } if place.frame == 1 && id == chunk), "{error}");
        assert_eq!(error.kind(), Some(ErrorKind::Corrupt), "{error:?}");
    }
}

#[test]
fn names_that_break_their_rules_are_refused() {
    let (from, whole) = small();
    let head =
        from.read_ref(&name("workspace/main")).expect("read").and_then(|value| value.target).expect("a snapshot");
    let missing = ObjectId::of(ObjectKind::Snapshot, b"nowhere");
    let planted = [
        ("workspace/bad name", RefValue::to(head)),
        ("workspace/main", RefValue { note: bytes::Bytes::from_static(b"\xff"), ..RefValue::to(head) }),
        ("label/x", RefValue::default()),
        ("label/y", RefValue::to(missing)),
        ("reward/xx", RefValue::default()),
        ("step/run@1", RefValue::to(head)),
        ("episode/run", RefValue::noting(&b"\x08\x09"[..])),
        ("deleted/main@1", RefValue::to(head)),
        ("head/main", RefValue::to(head)),
        ("workspace/main", RefValue::to(head)),
    ];
    for (text, value) in planted {
        let mut frames = whole.clone();
        frames.push(Frame::Name(name(text), value));
        let to = Store::in_memory();
        let error = refused(&to, &written(&frames));
        assert!(error.to_string().contains(text), "{text}: {error}");
        assert_sound(&to);
    }
}

#[test]
fn a_stream_that_builds_on_something_else_says_so() {
    let from = Store::in_memory();
    let made = live(&from, &mut Random::new(31), 10).expect("a life");
    let had = Have { snapshots: vec![made[6]] };
    let (stream, _) = send_all(&from, &had);
    let to = Store::in_memory();
    let error = refused(&to, &stream);
    assert!(matches!(error, Error::NoBase { .. }), "{error}");
    assert_eq!(error.kind(), Some(ErrorKind::NotFound));
}

#[test]
fn opened_nodes_that_are_in_no_base_are_not_believed() {
    let (_, whole) = small();
    // A root directory that says to lie in a base, and a root above it whose contents were never sent.
    let mut frames: Vec<_> = whole
        .iter()
        .filter(|frame| !matches!(frame, Frame::Object(StoredObject { id, .. }) if id.kind == ObjectKind::Chunk))
        .cloned()
        .collect();
    frames.insert(
        0,
        Frame::Opened(vec![ObjectId::of(ObjectKind::Directory, b"x"), ObjectId::of(ObjectKind::Chunk, b"text")]),
    );
    let error = refused(&Store::in_memory(), &written(&frames));
    assert!(error.to_string().contains("chunk"), "{error}");
}
