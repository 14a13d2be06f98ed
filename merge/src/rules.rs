//! Which way a file is merged: rules by path, the last that matches decides.
//!
//! Rules come in layers: those built in, then those of a project, then those of one call; a later layer goes before an
//! earlier one. They are read from TOML, and what is wrong with them is said with its line and what may stand there.

mod pattern;
mod read;

use std::fmt;

use crate::outcome::Sides;
use crate::way::{Way, is_binary};

use pattern::Pattern;
pub use read::{BadRules, Complaint};

/// Rules, and groups of paths.
#[derive(Clone, Debug)]
pub struct Rules {
    rules: Vec<Rule>,
    groups: Vec<Group>,
}

#[derive(Clone, Debug)]
struct Rule {
    place: Place,
    paths: Vec<Pattern>,
    only: Option<Content>,
    way: Way,
}

/// Where a rule stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The name of its layer: a file, or whatever its reader called it.
    pub source: String,
    /// The line of its header, counted from 1.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, line {}", self.source, self.line)
    }
}

/// Paths that merge as a unit. Whoever merges trees applies them.
#[derive(Clone, Debug)]
pub struct Group {
    /// Where it stands.
    pub place: Place,
    /// What it is called.
    pub name: String,
    paths: Vec<Pattern>,
}

impl Group {
    /// Whether a path belongs to it.
    pub fn contains(&self, path: &[u8]) -> bool {
        self.paths.iter().any(|pattern| pattern.matches(path))
    }
}

/// What sort of content a file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Without a NUL among the first 8 KiB.
    Text,
    /// With one, in any version.
    Binary,
}

impl Content {
    /// What three versions are.
    pub fn of(sides: &Sides<'_>) -> Self {
        match [sides.base_or_empty(), sides.ours, sides.theirs].into_iter().any(is_binary) {
            true => Self::Binary,
            false => Self::Text,
        }
    }
}

/// Why a file is merged the way it is.
#[derive(Clone, Debug)]
pub struct Explained<'a> {
    /// The way.
    pub way: &'a Way,
    /// The rule that decided.
    pub place: &'a Place,
    /// The pattern of it that matched.
    pub pattern: &'a str,
    /// The rules that were looked at before it, and why each was not it.
    pub tried: Vec<(&'a Place, NoMatch)>,
}

/// Why a rule was not it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoMatch {
    /// Its patterns do not match the path.
    Path,
    /// It is about content of another sort.
    Content,
}

impl Rules {
    /// The rules that are built in, as they are written.
    pub const BUILT_IN: &str = include_str!("rules/default.toml");

    /// The rules that are built in. They match every path.
    pub fn built_in() -> Self {
        Self::read(Self::BUILT_IN, "built in").expect("a test reads the rules that are built in")
    }

    /// Reads one layer of rules. The source is what places in it are called by.
    pub fn read(text: &str, source: &str) -> Result<Self, BadRules> {
        read::read(text, source)
    }

    /// These rules and a layer that goes before them.
    pub fn and(mut self, layer: Self) -> Self {
        self.rules.extend(layer.rules);
        self.groups.extend(layer.groups);
        self
    }

    /// The way in which a file is merged; nothing if no rule matches, which the built-in ones prevent.
    pub fn choose(&self, path: &[u8], content: Content) -> Option<&Way> {
        self.explain(path, content).map(|explained| explained.way)
    }

    /// The same, with the reasons.
    pub fn explain(&self, path: &[u8], content: Content) -> Option<Explained<'_>> {
        let mut tried = Vec::new();
        for rule in self.rules.iter().rev() {
            let Some(pattern) = rule.paths.iter().find(|pattern| pattern.matches(path)) else {
                tried.push((&rule.place, NoMatch::Path));
                continue;
            };
            if rule.only.is_some_and(|only| only != content) {
                tried.push((&rule.place, NoMatch::Content));
                continue;
            }
            return Some(Explained { way: &rule.way, place: &rule.place, pattern: pattern.text(), tried });
        }
        None
    }

    /// Whether a rule has a command that makes files.
    pub fn has_commands(&self) -> bool {
        self.rules.iter().any(|rule| rule.way.name() == "regenerate")
    }

    /// Whether there are groups at all.
    pub fn has_groups(&self) -> bool {
        !self.groups.is_empty()
    }

    /// The groups that a path belongs to.
    pub fn groups_of(&self, path: &[u8]) -> impl Iterator<Item = &Group> {
        self.groups.iter().filter(move |group| group.contains(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(rules: &Rules, path: &str) -> &'static str {
        rules.choose(path.as_bytes(), Content::Text).expect("a rule for everything").name()
    }

    #[test]
    fn the_rules_that_are_built_in_know_common_files() {
        let rules = Rules::built_in();
        for (path, expected) in [
            ("src/main.rs", "text"),
            ("package.json", "json"),
            ("deep/er/tsconfig.json", "jsonc"),
            ("tsconfig.build.json", "jsonc"),
            (".vscode/settings.json", "jsonc"),
            ("web/.vscode/launch.json", "jsonc"),
            ("vscode/settings.json", "json"),
            ("deep/wrangler.jsonc", "jsonc"),
            (".github/workflows/ci.yml", "yaml"),
            ("compose.yaml", "yaml"),
            ("crates/a/Cargo.toml", "toml"),
            ("state/board.crdt.json", "crdt"),
            ("Cargo.lock", "text"),
            ("web/package-lock.json", "text"),
            ("pnpm-lock.yaml", "text"),
            ("CHANGELOG.md", "text"),
        ] {
            assert_eq!(way(&rules, path), expected, "{path}");
        }
        assert_eq!(rules.choose(b"a.json", Content::Binary).map(Way::name), Some("review"));
        assert_eq!(rules.choose(b"\xff\xfe.json", Content::Text).map(Way::name), Some("json"));
    }

    #[test]
    fn the_last_rule_that_matches_decides_and_can_say_why() {
        let text =
            "[[rule]]\npath = \"logs/\"\nway = \"union\"\n\n[[rule]]\npath = \"/logs/audit.*\"\nway = \"review\"\n";
        let rules = Rules::built_in().and(Rules::read(text, "merge.toml").expect("rules"));
        assert_eq!(way(&rules, "logs/a/b.log"), "union");
        assert_eq!(way(&rules, "logs/audit.json"), "review");
        assert_eq!(way(&rules, "x/logs/audit.json"), "union");
        let explained = rules.explain(b"logs/b.log", Content::Text).expect("a rule");
        assert_eq!((explained.place.to_string().as_str(), explained.pattern), ("merge.toml, line 1", "logs/"));
        let tried: Vec<_> = explained.tried.iter().map(|(place, why)| (place.to_string(), *why)).collect();
        assert_eq!(tried, [("merge.toml, line 5".to_owned(), NoMatch::Path)]);
        let explained = rules.explain(b"a.rs", Content::Text).expect("a rule");
        assert!(explained.tried.iter().any(|(_, why)| *why == NoMatch::Content));
    }

    #[test]
    fn groups_of_paths_are_carried() {
        let text = "[[group]]\nname = \"manifest and lock\"\npaths = [\"Cargo.toml\", \"Cargo.lock\"]\n";
        let rules = Rules::built_in().and(Rules::read(text, "merge.toml").expect("rules"));
        let names = |path: &[u8]| rules.groups_of(path).map(|group| group.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(b"a/Cargo.lock"), ["manifest and lock"]);
        assert!(names(b"a/Cargo.json").is_empty());
    }
}
