# Generated from _async/upload.py by scripts/generate_sync.py; do not edit.
"""Sends a directory of this machine into a workspace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .._source import SourceEntry, batches, likely_secrets, walk
from ..errors import SecretsFoundError
from .parallel import call_in_thread

if TYPE_CHECKING:
    from .workspace import Workspace

SHOWN_MAX = 20


def find_entries(directory: str, *, exclude: Sequence[str], allow_secrets: bool) -> list[SourceEntry]:
    """Returns the entries of a directory.

    Raises:
        SecretsFoundError: Some look like credentials, and the caller did not allow them.

    """
    entries = call_in_thread(walk, directory, exclude)
    secrets = [] if allow_secrets else call_in_thread(likely_secrets, entries)
    if secrets:
        more = f" and {len(secrets) - SHOWN_MAX} more" if len(secrets) > SHOWN_MAX else ""
        message = (
            f"{directory} has files that look like secrets: {', '.join(secrets[:SHOWN_MAX])}{more}; nothing was sent"
        )
        raise SecretsFoundError(message, details={"paths": secrets})
    return entries


def upload(workspace: Workspace, directory: str, entries: Sequence[SourceEntry]) -> None:
    """Writes entries into the live tree of a workspace, and commits them as one snapshot."""
    for group in batches(entries):
        if isinstance(group, SourceEntry):
            with open(group.host_path, "rb") as file:
                workspace.files.write(group.path, file, mode=group.mode)
        else:
            workspace.files.apply(group)
    workspace.commit(f"files of {directory}", metadata={"source": directory})
