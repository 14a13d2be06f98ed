//! Workspaces to mount.

use std::path::Path;

use amalgam_benches::Result;
use amalgam_benches::trees::{Plan, Shape, reference};
use amalgam_engine::workspace::{Change, NewWorkspace, WorkspaceName, Workspaces};
use amalgam_engine::{OperationContext, Store, Time};
use amalgam_materializer::{
    CaptureOptions, HostDir, Index, KnownContents, Progress as CaptureProgress, Rules, Scope, capture,
};

fn act() -> OperationContext {
    OperationContext::new("bench", Time(1))
}

/// Captures a directory as a workspace of the store in another.
pub fn take_in(home: &Path, name: &str, tree: &Path) -> Result<()> {
    std::fs::create_dir_all(home)?;
    let store = Store::open(home.join("store"))?;
    let directory = HostDir::open(tree)?;
    let mut index = Index::new(directory.identity());
    let (rules, known, progress) = (Rules::new(&[])?, KnownContents::default(), CaptureProgress::default());
    let job = CaptureOptions { rules: &rules, scope: Scope::All, known: &known, now: Time(1), progress: &progress };
    let mut captured = capture(&store, &directory, &mut index, &job)?.tree;
    let workspaces = Workspaces::of(&store);
    let name = WorkspaceName::new(name)?;
    workspaces.create(&name, &NewWorkspace::default(), &act())?;
    workspaces.commit(&name, &mut captured, &Change::new("all"), &act())?;
    Ok(())
}

/// Makes a workspace of many small files.
pub fn make_up(home: &Path, name: &str, files: u64) -> Result<()> {
    std::fs::create_dir_all(home)?;
    let store = Store::open(home.join("store"))?;
    let plan = Plan { shape: Shape::Nested, files };
    let (_, snapshot) = plan.build(&store, &reference("bench/many"))?;
    let new = NewWorkspace { from: Some(snapshot), ..NewWorkspace::default() };
    Workspaces::of(&store).create(&WorkspaceName::new(name)?, &new, &act())?;
    Ok(())
}
