//! Forks and undo of workspaces.

use amalgam_benches::bench::Bench;
use amalgam_benches::trees::{Plan, Shape, reference};
use amalgam_benches::{Bar, Result, machine, sample};
use amalgam_engine::workspace::{Change, NewWorkspace};
use amalgam_engine::{Durability, OperationContext, Store, Time, WorkspaceName, Workspaces};

const FORK: &str = "workspace fork";
const FORKS: &str = "fork of 1,000 workspaces in one call";
const UNDO: &str = "undo of a commit, 1 M files";
const UNDO_DURABLE: &str = "undo of a commit, 1 M files, durable";

pub(crate) const FIGURES: &[&str] = &[FORK, FORKS, UNDO, UNDO_DURABLE];

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    eprintln!("workspaces");
    let (files, forks, times) = bench.size((1_000_000, 1_000, 2_000), (1_000, 10, 20));
    let store = Store::open(bench.directory("workspaces"))?;
    let (_, snapshot) = Plan { shape: Shape::Nested, files }.build(&store, &reference("head/built"))?;
    let workspaces = Workspaces::of(&store);
    let (main, act) = (WorkspaceName::new("main")?, OperationContext::new("bench", Time(1)).buffered());
    let new = NewWorkspace { from: Some(snapshot), ..NewWorkspace::default() };
    workspaces.create(&main, &new, &act)?;
    machine::settle();

    let single = sample(times / 10, times, |round| {
        workspaces.fork(&main, &[WorkspaceName::new(format!("one/{round}"))?], &act)?;
        Ok(())
    })?;
    let how = format!("buffered, of a tree of {files} files: {}", single.describe("us"));
    bench.add(FORK, (single.p50(), "us"), Bar::AtMost(20.0), how);

    let many = sample(3, 30, |round| {
        let names = (0..forks).map(|number| WorkspaceName::new(format!("many/{round}/{number}")));
        workspaces.fork(&main, &names.collect::<Result<Vec<_>, _>>()?, &act)?;
        Ok(())
    })?;
    let how = format!("buffered, one transaction, names made included: {}", many.describe("us"));
    bench.add(FORKS, (many.p50() / 1_000.0, "ms"), Bar::AtMost(10.0), how);

    for (name, durability) in [(UNDO, Durability::Buffered), (UNDO_DURABLE, Durability::Durable)] {
        let act = OperationContext { durability, ..act.clone() };
        let mut tree = workspaces.open(&main)?;
        let path = Plan { shape: Shape::Nested, files }.path(files / 2);
        let mut undone = Vec::new();
        for round in 0..bench.size(500, 10) {
            tree.write(&path, format!("round {round} {durability:?}").as_bytes())?;
            workspaces.commit(&main, &mut tree, &Change::new("edit"), &act)?;
            undone.push(sample(0, 1, |_| Ok(workspaces.undo(&main, &act).map(drop)?))?.p50());
            tree = workspaces.open(&main)?;
        }
        let undone = amalgam_benches::Samples::new(undone);
        let how = format!("{durability:?}, of a tree of {files} files: {}", undone.describe("us"));
        bench.add(name, (undone.p50() / 1_000.0, "ms"), Bar::AtMost(1.0), how);
    }
    Ok(())
}
