//! Checks the hard links of a tree: every listed name exists and is in its group, no group has a single name, and all names of a
//! group have equal entries.

use crate::directory;
use crate::error::Result;
use crate::id::{LinksId, RootId};
use crate::malformed::Malformed;
use crate::merkle::Items;
use crate::name::TreePath;
use crate::object::{Entry, Links, Node, Root};
use crate::store::Store;

/// Returns the rule that a tree's hard-link map breaks. The number of links was compared before, so none is missing.
pub(super) fn broken_rule(store: &Store, root: RootId) -> Result<Option<Malformed>> {
    let root = store.root(root)?;
    match root.links {
        Some(links) => broken_map(store, &root, links),
        None => Ok(None),
    }
}

fn broken_map(store: &Store, root: &Root, links: LinksId) -> Result<Option<Malformed>> {
    const SINGLE: Malformed = Malformed::Rule("a hard link with a single name");
    let (mut first, mut names): (Option<Entry>, u64) = (None, 2);
    for member in Items::<Links>::all(store, Some(links.object()))? {
        let member = member?;
        let entry = find(store, root, &member.path)?.filter(|entry| entry.link() == Some(member.group));
        let Some(entry) = entry else { return Ok(Some(Malformed::Link)) };
        match &first {
            Some(first) if first.link() == entry.link() => {
                if *first != entry {
                    return Ok(Some(Malformed::Rule("names of one file that differ")));
                }
                names += 1;
            }
            _ if names < 2 => return Ok(Some(SINGLE)),
            _ => (first, names) = (Some(entry), 1),
        }
    }
    Ok((names < 2).then_some(SINGLE))
}

fn find(store: &Store, root: &Root, path: &TreePath) -> Result<Option<Entry>> {
    let mut here = root.directory.clone();
    for name in path.names() {
        let Node::Directory(contents) = here.node else { return Ok(None) };
        match directory::get(store, contents, &name)? {
            Some(entry) => here = entry,
            None => return Ok(None),
        }
    }
    Ok(Some(here))
}
