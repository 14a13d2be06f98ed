//! Output on the disk, so that the next server has it if this one is killed. It is not synced: a power cut may lose its end.
//!
//! A command or a terminal has a description and two files of frames, an older and a newer one. When the newer one is full it becomes the
//! older one, so that at least the last bytes are kept and never more than twice as many.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::output::Stream;

/// The head of a frame: its kind, the number of the agent's message, the offset of the output, the number of bytes that follow.
const HEAD_BYTES: usize = 1 + 8 + 8 + 4;
/// Limit on the bytes of a frame. A longer one was not written by this program.
const FRAME_BYTES_MAX: u32 = 16 << 20;
/// Kinds of frames.
const STDOUT: u8 = 0;
const STDERR: u8 = 1;
const END: u8 = 2;

/// The directory with the output of one sandbox.
#[derive(Clone, Debug)]
pub(crate) struct Spool {
    directory: PathBuf,
    /// Bytes of one file.
    file_bytes_max: u64,
}

/// The files of one command or terminal.
#[derive(Debug)]
pub(crate) struct SpoolWriter {
    spool: Spool,
    id: String,
    newer: File,
    written: u64,
}

/// A command or terminal that an earlier server has left.
#[derive(Debug)]
pub(crate) struct Spooled {
    pub(crate) id: String,
    /// The description that was written at its start.
    pub(crate) description: Vec<u8>,
    pub(crate) frames: Vec<Frame>,
}

/// A part of the output, or the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// The number of the agent's message.
    pub(crate) sequence: u64,
    pub(crate) content: Content,
}

/// The content of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Output at an offset.
    Output(Stream, u64, Bytes),
    /// The end, as the owner of the spool writes it.
    End(Bytes),
}

impl Spool {
    pub(crate) fn new(directory: PathBuf, file_bytes_max: u64) -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt as _;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        Ok(Self { directory, file_bytes_max })
    }

    fn path(&self, id: &str, part: &str) -> PathBuf {
        self.directory.join(format!("{id}.{part}"))
    }

    /// Begins the output of a command or terminal. Leaves no files if that fails.
    pub(crate) fn begin(&self, id: &str, description: &[u8]) -> io::Result<SpoolWriter> {
        let begun = fs::write(self.path(id, "start"), description).and_then(|()| self.go_on(id));
        begun.inspect_err(|_| self.remove(id))
    }

    /// Goes on with output that an earlier server began.
    pub(crate) fn go_on(&self, id: &str) -> io::Result<SpoolWriter> {
        let newer = File::options().create(true).append(true).open(self.path(id, "new"))?;
        let written = newer.metadata()?.len();
        Ok(SpoolWriter { spool: self.clone(), id: id.to_owned(), newer, written })
    }

    /// Removes the output of a command or terminal.
    pub(crate) fn remove(&self, id: &str) {
        for part in ["start", "old", "new"] {
            // There may be no older file; the directory goes with the sandbox.
            let _ = fs::remove_file(self.path(id, part));
        }
    }

    /// Reads the output of all commands and terminals that an earlier server has left. Removes frames that are cut, so that further
    /// output follows the last whole frame.
    pub(crate) fn load(&self) -> io::Result<Vec<Spooled>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let name = entry?.file_name();
            let Some(id) = name.to_str().and_then(|name| name.strip_suffix(".start")) else { continue };
            let description = fs::read(self.path(id, "start"))?;
            let mut frames = Vec::new();
            for part in ["old", "new"] {
                let path = self.path(id, part);
                if let Some(end) = read_frames(&path, &mut frames)? {
                    File::options().write(true).open(&path)?.set_len(end)?;
                }
            }
            found.push(Spooled { id: id.to_owned(), description, frames });
        }
        Ok(found)
    }
}

impl SpoolWriter {
    /// Appends a frame.
    pub(crate) fn write(&mut self, frame: &Frame) -> io::Result<()> {
        if self.written >= self.spool.file_bytes_max {
            fs::rename(self.spool.path(&self.id, "new"), self.spool.path(&self.id, "old"))?;
            *self = self.spool.go_on(&self.id)?;
        }
        let (kind, offset, data) = match &frame.content {
            Content::Output(Stream::Stdout, offset, data) => (STDOUT, *offset, data),
            Content::Output(Stream::Stderr, offset, data) => (STDERR, *offset, data),
            Content::End(data) => (END, 0, data),
        };
        let length = u32::try_from(data.len()).map_err(io::Error::other)?;
        // One write: a server that is killed leaves whole frames, or one at the end that is cut.
        let mut bytes = Vec::with_capacity(HEAD_BYTES + data.len());
        bytes.push(kind);
        bytes.extend_from_slice(&frame.sequence.to_le_bytes());
        bytes.extend_from_slice(&offset.to_le_bytes());
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(data);
        self.newer.write_all(&bytes)?;
        self.written += bytes.len() as u64;
        Ok(())
    }
}

/// Reads the frames of a file, up to one that is cut. Returns the end of the last whole frame if bytes follow it.
fn read_frames(path: &Path, frames: &mut Vec<Frame>) -> io::Result<Option<u64>> {
    let mut bytes = Vec::new();
    match File::open(path) {
        Ok(mut file) => file.read_to_end(&mut bytes)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut rest = Bytes::from(bytes);
    let (file_bytes, mut end) = (rest.len(), 0);
    while rest.len() >= HEAD_BYTES {
        let head = rest.split_to(HEAD_BYTES);
        let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
        let length = u32::from_le_bytes(head[17..].try_into().expect("four bytes"));
        if length > FRAME_BYTES_MAX || (length as usize) > rest.len() {
            break;
        }
        let data = rest.split_to(length as usize);
        let (sequence, offset) = (number(1), number(9));
        let content = match head[0] {
            STDOUT => Content::Output(Stream::Stdout, offset, data),
            STDERR => Content::Output(Stream::Stderr, offset, data),
            END => Content::End(data),
            _ => break,
        };
        frames.push(Frame { sequence, content });
        end = file_bytes - rest.len();
    }
    Ok((end < file_bytes).then_some(end as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(sequence: u64, offset: u64, text: &'static str) -> Frame {
        let data = Bytes::from_static(text.as_bytes());
        Frame { sequence, content: Content::Output(Stream::Stderr, offset, data) }
    }

    #[test]
    fn the_next_server_reads_what_was_written_and_old_output_makes_room() {
        let place = tempfile::tempdir().expect("a directory");
        let spool = Spool::new(place.path().join("output"), 64).expect("a spool");
        let mut writer = spool.begin("cmd-1", b"make").expect("begun");
        let frames: Vec<_> = (0..10).map(|at| output(at, at * 10, "0123456789")).collect();
        for frame in &frames {
            writer.write(frame).expect("written");
        }
        writer.write(&Frame { sequence: 10, content: Content::End(Bytes::from_static(b"0")) }).expect("written");
        let found = spool.load().expect("read");
        assert_eq!((found.len(), &found[0].description[..]), (1, &b"make"[..]));
        let kept = &found[0].frames;
        assert!(kept.len() < 11 && kept.len() >= 3, "{kept:?}");
        assert_eq!(kept.last().map(|frame| frame.sequence), Some(10));
        assert!(kept.iter().rev().skip(1).zip(frames.iter().rev()).all(|(one, other)| one == other));
        // A frame that is cut is left out, those before it are not.
        let newer = place.path().join("output/cmd-1.new");
        let bytes = fs::read(&newer).expect("read");
        fs::write(&newer, &bytes[..bytes.len() - 1]).expect("cut");
        assert_eq!(spool.load().expect("read")[0].frames.last().map(|frame| frame.sequence), Some(9));
        // Further output follows the whole frames, so that the server after the next one reads it.
        let next = output(10, 100, "0123456789");
        spool.go_on("cmd-1").expect("goes on").write(&next).expect("written");
        let found = spool.load().expect("read");
        let kept = &found[0].frames;
        assert_eq!(kept[kept.len() - 2..], [frames[9].clone(), next]);
        spool.remove("cmd-1");
        assert!(spool.load().expect("read").is_empty());
    }
}
