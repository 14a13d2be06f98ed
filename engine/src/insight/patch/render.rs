//! Renders one file of a patch as text.

use amalgam_textdiff::{Hunk, line_hunks, split_lines};

use super::binary::{blob_id, literal};
use super::options::PatchOptions;
use super::plan::{Side, Step};
use super::quote::quoted;
use crate::error::Result;
use crate::insight::body;
use crate::name::TreePath;
use crate::store::Store;

/// The id that Git writes for an absent side.
const NO_ID: &str = "0000000000000000000000000000000000000000";

/// Renders the section of a file, starting with `diff --git`.
pub(super) fn render(store: &Store, step: &Step, options: &PatchOptions) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    let (Some(first), Some(second)) =
        (step.before.as_ref().or(step.after.as_ref()), step.after.as_ref().or(step.before.as_ref()))
    else {
        return Ok(out);
    };
    out.extend_from_slice(b"diff --git ");
    quoted("a/", &first.path, &mut out);
    out.push(b' ');
    quoted("b/", &second.path, &mut out);
    out.push(b'\n');
    header(step, &mut out);
    if let (Some(before), Some(after)) = (&step.before, &step.after)
        && before.entry.node == after.entry.node
    {
        return Ok(out);
    }
    let load = |side: &Option<Side>| side.as_ref().map(|side| body::load(store, &side.entry)).transpose();
    let (before, after) = (load(&step.before)?, load(&step.after)?);
    let id = |bytes: Option<&[u8]>| bytes.map_or_else(|| NO_ID.to_owned(), blob_id);
    out.extend_from_slice(format!("index {}..{}", id(before.as_deref()), id(after.as_deref())).as_bytes());
    if let (Some(before), Some(after)) = (&step.before, &step.after)
        && before.mode() == after.mode()
    {
        out.extend_from_slice(format!(" {}", after.mode()).as_bytes());
    }
    out.push(b'\n');
    let (before, after) = (before.unwrap_or_default(), after.unwrap_or_default());
    if before.is_empty() && after.is_empty() {
        return Ok(out);
    }
    // A NUL at any offset makes it binary: Git reads lines, and other programs read patches too.
    let has_nul = |bytes: &[u8]| memchr::memchr(0, bytes).is_some();
    let large = before.len().max(after.len()) as u64 > options.text_bytes_max;
    if large || has_nul(&before) || has_nul(&after) {
        out.extend_from_slice(b"GIT binary patch\n");
        literal(&after, &mut out);
        literal(&before, &mut out);
        return Ok(out);
    }
    label("--- ", "a/", step.before.as_ref().map(|side| &side.path), &mut out);
    label("+++ ", "b/", step.after.as_ref().map(|side| &side.path), &mut out);
    unified(&before, &after, options.context_lines, &mut out);
    Ok(out)
}

fn header(step: &Step, out: &mut Vec<u8>) {
    let mut line = |words: &str, mode: &str| out.extend_from_slice(format!("{words} {mode}\n").as_bytes());
    match (&step.before, &step.after) {
        (None, Some(after)) => line("new file mode", after.mode()),
        (Some(before), None) => line("deleted file mode", before.mode()),
        (Some(before), Some(after)) if before.mode() != after.mode() => {
            line("old mode", before.mode());
            line("new mode", after.mode());
        }
        _ => {}
    }
    if let (Some(before), Some(after), Some(similarity)) = (&step.before, &step.after, step.similarity) {
        out.extend_from_slice(format!("similarity index {similarity}%\nrename from ").as_bytes());
        quoted("", &before.path, out);
        out.extend_from_slice(b"\nrename to ");
        quoted("", &after.path, out);
        out.push(b'\n');
    }
}

fn label(sign: &str, prefix: &str, path: Option<&TreePath>, out: &mut Vec<u8>) {
    out.extend_from_slice(sign.as_bytes());
    match path {
        None => out.extend_from_slice(b"/dev/null"),
        Some(path) => {
            quoted(prefix, path, out);
            // Other programs end a name at a space unless a tab follows it.
            if path.as_bytes().contains(&b' ') {
                out.push(b'\t');
            }
        }
    }
    out.push(b'\n');
}

fn unified(before: &[u8], after: &[u8], context: usize, out: &mut Vec<u8>) {
    let hunks = line_hunks(before, after);
    let (before, after) = (split_lines(before), split_lines(after));
    let mut rest = &hunks[..];
    while !rest.is_empty() {
        let near = |pair: &[Hunk]| pair[1].before.start - pair[0].before.end <= context.saturating_mul(2);
        let count = 1 + rest.windows(2).take_while(|pair| near(pair)).count();
        let (group, behind) = rest.split_at(count);
        rest = behind;
        one_group(group, &before, &after, context, out);
    }
}

/// Writes hunks with a common context under one header.
fn one_group(group: &[Hunk], before: &[&[u8]], after: &[&[u8]], context: usize, out: &mut Vec<u8>) {
    let (Some(first), Some(last)) = (group.first(), group.last()) else { return };
    let above = first.before.start.min(context);
    let below = (before.len() - last.before.end).min(context);
    let old = first.before.start - above..last.before.end + below;
    let new = first.after.start - above..last.after.end + below;
    out.extend_from_slice(format!("@@ -{} +{} @@\n", range(&old), range(&new)).as_bytes());
    let mut at = old.start;
    for hunk in group {
        lines(b' ', &before[at..hunk.before.start], out);
        lines(b'-', &before[hunk.before.clone()], out);
        lines(b'+', &after[hunk.after.clone()], out);
        at = hunk.before.end;
    }
    lines(b' ', &before[at..old.end], out);
}

/// Formats a range of lines counted from 1. An empty range names the line before it.
fn range(lines: &std::ops::Range<usize>) -> String {
    match lines.len() {
        0 => format!("{},0", lines.start),
        1 => (lines.start + 1).to_string(),
        count => format!("{},{count}", lines.start + 1),
    }
}

fn lines(sign: u8, lines: &[&[u8]], out: &mut Vec<u8>) {
    for line in lines {
        out.push(sign);
        out.extend_from_slice(line);
        if !line.ends_with(b"\n") {
            out.extend_from_slice(b"\n\\ No newline at end of file\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(before: &str, after: &str, context: usize) -> String {
        let mut out = Vec::new();
        unified(before.as_bytes(), after.as_bytes(), context, &mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn hunks_have_context_and_join_when_it_touches() {
        let numbers: String = (1..=12).map(|number| format!("{number}\n")).collect();
        let changed = numbers.replace("2\n3\n", "2\nthree\n").replace("10\n", "");
        assert_eq!(text("a\n", "b\n", 3), "@@ -1 +1 @@\n-a\n+b\n");
        assert_eq!(text("", "b\nc\n", 3), "@@ -0,0 +1,2 @@\n+b\n+c\n");
        assert_eq!(text(&numbers, &changed, 1), "@@ -2,3 +2,3 @@\n 2\n-3\n+three\n 4\n@@ -9,3 +9,2 @@\n 9\n-10\n 11\n");
        assert_eq!(text(&numbers, &changed, 3).matches("@@ -").count(), 1);
        assert_eq!(text(&numbers, &changed, 0), "@@ -3 +3 @@\n-3\n+three\n@@ -10 +9,0 @@\n-10\n");
    }

    #[test]
    fn a_missing_newline_is_said() {
        let marked = "\\ No newline at end of file\n";
        assert_eq!(text("a\nb", "a\nb\n", 1), format!("@@ -1,2 +1,2 @@\n a\n-b\n{marked}+b\n"));
    }
}
