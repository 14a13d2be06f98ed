"""Operations, merges, reviews, episodes, projects and keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from .._text import short, time_of, unescape
from .tree import ChangeSummary, Json, Snapshot, enum_word, optional_snapshot

MergeHow = Literal["already", "forward", "merged", "refused", "replayed", "waiting", "review", "unspecified"]


@dataclass(frozen=True, slots=True)
class ReferenceChange:
    """The effect of an operation on one name."""

    reference: str
    """For example ``workspace/main`` or ``label/v1``."""
    before: str
    """The id of a snapshot; empty for none."""
    after: str


@dataclass(frozen=True, slots=True)
class Operation:
    """A change of state in the log of operations."""

    sequence: int
    actor: str
    action: str
    """For example ``commit``, ``capture``, ``fork``, ``restore``, ``undo``."""
    time: datetime | None = None
    reverts: int = 0
    """The operation that this one undid or redid; 0 for none."""
    changes: tuple[ReferenceChange, ...] = ()
    changes_left_out: int = 0

    @classmethod
    def from_json(cls, value: Json) -> Operation:
        """Reads an ``Operation``."""
        return cls(
            sequence=value.get("sequence", 0),
            actor=value.get("actor", ""),
            action=value.get("action", ""),
            time=time_of(value.get("time")),
            reverts=value.get("reverts", 0),
            changes=tuple(
                ReferenceChange(
                    change["reference"],
                    short(change.get("before", "")),
                    short(change.get("after", "")),
                )
                for change in value.get("changes", ())
            ),
            changes_left_out=value.get("changesLeftOut", 0),
        )


@dataclass(frozen=True, slots=True)
class MergedPath:
    """A file that both sides changed, or a path that could not be merged."""

    path: str
    result: str
    """``merged``, ``ours``, ``theirs`` or ``conflict``; of a conflict its kind, for example ``contents``."""
    way: str = ""
    others: tuple[str, ...] = ()
    remembered: str = ""

    @classmethod
    def from_json(cls, value: Json) -> MergedPath:
        """Reads a ``MergedPath``."""
        return cls(
            path=unescape(value.get("path", "")),
            result=value.get("result", ""),
            way=value.get("way", ""),
            others=tuple(unescape(path) for path in value.get("others", ())),
            remembered=value.get("remembered", ""),
        )


@dataclass(frozen=True, slots=True)
class MergeResult:
    """The result of a merge, as the server reports it."""

    how: MergeHow
    target: str
    head: Snapshot | None
    files: tuple[MergedPath, ...] = ()
    """Files whose bytes both sides had changed."""
    conflicts: tuple[MergedPath, ...] = ()
    changed: int = 0
    """How many paths of the target changed."""
    reason: str = ""

    @classmethod
    def from_json(cls, value: Json) -> MergeResult:
        """Reads a ``Merge``."""
        return cls(
            how=enum_word(value.get("how", "MERGE_HOW_UNSPECIFIED"), "MERGE_HOW_"),
            target=short(value.get("target", "")),
            head=optional_snapshot(value.get("head")),
            files=tuple(MergedPath.from_json(one) for one in value.get("files", ())),
            conflicts=tuple(MergedPath.from_json(one) for one in value.get("conflicts", ())),
            changed=value.get("changed", 0),
            reason=value.get("reason", ""),
        )


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """A merge that waits in the queue, or for a person."""

    id: str
    workspace: str
    target: str
    snapshot: str
    actor: str = ""
    message: str = ""
    ends: bool = False
    held: bool = False
    time: datetime | None = None

    @classmethod
    def from_json(cls, value: Json) -> QueueEntry:
        """Reads a ``QueueEntry``."""
        return cls(
            id=short(value.get("name", "")),
            workspace=short(value.get("workspace", "")),
            target=short(value.get("target", "")),
            snapshot=short(value.get("snapshot", "")),
            actor=value.get("actor", ""),
            message=value.get("message", ""),
            ends=value.get("ends", False),
            held=value.get("held", False),
            time=time_of(value.get("time")),
        )


@dataclass(frozen=True, slots=True)
class Submitted:
    """The result of ``complete`` or ``publish``."""

    entry: QueueEntry | None
    merge: MergeResult | None
    ended: bool = False
    """Whether the workspace was deleted, because its work has landed."""

    @classmethod
    def from_json(cls, value: Json) -> Submitted:
        """Reads a ``CompleteWorkspaceResponse`` or a ``PublishWorkspaceResponse``."""
        entry, merge = value.get("entry"), value.get("merge")
        return cls(
            entry=QueueEntry.from_json(entry) if entry else None,
            merge=MergeResult.from_json(merge) if merge else None,
            ended=value.get("ended", False),
        )


@dataclass(frozen=True, slots=True)
class ReviewInfo:
    """A merge that waits for a person."""

    entry: QueueEntry
    conflicts: tuple[MergedPath, ...]
    reason: str = ""

    @classmethod
    def from_json(cls, value: Json) -> ReviewInfo:
        """Reads a ``Review``."""
        return cls(
            entry=QueueEntry.from_json(value.get("entry", {})),
            conflicts=tuple(MergedPath.from_json(one) for one in value.get("conflicts", ())),
            reason=value.get("reason", ""),
        )


@dataclass(frozen=True, slots=True)
class EpisodeInfo:
    """An episode as the server described it last."""

    name: str
    state: str
    """``open``, ``kept`` for a finished one, or ``dropping``."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    create_time: datetime | None = None

    @classmethod
    def from_json(cls, value: Json) -> EpisodeInfo:
        """Reads an ``Episode``."""
        return cls(
            name=short(value["name"]),
            state=value.get("state", ""),
            metadata=value.get("metadata", {}),
            create_time=time_of(value.get("createTime")),
        )


@dataclass(frozen=True, slots=True)
class Step:
    """A step of an episode: a snapshot with its parent step, its reward and the numbers of a search."""

    number: int
    snapshot: str
    parent: int
    """The number of the step before it; 0 for a root."""
    depth: int = 0
    reward: float | None = None
    visits: int = 0
    total: float = 0.0
    metadata: Mapping[str, str] = field(default_factory=dict)
    time: datetime | None = None

    @classmethod
    def from_json(cls, value: Json) -> Step:
        """Reads a ``Step``."""
        return cls(
            number=value["number"],
            snapshot=short(value.get("snapshot", "")),
            parent=value.get("parent", 0),
            depth=value.get("depth", 0),
            reward=value.get("reward"),
            visits=value.get("visits", 0),
            total=value.get("total", 0.0),
            metadata=value.get("metadata", {}),
            time=time_of(value.get("time")),
        )


@dataclass(frozen=True, slots=True)
class StepComparison:
    """Two steps side by side."""

    common: Step | None
    """The last common step; nothing if they have different roots."""
    before: tuple[Step, ...]
    after: tuple[Step, ...]
    reward_difference: float | None
    summary: ChangeSummary

    @classmethod
    def from_json(cls, value: Json) -> StepComparison:
        """Reads a ``CompareStepsResponse``."""
        common = value.get("common")
        return cls(
            common=Step.from_json(common) if common else None,
            before=tuple(Step.from_json(step) for step in value.get("before", ())),
            after=tuple(Step.from_json(step) for step in value.get("after", ())),
            reward_difference=value.get("rewardDifference"),
            summary=ChangeSummary.from_json(value.get("summary") or {}),
        )


@dataclass(frozen=True, slots=True)
class Project:
    """A project of a server: a store of its own."""

    name: str
    create_time: datetime | None = None
    delete_time: datetime | None = None

    @classmethod
    def from_json(cls, value: Json) -> Project:
        """Reads a ``Project``."""
        created, deleted = time_of(value.get("createTime")), time_of(value.get("deleteTime"))
        return cls(short(value["name"]), created, deleted)


@dataclass(frozen=True, slots=True)
class ProjectUsage:
    """The disk space of a project and the number of its objects."""

    disk_bytes: int
    workspaces: int
    operations: int

    @classmethod
    def from_json(cls, value: Json) -> ProjectUsage:
        """Reads a ``GetProjectUsageResponse``."""
        return cls(value.get("diskBytes", 0), value.get("workspaces", 0), value.get("operations", 0))


@dataclass(frozen=True, slots=True)
class Key:
    """An API key without its secret."""

    id: str
    agent: str
    scopes: tuple[str, ...]
    projects: tuple[str, ...] = ()
    """The projects that it may use; empty for all."""
    create_time: datetime | None = None
    expire_time: datetime | None = None
    revoke_time: datetime | None = None

    @classmethod
    def from_json(cls, value: Json) -> Key:
        """Reads a ``Key``."""
        return cls(
            id=short(value["name"]),
            agent=value.get("agent", ""),
            scopes=tuple(value.get("scopes", ())),
            projects=tuple(value.get("projects", ())),
            create_time=time_of(value.get("createTime")),
            expire_time=time_of(value.get("expireTime")),
            revoke_time=time_of(value.get("revokeTime")),
        )


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that was just made. Its text cannot be shown again."""

    key: Key
    text: str = field(repr=False)
