"""The client for asyncio: the same names as the blocking one, and the same results from a real server."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import io
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import amalgam
from amalgam import AsyncAmalgam, AsyncWorkspace, edits, errors

from .conftest import Server

PACKAGE = Path(__file__).resolve().parent.parent


def run(server: Server, test: Callable[[AsyncAmalgam], Awaitable[None]]) -> None:
    async def main() -> None:
        async with AsyncAmalgam(server.url, api_key=server.key, retry_delay=0.05) as client:
            await test(client)

    asyncio.run(main())


def test_files_commits_diffs_and_forks_work(server: Server, name: str) -> None:
    async def test(client: AsyncAmalgam) -> None:
        ws = await client.workspaces.create(name)
        await ws.files.write("a.py", "one\n")
        await ws.files.write("big", io.BytesIO(b"x" * (2 << 20)))
        first = await ws.commit("first", metadata={"k": "v"})
        await ws.files.edit("a.py", "one", "two")
        assert (await ws.status()).changes[0].path == "a.py"
        await ws.commit("second")
        assert [change.path async for change in ws.diff()] == ["a.py"]
        assert "+two" in (await ws.patch(first.id, "@")).text
        assert [snapshot.message async for snapshot in ws.log()] == ["second", "first"]
        assert [file.path async for file in ws.files.list()] == ["a.py", "big"]
        assert len(b"".join([piece async for piece in ws.files.stream("big")])) == 2 << 20
        assert [match.line async for match in ws.files.grep("two")] == [1]
        await ws.state.set("k", 1)
        assert await ws.state.get("k") == 1
        forks = await ws.fork(count=3)
        assert await asyncio.gather(*(fork.files.read_text("a.py") for fork in forks)) == ["two\n"] * 3
        with pytest.raises(FileNotFoundError):
            await ws.files.read("missing")

    run(server, test)


def test_merges_episodes_and_explorations_work(server: Server, name: str) -> None:
    async def test(client: AsyncAmalgam) -> None:
        ws = await client.workspaces.create(name)
        await ws.commit_edits([edits.write("a", "base\n")])
        (other,) = await ws.fork(count=1)
        await ws.commit_edits([edits.write("a", "ours\n")])
        await other.commit_edits([edits.write("a", "theirs\n")])
        merge = await ws.merge(other)
        merge.conflicts[0].resolve(side="theirs")
        await merge.apply()
        assert await ws.files.read("a") == b"theirs\n"
        with pytest.raises(errors.NothingToRevertError):
            await ws.redo()

        async def attempt(fork: AsyncWorkspace) -> int:
            await fork.files.write("n", fork.name[-1])
            return int(fork.name[-1])

        async def score(fork: AsyncWorkspace, result: int) -> float:
            return -result

        best = await ws.explore(count=3, run=attempt, score=score, parallel=2)
        assert (best.result, len(best.others)) == (1, 2)
        episode = await client.episodes.begin(name)
        root = await episode.record("@", workspace=name, reward=1.0)
        assert await episode.best() == [root]

    run(server, test)


def test_a_subscription_ends_with_its_task(server: Server, name: str) -> None:
    async def test(client: AsyncAmalgam) -> None:
        subscription = await client.events.subscribe()

        async def first() -> str:
            async for operation in subscription:
                return operation.action
            raise AssertionError("a subscription does not end")

        task = asyncio.create_task(first())
        await client.workspaces.create(name)
        assert await asyncio.wait_for(task, 30) == "create"
        waiting = asyncio.create_task(first())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    run(server, test)


def test_a_call_is_answered_beside_more_than_a_hundred_open_streams(server: Server, name: str) -> None:
    async def test(client: AsyncAmalgam) -> None:
        await client.workspaces.create(name)
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(101):
                operations = aiter(await client.events.subscribe(after=0))
                stack.push_async_callback(operations.aclose)
                await anext(operations)
            found = await client.with_options(timeout=3, retries=0).workspaces.get(name)
            assert found.name == name

    run(server, test)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_one_client_works_in_several_event_loops(server: Server) -> None:
    client = AsyncAmalgam(server.url, api_key=server.key)

    async def count() -> int:
        return len([project async for project in client.projects.list()])

    assert asyncio.run(count()) == asyncio.run(count())

    async def finish() -> None:
        await count()
        await client.close()

    asyncio.run(finish())
    # The connections of the first loop, which is closed, are closed by the garbage collector.
    gc.collect()


def test_both_clients_have_the_same_names_and_arguments() -> None:
    pairs = [
        (getattr(amalgam, name), getattr(amalgam, name.removeprefix("Async")))
        for name in amalgam.__all__
        if name.startswith("Async")
    ]
    assert len(pairs) > 10
    for slow, fast in pairs:
        members = {name for name in dir(slow) if not name.startswith("_")}
        assert members == {name for name in dir(fast) if not name.startswith("_")}, slow
        for member in members:
            function = getattr(slow, member)
            if inspect.isfunction(function):
                assert list(inspect.signature(function).parameters) == list(
                    inspect.signature(getattr(fast, member)).parameters
                )


def test_the_blocking_client_is_generated_from_the_other_one() -> None:
    subprocess.run([sys.executable, "scripts/generate_sync.py", "--check"], cwd=PACKAGE, check=True)


def test_a_reference_is_written_and_everything_public_is_documented(tmp_path: Path) -> None:
    file = tmp_path / "reference.md"
    done = subprocess.run(
        [sys.executable, "scripts/reference.py", str(file), "--without-adapters"],
        cwd=PACKAGE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    text = file.read_text()
    for word in ("### `Workspace`", "#### `sandbox`", "Commands.run(command: str", "### `ProcessTimeoutError`"):
        assert word in text


def test_the_examples_of_the_readme_work(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMALGAM_URL", server.url)
    monkeypatch.setenv("AMALGAM_API_KEY", server.key)
    text = (PACKAGE / "README.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len(examples) >= 6
    values: dict[str, object] = {"__name__": "readme"}
    for example in examples:
        # A machine without user namespaces has no sandboxes.
        with contextlib.suppress(errors.NotIsolatedError):
            exec(compile(example, "README.md", "exec"), values)
    client = values["client"]
    assert isinstance(client, amalgam.Amalgam)
    client.close()


def test_every_path_of_the_sdk_is_in_the_openapi_document(server: Server) -> None:
    import httpx

    document = httpx.get(f"{server.url}/api/v1/openapi.json", headers={"authorization": f"Bearer {server.key}"}).json()
    known = {re.sub(r"\{[^}]*\}", "{}", path).removeprefix("/api/v1") for path in document["paths"]}
    sources = "".join(path.read_text() for path in (PACKAGE / "src" / "amalgam" / "_async").glob("*.py"))
    places = re.findall(r'"(?:GET|PUT|POST|PATCH|DELETE)",\s*f?"(/[^"]*)"', sources)
    assert len(places) > 30
    for place in places:
        path = re.sub(r"\{[^}]*\}", "{}", place)
        if "{self._base}" not in place and not path.endswith("/{}/{}"):
            assert path in known, place
