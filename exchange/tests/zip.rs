//! zip archives in and out, with Info-ZIP and Python as oracles.

#[path = "kit/listing.rs"]
mod listing;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use amalgam_engine::work::Special;
use amalgam_engine::{Store, Time, WorkingTree};
use amalgam_exchange::{Error, Imported, Limits, Progress, ZipExport, ZipImport, export_zip, import_zip};
use listing::{Listing, assert_same, of_directory, of_tree, run};

fn import(store: &Store, path: &Path) -> Result<Imported, Error> {
    let file = fs::File::open(path).expect("open");
    import_zip(store, &file, ZipImport::default(), &Progress::default())
}

/// A listing without what zip does not say: the root's own line.
fn without_root(mut listing: Listing) -> Listing {
    listing.remove("");
    listing
}

fn make(top: &Path) {
    fs::create_dir_all(top.join("a/b")).expect("mkdir");
    fs::create_dir_all(top.join("empty")).expect("mkdir");
    fs::write(top.join("a/file"), b"hello").expect("write");
    fs::write(top.join("a/none"), b"").expect("write");
    fs::write(top.join("a/b/large"), vec![7; 5_000_000]).expect("write");
    let noise: Vec<u8> = (0..2_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    fs::write(top.join("a/b/noise"), noise).expect("write");
    fs::write(top.join("caf\u{e9}"), b"name").expect("write");
    fs::write(top.join("run"), b"#!").expect("write");
    fs::set_permissions(top.join("run"), fs::Permissions::from_mode(0o4755)).expect("chmod");
    symlink("../elsewhere", top.join("a/link")).expect("symlink");
    let script = "import os,sys\nfor here, d, f in os.walk(sys.argv[1], topdown=False):\n\
        \x20for n in f + d: os.utime(here + '/' + n, (1_600_000_001, 1_600_000_001), follow_symlinks=False)";
    run(Command::new("python3").arg("-c").arg(script).arg(top));
}

#[test]
fn an_archive_of_info_zip_becomes_the_tree_that_was_archived() {
    let home = tempfile::tempdir().expect("a directory");
    let top = home.path().join("top");
    make(&top);
    let archive = home.path().join("a.zip");
    run(Command::new("zip").current_dir(&top).args(["-qry"]).arg(&archive).arg("."));
    let store = Store::in_memory();
    let imported = import(&store, &archive).expect("import");
    assert_same(&without_root(of_tree(&store, imported.root)), &without_root(of_directory(&top)));
    assert_eq!(imported.report.notices, []);
}

#[test]
fn an_exported_tree_is_extracted_as_it_was() {
    let home = tempfile::tempdir().expect("a directory");
    let top = home.path().join("top");
    make(&top);
    let archive = home.path().join("a.zip");
    run(Command::new("zip").current_dir(&top).args(["-qry"]).arg(&archive).arg("."));
    let store = Store::in_memory();
    let imported = import(&store, &archive).expect("import");
    let exported = home.path().join("b.zip");
    let output = fs::File::create(&exported).expect("create");
    let report =
        export_zip(&store, imported.root, output, &ZipExport::default(), &Progress::default()).expect("export");
    assert_eq!(report.notices, []);
    run(Command::new("unzip").arg("-tq").arg(&exported));
    let out = home.path().join("out");
    run(Command::new("unzip").args(["-qK"]).arg(&exported).arg("-d").arg(&out));
    // unzip sets no times of symlinks.
    let without_link = |mut listing: Listing| {
        let line = listing.remove("a/link").expect("the symlink");
        assert!(line.starts_with("symlink ../elsewhere "), "{line}");
        without_root(listing)
    };
    assert_same(&without_link(of_directory(&out)), &without_link(of_directory(&top)));
    let script =
        "import zipfile,sys\nz=zipfile.ZipFile(sys.argv[1])\nassert z.testzip() is None\nprint(len(z.infolist()))";
    let printed = run(Command::new("python3").arg("-c").arg(script).arg(&exported));
    assert_eq!(String::from_utf8_lossy(&printed).trim(), (of_directory(&top).len() - 1).to_string());
    let again = import(&store, &exported).expect("import");
    assert_same(&of_tree(&store, again.root), &of_tree(&store, imported.root));
}

#[test]
fn what_zip_cannot_say_is_reported() {
    let store = Store::in_memory();
    let mut tree = WorkingTree::new(&store);
    tree.set_now(Time(1_600_000_000_500_000_000));
    tree.write("a", b"1").expect("write");
    tree.link("a", "b").expect("link");
    tree.set_xattr("a", b"user.x", b"y").expect("attribute");
    tree.create_special("p", Special::Fifo, 0o600).expect("special");
    let (root, _kept) = tree.freeze().hold().expect("hold");
    let report = export_zip(&store, root, Vec::new(), &ZipExport::default(), &Progress::default()).expect("export");
    for (what, count) in [("hard links", 2), ("extended attributes", 2), ("FIFOs", 1), ("fractions", 3)] {
        let notice = report.notices.iter().find(|notice| notice.what.contains(what));
        assert_eq!(notice.map(|notice| notice.count), Some(count), "{what}: {:?}", report.notices);
    }
}

/// An archive that a Python script makes as `out`, a `bytearray` from `z`, a list of names and bytes.
fn crafted(home: &Path, lines: &str) -> std::path::PathBuf {
    let archive = home.join("c.zip");
    let script = format!(
        r#"
import zipfile, io, sys, struct
buffer = io.BytesIO(); z = zipfile.ZipFile(buffer, 'w', zipfile.ZIP_DEFLATED)
def add(name, data=b'', mode=0o100644):
    i = zipfile.ZipInfo(name); i.create_system = 3; i.external_attr = mode << 16; i.compress_type = zipfile.ZIP_DEFLATED
    z.writestr(i, data)
def edit(out): return out
{lines}
z.close(); out = edit(bytearray(buffer.getvalue()))
open(sys.argv[1], 'wb').write(out)
"#
    );
    run(Command::new("python3").arg("-c").arg(script).arg(&archive));
    archive
}

#[test]
fn hostile_archives_are_refused() {
    for (lines, says) in [
        ("add('../evil', b'x')", "`..`"),
        ("add('l', b'/etc', 0o120777)\nadd('l/passwd', b'x')", "a symlink and not a directory"),
        ("add('l', b'', 0o120777)", "target is empty"),
        ("add('a', b'x' * 99)\ndef edit(out): out[32] ^= 1; return out", ""),
        ("add('a', b'x' * 99)\ndef edit(out): return out[:-10]", "no directory"),
        ("add('aa', b'x' * 99)\ndef edit(out): out[30] = ord('b'); return out", "another file"),
        ("add('a', b'x' * 99)\ndef edit(out): i = out.rindex(b'PK\\x01\\x02'); out[i+8] |= 1; return out", "encrypted"),
        ("add('a', b'x' * 99)\ndef edit(out): i = out.rindex(b'PK\\x01\\x02'); out[i+16] ^= 1; return out", "checksum"),
        (
            "add('a', b'x' * 99)\ndef edit(out): i = out.rindex(b'PK\\x01\\x02'); out[i+24] -= 1; return out",
            "more bytes",
        ),
        (
            "add('a', b'x' * 99)\ndef edit(out): i = out.rindex(b'PK\\x01\\x02'); out[i+24] += 1; return out",
            "end of file",
        ),
        (
            "add('a', b'x' * 99)\nadd('b', b'y')\ndef edit(out):\n i = out.rindex(b'PK\\x01\\x02'); out[i+42:i+46] = struct.pack('<I', 0); return out",
            "share bytes",
        ),
        ("def edit(out): return b'not a zip archive'", "no zip archive"),
        ("def edit(out): return b''", "no zip archive"),
    ] {
        let home = tempfile::tempdir().expect("a directory");
        let archive = crafted(home.path(), lines);
        let error = import(&Store::in_memory(), &archive).err();
        let error = error.unwrap_or_else(|| panic!("{lines}: imported")).to_string();
        assert!(error.contains(says), "{lines}: {error}");
    }
}

#[test]
fn bombs_meet_the_limits() {
    let home = tempfile::tempdir().expect("a directory");
    let archive = crafted(home.path(), "add('zeros', bytes(30_000_000))");
    let file = fs::File::open(&archive).expect("open");
    let limits = Limits { ratio_from_bytes: 1 << 20, ratio_max: 100, ..Limits::default() };
    let options = ZipImport { limits, ..ZipImport::default() };
    let error = import_zip(&Store::in_memory(), &file, options, &Progress::default()).err().expect("a bomb");
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    import(&Store::in_memory(), &archive).expect("within the usual limits");
}

#[test]
fn many_members_need_the_large_format() {
    let home = tempfile::tempdir().expect("a directory");
    let store = Store::in_memory();
    let mut tree = WorkingTree::new(&store);
    for number in 0..66_000 {
        tree.write(format!("f{number}"), b"").expect("write");
    }
    let (root, _kept) = tree.freeze().hold().expect("hold");
    let archive = home.path().join("a.zip");
    let output = fs::File::create(&archive).expect("create");
    export_zip(&store, root, output, &ZipExport::default(), &Progress::default()).expect("export");
    let script = "import zipfile,sys\nprint(len(zipfile.ZipFile(sys.argv[1]).infolist()))";
    let printed = run(Command::new("python3").arg("-c").arg(script).arg(&archive));
    assert_eq!(String::from_utf8_lossy(&printed).trim(), "66000");
    assert_eq!(import(&store, &archive).expect("import").report.files, 66_000);
}

#[test]
fn an_archive_behind_a_program_is_read() {
    let home = tempfile::tempdir().expect("a directory");
    let archive = crafted(home.path(), "add('a', b'1')\nadd('b', b'2')\ndef edit(out): return b'#!/bin/sh\\n' + out");
    let store = Store::in_memory();
    let imported = import(&store, &archive).expect("import");
    assert_eq!(WorkingTree::open_root(&store, imported.root).expect("open").read("b").expect("read"), b"2");
}
