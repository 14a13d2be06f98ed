//! Lean trees: snapshots without the contents of their cache directories, to save space.
//!
//! A directory with a valid `CACHEDIR.TAG` declares that all its contents can be regenerated. Snapshots are immutable, so nothing
//! is removed from one: a second tree with everything else is created, a reference keeps it alive, and the snapshot itself is
//! thinned like any other. So every existing tree is complete, and collections need no special rule. A request for the tree of
//! such a snapshot returns the lean tree and the list of omitted directories.

use std::collections::HashMap;

use bytes::Bytes;

use crate::content;
use crate::directory;
use crate::error::{Error, Result};
use crate::id::{DirectoryId, ObjectKind, RootId, SnapshotId};
use crate::name::{Name, TreePath};
use crate::object::{DirectoryItem, DirectoryRef, Entry, Node};
use crate::operation::{OperationContext, Step, hold_snapshot, move_refs};
use crate::reference::{FORGET, RefName, RefValue};
use crate::store::{Pin, RefMove, Store};
use crate::work::WorkingTree;

const PREFIX: &str = "lean/";
/// The file that marks a directory as a cache, and its first bytes (<https://bford.info/cachedir/>).
const TAG: &str = "CACHEDIR.TAG";
const SIGNATURE: &[u8] = b"Signature: 8a477f597d28d172789f06886806bc55";
/// Maximum number of caches that are removed from one tree. A tree with more stays whole.
pub const CACHES_MAX: usize = 10_000;
/// Maximum size of the omitted paths in the note of a reference, in bytes. Further paths are only counted.
const PATHS_BYTES_MAX: usize = 32 << 10;
/// Maximum number of lean trees that one operation removes.
const FORGET_AT_ONCE: usize = 512;

/// The tree of a snapshot without its caches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lean {
    /// The tree.
    pub root: RootId,
    /// The caches: directories of which only the tag is kept.
    pub left_out: Vec<TreePath>,
    /// Number of further caches.
    pub left_out_more: u64,
}

/// Finds the caches of trees. Reads each distinct directory once: adjacent snapshots in the history share most directories, and
/// one directory may be at many paths of a tree.
#[derive(Default)]
pub struct CacheFinder {
    known: HashMap<DirectoryId, CachedDirectory>,
}

/// Cached information about a directory, independent of its path.
#[derive(Clone, Copy)]
struct CachedDirectory {
    is_cache: bool,
    /// Number of paths to caches below it, saturating. Caches inside a cache are not counted.
    caches: u64,
}

/// A directory whose scan is in progress.
struct Open {
    id: DirectoryId,
    below: std::vec::IntoIter<DirectoryRef>,
    caches: u64,
}

impl CacheFinder {
    /// Returns the topmost caches of a tree, or `None` if there are more than [`CACHES_MAX`]. The root of the tree never counts
    /// as a cache.
    pub fn find(&mut self, store: &Store, root: RootId) -> Result<Option<Vec<TreePath>>> {
        let Node::Directory(Some(top)) = store.root(root)?.directory.node else { return Ok(Some(Vec::new())) };
        if self.count(store, top)? > CACHES_MAX as u64 {
            return Ok(None);
        }
        let (mut found, mut open) = (Vec::new(), Vec::new());
        self.push_below(store, &TreePath::root(), top, &mut open)?;
        while let Some((path, directory)) = open.pop() {
            match self.known.get(&directory.id) {
                Some(CachedDirectory { is_cache: true, .. }) => found.push(path),
                _ => self.push_below(store, &path, directory, &mut open)?,
            }
        }
        Ok(Some(found))
    }

    /// Pushes the sub-directories that are caches or contain caches, last one first.
    fn push_below(
        &self,
        store: &Store,
        path: &TreePath,
        directory: DirectoryRef,
        open: &mut Vec<(TreePath, DirectoryRef)>,
    ) -> Result<()> {
        for (name, below) in directories(store, directory)?.into_iter().rev() {
            if !matches!(self.known.get(&below.id), Some(CachedDirectory { is_cache: false, caches: 0 })) {
                open.push((path.join(&name), below));
            }
        }
        Ok(())
    }

    /// Returns the number of caches below a directory, without those inside other caches.
    fn count(&mut self, store: &Store, top: DirectoryRef) -> Result<u64> {
        let mut open = vec![Self::open(store, top)?];
        loop {
            let here = open.last_mut().expect("it ends with the first one");
            let Some(below) = here.below.next() else {
                let Open { id, caches, .. } = open.pop().expect("it is the last one");
                let Some(above) = open.last_mut() else { return Ok(caches) };
                above.caches = above.caches.saturating_add(caches);
                self.known.insert(id, CachedDirectory { is_cache: false, caches });
                continue;
            };
            if let Some(known) = self.known.get(&below.id) {
                here.caches = here.caches.saturating_add(if known.is_cache { 1 } else { known.caches });
            } else if is_cache(store, below)? {
                here.caches = here.caches.saturating_add(1);
                self.known.insert(below.id, CachedDirectory { is_cache: true, caches: 0 });
            } else {
                open.push(Self::open(store, below)?);
            }
        }
    }

    fn open(store: &Store, directory: DirectoryRef) -> Result<Open> {
        let below: Vec<_> = directories(store, directory)?.into_iter().map(|(_, below)| below).collect();
        Ok(Open { id: directory.id, below: below.into_iter(), caches: 0 })
    }
}

/// Returns the non-empty sub-directories of a directory.
fn directories(store: &Store, directory: DirectoryRef) -> Result<Vec<(Name, DirectoryRef)>> {
    let mut below = Vec::new();
    for item in directory::list(store, Some(directory))? {
        if let DirectoryItem { name, entry: Entry { node: Node::Directory(Some(directory)), .. } } = item? {
            below.push((name, directory));
        }
    }
    Ok(below)
}

fn is_cache(store: &Store, directory: DirectoryRef) -> Result<bool> {
    let Some(tag) = directory::get(store, Some(directory), &tag())? else { return Ok(false) };
    let Node::File { size, content } = &tag.node else { return Ok(false) };
    if *size < SIGNATURE.len() as u64 {
        return Ok(false);
    }
    match content::read(store, content, *size, 0, SIGNATURE.len() as u64) {
        Ok(bytes) => Ok(bytes == SIGNATURE),
        // The contents of a purged tag are unknown.
        Err(Error::Purged { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

fn tag() -> Name {
    Name::new(TAG.as_bytes()).expect("a name")
}

fn reference(snapshot: SnapshotId) -> RefName {
    RefName::new(format!("{PREFIX}{snapshot}")).expect("short and printable")
}

/// Returns the lean tree of a snapshot, if there is one.
pub fn lean_tree(store: &Store, snapshot: SnapshotId) -> Result<Option<Lean>> {
    let reference = reference(snapshot);
    let Some(value) = store.read_ref(&reference)? else { return Ok(None) };
    let damaged = |why: &str| Error::DamagedRecord { what: format!("reference {reference}"), why: why.to_owned() };
    read(&value).map(Some).map_err(damaged)
}

/// Decodes the value of a reference. The error is the reason for a failure.
fn read(value: &RefValue) -> Result<Lean, &'static str> {
    let root = value.target.filter(|target| target.kind == ObjectKind::Root).ok_or("it names no tree")?;
    let (left_out, left_out_more) = read_note(&value.note).ok_or("its note has another form")?;
    Ok(Lean { root: RootId::from_bytes(root.hash), left_out, left_out_more })
}

/// Validates a reference from outside. The error is the reason for the rejection.
pub(crate) fn check(name: &RefName, value: &RefValue) -> Result<(), &'static str> {
    match name.as_str().strip_prefix(PREFIX).map(SnapshotId::from_hex) {
        None => Ok(()),
        Some(None) => Err("its name is no snapshot's id"),
        Some(Some(_)) => read(value).map(drop),
    }
}

/// The tree of a snapshot, pinned while this value exists.
#[derive(Debug)]
pub struct HeldTree {
    /// The tree.
    pub root: RootId,
    /// The omitted caches, if it is a lean tree.
    pub lean: Option<Lean>,
    _pins: [Pin; 2],
}

/// Pins the tree of a snapshot: the whole tree, or the lean tree if only that exists.
pub fn hold_tree(store: &Store, snapshot: SnapshotId) -> Result<HeldTree> {
    let whole = match hold_snapshot(store, snapshot) {
        Ok(_pins) => return Ok(HeldTree { root: store.snapshot(snapshot)?.root, lean: None, _pins }),
        Err(error) => error,
    };
    match lean_tree(store, snapshot)? {
        Some(lean) if matches!(whole, Error::Absent { .. }) => {
            let _pins = [store.pin(snapshot), store.hold(lean.root)?];
            Ok(HeldTree { root: lean.root, lean: Some(lean), _pins })
        }
        _ => Err(whole),
    }
}

/// Encodes the note: the number of paths that did not fit, then the paths, each followed by a zero byte.
fn write_note(caches: &[TreePath]) -> Vec<u8> {
    let (mut paths, mut more) = (Vec::new(), 0_u64);
    for path in caches {
        if more > 0 || paths.len() + path.as_bytes().len() >= PATHS_BYTES_MAX {
            more += 1;
        } else {
            paths.extend(path.as_bytes());
            paths.push(0);
        }
    }
    [&more.to_be_bytes()[..], &paths].concat()
}

fn read_note(note: &[u8]) -> Option<(Vec<TreePath>, u64)> {
    let (more, paths) = note.split_first_chunk()?;
    let paths = paths.split_inclusive(|byte| *byte == 0).map(|path| TreePath::new(path.strip_suffix(&[0])?).ok());
    Some((paths.collect::<Option<_>>()?, u64::from_be_bytes(*more)))
}

/// Creates the tree of a snapshot without these caches and keeps it under a reference. The tree of the snapshot must exist: an
/// existing lean tree is compared with it and replaced if it is not exactly that tree without these caches.
pub fn make_lean(store: &Store, snapshot: SnapshotId, caches: &[TreePath], context: &OperationContext) -> Result<Lean> {
    let name = reference(snapshot);
    let before = store.read_ref(&name)?;
    let mut tree = WorkingTree::open_root(store, store.snapshot(snapshot)?.root)?;
    for cache in caches {
        let mtime = tree.stat(cache.as_bytes())?.map(|stat| stat.mtime);
        let names = tree.list(cache.as_bytes())?.map(|item| item.map(|(name, _)| name)).collect::<Result<Vec<_>>>()?;
        for name in names.iter().filter(|name| **name != tag()) {
            tree.remove_all(cache.join(name).as_bytes())?;
        }
        if let Some(mtime) = mtime {
            tree.set_mtime(cache.as_bytes(), mtime)?;
        }
    }
    let session = store.session();
    let root = tree.freeze().write(&session)?;
    let value = RefValue { note: Bytes::from(write_note(caches)), ..RefValue::to(root) };
    if before.as_ref() != Some(&value) {
        let refs = RefMove {
            expect: vec![(name.clone(), before)],
            set: vec![(name, Some(value))],
            operation: context.draft("lean"),
            durability: context.durability,
        };
        session.commit(root, refs)?;
    }
    let (left_out, left_out_more) = read_note(&write_note(caches)).expect("it was just written");
    Ok(Lean { root, left_out, left_out_more })
}

/// Removes the lean trees of these snapshots. Returns how many there were. One operation removes at most 512.
pub fn forget_lean(
    store: &Store,
    snapshots: impl IntoIterator<Item = SnapshotId>,
    context: &OperationContext,
) -> Result<u64> {
    let (mut steps, mut forgotten) = (Vec::new(), 0);
    for name in snapshots.into_iter().map(reference) {
        if let Some(value) = store.read_ref(&name)? {
            steps.push(Step { name, before: Some(value), after: None });
            forgotten += 1;
        }
        if steps.len() == FORGET_AT_ONCE {
            move_refs(store, context, context.draft(FORGET), std::mem::take(&mut steps))?;
        }
    }
    if !steps.is_empty() {
        move_refs(store, context, context.draft(FORGET), steps)?;
    }
    Ok(forgotten)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commit::Commit;
    use crate::time::Time;

    fn signed(rest: &str) -> Vec<u8> {
        [SIGNATURE, rest.as_bytes()].concat()
    }

    #[test]
    fn directories_with_a_signed_tag_are_caches_and_nothing_else_is() {
        let store = Store::in_memory();
        let mut tree = WorkingTree::new(&store);
        for directory in ["a/target/debug", "b/deep/cache", "unsigned", "short", "named/CACHEDIR.TAG", "plain"] {
            tree.create_directories(directory).expect("made");
        }
        tree.write("CACHEDIR.TAG", &signed("")).expect("written");
        tree.write("a/target/CACHEDIR.TAG", &signed("\n# cargo")).expect("written");
        tree.write("a/target/debug/CACHEDIR.TAG", &signed("")).expect("written");
        tree.write("b/deep/cache/CACHEDIR.TAG", &signed(&"x".repeat(200_000))).expect("written");
        tree.write("unsigned/CACHEDIR.TAG", "y".repeat(43).as_bytes()).expect("written");
        tree.write("short/CACHEDIR.TAG", &SIGNATURE[..42]).expect("written");
        tree.write("plain/file", b"z").expect("written");
        let name = RefName::new("head/main").expect("a name");
        let snapshot = tree.commit(Commit::new(&name, "x")).expect("committed").snapshot;
        let root = store.snapshot(snapshot).expect("read").root;
        let mut finder = CacheFinder::default();
        let paths = |found: Vec<TreePath>| found.iter().map(TreePath::to_string).collect::<Vec<_>>();
        let found = finder.find(&store, root).expect("found").expect("not too many");
        assert_eq!(paths(found.clone()), ["a/target", "b/deep/cache"]);
        assert_eq!(
            paths(finder.find(&store, root).expect("found").expect("not too many")),
            ["a/target", "b/deep/cache"],
            "a second time, too"
        );

        let context = OperationContext::new("ann", Time(7));
        let lean = make_lean(&store, snapshot, &found, &context).expect("made");
        assert_eq!((paths(lean.left_out.clone()), lean.left_out_more), (paths(found), 0));
        assert_eq!(lean_tree(&store, snapshot).expect("read"), Some(lean.clone()));
        let (before, after) = (tree, WorkingTree::open_root(&store, lean.root).expect("it opens"));
        assert!(!after.exists("a/target/debug").expect("asked"));
        for path in ["CACHEDIR.TAG", "a/target/CACHEDIR.TAG", "b/deep/cache/CACHEDIR.TAG", "plain/file"] {
            assert_eq!(after.read(path).expect("read"), before.read(path).expect("read"), "{path}");
        }
        let time = |tree: &WorkingTree, path: &str| tree.stat(path).expect("asked").expect("there").mtime;
        assert_eq!(time(&after, "a/target"), time(&before, "a/target"));
        assert_eq!(forget_lean(&store, [snapshot], &context).expect("forgotten"), 1);
        assert_eq!(lean_tree(&store, snapshot).expect("read"), None);
    }

    #[test]
    fn many_lean_trees_are_forgotten_by_several_operations() {
        let store = Store::in_memory();
        let context = OperationContext::new("ann", Time(7));
        let snapshots: Vec<_> = (0..1_100_u32)
            .map(|n| {
                let mut id = [0; 32];
                id[..4].copy_from_slice(&n.to_be_bytes());
                SnapshotId::from_bytes(id)
            })
            .collect();
        let value = || RefValue::noting(write_note(&[]));
        let step = |id: &SnapshotId| Step { name: reference(*id), before: None, after: Some(value()) };
        move_refs(&store, &context, context.draft("lean"), snapshots.iter().map(step).collect()).expect("set");
        let before = store.last_operation().expect("log");
        assert_eq!(forget_lean(&store, snapshots, &context).expect("forgotten"), 1_100);
        assert_eq!(store.last_operation().expect("log"), before + 3, "at most 512 by each");
        assert_eq!(store.list_refs(PREFIX, None, 1).expect("list"), []);
    }

    #[test]
    fn paths_that_do_not_fit_into_the_note_are_counted() {
        let caches: Vec<_> = (0..10_000).map(|n| TreePath::new(format!("deep/down/{n}")).expect("a path")).collect();
        let note = write_note(&caches);
        let (paths, more) = read_note(&note).expect("read");
        assert_eq!(paths.len() as u64 + more, 10_000);
        assert!(more > 0 && note.len() <= PATHS_BYTES_MAX + 8 && paths[..] == caches[..paths.len()]);
        assert_eq!(read_note(&note[..3]), None);
        assert_eq!(read_note(&note[..note.len() - 1]), None);
    }
}
