//! Connects the merge of trees with the merge of contents: the engine passes files that both sides changed, and the rules choose
//! the strategy. Behind the feature `engine`, so that users that merge only bytes need no store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use amalgam_engine::merge::{ContestedFile, MergeContents, Verdict, WholeSide};
use amalgam_engine::{DiffOptions, Error, Result, RootId, Store, TreePath, diff_roots};

use crate::outcome::{MergeReport, MergeSettings, Origin, Outcome};
use crate::rules::{Content, Rules};
use crate::sides::Sides;
use crate::strategy::{MergeStrategy, merge_with_fallback};

/// Merges contents by rules.
pub struct RuleMerger {
    rules: Arc<Rules>,
    setting: MergeSettings,
}

impl RuleMerger {
    /// Creates a merger with these rules, for versions of two agents.
    pub fn new(rules: &Arc<Rules>, our_agent: &str, their_agent: &str) -> Self {
        let mut setting = MergeSettings::default();
        setting.origins.ours.agent = our_agent.to_owned();
        setting.origins.theirs.agent = their_agent.to_owned();
        Self { rules: Arc::clone(rules), setting }
    }

    fn setting_of(&self, contest: &ContestedFile<'_>) -> MergeSettings {
        let mut setting = self.setting.clone();
        let with_time = |origin: &mut Origin, time: i64| origin.time = time;
        with_time(&mut setting.origins.ours, contest.ours.entry().mtime.0);
        with_time(&mut setting.origins.theirs, contest.theirs.entry().mtime.0);
        setting
    }

    /// Decides about a file that is too large to read: only a strategy that takes one side as a whole can.
    fn decide_unseen(&self, contest: &ContestedFile<'_>, bytes: u64) -> Verdict {
        let strategy = self.rules.choose(contest.path.as_bytes(), Content::Binary);
        let too_large = || Verdict::Conflict { strategy: format!("{bytes} bytes are too many to merge") };
        let Some(strategy) = strategy else { return too_large() };
        if !["ours", "theirs", "last-writer", "priority"].contains(&strategy.name()) {
            return too_large();
        }
        let sides = Sides { base: None, ours: b"ours", theirs: b"theirs" };
        match merge_with_fallback(strategy, &sides, &self.setting_of(contest)).outcome {
            Outcome::Merged(taken) if taken == sides.ours => Verdict::Ours { strategy: strategy.name().to_owned() },
            Outcome::Merged(_) => Verdict::Theirs { strategy: strategy.name().to_owned() },
            _ => too_large(),
        }
    }
}

impl MergeContents for RuleMerger {
    fn merge(&self, contest: &ContestedFile<'_>) -> Result<Verdict> {
        let base_size = contest.base.as_ref().map_or(0, |base| base.size());
        let largest = contest.ours.size().max(contest.theirs.size()).max(base_size);
        if largest > self.setting.limits.text_bytes_max {
            return Ok(self.decide_unseen(contest, largest));
        }
        let base = contest.base.as_ref().map(|base| base.read()).transpose()?;
        let (ours, theirs) = (contest.ours.read()?, contest.theirs.read()?);
        let sides = Sides { base: base.as_deref(), ours: &ours, theirs: &theirs };
        let no_rule = || Error::Invalid { what: "merge rules", why: format!("none matches {}", contest.path) };
        let strategy: &MergeStrategy =
            self.rules.choose(contest.path.as_bytes(), Content::of(&sides)).ok_or_else(no_rule)?;
        let report = merge_with_fallback(strategy, &sides, &self.setting_of(contest));
        let strategy = describe(&report);
        Ok(match report.outcome {
            Outcome::Merged(bytes) if bytes == *ours => Verdict::Ours { strategy },
            Outcome::Merged(bytes) if bytes == *theirs => Verdict::Theirs { strategy },
            Outcome::Merged(bytes) => Verdict::Merged { bytes: bytes.into(), strategy },
            Outcome::Conflicted(_) | Outcome::Unable(_) => Verdict::Conflict { strategy },
        })
    }

    fn side_without_contents(&self, path: &TreePath) -> Option<WholeSide> {
        let side = |content| match self.rules.choose(path.as_bytes(), content)?.name() {
            "ours" => Some(WholeSide::Ours),
            "theirs" => Some(WholeSide::Theirs),
            _ => None,
        };
        // A rule for texts alone, or for binary files alone, does not decide where there are no two contents.
        side(Content::Text).filter(|text| side(Content::Binary) == Some(*text))
    }
}

/// Describes the decision: the strategies that were tried, and why the last one was unable, if it was.
fn describe(report: &MergeReport) -> String {
    let mut words: Vec<_> = report.failed_attempts.iter().map(|step| step.strategy.to_owned()).collect();
    words.push(report.strategy.to_owned());
    let tried = words.join(" > ");
    match &report.outcome {
        Outcome::Unable(why) => format!("{tried}: {why}"),
        _ => tried,
    }
}

/// The changed paths of a group in one directory.
#[derive(Default)]
struct Unit {
    paths: BTreeSet<TreePath>,
    /// The trees that changed some of them: 0 is the target, the sources follow.
    sides: BTreeSet<usize>,
}

/// Returns the groups of the rules as units of a merge of one or more sources: changed paths of a group in one directory belong
/// together, whichever sources changed them. Each item is the base of a source, and the trees of the target and of that source.
/// Leaves out units that only one tree changed, which never conflict.
pub fn merge_units(
    rules: &Rules,
    store: &Store,
    merges: &[(Option<RootId>, [RootId; 2])],
) -> Result<Vec<Vec<TreePath>>> {
    let mut units: BTreeMap<(String, TreePath), Unit> = BTreeMap::new();
    for (at, (base, [ours, theirs])) in merges.iter().enumerate() {
        for (side, root) in [(0, *ours), (at + 1, *theirs)] {
            for change in diff_roots(store, *base, Some(root), DiffOptions::default())? {
                let path = change?.path;
                let Some((parent, _)) = path.split_last() else { continue };
                for group in rules.groups_of(path.as_bytes()) {
                    let unit = units.entry((group.name.clone(), parent.clone())).or_default();
                    unit.paths.insert(path.clone());
                    unit.sides.insert(side);
                }
            }
        }
    }
    let shared = units.into_values().filter(|unit| unit.sides.len() > 1);
    Ok(shared.map(|unit| unit.paths.into_iter().collect()).collect())
}

#[cfg(test)]
mod tests {
    use amalgam_engine::{MergeOptions, NoContents, Pin, WorkingTree, merge_trees};

    use super::*;

    /// Stores a tree with these files.
    fn tree(store: &Store, files: &[String]) -> (RootId, Pin) {
        let mut tree = WorkingTree::new(store);
        for file in files {
            if let Some((directory, _)) = file.rsplit_once('/') {
                tree.create_directories(directory).expect("directories");
            }
            tree.write(file.as_str(), file.as_bytes()).expect("written");
        }
        tree.freeze().hold().expect("stored")
    }

    #[test]
    fn only_groups_that_two_sides_changed_are_units_however_many_one_side_changed() {
        let text = "[[group]]\npaths = [\"manifest\", \"lock\"]\n";
        let rules = Rules::built_in().with_layer(Rules::read(text, "merge.toml").expect("rules"));
        let store = Store::in_memory();
        let locks: Vec<_> = (0..=1_000).map(|at| format!("d{at}/lock")).collect();
        let (base, _base_pin) = tree(&store, &[]);
        let (ours, _our_pin) = tree(&store, &["d7/manifest".to_owned()]);
        let (theirs, _their_pin) = tree(&store, &locks);
        let units = merge_units(&rules, &store, &[(Some(base), [ours, theirs])]).expect("units");
        let path = |text: &str| TreePath::new(text).expect("a path");
        assert_eq!(units, [[path("d7/lock"), path("d7/manifest")]]);
        let options = MergeOptions { units, ..MergeOptions::default() };
        let outcome = merge_trees(&store, Some(base), ours, theirs, &NoContents, &options).expect("merged");
        assert_eq!(outcome.conflicts.len(), 1);
    }
}
