//! Reading a whole tree from a cold disk: after a long history, against a store that holds nothing but that tree.

use std::path::Path;
use std::time::Instant;

use amalgam_benches::random::Random;
use amalgam_benches::trees::reference;
use amalgam_benches::{Bar, Result, machine, median};
use amalgam_engine::content::read_at;
use amalgam_engine::object::{Content, Entry, EntryKind, Node};
use amalgam_engine::{ChunkId, Commit, SnapshotId, Store, WorkingTree};

use crate::Bench;

const RATIO: &str = "cold checkout, after 200 commits against fresh";
const RATE: &str = "cold checkout, fresh";

pub(crate) const FIGURES: &[&str] = &[RATIO, RATE];

const COMMITS: u64 = 200;
const EDITS_EACH: u64 = 50;
const FILES_EACH: u64 = 100;
/// A checkout asks for this many chunks at a time.
const CHUNKS_MAX: usize = 256;
const READ_BYTES: u64 = 4 << 20;
const MB: f64 = 1e6;

/// The files of the tree: how many edits each has had.
struct Files(Vec<u64>);

impl Files {
    fn path(index: u64) -> String {
        format!("directory-{:03}/file-{index:05}", index / FILES_EACH)
    }

    /// Mostly small, some large, as in a source tree; an edit changes a line.
    fn contents(&self, index: u64) -> Vec<u8> {
        let mut random = Random::new(index);
        let length = 1_000_u64 << (random.below(8) * random.below(8) / 6);
        let length = length + random.below(length);
        let mut contents = random.text(length as usize);
        for edit in 0..self.0[index as usize] {
            let line = format!("edit {edit} of {index}\n");
            let place = random.below((contents.len() - line.len()) as u64) as usize;
            contents[place..place + line.len()].copy_from_slice(line.as_bytes());
        }
        contents
    }

    fn build(&self, store: &Store) -> Result<(WorkingTree, SnapshotId)> {
        let mut tree = WorkingTree::new(store);
        for index in 0..self.0.len() as u64 {
            if index % FILES_EACH == 0 {
                tree.create_directories(format!("directory-{:03}", index / FILES_EACH))?;
            }
            tree.write(Self::path(index), &self.contents(index))?;
        }
        let done = tree.commit(Commit::new(&reference("head/main"), "the whole tree"))?;
        Ok((tree, done.snapshot))
    }
}

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    eprintln!("cold checkout");
    let (count, turns): (usize, usize) = bench.size((20_000, 5), (300, 1));
    let mut files = Files(vec![0; count]);
    let (old, fresh) = (bench.directory("checkout-old"), bench.directory("checkout-fresh"));
    let worn = {
        let store = Store::open(&old)?;
        let (mut tree, mut last) = files.build(&store)?;
        let mut random = Random::new(6);
        for _ in 0..COMMITS {
            for _ in 0..EDITS_EACH {
                let index = random.below(count as u64);
                files.0[index as usize] += 1;
                tree.write(Files::path(index), &files.contents(index))?;
            }
            last = tree.commit(Commit::new(&reference("head/main"), "edits").buffered())?.snapshot;
        }
        last
    };
    let new = files.build(&Store::open(&fresh)?)?.1;
    let (mut worn_rates, mut new_rates) = (Vec::new(), Vec::new());
    let mut means = "";
    for _ in 0..turns {
        for (directory, snapshot, rates) in [(&old, worn, &mut worn_rates), (&fresh, new, &mut new_rates)] {
            means = machine::drop_caches(directory)?;
            rates.push(checkout(directory, snapshot)?);
        }
    }
    let edited = files.0.iter().filter(|edits| **edits > 0).count();
    let how = format!(
        "{count} files of text, 1 to 256 KB, {edited} of them edited in {COMMITS} commits of {EDITS_EACH}; the same tree \
         committed at once to a fresh store; both read in the order of paths by one thread, {CHUNKS_MAX} chunks at a time, in \
         turns, caches emptied by {means}; median of {turns}"
    );
    let rounded = format!("MB/s: after {worn_rates:.0?}, fresh {new_rates:.0?}");
    let (worn, new) = (median(worn_rates), median(new_rates));
    bench.add(RATE, (new, "MB/s"), Bar::None, format!("{how}; {rounded}"));
    bench.add(RATIO, (worn / new, "x"), Bar::AtLeast(0.6), format!("{how}; {rounded}"));
    Ok(())
}

/// Reads every byte of a tree as a checkout would; returns megabytes of content a second.
fn checkout(directory: &Path, snapshot: SnapshotId) -> Result<f64> {
    let store = Store::open(directory)?;
    let start = Instant::now();
    let tree = WorkingTree::open(&store, snapshot)?;
    let mut reading = Reading { store: &store, wanted: Vec::new(), bytes: 0 };
    let mut open = vec![Vec::new()];
    while let Some(path) = open.pop() {
        let mut below = Vec::new();
        for item in tree.list(&path)? {
            let (name, stat) = item?;
            if stat.kind == EntryKind::Directory {
                let parts: &[&[u8]] = if path.is_empty() { &[name.as_bytes()] } else { &[&path, name.as_bytes()] };
                below.push(parts.join(&b'/'));
            } else if let Some(Entry { node: Node::File { size, content }, .. }) = stat.entry {
                reading.file(size, content)?;
            }
        }
        open.extend(below.into_iter().rev());
    }
    reading.flush()?;
    Ok(reading.bytes as f64 / MB / start.elapsed().as_secs_f64())
}

struct Reading<'a> {
    store: &'a Store,
    wanted: Vec<(ChunkId, u64)>,
    bytes: u64,
}

impl Reading<'_> {
    /// Files of one chunk wait until there are many; larger ones are many chunks by themselves.
    fn file(&mut self, size: u64, content: Content) -> Result<()> {
        if let Content::Chunk(id) = content {
            self.wanted.push((id, size));
            return if self.wanted.len() < CHUNKS_MAX { Ok(()) } else { self.flush() };
        }
        let mut buffer = vec![0; size.min(READ_BYTES) as usize];
        let mut done = 0;
        while done < size {
            let step = (size - done).min(READ_BYTES);
            read_at(self.store, &content, size, done, &mut buffer[..step as usize])?;
            done += step;
        }
        self.bytes += size;
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        let chunks = self.store.chunks(&std::mem::take(&mut self.wanted))?;
        self.bytes += chunks.iter().map(|chunk| chunk.len() as u64).sum::<u64>();
        Ok(())
    }
}
