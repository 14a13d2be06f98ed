//! Trees as text, for small cases: `path=contents`, `path+=contents` executable, `path->target`, `path/` an empty directory,
//! `path|` a FIFO, `path~other` another name of a file. A conflict reads `path<ours|base|theirs>`.

use std::fmt::Write as _;
use std::ops::ControlFlow;

use amalgam_engine::merge::{ContestedFile, MergeReport, PathConflict, Verdict};
use amalgam_engine::object::{EntryKind, Node};
use amalgam_engine::work::Special;
use amalgam_engine::{
    Entry, MergeContents, MergeOptions, NoContents, Result, RootId, Store, Time, VerifyOptions, WorkingTree,
    list_directory, merge_trees, verify,
};
use amalgam_tests::model::write_root;

pub const MERGE_TIME: Time = Time(1_000);

/// The tree that a text describes.
pub fn tree(store: &Store, text: &str) -> RootId {
    let mut tree = WorkingTree::new(store);
    tree.set_now(Time(1));
    for word in text.split_whitespace() {
        let end = word.find(['=', '+', '-', '|', '~']).unwrap_or(word.len());
        let (path, rest) = word.split_at(end);
        if let Some((above, _)) = path.trim_end_matches('/').rsplit_once('/') {
            tree.create_directories(above).expect("directories");
        }
        match rest {
            "" => tree.create_directories(path.trim_end_matches('/')).expect("a directory"),
            "|" => tree.create_special(path, Special::Fifo, 0o644).expect("a FIFO"),
            _ => match rest.split_at(if rest.starts_with(['=', '~']) { 1 } else { 2 }) {
                ("=", contents) => tree.write(path, contents.as_bytes()).expect("a file"),
                ("+=", contents) => {
                    tree.write(path, contents.as_bytes()).expect("a file");
                    tree.set_mode(path, 0o755).expect("its mode");
                }
                ("->", target) => tree.symlink(path, target).expect("a symlink"),
                ("~", other) => tree.link(other, path).expect("a link"),
                other => panic!("{other:?}"),
            },
        }
    }
    write_root(&tree).expect("stored")
}

/// A tree as text; directories are left out unless they are empty.
pub fn text(tree: &WorkingTree) -> String {
    let store = tree.store().clone();
    let root = write_root(tree).expect("stored");
    let root = store.root(root).expect("a root");
    let mut words = Vec::new();
    describe(&store, "", &root.directory, &mut words);
    words.join(" ")
}

fn describe(store: &Store, path: &str, entry: &Entry, words: &mut Vec<String>) {
    if let Node::Directory(contents) = entry.node {
        let mut is_empty = true;
        for item in list_directory(store, contents).expect("a directory") {
            let (name, entry) = item.expect("an entry");
            let slash = if path.is_empty() { "" } else { "/" };
            describe(store, &format!("{path}{slash}{name}"), &entry, words);
            is_empty = false;
        }
        if is_empty && !path.is_empty() {
            words.push(format!("{path}/"));
        }
        return;
    }
    words.push(format!("{path}{}", value(store, entry)));
}

fn value(store: &Store, entry: &Entry) -> String {
    match &entry.node {
        Node::File { size, content } => {
            let mut bytes = vec![0; *size as usize];
            amalgam_engine::content::read_at(store, content, *size, 0, &mut bytes).expect("contents");
            let sign = if entry.mode & 0o100 == 0 { "=" } else { "+=" };
            format!("{sign}{}", String::from_utf8_lossy(&bytes))
        }
        Node::Symlink(target) => format!("->{}", String::from_utf8_lossy(target)),
        Node::Fifo => "|".to_owned(),
        Node::Conflict(conflict) => {
            let terms: Vec<_> = conflict.terms().iter().map(|term| term_text(store, term.as_ref())).collect();
            format!("<{}>", terms.join("|"))
        }
        other => format!("{other:?}"),
    }
}

fn term_text(store: &Store, term: Option<&Entry>) -> String {
    match term {
        None => "-".to_owned(),
        Some(entry) if entry.kind() == EntryKind::Directory => {
            let mut words = Vec::new();
            describe(store, "", entry, &mut words);
            format!("({})", words.join(" "))
        }
        Some(entry) => value(store, entry).trim_start_matches('=').to_owned(),
    }
}

/// What a merge came to.
pub struct Came {
    pub tree: WorkingTree,
    pub text: String,
    pub conflicts: Vec<PathConflict>,
    pub report: MergeReport,
}

impl Came {
    /// The conflicts as `kind path other..`, one after another.
    pub fn conflict_text(&self) -> String {
        let one = |conflict: &PathConflict| {
            let mut text = format!("{} {}", conflict.kind.word(), conflict.path);
            for other in &conflict.others {
                write!(text, " {other}").expect("text");
            }
            text
        };
        self.conflicts.iter().map(one).collect::<Vec<_>>().join(", ")
    }
}

pub fn options() -> MergeOptions {
    MergeOptions { time: MERGE_TIME, ..MergeOptions::default() }
}

pub fn merged(store: &Store, [base, ours, theirs]: [RootId; 3], contents: &dyn MergeContents) -> Result<Came> {
    let outcome = merge_trees(store, Some(base), ours, theirs, contents, &options())?;
    let text = text(&outcome.tree);
    Ok(Came { tree: outcome.tree, text, conflicts: outcome.conflicts, report: outcome.report })
}

pub fn merge(base: &str, ours: &str, theirs: &str) -> Came {
    let store = Store::in_memory();
    merged(&store, [base, ours, theirs].map(|text| tree(&store, text)), &NoContents).expect("merged")
}

/// A merge comes to this tree, without conflicts; and with the sides swapped to the same.
pub fn clean(base: &str, ours: &str, theirs: &str, expected: &str) {
    for (ours, theirs) in [(ours, theirs), (theirs, ours)] {
        let came = merge(base, ours, theirs);
        assert_eq!((came.text.as_str(), came.conflict_text().as_str()), (expected, ""), "{base} -> {ours} | {theirs}");
    }
}

/// A merge comes to this tree with these conflicts.
pub fn conflicts(base: &str, ours: &str, theirs: &str, expected: &str, conflicts: &str) {
    let came = merge(base, ours, theirs);
    assert_eq!(
        (came.text.as_str(), came.conflict_text().as_str()),
        (expected, conflicts),
        "{base} -> {ours} | {theirs}"
    );
}

/// Puts both versions one after the other.
pub struct BothAfterEachOther;

impl MergeContents for BothAfterEachOther {
    fn merge(&self, contest: &ContestedFile<'_>) -> Result<Verdict> {
        let mut bytes = contest.ours.read()?.to_vec();
        bytes.extend_from_slice(&contest.theirs.read()?);
        Ok(Verdict::Merged { bytes: bytes.into(), strategy: "joined".to_owned() })
    }
}

/// Nothing in the store is damaged.
pub fn assert_sound(store: &Store) {
    let options = VerifyOptions { read_data: true, ..VerifyOptions::default() };
    let report = verify(store, &options, &|_| ControlFlow::Continue(())).expect("verified");
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}
