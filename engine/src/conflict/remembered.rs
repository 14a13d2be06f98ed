//! Remembered resolutions: a conflict that occurs again is resolved in the same way (like `git rerere`).
//!
//! Each resolution is a reference, `resolution/{hash of the conflict}`, to a tree that holds the resolved entry or is empty. So
//! collection, transfer, verification and undo treat it like any other reference. The hash does not depend on which side a
//! version is on or on the times of the versions.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::exchange::{Exchange, alone};
use super::find::PlacedConflict;
use crate::assemble::Assembly;
use crate::directory::entry_at;
use crate::error::{Error, Result};
use crate::id::{Bare, ObjectKind, RootId};
use crate::name::{Name, TreePath};
use crate::object::{Conflict, Entry, Node};
use crate::operation::{OperationContext, RESOLUTIONS, Step, move_refs, recorded, trying};
use crate::reference::{Operation, RefName, RefValue};
use crate::store::Store;
use crate::time::Time;
use crate::work::WorkingTree;

const PREFIX: &str = RESOLUTIONS;
/// The name of the resolved entry in its tree.
const NAME: &[u8] = b"resolution";

/// A remembered resolution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RememberedResolution {
    /// The hash of the conflict.
    pub id: Bare,
    /// The path of the conflict when it was resolved.
    pub path: TreePath,
    /// The resolved entry; `None` if the resolution was to remove the entry.
    pub entry: Option<Entry>,
    /// The tree that holds the resolution.
    pub root: RootId,
}

/// A resolution to be remembered: a reference and its value, whose objects stay pinned meanwhile. If a commit sets it together
/// with its head (`Change::resolutions`), an undo of the commit removes it again.
#[derive(Clone)]
pub struct NewResolution {
    pub(crate) name: RefName,
    pub(crate) value: RefValue,
    _kept: WorkingTree,
}

impl std::fmt::Debug for NewResolution {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("NewResolution").field(&self.name).finish()
    }
}

impl NewResolution {
    /// Records that a conflict was resolved to an entry of the tree `from`. Returns `None` if this is already remembered.
    pub fn new(
        store: &Store,
        conflict: &Conflict,
        path: &TreePath,
        entry: Option<&Entry>,
        from: RootId,
    ) -> Result<Option<Self>> {
        if matches!(entry, Some(Entry { node: Node::Conflict(_), .. })) {
            return Err(Error::Invalid { what: "resolution", why: "it is a conflict itself".to_owned() });
        }
        if same(replay(store, conflict)?.as_ref(), entry) {
            return Ok(None);
        }
        let _from = store.hold(from)?;
        let assembly = Assembly::new(store, None)?;
        let entry = entry.map(|entry| alone(&assembly, entry)).transpose()?;
        let contents = assembly.directory(None, vec![(Name::new(NAME).expect("a name"), entry)])?;
        let tree = assembly.finish(Entry::new(Node::Directory(contents), 0o755, Time::EPOCH), &BTreeSet::new())?;
        let root = tree.freeze().write(&store.session())?;
        let value = RefValue { note: Bytes::copy_from_slice(path.as_bytes()), ..RefValue::to(root) };
        Ok(Some(Self { name: reference(conflict.bare()), value, _kept: tree }))
    }
}

/// Remembers the resolution of a conflict, as an operation of its own. Does nothing if it is already remembered.
pub fn remember(
    store: &Store,
    conflict: &Conflict,
    path: &TreePath,
    entry: Option<&Entry>,
    from: RootId,
    context: &OperationContext,
) -> Result<Option<Operation>> {
    let Some(new) = NewResolution::new(store, conflict, path, entry, from)? else { return Ok(None) };
    trying(|| {
        let step = Step { name: new.name.clone(), before: store.read_ref(&new.name)?, after: Some(new.value.clone()) };
        move_refs(store, context, context.draft("remember"), vec![step]).map(recorded)
    })
    .map(Some)
}

/// Returns the remembered resolution of a conflict. The outer `None` means that no resolution is remembered, the inner one that
/// the conflict was resolved by removing the entry.
pub fn replay(store: &Store, conflict: &Conflict) -> Result<Option<Option<Entry>>> {
    Ok(resolution(store, conflict.bare())?.map(|remembered| remembered.entry))
}

/// A tree with remembered resolutions applied.
pub struct Replayed {
    /// The tree.
    pub tree: WorkingTree,
    /// Its root.
    pub root: RootId,
    /// The paths of the conflicts that were resolved.
    pub paths: Vec<TreePath>,
    /// The conflicts without a remembered resolution.
    pub left: Vec<PlacedConflict>,
}

/// Applies all remembered resolutions to a tree. `placed` lists the conflicts of the tree.
pub fn replay_all(store: &Store, root: RootId, placed: &[PlacedConflict]) -> Result<Replayed> {
    let mut exchange = Exchange::new(store, root, &[])?;
    let (mut paths, mut left) = (Vec::new(), Vec::new());
    for placed in placed {
        match replay(store, &placed.conflict)? {
            Some(entry) => {
                exchange.set(&placed.path, entry.as_ref())?;
                paths.push(placed.path.clone());
            }
            None => left.push(placed.clone()),
        }
    }
    let (tree, root) = exchange.finish()?;
    Ok(Replayed { tree, root, paths, left })
}

/// Returns a resolution by the hash of its conflict.
pub fn resolution(store: &Store, id: Bare) -> Result<Option<RememberedResolution>> {
    match store.read_ref(&reference(id))? {
        Some(value) => read(store, id, &value),
        None => Ok(None),
    }
}

/// Returns up to `limit` resolutions after the given one, in the order of their hashes.
pub fn remembered(store: &Store, after: Option<Bare>, limit: usize) -> Result<Vec<RememberedResolution>> {
    let after = after.map(reference);
    let mut found = Vec::new();
    for (name, value) in store.list_refs(PREFIX, after.as_ref(), limit)? {
        let Some(id) = name.as_str().strip_prefix(PREFIX).and_then(Bare::from_hex) else { continue };
        found.extend(read(store, id, &value)?);
    }
    Ok(found)
}

/// Forgets a resolution. Returns `None` if there was none.
pub fn forget(store: &Store, id: Bare, context: &OperationContext) -> Result<Option<Operation>> {
    let name = reference(id);
    trying(|| {
        let Some(before) = store.read_ref(&name)? else { return Ok(None) };
        let step = Step { name: name.clone(), before: Some(before), after: None };
        move_refs(store, context, context.draft("forget resolution"), vec![step]).map(recorded).map(Some)
    })
}

fn read(store: &Store, id: Bare, value: &RefValue) -> Result<Option<RememberedResolution>> {
    let damaged =
        || Error::DamagedRecord { what: format!("resolution {id}"), why: "it does not name a tree".to_owned() };
    let root = match value.target {
        Some(target) if target.kind == ObjectKind::Root => RootId::from_bytes(target.hash),
        _ => return Err(damaged()),
    };
    let path = TreePath::new(&value.note[..])?;
    let entry = entry_at(store, &*store.root(root)?, &TreePath::new(NAME).expect("a path"))?;
    Ok(Some(RememberedResolution { id, path, entry, root }))
}

fn same(known: Option<&Option<Entry>>, entry: Option<&Entry>) -> bool {
    match (known, entry) {
        (Some(Some(known)), Some(entry)) => {
            let alone = |entry: &Entry| entry.clone().with_extra(|extra| extra.link = None);
            known.equal_but_for_times(&alone(entry))
        }
        (Some(None), None) => true,
        _ => false,
    }
}

fn reference(id: Bare) -> RefName {
    RefName::new(format!("{PREFIX}{id}")).expect("hex digits are a name")
}
