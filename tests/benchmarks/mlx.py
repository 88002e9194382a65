"""MLX on the embedded model with 200-token prompts: group sampling beside `mlx_lm.batch_generate`, an update beside a
padded one. Both sides compute in float32 with the same adapter, on the CPU with OpenBLAS or on a Mac's GPU."""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import partial
from typing import Any

from sapo_edge.backends.apple.policy import MlxPolicy
from sapo_edge.backends.common.packing import EncodedGroup
from sapo_edge.backends.machine.threads import available_cores
from sapo_edge.backends.model.find import find_model
from sapo_edge.policy import CallHandle, Message, Prompt, UpdateSettings
from tests.benchmarks.measure import interleaved, report, seconds
from tests.benchmarks.work import SUBJECTS, random_groups, sampling_rate, without_steps
from tests.models import opening

GROUPS, ANSWERS, TOKENS, PROMPT = 8, 8, 64, 200
OURS = "sapo-edge"
FILLING = "Once upon a time there was a tree that stood alone on a wide hill above a village by the sea. "


def prompts(policy: MlxPolicy) -> list[Prompt]:
    """Prompts of 200 tokens, a few more or less; what they share comes last, so that no two begin alike."""
    made: list[Prompt] = []
    for subject in SUBJECTS:
        text = f"Tell a long story about {subject}. "
        while len(policy.vocabulary.encode_prompt((Message("user", text),))) < PROMPT - 10:
            text += FILLING
        made.append((Message("user", text),))
    return made


def batch_generated(policy: MlxPolicy) -> float:
    """Tokens a second of mlx-lm's own function, all answers in one batch as well, log-probabilities asked for too."""
    from mlx_lm import batch_generate
    from mlx_lm.sample_utils import make_sampler

    encoded = [policy.vocabulary.encode_prompt(prompt) for prompt in prompts(policy) for _ in range(ANSWERS)]
    tokenizer = types.SimpleNamespace(eos_token_ids=[policy.vocabulary.end_token], decode=lambda _ids: "")
    made: list[Any] = []
    work = partial(
        batch_generate, policy.model, tokenizer, encoded, max_tokens=TOKENS, sampler=make_sampler(temp=1.0),
        completion_batch_size=GROUPS * ANSWERS, return_token_ids=True, return_logprobs=True,
    )  # fmt: skip
    elapsed = seconds(lambda: made.append(work()))
    return sum(map(len, made[0].token_ids)) / elapsed


def padded_gradient(policy: MlxPolicy, batch: list[EncodedGroup]) -> None:
    """The same loss, group by group as a padded batch, logits only where an answer is predicted."""
    import mlx.core as mx
    from mlx.utils import tree_map

    total = sum(len(answer.token_ids) for group in batch for answer in group.answers)
    model = policy.model

    def loss(parameters: Any, rows: Any, targets: Any, advantages: Any, first: int) -> Any:
        model.update(parameters)
        logits = model.model.embed_tokens.as_linear(model.model(rows)[:, first:-1])
        logprobs = mx.take_along_axis(logits, targets[..., None], axis=-1)[..., 0] - mx.logsumexp(logits, axis=-1)
        return -(mx.exp(logprobs - mx.stop_gradient(logprobs)) * advantages).sum() / total

    parameters, gradients = model.trainable_parameters(), None
    for group in batch:
        rows = mx.array([group.prompt + answer.token_ids for answer in group.answers])
        advantages = mx.array([answer.advantage for answer in group.answers])[:, None]
        found = mx.grad(loss)(parameters, rows, rows[:, len(group.prompt) :], advantages, len(group.prompt) - 1)
        gradients = found if gradients is None else tree_map(mx.add, gradients, found)
        mx.eval(gradients)
    model.update(parameters)


def measured(work: Callable[[], object], peaks: list[float]) -> float:
    """Seconds of an update; notes GB that MLX held at most, weights included."""
    import mlx.core as mx

    mx.clear_cache()
    mx.reset_peak_memory()
    elapsed = seconds(work)
    peaks.append(float(mx.get_peak_memory()) / 1e9)
    return elapsed


def run(repeats: int) -> None:
    policy = MlxPolicy(opening(find_model(""), threads=available_cores()))
    learner = policy.learner
    assert learner is not None
    batch = random_groups(GROUPS, ANSWERS, TOKENS, PROMPT)
    learner.update(batch[:1], UpdateSettings(learning_rate=1e-3), CallHandle())  # B is no longer zero
    ways = {
        OURS: lambda: sampling_rate(policy, prompts(policy), ANSWERS, TOKENS, stop_text=""),
        "mlx_lm.batch_generate": lambda: batch_generated(policy),
    }
    figures = interleaved(ways, repeats)
    shape = f"{GROUPS} x {ANSWERS} answers of {TOKENS} tokens, prompts of {PROMPT}, {policy.reasons[0]}"
    report(f"Sampling {shape}", "tokens/s", figures, OURS, higher_is_better=True)
    updates: dict[str, Callable[[], object]] = {
        OURS: without_steps(learner, batch, UpdateSettings()),
        "padded batches": partial(padded_gradient, policy, batch),
    }
    peaks: dict[str, list[float]] = {name: [] for name in updates}
    figures = interleaved({name: partial(measured, work, peaks[name]) for name, work in updates.items()}, repeats)
    report(f"Update of {shape}", "s", figures, OURS, higher_is_better=False)
    report(f"Memory of an update of {shape}", "GB", peaks, OURS, higher_is_better=False)
