//! Stores of a wanted number of objects, made through the door that everybody uses.
//!
//! The mix: directories of 100 files, most of one small chunk each; one file in five hundred is a rope of some forty chunks. That comes to about
//! one node for fifteen chunks, as source trees with a few large files have. A small part of each tree changes from commit to
//! commit, so a history of nodes lies above shared chunks.

use amalgam_benches::Result;
use amalgam_benches::random::Random;
use amalgam_benches::trees::reference;
use amalgam_engine::{Commit, SnapshotId, Store, WorkingTree};

/// Files in a directory.
const FILES: u64 = 100;
/// Directories in a tree.
const DIRECTORIES: u64 = 200;
/// One file in so many is a rope.
const ROPE_ONE_IN: u64 = 500;
const ROPE_BYTES: usize = 320 << 10;

/// What to make.
#[derive(Clone, Copy)]
pub struct Made {
    /// About how many objects.
    pub objects: u64,
    /// The length of a small file.
    pub file_bytes: usize,
}

fn write(tree: &mut WorkingTree, made: Made, tree_number: u64, file: u64, version: u64) -> Result<()> {
    let path = format!("d{}/f{}", file / FILES, file % FILES);
    let mut random = Random::new((tree_number << 40) ^ (file << 16) ^ version);
    let bytes = if file.is_multiple_of(ROPE_ONE_IN) { ROPE_BYTES } else { made.file_bytes };
    tree.write(path, &random.bytes(bytes))?;
    Ok(())
}

impl Made {
    /// Objects of one tree, about.
    fn tree_objects(self) -> u64 {
        let files = FILES * DIRECTORIES;
        files + files / ROPE_ONE_IN * 40 + DIRECTORIES * 8
    }

    /// Makes trees, each under a reference of its own, until there are enough objects. Returns their heads.
    pub fn build(self, store: &Store, prefix: &str) -> Result<Vec<SnapshotId>> {
        let trees = self.objects.div_ceil(self.tree_objects()).max(1);
        (0..trees).map(|number| self.build_tree(store, &format!("{prefix}/{number}"), number)).collect()
    }

    /// One tree.
    pub fn build_tree(self, store: &Store, name: &str, number: u64) -> Result<SnapshotId> {
        let share = (self.objects as f64 / self.tree_objects() as f64).min(1.0);
        let directories = ((DIRECTORIES as f64 * share) as u64).max(1);
        let mut tree = WorkingTree::new(store);
        for directory in 0..directories {
            tree.create_directories(format!("d{directory}"))?;
        }
        for file in 0..directories * FILES {
            write(&mut tree, self, number, file, 0)?;
        }
        Ok(tree.commit(Commit::new(&reference(name), "made").buffered())?.snapshot)
    }

    /// Changes one file in so many of a tree and commits.
    pub fn change(self, store: &Store, from: SnapshotId, name: &str, version: u64, one_in: u64) -> Result<SnapshotId> {
        let mut tree = WorkingTree::open(store, from)?;
        let directories = tree.list("")?.count() as u64;
        for file in (0..directories * FILES).filter(|file| (file + version).is_multiple_of(one_in)) {
            write(&mut tree, self, 0, file, version)?;
        }
        Ok(tree.commit(Commit::new(&reference(name), "changed").buffered())?.snapshot)
    }
}

/// Removes a reference.
pub fn remove(store: &Store, name: &str) -> Result<()> {
    let name = reference(name);
    let Some(value) = store.read_ref(&name)? else { return Ok(()) };
    let target = value.target.ok_or("these references hold snapshots")?;
    let refs = amalgam_engine::RefMove {
        expect: vec![(name.clone(), Some(value))],
        set: vec![(name, None)],
        durability: amalgam_engine::Durability::Buffered,
        ..Default::default()
    };
    store.session().commit(target, refs)?;
    Ok(())
}

/// The bytes of all files below a directory.
pub fn disk_bytes(directory: &std::path::Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    let bytes = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => disk_bytes(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.flatten().map(bytes).sum()
}
