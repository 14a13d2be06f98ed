"""A sandbox provider for Inspect: ``sandbox="amalgam"`` runs each sample in an Amalgam sandbox.

``AMALGAM_URL`` and ``AMALGAM_API_KEY`` name the server; the key needs the scopes ``write`` and ``run``. A configuration
is the name of a template, or an ``AmalgamSandboxConfig``, for example with a workspace that every sample begins with.
"""

from __future__ import annotations

import os
import shlex
import uuid
from typing import Any, Literal, overload

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel

from .._async.client import AsyncAmalgam
from .._async.sandboxes import AsyncSandbox
from ..errors import AmalgamError, NotFoundError, ProcessTimeoutError, SandboxNotReadyError

__all__ = ["AmalgamSandboxConfig", "AmalgamSandboxEnvironment"]

ROOT = "/workspace"
READ_BYTES = 4 << 20
STDIN_BYTES_MAX = 1 << 20
"""Longer input is put into a file first."""
COMMAND_CHARACTERS_MAX = 256 << 10
"""A longer command is put into a file first."""
EXIT_NOT_EXECUTABLE = 126
_NOT_FOUND, _NOT_PERMITTED, _IS_DIRECTORY = 2, 13, 21


class AmalgamSandboxConfig(BaseModel, frozen=True):
    """Settings of the sandboxes of a task; those of ``client.sandboxes.create``."""

    template: str = "host"
    base: str = ""
    """The snapshot or ``workspace@`` that every sample begins with."""
    lifetime_seconds: int | None = None
    network: str = ""
    keep_workspace: bool = False
    """Keep the workspace of each sample, under the name ``environment.sandbox.workspace``."""


@sandboxenv(name="amalgam")
class AmalgamSandboxEnvironment(SandboxEnvironment):
    """The sandbox of a sample. ``sandbox`` has what Inspect does not know: forks, diffs, terminals."""

    def __init__(self, sandbox: AsyncSandbox, client: AsyncAmalgam | None = None) -> None:
        super().__init__()
        self.sandbox = sandbox
        self._client = client

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """Reads a configuration."""
        return AmalgamSandboxConfig.model_validate(config)

    @classmethod
    async def sample_init(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        metadata: dict[str, str],  # noqa: ARG003
    ) -> dict[str, SandboxEnvironment]:
        """Starts the sandbox of a sample."""
        if isinstance(config, str):
            config = AmalgamSandboxConfig(template=config)
        settings = config if isinstance(config, AmalgamSandboxConfig) else AmalgamSandboxConfig()
        client = AsyncAmalgam()
        sandbox = await client.sandboxes.create(
            settings.template,
            name=f"inspect {task_name}"[:100],
            base=settings.base or None,
            timeout=settings.lifetime_seconds,
            network=settings.network,
            keep_workspace=settings.keep_workspace,
        )
        return {"default": cls(sandbox, client)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,  # noqa: ARG003
        config: SandboxEnvironmentConfigType | None,  # noqa: ARG003
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,  # noqa: ARG003
    ) -> None:
        """Ends the sandbox of a sample."""
        for environment in environments.values():
            if isinstance(environment, AmalgamSandboxEnvironment):
                await environment.close()

    async def close(self) -> None:
        """Ends the sandbox."""
        try:
            await self.sandbox.delete(keep_workspace=self.sandbox.keep_workspace)
        except NotFoundError:
            return
        finally:
            if self._client is not None:
                await self._client.close()

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,  # noqa: A002
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,  # noqa: ARG002
        concurrency: bool = True,  # noqa: ARG002
    ) -> ExecResult[str]:
        """Runs a command as the user of the sandbox, who is never root."""
        if user is not None and user not in ("1000", "sandbox"):
            raise SandboxUserUnsupportedError(f"an Amalgam sandbox has one user and cannot run commands as {user!r}")
        data = (input.encode() if isinstance(input, str) else input) or b""
        command = f"exec {shlex.join(cmd)}"
        files: list[str] = []
        try:
            if len(command) > COMMAND_CHARACTERS_MAX:
                files.append(await self._put(command.encode()))
                command = f"exec /bin/sh {files[-1]}"
            if len(data) > STDIN_BYTES_MAX:
                files.append(await self._put(data))
                command, data = f"{command} < {files[-1]}", b""
            return await self._run(command, os.path.join(ROOT, cwd or ""), env or {}, data, timeout)
        except ProcessTimeoutError as error:
            raise TimeoutError(error.message) from error
        except (NotFoundError, SandboxNotReadyError) as error:
            raise SandboxUnavailableError(error.message) from error
        finally:
            for file in files:
                await self.sandbox.files.remove(file.removeprefix(f"{ROOT}/"))

    async def _run(
        self, command: str, cwd: str, env: dict[str, str], data: bytes, timeout: int | None
    ) -> ExecResult[str]:
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        output = {"stdout": bytearray(), "stderr": bytearray()}
        stream = self.sandbox.commands.stream(command, cwd=cwd, envs=env, stdin=data, timeout=timeout)
        exit_code = 0
        try:
            async for event in stream:
                if event.type == "stdout" or event.type == "stderr":
                    kept = output[event.type]
                    kept += event.output
                    if len(kept) > limit:
                        await self.sandbox.commands.kill(event.command_id, 9)
                        text = kept[:limit].decode(errors="replace")
                        raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, text)
                elif event.type == "exit":
                    if event.message:
                        raise TimeoutError(f"the command did not end within {timeout} seconds")
                    exit_code = event.exit_code
        finally:
            await stream.aclose()
        stdout, stderr = (bytes(kept).decode(errors="replace") for kept in output.values())
        if exit_code == EXIT_NOT_EXECUTABLE and "ermission denied" in stderr:
            raise PermissionError(stderr.strip())
        return ExecResult(exit_code == 0, exit_code, stdout, stderr)

    async def _put(self, data: bytes) -> str:
        """Writes data to a new file of the workspace, and returns its path."""
        name = f".inspect-{uuid.uuid4().hex}"
        await self.sandbox.files.write(name, data)
        return f"{ROOT}/{name}"

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Writes a file, and the directories above it."""
        data = contents.encode() if isinstance(contents, str) else contents
        path = os.path.join(ROOT, file)
        name, directory = shlex.quote(path), shlex.quote(os.path.dirname(path))
        tests = (
            f"test -d {name} && exit {_IS_DIRECTORY}; mkdir -p -- {directory} || exit {_NOT_PERMITTED}; "
            f"test -e {name} -a ! -w {name} && exit {_NOT_PERMITTED}"
        )
        is_large = len(data) > STDIN_BYTES_MAX
        if is_large:
            source = await self._put(data)
            script, data = f"{tests}; cat {source} > {name} || exit {_NOT_PERMITTED}", b""
        else:
            script = f"{tests}; cat > {name} || exit {_NOT_PERMITTED}"
        try:
            done = await self.sandbox.commands.run(script, stdin=data)
        except AmalgamError as error:
            raise SandboxUnavailableError(error.message) from error
        finally:
            if is_large:
                await self.sandbox.files.remove(source.removeprefix(f"{ROOT}/"))
        _raise_for(done.exit_code, file)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Reads a file."""
        name = shlex.quote(os.path.join(ROOT, file))
        script = (
            f"test -e {name} || exit {_NOT_FOUND}; test -d {name} && exit {_IS_DIRECTORY}; "
            f"test -r {name} || exit {_NOT_PERMITTED}; stat -Lc %s -- {name}; readlink -nf -- {name}"
        )
        done = await self.sandbox.commands.run(script)
        _raise_for(done.exit_code, file)
        size, _, path = done.stdout.partition("\n")
        if int(size) > SandboxEnvironmentLimits.MAX_READ_FILE_SIZE:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        if path.startswith(f"{ROOT}/"):
            content = await self.sandbox.files.read(path.removeprefix(f"{ROOT}/"))
        else:
            content = await self._read_by_parts(name)
        return content.decode() if text else content

    async def _read_by_parts(self, name: str) -> bytes:
        """Reads a file outside the workspace, in parts that the server keeps for slow readers."""
        content = bytearray()
        while True:
            script = f"tail -c +{len(content) + 1} -- {name} | head -c {READ_BYTES}"
            events = self.sandbox.commands.stream(script)
            part = b"".join([event.output async for event in events if event.type == "stdout"])
            content += part
            if len(part) < READ_BYTES:
                return bytes(content)


def _raise_for(exit_code: int, file: str) -> None:
    """Raises the error for an exit code of the scripts above, which are numbers of ``errno``."""
    if exit_code == _NOT_FOUND:
        raise FileNotFoundError(_NOT_FOUND, "there is no such file", file)
    if exit_code == _IS_DIRECTORY:
        raise IsADirectoryError(_IS_DIRECTORY, "it is a directory", file)
    if exit_code:
        raise PermissionError(_NOT_PERMITTED, "permission denied", file)
