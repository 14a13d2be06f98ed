"""Edits for ``ws.files.apply`` and ``ws.commit_edits``: many changes in one call, all or none."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ._text import escape, escape_path, time_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ._text import PathLike

__all__ = [
    "Edit",
    "attributes",
    "mkdir",
    "patch",
    "remove",
    "rename",
    "replace",
    "state",
    "symlink",
    "unset_state",
    "write",
]


@dataclass(frozen=True, slots=True)
class Edit:
    """One edit. The functions of this module make them."""

    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Returns the ``FileEdit``."""
        return {self.kind: dict(self.fields)}


def _edit(kind: str, **fields: Any) -> Edit:
    return Edit(
        kind,
        {name: value for name, value in fields.items() if value is not None and value is not False},
    )


def write(
    path: PathLike,
    data: str | bytes,
    *,
    mode: int | None = None,
    if_match: str | None = None,
    if_absent: bool = False,
    offset: int | None = None,
    parents: bool = True,
) -> Edit:
    """Writes a file; with ``offset`` only the bytes from there on."""
    text = data if isinstance(data, str) else None
    return _edit(
        "write",
        path=escape_path(path),
        text=text,
        data=None if isinstance(data, str) else base64.b64encode(data).decode(),
        mode=mode,
        ifMatch=if_match,
        ifAbsent=if_absent,
        offset=offset,
        createParents=parents,
    )


def replace(path: PathLike, old: str, new: str, *, replace_all: bool = False, if_match: str | None = None) -> Edit:
    """Replaces a text that the file has exactly once, or all places of it."""
    return _edit(
        "replace",
        path=escape_path(path),
        oldText=old,
        newText=new,
        replaceAll=replace_all,
        ifMatch=if_match,
    )


def patch(path: PathLike, patch: str, *, if_match: str | None = None) -> Edit:
    """Applies a unified patch to one file."""
    return _edit("patch", path=escape_path(path), patch=patch, ifMatch=if_match)


def mkdir(path: PathLike, *, mode: int | None = None, parents: bool = True) -> Edit:
    """Makes a directory; with ``parents`` also those above it, and one that exists is accepted."""
    return _edit("makeDirectory", path=escape_path(path), mode=mode, parents=parents)


def remove(
    path: PathLike,
    *,
    recursive: bool = False,
    missing_ok: bool = False,
    if_match: str | None = None,
) -> Edit:
    """Removes an entry."""
    return _edit(
        "remove",
        path=escape_path(path),
        recursive=recursive,
        allowMissing=missing_ok,
        ifMatch=if_match,
    )


def rename(
    path: PathLike,
    new_path: PathLike,
    *,
    replace: bool = True,
    parents: bool = True,
    if_match: str | None = None,
) -> Edit:
    """Gives an entry another path."""
    return _edit(
        "rename",
        path=escape_path(path),
        newPath=escape_path(new_path),
        noReplace=not replace,
        createParents=parents,
        ifMatch=if_match,
    )


def symlink(path: PathLike, target: str, *, parents: bool = True) -> Edit:
    """Makes a symlink at ``path`` that points to ``target``."""
    return _edit("createSymlink", path=escape_path(path), target=escape(target), createParents=parents)


def attributes(
    path: PathLike,
    *,
    mode: int | None = None,
    modify_time: datetime | None = None,
    xattrs: Mapping[str, bytes | None] | None = None,
    if_match: str | None = None,
) -> Edit:
    """Sets attributes of an entry. An extended attribute with the value ``None`` is removed."""
    return _edit("setAttributes", **attribute_fields(path, mode, modify_time, xattrs, if_match))


def attribute_fields(
    path: PathLike,
    mode: int | None,
    modify_time: datetime | None,
    xattrs: Mapping[str, bytes | None] | None,
    if_match: str | None,
) -> dict[str, Any]:
    """Returns the fields of an ``AttributesEdit``."""
    given = (xattrs or {}).items()
    fields: dict[str, Any] = {
        "path": escape_path(path),
        "mode": mode,
        "modifyTime": time_text(modify_time) if modify_time else None,
        "setXattrs": {name: base64.b64encode(value).decode() for name, value in given if value is not None},
        "removeXattrs": [name for name, value in given if value is None],
        "ifMatch": if_match,
    }
    return {name: value for name, value in fields.items() if value is not None}


def state(key: str, value: Any, *, if_match: str | None = None, if_absent: bool = False) -> Edit:
    """Sets a state value to any value that JSON has. ``amalgam.edits.unset_state`` removes one."""
    return _edit("setState", key=key, json=json.dumps(value), ifMatch=if_match, ifAbsent=if_absent)


def unset_state(key: str, *, missing_ok: bool = False, if_match: str | None = None) -> Edit:
    """Removes a state value."""
    return _edit("setState", key=key, allowMissing=missing_ok, ifMatch=if_match)
