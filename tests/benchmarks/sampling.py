"""Group sampling, 8 questions x 8 answers x 64 tokens, beside what people would use otherwise."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sapo_edge.backends.backend import RoundShape
from sapo_edge.backends.llama.policy import LlamaCppPolicy
from sapo_edge.backends.machine.threads import available_cores
from sapo_edge.backends.model.gguf_header import GgufHeader
from sapo_edge.policy import Message, Prompt
from tests.benchmarks.measure import interleaved, report, seconds
from tests.benchmarks.work import SUBJECTS, embedded, sampling_rate

QUESTIONS, ANSWERS, TOKENS = 8, 8, 64
FLOOR_STEPS = 8
CONTEXT = 512
"""Tokens of a prompt and its answer, for llama-cpp-python."""


def prompts() -> list[Prompt]:
    """Prompts whose answers are long, with a worked example in common as in the manifests."""
    head = (
        Message("system", "You tell long stories."),
        Message("user", "Tell a long story about a tree."),
        Message("assistant", "Once upon a time, there was a tree that stood alone on a wide hill above a village."),
    )
    return [(*head, Message("user", f"Tell a long story about {subject}.")) for subject in SUBJECTS]


def run(repeats: int, path: Path) -> None:
    import torch
    from transformers import DynamicCache  # noqa: F401  -- loaded before it is timed

    from sapo_edge.backends.model.llama_library import import_binding
    from sapo_edge.backends.pytorch.model import load_base
    from sapo_edge.backends.pytorch.policy import TorchPolicy

    llama_cpp = import_binding()
    cores = available_cores()
    with tempfile.TemporaryDirectory() as workspace:
        options = embedded(workspace, path, threads=cores, trainable=False)
        policy = LlamaCppPolicy(options)
        torch.set_num_threads(cores)
        # As a node opens it, which lets it use the memory that is free.
        size = RoundShape(options.lora.rank, QUESTIONS, ANSWERS, CONTEXT - TOKENS, TOKENS, trainable=False)
        by_torch = TorchPolicy(replace(options, precision="auto", size=size), "cpu")
        candidates: dict[str, Callable[[], float]] = {
            "sapo-edge": lambda: sampling_rate(policy, prompts(), ANSWERS, TOKENS),
            "sapo-edge, by torch": lambda: sampling_rate(by_torch, prompts(), ANSWERS, TOKENS),
        }
        assert policy.sampler is not None
        texts = [policy.vocabulary.encode_prompt(prompt) for prompt in prompts()]
        files = {policy.sampler.path: policy.sampler.format} | {policy.header.path: "its own file"}
        for file, label in files.items():
            llama = llama_cpp.Llama(str(file), n_ctx=CONTEXT, n_threads=cores, n_threads_batch=cores, verbose=False)
            candidates[f"llama_cpp.Llama.create_completion in a loop, {label}"] = _loop(llama, texts)
        end = int(policy.header.metadata["tokenizer.ggml.eos_token_id"])
        plain = load_base(policy.header)
        plain.set_attn_implementation("sdpa")
        candidates["transformers.generate, one batch, float32"] = _generate(plain, texts, end)
        for number_format in ("bfloat16", "float32"):
            candidates[f"floor: products in {number_format} alone"] = _products(policy.header, number_format)
        figures = interleaved(candidates, repeats)
    model = f"{policy.header.model_name}, prompts of at most {max(map(len, texts))} tokens"
    title = f"{model}: {QUESTIONS} x {ANSWERS} answers of {TOKENS} tokens, {cores} threads, {policy.sampler.format}"
    report(title, "tokens/s", figures, "sapo-edge", higher_is_better=True)


def _products(header: GgufHeader, number_format: str) -> Callable[[], float]:
    """Tokens a second if a step of all answers were nothing but products with the model's matrices, by torch."""
    import torch

    from sapo_edge.backends.pytorch.products import by_onednn

    rows = QUESTIONS * ANSWERS
    shapes = [info.shape for info in header.tensors.values() if len(info.shape) == 2]
    dtype = getattr(torch, number_format)
    weights = [torch.randn(shape).to(dtype) for shape in shapes]
    inputs = [torch.randn(rows, shape[1]).to(dtype) for shape in shapes]

    def compute() -> None:
        for _ in range(FLOOR_STEPS):
            for x, weight in zip(inputs, weights, strict=True):
                torch.nn.functional.linear(x, weight)

    def work() -> float:
        # "bfloat16": float32 products by oneDNN, too, as in the learner.
        with torch.no_grad(), by_onednn("bfloat16"):
            return rows * FLOOR_STEPS / seconds(compute)

    work()
    return work


def _loop(llama: Any, texts: list[list[int]]) -> Callable[[], float]:
    def tokens_of(text: list[int]) -> int:
        made = llama.create_completion(text, max_tokens=TOKENS, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
        return int(made["usage"]["completion_tokens"])

    def work() -> float:
        made: list[int] = []
        # One answer to each question: a loop's rate does not depend on how many there are.
        elapsed = seconds(lambda: made.extend(map(tokens_of, texts)))
        return sum(made) / elapsed

    return work


def _generate(model: Any, texts: list[list[int]], end: int) -> Callable[[], float]:
    import torch

    width = max(map(len, texts))
    rows = [[end] * (width - len(text)) + text for text in texts for _ in range(ANSWERS)]
    mask = [[0] * (width - len(text)) + [1] * len(text) for text in texts for _ in range(ANSWERS)]
    options = {"max_new_tokens": TOKENS, "do_sample": True, "top_k": 0, "pad_token_id": end, "eos_token_id": end}

    def work() -> float:
        made: list[Any] = []
        torch.manual_seed(0)
        with torch.no_grad():
            tokens, attended = torch.tensor(rows), torch.tensor(mask)
            elapsed = seconds(lambda: made.append(model.generate(tokens, attention_mask=attended, **options)))
        new = made[0][:, width:]
        # A row that has ended is padded with the end token: its first one counts.
        ended = (new == end).int().cumsum(1)
        return int((ended <= 1).sum() - ((ended == 1) & (new != end)).sum()) / elapsed

    return work
