"""What the terminal app needs besides the control socket: this computer, the settings, and a node in the background.

`sapo_edge.cli.terminal.launcher` implements the Protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from sapo_edge.config.settings import Setting
from sapo_edge.node.background import Ended
from sapo_edge.state.paths import Paths
from sapo_edge.tui.node.machine import Load
from sapo_edge.tui.node.processes import Chat, Job

if TYPE_CHECKING:
    # These load the journal, which the first picture does without.
    from sapo_edge.control.run_report import RunReport
    from sapo_edge.control.runs import RunView
    from sapo_edge.experiment.watch import ExperimentView

Network = Literal["solo", "swarm", "invite", "joined"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A property of this computer, for the first screen, with a name of one word.

    `reason` explains it in one sentence or is empty; if it may be a problem (not `good`), it says what to do.
    """

    name: str
    value: str
    reason: str = ""
    good: bool = True


@dataclass(frozen=True, slots=True)
class Findings:
    """What the first screen shows.

    Attributes:
        cores: number of cores that this process may use.
        blocked: why no node can start; empty if one can.
        login: whether a node could start at every login, and none does yet.
    """

    rows: tuple[Finding, ...]
    cores: int
    battery: bool
    blocked: str = ""
    login: bool = False


@dataclass(frozen=True, slots=True)
class Choices:
    """What is set now of the things that the first screen lets the user choose.

    Attributes:
        network: alone ("solo"), this network and the open swarm ("swarm"), or a swarm that was joined ("joined").
        swarm: name of the joined swarm, unless it is the open one; unescaped; empty without one.
        threads: most processor threads; 0 lets the program choose.
        yield_to_others: pause while other programs need the processor.
        private: whether the questions are the user's own, which no open swarm gets.
        manifest: what is trained: a shipped name, or a file.
        curves: where the figures of rounds are sent, by the setting `curves`; empty if nowhere.
    """

    network: Network = "swarm"
    swarm: str = ""
    threads: int = 0
    mains_only: bool = True
    yield_to_others: bool = False
    private: bool = False
    manifest: str = "starter"
    curves: str = ""


@dataclass(frozen=True, slots=True)
class Consent:
    """What the user changed of the `Choices` before agreeing; None leaves a thing as it is.

    The network may also be "invite": the swarm of the pasted `invite`, which is empty otherwise.
    """

    network: Network | None = None
    invite: str = ""
    threads: int | None = None
    mains_only: bool | None = None
    yield_to_others: bool | None = None
    manifest: str | None = None


@dataclass(frozen=True, slots=True)
class SwarmCard:
    """A node's swarm: the unescaped name of its manifest, "" if it works alone, and its id in hexadecimal."""

    name: str = ""
    private: bool = False
    id: str = ""


@dataclass(frozen=True, slots=True)
class SettingRow:
    """A setting of the next node; source: "default", "manifest NAME", "file PATH", "environment NAME" or "flag"."""

    setting: Setting
    value: int | float | str | None
    source: str

    @property
    def name(self) -> str:
        return self.setting.name


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the run has produced so far, also as the control method `history` tells it: empty before its first round."""

    report: RunReport
    history: Mapping[str, Any]


class Launcher(Protocol):
    """What the command line provides to the app.

    Methods may block for seconds unless they say otherwise. They raise SapoError if settings, a file or the journal
    can't be read or written, unless they say what they return then.
    """

    @property
    def paths(self) -> Paths:
        """The directories of this installation. Does not block."""

    def consented(self) -> bool:
        """Whether the user has agreed to what a node would do now, or a node runs already. Does not block."""

    def findings(self) -> Findings:
        """Check this computer as `sapo doctor` does, without loading the backends."""

    def choices(self) -> Choices:
        """What is set now; the defaults if the settings are invalid. Does not block long."""

    def accept(self, consent: Consent) -> None:
        """Save the changes as settings, join a swarm if that changes, and store the consent: all of it or nothing."""

    def start(self) -> None:
        """Start a node in the background that outlives this process; return as soon as its process exists."""

    def end_start(self) -> bool:
        """Ask a node that was started in the background to end, though it does not answer yet; whether there is one."""

    def starting(self) -> Sequence[str]:
        """The output so far of a node that is starting, newest line last. Does not block long."""

    def ended(self) -> Ended | None:
        """How the last node ended; None while one runs or starts. Does not block long, and raises nothing."""

    def settings(self) -> list[SettingRow]:
        """Every setting as the next node has it."""

    def setting(self, name: str) -> Any:
        """The value of a setting; its default if the file is invalid. Does not block long."""

    def set(self, name: str, value: str | None) -> None:
        """Write a setting into `config.toml`; None removes it. To leave "solo" for `network` agrees to share.

        ConfigError if the value is not allowed or can't be written; StateError if that agreement can't be recorded.
        """

    def chat(self) -> Chat:
        """A new conversation, to be opened. Does not block."""

    def swarm(self) -> SwarmCard | None:
        """The swarm that the next node takes part in; None if the settings are invalid. Does not block long."""

    def swarm_against(self, manifest: str) -> tuple[str, str]:
        """A manifest's digest (hex), and the unescaped name of the joined swarm if it trains on another; "" if not."""

    def outcome(self) -> Outcome:
        """What the run has produced so far, whether a node runs or not."""

    def news(self) -> str:
        """What the run has learned since somebody looked, in a sentence; "" without rounds. Remembers this look."""

    def looked(self, round: int) -> None:
        """Remember that somebody looked until this round of the run of the last `news`. Does not block long."""

    def runs(self) -> Sequence[RunView]:
        """All runs of this installation."""

    def history(self, run: str = "", rounds: tuple[int, int] | None = None) -> Mapping[str, Any]:
        """A run as the control method `history` tells it, in at most `MAX_POINTS` points; empty before its first round.

        The run "" is the one that nodes continue; `rounds` are the first and the last of the points.
        """

    def experiment(self, directory: Path) -> ExperimentView:
        """What an experiment has found so far."""

    def load(self, pid: int) -> Load:
        """What a node takes of this machine now; 0 for one that is starting. Blocks for milliseconds."""

    def starts_at_login(self) -> bool:
        """Whether a node starts whenever this user logs in; an error if no service manager answers."""

    def job(self, *arguments: str, text: str = "") -> Job:
        """A command of `sapo` with its arguments and its standard input, to be run. Does not block."""
