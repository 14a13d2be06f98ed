"""A set-up that runs once, in a sandbox; its running copies try different things, and the best one is kept."""

import uuid

import amalgam

with amalgam.Amalgam() as client:
    ws = client.workspaces.create(f"sandboxes-{uuid.uuid4().hex[:8]}")
    ws.files.write("count.sh", "wc -l < data | tr -d ' '\n")
    with ws.sandbox(timeout=600) as origin:
        origin.commands.run("seq 10 > data")
        copies = origin.fork(count=3)
        try:
            scores = []
            for number, copy in enumerate(copies, 1):
                copy.commands.run(f"seq {number} >> data")
                scores.append(int(copy.commands.run("sh count.sh").stdout))
            best = max(range(len(copies)), key=scores.__getitem__)
            winner = client.workspaces.get(copies[best].workspace)
            winner.commit("the best attempt")
            ws.commit("the set-up")
            ws.merge(winner)
            print(f"scores {scores}; kept copy {best + 1}")
        finally:
            client.sandboxes.batch_delete([copy.id for copy in copies])
