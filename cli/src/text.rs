//! Formats counts, sizes, times, names and paths for people. Prints nothing.

use std::borrow::Cow;
use std::fmt::Write as _;

use amalgam_proto::v1;
use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Formats a number with separators: `79,314`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number with its noun: `1 file`, `2 files`.
pub fn plural(number: u64, one: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        // `directory` becomes `directories`, but `day` becomes `days`.
        _ if one.ends_with('y') && !["ay", "ey", "oy", "uy"].iter().any(|end| one.ends_with(end)) => {
            format!("{} {}ies", count(number), one.trim_end_matches('y'))
        }
        _ => format!("{} {one}s", count(number)),
    }
}

/// Returns the pronoun for a number of things: `it` or `them`.
pub fn them(number: u64) -> &'static str {
    if number == 1 { "it" } else { "them" }
}

/// Formats a number of bytes with decimal units: `1.2 MB`.
pub fn bytes(number: u64) -> String {
    const UNITS: [&str; 6] = ["B", "kB", "MB", "GB", "TB", "PB"];
    if number < 1_000 {
        return format!("{number} B");
    }
    let mut size = number as f64;
    let mut unit = 0;
    while size >= 999.5 && unit + 1 < UNITS.len() {
        size /= 1_000.0;
        unit += 1;
    }
    if size < 9.95 { format!("{size:.1} {}", UNITS[unit]) } else { format!("{size:.0} {}", UNITS[unit]) }
}

/// Converts a time of the API.
pub fn timestamp(time: Option<&prost_types::Timestamp>) -> Timestamp {
    time.and_then(|time| Timestamp::new(time.seconds, time.nanos).ok()).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Describes the time from `then` until `now`: `3 minutes ago`.
pub fn ago(then: Timestamp, now: Timestamp) -> String {
    let seconds = now.as_second() - then.as_second();
    let (amount, unit) = match seconds {
        ..0 => return "in the future".to_owned(),
        0..5 => return "just now".to_owned(),
        5..60 => (seconds, "second"),
        60..3_600 => (seconds / 60, "minute"),
        3_600..86_400 => (seconds / 3_600, "hour"),
        86_400..2_592_000 => (seconds / 86_400, "day"),
        2_592_000..31_536_000 => (seconds / 2_592_000, "month"),
        _ => (seconds / 31_536_000, "year"),
    };
    format!("{} ago", plural(amount.unsigned_abs(), unit))
}

/// Describes the time from `now` until `then`, rounded up: `3 hours`.
pub fn until(then: Timestamp, now: Timestamp) -> String {
    let seconds = (then.as_second() - now.as_second()).max(0).unsigned_abs();
    let (amount, unit) = match seconds {
        0..60 => (seconds, "second"),
        60..3_600 => (seconds.div_ceil(60), "minute"),
        3_600..86_400 => (seconds.div_ceil(3_600), "hour"),
        _ => (seconds.div_ceil(86_400), "day"),
    };
    plural(amount, unit)
}

/// Formats a time in the local time zone.
pub fn wall_clock(time: Timestamp) -> String {
    time.to_zoned(TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S %:z").to_string()
}

/// Returns the id in a resource name: the part after `workspaces/`, `labels/` or another collection.
pub fn id(name: &str) -> &str {
    name.split_once('/').map_or(name, |(_, id)| id)
}

/// Returns the first 8 digits of a snapshot's id.
pub fn short(name: &str) -> &str {
    let id = id(name);
    id.get(..8).unwrap_or(id)
}

/// Escapes control characters and invisible characters in a text that users or other programs wrote.
pub fn printable(text: &str) -> Cow<'_, str> {
    let is_shown = |c: char| is_terminal_control(c) || is_hidden(c);
    if !text.chars().any(is_shown) {
        return Cow::Borrowed(text);
    }
    let show = |c: char| if is_shown(c) { c.escape_default().to_string() } else { c.to_string() };
    Cow::Owned(text.chars().map(show).collect())
}

fn is_terminal_control(c: char) -> bool {
    c.is_control() && c != '\n' && c != '\t'
}

/// Returns whether a character changes the direction of the text around it.
fn is_bidirectional(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns whether a character has no width or changes the direction of text, so that a name looks like another one.
fn is_hidden(c: char) -> bool {
    is_bidirectional(c)
        || matches!(
            c,
            '\u{ad}' | '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
        )
        || matches!(c, '\u{200b}'..='\u{200d}' | '\u{2028}' | '\u{2029}' | '\u{2060}'..='\u{2065}' | '\u{206a}'..='\u{206f}')
        || matches!(c, '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Escapes control characters and characters that change the direction of text in the contents of a file, for a terminal.
pub fn contents(bytes: &[u8]) -> Cow<'_, [u8]> {
    let is_shown = |c: char| is_terminal_control(c) || is_bidirectional(c);
    // A byte between 0x80 and 0x9f is a control character to some terminals.
    let is_byte_shown = |byte: &u8| (0x80..0xa0).contains(byte);
    let is_plain = |chunk: std::str::Utf8Chunk<'_>| {
        !chunk.valid().chars().any(is_shown) && !chunk.invalid().iter().any(is_byte_shown)
    };
    if bytes.utf8_chunks().all(is_plain) {
        return Cow::Borrowed(bytes);
    }
    let mut shown = Vec::with_capacity(bytes.len() + 16);
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                c if is_shown(c) => shown.extend(c.escape_default().to_string().bytes()),
                c => shown.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        for byte in chunk.invalid() {
            match is_byte_shown(byte) {
                true => shown.extend(format!("\\x{byte:02x}").bytes()),
                false => shown.push(*byte),
            }
        }
    }
    Cow::Owned(shown)
}

/// Escapes control characters, except sequences that set colours, and invisible characters in a line, for a terminal.
pub fn line(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|c| is_terminal_control(c) || is_hidden(c)) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let length = match c {
            '\u{1b}' => colour_length(rest),
            c if is_terminal_control(c) || is_hidden(c) => 0,
            c => c.len_utf8(),
        };
        if length == 0 {
            shown.extend(c.escape_default());
            rest = &rest[c.len_utf8()..];
        } else {
            shown.push_str(&rest[..length]);
            rest = &rest[length..];
        }
    }
    Cow::Owned(shown)
}

/// Returns the length of the escape sequence that a text begins with if it sets a colour, else 0.
fn colour_length(text: &str) -> usize {
    let Some(parameters) = text.strip_prefix("\u{1b}[") else { return 0 };
    let end = parameters.find(|c: char| !c.is_ascii_digit() && c != ';' && c != ':');
    match end {
        Some(end) if parameters[end..].starts_with('m') => 2 + end + 1,
        _ => 0,
    }
}

/// Returns the first line of a message, with control characters escaped.
pub fn first_line(message: &str) -> Cow<'_, str> {
    printable(message.lines().next().unwrap_or(""))
}

/// Formats a path: the root is `.`; a path with quotes, backslashes, control or invisible characters, or bytes that are not UTF-8
/// is quoted as in git.
pub fn path(path: &[u8]) -> Cow<'_, str> {
    if path.is_empty() {
        return Cow::Borrowed(".");
    }
    let plain = str::from_utf8(path)
        .ok()
        .filter(|text| !text.chars().any(|c| c.is_control() || is_hidden(c) || "\"\\".contains(c)));
    if let Some(text) = plain {
        return Cow::Borrowed(text);
    }
    let mut text = String::from("\"");
    for chunk in path.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '"' | '\\' => text.extend(['\\', c]),
                '\n' => text.push_str("\\n"),
                '\t' => text.push_str("\\t"),
                c if c.is_control() || is_hidden(c) => push_octal(&mut text, c.encode_utf8(&mut [0; 4]).as_bytes()),
                c => text.push(c),
            }
        }
        push_octal(&mut text, chunk.invalid());
    }
    text.push('"');
    Cow::Owned(text)
}

fn push_octal(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        write!(text, "\\{byte:03o}").expect("a string takes everything");
    }
}

/// Returns the part of a path up to and including its first component `.git`, or `None` if it has none.
pub fn git_part(path: &[u8]) -> Option<&[u8]> {
    let mut end = 0;
    for name in path.split(|byte| *byte == b'/') {
        end += name.len();
        if name == b".git" {
            return Some(&path[..end]);
        }
        end += 1;
    }
    None
}

/// Returns the letter of a change in a list.
pub fn change_letter(kind: v1::ChangeKind) -> char {
    match kind {
        v1::ChangeKind::Added => 'A',
        v1::ChangeKind::Removed => 'D',
        v1::ChangeKind::Renamed => 'R',
        v1::ChangeKind::KindChanged => 'T',
        v1::ChangeKind::Metadata => 'm',
        v1::ChangeKind::Modified | v1::ChangeKind::Unspecified => 'M',
    }
}

/// Returns the JSON word for a change.
pub fn change_word(kind: v1::ChangeKind) -> &'static str {
    match kind {
        v1::ChangeKind::Added => "added",
        v1::ChangeKind::Removed => "removed",
        v1::ChangeKind::Renamed => "renamed",
        v1::ChangeKind::KindChanged => "kind_changed",
        v1::ChangeKind::Metadata => "metadata",
        v1::ChangeKind::Modified => "modified",
        v1::ChangeKind::Unspecified => "unknown",
    }
}

/// Returns the word for a kind of entry.
pub fn kind_word(kind: v1::EntryKind) -> &'static str {
    match kind {
        v1::EntryKind::File => "file",
        v1::EntryKind::Directory => "directory",
        v1::EntryKind::Symlink => "symlink",
        v1::EntryKind::Fifo => "fifo",
        v1::EntryKind::Socket => "socket",
        v1::EntryKind::CharDevice => "char_device",
        v1::EntryKind::BlockDevice => "block_device",
        v1::EntryKind::Conflict => "conflict",
        v1::EntryKind::Unspecified => "unknown",
    }
}

/// Returns the JSON word for the kind of a notice.
pub fn notice_word(kind: v1::NoticeKind) -> &'static str {
    match kind {
        v1::NoticeKind::Ignored => "ignored",
        v1::NoticeKind::Ours => "ours",
        v1::NoticeKind::OtherFileSystem => "other_file_system",
        v1::NoticeKind::Failed => "failed",
        v1::NoticeKind::Changing => "changing",
        v1::NoticeKind::ChangedSince => "changed_since",
        v1::NoticeKind::Unsupported => "unsupported",
        v1::NoticeKind::NotEmpty => "not_empty",
        v1::NoticeKind::OwnerNotSet => "owner_not_set",
        v1::NoticeKind::Purged => "purged",
        v1::NoticeKind::CacheNotKept => "cache_not_kept",
        v1::NoticeKind::Withheld => "withheld",
        v1::NoticeKind::Damaged => "damaged",
        v1::NoticeKind::GitFile => "git_file",
        v1::NoticeKind::Unspecified => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (79_314, "79,314"), (1_234_567, "1,234,567")] {
            assert_eq!(count(number), text);
        }
        assert_eq!(plural(1, "file"), "1 file");
        assert_eq!(plural(0, "directory"), "0 directories");
        assert_eq!(plural(3_651, "day"), "3,651 days");
        assert_eq!((them(0), them(1), them(2)), ("them", "it", "them"));
    }

    #[test]
    fn sizes_have_two_digits_or_three() {
        for (number, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1_000, "1.0 kB"),
            (1_234_567, "1.2 MB"),
            (9_960, "10 kB"),
            (999_600, "1.0 MB"),
            (12_000_000_000, "12 GB"),
        ] {
            assert_eq!(bytes(number), text);
        }
    }

    #[test]
    fn ages_are_rounded_down() {
        let now = Timestamp::from_second(1_000_000_000).expect("in range");
        let age = |seconds: i64| ago(Timestamp::from_second(1_000_000_000 - seconds).expect("in range"), now);
        assert_eq!(age(0), "just now");
        assert_eq!(age(59), "59 seconds ago");
        assert_eq!(age(61), "1 minute ago");
        assert_eq!(age(7_300), "2 hours ago");
        assert_eq!(age(86_400 * 400), "1 year ago");
        assert_eq!(age(-3), "in the future");
    }

    #[test]
    fn odd_paths_are_quoted() {
        assert_eq!(path(b""), ".");
        assert_eq!(path(b"src/main.rs"), "src/main.rs");
        assert_eq!(path("grüße".as_bytes()), "grüße");
        assert_eq!(path(b"a\nb"), "\"a\\nb\"");
        assert_eq!(path(b"a\xffb"), "\"a\\377b\"");
        assert_eq!(path(b"esc\x1b[2J"), "\"esc\\033[2J\"");
        assert_eq!(path(b"say \"hi\""), "\"say \\\"hi\\\"\"");
    }

    #[test]
    fn names_that_look_like_others_are_marked() {
        assert_eq!(path("invoice\u{202e}fdp.exe".as_bytes()), "\"invoice\\342\\200\\256fdp.exe\"");
        assert_eq!(path("ma\u{200b}in".as_bytes()), "\"ma\\342\\200\\213in\"");
        assert_eq!(printable("ma\u{200b}in"), "ma\\u{200b}in");
        assert_eq!(line("ma\u{200b}in \u{1b}[31mred\u{1b}[0m"), "ma\\u{200b}in \u{1b}[31mred\u{1b}[0m");
        assert_eq!(line("a\u{1b}[2Jb\u{1b}]0;title\u{7}"), "a\\u{1b}[2Jb\\u{1b}]0;title\\u{7}");
        assert_eq!(line("grüße, 日本\tx"), "grüße, 日本\tx");
    }

    #[test]
    fn contents_do_not_steer_the_terminal() {
        assert_eq!(&*contents(b"+a\tb\n"), b"+a\tb\n");
        assert_eq!(&*contents("+grüße 👨\u{200d}👩\n".as_bytes()), "+grüße 👨\u{200d}👩\n".as_bytes());
        assert_eq!(&*contents(b"+\x1b[2J\x07\r\n"), b"+\\u{1b}[2J\\u{7}\\r\n");
        assert_eq!(&*contents("+x\u{202e}y\n".as_bytes()), b"+x\\u{202e}y\n");
        assert_eq!(&*contents(b"+\x9b2J\xff\n"), b"+\\x9b2J\xff\n");
    }

    #[test]
    fn what_lies_in_git_belongs_to_that_directory() {
        assert_eq!(git_part(b".git/HEAD"), Some(b".git".as_slice()));
        assert_eq!(git_part(b"a/.git"), Some(b"a/.git".as_slice()));
        assert_eq!(git_part(b"a/.gitignore"), None);
        assert_eq!(git_part(b"a.git/b"), None);
    }

    #[test]
    fn messages_do_not_steer_the_terminal() {
        assert_eq!(first_line("fix\nmore"), "fix");
        assert_eq!(printable("a\x1b[2Jb"), "a\\u{1b}[2Jb");
    }
}
