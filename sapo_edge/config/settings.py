"""The table of settings: name, type, default, bounds, unit and explanation of each.

Validation, `sapo config show` and the documentation read this table; `layers.py` decides where each value comes from.
"""

from __future__ import annotations

import dataclasses
import re
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from ipaddress import IPv6Address
from typing import Any

from sapo_edge.config import quiet_hours
from sapo_edge.config.curves import check_library
from sapo_edge.errors import ConfigError
from sapo_edge.plain import did_you_mean

MAX_HEAD_START = 20_000
"""Most updates of a head start."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    Attributes:
        name: in `config.toml`; in flags with "-" for "_".
        default: None if something else decides, as `explanation` says.
        low, high: allowed range of a number, both included; from 0 unless something else is said.
        above: whether `low` itself is excluded.
        choices: allowed texts; empty for any text.
        form: the allowed values in words, where choices or a range don't tell.
        parse: raises ValueError for a value that is not of that form.
        explanation: what it does, and what special values mean.
        live: whether a running node accepts a new value, from its next round on.
        compared: whether runs may learn otherwise by it, the end of a run aside, which its length tells.
    """

    name: str
    kind: type[int] | type[float] | type[str]
    default: int | float | str | None
    low: float = 0
    high: float = 0
    above: bool = False
    choices: tuple[str, ...] = ()
    form: str = ""
    parse: Callable[[Any], object] | None = None
    unit: str = ""
    explanation: str = ""
    live: bool = False
    compared: bool = True

    @property
    def allowed(self) -> str:
        """The allowed values in words."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.form:
            return self.form
        if self.kind is str:
            return "text"
        number = "an integer" if self.kind is int else "a number"
        span = f"above {self.low} and at most" if self.above else f"from {self.low} to"
        return f"{number} {span} {self.high}"

    def check(self, value: object, source: str) -> int | float | str:
        """Convert a value to the setting's type and check it.

        Numbers may come as text, from the environment or the command line. `read_file` rejects them in `config.toml`.
        A ConfigError names the setting, the value, the allowed range and the source.
        """
        converted = self._convert(value)
        if converted is None or not self._allows(converted):
            raise self.error(value, source)
        return converted

    def error(self, value: object, source: str) -> ConfigError:
        hint = did_you_mean(value, self.choices, "")
        remedy = f"give {self.allowed}; {hint}" if hint else f"give {self.allowed}"
        return ConfigError(f"{self.name} = {reprlib.repr(value)} ({source}) is not allowed", remedy)

    def _allows(self, value: int | float | str) -> bool:
        if self.parse is not None:
            try:
                self.parse(value)
            except ValueError:
                return False
        if isinstance(value, str):
            return value.isprintable() and (not self.choices or value in self.choices)
        # NaN fails this comparison.
        return self.low <= value <= self.high and not (self.above and value == self.low)

    def _convert(self, value: object) -> int | float | str | None:
        if isinstance(value, bool):
            return None
        if self.kind is str:
            # A text with a form of its own may be a number, too.
            return value if isinstance(value, str) else str(value) if isinstance(value, int) and self.parse else None
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


def head_start_limit(text: str) -> int | None:
    """The number of updates of a head start; None for "auto", a ValueError for any other text."""
    if text == "auto":
        return None
    if not (text.isascii() and text.isdecimal() and int(text) <= MAX_HEAD_START):
        raise ValueError(f"{text!r} is not a number of updates")
    return int(text)


def dht_contacts(text: str) -> tuple[tuple[str, int], ...] | None:
    """Host and port of DHT nodes for the first contact: None for "on", none for "off"; or a ValueError."""
    if text in ("on", "off"):
        return None if text == "on" else ()
    contacts = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(?:([0-9A-Za-z.-]{1,253})|\[([0-9A-Fa-f:.]{2,45})\]):([0-9]{1,5})\s*", part)
        if match is None or not 0 < int(match[3]) < 65536:
            raise ValueError(f"{part!r} is not host:port or [IPv6]:port")
        contacts.append((match[1] or str(IPv6Address(match[2])), int(match[3])))
    return tuple(contacts)


def _temperature(degrees: int) -> None:
    """Reject temperatures that no processor falls to: the node would pause forever."""
    if 0 < degrees < 40:
        raise ValueError(f"{degrees} °C is too cold for a processor")


@dataclass(frozen=True, slots=True)
class Settings:
    """The values of all settings, validated by `layers.resolve`."""

    manifest: str = _setting(
        "starter", "Tasks to train on: a shipped manifest's name, a file, or the name or digest of a swarm's manifest."
    )
    model: str = _setting("", "GGUF file or Hugging Face directory of the model to train. Empty: the built-in model.")
    backend: str = _setting(
        "auto",
        "What runs the model. auto: the best that works on this machine.",
        choices=("auto", "llama_cpp", "torch", "mlx"),
    )
    thinking: str = _setting(
        "off",
        "Let a model think before it answers, if it can. Few finish within a manifest's limit: raise max_tokens too.",
        choices=("off", "on"),
    )
    quantise: str = _setting(
        "none",
        "Number format to which torch on a CPU quantises the matrices of a model's directory when it loads it.",
        choices=("none", "q4_k", "q5_k", "q8_0"),
    )
    precision: str = _setting(
        "auto",
        "Number format of the products with the model's weights while it learns on a CPU. auto: the faster "
        "of the two here, which is measured once where the processor has instructions for bfloat16; elsewhere float32.",
        choices=("auto", "float32", "bfloat16"),
    )
    sampler: str = _setting(
        "auto",
        "What answers questions on a CPU while the llama_cpp backend learns. auto: the faster of the two here, "
        "measured once for a model.",
        choices=("auto", "llama_cpp", "torch"),
    )
    role: str = _setting(
        "trainer",
        "trainer: learn. generator: only answer questions and share the answers, which needs less memory.",
        choices=("trainer", "generator"),
    )
    own: int = _setting(4, "The paper's I: own rollouts in each update.", low=1, high=256, unit="rollouts", live=True)
    external: int = _setting(
        4,
        "The paper's J: rollouts of other nodes in each update. Own ones replace missing ones.",
        high=256,
        unit="rollouts",
        live=True,
    )
    protect: str = _setting(
        "on",
        "Take fewer rollouts of other nodes while the validation accuracy falls, and own ones instead. "
        "off: always as many as `external` says, as in the paper.",
        choices=("on", "off"),
        live=True,
    )
    answers: int = _setting(
        8, "The paper's L: answers to each question, which form a group.", low=2, high=32, unit="answers", live=True
    )
    strategy: str = _setting(
        "informative",
        "How rollouts of other nodes are chosen. informative: those with a gradient, and those that are all right of "
        "tasks whose own groups seldom have one, in turn by network, author, task. "
        "published: with a gradient, at random, as in the paper. uniform: any.",
        choices=("informative", "published", "uniform"),
        live=True,
    )
    rounds: int = _setting(
        0, "Stop after this round. 0: run until stopped.", high=1_000_000_000, unit="rounds", live=True, compared=False
    )
    temperature: float = _setting(1.0, "Sampling temperature of own answers.", low=0.05, high=2, live=True)
    max_tokens: int = _setting(0, "Longest answer. 0: the manifest's limit.", high=2048, unit="tokens")
    learning_rate: float = _setting(2e-4, "Learning rate of Adam after the warm-up.", high=1e-2, above=True, live=True)
    warmup: int = _setting(
        5, "Updates over which the learning rate rises linearly to its full value.", high=10_000, unit="updates"
    )
    head_start: str = _setting(
        "auto",
        "Updates before the first round that learn right answers to training questions: known ones, or the first that "
        "are found. auto: while validation rises. 0: none.",
        form="auto, or a number of updates from 0 to 20000",
        parse=head_start_limit,
    )
    corrections: str = _setting(
        "on",
        "Learn the right answer to a question, where it is known, if all own answers to it are wrong.",
        choices=("on", "off"),
        live=True,
    )
    decay_after: int = _setting(
        20,
        "Update after which the learning rate falls with the inverse square root of the update's number. 0: never.",
        high=1_000_000,
        unit="updates",
    )
    external_negatives: float = _setting(
        0.0,
        "Weight of negative advantages of other nodes' answers. 0: their answers can be learned, not unlearned. "
        "1: as in the paper.",
        high=1,
        live=True,
    )
    rank: int = _setting(16, "Rank of the LoRA adapter.", low=1, high=256)
    alpha: float = _setting(32.0, "Scale of the LoRA adapter: alpha / rank.", high=1024, above=True)
    threads: int = _setting(0, "CPU threads for the model. 0: chosen for this machine.", high=1024, unit="threads")
    memory: float = _setting(
        0.0,
        "Memory that a round may take; with llama.cpp, less makes it slower. 0: what is free.",
        high=10_000,
        unit="GB",
    )
    nice: int = _setting(
        10,
        "Scheduling priority (nice value) of the node; on Linux its disk I/O too. 0: normal priority.",
        high=19,
        compared=False,
    )
    on_battery: str = _setting(
        "pause", "Pause while the machine runs on battery, or run.", choices=("pause", "run"), live=True, compared=False
    )
    max_temperature: int = _setting(
        90,
        "Pause at this temperature of the processor; resume 10 °C below. 0: never pause.",
        high=120,
        form="0, or an integer from 40 to 120",
        parse=_temperature,
        unit="°C",
        live=True,
        compared=False,
    )
    busy: int = _setting(
        0,
        "Pause while other programs use at least this share of the CPU; resume at half of it. 0: never pause.",
        high=90,
        unit="percent",
        live=True,
        compared=False,
    )
    quiet_hours: str = _setting(
        "",
        "Local time in which the node pauses. Empty: never.",
        form=quiet_hours.FORM,
        parse=quiet_hours.parse,
        live=True,
        compared=False,
    )
    evaluate_every: int = _setting(
        10,
        "Rounds between evaluations on the validation set. 0: only at start and end.",
        high=1_000_000,
        unit="rounds",
        live=True,
    )
    held_out: int = _setting(
        200, "Questions of each held-out set, validation and test. 0: no evaluations.", high=200, unit="questions"
    )
    save_every: int = _setting(
        0,
        "Save a checkpoint when the last one is so old, at evaluations and at the end; a crash loses the rounds since. "
        "0: after every round.",
        high=1440,
        unit="minutes",
        live=True,
        compared=False,
    )
    keep_checkpoints: int = _setting(
        3, "Newest checkpoints to keep, besides the best one.", low=1, high=1000, unit="checkpoints", compared=False
    )
    network: str = _setting(
        "swarm", "swarm: share rollouts with other nodes. solo: work alone.", choices=("swarm", "solo")
    )
    consent: str = _setting(
        "ask",
        "Share only after the owner has agreed, on the first screen or when `sapo run` asks. given: the owner agrees.",
        choices=("ask", "given"),
        compared=False,
    )
    port: int = _setting(0, "TCP port to listen on. 0: any free port, and the same one after a restart.", high=65535)
    listen: str = _setting(
        "all",
        "Who may connect. all: any machine that can reach this one. loopback: only programs on this machine.",
        choices=("all", "loopback"),
    )
    mdns: str = _setting("on", "Find nodes on the local network, and be found there.", choices=("on", "off"))
    rendezvous: str = _setting(
        "on",
        "Find members elsewhere, and be found by them, through BitTorrent's public table of addresses (Mainline DHT).",
        parse=dht_contacts,
        form="on, off, or host:port of its nodes for the first contact, separated by commas, [IPv6]:port too",
    )
    port_mapping: str = _setting(
        "on",
        "Ask the router (PCP, NAT-PMP, UPnP) to forward the port, so that others can connect.",
        choices=("on", "off"),
    )
    relay: str = _setting(
        "on",
        "Carry connections for members that nobody can dial, in small amounts, once other networks reach this node. "
        "public: also for strangers of other open swarms, who find this node through the `rendezvous`.",
        choices=("on", "public", "off"),
    )
    bootstrap: str = _setting(
        "", "Addresses of peers to connect to first, separated by commas, besides those of an invite."
    )
    share: int = _setting(
        64,
        "Rollouts of other nodes to receive in each round; every node shares just enough for that.",
        low=1,
        high=1024,
        unit="rollouts",
    )
    upload: int = _setting(
        500_000, "Upload limit, for own and forwarded rollouts. 0: no limit.", high=1_000_000_000, unit="bytes/s"
    )
    download: int = _setting(0, "Download limit. 0: no limit.", high=1_000_000_000, unit="bytes/s")
    metrics_port: int = _setting(
        0, "Port on 127.0.0.1 that gives Prometheus the node's figures. 0: none.", high=65535, compared=False
    )
    curves: str = _setting(
        "",
        "Library that draws the figures of rounds; it gets no texts: tensorboard, trackio, wandb, mlflow. Empty: none.",
        form="empty, tensorboard, trackio, wandb or mlflow",
        parse=check_library,
        compared=False,
    )
    seed: int | None = _setting(
        None, "Seed of tasks and sampling. Without one, it is derived from the node's identity.", high=2**63 - 1
    )

    on_quit: str = _setting(
        "ask",
        "Keep or stop the node when the terminal app quits. ask: ask the user, whose answer a tick saves here.",
        choices=("ask", "keep", "stop"),
        compared=False,
    )
    desktop_notice: str = _setting(
        "off",
        "Show a notice on the desktop when a run ends, or a node ends by itself, in terminals that can.",
        choices=("off", "on"),
        compared=False,
    )
    theme: str = _setting("", "Theme of the terminal app. Empty: one that fits the terminal.", compared=False)

    def as_dict(self) -> dict[str, int | float | str | None]:
        return asdict(self)

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(address.strip() for address in self.bootstrap.split(",") if address.strip())


def _table() -> dict[str, Setting]:
    kinds: dict[str, type[int] | type[float] | type[str]] = {"int": int, "float": float, "str": str, "int | None": int}
    defaults = Settings().as_dict()
    return {
        item.name: Setting(item.name, kinds[str(item.type)], defaults[item.name], **item.metadata)
        for item in fields(Settings)
    }


SETTINGS: Mapping[str, Setting] = _table()
"""Every setting by name, in the order of `sapo config show`."""
