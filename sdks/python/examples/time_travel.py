"""Time travel in a LangGraph run: an earlier checkpoint brings the state and the files of the agent back."""

import operator
import uuid
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph

import amalgam
from amalgam.integrations.langgraph import AmalgamSaver


class Notes(TypedDict):
    """The state of the graph."""

    lines: Annotated[list[str], operator.add]


with amalgam.Amalgam() as client:
    name = f"time-travel-{uuid.uuid4().hex[:8]}"
    ws = client.workspaces.create(name)
    ws.files.write("notes.md", "")

    def write(state: Notes) -> dict[str, list[str]]:
        """Adds a line to the state, and to a file."""
        line = f"line {len(state['lines']) + 1}"
        ws.files.write("notes.md", ws.files.read_text("notes.md") + line + "\n")
        return {"lines": [line]}

    builder = StateGraph(Notes)
    builder.add_node("first", write)
    builder.add_node("second", write)
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    builder.add_edge("second", END)
    saver = AmalgamSaver(client, prefix=f"threads-{name}", files=ws)
    graph = builder.compile(checkpointer=saver)
    config: Any = {"configurable": {"thread_id": "1"}}
    graph.invoke({"lines": []}, config, durability="sync")
    print("now:   ", ws.files.read_text("notes.md").split("\n"))
    earlier = next(state for state in graph.get_state_history(config) if len(state.values["lines"]) == 1)
    saver.restore_files(earlier.config)
    print("before:", ws.files.read_text("notes.md").split("\n"), earlier.values["lines"])
