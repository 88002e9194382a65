"""A round of SAPO beside a step of TRL's GRPOTrainer: same model, LoRA, questions, numbers of answers and of tokens.

Needs the extra `bench`. Runs on a GPU if torch has one, else on the CPU. TRL generates with transformers and trains on
padded batches; neither uses a server beside it. Each step of TRL's is followed by a round of each of ours, in one
process, so that a machine whose speed drifts slows all alike. `python -m tests.benchmarks.trl NAME SHAPE` prints the
peak of the memory that one of them takes in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from sapo_edge.backends.backend import RoundShape
from sapo_edge.backends.llama.policy import LlamaCppPolicy
from sapo_edge.backends.machine.threads import available_cores
from sapo_edge.backends.model.find import find_model
from sapo_edge.backends.model.gguf_header import read_header
from sapo_edge.backends.pytorch.model import load_base
from sapo_edge.backends.pytorch.policy import TorchPolicy
from sapo_edge.care.sensors import peak_memory
from sapo_edge.policy import LoraSettings, Policy, UpdateSettings
from tests.benchmarks.measure import report
from tests.benchmarks.sampling import prompts
from tests.benchmarks.work import embedded
from tests.contract.training import alternating

LORA = LoraSettings(rank=16, alpha=32.0)
TRL_BATCH = 8
"""Answers of one of TRL's batches on a CPU; a GPU takes all at once."""
PROMPT_TOKENS = 110
"""At least the tokens of each prompt."""
NODE, TORCH = "sapo-edge, llama.cpp and torch, as a node", "sapo-edge, torch"
ON_CPU = {
    NODE: "auto", "sapo-edge, llama.cpp and torch, float32": "float32", "sapo-edge, torch, float32": "float32",
    "TRL, float32": "float32", "TRL, bfloat16": "bfloat16",
}  # fmt: skip
"""What is compared on a CPU, and the number format of its products in training. TRL's bfloat16 is torch's autocast."""
ON_GPU = {TORCH: "auto", "TRL": "bfloat16"}


def run(repeats: int, questions: int, answers: int, tokens: int) -> None:
    """Print the tables, of so many steps of TRL's and rounds of ours after one of each to warm up."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    compared = ON_CPU if device == "cpu" else ON_GPU
    asked = prompts()[:questions]
    rates: dict[str, list[float]] = {name: [] for name in compared}
    with tempfile.TemporaryDirectory() as directory:
        names = [name for name in compared if not is_trl(name)]
        ours = {name: open_policy(name, Path(directory), len(asked), answers, tokens) for name in names}

        def our_rounds(number: int) -> None:
            for name, policy in ours.items():
                torch.set_num_threads(available_cores())
                made, sampled, updated = our_round(policy, asked, answers, tokens, number)
                if number:
                    rates[name].append(made / (sampled + updated))
                print(f"{name}: {made} tokens, sampled in {sampled:.1f} s, updated in {updated:.1f} s", flush=True)

        between: Callable[[int], None] | None = our_rounds
        for name in filter(is_trl, compared):
            trl_steps(name, asked, answers, tokens, repeats + 1, rates[name], between)
            between = None
    title = f"A round of {questions} x {answers} x {tokens} tokens, {device}, {available_cores()} threads"
    report(f"{title}, rank {LORA.rank}", "tokens/s", rates, next(iter(compared)), higher_is_better=True)
    if device == "cuda":
        return
    print("\n| what | peak of the process, GB |\n|---|---|")
    for name in compared:
        command = [sys.executable, "-m", "tests.benchmarks.trl", name, f"{questions}x{answers}x{tokens}"]
        ended = subprocess.run(command, capture_output=True, text=True, check=True)
        print(f"| {name} | {json.loads(ended.stdout.splitlines()[-1]) / 1e9:.2f} |", flush=True)


def is_trl(name: str) -> bool:
    return name.startswith("TRL")


def alone(name: str, questions: int, answers: int, tokens: int) -> int:
    """Bytes at the peak of this process after one round or step of `name`."""
    asked = prompts()[:questions]
    if is_trl(name):
        trl_steps(name, asked, answers, tokens, 1, [], None)
    else:
        with tempfile.TemporaryDirectory() as directory:
            our_round(open_policy(name, Path(directory), len(asked), answers, tokens), asked, answers, tokens, 0)
    return peak_memory()


def open_policy(name: str, workspace: Path, questions: int, answers: int, tokens: int) -> Policy:
    """One of ours; "as a node" plans its round by the memory that is free, as `sapo run` does."""
    options = partial(embedded, workspace, lora=LORA, threads=available_cores())
    if name == TORCH:
        return TorchPolicy(options(), device="cuda")
    precision = ON_CPU[name]
    if "llama.cpp" not in name:
        return TorchPolicy(options(precision=precision), device="cpu")
    size = RoundShape(LORA.rank, questions, answers, PROMPT_TOKENS, tokens, precision=precision)
    return LlamaCppPolicy(options(precision=precision, size=size if name == NODE else None))


def our_round(policy: Policy, asked: list[Any], answers: int, tokens: int, seed: int) -> tuple[int, float, float]:
    """Answer tokens, and seconds of sampling and of the update."""
    begin = time.perf_counter()
    sampled = policy.generate(asked, answers, tokens, 1.0, seed, stop_text="")
    middle = time.perf_counter()
    policy.update(list(map(alternating, asked, sampled)), UpdateSettings(learning_rate=1e-6))
    return sum(len(one.token_ids) for group in sampled for one in group), middle - begin, time.perf_counter() - middle


class Counter:
    tokens = 0


def trl_steps(
    name: str, asked: list[Any], answers: int, tokens: int, steps: int, rates: list[float],
    between: Callable[[int], None] | None,
) -> None:  # fmt: skip
    """Run steps of TRL's, something between them; adds the rate of each but the first to `rates`."""
    counted = Counter()
    with tempfile.TemporaryDirectory() as directory:
        trainer = make_trainer(Path(directory), name, asked, answers, tokens, steps, counted)
        trainer.add_callback(timing(name, counted, rates, between))
        trainer.train()


def make_trainer(
    workspace: Path, name: str, asked: list[Any], answers: int, tokens: int, steps: int, counted: Counter
) -> Any:
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    device = "cuda" if torch.cuda.is_available() else "cpu"
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
        lr_scheduler_type="constant", use_cpu=device == "cpu",
        bf16=(ON_CPU if device == "cpu" else ON_GPU)[name] == "bfloat16", gradient_checkpointing=False,
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


def timing(name: str, counted: Counter, rates: list[float], between: Callable[[int], None] | None) -> Any:
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
            print(f"{name}: {made} tokens in {elapsed:.1f} s", flush=True)
            if between is not None:
                between(state.global_step - 1)

    return Timing()


if __name__ == "__main__":
    print(alone(sys.argv[1], *map(int, sys.argv[2].split("x"))))
