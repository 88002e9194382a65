"""What the terminal app asks of the program that starts it: the host, the settings, and a node in the background.

The app knows a node's control socket and events alone. Everything else comes through this Protocol, which
`sapo_edge.cli.terminal.launcher` meets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from sapo_edge.state.paths import Paths

Network = Literal["solo", "swarm", "invite"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found on this host, for the first screen.

    Attributes:
        name: in a word: "Backend", "Model", "Memory" ...
        value: in a few words.
        reason: why it is so or what it means, in one sentence; may be empty.
        good: False for something that stands, or may stand, in the way; `reason` then says what to do.
    """

    name: str
    value: str
    reason: str = ""
    good: bool = True


@dataclass(frozen=True, slots=True)
class Findings:
    """What the first screen shows.

    Attributes:
        rows: in order.
        cores: that this process may use.
        battery: whether the machine has one.
        blocked: why no node can start; empty if one can.
    """

    rows: tuple[Finding, ...]
    cores: int
    battery: bool
    blocked: str = ""


@dataclass(frozen=True, slots=True)
class Consent:
    """What the owner agreed to on the first screen.

    Attributes:
        network: alone, with those on this network and in the open swarm, or with those of an invite.
        invite: the pasted line; empty unless `network` is "invite".
        threads: most processor threads; 0 lets the program choose.
        mains_only: rest on battery.
        yield_to_others: rest while other programs need the processor.
    """

    network: Network = "swarm"
    invite: str = ""
    threads: int = 0
    mains_only: bool = True
    yield_to_others: bool = True


@dataclass(frozen=True, slots=True)
class Ending:
    """How a node ended.

    Attributes:
        reason: in one sentence, for people.
        expected: whether it was asked to, or its rounds were done.
        lines: the last ones of its output and log, oldest first, as they are: escape them before they are shown.
    """

    reason: str
    expected: bool
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting as the next node would have it.

    Attributes:
        name, value, explanation: as in `sapo config show`.
        source: "default", "manifest NAME", "file PATH", "environment NAME" or "flag".
        default: the value without any source.
        allowed: the allowed values in words.
        choices: the allowed texts; empty where any text or number may stand.
        unit: of a number.
        live: whether a running node takes a new value.
    """

    name: str
    value: int | float | str | None
    source: str
    explanation: str
    default: int | float | str | None
    allowed: str
    choices: tuple[str, ...]
    unit: str
    live: bool


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """One piece of an answer in the chat.

    Attributes:
        adapter: whether the adapter wrote it, or the base model.
        text: the whole answer so far, not only what is new.
        done: whether it is complete.
        tokens_per_second: so far; 0 while unknown.
    """

    adapter: bool
    text: str
    done: bool
    tokens_per_second: float = 0.0


class Chat(Protocol):
    """A conversation with base model and adapter in a process of its own. Its methods block: call them in a thread."""

    def open(self, say: Callable[[str], None]) -> str:
        """Load model and adapter; `say` is told what takes time.

        Returns:
            Model and adapter in words: "SmolLM2-135M-Instruct, adapter of round 40 (held-out 0.66)".

        Raises:
            SapoError: if it can't be loaded.
        """
        ...

    def ask(self, text: str, *, task: bool, temperature: float, show: Callable[[ChatAnswer], None]) -> None:
        """Have both answer, and return when both are done, or `cancel` was called. Without an adapter, one answers.

        Args:
            text: the question.
            task: whether it is asked with the manifest's prompt, which the adapter was trained with, or as plain chat.
            temperature: 0 is greedy.
            show: called as the answers grow.

        Raises:
            SapoError: if the process ended or refused.
        """
        ...

    def cancel(self) -> None:
        """End the question in progress, from any thread; the next one can be asked."""
        ...

    def close(self) -> None:
        """End the process; may be called from any thread and ends whatever waits."""
        ...


class Launcher(Protocol):
    """What the command line offers the app. Methods may block for seconds unless they say otherwise."""

    @property
    def paths(self) -> Paths:
        """The directories of this installation. Does not block."""
        ...

    def consented(self) -> bool:
        """Whether the owner has agreed on the first screen, or a node already runs. Does not block."""
        ...

    def findings(self) -> Findings:
        """Look at the host."""
        ...

    def accept(self, consent: Consent) -> None:
        """Write what was chosen into the settings, join the swarm of an invite, and remember the consent.

        Raises:
            SapoError: if the invite can't be read, or the settings can't be written; then nothing was agreed to.
        """
        ...

    def start(self) -> None:
        """Start a node in the background, which outlives this process; returns as soon as its process exists.

        Raises:
            SapoError: if it can't be started.
        """
        ...

    def starting(self) -> Sequence[str]:
        """What a node that was started and does not answer yet has said so far, newest last. Does not block long."""
        ...

    def ended(self) -> Ending | None:
        """How the last node ended; None while one still runs or starts. Does not block long."""
        ...

    def settings(self) -> list[SettingRow]:
        """Every setting as the next node would have it.

        Raises:
            SapoError: if the file or the environment is wrong.
        """
        ...

    def setting(self, name: str) -> Any:
        """One setting, its default if the file is wrong. Does not block long."""
        ...

    def set(self, name: str, value: str | None) -> None:
        """Write a setting into `config.toml`; None takes it out.

        Raises:
            ConfigError: if it is not allowed or can't be written.
        """
        ...

    def chat(self) -> Chat:
        """A new conversation, not opened yet. Does not block."""
        ...
