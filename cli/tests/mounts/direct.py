"""Whoever reads a file through the kernel's cache sees what was written past it, as soon as that is said to be done.

Run in a mount. Writes a file with asynchronous direct writes while others read it, and reads it after each; ends with 0 if every
reading has the newest bytes."""

import ctypes
import mmap
import os
import platform
import struct
import sys
import threading
import time

# io_setup, io_destroy, io_getevents, io_submit
NUMBERS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}.get(platform.machine())
BLOCK = 64 << 10
BLOCKS = 10
PWRITE = 1
SECONDS = 3
NOT_HERE = 77

libc = ctypes.CDLL(None, use_errno=True)


def call(number, *arguments):
    done = libc.syscall(ctypes.c_long(number), *arguments)
    if done < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return done


class Writer:
    """Asynchronous direct writes of whole blocks of one byte."""

    def __init__(self, path):
        setup, _, self.getevents, self.submit = NUMBERS
        self.file = os.open(path, os.O_RDWR | os.O_DIRECT)
        self.context = ctypes.c_ulong(0)
        call(setup, ctypes.c_long(BLOCKS), ctypes.byref(self.context))
        self.block = mmap.mmap(-1, BLOCK)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.block))

    def write(self, byte):
        self.block[:] = bytes([byte]) * BLOCK
        # data, key, flags; operation, priority; file; buffer, bytes, offset; reserved, flags, event
        requests = [
            struct.pack("<QIIHhIQQqQII", at, 0, 0, PWRITE, 0, self.file, self.address, BLOCK, at * BLOCK, 0, 0, 0)
            for at in range(BLOCKS)
        ]
        kept = [ctypes.create_string_buffer(request, len(request)) for request in requests]
        pointers = (ctypes.c_void_p * BLOCKS)(*[ctypes.addressof(one) for one in kept])
        submitted = call(self.submit, self.context, ctypes.c_long(BLOCKS), pointers)
        events = ctypes.create_string_buffer(32 * BLOCKS)
        call(self.getevents, self.context, ctypes.c_long(submitted), ctypes.c_long(BLOCKS), events, None)
        for at in range(submitted):
            done = struct.unpack_from("<q", events, at * 32 + 16)[0]
            if done != BLOCK:
                sys.exit(f"a write of {BLOCK} bytes came to {done}")


def main():
    if NUMBERS is None:
        sys.exit(NOT_HERE)
    with open("direct", "wb") as file:
        file.write(bytes(BLOCK * BLOCKS))
    try:
        writer = Writer("direct")
    except OSError as error:
        print(error, file=sys.stderr)
        sys.exit(NOT_HERE)
    ended = threading.Event()

    def read_on():
        file = os.open("direct", os.O_RDONLY)
        while not ended.is_set():
            os.pread(file, BLOCK * BLOCKS, 0)

    readers = [threading.Thread(target=read_on) for _ in range(2)]
    for reader in readers:
        reader.start()
    file = os.open("direct", os.O_RDONLY)
    rounds = 0
    stale = None
    until = time.monotonic() + SECONDS
    while time.monotonic() < until and stale is None:
        byte = 1 + rounds % 255
        writer.write(byte)
        found = os.pread(file, BLOCK * BLOCKS, 0)
        if found != bytes([byte]) * len(found):
            stale = f"round {rounds}: {byte} was written, {sorted(set(found))} was read"
        rounds += 1
    ended.set()
    for reader in readers:
        reader.join()
    if stale is not None or rounds == 0:
        sys.exit(stale or "nothing was written")


main()
