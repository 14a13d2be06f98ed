"""A sandbox client for the OpenAI Agents SDK: its sessions are Amalgam sandboxes, its snapshots those of workspaces.

``RunConfig(sandbox=SandboxRunConfig(client=AmalgamSandboxClient(), options=AmalgamSandboxClientOptions()))`` runs a
``SandboxAgent`` in one. ``AmalgamSnapshotSpec`` keeps the files of a session in a store: without archives for sessions
of this client, and from the archives of any other sandbox client.
"""

from __future__ import annotations

import asyncio
import io
import shlex
import tarfile
import tempfile
import uuid
from pathlib import Path
from typing import Literal

from agents.sandbox.errors import (
    ExecTimeoutError,
    ExecTransportError,
    SnapshotNotRestorableError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceWriteTypeError,
)
from agents.sandbox.manifest import Manifest
from agents.sandbox.session import BaseSandboxClient, BaseSandboxClientOptions, SandboxSession, SandboxSessionState
from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
from agents.sandbox.session.dependencies import Dependencies
from agents.sandbox.session.manager import Instrumentation
from agents.sandbox.session.runtime_helpers import RESOLVE_WORKSPACE_PATH_HELPER, RuntimeHelperScript
from agents.sandbox.session.tar_workspace import shell_tar_exclude_args
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot
from agents.sandbox.types import ExecResult, User
from agents.sandbox.util.tar_utils import UnsafeTarMemberError, validate_tar_bytes
from agents.sandbox.workspace_paths import coerce_posix_path, posix_path_as_path, sandbox_path_str

from .._async.client import AsyncAmalgam
from .._async.sandboxes import AsyncSandbox
from .._async.upload import find_entries, upload
from .._async.workspace import AsyncWorkspace
from ..errors import AmalgamError, NotFoundError, ProcessTimeoutError, SandboxNotFoundError

__all__ = [
    "DEPENDENCY",
    "AmalgamSandboxClient",
    "AmalgamSandboxClientOptions",
    "AmalgamSandboxSession",
    "AmalgamSandboxSessionState",
    "AmalgamSnapshot",
    "AmalgamSnapshotSpec",
]

DEPENDENCY = "amalgam"
"""The name under which ``Dependencies`` have the ``AsyncAmalgam`` of snapshots."""
ROOT = "/workspace"
READ_BYTES = 4 << 20
STDIN_BYTES_MAX = 1 << 20
"""Larger files are written as a stream, or outside the workspace by several commands."""


class _CommandError(Exception):
    """A command of the session itself failed; the text is its standard error."""


class AmalgamSnapshot(SnapshotBase):
    """The files of a session as an Amalgam snapshot with a label."""

    type: Literal["amalgam"] = "amalgam"

    @property
    def label(self) -> str:
        """The label of the snapshot."""
        return f"openai-agents/{self.id}"

    async def persist(self, data: io.IOBase, *, dependencies: Dependencies | None = None) -> None:
        """Stores the archive of a session that another sandbox client made."""
        client = await _client(dependencies)
        # A workspace of its own for each archive: a label keeps the snapshot when the workspace is gone.
        ws = await client.workspaces.create(f"{self.label}-{uuid.uuid4().hex[:8]}")
        try:
            with tempfile.TemporaryDirectory() as directory:
                await asyncio.to_thread(_extract, data, directory)
                entries = await find_entries(directory, exclude=(), allow_secrets=True)
                await upload(ws, directory, entries)
            await client.labels.set(self.label, f"{ws.name}@")
        finally:
            await ws.delete()

    async def restore(self, *, dependencies: Dependencies | None = None) -> io.IOBase:
        """Returns the archive for a session of another sandbox client."""
        client = await _client(dependencies)
        if not await self.restorable(dependencies=dependencies):
            raise SnapshotNotRestorableError(snapshot_id=self.id, path=Path(f"<amalgam:{self.label}>"))
        ws = await client.workspaces.create(f"{self.label}-{uuid.uuid4().hex[:8]}", base=self.label)
        try:
            return await _archive(ws)
        finally:
            await ws.delete()

    async def restorable(self, *, dependencies: Dependencies | None = None) -> bool:
        """Tells whether there is a snapshot with the label."""
        client = await _client(dependencies)
        return self.label in [label.name async for label in client.labels.list(self.label)]


class AmalgamSnapshotSpec(SnapshotSpec):
    """Keeps the files of sessions as Amalgam snapshots.

    A sandbox client of another kind needs its ``dependencies``: ``Dependencies().bind_value(DEPENDENCY, client)``.
    """

    type: Literal["amalgam"] = "amalgam"

    def build(self, snapshot_id: str) -> SnapshotBase:
        """Returns the snapshot of a session."""
        return AmalgamSnapshot(id=snapshot_id)


class AmalgamSandboxClientOptions(BaseSandboxClientOptions):
    """Settings of a sandbox; those of ``client.sandboxes.create``."""

    type: Literal["amalgam"] = "amalgam"
    template: str = "host"
    workspace: str = ""
    """An existing workspace to work in; a new one if empty."""
    base: str = ""
    """The snapshot or ``workspace@`` that a new workspace begins with."""
    lifetime_seconds: int | None = None
    envs: dict[str, str] | None = None
    network: str = ""
    keep_workspace: bool = False
    """Keep a new workspace when the session is deleted."""


class AmalgamSandboxSessionState(SandboxSessionState):
    """A session that can be resumed, by another process, too."""

    type: Literal["amalgam"] = "amalgam"
    sandbox_id: str
    workspace: str
    options: AmalgamSandboxClientOptions


class AmalgamSandboxSession(BaseSandboxSession):
    """A session in an Amalgam sandbox. ``sandbox`` has what the Agents SDK does not know: forks, diffs, terminals."""

    state: AmalgamSandboxSessionState

    def __init__(self, *, state: AmalgamSandboxSessionState, client: AsyncAmalgam, sandbox: AsyncSandbox) -> None:
        self.state = state
        self.sandbox = sandbox
        self._amalgam = client

    async def workspace(self) -> AsyncWorkspace:
        """Returns the workspace of the session, for example to commit, diff, fork or merge it."""
        return await self._amalgam.workspaces.get(self.state.workspace)

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        words = [str(word) for word in command]
        output = {"stdout": bytearray(), "stderr": bytearray()}
        stream = self.sandbox.commands.stream(
            f"exec {shlex.join(words)}",
            cwd=sandbox_path_str(self.state.manifest.root),
            envs=await self.state.manifest.environment.resolve(),
            timeout=None if timeout is None else max(timeout, 0.001),
        )
        try:
            async for event in stream:
                if event.type in output:
                    output[event.type] += event.output
                elif event.type == "exit":
                    if event.message:
                        raise ExecTimeoutError(command=command, timeout_s=timeout)
                    return ExecResult(
                        stdout=bytes(output["stdout"]), stderr=bytes(output["stderr"]), exit_code=event.exit_code
                    )
        except ProcessTimeoutError as error:
            raise ExecTimeoutError(command=command, timeout_s=timeout, cause=error) from error
        except AmalgamError as error:
            raise ExecTransportError(command=command, cause=error) from error
        finally:
            await stream.aclose()
        raise ExecTransportError(command=command)

    async def _prepare_backend_workspace(self) -> None:
        root = sandbox_path_str(self.state.manifest.root)
        if root != ROOT:
            done = await self.sandbox.commands.run(f"mkdir -p -- {shlex.quote(root)}")
            if done.exit_code:
                raise WorkspaceArchiveWriteError(path=Path(root), context={"output": done.stderr})

    async def _validate_path_access(self, path: Path | str, *, for_write: bool = False) -> Path:
        return await self._validate_remote_path_access(path, for_write=for_write)

    def _runtime_helpers(self) -> tuple[RuntimeHelperScript, ...]:
        return (RESOLVE_WORKSPACE_PATH_HELPER,)

    async def read(self, path: Path | str, *, user: str | User | None = None) -> io.IOBase:
        """Reads a file."""
        if user is not None:
            found = await self._check_read_with_exec(path, user=user)
        else:
            found = await self._validate_path_access(path)
        error_path = posix_path_as_path(coerce_posix_path(path))
        text = sandbox_path_str(found)
        name = shlex.quote(text)
        tests = f"test -e {name} || exit 2; test -r {name} || exit 13; readlink -nf -- {name}"
        resolved = await self.sandbox.commands.run(tests)
        if resolved.exit_code == 2:
            raise WorkspaceReadNotFoundError(path=error_path)
        try:
            if resolved.exit_code == 0 and resolved.stdout.startswith(f"{ROOT}/"):
                return io.BytesIO(await self.sandbox.files.read(resolved.stdout.removeprefix(f"{ROOT}/")))
            return io.BytesIO(await self._read_by_parts(f"cat -- {shlex.quote(text)}"))
        except (AmalgamError, _CommandError) as error:
            raise WorkspaceArchiveReadError(path=error_path, context={"stderr": str(error)}) from error

    async def _read_by_parts(self, command: str) -> bytes:
        """Returns the output of a command, in parts that the server keeps for slow readers."""
        file = f"/tmp/output-{uuid.uuid4().hex}"
        made = await self._exec_internal("sh", "-c", f"{command} > {file}")
        if not made.ok():
            await self._exec_internal("rm", "-f", file)
            raise _CommandError(made.stderr.decode(errors="replace"))
        content = bytearray()
        while True:
            script = f"tail -c +{len(content) + 1} {file} | head -c {READ_BYTES}"
            part = (await self._exec_internal("sh", "-c", script)).stdout
            content += part
            if len(part) < READ_BYTES:
                await self._exec_internal("rm", "-f", file)
                return bytes(content)

    async def write(self, path: Path | str, data: io.IOBase, *, user: str | User | None = None) -> None:
        """Writes a file, and the directories above it."""
        if user is not None:
            await self._check_write_with_exec(path, user=user)
        payload = data.read()
        if isinstance(payload, str):
            payload = payload.encode()
        if not isinstance(payload, (bytes, bytearray)):
            name = type(payload).__name__
            raise WorkspaceWriteTypeError(path=posix_path_as_path(coerce_posix_path(path)), actual_type=name)
        target = await self._validate_path_access(path, for_write=True)
        text = sandbox_path_str(target)
        try:
            if len(payload) > STDIN_BYTES_MAX and text.startswith(f"{ROOT}/"):
                await self.sandbox.files.write(text.removeprefix(f"{ROOT}/"), bytes(payload))
                return
            name = shlex.quote(text)
            script = f"mkdir -p -- {shlex.quote(str(target.parent))} && cat > {name}"
            for begin in range(0, max(len(payload), 1), STDIN_BYTES_MAX):
                part = bytes(payload[begin : begin + STDIN_BYTES_MAX])
                done = await self.sandbox.commands.run(script, stdin=part)
                if done.exit_code:
                    raise WorkspaceArchiveWriteError(path=target, context={"stderr": done.stderr})
                script = f"cat >> {name}"
        except AmalgamError as error:
            raise WorkspaceArchiveWriteError(path=target, cause=error) from error

    async def running(self) -> bool:
        """Tells whether the sandbox takes commands."""
        try:
            return (await self.sandbox.refresh()).state == "running"
        except AmalgamError:
            return False

    async def persist_workspace(self) -> io.IOBase:
        """Returns an archive of the workspace."""
        root = self._workspace_root_path()
        excludes = " ".join(shell_tar_exclude_args(self._persist_workspace_skip_relpaths()))
        try:
            return io.BytesIO(await self._read_by_parts(f"tar {excludes} -C {shlex.quote(root.as_posix())} -cf - ."))
        except _CommandError as error:
            raise WorkspaceArchiveReadError(path=root, context={"output": str(error)}) from error

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Unpacks an archive into the workspace."""
        root = self._workspace_root_path()
        payload = data.read()
        try:
            validate_tar_bytes(payload, allow_external_symlink_targets=False)
        except UnsafeTarMemberError as error:
            context = {"reason": "unsafe_or_invalid_tar", "member": error.member, "detail": str(error)}
            raise WorkspaceArchiveWriteError(path=root, context=context, cause=error) from error
        name = f".hydrate-{self.state.session_id.hex}.tar"
        try:
            await self.sandbox.files.write(name, payload)
            try:
                script = f"tar -C {shlex.quote(root.as_posix())} -xf {ROOT}/{name}"
                done = await self._exec_internal("sh", "-c", script)
            finally:
                await self.sandbox.files.remove(name)
        except AmalgamError as error:
            raise WorkspaceArchiveWriteError(path=root, cause=error) from error
        if not done.ok():
            raise WorkspaceArchiveWriteError(path=root, context={"output": done.stderr.decode(errors="replace")})

    async def _persist_snapshot(self) -> None:
        snapshot = self.state.snapshot
        if not isinstance(snapshot, AmalgamSnapshot) or not self._is_at_root or self._persist_workspace_skip_relpaths():
            # Paths that must not be kept are left out of archives.
            await super()._persist_snapshot()
            return
        ws = await self.workspace()
        await ws.commit(f"session {snapshot.id}", metadata={"session": str(self.state.session_id)})
        if (await ws.refresh()).head:
            await self._amalgam.labels.set(snapshot.label, f"{ws.name}@")

    async def _restore_snapshot_into_workspace_on_resume(self) -> None:
        snapshot = self.state.snapshot
        if not isinstance(snapshot, AmalgamSnapshot) or not self._is_at_root:
            await super()._restore_snapshot_into_workspace_on_resume()
            return
        await (await self.workspace()).restore(snapshot.label)

    async def _can_skip_snapshot_restore_on_resume(self, *, is_running: bool) -> bool:
        # A native restore costs as little as finding out whether one is needed.
        is_native = isinstance(self.state.snapshot, AmalgamSnapshot) and self._is_at_root
        return False if is_native else await super()._can_skip_snapshot_restore_on_resume(is_running=is_running)

    def _should_compute_snapshot_fingerprint_on_persist(self) -> bool:
        return not isinstance(self.state.snapshot, AmalgamSnapshot)

    @property
    def _is_at_root(self) -> bool:
        """Whether the whole workspace belongs to the session."""
        return sandbox_path_str(self.state.manifest.root) == ROOT

    async def _shutdown_backend(self) -> None:
        try:
            await self.sandbox.delete(keep_workspace=self.state.options.keep_workspace)
        except SandboxNotFoundError:
            return


class AmalgamSandboxClient(BaseSandboxClient[AmalgamSandboxClientOptions | None]):
    """Makes sessions in sandboxes of an Amalgam server. Its key needs the scopes ``write`` and ``run``."""

    backend_id = "amalgam"
    supports_default_options = True

    def __init__(
        self,
        client: AsyncAmalgam | None = None,
        *,
        instrumentation: Instrumentation | None = None,
        dependencies: Dependencies | None = None,
    ) -> None:
        self.client = client or AsyncAmalgam()
        self._instrumentation = instrumentation or Instrumentation()
        self._dependencies = dependencies.clone() if dependencies is not None else Dependencies()
        self._dependencies.bind_value(DEPENDENCY, self.client, overwrite=True)

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: AmalgamSandboxClientOptions | None = None,
    ) -> SandboxSession:
        """Starts a sandbox for a new session."""
        manifest = self._validate_manifest_for_create(manifest or Manifest(root=ROOT))
        options = options or AmalgamSandboxClientOptions()
        session_id = uuid.uuid4()
        sandbox = await self._start(options, options.workspace)
        state = AmalgamSandboxSessionState(
            session_id=session_id,
            manifest=manifest,
            snapshot=resolve_snapshot(snapshot, str(session_id)),
            sandbox_id=sandbox.id,
            workspace=sandbox.workspace,
            options=options,
        )
        return self._session(state, sandbox)

    async def _start(self, options: AmalgamSandboxClientOptions, workspace: str) -> AsyncSandbox:
        return await self.client.sandboxes.create(
            options.template,
            name="openai-agents",
            workspace=workspace or None,
            base=None if workspace else options.base or None,
            envs=options.envs,
            timeout=options.lifetime_seconds,
            network=options.network,
        )

    def _session(self, state: AmalgamSandboxSessionState, sandbox: AsyncSandbox) -> SandboxSession:
        inner = AmalgamSandboxSession(state=state, client=self.client, sandbox=sandbox)
        return self._wrap_session(inner, instrumentation=self._instrumentation)

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """Ends the sandbox of a session."""
        inner = session._inner
        if not isinstance(inner, AmalgamSandboxSession):
            raise TypeError("AmalgamSandboxClient.delete takes sessions of an AmalgamSandboxClient")
        await inner.shutdown()
        return session

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """Goes on in the sandbox of a session, or in a new one on its workspace, or from its snapshot."""
        if not isinstance(state, AmalgamSandboxSessionState):
            raise TypeError("AmalgamSandboxClient.resume takes states of an AmalgamSandboxClient")
        state.assert_path_grants_rebound()
        try:
            sandbox = await self.client.sandboxes.get(state.sandbox_id)
            is_found = sandbox.state == "running"
        except SandboxNotFoundError:
            is_found = False
        if not is_found:
            try:
                await self.client.workspaces.get(state.workspace)
                workspace = state.workspace
            except NotFoundError:
                workspace = ""
            sandbox = await self._start(state.options, workspace)
            state.sandbox_id, state.workspace = sandbox.id, sandbox.workspace
            state.workspace_root_ready = is_found = bool(workspace)
        resumed = self._session(state, sandbox)
        resumed._inner._set_start_state_preserved(is_found)
        return resumed

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        """Reads the state of a session."""
        return self._deserialize_session_state_payload(payload, AmalgamSandboxSessionState)


async def _client(dependencies: Dependencies | None) -> AsyncAmalgam:
    found = None if dependencies is None else await dependencies.get(DEPENDENCY)
    if not isinstance(found, AsyncAmalgam):
        message = f"an AmalgamSnapshot needs dependencies with an AsyncAmalgam as {DEPENDENCY!r}"
        raise RuntimeError(message)
    return found


def _extract(data: io.IOBase, directory: str) -> None:
    with tarfile.open(fileobj=data, mode="r:*") as archive:
        archive.extractall(directory, filter="data")


async def _archive(ws: AsyncWorkspace) -> io.IOBase:
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w") as archive:
        async for file in ws.files.list(recursive=True):
            member = tarfile.TarInfo(f"./{file.path}")
            member.mode = file.mode
            member.mtime = file.modify_time.timestamp() if file.modify_time else 0
            if file.is_dir:
                member.type = tarfile.DIRTYPE
                archive.addfile(member)
            elif file.kind == "symlink":
                member.type, member.linkname = tarfile.SYMTYPE, file.link_target
                archive.addfile(member)
            elif file.is_file:
                content = await ws.files.read(file.path)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    output.seek(0)
    return output
