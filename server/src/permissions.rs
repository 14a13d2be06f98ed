//! Permissions: the project's policy as a document of the store, and the guards that enforce it.
//!
//! The policy is a file in a tree that the reference `policy/project` points at. It moves by an operation, so it has a history and can be
//! undone; no workspace contains it, so no edit, merge or restore of files changes it.
//!
//! Who is judged: a call over the network by the agent of its key, unless the key has the scope `admin`; and work in a workspace by the
//! agent of the workspace, for every caller. Both must have the right. The user of the store, on the Unix socket, is an admin.

mod changes;
mod document;
mod method;
mod moves;
mod refusal_log;
mod refusals;
mod visible;

use std::collections::HashMap;
use std::sync::Arc;

use amalgam_engine::reference::RefValue;
use amalgam_engine::workspace::{WorkspaceName, Workspaces};
use amalgam_engine::{RootId, Store};
use amalgam_policy::{AgentPolicy, Guard, Policy};
use parking_lot::Mutex;

use crate::call_log::restricted_agent;
use crate::error::Result;
pub(crate) use changes::refused;
pub(crate) use document::POLICY_PREFIX;
pub(crate) use moves::moves_of;
use refusal_log::RefusalLog;
pub(crate) use visible::{VisibleEntries, hidden_paths, is_visible_in};

/// Trees without hidden paths that are remembered.
const VISIBLE_TREES_MAX: usize = 256;

/// The permissions of a store's project.
#[derive(Clone)]
pub(crate) struct Permissions {
    store: Store,
    workspaces: Workspaces,
    inner: Arc<Mutex<Cached>>,
    refusals: Arc<RefusalLog>,
}

/// The policy as it was last read.
#[derive(Default)]
struct Cached {
    /// The value of the reference that it was read from.
    value: Option<RefValue>,
    policy: Option<Arc<Policy>>,
    /// The compiled rules of the agents that were asked for.
    agents: HashMap<String, Arc<AgentPolicy>>,
    /// The trees that agents see, by the tree and the agents.
    visible: HashMap<(RootId, Vec<String>), RootId>,
}

impl Permissions {
    pub(crate) fn new(store: &Store, workspaces: &Workspaces) -> Self {
        Self { store: store.clone(), workspaces: workspaces.clone(), inner: Arc::default(), refusals: Arc::default() }
    }

    /// Returns the project's policy, if there is one.
    pub(crate) fn policy(&self) -> Result<Option<Arc<Policy>>> {
        Ok(self.current()?.policy.clone())
    }

    /// Returns the guard of some agents. An empty name is no agent and restricts nothing.
    pub(crate) fn guard(&self, agents: &[&str]) -> Result<Guard> {
        let mut cached = self.current()?;
        let Some(policy) = cached.policy.clone() else { return Ok(Guard::default()) };
        let mut compiled: Vec<Arc<AgentPolicy>> = Vec::new();
        for agent in agents.iter().filter(|agent| !agent.is_empty()) {
            if compiled.iter().any(|known| known.agent() == *agent) {
                continue;
            }
            let known = cached.agents.entry((*agent).to_owned());
            compiled.push(Arc::clone(known.or_insert_with(|| Arc::new(policy.agent(agent)))));
        }
        Ok(self.observed(Guard::new(compiled)))
    }

    /// Returns a guard whose refusals become events.
    pub(crate) fn observed(&self, guard: Guard) -> Guard {
        let log: Arc<RefusalLog> = Arc::clone(&self.refusals);
        guard.observed_by(log)
    }

    /// Returns the guard of work in a workspace: that of its agent.
    pub(crate) fn workspace_guard(&self, workspace: &WorkspaceName) -> Result<Guard> {
        let found = self.workspaces.find(workspace)?;
        self.guard(&[found.as_ref().map_or("", |found| &found.agent)])
    }

    /// Returns the guard of a call that changes a workspace: that of the workspace's agent and of the caller's.
    pub(crate) fn writing(&self, workspace: &WorkspaceName) -> Result<Guard> {
        let found = self.workspaces.find(workspace)?;
        let caller = restricted_agent();
        self.guard(&[found.as_ref().map_or("", |found| &found.agent), caller.as_deref().unwrap_or_default()])
    }

    /// Returns the guard of a call that reads: nothing is hidden from the user of the store and from keys with the scope `admin`.
    pub(crate) fn reading(&self, workspace: Option<&WorkspaceName>) -> Result<Guard> {
        let Some(caller) = restricted_agent() else { return Ok(Guard::default()) };
        let found = workspace.map(|workspace| self.workspaces.find(workspace)).transpose()?.flatten();
        self.guard(&[&caller, found.as_ref().map_or("", |found| &found.agent)])
    }

    /// Returns the guard of a call that moves a workspace to another state: an admin may, also where the workspace's agent may not.
    pub(crate) fn moving(&self, workspace: &WorkspaceName) -> Result<Guard> {
        self.reading(Some(workspace))
    }

    /// Returns whether a caller may decide reviews and conflicts.
    pub(crate) fn is_reviewer(&self) -> Result<bool> {
        let Some(caller) = restricted_agent() else { return Ok(true) };
        Ok(self.policy()?.is_none_or(|policy| policy.is_reviewer(&caller)))
    }
}
