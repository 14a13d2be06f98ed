"""The sandbox client for the OpenAI Agents SDK, with the real library and a scripted model."""

from __future__ import annotations

import asyncio
import io
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agents.sandbox")

from agents import ModelResponse, RunConfig, Runner, Usage
from agents.models.interface import Model
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.entries import File
from agents.sandbox.errors import ExecTimeoutError, WorkspaceReadNotFoundError
from agents.sandbox.session import SandboxSession
from agents.sandbox.session.dependencies import Dependencies
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from amalgam import EMPTY, AsyncAmalgam, errors
from amalgam.integrations.openai_agents import (
    DEPENDENCY,
    AmalgamSandboxClient,
    AmalgamSandboxClientOptions,
    AmalgamSandboxSession,
    AmalgamSnapshot,
    AmalgamSnapshotSpec,
)

from .conftest import Server


def run(server: Server, test: Callable[[AsyncAmalgam], Awaitable[None]]) -> None:
    async def main() -> None:
        async with AsyncAmalgam(server.url, api_key=server.key) as client:
            try:
                await test(client)
            except errors.NotIsolatedError as error:
                pytest.skip(error.message)

    asyncio.run(main())


def inner_of(session: Any) -> AmalgamSandboxSession:
    assert isinstance(session._inner, AmalgamSandboxSession)
    return session._inner


async def contents(session: SandboxSession, path: str) -> bytes:
    with await session.read(Path(path)) as stream:
        return bytes(stream.read())


def test_a_session_runs_commands_and_moves_files(server: Server) -> None:
    async def test(client: AsyncAmalgam) -> None:
        manifest = Manifest(entries={"greeting.txt": File(content=b"hello\n")})
        sandboxes = AmalgamSandboxClient(client)
        async with await sandboxes.create(manifest=manifest) as session:
            done = await session.exec("cat greeting.txt; pwd; printf '\\377'; echo no >&2; exit 3")
            assert (done.stdout, done.stderr, done.exit_code) == (b"hello\n/workspace\n\xff", b"no\n", 3)
            with pytest.raises(ExecTimeoutError):
                await session.exec("sleep 900", timeout=0.2)
            await session.write(Path("src/a.bin"), io.BytesIO(b"\x00\\x41\xff"))
            assert await contents(session, "/workspace/src/a.bin") == b"\x00\\x41\xff"
            large = b"line\n" * 1_000_000
            await session.write(Path("large"), io.BytesIO(large))
            assert await contents(session, "large") == large
            with pytest.raises(WorkspaceReadNotFoundError):
                await session.read(Path("missing"))
            with pytest.raises(Exception, match="escape"):
                await session.read(Path("../etc/passwd"))
            await session.mkdir(Path("deep/er"), parents=True)
            assert {Path(entry.path).name for entry in await session.ls(Path("."))} >= {"deep", "src", "large"}
            await session.rm(Path("deep"), recursive=True)
            archive = await session.persist_workspace()
            await session.rm(Path("src"), recursive=True)
            await session.hydrate_workspace(archive)
            assert await contents(session, "src/a.bin") == b"\x00\\x41\xff"
            assert await session.running()
            # The files of the session are those of a workspace.
            ws = await inner_of(session).workspace()
            assert await ws.files.read("greeting.txt") == b"hello\n"
        assert not await session.running()

    run(server, test)


def test_a_session_outside_the_workspace_writes_files_that_are_longer_than_a_standard_input(server: Server) -> None:
    async def test(client: AsyncAmalgam) -> None:
        async with await AmalgamSandboxClient(client).create(manifest=Manifest(root="/tmp/session")) as session:
            for data in (os.urandom(5 << 20), b""):
                await session.write(Path("z"), io.BytesIO(data))
                assert await contents(session, "z") == data

    run(server, test)


def test_a_session_is_resumed_from_its_sandbox_and_from_its_snapshot(server: Server) -> None:
    async def test(client: AsyncAmalgam) -> None:
        sandboxes = AmalgamSandboxClient(client)
        session = await sandboxes.create(snapshot=AmalgamSnapshotSpec())
        await session.start()
        await session.write(Path("a"), io.BytesIO(b"one"))
        state = sandboxes.deserialize_session_state(sandboxes.serialize_session_state(session.state))
        again = await sandboxes.resume(state)
        assert inner_of(again).sandbox.id == inner_of(session).sandbox.id
        await session.stop()
        await session.write(Path("a"), io.BytesIO(b"two"))
        # The workspace is deleted with its sandbox; the snapshot stays.
        await sandboxes.delete(session)
        resumed = await sandboxes.resume(state)
        async with resumed:
            assert inner_of(resumed).sandbox.id != inner_of(session).sandbox.id
            assert await contents(resumed, "a") == b"one"

    run(server, test)


def test_a_session_works_in_a_workspace_that_stays(server: Server, name: str) -> None:
    async def test(client: AsyncAmalgam) -> None:
        ws = await client.workspaces.create(name)
        await ws.files.write("a", "one")
        options = AmalgamSandboxClientOptions(workspace=name)
        async with await AmalgamSandboxClient(client).create(options=options) as session:
            await session.exec("echo two > b")
        assert await ws.files.read("b") == b"two\n"

    run(server, test)


def test_a_snapshot_takes_archives_of_other_sandbox_clients(server: Server, name: str) -> None:
    async def test(client: AsyncAmalgam) -> None:
        from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient, UnixLocalSandboxClientOptions

        dependencies = Dependencies().bind_value(DEPENDENCY, client)
        others = UnixLocalSandboxClient(dependencies=dependencies)
        snapshot = AmalgamSnapshot(id=name)
        async with await others.create(snapshot=snapshot, options=UnixLocalSandboxClientOptions()) as session:
            await session.write(Path("kept/file"), io.BytesIO(b"kept"))
        stored = [found.path async for found in client.snapshots.diff(EMPTY, snapshot.label)]
        assert "kept/file" in stored
        async with await AmalgamSandboxClient(client).create(snapshot=snapshot) as resumed:
            assert await contents(resumed, "kept/file") == b"kept"
        async with await others.create(snapshot=snapshot, options=UnixLocalSandboxClientOptions()) as back:
            assert await contents(back, "kept/file") == b"kept"

    run(server, test)


class Scripted(Model):
    """A model that says given lines, one after another."""

    def __init__(self, *lines: Any) -> None:
        self.lines = list(lines)
        self.heard: list[Any] = []

    async def get_response(self, *arguments: Any, **options: Any) -> ModelResponse:
        self.heard.append(options.get("input", arguments[1] if len(arguments) > 1 else None))
        return ModelResponse(output=[self.lines.pop(0)], usage=Usage(), response_id=None)

    def stream_response(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError


def test_an_agent_works_in_a_sandbox(server: Server, name: str) -> None:
    async def test(client: AsyncAmalgam) -> None:
        ws = await client.workspaces.create(name)
        await ws.files.write("plan.txt", "step one\n")
        call = ResponseFunctionToolCall(
            type="function_call",
            name="exec_command",
            call_id="1",
            arguments=json.dumps({"cmd": "sed -i s/one/two/ plan.txt && cat plan.txt"}),
        )
        text = ResponseOutputText(type="output_text", text="done", annotations=[])
        message = ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])
        model = Scripted(call, message)
        agent = SandboxAgent(name="worker", model=model, instructions="work")
        sandbox = SandboxRunConfig(
            client=AmalgamSandboxClient(client), options=AmalgamSandboxClientOptions(workspace=name)
        )
        result = await Runner.run(agent, "go", run_config=RunConfig(sandbox=sandbox, tracing_disabled=True))
        assert result.final_output == "done"
        assert "step two" in json.dumps(model.heard[-1], default=str)
        assert await ws.files.read("plan.txt") == b"step two\n"

    run(server, test)
