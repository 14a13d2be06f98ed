"""Reads, maps, lists and writes in a mount that goes to and fro between two states, until a file says stop. What is read of a
file is that of one state, whole; what was opened or mapped before stays as it was."""

import mmap
import os
import sys
import threading

FILES = 24
counts = {"reads": 0, "maps": 0, "held": 0, "lists": 0, "writes": 0, "absent": 0}
failures = []


def expected(number):
    return {(f"{state} {number} " * (20 + 900 * (number % 5))).encode() for state in ("one", "two")}


EXPECTED = [expected(number) for number in range(FILES)]


def path(directory, number):
    return os.path.join(directory, f"d{number % 3}", f"f{number}")


def reader(directory, turn):
    number = turn % FILES
    with open(path(directory, number), "rb") as file:
        first = file.read()
        assert first in EXPECTED[number], f"f{number}: {len(first)} bytes that no state has"
        counts["reads"] += 1
        # The file that is open is the file that was opened, whatever became of its name.
        file.seek(0)
        assert file.read() == first, f"f{number}: an open file changed"
        counts["held"] += 1


def mapper(directory, turn):
    number = (turn * 7) % FILES
    with open(path(directory, number), "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        first = bytes(mapped)
        assert first in EXPECTED[number], f"f{number}: {len(first)} mapped bytes that no state has"
        assert bytes(mapped) == first, f"f{number}: mapped bytes changed"
        counts["maps"] += 1


def lister(directory, turn):
    below = os.path.join(directory, f"d{turn % 3}")
    names = {name for name in os.listdir(below) if name.startswith("f")}
    wanted = {f"f{number}" for number in range(FILES) if number % 3 == turn % 3}
    assert names == wanted, f"d{turn % 3}: {sorted(names ^ wanted)}"
    with os.scandir(directory) as found:
        assert sum(entry.name.startswith("only-") for entry in found) <= 2
    counts["lists"] += 1


def writer(directory, turn):
    name = os.path.join(directory, f"scratch-{turn % 5}")
    with open(name, "wb") as file:
        file.write(b"x" * (turn % 9000))
    os.rename(name, name + ".done")
    counts["writes"] += 1


def run(act, directory, stop):
    turn = 0
    while not os.path.exists(stop) and not failures:
        turn += 1
        try:
            act(directory, turn)
        except (FileNotFoundError, ProcessLookupError):
            # What was written since is gone with a rollback.
            counts["absent"] += 1
        except OSError as error:
            if error.errno == 116:
                counts["absent"] += 1
            else:
                failures.append(f"{act.__name__}: {error}")
        except Exception as error:  # noqa: BLE001
            failures.append(f"{act.__name__}: {error}")


def main(directory, stop):
    threads = [threading.Thread(target=run, args=(act, directory, stop)) for act in (reader, mapper, lister, writer)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]
    assert all(counts[name] > 0 for name in ("reads", "maps", "held", "lists", "writes")), counts
    print(", ".join(f"{count} {name}" for name, count in counts.items()))


main(*sys.argv[1:])
