//! Connects the merge of trees with the merge of contents: the engine passes files that both sides changed, and the rules choose
//! the strategy. Behind the feature `engine`, so that users that merge only bytes need no store.

use std::collections::BTreeMap;
use std::sync::Arc;

use amalgam_engine::merge::{ContestedFile, MergeContents, Verdict};
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

/// Returns the groups of the rules as units of a merge of one or more sources: changed paths of a group in one directory belong
/// together, whichever sources changed them. Each item is the base of a source, and the trees of the target and of that source.
pub fn merge_units(
    rules: &Rules,
    store: &Store,
    merges: &[(Option<RootId>, [RootId; 2])],
) -> Result<Vec<Vec<TreePath>>> {
    let mut units: BTreeMap<(String, TreePath), Vec<TreePath>> = BTreeMap::new();
    for (base, sides) in merges {
        for side in sides {
            for change in diff_roots(store, *base, Some(*side), DiffOptions::default())? {
                let path = change?.path;
                let Some((parent, _)) = path.split_last() else { continue };
                for group in rules.groups_of(path.as_bytes()) {
                    let unit = units.entry((group.name.clone(), parent.clone())).or_default();
                    if !unit.contains(&path) {
                        unit.push(path.clone());
                    }
                }
            }
        }
    }
    Ok(units.into_values().collect())
}
