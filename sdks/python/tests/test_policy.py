"""The policy of a project: set, explained, checked, tried out and undone, and the refusals that come of it."""

from __future__ import annotations

import asyncio

import pytest

from amalgam import AsyncAmalgam, errors

from .conftest import Server

POLICY = """\
default = "R"
reviewers = ["lead"]

[[rule]]
paths = ["secrets"]
level = "none"

[[rule]]
agents = ["ann"]
paths = ["src"]
level = "RW"
"""


def test_a_policy_is_set_explained_and_undone(own_server: Server) -> None:
    with own_server.client() as admin:
        assert admin.policy.show().text == ""
        with pytest.raises(errors.NothingToRevertError):
            admin.policy.undo()
        assert admin.policy.set(POLICY, dry_run=True).operation is None
        assert admin.policy.show().text == ""
        done = admin.policy.set(POLICY)
        assert done.changed
        assert done.operation is not None
        assert not admin.policy.set(POLICY).changed
        shown = admin.policy.show()
        assert shown.text == POLICY
        assert shown.operation is not None
        assert shown.operation.sequence == done.operation.sequence
        ann = admin.policy.explain("src/a.py", agent="ann")
        assert (ann.level, ann.line, ann.patterns, ann.has_policy) == ("RW", 8, ("src",), True)
        assert set(ann.acts) == {"read", "add", "change", "remove"}
        assert admin.policy.explain("src/a.py", agent="bob").acts == ("read",)
        assert admin.policy.explain("a", agent="lead").reviewer
        assert admin.policy.test('default = "RA"', "a", agent="bob").level == "RA"
        assert [change.sequence for change in admin.policy.history()] == [done.operation.sequence]
        complaints = admin.policy.check('default = "X"')
        assert complaints[0].line == 1
        assert complaints[0].message
        with pytest.raises(errors.InvalidArgumentError):
            admin.policy.set('default = "X"')
        admin.policy.undo()
        assert admin.policy.show().text == ""


def test_a_policy_holds_for_the_agent_of_a_key(own_server: Server) -> None:
    with own_server.client() as admin:
        key = admin.keys.create("ann", scopes=["write"]).text
        admin.policy.set(POLICY)
    with own_server.client(api_key=key) as ann:
        ws = ann.workspaces.create("work")
        ws.files.write("src/a.py", "1\n")
        with pytest.raises(errors.ForbiddenError) as refused:
            ws.files.write("README.md", "1\n")
        assert isinstance(refused.value, PermissionError)
        assert (refused.value.details["agent"], refused.value.details["act"]) == ("ann", "add")
        assert ann.policy.explain("src/a.py").agent == "ann"
        with pytest.raises(errors.ForbiddenError):
            ann.policy.set("")

    async def main() -> None:
        async with AsyncAmalgam(own_server.url, api_key=key) as client:
            assert (await client.policy.explain("secrets/a")).level == "none"

    asyncio.run(main())
