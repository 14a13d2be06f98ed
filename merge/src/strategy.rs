//! The table of merge strategies. A new strategy is a file and a row in this table.

use std::fmt;

use crate::job::{Job, Options};
use crate::outcome::{FailedAttempt, MergeReport, MergeSettings, Outcome};
use crate::sides::Sides;
use crate::structure::Format;
use crate::{crdt, json, take_side, text, toml, union, yaml};

struct StrategyRow {
    name: &'static str,
    description: &'static str,
    /// The supported options, besides `max_bytes`.
    option_names: &'static [&'static str],
    run: fn(&Job<'_>) -> Outcome,
    /// The fallback strategy if this one is unable.
    fallback: Option<&'static str>,
}

const STRUCTURE: &[&str] = &["keys", "lists"];

const STRATEGIES: &[StrategyRow] = &[
    StrategyRow { name: "text", description: "by lines", option_names: &[], run: text::run, fallback: None },
    StrategyRow {
        name: "union",
        description: "by lines; what both added stays",
        option_names: &[],
        run: union::run,
        fallback: None,
    },
    StrategyRow {
        name: "json",
        description: "by fields and elements",
        option_names: STRUCTURE,
        run: json::run,
        fallback: Some("text"),
    },
    StrategyRow {
        name: "jsonc",
        description: "by fields and elements, with comments",
        option_names: STRUCTURE,
        run: json::run_with_comments,
        fallback: Some("text"),
    },
    StrategyRow {
        name: "yaml",
        description: "by fields and elements",
        option_names: STRUCTURE,
        run: yaml::run,
        fallback: Some("text"),
    },
    StrategyRow {
        name: "toml",
        description: "by fields and elements",
        option_names: STRUCTURE,
        run: toml::run,
        fallback: Some("text"),
    },
    StrategyRow {
        name: "crdt",
        description: "JSON without conflicts",
        option_names: &["keys", "texts"],
        run: crdt::run,
        fallback: Some("json"),
    },
    StrategyRow {
        name: "last-writer",
        description: "the later version",
        option_names: &[],
        run: take_side::last_writer,
        fallback: None,
    },
    StrategyRow {
        name: "priority",
        description: "by who made it",
        option_names: &["agents"],
        run: take_side::priority,
        fallback: None,
    },
    StrategyRow { name: "ours", description: "always ours", option_names: &[], run: take_side::ours, fallback: None },
    StrategyRow {
        name: "theirs",
        description: "always theirs",
        option_names: &[],
        run: take_side::theirs,
        fallback: None,
    },
    StrategyRow {
        name: "regenerate",
        description: "by a command",
        option_names: &["command", "inputs"],
        run: take_side::regenerate,
        fallback: None,
    },
    StrategyRow {
        name: "review",
        description: "never by itself",
        option_names: &[],
        run: take_side::review,
        fallback: None,
    },
];

/// A merge strategy with its options.
#[derive(Clone)]
pub struct MergeStrategy {
    row: &'static StrategyRow,
    /// The options from its rule.
    pub options: Options,
}

impl MergeStrategy {
    /// Returns the strategy with this name, without options.
    pub fn named(name: &str) -> Option<Self> {
        let row = STRATEGIES.iter().find(|row| row.name == name)?;
        Some(Self { row, options: Options::default() })
    }

    /// Returns the name.
    pub fn name(&self) -> &'static str {
        self.row.name
    }

    /// Returns a short description.
    pub fn description(&self) -> &'static str {
        self.row.description
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
    pub fn option_names(&self) -> &'static [&'static str] {
        self.row.option_names
    }

    /// Returns all names, in the order of the table.
    pub fn names() -> impl Iterator<Item = &'static str> {
        STRATEGIES.iter().map(|row| row.name)
    }

    fn fallback(&self) -> Option<Self> {
        Some(Self { options: self.options.clone(), ..Self::named(self.row.fallback?)? })
    }
}

impl fmt::Debug for MergeStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Way").field("name", &self.row.name).field("options", &self.options).finish()
    }
}

impl PartialEq for MergeStrategy {
    fn eq(&self, other: &Self) -> bool {
        self.row.name == other.row.name && self.options == other.options
    }
}

/// Merges three versions by one strategy. Equal versions, and versions of which only one changed, need no strategy.
pub fn merge(strategy: &MergeStrategy, sides: &Sides<'_>, setting: &MergeSettings) -> Outcome {
    if sides.ours == sides.theirs || sides.base == Some(sides.theirs) {
        return Outcome::Merged(sides.ours.to_vec());
    }
    if sides.base == Some(sides.ours) {
        return Outcome::Merged(sides.theirs.to_vec());
    }
    (strategy.row.run)(&Job { sides: *sides, setting, options: &strategy.options })
}

/// Merges by a strategy and its fallbacks: structural strategies fall back to lines, and lines have no fallback.
pub fn merge_with_fallback(strategy: &MergeStrategy, sides: &Sides<'_>, setting: &MergeSettings) -> MergeReport {
    let mut strategy = strategy.clone();
    let mut failed_attempts = Vec::new();
    loop {
        let outcome = merge(&strategy, sides, setting);
        match (outcome, strategy.fallback()) {
            (Outcome::Unable(why), Some(next)) => {
                failed_attempts.push(FailedAttempt { strategy: strategy.name(), why });
                strategy = next;
            }
            (outcome, _) => return MergeReport { outcome, strategy: strategy.name(), failed_attempts },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_falls_to_one_that_is_there_and_in_the_end_to_none() {
        for name in MergeStrategy::names() {
            let first = MergeStrategy::named(name).expect("a name of the table");
            let chain = std::iter::successors(Some(first), MergeStrategy::fallback);
            assert!(chain.take(STRATEGIES.len() + 1).count() <= 3, "{name}");
            assert!(STRATEGIES.iter().filter(|row| row.name == name).count() == 1, "{name}");
        }
        assert!(STRATEGIES.iter().filter_map(|row| row.fallback).all(|name| MergeStrategy::named(name).is_some()));
    }

    #[test]
    fn one_changed_side_is_taken_whatever_the_way() {
        for name in MergeStrategy::names() {
            let strategy = MergeStrategy::named(name).expect("a name of the table");
            let setting = MergeSettings::default();
            for (base, ours, theirs, expected) in
                [("a", "a", "b", "b"), ("a", "b", "a", "b"), ("a", "b", "b", "b"), ("\0", "\0", "\0x", "\0x")]
            {
                let sides = Sides { base: Some(base.as_bytes()), ours: ours.as_bytes(), theirs: theirs.as_bytes() };
                assert_eq!(merge(&strategy, &sides, &setting), Outcome::Merged(expected.into()), "{name}");
            }
        }
    }
}
