"""The client of a server."""

from __future__ import annotations

from types import TracebackType

import httpx

from .._call import Options, options_of
from .._local import URL as LOCAL_URL
from .._local import LocalStore, default_store
from ..errors import InvalidArgumentError
from .admin import AsyncKeys, AsyncProjects, AsyncReviews
from .episodes import AsyncEpisodes
from .events import AsyncEvents
from .policy import AsyncPolicies
from .radar import AsyncRadar
from .sandboxes import AsyncSandboxes, AsyncTemplates
from .snapshots import AsyncLabels, AsyncSnapshots
from .transport import AsyncPool, AsyncTransport
from .workspaces import AsyncWorkspaces


class AsyncAmalgam:
    """A client of an Amalgam server.

    Args:
        url: The address of a server; ``AMALGAM_URL`` if unset, and without it the local store of this user, whose
            process is started if it does not run.
        api_key: The API key; ``AMALGAM_API_KEY`` if unset.
        project: The project; ``AMALGAM_PROJECT`` if unset, and without it the only project of the key, or ``default``.
        timeout: The seconds to wait for a connection, and for each piece of an answer.
        retries: How often a safe call is sent again.
        retry_delay: The seconds before the first retry.
        retry_backoff: The factor by which the delay grows with each retry.
        http_client: An HTTP client of your own, for example with certificates. It is not closed by this client.
        store: The directory of the local store, for a client without a URL; ``AMALGAM_STORE`` if unset.

    Attributes:
        workspaces: Named lines of work.
        snapshots: Trees at one moment, and their differences.
        labels: Names on snapshots.
        episodes: The steps of runs.
        events: The log of operations.
        reviews: Merges that wait for a person.
        sandboxes: Isolated commands beside workspaces.
        templates: What sandboxes can be started from.
        policy: The permissions of agents.
        radar: Open workspaces that change the same files.
        projects: The projects of the server.
        keys: The API keys of the server.

    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        project: str | None = None,
        timeout: float = 30.0,
        retries: int = 3,
        retry_delay: float = 1.0,
        retry_backoff: float = 2.0,
        http_client: httpx.AsyncClient | None = None,
        store: str | None = None,
    ) -> None:
        options = options_of(url, api_key, project, timeout, retries, retry_delay, retry_backoff)
        local = LocalStore(store or default_store()) if options.url == LOCAL_URL else None
        if store is not None and local is None:
            raise InvalidArgumentError("a client has a URL or a store, not both")
        self._bind(options, AsyncPool(http_client, local))

    def _bind(self, options: Options, pool: AsyncPool) -> None:
        self._transport = AsyncTransport(options, pool)
        self.workspaces = AsyncWorkspaces(self._transport)
        self.snapshots = AsyncSnapshots(self._transport)
        self.labels = AsyncLabels(self._transport)
        self.episodes = AsyncEpisodes(self._transport)
        self.events = AsyncEvents(self._transport)
        self.reviews = AsyncReviews(self._transport)
        self.sandboxes = AsyncSandboxes(self._transport)
        self.templates = AsyncTemplates(self._transport)
        self.policy = AsyncPolicies(self._transport)
        self.radar = AsyncRadar(self._transport)
        self.projects = AsyncProjects(self._transport)
        self.keys = AsyncKeys(self._transport)

    @property
    def options(self) -> Options:
        """How this client calls its server."""
        return self._transport.options

    def with_options(
        self,
        *,
        project: str | None = None,
        api_key: str | None = None,
        timeout: float | None = None,
        retries: int | None = None,
        retry_delay: float | None = None,
        retry_backoff: float | None = None,
    ) -> AsyncAmalgam:
        """Returns a client with other options that shares the connections of this one."""
        changes = {
            "project": project,
            "api_key": api_key,
            "timeout": timeout,
            "retries": retries,
            "retry_delay": retry_delay,
            "retry_backoff": retry_backoff,
        }
        client = object.__new__(type(self))
        client._bind(self.options.changed(changes), self._transport.pool)
        return client

    async def close(self) -> None:
        """Closes the connections. A later call opens new ones."""
        await self._transport.pool.close()

    async def __aenter__(self) -> AsyncAmalgam:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        project = f", project={self.options.project!r}" if self.options.project else ""
        return f"{type(self).__name__}({self.options.url!r}{project})"
