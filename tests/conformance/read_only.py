"""Every way to change something in a mount that shows a snapshot is refused with EROFS, and reading works."""

import errno
import os
import sys


def main(directory):
    os.chdir(directory)
    file, names = "deep/FORMAT.md", sorted(os.listdir("."))
    changes = {
        "open for writing": lambda: os.open(file, os.O_WRONLY),
        "open and truncate": lambda: os.open(file, os.O_RDWR | os.O_TRUNC),
        "create": lambda: os.open("new", os.O_CREAT | os.O_WRONLY),
        "truncate": lambda: os.truncate(file, 0),
        "mkdir": lambda: os.mkdir("new"),
        "mknod": lambda: os.mknod("new", 0o10644),
        "symlink": lambda: os.symlink("a", "new"),
        "link": lambda: os.link(file, "new"),
        "unlink": lambda: os.unlink(file),
        "rmdir": lambda: os.rmdir("empty"),
        "rename": lambda: os.rename(file, "new"),
        "chmod": lambda: os.chmod(file, 0o600),
        "chown": lambda: os.chown(file, 1, 1),
        "utimes": lambda: os.utime(file, (1, 1)),
        "setxattr": lambda: os.setxattr("attributes", "user.new", b"1"),
        "removexattr": lambda: os.removexattr("attributes", "user.one"),
    }
    for name, change in changes.items():
        try:
            change()
        except OSError as error:
            assert error.errno == errno.EROFS, f"{name}: {error}"
        else:
            raise AssertionError(f"{name} was not refused")
    assert sorted(os.listdir(".")) == names
    with open("sparse", "rb") as sparse:
        assert sparse.read().strip(b"\0") == b"in the middle"
    assert os.getxattr("attributes", "user.big") == b"x" * 3000
    assert os.stat(file).st_nlink == 3
    print(f"{len(changes)} ways to change something, all refused with EROFS")


main(sys.argv[1])
