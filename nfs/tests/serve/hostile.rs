//! Clients that lie, dawdle and guess: answered or cut off, and others go on.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use amalgam_nfs::client::{Client, Reply};
use nfs3_types::nfs3::*;
use nfs3_types::xdr_codec::Void;

use crate::kit::{Ask as _, Kit, at, options, spec};
use crate::load::resident_bytes;

/// Sends bytes, and says whether the server closed the connection without a word.
fn is_cut_off(kit: &Kit, bytes: &[u8]) -> bool {
    let mut stream = TcpStream::connect(kit.server.address()).expect("connected");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
    // The server may close before all is sent.
    stream.write_all(bytes).ok();
    let mut answer = [0; 1];
    !matches!(stream.read(&mut answer), Ok(1))
}

/// The words of a call, as they are sent.
fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn record(body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32 | 1 << 31).to_be_bytes()[..], body].concat()
}

fn answer(client: &mut Client, body: &[u8]) -> Vec<u32> {
    client.send(&record(body)).expect("sent");
    let answer = client.receive().expect("answered");
    answer.chunks(4).map(|word| u32::from_be_bytes(word.try_into().expect("words"))).collect()
}

/// A call of NFS without a credential.
fn head(procedure: u32) -> Vec<u32> {
    vec![7, 0, 2, PROGRAM, VERSION, procedure, 0, 0, 0, 0]
}

const GARBAGE: [u32; 6] = [7, 1, 0, 0, 0, 4];

#[test]
fn lengths_that_lie_are_garbage_or_the_end() {
    let kit = Kit::new();
    let mut client = kit.connect();
    for length in [65, 0xffff, 0x7fff_ffff, u32::MAX] {
        // A handle of that length, with nothing behind.
        let mut call = head(1);
        call.push(length);
        assert_eq!(answer(&mut client, &words(&call)), GARBAGE, "{length:#x}");
        // A credential of that length.
        let call = [7, 0, 2, PROGRAM, VERSION, 1, 1, length.max(401)];
        assert_eq!(answer(&mut client, &words(&call)), GARBAGE, "{length:#x}");
    }
    assert!(is_cut_off(&kit, &words(&[u32::MAX])), "a record of 2 GiB");
    assert!(is_cut_off(&kit, &words(&[2 << 20 | 1 << 31, 1, 2, 3])), "a record of 2 MiB");
    assert!(is_cut_off(&kit, &record(&words(&[7, 1, 0, 0, 0, 0]))), "an answer");
    assert!(is_cut_off(&kit, &record(&words(&[7]))), "no call at all");
    assert!(is_cut_off(&kit, &record(&[])), "nothing");
    assert!(is_cut_off(&kit, &words(&[0]).repeat(5_000)), "fragments without end");
    assert!(is_cut_off(&kit, &[&(60_000_u32).to_be_bytes()[..], &[0; 60_000]].concat().repeat(40)), "or large ones");
}

#[test]
fn calls_that_are_none_are_refused_in_the_protocols_words() {
    let kit = Kit::new();
    let mut client = kit.connect();
    let mut refused = |words_: &[u32]| answer(&mut client, &words(words_))[1..].to_vec();
    assert_eq!(refused(&[7, 0, 3, PROGRAM, VERSION, 0]), [1, 1, 0, 2, 2], "another version of RPC");
    assert_eq!(refused(&[7, 0, 2, 100_000, 2, 0, 0, 0, 0, 0]), [1, 0, 0, 0, 1], "the portmapper");
    assert_eq!(refused(&[7, 0, 2, PROGRAM, 4, 0, 0, 0, 0, 0]), [1, 0, 0, 0, 2, 3, 3], "version 4");
    assert_eq!(refused(&[7, 0, 2, PROGRAM, VERSION, 22, 0, 0, 0, 0]), [1, 0, 0, 0, 3], "no such procedure");
    assert_eq!(refused(&[7, 0, 2, 100_005, 3, 6, 0, 0, 0, 0]), [1, 0, 0, 0, 3], "no such procedure");
    assert_eq!(refused(&[7, 0, 2, PROGRAM, VERSION, u32::MAX, 0, 0, 0, 0]), [1, 0, 0, 0, 3]);
    assert_eq!(refused(&[7, 0, 2, PROGRAM, VERSION, 1, 6, 0, 0, 0]), [1, 1, 1, 5], "another credential");
    assert_eq!(refused(&[7, 0, 2, PROGRAM, VERSION, 1, 1, 8, 0, 400, 0, 0]), [1, 1, 1, 1], "one that lies");
}

#[test]
fn padding_and_bytes_behind_the_arguments_are_looked_at() {
    let mut kit = Kit::new();
    let root = kit.root.clone();
    let arguments = LOOKUP3args { what: at(&root, "abc") };
    let mut sound = kit.client.record(PROGRAM, VERSION, 3, &arguments).expect("packed");
    assert_eq!(sound.pop(), Some(0), "padding");
    let mut padded = [&sound[..], &[1]].concat();
    kit.client.send(&padded).expect("sent");
    assert_eq!(kit.client.receive().expect("answered")[20..], 4_u32.to_be_bytes());
    *padded.last_mut().expect("a byte") = 0;
    let longer = [&padded[4..], &[0; 4]].concat();
    kit.client.send(&record(&longer)).expect("sent");
    assert_eq!(kit.client.receive().expect("answered")[20..], 4_u32.to_be_bytes());
    assert_eq!(kit.server.statistics().malformed, 2);
}

#[test]
fn flipped_bits_in_a_handle_are_noticed() {
    let mut kit = Kit::new();
    let root = kit.root.clone();
    let file = kit.client.make(&root, "f").expect("made");
    for bit in 0..file.data.len() * 8 {
        let mut bytes = file.data.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let found = kit.client.attributes(&nfs_fh3 { data: bytes.into() });
        let status = found.expect_err("not a handle that was given");
        assert!(matches!(status, nfsstat3::NFS3ERR_BADHANDLE | nfsstat3::NFS3ERR_STALE), "bit {bit}: {status:?}");
    }
    for length in [0, 1, 16, 40, 42, 64] {
        let found = kit.client.attributes(&nfs_fh3 { data: vec![1; length].into() });
        assert_eq!(found.expect_err("of another length"), nfsstat3::NFS3ERR_BADHANDLE);
    }
    kit.client.attributes(&file).expect("the right one");
}

#[test]
fn a_read_of_4_gib_is_as_long_as_the_server_says() {
    let mut kit = Kit::new();
    let root = kit.root.clone();
    let file = kit.client.make(&root, "f").expect("made");
    let size = sattr3 { size: set_size3::Some(1 << 40), ..sattr3::default() };
    kit.client.set(&file, size).expect("grown");
    let (bytes, is_end) = kit.client.get(&file, 0, u32::MAX).expect("read");
    assert_eq!((bytes.len(), is_end), (1 << 20, false));
    assert_eq!(kit.client.get(&file, u64::MAX, u32::MAX), Ok((Vec::new(), true)));
}

#[test]
fn requests_that_arrive_byte_by_byte_or_in_one_byte_fragments_are_answered() {
    let mut kit = Kit::new();
    let whole = kit.client.record(PROGRAM, VERSION, 1, &GETATTR3args { object: kit.root.clone() }).expect("packed");
    let mut client = kit.connect();
    for byte in &whole {
        client.send(&[*byte]).expect("sent");
    }
    client.receive().expect("answered");
    let body = &whole[4..];
    let mut fragments = Vec::new();
    for (number, byte) in body.iter().enumerate() {
        let is_last = number + 1 == body.len();
        fragments.extend((1 | u32::from(is_last) << 31).to_be_bytes());
        fragments.push(*byte);
    }
    client.send(&fragments).expect("sent");
    client.receive().expect("answered");
}

#[test]
fn clients_that_dawdle_are_cut_off_and_others_are_served() {
    let mut options = options();
    options.request_timeout = Duration::from_millis(300);
    options.reply_timeout = Duration::from_millis(300);
    options.idle_timeout = Duration::from_millis(1_500);
    let mut kit = Kit::with(spec(), &options);
    let root = kit.root.clone();
    let begun = Instant::now();
    assert!(is_cut_off(&kit, &words(&[1 << 31 | 100, 7])), "half a request");
    assert!(is_cut_off(&kit, &words(&[1])), "half a fragment");
    assert!(begun.elapsed() < Duration::from_secs(10));
    // One that asks for much and takes nothing.
    let file = kit.client.make(&root, "f").expect("made");
    kit.client.put(&file, 0, &vec![7; 1 << 20], stable_how::UNSTABLE).expect("written");
    let mut greedy = kit.connect();
    let ask = greedy
        .record(PROGRAM, VERSION, 6, &READ3args { file: file.clone(), offset: 0, count: 1 << 20 })
        .expect("packed");
    for _ in 0..64 {
        if greedy.send(&ask).is_err() {
            break;
        }
    }
    for _ in 0..20 {
        kit.client.attributes(&file).expect("others are answered");
        std::thread::sleep(Duration::from_millis(30));
    }
    let until = Instant::now() + Duration::from_secs(20);
    while kit.server.statistics().connections > 1 {
        assert!(Instant::now() < until, "all but one are cut off");
        kit.client.attributes(&file).expect("others are answered");
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(2_500));
    let late: std::io::Result<Reply<Void>> = kit.client.nfs(NFS_PROGRAM::NFSPROC3_NULL, &Void);
    assert!(late.is_err(), "an idle connection was closed");
}

#[test]
fn replies_from_the_store_that_nobody_reads_stay_within_the_memory_limit() {
    let mut options = options();
    options.memory_bytes_max = 2 << 20;
    let mut kit = Kit::with(spec(), &options);
    let root = kit.root.clone();
    let file = kit.client.make(&root, "f").expect("made");
    for number in 0..8 {
        kit.client.put(&file, number << 20, &vec![7; 1 << 20], stable_how::UNSTABLE).expect("written");
    }
    kit.home.commit();
    let before = resident_bytes();
    let greedy: Vec<Client> = (0..16)
        .map(|_| {
            let mut client = kit.connect();
            let arguments = READ3args { file: file.clone(), offset: 0, count: 1 << 20 };
            let ask = client.record(PROGRAM, VERSION, 6, &arguments).expect("packed");
            client.send(&ask.repeat(64)).expect("sent");
            client
        })
        .collect();
    let until = Instant::now() + Duration::from_secs(4);
    let mut most = before;
    while Instant::now() < until {
        kit.client.attributes(&file).expect("others are answered");
        most = most.max(resident_bytes());
        std::thread::sleep(Duration::from_millis(10));
    }
    // They ask for 1 GiB; other tests run in this process.
    assert!(most - before < 200 << 20, "{} MiB", (most - before) >> 20);
    drop(greedy);
}

#[test]
fn random_bytes_never_end_the_server() {
    let mut kit = Kit::new();
    let root = kit.root.clone();
    let file = kit.client.make(&root, "f").expect("made");
    // A generator of its own, so that a failure comes again. A soak sets both.
    let setting = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = setting("AMALGAM_NFS_SEED").unwrap_or(0x9e37_79b9_7f4a_7c15);
    let rounds = setting("AMALGAM_NFS_ROUNDS").unwrap_or(3_000);
    eprintln!("seed {seed}, {rounds} rounds");
    let mut state = seed.max(1);
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut client = kit.connect();
    for round in 0..rounds {
        let procedure = (random() % 23) as u32;
        let mut body = words(&head(procedure));
        if round % 3 > 0 {
            // A sound handle gets further.
            body.extend(words(&[file.data.len() as u32]));
            let handle = if round % 2 == 0 { &file } else { &root };
            body.extend_from_slice(&handle.data);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        for _ in 0..random() % 30 {
            let word = match random() % 4 {
                0 => 0,
                1 => 1,
                2 => (random() % 64) as u32,
                _ => random() as u32,
            };
            body.extend(word.to_be_bytes());
        }
        if client.send(&record(&body)).is_err() || client.receive().is_err() {
            client = kit.connect();
        }
    }
    kit.client.attributes(&root).expect("the server is there");
    kit.home.commit();
}
