"""``deepagents`` backends: the files of an agent are those of a workspace, with snapshots, forks and merges.

``AmalgamBackend`` has files; ``AmalgamSandboxBackend`` runs commands, too.
"""

from __future__ import annotations

import base64
import builtins
import re
import shlex
from typing import cast

from deepagents.backends.protocol import (
    BackendProtocol,
    DeleteResult,
    EditResult,
    ExecuteResponse,
    FileData,
    FileDownloadResponse,
    FileInfo,
    FileUploadResponse,
    GlobResult,
    GrepMatch,
    GrepResult,
    LsResult,
    ReadResult,
    WriteResult,
)
from deepagents.backends.sandbox import BaseSandbox
from deepagents.backends.utils import create_file_data, slice_read_response

from .. import models
from .._sync.sandboxes import Sandbox
from .._sync.workspace import Workspace
from ..errors import (
    AmalgamError,
    ForbiddenError,
    InvalidArgumentError,
    NotFoundError,
    NotUniqueError,
    ProcessTimeoutError,
    TooLargeError,
)

__all__ = ["AmalgamBackend", "AmalgamSandboxBackend"]

GLOB_MATCHES_MAX = 10_000
READ_BYTES = 4 << 20
STDIN_BYTES_MAX = 1 << 20
"""Larger files are written as a stream, or outside the workspace by several commands."""


class AmalgamBackend(BackendProtocol):
    """The files of a workspace as a backend. The root of the workspace is ``/``.

    Changes are uncommitted changes of the workspace: ``backend.workspace.commit()`` takes a snapshot.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace

    def ls(self, path: str) -> LsResult:
        """Lists a directory."""
        try:
            return LsResult(entries=[_info(file) for file in self.workspace.files.list(_relative(path))])
        except AmalgamError as error:
            return LsResult(error=_text(error))

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Reads lines of a text file; a file that is not UTF-8 is read as a whole, in base64."""
        try:
            data = self.workspace.files.read(_relative(file_path))
        except AmalgamError as error:
            return ReadResult(error=_text(error))
        try:
            text = data.decode()
        except UnicodeDecodeError:
            binary: FileData = create_file_data(base64.b64encode(data).decode(), encoding="base64")
            return ReadResult(file_data=binary)
        return slice_read_response(create_file_data(text), offset, limit)

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Searches for a literal text."""
        try:
            below = _relative(path or "/")
            # One more than is wanted shows whether there are more.
            limit = 0 if max_count is None else max_count + 1
            found = self.workspace.files.grep(
                pattern,
                fixed=True,
                paths=[below] if below else [],
                globs=[_full_pattern(glob, below)] if glob else [],
                limit=limit,
            )
            matches = [match for match in found if not match.binary]
        except AmalgamError as error:
            return GrepResult(error=_text(error))
        is_cut = max_count is not None and len(matches) > max_count
        shown = matches[:max_count] if is_cut else matches
        return GrepResult(
            matches=[_match(match) for match in shown],
            truncated=is_cut,
        )

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Finds files by a glob."""
        if ".." in pattern.split("/"):
            return GlobResult(error=f"pattern {pattern!r}: it must not have a `..`")
        try:
            below = _relative(path or "/")
            full = _full_pattern(pattern, below)
            found = self.workspace.files.glob(full, path=below, limit=GLOB_MATCHES_MAX + 1)
            files = [file for file in found if file.is_file]
        except AmalgamError as error:
            return GlobResult(error=_text(error))
        is_cut = len(files) > GLOB_MATCHES_MAX
        return GlobResult(
            matches=[_info(file) for file in files[:GLOB_MATCHES_MAX]],
            truncated=is_cut,
            truncation_reason="budget" if is_cut else None,
        )

    def write(self, file_path: str, content: str) -> WriteResult:
        """Writes a file, new or not."""
        try:
            self.workspace.files.write(_relative(file_path), content)
        except AmalgamError as error:
            return WriteResult(error=_text(error))
        return WriteResult(path=file_path)

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        """Replaces a text that the file has exactly once, or all places of it."""
        try:
            edited = self.workspace.files.edit(_relative(file_path), old_string, new_string, replace_all=replace_all)
        except NotUniqueError as error:
            return EditResult(error=f"{_text(error)} {error.suggestion}")
        except AmalgamError as error:
            return EditResult(error=_text(error))
        return EditResult(path=file_path, occurrences=edited.replacements)

    def delete(self, file_path: str) -> DeleteResult:
        """Removes a file, or a directory with everything in it."""
        try:
            self.workspace.files.remove(_relative(file_path), recursive=True)
        except AmalgamError as error:
            return DeleteResult(error=_text(error))
        return DeleteResult(path=file_path)

    def upload_files(self, files: builtins.list[tuple[str, bytes]]) -> builtins.list[FileUploadResponse]:
        """Writes files; each of them has a result of its own."""
        responses = []
        for path, content in files:
            try:
                self.workspace.files.write(_relative(path), content)
                responses.append(FileUploadResponse(path))
            except AmalgamError as error:
                responses.append(FileUploadResponse(path, error=_code(error)))
        return responses

    def download_files(self, paths: builtins.list[str]) -> builtins.list[FileDownloadResponse]:
        """Reads files; each of them has a result of its own."""
        responses = []
        for path in paths:
            try:
                relative = _relative(path)
                if not relative or self.workspace.files.stat(relative).is_dir:
                    responses.append(FileDownloadResponse(path, error="is_directory"))
                    continue
                responses.append(FileDownloadResponse(path, content=self.workspace.files.read(relative)))
            except AmalgamError as error:
                responses.append(FileDownloadResponse(path, error=_code(error)))
        return responses


class AmalgamSandboxBackend(BaseSandbox):
    """A sandbox as a backend that runs commands. Paths are those of the sandbox: its workspace is ``/workspace``.

    ``sandbox`` has the rest: forks, terminals, and the name of the workspace to commit, diff and merge.
    """

    def __init__(self, sandbox: Sandbox, *, timeout: int = 30 * 60) -> None:
        self.sandbox = sandbox
        self._timeout = timeout

    @property
    def id(self) -> str:
        """The id of the sandbox."""
        return self.sandbox.id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Runs a command with a shell, and returns its standard output and its standard error as they came."""
        seconds = self._timeout if timeout is None else timeout
        output: builtins.list[str] = []
        try:
            done = self.sandbox.commands.run(
                command, timeout=seconds or None, on_stdout=output.append, on_stderr=output.append
            )
        except ProcessTimeoutError:
            text = f"{''.join(output)}\nError: the command was killed after {seconds} seconds"
            return ExecuteResponse(output=text, exit_code=124, truncated=False)
        except AmalgamError as error:
            return ExecuteResponse(output=_text(error), exit_code=1, truncated=False)
        return ExecuteResponse(output="".join(output), exit_code=done.exit_code, truncated=done.truncated)

    def upload_files(self, files: builtins.list[tuple[str, bytes]]) -> builtins.list[FileUploadResponse]:
        """Writes files; each of them has a result of its own."""
        return [FileUploadResponse(path, error=self._upload(path, content)) for path, content in files]

    def _upload(self, path: str, content: bytes) -> str | None:
        if not path.startswith("/"):
            return "invalid_path"
        name = shlex.quote(path)
        directory = shlex.quote(path.rpartition("/")[0] or "/")
        try:
            if len(content) > STDIN_BYTES_MAX and path.startswith("/workspace/"):
                self.sandbox.files.write(path.removeprefix("/workspace/"), content)
                return None
            script = f"mkdir -p -- {directory} || exit 13; test -d {name} && exit 21; cat > {name} || exit 13"
            for begin in range(0, max(len(content), 1), STDIN_BYTES_MAX):
                done = self.sandbox.commands.run(script, stdin=content[begin : begin + STDIN_BYTES_MAX])
                if done.exit_code:
                    return _exit_error(done.exit_code, done.stderr)
                script = f"cat >> {name} || exit 13"
        except AmalgamError as error:
            return _code(error)
        return None

    def download_files(self, paths: builtins.list[str]) -> builtins.list[FileDownloadResponse]:
        """Reads files; each of them has a result of its own."""
        return [self._download(path) for path in paths]

    def _download(self, path: str) -> FileDownloadResponse:
        if not path.startswith("/"):
            return FileDownloadResponse(path, error="invalid_path")
        name = shlex.quote(path)
        tests = f"test -e {name} || exit 2; test -d {name} && exit 21; test -r {name} || exit 13"
        try:
            found = self.sandbox.commands.run(f"{tests}; readlink -nf -- {name}")
            if found.exit_code:
                return FileDownloadResponse(path, error=_exit_error(found.exit_code, found.stderr))
            if found.stdout.startswith("/workspace/"):
                return FileDownloadResponse(path, self.sandbox.files.read(found.stdout.removeprefix("/workspace/")))
            return FileDownloadResponse(path, content=self._read_by_parts(name))
        except AmalgamError as error:
            return FileDownloadResponse(path, error=_code(error))

    def _read_by_parts(self, name: str) -> bytes:
        """Reads a file outside the workspace, in parts that the server keeps for slow readers."""
        content = bytearray()
        while True:
            script = f"tail -c +{len(content) + 1} -- {name} | head -c {READ_BYTES}"
            events = self.sandbox.commands.stream(script)
            part = b"".join(event.output for event in events if event.type == "stdout")
            content += part
            if len(part) < READ_BYTES:
                return bytes(content)


def _exit_error(code: int, message: str) -> str | None:
    """Returns the error for an exit code of the scripts that move files, which are numbers of ``errno``."""
    if code == 0:
        return None
    known = {2: "file_not_found", 13: "permission_denied", 21: "is_directory"}
    return known.get(code) or message or f"exit code {code}"


def _relative(path: str) -> str:
    if not path.startswith("/"):
        raise InvalidArgumentError(f"path {path!r}: it begins with /")
    return path.strip("/")


def _full_pattern(pattern: str, below: str) -> str:
    """Returns a glob from the root of the workspace for one that is relative to a directory."""
    if "/" not in pattern:
        return pattern
    beginning = re.sub(r"([*?\[\]{}!\\])", r"\\\1", below) + "/" if below else ""
    anchored = beginning + pattern.lstrip("/")
    # A pattern without a slash would fit at any depth.
    return anchored if "/" in anchored else f"/{anchored}"


def _info(file: models.FileInfo) -> FileInfo:
    modified_at = file.modify_time.isoformat() if file.modify_time else ""
    return {"path": f"/{file.path}", "is_dir": file.is_dir, "size": file.size, "modified_at": modified_at}


def _match(match: models.Match) -> GrepMatch:
    return cast("GrepMatch", {"path": f"/{match.path}", "line": match.line, "text": match.text})


def _text(error: AmalgamError) -> str:
    return f"Error: {error.message}"


def _code(error: AmalgamError) -> str:
    if isinstance(error, NotFoundError):
        return "file_not_found"
    if isinstance(error, ForbiddenError):
        return "permission_denied"
    if isinstance(error, InvalidArgumentError) and not isinstance(error, TooLargeError):
        return "invalid_path"
    return error.message
