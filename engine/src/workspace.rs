//! Workspaces: named lines of work, each with a head that moves by compare-and-swap.
//!
//! A workspace is a reference: its head, its base and a small record. Not in this module: files on disk and mounts, which show a
//! workspace to programs, and the [`queue`](crate::queue), which merges workspaces in the background.
//!
//! ```
//! use amalgam_engine::{OperationContext, Store, Time};
//! use amalgam_engine::workspace::{Change, NewWorkspace, WorkspaceName, Workspaces};
//!
//! let store = Store::in_memory();
//! let workspaces = Workspaces::of(&store);
//! let (main, attempt) = (WorkspaceName::new("main")?, WorkspaceName::new("attempt/1")?);
//! let ada = OperationContext::new("ada", Time(1));
//! workspaces.create(&main, &NewWorkspace::default(), &ada)?;
//! let mut tree = workspaces.open(&main)?;
//! tree.write("plan.md", b"think")?;
//! workspaces.commit(&main, &mut tree, &Change::new("a plan"), &ada)?;
//!
//! workspaces.fork(&main, std::slice::from_ref(&attempt), &ada)?;
//! let mut tree = workspaces.open(&attempt)?;
//! tree.write("plan.md", b"act")?;
//! workspaces.commit(&attempt, &mut tree, &Change::new("enough thinking").reward(0.5), &ada)?;
//! workspaces.undo(&attempt, &ada)?;
//! assert_eq!(workspaces.open(&attempt)?.read("plan.md")?, b"think");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod check;
mod commit;
mod follow;
mod forget;
mod label;
mod name;
mod record;
mod restore;
mod working;

pub(crate) use check::check_reference;
pub use commit::{Change, Committed};
pub use follow::{Follow, FollowMode};
pub use label::{LabelName, Labels};
pub use name::WorkspaceName;
pub(crate) use name::nearest;
pub use record::{JournalPlace, JournaledCommit, Workspace, receive_workspace, share_workspace};
pub use restore::{Taken, take_entries, with_entries_of, with_paths_of};

use crate::error::{Error, Result};
use crate::id::SnapshotId;
use crate::operation::{self, OperationContext, Step, hold_snapshot, move_refs, recorded, trying};
use crate::reference::{Operation, RefValue};
use crate::store::Store;
use crate::work::WorkingTree;
use record::Record;

/// Maximum number of names that are searched for suggestions in an error.
const NAMES_SCANNED_MAX: usize = 1_000;

/// The workspaces of a store.
#[derive(Clone)]
pub struct Workspaces {
    store: Store,
}

/// The parameters of a new workspace.
#[derive(Clone, Debug, Default)]
pub struct NewWorkspace {
    /// The snapshot it starts from; an empty tree if `None`.
    pub from: Option<SnapshotId>,
    /// The agent that owns it.
    pub agent: String,
    /// The project it belongs to.
    pub project: String,
    /// The workspace that its changes will be merged into.
    pub target: Option<WorkspaceName>,
}

/// How forks differ from the workspace that they are made of.
#[derive(Clone, Debug, Default)]
pub struct ForkOptions {
    /// The snapshot they start from; the head of the workspace if `None`.
    pub from: Option<SnapshotId>,
    /// The agent that owns them; that of the workspace if `None`.
    pub agent: Option<String>,
    /// The project they belong to; that of the workspace if `None`.
    pub project: Option<String>,
    /// The workspace that their changes will be merged into; the workspace itself if `None`.
    pub target: Option<WorkspaceName>,
}

impl Workspaces {
    /// Returns the workspaces of a store.
    pub fn of(store: &Store) -> Self {
        Self { store: store.clone() }
    }

    /// Returns the store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Creates a workspace.
    pub fn create(&self, name: &WorkspaceName, new: &NewWorkspace, context: &OperationContext) -> Result<Workspace> {
        let _pins = new.from.map(|from| hold_snapshot(&self.store, from)).transpose()?;
        let (agent, project, target) = (new.agent.clone(), new.project.clone(), new.target.clone());
        let record =
            Record { agent, project, created: context.time, target, journaled: None, working: None, follow: None };
        let value = record.value(new.from, new.from)?;
        let step = Step { name: name.reference(), before: None, after: Some(value.clone()) };
        match self.move_by(context, "create", vec![step]) {
            Err(Error::Stale { .. }) => Err(Error::Taken { what: format!("workspace {name}") }),
            done => {
                done?;
                Workspace::read(name.clone(), value)
            }
        }
    }

    /// Returns a workspace, or `None` if it does not exist.
    pub fn find(&self, name: &WorkspaceName) -> Result<Option<Workspace>> {
        self.store.read_ref(&name.reference())?.map(|value| Workspace::read(name.clone(), value)).transpose()
    }

    /// Returns a workspace, or an error if it does not exist.
    pub fn get(&self, name: &WorkspaceName) -> Result<Workspace> {
        match self.find(name)? {
            Some(workspace) => Ok(workspace),
            None => Err(self.absent(name)?),
        }
    }

    /// Lists up to `limit` workspaces after `after` whose name starts with `prefix`, by name.
    pub fn list(&self, prefix: &str, after: Option<&WorkspaceName>, limit: usize) -> Result<Vec<Workspace>> {
        let after = after.map(WorkspaceName::reference);
        let found = self.store.list_refs(&format!("{}{prefix}", name::PREFIX), after.as_ref(), limit)?;
        found.into_iter().map(|(name, value)| Workspace::read(WorkspaceName::of_reference(&name)?, value)).collect()
    }

    /// Opens the tree of a workspace's head for editing.
    pub fn open(&self, name: &WorkspaceName) -> Result<WorkingTree> {
        match self.get(name)?.head {
            Some(head) => WorkingTree::open(&self.store, head),
            None => Ok(WorkingTree::new(&self.store)),
        }
    }

    /// Creates workspaces that start from the head of another one, all of them or none.
    pub fn fork(&self, from: &WorkspaceName, into: &[WorkspaceName], context: &OperationContext) -> Result<Operation> {
        self.fork_with(from, into, &ForkOptions::default(), context)
    }

    /// Creates workspaces from another one, all of them or none.
    pub fn fork_with(
        &self,
        from: &WorkspaceName,
        into: &[WorkspaceName],
        options: &ForkOptions,
        context: &OperationContext,
    ) -> Result<Operation> {
        let source = self.get(from)?;
        let start = options.from.or(source.head);
        let _pins = start.map(|start| hold_snapshot(&self.store, start)).transpose()?;
        let inherited = source.record();
        let record = Record {
            agent: options.agent.clone().unwrap_or(inherited.agent),
            project: options.project.clone().unwrap_or(inherited.project),
            created: context.time,
            target: Some(options.target.clone().unwrap_or_else(|| from.clone())),
            journaled: None,
            working: None,
            follow: None,
        };
        let value = record.value(start, start)?;
        let step = |name: &WorkspaceName| Step { name: name.reference(), before: None, after: Some(value.clone()) };
        match self.move_by(context, "fork", into.iter().map(step).collect()) {
            Err(Error::Stale { moved }) => {
                let taken = moved.first().map_or_else(String::new, |(name, _)| name.to_string());
                Err(Error::Taken { what: taken.replacen(name::PREFIX, "workspace ", 1) })
            }
            done => done,
        }
    }

    /// Sets the agent and the project of a workspace.
    pub fn describe(
        &self,
        name: &WorkspaceName,
        agent: &str,
        project: &str,
        context: &OperationContext,
    ) -> Result<Operation> {
        trying(|| {
            let workspace = self.get(name)?;
            let record = Record { agent: agent.to_owned(), project: project.to_owned(), ..workspace.record() };
            let after = record.value(workspace.head, workspace.base)?;
            let step = Step { name: name.reference(), before: Some(workspace.into_value()), after: Some(after) };
            self.move_by(context, "describe", vec![step])
        })
    }

    /// Sets the workspace that a workspace's changes are merged into.
    pub fn aim(
        &self,
        name: &WorkspaceName,
        target: Option<&WorkspaceName>,
        context: &OperationContext,
    ) -> Result<Operation> {
        trying(|| {
            let workspace = self.get(name)?;
            let record = Record { target: target.cloned(), ..workspace.record() };
            let after = record.value(workspace.head, workspace.base)?;
            let step = Step { name: name.reference(), before: Some(workspace.into_value()), after: Some(after) };
            self.move_by(context, "aim", vec![step])
        })
    }

    /// Sets the source that a workspace follows, or ends the following. Returns `None` if it is so already.
    pub fn follow(
        &self,
        name: &WorkspaceName,
        follow: Option<&Follow>,
        context: &OperationContext,
    ) -> Result<Option<Operation>> {
        trying(|| {
            let workspace = self.get(name)?;
            if workspace.follow.as_ref() == follow {
                return Ok(None);
            }
            let record = Record { follow: follow.cloned(), ..workspace.record() };
            let after = record.value(workspace.head, workspace.base)?;
            let step = Step { name: name.reference(), before: Some(workspace.into_value()), after: Some(after) };
            let action = if follow.is_some() { "follow" } else { "unfollow" };
            self.move_by(context, action, vec![step]).map(Some)
        })
    }

    /// Renames a workspace. Like a deletion, this works even if the trees of the workspace are damaged or missing: one reference
    /// takes them over from the other.
    pub fn rename(&self, from: &WorkspaceName, to: &WorkspaceName, context: &OperationContext) -> Result<Operation> {
        trying(|| {
            let value = self.get(from)?.into_value();
            if self.find(to)?.is_some() {
                return Err(Error::Taken { what: format!("workspace {to}") });
            }
            let steps = vec![
                Step { name: from.reference(), before: Some(value.clone()), after: None },
                Step { name: to.reference(), before: None, after: Some(value) },
            ];
            self.move_by(context, "rename", steps)
        })
    }

    /// Deletes a workspace. Its objects stay until they are collected, and [`undelete`](Self::undelete) brings it back.
    pub fn delete(&self, name: &WorkspaceName, context: &OperationContext) -> Result<Operation> {
        trying(|| self.move_by(context, "delete", self.ending(name)?))
    }

    /// Returns the reference updates that delete a workspace.
    pub(crate) fn ending(&self, name: &WorkspaceName) -> Result<Vec<Step>> {
        let value = self.get(name)?.into_value();
        let number = match self.store.greatest_deleted(&name.deleted_prefix())? {
            None => 1,
            Some(number) if number < name::DELETED_NUMBER_MAX => number + 1,
            Some(number) => {
                let why = format!("{name} was deleted under the number {number} before, the greatest there is");
                return Err(Error::Invalid { what: "deletion", why });
            }
        };
        Ok(vec![
            Step { name: name.reference(), before: Some(value.clone()), after: None },
            Step { name: name.deleted_reference(number), before: None, after: Some(value) },
        ])
    }

    /// Restores the workspace that was last deleted under this name.
    pub fn undelete(&self, name: &WorkspaceName, context: &OperationContext) -> Result<Operation> {
        trying(|| {
            if self.find(name)?.is_some() {
                return Err(Error::Taken { what: format!("workspace {name}") });
            }
            let Some((number, value)) = self.last_deleted(name)? else {
                let hint = "no workspace of this name was deleted, or it was forgotten since".to_owned();
                return Err(Error::Absent { what: format!("deleted workspace {name}"), hint });
            };
            let steps = vec![
                Step { name: name.reference(), before: None, after: Some(value.clone()) },
                Step { name: name.deleted_reference(number), before: Some(value), after: None },
            ];
            self.move_by(context, "undelete", steps)
        })
    }

    /// Undoes the last operation on a workspace. A second call undoes the one before it.
    pub fn undo(&self, name: &WorkspaceName, context: &OperationContext) -> Result<Operation> {
        operation::undo(&self.store, &name.reference(), context)
    }

    /// Redoes the operation that was undone last.
    pub fn redo(&self, name: &WorkspaceName, context: &OperationContext) -> Result<Operation> {
        operation::redo(&self.store, &name.reference(), context)
    }

    /// Returns the last deletion of a workspace of this name, with its number.
    fn last_deleted(&self, name: &WorkspaceName) -> Result<Option<(u64, RefValue)>> {
        let Some(number) = self.store.greatest_deleted(&name.deleted_prefix())? else { return Ok(None) };
        let value = self.store.read_ref(&name.deleted_reference(number))?;
        Ok(value.map(|value| (number, value)))
    }

    fn move_by(&self, context: &OperationContext, action: &str, steps: Vec<Step>) -> Result<Operation> {
        move_refs(&self.store, context, context.draft(action), steps).map(recorded)
    }

    fn absent(&self, name: &WorkspaceName) -> Result<Error> {
        let names = self.list("", None, NAMES_SCANNED_MAX)?.into_iter().map(|workspace| workspace.name.to_string());
        let hint = match (self.last_deleted(name)?.is_none(), nearest(names.collect(), name.as_str())) {
            (false, _) => "it was deleted; undelete brings it back".to_owned(),
            (true, None) => "the store has none yet; create one first".to_owned(),
            (true, Some(near)) => near,
        };
        Ok(Error::Absent { what: format!("workspace {name}"), hint })
    }
}
