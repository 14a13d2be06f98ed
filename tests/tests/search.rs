//! The search: what it finds, that its numbers add up, that a seed repeats it, that threads do not disturb it.

#[path = "../../engine/examples/mcts/task.rs"]
mod task;

use std::collections::{BTreeMap, HashMap, HashSet};

use amalgam_engine::episode::{EpisodeName, Episodes, StepId};
use amalgam_engine::search::{
    Choice, Edits, Ended, NodeId, NodeView, Problem, Search, SearchOptions, Selection, TreeSearch, Widening,
};
use amalgam_engine::{Commit, Error, OperationContext, SnapshotId, Store, Time, WorkingTree};
use amalgam_tests::harness::{name, over_all};
use task::Repair;

/// A tree of choices of three digits below `width`, whose rewards mislead: `2` looks best at first, `0 1 2` is.
struct Digits {
    width: u8,
    depth: usize,
}

impl Problem for Digits {
    type State = Vec<u8>;
    type Action = u8;
    type Error = Error;

    fn actions(&self, state: &Vec<u8>, depth: usize) -> Result<Vec<Choice<u8>>, Error> {
        assert_eq!(state.len(), depth);
        let prior = |digit: &u8| f64::from(self.width - digit);
        let choices = (0..self.width).map(|digit| Choice { action: digit, prior: prior(&digit) });
        Ok(if state.len() == self.depth { Vec::new() } else { choices.collect() })
    }

    fn apply(&self, state: &Vec<u8>, action: &u8) -> Result<Vec<u8>, Error> {
        Ok([&state[..], &[*action]].concat())
    }

    fn evaluate(&self, state: &Vec<u8>) -> Result<f64, Error> {
        Ok(match state[..] {
            [0, 1, 2] => 1.0,
            [0, ..] => 0.3,
            [2] => 0.6,
            _ => 0.1,
        })
    }

    fn is_terminal(&self, _: &Vec<u8>, reward: f64) -> Result<bool, Error> {
        Ok(reward >= 1.0)
    }
}

fn options(seed: u64) -> SearchOptions {
    SearchOptions { seed, ..SearchOptions::default() }
}

fn all<P: Problem>(search: &Search<P>) -> Vec<NodeView<P::State, P::Action>> {
    (0..).map_while(|number| search.node(NodeId(number))).collect()
}

/// Every state has been visited once for itself and once for each state below it, and its total is the sum of their rewards.
fn check_sums<S, A>(nodes: &[NodeView<S, A>]) {
    for node in nodes {
        let children: Vec<_> = node.children.iter().map(|child| &nodes[child.0]).collect();
        assert_eq!(node.visits, 1 + children.iter().map(|child| child.visits).sum::<u64>());
        let total = node.reward + children.iter().map(|child| child.total).sum::<f64>();
        assert!((node.total - total).abs() < 1e-9, "{} is not {total}", node.total);
        for child in children {
            assert_eq!((child.parent, child.depth), (Some(node.id), node.depth + 1));
        }
    }
}

#[test]
fn the_optimum_of_a_small_tree_is_found() {
    let selections = [Selection::Uct { constant: 0.5 }, Selection::Puct { constant: 1.0 }];
    let widenings = [None, Some(Widening { factor: 1.0, exponent: 0.5 })];
    for (selection, widening, seed) in selections.iter().flat_map(|selection| {
        widenings.iter().flat_map(move |widening| (0..5).map(move |seed| (*selection, *widening, seed)))
    }) {
        let options = SearchOptions { selection, widening, ..options(seed) };
        let mut search = Search::new(Digits { width: 3, depth: 3 }, Vec::new(), options).expect("a search");
        let ended = search.run(1_000, |so_far| so_far.best_reward >= 1.0).expect("a run");
        assert_eq!(ended, Ended::Stopped, "{options:?}");
        let path = search.path_to(search.best().id);
        assert_eq!(path.iter().filter_map(|node| node.action).collect::<Vec<_>>(), [0, 1, 2]);
        // Without stopping, the whole space is searched: 1 + 3 + 9 + 27 states, each once.
        assert_eq!(search.run(1_000, |_| false).expect("a run"), Ended::Exhausted);
        let nodes = all(&search);
        assert_eq!(nodes.len(), 40);
        assert_eq!(nodes.iter().map(|node| (*node.state).clone()).collect::<HashSet<_>>().len(), 40);
        check_sums(&nodes);
        let statistics = search.statistics();
        assert_eq!((statistics.expansions, statistics.evaluations, statistics.depth_max), (39, 40, 3));
        assert_eq!((statistics.terminals, statistics.best_reward), (27, 1.0));
        assert_eq!(search.most_visited()[0].visits, 40);
    }
}

#[test]
fn limits_are_kept_and_a_run_goes_on_where_the_last_one_ended() {
    let mut search = Search::new(Digits { width: 5, depth: 6 }, Vec::new(), options(1)).expect("a search");
    assert_eq!(search.run(100, |_| false).expect("a run"), Ended::Limit);
    assert_eq!(search.run(50, |_| false).expect("a run"), Ended::Limit);
    assert_eq!(search.run(50, |so_far| so_far.expansions >= 170).expect("a run"), Ended::Stopped);
    assert_eq!(search.statistics().expansions, 170);
    let mut whole = Search::new(Digits { width: 5, depth: 6 }, Vec::new(), options(1)).expect("a search");
    whole.run(170, |_| false).expect("a run");
    let states = |search: &Search<Digits>| all(search).iter().map(|node| (*node.state).clone()).collect::<Vec<_>>();
    assert_eq!(states(&search), states(&whole));
    let shallow = SearchOptions { depth_max: 1, ..options(1) };
    let mut shallow = Search::new(Digits { width: 5, depth: 6 }, Vec::new(), shallow).expect("a search");
    assert_eq!(shallow.run(100, |_| false).expect("a run"), Ended::Exhausted);
    assert_eq!(shallow.statistics().expansions, 5);
}

#[test]
fn a_seed_repeats_a_search() {
    let run = |seed| {
        let mut search = Search::new(Digits { width: 6, depth: 8 }, Vec::new(), options(seed)).expect("a search");
        search.run(500, |_| false).expect("a run");
        let node = |node: &NodeView<Vec<u8>, u8>| ((*node.state).clone(), node.visits, node.total.to_bits());
        all(&search).iter().map(node).collect::<Vec<_>>()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn widening_bounds_the_states_below_one() {
    let widening = Some(Widening { factor: 2.0, exponent: 0.5 });
    let options = SearchOptions { widening, ..options(4) };
    let mut search = Search::new(Digits { width: 100, depth: 9 }, Vec::new(), options).expect("a search");
    search.run(400, |_| false).expect("a run");
    for node in all(&search) {
        let most = 2.0 * (node.visits as f64).sqrt() + 1.0;
        assert!(node.children.len() as f64 <= most, "{} of {}", node.children.len(), node.visits);
    }
    assert!(search.statistics().depth_max > 2);
}

#[test]
fn threads_share_one_tree() {
    for threads in [2, 4, 8] {
        let options = SearchOptions { threads, ..options(1) };
        let mut search = Search::new(Digits { width: 6, depth: 8 }, Vec::new(), options).expect("a search");
        assert_eq!(search.run(2_000, |_| false).expect("a run"), Ended::Limit);
        let nodes = all(&search);
        assert_eq!((nodes.len(), nodes[0].visits, search.statistics().expansions), (2_001, 2_001, 2_000));
        assert_eq!(nodes.iter().map(|node| (*node.state).clone()).collect::<HashSet<_>>().len(), 2_001);
        check_sums(&nodes);
        // More threads than there is to do: they wait for each other and end together.
        let mut small = Search::new(Digits { width: 1, depth: 3 }, Vec::new(), options).expect("a search");
        assert_eq!(small.run(100, |_| false).expect("a run"), Ended::Exhausted);
        assert_eq!(all(&small).len(), 4);
    }
}

/// Fails at some states, once each.
struct Failing(parking::Seen);

mod parking {
    //! States that failed once.
    use std::collections::HashSet;
    use std::sync::Mutex;

    #[derive(Default)]
    pub(super) struct Seen(Mutex<HashSet<Vec<u8>>>);

    impl Seen {
        pub(super) fn is_new(&self, state: &[u8]) -> bool {
            self.0.lock().expect("no thread panicked").insert(state.to_vec())
        }
    }
}

impl Problem for Failing {
    type State = Vec<u8>;
    type Action = u8;
    type Error = Error;

    fn actions(&self, state: &Vec<u8>, _: usize) -> Result<Vec<Choice<u8>>, Error> {
        Ok(if state.len() == 2 { Vec::new() } else { (0..3).map(Choice::of).collect() })
    }

    fn apply(&self, state: &Vec<u8>, action: &u8) -> Result<Vec<u8>, Error> {
        Ok([&state[..], &[*action]].concat())
    }

    fn evaluate(&self, state: &Vec<u8>) -> Result<f64, Error> {
        match state[..] {
            [1] if self.0.is_new(state) => Err(Error::Fault { action: "evaluate", why: "flaky".to_owned() }),
            [2] if self.0.is_new(state) => Ok(1.5),
            _ => Ok(0.5),
        }
    }
}

#[test]
fn an_error_ends_a_run_and_its_action_is_tried_again() {
    for threads in [1, 3] {
        let options = SearchOptions { threads, ..options(0) };
        let mut search = Search::new(Failing(parking::Seen::default()), Vec::new(), options).expect("a search");
        let mut errors = BTreeMap::new();
        loop {
            match search.run(100, |_| false) {
                Ok(ended) => break assert_eq!(ended, Ended::Exhausted),
                Err(error) => *errors.entry(error.to_string()).or_insert(0) += 1,
            }
        }
        // Two threads may fail in one run; then the first error is told.
        assert!(!errors.is_empty() && errors.len() <= 2, "{errors:?}");
        assert!(errors.keys().all(|error| error.contains("flaky") || error.contains("1.5")), "{errors:?}");
        let nodes = all(&search);
        assert_eq!(nodes.len(), 13);
        check_sums(&nodes);
    }
    let none = SearchOptions { threads: 0, ..options(0) };
    assert!(Search::new(Digits { width: 1, depth: 1 }, Vec::new(), none).is_err());
}

/// Appends a letter to a file; worth more the more of them are `b`.
struct Letters;

impl Edits for Letters {
    type Action = char;
    type Error = Error;

    fn actions(&self, _: &WorkingTree, depth: usize) -> Result<Vec<Choice<char>>, Error> {
        Ok(if depth == 4 { Vec::new() } else { "abc".chars().map(Choice::of).collect() })
    }

    fn edit(&self, tree: &mut WorkingTree, letter: &char) -> Result<(), Error> {
        tree.append("word", &[*letter as u8]).map(drop)
    }

    fn evaluate(&self, tree: &WorkingTree, _: SnapshotId) -> Result<f64, Error> {
        Ok(tree.read("word")?.iter().filter(|letter| **letter == b'b').count() as f64 / 4.0)
    }

    fn describe(&self, letter: &char) -> String {
        format!("append {letter}")
    }
}

#[test]
fn a_search_through_trees_is_recorded_as_it_is() {
    over_all(|place| {
        for threads in [1, 3] {
            let store = place.store();
            let mut tree = WorkingTree::new(&store);
            tree.write("word", b"").expect("write");
            let first = tree.commit(Commit::new(&name(format!("head/{threads}")), "first")).expect("commit").snapshot;
            let episode = EpisodeName::new(format!("letters/{threads}")).expect("a name");
            let options = SearchOptions { threads, ..options(3) };
            let act = OperationContext::new("search", Time(5)).buffered();
            let mut search = TreeSearch::begin(&store, &episode, first, Letters, options, &act).expect("a search");
            assert_eq!(search.run(60, |_| false).expect("a run"), Ended::Limit);
            search.run(1_000, |so_far| so_far.best_reward >= 1.0).expect("a run");
            let best = search.best();
            let found = WorkingTree::open(&store, best.state.snapshot).expect("it is kept");
            assert_eq!(found.read("word").expect("read"), b"bbbb");

            let episodes = Episodes::of(&store);
            let steps = episodes.steps(&episode, None, usize::MAX).expect("steps");
            let nodes: HashMap<StepId, _> =
                (0..).map_while(|number| search.node(NodeId(number))).map(|node| (node.state.step, node)).collect();
            assert_eq!((steps.len(), nodes.len()), (nodes.len(), steps.len()));
            for step in &steps {
                let node = &nodes[&step.id];
                let parent = node.parent.and_then(|parent| search.node(parent)).map(|parent| parent.state.step);
                assert_eq!((step.parent, step.snapshot, step.depth), (parent, node.state.snapshot, node.depth as u64));
                assert_eq!((step.reward, step.visits, step.total), (Some(node.reward), node.visits, node.total));
                assert_eq!(step.metadata.get("action"), node.action.map(|letter| format!("append {letter}")).as_ref());
            }
            let leaf = episodes.best_leaf(&episode).expect("query").expect("a leaf");
            assert_eq!(leaf.reward, Some(1.0));
            let said: Vec<_> = episodes.path_to(&episode, best.state.step).expect("path");
            assert_eq!(said.len(), search.path_to(best.id).len());
        }
    });
}

#[test]
fn the_task_of_the_example_is_solved() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = Store::open(directory.path().join("store")).expect("a store");
    let program = Repair::program(&store).expect("the program").commit(Commit::new(&name("head/main"), "as it is"));
    let repair = Repair::new().expect("python3 is needed for this test");
    let options =
        SearchOptions { selection: Selection::Uct { constant: 0.15 }, depth_max: 12, seed: 1, ..Default::default() };
    let (episode, act) =
        (EpisodeName::new("repair").expect("a name"), OperationContext::new("test", Time(1)).buffered());
    let first = program.expect("commit").snapshot;
    let mut search = TreeSearch::begin(&store, &episode, first, repair, options, &act).expect("a search");
    assert!(search.best().reward < 0.7);
    search.run(1_000, |so_far| so_far.best_reward >= 1.0).expect("a run");
    let best = search.best();
    assert_eq!((best.reward, best.depth), (1.0, 5), "five bugs were planted");
    let (evaluations, known) = search.edits().counts();
    assert!(known > 0 && evaluations <= search.statistics().evaluations);
    assert!(Repair::free().counts() == (0, 0) && task::PROGRAM == "ledger.py");
}
