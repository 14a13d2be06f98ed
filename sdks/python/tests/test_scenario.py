"""One story told by each SDK against one server; each sees the work of the others."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from amalgam import Amalgam, AsyncAmalgam, AsyncWorkspace, Workspace

from .conftest import Server

SDKS = Path(__file__).resolve().parents[2]
SCENARIO = SDKS / "scenario" / "scenario.yaml"


def steps_for(who: str) -> list[dict[str, Any]]:
    text = SCENARIO.read_text().replace("{who}", who)
    return [json.loads(line[2:]) for line in text.splitlines() if line.startswith("- ")]


def tell(client: Amalgam, main: Workspace, who: str) -> None:
    for step in steps_for(who):
        ws = client.workspaces.get(step["in"]) if "in" in step else main
        take_step(client, ws, step)


def take_step(client: Amalgam, ws: Workspace, step: dict[str, Any]) -> None:
    action = step["do"]
    if action == "write":
        ws.files.write(step["path"], step["text"])
    elif action == "edit":
        ws.files.edit(step["path"], step["old"], step["new"])
    elif action == "remove":
        ws.files.remove(step["path"])
    elif action == "commit":
        ws.commit(step["message"])
    elif action == "undo":
        ws.undo()
    elif action == "fork":
        ws.fork(names=[step["name"]])
    elif action == "state":
        ws.state.set(step["key"], step["value"])
    elif action == "merge":
        assert ws.merge(client.workspaces.get(step["from"])).applied
    elif action == "read":
        assert ws.files.read_text(step["path"]) == step["text"]
    elif action == "changes":
        assert {*step["paths"]} <= {change.path for change in ws.status().changes}
    elif action == "diff":
        assert [change.kind for change in ws.diff()] == step["kinds"]
    elif action == "log":
        found = [snapshot.message for snapshot in islice(ws.log(), len(step["messages"]))]
        assert found == step["messages"]
    elif action == "missing":
        with pytest.raises(FileNotFoundError):
            ws.files.read(step["path"])
    else:
        pytest.fail(f"no SDK knows the step {action}")


async def tell_async(client: AsyncAmalgam, name: str, who: str) -> None:
    main = await client.workspaces.get(name)
    for step in steps_for(who):
        ws = await client.workspaces.get(step["in"]) if "in" in step else main
        await take_step_async(client, ws, step)


async def take_step_async(client: AsyncAmalgam, ws: AsyncWorkspace, step: dict[str, Any]) -> None:
    action = step["do"]
    if action == "write":
        await ws.files.write(step["path"], step["text"])
    elif action == "edit":
        await ws.files.edit(step["path"], step["old"], step["new"])
    elif action == "remove":
        await ws.files.remove(step["path"])
    elif action == "commit":
        await ws.commit(step["message"])
    elif action == "undo":
        await ws.undo()
    elif action == "fork":
        await ws.fork(names=[step["name"]])
    elif action == "state":
        await ws.state.set(step["key"], step["value"])
    elif action == "merge":
        assert (await ws.merge(await client.workspaces.get(step["from"]))).applied
    elif action == "read":
        assert await ws.files.read_text(step["path"]) == step["text"]
    elif action == "changes":
        assert {*step["paths"]} <= {change.path for change in (await ws.status()).changes}
    elif action == "diff":
        assert [change.kind async for change in ws.diff()] == step["kinds"]
    elif action == "log":
        found = [snapshot.message async for snapshot in ws.log()]
        assert found[: len(step["messages"])] == step["messages"]
    elif action == "missing":
        with pytest.raises(FileNotFoundError):
            await ws.files.read(step["path"])
    else:
        pytest.fail(f"no SDK knows the step {action}")


class Command:
    """Tells the story with the ``amalgam`` command: in a clone, whose commits are pushed, and on the server itself.

    The command has no state values, so that it leaves out that step, and the commit of it.
    """

    def __init__(self, server: Server, name: str, place: Path) -> None:
        self.server = server
        self.name = name
        self.place = place
        self.environment = {
            **os.environ,
            "AMALGAM_API_KEY": server.key,
            "AMALGAM_STORE": str(place / "store"),
            "XDG_RUNTIME_DIR": str(place),
            "XDG_CONFIG_HOME": str(place / "config"),
        }
        self.directories = {name: place / "main"}

    def run(self, *words: str, at: Path | None = None, remote: bool = False) -> list[dict[str, Any]]:
        """Runs a command, in a directory or on the server, and returns the JSON that it prints."""
        target = ["--server", self.server.url] if remote else []
        line = [self.server.program, "--json", "--no-input", *target, *words]
        done = subprocess.run(line, cwd=at or self.place, env=self.environment, capture_output=True, check=False)
        assert done.returncode == 0, (words, done.stderr)
        return [json.loads(found) for found in done.stdout.splitlines()]

    def tell(self, who: str) -> None:
        self.run("clone", f"{self.server.url}/default/{self.name}", str(self.directories[self.name]))
        try:
            for step in steps_for(who):
                self.take_step(step, step.get("in", self.name))
        finally:
            self.run("stop")

    def take_step(self, step: dict[str, Any], ws: str) -> None:
        action = step["do"]
        directory = self.directories[ws]
        if action == "write":
            file = directory / step["path"]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(step["text"])
        elif action == "edit":
            file = directory / step["path"]
            file.write_text(file.read_text().replace(step["old"], step["new"]))
        elif action == "remove":
            (directory / step["path"]).unlink()
        elif action == "commit" and not step["message"].endswith(": done"):
            self.run("commit", "-m", step["message"], at=directory)
            self.run("push", ws, remote=True)
        elif action == "undo":
            self.run("undo", "-w", ws, remote=True)
            self.run("undo", at=directory)
        elif action == "fork":
            self.directories[step["name"]] = self.place / step["name"]
            self.run("fork", step["name"], "--dir", str(self.place / step["name"]), at=directory)
        elif action == "merge":
            self.run("merge", step["from"], "--into", ws, remote=True)
            self.run("pull", ws, at=directory, remote=True)
        elif action == "read":
            line = [self.server.program, "--server", self.server.url, "cat", f"{ws}@:{step['path']}"]
            done = subprocess.run(line, env=self.environment, capture_output=True, check=True, text=True)
            assert done.stdout == step["text"]
        elif action == "changes":
            assert {*step["paths"]} <= {line.get("path") for line in self.run("status", at=directory)}
        elif action == "diff":
            found = [line["kind"] for line in self.run("diff", f"{ws}@~", f"{ws}@", remote=True) if "kind" in line]
            assert found == step["kinds"]
        elif action == "log":
            found = [line["message"] for line in self.run("log", f"{ws}@", remote=True) if "message" in line]
            assert found[: len(step["messages"])] == step["messages"]
        elif action == "missing":
            with pytest.raises(AssertionError, match="no such file"):
                self.run("cat", f"{ws}@:{step['path']}", remote=True)


def test_each_sdk_tells_the_story_and_sees_the_others(
    server: Server, client: Amalgam, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    main = client.workspaces.create(name)
    tellers = ["sync", "async"]
    tell(client, main, "sync")

    async def run() -> None:
        async with AsyncAmalgam(server.url, api_key=server.key) as other:
            await tell_async(other, name, "async")

    asyncio.run(run())
    built = SDKS / "typescript" / "dist" / "src" / "index.js"
    if built.exists() and shutil.which("node"):
        program = SDKS / "typescript" / "scripts" / "scenario.mjs"
        environment = {**os.environ, "AMALGAM_URL": server.url, "AMALGAM_API_KEY": server.key}
        line = ["node", str(program), str(SCENARIO), name]
        done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        tellers.append("typescript")
    rust = Path(server.program).parent / "examples" / "scenario"
    if rust.exists():
        environment = {**os.environ, "AMALGAM_URL": server.url, "AMALGAM_API_KEY": server.key}
        line = [str(rust), str(SCENARIO), name]
        done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        tellers.append("rust")
    Command(server, name, tmp_path_factory.mktemp("command")).tell("command")
    files = {file.path for file in main.files.list("by")}
    assert files == {f"by/{who}{end}" for who in [*tellers, "command"] for end in (".txt", "-fork.txt")}
    assert {value.key for value in main.state.list()} == {*tellers}
    messages = [snapshot.message for snapshot in main.log()]
    assert [message for message in messages if message.endswith(": done")] == [f"{who}: done" for who in tellers[::-1]]
