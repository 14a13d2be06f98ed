//! Merges three versions of an item that is not a directory, independent of its path.
//!
//! Contents, mode, owner and extended attributes are merged separately. A mode cannot conflict. For an attribute that both sides
//! set, ours is kept and theirs is reported. Versions that are already conflicts are merged by the algebra of their terms: ours,
//! minus the base, plus theirs.

use bytes::Bytes;

use super::Attribute;
use crate::error::{Error, Result};
use crate::malformed::Malformed;
use crate::object::{Conflict, Entry, Node, Owner, Settled, Xattr, check_xattrs};
use crate::store::Store;
use crate::time::Time;

/// The execute permissions of owner, group and others.
const EXECUTE: u32 = 0o111;

/// Three versions; `None` for an absent one.
#[derive(Clone, Debug, Default)]
pub(super) struct Three<T> {
    pub(super) base: Option<T>,
    pub(super) ours: Option<T>,
    pub(super) theirs: Option<T>,
}

/// The merge of three versions.
#[derive(Clone, Debug)]
pub(super) enum Merged {
    /// An entry, or no entry.
    Entry(Option<Entry>),
    /// Files whose bytes have to be merged.
    ContestedFile(Box<Contested>),
    /// A conflict.
    Conflict(Conflict),
}

/// Two contested files without hard links, and their base.
#[derive(Clone, Debug)]
pub(super) struct Contested {
    /// Our entry with the merged attributes.
    pub(super) entry: Entry,
    pub(super) base: Option<Entry>,
    pub(super) ours: Entry,
    pub(super) theirs: Entry,
}

impl Contested {
    pub(super) fn terms(&self) -> Vec<Option<Entry>> {
        vec![Some(self.ours.clone()), self.base.clone(), Some(self.theirs.clone())]
    }
}

/// Returns an entry without its hard-link group. Hard links are merged separately.
pub(super) fn plain(entry: &Entry) -> Entry {
    match entry.link() {
        Some(_) => entry.clone().with_extra(|extra| extra.link = None),
        None => entry.clone(),
    }
}

/// Returns whether two versions are equal except for times and hard links.
pub(super) fn same(left: Option<&Entry>, right: Option<&Entry>) -> bool {
    match (left, right) {
        (None, None) => true,
        (Some(left), Some(right)) => match (left.link(), right.link()) {
            (None, None) => left.equal_but_for_times(right),
            _ => plain(left).equal_but_for_times(&plain(right)),
        },
        _ => false,
    }
}

/// Merges versions of an item that is not a directory on any side. If the bytes of the result are not those of ours, it gets the
/// time of the merge.
pub(super) fn merge(three: &Three<Entry>, now: Time) -> Result<Merged> {
    let Three { base, ours, theirs } = three;
    if same(ours.as_ref(), theirs.as_ref()) || same(base.as_ref(), theirs.as_ref()) {
        return Ok(Merged::Entry(ours.as_ref().map(plain)));
    }
    if same(base.as_ref(), ours.as_ref()) {
        return Ok(Merged::Entry(theirs.as_ref().map(|theirs| taken(theirs, ours.as_ref(), now))));
    }
    let is_conflict = |entry: &Option<Entry>| matches!(entry, Some(Entry { node: Node::Conflict(_), .. }));
    if [base, ours, theirs].into_iter().any(is_conflict) {
        return add_up(three, now);
    }
    match (ours, theirs) {
        (Some(ours), Some(theirs)) => both(base.as_ref(), ours, theirs, now),
        _ => settle(vec![ours.clone(), base.clone(), theirs.clone()]).map(Merged::from),
    }
}

/// Returns an entry of the other side that replaces ours.
fn taken(theirs: &Entry, ours: Option<&Entry>, now: Time) -> Entry {
    let mtime = match ours {
        Some(ours) if ours.node == theirs.node => ours.mtime,
        _ if matches!(theirs.node, Node::Conflict(_)) => Time::EPOCH,
        _ => now,
    };
    Entry { mtime, ..plain(theirs) }
}

fn both(base: Option<&Entry>, ours: &Entry, theirs: &Entry, now: Time) -> Result<Merged> {
    let is_base = |entry: &Entry| base.is_some_and(|base| base.node == entry.node);
    let attributes = |from: &Entry| merge_attributes(base, ours, theirs, from);
    if ours.node == theirs.node || (is_base(theirs) && fits(base, theirs, ours)) {
        return Ok(Merged::Entry(Some(attributes(ours))));
    }
    if is_base(ours) && fits(base, ours, theirs) {
        let entry = attributes(theirs);
        return Ok(Merged::Entry(Some(Entry { mtime: now, ..entry })));
    }
    if let (Node::File { .. }, Node::File { .. }) = (&ours.node, &theirs.node) {
        let base = base.map(plain);
        let entry = Entry { mtime: now, ..attributes(ours) };
        let contested = Contested { entry, base, ours: plain(ours), theirs: plain(theirs) };
        return Ok(Merged::ContestedFile(Box::new(contested)));
    }
    settle(vec![Some(ours.clone()), base.cloned(), Some(theirs.clone())]).map(Merged::from)
}

/// Returns whether one side's changes of mode and extended attributes can be applied to the other side's entry. A permission of a
/// file does not apply to the symlink that replaced it, so it would be lost if the kinds differ.
fn fits(base: Option<&Entry>, side: &Entry, made: &Entry) -> bool {
    let is_untouched = |base: &Entry| base.mode == side.mode && base.xattrs() == side.xattrs();
    side.kind() == made.kind() || base.is_some_and(is_untouched)
}

/// Applies the algebra of terms: ours, minus the base, plus theirs. Each is an odd list, so they are concatenated.
fn add_up(three: &Three<Entry>, now: Time) -> Result<Merged> {
    let mut terms = terms_of(three.ours.as_ref());
    terms.extend(terms_of(three.base.as_ref()));
    terms.extend(terms_of(three.theirs.as_ref()));
    match settle(terms)? {
        Settled::Resolved(entry) => {
            let ours = three.ours.as_ref();
            Ok(Merged::Entry(entry.map(|entry| taken(&entry, ours, now))))
        }
        Settled::Conflicted(conflict) => match conflict.terms() {
            // The remaining terms may be files that can be merged after all.
            [Some(ours), base, Some(theirs)] if no_directories(&[Some(ours), base.as_ref(), Some(theirs)]) => {
                both(base.as_ref(), ours, theirs, now)
            }
            _ => Ok(Merged::Conflict(conflict)),
        },
    }
}

fn no_directories(terms: &[Option<&Entry>]) -> bool {
    !terms.iter().flatten().any(|entry| matches!(entry.node, Node::Directory(_)))
}

/// Returns the terms of an entry.
pub(super) fn terms_of(entry: Option<&Entry>) -> Vec<Option<Entry>> {
    match entry {
        Some(Entry { node: Node::Conflict(conflict), .. }) => conflict.terms().to_vec(),
        entry => vec![entry.cloned()],
    }
}

/// Cancels terms that are equal except for times and hard links.
pub(super) fn settle(terms: Vec<Option<Entry>>) -> Result<Settled> {
    let mut known: Vec<Option<Entry>> = Vec::with_capacity(terms.len());
    for term in terms {
        let term = match known.iter().find(|other| same(other.as_ref(), term.as_ref())) {
            Some(other) => other.clone(),
            None => term.as_ref().map(plain),
        };
        known.push(term);
    }
    let terms = known.len() as u64;
    Conflict::settle(known).map_err(|why| match why {
        Malformed::TooMuch { .. } => Error::TooLarge { what: "the terms of a conflict", value: terms, max: 255 },
        why => Error::Invalid { what: "conflict", why: why.to_string() },
    })
}

impl From<Settled> for Merged {
    fn from(settled: Settled) -> Self {
        match settled {
            Settled::Resolved(entry) => Self::Entry(entry),
            Settled::Conflicted(conflict) => Self::Conflict(conflict),
        }
    }
}

/// Returns `from` with the merged attributes of both sides, except for extended attributes that both sides changed. If both sides
/// set an owner, ours is kept.
pub(super) fn merge_attributes(base: Option<&Entry>, ours: &Entry, theirs: &Entry, from: &Entry) -> Entry {
    let mut merged = plain(from);
    if !matches!(merged.node, Node::Symlink(_) | Node::Conflict(_)) {
        merged.mode = merge_modes(base.map(|base| base.mode), ours.mode, theirs.mode);
    }
    let owner = merge_owners(base.map(Entry::owner), ours.owner(), theirs.owner());
    let xattrs = match base {
        Some(base) if base.xattrs() == ours.xattrs() => theirs.xattrs().clone(),
        _ => ours.xattrs().clone(),
    };
    merged.with_extra(|extra| {
        extra.owner = owner;
        extra.xattrs = xattrs;
    })
}

/// The merge of attributes that both sides changed.
#[derive(Default)]
pub(super) struct MergedAttributes {
    /// The merged extended attributes; `None` if they are those of one side.
    pub(super) xattrs: Option<Vec<Xattr>>,
    /// Attributes of theirs that were dropped in favour of ours.
    pub(super) lost: Vec<Attribute>,
}

/// Merges owners and extended attributes that both sides changed.
pub(super) fn merged_attributes(store: &Store, three: &Three<Entry>) -> Result<MergedAttributes> {
    let mut merged = MergedAttributes::default();
    let (Some(ours), Some(theirs)) = (&three.ours, &three.theirs) else { return Ok(merged) };
    let owner_before = three.base.as_ref().and_then(Entry::owner);
    if ours.owner() != theirs.owner() && ours.owner() != owner_before && theirs.owner() != owner_before {
        merged.lost.push(Attribute::Owner(theirs.owner()));
    }
    let base = three.base.as_ref().map(Entry::xattrs);
    if ours.xattrs() == theirs.xattrs() || base == Some(ours.xattrs()) || base == Some(theirs.xattrs()) {
        return Ok(merged);
    }
    let base = base.map(|base| store.xattrs(base)).transpose()?.unwrap_or_default();
    let (ours, theirs) = (store.xattrs(ours.xattrs())?, store.xattrs(theirs.xattrs())?);
    let both = merge_xattrs(&base, &ours, &theirs);
    // Together they may exceed the limit of an entry: then ours are kept.
    let have = if check_xattrs(&both).is_ok() { &both } else { &ours };
    merged.lost.extend(lost_xattrs(&base, have, &theirs));
    merged.xattrs = check_xattrs(&both).is_ok().then_some(both);
    Ok(merged)
}

/// Returns the attributes that theirs set or removed and the merged list does not reflect.
fn lost_xattrs(base: &[Xattr], have: &[Xattr], theirs: &[Xattr]) -> Vec<Attribute> {
    let mut names: Vec<_> = base.iter().chain(theirs).map(|xattr| &xattr.name).collect();
    names.sort();
    names.dedup();
    let is_lost = |name: &&Bytes| {
        let value = value_of(theirs, name);
        value != value_of(base, name) && value != value_of(have, name)
    };
    let lost = names.into_iter().filter(is_lost).map(|name| Attribute::Extended {
        name: name.to_vec(),
        value: value_of(theirs, name).map(|value| value.to_vec()),
    });
    lost.collect()
}

fn value_of(list: &[Xattr], name: &[u8]) -> Option<Bytes> {
    list.iter().find(|xattr| xattr.name == name).map(|xattr| xattr.value.clone())
}

/// Merges modes bit by bit: a bit that one side changed is changed. Without a base the result has the bits that both sides have,
/// and the execute bits that either side has. For example `0o644` and `0o755` without a base give `0o755`.
fn merge_modes(base: Option<u32>, ours: u32, theirs: u32) -> u32 {
    match base {
        Some(base) => base ^ ((base ^ ours) | (base ^ theirs)),
        None => (ours & theirs) | ((ours | theirs) & EXECUTE),
    }
}

fn merge_owners(base: Option<Option<Owner>>, ours: Option<Owner>, theirs: Option<Owner>) -> Option<Owner> {
    if base == Some(ours) { theirs } else { ours }
}

/// Merges extended attributes name by name.
fn merge_xattrs(base: &[Xattr], ours: &[Xattr], theirs: &[Xattr]) -> Vec<Xattr> {
    let mut names: Vec<_> = ours.iter().chain(theirs).map(|xattr| xattr.name.clone()).collect();
    names.sort();
    names.dedup();
    let merged = names.into_iter().filter_map(|name| {
        let (base, ours, theirs) = (value_of(base, &name), value_of(ours, &name), value_of(theirs, &name));
        let value = if base == ours { theirs } else { ours };
        value.map(|value| Xattr { name, value })
    });
    merged.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_merged_bit_by_bit() {
        assert_eq!(merge_modes(Some(0o644), 0o755, 0o644), 0o755);
        assert_eq!(merge_modes(Some(0o644), 0o600, 0o744), 0o700);
        assert_eq!(merge_modes(Some(0o777), 0o770, 0o707), 0o700);
        assert_eq!(merge_modes(None, 0o644, 0o755), 0o755);
        assert_eq!(merge_modes(None, 0o600, 0o644), 0o600);
    }
}
