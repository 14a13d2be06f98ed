//! Trees made up for measuring, the same in every run.

use amalgam_engine::reference::RefName;
use amalgam_engine::{Commit, SnapshotId, Store, WorkingTree};

use crate::Result;
use crate::random::Random;

/// Names in a directory of a nested tree.
const FAN_OUT: u64 = 100;

/// How the files of a tree lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A hundred names in each directory, as many floors as it takes.
    Nested,
    /// All in one directory.
    Flat,
}

impl Shape {
    /// Its word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Nested => "nested",
            Self::Flat => "flat",
        }
    }
}

/// A tree of small files, each with contents of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// How they lie.
    pub shape: Shape,
    /// How many.
    pub files: u64,
}

impl Plan {
    /// The path of one of its files.
    pub fn path(self, index: u64) -> String {
        match self.directory(index) {
            directory if directory.is_empty() => format!("file-{index:07}"),
            directory => format!("{directory}/file-{index:07}"),
        }
    }

    fn directory(self, index: u64) -> String {
        let mut names = Vec::new();
        let (mut above, mut size) = (index / FAN_OUT, self.files / FAN_OUT);
        while self.shape == Shape::Nested && size > 1 {
            names.push(format!("directory-{:02}", above % FAN_OUT));
            above /= FAN_OUT;
            size /= FAN_OUT;
        }
        names.reverse();
        names.join("/")
    }

    /// 100 to 200 bytes that no other file has.
    pub fn contents(self, index: u64) -> Vec<u8> {
        let mut random = Random::new(index);
        let length = 90 + random.below(100) as usize;
        let mut contents = format!("file {index}\n").into_bytes();
        contents.extend(random.text(length));
        contents
    }

    /// Makes the tree and commits it under this name.
    pub fn build(self, store: &Store, head: &RefName) -> Result<(WorkingTree, SnapshotId)> {
        let mut tree = WorkingTree::new(store);
        let mut made = String::new();
        for index in 0..self.files {
            let directory = self.directory(index);
            if directory != made {
                tree.create_directories(&directory)?;
                made = directory;
            }
            tree.write(self.path(index), &self.contents(index))?;
        }
        let done = tree.commit(Commit::new(head, "the whole tree"))?;
        Ok((tree, done.snapshot))
    }
}

/// The name of a reference, from text known to be one.
pub fn reference(name: &str) -> RefName {
    RefName::new(name).expect("the benchmarks' names are valid")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_trees_have_a_hundred_names_in_a_directory() {
        let path = |files, index| Plan { shape: Shape::Nested, files }.path(index);
        assert_eq!(path(1_000, 999), "directory-09/file-0000999");
        assert_eq!(path(100_000, 99_999), "directory-09/directory-99/file-0099999");
        assert_eq!(path(1_000_000, 999_999), "directory-99/directory-99/file-0999999");
        assert_eq!(Plan { shape: Shape::Flat, files: 1_000 }.path(7), "file-0000007");
    }
}
