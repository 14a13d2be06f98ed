//! Strategies that ignore the content: they take one version as a whole, or none.

use std::cmp::Ordering;

use crate::outcome::{Origin, Outcome, Why};
use crate::way::Job;

pub(crate) fn ours(job: &Job<'_>) -> Outcome {
    Outcome::Merged(job.sides.ours.to_vec())
}

pub(crate) fn theirs(job: &Job<'_>) -> Outcome {
    Outcome::Merged(job.sides.theirs.to_vec())
}

/// Takes the later version; at the same time the one with the greater agent name, then the one with the greater bytes. The result
/// does not depend on which side is ours.
pub(crate) fn last_writer(job: &Job<'_>) -> Outcome {
    let (ours, theirs) = (&job.setting.context.ours, &job.setting.context.theirs);
    greater(job, (ours.time, &ours.agent).cmp(&(theirs.time, &theirs.agent)))
}

/// Takes the version of the agent that is named first; if neither is named, the later version.
pub(crate) fn priority(job: &Job<'_>) -> Outcome {
    let agents = &job.options.agents;
    if agents.is_empty() {
        return Outcome::Unable(Why::Missing { option: "agents" });
    }
    let rank = |origin: &Origin| agents.iter().position(|agent| *agent == origin.agent).unwrap_or(agents.len());
    match rank(&job.setting.context.theirs).cmp(&rank(&job.setting.context.ours)) {
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
        return Outcome::Unable(Why::Missing { option: "command" });
    }
    let (command, inputs) = (job.options.command.clone(), job.options.inputs.clone());
    Outcome::Unable(Why::Regenerate { command, inputs })
}

pub(crate) fn review(_: &Job<'_>) -> Outcome {
    Outcome::Unable(Why::Review)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::{Context, Setting, Sides};
    use crate::way::{Way, merge};

    fn taken(way: &Way, ours: (&str, i64), theirs: (&str, i64)) -> Outcome {
        let origin = |(agent, time): (&str, i64)| Origin { agent: agent.to_owned(), time };
        let context = Context { ours: origin(ours), theirs: origin(theirs) };
        let swapped = Context { ours: origin(theirs), theirs: origin(ours) };
        let sides = Sides { base: Some(b"base"), ours: b"ours", theirs: b"theirs" };
        let outcome = merge(way, &sides, &Setting { context, ..Setting::default() });
        let mirrored = merge(way, &sides.swapped(), &Setting { context: swapped, ..Setting::default() });
        assert_eq!(outcome, mirrored, "which side is ours plays no part");
        outcome
    }

    #[test]
    fn the_later_version_is_taken_and_ties_have_an_order() {
        let way = Way::named("last-writer").expect("a way");
        assert_eq!(taken(&way, ("a", 2), ("b", 1)), Outcome::Merged(b"ours".to_vec()));
        assert_eq!(taken(&way, ("a", 1), ("b", 2)), Outcome::Merged(b"theirs".to_vec()));
        assert_eq!(taken(&way, ("b", 1), ("a", 1)), Outcome::Merged(b"ours".to_vec()));
        assert_eq!(taken(&way, ("a", 1), ("a", 1)), Outcome::Merged(b"theirs".to_vec()));
    }

    #[test]
    fn the_agent_named_first_prevails() {
        let mut way = Way::named("priority").expect("a way");
        assert_eq!(taken(&way, ("a", 2), ("b", 1)), Outcome::Unable(Why::Missing { option: "agents" }));
        way.options.agents = vec!["lead".to_owned(), "a".to_owned()];
        assert_eq!(taken(&way, ("a", 1), ("b", 2)), Outcome::Merged(b"ours".to_vec()));
        assert_eq!(taken(&way, ("a", 9), ("lead", 2)), Outcome::Merged(b"theirs".to_vec()));
        assert_eq!(taken(&way, ("x", 1), ("y", 2)), Outcome::Merged(b"theirs".to_vec()));
    }

    #[test]
    fn a_rule_to_regenerate_is_carried_to_who_can_run_it() {
        let mut way = Way::named("regenerate").expect("a way");
        assert_eq!(taken(&way, ("a", 1), ("b", 1)), Outcome::Unable(Why::Missing { option: "command" }));
        way.options.command = "cargo update --workspace".to_owned();
        way.options.inputs = vec!["**/Cargo.toml".to_owned()];
        let (command, inputs) = (way.options.command.clone(), way.options.inputs.clone());
        assert_eq!(taken(&way, ("a", 1), ("b", 1)), Outcome::Unable(Why::Regenerate { command, inputs }));
        assert_eq!(taken(&Way::named("review").expect("a way"), ("a", 1), ("b", 1)), Outcome::Unable(Why::Review));
    }
}
