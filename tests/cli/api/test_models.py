"""The models by name: each run's adapter, its chat and its base; better checkpoints; what clients get of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sapo_edge.cli.workspace import open_workspace
from sapo_edge.policy import STOP_TEXT, Message, Prompt
from sapo_edge.state.checkpoint import Checkpoint
from sapo_edge.state.checkpoints import Checkpoints
from sapo_edge.state.paths import Paths
from tests.cli.api.conftest import SECONDS, Api, Serving
from tests.cli.api.test_server import FORMAT

if TYPE_CHECKING:
    # Its types alone take a second to load, in each process that runs tests.
    import openai

QUESTION = "What is 3 + 4?"
CHAT = (Message("user", QUESTION),)


def answer(api: Api, prompt: Prompt, adapter: Path | None, stop: str = "") -> str:
    """What the policy itself says, with an adapter."""
    if adapter is not None:
        api.policy.load(adapter)
    ((sample,),) = api.policy.generate([prompt], 1, 24, 0.0, 0, use_adapter=adapter is not None, stop_text=stop)
    return sample.text


def of_run(home: Path, run: str = "first") -> Checkpoints:
    return Checkpoints(Paths.default(home).run_of(run).checkpoints)


def best_of(home: Path) -> Checkpoint:
    best = of_run(home).best()
    assert best is not None
    return best


def put(checkpoints: Checkpoints, source: Checkpoint, round: int, accuracy: float) -> Checkpoint:
    """A checkpoint of a later round, with the adapter of another one."""

    def write(directory: Path) -> None:
        for name in source.files:
            shutil.copy(source.directory / name, directory / name)

    return checkpoints.save(replace(source, round=round, accuracy=accuracy), write)


def test_each_model_answers_as_its_name_says(api: Api, home: Path, model: Path) -> None:
    assert api.models() == ["tiny", "first", "first-chat", "first-base"]
    best = best_of(home).directory
    task = open_workspace(home, {"model": str(model)}).require_manifest().prompt_for(QUESTION)
    texts = [api.chat(name).text for name in ("tiny", "first", "first-chat", "first-base")]
    asked = ((CHAT, None, ""), (task, best, STOP_TEXT), (CHAT, best, ""), (task, None, STOP_TEXT))
    assert texts == [answer(api, *how) for how in asked]
    assert len(set(texts)) == 4
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": "y"},
                {"role": "assistant", "content": "z"}, {"role": "user", "content": QUESTION}]  # fmt: skip
    assert api.chat("first", messages=messages).text == api.chat("first").text
    assert api.chat("first-chat", messages=messages).text != api.chat("first-chat").text
    reply = api.chat("first", messages=[{"role": "system", "content": "x"}])
    assert reply.status == 400 and reply.error["param"] == "messages"
    for name in ("", "first-", "../first", "first/x"):
        reply = api.chat(name)
        assert reply.status in (400, 404) and reply.error["param"] == "model"


def test_two_runs_have_their_own_adapters_and_the_base_is_loaded_once(home: Path, serve: Serving) -> None:
    paths = Paths.default(home)
    shutil.copytree(paths.run_of("first").directory, paths.run_of("second").directory)
    best, second = best_of(home), of_run(home, "second")
    other = next(second.read(round) for round in second.rounds() if round != best.round)
    for round in set(second.rounds()) - {other.round}:
        shutil.rmtree(second.read(round).directory)
    api = serve()
    assert api.models()[1:] == ["first", "first-chat", "first-base", "second", "second-chat", "second-base"]
    expected = [answer(api, CHAT, adapter.directory) for adapter in (best, other)]
    assert expected[0] != expected[1]
    for _ in range(2):
        assert [api.chat(name).text for name in ("first-chat", "second-chat")] == expected


def test_a_better_checkpoint_answers_the_next_question_and_none_that_is_damaged(api: Api, home: Path) -> None:
    checkpoints, best = of_run(home), best_of(home)
    other = next(checkpoints.read(round) for round in checkpoints.rounds() if round != best.round)
    source = replace(other, questions=best.questions, question_set=best.question_set)
    before = api.chat("first-chat").text

    better = put(checkpoints, source, 20, 1.25)
    after = api.chat("first-chat").text
    assert after != before and after == answer(api, CHAT, better.directory)
    assert any("first answers with its adapter of round 20" in text for text in api.said)

    with (put(checkpoints, better, 21, 1.5).directory / "adapter_model.safetensors").open("r+b") as file:
        file.truncate(100)
    for _ in range(2):
        assert api.chat("first-chat").text == after
    assert len([text for text in api.said if "damaged" in text]) == 1

    def write(directory: Path) -> None:
        for name in best.files:
            (directory / name).write_bytes(b"{}")

    checkpoints.save(replace(source, round=30, accuracy=2.0), write)
    for _ in range(2):
        assert api.chat("first-chat").text == after
    assert len([text for text in api.said if "stays" in text]) == 1


@pytest.mark.parametrize(("changed", "models"), [("model_digest", []), ("manifest_digest", ["first-chat"])])
def test_a_run_of_another_model_is_left_out_and_told_and_one_without_its_manifest_a_chat_alone(
    home: Path, serve: Serving, changed: str, models: list[str]
) -> None:
    checkpoints = of_run(home)
    for round in checkpoints.rounds():
        changes: dict[str, Any] = {changed: "0" * 64}
        checkpoint = replace(checkpoints.read(round), **changes)
        checkpoint.write_record(checkpoint.directory)
    api = serve()
    assert api.models() == ["tiny", *models] and any("another model" in text for text in api.said) == (not models)
    assert api.chat("first").error["code"] == "model_not_found"


MESSAGES: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": QUESTION}]


@pytest.fixture
def client(api: Api) -> openai.OpenAI:
    import openai

    return openai.OpenAI(base_url=api.url, api_key=api.token, max_retries=0, timeout=SECONDS)


def test_openais_client_lists_asks_streams_and_knows_the_errors(api: Api, client: openai.OpenAI) -> None:
    import openai

    assert [model.id for model in client.models.list()] == ["tiny", "first", "first-chat", "first-base"]
    whole = client.chat.completions.create(model="first", messages=MESSAGES, max_completion_tokens=16)
    text = whole.choices[0].message.content
    assert text == api.chat("first", max_tokens=16).text and whole.usage is not None and whole.usage.total_tokens > 0
    stream = client.chat.completions.create(
        model="first", messages=MESSAGES, max_tokens=16, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    assert chunks[-1].usage == whole.usage
    answer = client.chat.completions.create(
        model="first", messages=MESSAGES, max_tokens=60, temperature=1.0, response_format=FORMAT
    )
    assert set(json.loads(answer.choices[0].message.content or "")) == {"name", "level"}
    with pytest.raises(openai.NotFoundError, match="no such model"):
        client.chat.completions.create(model="none", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError, match="top_p is not supported") as refused:
        client.chat.completions.create(model="first", messages=MESSAGES, top_p=0.5)
    assert refused.value.param == "top_p"
    with pytest.raises(openai.AuthenticationError, match="--show-token"):
        client.with_options(api_key="wrong").models.list()


@pytest.mark.skipif(find_spec("llm") is None, reason="the extra starter brings llm")
def test_llm_asks(api: Api, tmp_path: Path) -> None:
    entry = {"model_id": "sapo", "model_name": "first", "api_base": api.url, "api_key_name": "sapo"}
    # JSON is YAML.
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps([entry]))
    (tmp_path / "keys.json").write_text(json.dumps({"sapo": api.token}))
    command = [sys.executable, "-m", "llm", "-m", "sapo", "-o", "max_tokens", "16", "What is 3 + 4?"]
    environment = {**os.environ, "LLM_USER_PATH": str(tmp_path), "LLM_LOAD_PLUGINS": ""}
    done = subprocess.run(
        command, capture_output=True, timeout=SECONDS, env=environment, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().strip() == api.chat("first", max_tokens=16).text.strip()
