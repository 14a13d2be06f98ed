"""The guides of docs/guides: their commands and programs run, and print what is shown."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from amalgam import errors

from .conftest import REPOSITORY, Server

GUIDES = sorted(path for path in (REPOSITORY / "docs" / "guides").glob("*.md") if path.stem != "README")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
TYPESCRIPT = REPOSITORY / "sdks" / "typescript" / "dist" / "src" / "index.js"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


class Story:
    """A guide as one script of bash, and the output that it shows for each part."""

    def __init__(self, text: str, place: Path) -> None:
        self.parts: list[tuple[str, list[str]]] = []
        python: list[str] = []
        for language, body in BLOCK.findall(text):
            if language == "console":
                self._add_console(body)
            elif language == "python":
                python.append(body)
            elif language == "ts" and TYPESCRIPT.exists() and shutil.which("node"):
                file = place / f"guide-{len(self.parts)}.mjs"
                file.write_text(body.replace("@amalgam/sdk", TYPESCRIPT.as_uri()))
                self.parts.append((f"node {file}", ["..."]))
            elif language == "rust":
                example = (REPOSITORY / "engine" / "examples" / "tour.rs").read_text()
                assert body in example, "the guide shows lines that the example does not have"
        if python:
            file = place / "guide.py"
            file.write_text("\n".join(python))
            self.parts.append((f"{sys.executable} {file}", ["..."]))

    def _add_console(self, body: str) -> None:
        for line in body.splitlines():
            if line.startswith("$ "):
                self.parts.append((line[2:], []))
            else:
                self.parts[-1][1].append(line)

    def script(self) -> str:
        lines = ["set -e"]
        for number, (command, _) in enumerate(self.parts):
            lines += [f"printf '\\001{number}\\n'", command]
        return "\n".join(lines)

    def check(self, output: str) -> None:
        printed = {int(part.partition("\n")[0]): part.partition("\n")[2] for part in output.split("\x01")[1:]}
        for number, (command, shown) in enumerate(self.parts):
            assert number in printed, f"the script ended before `{command}`:\n{output}"
            if shown:
                pattern = re.escape("\n".join(shown)).replace(re.escape("..."), ".*")
                assert re.fullmatch(pattern + r"\s*", printed[number], re.S), f"{command}\n{printed[number]}"


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_the_commands_and_programs_of_a_guide_run(
    program: str, guide: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = guide.read_text().replace("127.0.0.1:8080", f"127.0.0.1:{free_port()}")
    story = Story(text, tmp_path)
    home, runtime = tmp_path / "home", tmp_path / "run"
    for directory in (home, runtime):
        directory.mkdir(mode=0o700)
    environment = {
        "PATH": f"{Path(program).parent}:{os.environ['PATH']}",
        "HOME": str(home),
        "XDG_RUNTIME_DIR": str(runtime),
        "AMALGAM_BIN": program,
        "AMALGAM_STORE": str(home / "store"),
        "LANG": "C.UTF-8",
    }
    server = None
    if guide.stem == "framework":
        # The program needs a server for sandboxes, whose sockets need a short path.
        server = Server(program, tmp_path_factory.mktemp("g") / "data")
        server.start()
        with server.client() as client:
            try:
                client.sandboxes.create().delete()
            except errors.NotIsolatedError as error:
                server.stop()
                pytest.skip(error.message)
        environment |= {"AMALGAM_URL": server.url, "AMALGAM_API_KEY": server.key}
    output = tmp_path / "output"
    try:
        with output.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", story.script()],
                cwd=home,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(timeout=90)
            finally:
                # Ends processes that a failed script has left behind.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
    finally:
        for store in ("store", "other"):
            line = [program, "--store", str(home / store), "stop"]
            subprocess.run(line, env=environment, capture_output=True, check=False)
        if server is not None:
            server.stop()
    printed = output.read_text(errors="replace")
    assert code == 0, printed
    story.check(printed)
