"""Workspaces of the local store as directories."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Literal

from .._local import LocalStore
from ..errors import NotPossibleError
from .parallel import call_in_thread

Backend = Literal["auto", "fuse", "nfs", "checkout"]


class AsyncMount:
    """A mounted workspace. Leaving its block unmounts it; nothing is deleted."""

    def __init__(self, store: LocalStore | None, workspace: str, path: str, backend: Backend, server: str) -> None:
        self._store = store
        self._workspace = workspace
        self.path = Path(path).absolute()
        self._backend = backend
        self._server = server

    async def __aenter__(self) -> Path:
        if self._store is None:
            message = (
                f"the server {self._server} may be on another host, and a mount needs its store on this one; on the "
                f"server, `amalgam export nfs {self._workspace}` prints the command that mounts it over NFS"
            )
            raise NotPossibleError(message)
        words = ["mount", self._workspace, str(self.path)]
        if self._backend != "auto":
            words.append(f"--backend={self._backend}")
        await call_in_thread(self._store.run_json, *words)
        return self.path

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._store is not None:
            await call_in_thread(self._store.run_json, "umount", str(self.path))
