//! The table of merge strategies. A new strategy is a file and a row in this table.

use std::fmt;

use crate::outcome::{Done, Outcome, Setting, Sides, Step, Version, Why};
use crate::structure::Format;
use crate::{crdt, json, take, text, toml, union, yaml};

/// The input of a strategy.
pub(crate) struct Job<'a> {
    pub(crate) sides: Sides<'a>,
    pub(crate) setting: &'a Setting,
    pub(crate) options: &'a Options,
}

struct Row {
    name: &'static str,
    what: &'static str,
    /// The supported options, besides `max_bytes`.
    takes: &'static [&'static str],
    run: fn(&Job<'_>) -> Outcome,
    /// The fallback strategy if this one is unable.
    then: Option<&'static str>,
}

const STRUCTURE: &[&str] = &["keys", "lists"];

const WAYS: &[Row] = &[
    Row { name: "text", what: "by lines", takes: &[], run: text::run, then: None },
    Row { name: "union", what: "by lines; what both added stays", takes: &[], run: union::run, then: None },
    Row { name: "json", what: "by fields and elements", takes: STRUCTURE, run: json::run, then: Some("text") },
    Row {
        name: "jsonc",
        what: "by fields and elements, with comments",
        takes: STRUCTURE,
        run: json::run_with_comments,
        then: Some("text"),
    },
    Row { name: "yaml", what: "by fields and elements", takes: STRUCTURE, run: yaml::run, then: Some("text") },
    Row { name: "toml", what: "by fields and elements", takes: STRUCTURE, run: toml::run, then: Some("text") },
    Row { name: "crdt", what: "JSON without conflicts", takes: &["keys", "texts"], run: crdt::run, then: Some("json") },
    Row { name: "last-writer", what: "the later version", takes: &[], run: take::last_writer, then: None },
    Row { name: "priority", what: "by who made it", takes: &["agents"], run: take::priority, then: None },
    Row { name: "ours", what: "always ours", takes: &[], run: take::ours, then: None },
    Row { name: "theirs", what: "always theirs", takes: &[], run: take::theirs, then: None },
    Row { name: "regenerate", what: "by a command", takes: &["command", "inputs"], run: take::regenerate, then: None },
    Row { name: "review", what: "never by itself", takes: &[], run: take::review, then: None },
];

/// How a list without keys handles insertions of both sides at one position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lists {
    /// As a conflict, because their order is unknown.
    #[default]
    Conflict,
    /// Keeps both, the smaller one first.
    Both,
}

/// The options of a strategy in a rule. Each strategy uses some of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The fields that identify elements of a list; the first field that all elements have is used. If empty: `id`, `key`,
    /// `name`.
    pub keys: Vec<String>,
    /// How to handle a list without keys.
    pub lists: Lists,
    /// Paths of texts that merge by characters, for example `/body`; `*` matches any name.
    pub texts: Vec<String>,
    /// Agents in order of precedence.
    pub agents: Vec<String>,
    /// The command that generates the file.
    pub command: String,
    /// The files that the command reads.
    pub inputs: Vec<String>,
    /// Maximum size of a version in bytes, if it differs from the setting.
    pub bytes_max: Option<u64>,
}

/// A merge strategy with its options.
#[derive(Clone)]
pub struct Way {
    row: &'static Row,
    /// The options from its rule.
    pub options: Options,
}

impl Way {
    /// Returns the strategy with this name, without options.
    pub fn named(name: &str) -> Option<Self> {
        let row = WAYS.iter().find(|row| row.name == name)?;
        Some(Self { row, options: Options::default() })
    }

    /// Returns the name.
    pub fn name(&self) -> &'static str {
        self.row.name
    }

    /// Returns a short description.
    pub fn what(&self) -> &'static str {
        self.row.what
    }

    /// Returns the format whose structure it follows, or `None` if it is not structural.
    pub(crate) fn format(&self) -> Option<&'static Format> {
        Some(match self.name() {
            "json" => &json::FORMAT,
            "jsonc" => &json::WITH_COMMENTS,
            "yaml" => &yaml::FORMAT,
            "toml" => &toml::FORMAT,
            _ => return None,
        })
    }

    /// Returns the supported options.
    pub fn takes(&self) -> &'static [&'static str] {
        self.row.takes
    }

    /// Returns all names, in the order of the table.
    pub fn names() -> impl Iterator<Item = &'static str> {
        WAYS.iter().map(|row| row.name)
    }

    fn then(&self) -> Option<Self> {
        Some(Self { options: self.options.clone(), ..Self::named(self.row.then?)? })
    }
}

impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Way").field("name", &self.row.name).field("options", &self.options).finish()
    }
}

impl PartialEq for Way {
    fn eq(&self, other: &Self) -> bool {
        self.row.name == other.row.name && self.options == other.options
    }
}

/// Merges three versions by one strategy. Equal versions, and versions of which only one changed, need no strategy.
pub fn merge(way: &Way, sides: &Sides<'_>, setting: &Setting) -> Outcome {
    if sides.ours == sides.theirs || sides.base == Some(sides.theirs) {
        return Outcome::Merged(sides.ours.to_vec());
    }
    if sides.base == Some(sides.ours) {
        return Outcome::Merged(sides.theirs.to_vec());
    }
    (way.row.run)(&Job { sides: *sides, setting, options: &way.options })
}

/// Merges by a strategy and its fallbacks: structural strategies fall back to lines, and lines have no fallback.
pub fn merge_down(way: &Way, sides: &Sides<'_>, setting: &Setting) -> Done {
    let mut way = way.clone();
    let mut before = Vec::new();
    loop {
        let outcome = merge(&way, sides, setting);
        match (outcome, way.then()) {
            (Outcome::Unable(why), Some(next)) => {
                before.push(Step { way: way.name(), why });
                way = next;
            }
            (outcome, _) => return Done { outcome, way: way.name(), before },
        }
    }
}

impl Job<'_> {
    /// Rejects versions that are too large for a strategy that compares lines, or binary.
    pub(crate) fn check_text(&self) -> Result<(), Why> {
        self.check_size(self.setting.limits.text_bytes_max)?;
        let versions = [(Version::Base, self.sides.base_or_empty()), (Version::Ours, self.sides.ours)];
        for (version, bytes) in versions.into_iter().chain([(Version::Theirs, self.sides.theirs)]) {
            if is_binary(bytes) {
                return Err(Why::Binary { version });
            }
        }
        Ok(())
    }

    /// Rejects versions that are too large for a strategy that parses the structure.
    pub(crate) fn check_structure(&self) -> Result<(), Why> {
        self.check_size(self.setting.limits.structure_bytes_max)
    }

    fn check_size(&self, limit: u64) -> Result<(), Why> {
        // Positions are stored in 32 bits.
        let bytes_max = self.options.bytes_max.unwrap_or(limit).min(u64::from(u32::MAX / 2));
        match self.sides.bytes_max() {
            bytes if bytes > bytes_max => Err(Why::TooLarge { bytes, bytes_max }),
            _ => Ok(()),
        }
    }
}

/// Returns whether bytes are binary: they have a NUL among the first 8 KiB.
pub(crate) fn is_binary(bytes: &[u8]) -> bool {
    memchr::memchr(0, &bytes[..bytes.len().min(8 << 10)]).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_falls_to_one_that_is_there_and_in_the_end_to_none() {
        for name in Way::names() {
            let first = Way::named(name).expect("a name of the table");
            let chain = std::iter::successors(Some(first), Way::then);
            assert!(chain.take(WAYS.len() + 1).count() <= 3, "{name}");
            assert!(WAYS.iter().filter(|row| row.name == name).count() == 1, "{name}");
        }
        assert!(WAYS.iter().filter_map(|row| row.then).all(|then| Way::named(then).is_some()));
    }

    #[test]
    fn one_changed_side_is_taken_whatever_the_way() {
        for name in Way::names() {
            let way = Way::named(name).expect("a name of the table");
            let setting = Setting::default();
            for (base, ours, theirs, expected) in
                [("a", "a", "b", "b"), ("a", "b", "a", "b"), ("a", "b", "b", "b"), ("\0", "\0", "\0x", "\0x")]
            {
                let sides = Sides { base: Some(base.as_bytes()), ours: ours.as_bytes(), theirs: theirs.as_bytes() };
                assert_eq!(merge(&way, &sides, &setting), Outcome::Merged(expected.into()), "{name}");
            }
        }
    }
}
