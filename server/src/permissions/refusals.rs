//! Acts that the policy refused, as events: each becomes an operation `policy.refused`, which subscriptions and webhooks get.

use amalgam_engine::operation::set_reference;
use amalgam_engine::reference::{RefName, RefValue};
use amalgam_engine::{OperationContext, Time};

use super::Permissions;
use crate::error::Result;
use crate::notices::{POLICY_REFUSED, REFUSED_PREFIX, RefusalNote};

impl Permissions {
    /// Writes the refusals since the last call as operations.
    pub(crate) fn write_refusals(&self, now: Time) -> Result<()> {
        for (refusal, left_out) in self.refusals.take(now) {
            let note = RefusalNote {
                agent: refusal.agent.clone(),
                path: String::from_utf8_lossy(&refusal.path).into_owned(),
                act: refusal.act.word().to_owned(),
                rule: refusal.rule(),
                level: refusal.level.to_string(),
                left_out,
                time: now.0,
            };
            let note = serde_json::to_vec(&note).expect("a note is plain values");
            let value = RefValue { target: None, keeps: Vec::new(), note: note.into() };
            let name =
                RefName::new(format!("{REFUSED_PREFIX}{}", self.refusals.next_place())).expect("the name is valid");
            let act = OperationContext::new(&refusal.agent, now).buffered();
            set_reference(&self.store, &name, Some(&value), &act, POLICY_REFUSED)?;
        }
        Ok(())
    }
}
