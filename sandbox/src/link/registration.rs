//! The secrets that an agent may register with. Each is valid once.

use crate::secret::SecretHash;

/// The secrets of one agent.
///
/// The next secret replaces the present one when the agent has shown that it got it: an answer may be lost on the way.
#[derive(Debug)]
pub(super) struct Registration {
    present: SecretHash,
    next: Option<SecretHash>,
}

/// The answer to a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// The secret is not valid.
    Refused,
    /// The secret is valid.
    Admitted {
        /// The hash of the secret if it was the next one, which became the present one by its use.
        confirmed: Option<SecretHash>,
    },
}

impl Registration {
    pub(super) fn new(present: SecretHash) -> Self {
        Self { present, next: None }
    }

    /// Checks a secret. If it is valid, `next` is the hash of the secret that the agent uses for its next registration.
    pub(super) fn admit(&mut self, secret: &str, next: SecretHash) -> Admission {
        let is_next = self.next.as_ref().is_some_and(|waiting| waiting.fits(secret));
        let confirmed = if is_next { self.confirm() } else { None };
        if !self.present.fits(secret) {
            return Admission::Refused;
        }
        self.next = Some(next);
        Admission::Admitted { confirmed }
    }

    /// Replaces the present secret by the next one, which the agent has received. Returns the new hash; `None` if there was no next
    /// secret.
    pub(super) fn confirm(&mut self) -> Option<SecretHash> {
        let next = self.next.take()?;
        self.present = next.clone();
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_good_once_and_a_lost_answer_locks_nobody_out() {
        let hash = SecretHash::of;
        let admitted = Admission::Admitted { confirmed: None };
        let mut registration = Registration::new(hash("first"));
        assert_eq!(registration.admit("other", hash("x")), Admission::Refused);
        // The answer was lost: the agent comes again with the secret that it has.
        assert_eq!(registration.admit("first", hash("second")), admitted);
        assert_eq!(registration.admit("first", hash("third")), admitted);
        assert!(registration.confirm().is_some_and(|next| next == hash("third")));
        for replayed in ["first", "second"] {
            assert_eq!(registration.admit(replayed, hash("x")), Admission::Refused, "{replayed}");
        }
        assert_eq!(registration.admit("third", hash("fourth")), admitted);
        // Used before it was confirmed: it was received.
        let confirmed = Some(hash("fourth"));
        assert_eq!(registration.admit("fourth", hash("fifth")), Admission::Admitted { confirmed });
        assert_eq!(registration.admit("third", hash("x")), Admission::Refused);
    }
}
