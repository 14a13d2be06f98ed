"""Sandboxes, their commands and their terminals."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from .._text import short, time_of
from .service import MergeResult
from .tree import Change, Json

SandboxState = Literal["starting", "running", "stopping", "stopped", "error"]
CommandEventType = Literal["started", "stdout", "stderr", "exit"]


@dataclass(frozen=True, slots=True)
class EnforcedLimit:
    """A limit of a sandbox."""

    limit: str
    """``cpu``, ``memory``, ``pids`` or ``disk``."""
    value: str
    enforced_by: str
    """For example ``cgroup`` or ``rlimit``; ``none`` if nothing enforces it."""

    @classmethod
    def from_json(cls, value: Json) -> EnforcedLimit:
        """Reads an ``EnforcedLimit``."""
        return cls(value.get("limit", ""), value.get("value", ""), value.get("enforcedBy", ""))


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """A sandbox as the server described it."""

    id: str
    state: SandboxState
    template: str
    workspace: str
    """The name of the workspace that its commands see at ``/workspace``."""
    name: str = ""
    created_at: datetime | None = None
    expires_at: datetime | None = None
    """When it is ended, and its workspace committed and kept."""
    project: str = ""
    runtime: str = ""
    network: str = ""
    read_only: bool = False
    limits: tuple[EnforcedLimit, ...] = ()
    provider: str = ""
    """How the sandbox sees its workspace: ``fuse`` or ``checkout``."""
    fork_cost: str = ""
    """What a fork of the running sandbox costs, in words."""
    reason: str = ""
    """Why it is in the state ``error`` or ``stopped``."""
    allowed_hosts: tuple[str, ...] = ()
    """The hosts that it may reach, by the proxy of the server."""
    home: str = ""
    """The hidden workspace with its home and ``/tmp``, which fork with the sandbox."""

    @classmethod
    def from_json(cls, value: Json) -> SandboxInfo:
        """Reads a ``Sandbox``."""
        return cls(
            id=value["id"],
            state=value.get("state", "error"),
            template=value.get("template", ""),
            workspace=short(value.get("workspace", "")),
            name=value.get("name", ""),
            created_at=time_of(value.get("createdAt")),
            expires_at=time_of(value.get("expiresAt")),
            project=value.get("project", ""),
            runtime=value.get("runtime", ""),
            network=value.get("network", ""),
            read_only=value.get("readOnly", False),
            limits=tuple(EnforcedLimit.from_json(one) for one in value.get("limits", ())),
            provider=value.get("provider", ""),
            fork_cost=value.get("forkCost", ""),
            reason=value.get("reason", ""),
            allowed_hosts=tuple(value.get("allowedHosts", ())),
            home=short(value.get("home", "")),
        )


@dataclass(frozen=True, slots=True)
class BatchDeleted:
    """The result of deleting several sandboxes."""

    succeeded: tuple[str, ...]
    failed: dict[str, str]
    """The reason for each sandbox that was not deleted, by id."""

    @classmethod
    def from_json(cls, value: Json) -> BatchDeleted:
        """Reads a ``BatchDeleteSandboxesResponse``."""
        failed = {one.get("id", ""): one.get("error", "") for one in value.get("failed", ())}
        return cls(tuple(value.get("succeeded", ())), failed)


@dataclass(frozen=True, slots=True)
class PortUrl:
    """The URL of a port of a sandbox. Whoever has it reaches the port, without a key."""

    url: str
    """With a slash at its end."""
    host: str
    """What stands behind the scheme in the URL. It has a path, unless the server has a domain for ports."""
    expires_at: datetime | None = None

    @classmethod
    def from_json(cls, value: Json) -> PortUrl:
        """Reads an ``OpenPortResponse``."""
        return cls(value.get("url", ""), value.get("host", ""), time_of(value.get("expiresAt")))


@dataclass(frozen=True, slots=True)
class SandboxLogs:
    """The log of a sandbox."""

    text: str
    truncated: bool = False
    """Whether there are more lines."""

    @classmethod
    def from_json(cls, value: Json) -> SandboxLogs:
        """Reads a ``GetSandboxLogsResponse``."""
        return cls(value.get("logs", ""), value.get("truncated", False))


@dataclass(frozen=True, slots=True)
class SandboxStats:
    """The resources that a sandbox uses."""

    cpu_percent: float
    """100 is one CPU."""
    memory_bytes: int
    memory_limit_bytes: int
    disk_bytes: int
    disk_limit_bytes: int
    received_bytes: int
    sent_bytes: int
    processes: int
    updated_at: datetime | None = None

    @classmethod
    def from_json(cls, value: Json) -> SandboxStats:
        """Reads a ``GetSandboxStatsResponse``."""
        cpu, memory = value.get("cpu") or {}, value.get("memory") or {}
        disk, network = value.get("disk") or {}, value.get("network") or {}
        return cls(
            cpu_percent=cpu.get("usage", 0.0),
            memory_bytes=memory.get("usage", 0),
            memory_limit_bytes=memory.get("limit", 0),
            disk_bytes=disk.get("usage", 0),
            disk_limit_bytes=disk.get("limit", 0),
            received_bytes=network.get("rxBytes", 0),
            sent_bytes=network.get("txBytes", 0),
            processes=value.get("processes", 0),
            updated_at=time_of(value.get("updatedAt")),
        )


@dataclass(frozen=True, slots=True)
class Template:
    """A root file system from which sandboxes are started."""

    name: str
    description: str = ""
    tags: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, value: Json) -> Template:
        """Reads a ``Template``."""
        return cls(value["name"], value.get("description", ""), tuple(value.get("tags", ())))


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command that has ended."""

    command_id: str
    exit_code: int
    """128 and the signal's number if a signal ended the command."""
    stdout: str
    """Bytes that are not UTF-8 are replaced."""
    stderr: str
    truncated: bool = False
    """Whether there was more output."""

    @classmethod
    def from_json(cls, value: Json) -> CommandResult:
        """Reads a ``RunCommandResponse``."""
        return cls(
            command_id=value.get("commandId", ""),
            exit_code=value.get("exitCode", 0),
            stdout=value.get("stdout", ""),
            stderr=value.get("stderr", ""),
            truncated=value.get("truncated", False),
        )


@dataclass(frozen=True, slots=True)
class CommandEvent:
    """An event of a command."""

    type: CommandEventType
    command_id: str
    data: str = ""
    """Output as text; bytes that are not UTF-8 are replaced."""
    output: bytes = b""
    """Output as it is."""
    exit_code: int = 0
    """Of the event ``exit``."""
    message: str = ""
    """Of the event ``exit``: not empty if the command was killed because its time was up."""
    next_offset: int = 0
    """The offset at which ``commands.get(id).events(offset=...)`` goes on after this event."""
    truncated: bool = False
    """Of ``exit``: there was more output. Of output: the bytes before it are not kept any more."""


@dataclass(frozen=True, slots=True)
class CommandInfo:
    """A command of a sandbox that runs or has ended."""

    id: str
    command: str
    running: bool
    exit_code: int = 0
    output_bytes: int = 0
    started_at: datetime | None = None

    @classmethod
    def from_json(cls, value: Json) -> CommandInfo:
        """Reads a ``SandboxCommand``."""
        return cls(
            id=value.get("commandId", ""),
            command=value.get("command", ""),
            running=value.get("running", False),
            exit_code=value.get("exitCode", 0),
            output_bytes=value.get("outputBytes", 0),
            started_at=time_of(value.get("startedAt")),
        )


@dataclass(frozen=True, slots=True)
class ForkRun:
    """The result of a command that was run on a fork of a workspace."""

    exit_code: int
    stdout: str
    """Bytes that are not UTF-8 are replaced."""
    stderr: str
    workspace: str
    """The name of the fork."""
    snapshot: str
    """The id of the fork's head after the command."""
    changes: tuple[Change, ...] = ()
    """What the command changed, at most 1,000 paths."""
    changes_more: int = 0
    """How many more there are."""
    merge: MergeResult | None = None
    """The merge; nothing if there was none."""
    merged: bool = False
    """Whether the changes are in the workspace that was forked."""
    kept: bool = False
    """Whether the fork still exists: it was to be kept, or its merge waits for a decision."""
    timed_out: bool = False
    """Whether the command was killed because its time was up."""

    @classmethod
    def from_json(cls, value: Json, stdout: str, stderr: str) -> ForkRun:
        """Reads a ``RunOnForkResult``."""
        merge = value.get("merge")
        return cls(
            exit_code=value.get("exitCode", 0),
            stdout=stdout,
            stderr=stderr,
            workspace=short(value.get("workspace", "")),
            snapshot=short(value.get("snapshot", "")),
            changes=tuple(Change.from_json(one) for one in value.get("changes", ())),
            changes_more=value.get("changesMore", 0),
            merge=MergeResult.from_json(merge) if merge else None,
            merged=value.get("merged", False),
            kept=value.get("kept", False),
            timed_out=value.get("timedOut", False),
        )
