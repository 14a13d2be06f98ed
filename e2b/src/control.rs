//! The control plane: sandboxes are created, found, paused, forked and ended over REST.

mod bodies;
mod list;
mod request;
mod snapshots;

use std::time::Duration;

use amalgam_proto::{Failure, v1};
use http::request::Parts;
use http::{Method as Verb, StatusCode};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use tonic::Code;
use tonic::body::Body;

use crate::calls::{Caller, Calls};
use crate::notes::Notes;
use crate::refusal::{Refusal, json_answer, refuse_memory};
use crate::state::State;
use crate::target::{Target, is_id};
use bodies::{ConnectBody, ForkBody, NewSandbox, PauseBody, RefreshBody, TimeoutBody};
use request::{Answer, Control, find, no_content, no_sandbox, read};
use snapshots::{find_home, find_snapshot};

const TIMEOUT_SECONDS: i32 = 300;
/// Limit on attempts to start a sandbox that is still being paused, and the delay between them.
const RESUME_TRIES_MAX: u32 = 200;
const RESUME_RETRY_DELAY: Duration = Duration::from_millis(50);
/// The template that clients name by default, and the template that replaces it if the server has none of that name.
const BASE_TEMPLATE: &str = "base";
const HOST_TEMPLATE: &str = "host";
const FORKS_MAX: i32 = 20;
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// Answers a request of the control plane. Refuses a request that is neither of the control plane nor of the data plane.
pub(crate) async fn answer(state: &State, calls: &Calls, head: &Parts, body: Body) -> Answer {
    let path = head.uri.path();
    let decoded: Option<Vec<_>> = path
        .trim_start_matches('/')
        .split('/')
        .map(|part| percent_decode_str(part).decode_utf8().ok().map(std::borrow::Cow::into_owned))
        .collect();
    let parts = decoded.ok_or_else(|| Refusal::invalid("the path is not UTF-8"))?;
    let mut parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let is_current = parts.first() == Some(&"v2") && parts.get(1) == Some(&"sandboxes");
    if is_current {
        parts.remove(0);
    }
    let control = Control { state, caller: calls.of(&head.headers), head, is_current };
    match (&head.method, parts.as_slice()) {
        (&Verb::POST, ["sandboxes"]) => control.create(body).await,
        (&Verb::GET, ["sandboxes"]) => control.list().await,
        (&Verb::GET, ["sandboxes", id]) => control.info(id).await,
        (&Verb::DELETE, ["sandboxes", id]) => control.kill(id).await,
        (&Verb::POST, ["sandboxes", id, "connect" | "resume"]) => control.connect(id, body).await,
        (&Verb::POST, ["sandboxes", id, "timeout"]) => control.timeout(id, body).await,
        (&Verb::POST, ["sandboxes", id, "refreshes"]) => control.refresh(id, body).await,
        (&Verb::POST, ["sandboxes", id, "pause"]) => control.pause(id, body).await,
        (&Verb::POST, ["sandboxes", id, "fork"]) => control.fork(id, body).await,
        (&Verb::GET, ["sandboxes", id, "metrics"]) => control.metrics(id).await,
        (&Verb::POST, ["sandboxes", id, "snapshots"]) => control.create_snapshot(id, body).await,
        (&Verb::GET, ["snapshots"]) => control.list_snapshots().await,
        (&Verb::DELETE, ["templates", id]) => control.delete_snapshot(id).await,
        (verb, _) => {
            control.caller.record_unknown().await;
            let what = format!("{verb} {}", path.escape_debug());
            Err(Refusal::not_served(&what).with_status(StatusCode::NOT_IMPLEMENTED))
        }
    }
}

/// The source of a new sandbox.
#[derive(Debug, Default)]
struct Origin {
    template: String,
    /// The snapshot of the workspace; empty for none.
    from: String,
    /// The snapshot of the home; empty for none.
    home_from: String,
}

impl Control<'_> {
    async fn create(&self, body: Body) -> Answer {
        let request: NewSandbox = read(body).await?;
        request.check()?;
        let Some(key) = self.head.headers.get(IDEMPOTENCY_KEY) else {
            let created = create_new(&self.caller, request, self.is_current).await?;
            return Ok(json_answer(StatusCode::CREATED, &self.sandbox(&created)));
        };
        let key = key.to_str().map_err(|_| Refusal::invalid("idempotency-key: not ASCII"))?;
        if key.is_empty() || key.len() > 255 {
            return Err(Refusal::invalid("idempotency-key: 1 to 255 characters"));
        }
        let entry = self.state.idempotency.entry(format!("{} {key}", self.caller.key().unwrap_or_default()));
        let mut created = entry.lock_owned().await;
        let (caller, is_current) = (self.caller.clone(), self.is_current);
        // The creation goes on if the client disconnects, so that the key names its sandbox when the client repeats the request.
        let task = tokio::spawn(async move {
            if let Some(id) = created.as_deref()
                && let Ok((sandbox, _)) = find(&caller, id).await
            {
                return Ok(sandbox);
            }
            let sandbox = create_new(&caller, request, is_current).await?;
            *created = Some(sandbox.id.clone());
            Ok::<_, Refusal>(sandbox)
        });
        let sandbox = task.await.map_err(|error| Refusal::new(Code::Internal, error.to_string()))??;
        Ok(json_answer(StatusCode::CREATED, &self.sandbox(&sandbox)))
    }

    async fn info(&self, id: &str) -> Answer {
        let (sandbox, state) = self.find(id).await?;
        let mut shown = list::listed(&sandbox, state);
        let notes = Notes::of(&sandbox);
        let on_timeout = if notes.is_paused_on_timeout { "pause" } else { "kill" };
        shown["lifecycle"] = json!({"autoResume": notes.has_auto_resume, "onTimeout": on_timeout});
        shown["allowInternetAccess"] = (sandbox.network == "host").into();
        self.add_token(&mut shown, &sandbox.id);
        Ok(json_answer(StatusCode::OK, &shown))
    }

    async fn kill(&self, id: &str) -> Answer {
        if !is_id(id) {
            return Err(no_sandbox(id));
        }
        let request = v1::DeleteSandboxRequest { id: id.to_owned(), keep_workspace: false };
        match self.caller.sandboxes().delete_sandbox(request).await {
            Ok(_) => {}
            Err(status) if status.code() == Code::NotFound => return Err(no_sandbox(id)),
            Err(status) => return Err(status.into()),
        }
        self.state.forget(id);
        self.state.signers.forget(id);
        no_content()
    }

    async fn connect(&self, id: &str, body: Body) -> Answer {
        let request: ConnectBody = read(body).await?;
        refuse_memory("memory", request.memory)?;
        let timeout = seconds(request.timeout.unwrap_or(TIMEOUT_SECONDS.into()))?;
        let (sandbox, state) = self.find(id).await?;
        if state == "paused" {
            let sandbox = self.resume(id, timeout.max(1)).await?;
            return Ok(json_answer(StatusCode::CREATED, &self.sandbox(&sandbox)));
        }
        let left = sandbox.expires_at.map_or(0, |at| at.seconds) - now_seconds(self.state);
        if left < i64::from(timeout) {
            self.set_timeout(id, timeout).await?;
        }
        Ok(json_answer(StatusCode::OK, &self.sandbox(&sandbox)))
    }

    /// Starts a paused sandbox. One that is still being paused is waited for.
    async fn resume(&self, id: &str, timeout_seconds: i32) -> Result<v1::Sandbox, Refusal> {
        let mut tries = 0;
        loop {
            let message = v1::ResumeSandboxRequest { id: id.to_owned(), timeout_seconds };
            let status = match self.caller.sandboxes().resume_sandbox(message).await {
                Ok(resumed) => return Ok(resumed.into_inner().sandbox.unwrap_or_default()),
                Err(status) => status,
            };
            let state = Failure::of_status(&status).and_then(|mut failure| failure.details.remove("state"));
            if state.as_deref() != Some("stopping") || tries == RESUME_TRIES_MAX {
                return Err(status.into());
            }
            tries += 1;
            tokio::time::sleep(RESUME_RETRY_DELAY).await;
        }
    }

    async fn timeout(&self, id: &str, body: Body) -> Answer {
        let request: TimeoutBody = read(body).await?;
        let seconds = seconds(request.timeout)?;
        self.running(id).await?;
        self.set_timeout(id, seconds).await?;
        no_content()
    }

    async fn refresh(&self, id: &str, body: Body) -> Answer {
        let request: RefreshBody = read(body).await?;
        let seconds = seconds(request.duration.unwrap_or(TIMEOUT_SECONDS.into()))?;
        let sandbox = self.running(id).await?;
        if sandbox.expires_at.map_or(0, |at| at.seconds) - now_seconds(self.state) < i64::from(seconds) {
            self.set_timeout(id, seconds).await?;
        }
        no_content()
    }

    async fn pause(&self, id: &str, body: Body) -> Answer {
        let request: PauseBody = read(body).await?;
        refuse_memory("memory", request.memory)?;
        if self.find(id).await?.1 == "paused" {
            return Err(Refusal::new(Code::AlreadyExists, format!("sandbox {id} is already paused")));
        }
        self.caller.sandboxes().pause_sandbox(v1::PauseSandboxRequest { id: id.to_owned() }).await?;
        self.state.forget(id);
        no_content()
    }

    async fn fork(&self, id: &str, body: Body) -> Answer {
        let request: ForkBody = read(body).await?;
        let count = request.count.unwrap_or(1);
        if !(1..=FORKS_MAX).contains(&count) {
            return Err(Refusal::invalid("count: 1 to 20"));
        }
        let timeout = request.timeout.map(seconds).transpose()?;
        self.running(id).await?;
        let message = v1::ForkSandboxRequest { id: id.to_owned(), count, ..v1::ForkSandboxRequest::default() };
        let forked = self.caller.sandboxes().fork_sandbox(message).await?.into_inner().sandboxes;
        let mut shown = Vec::new();
        for sandbox in forked {
            if let Some(timeout) = timeout {
                self.set_timeout(&sandbox.id, timeout).await?;
            }
            shown.push(json!({"sandbox": self.sandbox(&sandbox)}));
        }
        Ok(json_answer(StatusCode::CREATED, &Value::Array(shown)))
    }

    async fn metrics(&self, id: &str) -> Answer {
        let sandbox = self.running(id).await?;
        let metric = measured(&self.caller, &sandbox).await?;
        let at = metric.at.unwrap_or_default();
        let shown = json!([{
            "timestamp": at.to_string(),
            "timestampUnix": at.seconds,
            "cpuCount": metric.cpu_count,
            "cpuUsedPct": metric.cpu_percent,
            "memUsed": metric.memory,
            "memTotal": metric.memory_limit,
            "memCache": 0,
            "diskUsed": metric.disk,
            "diskTotal": metric.disk_limit,
        }]);
        Ok(json_answer(StatusCode::OK, &shown))
    }
}

/// Creates a sandbox.
async fn create_new(caller: &Caller, request: NewSandbox, is_current: bool) -> Result<v1::Sandbox, Refusal> {
    let asked = if request.template_id.is_empty() { BASE_TEMPLATE } else { &request.template_id };
    let Origin { template, from, home_from } = origin(caller, asked).await?;
    let notes = Notes {
        template: asked.to_owned(),
        is_paused_on_timeout: request.auto_pause.unwrap_or(false),
        has_auto_resume: request.auto_resume.as_ref().is_some_and(|resume| resume.enabled),
        metadata: request.metadata.unwrap_or_default(),
    };
    let message = v1::CreateSandboxRequest {
        template,
        from,
        home_from,
        envs: request.env_vars.unwrap_or_default(),
        timeout_seconds: seconds(request.timeout.unwrap_or(TIMEOUT_SECONDS.into()))?.max(1),
        // Older clients send it always.
        network: if request.allow_internet_access == Some(true) && is_current { "host" } else { "" }.to_owned(),
        metadata: notes.into_metadata()?,
        ..v1::CreateSandboxRequest::default()
    };
    Ok(caller.sandboxes().create_sandbox(message).await?.into_inner().sandbox.unwrap_or_default())
}

/// Resolves the name of a template: a template of the server, `base`, or a snapshot that a client made.
async fn origin(caller: &Caller, asked: &str) -> Result<Origin, Refusal> {
    let name = asked.split_once(':').map_or(asked, |(name, _)| name);
    let found = caller.sandboxes().get_template(v1::GetTemplateRequest { name: asked.to_owned() }).await;
    match found {
        Ok(_) => return Ok(Origin { template: asked.to_owned(), ..Origin::default() }),
        Err(status) if status.code() != Code::NotFound => return Err(status.into()),
        Err(_) if name == BASE_TEMPLATE => {
            return Ok(Origin { template: HOST_TEMPLATE.to_owned(), ..Origin::default() });
        }
        Err(_) => {}
    }
    let missing = || Refusal::not_found(format!("template {} was not found", asked.escape_debug()));
    let snapshot = find_snapshot(caller, name).await?.ok_or_else(missing)?;
    let home_from = find_home(caller, &snapshot).await?;
    Ok(Origin { template: snapshot.template, from: snapshot.revision, home_from })
}

/// The resources that a sandbox uses.
struct Measured {
    at: Option<prost_types::Timestamp>,
    cpu_count: i64,
    cpu_percent: f64,
    memory: i64,
    memory_limit: i64,
    disk: i64,
    disk_limit: i64,
}

async fn measured(caller: &Caller, sandbox: &v1::Sandbox) -> Result<Measured, Refusal> {
    let request = v1::GetSandboxStatsRequest { id: sandbox.id.clone() };
    let stats = caller.sandboxes().get_sandbox_stats(request).await?.into_inner();
    let (cpu, memory, disk) = (stats.cpu.unwrap_or_default(), stats.memory.unwrap_or_default(), stats.disk);
    let disk = disk.unwrap_or_default();
    Ok(Measured {
        at: stats.updated_at,
        cpu_count: list::cpu_count(sandbox),
        cpu_percent: cpu.usage,
        memory: memory.usage,
        memory_limit: memory.limit,
        disk: disk.usage,
        disk_limit: disk.limit,
    })
}

/// Answers with the resources that a sandbox uses, in the format of e2b's program in the sandbox.
pub(crate) async fn guest_metrics(calls: &Calls, head: &Parts) -> Answer {
    let (target, sandbox) = Target::find(calls, head).await?;
    let metric = measured(&target.caller, &sandbox).await?;
    let shown = json!({
        "ts": metric.at.unwrap_or_default().seconds,
        "cpu_count": metric.cpu_count,
        "cpu_used_pct": metric.cpu_percent,
        "mem_total": metric.memory_limit,
        "mem_used": metric.memory,
        "mem_cache": 0,
        "disk_used": metric.disk,
        "disk_total": metric.disk_limit,
    });
    Ok(json_answer(StatusCode::OK, &shown))
}

/// Returns the present time in seconds since 1970.
fn now_seconds(state: &State) -> i64 {
    (state.now)().0 / 1_000_000_000
}

/// Checks a timeout in seconds and rounds it up.
fn seconds(given: f64) -> Result<i32, Refusal> {
    const SECONDS_MAX: f64 = 86_400.0;
    if !(0.0..=SECONDS_MAX).contains(&given) {
        return Err(Refusal::invalid("timeout: 0 to 86400 seconds"));
    }
    #[allow(clippy::cast_possible_truncation, reason = "within the range")]
    let whole = given.ceil() as i32;
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_have_bounds() {
        assert_eq!(seconds(0.2).expect("fits"), 1);
        assert_eq!(seconds(86_400.0).expect("fits"), 86_400);
        for wrong in [-1.0, 86_401.0, f64::NAN, f64::INFINITY] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
