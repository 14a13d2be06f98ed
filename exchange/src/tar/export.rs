//! Exports a tree, or the difference between two trees, as a tar archive.

use std::collections::HashMap;
use std::io::{self, Write};

use amalgam_engine::content;
use amalgam_engine::object::{Content, Entry, EntryKind, Node, Owner};
use amalgam_engine::{LinkGroup, Progress, RootId, Store, TreePath, entry_at};
use bytes::Bytes;

use super::acl;
use super::format::BLOCK_BYTES;
use super::writer::{self, Fields};
use crate::compress::{Compression, Encoder};
use crate::counting::CountingStream;
use crate::error::{Error, Result};
use crate::layer::{LayerChange, LayerSink};
use crate::report::Report;
use crate::source::DataRange;
use crate::walk::{VisitedEntry, walk};

/// Files with more ranges of data than this are written in full.
const RANGES_MAX: usize = 1 << 20;
const READ_BYTES: u64 = 4 << 20;
/// An archive is filled up to a multiple of this, as tapes wanted it.
const RECORD_BLOCKS: u64 = 20;

const NOTE_SOCKET: &str = "sockets were left out: the format has none";
pub(crate) const NOTE_CONFLICT: &str = "conflicts were left out: resolve them first";
const NOTE_XATTR_NAME: &str = "extended attributes with `=` in their names were left out";
pub(crate) const NOTE_STATE: &str = "the state values of the tree were left out";

/// Options of an export.
#[derive(Clone, Debug)]
pub struct TarExport {
    /// Compression of the archive.
    pub compression: Compression,
    /// The owner that the archive says of entries without one of their own.
    pub owner: Owner,
    /// The paths to export with all below them; everything when there are none.
    pub paths: Vec<TreePath>,
}

impl Default for TarExport {
    fn default() -> Self {
        Self { compression: Compression::None, owner: Owner { uid: 0, gid: 0 }, paths: Vec::new() }
    }
}

/// Writes a tree to a stream as an archive. The report lists the data that the archive cannot represent.
pub fn export_tar(
    store: &Store,
    root: RootId,
    output: impl Write,
    options: &TarExport,
    progress: &Progress,
) -> Result<Report> {
    let _kept = store.hold(root)?;
    let root = store.root(root)?;
    let output = io::BufWriter::with_capacity(1 << 20, CountingStream { inner: output, progress });
    let output = Encoder::new(output, options.compression).map_err(|source| write_failed(source, progress))?;
    let mut sink = TarSink::new(store, output, options.owner, progress);
    if root.state.is_some() {
        sink.report.note(NOTE_STATE, b"");
    }
    if options.paths.is_empty() {
        walk(store, TreePath::root(), root.directory.clone(), |step| sink.step(step))?;
    }
    for path in &options.paths {
        let entry = entry_at(store, &root, path)?.ok_or(amalgam_engine::Error::NotFound { path: path.clone() })?;
        walk(store, path.clone(), entry, |step| sink.step(step))?;
    }
    let (output, report) = sink.finish()?;
    let mut output = output.finish().map_err(|source| write_failed(source, progress))?;
    output.flush().map_err(|source| write_failed(source, progress))?;
    Ok(report)
}

fn write_failed(source: io::Error, progress: &Progress) -> Error {
    match progress.check() {
        Err(cancelled) => cancelled.into(),
        Ok(()) => Error::host("write the archive", source),
    }
}

/// An archive that entries are written to.
pub(crate) struct TarSink<'a, W: Write> {
    store: Store,
    output: W,
    owner: Owner,
    written: u64,
    /// The first name under which each hard-linked file was written.
    links: HashMap<LinkGroup, TreePath>,
    pub(crate) report: Report,
    progress: &'a Progress,
}

impl<'a, W: Write> TarSink<'a, W> {
    pub(crate) fn new(store: &Store, output: W, owner: Owner, progress: &'a Progress) -> Self {
        let (store, links) = (store.clone(), HashMap::new());
        Self { store, output, owner, written: 0, links, report: Report::default(), progress }
    }

    /// Writes one entry.
    pub(crate) fn step(&mut self, step: VisitedEntry) -> Result<()> {
        self.progress.add_items(1);
        self.progress.check()?;
        let VisitedEntry { path, entry, bytes } = step;
        if let Some(link) = entry.link() {
            if let Some(first) = self.links.get(&link).cloned() {
                self.report.hard_links += 1;
                return self.write_header(&path, &entry, b'1', first.as_bytes(), 0, Vec::new());
            }
            self.links.insert(link, path.clone());
        }
        match &entry.node {
            Node::File { size, content } => {
                self.report.files += 1;
                self.report.bytes += size;
                self.write_file(&path, &entry, *size, content, bytes)
            }
            Node::Directory(_) => {
                self.report.directories += 1;
                self.write_header(&path, &entry, b'5', &[], 0, Vec::new())
            }
            Node::Symlink(target) => {
                self.report.symlinks += 1;
                self.write_header(&path, &entry, b'2', target, 0, Vec::new())
            }
            Node::Fifo => self.special(&path, &entry, b'6'),
            Node::CharDevice(_) => self.special(&path, &entry, b'3'),
            Node::BlockDevice(_) => self.special(&path, &entry, b'4'),
            Node::Socket => self.leave_out(NOTE_SOCKET, &path),
            Node::Conflict(_) => self.leave_out(NOTE_CONFLICT, &path),
        }
    }

    /// Writes a file that removes the entry of lower layers.
    fn whiteout(&mut self, path: &TreePath) -> Result<()> {
        self.report.removed += 1;
        let (above, name) = path.split_last().expect("a root is not removed");
        let name = amalgam_engine::Name::new(&[b".wh.", name.as_bytes()].concat());
        let name = name.map_err(|_| {
            Error::refused(path.as_bytes(), "its name is too long for a whiteout, which takes four bytes more")
        })?;
        let empty = Node::File { size: 0, content: Content::Empty };
        let entry = Entry::new(empty, 0o644, amalgam_engine::Time::EPOCH);
        self.write_header(&above.join(&name), &entry, b'0', &[], 0, Vec::new())
    }

    fn special(&mut self, path: &TreePath, entry: &Entry, kind: u8) -> Result<()> {
        self.report.specials += 1;
        self.write_header(path, entry, kind, &[], 0, Vec::new())
    }

    fn leave_out(&mut self, why: &'static str, path: &TreePath) -> Result<()> {
        self.report.note(why, path.as_bytes());
        Ok(())
    }

    fn write_file(
        &mut self,
        path: &TreePath,
        entry: &Entry,
        size: u64,
        content: &Content,
        bytes: Option<Bytes>,
    ) -> Result<()> {
        if let Some(ranges) = data_ranges(&self.store, content, size, self.progress)? {
            return self.write_sparse(path, entry, size, content, &ranges);
        }
        self.write_header(path, entry, b'0', &[], size, Vec::new())?;
        match bytes {
            Some(bytes) => self.write(&bytes)?,
            None => self.write_range(content, size, DataRange { start: 0, length: size })?,
        }
        self.pad(size)
    }

    /// Writes a sparse file in the format of version 1.0: the map is at the beginning of the body.
    fn write_sparse(
        &mut self,
        path: &TreePath,
        entry: &Entry,
        size: u64,
        content: &Content,
        ranges: &[DataRange],
    ) -> Result<()> {
        let mut map = format!("{}\n", ranges.len() + 1);
        for range in ranges {
            map.push_str(&format!("{}\n{}\n", range.start, range.length));
        }
        map.push_str(&format!("{size}\n0\n"));
        let mut map = map.into_bytes();
        map.resize(map.len().next_multiple_of(BLOCK_BYTES), 0);
        let data: u64 = ranges.iter().map(|range| range.length).sum();
        let record = |key: &str, value: String| (key.as_bytes().to_vec(), value.into_bytes());
        let records = vec![
            record("GNU.sparse.major", "1".to_owned()),
            record("GNU.sparse.minor", "0".to_owned()),
            (b"GNU.sparse.name".to_vec(), path.as_bytes().to_vec()),
            record("GNU.sparse.realsize", size.to_string()),
        ];
        self.write_header(path, entry, b'0', &[], map.len() as u64 + data, records)?;
        self.write(&map)?;
        for range in ranges {
            self.write_range(content, size, *range)?;
        }
        self.pad(data)
    }

    fn write_range(&mut self, content: &Content, size: u64, range: DataRange) -> Result<()> {
        let mut done = 0;
        while done < range.length {
            self.progress.check()?;
            let length = (range.length - done).min(READ_BYTES);
            let bytes = content::read(&self.store, content, size, range.start + done, length)?;
            self.write(&bytes)?;
            done += length;
        }
        Ok(())
    }

    fn write_header(
        &mut self,
        path: &TreePath,
        entry: &Entry,
        kind: u8,
        link: &[u8],
        size: u64,
        mut records: Vec<(Vec<u8>, Vec<u8>)>,
    ) -> Result<()> {
        let name = match entry.kind() {
            _ if path.is_root() => b"./".to_vec(),
            EntryKind::Directory => [path.as_bytes(), b"/"].concat(),
            _ => path.as_bytes().to_vec(),
        };
        let is_sparse = records.iter().any(|(key, _)| key == b"GNU.sparse.name");
        // Programs that do not know sparse files extract this name.
        let last = path.split_last().map(|(_, name)| name);
        let shown = last.filter(|_| is_sparse).map(|last| [b"GNUSparseFile.0/", last.as_bytes()].concat());
        if kind != b'1' {
            self.add_xattrs(path, entry, &mut records)?;
        }
        let device = match entry.node {
            Node::CharDevice(device) | Node::BlockDevice(device) => Some(device),
            _ => None,
        };
        let fields = Fields {
            kind,
            name: shown.as_deref().unwrap_or(&name),
            link,
            mode: entry.mode,
            owner: entry.owner().unwrap_or(self.owner),
            mtime: entry.mtime,
            size,
            device,
            records,
        };
        let mut counted = CountingWriter { output: &mut self.output, bytes: 0 };
        let result = writer::write(&mut counted, &fields);
        self.written += counted.bytes;
        result.map_err(|source| write_failed(source, self.progress))
    }

    fn add_xattrs(&mut self, path: &TreePath, entry: &Entry, records: &mut Vec<(Vec<u8>, Vec<u8>)>) -> Result<()> {
        for xattr in self.store.xattrs(entry.xattrs())? {
            let text = match &xattr.name[..] {
                b"system.posix_acl_access" => acl::to_text(&xattr.value).map(|text| ("SCHILY.acl.access", text)),
                b"system.posix_acl_default" => acl::to_text(&xattr.value).map(|text| ("SCHILY.acl.default", text)),
                _ => None,
            };
            if let Some((key, text)) = text {
                records.push((key.as_bytes().to_vec(), text.into_bytes()));
            } else if xattr.name.contains(&b'=') {
                self.report.note(NOTE_XATTR_NAME, path.as_bytes());
            } else {
                records.push(([b"SCHILY.xattr.", &xattr.name[..]].concat(), xattr.value.to_vec()));
            }
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.written += bytes.len() as u64;
        self.output.write_all(bytes).map_err(|source| write_failed(source, self.progress))
    }

    fn pad(&mut self, bytes: u64) -> Result<()> {
        self.written += bytes.wrapping_neg() % BLOCK_BYTES as u64;
        writer::pad(&mut self.output, bytes).map_err(|source| write_failed(source, self.progress))
    }

    /// Writes the end of the archive.
    pub(crate) fn finish(mut self) -> Result<(W, Report)> {
        let blocks = self.written / BLOCK_BYTES as u64 + 2;
        let missing = blocks.next_multiple_of(RECORD_BLOCKS) - blocks + 2;
        self.write(&vec![0; missing as usize * BLOCK_BYTES])?;
        Ok((self.output, self.report))
    }
}

impl<W: Write> LayerSink for TarSink<'_, W> {
    fn change(&mut self, path: &TreePath, change: LayerChange) -> Result<()> {
        match change {
            LayerChange::Whiteout => self.whiteout(path),
            LayerChange::Set { entry, is_in_base } => {
                let is_left_out = matches!(entry.node, Node::Socket | Node::Conflict(_));
                self.step(VisitedEntry { path: path.clone(), entry, bytes: None })?;
                if is_left_out && is_in_base { self.whiteout(path) } else { Ok(()) }
            }
        }
    }

    fn report(&mut self) -> &mut Report {
        &mut self.report
    }

    fn has_whiteout_names(&self) -> bool {
        true
    }
}

struct CountingWriter<'a, W> {
    output: &'a mut W,
    bytes: u64,
}

impl<W: Write> Write for CountingWriter<'_, W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let bytes = self.output.write(buffer)?;
        self.bytes += bytes as u64;
        Ok(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

/// Returns the ranges of a file that hold data, extended to whole blocks. Returns `None` for a file without holes, or with more
/// than `RANGES_MAX` ranges.
fn data_ranges(store: &Store, content: &Content, size: u64, progress: &Progress) -> Result<Option<Vec<DataRange>>> {
    match content {
        Content::Empty | Content::Chunk(_) => return Ok(None),
        Content::Hole => return Ok(Some(Vec::new())),
        Content::Rope(_) => {}
    }
    let block = BLOCK_BYTES as u64;
    let (mut ranges, mut at, mut has_holes) = (Vec::<DataRange>::new(), 0, false);
    while at < size {
        progress.check()?;
        let hole = content::hole_at(store, content, size, at)?;
        if hole > 0 {
            has_holes = true;
            at += hole;
            continue;
        }
        let end = at + content::data_at(store, content, size, at)?;
        // GNU tar begins each range at a block, Python does not: they agree where all ranges are whole blocks.
        let (start, end) = (at - at % block, end.checked_next_multiple_of(block).map_or(size, |end| end.min(size)));
        match ranges.last_mut() {
            Some(DataRange { start: last, length }) if *last + *length >= start => *length = end - *last,
            _ => ranges.push(DataRange { start, length: end - start }),
        }
        at = end;
        if ranges.len() > RANGES_MAX {
            return Ok(None);
        }
    }
    Ok(has_holes.then_some(ranges))
}
