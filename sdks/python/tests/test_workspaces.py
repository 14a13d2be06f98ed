"""Workspaces, history, merges, episodes, events and keys, through the blocking client and a real server."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from amalgam import EMPTY, Amalgam, Workspace, edits, errors

from .conftest import Server


def test_a_workspace_is_made_found_renamed_deleted_and_brought_back(client: Amalgam, name: str) -> None:
    ws = client.workspaces.create(f"{name}/one", agent="ann")
    assert (ws.name, ws.head, ws.info.agent) == (f"{name}/one", "", "ann")
    with pytest.raises(FileExistsError):
        client.workspaces.create(f"{name}/one")
    assert client.workspaces.get(f"{name}/one").info == ws.info
    ws.rename(f"{name}/two")
    assert [found.name for found in client.workspaces.list(name)] == [f"{name}/two"]
    client.workspaces.rename(f"{name}/two", f"{name}/three")
    with pytest.raises(errors.StaleHeadError):
        client.workspaces.delete(f"{name}/three", etag="0")
    client.workspaces.delete(f"{name}/three")
    with pytest.raises(FileNotFoundError) as caught:
        client.workspaces.get(f"{name}/three")
    assert caught.value.errno is not None
    assert client.workspaces.undelete(f"{name}/three").name == f"{name}/three"


def test_a_commit_has_message_metadata_labels_and_changes(client: Amalgam, ws: Workspace) -> None:
    assert ws.commit().snapshot is None
    ws.files.write("a", "1")
    assert ws.status()
    commit = ws.commit(
        "tests pass",
        metadata={"run": "7"},
        labels=[f"{ws.name}-green"],
        kind="step",
        note="good",
        reward=0.5,
        with_changes=True,
    )
    assert commit.changed
    assert [(change.path, change.kind) for change in commit.changes] == [("a", "added")]
    assert ws.head == commit.id
    assert not ws.status()
    found = client.snapshots.get(f"{ws.name}-green")
    assert (found.id, found.message, found.metadata["run"]) == (commit.id, "tests pass", "7")
    assert (found.note, found.reward, found.author) == ("good", 0.5, "tester")
    assert found.labels == (f"{ws.name}-green",)
    assert found.time is not None
    assert datetime.now(timezone.utc) - found.time < timedelta(minutes=10)
    assert not ws.commit("nothing").changed


def test_a_commit_with_an_expected_head_is_refused_when_the_head_moved(ws: Workspace) -> None:
    first = ws.commit_edits([edits.write("a", "1")], expected_head="none", with_summary=True)
    assert first.summary is not None
    assert first.summary.files_added == 1
    second = ws.commit_edits([edits.write("a", "2")], expected_head=first.id, with_changes=True)
    assert [change.kind for change in second.changes] == ["modified"]
    with pytest.raises(errors.StaleHeadError) as caught:
        ws.commit_edits([edits.write("a", "3")], expected_head=first.snapshot)
    assert "refresh" in caught.value.suggestion
    with pytest.raises(errors.StaleHeadError):
        ws.commit("x", expected_head="none")


def test_an_idempotency_key_returns_the_first_result(ws: Workspace) -> None:
    first = ws.commit_edits([edits.write("a", "1")], message="once", idempotency_key="k")
    again = ws.commit_edits([edits.write("a", "1")], message="once", idempotency_key="k")
    assert first.id == again.id
    with pytest.raises(errors.RequestIdReusedError):
        ws.commit_edits([edits.write("a", "2")], idempotency_key="k")
    assert len(list(ws.log())) == 1
    forks = [fork.name for fork in ws.fork(count=2, idempotency_key="f")]
    assert [fork.name for fork in ws.fork(count=2, idempotency_key="f")] == forks
    assert not {fork.name for fork in ws.fork(count=2, idempotency_key="g")} & {*forks}


def test_diff_insight_and_patch_show_a_change(ws: Workspace, tmp_path: Path) -> None:
    ws.files.apply([edits.write("a.py", "one\ntwo\n"), edits.write("gone", "x\n"), edits.write("dir/same", "")])
    first = ws.commit("one")
    ws.files.apply([edits.replace("a.py", "two", "TWO"), edits.rename("gone", "moved"), edits.write("new", "1\n")])
    second = ws.commit("two")
    found = {change.path: change for change in ws.diff()}
    assert {path: change.kind for path, change in found.items()} == {
        "a.py": "modified",
        "moved": "renamed",
        "new": "added",
    }
    assert found["moved"].from_path == "gone"
    before = found["a.py"].before
    assert before is not None
    assert before.size == 8
    assert first.snapshot is not None
    assert [change.path for change in ws.diff(first.snapshot, second.id, paths=["a.py"])] == ["a.py"]
    assert "dir/same" in [change.path for change in ws.diff(EMPTY, "@")]
    insight = ws.insight(first.id, "@")
    assert (insight.summary.lines_added, insight.summary.files_renamed) == (2, 1)
    assert "Python" in [file.language for file in insight.files]
    patch = ws.patch(first.id, second.id)
    assert "-two\n+TWO\n" in patch.text
    for file, text in {"a.py": "one\ntwo\n", "gone": "x\n"}.items():
        (tmp_path / file).write_text(text)
    subprocess.run(["git", "apply"], input=patch.data, cwd=tmp_path, check=True)
    assert (tmp_path / "a.py").read_text() == "one\nTWO\n"


def test_log_blame_and_versions_follow_the_history(ws: Workspace) -> None:
    ws.files.write("a", "one\ntwo\n")
    first = ws.commit("first")
    ws.files.edit("a", "two", "TWO")
    second = ws.commit("second")
    assert [snapshot.message for snapshot in ws.log()] == ["second", "first"]
    assert [(run.first_line, run.lines, run.snapshot.id) for run in ws.history.blame("a")] == [
        (1, ("one",), first.id),
        (2, ("TWO",), second.id),
    ]
    ws.files.rename("a", "b")
    ws.commit("third")
    assert [version.kind for version in ws.history.versions("b", follow=True)] == ["renamed", "modified", "added"]
    assert [snapshot.id for snapshot in ws.log(path="a")][-1] == first.id
    assert ws.snapshot("@~2").id == first.id


def test_forks_begin_where_the_workspace_stands(ws: Workspace) -> None:
    ws.files.write("a", "1")
    forks = ws.fork(count=3)
    assert len({fork.name for fork in forks}) == 3
    assert {fork.files.read_text("a") for fork in forks} == {"1"}
    assert {fork.info.target for fork in forks} == {ws.name}
    named = ws.fork(names=[f"{ws.name}-x", f"{ws.name}-y"])
    assert [fork.name for fork in named] == [f"{ws.name}-x", f"{ws.name}-y"]
    with pytest.raises(FileExistsError):
        ws.fork(names=[f"{ws.name}-z", f"{ws.name}-x"])
    with pytest.raises(ValueError):
        ws.fork()
    with pytest.raises(ValueError):
        ws.fork(count=0)


def test_restore_undo_and_redo_move_the_head(ws: Workspace) -> None:
    ws.files.write("a", "1")
    first = ws.commit("one")
    ws.files.write("a", "2")
    ws.files.write("b", "2")
    ws.commit("two")
    plan = ws.restore(first.id, dry_run=True)
    assert {(change.path, change.kind) for change in plan.changes} == {("a", "modified"), ("b", "removed")}
    assert ws.files.read("a") == b"2"
    assert ws.restore(first.id, paths=["a"]).changed
    assert (ws.files.read("a"), ws.files.exists("b")) == (b"1", True)
    assert not ws.restore(first.id, paths=["a"]).changed
    operation = ws.undo()
    assert operation.action == "undo"
    assert ws.files.read("a") == b"2"
    assert ws.head == ws.refresh().head
    ws.redo()
    assert ws.files.read("a") == b"1"
    with pytest.raises(errors.NothingToRevertError):
        ws.redo()


def test_a_base_is_a_snapshot_or_a_workspace(client: Amalgam, ws: Workspace) -> None:
    first = ws.commit_edits([edits.write("a", "1")])
    ws.commit_edits([edits.write("a", "2")])
    assert client.workspaces.create(f"{ws.name}-1", base=first.snapshot).files.read("a") == b"1"
    assert client.workspaces.create(f"{ws.name}-2", base=ws).files.read("a") == b"2"
    with pytest.raises(errors.NotFoundError):
        client.workspaces.create(f"{ws.name}-3", base="no-such-label")


def two_sides(ws: Workspace) -> Workspace:
    ws.commit_edits(
        [edits.write("both[1]", "base\n"), edits.write("gone", "base\n"), edits.write("clean", "1\n2\n3\n")]
    )
    (other,) = ws.fork(count=1)
    ws.commit_edits([edits.write("both[1]", "ours\n"), edits.remove("gone"), edits.replace("clean", "1", "ours")])
    other.commit_edits(
        [edits.write("both[1]", "theirs\n"), edits.write("gone", "theirs\n"), edits.replace("clean", "3", "theirs")]
    )
    return other


def test_a_merge_without_conflicts_is_done_at_once(ws: Workspace) -> None:
    ws.commit_edits([edits.write("a", "1")])
    (other,) = ws.fork(count=1)
    other.commit_edits([edits.write("b", "2")])
    merge = ws.merge(other)
    assert (merge.applied, merge.conflicts) == (True, [])
    assert ws.files.read("b") == b"2"
    assert ws.head == merge.apply().head.id  # type: ignore[union-attr]
    assert ws.merge(other).result.how == "already"


def test_a_merge_with_conflicts_waits_for_their_resolution(ws: Workspace) -> None:
    other = two_sides(ws)
    head = ws.refresh().head
    merge = ws.merge(other, on_conflict="review")
    assert not merge.applied
    conflicts = {conflict.path: conflict for conflict in merge.conflicts}
    assert {path: conflict.kind for path, conflict in conflicts.items()} == {
        "both[1]": "contents",
        "gone": "changed and removed",
    }
    assert ws.refresh().head == head
    assert conflicts["both[1]"].read("theirs") == b"theirs\n"
    assert conflicts["gone"].read("ours") is None
    conflicts["both[1]"].resolve(side="theirs")
    with pytest.raises(errors.MergeConflictError) as caught:
        merge.apply()
    assert caught.value.details["paths"] == ["gone"]
    conflicts["gone"].resolve(side="theirs")
    merge.apply()
    assert merge.applied
    assert (ws.files.read("both[1]"), ws.files.read("gone")) == (b"theirs\n", b"theirs\n")
    assert ws.files.read("clean") == b"ours\n2\ntheirs\n"
    assert ws.snapshot().conflicts == 0


@pytest.mark.parametrize(("side", "gone"), [("ours", None), ("theirs", b"theirs\n")])
def test_a_merge_can_take_one_side_of_each_conflict(ws: Workspace, side: str, gone: bytes | None) -> None:
    other = two_sides(ws)
    merge = ws.merge(other, on_conflict=side)  # type: ignore[arg-type]
    assert merge.applied
    assert ws.files.read("both[1]") == f"{side}\n".encode()
    assert ws.files.exists("gone") == (gone is not None)
    assert ws.files.read("clean") == b"ours\n2\ntheirs\n"


def test_a_merge_can_raise_or_keep_conflicts(ws: Workspace) -> None:
    other = two_sides(ws)
    with pytest.raises(errors.MergeConflictError):
        ws.merge(other, on_conflict="raise")
    merge = ws.merge(other, on_conflict="keep")
    assert merge.applied
    assert len(merge.conflicts) == 2
    assert ws.files.stat("both[1]", revision="@").kind == "conflict"


def test_complete_ends_a_fork_and_publish_keeps_it(client: Amalgam, ws: Workspace) -> None:
    ws.commit_edits([edits.write("a", "1")])
    one, two = ws.fork(count=2)
    one.commit_edits([edits.write("b", "1")])
    two.commit_edits([edits.write("c", "1")])
    published = one.publish(message="b")
    assert published.merge is not None
    assert published.merge.how in ("merged", "forward")
    assert one.refresh().name == one.name
    assert two.complete().ended
    with pytest.raises(FileNotFoundError):
        two.refresh()
    assert [file.path for file in ws.files.list()] == ["a", "b", "c"]


def test_conflicts_of_a_publication_wait_for_a_review(client: Amalgam, ws: Workspace) -> None:
    other = two_sides(ws)
    published = other.publish()
    assert published.merge is not None
    assert published.merge.how == "review"
    (review,) = client.reviews.list(target=ws.name)
    assert {conflict.path for conflict in review.conflicts} == {"both[1]", "gone"}
    assert client.reviews.get(review.entry.id).entry.workspace == other.name
    assert client.reviews.queue(target=ws.name) == []
    client.reviews.take(review.entry.id, "theirs")
    assert ws.files.read("gone") == b"theirs\n"


def test_labels_are_set_moved_listed_and_deleted(client: Amalgam, ws: Workspace) -> None:
    first = ws.commit_edits([edits.write("a", "1")])
    second = ws.commit_edits([edits.write("a", "2")])
    assert client.labels.set(f"{ws.name}/v1", first.id).snapshot == first.id
    assert client.labels.set(f"{ws.name}/v1", "@", workspace=ws.name).snapshot == second.id
    assert [label.name for label in client.labels.list(ws.name)] == [f"{ws.name}/v1"]
    client.labels.delete(f"{ws.name}/v1")
    assert list(client.labels.list(ws.name)) == []


def test_an_episode_records_and_ranks_steps(client: Amalgam, ws: Workspace) -> None:
    ws.commit_edits([edits.write("a", "1")])
    episode = client.episodes.begin(f"{ws.name}/run", metadata={"model": "m"})
    root = episode.record("@", workspace=ws.name)
    left = episode.record(parent=root, edits=[edits.write("a", "left")], reward=0.25)
    right = episode.record(parent=root, edits=[edits.write("a", "right")], reward=0.75)
    assert [step.number for step in episode.best()] == [right.number]
    assert [step.number for step in episode.path(left)] == [root.number, left.number]
    comparison = episode.compare(left, right)
    assert comparison.common is not None
    assert (comparison.common.number, comparison.reward_difference) == (root.number, 0.5)
    episode.update([replace(left, visits=2, total=3.0, reward=1.0)])
    assert episode.best(order="mean", count=2)[0].number == left.number
    assert [step.number for step in episode.steps(parent=root)] == [left.number, right.number]
    assert [step.number for step in episode.steps(parent=0)] == [root.number]
    header, *lines = list(episode.export())
    assert (header["episode"], len(lines)) == (f"{ws.name}/run", 3)
    episode.finish()
    assert episode.info.state == "kept"
    episode.release()
    assert [found.name for found in client.episodes.list(ws.name)] == [f"{ws.name}/run"]
    assert episode.drop() == 3
    with pytest.raises(FileNotFoundError):
        client.episodes.get(f"{ws.name}/run")


def test_a_subscription_returns_operations_from_a_position_on(client: Amalgam, ws: Workspace) -> None:
    subscription = client.events.subscribe()
    ws.commit_edits([edits.write("a", "1")], message="seen")
    ws.fork(count=1)
    operations = iter(subscription)
    first, second = next(operations), next(operations)
    assert f"workspace/{ws.name}" in [change.reference for change in first.changes]
    assert (second.action, subscription.position) == ("fork", second.sequence)
    again = next(iter(client.events.subscribe(after=first.sequence)))
    assert again == second
    assert client.events.get(second.sequence) == second
    assert next(client.events.list(workspace=ws.name)).sequence == first.sequence
    assert client.events.undo(second.sequence).reverts == second.sequence


def test_exploration_keeps_the_best_attempt(client: Amalgam, ws: Workspace) -> None:
    ws.files.write("score", "0")
    ws.commit("begin")

    def run(fork: Workspace) -> int:
        number = int(fork.name.rsplit("-", 1)[1])
        if number == 2:
            raise RuntimeError("attempt 2 fails")
        fork.files.write("score", str(number))
        return number

    best = ws.explore(count=4, run=run, score=lambda fork, number: float(number))
    assert (best.score, best.result, best.workspace.files.read_text("score")) == (4.0, 4, "4")
    assert best.snapshot is not None
    assert sum(isinstance(other.error, RuntimeError) for other in best.others) == 1
    assert [found.name for found in client.workspaces.list(f"{ws.name}-")] == [best.workspace.name]
    with pytest.raises(errors.ExploreError) as caught:
        ws.explore(count=2, run=run, score=lambda fork, number: float("nan"))
    assert len(caught.value.attempts) == 2


def test_projects_are_apart_and_keys_are_limited(server: Server, client: Amalgam, name: str) -> None:
    client.projects.create(name)
    inside = client.with_options(project=name)
    inside.workspaces.create("only-here")
    with pytest.raises(FileNotFoundError):
        client.workspaces.get("only-here")
    assert name in [project.name for project in client.projects.list()]
    assert client.projects.usage(name).workspaces == 1
    made = client.keys.create("reader", scopes=["read"], projects=[name])
    assert made.text not in repr(made)
    with server.client(api_key=made.text) as reader:
        caller = reader.keys.caller()
        assert caller is not None
        assert (caller.id, caller.agent) == (made.key.id, "reader")
        assert [found.name for found in reader.workspaces.list()] == ["only-here"]
        with pytest.raises(errors.ForbiddenError) as caught:
            reader.workspaces.create("x")
        assert isinstance(caught.value, PermissionError)
        with pytest.raises(PermissionError):
            list(reader.with_options(project="default").workspaces.list())
        assert client.keys.revoke(made.key).revoke_time is not None
        with pytest.raises(errors.KeyRevokedError):
            list(reader.workspaces.list())
    expired = client.keys.create("late", scopes=["read"], expires=datetime.now(timezone.utc) + timedelta(days=1))
    assert expired.key.expire_time is not None
    assert made.key.id in [key.id for key in client.keys.list()]
    client.projects.delete(name)
    with pytest.raises(FileNotFoundError):
        list(inside.workspaces.list())
    assert client.projects.undelete(name).delete_time is None
