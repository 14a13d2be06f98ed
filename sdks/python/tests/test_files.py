"""Files of a workspace, through the blocking client and a real server."""

from __future__ import annotations

import io
import os
from pathlib import PurePosixPath

import pytest

from amalgam import Amalgam, Workspace, edits, errors


def test_a_file_that_was_written_is_read_with_the_same_bytes(ws: Workspace) -> None:
    data = bytes(range(256)) * 5000
    written = ws.files.write("src/data.bin", data, mode=0o755)
    assert (written.path, written.size) == ("src/data.bin", len(data))
    assert ws.files.read("src/data.bin") == data
    found = ws.files.stat(PurePosixPath("src/data.bin"))
    assert (found.is_file, found.size, found.mode, found.etag) == (True, len(data), 0o755, written.etag)
    assert b"".join(ws.files.stream("src/data.bin")) == data


def test_a_file_object_is_sent_as_a_stream_from_where_it_stands(ws: Workspace) -> None:
    source = io.BytesIO(b"head" + b"x" * (3 << 20))
    source.seek(4)
    assert ws.files.write("big", source).size == 3 << 20


@pytest.mark.parametrize(
    ("offset", "length", "expected"),
    [(0, 3, b"012"), (7, None, b"789"), (8, 10, b"89"), (10, 5, b""), (50, None, b""), (3, 0, b"")],
)
def test_a_range_of_a_file_is_read(ws: Workspace, offset: int, length: int | None, expected: bytes) -> None:
    ws.files.write("digits", "0123456789")
    assert ws.files.read("digits", offset=offset, length=length) == expected
    assert b"".join(ws.files.stream("digits", offset=offset, length=length)) == expected


def test_an_empty_file_and_text_in_any_encoding_are_read(ws: Workspace) -> None:
    ws.files.write("empty", b"")
    assert ws.files.read("empty") == b""
    assert ws.files.read("empty", offset=0, length=1) == b""
    ws.files.write("latin", "Käse\r\n", encoding="latin-1")
    assert ws.files.read_text("latin", encoding="latin-1") == "Käse\r\n"


@pytest.mark.parametrize(
    "path",
    ["with space", "50%", "a?b#c", "Käse/\u2028line", "back\\slash", "a+b&c=d", "\udcff\udcfe", "~/@x", "%2e%2e"],
)
def test_any_name_survives_every_kind_of_call(ws: Workspace, path: str) -> None:
    ws.files.write(path, "one\n")
    assert ws.files.stat(path).path == path
    assert ws.files.exists(path)
    assert path in [file.path for file in ws.files.list(recursive=True)]
    ws.files.edit(path, "one", "two")
    assert [(match.path, match.text) for match in ws.files.grep("two")] == [(path, "two")]
    assert path in [change.path for change in ws.status().changes]
    snapshot = ws.commit("any name").snapshot
    assert snapshot is not None
    assert path in [version.path for version in ws.history.versions(path)]
    assert ws.history.blame(path)[0].lines == ("two",)
    assert ws.files.rename(path, "plain").path == "plain"
    assert ws.files.read(path, revision=snapshot) == b"two\n"
    ws.files.remove("plain")
    assert not ws.files.exists("plain")


@pytest.mark.parametrize("path", ["../keys", "a/../b", "/etc", "a//b", "a/", "./a", "..", ""])
def test_a_path_that_could_lead_elsewhere_is_refused_before_it_is_sent(path: str) -> None:
    # Port 9 is not open: a request would be an error of another kind.
    client = Amalgam("http://127.0.0.1:9", retries=0)
    workspace = client.workspaces._named("w")
    for call in (workspace.files.read, workspace.files.remove):
        with pytest.raises(errors.InvalidArgumentError) as caught:
            call(path)
        assert isinstance(caught.value, ValueError)
    with pytest.raises(errors.ConnectError):
        client.workspaces.get("..")


def test_an_edit_replaces_exactly_one_place(ws: Workspace) -> None:
    ws.files.write("a.py", "x = 1\ny = 1\n")
    assert ws.files.edit("a.py", "x = 1", "x = 2").replacements == 1
    with pytest.raises(errors.NotUniqueError) as caught:
        ws.files.edit("a.py", "=", "==")
    assert caught.value.details["count"] == "2"
    assert caught.value.suggestion
    assert ws.files.edit("a.py", "=", "==", replace_all=True).replacements == 2
    assert ws.files.read_text("a.py") == "x == 2\ny == 1\n"
    ws.files.patch("a.py", "@@ -1,2 +1,2 @@\n-x == 2\n+x == 3\n y == 1\n")
    assert ws.files.read_text("a.py") == "x == 3\ny == 1\n"
    with pytest.raises(errors.PatchFailedError):
        ws.files.patch("a.py", "@@ -1 +1 @@\n-nothing\n+something\n")


def test_conditions_protect_a_file_that_changed(ws: Workspace) -> None:
    first = ws.files.write("a", "1", if_absent=True)
    with pytest.raises(FileExistsError):
        ws.files.write("a", "2", if_absent=True)
    second = ws.files.write("a", "2", if_match=first.etag)
    with pytest.raises(errors.StaleFileError) as caught:
        ws.files.write("a", "3", if_match=first.etag)
    assert (caught.value.name, caught.value.status) == ("MOVED", 412)
    with pytest.raises(errors.StaleFileError):
        ws.files.remove("a", if_match=first.etag)
    ws.files.remove("a", if_match=second.etag)


def test_directories_symlinks_and_attributes(ws: Workspace) -> None:
    assert ws.files.mkdir("a/b/c").is_dir
    ws.files.mkdir("a/b/c")
    with pytest.raises(FileExistsError):
        ws.files.mkdir("a/b/c", parents=False)
    link = ws.files.symlink("a/link", "../b\\c")
    assert (link.is_symlink, link.link_target) == (True, "../b\\c")
    ws.files.write("a/f", "1")
    changed = ws.files.set_attributes("a/f", mode=0o600, xattrs={"user.k": b"v"})
    assert (changed.mode, ws.files.stat("a/f").xattrs) == (0o600, ("user.k",))
    with pytest.raises(errors.AmalgamError, match="not empty"):
        ws.files.remove("a")
    ws.files.remove("a", recursive=True)
    ws.files.remove("a", missing_ok=True)
    with pytest.raises(FileNotFoundError):
        ws.files.remove("a")


def test_a_list_pages_by_itself(ws: Workspace) -> None:
    names = [f"f{number:04}" for number in range(1203)]
    ws.files.apply([edits.write(name, "") for name in names])
    assert [file.path for file in ws.files.list()] == names
    assert len(list(ws.files.glob("f0*"))) == 1000
    assert len(list(ws.files.glob("f*", limit=7))) == 7


def test_edits_are_made_all_or_none(ws: Workspace) -> None:
    ws.files.write("old", "1")
    done = ws.files.apply(
        [
            edits.write("a/new", b"\x00\xff"),
            edits.replace("old", "1", "2"),
            edits.rename("old", "b/moved"),
            edits.symlink("l", "a/new"),
            edits.mkdir("d"),
            edits.attributes("d", mode=0o700),
            edits.state("k", {"n": 1}),
            edits.write("a/new", "!", offset=2),
        ]
    )
    # An edit whose entry is gone at the end has none.
    assert [file.path for file in done][:3] == ["a/new", "", "b/moved"]
    assert (ws.files.read("a/new"), ws.files.read("b/moved")) == (b"\x00\xff!", b"2")
    assert ws.state.get("k") == {"n": 1}
    with pytest.raises(FileNotFoundError):
        ws.files.apply([edits.write("c", "1"), edits.remove("missing")])
    assert not ws.files.exists("c")


def test_a_search_filters_by_path_and_glob(ws: Workspace) -> None:
    ws.files.write("src/a.py", "needle\nNeedle\n")
    ws.files.write("src/a.txt", "needle\n")
    ws.files.write("other/a.py", "needle.*\n")
    found = [(match.path, match.line) for match in ws.files.grep("^needle$", paths=["src"], globs=["*.py"])]
    assert found == [("src/a.py", 1)]
    assert len(list(ws.files.grep("NEEDLE", ignore_case=True))) == 4
    assert [match.path for match in ws.files.grep("needle.*", fixed=True)] == ["other/a.py"]
    with pytest.raises(errors.InvalidArgumentError):
        list(ws.files.grep("("))


def test_a_watch_reports_changes(ws: Workspace) -> None:
    watch = ws.files.watch()
    assert next(watch) == []
    ws.files.write("seen", "1")
    assert "seen" in [change.path for change in next(watch)]
    watch.close()


def test_a_missing_workspace_is_not_a_missing_file(client: Amalgam, ws: Workspace) -> None:
    assert not ws.files.exists("nothing")
    with pytest.raises(errors.NotFoundError):
        client.workspaces._named("no-such-workspace").files.exists("nothing")


def test_more_paths_than_one_call_takes_have_their_metadata_in_order(ws: Workspace) -> None:
    ws.files.write("a", "1")
    ws.files.write("b", "22")
    found = ws.files.stat_many(["a", *(f"missing-{number}" for number in range(1500)), "b"])
    assert [file and file.size for file in found] == [1, *[None] * 1500, 2]
    assert ws.files.stat_many([]) == []


def test_state_values_are_json_and_page(ws: Workspace) -> None:
    first = ws.state.set("plan/1", {"done": [1, None, "ä"]})
    assert ws.state.get("plan/1") == {"done": [1, None, "ä"]}
    assert ws.state.get("nothing", "default") == "default"
    with pytest.raises(FileExistsError):
        ws.state.set("plan/1", 1, if_absent=True)
    ws.state.set("plan/1", 2, if_match=first.etag)
    with pytest.raises(errors.StaleFileError):
        ws.state.set("plan/1", 3, if_match=first.etag)
    for key in ("..", ".", "a b?c", "x/../y"):
        ws.state.set(key, key)
        assert ws.state.get(key) == key
    assert {value.key for value in ws.state.list()} == {"plan/1", "..", ".", "a b?c", "x/../y"}
    assert [value.value for value in ws.state.list("plan/")] == [2]
    ws.state.delete("plan/1")
    ws.state.delete("plan/1", missing_ok=True)
    with pytest.raises(errors.NotFoundError):
        ws.state.delete("plan/1")


def test_large_contents_are_sent_in_pieces_and_arrive_whole(ws: Workspace) -> None:
    whole = os.urandom(4096) * 1500 + b"end"
    contents: list[bytes | bytearray | memoryview] = [whole, bytearray(whole), memoryview(whole)]
    for number, data in enumerate(contents):
        ws.files.write(f"large-{number}", data)
        assert ws.files.read(f"large-{number}") == whole
