"""What a backend declares about itself, so that it can be chosen without being loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from sapo_edge.backends.machine.host import Host
from sapo_edge.policy import LoraSettings, Policy


@dataclass(frozen=True, slots=True)
class Support:
    """Whether a backend runs on a machine, and how well.

    Attributes:
        preference: the usable backend with the largest one is chosen. Built in: 40 on Apple silicon, 20 to 30 on other
            GPUs, 10 for llama.cpp, less for what runs slower.
        reason: what it computes on, or why it can't run.
        potential: the preference it would have if nothing were missing.
        missing: what keeps it from that, in a sentence; "" if nothing does.
        free: bytes of free memory on its device; 0 if that is the machine's own memory, -1 if only opening it tells.
    """

    usable: bool
    preference: int
    reason: str
    potential: int = 0
    missing: str = ""
    remedy: str = ""
    trains: bool = True
    free: int = 0


def silent(_text: str) -> None:
    """A `narrate` that says nothing."""


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """What a policy is opened with.

    Attributes:
        model: a GGUF file, or a directory with config.json, safetensors and tokenizer.
        cache, workspace: for derived files, and for those of this process, such as the adapter that llama.cpp reads.
        threads: CPU threads; 0 adapts to the load of other programs.
        trainable: if false, `update` raises an error, and nothing that only learning needs is loaded.
        narrate: called with a line of text before something that takes time, while the policy is made.
        quantise: the format to which torch quantises a directory's matrices on a CPU; "": none.
        precision: of a CPU's products while the model learns: "auto", "float32" or "bfloat16".
        sampler: what answers while the llama.cpp backend learns: "auto", the faster here, "llama_cpp" or "torch".
        size: of the largest round, which has to fit into the memory; None checks nothing.
        sampled: the number format that llama.cpp samples from, one of `requantise.BYTES_PER_WEIGHT`; "": the fastest
            here, which is measured.
    """

    model: Path
    cache: Path
    workspace: Path
    lora: LoraSettings = field(default_factory=LoraSettings)
    threads: int = 0
    trainable: bool = True
    narrate: Callable[[str], None] = silent
    thinking: bool = False
    quantise: str = ""
    precision: str = "float32"
    sampler: str = "auto"
    size: RoundShape | None = None
    sampled: str = ""


PROMPT_TOKENS = 256
"""Length of the prompts that an estimate of memory assumes."""


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


class OpenedPolicy(Policy, Protocol):
    """A policy that says what it chose for the user and why, a sentence each."""

    @property
    def reasons(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class Backend:
    """A backend's description. Creating one loads nothing.

    Attributes:
        name: in the settings: lower case, digits, "_".
        look: (machine, model or None) to how well it runs. Reads files, imports nothing heavy.
        open: raises BackendError if something it needs is missing or broken, ModelError if it can't use the model.
        probe: Python code that fails if something it needs is broken; `sapo doctor` runs it in a process of its own.
        packages: distributions whose versions `sapo doctor` shows.
    """

    name: str
    title: str
    look: Callable[[Host, Path | None], Support]
    open: Callable[[OpenOptions], OpenedPolicy]
    estimate: Callable[[Path, RoundShape], int]
    probe: str
    packages: tuple[str, ...]
