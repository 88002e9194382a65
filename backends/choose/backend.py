"""What a backend tells about itself, so that it can be chosen without being loaded.

A package of somebody else adds one by an entry point of the group `sapo_edge.backends` that names a `Backend`:
`docs/backends.md` has an example.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from sapo_edge.backends.machine.host import Host
from sapo_edge.policy import LoraSettings, MemoryEstimate, Policy


@dataclass(frozen=True, slots=True)
class Standing:
    """How a backend stands on a host.

    Attributes:
        usable: whether it can run here.
        preference: the usable one with the largest is chosen. Built-in ones: 40 on Apple silicon and 30 on another GPU,
            10 for llama.cpp, less for what runs and is slower.
        reason: what it would run on and why that is good, or why it can't run.
        potential: the preference that it could have if nothing were missing.
        missing: what keeps it from that, in a sentence; "" if nothing does.
        remedy: against it.
        trains: whether it can learn, and not only sample.
        free: bytes of memory that are free where it would run; 0 where that is the machine's.
    """

    usable: bool
    preference: int
    reason: str
    potential: int = 0
    missing: str = ""
    remedy: str = ""
    trains: bool = True
    free: int = 0


@dataclass(frozen=True, slots=True)
class Opening:
    """What a policy is opened with.

    Attributes:
        model: a GGUF file, or a directory with config.json.
        cache: directory for derived files.
        workspace: directory for files of this process.
        lora: shape of the adapter.
        threads: processor threads; 0 chooses.
        trainable: whether `update` and `save` will be called.
        narrate: told what takes time.
    """

    model: Path
    cache: Path
    workspace: Path
    lora: LoraSettings
    threads: int
    trainable: bool
    narrate: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RoundShape:
    """Sizes of a round, for an estimate of memory."""

    rank: int
    groups: int
    answers: int
    prompt_tokens: int
    max_tokens: int
    trainable: bool = True


Opened: TypeAlias = tuple[Policy, tuple[str, ...]]
"""A policy, and the reasons of what it chose itself."""


@dataclass(frozen=True, slots=True)
class Backend:
    """A backend, described. Making one loads nothing.

    Attributes:
        name: in the settings: lower case, digits, "_".
        title: for people.
        look: (host, the model or None) to how it stands. Reads files, imports nothing heavy.
        open: makes a policy.
        estimate: memory of a round with a model; None if it can't be told beforehand.
        probe: Python code that fails if what it needs is broken; run in a process of its own by `sapo doctor`.
        packages: distributions whose versions are of interest.
    """

    name: str
    title: str
    look: Callable[[Host, Path | None], Standing]
    open: Callable[[Opening], Opened]
    estimate: Callable[[Path, RoundShape], MemoryEstimate] | None = None
    probe: str = ""
    packages: tuple[str, ...] = ()
