//! Applies a unified patch of one file.
//!
//! A hunk is applied where its header says, or at the nearest other place behind the hunk before it that has exactly its lines. Nothing
//! is guessed: a hunk whose lines are nowhere fails the patch.

use amalgam_engine::TreePath;
use amalgam_proto::Reason;

use crate::error::Error;

/// The most comparisons of lines for one patch.
const COMPARISONS_MAX: usize = 50_000_000;

/// A patched text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Patched {
    pub(super) text: Vec<u8>,
    pub(super) hunks: u64,
}

/// The reason why a patch was not applied.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PatchFailure {
    /// The patch cannot be read, for this reason.
    Malformed(String),
    /// The lines of a hunk, counted from 1, are nowhere in the text.
    Unmatched { hunk: usize, header: String },
}

impl PatchFailure {
    /// Returns the error for a file.
    pub(super) fn at(self, path: &TreePath) -> Error {
        match self {
            Self::Malformed(why) => Error::new(Reason::Invalid, format!("the patch of {path} cannot be read: {why}")),
            Self::Unmatched { hunk, header } => {
                let message = format!("hunk {hunk} ({header}) fits nowhere in {path}; nothing was changed");
                Error::new(Reason::PatchFailed, message).with("hunk", hunk.to_string())
            }
        }
    }
}

/// Lines that replace others.
#[derive(Default)]
struct Hunk<'a> {
    header: &'a [u8],
    /// The line at which the old lines begin, from 0.
    start: usize,
    old: Vec<&'a [u8]>,
    new: Vec<&'a [u8]>,
}

/// Applies a patch to a text.
pub(super) fn apply_patch(text: &[u8], patch: &[u8]) -> Result<Patched, PatchFailure> {
    let hunks = parse(patch)?;
    let lines: Vec<&[u8]> = text.split_inclusive(|byte| *byte == b'\n').collect();
    let mut patched = Vec::with_capacity(text.len());
    let (mut done, mut shift, mut comparisons) = (0, 0_isize, COMPARISONS_MAX);
    for (number, hunk) in hunks.iter().enumerate() {
        let expected = hunk.start.saturating_add_signed(shift);
        let Some(at) = find(&lines, &hunk.old, done, expected, &mut comparisons) else {
            let header = String::from_utf8_lossy(hunk.header).into_owned();
            return Err(PatchFailure::Unmatched { hunk: number + 1, header });
        };
        shift = at as isize - hunk.start as isize;
        lines[done..at].iter().chain(&hunk.new).for_each(|line| patched.extend_from_slice(line));
        done = at + hunk.old.len();
    }
    lines[done..].iter().for_each(|line| patched.extend_from_slice(line));
    Ok(Patched { text: patched, hunks: hunks.len() as u64 })
}

/// Returns the place nearest to the expected one, not before `first`, at which lines stand.
fn find(lines: &[&[u8]], wanted: &[&[u8]], first: usize, expected: usize, comparisons: &mut usize) -> Option<usize> {
    let last = lines.len().checked_sub(wanted.len())?;
    if first > last {
        return None;
    }
    let expected = expected.clamp(first, last);
    let mut is_at = |at: usize| {
        let mut equal = lines[at..].iter().zip(wanted);
        equal.all(|(line, wanted)| {
            *comparisons = comparisons.saturating_sub(1);
            *comparisons > 0 && line == wanted
        })
    };
    for distance in 0..=last - first {
        let [behind, before] = [expected.checked_add(distance), expected.checked_sub(distance)];
        let places = [behind.filter(|at| *at <= last), before.filter(|at| *at >= first && distance > 0)];
        if let Some(at) = places.into_iter().flatten().find(|at| is_at(*at)) {
            return Some(at);
        }
    }
    None
}

fn parse(patch: &[u8]) -> Result<Vec<Hunk<'_>>, PatchFailure> {
    let malformed = |line: usize, why: &str| PatchFailure::Malformed(format!("line {}: {why}", line + 1));
    let mut hunks: Vec<Hunk<'_>> = Vec::new();
    // Lines of the last hunk that are still to come.
    let (mut old, mut new) = (0, 0);
    for (number, line) in patch.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let is_open = old > 0 || new > 0;
        if line.starts_with(b"\\") {
            // The line before has no end.
            let hunk = hunks.last_mut().ok_or_else(|| malformed(number, "no line before it"))?;
            drop_line_end(hunk);
            continue;
        }
        if !is_open {
            if line.starts_with(b"@@ ") {
                let (hunk, counts) = parse_header(line).ok_or_else(|| malformed(number, "not a hunk's header"))?;
                (old, new) = counts;
                hunks.push(hunk);
            } else if line.starts_with(b"--- ") && !hunks.is_empty() {
                return Err(malformed(number, "a second file; send a patch for each file"));
            }
            continue;
        }
        let hunk = hunks.last_mut().expect("a hunk is open");
        let (kind, body) = match line {
            // Some programs cut the space of an empty line.
            b"\n" => (b' ', line),
            [kind, body @ ..] => (*kind, body),
            [] => continue,
        };
        let (takes_old, takes_new) = match kind {
            b' ' => (true, true),
            b'-' => (true, false),
            b'+' => (false, true),
            _ => return Err(malformed(number, "a line of a hunk begins with a space, `-` or `+`")),
        };
        if (takes_old && old == 0) || (takes_new && new == 0) {
            return Err(malformed(number, "the hunk has more lines than its header says"));
        }
        if takes_old {
            hunk.old.push(body);
            old -= 1;
        }
        if takes_new {
            hunk.new.push(body);
            new -= 1;
        }
    }
    if old > 0 || new > 0 {
        return Err(PatchFailure::Malformed("the last hunk has fewer lines than its header says".to_owned()));
    }
    if hunks.is_empty() {
        return Err(PatchFailure::Malformed("it has no hunk".to_owned()));
    }
    Ok(hunks)
}

/// Removes the line end of the last line that was read into a hunk: an old one, a new one, or both.
fn drop_line_end(hunk: &mut Hunk<'_>) {
    let is_both = match (hunk.old.last(), hunk.new.last()) {
        (Some(old), Some(new)) => std::ptr::eq(old.as_ptr(), new.as_ptr()),
        _ => false,
    };
    let is_new_last = match (hunk.old.last(), hunk.new.last()) {
        // Lines of one patch: the later one has the higher address.
        (Some(old), Some(new)) => new.as_ptr() > old.as_ptr(),
        (None, Some(_)) => true,
        _ => false,
    };
    let cut = |line: &mut &[u8]| *line = line.strip_suffix(b"\n").unwrap_or(line);
    if is_both || !is_new_last {
        hunk.old.last_mut().map(cut);
    }
    if is_both || is_new_last {
        hunk.new.last_mut().map(cut);
    }
}

/// Reads `@@ -3,5 +3,6 @@`, and returns the hunk with its numbers of old and new lines.
fn parse_header(line: &[u8]) -> Option<(Hunk<'_>, (usize, usize))> {
    let text = std::str::from_utf8(line.strip_prefix(b"@@ -")?).ok()?;
    let (ranges, _) = text.split_once(" @@")?;
    let (old, new) = ranges.split_once(" +")?;
    let range = |text: &str| -> Option<(usize, usize)> {
        let (start, count) = text.split_once(',').unwrap_or((text, "1"));
        Some((start.parse().ok()?, count.parse().ok()?))
    };
    let ((start, old), (_, new)) = (range(old)?, range(new)?);
    // Lines are counted from 1, and an empty range names the line before it.
    let start = if old == 0 { start } else { start.checked_sub(1)? };
    let header = line.strip_suffix(b"\n").unwrap_or(line);
    Some((Hunk { header, start, ..Hunk::default() }, (old, new)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patched(text: &str, patch: &str) -> Result<String, PatchFailure> {
        apply_patch(text.as_bytes(), patch.as_bytes()).map(|done| String::from_utf8(done.text).expect("text"))
    }

    #[test]
    fn hunks_are_applied_at_their_line_or_nearby() {
        let patch = "--- a\n+++ b\n@@ -1,3 +1,3 @@\n one\n-two\n+TWO\n three\n@@ -5 +5,2 @@ five\n five\n+six\n";
        assert_eq!(
            patched("one\ntwo\nthree\nfour\nfive\n", patch),
            Ok("one\nTWO\nthree\nfour\nfive\nsix\n".to_owned())
        );
        assert_eq!(
            patched("0\n0\none\ntwo\nthree\nfour\n4.5\nfive\n", patch),
            Ok("0\n0\none\nTWO\nthree\nfour\n4.5\nfive\nsix\n".to_owned())
        );
        assert_eq!(patched("", "@@ -0,0 +1 @@\n+new\n"), Ok("new\n".to_owned()));
        assert_eq!(patched("a\nb\n", "@@ -1,0 +2 @@\n+new\n"), Ok("a\nnew\nb\n".to_owned()));
        assert_eq!(patched("a\n\nb\n", "@@ -1,3 +1,3 @@\n a\n\n-b\n+c\n"), Ok("a\n\nc\n".to_owned()));
    }

    #[test]
    fn a_missing_line_end_is_kept_added_and_removed() {
        let none = "\\ No newline at end of file\n";
        assert_eq!(patched("a", &format!("@@ -1 +1 @@\n-a\n{none}+b\n")), Ok("b\n".to_owned()));
        assert_eq!(patched("a\n", &format!("@@ -1 +1 @@\n-a\n+b\n{none}")), Ok("b".to_owned()));
        assert_eq!(patched("x\na", &format!("@@ -1,2 +1,2 @@\n-x\n+y\n a\n{none}")), Ok("y\na".to_owned()));
    }

    #[test]
    fn a_hunk_that_fits_nowhere_is_named_and_bad_patches_are_refused() {
        let two = "@@ -1 +1 @@\n-a\n+b\n@@ -2 +2 @@\n-gone\n+x\n";
        let failure = patched("a\nc\n", two).expect_err("the second hunk fails");
        assert_eq!(failure, PatchFailure::Unmatched { hunk: 2, header: "@@ -2 +2 @@".to_owned() });
        for bad in ["", "text\n", "@@ -1 +1 @@\n-a\n", "@@ x @@\n", "@@ -1 +1 @@\n-a\n+b\n--- c\n", "@@ -1 +1 @@\n*a\n"]
        {
            assert!(matches!(patched("a\n", bad), Err(PatchFailure::Malformed(_))), "{bad:?}");
        }
    }
}
