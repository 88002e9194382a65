"""Lets code of the owner's judge answers: environments that a manifest names, once the owner has agreed to each."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial

from sapo_edge.cli.output import ask_yes, can_ask
from sapo_edge.library import environments
from sapo_edge.library.environments import agreed_code, record_code
from sapo_edge.plain import narrate, printable
from sapo_edge.state.paths import Paths
from sapo_edge.tasks.manifest import Manifest
from sapo_edge.tasks.source import Function


def judging(paths: Paths, manifest: Manifest | None) -> AbstractContextManager[Mapping[str, Function]]:
    """The environments that a manifest names, once the owner has agreed: see `sapo_edge.library.environments`."""
    return environments.judging(manifest, partial(agrees_to_code, paths, agree=False), narrate)


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
