//! State values of a tree: small JSON values beside its files.

use amalgam_engine::Error as EngineError;
use amalgam_proto::v1;

use super::Files;
use super::stat::state_etag;
use crate::error::Result;

/// The most bytes of values in one page.
const PAGE_BYTES_MAX: usize = 2 << 20;

impl Files {
    /// Returns a state value.
    pub(crate) fn state(&self, workspace: &str, revision: &str, key: &str) -> Result<v1::StateValue> {
        let tree = self.read_tree(workspace, revision)?.tree;
        match tree.state(key)? {
            Some(json) => Ok(self.state_message(key, &json)),
            None => Err(absent(key)),
        }
    }

    /// Returns a page of the state values whose keys start with a prefix.
    pub(crate) fn states(&self, request: &v1::ListStatesRequest, limit: usize) -> Result<v1::ListStatesResponse> {
        let tree = self.read_tree(&request.workspace, &request.revision)?.tree;
        let after = Some(request.page_token.as_str()).filter(|token| !token.is_empty());
        let found = tree.states(&request.prefix, after, limit)?;
        let is_full = found.len() == limit;
        let (mut values, mut bytes, count) = (Vec::new(), 0, found.len());
        for (key, json) in found {
            bytes += key.len() + json.len();
            if bytes > PAGE_BYTES_MAX && !values.is_empty() {
                break;
            }
            values.push(self.state_message(&key, &json));
        }
        let has_more = is_full || values.len() < count;
        let next = values.last().filter(|_| has_more).map(|last: &v1::StateValue| last.key.clone());
        Ok(v1::ListStatesResponse { values, next_page_token: next.unwrap_or_default() })
    }

    /// Converts a state value to its message.
    pub(crate) fn state_message(&self, key: &str, json: &str) -> v1::StateValue {
        v1::StateValue { key: key.to_owned(), json: json.to_owned(), etag: state_etag(json) }
    }
}

/// Returns the error for a key without a value.
pub(super) fn absent(key: &str) -> crate::error::Error {
    let hint = "ListStates lists the keys that have one".to_owned();
    EngineError::Absent { what: format!("state value {key:?}"), hint }.into()
}
