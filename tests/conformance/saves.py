"""Saves by renaming a new file over the old one, while another process reads: it sees an old or a new file, whole."""

import hashlib
import multiprocessing
import os
import sys

SAVES = 1000


def contents(number):
    return hashlib.sha256(str(number).encode()).hexdigest().encode() * (1 + number % 300)


def save(directory):
    name = os.path.join(directory, "document")
    for number in range(SAVES):
        new = f"{name}.new"
        with open(new, "wb") as file:
            file.write(contents(number))
            if number % 10 == 0:
                os.fsync(file.fileno())
        os.replace(new, name)


def main(directory):
    name = os.path.join(directory, "document")
    with open(name, "wb") as file:
        file.write(contents(0))
    saver = multiprocessing.Process(target=save, args=(directory,))
    saver.start()
    reads, last = 0, 0
    while saver.is_alive():
        with open(name, "rb") as file:
            seen = file.read()
        number = next((n for n in range(last, SAVES) if contents(n) == seen), None)
        assert number is not None, f"{len(seen)} bytes that were never saved, or older than number {last}"
        last, reads = number, reads + 1
    saver.join()
    assert saver.exitcode == 0
    with open(name, "rb") as file:
        assert file.read() == contents(SAVES - 1)
    assert sorted(os.listdir(directory)) == ["document"], os.listdir(directory)
    print(f"{SAVES} saves, {reads} reads beside them, none saw half a file")


main(sys.argv[1])
