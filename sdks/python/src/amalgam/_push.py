"""Sends a directory of this machine to a server by difference, with the ``amalgam`` program.

The directory is captured in a store of its own in the user's cache directory, and the program sends the objects that
the server lacks. A later upload of the same directory reads and sends only what has changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ._call import Options
from ._local import find_program
from .errors import AmalgamError, SecretsFoundError

PUSH_BYTES_MIN = 4 << 20
"""A smaller directory is sent in one or two calls, which is sooner than starting the program."""
VARIABLE = "AMALGAM_UPLOAD_CACHE"
"""Names the directory of the stores; ``off`` sends all files instead."""
WORKSPACE = "source"


@dataclass(frozen=True)
class Pushed:
    """A directory that has arrived at a server."""

    workspace: str
    """The workspace there; it is for one use."""
    snapshot: str
    sent_bytes: int


def push_directory(directory: str, exclude: Sequence[str], options: Options, *, allow_secrets: bool) -> Pushed | None:
    """Captures a directory, and sends the server what it lacks. Returns nothing where the program cannot do so.

    Raises:
        SecretsFoundError: Contents look like credentials, and the caller did not allow them.

    """
    given = os.environ.get(VARIABLE, "")
    # With a slash, patterns of the program mean something else.
    if given == "off" or any("/" in pattern for pattern in exclude):
        return None
    path = os.path.realpath(directory)
    # Other patterns leave out other files: the captures of both must not mix.
    mark = hashlib.sha256(os.fsencode("\0".join([path, *exclude]))).hexdigest()[:16]
    under = f"upload-{uuid.uuid4().hex[:12]}"
    target = f"{options.url}/{options.project}" if options.project else options.url
    words = ["push", WORKSPACE, "--under", under, "--server", target]
    try:
        store = (Path(given) if given else _default_store()) / mark
        store.parent.mkdir(parents=True, exist_ok=True)
        command = [find_program(), "--store", str(store), "--in-process", "--json", "--no-input"]
        message = ["--message", f"files of {directory}"]
        if _run([*command, "commit", "--workspace", WORKSPACE, *message], options).code != 0:
            patterns = [word for one in exclude for word in ("--exclude", one)]
            captured = _run([*command, "init", path, "--workspace", WORKSPACE, "--yes", *patterns], options)
            if captured.code != 0:
                return None
        done = _run([*command, *words, *(["--allow-secrets"] if allow_secrets else [])], options)
    except (AmalgamError, OSError):
        return None
    secrets = [line["path"] for line in done.lines if line.get("type") == "secret"]
    if secrets and done.code != 0:
        message_text = f"{directory} has contents that look like secrets: {', '.join(secrets)}; nothing was sent"
        raise SecretsFoundError(message_text, details={"paths": secrets})
    pushed = [line for line in done.lines if line.get("type") == "pushed"]
    if done.code != 0 or not pushed:
        return None
    return Pushed(f"{under}/{WORKSPACE}", pushed[0]["snapshot"], pushed[0].get("bytes", 0))


@dataclass(frozen=True)
class _Result:
    code: int
    lines: list[dict[str, Any]]


def _run(command: list[str], options: Options) -> _Result:
    # Other users of the machine can see arguments, so that the key is in the environment.
    environment = {**os.environ, "AMALGAM_API_KEY": options.api_key}
    environment.pop("AMALGAM_SERVER", None)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, env=environment, check=False)
    return _Result(done.returncode, [json.loads(line) for line in done.stdout.splitlines() if line])


def _default_store() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(cache) if cache.startswith("/") else Path.home() / ".cache"
    return base / "amalgam" / "uploads"
