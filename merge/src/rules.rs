//! Rules that choose the merge strategy of a file by its path. The last matching rule decides.
//!
//! Rules come in layers: the built-in ones, then those of a project, then those of one call; a later layer takes precedence. They
//! are read from TOML. Errors state the line and the allowed values.

mod pattern;
mod read;

use std::fmt;

use crate::outcome::Sides;
use crate::way::{Way, is_binary};

use pattern::Pattern;
pub use read::{BadRules, Complaint};

/// Rules and groups of paths.
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

/// The location of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The name of its layer: a file, or the name that the reader passed.
    pub source: String,
    /// The line of its header, counted from 1.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, line {}", self.source, self.line)
    }
}

/// Paths that merge as a unit. The tree merge applies groups.
#[derive(Clone, Debug)]
pub struct Group {
    /// The location.
    pub place: Place,
    /// The name.
    pub name: String,
    paths: Vec<Pattern>,
}

impl Group {
    /// Returns whether a path belongs to the group.
    pub fn contains(&self, path: &[u8]) -> bool {
        self.paths.iter().any(|pattern| pattern.matches(path))
    }
}

/// The type of a file's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// No NUL among the first 8 KiB of any version.
    Text,
    /// A NUL among the first 8 KiB of at least one version.
    Binary,
}

impl Content {
    /// Returns the content type of three versions.
    pub fn of(sides: &Sides<'_>) -> Self {
        match [sides.base_or_empty(), sides.ours, sides.theirs].into_iter().any(is_binary) {
            true => Self::Binary,
            false => Self::Text,
        }
    }
}

/// The explanation for the choice of a strategy.
#[derive(Clone, Debug)]
pub struct Explained<'a> {
    /// The strategy.
    pub way: &'a Way,
    /// The rule that decided.
    pub place: &'a Place,
    /// The pattern of the rule that matched.
    pub pattern: &'a str,
    /// The rules that were checked before it, and why each did not match.
    pub tried: Vec<(&'a Place, NoMatch)>,
}

/// The reason why a rule did not match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoMatch {
    /// Its patterns do not match the path.
    Path,
    /// It applies to another content type.
    Content,
}

impl Rules {
    /// The text of the built-in rules.
    pub const BUILT_IN: &str = include_str!("rules/default.toml");

    /// Returns the built-in rules. They match every path.
    pub fn built_in() -> Self {
        Self::read(Self::BUILT_IN, "built in").expect("a test reads the rules that are built in")
    }

    /// Reads one layer of rules. `source` names the layer in locations.
    pub fn read(text: &str, source: &str) -> Result<Self, BadRules> {
        read::read(text, source)
    }

    /// Adds a layer that takes precedence over these rules.
    pub fn and(mut self, layer: Self) -> Self {
        self.rules.extend(layer.rules);
        self.groups.extend(layer.groups);
        self
    }

    /// Returns the strategy for a file, or `None` if no rule matches, which cannot happen with the built-in rules.
    pub fn choose(&self, path: &[u8], content: Content) -> Option<&Way> {
        self.explain(path, content).map(|explained| explained.way)
    }

    /// Returns the strategy for a file with an explanation.
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

    /// Returns the commands that regenerate files, with the places of their rules.
    pub fn commands(&self) -> impl Iterator<Item = (&str, &Place)> {
        let commands = self.rules.iter().map(|rule| (rule.way.options.command.as_str(), &rule.place));
        commands.filter(|(command, _)| !command.is_empty())
    }

    /// Returns whether there are any groups.
    pub fn has_groups(&self) -> bool {
        !self.groups.is_empty()
    }

    /// Returns the groups that a path belongs to.
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
    fn commands_are_listed_with_their_places() {
        let text = "[[rule]]\npath = \"a\"\nway = \"union\"\n\n[[rule]]\npath = \"lock\"\nway = \"regenerate\"\ncommand = \"make lock\"\n";
        let rules = Rules::built_in().and(Rules::read(text, "project").expect("rules"));
        let listed: Vec<_> = rules.commands().map(|(command, place)| (command, place.to_string())).collect();
        assert_eq!(listed, [("make lock", "project, line 5".to_owned())]);
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
