//! The hunks of a patch of one file, and the file with some of them applied. Reads nothing and writes nothing.

/// A part of a patch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hunk {
    /// The header line with the position of the hunk.
    pub header: Vec<u8>,
    /// Its lines, each with its sign and its line break.
    pub lines: Vec<Vec<u8>>,
    /// The line of the file before which it begins, from 0.
    start: usize,
}

/// Reads the hunks of a patch of one file; none if it is not of text.
pub fn parse(patch: &[u8]) -> Vec<Hunk> {
    let mut hunks: Vec<Hunk> = Vec::new();
    for line in patch.split_inclusive(|byte| *byte == b'\n') {
        if let Some(start) = line.strip_prefix(b"@@ -").and_then(start_of) {
            hunks.push(Hunk { header: line.to_vec(), lines: Vec::new(), start });
        } else if let Some(hunk) = hunks.last_mut() {
            match (line.first(), hunk.lines.last_mut()) {
                // "\ No newline at end of file" is about the line before it.
                (Some(b'\\'), Some(last)) => drop(last.pop_if(|byte| *byte == b'\n')),
                _ => hunk.lines.push(line.to_vec()),
            }
        }
    }
    hunks
}

/// Parses the line number at the start of a hunk header such as `12,3 +12,4 @@`. Lines count from 0.
fn start_of(text: &[u8]) -> Option<usize> {
    let text = str::from_utf8(text.split(|byte| *byte == b' ').next()?).ok()?;
    let (line, count) = text.split_once(',').unwrap_or((text, "1"));
    let line: usize = line.parse().ok()?;
    // A hunk without old lines comes after the line that its header names.
    Some(if count == "0" { line } else { line.saturating_sub(1) })
}

/// Applies some hunks, in the order of the file, to a text. Returns `None` if the text differs from the one that the patch was made
/// of.
pub fn apply(text: &[u8], hunks: &[&Hunk]) -> Option<Vec<u8>> {
    let lines: Vec<_> = text.split_inclusive(|byte| *byte == b'\n').collect();
    let mut result = Vec::with_capacity(text.len());
    let mut at = 0;
    for hunk in hunks {
        result.extend(lines.get(at..hunk.start)?.concat());
        at = hunk.start;
        for line in &hunk.lines {
            let (sign, rest) = line.split_first()?;
            if *sign != b'+' {
                if *lines.get(at)? != rest {
                    return None;
                }
                at += 1;
            }
            if *sign != b'-' {
                result.extend(rest);
            }
        }
    }
    result.extend(lines.get(at..)?.concat());
    Some(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATCH: &[u8] = b"diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n-1\n+one\n 2\n@@ -8,2 +8,3 @@\n 8\n-9\n\\ No newline at end of file\n+9\n+10\n";

    #[test]
    fn chosen_hunks_are_applied_and_others_are_not() {
        let text = b"1\n2\n3\n4\n5\n6\n7\n8\n9";
        let hunks = parse(PATCH);
        assert_eq!(hunks.len(), 2);
        let applied = |chosen: &[&Hunk]| String::from_utf8(apply(text, chosen).expect("it fits")).expect("text");
        assert_eq!(applied(&[]), "1\n2\n3\n4\n5\n6\n7\n8\n9");
        assert_eq!(applied(&[&hunks[0]]), "one\n2\n3\n4\n5\n6\n7\n8\n9");
        assert_eq!(applied(&[&hunks[1]]), "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n");
        assert_eq!(applied(&[&hunks[0], &hunks[1]]), "one\n2\n3\n4\n5\n6\n7\n8\n9\n10\n");
        assert_eq!(apply(b"other\n2\n", &[&hunks[0]]), None, "the file changed meanwhile");
    }

    #[test]
    fn a_hunk_without_lines_of_the_file_stands_behind_its_line() {
        let hunks = parse(b"@@ -1,0 +2 @@\n+new\n");
        assert_eq!(apply(b"1\n2\n", &[&hunks[0]]).as_deref(), Some(b"1\nnew\n2\n".as_slice()));
        let hunks = parse(b"@@ -0,0 +1 @@\n+new\n");
        assert_eq!(apply(b"", &[&hunks[0]]).as_deref(), Some(b"new\n".as_slice()));
    }
}
