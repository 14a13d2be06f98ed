//! Compares plans of random histories with each history evaluated alone.

use amalgam_engine::SplitMix64;
use amalgam_engine::workspace::{Change, NewWorkspace, WorkspaceName, Workspaces};

use super::*;
use crate::retention::{Rule, evaluate};

const HOUR: i64 = 3_600 * 1_000_000_000;

/// Evaluates each history alone and as a whole; returns which snapshots are kept.
fn verdicts_one_by_one(
    history: &History,
    heads: &[SnapshotId],
    policy: &Policy,
    at: Time,
) -> HashMap<SnapshotId, bool> {
    let mut stays: HashMap<SnapshotId, bool> = HashMap::new();
    for head in heads {
        let log = history.log(&[*head], amalgam_engine::history::LogOrder::Time).expect("a log");
        let log: Vec<_> = log.collect::<Result<_>>().expect("records");
        let aged = |entry: &amalgam_engine::history::LogEntry| SnapshotAge {
            time: entry.snapshot.time,
            placed: entry.snapshot.time,
            automatic: entry.snapshot.metadata.contains_key(AUTOMATIC_KEY),
        };
        let line: Vec<_> = log.iter().map(aged).collect();
        for (entry, verdict) in log.iter().zip(evaluate(policy, &line, at)) {
            *stays.entry(entry.id).or_default() |= verdict != Verdict::Drop;
        }
    }
    stays
}

#[test]
fn forks_are_judged_as_if_each_history_were_judged_alone() {
    for seed in 1..=40_u64 {
        let mut random = SplitMix64::new(seed);
        let store = Store::in_memory();
        let (workspaces, history) = (Workspaces::of(&store), History::of(&store));
        let mut time = 1_000 * 24 * HOUR;
        let mut names: Vec<WorkspaceName> = Vec::new();
        for n in 0..120_u64 {
            time += HOUR * random.below(30) as i64 / 4 + 1;
            let act = OperationContext::new("ann", Time(time));
            if names.is_empty() || random.below(5) == 0 {
                let name = WorkspaceName::new(format!("w{n}")).expect("a name");
                match names.get(random.below(names.len().max(1) as u64) as usize) {
                    Some(from) => workspaces.fork(from, std::slice::from_ref(&name), &act).map(drop).expect("forked"),
                    None => workspaces.create(&name, &NewWorkspace::default(), &act).map(drop).expect("made"),
                }
                names.push(name);
                continue;
            }
            let name = &names[random.below(names.len() as u64) as usize];
            let mut tree = workspaces.open(name).expect("open");
            tree.write("n", &n.to_le_bytes()).expect("write");
            let mut change = Change::new("change");
            if random.below(4) > 0 {
                change.metadata.insert(AUTOMATIC_KEY.to_owned(), "true".to_owned());
            }
            if random.below(6) == 0 {
                let other = workspaces.get(&names[random.below(names.len() as u64) as usize]).expect("there").head;
                let own = workspaces.get(name).expect("there").head;
                change.other_parents.extend(other.filter(|other| Some(*other) != own));
            }
            workspaces.commit(name, &mut tree, &change, &act).expect("commit");
        }
        let spans = [Span::NONE, Span::hours(5), Span::hours(60), Span::hours(400)];
        let mut rule = || Rule {
            last: [0, 0, 3][random.below(3) as usize],
            all: spans[random.below(2) as usize],
            hourly: spans[random.below(4) as usize],
            daily: spans[random.below(4) as usize],
            weekly: spans[random.below(4) as usize],
        };
        let policy = Policy { automatic: rule(), people: rule() };
        let policies = Policies { default: policy, ..Policies::default() };
        let at = Time(time);
        let plan = plan(&history, &policies, &SweepScope::default(), at, &LivedTime::default()).expect("a plan");
        let heads: Vec<_> = names.iter().filter_map(|name| workspaces.get(name).expect("there").head).collect();
        let expected = verdicts_one_by_one(&history, &heads, &policy, at);
        assert_eq!(plan.snapshots.len(), expected.len());
        for planned in plan.snapshots.iter().filter(|planned| !matches!(planned.action, PlannedAction::KeepNamed(_))) {
            assert_eq!(
                planned.action != PlannedAction::Thin,
                expected[&planned.id],
                "seed {seed}: {planned:?} {policy:?}"
            );
        }
    }
}

#[test]
fn forks_of_a_long_history_are_judged_by_what_is_their_own() {
    let store = Store::in_memory();
    let workspaces = Workspaces::of(&store);
    let main = WorkspaceName::new("main").expect("a name");
    let act = |n: i64| OperationContext::new("ann", Time(n * HOUR / 3));
    workspaces.create(&main, &NewWorkspace::default(), &act(0)).expect("made");
    let commit = |name: &WorkspaceName, n: i64| {
        let mut tree = workspaces.open(name).expect("open");
        tree.write("n", &n.to_le_bytes()).expect("write");
        let mut change = Change::new("automatic");
        if n % 2 == 0 {
            change.metadata.insert(AUTOMATIC_KEY.to_owned(), "true".to_owned());
        }
        workspaces.commit(name, &mut tree, &change, &act(n)).expect("commit");
    };
    (1..=500).for_each(|n| commit(&main, n));
    for n in 0..300 {
        let fork = WorkspaceName::new(format!("fork{n}")).expect("a name");
        workspaces.fork(&main, std::slice::from_ref(&fork), &act(501)).expect("forked");
        commit(&fork, 502 + n);
    }
    let lived = LivedTime::default();
    let history = History::of(&store);
    let mut planner = Planner::new(&history, Time(1_000 * HOUR), &lived);
    let lines = planner.read_names(&SweepScope::default()).expect("names");
    for (workspace, head) in &lines.workspaces {
        planner.judge_history(Some(workspace), &[*head], &Policies::default()).expect("judged");
    }
    assert_eq!(planner.found.len(), 800);
    assert!(planner.judged < 800 + 300 * 80, "{} snapshots were judged, of 300 x 500", planner.judged);
}

#[test]
fn deleted_workspaces_keep_every_tree_that_they_kept_before() {
    let everything = Policy { automatic: Rule::EVERYTHING, ..Policy::default() };
    let own = Policies { workspaces: [("one".to_owned(), everything)].into(), ..Policies::default() };
    for policies in [Policies::default(), own] {
        let store = Store::in_memory();
        let (workspaces, history) = (Workspaces::of(&store), History::of(&store));
        let names = ["one", "two"].map(|name| WorkspaceName::new(name).expect("a name"));
        let act = |hour: i64| OperationContext::new("ann", Time(hour * HOUR));
        for name in &names {
            workspaces.create(name, &NewWorkspace::default(), &act(0)).expect("made");
        }
        for day in 1..=20_i64 {
            for (hour, name) in (1..=6).zip(names.iter().cycle()) {
                let now: i64 = day * 24 + hour;
                let mut tree = workspaces.open(name).expect("open");
                tree.write("n", &now.to_le_bytes()).expect("write");
                let mut change = Change::new("automatic");
                change.metadata.insert(AUTOMATIC_KEY.to_owned(), "true".to_owned());
                workspaces.commit(name, &mut tree, &change, &act(now)).expect("commit");
            }
        }
        let kept = || {
            let at = Time(22 * 24 * HOUR);
            let plan = plan(&history, &policies, &SweepScope::default(), at, &LivedTime::default()).expect("a plan");
            let kept = plan.snapshots.iter().filter(|planned| planned.action != PlannedAction::Thin);
            kept.map(|planned| planned.id).collect::<HashSet<_>>()
        };
        let before = kept();
        assert!(before.len() >= 40, "one of each day and workspace at least, not {}", before.len());
        for name in &names {
            workspaces.delete(name, &act(21 * 24)).expect("deleted");
        }
        let after = kept();
        assert_eq!(before.difference(&after).count(), 0, "of {} trees", before.len());
    }
}
