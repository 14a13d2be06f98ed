//! Rules that choose the merge strategy of a file by its path. The last matching rule decides.
//!
//! Rules come in layers: the built-in ones, then those of a project, then those of one call; a later layer takes precedence. They
//! are read from TOML. Errors state the line and the allowed values.

mod pattern;
mod read;
mod rule;

use crate::strategy::MergeStrategy;

pub use read::{BadRules, Complaint};
pub use rule::{Content, Group, RuleLocation, Rules};

/// The explanation for the choice of a strategy.
#[derive(Clone, Debug)]
pub struct Explanation<'a> {
    /// The strategy.
    pub strategy: &'a MergeStrategy,
    /// The rule that decided.
    pub location: &'a RuleLocation,
    /// The pattern of the rule that matched.
    pub pattern: &'a str,
    /// The rules that were checked before it, and why each did not match.
    pub tried: Vec<(&'a RuleLocation, NoMatch)>,
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
    pub fn with_layer(mut self, layer: Self) -> Self {
        self.rules.extend(layer.rules);
        self.groups.extend(layer.groups);
        self
    }

    /// Returns the strategy for a file, or `None` if no rule matches, which cannot happen with the built-in rules.
    pub fn choose(&self, path: &[u8], content: Content) -> Option<&MergeStrategy> {
        self.explain(path, content).map(|explained| explained.strategy)
    }

    /// Returns the strategy for a file with an explanation.
    pub fn explain(&self, path: &[u8], content: Content) -> Option<Explanation<'_>> {
        let mut tried = Vec::new();
        for rule in self.rules.iter().rev() {
            let Some(pattern) = rule.paths.iter().find(|pattern| pattern.matches(path)) else {
                tried.push((&rule.location, NoMatch::Path));
                continue;
            };
            if rule.only_type.is_some_and(|only| only != content) {
                tried.push((&rule.location, NoMatch::Content));
                continue;
            }
            return Some(Explanation {
                strategy: &rule.strategy,
                location: &rule.location,
                pattern: pattern.text(),
                tried,
            });
        }
        None
    }

    /// Returns the commands that regenerate files, with the places of their rules.
    pub fn commands(&self) -> impl Iterator<Item = (&str, &RuleLocation)> {
        let commands = self.rules.iter().map(|rule| (rule.strategy.options.command.as_str(), &rule.location));
        commands.filter(|(command, _)| !command.is_empty())
    }

    /// Returns whether a rule has a command that regenerates files.
    pub fn has_commands(&self) -> bool {
        self.rules.iter().any(|rule| rule.strategy.name() == "regenerate")
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

    fn strategy(rules: &Rules, path: &str) -> &'static str {
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
            (".git/index", "ours"),
            ("vendor/lib/.git/refs/heads/main.json", "ours"),
            (".gitignore", "text"),
            ("compose.yaml", "yaml"),
            ("crates/a/Cargo.toml", "toml"),
            ("state/board.crdt.json", "crdt"),
            ("Cargo.lock", "text"),
            ("web/package-lock.json", "text"),
            ("pnpm-lock.yaml", "text"),
            ("CHANGELOG.md", "text"),
        ] {
            assert_eq!(strategy(&rules, path), expected, "{path}");
        }
        assert_eq!(rules.choose(b"a.json", Content::Binary).map(MergeStrategy::name), Some("review"));
        assert_eq!(rules.choose(b"\xff\xfe.json", Content::Text).map(MergeStrategy::name), Some("json"));
    }

    #[test]
    fn the_last_rule_that_matches_decides_and_can_say_why() {
        let text =
            "[[rule]]\npath = \"logs/\"\nway = \"union\"\n\n[[rule]]\npath = \"/logs/audit.*\"\nway = \"review\"\n";
        let rules = Rules::built_in().with_layer(Rules::read(text, "merge.toml").expect("rules"));
        assert_eq!(strategy(&rules, "logs/a/b.log"), "union");
        assert_eq!(strategy(&rules, "logs/audit.json"), "review");
        assert_eq!(strategy(&rules, "x/logs/audit.json"), "union");
        let explained = rules.explain(b"logs/b.log", Content::Text).expect("a rule");
        assert_eq!((explained.location.to_string().as_str(), explained.pattern), ("merge.toml, line 1", "logs/"));
        let tried: Vec<_> = explained.tried.iter().map(|(location, why)| (location.to_string(), *why)).collect();
        assert_eq!(tried, [("merge.toml, line 5".to_owned(), NoMatch::Path)]);
        let explained = rules.explain(b"a.rs", Content::Text).expect("a rule");
        assert!(explained.tried.iter().any(|(_, why)| *why == NoMatch::Content));
    }

    #[test]
    fn commands_are_listed_with_their_places() {
        let text = "[[rule]]\npath = \"a\"\nway = \"union\"\n\n[[rule]]\npath = \"lock\"\nway = \"regenerate\"\ncommand = \"make lock\"\n";
        let rules = Rules::built_in().with_layer(Rules::read(text, "project").expect("rules"));
        let listed: Vec<_> = rules.commands().map(|(command, location)| (command, location.to_string())).collect();
        assert_eq!(listed, [("make lock", "project, line 5".to_owned())]);
    }

    #[test]
    fn groups_of_paths_are_carried() {
        let text = "[[group]]\nname = \"manifest and lock\"\npaths = [\"Cargo.toml\", \"Cargo.lock\"]\n";
        let rules = Rules::built_in().with_layer(Rules::read(text, "merge.toml").expect("rules"));
        let names = |path: &[u8]| rules.groups_of(path).map(|group| group.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(b"a/Cargo.lock"), ["manifest and lock"]);
        assert!(names(b"a/Cargo.json").is_empty());
    }
}
