"""Files, changes, snapshots, workspaces, commits and state values."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from .._text import short, time_of, unescape, unescape_bytes

Json = Any
EntryKind = Literal["file", "directory", "symlink", "fifo", "socket", "char_device", "block_device", "conflict", ""]
ChangeKind = Literal["added", "removed", "modified", "kind_changed", "metadata", "renamed", "unspecified", ""]
CommitKind = Literal["manual", "step", "automatic"]


def enum_word(text: str, prefix: str) -> Any:
    """Returns the word of an enum's value in JSON: ``file`` of ``ENTRY_KIND_FILE``."""
    return text.removeprefix(prefix).lower()


@dataclass(frozen=True, slots=True)
class FileInfo:
    """The metadata of a path."""

    path: str
    kind: EntryKind
    size: int
    mode: int
    etag: str
    content_id: str = ""
    media_type: str = ""
    modify_time: datetime | None = None
    link_target: str = ""
    uid: int = 0
    gid: int = 0
    links: int = 1
    link_group: str = ""
    xattrs: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, value: Json) -> FileInfo:
        """Reads a ``FileStat``."""
        return cls(
            path=unescape(value.get("path", "")),
            kind=enum_word(value.get("kind", ""), "ENTRY_KIND_"),
            size=value.get("size", 0),
            mode=value.get("mode", 0),
            etag=value.get("etag", ""),
            content_id=value.get("contentId", ""),
            media_type=value.get("mediaType", ""),
            modify_time=time_of(value.get("modifyTime")),
            link_target=unescape(value.get("linkTarget", "")),
            uid=value.get("uid", 0),
            gid=value.get("gid", 0),
            links=value.get("links", 1),
            link_group=value.get("linkGroup", ""),
            xattrs=tuple(unescape(name) for name in value.get("xattrs", ())),
        )

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def is_file(self) -> bool:
        """Whether the entry is a file."""
        return self.kind == "file"

    @property
    def is_dir(self) -> bool:
        """Whether the entry is a directory."""
        return self.kind == "directory"

    @property
    def is_symlink(self) -> bool:
        """Whether the entry is a symlink."""
        return self.kind == "symlink"


@dataclass(frozen=True, slots=True)
class Written:
    """The result of a write of a whole file."""

    path: str
    etag: str
    size: int
    digest: str
    """The BLAKE3 digest of the bytes, in hex."""


@dataclass(frozen=True, slots=True)
class Edited:
    """The result of an edit of a text file."""

    file: FileInfo
    replacements: int
    """How many places were replaced, or how many hunks were applied."""


@dataclass(frozen=True, slots=True)
class Match:
    """A line that matches a search, or a binary file that does."""

    path: str
    line: int
    """From 1; 0 for a binary file."""
    text: str
    binary: bool = False

    @classmethod
    def from_json(cls, value: Json) -> Match:
        """Reads a ``FileMatch``."""
        path, text = unescape(value["path"]), value.get("text", "")
        return cls(path, value.get("line", 0), text, value.get("binary", False))


@dataclass(frozen=True, slots=True)
class Entry:
    """A name in a tree, as a diff shows it."""

    path: str
    kind: EntryKind
    mode: int
    size: int
    modify_time: datetime | None = None
    symlink_target: str = ""

    @classmethod
    def from_json(cls, value: Json) -> Entry | None:
        """Reads an ``Entry``; nothing if there is none."""
        if not value:
            return None
        return cls(
            path=unescape(value.get("path", "")),
            kind=enum_word(value.get("kind", ""), "ENTRY_KIND_"),
            mode=value.get("mode", 0),
            size=value.get("size", 0),
            modify_time=time_of(value.get("modifyTime")),
            symlink_target=unescape(value.get("symlinkTarget", "")),
        )


@dataclass(frozen=True, slots=True)
class Change:
    """One path that differs between two states."""

    path: str
    """Where it is now; for something removed, where it was."""
    kind: ChangeKind
    from_path: str = ""
    """For a rename: where it was."""
    before: Entry | None = None
    """Only of diffs."""
    after: Entry | None = None
    """Only of diffs."""
    attributes: tuple[str, ...] = ()
    """Which attributes differ beside the contents: mode, mtime, owner, xattrs, link. Only of diffs."""

    @classmethod
    def from_json(cls, value: Json) -> Change:
        """Reads a ``Change`` or a ``FileChange``."""
        return cls(
            path=unescape(value.get("path", "")),
            kind=enum_word(value.get("kind", ""), "CHANGE_KIND_"),
            from_path=unescape(value.get("fromPath", "")),
            before=Entry.from_json(value.get("before")),
            after=Entry.from_json(value.get("after")),
            attributes=tuple(value.get("attributes", ())),
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A tree at one moment. Its ``id`` is accepted wherever a revision is."""

    id: str
    message: str = ""
    author: str = ""
    time: datetime | None = None
    parents: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    workspaces: tuple[str, ...] = ()
    tree: str = ""
    """The id of its tree: equal trees have equal ids."""
    note: str = ""
    reward: float | None = None
    conflicts: int = 0
    thinned: bool = False
    """Whether retention dropped its tree."""

    @classmethod
    def from_json(cls, value: Json) -> Snapshot:
        """Reads a ``Snapshot``."""
        return cls(
            id=short(value["name"]),
            message=value.get("message", ""),
            author=value.get("author", ""),
            time=time_of(value.get("time")),
            parents=tuple(short(parent) for parent in value.get("parents", ())),
            metadata=value.get("metadata", {}),
            labels=tuple(value.get("labels", ())),
            workspaces=tuple(value.get("workspaces", ())),
            tree=value.get("tree", ""),
            note=value.get("note", ""),
            reward=value.get("reward"),
            conflicts=value.get("conflicts", 0),
            thinned=value.get("thinned", False),
        )

    def __str__(self) -> str:
        return self.id


def optional_snapshot(value: Json) -> Snapshot | None:
    """Reads a ``Snapshot`` that may be missing."""
    return Snapshot.from_json(value) if value else None


@dataclass(frozen=True, slots=True)
class WorkspaceInfo:
    """A workspace as the server described it last."""

    name: str
    head: str
    """The id of the newest snapshot; empty while nothing was committed."""
    base: str = ""
    agent: str = ""
    project: str = ""
    target: str = ""
    """The workspace that its changes are merged into; empty for none."""
    etag: str = ""
    create_time: datetime | None = None

    @classmethod
    def from_json(cls, value: Json) -> WorkspaceInfo:
        """Reads a ``Workspace``."""
        return cls(
            name=short(value["name"]),
            head=short(value.get("head", "")),
            base=short(value.get("base", "")),
            agent=value.get("agent", ""),
            project=value.get("project", ""),
            target=short(value.get("target", "")),
            etag=value.get("etag", ""),
            create_time=time_of(value.get("createTime")),
        )


@dataclass(frozen=True, slots=True)
class Status:
    """The uncommitted changes of a workspace. It is true if there are some."""

    head: str
    base: str
    """The snapshot that the live tree follows; differs from the head if the head moved meanwhile."""
    changes: tuple[Change, ...]
    truncated: bool
    """Whether more paths differ than ``changes`` lists."""
    state_changed: bool
    """Whether state values differ."""

    @classmethod
    def from_json(cls, value: Json) -> Status:
        """Reads a ``GetStatusResponse``."""
        return cls(
            head=short(value.get("head", "")),
            base=short(value.get("base", "")),
            changes=tuple(Change.from_json(change) for change in value.get("changes", ())),
            truncated=value.get("truncated", False),
            state_changed=value.get("stateChanged", False),
        )

    def __bool__(self) -> bool:
        return bool(self.changes) or self.state_changed


@dataclass(frozen=True, slots=True)
class ChangeSummary:
    """The counts of a change."""

    files_added: int = 0
    files_removed: int = 0
    files_modified: int = 0
    files_renamed: int = 0
    files_other: int = 0
    directories_changed: int = 0
    lines_added: int = 0
    lines_removed: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    binary: int = 0
    risk_weight: int = 0
    risks: Mapping[str, int] = field(default_factory=dict)
    score: int = 0
    """For ranking: the smaller, the less there is to review."""

    @classmethod
    def from_json(cls, value: Json) -> ChangeSummary:
        """Reads a ``ChangeSummary``."""
        return cls(
            files_added=value.get("filesAdded", 0),
            files_removed=value.get("filesRemoved", 0),
            files_modified=value.get("filesModified", 0),
            files_renamed=value.get("filesRenamed", 0),
            files_other=value.get("filesOther", 0),
            directories_changed=value.get("directoriesChanged", 0),
            lines_added=value.get("linesAdded", 0),
            lines_removed=value.get("linesRemoved", 0),
            bytes_before=value.get("bytesBefore", 0),
            bytes_after=value.get("bytesAfter", 0),
            binary=value.get("binary", 0),
            risk_weight=value.get("riskWeight", 0),
            risks=value.get("risks", {}),
            score=value.get("score", 0),
        )


@dataclass(frozen=True, slots=True)
class Risk:
    """A hint about a change, for example ``secret`` or ``executable``."""

    kind: str
    message: str
    weight: int


@dataclass(frozen=True, slots=True)
class FileInsight:
    """The measures of a change of one file."""

    change: Change
    binary: bool
    lines_added: int
    lines_removed: int
    bytes_before: int
    bytes_after: int
    language: str
    similarity_percent: int
    risks: tuple[Risk, ...]

    @classmethod
    def from_json(cls, value: Json) -> FileInsight:
        """Reads a ``FileInsight``."""
        risks = value.get("risks", ())
        return cls(
            change=Change.from_json(value.get("change", {})),
            binary=value.get("binary", False),
            lines_added=value.get("linesAdded", 0),
            lines_removed=value.get("linesRemoved", 0),
            bytes_before=value.get("bytesBefore", 0),
            bytes_after=value.get("bytesAfter", 0),
            language=value.get("language", ""),
            similarity_percent=value.get("similarityPercent", 0),
            risks=tuple(Risk(risk["kind"], risk.get("message", ""), risk.get("weight", 0)) for risk in risks),
        )


@dataclass(frozen=True, slots=True)
class Insight:
    """The measures of a change: file by file, and in all."""

    files: tuple[FileInsight, ...]
    summary: ChangeSummary


@dataclass(frozen=True, slots=True)
class Patch:
    """A unified patch that ``git apply`` takes."""

    data: bytes
    omissions: tuple[tuple[str, str], ...] = ()
    """Paths that differ in a way that a patch cannot express, with the reason."""

    @property
    def text(self) -> str:
        """The patch as text; a byte that is not UTF-8 becomes U+FFFD."""
        return self.data.decode("utf-8", "replace")

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Commit:
    """The result of a commit."""

    snapshot: Snapshot | None
    """The head afterwards; nothing only for a workspace without a snapshot and without changes."""
    changed: bool
    """False if there was nothing to commit."""
    merged: bool = False
    """Whether the head had moved, so that the changes were merged with it."""
    changes: tuple[Change, ...] = ()
    summary: ChangeSummary | None = None

    @classmethod
    def from_json(cls, value: Json) -> Commit:
        """Reads a ``CommitWorkspaceResponse`` or a ``CommitEditsResponse``."""
        summary = value.get("summary")
        return cls(
            snapshot=optional_snapshot(value.get("snapshot")),
            changed=value.get("changed", False),
            merged=value.get("merged", False),
            changes=tuple(Change.from_json(change) for change in value.get("changes", ())),
            summary=ChangeSummary.from_json(summary) if summary else None,
        )

    @property
    def id(self) -> str:
        """The id of the snapshot; empty without one."""
        return self.snapshot.id if self.snapshot else ""


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore."""

    changed: bool
    """Whether the tree was another one."""
    changes: tuple[Change, ...] = ()
    """Of a dry run: the paths that would change."""
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class BlamedLines:
    """Consecutive lines of a file that came from one snapshot."""

    first_line: int
    """From 1."""
    lines: tuple[str, ...]
    snapshot: Snapshot
    path: str
    """Where the lines were then."""
    original_first_line: int

    @classmethod
    def list_from_json(cls, value: Json) -> list[BlamedLines]:
        """Reads a ``BlameFileResponse``."""
        text = unescape_bytes(value.get("text", "")).decode("utf-8", "replace")
        lines = text.split("\n")
        return [
            cls(
                first_line=run.get("firstLine", 0) + 1,
                lines=tuple(lines[run.get("firstLine", 0) :][: run.get("lines", 0)]),
                snapshot=Snapshot.from_json(run["snapshot"]),
                path=unescape(run.get("path", "")),
                original_first_line=run.get("originalFirstLine", 0) + 1,
            )
            for run in value.get("runs", ())
        ]


@dataclass(frozen=True, slots=True)
class Version:
    """A snapshot that changed a path."""

    snapshot: Snapshot
    path: str
    kind: ChangeKind
    from_path: str = ""
    entry: Entry | None = None

    @classmethod
    def from_json(cls, value: Json) -> Version:
        """Reads a ``ListVersionsResponse``."""
        return cls(
            snapshot=Snapshot.from_json(value["snapshot"]),
            path=unescape(value.get("path", "")),
            kind=enum_word(value.get("kind", ""), "CHANGE_KIND_"),
            from_path=unescape(value.get("fromPath", "")),
            entry=Entry.from_json(value.get("entry")),
        )


@dataclass(frozen=True, slots=True)
class Label:
    """A name on a snapshot."""

    name: str
    snapshot: str
    """The id of the snapshot."""

    @classmethod
    def from_json(cls, value: Json) -> Label:
        """Reads a ``Label``."""
        return cls(short(value["name"]), short(value.get("snapshot", "")))


@dataclass(frozen=True, slots=True)
class StateValue:
    """A small JSON value of a tree."""

    key: str
    value: Any
    etag: str

    @classmethod
    def from_json(cls, value: Json) -> StateValue:
        """Reads a ``StateValue``."""
        return cls(value["key"], json.loads(value["json"]), value.get("etag", ""))


def data_of(value: Json) -> bytes:
    """Returns the bytes of a ``data`` field."""
    return base64.b64decode(value.get("data", ""))
