"""A search over program edits: each state is one call, recorded as a step of an episode with its reward."""

import uuid

import amalgam
from amalgam import Step, edits

TARGET = 42

with amalgam.Amalgam() as client:
    ws = client.workspaces.create(f"search-{uuid.uuid4().hex[:8]}")
    ws.commit_edits([edits.write("value.txt", "1")], message="begin")
    episode = client.episodes.begin(ws.name)
    front: list[tuple[Step, int]] = [(episode.record("@", workspace=ws.name, reward=-TARGET), 1)]
    for _ in range(6):
        children: list[tuple[Step, int]] = []
        for parent, value in front:
            for guess in (value + 3, value * 2):
                edit = edits.write("value.txt", str(guess))
                step = episode.record(parent=parent, edits=[edit], reward=-abs(TARGET - guess), buffered=True)
                children.append((step, guess))
        # A beam search: the best three go on.
        front = sorted(children, key=lambda child: child[0].reward or 0.0, reverse=True)[:3]
    best = episode.best(order="reward")[0]
    print(f"reward {best.reward} after {len(episode.path(best)) - 1} edits")
    ws.restore(best.snapshot)
    print("value.txt:", ws.files.read_text("value.txt"))
