"""What is held of a mount while its workspace is committed and restored: mappings, locks, directories.

Run in a mount whose workspace has one snapshot. Ends with 0 if everything is as docs/SEMANTICS.md says."""

import errno
import fcntl
import mmap
import os
import subprocess
import sys

PAGE = mmap.PAGESIZE
PAGES = 64


def amalgam(*words):
    subprocess.run(["amalgam", *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def write(path, data):
    with open(path, "wb") as file:
        file.write(data)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def mapped(path, write=False):
    """A file and a mapping of all of it."""
    file = open(path, "r+b" if write else "rb")
    access = mmap.ACCESS_WRITE if write else mmap.ACCESS_READ
    return file, mmap.mmap(file.fileno(), 0, access=access)


def can_lock(path):
    """Whether another process gets a lock of each kind."""
    code = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'r+b')\n"
        "for lock in (fcntl.flock, fcntl.lockf):\n"
        "    try:\n"
        "        lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "        print('yes')\n"
        "    except OSError:\n"
        "        print('no')\n"
    )
    return subprocess.run([sys.executable, "-c", code, path], check=True, capture_output=True, text=True).stdout.split()


def locked(path):
    """A file with both kinds of lock."""
    file = open(path, "r+b")
    fcntl.flock(file, fcntl.LOCK_EX)
    fcntl.lockf(file, fcntl.LOCK_EX)
    return file


def mappings():
    write("shrinks", b"1" * PAGE)
    write("written", b"1" * PAGE * PAGES)
    write("same", b"s" * PAGE * PAGES)
    amalgam("commit", "-m", "one")
    write("shrinks", b"2" * PAGE * PAGES)
    write("written", b"2" * PAGE * PAGES)
    write("comes", b"2" * PAGE * PAGES)
    amalgam("commit", "-m", "two")

    # A commit takes nothing away: what is stored through a mapping and synced is in the next one.
    file, writing = mapped("written", write=True)
    writing[0:1] = b"x"
    writing.flush()
    amalgam("commit", "-m", "three")
    writing[PAGE:PAGE + 1] = b"y"
    writing.flush()
    amalgam("commit", "-m", "four")
    for revision, expected in (("@~", b"x2"), ("@", b"xy")):
        shown = subprocess.run(["amalgam", "show", revision + ":written"], check=True, capture_output=True).stdout
        assert shown[0:1] + shown[PAGE:PAGE + 1] == expected, (revision, shown[0:1], shown[PAGE:PAGE + 1])

    shrinks, shrinking = mapped("shrinks")
    comes, coming = mapped("comes")
    same, staying = mapped("same", write=True)
    assert shrinking[0:1] == b"2"
    inode = os.stat("same").st_ino
    amalgam("restore", "@~3")
    assert read("shrinks") == b"1" * PAGE and read("written") == b"1" * PAGE * PAGES and not os.path.exists("comes")
    # Whoever has the old files mapped has all their bytes, pages that nobody had looked at included.
    assert shrinking[:] == b"2" * PAGE * PAGES
    assert coming[:] == b"2" * PAGE * PAGES
    assert writing[0:1] == b"x" and writing[PAGE:PAGE + 1] == b"y"
    # What is stored there now is in no snapshot and not at the path.
    writing[PAGE * (PAGES - 1):] = b"z" * PAGE
    writing.flush()
    file.seek(PAGE * (PAGES - 1))
    assert file.read() == b"z" * PAGE
    assert read("written") == b"1" * PAGE * PAGES
    subprocess.run(["amalgam", "status", "--exit-code"], check=True, stdout=subprocess.DEVNULL)
    # A file with the same bytes is the same file.
    assert os.stat("same").st_ino == inode
    staying[0:1] = b"t"
    staying.flush()
    assert read("same")[0:1] == b"t"


def locks():
    write("same", b"same")
    write("differs", b"1")
    amalgam("commit", "-m", "locks")
    write("differs", b"2")
    same, differs = locked("same"), locked("differs")
    amalgam("commit", "-m", "while locked")
    assert can_lock("same") == can_lock("differs") == ["no", "no"]
    amalgam("restore", "@~")
    # A lock is on a file, not on a path: with the same bytes it is the same file, else another one.
    assert can_lock("same") == ["no", "no"]
    assert can_lock("differs") == ["yes", "yes"]
    again = os.open(f"/proc/self/fd/{differs.fileno()}", os.O_RDWR)
    try:
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
        raise AssertionError("the old file is locked by whoever locked it")
    except BlockingIOError:
        pass
    fcntl.flock(differs, fcntl.LOCK_UN)
    fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(same, fcntl.LOCK_UN)
    fcntl.lockf(same, fcntl.LOCK_UN)
    assert can_lock("same") == ["yes", "yes"]


def directories():
    top = os.getcwd()
    amalgam("commit", "-m", "before")
    os.mkdir("gone")
    write("gone/file", b"file")
    amalgam("commit", "-m", "with a directory")
    held = open("gone/file", "rb")
    os.chdir("gone")
    subprocess.run(["amalgam", "restore", "@~"], check=True, cwd=top, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert os.listdir(".") == []
    try:
        open("new", "wb")
        raise AssertionError("a directory that is gone takes nothing")
    except OSError as error:
        assert error.errno == errno.ENOENT, error
    assert held.read() == b"file"
    os.chdir(top)
    assert not os.path.exists("gone")


for part in (mappings, locks, directories):
    part()
