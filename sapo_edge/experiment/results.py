"""What an experiment has found so far: one file, to which each finished swarm adds a line.

A swarm is one (setting, arm, seed). The same command finds the same, but for `seconds`, which a clock measured.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from sapo_edge.errors import StateError
from sapo_edge.experiment.plan import Plan
from sapo_edge.state import durable
from sapo_edge.state.lock import StateLock

if TYPE_CHECKING:
    from pydantic import TypeAdapter

FILE = "results.jsonl"
MAX_LINE = 64 * 1024 * 1024
"""Most bytes of a line: about 150,000 rounds of a member."""
ELSEWHERE = "use --to to keep results elsewhere"
"""How a user chooses another place."""
OTHER_PLACE = "give another directory with --to"
_SHARED = ("scale", "manifest", "model", "backend", "threads", "learning")

reported = partial(durable.reported, elsewhere=ELSEWHERE)
"""Turns an `OSError` of a block into a `StateError`, as `durable.reported` does."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round of one member, learning or not.

    Attributes:
        node: the member's number, the same in all rounds.
        own: mean reward of its own answers before any filter; 0 if it generated none.
        external: mean reward of the external answers as sampled; None if it sampled none.
        trained: answer tokens trained on.
        informative_own, informative_external: groups in the update whose answers differ in reward.
        taken: external rollouts in the update.
        tasks: entry -> (sum of own rewards, own answers).
        seconds: of a processor, of generating and updating together.
        received: bytes of others' rollouts that it accepted since its last round.
    """

    __pydantic_config__: ClassVar[dict[str, bool]] = {"allow_inf_nan": False}

    round: int
    node: int
    own: float
    external: float | None
    generated: int
    tokens: int
    trained: int
    informative_own: int
    informative_external: int
    taken: int
    tasks: Mapping[str, tuple[float, int]]
    seconds: float = field(default=0.0, compare=False)
    received: int = 0


@dataclass(frozen=True, slots=True)
class EvaluationRecord:
    """Answers of one honest learning node to one set of questions.

    Attributes:
        round: after which it was asked; 0 is before training.
        questions: name of the set: "validation", "test", "harder", "unseen"; with "@8", 8 samples a question.
        correct: one character a question: "0" or "1" for greedy answers, else the number of right samples.
    """

    round: int
    node: int
    questions: str
    correct: str

    def __post_init__(self) -> None:
        if not self.correct or not set(self.correct) <= set("0123456789"):
            raise ValueError("correct is not a row of digits")


@dataclass(frozen=True, slots=True)
class SwarmRecord:
    """Everything about one swarm.

    Attributes:
        digest: `plan.swarm_digest`.
        rounds: of all members, those that do not learn included.
        evaluations: of honest learning nodes: "validation" every few rounds, all other sets after the last one.
        entries: question set -> the task entry of each question, in the order of `EvaluationRecord.correct`.
    """

    setting: str
    arm: str
    digest: str
    seed: int
    rounds: tuple[RoundRecord, ...]
    evaluations: tuple[EvaluationRecord, ...]
    entries: Mapping[str, tuple[str, ...]]

    def __post_init__(self) -> None:
        if any(len(self.entries.get(item.questions, ())) != len(item.correct) for item in self.evaluations):
            raise ValueError("an evaluation and its entries differ in length")


@dataclass(frozen=True, slots=True)
class _Line:
    """One line: a plan with the digest of what its swarms share, what the results were made with, or a swarm."""

    plan: Plan | None = None
    digest: str = ""
    origin: Mapping[str, str] | None = None
    swarm: SwarmRecord | None = None


@cache
def decoder(kind: type[T]) -> TypeAdapter[T]:
    # Takes a moment to load.
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


class Results(Generic[T]):
    """The results in a directory, read as they grow; `keep` makes what is kept of a swarm.

    Attributes:
        plan: the last one that was run; None if there is no experiment.
        origin: what the results were made with, by name: digests of the manifest and of the models, the backend. The
            same file name or setting can stand for another manifest or model later, whose results must not be mixed.
        swarms: (digest, seed) -> what is kept.
    """

    def __init__(self, directory: Path, keep: Callable[[SwarmRecord], T]) -> None:
        self.directory = directory
        self.plan: Plan | None = None
        self.origin: dict[str, str] = {}
        self.swarms: dict[tuple[str, int], T] = {}
        self._path = directory / FILE
        self._keep = keep
        self._digest = ""
        self._end = self._lines = 0

    def read(self) -> None:
        """Read the lines that are new. The beginning of one, which a kill can leave at the end, does not count."""
        with reported("read", self._path), suppress(FileNotFoundError), open(self._path, "rb") as file:
            if os.fstat(file.fileno()).st_size < self._end:
                # Another experiment took its place.
                self.plan, self.origin, self.swarms, self._end, self._lines = None, {}, {}, 0, 0
            file.seek(self._end)
            while line := file.readline(MAX_LINE):
                if line.endswith(b"\n"):
                    self._take(line)
                    self._end = file.tell()
                elif len(line) == MAX_LINE:
                    raise StateError(f"a line of {self._path} is too long", OTHER_PLACE)

    def check(self, plan: Plan, origin: Mapping[str, str]) -> None:
        """Check that what there is belongs to an experiment; seeds, settings and arms may differ."""
        self.read()
        self._check(plan, plan.digest, origin)

    def _check(self, plan: Plan | None, digest: str, origin: Mapping[str, str]) -> None:
        if self.plan is not None and plan is not None and self._digest != digest:
            differing = [name for name in _SHARED if getattr(self.plan, name) != getattr(plan, name)]
            names = " and ".join(differing) or "version of sapo-edge"
            raise StateError(f"{self.directory} holds an experiment with another {names}", OTHER_PLACE)
        for name in sorted(self.origin.keys() & origin.keys()):
            if self.origin[name] != origin[name]:
                raise StateError(f"{self.directory} was made with another {name}", OTHER_PLACE)

    def claim(self, plan: Plan, origin: Mapping[str, str] = {}) -> None:
        """Make the directory that of a plan; raises as `check` does. Needs `exclusive`, as `add` does."""
        self.check(plan, origin)
        if self.plan != plan:
            self._append({"digest": plan.digest, "plan": asdict(plan)})
        if origin.items() - self.origin.items():
            self._append({"origin": dict(origin)})

    def add(self, record: SwarmRecord) -> None:
        self._append({"swarm": asdict(record)})

    def _append(self, fields: Mapping[str, Any]) -> None:
        # What another machine made may have been appended meanwhile.
        self.read()
        line = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        with reported("write", self._path), open(self._path, "ab") as file:
            # What a kill left.
            file.truncate(self._end)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self.read()

    def _take(self, data: bytes) -> None:
        try:
            line = decoder(_Line).validate_json(data, strict=True)
        except ValueError as error:
            raise StateError(
                f"line {self._lines + 1} of {self._path} is damaged",
                "remove that line and run the same command again, which repeats what it has",
            ) from error
        # What another machine made may be appended.
        self._check(line.plan, line.digest, line.origin or {})
        if line.plan is not None:
            self.plan, self._digest = line.plan, line.digest
        self.origin.update(line.origin or {})
        if line.swarm is not None:
            self.swarms[line.swarm.digest, line.swarm.seed] = self._keep(line.swarm)
        self._lines += 1


def read_records(directory: Path, plan: Plan) -> list[SwarmRecord]:
    """Records of the finished swarms of a plan, in its order."""
    results = Results(directory, lambda record: record)
    results.check(plan, {})
    return [results.swarms[job.key] for job in plan.jobs if job.key in results.swarms]


@contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Keep other processes from working in a directory, which is created."""
    with reported("create", directory):
        directory.mkdir(parents=True, exist_ok=True)
    remedy = "wait until it has ended; --report shows meanwhile what is finished"
    with StateLock(directory / ".lock", "sapo experiment", remedy):
        yield
