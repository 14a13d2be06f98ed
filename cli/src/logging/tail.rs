//! Reading the log: its last lines, and the lines that are added, also across rotations.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::rotation::{ROTATED_FILES_MAX, rotated};

/// Returns the paths of all files of a log, the oldest first.
fn files(path: &Path) -> Vec<PathBuf> {
    let older = (1..=ROTATED_FILES_MAX).rev().map(|number| rotated(path, number));
    older.chain([path.to_owned()]).collect()
}

/// Returns the last lines of a log, as many as asked for or all, and where to go on reading.
pub fn last_lines(path: &Path, count: Option<usize>) -> io::Result<(Vec<String>, Tail)> {
    let mut tail = Tail { path: path.to_owned(), open: None, partial: Vec::new() };
    let mut lines = Vec::new();
    for file in files(path) {
        match File::open(&file) {
            Ok(file) => tail.read_file(file, &mut lines)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        if let Some(count) = count {
            lines.drain(..lines.len().saturating_sub(count));
        }
    }
    Ok((lines, tail))
}

/// A place in a log, from which lines are read as they are added.
#[derive(Debug)]
pub struct Tail {
    path: PathBuf,
    /// The file that was read last, positioned behind the last byte read.
    open: Option<File>,
    /// The start of a line whose end is not written yet.
    partial: Vec<u8>,
}

impl Tail {
    /// Returns the lines that were added since the last call. Files that were rotated meanwhile are read to their end.
    pub fn new_lines(&mut self) -> io::Result<Vec<String>> {
        let mut lines = Vec::new();
        let Some(mut open) = self.open.take() else {
            self.read_after(None, &mut lines)?;
            return Ok(lines);
        };
        // Checked before the rest is read: if the file is rotated in between, the next call reads the new one.
        let known = identity(&open.metadata()?);
        let is_current = fs::metadata(&self.path).is_ok_and(|current| identity(&current) == known);
        self.read_rest(&mut open, &mut lines)?;
        self.open = Some(open);
        if !is_current {
            self.read_after(Some(known), &mut lines)?;
        }
        Ok(lines)
    }

    /// Reads the files that are newer than one; all of them if that one is gone.
    fn read_after(&mut self, known: Option<(u64, u64)>, lines: &mut Vec<String>) -> io::Result<()> {
        let mut newer = Vec::new();
        for path in files(&self.path) {
            let Ok(file) = File::open(&path) else { continue };
            if known.is_some() && file.metadata().map(|found| identity(&found)).ok() == known {
                newer.clear();
            } else {
                newer.push(file);
            }
        }
        newer.into_iter().try_for_each(|file| self.read_file(file, lines))
    }

    fn read_file(&mut self, mut file: File, lines: &mut Vec<String>) -> io::Result<()> {
        self.read_rest(&mut file, lines)?;
        self.open = Some(file);
        Ok(())
    }

    fn read_rest(&mut self, file: &mut File, lines: &mut Vec<String>) -> io::Result<()> {
        file.read_to_end(&mut self.partial)?;
        let whole = self.partial.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let text = String::from_utf8_lossy(&self.partial[..whole]);
        lines.extend(text.lines().map(str::to_owned));
        self.partial.drain(..whole);
        Ok(())
    }
}

fn identity(found: &fs::Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

#[cfg(test)]
mod tests {
    use super::super::rotation::{RotatingFile, StandardError};
    use super::*;

    #[test]
    fn the_last_lines_come_from_several_files() {
        let around = tempfile::tempdir().expect("a directory");
        let path = around.path().join("log");
        assert!(last_lines(&path, Some(3)).expect("no log").0.is_empty());
        fs::write(rotated(&path, 2), "1\n2\n").expect("written");
        fs::write(rotated(&path, 1), "3\n4\n").expect("written");
        fs::write(&path, "5\n").expect("written");
        assert_eq!(last_lines(&path, Some(3)).expect("read").0, ["3", "4", "5"]);
        assert_eq!(last_lines(&path, None).expect("read").0.len(), 5);
        assert!(last_lines(&path, Some(0)).expect("read").0.is_empty());
    }

    #[test]
    fn a_tail_follows_across_rotations() {
        let around = tempfile::tempdir().expect("a directory");
        let path = around.path().join("log");
        let log = RotatingFile::open(&path, 100, StandardError::Stays).expect("opened");
        log.write_line(b"first").expect("written");
        let (lines, mut tail) = last_lines(&path, Some(10)).expect("read");
        assert_eq!(lines, ["first"]);
        let (mut next, mut read) = (0, 0);
        // From no line to three files between two looks.
        for count in [0, 1, 5, 20, 33, 0, 20] {
            for number in next..next + count {
                log.write_line(format!("line {number}").as_bytes()).expect("written");
            }
            next += count;
            for line in tail.new_lines().expect("read") {
                assert_eq!(line, format!("line {read}"));
                read += 1;
            }
            assert_eq!(read, next);
        }
    }

    #[test]
    fn a_line_is_returned_when_it_is_whole() {
        let around = tempfile::tempdir().expect("a directory");
        let path = around.path().join("log");
        fs::write(&path, "whole\nhalf").expect("written");
        let (lines, mut tail) = last_lines(&path, None).expect("read");
        assert_eq!(lines, ["whole"]);
        fs::write(&path, "whole\nhalf, then whole\n").expect("written");
        assert_eq!(tail.new_lines().expect("read"), ["half, then whole"]);
    }
}
