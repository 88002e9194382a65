"""Loading MLX: what else it loads, and what it must not change. Each test runs a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import needs
from tests.unit.backends.fresh import broken, python

pytestmark = needs.MLX

REQUIRE = "import sys\nfrom sapo_edge.backends.apple.runtime import openblas, processor, require_mlx\nrequire_mlx()\n"


def test_it_loads_no_torch_keeps_the_limit_of_open_files_and_leaves_transformers_complete() -> None:
    limit = "import resource\nprint(resource.getrlimit(resource.RLIMIT_NOFILE))\n"
    loaded = "print([name for name in ('torch', 'transformers', 'peft') if name in sys.modules])\n"
    library = "print(('OpenBLAS' in processor()) == (openblas() is not None))\n"
    program = "import torch, transformers\nfrom transformers import AutoModelForCausalLM, LlamaConfig\n"
    program += "config = LlamaConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8,"
    program += " vocab_size=8)\nmodel = AutoModelForCausalLM.from_config(config)\n"
    program += "print(tuple(model(torch.tensor([[1, 2]])).logits.shape))"
    before, *after = python(limit + REQUIRE + limit + loaded + library + program).splitlines()
    assert after == [before, "[]", "True", "(1, 2, 8)"]


def test_a_broken_torch_does_not_matter_to_a_directory_with_its_tokenizer(directory: Path, tmp_path: Path) -> None:
    program = "from pathlib import Path\nfrom sapo_edge.backends.apple.policy import MlxPolicy\n"
    program += "from sapo_edge.backends.backend import OpenOptions\nfrom sapo_edge.policy import Message\n"
    program += f"policy = MlxPolicy(OpenOptions(Path({str(directory)!r}), Path(), Path(), threads=1))\n"
    program += "(group,) = policy.generate([(Message('user', 'hi'),)], 2, 4, 1.0, 1)\nprint(len(group))"
    assert python(program, broken(tmp_path, "torch")) == "2"


def test_a_broken_mlx_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    program = "from sapo_edge.backends.apple.runtime import require_mlx\nfrom sapo_edge.errors import BackendError\n"
    program += "try:\n    require_mlx()\nexcept BackendError as error:\n    print(error)"
    error = python(program, broken(tmp_path, "mlx"))
    assert "its library is missing" in error and "pip install" in error


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="OpenBLAS is loaded only on Linux")
def test_mlx_that_was_loaded_before_has_a_slow_library() -> None:
    assert "a slow built-in library" in python("import mlx.core\n" + REQUIRE + "print(processor())")
