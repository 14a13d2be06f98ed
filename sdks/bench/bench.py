"""Measures the Python SDK beside its bars: ``make bench-sdks``. ``--quick`` runs few rounds, to see that it works."""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from amalgam import Amalgam, Workspace, edits

ROWS: list[dict[str, Any]] = []


def row(name: str, value: float, unit: str, bar: float, *, at_least: bool = False) -> None:
    """Prints a figure beside its bar."""
    is_met = value >= bar if at_least else value <= bar
    sign = ">=" if at_least else "<="
    text = f"{value:,.2f} {unit}"
    ROWS.append({"name": name, "value": value, "unit": unit, "bar": f"{sign} {bar:g}", "met": is_met})
    print(f"{name:58} {text:>18}   {sign} {bar:g} {unit}   {'met' if is_met else 'missed'}", flush=True)


def timed(function: Callable[[], Any]) -> float:
    """Returns the seconds that a call takes."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def edit_and_commit(ws: Workspace, rounds: int) -> None:
    """An edit of a file and a commit of it, one after another."""
    ws.files.write("a.py", "value = 0\n")
    ws.commit("begin")
    seconds = []
    for number in range(rounds):
        began = time.perf_counter()
        ws.files.edit("a.py", f"value = {number}\n", f"value = {number + 1}\n")
        ws.commit("step", buffered=True)
        seconds.append(time.perf_counter() - began)
    row("files.edit + commit, Python sync, local, p50", statistics.median(seconds) * 1000, "ms", 2)


def search_loop(ws: Workspace, rounds: int) -> None:
    """Edits, a commit and the difference in one call; the rate for each second of the client's processor time."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    began = time.perf_counter()
    for number in range(rounds):
        ws.commit_edits([edits.write("state.txt", f"{number}\n")], buffered=True, with_changes=True)
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    row("commit_edits with changes, states/s of one core of client", rounds / processor, "/s", 1000, at_least=True)
    print(f"{'  the same by the clock':58} {rounds / wall:>15,.0f} /s")


def forks(ws: Workspace, rounds: int) -> None:
    """One hundred forks in one call."""
    row("fork(count=100)", min(timed(lambda: ws.fork(count=100)) for _ in range(rounds)) * 1000, "ms", 20)


def explore(ws: Workspace, rounds: int) -> None:
    """Eight attempts that do nothing."""

    def nothing(_: Workspace) -> int:
        return 0

    seconds = [timed(lambda: ws.explore(count=8, run=nothing, score=lambda _, __: 0.0)) for _ in range(rounds)]
    row("explore(count=8) with a run that does nothing", min(seconds) * 1000, "ms", 100)


def first_call(store: str, rounds: int) -> None:
    """A new interpreter, its import and its first call to a running process."""
    program = f"import amalgam; next(amalgam.Amalgam(store={store!r}).workspaces.list(), None)"
    bare = min(timed(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True)) for _ in range(rounds))
    full = min(timed(lambda: subprocess.run([sys.executable, "-c", program], check=True)) for _ in range(rounds))
    row("import amalgam + first call, without the interpreter", (full - bare) * 1000, "ms", 300)


def large_file(ws: Workspace, megabytes: int) -> None:
    """A large file of random bytes, written and read."""
    data = os.urandom(megabytes << 20)
    row(f"write of a {megabytes} MB file", megabytes / timed(lambda: ws.files.write("big", data)), "MB/s", 150, at_least=True)
    row(f"read of a {megabytes} MB file", megabytes / timed(lambda: ws.files.read("big")), "MB/s", 200, at_least=True)


def langgraph(client: Amalgam, directory: str, rounds: int, checkpoints: int) -> None:
    """The LangGraph saver beside SqliteSaver, in one run."""
    try:
        from langgraph.checkpoint.base import empty_checkpoint
        from langgraph.checkpoint.sqlite import SqliteSaver

        from amalgam.integrations.langgraph import AmalgamSaver
    except ImportError as error:
        print(f"the LangGraph rows are left out: {error}")
        return

    def put_and_get(saver: Any, thread: str, state: str, number: int) -> None:
        checkpoint = empty_checkpoint()
        version = f"{number:032}"
        checkpoint["channel_values"] = {"state": state}
        checkpoint["channel_versions"] = {"state": version}
        config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
        saver.put(config, checkpoint, {"source": "loop", "step": number}, {"state": version})
        assert saver.get_tuple(config).checkpoint["id"] == checkpoint["id"]

    def median(saver: Any) -> float:
        text = "x" * 10_000
        return statistics.median(timed(lambda n=n: put_and_get(saver, "speed", text, n)) for n in range(rounds))

    database = os.path.join(directory, "checkpoints.db")
    with SqliteSaver.from_conn_string(database) as sqlite:
        ours, theirs = median(AmalgamSaver(client)), median(sqlite)
        print(f"{'  put + get of a 10 KB state: Amalgam, SqliteSaver':58} {ours * 1000:.2f} ms, {theirs * 1000:.2f} ms")
        row("put + get of a 10 KB state, beside SqliteSaver", ours / theirs, "x", 3)
        state = "\n".join(f"line {number} of a state" for number in range(4_000))
        saver = AmalgamSaver(client, prefix="size", buffered=True)
        size_before = client_size(client)
        for number in range(checkpoints):
            state += f"\nstep {number}"
            put_and_get(saver, "size", state, number)
            put_and_get(sqlite, "size", state, number)
    ours_bytes = client_size(client) - size_before
    theirs_bytes = sum(path.stat().st_size for path in Path(directory).glob("checkpoints.db*"))
    name = f"store after {checkpoints:,} checkpoints of a growing 100 KB state"
    row(name, ours_bytes / theirs_bytes, "x of SqliteSaver", 0.2)


def client_size(client: Amalgam) -> int:
    """Returns the disk space of the store."""
    return client.projects.usage("default").disk_bytes


def main() -> int:
    """Runs all measurements."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    is_quick = options.quick
    with tempfile.TemporaryDirectory() as directory:
        store = os.path.join(directory, "store")
        with Amalgam(store=store) as client:
            try:
                edit_and_commit(client.workspaces.create("edits"), 20 if is_quick else 500)
                ws = client.workspaces.create("search")
                search_loop(ws, 50 if is_quick else 5_000)
                forks(ws, 2 if is_quick else 10)
                explore(ws, 2 if is_quick else 10)
                first_call(store, 2 if is_quick else 10)
                large_file(client.workspaces.create("large"), 16 if is_quick else 256)
                langgraph(client, directory, 10 if is_quick else 200, 20 if is_quick else 10_000)
            finally:
                program = os.environ.get("AMALGAM_BIN", "amalgam")
                subprocess.run([program, "--store", store, "stop", "--force"], check=False, capture_output=True)
    if options.json:
        # The measurements of TypeScript are added to it.
        Path(options.json).parent.mkdir(parents=True, exist_ok=True)
        Path(options.json).write_text(json.dumps({"quick": is_quick, "rows": ROWS}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
