"""The manifest: tasks, prompt and limits of a swarm. Its digest is the swarm's id.

A manifest comes from a file or from a peer, and either may be hostile: sizes are bounded before decoding, and a
`Manifest` object is always valid. Importing this module does not import reasoning_gym.
"""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import msgpack

from sapo_edge.errors import ManifestError
from sapo_edge.policy import Message, Prompt
from sapo_edge.tasks.allowed import ConfigValue, Flag, Integer, Real, check_config, check_generator, nearest, shorten
from sapo_edge.tasks.checks import Code
from sapo_edge.tasks.question_data import MAX_DATA_BYTES, MAX_DATA_QUESTIONS, QuestionData
from sapo_edge.tasks.question_file import SUFFIXES, TooManyError, resolve_questions
from sapo_edge.tasks.questions import MAX_QUESTIONS, OwnQuestion, split_questions
from sapo_edge.tasks.readings import FIT, READINGS, TAGS, extract_answer
from sapo_edge.tasks.texts import check_text, opened, require

PROTOCOL = 1
"""Version of the rules by which tasks are made from a manifest and rollouts are exchanged."""
MAX_MANIFEST_BYTES = 256 * 1024
"""Largest manifest, encoded: half a response of the swarm, which arrives in `FETCH_SECONDS` at 9 KB a second."""
MAX_FILE_BYTES = 64 * 1024
"""Largest TOML file; own questions are in files of their own."""
MAX_TASKS = 64
"""Most entries."""
MAX_EXAMPLES = 8
MAX_TOKENS = 2048
"""Highest limit of tokens per answer."""

_WEIGHT = Real(0.001, 1000.0, 1.0)
_FORM = Real(0.0, 0.5, 0.0)
"""The form of a right answer earns half of a reward at most: content always counts more."""
_MAX_TOKENS = Integer(1, MAX_TOKENS, 256)
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}", re.ASCII)
_OPTIONAL = ("weight", "partial_credit", "reading", "form")
# tomllib takes time and memory quadratic in the parts of a key: 3.6 GB for one of 30,000. A manifest needs two.
_LONG_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){32}""")


@dataclass(frozen=True, slots=True)
class TaskEntry:
    """One kind of task: of a generator, or people's own questions.

    Attributes:
        name: of the entry in task references.
        generator: a generator on the allow-list; "" for own questions.
        config: settings that differ from the generator's defaults; sorted, in canonical types.
        weight: the entry is drawn with probability weight / sum of weights.
        partial_credit: whether partial scores of the verifier count; otherwise the reward is 1 or 0, as in the paper.
        questions: own questions, at least one of them to train on, or where to find them; none for a generator.
        reading: how answers are read (`readings.py`); "tags" as in the paper, and where an encoded entry says nothing.
        form: share of the reward that a right answer loses which is not the bare answer; unused with "tags".
    """

    name: str
    generator: str = ""
    config: Mapping[str, ConfigValue] = field(default_factory=dict, hash=False)
    weight: float = 1.0
    partial_credit: bool = False
    questions: tuple[OwnQuestion, ...] | QuestionData = ()
    reading: str = TAGS
    form: float = 0.0

    def __post_init__(self) -> None:
        where = f"task {_check_name('name of a task', self.name)}"
        if self.questions:
            self._check_questions(where)
        else:
            check_generator(_check_name(f"{where}: generator", self.generator))
            mapped = isinstance(self.config, Mapping)
            require(mapped, f"{where}: config is not a table", "write config = { key = value }")
            object.__setattr__(self, "config", check_config(where, self.generator, self.config))
        object.__setattr__(self, "weight", _WEIGHT.check(f"{where}: weight", self.weight))
        Flag(False).check(f"{where}: partial_credit", self.partial_credit)
        known = isinstance(self.reading, str) and self.reading in READINGS
        require(known, f"{where}: reading is not known", nearest(str(self.reading)[:64], READINGS))
        object.__setattr__(self, "form", _FORM.check(f"{where}: form", self.form))

    def _check_questions(self, where: str) -> None:
        require(not self.generator and not self.config, f"{where} has questions and a generator", "keep one of them")
        if isinstance(self.questions, QuestionData):
            return
        count = len(self.questions)
        require(count <= MAX_QUESTIONS, f"{where} has {count} questions", f"keep at most {MAX_QUESTIONS}")
        training = split_questions(self.questions).train
        require(bool(training), f"{where} has no question to train on", "add questions that are not held out")

    def as_dict(self) -> dict[str, Any]:
        body: dict[str, Any] = {"name": self.name, "partial_credit": self.partial_credit, "weight": self.weight}
        if isinstance(self.questions, QuestionData):
            body["questions"] = asdict(self.questions)
        elif self.questions:
            body["questions"] = [question.as_list() for question in self.questions]
        else:
            body["generator"] = self.generator
            body["config"] = dict(self.config)
        # Left out where they say nothing, so that the digests of manifests without them stay.
        if self.reading != TAGS:
            body["reading"] = self.reading
        if self.form:
            body["form"] = self.form
        return {key: body[key] for key in sorted(body)}


@dataclass(frozen=True)
class Manifest:
    """The tasks, prompt and limits of a swarm.

    Attributes:
        name: for people; two manifests with one name are two swarms.
        tasks: entries, drawn by weight. Their order is part of the manifest.
        system: text of the system turn, "" for none.
        examples: worked examples: (question, answer as a model shall write it).
        store: directory of the questions that it names by digest; None if they are not here.
    """

    name: str
    tasks: tuple[TaskEntry, ...]
    system: str = ""
    examples: tuple[tuple[str, str], ...] = ()
    max_tokens: int = 256
    protocol: int = PROTOCOL
    store: Path | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        _check_name("name of a manifest", self.name)
        require(
            self.protocol == PROTOCOL and type(self.protocol) is int,
            f"manifest {self.name} needs another protocol than {PROTOCOL}",
            "update sapo-edge, or ask for a manifest of this protocol",
        )
        require(1 <= len(self.tasks) <= MAX_TASKS, f"it has {len(self.tasks)} tasks", f"give it 1 to {MAX_TASKS}")
        names = [entry.name for entry in self.tasks]
        repeated = sorted({name for name in names if names.count(name) > 1})
        require(not repeated, f"two tasks have the name {', '.join(repeated)}", "give each task its own name")
        check_text("system", self.system)
        count = len(self.examples)
        require(count <= MAX_EXAMPLES, f"it has {count} examples", f"keep at most {MAX_EXAMPLES}")
        for position, (question, answer) in enumerate(self.examples, start=1):
            check_text(f"question of example {position}", question)
            check_text(f"answer of example {position}", answer)
            require(
                extract_answer(answer) is not None or any(entry.reading != TAGS for entry in self.tasks),
                f"answer of example {position} has no answer tags",
                'write the answer as <answer>...</answer>, or give the tasks reading = "fit"',
            )
        _MAX_TOKENS.check("max_tokens", self.max_tokens)
        total = sum(data.size for data in self.data), sum(data.count for data in self.data)
        remedy = f"keep all files together to {MAX_DATA_QUESTIONS} questions and {MAX_DATA_BYTES} bytes"
        fits = total[0] <= MAX_DATA_BYTES and total[1] <= MAX_DATA_QUESTIONS
        require(fits, f"its tasks name {total[1]} questions of {total[0]} bytes", remedy)

    @property
    def own_questions(self) -> int:
        """Number of people's own questions in it; a manifest that has some is private by default."""
        return sum(len(entry.questions) for entry in self.tasks)

    @property
    def data(self) -> tuple[QuestionData, ...]:
        """What it says of questions that it names by digest."""
        return tuple(entry.questions for entry in self.tasks if isinstance(entry.questions, QuestionData))

    @cached_property
    def functions(self) -> frozenset[str]:
        """Names of the functions that judge its questions; only a node that works alone may have some."""
        held = (entry.questions for entry in self.tasks if isinstance(entry.questions, tuple))
        checks = (question.check for questions in held for question in questions)
        return frozenset(check.code for check in checks if isinstance(check, Code))

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of `to_bytes()`: the swarm's id."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def to_bytes(self) -> bytes:
        """Canonical msgpack: maps sorted by key, weights and real settings as float 64, integers in shortest form."""
        body = {
            "examples": self.examples,
            "max_tokens": self.max_tokens,
            "name": self.name,
            "protocol": self.protocol,
            "system": self.system,
            "tasks": [entry.as_dict() for entry in self.tasks],
        }
        return bytes(msgpack.packb(body))

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Decode what `to_bytes` wrote; anything else, even another encoding of the same, is a ManifestError."""
        remedy = "fetch it again, or from another peer"
        size = len(data)
        require(size <= MAX_MANIFEST_BYTES, f"the manifest has {size} bytes", f"keep it below {MAX_MANIFEST_BYTES}")
        try:
            raw = msgpack.unpackb(data, max_ext_len=0, max_array_len=MAX_QUESTIONS)
        except (ValueError, RecursionError, msgpack.UnpackException) as error:
            raise ManifestError("the manifest is not valid msgpack", remedy) from error
        manifest = _from_raw(raw, "the manifest")
        require(manifest.to_bytes() == data, "the manifest is not in canonical form", remedy)
        return manifest

    @classmethod
    def from_toml(cls, text: str, where: str = "the manifest") -> Manifest:
        """Read a manifest from TOML text, which may name no file of questions."""
        return cls._from_tables(_parse_tables(text, where), where, None, None)

    @classmethod
    def _from_tables(cls, raw: dict[str, Any], where: str, directory: Path | None, store: Path | None) -> Manifest:
        reading = raw.pop("reading", FIT)
        for task in raw["tasks"] if isinstance(raw.get("tasks"), list) else ():
            if isinstance(task, dict):
                task.setdefault("reading", reading)
        if store is not None:
            # Where questions don't fit into the manifest, those of all files are named by digest.
            with suppress(TooManyError):
                return cls._resolved(deepcopy(raw), where, directory, None)
        return cls._resolved(raw, where, directory, store)

    @classmethod
    def _resolved(cls, raw: dict[str, Any], where: str, directory: Path | None, store: Path | None) -> Manifest:
        resolve_questions(raw, where, directory, store)
        manifest = replace(_from_raw(raw, where), store=store)
        size = len(manifest.to_bytes())
        if size > MAX_MANIFEST_BYTES:
            remedy = f"keep it below {MAX_MANIFEST_BYTES}: leave out some questions, or make them shorter"
            raise TooManyError(f"{where} has {size} bytes as it is sent to members", remedy)
        return manifest

    @classmethod
    def read(cls, path: Path, store: Path | None = None) -> Manifest:
        """Read a manifest from a TOML file, or make one around a file of questions, whose name ends in a `SUFFIXES`.

        `store` is a cache for questions that are too many for a manifest; None: they are an error.
        """
        if path.suffix.lower() in SUFFIXES:
            tables = {"name": name_like(path.stem), "tasks": [{"name": "mine", "questions": path.name}]}
        else:
            tables = read_tables(path)
        return cls._from_tables(tables, str(path), path.parent, store)

    def entry_at(self, fraction: float) -> TaskEntry:
        """The entry at a fraction in [0, 1) of the cumulative weights: a uniform fraction draws by weight."""
        remaining = fraction * sum(entry.weight for entry in self.tasks)
        for entry in self.tasks[:-1]:
            remaining -= entry.weight
            if remaining < 0:
                return entry
        return self.tasks[-1]

    def prompt_for(self, question: str) -> Prompt:
        turns = [Message("system", self.system)] if self.system else []
        for example, answer in self.examples:
            turns += [Message("user", example), Message("assistant", answer)]
        return (*turns, Message("user", question))


def name_like(text: str) -> str:
    """A name for a manifest that resembles a text."""
    return re.sub(r"[^a-z0-9_.-]+", "-", text.lower()).strip("-_.")[:64] or "mine"


def shipped_manifests() -> tuple[str, ...]:
    files = resources.files("sapo_edge.tasks").joinpath("manifests").iterdir()
    return tuple(sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml")))


def shipped_name(digest: str) -> str | None:
    """The name under which the manifest of a digest (hex) is shipped; None if it is not."""
    return next((name for name in shipped_manifests() if load_manifest(name).digest == digest), None)


def load_manifest(name_or_path: str | Path, store: Path | None = None) -> Manifest:
    """A shipped manifest by name, or that of a file; the ManifestError without either lists the shipped ones."""
    shipped = shipped_manifests()
    if name_or_path in shipped:
        file = resources.files("sapo_edge.tasks").joinpath("manifests", f"{name_or_path}.toml")
        return Manifest.from_toml(file.read_text("utf-8"), f"manifest {name_or_path}")
    if os.path.isfile(name_or_path):
        return Manifest.read(Path(name_or_path), store)
    remedy = f"{nearest(str(name_or_path), shipped)} (shipped: {', '.join(shipped)}; or the path of a file)"
    raise ManifestError(f"there is no manifest {name_or_path}", remedy)


def read_tables(path: Path) -> dict[str, Any]:
    """The tables of a manifest's file, which may be anything that TOML can hold."""
    try:
        return _parse_tables(_read_text(path), str(path))
    except ManifestError as error:
        if path.suffix.lower() == ".toml":
            raise
        endings = f"a manifest's name ends in .toml, that of a file of questions in {', '.join(SUFFIXES)}"
        raise ManifestError(error.message, f"{error.remedy}; {endings}") from error


def _read_text(path: Path) -> str:
    with opened(path) as file:
        data = file.read(MAX_FILE_BYTES + 1)
    require(len(data) <= MAX_FILE_BYTES, f"{path} is too large", f"keep it below {MAX_FILE_BYTES} bytes")
    try:
        # Editors on Windows start a file with a byte order mark, which TOML does not allow.
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ManifestError(f"{path} is not UTF-8", "save it as UTF-8") from error


def _parse_tables(text: str, where: str) -> dict[str, Any]:
    remedy = "write it as in the shipped manifests"
    require(not _LONG_KEY.search(text), f"{where} has a key of more than 32 parts", remedy)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{where} is not valid TOML: {error}", "correct the file") from error


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
    where = f"task {position}"
    if not isinstance(raw, dict) or "questions" not in raw:
        return TaskEntry(**_table(raw, where, ("name", "generator"), ("config", *_OPTIONAL)))
    table = _table(raw, where, ("name", "questions"), _OPTIONAL)
    questions = table.pop("questions")
    if isinstance(questions, dict):
        questions = QuestionData(**_table(questions, f"{where}: questions", ("count", "sha256", "size"), ()))
    elif not isinstance(questions, QuestionData):
        listed = _list(questions, f"{where}: questions", MAX_QUESTIONS)
        require(bool(listed), f"{where} has no questions", "add some, or name a generator")
        questions = tuple(each if isinstance(each, OwnQuestion) else OwnQuestion.from_list(each) for each in listed)
    return TaskEntry(**table, questions=questions)


def _example_from_raw(raw: object, position: int) -> tuple[Any, Any]:
    if isinstance(raw, list) and len(raw) == 2:
        return (raw[0], raw[1])
    table = _table(raw, f"example {position}", ("question", "answer"), ())
    return (table["question"], table["answer"])


def _table(raw: object, where: str, required: Iterable[str], optional: Iterable[str]) -> dict[str, Any]:
    require(isinstance(raw, dict), f"{where} is not a table", "write it as in the shipped manifests")
    assert isinstance(raw, dict)
    keys = [*required, *optional]
    for key in raw:
        if key not in keys:
            raise ManifestError(f"{where}: unknown key {shorten(key)}", nearest(str(key), keys))
    for key in required:
        require(key in raw, f"{where}: {key} is missing", f"add {key}")
    return dict(raw)


def _list(raw: object, where: str, limit: int) -> list[Any]:
    require(isinstance(raw, list), f"{where} is not a list", "write it as in the shipped manifests")
    assert isinstance(raw, list)
    require(len(raw) <= limit, f"{where} has {len(raw)} entries", f"keep at most {limit}")
    return raw


def _check_name(what: str, name: object) -> str:
    valid = isinstance(name, str) and _NAME.fullmatch(name) is not None
    require(valid, f"{what} is not a name", "use up to 64 of a-z, 0-9, hyphen, underscore and dot")
    return str(name)
