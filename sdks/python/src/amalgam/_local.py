"""The local store of the user: where it is, and its process, which is started if it does not run."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import subprocess
import sysconfig
import threading
from pathlib import Path
from typing import Any

from .errors import AmalgamError, ConnectError, error_from_body

START_SECONDS = 60.0
URL = "http://amalgam.local"
"""Stands for the local store; nothing looks the name up."""


def default_store() -> str:
    """Returns the directory of the store that the command uses, too."""
    given = os.environ.get("AMALGAM_STORE")
    if given:
        return given
    data = os.environ.get("XDG_DATA_HOME", "")
    base = Path(data) if data.startswith("/") else Path.home() / ".local" / "share"
    return str(base / "amalgam")


def find_program() -> str:
    """Returns the path of the ``amalgam`` program: ``AMALGAM_BIN``, that of this environment, or that of the shell.

    Raises:
        ConnectError: There is none.

    """
    given = os.environ.get("AMALGAM_BIN")
    # A wheel with the program puts it there, whether the environment is activated or not.
    installed = Path(sysconfig.get_path("scripts")) / "amalgam"
    found = given or (str(installed) if os.access(installed, os.X_OK) else shutil.which("amalgam"))
    if found:
        return found
    error = ConnectError("the local store needs the `amalgam` program, and there is none in the PATH")
    error.suggestion = "Install it, name it in AMALGAM_BIN, or pass the URL of a server."
    raise error


def user_name() -> str:
    """Returns the author of what a program does in the local store."""
    try:
        return os.environ.get("AMALGAM_AUTHOR") or getpass.getuser()
    except (KeyError, OSError):
        return f"uid-{os.getuid()}"


class LocalStore:
    """A store of this user, on this machine."""

    def __init__(self, directory: str) -> None:
        self.directory = os.path.abspath(directory)
        self._socket = ""
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"LocalStore({self.directory!r})"

    def socket(self, *, restart: bool = False) -> str:
        """Returns the Unix socket for REST; starts the process of the store if it does not listen there."""
        if self._pid != os.getpid():
            # After a fork: a thread of the parent process may have held the lock, and nothing releases it here.
            self._lock, self._pid = threading.Lock(), os.getpid()
        with self._lock:
            if restart or not self._socket or not os.path.exists(self._socket):
                found = "" if restart else self._recorded()
                self._socket = found or str(self.run_json("connection")[-1]["rest"])
            return self._socket

    def _recorded(self) -> str:
        """The socket that the running process recorded in the directory of the store."""
        try:
            recorded = os.fsdecode((Path(self.directory) / "socket").read_bytes())
        except OSError:
            return ""
        rest = os.path.splitext(recorded)[0] + ".rest"
        return rest if os.path.exists(rest) else ""

    def command(self, *words: str) -> list[str]:
        """Returns a command line for this store."""
        return [find_program(), "--store", self.directory, "--json", "--no-input", *words]

    def run_json(self, *words: str) -> list[dict[str, Any]]:
        """Runs a command of the program, and returns the lines that it prints.

        Raises:
            AmalgamError: The command failed.

        """
        command = self.command(*words)
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=START_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConnectError(f"the `amalgam` program cannot be run: {error}") from error
        return read_result(done.returncode, done.stdout, done.stderr)


def read_result(code: int, output: bytes, errors: bytes) -> list[dict[str, Any]]:
    """Returns the JSON lines of a command.

    Raises:
        AmalgamError: The command failed.

    """
    if code not in (0, 3):
        raise _failure(errors)
    return [json.loads(line) for line in output.splitlines() if line]


def _failure(errors: bytes) -> AmalgamError:
    text = errors.decode("utf-8", "replace").strip()
    try:
        told = json.loads(text.splitlines()[-1])
    except (ValueError, IndexError):
        return ConnectError(text or "the `amalgam` program failed")
    error = error_from_body(
        {"error": {"message": told["message"], "name": "", "details": {"reason": told["reason"]}}}, status=0
    )
    error.suggestion = told.get("hint") or error.suggestion
    return error
