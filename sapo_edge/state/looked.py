"""Until which round of a run somebody has looked, so that the terminal app can say what is new.

The file holds one number and is replaced as a whole. Of several apps the last one to write has the newest round.
"""

from __future__ import annotations

import re

from sapo_edge.state.durable import reported, write_atomically
from sapo_edge.state.paths import RunPaths

_NUMBER = re.compile(r"[0-9]{1,12}")


def read_looked(run: RunPaths) -> int:
    """The last round that somebody has seen; 0 if nobody looked yet, or the file holds anything else.

    Raises:
        StateError: if it can't be read.
    """
    with reported("read", run.looked):
        try:
            with run.looked.open("rb") as file:
                text = file.read(16).decode("ascii", "replace").strip()
        except FileNotFoundError:
            return 0
    return int(text) if _NUMBER.fullmatch(text) else 0


def write_looked(run: RunPaths, round: int) -> None:
    """Remember the last round that somebody has seen, in the run's directory, if there is one.

    Raises:
        StateError: if it can't be written.
    """
    if run.directory.is_dir():
        with reported("write", run.looked):
            write_atomically(run.looked, f"{round}\n".encode("ascii"))
