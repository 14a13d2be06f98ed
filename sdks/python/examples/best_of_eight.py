"""Eight attempts in parallel, each in a fork of its own; the best one is kept and merged."""

import uuid

import amalgam


def attempt(fork: amalgam.Workspace) -> float:
    """Writes a guess of the square root of 2."""
    guess = int(fork.name.rpartition("-")[2]) / 4
    fork.files.write("guess.txt", f"{guess}\n")
    return guess


with amalgam.Amalgam() as client:
    ws = client.workspaces.create(f"best-of-eight-{uuid.uuid4().hex[:8]}")
    ws.files.write("guess.txt", "0\n")
    ws.commit("begin")
    best = ws.explore(count=8, run=attempt, score=lambda _, guess: -abs(guess**2 - 2))
    ws.merge(best.workspace)
    print(f"kept {best.result} with the score {best.score:.3f}; guess.txt: {ws.files.read_text('guess.txt')}")
