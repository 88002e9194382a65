"""Measures one backend: `python -m sapo_edge.doctor.bench`, the task as JSON on stdin, the figures as JSON on stdout.

In a process of its own for each backend: only a fresh one shows what it takes of memory, and one that crashes takes no
other along.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from sapo_edge.care.sensors import peak_memory
from sapo_edge.errors import SapoError
from sapo_edge.policy import LoraSettings, Policy, Prompt, Sample, TrainingAnswer, TrainingGroup, UpdateSettings

QUESTIONS, TOKENS = 4, 32
"""Questions of a measured round, and tokens of an answer: the same for everybody, so that figures can be compared."""


@dataclass(frozen=True, slots=True)
class Task:
    """What is measured.

    Attributes:
        backend, model: by name and path.
        manifest: whose prompts are used, its bytes as hexadecimal digits.
        cache: directory for derived files.
        answers: to each question.
        rank: of the adapter.
        threads: processor threads; 0 chooses.
        repeats: rounds.
    """

    backend: str
    model: str
    manifest: str
    cache: str
    answers: int
    rank: int
    threads: int
    repeats: int


@dataclass(frozen=True, slots=True)
class Figures:
    """What came out.

    Attributes:
        load_seconds: until the policy was there.
        tokens_per_second: of each round's sampling.
        update_seconds: of each round's update.
        update_tokens: answer tokens that each update trained on.
        peak_bytes: most resident memory of the process; 0 if unknown.
        device_bytes: most memory taken on a GPU; 0 without one.
        estimated_bytes: what the backend had estimated, where the model is.
        reasons: what was chosen, in words.
    """

    load_seconds: float
    tokens_per_second: tuple[float, ...]
    update_seconds: tuple[float, ...]
    update_tokens: tuple[int, ...]
    peak_bytes: int
    device_bytes: int
    estimated_bytes: int
    reasons: tuple[str, ...]


def measure(task: Task, narrate: Callable[[str], None]) -> Figures:
    """Sample and learn so many rounds.

    Raises:
        SapoError: if the backend can't be opened.
    """
    from sapo_edge.backends.choose import detect
    from sapo_edge.tasks.manifest import Manifest
    from sapo_edge.tasks.source import TaskSource

    manifest = Manifest.from_bytes(bytes.fromhex(task.manifest))
    prompts = [manifest.prompt_for(one.question) for one in TaskSource(manifest).held_out(QUESTIONS)]
    model = Path(task.model)
    with tempfile.TemporaryDirectory(prefix="sapo-bench-") as workspace:
        begin = time.perf_counter()
        policy, reasons = detect.open_policy(
            detect.detect(task.backend, model), model, cache=Path(task.cache), workspace=Path(workspace),
            lora=LoraSettings(rank=task.rank), threads=task.threads, trainable=True, narrate=narrate,
        )  # fmt: skip
        loaded = time.perf_counter() - begin
        try:
            # What is set up at a first call is no part of a round.
            _round(policy, prompts[:1], 2, 4, 0)
            rounds = []
            for number in range(task.repeats):
                narrate(f"{task.backend}: round {number + 1} of {task.repeats}")
                rounds.append(_round(policy, prompts, task.answers, TOKENS, number + 1))
            longest = max(len(policy.encode("".join(message.content for message in one))) for one in prompts)
            estimate = policy.memory_estimate(len(prompts), task.answers, longest, TOKENS)
            return Figures(
                loaded, tuple(one[0] for one in rounds), tuple(one[1] for one in rounds),
                tuple(one[2] for one in rounds), peak_memory(), _device_peak(), estimate.total, reasons,
            )  # fmt: skip
        finally:
            policy.close()


def _round(policy: Policy, prompts: list[Prompt], answers: int, tokens: int, seed: int) -> tuple[float, float, int]:
    """Tokens a second of sampling, seconds of an update, tokens trained on."""
    begin = time.perf_counter()
    # No stop text, so that answers are long; and one that ends early is counted as it is.
    sampled = policy.generate(prompts, answers, tokens, 1.0, seed, stop_text="")
    middle = time.perf_counter()
    groups = [
        TrainingGroup(prompt, tuple(_answer(sample, index) for index, sample in enumerate(group)))
        for prompt, group in zip(prompts, sampled, strict=True)
    ]
    trained = policy.update(groups, UpdateSettings(learning_rate=1e-6)).tokens
    end = time.perf_counter()
    made = sum(len(sample.token_ids) for group in sampled for sample in group)
    return made / (middle - begin), end - middle, trained


def _answer(sample: Sample, index: int) -> TrainingAnswer:
    return TrainingAnswer(sample.text, sample.ended, 1.0 - 2.0 * (index % 2), sample.token_ids, sample.logprobs)


def _device_peak() -> int:
    """Most memory that a library which is loaded has taken on a GPU."""
    torch, mlx = sys.modules.get("torch"), sys.modules.get("mlx.core")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_reserved())
    if mlx is not None and mlx.default_device() == mlx.gpu:
        return int(mlx.get_peak_memory())
    return 0


def main() -> int:
    """Measure what stdin asks for; what takes time is told on stderr."""
    task = Task(**json.load(sys.stdin))
    try:
        figures = measure(task, lambda text: print(text, file=sys.stderr, flush=True))
    except SapoError as error:
        print(json.dumps({"error": error.message, "remedy": error.remedy}))
        return 1
    print(json.dumps(asdict(figures)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
