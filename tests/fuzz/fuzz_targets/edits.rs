//! Any edits of a working tree: committed and opened again it is the same tree, and built anew it has the same id.
#![no_main]

use amalgam_engine::object::{EntryKind, Owner};
use amalgam_engine::work::{RenameMode, Special};
use amalgam_engine::{Commit, DiffOptions, RefName, Store, Time, WorkingTree, diff_roots};
use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

/// A path among few, so that edits meet.
#[derive(Arbitrary, Debug)]
struct Place(u8);

impl Place {
    fn path(&self) -> String {
        let name = |part: u8| ["a", "b", "c", "d"][usize::from(part & 3)];
        match self.0 >> 6 {
            0 => name(self.0).to_owned(),
            1 => format!("{}/{}", name(self.0), name(self.0 >> 2)),
            2 => format!("{}/{}/{}", name(self.0), name(self.0 >> 2), name(self.0 >> 4)),
            _ => format!("many/{:02}", self.0 & 63),
        }
    }
}

#[derive(Arbitrary, Debug)]
enum Edit {
    Write(Place, Vec<u8>),
    WriteAt(Place, u32, Vec<u8>),
    Fill(Place, u32, u32, u8),
    Truncate(Place, u32),
    Punch(Place, u32, u32),
    Directory(Place),
    Directories(Place),
    Symlink(Place, Place),
    Fifo(Place),
    Link(Place, Place),
    Remove(Place),
    RemoveAll(Place),
    Rename(Place, Place, u8),
    Mode(Place, u16),
    Time(Place, i64),
    Owner(Place, Option<u8>),
    Xattr(Place, u8, u16),
    RemoveXattr(Place, u8),
    State(u8, Option<u32>),
    Commit,
    Fork,
}

const FILE_BYTES_MAX: u32 = 1 << 20;

fn apply(tree: &mut WorkingTree, edit: &Edit) -> amalgam_engine::Result<()> {
    match edit {
        Edit::Write(place, bytes) => tree.write(place.path(), bytes),
        Edit::WriteAt(place, at, bytes) => tree.write_at(place.path(), u64::from(at % FILE_BYTES_MAX), bytes),
        Edit::Fill(place, at, length, seed) => {
            let mut state = u32::from(*seed) | 1;
            let bytes: Vec<u8> = (0..length % (FILE_BYTES_MAX / 4))
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 24) as u8
                })
                .collect();
            tree.write_at(place.path(), u64::from(at % FILE_BYTES_MAX), &bytes)
        }
        Edit::Truncate(place, size) => tree.truncate(place.path(), u64::from(size % FILE_BYTES_MAX)),
        Edit::Punch(place, from, to) => tree.punch_hole(place.path(), u64::from(*from)..u64::from(*to)),
        Edit::Directory(place) => tree.create_directory(place.path(), 0o755),
        Edit::Directories(place) => tree.create_directories(place.path()),
        Edit::Symlink(place, target) => tree.symlink(place.path(), target.path()),
        Edit::Fifo(place) => tree.create_special(place.path(), Special::Fifo, 0o600),
        Edit::Link(from, to) => tree.link(from.path(), to.path()),
        Edit::Remove(place) => tree.remove(place.path()),
        Edit::RemoveAll(place) => tree.remove_all(place.path()),
        Edit::Rename(from, to, mode) => {
            let mode = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange][usize::from(mode % 3)];
            tree.rename(from.path(), to.path(), mode)
        }
        Edit::Mode(place, mode) => tree.set_mode(place.path(), u32::from(*mode)),
        Edit::Time(place, time) => tree.set_mtime(place.path(), Time(*time)),
        Edit::Owner(place, uid) => tree.set_owner(place.path(), uid.map(|uid| Owner { uid: u32::from(uid), gid: 0 })),
        Edit::Xattr(place, name, bytes) => {
            tree.set_xattr(place.path(), format!("user.{name}").as_bytes(), &vec![7; usize::from(*bytes)])
        }
        Edit::RemoveXattr(place, name) => tree.remove_xattr(place.path(), format!("user.{name}").as_bytes()).map(drop),
        Edit::State(key, value) => match value {
            Some(value) => tree.set_state(&format!("key{key}"), &value.to_string()),
            None => tree.remove_state(&format!("key{key}")).map(drop),
        },
        Edit::Commit | Edit::Fork => Ok(()),
    }
}

/// Everything a tree can be asked, as text.
fn describe(tree: &WorkingTree) -> Vec<String> {
    let mut lines = Vec::new();
    let mut open = vec![String::new()];
    while let Some(path) = open.pop() {
        let stat = tree.stat(&path).expect("stat").expect("there");
        let detail = match stat.kind {
            EntryKind::File => format!("{:?}", tree.read(&path).expect("read")),
            EntryKind::Symlink => format!("{:?}", tree.read_link(&path).expect("read link")),
            _ => String::new(),
        };
        let xattrs = tree.xattrs(&path).expect("xattrs");
        lines.push(format!(
            "{path} {:?} {:o} {} {} {} {:?} {xattrs:?} {detail}",
            stat.kind, stat.mode, stat.mtime, stat.size, stat.links, stat.owner
        ));
        if stat.kind == EntryKind::Directory {
            for entry in tree.list(&path).expect("list") {
                let (name, _) = entry.expect("an entry");
                let name = String::from_utf8(name.as_bytes().to_vec()).expect("the names are text");
                open.push(if path.is_empty() { name } else { format!("{path}/{name}") });
            }
        }
    }
    lines.extend((0..=255_u8).map(|key| format!("{:?}", tree.state(&format!("key{key}")).expect("state"))));
    lines
}

fuzz_target!(|edits: Vec<Edit>| {
    let store = Store::in_memory();
    let head = RefName::new("head/fuzz").expect("a name");
    let mut tree = WorkingTree::new(&store);
    for (index, edit) in edits.iter().take(64).enumerate() {
        tree.set_now(Time(index as i64));
        match edit {
            Edit::Commit => drop(tree.commit(Commit::new(&head, "step")).expect("a commit")),
            Edit::Fork => tree = tree.fork(),
            // An edit may be refused; then it changes nothing, which the comparison below would not notice but the
            // engine's own checks do.
            edit => drop(apply(&mut tree, edit)),
        }
    }
    let expected = describe(&tree);
    let done = tree.commit(Commit::new(&head, "last")).expect("a commit");
    assert_eq!(describe(&tree), expected, "a commit changes nothing");
    let again = WorkingTree::open(&store, done.snapshot).expect("open");
    assert_eq!(describe(&again), expected, "what was committed is what is read");
    let root = store.snapshot(done.snapshot).expect("snapshot").root;
    let changes = diff_roots(&store, None, Some(root), DiffOptions::default()).expect("diff");
    assert_eq!(changes.map(|change| change.expect("a change")).count() + 1 + 256, expected.len());
    // Nothing the engine wrote is refused when it comes from outside.
    admit_all(&store, root.object());
});

fn admit_all(store: &Store, root: amalgam_engine::ObjectId) {
    let other = Store::in_memory();
    let session = other.session();
    let mut open = vec![(root, false)];
    let mut seen = std::collections::HashSet::new();
    while let Some((id, children_done)) = open.pop() {
        let bytes = store.canonical(id).expect("an object");
        if children_done {
            assert_eq!(session.admit(id.kind, bytes).expect("admitted"), id);
        } else if seen.insert(id) {
            let below = amalgam_engine::object::outgoing(id.kind, &bytes).expect("outgoing");
            open.push((id, true));
            open.extend(below.strong.into_iter().map(|id| (id, false)));
        }
    }
}
