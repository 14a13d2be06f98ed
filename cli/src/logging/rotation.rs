//! A log file that is rotated by size: `log`, then `log.1` to `log.4`, the oldest last.
//!
//! Written by hand because `tracing-appender` rotates by time only: a process that fails in a loop would fill the disk within an
//! hour.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tracing_subscriber::fmt::MakeWriter;

/// Number of rotated files that are kept beside the current one.
pub const ROTATED_FILES_MAX: u32 = 4;
/// Most bytes of a line; the rest is cut off.
const LINE_BYTES_MAX: usize = 16 << 10;

/// Whether standard error is redirected when the file is rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandardError {
    /// It is redirected to the new file.
    Follows,
    /// It stays as it is.
    Stays,
}

/// A log file with a bound on its size. Only the user can read it.
#[derive(Debug)]
pub struct RotatingFile {
    path: PathBuf,
    bytes_max: u64,
    stderr: StandardError,
    file: Mutex<File>,
}

impl RotatingFile {
    /// Opens a log file, and rotates it at once if it is full.
    pub fn open(path: &Path, bytes_max: u64, stderr: StandardError) -> io::Result<Self> {
        let file = Mutex::new(open_file(path)?);
        let log = Self { path: path.to_owned(), bytes_max, stderr, file };
        log.with_file(|file| log.make_room(file, 0))?;
        Ok(log)
    }

    /// Appends a line. Control characters in it are replaced, so that one event is one line.
    pub fn write_line(&self, line: &[u8]) -> io::Result<()> {
        let line = clean(line);
        self.with_file(|file| {
            self.make_room(file, line.len() as u64)?;
            file.write_all(&line)
        })
    }

    fn with_file<T>(&self, work: impl FnOnce(&mut File) -> T) -> T {
        // A thread that panicked while logging left the file in a valid state.
        work(&mut self.file.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Rotates the file if `bytes` more would exceed the limit. A file that cannot be rotated is truncated, so that the limit
    /// holds.
    fn make_room(&self, file: &mut File, bytes: u64) -> io::Result<()> {
        let size = file.metadata()?.len();
        if size == 0 || size.saturating_add(bytes) <= self.bytes_max {
            return Ok(());
        }
        match self.rotate(file) {
            Ok(next) => *file = next,
            Err(_) => file.set_len(0)?,
        }
        if self.stderr == StandardError::Follows {
            rustix::stdio::dup2_stderr(&*file)?;
        }
        Ok(())
    }

    fn rotate(&self, file: &File) -> io::Result<File> {
        let (ours, current) = (file.metadata()?, fs::metadata(&self.path));
        // If not, another process has rotated the file, or the user has removed it.
        let is_current = current.is_ok_and(|current| (current.dev(), current.ino()) == (ours.dev(), ours.ino()));
        if is_current {
            for number in (1..ROTATED_FILES_MAX).rev() {
                match fs::rename(rotated(&self.path, number), rotated(&self.path, number + 1)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
            fs::rename(&self.path, rotated(&self.path, 1))?;
        }
        open_file(&self.path)
    }
}

fn open_file(path: &Path) -> io::Result<File> {
    File::options().append(true).create(true).mode(0o600).open(path)
}

/// Returns the path of a rotated file; number 1 is the newest.
pub fn rotated(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

/// Replaces control characters except tabs by spaces, cuts the line at [`LINE_BYTES_MAX`], and ends it with one line break.
fn clean(line: &[u8]) -> Vec<u8> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let is_long = line.len() > LINE_BYTES_MAX;
    let mut clean: Vec<u8> = line[..line.len().min(LINE_BYTES_MAX)]
        .iter()
        .map(|byte| if byte.is_ascii_control() && *byte != b'\t' { b' ' } else { *byte })
        .collect();
    clean.extend_from_slice(if is_long { b"...\n" } else { b"\n" });
    clean
}

/// Writes events of `tracing` to a file.
#[derive(Clone, Debug)]
pub struct LogWriter(pub Arc<RotatingFile>);

impl Write for LogWriter {
    /// Writes one event as one line. The subscriber passes each event in a single call.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        self.0.write_line(event)?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn sizes(path: &Path) -> Vec<u64> {
        let paths = std::iter::once(path.to_owned()).chain((1..=9).map(|number| rotated(path, number)));
        paths.map_while(|path| fs::metadata(path).ok()).map(|found| found.len()).collect()
    }

    #[test]
    fn the_file_is_rotated_at_its_bound_and_the_oldest_is_removed() {
        let around = tempfile::tempdir().expect("a directory");
        let path = around.path().join("log");
        let log = RotatingFile::open(&path, 1_000, StandardError::Stays).expect("opened");
        for number in 0..10_000 {
            log.write_line(format!("the same error, again and again: {number}\n").as_bytes()).expect("written");
        }
        let sizes = sizes(&path);
        assert_eq!(sizes.len(), 1 + ROTATED_FILES_MAX as usize);
        assert!(sizes.iter().all(|size| *size <= 1_000), "{sizes:?}");
        let newest = fs::read_to_string(&path).expect("read");
        assert!(newest.ends_with("again: 9999\n"), "{newest}");
        let mode = fs::metadata(&path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_full_file_is_rotated_when_it_is_opened() {
        let around = tempfile::tempdir().expect("a directory");
        let path = around.path().join("log");
        fs::write(&path, vec![b'x'; 2_000]).expect("written");
        RotatingFile::open(&path, 1_000, StandardError::Stays).expect("opened").write_line(b"new\n").expect("written");
        assert_eq!(sizes(&path), [4, 2_000]);
    }

    #[test]
    fn two_processes_rotate_once() {
        let around = tempfile::tempdir().expect("a directory");
        let path = around.path().join("log");
        let open = || RotatingFile::open(&path, 100, StandardError::Stays).expect("opened");
        let (one, other) = (open(), open());
        one.write_line(&[b'a'; 90]).expect("written");
        one.write_line(&[b'b'; 20]).expect("written");
        // It still has the file that was rotated.
        other.write_line(&[b'c'; 20]).expect("written");
        assert_eq!(sizes(&path), [42, 91]);
    }

    #[test]
    fn a_file_that_cannot_be_rotated_is_emptied() {
        let around = tempfile::tempdir().expect("a directory");
        let path = around.path().join("log");
        fs::create_dir(rotated(&path, 1)).expect("made");
        fs::write(rotated(&path, 1).join("file"), "in the way").expect("written");
        let log = RotatingFile::open(&path, 100, StandardError::Stays).expect("opened");
        fs::create_dir(rotated(&path, 2)).expect("made");
        fs::write(rotated(&path, 2).join("file"), "in the way").expect("written");
        (0..20).for_each(|_| log.write_line(&[b'x'; 50]).expect("written"));
        assert!(fs::metadata(&path).expect("it is there").len() <= 100);
    }

    #[test]
    fn an_event_is_one_line_of_limited_length() {
        assert_eq!(clean(b"a\nb\x1b[31mc\td\n"), b"a b [31mc\td\n");
        assert_eq!(clean(&vec![b'x'; 1 << 20]).len(), LINE_BYTES_MAX + 4);
    }
}
