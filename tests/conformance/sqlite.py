"""A database in WAL mode with two processes at it: what was committed adds up, whoever reads, and the file is whole."""

import multiprocessing
import sqlite3
import sys

ROUNDS = 300
ACCOUNTS = 20
SUM = 1000 * ACCOUNTS


def connect(path):
    base = sqlite3.connect(path, timeout=60, isolation_level=None)
    assert base.execute("pragma journal_mode=wal").fetchone() == ("wal",)
    return base


def move(path, seed):
    base = connect(path)
    for number in range(ROUNDS):
        one, other = (seed + number) % ACCOUNTS, (seed * 7 + number * 3) % ACCOUNTS
        base.execute("begin immediate")
        base.execute("update account set amount = amount - 1 where id = ?", (one,))
        base.execute("update account set amount = amount + 1 where id = ?", (other,))
        base.execute("commit")


def main(path):
    base = connect(path)
    base.execute("create table account (id integer primary key, amount integer)")
    base.executemany("insert into account values (?, 1000)", [(number,) for number in range(ACCOUNTS)])
    movers = [multiprocessing.Process(target=move, args=(path, seed)) for seed in (1, 2)]
    for mover in movers:
        mover.start()
    reads = 0
    while any(mover.is_alive() for mover in movers):
        assert base.execute("select sum(amount) from account").fetchone() == (SUM,)
        reads += 1
    for mover in movers:
        mover.join()
        assert mover.exitcode == 0
    assert base.execute("pragma integrity_check").fetchone() == ("ok",)
    base.execute("pragma wal_checkpoint(truncate)")
    base.close()
    assert sqlite3.connect(path).execute("select sum(amount) from account").fetchone() == (SUM,)
    print(f"WAL, 2 writers x {ROUNDS} transactions, {reads} reads beside them, whole")


main(sys.argv[1])
