//! Exports a tree as a zip archive.

use std::io::{self, Write};

use amalgam_engine::content;
use amalgam_engine::object::{Content, Entry, EntryKind, Node};
use amalgam_engine::{Progress, RootId, Store, Time, TreePath, entry_at};
use flate2::Crc;
use flate2::write::DeflateEncoder;

use super::format::{
    CENTRAL, DEFLATED, DESCRIPTOR, END, END_64, EXTRA_64, EXTRA_TIME, HOST_UNIX, LOCAL, LOCATOR_64, STORED,
};
use crate::counting::CountingStream;
use crate::error::{Error, Result};
use crate::report::Report;
use crate::tar::{NOTE_CONFLICT, NOTE_STATE};
use crate::walk::{VisitedEntry, walk};

const READ_BYTES: u64 = 1 << 20;
const UTF8: u16 = 1 << 11;
const HAS_DESCRIPTOR: u16 = 1 << 3;
const VERSION: u16 = 45;
/// Bytes of the directory of an archive, which is in memory until its end.
const CENTRAL_BYTES_MAX: usize = 1 << 30;

const NOTE_SPECIAL: &str = "devices, FIFOs and sockets were left out: the format has none";
const NOTE_LINKS: &str = "hard links became separate files";
const NOTE_XATTRS: &str = "extended attributes were left out: the format has none";
const NOTE_OWNER: &str = "owners were left out";
const NOTE_TIME: &str = "times lost their fractions of a second, or became the nearest time between 1901 and 2038";
const NOTE_NAME: &str = "paths of over 65,535 bytes were left out";

/// Options of an export.
#[derive(Clone, Debug, Default)]
pub struct ZipExport {
    /// The paths to export with all below them; everything when there are none.
    pub paths: Vec<TreePath>,
}

/// Writes a tree to a stream as an archive.
pub fn export_zip(
    store: &Store,
    root: RootId,
    output: impl Write,
    options: &ZipExport,
    progress: &Progress,
) -> Result<Report> {
    let _kept = store.hold(root)?;
    let root = store.root(root)?;
    let output = io::BufWriter::with_capacity(1 << 20, CountingStream { inner: output, progress });
    let (report, central) = (Report::default(), Vec::new());
    let mut writer = ZipWriter { store, output, position: 0, central, members: 0, report, progress };
    if root.state.is_some() {
        writer.report.note(NOTE_STATE, b"");
    }
    if options.paths.is_empty() {
        walk(store, TreePath::root(), root.directory.clone(), |step| writer.step(step))?;
    }
    for path in &options.paths {
        let entry = entry_at(store, &root, path)?.ok_or(amalgam_engine::Error::NotFound { path: path.clone() })?;
        walk(store, path.clone(), entry, |step| writer.step(step))?;
    }
    writer.finish()
}

struct ZipWriter<'a, W: Write> {
    store: &'a Store,
    output: W,
    position: u64,
    /// The directory, which is written at the end.
    central: Vec<u8>,
    members: u64,
    report: Report,
    progress: &'a Progress,
}

/// Sizes and checksum of a member in the directory.
struct Sizes {
    method: u16,
    flags: u16,
    crc: u32,
    stored: u64,
    plain: u64,
}

impl<W: Write> ZipWriter<'_, W> {
    fn step(&mut self, step: VisitedEntry) -> Result<()> {
        self.progress.add_items(1);
        self.progress.check()?;
        let VisitedEntry { path, entry, bytes } = step;
        if path.is_root() {
            return Ok(());
        }
        if path.as_bytes().len() >= usize::from(u16::MAX) {
            self.report.note(NOTE_NAME, path.as_bytes());
            return Ok(());
        }
        if self.central.len() > CENTRAL_BYTES_MAX {
            let what = "the directory of the zip archive".to_owned();
            let hint = "export a tar archive, which has none";
            return Err(Error::TooLarge { what, max: CENTRAL_BYTES_MAX as u64, hint });
        }
        self.note_losses(&path, &entry)?;
        match &entry.node {
            Node::File { size, content } => {
                self.report.files += 1;
                self.report.bytes += size;
                match bytes {
                    Some(bytes) => self.small(&path, &entry, &bytes),
                    None => self.large(&path, &entry, *size, content),
                }
            }
            Node::Symlink(target) => {
                self.report.symlinks += 1;
                self.small(&path, &entry, target)
            }
            Node::Directory(_) => {
                self.report.directories += 1;
                self.small(&path, &entry, b"")
            }
            Node::Conflict(_) => {
                self.report.note(NOTE_CONFLICT, path.as_bytes());
                Ok(())
            }
            Node::Fifo | Node::Socket | Node::CharDevice(_) | Node::BlockDevice(_) => {
                self.report.note(NOTE_SPECIAL, path.as_bytes());
                Ok(())
            }
        }
    }

    fn note_losses(&mut self, path: &TreePath, entry: &Entry) -> Result<()> {
        let is_time_exact =
            i32::try_from(entry.mtime.0.div_euclid(1_000_000_000)).is_ok() && entry.mtime.0 % 1_000_000_000 == 0;
        for (is_lost, why) in [
            (entry.link().is_some(), NOTE_LINKS),
            (!self.store.xattrs(entry.xattrs())?.is_empty(), NOTE_XATTRS),
            (entry.owner().is_some(), NOTE_OWNER),
            (!is_time_exact, NOTE_TIME),
        ] {
            if is_lost {
                self.report.note(why, path.as_bytes());
            }
        }
        Ok(())
    }

    /// Writes a member whose bytes are in memory.
    fn small(&mut self, path: &TreePath, entry: &Entry, bytes: &[u8]) -> Result<()> {
        let mut crc = Crc::new();
        crc.update(bytes);
        let mut encoder = DeflateEncoder::new(Vec::new(), flate2::Compression::default());
        let deflated =
            encoder.write_all(bytes).and_then(|()| encoder.finish()).map_err(|source| self.failed(source))?;
        let (method, data) = if deflated.len() < bytes.len() { (DEFLATED, &deflated[..]) } else { (STORED, bytes) };
        let flags = utf8_flag(path);
        let sizes = Sizes { method, flags, crc: crc.sum(), stored: data.len() as u64, plain: bytes.len() as u64 };
        let offset = self.position;
        self.local(path, entry, &sizes)?;
        self.write(data)?;
        self.add_central(path, entry, &sizes, offset);
        Ok(())
    }

    /// Writes a member whose sizes are known at its end.
    fn large(&mut self, path: &TreePath, entry: &Entry, size: u64, content: &Content) -> Result<()> {
        let offset = self.position;
        let flags = HAS_DESCRIPTOR | utf8_flag(path);
        let mut sizes = Sizes { method: DEFLATED, flags, crc: 0, stored: 0, plain: 0 };
        self.local(path, entry, &sizes)?;
        let mut crc = Crc::new();
        let mut encoder = DeflateEncoder::new(Vec::new(), flate2::Compression::default());
        let mut done = 0;
        while done < size {
            self.progress.check()?;
            let length = (size - done).min(READ_BYTES);
            let bytes = content::read(self.store, content, size, done, length)?;
            crc.update(&bytes);
            encoder.write_all(&bytes).map_err(|source| self.failed(source))?;
            let ready = std::mem::take(encoder.get_mut());
            sizes.stored += ready.len() as u64;
            self.write(&ready)?;
            done += length;
        }
        let rest = encoder.finish().map_err(|source| self.failed(source))?;
        sizes.stored += rest.len() as u64;
        self.write(&rest)?;
        (sizes.crc, sizes.plain) = (crc.sum(), size);
        let mut descriptor = DESCRIPTOR.to_le_bytes().to_vec();
        descriptor.extend(sizes.crc.to_le_bytes());
        descriptor.extend(sizes.stored.to_le_bytes());
        descriptor.extend(sizes.plain.to_le_bytes());
        self.write(&descriptor)?;
        self.add_central(path, entry, &sizes, offset);
        Ok(())
    }

    fn local(&mut self, path: &TreePath, entry: &Entry, sizes: &Sizes) -> Result<()> {
        let name = name(path, entry);
        let mut extra = time_field(entry.mtime);
        let is_open = sizes.flags & HAS_DESCRIPTOR != 0;
        let (mut stored, mut plain) = (sizes.stored as u32, sizes.plain as u32);
        if is_open {
            // The field announces that the descriptor has sizes of 64 bits.
            extra.extend(EXTRA_64.to_le_bytes());
            extra.extend(16_u16.to_le_bytes());
            extra.extend([0; 16]);
            (stored, plain) = (u32::MAX, u32::MAX);
        }
        let mut header = LOCAL.to_le_bytes().to_vec();
        header.extend(common(entry, sizes, stored, plain));
        header.extend((name.len() as u16).to_le_bytes());
        header.extend((extra.len() as u16).to_le_bytes());
        header.extend(&name);
        header.extend(&extra);
        self.write(&header)
    }

    fn add_central(&mut self, path: &TreePath, entry: &Entry, sizes: &Sizes, offset: u64) {
        let name = name(path, entry);
        let mut extra = time_field(entry.mtime);
        let max = u64::from(u32::MAX);
        let large: Vec<u64> = [sizes.plain, sizes.stored, offset].into_iter().filter(|value| *value >= max).collect();
        if !large.is_empty() {
            extra.extend(EXTRA_64.to_le_bytes());
            extra.extend((8 * large.len() as u16).to_le_bytes());
            large.iter().for_each(|value| extra.extend(value.to_le_bytes()));
        }
        let small = |value: u64| value.min(max) as u32;
        let kind = match entry.kind() {
            EntryKind::Directory => 0o040_000,
            EntryKind::Symlink => 0o120_000,
            _ => 0o100_000,
        };
        let dos = if entry.kind() == EntryKind::Directory { 0x10 } else { 0 };
        let attributes = (kind | entry.mode) << 16 | dos;
        let out = &mut self.central;
        out.extend(CENTRAL.to_le_bytes());
        out.extend([VERSION as u8, HOST_UNIX]);
        out.extend(common(entry, sizes, small(sizes.stored), small(sizes.plain)));
        out.extend((name.len() as u16).to_le_bytes());
        out.extend((extra.len() as u16).to_le_bytes());
        // No comment, no other volume, no internal attributes.
        out.extend([0; 6]);
        out.extend(attributes.to_le_bytes());
        out.extend(small(offset).to_le_bytes());
        out.extend(&name);
        out.extend(&extra);
        self.members += 1;
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.position += bytes.len() as u64;
        self.output.write_all(bytes).map_err(|source| self.failed(source))
    }

    fn failed(&self, source: io::Error) -> Error {
        match self.progress.check() {
            Err(cancelled) => cancelled.into(),
            Ok(()) => Error::host("write the archive", source),
        }
    }

    fn finish(mut self) -> Result<Report> {
        let (offset, size) = (self.position, self.central.len() as u64);
        let central = std::mem::take(&mut self.central);
        self.write(&central)?;
        let max = u64::from(u32::MAX);
        if offset >= max || size >= max || self.members >= u64::from(u16::MAX) {
            let at = self.position;
            let mut record = END_64.to_le_bytes().to_vec();
            record.extend(44_u64.to_le_bytes());
            record.extend([VERSION.to_le_bytes(), VERSION.to_le_bytes()].concat());
            record.extend([0; 8]);
            for value in [self.members, self.members, size, offset] {
                record.extend(value.to_le_bytes());
            }
            record.extend(LOCATOR_64.to_le_bytes());
            record.extend([0; 4]);
            record.extend(at.to_le_bytes());
            record.extend(1_u32.to_le_bytes());
            self.write(&record)?;
        }
        let members = self.members.min(u64::from(u16::MAX)) as u16;
        let mut end = END.to_le_bytes().to_vec();
        end.extend([0; 4]);
        end.extend(members.to_le_bytes());
        end.extend(members.to_le_bytes());
        end.extend((size.min(max) as u32).to_le_bytes());
        end.extend((offset.min(max) as u32).to_le_bytes());
        end.extend([0; 2]);
        self.write(&end)?;
        self.output.flush().map_err(|source| self.failed(source))?;
        Ok(self.report)
    }
}

fn name(path: &TreePath, entry: &Entry) -> Vec<u8> {
    match entry.kind() {
        EntryKind::Directory => [path.as_bytes(), b"/"].concat(),
        _ => path.as_bytes().to_vec(),
    }
}

fn utf8_flag(path: &TreePath) -> u16 {
    if std::str::from_utf8(path.as_bytes()).is_ok() { UTF8 } else { 0 }
}

/// Returns the fields with which both headers of a member begin.
fn common(entry: &Entry, sizes: &Sizes, stored: u32, plain: u32) -> Vec<u8> {
    let mut out = VERSION.to_le_bytes().to_vec();
    out.extend(sizes.flags.to_le_bytes());
    out.extend(sizes.method.to_le_bytes());
    let (time, date) = dos_time(entry.mtime);
    out.extend(time.to_le_bytes());
    out.extend(date.to_le_bytes());
    out.extend(sizes.crc.to_le_bytes());
    out.extend(stored.to_le_bytes());
    out.extend(plain.to_le_bytes());
    out
}

fn time_field(mtime: Time) -> Vec<u8> {
    let seconds = mtime.0.div_euclid(1_000_000_000).clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32;
    let mut field = EXTRA_TIME.to_le_bytes().to_vec();
    field.extend(5_u16.to_le_bytes());
    field.push(1);
    field.extend(seconds.to_le_bytes());
    field
}

/// Returns the DOS time and date in UTC. A time outside of the years 1980 to 2107 becomes 1980-01-01.
fn dos_time(mtime: Time) -> (u16, u16) {
    let seconds = mtime.0.div_euclid(1_000_000_000);
    let date = mtime.date();
    let mut parts = date.rsplitn(3, '-').map(|part| part.parse::<i64>().unwrap_or(1));
    let (day, month, year) = (parts.next().unwrap_or(1), parts.next().unwrap_or(1), parts.next().unwrap_or(1980));
    if !(1980..=2107).contains(&year) {
        return (0, 1 << 5 | 1);
    }
    let of_day = seconds.rem_euclid(86_400);
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    let time = hour << 11 | minute << 5 | (second / 2);
    (time as u16, ((year - 1980) << 9 | month << 5 | day) as u16)
}
