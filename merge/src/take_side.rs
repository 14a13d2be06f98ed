//! Strategies that ignore the content: they take one version as a whole, or none.

use std::cmp::Ordering;

use crate::job::Job;
use crate::outcome::{Origin, Outcome, UnableReason};

pub(crate) fn ours(job: &Job<'_>) -> Outcome {
    Outcome::Merged(job.sides.ours.to_vec())
}

pub(crate) fn theirs(job: &Job<'_>) -> Outcome {
    Outcome::Merged(job.sides.theirs.to_vec())
}

/// Takes the later version; at the same time the one with the greater agent name, then the one with the greater bytes. The result
/// does not depend on which side is ours.
pub(crate) fn last_writer(job: &Job<'_>) -> Outcome {
    let (ours, theirs) = (&job.setting.origins.ours, &job.setting.origins.theirs);
    greater(job, (ours.time, &ours.agent).cmp(&(theirs.time, &theirs.agent)))
}

/// Takes the version of the agent that is named first; if neither is named, the later version.
pub(crate) fn priority(job: &Job<'_>) -> Outcome {
    let agents = &job.options.agents;
    if agents.is_empty() {
        return Outcome::Unable(UnableReason::Missing { option: "agents" });
    }
    let rank = |origin: &Origin| agents.iter().position(|agent| *agent == origin.agent).unwrap_or(agents.len());
    match rank(&job.setting.origins.theirs).cmp(&rank(&job.setting.origins.ours)) {
        Ordering::Equal => last_writer(job),
        unequal => greater(job, unequal),
    }
}

fn greater(job: &Job<'_>, ours_to_theirs: Ordering) -> Outcome {
    match ours_to_theirs.then_with(|| job.sides.ours.cmp(job.sides.theirs)) {
        Ordering::Less => theirs(job),
        Ordering::Equal | Ordering::Greater => ours(job),
    }
}

/// Returns the command of the rule. The caller runs it.
pub(crate) fn regenerate(job: &Job<'_>) -> Outcome {
    if job.options.command.is_empty() {
        return Outcome::Unable(UnableReason::Missing { option: "command" });
    }
    let (command, inputs) = (job.options.command.clone(), job.options.inputs.clone());
    Outcome::Unable(UnableReason::Regenerate { command, inputs })
}

pub(crate) fn review(_: &Job<'_>) -> Outcome {
    Outcome::Unable(UnableReason::Review)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::{MergeSettings, Origins};
    use crate::sides::Sides;
    use crate::strategy::{MergeStrategy, merge};

    fn taken(strategy: &MergeStrategy, ours: (&str, i64), theirs: (&str, i64)) -> Outcome {
        let origin = |(agent, time): (&str, i64)| Origin { agent: agent.to_owned(), time };
        let context = Origins { ours: origin(ours), theirs: origin(theirs) };
        let swapped = Origins { ours: origin(theirs), theirs: origin(ours) };
        let sides = Sides { base: Some(b"base"), ours: b"ours", theirs: b"theirs" };
        let outcome = merge(strategy, &sides, &MergeSettings { origins: context, ..MergeSettings::default() });
        let mirrored =
            merge(strategy, &sides.swapped(), &MergeSettings { origins: swapped, ..MergeSettings::default() });
        assert_eq!(outcome, mirrored, "which side is ours plays no part");
        outcome
    }

    #[test]
    fn the_later_version_is_taken_and_ties_have_an_order() {
        let strategy = MergeStrategy::named("last-writer").expect("a way");
        assert_eq!(taken(&strategy, ("a", 2), ("b", 1)), Outcome::Merged(b"ours".to_vec()));
        assert_eq!(taken(&strategy, ("a", 1), ("b", 2)), Outcome::Merged(b"theirs".to_vec()));
        assert_eq!(taken(&strategy, ("b", 1), ("a", 1)), Outcome::Merged(b"ours".to_vec()));
        assert_eq!(taken(&strategy, ("a", 1), ("a", 1)), Outcome::Merged(b"theirs".to_vec()));
    }

    #[test]
    fn the_agent_named_first_prevails() {
        let mut strategy = MergeStrategy::named("priority").expect("a way");
        assert_eq!(taken(&strategy, ("a", 2), ("b", 1)), Outcome::Unable(UnableReason::Missing { option: "agents" }));
        strategy.options.agents = vec!["lead".to_owned(), "a".to_owned()];
        assert_eq!(taken(&strategy, ("a", 1), ("b", 2)), Outcome::Merged(b"ours".to_vec()));
        assert_eq!(taken(&strategy, ("a", 9), ("lead", 2)), Outcome::Merged(b"theirs".to_vec()));
        assert_eq!(taken(&strategy, ("x", 1), ("y", 2)), Outcome::Merged(b"theirs".to_vec()));
    }

    #[test]
    fn a_rule_to_regenerate_is_carried_to_who_can_run_it() {
        let mut strategy = MergeStrategy::named("regenerate").expect("a way");
        assert_eq!(taken(&strategy, ("a", 1), ("b", 1)), Outcome::Unable(UnableReason::Missing { option: "command" }));
        strategy.options.command = "cargo update --workspace".to_owned();
        strategy.options.inputs = vec!["**/Cargo.toml".to_owned()];
        let (command, inputs) = (strategy.options.command.clone(), strategy.options.inputs.clone());
        assert_eq!(taken(&strategy, ("a", 1), ("b", 1)), Outcome::Unable(UnableReason::Regenerate { command, inputs }));
        assert_eq!(
            taken(&MergeStrategy::named("review").expect("a way"), ("a", 1), ("b", 1)),
            Outcome::Unable(UnableReason::Review)
        );
    }
}
