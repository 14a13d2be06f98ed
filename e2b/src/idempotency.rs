//! Keys of requests that clients repeat when an answer was lost.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Number of keys from which on those not in use are forgotten.
const KEYS_MAX: usize = 4_096;

/// Sandboxes that were created under a key of their client, so that a repeated request creates no second one.
#[derive(Default)]
pub(crate) struct Idempotency {
    created: Mutex<HashMap<String, Arc<tokio::sync::Mutex<Option<String>>>>>,
}

impl Idempotency {
    /// Returns the entry of an idempotency key: the id of the sandbox that was created under it. A request holds the lock while it
    /// creates the sandbox.
    pub(crate) fn entry(&self, key: String) -> Arc<tokio::sync::Mutex<Option<String>>> {
        let mut created = self.created.lock();
        if created.len() >= KEYS_MAX {
            // Clients repeat a request within seconds.
            created.retain(|_, entry| Arc::strong_count(entry) > 1);
        }
        Arc::clone(created.entry(key).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_key_names_one_sandbox_until_too_many_are_remembered() {
        let all = Idempotency::default();
        *all.entry("one".to_owned()).lock().await = Some("sbx-1".to_owned());
        assert_eq!(all.entry("one".to_owned()).lock().await.as_deref(), Some("sbx-1"));
        assert!(all.entry("two".to_owned()).lock().await.is_none());
        for number in 0..3 * KEYS_MAX {
            all.entry(number.to_string());
        }
        assert!(all.created.lock().len() <= KEYS_MAX);
    }
}
