//! Where rules come from: those built in, those of the store (`merge.toml` in its home), those of one call.

use std::path::PathBuf;
use std::sync::Arc;

use amalgam_merge::Rules;
use amalgam_merge::rules::{BadRules, Content};
use amalgam_proto::{Failure, Reason, v1};
use bytes::Bytes;

use crate::failure::{Result, of_io};
use crate::service::Service;

/// The file of a store's rules.
const FILE: &str = "merge.toml";
/// The largest file of rules that is read.
const RULES_BYTES_MAX: u64 = 1 << 20;
/// What places in the rules of a call are called by.
const CALL: &str = "this call";

impl Service {
    fn rules_path(&self) -> PathBuf {
        self.inner.home.path().join(FILE)
    }

    /// The store's own rules as they are written; empty without any.
    fn rules_text(&self) -> Result<String> {
        let path = self.rules_path();
        let action = format!("read {}", path.display());
        match std::fs::metadata(&path) {
            Ok(found) if found.len() > RULES_BYTES_MAX => {
                let message = format!("{} has more than {RULES_BYTES_MAX} bytes", path.display());
                return Err(Failure::new(Reason::Invalid, message));
            }
            Err(source) if source.kind() == std::io::ErrorKind::NotFound => return Ok(String::new()),
            _ => {}
        }
        std::fs::read_to_string(&path).map_err(|source| of_io(&action, &source))
    }

    /// All rules that hold for a call. Rules that cannot be read are an error: merging by others would be a surprise.
    pub(crate) fn merge_rules(&self, call: Option<&v1::CallRules>) -> Result<Arc<Rules>> {
        let text = self.rules_text()?;
        let name = self.rules_path().display().to_string();
        let mut rules = Rules::built_in();
        if !text.is_empty() {
            rules = rules.and(Rules::read(&text, &name).map_err(|bad| of_rules(&bad))?);
        }
        let ways = call.map(|call| call.ways.as_slice()).unwrap_or_default();
        if !ways.is_empty() {
            let text: String = ways.iter().map(rule_text).collect();
            rules = rules.and(Rules::read(&text, CALL).map_err(|bad| of_rules(&bad))?);
        }
        Ok(Arc::new(rules))
    }

    pub(crate) fn get_rules(&self) -> Result<v1::GetRulesResponse> {
        use std::os::unix::ffi::OsStrExt as _;
        Ok(v1::GetRulesResponse {
            text: self.rules_text()?,
            path: Bytes::copy_from_slice(self.rules_path().as_os_str().as_bytes()),
            built_in: Rules::BUILT_IN.to_owned(),
        })
    }

    pub(crate) fn explain_rules(&self, request: &v1::ExplainRulesRequest) -> Result<v1::ExplainRulesResponse> {
        let rules = self.merge_rules(request.rules.as_ref())?;
        let content = if request.binary { Content::Binary } else { Content::Text };
        let found = rules.explain(&request.path, content);
        let found = found.ok_or_else(|| Failure::new(Reason::NotFound, "no rule matches this path"))?;
        Ok(v1::ExplainRulesResponse {
            way: found.way.name().to_owned(),
            what: found.way.what().to_owned(),
            source: found.place.source.clone(),
            line: found.place.line as u32,
            pattern: found.pattern.to_owned(),
            groups: rules.groups_of(&request.path).map(|group| group.name.clone()).collect(),
        })
    }
}

/// What is wrong with some rules.
pub(crate) fn check_rules(request: &v1::CheckRulesRequest) -> v1::CheckRulesResponse {
    let complaints = match Rules::read(&request.text, &request.source) {
        Ok(_) => Vec::new(),
        Err(bad) => bad.complaints,
    };
    let complaint = |one: amalgam_merge::rules::Complaint| v1::RuleComplaint {
        line: one.line as u32,
        column: one.column as u32,
        message: one.what,
    };
    v1::CheckRulesResponse { complaints: complaints.into_iter().map(complaint).collect() }
}

fn of_rules(bad: &BadRules) -> Failure {
    Failure::new(Reason::Invalid, format!("the rules of merging cannot be used:\n{bad}"))
}

/// One rule of a call as TOML.
fn rule_text(rule: &v1::PathWay) -> String {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    format!("[[rule]]\npath = {}\nway = {}\n", quoted(&rule.path), quoted(&rule.way))
}
