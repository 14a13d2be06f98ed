//! Renders an existing conflict as a text with markers.

use crate::job::is_binary;
use crate::many_sides::{self, LabelledText, ManySides};
use crate::markers::{Labels, MarkerStyle, Rendered, sanitise_label};
use crate::outcome::{MergeSettings, Outcome};
use crate::sides::Sides;
use crate::strategy::{MergeStrategy, merge};
use crate::structure::many_side_views;
use crate::text;

/// A competing version.
#[derive(Clone, Debug)]
pub struct ConflictSide<'a> {
    /// The label.
    pub label: String,
    /// The bytes; `None` if the side removed the file.
    pub bytes: Option<&'a [u8]>,
}

/// All versions of a conflict about one file.
#[derive(Clone, Debug)]
pub struct ConflictVersions<'a> {
    /// The competing versions, at least two.
    pub added: Vec<ConflictSide<'a>>,
    /// Their bases, one fewer; `None` for a base without the file.
    pub removed: Vec<Option<&'a [u8]>>,
}

impl ConflictVersions<'_> {
    /// Returns the tag and the length of the marker lines of this conflict.
    pub fn marks(&self) -> MarkerStyle {
        let added: Vec<_> = self.added.iter().map(|side| side.bytes).collect();
        MarkerStyle::of(&self.removed, &added)
    }

    /// Returns whether it can be rendered as one text: at least two sides have the file, and every version is a text within the
    /// size limit.
    pub fn is_text(&self, setting: &MergeSettings) -> bool {
        let all = self.added.iter().map(|side| side.bytes).chain(self.removed.iter().copied()).flatten();
        let is_one = |bytes: &[u8]| bytes.len() as u64 <= setting.limits.text_bytes_max && !is_binary(bytes);
        self.added.iter().filter(|side| side.bytes.is_some()).count() >= 2 && all.into_iter().all(is_one)
    }
}

/// Renders the versions as one text with markers, by structure if the strategy is structural, otherwise by lines. If neither
/// produces a clash, the whole differing range is between one pair of markers. Returns `None` for versions that are equal, too
/// large or binary.
pub fn render_conflict(
    versions: &ConflictVersions<'_>,
    strategy: Option<&MergeStrategy>,
    setting: &MergeSettings,
) -> Option<Rendered> {
    let mut there = versions.added.iter().filter_map(|side| side.bytes);
    let is_one_text = there.next().is_some_and(|first| there.all(|bytes| bytes == first));
    let gone: Vec<_> =
        versions.added.iter().filter(|side| side.bytes.is_none()).map(|side| side.label.as_str()).collect();
    if !versions.is_text(setting) || (is_one_text && gone.is_empty()) {
        return None;
    }
    let marks = versions.marks();
    if let ([ours, theirs], [base]) = (&versions.added[..], &versions.removed[..])
        && let (Some(our_bytes), Some(their_bytes)) = (ours.bytes, theirs.bytes)
    {
        let sides = Sides { base: *base, ours: our_bytes, theirs: their_bytes };
        let labels = Labels::new(&ours.label, "base", &theirs.label);
        return Some(show_two(&sides, strategy, &MergeSettings { labels, ..setting.clone() }, &marks));
    }
    let added = versions.added.iter().filter_map(|side| Some(LabelledText { label: &side.label, bytes: side.bytes? }));
    let added: Vec<_> = added.collect();
    let removed = versions.removed[..added.len() - 1].to_vec();
    let by_lines = ManySides { added, removed, gone };
    Some(show_structure(&by_lines, strategy, setting, &marks).unwrap_or_else(|| many_sides::render(&by_lines, &marks)))
}

fn show_two(
    sides: &Sides<'_>,
    strategy: Option<&MergeStrategy>,
    setting: &MergeSettings,
    marks: &MarkerStyle,
) -> Rendered {
    if let Some(strategy) = strategy.filter(|strategy| strategy.format().is_some())
        && let Outcome::Conflicted(conflicted) = merge(strategy, sides, setting)
    {
        return conflicted.rendered;
    }
    match text::merge(sides, &setting.labels) {
        Outcome::Conflicted(conflicted) => conflicted.rendered,
        _ => text::whole(sides, &setting.labels, marks),
    }
}

/// Renders more than two sides by structure, if they all have the same base.
fn show_structure(
    many: &ManySides<'_>,
    strategy: Option<&MergeStrategy>,
    setting: &MergeSettings,
    marks: &MarkerStyle,
) -> Option<Rendered> {
    let strategy = strategy?;
    let format = strategy.format()?;
    let base = many.removed.first().copied().flatten()?;
    if many.removed.iter().any(|removed| *removed != Some(base)) {
        return None;
    }
    let sides: Vec<_> = many.added.iter().map(|side| side.bytes).collect();
    let limit = strategy.options.bytes_max.unwrap_or(setting.limits.structure_bytes_max);
    if sides.iter().chain([&base]).any(|bytes| bytes.len() as u64 > limit) {
        return None;
    }
    let views = many_side_views(base, &sides, &strategy.options, format)?;
    let added = many.added.iter().zip(&views.sides);
    let added = added.map(|(side, view)| LabelledText { label: side.label, bytes: view.as_bytes() }).collect();
    let removed = vec![Some(views.base.as_bytes()); many.removed.len()];
    Some(many_sides::render(&ManySides { added, removed, gone: many.gone.clone() }, marks))
}

/// Applies an edit of a conflict's file to the file of the same conflict with more versions. Returns `None` if the edited part
/// differs between the two.
pub fn carry_edit(before: &Rendered, after: &Rendered, edited: &[u8]) -> Option<Vec<u8>> {
    let sides = Sides { base: Some(&before.bytes), ours: edited, theirs: &after.bytes };
    match text::merge(&sides, &Labels::default()) {
        Outcome::Merged(bytes) => Some(bytes),
        Outcome::Conflicted(_) | Outcome::Unable(_) => None,
    }
}

/// Returns the label of a side: the name of its workspace, if known, and the name of the side.
pub fn side_label(name: &str, word: &str) -> String {
    if name.is_empty() || name == word { word.to_owned() } else { sanitise_label(&format!("{name} ({word})")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::markers::{EditState, read_edit};

    const LABELS: [&str; 5] = ["main (ours)", "b (side-2)", "c (side-3)", "d (side-4)", "e (theirs)"];

    fn shown(strategy: &str, base: Option<&str>, added: &[Option<&str>]) -> Option<String> {
        let side = |(label, bytes): (&&str, &Option<&'static str>)| ConflictSide {
            label: (*label).to_owned(),
            bytes: bytes.map(str::as_bytes),
        };
        let added: Vec<Option<&'static str>> =
            added.iter().map(|side| side.map(|text| &*Box::leak(text.to_owned().into_boxed_str()))).collect();
        let base = base.map(|text| &*Box::leak(text.to_owned().into_boxed_str()));
        let versions = ConflictVersions {
            added: LABELS.iter().zip(&added).map(side).collect(),
            removed: vec![base.map(str::as_bytes); added.len() - 1],
        };
        let rendered = render_conflict(&versions, MergeStrategy::named(strategy).as_ref(), &MergeSettings::default())?;
        assert_eq!(rendered.marks(), versions.marks(), "marks follow from the versions alone");
        assert_eq!(read_edit(&rendered.bytes, &rendered), EditState::Untouched);
        for bytes in added.iter().flatten() {
            assert_eq!(read_edit(bytes.as_bytes(), &rendered), EditState::Resolved);
        }
        Some(String::from_utf8(rendered.bytes).expect("text").replace(&rendered.tag, "TAG"))
    }

    /// Removes the common indentation of lines.
    fn dedent(text: &str) -> String {
        let lines: Vec<_> = text.lines().skip(1).collect();
        let (last, lines) = lines.split_last().expect("lines");
        assert!(last.trim().is_empty());
        let indent = lines.iter().map(|line| line.len() - line.trim_start().len()).min().unwrap_or(0);
        lines.iter().map(|line| format!("{}\n", &line[indent..])).collect()
    }

    #[test]
    fn versions_that_lines_would_merge_are_shown_as_one_conflict() {
        let text = shown("text", Some("a\nb\nc\nd\n"), &[Some("1\nb\nc\nd\n"), Some("a\nb\nc\n2\n")]).expect("text");
        assert_eq!(text.matches("<<<<<<<").count(), 1, "{text}");
        assert!(shown("text", None, &[Some("1\n"), Some("2\n")]).is_some());
        assert!(shown("text", Some("x"), &[Some("same"), Some("same")]).is_none());
        assert!(shown("text", Some("x"), &[Some("one\0"), Some("two")]).is_none());
        assert!(shown("text", Some("x"), &[Some(""), Some("two")]).is_some());
        assert!(shown("text", Some("x"), &[Some("one"), None]).is_none());
    }

    #[test]
    fn a_conflict_of_five_sides_names_them_all_and_merges_the_rest() {
        let side = |word: &str| format!("first\n{word}\nlast\n");
        let sides = [side("A"), side("B"), "first by c\nC\nlast\n".to_owned(), side("D"), side("A") + "by e\n"];
        let sides: Vec<_> = sides.iter().map(|side| Some(side.as_str())).collect();
        let text = shown("text", Some("first\nbase\nlast\n"), &sides).expect("text");
        assert_eq!(
            text,
            dedent(
                r#"
            <<<<<<< main (ours), e (theirs) [amalgam TAG 1/1]
            first
            A
            ||||||| base [amalgam TAG 1/1]
            first
            base
            ======= b (side-2) [amalgam TAG 1/1]
            first
            B
            ======= c (side-3) [amalgam TAG 1/1]
            first by c
            C
            ======= d (side-4) [amalgam TAG 1/1]
            first
            D
            >>>>>>> end of 4 versions [amalgam TAG 1/1]
            last
            by e
        "#
            )
        );
    }

    #[test]
    fn a_region_that_two_of_many_sides_dispute_looks_as_with_two() {
        let base = "1\n2\n3\n4\n5\n6\n7\n8\n9\n";
        let (b, c, d) = (base.replace('2', "two"), base.replace('2', "TWO"), base.replace('8', "eight"));
        let text = shown("text", Some(base), &[Some(base), Some(&b), Some(&c), Some(&d)]).expect("text");
        assert_eq!(
            text,
            dedent(
                r#"
            1
            <<<<<<< b (side-2) [amalgam TAG 1/1]
            two
            ||||||| base [amalgam TAG 1/1]
            2
            =======
            TWO
            >>>>>>> c (side-3) [amalgam TAG 1/1]
            3
            4
            5
            6
            7
            eight
            9
        "#
            )
        );
    }

    #[test]
    fn a_side_that_removed_the_file_is_named_in_each_region() {
        let text = shown("text", Some("a\n"), &[Some("b\n"), None, Some("c\n")]).expect("text");
        assert_eq!(
            text,
            dedent(
                r#"
            <<<<<<< main (ours) [amalgam TAG 1/1]
            b
            ||||||| base [amalgam TAG 1/1]
            a
            ======= c (side-3) [amalgam TAG 1/1]
            c
            ======= b (side-2) removed the file [amalgam TAG 1/1]
            >>>>>>> end of 3 versions [amalgam TAG 1/1]
        "#
            )
        );
        assert!(
            shown("text", Some("a\n"), &[Some("b\n"), None, Some("b\n")]).expect("text").contains("removed the file")
        );
    }

    #[test]
    fn documents_are_shown_at_the_value_that_clashes() {
        let base = "{\n  \"name\": \"x\",\n  \"port\": 1,\n  \"host\": \"h\",\n  \"on\": false\n}\n";
        let port = |port: &str| base.replace("1", port);
        let (a, b) = (port("2").replace("\"h\"", "\"ha\""), port("3").replace("\"x\"", "\"xb\""));
        let two = shown("json", Some(base), &[Some(&a), Some(&b)]).expect("text");
        assert_eq!(
            two,
            dedent(
                r#"
            {
              "name": "xb",
            <<<<<<< main (ours) [amalgam TAG 1/1]
              "port": 2,
            ||||||| base [amalgam TAG 1/1]
              "port": 1,
            =======
              "port": 3,
            >>>>>>> b (side-2) [amalgam TAG 1/1]
              "host": "ha",
              "on": false
            }
        "#
            )
        );
        let (c, d) = (port("4").replace("false", "true"), base.replace("\"h\"", "\"hd\""));
        let four = shown("json", Some(base), &[Some(&a), Some(&b), Some(&c), Some(&d)]).expect("text");
        assert_eq!(
            four,
            dedent(
                r#"
            {
              "name": "xb",
            <<<<<<< main (ours) [amalgam TAG 1/1]
              "port": 2,
              "host": "ha",
            ||||||| base [amalgam TAG 1/1]
              "port": 1,
              "host": "h",
            ======= b (side-2) [amalgam TAG 1/1]
              "port": 3,
              "host": "h",
            ======= c (side-3) [amalgam TAG 1/1]
              "port": 4,
              "host": "h",
            ======= d (side-4) [amalgam TAG 1/1]
              "port": 1,
              "host": "hd",
            >>>>>>> end of 4 versions [amalgam TAG 1/1]
              "on": true
            }
        "#
            )
        );
    }

    #[test]
    fn yaml_and_toml_of_three_sides_are_shown_at_the_value_that_clashes() {
        for (strategy, is) in [("yaml", ": "), ("toml", " = ")] {
            let text = |name: &str, port: &str, host: &str| format!("name{is}{name}\nport{is}{port}\nhost{is}{host}\n");
            let base = text("1", "1", "1");
            let sides = [text("2", "2", "1"), text("1", "3", "1"), text("1", "4", "5")];
            let sides: Vec<_> = sides.iter().map(|side| Some(side.as_str())).collect();
            let shown = shown(strategy, Some(&base), &sides).expect("text");
            assert!(shown.starts_with(&format!("name{is}2\n<<<<<<<")), "{shown}");
            assert!(shown.ends_with(&format!("]\nhost{is}5\n")), "{shown}");
            assert_eq!(shown.matches("port").count(), 4, "{shown}");
        }
    }

    #[test]
    fn what_sides_add_to_a_list_without_names_is_shown_with_each_of_them() {
        let text = |element: &str| format!("a: 1\nlist:\n  - x\n  - y\n{element}b: 2\n");
        let base = text("");
        let sides = [text("  - one\n"), text("  - two\n"), text("  - three\n").replace("a: 1", "a: 3")];
        let sides: Vec<_> = sides.iter().map(|side| Some(side.as_str())).collect();
        let shown = shown("yaml", Some(&base), &sides).expect("text");
        assert_eq!(
            shown,
            dedent(
                r#"
            a: 3
            list:
              - x
              - y
            <<<<<<< main (ours) [amalgam TAG 1/1]
              - one
            ||||||| base [amalgam TAG 1/1]
            ======= b (side-2) [amalgam TAG 1/1]
              - two
            ======= c (side-3) [amalgam TAG 1/1]
              - three
            >>>>>>> end of 3 versions [amalgam TAG 1/1]
            b: 2
        "#
            )
        );
    }

    #[test]
    fn labels_alone_do_not_make_another_conflict() {
        let versions = |label: &str| ConflictVersions {
            added: vec![
                ConflictSide { label: label.to_owned(), bytes: Some(b"1\n") },
                ConflictSide { label: "b (side-2)".to_owned(), bytes: Some(b"2\n") },
                ConflictSide { label: "theirs".to_owned(), bytes: Some(b"3\n") },
            ],
            removed: vec![Some(b"0\n"), Some(b"0\n")],
        };
        let render = |label| render_conflict(&versions(label), None, &MergeSettings::default()).expect("text");
        let (one, other) = (render("ours"), render("renamed (ours)"));
        assert_ne!(one.bytes, other.bytes);
        assert_eq!(read_edit(&one.bytes, &other), EditState::Untouched);
        let edited = [&one.bytes[..], b"more\n"].concat();
        assert_eq!(read_edit(&edited, &other), EditState::StillHas(1));
        // Text that a user added to a marker line is not a label.
        let noted = String::from_utf8(one.bytes).expect("text").replacen("<<<<<<< ours", "<<<<<<< ours, see #7", 1);
        assert_eq!(read_edit(noted.as_bytes(), &other), EditState::StillHas(1));
    }
}
