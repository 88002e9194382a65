"""The policy: the interface between the algorithm and its backends.

A policy has a language model, a LoRA adapter and an optimizer. The round (`sapo.py`), the node and the commands know
only the Protocol `Policy`; every implementation passes the suite in `tests/contract/`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sapo_edge.errors import Cancelled

if TYPE_CHECKING:
    import numpy.typing as npt

    from sapo_edge.rollout import Answer

    FloatArray = npt.NDArray[Any]

STOP_TEXT = "</answer>"
"""An answer is complete when it contains this text; nothing after it is sampled."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a prompt, rendered with the model's own chat template."""

    role: str
    content: str


Prompt = tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """One sampled completion.

    Attributes:
        token_ids: the sampled ids, with the end token if the policy chose it.
        text: the decoded completion without the end token.
        logprobs: log-probability (nats) of each id under the distribution it was drawn from (temperature applied;
            at temperature 0, under the untempered one).
        ended: whether the policy ended it, not the token limit.
    """

    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[float, ...]
    ended: bool


@dataclass(frozen=True, slots=True)
class TrainingAnswer:
    """One answer to train on: an own one has log-probabilities, an external one may be text alone.

    Attributes:
        text, ended: as in `Sample`.
        advantage: of the answer in its group.
        token_ids: sampled, or kept by `Policy.cut`; None: the text is encoded.
        logprobs: of an own answer, by the sampler.
        known: whether it is the right answer that the task has, which the policy learns as it is.
    """

    text: str
    ended: bool
    advantage: float
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    known: bool = False


@dataclass(frozen=True, slots=True)
class TrainingGroup:
    """All answers to one prompt, with their advantages; `external` if another node wrote them."""

    prompt: Prompt
    answers: tuple[TrainingAnswer, ...]
    external: bool = False


@dataclass(frozen=True, slots=True)
class UpdateStatistics:
    """Statistics of one update. Means are over answer tokens unless noted.

    Attributes:
        gradient_norm: L2 norm of the adapter's gradient before clipping.
        clip_fraction, reference_kl: 0; nodes that passed over a batch several times, or had a KL term, reported them.
        entropy: of the learner's next-token distribution, nats.
        mismatch_kl: sampler against learner on own tokens, nats: k3 estimate of KL(sampler || learner).
        answer_tokens: mean length of all answers, in tokens.
        ended: share of all answers that the policy ended.
        informative: groups that had a gradient.
        tokens: answer tokens trained on.
        learning_rate: of the step.
    """

    loss: float = 0.0
    gradient_norm: float = 0.0
    clip_fraction: float = 0.0
    entropy: float = 0.0
    mismatch_kl: float = 0.0
    reference_kl: float = 0.0
    answer_tokens: float = 0.0
    ended: float = 0.0
    groups: int = 0
    informative: int = 0
    tokens: int = 0
    steps: int = 0
    learning_rate: float = 0.0

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """Shape of the adapter: rank, alpha (scale is alpha / rank) and the seed of its initial values."""

    rank: int = 16
    alpha: float = 32.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class ExternalRule:
    """What other nodes' answers may do to the policy, which did not write them. `docs/results.md` has the evidence.

    Attributes:
        negatives: factor of negative advantages, 0 to 1. At 0 an external answer is learned or left, never unlearned.
        pull: sum of the advantages of a group's right answers, which share it equally, whatever wrong ones stand
            beside them. The default is that of the one right answer of an own group of eight. 0: as in an own group.
        slack: nats by which tokens may be more surprising to the policy, on average, than what it writes itself. What
            goes beyond adds up along the answer, what falls short is taken off, and the sum is never below zero.
        patience: nats to which that sum may grow at the first token, and by 1 + `slack` more for each factor e of
            tokens. A token counts less by the factor e for each nat beyond, and from there on nothing is taken off. 0:
            every token counts fully.
        negative_floor: a token of an answer with a negative advantage that the policy finds less likely than this
            counts less, in proportion to its probability. 0: none does.
        bounded: whether a group pulls at most as strongly as the strongest own one, and counts as an own one in the
            mean, however long its answers are.
    """

    negatives: float = 0.0
    pull: float = 2.65
    slack: float = 0.5
    patience: float = 6.0
    negative_floor: float = 0.1
    bounded: bool = True


PUBLISHED = ExternalRule(negatives=1.0, pull=0.0, patience=0.0, negative_floor=0.0, bounded=False)
"""External answers are trained on as if the policy had written them, as in the paper."""


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    """Numbers of an update. The defaults proved stable (`docs/results.md`).

    Attributes:
        learning_rate: Adam's, after the warm-up.
        warmup: updates over which the rate rises linearly to `learning_rate`.
        decay_after: update from which the rate falls with the inverse square root of their number; 0: never.
        importance_cap: upper bound of the sampler/learner importance weight.
        max_gradient_norm: the gradient is scaled down to this L2 norm.
        temperature: of sampling; the learner's logits are divided by it.
        max_tokens: external answers are cut to this length, the limit of own ones; 0: never.
        external_rule: what external answers may do.
    """

    learning_rate: float = 2e-4
    warmup: int = 5
    decay_after: int = 20
    betas: tuple[float, float] = (0.9, 0.99)
    importance_cap: float = 2.0
    max_gradient_norm: float = 1.0
    temperature: float = 1.0
    max_tokens: int = 0
    external_rule: ExternalRule = ExternalRule()

    def rate(self, update: int) -> float:
        """The learning rate of an update, counted from 1: warm-up, then constant, then inverse square root.

        A node has no last round to schedule for, and late rounds, with few informative groups, are noisy.
        """
        rising = min(1.0, update / self.warmup) if self.warmup else 1.0
        falling = min(1.0, math.sqrt(self.decay_after / update)) if self.decay_after else 1.0
        return self.learning_rate * rising * falling


class CallHandle:
    """Watches and cancels one long call of a policy.

    Thread-safe: the call runs in a worker thread; `cancel` may come from another thread or a signal handler.

    Args:
        progress: called with (done, total), in answers or groups.
        growing: called with (group, answer, text so far, tokens so far) while an answer grows, not when it is complete.
            Each text begins with the one before. What returns False ends that answer there, as the token limit would;
            the others go on.
        finished: called with (group, answer, sample) for each complete answer, while others still grow.

    Attributes:
        growing, finished: as above; None if nobody follows the answers.
        paused_seconds: how long `check` held the call up.
    """

    def __init__(
        self,
        progress: Callable[[int, int], None] | None = None,
        growing: Callable[[int, int, str, int], bool | None] | None = None,
        finished: Callable[[int, int, Sample], None] | None = None,
    ) -> None:
        self.paused_seconds = 0.0
        self.growing = growing
        self.finished = finished
        self._cancelled = threading.Event()
        self._progress = progress

    def cancel(self) -> None:
        """Ask the call to end; it raises `Cancelled` at its next check."""
        self._cancelled.set()

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def check(self) -> None:
        """Raise Cancelled if the call was cancelled. Policies call it between decode steps and between packs."""
        self.end_if_cancelled()

    def end_if_cancelled(self) -> None:
        """Like `check`, but never blocks. Policies call it in the middle of a step, layer by layer."""
        if self.cancelled:
            raise Cancelled

    def report(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(done, total)


class Policy(Protocol):
    """A language model with a trainable adapter."""

    @property
    def name(self) -> str:
        """Backend and model in a few words, for people."""

    @property
    def backend(self) -> str:
        """Name of the backend in the settings."""

    @property
    def model_digest(self) -> str:
        """SHA-256 (hex) of the base model's file; a checkpoint belongs to exactly one model."""

    @property
    def threads(self) -> int:
        """Processor threads in use."""

    @property
    def context(self) -> int:
        """Most tokens of a prompt and its answer together."""

    def generate(
        self,
        prompts: Sequence[Prompt],
        answers: int,
        max_tokens: int,
        temperature: float,
        seed: int,
        handle: CallHandle | None = None,
        *,
        use_adapter: bool = True,
        stop_text: str = STOP_TEXT,
        schema: str | None = None,
        begun: Sequence[Sequence[int]] = (),
    ) -> list[list[Sample]]:
        """Sample `answers` completions of each prompt.

        Args:
            answers: L, completions per prompt.
            max_tokens: most tokens per completion, the end token included.
            temperature: 0 is greedy.
            seed: the same seed, prompts and adapter give the same result.
            handle: progress (in answers) and cancellation.
            use_adapter: False samples from the base model.
            stop_text: an answer is complete when it contains this text; "": none.
            schema: JSON schema (text) that the answers obey: only tokens with which an answer can still obey it are
                drawn. An answer that the token limit ends may be a part of one.
            begun: for each prompt, token ids of its answers that were drawn before; they go on from there, and those
                ids come first in their samples, each with 0 for its log-probability. Empty: all begin.

        Returns:
            G lists of L samples.

        Raises:
            BackendError: if there is a schema, and the package that reads it is missing.
            Cancelled: between decode steps.
            ModelError: if a prompt doesn't fit into the model's context, or the schema can't be obeyed.
        """

    def update(
        self, groups: Sequence[TrainingGroup], settings: UpdateSettings, handle: CallHandle | None = None
    ) -> UpdateStatistics:
        """Make one policy-gradient update of the adapter; the next `generate` samples from it.

        Groups whose advantages are all zero cost nothing. A cancelled update leaves the adapter unchanged.

        Raises:
            Cancelled: between groups.
        """

    def room(self, prompt: Prompt) -> int:
        """Tokens that the model's context has left for an answer to a prompt; negative if the prompt does not fit."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a completion's text; no special tokens are added or parsed."""

    def cut(self, text: str, ended: bool, max_tokens: int) -> Answer:
        """Cut another node's answer where this policy's sampler would have stopped: at `STOP_TEXT`, or at the limit.

        Args:
            text, ended: the answer, as its author shared it.
            max_tokens: most tokens, the end token included.

        Returns:
            The answer, by itself ended or not, with the token ids that are trained on and the text that they decode to.
            The ids have the end token if the author's policy chose it.
        """

    def weights(self) -> dict[str, FloatArray]:
        """A copy of the adapter's weights by PEFT's names, for their average over several updates."""

    def set_weights(self, weights: Mapping[str, FloatArray]) -> None:
        """Replace the adapter's weights; the optimizer stays as it is."""

    def save(self, directory: Path) -> None:
        """Write adapter (PEFT format) and optimizer into an existing directory."""

    def load(self, directory: Path) -> None:
        """Read what `save` wrote, bit for bit.

        Raises:
            CheckpointError: if the files are incomplete or belong to another model.
        """

    def memory_estimate(self, groups: int, answers: int, prompt_tokens: int, max_tokens: int) -> int:
        """Peak memory of a round of this shape, in bytes."""

    def close(self) -> None:
        """Free native memory. The policy can't be used afterwards."""
