"""The examples run against a real server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Server

EXAMPLES = sorted((Path(__file__).resolve().parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(server: Server, example: Path) -> None:
    if example.stem == "time_travel":
        pytest.importorskip("langgraph.graph")
    environment = {**os.environ, "AMALGAM_URL": server.url, "AMALGAM_API_KEY": server.key}
    done = subprocess.run([sys.executable, str(example)], env=environment, capture_output=True, text=True, check=False)
    if example.stem == "sandboxes" and "NotIsolatedError" in done.stderr:
        pytest.skip("this machine cannot isolate processes")
    assert done.returncode == 0, done.stderr
    assert done.stdout
