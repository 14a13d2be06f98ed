//! Many clients, and the end of the server.

use std::time::{Duration, Instant};

use amalgam_nfs::client::Client;
use nfs3_types::nfs3::*;

use crate::kit::{Ask as _, Kit, OWNER, PATH, options, spec};

pub(crate) fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("the kernel says");
    let pages: u64 = text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number");
    pages * 4_096
}

/// As many connections as the limit of files allows, at most a thousand: both ends are in this process.
fn connections() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let wanted = rustix::process::Rlimit { current: limit.maximum, ..limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, wanted).ok();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(4_096) as usize;
    (limit.saturating_sub(200) / 2).min(1_000)
}

#[test]
fn a_thousand_idle_mounts_take_little_memory_and_are_served() {
    let mut kit = Kit::new();
    let root = kit.root.clone();
    kit.client.make(&root, "f").expect("made");
    let before = resident_bytes();
    let count = connections();
    let mut clients: Vec<Client> = (0..count)
        .map(|_| {
            let mut client = kit.connect();
            let root = client.root(PATH).expect("answered").expect("mounted");
            client.look(&root, "f").expect("found");
            client
        })
        .collect();
    assert_eq!(kit.server.statistics().connections, count + 1);
    let grown = resident_bytes().saturating_sub(before);
    eprintln!("{count} idle mounts: {} KiB", grown >> 10);
    assert!(grown < 300 << 20);
    for client in &mut clients {
        client.attributes(&root).expect("served");
    }
    drop(clients);
    let until = Instant::now() + Duration::from_secs(20);
    while kit.server.statistics().connections > 1 {
        assert!(Instant::now() < until, "connections end with their clients");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn connections_beyond_the_bound_are_closed_at_once() {
    let mut options = options();
    options.connections_max = 4;
    let mut kit = Kit::with(spec(), &options);
    let mut clients: Vec<Client> = (0..10).map(|_| kit.connect()).collect();
    let root = kit.root.clone();
    kit.client.attributes(&root).expect("the first is served");
    let served = clients.iter_mut().filter_map(|client| {
        let arguments = GETATTR3args { object: root.clone() };
        client.nfs::<GETATTR3res>(NFS_PROGRAM::NFSPROC3_GETATTR, &arguments).ok()
    });
    assert_eq!(served.count(), 3);
}

#[test]
fn eight_clients_write_and_remove_beside_each_other() {
    let kit = Kit::new();
    std::thread::scope(|scope| {
        for number in 0..8 {
            let kit = &kit;
            scope.spawn(move || {
                let mut client = kit.connect();
                let directory = client.make_directory(&kit.root, &format!("d{number}")).expect("made");
                for round in 0..20_u32 {
                    let name = format!("f{round}");
                    let file = client.make(&directory, &name).expect("made");
                    client.put(&file, 0, &[number; 4_096], stable_how::UNSTABLE).expect("written");
                    client.commit(&file).expect("synced");
                    assert_eq!(client.get(&file, 0, 4_096), Ok((vec![number; 4_096], true)));
                    client.remove(&directory, &name).expect("removed");
                }
            });
        }
    });
    assert_eq!(
        kit.server.statistics().operations.iter().find(|(name, _)| *name == "commit").map(|(_, count)| *count),
        Some(160)
    );
}

#[test]
fn requests_that_were_sent_are_answered_before_the_server_ends() {
    let mut kit = Kit::new();
    let root = kit.root.clone();
    let file = kit.client.make(&root, "f").expect("made");
    let asked = 32;
    for number in 0..asked {
        let data = nfs3_types::xdr_codec::Opaque::borrowed(b"x");
        let arguments =
            WRITE3args { file: file.clone(), offset: number, count: 1, stable: stable_how::FILE_SYNC, data };
        let record = kit.client.record(PROGRAM, VERSION, 7, &arguments).expect("packed");
        kit.client.send(&record).expect("sent");
    }
    // All are received before the end begins.
    let until = Instant::now() + Duration::from_secs(20);
    let received = |kit: &Kit| {
        kit.server.statistics().operations.iter().find(|(name, _)| *name == "write").map(|(_, count)| *count)
    };
    while received(&kit) != Some(asked) {
        assert!(Instant::now() < until);
    }
    let Kit { server, mut client, home, .. } = kit;
    server.stop(Duration::from_secs(10));
    for _ in 0..asked {
        client.receive().expect("answered");
    }
    assert!(client.receive().is_err(), "then the connection ends");
    let caller = amalgam_view::Caller::owner(OWNER, OWNER);
    let ino = home.view.lookup(&caller, amalgam_view::ROOT, b"f").expect("found").ino;
    assert_eq!(home.view.attributes(ino).expect("attributes").size, asked);
}
