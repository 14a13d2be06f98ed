//! Counts the paths that differ without visiting them: each distinct pair of directories is compared once.

use std::collections::HashMap;

use super::{DiffOptions, contents, diff_directories};
use crate::error::Result;
use crate::id::DirectoryId;
use crate::object::{DirectoryRef, Entry};
use crate::store::Store;

/// A directory on both sides.
type Pair = [Option<DirectoryRef>; 2];
type Key = [Option<DirectoryId>; 2];

/// A pair whose comparison is in progress.
struct Open {
    key: Key,
    below: std::vec::IntoIter<Pair>,
    paths: u64,
}

/// Counts the paths that differ below two entries, even if only their times differ. Time and memory are bounded by the
/// number of distinct directories of both sides. The count saturates.
pub fn count_differing_paths(store: &Store, before: Option<&Entry>, after: Option<&Entry>) -> Result<u64> {
    let mut known: HashMap<Key, u64> = HashMap::new();
    let mut open = vec![Open::new(store, [before.and_then(contents), after.and_then(contents)])?];
    loop {
        let here = open.last_mut().expect("it ends with the first one");
        let Some(below) = here.below.next() else {
            let done = open.pop().expect("it is the last one");
            known.insert(done.key, done.paths);
            match open.last_mut() {
                Some(above) => above.paths = above.paths.saturating_add(done.paths),
                None => return Ok(done.paths),
            }
            continue;
        };
        match known.get(&key(below)) {
            Some(paths) => here.paths = here.paths.saturating_add(*paths),
            None => open.push(Open::new(store, below)?),
        }
    }
}

fn key(pair: Pair) -> Key {
    pair.map(|side| side.map(|side| side.id))
}

impl Open {
    fn new(store: &Store, pair: Pair) -> Result<Self> {
        let (mut below, mut paths) = (Vec::new(), 0);
        if pair[0] != pair[1] {
            for change in
                diff_directories(store, pair[0], pair[1], DiffOptions { times: true, ..DiffOptions::default() })?
            {
                let change = change?;
                let side = |entry: &Option<Entry>| entry.as_ref().and_then(contents);
                let pair = [side(&change.before), side(&change.after)];
                paths += 1;
                if pair[0] != pair[1] {
                    below.push(pair);
                }
            }
        }
        Ok(Self { key: key(pair), below: below.into_iter(), paths })
    }
}
