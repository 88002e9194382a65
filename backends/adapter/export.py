"""An adapter in the formats that other programs read."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from enum import StrEnum
from pathlib import Path

from sapo_edge.backends.machine.disk import replacing
from sapo_edge.errors import CheckpointError, ModelError, StateError
from sapo_edge.policy import STOP_TEXT, Prompt


class Quantisation(StrEnum):
    """Number formats of a merged GGUF file, by llama.cpp's names."""

    F16 = "f16"
    BF16 = "bf16"
    Q8_0 = "q8_0"
    Q6_K = "q6_k"
    Q5_K_M = "q5_k_m"
    Q4_K_M = "q4_k_m"
    Q4_0 = "q4_0"


BITS = {"f16": 16.0, "bf16": 16.0, "q8_0": 8.5, "q6_k": 6.6, "q5_k_m": 5.7, "q4_k_m": 4.9, "q4_0": 4.6}
"""About how many bits a weight takes."""
MERGED_NAME = "merged"
DEFAULT_QUANTISATION = Quantisation.Q8_0
PEFT_WEIGHT = re.compile(r"base_model\.model\.(model\.layers\.(\d+)\.([\w.]+))\.lora_([AB])\.weight")
"""A weight of a PEFT adapter: the layer's full name, its block, its name within the block, the matrix."""


class ExportFormat(StrEnum):
    PEFT = "peft"
    GGUF = "gguf"
    MLX = "mlx"
    MERGED = "merged"


def export(
    adapter: Path, target: Path, form: ExportFormat, model: Path, *, quantisation: Quantisation | None = None,
    prompt: Prompt = (),
) -> Path:  # fmt: skip
    """Write an adapter into a directory, which is made if there is none. Files of the same names are replaced.

    Args:
        adapter: directory of a checkpoint or of a PEFT adapter.
        model: the adapter's base model: gguf needs its GGUF file, merged any; the other formats do not read it.
        quantisation: number format of a merged GGUF file; `DEFAULT_QUANTISATION` if None.
        prompt: the turns before each question, for the Modelfile beside a merged GGUF file.

    Returns:
        What to give to the other program: the directory for peft, the file for gguf, a subdirectory for mlx; for merged
        the GGUF file, or a subdirectory if the base model is a directory.
    """
    from sapo_edge.backends.adapter.files import ADAPTER_FILE, CONFIG_FILE

    for name in (CONFIG_FILE, ADAPTER_FILE):
        if not (adapter / name).is_file():
            problem = f"{adapter} holds no adapter ({name} is missing)"
            raise CheckpointError(problem, "give the directory of a checkpoint as --adapter")
    fresh = not target.exists()
    try:
        target.mkdir(parents=True, exist_ok=True)
        if form is ExportFormat.GGUF:
            return _write_gguf(adapter, target / "adapter.gguf", model)
        if form is ExportFormat.MLX:
            return _write_mlx(adapter, target / "mlx")
        if form is ExportFormat.MERGED:
            return _write_merged(adapter, target, model, quantisation, prompt)
        for name in (CONFIG_FILE, ADAPTER_FILE):
            with replacing(target / name) as part:
                shutil.copyfile(adapter / name, part)
        return target
    except OSError as error:
        raise StateError(
            f"can't write to {target}: {error.strerror}", "free some space, or give another directory"
        ) from error
    finally:
        if fresh and target.is_dir() and not any(target.iterdir()):
            target.rmdir()


def _write_gguf(adapter: Path, file: Path, model: Path) -> Path:
    from sapo_edge.backends.adapter.files import read_adapter, read_alpha
    from sapo_edge.backends.adapter.gguf import write_adapter
    from sapo_edge.backends.model.gguf_header import read_header

    write_adapter(file, read_header(model), read_adapter(adapter), read_alpha(adapter)[1])
    return file


def _write_merged(adapter: Path, target: Path, model: Path, quantisation: Quantisation | None, prompt: Prompt) -> Path:
    from sapo_edge.backends.adapter.merged import merge_directory, merge_gguf
    from sapo_edge.backends.model.hf_directory import HfDirectory
    from sapo_edge.backends.model.source import open_source

    source, form = open_source(model, mlx=True), quantisation or DEFAULT_QUANTISATION
    name = MERGED_NAME if isinstance(source, HfDirectory) else f"{MERGED_NAME}-{form}.gguf"
    file = target / name
    if file.exists() and file.samefile(model):
        # The merged model of an earlier run: in its place, no node could go on with this one.
        raise StateError(f"{file} is the model that this adapter was trained on", "give another directory")
    if isinstance(source, HfDirectory):
        if quantisation is not None:
            remedy = "leave out --quantisation; llama.cpp's convert_hf_to_gguf.py makes a GGUF file of the result"
            raise ModelError(f"{model} is a directory, which is merged in its own number format", remedy)
        return merge_directory(adapter, source, file)
    merge_gguf(adapter, source, file, form)
    with replacing(target / "Modelfile") as part:
        part.write_text(modelfile(file.name, prompt), "utf-8")
    return file


def modelfile(model: str, prompt: Prompt) -> str:
    """A Modelfile for Ollama: the model, the turns before each question, greedy answers that end at the stop text."""
    lines = [f"FROM ./{model}"]
    for message in prompt:
        # Three quotation marks end a text, and Ollama knows no way to write them in one.
        text = message.content.replace('"' * 3, "'" * 3)
        lines.append(f'SYSTEM """{text}"""' if message.role == "system" else f'MESSAGE {message.role} """{text}"""')
    return "\n".join([*lines, "PARAMETER temperature 0", f"PARAMETER stop {STOP_TEXT}", ""])


def _write_mlx(adapter: Path, target: Path) -> Path:
    """Write an adapter as mlx-lm's own trainer does, in a directory of its own: a file has the same name as PEFT's.

    mlx-lm multiplies from the right: its A is (inputs, rank) and its B (rank, outputs), the transposes of PEFT's. Its
    scale is alpha / rank.
    """
    from sapo_edge.backends.adapter.files import CONFIG_FILE, read_adapter, read_alpha, write_tensors

    rank, alpha = read_alpha(adapter)
    weights, blocks, layers = {}, set[int](), set[str]()
    for name, array in read_adapter(adapter).items():
        match = PEFT_WEIGHT.fullmatch(name)
        if match is None:
            problem = f"the adapter in {adapter} has a weight {name}, which mlx-lm can't load"
            raise CheckpointError(problem, "export it as peft")
        path, block, layer, matrix = match.groups()
        weights[f"{path}.lora_{matrix.lower()}"] = array.T
        blocks.add(int(block))
        layers.add(layer)
    config = {
        "fine_tune_type": "lora",
        "num_layers": max(blocks, default=-1) + 1,
        "lora_parameters": {"rank": rank, "scale": alpha / rank, "dropout": 0.0, "keys": sorted(layers)},
    }
    target.mkdir(exist_ok=True)
    with replacing(target / "adapters.safetensors") as part:
        write_tensors(part, weights)
    with replacing(target / CONFIG_FILE) as part:
        part.write_text(json.dumps(config, indent=2) + "\n")
    return target


def usage(path: Path, form: ExportFormat, model: Path) -> list[tuple[str, str]]:
    """Programs that load what was exported, each with its command."""
    given, base = shlex.quote(str(path)), shlex.quote(str(model))
    if form is ExportFormat.MERGED:
        if path.is_dir():
            return [("transformers", f'AutoModelForCausalLM.from_pretrained("{path}")')]
        recipe = shlex.quote(str(path.with_name("Modelfile")))
        return [
            ("Ollama", f"ollama create my-model -f {recipe} && ollama run my-model"),
            # Without the flag the file is moved, and the Modelfile names one that is gone.
            ("LM Studio", f"lms import --copy {given}"),
            ("llama.cpp", f"llama-cli -m {given}, or llama-server -m {given}"),
        ]
    if form is ExportFormat.GGUF:
        return [("llama.cpp", f"llama-cli -m {base} --lora {given}")]
    if form is ExportFormat.MLX:
        command = f"mlx_lm.generate --adapter-path {given} --model MODEL, the same model as a directory for MLX"
        return [("mlx-lm", command)]
    return [("PEFT", f'PeftModel.from_pretrained(base_model, "{path}")')]
