"""The manifest: tasks, prompt and limits of a swarm. Its digest is the swarm's id.

A manifest comes from a file or from a peer, and either may be hostile: sizes are bounded before decoding, and a
`Manifest` object is always valid. Importing this module does not import reasoning_gym.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import msgpack

from sapo_edge.errors import ManifestError
from sapo_edge.policy import Message, Prompt
from sapo_edge.tasks.allowed import ConfigValue, Flag, Integer, Real, check_config, check_generator, nearest, shorten
from sapo_edge.tasks.answers import extract_answer

PROTOCOL = 1
"""Version of the rules by which tasks are made from a manifest and rollouts are exchanged."""
MAX_MANIFEST_BYTES = 64 * 1024
"""Largest manifest, as a file and encoded."""
MAX_TASKS = 64
"""Most entries."""
MAX_EXAMPLES = 8
"""Most worked examples."""
MAX_TEXT_BYTES = 4 * 1024
"""Longest system text, example question and example answer, in bytes of UTF-8."""
MAX_TOKENS = 2048
"""Highest limit of tokens per answer."""
MIN_WEIGHT, MAX_WEIGHT = 0.001, 1000.0
"""Bounds of an entry's weight."""

_WEIGHT = Real(MIN_WEIGHT, MAX_WEIGHT, 1.0)
_MAX_TOKENS = Integer(1, MAX_TOKENS, 256)
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}", re.ASCII)
# tomllib takes time and memory quadratic in the parts of a key: 3.6 GB for one of 30,000. A manifest needs two.
_LONG_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){32}""")


@dataclass(frozen=True, slots=True)
class TaskEntry:
    """One kind of task.

    Attributes:
        name: of the entry in task references.
        generator: a generator on the allow-list.
        config: settings that differ from the generator's defaults; sorted, in canonical types.
        weight: the entry is drawn with probability weight / sum of weights.
        partial_credit: whether partial scores of the verifier count; otherwise the reward is 1 or 0, as in the paper.

    Raises:
        ManifestError: if a field is outside its bounds.
    """

    name: str
    generator: str
    config: Mapping[str, ConfigValue] = field(default_factory=dict, hash=False)
    weight: float = 1.0
    partial_credit: bool = False

    def __post_init__(self) -> None:
        where = f"task {_check_name('name of a task', self.name)}"
        check_generator(_check_name(f"{where}: generator", self.generator))
        _check(isinstance(self.config, Mapping), f"{where}: config is not a table", "write config = { key = value }")
        object.__setattr__(self, "config", check_config(where, self.generator, self.config))
        object.__setattr__(self, "weight", _WEIGHT.check(f"{where}: weight", self.weight))
        Flag(False).check(f"{where}: partial_credit", self.partial_credit)

    def as_dict(self) -> dict[str, Any]:
        """The entry as it is encoded in a manifest."""
        return {
            "config": {key: list(value) if isinstance(value, tuple) else value for key, value in self.config.items()},
            "generator": self.generator,
            "name": self.name,
            "partial_credit": self.partial_credit,
            "weight": self.weight,
        }


@dataclass(frozen=True)
class Manifest:
    """The tasks, prompt and limits of a swarm.

    Attributes:
        name: for people; two manifests with one name are two swarms.
        tasks: entries, drawn by weight. Their order is part of the manifest.
        system: text of the system turn, "" for none.
        examples: worked examples: (question, answer with tags).
        max_tokens: most tokens of an answer.
        protocol: `PROTOCOL`.

    Raises:
        ManifestError: if a field is outside its bounds.
    """

    name: str
    tasks: tuple[TaskEntry, ...]
    system: str = ""
    examples: tuple[tuple[str, str], ...] = ()
    max_tokens: int = 256
    protocol: int = PROTOCOL

    def __post_init__(self) -> None:
        _check_name("name of a manifest", self.name)
        _check(
            self.protocol == PROTOCOL and type(self.protocol) is int,
            f"manifest {self.name} needs another protocol than {PROTOCOL}",
            "update sapo-edge, or ask for a manifest of this protocol",
        )
        _check(1 <= len(self.tasks) <= MAX_TASKS, f"it has {len(self.tasks)} tasks", f"give it 1 to {MAX_TASKS}")
        names = [entry.name for entry in self.tasks]
        repeated = sorted({name for name in names if names.count(name) > 1})
        _check(not repeated, f"two tasks have the name {', '.join(repeated)}", "give each task its own name")
        _check_text("system", self.system)
        _check(
            len(self.examples) <= MAX_EXAMPLES, f"it has {len(self.examples)} examples", f"keep at most {MAX_EXAMPLES}"
        )
        for position, (question, answer) in enumerate(self.examples, start=1):
            _check_text(f"question of example {position}", question)
            _check_text(f"answer of example {position}", answer)
            _check(
                extract_answer(answer) is not None,
                f"answer of example {position} has no answer tags",
                "write the answer as <answer>...</answer>",
            )
        _MAX_TOKENS.check("max_tokens", self.max_tokens)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of `to_bytes()`: the swarm's id."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def to_bytes(self) -> bytes:
        """Canonical msgpack: maps sorted by key, weights and real settings as float 64, integers in shortest form."""
        body = {
            "examples": [[question, answer] for question, answer in self.examples],
            "max_tokens": self.max_tokens,
            "name": self.name,
            "protocol": self.protocol,
            "system": self.system,
            "tasks": [entry.as_dict() for entry in self.tasks],
        }
        return bytes(msgpack.packb(body))

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Decode what `to_bytes` wrote.

        Raises:
            ManifestError: if it is anything else, even another encoding of the same manifest.
        """
        remedy = "fetch it again, or from another peer"
        _check(
            len(data) <= MAX_MANIFEST_BYTES,
            f"the manifest has {len(data)} bytes",
            f"keep it below {MAX_MANIFEST_BYTES}",
        )
        try:
            raw = msgpack.unpackb(data, max_ext_len=0)
        except (ValueError, RecursionError, msgpack.UnpackException) as error:
            raise ManifestError("the manifest is not valid msgpack", remedy) from error
        manifest = _from_raw(raw, "the manifest")
        _check(manifest.to_bytes() == data, "the manifest is not in canonical form", remedy)
        return manifest

    @classmethod
    def from_toml(cls, text: str, where: str = "the manifest") -> Manifest:
        """Read a manifest from TOML text, called `where` in messages.

        Raises:
            ManifestError: if it is not a valid manifest.
        """
        remedy = "write it as in the shipped manifests"
        _check(not _LONG_KEY.search(text), f"{where} has a key of more than 32 parts", remedy)
        try:
            raw = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise ManifestError(f"{where} is not valid TOML: {error}", "correct the file") from error
        return _from_raw(raw, where)

    @classmethod
    def parse_toml(cls, path: Path) -> Manifest:
        """Read a manifest from a TOML file.

        Raises:
            ManifestError: if it can't be read or is not a valid manifest.
        """
        try:
            with path.open("rb") as file:
                data = file.read(MAX_MANIFEST_BYTES + 1)
        except OSError as error:
            raise ManifestError(
                f"{path} can't be read: {error.strerror}", "check the path and its permissions"
            ) from error
        _check(len(data) <= MAX_MANIFEST_BYTES, f"{path} is too large", f"keep it below {MAX_MANIFEST_BYTES} bytes")
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ManifestError(f"{path} is not UTF-8", "save it as UTF-8") from error
        return cls.from_toml(text, str(path))

    def entry_at(self, fraction: float) -> TaskEntry:
        """The entry at a fraction in [0, 1) of the cumulative weights: a uniform fraction draws by weight."""
        remaining = fraction * sum(entry.weight for entry in self.tasks)
        for entry in self.tasks[:-1]:
            remaining -= entry.weight
            if remaining < 0:
                return entry
        return self.tasks[-1]

    def prompt_for(self, question: str) -> Prompt:
        """The prompt for a question: system text, worked examples, the question."""
        turns = [Message("system", self.system)] if self.system else []
        for example, answer in self.examples:
            turns += [Message("user", example), Message("assistant", answer)]
        return (*turns, Message("user", question))


def shipped_manifests() -> tuple[str, ...]:
    """Names of the manifests shipped with sapo-edge."""
    files = resources.files("sapo_edge.tasks").joinpath("manifests").iterdir()
    return tuple(sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml")))


def shipped_name(digest: str) -> str | None:
    """The name under which the manifest of a digest (hex) is shipped; None if it is not."""
    return next((name for name in shipped_manifests() if load_manifest(name).digest == digest), None)


def load_manifest(name_or_path: str | Path) -> Manifest:
    """A shipped manifest by name, or one from a TOML file.

    Raises:
        ManifestError: if there is neither; it lists the shipped ones.
    """
    shipped = shipped_manifests()
    if name_or_path in shipped:
        file = resources.files("sapo_edge.tasks").joinpath("manifests", f"{name_or_path}.toml")
        return Manifest.from_toml(file.read_text("utf-8"), f"manifest {name_or_path}")
    path = Path(name_or_path)
    if path.is_file():
        return Manifest.parse_toml(path)
    remedy = f"{nearest(str(name_or_path), shipped)} (shipped: {', '.join(shipped)}; or the path of a TOML file)"
    raise ManifestError(f"there is no manifest {name_or_path}", remedy)


def _from_raw(raw: object, where: str) -> Manifest:
    table = _table(raw, where, ("name", "tasks"), ("system", "examples", "max_tokens", "protocol"))
    entries = _list(table.pop("tasks"), f"{where}: tasks", MAX_TASKS)
    examples = _list(table.pop("examples", []), f"{where}: examples", MAX_EXAMPLES)
    try:
        return Manifest(
            tasks=tuple(_entry_from_raw(entry, position) for position, entry in enumerate(entries, start=1)),
            examples=tuple(_example_from_raw(example, position) for position, example in enumerate(examples, start=1)),
            **table,
        )
    except ManifestError as error:
        raise type(error)(f"{where}: {error.message}", error.remedy) from error


def _entry_from_raw(raw: object, position: int) -> TaskEntry:
    return TaskEntry(**_table(raw, f"task {position}", ("name", "generator"), ("config", "weight", "partial_credit")))


def _example_from_raw(raw: object, position: int) -> tuple[Any, Any]:
    if isinstance(raw, list) and len(raw) == 2:
        return (raw[0], raw[1])
    table = _table(raw, f"example {position}", ("question", "answer"), ())
    return (table["question"], table["answer"])


def _table(raw: object, where: str, required: Iterable[str], optional: Iterable[str]) -> dict[str, Any]:
    _check(isinstance(raw, dict), f"{where} is not a table", "write it as in the shipped manifests")
    assert isinstance(raw, dict)
    keys = [*required, *optional]
    for key in raw:
        if key not in keys:
            raise ManifestError(f"{where}: unknown key {shorten(key)}", nearest(str(key), keys))
    for key in required:
        _check(key in raw, f"{where}: {key} is missing", f"add {key}")
    return dict(raw)


def _list(raw: object, where: str, limit: int) -> list[Any]:
    _check(isinstance(raw, list), f"{where} is not a list", "write it as in the shipped manifests")
    assert isinstance(raw, list)
    _check(len(raw) <= limit, f"{where} has {len(raw)} entries", f"keep at most {limit}")
    return raw


def _check(condition: bool, message: str, remedy: str) -> None:
    if not condition:
        raise ManifestError(message, remedy)


def _check_name(what: str, name: object) -> str:
    valid = isinstance(name, str) and _NAME.fullmatch(name) is not None
    _check(valid, f"{what} is not a name", "use up to 64 of a-z, 0-9, hyphen, underscore and dot")
    return str(name)


def _check_text(where: str, text: object) -> None:
    _check(isinstance(text, str), f"{where} is not text", "write it between quotes")
    assert isinstance(text, str)
    # A peer's text reaches terminals, so escape sequences are rejected. Lone surrogates can't be encoded.
    printable = all(character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cs") for character in text)
    _check(printable, f"{where} has control characters or invalid Unicode", "remove them")
    size = len(text.encode("utf-8"))
    _check(size <= MAX_TEXT_BYTES, f"{where} has {size} bytes", f"keep it below {MAX_TEXT_BYTES}")
