"""Workspaces that follow a source, and overlaps of open workspaces."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from .._text import short, time_of, unescape
from .service import MergeResult
from .tree import Json

FollowMode = Literal["lazy", "regular", "event"]


@dataclass(frozen=True, slots=True)
class FollowUpdate:
    """One update of a follower."""

    how: str
    """``updated``, ``already`` (nothing new), ``conflicts``, ``refused`` (by the policy) or ``failed``."""
    synced: int = 0
    """Files that were updated."""
    skipped: int = 0
    """Files that the source changed and that stayed as they are."""
    total: int = 0
    """Files that the source changed since the last update."""
    conflicts: int = 0
    source_snapshot: str = ""
    reason: str = ""
    time: datetime | None = None

    @classmethod
    def from_json(cls, value: Json) -> FollowUpdate:
        """Reads a ``FollowUpdate``."""
        return cls(
            how=value.get("how", ""),
            synced=value.get("synced", 0),
            skipped=value.get("skipped", 0),
            total=value.get("total", 0),
            conflicts=value.get("conflicts", 0),
            source_snapshot=short(value.get("sourceSnapshot", "")),
            reason=value.get("reason", ""),
            time=time_of(value.get("time")),
        )


@dataclass(frozen=True, slots=True)
class Followed:
    """The result of ``follow`` or ``update``."""

    update: FollowUpdate | None
    """The update; nothing for a dry run."""
    merge: MergeResult | None
    """The merge, if there was something new."""

    @classmethod
    def from_json(cls, value: Json) -> Followed:
        """Reads a ``FollowSourceResponse`` or an ``UpdateFollowerResponse``."""
        update, merge = value.get("update"), value.get("merge")
        return cls(
            FollowUpdate.from_json(update) if update else None,
            MergeResult.from_json(merge) if merge else None,
        )


@dataclass(frozen=True, slots=True)
class OverlapSide:
    """A workspace that changed a path."""

    workspace: str
    agent: str = ""
    since: datetime | None = None
    uncommitted: bool = False
    """Whether the change, or a part of it, is in no snapshot yet."""

    @classmethod
    def from_json(cls, value: Json) -> OverlapSide:
        """Reads an ``OverlapSide``."""
        return cls(
            workspace=short(value.get("workspace", "")),
            agent=value.get("agent", ""),
            since=time_of(value.get("since")),
            uncommitted=value.get("uncommitted", False),
        )


@dataclass(frozen=True, slots=True)
class OverlapPair:
    """Two workspaces that changed the same file."""

    left: str
    right: str
    kind: str
    """``file`` (other parts of it, or no text), ``lines``, ``keys`` (of a JSON document) or ``same`` (one change)."""
    merge: str
    """Whether the file would merge now: ``clean``, ``conflict`` or ``unknown``."""
    lines: tuple[tuple[int, int], ...] = ()
    """The common lines, first and last, in the version from which both started."""
    keys: tuple[str, ...] = ()
    """The common keys as JSON pointers."""

    @classmethod
    def from_json(cls, value: Json) -> OverlapPair:
        """Reads an ``OverlapPair``."""
        return cls(
            left=short(value.get("left", "")),
            right=short(value.get("right", "")),
            kind=value.get("kind", ""),
            merge=value.get("merge", ""),
            lines=tuple((one.get("first", 0), one.get("last", 0)) for one in value.get("lines", ())),
            keys=tuple(value.get("keys", ())),
        )


@dataclass(frozen=True, slots=True)
class Overlap:
    """A path that several open workspaces changed."""

    path: str
    sides: tuple[OverlapSide, ...]
    pairs: tuple[OverlapPair, ...] = ()
    since: datetime | None = None
    """When the second of them changed the path."""

    @classmethod
    def from_json(cls, value: Json) -> Overlap:
        """Reads an ``Overlap``."""
        return cls(
            path=unescape(value.get("path", "")),
            sides=tuple(OverlapSide.from_json(one) for one in value.get("sides", ())),
            pairs=tuple(OverlapPair.from_json(one) for one in value.get("pairs", ())),
            since=time_of(value.get("since")),
        )
