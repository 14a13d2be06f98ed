//! Which secret an agent may register with. Each is good once.

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

    /// Whether a secret is good. If so, `next` is what the agent is told to use the next time.
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

    /// The agent has its next secret. Returns it the first time.
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
