//! The bodies of requests. Fields that are not served are refused by name; unknown ones are left out, as the protocol demands.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;

use crate::refusal::{Refusal, refuse_memory};

/// A sandbox to create.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct NewSandbox {
    #[serde(rename = "templateID")]
    pub(super) template_id: String,
    /// Seconds.
    pub(super) timeout: Option<f64>,
    pub(super) metadata: Option<HashMap<String, String>>,
    pub(super) env_vars: Option<HashMap<String, String>>,
    pub(super) auto_pause: Option<bool>,
    auto_pause_memory: Option<bool>,
    pub(super) auto_resume: Option<AutoResume>,
    #[serde(rename = "allow_internet_access")]
    pub(super) allow_internet_access: Option<bool>,
    network: Value,
    mcp: Value,
    iam: Value,
    volume_mounts: Value,
}

/// Whether traffic starts a paused sandbox.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct AutoResume {
    pub(super) enabled: bool,
}

impl NewSandbox {
    /// Refuses fields that are not served.
    pub(super) fn check(&self) -> Result<(), Refusal> {
        let others =
            [("network", &self.network), ("mcp", &self.mcp), ("iam", &self.iam), ("volumeMounts", &self.volume_mounts)];
        if let Some((name, _)) = others.iter().find(|(_, value)| !is_empty(value)) {
            return Err(Refusal::not_served(&format!("`{name}`")));
        }
        refuse_memory("autoPauseMemory", self.auto_pause_memory)
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
        _ => false,
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ConnectBody {
    pub(super) timeout: Option<f64>,
    pub(super) memory: Option<bool>,
}

#[derive(Debug, Deserialize)]
pub(super) struct TimeoutBody {
    pub(super) timeout: f64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RefreshBody {
    pub(super) duration: Option<f64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PauseBody {
    pub(super) memory: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ForkBody {
    pub(super) timeout: Option<f64>,
    pub(super) count: Option<i32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct SnapshotBody {
    pub(super) name: Option<String>,
    pub(super) memory: Option<bool>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_served_is_refused_by_name_and_what_is_empty_is_not() {
        let parse = |text: &str| serde_json::from_str::<NewSandbox>(text).expect("a body");
        for (body, name) in [
            (r#"{"network": {"allowOut": ["x"]}}"#, "`network`"),
            (r#"{"mcp": {"exa": {}}}"#, "`mcp`"),
            (r#"{"iam": {"a": 1}}"#, "`iam`"),
            (r#"{"volumeMounts": [{"name": "v", "path": "/v"}]}"#, "`volumeMounts`"),
            (r#"{"autoPauseMemory": true}"#, "`autoPauseMemory`"),
        ] {
            let refused = parse(body).check().expect_err(name);
            assert!(refused.message.contains(name), "{}", refused.message);
        }
        let whole = r#"{"templateID": "base", "secure": true, "timeout": 300, "metadata": {}, "envVars": {"A": "b"},
            "network": {}, "volumeMounts": [], "mcp": null, "autoPauseMemory": false, "autoResume": {"enabled": false}}"#;
        let body = parse(whole);
        assert!(body.check().is_ok());
        assert_eq!(body.env_vars.expect("given").get("A").map(String::as_str), Some("b"));
    }
}
