"""`sapo push`, `pull` and `models`, with a small hub on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save

from sapo_edge.cli.models import MAX_LICENCE
from sapo_edge.control.run_report import read_run_report
from sapo_edge.state.checkpoints import Checkpoints
from sapo_edge.state.paths import Paths
from sapo_edge.swarm.joining.invite import Swarm
from sapo_edge.swarm.joining.membership import Membership
from sapo_edge.tasks.manifest import load_manifest
from tests.cli.conftest import Command, quick
from tests.cli.inprocess import Invoke
from tests.cli.process import assert_refused
from tests.defences.defence import fails_without
from tests.hub import TOKEN, Hub

NAME = "me/sums"
FILES = {"README.md", "adapter_config.json", "adapter_model.safetensors", "manifest.json", "sapo.json"}


@pytest.fixture
def mine(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The hub without repositories, for an owner who is logged in."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    hub.directory = tmp_path / "hub"
    hub.directory.mkdir()
    return hub


def sent(hub: Hub) -> set[str]:
    directory = hub.directory / NAME
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}


def test_an_adapter_is_published_pulled_and_trained_further(
    mine: Hub, invoke: Invoke, sapo: Command, home: Path, model: Path, tmp_path: Path
) -> None:
    pushed = invoke("push", NAME, "--home", home, "--yes")
    assert pushed.code == 0 and pushed.out.strip() == f"{mine.url}/{NAME}", pushed.err
    assert sent(mine) == FILES and mine.private == {NAME}
    report = read_run_report(Paths.default(home), "first")
    assert report.learned is not None
    other = tmp_path / "other"
    pulled = invoke("pull", NAME, "--model", model, "--home", other)
    assert pulled.code == 0 and "as the run first" in pulled.err and "moments begin at zero" in pulled.err
    checkpoint = Checkpoints(Paths.default(other).checkpoints).latest()
    assert checkpoint is not None and checkpoint.round == 0 and str(checkpoint.directory) == pulled.out.strip()
    original = Path(report.adapter) / "adapter_model.safetensors"
    before, after = load_file(original), load_file(checkpoint.directory / "adapter_model.safetensors")
    assert before.keys() == after.keys() and all((before[name] == after[name]).all() for name in before)
    # Nothing but the number of rounds is named: model, manifest, rank and alpha are those of the run.
    went_on = sapo(
        "run", "--home", other, "--rounds", "2", "--own", "2", "--external", "0", "--answers", "4", "--threads", "1",
        "--set", "held_out=4", "--set", "max_tokens=8", "--solo", "--json", rewarded=True,
    ).ok()  # fmt: skip
    validated, *_ = went_on.named("held_out")
    assert validated["round"] == 0 and not went_on.named("head_start")
    assert [event["round"] for event in went_on.named("round")] == [1, 2]
    assert went_on.named("node_started")[0]["settings"]["rank"] == 2
    assert f"began with the adapter of {NAME} after" in " ".join(invoke("report", "--home", other).out.split())
    # What it becomes names where it comes from.
    again = invoke("push", "me/more", "--home", other, "--dry-run", tmp_path / "dry")
    assert again.code == 0 and f"{NAME} after" in (tmp_path / "dry" / "README.md").read_text()


def test_the_card_has_figures_and_nothing_from_here(mine: Hub, invoke: Invoke, home: Path, tmp_path: Path) -> None:
    place = tmp_path / "dry"
    record = invoke("push", NAME, "--home", home, "--merged", "--dry-run", place, "--json").record
    files = {file["name"]: file["bytes"] for file in record["files"]}
    assert record["done"] == "dry run" and not record["public"] and not mine.requests
    assert files.keys() == FILES | {"merged-q8_0.gguf", "Modelfile"}
    assert all((place / name).stat().st_size == count for name, count in files.items())
    report = invoke("report", "--home", home, "--json").record
    learned, card = report["learned"], (place / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: peft\n") and "base_model" not in card.split("---")[1]
    for name, right in (("base model", learned["before"]), ("adapter", learned["now"])):
        assert f"| {name} | {right} of {learned['questions']} | {right / learned['questions']:.3f} [" in card
    assert "Too few questions" in card and "hf download me/sums merged-q8_0.gguf" in card
    assert f"--seed 3 --rounds {report['adapter_round']} --model tiny.gguf --solo" in card
    assert "--set rank=2" in card and "Answer with only the final result." in card
    texts = [path.read_bytes() for path in place.iterdir() if path.suffix != ".gguf"]
    assert not any(str(path).encode() in text for text in texts for path in (home, tmp_path, Path(report["adapter"])))
    assert not any(b"/pytest-" in text for text in texts), "a path of this machine"
    invoke("config", "set", "manifest", "gone.toml", "--home", home).ok()
    other = Path(report["adapter"]).with_name("round-000004")
    again = invoke("push", NAME, "--home", home, "--adapter", other, "--dry-run", tmp_path / "other")
    assert again.code == 0 and "\nNot measured.\n" in (tmp_path / "other" / "README.md").read_text()
    assert_refused(invoke("push", NAME, "--home", home, "--dry-run", place), 2, "is not empty", "new directory")


def test_nothing_is_sent_without_the_word(mine: Hub, invoke: Invoke, home: Path) -> None:
    for typed in ("n\n", ""):
        refused = invoke("push", NAME, "--home", home, typed=typed)
        assert refused.code == 0 and refused.err.splitlines()[-1].endswith("nothing was sent") and not mine.requests
    shown = refused.err.splitlines()
    assert shown[0] == f"{NAME} on the Hugging Face hub, private: for those whom its owner lets in"
    assert {line.split()[0] for line in shown[1:6]} == FILES and all(line.endswith(("kB", " B")) for line in shown[1:6])
    agreed = invoke("push", NAME, "--home", home, "--public", typed="y\n")
    assert agreed.code == 0 and "PUBLIC: for everybody" in agreed.err and not mine.private and sent(mine) == FILES
    refused = invoke("push", NAME, "--home", home, "--yes", "--json")
    assert_refused(refused, 1, "is public: nothing was sent", "--public")


# So many that the manifest names them by digest, in a file of their own.
@pytest.mark.parametrize("count", [12, 4000])
def test_own_questions_stay_unless_their_owner_says_so(
    mine: Hub, invoke: Invoke, sapo: Command, model: Path, tmp_path: Path, count: int
) -> None:
    home, other, questions = tmp_path / "home", tmp_path / "other", tmp_path / "secret.csv"
    row = "what is hidden in box {0} of the room at the end of the corridor,ball{0}\n"
    questions.write_text("question,answer\n" + "".join(row.format(number) for number in range(count)))
    sapo(*quick(model, home, "--manifest", questions, "--rounds", "1", "--solo"), rewarded=True).ok()
    without = invoke("push", NAME, "--home", home, "--yes")
    assert without.code == 0 and f"{count} own questions with the answers: left out" in without.err
    texts = [path.read_bytes() for path in (mine.directory / NAME).iterdir()]
    assert not any(b"hidden in box" in text or b"ball3" in text for text in texts)
    assert f"{count} own questions".encode() in b"".join(texts)
    pulled = invoke("pull", NAME, "--model", model, "--home", other)
    assert_refused(pulled, 2, "the questions of secret were not published", "--manifest")
    assert not (other / "state" / "current-run").exists()
    invoke("pull", NAME, "--model", model, "--home", other, "--manifest", questions).ok()
    whole = invoke("push", "me/whole", "--home", home, "--yes", "--with-questions", "--merged")
    assert whole.code == 0 and f"{count} own questions with the answers: in it" in whole.err
    assert any(b"ball3" in path.read_bytes() for path in (mine.directory / "me/whole").rglob("*") if path.is_file())
    assert (mine.directory / "me/whole/questions").exists() is (count == 4000)
    third = invoke("pull", "hf:me/whole", "--model", model, "--home", tmp_path / "third", "--json")
    # What an earlier push sent does not stay beside another adapter.
    assert (mine.directory / "me/whole/merged-q8_0.gguf").is_file()
    assert invoke("push", "me/whole", "--home", home, "--yes").code == 0
    assert {path.name for path in (mine.directory / "me/whole").rglob("*") if path.is_file()} == FILES
    kept = Membership(tmp_path / "third" / "state").manifest(bytes.fromhex(third.record["manifest"]))
    assert kept is not None and kept.own_questions == count and all(data.is_in(kept.store) for data in kept.data)


def test_each_mistake_of_pushing_names_its_remedy(
    mine: Hub, invoke: Invoke, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push = ("push", NAME, "--home", home, "--yes")
    for name in ("sums", "me/", "me/sums/more", "me/a b", "../x/y", "hf:"):
        assert_refused(invoke("push", name, "--home", home, "--yes"), 2, "is no name of a repository", "OWNER/NAME")
    assert_refused(invoke("push", NAME, "--home", tmp_path / "new", "--yes"), 1, "nothing is trained yet")
    (tmp_path / "peft").mkdir()
    (tmp_path / "peft" / "adapter_config.json").write_text("{}")
    assert_refused(invoke(*push, "--adapter", tmp_path / "peft"), 1, "is no checkpoint", "directory of a checkpoint")
    assert not mine.requests
    foreign = invoke("push", "others/sums", "--home", home, "--yes")
    assert_refused(foreign, 1, "the hub refuses to store others/sums", "of your own")
    mine.full = True
    assert_refused(invoke(*push), 1, "storage limit reached", "free storage on the hub")
    monkeypatch.setenv("HF_TOKEN", "hf_of_nobody")
    assert_refused(invoke(*push), 1, "does not accept this machine's token", "hf auth login")
    monkeypatch.delenv("HF_TOKEN")
    before = len(mine.requests)
    assert_refused(invoke(*push), 1, "nobody is logged in", "hf auth login")
    assert len(mine.requests) == before
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert_refused(invoke(*push), 1, f"{NAME} can't be published", "check the network")


@fails_without("backends/hub/files.py", "if size is None or size > limit:")
@fails_without("backends/adapter/files.py", "{name: np.asarray(array, np.float32) for", "{name: array for")
@fails_without(
    "library/pull.py", 'shlex.quote(f"{HUB}{published.base_repository}")', 'f"{HUB}{published.base_repository}"'
)
def test_what_a_stranger_published_is_checked(
    mine: Hub, invoke: Invoke, home: Path, model: Path, other_model: Path, tmp_path: Path
) -> None:
    assert invoke("push", NAME, "--home", home, "--yes").code == 0
    repository, other = mine.directory / NAME, tmp_path / "other"
    pull = ("pull", NAME, "--home", other)
    Membership(other / "state").join(Swarm.of(load_manifest("arithmetic")))
    refused = invoke(*pull, "--model", model)
    assert_refused(refused, 2, "this home's swarm trains on arithmetic, the adapter on starter", "sapo swarm leave")
    Membership(other / "state").leave()
    assert_refused(invoke(*pull, "--model", other_model), 1, "was trained on another model", "tiny.gguf", "--model")
    wrong = invoke(*pull, "--model", model, "--manifest", "arithmetic")
    assert_refused(wrong, 2, "was trained on another manifest, starter", "leave out the manifest")
    assert_refused(invoke("pull", "me/none", "--home", other, "--model", model), 1, "is private or not on the hub")
    good = {path: path.read_bytes() for path in repository.iterdir()}
    names = ("adapter_model.safetensors", "adapter_config.json", "sapo.json")
    weights, config, record = (repository / name for name in names)
    name, *_ = arrays = load_file(weights)
    huge = {other: array.astype(np.float16) for other, array in arrays.items()}
    huge[name] = arrays[name].astype(np.float64) + 1e300
    foreign = json.loads(good[record])
    foreign["base"] |= {"digest": "0" * 64, "repository": "x; reboot"}
    damages: list[tuple[Path, bytes, str]] = [
        (weights, save(huge), "is damaged"),
        (record, json.dumps(foreign).encode(), "--model 'hf:x; reboot'"),
        (weights, good[weights] + bytes(2_000_000), "too large"),
        (weights, b"\x80\x04pickled", "is missing or damaged"),
        (weights, good[weights][:-1000], "is missing or damaged"),
        (config, good[config].replace(b'"r": 2', b'"r": 3'), "another rank"),
        (config, good[config].replace(b'"r": 2', b'"r": 100000'), "rank = 100000"),
        (config, good[config].replace(b'"use_dora": false', b'"use_dora": true'), "plain LoRA"),
        (record, b"[" * 30_000, "sapo.json can't be read"),
        (record, good[record].replace(b'"v": 1', b'"v": 2'), "newer sapo-edge"),
        (record, good[record].replace(b'"round": ', b'"round": -'), "sapo.json can't be read"),
    ]
    for path, content, problem in damages:
        path.write_bytes(content)
        result = invoke(*pull, "--model", model)
        assert result.code in (1, 2) and result.err.startswith("sapo: ") and problem in result.err, (path, result)
        path.write_bytes(good[path])
    assert not (other / "state" / "current-run").exists() and not (other / "state" / "runs").exists()
    assert not list((other / "cache").glob("pull-*"))
    weights.unlink()
    assert_refused(invoke(*pull, "--model", model), 1, "has no adapter_model.safetensors", "sapo push")
    weights.write_bytes(good[weights])
    assert invoke(*pull, "--model", model).code == 0
    assert invoke(*pull, "--model", model, "--json").record["run"] == "run-2"


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
    by_name = {model["name"]: model for model in invoke("models", "list", "--json", *home).record["models"]}
    tiny = by_name["hf:someone/tiny"]
    assert (tiny["architecture"], tiny["licence"], tiny["fits"]) == ("llama", "apache-2.0", "yes")
    assert by_name[FILE]["bytes"] == Path(path).stat().st_size and 0 < by_name[FILE]["needed"] < by_name[FILE]["free"]
    table = invoke("models", "list", *home).out.splitlines()
    assert table[0].split() == ["disk", "weights", "memory", "fits", "licence", "model"]
    assert any(row.endswith(f"  {FILE}") and " yes " in row for row in table)
    shown = invoke("models", "show", FILE, *home).out
    assert path in shown and "architecture llama" in shown and "context      2048 tokens" in shown
    # A manifest that is gone is no reason to list nothing, or to call a download failed.
    invoke("config", "set", "manifest", "gone.toml", *home).ok()
    for words in (("list",), ("show", FILE), ("pull", FILE)):
        assert "tiny-Q8_0.gguf" in invoke("models", *words, *home).ok().out
    for typed in ("n\n", None):
        refused = invoke("models", "remove", FILE, typed=typed)
        assert refused.code == 0 and "nothing was removed" in refused.err and Path(path).exists()
    assert invoke("models", "remove", FILE, "--yes").err.startswith(f"removed {FILE}: ") and not Path(path).exists()
    assert FILE not in invoke("models", "list", *home).out


def test_a_directory_of_the_hub_takes_what_its_removal_frees(hub: Hub, invoke: Invoke) -> None:
    name = "hf:someone/tiny"
    place = Path(invoke("models", "pull", name).out.strip())
    # One is a model by itself, and the other belongs to none.
    for file in ("tiny-Q4_0.gguf", "pytorch_model.bin"):
        (place / file).write_bytes(bytes(1000))
    listed = {model["name"]: model["bytes"] for model in invoke("models", "list", "--json").record["models"]}
    told = [invoke("models", word, name, "--json").record["bytes"] for word in ("show", "pull", "remove")]
    assert told == [listed[name]] * 3 and listed[f"{name}:tiny-Q4_0.gguf"] == 1000


def test_a_damaged_model_is_listed_with_its_problem(hub: Hub, invoke: Invoke, tmp_path: Path) -> None:
    path = Path(invoke("models", "pull", FILE).out.strip())
    path.resolve().write_bytes(path.read_bytes()[:1000])
    (row,) = [row for row in invoke("models", "list").out.splitlines() if f"  {FILE}: " in row]
    assert " no " in row and "ends in the middle" in row


@fails_without("cli/models.py", "return printable(model.licence)[:MAX_LICENCE]", "return model.licence")
def test_a_licence_reaches_the_terminal_escaped_and_short(hub: Hub, invoke: Invoke) -> None:
    page = Path(invoke("models", "pull", FILE).out.strip()).with_name("README.md")
    page.unlink(missing_ok=True)
    page.write_text(f'---\nlicense: "\\e]0;mine\\a{"x" * 100}"\n---\n')
    for arguments in (("list",), ("show", FILE)):
        out = invoke("models", *arguments).out
        assert "\\x1b]0;mine" in out and not {"\x1b", "\a"} & set(out) and "x" * MAX_LICENCE not in out


@pytest.mark.parametrize(("arguments", "error"), [
    (("pull", "tiny"), "tiny is no name of a model on the hub; give hf:ORGANISATION/MODEL"),
    (("pull", "some/tiny"), "did you mean hf:some/tiny?"),
    (("remove", "hf:someone/tiny", "--yes"), "the model hf:someone/tiny is not on this machine"),
    (("show", "hf:someone/tiny"), "download it with: sapo models pull hf:someone/tiny"),
])  # fmt: skip
def test_each_mistake_is_answered(hub: Hub, invoke: Invoke, arguments: tuple[str, ...], error: str) -> None:
    result = invoke("models", *arguments)
    assert result.code != 0 and error in result.err
