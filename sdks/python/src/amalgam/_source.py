"""A directory of this machine whose files become those of a workspace: what is in it, and which of it looks secret."""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from . import edits
from .errors import InvalidArgumentError

BATCH_BYTES = 4 << 20
BATCH_EDITS = 2000
SCANNED_BYTES = 256 << 10

_NAMES = frozenset(
    [
        ".env",
        ".envrc",
        ".netrc",
        "_netrc",
        ".npmrc",
        ".pypirc",
        ".pgpass",
        ".my.cnf",
        ".htpasswd",
        ".git-credentials",
        "credentials",
        "credentials.json",
        "secrets.yml",
        "secrets.yaml",
        "secrets.json",
        "secrets.toml",
        "kubeconfig",
        "id_rsa",
        "id_dsa",
        "id_ecdsa",
        "id_ed25519",
    ]
)
_EXTENSIONS = frozenset(["pem", "key", "p12", "pfx", "jks", "keystore", "kdbx", "ovpn", "tfstate", "ppk"])
_EXAMPLE = re.compile("example|sample|template|dist")
_SHAPES = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY-----|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bgh[pousr]_[0-9A-Za-z]{36}|\bgithub_pat_\w{50}"
    rb"|\bglpat-[\w-]{20}|\bxox[bpas]-[\w-]{20}|\b[sr]k_live_[0-9A-Za-z]{20}|\bsk-(?:ant|proj)-[\w-]{40}"
    rb"|\bAIza[\w-]{35}|\bnpm_[0-9A-Za-z]{36}|\bpypi-[\w-]{50}|\bhf_[0-9A-Za-z]{34}|\bAGE-SECRET-KEY-1[0-9A-Z]{50}"
)


@dataclass(frozen=True)
class SourceEntry:
    """An entry of the directory."""

    path: str
    """Relative to the directory."""
    host_path: str
    mode: int
    size: int
    kind: str
    """``file``, ``directory`` or ``symlink``."""


def walk(directory: str, exclude: Sequence[str] = ()) -> list[SourceEntry]:
    """Returns the entries of a directory, parents before children. Sockets, pipes and devices are left out.

    Raises:
        InvalidArgumentError: There is no such directory.

    """
    if not os.path.isdir(directory):
        raise InvalidArgumentError(f"source {directory!r}: there is no such directory")
    return list(_walk(directory, "", exclude))


def _walk(directory: str, below: str, exclude: Sequence[str]) -> Iterator[SourceEntry]:
    with os.scandir(directory) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        path = f"{below}{entry.name}"
        if any(fnmatch.fnmatch(entry.name, word) or fnmatch.fnmatch(path, word) for word in exclude):
            continue
        status = entry.stat(follow_symlinks=False)
        mode = stat.S_IMODE(status.st_mode)
        if stat.S_ISDIR(status.st_mode):
            yield SourceEntry(path, entry.path, mode, 0, "directory")
            yield from _walk(entry.path, f"{path}/", exclude)
        elif stat.S_ISREG(status.st_mode):
            yield SourceEntry(path, entry.path, mode, status.st_size, "file")
        elif stat.S_ISLNK(status.st_mode):
            yield SourceEntry(path, entry.path, mode, 0, "symlink")


def batches(entries: Sequence[SourceEntry]) -> Iterator[list[edits.Edit] | SourceEntry]:
    """Yields edits in groups that one call can carry, and large files alone."""
    group: list[edits.Edit] = []
    size = 0
    for entry in entries:
        if entry.kind == "file" and entry.size > BATCH_BYTES:
            yield entry
            continue
        edit, weight = _edit(entry)
        if group and (size + weight > BATCH_BYTES or len(group) >= BATCH_EDITS):
            yield group
            group, size = [], 0
        group.append(edit)
        size += weight
    if group:
        yield group


def _edit(entry: SourceEntry) -> tuple[edits.Edit, int]:
    if entry.kind == "directory":
        return edits.mkdir(entry.path, mode=entry.mode), 200
    if entry.kind == "symlink":
        return edits.symlink(entry.path, os.readlink(entry.host_path)), 200
    with open(entry.host_path, "rb") as file:
        data = file.read()
    return edits.write(entry.path, data, mode=entry.mode), len(data) * 4 // 3 + 200


def likely_secrets(entries: Sequence[SourceEntry]) -> list[str]:
    """Returns the paths whose names or contents look like credentials."""
    return [entry.path for entry in entries if entry.kind == "file" and _looks_secret(entry)]


def _looks_secret(entry: SourceEntry) -> bool:
    *folders, name = entry.path.lower().split("/")
    is_example = _EXAMPLE.search(name) is not None
    stem, _, extension = name.rpartition(".")
    if name in _NAMES or (stem and extension in _EXTENSIONS):
        return True
    if not is_example and (name.startswith(".env.") or (name.startswith("service-account") and extension == "json")):
        return True
    if folders and (folders[-1], name) in ((".docker", "config.json"), (".kube", "config")):
        return True
    try:
        with open(entry.host_path, "rb") as file:
            return _SHAPES.search(file.read(SCANNED_BYTES)) is not None
    except OSError:
        return False
