//! Permissions of agents: a policy as a document, and the decision that it makes about an agent, a path and an act.
//!
//! [`Policy::read`] reads the document. [`Policy::agent`] compiles the rules that apply to one agent; [`AgentPolicy::decide`] is then a
//! pure function of the path, with a cache. A [`Guard`] combines several agents (that of a key and that of a workspace): each of them
//! must have the right. Every part of the program that enforces permissions asks a guard, so that one and the same code decides.
//!
//! The crate knows bytes of paths and names of agents. It knows no tree, no store and no file system: whether an entry exists, or is new,
//! is known to its callers.
//!
//! The last matching rule decides. A pattern that matches a directory applies to everything below it. Where names that differ only by
//! case or by Unicode form would get different levels, a path gets the lesser one.

mod agent;
mod fold;
mod guard;
mod level;
mod moves;
mod pattern;
mod policy;
mod read;
mod selector;

pub use agent::{AgentPolicy, Decision};
pub use guard::{Guard, ObserveRefusals, Refusal};
pub use level::{Act, Level};
pub use moves::MoveGuard;
pub use policy::{OnRefused, Policy, Rule};
pub use read::{BadPolicy, Complaint};
