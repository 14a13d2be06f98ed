//! A conflict that is there already, as a text with markers.

use crate::markers::Rendered;
use crate::outcome::{Outcome, Setting, Sides};
use crate::text;
use crate::way::{Job, Options};

/// The three versions as one text with markers. Where lines alone would not clash, all that differs stands between one pair
/// of them. Nothing for versions that are equal, too large, or no text.
pub fn show(sides: &Sides<'_>, setting: &Setting) -> Option<Rendered> {
    let options = Options::default();
    let is_text = Job { sides: *sides, setting, options: &options }.check_text().is_ok();
    if !is_text || sides.ours == sides.theirs {
        return None;
    }
    Some(match text::merge(sides, &setting.labels) {
        Outcome::Conflicted(conflicted) => conflicted.rendered,
        _ => text::whole(sides, &setting.labels),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::markers::{Parsed, parse};

    fn shown(base: Option<&str>, ours: &str, theirs: &str) -> Option<String> {
        let sides = Sides { base: base.map(str::as_bytes), ours: ours.as_bytes(), theirs: theirs.as_bytes() };
        let rendered = show(&sides, &Setting::default())?;
        assert_ne!(parse(ours.as_bytes(), &rendered), Parsed::Untouched);
        Some(String::from_utf8(rendered.bytes).expect("text"))
    }

    #[test]
    fn versions_that_lines_would_merge_are_shown_as_one_conflict() {
        let text = shown(Some("a\nb\nc\nd\n"), "1\nb\nc\nd\n", "a\nb\nc\n2\n").expect("text");
        assert_eq!(text.matches("<<<<<<<").count(), 1, "{text}");
        assert!(shown(None, "1\n", "2\n").is_some());
        assert!(shown(Some("x"), "same", "same").is_none());
        assert!(shown(Some("x"), "one\0", "two").is_none());
        assert!(shown(Some("x"), "", "two").is_some());
    }
}
