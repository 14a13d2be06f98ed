"""Two agents change one file in forks; their work is merged, and the conflict is decided."""

import uuid

import amalgam
from amalgam import edits

with amalgam.Amalgam() as client:
    main = client.workspaces.create(f"two-agents-{uuid.uuid4().hex[:8]}")
    main.commit_edits([edits.write("greet.py", "def greet():\n    return 'hi'\n")], message="begin")
    ann, bob = main.fork(names=[f"{main.name}-ann", f"{main.name}-bob"])
    ann.commit_edits(
        [edits.replace("greet.py", "'hi'", "'hello'"), edits.write("ann.md", "by Ann\n")], message="politer"
    )
    bob.commit_edits([edits.replace("greet.py", "'hi'", "'hey'"), edits.write("bob.md", "by Bob\n")], message="shorter")
    main.merge(ann)
    merge = main.merge(bob)
    for conflict in merge.conflicts:
        print(f"{conflict.path}: {conflict.kind}; theirs is taken")
        conflict.resolve(side="theirs")
    merge.apply()
    print(main.files.read_text("greet.py"))
    for snapshot in main.log():
        print(snapshot.id[:12], snapshot.author, snapshot.message)
