# Generated from _async/files.py by scripts/generate_sync.py; do not edit.
"""Files of a workspace: of its live tree, or of any revision."""

from __future__ import annotations

import builtins
import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from typing import Any

from .._call import (
    Answer,
    Call,
    Content,
    Revision,
    event_call,
    field_of,
    json_call,
    list_of,
    new_request_id,
    nothing,
    page_of,
    revision_text,
)
from .._text import PathLike, escape, escape_path, path_text, segment, url_path
from ..edits import Edit, attribute_fields
from ..errors import AmalgamError, InvalidArgumentError
from ..models import Change, Edited, FileInfo, Match, Written, data_of
from .transport import Transport

PAGE_SIZE = 1000
STAT_MANY_PATHS = 1000
READ_MANY_PATHS = 100
READ_MANY_BYTES_EACH = 128 << 10


class _TooLarge:
    """Stands for a file that is read by a call of its own."""


def _read_result(value: Any) -> bytes | _TooLarge | None:
    failure = value.get("failure")
    if failure and failure.get("reason") == "NOT_FOUND":
        return None
    contents = value.get("contents") or {}
    if failure or contents.get("truncated"):
        return _TooLarge()
    return data_of(contents)


class Files:
    """The files of a workspace, as ``ws.files``.

    Reads and writes work on the live tree: the files with all changes since the last commit. With ``revision`` a read
    works on a snapshot. A path is relative to the root of the tree; symlinks are not followed.
    """

    def __init__(self, transport: Transport, workspace: str) -> None:
        self._transport = transport
        self._workspace = workspace

    @property
    def _base(self) -> str:
        return f"/workspaces/{segment(self._workspace)}"

    def _file(self, path: PathLike) -> str:
        return f"{self._base}/files/{url_path(path)}"

    def read(
        self,
        path: PathLike,
        *,
        revision: Revision | None = None,
        offset: int = 0,
        length: int | None = None,
    ) -> bytes:
        """Returns the bytes of a file, or a range of them. A range behind the end is empty."""
        if length == 0:
            return b""
        return self._transport.send(self._read_call(path, revision, offset, length))

    def _read_call(self, path: PathLike, revision: Revision | None, offset: int, length: int | None) -> Call[bytes]:
        headers = {}
        if offset or length is not None:
            last = "" if length is None else offset + length - 1
            headers["range"] = f"bytes={offset}-{last}"

        def parse(answer: Answer) -> bytes:
            return b"" if answer.status == 416 else answer.content

        return Call(
            "GET",
            self._file(path),
            parse,
            query=[("revision", revision_text(revision))] if revision else (),
            headers=headers,
            is_safe=True,
            accepted=frozenset({416}),
        )

    def read_many(self, paths: Sequence[PathLike], *, revision: Revision | None = None) -> builtins.list[bytes | None]:
        """Returns the bytes of many files of one state of the tree; ``None`` for a missing one.

        Small files come in few calls; a large one in a call of its own.
        """
        found: builtins.list[bytes | None] = []
        for begin in range(0, len(paths), READ_MANY_PATHS):
            group = paths[begin : begin + READ_MANY_PATHS]
            body = {
                "paths": [escape_path(path) for path in group],
                "revision": revision_text(revision),
                "bytesMax": READ_MANY_BYTES_EACH,
            }
            call = json_call("POST", f"{self._base}/read", list_of("results", _read_result), body=body, is_safe=True)
            results = self._transport.send(call)
            for path, data in zip(group, results, strict=True):
                found.append(self.read(path, revision=revision) if isinstance(data, _TooLarge) else data)
        return found

    def read_text(
        self,
        path: PathLike,
        *,
        revision: Revision | None = None,
        encoding: str = "utf-8",
        errors: str = "strict",
    ) -> str:
        """Returns the text of a file. Line ends stay as they are."""
        return (self.read(path, revision=revision)).decode(encoding, errors)

    def stream(
        self,
        path: PathLike,
        *,
        revision: Revision | None = None,
        offset: int = 0,
        length: int | None = None,
    ) -> Generator[bytes, None, None]:
        """Yields the bytes of a file as they arrive, for files that do not fit into memory."""
        if length == 0:
            return
        with closing(self._transport.pieces(self._read_call(path, revision, offset, length))) as found:
            for data in found:
                yield data

    def write(
        self,
        path: PathLike,
        data: str | Content,
        *,
        mode: int | None = None,
        if_match: str | None = None,
        if_absent: bool = False,
        encoding: str = "utf-8",
    ) -> Written:
        """Replaces a file, or makes it with the directories above it. Readers see the old file or the new one.

        Args:
            path: The path.
            data: Text, bytes, or a file object open in binary mode, which is sent as a stream.
            mode: Permission bits; unset for those that it has, or 0644 for a new file.
            if_match: Only if the file has this etag; ``*`` for any file. ``StaleFileError`` otherwise.
            if_absent: Only if there is nothing at the path; ``AlreadyExistsError`` otherwise.
            encoding: The encoding of a text.

        """
        headers = {"content-type": "application/octet-stream", "idempotency-key": new_request_id()}
        if if_match:
            headers["if-match"] = f'"{if_match}"'
        if if_absent:
            headers["if-none-match"] = "*"

        def parse(answer: Answer) -> Written:
            found = answer.json()
            return Written(path_text(path), found["etag"], found["size"], found.get("digest", ""))

        call = Call(
            "PUT",
            self._file(path),
            parse,
            query=[("mode", f"{mode:o}")] if mode is not None else (),
            content=data.encode(encoding) if isinstance(data, str) else data,
            headers=headers,
            # The request id makes a retry one that is done once.
            is_safe=True,
        )
        return self._transport.send(call)

    def edit(
        self,
        path: PathLike,
        old: str,
        new: str,
        *,
        replace_all: bool = False,
        if_match: str | None = None,
    ) -> Edited:
        """Replaces a text that the file has exactly once, or with ``replace_all`` all places of it.

        Raises:
            NotUniqueError: The file does not have the text, or has it several times.

        """
        replace = {
            "path": escape_path(path),
            "oldText": old,
            "newText": new,
            "replaceAll": replace_all,
            "ifMatch": if_match or "",
        }
        return self._edit({"replace": replace})

    def patch(self, path: PathLike, patch: str, *, if_match: str | None = None) -> Edited:
        """Applies a unified patch to one file.

        Raises:
            PatchFailedError: A hunk fits nowhere.

        """
        fields = {"path": escape_path(path), "patch": patch, "ifMatch": if_match or ""}
        return self._edit({"patch": fields})

    def _edit(self, body: Mapping[str, Any]) -> Edited:
        def parse(value: Any) -> Edited:
            return Edited(FileInfo.from_json(value["file"]), value.get("replacements", 0))

        return self._transport.send(json_call("POST", f"{self._base}/edit", parse, body=body, has_request_id=True))

    def apply(self, edits: Sequence[Edit]) -> builtins.list[FileInfo]:
        """Makes many edits of the live tree, all or none. Returns the entry after each edit.

        ``amalgam.edits`` has the edits. For example ``ws.files.apply([edits.write("a", "1"), edits.remove("b")])``.
        """
        body = {"edits": [edit.to_json() for edit in edits]}
        parse = list_of("files", FileInfo.from_json)
        call = json_call("POST", f"{self._base}/edits", parse, body=body, has_request_id=True)
        return self._transport.send(call)

    def stat(self, path: PathLike = "", *, revision: Revision | None = None) -> FileInfo:
        """Returns the metadata of a path.

        Raises:
            NotFoundError: There is nothing at the path. It is a ``FileNotFoundError``, too.

        """
        query = {"path": escape_path(path), "revision": revision_text(revision)}
        parse = field_of("file", FileInfo.from_json)
        return self._transport.send(json_call("GET", f"{self._base}/stat", parse, query=query))

    def stat_many(
        self, paths: Sequence[PathLike], *, revision: Revision | None = None
    ) -> builtins.list[FileInfo | None]:
        """Returns the metadata of many paths; ``None`` for a missing one.

        Up to 1,000 paths are those of one state of the tree. More of them are asked for in several calls.
        """

        def result(value: Any) -> FileInfo | None:
            failure = value.get("failure")
            if failure and failure.get("reason") != "NOT_FOUND":
                raise AmalgamError(failure.get("message", ""), details={"reason": failure.get("reason")})
            return FileInfo.from_json(value["file"]) if value.get("file") else None

        found: builtins.list[FileInfo | None] = []
        parse = list_of("results", result)
        for begin in range(0, len(paths), STAT_MANY_PATHS):
            group = [escape_path(path) for path in paths[begin : begin + STAT_MANY_PATHS]]
            body = {"paths": group, "revision": revision_text(revision)}
            call = json_call("POST", f"{self._base}/stat", parse, body=body, is_safe=True)
            part = self._transport.send(call)
            found += part
        return found

    def exists(self, path: PathLike, *, revision: Revision | None = None) -> bool:
        """Returns whether there is something at a path. A workspace that does not exist is an error."""
        return (self.stat_many([path], revision=revision))[0] is not None

    def list(
        self,
        path: PathLike = "",
        *,
        recursive: bool = False,
        revision: Revision | None = None,
        without_git: bool = False,
    ) -> Generator[FileInfo, None, None]:
        """Yields the entries of a directory, sorted by name; with ``recursive`` everything below it."""
        query = {
            "path": escape_path(path),
            "recursive": recursive,
            "revision": revision_text(revision),
            "withoutGit": without_git,
            "pageSize": PAGE_SIZE,
        }
        parse = page_of("files", FileInfo.from_json)
        token = ""
        while True:
            call = json_call("GET", f"{self._base}/list", parse, query={**query, "pageToken": token})
            found, token = self._transport.send(call)
            for file in found:
                yield file
            if not token:
                return

    def glob(
        self,
        pattern: str,
        *,
        path: PathLike = "",
        limit: int = 0,
        revision: Revision | None = None,
        without_git: bool = False,
    ) -> Generator[FileInfo, None, None]:
        """Yields the entries that match a glob.

        A pattern without a slash is compared with names, one with a slash with whole paths; ``**`` stands for any
        number of directories.
        """
        query = {
            "pattern": pattern,
            "path": escape_path(path),
            "limit": limit or None,
            "revision": revision_text(revision),
            "withoutGit": without_git,
        }
        call = json_call("GET", f"{self._base}/glob", nothing, query=query)
        with closing(self._transport.messages(call)) as found:
            for message in found:
                for value in message.get("files", ()):
                    yield FileInfo.from_json(value)

    def grep(
        self,
        pattern: str,
        *,
        paths: Sequence[PathLike] = (),
        globs: Sequence[str] = (),
        fixed: bool = False,
        ignore_case: bool = False,
        limit: int = 0,
        revision: Revision | None = None,
        without_git: bool = False,
    ) -> Generator[Match, None, None]:
        """Yields the lines that match a regular expression of the Rust crate ``regex``; with ``fixed`` a plain text."""
        query = {
            "pattern": pattern,
            "paths": [escape_path(path) for path in paths],
            "globs": [*globs],
            "fixed": fixed,
            "ignoreCase": ignore_case,
            "limit": limit or None,
            "revision": revision_text(revision),
            "withoutGit": without_git,
        }
        call = json_call("GET", f"{self._base}/grep", nothing, query=query)
        with closing(self._transport.messages(call)) as found:
            for message in found:
                for value in message.get("matches", ()):
                    yield Match.from_json(value)

    def watch(self, path: PathLike = "") -> Generator[builtins.list[Change], None, None]:
        """Yields the paths of the live tree that change, as they change.

        The first list is empty: the watch has begun. A list with one change of the kind ``unspecified`` means that too
        many paths changed at once: list the tree again.
        """
        call = event_call(f"{self._base}/watch", {"path": escape_path(path)})
        with closing(self._transport.events(call)) as found:
            for event in found:
                message = json.loads(event.data) if event is not None else None
                if message is None:
                    continue
                if message.get("resync"):
                    yield [Change(path_text(path), "unspecified")]
                else:
                    yield [Change.from_json(change) for change in message.get("changes", ())]

    def mkdir(self, path: PathLike, *, mode: int | None = None, parents: bool = True) -> FileInfo:
        """Makes a directory; with ``parents`` also those above it, and one that exists is accepted."""
        body = {"path": escape_path(path), "mode": mode, "parents": parents}
        parse = field_of("file", FileInfo.from_json)
        call = json_call("POST", f"{self._base}/directories", parse, body=body, has_request_id=True)
        return self._transport.send(call)

    def remove(
        self,
        path: PathLike,
        *,
        recursive: bool = False,
        missing_ok: bool = False,
        if_match: str | None = None,
    ) -> None:
        """Removes an entry; a directory that is not empty only with ``recursive``."""
        if not path_text(path):
            raise InvalidArgumentError("the path is empty: the root directory cannot be removed")
        body = {
            "path": escape_path(path),
            "recursive": recursive,
            "allowMissing": missing_ok,
            "ifMatch": if_match,
        }
        call = json_call("POST", f"{self._base}/remove", nothing, body=body, has_request_id=True)
        self._transport.send(call)

    def rename(
        self,
        path: PathLike,
        new_path: PathLike,
        *,
        replace: bool = True,
        parents: bool = True,
        if_match: str | None = None,
    ) -> FileInfo:
        """Gives an entry another path. With ``replace`` a file replaces a file, and a directory an empty one."""
        body = {
            "path": escape_path(path),
            "newPath": escape_path(new_path),
            "noReplace": not replace,
            "createParents": parents,
            "ifMatch": if_match,
        }
        parse = field_of("file", FileInfo.from_json)
        call = json_call("POST", f"{self._base}/rename-file", parse, body=body, has_request_id=True)
        return self._transport.send(call)

    def symlink(self, path: PathLike, target: str, *, parents: bool = True) -> FileInfo:
        """Makes a symlink at ``path`` that points to ``target``, which may be any text."""
        body = {"path": escape_path(path), "target": escape(target), "createParents": parents}
        parse = field_of("file", FileInfo.from_json)
        call = json_call("POST", f"{self._base}/symlinks", parse, body=body, has_request_id=True)
        return self._transport.send(call)

    def set_attributes(
        self,
        path: PathLike,
        *,
        mode: int | None = None,
        modify_time: datetime | None = None,
        xattrs: Mapping[str, bytes | None] | None = None,
        if_match: str | None = None,
    ) -> FileInfo:
        """Sets attributes of an entry. An extended attribute with the value ``None`` is removed."""
        body = {"attributes": attribute_fields(path, mode, modify_time, xattrs, if_match)}
        parse = field_of("file", FileInfo.from_json)
        call = json_call("PATCH", f"{self._base}/attributes", parse, body=body, has_request_id=True)
        return self._transport.send(call)
