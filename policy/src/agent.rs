//! The decision: what one agent may do with a path.

use std::sync::Arc;

use globset::{Candidate, GlobSet, GlobSetBuilder};
use quick_cache::sync::Cache;

use crate::fold::fold;
use crate::level::Level;
use crate::policy::{Policy, Rule};

/// Decisions that are kept for each agent.
const DECISIONS_MAX: usize = 1 << 16;

/// A decision about a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The level of the agent on the path.
    pub level: Level,
    /// The place of the rule that decided, in [`Policy::rules`]; the default of the policy if `None`.
    pub rule: Option<usize>,
}

/// The rules of a policy that are about one agent, compiled.
pub struct AgentPolicy {
    policy: Arc<Policy>,
    agent: String,
    /// Places of the agent's rules in the policy.
    rules: Vec<usize>,
    exact: Matcher,
    /// The matcher of folded patterns, if it differs.
    folded: Option<Matcher>,
    cache: Cache<Box<[u8]>, Decision>,
    below: Cache<Box<[u8]>, Below>,
}

/// Facts about the paths below a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Below {
    /// Whether a path below it may be visible.
    may_be_visible: bool,
    /// Whether all paths below it have its level.
    is_uniform: bool,
}

/// All globs of an agent's rules, and which rule each belongs to.
pub(crate) struct Matcher {
    globs: GlobSet,
    /// The rule of each glob: a place in `AgentPolicy::rules`. Ascending.
    owners: Vec<usize>,
}

impl Policy {
    /// Compiles the rules that are about one agent.
    pub fn agent(self: &Arc<Self>, agent: &str) -> AgentPolicy {
        AgentPolicy::new(Arc::clone(self), agent)
    }
}

impl AgentPolicy {
    fn new(policy: Arc<Policy>, agent: &str) -> Self {
        let all = policy.rules.iter().enumerate();
        let rules: Vec<usize> = all.filter(|(_, rule)| rule.is_about(agent)).map(|(place, _)| place).collect();
        let own: Vec<&Rule> = rules.iter().map(|place| &policy.rules[*place]).collect();
        let exact = Matcher::new(&own, false);
        let is_folded = own.iter().flat_map(|rule| &rule.paths).all(|pattern| pattern.is_folded());
        let folded = (!is_folded).then(|| Matcher::new(&own, true));
        Self {
            agent: agent.to_owned(),
            rules,
            exact,
            folded,
            cache: Cache::new(DECISIONS_MAX),
            below: Cache::new(DECISIONS_MAX),
            policy,
        }
    }

    /// Returns the name of the agent.
    pub fn agent(&self) -> &str {
        &self.agent
    }

    /// Returns the policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns what the agent may do with a path: names with slashes between them, empty for the root.
    pub fn decide(&self, path: &[u8]) -> Decision {
        if let Some(known) = self.cache.get(path) {
            return known;
        }
        let decision = self.decide_uncached(path);
        self.cache.insert(path.into(), decision);
        decision
    }

    /// Returns what the agent may do with a path, without the cache.
    pub fn decide_uncached(&self, path: &[u8]) -> Decision {
        let exact = self.decision(&self.exact, path);
        let folded_path = fold(path);
        if self.folded.is_none() && *folded_path == *path {
            return exact;
        }
        let folded = self.decision(self.folded.as_ref().unwrap_or(&self.exact), &folded_path);
        if folded.level < exact.level { folded } else { exact }
    }

    fn decision(&self, matcher: &Matcher, path: &[u8]) -> Decision {
        match matcher.last_match(path) {
            Some(own) => {
                let rule = self.rules[own];
                Decision { level: self.policy.rules[rule].level, rule: Some(rule) }
            }
            None => Decision { level: self.policy.default, rule: None },
        }
    }

    /// Returns whether the agent may see that a directory exists: it may read it, or something below it.
    pub fn is_visible_directory(&self, path: &[u8]) -> bool {
        path.is_empty() || self.decide(path).level >= Level::Read || self.below(path).may_be_visible
    }

    /// Returns whether everything below a directory has the directory's own level. It may say no where that is so.
    pub fn is_uniform_below(&self, path: &[u8]) -> bool {
        self.below(path).is_uniform
    }

    /// Returns whether no path has a level above reading.
    pub fn is_read_only(&self) -> bool {
        let levels = self.rules.iter().map(|place| self.policy.rules[*place].level);
        levels.chain([self.policy.default]).all(|level| level <= Level::Read)
    }

    /// Returns whether a path may be hidden.
    pub fn hides(&self) -> bool {
        let levels = self.rules.iter().map(|place| self.policy.rules[*place].level);
        levels.chain([self.policy.default]).any(|level| level == Level::Hidden)
    }

    /// Returns whether every path has the level of everything.
    pub fn is_unrestricted(&self) -> bool {
        let levels = self.rules.iter().map(|place| self.policy.rules[*place].level);
        levels.chain([self.policy.default]).all(|level| level == Level::Full)
    }

    fn below(&self, path: &[u8]) -> Below {
        if let Some(known) = self.below.get(path) {
            return known;
        }
        let here = self.decide(path).level;
        // A rule that matches the directory decides about everything below it, unless a later one does.
        let first = self.exact.last_match(path).map_or(0, |own| own + 1);
        let later = self.rules[first..].iter().map(|place| &self.policy.rules[*place]);
        let mut below = Below { may_be_visible: here >= Level::Read, is_uniform: true };
        for rule in later.filter(|rule| rule.paths.iter().any(|pattern| pattern.may_match_below(path))) {
            below.may_be_visible |= rule.level >= Level::Read;
            below.is_uniform = false;
        }
        self.below.insert(path.into(), below);
        below
    }
}

impl Matcher {
    pub(crate) fn new(rules: &[&Rule], is_folded: bool) -> Self {
        let (mut builder, mut owners) = (GlobSetBuilder::new(), Vec::new());
        for (own, rule) in rules.iter().enumerate() {
            for pattern in &rule.paths {
                let (exact, folded) = pattern.globs();
                for glob in if is_folded { folded } else { exact } {
                    builder.add(glob.clone());
                    owners.push(own);
                }
            }
        }
        Self { globs: builder.build().expect("each glob was compiled when the policy was read"), owners }
    }

    /// Returns the last rule that matches a path.
    fn last_match(&self, path: &[u8]) -> Option<usize> {
        if self.owners.is_empty() {
            return None;
        }
        let mut found = Vec::new();
        self.globs.matches_candidate_into(&Candidate::from_bytes(path), &mut found);
        found.into_iter().max().map(|glob| self.owners[glob])
    }

    /// Returns the rules that match a path, each once, in order.
    pub(crate) fn matches(&self, path: &[u8]) -> Vec<usize> {
        let mut found = Vec::new();
        self.globs.matches_candidate_into(&Candidate::from_bytes(path), &mut found);
        let mut owners: Vec<usize> = found.into_iter().map(|glob| self.owners[glob]).collect();
        owners.sort_unstable();
        owners.dedup();
        owners
    }
}

impl std::fmt::Debug for AgentPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AgentPolicy").field("agent", &self.agent).field("rules", &self.rules).finish_non_exhaustive()
    }
}
