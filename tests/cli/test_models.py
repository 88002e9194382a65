"""`sapo models` with a small hub on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.inprocess import Invoke
from tests.hub import Hub

FILE = "hf:someone/tiny-GGUF:tiny-Q8_0.gguf"


def test_a_model_is_pulled_listed_shown_and_removed(hub: Hub, invoke: Invoke, tmp_path: Path) -> None:
    home = ("--home", str(tmp_path / "home"))
    pulled = invoke("models", "pull", FILE, *home)
    path = pulled.out.strip()
    assert pulled.code == 0 and Path(path).name == "tiny-Q8_0.gguf" and Path(path).is_file()
    lines = pulled.err.splitlines()
    assert lines[0].startswith(f"downloading {FILE}, ") and f"100 % of {FILE}" in lines
    assert lines[-1] == f"train it with: sapo run --model {FILE}"
    assert invoke("models", "pull", "hf:someone/tiny", "--json", *home).code == 0
    listed = invoke("models", "list", "--json", *home).record["models"]
    by_name = {model["name"]: model for model in listed}
    tiny = by_name["hf:someone/tiny"]
    assert (tiny["architecture"], tiny["licence"], tiny["fits"]) == ("llama", "apache-2.0", "yes")
    assert by_name[FILE]["bytes"] == Path(path).stat().st_size and 0 < by_name[FILE]["needed"] < by_name[FILE]["free"]
    table = invoke("models", "list", *home).out.splitlines()
    assert table[0].split() == ["disk", "weights", "memory", "fits", "licence", "model"]
    assert any(row.endswith(f"  {FILE}") and " yes " in row for row in table)
    shown = invoke("models", "show", FILE, *home).out
    assert path in shown and "architecture llama" in shown and "context      2048 tokens" in shown
    refused = invoke("models", "remove", FILE, typed="n\n")
    assert refused.code == 0 and "nothing was removed" in refused.err and Path(path).exists()
    removed = invoke("models", "remove", FILE, "--yes")
    assert removed.err.startswith(f"removed {FILE}: ") and not Path(path).exists()
    assert FILE not in invoke("models", "list", *home).out


def test_a_damaged_model_is_listed_with_its_problem(hub: Hub, invoke: Invoke, tmp_path: Path) -> None:
    path = Path(invoke("models", "pull", FILE).out.strip())
    path.resolve().write_bytes(path.read_bytes()[:1000])
    (row,) = [row for row in invoke("models", "list").out.splitlines() if f"  {FILE}: " in row]
    assert " no " in row and "ends in the middle" in row


@pytest.mark.parametrize(("arguments", "error"), [
    (("pull", "tiny"), "tiny is no name of a model on the hub; give hf:ORGANISATION/MODEL"),
    (("pull", "some/tiny"), "did you mean hf:some/tiny?"),
    (("remove", "hf:someone/tiny", "--yes"), "the model hf:someone/tiny is not on this machine"),
    (("show", "hf:someone/tiny"), "download it with: sapo models pull hf:someone/tiny"),
    (("pull", "hf:someone/else"), "is private or not on the hub"),
])  # fmt: skip
def test_each_mistake_is_answered(hub: Hub, invoke: Invoke, arguments: tuple[str, ...], error: str) -> None:
    result = invoke("models", *arguments)
    assert result.code != 0 and error in result.err
