//! Exports the difference between two trees as a layer.

use std::collections::HashSet;
use std::io::Write;

use amalgam_engine::object::{DirectoryRef, Entry, Node, Owner, Root};
use amalgam_engine::{LinkGroup, Progress, RootId, Store, TreePath, entry_at, linked_paths};

use crate::compress::{Compression, Encoder};
use crate::counting::CountingStream;
use crate::error::{Error, Result};
use crate::paired::{PairedEntry, paired_entries};
use crate::report::Report;
use crate::tar::{LayerChange, NOTE_STATE, TarSink};

const NOTE_WHITEOUT: &str = "names that begin with `.wh.` were left out: in a layer they remove files";

/// Writes a layer that makes one tree of another, or the whole tree when there is no other, as a tar archive.
pub fn export_layer(
    store: &Store,
    base: Option<RootId>,
    root: RootId,
    output: impl Write,
    compression: Compression,
    progress: &Progress,
) -> Result<Report> {
    let failed = |source| Error::host("write the layer", source);
    let output = Encoder::new(CountingStream { inner: output, progress }, compression).map_err(failed)?;
    let (output, report) = write_layer(store, base, root, output, progress)?;
    output.finish().and_then(|mut output| output.flush()).map_err(failed)?;
    Ok(report)
}

pub(super) fn write_layer<W: Write>(
    store: &Store,
    base: Option<RootId>,
    root: RootId,
    output: W,
    progress: &Progress,
) -> Result<(W, Report)> {
    let _kept = (base.map(|base| store.hold(base)).transpose()?, store.hold(root)?);
    let before = base.map(|base| store.root(base)).transpose()?;
    let after = store.root(root)?;
    let mut sink = TarSink::new(store, output, Owner { uid: 0, gid: 0 }, progress);
    if after.state.is_some() {
        sink.report.note(NOTE_STATE, b"");
    }
    let mut writer = LayerWriter { store, after: &after, groups: HashSet::new(), sink };
    let old = before.as_ref().map(|root| &root.directory);
    if old.is_none_or(|old| !is_same_directory(old, &after.directory)) {
        writer.sink.change(&TreePath::root(), LayerChange::Set(after.directory.clone()))?;
    }
    writer.directories(old.and_then(contents), contents(&after.directory))?;
    writer.sink.finish()
}

fn contents(entry: &Entry) -> Option<DirectoryRef> {
    match entry.node {
        Node::Directory(contents) => contents,
        _ => None,
    }
}

/// Returns whether two directories have the same attributes, regardless of their contents.
fn is_same_directory(old: &Entry, new: &Entry) -> bool {
    let bare = |entry: &Entry| Entry { node: Node::Directory(None), ..entry.clone() };
    matches!((&old.node, &new.node), (Node::Directory(_), Node::Directory(_))) && bare(old) == bare(new)
}

struct LayerWriter<'a, W: Write> {
    store: &'a Store,
    after: &'a Root,
    /// Hard-linked files that were written with all their names.
    groups: HashSet<LinkGroup>,
    sink: TarSink<'a, W>,
}

impl<W: Write> LayerWriter<'_, W> {
    fn directories(&mut self, before: Option<DirectoryRef>, after: Option<DirectoryRef>) -> Result<()> {
        let mut open = vec![(TreePath::root(), before, after)];
        while let Some((above, before, after)) = open.pop() {
            if before == after {
                continue;
            }
            for paired in paired_entries(self.store, before, after)? {
                let PairedEntry { name, before, after } = paired?;
                let path = above.join(&name);
                if name.as_bytes().starts_with(b".wh.") {
                    self.sink.report.note(NOTE_WHITEOUT, path.as_bytes());
                    continue;
                }
                let Some(after) = after else {
                    self.sink.change(&path, LayerChange::Whiteout)?;
                    continue;
                };
                if before.as_ref() == Some(&after) {
                    continue;
                }
                let below = before.as_ref().and_then(contents);
                if let Node::Directory(contents) = after.node {
                    open.push((path.clone(), below, contents));
                }
                self.set(&path, after)?;
            }
        }
        Ok(())
    }

    /// Writes an entry; a file with several names comes with all of them, so that the layer does not part them.
    fn set(&mut self, path: &TreePath, entry: Entry) -> Result<()> {
        let Some(group) = entry.link() else { return self.sink.change(path, LayerChange::Set(entry)) };
        if !self.groups.insert(group) {
            return Ok(());
        }
        for member in linked_paths(self.store, self.after, group)? {
            let entry = entry_at(self.store, self.after, &member)?;
            let entry = entry.ok_or_else(|| amalgam_engine::Error::NotFound { path: member.clone() })?;
            self.sink.change(&member, LayerChange::Set(entry))?;
        }
        Ok(())
    }
}
