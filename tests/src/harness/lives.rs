//! Random lives of a store: workspaces that fork and commit, labels and notes, trees with every kind of entry.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use amalgam_engine::object::EntryKind;
use amalgam_engine::work::RenameMode;
use amalgam_engine::workspace::{Change, LabelName, Labels, NewWorkspace};
use amalgam_engine::{
    OperationContext, Result, SnapshotId, Store, Time, VerifyOptions, WorkingTree, WorkspaceName, Workspaces, verify,
};

use super::{Random, walk};

/// Lives for some commits; returns the snapshots that were made.
pub fn live(store: &Store, random: &mut Random, commits: u64) -> Result<Vec<SnapshotId>> {
    let workspaces = Workspaces::of(store);
    let labels = Labels::of(store);
    let act = OperationContext::new("ada", Time(7)).buffered();
    let main = WorkspaceName::new("main")?;
    if workspaces.find(&main)?.is_none() {
        workspaces.create(&main, &NewWorkspace::default(), &act)?;
    }
    let mut made = Vec::new();
    for _ in 0..commits {
        let names: Vec<_> = workspaces.list("", None, 100)?.into_iter().map(|workspace| workspace.name).collect();
        let name = names[random.below(names.len() as u64) as usize].clone();
        let mut tree = workspaces.open(&name)?;
        for _ in 0..1 + random.below(5) {
            edit(&mut tree, random)?;
        }
        let done = workspaces.commit(&name, &mut tree, &Change::new("a step"), &act)?;
        made.push(done.snapshot);
        match random.below(8) {
            0 => {
                let fork = WorkspaceName::new(format!("fork/{}", random.number()))?;
                workspaces.fork(&name, &[fork], &act)?;
            }
            1 => {
                let label = LabelName::new(format!("label/{}", random.below(4)))?;
                labels.set(&label, Some(done.snapshot), &act)?;
            }
            2 => drop(labels.set_note(done.snapshot, Some("a note"), &act)?),
            3 => drop(labels.set_reward(done.snapshot, Some(0.5), &act)?),
            4 if name != main && names.len() > 2 => drop(workspaces.delete(&name, &act)?),
            _ => {}
        }
    }
    Ok(made)
}

/// Changes something in a tree.
pub fn edit(tree: &mut WorkingTree, random: &mut Random) -> Result<()> {
    let directory = format!("d{}/e{}", random.below(4), random.below(3));
    tree.create_directories(&directory)?;
    let path = format!("{directory}/f{}", random.below(12));
    let other = format!("{directory}/g{}", random.number());
    let there = tree.exists(&path)?;
    match random.below(16) {
        0 => {
            let bytes = random.bytes(400_000);
            tree.write(&path, &bytes)?;
        }
        1 if there => tree.write_at(&path, random.below(50_000), b"in the middle")?,
        2 if there => tree.remove(&path)?,
        3 if there => tree.link(&path, &other)?,
        4 if there => tree.rename(&path, &other, RenameMode::Replace)?,
        5 if there => {
            let bytes = random.bytes(3_000);
            tree.set_xattr(&path, b"user.large", &bytes)?;
        }
        6 => tree.set_state(&format!("key/{}", random.below(40)), &random.below(100).to_string())?,
        7 => tree.symlink(&other, "somewhere")?,
        8 => {
            for number in 0..60 {
                tree.write(format!("{directory}/many{number:03}"), &random.number().to_le_bytes())?;
            }
        }
        9 => tree.write(&path, "text that is pressed well; ".repeat(400).as_bytes())?,
        _ => {
            let length = 1 + random.below(4_000) as usize;
            let bytes = random.bytes(length);
            tree.write(&path, &bytes)?;
        }
    }
    Ok(())
}

/// Every file and symlink of a tree with its bytes or target, by path.
pub fn contents(tree: &WorkingTree) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut contents = BTreeMap::new();
    walk(tree, &mut |path, tree| {
        let is_symlink = tree.stat(path)?.is_some_and(|stat| stat.kind == EntryKind::Symlink);
        let bytes = if is_symlink { tree.read_link(path)?.to_vec() } else { tree.read(path)? };
        contents.insert(path.to_owned(), bytes);
        Ok(())
    })?;
    Ok(contents)
}

/// Panics when a verification of everything finds anything wrong.
pub fn assert_sound(store: &Store) {
    let report = verify(store, &VerifyOptions::reading_data(), &|_| ControlFlow::Continue(())).expect("a report");
    assert!(report.problems.is_empty() && report.records.is_empty(), "{report:#?}");
    assert_eq!(report.orphans, 0, "a row that nothing names");
}
