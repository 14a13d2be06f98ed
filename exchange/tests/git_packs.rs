//! Hostile packs, made by hand: delta chains without an end, deltas that grow, lengths that lie.

#[path = "kit/listing.rs"]
mod listing;
#[path = "kit/repository.rs"]
mod repository;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use amalgam_engine::Store;
use amalgam_exchange::{GitImport, Progress, import_git};
use listing::run;
use repository::{git, new_repository, text};

/// The id of the blob that the tree names.
const WANTED: &str = "1111111111111111111111111111111111111111";

/// Makes a repository whose only file is the blob `WANTED` of a pack. The lines of the script fill `entries`, a list of
/// `(id, header, payload)`; `ref(base, delta)` and `ofs(distance, delta)` make deltas, `blob(data)` an object.
fn repository_with(home: &Path, lines: &str) -> PathBuf {
    let path = new_repository(home, "packed.git");
    let script = format!(
        r#"
import hashlib, os, struct, sys, zlib
def number(n):
    out = bytearray()
    while True:
        out.append((n & 127) | (128 if n > 127 else 0)); n >>= 7
        if not n: return bytes(out)
def head(kind, size):
    first = (kind << 4) | (size & 15); size >>= 4
    return bytes([first | (128 if size else 0)]) + (number(size) if size else b'')
def insert(data): return bytes([len(data)]) + data
def copy(offset, size):
    return bytes([0xff]) + struct.pack('<I', offset) + struct.pack('<I', size)[:3]
def delta(source, target, *steps): return number(source) + number(target) + b''.join(steps)
def blob(data, said=None): return head(3, len(data) if said is None else said) + zlib.compress(data)
def ref(base, data): return head(7, len(data)) + bytes.fromhex(base) + zlib.compress(data)
def ofs(distance, data): return head(6, len(data)) + bytes([distance]) + zlib.compress(data)
W = '{WANTED}'; X = '22' * 20; Y = '33' * 20
entries = []
{lines}
pack = b'PACK' + struct.pack('>II', 2, len(entries)); at = []
for oid, data in entries:
    at.append((bytes.fromhex(oid), len(pack), zlib.crc32(data))); pack += data
pack += hashlib.sha1(pack).digest(); at.sort()
index = b'\xfftOc' + struct.pack('>I', 2)
index += b''.join(struct.pack('>I', sum(1 for oid, _, _ in at if oid[0] <= n)) for n in range(256))
index += b''.join(oid for oid, _, _ in at) + b''.join(struct.pack('>I', crc) for _, _, crc in at)
index += b''.join(struct.pack('>I', offset) for _, offset, _ in at) + pack[-20:]
index += hashlib.sha1(index).digest()
name = sys.argv[1] + '/objects/pack/pack-' + pack[-20:].hex()
os.makedirs(sys.argv[1] + '/objects/pack', exist_ok=True)
open(name + '.pack', 'wb').write(pack); open(name + '.idx', 'wb').write(index)
"#
    );
    let mut command = git(&path);
    command.args(["mktree", "--missing"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("git runs");
    let entry = format!("100644 blob {WANTED}\tfile\n");
    child.stdin.take().expect("a pipe").write_all(entry.as_bytes()).expect("written");
    let tree = text(child.wait_with_output().expect("ended").stdout);
    let commit = text(run(git(&path).args(["commit-tree", "-m", "hostile", &tree])));
    run(git(&path).args(["update-ref", "refs/heads/main", &commit]));
    // The pack comes last: git itself would follow an endless chain.
    run(Command::new("python3").arg("-c").arg(script).arg(&path));
    path
}

#[track_caller]
fn refused(lines: &str) -> String {
    let home = tempfile::tempdir().expect("a directory");
    let path = repository_with(home.path(), lines);
    let options = GitImport { object_bytes_max: 1_000_000, ..GitImport::default() };
    let store = Store::in_memory();
    let error = import_git(&store, &path, &options, &Progress::default()).err().expect("it is refused");
    error.to_string()
}

#[test]
fn the_maker_of_packs_makes_packs_that_are_read() {
    // The bytes are right, and the id is not theirs: everything up to the hash was read.
    for lines in [
        "entries = [(W, blob(b'content'))]",
        "entries = [(X, blob(b'content')), (W, ref(X, delta(7, 9, copy(0, 7), insert(b'ab'))))]",
    ] {
        let said = refused(lines);
        assert!(said.contains("its bytes do not have its hash"), "{said}");
    }
}

#[test]
fn delta_chains_without_an_end_are_refused() {
    for lines in [
        "entries = [(W, ref(W, delta(1, 1, insert(b'a'))))]",
        "entries = [(W, ref(X, delta(1, 1, insert(b'a')))), (X, ref(W, delta(1, 1, insert(b'a'))))]",
        "entries = [(W, ref(X, delta(1, 1, insert(b'a')))), (X, ref(Y, delta(1, 1, insert(b'a')))), (Y, ref(X, delta(1, 1, insert(b'a'))))]",
        "entries = [(W, ofs(0, delta(1, 1, insert(b'a'))))]",
        "entries = [(W, ref('44' * 20, delta(1, 1, insert(b'a'))))]",
    ] {
        let said = refused(lines);
        assert!(said.contains(WANTED), "{said}");
    }
}

#[test]
fn deltas_that_grow_are_refused_before_memory_is_taken() {
    // A small result, of a base that would take 16 GB.
    let said = refused(
        "entries = [(X, blob(b'z' * 65536)), (Y, ref(X, delta(65536, 65536 << 18, *[copy(0, 65536)] * 1000))),\
         (W, ref(Y, delta(65536 << 18, 3, copy(5, 3))))]",
    );
    assert!(said.contains(WANTED), "{said}");
    // A large result, said and made.
    let said =
        refused("entries = [(X, blob(b'z' * 65536)), (W, ref(X, delta(65536, 65536 * 64, *[copy(0, 65536)] * 64)))]");
    assert!(said.contains("exceeds the limit"), "{said}");
}

#[test]
fn lengths_that_lie_are_refused() {
    for lines in [
        "entries = [(W, blob(b'content', said=3))]",
        "entries = [(W, blob(b'content', said=900000))]",
        "entries = [(X, blob(b'content')), (W, ref(X, delta(7, 900000, copy(0, 7))))]",
        "entries = [(X, blob(b'content')), (W, ref(X, delta(7, 7, copy(900, 7))))]",
        "entries = [(X, blob(b'content')), (W, ref(X, delta(700, 7, copy(0, 7))))]",
        "entries = [(X, blob(b'content')), (W, ref(X, b''))]",
    ] {
        let said = refused(lines);
        assert!(said.contains(WANTED), "{said}");
    }
}
