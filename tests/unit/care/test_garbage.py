"""Garbage of connections beside large libraries."""

import gc
import subprocess
import sys

from sapo_edge.care.garbage import loading

# Objects of connections are old when the connection ends; 100 a connection, 50 connections at a time.
PROGRAM = """
from collections import deque
from sapo_edge.care.garbage import set_libraries_aside

class Connection:
    alive = most = 0

    def __init__(self):
        self.parts = [[self] for _ in range(100)]
        Connection.alive += 1
        Connection.most = max(Connection.most, Connection.alive)

    def __del__(self):
        Connection.alive -= 1

libraries = [[] for _ in range(300_000)]
set_libraries_aside()
open_ones = deque(maxlen=50)
for _ in range(1500):
    open_ones.append(Connection())
print(Connection.most)
"""


def test_what_connections_leave_behind_is_freed_soon_however_large_the_libraries_are() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    # Without it 800 with Python 3.11 and 3.12, 490 with 3.13.
    assert int(run.stdout) < 400


def test_what_loads_is_never_looked_through() -> None:
    try:
        with loading() as loaded:
            assert not gc.isenabled()
            libraries: list[list[int]] = [[] for _ in range(1000)]
            loaded()
            assert gc.isenabled() and gc.get_freeze_count() > len(libraries)
        with loading():
            pass
        assert gc.isenabled(), "a program that ends before it has loaded"
    finally:
        gc.unfreeze()
