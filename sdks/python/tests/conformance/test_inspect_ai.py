"""The sandbox provider for Inspect: its self-check, and the life of a sample."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

pytest.importorskip("inspect_ai")

import pytest_asyncio
from inspect_ai.util._sandbox.registry import registry_find_sandboxenv
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from amalgam import AsyncAmalgam, errors
from amalgam.integrations.inspect_ai import AmalgamSandboxEnvironment

from ..conftest import Server

pytestmark = pytest.mark.filterwarnings("ignore")
# A sandbox has no root, so that no check can make a user.
UNSUPPORTED = {"test_exec_as_user": "an Amalgam sandbox has one user, who is not root"}


@pytest.fixture(scope="module")
def isolated_server(server: Server) -> Server:
    with server.client() as client:
        try:
            client.sandboxes.create().delete()
        except errors.NotIsolatedError as error:
            pytest.skip(error.message)
    return server


@pytest_asyncio.fixture
async def sandbox_env(
    isolated_server: Server, request: pytest.FixtureRequest
) -> AsyncIterator[AmalgamSandboxEnvironment]:
    reason = UNSUPPORTED.get(request.node.originalname)
    if reason:
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
    async with AsyncAmalgam(isolated_server.url, api_key=isolated_server.key) as client:
        environment = AmalgamSandboxEnvironment(await client.sandboxes.create())
        yield environment
        await environment.close()


async def test_a_sample_begins_with_a_workspace_and_ends_with_its_sandbox(
    isolated_server: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMALGAM_URL", isolated_server.url)
    monkeypatch.setenv("AMALGAM_API_KEY", isolated_server.key)
    with isolated_server.client() as client:
        ws = client.workspaces.create(name)
        ws.files.write("answer.txt", "forty-two\n")
        ws.commit("the answer")
        # The entry point of the package registers the provider.
        provider = registry_find_sandboxenv("amalgam")
        config = provider.config_deserialize({"base": f"{name}@", "keep_workspace": True})
        environments = await provider.sample_init("task", config, {})
        environment = environments["default"]
        assert isinstance(environment, AmalgamSandboxEnvironment)
        done = await environment.exec(["sh", "-c", "cat answer.txt; echo more >> answer.txt"])
        assert done.stdout == "forty-two\n"
        await provider.sample_cleanup("task", config, environments, False)
        with pytest.raises(errors.SandboxNotFoundError):
            client.sandboxes.get(environment.sandbox.id)
        kept = client.workspaces.get(environment.sandbox.workspace)
        assert kept.files.read_text("answer.txt") == "forty-two\nmore\n"
        assert ws.files.read_text("answer.txt") == "forty-two\n"
