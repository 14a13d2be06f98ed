//! Compares the two ways of measuring.

use amalgam_engine::workspace::{Change, LabelName, Labels, NewWorkspace, WorkspaceName, Workspaces};
use amalgam_engine::{OperationContext, SplitMix64, Time};

use super::*;

fn below(random: &mut SplitMix64, end: usize) -> usize {
    random.below(end as u64) as usize
}

#[test]
fn a_walk_over_the_history_finds_what_readings_of_everything_find() {
    for seed in 1..=30_u64 {
        let mut random = SplitMix64::new(seed);
        let store = Store::in_memory();
        let (workspaces, labels) = (Workspaces::of(&store), Labels::of(&store));
        let mut names: Vec<WorkspaceName> = Vec::new();
        for n in 0..90 {
            let act = OperationContext::new("ann", Time(n as i64));
            let any = names.get(below(&mut random, names.len().max(1))).cloned();
            match (any, below(&mut random, 8)) {
                (None, _) | (_, 0) => {
                    names.push(WorkspaceName::new(format!("w{n}")).expect("a name"));
                    let new = NewWorkspace::default();
                    workspaces.create(names.last().expect("one"), &new, &act).expect("made");
                }
                (Some(from), 1 | 2) => {
                    names.push(WorkspaceName::new(format!("w{n}")).expect("a name"));
                    workspaces.fork(&from, &names[names.len() - 1..], &act).expect("forked");
                }
                (Some(name), 3) => {
                    if let Some(head) = workspaces.get(&name).expect("there").head {
                        let label = LabelName::new(format!("l{n}")).expect("a name");
                        labels.set(&label, Some(head), &act).map(drop).expect("labelled");
                    }
                }
                (Some(name), way) => {
                    let mut tree = workspaces.open(&name).expect("open");
                    let (path, bytes) = (
                        format!("d{}/f{}", below(&mut random, 3), below(&mut random, 4)),
                        [below(&mut random, 5) as u8; 300],
                    );
                    tree.create_directories(path.split_once("/").expect("a folder").0).expect("made");
                    tree.write(&path, &bytes).expect("write");
                    let mut change = Change::new("change");
                    change.even_unchanged = true;
                    let own = workspaces.get(&name).expect("there").head;
                    let other = workspaces.get(&names[below(&mut random, names.len())]).expect("there").head;
                    change.other_parents.extend(other.filter(|other| way == 4 && Some(*other) != own));
                    workspaces.commit(&name, &mut tree, &change, &act).expect("commit");
                }
            }
        }
        let goes_on = &mut |_, _| ControlFlow::Continue(());
        let after = store.last_operation().expect("a number") / 2;
        let by_reading = measure_with(&store, after, usize::MAX, goes_on).expect("measured").expect("to its end");
        let by_walking = measure_with(&store, after, 0, goes_on).expect("measured").expect("to its end");
        assert_eq!(by_reading, by_walking, "seed {seed}");
        assert!(by_reading.names.len() > 5 && by_reading.alive.objects > 20, "{by_reading:?}");
    }
}
