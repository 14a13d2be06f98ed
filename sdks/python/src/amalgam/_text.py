r"""Conversion between Python values and the text forms of the API: paths, names, times.

A path of a tree is bytes. Python has it as ``str`` with the surrogate escapes of PEP 383, as ``os`` does; JSON has it
as text in which a byte that is not UTF-8 is ``\xHH`` and a backslash is ``\\``; a URL has its bytes percent-encoded.
"""

from __future__ import annotations

import os
import re
from datetime import datetime, timezone
from urllib.parse import quote, quote_from_bytes

from .errors import InvalidArgumentError

PathLike = str | bytes | os.PathLike[str]
"""A path inside a tree, relative to its root."""

_ESCAPE = re.compile(rb"\\(\\|x[0-9a-f]{2})")
_SURROGATE = re.compile("[\udc80-\udcff]")
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)$")


def path_text(path: PathLike) -> str:
    """Returns a path as ``str``, after a check that it is one of a tree."""
    text = path.decode("utf-8", "surrogateescape") if isinstance(path, bytes) else os.fspath(path)
    if os.sep != "/":
        text = text.replace(os.sep, "/")
    if text in ("", "."):
        return ""
    if any(name in ("", ".", "..") for name in text.split("/")):
        raise InvalidArgumentError(
            f"path {text!r}: a path is relative to the root of the workspace, without `.` and `..`, "
            "and without leading, trailing or double slashes"
        )
    return text


def escape(text: str) -> str:
    """Returns the text that JSON has for a path, or for a symlink's target."""
    if "\\" in text:
        text = text.replace("\\", "\\\\")
    return _SURROGATE.sub(lambda found: f"\\x{ord(found.group()) - 0xDC00:02x}", text)


def data_text(data: str | bytes) -> str:
    """Returns bytes as ``str`` with surrogate escapes, for ``escape``."""
    return data.decode("utf-8", "surrogateescape") if isinstance(data, bytes) else data


def escape_path(path: PathLike) -> str:
    """Returns the text that JSON has for a path, after a check that it is one of a tree."""
    return escape(path_text(path))


def unescape(text: str) -> str:
    """Returns the path of a text in JSON."""
    if "\\" not in text:
        return text
    return unescape_bytes(text).decode("utf-8", "surrogateescape")


def unescape_bytes(text: str) -> bytes:
    """Returns the bytes of a text in JSON."""

    def byte(found: re.Match[bytes]) -> bytes:
        word = found.group(1)
        return b"\\" if word == b"\\" else bytes([int(word[1:], 16)])

    return _ESCAPE.sub(byte, text.encode())


def url_path(path: PathLike) -> str:
    """Returns the part of a URL for a file's path."""
    text = path_text(path)
    if not text:
        raise InvalidArgumentError("the path is empty: it names the root directory, not a file")
    return quote_from_bytes(text.encode("utf-8", "surrogateescape"), safe="/")


def segment(name: str) -> str:
    """Returns one part of a URL's path for a name. Slashes are encoded, and ``.`` cannot lead elsewhere."""
    if not name:
        raise InvalidArgumentError("a name is empty")
    return name.replace(".", "%2E") if name in (".", "..") else quote(name, safe="@~")


def short(name: str) -> str:
    """Returns a resource name without its collection: ``a/b`` of ``workspaces/a/b``."""
    return name.partition("/")[2]


def time_of(text: str | None) -> datetime | None:
    """Returns the time of a JSON timestamp, with microseconds; the API has nanoseconds."""
    found = _TIME.match(text) if text else None
    if found is None:
        return None
    whole, fraction, zone = found.groups()
    moment = f"{whole}.{(fraction or '0')[:6]:<06}{'+00:00' if zone == 'Z' else zone}"
    return datetime.fromisoformat(moment)


def time_text(moment: datetime) -> str:
    """Returns the JSON timestamp of a time. A time without a zone is local."""
    return moment.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")
