"""An exported adapter in the plain libraries: the held-out accuracy there, beside what `sapo eval` says.

Nothing of the backend takes part: llama-cpp-python loads the model's own file with the GGUF adapter, transformers and
PEFT load the same file with the PEFT adapter, and both answer greedily.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from sapo_edge.backends.model.find import find_model
from sapo_edge.policy import STOP_TEXT, Prompt
from sapo_edge.tasks.manifest import Manifest, load_manifest
from sapo_edge.tasks.source import TaskSource

Answer = Callable[[Prompt], str]


def sapo(*arguments: str) -> str:
    command = [sys.executable, "-m", "sapo_edge", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def cut(text: str) -> str:
    """A completion up to the stop text, as a node ends it."""
    before, stop, _ = text.partition(STOP_TEXT)
    return before + stop


def with_llama(adapter: Path, manifest: Manifest) -> Answer:
    """Plain llama-cpp-python, its chat template and its own loop."""
    from sapo_edge.backends.model.llama_library import import_binding

    llama = import_binding().Llama(str(find_model("")), lora_path=str(adapter), n_ctx=512, verbose=False)

    def answer(prompt: Prompt) -> str:
        messages = [{"role": message.role, "content": message.content} for message in prompt]
        result = llama.create_chat_completion(messages, temperature=0.0, max_tokens=manifest.max_tokens)
        return cut(str(result["choices"][0]["message"]["content"]))

    return answer


def with_peft(adapter: Path, manifest: Manifest) -> Answer:
    """Plain transformers and PEFT. Tokens are llama.cpp's: transformers splits this model's digits otherwise."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from sapo_edge.backends.model.llama_library import import_binding

    path = find_model("")
    vocabulary = import_binding().Llama(str(path), vocab_only=True, verbose=False)
    base = AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, str(adapter)).eval()

    def answer(prompt: Prompt) -> str:
        turns = [f"<|im_start|>{message.role}\n{message.content}<|im_end|>\n" for message in prompt]
        text = "".join(turns) + "<|im_start|>assistant\n"
        ids = torch.tensor([vocabulary.tokenize(text.encode(), add_bos=False, special=True)])
        with torch.no_grad():
            made = model.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=manifest.max_tokens,
                pad_token_id=2, eos_token_id=2,
            )  # fmt: skip
        return cut(vocabulary.detokenize(made[0, ids.shape[1] :].tolist()).decode("utf-8", errors="replace"))

    return answer


def run(home: Path) -> None:
    manifest = load_manifest("starter")
    source = TaskSource(manifest)
    tasks = source.held_out("test", 100)
    evaluated = json.loads(sapo("eval", "--home", str(home), "--json"))
    print(f"\n### The exported adapter in other programs\n\n- `sapo eval`: {evaluated['adapter']['correct']} of 100")
    with tempfile.TemporaryDirectory() as directory:
        sapo("export", "--to", "gguf", "--home", str(home), directory)
        sapo("export", "--to", "peft", "--home", str(home), directory)
        loaders = {
            "plain llama-cpp-python, GGUF adapter": (with_llama, Path(directory) / "adapter.gguf"),
            "plain peft, PEFT adapter": (with_peft, Path(directory)),
        }
        for name, (load, path) in loaders.items():
            answer = load(path, manifest)
            right = sum(source.score(task, answer(manifest.prompt_for(task.question))) for task in tasks)
            print(f"- {name}: {right:.0f} of 100", flush=True)
