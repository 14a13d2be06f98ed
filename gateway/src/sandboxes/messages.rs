//! Converts sandboxes, commands and their events to messages of the API.

use amalgam_engine::Time;
use amalgam_proto::{timestamp, v1};
use amalgam_sandbox::{Command, CommandEnd, Stream, Usage};
use serde_json::Value;

use super::Living;
use super::access::Access;
use crate::catalog::SandboxRecord;

const NANOSECONDS_IN_MILLISECOND: i64 = 1_000_000;

pub(super) fn sandbox_message(record: &SandboxRecord) -> v1::Sandbox {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let config = &record.config;
    let limits = config["limits"].as_array().map(Vec::as_slice).unwrap_or_default();
    v1::Sandbox {
        id: record.id.clone(),
        name: record.name.clone(),
        state: record.state.word().to_owned(),
        template: record.template.clone(),
        created_at: Some(timestamp(record.created)),
        expires_at: Some(timestamp(record.expires)),
        project: record.project.to_string(),
        workspace: record.workspace.clone(),
        runtime: record.runtime.clone(),
        network: text(&config["network"]),
        read_only: config["readOnly"].as_bool().unwrap_or(false),
        limits: limits
            .iter()
            .map(|one| v1::EnforcedLimit {
                limit: text(&one["limit"]),
                value: text(&one["value"]),
                enforced_by: text(&one["by"]),
            })
            .collect(),
        provider: text(&config["provider"]),
        fork_cost: Access::of_record(record).fork_cost().to_owned(),
        reason: record.reason.clone(),
        owns_workspace: super::owns_workspace(record),
        metadata: super::metadata_of(record),
        allowed_hosts: super::allowed_hosts_of(record).iter().map(ToString::to_string).collect(),
        home: text(&config["home"]),
    }
}

fn count(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn time(milliseconds: i64) -> Time {
    Time(milliseconds.saturating_mul(NANOSECONDS_IN_MILLISECOND))
}

/// Builds the message with the usage of a sandbox. All values are zero before the agent has measured.
#[allow(clippy::cast_precision_loss, reason = "a percentage needs few digits")]
pub(super) fn stats_message(id: &str, living: &Living, usage: Option<Usage>) -> v1::GetSandboxStatsResponse {
    let updated_at = usage.map(|usage| timestamp(time(usage.at_ms)));
    let usage = usage.unwrap_or_default();
    let limits = &living.limits;
    let percent = 100.0 * usage.memory_bytes as f64 / limits.memory_bytes.max(1) as f64;
    v1::GetSandboxStatsResponse {
        sandbox_id: id.to_owned(),
        cpu: Some(v1::CpuStats { usage: usage.cpu_percent, limit: limits.cpus.to_string() }),
        memory: Some(v1::MemoryStats { usage: count(usage.memory_bytes), limit: count(limits.memory_bytes), percent }),
        disk: Some(v1::DiskStats { usage: count(usage.disk_bytes), limit: count(limits.disk_bytes) }),
        network: Some(v1::NetworkStats { rx_bytes: count(usage.received_bytes), tx_bytes: count(usage.sent_bytes) }),
        processes: i32::try_from(usage.processes).unwrap_or(i32::MAX),
        updated_at,
    }
}

pub(super) fn command_message(command: &Command) -> v1::SandboxCommand {
    let end = command.end();
    v1::SandboxCommand {
        command_id: command.id.clone(),
        command: command.text.clone(),
        started_at: Some(timestamp(time(command.started_ms))),
        running: end.is_none(),
        exit_code: end.map_or(0, |end| end.exit_code),
        output_bytes: count(command.output_bytes()),
    }
}

/// An event of a command, before it becomes one of the two messages that have the same fields.
#[derive(Debug, Default)]
pub(super) struct Event {
    pub(super) kind: &'static str,
    pub(super) command_id: String,
    pub(super) data: String,
    pub(super) output: bytes::Bytes,
    pub(super) exit_code: i32,
    pub(super) message: String,
    pub(super) timestamp: i64,
    pub(super) next_offset: u64,
    pub(super) is_truncated: bool,
}

impl Event {
    /// Returns the event for the end of a command.
    pub(super) fn of_end(command_id: &str, end: CommandEnd, next_offset: u64, now: Time) -> Self {
        let kind = if end.error.is_some() { "error" } else { "exit" };
        let message = match end.error {
            Some(error) => error,
            None if end.is_timed_out => "killed because its time was up".to_owned(),
            None => String::new(),
        };
        Self {
            kind,
            command_id: command_id.to_owned(),
            exit_code: end.exit_code,
            message,
            timestamp: now.0 / NANOSECONDS_IN_MILLISECOND,
            next_offset,
            is_truncated: end.is_truncated,
            ..Self::default()
        }
    }

    pub(super) fn of_stream(stream: Stream, command_id: &str, now: Time) -> Self {
        let kind = if stream == Stream::Stderr { "stderr" } else { "stdout" };
        let timestamp = now.0 / NANOSECONDS_IN_MILLISECOND;
        Self { kind, command_id: command_id.to_owned(), timestamp, ..Self::default() }
    }
}

impl From<Event> for v1::StreamCommandResponse {
    fn from(event: Event) -> Self {
        Self {
            r#type: event.kind.to_owned(),
            command_id: event.command_id,
            data: event.data,
            exit_code: event.exit_code,
            message: event.message,
            timestamp: event.timestamp,
            next_offset: count(event.next_offset),
            truncated: event.is_truncated,
            output: event.output,
        }
    }
}

impl From<Event> for v1::AttachCommandResponse {
    fn from(event: Event) -> Self {
        let event = v1::StreamCommandResponse::from(event);
        Self {
            r#type: event.r#type,
            command_id: event.command_id,
            data: event.data,
            exit_code: event.exit_code,
            message: event.message,
            timestamp: event.timestamp,
            next_offset: event.next_offset,
            truncated: event.truncated,
            output: event.output,
        }
    }
}
