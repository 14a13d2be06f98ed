//! Lines of files that match a regular expression.

use amalgam_engine::{EntryKind, Error as EngineError, TreePath};
use amalgam_proto::{Reason, v1};
use regex::bytes::{Regex, RegexBuilder};

use super::list::walk;
use super::path::{parse_path, show_path};
use super::{Files, Glob};
use crate::error::{Error, Result};

/// Larger files are not searched.
pub(crate) const FILE_BYTES_MAX: u64 = 256 << 20;
/// Files with a zero byte in their first bytes are binary, as in Git.
const BINARY_SAMPLE_BYTES: usize = 8_000;
/// Longer lines are cut.
const LINE_BYTES_MAX: usize = 4_096;

/// Searches texts for lines.
pub(crate) struct LineMatcher(Regex);

/// A line that matches, or a binary text that does.
pub(crate) struct LineMatch<'a> {
    /// From 1; 0 in a binary text.
    pub(crate) line: u64,
    /// The beginning of the line; empty in a binary text.
    pub(crate) text: &'a [u8],
    pub(crate) is_binary: bool,
}

impl LineMatcher {
    /// Reads a pattern.
    pub(crate) fn new(pattern: &str, is_fixed: bool, ignores_case: bool) -> Result<Self> {
        let expression = if is_fixed { regex::escape(pattern) } else { pattern.to_owned() };
        let built = RegexBuilder::new(&expression).case_insensitive(ignores_case).multi_line(true).build();
        built.map(Self).map_err(|error| Error::new(Reason::Invalid, format!("`{pattern}`: {error}")))
    }

    /// Calls `found` for each match until it returns false. Returns whether it always returned true.
    pub(crate) fn each_match(&self, text: &[u8], mut found: impl FnMut(LineMatch<'_>) -> Result<bool>) -> Result<bool> {
        if text[..text.len().min(BINARY_SAMPLE_BYTES)].contains(&0) {
            let binary = LineMatch { line: 0, text: &[], is_binary: true };
            return if self.0.is_match(text) { found(binary) } else { Ok(true) };
        }
        for (number, line) in text.split_inclusive(|byte| *byte == b'\n').enumerate() {
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if !self.0.is_match(line) {
                continue;
            }
            let text = &line[..line.len().min(LINE_BYTES_MAX)];
            if !found(LineMatch { line: number as u64 + 1, text, is_binary: false })? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Files {
    /// Searches the files of a tree, and calls `found` for each match.
    pub(crate) fn grep(
        &self,
        request: &v1::GrepFilesRequest,
        mut found: impl FnMut(v1::FileMatch) -> Result<()>,
    ) -> Result<()> {
        let matcher = LineMatcher::new(&request.pattern, request.fixed, request.ignore_case)?;
        let globs = request.globs.iter().map(|glob| Glob::new(glob)).collect::<Result<Vec<_>>>()?;
        let mut wanted = request.paths.iter().map(|path| parse_path(path)).collect::<Result<Vec<_>>>()?;
        if wanted.is_empty() {
            wanted.push(TreePath::root());
        }
        wanted.sort();
        // A path below another one is searched with that.
        wanted.dedup_by(|path, above| path.below(above).is_some());
        let read = self.read_tree(&request.workspace, &request.revision)?;
        let mut left = if request.limit == 0 { u32::MAX } else { request.limit };
        let mut search = |path: &TreePath| -> Result<bool> {
            let Some(text) = self.text_of(&read, path)? else { return Ok(true) };
            matcher.each_match(&text, |line| {
                found(v1::FileMatch {
                    path: show_path(path),
                    line: line.line,
                    text: String::from_utf8_lossy(line.text).into_owned(),
                    binary: line.is_binary,
                })?;
                left -= 1;
                Ok(left > 0)
            })
        };
        let is_wanted = |path: &TreePath| globs.is_empty() || globs.iter().any(|glob| glob.matches(path));
        let is_searched = |path: &TreePath| !(request.without_git && path.is_in_git());
        let mut count = self.context.store.path_count();
        for top in &wanted {
            let stat = read.stat(top)?.ok_or_else(|| read.not_found(top))?;
            if stat.kind != EntryKind::Directory {
                if !search(top)? {
                    return Ok(());
                }
                continue;
            }
            let mut goes_on = true;
            let enter = |path: &TreePath| is_searched(path) && read.is_entered(path);
            walk(&read.tree, top, None, enter, |path, stat| {
                count.add(1)?;
                if !read.is_visible(path, stat)? {
                    return Ok(true);
                }
                if stat.kind != EntryKind::Directory && is_searched(path) && is_wanted(path) {
                    goes_on = search(path)?;
                }
                Ok(goes_on)
            })?;
            if !goes_on {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Returns the bytes of a file, or `None` for an entry without bytes, a purged one, or one that is too large.
    fn text_of(&self, read: &super::ReadTree, path: &TreePath) -> Result<Option<Vec<u8>>> {
        let stat = read.tree.stat(path)?;
        let kind = stat.as_ref().map(|stat| stat.kind);
        if !matches!(kind, Some(EntryKind::File | EntryKind::Conflict)) {
            return Ok(None);
        }
        let Ok(readable) = self.open_file(read, path) else { return Ok(None) };
        let size = readable.file.stat().size;
        if size == 0 || size > FILE_BYTES_MAX {
            return Ok(None);
        }
        match readable.file.read_at(0, size as usize) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(EngineError::Purged { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}
