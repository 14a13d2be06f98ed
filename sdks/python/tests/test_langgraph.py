"""The LangGraph checkpointer: the conformance tests of LangGraph, and graphs whose files travel in time with them."""

from __future__ import annotations

import asyncio
import copy
import operator
import os
from collections.abc import AsyncIterator
from typing import Annotated, Any, TypedDict

import pytest

pytest.importorskip("langgraph.checkpoint.conformance")

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.graph import END, START, StateGraph

from amalgam import Amalgam, Workspace, errors
from amalgam.integrations.langgraph import AmalgamSaver

from .conftest import Server


class Numbers(TypedDict):
    numbers: Annotated[list[int], operator.add]


def test_all_conformance_tests_of_langgraph_pass(server: Server) -> None:
    @checkpointer_test(name="AmalgamSaver")
    async def saver() -> AsyncIterator[AmalgamSaver]:
        with server.client() as client:
            yield AmalgamSaver(client, prefix=f"conformance-{id(client)}", buffered=True)

    report = asyncio.run(validate(saver))
    assert report.passed_all(), str(report)


def graph_with(saver: AmalgamSaver, ws: Workspace) -> Any:
    def step(state: Numbers) -> dict[str, list[int]]:
        number = len(state["numbers"])
        ws.files.write("count.txt", str(number))
        return {"numbers": [number]}

    builder = StateGraph(Numbers)
    builder.add_node("first", step)
    builder.add_node("second", step)
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    builder.add_edge("second", END)
    return builder.compile(checkpointer=saver)


def test_time_travel_brings_state_and_files_back(client: Amalgam, ws: Workspace, name: str) -> None:
    ws.files.write("count.txt", "0")
    saver = AmalgamSaver(client, prefix=f"lg-{name}", files=ws)
    graph = graph_with(saver, ws)
    config: Any = {"configurable": {"thread_id": "thread/1"}}
    # Without it, LangGraph stores a checkpoint while the next step runs already, and changes files.
    assert graph.invoke({"numbers": [7]}, config, durability="sync")["numbers"] == [7, 1, 2]
    states = list(graph.get_state_history(config))
    after_first = next(state for state in states if state.values.get("numbers") == [7, 1])
    assert ws.files.read_text("count.txt") == "2"
    assert saver.restore_files(after_first.config)
    assert ws.files.read_text("count.txt") == "1"
    assert graph.invoke(None, after_first.config, durability="sync")["numbers"] == [7, 1, 2]
    labels = [label.name for label in client.labels.list(f"lg-{name}/")]
    assert len(labels) == len(list(saver.list(config)))
    saver.prune(["thread/1"])
    assert len(list(client.labels.list(f"lg-{name}/"))) == 1
    saver.delete_thread("thread/1")
    assert list(client.labels.list(f"lg-{name}/")) == []
    assert saver.get_tuple(config) is None


def test_a_copied_thread_goes_its_own_way(client: Amalgam, name: str) -> None:
    saver = AmalgamSaver(client, prefix=f"lg-{name}")
    # The graph copies its saver to limit what it deserializes.
    saver = copy.copy(saver)
    builder = StateGraph(Numbers)
    builder.add_node("step", lambda state: {"numbers": [len(state["numbers"])]})
    builder.add_edge(START, "step")
    graph = builder.compile(checkpointer=saver)
    one: Any = {"configurable": {"thread_id": "one"}}
    two: Any = {"configurable": {"thread_id": "two" * 100}}
    graph.invoke({"numbers": [5]}, one)
    saver.copy_thread("one", "two" * 100)
    graph.invoke({"numbers": [6]}, two)
    assert graph.get_state(one).values["numbers"] == [5, 1]
    assert graph.get_state(two).values["numbers"] == [5, 1, 6, 3]
    assert {found.config["configurable"]["thread_id"] for found in saver.list(None)} == {"one", "two" * 100}
    with pytest.raises(errors.NotPossibleError):
        saver.restore_files(one)
    with pytest.raises(errors.NotFoundError):
        saver.restore_files({"configurable": {"thread_id": "none"}})


def test_prune_keeps_checkpoints_that_are_stored_meanwhile(
    client: Amalgam, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = AmalgamSaver(client, prefix=f"lg-{name}")
    builder = StateGraph(Numbers)
    builder.add_node("step", lambda state: {"numbers": [len(state["numbers"])]})
    builder.add_edge(START, "step")
    graph = builder.compile(checkpointer=saver)
    config: Any = {"configurable": {"thread_id": "busy"}}
    graph.invoke({"numbers": [5]}, config)
    old = [found.config["configurable"]["checkpoint_id"] for found in saver.list(config)]
    entries = saver._entries
    stored: list[str] = []

    def entries_while_the_graph_runs(thread: str, path: str, **options: Any) -> Any:
        if path.startswith("blobs/") and not stored:
            stored.append("")
            graph.invoke({"numbers": [6]}, config)
            stored[0] = graph.get_state(config).config["configurable"]["checkpoint_id"]
        return entries(thread, path, **options)

    monkeypatch.setattr(saver, "_entries", entries_while_the_graph_runs)
    saver.prune(["busy"])
    newest = saver.get_tuple(config)
    assert newest is not None
    assert [newest.config["configurable"]["checkpoint_id"]] == stored
    assert newest.checkpoint["channel_values"]["numbers"] == [5, 1, 6, 3]
    left = {found.config["configurable"]["checkpoint_id"] for found in saver.list(config)}
    assert left.isdisjoint(old[1:])
    assert {old[0], *stored} <= left


def test_a_step_with_many_writes_and_a_large_value_is_stored(client: Amalgam, name: str) -> None:
    saver = AmalgamSaver(client, prefix=f"lg-{name}")
    large = os.urandom(20 << 20)
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {"large": large, "small": 1}
    checkpoint["channel_versions"] = {"large": saver.get_next_version(None, None), "small": "1"}
    config: Any = {"configurable": {"thread_id": "large", "checkpoint_ns": ""}}
    stored = saver.put(config, checkpoint, {}, checkpoint["channel_versions"])
    writes: list[tuple[str, Any]] = [*(("numbers", number) for number in range(1500)), ("large", large)]
    saver.put_writes(stored, writes, "task")
    # Those that exist are kept.
    saver.put_writes(stored, [("numbers", -1)] * 1500, "task")
    found = saver.get_tuple(config)
    assert found is not None
    assert found.checkpoint["channel_values"] == {"large": large, "small": 1}
    assert found.pending_writes is not None
    assert [(channel, value) for _, channel, value in found.pending_writes] == writes


def test_a_graph_runs_with_asyncio(server: Server, name: str) -> None:
    async def run() -> list[int]:
        with server.client() as client:
            saver = AmalgamSaver(client, prefix=f"lg-{name}")
            builder = StateGraph(Numbers)
            builder.add_node("step", lambda state: {"numbers": [len(state["numbers"])]})
            builder.add_edge(START, "step")
            graph = builder.compile(checkpointer=saver)
            config: Any = {"configurable": {"thread_id": "a"}}
            await graph.ainvoke({"numbers": [5]}, config)
            result: dict[str, list[int]] = await graph.ainvoke({"numbers": [6]}, config)
            assert len([found async for found in saver.alist(config)]) == 6
            return result["numbers"]

    assert asyncio.run(run()) == [5, 1, 6, 3]
