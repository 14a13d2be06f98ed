//! READDIR and READDIRPLUS. The cookies of the view stay valid while names come and go, so the cookie verifier is always 0.

use amalgam_view::{Attributes, Ino, ListedEntry};
use nfs3_types::nfs3::nfsstat3;
use nfs3_types::xdr_codec::Pack as _;

use super::request::{Answer, Request, Result};
use crate::convert;
use crate::handle::HANDLE_BYTES;
use crate::rpc::{self, DATA_BYTES_MAX};
use crate::xdr::Reader;

/// Size of a reply without entries.
const FIXED_BYTES: usize = 4 + 4 + ATTRIBUTES_BYTES + 8 + 4 + 4;
const ATTRIBUTES_BYTES: usize = 84;
/// Size of an entry without its name.
const ENTRY_BYTES: usize = 4 + 8 + 4 + 8;
/// Size of attributes and handle of an entry.
const PLUS_BYTES: usize = 4 + ATTRIBUTES_BYTES + 4 + 4 + HANDLE_BYTES.next_multiple_of(4);
/// Cookie of `..`. The cookie of `.` is smaller, those of names are larger.
const DOTS_COOKIE_MAX: u64 = 2;
/// Limit of entries per reply.
const ENTRIES_MAX: usize = 8_192;

/// Entries of a reply, with their names in one buffer.
#[derive(Default)]
struct Entries {
    names: Vec<u8>,
    entries: Vec<Entry>,
    is_end: bool,
}

struct Entry {
    name_end: usize,
    attributes: Attributes,
    cookie: u64,
}

/// Size limits of a client.
struct Limits {
    /// Limit of the whole reply.
    reply_bytes: usize,
    /// Limit of ids, names and cookies.
    names_bytes: usize,
    /// Size of attributes and handle per entry.
    plus_bytes: usize,
}

/// Which procedure lists a directory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ListingKind {
    /// READDIR.
    Names,
    /// READDIRPLUS, which returns handles and so takes a reference to each inode.
    Plus,
}

fn list(request: &Request<'_>, cookie: u64, limits: &Limits, kind: ListingKind) -> Result<Entries> {
    let mut found = Entries { is_end: true, ..Entries::default() };
    let (mut reply_bytes, mut names_bytes) = (FIXED_BYTES, 0);
    let take = |listed: &ListedEntry<'_>| {
        let name_bytes = ENTRY_BYTES + listed.name.len().next_multiple_of(4);
        let is_room = reply_bytes + name_bytes + limits.plus_bytes <= limits.reply_bytes
            && (names_bytes + name_bytes <= limits.names_bytes || found.entries.is_empty())
            && found.entries.len() < ENTRIES_MAX;
        if !is_room {
            found.is_end = false;
            return false;
        }
        reply_bytes += name_bytes + limits.plus_bytes;
        names_bytes += name_bytes;
        found.names.extend_from_slice(listed.name);
        let name_end = found.names.len();
        found.entries.push(Entry { name_end, attributes: listed.attributes, cookie: listed.cookie });
        true
    };
    let (view, caller, ino) = (&request.open.view, &request.caller, request.ino);
    let read = match kind {
        ListingKind::Names => view.read_directory(caller, ino, cookie, take),
        ListingKind::Plus => view.read_directory_plus(caller, ino, cookie, take),
    };
    if let Err(error) = read {
        let is_held = |entry: &&Entry| kind == ListingKind::Plus && entry.cookie > DOTS_COOKIE_MAX;
        let held = found.entries.iter().filter(is_held);
        request.open.view.forget(held.map(|entry| (entry.attributes.ino, 1)));
        return Err(error.into());
    }
    if found.entries.is_empty() && !found.is_end {
        return Err(nfsstat3::NFS3ERR_TOOSMALL.into());
    }
    Ok(found)
}

/// Encodes a reply; `plus` encodes the READDIRPLUS part of an entry.
fn reply(request: &Request<'_>, found: &Entries, mut plus: impl FnMut(usize, &Entry, &mut Vec<u8>)) -> Answer {
    let mut out = rpc::success(request.xid);
    out.reserve(FIXED_BYTES + found.names.len() + found.entries.len() * (ENTRY_BYTES + PLUS_BYTES));
    out.extend_from_slice(&(nfsstat3::NFS3_OK as u32).to_be_bytes());
    let attributes = request.post(request.ino);
    attributes.pack(&mut out).expect("memory takes everything");
    out.extend_from_slice(&[0; 8]);
    let mut start = 0;
    for (at, entry) in found.entries.iter().enumerate() {
        let name = &found.names[start..entry.name_end];
        start = entry.name_end;
        out.extend_from_slice(&1_u32.to_be_bytes());
        out.extend_from_slice(&entry.attributes.ino.to_be_bytes());
        put_opaque(&mut out, name);
        out.extend_from_slice(&entry.cookie.to_be_bytes());
        plus(at, entry, &mut out);
    }
    out.extend_from_slice(&0_u32.to_be_bytes());
    out.extend_from_slice(&u32::from(found.is_end).to_be_bytes());
    Answer::Now(rpc::finish(out))
}

fn put_opaque(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
    out.extend_from_slice(bytes);
    out.resize(out.len().next_multiple_of(4), 0);
}

pub(super) fn read(request: &Request<'_>, mut from: Reader<'_>) -> Result<Answer> {
    let cookie = from.u64()?;
    from.verifier()?;
    let count = from.u32()?.min(DATA_BYTES_MAX) as usize;
    from.end()?;
    let limits = Limits { reply_bytes: count, names_bytes: usize::MAX, plus_bytes: 0 };
    let found = list(request, cookie, &limits, ListingKind::Names)?;
    Ok(reply(request, &found, |_, _, _| {}))
}

pub(super) fn read_plus(request: &Request<'_>, mut from: Reader<'_>) -> Result<Answer> {
    let cookie = from.u64()?;
    from.verifier()?;
    let (names_bytes, count) = (from.u32()? as usize, from.u32()?.min(DATA_BYTES_MAX) as usize);
    from.end()?;
    let limits = Limits { reply_bytes: count, names_bytes, plus_bytes: PLUS_BYTES };
    let found = list(request, cookie, &limits, ListingKind::Plus)?;
    // `.` and `..` are not held. Of `..` the view gives only the inode number.
    let dots = found.entries.iter().take_while(|entry| entry.cookie <= DOTS_COOKIE_MAX).count();
    let inodes: Vec<Ino> = found.entries[dots..].iter().map(|entry| entry.attributes.ino).collect();
    let handles = request.handles(&inodes);
    let fsid = request.fsid();
    Ok(reply(request, &found, |at, entry, out| {
        let handle = at.checked_sub(dots).and_then(|at| handles[at].as_ref());
        if entry.cookie == DOTS_COOKIE_MAX {
            return out.extend_from_slice(&[0; 8]);
        }
        let attributes = convert::after(Some(&entry.attributes), fsid);
        attributes.pack(out).expect("memory takes everything");
        match handle {
            Some(handle) => {
                out.extend_from_slice(&1_u32.to_be_bytes());
                put_opaque(out, handle);
            }
            None => out.extend_from_slice(&[0; 4]),
        }
    }))
}
