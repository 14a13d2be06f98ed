//! The policy in the store: read, set, and its history.

use std::sync::Arc;

use amalgam_engine::operation::{operation, set_reference};
use amalgam_engine::reference::{Operation, RefName, RefValue};
use amalgam_engine::{ObjectKind, OperationContext, RootId, WorkingTree};
use amalgam_policy::{Level, Policy};
use amalgam_proto::Reason;
use parking_lot::MutexGuard;

use super::{Cached, Permissions};
use crate::error::{Error, Result};

/// The reference of the project's policy.
const REFERENCE: &str = "policy/project";
/// How references of policies begin.
pub(crate) const POLICY_PREFIX: &str = "policy/";
/// The file in the tree that the reference points at.
const FILE: &str = "policy.toml";
/// The action of a new policy in the operation log.
const SET: &str = "set policy";
/// The action of a removed policy in the operation log.
const REMOVE: &str = "remove policy";

/// A policy as it is stored.
pub(crate) struct StoredPolicy {
    /// The text; empty without a policy.
    pub(crate) text: String,
    /// The operation that changed the policy last; `None` if there never was a policy, or the log does not reach back to it.
    pub(crate) operation: Option<Operation>,
}

fn reference() -> RefName {
    RefName::new(REFERENCE).expect("the name is valid")
}

impl Permissions {
    /// Returns the policy as it was last read, read anew if it has moved.
    pub(super) fn current(&self) -> Result<MutexGuard<'_, Cached>> {
        let value = self.store.read_ref(&reference())?;
        let mut cached = self.inner.lock();
        if cached.value != value {
            let policy = match &value {
                Some(value) => Some(Arc::new(self.parse(value)?)),
                None => None,
            };
            *cached = Cached { value, policy, ..Cached::default() };
        }
        Ok(cached)
    }

    fn text(&self, value: &RefValue) -> Result<String> {
        let unreadable = |why: &str| {
            let message =
                format!("the policy cannot be read: {why}; an admin can set another one with `amalgam policy set`");
            Error::new(Reason::Corrupt, message)
        };
        let root = value.target.filter(|target| target.kind == ObjectKind::Root);
        let root = root.ok_or_else(|| unreadable("its reference names no tree"))?;
        let tree = WorkingTree::open_root(&self.store, RootId::from_bytes(root.hash))?;
        String::from_utf8(tree.read(FILE)?).map_err(|_| unreadable("it is not UTF-8"))
    }

    fn parse(&self, value: &RefValue) -> Result<Policy> {
        Ok(Policy::read(&self.text(value)?)?)
    }

    /// Returns the stored policy and the operation that moved it last.
    pub(crate) fn stored(&self) -> Result<StoredPolicy> {
        let name = reference();
        let text = self.store.read_ref(&name)?.map(|value| self.text(&value)).transpose()?.unwrap_or_default();
        let moved = self.store.last_move(&name)?;
        let is_known = moved > 0 && moved >= self.store.first_operation()?;
        let operation = is_known.then(|| operation(&self.store, moved)).transpose()?;
        Ok(StoredPolicy { text, operation })
    }

    /// Returns the operations that changed the policy, newest first.
    pub(crate) fn history(&self, limit: usize) -> Result<Vec<Operation>> {
        let (name, first) = (reference(), self.store.first_operation()?);
        let (mut found, mut moved) = (Vec::new(), self.store.last_move(&name)?);
        while moved > 0 && moved >= first && found.len() < limit {
            let done = operation(&self.store, moved)?;
            moved = done.changes.iter().find(|change| change.name == name).map_or(0, |change| change.previous);
            found.push(done);
        }
        Ok(found)
    }

    /// Returns what a policy cannot prevent.
    pub(crate) fn warnings(&self, text: &str) -> Result<Vec<String>> {
        if text.trim().is_empty() {
            return Ok(Vec::new());
        }
        let policy = Policy::read(text)?;
        let hides = policy.default == Level::Hidden || policy.rules().iter().any(|rule| rule.level == Level::Hidden);
        let mut warnings = Vec::new();
        if hides {
            warnings.push(
                "a Git repository in the tree keeps the contents of hidden files in .git/objects, where they can be read; hide .git, too"
                    .to_owned(),
            );
        }
        if policy.rules().is_empty() && policy.default == Level::Hidden {
            warnings.push(
                "no agent may see or do anything; the user of the store and keys with the scope `admin` can undo this"
                    .to_owned(),
            );
        }
        Ok(warnings)
    }

    /// Replaces the policy, or removes it if the text is empty. Returns the operation, or `None` if the policy is the same.
    pub(crate) fn set(&self, text: &str, act: &OperationContext) -> Result<Option<Operation>> {
        if text.trim().is_empty() {
            return Ok(set_reference(&self.store, &reference(), None, act, REMOVE)?);
        }
        Policy::read(text)?;
        let mut tree = WorkingTree::new(&self.store);
        // The same text is the same tree, whenever it is set.
        tree.set_now(amalgam_engine::Time::EPOCH);
        tree.write(FILE, text.as_bytes())?;
        let (root, _pin) = tree.freeze().hold()?;
        Ok(set_reference(&self.store, &reference(), Some(&RefValue::to(root)), act, SET)?)
    }
}
