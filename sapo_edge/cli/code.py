"""Lets code of the owner's judge answers: environments that a manifest names, once the owner has agreed to each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from sapo_edge.cli.output import ask_yes, can_ask, narrate
from sapo_edge.library.environments import Environments, agreed_code, record_code
from sapo_edge.plain import printable
from sapo_edge.state.paths import Paths
from sapo_edge.tasks.manifest import Manifest
from sapo_edge.tasks.source import Function


@contextmanager
def judging(paths: Paths, manifest: Manifest | None) -> Iterator[Mapping[str, Function]]:
    """The environments that a manifest names, loaded; they end with the block.

    Args:
        manifest: None for none, and for that of a swarm: what others send names no code.

    Raises:
        ConfigError: if the owner does not agree to one, or it can't be used.
        DataError: if one can't be loaded.
    """
    if manifest is None:
        yield {}
        return
    agreed = partial(agrees_to_code, paths, agree=False)
    environments = Environments(manifest.functions, agreed, narrate)
    try:
        for code in environments:
            # One that can't be used fails here, before a model is loaded.
            environments[code]
        yield environments
    finally:
        environments.close()


def agrees_to_code(paths: Paths, name: str, *, agree: bool) -> bool:
    """Whether the owner has agreed to run an environment; asks on a terminal, and records a yes."""
    if name in agreed_code(paths.code):
        return True
    if not agree:
        if not can_ask():
            return False
        narrate(f"{printable(name)} is an environment, a program that is installed on this machine. It would run here,")
        narrate("as you, to give questions and to judge answers: it can read your files and use the network.")
        if not ask_yes("Run it?"):
            return False
    paths.create()
    record_code(paths.code, name, "--agree-code" if agree else "terminal")
    return True
