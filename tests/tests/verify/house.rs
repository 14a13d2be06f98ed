//! A store to damage: a tree that holds every kind of object, beside one that shares nothing with it, and the plants.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use amalgam_engine::backend::{Family, Inspect, RowEdit};
use amalgam_engine::object::outgoing;
use amalgam_engine::verify::{Damage, Problem, VerifyOptions, VerifyReport};
use amalgam_engine::{
    ChunkId, Commit, ObjectId, ObjectKind, RequestId, SnapshotId, Store, StoreOptions, WorkingTree, verify,
};
use amalgam_tests::harness::{Random, name, read_files};
use bytes::Bytes;

pub(crate) type Rows = BTreeMap<(Family, Bytes), Bytes>;
pub(crate) type Files = BTreeMap<String, Vec<u8>>;

/// A store with a tree that holds every kind of object, and another one that shares nothing with it.
pub(crate) struct House {
    pub(crate) backend: Arc<dyn Inspect>,
    pub(crate) main: SnapshotId,
    pub(crate) other: SnapshotId,
    pub(crate) main_files: Files,
    pub(crate) other_files: Files,
    pub(crate) sound: Rows,
}

pub(crate) fn quiet(_: &amalgam_engine::verify::VerifyProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

pub(crate) fn store_over(backend: &Arc<dyn Inspect>) -> Store {
    Store::new(Arc::clone(backend), &StoreOptions::default())
}

pub(crate) fn check(backend: &Arc<dyn Inspect>) -> VerifyReport {
    verify(&store_over(backend), &VerifyOptions::reading_data(), &quiet).expect("a report")
}

pub(crate) fn all_rows(backend: &dyn Inspect) -> Rows {
    let mut rows = Rows::new();
    for family in Family::ALL {
        let page = backend.rows(family, &[], None, usize::MAX).expect("rows");
        rows.extend(page.rows.into_iter().map(|(key, value)| ((family, key), value)));
    }
    rows
}

/// Makes the rows what they were.
pub(crate) fn set_rows(backend: &dyn Inspect, wanted: &Rows) {
    let now = all_rows(backend);
    let gone = now.keys().filter(|key| !wanted.contains_key(*key));
    let mut edits: Vec<_> =
        gone.map(|(family, key)| RowEdit { family: *family, key: key.clone(), value: None }).collect();
    let changed = wanted.iter().filter(|(key, value)| now.get(*key) != Some(*value));
    edits.extend(changed.map(|((family, key), value)| put(*family, key, value.clone())));
    backend.edit(edits).expect("edit");
}

pub(crate) fn put(family: Family, key: &[u8], value: impl Into<Bytes>) -> RowEdit {
    RowEdit { family, key: Bytes::copy_from_slice(key), value: Some(value.into()) }
}

pub(crate) fn take(family: Family, key: &[u8]) -> RowEdit {
    RowEdit { family, key: Bytes::copy_from_slice(key), value: None }
}

pub(crate) fn plant_tree(tree: &mut WorkingTree, seed: u64) {
    let mut random = Random::new(seed);
    tree.create_directories("small/below").expect("mkdir");
    tree.create_directories("wide").expect("mkdir");
    tree.write("small/below/file", format!("small {seed}").as_bytes()).expect("write");
    tree.write("big", &random.bytes(1_500_000)).expect("write");
    for number in 0..120 {
        tree.write(format!("wide/{number:03}"), format!("{seed} {number}").as_bytes()).expect("write");
    }
    tree.write(format!("one {seed}"), format!("linked {seed}").as_bytes()).expect("write");
    tree.link(format!("one {seed}"), format!("two {seed}")).expect("link");
    tree.set_state("key", &format!("{{\"seed\":{seed}}}")).expect("state");
    tree.write("tagged", format!("tagged {seed}").as_bytes()).expect("write");
    tree.set_xattr("tagged", b"user.large", &random.bytes(3_000)).expect("xattr");
}

impl House {
    pub(crate) fn new(backend: Arc<dyn Inspect>) -> Self {
        let store = store_over(&backend);
        let commit = |reference: &str, seed: u64| {
            let mut tree = WorkingTree::new(&store);
            plant_tree(&mut tree, seed);
            let mut commit = Commit::new(&name(reference), "all of it");
            commit.request = Some(RequestId::new(reference).expect("an id"));
            let done = tree.commit(commit).expect("commit");
            (done.snapshot, read_files(&tree).expect("files"))
        };
        let (main, main_files) = commit("head/main", 1);
        let (other, other_files) = commit("head/other", 2);
        let sound = all_rows(&*backend);
        Self { backend, main, other, main_files, other_files, sound }
    }

    pub(crate) fn restore(&self) {
        set_rows(&*self.backend, &self.sound);
    }

    /// Where an object lies: its family, and its key there.
    pub(crate) fn place(&self, id: ObjectId) -> (Family, [u8; 8]) {
        let row = &self.sound[&(Family::Index, Bytes::copy_from_slice(&id.hash))];
        // A kind and three varints, the last of which is the number.
        let mut numbers = Vec::new();
        let (mut value, mut shift) = (0, 0);
        for byte in &row[1..] {
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if *byte < 0x80 {
                numbers.push(value);
                (value, shift) = (0, 0);
            }
        }
        (Family::of(id.kind), numbers[2].to_be_bytes())
    }

    pub(crate) fn stored(&self, id: ObjectId) -> Bytes {
        let (family, key) = self.place(id);
        self.sound[&(family, Bytes::copy_from_slice(&key))].clone()
    }

    /// Every object below one, that one first.
    pub(crate) fn below(&self, top: ObjectId) -> Vec<ObjectId> {
        let (mut all, mut open, mut seen) = (Vec::new(), vec![top], BTreeSet::new());
        while let Some(id) = open.pop() {
            if seen.insert(id) {
                all.push(id);
                open.extend(outgoing(id.kind, &self.stored(id)).expect("sound").strong);
            }
        }
        all
    }

    /// One object of every sort in a tree, with the path that it affects.
    pub(crate) fn targets(&self, top: SnapshotId, seed: u64) -> Vec<(&'static str, ObjectId, &'static str)> {
        let below = self.below(top.object());
        let of = |kind: ObjectKind| below.iter().copied().filter(move |id| id.kind == kind);
        let is_inner = |id: &ObjectId| self.stored(*id)[2] == 0x08;
        let holds = |id: &ObjectId, other: ObjectId| {
            outgoing(id.kind, &self.stored(*id)).expect("sound").strong.contains(&other)
        };
        let first = ChunkId::of(format!("{seed} 0").as_bytes()).object();
        let leaf = of(ObjectKind::Directory).find(|id| holds(id, first)).expect("a leaf");
        let inner = of(ObjectKind::Directory).find(|id| is_inner(id) && holds(id, leaf)).expect("an inner node");
        let one = |kind| of(kind).next().expect("every kind is there");
        let big = of(ObjectKind::Rope).find(is_inner).expect("an inner rope");
        let piece = of(ObjectKind::Rope).find(|id| !is_inner(id)).expect("a leaf of a rope");
        vec![
            ("chunk", ChunkId::of(format!("small {seed}").as_bytes()).object(), "small/below/file"),
            ("chunk of a rope", outgoing(piece.kind, &self.stored(piece)).expect("sound").strong[0], "big"),
            ("rope leaf", piece, "big"),
            ("rope inner", big, "big"),
            ("directory leaf", leaf, "wide"),
            ("directory inner", inner, "wide"),
            ("xattrs", one(ObjectKind::Xattrs), "tagged"),
            ("links", one(ObjectKind::Links), ""),
            ("state", one(ObjectKind::State), ""),
            ("root", one(ObjectKind::Root), ""),
            ("snapshot", top.object(), ""),
        ]
    }

    pub(crate) fn plant(&self, planted: &Plant, id: ObjectId, twin: ObjectId) {
        let (family, key) = self.place(id);
        let mut bytes = self.stored(id).to_vec();
        let mut index = self.sound[&(Family::Index, Bytes::copy_from_slice(&id.hash))].to_vec();
        let middle = bytes.len() / 2;
        let edits = match planted {
            Plant::Flip => {
                bytes[middle] ^= 0x10;
                vec![put(family, &key, bytes)]
            }
            Plant::Cut => {
                bytes.truncate(middle);
                vec![put(family, &key, bytes)]
            }
            Plant::Swap => {
                let (_, twin_key) = self.place(twin);
                vec![put(family, &key, self.stored(twin)), put(family, &twin_key, bytes)]
            }
            Plant::RowGone => vec![take(family, &key)],
            Plant::IndexGone => vec![take(Family::Index, &id.hash)],
            Plant::AllGone => vec![take(family, &key), take(Family::Index, &id.hash)],
            Plant::KindWrong => {
                index[0] = if id.kind == ObjectKind::Rope { 3 } else { 2 };
                vec![put(Family::Index, &id.hash, index)]
            }
        };
        self.backend.edit(edits).expect("plant");
        assert!(all_rows(&*self.backend) != self.sound, "{planted:?} of {id}: nothing was planted");
    }

    /// What of the files of a snapshot can be read, path by path.
    pub(crate) fn readable(&self, snapshot: SnapshotId, files: &Files) -> BTreeSet<String> {
        let store = store_over(&self.backend);
        let Ok(tree) = WorkingTree::open(&store, snapshot) else { return BTreeSet::new() };
        let mut readable = BTreeSet::new();
        for (path, bytes) in files {
            if let Ok(read) = tree.read(path) {
                assert_eq!(read, *bytes, "{path}: wrong bytes");
                readable.insert(path.clone());
            }
        }
        readable
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plant {
    Flip,
    Cut,
    Swap,
    RowGone,
    IndexGone,
    AllGone,
    KindWrong,
}

impl Plant {
    pub(crate) const ALL: [Self; 7] =
        [Self::Flip, Self::Cut, Self::Swap, Self::RowGone, Self::IndexGone, Self::AllGone, Self::KindWrong];

    /// Whether nothing is lost by it.
    pub(crate) fn heals(self) -> bool {
        matches!(self, Self::Swap | Self::IndexGone | Self::KindWrong)
    }

    pub(crate) fn explains(self, damage: &Damage, held: bool) -> bool {
        match self {
            Self::Flip | Self::Cut => matches!(damage, Damage::Corrupt { .. }),
            Self::Swap => matches!(damage, Damage::Corrupt { says } if says.contains("those of")),
            Self::RowGone | Self::IndexGone | Self::AllGone if held => *damage == Damage::Dangling,
            Self::RowGone | Self::IndexGone | Self::AllGone => *damage == Damage::Missing,
            Self::KindWrong => matches!(damage, Damage::WrongKind { .. }),
        }
    }
}

pub(crate) fn problem_of(report: &VerifyReport, id: ObjectId) -> &Problem {
    let found: Vec<_> = report.problems.iter().filter(|problem| problem.id == id).collect();
    assert_eq!(found.len(), 1, "{id}: {:#?}", report.problems);
    found[0]
}

pub(crate) fn affects(problem: &Problem, snapshot: SnapshotId, path: &str) -> bool {
    let here = |place: &amalgam_engine::verify::AffectedPlace| {
        place.top == snapshot.object() && place.path.as_bytes() == path.as_bytes() && !place.refs.is_empty()
    };
    problem.reached && problem.places.iter().any(here) && problem.places_more == 0
}
