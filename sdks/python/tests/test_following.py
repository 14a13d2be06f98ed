"""Workspaces that follow another one, and the radar of open workspaces."""

from __future__ import annotations

import asyncio

import pytest

from amalgam import Amalgam, AsyncAmalgam, edits, errors

from .conftest import Server


def test_a_follower_gets_the_changes_of_its_source_and_keeps_its_own(client: Amalgam, name: str) -> None:
    source = client.workspaces.create(name)
    source.commit_edits([edits.write("a", "1\n"), edits.write("b", "1\n")])
    (follower,) = source.fork(names=[f"{name}-follower"])
    followed = follower.follow(source, every=3600)
    assert followed.update is not None
    assert followed.update.how == "already"
    follower.commit_edits([edits.write("b", "own\n")])
    source.commit_edits([edits.write("a", "2\n")])
    updated = follower.update().update
    assert updated is not None
    assert (updated.how, updated.synced, updated.skipped, updated.total) == ("updated", 1, 0, 1)
    assert follower.files.read("a") == b"2\n"
    assert follower.files.read("b") == b"own\n"
    follower.unfollow()
    with pytest.raises(errors.InvalidArgumentError):
        follower.update()


def test_the_radar_finds_workspaces_that_change_the_same_lines(server: Server, client: Amalgam, name: str) -> None:
    main = client.workspaces.create(name)
    main.commit_edits([edits.write("a.txt", "one\ntwo\nthree\n")])
    ann, bob = main.fork(names=[f"{name}-ann", f"{name}-bob"])
    ann.commit_edits([edits.replace("a.txt", "two", "TWO")])
    bob.commit_edits([edits.replace("a.txt", "two", "2")])
    (overlap,) = client.radar.list(workspace=ann)
    assert overlap.path == "a.txt"
    assert {side.workspace for side in overlap.sides} == {ann.name, bob.name}
    (pair,) = overlap.pairs
    assert (pair.kind, pair.lines, pair.merge) == ("lines", ((2, 2),), "conflict")

    async def count() -> int:
        async with AsyncAmalgam(server.url, api_key=server.key) as other:
            return len([found async for found in other.radar.list(workspace=bob.name, paths_only=True)])

    assert asyncio.run(count()) == 1
