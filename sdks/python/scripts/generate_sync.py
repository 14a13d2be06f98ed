"""Writes ``src/amalgam/_sync`` from ``src/amalgam/_async``: the same code without async and await.

``generate_sync.py`` writes the files, ``generate_sync.py --check`` fails if they are not current. ``transport.py`` and
``parallel.py`` are written by hand on both sides.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "amalgam"
BY_HAND = {"transport.py", "parallel.py"}
HEADER = "# Generated from _async/{name} by scripts/generate_sync.py; do not edit.\n"
RULES = [
    (r"The client for asyncio\. .*", "The blocking client, generated from ``_async``." + '"""'),
    (r"\basync (def|for|with)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bAwaitable\[([^\[\]]+)\]", r"\1"),
    (r"\bAwaitable, ", ""),
    (r"\bAsyncGenerator\[(.+), None\]", r"Generator[\1, None, None]"),
    (r"\baclosing\b", "closing"),
    (r"\b__aenter__\b", "__enter__"),
    (r"\b__aexit__\b", "__exit__"),
    (r"\b__aiter__\b", "__iter__"),
    (r"\bAsync(?=[A-Z])", ""),
]


def sync_text(name: str, text: str) -> str:
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text)
    text = HEADER.format(name=name) + text
    path = str(PACKAGE / "_sync" / name)
    ruff = [sys.executable, "-m", "ruff"]
    sort = [
        *ruff,
        "check",
        "--select",
        "I",
        "--fix",
        "--quiet",
        "--stdin-filename",
        path,
        "-",
    ]
    text = subprocess.run(sort, input=text, text=True, capture_output=True, check=True).stdout
    layout = [*ruff, "format", "--stdin-filename", path, "-"]
    return subprocess.run(layout, input=text, text=True, capture_output=True, check=True).stdout


def main() -> int:
    is_check = "--check" in sys.argv[1:]
    stale = []
    for source in sorted((PACKAGE / "_async").glob("*.py")):
        if source.name in BY_HAND:
            continue
        target = PACKAGE / "_sync" / source.name
        text = sync_text(source.name, source.read_text())
        if target.exists() and target.read_text() == text:
            continue
        stale.append(source.name)
        if not is_check:
            target.write_text(text)
    if is_check and stale:
        print(f"not current, run scripts/generate_sync.py: {', '.join(stale)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
