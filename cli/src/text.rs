//! Counts, sizes, times, names and paths as people read them. Nothing is written here.

use std::borrow::Cow;
use std::fmt::Write as _;

use amalgam_proto::v1;
use jiff::Timestamp;
use jiff::tz::TimeZone;

/// `79,314`.
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

/// `1 file`, `2 files`.
pub fn plural(number: u64, one: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        // `directories`, but `days`.
        _ if one.ends_with('y') && !["ay", "ey", "oy", "uy"].iter().any(|end| one.ends_with(end)) => {
            format!("{} {}ies", count(number), one.trim_end_matches('y'))
        }
        _ => format!("{} {one}s", count(number)),
    }
}

/// `1.2 MB`: thousands, as disks are sold.
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

/// The moment that a time of the wire means.
pub fn moment(time: Option<&prost_types::Timestamp>) -> Timestamp {
    time.and_then(|time| Timestamp::new(time.seconds, time.nanos).ok()).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// `3 minutes ago`.
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

/// How long it is until then: `3 hours`.
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

/// A moment on the clock on the wall.
pub fn wall_clock(time: Timestamp) -> String {
    time.to_zoned(TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S %:z").to_string()
}

/// What follows `workspaces/`, `labels/` or the like.
pub fn id(name: &str) -> &str {
    name.split_once('/').map_or(name, |(_, id)| id)
}

/// The beginning of a snapshot's id, as it is shown.
pub fn short(name: &str) -> &str {
    let id = id(name);
    id.get(..8).unwrap_or(id)
}

/// Text of others, without what would steer the terminal.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.chars().any(steers) {
        return Cow::Borrowed(text);
    }
    let show = |c: char| if steers(c) { c.escape_default().to_string() } else { c.to_string() };
    Cow::Owned(text.chars().map(show).collect())
}

fn steers(c: char) -> bool {
    c.is_control() && c != '\n' && c != '\t'
}

/// The first line of a message.
pub fn first_line(message: &str) -> Cow<'_, str> {
    printable(message.lines().next().unwrap_or(""))
}

/// A path as text. One that holds odd bytes is put in quotes with escapes, as git does.
pub fn path(path: &[u8]) -> Cow<'_, str> {
    let plain = str::from_utf8(path).ok().filter(|text| !text.chars().any(|c| c.is_control() || "\"\\".contains(c)));
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
                c if c.is_control() => push_octal(&mut text, c.encode_utf8(&mut [0; 4]).as_bytes()),
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

/// The part of a path that ends with its first name `.git`; nothing if it has none.
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

/// The letter of a change in a list.
pub fn letter(kind: v1::ChangeKind) -> char {
    match kind {
        v1::ChangeKind::Added => 'A',
        v1::ChangeKind::Removed => 'D',
        v1::ChangeKind::Renamed => 'R',
        v1::ChangeKind::KindChanged => 'T',
        v1::ChangeKind::Metadata => 'm',
        v1::ChangeKind::Modified | v1::ChangeKind::Unspecified => 'M',
    }
}

/// The word for a change in JSON.
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

/// The word for a kind of entry.
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

/// The word for a notice's reason.
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
        assert_eq!(path(b"src/main.rs"), "src/main.rs");
        assert_eq!(path("grüße".as_bytes()), "grüße");
        assert_eq!(path(b"a\nb"), "\"a\\nb\"");
        assert_eq!(path(b"a\xffb"), "\"a\\377b\"");
        assert_eq!(path(b"esc\x1b[2J"), "\"esc\\033[2J\"");
        assert_eq!(path(b"say \"hi\""), "\"say \\\"hi\\\"\"");
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
