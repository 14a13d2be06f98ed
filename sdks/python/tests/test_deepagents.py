"""The ``deepagents`` backend, alone and as the file system of a real deep agent with a scripted model."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("deepagents")

from deepagents import create_deep_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

from amalgam import Workspace
from amalgam.integrations.deepagents import AmalgamBackend


def test_files_are_written_read_edited_and_removed(ws: Workspace) -> None:
    backend = AmalgamBackend(ws)
    assert backend.write("/src/a.py", "one\ntwo\nthree\n").path == "/src/a.py"
    read = backend.read("/src/a.py", offset=1, limit=1)
    assert read.file_data is not None
    assert (read.file_data["content"].rstrip("\n"), read.start_line, read.next_offset) == ("two", 2, 2)
    assert backend.edit("/src/a.py", "two", "2").occurrences == 1
    assert "replace_all" in (backend.edit("/src/a.py", "e", "E").error or "")
    assert backend.edit("/src/a.py", "e", "E", replace_all=True).occurrences == 3
    assert ws.files.read_text("src/a.py") == "onE\n2\nthrEE\n"
    assert backend.write("/src/a.py", "again").error is None
    assert backend.delete("/src").path == "/src"
    assert backend.read("/src/a.py").error
    assert backend.delete("/src").error
    assert backend.read("relative").error
    assert backend.ls("/nothing").error


def test_directories_are_listed_and_searched(ws: Workspace) -> None:
    backend = AmalgamBackend(ws)
    for path in ("top.py", "src/a.py", "src/deep/b.py", "src/c.txt"):
        ws.files.write(path, f"needle.* in {path}\n")
    entries = backend.ls("/src").entries
    assert entries is not None
    assert [(entry["path"], entry["is_dir"]) for entry in entries] == [
        ("/src/a.py", False),
        ("/src/c.txt", False),
        ("/src/deep", True),
    ]

    def globbed(pattern: str, path: str | None = None) -> list[str]:
        return sorted(match["path"] for match in backend.glob(pattern, path).matches or [])

    assert globbed("*.py") == ["/src/a.py", "/src/deep/b.py", "/top.py"]
    assert globbed("/*.py") == ["/top.py"]
    assert globbed("src/**/*.py") == ["/src/a.py", "/src/deep/b.py"]
    assert globbed("deep/*.py", "/src") == ["/src/deep/b.py"]
    assert globbed("*.py", "/src/deep") == ["/src/deep/b.py"]
    assert backend.glob("../*").error
    found = backend.grep("needle.*", "/src", "*.py")
    assert [match["path"] for match in found.matches or []] == ["/src/a.py", "/src/deep/b.py"]
    first = backend.grep("needle", max_count=2)
    assert (len(first.matches or []), first.truncated) == (2, True)
    assert not backend.grep("needle", max_count=4).truncated


def test_many_files_are_moved_with_a_result_for_each(ws: Workspace) -> None:
    backend = AmalgamBackend(ws)
    uploaded = backend.upload_files([("/a", b"\x00\xff"), ("no", b"")])
    assert [(one.path, one.error) for one in uploaded] == [("/a", None), ("no", "invalid_path")]
    downloaded = backend.download_files(["/a", "/missing", "/"])
    assert [(one.content, one.error) for one in downloaded] == [
        (b"\x00\xff", None),
        (None, "file_not_found"),
        (None, "is_directory"),
    ]
    read = backend.read("/a")
    assert read.file_data is not None
    assert read.file_data["encoding"] == "base64"


def test_a_deep_agent_works_on_a_workspace(ws: Workspace) -> None:
    class Scripted(GenericFakeChatModel):
        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            return self

    def call(name: str, **arguments: Any) -> AIMessage:
        return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": name}])

    script = [
        call("write_file", file_path="/plan.md", content="step one\n"),
        call("edit_file", file_path="/plan.md", old_string="one", new_string="two"),
        AIMessage("done"),
    ]
    agent = create_deep_agent(model=Scripted(messages=iter(script)), backend=AmalgamBackend(ws))
    agent.invoke({"messages": [{"role": "user", "content": "plan"}]})
    assert ws.files.read_text("plan.md") == "step two\n"
    assert [change.path for change in ws.status().changes] == ["plan.md"]
