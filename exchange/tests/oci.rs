//! OCI images and overlay leftovers, with Python as the maker of foreign images.

#[path = "kit/listing.rs"]
mod listing;
#[path = "kit/snapshots.rs"]
mod snapshots;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use amalgam_engine::{SnapshotId, Store, Time, WorkingTree};
use amalgam_exchange::{
    Compression, Error, Imported, OciExport, OciImport, OciTarget, OverlayImport, Progress, export_layer, export_oci,
    import_oci, import_overlay,
};
use listing::{assert_same, of_tree, run};
use snapshots::{commit, two_snapshots};

/// Makes an image. The script's lines fill `layers`, a list of lists of calls `f(name, data)`, `d(name)`, `s(name, target)`,
/// `l(name, target)`; what is put in `lie` is done before the files are written.
fn make_image(home: &Path, lines: &str) -> PathBuf {
    let script = format!(
        r#"
import tarfile, io, sys, json, hashlib, gzip, os
def member(name, type, data=b'', link='', **rest):
    m = tarfile.TarInfo(name); m.type = type; m.size = len(data); m.linkname = link
    for key, value in rest.items(): setattr(m, key, value)
    return m, data
f = lambda name, data=b'', **rest: member(name, tarfile.REGTYPE, data, **rest)
d = lambda name, **rest: member(name, tarfile.DIRTYPE, mode=0o755, **rest)
s = lambda name, target: member(name, tarfile.SYMTYPE, link=target)
l = lambda name, target: member(name, tarfile.LNKTYPE, link=target)
def tar(members):
    out = io.BytesIO(); t = tarfile.open(fileobj=out, mode='w', format=tarfile.PAX_FORMAT)
    for m, data in members: t.addfile(m, io.BytesIO(data))
    t.close(); return out.getvalue()
top = sys.argv[1]; layout = top + '/image'; os.makedirs(layout + '/blobs/sha256')
def sha(data): return hashlib.sha256(data).hexdigest()
def blob(data, kind):
    open(layout + '/blobs/sha256/' + sha(data), 'wb').write(data)
    return {{'mediaType': kind, 'digest': 'sha256:' + sha(data), 'size': len(data)}}
layers = []; docker = False; compress = lambda data: gzip.compress(data, mtime=0)
def edit_manifest(m): pass
def edit_config(c): pass
{lines}
plain = [tar(layer) for layer in layers]
config = {{'architecture': 'amd64', 'os': 'linux', 'author': 'Ida', 'created': '2024-01-02T03:04:05Z', 'config': {{'Env': ['A=1']}},
  'rootfs': {{'type': 'layers', 'diff_ids': ['sha256:' + sha(p) for p in plain]}},
  'history': [{{'created': '2023-01-02T03:04:05.5Z', 'created_by': 'RUN %d' % n}} for n in range(len(plain))]}}
edit_config(config)
config = json.dumps(config).encode()
if docker:
    t = tarfile.open(top + '/image.tar', 'w')
    def put(name, data): m, b = f(name, data); t.addfile(m, io.BytesIO(b))
    names = []
    for n, p in enumerate(plain):
        put('layer%d/layer.tar' % n, p); names.append('layer%d/layer.tar' % n)
    put(sha(config) + '.json', config)
    put('manifest.json', json.dumps([{{'Config': sha(config) + '.json', 'RepoTags': ['x:1'], 'Layers': names}}]).encode())
    t.close()
else:
    manifest = {{'schemaVersion': 2, 'config': blob(config, 'application/vnd.oci.image.config.v1+json'),
      'layers': [blob(compress(p), 'application/vnd.oci.image.layer.v1.tar+gzip') for p in plain]}}
    edit_manifest(manifest)
    m = blob(json.dumps(manifest).encode(), 'application/vnd.oci.image.manifest.v1+json')
    json.dump({{'schemaVersion': 2, 'manifests': [m]}}, open(layout + '/index.json', 'w'))
    json.dump({{'imageLayoutVersion': '1.0.0'}}, open(layout + '/oci-layout', 'w'))
    t = tarfile.open(top + '/image.tar', 'w'); t.add(layout, arcname='.'); t.close()
"#
    );
    run(Command::new("python3").arg("-c").arg(script).arg(home));
    home.join("image")
}

const LAYERS: &str = "layers = [\
    [d('etc'), f('etc/a', b'1'), f('etc/b', b'2'), d('usr'), d('usr/lib'), f('usr/lib/x', b'x'), s('lib', 'usr/lib'),\
     d('gone'), f('gone/deep', b'g'), d('op'), f('op/old', b'o'), d('op/sub'), f('op/sub/old', b'o'), f('h1', b'h'), l('h2', 'h1')],\
    [f('etc/.wh.a'), f('lib/y', b'y'), f('.wh.gone'), f('op/new', b'n'), d('op/sub'), f('op/sub/new', b'n'),\
     f('op/.wh..wh..opq'), l('h3', 'h2'), f('etc/.wh.nothing')],\
    [f('etc/b', b'22', mode=0o4755), f('.wh.h1'), f('su', b's', uid=7, gid=8)]]";

fn import(store: &Store, path: &Path) -> Imported {
    import_oci(store, path, &OciImport::default(), &Progress::default()).expect("import")
}

fn paths(store: &Store, snapshot: SnapshotId) -> String {
    let root = store.snapshot(snapshot).expect("there").root;
    of_tree(store, root).into_keys().filter(|path| !path.is_empty()).collect::<Vec<_>>().join(" ")
}

#[test]
fn layers_become_snapshots_with_whiteouts_applied() {
    let home = tempfile::tempdir().expect("a directory");
    let image = make_image(home.path(), LAYERS);
    let store = Store::in_memory();
    for path in [image, home.path().join("image.tar")] {
        let imported = import(&store, &path);
        let [first, second, third] = imported.snapshots[..] else { panic!("{:?}", imported.snapshots) };
        assert_eq!(
            paths(&store, first),
            "etc etc/a etc/b gone gone/deep h1 h2 lib op op/old op/sub op/sub/old usr usr/lib usr/lib/x"
        );
        assert_eq!(
            paths(&store, second),
            "etc etc/b h1 h2 h3 lib op op/new op/sub op/sub/new usr usr/lib usr/lib/x usr/lib/y"
        );
        let tree = WorkingTree::open(&store, third).expect("open");
        assert_eq!(tree.read("etc/b").expect("read"), b"22");
        assert_eq!(tree.stat("etc/b").expect("stat").expect("there").mode, 0o4755);
        assert_eq!(tree.names_of("h3").expect("names").len(), 2);
        assert_eq!(tree.stat("su").expect("stat").expect("there").owner.expect("an owner").uid, 7);
        assert_eq!(tree.stat("etc").expect("stat").expect("there").owner, None);
        let snapshot = store.snapshot(third).expect("there");
        assert_eq!((snapshot.author.as_str(), snapshot.message.as_str()), ("Ida", "RUN 2"));
        assert_eq!(snapshot.time, Time(1_672_628_645_500_000_000));
        assert_eq!(snapshot.parents, [second]);
        assert!(snapshot.metadata["oci.config"].contains("A=1"));
    }
}

#[test]
fn archives_of_docker_save_and_other_compressions_are_read() {
    let store = Store::in_memory();
    let home = tempfile::tempdir().expect("a directory");
    let expected = import(&store, &make_image(home.path(), LAYERS)).root;
    let home = tempfile::tempdir().expect("a directory");
    make_image(home.path(), &format!("{LAYERS}\ndocker = True"));
    let archive = home.path().join("image.tar");
    assert_eq!(import(&store, &archive).root, expected);
    run(Command::new("gzip").arg(&archive));
    assert_eq!(import(&store, &home.path().join("image.tar.gz")).root, expected);
    let home = tempfile::tempdir().expect("a directory");
    let plain = make_image(home.path(), &format!("{LAYERS}\ncompress = lambda data: data"));
    assert_eq!(import(&store, &plain).root, expected);
    let options = OciImport { tag: Some("none:such".to_owned()), ..OciImport::default() };
    let error = import_oci(&store, &plain, &options, &Progress::default()).err().expect("no such tag");
    assert!(error.to_string().contains("0 images fit"), "{error}");
}

#[test]
fn images_that_lie_are_refused() {
    for (lines, says) in [
        ("def edit_config(c): c['rootfs']['diff_ids'][0] = 'sha256:' + '0' * 64", "configuration says"),
        ("def edit_config(c): c['rootfs']['diff_ids'].pop()", "tells of 2"),
        ("def edit_manifest(m): m['layers'][0]['size'] += 1", "manifest says"),
        ("def edit_manifest(m): m['layers'][0]['digest'] = m['layers'][1]['digest']", "says"),
        ("def edit_manifest(m): m['layers'][0]['digest'] = 'sha256:../../../etc/passwd'", "no SHA-256 digest"),
        ("def edit_manifest(m): m['config']['size'] = 3", "digest and size"),
        ("def edit_manifest(m): m['layers'][0]['digest'] = 'sha256:' + 'a' * 64", "could not read"),
        ("layers[1].append(f('../evil', b'x'))", "`..`"),
        ("layers[1].append(s('loop', 'loop'))\nlayers[1].append(f('loop/x', b'x'))", "too many symlinks"),
        ("layers = []", "no layers"),
    ] {
        let home = tempfile::tempdir().expect("a directory");
        let image = make_image(home.path(), &format!("{LAYERS}\n{lines}"));
        let error = import_oci(&Store::in_memory(), &image, &OciImport::default(), &Progress::default()).err();
        let error = error.unwrap_or_else(|| panic!("{lines}: imported")).to_string();
        assert!(error.contains(says), "{lines}: {error}");
    }
    let home = tempfile::tempdir().expect("a directory");
    make_image(
        home.path(),
        &format!(
            "{LAYERS}\ndocker = True\nsha_of = sha\nsha = lambda data: '0' * 64 if data[:1] == b'{{' else sha_of(data)"
        ),
    );
    let error =
        import_oci(&Store::in_memory(), &home.path().join("image.tar"), &OciImport::default(), &Progress::default());
    assert!(error.err().expect("a lie").to_string().contains("named by"));
}

#[test]
fn an_archive_is_refused_when_a_member_claims_almost_all_bytes_that_a_number_can_count() {
    let lines = r"
name = top + '/image.tar'
def huge(size):
    block = bytearray(f('bomb')[0].tobuf(tarfile.GNU_FORMAT))
    block[124:136] = b'\x80' + size.to_bytes(11, 'big')
    block[148:156] = b' ' * 8; block[148:155] = b'%06o\0' % sum(block)
    return bytes(block)
open(name, 'wb').write(huge(SIZE) + bytes(1024)); sys.exit(0)";
    // The last one is a whole number of blocks.
    for size in ["2**64 - 1", "2**64 - 100", "2**64 - 512"] {
        let home = tempfile::tempdir().expect("a directory");
        make_image(home.path(), &lines.replace("SIZE", size));
        let archive = home.path().join("image.tar");
        let error = import_oci(&Store::in_memory(), &archive, &OciImport::default(), &Progress::default()).err();
        let error = error.unwrap_or_else(|| panic!("{size}: imported")).to_string();
        assert!(error.contains("it was cut"), "{size}: {error}");
    }
}

#[test]
fn an_invalid_time_of_an_image_is_left_out() {
    let home = tempfile::tempdir().expect("a directory");
    let lines = "layers = [[f('a', b'1')]]\ndef edit_config(c): c['history'][0]['created'] = '2023-02-31T24:-5:00Z'";
    let store = Store::in_memory();
    let imported = import(&store, &make_image(home.path(), lines));
    let snapshot = store.snapshot(imported.snapshots[0]).expect("there");
    assert_eq!(snapshot.time, Time(1_704_164_645_000_000_000), "the time of the image");
}

#[test]
fn a_symlink_above_a_member_is_followed_inside_the_root_only() {
    let home = tempfile::tempdir().expect("a directory");
    let lines = "layers = [[s('up', '../../../..'), s('abs', '/etc'), d('etc')], [f('up/x', b'1'), f('abs/y', b'2'), f('abs/../z', b'')]]";
    let image = make_image(home.path(), &lines.replace(", f('abs/../z', b'')", ""));
    let store = Store::in_memory();
    let imported = import(&store, &image);
    assert_eq!(paths(&store, imported.head), "abs etc etc/y up x");
}

#[test]
fn an_exported_image_is_imported_as_the_same_trees() {
    let home = tempfile::tempdir().expect("a directory");
    let store = Store::in_memory();
    let layers = two_snapshots(&store);
    let roots = layers.map(|layer| store.snapshot(layer).expect("there").root);
    for (number, compression) in [Compression::None, Compression::Gzip, Compression::Zstd].into_iter().enumerate() {
        let options = OciExport { compression, name: Some("img:v1".to_owned()) };
        let directory = home.path().join(format!("image{number}"));
        let target = OciTarget::Directory(&directory);
        let exported = export_oci(&store, &layers, target, &options, &Progress::default()).expect("export");
        assert_eq!(exported.layers.len(), 2);
        let archive = home.path().join(format!("image{number}.tar"));
        let mut output = fs::File::create(&archive).expect("create");
        let target = OciTarget::Archive(&mut output);
        let again = export_oci(&store, &layers, target, &options, &Progress::default()).expect("export");
        assert_eq!(again.digest, exported.digest);
        for path in [&directory, &archive] {
            let other = Store::in_memory();
            let imported = import(&other, path);
            // The id of a group of hard links comes from where it was first seen; all else is the same to the last bit.
            for (id, root) in imported.snapshots.iter().zip(roots) {
                assert_same(&of_tree(&other, other.snapshot(*id).expect("there").root), &of_tree(&store, root));
            }
        }
        // Without the index it is what `docker load` reads.
        fs::remove_file(directory.join("index.json")).expect("remove");
        let other = Store::in_memory();
        assert_same(&of_tree(&other, import(&other, &directory).root), &of_tree(&store, roots[1]));
        let error = export_oci(&store, &layers, OciTarget::Directory(&directory), &options, &Progress::default());
        assert!(error.expect_err("not empty").to_string().contains("not empty"));
    }
}

#[test]
fn a_layer_holds_what_changed_and_no_more() {
    let store = Store::in_memory();
    let layers = two_snapshots(&store);
    let [first, second] = layers.map(|layer| store.snapshot(layer).expect("there").root);
    let mut layer = Vec::new();
    let progress = Progress::default();
    let report = export_layer(&store, Some(first), second, &mut layer, Compression::None, &progress).expect("export");
    assert_eq!(report.removed, 2, "{report:?}");
    let home = tempfile::tempdir().expect("a directory");
    let file = home.path().join("layer.tar");
    fs::write(&file, &layer).expect("write");
    let listed = String::from_utf8(run(Command::new("tar").arg("-tf").arg(&file))).expect("text");
    let listed: BTreeSet<_> = listed.lines().collect();
    let expected = [
        "./",
        ".wh.gone",
        ".wh.parted-2",
        "becomes",
        "file/",
        "file/now/",
        "keep/",
        "keep/in/",
        "keep/in/f",
        "keep/three",
        "link",
        "one",
        "parted-1",
        "pipe",
        "two",
    ];
    assert_eq!(listed, BTreeSet::from(expected));
    let mut empty = Vec::new();
    let report = export_layer(&store, Some(second), second, &mut empty, Compression::None, &progress).expect("export");
    assert_eq!((report.files, report.directories, report.removed), (0, 0, 0));
}

/// Runs a Python script that fills a directory.
fn fill(directory: &Path, script: &str) {
    fs::create_dir_all(directory).expect("mkdir");
    let script = format!("import os, sys, stat\nos.chdir(sys.argv[1])\n{script}");
    run(Command::new("python3").arg("-c").arg(script).arg(directory));
}

fn base(store: &Store) -> SnapshotId {
    let mut tree = WorkingTree::new(store);
    for path in ["a/x", "a/y", "op/old", "gone/deep"] {
        tree.create_directories(path.split('/').next().expect("a part")).expect("mkdir");
        tree.write(path, path.as_bytes()).expect("write");
    }
    commit(store, &mut tree, 1)
}

#[test]
fn an_upper_directory_becomes_a_change_on_its_base() {
    let home = tempfile::tempdir().expect("a directory");
    let upper = home.path().join("upper");
    fill(
        &upper,
        "os.mkdir('a'); os.mkdir('op'); open('a/new', 'w').write('n'); os.symlink('/etc', 's')\n\
         os.mknod('a/x', stat.S_IFCHR | 0o000, os.makedev(0, 0)); os.mknod('gone', stat.S_IFCHR, os.makedev(0, 0))\n\
         open('op/fresh', 'w').write('f' * 2_000_000); os.setxattr('op', 'trusted.overlay.opaque', b'y')\n\
         os.setxattr('a', 'user.overlay.impure', b'y'); os.setxattr('a', 'user.mine', b'1'); os.chmod('a', 0o711)\n\
         os.link('a/new', 'linked'); os.link('s', 'a/s')\n\
         os.mkdir('wh'); open('a/y', 'w'); os.setxattr('a/y', 'trusted.overlay.whiteout', b'y'); os.link('a/y', 'wh/nothing')",
    );
    let store = Store::in_memory();
    let base = base(&store);
    let options = OverlayImport { base: Some(base), ..OverlayImport::default() };
    let imported = import_overlay(&store, &upper, options, &Progress::default()).expect("import");
    assert_eq!(paths(&store, imported.head), "a a/new a/s linked op op/fresh s wh");
    // A file that is linked from elsewhere has its names of this tree.
    let tree = WorkingTree::open(&store, imported.head).expect("open");
    assert_eq!(tree.names_of("linked").expect("names").len(), 2);
    assert_eq!(tree.names_of("s").expect("names").len(), 2);
    assert_eq!(tree.xattrs("a").expect("attributes").len(), 1);
    assert_eq!(tree.stat("a").expect("stat").expect("there").mode, 0o711);
    assert_eq!(tree.read("op/fresh").expect("read").len(), 2_000_000);
    assert_eq!(store.snapshot(imported.head).expect("there").parents, [base]);
    assert_eq!(imported.report.removed, 4);
}

#[test]
fn aufs_whiteouts_are_taken_when_asked() {
    let home = tempfile::tempdir().expect("a directory");
    let upper = home.path().join("upper");
    fill(
        &upper,
        "os.mkdir('a'); os.mkdir('op')\nfor p in ('a/.wh.x', '.wh.gone', 'op/.wh..wh..opq', '.wh..wh.aufs'): open(p, 'w')\n\
         open('op/fresh', 'w'); open('a/.wh.full', 'w').write('x')",
    );
    let store = Store::in_memory();
    let base = base(&store);
    let options = OverlayImport { base: Some(base), aufs: true, ..OverlayImport::default() };
    let imported = import_overlay(&store, &upper, options, &Progress::default()).expect("import");
    assert_eq!(paths(&store, imported.head), "a a/.wh.full a/y op op/fresh");
    let options = OverlayImport { base: Some(base), ..OverlayImport::default() };
    let imported = import_overlay(&store, &upper, options, &Progress::default()).expect("import");
    assert!(paths(&store, imported.head).contains("a/.wh.x"));
}

#[test]
fn upper_directories_that_do_not_say_what_they_hold_are_refused() {
    for (attribute, value) in [("user.overlay.redirect", "/old"), ("trusted.overlay.metacopy", "")] {
        let home = tempfile::tempdir().expect("a directory");
        let upper = home.path().join("upper");
        fill(&upper, &format!("os.mkdir('moved'); os.setxattr('moved', '{attribute}', b'{value}')"));
        let error = import_overlay(&Store::in_memory(), &upper, OverlayImport::default(), &Progress::default());
        let error = error.err().expect("refused");
        assert!(matches!(&error, Error::Refused { why, .. } if why.contains("lower layer")), "{error}");
    }
    let error = import_overlay(
        &Store::in_memory(),
        Path::new("/nowhere/at/all"),
        OverlayImport::default(),
        &Progress::default(),
    );
    assert!(error.err().expect("not there").to_string().contains("could not read"));
}
