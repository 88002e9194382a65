"""How soon Python frees objects that refer to each other in cycles, which counting references alone never frees.

Each connection of libp2p leaves about a hundred of them behind. Python looks at old objects again once their number has
grown by a quarter. A node's libraries are half a million objects: in some hours 20 MB of garbage pile up. Looking
at all of them takes 0.3 s, in which nothing else runs.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator

OLDEST_AFTER = 2
"""Collections of younger objects, each after about 7,000 new ones, between two looks at the oldest; Python's own is 10.
Where few objects are old, a look takes milliseconds."""


def set_libraries_aside() -> None:
    """Look for garbage among the objects made from now on alone, and more often.

    Call it when what the program needs is loaded. What there is now is still freed once nothing refers to it.
    """
    gc.collect()
    gc.freeze()
    # Python compares with the number of old objects after the last look: none, from now on.
    gc.collect()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, OLDEST_AFTER)


@contextlib.contextmanager
def loading() -> Iterator[Callable[[], None]]:
    """Look for no garbage until the program has loaded, and never among what it loads.

    Yields:
        Call it when all is loaded. Else looking begins at the block's end.
    """

    def loaded() -> None:
        gc.freeze()
        gc.enable()

    gc.disable()
    try:
        yield loaded
    finally:
        gc.enable()
