//! The commands of projects' rules: lists them, approves them and takes approvals back.

use amalgam_engine::Time;
use amalgam_merge::rules::RuleLocation;
use amalgam_proto::{Reason, timestamp, v1};

use super::Merging;
use super::approval::{Approval, hash_of};
use crate::error::{Error, Result};

impl Merging {
    /// Returns the commands of a project's rules, and then all approved commands that are in none of these rules.
    pub(crate) fn list_rule_commands(&self, workspace: &str) -> Result<Vec<v1::RuleCommand>> {
        let mut listed = Vec::new();
        let mut approved = self.inner.approvals.all();
        for (command, place) in self.rules.project_commands(workspace)? {
            let hash = hash_of(&command);
            if listed.iter().any(|one: &v1::RuleCommand| one.hash == hash) {
                continue;
            }
            let approval = approved.remove(&hash);
            listed.push(message(hash, command, Some(place), approval));
        }
        listed.extend(approved.into_iter().map(|(hash, approval)| {
            let command = approval.command.clone();
            message(hash, command, None, Some(approval))
        }));
        Ok(listed)
    }

    /// Approves a command of a project's rules, by the whole hash of its text.
    pub(crate) fn approve_rule_command(
        &self,
        request: &v1::ApproveRuleCommandRequest,
        actor: &str,
    ) -> Result<v1::RuleCommand> {
        let listed = self.list_rule_commands(&request.workspace)?;
        let found = listed.into_iter().find(|one| one.hash == request.hash && !one.source.is_empty());
        let found = found.ok_or_else(|| {
            let message = format!("no rule of the project has a command with the hash {}", request.hash);
            Error::new(Reason::NotFound, message)
        })?;
        let Time(time) = self.context.now();
        let approval = Approval { command: found.command.clone(), actor: actor.to_owned(), time };
        self.inner.approvals.add(&found.hash, approval.clone())?;
        Ok(v1::RuleCommand { approved: true, ..message(found.hash, found.command, None, Some(approval)) })
    }

    /// Takes an approval back, by the whole hash of the command's text.
    pub(crate) fn revoke_rule_command(&self, hash: &str) -> Result<()> {
        self.inner.approvals.revoke(hash)
    }
}

fn message(hash: String, command: String, place: Option<RuleLocation>, approval: Option<Approval>) -> v1::RuleCommand {
    let (source, line) = place.map_or((String::new(), 0), |place| (place.source, place.line as u32));
    v1::RuleCommand {
        hash,
        command,
        source,
        line,
        approved: approval.is_some(),
        approver: approval.as_ref().map(|approval| approval.actor.clone()).unwrap_or_default(),
        approve_time: approval.map(|approval| timestamp(Time(approval.time))),
    }
}
