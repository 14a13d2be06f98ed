//! Files that are read one after the other: what is fetched before it is asked for, and that it is right.

use std::sync::Arc;
use std::time::{Duration, Instant};

use amalgam_engine::backend::{Memory, Meter, Metered};
use amalgam_engine::{Store, StoreOptions};
use amalgam_view::{Ino, Kind};

use crate::kit::{Kit, options};

const DIRECTORIES: u32 = 12;
const FILES: u32 = 20;
const FILE_BYTES: usize = 10_000;

fn content(name: &str) -> Vec<u8> {
    name.bytes().chain(*b", ").cycle().take(FILE_BYTES).collect()
}

/// A view of stored files, opened anew, and what its store is asked for.
fn stored() -> (Kit, Arc<Meter>, tempfile::TempDir) {
    let meter = Arc::new(Meter::default());
    let backend = Metered::new(Memory::default(), Arc::clone(&meter));
    let store = Store::new(Arc::new(backend), &StoreOptions::default());
    let scratch = tempfile::tempdir().expect("a directory");
    let kit = Kit::at(&store, &scratch.path().join("journal"), options());
    for directory in 0..DIRECTORIES {
        kit.directory(&format!("d{directory:02}"));
        for file in 0..FILES {
            let path = format!("d{directory:02}/f{file:02}");
            kit.file(&path, &content(&path));
        }
    }
    kit.commit();
    (kit.close_and_reopen(), meter, scratch)
}

/// The names in a directory, with their numbers, as one who lists it sees them.
fn list(kit: &Kit, ino: Ino) -> Vec<(String, Ino, Kind)> {
    let mut found = Vec::new();
    let listed = kit.view.read_directory_plus(&kit.caller, ino, 0, |listed| {
        if !matches!(listed.name, b"." | b"..") {
            let name = String::from_utf8_lossy(listed.name).into_owned();
            found.push((name, listed.attributes.ino, listed.attributes.kind));
        }
        true
    });
    listed.expect("list");
    found
}

/// Every file in the order of the listings, with its path.
fn files(kit: &Kit) -> Vec<(String, Ino)> {
    let directories = list(kit, amalgam_view::ROOT).into_iter().filter(|(_, _, kind)| *kind == Kind::Directory);
    directories
        .flat_map(|(directory, ino, _)| {
            let files = list(kit, ino).into_iter();
            files.map(move |(name, ino, _)| (format!("{directory}/{name}"), ino))
        })
        .collect()
}

/// Waits for the store to be asked for so many bytes. A walk ends a second after the last read, so a longer wait has no use.
fn are_read(meter: &Meter, bytes: u64) -> bool {
    let begun = Instant::now();
    while meter.bytes_read() < bytes {
        if begun.elapsed() > Duration::from_secs(3) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Reads directory by directory, as a search does.
fn read_all(kit: &Kit, mut each: impl FnMut(usize, &str)) {
    let mut count = 0;
    for (directory, ino, _) in list(kit, amalgam_view::ROOT) {
        for (name, ino, _) in list(kit, ino) {
            let path = format!("{directory}/{name}");
            assert!(kit.read(ino) == content(&path), "{path}");
            count += 1;
            each(count, &path);
        }
    }
    assert_eq!(count as u32, DIRECTORIES * FILES);
}

#[test]
fn a_reader_in_order_finds_the_rest_of_the_tree_prefetched() {
    // On a busy machine the workers, which are nice, may not run before the walk gives its reader up.
    let is_prefetched = (0..10).any(|_| {
        let (kit, meter, _scratch) = stored();
        let before = meter.bytes_read();
        let stored_bytes = u64::from(DIRECTORIES * FILES) * 30;
        let mut all = false;
        read_all(&kit, |count, _| {
            if count == 15 {
                // The reader has asked for no more than these, in the first directory.
                all = are_read(&meter, before + stored_bytes);
            }
        });
        all
    });
    assert!(is_prefetched, "ten readers in order, and no walk that fetched the tree ahead of one");
}

#[test]
fn whoever_only_lists_or_reads_here_and_there_has_nothing_fetched() {
    let (kit, meter, _scratch) = stored();
    let all = files(&kit);
    let before = meter.gets();
    for (path, ino) in all.iter().rev().step_by(3).take(20) {
        assert!(kit.read(*ino) == content(path), "{path}");
    }
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(meter.gets() - before, 20, "each file that was read, and no other");
}

#[test]
fn what_changes_ahead_of_a_reader_is_read_as_it_is_now() {
    let (kit, _, _scratch) = stored();
    let all = files(&kit);
    for (number, (path, ino)) in all.iter().enumerate() {
        if number % 5 == 0
            && let Some((_, later)) = all.get(number + 9)
        {
            kit.write(*later, 3, b"changed");
        }
        let mut expected = content(path);
        if number >= 9 && (number - 9).is_multiple_of(5) {
            expected[3..10].copy_from_slice(b"changed");
        }
        assert!(kit.read(*ino) == expected, "{path}");
    }
}

#[test]
fn a_view_that_ends_meanwhile_leaves_its_store_to_others() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("store");
    for round in 0..3 {
        let store = Store::open(&path).expect("nobody has it any more");
        let kit = Kit::at(&store, &directory.path().join("journal"), options());
        if round == 0 {
            for file in 0..200 {
                kit.file(&format!("f{file:03}"), &content(&file.to_string()));
            }
            kit.commit();
        }
        for (name, ino, _) in list(&kit, amalgam_view::ROOT).into_iter().take(20) {
            assert_eq!(kit.read(ino).len(), FILE_BYTES, "{name}");
        }
        kit.view.close().expect("close");
    }
}
