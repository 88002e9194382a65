"""Logging despite libp2p. This module does not import the library."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def preserve_logging() -> Iterator[None]:
    """Undo what importing libp2p does to logging: it installs handlers on stderr, and logs text of peers.

    Import whatever imports libp2p inside this context.
    """
    root, library = logging.getLogger(), logging.getLogger("libp2p")
    level, handlers = root.level, list(root.handlers)
    try:
        yield
    finally:
        root.setLevel(level)
        # Without any handler, logging.warning(), which libp2p calls, would install one on stderr.
        root.handlers[:] = handlers or [logging.NullHandler()]
        for name in [name for name in logging.root.manager.loggerDict if name.startswith("libp2p.")]:
            logging.getLogger(name).handlers.clear()
        library.handlers[:] = [logging.NullHandler()]
        library.propagate = root.isEnabledFor(logging.DEBUG)
