//! A policy: its rules, its default, its reviewers, and what happens to a merge that it refuses in part.

use crate::level::Level;
use crate::pattern::Pattern;
use crate::selector::Selector;

/// The treatment of a merge of which some paths are refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnRefused {
    /// The whole merge waits for a review.
    #[default]
    Review,
    /// The permitted paths are merged, and the refused ones stay in the workspace.
    Partial,
}

impl OnRefused {
    /// Returns the word in a policy.
    pub fn word(self) -> &'static str {
        match self {
            Self::Review => "review",
            Self::Partial => "partial",
        }
    }

    /// Returns the value of a word.
    pub fn of_word(word: &str) -> Option<Self> {
        [Self::Review, Self::Partial].into_iter().find(|one| one.word() == word)
    }
}

/// One rule of a policy.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The line in the policy, counted from 1.
    pub line: usize,
    /// The level of the agents on the paths.
    pub level: Level,
    pub(crate) agents: Option<Selector>,
    pub(crate) paths: Vec<Pattern>,
}

impl Rule {
    /// Returns the patterns of the rule, as they are written.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.paths.iter().map(Pattern::text)
    }

    /// Returns the agents of the rule, as they are written; empty for all agents.
    pub fn agents(&self) -> &[String] {
        self.agents.as_ref().map_or(&[], |agents| &agents.text)
    }

    /// Returns whether the rule is about an agent.
    pub fn is_about(&self, agent: &str) -> bool {
        self.agents.as_ref().is_none_or(|agents| agents.contains(agent))
    }
}

/// The permissions of a project.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The level of paths that no rule matches.
    pub default: Level,
    /// The treatment of a merge of which some paths are refused.
    pub on_refused: OnRefused,
    pub(crate) rules: Vec<Rule>,
    pub(crate) reviewers: Selector,
}

impl Policy {
    /// Returns the rules in their order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Returns whether an agent may decide reviews and conflicts. Its levels do not matter for that.
    pub fn is_reviewer(&self, agent: &str) -> bool {
        self.reviewers.contains(agent)
    }
}
