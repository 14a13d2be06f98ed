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


def test_each_sdk_tells_the_story_and_sees_the_others(server: Server, client: Amalgam, name: str) -> None:
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
    files = {file.path for file in main.files.list("by")}
    assert files == {f"by/{who}{end}" for who in tellers for end in (".txt", "-fork.txt")}
    assert {value.key for value in main.state.list()} == {*tellers}
    messages = [snapshot.message for snapshot in main.log()]
    assert [message for message in messages if message.endswith(": done")] == [f"{who}: done" for who in tellers[::-1]]
