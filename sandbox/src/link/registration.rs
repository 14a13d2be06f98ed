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

impl Registration {
    pub(super) fn new(present: SecretHash) -> Self {
        Self { present, next: None }
    }

    /// Checks a secret and returns whether it is valid. If it is, `next` is the hash of the secret that the agent uses for its next
    /// registration.
    pub(super) fn admit(&mut self, secret: &str, next: SecretHash) -> bool {
        if self.next.as_ref().is_some_and(|waiting| waiting.fits(secret)) {
            self.confirm();
        }
        let is_good = self.present.fits(secret);
        if is_good {
            self.next = Some(next);
        }
        is_good
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
        let mut registration = Registration::new(hash("first"));
        assert!(!registration.admit("other", hash("x")));
        // The answer was lost: the agent comes again with the secret that it has.
        assert!(registration.admit("first", hash("second")));
        assert!(registration.admit("first", hash("third")));
        assert!(registration.confirm().is_some_and(|next| next == hash("third")));
        for replayed in ["first", "second"] {
            assert!(!registration.admit(replayed, hash("x")), "{replayed}");
        }
        assert!(registration.admit("third", hash("fourth")));
        // Used before it was confirmed: it was received.
        assert!(registration.admit("fourth", hash("fifth")));
        assert!(!registration.admit("third", hash("x")));
    }
}
