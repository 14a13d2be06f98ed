# Generated from _async/sandboxes.py by scripts/generate_sync.py; do not edit.
"""Sandboxes: isolated commands beside a workspace."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import datetime
from types import TracebackType
from typing import Any

from .._call import Named, Revision, json_call, list_of, nothing, revision_text
from .._text import data_text, escape, segment, time_text
from ..errors import NotFoundError, ProtocolError, UnsupportedError
from ..models import (
    BatchDeleted,
    ForkRun,
    PortUrl,
    SandboxInfo,
    SandboxLogs,
    SandboxState,
    SandboxStats,
    Snapshot,
    Template,
)
from .commands import Commands
from .files import Files
from .terminals import Terminals
from .transport import Transport

PAGE_SIZE = 100
CREATE_SECONDS = 90.0
"""A creation may wait in a queue for 30 seconds."""
RUN_SECONDS = 24 * 3600.0
"""A command without output is waited for so long."""


class Sandbox:
    """A sandbox. Leaving its block deletes it; a workspace that existed before it stays.

    Attributes:
        info: The sandbox as the server described it last; ``refresh`` reads it again.
        commands: Runs commands in it.
        pty: Its terminals.
        files: The files of its workspace, which its commands see at ``/workspace``.
        keep_workspace: Whether the end of the block keeps a workspace that was made for the sandbox.

    """

    def __init__(self, transport: Transport, info: SandboxInfo, *, keep_workspace: bool = False) -> None:
        self._transport = transport
        self._service = Sandboxes(transport)
        self.info = info
        self.keep_workspace = keep_workspace
        self.commands = Commands(transport, info.id)
        self.pty = Terminals(transport, info.id)
        self.files = Files(transport, info.workspace)

    @property
    def id(self) -> str:
        """``sbx-...``."""
        return self.info.id

    @property
    def name(self) -> str:
        """The name; may be empty."""
        return self.info.name

    @property
    def state(self) -> SandboxState:
        """The state as this object saw it last."""
        return self.info.state

    @property
    def workspace(self) -> str:
        """The name of its workspace: ``client.workspaces.get`` has the rest of it."""
        return self.info.workspace

    def __repr__(self) -> str:
        return f"<sandbox {self.id!r}, {self.state}>"

    def refresh(self) -> SandboxInfo:
        """Reads ``info`` again."""
        self.info = (self._service.get(self.id)).info
        return self.info

    def extend(self, seconds: int) -> SandboxInfo:
        """Lets the sandbox live longer: 3,600 seconds at most by one call, 24 hours in all."""
        self.info = (self._service.extend(self.id, seconds)).info
        return self.info

    def logs(self, *, tail: int = 100, since: datetime | None = None, until: datetime | None = None) -> SandboxLogs:
        """Returns the log of the sandbox."""
        return self._service.logs(self.id, tail=tail, since=since, until=until)

    def stats(self) -> SandboxStats:
        """Returns the resources that the sandbox uses."""
        return self._service.stats(self.id)

    def open_port(self, port: int, *, timeout: int | None = None) -> PortUrl:
        """Makes a URL at which a port of the sandbox is reached without a key, by HTTP and WebSockets.

        Args:
            port: A program in the sandbox has to listen there, on the loopback address or on all addresses.
            timeout: The seconds for which the URL is good; an hour if unset, at most a day.

        """
        return self._service.open_port(self.id, port, timeout=timeout)

    def get_host(self, port: int) -> str:
        """Returns what stands behind ``http://`` in the URL of a port, as in ``f"http://{sandbox.get_host(8000)}/path"``.

        Good for an hour; ``open_port`` has the whole URL, and takes another time.
        """
        return (self.open_port(port)).host

    def fork(self, *, count: int = 1, name: str = "") -> builtins.list[Sandbox]:
        """Copies the workspace as it is now, without a pause, and starts a sandbox on each copy."""
        return self._service.fork(self.id, count=count, name=name)

    def delete(self, *, keep_workspace: bool = False) -> None:
        """Ends the sandbox. A workspace that was made for it is deleted, and can be undeleted, unless it is kept."""
        self._service.delete(self.id, keep_workspace=keep_workspace)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # It may have been deleted inside the block.
        with suppress(NotFoundError):
            self.delete(keep_workspace=self.keep_workspace)


class Sandboxes:
    """The sandboxes of a project, as ``client.sandboxes``. Calls need a key with the scope ``run``."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(
        self,
        template: str = "host",
        *,
        name: str = "",
        workspace: str | Named | None = None,
        base: Revision | Named | None = None,
        envs: Mapping[str, str] | None = None,
        timeout: int | None = None,
        cpu: str = "",
        memory: str = "",
        disk: str = "",
        pids: int = 0,
        best_effort: bool = False,
        read_only: bool = False,
        runtime: str = "",
        network: str | Sequence[str] = "",
        keep_workspace: bool = False,
    ) -> Sandbox:
        """Starts a sandbox, and returns when it takes commands. ``with`` deletes it at the end.

        Args:
            template: What it is started from: ``client.templates.list()``.
            name: A name for people.
            workspace: An existing workspace to work in.
            base: A snapshot or a workspace whose contents a new workspace gets. Without ``workspace`` and ``base`` the
                new workspace is empty.
            envs: Environment variables of all its commands.
            timeout: The seconds after which it is ended and its workspace committed; an hour if unset, at most a day.
            cpu: CPUs, for example ``0.5``. A limit that is given and that nothing enforces is an error, unless
                ``best_effort`` is set.
            memory: For example ``512m``.
            disk: The size of the workspace, for example ``1g``.
            pids: Processes and threads.
            best_effort: Start it although nothing enforces some of the limits; ``info.limits`` tells which.
            read_only: Show the workspace for reading only.
            runtime: The runtime; the server's default if empty.
            network: ``none`` if empty; or the hosts that it may reach, for example ``["pypi.org"]``.
            keep_workspace: Keep a workspace that is made for the sandbox at the end of its block.

        Raises:
            TemplateNotFoundError: There is no such template.
            SandboxLimitExceededError: The key or the server has as many sandboxes as it may have.
            LimitNotEnforcedError: Nothing enforces a limit that was given.
            NotIsolatedError: The server's machine cannot isolate processes.

        """
        resources = {"cpu": cpu, "memory": memory, "disk": disk, "pids": pids}
        body = {
            "template": template,
            "name": name,
            "workspace": _workspace_text(workspace),
            "from": _base_text(base),
            "envs": dict(envs or {}),
            "timeoutSeconds": timeout,
            "resources": {field: value for field, value in resources.items() if value} or None,
            "bestEffort": best_effort,
            "readOnly": read_only,
            "runtime": runtime,
            **_network_fields(network),
        }
        call = json_call("POST", "/sandboxes", SandboxInfo.from_json, body=body, timeout=CREATE_SECONDS)
        try:
            info = self._transport.send(call)
        except UnsupportedError as error:
            if self._transport.pool.store is None:
                raise
            failure = UnsupportedError("the process of the local store has no sandboxes")
            failure.suggestion = "Start `amalgam serve --listen`, and pass its URL and a key."
            raise failure from error
        return Sandbox(self._transport, info, keep_workspace=keep_workspace)

    def get(self, id: str) -> Sandbox:  # noqa: A002
        """Returns a sandbox.

        Raises:
            SandboxNotFoundError: There is no such sandbox.

        """
        call = json_call("GET", f"/sandboxes/{segment(id)}", SandboxInfo.from_json)
        return Sandbox(self._transport, self._transport.send(call))

    def list(self, *, state: SandboxState | None = None, name_prefix: str = "") -> Generator[Sandbox, None, None]:
        """Yields the sandboxes of the project, newest first; with arguments only those in a state or with a name.

        The caller may delete them meanwhile.
        """
        parse = list_of("items", SandboxInfo.from_json)
        # Pages are numbered: a sandbox that is created or deleted between two of them moves the others.
        sandboxes: dict[str, SandboxInfo] = {}
        page = 1
        while True:
            query = {"page": page, "limit": PAGE_SIZE, "state": state, "namePrefix": name_prefix}
            found = self._transport.send(json_call("GET", "/sandboxes", parse, query=query))
            sandboxes.update((info.id, info) for info in found)
            if len(found) < PAGE_SIZE:
                break
            page += 1
        for info in sandboxes.values():
            yield Sandbox(self._transport, info)

    def delete(self, id: str, *, keep_workspace: bool = False) -> None:  # noqa: A002
        """Ends a sandbox and forgets it.

        Args:
            id: The sandbox.
            keep_workspace: Commit and keep a workspace that was made for it; otherwise it can be undeleted for a time.

        """
        query = {"keepWorkspace": keep_workspace}
        self._transport.send(json_call("DELETE", f"/sandboxes/{segment(id)}", nothing, query=query))

    def batch_delete(self, ids: Sequence[str], *, keep_workspace: bool = False) -> BatchDeleted:
        """Deletes up to 50 sandboxes. Returns those that were deleted, and the reason for each other one."""
        body = {"ids": [*ids], "keepWorkspace": keep_workspace}
        call = json_call("POST", "/sandboxes/batch-delete", BatchDeleted.from_json, body=body, timeout=CREATE_SECONDS)
        return self._transport.send(call)

    def logs(
        self,
        id: str,  # noqa: A002
        *,
        tail: int = 100,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> SandboxLogs:
        """Returns the last lines of the log of a sandbox."""
        query = {
            "tail": tail,
            "since": time_text(since) if since else None,
            "until": time_text(until) if until else None,
        }
        call = json_call("GET", f"/sandboxes/{segment(id)}/logs", SandboxLogs.from_json, query=query)
        return self._transport.send(call)

    def stats(self, id: str) -> SandboxStats:  # noqa: A002
        """Returns the resources that a sandbox uses."""
        return self._transport.send(json_call("GET", f"/sandboxes/{segment(id)}/stats", SandboxStats.from_json))

    def extend(self, id: str, seconds: int) -> Sandbox:  # noqa: A002
        """Lets a sandbox live longer: 3,600 seconds at most by one call, 24 hours in all."""
        path = f"/sandboxes/{segment(id)}/extend"
        call = json_call("POST", path, SandboxInfo.from_json, body={"seconds": seconds})
        return Sandbox(self._transport, self._transport.send(call))

    def fork(self, id: str, *, count: int = 1, name: str = "") -> builtins.list[Sandbox]:  # noqa: A002
        """Copies the workspace of a running sandbox, without a pause, and starts a sandbox on each copy."""
        parse = list_of("sandboxes", SandboxInfo.from_json)
        body = {"count": count, "name": name}
        call = json_call("POST", f"/sandboxes/{segment(id)}/fork", parse, body=body, timeout=CREATE_SECONDS)
        return [Sandbox(self._transport, info) for info in self._transport.send(call)]

    def open_port(self, id: str, port: int, *, timeout: int | None = None) -> PortUrl:  # noqa: A002
        """Makes a URL at which a port of a sandbox is reached without a key."""
        path = f"/sandboxes/{segment(id)}/ports/{int(port)}"
        call = json_call("POST", path, PortUrl.from_json, body={"timeoutSeconds": timeout})
        return self._transport.send(call)

    def run_on_fork(
        self,
        workspace: str | Named,
        command: str,
        *,
        cwd: str = "",
        envs: Mapping[str, str] | None = None,
        timeout: float | None = None,
        stdin: str | bytes = b"",
        secrets: Mapping[str, str] | None = None,
        template: str = "host",
        network: str | Sequence[str] = "",
        merge: bool = True,
        keep: bool = False,
        message: str = "",
        on_stage: Callable[[str], Any] | None = None,
        on_stdout: Callable[[str], Any] | None = None,
        on_stderr: Callable[[str], Any] | None = None,
    ) -> ForkRun:
        """Runs a command on a fork of a workspace in a sandbox of its own, and merges what it changed: one call.

        The workspace is updated first if it follows a source. If the command ends with 0, the fork is merged through
        the queue and ends; otherwise it is deleted, and can be undeleted, unless it is to be kept. A call that is
        given up ends the command, and nothing is merged. Needs a key with the scopes ``run`` and ``merge``.

        Args:
            workspace: The workspace to fork and to merge into.
            command: For ``/bin/sh -c``.
            cwd: ``/workspace`` if empty.
            envs: Environment variables of the command.
            timeout: The seconds after which the command and everything that it started are killed.
            stdin: Standard input.
            secrets: Secrets of the command, as in ``commands.run``.
            template: What the sandbox is started from.
            network: ``none`` if empty; or the hosts that it may reach, for example ``["pypi.org"]``.
            merge: Merge what the command changed.
            keep: Keep the fork if it is not merged.
            message: The message of the merge; the command if empty.
            on_stage: Called with each stage: ``update``, ``fork``, ``sandbox``, ``run``, ``end``, ``detect``, ``merge``
                and ``clean``.
            on_stdout: Called with pieces of the standard output as they come.
            on_stderr: The same for the standard error.

        """
        body = {
            "from": _workspace_text(workspace),
            "command": command,
            "cwd": cwd,
            "envs": dict(envs or {}),
            "timeout": None if timeout is None else max(int(timeout * 1000), 1),
            "stdin": escape(data_text(stdin)),
            "secrets": dict(secrets or {}),
            "sandbox": {"template": template, **_network_fields(network)},
            "noMerge": not merge,
            "keep": keep,
            "message": message,
        }
        call = json_call("POST", "/sandboxes/run", nothing, body=body, timeout=RUN_SECONDS)
        stdout, stderr = "", ""
        with closing(self._transport.messages(call)) as found:
            for one in found:
                output = one.get("output") or {}
                if one.get("stage") and on_stage is not None:
                    on_stage(one["stage"].get("stage", ""))
                if output.get("type") == "stdout":
                    stdout += output.get("data", "")
                    if on_stdout is not None:
                        on_stdout(output.get("data", ""))
                elif output.get("type") == "stderr":
                    stderr += output.get("data", "")
                    if on_stderr is not None:
                        on_stderr(output.get("data", ""))
                if one.get("result"):
                    return ForkRun.from_json(one["result"], stdout, stderr)
        raise ProtocolError("the stream ended without a result")


class Templates:
    """What sandboxes can be started from, as ``client.templates``."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> builtins.list[Template]:
        """Returns the templates of the server."""
        call = json_call("GET", "/templates", list_of("templates", Template.from_json))
        return self._transport.send(call)


def _workspace_text(workspace: str | Named | None) -> str:
    if workspace is None:
        return ""
    return f"workspaces/{workspace if isinstance(workspace, str) else workspace.name}"


def _base_text(base: Revision | Named | None) -> str:
    if base is None or isinstance(base, (str, Snapshot)):
        return revision_text(base)
    return f"{base.name}@"


def _network_fields(network: str | Sequence[str]) -> dict[str, Any]:
    """Returns the fields of a network: a word, or the hosts of an allow-list."""
    return {"network": network} if isinstance(network, str) else {"allowedHosts": [*network]}
