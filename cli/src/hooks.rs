//! Hooks of coding agents: a snapshot before and after each tool call, taken by the agent's own hook mechanism.
//!
//! [`agents`] knows the configuration files of the agents, [`payload`] the messages that agents pass to hooks. A hook never stops
//! an agent: it ends with 0 also after a failure.

pub mod agents;
pub mod payload;
