//! Imports a zip archive as a tree.

use std::fs::File;
use std::io::{self, BufReader, Read};

use amalgam_engine::object::{Node, SYMLINK_TARGET_BYTES_MAX};
use amalgam_engine::{Progress, SnapshotId, Store, Time};
use bytes::Bytes;
use flate2::Crc;

use super::directory::{ZipMember, damaged, data_offset, members};
use super::format::{DEFLATED, HOST_UNIX, STORED, ZSTD};
use crate::build::{BuildOptions, SMALL_FILE_BYTES_MAX, TreeBuilder};
use crate::counting::CountingStream;
use crate::error::{Error, Result};
use crate::file_range::FileRange;
use crate::imported::{self, Imported, SnapshotInfo};
use crate::member::{Attributes, Body, Edit, tree_path};
use crate::source::MemberSource;
use crate::tar::{Limits, check_limits};

const ENCRYPTED: u16 = 1;
const KIND: u32 = 0o170_000;
const SYMLINK: u32 = 0o120_000;
const DIRECTORY: u32 = 0o040_000;
const DOS_DIRECTORY: u32 = 0x10;
const BUFFER_BYTES: usize = 64 << 10;
const NOTE_KIND: &str = "members that are neither files, directories nor symlinks were left out";

/// Options of an import.
#[derive(Clone, Debug, Default)]
pub struct ZipImport {
    /// Extracts over the tree of this snapshot, which becomes the parent.
    pub onto: Option<SnapshotId>,
    /// Reads and checks everything, and stores no file.
    pub dry_run: bool,
    /// Resource limits.
    pub limits: Limits,
    /// Author, time and message of the snapshot.
    pub words: SnapshotInfo,
}

/// Imports an archive. The file is read at any place; a stream must be written to a file first.
pub fn import_zip(store: &Store, file: &File, options: ZipImport, progress: &Progress) -> Result<Imported> {
    let base = options.onto.map(|snapshot| store.snapshot(snapshot)).transpose()?.map(|snapshot| snapshot.root);
    let mut builder = TreeBuilder::new(store, base, BuildOptions { layer: false, dry_run: options.dry_run })?;
    let (mut bytes, mut read) = (0_u64, 0_u64);
    for (number, member) in members(file)?.into_iter().enumerate() {
        progress.add_items(1);
        progress.check()?;
        bytes = bytes.saturating_add(member.size);
        read += member.stored_size;
        check_limits(&options.limits, number as u64 + 1, bytes, read.max(1))?;
        add(&mut builder, file, &member, progress)?;
    }
    let (tree, report) = builder.finish()?;
    imported::import_single(store, tree, report, options.onto, options.words)
}

fn add(builder: &mut TreeBuilder, file: &File, member: &ZipMember, progress: &Progress) -> Result<()> {
    let path = tree_path(&member.name, &mut builder.report)?;
    let unix = if member.host == HOST_UNIX { member.attributes >> 16 } else { 0 };
    let is_directory = match unix & KIND {
        0 => member.name.ends_with(b"/") || member.attributes & DOS_DIRECTORY != 0,
        kind => kind == DIRECTORY,
    };
    let mode = match unix & 0o7777 {
        0 if is_directory => 0o755,
        0 if unix == 0 => 0o644,
        mode => mode,
    };
    let attributes = Attributes { mode, mtime: Time::from_seconds(member.mtime, 0), owner: None, xattrs: Vec::new() };
    let edit = match unix & KIND {
        _ if is_directory && path.is_root() => return builder.set_root(attributes),
        _ if is_directory => Edit::Directory { attributes },
        SYMLINK => {
            let target = contents(file, member, progress, SYMLINK_TARGET_BYTES_MAX as u64)?;
            if target.is_empty() || target.contains(&0) {
                return Err(Error::refused(&member.name, "it is a symlink whose target is empty or holds a NUL byte"));
            }
            Edit::Other { attributes, node: Node::Symlink(Bytes::from(target)) }
        }
        0 | 0o100_000 => Edit::File { attributes, body: body(builder, file, member, progress)? },
        _ => {
            builder.report.note(NOTE_KIND, &member.name);
            return Ok(());
        }
    };
    builder.add(path, edit)
}

fn body(builder: &TreeBuilder, file: &File, member: &ZipMember, progress: &Progress) -> Result<Body> {
    if member.size <= SMALL_FILE_BYTES_MAX {
        return contents(file, member, progress, SMALL_FILE_BYTES_MAX).map(Body::Bytes);
    }
    let mut reader = open(file, member, progress)?;
    let source = MemberSource::plain(&mut reader, member.size);
    let stored = builder.store(&source);
    if let (_, Some(error)) = source.finish() {
        return Err(failed(member, error));
    }
    let stored = stored?;
    reader.finish(member)?;
    Ok(stored)
}

fn contents(file: &File, member: &ZipMember, progress: &Progress, bytes_max: u64) -> Result<Vec<u8>> {
    if member.size > bytes_max {
        return Err(Error::refused(&member.name, format!("it has {} bytes; {bytes_max} are the most", member.size)));
    }
    let mut reader = open(file, member, progress)?;
    let mut bytes = Vec::with_capacity(member.size as usize);
    (&mut reader).take(member.size).read_to_end(&mut bytes).map_err(|error| failed(member, error))?;
    if (bytes.len() as u64) < member.size {
        return Err(failed(member, io::ErrorKind::UnexpectedEof.into()));
    }
    reader.finish(member)?;
    Ok(bytes)
}

fn failed(member: &ZipMember, error: io::Error) -> Error {
    match Error::reading(error) {
        Error::Host { source, .. } => damaged(crate::error::printable(&member.name), source.to_string()),
        other => other,
    }
}

/// A reader of the plain bytes of a member, with their checksum.
struct MemberReader<'a> {
    inner: Box<dyn Read + Send + 'a>,
    crc: Crc,
}

fn open<'a>(file: &'a File, member: &ZipMember, progress: &'a Progress) -> Result<MemberReader<'a>> {
    if member.flags & ENCRYPTED != 0 {
        return Err(Error::Unsupported {
            what: format!("{} is encrypted", crate::error::printable(&member.name)),
            hint: "decrypt the archive first",
        });
    }
    let start = data_offset(file, member)?;
    let part = FileRange::new(file, start, member.stored_size);
    let part = BufReader::with_capacity(BUFFER_BYTES, CountingStream { inner: part, progress });
    let inner: Box<dyn Read + Send> = match member.method {
        STORED => Box::new(part),
        DEFLATED => Box::new(flate2::bufread::DeflateDecoder::new(part)),
        ZSTD => Box::new(zstd::Decoder::with_buffer(part).map_err(|source| Error::host("read zstd", source))?),
        method => {
            let what = format!("{} is compressed by method {method}", crate::error::printable(&member.name));
            return Err(Error::Unsupported { what, hint: "stored, deflated and zstd members are read" });
        }
    };
    Ok(MemberReader { inner, crc: Crc::new() })
}

impl MemberReader<'_> {
    /// Compares the bytes read with the directory.
    fn finish(mut self, member: &ZipMember) -> Result<()> {
        let more = self.inner.read(&mut [0]).map_err(|error| failed(member, error))?;
        if more > 0 {
            return Err(damaged(crate::error::printable(&member.name), "it has more bytes than the directory says"));
        }
        if self.crc.sum() != member.crc {
            return Err(damaged(crate::error::printable(&member.name), "its checksum is wrong"));
        }
        Ok(())
    }
}

impl Read for MemberReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.inner.read(buffer)?;
        self.crc.update(&buffer[..bytes]);
        Ok(bytes)
    }
}
