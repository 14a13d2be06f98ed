//! Listings, while names come and go.

use std::collections::BTreeSet;
use std::time::Instant;

use amalgam_nfs::client::Client;
use amalgam_view::ROOT;
use nfs3_types::nfs3::*;

use crate::kit::{Ask as _, Kit, call};

type Page = (Vec<(String, u64)>, bool);

fn page(client: &mut Client, directory: &nfs_fh3, cookie: u64, count: u32) -> Result<Page, nfsstat3> {
    let arguments = READDIR3args { dir: directory.clone(), cookie, cookieverf: cookieverf3::default(), count };
    let found: Result<READDIR3resok<'_>, (_, READDIR3resfail)> =
        call(client, NFS_PROGRAM::NFSPROC3_READDIR, &arguments);
    let found = found.map_err(|(status, _)| status)?.reply;
    let text = |entry: &entry3<'_>| (String::from_utf8_lossy(entry.name.as_ref()).into_owned(), entry.cookie);
    Ok((found.entries.0.iter().map(text).collect(), found.eof))
}

/// All names but the dots, with handles and numbers.
pub(crate) fn list_plus(client: &mut Client, directory: &nfs_fh3, maxcount: u32) -> Vec<(String, nfs_fh3, u64)> {
    let (mut all, mut cookie) = (Vec::new(), 0);
    loop {
        let arguments = READDIRPLUS3args {
            dir: directory.clone(),
            cookie,
            cookieverf: cookieverf3::default(),
            dircount: maxcount,
            maxcount,
        };
        let found: Result<READDIRPLUS3resok<'_>, (_, READDIRPLUS3resfail)> =
            call(client, NFS_PROGRAM::NFSPROC3_READDIRPLUS, &arguments);
        let found = found.map_err(|(status, _)| status).expect("listed").reply;
        for entry in found.entries.0 {
            cookie = entry.cookie;
            if ![&b"."[..], b".."].contains(&entry.name.as_ref()) {
                let name = String::from_utf8_lossy(entry.name.as_ref()).into_owned();
                all.push((name, entry.name_handle.unwrap(), entry.fileid));
            }
        }
        if found.eof {
            return all;
        }
    }
}

#[test]
fn a_listing_has_dots_and_names_in_pages_of_any_size() {
    let mut kit = Kit::new();
    let root = kit.root.clone();
    for number in 0..40 {
        kit.client.make(&root, &format!("file-{number}")).expect("made");
    }
    for count in [200, 512, 4_096, 1 << 20, u32::MAX] {
        let (mut names, mut cookie) = (Vec::new(), 0);
        loop {
            let (found, is_end) = page(&mut kit.client, &root, cookie, count).expect("listed");
            assert!(!found.is_empty() || is_end);
            cookie = found.last().map_or(cookie, |(_, cookie)| *cookie);
            names.extend(found.into_iter().map(|(name, _)| name));
            if is_end {
                break;
            }
        }
        assert_eq!(names.len(), 42, "in pages of {count}");
        assert_eq!(names[..2], [".", ".."]);
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), 42);
    }
    assert_eq!(page(&mut kit.client, &root, 0, 16), Err(nfsstat3::NFS3ERR_TOOSMALL));
    assert_eq!(page(&mut kit.client, &root, 0x1234_5678_9abc, 4_096), Err(nfsstat3::NFS3ERR_BAD_COOKIE));
    let file = kit.client.look(&root, "file-0").expect("found");
    assert_eq!(page(&mut kit.client, &file, 0, 4_096), Err(nfsstat3::NFS3ERR_NOTDIR));
}

#[test]
fn a_listing_goes_on_behind_names_that_were_removed() {
    let mut kit = Kit::new();
    let root = kit.root.clone();
    for number in 0..300 {
        kit.client.make(&root, &format!("f{number:03}")).expect("made");
    }
    let (mut names, mut cookie, mut step) = (Vec::new(), 0, 0);
    loop {
        let (found, is_end) = page(&mut kit.client, &root, cookie, 1_024).expect("listed");
        cookie = found.last().map_or(cookie, |(_, cookie)| *cookie);
        for (name, _) in &found {
            // All that was listed goes, and new names come before and behind.
            if name.starts_with('f') {
                kit.client.remove(&root, name).expect("removed");
            }
        }
        for prefix in ["a", "z"] {
            kit.client.make(&root, &format!("{prefix}{step:03}")).expect("made");
        }
        step += 1;
        names.extend(found.into_iter().map(|(name, _)| name));
        if is_end {
            break;
        }
    }
    let stayed: Vec<_> = names.iter().filter(|name| name.starts_with('f')).collect();
    assert_eq!(stayed.len(), 300, "each name that was there is listed once");
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "none is listed twice");
}

#[test]
fn a_hundred_thousand_names_are_listed_while_names_come_and_go() {
    const NAMES: usize = 100_000;
    let mut kit = Kit::new();
    let root = kit.root.clone();
    let (view, caller) = (kit.home.view.clone(), kit.elsewhere());
    let directory = view.create_directory(&caller, ROOT, b"d", 0o755).expect("made").ino;
    for number in 0..NAMES {
        let made = view.create(&caller, directory, format!("n{number:06}").as_bytes(), 0o644).expect("made");
        view.forget([(made.ino, 1)]);
    }
    let d = kit.client.look(&root, "d").expect("found");
    let is_done = std::sync::atomic::AtomicBool::new(false);
    let listed = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0;
            while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                let name = format!("m{:03}", number % 500);
                number += 1;
                match view.create(&caller, directory, name.as_bytes(), 0o644) {
                    Ok(made) => view.forget([(made.ino, 1)]),
                    Err(_) => view.unlink(&caller, directory, name.as_bytes()).expect("removed"),
                }
            }
        });
        let listed = list_plus(&mut kit.client, &d, 256 << 10);
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
        listed
    });
    let stayed: BTreeSet<_> = listed.iter().filter(|(name, ..)| name.starts_with('n')).map(|(name, ..)| name).collect();
    assert_eq!(stayed.len(), NAMES, "every name that stayed");
    let all: BTreeSet<_> = listed.iter().map(|(name, ..)| name).collect();
    assert_eq!(all.len(), listed.len(), "none twice");
    let begun = Instant::now();
    assert!(list_plus(&mut kit.client, &d, 1 << 20).len() >= NAMES);
    eprintln!("{NAMES} names with attributes and handles in {:?}", begun.elapsed());
}

#[test]
fn cookies_of_a_removed_directory_are_stale() {
    let mut kit = Kit::new();
    let root = kit.root.clone();
    let d = kit.client.make_directory(&root, "d").expect("made");
    kit.client.make(&d, "f").expect("made");
    let (found, _) = page(&mut kit.client, &d, 0, 4_096).expect("listed");
    let cookie = found.last().expect("a name").1;
    kit.client.remove(&d, "f").expect("removed");
    kit.client.remove_directory(&root, "d").expect("removed");
    assert_eq!(page(&mut kit.client, &d, cookie, 4_096), Err(nfsstat3::NFS3ERR_STALE));
    kit.client.make_directory(&root, "d").expect("made");
    assert_eq!(page(&mut kit.client, &d, cookie, 4_096), Err(nfsstat3::NFS3ERR_STALE), "another one of the name");
}
