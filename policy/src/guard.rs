//! A guard: the agents on whose behalf something is done. Each of them must have the right.

use std::fmt;
use std::sync::Arc;

use crate::agent::AgentPolicy;
use crate::level::{Act, Level};

/// The agents on whose behalf something is done. Without an agent everything is permitted.
#[derive(Clone, Debug, Default)]
pub struct Guard {
    agents: Vec<Arc<AgentPolicy>>,
    observer: Option<Arc<dyn ObserveRefusals>>,
}

/// Learns of acts that were refused. It is called while requests wait, so it must not block.
pub trait ObserveRefusals: fmt::Debug + Send + Sync {
    /// Records an act that was refused.
    fn refused(&self, refusal: &Refusal);
}

/// An act that a policy refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The agent that lacks the right.
    pub agent: String,
    /// The path.
    pub path: Vec<u8>,
    /// The act.
    pub act: Act,
    /// The level of the agent on the path.
    pub level: Level,
    /// The line of the rule that decided; the default of the policy if `None`.
    pub line: Option<usize>,
    /// The patterns of that rule.
    pub patterns: Vec<String>,
}

impl Guard {
    /// Returns a guard for several agents.
    pub fn new(agents: Vec<Arc<AgentPolicy>>) -> Self {
        Self { agents, observer: None }
    }

    /// Returns the guard with an observer of the acts that it refuses.
    #[must_use]
    pub fn observed_by(self, observer: Arc<dyn ObserveRefusals>) -> Self {
        Self { observer: Some(observer), ..self }
    }

    /// Reports a refused act to the observer. Callers that only ask what would be permitted do not report.
    pub fn report(&self, refusal: &Refusal) {
        if let Some(observer) = &self.observer {
            observer.refused(refusal);
        }
    }

    /// Returns whether the guard is for no agent, so that it permits everything without a look at the rules.
    pub fn is_open(&self) -> bool {
        self.agents.is_empty()
    }

    /// Returns whether another guard is for the same agents by the same policy.
    pub fn is_same(&self, other: &Self) -> bool {
        self.agents.len() == other.agents.len()
            && self.agents.iter().zip(&other.agents).all(|(one, other)| Arc::ptr_eq(one, other))
    }

    /// Returns the agents.
    pub fn agents(&self) -> &[Arc<AgentPolicy>] {
        &self.agents
    }

    /// Returns the level of a path: the least of all agents.
    pub fn level(&self, path: &[u8]) -> Level {
        self.agents.iter().map(|agent| agent.decide(path).level).min().unwrap_or(Level::Full)
    }

    /// Returns whether an entry can be seen. A directory can be seen if something below it may be.
    pub fn is_visible(&self, path: &[u8], is_directory: bool) -> bool {
        self.agents.iter().all(|agent| match is_directory {
            true => agent.is_visible_directory(path),
            false => agent.decide(path).level >= Level::Read,
        })
    }

    /// Returns whether everything below a directory has the directory's own level.
    pub fn is_uniform_below(&self, path: &[u8]) -> bool {
        self.agents.iter().all(|agent| agent.is_uniform_below(path))
    }

    /// Returns whether no path may be changed.
    pub fn is_read_only(&self) -> bool {
        self.agents.iter().any(|agent| agent.is_read_only())
    }

    /// Returns whether the rules hide some paths from an agent of the guard.
    pub fn hides(&self) -> bool {
        self.agents.iter().any(|agent| agent.hides())
    }

    /// Returns whether every agent of the guard has the level `RW` on every path.
    pub fn is_unrestricted(&self) -> bool {
        self.agents.iter().all(|agent| agent.is_unrestricted())
    }

    /// Returns the reason why an act is refused, or `None` if it is permitted.
    pub fn refusal(&self, path: &[u8], act: Act) -> Option<Refusal> {
        self.agents.iter().find_map(|agent| {
            let decision = agent.decide(path);
            if decision.level.permits(act) {
                return None;
            }
            let rule = decision.rule.map(|place| &agent.policy().rules()[place]);
            Some(Refusal {
                agent: agent.agent().to_owned(),
                path: path.to_vec(),
                act,
                level: decision.level,
                line: rule.map(|rule| rule.line),
                patterns: rule.into_iter().flat_map(|rule| rule.paths()).map(str::to_owned).collect(),
            })
        })
    }
}

impl Refusal {
    /// Describes the rule that decided.
    pub fn rule(&self) -> String {
        match self.line {
            Some(line) => format!("the rule on line {line} ({})", self.patterns.join(", ")),
            None => "the policy's default".to_owned(),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { agent, act, level, .. } = self;
        let path = String::from_utf8_lossy(&self.path);
        match level {
            // A rule that hides a path is hidden, too.
            Level::Hidden => write!(f, "{agent} may not {act} {path}"),
            _ => write!(f, "{agent} may not {act} {path}: {} gives {level}", self.rule()),
        }
    }
}
