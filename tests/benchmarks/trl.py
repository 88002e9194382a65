"""A round of SAPO beside a step of TRL's GRPOTrainer: same model, LoRA, questions, numbers of answers and of tokens.

Needs the extra `bench`. Runs on a GPU if torch has one, else on the CPU. TRL generates with transformers and trains on
padded batches; neither uses a server beside it. Each step of TRL's is followed by a round of each of ours, in one
process, so that a machine whose speed drifts slows all alike.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sapo_edge.backends.llama.policy import LlamaCppPolicy
from sapo_edge.backends.machine.threads import available_cores
from sapo_edge.backends.model.find import find_model
from sapo_edge.backends.model.gguf_header import read_header
from sapo_edge.backends.pytorch.model import load_base
from sapo_edge.backends.pytorch.place import weight_bytes
from sapo_edge.backends.pytorch.policy import TorchPolicy
from sapo_edge.policy import LoraSettings, Policy, TrainingAnswer, TrainingGroup, UpdateSettings
from sapo_edge.state.paths import Paths
from tests.benchmarks.measure import report
from tests.benchmarks.sampling import prompts

LORA = LoraSettings(rank=16, alpha=32.0)
TRL_BATCH = 8
"""Answers of one of TRL's batches on a CPU; a GPU takes all at once."""


def run(repeats: int, questions: int, answers: int, tokens: int) -> None:
    """Print the tables.

    Args:
        repeats: steps of TRL's and rounds of ours, after one of each to warm up.
        questions: at most 8.
        answers: to each.
        tokens: most of an answer.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    threads = available_cores()
    asked = prompts()[:questions]
    with tempfile.TemporaryDirectory() as directory:
        workspace = Path(directory)
        ours: dict[str, Policy] = {
            "sapo-edge, torch": TorchPolicy(find_model(""), device=device, lora=LORA, threads=threads)
        }
        if device == "cpu":
            ours["sapo-edge, llama.cpp and torch"] = LlamaCppPolicy(
                find_model(""), cache=Paths.default().cache, workspace=workspace, lora=LORA, threads=threads
            )
        rates: dict[str, list[float]] = {name: [] for name in (*ours, "TRL")}
        sampling: list[float] = []

        def our_rounds(number: int) -> None:
            torch.set_num_threads(threads)
            for name, policy in ours.items():
                made, sampled, updated = our_round(policy, asked, answers, tokens, number)
                if number:
                    rates[name].append(made / (sampled + updated))
                    if name == "sapo-edge, torch":
                        sampling.append(sampled)
                print(f"{name}: {made} tokens, sampled in {sampled:.1f} s, updated in {updated:.1f} s", flush=True)

        counted = Counter()
        trainer = make_trainer(workspace, asked, answers, tokens, repeats + 1, device, counted)
        trainer.add_callback(timing(counted, rates["TRL"], our_rounds))
        trainer.train()
    title = f"A round of {questions} x {answers} x {tokens} tokens, {device}, {threads} threads, rank {LORA.rank}"
    report(title, "tokens/s", rates, "sapo-edge, torch", higher_is_better=True)
    if device == "cuda":
        tell_bandwidth(ours["sapo-edge, torch"], tokens, sorted(sampling)[len(sampling) // 2])


def our_round(policy: Policy, asked: list[Any], answers: int, tokens: int, seed: int) -> tuple[int, float, float]:
    """Answer tokens, and seconds of sampling and of the update."""
    begin = time.perf_counter()
    sampled = policy.generate(asked, answers, tokens, 1.0, seed, stop_text="")
    middle = time.perf_counter()
    groups = [
        TrainingGroup(
            prompt,
            tuple(
                TrainingAnswer(one.text, one.ended, 1.0 - 2.0 * (index % 2), one.token_ids, one.logprobs)
                for index, one in enumerate(group)
            ),
        )
        for prompt, group in zip(asked, sampled, strict=True)
    ]
    policy.update(groups, UpdateSettings(learning_rate=1e-6))
    return sum(len(one.token_ids) for group in sampled for one in group), middle - begin, time.perf_counter() - middle


class Counter:
    """Answer tokens that TRL has made so far."""

    tokens = 0


def make_trainer(
    workspace: Path, asked: list[Any], answers: int, tokens: int, steps: int, device: str, counted: Counter
) -> Any:
    """TRL's trainer on the embedded model."""
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    path = find_model("")
    # As transformers computes it, loaded by us: what transformers loads from a GGUF file it refuses to train.
    model = load_base(read_header(path))
    model.set_attn_implementation("sdpa")
    model = model.to(torch.float32 if device == "cpu" else torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name, padding_side="left")
    rows = [[{"role": message.role, "content": message.content} for message in one] for one in asked]
    together = len(asked) * answers
    batch = min(TRL_BATCH, together) if device == "cpu" else together
    settings = GRPOConfig(
        output_dir=str(workspace), max_steps=steps, per_device_train_batch_size=batch,
        gradient_accumulation_steps=together // batch, num_generations=answers, max_completion_length=tokens,
        temperature=1.0, top_k=0, top_p=1.0, beta=0.0, num_iterations=1, learning_rate=1e-6,
        lr_scheduler_type="constant", use_cpu=device == "cpu", bf16=device == "cuda", gradient_checkpointing=False,
        shuffle_dataset=False, save_strategy="no", report_to="none", disable_tqdm=True, logging_strategy="no", seed=0,
    )  # fmt: skip

    def reward(completion_ids: list[list[int]], **_others: Any) -> list[float]:
        counted.tokens += sum(map(len, completion_ids))
        return [float(index % 2) for index in range(len(completion_ids))]

    lora = LoraConfig(r=LORA.rank, lora_alpha=int(LORA.alpha), target_modules="all-linear", task_type="CAUSAL_LM")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return GRPOTrainer(
            model, reward_funcs=reward, args=settings, train_dataset=Dataset.from_dict({"prompt": rows * steps}),
            processing_class=tokenizer, peft_config=lora,
        )  # fmt: skip


def timing(counted: Counter, rates: list[float], between: Callable[[int], None]) -> Any:
    """A callback that times each of TRL's steps, the first one aside, and runs ours after it."""
    from transformers import TrainerCallback

    class Timing(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, _settings: Any, _state: Any, _control: Any, **_others: Any) -> None:
            self.before, self.begin = counted.tokens, time.perf_counter()

        def on_step_end(self, _settings: Any, state: Any, _control: Any, **_others: Any) -> None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            elapsed, made = time.perf_counter() - self.begin, counted.tokens - self.before
            if state.global_step > 1:
                rates.append(made / elapsed)
            print(f"TRL: {made} tokens in {elapsed:.1f} s", flush=True)
            between(state.global_step - 1)

    return Timing()


def tell_bandwidth(policy: Policy, tokens: int, seconds: float) -> None:
    """How near sampling comes to reading all weights once a step at the speed at which the GPU copies memory."""
    assert isinstance(policy, TorchPolicy)
    source = torch.empty(1 << 28, device="cuda")
    target = torch.empty_like(source)
    target.copy_(source)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(10):
        target.copy_(source)
    torch.cuda.synchronize()
    copied = 10 * 2 * source.nbytes / (time.perf_counter() - begin)
    read = tokens * weight_bytes(policy.shape, policy.place.weights) / seconds
    print(f"\nSampling reads weights at {read / 1e9:.0f} GB/s, {read / copied:.1%} of what copying memory reaches")
