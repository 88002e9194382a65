"""The table of settings: name, type, default, bounds, unit and explanation of each.

Validation, `sapo config show` and the documentation all read this one table; `config.py` resolves the layers.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from importlib.metadata import entry_points
from typing import Any

from sapo_edge.config import quiet_hours
from sapo_edge.errors import ConfigError
from sapo_edge.plain import did_you_mean

MAX_SEED = 2**63 - 1
"""Largest seed."""
BACKENDS = "sapo_edge.backends"
"""The group of entry points by which other packages add backends: `docs/backends.md`."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is known about one setting.

    Attributes:
        name: in `config.toml`, and in flags with "-" for "_".
        kind: int, float or str.
        default: None means that something else decides, as `explanation` says.
        low, high: allowed range, both included; for numbers only.
        above: whether `low` itself is excluded.
        choices: allowed texts; empty for any text.
        further: gives more allowed texts, which depend on the installation.
        form: in words, what values have to look like beyond that.
        parse: raises ValueError for a value that is not of that form.
        unit: of a number, "" if it has none.
        explanation: one sentence.
        manifest: whether a manifest, which may come from a stranger, may suggest it.
        live: whether a running node takes a new value, from its next round on at the latest.
    """

    name: str
    kind: type[int] | type[float] | type[str]
    default: int | float | str | None
    low: float = 0
    high: float = 0
    above: bool = False
    choices: tuple[str, ...] = ()
    further: Callable[[], tuple[str, ...]] | None = None
    form: str = ""
    parse: Callable[[Any], object] | None = None
    unit: str = ""
    explanation: str = ""
    manifest: bool = False
    live: bool = False

    @property
    def allowed(self) -> str:
        """The allowed values in words."""
        if self.choices:
            return "one of " + ", ".join(self.choices) + (", or " + self.form if self.form else "")
        if self.form:
            return self.form
        if self.kind is str:
            return "text"
        number = "an integer" if self.kind is int else "a number"
        return (
            f"{number} above {self.low} and at most {self.high}"
            if self.above
            else f"{number} from {self.low} to {self.high}"
        )

    def check(self, value: object, source: str) -> int | float | str:
        """The value in its own type, if it is allowed; text is read as a number where a number belongs.

        Text is what the environment and the command line hold; `config.toml` has types of its own and does not get here
        with a quoted number (`config.py` sees to that).

        Raises:
            ConfigError: naming the setting, the value, the allowed range and the source.
        """
        converted = self._converted(value)
        if converted is None:
            raise self.refusal(value, source)
        if self.choices and converted not in self.choices and not (self.further and converted in self.further()):
            raise self.refusal(value, source)
        if self.parse is not None:
            try:
                self.parse(converted)
            except ValueError as error:
                raise self.refusal(value, source) from error
        if isinstance(converted, str):
            if not converted.isprintable():
                raise self.refusal(value, source)
            return converted
        # Written so that NaN fails.
        if not (self.low <= converted <= self.high) or (self.above and converted == self.low):
            raise self.refusal(value, source)
        return converted

    def refusal(self, value: object, source: str) -> ConfigError:
        """The error for a value that is not allowed."""
        shown = reprlib.repr(value)
        known = (*self.choices, *(self.further() if self.further else ()))
        hint = did_you_mean(value, known, "")
        remedy = f"give {self.allowed}; {hint}" if hint else f"give {self.allowed}"
        return ConfigError(f"{self.name} = {shown} ({source}) is not allowed", remedy)

    def _converted(self, value: object) -> int | float | str | None:
        if isinstance(value, bool):
            return None
        if self.kind is str:
            return value if isinstance(value, str) else None
        try:
            if isinstance(value, str):
                return int(value) if self.kind is int else float(value)
            if isinstance(value, int):
                return value if self.kind is int else float(value)
        except (ValueError, OverflowError):
            return None
        return value if isinstance(value, float) and self.kind is float else None


def _setting(default: int | float | str | None, explanation: str, **details: Any) -> Any:
    return dataclasses.field(default=default, metadata={"explanation": explanation, **details})


def _temperature(degrees: int) -> None:
    """Refuse what no processor falls to: the node would rest for good."""
    if 0 < degrees < 40:
        raise ValueError(f"{degrees} °C is too cold for a processor")


def _other_backends() -> tuple[str, ...]:
    """Names of the backends that other packages add; nothing of them is loaded."""
    return tuple(sorted(entry_points(group=BACKENDS).names))


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting of a node, validated by `config.resolve`."""

    manifest: str = _setting(
        "starter", "What to train on: the name of a manifest that ships with the program, or a file."
    )
    model: str = _setting("", "The GGUF file of the model to train; empty is the embedded one.")
    backend: str = _setting(
        "auto",
        "What runs the model; auto takes the best that this machine can use.",
        choices=("auto", "llama_cpp", "torch", "mlx"),
        further=_other_backends,
        form="an installed package's",
    )
    role: str = _setting(
        "trainer",
        "trainer learns; generator answers questions and shares the answers, with less memory, and never learns.",
        choices=("trainer", "generator"),
    )
    own: int = _setting(4, "The paper's I: own rollouts in each update.", low=1, high=256, unit="rollouts", live=True)
    external: int = _setting(
        4,
        "The paper's J: rollouts of other nodes in each update; own ones stand in for those that are missing.",
        low=0,
        high=256,
        unit="rollouts",
        live=True,
    )
    questions: int = _setting(
        0,
        "Questions answered in each round, at least `own`; 0 is as many as `own`, more are for sharing.",
        low=0,
        high=256,
        unit="questions",
        live=True,
    )
    answers: int = _setting(
        8,
        "The paper's L: answers to each question; a group of one has no advantage.",
        low=2,
        high=32,
        unit="answers",
        live=True,
    )
    strategy: str = _setting(
        "informative",
        "How rollouts of others are chosen: only those with a gradient, any, or evenly from authors and tasks.",
        choices=("informative", "uniform", "balanced"),
        live=True,
    )
    rounds: int = _setting(
        0, "Rounds after which to stop; 0 goes on until stopped.", low=0, high=1_000_000_000, unit="rounds", live=True
    )
    temperature: float = _setting(1.0, "Sampling temperature of own answers.", low=0.05, high=2, live=True)
    max_tokens: int = _setting(
        0, "Longest answer; 0 is the manifest's own limit.", low=0, high=2048, unit="tokens", manifest=True
    )
    learning_rate: float = _setting(
        2e-4, "Adam's learning rate after the warm-up.", low=0, high=1e-2, above=True, live=True
    )
    warmup: int = _setting(
        5, "Updates over which the learning rate rises to its value.", low=0, high=10_000, unit="updates"
    )
    decay_after: int = _setting(
        20,
        "Update from which the learning rate falls with the inverse square root of their number; 0 keeps it.",
        low=0,
        high=1_000_000,
        unit="updates",
    )
    epochs: int = _setting(1, "Passes over the rollouts of a round.", low=1, high=8, unit="passes")
    kl: float = _setting(
        0.0, "Weight of the KL term that holds the adapter near the base model; 0 leaves it out.", low=0, high=1
    )
    clip_low: float = _setting(0.2, "The probability ratio is clipped below 1 minus this.", low=0, high=1, above=True)
    clip_high: float = _setting(0.28, "The probability ratio is clipped above 1 plus this.", low=0, high=5, above=True)
    importance_cap: float = _setting(
        2.0, "Largest importance weight between sampler and learner.", low=0, high=100, above=True
    )
    max_gradient_norm: float = _setting(
        1.0, "The gradient is scaled down to this L2 norm.", low=0, high=1000, above=True
    )
    rank: int = _setting(16, "Rank of the LoRA adapter.", low=1, high=256)
    alpha: float = _setting(32.0, "The LoRA adapter is scaled by alpha / rank.", low=0, high=1024, above=True)
    threads: int = _setting(
        0, "Processor threads for the model; 0 chooses by the machine.", low=0, high=1024, unit="threads"
    )
    nice: int = _setting(
        10,
        "How far a node lets other programs go first, on the processor and on Linux on the disk; 0 is not at all.",
        low=0,
        high=19,
    )
    on_battery: str = _setting(
        "pause", "Whether the node rests while the machine runs on its battery.", choices=("pause", "run"), live=True
    )
    max_temperature: int = _setting(
        90,
        "Temperature of the processor from which the node rests until it is 10 lower; 0 never does.",
        low=0,
        high=120,
        form="0, or an integer from 40 to 120",
        parse=_temperature,
        unit="°C",
        live=True,
    )
    busy: int = _setting(
        0,
        "Use of all cores by other programs from which the node rests until it is half of that; 0 never does.",
        low=0,
        high=90,
        unit="percent",
        live=True,
    )
    quiet_hours: str = _setting(
        "",
        "Hours of the local clock in which the node rests.",
        form=quiet_hours.FORM,
        parse=quiet_hours.parse,
        live=True,
    )
    evaluate_every: int = _setting(
        10,
        "Rounds between held-out evaluations; 0 evaluates only at start and end.",
        low=0,
        high=1_000_000,
        unit="rounds",
        live=True,
    )
    held_out: int = _setting(
        100, "Questions of a held-out evaluation; 0 makes none.", low=0, high=100, unit="questions"
    )
    keep_checkpoints: int = _setting(
        3, "Newest checkpoints to keep, beside the best one.", low=1, high=1000, unit="checkpoints"
    )
    network: str = _setting(
        "swarm", "swarm shares rollouts with other nodes; solo works alone.", choices=("swarm", "solo")
    )
    port: int = _setting(0, "TCP port on which the swarm is joined; 0 takes any.", low=0, high=65535)
    listen: str = _setting(
        "all",
        "Who may connect: any computer that reaches this one, or only programs on it.",
        choices=("all", "loopback"),
    )
    mdns: str = _setting("on", "Look for nodes on the local network, and be found there.", choices=("on", "off"))
    bootstrap: str = _setting("", "Addresses to dial first, with commas between them, beside those of an invite.")
    share: int = _setting(
        64,
        "Rollouts a round that a node wants to receive; each shares so much that all together come to it.",
        low=1,
        high=1024,
        unit="rollouts",
    )
    upload: int = _setting(
        0, "Most that is sent to the swarm; 0 sets no limit.", low=0, high=1_000_000_000, unit="bytes/s"
    )
    download: int = _setting(
        0, "Most that is received from the swarm; 0 sets no limit.", low=0, high=1_000_000_000, unit="bytes/s"
    )
    seed: int | None = _setting(
        None, "Seed of tasks and sampling; without one, each node's identity gives its own.", low=0, high=MAX_SEED
    )

    on_quit: str = _setting(
        "ask",
        "Whether the node goes on when the terminal app is quit; ask asks, and remembers the answer here.",
        choices=("ask", "keep", "stop"),
    )
    theme: str = _setting(
        "", "Colours of the terminal app, by the name of a theme; empty takes what fits the terminal."
    )

    def as_dict(self) -> dict[str, int | float | str | None]:
        """All values by name, for events and checkpoints."""
        return asdict(self)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of `bootstrap`, one by one."""
        return tuple(address.strip() for address in self.bootstrap.split(",") if address.strip())

    @property
    def drawn(self) -> int:
        """Questions to answer in a round: `questions`, or `own` where that is 0."""
        return self.questions or self.own


def _table() -> dict[str, Setting]:
    kinds: dict[str, type[int] | type[float] | type[str]] = {"int": int, "float": float, "str": str, "int | None": int}
    defaults = Settings().as_dict()
    return {
        item.name: Setting(item.name, kinds[str(item.type)], defaults[item.name], **item.metadata)
        for item in fields(Settings)
    }


SETTINGS: Mapping[str, Setting] = _table()
"""Every setting by name, in the order in which they are shown."""


def reference() -> str:
    """The Markdown table of all settings."""
    lines = ["| Setting | Default | Allowed | Unit | Meaning |", "|---|---|---|---|---|"]
    for item in SETTINGS.values():
        default = "" if item.default is None else str(item.default) or "empty"
        lines.append(f"| `{item.name}` | {default} | {item.allowed} | {item.unit} | {item.explanation} |")
    return "\n".join(lines) + "\n"
