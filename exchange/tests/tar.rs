//! tar archives in and out, with GNU tar and Python as oracles.

#[path = "kit/listing.rs"]
mod listing;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use amalgam_engine::{OperationContext, Store, WorkingTree};
use amalgam_exchange::{Compression, Error, Imported, Limits, Progress, TarExport, TarImport, export_tar, import_tar};
use listing::{assert_same, of_directory, of_tree, run};

fn import(store: &Store, archive: &Path) -> Imported {
    let file = fs::File::open(archive).expect("open");
    import_tar(store, file, TarImport::default(), &Progress::default()).expect("import")
}

fn import_bytes(archive: &[u8]) -> Result<(Store, Imported), Error> {
    let store = Store::in_memory();
    let imported = import_tar(&store, archive, TarImport::default(), &Progress::default())?;
    Ok((store, imported))
}

fn python(script: &str, arguments: &[&Path]) -> Vec<u8> {
    run(Command::new("python3").arg("-c").arg(script).args(arguments))
}

/// A directory with everything that a tree can hold and this host can make.
fn make_everything(top: &Path) {
    fs::create_dir_all(top.join("empty")).expect("mkdir");
    fs::create_dir_all(top.join("a/b/c")).expect("mkdir");
    fs::write(top.join("a/file"), b"hello").expect("write");
    fs::write(top.join("a/empty"), b"").expect("write");
    let noise =
        |bytes: usize| -> Vec<u8> { (0..bytes as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect() };
    fs::write(top.join("a/b/large"), noise(5_000_000)).expect("write");
    fs::write(top.join("a/b/medium"), noise(200_000)).expect("write");
    fs::hard_link(top.join("a/file"), top.join("a/b/second")).expect("link");
    fs::hard_link(top.join("a/file"), top.join("z")).expect("link");
    symlink("../../outside", top.join("a/up")).expect("symlink");
    symlink("x".repeat(200), top.join("a/long-target")).expect("symlink");
    let long = format!("{}/{}/{}", "d".repeat(120), "e".repeat(120), "f".repeat(250));
    fs::create_dir_all(top.join(&long).parent().expect("a parent")).expect("mkdir");
    fs::write(top.join(&long), b"deep").expect("write");
    fs::write(top.join(std::ffi::OsStr::from_bytes(b"not-\xff-utf8")), b"bytes").expect("write");
    fs::write(top.join("line\nbreak"), b"odd").expect("write");
    fs::write(top.join("setuid"), b"#!").expect("write");
    fs::set_permissions(top.join("setuid"), fs::Permissions::from_mode(0o4755)).expect("chmod");
    fs::set_permissions(top.join("empty"), fs::Permissions::from_mode(0o1777)).expect("chmod");
    let script = r#"
import os, sys
top = os.fsencode(sys.argv[1])
os.mkfifo(top + b'/fifo')
with open(top + b'/sparse', 'wb') as f:
    f.seek(1 << 20); f.write(b'x' * 70000); f.seek(9 << 20); f.write(b'y'); f.truncate(20 << 20)
with open(top + b'/hole', 'wb') as f:
    f.truncate(3 << 20)
os.setxattr(top + b'/a/file', 'user.note', b'one\x00two\xff')
os.setxattr(top + b'/a/b', 'user.big', b'v' * 3000)
acl = bytes.fromhex('0200000001000600ffffffff02000400e803000004000400ffffffff10000400ffffffff20000400ffffffff')
os.setxattr(top + b'/a/empty', 'system.posix_acl_access', acl)
for path, when in ((b'/a/file', -1_500_000_000), (b'/a/empty', 1_700_000_000_123_456_789), (b'/empty', 0)):
    os.utime(top + path, ns=(when, when))
"#;
    python(script, &[top]);
}

fn tar_of(top: &Path, archive: &Path, options: &[&str]) {
    run(Command::new("tar").args(options).arg("-cf").arg(archive).arg("-C").arg(top).arg("."));
}

#[test]
fn an_archive_of_gnu_tar_becomes_the_tree_that_was_archived() {
    let home = tempfile::tempdir().expect("a directory");
    let top = home.path().join("top");
    make_everything(&top);
    let archive = home.path().join("a.tar");
    let store = Store::in_memory();
    let expected = of_directory(&top);
    for options in [
        &["--format=posix", "--xattrs", "--acls", "--numeric-owner", "--sparse"][..],
        &["--format=posix", "--xattrs", "--acls", "--numeric-owner", "--sparse", "--sparse-version=0.0"],
        &["--format=posix", "--xattrs", "--acls", "--numeric-owner", "--sparse", "--sparse-version=0.1"],
        &["--format=posix", "--xattrs", "--acls", "--numeric-owner"],
        &["--format=posix", "--xattrs", "--acls", "--numeric-owner", "-z"],
        &["--format=posix", "--xattrs", "--acls", "--numeric-owner", "-J"],
        &["--format=posix", "--xattrs", "--acls", "--numeric-owner", "--zstd"],
    ] {
        tar_of(&top, &archive, options);
        let imported = import(&store, &archive);
        assert_same(&of_tree(&store, imported.root), &expected);
        assert_eq!(imported.report.hard_links, 2, "{options:?}");
        assert_eq!(imported.report.notices, [], "{options:?}");
    }
}

#[test]
fn the_gnu_format_loses_only_what_it_cannot_say() {
    let home = tempfile::tempdir().expect("a directory");
    let top = home.path().join("top");
    make_everything(&top);
    let archive = home.path().join("a.tar");
    let strip = |listing: listing::Listing| -> listing::Listing {
        let seconds = |line: String| {
            let (before, rest) = line.split_once(" mtime=").expect("a time");
            let (time, rest) = rest.split_once(' ').expect("more");
            let time: i64 = time.parse().expect("a number");
            let rest = rest.split(' ').next().expect("the names");
            format!("{before} mtime={} {rest}", time.div_euclid(1_000_000_000))
        };
        listing.into_iter().map(|(path, line)| (path, seconds(line))).collect()
    };
    let store = Store::in_memory();
    for options in [&["--format=gnu"][..], &["--format=gnu", "--sparse"], &["--format=oldgnu", "--sparse"]] {
        tar_of(&top, &archive, options);
        let imported = import(&store, &archive);
        assert_same(&strip(of_tree(&store, imported.root)), &strip(of_directory(&top)));
    }
}

#[test]
fn an_exported_tree_is_extracted_by_gnu_tar_as_it_was() {
    let home = tempfile::tempdir().expect("a directory");
    let top = home.path().join("top");
    make_everything(&top);
    let archive = home.path().join("a.tar");
    tar_of(&top, &archive, &["--format=posix", "--xattrs", "--acls", "--numeric-owner", "--sparse"]);
    let store = Store::in_memory();
    let imported = import(&store, &archive);
    for (compression, flag) in
        [(Compression::None, "-p"), (Compression::Gzip, "-z"), (Compression::Zstd, "--zstd"), (Compression::Xz, "-J")]
    {
        let exported = home.path().join("b.tar");
        let options = TarExport { compression, ..TarExport::default() };
        let output = fs::File::create(&exported).expect("create");
        let report = export_tar(&store, imported.root, output, &options, &Progress::default()).expect("export");
        assert_eq!((report.files, report.hard_links), (imported.report.files, 2));
        let other = home.path().join(format!("other{flag}"));
        fs::create_dir(&other).expect("mkdir");
        let mut tar = Command::new("tar");
        tar.args(["--xattrs", "--xattrs-include=*", "--acls", "--numeric-owner", "-p", flag, "-xf"]);
        run(tar.arg(&exported).arg("-C").arg(&other));
        assert_same(&of_directory(&other), &of_directory(&top));
        // And it comes back as the same tree, to the last bit.
        let again = import(&store, &exported);
        assert_eq!(again.root, imported.root, "{compression:?}");
    }
}

#[test]
fn python_reads_what_is_exported() {
    let home = tempfile::tempdir().expect("a directory");
    let top = home.path().join("top");
    make_everything(&top);
    let archive = home.path().join("a.tar");
    tar_of(&top, &archive, &["--format=posix"]);
    let store = Store::in_memory();
    let imported = import(&store, &archive);
    let exported = home.path().join("b.tar");
    let output = fs::File::create(&exported).expect("create");
    export_tar(&store, imported.root, output, &TarExport::default(), &Progress::default()).expect("export");
    let script = "import tarfile,sys\nt=tarfile.open(sys.argv[1])\nprint(len(t.getmembers()),\
        t.extractfile('a/b/second').read(), t.extractfile('sparse').read()[1<<20:(1<<20)+3])";
    let printed = String::from_utf8(python(script, &[&exported])).expect("text");
    let members = of_directory(&top).len();
    assert_eq!(printed.trim(), format!("{members} b'hello' b'xxx'"));
}

#[test]
fn parts_of_a_tree_are_exported_by_path() {
    let store = Store::in_memory();
    let mut tree = WorkingTree::new(&store);
    tree.create_directories("a/b").expect("mkdir");
    tree.write("a/b/one", b"1").expect("write");
    tree.write("two", b"2").expect("write");
    let (root, _kept) = tree.freeze().hold().expect("hold");
    let paths = vec![amalgam_engine::TreePath::new("a/b").expect("a path")];
    let options = TarExport { paths, ..TarExport::default() };
    let mut archive = Vec::new();
    export_tar(&store, root, &mut archive, &options, &Progress::default()).expect("export");
    let (other, imported) = import_bytes(&archive).expect("import");
    let listed: Vec<_> = of_tree(&other, imported.root).into_keys().collect();
    assert_eq!(listed, ["", "a", "a/b", "a/b/one"]);
    let options = TarExport { paths: vec![amalgam_engine::TreePath::new("none").expect("a path")], ..options };
    export_tar(&store, root, Vec::new(), &options, &Progress::default()).expect_err("not there");
}

/// An archive that Python made from lines of a script that call `add(name, type, data, link)`.
fn crafted(lines: &str) -> Vec<u8> {
    let home = tempfile::tempdir().expect("a directory");
    let archive = home.path().join("c.tar");
    let script = format!(
        r#"
import tarfile, io, sys
t = tarfile.open(sys.argv[1], 'w', format=tarfile.PAX_FORMAT)
def add(name, type=tarfile.REGTYPE, data=b'', link='', **rest):
    m = tarfile.TarInfo(name); m.type = type; m.size = len(data); m.linkname = link
    for key, value in rest.items(): setattr(m, key, value)
    t.addfile(m, io.BytesIO(data))
SYM, LNK, DIR, CHR, FIFO = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE
{lines}
t.close()
"#
    );
    python(&script, &[&archive]);
    fs::read(&archive).expect("read")
}

fn refusal(lines: &str) -> String {
    match import_bytes(&crafted(lines)) {
        Ok((store, imported)) => panic!("{lines}: imported as {:?}", of_tree(&store, imported.root)),
        Err(error) => error.to_string(),
    }
}

#[test]
fn members_that_try_to_leave_their_root_are_refused() {
    for (lines, says) in [
        ("add('../evil', data=b'x')", "`..`"),
        ("add('a/../../evil', data=b'x')", "`..`"),
        ("add('a/..', DIR)", "`..`"),
        ("add('link', SYM, link='/etc')\nadd('link/passwd', data=b'x')", "a symlink and not a directory"),
        ("add('d', SYM, link='..')\nadd('d/x/y', data=b'x')", "a symlink and not a directory"),
        ("add('h', LNK, link='../../etc/passwd')", "`..`"),
        ("add('h', LNK, link='/etc/passwd')", "no file of that name"),
        ("add('d', DIR)\nadd('h', LNK, link='d')", "no file of that name"),
        ("add('f', data=b'x')\nadd('f/g', data=b'y')", "a file and not a directory"),
        ("add('f/x', data=b'x')\nadd('f', LNK, link='f/x')", "below itself"),
        ("add('x' * 256, data=b'x')", "256 bytes"),
        ("add('s', SYM, link='')", "target is empty"),
        ("add('a/' * 2100 + 'b', data=b'x')", "2048"),
        ("add('.', data=b'x')", "the root of an archive is a directory"),
    ] {
        let error = refusal(lines);
        assert!(error.contains(says), "{lines}: {error}");
    }
}

#[test]
fn absolute_names_and_duplicates_are_taken_with_a_notice() {
    let lines = "add('/etc/one', data=b'1')\nadd('./etc//two', data=b'2')\nadd('etc/one', data=b'again')\n\
        add('etc/three', DIR)\nadd('etc/three/x', data=b'x')\nadd('etc/three', data=b'now a file')";
    let (store, imported) = import_bytes(&crafted(lines)).expect("import");
    let tree = WorkingTree::open_root(&store, imported.root).expect("open");
    assert_eq!(tree.read("etc/one").expect("read"), b"again");
    assert_eq!(tree.read("etc/two").expect("read"), b"2");
    assert_eq!(tree.read("etc/three").expect("read"), b"now a file");
    assert_eq!(imported.report.count_of("absolute names were taken as names below the root"), 1);
    assert_eq!(imported.report.count_of("members replaced an earlier member of the same name"), 2);
}

#[test]
fn replaced_names_of_a_hard_linked_file_leave_the_others() {
    let lines = "add('a', data=b'x')\nadd('b', LNK, link='a')\nadd('a', data=b'new')\n\
        add('c', data=b'y')\nadd('d', LNK, link='c')\nadd('e', LNK, link='d')\nadd('d', data=b'z')";
    let (store, imported) = import_bytes(&crafted(lines)).expect("import");
    let tree = WorkingTree::open_root(&store, imported.root).expect("open");
    assert_eq!(tree.read("a").expect("read"), b"new");
    assert_eq!(tree.read("b").expect("read"), b"x");
    for (path, names) in [("a", 1), ("b", 1), ("c", 2), ("d", 1), ("e", 2)] {
        assert_eq!(tree.stat(path).expect("stat").expect("there").links, names, "{path}");
    }
}

#[test]
fn devices_and_special_modes_are_kept_as_data() {
    let lines =
        "add('null', CHR, devmajor=1, devminor=3, mode=0o666)\nadd('su', data=b'#', mode=0o6755)\nadd('p', FIFO)";
    let (store, imported) = import_bytes(&crafted(lines)).expect("import");
    let tree = WorkingTree::open_root(&store, imported.root).expect("open");
    let device = tree.device("null").expect("look").expect("a device");
    assert_eq!((device.major, device.minor), (1, 3));
    assert_eq!(tree.stat("su").expect("stat").expect("there").mode, 0o6755);
}

#[test]
fn imported_history_is_foreign() {
    let (store, imported) = import_bytes(&crafted("add('su', data=b'#', mode=0o4755)")).expect("import");
    let act = OperationContext::new("ann", amalgam_engine::Time(1));
    let head = imported.head;
    let name = amalgam_engine::RefName::new("head/x").expect("a name");
    let refs = amalgam_engine::RefMove {
        expect: vec![(name.clone(), None)],
        set: vec![(name, Some(amalgam_engine::reference::RefValue::to(head)))],
        ..amalgam_engine::RefMove::default()
    };
    imported.land(&act, refs).expect("land");
    let history = amalgam_engine::History::of(&store);
    assert!(history.is_foreign(&[head], None).expect("asked"));
}

#[test]
fn times_before_1970_and_after_2262_are_taken() {
    let lines = "add('a', mtime=-1.5)\nadd('b', mtime=99999999999999)\nadd('c', mtime=-99999999999999)";
    let (store, imported) = import_bytes(&crafted(lines)).expect("import");
    let tree = WorkingTree::open_root(&store, imported.root).expect("open");
    let mtime = |path: &str| tree.stat(path).expect("stat").expect("there").mtime.0;
    assert_eq!((mtime("a"), mtime("b"), mtime("c")), (-1_500_000_000, i64::MAX, i64::MIN));
    assert_eq!(imported.report.notices.len(), 1);
}

#[test]
fn damaged_archives_are_refused_wherever_they_are_cut_or_changed() {
    let lines = "add('a' * 150, data=b'x' * 700)\nadd('b', data=b'y' * 3_000_000)\nadd('c', DIR)";
    let archive = crafted(lines);
    import_bytes(&archive).expect("whole");
    let end = archive.len() - archive.iter().rev().take_while(|byte| **byte == 0).count();
    for cut in (0..end).step_by(end / 40).chain([end - 1, 1, 511, 512, 513]) {
        let error = import_bytes(&archive[..cut]).err().unwrap_or_else(|| panic!("cut at {cut}"));
        assert!(matches!(error, Error::Malformed { .. }), "{cut}: {error}");
    }
    let mut changed = archive;
    changed[0] ^= 1;
    let error = import_bytes(&changed).err().expect("changed");
    assert!(error.to_string().contains("no tar archive"), "{error}");
    let error = import_bytes(b"PK\x03\x04 this is something else altogether").err().expect("no archive");
    assert!(matches!(error, Error::Malformed { .. }), "{error}");
}

#[test]
fn damaged_compression_is_refused() {
    use std::io::Write;
    let archive = crafted("add('b', data=bytes(range(256)) * 9000)");
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(&archive).expect("compress");
    let gzip = encoder.finish().expect("compress");
    import_bytes(&gzip).expect("whole");
    for cut in [20, gzip.len() / 2, gzip.len() - 9, gzip.len() - 1] {
        assert!(import_bytes(&gzip[..cut]).is_err(), "cut at {cut}");
    }
    let mut changed = gzip;
    let checksum = changed.len() - 8;
    changed[checksum] ^= 1;
    assert!(import_bytes(&changed).is_err(), "the checksum behind the end of the archive is compared");
    let error = import_bytes(b"BZh91AY&SY").err().expect("bzip2");
    assert!(error.to_string().contains("bzip2"), "{error}");
}

/// A header with a right checksum and fields of any bytes.
fn header(kind: u8, name: &[u8], size: &[u8; 12]) -> Vec<u8> {
    let mut block = vec![0; 512];
    block[..name.len()].copy_from_slice(name);
    block[100..108].copy_from_slice(b"0000644\0");
    block[124..136].copy_from_slice(size);
    block[156] = kind;
    block[257..265].copy_from_slice(b"ustar\x0000");
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    block
}

/// A PAX record, whose length counts itself.
fn record(key: &str, value: &str) -> String {
    let rest = key.len() + value.len() + 3;
    let length = (1..).map(|digits: usize| rest + digits).find(|it| it.to_string().len() + rest == *it);
    format!("{} {key}={value}\n", length.expect("a length"))
}

/// A PAX header of a kind (`x` or `g`) and its records.
fn pax_header(kind: u8, records: &str) -> Vec<u8> {
    let mut bytes = header(kind, b"x", format!("{:011o}\0", records.len()).as_bytes().try_into().expect("12"));
    bytes.extend_from_slice(records.as_bytes());
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

#[test]
fn bombs_are_refused_at_their_beginning() {
    // 8 EiB claimed, nothing there; then a header of records without end.
    let huge = header(b'0', b"bomb", &[0x80, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
    let error = import_bytes(&huge).err().expect("a bomb");
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    let records = header(b'x', b"bomb", b"77777777777\0");
    let error = import_bytes(&records).err().expect("a bomb");
    assert!(error.to_string().contains("the longest is"), "{error}");
    let long_name = header(b'L', b"bomb", b"77777777777\0");
    assert!(import_bytes(&long_name).is_err());
    let prefixes: Vec<u8> = (0..100).flat_map(|_| header(b'g', b"g", b"00000000000\0")).collect();
    assert!(import_bytes(&prefixes).is_err());
    let negative = header(b'0', b"n", &[0xff; 12]);
    assert!(import_bytes(&negative).is_err());
}

#[test]
fn pax_records_that_take_too_much_memory_are_refused() {
    let file = |name: &str| header(b'0', name.as_bytes(), b"00000000000\0");
    let global = |keys: usize| {
        let member = |number: usize| {
            let records = record(&format!("comment.{}", number % keys), &"c".repeat(100_000));
            [pax_header(b'g', &records), file(&format!("f{number}"))].concat()
        };
        (0..20).flat_map(member).chain([0; 1024]).collect::<Vec<u8>>()
    };
    let (_, imported) = import_bytes(&global(5)).expect("later records replace those with the same keys");
    assert_eq!(imported.report.files, 20);
    let records: String = (0..600_000).map(|number| record(&format!("key.{number}"), "v")).collect();
    let own = [pax_header(b'x', &records), file("f"), vec![0; 1024]].concat();
    for archive in [global(20), own] {
        let error = import_bytes(&archive).err().expect("too many records");
        assert!(matches!(error, Error::Malformed { .. }), "{error}");
        assert!(error.to_string().contains("PAX records take too much memory"), "{error}");
    }
}

#[test]
fn a_compression_bomb_is_stopped_by_its_ratio() {
    use std::io::Write;
    let mut plain = header(b'0', b"zeros", b"00400000000\0");
    plain.resize(plain.len() + (64 << 20), 0);
    plain.extend_from_slice(&[0; 1024]);
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(&plain).expect("compress");
    let bomb = encoder.finish().expect("compress");
    let limits = Limits { ratio_from_bytes: 1 << 20, ratio_max: 100, ..Limits::default() };
    let store = Store::in_memory();
    let options = TarImport { limits, ..TarImport::default() };
    let error = import_tar(&store, &bomb[..], options, &Progress::default()).err().expect("a bomb");
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    let options = TarImport { limits: Limits { members_max: 0, ..Limits::default() }, ..TarImport::default() };
    assert!(import_tar(&store, &bomb[..], options, &Progress::default()).is_err());
}

#[test]
fn sparse_maps_that_lie_are_refused() {
    let archive = |map: &str, size: &str, data: usize| {
        let records = record("GNU.sparse.size", size) + &record("GNU.sparse.map", map);
        let mut bytes = pax_header(b'x', &records);
        bytes.extend(header(b'0', b"f", format!("{data:011o}\0").as_bytes().try_into().expect("12")));
        bytes.resize((bytes.len() + data).next_multiple_of(512) + 1024, 0);
        bytes
    };
    import_bytes(&archive("0,5,100,5", "200", 10)).expect("an honest map");
    for (map, size, data) in [
        ("0,5,3,5", "200", 10),
        ("0,5,198,5", "200", 10),
        ("0,5,100,5", "200", 11),
        ("0,5,100", "200", 5),
        ("0,18446744073709551615", "18446744073709551615", 0),
        ("1,18446744073709551615", "200", 0),
    ] {
        assert!(import_bytes(&archive(map, size, data)).is_err(), "{map} {size} {data}");
    }
}

#[test]
fn many_members_are_imported_in_batches() {
    // More names than are held in memory, in an order that visits every directory again and again.
    let mut archive = Vec::new();
    for round in 0..60 {
        for directory in 0..2_000 {
            archive.extend(header(b'0', format!("d{directory}/f{round}").as_bytes(), b"00000000000\0"));
        }
    }
    archive.extend([0; 1024]);
    let (store, imported) = import_bytes(&archive).expect("import");
    assert_eq!(imported.report.files, 120_000);
    let tree = WorkingTree::open_root(&store, imported.root).expect("open");
    assert_eq!(tree.list("").expect("list").count(), 2_000);
    assert_eq!(tree.list("d1999").expect("list").count(), 60);
}

#[test]
fn the_order_of_members_does_not_change_the_tree() {
    let one =
        crafted("add('a', data=b'1')\nadd('d', DIR, mode=0o700)\nadd('d/b', LNK, link='a')\nadd('d/c', data=b'2')");
    let other =
        crafted("add('d/c', data=b'2')\nadd('d/b', data=b'1')\nadd('a', LNK, link='d/b')\nadd('d', DIR, mode=0o700)");
    let (_, one) = import_bytes(&one).expect("import");
    let (_, other) = import_bytes(&other).expect("import");
    assert_eq!(one.root, other.root);
}

#[test]
fn a_dry_run_counts_and_stores_no_contents() {
    let archive = crafted("add('a', data=b'1' * 3_000_000)\nadd('b', LNK, link='a')\nadd('c', data=b'2')");
    let store = Store::in_memory();
    let options = TarImport { dry_run: true, ..TarImport::default() };
    let imported = import_tar(&store, &archive[..], options, &Progress::default()).expect("import");
    assert_eq!((imported.report.files, imported.report.bytes, imported.report.hard_links), (2, 3_000_001, 1));
    let tree = WorkingTree::open_root(&store, imported.root).expect("open");
    assert_eq!(tree.stat("a").expect("stat").expect("there").size, 0);
}

#[test]
fn an_import_onto_a_snapshot_changes_its_tree() {
    let (store, first) =
        import_bytes(&crafted("add('a', data=b'1')\nadd('b', LNK, link='a')\nadd('c', data=b'2')")).expect("import");
    let archive = crafted("add('b', data=b'new')\nadd('d', data=b'3')");
    let options = TarImport { onto: Some(first.head), ..TarImport::default() };
    let second = import_tar(&store, &archive[..], options, &Progress::default()).expect("import");
    let tree = WorkingTree::open(&store, second.head).expect("open");
    let read = |path: &str| String::from_utf8(tree.read(path).expect("read")).expect("text");
    assert_eq!([read("a"), read("b"), read("c"), read("d")], ["1", "new", "2", "3"]);
    assert_eq!(tree.stat("a").expect("stat").expect("there").links, 1);
    assert_eq!(store.snapshot(second.head).expect("there").parents, [first.head]);
}

#[test]
fn a_cancelled_import_stops() {
    let archive = crafted("add('a', data=b'1')");
    let progress = Progress::default();
    progress.cancel();
    let error = import_tar(&Store::in_memory(), &archive[..], TarImport::default(), &progress).err().expect("stopped");
    assert!(matches!(error, Error::Cancelled), "{error}");
}
