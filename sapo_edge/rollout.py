"""Tasks, answers and rollouts: the data of SAPO.

A *rollout* is one question with all L answers to it (the paper's R^n(q)) and a reference from which another node can
regenerate the task. All classes are frozen and validated at construction: whoever holds a `Rollout` need not check it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgpack

from sapo_edge.fields import check_flag, check_integer, check_number, check_text

MAX_ANSWERS = 32
"""Most answers that one rollout may hold."""
MAX_ANSWER_BYTES = 8 * 1024
"""Longest answer, in bytes of UTF-8."""
MAX_QUESTION_BYTES = 16 * 1024
"""Longest question and longest ground truth, in bytes of UTF-8."""
MAX_NAME_BYTES = 128
"""Longest author, entry name or version, in bytes of UTF-8."""
MAX_INTEGER = 2**63 - 1
"""Largest seed, index, round or sequence number."""


@dataclass(frozen=True, slots=True, order=True)
class TaskRef:
    """Where a task comes from: enough to regenerate it, and nothing that could choose code.

    Attributes:
        entry: name of an entry of the manifest that the *reader* joined, which has the configuration.
        version: version of the library whose generator made the task.
        seed, index: of the sequence, of which a node's own comes from its identity, and the position in it.
    """

    entry: str
    version: str
    seed: int
    index: int

    def __post_init__(self) -> None:
        check_text("entry", self.entry, MAX_NAME_BYTES)
        check_text("version", self.version, MAX_NAME_BYTES)
        check_integer("seed", self.seed, 0, MAX_INTEGER)
        check_integer("index", self.index, 0, MAX_INTEGER)


@dataclass(frozen=True, slots=True)
class Task:
    """A question with its ground truth and the data for its verifier.

    Attributes:
        ground_truth: the expected answer, "" if the verifier checks by meaning and has none.
        generated: the generator's own record of the task, for its verifier; never sent.
    """

    ref: TaskRef
    question: str
    ground_truth: str
    generated: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_text("question", self.question, MAX_QUESTION_BYTES)
        check_text("ground_truth", self.ground_truth, MAX_QUESTION_BYTES)


@dataclass(frozen=True, slots=True)
class Answer:
    """One completion of a question.

    Attributes:
        ended: whether the policy ended it (end token or stop text), not the token limit.
        token_ids: of an own answer the sampled ids with the end token, of an external one those that `Policy.cut` kept;
            None for text as it is shared.
        logprobs: the sampler's log-probability (nats) of each of `token_ids`; own answers only.
    """

    text: str
    ended: bool
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        check_text("answer", self.text, MAX_ANSWER_BYTES)
        check_flag("ended", self.ended)
        if self.logprobs is not None and len(self.token_ids or ()) != len(self.logprobs):
            raise ValueError(f"{len(self.token_ids or ())} token ids but {len(self.logprobs)} log-probabilities")


@dataclass(frozen=True, slots=True)
class Rollout:
    """A question with all its answers: the paper's C^n(q).

    Attributes:
        question, ground_truth: as the author saw them; other nodes regenerate the task and compare.
        author: the author's id; for a node alone, its local name.
        sequence: the author's number of the rollout, unique for the author.
        time: Unix seconds at which it was generated.
        digest: SHA-256 (hex) of the signed bytes, the rollout's id in the swarm; "" until it is signed.
    """

    ref: TaskRef
    question: str
    ground_truth: str
    answers: tuple[Answer, ...]
    author: str
    round: int
    sequence: int
    time: float
    digest: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        check_text("question", self.question, MAX_QUESTION_BYTES)
        check_text("ground_truth", self.ground_truth, MAX_QUESTION_BYTES)
        check_text("author", self.author, MAX_NAME_BYTES)
        check_text("digest", self.digest, 64)
        check_integer("round", self.round, 0, MAX_INTEGER)
        check_integer("sequence", self.sequence, 0, MAX_INTEGER)
        if not 1 <= len(self.answers) <= MAX_ANSWERS:
            raise ValueError(f"a rollout holds 1 to {MAX_ANSWERS} answers, not {len(self.answers)}")
        check_number("time", self.time)

    def as_text(self) -> Rollout:
        """The rollout as it is shared: text without token ids and log-probabilities."""
        return replace(self, answers=tuple(Answer(answer.text, answer.ended) for answer in self.answers))

    def size_bytes(self) -> int:
        """Bytes of text in the rollout, for the limits of the pool."""
        texts = [self.question, self.ground_truth, *(answer.text for answer in self.answers)]
        return sum(len(text.encode("utf-8")) for text in texts)

    @property
    def id(self) -> str:
        """The digest of a signed rollout; otherwise SHA-256 (hex) of the shared form."""
        if self.digest:
            return self.digest
        body = [
            self.author,
            self.sequence,
            self.round,
            [self.ref.entry, self.ref.version, self.ref.seed, self.ref.index],
            self.question,
            self.ground_truth,
            [[answer.text, answer.ended] for answer in self.answers],
            float(self.time),
        ]
        return hashlib.sha256(msgpack.packb(body)).hexdigest()


@dataclass(frozen=True, slots=True)
class ScoredRollout:
    """A rollout with the local reward of each of its answers; of another node's, of the first L until it is cut.

    `neighbourhood` is the network from which another node's rollout came; "" if unknown.
    """

    rollout: Rollout
    rewards: tuple[float, ...]
    neighbourhood: str = ""
