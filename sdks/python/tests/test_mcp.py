"""``amalgam mcp`` with the client library of the Model Context Protocol."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

from mcp import ClientSession, Implementation, StdioServerParameters
from mcp.client.stdio import stdio_client

TOOLS = "status snapshot history diff restore fork merge conflicts run read edit search"
NAMES = TOOLS.split(" ")


class Project:
    """A protected directory, and the environment of the programs that work in it."""

    def __init__(self, program: str, around: Path) -> None:
        self.program = program
        self.path = around / "project"
        self.path.mkdir()
        (around / "run").mkdir(mode=0o700)
        self.environment = {
            **os.environ,
            "AMALGAM_STORE": str(around / "store"),
            "XDG_RUNTIME_DIR": str(around / "run"),
        }
        self.environment.pop("AMALGAM_AUTHOR", None)

    def command(self, *words: str) -> str:
        done = subprocess.run(
            [self.program, *words], check=True, capture_output=True, text=True, cwd=self.path, env=self.environment
        )
        return done.stdout

    def session(self, test: Callable[[ClientSession], Awaitable[None]], *words: str) -> None:
        """Starts the server as a client does, and runs a test with it."""

        async def main() -> None:
            server = StdioServerParameters(
                command=self.program, args=["mcp", *words], cwd=self.path, env=self.environment
            )
            who = Implementation(name="tester", version="1")
            async with (
                stdio_client(server) as (reader, writer),
                ClientSession(reader, writer, client_info=who) as session,
            ):
                told = await session.initialize()
                assert told.server_info.name == "amalgam"
                await test(session)

        asyncio.run(main())


@pytest.fixture
def project(program: str, tmp_path: Path) -> Iterator[Project]:
    project = Project(program, tmp_path)
    (project.path / "a.txt").write_text("one\ntwo\n")
    project.command("init", "-q", "--workspace", "main")
    yield project
    project.command("stop", "--force")


async def call(session: ClientSession, name: str, **arguments: Any) -> tuple[bool, str]:
    result: Any = await session.call_tool(name, arguments)
    return not result.is_error, result.content[0].text


async def done(session: ClientSession, name: str, **arguments: Any) -> str:
    is_done, text = await call(session, name, **arguments)
    assert is_done, f"{name} {arguments}: {text}"
    return text


def test_every_tool_has_a_schema_and_annotations(project: Project) -> None:
    async def test(session: ClientSession) -> None:
        tools = (await session.list_tools()).tools
        assert [tool.name for tool in tools] == NAMES
        for tool in tools:
            assert tool.input_schema["type"] == "object"
            assert tool.annotations is not None
            assert tool.annotations.title
        hints = {tool.name: tool.annotations for tool in tools}
        readers = [name for name in NAMES if hints[name].read_only_hint]  # type: ignore[union-attr]
        assert readers == ["status", "history", "diff", "read", "search"]
        harmless = [name for name in NAMES if hints[name].destructive_hint is False]  # type: ignore[union-attr]
        assert harmless == ["snapshot", "fork"]
        assert [name for name in NAMES if hints[name].open_world_hint] == ["run"]  # type: ignore[union-attr]

    project.session(test)


def test_every_tool_works(project: Project) -> None:
    async def test(session: ClientSession) -> None:
        await done(session, "edit", path="a.txt", old="two", new="2")
        assert "a.txt" in await done(session, "status")
        await done(session, "snapshot", message="digits", label="digits")
        assert "digits" in await done(session, "history")
        assert "-two\n+2" in await done(session, "diff", **{"from": "@~", "to": "@"})
        assert await done(session, "read", path="a.txt", revision="@~") == "one\ntwo"
        assert "a.txt:2:2" in await done(session, "search", pattern="^2$")
        await done(session, "fork", names=["left", "right"])
        for name in ("left", "right"):
            await done(session, "edit", path="a.txt", old="one", new=name, workspace=name)
            ran = await done(session, "run", command=f"echo {name} >> log.txt; cat a.txt", workspace=name)
            assert name in ran
        await done(session, "merge", sources=["left"])
        merged = await done(session, "merge", sources=["right"])
        assert "a.txt" in merged
        listed = await done(session, "conflicts")
        assert "a.txt" in listed
        assert "left" in await done(session, "conflicts", path="a.txt", version="ours")
        await done(session, "conflicts", take="theirs")
        assert (project.path / "a.txt").read_text() == "right\n2\n"
        shown = await done(session, "restore", revision="digits")
        found = re.search(r'plan="(\w+)"', shown)
        assert found is not None
        assert (project.path / "a.txt").read_text() == "right\n2\n"
        await done(session, "restore", revision="digits", plan=found.group(1))
        assert (project.path / "a.txt").read_text() == "one\n2\n"

    project.session(test)
    assert '"author":"tester"' in project.command("--json", "log", "-1", "digits")


def test_errors_are_results_that_a_model_can_read(project: Project) -> None:
    async def test(session: ClientSession) -> None:
        is_done, text = await call(session, "edit", path="a.txt", old="none", new="x")
        assert (is_done, "copy the text exactly" in text) == (False, True)
        is_done, text = await call(session, "history", revision="no-such")
        assert (is_done, "no-such" in text) == (False, True)
        is_done, text = await call(session, "run", command="exit 7")
        assert (is_done, "exit status 7" in text) == (True, True)
        is_done, text = await call(session, "run", command="sleep 60", timeout_seconds=1)
        assert (is_done, "timeout_seconds" in text) == (False, True)

    project.session(test)


def test_a_read_only_server_offers_only_reading_tools(project: Project) -> None:
    async def test(session: ClientSession) -> None:
        tools = (await session.list_tools()).tools
        assert [tool.name for tool in tools] == ["status", "history", "diff", "conflicts", "read", "search"]
        assert all(tool.annotations is not None and tool.annotations.read_only_hint for tool in tools)
        is_done, text = await call(session, "edit", path="a.txt", new="x")
        assert (is_done, "there is no tool" in text) == (False, True)

    project.session(test, "--read-only")
