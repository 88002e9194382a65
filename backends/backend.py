"""What a backend declares about itself, so that it can be chosen without being loaded.

Another package adds a backend with an entry point of the group `sapo_edge.backends` that names a `Backend`:
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
class Support:
    """Whether a backend runs on a machine, and how well.

    Attributes:
        preference: the usable backend with the largest one is chosen. Built in: 40 on Apple silicon, 20 to 30 on other
            GPUs, 10 for llama.cpp, less for what runs slower.
        reason: what it computes on, or why it can't run.
        potential: the preference it would have if nothing were missing.
        missing: what keeps it from that, in a sentence; "" if nothing does.
        trains: whether it can learn, or only sample.
        free: bytes of free memory on its device; 0 if that is the machine's own memory.
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
class OpenOptions:
    """What a policy is opened with.

    Attributes:
        model: a GGUF file, or a directory with config.json.
        cache: directory for derived files.
        workspace: directory for files of this process.
        threads: CPU threads; 0 chooses.
        trainable: whether `update` and `save` will be called.
        narrate: called with a line of text before something that takes time.
        thinking: whether the model may think before it answers.
        quantise: the format to which torch quantises a directory's matrices on a CPU; "": none.
        precision: of a CPU's products while the model learns: "auto", "float32" or "bfloat16".
        size: of the largest round, which has to fit into the memory; None checks nothing.
        sampled: the number format that llama.cpp samples from; "": the fastest here, which is measured.
    """

    model: Path
    cache: Path
    workspace: Path
    lora: LoraSettings
    threads: int
    trainable: bool
    narrate: Callable[[str], None]
    thinking: bool = False
    quantise: str = ""
    precision: str = "float32"
    size: RoundShape | None = None
    sampled: str = ""


@dataclass(frozen=True, slots=True)
class RoundShape:
    """Sizes of a round, for an estimate of memory.

    Attributes:
        groups, answers: questions, and answers to each.
        prompt_tokens, max_tokens: most tokens of a question and of an answer.
        memory: most bytes to take; 0 is what is free.
        quantise, precision: as in `OpenOptions`.
        cache: directory for derived files, with what was measured on this machine; None for none.
    """

    rank: int
    groups: int
    answers: int
    prompt_tokens: int
    max_tokens: int
    trainable: bool = True
    memory: int = 0
    quantise: str = ""
    precision: str = "float32"
    cache: Path | None = None


OpenedPolicy: TypeAlias = tuple[Policy, tuple[str, ...]]
"""A policy, and the reasons for what it chose by itself."""


@dataclass(frozen=True, slots=True)
class Backend:
    """A backend's description. Creating one loads nothing.

    Attributes:
        name: in the settings: lower case, digits, "_".
        title: for people.
        look: (machine, model or None) to how well it runs. Reads files, imports nothing heavy.
        estimate: memory of a round with a model; None if it can't be known beforehand.
        probe: Python code that fails if something it needs is broken; `sapo doctor` runs it in a process of its own.
        packages: distributions whose versions `sapo doctor` shows.
    """

    name: str
    title: str
    look: Callable[[Host, Path | None], Support]
    open: Callable[[OpenOptions], OpenedPolicy]
    estimate: Callable[[Path, RoundShape], MemoryEstimate] | None = None
    probe: str = ""
    packages: tuple[str, ...] = ()
