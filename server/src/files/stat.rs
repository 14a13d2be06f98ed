//! The metadata of a path, as a message.

use amalgam_engine::object::{Content, Owner};
use amalgam_engine::work::Stat;
use amalgam_engine::{EntryKind, TreePath, WorkingTree};
use amalgam_proto::v1;

use super::media_type::media_type;
use super::path::{show_bytes, show_path};
use crate::error::Result;

/// The most unstored bytes of a file that a list reads for its content id.
const LISTED_BYTES_MAX: u64 = 1 << 20;
/// Bytes of a digest in an etag or a link group.
const SHORT_DIGEST_BYTES: usize = 16;

/// How much of the metadata is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    /// As much as a list has.
    Listed,
    /// All of it.
    Full,
}

/// Returns the metadata of a path whose `stat` the caller has.
pub(crate) fn file_stat(
    tree: &WorkingTree,
    path: &TreePath,
    stat: &Stat,
    owner: Owner,
    detail: Detail,
) -> Result<v1::FileStat> {
    let Owner { uid, gid } = stat.owner.unwrap_or(owner);
    let content = content_of(tree, path, stat, detail)?;
    let link_target = match stat.kind {
        EntryKind::Symlink => show_bytes(&tree.read_link(path)?),
        _ => String::new(),
    };
    let xattrs = match (stat.kind, detail) {
        (EntryKind::Conflict, _) | (_, Detail::Listed) => Vec::new(),
        _ => tree.xattrs(path)?.iter().map(|xattr| show_bytes(&xattr.name)).collect(),
    };
    let has_links = stat.links > 1 && stat.kind != EntryKind::Directory;
    let link_group = match has_links {
        true => tree.names_of(path)?.first().map(|name| short_digest(name.as_bytes())).unwrap_or_default(),
        false => String::new(),
    };
    let content_id = content.as_ref().map(content_id).unwrap_or_default();
    let is_known = stat.kind != EntryKind::File || content.is_some();
    let mut file = v1::FileStat {
        path: show_path(path),
        kind: amalgam_proto::entry_kind(stat.kind).into(),
        size: stat.size,
        mode: stat.mode,
        uid,
        gid,
        modify_time: Some(amalgam_proto::timestamp(stat.mtime)),
        content_id,
        link_target,
        xattrs,
        links: stat.links,
        link_group,
        etag: String::new(),
        media_type: match stat.kind {
            EntryKind::File => media_type(path.as_bytes()).to_owned(),
            _ => String::new(),
        },
    };
    if is_known {
        file.etag = etag(&file, stat.mtime.0);
    }
    Ok(file)
}

fn content_of(tree: &WorkingTree, path: &TreePath, stat: &Stat, detail: Detail) -> Result<Option<Content>> {
    if stat.kind != EntryKind::File {
        return Ok(None);
    }
    let file = tree.loose(path)?;
    match file.stored() {
        Some((content, _)) => Ok(Some(content)),
        None if detail == Detail::Listed && file.unstored_bytes() > LISTED_BYTES_MAX => Ok(None),
        None => Ok(file.content()?),
    }
}

fn content_id(content: &Content) -> String {
    match content {
        Content::Empty => "empty".to_owned(),
        Content::Hole => "zeros".to_owned(),
        Content::Chunk(id) => id.to_string(),
        Content::Rope(id) => id.to_string(),
    }
}

/// Returns the etag of an entry: a digest of its kind, bytes, permission bits, owner and modification time.
fn etag(file: &v1::FileStat, mtime: i64) -> String {
    let v1::FileStat { kind, size, mode, uid, gid, content_id, link_target, .. } = file;
    short_digest(format!("{kind}:{size}:{mode}:{uid}:{gid}:{mtime}:{content_id}:{link_target}").as_bytes())
}

/// Returns the etag of a state value.
pub(crate) fn state_etag(json: &str) -> String {
    short_digest(json.as_bytes())
}

fn short_digest(bytes: &[u8]) -> String {
    blake3::hash(bytes).as_bytes()[..SHORT_DIGEST_BYTES].iter().map(|byte| format!("{byte:02x}")).collect()
}
