//! What can be seen of a tree or of its model, in one form that compares.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use amalgam_engine::object::{EntryKind, Owner};
use amalgam_engine::reference::{RefName, RefValue};
use amalgam_engine::work::Special;
use amalgam_engine::{
    Commit, Expect, LinkGroup, ObjectId, RefMove, Result, RootId, SnapshotId, Time, TreePath, WorkingTree,
};

use super::{Body, Model, STATE_KEYS, fixed_time};

/// Everything in a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// By path, the root included.
    pub paths: BTreeMap<TreePath, Seen>,
    /// State values under the keys of [`STATE_KEYS`].
    pub state: BTreeMap<String, String>,
}

/// All that can be seen of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of `Stat`")]
pub struct Seen {
    pub kind: EntryKind,
    pub mode: u32,
    pub mtime: Time,
    pub size: u64,
    pub links: u64,
    pub owner: Option<Owner>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// A file's bytes or a symlink's target.
    pub bytes: Data,
}

/// Bytes that print as their length and beginning.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Data(pub Vec<u8>);

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let beginning = &self.0[..self.0.len().min(12)];
        write!(f, "{} bytes, \"{}\"..", self.0.len(), beginning.escape_ascii())
    }
}

impl Contents {
    /// The same without times.
    #[must_use]
    pub fn timeless(mut self) -> Self {
        self.paths.values_mut().for_each(|seen| seen.mtime = Time::EPOCH);
        self
    }
}

/// Walks a whole tree. What a listing says of a name and what is said of its path must agree.
pub fn contents(tree: &WorkingTree) -> Result<Contents> {
    let mut paths = BTreeMap::new();
    let mut open = vec![TreePath::root()];
    while let Some(path) = open.pop() {
        let seen = see(tree, &path)?;
        if seen.kind == EntryKind::Directory {
            let mut last = None;
            for listed in tree.list(path.as_bytes())? {
                let (name, stat) = listed?;
                assert!(last < Some(name.clone()), "{path}: {name:?} is listed after {last:?}");
                let below = path.join(&name);
                assert_eq!(tree.stat(below.as_bytes())?.as_ref(), Some(&stat), "{below}: as listed");
                open.push(below);
                last = Some(name);
            }
        }
        paths.insert(path, seen);
    }
    let mut state = BTreeMap::new();
    for key in STATE_KEYS {
        state.extend(tree.state(key)?.map(|value| (key.to_owned(), value)));
    }
    Ok(Contents { paths, state })
}

fn see(tree: &WorkingTree, path: &TreePath) -> Result<Seen> {
    let stat = tree.stat(path.as_bytes())?.expect("it was listed");
    let bytes = match stat.kind {
        EntryKind::File => tree.read(path.as_bytes())?,
        EntryKind::Symlink => tree.read_link(path.as_bytes())?.to_vec(),
        _ => Vec::new(),
    };
    let xattrs = tree.xattrs(path.as_bytes())?;
    assert!(xattrs.is_sorted_by(|a, b| a.name < b.name), "{path}: attributes are sorted");
    Ok(Seen {
        kind: stat.kind,
        mode: stat.mode,
        mtime: stat.mtime,
        size: stat.size,
        links: stat.links,
        owner: stat.owner,
        xattrs: xattrs.into_iter().map(|xattr| (xattr.name.to_vec(), xattr.value.to_vec())).collect(),
        bytes: Data(bytes),
    })
}

impl Model {
    /// The same of the model.
    pub fn contents(&self) -> Contents {
        let paths = self.names.iter().map(|(path, number)| {
            let inode = &self.inodes[number];
            let (kind, bytes) = match &inode.body {
                Body::Directory => (EntryKind::Directory, Vec::new()),
                Body::File(bytes) => (EntryKind::File, bytes.clone()),
                Body::Symlink(target) => (EntryKind::Symlink, target.clone()),
                Body::Special(Special::Fifo) => (EntryKind::Fifo, Vec::new()),
                Body::Special(Special::Socket) => (EntryKind::Socket, Vec::new()),
                Body::Special(Special::CharDevice(_)) => (EntryKind::CharDevice, Vec::new()),
                Body::Special(Special::BlockDevice(_)) => (EntryKind::BlockDevice, Vec::new()),
            };
            let seen = Seen {
                kind,
                mode: inode.mode,
                mtime: inode.mtime,
                size: bytes.len() as u64,
                links: self.names.values().filter(|other| *other == number).count() as u64,
                owner: inode.owner,
                xattrs: inode.xattrs.clone(),
                bytes: Data(bytes),
            };
            (path.clone(), seen)
        });
        Contents { paths: paths.collect(), state: self.state.clone() }
    }
}

/// Which paths of a tree without changes are names of one file.
pub fn link_classes(tree: &WorkingTree) -> Result<BTreeSet<BTreeSet<TreePath>>> {
    let mut groups: BTreeMap<LinkGroup, BTreeSet<TreePath>> = BTreeMap::new();
    for path in contents(tree)?.paths.into_keys() {
        let entry = tree.stat(path.as_bytes())?.and_then(|stat| stat.entry);
        if let Some(group) = entry.and_then(|entry| entry.link()) {
            groups.entry(group).or_default().insert(path);
        }
    }
    Ok(groups.into_values().collect())
}

/// Commits a tree under a name that always follows.
pub fn commit(tree: &mut WorkingTree) -> Result<SnapshotId> {
    let name = RefName::new("test/snapshot").expect("a valid name");
    let now = tree.store().read_ref(&name)?.and_then(|value| value.target);
    let expect = now.map_or(Expect::Absent, |target| Expect::At(SnapshotId::from_bytes(target.hash)));
    Ok(tree.commit(Commit::new(&name, "").buffered().expecting(expect))?.snapshot)
}

/// Writes a tree as it is and returns its root, without touching the tree.
pub fn write_root(tree: &WorkingTree) -> Result<RootId> {
    let session = tree.store().session();
    let root = tree.freeze().write(&session)?;
    let name = RefName::new("test/root").expect("a valid name");
    let now = tree.store().read_ref(&name)?;
    let refs = RefMove {
        expect: vec![(name.clone(), now)],
        set: vec![(name, Some(RefValue::to(ObjectId::from(root))))],
        ..RefMove::default()
    };
    session.commit(root, refs)?;
    Ok(root)
}

/// The root that a tree has once every path's time follows from the path alone.
pub fn fixed_root(tree: &WorkingTree) -> Result<RootId> {
    let mut tree = tree.fork();
    for path in contents(&tree)?.paths.into_keys() {
        tree.set_mtime(path.as_bytes(), fixed_time(&path))?;
    }
    write_root(&tree)
}
