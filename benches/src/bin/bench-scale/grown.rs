//! A store that grows: a history, forks of its snapshots, and labels.

use std::path::Path;
use std::time::SystemTime;

use amalgam_benches::Result;
use amalgam_engine::workspace::{Change, LabelName, Labels, NewWorkspace, WorkspaceName, Workspaces};
use amalgam_engine::{OperationContext, SnapshotId, Store, Time};
use amalgam_server::{Home, Service};

/// Snapshots of the workspace that others are forked from.
const HISTORY: u64 = 1_000;
/// Forks that one operation makes.
const FORKS_AT_ONCE: u64 = 50;
/// One in so many forks gets a snapshot of its own.
const COMMITTED_ONE_IN: u64 = 5;
/// Labels, and so operations, for each workspace.
const LABELS_PER_WORKSPACE: u64 = 10;

pub struct Grown {
    pub service: Service,
    pub directory: std::path::PathBuf,
    pub labels: u64,
    pub snapshots: u64,
    workspaces: u64,
    heads: Vec<SnapshotId>,
}

#[expect(clippy::disallowed_methods, reason = "the service is told the time")]
pub fn now() -> Time {
    Time::from(SystemTime::now())
}

pub fn act() -> OperationContext {
    OperationContext::new("bench", now()).buffered()
}

pub fn main_name() -> WorkspaceName {
    WorkspaceName::new("main").expect("a valid name")
}

impl Grown {
    /// A store with a history of one workspace, which has a directory of its own.
    pub fn new(directory: &Path) -> Result<Self> {
        let service = Service::open(&Home::new(directory.join("home")), now, &[]).map_err(|error| error.to_string())?;
        let workspaces = Workspaces::of(service.store());
        workspaces.create(&main_name(), &NewWorkspace::default(), &act())?;
        let mut heads = Vec::new();
        let mut tree = workspaces.open(&main_name())?;
        for folder in 0..4 {
            tree.create_directories(format!("d{folder}"))?;
        }
        for number in 0..HISTORY {
            tree.write(format!("d{}/f{}", number % 4, number % 40), &number.to_le_bytes())?;
            heads.push(workspaces.commit(&main_name(), &mut tree, &Change::new("history"), &act())?.snapshot);
        }
        let (labels, snapshots) = (0, HISTORY);
        Ok(Self { service, directory: directory.to_owned(), labels, snapshots, workspaces: 1, heads })
    }

    pub fn store(&self) -> &Store {
        self.service.store()
    }

    pub fn operations(&self) -> Result<u64> {
        Ok(self.store().last_operation()?)
    }

    /// Makes workspaces until there are so many, some with a snapshot of their own, and ten labels for each, one by one.
    pub fn grow_to(&mut self, size: u64) -> Result<()> {
        let (workspaces, labels) = (Workspaces::of(self.store()), Labels::of(self.store()));
        while self.workspaces < size {
            let from = self.heads[(self.workspaces * 7 % HISTORY) as usize];
            let base = WorkspaceName::new(format!("base/{:06}", self.workspaces))?;
            workspaces.create(&base, &NewWorkspace { from: Some(from), ..NewWorkspace::default() }, &act())?;
            let number = |at: u64| WorkspaceName::new(format!("agent/{at:06}"));
            let end = (self.workspaces + FORKS_AT_ONCE).min(size);
            let forks = (self.workspaces + 1..end).map(number).collect::<Result<Vec<_>, _>>()?;
            if !forks.is_empty() {
                workspaces.fork(&base, &forks, &act())?;
            }
            for (at, fork) in forks.iter().enumerate() {
                if (at as u64).is_multiple_of(COMMITTED_ONE_IN) {
                    let mut tree = workspaces.open(fork)?;
                    tree.write("d0/own", fork.as_str().as_bytes())?;
                    workspaces.commit(fork, &mut tree, &Change::new("own"), &act())?;
                    self.snapshots += 1;
                }
            }
            self.workspaces = end;
        }
        while self.labels < size * LABELS_PER_WORKSPACE {
            // Not at the newest: what is shown of it would grow with them.
            let snapshot = self.heads[(self.labels % (HISTORY - 1)) as usize];
            labels.set(&LabelName::new(format!("run/{:07}", self.labels))?, Some(snapshot), &act())?;
            self.labels += 1;
        }
        Ok(())
    }
}
