"""A LangGraph checkpointer that stores checkpoints in Amalgam, together with the snapshot of the files.

Each thread has a workspace of its own, ``PREFIX/THREAD``, whose tree holds its checkpoints::

    latest/NS              the checkpoint with the greatest id of a namespace: the id, a line end, the same JSON
    checkpoints/NS/ID      a checkpoint without its channel values, its metadata and its parent, as JSON
    blobs/NS/CHANNEL/V     the value of a channel in one version: its type, a line end, the bytes
    writes/NS/ID/TASK/IDX  a pending write, as JSON
    names/HASH             the name of a namespace that is too long for a path
    parts/HASH             the beginning of a file that is stored by several commits

A copy of a thread is a fork. Equal values are stored once.
"""

from __future__ import annotations

import asyncio
import base64
import builtins
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import quote, unquote

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    PendingWrite,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from .. import edits
from .._sync.client import Amalgam
from .._sync.workspace import Workspace
from ..errors import AlreadyExistsError, NotFoundError, NotPossibleError, StaleHeadError
from ..models import FileInfo

__all__ = ["AmalgamSaver"]

NAME_BYTES_MAX = 180
EDITS_MAX = 5000
EDIT_BYTES_MAX = 4 << 20
"""A longer file is written by several edits. A commit has as many edits as fit into this length, and at least one."""
REMOVE_TRIES_MAX = 20
HASH_MARK = "#"
EMPTY_TYPE = "empty"
DELTA_COUNTERS = "counters_since_delta_snapshot"
FILES_KEY = "amalgam_files"

FilesOf = Callable[[str], "Workspace | None"]


@dataclass(frozen=True)
class _Record:
    """A stored checkpoint."""

    id: str
    parent: str | None
    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    files: dict[str, str] | None


class AmalgamSaver(BaseCheckpointSaver[str]):
    """A checkpointer that keeps checkpoints and files together.

    Args:
        client: A client; its calls may run in several threads.
        prefix: The beginning of the names of the workspaces that hold the threads.
        files: The workspace with the files that the graph works on, or a function that returns it for a thread id. Each
            checkpoint then commits its uncommitted changes, and keeps that snapshot for as long as it exists itself;
            ``restore_files`` brings the files of a checkpoint back. Run the graph with ``durability="sync"``: else
            LangGraph stores a checkpoint while the next step runs already.
        buffered: Return before a checkpoint is on disk: it survives a crash of the server, not a power cut.
        serde: The serializer; LangGraph's own if unset.

    """

    def __init__(
        self,
        client: Amalgam,
        *,
        prefix: str = "langgraph",
        files: Workspace | FilesOf | None = None,
        buffered: bool = False,
        serde: SerializerProtocol | None = None,
    ) -> None:
        super().__init__(serde=serde)
        self.client = client
        self.prefix = prefix
        self._files: FilesOf = (lambda _: files) if files is None or isinstance(files, Workspace) else files
        self._buffered = buffered

    # Checkpoints.

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Stores a checkpoint, and the snapshot of the files with it."""
        thread, ns = _thread_of(config), _ns_of(config)
        stored = cast("dict[str, Any]", checkpoint.copy())
        values: dict[str, Any] = stored.pop("channel_values", {})
        id = checkpoint["id"]  # noqa: A001
        record = {
            "parent": get_checkpoint_id(config),
            "checkpoint": self._dump(stored),
            "metadata": self._dump(get_checkpoint_metadata(config, metadata)),
            "files": self._commit_files(thread, ns, id),
        }
        text = json.dumps(record)
        changes: builtins.list[edits.Edit] = []
        for channel, version in new_versions.items():
            kind, data = self.serde.dumps_typed(values[channel]) if channel in values else (EMPTY_TYPE, b"")
            changes += _write(_blob(ns, channel, version), kind.encode() + b"\n" + data)
        if _name(ns).startswith(HASH_MARK):
            changes += _write(f"names/{_name(ns)}", ns)
        # Behind the values: there may be several commits, and a checkpoint has all its values.
        changes += _write(_place("checkpoints", ns, id), text)
        if id >= self._latest(thread, ns):
            changes += _write(_place("latest", ns), f"{id}\n{text}")
        self._commit(thread, changes, create=True)
        return _config(thread, ns, id)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Stores pending writes. One that exists is kept, except for those of special channels."""
        thread, ns, id = _thread_of(config), _ns_of(config), get_checkpoint_id(config) or ""  # noqa: A001
        folder = f"{_place('writes', ns, id)}/{_name(task_id)}"
        indexed = [
            (WRITES_IDX_MAP.get(channel, index), channel, value) for index, (channel, value) in enumerate(writes)
        ]
        paths = [f"{folder}/{index}" for index, _, _ in indexed]
        try:
            existing = self._workspace(thread).files.stat_many(paths, revision="@") if paths else []
        except NotFoundError:
            existing = [None] * len(paths)
        changes: builtins.list[edits.Edit] = []
        for (index, channel, value), path, found in zip(indexed, paths, existing, strict=True):
            if index >= 0 and found is not None:
                continue
            write = {"task": task_id, "path": task_path, "channel": channel, "value": self._dump(value)}
            changes += _write(path, json.dumps(write))
        if changes:
            self._commit(thread, changes, create=True)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Returns a checkpoint; without an id the latest one of the namespace."""
        thread, ns = _thread_of(config), _ns_of(config)
        id = get_checkpoint_id(config)  # noqa: A001
        record = self._record(thread, ns, id) if id else self._latest_record(thread, ns)
        return self._tuple(thread, ns, record) if record else None

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yields checkpoints, newest first; without a config those of all threads."""
        threads = [_thread_of(config)] if config else self._threads()
        fields = config["configurable"] if config else {}
        wanted_id, wanted_ns = fields.get("checkpoint_id"), fields.get("checkpoint_ns")
        before_id = get_checkpoint_id(before) if before else None
        left = limit if limit is not None else -1
        for thread in threads:
            for ns in self._namespaces(thread):
                if wanted_ns is not None and ns != wanted_ns:
                    continue
                for id in reversed(self._ids(thread, ns)):  # noqa: A001
                    if left == 0:
                        return
                    if (wanted_id and id != wanted_id) or (before_id and id >= before_id):
                        continue
                    record = self._record(thread, ns, id)
                    if record is None or not _fits(record.metadata, filter):
                        continue
                    left -= 1
                    yield self._tuple(thread, ns, record)

    # Threads.

    def delete_thread(self, thread_id: str) -> None:
        """Deletes a thread. ``client.workspaces.undelete`` of its workspace brings it back until it is collected."""
        self._drop_labels(thread_id)
        try:
            self._workspace(thread_id).delete()
        except NotFoundError:
            return

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copies all checkpoints of a thread with their pending writes."""
        source = self._workspace(source_thread_id)
        target = self._name(target_thread_id)
        try:
            source.fork(names=[target])
        except NotFoundError:
            return
        except AlreadyExistsError:
            self._copy_into(source, target_thread_id)
        self._commit(target_thread_id, [edits.state("thread", target_thread_id)])
        self._copy_labels(source_thread_id, target_thread_id)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Removes checkpoints: all but the latest of each namespace, or with ``delete`` all of them.

        Ancestors from which the latest checkpoint rebuilds a delta channel are kept, too.
        """
        if strategy not in ("keep_latest", "delete"):
            raise ValueError(f"strategy {strategy!r}: it is `keep_latest` or `delete`")
        for thread in thread_ids:
            if strategy == "delete":
                self.delete_thread(thread)
                continue
            for ns in self._namespaces(thread):
                ids = self._ids(thread, ns)
                if ids:
                    kept = self._needed(thread, ns, max(ids))
                    self._remove(thread, ns, [id for id in ids if id not in kept])  # noqa: A001

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Removes the checkpoints of runs, from all threads."""
        wanted = set(run_ids)
        for thread in self._threads() if wanted else []:
            for ns in self._namespaces(thread):
                records = [self._record(thread, ns, id) for id in self._ids(thread, ns)]  # noqa: A001
                gone = [record.id for record in records if record and record.metadata.get("run_id") in wanted]
                self._remove(thread, ns, gone)

    # Files.

    def restore_files(self, config: RunnableConfig) -> bool:
        """Brings the files back that belong to a checkpoint. Returns whether they were others.

        Uncommitted changes are recorded first: ``undo`` of the workspace brings them back.

        Raises:
            NotFoundError: There is no such checkpoint.
            NotPossibleError: The checkpoint was stored without files.

        """
        thread, ns = _thread_of(config), _ns_of(config)
        id = get_checkpoint_id(config)  # noqa: A001
        record = self._record(thread, ns, id) if id else self._latest_record(thread, ns)
        if record is None:
            raise NotFoundError(f"thread {thread!r} has no checkpoint {id!r} in namespace {ns!r}")
        if record.files is None:
            raise NotPossibleError(f"checkpoint {record.id} was stored without files: pass files= to AmalgamSaver")
        workspace = self.client.workspaces.get(record.files["workspace"])
        return workspace.restore(record.files["snapshot"]).changed

    def _commit_files(self, thread: str, ns: str, id: str) -> dict[str, str] | None:  # noqa: A002
        workspace = self._files(thread)
        if workspace is None:
            return None
        snapshot = workspace.commit(f"checkpoint {id} of {thread}", kind="step").id
        if not snapshot:
            return None
        # The label keeps the snapshot from retention until the checkpoint is removed.
        self.client.labels.set(self._label(thread, ns, id), snapshot)
        return {"workspace": workspace.name, "snapshot": snapshot}

    def _label(self, thread: str, ns: str = "", id: str = "") -> str:  # noqa: A002
        beginning = f"{self._name(thread)}/"
        return f"{beginning}{_name(ns)}/{id}" if id else beginning

    def _drop_labels(self, thread: str) -> None:
        for label in [*self.client.labels.list(self._label(thread))]:
            self.client.labels.delete(label.name)

    def _copy_labels(self, source: str, target: str) -> None:
        beginning = self._label(source)
        for label in [*self.client.labels.list(beginning)]:
            name = self._label(target) + label.name.removeprefix(beginning)
            self.client.labels.set(name, label.snapshot)

    # Storage.

    def _name(self, thread: str) -> str:
        return f"{self.prefix}/{_name(thread)}"

    def _workspace(self, thread: str) -> Workspace:
        return self.client.workspaces._named(self._name(thread))

    def _threads(self) -> builtins.list[str]:
        found = []
        for workspace in self.client.workspaces.list(f"{self.prefix}/"):
            thread = workspace.state.get("thread", revision="@")
            if isinstance(thread, str):
                found.append(thread)
        return found

    def _commit(
        self, thread: str, changes: Sequence[edits.Edit], *, create: bool = False, expected_head: str | None = None
    ) -> None:
        workspace = self._workspace(thread)
        for group in _groups(changes):
            try:
                commit = workspace.commit_edits(
                    group, expected_head=expected_head, kind="automatic", buffered=self._buffered
                )
                if expected_head is not None:
                    expected_head = commit.id
            except NotFoundError:
                if not create:
                    raise
                # Another thread of the program may be first.
                with contextlib.suppress(AlreadyExistsError):
                    self.client.workspaces.create(workspace.name)
                named = [edits.state("thread", thread), *group]
                workspace.commit_edits(named, kind="automatic", buffered=self._buffered)

    def _read(self, thread: str, paths: Sequence[str], revision: str = "@") -> Sequence[bytes | None]:
        try:
            return self._workspace(thread).files.read_many(paths, revision=revision)
        except NotFoundError:
            return [None] * len(paths)

    def _entries(self, thread: str, path: str, *, recursive: bool = False, revision: str = "@") -> Sequence[FileInfo]:
        try:
            return [*self._workspace(thread).files.list(path, recursive=recursive, revision=revision)]
        except NotFoundError:
            return []

    def _latest(self, thread: str, ns: str) -> str:
        return (self._read(thread, [_place("latest", ns)])[0] or b"").partition(b"\n")[0].decode()

    def _latest_record(self, thread: str, ns: str) -> _Record | None:
        id, _, text = (self._read(thread, [_place("latest", ns)])[0] or b"").partition(b"\n")  # noqa: A001
        return self._parse(id.decode(), text) if id else None

    def _namespaces(self, thread: str) -> Sequence[str]:
        found = []
        for entry in self._entries(thread, "checkpoints"):
            name = entry.path.rpartition("/")[2]
            if name.startswith(HASH_MARK):
                found.append((self._read(thread, [f"names/{name}"])[0] or b"").decode())
            else:
                found.append(unquote(name[1:]))
        return found

    def _ids(self, thread: str, ns: str, revision: str = "@") -> Sequence[str]:
        entries = self._entries(thread, _place("checkpoints", ns), revision=revision)
        return sorted(entry.path.rpartition("/")[2] for entry in entries)

    def _record(self, thread: str, ns: str, id: str, revision: str = "@") -> _Record | None:  # noqa: A002
        data = self._read(thread, [_place("checkpoints", ns, id)], revision)[0]
        return self._parse(id, data) if data is not None else None

    def _parse(self, id: str, data: bytes) -> _Record:  # noqa: A002
        value = json.loads(data)
        return _Record(
            id=id,
            parent=value["parent"],
            checkpoint=self._load(value["checkpoint"]),
            metadata=self._load(value["metadata"]),
            files=value["files"],
        )

    def _tuple(self, thread: str, ns: str, record: _Record) -> CheckpointTuple:
        versions: Mapping[str, Any] = record.checkpoint.get("channel_versions", {})
        channels = [*versions]
        blobs = self._read(thread, [_blob(ns, channel, versions[channel]) for channel in channels]) if channels else []
        values = {}
        for channel, data in zip(channels, blobs, strict=True):
            kind, _, content = (data or b"").partition(b"\n")
            if data is not None and kind.decode() != EMPTY_TYPE:
                values[channel] = self.serde.loads_typed((kind.decode(), content))
        metadata = dict(record.metadata)
        if record.files:
            metadata[FILES_KEY] = record.files
        return CheckpointTuple(
            config=_config(thread, ns, record.id),
            checkpoint=cast("Checkpoint", {**record.checkpoint, "channel_values": values}),
            metadata=cast("CheckpointMetadata", metadata),
            parent_config=_config(thread, ns, record.parent) if record.parent else None,
            pending_writes=self._writes(thread, ns, record.id),
        )

    def _writes(self, thread: str, ns: str, id: str) -> builtins.list[PendingWrite]:  # noqa: A002
        entries = self._entries(thread, _place("writes", ns, id), recursive=True)
        paths = [entry.path for entry in entries if entry.is_file]
        found: builtins.list[tuple[tuple[str, str, int], PendingWrite]] = []
        for path, data in zip(paths, self._read(thread, paths) if paths else [], strict=True):
            if data is None:
                continue
            write = json.loads(data)
            order = (write["path"], write["task"], int(path.rpartition("/")[2]))
            found.append((order, (write["task"], write["channel"], self._load(write["value"]))))
        return [write for _, write in sorted(found, key=lambda one: one[0])]

    def _needed(self, thread: str, ns: str, id: str) -> set[str]:  # noqa: A002
        """Returns a checkpoint and the ancestors from which its delta channels are rebuilt."""
        record = self._record(thread, ns, id)
        kept = {id}
        open_channels = set((record.metadata.get(DELTA_COUNTERS) or {}) if record else ())
        while record is not None and open_channels:
            values = self._tuple(thread, ns, record).checkpoint["channel_values"]
            open_channels -= set(values)
            if not open_channels or record.parent is None:
                break
            record = self._record(thread, ns, record.parent)
            if record is not None:
                kept.add(record.id)
        return kept

    def _remove(self, thread: str, ns: str, ids: Sequence[str]) -> None:
        """Removes checkpoints, their writes, labels and the values that no other checkpoint has."""
        if not ids:
            return
        for attempt in range(1, REMOVE_TRIES_MAX + 1):
            head = self._workspace(thread).refresh().head
            try:
                self._commit(thread, self._removal(thread, ns, ids, head), expected_head=head)
                break
            except StaleHeadError as error:
                # A graph that runs has stored something meanwhile, which the removal must not touch.
                if attempt == REMOVE_TRIES_MAX:
                    raise NotPossibleError(
                        f"thread {thread!r} changed during each of {attempt} attempts to remove checkpoints: "
                        "try again when its graph does not run"
                    ) from error
        for id in ids:  # noqa: A001
            try:
                self.client.labels.delete(self._label(thread, ns, id))
            except NotFoundError:
                continue

    def _removal(self, thread: str, ns: str, ids: Sequence[str], head: str) -> builtins.list[edits.Edit]:
        """Returns the edits that remove checkpoints from one snapshot of the thread."""
        gone = set(ids)
        left = [id for id in self._ids(thread, ns, head) if id not in gone]  # noqa: A001
        used = set()
        for id in left:  # noqa: A001
            record = self._record(thread, ns, id, head)
            versions = record.checkpoint.get("channel_versions", {}) if record else {}
            used |= {_blob(ns, channel, version) for channel, version in versions.items()}
        changes: builtins.list[edits.Edit] = []
        for id in ids:  # noqa: A001
            changes.append(edits.remove(_place("checkpoints", ns, id), missing_ok=True))
            changes.append(edits.remove(_place("writes", ns, id), recursive=True, missing_ok=True))
        for entry in self._entries(thread, _place("blobs", ns), recursive=True, revision=head):
            if entry.is_file and entry.path not in used:
                changes.append(edits.remove(entry.path))
        if left:
            newest = self._read(thread, [_place("checkpoints", ns, max(left))], head)[0] or b""
            changes += _write(_place("latest", ns), max(left).encode() + b"\n" + newest)
        else:
            changes.append(edits.remove(_place("latest", ns), missing_ok=True))
        return changes

    def _copy_into(self, source: Workspace, target_thread: str) -> None:
        files = [entry.path for entry in source.files.list("", recursive=True, revision="@") if entry.is_file]
        data = source.files.read_many(files, revision="@")
        written = [_write(path, one) for path, one in zip(files, data, strict=True) if one is not None]
        changes = [edit for group in written for edit in group]
        self._commit(target_thread, changes)

    def _dump(self, value: Any) -> builtins.list[str]:
        kind, data = self.serde.dumps_typed(value)
        return [kind, base64.b64encode(data).decode()]

    def _load(self, value: Sequence[str]) -> Any:
        return self.serde.loads_typed((value[0], base64.b64decode(value[1])))

    # The same for asyncio, in threads: the client is one for threads.

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Stores a checkpoint, for asyncio."""
        return await asyncio.to_thread(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Stores pending writes, for asyncio."""
        await asyncio.to_thread(self.put_writes, config, writes, task_id, task_path)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Returns a checkpoint, for asyncio."""
        return await asyncio.to_thread(self.get_tuple, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yields checkpoints, newest first, for asyncio."""
        found = self.list(config, filter=filter, before=before, limit=limit)
        end = object()
        while True:
            one = await asyncio.to_thread(next, found, end)
            if one is end:
                return
            yield cast("CheckpointTuple", one)

    async def adelete_thread(self, thread_id: str) -> None:
        """Deletes a thread, for asyncio."""
        await asyncio.to_thread(self.delete_thread, thread_id)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copies a thread, for asyncio."""
        await asyncio.to_thread(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Removes checkpoints, for asyncio."""
        await asyncio.to_thread(self.prune, thread_ids, strategy=strategy)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Removes the checkpoints of runs, for asyncio."""
        await asyncio.to_thread(self.delete_for_runs, run_ids)

    def get_next_version(self, current: str | None, channel: None) -> str:  # noqa: ARG002
        """Returns the version after another one; versions sort as text."""
        number = 0 if current is None else int(str(current).partition(".")[0])
        return f"{number + 1:032}"


def _thread_of(config: RunnableConfig) -> str:
    return str(config["configurable"]["thread_id"])


def _ns_of(config: RunnableConfig) -> str:
    return str(config["configurable"].get("checkpoint_ns", ""))


def _config(thread: str, ns: str, id: str) -> RunnableConfig:  # noqa: A002
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": id}}


def _name(text: str) -> str:
    """Returns a part of a path for any text; the mark keeps it from being empty or a dot."""
    name = "_" + quote(text, safe="")
    return name if len(name) <= NAME_BYTES_MAX else HASH_MARK + hashlib.sha256(text.encode()).hexdigest()


def _place(kind: str, ns: str, *more: str) -> str:
    return "/".join([kind, _name(ns), *more])


def _blob(ns: str, channel: str, version: Any) -> str:
    return f"{_place('blobs', ns)}/{_name(channel)}/{_name(str(version))}"


def _write(path: str, data: str | bytes) -> builtins.list[edits.Edit]:
    """Returns the edits that write a file. It appears with all its bytes, although a long one takes several commits."""
    if len(data) <= EDIT_BYTES_MAX:
        return [edits.write(path, data)]
    content = data.encode() if isinstance(data, str) else data
    part = f"parts/{hashlib.sha256(path.encode()).hexdigest()}"
    changes = [edits.write(part, content[:EDIT_BYTES_MAX])]
    for offset in range(EDIT_BYTES_MAX, len(content), EDIT_BYTES_MAX):
        changes.append(edits.write(part, content[offset : offset + EDIT_BYTES_MAX], offset=offset))
    return [*changes, edits.rename(part, path)]


def _groups(changes: Sequence[edits.Edit]) -> Iterator[builtins.list[edits.Edit]]:
    """Yields the edits in their order, by as many as the server takes in one commit."""
    group: builtins.list[edits.Edit] = []
    group_bytes = 0
    for edit in changes:
        edit_bytes = len(edit.fields.get("data") or edit.fields.get("text") or "")
        if group and (len(group) == EDITS_MAX or group_bytes + edit_bytes > EDIT_BYTES_MAX):
            yield group
            group, group_bytes = [], 0
        group.append(edit)
        group_bytes += edit_bytes
    if group:
        yield group


def _fits(metadata: Mapping[str, Any], wanted: Mapping[str, Any] | None) -> bool:
    return all(metadata.get(key) == value for key, value in (wanted or {}).items())
