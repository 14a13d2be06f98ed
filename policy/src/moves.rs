//! Moves that change the rights of no agent.
//!
//! A merge lets entries follow a directory that the other side renamed. No agent asked for that move, so it must not take an entry to a
//! path at which other rules apply.

use std::sync::Arc;

use crate::agent::Matcher;
use crate::fold::fold;
use crate::policy::{Policy, Rule};

/// Compares the rules that match two paths, for all agents.
pub struct MoveGuard {
    policy: Arc<Policy>,
    exact: Matcher,
    folded: Matcher,
}

impl MoveGuard {
    /// Compiles the rules of a policy.
    pub fn new(policy: Arc<Policy>) -> Self {
        let rules: Vec<&Rule> = policy.rules.iter().collect();
        let (exact, folded) = (Matcher::new(&rules, false), Matcher::new(&rules, true));
        Self { policy, exact, folded }
    }

    /// Returns whether the same rules match two paths, so that each agent has the same rights at both.
    pub fn is_same(&self, one: &[u8], other: &[u8]) -> bool {
        self.exact.matches(one) == self.exact.matches(other)
            && self.folded.matches(&fold(one)) == self.folded.matches(&fold(other))
    }

    /// Returns whether the same rules match two directories and everything below them. It may say no where they do.
    pub fn is_same_below(&self, one: &[u8], other: &[u8]) -> bool {
        let matched = self.exact.matches(one);
        // A rule that matches a directory matches everything below it, and a pattern of a name does not depend on the directories above.
        let decides_below = |place: usize, rule: &Rule| {
            !matched.contains(&place)
                && rule.paths.iter().any(|pattern| {
                    !pattern.is_name() && (pattern.may_match_below(one) || pattern.may_match_below(other))
                })
        };
        self.is_same(one, other)
            && !self.policy.rules.iter().enumerate().any(|(place, rule)| decides_below(place, rule))
    }
}

impl std::fmt::Debug for MoveGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MoveGuard").field("rules", &self.policy.rules.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(paths: &[&str]) -> MoveGuard {
        let rule = |path: &&str| format!("[[rule]]\npaths = [\"{path}\"]\nlevel = \"none\"\n");
        let text: String = paths.iter().map(rule).collect();
        MoveGuard::new(Arc::new(Policy::read(&text).expect("a policy")))
    }

    #[test]
    fn a_move_is_admitted_only_where_the_same_rules_match() {
        for (rules, one, other, expected) in [
            (&["src/secret/**"][..], "src/secret/key", "source/secret/key", false),
            (&["src/secret/**"], "src/open/file", "source/open/file", true),
            (&["*.key"], "src/a.key", "source/a.key", true),
            (&["*.key"], "src/a.key", "source/a.txt", false),
            (&["Src/secret"], "src/secret/key", "source/secret/key", false),
            (&["secrets"], "secrets/a", "a/secrets/a", true),
        ] {
            assert_eq!(guard(rules).is_same(one.as_bytes(), other.as_bytes()), expected, "{rules:?} {one} {other}");
        }
    }

    #[test]
    fn a_directory_is_admitted_only_if_no_rule_can_tell_its_contents_apart() {
        for (rules, one, other, expected) in [
            (&["src/secret/**"][..], "src", "source", false),
            (&["src/secret/**"], "src/secret", "source/secret", false),
            (&["src/secret/**"], "docs", "texts", true),
            (&["*.key"], "src", "source", true),
            (&["secrets"], "src/secrets", "source/secrets", true),
        ] {
            let found = guard(rules).is_same_below(one.as_bytes(), other.as_bytes());
            assert_eq!(found, expected, "{rules:?} {one} {other}");
        }
    }
}
