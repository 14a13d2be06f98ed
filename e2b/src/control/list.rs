//! Lists of sandboxes.

use std::collections::HashMap;

use amalgam_proto::v1;
use http::header::HeaderName;
use http::{HeaderValue, StatusCode};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use super::request::{Answer, CLIENT_ID, Control, ENVD_VERSION};
use crate::notes::Notes;
use crate::refusal::{Refusal, json_answer};

/// The header with the start of the next page.
pub(super) const NEXT_TOKEN: HeaderName = HeaderName::from_static("x-next-token");
const PAGE_SIZE: usize = 100;
/// Limit on the sandboxes of a project that a list covers.
const SANDBOXES_MAX: i32 = 10_000;

/// Which sandboxes are listed, and in which order.
#[derive(Debug, Default, PartialEq, Eq)]
struct Filter {
    metadata: HashMap<String, String>,
    states: Vec<String>,
    template: Option<String>,
    /// Seconds since 1970.
    started_after: Option<i64>,
    is_ascending: bool,
}

/// A page of a list.
pub(super) struct Page {
    pub(super) begin: usize,
    pub(super) size: usize,
}

impl Page {
    /// Reads `limit` and `nextToken`.
    pub(super) fn of(query: &[(String, String)]) -> Result<Self, Refusal> {
        let number = |name: &str| {
            let given = query.iter().find(|(key, value)| key == name && !value.is_empty());
            let wrong = || Refusal::invalid(format!("{name}: no number"));
            given.map(|(_, value)| value.parse::<usize>().map_err(|_| wrong())).transpose()
        };
        let size = number("limit")?.unwrap_or(PAGE_SIZE);
        if !(1..=PAGE_SIZE).contains(&size) {
            return Err(Refusal::invalid("limit: 1 to 100"));
        }
        Ok(Self { begin: number("nextToken")?.unwrap_or(0), size })
    }

    /// Answers with this page of all items, and with the token of the next page if there is one.
    pub(super) fn answer(&self, all: Vec<Value>) -> Answer {
        let end = self.begin.saturating_add(self.size);
        let has_more = all.len() > end;
        let items = all.into_iter().skip(self.begin).take(self.size).collect();
        let mut response = json_answer(StatusCode::OK, &Value::Array(items));
        if has_more {
            response.headers_mut().insert(NEXT_TOKEN, HeaderValue::from(end));
        }
        Ok(response)
    }
}

/// Parses a query into pairs of name and value.
pub(super) fn pairs(query: Option<&str>) -> Vec<(String, String)> {
    form_urlencoded::parse(query.unwrap_or_default().as_bytes()).into_owned().collect()
}

impl Filter {
    fn of(query: &[(String, String)]) -> Result<Self, Refusal> {
        let mut filter = Self::default();
        for (name, value) in query.iter().filter(|(_, value)| !value.is_empty()) {
            match name.as_str() {
                "metadata" => filter.metadata = metadata(value),
                "state" => filter.states.extend(value.split(',').map(str::to_owned)),
                "template" => filter.template = Some(value.clone()),
                "order" if value == "asc" => filter.is_ascending = true,
                "order" if value == "desc" => filter.is_ascending = false,
                "order" => return Err(Refusal::invalid("order: asc or desc")),
                "startedAfter" => {
                    let parsed: Result<prost_types::Timestamp, _> = value.parse();
                    let wrong = |_| Refusal::invalid("startedAfter: a time such as 2026-01-02T03:04:05Z");
                    filter.started_after = Some(parsed.map_err(wrong)?.seconds);
                }
                _ => {}
            }
        }
        match filter.states.iter().find(|state| !matches!(state.as_str(), "running" | "paused")) {
            Some(_) => Err(Refusal::invalid("state: running or paused")),
            None => Ok(filter),
        }
    }

    fn takes(&self, sandbox: &v1::Sandbox, notes: &Notes, state: &str) -> bool {
        let has = |(name, value): (&String, &String)| notes.metadata.get(name) == Some(value);
        let started = sandbox.created_at.map_or(0, |at| at.seconds);
        self.metadata.iter().all(has)
            && (self.states.is_empty() || self.states.iter().any(|asked| asked == state))
            && self.template.as_ref().is_none_or(|template| *template == notes.template)
            && self.started_after.is_none_or(|after| started > after)
    }
}

/// Parses metadata in a query: a form whose names and values are percent-encoded once more.
fn metadata(text: &str) -> HashMap<String, String> {
    let plain = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    form_urlencoded::parse(text.as_bytes()).map(|(name, value)| (plain(&name), plain(&value))).collect()
}

/// Returns the value of a limit of a sandbox; `None` if the sandbox has no such limit.
fn limit(sandbox: &v1::Sandbox, name: &str) -> Option<f64> {
    sandbox.limits.iter().find(|limit| limit.limit == name)?.value.parse().ok()
}

#[allow(clippy::cast_possible_truncation, reason = "limits are far below")]
fn mebibytes(sandbox: &v1::Sandbox, name: &str) -> i64 {
    (limit(sandbox, name).unwrap_or(0.0) / f64::from(1 << 20)) as i64
}

/// Returns the number of CPUs of a sandbox, rounded up; at least 1.
#[allow(clippy::cast_possible_truncation, reason = "limits are far below")]
pub(super) fn cpu_count(sandbox: &v1::Sandbox) -> i64 {
    limit(sandbox, "cpu").unwrap_or(1.0).ceil().max(1.0) as i64
}

/// Converts a sandbox to an item of a list.
pub(super) fn listed(sandbox: &v1::Sandbox, state: &str) -> Value {
    let notes = Notes::of(sandbox);
    let time = |at: &Option<prost_types::Timestamp>| at.unwrap_or_default().to_string();
    json!({
        "templateID": notes.template,
        "sandboxID": sandbox.id,
        "clientID": CLIENT_ID,
        "startedAt": time(&sandbox.created_at),
        "endAt": time(&sandbox.expires_at),
        "cpuCount": cpu_count(sandbox),
        "memoryMB": mebibytes(sandbox, "memory"),
        "diskSizeMB": mebibytes(sandbox, "disk"),
        "state": state,
        "envdVersion": ENVD_VERSION,
        "metadata": notes.metadata,
    })
}

impl Control<'_> {
    pub(super) async fn list(&self) -> Answer {
        let query = pairs(self.head.uri.query());
        let (filter, page) = (Filter::of(&query)?, Page::of(&query)?);
        let mut found = Vec::new();
        let limit = 100;
        for number in 1..=SANDBOXES_MAX / limit {
            let request = v1::ListSandboxesRequest { page: number, limit, ..v1::ListSandboxesRequest::default() };
            let items = self.caller.sandboxes().list_sandboxes(request).await?.into_inner().items;
            let is_last = items.len() < usize::try_from(limit).unwrap_or(usize::MAX);
            for sandbox in items {
                let notes = Notes::of(&sandbox);
                let state = notes.state(&sandbox);
                if let Some(state) = state.filter(|state| filter.takes(&sandbox, &notes, state)) {
                    found.push(listed(&sandbox, state));
                }
            }
            if is_last {
                break;
            }
        }
        // They come newest first.
        if filter.is_ascending {
            found.reverse();
        }
        page.answer(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_of_a_query_is_decoded_twice() {
        let query = pairs(Some("metadata=user%3Dann%252520b%26k%252525%3Dv&state=running%2Cpaused&limit=5"));
        let filter = Filter::of(&query).expect("a filter");
        assert_eq!(filter.metadata.get("user").map(String::as_str), Some("ann b"));
        assert_eq!(filter.metadata.get("k%").map(String::as_str), Some("v"));
        assert_eq!(filter.states, ["running", "paused"]);
        assert_eq!(Page::of(&query).expect("a page").size, 5);
    }

    #[test]
    fn wrong_queries_are_refused() {
        for wrong in ["state=gone", "order=up", "startedAfter=yesterday"] {
            assert!(Filter::of(&pairs(Some(wrong))).is_err(), "{wrong}");
        }
        for wrong in ["limit=0", "limit=101", "limit=x", "nextToken=-1"] {
            assert!(Page::of(&pairs(Some(wrong))).is_err(), "{wrong}");
        }
    }

    #[test]
    fn pages_follow_each_other_until_the_last() {
        let all: Vec<Value> = (0..5).map(Value::from).collect();
        let page = |begin| Page { begin, size: 2 }.answer(all.clone()).expect("a page");
        let next = |begin| page(begin).headers().get(NEXT_TOKEN).cloned();
        assert_eq!(next(0), Some(HeaderValue::from(2)));
        assert_eq!(next(4), None);
        assert_eq!(next(usize::MAX), None);
    }
}
