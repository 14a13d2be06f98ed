//! Acts that the policy refused, as events: each becomes an operation `policy.refused`, which subscriptions and webhooks get.

use amalgam_engine::operation::set_reference;
use amalgam_engine::reference::{RefName, RefValue};
use amalgam_engine::{OperationContext, Time};
use amalgam_policy::Refusal;

use super::Permissions;
use crate::error::Result;
use crate::notices::{POLICY_REFUSED, REFUSED_PREFIX, RefusalNote};

/// The most bytes of a path or a rule in a note, which has at most 64 KiB.
const TEXT_BYTES_MAX: usize = 4 << 10;

impl Permissions {
    /// Writes the refusals since the last call as operations. One that cannot be written keeps no other back.
    pub(crate) fn write_refusals(&self, now: Time) -> Result<()> {
        let mut done = Ok(());
        for (refusal, left_out) in self.refusals.take(now) {
            done = done.and(self.write_refusal(&refusal, left_out, now));
        }
        done
    }

    fn write_refusal(&self, refusal: &Refusal, left_out: u64, now: Time) -> Result<()> {
        let note = RefusalNote {
            agent: refusal.agent.clone(),
            path: cut(String::from_utf8_lossy(&refusal.path).into_owned()),
            act: refusal.act.word().to_owned(),
            rule: cut(refusal.rule()),
            level: refusal.level.to_string(),
            left_out,
            time: now.0,
        };
        let note = serde_json::to_vec(&note).expect("a note is plain values");
        let value = RefValue { target: None, keeps: Vec::new(), note: note.into() };
        let name = RefName::new(format!("{REFUSED_PREFIX}{}", self.refusals.next_place())).expect("the name is valid");
        let act = OperationContext::new(&refusal.agent, now).buffered();
        Ok(set_reference(&self.store, &name, Some(&value), &act, POLICY_REFUSED).map(drop)?)
    }
}

/// Cuts a text to [`TEXT_BYTES_MAX`].
fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
    text
}

#[cfg(test)]
mod tests {
    use amalgam_policy::{Act, Level, ObserveRefusals as _};

    use super::*;
    use crate::home::Home;
    use crate::service::Service;

    #[test]
    fn a_refusal_of_a_long_path_is_written_with_a_part_of_it() {
        let around = tempfile::tempdir().expect("a directory");
        let service = Service::open(&Home::new(around.path().join("home")), || Time(1), &[]).expect("opened");
        let permissions = &service.context.permissions;
        for path in ["é".repeat(100_000), "docs/a".to_owned()] {
            permissions.refusals.refused(&Refusal {
                agent: "ann".to_owned(),
                path: path.into_bytes(),
                act: Act::Change,
                level: Level::Read,
                line: None,
                patterns: Vec::new(),
            });
        }
        permissions.write_refusals(Time(1)).expect("written");
        let found = permissions.store.list_refs(REFUSED_PREFIX, None, 10).expect("listed");
        let note = |value: &RefValue| serde_json::from_slice::<RefusalNote>(&value.note).expect("a note");
        let paths: Vec<_> = found.iter().map(|(_, value)| note(value).path).collect();
        assert_eq!(paths, ["é".repeat(TEXT_BYTES_MAX / 2), "docs/a".to_owned()]);
    }
}
