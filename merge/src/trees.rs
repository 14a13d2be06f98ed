//! Connects the merge of trees with the merge of contents: the engine passes files that both sides changed, and the rules choose
//! the strategy. Behind the feature `engine`, so that users that merge only bytes need no store.

use std::collections::BTreeMap;
use std::sync::Arc;

use amalgam_engine::merge::{Contest, MergeContents, Verdict};
use amalgam_engine::{DiffOptions, Error, Result, RootId, Store, TreePath, diff_roots};

use crate::outcome::{Done, Origin, Outcome, Setting, Sides};
use crate::rules::{Content, Rules};
use crate::way::{Way, merge_down};

/// Merges contents by rules.
pub struct ByRules {
    rules: Arc<Rules>,
    setting: Setting,
}

impl ByRules {
    /// Creates a merger with these rules, for versions of two agents.
    pub fn new(rules: &Arc<Rules>, our_agent: &str, their_agent: &str) -> Self {
        let mut setting = Setting::default();
        setting.context.ours.agent = our_agent.to_owned();
        setting.context.theirs.agent = their_agent.to_owned();
        Self { rules: Arc::clone(rules), setting }
    }

    fn setting_of(&self, contest: &Contest<'_>) -> Setting {
        let mut setting = self.setting.clone();
        let with_time = |origin: &mut Origin, time: i64| origin.time = time;
        with_time(&mut setting.context.ours, contest.ours.entry().mtime.0);
        with_time(&mut setting.context.theirs, contest.theirs.entry().mtime.0);
        setting
    }

    /// Decides about a file that is too large to read: only a strategy that takes one side as a whole can.
    fn decide_unseen(&self, contest: &Contest<'_>, bytes: u64) -> Verdict {
        let way = self.rules.choose(contest.path.as_bytes(), Content::Binary);
        let too_large = || Verdict::Conflict { way: format!("{bytes} bytes are too many to merge") };
        let Some(way) = way else { return too_large() };
        if !["ours", "theirs", "last-writer", "priority"].contains(&way.name()) {
            return too_large();
        }
        let sides = Sides { base: None, ours: b"ours", theirs: b"theirs" };
        match merge_down(way, &sides, &self.setting_of(contest)).outcome {
            Outcome::Merged(taken) if taken == sides.ours => Verdict::Ours { way: way.name().to_owned() },
            Outcome::Merged(_) => Verdict::Theirs { way: way.name().to_owned() },
            _ => too_large(),
        }
    }
}

impl MergeContents for ByRules {
    fn merge(&self, contest: &Contest<'_>) -> Result<Verdict> {
        let base_size = contest.base.as_ref().map_or(0, |base| base.size());
        let largest = contest.ours.size().max(contest.theirs.size()).max(base_size);
        if largest > self.setting.limits.text_bytes_max {
            return Ok(self.decide_unseen(contest, largest));
        }
        let base = contest.base.as_ref().map(|base| base.read()).transpose()?;
        let (ours, theirs) = (contest.ours.read()?, contest.theirs.read()?);
        let sides = Sides { base: base.as_deref(), ours: &ours, theirs: &theirs };
        let no_rule = || Error::Invalid { what: "merge rules", why: format!("none matches {}", contest.path) };
        let way: &Way = self.rules.choose(contest.path.as_bytes(), Content::of(&sides)).ok_or_else(no_rule)?;
        let done = merge_down(way, &sides, &self.setting_of(contest));
        let way = words(&done);
        Ok(match done.outcome {
            Outcome::Merged(bytes) if bytes == *ours => Verdict::Ours { way },
            Outcome::Merged(bytes) if bytes == *theirs => Verdict::Theirs { way },
            Outcome::Merged(bytes) => Verdict::Merged { bytes: bytes.into(), way },
            Outcome::Conflicted(_) | Outcome::Unable(_) => Verdict::Conflict { way },
        })
    }
}

/// Describes the decision: the strategies that were tried, and why the last one was unable, if it was.
fn words(done: &Done) -> String {
    let mut words: Vec<_> = done.before.iter().map(|step| step.way.to_owned()).collect();
    words.push(done.way.to_owned());
    let tried = words.join(" > ");
    match &done.outcome {
        Outcome::Unable(why) => format!("{tried}: {why}"),
        _ => tried,
    }
}

/// Returns the groups of the rules as units of one merge: changed paths of a group in one directory belong together.
pub fn units_of(
    rules: &Rules,
    store: &Store,
    base: Option<RootId>,
    [ours, theirs]: [RootId; 2],
) -> Result<Vec<Vec<TreePath>>> {
    let mut units: BTreeMap<(String, TreePath), Vec<TreePath>> = BTreeMap::new();
    for side in [ours, theirs] {
        for change in diff_roots(store, base, Some(side), DiffOptions::default())? {
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
    Ok(units.into_values().collect())
}
